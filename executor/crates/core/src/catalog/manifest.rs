//! `tool.toml`: the declarations of a tool's author, and the digest that the installation pins.

use super::code::read_regular_file;
use super::example::{self, Example, ExampleTable};
use super::{CatalogError, Schema, parse_tool_name};
use a2g_capability::RequestRule;
use a2g_types::ident::{SecretName, ToolName};
use a2g_types::limit::{ClaimedLimits, FileEffects, KeyNumbers, Layer, Limit, LimitRow, rows_set_by};
use a2g_types::limit_keys::{self, LimitKeys};
use a2g_types::request::DeclaredRequest;
use a2g_types::tool::{CallTargets, Contract, DeclaredCapabilities, DeclaredFilesystem};
use serde::de::MapAccess;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The file name in a tool's folder.
pub(super) const FILE: &str = "tool.toml";
/// The maximum size of `tool.toml`, in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;
/// The depth at which the parser of TOML stops.
const MAX_DEPTH: usize = 80;
/// The maximum lengths of version, title and description, in bytes. They appear in every list of tools.
const MAX_VERSION_BYTES: usize = 128;
const MAX_TITLE_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;
/// The maximum number of requests that a tool declares. Each is in every report.
const MAX_REQUESTS: usize = 64;
/// The maximum size of the settings as JSON, in bytes. Every run gets them.
const MAX_SETTINGS_BYTES: usize = 64 << 10;
/// The maximum number of secrets that a tool declares.
const MAX_SECRETS: usize = 16;

/// A checked `tool.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolManifest {
    /// The tool's name.
    pub name: ToolName,
    /// The name for people.
    pub title: Option<String>,
    /// The semantic version.
    pub version: String,
    /// The description for people and models.
    pub description: String,
    /// The contract: command or typed.
    pub contract: Contract,
    /// The module's file name, beside `tool.toml`.
    pub module: PathBuf,
    /// The pinned SHA-256 of the module, in lower-case hexadecimal.
    pub sha256: Option<String>,
    /// The capabilities that the tool declares. A grant never exceeds them.
    pub capabilities: DeclaredCapabilities,
    /// The JSON Schema of the arguments of a command, or of a typed tool with settings. Any other typed tool reports its
    /// own.
    pub arguments: Option<Value>,
    /// The JSON Schema of the tool's result.
    pub result: Option<Value>,
    /// What the module of a typed tool gets beside the arguments of each call.
    pub settings: Option<Map<String, Value>>,
    /// `true` if a repeat with the same arguments changes nothing more.
    pub idempotent: bool,
    /// `true` if a call may ask for a session. Only a typed tool has sessions.
    pub session: bool,
    /// The examples that `tool test` runs.
    pub examples: Vec<Example>,
}

/// The TOML form of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestFile {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    version: String,
    description: String,
    #[serde(with = "ManifestContract")]
    contract: Contract,
    #[serde(default = "default_module")]
    module: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    idempotent: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    session: bool,
    #[serde(default)]
    capabilities: CapabilitiesTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<toml::Table>,
    #[serde(default, rename = "example", skip_serializing_if = "Vec::is_empty")]
    examples: Vec<ExampleTable>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Contract", rename_all = "kebab-case")]
pub(super) enum ManifestContract {
    Command,
    Typed,
}

#[derive(Debug, Clone, Default)]
pub(super) struct CapabilitiesTable {
    filesystem: DeclaredFilesystem,
    effects: FileEffects,
    network: bool,
    requests: Option<Vec<String>>,
    secrets: Option<Vec<String>>,
    numbers: KeyNumbers,
    calls: Vec<String>,
}

/// The limits that a tool declares.
pub(super) fn declared_rows() -> impl Iterator<Item = &'static LimitRow> {
    rows_set_by(Layer::Tool)
}

/// The keys of [`CapabilitiesTable`], in the order in which it is written.
static CAPABILITY_KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let key =
        |row: &LimitRow| if row.limit == Limit::Calls { vec!["calls", row.key()] } else { vec![row.key()] };
    ["filesystem", "effects", "network", "requests", "secrets"]
        .into_iter()
        .chain(declared_rows().flat_map(key))
        .collect()
});

impl LimitKeys for CapabilitiesTable {
    const NAME: &'static str = "CapabilitiesTable";

