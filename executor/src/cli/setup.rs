//! What several commands start with: configuration, sandbox, catalogue.

use super::Usage;
use super::arguments::Setup;
use crate::catalog::{Cache, Catalog, Compiler};
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, DEFAULT_FILE};
use crate::egress::Egress;
use crate::isolate::{Ahead, Cgroups, Isolate, Isolation, Module, support};
use crate::run::Loaded;
use crate::sandbox::{Code, Sandbox};
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

/// Looks what the kernel has to contain tools with, before there are threads. What it lacks is said
/// once, or refused.
pub(super) fn check_containment(config: &Config) -> anyhow::Result<()> {
    let inline = config.isolation == Isolation::Inline;
    if config.containment_required && (inline || !config.inline_tools.is_empty()) {
        bail!(Usage(
            "`executor.containment` is `required`, and nothing contains tools that run `inline`".into()
        ));
    }
    if inline {
        return Ok(());
    }
    for missing in support().missing() {
        let reason = missing.state.as_ref().err().map_or("", String::as_str);
        if config.containment_required {
            bail!(Usage(format!(
                "`executor.containment` is `required`, and this machine has no {}: {reason}",
                missing.name
            )));
        }
        tracing::warn!(control = missing.name, reason, "tools are contained without it");
    }
    Ok(())
}

/// The control groups of a command that runs tools. When it ends, nobody is left in them.
pub(super) struct Grouped(Option<Arc<Cgroups>>);

impl Grouped {
    /// Makes them, where some are delegated and tools run in processes.
    pub(super) fn set_up(config: &Config) -> Self {
        Self(match config.isolation {
            Isolation::Process => Cgroups::set_up().unwrap_or_else(|error| {
                tracing::warn!(%error, "tools are contained without control groups");
                None
            }),
            Isolation::Inline => None,
        })
    }

    /// For those who put children into them.
    pub(super) fn share(&self) -> Option<Arc<Cgroups>> {
        self.0.clone()
    }
}

impl Drop for Grouped {
    fn drop(&mut self) {
        if let Some(cgroups) = &self.0 {
            cgroups.end();
        }
    }
}

/// The engine, and the places from which tools come.
pub(super) struct Workshop {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) cache: Cache,
    pub(super) compiler: Compiler,
    /// The control groups of runs in processes, where some are delegated.
    cgroups: Option<Arc<Cgroups>>,
    /// How the command tells what takes its time.
    tell: fn(std::fmt::Arguments<'_>),
}

impl Workshop {
    /// Sets up for `concurrent` executions at once, and as many that are stuck in a host call.
    pub(super) fn new(
        config: &Config,
        concurrent: u32,
        cgroups: Option<Arc<Cgroups>>,
        tell: fn(std::fmt::Arguments<'_>),
    ) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let meters_fuel = config.ceilings.budgets.fuel.is_some();
        let sandbox = Sandbox::new(concurrent.saturating_mul(2), meters_fuel, Arc::clone(&clock))?;
        let sandbox = Arc::new(sandbox);
        let cache = Cache::open(&config.cache, sandbox.compatibility())?;
        let this_program = std::env::current_exe().context("this program cannot find its own file")?;
        let compiler = Compiler::new(this_program, meters_fuel);
        Ok(Self { clock, sandbox, cache, compiler, cgroups, tell })
    }

    /// The way out, when the configuration lets any run have a network.
    pub(super) fn egress(&self, config: &Config) -> anyhow::Result<Option<Arc<Egress>>> {
        if !config.ceilings.network {
            return Ok(None);
        }
        let egress = Egress::new(config.egress.clone(), config.ca_file.as_deref(), Arc::clone(&self.clock));
        egress.map(|egress| Some(Arc::new(egress))).context("the network of runs cannot be set up")
    }

    /// The catalogue. Each tool that has to be compiled first is told of.
    pub(super) fn catalog(&self, config: &Config) -> anyhow::Result<Catalog> {
        let folder = &config.catalog;
        if !folder.is_dir() {
            bail!("there is no catalogue at `{}`: {}", folder.display(), how_to_get_tools(folder));
        }
        let catalog = Catalog::open(folder, &self.cache, &self.compiler, &mut |tool| {
            (self.tell)(format_args!("compiling `{tool}` (once; kept in {})", config.cache.display()));
        })?;
        if catalog.iter().all(|(_, tool)| tool.is_err()) {
            let how = how_to_get_tools(folder);
            (self.tell)(format_args!("no tool in `{}` can be used: {how}", folder.display()));
        }
        Ok(catalog)
    }

    /// The catalogue with every tool in the place where the configuration lets it run, and `waiting`
    /// processes ahead of time. What is not compiled yet is compiled on this thread.
    pub(super) async fn load(&self, config: &Config, waiting: usize) -> anyhow::Result<Loaded> {
        let catalog = tokio::task::block_in_place(|| self.catalog(config))?;
        for tool in config.inline_tools.iter().filter(|name| catalog.get(name).is_none()) {
            tracing::warn!(%tool, "`executor.inline_tools` names it, and the catalogue has no such tool");
        }
        let tools = catalog.iter().filter_map(|(name, entry)| Some((name, entry.as_ref().ok()?)));
        let tools = tools.map(|(name, tool)| Module {
            name,
            code: Code {
                module: &tool.compiled,
                component: tool.component,
                componentised: tool.componentised.as_ref().and_then(|made| made.as_deref().ok()),
                contract: tool.descriptor.contract,
            },
            isolation: if config.inline_tools.contains(name) { Isolation::Inline } else { config.isolation },
        });
        let tools = tools.collect::<Vec<_>>();
        let budgets = config.ceilings.budgets;
        let ahead = Ahead {
            waiting,
            largest_file: budgets.written.bytes(),
            handles: budgets.handles,
            meters_fuel: budgets.fuel.is_some(),
            renew_runs: config.layout.renew_runs,
            renew_after: config.layout.renew_after,
            fresh_layout: config.layout.fresh,
        };
        let isolate = Isolate::start(&tools, ahead, self.cgroups.clone(), &self.sandbox, &self.clock)
            .await
            .context("the process that guests are made from cannot be started")?;
        for tool in &tools {
            if let Err(reason) = isolate.usable(tool.name) {
                tracing::warn!(tool = %tool.name, reason, "this tool cannot be used");
            }
        }
        Ok(Loaded::new(catalog, isolate))
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
