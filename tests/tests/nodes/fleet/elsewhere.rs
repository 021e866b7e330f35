//! Intents that wait for a person, and tasks of A2A, asked for at another node than the one at which they arrived.

use super::Fleet;
use harness::callers::{List, agent};
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};

/// Two nodes with one list of callers, and the tokens of two agents, an approver and an operator in it.
pub(super) struct Nodes {
    pub(super) fleet: Fleet,
    pub(super) one: Executor,
    pub(super) two: Executor,
    pub(super) agent: String,
    pub(super) other: String,
    pub(super) approver: String,
    pub(super) operator: String,
    pub(super) governor: String,
    /// Read again when a node starts again.
    pub(super) list: List,
}

impl Nodes {
    pub(super) fn start() -> Option<Self> {
        Self::start_with(|_, options| options)
    }

    /// As [`Self::start`], with other options of a node.
    pub(super) fn start_with(change: impl Fn(&str, Options) -> Options) -> Option<Self> {
        let fleet = Fleet::start()?;
        let list = List::new();
        let [agent, other] = [("agent", AGENT), ("other", "did:a2g:agent:1.0:other")]
            .map(|(name, did)| agent(&list, name, did));
        let approver = list.add("ann", &["--role", "approver"]);
        let operator = list.add("op", &["--role", "operator"]);
        let governor = list.add("gov", &["--role", "governor"]);
        let [one, two] =
            ["one", "two"].map(|node| Executor::start(list.of(change(node, fleet.options(node)))));
        // A node asks only those that it knows to run.
        for node in ["one", "two"] {
            fleet.wait_for(one.home(), node, |node| node["state"] == "live");
        }
        Some(Self { fleet, one, two, agent, other, approver, operator, governor, list })
    }

    /// Sends an intent to the first node that then waits for a person.
    pub(super) fn escalate(&self, name: &str) -> Value {
        self.escalate_at(&[&self.one], name).1
    }

    /// Sends an intent to each of these nodes that then waits for a person. Returns its call and its id.
    pub(super) fn escalate_at(&self, waiting: &[&Executor], name: &str) -> (Value, Value) {
        let call = intent("write_file", write(name, ESCALATES));
        for node in waiting {
            let answer = ask(node, &self.agent, "a2g/intent", &call);
            assert_eq!(result(&answer)["verdict"], "ESCALATE", "{answer}");
        }
        let id = json!({ "intent_id": call["intent_id"] });
        (call, id)
    }

    pub(super) fn state(&self, node: &Executor, id: &Value) -> String {
        let status = ask(node, &self.agent, "a2g/status", id);
        status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
    }
}

pub(super) fn ask(node: &Executor, token: &str, method: &str, params: &Value) -> Value {
    HttpClient::ask_as(node.address(), token, method, params).expect("an answer")
}

pub(super) fn decide(node: &Executor, token: &str, id: &Value, decision: &str) -> Value {
    let directive = json!({ "intent_id": id["intent_id"], "decision": decision });
    ask(node, token, "g2a/directive", &directive)
}

