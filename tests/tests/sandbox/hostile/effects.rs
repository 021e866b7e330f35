//! Guests whose file changes take effect together, at the end of the run or after a decision: before that, and after any end
//! but a success, nothing has changed.

use super::bench::{Bench, Call};
use super::ceilings::spent;
use super::disk::Disk;
use harness::guests::{Guest, errno};
use harness::{eventually, result};
use serde_json::json;
use std::fs;
use std::io::Write as _;

/// Makes, changes, moves and removes files and folders, and looks at them again.
const CHANGES: &str = r#"
    (call $note (call $create (i32.const 3) @"new.txt"))
    (call $note (call $write (global.get $fd) @"hello"))
    (call $note (call $fd_close (global.get $fd)))
    (call $note (call $open_rw (i32.const 3) @"inside.txt"))
    (call $note (call $write (global.get $fd) @"JOBS"))
    (call $note (call $fd_close (global.get $fd)))
    (call $note (call $path_mkdir (i32.const 3) @"made"))
    (call $note (call $path_rename (i32.const 3) @"new.txt" (i32.const 3) @"made/moved.txt"))
    (call $note (call $path_unlink (i32.const 3) @"dir/deep.txt"))
    (call $note (call $path_rmdir (i32.const 3) @"empty"))
    (call $note (call $path_rename (i32.const 3) @"folder" (i32.const 3) @"dir/folder"))
    (call $note (call $open (i32.const 3) @"dir/deep.txt"))
    (call $note (call $open (i32.const 3) @"dir/folder/within.txt"))
    (call $note (call $open (i32.const 3) @"made/moved.txt"))
    (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
    (call $note (i32.load (i32.const 8)))
    (call $note (call $open (i32.const 3) @"inside.txt"))
    (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
    (call $note (i32.load (i32.const 512)))"#;

/// The notes of [`CHANGES`].
fn notes_of_changes() -> Vec<u64> {
    let changed = u64::from(u32::from_le_bytes(*b"JOBS"));
    vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, errno::NOENT, 0, 0, 0, 5, 0, 0, changed]
}

/// Makes one more file, and waits for the file `go`.
const WAITS: &str = r#"
    (if (call $create (i32.const 3) @"ready") (then (unreachable)))
    (loop $wait
      (drop (call $sleep (i64.const 10000000)))
      (br_if $wait (call $path_stat (i32.const 3) (i32.const 0) @"go" (i32.const 512))))"#;

fn disk() -> Disk {
    let files = ["jobs/inside.txt", "jobs/dir/deep.txt", "jobs/folder/within.txt", "outside/secret.txt"];
    Disk::with(
        &files,
        &["jobs/empty"],
        &[("relative", "../outside/secret.txt"), ("absolute", "~/outside/secret.txt")],
    )
}

fn call<'a>(bench: &'a Bench, tool: &str) -> Call<'a> {
    bench.call(tool).scope("/jobs/**").condition("effects:atomic")
}

fn staged<'a>(bench: &'a Bench, tool: &str) -> Call<'a> {
    bench.call(tool).scope("/jobs/**").condition("effects:staged")
}

