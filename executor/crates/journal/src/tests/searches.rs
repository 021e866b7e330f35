//! Searches of runs and refusals.

use super::*;
use crate::history::Filter;
use crate::log::{NewRecord, RecordLog, Tip};
use crate::record::RecordKind;
use crate::scan::{CHUNK_ROWS, MAX_SCAN_TIME, ScanBudget};
use crate::store::{Reader, create};
use crate::{NumberedRefusal, Page, RefusalSearch, RunSearch, RunSummary};
use a2g_types::fault::BlockedBy;
use a2g_types::limit::{Access, NetworkBudgets};
use a2g_types::outcome::{Contact, Denial, DenialReason, GrantedArea, NetworkUsage, Status};

/// Runs a call that ends with a receipt at a time.
pub(super) async fn run_with(journal: &Journal, call: &Call, receipt: Receipt, ended: OffsetDateTime) {
    assert!(matches!(start(journal, call, None).await, StartResult::New));
    journal.claims.finish(Arc::new(receipt), None, Reporting::Here, ended).await.unwrap();
}

pub(super) fn call_of(agent: &str, tool: &str) -> Call {
    Call { agent: AgentDid::parse(agent).unwrap(), tool: ToolName::parse(tool).unwrap(), ..another() }
}

fn success() -> End {
    End::Returned(serde_json::json!({ "n": 1 }).into())
}

fn by(filter: Filter) -> RunSearch {
    RunSearch { filter, ..RunSearch::default() }
}

fn refused_by(filter: Filter) -> RefusalSearch {
    RefusalSearch { filter, ..RefusalSearch::default() }
}

async fn search(journal: &Journal, search: &RunSearch) -> Page<RunSummary> {
    journal.records.search_runs(search.clone(), |_| true, None, 1000).await.unwrap()
}

async fn found(journal: &Journal, sought: &RunSearch) -> Vec<IntentId> {
    search(journal, sought).await.items.into_iter().map(|run| run.intent).collect()
}

#[tokio::test]
async fn pages_have_no_gaps_and_no_duplicates_while_runs_are_added() {
    let (_folder, _path, journal) = new_journal();
    let mut intents = Vec::new();
    for _ in 0..10 {
        let call = another();
        run(&journal, &call).await;
        intents.push(call.intent);
    }
    let mut before = None;
    let mut seen = Vec::new();
    loop {
        let page = journal.records.search_runs(RunSearch::default(), |_| true, before, 3).await.unwrap();
        assert!(page.is_complete && page.items.len() <= 3);
        seen.extend(page.items.iter().map(|run| (run.number, run.intent)));
        before = page.next;
        if before.is_none() {
            break;
        }
        run(&journal, &another()).await;
    }
    let oldest = intents[0];
    let expected = (1..).zip(intents).collect::<Vec<_>>();
    assert_eq!(seen, expected.into_iter().rev().collect::<Vec<_>>());
    // One run is sought even if none is wanted: the caller would never come to an end.
    let oldest = RunSearch { text: Some(oldest.to_string()), ..RunSearch::default() };
    let page = journal.records.search_runs(oldest, |_| true, None, 0).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let empty =
        Journal::in_memory().records.search_runs(RunSearch::default(), |_| true, None, 3).await.unwrap();
    assert_eq!(empty, Page::default());
    assert!(empty.is_complete && empty.next.is_none());
}

