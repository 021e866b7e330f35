//! The past of the agents, which policies in Cedar read: the ledger of the built-in governor.
//!
//! ```text
//! decide: facts, verdict and count under one lock ─▶ LedgerEntry ─┬─ dropped ─▶ forgotten: the call never began
//!                                                                 └─ begins ──▶ counts until its end is observed
//! ```
//! An entry goes wherever the right to run the call goes, and is dropped with it. So every way on which an admitted call
//! comes to nothing (an argument that does not fit its schema, a full queue, a stop, an expired verdict, a denial) forgets
//! the call, and none needs to say so.
//!
//! The lock is the innermost one: nothing is locked while it is held.

use super::decide::denial;
use super::risk;
use a2g_policy::{Admission, AdmittedCall, EndedCall, Ledger, Possible};
use a2g_types::call::Call;
use a2g_types::ident::AgentDid;
use a2g_types::outcome::Receipt;
use a2g_types::verdict::{Decision, Verdict};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use time::OffsetDateTime;

/// The reason for which every call of an agent is denied that has no place in the ledger.
fn no_place_reason() -> String {
    format!(
        "this governor keeps the past of {} agents, which its policies read, and each of them has made a call in the last 24 \
         hours: what another agent does could not be counted, so it may do nothing. Use fewer agents, or wait until one has \
         made no call for 24 hours",
        Ledger::MAX_AGENTS
    )
}

/// The past of the agents.
#[derive(Debug, Default)]
pub(super) struct CallHistory(Arc<Mutex<Ledger>>);

impl CallHistory {
    /// Decides on a call and counts it, in one step: of two calls at once, the second one finds the first.
    ///
    /// `max_requests` is the number of requests that a run may send. There is no entry for a denied call.
    pub(super) fn decide(
        &self,
        call: &Call,
        now: OffsetDateTime,
        max_requests: u64,
        decide: impl FnOnce(&Ledger) -> Verdict,
    ) -> (Verdict, Option<LedgerEntry>) {
        let mut ledger = self.0.lock();
        if !ledger.has_room(now, &call.agent) {
            return (denial(call, risk::assess(call), no_place_reason()), None);
        }
        let verdict = decide(&ledger);
        match verdict.decision {
            Decision::Denied => {
                ledger.deny(now, &call.agent);
                (verdict, None)
            }
            Decision::Approved | Decision::Conditional | Decision::Escalate => {
                let entry = self.admit(&mut ledger, call, &verdict, now, max_requests);
                (verdict, Some(entry))
            }
        }
    }

    /// Counts a call again that waits since an earlier process.
    pub(super) fn recount(
        &self,
        call: &Call,
        verdict: &Verdict,
        now: OffsetDateTime,
        max_requests: u64,
    ) -> LedgerEntry {
        self.admit(&mut self.0.lock(), call, verdict, now, max_requests)
    }

    fn admit(
        &self,
        ledger: &mut Ledger,
        call: &Call,
        verdict: &Verdict,
        now: OffsetDateTime,
        max_requests: u64,
    ) -> LedgerEntry {
        let Call { agent, intent, tool, .. } = call;
        let possible = Possible::of_verdict(verdict, max_requests);
        let admission = ledger.admit(now, AdmittedCall { agent, intent: *intent, tool, possible });
        LedgerEntry { ledger: Arc::clone(&self.0), admission, max_requests, is_kept: AtomicBool::new(false) }
    }

    /// Counts a denied call.
    pub(super) fn deny(&self, now: OffsetDateTime, agent: &AgentDid) {
        self.0.lock().deny(now, agent);
    }

    /// Counts a call that has ended.
    pub(super) fn end(&self, now: OffsetDateTime, end: EndedCall<'_>) {
        self.0.lock().end(now, end);
    }

    /// Counts a run that has ended, or a decision on its file changes.
    pub(super) fn end_of(&self, now: OffsetDateTime, receipt: &Receipt) {
        self.0.lock().end_of(now, receipt);
    }
}

/// An admitted call in the ledger of the built-in governor. Once it is dropped, the call is forgotten, unless its run has
/// begun.
#[derive(Debug)]
pub struct LedgerEntry {
    ledger: Arc<Mutex<Ledger>>,
    admission: Admission,
    max_requests: u64,
    /// `true` once dropping it has no effect.
    is_kept: AtomicBool,
}

impl LedgerEntry {
    /// Notes that the run begins, or that another executor has the call: from now on, the call counts until its end is
    /// observed.
    pub(crate) fn begin(&self) {
        self.ledger.lock().begin(&self.admission);
        self.is_kept.store(true, Relaxed);
    }

    /// Lets the call count after this is dropped: until its end is observed, or for a day if it has not begun.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }

    /// Notes that a person has given the call another manifest.
    pub(crate) fn amend(&self, verdict: &Verdict) {
        self.ledger.lock().amend(&self.admission, Possible::of_verdict(verdict, self.max_requests));
    }
}

