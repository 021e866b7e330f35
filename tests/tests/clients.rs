//! Clients that nobody here wrote: jsonrpsee's for A2G, and the libraries of other protocols, where `cargo xtask setup`
//! could install them.

use crate::callers::{List, agent};
use crate::harness::*;
use crate::methods::{Params, write};
use jsonrpsee::core::client::{ClientT, Error};
use jsonrpsee::core::params::BatchRequestBuilder;
use jsonrpsee::http_client::{HeaderMap, HeaderValue, HttpClientBuilder};
use jsonrpsee::ws_client::WsClientBuilder;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a third-party client against a new executor.
fn run_client(command: &mut Command, script: &str, more: &[&Path]) {
    let executor = Executor::start(Options::new());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let url = format!("http://{}", executor.address());
    let output = command.arg(script).arg(url).args(more).output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    assert_eq!(executor.file("a").as_deref(), Some("hi"));
}

/// The folder of an installed client; prints a message if it is missing.
pub fn client_folder(name: &str, part: &str) -> Option<PathBuf> {
    let path = clients().join(part);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: the client {name} is not installed");
    None
}

#[test]
fn a2a_sdk_of_python() {
    let Some(python) = client_folder("a2a-sdk", "python/bin/python") else { return };
    run_client(&mut Command::new(python), "a2a_sdk.py", &[]);
}

#[test]
fn a2a_sdk_of_javascript() {
    let Some(library) = client_folder("@a2a-js/sdk", "node/node_modules/@a2a-js/sdk") else { return };
    let folder = library.ancestors().nth(3).expect("the folder of node_modules").to_owned();
    run_client(&mut Command::new("node"), "a2a_sdk.mjs", &[&folder]);
}

async fn ask(client: &impl ClientT, method: &str, params: Value) -> Result<Value, Value> {
    client.request::<Value, _>(method, Params(params)).await.map_err(|error| {
        let Error::Call(error) = error else { panic!("{method} has no answer: {error}") };
        serde_json::to_value(error).expect("JSON")
    })
}

/// The calls of a program that uses A2G through this library: as an agent, and as a governor.
async fn speaks_a2g(client: &impl ClientT, governor: &impl ClientT, executor: &Executor) {
    let tools = ask(client, "a2g/tools", json!({})).await.expect("the tools");
    assert!(tools["tools"].as_array().expect("a list").iter().any(|tool| tool["name"] == "write_file"));
    let asked = intent("write_file", write("asked", "one"));
    let verdict = ask(client, "a2g/intent", asked.clone()).await.expect("a verdict");
    assert_eq!((&verdict["verdict"], &verdict["report"]["status"]), (&json!("APPROVED"), &json!("SUCCESS")));
    let id = json!({ "intent_id": asked["intent_id"] });
    let status = ask(client, "a2g/status", id.clone()).await.expect("where it is");
    assert_eq!((&status["state"], &status["report"]), (&json!("finished"), &verdict["report"]));
    let report = ask(client, "a2g/execute", execute("write_file", write("executed", "two"))).await;
    assert_eq!(report.expect("a report")["result"]["path"], "/workspace/executed");
    assert_eq!(
        (executor.file("asked").as_deref(), executor.file("executed").as_deref()),
        (Some("one"), Some("two"))
    );

    // Errors arrive as the library's error objects, with all of their data.
    let wrong = ask(client, "a2g/intent", intent("write_file", json!({ "path": 7, "content": "x" }))).await;
    let wrong = wrong.expect_err("arguments that are none");
    assert_eq!(
        (&wrong["code"], &wrong["data"]["pointer"]),
        (&json!(-32602), &json!("/arguments/path")),
        "{wrong}"
    );
    let outside = json!({ "path": "/etc/passwd", "content": "x" });
    let denied = ask(client, "a2g/intent", intent("write_file", outside)).await.expect_err("a denial");
    let expected = (&json!(-32000), &json!("verdict_denied"));
    assert_eq!((&denied["code"], &denied["data"]["blocked_by"]), expected, "{denied}");

    // A batch is answered in its order, each for itself.
    let mut batch = BatchRequestBuilder::new();
    for (method, params) in [
        ("a2g/status", id),
        ("a2g/execute", execute("write_file", write("batched", "three"))),
        ("a2g/status", json!({ "intent_id": intent_id() })),
        ("a2g/fly", json!({})),
    ] {
        batch.insert(method, Params(params)).expect("params");
    }
    let answers = client.batch_request::<Value>(batch).await.expect("a batch");
    assert_eq!((answers.num_successful_calls(), answers.num_failed_calls()), (2, 2), "{answers:?}");
    let answers = answers.into_iter().map(|answer| answer.map_err(|error| error.code())).collect::<Vec<_>>();
    assert_eq!(answers[0].as_ref(), Ok(&status));
    assert_eq!(answers[1].as_ref().map(|report| &report["status"]), Ok(&json!("SUCCESS")));
    assert_eq!((&answers[2], &answers[3]), (&Err(-32602), &Err(-32601)));
    assert_eq!(executor.file("batched").as_deref(), Some("three"));

    // A notification has no answer; over a WebSocket it is in force at some time soon.
    let policy = json!({ "agent_did": AGENT, "version": "none", "capabilities": { "tools": {} } });
    governor.notification("g2a/policy", Params(policy)).await.expect("it is sent");
    let deadline = std::time::Instant::now() + TIMEOUT;
    let refused = loop {
        let asked =
            ask(client, "a2g/execute", execute("list_directory", json!({ "path": "/workspace" }))).await;
        match asked {
            Err(refused) => break refused,
            Ok(report) => assert!(std::time::Instant::now() < deadline, "no policy is in force: {report}"),
        }
    };
    let expected = (&json!(-32000), &json!("standing_policy"));
    assert_eq!((&refused["code"], &refused["data"]["blocked_by"]), expected, "{refused}");
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work);
}

