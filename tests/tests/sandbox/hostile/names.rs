//! Guests and hosts that play with names: one that leads elsewhere a moment later, and ones that look
//! alike.

use super::disk::Disk;
use harness::guests::{Guest, errno};
use harness::{SetOnDrop, eventually};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first bytes of what a guest may read, and of what it may not.
const MINE: u64 = b'm' as u64;
const SECRET: u64 = b's' as u64;

#[test]
fn a_folder_swapped_for_a_link_does_not_escape_the_scope() {
    // Opens a file, and notes its first byte, or a zero; tries to leave a file beside it.
    let once = r#"
        (if (call $open (i32.const 3) @"file") (then (call $note (i32.const 0)))
          (else
            (drop (call $read (global.get $fd) (i32.const 512) (i32.const 1)))
            (call $note (i32.load8_u (i32.const 512)))))
        (drop (call $create (i32.const 3) @"planted"))"#;
    // The same below its root, again and again: how often it was its own file, and how often another.
    let often = r#"(local $left i32) (local $mine i32) (local $other i32)
        (local.set $left (i32.const 3000))
        (loop $again
          (i32.store8 (i32.const 512) (i32.const 0))
          (if (i32.eqz (call $open (i32.const 3) @"a/file"))
            (then
              (drop (call $read (global.get $fd) (i32.const 512) (i32.const 1)))
              (drop (call $fd_close (global.get $fd)))
              (if (i32.eq (i32.load8_u (i32.const 512)) (i32.const 109))
                (then (local.set $mine (i32.add (local.get $mine) (i32.const 1))))
                (else (local.set $other (i32.add (local.get $other) (i32.const 1)))))))
          (drop (call $path_mkdir (i32.const 3) @"a/planted"))
          (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (call $note (local.get $mine))
        (call $note (local.get $other))"#;
    let disk = Disk::with(&["jobs/a/file", "outside/file"], &[], &[("b", "../outside")]);
    let at = |path: &str| disk.at(path);
    fs::write(at("jobs/a/file"), "mine").expect("a file");
    fs::write(at("outside/file"), "secret").expect("a file");
    let guests = [("once", Guest::new(once)), ("often", Guest::new(often))];
    let bench = disk.bench(guests);
    let over = AtomicBool::new(false);
    let mut read = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                renameat_with(CWD, at("jobs/a"), CWD, at("jobs/b"), RenameFlags::EXCHANGE).expect("a swap");
                std::thread::yield_now();
            }
        });
        let _when_this_ends_or_fails = SetOnDrop(&over);
        // The root of a run is opened by the server, below what was swapped.
        for _ in 0..60 {
            let answer = bench.call("once").scope("/jobs/a/**").send();
            if answer.response.get("result").is_some() {
                read.extend(answer.success().notes());
            }
        }
        // The second kind of scope is enforced in another way.
        let others = ["/jobs/**", "/jobs/**/file"].map(|pattern| {
            // The swapping thread may get no core during all the attempts of a guest.
            eventually("it reads its own", || {
                let call = bench.call("often").scope(pattern).grant("timeout_seconds", 60);
                let notes = call.send().success().notes();
                (notes[0] > 0 || notes[1] > 0).then_some(notes[1])
            })
        });
        assert_eq!(others, [0, 0], "it read another's");
    });
    assert!(read.contains(&MINE) && !read.contains(&SECRET), "{read:?}");
    assert_eq!(fs::read_dir(at("outside")).expect("a folder").count(), 1);
}