#[test]
fn an_intent_that_waits_is_decided_from_any_node() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { one, two, approver, .. } = &nodes;
    let [approved, denied, cancelled] = ["approved", "denied", "cancelled"].map(|name| nodes.escalate(name));
    assert_eq!(nodes.state(two, &approved), "escalated");
    let message = mcp::with_tasks(mcp::request(1, "tasks/get", json!({ "taskId": approved["intent_id"] })));
    let header = [("Authorization", &*callers::bearer(&nodes.agent))];
    let task = mcp::post(&mut two.client(), &message, &header).json();
    assert_eq!(result(&task)["status"], "working", "{task}");
    // The agent may not decide, at any node.
    error(&decide(two, &nodes.agent, &approved, "APPROVED"), -32000);
    assert_eq!(result(&decide(two, approver, &approved, "APPROVED"))["accepted"], true);
    let report = eventually("the approved intent has run", || {
        ask(two, &nodes.agent, "a2g/status", &approved)["result"].get("report").cloned()
    });
    assert_eq!(report["status"], "SUCCESS", "{report}");
    // The node that was asked has the tool, so it runs the intent.
    assert_eq!(two.file("approved").as_deref(), Some(ESCALATES));
    assert_eq!(result(&decide(two, approver, &denied, "DENIED"))["accepted"], true);
    assert_eq!(nodes.state(one, &denied), "denied");
    let stopped = ask(two, &nodes.agent, "a2g/cancel", &cancelled);
    assert_eq!(result(&stopped)["cancelled"], true);
    for (id, node) in [(&approved, one), (&denied, two), (&cancelled, two)] {
        error(&decide(node, approver, id, "APPROVED"), -32602);
    }
    let shown = two.home().run(&["journal", "show", approved["intent_id"].as_str().unwrap()]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("ann"), "{shown:?}");
    // The journal of the node at which it arrived knows where it went.
    eventually("the end is recorded", || {
        let is_end =
            |record: &Value| record["kind"] == "cancelled" && record["intent_id"] == approved["intent_id"];
        records(one.home()).iter().any(is_end).then_some(())
    });
    for node in [one, two] {
        let verified = node.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
    assert_eq!((one.file("denied"), one.file("cancelled"), one.file("approved")), (None, None, None));
}

/// Posts a form of a page as it is shown, with other values of some fields.
fn post(console: &console::Client, path: &str, page: &str, changes: &[(&str, &str)]) -> (u16, String) {
    let mut fields = vec![("form_token".to_owned(), console::field(page, "form_token"))];
    if page.contains("name=\"basis\"") {
        fields.extend(console::shown(page));
    }
    for (name, value) in changes {
        fields.retain(|(field, _)| field != name);
        fields.push((String::from(*name), String::from(*value)));
    }
    let fields = fields.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>();
    console.post(path, &fields, "")
}

#[test]
fn the_console_of_any_node_decides_and_shows_the_run() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { one, two, .. } = &nodes;
    let [approved, denied, stopped] = ["approved", "denied", "stopped"].map(|name| {
        let id = nodes.escalate(name)["intent_id"].as_str().unwrap().to_owned();
        (format!("/console/decide/{id}"), format!("/console/runs/{id}"), id)
    });
    let [agent, approver, operator] =
        [&nodes.agent, &nodes.approver, &nodes.operator].map(|token| console::Client::with_token(two, token));
    for (person, sees_nodes) in [(&agent, false), (&approver, false), (&operator, true)] {
        for list in ["/console", "/console/inbox"] {
            let page = person.get(list).1;
            assert!(page.contains(&approved.0) && page.contains("\"Node\">one</td>"), "{page}");
            assert_eq!(page.contains("Waiting for a person"), sees_nodes && list == "/console", "{page}");
        }
    }
    // The token of the forms is this session's, at this node.
    let page = approver.get(&approved.0).1;
    assert!(page.contains("PRIVATE KEY"), "{page}");
    assert_eq!(
        console::field(&page, "form_token"),
        console::field(&approver.get("/console").1, "form_token")
    );
    assert_eq!(page.matches("form_token").count(), 2, "{page}");
    assert_eq!(post(&approver, &approved.0, &page, &[("form_token", "x")]).0, 403);
    // Only who may decide does, and only on what was shown.
    assert_eq!(post(&agent, &approved.0, &agent.get(&approved.0).1, &[("action", "deny")]).0, 403);
    let (status, changed) = post(&approver, &approved.0, &page, &[("action", "approve"), ("memory", "16")]);
    assert!(status == 200 && changed.contains("Nothing is decided yet"), "{changed}");
    let approve = [("action", "approve")];
    let wider = [("action", "approve"), ("memory", "4096")];
    assert!(post(&approver, &approved.0, &page, &wider).1.contains("wider than the current grant"));
    assert_eq!(nodes.state(one, &json!({ "intent_id": approved.2 })), "escalated");
    assert_eq!(post(&approver, &approved.0, &changed, &approve).0, 303);
    let run = eventually("the run has ended", || {
        let page = approver.get(&approved.1).1;
        page.contains("SUCCESS").then_some(page)
    });
    assert!(run.contains("of 16 MB") && run.contains("Timeline") && run.contains("Proof"), "{run}");
    assert!(agent.get(&approved.1).1.contains("SUCCESS"));
    assert_eq!(two.file("approved").as_deref(), Some(ESCALATES));
    let deny = [("action", "deny"), ("reason", "not now")];
    let page = approver.get(&denied.0).1;
    assert_eq!(post(&approver, &denied.0, &page, &deny).0, 303);
    assert!(approver.get(&denied.1).1.contains("not now"));
    // A second decision finds nothing that waits.
    assert!(post(&approver, &denied.0, &page, &approve).1.contains("no longer waits"));
    let page = operator.get(&stopped.1).1;
    assert!(page.contains("WAITS FOR A PERSON"), "{page}");
    assert_eq!(post(&operator, &format!("{}/stop", stopped.1), &page, &[]).0, 303);
    assert_eq!(approver.get(&stopped.0).0, 200);
    assert_eq!((two.file("denied"), two.file("stopped"), one.file("approved")), (None, None, None));
    assert_eq!(approver.get(&format!("/console/decide/{}", intent_id())).0, 404);
}