#[tokio::test]
async fn each_filter_selects_its_runs() {
    let (_folder, _path, journal) = new_journal();
    let ends = [
        success(),
        End::ResultNotJson,
        End::LimitReached(a2g_types::limit::Limit::Time),
        End::Aborted(AbortReason::Cancelled),
    ];
    let mut runs = Vec::new();
    for n in 0..16_usize {
        let call = call_of(["did:a:x", "did:a:y", "did:a:z"][n % 3], ["read", "write"][n / 2 % 2]);
        let ended = NOW + Duration::minutes(i64::try_from(n).unwrap());
        let end = ends[n % 4].clone();
        run_with(&journal, &call, receipt(&call, end.clone()), ended).await;
        runs.push((call, end.status(), ended));
    }
    deliver(&journal, 9).await;
    let undelivered = journal.outbox_intents();
    assert_eq!(undelivered.len(), 7);
    let check = async |sought: RunSearch, is_match: &dyn Fn(&(Call, Status, OffsetDateTime)) -> bool| {
        let expected = runs.iter().rev().filter(|run| is_match(run)).map(|(call, ..)| call.intent);
        let expected = expected.collect::<Vec<_>>();
        assert!(!expected.is_empty() && expected.len() < runs.len(), "{sought:?}");
        let page = search(&journal, &sought).await;
        assert!(page.is_complete && page.next.is_none());
        assert_eq!(page.items.iter().map(|run| run.intent).collect::<Vec<_>>(), expected, "{sought:?}");
        for run in page.items {
            let (call, status, ended) = runs.iter().find(|(call, ..)| call.intent == run.intent).unwrap();
            assert_eq!((&*run.agent, &*run.tool), (call.agent.as_str(), call.tool.as_str()));
            assert_eq!((&*run.status, run.ended), (status.as_str(), *ended));
            assert_eq!(run.delivered, !undelivered.contains(&call.intent));
        }
    };
    let agent = AgentDid::parse("did:a:y").unwrap();
    check(by(Filter { agent: Some(agent.clone()), ..Filter::default() }), &|(call, ..)| call.agent == agent)
        .await;
    let tool = ToolName::parse("write").unwrap();
    check(by(Filter { tool: Some(tool.clone()), ..Filter::default() }), &|(call, ..)| call.tool == tool)
        .await;
    for sought in [Status::Success, Status::Failure, Status::Timeout, Status::Aborted] {
        check(by(Filter { status: Some(sought), ..Filter::default() }), &|(_, status, _)| *status == sought)
            .await;
    }
    let time = runs[5].2;
    check(by(Filter { since: Some(time), ..Filter::default() }), &|(.., ended)| *ended >= time).await;
    check(by(Filter { until: Some(time), ..Filter::default() }), &|(.., ended)| *ended < time).await;
    check(by(Filter { undelivered: true, ..Filter::default() }), &|(call, ..)| {
        undelivered.contains(&call.intent)
    })
    .await;
    let both = by(Filter { agent: Some(agent.clone()), until: Some(time), ..Filter::default() });
    check(both, &|(call, _, ended)| call.agent == agent && *ended < time).await;
    deliver(&journal, 7).await;
    let page = search(&journal, &by(Filter { undelivered: true, ..Filter::default() })).await;
    assert_eq!(page, Page::default(), "nothing is searched for");
}

impl Journal {
    /// The intents of the undelivered reports.
    fn outbox_intents(&self) -> Vec<IntentId> {
        let Some(path) = &self.path else { return Vec::new() };
        let mut intents = Vec::new();
        let filter = Filter { undelivered: true, ..Filter::default() };
        let add = |entry: history::ReceiptEntry| -> Result<(), history::HistoryError> {
            intents.push(entry.intent);
            Ok(())
        };
        History::open(path).unwrap().receipts(&filter, false, None, add).unwrap();
        intents
    }
}

#[tokio::test]
async fn only_runs_of_permitted_agents_are_found() {
    let (_folder, path, journal) = new_journal();
    let mine = call_of("did:a:mine", "t");
    let other = call_of("did:a:other", "t");
    for call in [&mine, &other, &mine.clone(), &other.clone()] {
        run(&journal, &Call { intent: IntentId::random(), ..call.clone() }).await;
    }
    refuse(&journal, &mine, BlockedBy::VerdictDenied, "no", NOW);
    refuse(&journal, &other, BlockedBy::VerdictDenied, "no", NOW);
    journal.flush().await.unwrap();
    let permitted = |agent: &str| agent == "did:a:mine";
    for agent in [None, Some(&mine.agent), Some(&other.agent)] {
        let expected = if agent == Some(&other.agent) { 0 } else { 2 };
        let sought = by(Filter { agent: agent.cloned(), ..Filter::default() });
        let page = journal.records.search_runs(sought, permitted, None, 10).await.unwrap();
        assert_eq!(page.items.iter().filter(|run| run.agent == "did:a:mine").count(), expected);
        assert_eq!(page.items.len(), expected);
        let sought = refused_by(Filter { agent: agent.cloned(), ..Filter::default() });
        let page = journal.records.search_refusals(sought, permitted, None, 10).await.unwrap();
        assert_eq!(page.items.len(), expected / 2);
        assert!(page.items.iter().all(|found| found.refusal.agent == "did:a:mine"));
    }
    // A receipt of another agent is not even parsed.
    let connection = Connection::open(&path).unwrap();
    connection.execute("UPDATE records SET body = x'7b' WHERE agent = 'did:a:other'", []).unwrap();
    assert_eq!(
        journal.records.search_runs(RunSearch::default(), permitted, None, 10).await.unwrap().items.len(),
        2
    );
}

