//! The requests that a commit sends once its file changes are in force: each at most once, in their order.
//!
//! No grant outlasts its run, so the operator's ceilings of now decide, and the agent's standing policy of now. A host that
//! was blocked for the run is blocked here.

use super::ChangeSets;
use crate::run::effects::{HeldList, RequestEnd, StoredRequest};
use a2g_capability::{Ceilings, GrantedSecret, HostClaims, HostPattern, Reach, ReachError};
use a2g_sandbox::egress::EgressError;
use a2g_types::limit::Layer;
use a2g_types::outcome::{DenialReason, Receipt};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// The time between two looks whether a request that is being sent may go on.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The rules of now for the hosts of the requests of a run.
struct HostRules {
    /// Those of the agent's standing policy.
    policy: HostClaims,
    /// The hosts that this policy blocks, and those that were blocked for the run.
    blocked: Vec<HostPattern>,
    /// The operator's ceilings for the tool of the run.
    ceilings: Ceilings,
    /// The secrets that are bound to its agent and tool.
    secrets: Vec<GrantedSecret>,
}

impl ChangeSets {
    /// Checks that the hosts of all requests of a run are allowed now.
    ///
    /// # Errors
    /// The first that is not, as a clause.
    pub(super) fn check_hosts(&self, list: &HeldList, run: &Receipt) -> Result<(), String> {
        let rules = self.host_rules(run)?;
        for (number, stored) in (1..).zip(list.requests()) {
            self.check_host(&rules, stored).map_err(|reason| {
                format!("request {number} may not be sent: {reason}; discard them, or allow it again")
            })?;
        }
        Ok(())
    }

    fn host_rules(&self, run: &Receipt) -> Result<HostRules, String> {
        let used = run.outcome.usage.network_used.as_ref();
        let rules = used.map_or(&[][..], |used| used.blocked.as_slice());
        let patterns =
            rules.iter().map(|rule| HostPattern::parse(&rule.pattern)).collect::<Result<Vec<_>, _>>();
        let mut blocked =
            patterns.map_err(|error| format!("what was blocked for the run is not known: {error}"))?;
        let standing = self.policies.standing().hosts_for(&run.agent, &run.tool);
        let policy = standing.map_err(|error| error.to_string())?;
        blocked.extend(policy.blocked.iter().cloned());
        let ceilings = self.settings.ceilings.for_tool(&run.tool).into_owned();
        let secrets = self.secrets_of(run);
        Ok(HostRules { policy, blocked, ceilings, secrets })
    }

    /// The secrets that are bound to the agent and the tool of a run, of which the agent's standing policy may
    /// withhold some.
    fn secrets_of(&self, Receipt { agent, tool, .. }: &Receipt) -> Vec<GrantedSecret> {
        let policy = self.policies.standing().policy_of(agent);
        let named = policy.and_then(|policy| policy.tools.get(tool)?.secrets.clone());
        let bound = self.settings.ceilings.secrets.iter().filter(|binding| binding.is_for(agent, tool));
        let granted = bound.map(|binding| {
            let is_withheld = named.as_ref().is_some_and(|names| !names.contains(binding.name()));
            let withheld_by = is_withheld.then_some(Layer::StandingPolicy);
            GrantedSecret { binding: Arc::clone(binding), withheld_by }
        });
        granted.collect()
    }

    fn check_host(&self, rules: &HostRules, stored: &StoredRequest) -> Result<(), String> {
        if self.egress.is_none() {
            return Err("the operator allows no network now (`ceilings.network_allowed`)".to_owned());
        }
        let target = stored.request.target().map_err(|error| error.to_string())?;
        if !rules.policy.allows(&target) {
            return Err(
                "the standing policy of the agent does not allow its host now (`g2a/policy`)".to_owned()
            );
        }
        let reach = Reach::for_held_request(target.clone(), &rules.ceilings, rules.blocked.clone());
        let keys = match reach.check_pattern(&target) {
            Ok(()) => return check_secrets(rules, stored),
            Err(ReachError::NotAllowed(_) | ReachError::AddressNotAllowed(_)) => {
                "`network.allowed_domains`, or `network.tools` if that has the tool"
            }
            Err(ReachError::Blocked(_)) => "`network.blocked_domains`",
        };
        Err(format!("the operator does not allow its host now ({keys})"))
    }

