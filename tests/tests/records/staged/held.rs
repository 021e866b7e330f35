//! Requests of staged runs that wait: they are shown with the file changes, and only a commit sends them, once.

use super::{Act, BEFORE, StagedFixture, StagedRun, decided, entries};
use harness::callers::rpc;
use harness::{
    AGENT, HttpClient, Options, Tool, Web, approved, error, eventually, guest, intent, manifest, result,
    times,
};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TOOL: &str = "hostile_http";
/// The path of a request that gets no answer, and one whose connection is closed at once.
const SILENT: &str = "/silent";
const CLOSED: &str = "/closed";
/// One that is answered after [`SLOW_TIME`].
const SLOW: &str = "/slow";
const SLOW_TIME: Duration = Duration::from_secs(2);
/// Those whose answers come byte by byte, and never end: with the head, and with the body.
const ENDLESS_HEAD: &str = "/endless-head";
const ENDLESS_BODY: &str = "/endless-body";

/// Answers with 201, unless the path is one of those above.
fn answer(mut stream: TcpStream, request: &str) {
    let is_for = |path: &str| request.contains(path);
    let begin = if is_for(SILENT) {
        let _ended = stream.read(&mut [0]);
        return;
    } else if is_for(CLOSED) {
        return;
    } else if is_for(ENDLESS_HEAD) {
        "HTTP/1.1 201 Created\r\nx-drip: "
    } else if is_for(ENDLESS_BODY) {
        "HTTP/1.1 201 Created\r\ncontent-length: 100000\r\n\r\n"
    } else {
        if is_for(SLOW) {
            std::thread::sleep(SLOW_TIME);
        }
        let _gone = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n");
        return;
    };
    let mut written = stream.write_all(begin.as_bytes());
    while written.is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        written = stream.write_all(b"x");
    }
}

/// An executor that holds so many requests of a run.
fn start(web: &Web, held: u64) -> StagedFixture {
    start_with(web, held, |options| options)
}

fn start_with(web: &Web, held: u64, set: impl FnOnce(Options) -> Options) -> StagedFixture {
    let tool = Tool::typed_bytes(TOOL, guest(TOOL)).network().effects("staged");
    StagedFixture::start_with([tool], |options| {
        set(options)
            .set("ceilings.network_allowed", true)
            .set("ceilings.held_requests", held)
            .set("network.allowed_domains", json!(["*.test"]))
            .set("network.allowed_addresses", json!([web.address()]))
            .set("network.hosts", json!({ "web.test": ["127.0.0.1"], "other.test": ["10.1.2.3"] }))
    })
}

fn run(fixture: &StagedFixture, arguments: Value) -> (Value, Value) {
    let mut limits = manifest();
    limits["network_allowed"] = json!(true);
    let call = approved(intent(TOOL, arguments), &limits);
    let answer = fixture.ask("agent", "a2g/execute", &call);
    (call, answer)
}

/// A run that leaves these requests, and also a file if `has_file`.
fn stage(fixture: &StagedFixture, has_file: bool, requests: &[Value]) -> StagedRun {
    let write = if has_file { json!([["/workspace/made.txt", "made"]]) } else { json!([]) };
    let (call, answer) = run(fixture, json!({ "write": write, "requests": requests }));
    StagedRun::of(&call, &answer, "STAGED")
}

fn has_file(fixture: &StagedFixture) -> bool {
    fixture.files().contains_key("made.txt")
}

/// The message of the last decision.
fn last_message(fixture: &StagedFixture, run: &StagedRun) -> String {
    let set = fixture.set(run);
    let last =
        set["decisions"].as_array().and_then(|decisions| decisions.last()).expect("a decision").clone();
    last["message"].as_str().unwrap_or_else(|| panic!("no message: {last}")).to_owned()
}