/// Looks at what [`CHANGES`] changes.
const LOOKS: &str = r#"
    (call $note (call $open (i32.const 3) @"inside.txt"))
    (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
    (call $note (i32.load (i32.const 512)))
    (call $note (call $open (i32.const 3) @"dir/deep.txt"))
    (call $note (call $open (i32.const 3) @"empty"))
    (call $note (call $open (i32.const 3) @"made/moved.txt"))
    (call $note (call $open (i32.const 3) @"dir/folder/within.txt"))"#;

/// The notes of [`LOOKS`] before the changes.
fn notes_of_originals() -> Vec<u64> {
    let original = u64::from(u32::from_le_bytes(*b"jobs"));
    vec![0, 0, original, 0, 0, errno::NOENT, errno::NOENT]
}

/// Asserts that the changes of [`CHANGES`] are in force.
fn assert_changed(disk: &Disk) {
    let content = |path: &str| fs::read_to_string(disk.at("jobs").join(path)).expect("a file");
    assert_eq!(content("made/moved.txt"), "hello");
    assert_eq!(content("inside.txt"), "JOBS/inside.txt");
    assert_eq!(content("dir/folder/within.txt"), "jobs/folder/within.txt");
    for gone in ["new.txt", "dir/deep.txt", "empty", "folder"] {
        assert!(!disk.at("jobs").join(gone).exists(), "{gone}");
    }
}

/// The number of files in which runs keep changed contents.
fn staged_files(bench: &Bench) -> usize {
    let runs = bench.executor.home().journal().with_file_name("effects").join("journal.db");
    let entries = |folder: std::path::PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries(runs).flat_map(|run| entries(run.path().join("upper")));
    files.filter(|file| file.file_name().to_string_lossy().parse::<u64>().is_ok()).count()
}

fn assert_folder_removed(bench: &Bench) {
    eventually("the folder of the run is removed", || (staged_files(bench) == 0).then_some(()));
}

#[test]
fn changes_are_seen_by_their_run_only_until_it_succeeds() {
    let disk = disk();
    let bench =
        disk.bench([("changes", Guest::new(format!("{CHANGES}{WAITS}"))), ("looks", Guest::new(LOOKS))]);
    let before = disk.inside();
    let answer = std::thread::scope(|scope| {
        let running = scope.spawn(|| call(&bench, "changes").grant("timeout_seconds", 60).send());
        // `new.txt`, the copy of `inside.txt`, and `ready`.
        eventually("it has made its changes", || (staged_files(&bench) == 3).then_some(()));
        assert_eq!(disk.inside(), before);
        for seen in [bench.call("looks").scope("/jobs/**"), call(&bench, "looks")] {
            assert_eq!(seen.send().success().notes(), notes_of_originals());
        }
        assert_eq!(disk.inside(), before);
        fs::write(disk.at("jobs/go"), "").expect("a file");
        running.join().expect("a call")
    });
    let report = answer.success();
    assert_eq!(report.notes(), notes_of_changes());
    assert_eq!(report.effects(), Some(("atomic", "condition")));
    assert!(report.denied().is_empty(), "{report:?}");
    assert_changed(&disk);
    bench.decide("a2g/undo", &report);
    assert_folder_removed(&bench);
}

/// Neither the end of the run nor its answer lets them take effect.
#[test]
fn staged_changes_are_seen_by_nobody_until_they_are_committed() {
    let disk = disk();
    let bench = disk.bench([("changes", Guest::new(CHANGES)), ("looks", Guest::new(LOOKS))]);
    let before = disk.inside();
    for decision in ["a2g/discard", "a2g/commit"] {
        let run = staged(&bench, "changes").send().staged();
        assert_eq!(run.notes(), notes_of_changes(), "the run itself sees its changes");
        assert_eq!(run.effects(), Some(("staged", "condition")));
        assert!(run.denied().is_empty(), "{run:?}");
        let looks = bench.call("looks").scope("/jobs/**");
        for seen in [looks, call(&bench, "looks"), staged(&bench, "looks")] {
            assert_eq!(seen.send().success().notes(), notes_of_originals());
        }
        assert_eq!(disk.inside(), before, "nothing is in force before the decision");
        bench.decide(decision, &run);
        if decision == "a2g/discard" {
            assert_eq!(disk.inside(), before);
            assert_folder_removed(&bench);
        } else {
            assert_changed(&disk);
            let notes = bench.call("looks").scope("/jobs/**").send().success().notes();
            assert_eq!(notes[2], u64::from(u32::from_le_bytes(*b"JOBS")));
            assert_eq!(notes[3..], [errno::NOENT, errno::NOENT, 0, 0]);
            bench.decide("a2g/undo", &run);
        }
    }
    assert_folder_removed(&bench);
    let content = fs::read_to_string(disk.at("jobs/inside.txt")).expect("a file");
    assert_eq!(content, "jobs/inside.txt");
    assert!(disk.at("jobs/empty").is_dir() && disk.at("jobs/dir/deep.txt").is_file());
}

#[test]
fn any_end_but_a_success_leaves_no_change() {
    let disk = disk();
    let ends = [
        ("exits", "(call $exit (i32.const 3))"),
        ("traps", "(unreachable)"),
        ("not_json", r#"(call $say @"no JSON")"#),
        ("too_late", "(loop $forever (br $forever))"),
        ("too_much", "(loop $more (drop (memory.grow (i32.const 100))) (br $more))"),
    ];
    let guests = ends.map(|(name, end)| (name, Guest::new(format!("{CHANGES}{end}")).silent()));
    let bench = disk.bench(guests);
    let before = disk.inside();
    for (tool, _) in ends {
        for tried in [call(&bench, tool), staged(&bench, tool)] {
            let answer = tried.grant("timeout_seconds", 2).send();
            let status = &answer.response["error"]["data"]["report"]["status"];
            assert!(*status == "FAILURE" || *status == "TIMEOUT", "{tool}: {answer:?}");
            assert_eq!(disk.inside(), before, "{tool}");
            assert_folder_removed(&bench);
        }
    }
    let sets = bench.executor.rpc("a2g/effects", &json!({}));
    assert_eq!(result(&sets)["sets"], json!([]), "nothing waits for a decision");
}

#[test]
fn what_leads_out_of_the_folder_is_refused_as_without() {
    let refused = [
        r#"(call $open (i32.const 3) @"../outside/secret.txt")"#,
        r#"(call $open (i32.const 3) @"dir/../../outside/secret.txt")"#,
        r#"(call $open (i32.const 3) @"relative")"#,
        r#"(call $open (i32.const 3) @"absolute")"#,
        r#"(call $create (i32.const 3) @"../outside/new.txt")"#,
        r#"(call $create (i32.const 3) @"relative")"#,
        r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 3) @"../outside/new.txt")"#,
        r#"(call $path_symlink @"../outside" (i32.const 3) @"link")"#,
        r#"(call $path_link (i32.const 3) (i32.const 0) @"inside.txt" (i32.const 3) @"linked")"#,
    ];
    for condition in ["effects:atomic", "effects:staged"] {
        disk().try_calls(&refused, &["/jobs/**"], Some(condition), |_, call, report| {
            let noted = report.notes();
            assert!(noted == [errno::PERM] || noted == [errno::NOTCAPABLE], "{call}: {noted:?}");
            assert!(!report.denied().is_empty(), "{call}: {report:?}");
        });
    }
}

