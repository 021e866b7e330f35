//! `POST /jsonrpc` and `GET /health`.

use harness::methods::{Jsonrpsee, write};
use harness::*;
use jsonrpsee::http_client::HttpClientBuilder;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};

#[test]
fn every_method_is_served_over_http() {
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[methods::policy()]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let mut door = Jsonrpsee::new(async || {
        HttpClientBuilder::default().request_timeout(TIMEOUT).build(executor.http_url())
    });
    methods::every_method_is_served(&mut door, &executor.workspace());
}

#[test]
fn health_checks_are_answered() {
    let executor = Executor::start(Options::new());
    let answer = executor.client().request("GET", "/health", &[], b"");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({ "status": "ok" }));
}

/// The ids that come back exactly as they came, and two that do not fit.
pub fn ids() -> (Vec<String>, Vec<String>) {
    let good = [r#""req-001""#, r#""""#, "1", "0", "-7", "1.50", "2e3", "18446744073709551616", "null"];
    let good = good.into_iter().map(str::to_owned);
    let escaped = [r#""\u00e9\n\"\\""#.to_owned(), r#""é""#.to_owned(), "9".repeat(128)];
    let longest = format!("\"{}\"", "x".repeat(126));
    let good = good.chain(escaped).chain([longest]).collect();
    let too_long = format!("\"{}\"", "x".repeat(127));
    (good, vec![too_long, "9".repeat(129), "true".to_owned(), "[1]".to_owned(), "{}".to_owned()])
}

/// The text of the id in a response.
pub fn has_id(response: &str, id: &str) -> bool {
    [",", "}"].iter().any(|after| response.contains(&format!("\"id\":{id}{after}")))
}

#[test]
fn request_ids_are_echoed_verbatim_over_http() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let (good, bad) = ids();
    for id in good {
        for method in ["a2g/tools", "no/such/method", "a2g/status"] {
            let request = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{}},"id":{id}}}"#);
            let response = client.post(request.as_bytes()).text();
            assert!(has_id(&response, &id), "{id} became {response}");
        }
    }
    for id in bad {
        let request = format!(r#"{{"jsonrpc":"2.0","method":"a2g/tools","params":{{}},"id":{id}}}"#);
        let response = client.post(request.as_bytes()).json();
        error(&response, -32600);
        assert_eq!(response["id"], Value::Null, "{response}");
    }
}

fn request(id: usize, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": params, "id": id })
}

#[test]
fn a_batch_is_limited_to_16_calls() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let batch = |prefix: &str, count: usize| -> Value {
        (0..count).map(|n| request(n, &execute("write_file", write(&format!("{prefix}{n}"), "x")))).collect()
    };
    let refused = client.post(batch("no", 17).to_string().as_bytes()).json();
    assert!(error(&refused, -32600)["message"].as_str().unwrap().contains("16"), "{refused}");
    executor.assert_workspace_is_empty("a batch of 17");
    let answers = client.post(batch("yes", 16).to_string().as_bytes()).json();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 16);
    for n in 0..16 {
        let answer = answers.iter().find(|answer| answer["id"] == n).unwrap();
        assert_eq!(result(answer)["status"], "SUCCESS", "{answer}");
        assert!(executor.file(&format!("yes{n}")).is_some());
    }
}

#[test]
fn invalid_batches_get_the_errors_of_the_specification() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let empty = client.post(b"[]").json();
    error(&empty, -32600);
    assert_eq!(empty["id"], Value::Null);
    for (batch, count) in [("[1]", 1), ("[1,2,3]", 3), (r#"[[],{"jsonrpc":"2.0"}]"#, 2)] {
        let answers = client.post(batch.as_bytes()).json();
        assert_eq!(answers.as_array().unwrap().len(), count, "{answers}");
        for answer in answers.as_array().unwrap() {
            error(answer, -32600);
        }
    }
    let mixed = json!([1, { "jsonrpc": "2.0", "method": "a2g/tools", "id": "t" },
        { "jsonrpc": "2.0", "method": "a2g/tools" }, { "jsonrpc": "2.0", "method": "nothing", "id": 5 }]);
    let answers = client.post(mixed.to_string().as_bytes()).json();
    assert_eq!(answers.as_array().unwrap().len(), 3, "the notification is not answered: {answers}");
    let of =
        |id: Value| answers.as_array().unwrap().iter().find(|answer| answer["id"] == id).unwrap().clone();
    error(&of(Value::Null), -32600);
    result(&of(json!("t")));
    error(&of(json!(5)), -32601);
}

#[test]
fn a_notification_may_set_a_policy_but_never_execute() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let notification = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
    };
    for method in ["a2g/execute", "a2g/intent"] {
        let params = match method {
            "a2g/execute" => execute("write_file", write("notified", "x")),
            _ => intent("write_file", write("notified", "x")),
        };
        let answer = client.post(notification(method, params.clone()).as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (204, ""), "{method}");
        let batch = format!("[{}]", notification(method, params));
        assert_eq!(client.post(batch.as_bytes()).status, 204, "{method} in a batch");
    }
    result(&client.rpc("a2g/execute", &execute("write_file", write("asked", "x"))));
    let names: Vec<_> =
        std::fs::read_dir(executor.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["asked"]);

    let policy = json!({ "agent_did": AGENT, "version": "none", "capabilities": { "tools": {} } });
    assert_eq!(client.post(notification("g2a/policy", policy).as_bytes()).status, 204);
    let refused = client.rpc("a2g/execute", &execute("write_file", write("asked", "x")));
    assert!(expect_blocked(&refused, "standing_policy").contains("`none`"), "{refused}");
}

/// A method that a path answers with 405 is not among those that it allows, and the others are.
#[test]
fn the_allow_header_lists_exactly_the_supported_methods() {
    let executor = Executor::start(Options::new());
    let ask = |method: &str, path: &str| {
        let host = executor.address();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        let mut reader = BufReader::new(HttpClient::send_only(host, request.as_bytes()));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{method} {path}: {head}");
        }
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let allow = head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap_or_default().to_owned();
        (status, allow)
    };
    for path in [
        "/jsonrpc",
        "/metrics",
        "/health",
        "/a2a/rpc",
        "/run",
        "/capabilities",
        "/a2e/session",
        "/a2e/stream",
    ] {
        let (status, allow) = ask("PATCH", path);
        assert_eq!(status, 405, "{path}");
        let allowed = allow.split(',').map(str::trim).collect::<Vec<_>>();
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE"] {
            let (status, _) = ask(method, path);
            assert_eq!(status != 405, allowed.contains(&method), "{method} {path}: {status}, {allow}");
        }
    }
    assert_eq!((ask("GET", "/jsonrpc").0, ask("HEAD", "/jsonrpc").0), (426, 426));
}

#[test]
fn chunked_bodies_and_charsets_are_accepted() {
    let executor = Executor::start(Options::new());
    let call = r#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#;
    let (first, second) = call.split_at(10);
    let chunks = format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len());
    let headers = [("Transfer-Encoding", "chunked"), ("Content-Type", "Application/JSON; charset=utf-8")];
    let answer = executor.client().post_with(&headers, chunks.as_bytes());
    result(&answer.json());
}
