//! The notifications of a subscription or a session: the lists that changed, and the tasks.

use super::{McpDoor, RequestContext};
use a2g_core::run::{Executor, RunNotification};
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_wire::mcp::decode::SubscriptionFilter;
use a2g_wire::mcp::encode::{self, ChangedList};
use futures_util::{Stream, StreamExt as _, stream};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Maximum number of finished runs that a subscription has not read yet. Beyond it, the subscription counts them as
/// one.
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
        let catalog = executor.catalogue.tool_changes();
        Self { caller: Arc::clone(caller), filter, catalog, runs: runs.0.subscribe() }
    }

    /// Waits for the next change; `None` once the executor is gone.
    pub(super) async fn next(&mut self) -> Option<ChangedList> {
        let SubscriptionFilter { tools_list_changed, resources_list_changed, tasks: _ } = self.filter;
        let caller = &self.caller;
        let runs = &mut self.runs;
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

impl McpDoor {
    /// The messages of a subscription: the acknowledgement, the notifications, and the end once the executor closes. Of
    /// the tasks, it follows those that the caller may read, and first sends the state of each: it may have changed
    /// since the client read it.
    pub(super) async fn subscribe(
        self: Arc<Self>,
        context: RequestContext,
        filter: SubscriptionFilter,
    ) -> impl Stream<Item = String> + Send {
        let id = context.id.clone();
        let encoder = context.encoder();
        let mut tasks = Vec::new();
        for task in filter.tasks.iter().filter_map(|id| IntentId::parse(id).ok()).collect::<BTreeSet<_>>() {
            if self.task_status(&context, task).await.is_ok() {
                tasks.push(task);
            }
        }
        let first = encode::acknowledged(&id, &filter, &tasks);
        let lists = stream::unfold(self.list_changes(&context.caller, filter), async |mut changes| {
            changes.next().await.map(|list| (list, changes))
        });
        let list_id = id.clone();
        let lists = lists.map(move |list| encode::list_changed(list, Some(&list_id)));
        let executor = Arc::clone(&self.executor);
        let context = Arc::new(context);
        let tasks =
            tasks.into_iter().map(|task| Arc::clone(&self).follow_task(Arc::clone(&context), task).boxed());
        let notifications = stream::select(lists, stream::select_all(tasks));
        let closed = async move { executor.wait_until_closed().await };
        stream::iter([first])
            .chain(notifications.take_until(closed))
            .chain(stream::iter([encoder.subscription_end(&id)]))
    }

    /// The state of a task, now and after each change, until its end.
    fn follow_task(
        self: Arc<Self>,
        context: Arc<RequestContext>,
        task: IntentId,
    ) -> impl Stream<Item = String> + Send {
        // `None` after the end of the task; within, the kind of the state that was sent last.
        stream::unfold(Some(None), move |state| {
            let door = Arc::clone(&self);
            let context = Arc::clone(&context);
            async move {
                let last = state?;
                loop {
                    let signal = door.executor.queries.intent_signal(task);
                    let status = match door.task_status(&context, task).await {
                        Ok(status) => status,
                        Err(Fault::Busy { .. }) => {
                            tokio::time::sleep(COLLECT_TIME).await;
                            continue;
                        }
                        // It was pruned.
                        Err(_unreadable) => return None,
                    };
                    let kind = std::mem::discriminant(&status);
                    if last != Some(kind) {
                        let next = (!status.is_terminal()).then_some(Some(kind));
                        let task = door.task(task, status).ok()?;
                        return Some((encode::task_changed(&context.id, &task), next));
                    }
                    door.executor.queries.wait_for_signal(signal).await;
                }
            }
        })
    }
}
