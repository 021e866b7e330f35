//! The outcome of a run: end, output, resource usage and denials.
//!
//! The executor or the kernel takes every measurement here. A guest determines its result or error, exit code, standard
//! error output, logs, progress and artifacts.
//!
//! A type that derives `Serialize` is exchanged between the processes of this program (`isolate`), and nowhere else:
//! the journal stores the types of `stored`, and each protocol has its own message types.

mod changes;

pub use changes::{
    ChangeCounts, ChangeGroup, ChangeState, ChangeWord, ChangedRange, DecisionAct, EntryWord, FileChanges,
    MAX_SHOWN_BYTES, MAX_SHOWN_CHANGES, ShownChange, ShownRequest, loses_most,
};

use crate::call::{Door, ParentRun};
use crate::durability::Durability;
use crate::ident::{AgentDid, IntentId, SecretName, ToolName};
use crate::json::JsonText;
use crate::limit::{Access, Bound, BudgetUsage, Budgets, FileEffects, Layer, Limit, NetworkBudgets};
use crate::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutputLimit, Timeout};
use crate::session::SessionTurn;
use crate::tool::ToolSignature;
use crate::verdict::{Decision, Rationale};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// The status of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Status {
    /// The tool ran and reported success.
    Success,
    /// The tool ran and reported success, and its file changes wait for a decision. They are not in force.
    Staged,
    /// The tool ran and failed, or a limit other than time ended the run.
    Failure,
    /// The deadline ended the run.
    Timeout,
    /// The run was stopped from outside; see [`AbortReason`].
    Aborted,
}

impl Status {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The reason why a running tool was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, VariantArray)]
pub enum AbortReason {
    /// `a2g/cancel`.
    Cancelled,
    /// `g2a/revoke`.
    Revoked,
    /// The executor is shutting down.
    Shutdown,
    /// The executor ended without warning. The next executor that starts reports it.
    Lost,
    /// The run that made this nested call has ended.
    ParentEnded,
    /// An operator stopped the agent, the tool or everything.
    Stopped,
    /// The executor could not renew its lease in its fleet.
    LeaseLost,
}

impl AbortReason {
    /// The sentence for the report.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled by `a2g/cancel`",
            Self::Revoked => "revoked by the governor (`g2a/revoke`)",
            Self::Shutdown => "the executor shut down while the tool was running",
            Self::Lost => {
                "the executor ended without warning: the tool may have run up to any point, its usage is not \
                 known, and it is not run again"
            }
            Self::ParentEnded => "the run that made this call ended before it",
            Self::Stopped => "stopped by an operator (`a2g-executor stop`)",
            Self::LeaseLost => {
                "the executor could not renew its lease in the fleet: another one may have reported this run as aborted"
            }
        }
    }
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// The tool returned a result.
    Returned(JsonText),
    /// The tool returned a result, and its file changes wait for a decision. They are not in force.
    Staged(JsonText),
    /// The tool returned an error of its own.
    ToolError {
        /// The tool's error code.
        code: String,
        /// The tool's error message.
        message: String,
        /// Further details, as the tool gave them.
        detail: Option<Value>,
    },
    /// A command exited with a code other than 0.
    Exited {
        /// The exit code.
        code: i32,
        /// The end of its standard error output.
        stderr_tail: String,
    },
    /// A command exited with 0, but its standard output is not JSON.
    ResultNotJson,
    /// The tool returned JSON that breaks the schema of its results.
    ResultInvalid {
        /// A JSON Pointer into the result.
        pointer: String,
        /// The violation.
        message: String,
    },
    /// The guest trapped. The text is wasmtime's name of the trap, never a backtrace.
    Trapped(String),
    /// The guest was not started: it imports something that is not linked, or no process, thread or store was
    /// available.
    NotStarted(String),
    /// The process that ran the guest ended without an outcome. The text is the kernel's reason.
    Crashed(String),
    /// The file changes of a run, or of a decision on one, could not take effect together, so none of them did. The text
    /// is the reason.
    NotCommitted(String),
    /// The file changes of a run, or of a decision on one, could be neither carried out nor taken back as a
    /// whole: some may be in force. The text is the reason.
    LeftToOperator(String),
    /// A limit ended the run.
    LimitReached(#[serde(deserialize_with = "Limit::deserialize_ending")] Limit),
    /// The run was stopped from outside.
    Aborted(AbortReason),
}

impl End {
    /// The result of a successful run.
    #[must_use]
    pub fn result(&self) -> Option<&JsonText> {
        if let Self::Returned(result) | Self::Staged(result) = self { Some(result) } else { None }
    }

