//! `serve`: the executor behind its governor.

use super::arguments::{Serve, Setup};
use super::doors::{DOORS, DoorParts, Peer, StdioDoor, StdioParts};
use super::output::{list, note, one_line, print, print_row};
use super::setup::{
    ANOTHER_USER_ADVICE, CgroupGuard, InspectedContainment, ToolRuntime, check_containment, config, file,
    inspect_containment, owners, recorded_definitions, take_authority, warn_about_root,
    warn_about_unwritable,
};
use a2g_config::{AddressLayout, Config, DEFAULT_DRAIN, Reuse};
use a2g_core::catalog::{Catalog, CatalogEntry, ToolManifest, prepare};
use a2g_core::deliver;
use a2g_core::run::{
    ApprovalRule, Capacity, EffectsLocation, Executor, ExecutorParts, ExecutorSettings, Fleet, LoadedCatalog,
    join_fleet,
};
use a2g_fleet::{FleetKey, FleetSettings};
use a2g_govern::local::{CedarPolicies, LocalGovernor, PolicyFileError, PolicySet, RiskThresholds};
use a2g_govern::{
    AcceptUnsigned, Caller, Callers, CurrentCallers, Governor, GovernorUrl, Granter, IntentSignatures,
    IssuerSettings, KeyPair, Push, RemoteGovernor, ReportLog, SignerSettings, TokenIssuers, ToolTrust, Trust,
    read_secret,
};
use a2g_http::{CallerDirectory, ConsoleUrl, HttpServer, Rpc, Tls};
use a2g_isolate::{Cgroups, Isolation, ReuseLimits, RunAs, User};
use a2g_journal::chain::Head;
use a2g_journal::{
    BrokenError, IfMissing, Journal, JournalOptions, OpenError, RecoveredState, RecoverySummary,
};
use a2g_runtime::aside;
use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::{Egress, MAX_LOOKUPS};
use a2g_types::call::Door;
use a2g_types::clock::{Clock, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::{Issuer, ToolName};
use a2g_types::limit::{Group, LIMITS, LimitRow};
use a2g_types::memory;
use a2g_types::node::{NameError, NodeName};
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{Policy, ToolRule};
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::block_in_place;

/// The time between two attempts to lock a journal that another process has locked.
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// The maximum number of further attempts, 2 seconds in all. A lock belongs to the open file, which a child has too from its
/// `fork` to its `exec`: if a server is killed just then, its child keeps the lock for that long.
const MAX_LOCK_WAITS: u32 = 100;
/// Interval between checks for memory that can be returned to the system.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of bytes of large blocks that must be freed after one return of memory before the next.
const TRIM_BYTES: u64 = 4 << 20;
/// Maximum time for the delivery of reports after the last run has ended.
const LAST_DELIVERIES_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for the last receipts to be written while the disk is full.
const LAST_RECEIPTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for connections to send their last answers.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);
/// The same two, of a process that serves one host. A host waits for the end of its child and kills it soon, so all of
/// the end takes less than a second.
const HOST_LAST_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for runs to end after the end of a host's messages: enough for one short call that was piped in.
const HOST_DRAIN: Duration = Duration::from_millis(300);
/// Interval at which runs are aborted until none is left. A call may be claimed after the ones that run were aborted.
const ABORT_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time for the tasks of sessions to end.
const SESSIONS_END_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which an idle blocking thread ends. With tokio's default of 10 seconds, threads would remain for
/// longer than one second after a run, but the resources of a run must be released within one second.
const THREAD_KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Number of blocking threads in addition to those for guests and DNS look-ups. The server runs its own
/// blocking work on them, such as setting up the control group of a child.
const OWN_THREADS: usize = 16;
/// Maximum number of journals for processes that run at the same time, such as those that one agent host starts. Each
/// process needs its own.
pub(super) const MAX_JOURNALS: usize = 32;

/// The transport that messages arrive over.
pub(super) enum Transport {
    /// HTTP and WebSocket.
    Listen,
    /// Standard input and output.
    Stdio(StdioDoor),
}

/// The settings of one start that are not in the configuration.
pub(super) struct Launch {
    pub(super) transport: Transport,
    pub(super) accept_unsigned: Option<AcceptUnsigned>,
    pub(super) if_missing: IfMissing,
    /// The policies of the built-in governor, instead of the configured ones.
    pub(super) policies: Option<PolicySet>,
    /// Maximum number of journals: `journal-2.db` and so on are for a start while other processes write `journal.db`.
    pub(super) max_journals: usize,
}

impl Transport {
    fn select(arguments: &Serve, config: &Config) -> Result<Self, super::UsageError> {
        match arguments {
            Serve { stdio: true, .. } => Ok(Self::Stdio(StdioDoor::a2g())),
            Serve { a2e_stdio: true, .. } => {
                let door = StdioDoor::of(Door::A2e, config).map(Self::Stdio);
                let needs = "`--a2e-stdio` needs `doors.a2e.enabled`, which is false";
                door.ok_or_else(|| super::UsageError(needs.to_owned()))
            }
            Serve { .. } => Ok(Self::Listen),
        }
    }

    fn listens(&self) -> bool {
        matches!(self, Self::Listen)
    }

    /// The other end of standard input and output.
    fn peer(&self) -> Option<Peer> {
        match self {
            Self::Listen => None,
            Self::Stdio(door) => Some(door.peer),
        }
    }

    /// The time limits of the end. `drain` is the configured time for runs.
    fn end_timeouts(&self, drain: Option<Duration>) -> EndTimeouts {
        match self.peer() {
            None | Some(Peer::Process) => EndTimeouts {
                drain: drain.unwrap_or(DEFAULT_DRAIN),
                deliveries: LAST_DELIVERIES_TIMEOUT,
                answers: LAST_ANSWERS_TIMEOUT,
            },
            Some(Peer::Host) => EndTimeouts {
                drain: drain.unwrap_or(HOST_DRAIN),
                deliveries: HOST_LAST_TIMEOUT,
                answers: HOST_LAST_TIMEOUT,
            },
        }
    }
}

/// The time limits of the parts of the end of a process.
#[derive(Clone, Copy)]
struct EndTimeouts {
    /// For runs to end before they are aborted.
    drain: Duration,
    /// For the delivery of reports after the last run has ended.
    deliveries: Duration,
    /// For connections to send their last answers.
    answers: Duration,
}

pub(super) fn main(arguments: Serve) -> anyhow::Result<ExitCode> {
    memory::return_large_blocks_on_free();
    // Taken before any external input is read: from here on, nothing else in this process can take it.
    let authority = take_authority()?;
    let config = read_config(&arguments)?;
    let transport = Transport::select(&arguments, &config)?;
    let accept_unsigned =
        arguments.insecure_accept_unsigned.then(|| AcceptUnsigned::from_command_line(&authority));
    let granter = Granter::new(authority);
    if accept_unsigned.is_some() {
        if transport.listens() && !config.is_local() {
            bail!(super::UsageError(format!(
                "`--insecure-accept-unsigned` is allowed only on loopback addresses and sockets, and {}",
                listening_addresses(&config)
            )));
        }
        tracing::warn!("--insecure-accept-unsigned: any client that reaches this port decides what runs");
    }
    if transport.listens() {
        check_exposure(&config)?;
    }
    let if_missing = if arguments.new_journal { IfMissing::CreateAnyway } else { IfMissing::Create };
    run(&config, granter, Launch { transport, accept_unsigned, if_missing, policies: None, max_journals: 1 })
}

