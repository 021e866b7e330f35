//! Receipts with hostile texts, rendered as pages and read as a browser reads them.
//!
//! Each page is rendered twice: with the hostile texts, and with harmless ones of the same length. A tokenizer of the HTML
//! standard has to find the same elements with the same attributes in both, so none of them comes from a text.

use super::changes::{SetPage, set_body};
use super::merged_page::{MergedPage, NodePage, NodeRow, Positions};
use super::page::{Html, Viewer, document};
use super::runs::{ProofPlace, RunSoFar, run_body};
use super::search::{ListedRow as _, Listing, RefusalRow, RunRow, SearchQuery};
use super::usage::{CountedNodes, usage_body};
use a2g_core::run::{ChangeSet, ChangeSetSummary, IntentState};
use a2g_govern::Caller;
use a2g_journal::{
    ClaimResult, IntentSummary, Journal, JournalOptions, Page, RefusalSearch, Reporting, RunEffects,
    RunRecord, RunSearch, SeriesSpan, StartRequest, StartResult,
};
use a2g_types::call::{Call, Door, Priority, StoredArguments};
use a2g_types::durability::Durability;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, IntentId, ToolName, is_display_control};
use a2g_types::limit::{Access, Bound, Budgets, FileEffects, Layer, Limit, NetworkBudgets};
use a2g_types::memory::Charge;
use a2g_types::outcome::{
    Artifact, CallUsage, ChangeState, ChangeWord, ChangedRange, Contact, Denial, DenialReason, End,
    EntryWord, FileChanges, GrantedArea, LogLevel, LogLine, NestedCall, NestedEnd, NetworkUsage, Outcome,
    Receipt, RunMetrics, RunOutput, ShownChange, ShownRequest, Usage,
};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::Digest;
use a2g_types::verdict::{Decision, Manifest, Rationale, Verdict};
use futures_util::future::join_all;
use html5gum::{Token, Tokenizer};
use maud::{Markup, PreEscaped};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use strum::VariantArray as _;
use time::OffsetDateTime;
use time::macros::datetime;

const RECEIPTS: u64 = 2_000;
/// The same for `cargo xtask torture`.
const TORTURE_RECEIPTS: u64 = 10_000;
const NOW: OffsetDateTime = datetime!(2026-11-26 12:00 UTC);
const LATER: OffsetDateTime = datetime!(2026-11-26 13:00 UTC);

/// Texts that leave an element, an attribute or a comment, start a script, control a terminal, reorder or hide text, or
/// break a parser.
const FRAGMENTS: [&str; 34] = [
    "<script>alert(1)</script>",
    "</script><svg onload=alert(1)>",
    "<img src=x onerror=alert(1)>",
    "\" autofocus onfocus=alert(1) x=\"",
    "' onmouseover='alert(1)",
    "\"><iframe srcdoc=\"<b>\">",
    "javascript:alert(1)",
    "</title></textarea></pre></style>",
    "<style>*{display:none}</style>",
    "--><!-- ",
    "<![CDATA[ ]]>",
    "<?php ?>",
    "<!doctype html>",
    "</main></body></html><body onload=alert(1)>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content=0>",
    "<a href=//evil.example>",
    "<form action=//evil.example><input name=form_token>",
    "<div hx-get=/console/stop hx-trigger=load>",
    "&lt;b&gt;&amp;&quot;&#x3c;script&#62;",
    "&#0;&nbsp&notin;&",
    "\u{1b}[31m\u{1b}]0;title\u{7}",
    "\0\u{1}\u{8}\u{7f}\u{85}\u{9b}",
    "\r\n\r\nHTTP/1.1 200 OK",
    "\u{202e}gnp.exe\u{2066}\u{2069}",
    "\u{200b}\u{200d}\u{2060}\u{feff}\u{ad}",
    "\u{2028}\u{2029}\u{b}\u{c}",
    "\u{e0041}\u{fe0f}\u{3164}\u{115f}",
    "\u{fffd}\u{fffe}\u{10ffff}",
    "＜script＞ʺ",
    "{{7*7}}${7*7}<%= 7 %>",
    "`${alert(1)}`\\u003cscript\\u003e",
    "../../etc/passwd\\..\\",
    "<<<<\"'`=/>>>>",
];

