//! Executions on threads of this process, one thread each.
//!
//! A guest's file calls block its thread, so that their CPU time is counted where it is spent. The
//! task that waits for the outcome holds the deadline as well: when a host call keeps the guest's
//! thread past it, the outcome is given without that thread, which ends when the kernel lets it go.

use super::GRACE;
use crate::capability::Permit;
use crate::clock::Clock;
use crate::egress::Network;
use crate::limit::Limit;
use crate::outcome::{End, Outcome};
use crate::sandbox::{Abort, Artifact, Execution, Input, Sandbox};
use crate::spawn;
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

    /// The handle by which a run under `permit`, which has no network, can be watched, and stopped by
    /// `abort`.
    #[must_use]
    pub fn begin(&self, permit: &Permit, abort: Arc<Abort>) -> Execution {
        self.sandbox.begin(permit, Network::Off, abort)
    }

    /// Runs one guest, and comes back at its end, or shortly after its deadline or cancellation
    /// whatever the guest or its host call does.
    pub async fn run(
        &self,
        artifact: Artifact,
        permit: Permit,
        input: Input,
        execution: &Execution,
    ) -> Outcome {
        let (sandbox, watched) = (Arc::clone(&self.sandbox), execution.clone());
        let runtime = tokio::runtime::Handle::current();
        // The task starts on this very thread, which hands its other work on: no thread has to wake
        // up before the guest can begin.
        let guest = spawn::of_run(async move {
            tokio::task::block_in_place(|| {
                runtime.block_on(sandbox.execute(&artifact, permit, input, &watched))
            })
        });
        let abort = Arc::clone(execution.abort());
        let stuck = async {
            tokio::select! {
                reason = abort.wait() => { tokio::time::sleep(GRACE).await; End::Aborted(reason) }
                () = tokio::time::sleep_until((execution.deadline() + GRACE).into()) => {
                    End::LimitReached(Limit::Time)
                }
            }
        };
        tokio::select! {
            biased;
            ended = guest => match ended {
                Ok(outcome) => outcome,
                Err(panicked) => {
                    tracing::error!(%panicked, "the thread of a guest panicked");
                    let end = End::Trapped("the executor failed while it ran the guest".to_owned());
                    execution.outcome(end, self.clock.monotonic())
                }
            },
            end = stuck => execution.outcome(end, self.clock.monotonic()),
        }
    }
}