    /// The reason why a run was stopped from outside.
    #[must_use]
    pub fn abort_reason(&self) -> Option<AbortReason> {
        if let Self::Aborted(reason) = self { Some(*reason) } else { None }
    }

    /// `true` for changes that could be neither applied nor taken back as a whole.
    #[must_use]
    pub fn is_left_to_operator(&self) -> bool {
        matches!(self, Self::LeftToOperator(_))
    }

    /// `true` for a result, also one that does not fit the tool's schema, or the tool's own error. A process may
    /// serve another run only after such an end.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Returned(_) | Self::Staged(_) | Self::ToolError { .. } | Self::ResultInvalid { .. } => true,
            Self::Exited { .. }
            | Self::ResultNotJson
            | Self::Trapped(_)
            | Self::NotStarted(_)
            | Self::Crashed(_)
            | Self::NotCommitted(_)
            | Self::LeftToOperator(_)
            | Self::LimitReached(_)
            | Self::Aborted(_) => false,
        }
    }

    /// The status of this end.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Returned(_) => Status::Success,
            Self::Staged(_) => Status::Staged,
            Self::ToolError { .. }
            | Self::Exited { .. }
            | Self::ResultNotJson
            | Self::ResultInvalid { .. }
            | Self::Trapped(_)
            | Self::NotStarted(_)
            | Self::Crashed(_)
            | Self::NotCommitted(_)
            | Self::LeftToOperator(_) => Status::Failure,
            Self::LimitReached(limit) if *limit == Limit::Time => Status::Timeout,
            Self::LimitReached(_) => Status::Failure,
            Self::Aborted(_) => Status::Aborted,
        }
    }
}

/// The level of a log line.
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
    /// Details for the tool's author.
    Debug,
    /// Normal operation.
    Info,
    /// A problem that does not stop the tool.
    Warn,
    /// An error.
    Error,
}

impl LogLevel {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One line of a guest's log. Control characters are escaped when the line is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The level of the line.
    pub level: LogLevel,
    /// The text of the line.
    pub message: String,
}

/// A named output other than the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The artifact's name, as given by the tool.
    pub name: String,
    /// The media type, as given by the tool.
    pub mime: String,
    /// The content.
    #[serde(with = "as_base64")]
    pub content: Vec<u8>,
}

/// Serializes bytes as base64 text.
pub mod as_base64 {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    /// Writes bytes as one string.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    /// Reads bytes from one string.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The progress of a run, as reported by the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The percentage from 0 to 100, if the tool knows it.
    pub percent: Option<f32>,
    /// The current activity.
    pub message: String,
}

/// A guest's output other than the result, subject to the output limit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunOutput {
    /// Log lines in order.
    pub logs: Vec<LogLine>,
    /// The latest progress.
    pub progress: Option<Progress>,
    /// Finished artifacts in order.
    pub artifacts: Vec<Artifact>,
    /// `true` if output was dropped at the output limit.
    pub truncated: bool,
}

/// The measurements of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunMetrics {
    /// Wall time from before the store was made to after the guest's last instruction, on the monotonic clock.
    pub wall: Duration,
    /// CPU time that the kernel counted, host calls included. With process isolation, it is the time of the run's
    /// process since the guest's start; without, the time of the thread while it ran the guest.
    pub cpu: Duration,
    /// Peak total size in bytes of guest memories and tables.
    pub peak_memory_bytes: u64,
    /// Bytes of result, logs and artifacts collected.
    pub output_bytes: u64,
    /// Peak resident memory of the run's process in bytes, as counted by the kernel. It includes the executor's own
    /// memory in that process. `None` if the run had no process of its own, or if the process had served other runs and
    /// the server could not reset the kernel's peak after them.
    pub peak_resident_bytes: Option<u64>,
    /// The number of runs that the process had served before this one; 0 for a process of its own and for a thread of
    /// the server.
    pub earlier_runs: u32,
}

impl RunMetrics {
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

