//! Guests under a scope that is no whole tree: they find what a pattern matches and the folders on the
//! way to it, and nothing else, whatever path they take.

use super::bench::{Bench, Report};
use super::disk::Disk;
use harness::Tool;
use harness::guests::{Guest, errno};
use serde_json::{Value, json};
use std::fs;

/// ```text
/// jobs/a.md  jobs/b.txt  jobs/docs/c.md  jobs/docs/d.txt  jobs/priv/p.md  jobs/open/sub/f.txt
/// and links: jobs/link.md -> b.txt  jobs/docs/out -> ../priv  jobs/in.md -> docs/c.md
/// ```
fn disk() -> Disk {
    let files = [
        "jobs/a.md",
        "jobs/b.txt",
        "jobs/docs/c.md",
        "jobs/docs/d.txt",
        "jobs/priv/p.md",
        "jobs/open/sub/f.txt",
    ];
    Disk::with(&files, &[], &[("link.md", "b.txt"), ("docs/out", "../priv"), ("in.md", "docs/c.md")])
}

const PATTERNS: [&str; 2] = ["/jobs/**/*.md", "/jobs/open/**"];
const OUTSIDE: &str = "outside_scope";

fn run(bench: &Bench, tool: &str, patterns: &[&str]) -> Report {
    bench.call(tool).grant("filesystem_scope", json!(patterns)).send().success()
}