/// A generator of texts: always the same ones.
struct Hostile(u64);

impl Hostile {
    fn number(&mut self, below: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..=self.number(4) {
            match self.number(5) {
                0 => text.extend(
                    (0..4).filter_map(|_| char::from_u32(self.number(0x11_0000).try_into().unwrap())),
                ),
                _ => text.push_str(FRAGMENTS[usize::try_from(self.number(FRAGMENTS.len() as u64)).unwrap()]),
            }
        }
        // Some are longer than every limit of a page.
        if self.number(150) == 0 { text.repeat(2_000 / text.len().max(1) + 1) } else { text }
    }

    /// Content of an artifact: a text, an image's first bytes, or bytes that are no UTF-8.
    fn content(&mut self) -> Vec<u8> {
        let text = self.text().into_bytes();
        match self.number(4) {
            0 => [b"\x89PNG\r\n\x1a\n".as_slice(), &text].concat(),
            1 => [b"\xff\xfe\xc3\x28".as_slice(), &text].concat(),
            _ => text,
        }
    }
}

/// A harmless text of the same length.
fn twin(text: &str) -> String {
    "x".repeat(text.len())
}

/// Replaces every text of a receipt that a tool or an agent chooses. `text` gets the old one.
fn replace_texts(receipt: &mut Receipt, text: &mut dyn FnMut(&str) -> String) {
    let mut replace = |old: &mut String| *old = text(old);
    let Receipt { approved_by, calls, rationale, outcome, .. } = receipt;
    approved_by.iter_mut().for_each(&mut replace);
    rationale.decided_by.iter_mut().for_each(&mut replace);
    calls.iter_mut().flat_map(|calls| &mut calls.calls).for_each(|call| replace(&mut call.tool));
    let Outcome { end, output, usage, .. } = outcome;
    match end {
        End::Returned(result) | End::Staged(result) => {
            // Without the quotation marks of the JSON string.
            let mut old = result.as_str()[1..result.as_str().len() - 1].to_owned();
            replace(&mut old);
            *result = Value::String(old).into();
        }
        End::ToolError { code, message, detail: _ } => [code, message].into_iter().for_each(&mut replace),
        End::Exited { stderr_tail, .. } => replace(stderr_tail),
        End::ResultInvalid { pointer, message } => [pointer, message].into_iter().for_each(&mut replace),
        End::Trapped(text)
        | End::NotStarted(text)
        | End::Crashed(text)
        | End::NotCommitted(text)
        | End::LeftToOperator(text) => replace(text),
        End::ResultNotJson | End::LimitReached(_) | End::Aborted(_) => {}
    }
    output.logs.iter_mut().for_each(|log| replace(&mut log.message));
    for Artifact { name, mime, content: _ } in &mut output.artifacts {
        [name, mime].into_iter().for_each(&mut replace);
    }
    usage.denied.iter_mut().for_each(|denial| replace(&mut denial.what));
    usage.blocked.iter_mut().for_each(|blocked| replace(&mut blocked.value));
    usage.missing_roots.iter_mut().for_each(&mut replace);
    for GrantedArea { path, pattern, .. } in &mut usage.filesystem {
        [path, pattern].into_iter().for_each(&mut replace);
    }
    if let Some(network) = &mut usage.network_used {
        network.contacted.iter_mut().for_each(|contact| replace(&mut contact.authority));
        network.remote_server.iter_mut().for_each(&mut replace);
    }
    for change in usage.changes.iter_mut().flat_map(|changes| &mut changes.shown) {
        let ShownChange { path, from, target, diff, .. } = change;
        replace(path);
        from.iter_mut().chain(target).for_each(&mut replace);
        if let Some(diff) = diff {
            // A page may show each line of a difference in an element of its own, so both texts have one line.
            replace(diff);
            *diff = diff.replace(['\n', '\r'], " ");
        }
    }
}

