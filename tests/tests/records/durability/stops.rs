//! An operator's stops: what a stop ends, withdraws and refuses, and that only an operator lifts it.

use super::{catalogue, mark};
use harness::callers::{List, agent, rpc};
use harness::{
    AGENT, Catalogue, Executor, GATE, Home, HttpClient, Tool, assert_chain_holds, error, eventually, execute,
    expect_blocked, id_of, intent, records, result, run, set_mode,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const OTHER: &str = "did:aeon:other:1.0:abc123";
/// Number of calls of the race.
const CALLS: u32 = 200;
const REASON: &str = "it deletes the wrong files";

/// An executor with two agents, an approver, a governor and an operator.
struct Switchboard {
    list: List,
    _catalogue: Catalogue,
    tokens: HashMap<&'static str, String>,
    executor: Option<Executor>,
}

impl Switchboard {
    fn new(slots: u64) -> Self {
        let list = List::new();
        let mut tokens =
            HashMap::from([("agent", agent(&list, "agent", AGENT)), ("other", agent(&list, "other", OTHER))]);
        for (name, role) in [("anna", "approver"), ("gov", "governor"), ("otto", "operator")] {
            tokens.insert(name, list.add(name, &["--role", role]));
        }
        let catalogue = catalogue().add(Tool::command("gate", GATE));
        let options = list.options().catalogue(&catalogue).set("executor.concurrent", slots);
        let executor = Some(Executor::start(options));
        Self { list, _catalogue: catalogue, tokens, executor }
    }

    fn executor(&self) -> &Executor {
        self.executor.as_ref().unwrap()
    }

    fn ask(&self, who: &str, method: &str, params: &Value) -> Value {
        rpc(&mut self.executor().client(), &self.tokens[who], method, params)
    }

    fn call_in_background(&self, who: &str, call: &Value) -> JoinHandle<Value> {
        let address = self.executor().address();
        let token = self.tokens[who].clone();
        let call = call.clone();
        std::thread::spawn(move || HttpClient::ask_as(address, &token, "a2g/execute", &call).unwrap())
    }

    fn stop(&self, target: &Value) -> Value {
        let stopped = self.ask("otto", "a2g/stop", &json!({ "target": target, "reason": REASON }));
        result(&stopped).clone()
    }

    fn resume(&self, target: &Value) -> Value {
        result(&self.ask("otto", "a2g/resume", &json!({ "target": target })))["resumed"].clone()
    }

    fn stops(&self) -> Vec<Value> {
        result(&self.ask("otto", "a2g/stops", &json!({})))["stops"].as_array().unwrap().clone()
    }

    fn state(&self, id: &str) -> String {
        let status = self.ask("otto", "a2g/status", &json!({ "intent_id": id }));
        status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
    }

    /// Starts the gate for an agent.
    fn start_gate(&self, who: &str, agent: &str) -> (String, JoinHandle<Value>) {
        let runs = self.executor().runs_of_the_gate();
        let call = of(execute("gate", json!({ "n": runs })), agent);
        let answer = self.call_in_background(who, &call);
        self.executor().wait_at_the_gate(runs + 1);
        (id_of(&call), answer)
    }

    /// Checks that the tool `mark` and the first agent are stopped, and nothing else.
    fn assert_both_stopped(&self) {
        let gate = execute("gate", json!({}));
        assert_refused(&self.ask("agent", "a2g/execute", &gate), &format!("--agent {AGENT}"));
        assert_refused(&self.ask("other", "a2g/execute", &of(mark(1), OTHER)), "--tool mark");
        let targets = self.stops().into_iter().map(|stop| stop["target"].clone()).collect::<Vec<_>>();
        assert_eq!(targets, [json!({ "agent_did": AGENT }), tool("mark")]);
    }

    /// Kills it and starts it again.
    fn crash(&mut self) {
        let home = self.executor.take().unwrap().kill();
        self.executor = Some(Executor::start_in(home));
    }

    fn runs(&self, n: u32) -> usize {
        self.executor().file(&format!("{n:06}")).map_or(0, |marks| marks.len())
    }

    /// Runs a command with the token of a caller.
    fn command(&self, who: &str, arguments: &[&str]) -> Output {
        let file = self.token_file(who);
        let url = self.executor().http_url();
        run([arguments, &["--url", &url, "--token-file", file.to_str().unwrap()]].concat())
    }

    fn token_file(&self, who: &str) -> PathBuf {
        let file = self.list.path().with_file_name(format!("{who}.token"));
        std::fs::write(&file, &self.tokens[who]).unwrap();
        set_mode(&file, 0o600);
        file
    }
}

fn everything() -> Value {
    json!({ "all": true })
}

fn tool(name: &str) -> Value {
    json!({ "tool": name })
}

/// The same call, of another agent.
fn of(mut call: Value, agent: &str) -> Value {
    call["intent"]["agent_did"] = agent.into();
    call
}

/// Checks that a call was refused with the words of the stop.
fn assert_refused(response: &Value, resume: &str) {
    let message = expect_blocked(response, "stopped");
    for words in ["`otto`", " on 20", REASON, &format!("`a2g-executor resume {resume}`")] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

/// The records of a kind, with what they say.
fn of_kind<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["kind"] == kind).collect()
}

