//! What became of a run: its end, its output, what it used and what it was denied.
//!
//! Every number here was measured by the executor or the kernel. A guest can fill `result`, logs
//! and artifacts, and nothing else.
//!
//! A type that derives `Serialize` travels between the processes of this program (`isolate`), and nowhere else: the
//! journal's texts are those of `stored`, and each door has messages of its own.

use crate::durability::Durability;
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::json::JsonText;
use crate::limit::{Access, Bound, Budgets, Limit, NetworkBudgets, Spent};
use crate::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutputLimit, Timeout};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// The four words of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Status {
    /// The tool ran and said that it succeeded.
    Success,
    /// The tool ran and failed, or a limit other than time ended it.
    Failure,
    /// The deadline ended it.
    Timeout,
    /// A cancel, a revocation or the end of the executor ended it.
    Aborted,
}

impl Status {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Why a running tool was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, VariantArray)]
pub enum AbortReason {
    /// `a2g/cancel`.
    Cancelled,
    /// `g2a/revoke`.
    Revoked,
    /// The executor is shutting down.
    Shutdown,
    /// The executor ended without warning. It is said by the one that starts after it.
    Lost,
}

impl AbortReason {
    /// A sentence for the report.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled by `a2g/cancel`",
            Self::Revoked => "revoked by the governor (`g2a/revoke`)",
            Self::Shutdown => "the executor shut down while the tool was running",
            Self::Lost => {
                "the executor ended without warning: the tool may have run to any point, what it used is not \
                 known, and it is not run again"
            }
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// The tool answered.
    Returned(JsonText),
    /// The tool answered with an error of its own.
    ToolError {
        /// The tool's own code.
        code: String,
        /// The tool's own words.
        message: String,
        /// More, as the tool gave it.
        detail: Option<Value>,
    },
    /// A command exited with a code other than 0.
    Exited {
        /// The exit code.
        code: i32,
        /// The end of what it wrote to standard error.
        stderr_tail: String,
    },
    /// A command exited with 0 but its standard output is not JSON.
    ResultNotJson,
    /// The guest trapped. The text is wasmtime's name of the trap, never a backtrace.
    Trapped(String),
    /// The guest asks for something that is not there, such as an import that is not linked.
    Unlinkable(String),
    /// The process that ran the guest ended before it had an outcome: what the kernel said of it.
    Crashed(String),
    /// A limit ended it.
    LimitReached(Limit),
    /// It was stopped from outside.
    Aborted(AbortReason),
}

impl End {
    /// The status word of this end.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Returned(_) => Status::Success,
            Self::ToolError { .. }
            | Self::Exited { .. }
            | Self::ResultNotJson
            | Self::Trapped(_)
            | Self::Unlinkable(_)
            | Self::Crashed(_)
            | Self::LimitReached(
                Limit::Memory
                | Limit::Output
                | Limit::Stack
                | Limit::Handles
                | Limit::Written
                | Limit::Created
                | Limit::DirectoryEntries
                | Limit::RandomBytes
                | Limit::Subscriptions
                | Limit::Fuel,
            ) => Status::Failure,
            Self::LimitReached(Limit::Time) => Status::Timeout,
            Self::Aborted(_) => Status::Aborted,
        }
    }
}

/// How much a log line matters.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum LogLevel {
    /// For the tool's author.
    Debug,
    /// For the record.
    Info,
    /// Something is off, and the tool goes on.
    Warn,
    /// Something failed.
    Error,
}

impl LogLevel {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One line of a guest's log. Control characters were escaped when it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// How much it matters.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
}

/// A named piece of output that is not the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The tool's name for it.
    pub name: String,
    /// Its media type, as the tool named it.
    pub mime: String,
    /// Its bytes.
    #[serde(with = "as_base64")]
    pub content: Vec<u8>,
}

/// Bytes as a text of base64.
pub(crate) mod as_base64 {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// How far a guest says it has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// From 0 to 100, when the tool knows.
    pub percent: Option<f32>,
    /// What it is doing.
    pub message: String,
}

/// What a guest handed out beside its result, under the output limit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// Log lines in order.
    pub logs: Vec<LogLine>,
    /// The latest progress.
    pub progress: Option<Progress>,
    /// Finished artifacts in order.
    pub artifacts: Vec<Artifact>,
    /// Whether something was dropped at the output limit.
    pub truncated: bool,
}

