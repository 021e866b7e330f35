//! A permit opens the folders of a grant below the operator's mounts. Single paths are granted and blocked by patterns.

use a2g_capability::{Area, Authority, Ceilings, Claims, Glob, Grant, Layer, Mount, Mounts, Permit, Tree};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let host = tempfile::tempdir()?;
    std::fs::create_dir(host.path().join("reports"))?;
    let ceilings = Ceilings { areas: Area::parse("/workspace/**")?, ..Ceilings::closed() };
    let verdict = Claims {
        areas: Some(Area::parse("/workspace/reports/*.md")?),
        blocked: Glob::parse_blocking("/workspace/reports/draft.md")?,
        ..Claims::default()
    };
    let authority = Authority::for_engine().ok_or("this process has another authority")?;
    let grant = Grant::meet(&authority, [(Layer::Verdict, verdict)], &ceilings)?;

    let root = Arc::clone(grant.roots().first().ok_or("no folder is granted")?);
    assert!(root.grants("/workspace/reports/june.md"));
    assert!(!root.grants("/workspace/reports/june.txt"), "no pattern matches it");
    assert!(!root.grants("/workspace/reports/draft.md"), "a pattern blocks it");

    // The operator says where the guest's paths lie on the host; the guest never learns it.
    let guest = Tree::parse_path("/workspace")?;
    let mounts = Mounts::new(vec![Mount { guest, host: host.path().into() }])?;
    let permit = Permit::open(grant, &mounts, &ceilings.areas, |_needed| true)?;
    let opened = permit.roots().as_slice().iter().map(|root| root.guest.as_str());
    assert_eq!(opened.collect::<Vec<_>>(), ["/workspace/reports"]);
    Ok(())
}
