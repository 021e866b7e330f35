//! The use of the executor, compared with a simple model.

use super::searches::{call_of, run_with};
use super::*;
use crate::scan::ScanBudget;
use crate::store::Reader;
use crate::usage::limit_amounts;
use crate::{
    AccessUse, LimitKind, LimitSlack, RunNeeds, SeriesSpan, UsageFigures, UsageSeries, UsageSummary,
};
use a2g_types::fault::BlockedBy;
use a2g_types::limit::{Access, Limit, NetworkBudgets};
use a2g_types::outcome::{CallUsage, Contact, GrantedArea, NestedCall, NestedEnd, NetworkUsage, Status};
use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

/// The receipt of the run number `n`, with another amount of everything.
fn nth_receipt(call: &Call, n: u64) -> Receipt {
    let ends = [
        End::Returned(serde_json::json!({}).into()),
        End::ResultNotJson,
        End::LimitReached(Limit::Time),
        End::Aborted(AbortReason::Lost),
        End::Returned(serde_json::json!(1).into()),
    ];
    let end = ends.into_iter().cycle().nth(usize::try_from(n).unwrap()).unwrap();
    let mut receipt = receipt(call, end);
    receipt.outcome.metrics = RunMetrics {
        wall: StdDuration::from_millis(n * n + 1),
        cpu: StdDuration::from_millis(n),
        peak_memory_bytes: 1000 + n,
        output_bytes: 10 * n,
        peak_resident_bytes: None,
        earlier_runs: 0,
    };
    let usage = &mut receipt.outcome.usage;
    usage.memory.value = MemoryLimit::from_mb(30 - n).unwrap();
    usage.timeout.value = Timeout::from_seconds(n + 1).unwrap();
    usage.spent = Some([(Limit::Written, n % 2), (Limit::Created, 0)].into_iter().collect());
    let access = if n % 4 < 2 { Access::ReadWrite } else { Access::ReadOnly };
    usage.filesystem = vec![GrantedArea {
        path: "/a".into(),
        pattern: "/a/**".into(),
        access: Bound { value: access, layer: Layer::Verdict },
        set_by: Layer::Verdict,
    }];
    usage.network.value = n.is_multiple_of(2);
    usage.network_used = n.is_multiple_of(2).then(|| NetworkUsage {
        budgets: NetworkBudgets {
            requests: 50,
            connections: 2,
            sent_bytes: 5,
            received_bytes: 6,
            ..NetworkBudgets::ZERO
        },
        allowed: Vec::new(),
        blocked: Vec::new(),
        allowed_requests: Vec::new(),
        requests_per_minute: None,
        requests: u32::try_from(n).unwrap(),
        connections: 1,
        sent_bytes: n,
        received_bytes: n,
        contacted: Vec::new(),
        contacted_truncated: false,
        secrets: Vec::new(),
        remote_server: None,
    });
    receipt.calls = n.is_multiple_of(3).then(|| CallUsage {
        max_calls: Bound { value: 9, layer: Layer::Verdict },
        max_parallel: Bound { value: 4, layer: Layer::Verdict },
        count: u32::try_from(n % 2).unwrap(),
        calls: Vec::new(),
    });
    receipt
}