#[test]
fn a_stop_ends_what_runs_withdraws_what_waits_and_refuses_the_rest() {
    let board = Switchboard::new(1);
    let (running, gate) = board.start_gate("agent", AGENT);
    let queued = mark(1);
    let queued_answer = board.call_in_background("agent", &queued);
    eventually("it waits for the slot", || (board.state(&id_of(&queued)) == "queued").then_some(()));
    let mut waiting = mark(2);
    waiting["verdict"]["verdict"] = json!("ESCALATE");
    expect_blocked(&board.ask("agent", "a2g/execute", &waiting), "escalation_pending");

    assert_eq!(board.stop(&everything()), json!({ "accepted": true, "aborted": 3 }));
    let aborted = gate.join().unwrap();
    let failure = error(&aborted, -32001);
    assert_eq!(failure["data"]["report"]["status"], "ABORTED", "{aborted}");
    assert!(failure["message"].as_str().unwrap().contains("stopped by an operator"), "{aborted}");
    assert_refused(&queued_answer.join().unwrap(), "--all");
    assert_eq!(board.state(&id_of(&waiting)), "unknown");
    let approval = json!({ "intent_id": id_of(&waiting), "decision": "APPROVED" });
    error(&board.ask("anna", "g2a/directive", &approval), -32602);
    assert_refused(&board.ask("agent", "a2g/execute", &mark(3)), "--all");
    assert_refused(&board.ask("other", "a2g/execute", &of(mark(4), OTHER)), "--all");
    let mut asked = intent("mark", json!({ "n": "000005" }));
    asked["agent_did"] = OTHER.into();
    assert_refused(&board.ask("other", "a2g/intent", &asked), "--all");
    // One that would wait for a person is refused as well.
    assert_refused(&board.ask("agent", "a2g/execute", &waiting), "--all");
    // A repeat of what has run still gets its report.
    assert_eq!(board.state(&running), "finished");
    board.executor().open_the_gate();
    assert!((1..6).all(|n| board.runs(n) == 0));

    let records = records(board.executor().home());
    let set = of_kind(&records, "stop_set");
    assert_eq!(
        (set.len(), &set[0]["says"]["by"], &set[0]["says"]["reason"]),
        (1, &json!("otto"), &json!(REASON))
    );
    let cancelled = of_kind(&records, "cancelled");
    assert_eq!((cancelled.len(), &cancelled[0]["says"]["by"]), (1, &json!("otto")), "{records:?}");
    assert_eq!(cancelled[0]["intent_id"], id_of(&waiting));
    let stopped = of_kind(&records, "stopped");
    let mut ids = stopped.iter().map(|record| record["intent_id"].as_str().unwrap()).collect::<Vec<_>>();
    ids.sort_unstable();
    let mut expected = [running.as_str(), &id_of(&queued)].map(str::to_owned);
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert!(stopped.iter().all(|record| record["says"]["method"] == "a2g/stop"), "{stopped:?}");
    assert_chain_holds(board.executor().home());

    assert_eq!(board.resume(&everything()), true);
    assert_eq!(board.resume(&everything()), false);
    // What was withdrawn may be sent again, with the same content.
    for (n, call) in [(1, &queued), (3, &mark(3))] {
        assert_eq!(result(&board.ask("agent", "a2g/execute", call))["status"], "SUCCESS");
        assert_eq!(board.runs(n), 1);
    }
    expect_blocked(&board.ask("agent", "a2g/execute", &waiting), "escalation_pending");
    assert_chain_holds(board.executor().home());
}

