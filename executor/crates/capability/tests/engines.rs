//! The authorities of engines, in a process that has no other kind.

use a2g_capability::{Authority, Ceilings, Claims, Grant, Handover, Layer, Mounts, Permit};

#[test]
fn a_process_with_engines_has_no_other_authority_and_receives_no_permit() {
    let authority = Authority::for_engine().unwrap();
    let other = Authority::for_engine().unwrap();
    assert!(authority.engine().is_some());
    assert_ne!(authority.engine(), other.engine());
    assert!(Authority::take().is_none());
    let ceilings = Ceilings::closed();
    let grant = Grant::meet(&authority, [(Layer::Verdict, Claims::default())], &ceilings).unwrap();
    assert_eq!(grant.engine(), authority.engine());
    let permit = Permit::open(grant, &Mounts::new(Vec::new()).unwrap(), &ceilings.areas, |_| true).unwrap();
    assert_eq!(permit.grant().engine(), authority.engine());
    let (handover, folders) = Handover::from_permit(permit);
    assert!(handover.receive(folders).is_none());
}
