//! The outcome of a run: end, output, resource usage and denials.
//!
//! The executor or the kernel takes every measurement here. A guest determines its result or error, exit code, standard
//! error output, logs, progress and artifacts.
//!
//! A type that derives `Serialize` is exchanged between the processes of this program (`isolate`), and nowhere else:
//! the journal stores the types of `stored`, and each protocol has its own message types.

use crate::call::{Door, ParentRun};
use crate::durability::Durability;
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::json::JsonText;
use crate::limit::{Access, Bound, BudgetUsage, Budgets, FileEffects, Limit, NetworkBudgets};
use crate::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutputLimit, Timeout};
use crate::tool::{Digest, ToolSignature};
use crate::verdict::Decision;
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
            | Self::NotCommitted(_) => Status::Failure,
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
            | Self::Staged => true,
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
    pub set_by: crate::limit::Layer,
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
    pub set_by: crate::limit::Layer,
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
}

/// Maximum number of changes of one run that its report lists.
pub const MAX_SHOWN_CHANGES: usize = 1_000;
/// Maximum size in bytes of all texts of one list of changes: paths, targets of links and differences.
pub const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// The file changes of a run that took effect together, or that wait for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChanges {
    /// The number of changed files, folders and links.
    pub count: u64,
    /// The hash of all changes, and of the state of the originals that they rely on.
    pub digest: Digest,
    /// The numbers of all changes of a staged run; `None` for any other run, and in records without them.
    pub counts: Option<ChangeCounts>,
    /// The first changes of a staged run, as a person sees them before a decision: deletions, renames and emptied files come
    /// first. Empty for any other run.
    pub shown: Vec<ShownChange>,
    /// The namespace of the intents of decisions on the changes, at random; `None` if none is possible. It is stored and
    /// never told: who knew it could use up the intents of later decisions.
    pub decisions: Option<IntentId>,
}

impl FileChanges {
    /// The number of changes that are not among the shown ones.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.count.saturating_sub(u64::try_from(self.shown.len()).unwrap_or(u64::MAX))
    }

    /// The number of shown changes of a group.
    #[must_use]
    pub fn count_shown(&self, group: ChangeGroup) -> u64 {
        let shown = self.shown.iter().filter(|change| change.group() == group).count();
        u64::try_from(shown).unwrap_or(u64::MAX)
    }

    /// The number of all changes of a group; that of the shown ones in a record without [`counts`](Self::counts).
    #[must_use]
    pub fn count_all(&self, group: ChangeGroup) -> u64 {
        let shown = self.count_shown(group);
        self.counts.map_or(shown, |counts| counts.get(group).max(shown))
    }

    /// As [`count_all`](Self::count_all), with the number of the shown ones if those are fewer: `20, 3 listed`.
    #[must_use]
    pub fn describe_count(&self, group: ChangeGroup) -> String {
        let all = self.count_all(group);
        match self.count_shown(group) {
            shown if shown == all => all.to_string(),
            0 => format!("{all}, none listed"),
            shown => format!("{all}, {shown} listed"),
        }
    }

    /// The numbers of all changes in one line: `deletes 5, renames 1, changes 200, creates 3`.
    #[must_use]
    pub fn summarize(&self) -> String {
        let counts = ChangeGroup::VARIANTS.iter().map(|group| (group.verb(), self.count_all(*group)));
        let known = counts.filter(|(_, count)| *count > 0).map(|(verb, count)| format!("{verb} {count}"));
        let unknown = Some(self.count_unknown()).filter(|count| *count > 0);
        let more = unknown.map(|count| format!("makes {count} more changes that are not listed"));
        let parts = known.chain(more).collect::<Vec<_>>();
        if parts.is_empty() { "changes nothing".to_owned() } else { parts.join(", ") }
    }

    /// The number of changes whose group nothing tells: those of a record without [`counts`](Self::counts) that are not
    /// among the shown ones.
    #[must_use]
    pub fn count_unknown(&self) -> u64 {
        let known = ChangeGroup::VARIANTS.iter().map(|group| self.count_all(*group));
        self.count.saturating_sub(known.fold(0, u64::saturating_add))
    }
}

/// The numbers of all changes of a run, listed or not, by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeCounts {
    /// The number of deleted entries.
    pub deleted: u64,
    /// The number of entries that get another path.
    pub renamed: u64,
    /// The number of files that keep their path, and nothing of their content.
    pub emptied: u64,
    /// The number of other entries whose content is changed.
    pub changed: u64,
    /// The number of entries of which only the permissions or times are changed.
    pub attributes: u64,
    /// The number of created entries.
    pub created: u64,
}

