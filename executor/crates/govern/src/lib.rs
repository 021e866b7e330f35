//! Authorization: verdicts, standing policies, the governors that issue them, and the callers.
//!
//! [`admit`] is the only way from a verdict to a run. A governor is either the local one inside this process or
//! a remote one behind a URL; both have the same interface.

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
mod remote;
mod report_log;
mod rule;
mod secrets;
mod signature;
mod standing;
mod tool_key;
mod tool_signature;
mod tool_trust;
#[cfg(test)]
mod vectors;
mod webhook_key;

pub use admit::{
    AcceptUnsigned, Admission, Admitted, DENIED_BY_GOVERNOR, Escalated, Granted, Granter, OperatorLimits,
    VerifiedVerdict, admit, check_caller_tools, denial_by, missing_scope_message,
};
pub use callers::{
    AuthError, Caller, CallerEntry, CallerEntryError, CallerIdentity, CallerList, Callers, CallersError,
    Credential, CurrentCallers, DecisionAuthor, DecisionRight, Role, StopRight, Token,
};
pub use files::{FileError, read_secret, read_trusted, replace_private};
pub use jwt::{IssuerSettings, JwtSubject, TokenError, TokenIssuers};
pub use keys::{KeyError, KeyPair, TrustedKey, TrustedKeys};
pub use proof::{SigningError, Trust, TrustSettings};
pub use remote::{GovernorUrl, GovernorUrlError, Push, RemoteError, RemoteGovernor};
pub use report_log::ReportLog;
pub use secrets::{AgentSecret, SecretsError};
pub use signature::{IntentSignatures, KeyForm, SignatureSettings};
pub use standing::{ListedPolicy, PolicyOrigin, PolicyRef, StandingPolicies, StandingPolicyError};
pub use tool_key::{ToolKey, ToolSigningKey};
pub use tool_signature::{
    MAX_SIGNATURES, PackageToSign, SignError, StoredSignature, parse_signatures, sign_package,
    write_signatures,
};
pub use tool_trust::{
    MAX_SIGNERS, OfferedTool, SignatureError, SignerSettings, ToolPattern, ToolTrust, TrustedTool,
};
pub use webhook_key::WebhookKey;

use a2g_types::call::Call;
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::Receipt;
use a2g_types::tool::Descriptor;
use a2g_types::verdict::Policy;
use a2g_wire::a2g::encode;
use local::{CedarPolicies, LocalGovernor, PolicySet};
use std::sync::Arc;
use time::OffsetDateTime;

/// The governor of this executor.
#[derive(Clone)]
pub enum Governor {
    /// The governor inside this process, and the log of the reports that it receives.
    Local(Arc<LocalGovernor>, Arc<ReportLog>),
    /// A governor behind a URL.
    Remote(Arc<RemoteGovernor>),
}

/// The executor's self-description for `a2g/register`.
#[derive(Debug, Clone)]
pub struct ExecutorRegistration {
    /// The executor's own DID.
    pub agent: AgentDid,
    /// The executor's public key in the form of [`TrustedKey::public_key`], if it has one.
    pub public_key: Option<String>,
    /// The names of the executor's tools.
    pub tools: Vec<String>,
}

/// The executor's state for `a2g/heartbeat`.
#[derive(Debug, Clone)]
pub struct ExecutorHeartbeat {
    /// The executor's own DID.
    pub agent: AgentDid,
    /// Seconds since the executor started.
    pub uptime_seconds: u64,
    /// The number of running executions.
    pub running: usize,
    /// The number of executions that wait for a slot.
    pub queued: usize,
    /// The end of the executor's journal.
    pub checkpoint: Checkpoint,
}

/// The end of an executor's journal. A copy shows later whether the journal still has the same history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number of receipts ever written.
    pub count: u64,
    /// The hash of the last receipt, in hexadecimal digits.
    pub root: String,
    /// A compact JWS of count, hash, time and the executor's DID; `None` if the executor has no key.
    pub signature: Option<String>,
}

/// The name on record for decisions that arrive over the executor's own connection to its governor.
pub const GOVERNOR: &str = "the governor";