    fn keys() -> &'static [&'static str] {
        &CAPABILITY_KEYS
    }

    fn numbers(&mut self) -> &mut KeyNumbers {
        &mut self.numbers
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, members: &mut A) -> Result<(), A::Error> {
        match key {
            "filesystem" => ReadFilesystem(self.filesystem) = members.next_value()?,
            "effects" => self.effects = members.next_value()?,
            "network" => self.network = members.next_value()?,
            "requests" => self.requests = members.next_value()?,
            "secrets" => self.secrets = members.next_value()?,
            _calls => self.calls = members.next_value()?,
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for CapabilitiesTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        limit_keys::deserialize(from)
    }
}

impl Serialize for CapabilitiesTable {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { filesystem, effects, network, requests, secrets, numbers, calls } = self;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("filesystem", filesystem.as_str())?;
        if let Some(effects) = effects.unless_direct() {
            map.serialize_entry("effects", &effects)?;
        }
        map.serialize_entry("network", network)?;
        if let Some(requests) = requests {
            map.serialize_entry("requests", requests)?;
        }
        if let Some(secrets) = secrets {
            map.serialize_entry("secrets", secrets)?;
        }
        for row in declared_rows() {
            if row.limit == Limit::Calls && !calls.is_empty() {
                map.serialize_entry("calls", calls)?;
            }
            if let Some(number) = numbers.get(row.limit) {
                map.serialize_entry(row.key(), &number)?;
            }
        }
        map.end()
    }
}

#[derive(Deserialize)]
#[serde(remote = "DeclaredFilesystem", rename_all = "kebab-case")]
enum ManifestFilesystem {
    None,
    Read,
    ReadWrite,
}

#[derive(Deserialize)]
struct ReadFilesystem(#[serde(with = "ManifestFilesystem")] DeclaredFilesystem);

fn default_module() -> String {
    "tool.wasm".to_owned()
}

/// The problem of a `tool.toml`, with line and key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(String);

impl<T: Into<String>> From<T> for ManifestError {
    fn from(message: T) -> Self {
        Self(message.into())
    }
}

impl ToolManifest {
    /// Reads and checks a `tool.toml`.
    ///
    /// # Errors
    /// [`CatalogError::Manifest`] with the line and the key.
    pub fn read(path: &Path) -> Result<Self, CatalogError> {
        Self::read_with_text(path).map(|(manifest, _text)| manifest)
    }

    /// Like [`Self::read`], and returns the text of the file, which a signature covers.
    pub(super) fn read_with_text(path: &Path) -> Result<(Self, String), CatalogError> {
        let invalid = |reason| CatalogError::Manifest { path: path.to_owned(), reason };
        let text = String::from_utf8(read_regular_file(path, MAX_BYTES)?);
        let text =
            text.map_err(|error| invalid(format!("it is not UTF-8: {}", error.utf8_error()).into()))?;
        let manifest = Self::parse(&text).map_err(invalid)?;
        Ok((manifest, text))
    }

    pub(super) fn parse(text: &str) -> Result<Self, ManifestError> {
        let file: ManifestFile = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map(|before| 1 + before.matches('\n').count());
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            if error.message().contains("recursion") {
                return format!("{line}tables and lists are nested more than {MAX_DEPTH} levels deep");
            }
            // Joined, because tables and logs show the message on one line.
            format!("{line}{}", error.message().replace('\n', ", "))
        })?;
        let ManifestFile {
            name,
            title,
            version,
            description,
            contract,
            module,
            sha256,
            idempotent,
            session,
            capabilities,
            arguments,
            result,
            settings,
            examples,
        } = file;
        check_contract(contract, arguments.is_some(), settings.is_some())?;
        check_session(contract, session)?;
        check_lengths(&version, &description)?;
        check_length("title", title.as_deref().unwrap_or_default(), MAX_TITLE_BYTES)?;
        let module = PathBuf::from(module);
        if module.components().count() != 1 || module.file_name().is_none() {
            return Err("`module` must be the name of a file beside `tool.toml`".into());
        }
        let capabilities = capabilities.check()?;
        let examples = example::check_all(examples, &capabilities)?;
        Ok(Self {
            name: parse_tool_name(&name).map_err(|error| format!("`name`: {error}"))?,
            title,
            version,
            description,
            contract,
            module,
            sha256,
            capabilities,
            arguments,
            result,
            settings: settings.map(|table| check_settings(&table)).transpose()?,
            idempotent,
            session,
            examples,
        })
    }

    /// The manifest of a bare typed module, from its own description.
    #[must_use]
    pub fn from_description(name: ToolName, described: &[String; 4]) -> Self {
        let [_, version, description, _] = described;
        Self {
            name,
            title: None,
            version: version.clone(),
            description: description.clone(),
            contract: Contract::Typed,
            module: default_module().into(),
            sha256: None,
            capabilities: DeclaredCapabilities::default(),
            arguments: None,
            result: None,
            settings: None,
            idempotent: false,
            session: false,
            examples: Vec::new(),
        }
    }

    /// Checks the description of a typed tool, and returns the manifest with the schema of the arguments. A module
    /// that several tools share knows neither their names nor their arguments: those of `tool.toml` apply.
    ///
    /// # Errors
    /// [`CatalogError::Module`] when the tool reports another name, or a schema that is not JSON.
    pub(super) fn complete(self, described: Option<[String; 4]>) -> Result<(Self, Value), CatalogError> {
        if let Some(schema) = &self.arguments {
            let schema = schema.clone();
            return Ok((self, schema));
        }
        let Some([name, _, _, schema]) = described else {
            return Ok((self, json!({ "type": "object" })));
        };
        if name != self.name.as_str() {
            let excerpt = a2g_types::ident::excerpt(&name);
            return Err(CatalogError::Module(format!(
                "the module reports the name `{excerpt}`, but `tool.toml` has `{}`",
                self.name
            )));
        }
        let result = check_lengths(&self.version, &self.description);
        result.map_err(|error| CatalogError::Module(error.to_string()))?;
        Ok((self, Schema::parse(&schema)?))
    }

    /// The manifest as TOML.
    ///
    /// # Errors
    /// [`ManifestError`] when the schema contains a value that TOML does not have, such as `null`.
    pub fn to_toml(&self) -> Result<String, ManifestError> {
        let Self {
            name,
            title,
            version,
            description,
            contract,
            module,
            sha256,
            capabilities,
            arguments,
            result,
            settings,
            idempotent,
            session,
            examples,
        } = self;
        let file = ManifestFile {
            name: name.as_str().to_owned(),
            title: title.clone(),
            version: version.clone(),
            description: description.clone(),
            contract: *contract,
            module: module.display().to_string(),
            sha256: sha256.clone(),
            idempotent: *idempotent,
            session: *session,
            capabilities: capabilities.into(),
            arguments: arguments.clone(),
            result: result.clone(),
            settings: settings.as_ref().map(example::to_toml_table).transpose()?,
            examples: examples.iter().map(Example::to_table).collect::<Result<_, _>>()?,
        };
        toml::to_string(&file).map_err(|error| ManifestError(error.to_string()))
    }
}

