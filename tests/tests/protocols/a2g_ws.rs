//! WebSocket `/jsonrpc`, on the same port.

use crate::a2g_http::{has_id, ids};
use harness::methods::{Jsonrpsee, write};
use harness::*;
use jsonrpsee::ws_client::WsClientBuilder;
use serde_json::{Value, json};

#[test]
fn every_method_is_served_over_web_socket() {
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[methods::policy()]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let url = executor.web_socket_url();
    let mut door =
        Jsonrpsee::new(async || WsClientBuilder::default().request_timeout(TIMEOUT).build(&url).await);
    methods::every_method_is_served(&mut door, &executor.workspace());
}

#[test]
fn request_ids_are_echoed_verbatim_over_web_socket() {
    let executor = Executor::start(Options::new());
    let mut socket = executor.web_socket();
    let (good, bad) = ids();
    for id in good {
        socket.send(format!(r#"{{"jsonrpc":"2.0","method":"a2g/tools","id":{id}}}"#).as_bytes());
        let response = socket.receive().unwrap();
        assert!(has_id(&response, &id), "{id} became {response}");
    }
    for id in bad {
        let response = socket.exchange(&format!(r#"{{"jsonrpc":"2.0","method":"a2g/tools","id":{id}}}"#));
        error(&response, -32600);
    }
}

#[test]
fn text_and_binary_messages_and_batches_are_accepted() {
    let executor = Executor::start(Options::new());
    let mut socket = executor.web_socket();
    let request = |id: usize| json!({ "jsonrpc": "2.0", "method": "a2g/tools", "id": id });
    socket.send_binary(request(1).to_string().as_bytes());
    assert!(has_id(&socket.receive().unwrap(), "1"));
    let of = |count: usize| (0..count).map(request).collect::<Value>().to_string();
    assert_eq!(socket.exchange(&of(16)).as_array().unwrap().len(), 16);
    error(&socket.exchange(&of(17)), -32600);
    error(&socket.exchange("[]"), -32600);
    error(&socket.exchange("[1]")[0], -32600);
    error(&socket.exchange("{"), -32700);
}

#[test]
fn notifications_over_web_socket_run_only_when_they_restrict() {
    let executor = Executor::start(Options::new());
    let mut socket = executor.web_socket();
    let notification = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
    };
    socket.send(notification("a2g/execute", execute("write_file", write("notified", "x"))).as_bytes());
    let policy = json!({ "agent_did": AGENT, "version": "none", "capabilities": { "tools": {} } });
    socket.send(notification("g2a/policy", policy).as_bytes());
    // Messages are answered in any order, so the policy is in force at some time soon.
    eventually("the policy is in force", || {
        let call = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "id": 1,
            "params": execute("list_directory", json!({ "path": "/workspace" })) });
        let answer = socket.exchange(&call.to_string());
        (answer["error"]["data"]["blocked_by"] == "standing_policy").then_some(())
    });
    executor.assert_workspace_is_empty("a notification");
}

#[test]
fn an_oversized_message_runs_nothing_and_the_door_stays_open() {
    let executor = Executor::start(Options::new().set("server.max_body_bytes", 4096));
    let mut socket = executor.web_socket();
    let call = execute("write_file", write("long", &"x".repeat(8192)));
    let call = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": call, "id": 1 });
    socket.send(call.to_string().as_bytes());
    if let Some(answer) = socket.receive() {
        error(&serde_json::from_str(&answer).unwrap(), -32700);
    }
    executor.assert_workspace_is_empty("a long message");
    result(&executor.web_socket().exchange(r#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#));
}

#[test]
fn web_sockets_with_a_browser_origin_are_refused() {
    let executor = Executor::start(Options::new());
    for headers in [[("Origin", "https://evil.example")], [("Host", "evil.example")], [("Origin", "null")]] {
        let refused = WebSocketClient::upgrade(executor.address(), &headers).err();
        assert!(refused.as_deref().is_some_and(|status| status.contains("403")), "{headers:?}: {refused:?}");
    }
}
