//! The hosts that a run may reach: allowed by every layer, and blocked by none.

use a2g_capability::{
    Authority, Ceilings, Claims, Grant, Host, HostClaims, HostPattern, Layer, ReachError, parse_condition,
};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let ceilings = Ceilings {
        network: true,
        hosts: HostClaims {
            allowed: Some(vec![HostPattern::parse("*.example.com")?]),
            ..HostClaims::default()
        },
        ..Ceilings::closed()
    };
    let verdict = Claims {
        hosts: HostClaims {
            blocked: vec![HostPattern::parse("admin.example.com")?],
            ..HostClaims::default()
        },
        ..Claims::default()
    };
    let authority = Authority::for_engine().ok_or("this process has another authority")?;
    let grant = Grant::meet(&authority, [(Layer::Verdict, verdict)], &ceilings)?;

    assert!(grant.network().value);
    // One spelling is compared: in lower case, without the dot at the end.
    assert_eq!(grant.reach().check(&Host::parse("API.example.com.")?), Ok(()));
    assert_eq!(
        grant.reach().check(&Host::parse("admin.example.com")?),
        Err(ReachError::Blocked(Layer::Verdict))
    );
    assert_eq!(
        grant.reach().check(&Host::parse("example.org")?),
        Err(ReachError::NotAllowed(Layer::Executor))
    );
    assert_eq!(
        grant.reach().check(&Host::parse("192.0.2.1")?),
        Err(ReachError::AddressNotAllowed(Layer::Executor))
    );

    let without = Grant::meet(&authority, [(Layer::Condition, parse_condition("no_network")?)], &ceilings)?;
    assert_eq!((without.network().value, without.network().layer), (false, Layer::Condition));
    Ok(())
}