/// The figures of the receipts, computed from all of them at once.
fn check_figures(figures: &UsageFigures, receipts: &[&Receipt]) {
    assert_eq!(figures.runs, receipts.len() as u64);
    let count = |status| receipts.iter().filter(|receipt| receipt.outcome.end.status() == status).count();
    let crate::StatusCounts { success, failure, timeout, aborted } = figures.by_status;
    assert_eq!(
        [success, failure, timeout, aborted].map(|count| usize::try_from(count).unwrap()),
        [count(Status::Success), count(Status::Failure), count(Status::Timeout), count(Status::Aborted)]
    );
    let lost = |receipt: &&&Receipt| receipt.outcome.end != End::Aborted(AbortReason::Lost);
    let measured = receipts.iter().filter(lost).copied().collect::<Vec<_>>();
    let mut walls = measured.iter().map(|receipt| receipt.outcome.metrics.wall).collect::<Vec<_>>();
    walls.sort_unstable();
    let found = figures.wall.unwrap();
    for (percent, found) in [(50, found.p50), (95, found.p95), (99, found.p99), (100, found.max)] {
        let exact = walls[(walls.len() * percent).div_ceil(100) - 1];
        assert!(found >= exact && found <= exact + exact / 16 + StdDuration::from_micros(1), "{percent}");
    }
    assert_eq!(Some(&found.max), walls.last());
    let slack = |limit| figures.slack.iter().find(|slack| slack.limit == limit).copied();
    let max =
        |amount: &dyn Fn(&Receipt) -> u64| measured.iter().map(|receipt| amount(receipt)).max().unwrap();
    let memory = LimitSlack {
        limit: LimitKind::MemoryBytes,
        granted: max(&|receipt| receipt.outcome.usage.memory.value.bytes()),
        used: Some(max(&|receipt| receipt.outcome.metrics.peak_memory_bytes)),
    };
    assert_eq!(slack(LimitKind::MemoryBytes), Some(memory));
    let wall = slack(LimitKind::WallMs).unwrap();
    assert_eq!(wall.granted, max(&|receipt| receipt.outcome.usage.timeout.value.seconds() * 1000));
    assert_eq!(wall.used, Some(max(&|receipt| receipt.outcome.metrics.duration_ms())));
    let cpu = |receipt: &Receipt| {
        let RunMetrics { wall, cpu, .. } = receipt.outcome.metrics;
        u64::try_from((cpu.as_nanos() * 100).div_ceil(wall.as_nanos())).unwrap()
    };
    assert_eq!(slack(LimitKind::CpuPercent).unwrap().used, Some(max(&cpu)));
    assert_eq!(
        slack(LimitKind::OutputBytes).unwrap().used,
        Some(max(&|receipt| receipt.outcome.metrics.output_bytes))
    );
    assert_eq!(
        slack(LimitKind::Areas).unwrap(),
        LimitSlack { limit: LimitKind::Areas, granted: 1, used: None }
    );
    assert_eq!(slack(LimitKind::Budget(Limit::Handles)).unwrap().used, None);
    assert_eq!(slack(LimitKind::Budget(Limit::Fuel)), None, "no receipt has it");
    let requests = |receipt: &Receipt| {
        receipt.outcome.usage.network_used.as_ref().map_or(0, |used| used.requests.into())
    };
    let with = |has: &dyn Fn(&Receipt) -> bool| measured.iter().filter(|receipt| has(receipt)).count() as u64;
    let network = AccessUse {
        granted: with(&|receipt| receipt.outcome.usage.network.value),
        used: with(&|receipt| requests(receipt) > 0),
    };
    assert_eq!(figures.network, network);
    if network.granted > 0 {
        let slack = slack(LimitKind::Requests).unwrap();
        assert_eq!((slack.granted, slack.used), (50, Some(max(&requests))));
    }
    let may_write = |receipt: &Receipt| receipt.outcome.usage.filesystem[0].access.value == Access::ReadWrite;
    let has_written = |receipt: &Receipt| receipt.outcome.usage.spent.unwrap().has_written();
    let writing = AccessUse {
        granted: with(&may_write),
        used: with(&|receipt| may_write(receipt) && has_written(receipt)),
    };
    assert_eq!(figures.writing, writing);
    let calls = |receipt: &Receipt| receipt.calls.as_ref().map_or(0, |calls| calls.count);
    let calling = AccessUse {
        granted: with(&|receipt| receipt.calls.is_some()),
        used: with(&|receipt| calls(receipt) > 0),
    };
    assert_eq!(figures.calling, calling);
}

