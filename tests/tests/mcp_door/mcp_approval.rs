//! Calls over MCP that a person has to decide.

use crate::mcp::Host;
use harness::callers::{List, agent, bearer, rpc};
use harness::mcp::{
    answered, call, events, initialize_request, open_session, post, request, stream, with_forms,
};
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};

/// Callers, and an executor that knows them.
struct People {
    executor: Executor,
    both: String,
    mine: String,
    approver: String,
}

impl People {
    fn start() -> Self {
        let list = List::new();
        let both = list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
        let mine = agent(&list, "mine", AGENT);
        let approver = list.add("anna", &["--role", "approver"]);
        let folder = methods::policy_folder(&[methods::policy()]);
        let executor = Executor::start(list.options().signed_only().policies(folder.path()));
        Self { executor, both, mine, approver }
    }

    fn post(&self, token: &str, message: &Value) -> Value {
        post(&mut self.executor.client(), message, &[("Authorization", &bearer(token))]).json()
    }

    fn decide(&self, intent: &Value, decision: &str) {
        let directive = json!({ "intent_id": intent, "decision": decision });
        let answer = rpc(&mut self.executor.client(), &self.approver, "g2a/directive", &directive);
        assert_eq!(answer["result"]["accepted"], true, "{answer}");
    }
}

#[test]
fn an_approver_decides_in_a_form_and_the_call_runs_once() {
    let people = People::start();
    let message = with_forms(call(1, "write_file", &write("x", ESCALATES)));
    let asked = people.post(&people.both, &message)["result"].take();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let form = &asked["inputRequests"]["decision"];
    assert_eq!((&form["method"], &form["params"]["mode"]), (&json!("elicitation/create"), &json!("form")));
    assert_eq!(form["params"]["requestedSchema"]["required"], json!(["decision"]));
    let shown = form["params"]["message"].as_str().expect("a text");
    for text in [AGENT, "write_file", "/workspace/x", ESCALATES, "governor"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("g2a/directive"), "this form is where the person decides: {shown}");
    people.executor.assert_workspace_is_empty("nobody has decided");
    let approved = answered(&message, &asked, "accept", Some("approve"));
    let done = people.post(&people.both, &approved);
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(done["result"]["_meta"]["a2g/intent_id"], asked["_meta"]["a2g/intent_id"]);
    assert_eq!(people.executor.file("x").as_deref(), Some(ESCALATES));
    // The state is used up: it neither runs the call again nor shows its result.
    std::fs::remove_file(people.executor.workspace().join("x")).expect("it ran");
    let replayed = people.post(&people.both, &approved);
    assert_eq!(
        (&replayed["error"]["code"], &replayed["error"]["data"]["pointer"]),
        (&json!(-32602), &json!("/requestState")),
        "{replayed}"
    );
    people.executor.assert_workspace_is_empty("a state that was used");
    let intent = asked["_meta"]["a2g/intent_id"].as_str().expect("an id");
    let shown = people.executor.home().run(&["journal", "show", intent, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["approved_by"], "both", "{shown}");
    assert_eq!(people.executor.home().list_journal(&[]).len(), 1);
}

#[test]
fn a_state_of_another_call_or_caller_or_with_another_bit_runs_nothing() {
    let people = People::start();
    let message = with_forms(call(1, "write_file", &write("x", ESCALATES)));
    let asked = people.post(&people.both, &message)["result"].take();
    let approved = answered(&message, &asked, "accept", Some("approve"));
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut message = approved.clone();
        change(&mut message);
        message
    };
    let state = asked["requestState"].as_str().expect("a state").to_owned();
    let flipped = format!("{}{}", &state[..state.len() - 2], if state.ends_with("AA") { "BB" } else { "AA" });
    for (name, token, message) in [
        ("a foreign caller", &people.mine, approved.clone()),
        ("another tool", &people.both, changed(&|m| m["params"]["name"] = json!("read_file"))),
        ("a flipped bit", &people.both, changed(&|m| m["params"]["requestState"] = json!(flipped))),
        ("no state of ours", &people.both, changed(&|m| m["params"]["requestState"] = json!("x"))),
        (
            "another intent",
            &people.both,
            changed(&|m| m["params"]["_meta"]["a2g/intent_id"] = json!(intent_id())),
        ),
    ] {
        let answer = people.post(token, &message);
        assert!(answer.get("error").is_some(), "{name}: {answer}");
        people.executor.assert_workspace_is_empty(name);
    }
    // Named beside another intent, the state was used up. The intent waits: its id finds it, and gets a new state.
    let mut again = message.clone();
    again["params"]["_meta"]["a2g/intent_id"] = asked["_meta"]["a2g/intent_id"].clone();
    let asked = people.post(&people.both, &again)["result"].take();
    // Other arguments are another call.
    let mut other = answered(&message, &asked, "accept", Some("approve"));
    other["params"]["arguments"] = write("y", ESCALATES);
    let answer = people.post(&people.both, &other);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    people.executor.assert_workspace_is_empty("other arguments");
    // Without a decision in the form, the question is asked again.
    let asked = people.post(&people.both, &again)["result"].take();
    let wrong = answered(&message, &asked, "accept", Some("yes"));
    let answer = people.post(&people.both, &wrong);
    let pointer = &answer["error"]["data"]["pointer"];
    assert_eq!(pointer, "/inputResponses/decision/content/decision", "{answer}");
    // A form that is only closed, or sent without a decision, leaves the intent waiting, and a refusal in it is final.
    let mut asked = asked;
    for action in ["cancel", "accept"] {
        let sent = std::time::Instant::now();
        let undecided = people.post(&people.both, &answered(&message, &asked, action, None));
        let error = &undecided["result"]["_meta"]["a2g/error"];
        assert_eq!(error["blocked_by"], "escalation_pending", "{action}: {undecided}");
        assert!(sent.elapsed() < std::time::Duration::from_secs(10), "{action}: nobody decides");
        asked = people.post(&people.both, &again)["result"].take();
    }
    let denied = people.post(&people.both, &answered(&message, &asked, "decline", None));
    assert_eq!(denied["result"]["_meta"]["a2g/error"]["blocked_by"], "verdict_denied", "{denied}");
    people.executor.assert_workspace_is_empty("a denied call");
}

