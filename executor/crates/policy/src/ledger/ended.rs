//! The end of a call, as it was measured.

use super::reach::{Folders, Hosts};
use a2g_types::ident::{AgentDid, IntentId, SecretName, ToolName};
use a2g_types::limit::Limit;
use a2g_types::outcome::{
    AbortReason, Contact, End, FileChanges, NetworkUsage, Receipt, SecretUse, ShownRequest, Status, Usage,
};

/// A call that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedCall<'a> {
    /// Its agent.
    pub agent: &'a AgentDid,
    /// Its intent.
    pub intent: IntentId,
    /// Its tool; `None` if a report does not name it: then it is that of the admitted call.
    pub tool: Option<&'a ToolName>,
    /// `true` if it ended with SUCCESS.
    pub is_success: bool,
    /// What it has done; `None` if nobody says so: then it has done all that it could.
    pub done: Option<Done>,
}

/// What a call has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Done {
    pub(super) folders: Folders,
    /// The number of requests to each set of hosts.
    pub(super) requests: Vec<(Hosts, u64)>,
    pub(super) secrets: Vec<(SecretName, u64)>,
    pub(super) written_bytes: u64,
}

impl Done {
    /// What a report names: the granted patterns of files and the blocked ones, the authorities of the contacted hosts with
    /// the numbers of requests, the uses of secrets, and the bytes written.
    #[must_use]
    pub fn new<'a>(
        granted: &'a [String],
        blocked: &'a [String],
        contacted: impl IntoIterator<Item = (&'a str, u64)>,
        secrets: impl IntoIterator<Item = (SecretName, u64)>,
        written_bytes: u64,
    ) -> Self {
        let contacted = contacted.into_iter();
        Self {
            folders: Folders::new(granted.iter().map(String::as_str), blocked.iter().map(String::as_str)),
            requests: contacted.map(|(host, count)| (Hosts::of_authority(host), count)).collect(),
            secrets: secrets.into_iter().collect(),
            written_bytes,
        }
    }

    /// What the run of a receipt has done. Of a run that nobody has measured to its end, all that it could do.
    fn of_receipt(receipt: &Receipt) -> Self {
        let Usage { filesystem, blocked, changes, budgets, spent, network_used, .. } = &receipt.outcome.usage;
        let end = &receipt.outcome.end;
        if matches!(end, End::NotStarted(_)) {
            return Self::default();
        }
        let is_lost = end.abort_reason() == Some(AbortReason::Lost);
        let network = network_used.as_ref();
        let mut requests = network.map(|network| sent_requests(network, is_lost)).unwrap_or_default();
        requests.extend(changes.iter().flat_map(held_requests));
        let uses = |network: &NetworkUsage, SecretUse { uses, .. }: &SecretUse| {
            u64::from(if is_lost { network.budgets.requests } else { *uses })
        };
        let secrets = network.into_iter().flat_map(|network| {
            network.secrets.iter().map(move |used| (used.name.clone(), uses(network, used)))
        });
        let measured = spent.and_then(|spent| spent.amount(Limit::Written));
        Self {
            folders: Folders::new(
                filesystem.iter().map(|area| area.pattern.as_str()),
                blocked.iter().map(|blocked| blocked.value.as_str()),
            ),
            requests,
            secrets: secrets.collect(),
            // Without a limit, there is no number that it could not have exceeded.
            written_bytes: measured.or_else(|| budgets.granted(Limit::Written)).unwrap_or(u64::MAX),
        }
    }
}

/// The requests of a run: to each host that is listed, and the others to all that it could reach.
fn sent_requests(network: &NetworkUsage, is_lost: bool) -> Vec<(Hosts, u64)> {
    let NetworkUsage { budgets, allowed, blocked, contacted, contacted_truncated, requests, .. } = network;
    let listed = |Contact { authority, requests, .. }: &Contact| {
        (Hosts::of_authority(authority), u64::from(*requests))
    };
    let mut sent = contacted.iter().map(listed).collect::<Vec<_>>();
    let listed_count = sent.iter().fold(0_u64, |total, (_, count)| total.saturating_add(*count));
    let others = if is_lost {
        u64::from(budgets.requests)
    } else if *contacted_truncated {
        u64::from(*requests).saturating_sub(listed_count).max(1)
    } else {
        0
    };
    if others > 0 {
        let allowed = allowed.iter().map(|rule| rule.pattern.as_str());
        let blocked = blocked.iter().map(|rule| rule.pattern.as_str());
        sent.push((Hosts::new(allowed, blocked), others));
    }
    sent
}

/// The requests that a commit sends. They count from the end of the run that has left them.
fn held_requests(changes: &FileChanges) -> impl Iterator<Item = (Hosts, u64)> {
    changes.requests.iter().map(|ShownRequest { url, .. }| (Hosts::of_authority(url), 1))
}

impl<'a> EndedCall<'a> {
    /// The end of the call of a receipt.
    pub(super) fn of_receipt(receipt: &'a Receipt) -> Self {
        Self {
            agent: &receipt.agent,
            intent: receipt.intent,
            tool: Some(&receipt.tool),
            is_success: is_success(receipt),
            done: Some(Done::of_receipt(receipt)),
        }
    }
}

/// `true` for a run whose changes, if it has any, are in force.
pub(super) fn is_success(receipt: &Receipt) -> bool {
    match receipt.outcome.end.status() {
        Status::Success => true,
        Status::Staged | Status::Failure | Status::Timeout | Status::Aborted => false,
    }
}
