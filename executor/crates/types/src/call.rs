//! A request to run one tool, independent of the door that it came through.

use crate::ident::{AgentDid, IntentId, ToolName};
use crate::memory::Charge;
use crate::quantity::Timeout;
use crate::session::CallSession;
use crate::tool::CallTargets;
use serde_json::{Map, Value};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// The protocol through which a call arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub enum Door {
    /// A2G, the primary door.
    A2g,
    /// A2A 0.3.0 and A2A-ACP.
    A2a,
    /// A2E 1.0.
    A2e,
    /// The Model Context Protocol.
    Mcp,
    /// Genesis Nexus.
    Nexus,
    /// sovereign JSON-RPC 3.0.
    Sovereign,
    /// The form of the console.
    Console,
    /// The command line (`a2g-executor run`).
    Cli,
}

impl Door {
    /// Every door.
    pub const ALL: &[Self] = Self::VARIANTS;
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A2g => "a2g",
            Self::A2a => "a2a",
            Self::A2e => "a2e",
            Self::Mcp => "mcp",
            Self::Nexus => "nexus",
            Self::Sovereign => "sovereign",
            Self::Console => "console",
            Self::Cli => "cli",
        })
    }
}

/// The order in which waiting calls get a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Priority {
    /// After all others.
    Low,
    /// The default, and that of doors without priorities.
    #[default]
    Normal,
    /// Before normal calls.
    High,
    /// Before all others.
    Critical,
}

impl Priority {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The number in messages between nodes: 0 for the lowest priority.
    #[must_use]
    pub fn level(self) -> u8 {
        self as u8
    }

    /// The priority with a [`Self::level`]; `None` if there is none.
    #[must_use]
    pub fn from_level(level: u8) -> Option<Self> {
        Self::VARIANTS.get(usize::from(level)).copied()
    }
}

/// An agent's request to run a tool. A call carries no authority: only a verdict does.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The door through which the call arrived.
    pub door: Door,
    /// The agent that requests the run.
    pub agent: AgentDid,
    /// The single-use identity of the intent.
    pub intent: IntentId,
    /// `true` if the executor itself generated `intent`. Such an intent is not looked up, because it cannot have run
    /// before.
    pub is_new: bool,
    /// The tool to run.
    pub tool: ToolName,
    /// The arguments as a JSON object, not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// The agent's own statement about its intent, which is passed on to the governor and never interpreted here.
    pub context: Option<Map<String, Value>>,
    /// The caller's own limit on the duration of the run. It can only shorten the granted time.
    pub caller_timeout: Option<Timeout>,
    /// The priority among the calls that wait for a slot.
    pub priority: Priority,
    /// The memory of the arguments, counted against the caller's share.
    pub charge: Charge,
    /// The run that makes this call; `None` for a call from outside.
    pub parent: Option<ParentRun>,
    /// The tools that the caller's token reaches: the only ones for this call, and for the calls of its run at every
    /// depth. `None` if they are not known: the call reaches its own tool, and no other.
    pub caller_tools: Option<CallTargets>,
    /// The session in which the tool runs; `None` for a store of its own.
    pub session: Option<CallSession>,
}

impl Call {
    /// `true` if only the node at which the call has arrived can run it: there is the run that makes it, or
    /// its session.
    #[must_use]
    pub fn is_bound_to_node(&self) -> bool {
        self.parent.is_some() || self.session.is_some()
    }

    /// Returns `true` if the call's caller reaches its tool.
    #[must_use]
    pub fn is_within_caller_tools(&self) -> bool {
        self.caller_tools.as_ref().is_none_or(|tools| tools.includes(&self.tool))
    }

    /// The tools that the calls of the call's run may name.
    #[must_use]
    pub fn nested_caller_tools(&self) -> CallTargets {
        self.caller_tools.clone().unwrap_or_default()
    }
}

/// Maximum length of the text that [`main_argument`] returns, in characters.
const MAX_MAIN_ARGUMENT_CHARS: usize = 120;
/// Maximum number of characters of an argument among which its first line is looked for.
const MAX_READ_CHARS: usize = 500;
/// The names of arguments that say what a call is about.
const MAIN_NAMES: [&str; 8] = ["path", "url", "code", "program", "command", "query", "file", "pattern"];

