//! The executor behind a governor: the one to pair with, and ones that answer nonsense.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use harness::callers::List;
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn options(catalogue: &Catalogue, url: &str) -> Options {
    Options::new().signed_only().catalogue(catalogue).governor(url).set("governor.heartbeat_seconds", 1)
}

/// An executor that has registered with the governor at this URL.
fn registered(catalogue: &Catalogue, url: &str) -> Executor {
    let executor = Executor::start(options(catalogue, url));
    executor.line_with("registered with the governor");
    executor
}

fn registrations(executor: &Executor) -> usize {
    executor.stderr().matches("registered with the governor").count()
}

fn with_error(code: i64, message: &str) -> Reply {
    let error = json!({ "code": code, "message": message });
    Reply::Body(format!(r#"{{"jsonrpc":"2.0","error":{error},"id":$ID}}"#))
}

/// Both ways to reach a governor.
fn urls(governor: &Governor) -> [String; 2] {
    [governor.http_url(), governor.web_socket_url()]
}

#[test]
fn a_governor_decides_and_stores_every_report_once() {
    let catalogue = methods::catalogue();
    let governor = Governor::start(&[methods::policy()]);
    for url in urls(&governor) {
        let before = governor.reports().len();
        let mut executor = registered(&catalogue, &url);
        let mut client = executor.client();
        let ids: Vec<Value> = (0..8)
            .map(|n| {
                let call = intent("write_file", write(&format!("{n}"), "x"));
                let response = client.rpc("a2g/intent", &call);
                assert_eq!(result(&response)["report"]["status"], "SUCCESS", "{response}");
                // A repeat is answered and is not another report.
                assert_eq!(result(&client.rpc("a2g/intent", &call)), result(&response));
                call["intent_id"].clone()
            })
            .collect();
        let failing = intent("read_file", json!({ "path": "/workspace/missing" }));
        let response = client.rpc("a2g/intent", &failing);
        assert_eq!(result(&response)["report"]["status"], "FAILURE", "{response}");
        let denied = client.rpc("a2g/intent", &intent("hash_file", json!({ "path": "/workspace/0" })));
        assert!(expect_blocked(&denied, "verdict_denied").contains("hash_file"), "{denied}");

        // An orderly shutdown delivers all reports first.
        executor.process().stop();
        let reports = governor.reports().split_off(before);
        assert_eq!(reports.len(), ids.len() + 1, "{reports:?}");
        for id in ids.iter().chain([&failing["intent_id"]]) {
            assert_eq!(reports.iter().filter(|report| report["intent_id"] == *id).count(), 1, "{id}");
        }
    }
}

#[test]
fn a_governor_logs_its_decisions_with_reasons() {
    let catalogue = methods::catalogue();
    let governor = Governor::start(&[methods::policy()]);
    let executor = Executor::start(options(&catalogue, &governor.http_url()));
    for (tool, arguments, verdict, why) in [
        ("write_file", write("said", "x"), "APPROVED", ""),
        ("hash_file", json!({ "path": "/workspace/said" }), "DENIED", "hash_file"),
    ] {
        let call = intent(tool, arguments);
        executor.rpc("a2g/intent", &call);
        let line = governor.line_with(&format!("\"intent\":{}", call["intent_id"]));
        let said: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&said["level"], &said["message"]), (&json!("INFO"), &json!("decided")), "{line}");
        assert_eq!((&said["agent"], &said["tool"]), (&call["agent_did"], &json!(tool)), "{line}");
        assert_eq!(said["verdict"], verdict, "{line}");
        assert!(said["why"].as_str().expect("why").contains(why), "{line}");
    }
}

#[test]
fn a_server_that_cannot_listen_does_not_register() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let governor = FakeGovernor::start(|_, _| Reply::Result(json!({ "accepted": true })));
    let home = tempfile::tempdir().unwrap();
    let config = json!({
        "server": { "listen": address },
        "governor": { "url": governor.url() },
        "catalog": { "tools": tools(), "cache": cache() },
        "journal": { "path": "journal.db" },
        "ceilings": { "filesystem_scope": [] },
    });
    std::fs::write(home.path().join("executor.toml"), toml::to_string(&config).unwrap()).unwrap();
    let output = run_in(home.path(), ["serve"], b"");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains(&format!("cannot listen on {address}")), "{said}");
    assert_eq!(governor.seen(), []);
}

#[test]
fn the_executor_registers_again_with_a_governor_that_lost_it() {
    let catalogue = methods::catalogue();
    let mut governor = Governor::start(&[methods::policy()]);
    for url in urls(&governor) {
        let executor = registered(&catalogue, &url);
        assert_eq!(registrations(&executor), 1);
        governor.restart();
        eventually("it registers again", || (registrations(&executor) == 2).then_some(()));
        let answer = executor.rpc("a2g/intent", &intent("write_file", write("after", "x")));
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    }
}

