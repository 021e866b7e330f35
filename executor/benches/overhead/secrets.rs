//! (m): what it costs to set a secret in a request, and to call a tool of an MCP server through a tool.
//!
//! Every run has a process of its own. The API is that of the demo, over TLS. The MCP server is another executor, in
//! which a call runs inline. All files are in memory where that is possible, because the disk takes longer than what is
//! measured here.

use super::client::{Http, post};
use super::doors::{Server, add, configure, install, install_declaring};
use super::journal::RAM_DISK;
use super::protocols::{MCP_HEADERS, open_all_doors, tools_call};
use super::{HELLO, HELLO_ARGUMENTS, effects, median, micros, nexus};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable in which `cargo xtask bench` names the program of the API.
const API: &str = "A2G_BENCH_API";
/// The host in the certificate of the API.
const HOST: &str = "orders.test";
/// Files that the API writes.
const CERTIFICATE: &str = "orders.pem";
const KEY: &str = "orders.key";

/// The agents whose runs send requests. The secret is bound to the first alone.
const WITH: &str = "did:a2g:bench:1.0:with";
const WITHOUT: &str = "did:a2g:bench:1.0:without";
/// The tool that sends the requests of its arguments.
const SENDER: &str = "hostile_http";
/// The requests of a run after its first one.
const FURTHER: u32 = 50;
/// The tool that calls `hello` of the MCP server.
const PROXY: &str = "far_hello";

/// The rounds of runs that send requests, and of those that call the MCP server.
const REQUEST_ROUNDS: usize = 100;
const CALL_ROUNDS: usize = 500;
/// The rounds before anything is measured.
const WARM: usize = 10;
/// A prime that is at least the number of kinds of calls: every step below it visits each kind once.
const CYCLE: usize = 5;
/// What may be added to a request, and to a call, in microseconds.
const REQUEST_GOAL: f64 = 30.0;
const CALL_GOAL: f64 = 1000.0;

pub(crate) fn measure(target: &Path, data: &Path) {
    let Some(program) = std::env::var_os(API) else {
        println!("(m) skipped: `cargo xtask bench` builds the API that it needs");
        return;
    };
    let in_ram = tempfile::tempdir_in(RAM_DISK).ok();
    let place = if in_ram.is_some() { "a RAM disk" } else { "the disk" };
    let folder = in_ram.unwrap_or_else(|| tempfile::tempdir_in(target).unwrap());
    let [near, far] = ["near", "far"].map(|name| folder.path().join(name));
    for home in [&near, &far] {
        fs::create_dir(home).unwrap();
    }
    let binary = crate::executor();
    install(&binary, &far, data, &[("hello", HELLO)]);
    configure(&far, data, "inline");
    nexus::agents(1, &far.join("nexus.keys"));
    open_all_doors(&far);
    let mcp = Server::start(&binary, &far, &far.join("catalogue"));
    let api = Api::start(Path::new(&program), &near);
    // With a network as the others have it, because such a run waits for more before it starts.
    let network = "[capabilities]\nnetwork = true\n";
    install_declaring(&binary, &near, data, &[("hello", HELLO)], network);
    allow_network(&near, &api, &mcp.address);
    add_tools(&binary, &near, target, &mcp.address);
    let server = Server::start(&binary, &near, &near.join("catalogue"));
    let mut http = Http::connect(&server.address);
    wait_until_prepared(&mut http);
    println!(
        "{:<52} {:>5} {:>11} {:>11} {:>10} {:>15}",
        format!("(m) secrets and MCP, the journal on {place}"),
        "ratio",
        "compared",
        "this",
        "adds",
        "goal"
    );
    measure_requests(&mut http, &api);
    measure_calls(&mut http, &mcp.address);
    println!(
        "Medians, in turn. `compared` is the second of each row. Each request of a run has a connection"
    );
    println!(
        "of its own; the client keeps one open. A secret is also searched for in answers, which counts."
    );
}

/// The API of the demo, which answers those who have its key.
struct Api {
    child: Child,
    port: u16,
    key: String,
}