impl Drop for LedgerEntry {
    fn drop(&mut self) {
        if !*self.is_kept.get_mut() {
            self.ledger.lock().forget(&self.admission);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LocalGovernor, PolicySet};
    use super::*;
    use a2g_types::call::{Door, Priority};
    use a2g_types::clock::ManualClock;
    use a2g_types::ident::{IntentId, ToolName};
    use a2g_types::memory::Charge;
    use a2g_types::outcome::Status;
    use a2g_types::tool::{Contract, DeclaredCapabilities, Descriptor, Digest};
    use a2g_wire::a2g::decode::ReportHead;
    use serde_json::json;
    use std::sync::Barrier;
    use time::Duration;
    use time::macros::datetime;

    const NOON: OffsetDateTime = datetime!(2026-12-01 12:00 UTC);

    fn descriptor(name: &str) -> Descriptor {
        Descriptor {
            name: ToolName::parse(name).unwrap(),
            title: None,
            version: "1.0.0".to_owned(),
            description: String::new(),
            contract: Contract::Typed,
            digest: Digest([0; 32]),
            arguments_schema: json!({ "type": "object", "properties": {} }),
            settings: None,
            result_schema: None,
            is_idempotent: false,
            has_sessions: false,
            capabilities: DeclaredCapabilities::default(),
            signature: None,
        }
    }

    fn call(tool: &str) -> Call {
        Call {
            door: Door::A2g,
            agent: AgentDid::parse("did:a:b").unwrap(),
            intent: IntentId::random(),
            is_new: true,
            tool: ToolName::parse(tool).unwrap(),
            arguments: serde_json::Map::new(),
            context: None,
            caller_timeout: None,
            priority: Priority::Normal,
            charge: Charge::default(),
            parent: None,
            caller_tools: None,
            session: None,
        }
    }

    /// A governor that permits calls of `check`, and those of `pay` under a condition.
    fn governor(condition: &str) -> (LocalGovernor, Arc<ManualClock>) {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            r#"permit (principal, action == Action::"check", resource);
            permit (principal, action == Action::"pay", resource) when {{ {condition} }};"#
        );
        std::fs::write(folder.path().join("pay.cedar"), text).unwrap();
        let clock = Arc::new(ManualClock::new(NOON));
        let governor = LocalGovernor::new(PolicySet::load(folder.path()).unwrap(), clock.clone());
        governor.use_tools(&[descriptor("check"), descriptor("pay")]);
        (governor, clock)
    }

    fn entry(governor: &LocalGovernor, tool: &str) -> Option<LedgerEntry> {
        governor.decide_counted(&call(tool), |_| true).1
    }

    #[test]
    fn of_calls_at_once_only_one_is_the_first() {
        const THREADS: usize = 8;
        for _attempt in 0..20 {
            let (governor, _clock) = governor("context.history.same.day == 0");
            let barrier = Barrier::new(THREADS);
            let entries = std::thread::scope(|scope| {
                let decide = || {
                    barrier.wait();
                    entry(&governor, "pay")
                };
                let threads = (0..THREADS).map(|_| scope.spawn(decide)).collect::<Vec<_>>();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(entries.len(), 1);
        }
    }

    #[test]
    fn a_call_counts_while_it_may_run_and_for_a_day_after_it_has_begun() {
        let (governor, clock) = governor("context.history.same.day == 0");
        let pay = || entry(&governor, "pay");
        drop(pay().unwrap());
        let right = Arc::new(pay().unwrap());
        let other = Arc::clone(&right);
        drop(right);
        assert!(pay().is_none(), "the right to run it is still there");
        drop(other);
        pay().unwrap().begin();
        assert!(pay().is_none(), "it has begun, and no end was observed");
        clock.set(NOON + Duration::hours(25));
        assert!(pay().is_none(), "it runs for long");
        let (elsewhere, clock) = self::governor("context.history.same.day == 0");
        let is_denied = || elsewhere.decide(&call("pay")).decision == Decision::Denied;
        assert_eq!((is_denied(), is_denied()), (false, true));
        clock.set(NOON + Duration::hours(25));
        assert!(!is_denied(), "an executor elsewhere has not run it");
    }

    #[test]
    fn a_tool_is_permitted_after_another_has_succeeded() {
        let (governor, clock) = governor(r#"context.history.succeeded.contains(Tool::"check")"#);
        let check = call("check");
        let report = |status| {
            let head = ReportHead { agent: check.agent.clone(), intent: check.intent, status };
            governor.observe_report(&head, "{}");
        };
        assert_ne!(governor.decide(&check).decision, Decision::Denied);
        assert!(entry(&governor, "pay").is_none(), "it is in progress");
        report(Status::Success);
        assert!(entry(&governor, "pay").is_some());
        clock.set(NOON + Duration::hours(25));
        assert!(entry(&governor, "pay").is_none(), "it was yesterday");
        report(Status::Success);
        assert!(entry(&governor, "pay").is_none(), "the report came again");
    }

    #[test]
    fn a_denied_call_counts_as_denied() {
        let (governor, _clock) = governor("context.history.denials.hour >= 2");
        let is_denied = |_| governor.decide(&call("pay")).decision == Decision::Denied;
        assert_eq!((0..3).map(is_denied).collect::<Vec<_>>(), [true, true, false]);
    }
}
