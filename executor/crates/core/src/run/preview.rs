//! What a person sees before they decide on an escalated intent, and the check that what they saw still holds.
//!
//! A preview computes the grant exactly as the run would, and throws it away: only its description leaves this module.
//! [`DecisionBasis`] is the hash of what the decision depends on. A decision that names a basis applies only if a new
//! preview has the same one.

use super::approval_rules::{self, ApprovalBar, PartialApproval};
use super::current_catalog::CurrentCatalog;
use super::decision_basis::DecisionBasis;
use super::open_intents::{Kept, OpenIntents};
use super::policies::Policies;
use super::{AgentFilter, ExecutorSettings, Parts};
use a2g_capability::{Grant, GrantedSecret, Root, Roots};
use a2g_govern::{DecisionRight, Escalated};
use a2g_intent::{Wait, WaitId};
use a2g_types::call::{Call, main_argument};
use a2g_types::clock::Clock;
use a2g_types::fault::Fault;
use a2g_types::grant::{CallSummary, GrantSummary, approved_limits};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::Bound;
use a2g_types::node::NodeName;
use a2g_types::outcome::HostRule;
use a2g_types::session::SessionRequest;
use a2g_types::tool::Descriptor;
use a2g_types::verdict::{Directive, Manifest, RiskLevel, Verdict};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::Semaphore;

/// The permits for the searches for missing folders, each of which takes a thread. One in a network mount whose server
/// does not answer may never end.
static FOLDER_SEARCHES: Semaphore = Semaphore::const_new(4);
/// Maximum time that a page waits for such a search.
const MAX_FOLDER_SEARCH: Duration = Duration::from_secs(2);

/// Describes a grant.
pub(super) fn summarize(grant: &Grant) -> GrantSummary {
    let host_rule = |(pattern, set_by): (&a2g_capability::HostPattern, _)| HostRule {
        pattern: pattern.to_string(),
        set_by,
    };
    let areas = grant.roots().iter().flat_map(|root| root.areas());
    let blocked = grant.roots().iter().flat_map(|root| root.blocked_globs());
    let requests = grant.reach().allowed_requests();
    let calls = grant.calls();
    GrantSummary {
        limits: approved_limits(|limit| grant.limit(limit)),
        network: grant.network(),
        allowed_hosts: grant.reach().allowed_patterns().map(host_rule).collect(),
        blocked_hosts: grant.reach().blocked_patterns().map(host_rule).collect(),
        allowed_requests: requests
            .map(|(request, layer)| Bound { value: request.to_string(), layer })
            .collect(),
        requests_per_minute: grant.reach().requests_per_minute(),
        areas: areas.map(|area| Bound { value: area.value.to_string(), layer: area.layer }).collect(),
        blocked_paths: blocked
            .map(|glob| Bound { value: glob.value.text().to_owned(), layer: glob.layer })
            .collect(),
        access: grant.access(),
        effects: grant.effects(),
        calls: calls.allows_any().then(|| CallSummary {
            targets: calls
                .targets()
                .map(|targets| Bound { value: targets.value.clone(), layer: targets.layer })
                .collect(),
            max_calls: calls.max_calls(),
            max_parallel: calls.max_parallel(),
            max_depth: calls.max_depth(),
        }),
        secrets: grant.secrets().iter().map(GrantedSecret::to_summary).collect(),
    }
}

/// An escalated intent, as it is shown to the person who decides on it.
#[derive(Debug, Clone)]
pub struct DecisionPreview {
    /// The call.
    pub call: Call,
    /// The governor's verdict.
    pub verdict: Verdict,
    /// The time from which the call can no longer be approved.
    pub expires_at: OffsetDateTime,
    /// The tool, as it is installed; `None` if it cannot be used now.
    pub tool: Option<Descriptor>,
    /// Who has approved the intent so far.
    pub approved_by: Vec<String>,
    /// The number of people who have to approve it.
    pub required_approvals: u32,
    /// The grant of an approved run, or the reason why it would be refused.
    pub grant: Result<GrantSummary, Fault>,
    /// The granted folders, for [`Previews::find_missing_roots`].
    roots: Vec<Arc<Root>>,
    /// The hash of the call, its wait, the tool, the verdict, the approvals so far and the grant.
    pub basis: DecisionBasis,
}

