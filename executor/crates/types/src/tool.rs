//! The description of a tool, known before the tool runs.

use crate::ident::{IdentError, SecretName, SignerName, ToolName};
use crate::limit::{ClaimedLimits, FileEffects};
use crate::request::DeclaredRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use strum::{IntoStaticStr, VariantArray};
use time::OffsetDateTime;

/// The interface between the executor and a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Contract {
    /// Arguments as JSON on standard input, result as JSON on standard output, logs on standard error, an exit code.
    /// Any language can use it.
    Command,
    /// The WIT world `a2g:tool/tool`.
    Typed,
}

impl Contract {
    /// The name used in `tool.toml` and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The SHA-256 of a module, or of a call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Computes the digest of `bytes`.
    #[must_use]
    pub fn compute(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Parses 64 hexadecimal digits in lower case, as [`fmt::Display`] writes them.
    ///
    /// # Errors
    /// A message for any other text. It does not repeat the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _other => None,
        };
        let byte = |pair: &[u8]| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        };
        let bytes = text.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>();
        let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        bytes.map(Self).ok_or("has to be a SHA-256 in 64 hexadecimal digits, in lower case")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The description that a tool exports, and the declarations of its `tool.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Descriptor {
    /// Its name.
    pub name: ToolName,
    /// Its name for people.
    pub title: Option<String>,
    /// Its semantic version.
    pub version: String,
    /// Its description, for people and agents.
    pub description: String,
    /// Its contract.
    pub contract: Contract,
    /// The SHA-256 of its module; of a tool with settings, that of the module's digest and the settings, because tools on
    /// one module then differ in what they do.
    pub digest: Digest,
    /// The JSON Schema of its arguments.
    pub arguments_schema: Value,
    /// What its module gets beside the arguments of each call, from `tool.toml`.
    pub settings: Option<Map<String, Value>>,
    /// The JSON Schema of its result, if its author declared one. A result that breaks it is a failure of the tool.
    pub result_schema: Option<Value>,
    /// `true` if its author declares that a repeat with the same arguments changes nothing more.
    pub is_idempotent: bool,
    /// `true` if a call may ask for a session, which keeps the tool's store for further calls.
    pub has_sessions: bool,
    /// The capabilities that the tool declares.
    pub capabilities: DeclaredCapabilities,
    /// The signature with which the tool was loaded; `None` if the operator requires none.
    pub signature: Option<ToolSignature>,
}

impl Descriptor {
    /// The argument by which callers of protocols without a member of their own ask for a session.
    pub const SESSION_ARGUMENT: &str = "session";
    /// Maximum length of [`Self::remote_server`], in characters.
    const MAX_SERVER_CHARS: usize = 300;

    /// `true` if a call may ask for a session by [`Self::SESSION_ARGUMENT`]: the tool has sessions, and its
    /// schema names no argument like that.
    #[must_use]
    pub fn takes_session_argument(&self) -> bool {
        let names_it = |properties: &Value| properties.get(Self::SESSION_ARGUMENT).is_some();
        self.has_sessions && !self.arguments_schema.get("properties").is_some_and(names_it)
    }

    /// Scheme and host of the MCP server that carries out the tool's calls, as its settings say; `None` for every other
    /// tool.
    #[must_use]
    pub fn remote_server(&self) -> Option<String> {
        let settings = self.settings.as_ref()?;
        if settings.get("kind")?.as_str()? != "mcp" {
            return None;
        }
        let (scheme, rest) = settings.get("url")?.as_str()?.split_once("://")?;
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        Some(format!("{scheme}://{host}").chars().take(Self::MAX_SERVER_CHARS).collect())
    }

    /// The JSON text that the tool's module gets of a call: the arguments, or of a tool with settings, an object of
    /// `settings` and `arguments`.
    #[must_use]
    pub fn input_text(&self, arguments: &Map<String, Value>) -> String {
        #[derive(Serialize)]
        struct Input<'a> {
            settings: &'a Map<String, Value>,
            arguments: &'a Map<String, Value>,
        }
        // Maps with text keys: serializing them cannot fail.
        match &self.settings {
            None => serde_json::to_string(arguments).unwrap_or_default(),
            Some(settings) => serde_json::to_string(&Input { settings, arguments }).unwrap_or_default(),
        }
    }
}

/// Keywords of a schema that restrict no value.
const ANNOTATIONS: [&str; 9] = [
    "$schema",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];
/// Further keywords of an object's schema that restrict no member which `properties` does not name.
const NAMED_MEMBERS: [&str; 4] = ["type", "properties", "required", "minProperties"];

/// `true` if the schema is that of an object, and accepts further members beside the ones that it names. `false` also
/// for a schema with keywords whose meaning this function does not follow.
#[must_use]
pub fn accepts_more_members(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object") && has_only(schema, &NAMED_MEMBERS)
}

/// The members of an object that its schema names and does not restrict. None for a schema with keywords whose meaning
/// this function does not follow.
#[must_use]
pub fn unrestricted_members(schema: &Value) -> BTreeSet<String> {
    let mut keywords = NAMED_MEMBERS.to_vec();
    // It is for members without a name.
    keywords.push("additionalProperties");
    let is_simple = has_only(schema, &keywords);
    let named = schema.get("properties").and_then(Value::as_object).filter(|_| is_simple);
    let accepts_all = |schema: &Value| *schema == Value::Bool(true) || has_only(schema, &[]);
    let members = named.into_iter().flatten().filter(|(_, schema)| accepts_all(schema));
    members.map(|(name, _)| name.clone()).collect()
}

/// `true` if a schema is an object with annotations, these keywords, and no others.
fn has_only(schema: &Value, keywords: &[&str]) -> bool {
    let is_known = |keyword: &str| ANNOTATIONS.contains(&keyword) || keywords.contains(&keyword);
    schema.as_object().is_some_and(|schema| schema.keys().all(|keyword| is_known(keyword)))
}

/// A verified signature of a tool's package. It describes the check, and is not evidence of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSignature {
    /// The operator's name for the signer.
    pub signer: SignerName,
    /// The digest of the signed package.
    pub package: Digest,
    /// The time at which the signature expires, if its signer set one.
    pub expires_at: Option<OffsetDateTime>,
}

/// The `[capabilities]` of a `tool.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeclaredCapabilities {
    /// The declared use of files.
    pub filesystem: DeclaredFilesystem,
    /// The time at which the file changes of the tool take effect; direct leaves it to the other layers.
    pub effects: FileEffects,
    /// `true` if the tool uses the network.
    pub network: bool,
    /// The only requests that it sends; empty if it sends others than it can name.
    pub requests: BTreeSet<DeclaredRequest>,
    /// The secrets without which it does not run, and the only ones that its requests get; empty if it leaves
    /// them to the other layers.
    pub secrets: BTreeSet<SecretName>,
    /// The most that the tool needs.
    pub limits: ClaimedLimits,
    /// The other tools that it calls.
    pub calls: CallTargets,
}

