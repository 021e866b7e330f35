//! The file of accepted definitions: JSON with a format number, and the tools of each catalogue by name.

use super::Definition;
use crate::catalog::manifest::{CapabilitiesTable, ManifestContract};
use a2g_types::tool::Contract;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Display;

/// The number of this format.
const FORMAT: u32 = 1;
/// The maximum size of one tool's definition, in bytes. A usual one has 1 to 4 kB.
const MAX_DEFINITION_BYTES: usize = 256 << 10;

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefinitionsFile {
    format: u32,
    /// The accepted definitions by the path of the catalogue, and then by the name of the tool.
    catalogues: BTreeMap<String, BTreeMap<String, StoredDefinition>>,
    /// The size of the file with everything that was inserted, in bytes; what was replaced is still counted.
    #[serde(skip)]
    bytes: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDefinition {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    version: String,
    description: String,
    #[serde(with = "ManifestContract")]
    contract: Contract,
    arguments: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<Map<String, Value>>,
    idempotent: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    session: bool,
    capabilities: CapabilitiesTable,
}

impl Default for DefinitionsFile {
    fn default() -> Self {
        Self { format: FORMAT, catalogues: BTreeMap::new(), bytes: 0 }
    }
}

fn damaged(problem: &dyn Display) -> String {
    format!(
        "it is damaged ({problem}): repair the file or restore it from a backup, and remove it only if every tool of the \
         catalogue may be accepted as it is now"
    )
}

impl DefinitionsFile {
    /// Parses the file.
    ///
    /// # Errors
    /// The reason, as the end of a sentence, if the text has another form or another format number.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let damaged = |error: serde_json::Error| damaged(&error);
        let Header { format } = serde_json::from_slice(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(format!(
                "it has format {format}, and this version reads format {FORMAT}: use the version that wrote it, or restore it \
                 from a backup"
            ));
        }
        let file = serde_json::from_slice::<Self>(text).map_err(damaged)?;
        Ok(Self { bytes: text.len(), ..file })
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// The accepted definition of a tool; `None` if none was accepted.
    ///
    /// # Errors
    /// The reason, as the end of a sentence, if a stored value is out of range.
    pub(super) fn get(&self, catalogue: &str, tool: &str) -> Result<Option<Definition>, String> {
        let stored = self.catalogues.get(catalogue).and_then(|tools| tools.get(tool));
        let Some(StoredDefinition {
            title,
            version,
            description,
            contract,
            arguments,
            result,
            settings,
            idempotent,
            session,
            capabilities,
        }) = stored
        else {
            return Ok(None);
        };
        let capabilities = capabilities.clone().check();
        Ok(Some(Definition {
            title: title.clone(),
            version: version.clone(),
            description: description.clone(),
            contract: *contract,
            arguments_schema: arguments.clone(),
            result_schema: result.clone(),
            settings: settings.clone(),
            is_idempotent: *idempotent,
            has_sessions: *session,
            capabilities: capabilities.map_err(|error| damaged(&format_args!("`{tool}`: {error}")))?,
        }))
    }

    /// Stores the accepted definition of a tool.
    ///
    /// # Errors
    /// The reason, as the end of a sentence, if reading would not give the same definition, or if the file could have more
    /// than `max_bytes`: one tool must not damage the file for all others.
    pub(super) fn insert(
        &mut self,
        catalogue: &str,
        tool: &str,
        definition: &Definition,
        max_bytes: u64,
    ) -> Result<(), String> {
        let stored = StoredDefinition::from(definition);
        let tools = BTreeMap::from([(tool.to_owned(), stored.clone())]);
        let alone = Self { catalogues: BTreeMap::from([(catalogue.to_owned(), tools)]), ..Self::default() };
        let text = alone.to_json();
        if text.len() > MAX_DEFINITION_BYTES {
            return Err(format!(
                "its description and schemas have {} bytes as JSON, but at most {MAX_DEFINITION_BYTES} are accepted",
                text.len()
            ));
        }
        let bytes = self.bytes.saturating_add(text.len());
        if bytes as u64 > max_bytes {
            return Err(format!(
                "the file of accepted definitions (`catalog.definitions`) has no room for it, with {max_bytes} bytes at most: \
                 remove catalogues and tools from the file that no longer exist"
            ));
        }
        let read = Self::parse(&text).map_err(|_| "its schemas are nested too deeply to be stored")?;
        if read.get(catalogue, tool)?.as_ref() != Some(definition) {
            return Err("its schemas would not be the same after they were stored".to_owned());
        }
        self.bytes = bytes;
        self.catalogues.entry(catalogue.to_owned()).or_default().insert(tool.to_owned(), stored);
        Ok(())
    }
}

impl From<&Definition> for StoredDefinition {
    fn from(definition: &Definition) -> Self {
        let Definition {
            title,
            version,
            description,
            contract,
            arguments_schema,
            result_schema,
            settings,
            is_idempotent,
            has_sessions,
            capabilities,
        } = definition;
        Self {
            title: title.clone(),
            version: version.clone(),
            description: description.clone(),
            contract: *contract,
            arguments: arguments_schema.clone(),
            result: result_schema.clone(),
            settings: settings.clone(),
            idempotent: *is_idempotent,
            session: *has_sessions,
            capabilities: capabilities.into(),
        }
    }
}
