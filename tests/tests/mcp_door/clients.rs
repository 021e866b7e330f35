//! Clients that nobody here wrote: jsonrpsee's for A2G, and the libraries of other protocols. `cargo xtask test` builds
//! that of Rust; those of Python and JavaScript are there if `cargo xtask setup` could install them.

use harness::callers::{List, agent};
use harness::methods::{Params, write};
use harness::*;
use jsonrpsee::core::client::{ClientT, Error};
use jsonrpsee::core::params::BatchRequestBuilder;
use jsonrpsee::http_client::{HeaderMap, HeaderValue, HttpClientBuilder};
use jsonrpsee::ws_client::WsClientBuilder;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Runs the script of a third-party client to its end.
fn run_client(command: Command) {
    let output = run_to_end(command, b"");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// The command that runs a script.
fn script(interpreter: impl AsRef<OsStr>, name: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name));
    command
}

/// Runs a client of A2A against a new executor.
fn run_a2a_client(mut command: Command, more: &[&Path]) {
    let executor = Executor::start(Options::new());
    command.arg(format!("http://{}", executor.address())).args(more);
    run_client(command);
    assert_eq!(executor.file("a").as_deref(), Some("hi"));
}

#[test]
fn a2a_sdk_of_python() {
    let Some(python) = client_folder("a2a-sdk", "python/bin/python") else { return };
    run_a2a_client(script(python, "a2a_sdk.py"), &[]);
}

#[test]
fn a2a_sdk_of_javascript() {
    let Some(library) = client_folder("@a2a-js/sdk", "node/node_modules/@a2a-js/sdk") else { return };
    let folder = library.ancestors().nth(3).expect("the folder of node_modules").to_owned();
    run_a2a_client(script("node", "a2a_sdk.mjs"), &[&folder]);
}

fn mcp_sdk_of_python() -> Option<Command> {
    let installed = client_folder("mcp", "python/bin/mcp")?;
    Some(script(installed.with_file_name("python"), "mcp_sdk.py"))
}

fn mcp_sdk_of_javascript() -> Option<Command> {
    let package = "@modelcontextprotocol/client";
    let folder = "node22/node_modules";
    let node = client_folder("node of npm", &format!("{folder}/node/bin/node"))?;
    let library = client_folder(package, &format!("{folder}/{package}"))?;
    let mut command = script(node, "mcp_sdk.mjs");
    command.arg(library);
    Some(command)
}

/// The program of `tests/clients/rmcp`.
fn mcp_sdk_of_rust() -> Command {
    let client = clients().join("rmcp/debug/rmcp-client");
    assert!(client.is_file(), "{} is not built: run `cargo xtask test`", client.display());
    Command::new(client)
}

/// Runs a client of MCP against a new executor, whose anonymous caller may approve calls.
fn run_mcp_client_over_http(command: Command) {
    run_mcp_client_against_server(command, &[]);
}

/// Like [`run_mcp_client_over_http`], but the client starts `mcp --connect`.
fn run_mcp_client_through_proxy(command: Command) {
    let program = program();
    run_mcp_client_against_server(command, &[program.to_str().expect("UTF-8"), "mcp", "--connect"]);
}

/// Runs a client of MCP with the arguments of its command before the URL of a new executor.
fn run_mcp_client_against_server(mut command: Command, command_prefix: &[&str]) {
    let anywhere = json!({ "paths": ["/workspace/**"] });
    let allowed = ["gate", "search_text", "write_file"].map(|tool| (tool, anywhere.clone()));
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[policy_for_all(&allowed)]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    command.arg("/workspace").arg(executor.workspace());
    command.args(command_prefix).arg(format!("http://{}/mcp", executor.address()));
    run_client(command);
    check_mcp_files(&executor.workspace());
}

/// Runs a client of MCP that starts an executor by itself.
fn run_mcp_client_over_stdio(mut command: Command) {
    let (folder, state) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let scope = folder.path().canonicalize().expect("a path");
    let catalogue = methods::catalogue();
    command.env("XDG_STATE_HOME", state.path()).env("XDG_CACHE_HOME", cache_home());
    command.args([&scope, &scope, &program()]);
    command.args(["mcp", "--tools"]).arg(catalogue.folder()).arg("--scope").arg(&scope);
    run_client(command);
    check_mcp_files(&scope);
}

fn check_mcp_files(folder: &Path) {
    for revision in ["2026-07-28", "2025-11-25"] {
        assert_eq!(std::fs::read_to_string(folder.join(revision)).expect("a file"), "hi", "{revision}");
    }
}

#[test]
fn mcp_sdk_of_python_over_http() {
    let Some(client) = mcp_sdk_of_python() else { return };
    run_mcp_client_over_http(client);
}

#[test]
fn mcp_sdk_of_python_over_stdio() {
    let Some(client) = mcp_sdk_of_python() else { return };
    run_mcp_client_over_stdio(client);
}

#[test]
fn mcp_sdk_of_python_through_proxy() {
    let Some(client) = mcp_sdk_of_python() else { return };
    run_mcp_client_through_proxy(client);
}

#[test]
fn mcp_sdk_of_javascript_over_http() {
    let Some(client) = mcp_sdk_of_javascript() else { return };
    run_mcp_client_over_http(client);
}

#[test]
fn mcp_sdk_of_javascript_through_proxy() {
    let Some(client) = mcp_sdk_of_javascript() else { return };
    run_mcp_client_through_proxy(client);
}

#[test]
fn mcp_sdk_of_javascript_over_stdio() {
    let Some(client) = mcp_sdk_of_javascript() else { return };
    run_mcp_client_over_stdio(client);
}

#[test]
fn mcp_sdk_of_rust_over_http() {
    run_mcp_client_over_http(mcp_sdk_of_rust());
}

#[test]
fn mcp_sdk_of_rust_through_proxy() {
    run_mcp_client_through_proxy(mcp_sdk_of_rust());
}

#[test]
fn mcp_sdk_of_rust_over_stdio() {
    run_mcp_client_over_stdio(mcp_sdk_of_rust());
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
        let agent = open(bearer(&agent)).await;
        let governor = open(bearer(&governor)).await;
        speaks_a2g(&agent.expect("a WebSocket"), &governor.expect("a WebSocket"), &executor).await;
    });
}
