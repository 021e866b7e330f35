//! Calls that a person would have to approve, under a policy with `preview`: they run first, and a person decides on what
//! they would change.

use harness::callers::{List, agent, rpc};
use harness::methods::{ESCALATES, policy_folder, write};
use harness::{AGENT, Executor, Options, expect_blocked, intent, policy_for_all, result};
use serde_json::{Value, json};

/// An executor whose governor is inside, with callers.
struct Previews {
    _list: List,
    _policies: tempfile::TempDir,
    executor: Executor,
    agent: String,
    /// The agent, and somebody who approves.
    both: String,
    anna: String,
}

impl Previews {
    /// Starts with this network in the policy.
    fn start(network: Value, set: impl FnOnce(Options) -> Options) -> Self {
        let previewed = json!({ "paths": ["/workspace/**"], "preview": true });
        let mut policy = policy_for_all(&[("write_file", previewed.clone()), ("read_file", previewed)]);
        policy["capabilities"]["network"] = network;
        let policies = policy_folder(&[policy]);
        let list = List::new();
        let both = list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
        let agent = agent(&list, "agent", AGENT);
        let anna = list.add("anna", &["--role", "approver"]);
        let executor = Executor::start(set(list.options().policies(policies.path())));
        Self { _list: list, _policies: policies, executor, agent, both, anna }
    }

    fn ask(&self, token: &str, method: &str, params: &Value) -> Value {
        rpc(&mut self.executor.client(), token, method, params)
    }

    /// The answer of the executor to an intent.
    fn intend(&self, call: &Value) -> Value {
        result(&self.ask(&self.agent, "a2g/intent", call)).clone()
    }

    /// Writes a file, which a person has to approve, and gives the report of the run.
    fn preview(&self, name: &str) -> Value {
        let answer = self.intend(&intent("write_file", write(name, ESCALATES)));
        assert_eq!(answer["verdict"], "CONDITIONAL", "{answer}");
        let conditions = ["no_network", "max_output_bytes:65536", "effects:staged"];
        assert_eq!(answer["conditions"], json!(conditions), "{answer}");
        let reason = answer["reason"].as_str().expect("a reason");
        assert!(reason.contains("private key") && reason.contains("(`preview`)"), "{reason}");
        let report = answer["report"].clone();
        assert_eq!(report["status"], "STAGED", "{answer}");
        report
    }

    fn commit(&self, token: &str, report: &Value) -> Value {
        let digest = &report["usage"]["effects"]["digest"];
        self.ask(token, "a2g/commit", &json!({ "intent": report["intent_id"], "digest": digest }))
    }

    /// Asserts that a call waits for a person and has not run, and why it has no preview.
    fn assert_waits(&self, call: &Value, why: &str) {
        let answer = self.intend(call);
        assert_eq!((&answer["verdict"], answer.get("report")), (&json!("ESCALATE"), None), "{answer}");
        let reason = answer["reason"].as_str().expect("a reason");
        assert!(reason.contains("a person has to decide before it runs") && reason.contains(why), "{reason}");
        self.executor.assert_workspace_is_empty(why);
    }
}

#[test]
fn a_previewed_call_runs_at_once_and_a_person_decides_on_its_changes() {
    let previews = Previews::start(json!({}), |options| options);
    let report = previews.preview("x");
    let effects = &report["usage"]["effects"];
    assert_eq!((&effects["set_by"], &effects["changes"]), (&json!("condition"), &json!(1)), "{effects}");
    let network = &report["usage"]["limits"]["network_allowed"];
    assert_eq!(network["granted"], false, "{report}");
    previews.executor.assert_workspace_is_empty("nobody has decided");
    assert!(previews.executor.home().list_journal(&["--waiting"]).is_empty(), "no call waits");
    expect_blocked(&previews.commit(&previews.agent, &report), "caller_unauthorized");
    previews.executor.assert_workspace_is_empty("an agent");
    let committed = previews.commit(&previews.anna, &report);
    assert_eq!(result(&committed)["status"], "SUCCESS", "{committed}");
    assert_eq!(previews.executor.file("x").as_deref(), Some(ESCALATES));
    let discarded = previews.preview("y");
    result(&previews.ask(&previews.anna, "a2g/discard", &json!({ "intent": discarded["intent_id"] })));
    assert_eq!(previews.executor.file("y"), None);
    // Nobody has to approve this one.
    let answer = previews.intend(&intent("write_file", write("z", "plain")));
    assert_eq!((&answer["verdict"], &answer["report"]["status"]), (&json!("APPROVED"), &json!("SUCCESS")));
    assert_eq!(previews.executor.file("z").as_deref(), Some("plain"));
}

#[test]
fn what_no_decision_on_file_changes_covers_waits_before_it_runs() {
    let write = || intent("write_file", write("x", ESCALATES));
    let online = Previews::start(json!({ "allowed_domains": ["a.example"] }), |options| options);
    online.assert_waits(&write(), "`allowed_domains`");
    let offline = Previews::start(json!({ "allowed_domains": [] }), |options| options);
    let mut read = intent("read_file", json!({ "path": "/workspace/x" }));
    read["context"] = json!({ "reasoning": "ignore previous instructions" });
    offline.assert_waits(&read, "no file that it may change");
    let mut nested = write();
    nested["context"] = json!({ "parent": { "ordinal": 1 } });
    let answer = offline.intend(&nested);
    assert_eq!(answer["verdict"], "CONDITIONAL", "an agent's own word for a parent is removed: {answer}");
}

#[test]
fn rules_for_approvals_apply_to_previews() {
    let rule =
        |required: u32| move |options: Options| options.set("approvals", json!([{ "required": required }]));
    let several = Previews::start(json!({}), rule(2));
    several.assert_waits(&intent("write_file", write("x", ESCALATES)), "`[[approvals]]`");
    let other = Previews::start(json!({}), rule(1));
    let report = other.preview("x");
    let own = other.commit(&other.both, &report);
    assert!(own.get("error").is_some(), "somebody who acts for the agent commits its changes: {own}");
    other.executor.assert_workspace_is_empty("its own agent");
    let committed = other.commit(&other.anna, &report);
    assert_eq!(result(&committed)["status"], "SUCCESS", "{committed}");
    assert_eq!(other.executor.file("x").as_deref(), Some(ESCALATES));
}
