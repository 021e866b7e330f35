//! The sets that earlier processes have left, brought to what the receipts of their runs and of the decisions on them say.
//!
//! A decision that has taken effect, and whose record does not say so, gets another one. Files that contradict the receipts
//! are left to an operator.

use super::decision::{Decision, told_state};
use super::{ChangeSets, PastDecisions};
use crate::run::effects::{LeftSet, RequestEnd, TakenSet};
use a2g_overlay::Recovered;
use a2g_types::fault::Fault;
use a2g_types::outcome::{ChangeState, DecisionAct, Receipt, Status};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The author of a decision that was interrupted after it had taken effect, and whose author the journal does not name.
const RECOVERY: &str = "the executor (recovery)";
/// The time between two attempts to record a decision that has taken effect.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of these attempts.
const MAX_RECORD_TRIES: u32 = 30;

impl ChangeSets {
    /// Brings the sets of earlier processes to what the decisions on them say. Call this before anything runs.
    ///
    /// # Ambient Authority
    /// As [`EffectsFolder::recover`](crate::run::effects::EffectsFolder::recover).
    ///
    /// # Errors
    /// If the folder cannot be read or another process uses it.
    pub(in crate::run) async fn recover(self: &Arc<Self>) -> io::Result<()> {
        for left in self.effects.recover(&self.journal.claims).await? {
            let intent = left.receipt.intent;
            if let Err(fault) = self.restore(left).await {
                tracing::error!(%intent, ?fault, "the file changes of an earlier run are left to the next start");
            }
        }
        Ok(())
    }

    async fn restore(self: &Arc<Self>, left: LeftSet) -> Result<(), Fault> {
        let receipt = Arc::clone(&left.receipt);
        let PastDecisions { receipts: decisions, mut count } = self.past_decisions(&receipt).await?;
        let last = decisions.last().and_then(|last| Some((DecisionAct::of_tool(last.tool.as_str())?, last)));
        let by =
            || last.and_then(|(_, last)| last.approved_by.clone()).unwrap_or_else(|| RECOVERY.to_owned());
        let state = match told_state(&receipt, &decisions) {
            // The journal has pruned the report of the commit.
            ChangeState::Waiting if left.was_in_force() && decisions.len() < count as usize => {
                ChangeState::InForce
            }
            state @ (ChangeState::Waiting
            | ChangeState::Sending
            | ChangeState::InForce
            | ChangeState::Kept
            | ChangeState::Discarded
            | ChangeState::Undone) => state,
        };
        match (state, left.found) {
            (ChangeState::Waiting | ChangeState::Sending, Recovered::Unchanged)
            | (ChangeState::Kept | ChangeState::InForce, Recovered::Committed) => {}
            // A commit was interrupted after it had taken effect.
            (ChangeState::Waiting | ChangeState::Sending, Recovered::Committed) => {
                let ends = left.read_request_ends();
                count += 1;
                self.record_recovered(&receipt, DecisionAct::Commit, &by(), count, &ends).await?;
            }
            // An undo was interrupted after it had taken effect.
            (ChangeState::Kept | ChangeState::InForce, Recovered::Unchanged)
                if last.is_some_and(|(act, _)| act == DecisionAct::Undo) =>
            {
                let ends = left.read_request_ends();
                self.record_recovered(&receipt, DecisionAct::Undo, &by(), count.saturating_add(1), &ends)
                    .await?;
                left.remove();
                return Ok(());
            }
            (ChangeState::Kept | ChangeState::InForce, Recovered::Unchanged) => {
                left.leave(
                    &self.effects,
                    "the report of the run says that they are in force, and they are not",
                );
                return Ok(());
            }
            (ChangeState::Discarded | ChangeState::Undone, Recovered::Unchanged) => {
                left.remove();
                return Ok(());
            }
            (ChangeState::Discarded | ChangeState::Undone, Recovered::Committed) => {
                left.leave(
                    &self.effects,
                    "the journal says that they were discarded or undone, and they are in force",
                );
                return Ok(());
            }
        }
        left.keep(&self.effects, count, self.clock.now());
        Ok(())
    }

    /// Records, as the decision with this number, one that has taken effect and has no record that says so. No request is
    /// sent any more.
    async fn record_recovered(
        &self,
        receipt: &Receipt,
        act: DecisionAct,
        by: &str,
        number: u32,
        ends: &[RequestEnd],
    ) -> Result<Arc<Receipt>, Fault> {
        let decision = Decision::new(receipt, act, by, number)?;
        let claim = self.start(&decision).await?;
        let end = decision.success(ends);
        self.finish(&decision, &claim, end, Duration::ZERO).await
    }

    /// As [`Self::record_recovered`], for a decision of this process that another node of the fleet has reported as aborted.
    /// `None` if it cannot be recorded now: the next start does it.
    pub(super) async fn record_again(
        &self,
        taken: &mut TakenSet,
        receipt: &Receipt,
        act: DecisionAct,
        by: &str,
        ends: &[RequestEnd],
    ) -> Option<Arc<Receipt>> {
        for _ in 0..MAX_RECORD_TRIES {
            match self.record_recovered(receipt, act, by, taken.next_decision(), ends).await {
                Ok(recorded) => {
                    taken.count_decision();
                    if recorded.outcome.end.status() == Status::Success {
                        return Some(recorded);
                    }
                }
                Err(fault) => {
                    tracing::warn!(intent = %receipt.intent, ?fault, "a decision that has taken effect cannot be recorded yet");
                }
            }
            tokio::time::sleep(RECORD_INTERVAL).await;
        }
        None
    }
}
