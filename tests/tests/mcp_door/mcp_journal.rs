//! What MCP clients read from the journal: results, resources and tasks.

use harness::callers::{List, agent, bearer, rpc};
use harness::mcp::{call, post, request, stream, with_tasks};
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};

const OTHER: &str = "did:aeon:other:1.0:abc123";

fn result_of(executor: &Executor, message: &Value) -> Value {
    let answer = post(&mut executor.client(), message, &[]).json();
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

fn error_of(executor: &Executor, message: &Value) -> Value {
    post(&mut executor.client(), message, &[]).json()["error"].take()
}

fn task(executor: &Executor, id: &Value) -> Value {
    result_of(executor, &with_tasks(request(50, "tasks/get", json!({ "taskId": id }))))
}

/// A tool may declare the schema of its results: clients see it, and a result that breaks it is a failure.
#[test]
fn a_result_that_breaks_its_schema_is_a_failure_of_the_tool() {
    let schema = json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } });
    let tool = |name: &str, text: &str| {
        Tool::command(name, &saying(1, text, 0))
            .declare("title", json!("Says a number"))
            .declare("idempotent", json!(true))
            .declare("result", schema.clone())
    };
    let long = format!(r#"{{"n":1,"x":"{}"}}"#, "a".repeat(30_000));
    let catalogue = Catalogue::empty()
        .add(tool("good", r#"{"n":7}"#))
        .add(tool("bad", r#"{"n":"seven"}"#))
        .add(tool("long", &long));
    let names = ["good", "bad", "long"].map(|name| (name, json!({})));
    let policies = methods::policy_folder(&[policy_for_all(&names)]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let tools = result_of(&executor, &request(1, "tools/list", json!({})))["tools"].take();
    let good = tools.as_array().expect("tools").iter().find(|tool| tool["name"] == "good").expect("the tool");
    assert_eq!((&good["title"], &good["outputSchema"]), (&json!("Says a number"), &schema), "{good}");
    assert_eq!(good["annotations"]["idempotentHint"], true);
    assert_eq!(result_of(&executor, &call(2, "good", &json!({})))["structuredContent"], json!({ "n": 7 }));
    assert_eq!(result_of(&executor, &call(3, "long", &json!({})))["isError"], false);
    let bad = result_of(&executor, &call(4, "bad", &json!({})));
    assert_eq!((&bad["isError"], bad.get("structuredContent")), (&json!(true), None), "{bad}");
    assert_eq!(bad["_meta"]["a2g/error"]["result_pointer"], "/n", "{bad}");
    assert!(bad["content"][0]["text"].as_str().expect("a text").contains("[result]"), "{bad}");
    let report = &executor.wait_for_reports(3)[2];
    assert_eq!((&report["status"], report.get("result")), (&json!("FAILURE"), None), "{report}");
}

#[test]
fn receipts_and_artifacts_of_ones_own_runs_are_resources() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let theirs = agent(&list, "theirs", OTHER);
    let guest = Tool::typed_bytes("hostile_artifact", guest("hostile_artifact"));
    let catalogue = Catalogue::with_tools().add(guest);
    let policies = methods::policy_folder(&[policy_for_all(&[("hostile_artifact", json!({}))])]);
    let executor = Executor::start(list.options().catalogue(&catalogue).policies(policies.path()));
    let asked = |token: &str, message: &Value| {
        post(&mut executor.client(), message, &[("Authorization", &bearer(token))]).json()
    };
    let arguments = json!({ "artifacts": [{ "name": "notes.txt", "mime": "text/plain" }, { "name": "p", "mime": "image/png" }] });
    let made = asked(&mine, &call(1, "hostile_artifact", &arguments));
    let intent = made["result"]["_meta"]["a2g/intent_id"].as_str().expect("an id").to_owned();
    let digest = made["result"]["_meta"]["a2g/receipt_digest"].as_str().expect("a digest").to_owned();
    let recorded = &executor.home().list_journal(&[])[0];
    assert_eq!(recorded["hash"], digest.as_str(), "{recorded}");

    let read = |token: &str, uri: &str| asked(token, &request(2, "resources/read", json!({ "uri": uri })));
    let receipt = format!("a2g://receipts/{intent}");
    let content = read(&mine, &receipt)["result"]["contents"][0].take();
    let report: Value = serde_json::from_str(content["text"].as_str().expect("a text")).expect("JSON");
    assert_eq!((&report["intent_id"], &report["status"]), (&json!(intent), &json!("SUCCESS")));
    let text = made["result"]["content"][1]["resource"].clone();
    assert_eq!(text["uri"], format!("a2g://artifacts/{intent}/notes.txt"), "{made}");
    assert_eq!(read(&mine, text["uri"].as_str().expect("a URI"))["result"]["contents"][0], text);
    let picture = &made["result"]["content"][2];
    assert_eq!((&picture["type"], &picture["mimeType"]), (&json!("image"), &json!("image/png")), "{made}");
    let image = format!("a2g://artifacts/{intent}/p");
    assert_eq!(read(&mine, &image)["result"]["contents"][0]["mimeType"], "image/png");

    let list_of = |token: &str| asked(token, &request(3, "resources/list", json!({})))["result"].take();
    assert_eq!(list_of(&mine)["resources"][0]["uri"], receipt.as_str());
    assert_eq!(list_of(&theirs)["resources"], json!([]));
    for (token, uri) in [
        (&theirs, &*receipt),
        (&theirs, &image),
        (&mine, &format!("{image}q")),
        (&mine, &format!("a2g://receipts/{}", intent_id())),
        (&mine, "a2g://receipts/x"),
        (&mine, "file:///etc/passwd"),
        (&mine, &format!("a2g://artifacts/{intent}/%zz")),
        (&mine, &format!("a2g://artifacts/{intent}/%+f")),
    ] {
        let answer = read(token, uri);
        assert_eq!(
            (&answer["error"]["code"], &answer["error"]["data"]["pointer"]),
            (&json!(-32602), &json!("/uri")),
            "{uri}: {answer}"
        );
    }
    let templates = asked(&mine, &request(4, "resources/templates/list", json!({})));
    assert_eq!(templates["result"]["resourceTemplates"].as_array().map(Vec::len), Some(2), "{templates}");
    let complete = |token: &str, name: &str, value: &str| {
        let template = "a2g://artifacts/{intent_id}/{name}";
        let params = json!({ "ref": { "type": "ref/resource", "uri": template },
            "argument": { "name": name, "value": value }, "context": { "arguments": { "intent_id": intent } } });
        asked(token, &request(5, "completion/complete", params))["result"]["completion"]["values"].take()
    };
    assert_eq!(complete(&mine, "intent_id", &intent[..6]), json!([intent]));
    assert_eq!(complete(&theirs, "intent_id", ""), json!([]));
    assert_eq!(complete(&mine, "name", "n"), json!(["notes.txt", "notes.txt"]), "whole, and in pieces");
    assert_eq!(complete(&theirs, "name", ""), json!([]));
    // A client that follows the list learns of a run of its own, and not of one of others.
    let follow =
        request(6, "subscriptions/listen", json!({ "notifications": { "resourcesListChanged": true } }));
    let bearer = bearer(&mine);
    let mut changes = stream(&executor, &[("Authorization", &bearer)], &follow);
    let first = changes.next().expect("an acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    asked(&theirs, &call(7, "hostile_artifact", &arguments));
    asked(&mine, &call(8, "hostile_artifact", &arguments));
    let change = changes.next().expect("a change");
    assert_eq!(change["method"], "notifications/resources/list_changed", "{change}");
    assert_eq!(change["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 6, "{change}");
}

/// A call that takes long goes on as a task, which survives the server.
#[test]
fn a_long_call_of_a_client_with_tasks_is_a_task() {
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[methods::policy()]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let message = with_tasks(call(1, "gate", &json!({ "path": "/workspace/x" })));
    let created = result_of(&executor, &message);
    assert_eq!(
        (&created["resultType"], &created["status"]),
        (&json!("task"), &json!("working")),
        "{created}"
    );
    let id = &created["taskId"];
    let working = task(&executor, id);
    assert_eq!((&working["resultType"], &working["status"]), (&json!("complete"), &json!("working")));
    assert_eq!(working["createdAt"], created["createdAt"]);
    executor.open_the_gate();
    let done = eventually("it ends", || {
        let task = task(&executor, id);
        (task["status"] == "completed").then_some(task)
    });
    assert_eq!(done["result"]["structuredContent"], json!({ "waited": true }), "{done}");
    let home = executor.kill();
    let executor = Executor::start_in(home);
    let after = task(&executor, id);
    assert_eq!((&after["status"], &after["result"]), (&json!("completed"), &done["result"]), "{after}");
    let unknown = with_tasks(request(9, "tasks/get", json!({ "taskId": intent_id() })));
    assert_eq!(error_of(&executor, &unknown)["data"]["pointer"], "/taskId");
    // A server that is killed during a run says so, and does not run it again.
    std::fs::remove_file(executor.workspace().join("go")).expect("the gate was open");
    let created = result_of(&executor, &message);
    let executor = Executor::start_in(executor.kill());
    let lost = task(&executor, &created["taskId"]);
    assert_eq!((&lost["status"], &lost["result"]["isError"]), (&json!("completed"), &json!(true)), "{lost}");
    assert_eq!(executor.runs_of_the_gate(), 2);
}

/// An executor with the tools of the methods, and two callers: an agent that is an approver too, and another agent.
struct TaskServer {
    executor: Executor,
    both: String,
    theirs: String,
    _list: List,
    _catalogue: Catalogue,
    _policies: tempfile::TempDir,
}

impl TaskServer {
    fn start() -> Self {
        let list = List::new();
        let both = list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
        let theirs = agent(&list, "theirs", OTHER);
        let catalogue = methods::catalogue();
        let policies = methods::policy_folder(&[methods::policy()]);
        let options = list.options().catalogue(&catalogue).policies(policies.path());
        let executor = Executor::start(options);
        Self { executor, both, theirs, _list: list, _catalogue: catalogue, _policies: policies }
    }
}

#[test]
fn tasks_are_cancelled_and_decided_and_belong_to_their_agent() {
    let TaskServer { executor, both, theirs, .. } = &TaskServer::start();
    let asked = |token: &str, message: &Value| {
        post(&mut executor.client(), message, &[("Authorization", &bearer(token))]).json()
    };
    let created = asked(both, &with_tasks(call(1, "gate", &json!({ "path": "/workspace/x" }))));
    let id = created["result"]["taskId"].clone();
    let params = json!({ "taskId": id });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let mut params = params.clone();
        params["inputResponses"] = json!({});
        let foreign = asked(theirs, &with_tasks(request(2, method, params)));
        assert_eq!(foreign["error"]["data"]["pointer"], "/taskId", "{method}: {foreign}");
    }
    let cancelled = asked(both, &with_tasks(request(3, "tasks/cancel", params.clone())));
    assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
    let get = |token: &str, id: &Value| {
        let mut message = with_tasks(request(4, "tasks/get", json!({ "taskId": id })));
        let capabilities = &mut message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        capabilities["elicitation"] = json!({});
        asked(token, &message)["result"].take()
    };
    eventually("it is cancelled", || (get(both, &id)["status"] == "cancelled").then_some(()));

    // A call that waits for a person, of a client that shows no form in its answers.
    for (decision, is_error, name) in [("approve", false, "x"), ("deny", true, "y")] {
        let created = asked(both, &with_tasks(call(5, "write_file", &write(name, ESCALATES))));
        let id = &created["result"]["taskId"];
        assert_eq!(created["result"]["status"], "working", "{created}");
        let waits = get(both, id);
        assert_eq!(waits["status"], "input_required", "{waits}");
        let form = &waits["inputRequests"]["decision"]["params"];
        assert!(form["message"].as_str().expect("a text").contains(ESCALATES), "{waits}");
        let answer = json!({ "decision": { "action": "accept", "content": { "decision": decision } } });
        let update = json!({ "taskId": id, "inputResponses": answer });
        let updated = asked(both, &with_tasks(request(6, "tasks/update", update)));
        assert_eq!(updated["result"]["resultType"], "complete", "{updated}");
        let done = eventually("it is decided", || {
            let task = get(both, id);
            (task["status"] == "completed").then_some(task)
        });
        assert_eq!(done["result"]["isError"], is_error, "{done}");
        assert_eq!(executor.file(name).is_none(), is_error);
    }
    let listen = json!({ "notifications": { "taskIds": [id] } });
    let refused = asked(both, &request(7, "subscriptions/listen", listen));
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    let wanted = &refused["error"]["data"]["requiredCapabilities"]["extensions"];
    assert!(wanted["io.modelcontextprotocol/tasks"].is_object(), "{refused}");
    let status = rpc(&mut executor.client(), both, "a2g/status", &json!({ "intent_id": id }));
    assert_eq!(status["result"]["report"]["status"], "ABORTED", "{status}");
}

/// A client that follows its tasks is sent their state, now and after each change; of others it learns nothing.
#[test]
fn a_subscription_has_the_changes_of_tasks_that_its_caller_may_see() {
    let TaskServer { executor, both, theirs, .. } = &TaskServer::start();
    let asked =
        |message: &Value| post(&mut executor.client(), message, &[("Authorization", &bearer(both))]).json();
    let listen = |token: &str, ids: &[&Value]| {
        let filter = json!({ "notifications": { "taskIds": ids } });
        let mut message = with_tasks(request(70, "subscriptions/listen", filter));
        let capabilities = &mut message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        capabilities["elicitation"] = json!({});
        let mut messages = stream(executor, &[("Authorization", &bearer(token))], &message);
        let first = messages.next().expect("an acknowledgement");
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        (first["params"]["notifications"].clone(), messages)
    };
    let waits = asked(&with_tasks(call(1, "write_file", &write("x", ESCALATES))))["result"]["taskId"].take();
    let (followed, mut messages) = listen(both, &[&waits, &json!(intent_id()), &json!("x"), &waits]);
    assert_eq!(followed, json!({ "taskIds": [waits] }));
    assert_eq!(listen(theirs, &[&waits]).0, json!({}));
    let mut next = |expected: &str| {
        let message = messages.next().expect("a change");
        let params = &message["params"];
        assert_eq!(message["method"], "notifications/tasks", "{message}");
        assert_eq!(params["_meta"]["io.modelcontextprotocol/subscriptionId"], 70, "{message}");
        assert_eq!((&params["taskId"], &params["status"]), (&waits, &json!(expected)), "{message}");
        params.clone()
    };
    let form = next("input_required");
    assert!(form["inputRequests"]["decision"]["params"].is_object(), "{form}");
    let answer = json!({ "decision": { "action": "accept", "content": { "decision": "approve" } } });
    let update = json!({ "taskId": waits, "inputResponses": answer });
    asked(&with_tasks(request(2, "tasks/update", update)));
    let mut done = messages.next().expect("a change");
    // The run may be shorter than the time until its state is read.
    if done["params"]["status"] == "working" {
        done = messages.next().expect("a change");
    }
    assert_eq!((&done["params"]["taskId"], &done["params"]["status"]), (&waits, &json!("completed")));
    assert_eq!(done["params"]["result"]["isError"], false, "{done}");

    // A task that runs, and is cancelled.
    let runs = asked(&with_tasks(call(3, "gate", &json!({ "path": "/workspace/y" }))))["result"].take();
    let (_, mut messages) = listen(both, &[&runs["taskId"]]);
    assert_eq!(messages.next().expect("its state")["params"]["status"], "working");
    asked(&with_tasks(request(4, "tasks/cancel", json!({ "taskId": runs["taskId"] }))));
    assert_eq!(messages.next().expect("its end")["params"]["status"], "cancelled");
}

/// A caller's list has the tools that its policy lets it reach.
#[test]
fn a_list_has_the_tools_that_the_policies_let_its_caller_reach() {
    let executor = Executor::start(Options::new().set("doors.mcp", json!({ "agent": AGENT })));
    let names = || {
        let tools = result_of(&executor, &request(1, "tools/list", json!({})))["tools"].take();
        let names = tools
            .as_array()
            .expect("tools")
            .iter()
            .map(|tool| tool["name"].as_str().expect("a name").to_owned());
        names.collect::<Vec<_>>()
    };
    assert!(names().len() > 3, "{:?}", names());
    let mut policy = policy_for_all(&[("read_file", json!({}))]);
    policy["agent_did"] = json!(AGENT);
    let set = executor.rpc("g2a/policy", &policy);
    assert_eq!(set["result"]["accepted"], true, "{set}");
    assert_eq!(names(), ["read_file"]);
    executor.rpc("g2a/revoke", &json!({ "agent_did": AGENT }));
    assert!(names().is_empty());
}
