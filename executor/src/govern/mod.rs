//! Whose word counts: verdicts, standing policies, the governors that give them, and who may call at all.
//!
//! [`admit`] is the only way from a verdict to something that runs. A governor is either the local
//! one inside this process or a remote one behind a URL; both are asked in the same way.

mod admit;
mod arguments;
mod callers;
mod canonical;
mod files;
mod jws;
mod jwt;
mod keys;
pub mod local;
mod proof;
mod records;
mod remote;
mod rule;
mod secrets;
mod signature;
mod standing;
#[cfg(test)]
mod vectors;

pub use admit::{
    AcceptUnsigned, Admission, Admitted, Authentic, Escalated, Granted, Granter, OperatorLimits, admit,
    denied_by,
};
pub use callers::{
    AuthError, Caller, CallerEntry, CallerEntryError, CallerList, Callers, CallersError, Credential, Role,
    Shows, Token,
};
pub use files::{FileError, read_secret, read_trusted};
pub use jwt::{IssuerSettings, JwtSubject, TokenError, TokenIssuers};
pub use keys::{KeyError, KeyPair, TrustedKey, TrustedKeys};
pub use proof::{SigningError, Trust, TrustSettings};
pub use records::Records;
pub use remote::{GovernorUrl, GovernorUrlError, Push, RemoteError, RemoteGovernor};
pub use secrets::{AgentSecret, SecretsError};
pub use signature::{IntentSignatures, KeyForm, SignatureSettings};
pub use standing::{Standing, StandingPolicyError};

use crate::call::Call;
use crate::error_chain::ErrorChain;
use crate::fault::{BlockedBy, Fault};
use crate::ident::AgentDid;
use crate::outcome::Receipt;
use crate::verdict::Policy;
use crate::wire::a2g::encode;
use local::LocalGovernor;
use std::sync::Arc;

/// The governor of this executor.
#[derive(Clone)]
pub enum Governor {
    /// Inside this process, with the reports that it keeps.
    Local(Arc<LocalGovernor>, Arc<Records>),
    /// Behind a URL.
    Remote(Arc<RemoteGovernor>),
}

/// What the executor says about itself when it registers.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// The executor's own DID.
    pub agent: AgentDid,
    /// Its public key, as [`TrustedKey::public_key`], when it has one.
    pub public_key: Option<String>,
    /// The names of its tools.
    pub tools: Vec<String>,
}

/// How the executor is, for a heartbeat.
#[derive(Debug, Clone)]
pub struct Pulse {
    /// The executor's own DID.
    pub agent: AgentDid,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Executions that run now.
    pub running: usize,
    /// Executions that wait for a slot.
    pub queued: usize,
    /// How far its journal goes.
    pub checkpoint: Checkpoint,
}

/// How far the journal of an executor goes: whoever keeps it can tell whether the journal that is shown
/// later has the same history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// How many receipts were ever written.
    pub count: u64,
    /// The hash of the last one, in hexadecimal digits.
    pub root: String,
    /// Both, with the executor and the time, as a compact JWS of the executor's key, when it has one.
    pub signature: Option<String>,
}

impl Governor {
    /// Where it is, for logs: its URL, or that it is inside.
    #[must_use]
    pub fn place(&self) -> &str {
        match self {
            Self::Local(..) => "inside this process",
            Self::Remote(remote) => remote.place(),
        }
    }

    /// Asks for a verdict.
    ///
    /// # Errors
    /// `governor_unavailable` when there is no answer that can be understood.
    pub async fn decide(&self, call: &Call) -> Result<Authentic, Fault> {
        let verdict = match self {
            Self::Local(local, _) => local.decide(call),
            Self::Remote(remote) => remote.decide(call).await.map_err(|error| {
                tracing::warn!(governor = self.place(), error = %ErrorChain(&error), "the governor could not be asked");
                let message = match error {
                    RemoteError::Faulty { code, .. } => format!(
                        "the governor answered with an error that is no verdict (code {code}), so nothing was run: try \
                         again, and see its log"
                    ),
                    RemoteError::Unreachable(_)
                    | RemoteError::TimedOut(_)
                    | RemoteError::InvalidResult(_)
                    | RemoteError::Refused(_)
                    | RemoteError::Record(_) => {
                        "the governor could not be asked, so nothing was run: try again when it answers".into()
                    }
                };
                Fault::Refused {
                    intent: Some(call.intent),
                    risk_score: None,
                    blocked_by: BlockedBy::GovernorUnavailable,
                    message,
                }
            })?,
        };
        Ok(Authentic::over_own_connection(verdict))
    }

    /// Registers the executor. A policy that comes back is the governor's standing policy for it.
    ///
    /// # Errors
    /// What the governor or the connection said.
    pub async fn register(&self, introduction: &Introduction) -> Result<Option<Policy>, RemoteError> {
        match self {
            Self::Local(local, _) => {
                local.register(&introduction.agent, &introduction.tools).map_err(RemoteError::Refused)
            }
            Self::Remote(remote) => remote.register(introduction).await,
        }
    }

    /// Delivers a report. An `Ok` is the governor's acknowledgement.
    ///
    /// # Errors
    /// What the governor or the connection said; the report has to be delivered again.
    pub async fn report(&self, receipt: &Receipt) -> Result<(), RemoteError> {
        match self {
            Self::Local(_, records) => {
                let recorded = records.record(|| encode::report(receipt).get().to_owned()).await;
                recorded.map_err(RemoteError::Record)
            }
            Self::Remote(remote) => remote.report(receipt).await,
        }
    }

    /// Sends a heartbeat.
    ///
    /// # Errors
    /// [`RemoteError::Refused`] with a session fault when the executor has to register again.
    pub async fn heartbeat(&self, pulse: &Pulse) -> Result<(), RemoteError> {
        match self {
            Self::Local(local, _) => {
                let Checkpoint { count, root, signature: _ } = &pulse.checkpoint;
                local.heartbeat(&pulse.agent, Some((*count, root))).map_err(RemoteError::Refused)
            }
            Self::Remote(remote) => remote.heartbeat(pulse).await,
        }
    }
}
