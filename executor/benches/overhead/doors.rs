//! (c): the built binary, over HTTP keep-alive and over stdio, with clients in this process.

use super::client::{Http, post};
use super::{HELLO, median, micros};
use a2g_types::durability::Durability;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const FROM_EACH_CLIENT: usize = 2000;
/// Of those whose runs have an address layout each, which takes a program's start.
const FROM_EACH_FRESH_CLIENT: usize = 100;
/// A line for each run, through a pipe to this process, is no part of what is measured.
pub(crate) const LOGGED: &str = "a2g=warn,a2g_executor::cli=info";

pub(crate) fn measure(target: &Path, data: &Path) {
    let binary = crate::executor();
    let folder = tempfile::tempdir().unwrap();
    let tools = target.join("tools");
    install(&binary, folder.path(), data, &[("hello", HELLO)]);
    println!("{:<52} {:>10} {:>12}", "(c) a2g/execute, built binary", "a second", "median");
    let row = |what: &str, (per_second, half): (f64, Duration)| {
        println!("{what:<52} {per_second:>10.0} {:>9.1} µs", micros(half));
    };
    for isolation in ["process", "inline"] {
        configure(folder.path(), data, isolation);
        for clients in [1, 16] {
            let server = Server::start(&binary, folder.path(), &folder.path().join("catalogue"));
            row(&format!("{isolation}: hello, HTTP, {clients} clients"), over_http(&server.address, clients));
        }
        for (tool, catalogue) in [("hello", &folder.path().join("catalogue")), ("list_directory", &tools)] {
            let mut command = serve(&binary, folder.path(), catalogue);
            let ran = over_stdio(command.arg("--stdio"), tool, r#""status":"SUCCESS""#);
            row(&format!("{isolation}: {tool}, stdio, 1 client"), ran);
        }
    }
    let fresh = std::fs::read_to_string(folder.path().join("executor.toml")).unwrap();
    let fresh = fresh.replace("[executor]\nisolation = \"inline\"", "[executor]\nfresh_layout = true");
    std::fs::write(folder.path().join("executor.toml"), fresh).unwrap();
    for clients in [1, 16] {
        let server = Server::start(&binary, folder.path(), &folder.path().join("catalogue"));
        let ran = over_http_for(&server.address, clients, FROM_EACH_FRESH_CLIENT);
        row(&format!("process, fresh layouts: hello, HTTP, {clients} clients"), ran);
    }
    configure(folder.path(), data, "process");
    let server = Server::spawn(&mut super::without::command(folder.path()));
    row("process: hello, HTTP, 1 client, without a journal", over_http(&server.address, 1));
    drop(server);
    row(
        "what the pipes cost: the same through `cat`",
        over_stdio(&mut Command::new("cat"), "hello", "a2g/execute"),
    );
    let component = folder.path().join("component.wasm");
    let wasm = std::fs::read(super::tool_path(target, "list_directory")).unwrap();
    std::fs::write(
        &component,
        a2g_core::catalog::componentize(&wasm, a2g_types::tool::Contract::Typed).unwrap(),
    )
    .unwrap();
    let by_hand = super::fork::measure(&component, data);
    row("by hand: list_directory, fork + run + reap", (1.0 / by_hand.as_secs_f64(), by_hand));
    configure(folder.path(), data, "process");
    let server = Server::start(&binary, folder.path(), &tools);
    let count = std::fs::read_dir(&tools).unwrap().count();
    let ready = format!("ready, {count} tools already compiled");
    println!("\n{ready:<52} {:>9.1} ms", server.ready.as_secs_f64() * 1e3);
    let idle = format!("idle RSS of the server with {count} tools");
    println!("{idle:<52} {:>9.1} MB", server.memory().rss_mb);
    drop(server);
    super::console::measure(&binary, folder.path(), data);
}

/// Writes the configuration for one isolation.
pub(crate) fn configure(folder: &Path, data: &Path, isolation: &str) {
    configure_with(folder, data, isolation, &folder.join("journal.db"));
}

/// The same with the journal somewhere else.
pub(crate) fn configure_with(folder: &Path, data: &Path, isolation: &str, journal: &Path) {
    configure_durability(folder, data, isolation, journal, Durability::PowerLoss);
}

/// The same with a journal that waits for less.
pub(crate) fn configure_durability(
    folder: &Path,
    data: &Path,
    isolation: &str,
    journal: &Path,
    durability: Durability,
) {
    let durability = durability.as_str();
    let config = format!(
        "[executor]\nisolation = \"{isolation}\"\n[catalog]\ncache = \"{}\"\n\
         [journal]\npath = \"{}\"\ndurability = \"{durability}\"\n[ceilings]\nfilesystem_scope = [\"/data/**\"]\n[[mount]]\nguest = \"/data\"\nhost = \"{}\"\n",
        folder.join("cache").display(),
        journal.display(),
        data.display()
    );
    std::fs::write(folder.join("executor.toml"), config).unwrap();
}

/// Makes a catalogue in `folder` of commands that are written out here, each a name and its text.
pub(crate) fn install(binary: &Path, folder: &Path, data: &Path, tools: &[(&str, &str)]) {
    install_declaring(binary, folder, data, tools, "");
}

/// The same with more lines in the manifest of each.
pub(crate) fn install_declaring(
    binary: &Path,
    folder: &Path,
    data: &Path,
    tools: &[(&str, &str)],
    more: &str,
) {
    std::fs::create_dir(folder.join("catalogue")).unwrap();
    configure(folder, data, "process");
    for (name, text) in tools {
        let source = folder.join(name);
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("tool.wasm"), wat::parse_str(text).unwrap()).unwrap();
        let manifest = format!(
            "name = \"{name}\"\nversion = \"1.0.0\"\ndescription = \"A tool of the benchmark.\"\n\
             contract = \"command\"\n[arguments]\ntype = \"object\"\n{more}"
        );
        std::fs::write(source.join("tool.toml"), manifest).unwrap();
        add(binary, folder, &source);
    }
}