    /// Wall time in whole milliseconds, rounded up, so that a run never takes zero time.
    #[must_use]
    pub fn duration_ms(&self) -> u64 {
        u64::try_from(self.wall.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// The reason why an access of a guest was denied.
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
    /// The path is granted for reading only.
    ReadOnly,
    /// The host's own file permissions deny the access.
    HostPermissions,
    /// The call would create a link, which a later program might follow.
    Link,
    /// The file has several hard links, of which one may lie outside every granted root.
    HardLink,
    /// The guest called a network interface in a run without a network.
    NetworkOff,
    /// The guest called a part of a network interface that no run gets: a listening socket, or UDP.
    NotOffered,
    /// The authority of a request is ambiguous, or names no host.
    #[strum(serialize = "authority")]
    RequestAuthority,
    /// No layer allows this domain.
    DomainNotAllowed,
    /// Some layer blocks this host.
    DomainBlocked,
    /// The host is an IP address that is not listed.
    IpLiteral,
    /// The address is private, local or reserved, or the name has such an address.
    Address,
    /// No look-up of this run returned the address for an allowed name, and the address itself is not listed.
    NotLookedUp,
    /// The run exceeds its limit on requests.
    Requests,
    /// The agent exceeds its limit on requests per minute.
    RequestRate,
    /// The run exceeds its limit on simultaneous connections.
    Connections,
    /// The run exceeds the bytes that it may send.
    SentBytes,
    /// The run exceeds the bytes that it may receive.
    ReceivedBytes,
    /// The file changes of the run wait for a decision, and this could have changed something that no decision takes back:
    /// a request with another method than GET and HEAD, or a connection.
    Staged,
    /// The request would have waited for the commit of the run's file changes, and is beyond the number of such requests
    /// or too large.
    HeldRequests,
    /// The requests that the tool declares do not have this one, or its path has more than one reading; or it
    /// is a connection, of which no declaration can say what it sends.
    RequestNotDeclared,
    /// The request needs a secret, and a layer does not let the run use it.
    SecretWithheld,
    /// The request needs a secret whose value the executor could not read.
    SecretUnavailable,
    /// The run has used the secret that the request needs as often as it may.
    SecretUses,
    /// The secret that the request needs cannot be set in it: its host is reached without TLS, or its body is
    /// not such a JSON document; or it is a connection of a run with secrets, in which none is set.
    SecretPlace,
    /// An answer to a run with secrets is compressed or only a part, so that no value could be found in it.
    SecretAnswer,
}

impl DenialReason {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// `true` for a reason that only `egress` determines; such a denial is not accepted from any other source.
    #[must_use]
    pub fn is_egress_denial(self) -> bool {
        match self {
            Self::OutsideScope
            | Self::EscapesRoot
            | Self::ReadOnly
            | Self::HostPermissions
            | Self::Link
            | Self::HardLink
            | Self::NetworkOff
            | Self::NotOffered => false,
            Self::RequestAuthority
            | Self::DomainNotAllowed
            | Self::DomainBlocked
            | Self::IpLiteral
            | Self::Address
            | Self::NotLookedUp
            | Self::Requests
            | Self::RequestRate
            | Self::Connections
            | Self::SentBytes
            | Self::ReceivedBytes
            | Self::Staged
            | Self::HeldRequests
            | Self::RequestNotDeclared
            | Self::SecretWithheld
            | Self::SecretUnavailable
            | Self::SecretUses
            | Self::SecretPlace
            | Self::SecretAnswer => true,
        }
    }
}

/// A denied access, with its number of occurrences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The guest path, host or interface. Control characters are escaped.
    pub what: String,
    /// The reason for the denial.
    pub reason: DenialReason,
    /// The layer whose list of hosts or requests denies it; `None` for another reason, and in a record of an
    /// earlier version.
    pub set_by: Option<Layer>,
    /// The number of occurrences.
    pub count: u64,
}

/// A granted part of the filesystem, as found in the store's own preopens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedArea {
    /// The guest path of the opened folder that contains the area.
    pub path: String,
    /// The granted pattern.
    pub pattern: String,
    /// The granted access, with the layer that set it.
    pub access: Bound<Access>,
    /// The layer that set the pattern.
    pub set_by: Layer,
}

/// A remote host that a run contacted, as counted by egress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Scheme, host and port: `https://api.example.com:443`, or `tcp://…` for a tool's direct connection.
    pub authority: String,
    /// The address of the last connection, with its port.
    pub address: SocketAddr,
    /// The number of requests or direct connections to the host.
    pub requests: u32,
    /// Bytes sent to the host, as counted on the wire.
    pub sent_bytes: u64,
    /// Bytes received from the host, as counted on the wire.
    pub received_bytes: u64,
}

/// A pattern of allowed or blocked hosts, with the layer that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// The pattern, such as `*.example.com`.
    pub pattern: String,
    /// The layer that set the pattern.
    pub set_by: Layer,
}

