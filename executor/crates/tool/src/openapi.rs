//! `tool new --openapi`: a tool for each chosen operation of an OpenAPI document.

use crate::arguments::ApiOptions;
use anyhow::bail;
use std::path::Path;

/// Writes a folder for each chosen operation of `document`, or lists its operations.
pub(crate) fn new(_name: &str, _document: &Path, _options: &ApiOptions) -> anyhow::Result<()> {
    bail!("`--openapi` is not built yet")
}
