//! Where the sandbox runs.
//!
//! [`Inline`] runs it on a thread of this process. It is for tools that the operator trusts: a hole
//! in the engine would be a hole in the server.

mod inline;

pub use inline::Inline;
