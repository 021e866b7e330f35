//! The place of a journal, its readers, and the identity of its file.

use super::*;
use crate::{CopyError, back_up, init, restore, sweep};
use std::os::unix::fs::{PermissionsExt as _, symlink};

/// Closes a journal, and waits until its writer has released the file.
fn close(journal: Journal, path: &Path) {
    drop(journal);
    wait_for_the_writer(path);
}

/// Moves all records of a closed journal from its log into the file, and returns its bytes. Connections of its threads may
/// still be open: only the last one to close moves the records.
fn bytes_without_log(path: &Path) -> Vec<u8> {
    let connection = Connection::open(path).unwrap();
    let checkpoint =
        || connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
    eventually(|| checkpoint().ok().filter(|is_busy| !is_busy));
    std::fs::read(path).unwrap()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn other_files_are_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    assert!(matches!(History::open(&path), Err(OpenError::Missing(_))));
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine(x); PRAGMA user_version = 7").unwrap();
    set_mode(&path, 0o600);
    assert!(matches!(open(&path), Err(OpenError::NotAJournal(_))));
    std::fs::write(&path, "not a database, and long enough to be looked at as one").unwrap();
    assert!(matches!(open(&path), Err(OpenError::NotAJournal(_))));
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("not a database"));
}

#[tokio::test]
async fn readable_journals_are_refused_and_sidecars_made_private() {
    let (_folder, path, journal) = new_journal();
    run(&journal, &another()).await;
    for file in ["journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock"] {
        assert_eq!(mode(&path.with_file_name(file)), 0o600, "{file}");
    }
    close(journal, &path);
    for wide in [0o644, 0o640, 0o660, 0o602, 0o700] {
        set_mode(&path, wide);
        let refused = open(&path).map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::Mode { mode, .. } if mode == wide), "{refused}");
        let said = refused.to_string();
        assert!(said.contains("chmod 600") && said.contains(&format!("mode {wide:04o}")), "{said}");
        assert!(prune(&path, NOW, NOW).is_err());
    }
    set_mode(&path, 0o600);
    // Otherwise the log that is overwritten here could still have the records.
    drop(bytes_without_log(&path));
    // The files that a crash left.
    for file in ["journal.db-wal", "journal.db-shm"] {
        let file = path.with_file_name(file);
        std::fs::write(&file, "").unwrap();
        set_mode(&file, 0o644);
    }
    set_mode(&path.with_file_name("journal.db.lock"), 0o644);
    let journal = open_journal(&path).0;
    run(&journal, &another()).await;
    for file in ["journal.db-wal", "journal.db-shm", "journal.db.lock"] {
        assert_eq!(mode(&path.with_file_name(file)), 0o600, "{file}");
    }
}

/// Changes a record.
fn damage(path: &Path) {
    Connection::open(path).unwrap().execute_batch("UPDATE records SET at = at + 1 WHERE number = 2").unwrap();
}

/// A change to the files of a journal.
type Vanish = fn(&Path);

/// A log alone is a sign of a journal as well, as an empty file or a marker is.
#[tokio::test]
async fn a_journal_of_which_only_its_log_is_left_is_not_recreated() {
    let (folder, path, journal) = new_journal();
    run(&journal, &another()).await;
    close(journal, &path);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_file_name("journal.db.lock")).unwrap();
    let log = path.with_file_name("journal.db-wal");
    std::fs::write(&log, "what SQLite had not yet put into it").unwrap();
    assert!(matches!(open(&path), Err(OpenError::Vanished { .. })));
    init(&path).unwrap();
    assert!(!log.exists(), "it would be put into the new one");
    assert!(matches!(init(&path), Err(OpenError::Exists(_))));
    assert_eq!(open_journal(&path).0.head(), Head::START);
    assert!(folder.path().join("journal.db-wal.lost-1").exists());
}

