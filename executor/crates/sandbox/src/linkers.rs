//! The linkers: the complete list of interfaces that a guest may import.
//!
//! Network interfaces are not among them. [`super::network`] and [`super::sockets`] link those.

#[cfg(feature = "preview1")]
use super::preview1;
use super::state::StoreState;
use super::{budgeted, filesystem, path_text, typed};
use wasmtime::component::{HasData, Linker as ComponentLinker, ResourceTable};
use wasmtime::{Engine, Linker as CoreLinker};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem as wasi_filesystem, io};

/// The imports of core modules: WASI preview 1.
#[cfg(feature = "preview1")]
pub(super) fn core_linker(engine: &Engine) -> wasmtime::Result<CoreLinker<StoreState>> {
    let mut linker = CoreLinker::new(engine);
    preview1::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// The imports of core modules: none.
#[cfg(not(feature = "preview1"))]
pub(super) fn core_linker(engine: &Engine) -> wasmtime::Result<CoreLinker<StoreState>> {
    Ok(CoreLinker::new(engine))
}

struct HasTable;

impl HasData for HasTable {
    type Data<'a> = &'a mut ResourceTable;
}

/// The imports of components: WASI 0.2 without the network, and the host interface of typed tools.
pub(super) fn component_linker(engine: &Engine) -> wasmtime::Result<ComponentLinker<StoreState>> {
    let mut linker = ComponentLinker::new(engine);
    // Each interface is linked separately: wasmtime-wasi's own `add_to_linker` would also link its sockets, and random
    // bytes, polls and files without budgets.
    let l = &mut linker;
    io::error::add_to_linker::<StoreState, HasTable>(l, |state| state.ctx().table)?;
    budgeted::add_to_linker(l)?;
    io::streams::add_to_linker::<StoreState, HasTable>(l, |state| state.ctx().table)?;
    clocks::wall_clock::add_to_linker::<StoreState, WasiClocks>(l, StoreState::clocks)?;
    clocks::monotonic_clock::add_to_linker::<StoreState, WasiClocks>(l, StoreState::clocks)?;
    wasi_filesystem::preopens::add_to_linker::<StoreState, WasiFilesystem>(l, StoreState::filesystem)?;
    filesystem::add_to_linker(l)?;
    path_text::add_to_linker(l)?;
    cli::exit::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::environment::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::stdin::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::stdout::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::stderr::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::terminal_input::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::terminal_output::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::terminal_stdin::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::terminal_stdout::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    cli::terminal_stderr::add_to_linker::<StoreState, WasiCli>(l, StoreState::cli)?;
    typed::add_to_linker(l)?;
    Ok(linker)
}
