//! Which verdicts run.
//!
//! [`Authentic`] can only be made here, from a verdict that came over the executor's own connection,
//! with a proof, or under the operator's explicit leave; [`Admitted`] can only be made from an [`Authentic`]
//! verdict that answers this very call, is runnable, and has not expired.

use super::proof::{Disbelief, Proven, Trust};
use super::standing::{Standing, StandingRefusal};
use crate::call::Call;
use crate::capability::{self, Area, Ceilings, Claims, Grant, HostClaims, ScopeError};
use crate::fault::{BlockedBy, Fault};
use crate::ident::{IntentId, ProofId};
use crate::limit::{Access, Layer};
use crate::quantity::Timeout;
use crate::stored::v1;
use crate::tool::{Declared, DeclaredFilesystem, Descriptor, Digest};
use crate::verdict::{Decision, Directive, Manifest, Proof, Verdict};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// The most filesystem patterns, and the most conditions, of one verdict: each pattern may be a
/// folder that is held open.
const MAX_PATTERNS: usize = 64;

/// The operator's leave to take verdicts, policies and directives from anyone who can reach the
/// door (`--insecure-accept-unsigned`). Only the command line makes one.
#[derive(Debug, Clone, Copy)]
pub struct AcceptUnsigned(());

impl AcceptUnsigned {
    /// The leave, given explicitly by the person who starts the executor.
    #[must_use]
    pub fn given_on_the_command_line() -> Self {
        Self(())
    }
}

/// A verdict that is known to be the governor's.
#[derive(Debug, Clone)]
pub struct Authentic {
    verdict: Verdict,
    /// What the proof leaves for later, when it was a proof that showed it.
    proven: Option<Proven>,
}

impl Authentic {
    /// A verdict that the configured governor gave over the executor's own connection to it.
    pub(super) fn over_own_connection(verdict: Verdict) -> Self {
        Self { verdict, proven: None }
    }

    /// A verdict that came with a call. A proof that came along has to hold, whatever leave was given.
    ///
    /// The call that comes back is the one to run: with a proof its arguments are read from the form that
    /// was hashed, so that nobody can change `1` to `1.0` on the way.
    ///
    /// # Errors
    /// [`Fault::Refused`]: `verdict_untrusted` without a proof or leave, and for a proof that cannot be
    /// believed; `verdict_mismatch` for a proof of another call, verdict or executor.
    pub fn with_call(
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
        trust: &Trust,
        leave: Option<AcceptUnsigned>,
        now: OffsetDateTime,
    ) -> Result<(Call, Self), Fault> {
        match (proof, leave) {
            (Some(proof), _) => match trust.believe(&call, proof, now) {
                Ok((arguments, proven)) => {
                    Ok((Call { arguments, ..call }, Self { verdict, proven: Some(proven) }))
                }
                Err(Disbelief { blocked_by, message }) => Err(Fault::Refused {
                    intent: Some(call.intent),
                    risk_score: None,
                    blocked_by,
                    message,
                }),
            },
            (None, None) => Err(Fault::Refused {
                intent: Some(call.intent),
                risk_score: None,
                blocked_by: BlockedBy::VerdictUntrusted,
                message: "the verdict carries no `proof`: send one by a key that this executor trusts, or send the \
                          intent to `a2g/intent` instead, or, on a developer's own machine, start the executor with \
                          `--insecure-accept-unsigned`"
                    .to_owned(),
            }),
            (None, Some(AcceptUnsigned(()))) => Ok((call, Self { verdict, proven: None })),
        }
    }

    /// What the governor said.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Until when it could be used: the end of the verdict or of its proof, whichever comes first.
    fn expires_at(&self) -> Option<OffsetDateTime> {
        let verdict = self.verdict.expires_at?;
        Some(self.proven.as_ref().map_or(verdict, |proven| proven.expires_at.min(verdict)))
    }
}

/// A call that may run, with what its verdict grants.
#[derive(Debug)]
pub struct Admitted {
    call: Call,
    claims: Vec<(Layer, Claims)>,
    risk_score: Option<f64>,
    expires_at: OffsetDateTime,
    remember_until: OffsetDateTime,
    proven: Option<Proven>,
}

