//! The time from the start of a run until its changes are in force or wait: whoever stops the run in it finds the run,
//! although its guest may have ended.

use super::EffectsFolder;
use crate::run::RunIdentity;
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;
use std::sync::Arc;

/// The run of a guest that may have ended, and whose changes neither are in force nor wait.
pub(super) struct UnsettledRun {
    run: RunIdentity,
    reason: Option<AbortReason>,
    /// `false` while its guest runs: whoever stops it then also finds it among the active runs.
    has_ended: bool,
}

/// The right to let the changes of a run take effect, unless somebody stops the run before. Until it is dropped or closed,
/// whoever stops the run finds it.
pub(super) struct Withdrawal {
    effects: Arc<EffectsFolder>,
    intent: IntentId,
}

impl Withdrawal {
    /// Notes that the guest has ended.
    pub(super) fn note_end(&self) {
        if let Some(run) = self.effects.unsettled.lock().get_mut(&self.intent) {
            run.has_ended = true;
        }
    }

    /// Ends the time in which the run can be stopped.
    ///
    /// # Errors
    /// The reason for which it was stopped.
    pub(super) fn close(self) -> Result<(), AbortReason> {
        let closed = self.effects.unsettled.lock().remove(&self.intent);
        closed.and_then(|run| run.reason).map_or(Ok(()), Err)
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        self.effects.unsettled.lock().remove(&self.intent);
    }
}

impl EffectsFolder {
    /// Lets a run be stopped until its changes take effect, also after its guest has ended.
    pub(super) fn watch(self: &Arc<Self>, run: &RunIdentity) -> Withdrawal {
        let unsettled = UnsettledRun { run: run.clone(), reason: None, has_ended: false };
        self.unsettled.lock().insert(run.intent, unsettled);
        Withdrawal { effects: Arc::clone(self), intent: run.intent }
    }

    /// Stops the selected runs whose changes have not taken effect, also those whose guests have ended. Returns the number
    /// of the latter, without those that were stopped before.
    pub(in crate::run) fn withdraw_runs(
        &self,
        is_selected: impl Fn(&RunIdentity) -> bool,
        reason: AbortReason,
    ) -> usize {
        let mut unsettled = self.unsettled.lock();
        let open = unsettled.values_mut().filter(|one| one.reason.is_none() && is_selected(&one.run));
        open.map(|one| {
            one.reason = Some(reason);
            usize::from(one.has_ended)
        })
        .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::effects::{EffectsLocation, EffectsSettings};
    use a2g_types::ident::{AgentDid, ToolName};
    use std::time::Duration;

    #[test]
    fn a_run_can_be_stopped_until_its_changes_take_effect() {
        let settings = EffectsSettings { decide_within: Duration::ZERO, keep: Duration::ZERO, max_bytes: 0 };
        let effects = Arc::new(EffectsFolder::new(EffectsLocation::Temporary, settings));
        let agent = AgentDid::parse("did:aeon:tester:1.0:abc123").unwrap();
        let run = RunIdentity { agent, intent: IntentId::random(), tool: ToolName::parse("tool").unwrap() };
        let withdraw = |intent: IntentId, reason| effects.withdraw_runs(|run| run.intent == intent, reason);
        assert_eq!(effects.watch(&run).close(), Ok(()));
        drop(effects.watch(&run));
        assert_eq!(withdraw(run.intent, AbortReason::Stopped), 0, "it is over");

        // Whoever stops it while its guest runs finds it elsewhere, and counts it there.
        let running = effects.watch(&run);
        assert_eq!(withdraw(run.intent, AbortReason::Stopped), 0);
        assert_eq!(running.close(), Err(AbortReason::Stopped));

        let ended = effects.watch(&run);
        ended.note_end();
        assert_eq!(withdraw(IntentId::random(), AbortReason::Stopped), 0, "another run");
        assert_eq!(withdraw(run.intent, AbortReason::Stopped), 1);
        assert_eq!(withdraw(run.intent, AbortReason::Cancelled), 0, "the first reason counts");
        assert_eq!(ended.close(), Err(AbortReason::Stopped));
    }
}