#[tokio::test]
async fn figures_are_those_of_the_receipts() {
    let (_folder, path, journal) = new_journal();
    let mut runs = Vec::new();
    for n in 0..24 {
        let call =
            call_of(if n % 2 == 0 { "did:a:x" } else { "did:a:y" }, if n < 16 { "read" } else { "write" });
        let receipt = nth_receipt(&call, n);
        let ended = NOW + Duration::minutes(i64::try_from(n).unwrap());
        run_with(&journal, &call, receipt.clone(), ended).await;
        runs.push(receipt);
    }
    let refusals = [
        ("did:a:x", BlockedBy::VerdictDenied),
        ("did:a:y", BlockedBy::VerdictDenied),
        ("did:a:x", BlockedBy::StandingPolicy),
        ("did:a:x", BlockedBy::VerdictDenied),
    ];
    for (agent, reason) in refusals {
        journal.decisions.record_refusal(
            &IntentSummary::from_call(&call_of(agent, "read")),
            reason,
            "no",
            NOW,
        );
    }
    journal.flush().await.unwrap();

    let usage = journal.records.usage(None, |_| true, u64::MAX, None).await.unwrap().finish();
    assert!(usage.is_complete && usage.are_refusals_complete && !usage.is_grouping_truncated);
    assert_eq!(usage.searched_until, Some(NOW));
    check_figures(&usage.total, &runs.iter().collect::<Vec<_>>());
    assert_eq!((usage.agents.len(), usage.tools.len()), (2, 2));
    for group in &usage.agents {
        let own = runs.iter().filter(|receipt| receipt.agent.as_str() == group.name);
        check_figures(&group.figures, &own.collect::<Vec<_>>());
    }
    for group in &usage.tools {
        let own = runs.iter().filter(|receipt| receipt.tool.as_str() == group.name);
        check_figures(&group.figures, &own.collect::<Vec<_>>());
    }
    assert_eq!(usage.tools[0].name, "read", "the most runs come first");
    let by_reason = |denied, policy| {
        let counts = [("VERDICT_DENIED", denied), ("STANDING_POLICY", policy)].into_iter();
        let counts =
            counts.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.to_lowercase(), count));
        counts.collect::<BTreeMap<_, u64>>()
    };
    let lower_case = |figures: &UsageFigures| {
        figures
            .refusals
            .iter()
            .map(|(reason, count)| (reason.to_lowercase(), *count))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(lower_case(&usage.total), by_reason(3, 1));
    let agent = |name: &str| &usage.agents.iter().find(|group| group.name == name).unwrap().figures;
    assert_eq!(lower_case(agent("did:a:x")), by_reason(2, 1));
    assert_eq!(lower_case(agent("did:a:y")), by_reason(1, 0));

    // Only the permitted agents count.
    let usage =
        journal.records.usage(None, |agent| agent == "did:a:y", u64::MAX, None).await.unwrap().finish();
    let own = runs.iter().filter(|receipt| receipt.agent.as_str() == "did:a:y").collect::<Vec<_>>();
    check_figures(&usage.total, &own);
    assert_eq!((usage.agents.len(), lower_case(&usage.total)), (1, by_reason(1, 0)));
    // Only what ended since the time counts.
    let usage = journal
        .records
        .usage(Some(NOW + Duration::minutes(9)), |_| true, u64::MAX, None)
        .await
        .unwrap()
        .finish();
    check_figures(&usage.total, &runs[9..].iter().collect::<Vec<_>>());
    assert_eq!(usage.total.refusals, BTreeMap::new());
    // The latest receipts count, and the answer says that there are more.
    let usage = journal.records.usage(None, |_| true, 7, None).await.unwrap().finish();
    check_figures(&usage.total, &runs[17..].iter().collect::<Vec<_>>());
    assert!(!usage.is_complete && usage.are_refusals_complete);
    assert_eq!(usage.searched_until, Some(NOW + Duration::minutes(17)));
    let none = Journal::in_memory().records.usage(None, |_| true, 7, None).await.unwrap().finish();
    assert!(none.is_complete && none.total.runs == 0 && none.total.wall.is_none());

    let reader = Reader::open(&path).unwrap();
    let budget_of = |looks: u32| {
        let mut left = looks;
        ScanBudget::until(move || {
            left = left.saturating_sub(1);
            left == 0
        })
    };
    let usage = |looks| -> UsageSummary {
        reader
            .usage(UsageSums::default(), None, &|_| true, u64::MAX, &mut budget_of(1), &mut budget_of(looks))
            .unwrap()
            .finish()
    };
    let partial = usage(5);
    check_figures(&partial.total, &runs[19..].iter().collect::<Vec<_>>());
    assert!(!partial.is_complete);
    assert!(usage(1000).is_complete);
}

