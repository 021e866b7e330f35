//! As which user guests run where the server is root: these tests say that they are skipped where it is not.

use super::bench::Bench;
use super::isolation::{SLEEPS, kill};
use harness::guests::{Guest, errno};
use harness::{
    Catalogue, Home, HttpClient, Options, Process, children_of, eventually, parent_of, print_skipped,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// Somebody whom this machine need not know.
const SOMEBODY: u32 = 54_321;
const GROUP: u32 = 54_322;
const NOBODY: u32 = 65_534;

/// Waits until the file `go` is there, and then makes a file and opens two that are there.
const WORKS: &str = r#"
    (block $open (loop $closed
      (br_if $open (i32.eqz (call $open (i32.const 3) @"go")))
      (drop (call $sleep (i64.const 10000000)))
      (br $closed)))
    (call $note (call $create (i32.const 3) @"made"))
    (call $note (call $open_rw (i32.const 3) @"own"))
    (call $note (call $open (i32.const 3) @"of_root"))"#;

/// A bench of a server that is root, where this is.
fn start(options: Options) -> Option<Bench> {
    if !rustix::process::geteuid().is_root() {
        print_skipped("this is not root, whose guests alone are others");
        return None;
    }
    let options = options
        .set("executor.isolation", "process")
        .set("executor.waiting", 1)
        // An idle process of an earlier run would be taken for that of the next one.
        .set("executor.reuse", serde_json::json!({ "tools": [] }));
    let guests = [("works", Guest::new(WORKS)), ("sleeps", Guest::new(SLEEPS))];
    Some(Bench::start_with(options, guests).undisturbed())
}

/// Gives the workspace to a user, with a file of theirs and one that is root's alone.
fn prepare(workspace: &Path, owner: u32, group: u32, mode: u32) {
    for (file, mode) in [("own", 0o600), ("of_root", 0o600)] {
        fs::write(workspace.join(file), file).expect("a file");
        fs::set_permissions(workspace.join(file), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    fs::set_permissions(workspace, fs::Permissions::from_mode(mode)).expect("a mode");
    for path in [workspace.to_owned(), workspace.join("own")] {
        chown(path, Some(owner), Some(group)).expect("root may");
    }
}

/// One line of the status of a process, or of one of its threads; `None` if it has ended.
fn find_status(folder: &str, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("{folder}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a known name");
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn status(folder: &str, name: &str) -> String {
    find_status(folder, name).expect("it lives")
}

/// Runs `works` in the workspace: its ids and rights while it runs, and then what it noted.
fn run(bench: &Bench, files: bool) -> ([String; 3], Vec<u64>, Vec<(String, String)>) {
    let call = bench.call("works").grant("timeout_seconds", 60);
    let call = if files { call.scope("/workspace/**") } else { call };
    let intent = call.intent();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| call.send());
        let child = eventually("it runs", || {
            let children = children_of(bench.process).into_iter().flat_map(children_of);
            // The one that runs has the smaller number: the other was forked after it.
            let child = children.min().filter(|_| bench.state(&intent) == "running")?;
            // Its user changes once, at the end of what it confines itself by.
            (find_status(&format!("/proc/{child}"), "Seccomp_filters:")? == "2").then_some(child)
        });
        let of_child = format!("/proc/{child}");
        let seen = ["Uid:", "Gid:", "CapPrm:"].map(|name| status(&of_child, name));
        for thread in fs::read_dir(format!("{of_child}/task")).expect("it lives") {
            let thread = thread.expect("an entry").path();
            let rights = status(thread.to_str().expect("UTF-8"), "CapPrm:");
            assert!(rights == seen[2] || rights == "0000000000000000", "{rights}");
        }
        if !files {
            assert!(bench.cancel(&intent));
            answer.join().expect("no panic").aborted("cancelled");
            return (seen, Vec::new(), Vec::new());
        }
        fs::write(bench.executor.workspace().join("go"), "").expect("a file");
        fs::set_permissions(bench.executor.workspace().join("go"), fs::Permissions::from_mode(0o644))
            .expect("a mode");
        let report = answer.join().expect("no panic").success();
        let denied = report.denied().into_iter().map(|(what, why, _)| (what.to_owned(), why.to_owned()));
        (seen, report.notes(), denied.collect())
    })
}

fn ids(uid: u32, gid: u32, rights: &str) -> [String; 3] {
    let four = |id: u32| [id; 4].map(|id| id.to_string()).join(" ");
    [four(uid), four(gid), rights.to_owned()]
}

const NO_RIGHTS: &str = "0000000000000000";
/// To pass over modes and owners of files.
const RIGHTS_OVER_FILES: &str = "000000000000000a";

#[test]
fn a_guest_of_a_root_server_runs_as_the_folder_owner() {
    let Some(bench) = start(Options::new()) else { return };
    let workspace = bench.executor.workspace();
    let remove = || ["made", "go"].map(|file| fs::remove_file(workspace.join(file)).expect("a file"));
    // Without files it is nobody.
    assert_eq!(run(&bench, false).0, ids(NOBODY, NOBODY, NO_RIGHTS));

    prepare(&workspace, SOMEBODY, GROUP, 0o700);
    let (seen, notes, denied) = run(&bench, true);
    assert_eq!(seen, ids(SOMEBODY, GROUP, NO_RIGHTS));
    assert_eq!(notes, [errno::SUCCESS, errno::SUCCESS, errno::ACCES]);
    assert_eq!(denied, [("/workspace/of_root".to_owned(), "host_permissions".to_owned())]);
    let made = fs::metadata(workspace.join("made")).expect("it was made");
    assert_eq!((made.uid(), made.gid()), (SOMEBODY, GROUP));
    remove();

    // A guest can use as root what root alone may write.
    prepare(&workspace, 0, 0, 0o755);
    let (seen, notes, denied) = run(&bench, true);
    assert_eq!((seen, notes, denied), (ids(0, 0, RIGHTS_OVER_FILES), vec![errno::SUCCESS; 3], vec![]));
    assert_eq!(fs::metadata(workspace.join("made")).expect("it was made").uid(), 0);
    remove();

    // The user `nobody` can use what everybody may write.
    prepare(&workspace, 0, 0, 0o1777);
    let (seen, notes, _) = run(&bench, true);
    assert_eq!(seen, ids(NOBODY, NOBODY, NO_RIGHTS));
    assert_eq!(notes, [errno::SUCCESS, errno::ACCES, errno::ACCES]);
}

#[test]
fn the_operator_may_set_the_user_of_all_guests() {
    let run_as = Options::new().set("executor.run_as", format!("{SOMEBODY}:{GROUP}"));
    let Some(bench) = start(run_as) else { return };
    prepare(&bench.executor.workspace(), SOMEBODY, GROUP, 0o700);
    assert_eq!(run(&bench, true).1, [errno::SUCCESS, errno::SUCCESS, errno::ACCES]);
    assert_eq!(run(&bench, false).0, ids(SOMEBODY, GROUP, NO_RIGHTS));
    // No caller has to be told of it.
    assert!(!bench.executor.stderr().contains("tools run as root"));
}

#[test]
fn a_folder_in_which_no_run_can_write_is_named_at_the_start() {
    if !rustix::process::geteuid().is_root() {
        print_skipped("this is not root, whose guests alone are others");
        return;
    }
    for (owner, mode, read_only, is_told) in [
        (0, 0o755, false, true),
        (0, 0o755, true, false),
        (0, 0o777, false, false),
        (SOMEBODY, 0o700, false, false),
        (SOMEBODY, 0o500, false, true),
    ] {
        let run_as = format!("{SOMEBODY}:{GROUP}");
        let options = Options::new().set("executor.run_as", &*run_as).set("ceilings.read_only", read_only);
        let catalogue = Catalogue::empty();
        let home = Home::new(options.set("executor.isolation", "process").catalogue(&catalogue));
        let workspace = home.workspace();
        prepare(&workspace, owner, owner, mode);
        let executor = Process::spawn("executor", &mut home.command());
        executor.listens_on();
        let said = executor.stderr();
        let named =
            format!(r#""folder":"{}","owner":"{owner}:{owner}","user":"{run_as}""#, workspace.display());
        let lines = said.lines().filter(|line| line.contains("tools cannot write")).collect::<Vec<_>>();
        assert_eq!(lines.len(), usize::from(is_told), "{owner} {mode:o} {read_only}: {said}");
        assert!(lines.iter().all(|line| line.contains(&named)), "{said}");
    }
}

#[test]
fn running_tools_as_root_is_logged_once() {
    let Some(bench) = start(Options::new()) else { return };
    run(&bench, false);
    let said = bench.executor.stderr();
    let workspace = bench.executor.workspace().display().to_string();
    let lines = said.lines().filter(|line| line.contains("tools run as root")).collect::<Vec<_>>();
    assert!(lines.len() == 1 && lines[0].contains(&workspace) && lines[0].contains("chown"), "{said}");
    let checked = bench.executor.home().run(&["config", "check"]);
    let checked = String::from_utf8(checked.stdout).expect("UTF-8");
    assert!(checked.contains(&format!("root in {workspace}, because root owns that folder")), "{checked}");
}

#[test]
fn a_guest_under_another_user_ends_with_its_server() {
    // Longer than a test waits, so that its own deadline does not end it.
    let Some(bench) = start(Options::new().set("ceilings.timeout_seconds", 3600)) else { return };
    prepare(&bench.executor.workspace(), SOMEBODY, GROUP, 0o700);
    let call = bench.call("sleeps").scope("/workspace/**").grant("timeout_seconds", 3600);
    let parameters = call.parameters();
    let address = bench.executor.address();
    // This one has no caller left to answer.
    std::thread::spawn(move || HttpClient::ask(address, "a2g/execute", &parameters));
    let somebodys = |pid: &u32| {
        fs::metadata(format!("/proc/{pid}")).is_ok()
            && fs::read_to_string(format!("/proc/{pid}/status"))
                .is_ok_and(|status| status.contains(&format!("Uid:\t{SOMEBODY}\t")))
    };
    let guest = eventually("the guest runs", || {
        children_of(bench.process).into_iter().flat_map(children_of).find(somebodys)
    });
    bench.mark_killed();
    kill(bench.process);
    eventually("it is gone", || parent_of(guest).is_none().then_some(()));
}