/// Serves until standard input ends or a signal arrives.
pub(super) fn run(config: &Config, granter: Granter, launch: Launch) -> anyhow::Result<ExitCode> {
    config.check_mounts()?;
    let contained = inspect_containment(config, launch.transport.listens().then_some(&config.listen))?;
    warn_about_root(config, contained.run_as);
    warn_about_unwritable(config, contained.run_as);
    let guests = config.capacity.concurrent.saturating_mul(2);
    let max_threads = guests.saturating_add(MAX_LOOKUPS + OWN_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(max_threads)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .build()?;
    aside::prepare();
    let cgroup_guard = CgroupGuard::create(config);
    let result = runtime.block_on(serve(config, &cgroup_guard, &contained, granter, launch));
    match result {
        // This does not wait for threads, because a guest that is stuck in a host call keeps its thread.
        Ok(()) => runtime.shutdown_background(),
        // Leaked on purpose: dropping the runtime would make the timers of its tasks panic, and the panic would look
        // like the cause. The tasks end with the process.
        Err(_) => std::mem::forget(runtime),
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// `config check`: reads the configuration and the files that it names, and prints the effective settings.
pub(super) fn check(setup: &Setup) -> anyhow::Result<ExitCode> {
    let checked = CheckedConfig::read(setup)?;
    let config = &checked.config;
    checked.print_access();
    for door in DOORS {
        (door.print_rows)(config)?;
    }
    checked.print_decisions();
    print_files(config);
    print_isolation(config, checked.run_as);
    print_limits(config);
    print_folders(config);
    print("the configuration is valid");
    Ok(ExitCode::SUCCESS)
}

/// A configuration whose files can be used, with the contents that `config check` describes.
struct CheckedConfig {
    config: Config,
    run_as: RunAs,
    trust: Trust,
    /// The policies of the built-in governor; `None`: a remote one has its own.
    policies: Option<PolicySet>,
    callers: Option<Callers>,
}

impl CheckedConfig {
    fn read(setup: &Setup) -> anyhow::Result<Self> {
        if let Some(tools) = setup.tools.as_ref().filter(|tools| !tools.is_dir()) {
            bail!(super::UsageError(format!("`--tools` is `{}`, which is not a folder", tools.display())));
        }
        let mut config = config(setup)?;
        let origin = file(setup).unwrap_or(Path::new("the defaults"));
        config.check_paths(origin)?;
        config.check_folders(origin)?;
        config.check_tool_names(origin)?;
        let run_as = check_containment(&config, Some(&config.listen))?;
        if let Some(fleet) = &config.fleet {
            read_fleet_key(&fleet.key_file)?;
            fleet.login.check_files()?;
        }
        let trust = Trust::read(&config.trust, config.did.clone())?;
        config.trust.signature.as_ref().map(IntentSignatures::read).transpose()?;
        let has_own_governor = config.governor.is_none();
        let policies = has_own_governor.then(|| configured_policies(&config)).transpose()?;
        if let Some(path) = config.reports.as_deref().filter(|_| has_own_governor) {
            ReportLog::check(path).with_context(|| describe_unusable_log(path))?;
        }
        check_exposure(&config)?;
        let issuers = TokenIssuers::read(&config.issuers).context("`server.issuer.keys`")?;
        let callers = config.callers.as_deref().map(|path| Callers::read(path, issuers)).transpose()?;
        config.tls.clone().map(Tls::read).transpose()?;
        ToolTrust::read(config.signers.as_deref(), Arc::new(SystemClock))
            .context("`catalog.trust.signer.key_file`")?;
        for door in DOORS {
            (door.check)(&config)?;
        }
        Ok(Self { config, run_as, trust, policies, callers })
    }

    /// Prints who may call, and whose tools are accepted.
    fn print_access(&self) {
        let Self { config, callers, .. } = self;
        let tls = if config.tls.is_some() { ", with TLS" } else { "" };
        print_row("listen", format_args!("{}{tls}", config.listen));
        match (&config.callers, callers.as_ref().and_then(Callers::count)) {
            (Some(path), Some(count)) => print_row("callers", format_args!("{count} in {}", path.display())),
            _ => print_row("callers", "any, without authentication"),
        }
        for (caller, issuer) in callers.iter().flat_map(Callers::with_unknown_issuer) {
            note(format_args!(
                "warning: `{}` presents a JWT from {issuer}: {UNKNOWN_ISSUER_WARNING}",
                one_line(caller)
            ));
        }
        for IssuerSettings { issuer, keys, audience } in &config.issuers {
            print_row("issuer", format_args!("{issuer}, keys in {}, audience {audience}", keys.display()));
        }
        for SignerSettings { name, key_file, tools } in config.signers.iter().flatten() {
            let key_file = key_file.display();
            print_row("signer", format_args!("{name}, of {}, key in {key_file}", list(tools)));
        }
    }

    /// Prints who decides, and whose verdicts and intents are accepted.
    fn print_decisions(&self) {
        let Self { config, trust, policies, .. } = self;
        for ApprovalRule { tools, min_risk, required } in &config.approval_rules {
            let named = if tools.is_empty() { "every tool".to_owned() } else { list(tools) };
            print_row("approvals", format_args!("{required} for {named}, from a risk of {min_risk}"));
        }
        print_row("governor", config.governor.as_ref().map_or("built in".to_owned(), GovernorUrl::redact));
        if let Some(policies) = policies {
            let source =
                config.policies.as_ref().map_or("built in".to_owned(), |path| path.display().to_string());
            print_row("policies", format_args!("{source}, for {}", list(policies.agents())));
            let is_program = |tool: &ToolName| {
                let manifest = ToolManifest::read(&config.catalog.join(tool.as_str()).join("tool.toml"));
                manifest.is_ok_and(|manifest| manifest.capabilities.calls == CallTargets::All)
            };
            for warning in warn_about_programs(policies, is_program) {
                note(format_args!("warning: {warning}"));
            }
            let RiskThresholds { conditions_from, escalate_from, deny_from } = config.risk;
            if policies.cedar().is_none() {
                print_row(
                    "risk",
                    format_args!(
                        "conditions from {conditions_from}, a person from {escalate_from}, denied from {deny_from}"
                    ),
                );
            }
            if !config.observe.is_empty() {
                print_row("observed", format_args!("{}, which change no outcome", list(&config.observe)));
            }
        }
        if let Some(FleetSettings { name, node, servers, .. }) = &config.fleet {
            print_row("fleet", format_args!("{name}, as {node}, servers of NATS: {}", servers.len()));
        }
        match &config.trust.keys {
            Some(keys) => {
                print_row("trust", format_args!("keys in {}: {}", keys.display(), trust.key_count()));
            }
            None => print_row("trust", "no keys: `a2g/execute` refuses every verdict"),
        }
        if let Some(signature) = &config.trust.signature {
            print_row("intents", format_args!("signed with the key in {}", signature.key_file.display()));
        }
    }
}

fn print_files(config: &Config) {
    let durability = config.durability.as_str();
    print_row("journal", format_args!("{}, survives: {durability}", config.journal.display()));
    print_row("effects", config.effects.display());
    print_row("tools", config.catalog.display());
    print_row("cache", config.cache.display());
    for tool in &config.remote_tools {
        print_row("remote", &tool.reference);
    }
}

fn print_isolation(config: &Config, run_as: RunAs) {
    match config.isolation {
        Isolation::Process => {
            let waiting = config.waiting;
            print_row("isolation", format_args!("a process for each run, {waiting} forked ahead of time"));
            let AddressLayout { renew_after_runs, renew_after_time, per_child } = config.layout;
            let seconds = renew_after_time.as_secs();
            let shared = format!("one layout for at most {renew_after_runs} runs, within {seconds} s");
            print_row("addresses", if per_child { "a layout of its own for each run" } else { &shared });
        }
        Isolation::Inline => print_row("isolation", "inline: tools run on threads of the server"),
    }
    print_users(config, run_as);
    if !config.inline_tools.is_empty() {
        print_row("inline", list(&config.inline_tools));
    }
    let Reuse { tools, limits: ReuseLimits { runs, idle } } = &config.reuse;
    if !tools.is_empty() {
        print_row(
            "reused",
            format_args!(
                "processes of {}, for up to {runs} runs, at most {} ms apart",
                list(tools),
                idle.as_millis()
            ),
        );
    }
}

fn print_limits(config: &Config) {
    let Capacity { concurrent, concurrent_per_agent, queue, queue_per_agent } = config.capacity;
    print(format_args!("runs        {concurrent} concurrent, {queue} waiting"));
    print(format_args!("per agent   {concurrent_per_agent} concurrent, {queue_per_agent} waiting"));
    let ceilings = &config.ceilings;
    let summary = |is_shown: fn(&LimitRow) -> bool| {
        let rows = LIMITS.iter().filter(|row| is_shown(row));
        let texts = rows.map(|row| row.summarize(ceilings.limits.limited(row.limit)));
        texts.collect::<Vec<_>>().join(", ")
    };
    print(format_args!(
        "ceilings    {}, network {}, files {}, file changes {}",
        summary(|row| row.group == Group::Run),
        if ceilings.network { "allowed" } else { "off" },
        ceilings.access.as_str(),
        ceilings.effects.as_str()
    ));
    print(format_args!(
        "budgets     {}, hard-linked files {}",
        summary(LimitRow::is_budget),
        if ceilings.hard_links { "opened" } else { "refused" }
    ));
    print(format_args!("calls       {}", summary(|row| row.group == Group::Calls)));
    if !config.secrets.is_empty() {
        let names = list(config.secrets.iter().map(|secret| secret.binding.name()));
        print_row("secrets", format_args!("{names}; `a2g-executor secret check` reads them"));
    }
    if ceilings.network {
        let hosts = list(ceilings.hosts.allowed.iter().flatten());
        let allowed = match (hosts.as_str(), ceilings.tool_hosts.is_empty()) {
            ("", true) => {
                "no hosts, so no run has a network: `a2g-executor tool allow NAME https://HOST` gives a tool one"
            }
            ("", false) => "no hosts, but for these tools:",
            (hosts, _) => hosts,
        };
        print_row("network", allowed);
        for (tool, own) in &ceilings.tool_hosts {
            print_row(
                "",
                format_args!("{tool}: {}", if own.is_empty() { "none".to_owned() } else { list(own) }),
            );
        }
    }
}

/// Prints the folders that tools may use.
fn print_folders(config: &Config) {
    print_row("scope", list(&config.ceilings.areas));
    if let Some(scope_note) = &config.scope_note {
        note(format_args!("note: {scope_note}"));
    }
    for mount in config.mounts.as_slice() {
        print_row("mount", format_args!("{} is {}", mount.guest.path(), mount.host.display()));
    }
}

/// Prints the user that tools run as; for [`RunAs::Owner`], the user in each folder.
fn print_users(config: &Config, run_as: RunAs) {
    match run_as {
        RunAs::Server => {}
        RunAs::User(user) => print_row("user", format_args!("{user} for every run")),
        RunAs::Owner => {
            let nobody = User::NOBODY;
            print_row("user", format_args!("{nobody} for runs without files, and the owner of the folders:"));
            for (folder, owner) in owners(config) {
                match run_as.user_for([owner]) {
                    Some(user) => print_row("", format_args!("{user} in {}", folder.display())),
                    None => print_row(
                        "",
                        format_args!(
                            "root in {}, because root owns that folder: {ANOTHER_USER_ADVICE}",
                            folder.display()
                        ),
                    ),
                }
            }
        }
    }
}

fn read_config(arguments: &Serve) -> anyhow::Result<Config> {
    let mut config = config(&arguments.setup)?;
    if let Some(listen) = &arguments.listen {
        config.listen.clone_from(listen);
    }
    if let Some(url) = &arguments.governor {
        config.governor =
            Some(GovernorUrl::parse(url).map_err(|error| super::UsageError(error.to_string()))?);
    }
    if let Some(policies) = &arguments.policies {
        config.policies = Some(policies.clone());
        config.governor = None;
    }
    if let Some(reports) = &arguments.reports {
        config.reports = Some(reports.clone());
    }
    config.check_paths(Path::new("the command line"))?;
    Ok(config)
}

async fn serve(
    config: &Config,
    cgroup_guard: &CgroupGuard,
    contained: &InspectedContainment,
    granter: Granter,
    launch: Launch,
) -> anyhow::Result<()> {
    let Launch { transport, accept_unsigned, if_missing, policies, max_journals } = launch;
    let end_timeouts = transport.end_timeouts(config.drain);
    let startup = Startup { config, contained, cgroups: cgroup_guard.share(), accept_unsigned };
    let tools_runtime = startup.make_tool_runtime()?;
    let governing = startup.open_governor(&tools_runtime, granter, policies)?;
    startup.limit_memory();
    let trust = Trust::read(&config.trust, config.did.clone())?;
    let tools = startup.start_tools(tools_runtime).await?;
    check_policies(&governing.governor, &tools.loaded)?;
    let records = startup.open_records(if_missing, max_journals, &tools.runtime.clock)?;
    if tools.loaded.is_empty() {
        tracing::warn!(folder = %config.catalog.display(), "there are no tools in the catalogue: add some with `a2g-executor tool add`, or name another folder");
    }
    if transport.peer() == Some(Peer::Host) {
        // Printed whatever the level of the log is, because each of several processes has a journal of its own.
        note(format_args!("the journal of this process is {}", one_line(records.path.display())));
    }
    let assembled = startup.assemble(governing, trust, tools, records).await?;
    match transport {
        Transport::Listen => {
            // Bound before the registration and the deliveries start: an executor that cannot be reached must not
            // register.
            let http_server = assembled.bind().await?;
            assembled.start_tasks()?.serve_http(http_server, end_timeouts).await
        }
        Transport::Stdio(door) => assembled.start_tasks()?.serve_stdio(door, end_timeouts).await,
    }
}

/// A start of the server, up to its executor. The steps are in the order of [`serve`].
struct Startup<'a> {
    config: &'a Config,
    contained: &'a InspectedContainment,
    cgroups: Option<Arc<Cgroups>>,
    accept_unsigned: Option<AcceptUnsigned>,
}

/// The governor, and the settings by which its verdicts are admitted.
struct Governing {
    governor: Governor,
    /// The messages that a remote governor pushes.
    pushes: Option<mpsc::Receiver<Push>>,
    settings: ExecutorSettings,
}

/// The tools, with the processes in which they run.
struct Tools {
    runtime: Arc<ToolRuntime>,
    loaded: LoadedCatalog,
    egress: Option<Arc<Egress>>,
}

/// The open journal, and the fleet that was joined while it was opened.
struct Records {
    journal: Journal,
    path: PathBuf,
    fleet: Option<Arc<Fleet>>,
    registration: Registration,
}

/// The facts of this executor that a remote governor is told.
struct Registration {
    /// The key that signs checkpoints.
    key: Option<KeyPair>,
    public_key: Option<String>,
    /// The last receipt of earlier processes.
    head_at_start: Head,
}

impl<'a> Startup<'a> {
    fn make_tool_runtime(&self) -> anyhow::Result<ToolRuntime> {
        let concurrent = u32::try_from(self.config.capacity.concurrent)?;
        let report = |text: std::fmt::Arguments<'_>| tracing::info!("{text}");
        ToolRuntime::new(self.config, concurrent, self.cgroups.clone(), self.contained.run_as, report)
    }

    fn open_governor(
        &self,
        tools_runtime: &ToolRuntime,
        granter: Granter,
        policies: Option<PolicySet>,
    ) -> anyhow::Result<Governing> {
        let config = self.config;
        let (governor, pushes) = governor(config, tools_runtime, policies)?;
        let settings = ExecutorSettings {
            granter,
            ceilings: config.ceilings.clone(),
            mounts: config.mounts.clone(),
            capacity: config.capacity,
            accept_unsigned: self.accept_unsigned,
            approval_rules: config.approval_rules.clone(),
            signatures: config
                .trust
                .signature
                .as_ref()
                .map(IntentSignatures::read)
                .transpose()?
                .map(Arc::new),
            sessions: config.sessions,
        };
        Ok(Governing { governor, pushes, settings })
    }

    /// Sets the budget of memory, and warns about settings that allow less than they seem to.
    fn limit_memory(&self) {
        let config = self.config;
        if let Some(scope_note) = &config.scope_note {
            tracing::warn!("{scope_note}");
        }
        memory::set_budget(config.memory.bytes(), config.caller_share());
        if config.max_expected_output() > config.memory.bytes() {
            tracing::warn!(
                "`server.max_memory_mb` is too small for the output of `executor.concurrent` runs with `ceilings.max_output_bytes` \
                 each: fewer runs can be concurrent"
            );
        }
    }

    async fn start_tools(&self, tools_runtime: ToolRuntime) -> anyhow::Result<Tools> {
        let config = self.config;
        let runtime = Arc::new(tools_runtime.with_definitions(recorded_definitions(config)));
        config.check_tool_names(Path::new("the configuration"))?;
        let loaded = runtime.start(config, runtime.read_catalog(config)?, config.waiting).await?;
        let egress = runtime.egress(config)?;
        Ok(Tools { runtime, loaded, egress })
    }

    /// Opens the journal and joins the fleet, with the keys of both.
    fn open_records(
        &self,
        if_missing: IfMissing,
        max_journals: usize,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Records> {
        let key = self.config.journal_key.as_deref().map(KeyPair::read).transpose()?;
        let (journal, path, fleet) = journal(self.config, if_missing, max_journals, clock)?;
        let public_key = public_key(self.config, key.as_ref())?;
        let registration = Registration { key, public_key, head_at_start: journal.head() };
        Ok(Records { journal, path, fleet, registration })
    }

    /// Makes the executor, and what answers its callers.
    async fn assemble(
        self,
        governing: Governing,
        trust: Trust,
        tools: Tools,
        records: Records,
    ) -> anyhow::Result<Assembled<'a>> {
        let config = self.config;
        let Governing { governor, pushes, settings } = governing;
        let Tools { runtime, loaded, egress } = tools;
        let Records { journal, path, fleet, registration } = records;
        let passes_calls = config.fleet.as_ref().is_some_and(|fleet| fleet.passes_calls);
        let clock = Arc::clone(&runtime.clock);
        let effects = EffectsLocation::of_journal(&config.effects, &path);
        let parts = ExecutorParts {
            loaded,
            governor,
            trust,
            egress,
            journal,
            effects,
            effects_settings: config.effects_settings,
            fleet,
            passes_calls,
            clock,
        };
        let executor = Arc::new(Executor::new(settings, parts));
        if let Governor::Local(local, _) = executor.policies.governor() {
            let mut programs = executor.catalogue.tools().to_vec();
            programs.retain(|tool| tool.capabilities.calls == CallTargets::All);
            let is_program = |name: &ToolName| programs.iter().any(|tool| tool.name == *name);
            for warning in warn_about_programs(local.policies(), is_program) {
                tracing::warn!("{warning}");
            }
        }
        // Before the first decision, which may depend on it.
        let read = executor.read_history().await;
        read.context(
            "the calls of the last 24 hours, which the policies read, cannot be read from the journal",
        )?;
        // Before anything runs: a file that a run reads is as the receipts say.
        let recovered = executor.recover_effects().await;
        recovered.context("the file changes of earlier runs cannot be looked at")?;
        // Before the port is bound: what other nodes have stopped must not run here.
        let followed = executor.membership.follow_earlier_orders().await;
        followed.context("the orders of the fleet cannot be read")?;
        executor.session_tasks().spawn(trim_memory());
        let methods = a2g_door_a2g::methods(Arc::clone(&executor))?;
        let rpc = Rpc::new(methods.into(), config.bounds, a2g_door_a2g::NOTIFICATIONS);
        let caller_files =
            CallerFiles::read(config, self.accept_unsigned, executor.policies.callers().clone())?;
        let catalogue = ServedCatalog {
            executor,
            tools_runtime: runtime,
            config: config.clone(),
            reloads: Mutex::default(),
        };
        Ok(Assembled {
            startup: self,
            catalogue: Arc::new(catalogue),
            rpc,
            caller_files,
            journal: path,
            pushes,
            registration,
        })
    }
}

/// A server with an executor, before it accepts or delivers anything.
struct Assembled<'a> {
    startup: Startup<'a>,
    catalogue: Arc<ServedCatalog>,
    rpc: Rpc,
    caller_files: CallerFiles,
    /// The file of the journal.
    journal: PathBuf,
    pushes: Option<mpsc::Receiver<Push>>,
    registration: Registration,
}

impl Assembled<'_> {
    /// Opens the doors, and binds `server.listen`. A port of the console's own starts to serve here.
    async fn bind(&self) -> anyhow::Result<HttpServer> {
        let config = self.startup.config;
        let parts = DoorParts {
            config,
            executor: &self.catalogue.executor,
            callers: &self.caller_files.callers,
            tls: self.caller_files.tls.as_ref(),
            console_url: ConsoleUrl::default(),
            journal: &self.journal,
            contained: self.startup.contained,
            has_cgroups: self.startup.cgroups.is_some(),
        };
        let mut routers = Vec::new();
        let mut when_bound = Vec::new();
        for door in DOORS {
            let opened = (door.open)(&parts).await?;
            routers.extend(opened.routers);
            when_bound.extend(opened.on_bound);
        }
        let server = HttpServer::bind(&config.listen, self.rpc.clone(), parts.http_settings(routers))
            .await
            .with_context(|| {
            format!(
                "cannot listen on {} (`server.listen`, or `--listen` of `a2g-executor serve`)",
                config.listen
            )
        })?;
        if let Some(origin) = server.origin() {
            for on_bound in when_bound {
                on_bound(&origin)?;
            }
        }
        Ok(server)
    }

    /// Starts the reloads, the deliveries and the registration.
    fn start_tasks(self) -> anyhow::Result<Started> {
        let Self { startup, catalogue, rpc, caller_files, journal, pushes, registration } = self;
        let executor = &catalogue.executor;
        let sessions = executor.session_tasks();
        if let Some(pushes) = pushes {
            sessions.spawn(deliver::follow_pushes(Arc::clone(executor), pushes));
        }
        // Installed before the log says that the executor listens: without a handler, SIGHUP would end the process.
        let hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be received")?;
        let stop_signals = StopSignals::install()?;
        let callers = caller_files.callers.clone();
        sessions.spawn(reload_on_hangup(hangup, Arc::clone(&catalogue), caller_files));
        sessions.spawn(deliver::deliver_reports(Arc::clone(executor)));
        sessions.spawn(Arc::clone(&executor.membership).keep_fleet());
        sessions.spawn(Arc::clone(executor).end_expired_waits());
        executor.operator.resume_approved();
        let Registration { key, public_key, head_at_start } = registration;
        let Config { did, heartbeat, .. } = startup.config;
        sessions.spawn(deliver::stay_registered(
            Arc::clone(executor),
            did.clone(),
            *heartbeat,
            key,
            public_key,
            head_at_start,
        ));
        let anonymous = Arc::new(Caller::anonymous(startup.accept_unsigned));
        Ok(Started { catalogue, rpc, callers, anonymous, journal, stop_signals })
    }
}

