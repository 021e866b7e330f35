//! The limits of several layers meet: the narrowest one holds, and names the layer that set it.

use a2g_capability::{
    Access, Area, Authority, Ceilings, ClaimedLimits, Claims, Grant, Layer, LimitMap, MemoryLimit, Timeout,
    parse_condition,
};
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let ceilings = Ceilings {
        limits: LimitMap::defaults().with(MemoryLimit::from_mb(64)?).with(Timeout::from_seconds(30)?),
        areas: Area::parse("/workspace/**")?,
        access: Access::ReadWrite,
        ..Ceilings::closed()
    };
    let verdict = Claims {
        limits: ClaimedLimits::default().with(Some(MemoryLimit::from_mb(512)?)),
        areas: Some(Area::parse("/workspace/reports/**")?),
        ..Claims::default()
    };
    let layers = [
        (Layer::Verdict, verdict),
        (Layer::Condition, parse_condition("timeout_seconds:5")?),
        (Layer::Condition, parse_condition("read_only")?),
    ];
    let authority = Authority::for_engine().ok_or("this process has another authority")?;
    let grant = Grant::meet(&authority, layers, &ceilings)?;

    assert_eq!((grant.memory().value.mb(), grant.memory().layer), (64, Layer::Executor));
    assert_eq!(grant.timeout().value.duration(), Duration::from_secs(5));
    assert_eq!(grant.timeout().layer, Layer::Condition);
    assert_eq!((grant.access().value, grant.access().layer), (Access::ReadOnly, Layer::Condition));
    let folders = grant.roots().iter().map(|root| root.tree().path());
    assert_eq!(folders.collect::<Vec<_>>(), ["/workspace/reports"]);
    Ok(())
}
