//! Who may call, how callers and governors prove it, and how much each may take.

mod callers;
mod connections;
mod flood;
mod governor;
mod governor_answers;
mod history;
mod jwt;
mod policies;