/// A server whose tasks run.
struct Started {
    catalogue: Arc<ServedCatalog>,
    rpc: Rpc,
    callers: CallerDirectory,
    /// The caller on standard input and output, where no list of callers matters.
    anonymous: Arc<Caller>,
    /// The file of the journal.
    journal: PathBuf,
    stop_signals: StopSignals,
}

impl Started {
    /// Serves until a signal arrives, or an operator drains this node of a fleet.
    async fn serve_http(self, http_server: HttpServer, end_timeouts: EndTimeouts) -> anyhow::Result<()> {
        let Self { catalogue, stop_signals, .. } = self;
        let executor = Arc::clone(&catalogue.executor);
        let sessions = executor.session_tasks();
        let tools = executor.catalogue.tools().len();
        tracing::info!(tools, "the executor listens on {}", http_server.url());
        let names = executor.catalogue.catalog().preparing_tools();
        sessions.spawn(catalogue.prepare(names));
        let executor_to_close = Arc::clone(&executor);
        let (drained, until_drained) = oneshot::channel::<()>();
        let server = sessions.spawn(http_server.serve(async move {
            tokio::select! {
                () = stop_signals.wait() => executor_to_close.close(),
                // If an operator drains this node of a fleet, no signal comes; the last answers still have to be sent.
                _ = until_drained => {}
            }
        }));
        // The stop signal closes the executor; open requests are answered while it drains.
        tokio::select! {
            () = executor.wait_until_closed() => {}
            reason = executor.journal.wait_until_broken() => return Err(abort_broken(&executor, &reason)),
        }
        drain(&executor, end_timeouts).await?;
        executor.membership.leave_fleet().await;
        let _stopped_by_a_signal = drained.send(());
        let _ignored = tokio::time::timeout(end_timeouts.answers, server).await;
        end_sessions(sessions).await;
        Ok(())
    }

