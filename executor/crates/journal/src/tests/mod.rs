//! The journal through its interface, and every kind of damage to its file.

mod arguments;
mod damage;
mod decisions;
mod fleet;
mod formats;
mod past;
mod pruning;
mod rows;
mod run_record;
mod searches;
mod stops;
mod storage;
mod tasks;
mod usage;

use super::history::{Filter, History};
use super::verify::Finding;
use super::*;
use a2g_types::call::Call;
use a2g_types::call::{Door, Priority};
use a2g_types::ident::{Issuer, ProofId, ToolName};
use a2g_types::limit::{Bound, Budgets, FileEffects, Layer, Limit};
use a2g_types::outcome::{AbortReason, End, Outcome, Receipt, RunMetrics, RunOutput, Usage};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::verdict::{Decision, Manifest, Rationale, Verdict};
use rusqlite::Connection;
use time::Duration;

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-21 12:00 UTC);
const LATER: OffsetDateTime = time::macros::datetime!(2026-11-21 12:05 UTC);

fn call(arguments: &str) -> Call {
    Call {
        caller_timeout: None,
        priority: Priority::Normal,
        door: Door::A2g,
        agent: AgentDid::parse("did:a:b").unwrap(),
        intent: IntentId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap(),
        is_new: false,
        charge: a2g_types::memory::Charge::default(),
        parent: None,
        caller_tools: None,
        session: None,
        tool: ToolName::parse("t").unwrap(),
        arguments: serde_json::from_str(arguments).unwrap(),
        context: None,
    }
}

/// A call with a new intent.
fn another() -> Call {
    Call { intent: IntentId::random(), ..call("{}") }
}

fn receipt(call: &Call, end: End) -> Receipt {
    fn bound<T>(value: T) -> Bound<T> {
        Bound { value, layer: Layer::Executor }
    }
    let amounts = [(Limit::Written, 1 << 20), (Limit::Handles, 32)];
    let counts = [Limit::Created, Limit::Subscriptions, Limit::RandomBytes, Limit::DirectoryEntries];
    let amounts = amounts.into_iter().chain(counts.map(|limit| (limit, 1)));
    let budgets = amounts.fold(Budgets::default(), |budgets, (limit, amount)| budgets.with(limit, amount));
    let usage = Usage {
        memory: bound(MemoryLimit::from_mb(1).unwrap()),
        cpu: bound(CpuPercent::new(100).unwrap()),
        timeout: bound(Timeout::from_seconds(1).unwrap()),
        output: bound(OutputLimit::from_bytes(1).unwrap()),
        filesystem: Vec::new(),
        blocked: Vec::new(),
        missing_roots: Vec::new(),
        filesystem_emptied_by: None,
        effects: Bound { value: FileEffects::Direct, layer: Layer::Executor },
        budgets,
        spent: None,
        network: bound(false),
        network_used: None,
        denied: Vec::new(),
        denied_truncated: false,
        changes: None,
        start_memory_bytes: None,
    };
    let outcome = Outcome { end, output: RunOutput::default(), metrics: RunMetrics::default(), usage };
    Receipt {
        agent: call.agent.clone(),
        intent: call.intent,
        tool: call.tool.clone(),
        door: call.door,
        approved_by: None,
        durability: Durability::PowerLoss,
        parent: None,
        calls: None,
        signature: None,
        session: None,
        rationale: Rationale::default(),
        outcome,
    }
}

fn open(path: &Path) -> Result<(Journal, RecoverySummary), OpenError> {
    open_limited(path, JournalLimits::default())
}

fn open_limited(path: &Path, limits: JournalLimits) -> Result<(Journal, RecoverySummary), OpenError> {
    Journal::open(path, 100, JournalOptions { limits, ..JournalOptions::default() }, NOW)
}

/// Asks again until there is an answer: the writer of a dropped journal ends shortly after the drop.
fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..500 {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the journal stays in use");
}

fn open_journal(path: &Path) -> (Journal, RecoverySummary) {
    eventually(|| match open(path) {
        Err(OpenError::InUse(_)) => None,
        opened => Some(opened.unwrap()),
    })
}

/// An open journal in a folder of its own.
fn new_journal() -> (tempfile::TempDir, PathBuf, Journal) {
    new_limited_journal(JournalLimits::default())
}

fn new_limited_journal(limits: JournalLimits) -> (tempfile::TempDir, PathBuf, Journal) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = open_limited(&path, limits).unwrap().0;
    (folder, path, journal)
}

/// Marks the next `count` reports as delivered to the governor.
async fn deliver(journal: &Journal, count: usize) {
    for _ in 0..count {
        let (due, _) = journal.deliveries.next_report().await.unwrap();
        journal.deliveries.mark_delivered(&due);
    }
    journal.flush().await.unwrap();
}

