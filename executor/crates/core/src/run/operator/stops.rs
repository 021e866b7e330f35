//! Stops: an operator stops one agent, one tool or everything, and resumes it.
//!
//! ```text
//! stop:   sent to the journal ─▶ set, waiting intents withdrawn, runs aborted: one step of `a2g_intent::Intents`
//! call:   … ─▶ held, claimed or started: each a step that finds the stop ─▶ refused
//! resume: sent to the journal ─▶ on the disk ─▶ lifted
//! ```
//! No call slips through, because each of these steps is wholly before or after the stop. A stop takes effect before its
//! record is on the disk. It is lifted only once the record of its end is on the disk.

use crate::run::Operator;
use crate::run::faults::unsaved_decision_fault;
use crate::run::orders::{StopState, finish_order};
use crate::run::wait_records::EndOfWait;
use crate::run::waits::EndedIntents;
use a2g_govern::StopRight;
use a2g_intent::Scope;
use a2g_journal::Resolution;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::session::SessionEnd;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use std::time::Duration;

/// The method in the records of the runs that a stop ended.
const STOP_METHOD: &str = "a2g/stop";

impl Operator {
    /// Stops an agent, a tool or everything on behalf of an operator: aborts its runs, withdraws its queued and waiting
    /// intents, and refuses its calls until [`Self::resume`], also after a restart. It replaces an earlier stop of the
    /// same target. Returns the number of runs and intents that it ended.
    ///
    /// # Errors
    /// If the stop is not yet on the disk, or not yet stored in the fleet; it is in force at this executor nevertheless.
    pub async fn stop(
        &self,
        target: StopTarget,
        reason: OperatorReason,
        right: StopRight<'_>,
    ) -> Result<usize, Fault> {
        // Later than every known order about the target, even if the clock of the node that gave it is ahead.
        let now = self.clock.now();
        let latest = self.intents.read(|intents| intents.stops.latest_order(&target));
        let since = latest.map_or(now, |latest| now.max(latest + Duration::from_micros(1)));
        let stop = Stop { target, reason, by: right.by().to_owned(), since };
        // Published again by `follow_orders` if the order fails.
        self.intents.mark_unpublished_stops();
        let order = self.node.start_stop_order(&stop, StopState::InForce);
        let result = self.set_stop(stop.clone(), Scope::Fleet).await;
        finish_order(order).await?;
        self.pending.refresh_all().await;
        let is_included = |agent: &AgentDid, tool: &ToolName| stop.target.includes(agent, tool);
        let message = stop.refusal_message();
        let later =
            self.end_later_waits(&is_included, AbortReason::Stopped, stopped_by(&stop.by, &message)).await?;
        result.map(|count| count + later)
    }

    /// Sets a stop at this executor: see [`Self::stop`].
    pub(in crate::run) async fn set_stop(&self, stop: Stop, scope: Scope) -> Result<usize, Fault> {
        let by = stop.by.as_str();
        tracing::warn!(stopped = %stop.target, reason = %stop.reason, caller = by, "stopped by an operator");
        let message = stop.refusal_message();
        // Everything up to the first `await` happens even if the caller disconnects.
        let (set, ended) = self.intents.update(|intents| {
            // Sent to the journal before its effects, so that a restart in between finds it.
            let set = self.decisions.set_stop(&stop);
            let ended = intents.stop(stop.clone(), scope);
            let target = &stop.target;
            self.compile_waits.end(|_, agent, tool| target.includes(agent, tool), AbortReason::Stopped);
            (set, self.waits.record_ended(ended, AbortReason::Stopped, stopped_by(by, &message)))
        });
        // Also those whose guests have ended, and whose changes have not taken effect.
        let settling = self.changes.withdraw_stopped(&stop);
        self.tool_sessions.end_all(|agent, tool| stop.target.includes(agent, tool), SessionEnd::Stopped);
        // A process that waits for another run has the folders of its grant open. Last, so that a run that is not aborted
        // leaves none either.
        self.catalogue.current().isolate.end_idle();
        let EndedIntents { count, newly_aborted, recording } = ended;
        let stopped = async {
            if newly_aborted.is_empty() {
                return Ok(());
            }
            self.decisions.record_stop(&newly_aborted, by, STOP_METHOD).await
        };
        // Joined, so that every record is sent before any of them is waited for, and a slow one delays no other.
        let (set, withdrawn, stopped) = tokio::join!(set, recording, stopped);
        let recorded = set.and(withdrawn.map(drop)).and(stopped);
        recorded.map(|()| count + settling).map_err(|error| unsaved_decision_fault(&error))
    }

    /// Lifts a stop on behalf of an operator. Returns `false` if the target is not stopped, or was stopped again in the
    /// meantime. Only the stop of exactly this target is lifted: resuming everything does not resume a stopped agent.
    ///
    /// # Errors
    /// If this cannot be stored in the fleet: the stop stays in force. If it cannot be recorded here: the stop stays in
    /// force at this executor.
    pub async fn resume(&self, target: &StopTarget, right: StopRight<'_>) -> Result<bool, Fault> {
        // The others first: if they cannot be told, the stop stays in force everywhere, and the call can be repeated.
        if let Some(stop) = self.intents.find_exact_stop(target) {
            finish_order(self.node.start_stop_order(&stop, StopState::Lifted)).await?;
        }
        self.lift_stop(target, right.by()).await
    }

    /// Lifts a stop at this executor: see [`Self::resume`].
    pub(in crate::run) async fn lift_stop(&self, target: &StopTarget, by: &str) -> Result<bool, Fault> {
        // Sent under the lock, so that the journal gets a later stop of the target after this.
        let lifting = self.intents.read(|intents| {
            let number = intents.stops.get(target)?.number;
            Some((number, self.decisions.lift_stop(target, by)))
        });
        let Some((number, recording)) = lifting else { return Ok(false) };
        // `false` from the journal means that another caller has lifted it there.
        let _was_stopped = recording.await.map_err(|error| {
            error.to_fault(format!("the stop stays in force, because its end cannot be recorded: {error}"))
        })?;
        let is_lifted = self.intents.update(|intents| intents.stops.remove(target, number));
        if is_lifted {
            tracing::warn!(resumed = %target, caller = by, "resumed by an operator");
        }
        Ok(is_lifted)
    }
}

/// The end of a wait that `by` has stopped.
fn stopped_by<'a>(by: &'a str, reason: &'a str) -> EndOfWait<'a> {
    EndOfWait {
        resolution: Resolution::Cancelled,
        author_or_reason: by,
        blocked_by: Some(BlockedBy::Stopped),
        reason,
    }
}
