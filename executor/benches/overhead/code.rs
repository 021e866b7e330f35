//! (i): the cost of a program over a trivial tool, also as a turn of a session, and of a nested call over the same call
//! from outside.
//!
//! Every run has a process of its own, and the journal is on the disk. The last table replays one task without a model:
//! eight calls in one program, and the same eight calls by the agent.

use super::client::{Http, post};
use super::doors::{Server, configure_with};
use super::{median, micros};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;
const WARM: usize = 20;
/// Calls of one tool in one program. The time of a nested call is that of the program without calls, subtracted from
/// that of this one, per call.
const CALLS: u32 = 50;
const FILES: usize = 8;

/// A kind of call, and its times.
struct Row {
    what: &'static str,
    tool: &'static str,
    arguments: Value,
    times: Vec<Duration>,
}

fn program(what: &'static str, tool: &'static str, code: &str) -> Row {
    Row { what, tool, arguments: json!({ "code": code }), times: Vec::new() }
}

pub(crate) fn measure(target: &Path, data: &Path) {
    if !["run_javascript", "run_python"].iter().all(|tool| target.join("tools").join(tool).is_dir()) {
        println!("(i) skipped: `cargo xtask tools` could not make `run_javascript` and `run_python`");
        return;
    }
    let binary = crate::executor();
    let folder = tempfile::tempdir_in(target).unwrap();
    configure_with(folder.path(), data, "process", &folder.path().join("journal.db"));
    allow(folder.path());
    for file in 0..FILES {
        std::fs::write(data.join(format!("{file}.txt")), format!("file {file}\n")).unwrap();
    }
    let server = Server::start(&binary, folder.path(), &target.join("tools"));
    let mut http = Http::connect(&server.address);
    let calls_js = format!(
        "for (let i = 0; i < {CALLS}; i++) await tools.read_file({{ path: \"/data/0.txt\" }}); return 1"
    );
    let calls_python = format!("for i in range({CALLS}): tools.read_file(path=\"/data/0.txt\")\nresult = 1");
    let mut rows = [
        Row {
            what: "`read_file`",
            tool: "read_file",
            arguments: json!({ "path": "/data/0.txt" }),
            times: Vec::new(),
        },
        program("a line of JavaScript", "run_javascript", "console.log(1)"),
        program("a line of Python", "run_python", "print(1)"),
        program("JavaScript with calls", "run_javascript", &calls_js),
        program("Python with calls", "run_python", &calls_python),
    ];
    wait_until_prepared(&mut http, &rows);
    for round in 0..WARM + ROUNDS {
        for (index, row) in rows.iter_mut().enumerate() {
            // The programs with calls take as long as all others together, so fewer rounds are enough.
            if index >= 3 && round % 10 != 0 {
                continue;
            }
            let request = request(row.tool, &row.arguments, None);
            let started = Instant::now();
            let answer = http.exchange(&request);
            let took = started.elapsed();
            assert!(answer.contains(r#""status":"SUCCESS""#), "{answer}");
            if round >= WARM {
                row.times.push(took);
            }
        }
    }
    let [direct, javascript, python, javascript_calls, python_calls] =
        rows.each_mut().map(|row| micros(median(&mut row.times)));
    let [javascript_turn, python_turn] =
        [&rows[1], &rows[2]].map(|row| micros(median(&mut take_turns(&mut http, row))));
    println!(
        "{:<46} {:>12} {:>12} {:>12}",
        "(i) process ring, the journal on the disk", "median", "adds", "goal"
    );
    println!("{:<46} {direct:>9.0} µs", rows[0].what);
    for (what, time, goal) in [
        (rows[1].what, javascript, 3_000.0),
        (rows[2].what, python, 10_000.0),
        ("a turn with the line of JavaScript", javascript_turn, 1_000.0),
        ("a turn with the line of Python", python_turn, 1_000.0),
    ] {
        let adds = time - direct;
        let missed = if adds <= goal { "" } else { ", missed" };
        println!("{what:<46} {time:>9.0} µs {adds:>9.0} µs {:>15}", format!("{goal:.0} µs{missed}"));
    }
    println!("\n{:<46} {:>12} {:>12} {:>12}", "a nested call of `read_file`", "each", "ratio", "goal");
    let each = [("from JavaScript", javascript_calls - javascript), ("from Python", python_calls - python)];
    for (what, time) in each {
        let each = time / f64::from(CALLS);
        let ratio = time / f64::from(CALLS) / direct;
        let missed = if ratio <= 1.3 { "" } else { ", missed" };
        println!("{what:<46} {each:>9.0} µs {ratio:>12.2} {:>15}", format!("1.3{missed}"));
    }
    println!("\nThe median of a nested call, over the same call from outside; both ask the governor.\n");
    replay(&mut http);
}

/// Eight calls in one program against eight calls by the agent: bytes and round trips.
fn replay(http: &mut Http) {
    let code = format!(
        "const texts = await Promise.all([...Array({FILES}).keys()].map(i => \
         tools.read_file({{ path: `/data/${{i}}.txt` }}))); return texts.map(t => t.content.length)"
    );
    let in_program = [request("run_javascript", &json!({ "code": code }), None)];
    let by_agent =
        (0..FILES).map(|file| request("read_file", &json!({ "path": format!("/data/{file}.txt") }), None));
    println!(
        "{:<30} {:>12} {:>10} {:>10} {:>10}",
        "eight calls, once", "round trips", "sent", "received", "took"
    );
    for (what, requests) in [("in one program", in_program.to_vec()), ("by the agent", by_agent.collect())] {
        let started = Instant::now();
        let trips = requests.len();
        let mut sent = 0;
        let mut received = 0;
        for request in requests {
            sent += request.len();
            let answer = http.exchange(&request);
            assert!(answer.contains(r#""status":"SUCCESS""#), "{answer}");
            received += answer.len();
        }
        let ms = micros(started.elapsed()) / 1e3;
        println!("{what:<30} {trips:>12} {sent:>8} B {received:>8} B {ms:>7.1} ms");
    }
}

fn wait_until_prepared(http: &mut Http, rows: &[Row]) {
    for row in rows {
        while http.exchange(&request(row.tool, &row.arguments, None)).contains("is being prepared") {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The times of the turns of one session, each of which makes the same call.
fn take_turns(http: &mut Http, row: &Row) -> Vec<Duration> {
    let mut session = "new".to_owned();
    let mut times = Vec::new();
    for round in 0..WARM + ROUNDS {
        let turn = request(row.tool, &row.arguments, Some(&session));
        let started = Instant::now();
        let text = http.exchange(&turn);
        let took = started.elapsed();
        let answer: Value = serde_json::from_str(text).unwrap();
        let handle = answer["result"]["report"]["session"]["handle"].as_str();
        session = handle.unwrap_or_else(|| panic!("{answer}")).to_owned();
        if round >= WARM {
            times.push(took);
        }
    }
    times
}

/// A call of a tool, in this session if there is one.
fn request(tool: &str, arguments: &Value, session: Option<&str>) -> Vec<u8> {
    let mut params = json!({
        "agent_did": "did:a2g:bench:1.0:x", "intent_id": uuid::Uuid::new_v4().to_string(), "tool": tool,
        "arguments": arguments,
    });
    if let Some(session) = session {
        params["session"] = json!(session);
    }
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/intent", "params": params });
    post("/jsonrpc", "", &message.to_string())
}

/// Adds the policies of the benchmark to the configuration.
fn allow(folder: &Path) {
    let policies = folder.join("policies");
    std::fs::create_dir_all(&policies).unwrap();
    let rule = |constraints: Value| json!({ "allowed": true, "constraints": constraints });
    let program = json!({ "paths": ["/data/**"], "grant_all_paths": true, "calls": ["*"] });
    let tools = json!({
        "read_file": rule(json!({ "paths": ["/data/**"] })),
        "run_javascript": rule(program.clone()),
        "run_python": rule(program),
    });
    let policy = json!({ "agent_did": "*", "version": "1", "capabilities": { "tools": tools } });
    std::fs::write(policies.join("policy.json"), policy.to_string()).unwrap();
    let file = folder.join("executor.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, format!("{config}[governor]\npolicies = \"{}\"\n", policies.display())).unwrap();
}
