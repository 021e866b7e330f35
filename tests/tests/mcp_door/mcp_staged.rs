//! Staged runs over MCP: their file changes wait, and a person commits or discards them in a form.

use crate::mcp::Host;
use harness::callers::{List, agent, bearer, rpc};
use harness::mcp::{answered, call, open_session, post, request, stream, with_forms, with_tasks};
use harness::methods::{ESCALATES, policy_folder, write};
use harness::*;
use serde_json::{Value, json};

/// Callers, and an executor that lets the file changes of every run wait.
struct Staging {
    executor: Executor,
    both: String,
    mine: String,
    approver: String,
}

impl Staging {
    fn start(more: impl FnOnce(Options) -> Options) -> Self {
        let list = List::new();
        let both = list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
        let mine = agent(&list, "mine", AGENT);
        let approver = list.add("anna", &["--role", "approver"]);
        let executor = Executor::start(more(list.options().set("ceilings.effects", "staged")));
        Self { executor, both, mine, approver }
    }

    fn post(&self, token: &str, message: &Value) -> Value {
        post(&mut self.executor.client(), message, &[("Authorization", &bearer(token))]).json()
    }

    /// Sends a call of which a person is asked whether its changes take effect, and gives the question.
    fn ask(&self, message: &Value) -> Value {
        let asked = self.post(&self.both, message)["result"].take();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let form = &asked["inputRequests"]["changes"];
        assert_eq!(
            (&form["method"], &form["params"]["mode"]),
            (&json!("elicitation/create"), &json!("form"))
        );
        asked
    }

    /// Commits with the digest of a result, elsewhere.
    fn commit(&self, result: &Value) {
        let effects = &result["_meta"]["a2g/effects"];
        let params = json!({ "intent": result["_meta"]["a2g/intent_id"], "digest": effects["digest"] });
        let report = rpc(&mut self.executor.client(), &self.approver, "a2g/commit", &params);
        assert_eq!(report["result"]["status"], "SUCCESS", "{report}");
    }
}

/// The same call again, with the answer of a person about its file changes.
fn decided(message: &Value, asked: &Value, action: &str, decision: Option<&str>) -> Value {
    let mut again = answered(message, asked, action, decision);
    let answer = again["params"]["inputResponses"]["decision"].take();
    again["params"]["inputResponses"] = json!({ "changes": answer });
    again
}

/// The same call again under its intent, as a client repeats it.
fn repeated(message: &Value, result: &Value) -> Value {
    let mut again = message.clone();
    again["params"]["_meta"]["a2g/intent_id"] = result["_meta"]["a2g/intent_id"].clone();
    again
}

/// The state of the file changes in a result, and the text about them.
fn changes(result: &Value) -> (&str, &str) {
    assert_eq!(result["isError"], false, "{result}");
    let state = result["_meta"]["a2g/effects"]["state"].as_str();
    let text = result["content"][1]["text"].as_str();
    state.zip(text).unwrap_or_else(|| panic!("no changes: {result}"))
}

