//! The table of a program whose members take turns, as it comes back to one of them.

use super::View;
use super::content::allocated;
use super::handles::HandleContent;
use crate::table::{Content, NodeId, NodeKind, Table};
use rustix::io::{Errno, Result};
use std::collections::BTreeSet;

impl View {
    /// Goes on with the table of the program, after other members have had [`Self::snapshot`]. What is open stays open: a
    /// folder or file that another member has removed is as one that was removed here, and a file of which another member
    /// has made a new content has that now.
    ///
    /// # Errors
    /// `EINVAL` if the table is one of other roots, and `ESTALE` if it says of something open that it is another entry;
    /// else as a copy of a file that is open for writing. The view can then be used no more.
    pub fn reload(&mut self, table: Table) -> Result<()> {
        if table.roots() != self.tree.table.roots() {
            return Err(Errno::INVAL);
        }
        let written = self.take_writes();
        let open = self.tree.handles.keep_open();
        let old = std::mem::replace(&mut self.tree.table, table);
        self.tree.table.succeed(&old);
        for id in written {
            let before = old.node(id).map(|node| &node.kind);
            if let Some(now) = self.tree.table.node_mut(id)
                && before == Some(&now.kind)
            {
                now.modified = None;
            }
        }
        let mut removed = BTreeSet::new();
        let mut rewritten = Vec::new();
        for id in open {
            let Some(before) = old.node(id) else { return Err(Errno::STALE) };
            let Some(now) = self.tree.table.node(id) else {
                self.tree.table.keep_removed(id, before.clone());
                removed.insert(id);
                continue;
            };
            if now.origin != before.origin || now.entry_kind() != before.entry_kind() {
                return Err(Errno::STALE);
            }
            match (&before.kind, &now.kind) {
                (NodeKind::File(before), NodeKind::File(now)) if before != now => rewritten.push((id, *now)),
                (NodeKind::File(_) | NodeKind::Folder(_) | NodeKind::Link(_) | NodeKind::Other, _) => {}
            }
        }
        self.tree.removed = removed;
        for (id, content) in rewritten {
            self.follow(id, content)?;
        }
        self.discard_replaced(&old);
        Ok(())
    }

    /// The bytes that the own contents occupy. All contents have to be there.
    pub(super) fn count_contents(&self) -> Result<u64> {
        let mut bytes = 0_u64;
        for (id, node) in self.tree.table.nodes() {
            let Some(number) = node.upper() else { continue };
            let stat = self.stat_content(id, number)?;
            if self.upper.is_own(number)? {
                bytes = bytes.saturating_add(allocated(&stat));
            }
        }
        Ok(bytes)
    }

    /// Puts the content that another member has made behind all handles of a file. Handles that write get a copy of it.
    fn follow(&mut self, id: NodeId, content: Content) -> Result<()> {
        let number = match content {
            Content::Upper(number) => number,
            Content::Lower => return Err(Errno::STALE),
        };
        self.tree.handles.set_content(id, HandleContent::Earlier);
        if self.tree.handles.is_open_for_writing(id) {
            return self.copy_up(id, false);
        }
        self.tree.handles.prepare_redirection(id, &self.upper, number)?.apply()
    }

    /// Removes the own contents that no node has any more.
    fn discard_replaced(&mut self, old: &Table) {
        let kept = self.tree.table.nodes().filter_map(|(_, node)| node.upper()).collect::<BTreeSet<_>>();
        for number in old.nodes().filter_map(|(_, node)| node.upper()) {
            if !kept.contains(&number) {
                self.upper.discard(number);
            }
        }
    }
}