#[tokio::test]
async fn the_series_has_every_run_in_its_bucket() {
    let (_folder, _path, journal) = new_journal();
    let call = call_of("did:a:x", "read");
    for n in 0..24 {
        let call = Call { intent: IntentId::random(), ..call.clone() };
        let ended = NOW + Duration::minutes(i64::try_from(n).unwrap());
        run_with(&journal, &call, nth_receipt(&call, n), ended).await;
    }
    let span = SeriesSpan::new(NOW, NOW + Duration::minutes(90));
    let usage = journal.records.usage(None, |_| true, u64::MAX, Some(span)).await.unwrap().finish();
    let UsageSeries { width, buckets } = usage.series.unwrap();
    assert_eq!((width.as_secs(), buckets.len(), buckets[0].begin), (120, 46, NOW));
    for (number, bucket) in buckets.iter().enumerate() {
        assert_eq!(bucket.begin, NOW + Duration::minutes(2 * i64::try_from(number).unwrap()));
        assert_eq!(bucket.by_status.total(), if number < 12 { 2 } else { 0 }, "{number}");
        // The longest of the two measured runs; one of five is lost.
        let runs = [2 * number as u64, 2 * number as u64 + 1];
        let longest = runs.into_iter().filter(|n| n % 5 != 3 && *n < 24).max();
        let longest = longest.map(|n| StdDuration::from_millis(n * n + 1));
        assert_eq!(bucket.wall.map(|wall| wall.max), longest, "{number}");
    }
    let total = buckets.iter().map(|bucket| bucket.by_status.success).sum::<u64>();
    assert_eq!(total, usage.total.by_status.success);
}

