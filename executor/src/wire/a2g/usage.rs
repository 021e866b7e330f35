//! The `usage` of a report: every limit that was in force, what was used of it, what was left and
//! which layer set it. Every number comes from the executor or the kernel.

use super::message;
use crate::limit::{Bound, Layer};
use crate::outcome::{Contact, Denial, GrantedArea, HostRule, Metrics, NetworkUsage, Usage};
use crate::quantity::{BYTES_PER_MB, Timeout};
use std::time::Duration;

/// The usage as it is written.
pub(super) fn message<'a>(usage: &'a Usage, metrics: &Metrics) -> message::Usage<'a> {
    let Usage {
        memory,
        cpu,
        timeout,
        output,
        filesystem,
        blocked,
        filesystem_emptied_by,
        budgets,
        spent,
        network,
        network_used,
        denied,
        denied_truncated,
    } = usage;
    message::Usage {
        limits: message::Limits {
            max_memory_mb: whole(*memory, memory.value.mb(), metrics.memory_used_mb()),
            max_cpu_percent: cpu_amount(cpu.value.get(), cpu.layer, metrics.cpu_percent()),
            timeout_seconds: time_amount(*timeout, metrics.wall),
            max_output_bytes: whole(*output, output.value.bytes(), metrics.output_bytes),
            max_written_mb: budget(
                budgets.written.mb(),
                spent.map(|s| s.written_bytes.div_ceil(BYTES_PER_MB)),
            ),
            max_created: budget(budgets.created, spent.map(|s| s.created)),
            max_random_bytes: budget(budgets.random_bytes, spent.map(|s| s.random_bytes)),
            max_directory_entries: budget(budgets.directory_entries, spent.map(|s| s.directory_entries)),
            max_fuel: budgets.fuel.map(|fuel| budget(fuel, spent.and_then(|s| s.fuel))),
            max_handles: at_once(budgets.handles),
            max_subscriptions: at_once(budgets.subscriptions),
            network_allowed: network_message(*network, network_used.is_some()),
            network: network_used.as_ref().map(network_limits),
            filesystem_scope: filesystem_message(filesystem, blocked, *filesystem_emptied_by),
        },
        contacted: network_used.as_ref().map(|used| used.contacted.iter().map(contact).collect()),
        contacted_truncated: network_used.as_ref().map(|used| used.contacted_truncated),
        denied: denied.iter().map(denial).collect(),
        denied_truncated: *denied_truncated,
        process: metrics
            .peak_resident_bytes
            .map(|bytes| message::Process { peak_resident_mb: bytes.div_ceil(BYTES_PER_MB) }),
    }
}

fn budget(granted: u64, used: Option<u64>) -> message::Amount<u64, Option<u64>> {
    let slack = used.map(|used| granted.saturating_sub(used));
    message::Amount { granted, used, slack, set_by: Layer::Executor.as_str() }
}

fn at_once(granted: u64) -> message::AtOnce {
    message::AtOnce { granted, set_by: Layer::Executor.as_str() }
}

fn whole<T>(bound: Bound<T>, granted: u64, used: u64) -> message::Amount<u64, u64> {
    message::Amount { granted, used, slack: granted.saturating_sub(used), set_by: bound.layer.as_str() }
}

fn cpu_amount(granted: u32, layer: Layer, used: f64) -> message::Amount<u32, f64> {
    let slack = (f64::from(granted) - used).max(0.0);
    message::Amount { granted, used, slack: rounded(slack, 10.0), set_by: layer.as_str() }
}

/// Seconds to the millisecond.
fn time_amount(timeout: Bound<Timeout>, used: Duration) -> message::Amount<Timeout, f64> {
    let Bound { value: granted, layer } = timeout;
    let seconds = |duration: Duration| rounded(duration.as_secs_f64(), 1000.0);
    let slack = seconds(granted.duration().saturating_sub(used));
    message::Amount { granted, used: seconds(used), slack, set_by: layer.as_str() }
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

fn network_message(network: Bound<bool>, linked: bool) -> message::Network {
    let Bound { value: granted, layer } = network;
    message::Network { granted, linked, set_by: layer.as_str() }
}

fn network_limits(used: &NetworkUsage) -> message::NetworkLimits<'_> {
    let NetworkUsage {
        budgets,
        allowed,
        blocked,
        requests_per_minute,
        requests,
        connections,
        sent_bytes,
        received_bytes,
        contacted: _,
        contacted_truncated: _,
    } = used;
    let own = |granted: u64, used: u64| message::Amount {
        granted,
        used,
        slack: granted.saturating_sub(used),
        set_by: Layer::Executor.as_str(),
    };
    message::NetworkLimits {
        allowed_domains: allowed.iter().map(host_rule).collect(),
        blocked_domains: blocked.iter().map(host_rule).collect(),
        max_requests: own(budgets.requests.into(), (*requests).into()),
        max_connections: own(budgets.connections.into(), (*connections).into()),
        max_sent_bytes: own(budgets.sent_bytes, *sent_bytes),
        max_received_bytes: own(budgets.received_bytes, *received_bytes),
        max_requests_per_minute: requests_per_minute
            .map(|Bound { value, layer }| message::Rate { granted: value, set_by: layer.as_str() }),
    }
}

fn host_rule(rule: &HostRule) -> message::HostRule<'_> {
    let HostRule { pattern, set_by } = rule;
    message::HostRule { pattern, set_by: set_by.as_str() }
}

fn contact(contact: &Contact) -> message::Contact<'_> {
    let Contact { authority, address, requests, sent_bytes, received_bytes } = contact;
    message::Contact {
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
    emptied_by: Option<Layer>,
) -> message::Filesystem<'a> {
    let taken_out = |Bound { value, layer }: &'a Bound<String>| message::Blocked {
        pattern: value,
        set_by: layer.as_str(),
    };
    message::Filesystem {
        granted: areas.iter().map(|area| &*area.pattern).collect(),
        trees: areas.iter().map(tree).collect(),
        blocked: blocked.iter().map(taken_out).collect(),
        set_by: emptied_by.filter(|_| areas.is_empty()).map(Layer::as_str),
    }
}

fn tree(area: &GrantedArea) -> message::Tree<'_> {
    let GrantedArea { path, pattern, access, set_by } = area;
    message::Tree {
        path,
        pattern,
        access: access.value.as_str(),
        access_set_by: access.layer.as_str(),
        set_by: set_by.as_str(),
    }
}

fn denial(denial: &Denial) -> message::Denied<'_> {
    let Denial { what, reason, count } = denial;
    message::Denied { what, reason: reason.as_str(), count: *count }
}
