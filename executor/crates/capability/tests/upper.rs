//! The folder for a run's file changes, in a process that receives the run's permit.

use a2g_capability::{Ceilings, Handover, Permit, Upper};
use std::fs::File;
use std::os::fd::AsFd as _;

#[test]
fn the_folder_for_changes_arrives_with_the_permit_and_serves_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let upper = Upper::new(File::open(folder.path()).unwrap().into());
    let permit = Permit::without_access(&Ceilings::closed());
    assert!(permit.upper().is_none());
    let (handover, folders) = Handover::from_permit(permit.with_upper(upper));
    let text = serde_json::to_string(&handover).unwrap();
    let parse = || serde_json::from_str::<Handover>(&text).unwrap();
    assert!(parse().receive(Vec::new()).is_none(), "the folder is missing");
    let twice = folders.iter().chain(&folders).map(|folder| folder.try_clone().unwrap()).collect();
    assert!(parse().receive(twice).is_none(), "a folder that no root of the grant has");
    let received = parse().receive(folders).unwrap();
    assert!(received.duplicate().is_err());
    let inode = |folder: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(folder).unwrap().st_ino;
    let upper = received.permit().upper().unwrap();
    assert_eq!(inode(upper.as_fd()), inode(File::open(folder.path()).unwrap().as_fd()));
    assert!(upper.member().is_none());
    let mut permit = received.into_permit();
    assert!(permit.take_upper().is_some());
    assert!(permit.upper().is_none());
}
