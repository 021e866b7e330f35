//! `tool prepare`: compiles the whole catalogue, and writes the schema of its arguments beside each tool.

use crate::set_up;
use a2g_command::output::{note, one_line, print};
use a2g_config::Config;
use a2g_core::catalog::write_arguments;
use std::process::ExitCode;

/// Compiles every tool of the catalogue into the cache. The exit code is 1 if a tool cannot be used, or its schema not
/// written.
pub(crate) fn prepare(config: &Config) -> anyhow::Result<ExitCode> {
    let runtime = set_up(config)?;
    let catalog = runtime.compile_catalog(config)?;
    let ready = catalog.ready_tools().count();
    print(format_args!("{ready} tools are compiled in {}", runtime.cache.folder().display()));
    let mut code = ExitCode::SUCCESS;
    for (name, tool) in catalog.ready_tools() {
        if let Err(error) = write_arguments(&config.catalog, &tool.descriptor) {
            note(format_args!(
                "`{name}` is listed only once it is compiled: {}",
                one_line(error.to_string())
            ));
            code = ExitCode::FAILURE;
        }
    }
    let broken = catalog.iter().filter_map(|(name, entry)| Some((name, entry.error()?)));
    for (name, error) in broken {
        note(format_args!("`{name}` cannot be used: {}", one_line(error.to_string())));
        code = ExitCode::FAILURE;
    }
    Ok(code)
}
