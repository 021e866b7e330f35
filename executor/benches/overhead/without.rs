//! The executor behind its A2G door, as `serve` puts it together, but with a journal in memory: every intent is
//! claimed, queued, run, counted and reported as always, and nothing is written down. It is the benchmark's own;
//! the product that serves always has one on the disk.

use super::doors::LOGGED;
use a2g_capability::Authority;
use a2g_command::setup::tool_code;
use a2g_config::Config;
use a2g_core::catalog::{Cache, Catalog, Definitions};
use a2g_core::deliver::deliver_reports;
use a2g_core::run::{EffectsLocation, Executor, ExecutorParts, ExecutorSettings, LoadedCatalog};
use a2g_executor::cli::service;
use a2g_govern::local::{LocalGovernor, PolicySet};
use a2g_govern::{AcceptUnsigned, Callers, CurrentCallers, Governor, Granter, ReportLog, ToolTrust, Trust};
use a2g_http::{CallerDirectory, HttpServer, HttpSettings, Rpc};
use a2g_isolate::{Cgroups, Isolate, Isolation, Module, PreforkConfig, RunAs};
use a2g_journal::Journal;
use a2g_sandbox::{CodeFeatures, Sandbox};
use a2g_types::clock::{Clock, SystemClock};
use a2g_types::limit::Limit;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Says to the benchmark that it is this server.
pub(crate) const ARGUMENT: &str = "serve-without-a-journal";

/// The command that starts it, with the configuration and the tools in `folder`.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(ARGUMENT).arg(folder).env("RUST_LOG", LOGGED);
    command
}

/// The process that serves.
pub(crate) fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1);
    let folder = PathBuf::from(arguments.next().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let served = service(|| {
        runtime?.block_on(serve(&folder));
        Ok(ExitCode::SUCCESS)
    });
    assert_eq!(served, ExitCode::SUCCESS);
}

async fn serve(folder: &Path) {
    let config = Config::read(&folder.join("executor.toml")).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let executions = u32::try_from(config.capacity.concurrent).unwrap() * 2;
    let sandbox = Sandbox::builder().concurrent(executions).clock(Arc::clone(&clock));
    let sandbox = Arc::new(sandbox.build().unwrap());
    let cache = Cache::open(&config.cache, sandbox.compatibility()).unwrap();
    // The executor with a journal was started before, and has compiled them.
    let trust = ToolTrust::anyone();
    let definitions = Definitions::none();
    let catalog = Catalog::open(&folder.join("catalogue"), &cache, &trust, &definitions).unwrap();
    assert!(catalog.preparing_tools().is_empty());
    let tools = catalog.ready_tools().map(|(name, tool)| Module {
        name,
        code: tool_code(tool),
        isolation: config.isolation,
        lifetime: config.reuse.lifetime_of(name),
    });
    let tools = tools.collect::<Vec<_>>();
    let limits = config.ceilings.limits;
    let prefork = PreforkConfig {
        waiting: config.waiting,
        largest_file: limits[Limit::Written],
        handles: limits[Limit::Handles],
        features: CodeFeatures::default(),
        renew_runs: config.layout.renew_after_runs,
        renew_after: config.layout.renew_after_time,
        fresh_layout: config.layout.per_child,
        reuse: config.reuse.limits,
        run_as: RunAs::Server,
    };
    let cgroups = match config.isolation {
        Isolation::Process => Cgroups::set_up().unwrap(),
        Isolation::Inline => None,
    };
    let isolate = Isolate::start(&tools, prefork, cgroups, &sandbox, &clock).await.unwrap();
    let authority = Authority::take().unwrap();
    let accept_unsigned = Some(AcceptUnsigned::from_command_line(&authority));
    let settings = ExecutorSettings {
        approval_rules: Vec::new(),
        granter: Granter::new(authority),
        ceilings: config.ceilings.clone(),
        mounts: config.mounts.clone(),
        capacity: config.capacity,
        accept_unsigned,
        signatures: None,
        sessions: config.sessions,
    };
    let trust = Trust::read(&config.trust, config.did.clone()).unwrap();
    let local = LocalGovernor::new(PolicySet::builtin().unwrap(), Arc::clone(&clock));
    let governor = Governor::Local(Arc::new(local), Arc::new(ReportLog::default()));
    let loaded = LoadedCatalog::new(catalog, isolate);
    let journal = Journal::in_memory();
    let parts = ExecutorParts {
        loaded,
        governor,
        trust,
        egress: None,
        journal,
        effects: EffectsLocation::Temporary,
        effects_settings: config.effects_settings,
        fleet: None,
        passes_calls: false,
        clock: Arc::clone(&clock),
    };
    let executor = Arc::new(Executor::new(settings, parts));
    let sessions = executor.session_tasks().clone();
    sessions.spawn(deliver_reports(Arc::clone(&executor)));
    let rpc =
        Rpc::new(a2g_door_a2g::methods(executor).unwrap().into(), config.bounds, a2g_door_a2g::NOTIFICATIONS);
    let settings = HttpSettings {
        protocols: Vec::new(),
        allowed_hosts: config.allowed_hosts,
        allowed_origins: config.allowed_origins,
        callers: CallerDirectory::new(CurrentCallers::new(Callers::anonymous(accept_unsigned))),
        clock,
        tls: None,
        connections: config.connections,
        pushes: None,
        executor: None,
        sessions,
    };
    let door = HttpServer::bind(&"127.0.0.1:0".parse().unwrap(), rpc, settings).await.unwrap();
    eprintln!("listens on {}", door.url());
    door.serve(std::future::pending()).await;
}
