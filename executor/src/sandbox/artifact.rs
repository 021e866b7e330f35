//! Compiled tools: made from WebAssembly, kept as bytes, loaded and linked ahead of time.

use super::state::State;
use super::typed;
use crate::tool::Contract;
use wasmtime::component::Component;
use wasmtime::{Engine, InstancePre, Module};
use wasmtime_wasi::p2::bindings::CommandPre;

/// Why a module cannot be used as a tool.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The module is not valid, or uses a proposal that is switched off.
    #[error("the module cannot be compiled: {0}")]
    Invalid(String),
    /// The module imports something that is not linked, or lacks the export of its contract.
    #[error("the module does not fit its contract `{contract}`: {reason}")]
    Unlinkable {
        /// The contract that it should fit.
        contract: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The compiled file could not be read back.
    #[error("the compiled module cannot be loaded: {0}")]
    Load(String),
}

/// A tool that is ready to be instantiated: compiled, loaded, type-checked against what is linked.
#[derive(Clone)]
pub struct Artifact(pub(super) Prepared);

/// The three shapes of a guest.
#[derive(Clone)]
pub(super) enum Prepared {
    /// A preview 1 command.
    CoreCommand(InstancePre<State>),
    /// A `wasi:cli/command` component.
    ComponentCommand(Linked<CommandPre<State>>),
    /// A component of the world `a2g:tool/tool`.
    Typed(Linked<typed::ToolPre<State>>),
}

/// A component, linked for runs without a network and for runs with one.
#[derive(Clone)]
pub(super) struct Linked<P> {
    pub(super) off: P,
    /// Of its own only when the component imports the network.
    pub(super) on: Option<P>,
}

impl<P> Linked<P> {
    /// What a run gets.
    pub(super) fn pick(&self, network: bool) -> &P {
        self.on.as_ref().filter(|_| network).unwrap_or(&self.off)
    }
}

/// Compiles a module or component.
pub(super) fn compile(engine: &Engine, wasm: &[u8]) -> Result<Vec<u8>, ArtifactError> {
    let invalid = |error: wasmtime::Error| ArtifactError::Invalid(format!("{error:#}"));
    if is_component(wasm) {
        engine.precompile_component(wasm).map_err(invalid)
    } else {
        engine.precompile_module(wasm).map_err(invalid)
    }
}

/// Whether the bytes are a component, by the layer field of the WebAssembly preamble.
#[must_use]
pub fn is_component(wasm: &[u8]) -> bool {
    wasm.starts_with(b"\0asm\x0d\x00\x01\x00")
}

#[allow(
    unsafe_code,
    reason = "wasmtime trusts a compiled module completely. The invariant is that `compile` wrote these \
              bytes: the catalogue hands over what it read from its own private cache only, after it \
              checked on the open file that it belongs to this user and that nobody else may write it"
)]
pub(super) fn load_module(engine: &Engine, compiled: &[u8]) -> wasmtime::Result<Module> {
    let module = unsafe { Module::deserialize(engine, compiled) }?;
    // Here rather than at the first run, which may be in a process that can no longer make one.
    module.initialize_copy_on_write_image()?;
    Ok(module)
}

#[allow(unsafe_code, reason = "see `load_module`")]
pub(super) fn load_component(engine: &Engine, compiled: &[u8]) -> wasmtime::Result<Component> {
    let component = unsafe { Component::deserialize(engine, compiled) }?;
    component.initialize_copy_on_write_image()?;
    Ok(component)
}

pub(super) fn unlinkable(contract: Contract) -> impl Fn(wasmtime::Error) -> ArtifactError {
    move |error| ArtifactError::Unlinkable { contract: contract.as_str(), reason: format!("{error:#}") }
}