#[test]
fn a_stop_of_a_tool_or_an_agent_touches_no_other_and_survives_a_crash() {
    let mut board = Switchboard::new(4);
    let (_, of_agent) = board.start_gate("agent", AGENT);
    let (of_other_id, of_other) = board.start_gate("other", OTHER);
    assert_eq!(board.stop(&tool("mark"))["aborted"], 0);
    assert_eq!(board.stop(&json!({ "agent_did": AGENT }))["aborted"], 1);
    error(&of_agent.join().unwrap(), -32001);
    assert_eq!(board.state(&of_other_id), "running");
    board.assert_both_stopped();
    board.executor().open_the_gate();
    assert_eq!(of_other.join().unwrap()["result"]["status"], "SUCCESS");
    board.crash();
    board.assert_both_stopped();
    let answer = board.ask("other", "a2g/execute", &of(execute("gate", json!({ "again": true })), OTHER));
    assert_eq!(result(&answer)["status"], "SUCCESS", "a tool stop touches no other tool");
    // A new stop replaces the earlier one of its target.
    let other_reason = json!({ "target": tool("mark"), "reason": "still broken" });
    result(&board.ask("otto", "a2g/stop", &other_reason));
    assert_eq!(board.stops().len(), 2);
    let message = board.ask("other", "a2g/execute", &of(mark(2), OTHER));
    assert!(expect_blocked(&message, "stopped").contains("still broken"), "{message}");
    assert_eq!(board.resume(&json!({ "agent_did": AGENT })), true);
    assert_refused_by_tool(&board.ask("agent", "a2g/execute", &mark(3)));
    assert_eq!(board.resume(&tool("mark")), true);
    board.crash();
    assert_eq!(board.stops(), Vec::<Value>::new());
    assert_eq!(result(&board.ask("agent", "a2g/execute", &mark(3)))["status"], "SUCCESS");
    assert_eq!((board.runs(1), board.runs(2), board.runs(3)), (0, 0, 1));
    assert_chain_holds(board.executor().home());
    let records = records(board.executor().home());
    assert_eq!((of_kind(&records, "stop_set").len(), of_kind(&records, "stop_lifted").len()), (3, 2));
}

fn assert_refused_by_tool(response: &Value) {
    assert!(expect_blocked(response, "stopped").contains("--tool mark"), "{response}");
}

/// The record of the stop is older than everything that is pruned.
#[test]
fn pruning_keeps_a_stop() {
    let mut board = Switchboard::new(1);
    assert_eq!(result(&board.ask("agent", "a2g/execute", &mark(1)))["status"], "SUCCESS");
    board.stop(&tool("mark"));
    for _ in 0..2 {
        let pruned = board.executor().home().run(&["journal", "prune", "--before", "0m"]);
        assert!(pruned.status.success(), "{}", String::from_utf8_lossy(&pruned.stderr));
        assert_refused(&board.ask("agent", "a2g/execute", &mark(2)), "--tool mark");
        assert_chain_holds(board.executor().home());
        board.crash();
    }
    assert_refused(&board.ask("agent", "a2g/execute", &mark(2)), "--tool mark");
    assert_eq!(board.resume(&tool("mark")), true);
    assert_eq!(result(&board.ask("agent", "a2g/execute", &mark(2)))["status"], "SUCCESS");
    assert_chain_holds(board.executor().home());
}

