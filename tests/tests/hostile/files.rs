//! Guests that want files that were not granted: nothing outside changes, nothing outside is read,
//! and every try is in `usage.denied`.

use super::bench::{Bench, Report};
use super::guest::{Guest, errno};
use crate::harness::Options;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder that is granted as `/jobs`, beside folders that are not.
struct Disk {
    folder: TempDir,
}

impl Disk {
    /// ```text
    /// jobs/inside.txt  jobs/dir/deep.txt  jobs/empty/  and links that lead out
    /// jobsfoo/neighbour.txt               outside/secret.txt  outside/folder/
    /// ```
    fn new() -> Self {
        let disk = Self { folder: tempfile::tempdir().expect("a temp folder") };
        for folder in ["jobs/dir", "jobs/empty", "jobsfoo", "outside/folder"] {
            fs::create_dir_all(disk.at(folder)).expect("a folder");
        }
        let files = ["jobs/inside.txt", "jobs/dir/deep.txt", "jobsfoo/neighbour.txt", "outside/secret.txt"];
        for file in files {
            fs::write(disk.at(file), file).expect("a file");
        }
        let links = [
            ("relative", PathBuf::from("../outside/secret.txt")),
            ("absolute", disk.at("outside/secret.txt")),
            ("folder", PathBuf::from("../outside")),
            ("absolute_folder", disk.at("outside")),
            ("up", PathBuf::from("..")),
            ("dir/up", PathBuf::from("../..")),
            ("round", PathBuf::from("round")),
            ("chain", PathBuf::from("dir/../relative")),
            ("back", PathBuf::from("../jobs/inside.txt")),
            ("within", PathBuf::from("dir/deep.txt")),
            ("proc", PathBuf::from("/proc/self/root")),
            ("dangling", PathBuf::from("../outside/new.txt")),
        ];
        for (name, target) in links {
            symlink(target, disk.at("jobs").join(name)).expect("a link");
        }
        disk
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// An executor that can grant `/jobs`, and these guests.
    fn bench<'a>(&self, guests: impl IntoIterator<Item = (&'a str, Guest)>) -> Bench {
        self.bench_with(Options::new(), guests)
    }

    fn bench_with<'a>(&self, options: Options, guests: impl IntoIterator<Item = (&'a str, Guest)>) -> Bench {
        Bench::start_with(options.mount("/jobs", &self.at("jobs")).scope(&["/jobs/**"]), guests)
    }

    /// A digest of all that is not granted: names, kinds, modes, times, sizes and content.
    fn outside(&self) -> String {
        let mut seen = Sha256::new();
        for folder in ["outside", "jobsfoo"] {
            digest(&self.at(folder), &mut seen);
        }
        // Nothing new stands beside them.
        let mut names: Vec<_> = entries(self.folder.path());
        names.sort();
        seen.update(format!("{names:?}"));
        format!("{:x?}", seen.finalize())
    }

    /// A digest of the granted folder.
    fn inside(&self) -> String {
        let mut seen = Sha256::new();
        digest(&self.at("jobs"), &mut seen);
        format!("{:x?}", seen.finalize())
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

fn digest(path: &Path, seen: &mut Sha256) {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.nlink());
    seen.update(format!("{path:?} {:?} {:o} {times:?}", metadata.file_type(), metadata.permissions().mode()));
    if metadata.is_file() {
        seen.update(fs::read(path).expect("a file"));
    } else if metadata.is_dir() {
        let mut inside = entries(path);
        inside.sort();
        inside.iter().for_each(|path| digest(path, seen));
    }
}

fn run(bench: &Bench, tool: &str) -> Report {
    bench.call(tool).scope("/jobs/**").send().success()
}

/// Runs each body as a guest of its own, and checks the error number that it notes and that the
/// one thing that was denied is this, for this reason; and that nothing outside has changed.
fn assert_denied(cases: &[(&str, &[u64], &str, &str)]) {
    let disk = Disk::new();
    let names: Vec<_> = (0..cases.len()).map(|index| format!("case_{index}")).collect();
    let guests = cases.iter().map(|(call, ..)| Guest::new(format!("(call $note {call})")));
    let bench = disk.bench(names.iter().map(String::as_str).zip(guests));
    let before = disk.outside();
    for (name, (call, errors, what, reason)) in names.iter().zip(cases) {
        let report = run(&bench, name);
        let noted = report.notes();
        assert!(noted.len() == 1 && errors.contains(&noted[0]), "{call}: {noted:?}, not {errors:?}");
        assert_eq!(report.denied(), [(*what, *reason, 1)], "{call}");
        assert_eq!(report.0["usage"]["denied_truncated"], false, "{call}");
        assert_eq!(disk.outside(), before, "{call} changed what was not granted");
    }
}

