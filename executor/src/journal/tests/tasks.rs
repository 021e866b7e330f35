//! The tasks of the A2A door.

use super::*;
use crate::journal::prune;

pub(super) fn task(owner: &str, created: OffsetDateTime, over: bool, document: &str) -> KeptTask {
    KeptTask {
        task: IntentId::random(),
        owner: AgentDid::parse(owner).unwrap(),
        context: "c".to_owned(),
        created,
        over: over.then_some(created),
        status: format!("{{{document}}}").chars().take(9).collect(),
        document: document.to_owned(),
    }
}

/// With an id whose end looks for what has to go.
fn looking(task: KeptTask) -> KeptTask {
    let mut id = *task.task.as_bytes();
    id[15] &= 0xf0;
    KeptTask { task: IntentId::from_bytes(id), ..task }
}

fn in_list(task: &KeptTask) -> ListedTask {
    let KeptTask { task, context, created, status, .. } = task.clone();
    ListedTask { task, context, created, status }
}

#[tokio::test]
async fn a_task_is_kept_as_it_was_said_last_and_found_by_owner_and_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    let first = task("did:a:b", NOW, false, "1");
    let other = KeptTask { context: "d".to_owned(), ..task("did:a:b", LATER, false, "2") };
    let theirs = task("did:x:y", NOW, true, "3");
    // Said one after the other, and waited for the other way round.
    let kept = [&first, &other, &theirs].map(|task| journal.keep_task(task.clone(), Pace::AtOnce));
    let ended = KeptTask { over: Some(LATER), document: "ended".to_owned(), ..first.clone() };
    journal.keep_task(ended.clone(), Pace::AtOnce).await.unwrap();
    for kept in kept {
        kept.await.unwrap();
    }
    drop(journal);
    let journal = opened(&path).0;
    assert_eq!(journal.task(first.task).unwrap(), Some(ended.clone()));
    assert_eq!(journal.task(IntentId::random()).unwrap(), None);
    let open = [(other.task, other.owner.clone())];
    assert_eq!(journal.open_tasks().unwrap(), open);
    let of = |owner: Option<&AgentDid>, context, limit, offset| {
        journal.tasks(owner, context, limit, offset).unwrap()
    };
    assert_eq!(of(Some(&first.owner), None, 10, 0), (vec![in_list(&other), in_list(&ended)], 2));
    assert_eq!(of(Some(&first.owner), None, 1, 1), (vec![in_list(&ended)], 2));
    assert_eq!(of(Some(&first.owner), Some("d"), 10, 0), (vec![in_list(&other)], 1));
    assert_eq!(of(None, None, 10, 0).1, 3);
    drop(journal);
    // A task that ended before goes, and one that is open stays.
    assert_eq!(prune(&path, NOW + Duration::SECOND, NOW).unwrap().tasks, 1);
    assert_eq!(prune(&path, LATER + Duration::DAY, NOW).unwrap().tasks, 1);
    assert_eq!(opened(&path).0.open_tasks().unwrap(), open);
}

#[tokio::test]
async fn of_each_owner_the_latest_tasks_are_kept_and_all_that_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    let open = task("did:a:b", NOW - Duration::DAY, false, "");
    let theirs = task("did:x:y", NOW - Duration::DAY, true, "");
    let mine = (0..MAX_TASKS + 9).map(|n| task("did:a:b", NOW + Duration::seconds(n), true, ""));
    let mine = mine.chain([looking(task("did:a:b", NOW + Duration::DAY, true, ""))]);
    let all = [open.clone(), theirs.clone()].into_iter().chain(mine).collect::<Vec<_>>();
    let kept = all.iter().map(|task| journal.keep_task(task.clone(), Pace::AtOnce)).collect::<Vec<_>>();
    for kept in kept {
        kept.await.unwrap();
    }
    let (_, left) = journal.tasks(Some(&open.owner), None, 1, 0).unwrap();
    assert_eq!(left, u64::try_from(MAX_TASKS).unwrap() + 1);
    assert!(journal.task(open.task).unwrap().is_some() && journal.task(theirs.task).unwrap().is_some());
    assert_eq!(journal.task(all[2].task).unwrap(), None, "the oldest");
    // And as many as there is room for.
    let large = "x".repeat(usize::try_from(MAX_TASK_BYTES).unwrap() / 2 + 1);
    for n in 0..2 {
        let task = looking(task("did:x:y", NOW + Duration::seconds(n), true, &large));
        journal.keep_task(task, Pace::AtOnce).await.unwrap();
    }
    assert_eq!(journal.tasks(Some(&theirs.owner), None, 9, 0).unwrap().1, 1);
}

#[tokio::test]
async fn a_task_that_was_written_by_itself_is_newer_than_its_will() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    for (call, is_written) in [(another(), false), (another(), true)] {
        let will = receipt(&call, End::ResultNotJson);
        let first = KeptTask { task: call.intent, ..task("did:a:b", NOW, false, "will") };
        assert!(matches!(journal.claim(&call, LATER, None).unwrap(), Claim::New));
        let intended =
            Intended { call: &call, keep_until: LATER, proof: None, will: &will, task: Some(&first) };
        journal.started(intended, NOW).await.unwrap();
        if is_written {
            let newer = KeptTask { document: "newer".to_owned(), ..first };
            journal.keep_task(newer, Pace::AtOnce).await.unwrap();
        }
    }
    drop(journal);
    let journal = opened(&path).0;
    let (kept, _) = journal.tasks(None, None, 9, 0).unwrap();
    let kept = kept.iter().map(|one| journal.task(one.task).unwrap().unwrap().document).collect::<Vec<_>>();
    assert_eq!(kept, ["will", "newer"], "the latest first");
}
