//! As which user the runs of a program work where the server is root: these tests say that they are skipped where it is not.

use super::Effects::Staged;
use super::{BEFORE, Effects, Shared, call, call_under, granted, steps_of};
use harness::{Options, print_skipped};
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

/// Somebody whom this machine need not know, and somebody else.
const SOMEBODY: u32 = 54_321;
const ANOTHER: u32 = 54_323;

/// An executor that is root, with a second folder `/other`; `None` where it is not root.
fn start(other: &Path) -> Option<Shared> {
    if !rustix::process::geteuid().is_root() {
        print_skipped("this is not root, whose guests alone are others");
        return None;
    }
    let options = Options::new().set("executor.isolation", "process").mount("/other", other);
    Some(Shared::start_with(options.scope(&["/workspace/**", "/other/**"])))
}

/// Gives a folder with everything in it to a user.
fn give(folder: &Path, owner: u32, mode: u32) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
    chown(folder, Some(owner), Some(owner)).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            give(&path, owner, 0o755);
        } else {
            chown(path, Some(owner), Some(owner)).unwrap();
        }
    }
}

fn owner(path: &Path) -> u32 {
    path.metadata().unwrap().uid()
}

/// The folder of another user is an area, too, and the program's own user may not even look into it.
#[test]
fn a_program_runs_beside_areas_that_its_user_cannot_enter() {
    let other = tempfile::tempdir().unwrap();
    let Some(shared) = start(other.path()) else { return };
    let steps = json!([
        ["append", "/workspace/a.txt", "!"],
        call(json!([["read", "/workspace/a.txt"]])),
        ["create", "/workspace/new.txt", "new"],
    ]);
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        give(&shared.executor.workspace(), SOMEBODY, 0o700);
        give(other.path(), ANOTHER, 0o700);
        let ran = shared.run(&granted(effects, json!({ "scope": ["/workspace/**"] }), steps.clone()));
        assert_eq!(ran.outcomes()[0], Value::Null, "{effects:?}: {}", ran.report);
        if effects == Staged {
            shared.decide("commit", &ran);
        }
        assert_eq!(shared.files()["a.txt"], "one!", "{effects:?}");
        assert_eq!(owner(&shared.executor.workspace().join("new.txt")), SOMEBODY, "{effects:?}");
        assert_eq!(owner(&shared.executor.workspace().join("a.txt")), SOMEBODY, "{effects:?}");
    }
}

/// A call that has the folders of two users runs as root, and its program, which is one of them, reads what it has written.
#[test]
fn a_program_reads_what_a_call_of_another_user_has_written() {
    let other = tempfile::tempdir().unwrap();
    let Some(shared) = start(other.path()) else { return };
    let steps = json!([
        ["write", "/workspace/b.txt", "TWO"],
        call_under(
            json!({ "scope": ["/workspace/**", "/other/**"] }),
            json!([
                ["append", "/workspace/a.txt", "!"],
                ["append", "/workspace/b.txt", "!"],
                ["create", "/workspace/new.txt", "new"],
            ]),
        ),
        ["read", "/workspace/a.txt"],
        ["append", "/workspace/b.txt", "?"],
        ["read", "/workspace/b.txt"],
        ["read", "/workspace/new.txt"],
    ]);
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        give(&shared.executor.workspace(), SOMEBODY, 0o755);
        give(other.path(), ANOTHER, 0o755);
        let ran = shared.run(&granted(effects, json!({ "scope": ["/workspace/**"] }), steps.clone()));
        let outcomes = ran.outcomes();
        assert!(steps_of(&outcomes[1]).iter().all(Value::is_null), "{effects:?}: {outcomes:?}");
        let seen = json!(["one!", null, "TWO!?"]);
        assert_eq!(json!(outcomes[2..5]), seen, "{effects:?}");
        assert_eq!(outcomes[5], "new", "{effects:?}: {outcomes:?}");
    }
}