    /// Serves until standard input ends or a signal arrives.
    async fn serve_stdio(self, door: StdioDoor, mut end_timeouts: EndTimeouts) -> anyhow::Result<()> {
        let Self { catalogue, rpc, callers, anonymous, journal, stop_signals } = self;
        let executor = Arc::clone(&catalogue.executor);
        let sessions = executor.session_tasks();
        let bounds = catalogue.config.bounds;
        let names = executor.catalogue.catalog().preparing_tools();
        sessions.spawn(catalogue.prepare(names));
        let (input_ended_tx, input_ended) = oneshot::channel::<()>();
        let mut server = sessions.spawn((door.serve)(StdioParts {
            executor: Arc::clone(&executor),
            rpc,
            bounds,
            callers,
            anonymous,
            journal,
            input_ended: input_ended_tx,
        }));
        let ended = tokio::select! {
            ended = &mut server => Some(ended),
            Ok(()) = input_ended => {
                // Answers to calls that run for long would reach nobody.
                end_timeouts.drain = HOST_DRAIN;
                None
            }
            () = stop_signals.wait() => None,
            reason = executor.journal.wait_until_broken() => return Err(abort_broken(&executor, &reason)),
        };
        executor.close();
        drain(&executor, end_timeouts).await?;
        executor.membership.leave_fleet().await;
        let result = match ended {
            Some(ended) => ended?.transpose().map(drop),
            None => {
                let _ignored = tokio::time::timeout(end_timeouts.answers, server).await;
                Ok(())
            }
        };
        end_sessions(sessions).await;
        Ok(result?)
    }
}