/// An escalated intent in a list, without most of its arguments.
#[derive(Debug, Clone)]
pub struct WaitingSummary {
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
    /// The session that the call asks for; `None` for a call without one.
    pub session: Option<SessionRequest>,
    /// The argument by which people recognise the call, shortened.
    pub main_argument: Option<String>,
    /// The governor's estimate of the risk, if it sent one.
    pub risk: Option<(RiskLevel, f64)>,
    /// The governor's reason, shortened.
    pub reason: Option<String>,
    /// The time from which the call can no longer be approved.
    pub expires_at: OffsetDateTime,
    /// The node of the fleet at which the intent arrived; `None` for this one.
    pub node: Option<NodeName>,
}

/// Maximum length of a reason in a list, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The views of people on the intents that wait for them.
pub struct Previews {
    intents: Arc<OpenIntents>,
    catalogue: Arc<CurrentCatalog>,
    policies: Arc<Policies>,
    settings: Arc<ExecutorSettings>,
    clock: Arc<dyn Clock>,
}

impl Previews {
    pub(super) fn new(parts: &Parts) -> Self {
        Self {
            intents: Arc::clone(&parts.intents),
            catalogue: Arc::clone(&parts.catalogue),
            policies: Arc::clone(&parts.policies),
            settings: Arc::clone(&parts.settings),
            clock: Arc::clone(&parts.clock),
        }
    }

    /// The intents of the selected agents that wait for a person, the first to expire first.
    #[must_use]
    pub fn waiting_intents(&self, filter: AgentFilter<'_>) -> Vec<WaitingSummary> {
        // Copied under a lock, so without what may be long.
        let summary = |wait: &Wait<Kept>| {
            let escalated = wait.call();
            let call = escalated.call();
            let verdict = escalated.verdict();
            let shorten = |reason: &String| reason.chars().take(MAX_REASON_CHARS).collect();
            filter(&call.agent).then(|| WaitingSummary {
                intent: call.intent,
                agent: call.agent.clone(),
                tool: call.tool.clone(),
                session: call.session.as_ref().map(|session| session.request),
                main_argument: main_argument(&call.arguments),
                risk: verdict.risk.as_ref().map(|risk| (risk.level, risk.score)),
                reason: verdict.reason.as_ref().map(shorten),
                expires_at: escalated.expires_at(),
                node: wait.home().cloned(),
            })
        };
        let mut waiting = self.intents.map_undecided(self.clock.now(), summary);
        waiting.sort_by_key(|waiting| (waiting.expires_at, waiting.intent));
        waiting
    }

    /// The number of intents of the selected agents that wait for a person.
    #[must_use]
    pub fn count_waiting(&self, filter: AgentFilter<'_>) -> usize {
        let select = |wait: &Wait<Kept>| filter(&wait.call().call().agent).then_some(());
        self.intents.map_undecided(self.clock.now(), select).len()
    }

    /// The session that a waiting intent asks for; `None` if it asks for none, or does not wait.
    #[must_use]
    pub fn session_of_waiting(&self, intent: IntentId) -> Option<SessionRequest> {
        let read = |escalated: &Escalated, _: &[PartialApproval]| {
            escalated.call().session.as_ref().map(|session| session.request)
        };
        self.intents.inspect(intent, read)?
    }

    /// What a waiting intent would run if it were approved with `manifest`, or with the verdict's limits. `None` if the
    /// intent does not wait.
    #[must_use]
    pub fn preview_decision(&self, intent: IntentId, manifest: Option<&Manifest>) -> Option<DecisionPreview> {
        let (escalated, wait) = self.intents.find_undecided(intent)?;
        Some(self.preview(&escalated, wait, manifest))
    }

    /// The guest paths of the granted folders that do not exist on the host now. They are not part of the basis: a folder
    /// that is created meanwhile is granted as shown. Empty if the host's file systems do not answer in time.
    pub async fn find_missing_roots(&self, preview: &DecisionPreview) -> Vec<String> {
        let roots = preview.roots.clone();
        let mounts = self.settings.mounts.clone();
        let ceilings = self.settings.ceilings.areas.clone();
        let search = async {
            let permit = FOLDER_SEARCHES.acquire().await.ok()?;
            let find = move || {
                // A search that goes on after the timeout keeps its permit.
                let _permit = permit;
                Roots::find_missing(&roots, &mounts, &ceilings)
            };
            tokio::task::spawn_blocking(find).await.ok()
        };
        let found = tokio::time::timeout(MAX_FOLDER_SEARCH, search).await;
        found.ok().flatten().unwrap_or_default()
    }