    /// Sends the requests that a run has left and that were not sent before, until one gets no answer. `may_begin` is asked
    /// before each, and `may_go_on` while it is sent; their reasons are clauses. Returns the ends of all.
    pub(super) async fn send_requests(
        &self,
        list: &Arc<HeldList>,
        run: &Receipt,
        may_begin: &(impl Fn() -> Result<(), String> + Sync),
        may_go_on: &(impl Fn() -> Result<(), String> + Sync),
    ) -> Vec<RequestEnd> {
        let mut ends = read_ends(list).await;
        for ((number, stored), slot) in (1..).zip(list.requests()).zip(&mut ends) {
            match slot {
                RequestEnd::Sent { .. } => continue,
                RequestEnd::NotTried => {}
                RequestEnd::Failed { .. } | RequestEnd::Unknown { .. } => break,
            }
            *slot = match may_begin() {
                Ok(()) => self.send_request(list, number, stored, run, may_go_on).await,
                Err(reason) => RequestEnd::Failed { reason },
            };
            let end = slot.clone();
            let is_answered = matches!(end, RequestEnd::Sent { .. });
            if let Err(error) = in_background(list, move |list| list.note(number, Some(end))).await {
                tracing::error!(intent = %run.intent, number, %error, "the end of a request is only in the record of the commit");
            }
            if !is_answered {
                break;
            }
        }
        ends
    }

    async fn send_request(
        &self,
        list: &Arc<HeldList>,
        number: usize,
        stored: &StoredRequest,
        run: &Receipt,
        may_go_on: &(impl Fn() -> Result<(), String> + Sync),
    ) -> RequestEnd {
        let failed = |reason: String| RequestEnd::Failed { reason };
        let Some(egress) = &self.egress else {
            return failed("the operator allows no network now (`ceilings.network_allowed`)".to_owned());
        };
        let rules = self.host_rules(run).and_then(|rules| self.check_host(&rules, stored).map(|()| rules));
        let HostRules { policy: _, blocked, ceilings, secrets } = match rules {
            Ok(rules) => rules,
            Err(reason) => return failed(reason),
        };
        let begun = stored.clone();
        let read = in_background(list, move |list| {
            let body = list.read_body(&begun)?;
            list.note(number, None)?;
            Ok(body)
        });
        let body = match read.await {
            Ok(body) => body,
            Err(error) => return failed(format!("it cannot be read, or noted on the disk ({error})")),
        };
        let sending = egress.send_held(&run.agent, &ceilings, blocked, &secrets, &stored.request, body);
        match send_while(sending, may_go_on).await {
            Ok(Ok(status)) => RequestEnd::Sent { status },
            Ok(Err(error)) if error.may_have_arrived() => RequestEnd::Unknown { reason: error.to_string() },
            Ok(Err(error)) => failed(describe(error)),
            Err(reason) => RequestEnd::Unknown { reason },
        }
    }
}

/// Checks that a request would be sent with the secrets that were shown, and no others.
fn check_secrets(rules: &HostRules, stored: &StoredRequest) -> Result<(), String> {
    match stored.request.secrets_of(&rules.secrets) {
        Ok(secrets) if secrets == stored.request.secrets => Ok(()),
        Ok(_) => {
            Err("it would be sent with other secrets than were shown, as `[[secret]]` is now".to_owned())
        }
        Err(error) => Err(format!("it needs a secret that it does not get now ({error})")),
    }
}

/// The result of `sending`, unless `may_go_on` refuses meanwhile: then its connection is closed. The error is the reason.
async fn send_while<T>(
    sending: impl Future<Output = T>,
    may_go_on: &(impl Fn() -> Result<(), String> + Sync),
) -> Result<T, String> {
    let mut sending = pin!(sending);
    loop {
        tokio::select! {
            biased;
            sent = &mut sending => return Ok(sent),
            () = tokio::time::sleep(LOOK_INTERVAL) => may_go_on()?,
        }
    }
}

/// The ends of the requests of a run so far.
pub(super) async fn read_ends(list: &Arc<HeldList>) -> Vec<RequestEnd> {
    let read = in_background(list, |list| Ok(list.read_ends())).await;
    read.unwrap_or_else(|error| list.all_unknown(&error))
}

async fn in_background<T: Send + 'static>(
    list: &Arc<HeldList>,
    work: impl FnOnce(&HeldList) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let shared = Arc::clone(list);
    spawn_blocking(move || work(&shared)).await.map_err(io::Error::other)?
}

/// The reason why a request was not sent, with the key of the operator's rule about its address.
fn describe(error: EgressError) -> String {
    match error {
        EgressError::Denied(DenialReason::Address) => {
            "the operator does not allow its address now (`network.allowed_addresses`)".to_owned()
        }
        EgressError::Denied(DenialReason::DomainBlocked) => {
            "its address is blocked now (`network.blocked_domains`, or the standing policy of the agent)"
                .to_owned()
        }
        EgressError::Denied(_) | EgressError::Failed(_) => error.to_string(),
    }
}
