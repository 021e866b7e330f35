//! `compile-module`: the compiler's own process.
//!
//! It takes limits on CPU and memory before it reads the first byte of the module, so that a
//! module that is made to be expensive ends this process and nothing else.

use super::arguments::ContractWord;
use crate::capability::{Ceilings, Claims, Grant, HostClaims, Permit, Roots};
use crate::catalog::{Compiled, componentize, is_typed_core_module};
use crate::clock::SystemClock;
use crate::limit::{Access, Budgets, Layer, NetworkBudgets};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use crate::sandbox::{Sandbox, is_component};
use crate::tool::Contract;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// CPU seconds of one compilation. A 4 MB module takes 7.
const CPU_SECONDS: u64 = 120;
/// Bytes of memory of one compilation. A 4 MB module takes 714 MB.
const MEMORY_BYTES: u64 = 4 << 30;

pub(super) fn main(contract: ContractWord) -> anyhow::Result<ExitCode> {
    let limits = [(Resource::Cpu, CPU_SECONDS), (Resource::Data, MEMORY_BYTES), (Resource::Core, 0)];
    for (resource, most) in limits {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    let contract = match contract {
        ContractWord::Command => Contract::Command,
        ContractWord::Typed => Contract::Typed,
    };
    let mut wasm = Vec::new();
    std::io::stdin().read_to_end(&mut wasm)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let compiled = runtime.block_on(compile(wasm, contract))?;
    std::io::stdout().write_all(&compiled.encode())?;
    Ok(ExitCode::SUCCESS)
}

async fn compile(wasm: Vec<u8>, contract: Contract) -> anyhow::Result<Compiled> {
    let wasm = match contract {
        Contract::Typed if !is_component(&wasm) && is_typed_core_module(&wasm) => componentize(&wasm)?,
        Contract::Typed | Contract::Command => wasm,
    };
    let sandbox = Sandbox::new(1, Arc::new(SystemClock))?;
    let module = sandbox.compile(&wasm)?;
    let component = is_component(&wasm);
    let artifact = sandbox.load(&module, component, contract)?;
    let described = match contract {
        Contract::Command => None,
        Contract::Typed => Some(sandbox.describe(&artifact, nothing()?).await?),
    };
    Ok(Compiled { module, component, described })
}

/// A permit for `describe`: some memory and a second, and nothing else.
fn nothing() -> anyhow::Result<Permit> {
    let ceilings = Ceilings {
        memory: MemoryLimit::from_mb(64)?,
        cpu: CpuPercent::new(100)?,
        timeout: Timeout::from_seconds(5)?,
        output: OutputLimit::from_bytes(64 << 10)?,
        network: false,
        hosts: HostClaims::default(),
        network_budgets: NetworkBudgets::NONE,
        trees: Vec::new(),
        access: Access::ReadOnly,
        budgets: Budgets { written: MemoryLimit::from_mb(1024)?, created: 1000, hard_links: false },
    };
    let grant = Grant::new([(Layer::Tool, Claims::default())], &ceilings)?;
    Ok(Permit::new(grant, Roots::none()))
}