/// What was measured of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Wall time from before the store was made to after the guest's last instruction, on the
    /// monotonic clock.
    pub wall: Duration,
    /// CPU time of the thread that ran the guest, host calls included, from the kernel.
    pub cpu: Duration,
    /// The most bytes that guest memories and tables had at once.
    pub peak_memory_bytes: u64,
    /// Bytes of result, logs and artifacts taken.
    pub output_bytes: u64,
    /// The most memory that the process of the run had resident, as the kernel counted it: the
    /// guest's and the executor's own. `None` when the run had no process of its own.
    pub peak_resident_bytes: Option<u64>,
}

impl Metrics {
    /// Peak memory in whole MB, rounded up.
    #[must_use]
    pub fn memory_used_mb(&self) -> u64 {
        self.peak_memory_bytes.div_ceil(BYTES_PER_MB)
    }

    /// CPU time over wall time in percent, to one decimal; 100 is one core.
    #[must_use]
    pub fn cpu_percent(&self) -> f64 {
        if self.wall.is_zero() {
            return 0.0;
        }
        (self.cpu.as_secs_f64() / self.wall.as_secs_f64() * 1000.0).round() / 10.0
    }

    /// Wall time in whole milliseconds, rounded up, so that a run never took no time.
    #[must_use]
    pub fn duration_ms(&self) -> u64 {
        u64::try_from(self.wall.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// What a guest reached for without having it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum DenialReason {
    /// The path lies under no granted root, or no granted pattern matches it.
    OutsideScope,
    /// The path leaves its root by `..` or a symbolic link.
    EscapesRoot,
    /// The grant is read-only here.
    ReadOnly,
    /// The host's own file permissions.
    HostPermissions,
    /// Making a link, which a later program might follow.
    Link,
    /// The file has another name, which may lie outside of every granted root.
    HardLink,
    /// A network interface was called in a run without a network.
    NetworkOff,
    /// A part of a network interface that no run is offered: a socket that listens, or UDP.
    NotOffered,
    /// The authority of a request can be read in more than one way, or names no host.
    Authority,
    /// No layer allows this domain.
    DomainNotAllowed,
    /// Some layer blocks this host.
    DomainBlocked,
    /// An IP address that is not listed.
    IpLiteral,
    /// The address is private, local or reserved, or the name has such an address.
    Address,
    /// An address that no look-up of this run gave for an allowed name, and that is not listed itself.
    NotLookedUp,
    /// More requests than one run may make.
    Requests,
    /// More requests a minute than the agent may make.
    RequestRate,
    /// More connections at once than one run may have.
    Connections,
    /// More bytes sent than one run may send.
    SentBytes,
    /// More bytes received than one run may receive.
    ReceivedBytes,
}

impl DenialReason {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether only the way out itself denies this, so that nobody else is believed about it.
    #[must_use]
    pub fn is_of_egress(self) -> bool {
        match self {
            Self::OutsideScope
            | Self::EscapesRoot
            | Self::ReadOnly
            | Self::HostPermissions
            | Self::Link
            | Self::HardLink
            | Self::NetworkOff
            | Self::NotOffered => false,
            Self::Authority
            | Self::DomainNotAllowed
            | Self::DomainBlocked
            | Self::IpLiteral
            | Self::Address
            | Self::NotLookedUp
            | Self::Requests
            | Self::RequestRate
            | Self::Connections
            | Self::SentBytes
            | Self::ReceivedBytes => true,
        }
    }
}

/// One thing that was denied, with how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The guest path, host or interface. Control characters are escaped.
    pub what: String,
    /// Why it was denied.
    pub reason: DenialReason,
    /// How often.
    pub count: u64,
}

/// A granted part of the filesystem as it stood in the store's own preopens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedArea {
    /// The guest path of the opened folder that it lies in.
    pub path: String,
    /// The pattern of what is granted there.
    pub pattern: String,
    /// What may be done with it.
    pub access: Bound<Access>,
    /// The layer whose pattern it is.
    pub set_by: crate::limit::Layer,
}

