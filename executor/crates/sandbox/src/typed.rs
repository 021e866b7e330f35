//! The host's side of the WIT world `a2g:tool/tool`.

use super::label::LabelError;
use super::state::StoreState;
use a2g_types::outcome::LogLevel;

wasmtime::component::bindgen!({
    path: "../../../guest-sdk/wit",
    world: "tool",
    imports: { default: trappable },
    exports: { default: async },
});

pub(super) use a2g::tool::host::{Host, add_to_linker};
use a2g::tool::types::Level;

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
