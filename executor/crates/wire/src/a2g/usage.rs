//! The `usage` of a report: every effective limit, its used amount, the unused rest (`slack`), and the layer that set
//! it. Every number comes from the executor or the kernel.

use super::message;
use super::schema::{UpTo, WireName};
use a2g_types::limit::{Bound, FileEffects, Layer};
use a2g_types::outcome::{
    ChangeCounts, ChangedRange, Contact, Denial, FileChanges, GrantedArea, HostRule, NetworkUsage,
    RunMetrics, SecretUse, ShownChange, ShownRequest, Usage,
};
use a2g_types::quantity::{BYTES_PER_MB, CpuPercent, Timeout};
use std::num::NonZeroU32;
use std::time::Duration;

/// The serialised form of the usage.
pub(super) fn usage_message<'a>(usage: &'a Usage, metrics: &RunMetrics) -> message::UsageMessage<'a> {
    let Usage {
        memory,
        cpu,
        timeout,
        output,
        filesystem,
        blocked,
        missing_roots,
        filesystem_emptied_by,
        effects,
        changes,
        budgets,
        spent,
        network,
        network_used,
        denied,
        denied_truncated,
        // The error's message has it.
        start_memory_bytes: _,
    } = usage;
    message::UsageMessage {
        limits: message::LimitsMessage {
            max_memory_mb: integer_amount(*memory, memory.value.mb(), metrics.memory_used_mb()),
            max_cpu_percent: cpu_amount(*cpu, metrics.cpu_percent()),
            timeout_seconds: time_amount(*timeout, metrics.wall),
            max_output_bytes: integer_amount(*output, output.value.bytes(), metrics.output_bytes),
            budgets: message::BudgetRows { budgets: *budgets, spent: *spent },
            network_allowed: network_message(*network, network_used.is_some()),
            network: network_used.as_ref().map(network_limits),
            filesystem_scope: filesystem_message(filesystem, blocked, missing_roots, *filesystem_emptied_by),
        },
        contacted: network_used.as_ref().map(|used| used.contacted.iter().map(contact).collect()),
        contacted_truncated: network_used.as_ref().map(|used| used.contacted_truncated),
        secrets: network_used.iter().flat_map(|used| &used.secrets).map(secret_use).collect(),
        remote_server: network_used.as_ref().and_then(|used| used.remote_server.as_deref()),
        denied: denied.iter().map(denial).collect(),
        denied_truncated: *denied_truncated,
        effects: effects_message(*effects, changes.as_ref()),
        process: process_usage(metrics),
    }
}

/// The time of the file changes, and what took effect or waits; `None` if each took effect when the run made it.
fn effects_message(
    Bound { value, layer }: Bound<FileEffects>,
    changes: Option<&FileChanges>,
) -> Option<message::EffectsMessage<'_>> {
    let mode = value.unless_direct()?;
    Some(message::EffectsMessage {
        mode: WireName(mode),
        set_by: WireName(layer),
        changes: changes.map(|changes| changes.count),
        digest: changes.map(|changes| changes.digest.to_string()),
        listed: changes.map(|changes| listed_changes(mode, changes)).unwrap_or_default(),
    })
}

/// The list of changes; empty for those that nobody decides on.
pub(super) fn listed_changes(mode: FileEffects, changes: &FileChanges) -> message::ListedChanges<'_> {
    match mode {
        FileEffects::Direct | FileEffects::Atomic => message::ListedChanges::default(),
        FileEffects::Staged => message::ListedChanges {
            counts: changes.counts.map(change_counts),
            files: changes.shown.iter().map(file_change).collect(),
            left_out: Some(changes.left_out()).filter(|left_out| *left_out > 0),
            requests: changes.requests.iter().map(held_request).collect(),
        },
    }
}

fn held_request(request: &ShownRequest) -> message::RequestMessage<'_> {
    let ShownRequest { method, url, fields, body_bytes, body_digest, body } = request;
    message::RequestMessage {
        method,
        url,
        fields,
        bytes: *body_bytes,
        sha256: body_digest.to_string(),
        body: body.as_deref(),
    }
}

fn change_counts(counts: ChangeCounts) -> message::ChangeCountsMessage {
    let ChangeCounts { deleted, renamed, emptied, changed, attributes, created } = counts;
    message::ChangeCountsMessage { deleted, renamed, emptied, changed, attributes, created }
}

fn file_change(change: &ShownChange) -> message::FileChangeMessage<'_> {
    let ShownChange {
        kind,
        entry,
        path,
        from,
        bytes_before,
        bytes_after,
        mode_before,
        mode_after,
        target,
        diff,
        ranges,
        is_diff_cut,
    } = change;
    message::FileChangeMessage {
        change: WireName(*kind),
        entry: WireName(*entry),
        path,
        from: from.as_deref(),
        bytes_before: *bytes_before,
        bytes_after: *bytes_after,
        mode_before: *mode_before,
        mode_after: *mode_after,
        target: target.as_deref(),
        diff: diff.as_deref(),
        ranges: ranges.iter().map(changed_range).collect(),
        diff_cut: *is_diff_cut,
    }
}

fn changed_range(range: &ChangedRange) -> message::RangeMessage {
    let ChangedRange { start, old_bytes, new_bytes } = *range;
    message::RangeMessage { start, old_bytes, new_bytes }
}

