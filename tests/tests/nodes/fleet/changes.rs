//! The file changes of staged runs, which are at the node that ran the call.

use super::elsewhere::{Nodes, ask};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A tool that sends the requests of its arguments.
const SENDS: &str = "hostile_http";

#[test]
fn another_node_names_the_one_that_has_the_changes() {
    let Some(nodes) = Nodes::start_with(|_, options| options.set("ceilings.effects", "staged")) else {
        return;
    };
    let call = intent("write_file", write("new.txt", "new"));
    let staged = ask(&nodes.one, &nodes.agent, "a2g/intent", &call);
    let report = &result(&staged)["report"];
    assert_eq!(report["status"], "STAGED", "{staged}");
    let of_set = json!({ "intent": call["intent_id"] });
    let commit = json!({ "intent": call["intent_id"], "digest": report["usage"]["effects"]["digest"] });
    for (who, method, params, code) in [
        (&nodes.approver, "a2g/commit", &commit, -32600),
        (&nodes.approver, "a2g/undo", &of_set, -32600),
        (&nodes.agent, "a2g/discard", &of_set, -32602),
        (&nodes.agent, "a2g/effects", &of_set, -32602),
    ] {
        let refused = ask(&nodes.two, who, method, params);
        let message = error(&refused, code)["message"].as_str().expect("a message");
        assert!(message.contains("the node `one`") && message.contains("send this"), "{method}: {message}");
    }
    // To another agent, it is an intent that nobody knows.
    for method in ["a2g/discard", "a2g/effects"] {
        let [known, unknown] = [of_set.clone(), json!({ "intent": intent_id() })]
            .map(|params| (ask(&nodes.two, &nodes.other, method, &params), params));
        let text = |(answer, params): &(Value, Value)| {
            let message = error(answer, -32602)["message"].as_str().expect("a message").to_owned();
            message.replace(params["intent"].as_str().expect("an id"), "")
        };
        assert_eq!(text(&known), text(&unknown), "{method}");
    }
    assert!(!nodes.one.workspace().join("new.txt").exists());
    let committed = ask(&nodes.one, &nodes.approver, "a2g/commit", &commit);
    assert_eq!(result(&committed)["status"], "SUCCESS", "{committed}");
    assert_eq!(nodes.one.file("new.txt").as_deref(), Some("new"));
}

/// Its files are in force, which it records once it is a node again: another one has reported the commit as
/// aborted.
#[test]
fn a_node_that_has_lost_its_lease_while_it_sends_begins_no_request() {
    let may_answer = Arc::<AtomicBool>::default();
    let is_told = Arc::clone(&may_answer);
    let web = Web::start(move |mut stream, _| {
        while !is_told.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _gone = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n");
    });
    let catalogue =
        Catalogue::empty().add(Tool::typed_bytes(SENDS, guest(SENDS)).network().effects("staged"));
    let started = Nodes::start_with(|_, options| {
        options
            .catalogue(&catalogue)
            .set("ceilings.network_allowed", true)
            .set("ceilings.held_requests", 2)
            .set("network.allowed_domains", json!(["web.test"]))
            .set("network.allowed_addresses", json!([web.address()]))
            .set("network.hosts", json!({ "web.test": ["127.0.0.1"] }))
    });
    let Some(mut nodes) = started else { return };
    let request = web.post("/", "");
    let arguments = json!({ "write": [["/workspace/made.txt", "made"]], "requests": [request, request] });
    let mut limits = manifest();
    limits["network_allowed"] = json!(true);
    let call = approved(intent(SENDS, arguments), &limits);
    let staged = ask(&nodes.one, &nodes.agent, "a2g/execute", &call);
    let report = result(&staged);
    assert_eq!(report["status"], "STAGED", "{staged}");
    let params = json!({ "intent": report["intent_id"], "digest": report["usage"]["effects"]["digest"] });
    let address = nodes.one.address();
    let token = nodes.approver.clone();
    let commit = std::thread::spawn(move || HttpClient::ask_as(address, &token, "a2g/commit", &params));
    eventually("the first request arrives", || (web.requests().len() == 1).then_some(()));
    nodes.one.process().pause();
    nodes.fleet.wait_for(nodes.two.home(), "one", |node| node["taken_over_by"] == "two");
    may_answer.store(true, Ordering::SeqCst);
    nodes.one.process().resume();
    let answer = commit.join().unwrap().expect("an answer");
    let decision = result(&answer);
    let ends = &decision["result"]["requests"];
    assert_eq!((&decision["status"], &ends[0]["outcome"]), (&json!("SUCCESS"), &json!("sent")), "{answer}");
    assert_eq!(ends[1]["outcome"], "failed", "{answer}");
    assert!(ends[1]["reason"].as_str().is_some_and(|reason| reason.contains("lease")), "{answer}");
    assert_eq!(nodes.one.file("made.txt").as_deref(), Some("made"));
    assert_eq!(web.requests().len(), 1);
}
