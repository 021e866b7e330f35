//! The claims that the nodes of a fleet share, in a stream of NATS JetStream.
//!
//! ```text
//! mark `open.NODE.INTENT`, create `claim.INTENT` ─▶ the run may start
//!                             │ the key exists: the intent is claimed or has ended
//!                             ▼
//!   finish:  `claim.INTENT` gets the receipt ─▶ the report is delivered ─▶ the mark is removed
//!   release: `claim.INTENT` is removed       ─▶ the mark is removed
//! ```
//! A person's denial creates `claim.INTENT` too, so an intent either starts at one node or is denied at all.
//! Every write names the revision that it replaces, so one node claims an intent, and one receipt ends it. The marks
//! list what a node has to end and to deliver, for the node that takes over when this one is lost. A node that ends
//! the claim of a lost one makes a mark of its own first, `open.NODE.INTENT.end`, which stays until the report is
//! delivered. It also makes the key `ended.NODE.INTENT` for the lost one, whose journal lacks the intent if its process
//! was killed between the claim and the start: that node writes the end to its journal once it runs again.
//!
//! A node renews its *lease*, the key `node.NODE`, every few seconds. If a lease has not changed for
//! [`LeaseTimes::lease`] by the clock of another node, that node takes over: it replaces the lease, ends the open
//! claims as aborted and delivers the reports. A node that could not renew its lease for [`LeaseTimes::fence`], which
//! is shorter, stops its runs and claims nothing, so no guest runs when its claim is ended by another node. Each time
//! that a node joins, its *epoch* grows; claims of earlier epochs no longer belong to it.
//!
//! An intent that waits without its caller is a value too: that of a task which waits for a slot, and one that waits for
//! a person. Any node decides on it and runs it: see `pending.rs`.
//!
//! A node that cannot reach the servers claims nothing: its calls are refused before anything runs. So does one whose
//! stream is gone, or was made anew: see `identity.rs`.
//!
//! Only `nats/`, behind the feature `nats`, knows the client of NATS.
//!
//! A [`Fleet`] is its parts. Each has fields of its own, and parts below it. All share the lowest one.
//!
//! ```text
//! takeovers           lost nodes: their claims are ended, their reports delivered
//! pending             the intents that wait for a person or, without their callers, for a slot
//! claims              claim ─▶ finish, or release; denials, receipts
//! orders              what every node follows
//! messages            what no server stores: announcements, requests for calls, questions
//! member              name, lease and stream of this node, the leases of the others
//! ```

mod claims;
mod identity;
mod lease;
mod marks;
mod member;
mod messages;
#[cfg(test)]
mod model;
#[cfg(feature = "nats")]
mod nats;
#[cfg(not(feature = "nats"))]
mod no_nats;
mod orders;
mod pending;
mod record;
mod seal;
mod settings;
mod store;
mod takeover;
mod view;

pub use claims::{
    Claim, ClaimReply, Claims, Delivery, FinishReply, FoundClaim, FoundEnd, FoundState, NewClaim, NewDenial,
};
pub use identity::{RememberedFleet, StreamId, StreamIdError, StreamIdentity};
pub use lease::{LeaseTimes, NodeHead, NodeLoad, NodeState};
pub use marks::OrphanReport;
pub use member::Member;
pub use messages::{
    Announcement, Announcements, CallSelection, EventMessages, MAX_MESSAGE_BYTES, Messages, Question,
    Questions, TakeRequest, TakeRequests, is_too_large,
};
#[cfg(feature = "nats")]
pub use nats::{InitMode, InitReply, NatsStore as ServerStore, connect, init, open_store};
#[cfg(not(feature = "nats"))]
pub use no_nats::{NoStore as ServerStore, connect};
pub use orders::{Order, Orders};
pub use pending::{Added, Change, Decision, NewPending, PendingIntent, PendingIntents, RunsAt, WaitsFor};
pub use seal::FleetKey;
pub use settings::{FleetSettings, Login};
pub use store::{Store, StoredValue, Write};
pub use takeover::{LocalReport, RecordedEnd, Takeovers, UnrecordedEnd};
pub use view::{FleetView, NodeStatus};

use a2g_types::node::{FleetName, NodeName};
use marks::OrphanReports;
use std::fmt::Display;
use std::sync::Arc;

/// A fleet, as one of its nodes uses it.
pub struct Fleet<S> {
    /// The node itself.
    pub member: Arc<Member<S>>,
    /// The claims of intents.
    pub claims: Arc<Claims<S>>,
    /// The intents that wait for a person or, without their callers, for a slot.
    pub pending: PendingIntents<S>,
    /// What lost nodes leave.
    pub takeovers: Takeovers<S>,
    /// What every node follows.
    pub orders: Orders<S>,
    /// What the nodes tell each other, and no server stores.
    pub messages: Arc<Messages<S>>,
}

impl<S: Store> Fleet<S> {
    /// The fleet that a node has joined.
    #[must_use]
    pub fn new(member: Member<S>) -> Self {
        let member = Arc::new(member);
        let reports = Arc::<OrphanReports>::default();
        let claims = Arc::new(Claims::new(Arc::clone(&member), Arc::clone(&reports)));
        Self {
            pending: PendingIntents::new(Arc::clone(&member)),
            takeovers: Takeovers::new(Arc::clone(&member), Arc::clone(&claims), reports),
            orders: Orders::new(Arc::clone(&member)),
            messages: Arc::new(Messages::new(Arc::clone(&member))),
            member,
            claims,
        }
    }
}