impl ChangeCounts {
    /// The number of changes of a group.
    #[must_use]
    pub fn get(&self, group: ChangeGroup) -> u64 {
        let Self { deleted, renamed, emptied, changed, attributes, created } = *self;
        match group {
            ChangeGroup::Deleted => deleted,
            ChangeGroup::Emptied => emptied,
            ChangeGroup::Renamed => renamed,
            ChangeGroup::Changed => changed,
            ChangeGroup::Attributes => attributes,
            ChangeGroup::Created => created,
        }
    }
}

/// The meaning of a change to a person, in the order of a text: what a commit loses is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub enum ChangeGroup {
    /// The entry is deleted.
    Deleted,
    /// The file keeps its path, and nothing of its content.
    Emptied,
    /// The entry gets another path.
    Renamed,
    /// The content of the entry is changed.
    Changed,
    /// Only the permissions or times of the entry are changed.
    Attributes,
    /// The entry is created.
    Created,
}

impl ChangeGroup {
    /// The heading of a list of the group.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Deleted => "Deleted",
            Self::Emptied => "Emptied",
            Self::Renamed => "Renamed",
            Self::Changed => "Changed",
            Self::Attributes => "Other permissions or times",
            Self::Created => "Created",
        }
    }

    /// The verb of the group in a summary.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Deleted => "deletes",
            Self::Emptied => "empties",
            Self::Renamed => "renames",
            Self::Changed => "changes",
            Self::Attributes => "sets permissions or times of",
            Self::Created => "creates",
        }
    }
}

/// One change of a file, folder or link, as a person sees it before a decision.
///
/// The paths are guest paths. What a person could not see in a text is escaped in it, and bytes that are not UTF-8 are
/// `\xNN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownChange {
    /// The kind of the change.
    pub kind: ChangeWord,
    /// The kind of the changed entry.
    pub entry: EntryWord,
    /// The path of the entry after the change.
    pub path: String,
    /// The path before the change, of a renamed entry.
    pub from: Option<String>,
    /// The size before the change, of a file that existed.
    pub bytes_before: Option<u64>,
    /// The size after the change, of a file that exists then.
    pub bytes_after: Option<u64>,
    /// The permissions before the change, if it changes them.
    pub mode_before: Option<u32>,
    /// The permissions after the change, if it changes them.
    pub mode_after: Option<u32>,
    /// The target of a created link.
    pub target: Option<String>,
    /// The difference of a text, as unified hunks.
    pub diff: Option<String>,
    /// The changed ranges of a file that is no text.
    pub ranges: Vec<ChangedRange>,
    /// `true` if `diff` or `ranges` lacks a part of the difference.
    pub is_diff_cut: bool,
}

impl ShownChange {
    /// The meaning of the change to a person.
    #[must_use]
    pub fn group(&self) -> ChangeGroup {
        match self.kind {
            ChangeWord::Deleted => ChangeGroup::Deleted,
            ChangeWord::Renamed => ChangeGroup::Renamed,
            ChangeWord::Created => ChangeGroup::Created,
            ChangeWord::Changed if self.bytes_after == Some(0) && self.bytes_before != Some(0) => {
                ChangeGroup::Emptied
            }
            ChangeWord::Changed => ChangeGroup::Changed,
            ChangeWord::Attributes => ChangeGroup::Attributes,
        }
    }

    /// The part of the difference that a person can read.
    #[must_use]
    pub fn readable_part(&self) -> ReadablePart {
        match &self.diff {
            Some(_) if self.is_diff_cut => ReadablePart::Beginning,
            Some(_) => ReadablePart::Whole,
            None if !self.ranges.is_empty() => ReadablePart::Places,
            None if self.is_diff_cut => ReadablePart::Nothing,
            None => ReadablePart::Whole,
        }
    }
}

/// The part of a difference that a list shows so that a person can read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadablePart {
    /// The whole difference, or there is none.
    Whole,
    /// A part of the changed lines.
    Beginning,
    /// Only the places of the changed bytes: the content is not text.
    Places,
    /// Nothing of it.
    Nothing,
}

/// A range of bytes that a change replaces by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedRange {
    /// The offset of the range in both contents.
    pub start: u64,
    /// The number of replaced bytes.
    pub old_bytes: u64,
    /// The number of bytes in their place.
    pub new_bytes: u64,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum ChangeWord {
    /// The entry is deleted.
    Deleted,
    /// The entry gets another path.
    Renamed,
    /// The entry is created.
    Created,
    /// The content of the entry is changed.
    Changed,
    /// Only the permissions or times of the entry are changed.
    Attributes,
}

