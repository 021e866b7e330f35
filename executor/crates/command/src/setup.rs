//! Set-up that several commands share: configuration, sandbox, catalogue.

use crate::UsageError;
use a2g_capability::{Area, Authority};
use a2g_config::{Config, Containment, DEFAULT_FILE};
use a2g_core::catalog::{
    Access, Cache, Catalog, CatalogEntry, CatalogError, CompileJob, Compiled, Compiler, Definitions,
    Installer, Tool, ToolBuilder,
};
use a2g_core::run::LoadedCatalog;
use a2g_govern::ToolTrust;
use a2g_http::ListenAddress;
use a2g_isolate::{
    Cgroups, ChildError, Isolate, Isolation, Module, Owner, PreforkConfig, RunAs, Support, User, probe,
    support,
};
use a2g_sandbox::egress::{Egress, TokenClient};
use a2g_sandbox::{Code, CodeFeatures, Sandbox};
use a2g_secrets::{SecretSource, Vault, VersionKey};
use a2g_types::clock::{Clock, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::ToolName;
use a2g_types::limit::{Access as FileAccess, Limit};
use anyhow::{Context as _, bail};
use clap::Args;
use parking_lot::RwLock;
use rustix::fs::{AtFlags, CWD, accessat, getxattr_query};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options that every command with a configuration has.
#[derive(Debug, Clone, Args)]
pub struct Setup {
    /// The configuration file; default: `executor.toml` in this folder, if it exists
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The folder of tools, instead of the configuration's
    #[arg(long, value_name = "FOLDER")]
    pub tools: Option<PathBuf>,
}

/// Takes the process's only [`Authority`]: a process runs one executor.
pub fn take_authority() -> anyhow::Result<Authority> {
    Authority::take().context("this process already runs an executor")
}

/// Reads the configuration that the command line selects.
pub fn config(setup: &Setup) -> anyhow::Result<Config> {
    let mut config = match file(setup) {
        Some(path) => Config::read(path)?,
        None => Config::without_file()?,
    };
    if let Some(tools) = &setup.tools {
        config.catalog.clone_from(tools);
    }
    Ok(config)
}

/// The configuration file that the command line selects, or else the default file, if that exists.
pub fn file(setup: &Setup) -> Option<&Path> {
    let default = Path::new(DEFAULT_FILE);
    setup.config.as_deref().or_else(|| default.is_file().then_some(default))
}

/// The values of the configured secrets, none of which is read yet; `None` if there are none.
///
/// # Ambient Authority
/// Reads the key of their versions, or makes it, and for token endpoints the machine's certificates.
pub fn open_vault(config: &Config) -> anyhow::Result<Option<Arc<Vault>>> {
    if config.secrets.is_empty() {
        return Ok(None);
    }
    protect_memory().context("the server's memory cannot be protected, which has the values of secrets")?;
    let key = VersionKey::open(&config.secrets_key()).context("secrets cannot be used")?;
    let secrets = config.secrets.iter();
    let sources = secrets.map(|secret| (secret.binding.name().clone(), secret.source.clone()));
    let vault = Vault::new(sources, key);
    let asks = config.secrets.iter().any(|secret| matches!(secret.source, SecretSource::OAuth(_)));
    Ok(Some(Arc::new(if asks { vault.with_token_client(token_client(config)?) } else { vault })))
}

/// Asks the token endpoints of secrets. It has no secrets of its own, so no request for a token needs another one.
fn token_client(config: &Config) -> anyhow::Result<TokenClient> {
    let egress = Egress::new(config.egress.clone(), config.ca_file.as_deref(), Arc::new(SystemClock));
    Ok(TokenClient::new(
        egress.context("token endpoints (`secret.oauth`) cannot be asked")?,
        config.did.clone(),
    ))
}

/// Keeps the memory of this process out of core files, and from other processes of its user.
fn protect_memory() -> rustix::io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// The containment of runs on this machine.
pub struct InspectedContainment {
    /// The user that tools run as.
    pub run_as: RunAs,
    /// The controls; `None` if every tool runs inline.
    pub support: Option<Support>,
}

/// As [`inspect_containment`], but returns only the user that tools run as.
pub fn check_containment(config: &Config, listen: Option<&ListenAddress>) -> anyhow::Result<RunAs> {
    inspect_containment(config, listen).map(|inspected| inspected.run_as)
}

/// Checks that the kernel can protect calls that arrive at `listen`. Call it before starting threads. Missing
/// protections are logged once, or are an error if `containment` is `required`.
pub fn inspect_containment(
    config: &Config,
    listen: Option<&ListenAddress>,
) -> anyhow::Result<InspectedContainment> {
    let required = config.containment_at(listen) == Containment::Required;
    // Without a configured value the address decides, so the error names the address.
    let reason = match listen.filter(|_| config.containment.is_none()) {
        Some(listen) => {
            let mut addresses = [Some(listen), config.console.listen.as_ref()].into_iter().flatten();
            let called = addresses.find(|address| !address.is_local()).unwrap_or(listen);
            format!(", because other machines can call {called}")
        }
        None => String::new(),
    };
    let inline = config.isolation == Isolation::Inline;
    if required && (inline || !config.inline_tools.is_empty()) {
        bail!(UsageError(format!(
            "`executor.containment` is `required`{reason}, and tools that run `inline` are not contained: run them in \
             processes, or {BEST_EFFORT_ADVICE}"
        )));
    }
    if inline {
        return Ok(InspectedContainment { run_as: RunAs::Server, support: None });
    }
    let support = support();
    let controls = support.missing().map(|missing| {
        format!("{} ({})", missing.name, missing.state.as_ref().err().map_or("", String::as_str))
    });
    let missing = controls.collect::<Vec<_>>().join("; ");
    if !missing.is_empty() && required {
        bail!(UsageError(format!(
            "`executor.containment` is `required`{reason}, and this machine lacks {missing}: fix this, or \
             {BEST_EFFORT_ADVICE}"
        )));
    }
    if !missing.is_empty() {
        tracing::warn!(
            missing,
            "this machine lacks protections: tools run without them (`a2g-executor doctor` says what each is for)"
        );
    }
    let run_as = run_as(config, &support)?;
    Ok(InspectedContainment { run_as, support: Some(support) })
}

/// The end of a message about `required`: the alternative.
const BEST_EFFORT_ADVICE: &str = "set `executor.containment` to `best-effort` if you trust the tools";

/// Selects the user that tools run as. Logs a warning if they have to run as root.
fn run_as(config: &Config, support: &Support) -> anyhow::Result<RunAs> {
    let is_root = rustix::process::geteuid().is_root();
    match (config.run_as, &support.unprivileged_user) {
        (Some(_), _) if !is_root => {
            bail!(UsageError("`executor.run_as` is for a server that runs as root: remove it".to_owned()))
        }
        (Some(_), Err(missing)) => bail!(UsageError(format!("`executor.run_as` cannot be used: {missing}"))),
        (Some(user), Ok(_)) => Ok(RunAs::User(user)),
        (None, Ok(_)) if is_root => Ok(RunAs::Owner),
        (None, Err(missing)) => {
            tracing::warn!(missing, "tools run as root");
            Ok(RunAs::Server)
        }
        (None, Ok(_)) => Ok(RunAs::Server),
    }
}

/// The owner of each existing host folder that guests can reach.
pub fn owners(config: &Config) -> Vec<(PathBuf, Owner)> {
    let areas = &config.ceilings.areas;
    let host_folders = areas.iter().filter_map(|area| config.mounts.host_path(area.root(), areas));
    let mounted = config.mounts.as_slice().iter().map(|mount| mount.host.clone());
    let folders = host_folders.chain(mounted).collect::<BTreeSet<_>>();
    let owned_folders = folders.into_iter().filter_map(|folder| {
        let file = File::open(&folder).ok()?;
        Some((folder, Owner::of(file)))
    });
    owned_folders.collect()
}

/// Logs the folders in which tools run as root, if they run as other users elsewhere.
pub fn warn_about_root(config: &Config, run_as: RunAs) {
    let of_root = owners(config).into_iter().filter(|(_, owner)| run_as.user_for([*owner]).is_none());
    let root_folders = of_root.map(|(folder, _)| folder.display().to_string()).collect::<Vec<_>>().join(", ");
    if run_as.changes_users() && !root_folders.is_empty() {
        tracing::warn!(
            folders = root_folders,
            "tools run as root in folders that root owns: {ANOTHER_USER_ADVICE}"
        );
    }
}

/// The end of a message about runs as root: the alternatives.
pub const ANOTHER_USER_ADVICE: &str =
    "give the folders to another user (chown), start it as another user, or set `executor.run_as`";

/// Logs the granted folders in which tools cannot create files, unless the configuration grants files for reading only.
pub fn warn_about_unwritable(config: &Config, run_as: RunAs) {
    if config.ceilings.access == FileAccess::ReadOnly {
        return;
    }
    for folder in granted_folders(config) {
        // One that is missing refuses calls with a sentence of its own.
        let Some(metadata) = folder.metadata().ok().filter(Metadata::is_dir) else { continue };
        let owner = User { uid: metadata.uid(), gid: metadata.gid() };
        let run_user = run_as.user_for(File::open(&folder).ok().map(Owner::of));
        if is_unwritable(&folder, owner, metadata.mode(), run_user) {
            let user = run_user.unwrap_or_else(User::of_this_process);
            tracing::warn!(
                folder = %folder.display(),
                %owner,
                %user,
                "tools cannot write to a granted folder: let their user write to it (`chown`, `chmod`; for a container \
                 of podman, `:U` at the volume or `--userns=keep-id:uid={},gid={}`), or grant files for reading only \
                 (`ceilings.read_only`, `mcp --read-only`)",
                user.uid,
                user.gid
            );
        }
    }
}

/// The host folders that the ceilings grant with everything below them.
fn granted_folders(config: &Config) -> BTreeSet<PathBuf> {
    let areas = &config.ceilings.areas;
    let trees = areas.iter().filter(|area| area.globs().is_empty()).map(Area::root);
    let mounted = config.mounts.as_slice().iter().map(|mount| &mount.guest);
    let granted_mounts = mounted.filter(|guest| trees.clone().any(|tree| tree.covers(guest)));
    let granted = trees.clone().chain(granted_mounts);
    granted.filter_map(|tree| config.mounts.host_path(tree, areas)).collect()
}

/// `true` if the owner or the mode of a folder keeps the user of a run from creating files in it. `None` is the server's
/// own user.
fn is_unwritable(folder: &Path, owner: User, mode: u32, run_user: Option<User>) -> bool {
    let write_and_search = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    match (run_user, accessat(CWD, folder, write_and_search, AtFlags::EACCESS)) {
        // Who mounts a file system for reading only knows that nothing can be written.
        (_, Err(Errno::ROFS)) => false,
        (None, checked) => checked == Err(Errno::ACCESS),
        (Some(user), _) => {
            // An access control list may let others write.
            let has_list = getxattr_query(folder, "system.posix_acl_access").is_ok();
            !has_list && !user.has_write_access(owner, mode)
        }
    }
}

/// The control groups of a command that runs tools. Dropping the guard ends all processes in them.
pub struct CgroupGuard(Option<Arc<Cgroups>>);

impl CgroupGuard {
    /// Creates the control groups, if a hierarchy is delegated and tools run in processes.
    pub fn create(config: &Config) -> Self {
        Self(match config.isolation {
            Isolation::Process => Cgroups::set_up().unwrap_or_else(|error| {
                tracing::warn!(%error, "tools are contained without control groups");
                None
            }),
            Isolation::Inline => None,
        })
    }

    /// The control groups, for the processes of the command.
    pub fn share(&self) -> Option<Arc<Cgroups>> {
        self.0.clone()
    }
}

impl Drop for CgroupGuard {
    fn drop(&mut self) {
        if let Some(cgroups) = &self.0 {
            cgroups.end();
        }
    }
}

/// The accepted definitions, for a command that also remembers new ones.
pub fn recorded_definitions(config: &Config) -> Definitions {
    Definitions::new(&config.definitions, &config.catalog, Access::Record)
}

/// The sandbox, the compiler and the cache of compiled tools.
pub struct ToolRuntime {
    /// The clock of runs.
    pub clock: Arc<dyn Clock>,
    /// Loads and runs compiled code.
    pub sandbox: Arc<Sandbox>,
    /// The compiled tools.
    pub cache: Cache,
    /// Compiles modules, each in a process.
    pub compiler: Compiler,
    /// The accepted definitions. Every command compares with them; commands that offer tools to agents or change the
    /// catalogue also remember new ones.
    pub definitions: Definitions,
    /// The control groups of runs in processes, if a hierarchy is delegated.
    cgroups: Option<Arc<Cgroups>>,
    features: CodeFeatures,
    /// The user that tools run as.
    run_as: RunAs,
    /// The signers whose tools are accepted. A reload replaces all of them.
    trust: RwLock<ToolTrust>,
    /// Reports progress to the user or the log.
    report: fn(std::fmt::Arguments<'_>),
}

/// The runs in this process, with as many again that are stuck in a host call, and the calls that share their slots: a
/// run lends its slot to one of its calls, that call to one of its own, and so on. Address space is reserved for all of
/// them, so there are few if every run of a tool has a process of its own.
fn runs_in_this_process(config: &Config, concurrent: u32) -> [u32; 2] {
    if config.isolation == Isolation::Process && config.inline_tools.is_empty() {
        // The command `run` runs one module, which is no tool, inside its own process.
        return [2, 0];
    }
    let depth = u32::try_from(config.ceilings.limits[Limit::CallDepth]).unwrap_or(u32::MAX);
    [concurrent.saturating_mul(2), concurrent.saturating_mul(depth)]
}

impl ToolRuntime {
    /// Sets up capacity for `concurrent` runs.
    pub fn new(
        config: &Config,
        concurrent: u32,
        cgroups: Option<Arc<Cgroups>>,
        run_as: RunAs,
        report: fn(std::fmt::Arguments<'_>),
    ) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let meters_fuel = config.ceilings.limits.limited(Limit::Fuel).is_some();
        let features = CodeFeatures { meters_fuel, exceptions: config.exceptions };
        let [runs, nested] = runs_in_this_process(config, concurrent);
        let sandbox = Sandbox::builder().concurrent(runs).nested(nested).features(features);
        let sandbox = Arc::new(sandbox.clock(Arc::clone(&clock)).build()?);
        let cache = Cache::open(&config.cache, sandbox.compatibility()).with_context(|| {
            format!(
                "compiled tools cannot be kept in `{}`: name a folder that this user may create or owns, with \
                 `XDG_CACHE_HOME` or `catalog.cache`",
                config.cache.display()
            )
        })?;
        let this_program = std::env::current_exe().context("this program cannot find its own file")?;
        let compiler = Compiler::new(this_program, features.options(), config.compile_limits);
        let opened = ToolTrust::read(config.signers.as_deref(), Arc::clone(&clock));
        let trust = RwLock::new(opened.context("`catalog.trust.signer.key_file`")?);
        let definitions = Definitions::new(&config.definitions, &config.catalog, Access::Compare);
        Ok(Self { clock, sandbox, cache, compiler, definitions, cgroups, features, run_as, trust, report })
    }

    /// Installs tools into `catalog`.
    pub fn installer<'a>(
        &'a self,
        catalog: &'a Path,
        trust: &'a ToolTrust,
        definitions: &'a Definitions,
    ) -> Installer<'a> {
        Installer { catalog, cache: &self.cache, build: self, trust, definitions }
    }

    /// The signers whose tools are accepted.
    pub fn trust(&self) -> ToolTrust {
        self.trust.read().clone()
    }

    /// Reads the list of signers and their keys again.
    pub fn reload_trust(&self, config: &Config) {
        let signers = config.reread_signers().map_err(anyhow::Error::from);
        let trust =
            signers.and_then(|signers| Ok(ToolTrust::read(signers.as_deref(), Arc::clone(&self.clock))?));
        let required = self.trust.read().requires_signatures();
        *self.trust.write() = match trust {
            Ok(trust) => {
                if let Some(signers) = trust.signer_count() {
                    tracing::info!(signers, "signers of tools reloaded");
                } else if required {
                    tracing::warn!("tools need no signature any more: `[catalog.trust]` was removed");
                }
                trust
            }
            // Fails closed: an error elsewhere in the file must not keep a removed signer trusted. An executor that
            // required no signatures loses nothing by it.
            Err(error) if required => {
                tracing::error!(error = %ErrorChain(error.as_ref()), "no tool is accepted until the signers can be read again");
                ToolTrust::nobody(Arc::clone(&self.clock))
            }
            Err(error) => {
                tracing::error!(error = %ErrorChain(error.as_ref()), "the signers of tools cannot be read, and tools still need no signature");
                return;
            }
        };
    }

    /// The same runtime, with these definitions.
    pub fn with_definitions(self, definitions: Definitions) -> Self {
        Self { definitions, ..self }
    }

    /// The network access that all runs share; `None` if the configuration allows none.
    pub fn egress(&self, config: &Config) -> anyhow::Result<Option<Arc<Egress>>> {
        if !config.ceilings.network {
            return Ok(None);
        }
        let egress = Egress::new(config.egress.clone(), config.ca_file.as_deref(), Arc::clone(&self.clock));
        let egress = egress.context("network access for runs cannot be set up")?;
        let vault = open_vault(config)?;
        Ok(Some(Arc::new(match vault {
            Some(vault) => egress.with_secrets(vault),
            None => egress,
        })))
    }

    /// Reads the catalogue; tools that are not in the cache are `Preparing`.
    pub fn read_catalog(&self, config: &Config) -> anyhow::Result<Catalog> {
        let folder = &config.catalog;
        if !folder.is_dir() {
            bail!("there is no catalogue at `{}`: {}", folder.display(), tools_advice(folder));
        }
        let catalog = Catalog::open(folder, &self.cache, &self.trust(), &self.definitions)?;
        if catalog.iter().all(|(_, entry)| matches!(entry, CatalogEntry::Broken(_))) {
            match catalog.iter().next() {
                Some(_) => (self.report)(format_args!(
                    "no tool in `{}` can be used: `a2g-executor tool list` shows the reasons",
                    folder.display()
                )),
                None => (self.report)(format_args!(
                    "there is no tool in `{}`: {}",
                    folder.display(),
                    tools_advice(folder)
                )),
            }
        }
        Ok(catalog)
    }

    /// Reads the catalogue, compiles all of it, and blocks this thread meanwhile.
    pub fn compile_catalog(&self, config: &Config) -> anyhow::Result<Catalog> {
        self.compile_those(config, Catalog::preparing_tools)
    }

    fn compile_those(
        &self,
        config: &Config,
        select: impl Fn(&Catalog) -> Vec<ToolName>,
    ) -> anyhow::Result<Catalog> {
        let mut catalog = self.read_catalog(config)?;
        let names = select(&catalog);
        catalog.prepare(names, &config.catalog, &self.cache, self, &self.trust(), &self.definitions);
        Ok(catalog)
    }

    /// Reads the catalogue, compiles what calls of `tool` need, and starts the isolation of that as
    /// [`Self::start`] does.
    pub async fn load_for(&self, config: &Config, tool: &ToolName) -> anyhow::Result<LoadedCatalog> {
        let compile = || self.compile_those(config, |catalog| catalog.preparing_for(tool));
        let catalog = tokio::task::block_in_place(compile)?;
        self.start(config, catalog, 1).await
    }

    /// Starts the configured isolation of every tool that is ready, with `preforked` processes forked ahead of time.
    pub async fn start(
        &self,
        config: &Config,
        catalog: Catalog,
        preforked: usize,
    ) -> anyhow::Result<LoadedCatalog> {
        for (key, tool) in config.named_tools().filter(|(_, name)| catalog.get(name).is_none()) {
            tracing::warn!(%tool, "`{key}` names a tool that is not in the catalogue");
        }
        let modules = catalog.ready_tools().map(|(name, tool)| Module {
            name,
            code: tool_code(tool),
            isolation: config.isolation_of(name),
            lifetime: config.reuse.lifetime_of(name),
        });
        let tools = modules.collect::<Vec<_>>();
        let prefork = PreforkConfig {
            waiting: preforked,
            largest_file: config.ceilings.limits[Limit::Written],
            handles: config.ceilings.limits[Limit::Handles],
            features: self.features,
            renew_runs: config.layout.renew_after_runs,
            renew_after: config.layout.renew_after_time,
            fresh_layout: config.layout.per_child,
            reuse: config.reuse.limits,
            run_as: self.run_as,
        };
        let isolate = Isolate::start(&tools, prefork, self.cgroups.clone(), &self.sandbox, &self.clock)
            .await
            .context("the zygote, which forks the processes of runs, cannot be started")?;
        for tool in &tools {
            if let Err(reason) = isolate.check_usable(tool.name) {
                tracing::warn!(tool = %tool.name, reason, "this tool cannot be used");
            }
        }
        let has_sessions =
            |tool: &ToolName| config.sessions.max > 0 && config.isolation_of(tool) == Isolation::Process;
        Ok(LoadedCatalog::new(catalog, isolate).with_sessions_of(has_sessions))
    }

    /// Compiles one module in a separate process.
    fn compile(&self, name: &str, job: &CompileJob) -> Result<Compiled, CatalogError> {
        (self.report)(format_args!("compiling `{name}` (once; cached in {})", self.cache.folder().display()));
        self.compiler.run(job, &|seconds| {
            (self.report)(format_args!("still compiling `{name}`: {seconds} s so far"));
        })
    }

    /// Loads the code of one tool in a zygote of its own; a typed tool describes itself in a child of that zygote.
    fn probe(&self, code: Code<'_>) -> std::io::Result<Result<Option<[String; 4]>, ChildError>> {
        // Tools are built in parallel, on threads outside of the runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(probe(code, self.features, self.run_as, Arc::clone(&self.clock)))
    }
}

