//! A journal that goes away under a running server, or between two.
//!
//! A run that was answered is found again; where that cannot be, nothing is answered.

use super::{catalogue, load, mark, options};
use harness::{Catalogue, Executor, Home, HttpClient, Options, Process, eventually, result, set_mode};
use std::path::Path;
use std::time::{Duration, Instant};

/// With the governor inside.
fn ungoverned_options(catalogue: &Catalogue) -> Options {
    Options::new().catalogue(catalogue)
}

/// Starts one that has to end at once, and gives what it said.
fn start_error(home: &Home, more: &[&str]) -> String {
    let mut process = Process::spawn("executor", home.command().args(more));
    assert_eq!(process.wait_for_exit().code(), Some(1), "{}", process.stderr());
    process.whole_stderr()
}

/// That its file was removed, which `journal::tests::storage` shows of every other way in which one can go.
#[test]
fn a_server_stops_at_once_if_its_journal_vanishes() {
    let catalogue = catalogue();
    for under_load in [true, false] {
        let load = load();
        let mut executor = Executor::start(ungoverned_options(&catalogue));
        let address = executor.address();
        let journal = executor.home().journal();
        result(&executor.rpc("a2g/execute", &mark(999_999)));
        let clients = if under_load { 4 } else { 0 };
        let began = load.during(clients, address, || {
            std::thread::sleep(Duration::from_millis(if under_load { 200 } else { 0 }));
            std::fs::remove_file(&journal).unwrap();
            let began = Instant::now();
            assert_eq!(executor.process().wait_for_exit().code(), Some(1), "{}", executor.stderr());
            began
        });
        // At once where something is written, and within a second or so where nothing is.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{under_load}: {took:?}");
        let said = executor.process().whole_stderr();
        assert!(said.contains("it was removed"), "{said}");
        assert!(said.contains("is not what this executor opened"), "{said}");
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
    let rename = |from: &str, to: &str| {
        for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
            let named = |before: &str| journal.with_file_name(format!("{before}{file}"));
            let _may_not_be_there = std::fs::rename(named(from), named(to));
        }
    };
    rename("", "kept-");
    let said = start_error(&home, &[]);
    assert!(said.contains("says that there was one") && said.contains("journal init"), "{said}");
    std::fs::write(&journal, "").unwrap();
    assert!(start_error(&home, &[]).contains("says that there was one"));
    std::fs::remove_file(&journal).unwrap();
    rename("kept-", "");
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
    rename("", "old-");
    let init = home.run(&["journal", "init"]);
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
    let with_name =
        |name: &Path| Home::new(ungoverned_options(&catalogue).set("journal.path", name.to_str().unwrap()));
    for name in [&journal, &symbolic, &as_folder.join("journal.db")] {
        let second = with_name(name);
        let said = start_error(&second, &[]);
        assert!(said.contains("is in use by another executor"), "{}: {said}", name.display());
    }
    bind_mounted(&catalogue, folder);
    result(&first.rpc("a2g/execute", &mark(2)));
    let home = first.kill();
    let hard = folder.join("hard.db");
    std::fs::hard_link(&journal, &hard).unwrap();
    for name in [&journal, &hard] {
        assert!(start_error(&with_name(name), &[]).contains("has 2 names"), "{}", name.display());
    }
    std::fs::remove_file(&hard).unwrap();
    Executor::start_in(home);
}

/// As the child of a server that was killed, until it has replaced itself.
#[test]
fn a_start_waits_for_the_lock_of_a_process_that_is_ending() {
    let catalogue = catalogue();
    let home = Executor::start(ungoverned_options(&catalogue)).kill();
    let locked = std::fs::File::open(home.journal()).unwrap();
    eventually("the journal of a server that was killed is free", || {
        rustix::fs::flock(&locked, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()
    });
    let mut process = Process::spawn("executor", &mut home.command());
    eventually("the next one waits", || {
        process.stderr().contains("perhaps by a process that is ending").then_some(())
    });
    drop(locked);
    assert!(process.listens_on_unless_it_ends().is_some(), "{}", process.stderr());
    process.kill();
}

/// The same folder at another place.
fn bind_mounted(catalogue: &Catalogue, folder: &Path) {
    let place = tempfile::tempdir().unwrap();
    if !super::disk::can_mount() {
        return;
    }
    let second = Home::new(
        ungoverned_options(catalogue).set("journal.path", place.path().join("journal.db").to_str().unwrap()),
    );
    let mount = format!("mount --bind '{}' '{}' && exec \"$@\"", folder.display(), place.path().display());
    let mut under = harness::under(&["unshare", "--mount", "sh", "-c", &mount, "sh"], &second.command());
    let mut process = Process::spawn("executor", &mut under);
    assert_eq!(process.wait_for_exit().code(), Some(1), "{}", process.stderr());
    assert!(process.whole_stderr().contains("is in use by another executor"), "{}", process.stderr());
}

/// While a load goes on, a backup is taken, and put back into another place, where it goes on.
#[test]
fn a_backup_is_complete_and_can_be_served_elsewhere() {
    let governor = harness::Governor::start(&[]);
    let catalogue = catalogue();
    let load = load();
    let executor = Executor::start(options(&catalogue, &governor.http_url()));
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    let journal = |home: &Home, arguments: &[&str]| home.run(&[&["journal"], arguments].concat());
    let output = load.during(4, executor.address(), || {
        std::thread::sleep(Duration::from_millis(300));
        journal(executor.home(), &["backup", backup])
    });
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("the journal is intact"), "{output:?}");
    let again = journal(executor.home(), &["backup", backup]);
    assert_eq!(again.status.code(), Some(1), "it is there already");
    let checkpoint = said.lines().find_map(|line| line.strip_prefix("checkpoint ")).unwrap().to_owned();
    for replaces in [&["--replace"][..], &[]] {
        let output = journal(executor.home(), &[&["restore", backup], replaces].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("in use") || said.contains("--replace"), "{said}");
    }
    let home = executor.kill();
    let restored = journal(&home, &["restore", "--replace", backup]);
    let said = String::from_utf8_lossy(&restored.stdout);
    assert!(restored.status.success() && said.contains("journal.db.replaced-1"), "{restored:?}");
    let verified = journal(&home, &["verify", "--checkpoint", &checkpoint]);
    assert!(verified.status.success(), "{verified:?}");
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
