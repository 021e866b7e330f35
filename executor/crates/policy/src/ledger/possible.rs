//! What an admitted call may do, as its verdict says.

use super::reach::{Folders, Hosts};
use a2g_types::ident::SecretName;
use a2g_types::limit::Limit;
use a2g_types::verdict::Verdict;
use std::collections::BTreeSet;

/// All that a call may do until its end says what it has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Possible {
    pub(super) folders: Folders,
    pub(super) hosts: Hosts,
    /// `None`: any secret of its tool.
    pub(super) secrets: Option<BTreeSet<SecretName>>,
    pub(super) max_requests: u64,
    /// 0 if the verdict sets no limit on it.
    pub(super) max_written_bytes: u64,
}

impl Possible {
    /// What a verdict allows: its files, without those that its conditions block, and the hosts and secrets that its
    /// conditions name. Without such names, it is all of them. `max_requests` is the number of requests that a run may send.
    ///
    /// A condition that this does not know narrows nothing here.
    #[must_use]
    pub fn of_verdict(verdict: &Verdict, max_requests: u64) -> Self {
        let manifest = &verdict.manifest;
        let conditions = &verdict.conditions;
        let named = |name: &'static str| {
            conditions.iter().filter_map(move |condition| condition.strip_prefix(name)?.strip_prefix(':'))
        };
        let is_set = |name: &str| conditions.iter().any(|condition| condition == name);
        let granted = manifest.filesystem_scope.iter().map(String::as_str);
        let has_network = manifest.network_allowed == Some(true) && !is_set("no_network");
        let hosts = if !has_network {
            Hosts::default()
        } else if named("host").next().is_none() {
            Hosts::every()
        } else {
            Hosts::new(named("host"), named("blocked_host"))
        };
        let secrets = named("secrets").map(SecretName::parse).collect::<Result<BTreeSet<_>, _>>().ok();
        let secrets = secrets.filter(|names| !names.is_empty() || is_set("no_secrets"));
        Self {
            folders: Folders::new(granted, named("blocked_path")),
            hosts,
            secrets: if has_network { secrets } else { Some(BTreeSet::new()) },
            max_requests: if has_network { max_requests } else { 0 },
            max_written_bytes: manifest.limits[Limit::Written].unwrap_or(0),
        }
    }

    pub(super) fn may_use(&self, secret: &str) -> bool {
        self.secrets.as_ref().is_none_or(|names| names.iter().any(|name| name.as_str() == secret))
    }
}