#[test]
fn a_model_learns_that_the_changes_of_its_call_wait() {
    let staging = Staging::start(|options| options);
    let message = call(1, "write_file", &write("x", "hello"));
    let waits = staging.post(&staging.mine, &message)["result"].take();
    let (state, text) = changes(&waits);
    assert_eq!(state, "waiting", "{waits}");
    for part in
        ["not in force", "created file `/workspace/x` (5 bytes)", "effects commit", "/console/changes/"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(waits["structuredContent"]["a2g/effects"], waits["_meta"]["a2g/effects"], "{waits}");
    let listed = &waits["_meta"]["a2g/usage"]["effects"];
    assert_eq!((&listed["mode"], &listed["changes"]), (&json!("staged"), &json!(1)), "{waits}");
    assert_eq!(listed["files"][0]["path"], "/workspace/x");
    staging.executor.assert_workspace_is_empty("a run whose changes wait");
    staging.commit(&waits);
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
    // The receipt is the same, and the answer says what has become of the changes.
    let committed = staging.post(&staging.mine, &repeated(&message, &waits))["result"].take();
    let (state, text) = changes(&committed);
    assert_eq!((state, &committed["_meta"]["a2g/effects"]["decided_by"]), ("in_force", &json!("anna")));
    assert!(text.contains("are in force: they were committed by anna"), "{text}");
    assert_eq!(committed["content"][0], waits["content"][0]);
    // A run without changes has nothing to wait for.
    let read = call(9, "read_file", &json!({ "path": "/workspace/x" }));
    let read = staging.post(&staging.mine, &read)["result"].take();
    assert_eq!((&read["isError"], read["_meta"].get("a2g/effects")), (&json!(false), None), "{read}");
}

/// Requests to an address that the operator does not allow, which is looked up only at the commit.
#[test]
fn a_form_and_an_answer_say_what_a_commit_sends() {
    const TOOL: &str = "hostile_http";
    let catalogue = Catalogue::empty().add(Tool::typed_bytes(TOOL, guest(TOOL)).network());
    let mut policy = policy_for_all(&[(TOOL, json!({ "paths": ["/workspace/**"] }))]);
    policy["capabilities"]["network"] = json!({ "allowed_domains": ["*.test"] });
    let policies = policy_folder(&[policy]);
    let staging = Staging::start(|options| {
        options
            .catalogue(&catalogue)
            .policies(policies.path())
            .set("ceilings.network_allowed", true)
            .set("ceilings.held_requests", 16)
            .set("network.allowed_domains", json!(["*.test"]))
            .set("network.hosts", json!({ "other.test": ["10.1.2.3"] }))
    });
    let path = format!("/workspace/{}", "x".repeat(600));
    let request = json!({ "authority": "other.test", "method": "POST", "path": path, "body": "x" });
    let new = |requests: usize, written: Value| {
        let arguments = json!({ "requests": vec![&request; requests], "write": written });
        with_forms(call(1, TOOL, &arguments))
    };
    let both = new(16, json!([["/workspace/made.txt", "made"]]));
    let asked = staging.ask(&both);
    let form = &asked["inputRequests"]["changes"]["params"];
    let shown = form["message"].as_str().expect("a text");
    assert_eq!(shown.matches("\n* sends `POST http://other.test").count(), 16, "{shown}");
    // However long the URLs are, they push no change off the form.
    for part in ["more characters of the URL not shown", "\n* created file `/workspace/made.txt`"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let title = form["requestedSchema"]["properties"]["decision"]["oneOf"][0]["title"].as_str();
    assert!(title.is_some_and(|title| title.ends_with("it then sends 16 requests, for good")), "{form}");
    let done =
        staging.post(&staging.both, &decided(&both, &asked, "accept", Some("commit")))["result"].take();
    let (state, text) = changes(&done);
    assert!(state == "in_force" && text.contains("are in force: they were committed by both"), "{done}");
    assert!(text.contains("0 of 16 requests were sent") && text.contains("request 1 was not sent"), "{text}");

    let only = new(1, json!([]));
    let asked_alone = staging.ask(&only);
    let answer = decided(&only, &asked_alone, "accept", Some("commit"));
    let tried = staging.post(&staging.both, &answer)["result"].take();
    let (state, text) = changes(&tried);
    assert!(
        state == "kept" && text.starts_with("The requests that this call has left (1) were tried"),
        "{tried}"
    );
    assert!(text.contains("0 of 1 requests were sent") && !text.contains("in force"), "{text}");
}

#[test]
fn a_person_decides_on_the_changes_in_a_form() {
    let staging = Staging::start(|options| options);
    let new = |name: &str| with_forms(call(1, "write_file", &write(name, "hello")));
    let message = new("x");
    let asked = staging.ask(&message);
    let shown = asked["inputRequests"]["changes"]["params"]["message"].as_str().expect("a text");
    for part in [AGENT, "write_file", "created file `/workspace/x` (5 bytes)", "Digest", "/console/changes/"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    staging.executor.assert_workspace_is_empty("nobody has decided");
    // The approval of a call is no answer to this question, so it is asked again.
    let crossed = staging.ask(&answered(&message, &asked, "accept", Some("approve")));
    staging.executor.assert_workspace_is_empty("an approval of the call");
    let commit = decided(&message, &crossed, "accept", Some("commit"));
    let done = staging.post(&staging.both, &commit)["result"].take();
    let (state, text) = changes(&done);
    assert!(state == "in_force" && text.contains("committed by both"), "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
    let replayed = staging.post(&staging.both, &commit);
    assert_eq!(replayed["error"]["data"]["pointer"], "/requestState", "{replayed}");

    for (name, action, decision) in [("y", "accept", Some("discard")), ("z", "decline", None)] {
        let message = new(name);
        let asked = staging.ask(&message);
        let done = staging.post(&staging.both, &decided(&message, &asked, action, decision))["result"].take();
        let (state, text) = changes(&done);
        assert!(state == "discarded" && text.contains("discarded by both"), "{done}");
        assert_eq!(staging.executor.file(name), None, "{action}");
    }
    // A form that is closed, or sent without a decision, decides nothing. The repeated call asks again.
    let message = new("w");
    let mut asked = staging.ask(&message);
    for action in ["cancel", "accept"] {
        let done = staging.post(&staging.both, &decided(&message, &asked, action, None))["result"].take();
        assert_eq!(changes(&done).0, "waiting", "{action}: {done}");
        asked = staging.ask(&repeated(&message, &done));
    }
    // A caller that may not decide is not asked, and its answer decides nothing.
    let mut foreign = decided(&message, &asked, "accept", Some("commit"));
    assert!(staging.post(&staging.mine, &foreign).get("error").is_some(), "the state is another caller's");
    foreign = repeated(&message, &asked);
    let waits = staging.post(&staging.mine, &foreign)["result"].take();
    assert_eq!(changes(&waits).0, "waiting", "{waits}");
    assert_eq!(staging.executor.file("w"), None);
}

/// One byte makes a content that no list shows, and an emptied file loses its content as a deleted one does.
#[test]
fn a_form_names_emptied_files_and_contents_that_are_not_shown() {
    let staging = Staging::start(|options| options);
    let hidden = call(1, "write_file", &write("x", "hello\0"));
    let waits = staging.post(&staging.mine, &hidden)["result"].take();
    let unseen = "Not shown: binary content of 1 file.";
    assert!(changes(&waits).1.contains("(6 bytes, binary content not shown)"), "{waits}");
    let said = waits["_meta"]["a2g/effects"]["message"].as_str().expect("a text");
    assert!(said.contains(unseen), "{said}");
    let form = |name: &str, content: &str| {
        let asked = staging.ask(&with_forms(call(1, "write_file", &write(name, content))));
        asked["inputRequests"]["changes"]["params"]["message"].as_str().expect("a text").to_owned()
    };
    let shown = form("y", "hello\0");
    assert!(shown.contains(unseen) && shown.contains("(6 bytes, binary content not shown)"), "{shown}");
    let readable = form("z", "hello");
    assert!(!readable.contains("ot shown"), "{readable}");
    std::fs::write(staging.executor.workspace().join("full"), "other").expect("a file");
    let emptying = form("full", "");
    assert!(emptying.contains("emptied file `/workspace/full` (5 to 0 bytes"), "{emptying}");
}

#[test]
fn changes_that_cannot_take_effect_still_wait() {
    let staging = Staging::start(|options| options);
    let message = with_forms(call(1, "write_file", &write("x", "hello")));
    let asked = staging.ask(&message);
    std::fs::write(staging.executor.workspace().join("x"), "another's").expect("a file");
    let commit = decided(&message, &asked, "accept", Some("commit"));
    let done = staging.post(&staging.both, &commit)["result"].take();
    let (state, text) = changes(&done);
    assert!(state == "waiting" && text.contains("had no effect: "), "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("another's"));
    // Somebody who approves elsewhere in the meantime is not asked again.
    std::fs::remove_file(staging.executor.workspace().join("x")).expect("a file");
    let again = repeated(&message, &done);
    let asked = staging.ask(&again);
    staging.commit(&done);
    let late =
        staging.post(&staging.both, &decided(&again, &asked, "accept", Some("discard")))["result"].take();
    let (state, text) = changes(&late);
    assert!(state == "in_force" && text.contains("committed by anna"), "{late}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
}

/// The rules about approvals hold for file changes, too.
#[test]
fn an_approver_does_not_commit_for_their_own_agent() {
    let staging = Staging::start(|options| options.set("approvals", json!([{ "required": 1 }])));
    let message = with_forms(call(1, "write_file", &write("x", "hello")));
    let asked = staging.ask(&message);
    let commit = decided(&message, &asked, "accept", Some("commit"));
    let done = staging.post(&staging.both, &commit)["result"].take();
    let (state, text) = changes(&done);
    assert!(state == "waiting" && text.contains("[[approvals]]"), "{done}");
    staging.executor.assert_workspace_is_empty("the agent's own approver");
    staging.commit(&done);
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
}

/// The answer to the question about the call never counts for its changes.
#[test]
fn an_escalated_call_is_asked_about_twice() {
    let folder = methods::policy_folder(&[methods::policy()]);
    let staging = Staging::start(|options| options.signed_only().policies(folder.path()));
    let message = with_forms(call(1, "write_file", &write("x", ESCALATES)));
    let first = staging.post(&staging.both, &message)["result"].take();
    assert!(first["inputRequests"]["decision"].is_object(), "{first}");
    let approved = answered(&message, &first, "accept", Some("approve"));
    let second = staging.ask(&approved);
    assert_eq!(second["_meta"]["a2g/intent_id"], first["_meta"]["a2g/intent_id"]);
    staging.executor.assert_workspace_is_empty("the call was approved, and not its changes");
    let commit = decided(&message, &second, "accept", Some("commit"));
    let done = staging.post(&staging.both, &commit)["result"].take();
    assert_eq!(changes(&done).0, "in_force", "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some(ESCALATES));
}

/// On 2025-11-25 the question is a request of the server, on the stream of the call.
#[test]
fn a_session_is_asked_about_changes_on_the_stream_of_the_call() {
    let staging = Staging::start(|options| options);
    let bearer = bearer(&staging.both);
    let mut client = staging.executor.client();
    let json = ("Content-Type", "application/json");
    let auth = ("Authorization", &*bearer);
    let session = open_session(&mut client, &[auth], json!({ "elicitation": {} }));
    let mine = ("Mcp-Session-Id", &*session);
    let version = ("MCP-Protocol-Version", "2025-11-25");
    let called = |number: u64, name: &str| {
        json!({ "jsonrpc": "2.0", "id": number, "method": "tools/call",
            "params": { "name": "write_file", "arguments": write(name, "hello") } })
    };
    let mut number = 1;
    for (name, action, content, state, expected) in [
        ("x", "accept", json!({ "decision": "commit" }), "in_force", Some("hello")),
        ("y", "accept", json!({ "decision": "discard" }), "discarded", None),
        ("z", "decline", Value::Null, "discarded", None),
        ("w", "cancel", Value::Null, "waiting", None),
        ("w", "accept", json!({ "decision": "approve" }), "waiting", None),
    ] {
        number += 1;
        let mut messages = stream(&staging.executor, &[auth, mine, version], &called(number, name));
        let question = messages.next().expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let reply = json!({ "jsonrpc": "2.0", "id": question["id"],
            "result": { "action": action, "content": content } });
        let sent = client.request("POST", "/mcp", &[json, auth, mine], reply.to_string().as_bytes());
        assert_eq!(sent.status, 202, "{}", sent.text());
        let done = messages.next().expect("an answer");
        assert_eq!(done["id"], number, "{done}");
        assert_eq!(changes(&done["result"]).0, state, "{done}");
        assert_eq!(staging.executor.file(name).as_deref(), expected, "{action}");
    }
    // Somebody elsewhere is faster: the question is taken back.
    let mut messages = stream(&staging.executor, &[auth, mine, version], &called(9, "v"));
    let question = messages.next().expect("a question");
    let sets = rpc(&mut staging.executor.client(), &staging.approver, "a2g/effects", &json!({}));
    let newest = &sets["result"]["sets"][0];
    let params = json!({ "intent": newest["intent"], "digest": newest["digest"] });
    let report = rpc(&mut staging.executor.client(), &staging.approver, "a2g/commit", &params);
    assert_eq!(report["result"]["status"], "SUCCESS", "{report}");
    let cancelled = messages.next().expect("a notification");
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["requestId"]),
        (&json!("notifications/cancelled"), &question["id"])
    );
    let done = messages.next().expect("an answer");
    assert_eq!(changes(&done["result"]).0, "in_force", "{done}");
    assert_eq!(staging.executor.file("v").as_deref(), Some("hello"));
}

/// A task is an intent, so its client finds the question there, too.
#[test]
fn a_task_requires_input_until_its_changes_are_decided() {
    let staging = Staging::start(|options| options);
    let waits = staging.post(&staging.mine, &call(1, "write_file", &write("x", "hello")))["result"].take();
    let intent = &waits["_meta"]["a2g/intent_id"];
    let task = |token: &str, method: &str, more: Value| {
        let mut params = json!({ "taskId": intent });
        params.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        staging.post(token, &with_forms(with_tasks(request(2, method, params))))
    };
    let seen = task(&staging.both, "tasks/get", json!({}));
    assert_eq!(seen["result"]["status"], "input_required", "{seen}");
    assert!(seen["result"]["inputRequests"]["changes"].is_object(), "{seen}");
    let seen = task(&staging.mine, "tasks/get", json!({}));
    assert_eq!(seen["result"]["status"], "completed", "the caller may not decide: {seen}");
    assert_eq!(changes(&seen["result"]["result"]).0, "waiting");
    let commit = json!({ "inputResponses": {
        "changes": { "action": "accept", "content": { "decision": "commit" } } } });
    let refused = task(&staging.mine, "tasks/update", commit.clone());
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("approver")), "{refused}");
    staging.executor.assert_workspace_is_empty("a caller that may not decide");
    let taken = task(&staging.both, "tasks/update", commit);
    assert!(taken.get("error").is_none(), "{taken}");
    let seen = task(&staging.both, "tasks/get", json!({}));
    assert_eq!(seen["result"]["status"], "completed", "{seen}");
    assert_eq!(changes(&seen["result"]["result"]).0, "in_force");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
}

/// The person at a host decides what its own process has staged.
#[test]
fn the_person_at_a_host_commits() {
    let folders = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let path = folders.path().canonicalize().expect("a path").join(name);
        std::fs::create_dir(&path).expect("a folder");
        path
    };
    let work = folder("work");
    let state = folder("state");
    let policies = folder("policies");
    let pattern = format!("{}/**", work.display());
    write_policies(&policies, &[policy_for_all(&[("write_file", json!({ "paths": [pattern] }))])]);
    let config = state.join("executor.toml");
    let text = json!({
        "catalog": { "tools": tools() },
        "ceilings": { "filesystem_scope": [pattern], "effects": "staged" },
        "governor": { "policies": policies },
        "journal": { "path": state.join("journal.db") },
    });
    std::fs::write(&config, toml::to_string(&text).expect("TOML")).expect("a file");
    let mut host = Host::spawn(&["--config", config.to_str().expect("UTF-8")], None);
    let file = work.join("x");
    let message = call(1, "write_file", &json!({ "path": file, "content": "hello" }));
    // Without a form, the model is told who could decide.
    let waits = host.ask(&message)["result"].take();
    let (waiting, text) = changes(&waits);
    assert!(waiting == "waiting" && text.contains("person at this host"), "{text}");
    assert!(!text.contains("a2g-executor effects"), "the process has no port: {text}");
    let message = with_forms(message);
    let asked = host.ask(&message)["result"].take();
    assert!(asked["inputRequests"]["changes"].is_object() && !file.exists(), "{asked}");
    let done = host.ask(&decided(&message, &asked, "accept", Some("commit")))["result"].take();
    assert_eq!(changes(&done).0, "in_force", "{done}");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "hello");
}