/// Checks that a tool has what its contract needs, and nothing that only the other one can have.
fn check_contract(contract: Contract, has_arguments: bool, has_settings: bool) -> Result<(), ManifestError> {
    match (contract, has_arguments, has_settings) {
        (Contract::Command, false, _) => {
            Err("a command needs `[arguments]`, the JSON Schema of its arguments".into())
        }
        (Contract::Command, true, true) => {
            Err("`[settings]` is for typed tools: a command reads nothing but its arguments".into())
        }
        (Contract::Typed, true, false) => Err(
            "`[arguments]` is for commands and for typed tools with `[settings]`: any other typed tool describes its own \
             arguments"
                .into(),
        ),
        (Contract::Typed, false, true) => Err(
            "a tool with `[settings]` needs `[arguments]`, the JSON Schema of its arguments: its module serves other tools \
             too, and cannot know it"
                .into(),
        ),
        (Contract::Command, true, false) | (Contract::Typed, true, true) | (Contract::Typed, false, false) => {
            Ok(())
        }
    }
}

fn check_session(contract: Contract, session: bool) -> Result<(), ManifestError> {
    match (contract, session) {
        (Contract::Command, true) => {
            Err("`session = true` is for typed tools: nothing of a command is left to call again".into())
        }
        (Contract::Command, false) | (Contract::Typed, _) => Ok(()),
    }
}

/// The settings as JSON.
fn check_settings(table: &toml::Table) -> Result<Map<String, Value>, ManifestError> {
    let settings = example::to_json_object(table).map_err(|reason| format!("`[settings]`: {reason}"))?;
    let bytes = serde_json::to_string(&settings).unwrap_or_default().len();
    if bytes > MAX_SETTINGS_BYTES {
        return Err(format!(
            "`[settings]` has {bytes} bytes as JSON, but at most {MAX_SETTINGS_BYTES} are accepted"
        )
        .into());
    }
    Ok(settings)
}

