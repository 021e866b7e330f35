//! Conflicts, the commit of changes, its recovery, and its undo.