/// A caller that may not decide waits for one that may: its own answers approve nothing.
#[test]
fn a_caller_without_the_role_waits_for_an_approver() {
    let people = People::start();
    let message = with_forms(call(1, "write_file", &write("x", ESCALATES)));
    let asked = people.post(&people.mine, &message)["result"].take();
    let form = &asked["inputRequests"]["decision"]["params"];
    assert_eq!(form["requestedSchema"]["properties"], json!({}), "{asked}");
    assert!(form["message"].as_str().expect("a text").contains("g2a/directive"), "{asked}");
    let intent = &asked["_meta"]["a2g/intent_id"];
    let waiting = std::thread::scope(|scope| {
        let people = &people;
        let message = answered(&message, &asked, "accept", Some("approve"));
        let waiting = scope.spawn(move || people.post(&people.mine, &message));
        std::thread::sleep(std::time::Duration::from_millis(300));
        people.executor.assert_workspace_is_empty("the agent approved its own call");
        people.decide(intent, "APPROVED");
        waiting.join().expect("an answer")
    });
    assert_eq!(waiting["result"]["isError"], false, "{waiting}");
    assert_eq!(people.executor.file("x").as_deref(), Some(ESCALATES));

    let message = with_forms(call(5, "write_file", &write("y", ESCALATES)));
    let asked = people.post(&people.mine, &message)["result"].take();
    let withdrawn = people.post(&people.mine, &answered(&message, &asked, "decline", None));
    assert_eq!(withdrawn["result"]["isError"], true, "{withdrawn}");
    let directive = json!({ "intent_id": asked["_meta"]["a2g/intent_id"], "decision": "APPROVED" });
    let late = rpc(&mut people.executor.client(), &people.approver, "g2a/directive", &directive);
    assert_eq!(late["error"]["code"], -32602, "{late}");
    // A client that shows no forms learns what waits and where.
    let plain = people.post(&people.mine, &call(9, "write_file", &write("z", ESCALATES)));
    let text = plain["result"]["content"][0]["text"].as_str().expect("a text");
    let intent = plain["result"]["_meta"]["a2g/intent_id"].as_str().expect("an id");
    assert!(text.contains(intent) && text.contains("g2a/directive"), "{text}");
    // What a model is told works with what a model can do: once approved, the call runs and has the result that is named.
    let uri = format!("a2g://receipts/{intent}");
    assert!(
        !text.contains("_meta") && text.contains("do not call the tool again") && text.contains(&uri),
        "{text}"
    );
    people.decide(&json!(intent), "APPROVED");
    eventually("it ran by itself", || people.executor.file("z"));
    let read = request(10, "resources/read", json!({ "uri": uri }));
    eventually("its result", || {
        let read = people.post(&people.mine, &read);
        read["result"]["contents"][0]["text"].as_str().map(|text| assert!(text.contains("SUCCESS"), "{text}"))
    });
}