/// The ids of the intents that a list of the console links to, in its order.
fn listed(page: &str) -> Vec<String> {
    let links = page.split("href=\"/console/runs/").skip(1);
    links.map(|link| link.split('"').next().unwrap_or_default().to_owned()).collect()
}

/// A page with what all nodes have: a busy one may not answer in time.
fn page_of_all(person: &console::Client, path: &str) -> String {
    eventually("each node answers", || {
        let page = person.get(path).1;
        (!page.contains("(no answer)") && !page.contains("has given no answer")).then_some(page)
    })
}

/// The link to the next page of a list.
fn older(page: &str) -> Option<String> {
    let (before, _) = page.split_once("\">Older</a>")?;
    Some(before.rsplit_once("href=\"")?.1.replace("&amp;", "&"))
}

#[test]
fn the_console_of_any_node_lists_the_runs_and_refusals_of_all() {
    let Some(mut nodes) = Nodes::start() else { return };
    let Nodes { one, two, .. } = &nodes;
    let send = |node: &Executor, path: &str| {
        let call = intent("read_file", json!({ "path": path }));
        ask(node, &nodes.agent, "a2g/intent", &call);
        call["intent_id"].as_str().unwrap().to_owned()
    };
    // More than a page has, the newest first.
    let mut sent =
        (0..30).flat_map(|_| [one, two].map(|node| send(node, "/workspace/absent"))).collect::<Vec<_>>();
    sent.reverse();
    let refused = [one, two].map(|node| send(node, "/etc/shadow"));
    let [agent, operator] =
        [&nodes.agent, &nodes.operator].map(|token| console::Client::with_token(two, token));
    for person in [&agent, &operator] {
        let first = page_of_all(person, "/console/runs?tool=read_file");
        assert!(first.contains("\"Node\">one</td>") && first.contains("\"Node\">two</td>"), "{first}");
        let next = older(&first).expect("a second page");
        let second = page_of_all(person, &next);
        assert_eq!(older(&second), None, "{second}");
        assert_eq!([listed(&first), listed(&second)].concat(), sent);
        eventually("the refusals of both nodes are listed", || {
            let page = listed(&person.get("/console/refused?tool=read_file").1);
            refused.iter().all(|id| page.contains(id)).then_some(())
        });
    }
    // A caller with other agents sees none of them, at any node.
    assert!(listed(&console::Client::with_token(two, &nodes.other).get("/console/runs").1).is_empty());
    let (status, page) = operator.get("/console/runs?before=x");
    assert!(status == 400 && page.contains("This search is not valid"), "{page}");
    let missing = "A node of the fleet has given no answer";
    let unlisted = "What these nodes have is missing here: one (no answer).";
    let all = operator.get("/console/runs").1;
    assert!(!all.contains(missing) && !all.contains("missing here"), "{all}");
    nodes.one.process().pause();
    let (status, page) = operator.get("/console/runs");
    let told = agent.get("/console/runs?text=no-such-text").1;
    nodes.one.process().resume();
    assert!(status == 200 && page.contains(unlisted) && !page.contains(missing), "{page}");
    assert!(
        told.contains(missing) && told.contains("No runs were found at the nodes that have answered."),
        "{told}"
    );
    assert!(!page.contains("\"Node\">one</td>"), "{page}");
    assert!(page.contains("\"Node\">two</td>"), "{page}");
}

