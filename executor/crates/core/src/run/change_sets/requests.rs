//! The requests that a commit sends once its file changes are in force: each at most once, in their order.
//!
//! No grant outlasts its run, so the operator's ceilings of now decide. A host that was blocked for the run is blocked
//! here.

use super::ChangeSets;
use crate::run::effects::{HeldList, RequestEnd, StoredRequest};
use a2g_capability::HostPattern;
use a2g_sandbox::egress::EgressError;
use a2g_types::outcome::{DenialReason, Receipt};
use std::io;
use std::sync::Arc;
use tokio::task::spawn_blocking;

impl ChangeSets {
    /// Sends the requests that a run has left and that were not sent before, until one gets no answer. `may_send` is asked
    /// before each; its reason is a clause. Returns the ends of all.
    pub(super) async fn send_requests(
        &self,
        list: &Arc<HeldList>,
        run: &Receipt,
        may_send: impl Fn() -> Result<(), String> + Send,
    ) -> Vec<RequestEnd> {
        let mut ends = read_ends(list).await;
        for ((number, stored), slot) in (1..).zip(list.requests()).zip(&mut ends) {
            match slot {
                RequestEnd::Sent { .. } => continue,
                RequestEnd::NotSent => {}
                RequestEnd::Failed { .. } | RequestEnd::Unknown { .. } => break,
            }
            *slot = match may_send() {
                Ok(()) => self.send_request(list, number, stored, run).await,
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
    ) -> RequestEnd {
        let failed = |reason: String| RequestEnd::Failed { reason };
        let Some(egress) = &self.egress else {
            return failed("the operator allows no network now (`ceilings.network_allowed`)".to_owned());
        };
        let used = run.outcome.usage.network_used.as_ref();
        let rules = used.map_or(&[][..], |used| used.blocked.as_slice());
        let patterns = rules.iter().map(|rule| HostPattern::parse(&rule.pattern)).collect::<Result<_, _>>();
        let blocked = match patterns {
            Ok(blocked) => blocked,
            Err(error) => return failed(format!("what was blocked for the run is not known: {error}")),
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
        match egress.send_held(&run.agent, &self.settings.ceilings, blocked, &stored.request, body).await {
            Ok(status) => RequestEnd::Sent { status },
            Err(error) if error.may_have_arrived() => RequestEnd::Unknown { reason: error.to_string() },
            Err(error) => failed(describe(error)),
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

/// The reason why a request was not sent, with the key of the operator's rule.
fn describe(error: EgressError) -> String {
    let key = match error {
        EgressError::Denied(DenialReason::DomainNotAllowed | DenialReason::IpLiteral) => "allowed_domains",
        EgressError::Denied(DenialReason::DomainBlocked) => "blocked_domains",
        EgressError::Denied(DenialReason::Address) => "allowed_addresses",
        EgressError::Denied(_) | EgressError::Failed(_) => return error.to_string(),
    };
    format!("the operator does not allow its host now (`network.{key}`)")
}
