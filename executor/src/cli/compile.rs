//! `compile-module`: the compiler in its own process.
//!
//! The process confines itself before it reads the first byte of the module, so that a module that is expensive to
//! compile, or that exploits a bug in the compiler, harms only this process. No code of the module runs.

use super::arguments::{CompileModule, ContractArg};
use a2g_core::catalog::{
    MAX_CODE_BYTES, MAX_MODULE_BYTES, ModuleFacts, componentize, is_typed_core_module, write_code,
};
use a2g_isolate::{CompilerLimits, confine_compiler};
use a2g_sandbox::{ModuleCompiler, is_component};
use a2g_types::error_chain::ErrorChain;
use a2g_types::quantity::MemoryLimit;
use a2g_types::tool::Contract;
use rustix::fs::SeekFrom;
use std::io::Read as _;
use std::process::ExitCode;

/// The niceness of a compilation that takes long: its callers wait for it, and nobody else does.
const LOW_PRIORITY: i32 = 5;

pub(super) fn main(arguments: &CompileModule) -> anyhow::Result<ExitCode> {
    let CompileModule { contract, features, cpu_seconds, memory_mb, low_priority } = *arguments;
    if low_priority {
        // Threads that start later inherit it.
        rustix::process::nice(LOW_PRIORITY)?;
    }
    let memory = MemoryLimit::from_mb(memory_mb)?;
    let compiler = ModuleCompiler::with_features(features.into())?;
    confine_compiler(CompilerLimits { cpu_seconds, memory, output_bytes: MAX_CODE_BYTES })?;
    let contract = match contract {
        ContractArg::Command => Contract::Command,
        ContractArg::Typed => Contract::Typed,
    };
    let wasm = read_module()?;
    let facts = ModuleFacts::read(&wasm);
    let wasm = match contract {
        Contract::Typed if !is_component(&wasm) && is_typed_core_module(&wasm) => {
            componentize(&wasm, contract)?
        }
        Contract::Typed | Contract::Command => wasm,
    };
    let code = compiler.compile(&wasm)?;
    let component = is_component(&wasm);
    // An error here is not fatal: a core module that cannot be converted to a component still runs with grants of whole
    // trees, which are what most verdicts grant.
    let componentised = (!component).then(|| {
        let component = componentize(&wasm, contract).map_err(|error| ErrorChain(&error).to_string())?;
        compiler.compile(&component).map_err(|error| ErrorChain(&error).to_string())
    });
    let componentised =
        componentised.as_ref().map(|result| result.as_ref().map(Vec::as_slice).map_err(String::as_str));
    write_code(&mut std::io::stdout().lock(), &code, component, componentised, facts)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the module from standard input. That is a file, and its offset is still where the writer left it: at the end.
fn read_module() -> anyhow::Result<Vec<u8>> {
    let stdin = std::io::stdin().lock();
    rustix::fs::seek(&stdin, SeekFrom::Start(0))?;
    // A vector that grows would have twice the module for a moment.
    let length = usize::try_from(rustix::fs::fstat(&stdin)?.st_size).unwrap_or_default();
    let mut wasm = Vec::with_capacity(length.min(usize::try_from(MAX_MODULE_BYTES)?));
    stdin.take(MAX_MODULE_BYTES).read_to_end(&mut wasm)?;
    Ok(wasm)
}