#[test]
fn a_commit_sends_the_requests_once_in_their_order() {
    let web = Web::start(answer);
    let fixture = start(&web, 2);
    let run = stage(&fixture, true, &[web.post("/one?x=1", "first"), web.post("/two", "")]);
    for (answer, number) in run.report["result"].as_array().unwrap().iter().zip(["1", "2"]) {
        assert_eq!(answer["status"], 202, "{answer}");
        assert!(answer["fields"].as_array().unwrap().contains(&json!(["a2g-held", number])), "{answer}");
    }
    let effects = &run.report["usage"]["effects"];
    let first = &effects["requests"][0];
    assert_eq!(
        (&effects["changes"], &first["method"], &first["bytes"]),
        (&json!(1), &json!("POST"), &json!(5))
    );
    assert_eq!(first["url"], format!("http://{}/one?x=1", web.authority()));
    assert!(first["fields"].as_array().unwrap().contains(&json!("x-secret")), "{first}");
    assert!(!run.report.to_string().contains("hunter2"), "no value of a field is shown");
    assert_eq!(
        (fixture.set(&run)["requests"] == effects["requests"], &fixture.sets("otto")[0]["held"]),
        (true, &json!(2))
    );
    assert!(web.requests().is_empty() && !has_file(&fixture));

    let report = fixture.succeed("anna", Act::Commit, &run);
    let sent = json!({ "outcome": "sent", "status": 201 });
    assert_eq!(report["result"]["requests"], json!([sent, sent]), "{report}");
    let [one, two] = <[String; 2]>::try_from(web.requests()).unwrap();
    assert!(one.starts_with("POST /one?x=1 HTTP/1.1\r\n") && one.ends_with("\r\n\r\nfirst"), "{one}");
    assert!(one.contains("x-secret: hunter2\r\n") && two.starts_with("POST /two "), "{one}{two}");
    assert!(has_file(&fixture));
    error(&fixture.decide("anna", Act::Commit, &run), -32600);

    fixture.succeed("anna", Act::Undo, &run);
    assert!(!has_file(&fixture));
    let said = last_message(&fixture, &run);
    assert!(said.contains("2 of 2 requests were sent, which cannot be undone"), "{said}");
    assert_eq!(web.requests().len(), 2);
}

#[test]
fn the_text_of_a_short_body_is_shown_to_those_who_may_commit_it() {
    let web = Web::start(answer);
    let fixture = start(&web, 2);
    let mut text = web.post("/", "{\"to\":\n\"anna\"}");
    text["fields"] = json!([["content-type", "application/json"]]);
    let run = stage(&fixture, false, &[text, web.post("/", "of no known type")]);
    let bodies = |who: &str| {
        let answer = fixture.ask(who, "a2g/effects", &json!({ "intent": run.intent }));
        let requests = result(&answer)["sets"][0]["requests"].clone();
        [requests[0]["body"].clone(), requests[1]["body"].clone()]
    };
    let shown = r#"{"to":\n"anna"}"#;
    for who in ["anna", "gov"] {
        assert_eq!(bodies(who), [json!(shown), Value::Null], "{who}");
    }
    for who in ["otto", "agent"] {
        assert_eq!(bodies(who), [Value::Null, Value::Null], "{who}");
    }
    assert_eq!(run.report["usage"]["effects"]["requests"][0]["body"], Value::Null);
    fixture.effects("anna", &["show", &run.intent]).expect(0, &["body: {"]);
    decided(&fixture.decide("anna", Act::Commit, &run), "SUCCESS");
    assert_eq!(bodies("anna"), [Value::Null, Value::Null], "nothing waits");
}

#[test]
fn a_run_that_leaves_only_requests_waits_too() {
    let web = Web::start(answer);
    let fixture = start(&web, 1);
    let [one, other] = ["one", "onE"].map(|body| stage(&fixture, false, &[web.post("/", body)]));
    assert_ne!(one.digest, other.digest, "every byte of a body counts");
    fixture.succeed("anna", Act::Discard, &one);
    assert!(web.requests().is_empty());
    decided(&fixture.decide("anna", Act::Commit, &other), "SUCCESS");
    assert_eq!((&*fixture.state(&other), web.requests().len()), ("kept", 1));
    error(&fixture.decide("anna", Act::Undo, &other), -32600);
    assert!(fixture.sets("otto").is_empty());
}

