//! `tool prepare`: compiles the whole catalogue, and writes down what clients see of each tool.

use super::super::output::{note, one_line, print};
use super::set_up;
use a2g_core::catalog::write_arguments;
use a2g_server::config::Config;
use std::process::ExitCode;

/// Compiles every tool of the catalogue into the cache. The exit code is 1 if a tool cannot be used.
pub(super) fn prepare(config: &Config) -> anyhow::Result<ExitCode> {
    let runtime = set_up(config)?;
    let catalog = runtime.compile_catalog(config)?;
    let mut ready = 0;
    for (name, tool) in catalog.ready_tools() {
        write_arguments(&config.catalog.join(name.as_str()), &tool.descriptor)?;
        ready += 1;
    }
    print(format_args!("{ready} tools are compiled in {}", runtime.cache.folder().display()));
    let mut code = ExitCode::SUCCESS;
    let broken = catalog.iter().filter_map(|(name, entry)| Some((name, entry.error()?)));
    for (name, error) in broken {
        note(format_args!("`{name}` cannot be used: {}", one_line(error.to_string())));
        code = ExitCode::FAILURE;
    }
    Ok(code)
}
