//! The settings of each door. The configuration has them in a build without the door, too.

use super::protocol::{DoorAccess, DoorSettings};
use a2g_wire::a2a::Dialect;
use a2g_wire::nexus::message::SignatureScope;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// The operator's settings of the A2A door.
#[derive(Debug, Clone)]
pub struct A2aSettings {
    /// Access and default agent.
    pub door: DoorSettings,
    /// The shapes of its answers.
    pub dialect: Dialect,
    /// Rate limits for each caller.
    pub limits: RateLimits,
}

/// The rate limits of the A2A door for one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests in a burst, and then on average in a minute.
    pub per_minute: NonZeroU32,
    /// Requests in a burst, and then on average in an hour.
    pub per_hour: NonZeroU32,
    /// Requests at once. A stream counts while it is open.
    pub at_once: u32,
}

/// The operator's settings of the A2E door.
#[derive(Debug, Clone)]
pub struct A2eSettings {
    /// Access and default agent.
    pub door: DoorSettings,
    /// Calls of one session that run at once.
    pub max_parallel: usize,
    /// Sessions at once, of all callers.
    pub max_sessions: usize,
    /// Sessions at once of one caller.
    pub max_sessions_per_caller: usize,
    /// Time that a session with calls may be without a stream before they are cancelled.
    pub reconnect: Duration,
    /// Time that a session without calls may be without a stream before it is ended.
    pub idle: Duration,
}

/// The operator's settings of the Nexus door.
#[derive(Debug, Clone)]
pub struct NexusSettings {
    /// The callers that may use it.
    pub access: DoorAccess,
    /// Its own id, in `to`; `None` is the executor's DID.
    pub id: Option<String>,
    /// The file with the secrets that agents and the executor share.
    pub key_file: PathBuf,
    /// The members that a signature covers.
    pub scope: SignatureScope,
    /// Interval of pings on a WebSocket. After three intervals without a message it is closed.
    pub heartbeat: Duration,
}
