//! The host's side of the WIT world `a2g:tool/tool`, in each of its versions.

use super::label::LabelError;
use super::state::StoreState;
use a2g_types::outcome::LogLevel;
use wasmtime::component::{HasSelf, Linker};

wasmtime::component::bindgen!({
    path: "wit/tool.wit",
    world: "tool",
    imports: {
        "a2g:tool/calls.list": async | trappable,
        "a2g:tool/calls.describe": async | trappable,
        "a2g:tool/calls.call": async | trappable,
        "a2g:tool/calls.start": async | trappable,
        "a2g:tool/calls.wait": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});

/// Version 0.1, which has no calls. The exports are those of the later version.
mod v0_1 {
    wasmtime::component::bindgen!({
        path: "wit/tool-0.1.wit",
        world: "tool",
        imports: { default: trappable },
        exports: { default: async },
        with: { "a2g:tool/types@0.1.0": super::a2g::tool::types },
    });
}

use a2g::tool::host::Host;
use a2g::tool::types::Level;

/// Links the interfaces of all versions.
pub(super) fn add_to_linker(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    a2g::tool::host::add_to_linker::<StoreState, HasSelf<StoreState>>(linker, |state| state)?;
    a2g::tool::calls::add_to_linker::<StoreState, HasSelf<StoreState>>(linker, |state| state)?;
    v0_1::a2g::tool::host::add_to_linker::<StoreState, HasSelf<StoreState>>(linker, |state| state)
}

impl a2g::tool::types::Host for StoreState {}

impl Host for StoreState {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        Ok(self.stats.collector.log(level, &message)?)
    }

    fn progress(&mut self, percent: Option<f32>, message: String) -> wasmtime::Result<()> {
        Ok(self.stats.collector.set_progress(percent, &message)?)
    }

    fn artifact(
        &mut self,
        name: String,
        mime: String,
        chunk: Vec<u8>,
        last: bool,
    ) -> wasmtime::Result<Result<(), ToolError>> {
        // Invalid labels are an error that the tool can handle; only an exceeded limit ends its run.
        let result = self.stats.collector.add_artifact_chunk(&name, &mime, &chunk, last)?;
        let invalid = |error: LabelError| ToolError {
            code: "invalid".to_owned(),
            message: error.to_string(),
            detail: None,
        };
        Ok(result.map_err(invalid))
    }

    fn network(&mut self) -> wasmtime::Result<bool> {
        Ok(self.http.is_on())
    }
}

impl v0_1::a2g::tool::host::Host for StoreState {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        Host::log(self, level, message)
    }

    fn progress(&mut self, percent: Option<f32>, message: String) -> wasmtime::Result<()> {
        Host::progress(self, percent, message)
    }

    fn artifact(
        &mut self,
        name: String,
        mime: String,
        chunk: Vec<u8>,
        last: bool,
    ) -> wasmtime::Result<Result<(), ToolError>> {
        Host::artifact(self, name, mime, chunk, last)
    }

    fn network(&mut self) -> wasmtime::Result<bool> {
        Host::network(self)
    }
}