#[tokio::test]
async fn needs_are_the_greatest_of_the_measured_runs() {
    let (_folder, _path, journal) = new_journal();
    let runs = async |agent: &str, tool: &str, change: &dyn Fn(&mut Receipt)| {
        let call = call_of(agent, tool);
        let mut receipt = nth_receipt(&call, 6);
        receipt.outcome.usage.network_used.as_mut().unwrap().requests = 2;
        change(&mut receipt);
        run_with(&journal, &call, receipt, NOW).await;
    };
    let contact = |authority: &str, requests| Contact {
        authority: authority.to_owned(),
        address: ([127, 0, 0, 1], 80).into(),
        requests,
        sent_bytes: 1,
        received_bytes: 1,
    };
    let contacts = |receipt: &mut Receipt, contacted| {
        receipt.outcome.usage.network_used.as_mut().unwrap().contacted = contacted;
    };
    let nested = |ordinal, tool: &str, end| NestedCall {
        ordinal,
        tool: tool.to_owned(),
        intent: IntentId::random(),
        decision: None,
        end,
        duration: StdDuration::ZERO,
    };
    let calls = |receipt: &mut Receipt, count, calls| {
        let used = receipt.calls.as_mut().unwrap();
        (used.count, used.calls) = (count, calls);
    };
    runs("did:a:x", "fetch", &|receipt| {
        contacts(receipt, vec![contact("https://a.test:443", 1), contact("tcp://[::1]:80", 1)]);
        calls(receipt, 2, vec![nested(1, "read", NestedEnd::Success), nested(2, "<b>", NestedEnd::Refused)]);
        receipt.outcome.metrics.peak_memory_bytes = 77;
        receipt.outcome.usage.filesystem.clear();
    })
    .await;
    runs("did:a:x", "fetch", &|receipt| {
        contacts(receipt, vec![contact("http://b.test:80", 2)]);
        receipt.outcome.usage.spent = None;
    })
    .await;
    runs("did:a:x", "fetch", &|receipt| receipt.outcome.end = End::Aborted(AbortReason::Lost)).await;
    // A request without a contact may have been a look-up.
    runs("did:a:y", "fetch", &|receipt| contacts(receipt, vec![contact("http://b.test:80", 1)])).await;
    // One call is not listed.
    runs("did:a:y", "fetch", &|receipt| calls(receipt, 2, vec![nested(1, "read", NestedEnd::Success)])).await;
    let usage = journal.records.usage(None, |_| true, u64::MAX, None).await.unwrap().finish();
    assert!(!usage.are_needs_truncated);
    let [first, second] = &usage.needs[..] else { panic!("{:?}", usage.needs) };
    assert_eq!(
        (first.agent.as_str(), first.tool.as_str(), second.agent.as_str()),
        ("did:a:x", "fetch", "did:a:y")
    );
    let mb = 1 << 20;
    let expected = RunNeeds {
        runs: 2,
        unmeasured: 1,
        memory_bytes: 1006,
        granted_memory_bytes: 24 * mb,
        wall_ms: 37,
        granted_ms: 7_000,
        has_files: true,
        // The process ended before it said what it wrote.
        has_written: true,
        has_used_network: true,
        hosts: Some(["a.test", "b.test", "[::1]"].map(str::to_owned).into()),
        may_call: true,
        calls: 2,
        called: Some([ToolName::parse("read").unwrap()].into()),
    };
    assert_eq!(first.needs, expected);
    assert_eq!((&second.needs.hosts, &second.needs.called, second.needs.runs), (&None, &None, 2));
    let mut merged = first.needs.clone();
    merged.merge(&second.needs);
    assert_eq!((merged.runs, merged.hosts, merged.memory_bytes), (4, None, 1006));
}

/// The memory does not grow with the number of agents.
#[tokio::test]
async fn the_number_of_groups_is_bounded() {
    let (_folder, _path, journal) = new_journal();
    for n in 0..250 {
        let call = call_of(&format!("did:a:{n}"), "t");
        journal.decisions.record_refusal(
            &IntentSummary::from_call(&call),
            BlockedBy::VerdictDenied,
            "no",
            NOW,
        );
    }
    journal.flush().await.unwrap();
    let usage = journal.records.usage(None, |_| true, u64::MAX, None).await.unwrap().finish();
    assert_eq!((usage.agents.len(), usage.tools.len()), (200, 1));
    assert!(usage.is_grouping_truncated && !usage.are_needs_truncated);
    assert_eq!(usage.total.refusals.values().sum::<u64>(), 250);
}

#[tokio::test]
async fn a_damaged_receipt_is_an_error() {
    let (_folder, path, journal) = new_journal();
    run(&journal, &another()).await;
    let sql = "UPDATE records SET body = x'7b' WHERE kind = 'receipt'";
    assert_eq!(Connection::open(&path).unwrap().execute(sql, []).unwrap(), 1);
    let usage = journal.records.usage(None, |_| true, u64::MAX, None).await.map(drop);
    assert!(matches!(usage, Err(JournalError::Broken(BrokenError::Read(_)))), "{usage:?}");
}