/// Why a call is denied: making a link is, wherever it leads; other calls are for `otherwise`.
fn reason_for<'a>(call: &str, otherwise: &'a str) -> &'a str {
    if call.contains("$path_link") || call.contains("$path_symlink") { "link" } else { otherwise }
}

/// Errnos of a path that leaves its folder.
const ESCAPES: &[u64] = &[errno::PERM, errno::NOTCAPABLE];
const NO_ACCESS: &[u64] = &[errno::ACCES];

#[test]
fn a_guest_has_full_access_inside_its_scope() {
    let disk = Disk::new();
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
    let disk = Disk::new();
    let guests = [("counts", Guest::new(body)), ("names", Guest::new(names).silent())];
    let bench = disk.bench(guests);
    let found = |report: Report| report.notes().iter().take_while(|error| **error == errno::SUCCESS).count();
    let others = |report: &Report| report.notes().iter().skip(5).all(|error| *error == errno::BADF);

    let granted = run(&bench, "counts");
    assert!(others(&granted), "{granted:?}");
    assert_eq!(found(granted), 5, "three streams, `/jobs`, and the one that stands for the rest");
    assert_eq!(run(&bench, "names").0["result"], serde_json::json!(["/jobs", "/", ""]));

    // Without a scope there is no folder; two grants of one folder are one.
    assert_eq!(found(bench.call("counts").send().success()), 4);
    assert_eq!(bench.call("names").send().success().0["result"], serde_json::json!(["/", ""]));
    let scope = serde_json::json!(["/jobs/dir/**", "/jobs/**", "/jobs/dir/**"]);
    assert_eq!(found(bench.call("counts").grant("filesystem_scope", scope).send().success()), 5);
}

#[test]
fn dot_dot_does_not_escape_the_scope() {
    let open = |path: &str| format!("(call $open (i32.const 3) @\"{path}\")");
    let paths = [
        ("../outside/secret.txt", "/jobs/../outside/secret.txt"),
        ("dir/../../outside/secret.txt", "/jobs/dir/../../outside/secret.txt"),
        ("./../outside/secret.txt", "/jobs/./../outside/secret.txt"),
        ("..", "/jobs/.."),
        ("../", "/jobs/../"),
        ("../jobsfoo/neighbour.txt", "/jobs/../jobsfoo/neighbour.txt"),
        ("../jobs/inside.txt", "/jobs/../jobs/inside.txt"),
        ("/etc/passwd", "/jobs//etc/passwd"),
        ("/", "/jobs//"),
        ("//outside", "/jobs///outside"),
    ];
    let calls = paths.map(|(path, _)| open(path));
    let cases: Vec<_> = calls
        .iter()
        .zip(paths)
        .map(|(call, (_, what))| (call.as_str(), ESCAPES, what, "escapes_root"))
        .collect();
    assert_denied(&cases);
}

