//! A journal that goes away under a running server, or between two.
//!
//! A run that was answered is found again; where that cannot be, nothing is answered.

use super::{catalogue, load, options};
use crate::harness::{
    Catalogue, Executor, Home, HttpClient, Options, Process, eventually, execute, print_skipped, result, run,
    set_mode,
};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// With the governor inside.
fn ungoverned_options(catalogue: &Catalogue) -> Options {
    Options::new().catalogue(catalogue)
}

fn mark(n: u32) -> Value {
    execute("mark", json!({ "n": format!("{n:06}") }))
}

/// Starts one that has to end at once, and gives what it said.
fn start_error(home: &Home, more: &[&str]) -> String {
    let mut process = Process::spawn("executor", home.command().args(more));
    assert_eq!(process.wait_for_exit().code(), Some(1), "{}", process.stderr());
    process.whole_stderr()
}

fn move_away(journal: &Path) {
    std::fs::rename(journal, journal.with_file_name("elsewhere")).unwrap();
}

fn rename_folder(journal: &Path) {
    let folder = journal.parent().unwrap();
    std::fs::rename(folder, folder.with_file_name("renamed")).unwrap();
}

fn replace(journal: &Path) {
    let copy = journal.with_file_name("copy");
    std::fs::copy(journal, &copy).unwrap();
    std::fs::rename(&copy, journal).unwrap();
}

fn cut_short(journal: &Path) {
    std::fs::OpenOptions::new().write(true).open(journal).unwrap().set_len(4096).unwrap();
}

/// In words, done to the file, and what the server says of it.
type Vanish = (&'static str, fn(&Path), &'static str);

/// Every success that was answered stands in a journal, wherever that is now.
#[test]
fn a_server_stops_at_once_if_its_journal_vanishes() {
    let catalogue = catalogue();
    let vanishes: [Vanish; 6] = [
        ("removed", |journal| std::fs::remove_file(journal).unwrap(), "it was removed"),
        ("moved", move_away, "it was removed"),
        ("its folder renamed", rename_folder, "its folder was renamed"),
        ("replaced", replace, "another file was put in its place"),
        ("cut short", cut_short, "cut short"),
        (
            "its log removed",
            |journal| std::fs::remove_file(journal.with_file_name("journal.db-wal")).unwrap(),
            "journal.db-wal",
        ),
    ];
    for (how, vanish, says) in vanishes {
        for under_load in [true, false] {
            let load = load();
            let mut executor = Executor::start(ungoverned_options(&catalogue));
            let (address, journal) = (executor.address(), executor.home().journal());
            result(&executor.rpc("a2g/execute", &mark(999_999)));
            // The log is put into the file, so that there is something to cut.
            let sqlite = rusqlite::Connection::open(&journal).unwrap();
            sqlite.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
            drop(sqlite);
            let clients = if under_load { 4 } else { 0 };
            let began = load.during(clients, address, || {
                std::thread::sleep(Duration::from_millis(if under_load { 200 } else { 0 }));
                vanish(&journal);
                let began = Instant::now();
                assert_eq!(
                    executor.process().wait_for_exit().code(),
                    Some(1),
                    "{how}: {}",
                    executor.stderr()
                );
                began
            });
            // At once where something is written, and within a second or so where nothing is.
            let took = began.elapsed();
            assert!(took < Duration::from_secs(20), "{how}, {under_load}: {took:?}");
            let said = executor.process().whole_stderr();
            let is_named = said.contains(says) && said.contains("is not what this executor opened");
            // The check in the background can read the short file before a commit does.
            let is_damaged = how == "cut short" && said.contains("is damaged");
            assert!(is_named || is_damaged, "{how}: {said}");
        }
    }
}

