//! The defaults that depend on the machine: on its cores, its memory and the folders of the user.

use super::error::{InvalidValueError, invalid};
use std::path::PathBuf;

/// The default of `executor.concurrent`: sixteen for each core, but at most one for each 64 MB of memory.
pub(super) fn default_concurrent() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory_limit = machine_memory() >> 26;
    let concurrent = u64::try_from(cores.saturating_mul(16)).unwrap_or(u64::MAX).min(memory_limit.max(1));
    u32::try_from(concurrent).unwrap_or(u32::MAX)
}

/// The default of `executor.waiting`: two children for each core, so that one is prepared while another runs, but at
/// most one child for each 512 MB of memory.
pub(super) fn default_waiting() -> u32 {
    default_concurrent().div_ceil(8)
}

/// The default memory for messages and answers, without the output of runs: a 64th of the machine's memory, but at
/// least 64 MB and at most 80 MB.
pub(super) fn default_memory_mb() -> u64 {
    (machine_memory() >> 26).clamp(64, 80)
}

/// Bytes of memory of the machine.
fn machine_memory() -> u64 {
    sysinfo::System::new().map_or(0, |mut system| {
        system.refresh_memory();
        system.total_memory()
    })
}

pub(super) fn default_cache() -> Result<PathBuf, InvalidValueError> {
    default_folder("catalog.cache", "XDG_CACHE_HOME", ".cache")
}

pub(super) fn default_journal() -> Result<PathBuf, InvalidValueError> {
    default_folder("journal.path", "XDG_STATE_HOME", ".local/state").map(|state| state.join("journal.db"))
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is the configuration, the one place that reads the environment"
)]
fn default_folder(key: &'static str, variable: &str, at_home: &str) -> Result<PathBuf, InvalidValueError> {
    let folder = |name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = folder(variable).or_else(|| folder("HOME").map(|home| home.join(at_home)));
    base.map(|base| base.join("a2g-executor")).ok_or_else(|| {
        let reason = format_args!("has to be set: neither `{variable}` nor `HOME` names a folder");
        invalid(key)(&reason)
    })
}