fn check_lengths(version: &str, description: &str) -> Result<(), ManifestError> {
    check_length("version", version, MAX_VERSION_BYTES)?;
    check_length("description", description, MAX_DESCRIPTION_BYTES)
}

fn check_length(key: &str, text: &str, max: usize) -> Result<(), ManifestError> {
    if text.len() > max {
        return Err(format!("`{key}` has {} bytes, but at most {max} are accepted", text.len()).into());
    }
    Ok(())
}

impl From<&DeclaredCapabilities> for CapabilitiesTable {
    fn from(capabilities: &DeclaredCapabilities) -> Self {
        let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } =
            capabilities;
        let names = secrets.iter().map(ToString::to_string).collect::<Vec<_>>();
        let texts = requests.iter().map(ToString::to_string).collect::<Vec<_>>();
        Self {
            filesystem: *filesystem,
            effects: *effects,
            network: *network,
            requests: Some(texts).filter(|texts| !texts.is_empty()),
            secrets: Some(names).filter(|names| !names.is_empty()),
            numbers: KeyNumbers::of(limits),
            calls: calls.to_names(),
        }
    }
}

impl CapabilitiesTable {
    /// Checks the values.
    ///
    /// # Errors
    /// [`ManifestError`] with the key that is out of range.
    pub(super) fn check(self) -> Result<DeclaredCapabilities, ManifestError> {
        let Self { filesystem, effects, network, requests, secrets, numbers, calls } = self;
        let mut limits = ClaimedLimits::default();
        for row in declared_rows() {
            let parse_amount = |number| row.parse_amount(Layer::Tool, number);
            let amount = numbers.get(row.limit).map(parse_amount).transpose();
            limits[row.limit] = amount.map_err(|error| format!("`capabilities.{}` {error}", row.key()))?;
        }
        Ok(DeclaredCapabilities {
            filesystem,
            effects,
            network,
            requests: requests
                .map_or_else(|| Ok(BTreeSet::new()), |texts| check_requests(&texts, network))?,
            secrets: secrets.map_or_else(|| Ok(BTreeSet::new()), |names| check_secrets(&names, network))?,
            limits,
            calls: CallTargets::parse(&calls).map_err(|error| format!("`capabilities.calls`: {error}"))?,
        })
    }
}

/// Checks the requests that a tool declares. An empty list would look as if it allowed none.
fn check_requests(texts: &[String], network: bool) -> Result<BTreeSet<DeclaredRequest>, ManifestError> {
    if texts.is_empty() || !network {
        return Err("`capabilities.requests` needs at least one request, and `network = true`".into());
    }
    if texts.len() > MAX_REQUESTS {
        let message = format!(
            "`capabilities.requests` has more than {MAX_REQUESTS} requests: join those whose paths differ in one \
             segment (`{{name}}`) or at the end (`**`)"
        );
        return Err(message.into());
    }
    let parsed = texts.iter().map(|text| DeclaredRequest::parse(text)).collect::<Result<BTreeSet<_>, _>>();
    let requests = parsed.map_err(|error| format!("`capabilities.requests`: {error}"))?;
    for request in &requests {
        RequestRule::from_declared(request).map_err(|error| format!("`capabilities.requests`: {error}"))?;
    }
    Ok(requests)
}