#[test]
fn a_denial_and_a_cancellation_hold_at_every_node() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { one, two, agent, approver, .. } = &nodes;
    for (nth, waiting) in [&[one][..], &[one, two]].into_iter().enumerate() {
        let (call, denied) = nodes.escalate_at(waiting, &format!("denied-{nth}"));
        assert_eq!(result(&decide(two, approver, &denied, "DENIED"))["accepted"], true);
        // Nobody can approve it any more.
        error(&decide(one, approver, &denied, "APPROVED"), -32602);
        for node in [one, two] {
            let repeat = ask(node, agent, "a2g/intent", &call);
            assert!(error(&repeat, -32000)["message"].to_string().contains("denied by `ann`"), "{repeat}");
            assert_eq!(nodes.state(node, &denied), "denied");
            error(&decide(node, approver, &denied, "APPROVED"), -32602);
            assert_eq!(node.file(&format!("denied-{nth}")), None);
        }
    }
    // An intent that one node runs cannot be denied at another.
    let (_, run) = nodes.escalate_at(&[one, two], "run");
    assert_eq!(result(&decide(one, approver, &run, "APPROVED"))["accepted"], true);
    eventually("it has run", || one.file("run"));
    error(&decide(two, approver, &run, "DENIED"), -32602);
    let (_, cancelled) = nodes.escalate_at(&[one, two], "cancelled");
    assert_eq!(result(&ask(two, agent, "a2g/cancel", &cancelled))["cancelled"], true);
    for node in [one, two] {
        assert_eq!(nodes.state(node, &cancelled), "unknown");
    }
}

/// Two agents have used one id, at different nodes: a node has the arguments of the first, and the fleet the denial of
/// the second.
#[test]
fn a_denial_comes_without_the_arguments_of_another_agent() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { fleet, one, two, agent, other, approver, .. } = &nodes;
    let mut first = execute("write_file", write("first", "for one agent only"));
    first["verdict"]["verdict"] = json!("ESCALATE");
    first["verdict"]["expires_at"] = json!(in_seconds(2));
    let held = ask(one, agent, "a2g/execute", &first);
    assert_eq!(error(&held, -32000)["data"]["blocked_by"], "escalation_pending", "{held}");
    let id = json!({ "intent_id": id_of(&first) });
    eventually("the wait has expired", || {
        let is_end = |record: &Value| record["kind"] == "expired" && record["intent_id"] == id["intent_id"];
        (fleet.waits() == 0 && records(one.home()).iter().any(is_end)).then_some(())
    });
    let mut second = intent("write_file", write("second", ESCALATES));
    second["intent_id"] = id["intent_id"].clone();
    second["agent_did"] = json!("did:a2g:agent:1.0:other");
    assert_eq!(result(&ask(two, other, "a2g/intent", &second))["verdict"], "ESCALATE");
    assert_eq!(result(&decide(two, approver, &id, "DENIED"))["accepted"], true);
    for (node, expected) in [(one, None), (two, Some(&second["arguments"]))] {
        let status = ask(node, other, "a2g/status", &id);
        assert_eq!(result(&status)["state"], "denied", "{status}");
        assert_eq!(status["result"].get("arguments"), expected, "{status}");
        assert_eq!(nodes.state(node, &id), "unknown");
    }
}