impl Api {
    /// Starts it, and lets it write its files to `folder`.
    fn start(program: &Path, folder: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg(folder.join(CERTIFICATE)).arg(folder.join(KEY)).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.next().unwrap();
        let port = line.split("https://127.0.0.1:").nth(1).unwrap().split('/').next().unwrap();
        let port = port.parse().unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port, key: fs::read_to_string(folder.join(KEY)).unwrap() }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Adds to the configuration the two servers and the secret.
fn allow_network(folder: &Path, api: &Api, mcp: &str) {
    let file = folder.join("executor.toml");
    let config = fs::read_to_string(&file).unwrap();
    let config = config.replace("[ceilings]\n", "[ceilings]\nnetwork_allowed = true\n");
    let port = api.port;
    let more = format!(
        "[network]\nallowed_domains = [\"127.0.0.1\", \"{HOST}\"]\n\
         allowed_addresses = [\"127.0.0.1:{port}\", \"{mcp}\"]\n\
         hosts = {{ \"{HOST}\" = [\"127.0.0.1\"] }}\nca_file = \"{CERTIFICATE}\"\n\
         [[secret]]\nname = \"orders\"\nfile = \"{KEY}\"\ntools = [\"{SENDER}\"]\nagents = [\"{WITH}\"]\n\
         requests = [\"GET https://{HOST}:{port}/v1/orders/{{id}}\"]\n\
         place = \"header:authorization\"\nscheme = \"Bearer\"\n"
    );
    fs::write(file, config + &more).unwrap();
}

/// Adds the tools that send requests, and the one that calls the MCP server.
fn add_tools(binary: &Path, folder: &Path, target: &Path, mcp: &str) {
    let module = target.join("guest/wasm32-wasip1/release/hostile_http.wasm");
    let source = folder.join(SENDER);
    fs::create_dir(&source).unwrap();
    fs::copy(&module, source.join("tool.wasm")).unwrap();
    let manifest = format!(
        "name = \"{SENDER}\"\nversion = \"1.0.0\"\ndescription = \"A tool of the benchmark.\"\n\
         contract = \"typed\"\n[capabilities]\nnetwork = true\n"
    );
    fs::write(source.join("tool.toml"), manifest).unwrap();
    add(binary, folder, &source);
    let mut new = Command::new(binary);
    new.args(["tool", "new", "far", "--mcp", &format!("http://{mcp}/mcp"), "--config"]);
    new.arg(folder.join("executor.toml")).current_dir(folder).stdout(Stdio::null());
    assert!(new.status().unwrap().success());
    add(binary, folder, &folder.join(PROXY));
}

fn wait_until_prepared(http: &mut Http) {
    let request = |tool: &str| {
        let params = params(WITHOUT, tool, &json!({ "requests": [] }));
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/execute", "params": params });
        post("/jsonrpc", "", &message.to_string())
    };
    for tool in ["hello", SENDER, PROXY] {
        while http.exchange(&request(tool)).contains("is being prepared") {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Runs with one request and with many, whose difference has no run in it.
fn measure_requests(http: &mut Http, api: &Api) {
    let kinds = [(WITHOUT, 1), (WITH, 1), (WITHOUT, 1 + FURTHER), (WITH, 1 + FURTHER)];
    let [without_one, with_one, without, with] =
        take_turns::<4>(REQUEST_ROUNDS, |kind| send(http, api, kinds[kind]));
    let [this, other] =
        [(with, with_one), (without, without_one)].map(|(many, one)| (many - one) / f64::from(FURTHER));
    row("a further GET in a run: with a secret, without", this, other, Some(REQUEST_GOAL));
    row("a run with one GET: with a secret, without", with_one, without_one, None);
}

/// The call of a tool beside the two of which it consists.
fn measure_calls(http: &mut Http, mcp: &str) {
    let mut client = Http::connect(mcp);
    let arguments = serde_json::from_str::<Value>(HELLO_ARGUMENTS).unwrap();
    let [direct, nothing, proxied] = take_turns::<3>(CALL_ROUNDS, |kind| match kind {
        0 => call_directly(&mut client),
        1 => run(http, WITHOUT, "hello", &arguments).0,
        _through_a_tool => run(http, WITHOUT, PROXY, &arguments).0,
    });
    let what = "MCP `tools/call`: by a tool, by a client and a run";
    row(what, proxied, direct + nothing, Some(CALL_GOAL));
    for (part, time) in [("  by a client", direct), ("  a run that does nothing", nothing)] {
        println!("{part:<52} {:>5} {time:>8.0} µs", "");
    }
}

/// Makes calls of each kind, in turns, and gives the median of each in microseconds.
fn take_turns<const N: usize>(rounds: usize, mut call: impl FnMut(usize) -> Duration) -> [f64; N] {
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::new());
    for round in 0..WARM + rounds {
        // What a call leaves to be done falls on the one after it: each comes after each of the others.
        let step = 1 + round % (CYCLE - 1);
        for turn in 0..CYCLE {
            let kind = turn * step % CYCLE;
            if let Some(kept) = times.get_mut(kind) {
                let took = call(kind);
                if round >= WARM {
                    kept.push(took);
                }
            }
        }
    }
    times.each_mut().map(|kept| micros(median(kept)))
}

/// Runs a tool that sends so many equal requests. Without a secret, the tool has the key; with it, something as long.
fn send(http: &mut Http, api: &Api, (agent, count): (&str, u32)) -> Duration {
    let is_set = agent == WITH;
    let value = if is_set { "x".repeat(api.key.len()) } else { api.key.clone() };
    let get = json!({
        "scheme": "https",
        "authority": format!("{HOST}:{}", api.port),
        "path": "/v1/orders/1042",
        "fields": [["authorization", format!("Bearer {value}")]],
    });
    let requests = vec![get; usize::try_from(count).unwrap()];
    let (took, report) = run(http, agent, SENDER, &json!({ "requests": requests }));
    let answers = report["result"].as_array().unwrap();
    assert_eq!(answers.len(), requests.len(), "{report}");
    assert!(answers.iter().all(|answer| answer["status"] == 200), "{report}");
    let uses = report["usage"]["secrets"][0]["uses"].as_u64();
    assert_eq!(uses, is_set.then_some(u64::from(count)), "{report}");
    took
}

/// The call that the tool makes, on a connection that stays open.
fn call_directly(http: &mut Http) -> Duration {
    let request = post("/mcp", MCP_HEADERS, &tools_call());
    let started = Instant::now();
    let answer = http.exchange(&request);
    let took = started.elapsed();
    assert!(answer.contains(r#""isError":false"#), "{answer}");
    took
}

/// Runs a tool with a network, and gives the time until its report and the report.
fn run(http: &mut Http, agent: &str, tool: &str, arguments: &Value) -> (Duration, Value) {
    effects::call(http, "a2g/execute", &params(agent, tool, arguments), "SUCCESS")
}

fn params(agent: &str, tool: &str, arguments: &Value) -> Value {
    let intent = uuid::Uuid::new_v4().to_string();
    json!({
        "intent": {
            "agent_did": agent, "intent_id": intent, "tool": tool, "arguments": arguments,
        },
        "verdict": {
            "verdict": "APPROVED",
            "intent_id": intent,
            "capability_manifest": {
                "max_memory_mb": 128, "max_cpu_percent": 100, "timeout_seconds": 60, "network_allowed": true,
                "filesystem_scope": [],
            },
            "conditions": [],
            "expires_at": "2999-01-01T00:00:00Z",
        },
    })
}

/// Prints a time in microseconds beside another one, and what it adds.
fn row(what: &str, this: f64, other: f64, goal: Option<f64>) {
    let ratio = this / other;
    let adds = this - other;
    let goal = goal
        .map_or(String::new(), |goal| format!("{goal:.0} µs{}", if adds <= goal { "" } else { ", missed" }));
    println!("{what:<52} {ratio:>5.2} {other:>8.0} µs {this:>8.0} µs {adds:>7.1} µs {goal:>15}");
}
