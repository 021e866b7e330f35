//! The switch: an operator stops one agent, one tool or everything, and resumes it.
//!
//! ```text
//! stop:   set ─▶ sent to the journal ─▶ waiting intents withdrawn, runs aborted        (under the lock of the switch)
//! call:   … ─▶ registered as active or held ─▶ checked against the switch ─▶ refused, or it may run
//! resume: sent to the journal ─▶ on the disk ─▶ lifted
//! ```
//! No call slips through: one that is registered before the stop is withdrawn or aborted by it, and one that is
//! registered later finds the stop in its check. A stop takes effect before its record is on the disk. It is lifted
//! only once the record of its end is on the disk.

use super::decisions::{EndOfWait, record_end_of_wait};
use super::{CallFilter, Executor};
use a2g_govern::SwitchRight;
use a2g_journal::{Journal, JournalError, Resolution};
use a2g_sandbox::Abort;
use a2g_types::call::Call;
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use time::OffsetDateTime;

/// The method in the records of the runs that a stop ended.
const STOP_METHOD: &str = "a2g/stop";

/// The stops in force.
#[derive(Debug)]
pub(super) struct Switch(Mutex<Stops>);

#[derive(Debug, Default)]
struct Stops {
    by_target: BTreeMap<StopTarget, NumberedStop>,
    /// The number of stops so far in this process.
    count: u64,
    /// The times of the latest stops that nodes of the fleet have set or lifted.
    orders: BTreeMap<StopTarget, OffsetDateTime>,
    are_unpublished: bool,
}

#[derive(Debug, Clone)]
struct NumberedStop {
    stop: Stop,
    /// Tells the stop from a later one of the same target.
    number: u64,
}

impl Switch {
    /// Restores the stops of an earlier process.
    pub(super) fn restore(journal: &Journal) -> Self {
        let mut stops = Stops::default();
        for stop in journal.take_stops() {
            tracing::warn!(stopped = %stop.target, by = stop.by, since = %stop.since, "stopped by an operator");
            stops.set(stop);
        }
        Self(Mutex::new(stops))
    }

    /// The stop that includes the calls of `agent` with `tool`, if any.
    pub(super) fn find(&self, agent: &AgentDid, tool: &ToolName) -> Option<Stop> {
        // Operators set few stops, so all are compared.
        let stops = self.0.lock();
        let found = stops.by_target.values().find(|numbered| numbered.stop.target.includes(agent, tool));
        found.map(|numbered| numbered.stop.clone())
    }

    /// Remembers whether other nodes of the fleet may not know of a stop.
    pub(super) fn mark_unpublished(&self, may_be_unpublished: bool) {
        self.0.lock().are_unpublished |= may_be_unpublished;
    }

    /// Returns `true` if other nodes of the fleet may not know of a stop, and forgets it.
    pub(super) fn take_unpublished(&self) -> bool {
        std::mem::take(&mut self.0.lock().are_unpublished)
    }

    /// Remembers the time of a stop that a node of the fleet has set or lifted.
    pub(super) fn note_order(&self, target: &StopTarget, since: OffsetDateTime) {
        let mut stops = self.0.lock();
        let latest = stops.orders.entry(target.clone()).or_insert(since);
        *latest = since.max(*latest);
    }

    /// The time of the latest stop of a target that a node of the fleet has set or lifted.
    fn latest_order(&self, target: &StopTarget) -> Option<OffsetDateTime> {
        self.0.lock().orders.get(target).copied()
    }

    /// The stop of exactly this target.
    pub(super) fn get(&self, target: &StopTarget) -> Option<Stop> {
        self.0.lock().by_target.get(target).map(|numbered| numbered.stop.clone())
    }

    /// The stops in force, by target.
    pub(super) fn list(&self) -> Vec<Stop> {
        self.0.lock().by_target.values().map(|numbered| numbered.stop.clone()).collect()
    }

    /// Sets a stop, and calls `on_set` under the lock.
    fn set<T>(&self, stop: Stop, on_set: impl FnOnce() -> T) -> T {
        let mut stops = self.0.lock();
        stops.set(stop);
        on_set()
    }

    /// Calls `on_found` under the lock if a target is stopped. Returns the number of the stop with the result.
    fn with_number<T>(&self, target: &StopTarget, on_found: impl FnOnce() -> T) -> Option<(u64, T)> {
        let stops = self.0.lock();
        let number = stops.by_target.get(target)?.number;
        Some((number, on_found()))
    }

    /// Removes the stop with this number. Returns `false` if it was lifted or replaced before.
    fn remove(&self, target: &StopTarget, number: u64) -> bool {
        let mut stops = self.0.lock();
        let is_same = stops.by_target.get(target).is_some_and(|numbered| numbered.number == number);
        is_same && stops.by_target.remove(target).is_some()
    }
}