fn bound<T>(value: T) -> Bound<T> {
    Bound { value, layer: Layer::Verdict }
}

fn end(number: u64) -> End {
    let text = String::new;
    match number % 11 {
        0 => End::ToolError { code: text(), message: text(), detail: None },
        1 => End::Exited { code: 1, stderr_tail: text() },
        2 => End::ResultInvalid { pointer: text(), message: text() },
        3 => End::Trapped(text()),
        4 => End::NotStarted(text()),
        5 => End::Crashed(text()),
        6 => End::LimitReached(Limit::Memory),
        7 => End::NotCommitted(text()),
        8 => End::LeftToOperator(text()),
        9 => End::Staged(json!("").into()),
        _ => End::Returned(json!("").into()),
    }
}

fn network() -> NetworkUsage {
    NetworkUsage {
        budgets: NetworkBudgets {
            requests: 9,
            connections: 2,
            sent_bytes: 5,
            received_bytes: 6,
            ..NetworkBudgets::ZERO
        },
        allowed: Vec::new(),
        blocked: Vec::new(),
        allowed_requests: Vec::new(),
        requests_per_minute: None,
        requests: 1,
        connections: 1,
        sent_bytes: 1,
        received_bytes: 1,
        contacted: vec![Contact {
            authority: String::new(),
            address: ([127, 0, 0, 1], 80).into(),
            requests: 1,
            sent_bytes: 1,
            received_bytes: 1,
        }],
        contacted_truncated: false,
        secrets: Vec::new(),
        remote_server: Some(String::new()),
    }
}

fn receipt(call: &Call, number: u64, hostile: &mut Hostile) -> Receipt {
    let change = ShownChange {
        kind: ChangeWord::VARIANTS[usize::try_from(number % 5).unwrap()],
        entry: EntryWord::File,
        path: String::new(),
        from: Some(String::new()),
        bytes_before: Some(1),
        bytes_after: Some(2),
        mode_before: Some(0o600),
        mode_after: Some(0o644),
        target: Some(String::new()),
        diff: Some(String::new()),
        ranges: vec![ChangedRange { start: 1, old_bytes: 2, new_bytes: 3 }],
        is_diff_cut: true,
    };
    let usage = Usage {
        changes: Some(FileChanges {
            shown: vec![change],
            requests: vec![ShownRequest {
                method: String::new(),
                url: String::new(),
                fields: vec![String::new()],
                body_bytes: 1,
                body_digest: Digest([0; 32]),
                body: None,
            }],
            ..FileChanges::new(2, Digest([0; 32]))
        }),
        start_memory_bytes: None,
        memory: bound(MemoryLimit::from_mb(1).unwrap()),
        cpu: bound(CpuPercent::new(100).unwrap()),
        timeout: bound(Timeout::from_seconds(1).unwrap()),
        output: bound(OutputLimit::from_bytes(1).unwrap()),
        filesystem: vec![GrantedArea {
            path: String::new(),
            pattern: String::new(),
            access: bound(Access::ReadWrite),
            set_by: Layer::Verdict,
        }],
        blocked: vec![bound(String::new())],
        missing_roots: vec![String::new()],
        filesystem_emptied_by: None,
        effects: bound(FileEffects::Staged),
        budgets: Budgets::default(),
        spent: None,
        network: bound(true),
        network_used: Some(network()),
        denied: vec![Denial {
            what: String::new(),
            reason: DenialReason::OutsideScope,
            set_by: None,
            count: 1,
        }],
        denied_truncated: false,
    };
    let output = RunOutput {
        logs: vec![LogLine { level: LogLevel::Info, message: String::new() }],
        progress: None,
        artifacts: vec![Artifact { name: String::new(), mime: String::new(), content: hostile.content() }],
        truncated: false,
    };
    let nested = NestedCall {
        ordinal: 1,
        tool: String::new(),
        intent: call.intent.nested(1),
        decision: None,
        end: NestedEnd::Refused,
        duration: Duration::from_millis(1),
    };
    let metrics = RunMetrics { wall: Duration::from_millis(number % 300), ..RunMetrics::default() };
    let mut receipt = Receipt {
        agent: call.agent.clone(),
        intent: call.intent,
        tool: call.tool.clone(),
        door: call.door,
        approved_by: Some(String::new()),
        durability: Durability::ProcessCrash,
        parent: None,
        calls: Some(CallUsage { max_calls: bound(2), max_parallel: bound(1), count: 1, calls: vec![nested] }),
        signature: None,
        session: None,
        rationale: Rationale { decided_by: vec![String::new()], ..Rationale::default() },
        outcome: Outcome { end: end(number), output, metrics, usage },
    };
    replace_texts(&mut receipt, &mut |_| hostile.text());
    receipt
}