    /// The reason why an approval by the holder of `right` would not count for a waiting intent; `None` if it would
    /// count, or if the intent is not held. Where `[[approvals]]` applies, only people approve, nobody for their own
    /// agent, and nobody twice. A denial always counts.
    #[must_use]
    pub fn approval_bar(&self, intent: IntentId, right: &DecisionRight<'_>) -> Option<ApprovalBar> {
        let rules = &self.settings.approval_rules;
        let author = right.author();
        self.intents.inspect(intent, |escalated, earlier| {
            let call = escalated.call();
            approval_rules::required_approvals(rules, &call.tool, escalated.risk_score())?;
            let mut earlier = earlier.iter().filter(|earlier| self.policies.counts(earlier, &call.agent));
            if right.is_of_governor() {
                Some(ApprovalBar::Governor)
            } else if right.acts_for(&call.agent) {
                Some(ApprovalBar::OwnAgent)
            } else if earlier.any(|earlier| earlier.author.is_same_person(&author)) {
                Some(ApprovalBar::AlreadyApproved)
            } else {
                None
            }
        })?
    }

    pub(super) fn preview(
        &self,
        escalated: &Escalated,
        wait: WaitId,
        manifest: Option<&Manifest>,
    ) -> DecisionPreview {
        let call = escalated.call();
        let verdict = escalated.verdict();
        let rules = &self.settings.approval_rules;
        let required = approval_rules::required_approvals(rules, &call.tool, escalated.risk_score());
        // Every approval so far limits the run. Without a rule, the manifest of a directive replaces the verdict's.
        let counts = |earlier: &PartialApproval| self.policies.counts(earlier, &call.agent);
        let approvals = self.intents.partial_approvals(call.intent, counts);
        let earlier = approvals.iter().filter_map(|approval| approval.manifest.as_ref());
        let narrowed = match (required, manifest) {
            (None, Some(manifest)) => manifest.clone(),
            (None, None) => verdict.manifest.clone(),
            (Some(_), manifest) => approval_rules::narrow(&verdict.manifest, earlier.chain(manifest)),
        };
        let directive = Directive {
            intent: call.intent,
            approved: true,
            manifest: Some(narrowed),
            reason: None,
            digest: None,
        };
        let approved_by =
            approvals.into_iter().map(|approval| approval.author.name().to_owned()).collect::<Vec<_>>();
        let usable = self
            .catalogue
            .find(call)
            .map(|loaded| loaded.usable_tool(&call.tool).map(|tool| tool.descriptor.clone()));
        let granted = match &usable {
            Ok(Some(tool)) => self.grant_if_approved(escalated, &directive, tool),
            Ok(None) => Err(Fault::invalid(
                "/tool",
                "the tool is not in the catalogue, or cannot be used now: see `a2g-executor tool list`",
            )),
            Err(fault) => Err(fault.clone()),
        };
        let tool = usable.ok().flatten();
        let roots = granted.as_ref().map_or_else(|_| Vec::new(), |grant| grant.roots().to_vec());
        let grant = granted.map(|grant| summarize(&grant));
        DecisionPreview {
            basis: DecisionBasis::compute(escalated, wait, tool.as_ref(), &approved_by, &grant),
            approved_by,
            required_approvals: required.unwrap_or(1),
            call: call.clone(),
            verdict: verdict.clone(),
            expires_at: escalated.expires_at(),
            tool,
            grant,
            roots,
        }
    }

    /// The grant that a run of the intent would get if it were approved with `directive` now.
    fn grant_if_approved(
        &self,
        escalated: &Escalated,
        directive: &Directive,
        tool: &Descriptor,
    ) -> Result<Grant, Fault> {
        let ExecutorSettings { granter, ceilings, .. } = &*self.settings;
        let admitted = escalated.clone().resolve(directive, "", self.clock.now())?;
        let granted = admitted.grant(granter, self.policies.standing(), tool, ceilings);
        granted.map(|(_admitted, grant)| grant)
    }
}