/// A receipt with a text of its own in each field that is searched.
fn searchable(call: &Call, end: End) -> Receipt {
    let mut receipt = receipt(call, end);
    let usage = &mut receipt.outcome.usage;
    let access = Bound { value: Access::ReadOnly, layer: Layer::Verdict };
    usage.filesystem = vec![GrantedArea {
        path: "/opened/Folder".into(),
        pattern: "/opened/Folder/**/granted \"quoted\".md".into(),
        access,
        set_by: Layer::Verdict,
    }];
    usage.denied = vec![Denial {
        what: "/etc/Shadow\\u{1b}".into(),
        reason: DenialReason::OutsideScope,
        set_by: None,
        count: 1,
    }];
    let contact = Contact {
        authority: "https://api.Example.com:443".into(),
        address: "93.184.216.34:443".parse().unwrap(),
        requests: 1,
        sent_bytes: 1,
        received_bytes: 1,
    };
    usage.network_used = Some(NetworkUsage {
        budgets: NetworkBudgets::ZERO,
        allowed: Vec::new(),
        blocked: Vec::new(),
        allowed_requests: Vec::new(),
        requests_per_minute: None,
        requests: 1,
        connections: 1,
        sent_bytes: 1,
        received_bytes: 1,
        contacted: vec![contact],
        contacted_truncated: false,
        secrets: Vec::new(),
        remote_server: None,
    });
    receipt
}

#[tokio::test]
async fn a_text_is_sought_in_every_field() {
    let (_folder, _path, journal) = new_journal();
    let plain = another();
    run(&journal, &plain).await;
    let call = Call {
        intent: IntentId::parse("0a1b2c3d-e29b-41d4-a716-44665544000f").unwrap(),
        ..call_of("did:web:Searched", "Find_Me")
    };
    run_with(&journal, &call, searchable(&call, success()), NOW).await;
    let failed = call_of("did:a:b", "t");
    let end = End::ToolError { code: "RANGE_42".into(), message: "Größe fehlt".into(), detail: None };
    run_with(&journal, &failed, receipt(&failed, end), NOW).await;
    let limited = call_of("did:a:b", "t");
    let end = End::LimitReached(a2g_types::limit::Limit::Memory);
    run_with(&journal, &limited, receipt(&limited, end), NOW).await;
    // A long receipt takes another way.
    let long = call_of("did:a:b", "t");
    let end = End::Returned(serde_json::json!("x".repeat(100_000)).into());
    run_with(&journal, &long, searchable(&long, end), NOW).await;
    for (text, expected) in [
        ("0A1B2c3d-E29B", vec![&call]),
        ("web:searched", vec![&call]),
        ("find_me", vec![&call]),
        ("API.example.COM", vec![&long, &call]),
        ("opened/folder", vec![&long, &call]),
        ("GRANTED \"quoted\"", vec![&long, &call]),
        ("shadow\\u{1B}", vec![&long, &call]),
        ("OUTSIDE_SCOPE", vec![&long, &call]),
        // Not a text that the digits of a random intent may have.
        ("range_42", vec![&failed]),
        ("GRöße FEHLT", vec![&failed]),
        // This message is made of the end and the limit.
        ("reached its MEMORY limit", vec![&limited]),
        // Neither the result nor the names of JSON members are searched.
        ("xxxx", vec![]),
        ("peak_memory_bytes", vec![]),
        ("nowhere", vec![]),
        ("", vec![&long, &limited, &failed, &call, &plain]),
    ] {
        let sought = RunSearch { text: Some(text.to_owned()), ..RunSearch::default() };
        let expected = expected.into_iter().map(|call| call.intent).collect::<Vec<_>>();
        assert_eq!(found(&journal, &sought).await, expected, "{text}");
    }
    let sought = RunSearch {
        text: Some("example".into()),
        ..by(Filter { agent: Some(call.agent), ..Filter::default() })
    };
    assert_eq!(found(&journal, &sought).await, [call.intent]);
    let through_mcp = Call { door: Door::Mcp, ..another() };
    run(&journal, &through_mcp).await;
    let sought = |door| RunSearch { door: Some(door), ..RunSearch::default() };
    assert_eq!(found(&journal, &sought(Door::Mcp)).await, [through_mcp.intent]);
    assert_eq!(found(&journal, &sought(Door::A2a)).await, []);
    assert!(!found(&journal, &sought(Door::A2g)).await.contains(&through_mcp.intent));
}