/// The code of a tool in the catalogue, as a sandbox loads it.
#[must_use]
pub fn tool_code(tool: &Tool) -> Code<'_> {
    let compiled = &tool.compiled;
    let code = if tool.component { Code::component(compiled) } else { Code::module(compiled) };
    let code_for_contract = code.contract(tool.descriptor.contract);
    match &tool.componentised {
        Some(Ok(component)) => code_for_contract.componentised(component),
        Some(Err(_)) | None => code_for_contract,
    }
}

impl ToolBuilder for ToolRuntime {
    fn build(&self, name: &str, job: &CompileJob) -> Result<Compiled, CatalogError> {
        let mut compiled = self.compile(name, job)?;
        let Compiled { module, component, componentised, described, facts: _ } = &mut compiled;
        let spawn_error = |error: std::io::Error| {
            CatalogError::Module(format!("the process that loads the tool cannot be started: {error}"))
        };
        let compiled_code = if *component { Code::component(module) } else { Code::module(module) };
        let uncomponentised = compiled_code.contract(job.contract);
        if let Some(Ok(code)) = componentised {
            match self.probe(uncomponentised.componentised(code)).map_err(spawn_error)? {
                Ok(description) => {
                    *described = description;
                    return Ok(compiled);
                }
                // The core module can still run with grants of whole trees.
                Err(error) => *componentised = Some(Err(error.to_string())),
            }
        }
        let description = self.probe(uncomponentised).map_err(spawn_error)?;
        *described = description.map_err(|error| CatalogError::Module(error.to_string()))?;
        Ok(compiled)
    }
}

/// The end of a message about `folder`: the ways to get tools. In the executor's own repository, `target/tools` has the
/// modules that are built from `tools/`.
fn tools_advice(folder: &Path) -> &'static str {
    let built = Path::new("target/tools");
    if built.is_dir() && built != folder {
        "use those built in this repository with `--tools target/tools`"
    } else {
        "add one with `a2g-executor tool add`, or build the executor's own with `cargo xtask tools`"
    }
}
