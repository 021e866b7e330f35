//! Finding where an original can be seen now, with a bound for tables that were made to take long.

use super::{Node, NodeId, Override, Table};
use crate::name::{EntryPath, Name};
use std::collections::HashSet;

/// The names that are looked up for one table: more than those of a program's changes, and a matter of seconds.
const MAX_STEPS: usize = 20_000_000;

/// The places of the originals of one table.
pub(crate) struct Originals<'a> {
    pub(crate) table: &'a Table,
    /// The nodes that are the originals of their own places.
    in_place: HashSet<NodeId>,
    /// The names that may still be looked up.
    steps: usize,
}

/// The folders of a table lie so deep in one another that the check of it would take too long.
#[derive(Debug)]
pub(crate) struct TooDeep;

impl<'a> Originals<'a> {
    pub(crate) fn new(table: &'a Table) -> Self {
        let in_place = table.nodes.keys().copied().filter(|id| table.is_in_place(*id)).collect();
        Self { table, in_place, steps: MAX_STEPS }
    }

    /// The lowest node from which an original can be seen through folders without nodes, and the number of the original's
    /// names that lead to that node; `None` if the original can be seen only as a node of its own, or not at all.
    pub(crate) fn find_plain(&mut self, original: &EntryPath) -> Result<Option<(NodeId, usize)>, TooDeep> {
        let mut at = self.table.by_origin(&EntryPath::of_root(original.root));
        for (index, name) in original.names.iter().enumerate() {
            self.spend(1)?;
            let entries = at.and_then(|id| self.table.node(id)).and_then(Node::entries);
            at = match entries.map(|entries| entries.get(name)) {
                Some(None) => return Ok(at.map(|id| (id, index))),
                Some(Some(Override::Node(id))) if self.in_place.contains(id) => Some(*id),
                // The entry was removed, moved or replaced, or one that contains it: only a node knows where it is.
                Some(Some(Override::Node(_) | Override::Removed)) | None => {
                    let names = original.names.get(..=index).unwrap_or_default().to_vec();
                    // The whole path is hashed.
                    self.spend(names.len())?;
                    self.table.by_origin(&EntryPath { root: original.root, names })
                }
            };
        }
        Ok(None)
    }

    /// The path of the entry that `rest` leads to from a node; `None` if the node was removed.
    pub(crate) fn path_of(&mut self, id: NodeId, rest: &[Name]) -> Result<Option<EntryPath>, TooDeep> {
        let mut node = self.table.node(id);
        while let Some(place) = node.and_then(|node| node.place.as_ref()) {
            self.spend(1)?;
            node = self.table.node(place.folder);
        }
        self.spend(rest.len())?;
        let mut path = self.table.path_of(id);
        if let Some(path) = &mut path {
            path.names.extend_from_slice(rest);
        }
        Ok(path)
    }

    fn spend(&mut self, steps: usize) -> Result<(), TooDeep> {
        self.steps = self.steps.checked_sub(steps).ok_or(TooDeep)?;
        Ok(())
    }
}