/// Who was reached over the network, as the way out counted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Scheme, host and port: `https://api.example.com:443`, or `tcp://…` for a connection of a tool's own.
    pub authority: String,
    /// The address that was connected to last, with its port.
    pub address: SocketAddr,
    /// How many requests were sent to it, or connections of a tool's own made to it.
    pub requests: u32,
    /// Bytes that went over the wire to it.
    pub sent_bytes: u64,
    /// Bytes that came over the wire from it.
    pub received_bytes: u64,
}

/// A rule about hosts, with the layer that said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// The pattern, such as `*.example.com`.
    pub pattern: String,
    /// The layer.
    pub set_by: crate::limit::Layer,
}

/// What a run with a network could do with it, and what it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUsage {
    /// What it could do.
    pub budgets: NetworkBudgets,
    /// Whom it could reach.
    pub allowed: Vec<HostRule>,
    /// Whom it could not reach all the same.
    pub blocked: Vec<HostRule>,
    /// The most requests a minute of its agent.
    pub requests_per_minute: Option<Bound<u32>>,
    /// How many requests it made, refused ones included; for what else counts as one see
    /// [`NetworkBudgets::requests`].
    pub requests: u32,
    /// The most connections that it had at once.
    pub connections: u32,
    /// Bytes that went over the wire.
    pub sent_bytes: u64,
    /// Bytes that came over the wire.
    pub received_bytes: u64,
    /// Who was reached, the first [`Usage::MAX_CONTACTS`] of them.
    pub contacted: Vec<Contact>,
    /// Whether more were reached than are listed.
    pub contacted_truncated: bool,
}

/// The limits that were in force, read back from the live store, and what was denied.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// The memory limit of the store's limiter.
    pub memory: Bound<MemoryLimit>,
    /// The CPU limit of the store's throttle.
    pub cpu: Bound<CpuPercent>,
    /// The timeout of the store's deadline.
    pub timeout: Bound<Timeout>,
    /// The output limit of the store's streams.
    pub output: Bound<OutputLimit>,
    /// What the store had open.
    pub filesystem: Vec<GrantedArea>,
    /// What was taken out of that, with all below it.
    pub blocked: Vec<Bound<String>>,
    /// The layer that left nothing of the filesystem, when there was nothing.
    pub filesystem_emptied_by: Option<crate::limit::Layer>,
    /// What the run could have and take of the host beside that.
    pub budgets: Budgets,
    /// What it did spend; `None` when its process ended before it could say.
    pub spent: Option<Spent>,
    /// Whether the grant allowed the network, and which layer said so.
    pub network: Bound<bool>,
    /// What became of it, when the run had one.
    pub network_used: Option<NetworkUsage>,
    /// What was denied, the first [`Usage::MAX_DENIALS`] kinds of it.
    pub denied: Vec<Denial>,
    /// Whether more kinds were denied than are listed.
    pub denied_truncated: bool,
}

impl Usage {
    /// How many different denials a report lists.
    pub const MAX_DENIALS: usize = 32;
    /// How many different hosts a report lists.
    pub const MAX_CONTACTS: usize = 32;
}

/// All that is known of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// What it handed out.
    pub output: Output,
    /// What was measured.
    pub metrics: Metrics,
    /// What was in force.
    pub usage: Usage,
}

/// The record of one run, as it is reported. Made once, when the run is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// The agent that asked.
    pub agent: AgentDid,
    /// The intent that ran.
    pub intent: IntentId,
    /// The tool that ran.
    pub tool: ToolName,
    /// The caller who permitted it, when it waited for a person.
    pub approved_by: Option<String>,
    /// The event that the journal of this receipt waits for.
    pub durability: Durability,
    /// What became of it.
    pub outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_duration_are_rounded_up() {
        let metrics = Metrics {
            wall: Duration::from_micros(1001),
            cpu: Duration::from_micros(500),
            peak_memory_bytes: BYTES_PER_MB + 1,
            output_bytes: 0,
            peak_resident_bytes: None,
        };
        assert_eq!((metrics.memory_used_mb(), metrics.duration_ms()), (2, 2));
        assert!((metrics.cpu_percent() - 50.0).abs() < 0.1);
        assert!(Metrics::default().cpu_percent().abs() < f64::EPSILON);
    }
}
