//! Executions in this process, on one thread each.
//!
//! A guest's file calls block its thread, so that the thread's CPU clock counts them. The task that waits for the
//! outcome enforces the deadline as well: if a host call blocks the guest's thread beyond the deadline, the outcome is
//! returned without waiting for that thread, which ends when the kernel returns from the call.

use super::GRACE;
use a2g_capability::Permit;
use a2g_runtime::spawn;
use a2g_sandbox::egress::Network;
use a2g_sandbox::{Abort, Artifact, Execution, Input, Sandbox};
use a2g_types::clock::Clock;
use a2g_types::limit::Limit;
use a2g_types::outcome::{End, Outcome};
use std::sync::Arc;

/// Runs guests inside this process.
#[derive(Clone)]
pub struct Inline {
    sandbox: Arc<Sandbox>,
    clock: Arc<dyn Clock>,
}

impl Inline {
    /// Runs guests in `sandbox`.
    #[must_use]
    pub fn new(sandbox: Arc<Sandbox>, clock: Arc<dyn Clock>) -> Self {
        Self { sandbox, clock }
    }

    /// Starts the clock of a run under `permit` without a network and returns the run's observer. `abort` can stop the
    /// run.
    #[must_use]
    pub fn begin(&self, permit: &Permit, abort: Arc<Abort>) -> Execution {
        self.sandbox.begin(permit, Network::Off, abort)
    }

    /// Runs one guest. Returns at its end, or shortly after its deadline or cancellation, even if a host call is stuck.
    pub async fn run(
        &self,
        artifact: Artifact,
        permit: Permit,
        input: Input,
        execution: &Execution,
    ) -> Outcome {
        let sandbox = Arc::clone(&self.sandbox);
        let guest_execution = execution.clone();
        let runtime = tokio::runtime::Handle::current();
        // This uses `block_in_place` and not `spawn_blocking`: the guest starts on the current worker, whose other
        // tasks move to another one, and does not wait for another thread to wake up.
        let guest = spawn::spawn_run_task(async move {
            tokio::task::block_in_place(|| {
                runtime.block_on(sandbox.execute(&artifact, permit, input, &guest_execution))
            })
        });
        let abort = Arc::clone(execution.abort());
        // The grace period lets the guest's own end, which has more detail, arrive first.
        let forced_end = async {
            tokio::select! {
                reason = abort.wait() => { tokio::time::sleep(GRACE).await; End::Aborted(reason) }
                () = tokio::time::sleep_until((execution.deadline() + GRACE).into()) => {
                    End::LimitReached(Limit::Time)
                }
            }
        };
        tokio::select! {
            biased;
            result = guest => match result {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::error!(%error, "the thread of a guest panicked");
                    let end = End::Trapped("the executor failed while it ran the guest".to_owned());
                    execution.outcome(end, self.clock.monotonic())
                }
            },
            end = forced_end => execution.outcome(end, self.clock.monotonic()),
        }
    }
}
