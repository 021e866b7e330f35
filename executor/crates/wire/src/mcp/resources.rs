//! Resources: the receipts and the artifacts of a caller's own runs.

use a2g_types::ident::IntentId;
use serde_json::{Value, json};

const RECEIPTS: &str = "a2g://receipts/";
const ARTIFACTS: &str = "a2g://artifacts/";
/// The variable of an intent in the templates.
pub const INTENT_VARIABLE: &str = "intent_id";
/// The variable of an artifact's name in the templates.
pub const NAME_VARIABLE: &str = "name";
/// The media type of receipts, which are reports of A2G.
pub const RECEIPT_TYPE: &str = "application/json";
/// The maximum length of a URI, in bytes.
const MAX_URI_BYTES: usize = 4 << 10;

/// The URI of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceUri {
    /// The receipt of a run.
    Receipt(IntentId),
    /// An artifact of a run.
    Artifact(IntentId, String),
}

impl ResourceUri {
    /// Parses a URI; `None` if no resource has it.
    #[must_use]
    pub fn parse(uri: &str) -> Option<Self> {
        if uri.len() > MAX_URI_BYTES {
            return None;
        }
        if let Some(intent) = uri.strip_prefix(RECEIPTS) {
            return IntentId::parse(intent).ok().map(Self::Receipt);
        }
        let (intent, name) = uri.strip_prefix(ARTIFACTS)?.split_once('/')?;
        Some(Self::Artifact(IntentId::parse(intent).ok()?, unescape(name)?))
    }

    /// The intent of the run.
    #[must_use]
    pub fn intent(&self) -> IntentId {
        match self {
            Self::Receipt(intent) | Self::Artifact(intent, _) => *intent,
        }
    }
}

/// Decodes percent-encoding; `None` if the text is not the encoding of a name.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok().filter(|digits| !digits.starts_with('+'))?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
            }
            b'/' | b'?' | b'#' => return None,
            _other => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The URI of the receipt of a run.
pub(super) fn receipt_uri(intent: IntentId) -> String {
    format!("{RECEIPTS}{intent}")
}

/// The URI of an artifact of a run.
pub(super) fn artifact_uri(intent: IntentId, name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let name = name.bytes().fold(String::new(), |mut escaped, byte| {
        match is_plain(byte) {
            true => escaped.push(char::from(byte)),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
        escaped
    });
    format!("{ARTIFACTS}{intent}/{name}")
}

/// The templates of all resources.
pub(super) fn templates() -> Value {
    json!([
        {
            "uriTemplate": format!("{RECEIPTS}{{{INTENT_VARIABLE}}}"),
            "name": "receipt",
            "title": "Receipt of a call",
            "description": "The A2G report of a call: its result or failure, what it used, and the limits it ran under.",
            "mimeType": RECEIPT_TYPE,
        },
        {
            "uriTemplate": format!("{ARTIFACTS}{{{INTENT_VARIABLE}}}/{{{NAME_VARIABLE}}}"),
            "name": "artifact",
            "title": "Artifact of a call",
            "description": "A file that a tool made.",
        },
    ])
}

/// Returns `true` for the template of receipts or of artifacts.
pub(super) fn has_template(uri: &str) -> bool {
    let variables = format!("{{{INTENT_VARIABLE}}}");
    uri == format!("{RECEIPTS}{variables}") || uri == format!("{ARTIFACTS}{variables}/{{{NAME_VARIABLE}}}")
}
