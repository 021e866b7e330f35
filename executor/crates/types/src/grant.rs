//! The description of a grant, for the people who approve a run and for the record of their approval. It carries no
//! authority.

use crate::ident::SecretName;
use crate::limit::{
    Access, Bound, ClaimedLimits, FileEffects, LIMITS, Layer, Limit, LimitMap, UNLIMITED, rows_set_by,
};
use crate::outcome::HostRule;
use crate::tool::CallTargets;
use crate::verdict::Manifest;

/// The limits of a run. Budgets that only the operator sets (`Budgets`, `NetworkBudgets`) are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantSummary {
    /// The amounts of [`approved_limits`].
    pub limits: LimitMap<Bound<u64>>,
    /// `true` if the run may use the network, with the layer that decided.
    pub network: Bound<bool>,
    /// The hosts that the run may reach.
    pub allowed_hosts: Vec<HostRule>,
    /// The hosts that the run may not reach, even if another pattern allows them.
    pub blocked_hosts: Vec<HostRule>,
    /// The only requests that the run may send; empty if it may send each one to its hosts.
    pub allowed_requests: Vec<Bound<String>>,
    /// Maximum number of requests per minute; `None` without a maximum.
    pub requests_per_minute: Option<Bound<u32>>,
    /// The granted file patterns, each with the layer that set it.
    pub areas: Vec<Bound<String>>,
    /// The patterns that are excluded from the granted ones.
    pub blocked_paths: Vec<Bound<String>>,
    /// The access to files, with the layer that set it.
    pub access: Bound<Access>,
    /// The time at which file changes take effect, with the layer that set it.
    pub effects: Bound<FileEffects>,
    /// The calls to other tools; `None` if the run may make none.
    pub calls: Option<CallSummary>,
    /// The secrets that are bound to the tool and the agent.
    pub secrets: Vec<SecretSummary>,
}

/// The use of a secret for which a run has the right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSummary {
    /// The name of the secret.
    pub name: SecretName,
    /// The place of a request where the value is set, such as `header:authorization`.
    pub place: String,
    /// The requests that get the value, and no others.
    pub requests: Vec<String>,
    /// Maximum number of requests of the run that get it.
    pub max_uses: u32,
    /// The layer that does not let the run use it; `None` if the run may.
    pub withheld_by: Option<Layer>,
}

/// The calls to other tools that a run may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSummary {
    /// The tools that each layer allows. The run may call the tools that all layers allow.
    pub targets: Vec<Bound<CallTargets>>,
    /// Maximum number of calls, with the layer that set it.
    pub max_calls: Bound<u32>,
    /// Maximum number of simultaneous calls, with the layer that set it.
    pub max_parallel: Bound<u32>,
    /// Maximum number of runs above a call.
    pub max_depth: u32,
}

impl CallSummary {
    fn callable_tools(&self) -> CallTargets {
        let targets = self.targets.iter().map(|targets| targets.value.clone());
        // If no layer allows a tool, every call is refused.
        targets.reduce(CallTargets::intersection).unwrap_or_default()
    }

    fn is_within(&self, shown: &Self) -> bool {
        let Self { targets: _, max_calls, max_parallel, max_depth } = self;
        max_calls.value <= shown.max_calls.value
            && max_parallel.value <= shown.max_parallel.value
            && *max_depth <= shown.max_depth
            && self.callable_tools().is_within(&shown.callable_tools())
    }
}

/// The granted amounts of the limits that a person approves. Each other limit has the amount 0.
#[must_use]
pub fn approved_limits(granted: impl Fn(Limit) -> Bound<u64>) -> LimitMap<Bound<u64>> {
    let mut limits = LimitMap::from_fn(|_| Bound { value: 0, layer: Layer::Executor });
    LIMITS.iter().filter(|row| row.is_approved()).for_each(|row| limits[row.limit] = granted(row.limit));
    limits
}

impl GrantSummary {
    /// The manifest with these limits. A manifest has no hosts, output, calls and other limits.
    #[must_use]
    pub fn to_manifest(&self, verdict: &Manifest) -> Manifest {
        let network_allowed = Some(self.network.value);
        let filesystem_scope = self.to_scope(verdict);
        self.complete(&Manifest { limits: ClaimedLimits::default(), network_allowed, filesystem_scope })
    }

    /// The counted amount of a limit; `None` if it is not counted.
    #[must_use]
    pub fn amount(&self, limit: Limit) -> Option<u64> {
        Some(self.limits[limit].value).filter(|amount| *amount != UNLIMITED)
    }

    /// The patterns of `verdict` that are granted, if they are all that is granted. Otherwise all of `verdict`: the text
    /// of an intersection of patterns is not a pattern, and the grant of the run is compared with this one anyway.
    #[must_use]
    pub fn to_scope(&self, verdict: &Manifest) -> Vec<String> {
        let is_granted = |pattern: &&String| self.areas.iter().any(|area| area.value == **pattern);
        let granted = verdict.filesystem_scope.iter().filter(is_granted).cloned().collect::<Vec<_>>();
        let are_all = self.areas.iter().all(|area| granted.contains(&area.value));
        if are_all { granted } else { verdict.filesystem_scope.clone() }
    }