#[test]
fn similar_looking_names_are_distinct() {
    // With one letter and with two; both are the same to many programs.
    let one = "caf\u{e9}";
    let two = "cafe\u{301}";
    let folders = [one, two, "Docs", "docs", "deep/Docs", "deep/docs"];
    let files =
        folders.iter().flat_map(|folder| ["x.md", "x.MD"].map(|file| format!("jobs/{folder}/{file}")));
    let files = files.collect::<Vec<_>>();
    let disk = Disk::with(&files.iter().map(String::as_str).collect::<Vec<_>>(), &[], &[]);
    let opens =
        |folder: &str, file: &str| format!("(call $note (call $open (i32.const 3) @\"{folder}/{file}\"))");
    let body = [
        opens(one, "x.md"),
        opens("Docs", "x.md"),
        opens("deep/Docs", "x.md"),
        opens(two, "x.md"),
        opens("deep/docs", "x.md"),
        opens("docs", "x.md"),
        opens("DOCS", "x.md"),
        opens(one, "x.MD"),
        opens("Docs", "x.MD"),
        // A full stop of full width, and an invisible letter.
        opens("docs/\u{ff0e}\u{ff0e}/Docs", "x.md"),
        opens("Docs\u{200b}", "x.md"),
    ]
    .concat();
    let bench = disk.bench([("opens", Guest::new(body))]);
    // A name after a wildcard is compared elsewhere. With the last pattern it is all below one folder.
    let patterns = json!([format!("/jobs/{{{one},Docs}}/*.md"), "/jobs/d*/Docs/*.md", "/jobs/*.md"]);
    let report = bench.call("opens").grant("filesystem_scope", patterns).send().success();
    assert_eq!(report.notes()[..3], [errno::SUCCESS; 3], "{report:?}");
    assert!(report.notes()[3..].iter().all(|error| *error != errno::SUCCESS), "{report:?}");
    // A tree is opened by its own name, too.
    let tree = bench.call("opens").grant("filesystem_scope", json!([format!("/jobs/{two}/**")]));
    let report = tree.send().success();
    assert!(report.notes().iter().all(|error| *error != errno::SUCCESS), "{report:?}");
}

#[test]
fn a_path_of_invalid_utf8_is_an_error_under_every_scope() {
    const NO_TEXT: &str = r#"@"dir/\ff.md""#;
    let calls = [
        format!("(call $open (i32.const 3) {NO_TEXT})"),
        format!("(call $create (i32.const 3) {NO_TEXT})"),
        format!("(call $path_mkdir (i32.const 3) {NO_TEXT})"),
        format!("(call $path_rmdir (i32.const 3) {NO_TEXT})"),
        format!("(call $path_unlink (i32.const 3) {NO_TEXT})"),
        format!("(call $path_stat (i32.const 3) (i32.const 1) {NO_TEXT} (i32.const 512))"),
        format!("(call $path_readlink (i32.const 3) {NO_TEXT} (i32.const 512) (i32.const 64) (i32.const 8))"),
        format!("(call $path_rename (i32.const 3) {NO_TEXT} (i32.const 3) @\"new.md\")"),
        format!("(call $path_rename (i32.const 3) @\"old.md\" (i32.const 3) {NO_TEXT})"),
        format!(
            "(call $path_set_times (i32.const 3) (i32.const 1) {NO_TEXT} (i64.const 1) (i64.const 1) (i32.const 5))"
        ),
        // Of these two, a whole tree refuses the call before the path.
        format!("(call $path_link (i32.const 3) (i32.const 0) {NO_TEXT} (i32.const 3) @\"new.md\")"),
        format!("(call $path_symlink {NO_TEXT} (i32.const 3) @\"new.md\")"),
    ];
    let disk = Disk::with(&["jobs/old.md"], &["jobs/dir"], &[]);
    let before = disk.inside();
    let body = calls.map(|call| format!("(call $note {call})")).concat();
    let bench = disk.bench([("tries", Guest::new(body))]);
    for (scope, last) in [("/jobs/**", errno::PERM), ("/jobs/**/*.md", errno::ILSEQ)] {
        let report = bench.call("tries").scope(scope).send().success();
        let expected = [[errno::ILSEQ; 10].as_slice(), &[last; 2]].concat();
        assert_eq!(report.notes(), expected, "{scope}: {report:?}");
        assert_eq!(disk.inside(), before, "{scope}: nothing is made or moved");
    }
}
