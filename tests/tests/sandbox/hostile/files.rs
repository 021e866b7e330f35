//! Guests that try to access files that were not granted: nothing outside the grant is changed or
//! read, and every attempt is listed in `usage.denied`.

use super::bench::{Bench, Report};
use super::ceilings::spent;
use super::disk::Disk;
use harness::guests::{Guest, errno, repeat};
use harness::{Options, print_skipped};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

/// ```text
/// jobs/inside.txt  jobs/dir/deep.txt  jobs/empty/  and links that lead out
/// jobsfoo/neighbour.txt               outside/secret.txt  outside/folder/
/// ```
fn disk() -> Disk {
    let files = ["jobs/inside.txt", "jobs/dir/deep.txt", "jobsfoo/neighbour.txt", "outside/secret.txt"];
    let links = [
        ("relative", "../outside/secret.txt"),
        ("absolute", "~/outside/secret.txt"),
        ("folder", "../outside"),
        ("absolute_folder", "~/outside"),
        ("up", ".."),
        ("dir/up", "../.."),
        ("round", "round"),
        ("chain", "dir/../relative"),
        ("back", "../jobs/inside.txt"),
        ("within", "dir/deep.txt"),
        ("proc", "/proc/self/root"),
        ("dangling", "../outside/new.txt"),
    ];
    Disk::with(&files, &["jobs/empty", "outside/folder"], &links)
}

fn run(bench: &Bench, tool: &str) -> Report {
    bench.call(tool).scope("/jobs/**").send().success()
}

/// Runs each host call, and checks that it notes one of these error numbers, that the report has
/// one denial, for the path of the case and with this reason, and that no file has changed.
fn assert_denied<C: AsRef<str>>(errors: &[u64], reason: &str, cases: &[(C, String)]) {
    let calls: Vec<_> = cases.iter().map(|(call, _)| call.as_ref()).collect();
    disk().try_calls(&calls, &["/jobs/**"], None, |index, call, report| {
        let noted = report.notes();
        assert!(noted.len() == 1 && errors.contains(&noted[0]), "{call}: {noted:?}, not {errors:?}");
        assert_eq!(report.denied(), [(&*cases[index].1, reason, 1)], "{call}");
        assert_eq!(report.0["usage"]["denied_truncated"], false, "{call}");
    });
}

/// Checks that none of these paths can be opened, because each one leads out of the granted folder.
fn assert_no_escape(paths: &[&str]) {
    let open = |path: &&str| (format!("(call $open (i32.const 3) @\"{path}\")"), format!("/jobs/{path}"));
    assert_denied(ESCAPES, "escapes_root", &paths.iter().map(open).collect::<Vec<_>>());
}

/// The reason for which a call is denied: `link` if it makes a link, and `otherwise` if not.
fn reason_for<'a>(call: &str, otherwise: &'a str) -> &'a str {
    if call.contains("$path_link") || call.contains("$path_symlink") { "link" } else { otherwise }
}

/// Errnos of a path that leaves its folder.
const ESCAPES: &[u64] = &[errno::PERM, errno::NOTCAPABLE];

