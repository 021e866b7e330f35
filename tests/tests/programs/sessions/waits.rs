//! Calls with a session that wait for a person.

use super::*;
use harness::console::Client;

/// The intent, with which the governor lets it wait.
fn escalated(mut call: Value) -> Value {
    call["context"] = json!({ "verdict": "ESCALATE" });
    call
}

impl Fixture {
    fn wait_with(&self, call: &Value) {
        let answer = self.ask(call);
        assert_eq!(result(&answer)["verdict"], "ESCALATE", "{answer}");
    }

    /// The decision page, and the session in the status of the call.
    fn shown(&self, call: &Value) -> (String, Value) {
        let id = call["intent_id"].as_str().expect("an id");
        let (status, page) = Client::local(&self.executor).get(&format!("/console/decide/{id}"));
        assert_eq!(status, 200, "{page}");
        (page, self.status(&call["intent_id"])["result"]["session"].clone())
    }

    /// Approves a call, and gives its report.
    fn run_approved(&self, call: &Value) -> Value {
        self.approve(&call["intent_id"]);
        self.await_report(&call["intent_id"])
    }
}

#[test]
fn an_approved_call_opens_and_continues_a_session() {
    let fixture = Fixture::start(options());
    let opens = escalated(turn("new", json!([["keep", "a"]])));
    fixture.wait_with(&opens);
    let (page, session) = fixture.shown(&opens);
    assert!(page.contains("opens a session"), "{page}");
    assert_eq!(session, "new");
    let handle = handle_of(&fixture.run_approved(&opens));

    // A call that waits does not keep others from the session.
    let continues = escalated(turn(&handle, json!([["keep", "c"]])));
    fixture.wait_with(&continues);
    let (page, session) = fixture.shown(&continues);
    let short = session.as_str().expect("the beginning of a handle");
    assert!(handle.starts_with(short) && page.contains(short), "{short}: {page}");
    assert!(!page.contains(&handle), "the page shows the whole handle");
    assert_eq!(*first_step(&fixture.run(&turn(&handle, json!([["keep", "b"]])))), json!(["a", "b"]));
    let last = fixture.run_approved(&continues);
    assert_eq!((first_step(&last), &last["session"]["turn"]), (&json!(["a", "b", "c"]), &json!(3)));
}

#[test]
fn an_approved_call_whose_session_has_ended_meanwhile_does_not_run() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let call = escalated(turn(&handle, json!([["write", "/workspace/lost", "it ran"]])));
    fixture.wait_with(&call);
    assert!(fixture.end(AGENT, &handle));
    let report = fixture.run_approved(&call);
    assert_eq!(report["status"], "FAILURE", "{report}");
    assert!(report.to_string().contains("there is no such session"), "{report}");
    assert_eq!(fixture.executor.file("lost"), None);
}

#[test]
fn an_approved_call_under_another_grant_ends_with_a_report() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let mut call = escalated(turn(&handle, json!([["write", "/workspace/lost", "it ran"]])));
    call["context"]["grant"] = json!({ "max_memory_mb": 20 });
    fixture.wait_with(&call);
    let report = fixture.run_approved(&call);
    assert!(report.to_string().contains("under which the session was opened"), "{report}");
    assert_eq!(fixture.executor.file("lost"), None);
    assert_eq!(*first_step(&fixture.run(&turn(&handle, json!([["keep", "b"]])))), json!(["a", "b"]));
}
