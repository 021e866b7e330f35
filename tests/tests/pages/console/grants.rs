//! The grant of an approval: what the page shows of it, and that no later start gets more.

use harness::callers::List;
use harness::console::{Client, field, shown};
use harness::*;
use serde_json::{Value, json};

/// The command that writes with the tool `write_file` to `safe`, the part of the workspace that the standing policy
/// grants.
const SAFE: &str = "/workspace/safe/**";

/// An executor with one slot, three approvers and a governor that leaves every call but the gate's to a person.
struct Place {
    executor: Option<Executor>,
    catalogue: Catalogue,
    tokens: Vec<(&'static str, String)>,
    _governor: FakeGovernor,
    _list: List,
}

impl Place {
    fn new(required: u64) -> Self {
        let governor = FakeGovernor::deciding(|call| {
            let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest());
            if call["tool"] != "gate" {
                verdict["verdict"] = "ESCALATE".into();
            }
            Reply::Result(verdict)
        });
        let catalogue = Catalogue::empty().copy("write_file").copy("read_file");
        let catalogue = catalogue.add(Tool::command("gate", GATE)).add(fan_out()).add(say());
        let list = List::new();
        let mut tokens = vec![("planner", list.add("planner", &["--role", "agent", "--agent", AGENT]))];
        for (name, role) in [("anna", "approver"), ("bert", "approver"), ("governor", "governor")] {
            tokens.push((name, list.add(name, &["--role", role])));
        }
        let options = list.options().catalogue(&catalogue).governor(&governor.url());
        let mut options = options.set("executor.concurrent", 1).set("executor.drain_seconds", 1);
        if required > 1 {
            options = options.set("approvals", json!([{ "required": required }]));
        }
        let executor = Executor::start(options);
        std::fs::create_dir(executor.workspace().join("safe")).unwrap();
        Self { executor: Some(executor), catalogue, tokens, _governor: governor, _list: list }
    }

    fn executor(&self) -> &Executor {
        self.executor.as_ref().unwrap()
    }

    fn token(&self, name: &str) -> &str {
        &self.tokens.iter().find(|(caller, _)| *caller == name).unwrap().1
    }

    fn ask(&self, name: &str, method: &str, params: &Value) -> Value {
        HttpClient::ask_as(self.executor().address(), self.token(name), method, params).expect("an answer")
    }

    /// Sets the agent's standing policy to these constraints for every tool.
    fn set_policy(&self, constraints: &Value) {
        let rule = json!({ "allowed": true, "constraints": constraints });
        let any = json!({ "allowed": true });
        let tools = json!({ "write_file": rule, "fan_out": rule, "say": any, "read_file": any, "gate": any });
        let policy = json!({ "agent_did": AGENT, "version": "1", "capabilities": { "tools": tools } });
        result(&self.ask("governor", "g2a/policy", &policy));
    }

    /// Occupies the only slot with a gate.
    fn take_the_slot(&self, runs: usize) {
        let address = self.executor().address();
        let token = self.token("planner").to_owned();
        let gate = intent("gate", json!({}));
        // The gate is killed with the executor, so it has no answer.
        std::thread::spawn(move || HttpClient::ask_as(address, &token, "a2g/intent", &gate));
        self.executor().wait_at_the_gate(runs);
    }

    /// Sends a call that waits for a person. Returns its intent id.
    fn waits(&self, call: &Value) -> String {
        assert_eq!(result(&self.ask("planner", "a2g/intent", call))["verdict"], "ESCALATE");
        call["intent_id"].as_str().unwrap().to_owned()
    }

    fn page(&self, name: &str, intent: &str) -> (Client, String) {
        let client = Client::with_token(self.executor(), self.token(name));
        let page = client.get(&path(intent)).1;
        (client, page)
    }

    /// Approves the call as a page shows it. Returns the answer.
    fn approve(&self, name: &str, intent: &str) -> (u16, String) {
        let (client, page) = self.page(name, intent);
        post(&client, intent, &page)
    }

    fn crash(&mut self) {
        let home = self.executor.take().unwrap().kill();
        self.executor = Some(Executor::start_in(home));
    }

    fn report(&self, intent: &str) -> Value {
        eventually("it has a report", || {
            let status = self.ask("planner", "a2g/status", &json!({ "intent_id": intent }));
            status["result"].get("report").cloned()
        })
    }
}