fn process_usage(metrics: &RunMetrics) -> Option<message::ProcessUsage> {
    let peak_resident_mb = metrics.peak_resident_bytes.map(|bytes| bytes.div_ceil(BYTES_PER_MB));
    let earlier_runs = NonZeroU32::new(metrics.earlier_runs);
    let had_process = peak_resident_mb.is_some() || earlier_runs.is_some();
    had_process.then_some(message::ProcessUsage { peak_resident_mb, earlier_runs })
}

/// An amount of network use, which the server itself counts.
fn network_amount<const MAX: u64>(granted: u64, used: u64) -> message::Amount<UpTo<MAX>, u64> {
    let slack = granted.saturating_sub(used);
    message::Amount { granted: UpTo(granted), used, slack, set_by: WireName(Layer::Executor) }
}

fn integer_amount<T>(
    Bound { value: granted, layer }: Bound<T>,
    granted_units: u64,
    used: u64,
) -> message::Amount<T, u64> {
    message::Amount { granted, used, slack: granted_units.saturating_sub(used), set_by: WireName(layer) }
}

fn cpu_amount(cpu: Bound<CpuPercent>, used: f64) -> message::Amount<CpuPercent, f64> {
    let Bound { value: granted, layer } = cpu;
    let slack = (f64::from(granted.get()) - used).max(0.0);
    message::Amount { granted, used, slack: round_to(slack, 10.0), set_by: WireName(layer) }
}

/// Seconds, rounded to milliseconds.
fn time_amount(timeout: Bound<Timeout>, used: Duration) -> message::Amount<Timeout, f64> {
    let Bound { value: granted, layer } = timeout;
    let seconds = |duration: Duration| round_to(duration.as_secs_f64(), 1000.0);
    let slack = seconds(granted.duration().saturating_sub(used));
    message::Amount { granted, used: seconds(used), slack, set_by: WireName(layer) }
}

fn round_to(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}

fn network_message(network: Bound<bool>, had_session: bool) -> message::NetworkGrant {
    let Bound { value: granted, layer } = network;
    message::NetworkGrant { granted, linked: had_session, set_by: WireName(layer) }
}

fn network_limits(used: &NetworkUsage) -> message::NetworkLimits<'_> {
    let NetworkUsage {
        budgets,
        allowed,
        blocked,
        allowed_requests,
        requests_per_minute,
        requests,
        connections,
        sent_bytes,
        received_bytes,
        contacted: _,
        contacted_truncated: _,
        secrets: _,
        remote_server: _,
    } = used;
    message::NetworkLimits {
        allowed_domains: allowed.iter().map(host_rule).collect(),
        blocked_domains: blocked.iter().map(host_rule).collect(),
        allowed_requests: allowed_requests.iter().map(set_pattern).collect(),
        max_requests: network_amount(budgets.requests.into(), (*requests).into()),
        max_connections: network_amount(budgets.connections.into(), (*connections).into()),
        max_sent_bytes: network_amount(budgets.sent_bytes, *sent_bytes),
        max_received_bytes: network_amount(budgets.received_bytes, *received_bytes),
        max_requests_per_minute: requests_per_minute
            .map(|Bound { value, layer }| message::Rate { granted: value, set_by: WireName(layer) }),
        held_requests: (budgets.held_requests > 0)
            .then_some(message::Rate { granted: budgets.held_requests, set_by: WireName(Layer::Executor) }),
    }
}

fn host_rule(rule: &HostRule) -> message::SetPattern<'_> {
    let HostRule { pattern, set_by } = rule;
    message::SetPattern { pattern, set_by: WireName(*set_by) }
}

fn set_pattern(Bound { value, layer }: &Bound<String>) -> message::SetPattern<'_> {
    message::SetPattern { pattern: value, set_by: WireName(*layer) }
}

fn secret_use(used: &SecretUse) -> message::SecretUseMessage<'_> {
    let SecretUse { name, versions, uses, without, kept_cookies, redacted, placeholders } = used;
    message::SecretUseMessage {
        name: name.as_str(),
        versions,
        uses: *uses,
        without: *without,
        kept_cookies: *kept_cookies,
        redacted: (*redacted > 0).then_some(*redacted),
        placeholders: (*placeholders > 0).then_some(*placeholders),
    }
}

fn contact(contact: &Contact) -> message::ContactMessage<'_> {
    let Contact { authority, address, requests, sent_bytes, received_bytes } = contact;
    message::ContactMessage {
        authority,
        address: address.to_string(),
        requests: *requests,
        sent_bytes: *sent_bytes,
        received_bytes: *received_bytes,
    }
}

fn filesystem_message<'a>(
    areas: &'a [GrantedArea],
    blocked: &'a [Bound<String>],
    missing_roots: &'a [String],
    emptied_by: Option<Layer>,
) -> message::Filesystem<'a> {
    message::Filesystem {
        granted: areas.iter().map(|area| &*area.pattern).collect(),
        trees: areas.iter().map(tree).collect(),
        blocked: blocked.iter().map(set_pattern).collect(),
        missing_roots: missing_roots.iter().map(String::as_str).collect(),
        set_by: emptied_by.filter(|_| areas.is_empty()).map(WireName),
    }
}

fn tree(area: &GrantedArea) -> message::GrantedTree<'_> {
    let GrantedArea { path, pattern, access, set_by } = area;
    message::GrantedTree {
        path,
        pattern,
        access: WireName(access.value),
        access_set_by: WireName(access.layer),
        set_by: WireName(*set_by),
    }
}

fn denial(denial: &Denial) -> message::DenialMessage<'_> {
    let Denial { what, reason, set_by: _, count } = denial;
    message::DenialMessage { what, reason: WireName(*reason), count: *count }
}