/// Waits until the writer of a dropped journal has released the file. It does not open the journal,
/// because that would abort the open runs.
fn wait_for_the_writer(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    eventually(|| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok());
}

async fn start(journal: &Journal, call: &Call, proof: Option<&ProofId>) -> StartResult {
    assert!(matches!(journal.claims.claim(call, LATER, None), Ok(ClaimResult::New)));
    start_claimed(journal, call, proof, None).await.unwrap()
}

async fn start_claimed(
    journal: &Journal,
    call: &Call,
    proof: Option<&ProofId>,
    task: Option<&JournalTask>,
) -> Result<StartResult, JournalError> {
    let fallback_receipt = &receipt(call, End::Aborted(AbortReason::Lost));
    let effects = RunEffects::Possible;
    let request = StartRequest { call, keep_until: LATER, proof, fallback_receipt, task, effects };
    journal.claims.start(request, NOW).await
}

async fn run(journal: &Journal, call: &Call) -> Arc<Receipt> {
    assert!(matches!(start(journal, call, None).await, StartResult::New));
    let receipt = Arc::new(receipt(call, End::Returned(serde_json::json!({ "n": 1.5e-7 }).into())));
    journal.claims.finish(Arc::clone(&receipt), None, Reporting::Here, NOW).await.unwrap();
    receipt
}

