//! Several nodes with one store.

mod fleet;