#[test]
fn a_decision_is_made_under_the_list_of_the_node_that_is_asked() {
    let Some(nodes) = Nodes::start() else { return };
    let list = List::new();
    let planner = agent(&list, "planner", AGENT);
    let stranger = list.add("stranger", &["--role", "approver"]);
    let three = Executor::start(list.of(nodes.fleet.options("three")));
    let [approved, denied] = ["approved", "denied"].map(|name| nodes.escalate(name));
    let person = console::Client::with_token(&three, &stranger);
    let page = person.get("/console/inbox").1;
    for id in [&approved, &denied] {
        let intent = id["intent_id"].as_str().unwrap();
        assert!(page.contains(intent) && page.contains("\"Node\">one</td>"), "{page}");
        assert_eq!(person.get(&format!("/console/decide/{intent}")).0, 200);
    }
    // That list gives this one no right to decide.
    error(&decide(&three, &planner, &approved, "APPROVED"), -32000);
    assert_eq!(nodes.state(&nodes.one, &approved), "escalated");
    assert_eq!(result(&decide(&three, &stranger, &denied, "DENIED"))["accepted"], true);
    assert_eq!(nodes.state(&nodes.two, &denied), "denied");
    assert_eq!(result(&decide(&three, &stranger, &approved, "APPROVED"))["accepted"], true);
    eventually("it has run", || three.file("approved"));
    assert_eq!(
        result(&decide(&nodes.two, &nodes.approver, &nodes.escalate("other"), "DENIED"))["accepted"],
        true
    );
}

/// Each of several people approves at another node, and each approval counts once.
#[test]
fn two_people_approve_at_different_nodes() {
    let rule = json!([{ "tools": ["write_file"], "required": 2 }]);
    let Some(nodes) = Nodes::start_with(|_, options| options.set("approvals", rule.clone())) else { return };
    let Nodes { one, two, agent, approver, governor, .. } = &nodes;
    let [approved, denied] = ["approved", "denied"].map(|name| nodes.escalate(name));
    for id in [&approved, &denied] {
        assert_eq!(result(&decide(one, approver, id, "APPROVED"))["needs_more_approvals"], true);
        // Nobody counts twice, at whichever node.
        error(&decide(two, approver, id, "APPROVED"), -32000);
    }
    assert_eq!(result(&decide(two, governor, &denied, "DENIED"))["accepted"], true);
    assert_eq!(result(&decide(two, governor, &approved, "APPROVED")), &json!({ "accepted": true }));
    let report = eventually("it has run", || {
        ask(one, agent, "a2g/status", &approved)["result"].get("report").cloned()
    });
    assert_eq!(report["status"], "SUCCESS", "{report}");
    let shown = two.home().run(&["journal", "show", approved["intent_id"].as_str().unwrap()]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("ann, gov"), "{shown:?}");
    assert_eq!((two.file("approved").as_deref(), two.file("denied")), (Some(ESCALATES), None));
}

#[test]
fn a_task_is_read_followed_and_cancelled_at_any_node() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    fleet.wait_for(one.home(), "two", |node| node["state"] == "live");
    let [mut here, mut there] = [&one, &two].map(a2a::Client::of);
    let written = here.begin("write_file", write("a", "x"));
    let task = there.until(&written, "completed");
    assert_eq!(task, here.task(&written));
    assert_eq!(there.code("tasks/cancel", json!({ "id": written })), -32002);
    let waiting = here.begin("gate", json!({ "path": "/workspace" }));
    one.wait_at_the_gate(1);
    let mut stream = there.stream("tasks/resubscribe", &json!({ "id": waiting }));
    assert_eq!(stream.next().unwrap()["result"]["status"]["state"], "working");
    let canceled = there.result("tasks/cancel", json!({ "id": waiting }));
    assert_eq!(canceled["status"]["state"], "canceled", "{canceled}");
    assert_eq!(here.task(&waiting)["status"]["state"], "canceled");
    let rest = stream.rest();
    let last = rest.last().expect("the end");
    assert!(last["status"]["state"] == "canceled" && last["final"] == true, "{rest:?}");
    // A stream of a task that has ended has its whole state, and the final update.
    let ended = there.stream("tasks/resubscribe", &json!({ "id": written })).rest();
    let [whole, last] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(*whole, task);
    assert!(last["status"]["state"] == "completed" && last["final"] == true, "{last}");
    let unknown = there.stream("tasks/resubscribe", &json!({ "id": intent_id() })).next().unwrap();
    error(&unknown, -32001);
}