#[test]
fn what_may_not_wait_is_refused() {
    let web = Web::start(answer);
    let fixture = start(&web, 1);
    let denied = |report: &Value| report["usage"]["denied"][0]["reason"].as_str().map(str::to_owned);
    let refused = |request: Value, reason: &str| {
        let (_, answer) = run(&fixture, json!({ "requests": [request] }));
        let report = result(&answer);
        assert_eq!(
            (&report["status"], denied(report).as_deref()),
            (&json!("SUCCESS"), Some(reason)),
            "{report}"
        );
        assert!(report["result"][0]["error"].is_string(), "{report}");
    };
    let to = |host: &str| json!({ "authority": host, "method": "POST", "body": "x" });
    refused(to("other.example"), "domain_not_allowed");
    let mut large = web.post("/", &"x".repeat(4096));
    large["times"] = json!(257);
    refused(large, "held_requests");
    let mut long = web.post("/", "");
    long["method"] = json!("X".repeat(33));
    refused(long, "held_requests");
    let run = stage(&fixture, false, &[web.post("/1", ""), web.post("/2", "")]);
    assert_eq!(denied(&run.report).as_deref(), Some("held_requests"));
    assert_eq!(run.report["usage"]["effects"]["requests"].as_array().map(Vec::len), Some(1));

    let without = start(&web, 0);
    let (_, answer) = self::run(&without, json!({ "requests": [web.post("/", "")] }));
    assert_eq!(denied(result(&answer)).as_deref(), Some("staged"));
    assert!(web.requests().is_empty());
}

