//! The folders of a program, in a process that receives the permit of one of its runs.

use a2g_capability::{Ceilings, EarlierFolder, Handover, MemberFolders, Permit, Place, Upper};
use std::fs::{self, File};
use std::os::fd::OwnedFd;

#[test]
fn the_folders_of_a_program_arrive_in_their_roles() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        OwnedFd::from(File::open(path).unwrap())
    };
    let member = MemberFolders {
        base: open("base"),
        earlier: vec![
            EarlierFolder { folder: open("earliest"), from: 1 },
            EarlierFolder { folder: open("earlier"), from: 7 },
        ],
        roots: vec![open("root")],
        places: Vec::new(),
        readable: vec![open("readable")],
    };
    let permit = Permit::without_access(&Ceilings::closed());
    let upper = Upper::new(open("upper")).with_member(member);
    let (handover, folders) = Handover::from_permit(permit.with_upper(upper));
    let text = serde_json::to_string(&handover).unwrap();
    let parse = |text: &str| serde_json::from_str::<Handover>(text).unwrap();
    let copies = || folders.iter().map(|folder| folder.try_clone().unwrap()).collect::<Vec<_>>();
    for count in 0..folders.len() {
        let fewer = copies().into_iter().take(count).collect();
        assert!(parse(&text).receive(fewer).is_none(), "{count} folders");
    }
    assert!(parse(&text).receive(copies().into_iter().chain([open("more")]).collect()).is_none());
    // The run has no granted folder that could be at a place.
    let placed = text.replacen(r#""places":[]"#, r#""places":[{"root":0,"names":[[97]]}]"#, 1);
    assert_ne!(placed, text);
    assert!(parse(&placed).receive(copies()).is_none());
    let mut permit = parse(&text).receive(folders).unwrap().into_permit();
    let (upper, member) = permit.take_upper().unwrap().into_parts();
    let MemberFolders { base, earlier, roots, places, readable } = member.unwrap();
    assert_eq!(places, Vec::<Option<Place>>::new());
    let inode = |folder: &OwnedFd| rustix::fs::fstat(folder).unwrap().st_ino;
    assert_eq!(earlier.iter().map(|earlier| earlier.from).collect::<Vec<_>>(), [1, 7]);
    let earlier_folders = earlier.iter().map(|earlier| &earlier.folder);
    let received = [&upper, &base].into_iter().chain(earlier_folders).chain(&roots).chain(&readable);
    let received = received.map(inode).collect::<Vec<_>>();
    let expected =
        ["upper", "base", "earliest", "earlier", "root", "readable"].map(|name| inode(&open(name)));
    assert_eq!(received, expected);
    assert_eq!((roots.len(), readable.len()), (1, 1));
}