fn call(number: u64, hostile: &mut Hostile) -> Call {
    Call {
        caller_timeout: None,
        priority: Priority::Normal,
        door: Door::A2g,
        agent: AgentDid::parse(&format!("did:a:agent-{}", number % 7)).unwrap(),
        intent: IntentId::random(),
        is_new: false,
        charge: Charge::default(),
        parent: None,
        caller_tools: None,
        session: None,
        tool: ToolName::parse(&format!("tool_{}", number % 5)).unwrap(),
        arguments: [(hostile.text(), Value::String(hostile.text()))].into_iter().collect(),
        context: None,
    }
}

/// Records one call: a refusal and a run, with a verdict.
async fn record(journal: &Journal, number: u64) -> IntentId {
    let mut hostile = Hostile(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let call = call(number, &mut hostile);
    let verdict = Verdict {
        decision: Decision::Conditional,
        intent: call.intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: vec![hostile.text()],
        expires_at: Some(LATER),
        reason: Some(hostile.text()),
        rationale: Rationale { decided_by: vec![hostile.text()], ..Rationale::default() },
    };
    let receipt = receipt(&call, number, &mut hostile);
    let summary = IntentSummary::from_call(&call);
    journal.decisions.record_refusal(&summary, BlockedBy::VerdictDenied, &hostile.text(), NOW);
    assert!(matches!(journal.claims.claim(&call, LATER, Some(Arc::new(verdict))).unwrap(), ClaimResult::New));
    let start = StartRequest {
        call: &call,
        keep_until: LATER,
        proof: None,
        fallback_receipt: &receipt,
        task: None,
        effects: RunEffects::Possible,
    };
    assert!(matches!(journal.claims.start(start, NOW).await.unwrap(), StartResult::New));
    journal.claims.finish(Arc::new(receipt), None, Reporting::Here, NOW).await.unwrap();
    call.intent
}

/// The record of a run with harmless texts.
fn twin_record(record: &RunRecord) -> RunRecord {
    let mut twin_of = record.clone();
    if let Some(verdict) = &mut twin_of.verdict {
        verdict.reason.iter_mut().chain(&mut verdict.conditions).for_each(|text| *text = twin(text));
    }
    let Some(StoredArguments::Kept { arguments, .. }) = &mut twin_of.arguments else {
        panic!("no arguments")
    };
    let length = |arguments: &Map<String, Value>| serde_json::to_string_pretty(arguments).unwrap().len();
    let mut harmless = Map::from_iter([("a".to_owned(), json!(""))]);
    harmless["a"] = json!("x".repeat(length(arguments).saturating_sub(length(&harmless))));
    *arguments = harmless;
    twin_of.events.iter_mut().filter_map(|event| event.by.as_mut()).for_each(|by| *by = twin(by));
    let receipt = &mut twin_of.receipt.as_mut().expect("a receipt").receipt;
    replace_texts(receipt, &mut twin);
    for Artifact { content, .. } in &mut receipt.outcome.output.artifacts {
        if content.starts_with(b"\x89PNG") {
            continue;
        }
        let byte = if std::str::from_utf8(content).is_ok() { b'x' } else { b'\xf8' };
        content.fill(byte);
    }
    twin_of
}

fn viewer(caller: &Caller) -> Viewer<'_> {
    Viewer { caller, form_token: "token", waiting: 1, waiting_changes: 1 }
}

