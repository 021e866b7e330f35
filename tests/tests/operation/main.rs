//! The command line, its input and its guides; the life of a server, and what operators see of it.

mod allow;
mod bad_input;
mod cli;
mod containment;
mod guides;
mod lifecycle;
mod observability;
mod own_files;
mod policy_commands;
mod policy_files;
mod promises;
