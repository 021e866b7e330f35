//! Dropping nodes that nothing needs, and the table of a view for others.

use super::{MIN_SWEEP, View};
use crate::table::{Modified, NodeId, Table};
use crate::upper::Upper;
use rustix::io::Result;
use std::collections::BTreeMap;

impl View {
    /// Ends the program's use of the files. Handles that are still open lead to files that no commit sees.
    ///
    /// # Errors
    /// If a file of the upper folder cannot be examined.
    pub fn into_table(mut self) -> Result<Table> {
        for id in std::mem::take(&mut self.tree.removed) {
            self.forget(id);
        }
        finish(&mut self.tree.table, &self.upper, |_| false)?;
        Ok(self.tree.table)
    }

    /// A copy of the table for another member of the program, in which all that is open here is pinned.
    ///
    /// # Errors
    /// As [`Self::into_table`].
    pub fn snapshot(&self) -> Result<Table> {
        let mut table = self.tree.table.clone();
        for id in &self.tree.removed {
            table.drop_node(*id);
        }
        finish(&mut table, &self.upper, |id| self.tree.handles.is_open(id))?;
        Ok(table)
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

/// Writes what only the upper folder says into a table, pins what is open, and removes what nobody needs.
fn finish(table: &mut Table, upper: &Upper, is_open: impl Fn(NodeId) -> bool) -> Result<()> {
    let ids = table.nodes().map(|(id, _)| id).collect::<Vec<_>>();
    for id in &ids {
        take_attributes(table, upper, *id)?;
    }
    // The entries of a folder were found after it, so later nodes are the inner ones.
    for id in ids.into_iter().rev() {
        match table.node_mut(id) {
            Some(node) if is_open(id) => node.is_pinned = true,
            Some(_) | None => table.drop_unchanged(id),
        }
    }
    Ok(())
}

fn take_attributes(table: &mut Table, upper: &Upper, id: NodeId) -> Result<()> {
    let mode = table.mode(id);
    let Some(node) = table.node_mut(id) else { return Ok(()) };
    // Of an earlier content the table has the attributes: the file is another member's, which may be writing it.
    if let Some(number) = node.upper()
        && upper.is_own(number)?
    {
        let stat = upper.stat(number)?;
        node.mode = mode;
        node.modified = Some(Modified::Set(stat.stx_mtime.into()));
        node.accessed = Some(stat.stx_atime.into());
    }
    let is_empty = node.entries().is_some_and(BTreeMap::is_empty);
    if node.origin.is_some() && is_empty && matches!(node.modified, Some(Modified::ByEntries(_))) {
        node.modified = None;
    }
    Ok(())
}