#[tokio::test]
async fn a_journal_has_one_log_whatever_its_name() {
    let (folder, path, journal) = new_journal();
    run(&journal, &another()).await;
    close(journal, &path);
    let link = folder.path().join("linked.db");
    symlink(&path, &link).unwrap();
    let journal = open_journal(&link).0;
    assert!(!folder.path().join("linked.db-wal").exists());
    run(&journal, &another()).await;
    close(journal, &path);
}

#[tokio::test]
async fn replaced_files_break_the_journal() {
    let vanishes: [(&str, Vanish, &str); 8] = [
        ("removed", |path| std::fs::remove_file(path).unwrap(), "removed"),
        ("moved away", |path| std::fs::rename(path, path.with_file_name("other")).unwrap(), "removed"),
        (
            "its folder renamed",
            |path| {
                let folder = path.parent().unwrap();
                std::fs::rename(folder, folder.with_file_name("renamed")).unwrap();
            },
            "renamed",
        ),
        (
            "replaced",
            |path| {
                let copy = path.with_file_name("copy");
                std::fs::copy(path, &copy).unwrap();
                std::fs::rename(&copy, path).unwrap();
            },
            "another file",
        ),
        (
            "cut short",
            |path| {
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            },
            "cut short",
        ),
        ("linked", |path| std::fs::hard_link(path, path.with_file_name("second")).unwrap(), "names"),
        (
            "its log removed",
            |path| std::fs::remove_file(path.with_file_name("journal.db-wal")).unwrap(),
            "-wal",
        ),
        (
            "its log replaced",
            |path| {
                let log = path.with_file_name("journal.db-wal");
                std::fs::copy(&log, path.with_file_name("copy")).unwrap();
                std::fs::rename(path.with_file_name("copy"), log).unwrap();
            },
            "-wal",
        ),
    ];
    for (how, vanish, says) in vanishes {
        for writes in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state/journal.db");
            let journal = open(&path).unwrap().0;
            run(&journal, &another()).await;
            vanish(&path);
            if writes {
                let call = another();
                let _may_be_broken_already = journal.claims.claim(&call, LATER, None);
                let began = start_claimed(&journal, &call, None, None).await;
                assert!(matches!(began, Err(JournalError::Broken(_))), "{how}: {began:?}");
            }
            // The files are checked once a second, without any call.
            let broken =
                tokio::time::timeout(std::time::Duration::from_secs(20), journal.wait_until_broken()).await;
            let broken = broken.unwrap_or_else(|_| panic!("{how}, {writes}: nothing was noticed"));
            assert!(broken.to_string().contains(says), "{how}, {writes}: {broken}");
            assert!(matches!(journal.condition(), Condition::Broken(_)));
        }
    }
}

/// An older copy, or one without its log, in the place of a journal that has more records.
#[tokio::test]
async fn journals_behind_their_marker_are_refused() {
    let (_folder, path, journal) = new_journal();
    run(&journal, &another()).await;
    close(journal, &path);
    let older = bytes_without_log(&path);
    let journal = open_journal(&path).0;
    run(&journal, &another()).await;
    close(journal, &path);
    bytes_without_log(&path);
    std::fs::write(&path, &older).unwrap();
    let refused = open(&path).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Behind { .. }), "{refused}");
    assert!(matches!(verify_journal(&path, None), Finding::Cut { .. }));
    // With the operator's permission, a power cut may cause this; there was none here.
    let options = JournalOptions { durability: Durability::ProcessCrash, ..JournalOptions::default() };
    assert!(matches!(Journal::open(&path, 100, options.clone(), NOW), Err(OpenError::Behind { .. })));
    let marker = path.with_file_name("journal.db.lock");
    let marked = files::read_marker(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&marker).unwrap();
    file.set_len(0).unwrap();
    files::write_marker(&file, marked.number, &marked.hash, "another start of the kernel").unwrap();
    assert!(matches!(open(&path), Err(OpenError::Behind { .. })));
    drop(Journal::open(&path, 100, options, NOW).unwrap());
    assert_eq!(open_journal(&path).0.head().number, 1);
}

