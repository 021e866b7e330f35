//! The settings of each door. They are parsed from the configuration even in a build without the door.

use super::protocol::{DoorAccess, DoorSettings};
use a2g_wire::a2a::Dialect;
use a2g_wire::listing::Listing;
use a2g_wire::nexus::message::SignatureScope;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// The operator's settings of the A2A door.
#[derive(Debug, Clone)]
pub struct A2aSettings {
    /// Access and default agent.
    pub door: DoorSettings,
    /// The dialect of its answers; requests are accepted in both dialects.
    pub dialect: Dialect,
    /// Rate limits for each caller.
    pub limits: RateLimits,
}

/// The rate limits of the A2A door for one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    /// Maximum number of requests in a burst, and then on average per minute.
    pub per_minute: NonZeroU32,
    /// Maximum number of requests in a burst, and then on average per hour.
    pub per_hour: NonZeroU32,
    /// Maximum number of concurrent requests. A stream counts while it is open.
    pub concurrent: u32,
}

/// The operator's settings of the A2E door.
#[derive(Debug, Clone)]
pub struct A2eSettings {
    /// Access and default agent.
    pub door: DoorSettings,
    /// Maximum number of concurrent calls of one session.
    pub max_parallel: usize,
    /// Maximum number of sessions of all callers.
    pub max_sessions: usize,
    /// Maximum number of sessions of one caller.
    pub max_sessions_per_caller: usize,
    /// Time without a stream after which a session's calls are cancelled.
    pub reconnect: Duration,
    /// Time without a stream and without calls after which a session is ended.
    pub idle: Duration,
}

/// The operator's settings of the MCP door.
#[derive(Debug, Clone)]
pub struct McpSettings {
    /// Access and default agent.
    pub door: DoorSettings,
    /// The form of the list of tools.
    pub listing: Listing,
    /// Maximum number of sessions of all callers. Only version 2025-11-25 has sessions.
    pub max_sessions: usize,
    /// Maximum number of sessions of one caller.
    pub max_sessions_per_caller: usize,
    /// Time after a session's last request at which the session is ended.
    pub idle: Duration,
    /// The issuers whose tokens the port accepts, for clients that look for one.
    pub issuers: Vec<String>,
    /// The scheme of the port's URLs: `http` or `https`.
    pub scheme: &'static str,
}

/// The operator's settings of the Nexus door.
#[derive(Debug, Clone)]
pub struct NexusSettings {
    /// The callers that may use the door.
    pub access: DoorAccess,
    /// The id that messages have in `to`; `None`: the executor's DID.
    pub id: Option<String>,
    /// The file with the secrets that agents and the executor share.
    pub key_file: PathBuf,
    /// The members that a signature covers.
    pub scope: SignatureScope,
    /// Interval of pings on a WebSocket, which is closed after three intervals without a message from its peer.
    pub heartbeat: Duration,
}