#[tokio::test]
async fn merged_sums_are_those_of_one_journal_with_all_runs() {
    let (_folders, journals): (Vec<_>, Vec<_>) =
        (0..3).map(|_| new_journal()).map(|(folder, _path, journal)| (folder, journal)).unzip();
    let [first, second, all] = &journals[..] else { unreachable!() };
    for n in 0..24 {
        let agent = format!("did:a:{}", n % 3);
        let call = call_of(&agent, if n % 7 == 0 { "read" } else { "write" });
        let ended = NOW + Duration::minutes(i64::try_from(n).unwrap());
        let own = if n % 4 == 0 { first } else { second };
        for journal in [own, all] {
            run_with(journal, &call, nth_receipt(&call, n), ended).await;
            if n % 5 == 0 {
                let refused = IntentSummary::from_call(&call_of(&agent, "read"));
                journal.decisions.record_refusal(&refused, BlockedBy::VerdictDenied, "no", NOW);
            }
        }
    }
    let span = SeriesSpan::new(NOW, NOW + Duration::minutes(90));
    let sums = async |journal: &Journal| {
        journal.flush().await.unwrap();
        journal.records.usage(Some(NOW), |_| true, u64::MAX, Some(span)).await.unwrap()
    };
    let mut merged = sums(first).await;
    let other = sums(second).await;
    let text = other.to_json(usize::MAX).unwrap();
    merged.merge(serde_json::from_str(&text).unwrap());
    let merged = merged.finish();
    let expected = sums(all).await.finish();
    assert_eq!(expected.total.runs, 24);
    assert_eq!(
        (&merged.total, &merged.agents, &merged.tools),
        (&expected.total, &expected.agents, &expected.tools)
    );
    assert_eq!((&merged.series, &merged.needs), (&expected.series, &expected.needs));
    assert!(merged.is_complete && merged.are_refusals_complete && !merged.are_needs_truncated);

    // If the text is too long, the needs are left out first, and then the smallest groups.
    let shorter = |max_bytes| -> UsageSummary {
        let text = sums_of(&text).to_json(max_bytes).unwrap();
        assert!(text.len() <= max_bytes);
        sums_of(&text).finish()
    };
    let without_needs = shorter(text.len() - 1);
    assert!(without_needs.are_needs_truncated && without_needs.needs.is_empty());
    assert!(!without_needs.is_grouping_truncated && without_needs.agents.len() == 3);
    let without_groups = shorter(8_000);
    assert!(without_groups.is_grouping_truncated && without_groups.agents.len() < 3);
    assert_eq!(without_groups.total, without_needs.total);
    assert_eq!(sums_of(&text).to_json(100), None);

    // Runs are missing that one of them has not read.
    let partial = first.records.usage(None, |_| true, 3, None).await.unwrap();
    let until = partial.extent.searched_until;
    let mut merged = sums_of(&text);
    merged.merge(partial);
    let merged = merged.finish();
    assert_eq!((merged.is_complete, merged.searched_until), (false, until));
    assert_eq!(merged.series, None, "one of them has no series");
}

fn sums_of(text: &str) -> crate::UsageSums {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_sums_of_another_executor_have_the_same_limits() {
    let mut receipt = receipt(&call("{}"), End::ResultNotJson);
    receipt.outcome.usage.budgets = receipt.outcome.usage.budgets.with(Limit::Fuel, 5);
    let kinds = limit_amounts(&receipt.outcome, None).map(|amounts| amounts.limit).collect::<Vec<_>>();
    assert!(kinds.contains(&LimitKind::Budget(Limit::Fuel)) && kinds.contains(&LimitKind::ParallelCalls));
    for kind in kinds {
        let text = serde_json::to_string(&kind).unwrap();
        assert_eq!(text, format!("\"{}\"", kind.as_str()));
        assert_eq!(serde_json::from_str::<LimitKind>(&text).unwrap(), kind);
    }
    assert!(serde_json::from_str::<LimitKind>("\"memory\"").is_err());
}