/// The argument by which people recognise a call in a list: the first line of its path, URL or program, or else of its first
/// text. Of a program, it is the first line that is neither an import nor a comment, if there is one near the beginning. It
/// is shortened to 120 characters, and not escaped. `None` without arguments.
#[must_use]
pub fn main_argument(arguments: &Map<String, Value>) -> Option<String> {
    let named = MAIN_NAMES.iter().find_map(|name| Some((*name, arguments.get(*name)?.as_str()?)));
    let first_text = || arguments.values().find_map(Value::as_str);
    let Some(text) = named.map(|(_, text)| text).or_else(first_text) else {
        return arguments.iter().next().map(|(name, value)| match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => format!("{name}: {value}"),
            Value::String(_) | Value::Array(_) | Value::Object(_) => {
                name.chars().take(MAX_MAIN_ARGUMENT_CHARS).collect()
            }
        });
    };
    let beginning = text.chars().take(MAX_READ_CHARS).collect::<String>();
    let lines = || beginning.lines().filter(|line| !line.trim().is_empty());
    let is_program = named.is_some_and(|(name, _)| name == "code");
    let telling = lines().find(|line| !is_program || !is_boilerplate(line));
    let first = telling.or_else(|| lines().next()).unwrap_or_default();
    let mut shown = first.chars().take(MAX_MAIN_ARGUMENT_CHARS).collect::<String>();
    if shown.len() < text.trim_end().len() {
        shown.push('…');
    }
    Some(shown)
}

/// `true` for a line that says little about a program in Python or JavaScript: an import or a comment, beside which nothing
/// else can run.
fn is_boilerplate(line: &str) -> bool {
    let line = line.trim();
    // Only a semicolon at the end, as in JavaScript, separates no other statement.
    if line.strip_suffix(';').unwrap_or(line).contains([';', '(']) {
        return false;
    }
    let is_comment = ["#", "//", "/*", "*"].iter().any(|mark| line.starts_with(*mark));
    is_comment || line.starts_with("import ") || (line.starts_with("from ") && line.contains(" import "))
}

/// The run that makes a nested call, and the call's place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentRun {
    /// The intent of the run.
    pub intent: IntentId,
    /// The tool of the run.
    pub tool: ToolName,
    /// The number of the call among those of its run, from 1.
    pub ordinal: u32,
    /// The number of runs above the call: 1 if its run was called from outside.
    pub depth: u32,
}

/// The arguments of an earlier call, as the journal has them.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredArguments {
    /// The arguments.
    Kept {
        /// The arguments, without the members that are never stored.
        arguments: Map<String, Value>,
        /// The JSON Pointers of those members.
        left_out: Vec<String>,
    },
    /// The arguments are longer than this number of bytes, as JSON, and are not stored.
    TooLarge {
        /// The limit at the time of the call.
        max_bytes: u64,
    },
}

/// The value of `context.signature`, as set by an agent's SDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSignature {
    /// The time of the signature, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The nonce that makes the signature single-use: 8 to 128 letters, digits and `-`.
    pub nonce: String,
    /// HMAC-SHA256 in 64 lower-case hexadecimal digits, as sent.
    pub hash: String,
    /// The possible signed texts, one of which has to match the hash. If `context` contains only the signature, it may
    /// have been empty or absent when the intent was signed: the SDKs differ, and both mean the same.
    pub texts: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_levels_are_those_that_other_versions_send() {
        for (level, priority) in
            [(0, Priority::Low), (1, Priority::Normal), (2, Priority::High), (3, Priority::Critical)]
        {
            assert_eq!((priority.level(), Priority::from_level(level)), (level, Some(priority)));
        }
        assert_eq!(Priority::from_level(4), None);
    }

    #[test]
    fn a_call_is_recognised_by_its_path_or_its_first_text() {
        let long = "x".repeat(200);
        for (arguments, expected) in [
            (json!({}), None),
            (json!({ "content": "y", "path": "/workspace/a b" }), Some("/workspace/a b".to_owned())),
            (json!({ "path": 1, "code": "\n\nimport os\nprint(1)" }), Some("print(1)…".to_owned())),
            (
                json!({ "code": "# Adds.\nfrom os import sep\n\n  from_file(1)\nx = 2" }),
                Some("  from_file(1)…".to_owned()),
            ),
            (
                json!({ "code": "/* Adds.\n * More. */\nimport fs from 'fs';\nadd()" }),
                Some("add()…".to_owned()),
            ),
            (
                json!({ "code": "import os; write_file('a')\nprint('hello')" }),
                Some("import os; write_file('a')…".to_owned()),
            ),
            (json!({ "code": "/**/ write_file('a')\nprint(1)" }), Some("/**/ write_file('a')…".to_owned())),
            (json!({ "code": "import os\n# nothing else\n" }), Some("import os…".to_owned())),
            (json!({ "code": format!("import a\n#{long}{long}{long}\nx()") }), Some("import a…".to_owned())),
            (json!({ "text": "# Title\nText" }), Some("# Title…".to_owned())),
            (json!({ "deep": true, "text": "one line\n" }), Some("one line".to_owned())),
            (json!({ "count": 3 }), Some("count: 3".to_owned())),
            (json!({ "list": ["x"] }), Some("list".to_owned())),
            (json!({ "path": long }), Some("x".repeat(120) + "…")),
            (json!({ "path": "\n".repeat(1_000) }), Some(String::new())),
        ] {
            assert_eq!(main_argument(arguments.as_object().unwrap()), expected, "{arguments}");
        }
    }
}