/// The reason why a fleet cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The build has no client of NATS.
    #[error("this build of the executor has no fleet: use one with the feature `fleet`")]
    NotInBuild,
    /// No server answers, or none accepts the login.
    #[error(
        "no connection: {reason}; check `fleet.servers`, the login (`fleet.credentials` or `fleet.nkey_file`) and, for TLS, \
         `fleet.ca_file`"
    )]
    Connect {
        /// The reason.
        reason: String,
    },
    /// A file of the settings cannot be used.
    #[error("`{path}` (`{setting}`) cannot be used: {reason}")]
    File {
        /// The path.
        path: String,
        /// The key of the configuration.
        setting: &'static str,
        /// The problem.
        reason: String,
    },
    /// The servers have no stream of this fleet, or one that was not completed.
    #[error(
        "the servers in `fleet.servers` have no stream of the fleet `{fleet}`: if it is a new fleet, run `a2g-executor fleet \
         init` once, with this configuration; if not, check `fleet.name` and `fleet.servers`"
    )]
    NoStream {
        /// The name of the fleet.
        fleet: FleetName,
    },
    /// The stream that a journal remembers is gone, and with it its claims.
    #[error(
        "the claims of the fleet `{fleet}` are gone: this executor's journal remembers the stream {remembered}, and {found}. \
         Intents that have run could run again, so nothing runs. Check `fleet.name` and `fleet.servers`, or restore the \
         stream. If it is lost for good, run `a2g-executor fleet init --new --replaces {remembered}` with this \
         configuration, and start all nodes again: each still refuses what its own journal has"
    )]
    Lost {
        /// The name of the fleet.
        fleet: FleetName,
        /// The id that the journal remembers.
        remembered: StreamId,
        /// What there is instead, as a clause.
        found: String,
    },
    /// The stream had values and has lost them, and no journal says which they were.
    #[error(
        "the stream of the fleet `{fleet}` has lost what it had, and this configuration has no journal that remembers it: \
         restore the stream, or run `a2g-executor fleet init --new` with the configuration of a node that was in the fleet, \
         or with `--replaces ID` and the id that a refused node names"
    )]
    Emptied {
        /// The name of the fleet.
        fleet: FleetName,
    },
    /// The servers have no JetStream, or refuse to create the stream.
    #[error(
        "the fleet's stream `{stream}` cannot be opened: {reason}; the servers in `fleet.servers` need JetStream, the \
         login has to be allowed to use it, and there have to be at least `fleet.replicas` servers"
    )]
    Stream {
        /// The name of the stream.
        stream: String,
        /// The server's reason.
        reason: String,
    },
    /// The stream has another format.
    #[error(
        "the fleet's stream `{stream}` was made by another version of the executor, or by another program: it has \
         `{found}` and not `{expected}`; give all nodes one version, or choose another `fleet.name`"
    )]
    Format {
        /// The name of the stream.
        stream: String,
        /// The description of the stream, or its subjects.
        found: String,
        /// What this version writes.
        expected: String,
    },
    /// An executor with this node name runs.
    #[error(
        "another executor with the name `{node}` (`fleet.node`) runs in this fleet: give each executor its own name"
    )]
    NodeRuns {
        /// The name.
        node: NodeName,
    },
    /// The fleet was made with another key.
    #[error(
        "its values cannot be authenticated: the key in `fleet.key_file` is not the one of the fleet `{fleet}`. Copy the \
         file from a node that runs, or choose another `fleet.name`"
    )]
    OtherKey {
        /// The name of the fleet.
        fleet: FleetName,
    },
    /// A request failed, or its answer did not come in time: its effect is not known.
    #[error(
        "the servers have not done a request ({request}): {reason}. Check that they run, in a cluster more than half of \
         them, and try again"
    )]
    Unavailable {
        /// The request.
        request: &'static str,
        /// The reason.
        reason: String,
    },
    /// Another node or task has changed the same value at the same time.
    #[error("a request to the fleet was not done ({request}), because {reason}: try again")]
    Contended {
        /// The request.
        request: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// A node has not replied in time.
    #[error(
        "a node of the fleet does not answer; if it stays away, another one takes over (`docs/fleet.md`)"
    )]
    NotAnswered,
    /// Another node has given a later order.
    #[error("another node of the fleet has given a later order, which this one has not followed yet")]
    LaterOrder,
    /// This node could not renew its lease in time, or another node has taken over.
    #[error(
        "this executor has lost its lease in the fleet, and joins again as soon as it can: check that the servers in \
         `fleet.servers` run"
    )]
    LeaseLost,
    /// A value in the stream was written by no node of this fleet.
    #[error(
        "the fleet's value `{key}` was written by no node of this fleet (`fleet.key_file`), or by another version: \
         {reason}"
    )]
    Value {
        /// The key.
        key: String,
        /// The problem.
        reason: String,
    },
}

impl FleetError {
    /// Returns `true` if the key in `fleet.key_file` is not the one of the fleet.
    #[must_use]
    pub fn is_wrong_key(&self) -> bool {
        matches!(self, Self::OtherKey { .. })
    }

    fn lost(fleet: &FleetName, remembered: &StreamId, found: Option<StreamId>) -> Self {
        let found = match found {
            None => "the servers no longer have it".to_owned(),
            Some(found) => format!("the servers have another one, {found}"),
        };
        Self::Lost { fleet: fleet.clone(), remembered: remembered.clone(), found }
    }

    fn contended(request: &'static str, reason: &'static str) -> Self {
        Self::Contended { request, reason }
    }

    fn value(key: &str, reason: impl Display) -> Self {
        Self::Value { key: key.to_owned(), reason: reason.to_string() }
    }
}