/// The network limits and usage of a run with a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUsage {
    /// The budgets of the run.
    pub budgets: NetworkBudgets,
    /// The hosts that the run could reach.
    pub allowed: Vec<HostRule>,
    /// The hosts that the run could not reach, even if another pattern allows them.
    pub blocked: Vec<HostRule>,
    /// The only requests that the run could send, as its tool declares them; empty if it declares none, so
    /// that each request to a host in `allowed` could be sent.
    pub allowed_requests: Vec<Bound<String>>,
    /// Maximum number of requests per minute of the agent, if a layer sets one.
    pub requests_per_minute: Option<Bound<u32>>,
    /// The number of requests, as [`NetworkBudgets::requests`] counts them.
    pub requests: u32,
    /// Peak number of simultaneous connections.
    pub connections: u32,
    /// Bytes sent, as counted on the wire.
    pub sent_bytes: u64,
    /// Bytes received, as counted on the wire.
    pub received_bytes: u64,
    /// The first [`Usage::MAX_CONTACTS`] hosts that were contacted.
    pub contacted: Vec<Contact>,
    /// `true` if more hosts were contacted than are listed.
    pub contacted_truncated: bool,
    /// The use of each secret that the run could use, or was refused.
    pub secrets: Vec<SecretUse>,
    /// Scheme and host of the MCP server that carries out the calls of the tool; `None` for every other tool. The run's
    /// limits end at the request: what this server does is not limited by the executor.
    pub remote_server: Option<String>,
}

/// The use of a secret in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    /// The name of the secret.
    pub name: SecretName,
    /// The version of each value that was sent, in order of first use, at most [`Usage::MAX_SECRET_VERSIONS`]: 16
    /// hexadecimal digits, which change with the value. Only the executor can compute them.
    pub versions: Vec<String>,
    /// The number of requests that were sent with the secret.
    pub uses: u32,
    /// The number of requests to the secret's host that are not among its requests. They were sent without it.
    pub without: u32,
    /// The number of cookies of these requests' answers that the guest did not get.
    pub kept_cookies: u32,
    /// The number of times that its value was replaced in the answers of the run and in what the guest returned.
    pub redacted: u32,
    /// The number of requests that were sent with the guest's placeholder of the secret in the URL or in a field.
    pub placeholders: u32,
}

/// The effective limits, read back from the live store, and the denials.
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
    /// The areas that the store had open.
    pub filesystem: Vec<GrantedArea>,
    /// The patterns excluded from these areas, with everything below their matches.
    pub blocked: Vec<Bound<String>>,
    /// The guest paths of the granted folders that do not exist on the host: the run found nothing in them.
    pub missing_roots: Vec<String>,
    /// The layer whose limits left no part of the filesystem granted; `None` if some part is granted.
    pub filesystem_emptied_by: Option<Layer>,
    /// The time at which file changes take effect, with the layer that set it.
    pub effects: Bound<FileEffects>,
    /// The file changes that took effect together or wait for a decision; `None` if each took effect at once, or there
    /// are none.
    pub changes: Option<FileChanges>,
    /// The budgets for other host resources.
    pub budgets: Budgets,
    /// The part of the budgets that the run consumed; `None` if the run's process ended before reporting it.
    pub spent: Option<BudgetUsage>,
    /// `true` if the network was granted, with the layer that decided on it.
    pub network: Bound<bool>,
    /// The use of the network; `None` for a run without a network.
    pub network_used: Option<NetworkUsage>,
    /// The first [`Usage::MAX_DENIALS`] different denials.
    pub denied: Vec<Denial>,
    /// `true` if there were more different denials than are listed.
    pub denied_truncated: bool,
    /// The memory that the module starts with, in bytes, if the limit on memory is lower.
    pub start_memory_bytes: Option<u64>,
}

impl Usage {
    /// Maximum number of different denials in a report.
    pub const MAX_DENIALS: usize = 32;
    /// Maximum number of different hosts in a report.
    pub const MAX_CONTACTS: usize = 32;
    /// Maximum number of versions of one secret in a report.
    pub const MAX_SECRET_VERSIONS: usize = 8;
}

/// The end of a nested call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum NestedEnd {
    /// The call has not ended.
    Pending,
    /// The call was refused: nothing ran.
    Refused,
    /// As [`Status::Success`].
    Success,
    /// As [`Status::Staged`].
    Staged,
    /// As [`Status::Failure`].
    Failure,
    /// As [`Status::Timeout`].
    Timeout,
    /// As [`Status::Aborted`].
    Aborted,
}