/// A call that waits for a person.
#[derive(Debug, Clone)]
pub struct Escalated {
    call: Call,
    verdict: Authentic,
}

/// An escalated call in the executor's own journal, the one place that is read as one.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(with = "v1::Call")]
    call: Call,
    #[serde(with = "v1::Verdict")]
    verdict: Verdict,
    #[serde(default, with = "optional_proof")]
    proven: Option<Proven>,
}

/// The form of [`Proven`] in the executor's own journal.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Proven")]
struct StoredProof {
    id: ProofId,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
    module: Option<Digest>,
}

v1::optional!(optional_proof, Proven, "StoredProof");

/// What becomes of a call and its verdict.
#[derive(Debug)]
pub enum Admission {
    /// It may run.
    Run(Box<Admitted>),
    /// It waits for a person, until the verdict expires.
    Wait(Box<Escalated>),
}

/// Decides whether a call may run under a verdict.
///
/// # Errors
/// [`Fault::Refused`] with `verdict_mismatch`, `verdict_denied`, `verdict_expired`,
/// `condition_unknown` or `scope_unenforceable`.
pub fn admit(call: Call, verdict: Authentic, now: OffsetDateTime) -> Result<Admission, Fault> {
    let Verdict { decision, intent, reason, .. } = verdict.verdict();
    let risk_score = verdict.verdict.risk.as_ref().map(|risk| risk.score);
    let refuse = |blocked_by, message: String| {
        Err(Fault::Refused { intent: Some(call.intent), risk_score, blocked_by, message })
    };
    if *intent != call.intent {
        return refuse(BlockedBy::VerdictMismatch, format!("the verdict answers another intent, `{intent}`"));
    }
    let what = if verdict.proven.is_some() { "the verdict or its proof" } else { "the verdict" };
    let expired = |at: OffsetDateTime| format!("{what} expired at {}: ask the governor again", shown(at));
    match (decision, verdict.expires_at()) {
        (Decision::Denied, _) => {
            let why = reason.as_deref().unwrap_or("the governor gave no reason");
            refuse(BlockedBy::VerdictDenied, format!("denied by the governor: {why}"))
        }
        (Decision::Approved | Decision::Conditional | Decision::Escalate, None) => {
            refuse(BlockedBy::VerdictExpired, "the verdict has no `expires_at`".to_owned())
        }
        (Decision::Approved | Decision::Conditional | Decision::Escalate, Some(at)) if at <= now => {
            refuse(BlockedBy::VerdictExpired, expired(at))
        }
        (Decision::Escalate, Some(_)) => Ok(Admission::Wait(Box::new(Escalated { call, verdict }))),
        (Decision::Approved | Decision::Conditional, Some(at)) => {
            admitted(call, &verdict, &verdict.verdict.manifest, at).map(|run| Admission::Run(Box::new(run)))
        }
    }
}

impl Escalated {
    /// As it is written into the executor's own journal, now that its verdict was found authentic.
    ///
    /// # Errors
    /// When a moment cannot be written, such as one after the year 9999.
    pub fn to_journal(&self) -> serde_json::Result<String> {
        let Self { call, verdict: Authentic { verdict, proven } } = self;
        let kept = Kept { call: call.clone(), verdict: verdict.clone(), proven: proven.clone() };
        serde_json::to_string(&kept)
    }

    /// One that this executor wrote into its own journal.
    ///
    /// # Errors
    /// When the text is not what [`Self::to_journal`] writes.
    pub fn from_journal(text: &str) -> serde_json::Result<Self> {
        let Kept { call, verdict, proven } = serde_json::from_str(text)?;
        Ok(Self { call, verdict: Authentic { verdict, proven } })
    }