/// The files that a power failure may leave of a journal whose data was last synced when it was `data`. The marker is
/// not synced, so any state of it may be left.
fn after_power_failure(path: &Path, data: &[Vec<u8>; 2]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("journal.db");
    let marker = std::fs::read(path.with_file_name("journal.db.lock")).unwrap();
    let [records, log] = files::data_files(&left);
    for (file, content) in
        [(&records, &data[0]), (&log, &data[1]), (&left.with_file_name("journal.db.lock"), &marker)]
    {
        std::fs::write(file, content).unwrap();
        set_mode(file, 0o600);
    }
    (folder, left)
}

#[tokio::test]
async fn a_power_failure_loses_only_starts_of_runs_without_effects() {
    for (effects, synced_starts, may_be_lost) in [
        (RunEffects::None, SyncedStarts::WithEffects, true),
        (RunEffects::None, SyncedStarts::All, false),
        (RunEffects::Possible, SyncedStarts::WithEffects, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        let options = JournalOptions { synced_starts, ..JournalOptions::default() };
        let journal = Journal::open(&path, 100, options, NOW).unwrap().0;
        run(&journal, &another()).await;
        let synced = files::data_files(&path).map(|file| std::fs::read(file).unwrap());
        let call = another();
        let lost = receipt(&call, End::Aborted(AbortReason::Lost));
        assert!(matches!(journal.claims.claim(&call, LATER, None), Ok(ClaimResult::New)));
        let request = StartRequest {
            call: &call,
            keep_until: LATER,
            proof: None,
            fallback_receipt: &lost,
            task: None,
            effects,
        };
        assert!(matches!(journal.claims.start(request, NOW).await, Ok(StartResult::New)));
        let case = format!("{effects:?}, {synced_starts:?}");
        let (_folder, left) = after_power_failure(&path, &synced);
        match open(&left) {
            Ok((left, _)) => {
                assert!(may_be_lost, "{case}");
                assert!(left.claims.find(&call, None).await.unwrap().is_none(), "{case}");
            }
            Err(refused) => {
                assert!(!may_be_lost, "{case}: {refused}");
                assert!(matches!(refused, OpenError::Behind { .. }), "{case}: {refused}");
            }
        }
        // Its end is synced in any case, and a killed process loses neither.
        let receipt = Arc::new(receipt(&call, End::ResultNotJson));
        journal.claims.finish(receipt, None, Reporting::Here, NOW).await.unwrap();
        let (_folder, left) = after_power_failure(&path, &synced);
        assert!(matches!(open(&left), Err(OpenError::Behind { .. })), "{case}");
        close(journal, &path);
        assert_eq!(open_journal(&path).0.head().number, 2, "{case}");
    }
}

#[tokio::test]
async fn a_sync_covers_starts_that_were_not_synced() {
    let (_folder, path, journal) = new_journal();
    let log = || std::fs::read(&files::data_files(&path)[1]).unwrap();
    let marked = || files::read_marker(&path).unwrap().number;
    let call = another();
    let fallback_receipt = &receipt(&call, End::Aborted(AbortReason::Lost));
    let effects = RunEffects::None;
    assert!(matches!(journal.claims.claim(&call, LATER, None), Ok(ClaimResult::New)));
    let request =
        StartRequest { call: &call, keep_until: LATER, proof: None, fallback_receipt, task: None, effects };
    assert!(matches!(journal.claims.start(request, NOW).await, Ok(StartResult::New)));
    let written = log();
    journal.flush().await.unwrap();
    assert_eq!((marked(), log() == written), (0, true), "a flush waits only for the writer");
    journal.sync().await.unwrap();
    // SQLite syncs its log only if it writes to it.
    assert_eq!((marked(), log() == written), (1, false), "the start is on the disk");
}

/// What killed processes left goes with the next start and the next command, but not what a process writes.
#[tokio::test]
async fn copies_of_killed_processes_are_swept() {
    let (folder, path, journal) = new_journal();
    let elsewhere = tempfile::tempdir().unwrap();
    let leave = |process: u32| {
        let part = elsewhere.path().join(format!("{process}.db.part"));
        std::os::unix::fs::symlink(&part, folder.path().join(format!("journal.db.copy-{process}"))).unwrap();
        let draft = folder.path().join(format!("journal.db.draft-{process}"));
        for file in [&part, &draft, &draft.with_file_name(format!("journal.db.draft-{process}-journal"))] {
            std::fs::write(file, "a whole journal").unwrap();
        }
        (part, draft)
    };
    let left = || {
        let files = [folder.path(), elsewhere.path()].map(|folder| std::fs::read_dir(folder).unwrap());
        let names = files.into_iter().flatten().map(|file| file.unwrap().file_name().into_string().unwrap());
        let is_copy = |name: &String| [".draft-", ".copy-", ".part"].iter().any(|kind| name.contains(kind));
        names.filter(is_copy).collect::<Vec<_>>()
    };
    leave(4_194_301);
    sweep(&path);
    assert!(left().is_empty(), "{:?}", left());
    close(journal, &path);
    leave(4_194_302);
    let journal = open_journal(&path).0;
    assert!(left().is_empty(), "{:?}", left());
    leave(4_194_303);
    let backup = elsewhere.path().join("backup.db");
    back_up(&path, &backup).unwrap();
    std::fs::remove_file(&backup).unwrap();
    assert!(left().is_empty(), "{:?}", left());
    let (part, draft) = leave(4_194_304);
    let locked = [&part, &draft].map(|file| {
        let file = std::fs::File::open(file).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    });
    sweep(&path);
    assert!(part.exists() && draft.exists(), "another process writes them");
    drop(locked);
    sweep(&path);
    assert!(left().is_empty(), "{:?}", left());
    drop(journal);
}

#[tokio::test]
async fn backups_are_checked_private_and_restorable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let backup = folder.path().join("backup.db");
    let journal = open(&path).unwrap().0;
    let first = another();
    let second = another();
    run(&journal, &first).await;
    // The journal is in use meanwhile.
    let copied = back_up(&path, &backup).unwrap();
    assert!(matches!(copied.finding, Finding::Holds { receipts: 1, .. }), "{}", copied.finding);
    assert_eq!((mode(&backup), copied.bytes), (0o600, backup.metadata().unwrap().len()));
    assert!(matches!(back_up(&path, &backup), Err(CopyError::Exists(_))));
    run(&journal, &second).await;
    assert!(matches!(restore(&backup, &path, true), Err(CopyError::Open(OpenError::InUse(_)))));
    close(journal, &path);
    assert!(matches!(restore(&backup, &path, false), Err(CopyError::Journal(_))));
    let restored = restore(&backup, &path, true).unwrap();
    let kept = restored.previous.unwrap();
    let found = verify_journal(&kept, None);
    assert!(matches!(found, Finding::Holds { receipts: 2, .. }), "{found}");
    let journal = open_journal(&path).0;
    assert_eq!((journal.head().number, mode(&path)), (1, 0o600));
    assert!(
        journal.claims.find(&first, None).await.unwrap().is_some()
            && journal.claims.find(&second, None).await.unwrap().is_none()
    );
    close(journal, &path);
    // A damaged backup changes nothing.
    damage(&backup);
    assert!(matches!(restore(&backup, &path, true), Err(CopyError::Damaged { .. })));
    assert!(holds(&path));
    // No backup is made of a damaged journal.
    let bad = folder.path().join("bad.db");
    damage(&path);
    assert!(matches!(back_up(&path, &bad), Err(CopyError::Damaged { .. })));
    assert!(!bad.exists());
    let left = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left = left.filter(|name| name.contains("part") || name.contains("draft")).collect::<Vec<_>>();
    assert!(left.is_empty(), "{left:?}");
}