#[test]
fn only_an_operator_stops_and_resumes() {
    let board = Switchboard::new(1);
    for who in ["agent", "anna", "gov"] {
        let params = json!({ "target": everything(), "reason": REASON });
        expect_blocked(&board.ask(who, "a2g/stop", &params), "caller_unauthorized");
    }
    board.stop(&everything());
    for who in ["agent", "anna", "gov"] {
        expect_blocked(
            &board.ask(who, "a2g/resume", &json!({ "target": everything() })),
            "caller_unauthorized",
        );
        expect_blocked(&board.ask(who, "a2g/stops", &json!({})), "caller_unauthorized");
    }
    // The governor's revocations and policies lift nothing.
    let policy = json!({ "agent_did": AGENT, "version": "1", "capabilities": { "tools": { "mark": { "allowed": true, "constraints": {} } } } });
    result(&board.ask("gov", "g2a/policy", &policy));
    assert_refused(&board.ask("agent", "a2g/execute", &mark(1)), "--all");
    for (params, pointer) in [
        (json!({ "reason": REASON }), "/target"),
        (json!({ "target": {}, "reason": REASON }), "/target"),
        (json!({ "target": everything() }), "/reason"),
        (json!({ "target": everything(), "reason": "a\nb" }), "/reason"),
        (json!({ "target": { "tool": "mark", "all": true }, "reason": REASON }), "/target"),
    ] {
        let refused = board.ask("otto", "a2g/stop", &params);
        assert_eq!(error(&refused, -32602)["data"]["pointer"], pointer, "{refused}");
    }
    assert_eq!(board.stops().len(), 1);
    assert_eq!(board.runs(1), 0);
}