impl Stops {
    fn set(&mut self, stop: Stop) {
        self.count += 1;
        let number = self.count;
        self.by_target.insert(stop.target.clone(), NumberedStop { stop, number });
    }
}

impl Executor {
    /// Stops an agent, a tool or everything on behalf of an operator: aborts its runs, withdraws its queued and waiting
    /// intents, and refuses its calls until [`Self::resume`], also after a restart. It replaces an earlier stop of the
    /// same target. Returns the number of runs and intents that it ended.
    ///
    /// # Errors
    /// If the stop is not on the disk, or not stored in the fleet, yet; it is in force at this executor nevertheless.
    pub async fn stop(
        &self,
        target: StopTarget,
        reason: OperatorReason,
        right: SwitchRight<'_>,
    ) -> Result<usize, Fault> {
        // Later than every known order about the target, even if the clock of the node that gave it is ahead.
        let since = self
            .switch
            .latest_order(&target)
            .map_or(self.clock.now(), |latest| self.clock.now().max(latest + Duration::from_micros(1)));
        let stop = Stop { target, reason, by: right.by().to_owned(), since };
        // Published again by `follow_orders` if the order fails.
        self.switch.mark_unpublished(true);
        let order = self.start_stop_order(&stop, true);
        let result = self.set_stop(stop.clone()).await;
        self.finish_order(order).await?;
        self.deny_all_due().await?;
        let is_included = |agent: &AgentDid, tool: &ToolName| stop.target.includes(agent, tool);
        let elsewhere = self.end_stored_waits(&is_included, AbortReason::Stopped).await?;
        result.map(|count| count + elsewhere)
    }

    /// Sets a stop at this executor: see [`Self::stop`].
    pub(super) async fn set_stop(&self, stop: Stop) -> Result<usize, Fault> {
        let (by, now) = (stop.by.as_str(), self.clock.now());
        tracing::warn!(stopped = %stop.target, reason = %stop.reason, caller = by, "stopped by an operator");
        let is_included = |agent: &AgentDid, tool: &ToolName| stop.target.includes(agent, tool);
        let filter: CallFilter<'_> = &is_included;
        let message = stop.refusal_message();
        // Everything up to the first `await` happens even if the caller disconnects.
        let (set, (waiting_count, withdrawn), (run_count, newly_stopped)) =
            self.switch.set(stop.clone(), || {
                // Sent to the journal before its effects: its record changes the file's format, and an older version,
                // which cannot read receipts of stopped runs, then refuses the file.
                let set = self.journal.set_stop(&stop);
                let withdrawn = self.escalations.remove_all(filter, |removed| {
                    self.note_stopped_orphans(&removed);
                    let end = EndOfWait {
                        resolution: Resolution::Cancelled,
                        author_or_reason: by,
                        blocked_by: BlockedBy::Stopped,
                        reason: &message,
                    };
                    record_end_of_wait(&self.journal, removed, end, now)
                });
                self.compile_waits.end(|_, agent, tool| filter(agent, tool), AbortReason::Stopped);
                (set, withdrawn, self.active_runs.abort_all(filter, AbortReason::Stopped))
            });
        let stopped = async {
            if newly_stopped.is_empty() {
                return Ok(());
            }
            self.journal.record_stop(&newly_stopped, by, STOP_METHOD).await
        };
        // Joined, so that every record is sent before any of them is waited for, and a slow one delays no other.
        let (set, withdrawn, stopped) = tokio::join!(set, withdrawn, stopped);
        let recorded = set.and(withdrawn.map(drop)).and(stopped);
        recorded.map(|()| waiting_count + run_count).map_err(|error| self.unsaved_decision_fault(&error))
    }

    /// Lifts a stop on behalf of an operator. Returns `false` if the target is not stopped, or was stopped again in the
    /// meantime. Only the stop of exactly this target is lifted: resuming everything does not resume a stopped agent.
    ///
    /// # Errors
    /// If this cannot be stored in the fleet: the stop stays in force. If it cannot be recorded here: the stop stays in
    /// force at this executor.
    pub async fn resume(&self, target: &StopTarget, right: SwitchRight<'_>) -> Result<bool, Fault> {
        // The others first: if they cannot be told, the stop stays in force everywhere, and the call can be repeated.
        if let Some(stop) = self.switch.get(target) {
            self.finish_order(self.start_stop_order(&stop, false)).await?;
        }
        self.lift_stop(target, right.by()).await
    }