/// The elements of a page and the names of their attributes, in order. Fails if a link leads elsewhere, or if a character
/// is not visible.
fn skeleton(body: &Markup) -> Vec<String> {
    let caller = Caller::console_person();
    let Html(PreEscaped(page)) = document("Test", Some(&viewer(&caller)), body);
    let mut elements = Vec::new();
    for token in Tokenizer::new(&page) {
        match token.unwrap() {
            Token::StartTag(tag) => {
                let mut element = String::from_utf8(tag.name.to_vec()).unwrap();
                for (name, value) in &tag.attributes {
                    let name = String::from_utf8(name.to_vec()).unwrap();
                    let value = String::from_utf8(value.to_vec()).unwrap();
                    if ["href", "src", "action", "hx-get", "sse-connect"].contains(&name.as_str()) {
                        assert!(value.starts_with("/console") || value == "#main", "{name}={value}");
                    }
                    assert!(!name.starts_with("on") && name != "style" && name != "srcdoc", "{name}");
                    element.push(' ');
                    element.push_str(&name);
                }
                elements.push(element);
            }
            Token::EndTag(tag) => {
                elements.push(format!("/{}", String::from_utf8(tag.name.to_vec()).unwrap()))
            }
            Token::String(text) => {
                let text = String::from_utf8(text.to_vec()).unwrap();
                let hidden = text.chars().find(|c| is_display_control(*c) && !['\n', '\t'].contains(c));
                assert_eq!(hidden, None, "{text}");
            }
            Token::Comment(comment) => panic!("a comment: {comment:?}"),
            // A text may contain what the standard calls a parse error, such as a character without a meaning.
            Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    elements
}

fn run_page(record: &RunRecord) -> Vec<String> {
    let caller = Caller::console_person();
    let state =
        IntentState::Finished(record.receipt.as_ref().map(|receipt| Arc::new(receipt.receipt.clone())));
    let so_far = RunSoFar { calls: &[], said: None };
    let place = ProofPlace { intent: record.intent, node: Some("node"), journal: None };
    skeleton(&run_body(viewer(&caller), place, &record.agent, Some(&state), Some(record), None, so_far))
}

/// The page of the file changes of a run, as if the run were a decision on them, too.
fn changes_page(record: &RunRecord, state: ChangeState) -> Vec<String> {
    let caller = Caller::console_person();
    let receipt = Arc::new(record.receipt.as_ref().expect("a receipt").receipt.clone());
    let changes = receipt.outcome.usage.changes.as_ref().expect("changes");
    let summary = ChangeSetSummary {
        intent: receipt.intent,
        agent: receipt.agent.clone(),
        tool: receipt.tool.clone(),
        mode: FileEffects::Staged,
        state,
        count: changes.count,
        requests: 1,
        digest: changes.digest,
        bytes: 1,
        since: NOW,
        until: LATER,
    };
    let set = ChangeSet { summary, decisions: vec![Arc::clone(&receipt)], receipt };
    let page = SetPage {
        set: &set,
        record: Some(record),
        tool: None,
        node: None,
        keep: Duration::from_hours(24),
        notice: Some("notice"),
    };
    skeleton(&set_body(viewer(&caller), page, NOW))
}

/// The page of a node in a fleet.
fn listing<R: Clone, T>(page: &Page<R>, row: impl Fn(R) -> NodeRow<T>) -> Listing<T> {
    let pages = [("node".to_owned(), NodePage::new(page.clone(), row))].into();
    Listing { page: MergedPage::merge(pages, &Positions::default(), 50), is_in_fleet: true, notice: None }
}

fn query(text: &str) -> SearchQuery {
    // The other fields are refused unless they are a DID, a tool's name, a status or a time.
    serde_json::from_value(json!({ "text": text, "undelivered": text })).unwrap()
}

#[tokio::test]
async fn receipts_of_hostile_text_render_as_text() {
    let receipts = if std::env::var_os("A2G_TORTURE").is_some() { TORTURE_RECEIPTS } else { RECEIPTS };
    let folder = tempfile::tempdir().unwrap();
    let options = JournalOptions { durability: Durability::ProcessCrash, ..JournalOptions::default() };
    let (journal, _) = Journal::open(&folder.path().join("journal.db"), 20_000, options, NOW).unwrap();
    let mut intents = Vec::new();
    for batch in 0..receipts / 100 {
        // Written together, so that they share transactions.
        intents.extend(join_all((0..100).map(|number| record(&journal, batch * 100 + number))).await);
    }
    // The journal looks through all reports that are not delivered to render one run.
    for _ in 0..receipts {
        let (due, _) = journal.deliveries.next_report().await.unwrap();
        journal.deliveries.mark_delivered(&due);
    }
    journal.flush().await.unwrap();

    let mut shapes = std::collections::BTreeSet::new();
    let mut states = [ChangeState::Waiting, ChangeState::InForce, ChangeState::Discarded].into_iter().cycle();
    for intent in &intents {
        let record = journal.records.run_record(*intent).await.unwrap().unwrap();
        let harmless = twin_record(&record);
        let page = run_page(&record);
        assert_eq!(page, run_page(&harmless), "{intent}");
        shapes.insert(page);
        let state = states.next().unwrap();
        let page = changes_page(&record, state);
        assert_eq!(page, changes_page(&harmless, state), "{intent} {state:?}");
        shapes.insert(page);
    }
    assert!(shapes.len() > 20, "the pages have no variety: {}", shapes.len());

    let mut before = None;
    let mut runs = 0;
    let mut hostile = Hostile(7);
    loop {
        let page = journal.records.search_runs(RunSearch::default(), |_| true, before, 50).await.unwrap();
        let text = hostile.text();
        let mut harmless = page.clone();
        for run in &mut harmless.items {
            run.approved_by.iter_mut().chain(&mut run.main_argument).for_each(|text| *text = twin(text));
        }
        let shape = skeleton(&RunRow::body(&query(&text), &listing(&page, RunRow::of_run)));
        assert_eq!(
            shape,
            skeleton(&RunRow::body(&query(&twin(&text)), &listing(&harmless, RunRow::of_run))),
            "{text}"
        );
        // Rows of a file that somebody changed may have anything in these columns.
        let mut changed = page.clone();
        for run in &mut changed.items {
            (run.agent, run.tool) = (hostile.text(), hostile.text());
        }
        assert_eq!(
            shape,
            skeleton(&RunRow::body(&query(&text), &listing(&changed, RunRow::of_run))),
            "{text}"
        );
        runs += page.items.len();
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(runs as u64, receipts);
    let mut before = None;
    let mut refusals = 0;
    loop {
        let page =
            journal.records.search_refusals(RefusalSearch::default(), |_| true, before, 50).await.unwrap();
        let text = hostile.text();
        let mut harmless = page.clone();
        harmless.items.iter_mut().for_each(|one| one.refusal.message = twin(&one.refusal.message));
        let shape = skeleton(&RefusalRow::body(&query(&text), &listing(&page, RefusalRow::of_refusal)));
        assert_eq!(
            shape,
            skeleton(&RefusalRow::body(&query(&twin(&text)), &listing(&harmless, RefusalRow::of_refusal))),
            "{text}"
        );
        refusals += page.items.len();
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(refusals as u64, receipts);

    let span = Some(SeriesSpan::new(NOW - Duration::from_secs(3_600), NOW));
    let mut usage = journal.records.usage(None, |_| true, u64::MAX, span).await.unwrap().finish();
    assert!(usage.total.runs > 0);
    // The texts to copy are ASCII: see `narrower::tests`.
    let part = |_: &str| super::usage::copied("id", "text");
    let harmless = skeleton(&usage_body(1, &usage, CountedNodes::default(), part, part));
    for group in usage.agents.iter_mut().chain(&mut usage.tools) {
        group.name = hostile.text();
        let refusals = std::mem::take(&mut group.figures.refusals);
        group.figures.refusals = refusals.into_values().map(|count| (hostile.text(), count)).collect();
    }
    assert_eq!(harmless, skeleton(&usage_body(1, &usage, CountedNodes::default(), part, part)));
}
