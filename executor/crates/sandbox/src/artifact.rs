//! Compiled tools. They are compiled from WebAssembly, stored as bytes, and loaded and linked before their runs.

use super::engine::CodeFeatures;
use super::state::StoreState;
use super::{engine, typed};
use a2g_capability::Grant;
use a2g_types::error_chain::BoxedError;
use a2g_types::tool::Contract;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use wasmtime::component::Component;
use wasmtime::{Engine, InstancePre, Module};
use wasmtime_wasi::p2::bindings::CommandPre;

/// The reason why a module with a proposal that the operator can allow cannot be compiled.
const NO_EXCEPTIONS: &str = "it uses WebAssembly exceptions, which are off: the operator can set `exceptions = true` in \
                             `[catalog]` of the configuration";

/// A module cannot be used as a tool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The module is not valid, or uses a proposal that is disabled.
    #[error("the module cannot be compiled")]
    Invalid(#[source] BoxedError),
    /// The module imports something that is not linked, or lacks the export of its contract.
    #[error("the module does not fit its contract `{contract}`")]
    Unlinkable {
        /// The contract that was expected.
        contract: &'static str,
        /// The missing import or export, as wasmtime reports it or with the change to make.
        source: BoxedError,
    },
    /// The compiled file could not be read back.
    #[error("the compiled module cannot be loaded")]
    Load(#[source] BoxedError),
}

/// A tool that is ready to be instantiated: compiled, loaded and type-checked against the linkers.
#[derive(Clone)]
pub struct Artifact(pub(super) PreparedGuest);

/// The machine code of one tool, in files that can no longer change.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    pub(super) compiled: &'a File,
    pub(super) is_component: bool,
    pub(super) componentised: Option<&'a File>,
    pub(super) contract: Contract,
}

impl<'a> Code<'a> {
    /// A compiled core module: a command, unless [`Self::contract`] says otherwise. It runs only under grants of whole
    /// folders, unless it has a component too ([`Self::componentised`]).
    #[must_use]
    pub fn module(compiled: &'a File) -> Self {
        Self { compiled, is_component: false, componentised: None, contract: Contract::Command }
    }

    /// A compiled component: a command, unless [`Self::contract`] says otherwise.
    #[must_use]
    pub fn component(compiled: &'a File) -> Self {
        Self { is_component: true, ..Self::module(compiled) }
    }

    /// The same core module converted to a component and compiled.
    // Scopes other than whole trees are enforced only over WASI 0.2, so a core command is compiled in both forms:
    // natively for whole trees, as a component for everything else.
    #[must_use]
    pub fn componentised(mut self, compiled: &'a File) -> Self {
        self.componentised = Some(compiled);
        self
    }

    /// The contract that the tool is loaded for.
    #[must_use]
    pub fn contract(mut self, contract: Contract) -> Self {
        self.contract = contract;
        self
    }

    /// The part of the code that runs under `grant`. A core module with a component needs only one of the two.
    // `run` chooses in the same way, for an artifact that has both.
    #[must_use]
    pub fn for_grant(self, grant: &Grant) -> Self {
        match self.componentised {
            Some(compiled) if grant.checks_each_path() => Self::component(compiled).contract(self.contract),
            Some(_) | None => Self { componentised: None, ..self },
        }
    }

    /// The file of the module or component.
    #[must_use]
    pub fn compiled_file(&self) -> &'a File {
        self.compiled
    }

    /// The file that [`Self::componentised`] has set.
    #[must_use]
    pub fn componentised_file(&self) -> Option<&'a File> {
        self.componentised
    }

    /// `true` for a component.
    #[must_use]
    pub fn is_component(&self) -> bool {
        self.is_component
    }

    /// The contract that [`Self::contract`] has set.
    #[must_use]
    pub fn expected_contract(&self) -> Contract {
        self.contract
    }
}

#[derive(Clone)]
pub(super) enum PreparedGuest {
    /// A preview 1 command, and the same command as a component.
    CoreCommand {
        native: InstancePre<StoreState>,
        componentised: Option<NetworkVariants<CommandPre<StoreState>>>,
    },
    /// A `wasi:cli/command` component.
    ComponentCommand(NetworkVariants<CommandPre<StoreState>>),
    /// A component of the world `a2g:tool/tool`.
    Typed(NetworkVariants<typed::ToolPre<StoreState>>),
}

