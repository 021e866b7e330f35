//! The linkers: the complete list of interfaces that a guest may import.
//!
//! Network interfaces are not among them. [`super::network`] and [`super::sockets`] link those.

use super::state::State;
use super::{counted, filesystem, path_text, preview1, typed};
use wasmtime::component::{HasData, HasSelf, Linker as ComponentLinker, ResourceTable};
use wasmtime::{Engine, Linker as CoreLinker};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem as wasi_filesystem, io};

/// The imports of core modules: WASI preview 1.
pub(super) fn core(engine: &Engine) -> wasmtime::Result<CoreLinker<State>> {
    let mut linker = CoreLinker::new(engine);
    preview1::add_to_linker(&mut linker)?;
    Ok(linker)
}

struct HasTable;

impl HasData for HasTable {
    type Data<'a> = &'a mut ResourceTable;
}

/// The imports of components: WASI 0.2 without the network, and the host interface of typed tools.
pub(super) fn component(engine: &Engine) -> wasmtime::Result<ComponentLinker<State>> {
    let mut linker = ComponentLinker::new(engine);
    // Interface by interface: wasmtime-wasi's own `add_to_linker` would also link its sockets, and random bytes,
    // polls and files without budgets.
    let l = &mut linker;
    io::error::add_to_linker::<State, HasTable>(l, |state| state.ctx().table)?;
    counted::add_to_linker(l)?;
    io::streams::add_to_linker::<State, HasTable>(l, |state| state.ctx().table)?;
    clocks::wall_clock::add_to_linker::<State, WasiClocks>(l, State::clocks)?;
    clocks::monotonic_clock::add_to_linker::<State, WasiClocks>(l, State::clocks)?;
    wasi_filesystem::preopens::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    filesystem::add_to_linker(l)?;
    path_text::add_to_linker(l)?;
    cli::exit::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::environment::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    typed::add_to_linker::<State, HasSelf<State>>(l, |state| state)?;
    Ok(linker)
}