#[test]
fn a_conflict_sends_nothing() {
    let web = Web::start(answer);
    let fixture = start(&web, 1);
    let run = stage(&fixture, true, &[web.post("/", "")]);
    std::fs::write(fixture.home().workspace().join("made.txt"), "of another program").unwrap();
    decided(&fixture.decide("anna", Act::Commit, &run), "FAILURE");
    assert!(web.requests().is_empty());
    std::fs::remove_file(fixture.home().workspace().join("made.txt")).unwrap();
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn the_first_request_without_an_answer_ends_the_sending() {
    let web = Web::start(answer);
    let fixture = start(&web, 3);
    let run = stage(&fixture, true, &[web.post("/", ""), web.post(CLOSED, ""), web.post("/never", "")]);
    let report = fixture.succeed("anna", Act::Commit, &run);
    let ends = report["result"]["requests"].as_array().unwrap();
    let outcomes = ends.iter().map(|end| end["outcome"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(outcomes, ["sent", "unknown", "not_tried"], "{report}");
    assert!(last_message(&fixture, &run).contains("request 2 may have arrived"));
    assert_eq!((web.requests().len(), has_file(&fixture)), (2, true));

    // An address that is not public, which is looked up only now.
    let elsewhere = json!({ "authority": "other.test", "method": "POST", "body": "x" });
    let refused = stage(&fixture, false, &[elsewhere]);
    let report = decided(&fixture.decide("anna", Act::Commit, &refused), "SUCCESS");
    let end = &report["result"]["requests"][0];
    assert_eq!(end["outcome"], "failed", "{report}");
    assert!(end["reason"].as_str().unwrap().contains("`network.allowed_addresses`"), "{report}");
}

#[test]
fn the_command_line_says_what_was_sent_and_offers_only_what_can_be_undone() {
    let web = Web::start(answer);
    let fixture = start(&web, 1);
    let elsewhere = json!({ "authority": "other.test", "method": "POST", "body": "x" });
    let commit = |has_file, request: Value| {
        let run = stage(&fixture, has_file, &[request]);
        fixture.effects("anna", &["commit", &run.intent, "--digest", &run.digest])
    };
    let sent = commit(false, web.post("/", ""));
    sent.expect(
        0,
        &["state    waiting, not sent", "Sends (1)", "nothing to undo", "1 of 1 requests were sent"],
    );
    assert!(!sent.printed.contains("effects undo"), "{}", sent.printed);
    let refused = "not all requests were answered, and none is ever sent again: 0 of 1";
    commit(false, elsewhere.clone()).expect(1, &["nothing to undo", refused]);
    // The files are in force.
    commit(true, elsewhere).expect(0, &["Committed: 1 change ", "effects undo", refused]);
    assert!(web.requests().len() == 1 && has_file(&fixture));
}

#[test]
fn the_operator_decides_again_at_the_commit() {
    let web = Web::start(answer);
    let mut fixture = start(&web, 1);
    let run = stage(&fixture, true, &[web.post("/", "")]);
    let home = fixture.stop();
    let config = std::fs::read_to_string(home.config()).unwrap();
    std::fs::write(home.config(), config.replace("*.test", "*.elsewhere")).unwrap();
    fixture.start_in(home);
    let report = decided(&fixture.decide("anna", Act::Commit, &run), "FAILURE");
    assert!(report.to_string().contains("`network.allowed_domains`"), "{report}");
    assert_eq!(fixture.state(&run), "waiting");
    assert!(web.requests().is_empty() && !has_file(&fixture), "nothing is done in part");
}

#[test]
fn the_agents_policy_of_then_decides_at_the_commit() {
    let web = Web::start(answer);
    let fixture = start(&web, 1);
    let run = stage(&fixture, true, &[web.post("/", "")]);
    let allow = |domain: &str| {
        let network = json!({ "allowed_domains": [domain] });
        let capabilities = json!({ "tools": { TOOL: { "allowed": true } }, "network": network });
        let policy = json!({ "agent_did": AGENT, "version": "2", "capabilities": capabilities });
        result(&fixture.ask("gov", "g2a/policy", &policy));
    };
    allow("elsewhere.test");
    let report = decided(&fixture.decide("anna", Act::Commit, &run), "FAILURE");
    assert!(report.to_string().contains("standing policy"), "{report}");
    assert!(web.requests().is_empty() && !has_file(&fixture));
    allow("web.test");
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(web.requests().len(), 1);
}

/// A run may leave no more in requests than waiting changes may use.
#[test]
fn bodies_count_while_the_run_makes_them() {
    let web = Web::start(answer);
    let fixture = start_with(&web, 3, |options| options.set("effects.max_mb", 4));
    let mut large = web.post("/", &"x".repeat(4096));
    large["times"] = json!(256);
    let run = stage(&fixture, false, &[large.clone(), large.clone(), large]);
    let report = &run.report;
    assert_eq!(report["usage"]["denied"][0]["reason"], "held_requests", "{report}");
    assert_eq!(report["usage"]["effects"]["requests"].as_array().map(Vec::len), Some(1), "{report}");
}

#[test]
fn a_cancellation_ends_the_sending_at_once() {
    let web = Web::start(answer);
    let fixture = start(&web, 2);
    let run = stage(&fixture, true, &[web.post(SILENT, ""), web.post("/never", "")]);
    let mut client = fixture.executor().client();
    let token = fixture.tokens["anna"].clone();
    let params = Act::Commit.params(&run);
    let commit = std::thread::spawn(move || rpc(&mut client, &token, "a2g/commit", &params));
    eventually("the request arrives", || (!web.requests().is_empty()).then_some(()));
    assert_eq!((&*fixture.state(&run), has_file(&fixture)), ("sending", true));
    error(&fixture.decide("anna", Act::Discard, &run), -32600);
    let cancelled = fixture.ask("otto", "a2g/cancel", &json!({ "intent_id": run.intent }));
    assert_eq!(result(&cancelled)["cancelled"], false, "the files are in force");
    let report = decided(&commit.join().unwrap(), "SUCCESS");
    let ends = &report["result"]["requests"];
    assert_eq!(
        (&ends[0]["outcome"], &ends[1]["outcome"]),
        (&json!("unknown"), &json!("not_tried")),
        "{report}"
    );
    assert!(ends[0]["reason"].as_str().unwrap().contains("cancelled or revoked"), "{report}");
    assert_eq!((&*fixture.state(&run), web.requests().len()), ("in_force", 1));
    fixture.succeed("anna", Act::Undo, &run);
}

/// The server waits for the answer to the request that is on its way.
#[test]
fn a_server_that_shuts_down_begins_no_request() {
    let web = Web::start(answer);
    let mut fixture = start(&web, 2);
    let run = stage(&fixture, true, &[web.post(SLOW, ""), web.post("/never", "")]);
    let address = fixture.executor().address();
    let token = fixture.tokens["anna"].clone();
    let params = Act::Commit.params(&run);
    let commit = std::thread::spawn(move || HttpClient::ask_as(address, &token, "a2g/commit", &params));
    eventually("the request arrives", || (!web.requests().is_empty()).then_some(()));
    let home = fixture.stop();
    let answer = commit.join().unwrap();
    fixture.start_in(home);
    let said = last_message(&fixture, &run);
    for part in ["1 of 2 requests were sent", "request 2 was not sent: the executor is shutting down"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!((&*fixture.state(&run), web.requests().len(), has_file(&fixture)), ("in_force", 1, true));
    if let Some(answer) = answer {
        decided(&answer, "SUCCESS");
    }
    fixture.succeed("anna", Act::Undo, &run);
}

#[test]
fn an_answer_without_an_end_delays_no_other_commit() {
    const MAX_COMMIT: Duration = Duration::from_secs(15);
    let web = Web::start(answer);
    let fixture = start(&web, 2);
    // Nothing waits for the rest of an answer.
    let with_body = stage(&fixture, false, &[web.post(ENDLESS_BODY, ""), web.post("/next", "")]);
    let commit_in_time = |run: &StagedRun| {
        let begun = Instant::now();
        let report = decided(&fixture.decide("anna", Act::Commit, run), "SUCCESS");
        assert!(begun.elapsed() < MAX_COMMIT, "{:?}", begun.elapsed());
        report
    };
    let first = commit_in_time(&with_body);
    let sent = json!({ "outcome": "sent", "status": 201 });
    assert_eq!(first["result"]["requests"], json!([sent, sent]), "{first}");

    let run = stage(&fixture, true, &[web.post(ENDLESS_HEAD, ""), web.post("/never", "")]);
    let other = stage(&fixture, false, &[web.post("/other", "")]);
    let mut client = fixture.executor().client();
    let token = fixture.tokens["anna"].clone();
    let params = Act::Commit.params(&run);
    let commit = std::thread::spawn(move || rpc(&mut client, &token, "a2g/commit", &params));
    eventually("the request arrives", || (web.requests().len() == 3).then_some(()));
    commit_in_time(&other);
    assert_eq!((&*fixture.state(&run), web.requests().len()), ("sending", 4));
    // The head has 30 seconds, for which only the long version of the tests waits.
    if times(0) == 0 {
        result(&fixture.ask("otto", "a2g/cancel", &json!({ "intent_id": run.intent })));
    }
    let report = decided(&commit.join().unwrap(), "SUCCESS");
    let ends = &report["result"]["requests"];
    let outcomes = [&ends[0]["outcome"], &ends[1]["outcome"]];
    assert_eq!(outcomes, [&json!("unknown"), &json!("not_tried")], "{report}");
    assert_eq!((web.requests().len(), has_file(&fixture)), (4, true));
}

#[test]
fn a_request_that_has_begun_before_a_kill_is_not_sent_again() {
    let web = Web::start(answer);
    let mut fixture = start(&web, 2);
    for has_file in [true, false] {
        fixture.set_files(BEFORE);
        let before = web.requests().len();
        let run = stage(&fixture, has_file, &[web.post(SILENT, ""), web.post("/never", "")]);
        let mut client = fixture.executor().client();
        let token = fixture.tokens["anna"].clone();
        let params = Act::Commit.params(&run);
        // It gets no answer.
        let commit = std::thread::spawn(move || rpc(&mut client, &token, "a2g/commit", &params));
        eventually("the request arrives", || (web.requests().len() > before).then_some(()));
        let home = fixture.kill();
        let _no_answer = commit.join();
        fixture.start_in(home);
        assert_eq!(fixture.state(&run), if has_file { "in_force" } else { "kept" });
        let said = last_message(&fixture, &run);
        assert!(said.contains("0 of 2") && said.contains("request 1 may have arrived"), "{said}");
        error(&fixture.decide("anna", Act::Commit, &run), -32600);
        if has_file {
            fixture.succeed("anna", Act::Undo, &run);
            assert_eq!(fixture.files(), entries(BEFORE));
        }
        assert_eq!(web.requests().len(), before + 1);
    }
}
