//! Plain wasmtime, as its own documentation would write it: a pooling engine, a store with limits,
//! WASI with one folder, pipes for standard input and output. No meter, no throttle, no report.

use a2g_types::tool::Contract;
use std::path::Path;
use wasmtime::component::{Component, Linker as ComponentLinker, ResourceTable};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module, PoolingAllocationConfig, Store,
    StoreLimits, StoreLimitsBuilder,
};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::pipe::{MemoryInputPipe, MemoryOutputPipe};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

wasmtime::component::bindgen!({
    path: "../guest-sdk/wit",
    world: "tool",
    exports: { default: async },
});

struct Core {
    wasi: WasiP1Ctx,
    limits: StoreLimits,
}

struct Typed {
    wasi: WasiCtx,
    table: ResourceTable,
    limits: StoreLimits,
}

impl WasiView for Typed {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl a2g::tool::types::Host for Typed {}

impl a2g::tool::host::Host for Typed {
    fn log(&mut self, _: a2g::tool::types::Level, _: String) {}
    fn progress(&mut self, _: Option<f32>, _: String) {}
    fn artifact(
        &mut self,
        _: String,
        _: String,
        _: Vec<u8>,
        _: bool,
    ) -> Result<(), a2g::tool::types::ToolError> {
        Ok(())
    }
    fn network(&mut self) -> bool {
        false
    }
}

pub(crate) struct Plain {
    engine: Engine,
    prepared: Prepared,
}

enum Prepared {
    Core(InstancePre<Core>),
    Typed(ToolPre<Typed>),
}

impl Plain {
    pub(crate) fn new(wasm: &[u8], contract: Contract) -> Self {
        let engine = engine();
        let prepared = match contract {
            Contract::Command => {
                let mut linker = Linker::new(&engine);
                wasmtime_wasi::p1::add_to_linker_async(&mut linker, |core: &mut Core| &mut core.wasi)
                    .unwrap();
                Prepared::Core(linker.instantiate_pre(&Module::new(&engine, wasm).unwrap()).unwrap())
            }
            Contract::Typed => typed(&engine, &Component::new(&engine, wasm).unwrap()),
        };
        Self { engine, prepared }
    }

    /// A typed tool as machine code.
    pub(crate) fn compile(wasm: &[u8]) -> Vec<u8> {
        engine().precompile_component(wasm).unwrap()
    }

    /// What [`Self::compile`] gave.
    #[allow(unsafe_code, reason = "the benchmark has just compiled it")]
    pub(crate) fn load(compiled: &[u8]) -> Self {
        let engine = engine();
        let component = unsafe { Component::deserialize(&engine, compiled) }.unwrap();
        let prepared = typed(&engine, &component);
        Self { engine, prepared }
    }

    pub(crate) async fn run(&self, arguments: &str, folder: Option<&Path>) {
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_blocking_current_thread(true);
        if let Some(folder) = folder {
            wasi.preopened_dir(folder, "/data", FsPerms::ReadOnly).unwrap();
        }
        let limits = StoreLimitsBuilder::new().memory_size(64 << 20).build();
        match &self.prepared {
            Prepared::Core(pre) => {
                let stdout = MemoryOutputPipe::new(1 << 20);
                wasi.stdin(MemoryInputPipe::new(arguments.to_owned())).stdout(stdout.clone());
                let mut store = Store::new(&self.engine, Core { wasi: wasi.build_p1(), limits });
                store.limiter(|core| &mut core.limits);
                store.set_epoch_deadline(1_000_000);
                let instance = pre.instantiate_async(&mut store).await.unwrap();
                let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
                start.call_async(&mut store, ()).await.unwrap();
                drop(store);
                let answer: serde_json::Value = serde_json::from_slice(&stdout.contents()).unwrap();
                assert!(answer.is_object());
            }
            Prepared::Typed(pre) => {
                let state = Typed { wasi: wasi.build(), table: ResourceTable::new(), limits };
                let mut store = Store::new(&self.engine, state);
                store.limiter(|typed| &mut typed.limits);
                store.set_epoch_deadline(1_000_000);
                let tool = pre.instantiate_async(&mut store).await.unwrap();
                let answer = tool.call_invoke(&mut store, arguments).await.unwrap().unwrap();
                drop(store);
                let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
                assert!(answer.is_object());
            }
        }
    }
}

fn engine() -> Engine {
    let mut config = Config::new();
    config.epoch_interruption(true).max_wasm_stack(512 << 10).concurrency_support(false);
    let mut pool = PoolingAllocationConfig::new();
    pool.linear_memory_keep_resident(256 << 10).table_keep_resident(256 << 10);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config).unwrap()
}

fn typed(engine: &Engine, component: &Component) -> Prepared {
    let mut linker = ComponentLinker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker).unwrap();
    a2g::tool::host::add_to_linker::<Typed, wasmtime::component::HasSelf<Typed>>(&mut linker, |s| s).unwrap();
    Prepared::Typed(ToolPre::new(linker.instantiate_pre(component).unwrap()).unwrap())
}
