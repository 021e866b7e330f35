//! Dropping nodes that nothing needs, and the end of a view.

use super::{MIN_SWEEP, View};
use crate::seen::EntryKind;
use crate::table::{Modified, NodeId, Table};
use rustix::io::Result;
use std::os::fd::{AsFd, OwnedFd};

impl<F: AsFd + From<OwnedFd>> View<F> {
    /// Ends the program's use of the files. Handles that are still open lead to files that no commit sees.
    ///
    /// # Errors
    /// If a file of the upper folder cannot be examined.
    pub fn into_table(mut self) -> Result<Table> {
        for id in std::mem::take(&mut self.removed) {
            self.forget(id);
        }
        let ids = self.table.nodes().map(|(id, _)| id).collect::<Vec<_>>();
        for id in &ids {
            self.take_attributes(*id)?;
        }
        // The entries of a folder were found after it, so later nodes are the inner ones.
        for id in ids.into_iter().rev() {
            self.drop_unchanged(id);
        }
        Ok(self.table)
    }

    /// Writes what only the upper folder says into the table, and removes what no commit needs.
    fn take_attributes(&mut self, id: NodeId) -> Result<()> {
        let node = self.node(id)?;
        let mode = self.mode(node).ok();
        let stat = node.upper().map(|number| self.upper.stat(number)).transpose()?;
        let node = self.node_mut(id)?;
        if let Some(stat) = stat {
            node.mode = mode;
            node.modified = Some(Modified::Set(stat.stx_mtime.into()));
            node.accessed = Some(stat.stx_atime.into());
        }
        let is_empty = node.entries().is_some_and(std::collections::BTreeMap::is_empty);
        if node.origin.is_some() && is_empty && matches!(node.modified, Some(Modified::ByEntries(_))) {
            node.modified = None;
        }
        Ok(())
    }

    /// Looks for nodes that nothing needs, once the table has doubled since the last time or is full. The time that this
    /// takes is spread over the calls, so that a program whose table stays full does not pay for it at each one.
    pub(super) fn sweep_if_due(&mut self) {
        self.calls = self.calls.saturating_add(1);
        let is_large = self.table.len() >= self.sweep_at.min(self.budget.max_nodes);
        let is_due = is_large && self.calls.saturating_mul(4) >= self.table.len();
        if !is_due && self.removed.is_empty() {
            return;
        }
        for id in self.removed.iter().copied().collect::<Vec<_>>() {
            self.drop_unused(id);
        }
        if is_due {
            for id in self.table.nodes().map(|(id, _)| id).collect::<Vec<_>>().into_iter().rev() {
                self.drop_unused(id);
            }
            self.calls = 0;
            self.sweep_at = self.table.len().saturating_mul(2).max(MIN_SWEEP);
        }
    }

    /// Drops a node if it is not open, and either removed or an unchanged original in its place.
    pub(super) fn drop_unused(&mut self, id: NodeId) {
        if self.live.get(&id).is_some_and(super::handles::Live::is_in_use) {
            return;
        }
        if self.table.roots().contains(&id) {
            return;
        }
        self.live.remove(&id);
        if self.removed.remove(&id) {
            self.forget(id);
        } else {
            self.drop_unchanged(id);
        }
    }

    fn drop_unchanged(&mut self, id: NodeId) {
        let Some(node) = self.table.node(id) else { return };
        let is_needed =
            !node.is_unchanged() || !self.table.is_in_place(id) || self.table.roots().contains(&id);
        if is_needed {
            return;
        }
        // Of a folder only its changes matter. That a file was opened matters as long as the table does.
        if let (EntryKind::Folder, Some(origin)) = (node.entry_kind(), node.origin.clone()) {
            self.table.forget_original(&origin);
        }
        self.table.unplace(id, None);
        self.table.drop_node(id);
    }

    /// Drops a removed node with its content.
    fn forget(&mut self, id: NodeId) {
        if let Some(number) = self.table.node(id).and_then(crate::table::Node::upper) {
            self.discard_content(number);
        }
        self.table.drop_node(id);
    }
}
