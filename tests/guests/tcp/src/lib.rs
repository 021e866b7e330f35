//! A guest that connects to whatever its arguments say, and tells what came of it. It is as hostile as the
//! test that sends the arguments.

#[cfg(target_family = "wasm")]
mod guest;

/// The tool exists on WebAssembly only, where there is `wasi:sockets`.
#[cfg(target_family = "wasm")]
pub use guest::{describe, invoke};
