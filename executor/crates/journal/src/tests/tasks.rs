//! Stored tasks.

use super::*;
use crate::prune;
use crate::store::Reader;
use crate::tasks::{MAX_TASK_BYTES, MAX_TASKS};
use a2g_types::clock::{Clock as _, SystemClock};

pub(super) fn task(owner: &str, created: OffsetDateTime, is_ended: bool, document: &str) -> JournalTask {
    JournalTask {
        task: IntentId::random(),
        owner: AgentDid::parse(owner).unwrap(),
        context: "c".to_owned(),
        created,
        ended: is_ended.then_some(created),
        status: format!("{{{document}}}").chars().take(9).collect(),
        document: document.to_owned(),
    }
}

/// Gives a task an id for which `should_prune` is true: its end looks for tasks to drop.
fn with_pruning_id(task: JournalTask) -> JournalTask {
    let mut id = *task.task.as_bytes();
    id[15] &= 0xf0;
    JournalTask { task: IntentId::from_bytes(id), ..task }
}

fn summarize(task: &JournalTask) -> TaskSummary {
    let JournalTask { task, context, created, status, .. } = task.clone();
    TaskSummary { task, context, created, status }
}

async fn store(journal: &Journal, task: &JournalTask) {
    journal.tasks.store(task.clone(), RetryPolicy::Retry).await.unwrap();
}

async fn look_up(journal: &Journal, task: IntentId) -> Option<JournalTask> {
    journal.tasks.find(task, JournalTask::clone).await.unwrap()
}

#[tokio::test]
async fn latest_task_is_found_by_owner_and_conversation() {
    let (_folder, path, journal) = new_journal();
    let first = task("did:a:b", NOW, false, "1");
    let other = JournalTask { context: "d".to_owned(), ..task("did:a:b", LATER, false, "2") };
    let theirs = task("did:x:y", NOW, true, "3");
    // Written in one order, and awaited in the reverse order.
    let kept = [&first, &other, &theirs].map(|task| journal.tasks.store(task.clone(), RetryPolicy::Retry));
    let ended = JournalTask { ended: Some(LATER), document: "ended".to_owned(), ..first.clone() };
    store(&journal, &ended).await;
    for kept in kept {
        kept.await.unwrap();
    }
    drop(journal);
    let journal = open_journal(&path).0;
    assert_eq!(look_up(&journal, first.task).await, Some(ended.clone()));
    assert_eq!(look_up(&journal, IntentId::random()).await, None);
    let open = [(other.task, other.owner.clone())];
    assert_eq!(journal.tasks.list_open().await.unwrap(), open);
    let of = async |query: TaskQuery| journal.tasks.list(query).await.unwrap();
    let mine = TaskQuery { owner: Some(first.owner.clone()), limit: 10, ..TaskQuery::default() };
    assert_eq!(of(mine.clone()).await, (vec![summarize(&other), summarize(&ended)], 2));
    let after = Some(summarize(&other).key());
    assert_eq!(of(TaskQuery { after, ..mine.clone() }).await, (vec![summarize(&ended)], 2));
    let context = Some("d".to_owned());
    assert_eq!(of(TaskQuery { context, ..mine.clone() }).await, (vec![summarize(&other)], 1));
    assert_eq!(of(TaskQuery { owner: None, ..mine }).await.1, 3);
    drop(journal);
    // A task that ended before is removed, and an open one stays.
    assert_eq!(prune(&path, NOW + Duration::SECOND, NOW).unwrap().tasks, 1);
    assert_eq!(prune(&path, LATER + Duration::DAY, NOW).unwrap().tasks, 1);
    assert_eq!(open_journal(&path).0.tasks.list_open().await.unwrap(), open);
}

#[tokio::test]
async fn excess_ended_tasks_are_dropped_per_owner() {
    let (_folder, _path, journal) = new_journal();
    let open = task("did:a:b", NOW - Duration::DAY, false, "");
    let theirs = task("did:x:y", NOW - Duration::DAY, true, "");
    let mine = (0..MAX_TASKS + 9).map(|n| task("did:a:b", NOW + Duration::seconds(n), true, ""));
    let mine = mine.chain([with_pruning_id(task("did:a:b", NOW + Duration::DAY, true, ""))]);
    let all = [open.clone(), theirs.clone()].into_iter().chain(mine).collect::<Vec<_>>();
    let kept =
        all.iter().map(|task| journal.tasks.store(task.clone(), RetryPolicy::Retry)).collect::<Vec<_>>();
    for kept in kept {
        kept.await.unwrap();
    }
    let of = async |owner: &AgentDid| {
        let query = TaskQuery { owner: Some(owner.clone()), limit: 1, ..TaskQuery::default() };
        journal.tasks.list(query).await.unwrap().1
    };
    let left = of(&open.owner).await;
    assert_eq!(left, u64::try_from(MAX_TASKS).unwrap() + 1);
    assert!(look_up(&journal, open.task).await.is_some() && look_up(&journal, theirs.task).await.is_some());
    assert_eq!(look_up(&journal, all[2].task).await, None, "the oldest");
    // The size of the documents is limited as well.
    let large = "x".repeat(usize::try_from(MAX_TASK_BYTES).unwrap() / 2 + 1);
    for n in 0..2 {
        let task = with_pruning_id(task("did:x:y", NOW + Duration::seconds(n), true, &large));
        store(&journal, &task).await;
    }
    assert_eq!(of(&theirs.owner).await, 1);
}