    /// The call that waits.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// What the governor said.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict.verdict
    }

    /// Whether it can still be approved.
    #[must_use]
    pub fn waits(&self, now: OffsetDateTime) -> bool {
        self.expires_at() > now
    }

    /// The time at which it can no longer be approved.
    #[must_use]
    pub fn expires_at(&self) -> OffsetDateTime {
        self.verdict.expires_at().unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// The governor's estimate, when it gave one.
    #[must_use]
    pub fn risk_score(&self) -> Option<f64> {
        self.verdict().risk.as_ref().map(|risk| risk.score)
    }

    /// Admits or refuses the call as somebody decided.
    ///
    /// # Errors
    /// [`Fault::Refused`] when it was denied, or decided after the verdict had expired.
    pub fn resolve(self, directive: &Directive, by: &str, now: OffsetDateTime) -> Result<Admitted, Fault> {
        let verdict = &self.verdict.verdict;
        let refuse = |blocked_by, message: String| Fault::Refused {
            intent: Some(self.call.intent),
            risk_score: verdict.risk.as_ref().map(|risk| risk.score),
            blocked_by,
            message,
        };
        if !directive.approved {
            return Err(denied_by(by, self.call.intent, self.risk_score()));
        }
        let Some(expires_at) = self.verdict.expires_at().filter(|at| *at > now) else {
            let message = "the verdict expired before it was decided".to_owned();
            return Err(refuse(BlockedBy::VerdictExpired, message));
        };
        let manifest = directive.manifest.as_ref().unwrap_or(&verdict.manifest);
        admitted(self.call.clone(), &self.verdict, manifest, expires_at)
    }
}

/// The refusal of an intent that a person denied.
#[must_use]
pub fn denied_by(by: &str, intent: IntentId, risk_score: Option<f64>) -> Fault {
    let message = format!("`{by}` denied it (`g2a/directive`)");
    Fault::Refused { intent: Some(intent), risk_score, blocked_by: BlockedBy::VerdictDenied, message }
}

fn admitted(
    call: Call,
    Authentic { verdict, proven }: &Authentic,
    manifest: &Manifest,
    expires_at: OffsetDateTime,
) -> Result<Admitted, Fault> {
    let risk_score = verdict.risk.as_ref().map(|risk| risk.score);
    let refuse =
        |blocked_by, message| Fault::Refused { intent: Some(call.intent), risk_score, blocked_by, message };
    let scope = |error: ScopeError| refuse(BlockedBy::ScopeUnenforceable, error.to_string());
    if manifest.filesystem_scope.len().max(verdict.conditions.len()) > MAX_PATTERNS {
        let message = format!("more than {MAX_PATTERNS} patterns or conditions are not enforced");
        return Err(refuse(BlockedBy::ScopeUnenforceable, message));
    }
    let mut claims = vec![(Layer::Verdict, manifest_claims(manifest).map_err(scope)?)];
    for condition in &verdict.conditions {
        let claim = capability::claims_of(condition).map_err(|error| match error {
            capability::ConditionError::Scope(error) => scope(error),
            other @ (capability::ConditionError::Unknown(_) | capability::ConditionError::Number { .. }) => {
                refuse(BlockedBy::ConditionUnknown, other.to_string())
            }
        })?;
        claims.push((Layer::Condition, claim));
    }
    let ends = verdict.expires_at.into_iter().chain(proven.as_ref().map(|proven| proven.expires_at));
    let remember_until = ends.fold(expires_at, OffsetDateTime::max);
    Ok(Admitted { call, claims, risk_score, expires_at, remember_until, proven: proven.clone() })
}

/// A manifest as claims: an absent scope grants no folder, an absent network none.
fn manifest_claims(manifest: &Manifest) -> Result<Claims, ScopeError> {
    let Manifest { max_memory, max_cpu, timeout, network_allowed, filesystem_scope } = manifest;
    let areas = filesystem_scope.iter().map(|pattern| Area::parse(pattern));
    Ok(Claims {
        memory: *max_memory,
        cpu: *max_cpu,
        timeout: *timeout,
        output: None,
        network: Some(network_allowed.unwrap_or(false)),
        hosts: HostClaims::default(),
        areas: Some(areas.collect::<Result<Vec<_>, _>>()?.concat()),
        access: None,
        blocked: Vec::new(),
    })
}

impl Admitted {
    /// The call.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The latest moment at which the guest may start.
    #[must_use]
    pub fn expires_at(&self) -> OffsetDateTime {
        self.expires_at
    }

