//! `_meta` of a request.

use super::names;
use crate::field::{Field, Object};
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::LogLevel;
use serde_json::value::RawValue;
use strum::{IntoStaticStr, VariantArray};

/// The maximum length of a progress token as JSON text.
const MAX_TOKEN_BYTES: usize = 128;

/// The members of `_meta` that this server reads.
#[derive(Debug, Clone, Default)]
pub struct RequestMeta {
    /// The revision that the request names.
    pub version: Option<String>,
    /// The capabilities of the client; `None` if the request has none.
    pub capabilities: Option<ClientCapabilities>,
    /// The lowest level of log messages that the client wants.
    pub log_level: Option<MessageLevel>,
    /// The token under which the client wants progress notifications.
    pub progress_token: Option<ProgressToken>,
    /// The client's own id of the intent.
    pub intent: Option<IntentId>,
    /// The W3C trace context of the caller, if it is valid.
    pub traceparent: Option<String>,
}

/// The capabilities of a client that this server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCapabilities {
    /// The client shows forms to a person.
    pub elicits_forms: bool,
    /// The client opens URLs for a person.
    pub elicits_urls: bool,
    /// The client polls tasks (extension `io.modelcontextprotocol/tasks`).
    pub has_tasks: bool,
    /// The client has a session of 2025-11-25, in which a stream may begin with an event without data. Clients of earlier
    /// revisions take that for a message.
    pub reads_empty_events: bool,
}

/// A token for progress notifications, exactly as the client wrote it: a string or an integer.
#[derive(Debug, Clone)]
pub struct ProgressToken(Box<RawValue>);

impl ProgressToken {
    pub(super) fn as_raw(&self) -> &RawValue {
        &self.0
    }
}

/// The severity of a log message, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum MessageLevel {
    /// `debug`.
    Debug,
    /// `info`.
    Info,
    /// `notice`.
    Notice,
    /// `warning`.
    Warning,
    /// `error`.
    Error,
    /// `critical`.
    Critical,
    /// `alert`.
    Alert,
    /// `emergency`.
    Emergency,
}

impl MessageLevel {
    /// Returns `true` for a tool's line that a client with this lowest level wants.
    #[must_use]
    pub fn includes(self, line: LogLevel) -> bool {
        Self::of_line(line) >= self
    }

    /// The severity of a tool's line.
    pub(super) fn of_line(line: LogLevel) -> Self {
        match line {
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Warn => Self::Warning,
            LogLevel::Error => Self::Error,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Decodes `_meta`. Unknown members are for other servers or later revisions.
pub(super) fn decode_meta(field: Field<'_>) -> Result<RequestMeta, Fault> {
    let mut meta = field.object()?;
    meta.read_optional_with(names::CLIENT_INFO, decode_implementation)?;
    let traceparent = meta.read_optional::<String>("traceparent")?;
    Ok(RequestMeta {
        version: meta.read_optional(names::PROTOCOL_VERSION)?,
        capabilities: meta.read_optional_with(names::CLIENT_CAPABILITIES, decode_capabilities)?,
        log_level: meta.read_optional_with(names::LOG_LEVEL, |level| level.enum_variant())?,
        progress_token: meta.read_optional_with("progressToken", decode_token)?,
        intent: meta.read_optional(names::INTENT_ID)?,
        // The W3C's recommendation has a context that is not valid ignored.
        traceparent: traceparent.filter(|context| is_traceparent(context)),
    })
}

/// Checks the type of `clientInfo`.
pub(super) fn decode_implementation(field: Field<'_>) -> Result<(), Fault> {
    let mut info = field.object()?;
    info.read::<String>("name")?;
    info.read::<String>("version").map(drop)
}

pub(super) fn decode_capabilities(field: Field<'_>) -> Result<ClientCapabilities, Fault> {
    let mut capabilities = field.object()?;
    let mut decoded = ClientCapabilities::default();
    if let Some(mut elicitation) = capabilities.read_nullable::<Object<'_>>("elicitation")? {
        decoded.elicits_urls = has_object(&mut elicitation, "url")?;
        // A client of an earlier revision declares forms by an empty object.
        decoded.elicits_forms = has_object(&mut elicitation, "form")? || !decoded.elicits_urls;
    }
    let mut extensions = capabilities.read_nullable::<Object<'_>>("extensions")?.unwrap_or_default();
    decoded.has_tasks = has_object(&mut extensions, names::TASKS)?;
    Ok(decoded)
}

fn has_object(object: &mut Object<'_>, name: &'static str) -> Result<bool, Fault> {
    Ok(object.read_nullable::<Object<'_>>(name)?.is_some())
}

/// Returns `true` for a trace context of version 00: trace and span in hexadecimal, and flags.
fn is_traceparent(text: &str) -> bool {
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits
            && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let is_id = |part: &str, digits: usize| is_hex(part, digits) && part.bytes().any(|byte| byte != b'0');
    match *text.split('-').collect::<Vec<_>>() {
        ["00", trace, span, flags] => is_id(trace, 32) && is_id(span, 16) && is_hex(flags, 2),
        _ => false,
    }
}

fn decode_token(field: Field<'_>) -> Result<ProgressToken, Fault> {
    let text = field.as_raw().get();
    let is_integer = || text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    if text.len() > MAX_TOKEN_BYTES || !(text.starts_with('"') || is_integer()) {
        let expected = format!("a string or an integer of at most {MAX_TOKEN_BYTES} bytes");
        return Err(field.expected_error(&expected));
    }
    Ok(ProgressToken(field.as_raw().to_owned()))
}
