//! Probes a tool before it enters a catalogue: its code is loaded in a separate zygote, and a typed tool describes
//! itself in a child of that zygote. No code of the tool runs in the server.

use super::error::ChildError;
use super::supervisor::Supervisor;
use super::{Isolation, Module, PreforkConfig, ProcessLifetime, ReuseLimits, RunAs};
use a2g_capability::{Ceilings, Permit};
use a2g_sandbox::{Code, CodeFeatures};
use a2g_types::clock::Clock;
use a2g_types::ident::ToolName;
use a2g_types::limit::{Limit, LimitMap};
use a2g_types::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutOfRangeError, OutputLimit, Timeout};
use a2g_types::tool::Contract;
use std::io::Result;
use std::sync::Arc;
use std::time::Duration;

/// The tool's name inside the probe's zygote. Its real name may not be known yet.
const NAME: &str = "probed";
/// The memory limit of `describe`. `run_python` with its scientific packages starts with 175 MB.
const MEMORY_MB: u64 = 256;
/// The timeout of `describe`.
const TIMEOUT_SECONDS: u64 = 5;
/// Longer than any probe, so that the probe's zygote is never replaced.
const RENEW_AFTER: Duration = Duration::from_secs(3600);
/// Maximum total size of a description's four texts, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 320 << 10;

/// A typed tool's name, version, description and argument schema; `None` for a command.
type Description = Option<[String; 4]>;

/// Loads `code` and calls `describe` of a typed tool. The code must have been compiled with the same `features`.
///
/// # Errors
/// The outer error, if no zygote can be started. The inner one, a [`ChildError`], if the code cannot be linked or
/// `describe` fails.
pub async fn probe(
    code: Code<'_>,
    features: CodeFeatures,
    run_as: RunAs,
    clock: Arc<dyn Clock>,
) -> Result<std::result::Result<Description, ChildError>> {
    let name = ToolName::parse(NAME).map_err(std::io::Error::other)?;
    let permit = Permit::without_access(&ceilings().map_err(std::io::Error::other)?);
    let budgets = permit.grant().budgets();
    let largest_file = budgets.amount(Limit::Written);
    let handles = budgets.amount(Limit::Handles);
    let prefork = PreforkConfig {
        waiting: 1,
        largest_file,
        handles,
        features,
        renew_runs: u64::MAX,
        renew_after: RENEW_AFTER,
        fresh_layout: false,
        run_as,
        reuse: ReuseLimits::default(),
    };
    let module =
        Module { name: &name, code, isolation: Isolation::Process, lifetime: ProcessLifetime::OneRun };
    let (supervisor, unusable) = Supervisor::start(&[module], prefork, None, clock).await?;
    let description = match (unusable.into_iter().next(), code.expected_contract()) {
        (Some((_name, reason)), _) => Err(ChildError::Reported(reason)),
        (None, Contract::Command) => Ok(None),
        (None, Contract::Typed) => supervisor.describe(&name, permit).await.and_then(check_size),
    };
    supervisor.close().await;
    Ok(description)
}

/// Refuses a description beyond its size limit.
fn check_size(texts: [String; 4]) -> std::result::Result<Description, ChildError> {
    let bytes = texts.iter().map(String::len).sum::<usize>();
    if bytes > MAX_DESCRIPTION_BYTES {
        return Err(ChildError::LongDescription { bytes, max_bytes: MAX_DESCRIPTION_BYTES });
    }
    Ok(Some(texts))
}

/// The limits of a tool that describes itself.
fn ceilings() -> std::result::Result<Ceilings, OutOfRangeError> {
    // A limit that is not listed here has its default.
    let limits = LimitMap::defaults()
        .with(MemoryLimit::from_mb(MEMORY_MB)?)
        .with(CpuPercent::new(100)?)
        .with(Timeout::from_seconds(TIMEOUT_SECONDS)?)
        .with(OutputLimit::from_bytes(64 << 10)?)
        .with_amount(Limit::Written, BYTES_PER_MB)
        .with_amount(Limit::Created, 1)
        .with_amount(Limit::Handles, 1024)
        .with_amount(Limit::Subscriptions, 128)
        .with_amount(Limit::RandomBytes, 1 << 20)
        .with_amount(Limit::DirectoryEntries, 1)
        .with_amount(Limit::Calls, 0)
        .with_amount(Limit::ParallelCalls, 0)
        .with_amount(Limit::CallDepth, 0);
    Ok(Ceilings { limits, ..Ceilings::closed() })
}
