//! Observers of all runs, such as a door that publishes their events.

use super::watcher::{Happening, Watcher};
use crate::call::Call;
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::outcome::Receipt;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// The identity of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The agent.
    pub agent: AgentDid,
    /// The intent.
    pub intent: IntentId,
    /// The tool.
    pub tool: ToolName,
}

/// An event that observers receive.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// An event during the run.
    Happened(&'a Happening),
    /// The run has finished, and its receipt is on the disk.
    Finished(&'a Receipt),
}

type Each = dyn Fn(&Subject, News<'_>) + Send + Sync;

#[derive(Default)]
pub(super) struct Observers(RwLock<Arc<[Arc<Each>]>>);

impl Observers {
    fn now(&self) -> Arc<[Arc<Each>]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add(&self, each: impl Fn(&Subject, News<'_>) + Send + Sync + 'static) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *all = all.iter().cloned().chain([Arc::new(each) as Arc<Each>]).collect();
    }

    /// A watcher that forwards events to the observers and to `watcher`.
    pub(super) fn watching(&self, call: &Call, watcher: Watcher) -> Watcher {
        let observers = self.now();
        if observers.is_empty() {
            return watcher;
        }
        let Call { agent, intent, tool, .. } = call;
        let subject = Subject { agent: agent.clone(), intent: *intent, tool: tool.clone() };
        Watcher::new(move |happening| {
            for each in &*observers {
                each(&subject, News::Happened(&happening));
            }
            watcher.told(happening);
        })
    }

    pub(super) fn finished(&self, receipt: &Receipt) {
        let Receipt { agent, intent, tool, approved_by: _, durability: _, outcome: _ } = receipt;
        let observers = self.now();
        if observers.is_empty() {
            return;
        }
        let subject = Subject { agent: agent.clone(), intent: *intent, tool: tool.clone() };
        for each in &*observers {
            each(&subject, News::Finished(receipt));
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observers({})", self.now().len())
    }
}
