//! The enums and constants of this protocol, version 1.0.0.

use a2g_types::call::Priority;
use a2g_types::ident::IntentId;
use strum::{IntoStaticStr, VariantArray};

/// The only supported version.
pub const VERSION: &str = "1.0.0";
/// The only algorithm for sealed payloads.
pub const ALGORITHM: &str = "AES-256-GCM";
/// Maximum `ttl`, in milliseconds. Every id is remembered at least this long, regardless of the message's `ttl`,
/// because the header signature does not cover `ttl`.
pub const MAX_TTL_MS: u64 = 60 * 60 * 1000;

/// The type of a message (`type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum MessageType {
    /// A request to do something.
    Command,
    /// A request for information.
    Query,
    /// A notification.
    Event,
    /// The result of a command or a query.
    Response,
    /// An acknowledgement.
    Ack,
    /// A report that a message was rejected.
    Error,
}

impl MessageType {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The values of `from.type`. They are validated and have no effect.
pub(super) const AGENT_TYPES: [(&str, ()); 7] = [
    ("nexus", ()),
    ("igon7", ()),
    ("clisis", ()),
    ("mobile", ()),
    ("desktop", ()),
    ("extension", ()),
    ("mcp", ()),
];

/// The values of `priority`.
pub(super) const PRIORITIES: [(&str, Priority); 4] = [
    ("low", Priority::Low),
    ("normal", Priority::Normal),
    ("high", Priority::High),
    ("critical", Priority::Critical),
];

/// The delivery guarantee of an event (`deliveryGuarantee`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum DeliveryGuarantee {
    /// Sent once.
    #[default]
    AtMostOnce,
    /// Sent again until acknowledged, a limited number of times.
    AtLeastOnce,
    /// Stored and sent again until acknowledged, always with the same `id`, by which the receiver recognizes
    /// repeats.
    ExactlyOnce,
}

impl DeliveryGuarantee {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The events of a run (`eventName`; the `eventType` is always `execution`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum EventName {
    /// The guest started.
    Started,
    /// The tool reported progress.
    Progress,
    /// The tool logged a line.
    Log,
    /// The tool produced an artifact.
    Artifact,
    /// The run has ended.
    Finished,
}

impl EventName {
    /// All event names.
    pub const ALL: [Self; 5] = [Self::Started, Self::Progress, Self::Log, Self::Artifact, Self::Finished];

    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The `eventType` of the executor's events.
pub const EVENT_TYPE: &str = "execution";

/// The result of a command or a query (`status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum ResponseStatus {
    /// The request succeeded.
    Success,
    /// The request failed; `error` has the reason.
    Failure,
    /// The call waits for a person, its file changes do, or the output was truncated at a limit.
    Partial,
}

impl ResponseStatus {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The subject of a query (`resourceId`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryResource {
    /// The executor (`executor`).
    Executor,
    /// One intent.
    Intent(IntentId),
}

/// The action of a query (`action`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryAction {
    /// `get_status`: the state of the subject.
    Status,
    /// `get_metrics`: measurements.
    Metrics,
    /// `get_state`: everything that is available.
    State,
}

impl QueryAction {
    pub(super) const NAMES: [(&'static str, Self); 3] =
        [("get_status", Self::Status), ("get_metrics", Self::Metrics), ("get_state", Self::State)];
}

/// The members that a signature covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignatureScope {
    /// `{id, type, from, to, timestamp}`. The payload of a command must then be sealed.
    #[default]
    Header,
    /// `{id, type, from, to, action, payload, timestamp}`, without members that the message lacks.
    Full,
}