/// The caller that asks is not one of several approvers, whatever its roles are.
#[test]
fn nobody_is_asked_to_approve_for_their_own_agent() {
    let list = List::new();
    let both = list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
    let executor = Executor::start(list.options().set("approvals", json!([{ "required": 1 }])));
    let message = with_forms(call(1, "write_file", &write("x", ESCALATES)));
    let asked = post(&mut executor.client(), &message, &[("Authorization", &bearer(&both))]).json();
    let form = &asked["result"]["inputRequests"]["decision"]["params"];
    assert_eq!(form["requestedSchema"]["properties"], json!({}), "{asked}");
}

/// A client that opens pages gets the link to the page of the console; what it answers decides nothing.
#[test]
fn a_client_that_opens_pages_gets_the_link_to_the_decision() {
    let people = People::start();
    let with_urls = |mut message: Value| {
        let capabilities = &mut message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        capabilities["elicitation"] = json!({ "url": {} });
        message
    };
    let page = |asked: &Value| {
        let params = &asked["inputRequests"]["decision"]["params"];
        assert_eq!((&params["mode"], params.get("requestedSchema")), (&json!("url"), None), "{asked}");
        let url = params["url"].as_str().expect("a URL").to_owned();
        let intent = asked["_meta"]["a2g/intent_id"].as_str().expect("an id");
        assert_eq!(url, format!("http://{}/console/decide/{intent}", people.executor.address()));
        url
    };
    // Also for one who may decide: a client that shows no forms cannot send a decision.
    for (name, token) in [("x", &people.mine), ("y", &people.both)] {
        let message = with_urls(call(1, "write_file", &write(name, ESCALATES)));
        let asked = people.post(token, &message)["result"].take();
        let url = page(&asked);
        let mut client = people.executor.client();
        let path = url.split_once("/console").map(|(_, path)| format!("/console{path}")).expect("a path");
        let signed_out = client.request("GET", &path, &[], b"");
        assert!(
            signed_out.status == 303 && signed_out.text().is_empty(),
            "the link gives no rights: {}",
            signed_out.text()
        );
        let done = std::thread::scope(|scope| {
            let people = &people;
            let message = answered(&message, &asked, "accept", Some("approve"));
            let waiting = scope.spawn(move || people.post(token, &message));
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert_eq!(people.executor.file(name), None, "a client approved in place of the page");
            people.decide(&asked["_meta"]["a2g/intent_id"], "APPROVED");
            waiting.join().expect("an answer")
        });
        assert_eq!(done["result"]["isError"], false, "{done}");
        assert_eq!(people.executor.file(name).as_deref(), Some(ESCALATES));
    }
    let message = with_urls(call(5, "write_file", &write("z", ESCALATES)));
    let asked = people.post(&people.both, &message)["result"].take();
    let withdrawn = people.post(&people.both, &answered(&message, &asked, "decline", None));
    let error = &withdrawn["result"]["_meta"]["a2g/error"];
    assert_eq!(
        error["blocked_by"], "escalation_pending",
        "a refusal to open a page is no denial: {withdrawn}"
    );
    // A client that shows nothing can pass the link on.
    let plain = people.post(&people.mine, &call(9, "write_file", &write("w", ESCALATES)));
    let text = plain["result"]["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("/console/decide/"), "{text}");
}

/// On 2025-11-25 the page has an id, and the client is told when the decision was made.
#[test]
fn a_session_learns_that_the_decision_on_the_page_was_made() {
    let people = People::start();
    let bearer = bearer(&people.mine);
    let mut client = people.executor.client();
    let json = ("Content-Type", "application/json");
    let auth = ("Authorization", &*bearer);
    let session = open_session(&mut client, &[auth], json!({ "elicitation": { "url": {} } }));
    let mine = ("Mcp-Session-Id", &*session);
    let version = ("MCP-Protocol-Version", "2025-11-25");
    let called = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "write_file", "arguments": write("x", ESCALATES) } });
    let mut messages = stream(&people.executor, &[auth, mine, version], &called);
    let question = messages.next().expect("a question");
    let params = &question["params"];
    let intent = params["elicitationId"].clone();
    assert_eq!((&question["method"], &params["mode"]), (&json!("elicitation/create"), &json!("url")));
    assert!(params["url"].as_str().expect("a URL").ends_with(intent.as_str().expect("an id")), "{question}");
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    let sent = client.request("POST", "/mcp", &[json, auth, mine], reply.to_string().as_bytes());
    assert_eq!(sent.status, 202, "{}", sent.text());
    people.decide(&intent, "APPROVED");
    let complete = messages.next().expect("a notification");
    assert_eq!(
        (&complete["method"], &complete["params"]["elicitationId"]),
        (&json!("notifications/elicitation/complete"), &intent)
    );
    let done = messages.next().expect("an answer");
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(people.executor.file("x").as_deref(), Some(ESCALATES));
}