impl NestedEnd {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl From<Status> for NestedEnd {
    fn from(status: Status) -> Self {
        match status {
            Status::Success => Self::Success,
            Status::Staged => Self::Staged,
            Status::Failure => Self::Failure,
            Status::Timeout => Self::Timeout,
            Status::Aborted => Self::Aborted,
        }
    }
}

/// A call that a run made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NestedCall {
    /// The number of the call, from 1.
    pub ordinal: u32,
    /// The called tool, as the run named it.
    pub tool: String,
    /// The intent of the call.
    pub intent: IntentId,
    /// The governor's decision; `None` if the call was refused before the governor was asked.
    pub decision: Option<Decision>,
    /// The end of the call.
    pub end: NestedEnd,
    /// The time from the start of the call to its answer.
    pub duration: Duration,
}

impl NestedCall {
    /// The end of the call as progress of its parent.
    #[must_use]
    pub fn to_progress(&self) -> Progress {
        let Self { ordinal, tool, intent, decision, end, duration } = self;
        let decision = decision.map_or("-", Decision::as_str);
        let end = end.as_str();
        let ms = duration.as_millis();
        let message = format!("call {ordinal}: {tool} {decision} {end} in {ms} ms ({intent})");
        Progress { percent: None, message }
    }
}

/// The calls that a run made, with the limits on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallUsage {
    /// Maximum number of calls.
    pub max_calls: Bound<u32>,
    /// Maximum number of simultaneous calls.
    pub max_parallel: Bound<u32>,
    /// The number of calls, including refused ones.
    pub count: u32,
    /// The first [`CallUsage::MAX_LISTED`] calls.
    pub calls: Vec<NestedCall>,
}

impl CallUsage {
    /// Maximum number of calls in a report.
    pub const MAX_LISTED: usize = 1000;
}

/// The complete outcome of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The end of the run.
    pub end: End,
    /// Its output.
    pub output: RunOutput,
    /// Its measurements.
    pub metrics: RunMetrics,
    /// Its effective limits and its denials.
    pub usage: Usage,
}

/// The record of one run, as reported. It is made once, when the run has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// The agent of the call.
    pub agent: AgentDid,
    /// The intent that ran.
    pub intent: IntentId,
    /// The tool that ran.
    pub tool: ToolName,
    /// The door of the call, or of the run that made it.
    pub door: Door,
    /// The caller that approved the intent, if the intent was escalated.
    pub approved_by: Option<String>,
    /// The durability level at which this receipt was written.
    pub durability: Durability,
    /// The run that made this call; `None` for a call from outside.
    pub parent: Option<ParentRun>,
    /// The calls that the run made; `None` for a run that could make no calls.
    pub calls: Option<CallUsage>,
    /// The signature with which the tool was loaded; `None` if the operator requires none.
    pub signature: Option<ToolSignature>,
    /// The turn of the session in which the tool ran; `None` for a run with a store of its own.
    pub session: Option<SessionTurn>,
    /// The rules behind the verdict, if its governor names them.
    pub rationale: Rationale,
    /// The outcome of the run.
    pub outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_on_the_wire_are_these() {
        fn names<T: Copy + VariantArray + Into<&'static str>>() -> Vec<&'static str> {
            T::VARIANTS.iter().map(|variant| (*variant).into()).collect()
        }
        assert_eq!(names::<Status>(), ["SUCCESS", "STAGED", "FAILURE", "TIMEOUT", "ABORTED"]);
        assert_eq!(names::<ChangeWord>(), ["deleted", "renamed", "created", "changed", "attributes"]);
        assert_eq!(names::<EntryWord>(), ["file", "folder", "link", "other"]);
        assert_eq!(names::<ChangeState>(), ["waiting", "sending", "in_force", "kept", "discarded", "undone"]);
        for status in Status::VARIANTS {
            assert_eq!(NestedEnd::from(*status).as_str(), status.as_str());
        }
    }

    #[test]
    fn a_staged_run_has_a_result_and_a_status_of_its_own() {
        let result = JsonText::null();
        let staged = End::Staged(result.clone());
        assert_eq!((staged.result(), staged.status()), (Some(&result), Status::Staged));
        assert_eq!(staged.abort_reason(), None);
    }

    #[test]
    fn memory_and_duration_are_rounded_up() {
        let metrics = RunMetrics {
            wall: Duration::from_micros(1001),
            cpu: Duration::from_micros(500),
            peak_memory_bytes: BYTES_PER_MB + 1,
            output_bytes: 0,
            peak_resident_bytes: None,
            earlier_runs: 0,
        };
        assert_eq!((metrics.memory_used_mb(), metrics.duration_ms()), (2, 2));
        assert!((metrics.cpu_percent() - 50.0).abs() < 0.1);
        assert!(RunMetrics::default().cpu_percent().abs() < f64::EPSILON);
    }
}