#[test]
fn a_missing_journal_is_not_recreated_without_an_option() {
    let catalogue = catalogue();
    let executor = Executor::start(ungoverned_options(&catalogue));
    let call = mark(1);
    let answer = executor.rpc("a2g/execute", &call);
    let home = executor.kill();
    let journal = home.journal();
    let aside = |to: &str| {
        for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
            let _may_not_be_there =
                std::fs::rename(journal.with_file_name(file), journal.with_file_name(format!("{to}{file}")));
        }
    };
    let back = |from: &str| {
        for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
            let _may_not_be_there = std::fs::rename(
                journal.with_file_name(format!("{from}{file}")),
                journal.with_file_name(file),
            );
        }
    };
    aside("kept-");
    let said = start_error(&home, &[]);
    assert!(said.contains("says that there was one") && said.contains("journal init"), "{said}");
    std::fs::write(&journal, "").unwrap();
    assert!(start_error(&home, &[]).contains("says that there was one"));
    std::fs::remove_file(&journal).unwrap();
    back("kept-");
    assert!(start_error(&home, &["--new-journal"]).contains("already"));
    // Its log is gone, and what only that had.
    let log = journal.with_file_name("journal.db-wal");
    assert!(log.metadata().unwrap().len() > 0, "the server was killed");
    std::fs::rename(&log, journal.with_file_name("log")).unwrap();
    let shared = std::fs::read(journal.with_file_name("journal.db-shm")).unwrap();
    std::fs::remove_file(journal.with_file_name("journal.db-shm")).unwrap();
    let said = start_error(&home, &[]);
    assert!(said.contains("lacks its last records") || said.contains("not a journal"), "{said}");
    let _empty = std::fs::remove_file(&log);
    std::fs::rename(journal.with_file_name("log"), &log).unwrap();
    std::fs::write(journal.with_file_name("journal.db-shm"), shared).unwrap();
    set_mode(&journal.with_file_name("journal.db-shm"), 0o600);
    let executor = Executor::start_in(home);
    assert_eq!(result(&executor.rpc("a2g/execute", &call)), result(&answer));
    assert_eq!(executor.file("000001").as_deref(), Some("x"));
    let home = executor.kill();
    // Only who is told so begins anew, and what ran before runs again.
    aside("old-");
    let config = home.config();
    let init = run(["journal", "init", "--config", config.to_str().unwrap()]);
    assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
    let executor = Executor::start_in(home);
    result(&executor.rpc("a2g/execute", &call));
    assert_eq!(executor.file("000001").as_deref(), Some("xx"));
}

/// A lock on the name alone would let two servers write one file.
#[test]
fn one_journal_is_never_served_twice_under_two_names() {
    let catalogue = catalogue();
    let first = Executor::start(ungoverned_options(&catalogue));
    let journal = first.home().journal();
    result(&first.rpc("a2g/execute", &mark(1)));
    let folder = journal.parent().unwrap();
    let names = tempfile::tempdir().unwrap();
    let symbolic = names.path().join("symbolic.db");
    std::os::unix::fs::symlink(&journal, &symbolic).unwrap();
    let as_folder = names.path().join("folder");
    std::os::unix::fs::symlink(folder, &as_folder).unwrap();
    std::fs::remove_file(journal.with_file_name("journal.db.lock")).unwrap();
    for name in [&journal, &symbolic, &as_folder.join("journal.db")] {
        let second = Home::new(ungoverned_options(&catalogue).set("journal.path", name.to_str().unwrap()));
        let said = start_error(&second, &[]);
        assert!(said.contains("is in use by another executor"), "{}: {said}", name.display());
    }
    bind_mounted(&catalogue, folder);
    result(&first.rpc("a2g/execute", &mark(2)));
    let home = first.kill();
    let hard = folder.join("hard.db");
    std::fs::hard_link(&journal, &hard).unwrap();
    for name in [&journal, &hard] {
        let second = Home::new(ungoverned_options(&catalogue).set("journal.path", name.to_str().unwrap()));
        assert!(start_error(&second, &[]).contains("has 2 names"), "{}", name.display());
    }
    std::fs::remove_file(&hard).unwrap();
    Executor::start_in(home);
}

