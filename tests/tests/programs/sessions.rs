//! Sessions: what stays of one call for the next one, who may go on, and what ends them.
//!
//! The guest `take_steps` keeps texts, open files and memory in globals of its own. The governor of the tests
//! gives each call the verdict and the limits that its `context` names, or its argument `grant` at a door
//! without a context.

mod conversations;
mod doors;
mod ends;
mod kills;
mod limits;
mod owners;
mod programs;
mod scale;
mod turns;
mod waits;

use harness::*;
use serde_json::{Value, json};

const OTHER_AGENT: &str = "did:aeon:other:1.0:abc123";

/// An executor with `take_steps` and what it calls.
struct Fixture {
    executor: Executor,
    catalogue: Catalogue,
    governor: FakeGovernor,
}

/// Sessions need processes.
fn options() -> Options {
    Options::new().set("executor.isolation", "process")
}

fn take_steps() -> Tool {
    Tool::typed_bytes("take_steps", guest("take_steps")).calls(&["*"]).declare("session", json!(true))
}

impl Fixture {
    fn start(options: Options) -> Self {
        Self::start_in(options, Catalogue::empty().add(take_steps()))
    }

    /// Starts with a catalogue to which the tools that are called are added.
    fn start_in(options: Options, catalogue: Catalogue) -> Self {
        let governor = FakeGovernor::deciding(|call| Reply::Result(decide(call)));
        let catalogue = catalogue.copy("read_file").add(Tool::command("gate", GATE));
        let executor = Executor::start(options.catalogue(&catalogue).governor(&governor.url()));
        Self { executor, catalogue, governor }
    }

    /// Kills the executor, and starts it again in its folders.
    fn restart(self) -> Self {
        let Self { executor, catalogue, governor } = self;
        Self { executor: Executor::start_in(executor.kill()), catalogue, governor }
    }

    fn ask(&self, call: &Value) -> Value {
        self.executor.rpc("a2g/intent", call)
    }

    /// The report of a call that has run.
    fn run(&self, call: &Value) -> Value {
        report_of(&self.ask(call))
    }

    /// Opens a session that has kept this text, and gives its handle.
    fn open(&self, text: &str) -> String {
        handle_of(&self.run(&turn("new", json!([["keep", text]]))))
    }

    /// Expects that the handle continues nothing, and that nothing runs.
    fn expect_lost(&self, handle: &str) {
        let answer = self.ask(&turn(handle, json!([["write", "/workspace/lost", "it ran"]])));
        expect_blocked(&answer, "session_lost");
        assert_eq!(self.executor.file("lost"), None, "{answer}");
    }

    fn end(&self, agent: &str, handle: &str) -> bool {
        let params = json!({ "agent_did": agent, "session": handle });
        let answer = self.executor.rpc("a2g/session/end", &params);
        result(&answer)["ended"].as_bool().unwrap_or_else(|| panic!("{answer}"))
    }

    fn status(&self, intent: &Value) -> Value {
        self.executor.rpc("a2g/status", &json!({ "intent_id": intent }))
    }

    fn approve(&self, intent: &Value) {
        let directive = json!({ "intent_id": intent, "decision": "APPROVED" });
        result(&self.executor.rpc("g2a/directive", &directive));
    }

    /// The report of an intent, once it has ended.
    fn await_report(&self, intent: &Value) -> Value {
        eventually("it has a report", || self.status(intent)["result"].get("report").cloned())
    }

    /// Begins a turn that keeps this text and then waits for the file `go`.
    fn begin(&self, handle: &str, text: &str) -> std::thread::JoinHandle<Value> {
        let steps = json!([["keep", text], ["write", "/workspace/begun", ""], ["wait_for", "/workspace/go"]]);
        let answer = call_in_background(&self.executor, "a2g/intent", &turn(handle, steps));
        eventually("the guest runs", || self.executor.file("begun"));
        answer
    }
}

fn decide(call: &Value) -> Value {
    let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest());
    for wanted in [&call["context"], &call["arguments"]["grant"]] {
        for member in ["verdict", "conditions"] {
            if let Some(value) = wanted.get(member) {
                verdict[member] = value.clone();
            }
        }
        for (limit, value) in wanted["grant"].as_object().into_iter().flatten() {
            verdict["capability_manifest"][limit] = value.clone();
        }
    }
    verdict
}

/// An intent of `take_steps` with a session: `new`, or a handle.
fn turn(session: &str, steps: Value) -> Value {
    in_session(intent("take_steps", json!({ "steps": steps })), session)
}

fn in_session(mut call: Value, session: &str) -> Value {
    call["session"] = json!(session);
    call
}

/// The same intent, for which the governor grants this.
fn granted(mut call: Value, grant: &Value) -> Value {
    call["context"] = json!({ "grant": grant });
    call
}

/// The same intent, of another agent.
fn of_agent(mut call: Value, agent: &str) -> Value {
    call["agent_did"] = json!(agent);
    call
}

fn report_of(answer: &Value) -> Value {
    let reports = [&answer["result"]["report"], &answer["error"]["data"]["report"]];
    let report = reports.into_iter().find(|report| report.is_object());
    report.unwrap_or_else(|| panic!("it did not run: {answer}")).clone()
}

/// The handle in the report of a turn after which the session goes on.
fn handle_of(report: &Value) -> String {
    assert_eq!(report["session"]["state"], "kept", "{report}");
    report["session"]["handle"].as_str().expect("a handle").to_owned()
}

/// The outcome of the first step of a turn.
fn first_step(report: &Value) -> &Value {
    &report["result"]["steps"][0]
}