#[test]
fn files_that_match_a_pattern_are_accessible() {
    let disk = disk();
    let body = r#"
        (call $note (call $open (i32.const 3) @"a.md"))
        (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
        (call $note (i32.load (i32.const 8)))
        (call $note (call $open (i32.const 3) @"docs/../docs//./c.md"))
        (call $note (call $open (i32.const 3) @"in.md"))
        (call $note (call $open_dir (i32.const 3) @"docs"))
        (call $note (call $open (global.get $fd) @"c.md"))
        (call $note (call $create (i32.const 3) @"docs/new.md"))
        (call $note (call $write (global.get $fd) @"hello"))
        (call $note (call $path_rename (i32.const 3) @"docs/new.md" (i32.const 3) @"moved.md"))
        (call $note (call $path_unlink (i32.const 3) @"docs/c.md"))
        (call $note (call $path_mkdir (i32.const 3) @"open/made"))
        (call $note (call $path_rename (i32.const 3) @"open/sub" (i32.const 3) @"open/made/sub"))
        (call $note (call $open (i32.const 3) @"open/made/sub/f.txt"))
        (call $note (call $path_stat (i32.const 3) (i32.const 0) @"priv" (i32.const 512)))"#;
    let bench = disk.bench([("works", Guest::new(body))]);
    let report = run(&bench, "works", &PATTERNS);
    assert_eq!(report.notes(), [0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
    assert_eq!(fs::read_to_string(disk.at("jobs/moved.md")).expect("a file"), "hello");
    assert!(!disk.at("jobs/docs/c.md").exists() && disk.at("jobs/open/made/sub/f.txt").exists());
    let scope = report.in_force("filesystem_scope");
    assert_eq!(scope["granted"], json!(["/jobs/**/*.md", "/jobs/open/**"]), "{report:?}");
}

#[test]
fn files_that_match_no_pattern_are_refused_by_every_path() {
    let cases: [(&str, &str, &str); 21] = [
        // The link is not granted, wherever it leads.
        (r#"(call $open_dir (i32.const 3) @"docs/out")"#, "/jobs/docs/out", OUTSIDE),
        (r#"(call $open (i32.const 3) @"b.txt")"#, "/jobs/b.txt", OUTSIDE),
        (r#"(call $open (i32.const 3) @"link.md")"#, "/jobs/b.txt", OUTSIDE),
        (r#"(call $open (i32.const 3) @"docs/../b.txt")"#, "/jobs/b.txt", OUTSIDE),
        (r#"(call $open (i32.const 3) @"docs/d.txt")"#, "/jobs/docs/d.txt", OUTSIDE),
        (r#"(call $open (i32.const 3) @"open/../b.txt")"#, "/jobs/b.txt", OUTSIDE),
        (r#"(call $create (i32.const 3) @"new.txt")"#, "/jobs/new.txt", OUTSIDE),
        (r#"(call $create (i32.const 3) @"link.md")"#, "/jobs/b.txt", OUTSIDE),
        (r#"(call $path_mkdir (i32.const 3) @"made")"#, "/jobs/made", OUTSIDE),
        (r#"(call $path_unlink (i32.const 3) @"b.txt")"#, "/jobs/b.txt", OUTSIDE),
        (r#"(call $path_rmdir (i32.const 3) @"docs")"#, "/jobs/docs", OUTSIDE),
        (r#"(call $path_rename (i32.const 3) @"a.md" (i32.const 3) @"a.txt")"#, "/jobs/a.txt", OUTSIDE),
        (r#"(call $path_rename (i32.const 3) @"b.txt" (i32.const 3) @"b.md")"#, "/jobs/b.txt", OUTSIDE),
        // A folder would take along what is not granted.
        (r#"(call $path_rename (i32.const 3) @"docs" (i32.const 3) @"open/docs")"#, "/jobs/docs", OUTSIDE),
        (r#"(call $path_rename (i32.const 3) @"priv" (i32.const 3) @"open/p.md")"#, "/jobs/priv", OUTSIDE),
        (r#"(call $path_stat (i32.const 3) (i32.const 0) @"b.txt" (i32.const 512))"#, "/jobs/b.txt", OUTSIDE),
        (
            r#"(call $path_stat (i32.const 3) (i32.const 1) @"link.md" (i32.const 512))"#,
            "/jobs/b.txt",
            OUTSIDE,
        ),
        (
            r#"(call $path_set_times (i32.const 3) (i32.const 0) @"docs" (i64.const 0) (i64.const 0) (i32.const 5))"#,
            "/jobs/docs",
            OUTSIDE,
        ),
        (
            r#"(call $path_readlink (i32.const 3) @"docs/out" (i32.const 512) (i32.const 64) (i32.const 8))"#,
            "/jobs/docs/out",
            OUTSIDE,
        ),
        (r#"(call $path_link (i32.const 3) (i32.const 0) @"a.md" (i32.const 3) @"x.md")"#, "", "link"),
        (r#"(call $open (i32.const 3) @"../jobs/a.md")"#, "/jobs/../jobs/a.md", "escapes_root"),
    ];
    disk().try_calls(&cases.map(|(call, ..)| call), &PATTERNS, None, |index, call, report| {
        let (_, what, reason) = cases[index];
        let errors = [errno::ACCES, errno::PERM, errno::NOTCAPABLE];
        assert!(report.notes().iter().all(|error| errors.contains(error)), "{call}: {report:?}");
        let denied = report.denied();
        let seen = denied.iter().any(|(path, why, _)| (what.is_empty() || *path == what) && *why == reason);
        assert!(seen, "{call}: {denied:?}, not {what} {reason}");
    });
}

/// Lists the folder that is open as `$fd`, name by name.
const LIST: &str = r#"(local $at i32) (local $end i32)
    (drop (call $fd_readdir (global.get $fd) (i32.const 32768) (i32.const 16384) (i64.const 0) (i32.const 8)))
    (local.set $at (i32.const 32768))
    (local.set $end (i32.add (i32.const 32768) (i32.load (i32.const 8))))
    (call $say @"[\22")
    (block $done (loop $next
      (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
      (call $say (i32.add (local.get $at) (i32.const 24)) (i32.load (i32.add (local.get $at) (i32.const 16))))
      (call $say @"\22,\22")
      (local.set $at (i32.add (local.get $at) (i32.add (i32.const 24) (i32.load (i32.add (local.get $at) (i32.const 16))))))
      (br $next)))
    (call $say @"\22]")"#;

#[test]
fn a_listing_shows_matches_and_their_parent_folders() {
    let disk = disk();
    let list = |folder: &str| {
        let open = format!("(drop (call $open_dir (i32.const 3) @\"{folder}\"))");
        let (locals, rest) = LIST.split_at(LIST.find("\n").expect("two lines"));
        Guest::new(format!("{locals}{open}{rest}")).memory("4").silent()
    };
    let guests = [("top", list(".")), ("docs", list("docs")), ("open", list("open/sub"))];
    let bench = disk.bench(guests);
    let names = |tool: &str, patterns: &[&str]| {
        let report = run(&bench, tool, patterns);
        let names = report.0["result"].as_array().expect("a list").iter();
        let names = names.map(|name| name.as_str().expect("a name").to_owned());
        let mut names: Vec<_> = names.filter(|name| !matches!(&**name, "" | "." | "..")).collect();
        names.sort();
        names
    };
    assert_eq!(names("top", &PATTERNS), ["a.md", "docs", "in.md", "link.md", "open", "priv"]);
    assert_eq!(names("docs", &PATTERNS), ["c.md"], "a link is shown where it matches itself");
    assert_eq!(names("open", &PATTERNS), ["f.txt"]);
    assert_eq!(names("top", &["/jobs/{a.md,docs/*}"]), ["a.md", "docs"]);
    assert_eq!(names("docs", &["/jobs/{a.md,docs/*}"]), ["c.md", "d.txt", "out"]);
    assert_eq!(names("top", &["/jobs/a.md"]), ["a.md"], "an exact path is that one file");
    assert_eq!(names("top", &["/jobs/[!a]*.md"]), ["in.md", "link.md"]);
}

#[test]
fn blocked_paths_of_a_standing_policy_are_removed_from_a_tree() {
    let disk = disk();
    // The last one ends where it may, and goes through what is blocked.
    let opens = ["a.md", "priv/p.md", "priv", "docs/c.md", "docs/out/p.md", "docs/d.txt", "priv/../a.md"];
    let opens = opens.map(|path| format!("(call $note (call $open (i32.const 3) @\"{path}\"))")).concat();
    let moves = r#"(call $note (call $path_rename (i32.const 3) @"priv" (i32.const 3) @"public"))
        (call $note (call $path_rename (i32.const 3) @"docs" (i32.const 3) @"public"))"#;
    let bench = disk.bench([("tries", Guest::new(opens + moves))]);
    let before = disk.inside();
    // A standing policy takes something away from whatever is granted.
    let rule = json!({ "allowed": true, "constraints": { "blocked_paths": ["/jobs/priv/**", "d.txt"] } });
    bench.set_policy(&json!({ "tools": { "tries": rule } }));
    let report = run(&bench, "tries", &["/jobs/**"]);
    assert_eq!(report.notes(), [0, 2, 2, 0, 2, 2, 2, 2, 2], "{report:?}");
    assert_eq!(disk.inside(), before);
    let blocked = &report.in_force("filesystem_scope")["blocked"];
    assert_eq!(blocked[0], json!({ "pattern": "/**/d.txt", "set_by": "standing_policy" }), "{report:?}");
    assert_eq!(blocked[1]["pattern"], "/jobs/priv");
}

#[test]
fn an_overlong_path_is_refused_before_it_is_parsed() {
    let disk = disk();
    // 16 MiB of `a/a/a/…`.
    let body = "(memory.fill (i32.const 65536) (i32.const 47) (i32.const 16777216))
        (local.set $at (i32.const 65536))
        (loop $next
          (i32.store8 (local.get $at) (i32.const 97))
          (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 2))) (i32.const 16842752))))
        (call $note (call $path_stat (i32.const 3) (i32.const 0) (i32.const 65536) (i32.const 16777216) (i32.const 512)))";
    let guest = Guest::new(format!("(local $at i32) {body}")).memory("258");
    let bench = disk.bench([("long", guest)]);
    let report = run(&bench, "long", &PATTERNS);
    assert_eq!(report.notes(), [37], "{report:?}");
}

#[test]
fn a_read_only_condition_applies_under_a_pattern() {
    let disk = disk();
    let body = r#"
        (call $note (call $open (i32.const 3) @"a.md"))
        (call $note (call $create (i32.const 3) @"new.md"))
        (call $note (call $path_unlink (i32.const 3) @"a.md"))"#;
    let bench = disk.bench([("works", Guest::new(body))]);
    let before = disk.inside();
    let call = bench.call("works").grant("filesystem_scope", json!(PATTERNS)).condition("read_only");
    let report = call.send().success();
    assert_eq!(report.notes()[0], 0);
    assert!(report.notes()[1..].iter().all(|error| *error != 0), "{report:?}");
    assert_eq!(disk.inside(), before);
}

#[test]
fn patterns_apply_to_components_and_refuse_core_modules() {
    let disk = disk();
    // An adapter needs the module's memory to work in.
    let odd = r#"(module
        (import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))
        (func (export "_start")))"#;
    let catalogue = harness::Catalogue::with_tools().add(Tool::command("odd", odd));
    let bench = Bench::start_catalogue(disk.options(), catalogue);
    let call = |tool: &str, arguments: Value| {
        let call = bench.call(tool).arguments(arguments).grant("filesystem_scope", json!(PATTERNS));
        call.send().response
    };
    let read = call("read_file", json!({ "path": "/jobs/docs/c.md" }));
    assert_eq!(harness::result(&read)["status"], "SUCCESS", "{read}");
    let refused = call("read_file", json!({ "path": "/jobs/docs/d.txt" }));
    assert_eq!(refused["error"]["code"], -32001, "{refused}");
    let listed = call("list_directory", json!({ "path": "/jobs/docs" }));
    assert!(listed.to_string().contains("c.md") && !listed.to_string().contains("d.txt"), "{listed}");
    let words = call("odd", json!({}));
    let words = harness::expect_blocked(&words, "scope_unenforceable").to_owned();
    assert!(words.contains("whole trees") && words.contains("component"), "{words}");
    bench.call("odd").scope("/workspace/**").send().success();
}
