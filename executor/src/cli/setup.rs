//! What several commands start with: configuration, sandbox, catalogue.

use super::arguments::Setup;
use super::output::note;
use crate::catalog::{Cache, Catalog, Compiler};
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, DEFAULT_FILE};
use crate::isolate::Inline;
use crate::sandbox::Sandbox;
use anyhow::{Context as _, bail};
use std::path::Path;
use std::sync::Arc;

/// The configuration of a command line.
pub(super) fn config(setup: &Setup) -> anyhow::Result<Config> {
    let mut config = match file(setup) {
        Some(path) => Config::read(path)?,
        None => Config::without_file()?,
    };
    if let Some(tools) = &setup.tools {
        config.catalog.clone_from(tools);
    }
    Ok(config)
}

/// The configuration file of a command line, when there is one.
pub(super) fn file(setup: &Setup) -> Option<&Path> {
    let default = Path::new(DEFAULT_FILE);
    setup.config.as_deref().or_else(|| default.is_file().then_some(default))
}

/// The engine, and the places from which tools come.
pub(super) struct Workshop {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) cache: Cache,
    pub(super) compiler: Compiler,
}

impl Workshop {
    /// Sets up for `concurrent` executions at once, and as many that are stuck in a host call.
    pub(super) fn new(config: &Config, concurrent: u32) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let sandbox = Arc::new(Sandbox::new(concurrent.saturating_mul(2), Arc::clone(&clock))?);
        let cache = Cache::open(&config.cache, sandbox.compatibility())?;
        let this_program = std::env::current_exe().context("this program cannot find its own file")?;
        Ok(Self { clock, sandbox, cache, compiler: Compiler::new(this_program) })
    }

    /// The catalogue, with a line on standard error for each tool that has to be compiled first.
    pub(super) fn catalog(&self, config: &Config) -> anyhow::Result<Catalog> {
        let folder = &config.catalog;
        if !folder.is_dir() {
            bail!("there is no catalogue at `{}`: {}", folder.display(), how_to_get_tools(folder));
        }
        let catalog = Catalog::open(folder, &self.cache, &self.compiler, &mut |tool| {
            note(format_args!("compiling `{tool}` (once; kept in {})", config.cache.display()));
        })?;
        if catalog.iter().all(|(_, tool)| tool.is_err()) {
            note(format_args!("no tool in `{}` can be used: {}", folder.display(), how_to_get_tools(folder)));
        }
        Ok(catalog)
    }

    pub(super) fn inline(&self) -> Inline {
        Inline::new(Arc::clone(&self.sandbox), Arc::clone(&self.clock))
    }
}

/// In the executor's own repository, `tools` holds sources, and what is built of them lies elsewhere.
fn how_to_get_tools(instead_of: &Path) -> &'static str {
    let built = Path::new("target/tools");
    if built.is_dir() && built != instead_of {
        "`--tools target/tools` names those that are built here"
    } else {
        "add one with `a2g-executor tool add`, or build the executor's own with `cargo xtask tools`"
    }
}
