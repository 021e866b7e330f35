//! The words of this protocol, version 1.0.0.

use crate::call::Priority;
use crate::ident::IntentId;

/// The only version.
pub const VERSION: &str = "1.0.0";
/// The only algorithm of a sealed payload.
pub const ALGORITHM: &str = "AES-256-GCM";
/// The longest `ttl`, in milliseconds: for so long at least an `id` is remembered.
pub const MAX_TTL_MS: u64 = 60 * 60 * 1000;

/// What a message is (`type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Does something.
    Command,
    /// Asks for something.
    Query,
    /// Tells something.
    Event,
    /// What became of a command or a query.
    Response,
    /// That a message arrived.
    Ack,
    /// That a message is not one to act on.
    Error,
}

impl Kind {
    /// All six, by their words.
    pub(super) const WORDS: [(&'static str, Self); 6] = [
        ("command", Self::Command),
        ("query", Self::Query),
        ("event", Self::Event),
        ("response", Self::Response),
        ("ack", Self::Ack),
        ("error", Self::Error),
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Query => "query",
            Self::Event => "event",
            Self::Response => "response",
            Self::Ack => "ack",
            Self::Error => "error",
        }
    }
}

/// What an agent is (`from.type`). Nothing here depends on it.
pub(super) const AGENT_TYPES: [(&str, ()); 7] = [
    ("nexus", ()),
    ("igon7", ()),
    ("clisis", ()),
    ("mobile", ()),
    ("desktop", ()),
    ("extension", ()),
    ("mcp", ()),
];

/// The words of `priority`.
pub(super) const PRIORITIES: [(&str, Priority); 4] = [
    ("low", Priority::Low),
    ("normal", Priority::Normal),
    ("high", Priority::High),
    ("critical", Priority::Critical),
];

/// How much is done that an event arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Guarantee {
    /// It is sent once, and forgotten.
    #[default]
    AtMostOnce,
    /// It is sent again until it is acknowledged, a few times.
    AtLeastOnce,
    /// It is kept until it is acknowledged, and always has the same `id`, by which it is told from others.
    ExactlyOnce,
}

impl Guarantee {
    pub(super) const WORDS: [(&'static str, Self); 3] = [
        ("at-most-once", Self::AtMostOnce),
        ("at-least-once", Self::AtLeastOnce),
        ("exactly-once", Self::ExactlyOnce),
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AtMostOnce => "at-most-once",
            Self::AtLeastOnce => "at-least-once",
            Self::ExactlyOnce => "exactly-once",
        }
    }
}

/// What is told of a run (`eventName`; the `eventType` is always `execution`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventName {
    /// Its guest runs.
    Started,
    /// The tool said how far it is.
    Progress,
    /// A line of its log.
    Log,
    /// Something that it made.
    Artifact,
    /// It is over.
    Finished,
}

impl EventName {
    /// All five.
    pub const ALL: [Self; 5] = [Self::Started, Self::Progress, Self::Log, Self::Artifact, Self::Finished];

    pub(super) const WORDS: [(&'static str, Self); 5] = [
        ("started", Self::Started),
        ("progress", Self::Progress),
        ("log", Self::Log),
        ("artifact", Self::Artifact),
        ("finished", Self::Finished),
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Progress => "progress",
            Self::Log => "log",
            Self::Artifact => "artifact",
            Self::Finished => "finished",
        }
    }
}

/// The `eventType` of what the executor publishes.
pub const EVENT_TYPE: &str = "execution";

/// What became of a command or a query (`status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// All of it.
    Success,
    /// Nothing of it; `error` says why.
    Failure,
    /// A part: it waits for a person, or output was cut at the limit.
    Partial,
}

impl Status {
    pub(super) const WORDS: [(&'static str, ()); 3] = [("SUCCESS", ()), ("FAILURE", ()), ("PARTIAL", ())];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Failure => "FAILURE",
            Self::Partial => "PARTIAL",
        }
    }
}

/// What a query asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// The executor (`executor`).
    Executor,
    /// One intent, by its id.
    Intent(IntentId),
}

/// What a query asks for (`action`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Where it is.
    Status,
    /// What it used.
    Metrics,
    /// All that is known.
    State,
}

impl Question {
    pub(super) const WORDS: [(&'static str, Self); 3] =
        [("get_status", Self::Status), ("get_metrics", Self::Metrics), ("get_state", Self::State)];
}

/// How much a signature covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignatureScope {
    /// `{id, type, from, to, timestamp}`: what a command asks for has to be sealed.
    #[default]
    Header,
    /// `{id, type, from, to, action, payload, timestamp}`, without what a message has not.
    Full,
}
