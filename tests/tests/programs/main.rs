//! Programs that call tools, and what the calls of an agent may take together.

mod budget;
mod code;
mod nested_calls;
mod sessions;
mod shared_files;
mod shell;
