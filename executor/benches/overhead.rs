//! What the executor costs over plain wasmtime, in one run, ratios first.
//!
//! (a) plain wasmtime, written out by hand: store, instantiate, call, drop. (b) `Sandbox::execute` of
//! the same module with the same limits and folders. (c) `a2g/execute` over HTTP keep-alive from 1
//! and from 16 clients, and over stdio, against the built binary. (d) The same calls with the journal
//! and without it, and appends beside a prune. (e) The same call through every door. (f) The memory that
//! a thousand take who wait. (g) The memory that runs take, while they come and go and while many sleep.
//! (i) Programs, and the calls that they make. (j) Nodes of a fleet. (k) File changes that wait for a decision. (l) Policies
//! in Cedar. (m) Secrets in requests, and tools of an MCP server. Run it with `cargo xtask bench`, which also starts the
//! servers of (j) and builds the API of (m).

#![allow(missing_docs, reason = "a benchmark has no interface")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a benchmark stops at the first surprise, prints, and reads the real clock"
)]

#[path = "overhead/client.rs"]
mod client;
#[path = "overhead/code.rs"]
mod code;
#[path = "overhead/console.rs"]
mod console;
#[path = "overhead/doors.rs"]
mod doors;
#[path = "overhead/effects.rs"]
mod effects;
#[path = "overhead/fleet.rs"]
mod fleet;
#[path = "overhead/fork.rs"]
mod fork;
#[path = "overhead/journal.rs"]
mod journal;
#[path = "overhead/memory.rs"]
mod memory;
#[path = "overhead/nexus.rs"]
mod nexus;
#[path = "overhead/plain.rs"]
mod plain;
#[path = "overhead/policy.rs"]
mod policy;
#[path = "overhead/protocols.rs"]
mod protocols;
#[path = "overhead/redaction.rs"]
mod redaction;
#[path = "overhead/secrets.rs"]
mod secrets;
#[path = "overhead/subscribers.rs"]
mod subscribers;
#[path = "overhead/without.rs"]
mod without;

use a2g_capability::{Authority, Ceilings, Claims, Grant, Mount, Mounts, Permit, Tree};
use a2g_core::catalog::{componentize, create_sealed};
use a2g_sandbox::egress::Network;
use a2g_sandbox::{Artifact, Code, CodeFeatures, Input, ModuleCompiler, Sandbox, is_component};
use a2g_types::limit::LimitMap;
use a2g_types::outcome::End;
use a2g_types::quantity::{MemoryLimit, Timeout};
use a2g_types::tool::Contract;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// A preview 1 command that copies standard input to standard output.
pub(crate) const HELLO: &str = include_str!("overhead/hello.wat");

const HELLO_ARGUMENTS: &str = "{\"name\":\"world\"}";
const ROUNDS: usize = 3000;

fn main() {
    // `cargo test --benches` asks for nothing to be measured.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if std::env::args().any(|argument| argument == fork::ARGUMENT) {
        return fork::main();
    }
    // The server without a journal starts its zygote as the product does: by this command of its own program.
    if std::env::args().nth(1).is_some_and(|argument| argument == "zygote") {
        return a2g_isolate::run_zygote(CodeFeatures::default(), false).unwrap();
    }
    if std::env::args().any(|argument| argument == without::ARGUMENT) {
        return without::main();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_path_buf();
    let folder = tempfile::tempdir().unwrap();
    for name in ["one.txt", "two.txt", "three.txt"] {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    println!("medians over {ROUNDS} rounds, the two in turn; one machine, one run\n");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let wanted = |part: &str| only.as_ref().is_none_or(|only| only == part);
    if wanted("sandbox") {
        println!("{:<44} {:>9} {:>10} {:>10}", "", "ratio b/a", "(a) plain", "(b) ours");
        runtime.block_on(sandbox(&target, folder.path()));
        redaction::measure();
        println!();
    }
    if wanted("doors") {
        doors::measure(&target, folder.path());
        println!();
    }
    if wanted("journal") {
        journal::measure(&target, folder.path());
        println!();
    }
    if wanted("protocols") {
        protocols::measure(&target, folder.path());
        println!();
    }
    if wanted("code") {
        code::measure(&target, folder.path());
        println!();
    }
    if wanted("subscribers") {
        subscribers::measure(folder.path());
        println!();
    }
    if wanted("memory") {
        memory::measure(folder.path());
        println!();
    }
    if wanted("effects") {
        effects::measure(&target);
        println!();
    }
    if wanted("policy") {
        policy::measure();
    }
    if wanted("secrets") {
        secrets::measure(&target, folder.path());
        println!();
    }
    if wanted("fleet")
        && let Some(servers) = fleet::NatsServers::find()
    {
        fleet::measure(folder.path(), &servers);
    }
}

/// (a) against (b).
async fn sandbox(target: &Path, folder: &Path) {
    let hello = wat::parse_str(HELLO).unwrap();
    compare("hello in a few bytes, core module", &hello, Contract::Command, HELLO_ARGUMENTS, None).await;
    let Some(rust) = hello_in_rust(target) else {
        println!("{:<44} skipped: rustc has no target wasm32-wasip1", "hello in Rust");
        return listing(target, folder).await;
    };
    compare("hello in Rust, core module", &rust, Contract::Command, HELLO_ARGUMENTS, None).await;
    compare(
        "hello in Rust, core module, one folder open",
        &rust,
        Contract::Command,
        HELLO_ARGUMENTS,
        Some(folder),
    )
    .await;
    listing(target, folder).await;
}

/// The folder listing of a component, with the folder open.
async fn listing(target: &Path, folder: &Path) {
    let tool = std::fs::read(tool_path(target, "list_directory")).unwrap();
    let tool = componentize(&tool, Contract::Typed).unwrap();
    compare(
        "list_directory, component, one folder open",
        &tool,
        Contract::Typed,
        "{\"path\":\"/data\"}",
        Some(folder),
    )
    .await;
}

/// The same hello as a Rust author would write it.
fn hello_in_rust(target: &Path) -> Option<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/overhead/hello.rs");
    let module = target.join("bench-hello.wasm");
    let mut rustc = std::process::Command::new("rustc");
    rustc.args(["--edition=2024", "--target=wasm32-wasip1", "-Copt-level=3", "-Cstrip=symbols", "-o"]);
    rustc.arg(&module).arg(source).status().unwrap().success().then(|| std::fs::read(module).unwrap())
}

