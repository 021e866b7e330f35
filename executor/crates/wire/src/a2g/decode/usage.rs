//! The use of files, hosts and secrets in a report, as [`encode::report`](super::super::encode::report) writes it: for a
//! governor that counts it.

use a2g_types::ident::SecretName;
use a2g_types::quantity::BYTES_PER_MB;
use serde::Deserialize;

/// What a run has used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportUsage {
    /// The granted patterns of files.
    pub granted: Vec<String>,
    /// The patterns that were blocked in them.
    pub blocked: Vec<String>,
    /// The authorities of the hosts that were contacted, or that a commit contacts, with the number of requests.
    pub contacted: Vec<(String, u64)>,
    /// The secrets, with the number of requests that were sent with each.
    pub secrets: Vec<(SecretName, u64)>,
    /// Bytes written to files, rounded up to whole MB.
    pub written_bytes: u64,
}

#[derive(Deserialize)]
struct Report {
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    limits: Limits,
    #[serde(default)]
    contacted: Vec<Contact>,
    #[serde(default)]
    contacted_truncated: bool,
    #[serde(default)]
    secrets: Vec<SecretUse>,
    effects: Option<Effects>,
}

#[derive(Deserialize)]
struct Limits {
    filesystem_scope: Filesystem,
    max_written_mb: Written,
}

#[derive(Deserialize)]
struct Filesystem {
    granted: Vec<String>,
    #[serde(default)]
    blocked: Vec<Pattern>,
}

#[derive(Deserialize)]
struct Pattern {
    pattern: String,
}

#[derive(Deserialize)]
struct Written {
    used: u64,
}

#[derive(Deserialize)]
struct Contact {
    authority: String,
    requests: u64,
}

#[derive(Deserialize)]
struct SecretUse {
    name: SecretName,
    uses: u64,
}

#[derive(Deserialize)]
struct Effects {
    #[serde(default)]
    requests: Vec<HeldRequest>,
}

#[derive(Deserialize)]
struct HeldRequest {
    url: String,
}

/// The use in the params of `a2g/report`; `None` for a report that does not name all of it: of another executor, of a run
/// that was not measured to its end, or with more hosts than it lists.
#[must_use]
pub fn report_usage(params: &str) -> Option<ReportUsage> {
    let Report { usage } = serde_json::from_str(params).ok()?;
    let Usage { limits, contacted, contacted_truncated, secrets, effects } = usage;
    if contacted_truncated {
        return None;
    }
    let contacted = contacted.into_iter().map(|Contact { authority, requests }| (authority, requests));
    let held = effects.into_iter().flat_map(|effects| effects.requests).map(|held| (held.url, 1));
    let Limits { filesystem_scope: Filesystem { granted, blocked }, max_written_mb } = limits;
    Some(ReportUsage {
        granted,
        blocked: blocked.into_iter().map(|blocked| blocked.pattern).collect(),
        contacted: contacted.chain(held).collect(),
        secrets: secrets.into_iter().map(|SecretUse { name, uses }| (name, uses)).collect(),
        written_bytes: max_written_mb.used.saturating_mul(BYTES_PER_MB),
    })
}