/// A component, linked for runs without a network and for runs with one.
#[derive(Clone)]
pub(super) struct NetworkVariants<P> {
    pub(super) without_network: P,
    /// `None` when the component does not import the network: both kinds of run then use `without_network`.
    pub(super) with_network: Option<P>,
}

impl<P> NetworkVariants<P> {
    pub(super) fn pick(&self, network: bool) -> &P {
        self.with_network.as_ref().filter(|_| network).unwrap_or(&self.without_network)
    }
}

/// Compiles modules and components for this version's engines, and never runs them.
pub struct ModuleCompiler(Engine);

impl ModuleCompiler {
    /// A compiler for sandboxes without further features.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] when the engine cannot be set up.
    pub fn new() -> Result<Self, ArtifactError> {
        Self::with_features(CodeFeatures::default())
    }

    /// A compiler for sandboxes with these features.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_features(features: CodeFeatures) -> Result<Self, ArtifactError> {
        engine::compiler_engine(features).map(Self).map_err(invalid_module)
    }

    /// Compiles a module or component.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] when the module is not valid or uses a disabled proposal.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, ArtifactError> {
        compile(&self.0, wasm)
    }
}

pub(super) fn compile(engine: &Engine, wasm: &[u8]) -> Result<Vec<u8>, ArtifactError> {
    let compiled =
        if is_component(wasm) { engine.precompile_component(wasm) } else { engine.precompile_module(wasm) };
    compiled.map_err(invalid_module)
}

fn invalid_module(error: wasmtime::Error) -> ArtifactError {
    if error.root_cause().to_string().contains("exceptions proposal not enabled") {
        return ArtifactError::Invalid(NO_EXCEPTIONS.into());
    }
    ArtifactError::Invalid(error.into())
}

/// Returns `true` for a component, according to the layer field of the WebAssembly preamble.
#[must_use]
pub fn is_component(wasm: &[u8]) -> bool {
    wasm.starts_with(b"\0asm\x0d\x00\x01\x00")
}

/// A path that opens the same open file again.
fn proc_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[allow(
    unsafe_code,
    reason = "wasmtime trusts a compiled module completely. The invariant is that the compiler's process wrote \
              these bytes: the catalogue passes on only bytes that it read from that process or from its own \
              private cache, after checking on the open file that this user owns it and no other user may write \
              it, in a memory file that is sealed against changes"
)]
pub(super) fn load_module(engine: &Engine, compiled: &File) -> Result<Module, ArtifactError> {
    let module = unsafe { Module::deserialize_file(engine, proc_path(compiled)) }.map_err(load_error)?;
    // wasmtime would otherwise create the image at the first run, in a process that may no longer be able to do so.
    module.initialize_copy_on_write_image().map_err(load_error)?;
    Ok(module)
}

#[allow(unsafe_code, reason = "see `load_module`")]
pub(super) fn load_component(engine: &Engine, compiled: &File) -> Result<Component, ArtifactError> {
    let component =
        unsafe { Component::deserialize_file(engine, proc_path(compiled)) }.map_err(load_error)?;
    component.initialize_copy_on_write_image().map_err(load_error)?;
    Ok(component)
}

/// The root cause has the number of the module and the bound of the pool; the contexts around it only have the path of
/// the open file.
fn load_error(error: wasmtime::Error) -> ArtifactError {
    ArtifactError::Load(error.root_cause().to_string().into())
}

/// The contract that a module with these exports was most likely written for, and the exports that suggest it.
fn guess_contract(exports: &[&str]) -> Option<(Contract, String)> {
    let command = exports.iter().find(|name| **name == "_start" || name.starts_with("wasi:cli/run@"));
    if let Some(export) = command {
        return Some((Contract::Command, format!("`{export}`")));
    }
    let typed = ["describe", "invoke"].iter().all(|name| exports.contains(name));
    typed.then(|| (Contract::Typed, "`describe` and `invoke`".to_owned()))
}

/// The error for a module that does not fit its contract: advice to change the contract when the exports suggest
/// the other one, and wasmtime's message otherwise.
pub(super) fn contract_mismatch(
    contract: Contract,
    exports: &[&str],
) -> impl Fn(wasmtime::Error) -> ArtifactError + use<> {
    let guess = guess_contract(exports).filter(|(other, _)| *other != contract);
    move |error| {
        let Some((other, exports)) = &guess else { return link_error(contract)(error) };
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

pub(super) fn link_error(contract: Contract) -> impl Fn(wasmtime::Error) -> ArtifactError {
    move |error| ArtifactError::Unlinkable { contract: contract.as_str(), source: error.into() }
}