#[test]
fn a_session_of_mcp_goes_on_at_another_node() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { one, two, agent, other, .. } = nodes;
    let [mine, theirs] = [&agent, &other].map(|token| callers::bearer(token));
    let session = mcp::open_session(&mut one.client(), &[("Authorization", &mine)], json!({}));
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }).to_string();
    let request = |node: &Executor, method: &str, token: &str, session: &str| {
        let headers = [
            ("Content-Type", "application/json"),
            ("Authorization", token),
            ("Mcp-Session-Id", session),
            ("MCP-Protocol-Version", "2025-11-25"),
        ];
        let body = if method == "POST" { list.as_bytes() } else { b"" };
        node.client().request(method, "/mcp", &headers, body).status
    };
    let changed = session.replacen(".8.", ".9.", 1);
    assert_ne!(session, changed);
    for (token, session, status) in [(&mine, &session, 200), (&theirs, &session, 404), (&mine, &changed, 404)]
    {
        assert_eq!(request(&two, "POST", token, session), status);
    }
    one.kill();
    for (method, status) in [("POST", 200), ("DELETE", 204), ("POST", 404), ("DELETE", 404)] {
        assert_eq!(request(&two, method, &mine, &session), status, "{method}");
    }
}

#[test]
fn a_session_of_a2e_goes_on_at_another_node() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { fleet, one, two, agent, other, .. } = nodes;
    let mut here = A2eSession::open(&one, Some(&agent));
    here.shake_hands("", "");
    let arguments = json!({ "path": "/workspace/log", "content": "x", "mode": "append" });
    let call = a2e_call("not-a-uuid", "write_file", arguments);
    let first = here.ask(&call);
    assert_eq!(first["data"]["success"], true, "{first}");
    // The session is open at its own node.
    let mut there = here.at(&two, Some(&agent));
    assert_eq!(there.request("GET", "/a2e/stream", b"").status, 409);
    assert_eq!(here.at(&two, Some(&other)).request("GET", "/a2e/stream", b"").status, 404);
    let mut forged = here.at(&two, Some(&agent));
    let digit = if forged.id.starts_with('0') { "1" } else { "0" };
    forged.id.replace_range(..1, digit);
    assert_eq!(forged.request("GET", "/a2e/stream", b"").status, 404);
    let log = one.workspace().join("log");
    let _home = one.kill();
    // Until its node is known to be lost, it may be open there.
    eventually("the session is continued", || match there.try_attach() {
        Ok(()) => Some(()),
        Err(status) => {
            assert!(status.contains(" 503 "), "{status}");
            None
        }
    });
    let unknown = there.ask(&call);
    assert_eq!((&unknown["type"], &unknown["code"]), (&json!("error"), &json!("unauthorized")), "{unknown}");
    assert_eq!(there.shake_hands("", "")["session_id"], there.id);
    let mut again = there.ask(&call);
    assert_eq!(again["data"]["success"], true, "{again}");
    assert_eq!(again["data"]["summary"].take(), first["data"]["summary"]);
    assert_eq!((std::fs::read_to_string(log).unwrap(), two.file("log")), ("x".to_owned(), None));
    assert_eq!(there.ask(&a2e("ping", "2", json!({})))["type"], "pong");
    drop(fleet);
}