fn bearer(token: &str) -> HeaderMap {
    let shown = HeaderValue::from_str(&format!("Bearer {token}")).expect("a header");
    let mut headers = HeaderMap::new();
    headers.insert("authorization", shown);
    headers
}

/// An executor that knows an agent and a governor, and their tokens.
fn with_callers() -> (Executor, List, [String; 2]) {
    let list = List::new();
    let tokens = [agent(&list, "agent", AGENT), list.add("governor", &["--role", "governor"])];
    (Executor::start(list.options()), list, tokens)
}

#[test]
fn jsonrpsee_over_http() {
    let executor = Executor::start(Options::new());
    let client = HttpClientBuilder::default().build(executor.http_url()).expect("a client");
    block_on(speaks_a2g(&client, &client, &executor));
}

#[test]
fn jsonrpsee_over_web_socket() {
    let executor = Executor::start(Options::new());
    block_on(async {
        let client = WsClientBuilder::default().build(executor.web_socket_url()).await.expect("a WebSocket");
        speaks_a2g(&client, &client, &executor).await;
    });
}

#[test]
fn jsonrpsee_with_a_token_over_http() {
    let (executor, _list, tokens) = with_callers();
    let client = |headers| HttpClientBuilder::default().set_headers(headers).build(executor.http_url());
    let [agent, governor] = tokens.map(|token| client(bearer(&token)).expect("a client"));
    block_on(async {
        let nobody = client(HeaderMap::new()).expect("a client");
        let refused = nobody.request::<Value, _>("a2g/tools", Params(json!({}))).await;
        assert!(matches!(refused, Err(Error::Transport(_))), "{refused:?}");
        speaks_a2g(&agent, &governor, &executor).await;
    });
}

#[test]
fn jsonrpsee_with_a_token_over_web_socket() {
    let (executor, _list, [agent, governor]) = with_callers();
    let url = executor.web_socket_url();
    let open = async |headers| WsClientBuilder::default().set_headers(headers).build(&url).await;
    block_on(async {
        assert!(open(HeaderMap::new()).await.is_err(), "nobody has a WebSocket");
        let (agent, governor) = (open(bearer(&agent)).await, open(bearer(&governor)).await);
        speaks_a2g(&agent.expect("a WebSocket"), &governor.expect("a WebSocket"), &executor).await;
    });
}