#[test]
fn a_part_of_a_folder_is_granted_as_without() {
    let disk = disk();
    let body = r#"
        (call $note (call $open (i32.const 3) @"dir/deep.txt"))
        (call $note (call $open_rw (i32.const 3) @"inside.txt"))
        (call $note (call $create (i32.const 3) @"new.txt"))
        (call $note (call $create (i32.const 3) @"dir/new.txt"))
        (call $note (call $path_rename (i32.const 3) @"dir/new.txt" (i32.const 3) @"moved.txt"))
        (call $note (call $path_rename (i32.const 3) @"dir" (i32.const 3) @"moved"))"#;
    let bench = disk.bench([("tries", Guest::new(body))]);
    let tried = bench.call("tries").scope("/jobs/{dir/*.txt,other}").condition("effects:atomic");
    let report = tried.send().success();
    let whole =
        bench.call("tries").scope("/jobs/{dir/**,other}").condition("effects:atomic").send().success();
    assert_eq!(report.notes()[0], errno::SUCCESS, "{report:?}");
    for report in [report, whole] {
        let refused = report.notes().split_off(1);
        assert!(refused.iter().filter(|error| **error != errno::SUCCESS).count() >= 4, "{report:?}");
        assert!(!disk.at("jobs/new.txt").exists() && !disk.at("jobs/moved.txt").exists());
        assert!(!disk.at("jobs/moved").exists());
        assert_eq!(fs::read_to_string(disk.at("jobs/inside.txt")).expect("a file"), "jobs/inside.txt");
    }
}

#[test]
fn a_copy_of_what_is_changed_counts_as_written() {
    const MB: usize = 1 << 20;
    let disk = disk();
    for name in ["jobs/large", "jobs/larger"] {
        let mut file = fs::File::create(disk.at(name)).expect("a file");
        // Some file systems keep no block of zeros, and none before it is written.
        file.write_all(&b"0123456789abcdef".repeat(3 * MB / 16)).expect("room");
        file.sync_all().expect("a disk");
    }
    let open = |name: &str| format!("(call $note (call $open_rw (i32.const 3) @\"{name}\"))");
    let options = disk.options().set("ceilings.max_written_mb", 4);
    let guests = [
        ("opens_one", Guest::new(open("large"))),
        ("opens_both", Guest::new(open("large") + &open("larger"))),
        ("reads_both", Guest::new(open("large").replace("_rw", "") + &open("larger").replace("_rw", ""))),
    ];
    let bench = Bench::start_with(options, guests);
    let before = disk.inside();
    let report = call(&bench, "opens_one").send().success();
    assert_eq!(report.in_force("max_written_mb"), &spent(3, 4));
    call(&bench, "opens_both").send().limit("written_bytes");
    let report = call(&bench, "reads_both").send().success();
    assert_eq!(report.in_force("max_written_mb"), &spent(0, 4));
    let report = bench.call("opens_both").scope("/jobs/**").send().success();
    assert_eq!(report.in_force("max_written_mb"), &spent(0, 4));
    assert_eq!(disk.inside(), before);
}
