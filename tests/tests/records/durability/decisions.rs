//! Decisions of people are durable: once one was answered, a kill changes nothing about it.

use super::{FOREVER, MARK, catalogue, escalating, read_marker};
use harness::callers::{List, agent, rpc};
use harness::{
    AGENT, Catalogue, Executor, FakeGovernor, GATE, HttpClient, Options, Tool, assert_chain_holds, error,
    eventually, expect_blocked, intent, records, result, times,
};
use serde_json::{Value, json};

/// An executor with two approvers, an operator, a governor and an agent, and one slot.
struct EscalationFixture {
    _list: List,
    _governor: FakeGovernor,
    catalogue: Catalogue,
    tokens: Vec<(&'static str, String)>,
    executor: Option<Executor>,
}

impl EscalationFixture {
    fn new() -> Self {
        let list = List::new();
        let governor = escalating(3600);
        let catalogue = catalogue()
            .add(Tool::command("gate", GATE))
            .add(Tool::command("reads", FOREVER).filesystem("read"));
        let mut tokens = vec![("agent", agent(&list, "agent", AGENT))];
        for (name, role) in
            [("anna", "approver"), ("bert", "approver"), ("otto", "operator"), ("gov", "governor")]
        {
            tokens.push((name, list.add(name, &["--role", role])));
        }
        let options = list.options().signed_only().catalogue(&catalogue).governor(&governor.url());
        let options = options.set("executor.concurrent", 1).set("executor.drain_seconds", 1);
        let executor = Executor::start(options);
        Self { _list: list, _governor: governor, catalogue, tokens, executor: Some(executor) }
    }

    fn executor(&self) -> &Executor {
        self.executor.as_ref().unwrap()
    }

    fn ask(&self, who: &str, method: &str, params: &Value) -> Value {
        let token = &self.tokens.iter().find(|(name, _)| *name == who).unwrap().1;
        rpc(&mut self.executor().client(), token, method, params)
    }

    /// Sends an intent that waits for a person.
    fn waits(&self, tool: &str, n: u32) -> Value {
        let call = intent(tool, json!({ "n": format!("{n:06}") }));
        assert_eq!(result(&self.ask("agent", "a2g/intent", &call))["verdict"], "ESCALATE");
        call
    }

    /// Has an approved gate take the one slot.
    fn take_the_slot(&self) -> Value {
        let holds = self.waits("gate", 0);
        result(&self.decide("anna", &holds, "APPROVED"));
        eventually("the slot is taken", || self.executor().file("runs"));
        holds
    }

    fn decide(&self, who: &str, call: &Value, decision: &str) -> Value {
        self.ask(who, "g2a/directive", &json!({ "intent_id": call["intent_id"], "decision": decision }))
    }

    fn state(&self, call: &Value) -> String {
        let status = self.ask("agent", "a2g/status", &json!({ "intent_id": call["intent_id"] }));
        match status["result"]["state"].as_str() {
            Some(state) => state.to_owned(),
            None => {
                error(&status, -32602);
                "unknown".to_owned()
            }
        }
    }

    /// Replaces a tool, and has the server read the catalogue again.
    fn install(&mut self, tool: &str, wat: &str) {
        Tool::command(tool, wat).write(&self.catalogue.folder().join(tool), true);
        self.executor.as_mut().unwrap().process().hang_up();
        self.executor().line_with("catalogue reloaded");
    }

    /// Kills it and starts it again.
    fn crash(&mut self) {
        let home = self.executor.take().unwrap().kill();
        self.executor = Some(Executor::start_in(home));
    }

    fn runs(&self, n: u32) -> usize {
        self.executor().file(&format!("{n:06}")).map_or(0, |marks| marks.len())
    }

    fn records(&self) -> Vec<Value> {
        records(self.executor().home())
    }
}

/// The record of a kind about an intent.
fn record<'a>(records: &'a [Value], kind: &str, call: &Value) -> &'a Value {
    let mut of =
        records.iter().filter(|record| record["kind"] == kind && record["intent_id"] == call["intent_id"]);
    of.next().unwrap_or_else(|| panic!("no record `{kind}` of {call}: {records:?}"))
}

/// An approval counts for the module that was installed when the call began to wait, also after a crash.
#[test]
fn an_approval_does_not_run_a_module_that_was_exchanged() {
    let mut place = EscalationFixture::new();
    let call = place.waits("mark", 1);
    place.install("mark", &MARK.replacen("(data", "(func $other) (data", 1));
    expect_blocked(&place.decide("anna", &call, "APPROVED"), "verdict_mismatch");
    place.crash();
    let refused = place.decide("anna", &call, "APPROVED");
    expect_blocked(&refused, "verdict_mismatch");
    assert!(refused["error"]["message"].as_str().unwrap().contains("began to wait"), "{refused}");
    assert_eq!((place.runs(1), &*place.state(&call)), (0, "escalated"));
    place.install("mark", MARK);
    result(&place.decide("anna", &call, "APPROVED"));
    eventually("it ran", || (place.state(&call) == "finished").then_some(()));
    assert_eq!(place.runs(1), 1);
}

