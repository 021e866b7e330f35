//! The section `[executor]`: how many runs there are at once, and what protects the server from them.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::machine::{default_concurrent, default_waiting};
use super::values::{check_count, check_max, check_seconds, check_size, parse_tool_names, to_usize};
use a2g_capability::Ceilings;
use a2g_core::run::Capacity;
use a2g_isolate::{Isolation, ProcessLifetime, ReuseLimits};
use a2g_sandbox::Sandbox;
use a2g_types::ident::ToolName;
use a2g_types::limit::Limit;
use std::collections::BTreeSet;
use std::time::Duration;

/// The default of `executor.drain_seconds` for a server.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(10);

/// Policy for protections that the kernel lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// Tools run without the missing protections, and a warning is logged.
    BestEffort,
    /// The executor does not start.
    Required,
}

/// The lifetime of an address layout that children share.
#[derive(Debug, Clone, Copy)]
pub struct AddressLayout {
    /// Number of runs after which the zygote, and with it the layout, is replaced.
    pub renew_after_runs: u64,
    /// Time after which the zygote is replaced.
    pub renew_after_time: Duration,
    /// `true` gives every child a layout of its own.
    pub per_child: bool,
}

/// The tools whose processes are reused for further runs of the same agent, tool, module and grant.
#[derive(Debug, Clone)]
pub struct Reuse {
    /// The tools; empty: each run in a process has one of its own.
    pub tools: BTreeSet<ToolName>,
    /// The limits on the reuse of one process.
    pub limits: ReuseLimits,
}

impl Reuse {
    /// The lifetime of this tool's processes.
    #[must_use]
    pub fn lifetime_of(&self, tool: &ToolName) -> ProcessLifetime {
        if self.tools.contains(tool) { ProcessLifetime::Reused } else { ProcessLifetime::OneRun }
    }
}

pub(super) fn parse_reuse(reuse: &file::Reuse) -> Result<Reuse, InvalidValueError> {
    let runs = check_count("executor.reuse.runs", reuse.runs, 2, 100_000)?;
    let idle = check_max("executor.reuse.idle_ms", reuse.idle_ms, 60_000)?;
    Ok(Reuse {
        tools: parse_tool_names("executor.reuse.tools", &reuse.tools)?,
        limits: ReuseLimits { runs, idle: Duration::from_millis(idle) },
    })
}

pub(super) fn parse_isolation(isolation: file::Isolation) -> Isolation {
    match isolation {
        file::Isolation::Process => Isolation::Process,
        file::Isolation::Inline => Isolation::Inline,
    }
}

pub(super) fn parse_containment(containment: file::Containment) -> Containment {
    match containment {
        file::Containment::BestEffort => Containment::BestEffort,
        file::Containment::Required => Containment::Required,
    }
}

pub(super) fn parse_waiting(given: Option<u64>) -> Result<usize, InvalidValueError> {
    match given {
        Some(given) => check_size("executor.waiting", given, 256),
        None => Ok(to_usize(default_waiting().into())),
    }
}

pub(super) fn parse_layout(executor: &file::Executor) -> Result<AddressLayout, InvalidValueError> {
    Ok(AddressLayout {
        renew_after_runs: check_max("executor.renew_runs", executor.renew_runs, 1_000_000)?,
        renew_after_time: check_seconds("executor.renew_seconds", executor.renew_seconds, 86_400)?,
        per_child: executor.fresh_layout,
    })
}

/// The maximum number of concurrent executions if some run inside the server; `None` if none do.
fn max_concurrent_inline(executor: &file::Executor, ceilings: &Ceilings) -> Option<u64> {
    let is_inline = match executor.isolation {
        file::Isolation::Process => !executor.inline_tools.is_empty(),
        file::Isolation::Inline => true,
    };
    // As many again may be stuck in a host call, and each may have calls on its slot.
    is_inline.then(|| Sandbox::MAX_EXECUTIONS / (2 + ceilings.limits[Limit::CallDepth]))
}

/// The limits of running and queued executions. By default one agent may have three quarters of the running
/// executions and a quarter of the queued ones, so that other agents always find capacity.
pub(super) fn parse_capacity(
    executor: &file::Executor,
    ceilings: &Ceilings,
) -> Result<Capacity, InvalidValueError> {
    let max_inline = max_concurrent_inline(executor, ceilings);
    let concurrent = match (executor.concurrent, max_inline) {
        (Some(given), Some(max)) if given > max => {
            let reason = format!(
                "has to be at most {max} with tools inside the server (`executor.isolation`, `executor.inline_tools`) and \
                 calls {} deep (`ceilings.max_call_depth`), because addresses are reserved for each",
                ceilings.limits[Limit::CallDepth]
            );
            return Err(invalid("executor.concurrent")(&reason));
        }
        (Some(given), _) => check_max("executor.concurrent", given, 4096)?,
        (None, max) => u64::from(default_concurrent()).min(max.unwrap_or(u64::MAX)),
    };
    let queue = check_max("executor.queue", executor.queue, 1_000_000)?;
    let concurrent_per_agent = match executor.concurrent_per_agent {
        Some(given) => check_max("executor.concurrent_per_agent", given, concurrent)?,
        None => (concurrent * 3).div_ceil(4),
    };
    let queue_per_agent = match executor.queue_per_agent {
        Some(given) => check_max("executor.queue_per_agent", given, queue)?,
        None => queue.div_ceil(4),
    };
    Ok(Capacity {
        concurrent: to_usize(concurrent),
        concurrent_per_agent: to_usize(concurrent_per_agent),
        queue: to_usize(queue),
        queue_per_agent: to_usize(queue_per_agent),
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;
    use a2g_core::run::Capacity;
    use a2g_isolate::ReuseLimits;
    use std::time::Duration;

    #[test]
    fn processes_are_reused_for_named_tools_within_limits() {
        let of = |text: &str| {
            let reuse = parse(text).unwrap().reuse;
            let ReuseLimits { runs, idle } = reuse.limits;
            (reuse.tools.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), runs, idle)
        };
        assert_eq!(of(""), (String::new(), 100, Duration::from_millis(500)));
        let all = "[executor]\nfresh_layout = false\n[executor.reuse]\ntools = [\"b\", \"a\", \"a\"]\nruns = 2\n\
                   idle_ms = 60000\n";
        assert_eq!(of(all), ("a b".to_owned(), 2, Duration::from_secs(60)));
        // Without tools the other settings have no effect.
        of("[executor]\nisolation = \"inline\"\nfresh_layout = true\n[executor.reuse]\nruns = 2\n");
    }

    #[test]
    fn an_agent_has_a_share_of_what_there_is() {
        let of = |text: &str| parse(&format!("[executor]\n{text}")).map(|config| config.capacity);
        let share = |capacity: Capacity| (capacity.concurrent_per_agent, capacity.queue_per_agent);
        assert_eq!(share(of("concurrent = 1\nqueue = 1\n").unwrap()), (1, 1));
        assert_eq!(share(of("concurrent = 10\nqueue = 10\n").unwrap()), (8, 3));
        assert_eq!(
            share(of("concurrent = 10\nconcurrent_per_agent = 10\nqueue_per_agent = 7\n").unwrap()),
            (10, 7)
        );
        assert!(
            of("concurrent = 10\nconcurrent_per_agent = 11\n").unwrap_err().contains("concurrent_per_agent")
        );
        assert!(of("queue = 10\nqueue_per_agent = 0\n").unwrap_err().contains("queue_per_agent"));
    }
}