/// On 2025-11-25 the question is a request of the server, on the stream of the call.
#[test]
fn a_session_is_asked_on_the_stream_of_the_call() {
    let people = People::start();
    let bearer = bearer(&people.both);
    let mut client = people.executor.client();
    let json = ("Content-Type", "application/json");
    let auth = ("Authorization", &*bearer);
    let session = open_session(&mut client, &[auth], json!({ "elicitation": {} }));
    let mine = ("Mcp-Session-Id", &*session);
    let mut number = 1;
    for (name, action, content, expected) in [
        ("x", "accept", json!({ "decision": "approve" }), Some(ESCALATES)),
        ("y", "accept", json!({ "decision": "deny" }), None),
        ("z", "cancel", Value::Null, None),
        ("z", "accept", json!({}), None),
        // An answer that cannot be read is none, and the call does not wait for another one.
        ("z", "accept", json!({ "decision": "APPROVE" }), None),
        ("z", "x", Value::Null, None),
    ] {
        number += 1;
        let called = json!({ "jsonrpc": "2.0", "id": number, "method": "tools/call",
            "params": { "name": "write_file", "arguments": write(name, ESCALATES) } });
        let version = ("MCP-Protocol-Version", "2025-11-25");
        let mut messages = stream(&people.executor, &[auth, mine, version], &called);
        let question = messages.next().expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let reply = |id: &Value| {
            json!({ "jsonrpc": "2.0", "id": id, "result": { "action": action, "content": content } })
                .to_string()
        };
        let wrong = client.request("POST", "/mcp", &[json, auth, mine], reply(&json!(99)).as_bytes());
        assert_eq!(wrong.status, 400, "{}", wrong.text());
        let sent = client.request("POST", "/mcp", &[json, auth, mine], reply(&question["id"]).as_bytes());
        assert_eq!(sent.status, 202, "{}", sent.text());
        let done = messages.next().expect("an answer");
        assert_eq!(done["id"], number, "{done}");
        assert_eq!(done["result"]["isError"], expected.is_none(), "{done}");
        assert_eq!(people.executor.file(name).as_deref(), expected);
    }
    // An approver elsewhere is faster: the question is taken back.
    let called = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {
        "name": "write_file", "arguments": write("w", ESCALATES), "_meta": { "a2g/intent_id": intent_id() } } });
    let answer = std::thread::scope(|scope| {
        let intent = called["params"]["_meta"]["a2g/intent_id"].clone();
        let people = &people;
        scope.spawn(move || {
            let status = json!({ "intent_id": intent });
            eventually("it waits", || {
                let mut client = people.executor.client();
                let answer = rpc(&mut client, &people.approver, "a2g/status", &status);
                (answer["result"]["state"] == "escalated").then_some(())
            });
            people.decide(&intent, "APPROVED");
        });
        client.request("POST", "/mcp", &[json, auth, mine], called.to_string().as_bytes())
    });
    let messages = events(&answer);
    let methods = messages.iter().filter_map(|message| message["method"].as_str()).collect::<Vec<_>>();
    assert_eq!(methods, ["elicitation/create", "notifications/cancelled"], "{messages:?}");
    assert_eq!(messages.last().expect("an answer")["result"]["isError"], false, "{messages:?}");
}

