//! The owner of a session, which alone may go on in it.

use super::*;
use harness::callers::{List, rpc};

/// A session of one of two callers, under a grant of every kind.
struct Bound {
    fixture: Fixture,
    _list: List,
    /// The tokens of two callers, which act for the same two agents.
    own: String,
    other: String,
    grant: Value,
    handle: String,
    turns: usize,
}

impl Bound {
    fn start() -> Self {
        let list = List::new();
        let of_both = ["--role", "agent", "--agent", AGENT, "--agent", OTHER_AGENT];
        let [own, other] = ["own", "other"].map(|name| list.add(name, &of_both));
        let other_tool = Tool::typed_bytes("fan_out", guest("fan_out")).declare("session", json!(true));
        let catalogue = Catalogue::empty().add(take_steps().network()).add(other_tool);
        let options = list
            .of(options())
            .set("ceilings.network_allowed", true)
            .set("network.allowed_domains", json!(["*.test"]));
        let fixture = Fixture::start_in(options, catalogue);
        std::fs::create_dir(fixture.executor.workspace().join("folder")).expect("a folder");
        let grant = json!({ "network_allowed": true, "filesystem_scope": ["/workspace/folder/**"] });
        let handle = "new".to_owned();
        let mut bound = Self { fixture, _list: list, own, other, grant, handle, turns: 0 };
        bound.handle = bound.go_on("at first");
        bound
    }

    fn ask(&self, token: &str, method: &str, params: &Value) -> Value {
        rpc(&mut self.fixture.executor.client(), token, method, params)
    }

    /// A turn with this handle, and otherwise as those that may go on.
    fn turn_of(&self, handle: &str) -> Value {
        granted(turn(handle, json!([["keep", "x"]])), &self.grant)
    }

    /// A turn of this session to which the governor grants this in place of what it grants to the others.
    fn with_limit(&self, limit: &str, value: Value) -> Value {
        let mut grant = self.grant.clone();
        grant[limit] = value;
        granted(self.turn_of(&self.handle), &grant)
    }

    /// A turn of this session under a condition besides.
    fn with_condition(&self, condition: &str) -> Value {
        let mut call = self.turn_of(&self.handle);
        call["context"]["verdict"] = json!("CONDITIONAL");
        call["context"]["conditions"] = json!([condition]);
        call
    }

    /// Takes a turn, which has to find all of the session's turns and nothing else. Returns the handle.
    fn go_on(&mut self, after: &str) -> String {
        self.turns += 1;
        let report = report_of(&self.ask(&self.own, "a2g/intent", &self.turn_of(&self.handle)));
        let texts = first_step(&report).as_array().map(Vec::len);
        assert_eq!(
            (texts, &report["session"]["turn"]),
            (Some(self.turns), &json!(self.turns)),
            "{after}: {report}"
        );
        handle_of(&report)
    }

    /// Expects that a turn is refused, and that the session goes on. Returns the message.
    fn expect_refused(&mut self, what: &str, token: &str, call: &Value, blocked_by: &str) -> String {
        let answer = self.ask(token, "a2g/intent", call);
        let message = expect_blocked(&answer, blocked_by).to_owned();
        self.go_on(what);
        message
    }

    fn end(&self, token: &str, agent: &str, handle: &str) -> bool {
        let answer = self.ask(token, "a2g/session/end", &json!({ "agent_did": agent, "session": handle }));
        result(&answer)["ended"].as_bool().unwrap_or_else(|| panic!("{answer}"))
    }
}