/// Checks the secrets that a tool declares. An empty list would look as if it allowed none.
fn check_secrets(names: &[String], network: bool) -> Result<BTreeSet<SecretName>, ManifestError> {
    if names.is_empty() || !network {
        return Err("`capabilities.secrets` needs at least one name, and `network = true`".into());
    }
    if names.len() > MAX_SECRETS {
        return Err(format!("`capabilities.secrets` has more than {MAX_SECRETS} names").into());
    }
    let parsed = names.iter().map(|name| SecretName::parse(name)).collect::<Result<BTreeSet<_>, _>>();
    Ok(parsed.map_err(|error| format!("`capabilities.secrets`: {error}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{AnswerBody, Expected};

    const COMMAND: &str = r#"
name = "greet"
version = "1.0.0"
description = "Greets."
contract = "command"
[capabilities]
filesystem = "read"
max_memory_mb = 8
[arguments]
type = "object"
required = ["who"]
[arguments.properties.who]
type = "string"
[[example]]
arguments = { who = "you" }
files = { "a/b" = "text" }
result = { words = ["hi", 1, 1.5, true] }
[[example]]
name = "nobody"
error = "nobody"
"#;

    #[test]
    fn a_manifest_is_read_and_written_back() {
        let manifest = ToolManifest::parse(COMMAND).unwrap();
        assert_eq!(manifest.capabilities.filesystem, DeclaredFilesystem::Read);
        assert_eq!(manifest.examples[0].expected, Expected::Result(json!({ "words": ["hi", 1, 1.5, true] })));
        assert_eq!(manifest.examples[1].expected, Expected::Error("nobody".to_owned()));
        assert_eq!(ToolManifest::parse(&manifest.to_toml().unwrap()).unwrap(), manifest);
    }

    #[test]
    fn the_time_of_effects_is_written_only_if_it_is_narrower_than_direct() {
        for (line, effects, is_written) in [
            ("", FileEffects::Direct, false),
            ("effects = \"direct\"", FileEffects::Direct, false),
            ("effects = \"atomic\"", FileEffects::Atomic, true),
            ("effects = \"staged\"", FileEffects::Staged, true),
        ] {
            let text = COMMAND.replace("max_memory_mb = 8", line);
            let manifest = ToolManifest::parse(&text).unwrap();
            assert_eq!(manifest.capabilities.effects, effects, "{text}");
            let written = manifest.to_toml().unwrap();
            let narrower = format!("effects = \"{}\"", effects.as_str());
            assert_eq!(written.contains(&narrower), is_written, "{written}");
            assert_eq!(written.contains("effects"), is_written, "{written}");
            assert_eq!(ToolManifest::parse(&written).unwrap(), manifest);
        }
    }

    #[test]
    fn requests_are_read_and_written_back() {
        let line = "network = true\nrequests = [\"GET https://a.example/{id}\", \"POST http://10.0.0.1:8080/**\"]\n\
             secrets = [\"a\"]";
        let manifest = ToolManifest::parse(&COMMAND.replace("max_memory_mb = 8", line)).unwrap();
        assert_eq!(manifest.capabilities.requests.len(), 2);
        assert_eq!(ToolManifest::parse(&manifest.to_toml().unwrap()).unwrap(), manifest);
        let without = ToolManifest::parse(COMMAND).unwrap().to_toml().unwrap();
        assert!(!without.contains("requests"), "{without}");
    }

    #[test]
    fn recorded_answers_are_read_and_written_back() {
        let answers = "[{ request = \"GET https://a.example/1?b=2\", json = { a = [1] } }, \
                       { request = \"PUT http://a.example/\", status = 404, headers = { x = \"y\" }, body = \"no\" }]";
        let text = COMMAND.replace("max_memory_mb = 8", "network = true");
        let text = text.replace("error = \"nobody\"", &format!("error = \"nobody\"\nanswers = {answers}"));
        let manifest = ToolManifest::parse(&text).unwrap();
        let recorded = &manifest.examples[1].answers;
        assert_eq!((recorded[0].status, &recorded[0].body), (200, &AnswerBody::Json(json!({ "a": [1] }))));
        assert_eq!((recorded[1].method.as_str(), recorded[1].status), ("PUT", 404));
        assert_eq!(ToolManifest::parse(&manifest.to_toml().unwrap()).unwrap(), manifest);
    }

    #[test]
    fn a_tool_on_a_shared_module_has_settings_and_the_schema_of_its_arguments() {
        let text = COMMAND.replace("\"command\"", "\"typed\"");
        let text = format!("{text}[settings]\nkind = \"x\"\nlist = [1, 1.5, {{ a = true }}]\n");
        let manifest = ToolManifest::parse(&text).unwrap();
        let settings = json!({ "kind": "x", "list": [1, 1.5, { "a": true }] });
        assert_eq!(manifest.settings.clone().map(Value::Object), Some(settings));
        assert_eq!(ToolManifest::parse(&manifest.to_toml().unwrap()).unwrap(), manifest);
        let described = ["another", "9", "text", "{}"].map(str::to_owned);
        let (completed, schema) = manifest.clone().complete(Some(described)).unwrap();
        assert_eq!((Some(schema), completed), (manifest.arguments.clone(), manifest));
    }

    #[test]
    fn errors_name_the_key() {
        let requests = |list: &str| {
            COMMAND.replace("max_memory_mb = 8", &format!("network = true\nrequests = [{list}]"))
        };
        let many = (0..=MAX_REQUESTS).map(|n| format!("\"GET https://a.example/{n}\",")).collect::<String>();
        let offline = requests("\"GET https://a.example/\"").replace("network = true\n", "");
        let nested = |depth: usize| format!("{COMMAND}extra = {}{}", "[".repeat(depth), "]".repeat(depth));
        let answers = |list: &str| {
            let text = COMMAND.replace("max_memory_mb = 8", "network = true");
            text.replace("error = \"nobody\"", &format!("error = \"nobody\"\nanswers = [{list}]"))
        };
        let settings =
            |line: &str| format!("{}[settings]\n{line}\n", COMMAND.replace("\"command\"", "\"typed\""));
        let dotted = format!("{COMMAND}[a{}]", ".a".repeat(MAX_DEPTH));
        let calls = "`capabilities.max_calls` must be an integer from 1 to 100000";
        let cases = [
            (nested(MAX_DEPTH + 1), "nested more than 80 levels deep"),
            (dotted, "nested more than 80 levels deep"),
            (COMMAND.replace("max_memory_mb = 8", "max_memory_mb = 0"), "capabilities.max_memory_mb"),
            (COMMAND.replace("max_memory_mb = 8", "max_calls = 0"), calls),
            (COMMAND.replace("max_memory_mb = 8", "max_calls = 100001"), calls),
            (COMMAND.replace("max_memory_mb", "max_memry_mb"), "max_memry_mb"),
            (COMMAND.replace("max_memory_mb = 8", "effects = \"later\""), "`direct`, `atomic`, `staged`"),
            (requests(""), "`capabilities.requests` needs at least one request"),
            (requests("").replace("requests", "secrets"), "`capabilities.secrets` needs at least one name"),
            (requests("\"A\"").replace("requests", "secrets"), "`A` is not the name of a secret"),
            (offline, "`network = true`"),
            (requests(&many), "more than 64 requests"),
            (requests("\"GET https://a.example\""), "`GET https://a.example` is no request such as"),
            (requests("\"GET https://127.1/x\""), "`127.1` is neither a host name"),
            (COMMAND.replace("\"greet\"", "\"effects.undo\""), "no tool may have the name"),
            (COMMAND.replace("\"greet\"", "\"../greet\""), "`name`"),
            (COMMAND.replace("\"command\"", "\"typed\""), "[arguments]"),
            (COMMAND.replace("[arguments]", "[nothing]"), "nothing"),
            (format!("{COMMAND}[settings]\n"), "`[settings]` is for typed tools"),
            (settings("a = 1").replace("[arguments", "[result"), "needs `[arguments]`"),
            (settings("a = 1979-05-27"), "`[settings]`: JSON has no dates"),
            (
                settings(&format!("a = \"{}\"", "x".repeat(MAX_SETTINGS_BYTES))),
                "`[settings]` has 65544 bytes",
            ),
            (COMMAND.replace("version = \"1.0.0\"", "module = \"../x.wasm\"\nversion = \"1\""), "`module`"),
            (COMMAND.replace("error = \"nobody\"", ""), "number 2 (`nobody`): it needs `result`"),
            (COMMAND.replace("error = \"nobody\"", "error = 1"), "line 20"),
            (COMMAND.replace("error = \"nobody\"", "erorr = \"nobody\""), "erorr"),
            (COMMAND.replace("error = \"nobody\"", "error = \"x\"\nresult = 1"), "both"),
            (COMMAND.replace("error = \"nobody\"", "result = 1979-05-27"), "dates"),
            (COMMAND.replace("error = \"nobody\"", "result = nan"), "`nan`"),
            (answers("{ request = \"GET https://a.example/\" }").replace("network = true", ""), "`answers`"),
            (
                answers("{ request = \"GET a.example\" }"),
                "number 1 of its `answers`: `GET a.example` is no request",
            ),
            (answers("{ request = \"GET https://a.example/\", status = 101 }"), "the status 101"),
            (answers("{ request = \"GET https://a.example/\", body = \"\", json = 1 }"), "`body` and `json`"),
            (COMMAND.replace("\"a/b\"", "\"../b\""), "`../b`"),
            (COMMAND.replace("\"a/b\"", "\"/b\""), "`/b`"),
            (COMMAND.replace("filesystem = \"read\"", "filesystem = \"none\""), "`files`"),
            (format!("{COMMAND}{}", "[[example]]\nerror = \"x\"\n".repeat(99)), "at most 100"),
        ];
        for (text, key) in cases {
            let error = ToolManifest::parse(&text).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