    /// `true` if `manifest` names every limit, and none of them is wider than here. Its scope is that of `verdict`, or
    /// has only patterns that are granted here.
    #[must_use]
    pub fn includes(&self, manifest: &Manifest, verdict: &Manifest) -> bool {
        let Manifest { limits, network_allowed, filesystem_scope } = manifest;
        // A limit that the manifest does not name is not counted.
        let is_within = |limit: Limit| limits[limit].unwrap_or(UNLIMITED) <= self.limits[limit].value;
        rows_set_by(Layer::Verdict).all(|row| is_within(row.limit))
            && network_allowed.is_some_and(|network| network <= self.network.value)
            && (*filesystem_scope == verdict.filesystem_scope
                || filesystem_scope
                    .iter()
                    .all(|pattern| self.areas.iter().any(|area| area.value == *pattern)))
    }

    /// A copy of `manifest`, with the limits of this grant in place of absent ones.
    #[must_use]
    pub fn complete(&self, manifest: &Manifest) -> Manifest {
        Manifest {
            limits: rows_set_by(Layer::Verdict)
                .filter_map(|row| Some((row.limit, manifest.limits[row.limit].or(self.amount(row.limit))?)))
                .collect(),
            network_allowed: Some(manifest.network_allowed.unwrap_or(false)),
            filesystem_scope: manifest.filesystem_scope.clone(),
        }
    }