#[test]
fn the_command_line_stops_lists_and_resumes() {
    let board = Switchboard::new(1);
    let text = |output: &Output| {
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let stopped = board.command("otto", &["stop", "--tool", "mark", "--reason", REASON]);
    assert!(stopped.status.success() && text(&stopped).contains("resume --tool mark"), "{}", text(&stopped));
    assert_refused(&board.ask("agent", "a2g/execute", &mark(1)), "--tool mark");
    let listed = board.command("otto", &["stop", "--list"]);
    for words in ["--tool mark", "otto", REASON] {
        assert!(text(&listed).contains(words), "{words}: {}", text(&listed));
    }
    let listed = board.command("otto", &["stop", "--list", "--json"]);
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((&listed[0]["target"], &listed[0]["by"]), (&tool("mark"), &json!("otto")), "{listed:?}");
    let refused = board.command("agent", &["resume", "--tool", "mark"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("is for callers with the role `operator`"), "{}", text(&refused));
    for (arguments, code, words) in [
        (&["resume", "--tool", "mark"][..], 0, "Resumed the tool `mark`"),
        (&["resume", "--tool", "mark"], 1, "is not stopped"),
        (&["resume"], 2, "--all"),
        (&["resume", "--all", "--tool", "mark"], 2, "cannot be used with"),
        (&["resume", "--tool", "no such"], 2, "`--tool`: "),
        (&["stop", "--all"], 2, "--reason"),
        (&["stop", "--all", "--reason", ""], 2, "`--reason`: "),
        (&["stop", "--list", "--all"], 2, "cannot be used with"),
        (&["stop", "--all", "--reason", REASON, "--json"], 2, "cannot be used with"),
    ] {
        let output = board.command("otto", arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{arguments:?}: {}", text(&output));
    }
    assert_eq!(result(&board.ask("agent", "a2g/execute", &mark(1)))["status"], "SUCCESS");
    let without_token = run(["stop", "--list", "--url", &board.executor().http_url()]);
    assert_eq!(without_token.status.code(), Some(1));
    assert!(text(&without_token).contains("--token-file"), "{}", text(&without_token));
    let nobody = run(["stop", "--all", "--reason", REASON, "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody).contains("cannot be reached"), "{}", text(&nobody));
    let token = board.token_file("otto");
    let plain =
        run(["stop", "--list", "--url", "http://executor.example", "--token-file", token.to_str().unwrap()]);
    assert_eq!(plain.status.code(), Some(2));
    assert!(text(&plain).contains("unencrypted"), "{}", text(&plain));
}

/// Calls arrive from many connections while everything is stopped.
#[test]
fn no_call_starts_after_the_answer_to_a_stop() {
    const CLIENTS: usize = 10;
    let board = Switchboard::new(4);
    let address = board.executor().address();
    let token = board.tokens["agent"].clone();
    let calls = (0..CALLS).map(mark).collect::<Vec<_>>();
    let next = AtomicU32::new(0);
    let is_stopped = AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        let clients =
            (0..CLIENTS).map(|_| scope.spawn(|| send_calls(address, &token, &calls, &next, &is_stopped)));
        let clients = clients.collect::<Vec<_>>();
        eventually("some calls ran", || (next.load(Ordering::SeqCst) > CALLS / 4).then_some(()));
        board.stop(&everything());
        is_stopped.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answers.len(), CALLS as usize);
    for Answered { n, is_late, response } in &answers {
        if response.get("result").is_some() {
            assert!(!is_late, "call {n} ran after the stop: {response}");
        } else if response["error"]["code"] == -32001 {
            assert!(
                !is_late && response["error"]["data"]["report"]["status"] == "ABORTED",
                "{n}: {response}"
            );
        } else {
            assert_refused(response, "--all");
        }
    }
    assert!(answers.iter().any(|answered| answered.is_late), "no call came after the stop");
    assert_starts_precede_the_stop(board.executor().home(), &calls, |n| board.runs(n));
}

/// A call of the race.
struct Answered {
    n: u32,
    /// `true` if it was sent after the answer to the stop.
    is_late: bool,
    response: Value,
}

fn send_calls(
    address: SocketAddr,
    token: &str,
    calls: &[Value],
    next: &AtomicU32,
    is_stopped: &AtomicBool,
) -> Vec<Answered> {
    let mut answered = Vec::new();
    loop {
        let n = next.fetch_add(1, Ordering::SeqCst);
        let Some(call) = calls.get(n as usize) else { return answered };
        let is_late = is_stopped.load(Ordering::SeqCst);
        let response = HttpClient::ask_as(address, token, "a2g/execute", call).unwrap();
        answered.push(Answered { n, is_late, response });
        // The last quarter is sent after the stop.
        if n > CALLS * 3 / 4 && !is_stopped.load(Ordering::SeqCst) {
            eventually("everything is stopped", || is_stopped.load(Ordering::SeqCst).then_some(()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every call that has run has its start in the chain before the stop.
fn assert_starts_precede_the_stop(home: &Home, calls: &[Value], runs: impl Fn(u32) -> usize) {
    let records = records(home);
    let stop = of_kind(&records, "stop_set")[0]["record"].as_u64().unwrap();
    let claims = of_kind(&records, "claim").into_iter();
    let claims =
        claims.map(|claim| (claim["intent_id"].as_str().unwrap(), claim["record"].as_u64().unwrap()));
    let claims = claims.collect::<HashMap<_, _>>();
    for (n, call) in (0..).zip(calls) {
        let ran = runs(n);
        let claim = claims.get(&*id_of(call));
        assert!(ran <= 1, "call {n} ran {ran} times");
        assert!(ran == 0 || claim.is_some_and(|claim| *claim < stop), "call {n}: {claim:?}, stop {stop}");
    }
    assert_chain_holds(home);
}