/// The fault for a person who decided on something that has changed since it was shown.
pub(super) fn changed_fault() -> Fault {
    Fault::InvalidRequest(
        "something that you were shown has changed: the tool, a policy, a limit or an approval. Look at the intent again \
         before you decide"
            .to_owned(),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use a2g_types::limit::{Access, FileEffects, Layer};
    use a2g_types::tool::Digest;
    use a2g_types::tool::{CallTargets, Contract, DeclaredCapabilities};
    use serde_json::{Value, json};

    fn bound<T>(value: T) -> Bound<T> {
        Bound { value, layer: Layer::Verdict }
    }

    pub(in crate::run) fn escalated() -> Escalated {
        let intent = "550e8400-e29b-41d4-a716-446655440000";
        let text = json!({
            "call": {
                "door": "A2g", "agent": "did:a:b", "intent": intent, "tool": "t", "arguments": {}, "context": null,
                "caller_timeout": null, "priority": "Normal"
            },
            "verdict": {
                "decision": "Escalate", "intent": intent, "risk": null,
                "manifest": {
                    "max_memory": null, "max_cpu": null, "timeout": null, "network_allowed": null, "filesystem_scope": []
                },
                "conditions": [], "expires_at": "2026-11-23T12:01:00Z", "reason": null
            },
            "proof": null
        });
        Escalated::from_journal(&text.to_string()).unwrap()
    }

    fn descriptor() -> Descriptor {
        Descriptor {
            name: ToolName::parse("t").unwrap(),
            title: None,
            version: "1.0.0".to_owned(),
            description: "It reads.".to_owned(),
            contract: Contract::Typed,
            digest: Digest([1; 32]),
            signature: None,
            arguments_schema: Value::Null,
            result_schema: None,
            settings: None,
            is_idempotent: false,
            has_sessions: false,
            capabilities: DeclaredCapabilities::default(),
        }
    }

    fn grant() -> GrantSummary {
        GrantSummary {
            limits: approved_limits(|_| bound(2)),
            network: bound(false),
            allowed_hosts: Vec::new(),
            blocked_hosts: Vec::new(),
            allowed_requests: Vec::new(),
            requests_per_minute: None,
            areas: Vec::new(),
            blocked_paths: Vec::new(),
            access: bound(Access::ReadOnly),
            effects: bound(FileEffects::Direct),
            calls: Some(CallSummary {
                targets: vec![bound(CallTargets::none())],
                max_calls: bound(2),
                max_parallel: bound(2),
                max_depth: 1,
            }),
            secrets: Vec::new(),
        }
    }

    #[test]
    fn a_basis_covers_what_the_page_shows_of_the_tool_and_of_its_calls() {
        let basis = |change: fn(&mut Descriptor, &mut CallSummary)| {
            let mut descriptor = descriptor();
            let mut grant = grant();
            change(&mut descriptor, grant.calls.as_mut().unwrap());
            let wait = WaitId::detached(escalated().call().intent, 1);
            DecisionBasis::compute(&escalated(), wait, Some(&descriptor), &[], &Ok(grant))
        };
        let unchanged = basis(|_, _| {});
        let next_wait = WaitId::detached(escalated().call().intent, 2);
        let next = DecisionBasis::compute(&escalated(), next_wait, Some(&descriptor()), &[], &Ok(grant()));
        assert_ne!(unchanged, next);
        assert_eq!(unchanged, basis(|_, _| {}));
        let changes: [fn(&mut Descriptor, &mut CallSummary); 8] = [
            |tool, _| tool.digest = Digest([2; 32]),
            |tool, _| tool.version = "1.0.1".to_owned(),
            |tool, _| tool.title = Some("Reader".to_owned()),
            |tool, _| tool.description = "It only reads.".to_owned(),
            |_, calls| calls.targets[0].value = CallTargets::All,
            |_, calls| calls.max_calls.value = 3,
            |_, calls| calls.max_parallel.value = 3,
            |_, calls| calls.max_parallel.layer = Layer::Executor,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            assert_ne!(basis(change), unchanged, "{index}");
        }
    }
}
