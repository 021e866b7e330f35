//! The marks: what each node has to end and to deliver, and the reports of lost nodes that this one delivers.

use a2g_types::ident::IntentId;
use a2g_types::node::NodeName;
use parking_lot::Mutex;
use std::collections::HashSet;
use tokio::sync::Notify;

/// The end of the key of a mark that a takeover makes.
const TAKEOVER: &str = ".end";

/// What a node has to end or to deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) key: String,
    pub(crate) intent: IntentId,
    /// `true` for the end that the node has written for a lost one.
    // A key of its own: a claim that the node tries to make does not replace it, and its release does not remove it.
    pub(crate) is_takeover: bool,
}

impl Mark {
    /// The mark of the node `by` for a claim of `node`.
    pub(crate) fn new(by: &NodeName, node: &NodeName, intent: IntentId) -> Self {
        let is_takeover = by != node;
        let key = format!("open.{by}.{intent}{}", if is_takeover { TAKEOVER } else { "" });
        Self { key, intent, is_takeover }
    }

    /// The mark with a key that begins with `prefix`.
    pub(crate) fn parse(prefix: &str, key: String) -> Option<Self> {
        let name = key.strip_prefix(prefix)?;
        let (intent, is_takeover) = match name.strip_suffix(TAKEOVER) {
            Some(intent) => (intent, true),
            None => (name, false),
        };
        let intent = IntentId::parse(intent).ok()?;
        Some(Self { key, intent, is_takeover })
    }
}

/// The key that another node than the one that ran an intent writes once the governor has acknowledged its report.
pub(crate) fn delivered_key(intent: IntentId) -> String {
    format!("delivered.{intent}")
}

/// The key that says that a claim of a node was ended as lost, until the node's journal has that end.
pub(crate) fn end_key(node: &NodeName, intent: &str) -> String {
    format!("ended.{node}.{intent}")
}

/// A report that its own node did not deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanReport {
    /// The intent.
    pub intent: IntentId,
    /// The node that claimed the intent.
    pub node: NodeName,
    /// The stored receipt.
    pub receipt: Box<str>,
    /// The key of the mark that is removed once the report is delivered.
    pub(crate) mark: String,
}

/// The reports of lost nodes that this process delivers.
#[derive(Default)]
pub(crate) struct OrphanReports {
    waiting: Mutex<Vec<OrphanReport>>,
    has_waiting: Notify,
    /// The marks of the reports that this process delivers.
    locked: Mutex<HashSet<String>>,
}

impl OrphanReports {
    /// Returns `true` while this process delivers the report of a mark.
    pub(crate) fn is_locked(&self, mark: &str) -> bool {
        self.locked.lock().contains(mark)
    }

    /// Locks a mark, so that one task of this process ends the claim and delivers its report; `None` if it is locked.
    pub(crate) fn lock<'a>(&'a self, mark: &'a str) -> Option<MarkLock<'a>> {
        let is_new = self.locked.lock().insert(mark.to_owned());
        is_new.then(|| MarkLock { reports: self, mark })
    }

    pub(crate) fn unlock(&self, mark: &str) {
        self.locked.lock().remove(mark);
    }

    pub(crate) fn count(&self) -> usize {
        self.locked.lock().len()
    }

    /// Waits for a report that nobody delivers yet.
    pub(crate) async fn next(&self) -> OrphanReport {
        loop {
            let added = self.has_waiting.notified();
            if let Some(report) = self.waiting.lock().pop() {
                return report;
            }
            added.await;
        }
    }
}

/// A mark that one task of this process handles.
pub(crate) struct MarkLock<'a> {
    reports: &'a OrphanReports,
    mark: &'a str,
}

impl MarkLock<'_> {
    /// Adds the report of the mark. The mark stays locked until the report is delivered.
    pub(crate) fn push(self, report: OrphanReport) {
        self.reports.waiting.lock().push(report);
        self.reports.has_waiting.notify_one();
        // Unlocked by `mark_orphan_delivered`.
        std::mem::forget(self);
    }
}

impl Drop for MarkLock<'_> {
    fn drop(&mut self) {
        self.reports.unlock(self.mark);
    }
}