/// Whatever another governor answers to a heartbeat of an executor that it does not know.
#[test]
fn the_executor_registers_again_whatever_a_governor_says_that_lost_it() {
    const ERRORS: [(i64, &str); 2] = [(-32001, "unknown agent"), (-32600, "not registered")];
    let known = Arc::new(AtomicBool::new(false));
    let refusal = Arc::new(AtomicUsize::new(0));
    let knows = Arc::clone(&known);
    let refuses = Arc::clone(&refusal);
    let broke = AtomicBool::new(false);
    let governor = FakeGovernor::start(move |method, _| {
        match method {
            "a2g/register" => knows.store(true, Ordering::SeqCst),
            "a2g/heartbeat" if !knows.load(Ordering::SeqCst) => {
                let (code, message) = ERRORS[refuses.load(Ordering::SeqCst)];
                return with_error(code, message);
            }
            // The connection breaks once, and the governor says nothing of it.
            "a2g/intent" if !broke.swap(true, Ordering::SeqCst) => return Reply::Hangup,
            "a2g/intent" => return with_error(-32000, "no"),
            _ => {}
        }
        Reply::Result(json!({ "accepted": true }))
    });
    // The number of registrations, once a heartbeat has followed the last one.
    let registrations = || {
        let seen = governor.seen().into_iter().map(|(method, _)| method).collect::<Vec<_>>();
        let last = seen.iter().rposition(|method| method == "a2g/register")?;
        let is_over = seen[last..].iter().any(|method| method == "a2g/heartbeat");
        is_over.then(|| seen.iter().filter(|method| *method == "a2g/register").count())
    };
    let registered =
        |times: usize| eventually("it registers", || registrations().filter(|count| *count >= times));
    let over_http = Executor::start(options(&methods::catalogue(), &governor.url()));
    registered(1);
    for index in 0..ERRORS.len() {
        refusal.store(index, Ordering::SeqCst);
        known.store(false, Ordering::SeqCst);
        assert_eq!(registered(index + 2), index + 2);
    }
    drop(over_http);
    // Over a WebSocket, a new connection is enough.
    let executor = Executor::start(options(&methods::catalogue(), &governor.web_socket_url()));
    registered(ERRORS.len() + 2);
    let refused = executor.rpc("a2g/intent", &intent("write_file", write("x", "x")));
    expect_blocked(&refused, "verdict_denied");
    assert_eq!(governor.sockets(), 2);
    registered(ERRORS.len() + 3);
}

#[test]
fn without_a_governor_nothing_runs_and_reports_are_queued() {
    let catalogue = methods::catalogue();
    let mut governor = Governor::start(&[methods::policy()]);
    for url in urls(&governor) {
        let executor = registered(&catalogue, &url);
        let mut client = executor.client();
        let call = intent("gate", json!({ "path": "/workspace/x" }));
        let running = call_in_background(&executor, "a2g/intent", &call);
        executor.wait_at_the_gate(1);
        governor.stop();

        let refused = intent("write_file", write("refused", "x"));
        let response = client.rpc("a2g/intent", &refused);
        expect_blocked(&response, "governor_unavailable");
        assert_eq!(error(&response, -32000)["data"]["intent_id"], refused["intent_id"]);
        assert_eq!(executor.file("refused"), None);
        error(&client.rpc("a2g/status", &json!({ "intent_id": refused["intent_id"] })), -32602);

        executor.open_the_gate();
        let response = running.join().unwrap();
        assert_eq!(result(&response)["report"]["status"], "SUCCESS", "what was approved goes on: {response}");
        governor.restart();
        assert_eq!(governor.reports_of(call["intent_id"].as_str().unwrap()).len(), 1);
        // The same intent may be sent again, now that there is somebody to ask.
        let response = eventually("the governor is asked again", || {
            let response = client.rpc("a2g/intent", &refused);
            response.get("result").is_some().then_some(response)
        });
        assert_eq!(result(&response)["report"]["status"], "SUCCESS", "{response}");
    }
}

#[test]
fn an_executor_starts_before_its_governor() {
    let catalogue = methods::catalogue();
    let mut governor = Governor::start(&[methods::policy()]);
    governor.stop();
    for url in urls(&governor) {
        governor.stop();
        let executor = Executor::start(options(&catalogue, &url));
        let warning = executor.line_with("the registration failed, and is retried");
        assert!(warning.contains(&url), "{warning}");
        let refused = executor.rpc("a2g/intent", &intent("write_file", write("x", "x")));
        expect_blocked(&refused, "governor_unavailable");
        executor.assert_workspace_is_empty("no governor");
        governor.restart();
        executor.line_with("registered with the governor");
    }
}

#[test]
fn where_people_have_to_approve_the_governor_does_not_count() {
    let list = List::new();
    let anna = list.add("anna", &["--role", "approver"]);
    let carl = list.add("carl", &["--role", "agent", "--agent", AGENT]);
    let governor = Governor::start(&[methods::policy()]);
    let options = list.options().set("approvals", json!([{ "required": 1 }]));
    let executor = Executor::start(options.governor(&governor.web_socket_url()));
    executor.line_with("registered with the governor");
    let call = intent("write_file", write("file", ESCALATES));
    let ask = |token: &str, method: &str, params: &Value| {
        HttpClient::ask_as(executor.address(), token, method, params).unwrap()
    };
    assert_eq!(result(&ask(&carl, "a2g/intent", &call))["verdict"], "ESCALATE");
    let directive = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    // The bundled governor accepts any sender, so this may be the agent itself.
    result(&governor.rpc("g2a/directive", &directive));
    executor.line_with("the governor's approval does not count here");
    assert_eq!(executor.file("file"), None);
    assert_eq!(result(&ask(&anna, "g2a/directive", &directive))["accepted"], true);
    eventually("the intent has run", || executor.file("file"));
}