/// The tools that a run may call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallTargets {
    /// Every tool, written `"*"`.
    All,
    /// These tools.
    Named(BTreeSet<ToolName>),
}

impl CallTargets {
    /// No tool.
    #[must_use]
    pub fn none() -> Self {
        Self::Named(BTreeSet::new())
    }

    /// Parses a list of names of tools, of which one may be `*`.
    ///
    /// # Errors
    /// If a name is not a valid tool name.
    pub fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, IdentError> {
        let mut named = BTreeSet::new();
        for name in names.iter().map(AsRef::as_ref) {
            if name == "*" {
                return Ok(Self::All);
            }
            named.insert(ToolName::parse(name)?);
        }
        Ok(Self::Named(named))
    }

    /// The names as [`Self::parse`] reads them.
    #[must_use]
    pub fn to_names(&self) -> Vec<String> {
        match self {
            Self::All => vec!["*".to_owned()],
            Self::Named(named) => named.iter().map(ToString::to_string).collect(),
        }
    }

    /// The tools of either side.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        match (self, other) {
            (Self::Named(mut named), Self::Named(others)) => {
                named.extend(others);
                Self::Named(named)
            }
            (Self::All, _) | (_, Self::All) => Self::All,
        }
    }

    /// The tools that both sides allow.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        match (self, other) {
            (Self::Named(mut named), Self::Named(others)) => {
                named.retain(|name| others.contains(name));
                Self::Named(named)
            }
            (Self::All, other) => other,
            (named, Self::All) => named,
        }
    }

    /// `true` if `other` has each of these tools.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::All) => true,
            (Self::All, Self::Named(_)) => false,
            (Self::Named(named), Self::Named(others)) => named.is_subset(others),
        }
    }

    /// `true` if `tool` is one of them.
    #[must_use]
    pub fn includes(&self, tool: &ToolName) -> bool {
        match self {
            Self::All => true,
            Self::Named(named) => named.contains(tool),
        }
    }

    /// `true` if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Named(named) if named.is_empty())
    }
}

impl Default for CallTargets {
    fn default() -> Self {
        Self::none()
    }
}

/// The declared use of files by a tool, in the order of width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum DeclaredFilesystem {
    /// The tool uses no files.
    #[default]
    None,
    /// The tool reads files and lists folders.
    Read,
    /// The tool also creates, changes and removes files and folders.
    ReadWrite,
}

impl DeclaredFilesystem {
    /// The name used in `tool.toml` and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_formatted_digest_parses_to_itself() {
        let digest = Digest::compute(b"x");
        assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
        let text = digest.to_string();
        for bad in
            ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &"g".repeat(64), &"ü".repeat(32)]
        {
            assert!(Digest::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_members_that_no_keyword_restricts_are_unrestricted() {
        let open = json!({
            "type": "object",
            "required": ["result", "stdout"],
            "properties": {
                "result": { "description": "Any value." },
                "any": true,
                "stdout": { "type": "string" },
                "none": false,
            },
        });
        assert!(accepts_more_members(&open));
        let unrestricted = unrestricted_members(&open);
        assert_eq!(unrestricted.iter().map(String::as_str).collect::<Vec<_>>(), ["any", "result"]);
        for (keyword, more, is_unrestricted) in [
            ("additionalProperties", json!(false), true),
            ("patternProperties", json!({ "^r": { "type": "string" } }), false),
            ("allOf", json!([{ "properties": { "result": { "type": "string" } } }]), false),
            ("maxProperties", json!(2), false),
        ] {
            let mut schema = open.clone();
            schema[keyword] = more;
            assert!(!accepts_more_members(&schema), "{keyword}");
            assert_eq!(!unrestricted_members(&schema).is_empty(), is_unrestricted, "{keyword}");
        }
        for schema in
            [json!(true), json!({}), json!({ "type": ["object", "null"] }), json!({ "$ref": "#/a" })]
        {
            assert!(!accepts_more_members(&schema), "{schema}");
            assert!(unrestricted_members(&schema).is_empty(), "{schema}");
        }
    }
}
