//! Compiled tools: made from WebAssembly, kept as bytes, loaded and linked ahead of time.

use super::state::State;
use super::{engine, typed};
use crate::error_chain::BoxedError;
use crate::tool::Contract;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use wasmtime::component::Component;
use wasmtime::{Engine, InstancePre, Module};
use wasmtime_wasi::p2::bindings::CommandPre;

/// Why a module cannot be used as a tool.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The module is not valid, or uses a proposal that is switched off.
    #[error("the module cannot be compiled")]
    Invalid(#[source] BoxedError),
    /// The module imports something that is not linked, or lacks the export of its contract.
    #[error("the module does not fit its contract `{contract}`")]
    Unlinkable {
        /// The contract that it should fit.
        contract: &'static str,
        /// What is missing.
        source: BoxedError,
    },
    /// The compiled file could not be read back.
    #[error("the compiled module cannot be loaded")]
    Load(#[source] BoxedError),
}

/// A tool that is ready to be instantiated: compiled, loaded, type-checked against what is linked.
#[derive(Clone)]
pub struct Artifact(pub(super) Prepared);

/// The machine code of one tool, in files that do not change any more.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// The compiled module or component.
    pub module: &'a File,
    /// Whether it is a component.
    pub component: bool,
    /// The same core module as a component, for a scope other than whole trees, which is enforced on
    /// WASI 0.2 alone. `None` for what is a component anyway or cannot be made one.
    pub componentised: Option<&'a File>,
    /// How it is called.
    pub contract: Contract,
}

/// The three shapes of a guest.
#[derive(Clone)]
pub(super) enum Prepared {
    /// A preview 1 command, and the same as a component.
    CoreCommand { native: InstancePre<State>, componentised: Option<Linked<CommandPre<State>>> },
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

/// Compiles modules and components for the engines of this version, and runs none.
pub struct ModuleCompiler(Engine);

impl ModuleCompiler {
    /// A compiler for engines whose guests count their instructions when they `meter_fuel`.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] when the engine cannot be set up.
    pub fn new(meters_fuel: bool) -> Result<Self, ArtifactError> {
        engine::compiling(meters_fuel).map(Self).map_err(invalid)
    }

    /// Compiles a module or component.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] when it is not valid or uses a proposal that is switched off.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, ArtifactError> {
        let compiled = if is_component(wasm) {
            self.0.precompile_component(wasm)
        } else {
            self.0.precompile_module(wasm)
        };
        compiled.map_err(invalid)
    }
}

fn invalid(error: wasmtime::Error) -> ArtifactError {
    ArtifactError::Invalid(error.into())
}

/// Whether the bytes are a component, by the layer field of the WebAssembly preamble.
#[must_use]
pub fn is_component(wasm: &[u8]) -> bool {
    wasm.starts_with(b"\0asm\x0d\x00\x01\x00")
}

/// The path by which a file that is open can be opened again, and mapped.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[allow(
    unsafe_code,
    reason = "wasmtime trusts a compiled module completely. The invariant is that the compiler's process wrote \
              these bytes: the catalogue hands over what it read from that process or from its own private cache \
              only, after it checked on the open file that it belongs to this user and that nobody else may write \
              it, in a memory file that is sealed against changes"
)]
pub(super) fn load_module(engine: &Engine, compiled: &File) -> wasmtime::Result<Module> {
    let module = unsafe { Module::deserialize_file(engine, path_of(compiled)) }?;
    // Here rather than at the first run, which may be in a process that can no longer make one.
    module.initialize_copy_on_write_image()?;
    Ok(module)
}

#[allow(unsafe_code, reason = "see `load_module`")]
pub(super) fn load_component(engine: &Engine, compiled: &File) -> wasmtime::Result<Component> {
    let component = unsafe { Component::deserialize_file(engine, path_of(compiled)) }?;
    component.initialize_copy_on_write_image()?;
    Ok(component)
}

/// The contract that a module with these exports was most likely made for, and by which of them.
fn looks_like(exports: &[&str]) -> Option<(Contract, String)> {
    let command = exports.iter().find(|name| **name == "_start" || name.starts_with("wasi:cli/run@"));
    if let Some(export) = command {
        return Some((Contract::Command, format!("`{export}`")));
    }
    let typed = ["describe", "invoke"].iter().all(|name| exports.contains(name));
    typed.then(|| (Contract::Typed, "`describe` and `invoke`".to_owned()))
}

/// Why a module with these exports does not fit a contract: that it was made for the other one, when it
/// looks like that, and otherwise what wasmtime says.
pub(super) fn misfit(
    contract: Contract,
    exports: &[&str],
) -> impl Fn(wasmtime::Error) -> ArtifactError + use<> {
    let looks = looks_like(exports).filter(|(other, _)| *other != contract);
    move |error| {
        let Some((other, exports)) = &looks else { return unlinkable(contract)(error) };
        let (kind, change) = match other {
            Contract::Command => (
                "a command",
                "write `contract = \"command\"` and the schema of its arguments as `[arguments]` in its `tool.toml`",
            ),
            Contract::Typed => (
                "a typed tool",
                "write `contract = \"typed\"` in its `tool.toml` and leave out `[arguments]`, or add the bare module \
                 with `a2g-executor tool add`",
            ),
        };
        let reason = format!("it exports {exports}, so it looks like {kind}: {change}");
        ArtifactError::Unlinkable { contract: contract.as_str(), source: reason.into() }
    }
}

pub(super) fn unlinkable(contract: Contract) -> impl Fn(wasmtime::Error) -> ArtifactError {
    move |error| ArtifactError::Unlinkable { contract: contract.as_str(), source: error.into() }
}
