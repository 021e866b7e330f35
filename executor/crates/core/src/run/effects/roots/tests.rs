//! Folders that are opened again, and names as people read them.

use super::*;
use crate::run::effects::{EffectsFolder, EffectsLocation, EffectsSettings};
use a2g_types::ident::IntentId;
use serde_json::{Value, json};
use std::time::Duration;

impl RunRoots {
    /// One folder, which a run may change.
    pub(in crate::run::effects) fn of_folder(guest: &str, dir: OwnedFd) -> Self {
        let named = NamedRoot { guest: guest.to_owned(), granted: None, is_missing: false };
        Self { lower: vec![LowerRoot { dir, access: Access::Write }], named: vec![named] }
    }
}

/// A file system in the place of another one has the same numbers: its root folder always has.
#[test]
fn a_folder_is_opened_again_only_if_it_is_the_same() {
    let settings = EffectsSettings { decide_within: Duration::ZERO, keep: Duration::ZERO, max_bytes: 0 };
    let effects = EffectsFolder::new(EffectsLocation::Temporary, settings);
    let (folder, _upper) = effects.make(IntentId::random()).unwrap();
    let host = tempfile::tempdir().unwrap();
    let dir = OwnedFd::from(File::open(host.path()).unwrap());
    let inode = fstat(&dir).unwrap().st_ino;
    assert!(RunRoots::reopen(&folder).unwrap().is_none(), "no commit has begun");
    RunRoots::of_folder("/workspace", dir).prepare_commit(&folder, |_roots| Ok(())).unwrap();
    let again = RunRoots::reopen(&folder).unwrap().unwrap();
    assert_eq!(fstat(&again.lower()[0].dir).unwrap().st_ino, inode);

    let path = folder.path().join(ROOTS);
    let stored: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (member, other) in [("inode", json!(inode + 1)), ("born", json!([1, 0]))] {
        let mut changed = stored.clone();
        changed["roots"][0][member] = other;
        std::fs::write(&path, changed.to_string()).unwrap();
        let refused = RunRoots::reopen(&folder).map(drop).unwrap_err().to_string();
        assert!(refused.contains("another folder is in its place"), "{member}: {refused}");
    }
}

#[test]
fn different_names_never_look_alike() {
    for (name, shown) in [
        (&b"plain.txt"[..], "plain.txt"),
        (b"a\n", r"a\n"),
        (br"a\n", r"a\\n"),
        (b"a\xff", r"a\xff"),
        (br"a\xff", r"a\\xff"),
        ("a\u{202e}".as_bytes(), r"a\u{202e}"),
        (br"a\u{202e}", r"a\\u{202e}"),
    ] {
        assert_eq!(show_bytes(name), shown);
    }
}