#[test]
fn a_guest_has_full_access_inside_its_scope() {
    let disk = disk();
    let body = r#"
        (call $note (call $create (i32.const 3) @"new.txt"))
        (call $note (call $write (global.get $fd) @"hello"))
        (call $note (call $fd_close (global.get $fd)))
        (call $note (call $path_mkdir (i32.const 3) @"made"))
        (call $note (call $path_rename (i32.const 3) @"new.txt" (i32.const 3) @"made/moved.txt"))
        (call $note (call $open (i32.const 3) @"made/moved.txt"))
        (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
        (call $note (i32.load (i32.const 8)))
        (call $note (i32.load (i32.const 512)))
        (call $note (call $path_unlink (i32.const 3) @"dir/deep.txt"))
        (call $note (call $path_rmdir (i32.const 3) @"empty"))
        (call $note (call $open (i32.const 3) @"dir/../inside.txt"))
        (call $note (call $open (i32.const 3) @"./dir/.././made//moved.txt"))"#;
    let bench = disk.bench([("works", Guest::new(body))]);
    let before = disk.outside();
    let report = run(&bench, "works");
    let hell = u64::from(u32::from_le_bytes(*b"hell"));
    assert_eq!(report.notes(), [0, 0, 0, 0, 0, 0, 0, 5, hell, 0, 0, 0, 0]);
    assert!(report.denied().is_empty(), "{report:?}");
    let tree = &report.in_force("filesystem_scope")["trees"];
    assert_eq!(tree.as_array().map(Vec::len), Some(1));
    assert_eq!((&tree[0]["path"], &tree[0]["access"]), (&"/jobs".into(), &"read-write".into()));
    assert_eq!(fs::read_to_string(disk.at("jobs/made/moved.txt")).expect("a file"), "hello");
    assert!(!disk.at("jobs/dir/deep.txt").exists() && !disk.at("jobs/empty").exists());
    assert_eq!(disk.outside(), before);
}

#[test]
fn a_guest_has_only_its_preopened_folders() {
    // Lists the open descriptors and the names of the preopened ones.
    let body = "(local $fd i32)
        (loop $next
          (call $note (call $fd_fdstat (local.get $fd) (i32.const 512)))
          (br_if $next (i32.lt_u (local.tee $fd (i32.add (local.get $fd) (i32.const 1))) (i32.const 40))))";
    let names = r#"(local $fd i32)
        (local.set $fd (i32.const 3))
        (call $say @"[\22")
        (loop $next
          (if (i32.eqz (call $fd_prestat (local.get $fd) (i32.const 512)))
            (then
              (drop (call $fd_prestat_name (local.get $fd) (i32.const 600) (i32.load (i32.const 516))))
              (call $say (i32.const 600) (i32.load (i32.const 516)))
              (call $say @"\22,\22")
              (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
              (br $next))))
        (call $say @"\22]")"#;
    let disk = disk();
    let guests = [("counts", Guest::new(body)), ("names", Guest::new(names).silent())];
    let bench = disk.bench(guests);
    let found = |report: Report| report.notes().iter().take_while(|error| **error == errno::SUCCESS).count();
    let others_closed = |report: &Report| report.notes().iter().skip(5).all(|error| *error == errno::BADF);

    let granted = run(&bench, "counts");
    assert!(others_closed(&granted), "{granted:?}");
    assert_eq!(found(granted), 5, "three streams, `/jobs`, and the placeholder for all other folders");
    assert_eq!(run(&bench, "names").0["result"], json!(["/jobs", "/", ""]));

    // Without a scope no folder is granted, and overlapping grants are opened as one folder.
    assert_eq!(found(bench.call("counts").send().success()), 4);
    assert_eq!(bench.call("names").send().success().0["result"], json!(["/", ""]));
    let scope = json!(["/jobs/dir/**", "/jobs/**", "/jobs/dir/**"]);
    assert_eq!(found(bench.call("counts").grant("filesystem_scope", scope).send().success()), 5);
}

#[test]
fn dot_dot_does_not_escape_the_scope() {
    assert_no_escape(&[
        "../outside/secret.txt",
        "dir/../../outside/secret.txt",
        "./../outside/secret.txt",
        "..",
        "../",
        "../jobsfoo/neighbour.txt",
        "../jobs/inside.txt",
        "/etc/passwd",
        "/",
        "//outside",
    ]);
}

#[test]
fn links_do_not_escape_the_scope() {
    assert_no_escape(&[
        "relative",
        "absolute",
        "folder/secret.txt",
        "absolute_folder/secret.txt",
        "up/outside/secret.txt",
        "dir/up/outside/secret.txt",
        "chain",
        "back",
        "relative/",
        "folder/.",
        "folder/..",
        "proc/etc/passwd",
    ]);
    // A link that stays inside `/jobs` can be opened, and one that leads to itself is an error.
    let disk = disk();
    let bench = disk.bench([
        ("within", Guest::new(r#"(call $note (call $open (i32.const 3) @"within"))"#)),
        ("round", Guest::new(r#"(call $note (i32.ne (call $open (i32.const 3) @"round") (i32.const 0)))"#)),
    ]);
    assert_eq!(run(&bench, "within").notes(), [0]);
    assert_eq!(run(&bench, "round").notes(), [1]);
}

#[test]
fn access_outside_the_grant_is_refused_and_reported() {
    let cases = [
        (r#"(call $open (i32.const 4) @"etc/passwd")"#, "/etc/passwd"),
        (r#"(call $open (i32.const 4) @"jobs/inside.txt")"#, "/jobs/inside.txt"),
        (r#"(call $open (i32.const 4) @"jobsfoo/neighbour.txt")"#, "/jobsfoo/neighbour.txt"),
        (r#"(call $open (i32.const 4) @"../../etc/passwd")"#, "/../../etc/passwd"),
        (r#"(call $open_dir (i32.const 4) @".")"#, "/."),
        (r#"(call $create (i32.const 4) @"planted")"#, "/planted"),
        (r#"(call $path_mkdir (i32.const 4) @"made")"#, "/made"),
        (r#"(call $path_rmdir (i32.const 4) @"home")"#, "/home"),
        (r#"(call $path_unlink (i32.const 4) @"etc/passwd")"#, "/etc/passwd"),
        (r#"(call $path_stat (i32.const 4) (i32.const 0) @"etc/passwd" (i32.const 512))"#, "/etc/passwd"),
        (
            r#"(call $path_readlink (i32.const 4) @"proc/self/exe" (i32.const 512) (i32.const 64) (i32.const 8))"#,
            "/proc/self/exe",
        ),
        (r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 4) @"stolen.txt")"#, "/stolen.txt"),
        (r#"(call $path_rename (i32.const 4) @"etc/passwd" (i32.const 3) @"stolen.txt")"#, "/etc/passwd"),
        (
            r#"(call $path_link (i32.const 4) (i32.const 0) @"etc/passwd" (i32.const 3) @"hard")"#,
            "/etc/passwd",
        ),
    ];
    assert_denied(&[errno::ACCES], "outside_scope", &cases.map(|(call, what)| (call, what.to_owned())));
}

#[test]
fn files_cannot_be_moved_linked_or_removed_across_grants() {
    let calls = [
        r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 3) @"../outside/moved.txt")"#,
        r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 3) @"folder/moved.txt")"#,
        r#"(call $path_rename (i32.const 3) @"../outside/secret.txt" (i32.const 3) @"mine.txt")"#,
        r#"(call $path_rename (i32.const 3) @"folder/secret.txt" (i32.const 3) @"mine.txt")"#,
        r#"(call $path_link (i32.const 3) (i32.const 0) @"../outside/secret.txt" (i32.const 3) @"mine.txt")"#,
        r#"(call $path_link (i32.const 3) (i32.const 0) @"folder/secret.txt" (i32.const 3) @"mine.txt")"#,
        r#"(call $path_link (i32.const 3) (i32.const 0) @"inside.txt" (i32.const 3) @"folder/mine.txt")"#,
        r#"(call $path_unlink (i32.const 3) @"../outside/secret.txt")"#,
        r#"(call $path_unlink (i32.const 3) @"folder/secret.txt")"#,
        r#"(call $path_rmdir (i32.const 3) @"folder/folder")"#,
        r#"(call $path_mkdir (i32.const 3) @"folder/made")"#,
        r#"(call $create (i32.const 3) @"dangling")"#,
        r#"(call $path_symlink @"../inside.txt" (i32.const 3) @"folder/planted")"#,
    ];
    disk().try_calls(&calls, &["/jobs/**"], None, |_, call, report| {
        let noted = report.notes();
        assert!(noted.len() == 1 && ESCAPES.contains(&noted[0]), "{call}: {noted:?}");
        let denied = report.denied();
        let expected = reason_for(call, "escapes_root");
        assert!(
            !denied.is_empty() && denied.iter().all(|(_, why, _)| *why == expected),
            "{call}: {denied:?}"
        );
    });
}

#[test]
fn a_guest_cannot_create_links() {
    // Not even one that leads to the guest's own files: a program of the host might follow it later.
    let planted = [
        (r#"(call $path_symlink @"/etc/passwd" (i32.const 3) @"planted")"#, "/jobs/planted"),
        (r#"(call $path_symlink @"inside.txt" (i32.const 3) @"planted")"#, "/jobs/planted"),
        (r#"(call $path_symlink @"x" (i32.const 3) @"../outside/planted")"#, "/jobs/../outside/planted"),
    ];
    assert_denied(&[errno::PERM], "link", &planted.map(|(call, what)| (call, what.to_owned())));
    let link = r#"(call $path_link (i32.const 3) (i32.const 0) @"inside.txt" (i32.const 3) @"other.txt")"#;
    disk().try_calls(&[link], &["/jobs/**"], None, |_, _, report| assert_eq!(report.notes(), [errno::PERM]));
}

#[test]
fn hard_linked_files_are_opened_only_if_the_operator_allows_it() {
    let disk = disk();
    fs::hard_link(disk.at("outside/secret.txt"), disk.at("jobs/another_name.txt")).expect("a link");
    let opens = r#"(call $note (call $open (i32.const 3) @"another_name.txt"))"#;
    let refused = run(&disk.bench([("opens", Guest::new(opens))]), "opens");
    assert_eq!(refused.notes(), [errno::PERM]);
    assert_eq!(refused.denied(), [("/jobs/another_name.txt", "hard_link", 1)]);
    let allowed = Options::new().set("ceilings.hard_links", true);
    let report = run(&Bench::start_with(disk.of(allowed), [("opens", Guest::new(opens))]), "opens");
    assert_eq!((report.notes(), report.denied()), (vec![errno::SUCCESS], vec![]));
}

/// Sets the times of a name to 1 s after the epoch; with `follow` = 1, those of the target of a
/// link.
fn sets_times(name: &str, follow: u32) -> String {
    format!(
        "(call $note (call $path_set_times (i32.const 3) (i32.const {follow}) @\"{name}\"
            (i64.const 1000000000) (i64.const 1000000000) (i32.const 5)))"
    )
}

#[test]
fn times_of_hard_linked_files_are_set_only_if_the_operator_allows_it() {
    let disk = disk();
    let folder = disk.at("jobs/dir");
    fs::hard_link(disk.at("outside/secret.txt"), folder.join("file")).expect("a link");
    symlink("secret.txt", disk.at("outside/link")).expect("a link");
    fs::hard_link(disk.at("outside/link"), folder.join("link")).expect("a second name of a link");
    symlink("file", folder.join("to_file")).expect("a link");
    symlink("deep.txt", folder.join("to_deep")).expect("a link");
    harness::guests::make_fifo(&folder.join("fifo"));
    let tries = [("dir/file", 0), ("dir/file", 1), ("dir/link", 0), ("dir/to_file", 1), ("dir/fifo", 1)];
    let tries = tries.map(|(name, follow)| sets_times(name, follow)).concat();
    // Allowed: a file with one name, a link with one name that is not followed, and an opened
    // folder by its descriptor.
    let own = format!(
        r#"{}{}
        (call $note (call $open_dir (i32.const 3) @"dir"))
        (call $note (call $fd_set_times (global.get $fd) (i64.const 1000000000) (i64.const 1000000000) (i32.const 5)))"#,
        sets_times("dir/deep.txt", 0),
        sets_times("dir/to_file", 0),
    );
    let guests = [("tries", Guest::new(&tries)), ("own", Guest::new(&own))];
    let seconds = |path: &str| fs::symlink_metadata(disk.at(path)).expect("it is there").mtime();
    let call = |bench: &Bench, tool: &str, scope: &str| bench.call(tool).scope(scope).send().success();
    let bench = disk.bench(guests);
    let before = disk.outside();
    // The first scope is enforced in a core module, the second in a component.
    for scope in ["/jobs/**", "/jobs/di[r]/**"] {
        let report = call(&bench, "tries", scope);
        let refused = [errno::PERM, errno::PERM, errno::PERM, errno::PERM, errno::NOTSUP];
        assert_eq!(report.notes(), refused, "{scope}: {report:?}");
        let denied = report.denied();
        let counts = [("/jobs/dir/file", 2), ("/jobs/dir/link", 1), ("/jobs/dir/to_file", 1)];
        assert_eq!(denied, counts.map(|(what, count)| (what, "hard_link", count)), "{scope}");
        assert_eq!(disk.outside(), before, "{scope}");
        // By descriptor, the adapter of a componentised module sets the times of files only.
        let by_descriptor = if scope == "/jobs/**" { errno::SUCCESS } else { errno::BADF };
        let notes = call(&bench, "own", scope).notes();
        assert_eq!(notes, [0, 0, 0, by_descriptor], "{scope}");
        for path in ["jobs/dir/deep.txt", "jobs/dir/to_file"] {
            assert_eq!(seconds(path), 1, "{scope} {path}");
            Command::new("touch").arg("-h").arg(disk.at(path)).status().expect("touch");
        }
        assert_eq!(disk.outside(), before, "{scope}");
    }
    drop(bench);
    // If it is allowed, it changes the file: both names are inside, so nothing outside changes.
    fs::hard_link(disk.at("jobs/inside.txt"), disk.at("jobs/dir/inside")).expect("a link");
    let guests = [("tries", Guest::new(sets_times("dir/inside", 1)))];
    let bench = Bench::start_with(disk.of(Options::new().set("ceilings.hard_links", true)), guests);
    for scope in ["/jobs/**", "/jobs/di[r]/**"] {
        let report = call(&bench, "tries", scope);
        assert_eq!((report.notes(), seconds("jobs/inside.txt")), (vec![errno::SUCCESS], 1), "{scope}");
        Command::new("touch").arg(disk.at("jobs/inside.txt")).status().expect("touch");
    }
}

/// Only a call whose arguments name a path in it is refused. Any other one runs, and the folder stays missing for it.
#[test]
fn a_granted_folder_that_does_not_exist_refuses_only_calls_that_need_it() {
    // Descriptor 3 is `/jobs/dir`, and 4 is `/jobs/gone`.
    let body = r#"
        (call $note (call $open (i32.const 3) @"deep.txt"))
        (call $note (call $open (i32.const 4) @"new.txt"))
        (call $note (call $create (i32.const 4) @"new.txt"))
        (call $note (call $path_mkdir (i32.const 4) @"new.txt"))
        (call $note (i32.ne (i32.const 0) (call $open_dir (i32.const 4) @"../dir")))"#;
    let disk = disk();
    let fails = r#"(drop (call $open (i32.const 4) @"new.txt")) (call $exit (i32.const 1))"#;
    let bench = disk.bench([("reads", Guest::new(body)), ("fails", Guest::new(fails))]);
    for gone in ["/jobs/gone/**", "/jobs/gone/*.txt"] {
        let call_of = |tool: &str| bench.call(tool).grant("filesystem_scope", json!(["/jobs/dir/**", gone]));
        let call = || call_of("reads");
        let failed = call_of("fails")
            .send()
            .failure("the granted folder `/jobs/gone` does not exist on the host: create it");
        assert_eq!(failed.denied(), [], "{gone}");
        for arguments in [json!({}), json!({ "a": ["/jobs/gone2/x", "x/jobs/gone", "/jobs/dir/x"] })] {
            let report = call().arguments(arguments).send().success();
            assert_eq!(report.notes(), [0, errno::NOENT, errno::NOENT, errno::NOENT, 1], "{gone}");
            assert_eq!(report.in_force("filesystem_scope")["missing_roots"], json!(["/jobs/gone"]), "{gone}");
        }
        for arguments in [
            json!({ "a": "/jobs/gone" }),
            json!({ "code": ["open('/jobs/gone/x')"] }),
            json!({ "/jobs/gone/x": 1 }),
        ] {
            let answer = call().arguments(arguments.clone()).send();
            let words = harness::expect_blocked(&answer.response, "scope_unenforceable");
            assert!(words.contains("`/jobs/gone` does not exist here"), "{arguments}: {words}");
        }
    }
    assert!(!disk.at("jobs/gone").exists());
    let grant = json!(["/jobs/dir/**", "/jobs/empty/**"]);
    let whole =
        bench.call("fails").grant("filesystem_scope", grant).send().failure("the tool exited with code 1");
    assert_eq!(whole.in_force("filesystem_scope").get("missing_roots"), None);
    // What exists and cannot be opened is refused as before.
    let linked = bench.call("reads").grant("filesystem_scope", json!(["/jobs/dir/**", "/jobs/dangling/**"]));
    harness::expect_blocked(&linked.send().response, "scope_unenforceable");
}

#[test]
fn a_folder_that_contains_a_mount_is_not_granted() {
    let disk = disk();
    let place = disk.at("jobs/empty");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&place).status();
    if !mounted.is_ok_and(|status| status.success()) {
        print_skipped("this user may not mount");
        return;
    }
    let bench = disk.bench([("opens", Guest::new("(drop (call $open (i32.const 3) @\"inside.txt\"))"))]);
    let refused = bench.call("opens").scope("/jobs/**").send();
    let allowed = bench.call("opens").scope("/jobs/dir/**").send();
    assert!(Command::new("umount").arg(&place).status().expect("umount").success());
    let error = harness::error(&refused.response, -32000);
    assert_eq!(error["data"]["blocked_by"], "scope_unenforceable", "{error}");
    assert!(error["message"].as_str().expect("a message").contains("holds the mount"), "{error}");
    allowed.success();
    bench.call("opens").scope("/jobs/**").send().success();
}

#[test]
fn a_guest_has_a_budget_of_written_bytes_and_created_files() {
    let makes = |count: u64| {
        let make = "(i32.store8 (i32.const 600) (i32.const 100))
            (i32.store8 (i32.const 601) (i32.add (i32.const 65) (local.get $left)))
            (if (call $path_mkdir (i32.const 3) (i32.const 600) (i32.const 2)) (then (unreachable)))";
        repeat("", count, make)
    };
    let creates = r#"(call $note (call $create (i32.const 3) @"a")) (call $note (call $create (i32.const 3) @"a"))
        (drop (call $create (i32.const 3) @"b"))"#;
    // Writes 64 KiB at a time to one file. Bytes that overwrite those of an earlier run count, too.
    let writes = |times: u64, fd: &str| {
        let create = format!(
            r#"(if (call $create (i32.const 3) @"written") (then (unreachable))) {fd}
            (i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 65536))"#
        );
        let write = "(if (call $fd_write (global.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))
            (then (unreachable)))";
        repeat(&create, times, write)
    };
    let grows = |bytes: u64| {
        format!(
            r#"(if (call $create (i32.const 3) @"grown") (then (unreachable)))
            (call $note (call $fd_set_size (global.get $fd) (i64.const {bytes})))"#
        )
    };
    // Writes single bytes, 4 KiB apart: the file takes a whole block for each.
    let scatters = |times: u64| {
        let create = r#"(if (call $create (i32.const 3) @"scattered") (then (unreachable)))
            (i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 1))"#;
        let write = format!(
            "(if (call $fd_pwrite (global.get $fd) (i32.const 0) (i32.const 1)
                  (i64.mul (i64.const 4096) (i64.sub (i64.const {times}) (i64.extend_i32_u (local.get $left)))) (i32.const 8))
              (then (unreachable)))"
        );
        repeat(create, times, &write)
    };
    // A file counts as a file even under the descriptor number of standard error.
    let renumbered = "(if (call $fd_renumber (global.get $fd) (i32.const 2)) (then (unreachable)))
        (global.set $fd (i32.const 2))";
    let disk = disk();
    let guests = [
        ("makes_five", Guest::new(makes(5))),
        ("makes_six", Guest::new(makes(6))),
        ("creates", Guest::new(creates)),
        ("writes_one_mb", Guest::new(writes(16, ""))),
        ("writes_more", Guest::new(writes(17, ""))),
        ("writes_as_another", Guest::new(writes(17, renumbered))),
        ("scatters", Guest::new(scatters(200))),
        ("scatters_wider", Guest::new(scatters(300))),
        ("grows_to_one_mb", Guest::new(grows(1 << 20))),
        ("grows_to_a_tib", Guest::new(grows(1 << 40))),
    ];
    let options = Options::new().set("ceilings.max_created", 5).set("ceilings.max_written_mb", 1);
    let bench = Bench::start_with(disk.of(options), guests);
    let call = |tool: &str| bench.call(tool).scope("/jobs/**").send();
    let report = call("makes_five").success();
    assert_eq!(report.in_force("max_created"), &spent(5, 5));
    for name in ["dF", "dE", "dD", "dC", "dB"] {
        std::fs::remove_dir(disk.at("jobs").join(name)).expect("it was made");
    }
    let sentence = call("makes_six").limit("created").sentence().to_owned();
    assert!(sentence.contains("created files and folders") && sentence.contains("executor"), "{sentence}");
    let made = ["dG", "dF", "dE", "dD", "dC", "dB"].map(|name| disk.at("jobs").join(name).exists());
    assert_eq!(made, [true, true, true, true, true, false]);
    // Opening an existing file does not count as a creation.
    assert_eq!(call("creates").success().in_force("max_created")["used"], 2);
    assert_eq!(call("writes_one_mb").success().in_force("max_written_mb"), &spent(1, 1));
    for tool in ["writes_more", "writes_as_another"] {
        call(tool).limit("written_bytes");
        assert_eq!(
            std::fs::metadata(disk.at("jobs").join("written")).expect("a file").len(),
            1 << 20,
            "{tool}"
        );
    }
    assert_eq!(call("scatters").success().in_force("max_written_mb")["used"], 1);
    fs::remove_file(disk.at("jobs/scattered")).expect("it was made");
    call("scatters_wider").limit("written_bytes");
    call("grows_to_one_mb").success();
    call("grows_to_a_tib").limit("written_bytes");
    assert_eq!(std::fs::metadata(disk.at("jobs").join("grown")).expect("a file").len(), 1 << 20);
}

#[test]
fn a_folder_descriptor_does_not_escape_the_scope() {
    let body = r#"
        (call $note (call $open_dir (i32.const 3) @"dir"))
        (call $note (i32.ne (call $open (global.get $fd) @"../../outside/secret.txt") (i32.const 0)))
        (call $note (i32.ne (call $open (global.get $fd) @"up/outside/secret.txt") (i32.const 0)))
        (call $note (i32.ne (call $open (global.get $fd) @"../inside.txt") (i32.const 0)))
        (call $note (i32.ne (call $path_unlink (global.get $fd) @"../../outside/secret.txt") (i32.const 0)))
        (call $note (call $open (global.get $fd) @"deep.txt"))"#;
    // Gives one preopened folder the number of another: neither number leads outside of the scope.
    let renumbers = r#"
        (call $note (call $fd_renumber (i32.const 3) (i32.const 4)))
        (call $note (i32.ne (call $open (i32.const 4) @"../outside/secret.txt") (i32.const 0)))
        (call $note (i32.ne (call $open (i32.const 3) @"../outside/secret.txt") (i32.const 0)))"#;
    let other_way = r#"
        (call $note (call $fd_renumber (i32.const 4) (i32.const 3)))
        (call $note (i32.ne (call $open (i32.const 3) @"etc/passwd") (i32.const 0)))
        (call $note (i32.ne (call $open (i32.const 3) @"../../../../../etc/passwd") (i32.const 0)))
        (call $note (i32.ne (call $create (i32.const 3) @"planted") (i32.const 0)))
        (call $note (i32.ne (call $path_mkdir (i32.const 3) @"planted") (i32.const 0)))"#;
    let disk = disk();
    let bench = disk.bench([
        ("opens", Guest::new(body)),
        ("renumbers", Guest::new(renumbers)),
        ("other_way", Guest::new(other_way)),
    ]);
    let before = (disk.outside(), disk.inside());
    let report = run(&bench, "opens");
    assert_eq!(report.notes(), [0, 1, 1, 1, 1, 0]);
    let mut denied = report.denied();
    denied.sort_unstable();
    let expected = [
        ("…/../../outside/secret.txt", "escapes_root", 2),
        ("…/../inside.txt", "escapes_root", 1),
        ("…/up/outside/secret.txt", "escapes_root", 1),
    ];
    assert_eq!(denied, expected);
    assert_eq!(run(&bench, "renumbers").notes(), [0, 1, 1]);
    assert_eq!(run(&bench, "other_way").notes(), [0, 1, 1, 1, 1]);
    assert_eq!((disk.outside(), disk.inside()), before);
}

#[test]
fn a_scope_below_a_mount_grants_that_folder_only() {
    let body = r#"
        (call $note (call $open (i32.const 3) @"deep.txt"))
        (call $note (i32.ne (i32.const 0) (call $open (i32.const 3) @"../inside.txt")))
        (call $note (i32.ne (i32.const 0) (call $open (i32.const 3) @"dir/deep.txt")))
        (call $note (i32.ne (i32.const 0) (call $open (i32.const 3) @"up/inside.txt")))"#;
    let disk = disk();
    let bench = disk.bench([("reads", Guest::new(body))]);
    assert_eq!(bench.call("reads").scope("/jobs/dir/**").send().success().notes(), [0, 1, 1, 1]);
    // A link in the place of the folder is refused before anything runs, wherever it leads.
    for link in ["folder", "absolute_folder", "up", "within", "round", "folder/folder", "proc", "inside.txt"]
    {
        let answer = bench.call("reads").scope(&format!("/jobs/{link}/**")).send();
        let words = harness::expect_blocked(&answer.response, "scope_unenforceable");
        assert!(words.contains(&format!("`/jobs/{link}`")), "{words}");
        assert!(!words.contains(disk.at("jobs").parent().and_then(Path::to_str).expect("UTF-8")), "{words}");
    }
    // A folder beside the scope is not in it, even if the rest of its name is a folder inside.
    std::fs::create_dir(disk.at("jobs/foo")).expect("a folder");
    for beside in ["/jobsfoo/**", "/jobs.foo/**", "/outside/**", "/job/**"] {
        let report = bench.call("reads").scope(beside).send().success();
        assert_eq!(report.in_force("filesystem_scope")["trees"], json!([]), "{beside}");
        assert_eq!(report.in_force("filesystem_scope")["set_by"], "executor", "{beside}");
    }
}

/// Every way to change a file or a folder.
const MUTATIONS: [&str; 13] = [
    r#"(call $create (i32.const 3) @"new.txt")"#,
    r#"(call $open_rw (i32.const 3) @"inside.txt")"#,
    r#"(call $open_with (i32.const 3) @"inside.txt" (i32.const 8) (i64.const 0x42))"#,
    r#"(call $open_with (i32.const 3) @"inside.txt" (i32.const 8) (i64.const 0x2))"#,
    r#"(call $path_mkdir (i32.const 3) @"made")"#,
    r#"(call $path_rmdir (i32.const 3) @"empty")"#,
    r#"(call $path_unlink (i32.const 3) @"inside.txt")"#,
    r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 3) @"moved.txt")"#,
    r#"(call $path_link (i32.const 3) (i32.const 0) @"inside.txt" (i32.const 3) @"hard.txt")"#,
    r#"(call $path_symlink @"inside.txt" (i32.const 3) @"soft.txt")"#,
    r#"(call $path_set_times (i32.const 3) (i32.const 0) @"inside.txt" (i64.const 1) (i64.const 1) (i32.const 5))"#,
    r#"(call $path_set_times (i32.const 3) (i32.const 0) @"dir" (i64.const 1) (i64.const 1) (i32.const 5))"#,
    r#"(call $open_with (i32.const 3) @"dir" (i32.const 2) (i64.const 0x40))"#,
];

#[test]
fn a_read_only_grant_refuses_every_write() {
    let disk = disk();
    disk.try_calls(&MUTATIONS, &["/jobs/**"], Some("read_only"), |_, call, report| {
        assert_ne!(report.notes(), [0], "{call}");
        let denied = report.denied();
        let expected = reason_for(call, "read_only");
        assert!(!denied.is_empty(), "{call}: {report:?}");
        assert!(denied.iter().all(|(_, reason, _)| *reason == expected), "{call}: {denied:?}");
        let tree = &report.in_force("filesystem_scope")["trees"][0];
        assert_eq!((&tree["access"], &tree["access_set_by"]), (&"read-only".into(), &"condition".into()));
    });
    // An open descriptor does not allow changes, either.
    let by_descriptor = r#"
        (call $note (call $open (i32.const 3) @"inside.txt"))
        (call $note (i32.ne (i32.const 0) (call $write (global.get $fd) @"x")))
        (call $note (i32.ne (i32.const 0) (call $fd_set_size (global.get $fd) (i64.const 0))))
        (call $note (i32.ne (i32.const 0)
          (call $fd_set_times (global.get $fd) (i64.const 1) (i64.const 1) (i32.const 5))))
        (call $note (i32.ne (i32.const 0) (call $fd_allocate (global.get $fd) (i64.const 0) (i64.const 99))))
        (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
        (call $note (i32.load (i32.const 8)))"#;
    let bench = disk.bench([("by_descriptor", Guest::new(by_descriptor))]);
    let before = (disk.outside(), disk.inside());
    let report = bench.call("by_descriptor").scope("/jobs/**").condition("read_only").send().success();
    assert_eq!(report.notes(), [0, 1, 1, 1, 1, 0, 15]);
    assert_eq!((disk.outside(), disk.inside()), before);
}

#[test]
fn denials_are_counted_and_capped() {
    let count = |paths: u32, times: u32| {
        // Opens the paths `x00`, `x01`, …, which are not granted.
        format!(
            r#"(local $path i32) (local $time i32)
            (i32.store8 (i32.const 600) (i32.const 120))
            (loop $again
              (local.set $path (i32.const 0))
              (loop $next
                (i32.store8 (i32.const 601) (i32.add (i32.const 48) (i32.div_u (local.get $path) (i32.const 10))))
                (i32.store8 (i32.const 602) (i32.add (i32.const 48) (i32.rem_u (local.get $path) (i32.const 10))))
                (drop (call $open (i32.const 3) (i32.const 600) (i32.const 3)))
                (br_if $next (i32.lt_u (local.tee $path (i32.add (local.get $path) (i32.const 1))) (i32.const {paths}))))
              (br_if $again (i32.lt_u (local.tee $time (i32.add (local.get $time) (i32.const 1))) (i32.const {times}))))"#
        )
    };
    let odd = r#"(drop (call $open (i32.const 3) @"\1b[2J\0a\ff"))"#;
    let bench = Bench::start([
        ("fits", Guest::new(count(32, 3))),
        ("one_more", Guest::new(count(33, 3))),
        ("odd", Guest::new(odd)),
    ]);
    for (tool, more) in [("fits", false), ("one_more", true)] {
        let report = bench.call(tool).send().success();
        assert_eq!(report.0["usage"]["denied_truncated"], more, "{tool}");
        let denied = report.denied();
        assert_eq!(denied.len(), 32, "{tool}");
        for (index, denial) in denied.iter().enumerate() {
            assert_eq!(*denial, (format!("/x{index:02}").as_str(), "outside_scope", 3));
        }
    }
    let report = bench.call("odd").send().success();
    assert_eq!(report.denied(), [(r"/\u{1b}[2J\n�", "outside_scope", 1)]);
}

#[test]
fn a_long_path_costs_the_host_as_little_as_a_short_one() {
    // Opens a path of 60 MB, relative to a folder that was not granted or to one that was.
    let asks = |root: u32| {
        format!(
            "(memory.fill (i32.const 65536) (i32.const 1) (i32.const 60000000))
            (call $note (i32.ne (i32.const 0)
              (call $open (i32.const {root}) (i32.const 65536) (i32.const 60000000))))"
        )
    };
    let disk = disk();
    let bench = disk
        .bench([("outside", Guest::new(asks(4)).memory(1000)), ("inside", Guest::new(asks(3)).memory(1000))]);
    for tool in ["outside", "inside"] {
        let grown = bench.peak_since(|| {
            let call =
                bench.call(tool).scope("/jobs/**").grant("max_memory_mb", 64).grant("timeout_seconds", 2);
            let answer = call.send();
            assert!(answer.took < std::time::Duration::from_secs(4), "{tool}: {:?}", answer.took);
            // The guest's own 60 MB are in the server's memory too.
            if answer.response.get("result").is_some() {
                assert_eq!(answer.success().notes(), [1]);
            } else {
                answer.failure("trapped");
            }
        });
        assert!(grown < 120, "{tool}: the server grew by {grown} MB");
    }
}

#[test]
fn no_listing_shows_the_stash_of_a_commit() {
    let bench = Bench::start_typed(Options::new());
    let workspace = bench.executor.workspace();
    for folder in [".a2g-0123456789abcdef", ".a2g-notes"] {
        std::fs::create_dir(workspace.join(folder)).unwrap();
    }
    for conditions in [&[][..], &["effects:atomic"], &["effects:staged"]] {
        let call = bench.call("list_directory").scope("/workspace/**");
        let call = conditions.iter().fold(call, |call, condition| call.condition(condition));
        let report = call.arguments(json!({ "path": "/workspace", "include_hidden": true })).send().success();
        let entries = report.0["result"]["entries"].as_array().unwrap();
        let names = entries.iter().map(|entry| entry["relative"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(names, [".a2g-notes"], "{conditions:?}");
    }
}
