//! The state of the file changes of a staged run, for the answers of the doors.

use a2g_core::run::{ChangeSet, Executor};
use a2g_types::outcome::{ChangeState, DecisionAct, Receipt, Status};
use a2g_wire::staged::{StagedState, changes_of};
use std::time::Duration;

/// The time between two looks at changes that wait.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the file changes of a staged run; `None` for any other run, and if this node does not know it.
pub async fn staged_state(executor: &Executor, receipt: &Receipt) -> Option<StagedState> {
    changes_of(receipt)?;
    match executor.changes.find(receipt.intent).await {
        Ok(found) => found.map(to_state),
        Err(fault) => {
            tracing::warn!(intent = %receipt.intent, ?fault, "the state of file changes cannot be read");
            None
        }
    }
}

fn to_state(ChangeSet { summary, receipt: _, decisions }: ChangeSet) -> StagedState {
    let mut succeeded = decisions.iter().filter(|decision| decision.outcome.end.status() == Status::Success);
    let by = succeeded.next_back().and_then(|decision| decision.approved_by.clone());
    let note = decisions.iter().rev().find_map(|decision| DecisionAct::find_note(decision));
    StagedState { state: summary.state, until: summary.until, by, note }
}

/// `true` for changes that wait for a decision, or whose decision is being carried out.
fn is_open(state: ChangeState) -> bool {
    matches!(state, ChangeState::Waiting | ChangeState::Sending)
}

/// Waits while the file changes of a staged run wait for a decision, or one is being carried out, or the journal is busy. Returns what has become of
/// them; `None` if this node does not know.
pub async fn wait_until_decided(executor: &Executor, receipt: &Receipt) -> Option<StagedState> {
    loop {
        // Without a look at the journal for changes that this node has.
        match executor.changes.state_of(receipt).await {
            Ok(Some(ChangeState::Waiting | ChangeState::Sending)) | Err(_) => {}
            Ok(
                Some(ChangeState::InForce | ChangeState::Kept | ChangeState::Discarded | ChangeState::Undone)
                | None,
            ) => match executor.changes.find(receipt.intent).await {
                Ok(Some(set)) if is_open(set.summary.state) => {}
                Ok(found) => return found.map(to_state),
                Err(_busy) => {}
            },
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