#[test]
fn governor_pushes_over_web_socket_are_applied() {
    let catalogue = methods::catalogue();
    let governor = Governor::start(&[methods::policy()]);
    let executor = registered(&catalogue, &governor.web_socket_url());
    let mut client = executor.client();
    let pushed = |method: &str, params: Value| {
        let answer = governor.rpc(method, &params);
        assert_eq!(*result(&answer), json!({ "accepted": true, "executors": 1 }));
    };

    for (decision, end, content) in [("APPROVED", "finished", Some(ESCALATES)), ("DENIED", "denied", None)] {
        let call = intent("write_file", write(decision, ESCALATES));
        assert_eq!(result(&client.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
        assert_eq!(executor.file(decision), None);
        pushed("g2a/directive", json!({ "intent_id": call["intent_id"], "decision": decision }));
        let status = json!({ "intent_id": call["intent_id"] });
        eventually("the intent is resolved", || {
            (client.rpc("a2g/status", &status)["result"]["state"] == end).then_some(())
        });
        assert_eq!(executor.file(decision).as_deref(), content);
    }

    let call = intent("gate", json!({ "path": "/workspace/x" }));
    let running = call_in_background(&executor, "a2g/intent", &call);
    executor.wait_at_the_gate(1);
    pushed("g2a/revoke", json!({ "agent_did": AGENT }));
    let response = running.join().unwrap();
    assert_eq!(result(&response)["report"]["status"], "ABORTED", "{response}");
    let response = client.rpc("a2g/intent", &intent("write_file", write("revoked", "x")));
    expect_blocked(&response, "standing_policy");
    assert_eq!(executor.file("revoked"), None);

    let rule = json!({ "allowed": true, "constraints": {} });
    let policy =
        json!({ "agent_did": AGENT, "version": "2", "capabilities": { "tools": { "write_file": rule } } });
    pushed("g2a/policy", policy);
    eventually("the policy is in force", || {
        let response = client.rpc("a2g/intent", &intent("write_file", write("restored", "x")));
        response.get("result").is_some().then_some(())
    });
    let refused = client.rpc("a2g/intent", &intent("gate", json!({ "path": "/workspace/x" })));
    expect_blocked(&refused, "standing_policy");
}

#[test]
fn governor_methods_are_refused_from_other_callers() {
    let governor = Governor::start(&[methods::policy()]);
    let executor = Executor::start(options(&methods::catalogue(), &governor.http_url()));
    let mut client = executor.client();
    let call = intent("write_file", write("x", ESCALATES));
    assert_eq!(result(&client.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    let directive = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    expect_blocked(&client.rpc("g2a/directive", &directive), "caller_unauthorized");
    expect_blocked(&client.rpc("a2g/execute", &execute("write_file", write("x", "x"))), "verdict_untrusted");
    executor.assert_workspace_is_empty("directives of strangers");
}

/// The public key of a file with a key pair, as a registration has it.
fn public_key(pair: &Path) -> String {
    let jwk: Value = serde_json::from_slice(&std::fs::read(pair).unwrap()).unwrap();
    let x = URL_SAFE_NO_PAD.decode(jwk["x"].as_str().unwrap()).unwrap();
    format!("ed25519:{}", x.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[test]
fn a_registration_contains_the_public_key_of_a_persistent_file() {
    let governor = FakeGovernor::start(|_, _| Reply::Result(json!({})));
    let registered = |nth: usize| {
        eventually("it registers", || {
            let seen = governor.seen().into_iter().filter(|(method, _)| method == "a2g/register");
            seen.map(|(_, params)| params["public_key"].as_str().unwrap().to_owned()).nth(nth)
        })
    };
    let made = |home: &Home| home.journal().with_file_name("journal.db.jwk");

    let options = || Options::new().signed_only().governor(&governor.url());
    let executor = Executor::start(options());
    let first = registered(0);
    let file = made(executor.home());
    assert_eq!(first, public_key(&file));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let executor = Executor::start_in(executor.kill());
    assert_eq!(registered(1), first, "the key is made once");

    let home = executor.kill();
    set_mode(&file, 0o644);
    let refused = home.command().output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("chmod 600"), "{said}");

    let keys = Keys::new();
    let executor = Executor::start(options().set("journal.key", json!(keys.pair())));
    assert_eq!(registered(2), public_key(&keys.pair()));
    assert!(!made(executor.home()).exists(), "a configured key is enough");
    let alone = Executor::start(Options::new());
    assert!(!made(alone.home()).exists(), "the governor inside needs none");
}