    /// Lifts a stop at this executor: see [`Self::resume`].
    pub(super) async fn lift_stop(&self, target: &StopTarget, by: &str) -> Result<bool, Fault> {
        // Sent under the lock, so that the journal gets a later stop of the target after this.
        let Some((number, recording)) =
            self.switch.with_number(target, || self.journal.lift_stop(target, by))
        else {
            return Ok(false);
        };
        // `false` from the journal means that another caller has lifted it there.
        let _was_stopped = recording.await.map_err(|error| match error {
            JournalError::Backlog
            | JournalError::NoSpace
            | JournalError::Share { .. }
            | JournalError::Busy => self
                .busy_fault(&format!("the stop stays in force, because its end cannot be recorded: {error}")),
            JournalError::Broken(_) => Fault::Internal(ErrorChain(&error).to_string()),
        })?;
        let is_lifted = self.switch.remove(target, number);
        if is_lifted {
            tracing::warn!(resumed = %target, caller = by, "resumed by an operator");
        }
        Ok(is_lifted)
    }

    /// The stops in force, by target.
    #[must_use]
    pub fn stops(&self) -> Vec<Stop> {
        self.switch.list()
    }

    /// Refuses a call that an operator has stopped.
    pub(super) fn check_stopped(&self, call: &Call) -> Result<(), Fault> {
        self.switch.find(&call.agent, &call.tool).map_or(Ok(()), |stop| Err(stop_fault(call.intent, &stop)))
    }

    /// Refuses a registered call, before its guest begins, if an operator has stopped it, even if that stop has been
    /// lifted.
    // The switch shows a stop that is in force, and `abort` one that was lifted. A stop holds the lock of the switch
    // until it has aborted all runs. A call that finds no stop here therefore sent its start to the journal before any
    // later stop.
    pub(super) fn check_running(&self, call: &Call, abort: &Abort) -> Result<(), Fault> {
        self.check_stopped(call)?;
        if abort.reason() == Some(AbortReason::Stopped) {
            return Err(lifted_stop_fault(call.intent));
        }
        Ok(())
    }
}

/// The fault for a call that a stop includes.
pub(super) fn stop_fault(intent: IntentId, stop: &Stop) -> Fault {
    refusal(intent, stop.refusal_message())
}

/// The refusal of a call that an operator stopped by a stop that has been lifted since.
pub(super) fn lifted_stop_fault(intent: IntentId) -> Fault {
    let message = "an operator stopped this call before it ran, and has lifted the stop since: send it again";
    refusal(intent, message.to_owned())
}

pub(super) fn refusal(intent: IntentId, message: String) -> Fault {
    Fault::Refused { intent: Some(intent), risk_score: None, blocked_by: BlockedBy::Stopped, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(target: StopTarget, by: &str) -> Stop {
        let reason = OperatorReason::parse("why").unwrap();
        Stop { target, reason, by: by.to_owned(), since: OffsetDateTime::UNIX_EPOCH }
    }

    fn switch() -> Switch {
        Switch::restore(&Journal::in_memory())
    }

    #[test]
    fn a_call_is_stopped_by_its_agent_by_its_tool_and_by_a_stop_of_everything() {
        let (agent, other) = (AgentDid::parse("did:a:a").unwrap(), AgentDid::parse("did:a:b").unwrap());
        let [read, write] = ["read_file", "write_file"].map(|name| ToolName::parse(name).unwrap());
        let switch = switch();
        assert_eq!(switch.find(&agent, &read), None);
        switch.set(stop(StopTarget::Agent(agent.clone()), "a"), || ());
        switch.set(stop(StopTarget::Tool(write.clone()), "b"), || ());
        let by = |agent, tool| switch.find(agent, tool).map(|stop| stop.by);
        assert_eq!(by(&agent, &read).as_deref(), Some("a"));
        assert_eq!(by(&other, &write).as_deref(), Some("b"));
        assert_eq!(by(&other, &read), None);
        switch.set(stop(StopTarget::Everything, "c"), || ());
        assert_eq!((by(&other, &read).as_deref(), switch.list().len()), (Some("c"), 3));
    }

    #[test]
    fn a_resumption_does_not_lift_a_later_stop() {
        let switch = switch();
        switch.set(stop(StopTarget::Everything, "first"), || ());
        let (first, ()) = switch.with_number(&StopTarget::Everything, || ()).unwrap();
        switch.set(stop(StopTarget::Everything, "second"), || ());
        assert!(!switch.remove(&StopTarget::Everything, first));
        assert_eq!(switch.list().len(), 1);
        let (second, ()) = switch.with_number(&StopTarget::Everything, || ()).unwrap();
        assert!(switch.remove(&StopTarget::Everything, second) && switch.list().is_empty());
        assert!(switch.with_number(&StopTarget::Everything, || ()).is_none());
    }
}
