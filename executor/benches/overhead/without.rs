//! A server that does for each `a2g/execute` what the executor does, but for what needs a journal: nothing is
//! claimed, queued, written down or delivered again. It is the benchmark's own; the product always has one.

use a2g_executor::capability::{Permit, Roots};
use a2g_executor::catalog::{Cache, Catalog, Compiler};
use a2g_executor::clock::{Clock, SystemClock};
use a2g_executor::config::Config;
use a2g_executor::egress::Network;
use a2g_executor::govern::local::{LocalGovernor, PolicySet};
use a2g_executor::govern::{
    AcceptUnsigned, Admission, Authentic, Callers, Governor, Records, Standing, Trust, admit,
};
use a2g_executor::isolate::{Ahead, Cgroups, Isolate, Isolation, Module};
use a2g_executor::limit::Budgets;
use a2g_executor::outcome::Receipt;
use a2g_executor::sandbox::{Code, Sandbox, Witness};
use a2g_executor::serve::{HttpDoor, HttpSettings, KnownCallers, Rpc};
use a2g_executor::wire::a2g::{decode, encode};
use jsonrpsee::RpcModule;
use jsonrpsee::core::RpcResult;
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Says to the benchmark that it is this server.
pub(crate) const ARGUMENT: &str = "serve-without-a-journal";

/// The command that starts it, with the configuration and the tools in `folder`.
pub(crate) fn command(binary: &Path, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(ARGUMENT).args([binary, folder]);
    command
}

struct Server {
    config: Config,
    catalog: Catalog,
    isolate: Isolate,
    trust: Trust,
    standing: Standing,
    governor: Governor,
}

/// The process that serves.
pub(crate) fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1);
    let binary = PathBuf::from(arguments.next().unwrap());
    let folder = PathBuf::from(arguments.next().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(serve(binary, &folder));
}

async fn serve(binary: PathBuf, folder: &Path) {
    let server = Arc::new(server(binary, folder).await);
    let Config { bounds, allowed_hosts, allowed_origins, connections, .. } = server.config.clone();
    let mut methods = RpcModule::new(server);
    methods
        .register_async_method("a2g/execute", |params, server, _| {
            let params = params.as_str().unwrap().to_owned();
            async move { Ok(execute(Arc::clone(&server), params).await) as RpcResult<Box<RawValue>> }
        })
        .unwrap();
    let rpc = Rpc::new(methods.into(), bounds, &[]);
    let settings = HttpSettings {
        doorways: Vec::new(),
        allowed_hosts,
        allowed_origins,
        callers: KnownCallers::new(Callers::anybody(None)),
        clock: Arc::new(SystemClock),
        tls: None,
        connections,
        pushes: None,
        executor: None,
    };
    let door = HttpDoor::bind(&"127.0.0.1:0".parse().unwrap(), rpc, settings).await.unwrap();
    eprintln!("listens on {}", door.url());
    door.serve(std::future::pending()).await;
}

async fn server(binary: PathBuf, folder: &Path) -> Server {
    let config = Config::read(&folder.join("executor.toml")).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let sandbox = Arc::new(
        Sandbox::new(u32::try_from(config.capacity.concurrent).unwrap() * 2, false, Arc::clone(&clock))
            .unwrap(),
    );
    let cache = Cache::open(&config.cache, sandbox.compatibility()).unwrap();
    let compiler = Compiler::new(binary, false);
    let catalog = Catalog::open(&folder.join("catalogue"), &cache, &compiler, &mut |_| {}).unwrap();
    let tools = catalog.iter().map(|(name, tool)| {
        let tool = tool.as_ref().unwrap();
        let componentised = tool.componentised.as_ref().and_then(|made| made.as_deref().ok());
        let code = Code {
            module: &tool.compiled,
            component: tool.component,
            componentised,
            contract: tool.descriptor.contract,
        };
        Module { name, code, isolation: config.isolation }
    });
    let tools = tools.collect::<Vec<_>>();
    let Budgets { written, handles, fuel: _, .. } = config.ceilings.budgets;
    let ahead = Ahead { waiting: config.waiting, largest_file: written.bytes(), handles, meters_fuel: false };
    let cgroups = match config.isolation {
        Isolation::Process => Cgroups::set_up().unwrap(),
        Isolation::Inline => None,
    };
    let isolate = Isolate::start(&tools, ahead, cgroups, &sandbox, &clock).await.unwrap();
    let trust = Trust::read(&config.trust, config.did.clone()).unwrap();
    let local = LocalGovernor::new(PolicySet::builtin().unwrap(), clock);
    let governor = Governor::Local(Arc::new(local), Arc::new(Records::default()));
    Server { config, catalog, isolate, trust, standing: Standing::default(), governor }
}

async fn execute(server: Arc<Server>, params: String) -> Box<RawValue> {
    let decode::Execute { call, verdict, proof } = decode::execute(&params).unwrap();
    let leave = Some(AcceptUnsigned::given_on_the_command_line());
    let now = SystemClock.now();
    let authentic = Authentic::with_call(call, verdict, proof.as_ref(), &server.trust, leave, now);
    let (call, authentic) = authentic.unwrap();
    let tool = server.catalog.get(&call.tool).unwrap().as_ref().unwrap();
    assert!(tool.schema.check(&Value::Object(call.arguments.clone())).is_ok());
    let Admission::Run(admitted) = admit(call, authentic, now).unwrap() else { panic!("it need not wait") };
    let ceilings = &server.config.ceilings;
    let grant = admitted.grant(&server.standing, &tool.descriptor, ceilings).unwrap();
    let roots = Roots::open(&grant, &server.config.mounts, &ceilings.areas).unwrap();
    // A run has a task of its own, and so has its report.
    let run = tokio::spawn(async move {
        let call = admitted.call();
        let permit = Permit::new(grant, roots);
        let arguments = Value::Object(call.arguments.clone()).to_string();
        let order = server.isolate.order(&call.tool, permit, arguments);
        let prepared = server.isolate.prepare(&order).await;
        let execution = server.isolate.begin(&order, Network::Off, Arc::default(), Witness::default());
        let outcome = server.isolate.run(order, prepared, &execution).await;
        let (agent, intent, tool) = (call.agent.clone(), call.intent, call.tool.clone());
        let receipt = Arc::new(Receipt { agent, intent, tool, approved_by: None, outcome });
        let reported = Arc::clone(&receipt);
        tokio::spawn(async move { server.governor.report(&reported).await.unwrap() });
        receipt
    });
    encode::report(&run.await.unwrap())
}