/// The approval is answered while the one slot is taken, and the server killed before there is another.
#[test]
fn an_approved_intent_without_a_slot_runs_once_after_a_crash() {
    let mut place = EscalationFixture::new();
    place.take_the_slot();
    let calls = (1..4).map(|n| place.waits("mark", n)).collect::<Vec<_>>();
    for call in &calls {
        assert_eq!(result(&place.decide("anna", call, "APPROVED"))["accepted"], true);
        error(&place.decide("bert", call, "DENIED"), -32602);
    }
    assert!((1..4).all(|n| place.runs(n) == 0));
    for round in 0..2 {
        place.crash();
        std::fs::write(place.executor().workspace().join("go"), "").unwrap();
        for (n, call) in (1..4).zip(&calls) {
            eventually("it ran", || (place.state(call) == "finished").then_some(()));
            assert_eq!(place.runs(n), 1, "{round}");
        }
    }
    let all = place.records();
    for call in &calls {
        assert_eq!(record(&all, "approved", call)["says"]["by"], "anna");
        let report =
            &place.ask("agent", "a2g/status", &json!({ "intent_id": call["intent_id"] }))["result"]["report"];
        assert_eq!(report["status"], "SUCCESS", "{report}");
    }
    assert_chain_holds(place.executor().home());
}

/// Its person was told that it runs, so its start is on the disk even if it can have no effect.
#[test]
fn the_start_of_an_approved_intent_waits_for_the_disk() {
    let place = EscalationFixture::new();
    let call = place.waits("reads", 1);
    result(&place.decide("anna", &call, "APPROVED"));
    eventually("it runs", || (place.state(&call) == "running").then_some(()));
    let numbered = place.records().iter().map(|record| record["record"].as_i64().unwrap()).max().unwrap();
    assert!(read_marker(place.executor()).contains(&format!(" {numbered:020} ")), "{numbered}");
}

/// Stopped in good order, too: nobody but the person who approved it waits for it.
#[test]
fn an_approved_intent_that_has_not_started_survives_a_shutdown() {
    let mut place = EscalationFixture::new();
    let holds = place.take_the_slot();
    let call = place.waits("mark", 1);
    result(&place.decide("anna", &call, "APPROVED"));
    let mut executor = place.executor.take().unwrap();
    executor.process().stop();
    place.executor = Some(Executor::start_in(executor.kill()));
    eventually("it ran", || (place.state(&call) == "finished").then_some(()));
    assert_eq!(place.runs(1), 1);
    assert_eq!(place.state(&holds), "finished");
    assert_eq!(place.executor().file("runs").as_deref(), Some("x"), "it had started, and is not run again");
}

#[test]
fn a_denied_intent_stays_denied_after_any_restart() {
    let mut place = EscalationFixture::new();
    let call = place.waits("mark", 1);
    result(&place.decide("anna", &call, "DENIED"));
    for round in 0..3 {
        let again = place.ask("agent", "a2g/intent", &call);
        let message = expect_blocked(&again, "verdict_denied");
        assert!(message.contains("denied by `anna`"), "{round}: {message}");
        assert_eq!(again["error"]["data"]["intent_id"], call["intent_id"]);
        for who in ["bert", "anna", "gov"] {
            error(&place.decide(who, &call, "APPROVED"), -32602);
        }
        assert_eq!(place.state(&call), "denied", "{round}");
        place.crash();
    }
    assert_eq!(place.runs(1), 0);
    let other = json!({ "intent_id": call["intent_id"], "agent_did": call["agent_did"], "tool": "mark", "arguments": { "n": "000002" } });
    error(&place.ask("agent", "a2g/intent", &other), -32600);
    assert_eq!(record(&place.records(), "denied", &call)["says"]["by"], "anna");
}

