//! Dropping nodes that nothing needs, and the table of a view for others.

use super::{MIN_SWEEP, View};
use crate::table::{Modified, NodeId, Table};
use std::collections::BTreeMap;

impl View {
    /// Ends the program's use of the files. Handles that are still open lead to files that no commit sees.
    #[must_use]
    pub fn into_table(mut self) -> Table {
        self.take_writes();
        for id in std::mem::take(&mut self.tree.removed) {
            self.forget(id);
        }
        finish(&mut self.tree.table, |_| false);
        self.tree.table
    }

    /// A copy of the table for another member of the program, in which all that is open here is pinned.
    #[must_use]
    pub fn snapshot(&mut self) -> Table {
        self.take_writes();
        let mut table = self.tree.table.clone();
        for id in &self.tree.removed {
            table.drop_node(*id);
        }
        finish(&mut table, |id| self.tree.handles.is_open(id));
        table
    }

    /// `true` if an open file was written since [`Self::snapshot`], so that its table is not the latest.
    #[must_use]
    pub fn has_new_writes(&self) -> bool {
        !self.tree.handles.written_files().is_empty()
    }

    /// Looks for nodes that nothing needs, once the table has doubled since the last time or is full. The time that this
    /// takes is spread over the calls, so that a program whose table stays full does not pay for it at each one.
    pub(super) fn sweep_if_due(&mut self) {
        self.calls = self.calls.saturating_add(1);
        let is_large = self.tree.table.len() >= self.sweep_at.min(self.budget.max_nodes);
        let is_due = is_large && self.calls.saturating_mul(4) >= self.tree.table.len();
        if !is_due && self.tree.removed.is_empty() {
            return;
        }
        for id in self.tree.removed.iter().copied().collect::<Vec<_>>() {
            self.drop_unused(id);
        }
        if is_due {
            for id in self.tree.table.nodes().map(|(id, _)| id).collect::<Vec<_>>().into_iter().rev() {
                self.drop_unused(id);
            }
            self.calls = 0;
            self.sweep_at = self.tree.table.len().saturating_mul(2).max(MIN_SWEEP);
        }
    }

    /// Drops a node if it is not open, and either removed or an unchanged original in its place.
    pub(super) fn drop_unused(&mut self, id: NodeId) {
        if self.tree.handles.is_open(id) || self.tree.table.roots().contains(&id) {
            return;
        }
        self.take_write(id);
        self.tree.handles.forget(id);
        if self.tree.removed.remove(&id) {
            self.forget(id);
        } else {
            self.tree.table.drop_unchanged(id);
        }
    }

    /// Drops a removed node with its content.
    pub(super) fn forget(&mut self, id: NodeId) {
        if let Some(number) = self.tree.table.node(id).and_then(crate::table::Node::upper) {
            self.upper.discard(number);
        }
        self.tree.table.drop_node(id);
    }
}

/// Pins what is open in a table, and removes what nobody needs.
fn finish(table: &mut Table, is_open: impl Fn(NodeId) -> bool) {
    let ids = table.nodes().map(|(id, _)| id).collect::<Vec<_>>();
    for id in &ids {
        let Some(node) = table.node_mut(*id) else { continue };
        let is_empty = node.entries().is_some_and(BTreeMap::is_empty);
        if node.origin.is_some() && is_empty && matches!(node.modified, Some(Modified::ByEntries(_))) {
            node.modified = None;
        }
    }
    // The entries of a folder were found after it, so later nodes are the inner ones.
    for id in ids.into_iter().rev() {
        match table.node_mut(id) {
            Some(node) if is_open(id) => node.is_pinned = true,
            Some(_) | None => table.drop_unchanged(id),
        }
    }
}