/// Each row fails if the executor does not compare that one thing. A turn of another caller, agent or tool is refused in
/// the same words as one with a handle that was never given.
#[test]
fn a_turn_that_differs_in_one_thing_does_not_go_on() {
    let mut bound = Bound::start();
    let own = bound.own.clone();
    let other = bound.other.clone();
    let ended = handle_of(&report_of(&bound.ask(&own, "a2g/intent", &bound.turn_of("new"))));
    assert!(bound.end(&own, AGENT, &ended));
    let forged = format!("ses_{}", "0123456789abcdef".repeat(2));
    let of_other_tool = in_session(intent("fan_out", json!({})), &bound.handle);
    let mut messages = Vec::new();
    for (what, token, call) in [
        ("a forged handle", &own, bound.turn_of(&forged)),
        ("an ended session", &own, bound.turn_of(&ended)),
        ("another caller", &other, bound.turn_of(&bound.handle)),
        ("another agent", &own, of_agent(bound.turn_of(&bound.handle), OTHER_AGENT)),
        ("another tool", &own, of_other_tool),
    ] {
        messages.push(bound.expect_refused(what, token, &call, "session_lost"));
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");

    for (what, call) in [
        ("less memory", bound.with_limit("max_memory_mb", json!(20))),
        ("less output", bound.with_condition("max_output_bytes:1000")),
        ("no files", bound.with_limit("filesystem_scope", json!([]))),
        ("fewer files", bound.with_limit("filesystem_scope", json!(["/workspace/folder/*.txt"]))),
        ("a blocked path", bound.with_condition("blocked_path:/workspace/folder/secret/**")),
        ("only reading", bound.with_condition("read_only")),
        ("no network", bound.with_limit("network_allowed", json!(false))),
        ("fewer tools to call", bound.with_condition("calls:read_file")),
    ] {
        let message = bound.expect_refused(what, &own, &call, "session_refused");
        assert!(message.contains("grant"), "{what}: {message}");
    }

    for (token, agent) in [(&other, AGENT), (&own, OTHER_AGENT)] {
        assert!(!bound.end(token, agent, &bound.handle), "{agent}");
    }
    for handle in [&forged, &ended] {
        assert!(!bound.end(&own, AGENT, handle), "{handle}");
    }
    bound.go_on("ends that others have asked for");
    assert!(bound.end(&own, AGENT, &bound.handle));
    let answer = bound.ask(&own, "a2g/intent", &bound.turn_of(&bound.handle));
    expect_blocked(&answer, "session_lost");
}

/// The session has the folder open that was granted to its first turn.
#[test]
fn a_turn_does_not_go_on_with_a_folder_in_place_of_the_granted_one() {
    let mut bound = Bound::start();
    let folder = bound.fixture.executor.workspace().join("folder");
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).expect("a move");
    std::fs::create_dir(&folder).expect("a folder");
    let answer = bound.ask(&bound.own, "a2g/intent", &bound.turn_of(&bound.handle));
    assert!(expect_blocked(&answer, "session_refused").contains("grant"), "{answer}");
    std::fs::remove_dir(&folder).expect("an empty folder");
    std::fs::rename(&away, &folder).expect("a move");
    bound.go_on("the folder is back");
}

#[test]
fn what_is_no_handle_is_an_invalid_call() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let upper = handle.to_uppercase();
    let longer = format!("{handle}0");
    for session in ["", "New", "ses_", &handle[4..], &upper, &longer, " new"] {
        let answer = fixture.ask(&turn(session, json!([["write", "/workspace/ran", ""]])));
        assert_eq!(error(&answer, -32602)["data"]["pointer"], "/session", "{answer}");
    }
    for session in [json!(1), json!(true), json!({}), json!([handle])] {
        let mut call = turn("new", json!([]));
        call["session"] = session;
        error(&fixture.ask(&call), -32602);
    }
    assert_eq!(fixture.executor.file("ran"), None);
}

#[test]
fn the_sessions_of_two_agents_are_apart() {
    let fixture = Fixture::start(options());
    let mine = fixture.open("a");
    let theirs = handle_of(&fixture.run(&of_agent(turn("new", json!([["keep", "b"]])), OTHER_AGENT)));
    let next = fixture.run(&turn(&mine, json!([["keep", "c"]])));
    assert_eq!(*first_step(&next), json!(["a", "c"]));
    let next = fixture.run(&of_agent(turn(&theirs, json!([["keep", "d"]])), OTHER_AGENT));
    assert_eq!(*first_step(&next), json!(["b", "d"]));
}

#[test]
fn the_log_does_not_have_the_whole_handle() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    assert!(!fixture.executor.stderr().contains(&handle));
}