/// A journal that only a reader has open, with a record for each kind, time and agent.
fn written_journal(
    records: impl IntoIterator<Item = (RecordKind, OffsetDateTime, &'static str)>,
) -> (tempfile::TempDir, Reader) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    std::fs::write(&path, "").unwrap();
    create(&path).unwrap();
    let mut connection = Connection::open(&path).unwrap();
    let transaction = connection.transaction().unwrap();
    let mut log = RecordLog::resume(&transaction, Tip::read(&transaction).unwrap()).unwrap();
    for (kind, at, agent) in records {
        let call = call_of(agent, "t");
        let body = stored::write_receipt(&receipt(&call, success())).unwrap();
        let new = NewRecord {
            at: to_micros(at),
            intent: Some(call.intent),
            agent: Some(agent),
            tool: Some("t"),
            status: (kind == RecordKind::Receipt).then_some("SUCCESS"),
            about: (kind == RecordKind::Receipt).then_some(log.tip.number),
            body: body.as_bytes(),
            ..NewRecord::default()
        };
        log.append(kind, &new).unwrap();
    }
    log.save().unwrap();
    transaction.commit().unwrap();
    let reader = Reader::open(&path).unwrap();
    (folder, reader)
}

fn unlimited() -> ScanBudget {
    ScanBudget::until(|| false)
}

