//! Admission: the checks between a verdict and a run.
//!
//! A [`VerifiedVerdict`] can only be made here: from a verdict that came over the executor's own connection, with a
//! proof, under the operator's explicit permission, or from another node of the fleet, which has verified it.
//! [`Admitted`] can only be made from a [`VerifiedVerdict`] that answers this very call, approves it, and has not
//! expired, or from the [`OperatorLimits`] of the process that runs the call. An [`Admitted`] call can be granted only
//! once.

use super::Governor;
use super::local::LedgerEntry;
use super::proof::{ProofError, Trust, VerifiedProof};
use super::standing::{StandingPolicies, StandingPolicyError};
use a2g_capability::{Area, Authority, Ceilings, Claims, Grant, HostClaims, HostPattern, ScopeError};
use a2g_types::call::Call;
use a2g_types::clock::format_seconds;
use a2g_types::failure_message::layer_name;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{IntentId, ProofId, SecretName, ToolName};
use a2g_types::limit::{Access, ClaimedLimits, Layer};
use a2g_types::node::PassedCall;
use a2g_types::stop::OperatorReason;
use a2g_types::stored::v1;
use a2g_types::tool::{CallTargets, DeclaredCapabilities, DeclaredFilesystem, Descriptor, Digest};
use a2g_types::verdict::{Decision, Directive, Manifest, Proof, Rationale, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// Maximum number of filesystem patterns, and of conditions, in one verdict. Each pattern may need an open folder.
const MAX_PATTERNS: usize = 64;
/// The beginning of the message for a call that the governor has denied.
pub const DENIED_BY_GOVERNOR: &str = "denied by the governor";
/// Maximum time between the admission and the start of an operator's run.
const OPERATOR_VALIDITY: Duration = Duration::minutes(5);

/// The operator's permission to accept verdicts, policies and directives from any caller
/// (`--insecure-accept-unsigned`). Only the main program can give it, while that program still holds the [`Authority`].
#[derive(Debug, Clone, Copy)]
pub struct AcceptUnsigned(());

impl AcceptUnsigned {
    /// The permission that the person who starts the executor gives explicitly.
    #[must_use]
    pub fn from_command_line(_: &Authority) -> Self {
        Self(())
    }
}

/// The [`Authority`] of the process, restricted to the grants of admitted calls.
#[derive(Debug)]
pub struct Granter(Authority);

impl Granter {
    /// Restricts `authority` to the grants of admitted calls.
    #[must_use]
    pub fn new(authority: Authority) -> Self {
        Self(authority)
    }
}

/// The operator's own limits for one run (`a2g-executor run`), in place of a verdict.
///
/// Only the main program can set these limits, because that takes the [`Authority`], which the code of the protocols
/// never gets.
#[derive(Debug)]
pub struct OperatorLimits(Manifest);

impl OperatorLimits {
    /// The limits that the operator named. A limit that is absent from `manifest` has the same effect as
    /// one that is absent from a verdict.
    #[must_use]
    pub fn new(_: &Authority, manifest: Manifest) -> Self {
        Self(manifest)
    }

    /// Admits a call under these limits. The guest has to start within five minutes of `now`.
    ///
    /// # Errors
    /// [`Fault::Refused`] with `scope_unenforceable` if a pattern cannot be enforced exactly.
    pub fn admit(self, call: Call, now: OffsetDateTime) -> Result<Admitted, Fault> {
        let claims = check_count(self.0.filesystem_scope.len())
            .and_then(|()| manifest_claims(&self.0).map_err(|error| error.to_string()));
        let claims = claims.map_err(|message| Fault::Refused {
            intent: Some(call.intent),
            risk_score: None,
            blocked_by: BlockedBy::ScopeUnenforceable,
            message,
        })?;
        let expires_at = now + OPERATOR_VALIDITY;
        Ok(Admitted {
            call,
            layers: vec![(Layer::Operator, claims)],
            risk_score: None,
            expires_at,
            keep_until: expires_at,
            proof: None,
            module: None,
            verdict: None,
            rationale: Rationale::default(),
            entry: None,
        })
    }
}

/// A verdict that is accepted as the governor's.
#[derive(Debug, Clone)]
pub struct VerifiedVerdict {
    verdict: Arc<Verdict>,
    /// The proof that authenticated the verdict, if there was one.
    proof: Option<VerifiedProof>,
    /// The call in the ledger of the built-in governor, if that has decided here and reads it.
    entry: Option<Arc<LedgerEntry>>,
}

impl VerifiedVerdict {
    /// A verdict from the executor's own connection to the configured governor.
    pub(super) fn from_governor_connection(verdict: Verdict) -> Self {
        Self { verdict: Arc::new(verdict), proof: None, entry: None }
    }

    /// As this, with the call in the ledger of the governor: it is forgotten with the last right to run it.
    pub(super) fn counted_as(self, entry: Option<LedgerEntry>) -> Self {
        Self { entry: entry.map(Arc::new), ..self }
    }

    /// A call that waited at another node, and the verdict that the other node has verified.
    ///
    /// # Errors
    /// If the call was not written by [`Admitted::to_node`].
    pub fn from_node(passed: &PassedCall) -> serde_json::Result<(Call, Self)> {
        let StoredCall { call, verdict, proof, module: _ } = serde_json::from_str(passed.text())?;
        Ok((call, Self { verdict: Arc::new(verdict), proof, entry: None }))
    }

    /// A verdict that arrived together with a call. A proof sent with it must be valid even if unsigned verdicts are
    /// permitted.
    ///
    /// The returned call is the one to run: with a proof its arguments are parsed from the canonical form that
    /// was hashed, so that `1` cannot be replaced by `1.0` on the way.
    ///
    /// # Errors
    /// [`Fault::Refused`]: `verdict_untrusted` without a proof or permission and for an invalid proof;
    /// `verdict_mismatch` for a proof of another call, verdict or executor.
    pub fn from_call(
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
        trust: &Trust,
        permission: Option<AcceptUnsigned>,
        now: OffsetDateTime,
    ) -> Result<(Call, Self), Fault> {
        match (proof, permission) {
            (Some(proof), _) => match trust.verify(&call, proof, now) {
                Ok((arguments, proof)) => {
                    let verdict = Arc::new(verdict);
                    Ok((Call { arguments, ..call }, Self { verdict, proof: Some(proof), entry: None }))
                }
                Err(ProofError { blocked_by, message }) => Err(Fault::Refused {
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
                message: "the verdict has no `proof`: send one that is signed with a key that this executor trusts, or \
                          send the intent to `a2g/intent` instead, or, on a developer's own machine, start the \
                          executor with `--insecure-accept-unsigned`"
                    .to_owned(),
            }),
            (None, Some(AcceptUnsigned(()))) => {
                Ok((call, Self { verdict: Arc::new(verdict), proof: None, entry: None }))
            }
        }
    }

    /// The governor's verdict.
    #[must_use]
    pub fn verdict(&self) -> &Arc<Verdict> {
        &self.verdict
    }

    /// The expiry of the verdict or of its proof, whichever is earlier.
    fn expires_at(&self) -> Option<OffsetDateTime> {
        let verdict = self.verdict.expires_at?;
        Some(self.proof.as_ref().map_or(verdict, |proof| proof.expires_at.min(verdict)))
    }
}

/// The limits of a verdict and its conditions, or of the operator.
type Layers = Vec<(Layer, Claims)>;

/// Marks an [`Admitted`] call whose grant was made.
#[derive(Debug)]
pub struct Granted;

/// A call that may run. It holds the layers of its grant until the grant is made.
#[derive(Debug)]
pub struct Admitted<L = Layers> {
    call: Call,
    layers: L,
    risk_score: Option<f64>,
    expires_at: OffsetDateTime,
    keep_until: OffsetDateTime,
    proof: Option<VerifiedProof>,
    /// The module that was installed when the call began to wait for a person.
    module: Option<Digest>,
    /// The verdict under which another node may run the call; `None` if only this executor may run it.
    verdict: Option<Arc<Verdict>>,
    rationale: Rationale,
    /// As in [`VerifiedVerdict`].
    entry: Option<Arc<LedgerEntry>>,
}

/// A call that waits for a person's decision.
#[derive(Debug, Clone)]
pub struct Escalated {
    call: Call,
    verdict: VerifiedVerdict,
    module: Option<Digest>,
}

/// A call and its verified verdict, as they are in the executor's own journal and in messages between the nodes of a
/// fleet. No other input is deserialized into it.
#[derive(Serialize, Deserialize)]
struct StoredCall {
    #[serde(with = "v1::Call")]
    call: Call,
    #[serde(with = "v1::Verdict")]
    verdict: Verdict,
    #[serde(with = "optional_proof")]
    proof: Option<VerifiedProof>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module: Option<Digest>,
}

/// The form of [`VerifiedProof`] in the executor's own journal.
#[derive(Serialize, Deserialize)]
#[serde(remote = "VerifiedProof")]
struct StoredProof {
    id: ProofId,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
    module: Option<Digest>,
}

a2g_types::optional_twin!(optional_proof, VerifiedProof, "StoredProof");

/// The result of [`admit`] for a call and its verdict.
#[derive(Debug)]
pub enum Admission {
    /// The call may run.
    Run(Box<Admitted>),
    /// The call waits for a person, until the verdict expires.
    Wait(Box<Escalated>),
}

/// Decides whether a call may run under a verdict.
///
/// # Errors
/// [`Fault::Refused`] with `verdict_mismatch`, `verdict_denied`, `verdict_expired`,
/// `condition_unknown` or `scope_unenforceable`.
pub fn admit(call: Call, verdict: VerifiedVerdict, now: OffsetDateTime) -> Result<Admission, Fault> {
    let Verdict { decision, intent, reason, .. } = &*verdict.verdict;
    let risk_score = verdict.verdict.risk.as_ref().map(|risk| risk.score);
    let refuse = |blocked_by, message: String| {
        Err(Fault::Refused { intent: Some(call.intent), risk_score, blocked_by, message })
    };
    if *intent != call.intent {
        return refuse(BlockedBy::VerdictMismatch, format!("the verdict answers another intent, `{intent}`"));
    }
    let subject = if verdict.proof.is_some() { "the verdict or its proof" } else { "the verdict" };
    let expired =
        |at: OffsetDateTime| format!("{subject} expired at {}: ask the governor again", format_seconds(at));
    match (decision, verdict.expires_at()) {
        (Decision::Denied, _) => {
            let reason = reason.as_deref().unwrap_or("the governor gave no reason");
            refuse(BlockedBy::VerdictDenied, format!("{DENIED_BY_GOVERNOR}: {reason}"))
        }
        (Decision::Approved | Decision::Conditional | Decision::Escalate, None) => {
            refuse(BlockedBy::VerdictExpired, "the verdict has no `expires_at`".to_owned())
        }
        (Decision::Approved | Decision::Conditional | Decision::Escalate, Some(at)) if at <= now => {
            refuse(BlockedBy::VerdictExpired, expired(at))
        }
        (Decision::Escalate, Some(_)) => {
            Ok(Admission::Wait(Box::new(Escalated { call, verdict, module: None })))
        }
        (Decision::Approved | Decision::Conditional, Some(at)) => {
            let admitted = admit_manifest(call, &verdict, None, &verdict.verdict.manifest, at)?;
            let verdict = Some(verdict.verdict);
            Ok(Admission::Run(Box::new(Admitted { verdict, ..admitted })))
        }
    }
}

impl Escalated {
    /// The text for the executor's own journal and for the other nodes of its fleet. The signature is not stored, because
    /// it was already verified.
    ///
    /// # Errors
    /// If a time is after the year 9999.
    pub fn to_journal(&self) -> serde_json::Result<String> {
        let Self { call, verdict: VerifiedVerdict { verdict, proof, entry: _ }, module } = self;
        store_call(call, verdict, proof.as_ref(), *module)
    }

    /// Reads the text of [`Self::to_journal`] from the executor's own journal.
    ///
    /// # Errors
    /// If the text is not one of [`Self::to_journal`].
    pub fn from_journal(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text).map(Self::from_stored)
    }

    /// Reads the text of [`Self::to_journal`] that another node of the fleet has stored.
    ///
    /// # Errors
    /// If the text is not one of [`Self::to_journal`].
    pub fn from_node(passed: &PassedCall) -> serde_json::Result<Self> {
        Self::from_journal(passed.text())
    }

    fn from_stored(StoredCall { call, verdict, proof, module }: StoredCall) -> Self {
        let verdict = VerifiedVerdict { verdict: Arc::new(verdict), proof, entry: None };
        Self { call, verdict, module }
    }

    /// The call, which waits since an earlier process, with its place in the ledger of the built-in governor.
    #[must_use]
    pub fn counted_by(self, governor: &Governor) -> Self {
        let entry = match governor {
            Governor::Local(local, _) => local.recount(&self.call, &self.verdict.verdict),
            Governor::Remote(_) => None,
        };
        Self { verdict: self.verdict.counted_as(entry), ..self }
    }

    /// The module that was installed when the call began to wait; `None` if the decision is not bound to one.
    #[must_use]
    pub fn module(&self) -> Option<Digest> {
        self.module
    }

    /// Binds the decision to a module, unless it is bound already: after the approval, the call can run only that
    /// module.
    #[must_use]
    pub fn bind_to_module(self, module: Digest) -> Self {
        Self { module: self.module.or(Some(module)), ..self }
    }

    /// The call that waits.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The governor's verdict.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict.verdict
    }

    /// Returns `true` while the call can be approved.
    #[must_use]
    pub fn is_in_time(&self, now: OffsetDateTime) -> bool {
        self.expires_at() > now
    }

    /// The time from which the call can no longer be approved.
    #[must_use]
    pub fn expires_at(&self) -> OffsetDateTime {
        self.verdict.expires_at().unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// The governor's risk score, if it gave one.
    #[must_use]
    pub fn risk_score(&self) -> Option<f64> {
        self.verdict().risk.as_ref().map(|risk| risk.score)
    }

    /// Admits or refuses the call according to a directive; `by` is its source, for the message.
    ///
    /// # Errors
    /// [`Fault::Refused`] when the directive denies the call, or arrives after the verdict has expired.
    pub fn resolve(self, directive: &Directive, by: &str, now: OffsetDateTime) -> Result<Admitted, Fault> {
        let verdict = &self.verdict.verdict;
        let refuse = |blocked_by, message: String| Fault::Refused {
            intent: Some(self.call.intent),
            risk_score: verdict.risk.as_ref().map(|risk| risk.score),
            blocked_by,
            message,
        };
        if !directive.approved {
            return Err(denial_by(
                by,
                directive.reason.as_ref().map(OperatorReason::as_str),
                self.call.intent,
                self.risk_score(),
            ));
        }
        let Some(expires_at) = self.verdict.expires_at().filter(|at| *at > now) else {
            let message = "the verdict expired before a person decided".to_owned();
            return Err(refuse(BlockedBy::VerdictExpired, message));
        };
        if let (Some(manifest), Some(entry)) = (&directive.manifest, &self.verdict.entry) {
            entry.amend(&Verdict { manifest: manifest.clone(), ..(**verdict).clone() });
        }
        let manifest = directive.manifest.as_ref().unwrap_or(&verdict.manifest);
        admit_manifest(self.call.clone(), &self.verdict, self.module, manifest, expires_at)
    }
}

/// The fault for an intent that a person denied; `by` is the person's name on record.
#[must_use]
pub fn denial_by(by: &str, reason: Option<&str>, intent: IntentId, risk_score: Option<f64>) -> Fault {
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let message = format!("denied by `{by}` (`g2a/directive`){reason}");
    Fault::Refused { intent: Some(intent), risk_score, blocked_by: BlockedBy::VerdictDenied, message }
}

fn admit_manifest(
    call: Call,
    VerifiedVerdict { verdict, proof, entry }: &VerifiedVerdict,
    module: Option<Digest>,
    manifest: &Manifest,
    expires_at: OffsetDateTime,
) -> Result<Admitted, Fault> {
    let risk_score = verdict.risk.as_ref().map(|risk| risk.score);
    let refuse =
        |blocked_by, message| Fault::Refused { intent: Some(call.intent), risk_score, blocked_by, message };
    let scope = |error: ScopeError| refuse(BlockedBy::ScopeUnenforceable, error.to_string());
    check_count(manifest.filesystem_scope.len().max(verdict.conditions.len()))
        .map_err(|message| refuse(BlockedBy::ScopeUnenforceable, message))?;
    let mut layers = vec![(Layer::Verdict, manifest_claims(manifest).map_err(scope)?)];
    let mut named_calls = None;
    let mut named_hosts = None::<Vec<HostPattern>>;
    let mut named_secrets = None::<BTreeSet<SecretName>>;
    for condition in &verdict.conditions {
        let mut claim = a2g_capability::parse_condition(condition).map_err(|error| match error {
            a2g_capability::ConditionError::Scope(error) => scope(error),
            other @ (a2g_capability::ConditionError::Unknown(_)
            | a2g_capability::ConditionError::Host(_)
            | a2g_capability::ConditionError::Number { .. }) => {
                refuse(BlockedBy::ConditionUnknown, other.to_string())
            }
        })?;
        // Together, the conditions `calls` name the tools that may be called.
        if let Some(calls) = claim.calls.take() {
            named_calls = Some(named_calls.map_or(calls.clone(), |named: CallTargets| named.union(calls)));
        }
        // So do the conditions `host`.
        if let Some(hosts) = claim.hosts.allowed.take() {
            named_hosts.get_or_insert_default().extend(hosts);
        }
        // So do the conditions `secrets`. `no_secrets` names none, and withholds those that others name.
        if let Some(secrets) = claim.secrets.take_if(|names| !names.is_empty()) {
            named_secrets.get_or_insert_default().extend(secrets);
        }
        layers.push((Layer::Condition, claim));
    }
    if named_calls.is_some() || named_hosts.is_some() || named_secrets.is_some() {
        let hosts = HostClaims { allowed: named_hosts, ..HostClaims::default() };
        let claims = Claims { calls: named_calls, hosts, secrets: named_secrets, ..Claims::default() };
        layers.push((Layer::Condition, claims));
    }
    let expiries = verdict.expires_at.into_iter().chain(proof.as_ref().map(|proof| proof.expires_at));
    let keep_until = expiries.fold(expires_at, OffsetDateTime::max);
    let proof = proof.clone();
    Ok(Admitted {
        call,
        layers,
        risk_score,
        expires_at,
        keep_until,
        proof,
        module,
        verdict: None,
        rationale: verdict.rationale.clone(),
        entry: entry.clone(),
    })
}

fn store_call(
    call: &Call,
    verdict: &Verdict,
    proof: Option<&VerifiedProof>,
    module: Option<Digest>,
) -> serde_json::Result<String> {
    let call = call.clone();
    let verdict = verdict.clone();
    let proof = proof.cloned();
    serde_json::to_string(&StoredCall { call, verdict, proof, module })
}

fn check_count(patterns: usize) -> Result<(), String> {
    if patterns > MAX_PATTERNS {
        return Err(format!(
            "a verdict may have at most {MAX_PATTERNS} filesystem patterns and {MAX_PATTERNS} conditions"
        ));
    }
    Ok(())
}

/// The limits that a manifest sets. An absent scope grants no folder, an absent `network_allowed` no network.
fn manifest_claims(manifest: &Manifest) -> Result<Claims, ScopeError> {
    let Manifest { limits, network_allowed, filesystem_scope } = manifest;
    let areas = filesystem_scope.iter().map(|pattern| Area::parse(pattern));
    Ok(Claims {
        limits: *limits,
        network: Some(network_allowed.unwrap_or(false)),
        hosts: HostClaims::default(),
        areas: Some(areas.collect::<Result<Vec<_>, _>>()?.concat()),
        access: None,
        effects: None,
        blocked: Vec::new(),
        calls: None,
        secrets: None,
    })
}

impl<L> Admitted<L> {
    /// The admitted call.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Notes that the run begins, or that another executor has the call: for the built-in governor, it counts from now on
    /// until its end is observed.
    pub fn note_begun(&self) {
        self.entry.iter().for_each(|entry| entry.begin());
    }

    /// The rules behind the verdict, if its governor names them.
    #[must_use]
    pub fn rationale(&self) -> &Rationale {
        &self.rationale
    }

    /// The time from which the guest may no longer start.
    #[must_use]
    pub fn expires_at(&self) -> OffsetDateTime {
        self.expires_at
    }

    /// The id of the verdict's proof, if there was one. The proof is valid only for this call, so its id must be
    /// remembered until [`Self::keep_until`].
    #[must_use]
    pub fn proof_id(&self) -> Option<&ProofId> {
        self.proof.as_ref().map(|proof| &proof.id)
    }

    /// The time until which intent and proof must be remembered as used: the later expiry of verdict and proof.
    #[must_use]
    pub fn keep_until(&self) -> OffsetDateTime {
        self.keep_until
    }

    /// Returns `true` if another node of a fleet may run the call under the same verdict. A call that a person
    /// approved, or that runs under the operator's limits, may run only here.
    #[must_use]
    pub fn may_run_elsewhere(&self) -> bool {
        self.verdict.is_some()
    }

    /// The text of the call and its verdict for another node; `None` if only this executor may run it.
    ///
    /// # Errors
    /// If a time is after the year 9999.
    pub fn to_node(&self) -> serde_json::Result<Option<String>> {
        let verdict = self.verdict.as_deref();
        verdict.map(|verdict| store_call(&self.call, verdict, self.proof.as_ref(), None)).transpose()
    }

    /// The fault that refuses this call for the given reason.
    pub fn refusal(&self, blocked_by: BlockedBy, message: impl Into<String>) -> Fault {
        Fault::Refused {
            intent: Some(self.call.intent),
            risk_score: self.risk_score,
            blocked_by,
            message: message.into(),
        }
    }

    /// Checks that the guest may still start.
    ///
    /// # Errors
    /// [`Fault::Refused`] with `verdict_expired` if the verdict or its proof has expired.
    pub fn check_expiry(&self, now: OffsetDateTime) -> Result<(), Fault> {
        if now < self.expires_at {
            return Ok(());
        }
        let at = format_seconds(self.expires_at);
        Err(self.refusal(
            BlockedBy::VerdictExpired,
            format!("the verdict expired at {at}, before the tool could start"),
        ))
    }
}

impl Admitted {
    /// Computes the grant: the meet of verdict, conditions, standing policy, tool, ceilings and the caller's
    /// own limit. `tool` is the tool that will run, and may have hosts of its own in `ceilings`. A call can
    /// be granted only once.
    ///
    /// # Errors
    /// [`Fault::Refused`]: as [`check_caller_tools`], `verdict_mismatch` if the proof or the approval is for another
    /// module, `standing_policy` if the policy forbids the call, `scope_unenforceable` if the layers' patterns
    /// are too many or have too many overlaps, `secret_missing` if the run would not get a secret that the tool
    /// declares.
    pub fn grant(
        self,
        Granter(authority): &Granter,
        standing: &StandingPolicies,
        tool: &Descriptor,
        ceilings: &Ceilings,
    ) -> Result<(Admitted<Granted>, Grant), Fault> {
        check_caller_tools(&self.call)?;
        self.check_module(tool)?;
        let own_ceilings = ceilings.for_tool(&tool.name);
        let name = &tool.name;
        let tool = &tool.capabilities;
        let refuse = |refusal: StandingPolicyError| self.refusal(refusal.blocked_by(), refusal.to_string());
        let policy = standing.claims_for(&self.call).map_err(refuse)?;
        if tool.filesystem == DeclaredFilesystem::ReadWrite {
            standing.check_writes(&self.call).map_err(refuse)?;
        }
        if tool.network {
            standing.check_network(&self.call).map_err(refuse)?;
        }
        let caller = (Layer::Caller, caller_claims(&self.call));
        let (admitted, layers) = self.take_layers();
        let layers = layers
            .into_iter()
            .chain([(Layer::StandingPolicy, policy), (Layer::Tool, tool_claims(tool))])
            .chain([caller]);
        match Grant::meet(authority, layers, &own_ceilings) {
            Ok(grant) => {
                let grant = grant.bind_secrets(ceilings, &admitted.call.agent, name);
                match missing_secret(&grant, name, &tool.secrets) {
                    None => Ok((admitted, grant)),
                    Some(message) => Err(admitted.refusal(BlockedBy::SecretMissing, message)),
                }
            }
            Err(error) => Err(admitted.refusal(BlockedBy::ScopeUnenforceable, error.to_string())),
        }
    }

    fn check_module(&self, tool: &Descriptor) -> Result<(), Fault> {
        let name = &tool.name;
        let installed = tool.digest;
        let is_other = |module: &Digest| *module != installed;
        let proven = self.proof.as_ref().and_then(|proof| proof.module);
        let message = if let Some(module) = proven.filter(is_other) {
            format!(
                "the `proof` is for the module {module} of `{name}`, but the installed module is {installed}"
            )
        } else if let Some(module) = self.module.filter(is_other) {
            format!(
                "the module of `{name}` was {module} when the call began to wait for a person, and is {installed} now: \
                 deny this call and send it again, or install the earlier module"
            )
        } else {
            return Ok(());
        };
        Err(self.refusal(BlockedBy::VerdictMismatch, message))
    }

    fn take_layers(self) -> (Admitted<Granted>, Layers) {
        let Self {
            call,
            layers,
            risk_score,
            expires_at,
            keep_until,
            proof,
            module,
            verdict,
            rationale,
            entry,
        } = self;
        let granted = Admitted {
            call,
            layers: Granted,
            risk_score,
            expires_at,
            keep_until,
            proof,
            module,
            verdict,
            rationale,
            entry,
        };
        (granted, layers)
    }
}

/// The limits that the caller sets, and the tools that its token reaches. They are a layer like the others, so that the
/// report can name the caller as the layer that set the timeout, and the calls of a run stay within the token's scope.
fn caller_claims(call: &Call) -> Claims {
    let calls = match call.nested_caller_tools() {
        CallTargets::All => None,
        named @ CallTargets::Named(_) => Some(named),
    };
    Claims { limits: ClaimedLimits::default().with(call.caller_timeout), calls, ..Claims::default() }
}

/// Checks that the caller of a call reaches its tool.
///
/// # Errors
/// [`Fault::Refused`] with `caller_unauthorized`.
pub fn check_caller_tools(call: &Call) -> Result<(), Fault> {
    if call.is_within_caller_tools() {
        return Ok(());
    }
    Err(Fault::Refused {
        intent: Some(call.intent),
        risk_score: None,
        blocked_by: BlockedBy::CallerUnauthorized,
        message: missing_scope_message(&call.tool),
    })
}

/// The message for a caller whose token does not reach a tool.
#[must_use]
pub fn missing_scope_message(tool: &ToolName) -> String {
    format!("the caller's token has no scope for this tool: it needs `tools:{tool}`")
}

/// The message for a tool that declares a secret which its run would not get. An executor without the secret,
/// such as another node of a fleet, does not run the tool without it.
fn missing_secret(grant: &Grant, tool: &ToolName, declared: &BTreeSet<SecretName>) -> Option<String> {
    declared.iter().find_map(|name| {
        let bound = grant.secrets().iter().find(|secret| secret.binding.name() == name);
        let Some(secret) = bound else {
            return Some(format!(
                "`{tool}` needs the secret `{name}`, and no `[[secret]]` of this executor has it for this tool and this \
                 agent: add one"
            ));
        };
        let by = layer_name(secret.withheld_by?);
        Some(format!("`{tool}` needs the secret `{name}`, and {by} does not let it use that secret"))
    })
}

/// The limits that a tool sets: no tool gets more than it declares.
fn tool_claims(declared: &DeclaredCapabilities) -> Claims {
    let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } = declared;
    let (areas, access) = match filesystem {
        DeclaredFilesystem::None => (Some(Vec::new()), Some(Access::ReadOnly)),
        DeclaredFilesystem::Read => (None, Some(Access::ReadOnly)),
        DeclaredFilesystem::ReadWrite => (None, None),
    };
    Claims {
        limits: *limits,
        network: (!network).then_some(false),
        hosts: HostClaims::of_requests(requests),
        areas,
        access,
        effects: effects.unless_direct(),
        blocked: Vec::new(),
        calls: Some(calls.clone()),
        secrets: Some(secrets.clone()).filter(|secrets| !secrets.is_empty()),
    }
}

#[cfg(test)]
mod tests;