    /// The proof that showed whose the verdict is, when it was one. It is good for this call alone, and has
    /// to be known until [`Self::remember_until`].
    #[must_use]
    pub fn proof_id(&self) -> Option<&ProofId> {
        self.proven.as_ref().map(|proven| &proven.id)
    }

    /// Until when the intent and its proof have to be known as used: the later end of verdict and proof.
    #[must_use]
    pub fn remember_until(&self) -> OffsetDateTime {
        self.remember_until
    }

    /// A refusal of this call.
    pub fn refused(&self, blocked_by: BlockedBy, message: impl Into<String>) -> Fault {
        Fault::Refused {
            intent: Some(self.call.intent),
            risk_score: self.risk_score,
            blocked_by,
            message: message.into(),
        }
    }

    /// Whether the guest may still start.
    ///
    /// # Errors
    /// `verdict_expired`.
    pub fn check_expiry(&self, now: OffsetDateTime) -> Result<(), Fault> {
        if now < self.expires_at {
            return Ok(());
        }
        let at = shown(self.expires_at);
        Err(self.refused(
            BlockedBy::VerdictExpired,
            format!("the verdict expired at {at}, before the tool could start"),
        ))
    }

    /// The grant: the meet of verdict, conditions, standing policy, tool and ceilings. `tool` is the one
    /// that will run.
    ///
    /// # Errors
    /// `verdict_mismatch` when the verdict is about another module, `standing_policy` when the policy
    /// forbids the call, `scope_unenforceable` when some layer's pattern cannot be enforced exactly.
    pub fn grant(&self, standing: &Standing, tool: &Descriptor, ceilings: &Ceilings) -> Result<Grant, Fault> {
        let meant = self.proven.as_ref().and_then(|proven| proven.module);
        if let Some(meant) = meant.filter(|meant| *meant != tool.digest) {
            let (name, digest) = (&tool.name, tool.digest);
            return Err(self.refused(
                BlockedBy::VerdictMismatch,
                format!("the `proof` is for another module of `{name}`, {meant}: here it is {digest}"),
            ));
        }
        let tool = &tool.capabilities;
        let refuse = |refusal: StandingRefusal| self.refused(refusal.blocked_by(), refusal.to_string());
        let policy = standing.claims_for(&self.call).map_err(refuse)?;
        if tool.filesystem == DeclaredFilesystem::ReadWrite {
            standing.allow_writes(&self.call).map_err(refuse)?;
        }
        if tool.network {
            standing.allow_network(&self.call).map_err(refuse)?;
        }
        let layers = self
            .claims
            .iter()
            .cloned()
            .chain([(Layer::StandingPolicy, policy), (Layer::Tool, tool_claims(tool))])
            .chain(self.call.at_most.map(|at_most| (Layer::Caller, caller_claims(at_most))));
        Grant::new(layers, ceilings)
            .map_err(|error| self.refused(BlockedBy::ScopeUnenforceable, error.to_string()))
    }
}

/// What a caller asks for, as claims.
fn caller_claims(at_most: Timeout) -> Claims {
    Claims { timeout: Some(at_most), ..Claims::default() }
}

/// What a tool declares, as claims: it never gets more than it says that it needs.
fn tool_claims(declared: &Declared) -> Claims {
    let Declared { filesystem, network, memory, cpu, timeout } = declared;
    let (areas, access) = match filesystem {
        DeclaredFilesystem::None => (Some(Vec::new()), Some(Access::ReadOnly)),
        DeclaredFilesystem::Read => (None, Some(Access::ReadOnly)),
        DeclaredFilesystem::ReadWrite => (None, None),
    };
    Claims {
        memory: *memory,
        cpu: *cpu,
        timeout: *timeout,
        output: None,
        network: (!network).then_some(false),
        hosts: HostClaims::default(),
        areas,
        access,
        blocked: Vec::new(),
    }
}

fn shown(at: OffsetDateTime) -> String {
    // Nobody reads nanoseconds.
    let at = at.truncate_to_second();
    at.format(&time::format_description::well_known::Rfc3339).unwrap_or_else(|_| at.to_string())
}

#[cfg(test)]
mod tests;