impl ChangeWord {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The kind of a changed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum EntryWord {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// Any other entry, such as a socket.
    Other,
}

impl EntryWord {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of the file changes of a run that held them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ChangeState {
    /// They wait for a decision, and are not in force.
    Waiting,
    /// They are in force, and can be undone.
    InForce,
    /// They are in force, and can no longer be undone.
    Kept,
    /// They were discarded, and are not in force.
    Discarded,
    /// They were undone, and are no longer in force.
    Undone,
}

impl ChangeState {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
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
    pub filesystem_emptied_by: Option<crate::limit::Layer>,
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
        assert_eq!(names::<ChangeState>(), ["waiting", "in_force", "kept", "discarded", "undone"]);
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

    fn shown(kind: ChangeWord) -> ShownChange {
        ShownChange {
            kind,
            entry: EntryWord::File,
            path: "/workspace/a".to_owned(),
            from: None,
            bytes_before: Some(1),
            bytes_after: None,
            mode_before: None,
            mode_after: None,
            target: None,
            diff: None,
            ranges: vec![],
            is_diff_cut: false,
        }
    }

    fn changes(count: u64, counts: Option<ChangeCounts>, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { count, digest: Digest([0; 32]), counts, shown, decisions: None }
    }

    #[test]
    fn changes_beyond_the_shown_ones_are_counted() {
        let few = changes(3, None, vec![shown(ChangeWord::Deleted)]);
        assert_eq!((few.left_out(), few.count_unknown()), (2, 2));
        assert_eq!((few.count_all(ChangeGroup::Deleted), few.count_all(ChangeGroup::Changed)), (1, 0));
        assert_eq!(few.summarize(), "deletes 1, makes 2 more changes that are not listed");
        assert_eq!(changes(0, None, vec![]).summarize(), "changes nothing");
        let none = FileChanges { count: 0, ..few };
        assert_eq!((none.left_out(), none.count_unknown()), (0, 0));
    }

    #[test]
    fn counts_tell_the_number_of_all_changes_and_never_fewer_than_are_shown() {
        let counts =
            ChangeCounts { deleted: 1, renamed: 2, emptied: 3, changed: 4, attributes: 5, created: 6 };
        let all = changes(21, Some(counts), vec![shown(ChangeWord::Changed)]);
        let numbers = ChangeGroup::VARIANTS.iter().map(|group| all.count_all(*group)).collect::<Vec<_>>();
        assert_eq!(numbers, [1, 3, 2, 4, 5, 6]);
        assert_eq!((all.left_out(), all.count_unknown()), (20, 0));
        let described = [ChangeGroup::Changed, ChangeGroup::Created].map(|group| all.describe_count(group));
        assert_eq!(described, ["4, 1 listed", "6, none listed"]);
        assert_eq!(
            all.summarize(),
            "deletes 1, empties 3, renames 2, changes 4, sets permissions or times of 5, creates 6"
        );
        let wrong = changes(1, Some(ChangeCounts::default()), vec![shown(ChangeWord::Renamed)]);
        assert_eq!(wrong.describe_count(ChangeGroup::Renamed), "1");
    }

    #[test]
    fn a_file_without_its_content_is_emptied_and_not_changed() {
        let emptied = ShownChange { bytes_after: Some(0), ..shown(ChangeWord::Changed) };
        assert_eq!(emptied.group(), ChangeGroup::Emptied);
        assert_eq!(ShownChange { bytes_before: Some(0), ..emptied }.group(), ChangeGroup::Changed);
        for (kind, group) in [
            (ChangeWord::Deleted, ChangeGroup::Deleted),
            (ChangeWord::Renamed, ChangeGroup::Renamed),
            (ChangeWord::Created, ChangeGroup::Created),
            (ChangeWord::Changed, ChangeGroup::Changed),
            (ChangeWord::Attributes, ChangeGroup::Attributes),
        ] {
            assert_eq!(shown(kind).group(), group);
        }
    }

    #[test]
    fn only_a_whole_text_is_readable_as_a_whole() {
        let cut = ShownChange { is_diff_cut: true, ..shown(ChangeWord::Changed) };
        let text = ShownChange { diff: Some(String::new()), ..shown(ChangeWord::Changed) };
        let range = ChangedRange { start: 0, old_bytes: 1, new_bytes: 1 };
        let bytes = ShownChange { ranges: vec![range], ..shown(ChangeWord::Changed) };
        for (change, part) in [
            (shown(ChangeWord::Deleted), ReadablePart::Whole),
            (text.clone(), ReadablePart::Whole),
            (ShownChange { is_diff_cut: true, ..text }, ReadablePart::Beginning),
            (bytes.clone(), ReadablePart::Places),
            (ShownChange { is_diff_cut: true, ..bytes }, ReadablePart::Places),
            (cut, ReadablePart::Nothing),
        ] {
            assert_eq!(change.readable_part(), part);
        }
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