#[tokio::test]
async fn stored_tasks_override_the_task_of_the_start() {
    let (_folder, path, journal) = new_journal();
    for (call, is_written) in [(another(), false), (another(), true)] {
        let first = JournalTask { task: call.intent, ..task("did:a:b", NOW, false, "will") };
        assert!(matches!(journal.claims.claim(&call, LATER, None).unwrap(), ClaimResult::New));
        start_claimed(&journal, &call, None, Some(&first)).await.unwrap();
        if is_written {
            let newer = JournalTask { document: "newer".to_owned(), ..first };
            store(&journal, &newer).await;
        }
    }
    drop(journal);
    let journal = open_journal(&path).0;
    let (listed, _) = journal.tasks.list(TaskQuery { limit: 9, ..TaskQuery::default() }).await.unwrap();
    let mut documents = Vec::new();
    for one in listed {
        documents.push(look_up(&journal, one.task).await.unwrap().document);
    }
    documents.sort();
    assert_eq!(documents, ["newer", "will"]);
}

/// Pages of `owner_tasks` and of the merge of owners: each task once, in one order, whatever is added between two
/// pages.
#[tokio::test]
async fn task_pages_are_complete_under_concurrent_writes() {
    let (_folder, _path, journal) = new_journal();
    let owners = ["did:a:b", "did:a:c", "did:x:y"];
    // Seven tasks of each moment, so that pages end between tasks that were made at the same time.
    let of_moment =
        |n: i64| task(owners[usize::try_from(n % 3).unwrap()], NOW + Duration::seconds(n / 7), true, "");
    let mut all = Vec::new();
    for n in 0..60 {
        all.push(of_moment(n));
        store(&journal, &all[all.len() - 1]).await;
    }
    let unsaved = (0..9).map(|n| summarize(&of_moment(n * 6))).collect::<Vec<_>>();
    let known = unsaved.iter().cloned().chain(all.iter().map(summarize)).collect::<Vec<_>>();
    for (owner, limit) in [(None, 1), (None, 4), (None, 100), (Some(owners[1]), 3)] {
        let owner = owner.map(|owner| AgentDid::parse(owner).unwrap());
        let is_meant = |listed: &&TaskSummary| {
            owner.is_none()
                || all.iter().any(|kept| kept.task == listed.task && Some(&kept.owner) == owner.as_ref())
        };
        let mut expected = known.iter().filter(is_meant).map(TaskSummary::key).collect::<Vec<_>>();
        expected.sort_unstable_by(|a, b| b.cmp(a));
        // The tasks in memory are of the selected owner; a task that the journal has as well counts once.
        let in_memory =
            if owner.is_none() { [unsaved.clone(), vec![summarize(&all[30])]].concat() } else { Vec::new() };
        let mut query = TaskQuery { owner, limit, unsaved: in_memory, ..TaskQuery::default() };
        let mut seen = Vec::new();
        loop {
            let (page, total) = journal.tasks.list(query.clone()).await.unwrap();
            assert!(total >= expected.len() as u64 && page.len() <= limit);
            let Some(last) = page.last() else { break };
            query.after = Some(last.key());
            seen.extend(page.iter().map(TaskSummary::key));
            store(&journal, &task(owners[1], LATER + Duration::DAY, true, "")).await;
        }
        // Tasks that were added while an earlier list was read are newer than all of this one.
        seen.retain(|key| key.created <= LATER);
        assert_eq!(seen, expected);
    }
}

/// A list is answered on a thread of its own, so that a look-up does not wait for it; a list too many is refused.
#[tokio::test]
async fn look_ups_wait_for_no_list_and_full_queues_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(open_journal(&folder.path().join("journal.db")).0);
    let one = task("did:a:b", NOW, true, "1");
    store(&journal, &one).await;
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    // A list that blocks the opening of the gate ends by itself, and the test fails.
    let end = SystemClock.monotonic() + std::time::Duration::from_secs(120);
    let (start, mut started) = tokio::sync::mpsc::unbounded_channel();
    let list = || {
        let journal = Arc::clone(&journal);
        let gate = Arc::clone(&gate);
        let start = start.clone();
        let wait = move |_: &Reader| {
            start.send(()).unwrap();
            let left = end.saturating_duration_since(SystemClock.monotonic());
            let _opened = gate.lock().recv_timeout(left);
            Ok(())
        };
        async move { journal.backend.read_long(IfFull::Refuse, wait).await }
    };
    let mut lists = tokio::task::JoinSet::new();
    // A thread that takes its first list later than this would make room in a queue that was full.
    for _ in 0..readers::READERS {
        lists.spawn(list());
        started.recv().await.unwrap();
    }
    for _ in 0..=readers::MAX_QUEUED {
        lists.spawn(list());
    }
    assert!(matches!(lists.join_next().await.unwrap().unwrap(), Err(JournalError::Busy)));
    assert_eq!(look_up(&journal, one.task).await, Some(one.clone()));
    assert!(matches!(journal.tasks.list(TaskQuery::default()).await, Err(JournalError::Busy)));
    drop(open);
    while lists.join_next().await.is_some() {}
    assert_eq!(journal.tasks.list(TaskQuery::default()).await.unwrap().1, 1);
}
