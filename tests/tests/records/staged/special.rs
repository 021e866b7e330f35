//! Entries that are neither files nor folders nor links, in the scope of a staged run: it can move and delete
//! them, and a commit and an undo do so; none is ever opened. And a file that is nearly all hole.

use super::{Act, StagedFixture, Step, decided, tool};
use harness::guests::make_fifo;
use harness::{error, execute, print_skipped};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::json;
use std::fs::File;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Entries in this order: a FIFO, a socket, a device.
const NAMES: [&str; 3] = ["fifo", "socket", "device"];

/// The kinds of the entries with these names; `None` for one that does not exist.
fn kinds(workspace: &Path, names: [&str; 3]) -> [Option<&'static str>; 3] {
    names.map(|name| {
        let kind = std::fs::symlink_metadata(workspace.join(name)).ok()?.file_type();
        Some(match (kind.is_fifo(), kind.is_socket(), kind.is_char_device()) {
            (true, _, _) => NAMES[0],
            (_, true, _) => NAMES[1],
            (_, _, true) => NAMES[2],
            _ => "another one",
        })
    })
}

#[test]
fn entries_that_are_no_files_are_moved_and_deleted_and_never_opened() {
    let moves = [
        Step::MakeFolder("moved"),
        Step::Rename("fifo", "moved/fifo"),
        Step::Remove("socket"),
        Step::Rename("device", "moved/device"),
    ];
    let opens = NAMES.map(|name| tool(&format!("opens_{name}"), "staged", &[Step::Read(name)]));
    let tools = opens
        .into_iter()
        .chain([tool("moves_all", "staged", &moves), tool("moves_two", "staged", &moves[..3])]);
    let fixture = StagedFixture::start(tools);
    fixture.set_files(&[]);
    let workspace = fixture.home().workspace();
    make_fifo(&workspace.join("fifo"));
    drop(UnixListener::bind(workspace.join("socket")).unwrap());
    // The one of which a read never ends.
    let mode = Mode::RUSR | Mode::WUSR;
    let made = mknodat(CWD, workspace.join("device"), FileType::CharacterDevice, mode, makedev(1, 5));
    if made.is_err() {
        print_skipped("this user may not make devices");
    }
    let before = kinds(&workspace, NAMES);
    for name in NAMES {
        let begun = Instant::now();
        error(&fixture.ask("agent", "a2g/execute", &execute(&format!("opens_{name}"), json!({}))), -32001);
        assert!(begun.elapsed() < Duration::from_secs(5), "{name}: {:?}", begun.elapsed());
    }
    assert!(fixture.sets("otto").is_empty());

    let run = fixture.stage(if made.is_ok() { "moves_all" } else { "moves_two" });
    let listed = run.report["usage"]["effects"]["files"].as_array().expect("a list");
    let others = listed.iter().filter(|file| file["entry"] == "other").count();
    assert_eq!(others, if made.is_ok() { 3 } else { 2 }, "{}", run.report);
    assert_eq!(kinds(&workspace, NAMES), before);
    fixture.succeed("anna", Act::Commit, &run);
    let moved = ["moved/fifo", "socket", "moved/device"];
    assert_eq!(kinds(&workspace, moved), [before[0], None, before[2]]);
    fixture.succeed("anna", Act::Undo, &run);
    assert_eq!((kinds(&workspace, NAMES), workspace.join("moved").exists()), (before, false));

    // Another one in its place is a conflict.
    let run = fixture.stage("moves_two");
    std::fs::remove_file(workspace.join("fifo")).unwrap();
    make_fifo(&workspace.join("other"));
    std::fs::rename(workspace.join("other"), workspace.join("fifo")).unwrap();
    decided(&fixture.decide("anna", Act::Commit, &run), "FAILURE");
    assert_eq!(kinds(&workspace, NAMES), before);
    fixture.succeed("anna", Act::Discard, &run);
}

/// Its hole is filled neither by the run, whose copy counts as written, nor by a commit or an undo.
#[test]
fn a_sparse_file_of_two_gigabytes_stays_sparse() {
    const BYTES: u64 = 2 << 30;
    const AT: u64 = BYTES - 3;
    const MAX_USED: u64 = 1 << 20;
    let patches = tool("patches", "staged", &[Step::Patch("sparse", AT, "new")]);
    let fixture =
        StagedFixture::start_with([patches], |options| options.set("ceilings.max_written_mb", 4096));
    fixture.set_files(&[]);
    let path = fixture.home().workspace().join("sparse");
    let original = File::create(&path).unwrap();
    original.set_len(BYTES).unwrap();
    original.write_all_at(b"old", AT).unwrap();
    drop(original);
    let assert_ends_with = |content: &[u8; 3], after: &str| {
        let file = File::open(&path).unwrap();
        let mut end = [0; 3];
        file.read_exact_at(&mut end, AT).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((&end, metadata.len()), (content, BYTES), "{after}");
        assert!(metadata.blocks() * 512 < MAX_USED, "{after}: {} blocks", metadata.blocks());
    };
    let run = fixture.stage("patches");
    assert_ends_with(b"old", "the run");
    let used = fixture.set(&run)["bytes"].as_u64().expect("a number");
    assert!(used < MAX_USED, "{used}");
    fixture.succeed("anna", Act::Commit, &run);
    assert_ends_with(b"new", "the commit");
    fixture.succeed("anna", Act::Undo, &run);
    assert_ends_with(b"old", "the undo");
}