/// Approves the current definition of the tool in the catalogue, if it needs approval.
fn approve_definition(executor: &Executor, tool: &str) {
    let shown = executor.home().run(&["tool", "approve", tool]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    let Some((_, digest)) = shown.split_once("package  sha256:") else { return };
    let digest = digest.get(..64).expect("a digest");
    let approved = executor.home().run(&["tool", "approve", tool, "--digest", digest]);
    assert!(approved.status.success(), "{approved:?}");
}

fn fan_out() -> Tool {
    Tool::typed_bytes("fan_out", guest("fan_out")).calls(&["*"])
}

/// A command that answers `{}`.
fn say() -> Tool {
    Tool::command("say", &saying(1, "{}", 0))
}

fn path(intent: &str) -> String {
    format!("/console/decide/{intent}")
}

/// Approves the call as this page shows it.
fn post(client: &Client, intent: &str, page: &str) -> (u16, String) {
    let fields = shown(page);
    let mut form = vec![("form_token", client.token.as_str()), ("action", "approve")];
    form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    client.post(&path(intent), &form, "")
}

fn write_safe(name: &str) -> Value {
    intent("write_file", json!({ "path": format!("/workspace/safe/{name}"), "content": "x" }))
}

/// The scopes in a page's form.
fn scopes(page: &str) -> Vec<String> {
    let fields = shown(page).into_iter();
    fields.filter(|(name, _)| name == "scope").map(|(_, value)| value).collect()
}

#[test]
fn a_granted_folder_that_does_not_exist_is_named_before_the_decision() {
    const MISSING: &str = "does not exist on the host: nothing is found or created in it, and a call whose arguments name \
                           a path in it is refused";
    let place = Place::new(1);
    let gone = place.executor().workspace().join("gone");
    place.set_policy(&json!({ "paths": ["/workspace/gone/**"] }));
    let call = intent("write_file", json!({ "path": "/workspace/gone/file", "content": "x" }));
    let waiting = place.waits(&call);
    let page = place.page("anna", &waiting).1;
    assert!(page.contains(MISSING) && page.contains("<code>/workspace/gone</code>"), "{page}");
    // The page is still valid once the folder exists, and the run finds it.
    std::fs::create_dir(&gone).unwrap();
    let now = place.page("anna", &waiting).1;
    assert!(!now.contains(MISSING), "{now}");
    assert_eq!(field(&page, "basis"), field(&now, "basis"));
    assert_eq!(place.approve("anna", &waiting).0, 303);
    let report = place.report(&waiting);
    assert_eq!(report["status"], "SUCCESS", "{report}");
    assert_eq!(std::fs::read_to_string(gone.join("file")).unwrap(), "x");
}

/// The standing policy that the pages showed is lost with the process.
#[test]
fn a_start_after_a_restart_gets_no_more_than_was_shown() {
    for approvers in [&["anna"][..], &["anna", "bert"]] {
        let mut place = Place::new(approvers.len() as u64);
        let approve_all = |place: &Place, intent: &str| {
            let [others @ .., last] = approvers else { panic!("an approver") };
            for name in others {
                assert!(place.approve(name, intent).1.contains("Your approval counts"), "{name}");
            }
            assert_eq!(place.approve(last, intent).0, 303, "{last}");
        };
        place.set_policy(&json!({ "paths": [SAFE] }));
        place.take_the_slot(1);
        let narrow = place.waits(&write_safe("narrow"));
        assert_eq!(scopes(&place.page("anna", &narrow).1), [SAFE]);
        approve_all(&place, &narrow);
        place.crash();
        // The call waits again for a person, who now sees the current grant.
        let page = eventually("it waits again", || {
            Some(place.page("anna", &narrow).1).filter(|page| page.contains("name=\"basis\""))
        });
        assert_eq!(scopes(&page), ["/workspace/**"]);
        assert_eq!(place.executor().file("safe/narrow"), None);
        // The page shows the new state before it is recorded.
        let withdrawn = eventually("the approval is withdrawn", || {
            let mut ends = records(place.executor().home());
            ends.retain(|record| record["intent_id"] == narrow.as_str());
            let [.., withdrawn, held] = &ends[..] else { panic!("{ends:?}") };
            let is_recorded = withdrawn["kind"] == "cancelled" && held["kind"] == "held";
            is_recorded.then(|| withdrawn.clone())
        });
        assert!(
            withdrawn["says"]["by"].as_str().unwrap().contains("more than its approvers were shown"),
            "{withdrawn}"
        );
        // A grant that is not wider than shown starts after a restart without another decision.
        place.take_the_slot(2);
        let same = place.waits(&write_safe("same"));
        approve_all(&place, &same);
        approve_all(&place, &narrow);
        place.crash();
        for (name, intent) in [("same", &same), ("narrow", &narrow)] {
            assert_eq!(place.report(intent)["status"], "SUCCESS", "{name}");
            assert_eq!(place.executor().file(&format!("safe/{name}")).as_deref(), Some("x"), "{name}");
        }
        let verified = place.executor().home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{verified:?}");
    }
}

#[test]
fn the_tools_that_a_run_may_call_are_part_of_what_is_approved() {
    let place = Place::new(1);
    let fan = |name: &str| {
        let write = json!({ "path": format!("/workspace/{name}"), "content": "x" });
        intent("fan_out", json!({ "calls": [{ "tool": "write_file", "arguments": write }] }))
    };
    let calls = |targets: &[&str]| place.set_policy(&json!({ "calls": targets, "max_calls": 5 }));
    calls(&["read_file"]);
    let call = fan("written");
    let id = place.waits(&call);
    let (client, page) = place.page("anna", &id);
    let part =
        page.split_once("Calls to other tools").expect("the calls").1.split("</fieldset>").next().unwrap();
    for text in [
        "make 5 calls (set by the agent's standing policy)",
        "at most 8 at the same time (set by the executor's ceilings)",
        "<code>read_file</code>, set by the agent's standing policy",
        "every tool, set by the tool's declaration",
    ] {
        assert!(part.contains(text), "{text}: {part}");
    }
    calls(&["*"]);
    let (status, answer) = post(&client, &id, &page);
    assert!(status == 200 && answer.contains("Nothing is decided yet"), "{answer}");
    calls(&["read_file"]);
    assert_eq!(post(&client, &id, &page).0, 303);
    let report = place.report(&id);
    assert_eq!(report["result"]["outcomes"][0]["error"]["code"], "not_allowed", "{report}");

    // The callable tools become more between two approvals.
    let place = Place::new(2);
    let calls = |targets: &[&str]| place.set_policy(&json!({ "calls": targets }));
    calls(&["read_file"]);
    let id = place.waits(&fan("written"));
    assert!(place.approve("anna", &id).1.contains("Your approval counts"));
    calls(&["*"]);
    let (status, answer) = place.approve("bert", &id);
    assert!(status == 200 && answer.contains("everybody has to approve again"), "{answer}");
    assert_eq!(place.executor().file("written"), None);
}

/// The verdict also names `/tmp`, which the ceilings take away.
#[test]
fn the_timeline_repeats_the_grant_that_was_approved() {
    let governor = FakeGovernor::deciding(|call| {
        let scope = json!(["/workspace/**", "/tmp/**"]);
        let mut manifest = manifest();
        manifest["filesystem_scope"] = scope;
        let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest);
        verdict["verdict"] = "ESCALATE".into();
        Reply::Result(verdict)
    });
    let options = Options::new().governor(&governor.url());
    let executor = Executor::start(options.set("ceilings.filesystem_scope", json!(["/workspace/**"])));
    let call = intent("write_file", json!({ "path": "/workspace/file", "content": "x" }));
    let id = call["intent_id"].as_str().unwrap();
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    let client = Client::local(&executor);
    let page = client.get(&path(id)).1;
    assert_eq!(scopes(&page), ["/workspace/**"]);
    assert_eq!(post(&client, id, &page).0, 303);
    let run = format!("/console/runs/{id}");
    let page = eventually("it ran", || Some(client.get(&run).1).filter(|page| page.contains("SUCCESS")));
    let timeline = page.split_once("Timeline").expect("a timeline").1;
    let approved = "50 MB · 100 % CPU · 30 s · network off · files read-write <code>/workspace/**</code>";
    assert!(timeline.contains(approved) && !timeline.contains("/tmp/**"), "{timeline}");
    // The record of the approval does not name it either.
    let mut records = records(executor.home());
    records.retain(|record| record["kind"] == "approved");
    assert_eq!(records[0]["says"]["manifest"]["filesystem_scope"], json!(["/workspace/**"]), "{records:?}");
}

#[test]
fn a_page_with_another_description_of_the_tool_approves_nothing() {
    let mut place = Place::new(1);
    let id = place.waits(&intent("say", json!({})));
    let (client, page) = place.page("anna", &id);
    let folder = place.catalogue.folder().join("say");
    for (key, text) in [("version", "1.0.1"), ("description", "It only reads.")] {
        say().declare(key, json!(text)).write(&folder, true);
        approve_definition(place.executor(), "say");
        place.executor.as_mut().unwrap().process().hang_up();
        let other = eventually("the tool is read again", || {
            Some(place.page("anna", &id).1).filter(|other| other.contains(text))
        });
        assert_ne!(field(&other, "basis"), field(&page, "basis"), "{key}");
        let (status, answer) = post(&client, &id, &page);
        assert!(status == 200 && answer.contains("Nothing is decided yet"), "{key}: {answer}");
    }
}
