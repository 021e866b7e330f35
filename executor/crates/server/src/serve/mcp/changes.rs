//! The notifications of a subscription or a session: the lists that changed.

use a2g_core::run::{Executor, RunNotification};
use a2g_govern::Caller;
use a2g_types::ident::AgentDid;
use a2g_wire::mcp::decode::SubscriptionFilter;
use a2g_wire::mcp::encode::ChangedList;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Finished runs that a subscription has not read yet. Beyond it the subscription counts them as one.
const MAX_UNREAD_RUNS: usize = 256;
/// The time for which finished runs are collected into one notification.
const COLLECT_TIME: Duration = Duration::from_secs(1);

/// Announces the agents of finished runs.
#[derive(Clone)]
pub(super) struct FinishedRuns(broadcast::Sender<AgentDid>);

impl FinishedRuns {
    pub(super) fn follow(executor: &Executor) -> Self {
        let sender = broadcast::Sender::new(MAX_UNREAD_RUNS);
        let runs = sender.clone();
        executor.subscribe(move |run, notification| match notification {
            RunNotification::Finished(_) if runs.receiver_count() > 0 => {
                let _no_receiver = runs.send(run.agent.clone());
            }
            RunNotification::Finished(_) | RunNotification::Event(_) => {}
        });
        Self(sender)
    }
}

/// The changes that one client follows.
pub(super) struct ListChanges {
    caller: Arc<Caller>,
    filter: SubscriptionFilter,
    catalog: watch::Receiver<()>,
    runs: broadcast::Receiver<AgentDid>,
}

impl ListChanges {
    pub(super) fn new(
        executor: &Executor,
        runs: &FinishedRuns,
        caller: &Arc<Caller>,
        filter: SubscriptionFilter,
    ) -> Self {
        let (catalog, runs) = (executor.catalog_changes(), runs.0.subscribe());
        Self { caller: Arc::clone(caller), filter, catalog, runs }
    }

    /// Waits for the next change; `None` once the executor is gone.
    pub(super) async fn next(&mut self) -> Option<ChangedList> {
        let SubscriptionFilter { tools_list_changed, resources_list_changed, names_tasks: _ } = self.filter;
        let (caller, runs) = (&self.caller, &mut self.runs);
        let own_run = async {
            loop {
                match runs.recv().await {
                    Ok(agent) if !caller.may_act_as(&agent) => {}
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => break Some(()),
                    Err(broadcast::error::RecvError::Closed) => break None,
                }
            }
        };
        tokio::select! {
            changed = self.catalog.changed(), if tools_list_changed => changed.ok().map(|()| ChangedList::Tools),
            run = own_run, if resources_list_changed => {
                run?;
                tokio::time::sleep(COLLECT_TIME).await;
                self.runs = self.runs.resubscribe();
                Some(ChangedList::Resources)
            }
            () = std::future::pending(), if !(tools_list_changed || resources_list_changed) => None,
        }
    }
}