/// The executor, built in the profile of this benchmark.
pub(crate) fn executor() -> PathBuf {
    env!("CARGO_BIN_EXE_a2g-executor").into()
}

pub(crate) fn tool_path(target: &Path, name: &str) -> PathBuf {
    target.join("tools").join(name).join("tool.wasm")
}

async fn compare(what: &str, wasm: &[u8], contract: Contract, arguments: &str, folder: Option<&Path>) {
    let sandbox = Sandbox::builder().concurrent(16).build().unwrap();
    let compiled = create_sealed(&ModuleCompiler::new().unwrap().compile(wasm).unwrap()).unwrap();
    let code = if is_component(wasm) { Code::component(&compiled) } else { Code::module(&compiled) };
    let artifact = sandbox.load(code.contract(contract)).unwrap();
    let plain = plain::Plain::new(wasm, contract);
    let mut ours = Vec::new();
    let mut plains = Vec::new();
    for round in 0..ROUNDS + 200 {
        let started = Instant::now();
        plain.run(arguments, folder).await;
        let plain_took = started.elapsed();
        let permit = permit(folder);
        let started = Instant::now();
        run(&sandbox, &artifact, permit, arguments).await;
        let ours_took = started.elapsed();
        if round >= 200 {
            plains.push(plain_took);
            ours.push(ours_took);
        }
    }
    let a = median(&mut plains);
    let b = median(&mut ours);
    println!(
        "{what:<44} {:>9.2} {:>7.1} µs {:>7.1} µs",
        b.as_secs_f64() / a.as_secs_f64(),
        micros(a),
        micros(b)
    );
}

async fn run(sandbox: &Sandbox, artifact: &Artifact, permit: Permit, arguments: &str) {
    let execution = sandbox.begin(&permit, Network::Off, Arc::default());
    let outcome = sandbox.execute(artifact, permit, Input::Arguments(arguments.to_owned()), &execution).await;
    assert!(matches!(outcome.end, End::Returned(_)), "{outcome:?}");
}

/// The limits that the plain side has too: memory, time, and one folder that may be read.
fn permit(folder: Option<&Path>) -> Permit {
    let data = Tree::parse_path("/data").unwrap();
    let ceilings = Ceilings {
        limits: LimitMap::defaults()
            .with(MemoryLimit::from_mb(64).unwrap())
            .with(Timeout::from_seconds(30).unwrap()),
        areas: folder.map(|_| data.clone().into()).into_iter().collect(),
        ..Ceilings::closed()
    };
    let mounts =
        Mounts::new(folder.map(|host| Mount { guest: data, host: host.into() }).into_iter().collect())
            .unwrap();
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::take().unwrap());
    let grant = Grant::for_operator(&AUTHORITY, Claims::default(), &ceilings).unwrap();
    Permit::open(grant, &mounts, &ceilings.areas, |_| true).unwrap()
}

pub(crate) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