    /// `true` if this grants nothing beyond `shown`. Patterns are compared as text.
    #[must_use]
    pub fn is_within(&self, shown: &Self) -> bool {
        fn has<T: PartialEq>(all: &[Bound<T>], one: &Bound<T>) -> bool {
            all.iter().any(|other| other.value == one.value)
        }
        fn has_host(all: &[HostRule], one: &HostRule) -> bool {
            all.iter().any(|other| other.pattern == one.pattern)
        }
        let Self {
            limits,
            network,
            allowed_hosts,
            blocked_hosts,
            allowed_requests,
            requests_per_minute,
            areas,
            blocked_paths,
            access,
            effects,
            calls,
            secrets,
        } = self;
        let is_shown = |request: &Bound<String>| {
            shown.allowed_requests.is_empty() || shown.allowed_requests.contains(request)
        };
        // A list that is gone allowed less than every request.
        let is_list_left =
            |request: &Bound<String>| allowed_requests.iter().any(|one| one.layer == request.layer);
        let is_rate_within =
            |shown: Bound<u32>| requests_per_minute.is_some_and(|rate| rate.value <= shown.value);
        Limit::ALL.iter().all(|limit| limits[*limit].value <= shown.limits[*limit].value)
            && network.value <= shown.network.value
            && access.value <= shown.access.value
            // A later one is narrower.
            && effects.value >= shown.effects.value
            && allowed_hosts.iter().all(|rule| has_host(&shown.allowed_hosts, rule))
            && shown.blocked_hosts.iter().all(|rule| has_host(blocked_hosts, rule))
            && allowed_requests.iter().all(is_shown)
            && shown.allowed_requests.iter().all(is_list_left)
            && shown.requests_per_minute.is_none_or(is_rate_within)
            && areas.iter().all(|area| has(&shown.areas, area))
            && shown.blocked_paths.iter().all(|path| has(blocked_paths, path))
            && secrets.iter().all(|one| one.withheld_by.is_some() || shown.secrets.contains(one))
            && calls
                .as_ref()
                .is_none_or(|calls| shown.calls.as_ref().is_some_and(|shown| calls.is_within(shown)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};

    fn bound<T>(value: T) -> Bound<T> {
        Bound { value, layer: Layer::Verdict }
    }

    fn targets(names: &[&str]) -> Bound<CallTargets> {
        bound(CallTargets::parse(names).unwrap())
    }

    fn calls(shown: &mut GrantSummary) -> &mut CallSummary {
        shown.calls.as_mut().unwrap()
    }

    fn summary() -> GrantSummary {
        let rule = |pattern: &str| HostRule { pattern: pattern.to_owned(), set_by: Layer::Verdict };
        GrantSummary {
            limits: approved_limits(|_| bound(0))
                .with(bound(MemoryLimit::from_mb(2).unwrap()))
                .with(bound(CpuPercent::new(50).unwrap()))
                .with(bound(Timeout::from_seconds(2).unwrap()))
                .with(bound(OutputLimit::from_bytes(2048).unwrap())),
            network: bound(false),
            allowed_hosts: vec![rule("a.example")],
            blocked_hosts: vec![rule("b.example")],
            allowed_requests: vec![bound("GET https://a.example/x".to_owned())],
            requests_per_minute: Some(bound(10)),
            areas: vec![bound("/a/**".to_owned())],
            blocked_paths: vec![bound("/a/x".to_owned())],
            access: bound(Access::ReadOnly),
            effects: bound(FileEffects::Staged),
            calls: Some(CallSummary {
                targets: vec![targets(&["read_file"]), targets(&["*"])],
                max_calls: bound(2),
                max_parallel: bound(2),
                max_depth: 1,
            }),
            secrets: vec![
                secret("github"),
                SecretSummary { withheld_by: Some(Layer::Tool), ..secret("other") },
            ],
        }
    }

    fn secret(name: &str) -> SecretSummary {
        SecretSummary {
            name: SecretName::parse(name).unwrap(),
            place: "header:authorization".to_owned(),
            requests: vec!["GET https://a.example/x".to_owned()],
            max_uses: 10,
            withheld_by: None,
        }
    }

    #[test]
    fn a_grant_that_is_wider_in_any_limit_is_not_within_what_was_shown() {
        let shown = summary();
        assert!(shown.is_within(&shown));
        let wider: [fn(&mut GrantSummary); 20] = [
            |wider| wider.limits[Limit::Memory].value += 1,
            |wider| wider.limits[Limit::Cpu].value += 1,
            |wider| wider.limits[Limit::Time].value += 1,
            |wider| wider.limits[Limit::Output].value += 1,
            |wider| wider.network.value = true,
            |wider| wider.blocked_hosts.clear(),
            |wider| wider.allowed_requests.clear(),
            |wider| wider.secrets.push(secret("third")),
            |wider| wider.secrets[1].withheld_by = None,
            |wider| wider.allowed_requests.push(bound("GET https://a.example/y".to_owned())),
            |wider| wider.requests_per_minute = Some(bound(11)),
            |wider| wider.requests_per_minute = None,
            |wider| wider.blocked_paths.clear(),
            |wider| wider.access.value = Access::ReadWrite,
            |wider| wider.effects.value = FileEffects::Direct,
            |wider| wider.effects.value = FileEffects::Atomic,
            |wider| calls(wider).max_calls = bound(3),
            |wider| calls(wider).max_parallel = bound(3),
            |wider| calls(wider).max_depth = 2,
            |wider| calls(wider).targets = vec![targets(&["*"])],
        ];
        let different: [fn(&mut GrantSummary); 6] = [
            |other| calls(other).targets = vec![targets(&["write_file"])],
            |other| other.allowed_hosts[0].pattern = "*".to_owned(),
            |other| other.allowed_requests[0].value = "GET https://a.example/*".to_owned(),
            |other| other.allowed_requests[0].layer = Layer::Tool,
            |other| other.areas[0].value = "/**".to_owned(),
            // A secret is shown whole.
            |other| other.secrets[0].max_uses += 1,
        ];
        for (index, change) in wider.iter().chain(&different).enumerate() {
            let mut changed = summary();
            change(&mut changed);
            assert!(!changed.is_within(&shown), "{index}");
            assert_eq!(shown.is_within(&changed), index < wider.len(), "{index}");
        }
        let none = GrantSummary { calls: None, allowed_hosts: Vec::new(), areas: Vec::new(), ..summary() };
        assert!(none.is_within(&shown) && !shown.is_within(&none));
    }

    #[test]
    fn an_approval_names_no_pattern_that_is_not_granted() {
        let verdict = |scope: &[&str]| Manifest {
            filesystem_scope: scope.iter().map(|pattern| (*pattern).to_owned()).collect(),
            ..Manifest::default()
        };
        for (scope, expected) in [
            (&["/a/**", "/tmp/**"][..], &["/a/**"][..]),
            (&["/a/**"], &["/a/**"]),
            // The granted pattern is an intersection.
            (&["/**", "/tmp/**"], &["/**", "/tmp/**"]),
        ] {
            let manifest = summary().to_manifest(&verdict(scope));
            assert_eq!(manifest.filesystem_scope, expected);
            assert!(summary().includes(&manifest, &verdict(scope)), "{scope:?}");
        }
    }

    // Each layer has a list, and the run may call the tools that are in all lists.
    #[test]
    fn the_tools_that_a_run_may_call_are_compared_and_not_the_lists() {
        let grant = |lists: &[&[&str]]| {
            let mut grant = summary();
            calls(&mut grant).targets = lists.iter().map(|names| targets(names)).collect();
            grant
        };
        let is_within = |now: &[&[&str]], shown: &[&[&str]]| grant(now).is_within(&grant(shown));
        assert!(is_within(&[&["a", "b"], &["b", "c"]], &[&["b"]]));
        assert!(is_within(&[&["b"]], &[&["a", "b"], &["b", "c"]]));
        assert!(!is_within(&[&["a", "b"]], &[&["a", "b"], &["b", "c"]]));
        assert!(!is_within(&[&["*"]], &[&["*"], &["b"]]));
        assert!(is_within(&[&["*"], &["b"]], &[&["*"]]));
        assert!(is_within(&[&["*"]], &[&["*"], &["*"]]));
        // A list without layers allows nothing.
        assert!(is_within(&[], &[&["b"]]) && !is_within(&[&["b"]], &[]));
    }
}