/// The person at a host approves what the governor of the same process escalated.
#[test]
fn the_person_at_a_host_decides() {
    let mut host = Host::start(&[]);
    let message = with_forms(call(1, "write_file", &json!({ "path": host.path("x"), "content": ESCALATES })));
    let asked = host.ask(&message)["result"].take();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert!(!std::path::Path::new(&host.path("x")).exists());
    let done = host.ask(&answered(&message, &asked, "accept", Some("approve")));
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(std::fs::read_to_string(host.path("x")).expect("a file"), ESCALATES);

    assert_eq!(
        host.ask(&initialize_request(json!({ "elicitation": {} })))["result"]["protocolVersion"],
        "2025-11-25"
    );
    let called = json!({ "jsonrpc": "2.0", "id": 11, "method": "tools/call", "params": {
        "name": "write_file", "arguments": { "path": host.path("y"), "content": ESCALATES } } });
    host.send(&called);
    let question = loop {
        let message = host.receive();
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    host.send(&json!({ "jsonrpc": "2.0", "id": question["id"],
        "result": { "action": "accept", "content": { "decision": "approve" } } }));
    let done = loop {
        let message = host.receive();
        if message["id"] == 11 {
            break message;
        }
    };
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(std::fs::read_to_string(host.path("y")).expect("a file"), ESCALATES);
}

/// The process has no port, so no approver is named, and no task waits for one.
#[test]
fn a_host_without_forms_learns_what_it_can_do() {
    let mut host = Host::start(&[]);
    let plain = call(1, "write_file", &json!({ "path": host.path("x"), "content": ESCALATES }));
    let mut with_tasks = plain.clone();
    let capabilities = &mut with_tasks["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    capabilities["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
    for message in [plain, with_tasks] {
        let answer = host.ask(&message);
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        let text = answer["result"]["content"][0]["text"].as_str().expect("a text");
        for expected in ["a host that shows forms", "mcp --connect", "call the tool again"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(!text.contains("g2a/directive") && !text.contains("_meta"), "{text}");
    }
    assert!(!std::path::Path::new(&host.path("x")).exists());
}

/// The roles are those at the time of the answer, not of the call.
#[test]
fn an_approver_who_is_removed_decides_nothing_in_a_session() {
    let list = List::new();
    let both = list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
    let folder = methods::policy_folder(&[methods::policy()]);
    let mut executor = Executor::start(list.options().signed_only().policies(folder.path()));
    let before = bearer(&both);
    let mut client = executor.client();
    let session = open_session(&mut client, &[("Authorization", &before)], json!({ "elicitation": {} }));
    let mine = ("Mcp-Session-Id", &*session);
    let called = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "write_file", "arguments": write("x", ESCALATES) } });
    let version = ("MCP-Protocol-Version", "2025-11-25");
    let mut messages = stream(&executor, &[("Authorization", &before), mine, version], &called);
    let question = messages.next().expect("a question");
    let approval = json!({ "jsonrpc": "2.0", "id": question["id"],
        "result": { "action": "accept", "content": { "decision": "approve" } } });
    let ping = json!({ "jsonrpc": "2.0", "id": 3, "method": "ping" });
    let mut status = |token: &str, message: &Value| {
        let headers = [("Content-Type", "application/json"), ("Authorization", token), mine];
        client.request("POST", "/mcp", &headers, message.to_string().as_bytes()).status
    };
    list.remove("both");
    executor.process().hang_up();
    eventually("the caller is refused", || (status(&before, &ping) == 401).then_some(()));
    assert_eq!(status(&before, &approval), 401);
    // The same name without the role: its answer is taken, and approves nothing.
    let after = bearer(&agent(&list, "both", AGENT));
    executor.process().hang_up();
    eventually("the caller is back", || (status(&after, &ping) == 200).then_some(()));
    assert_eq!(status(&after, &approval), 202);
    std::thread::sleep(std::time::Duration::from_millis(300));
    executor.assert_workspace_is_empty("an approver that was removed");
    assert_eq!(executor.home().list_journal(&["--waiting"]).len(), 1);
}