#[test]
fn links_do_not_escape_the_scope() {
    let open = |path: &str| format!("(call $open (i32.const 3) @\"{path}\")");
    let paths = [
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
    ];
    let calls = paths.map(open);
    let denied = paths.map(|path| format!("/jobs/{path}"));
    let cases: Vec<_> = calls
        .iter()
        .zip(&denied)
        .map(|(call, what)| (call.as_str(), ESCAPES, what.as_str(), "escapes_root"))
        .collect();
    assert_denied(&cases);
    // Links that stay inside jobs, and one that leads to itself ends.
    let disk = Disk::new();
    let bench = disk.bench([
        ("within", Guest::new(r#"(call $note (call $open (i32.const 3) @"within"))"#)),
        ("round", Guest::new(r#"(call $note (i32.ne (call $open (i32.const 3) @"round") (i32.const 0)))"#)),
    ]);
    assert_eq!(run(&bench, "within").notes(), [0]);
    assert_eq!(run(&bench, "round").notes(), [1]);
}

#[test]
fn access_outside_the_grant_is_refused_and_reported() {
    let cases: [(&str, &[u64], &str, &str); 14] = [
        (r#"(call $open (i32.const 4) @"etc/passwd")"#, NO_ACCESS, "/etc/passwd", "outside_scope"),
        (r#"(call $open (i32.const 4) @"jobs/inside.txt")"#, NO_ACCESS, "/jobs/inside.txt", "outside_scope"),
        (
            r#"(call $open (i32.const 4) @"jobsfoo/neighbour.txt")"#,
            NO_ACCESS,
            "/jobsfoo/neighbour.txt",
            "outside_scope",
        ),
        (
            r#"(call $open (i32.const 4) @"../../etc/passwd")"#,
            NO_ACCESS,
            "/../../etc/passwd",
            "outside_scope",
        ),
        (r#"(call $open_dir (i32.const 4) @".")"#, NO_ACCESS, "/.", "outside_scope"),
        (r#"(call $create (i32.const 4) @"planted")"#, NO_ACCESS, "/planted", "outside_scope"),
        (r#"(call $path_mkdir (i32.const 4) @"made")"#, NO_ACCESS, "/made", "outside_scope"),
        (r#"(call $path_rmdir (i32.const 4) @"home")"#, NO_ACCESS, "/home", "outside_scope"),
        (r#"(call $path_unlink (i32.const 4) @"etc/passwd")"#, NO_ACCESS, "/etc/passwd", "outside_scope"),
        (
            r#"(call $path_stat (i32.const 4) (i32.const 0) @"etc/passwd" (i32.const 512))"#,
            NO_ACCESS,
            "/etc/passwd",
            "outside_scope",
        ),
        (
            r#"(call $path_readlink (i32.const 4) @"proc/self/exe" (i32.const 512) (i32.const 64) (i32.const 8))"#,
            NO_ACCESS,
            "/proc/self/exe",
            "outside_scope",
        ),
        (
            r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 4) @"stolen.txt")"#,
            NO_ACCESS,
            "/stolen.txt",
            "outside_scope",
        ),
        (
            r#"(call $path_rename (i32.const 4) @"etc/passwd" (i32.const 3) @"stolen.txt")"#,
            NO_ACCESS,
            "/etc/passwd",
            "outside_scope",
        ),
        (
            r#"(call $path_link (i32.const 4) (i32.const 0) @"etc/passwd" (i32.const 3) @"hard")"#,
            NO_ACCESS,
            "/etc/passwd",
            "outside_scope",
        ),
    ];
    assert_denied(&cases);
}

#[test]
fn files_cannot_be_moved_linked_or_removed_across_grants() {
    let cases: [(&str, &[u64], &str, &str); 13] = [
        (
            r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 3) @"../outside/moved.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (
            r#"(call $path_rename (i32.const 3) @"inside.txt" (i32.const 3) @"folder/moved.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (
            r#"(call $path_rename (i32.const 3) @"../outside/secret.txt" (i32.const 3) @"mine.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (
            r#"(call $path_rename (i32.const 3) @"folder/secret.txt" (i32.const 3) @"mine.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (
            r#"(call $path_link (i32.const 3) (i32.const 0) @"../outside/secret.txt" (i32.const 3) @"mine.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (
            r#"(call $path_link (i32.const 3) (i32.const 0) @"folder/secret.txt" (i32.const 3) @"mine.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (
            r#"(call $path_link (i32.const 3) (i32.const 0) @"inside.txt" (i32.const 3) @"folder/mine.txt")"#,
            ESCAPES,
            "",
            "",
        ),
        (r#"(call $path_unlink (i32.const 3) @"../outside/secret.txt")"#, ESCAPES, "", ""),
        (r#"(call $path_unlink (i32.const 3) @"folder/secret.txt")"#, ESCAPES, "", ""),
        (r#"(call $path_rmdir (i32.const 3) @"folder/folder")"#, ESCAPES, "", ""),
        (r#"(call $path_mkdir (i32.const 3) @"folder/made")"#, ESCAPES, "", ""),
        (r#"(call $create (i32.const 3) @"dangling")"#, ESCAPES, "", ""),
        (r#"(call $path_symlink @"../inside.txt" (i32.const 3) @"folder/planted")"#, ESCAPES, "", ""),
    ];
    let disk = Disk::new();
    let names: Vec<_> = (0..cases.len()).map(|index| format!("case_{index}")).collect();
    let guests = cases.iter().map(|(call, ..)| Guest::new(format!("(call $note {call})")));
    let bench = disk.bench(names.iter().map(String::as_str).zip(guests));
    let before = (disk.outside(), disk.inside());
    for (name, (call, errors, ..)) in names.iter().zip(cases) {
        let report = run(&bench, name);
        let noted = report.notes();
        assert!(noted.len() == 1 && errors.contains(&noted[0]), "{call}: {noted:?}");
        let denied = report.denied();
        assert!(
            !denied.is_empty()
                && denied.iter().all(|(_, reason, _)| *reason == reason_for(call, "escapes_root")),
            "{call}: {denied:?}"
        );
        assert_eq!((disk.outside(), disk.inside()), before, "{call}");
    }
}

#[test]
fn a_guest_cannot_create_links() {
    // Not even one that leads to the guest's own files: a program of the host might follow it later.
    let planted = |call: &'static str, what| (call, &[errno::PERM][..], what, "link");
    assert_denied(&[
        planted(r#"(call $path_symlink @"/etc/passwd" (i32.const 3) @"planted")"#, "/jobs/planted"),
        planted(r#"(call $path_symlink @"inside.txt" (i32.const 3) @"planted")"#, "/jobs/planted"),
        planted(
            r#"(call $path_symlink @"x" (i32.const 3) @"../outside/planted")"#,
            "/jobs/../outside/planted",
        ),
    ]);
    let disk = Disk::new();
    let link = r#"(call $note (call $path_link (i32.const 3) (i32.const 0) @"inside.txt" (i32.const 3) @"other.txt"))"#;
    let bench = disk.bench([("links", Guest::new(link))]);
    let before = disk.inside();
    assert_eq!(run(&bench, "links").notes(), [errno::PERM]);
    assert_eq!(disk.inside(), before);
}

#[test]
fn hard_linked_files_are_opened_only_if_the_operator_allows_it() {
    let disk = Disk::new();
    fs::hard_link(disk.at("outside/secret.txt"), disk.at("jobs/another_name.txt")).expect("a link");
    let opens = r#"(call $note (call $open (i32.const 3) @"another_name.txt"))"#;
    let refused = run(&disk.bench([("opens", Guest::new(opens))]), "opens");
    assert_eq!(refused.notes(), [errno::PERM]);
    assert_eq!(refused.denied(), [("/jobs/another_name.txt", "hard_link", 1)]);
    let allowed = Options::new().set("ceilings.hard_links", true);
    let report = run(&disk.bench_with(allowed, [("opens", Guest::new(opens))]), "opens");
    assert_eq!((report.notes(), report.denied()), (vec![errno::SUCCESS], vec![]));
}

/// Sets the times of a name to 1 s, where `follow` says whether of what a link leads to.
fn sets_times(name: &str, follow: u32) -> String {
    format!(
        "(call $note (call $path_set_times (i32.const 3) (i32.const {follow}) @\"{name}\"
            (i64.const 1000000000) (i64.const 1000000000) (i32.const 5)))"
    )
}

#[test]
fn times_of_hard_linked_files_are_set_only_if_the_operator_allows_it() {
    let disk = Disk::new();
    let folder = disk.at("jobs/dir");
    fs::hard_link(disk.at("outside/secret.txt"), folder.join("file")).expect("a link");
    symlink("secret.txt", disk.at("outside/link")).expect("a link");
    fs::hard_link(disk.at("outside/link"), folder.join("link")).expect("a second name of a link");
    symlink("file", folder.join("to_file")).expect("a link");
    symlink("deep.txt", folder.join("to_deep")).expect("a link");
    super::guest::make_fifo(&folder.join("fifo"));
    let tries = [("dir/file", 0), ("dir/file", 1), ("dir/link", 0), ("dir/to_file", 1), ("dir/fifo", 1)];
    let tries = tries.map(|(name, follow)| sets_times(name, follow)).concat();
    // By its descriptor, a folder is what was opened; a link is set and not followed, where it has one name.
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
        // The adapter of a componentised module sets times of files alone by their descriptors.
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
    // Both names lie inside where it is allowed, so that nothing outside changes.
    fs::hard_link(disk.at("jobs/inside.txt"), disk.at("jobs/dir/inside")).expect("a link");
    let guests = [("tries", Guest::new(sets_times("dir/inside", 1)))];
    let bench = disk.bench_with(Options::new().set("ceilings.hard_links", true), guests);
    for scope in ["/jobs/**", "/jobs/di[r]/**"] {
        let report = call(&bench, "tries", scope);
        assert_eq!((report.notes(), seconds("jobs/inside.txt")), (vec![errno::SUCCESS], 1), "{scope}");
        Command::new("touch").arg(disk.at("jobs/inside.txt")).status().expect("touch");
    }
}

#[test]
fn a_folder_that_contains_a_mount_is_not_granted() {
    let disk = Disk::new();
    let place = disk.at("jobs/empty");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&place).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: this user may not mount");
        return;
    }
    let answer = disk.bench([("opens", Guest::new("(drop (call $open (i32.const 3) @\"inside.txt\"))"))]);
    let refused = answer.call("opens").scope("/jobs/**").send();
    let fits = answer.call("opens").scope("/jobs/dir/**").send();
    assert!(Command::new("umount").arg(&place).status().expect("umount").success());
    let error = crate::harness::error(&refused.response, -32000);
    assert_eq!(error["data"]["blocked_by"], "scope_unenforceable", "{error}");
    assert!(error["message"].as_str().expect("a message").contains("holds the mount"), "{error}");
    fits.success();
    answer.call("opens").scope("/jobs/**").send().success();
}

#[test]
fn a_guest_has_a_budget_of_written_bytes_and_created_files() {
    let makes = |count: u32| {
        format!(
            r#"(local $left i32)
            (local.set $left (i32.const {count}))
            (i32.store8 (i32.const 600) (i32.const 100))
            (loop $next
              (i32.store8 (i32.const 601) (i32.add (i32.const 65) (local.get $left)))
              (if (call $path_mkdir (i32.const 3) (i32.const 600) (i32.const 2)) (then (unreachable)))
              (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"#
        )
    };
    let creates = r#"(call $note (call $create (i32.const 3) @"a")) (call $note (call $create (i32.const 3) @"a"))
        (drop (call $create (i32.const 3) @"b"))"#;
    // 64 KiB at a time, in one file: the same place again and again is writing all the same.
    let writes = |times: u32, fd: &str| {
        format!(
            r#"(local $left i32)
            (local.set $left (i32.const {times}))
            (if (call $create (i32.const 3) @"written") (then (unreachable)))
            {fd}
            (i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 65536))
            (loop $next
              (if (call $fd_write (global.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
              (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"#
        )
    };
    let grows = |bytes: u64| {
        format!(
            r#"(if (call $create (i32.const 3) @"grown") (then (unreachable)))
            (call $note (call $fd_set_size (global.get $fd) (i64.const {bytes})))"#
        )
    };
    // One byte at a time, far apart: a file takes whole blocks for them.
    let scatters = |times: u32| {
        format!(
            r#"(local $left i32)
            (local.set $left (i32.const {times}))
            (if (call $create (i32.const 3) @"scattered") (then (unreachable)))
            (i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 1))
            (loop $next
              (local.set $left (i32.sub (local.get $left) (i32.const 1)))
              (if (call $fd_pwrite (global.get $fd) (i32.const 0) (i32.const 1)
                    (i64.mul (i64.const 4096) (i64.sub (i64.const {times}) (i64.extend_i32_u (local.get $left)))) (i32.const 8))
                (then (unreachable)))
              (br_if $next (local.get $left)))"#
        )
    };
    // In the place of standard output, a file is a file all the same.
    let renumbered = "(if (call $fd_renumber (global.get $fd) (i32.const 2)) (then (unreachable)))
        (global.set $fd (i32.const 2))";
    let disk = Disk::new();
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
    let bench = disk.bench_with(options, guests);
    let call = |tool: &str| bench.call(tool).scope("/jobs/**").send();
    let report = call("makes_five").success();
    let spent = |used: u64, granted: u64| json!({ "granted": granted, "used": used, "slack": granted - used, "set_by": "executor" });
    assert_eq!(report.in_force("max_created"), &spent(5, 5));
    for name in ["dF", "dE", "dD", "dC", "dB"] {
        std::fs::remove_dir(disk.at("jobs").join(name)).expect("it was made");
    }
    let sentence = call("makes_six").limit("created").sentence().to_owned();
    assert!(sentence.contains("created files and folders") && sentence.contains("executor"), "{sentence}");
    let made = ["dG", "dF", "dE", "dD", "dC", "dB"].map(|name| disk.at("jobs").join(name).exists());
    assert_eq!(made, [true, true, true, true, true, false]);
    // Opening what is there makes nothing.
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
    // The number of a preopened folder given to another one: neither opens the other's files.
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
    let disk = Disk::new();
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
    let disk = Disk::new();
    let bench = disk.bench([("reads", Guest::new(body))]);
    assert_eq!(bench.call("reads").scope("/jobs/dir/**").send().success().notes(), [0, 1, 1, 1]);
    // A link in the place of the folder is refused before anything runs, wherever it leads.
    for link in ["folder", "absolute_folder", "up", "within", "round", "folder/folder", "proc", "inside.txt"]
    {
        let answer = bench.call("reads").scope(&format!("/jobs/{link}/**")).send();
        let words = crate::harness::expect_blocked(&answer.response, "scope_unenforceable");
        assert!(words.contains(&format!("`/jobs/{link}`")), "{words}");
        assert!(!words.contains(disk.folder.path().to_str().expect("UTF-8")), "{words}");
    }
    // A folder beside the scope is not in it, also if the rest of its name is a folder inside.
    std::fs::create_dir(disk.at("jobs/foo")).expect("a folder");
    for beside in ["/jobsfoo/**", "/jobs.foo/**", "/outside/**", "/job/**"] {
        let report = bench.call("reads").scope(beside).send().success();
        assert_eq!(report.in_force("filesystem_scope")["trees"], serde_json::json!([]), "{beside}");
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
    let disk = Disk::new();
    let names: Vec<_> = (0..MUTATIONS.len()).map(|index| format!("case_{index}")).collect();
    let guests = MUTATIONS.iter().map(|call| Guest::new(format!("(call $note {call})")));
    // An open file is no way to change it either.
    let by_descriptor = r#"
        (call $note (call $open (i32.const 3) @"inside.txt"))
        (call $note (i32.ne (i32.const 0) (call $write (global.get $fd) @"x")))
        (call $note (i32.ne (i32.const 0) (call $fd_set_size (global.get $fd) (i64.const 0))))
        (call $note (i32.ne (i32.const 0)
          (call $fd_set_times (global.get $fd) (i64.const 1) (i64.const 1) (i32.const 5))))
        (call $note (i32.ne (i32.const 0) (call $fd_allocate (global.get $fd) (i64.const 0) (i64.const 99))))
        (call $note (call $read (global.get $fd) (i32.const 512) (i32.const 64)))
        (call $note (i32.load (i32.const 8)))"#;
    let guests = names.iter().map(String::as_str).zip(guests);
    let bench = disk.bench(guests.chain([("by_descriptor", Guest::new(by_descriptor))]));
    let run = |tool: &str| bench.call(tool).scope("/jobs/**").condition("read_only").send().success();
    let before = (disk.outside(), disk.inside());
    for (name, call) in names.iter().zip(MUTATIONS) {
        let report = run(name);
        assert_ne!(report.notes(), [0], "{call}");
        let denied = report.denied();
        assert!(!denied.is_empty(), "{call}: {report:?}");
        let expected = reason_for(call, "read_only");
        assert!(denied.iter().all(|(_, reason, _)| *reason == expected), "{call}: {denied:?}");
        assert_eq!((disk.outside(), disk.inside()), before, "{call}");
        let tree = &report.in_force("filesystem_scope")["trees"][0];
        assert_eq!((&tree["access"], &tree["access_set_by"]), (&"read-only".into(), &"condition".into()));
    }
    assert_eq!(run("by_descriptor").notes(), [0, 1, 1, 1, 1, 0, 15]);
    assert_eq!((disk.outside(), disk.inside()), before);
}

#[test]
fn denials_are_counted_and_capped() {
    let count = |paths: u32, times: u32| {
        // Paths `x00`, `x01`, … under what was not granted.
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
    // The whole of the memory as one path, in what was not granted and in what was.
    let asks = |root: u32| {
        format!(
            "(memory.fill (i32.const 65536) (i32.const 1) (i32.const 60000000))
            (call $note (i32.ne (i32.const 0)
              (call $open (i32.const {root}) (i32.const 65536) (i32.const 60000000))))"
        )
    };
    let disk = Disk::new();
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