/// The same folder at another place.
fn bind_mounted(catalogue: &Catalogue, folder: &Path) {
    let place = tempfile::tempdir().unwrap();
    let can = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if !can {
        print_skipped("no folder can be mounted here");
        return;
    }
    let second = Home::new(
        ungoverned_options(catalogue).set("journal.path", place.path().join("journal.db").to_str().unwrap()),
    );
    let mount = format!("mount --bind '{}' '{}' && exec \"$@\"", folder.display(), place.path().display());
    let mut under = super::crash::under(&["unshare", "--mount", "sh", "-c", &mount, "sh"], &second.command());
    let mut process = Process::spawn("executor", &mut under);
    assert_eq!(process.wait_for_exit().code(), Some(1), "{}", process.stderr());
    assert!(process.whole_stderr().contains("is in use by another executor"), "{}", process.stderr());
}

#[test]
fn a_journal_readable_by_others_is_not_served() {
    let catalogue = catalogue();
    let home = Executor::start(ungoverned_options(&catalogue)).kill();
    let journal = home.journal();
    for mode in [0o644, 0o640, 0o660] {
        set_mode(&journal, mode);
        let said = start_error(&home, &[]);
        assert!(said.contains(&format!("mode {mode:04o}")) && said.contains("chmod 600"), "{said}");
    }
    set_mode(&journal, 0o600);
    for file in ["journal.db-wal", "journal.db-shm", "journal.db.lock"] {
        set_mode(&journal.with_file_name(file), 0o644);
    }
    let executor = Executor::start_in(home);
    result(&executor.rpc("a2g/execute", &mark(1)));
    for file in ["journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = journal.with_file_name(file).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

/// While a load goes on, a backup is taken, and put back into another place, where it goes on.
#[test]
fn a_backup_is_complete_and_can_be_served_elsewhere() {
    let (governor, catalogue, load) = (crate::harness::Governor::start(&[]), catalogue(), load());
    let executor = Executor::start(options(&catalogue, &governor.http_url()));
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup.db");
    let config = executor.home().config();
    let config = config.to_str().unwrap();
    let backup = backup.to_str().unwrap();
    let output = load.during(4, executor.address(), || {
        std::thread::sleep(Duration::from_millis(300));
        run(["journal", "backup", backup, "--config", config])
    });
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("the journal is intact"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        run(["journal", "backup", backup, "--config", config]).status.code(),
        Some(1),
        "it is there already"
    );
    let checkpoint = said.lines().find_map(|line| line.strip_prefix("checkpoint ")).unwrap().to_owned();
    for (arguments, code) in [
        (vec!["journal", "restore", backup, "--config", config], Some(1)),
        (vec!["journal", "restore", "--replace", backup, "--config", config], Some(1)),
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), code, "{said}");
        assert!(said.contains("in use") || said.contains("--replace"), "{said}");
    }
    let home = executor.kill();
    let restored = run(["journal", "restore", "--replace", backup, "--config", config]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let said = String::from_utf8_lossy(&restored.stdout);
    assert!(said.contains("journal.db.replaced-1"), "{said}");
    let verified = run(["journal", "verify", "--checkpoint", &checkpoint, "--config", config]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    // It goes on where the backup was made, and nothing that it knows runs again.
    let executor = Executor::start_in(home);
    let known = executor.home().list_journal(&["--limit", "100000"]);
    assert!(!known.is_empty());
    let before = known.len();
    let health = HttpClient::connect(executor.address()).request("GET", "/health", &[], b"");
    assert_eq!(health.status, 200);
    // One of any two is not refused.
    let _answers = [load.send(executor.address()), load.send(executor.address())];
    eventually("it goes on", || {
        (executor.home().list_journal(&["--limit", "100000"]).len() > before).then_some(())
    });
}