#[test]
fn content_hash_ignores_key_order_but_not_values() {
    assert_eq!(
        claims::content_hash(&call(r#"{"a":1,"b":[2]}"#)),
        claims::content_hash(&call(r#"{"b":[2],"a":1}"#))
    );
    assert_ne!(claims::content_hash(&call(r#"{"a":1}"#)), claims::content_hash(&call(r#"{"a":"1"}"#)));
    assert_ne!(claims::content_hash(&call(r#"{"a":["b"]}"#)), claims::content_hash(&call(r#"{"a":"b"}"#)));
}

#[tokio::test]
async fn intents_are_claimed_and_started_once() {
    let (_folder, _path, journal) = new_journal();
    let this = call(r#"{"a":1}"#);
    let other = call(r#"{"a":2}"#);
    assert!(journal.claims.find(&this, None).await.unwrap().is_none());
    assert!(matches!(journal.claims.claim(&this, LATER, None), Ok(ClaimResult::New)));
    assert!(matches!(
        journal.claims.claim(&this, LATER, None),
        Ok(ClaimResult::Known(KnownIntent::Same(..)))
    ));
    assert!(matches!(
        journal.claims.claim(&other, LATER, None),
        Ok(ClaimResult::Known(KnownIntent::Conflict))
    ));
    journal.claims.release(this.intent).await.unwrap();
    let receipt = run(&journal, &this).await;
    assert!(matches!(journal.claims.find(&other, None).await, Ok(Some(KnownIntent::Conflict))));
    let found = journal.claims.find(&this, None).await.unwrap();
    let Some(KnownIntent::Same(StageSource::Final(Stage::Finished(found)), None)) = found else {
        panic!("{found:?}")
    };
    assert_eq!(found, receipt);
    // A start after a look-up that preceded the other run's end is stopped by the records on the disk.
    let began = start(&journal, &this, None).await;
    assert!(
        matches!(began, StartResult::Known(KnownIntent::Same(StageSource::Final(Stage::Finished(_)), _))),
        "{began:?}"
    );
    assert_eq!(journal.head().number, 1);
}

#[tokio::test]
async fn proofs_are_single_use_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let first = another();
    let second = another();
    let id = |issuer: &str| ProofId::parse(Issuer::parse(issuer).unwrap(), "1").unwrap();
    let proof = id("a");
    let other = id("b");
    let journal = open_journal(&path).0;
    assert!(matches!(start(&journal, &first, Some(&proof)).await, StartResult::New));
    assert!(matches!(start(&journal, &second, Some(&proof)).await, StartResult::Replayed));
    drop(journal);
    let journal = open_journal(&path).0;
    assert!(matches!(start(&journal, &second, Some(&proof)).await, StartResult::Replayed));
    assert!(matches!(start(&journal, &second, Some(&other)).await, StartResult::New));
}

#[tokio::test]
async fn interrupted_runs_are_aborted_on_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/journal.db");
    let done = another();
    let lost = another();
    let released = another();
    let verdict = Arc::new(Verdict {
        decision: Decision::Approved,
        intent: done.intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: Some(LATER),
        reason: Some("because".to_owned()),
        rationale: Rationale::default(),
    });
    {
        let (journal, recovered) = open_journal(&path);
        assert_eq!(recovered, RecoverySummary { aborted: 0, undelivered: 0 });
        assert!(matches!(
            journal.claims.claim(&done, LATER, Some(Arc::clone(&verdict))),
            Ok(ClaimResult::New)
        ));
        journal.claims.release(done.intent).await.unwrap();
        assert!(matches!(
            journal.claims.claim(&done, LATER, Some(Arc::clone(&verdict))),
            Ok(ClaimResult::New)
        ));
        assert!(matches!(start_claimed(&journal, &done, None, None).await, Ok(StartResult::New)));
        journal
            .claims
            .finish(Arc::new(receipt(&done, End::ResultNotJson)), None, Reporting::Here, NOW)
            .await
            .unwrap();
        assert!(matches!(start(&journal, &lost, None).await, StartResult::New));
        assert!(matches!(start(&journal, &released, None).await, StartResult::New));
        journal.claims.release(released.intent).await.unwrap();
        assert!(matches!(Journal::open(&path, 1, JournalOptions::default(), NOW), Err(OpenError::InUse(_))));
    }
    let (journal, recovered) = open_journal(&path);
    assert_eq!(recovered, RecoverySummary { aborted: 1, undelivered: 2 });
    assert!(journal.claims.find(&released, None).await.unwrap().is_none());
    let Some(KnownIntent::Same(_, Some(found))) = journal.claims.find(&done, None).await.unwrap() else {
        panic!()
    };
    assert_eq!(found, verdict);
    let stage = journal.claims.stage(lost.intent, IfFull::Wait).await.unwrap();
    let Some((_, Stage::Finished(aborted))) = stage else { panic!() };
    assert_eq!(aborted.outcome.end, End::Aborted(AbortReason::Lost));
    let (first, receipt) = journal.deliveries.next_report().await.unwrap();
    assert_eq!(receipt.intent, done.intent);
    journal.deliveries.mark_delivered(&first);
    assert_eq!(journal.deliveries.next_report().await.unwrap().1.intent, lost.intent);
    journal.flush().await.unwrap();
    drop(journal);
    assert_eq!(open_journal(&path).1, RecoverySummary { aborted: 0, undelivered: 1 });
}

#[tokio::test]
async fn claims_are_refused_at_the_report_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) =
        Journal::open(&folder.path().join("journal.db"), 2, JournalOptions::default(), NOW).unwrap();
    run(&journal, &another()).await;
    let open = another();
    assert!(matches!(journal.claims.claim(&open, LATER, None), Ok(ClaimResult::New)));
    assert!(matches!(journal.claims.claim(&another(), LATER, None), Err(JournalError::Backlog)));
    let (due, _) = journal.deliveries.next_report().await.unwrap();
    journal.deliveries.mark_delivered(&due);
    assert!(matches!(journal.claims.claim(&another(), LATER, None), Ok(ClaimResult::New)));
}

#[tokio::test]
async fn claims_are_refused_when_an_agent_has_used_up_its_share() {
    let limits = JournalLimits { max_bytes_per_agent_hour: 4 << 10, ..JournalLimits::default() };
    let (_folder, _path, journal) = new_limited_journal(limits);
    for _ in 0..2 {
        run(&journal, &another()).await;
    }
    let refused = journal.claims.claim(&another(), LATER, None);
    let Err(JournalError::Share { retry_after, .. }) = &refused else { panic!("{refused:?}") };
    assert!(*retry_after < std::time::Duration::from_secs(3600), "{retry_after:?}");
    let task = tasks::task("did:a:b", NOW, false, "1");
    let stored = journal.tasks.store(task.clone(), RetryPolicy::FailFast).await;
    assert!(matches!(stored, Err(JournalError::Share { .. })), "{stored:?}");
    assert!(journal.tasks.store(task, RetryPolicy::Retry).await.is_ok(), "it has begun");
    let other = Call { agent: AgentDid::parse("did:a:c").unwrap(), ..another() };
    assert!(matches!(journal.claims.claim(&other, LATER, None), Ok(ClaimResult::New)));
}

/// Makes a journal of ten receipts whose reports are not delivered.
async fn ten(path: &Path) -> (Vec<Call>, Head) {
    let journal = open_journal(path).0;
    let calls = (0..10).map(|_| another()).collect::<Vec<_>>();
    for call in &calls {
        run(&journal, call).await;
    }
    (calls, journal.head())
}

/// The finding of `journal verify`.
fn verify_journal(path: &Path, point: Option<Head>) -> Finding {
    History::open(path).unwrap().verify(point, |_| ()).unwrap()
}

fn holds(path: &Path) -> bool {
    matches!(verify_journal(path, None), Finding::Holds { .. })
}