/// Adds a tool to the catalogue in `folder`.
pub(crate) fn add(binary: &Path, folder: &Path, source: &Path) {
    let mut command = Command::new(binary);
    command.args(["tool", "add"]).arg(source).arg("--config").arg(folder.join("executor.toml"));
    command.arg("--tools").arg(folder.join("catalogue")).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
}

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    ready: Duration,
}

pub(crate) fn serve(binary: &Path, folder: &Path, tools: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", "--insecure-accept-unsigned", "--config"]).arg(folder.join("executor.toml"));
    command.arg("--tools").arg(tools).env("RUST_LOG", LOGGED);
    command
}

impl Server {
    pub(crate) fn start(binary: &Path, folder: &Path, tools: &Path) -> Self {
        Self::spawn(serve(binary, folder, tools).args(["--listen", "127.0.0.1:0"]))
    }

    /// Starts a command that says where it listens.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let started = Instant::now();
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("listens on")).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        let mut health = TcpStream::connect(&address).unwrap();
        health.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(health.read(&mut [0; 64]).unwrap() > 0);
        let ready = started.elapsed();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, ready }
    }

    /// What it takes now.
    pub(crate) fn memory(&self) -> Memory {
        Memory::of(self.child.id()).unwrap()
    }

    /// Itself, its children, and theirs.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.child.id()];
        let mut next = 0;
        while let Some(process) = all.get(next) {
            for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
                let children = std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap();
                all.extend(children.split_whitespace().map(|process| process.parse::<u32>().unwrap()));
            }
            next += 1;
        }
        all
    }
}

/// The memory of one process.
pub(crate) struct Memory {
    pub(crate) rss_mb: f64,
    /// Of pages that it shares with others, its share.
    pub(crate) pss_mb: f64,
}

impl Memory {
    /// That of a process, where the kernel shows it.
    pub(crate) fn of(process: u32) -> Option<Self> {
        let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
        let mb = |name: &str| {
            let kb = rollup.lines().find_map(|line| line.strip_prefix(name))?;
            Some(kb.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0)
        };
        Some(Self { rss_mb: mb("Rss:")?, pss_mb: mb("Pss:")? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub(crate) fn request(tool: &str) -> String {
    let intent = uuid::Uuid::new_v4();
    let (arguments, scope) = match tool {
        "list_directory" => (r#"{"path":"/data"}"#, r#"["/data/**"]"#),
        _hello => (r#"{"name":"world"}"#, "[]"),
    };
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"a2g/execute","params":{{"intent":{{"agent_did":"did:a2g:bench:1.0:x","intent_id":"{intent}","tool":"{tool}","arguments":{arguments}}},"verdict":{{"verdict":"APPROVED","intent_id":"{intent}","capability_manifest":{{"max_memory_mb":64,"max_cpu_percent":100,"timeout_seconds":30,"network_allowed":false,"filesystem_scope":{scope}}},"conditions":[],"expires_at":"2999-01-01T00:00:00Z"}}}}}}"#
    )
}

pub(crate) fn over_http(address: &str, clients: usize) -> (f64, Duration) {
    over_http_for(address, clients, FROM_EACH_CLIENT)
}

fn over_http_for(address: &str, clients: usize, from_each: usize) -> (f64, Duration) {
    let started = Instant::now();
    let mut times = std::thread::scope(|scope| {
        let client = || calls(&mut Http::connect(address), from_each);
        let workers = (0..clients).map(|_| scope.spawn(client)).collect::<Vec<_>>();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    let per_second = times.len() as f64 / started.elapsed().as_secs_f64();
    (per_second, median(&mut times))
}

/// So many calls of one client, one after the other.
pub(crate) fn calls(http: &mut Http, count: usize) -> Vec<Duration> {
    let calls = (0..count).map(|_| {
        let request = post("/jsonrpc", "", &request("hello"));
        let started = Instant::now();
        let answer = http.exchange(&request);
        let took = started.elapsed();
        assert!(answer.contains(r#""status":"SUCCESS""#), "{answer}");
        took
    });
    calls.collect()
}

/// One client that writes a line and reads the answer, which has to contain `expected`.
fn over_stdio(command: &mut Command, tool: &str, expected: &str) -> (f64, Duration) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut call = || {
        let request = request(tool) + "\n";
        let mut line = String::new();
        let sent = Instant::now();
        input.write_all(request.as_bytes()).unwrap();
        output.read_line(&mut line).unwrap();
        (sent.elapsed(), line)
    };
    // The server answers before its tools are compiled, and that is not what is measured.
    while call().1.contains("is being prepared") {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut times = Vec::new();
    let started = Instant::now();
    for _ in 0..FROM_EACH_CLIENT {
        let (took, line) = call();
        times.push(took);
        assert!(line.contains(expected), "{line}");
    }
    let per_second = times.len() as f64 / started.elapsed().as_secs_f64();
    drop(input);
    assert!(child.wait().unwrap().success());
    (per_second, median(&mut times))
}