#[test]
fn a_form_shows_what_the_tool_gets() {
    let people = People::start();
    let sly = format!("{ESCALATES}\u{202e}txt\u{200b}");
    let asked = people.post(&people.both, &with_forms(call(1, "write_file", &write("x", &sly))));
    let text = asked["result"]["inputRequests"]["decision"]["params"]["message"].as_str().expect("a text");
    assert!(text.contains("\\u{202e}txt\\u{200b}") && !text.contains('\u{202e}'), "{text}");
    let long = format!("{ESCALATES}{}", "x".repeat(10_000));
    let asked = people.post(&people.both, &with_forms(call(2, "write_file", &write("x", &long))));
    let text = asked["result"]["inputRequests"]["decision"]["params"]["message"].as_str().expect("a text");
    assert!(text.contains("are not shown; SHA-256 ") && text.len() < 6_000, "{text}");
}

/// The id of a withdrawn call stands for its content: nobody approves another call under it.
#[test]
fn a_withdrawn_intent_takes_no_other_content() {
    let people = People::start();
    let intent = json!(intent_id());
    let named = |arguments: Value| {
        let mut message = with_forms(call(1, "write_file", &arguments));
        message["params"]["_meta"]["a2g/intent_id"] = intent.clone();
        message
    };
    let asked = people.post(&people.mine, &named(write("x", ESCALATES)))["result"].take();
    let params = json!({ "intent_id": intent });
    let cancelled = rpc(&mut people.executor.client(), &people.mine, "a2g/cancel", &params);
    assert_eq!(cancelled["result"]["cancelled"], true, "{cancelled}");
    let other = people.post(&people.mine, &named(write("y", ESCALATES)));
    assert_eq!(other["error"]["code"], -32600, "{other}");
    // The state of the question is of no use either, with an approval or without.
    let approved = answered(&named(write("x", ESCALATES)), &asked, "accept", Some("approve"));
    let late = people.post(&people.mine, &approved);
    assert_eq!(late["result"]["isError"], true, "{late}");
    let again = people.post(&people.mine, &named(write("x", ESCALATES)));
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    people.executor.assert_workspace_is_empty("nobody approved");
}

#[test]
fn requests_of_a_session_and_streams_of_a_caller_are_bounded() {
    let people = People::start();
    let bearer = bearer(&people.mine);
    let auth = ("Authorization", &*bearer);
    let listen = request(1, "subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let mut streams = (0..64).map(|_| stream(&people.executor, &[auth], &listen)).collect::<Vec<_>>();
    assert!(streams.iter_mut().all(|stream| stream.next().is_some()));
    let refused = post(&mut people.executor.client(), &listen, &[auth]);
    assert_eq!((refused.status, &refused.json()["error"]["data"]["retry_after_ms"]), (503, &json!(500)));
    drop(streams);
    eventually("a stream is free", || stream(&people.executor, &[auth], &listen).next());

    let json = ("Content-Type", "application/json");
    let mut client = people.executor.client();
    let session = open_session(&mut client, &[auth], json!({ "elicitation": {} }));
    let mine = ("Mcp-Session-Id", &*session);
    let called = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "write_file", "arguments": write("x", ESCALATES) } });
    let mut waits = stream(&people.executor, &[auth, mine, ("MCP-Protocol-Version", "2025-11-25")], &called);
    assert_eq!(waits.next().expect("a question")["method"], "elicitation/create");
    let ping = json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" });
    let answer = client.request("POST", "/mcp", &[json, auth, mine], ping.to_string().as_bytes());
    assert_eq!(answer.json()["error"]["code"], -32600, "the id is in use: {}", answer.text());
}