impl Governor {
    /// The governor's address for logs: a URL without secrets, or `inside this process`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        match self {
            Self::Local(..) => "inside this process",
            Self::Remote(remote) => remote.endpoint(),
        }
    }

    /// The right of the governor itself to decide on the intents that it has escalated.
    #[must_use]
    pub fn decision_right(&self) -> DecisionRight<'static> {
        DecisionRight::of_governor()
    }

    /// Returns `false` if this governor denies every call of the tool by the agent, as far as the executor knows:
    /// another governor does not publish its policies.
    #[must_use]
    pub fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        match self {
            Self::Local(local, _) => local.may_reach(agent, tool),
            Self::Remote(_) => true,
        }
    }

    /// The policies by which the governor decides; `None` for another governor, which does not publish its policies.
    #[must_use]
    pub fn policies(&self) -> Option<&PolicySet> {
        match self {
            Self::Local(local, _) => Some(local.policies()),
            Self::Remote(_) => None,
        }
    }

    /// Tells the governor the tools that the executor has, to which it compiles policies in Cedar.
    pub fn use_tools<'a>(&self, tools: impl IntoIterator<Item = &'a Descriptor>) {
        match self {
            Self::Local(local, _) => local.use_tools(tools),
            Self::Remote(_) => {}
        }
    }

    /// The policies in Cedar by which the governor decides; `None` for others, and for another governor.
    #[must_use]
    pub fn cedar(&self) -> Option<&CedarPolicies> {
        self.policies().and_then(PolicySet::cedar)
    }

    /// Returns `true` if the governor's policies read the past of agents, which this executor tells it. Another governor
    /// learns it from reports.
    #[must_use]
    pub fn reads_history(&self) -> bool {
        match self {
            Self::Local(local, _) => local.reads_history(),
            Self::Remote(_) => false,
        }
    }

    /// Tells the built-in governor of the end of a run, or of a decision on its file changes, before anybody else is told.
    pub fn observe_end(&self, receipt: &Receipt) {
        match self {
            Self::Local(local, _) => local.observe_end(receipt),
            Self::Remote(_) => {}
        }
    }

    /// As [`Self::observe_end`], for a run that has ended at that time: in the order of the ends, before the first decision.
    pub fn observe_end_at(&self, ended: OffsetDateTime, receipt: &Receipt) {
        match self {
            Self::Local(local, _) => local.observe_end_at(ended, receipt),
            Self::Remote(_) => {}
        }
    }

    /// Tells the built-in governor of a call that it has denied at that time, before the first decision.
    pub fn observe_denial_at(&self, denied: OffsetDateTime, agent: &AgentDid) {
        match self {
            Self::Local(local, _) => local.observe_denial_at(denied, agent),
            Self::Remote(_) => {}
        }
    }

    /// Requests a verdict. `still_waits` says which intents wait for a person here: the built-in governor counts no others.
    ///
    /// # Errors
    /// [`Fault::Refused`] with `governor_unavailable` if no valid answer arrives.
    pub async fn decide(
        &self,
        call: &Call,
        still_waits: &(dyn Fn(IntentId) -> bool + Sync),
    ) -> Result<VerifiedVerdict, Fault> {
        let verdict = match self {
            Self::Local(local, _) => {
                let (verdict, entry) = local.decide_counted(call, still_waits);
                return Ok(VerifiedVerdict::from_governor_connection(verdict).counted_as(entry));
            }
            Self::Remote(remote) => remote.decide(call).await.map_err(|error| {
                tracing::warn!(governor = self.endpoint(), error = %ErrorChain(&error), "the governor gave no verdict");
                let message = match error {
                    RemoteError::Faulty { code, .. } => format!(
                        "the governor answered with an error that is not a verdict (code {code}), so nothing was run: try \
                         again, and check the governor's log"
                    ),
                    RemoteError::InvalidResult(reason) => format!(
                        "the governor's verdict is not valid, so nothing was run: {reason}. Correct the governor, and send the \
                         intent again"
                    ),
                    RemoteError::Unreachable(_)
                    | RemoteError::TimedOut(_)
                    | RemoteError::Refused(_)
                    | RemoteError::Record(_) => {
                        "the governor gave no verdict, so nothing was run: try again when it is reachable".into()
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
        Ok(VerifiedVerdict::from_governor_connection(verdict))
    }

    /// Registers the executor. A policy in the answer is the standing policy for the executor's own DID.
    ///
    /// # Errors
    /// [`RemoteError`] if the governor refuses, or the connection fails.
    pub async fn register(&self, registration: &ExecutorRegistration) -> Result<Option<Policy>, RemoteError> {
        match self {
            Self::Local(local, _) => {
                local.register(&registration.agent, &registration.tools).map_err(RemoteError::Refused)
            }
            Self::Remote(remote) => remote.register(registration).await,
        }
    }

    /// Delivers a report. An `Ok` is the governor's acknowledgement.
    ///
    /// # Errors
    /// [`RemoteError`] if the governor did not acknowledge the report, which must then be delivered again.
    pub async fn report(&self, receipt: &Receipt) -> Result<(), RemoteError> {
        match self {
            Self::Local(_, log) => {
                let result = log.record(|| encode::report(receipt).get().to_owned()).await;
                result.map_err(RemoteError::Record)
            }
            Self::Remote(remote) => remote.report(receipt).await,
        }
    }

    /// The number of the latest connection to the governor. If it has changed, the governor may have forgotten this executor.
    #[must_use]
    pub fn connection(&self) -> u64 {
        match self {
            Self::Local(..) => 0,
            Self::Remote(remote) => remote.connection(),
        }
    }

    /// Sends a heartbeat.
    ///
    /// # Errors
    /// [`RemoteError`]; with [`Fault::SessionExpired`] if the executor has to register again.
    pub async fn heartbeat(&self, heartbeat: &ExecutorHeartbeat) -> Result<(), RemoteError> {
        match self {
            Self::Local(local, _) => {
                let Checkpoint { count, root, signature: _ } = &heartbeat.checkpoint;
                local.heartbeat(&heartbeat.agent, Some((*count, root))).map_err(RemoteError::Refused)
            }
            Self::Remote(remote) => remote.heartbeat(heartbeat).await,
        }
    }
}

/// The authority of the test process, which its tests share.
#[cfg(test)]
fn test_authority() -> &'static a2g_capability::Authority {
    static AUTHORITY: std::sync::LazyLock<a2g_capability::Authority> =
        std::sync::LazyLock::new(|| a2g_capability::Authority::take().expect("the only one"));
    &AUTHORITY
}
