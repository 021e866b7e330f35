//! Subscribers to all runs, such as a door that publishes their events.

use super::events::{RunEvent, RunEventSink};
use a2g_types::call::Call;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::Receipt;
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;

/// The identity of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunIdentity {
    /// The agent that requested the run.
    pub agent: AgentDid,
    /// The id of the intent that runs.
    pub intent: IntentId,
    /// The tool that runs.
    pub tool: ToolName,
}

/// A message to subscribers.
#[derive(Debug, Clone, Copy)]
pub enum RunNotification<'a> {
    /// An event during the run.
    Event(&'a RunEvent),
    /// The run has finished, and its receipt is on the disk.
    Finished(&'a Receipt),
}

type Subscriber = dyn Fn(&RunIdentity, RunNotification<'_>) + Send + Sync;

#[derive(Default)]
pub(super) struct Subscribers(RwLock<Arc<[Arc<Subscriber>]>>);

impl Subscribers {
    fn current(&self) -> Arc<[Arc<Subscriber>]> {
        Arc::clone(&self.0.read())
    }

    pub(super) fn add(&self, subscriber: impl Fn(&RunIdentity, RunNotification<'_>) + Send + Sync + 'static) {
        let mut all = self.0.write();
        *all = all.iter().cloned().chain([Arc::new(subscriber) as Arc<Subscriber>]).collect();
    }

    /// A sink that forwards events to the subscribers and to `sink`.
    pub(super) fn wrap(&self, call: &Call, sink: RunEventSink) -> RunEventSink {
        let subscribers = self.current();
        if subscribers.is_empty() {
            return sink;
        }
        let Call { agent, intent, tool, .. } = call;
        let run = RunIdentity { agent: agent.clone(), intent: *intent, tool: tool.clone() };
        RunEventSink::new(move |event| {
            for subscriber in &*subscribers {
                subscriber(&run, RunNotification::Event(&event));
            }
            sink.send(event);
        })
    }

    pub(super) fn publish_finished(&self, receipt: &Receipt) {
        let Receipt { agent, intent, tool, .. } = receipt;
        let subscribers = self.current();
        if subscribers.is_empty() {
            return;
        }
        let run = RunIdentity { agent: agent.clone(), intent: *intent, tool: tool.clone() };
        for subscriber in &*subscribers {
            subscriber(&run, RunNotification::Finished(receipt));
        }
    }
}

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscribers({})", self.current().len())
    }
}