#[test]
fn a_search_that_runs_out_of_time_continues_where_it_stopped() {
    // Long stretches without a receipt, and without a receipt that is sought.
    let chunk = usize::try_from(CHUNK_ROWS).unwrap();
    let records = (0..12 * chunk + 7).map(|n| {
        let is_receipt = n % 3 == 0 && n / chunk % 3 != 1;
        let kind = if is_receipt { RecordKind::Receipt } else { RecordKind::Claim };
        let agent = if n % 9 == 0 && n / chunk % 4 != 3 { "did:a:x" } else { "did:a:y" };
        (kind, NOW + Duration::seconds(i64::try_from(n).unwrap()), agent)
    });
    let (_folder, reader) = written_journal(records);
    let sought = by(Filter { agent: Some(AgentDid::parse("did:a:x").unwrap()), ..Filter::default() });
    let text = RunSearch { text: Some("DID:A:X".into()), ..RunSearch::default() };
    let whole = reader.search_runs(&sought, &|_| true, None, 10_000, &mut unlimited()).unwrap();
    assert!(whole.is_complete && whole.next.is_none() && whole.items.len() > 50);
    assert_eq!(whole.searched_until, Some(NOW));
    // A clock that is over at once, one that is over at every third look, and one that never is.
    for period in [1, 3, 50, usize::MAX] {
        for (search, limit) in [(&sought, 10_000), (&sought, 7), (&text, 10_000), (&text, 7)] {
            let mut before = None;
            let mut runs = Vec::new();
            let mut partial = 0;
            loop {
                let mut looks = 0;
                let mut budget = ScanBudget::until(move || {
                    looks += 1;
                    looks >= period
                });
                let page = reader.search_runs(search, &|_| true, before, limit, &mut budget).unwrap();
                let is_short = page.items.len() < limit;
                assert_eq!(page.is_complete, !is_short || page.next.is_none());
                partial += usize::from(!page.is_complete);
                let until = page.searched_until.unwrap();
                assert!(page.items.iter().all(|run| run.ended >= until));
                assert!(
                    page.next.is_none_or(|next| before.is_none_or(|before| next < before)),
                    "it advances"
                );
                runs.extend(page.items);
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(runs, whole.items, "{period} {limit}");
            assert!(partial > 0 || period > 3, "{period} {limit}");
        }
    }
    // A search without a match stops between chunks.
    let nobody = by(Filter { agent: Some(AgentDid::parse("did:a:nobody").unwrap()), ..Filter::default() });
    let page = reader.search_runs(&nobody, &|_| true, None, 7, &mut ScanBudget::until(|| true)).unwrap();
    assert!(!page.is_complete && page.items.is_empty() && page.next.is_some());
    // The real clock.
    let mut budget = ScanBudget::start(MAX_SCAN_TIME);
    assert!(!budget.is_over());
    assert!(ScanBudget::start(std::time::Duration::ZERO).is_over());
}

#[test]
fn a_search_ends_before_records_that_are_too_old() {
    let since = NOW + Duration::HOUR;
    let sought = by(Filter { since: Some(since), ..Filter::default() });
    let chunk = usize::try_from(CHUNK_ROWS).unwrap();
    // A receipt whose time is `since`, this number of older records, and another such receipt.
    for (old, found) in [(10, 2), (3 * chunk + 100, 2), (4 * chunk, 1)] {
        let recent = [(RecordKind::Receipt, since, "did:a:x")];
        let between = std::iter::repeat_n((RecordKind::Claim, NOW, "did:a:x"), old);
        let (_folder, reader) = written_journal(recent.into_iter().chain(between).chain(recent));
        let page = reader.search_runs(&sought, &|_| true, None, 10, &mut unlimited()).unwrap();
        assert!(page.is_complete && page.next.is_none());
        assert_eq!(page.items.len(), found, "{old}");
    }
    // Records that are a little older may have been written late.
    let late = since - Duration::minutes(10);
    let recent = [(RecordKind::Receipt, since, "did:a:x")];
    let between = std::iter::repeat_n((RecordKind::Claim, late, "did:a:x"), 5 * chunk);
    let (_folder, reader) = written_journal(recent.into_iter().chain(between).chain(recent));
    let page = reader.search_runs(&sought, &|_| true, None, 10, &mut unlimited()).unwrap();
    assert_eq!(page.items.len(), 2);
}

#[tokio::test]
async fn a_damaged_receipt_is_an_error() {
    for body in ["x'7b'", "x'ff'", "'{}'", "zeroblob(100000)"] {
        let (_folder, path, journal) = new_journal();
        run(&journal, &another()).await;
        run(&journal, &another()).await;
        let connection = Connection::open(&path).unwrap();
        let sql = format!("UPDATE records SET body = {body} WHERE number = 2");
        assert_eq!(connection.execute(&sql, []).unwrap(), 1);
        // A receipt without the text is not parsed, so this one has it.
        let sought =
            RunSearch { text: body.starts_with('x').then(|| "{".to_owned()), ..RunSearch::default() };
        let errors = [
            journal.records.search_runs(RunSearch::default(), |_| true, None, 9).await.map(drop),
            journal.records.search_runs(sought, |_| true, None, 9).await.map(drop),
        ];
        for error in errors {
            assert!(matches!(error, Err(JournalError::Broken(BrokenError::Read(_)))), "{body}: {error:?}");
        }
        // The other pages are answered.
        let page = journal.records.search_runs(RunSearch::default(), |_| true, None, 1).await.unwrap();
        assert_eq!(page.items.len(), 1);
        assert!(matches!(journal.condition(), Condition::Works));
    }
}

fn refuse(journal: &Journal, call: &Call, blocked_by: BlockedBy, message: &str, at: OffsetDateTime) {
    journal.decisions.record_refusal(&IntentSummary::from_call(call), blocked_by, message, at);
}

fn numbers(page: &Page<NumberedRefusal>) -> Vec<u64> {
    page.items.iter().map(|NumberedRefusal { number, .. }| *number).collect()
}

#[tokio::test]
async fn refusals_are_searched_like_runs() {
    let (_folder, path, journal) = new_journal();
    let x = call_of("did:a:x", "read");
    let y = call_of("did:a:y", "write");
    for n in 0..10 {
        let call = if n % 2 == 0 { &x } else { &y };
        let reason = if n % 3 == 0 { BlockedBy::VerdictExpired } else { BlockedBy::VerdictDenied };
        refuse(&journal, call, reason, &format!("Reason {n}"), NOW + Duration::minutes(n));
    }
    journal.flush().await.unwrap();
    let all = RefusalSearch::default;
    let time = NOW + Duration::minutes(4);
    let cases = [
        (all(), vec![10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
        (refused_by(Filter { agent: Some(x.agent.clone()), ..Filter::default() }), vec![9, 7, 5, 3, 1]),
        (refused_by(Filter { tool: Some(y.tool.clone()), ..Filter::default() }), vec![10, 8, 6, 4, 2]),
        (RefusalSearch { blocked_by: Some(BlockedBy::VerdictExpired), ..all() }, vec![10, 7, 4, 1]),
        (refused_by(Filter { since: Some(time), ..Filter::default() }), vec![10, 9, 8, 7, 6, 5]),
        (refused_by(Filter { until: Some(time), ..Filter::default() }), vec![4, 3, 2, 1]),
        (RefusalSearch { text: Some("reason 3".into()), ..all() }, vec![4]),
        (RefusalSearch { text: Some("Verdict_Expired".into()), ..all() }, vec![10, 7, 4, 1]),
        (RefusalSearch { text: Some(x.intent.to_string()), ..all() }, vec![9, 7, 5, 3, 1]),
        (RefusalSearch { text: Some("A:X".into()), ..all() }, vec![9, 7, 5, 3, 1]),
        (RefusalSearch { text: Some("WRITE".into()), ..all() }, vec![10, 8, 6, 4, 2]),
    ];
    let reader = Reader::open(&path).unwrap();
    for (sought, expected) in cases {
        let page = reader.search_refusals(&sought, &|_| true, None, 10_000, &mut unlimited()).unwrap();
        let earlier =
            |numbers: Vec<u64>| numbers.into_iter().filter(|number| *number <= 10).collect::<Vec<_>>();
        assert_eq!(earlier(numbers(&page)), expected, "{sought:?}");
        assert!(page.is_complete && page.next.is_none());
        for period in [1, 2, usize::MAX] {
            let mut before = None;
            let mut found = Vec::new();
            let mut pages = 0;
            loop {
                let mut looks = 0;
                let mut budget = ScanBudget::until(move || {
                    looks += 1;
                    looks >= period
                });
                let page = reader.search_refusals(&sought, &|_| true, before, 2, &mut budget).unwrap();
                assert_eq!(page.is_complete, page.items.len() == 2 || page.next.is_none());
                found.extend(numbers(&page));
                before = page.next;
                // Refusals that are added do not move the pages.
                if pages < 3 {
                    refuse(&journal, &x, BlockedBy::VerdictDenied, "later", NOW - Duration::DAY);
                    journal.flush().await.unwrap();
                }
                pages += 1;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(earlier(found), expected, "{sought:?} {period}");
        }
    }
    let refusal = &journal.records.search_refusals(all(), |_| true, Some(3), 1).await.unwrap().items[0];
    let expected = (2, y.intent, "Reason 1", NOW + Duration::minutes(1));
    let NumberedRefusal { number, refusal, main_argument: _ } = refusal;
    assert_eq!((*number, refusal.intent, &*refusal.message, refusal.at), expected);
}

#[tokio::test]
async fn a_pruned_journal_is_searched_from_its_first_record() {
    let (_folder, path, journal) = new_journal();
    let calls = [(); 4].map(|()| another());
    for call in &calls {
        run(&journal, call).await;
    }
    deliver(&journal, 3).await;
    assert_eq!(crate::prune(&path, NOW + Duration::HOUR, NOW).unwrap().receipts, 3);
    let page = search(&journal, &RunSearch::default()).await;
    assert_eq!(page.items.iter().map(|run| run.intent).collect::<Vec<_>>(), [calls[3].intent]);
    assert!(page.is_complete && page.next.is_none());
}