/// Ends the tasks that still serve sessions, and logs a warning if any does not end in time.
pub(super) async fn end_sessions(sessions: &SessionTasks) {
    let tasks = sessions.count();
    match sessions.end(SESSIONS_END_TIMEOUT).await {
        0 => tracing::debug!(tasks, "the tasks of all sessions have ended"),
        remaining => tracing::warn!(tasks, remaining, "tasks of sessions did not end in time"),
    }
}

/// Returns freed memory to the system once a burst of large messages and results is over. Runs until the process ends.
async fn trim_memory() {
    let mut at_last_trim = 0;
    let mut at_last_check = 0;
    loop {
        tokio::time::sleep(TRIM_INTERVAL).await;
        let now = memory::freed_large_block_bytes();
        let since_trim = now - at_last_trim;
        let since_check = now - at_last_check;
        at_last_check = now;
        if since_trim >= TRIM_BYTES && since_check <= since_trim / 4 {
            at_last_trim = now;
            let _ignored = tokio::task::spawn_blocking(memory::trim).await;
        }
    }
}

/// Opens the journal, and joins the fleet if there is one. If another process uses the journal, opens the first
/// numbered journal that no process uses, of at most `max_journals` journals in all; for the last of them, it waits a
/// little. Logs the interrupted runs and undelivered reports of the previous process.
fn journal(
    config: &Config,
    if_missing: IfMissing,
    max_journals: usize,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(Journal, PathBuf, Option<Arc<Fleet>>)> {
    let fleet_key = config.fleet.as_ref().map(|fleet| read_fleet_key(&fleet.key_file)).transpose()?;
    let mut fleet = None;
    let mut number = 1;
    let mut waits = 0;
    let mut path = config.journal.clone();
    let (journal, recovery) = loop {
        let limits = config.journal_limits.clone();
        let Config { durability, synced_starts, .. } = *config;
        let options = JournalOptions { if_missing, durability, synced_starts, limits };
        let result =
            Journal::open_with_ends(&path, config.max_undelivered, options, clock.now(), |interrupted| {
                let Some((settings, key)) = config.fleet.as_ref().zip(fleet_key.clone()) else {
                    return Ok(RecoveredState::default());
                };
                let node = numbered_node(&settings.node, number)?;
                let settings = FleetSettings { node, ..settings.clone() };
                let join = join_fleet(&settings, key, Arc::clone(clock), interrupted);
                // `block_on` needs a thread of its own; the runtime has several.
                let (joined, state) = block_in_place(|| Handle::current().block_on(join))?;
                let stream = &joined.member.identity().id;
                tracing::info!(fleet = %settings.name, node = %settings.node, %stream, "joined the fleet");
                fleet = Some(joined);
                Ok(state)
            });
        match result {
            Err(OpenError::InUse(_)) if number < max_journals => {
                number += 1;
                path = numbered_journal(&config.journal, number);
            }
            Err(OpenError::InUse(_)) if waits < MAX_LOCK_WAITS => {
                if waits == 0 {
                    tracing::warn!(journal = %path.display(), "the journal is locked, perhaps by a process that is ending: waiting up to 2 seconds");
                }
                waits += 1;
                std::thread::sleep(LOCK_WAIT);
            }
            other => break other?,
        }
    };
    journal.prune_regularly(config.retention).context("`journal.keep_days`")?;
    let RecoverySummary { aborted, undelivered } = recovery;
    if aborted > 0 {
        tracing::warn!(
            aborted,
            "runs were interrupted when the executor last ended, and are reported as such"
        );
    }
    let receipts = journal.head().number;
    let durability = journal.durability().as_str();
    tracing::info!(journal = %path.display(), receipts, undelivered, durability, "journal");
    Ok((journal, path, fleet))
}

/// Reads the key of a fleet.
pub(super) fn read_fleet_key(path: &Path) -> anyhow::Result<FleetKey> {
    let text = read_secret(path).context("`fleet.key_file`")?;
    FleetKey::parse(text.trim_ascii_end()).with_context(|| {
        format!(
            "`{}` (`fleet.key_file`) has to contain 64 hexadecimal digits in lower case: make one with \
             `(umask 077; openssl rand -hex 32 > FILE)`, and copy it to all nodes",
            path.display()
        )
    })
}

/// The name in the fleet of one of several processes that run at the same time.
fn numbered_node(node: &NodeName, number: usize) -> Result<NodeName, NameError> {
    if number == 1 { Ok(node.clone()) } else { NodeName::try_from(format!("{node}-{number}")) }
}

/// The journal of one of several processes that run at the same time.
fn numbered_journal(journal: &Path, number: usize) -> PathBuf {
    journal.with_file_name(format!("journal-{number}.db"))
}

/// The numbered journals next to this one, which processes wrote while another process used this one.
pub(super) fn other_journals(journal: &Path) -> Vec<PathBuf> {
    (2..=MAX_JOURNALS).map(|number| numbered_journal(journal, number)).filter(|path| path.exists()).collect()
}

/// The public key for the registration with a remote governor: that of `journal.key`, or else that of a separate key,
/// which the first start creates next to the journal and later starts read, because a governor expects the same key at
/// every start. `None` if `journal.key` is not set and the governor is built in.
///
/// The separate key signs nothing: a signed checkpoint has to mean that an operator chose a key for the journal.
fn public_key(config: &Config, journal_key: Option<&KeyPair>) -> anyhow::Result<Option<String>> {
    if let Some(key) = journal_key {
        return Ok(Some(key.public().public_key()));
    }
    if config.governor.is_none() {
        return Ok(None);
    }
    let mut path = config.journal.clone().into_os_string();
    path.push(".jwk");
    let key = KeyPair::read_or_create(Path::new(&path), Issuer::parse(config.did.as_str())?)?;
    Ok(Some(key.public().public_key()))
}

/// Aborts all runs immediately, because their receipts can no longer be recorded.
fn abort_broken(executor: &Executor, reason: &BrokenError) -> anyhow::Error {
    executor.close();
    executor.abort_all();
    anyhow::anyhow!("{}; see `docs/operations.md`", ErrorChain(reason))
}

/// Checks that a port without authentication is reachable only from this machine.
fn check_exposure(config: &Config) -> Result<(), super::UsageError> {
    if config.callers.is_some() || config.is_local() {
        return Ok(());
    }
    Err(super::UsageError(format!(
        "{}, where other machines can call, and callers are not authenticated: list them in `server.callers` \
         (`a2g-executor caller new`), or listen on a loopback address or a socket",
        listening_addresses(config)
    )))
}

/// Names the configured addresses, as a clause.
fn listening_addresses(config: &Config) -> String {
    let server = format!("`server.listen` is {}", config.listen);
    match &config.console.listen {
        None => server,
        Some(console) => format!("{server} and `console.listen` is {console}"),
    }
}

/// The warning about a caller whose issuer is not configured.
pub(super) const UNKNOWN_ISSUER_WARNING: &str =
    "no `[[server.issuer]]` has that name, so its tokens are rejected";

/// The list of callers and the TLS files, which SIGHUP reloads.
struct CallerFiles {
    callers: CallerDirectory,
    /// The list of `callers`.
    current: CurrentCallers,
    tls: Option<Arc<Tls>>,
}

impl CallerFiles {
    /// Reads the files, and replaces the executor's list `current`.
    fn read(
        config: &Config,
        accept_unsigned: Option<AcceptUnsigned>,
        current: CurrentCallers,
    ) -> anyhow::Result<Self> {
        let issuers = TokenIssuers::read(&config.issuers).context("`server.issuer.keys`")?;
        let listed = config.callers.as_deref().map(|path| Callers::read(path, issuers)).transpose()?;
        for (caller, issuer) in listed.iter().flat_map(Callers::with_unknown_issuer) {
            tracing::warn!(caller, %issuer, "{UNKNOWN_ISSUER_WARNING}");
        }
        current.replace(listed.unwrap_or_else(|| Callers::anonymous(accept_unsigned)));
        let callers = CallerDirectory::new(current.clone());
        let tls = config.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
        if tls.is_none() && !config.is_local() {
            tracing::warn!(
                listen = listening_addresses(config),
                "tokens are sent over the network unencrypted: see `server.tls`"
            );
        }
        Ok(Self { callers, current, tls })
    }

    /// Reloads callers and issuers. If the list of callers cannot be read, all callers are refused. If the keys of the
    /// issuers cannot be read, all JSON Web Tokens are rejected.
    fn reload_callers(&self, config: &Config, executor: &Executor) {
        let issuers = TokenIssuers::read(&config.issuers).unwrap_or_else(|error| {
            // Fails closed: an operator who removed a key must not have its tokens accepted because another file is
            // broken.
            tracing::error!(%error, "all JSON Web Tokens are rejected until the keys of all issuers can be read again");
            TokenIssuers::default()
        });
        let keys = issuers.key_count();
        // Approvals are forgotten as soon as the new list is in force, before other files are read. Approvals recorded
        // in between are checked against the new list.
        let replace = |callers| {
            self.current.replace(callers);
            executor.operator.forget_partial_approvals();
        };
        match config.callers.as_deref().map(|path| Callers::read(path, issuers)) {
            None => {}
            Some(Ok(callers)) => {
                let count = callers.count();
                replace(callers);
                tracing::info!(callers = count, keys, "callers reloaded");
            }
            // Fails closed: an operator who removed a caller must not have it accepted because of an error elsewhere in
            // the list.
            Some(Err(error)) => {
                replace(Callers::empty());
                tracing::error!(%error, "all callers are refused until the list can be read again");
            }
        }
    }

    /// Reloads the certificates. If they cannot be read, the old ones stay.
    fn reload_certificates(&self) {
        match self.tls.as_deref().map(Tls::reload) {
            None => {}
            Some(Ok(())) => tracing::info!("certificates reloaded"),
            Some(Err(error)) => {
                tracing::error!(error = %ErrorChain(&error), "the certificates cannot be reloaded, and the old ones stay")
            }
        }
    }
}

/// The catalogue of a server.
struct ServedCatalog {
    executor: Arc<Executor>,
    tools_runtime: Arc<ToolRuntime>,
    config: Config,
    /// The number of reloads, which is locked while the catalogue is changed.
    reloads: Mutex<u64>,
}

impl ServedCatalog {
    /// Compiles these tools, and publishes each as soon as it is ready, until the catalogue is reloaded. Meanwhile calls to
    /// those tools wait.
    async fn prepare(self: Arc<Self>, names: Vec<ToolName>) {
        let begun_with = *self.reloads.lock().await;
        let (entry_tx, mut entry_rx) = mpsc::unbounded_channel();
        let this = Arc::clone(&self);
        tokio::task::spawn_blocking(move || {
            let forward = |entries: std::sync::mpsc::Receiver<_>| {
                // Dropping the receiver ends the compilation after the current modules.
                entries.into_iter().all(|entry| entry_tx.send(entry).is_ok())
            };
            let trust = this.tools_runtime.trust();
            let ToolRuntime { cache, definitions, .. } = &*this.tools_runtime;
            let folder = &this.config.catalog;
            prepare(names, folder, cache, &*this.tools_runtime, &trust, definitions, forward)
        });
        while let Some((name, entry)) = entry_rx.recv().await {
            let reloads = self.reloads.lock().await;
            if *reloads != begun_with {
                return;
            }
            let mut catalog = self.executor.catalogue.catalog();
            catalog.insert(name, entry);
            while let Ok((name, entry)) = entry_rx.try_recv() {
                catalog.insert(name, entry);
            }
            match self.tools_runtime.start(&self.config, catalog, self.config.waiting).await {
                Ok(loaded) => self.executor.catalogue.replace(loaded),
                Err(error) => {
                    tracing::error!(error = %ErrorChain(error.as_ref()), "the tools cannot be started")
                }
            }
        }
        tracing::info!(tools = self.executor.catalogue.tools().len(), "all tools are prepared");
    }

    /// Replaces the whole catalogue at once, and returns the tools that are still to be compiled; `None` if the old
    /// catalogue stays, because of an error.
    async fn reload(&self) -> Option<Vec<ToolName>> {
        let mut reloads = self.reloads.lock().await;
        block_in_place(|| self.tools_runtime.reload_trust(&self.config));
        let read = || {
            self.config.check_tool_names(Path::new("the configuration"))?;
            self.tools_runtime.read_catalog(&self.config)
        };
        let start = async {
            let mut catalog = block_in_place(read)?;
            let names = catalog.preparing_tools();
            self.keep_until_prepared(&mut catalog, &names);
            Ok((self.tools_runtime.start(&self.config, catalog, self.config.waiting).await?, names))
        };
        let started: anyhow::Result<_> = start.await;
        match started {
            Ok((loaded, names)) => {
                *reloads += 1;
                self.executor.catalogue.replace(loaded);
                Some(names)
            }
            Err(error) => {
                tracing::error!(error = %ErrorChain(error.as_ref()), "the catalogue cannot be reloaded, and the old one stays");
                None
            }
        }
    }

    /// Leaves the old version of a changed tool in use until the new one is compiled, so that it is never absent. Where
    /// signatures are required, an old version may be one whose signer is no longer trusted.
    fn keep_until_prepared(&self, catalog: &mut Catalog, names: &[ToolName]) {
        if self.tools_runtime.trust().requires_signatures() {
            return;
        }
        let old = self.executor.catalogue.catalog();
        for name in names {
            if let Some(entry @ CatalogEntry::Ready(_)) = old.get(name) {
                catalog.insert(name.clone(), entry.clone());
            }
        }
    }
}

/// At SIGHUP, reloads the callers, the certificates, the trusted keys, the signers of tools and the catalogue. If the
/// catalogue or the certificates cannot be read, the old ones stay. If the callers cannot be read, none is accepted; if
/// the trusted keys cannot be read, none is trusted; if the signers cannot be read, no tool is accepted.
async fn reload_on_hangup(mut hangup: Signal, catalogue: Arc<ServedCatalog>, caller_files: CallerFiles) {
    while hangup.recv().await.is_some() {
        // Rights are revoked first, because reading the catalogue may take long.
        caller_files.reload_callers(&catalogue.config, &catalogue.executor);
        caller_files.reload_certificates();
        reload_trust(&catalogue.executor, &catalogue.config);
        catalogue.executor.engine.forget_secrets();
        let Some(names) = catalogue.reload().await else { continue };
        let reloaded = Arc::clone(&catalogue);
        catalogue.executor.session_tasks().spawn(async move {
            if !names.is_empty() {
                Arc::clone(&reloaded).prepare(names).await;
            }
            tracing::info!(tools = reloaded.executor.catalogue.tools().len(), "catalogue reloaded");
        });
    }
}

fn reload_trust(executor: &Executor, config: &Config) {
    match Trust::read(&config.trust, config.did.clone()) {
        Ok(trust) => {
            let keys = trust.key_count();
            executor.policies.replace_trust(trust);
            tracing::info!(keys, "trusted keys reloaded");
        }
        // Fails closed: an operator who removed a key must not have it trusted because another file is broken.
        Err(error) => {
            executor.policies.replace_trust(Trust::empty(config.did.clone()));
            tracing::error!(%error, "no key is trusted until the keys can be read again");
        }
    }
}

/// Waits for runs to end, aborts those that do not in time, and delivers the last reports. Reports that are not
/// delivered in time wait in the journal for the next start.
async fn drain(executor: &Executor, timeouts: EndTimeouts) -> anyhow::Result<()> {
    let finish_runs = async {
        if tokio::time::timeout(timeouts.drain, executor.wait_until_idle()).await.is_err() {
            let stopped = executor.abort_all();
            tracing::warn!(stopped, "the drain limit was reached: runs are aborted");
            let _ignored = tokio::time::timeout(LAST_RECEIPTS_TIMEOUT, abort_until_idle(executor)).await;
        }
        let journal = &executor.journal;
        let deliveries = &journal.deliveries;
        if deliveries.undelivered_count() > 0 {
            tracing::info!(reports = deliveries.undelivered_count(), "delivering the last reports");
        }
        if tokio::time::timeout(timeouts.deliveries, deliveries.wait_until_delivered()).await.is_err() {
            let reports = deliveries.undelivered_count();
            tracing::warn!(reports, "reports were not delivered, and wait for the next start");
        }
        let flushed = tokio::time::timeout(LAST_RECEIPTS_TIMEOUT, journal.flush()).await;
        flushed.context("the journal has no disk space for the last receipts")?.map_err(anyhow::Error::from)
    };
    tokio::select! {
        result = finish_runs => result,
        reason = executor.journal.wait_until_broken() => Err(abort_broken(executor, &reason)),
    }
}

/// Aborts runs until none is left.
async fn abort_until_idle(executor: &Executor) {
    while tokio::time::timeout(ABORT_INTERVAL, executor.wait_until_idle()).await.is_err() {
        executor.abort_all();
    }
}

/// The configured governor, and the receiver of its pushed messages if it is a remote one.
fn governor(
    config: &Config,
    tools_runtime: &ToolRuntime,
    policies: Option<PolicySet>,
) -> anyhow::Result<(Governor, Option<mpsc::Receiver<Push>>)> {
    if let Some(url) = &config.governor {
        let (remote, pushes) = RemoteGovernor::new(url.clone())?;
        return Ok((Governor::Remote(Arc::new(remote)), Some(pushes)));
    }
    let effective = match policies {
        Some(policies) => policies,
        None => configured_policies(config)?,
    };
    let rules = config.approval_rules.clone();
    let local = LocalGovernor::new(effective, Arc::clone(&tools_runtime.clock))
        .with_open_areas(config.open_areas())
        .with_thresholds(config.risk)
        .with_max_requests(config.ceilings.network_budgets.requests.into())
        .with_joint_approvals(move |tool, risk| ApprovalRule::needs_several(&rules, tool, risk));
    let records = open_report_log(config.reports.as_deref())?;
    Ok((Governor::Local(Arc::new(local), Arc::new(records)), None))
}

/// A governor with the policies of a folder, or else with the built-in policy.
pub(super) fn local_governor(
    policies: Option<&Path>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<LocalGovernor> {
    Ok(LocalGovernor::new(load_policies(policies, &[])?, clock))
}

/// The policies that the configuration names, without settings that they would not follow.
pub(super) fn configured_policies(config: &Config) -> anyhow::Result<PolicySet> {
    let policies = load_policies(config.policies.as_deref(), &config.observe)?;
    check_thresholds(config, &policies)?;
    Ok(policies)
}

/// Checks that a configuration sets no thresholds for policies in Cedar, which would not follow them.
pub(super) fn check_thresholds(config: &Config, policies: &PolicySet) -> anyhow::Result<()> {
    if let Some(key) = config.given_threshold
        && policies.cedar().is_some()
    {
        bail!(super::UsageError(format!(
            "`{key}` is for policies in JSON, and those of `governor.policies` are in Cedar, where thresholds stand in rules: \
             remove it, and write a rule with `when {{ context.risk.score >= 70 }}` (0 to 100) that forbids, or has \
             `@escalate(\"…\")`"
        )));
    }
    Ok(())
}

fn load_policies(folder: Option<&Path>, observe: &[String]) -> anyhow::Result<PolicySet> {
    Ok(match (folder, observe.first()) {
        (Some(folder), _) => PolicySet::load_observing(folder, observe)?,
        (None, None) => PolicySet::builtin()?,
        (None, Some(file)) => bail!(PolicyFileError::ObservesJson { file: file.clone() }),
    })
}

/// The warnings about rules that give a program no file: `paths` without `grant_all_paths`, because the arguments of a
/// program do not name the files that its code names.
fn warn_about_programs(policies: &PolicySet, is_program: impl Fn(&ToolName) -> bool) -> Vec<String> {
    let find = |(policy, from): (&Policy, String)| {
        let has_paths = |rule: &ToolRule| rule.paths.as_ref().is_some_and(|paths| !paths.is_empty());
        let is_narrow = |rule: &ToolRule| rule.allowed && has_paths(rule) && !rule.grants_all_paths;
        let rules = policy.tools.iter().filter(|&(tool, rule)| is_narrow(rule) && is_program(tool));
        let tools = list(rules.map(|(tool, _)| tool));
        (!tools.is_empty()).then(|| {
            format!(
                "{from} has `paths` without `grant_all_paths` for {tools}: the files of a program are named in its code, \
                 and it gets none that its arguments do not name; add `\"grant_all_paths\": true` beside `paths`"
            )
        })
    };
    policies.iter().filter_map(find).collect()
}

/// Compiles policies in Cedar for these tools.
///
/// # Errors
/// If they do not fit the tools. Without tools, or with one that is broken or not described yet, they may fit soon: then
/// the server starts, and denies every call until they do.
fn check_policies(governor: &Governor, loaded: &LoadedCatalog) -> anyhow::Result<()> {
    governor.use_tools(loaded.described());
    match governor.cedar().and_then(CedarPolicies::error) {
        Some(error) if loaded.describes_all() => {
            bail!(super::UsageError(format!("the policies of `governor.policies`: {error}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Opens the file in which a governor records reports.
pub(super) fn open_report_log(path: Option<&Path>) -> anyhow::Result<ReportLog> {
    let Some(path) = path else { return Ok(ReportLog::default()) };
    ReportLog::append_to(path).with_context(|| describe_unusable_log(path))
}

fn describe_unusable_log(path: &Path) -> String {
    format!("reports cannot be recorded in `{}`", path.display())
}

/// The signals that ask the process to end: SIGTERM and Ctrl-C.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Installs the handlers. Until then a signal ends the process at once, so this comes before the log says that the
    /// process listens.
    pub(super) fn install() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be received")?;
        let interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be received")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for one of the signals.
    pub(super) async fn wait(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
