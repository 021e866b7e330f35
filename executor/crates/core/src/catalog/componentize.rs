//! Converts core modules to components, with the preview 1 adapter of the wasmtime release in use.

use super::CatalogError;
use a2g_types::tool::Contract;
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
    WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};

/// Wraps a core module of the target `wasm32-wasip1` into a component.
///
/// # Errors
/// [`CatalogError::Module`] when a typed module does not contain the world `a2g:tool/tool`, or the module
/// imports functions that the adapter does not provide.
pub fn componentize(wasm: &[u8], contract: Contract) -> Result<Vec<u8>, CatalogError> {
    let adapter = match contract {
        Contract::Command => WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
        Contract::Typed => WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
    };
    wit_component::ComponentEncoder::default()
        .module(wasm)
        .and_then(|encoder| encoder.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, adapter))
        .and_then(|encoder| encoder.validate(true).encode())
        .map_err(|error| {
            CatalogError::Module(format!("the module cannot be converted to a component: {error:#}"))
        })
}

/// Returns `true` when a core module has a section with its component type, which `wit-bindgen` adds.
#[must_use]
pub fn is_typed_core_module(wasm: &[u8]) -> bool {
    wasmparser::Parser::new(0).parse_all(wasm).any(|payload| {
        matches!(payload, Ok(wasmparser::Payload::CustomSection(section)) if section.name().starts_with("component-type"))
    })
}