#[test]
fn cancels_and_revocations_are_recorded_before_they_are_answered() {
    let mut place = EscalationFixture::new();
    let holds = place.take_the_slot();
    let [cancelled, revoked, stays] = [1, 2, 3].map(|n| place.waits("mark", n));
    let id = |call: &Value| json!({ "intent_id": call["intent_id"] });
    assert_eq!(result(&place.ask("otto", "a2g/cancel", &id(&cancelled)))["cancelled"], true);
    result(&place.ask("gov", "g2a/revoke", &id(&revoked)));
    assert_eq!(result(&place.ask("otto", "a2g/cancel", &id(&holds)))["cancelled"], true);
    place.crash();
    let all = place.records();
    assert_eq!(record(&all, "cancelled", &cancelled)["says"]["by"], "otto");
    assert_eq!(record(&all, "revoked", &revoked)["says"]["by"], "gov");
    assert_eq!(record(&all, "revocation", &revoked)["says"], json!({ "by": "gov", "stopped": 1 }));
    let stopped = record(&all, "stopped", &holds);
    assert_eq!(stopped["says"], json!({ "by": "otto", "method": "a2g/cancel" }));
    // The decision is about the call that was shown.
    let held = record(&all, "held", &cancelled);
    assert_eq!(record(&all, "cancelled", &cancelled)["says"]["held"], held["says"]);
    assert_eq!(record(&all, "cancelled", &cancelled)["about"], held["record"]);
    assert_eq!(
        [&cancelled, &revoked, &stays].map(|call| place.state(call)),
        ["unknown", "unknown", "escalated"]
    );
    result(&place.ask("gov", "g2a/revoke", &json!({ "agent_did": AGENT })));
    assert_eq!(place.state(&stays), "unknown");
    place.crash();
    let all = place.records();
    assert_eq!(record(&all, "revoked", &stays)["says"]["by"], "gov");
    let of_agent = all.iter().find(|record| record["kind"] == "revocation" && record["intent_id"].is_null());
    assert_eq!(of_agent.expect("a record")["says"]["by"], "gov", "{all:?}");
    assert_chain_holds(place.executor().home());
}

/// Killed at any moment around the decision: what was answered holds, and nothing runs twice or against it.
#[test]
fn answered_decisions_survive_a_kill() {
    let mut place = EscalationFixture::new();
    for round in 0..times(6) {
        let n = u32::try_from(10 + 2 * round).unwrap();
        let yes = place.waits("mark", n);
        let no = place.waits("mark", n + 1);
        let address = place.executor().address();
        let token = |who: &str| place.tokens.iter().find(|(name, _)| *name == who).unwrap().1.clone();
        let anna = token("anna");
        let bert = token("bert");
        let decide = |token: String, call: &Value, decision: &str| {
            let params = json!({ "intent_id": call["intent_id"], "decision": decision });
            HttpClient::ask_as(address, &token, "g2a/directive", &params)
        };
        let mut executor = place.executor.take().unwrap();
        let (approved, denied) = std::thread::scope(|scope| {
            let approving = scope.spawn(|| decide(anna, &yes, "APPROVED"));
            let denying = scope.spawn(|| decide(bert, &no, "DENIED"));
            std::thread::sleep(super::moment(8));
            executor.process().kill();
            (approving.join().unwrap(), denying.join().unwrap())
        });
        place.executor = Some(Executor::start_in(executor.kill()));
        if approved.is_some_and(|answer| answer["result"]["accepted"] == true) {
            eventually("what was approved ran", || (place.state(&yes) == "finished").then_some(()));
        }
        if denied.is_some_and(|answer| answer["result"]["accepted"] == true) {
            expect_blocked(&place.ask("agent", "a2g/intent", &no), "verdict_denied");
            error(&place.decide("anna", &no, "APPROVED"), -32602);
        }
        assert!(place.runs(n) <= 1 && place.runs(n + 1) == 0, "{round}");
        // Those that nobody decides would reach the limit on waiting intents.
        for call in [&yes, &no].into_iter().filter(|call| place.state(call) == "escalated") {
            result(&place.ask("otto", "a2g/cancel", &json!({ "intent_id": call["intent_id"] })));
        }
        assert_chain_holds(place.executor().home());
    }
}

/// Without a list of callers, what nobody could decide any more is on record as well.
#[test]
fn an_escalation_that_expires_undecided_is_recorded() {
    let governor = escalating(2);
    let catalogue = catalogue();
    let executor = Executor::start(Options::new().catalogue(&catalogue).governor(&governor.url()));
    let call = intent("mark", json!({ "n": "000001" }));
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    let home = executor.kill();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let executor = Executor::start_in(home);
    expect_expired(&executor, &call);
}

/// Else what it holds of its caller's memory would be held until somebody's next intent has to wait.
#[test]
fn an_escalation_that_nobody_asks_about_expires_on_time() {
    let governor = escalating(2);
    let catalogue = catalogue();
    let executor = Executor::start(Options::new().catalogue(&catalogue).governor(&governor.url()));
    let call = intent("mark", json!({ "n": "000001" }));
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    expect_expired(&executor, &call);
}

/// Waits for the record of an expiry. Reads only the journal's file.
fn expect_expired(executor: &Executor, call: &Value) {
    let expired = eventually("that it expired is on record", || {
        let all = records(executor.home());
        all.into_iter().find(|record| record["kind"] == "expired" && record["intent_id"] == call["intent_id"])
    });
    assert!(expired["says"]["by"].as_str().unwrap().contains("nobody decided"), "{expired}");
    assert_chain_holds(executor.home());
}
