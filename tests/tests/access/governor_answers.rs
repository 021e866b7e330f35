//! Answers of a governor: good ones, denials in every form, and messages that are none.

use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// An approval of the intent.
fn approval(intent: &Value) -> Value {
    verdict(intent["intent_id"].as_str().unwrap(), &manifest())
}

/// A response with this in the place of `result`.
fn with(member: &str) -> Reply {
    Reply::Body(format!(r#"{{"jsonrpc":"2.0",{member},"id":$ID}}"#))
}

/// Answers of a governor by the name of the case, with the reason that then blocks the intent.
fn nonsense(intent: &Value) -> Vec<(&'static str, Reply, &'static str)> {
    let good = approval(intent);
    let changed = |member: &str, value: Value| {
        let mut verdict = good.clone();
        verdict[member] = value;
        Reply::Result(verdict)
    };
    let body = |text: &str| Reply::Body(text.to_owned());
    let raw = |text: &str| Reply::Raw(text.as_bytes().to_vec());
    let unavailable = "governor_unavailable";
    let duplicate = format!(r#""result":{}"#, good.to_string().replacen('{', r#"{"verdict":"DENIED","#, 1));
    let escaped =
        format!(r#""result":{}"#, good.to_string().replacen('{', r#"{"\u0076erdict":"DENIED","#, 1));
    let deep = good.to_string().replace("\"max_memory_mb\":50", "\"max_memory_mb\":50,\"max_memory_mb\":500");
    let error = r#""error":{"code":-32000,"message":"no","data":{"risk_score":0.9}}"#;
    let everything = json!({ "filesystem_scope": ["/**"] });
    let late = Reply::Late(Duration::from_secs(15), Box::new(Reply::Result(good.clone())));
    vec![
        ("result_and_error", with(&format!(r#""result":{good},{error}"#)), "verdict_denied"),
        ("error_and_result", with(&format!(r#"{error},"result":{good}"#)), "verdict_denied"),
        ("result_and_null_error", with(&format!(r#""result":{good},"error":{{}}"#)), unavailable),
        ("error", with(error), "verdict_denied"),
        ("garbage", body("<html>approved</html>"), unavailable),
        ("empty", body(""), unavailable),
        ("half", body(r#"{"jsonrpc":"2.0","result":{"verdict":"APPROVED""#), unavailable),
        ("no_http", raw("APPROVED\r\n\r\n"), unavailable),
        (
            "http_500",
            raw("HTTP/1.1 500 Oops\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"),
            unavailable,
        ),
        ("hangup", Reply::Hangup, unavailable),
        ("null", Reply::Result(Value::Null), unavailable),
        ("text", Reply::Result(json!("APPROVED")), unavailable),
        ("list", Reply::Result(json!([good])), unavailable),
        ("batch", body(&format!(r#"[{{"jsonrpc":"2.0","result":{good},"id":$ID}}]"#)), unavailable),
        ("another_id", body(&format!(r#"{{"jsonrpc":"2.0","result":{good},"id":987654}}"#)), unavailable),
        ("another_intent", changed("intent_id", json!(intent_id())), "verdict_mismatch"),
        ("expired", changed("expires_at", json!(in_seconds(-5))), "verdict_expired"),
        ("denied", changed("verdict", json!("DENIED")), "verdict_denied"),
        ("unknown_verdict", changed("verdict", json!("MAYBE")), unavailable),
        ("lower_case", changed("verdict", json!("approved")), unavailable),
        ("no_manifest", changed("capability_manifest", Value::Null), unavailable),
        ("no_expiry", changed("expires_at", Value::Null), unavailable),
        ("unknown_limit", changed("capability_manifest", json!({ "max_disk_mb": 5 })), unavailable),
        ("zero_limit", changed("capability_manifest", json!({ "max_memory_mb": 0 })), unavailable),
        ("fraction", changed("capability_manifest", json!({ "max_cpu_percent": 50.0 })), unavailable),
        ("unknown_condition", changed("conditions", json!(["be_nice"])), "condition_unknown"),
        ("everything", changed("capability_manifest", everything), "scope_unenforceable"),
        ("duplicate", with(&duplicate), unavailable),
        ("duplicate_escaped", with(&escaped), unavailable),
        ("duplicate_deep", with(&format!(r#""result":{deep}"#)), unavailable),
        ("duplicate_result", with(&format!(r#""result":{{}},"result":{good}"#)), unavailable),
        ("too_long", changed("reason", json!("x".repeat(2 << 20))), unavailable),
        ("slow", late, unavailable),
    ]
}

#[test]
fn only_a_valid_verdict_of_the_governor_runs_anything() {
    let governor = FakeGovernor::deciding(|params| {
        let asked = params["arguments"]["content"].as_str().unwrap();
        let reply = nonsense(params).into_iter().find(|(case, ..)| *case == asked);
        reply.map_or_else(|| Reply::Result(approval(params)), |(_, reply, _)| reply)
    });
    let executor = Executor::start(Options::new().signed_only().governor(&governor.url()));
    let check = |case: &str, by: &str| {
        let call = intent("write_file", write("ran", case));
        let response = executor.rpc("a2g/intent", &call);
        assert_eq!(response["error"]["code"], -32000, "{case}: {response}");
        assert_eq!(response["error"]["data"]["blocked_by"], by, "{case}: {response}");
        assert_eq!(response["error"]["data"]["intent_id"], call["intent_id"], "{case}");
        let words = match case {
            "null" => "it is not an object",
            "lower_case" => "`verdict` must be one of `APPROVED`",
            "no_expiry" => "(at `/expires_at`)",
            "fraction" => "`max_cpu_percent` must be an integer from 1 to",
            _ => "",
        };
        let message = response["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{case}: {message}");
        assert!(words.is_empty() || !message.contains("reachable"), "{case}: {message}");
    };
    // The executor asks again for seconds in many cases, so they are tried at the same time.
    std::thread::scope(|scope| {
        for (case, _, by) in nonsense(&intent("write_file", json!({}))) {
            let check = &check;
            scope.spawn(move || check(case, by));
        }
    });
    executor.assert_workspace_is_empty("all cases");
    // The same governor, the same words, and a good verdict.
    let call = intent("write_file", write("ran", "good"));
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["report"]["status"], "SUCCESS");
    assert_eq!(count_requests(&governor, &call), 1);
    for request in governor.requests() {
        assert!(request["id"].is_string(), "the reference reads no other id: {request}");
    }
}

fn count_requests(governor: &FakeGovernor, intent: &Value) -> usize {
    let asks = governor.seen().into_iter().filter(|(method, _)| method == "a2g/intent");
    asks.filter(|(_, params)| params["intent_id"] == intent["intent_id"]).count()
}

/// A denial as the reference's `G2aVerdict::denied` writes it, with both members.
fn reference_denial(intent: &Value) -> String {
    let denial = json!({
        "jsonrpc": "2.0",
        "result": {
            "verdict": "DENIED",
            "intent_id": intent["intent_id"],
            "risk_assessment": { "score": 0.92, "level": "CRITICAL", "heuristic_score": 0.92, "threats": ["a host"] },
        },
        "error": {
            "code": -32000,
            "message": "Policy violation: a host",
            "data": { "risk_score": 0.92, "blocked_by": "governance_loop" },
        },
    });
    denial.to_string().replacen('{', r#"{"id":$ID,"#, 1)
}

/// Checks that a caller is told of such a denial what the governor said.
fn assert_reference_denial(answer: &Value) {
    let told = expect_blocked(answer, "verdict_denied");
    assert_eq!(told, "denied by the governor: Policy violation: a host");
    assert_eq!(answer["error"]["data"]["risk_score"], 0.92, "{answer}");
}

/// Messages that answer nothing, or that nobody can read. None names a call.
fn garbage() -> Vec<String> {
    let deep = format!(r#"{{"method":"g2a/policy","params":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    [
        "",
        "<html>approved</html>",
        "[]",
        "7",
        r#"{"jsonrpc":"2.0","result":{"verdict":"APPROVED"},"id":"987654"}"#,
        r#"{"jsonrpc":"2.0","result":{"verdict":"APPROVED"},"id":987654}"#,
        r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"},"id":null}"#,
        r#"{"jsonrpc":"2.0","result":1,"error":{"code":1,"message":"both"},"id":null}"#,
        r#"{"jsonrpc":"2.0","method":"telemetry/heartbeat","params":{"load":0.05}}"#,
        r#"{"type":"HEARTBEAT","payload":{"status":"NOMINAL"}}"#,
        r#"{"jsonrpc":"2.0","result":{"verdict":"APPROVED""#,
        r#"{"jsonrpc":"2.0","method":"g2a/policy","params":{"agent_did":"x","agent_did":"y"}}"#,
        &deep,
        &format!(r#"{{"jsonrpc":"2.0","method":"g2a/policy","params":"{}"}}"#, "x".repeat(2 << 20)),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Waits until so many have come.
struct Rendezvous(Mutex<usize>, Condvar, usize);

impl Rendezvous {
    fn of(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(0), Condvar::new(), count))
    }

    fn join(&self) {
        let mut here = self.0.lock().unwrap();
        *here += 1;
        self.1.notify_all();
        while *here < self.2 {
            let (now, late) = self.1.wait_timeout(here, TIMEOUT).unwrap();
            assert!(!late.timed_out(), "{} of {} came", *now, self.2);
            here = now;
        }
    }
}

/// The second content of an id passes the first look-up while the governor decides, and is held only after people have
/// seen the first content.
#[test]
fn an_id_never_waits_with_other_content_than_people_saw() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let governor = FakeGovernor::deciding(move |params| {
        if params["arguments"]["content"] == "evil" {
            released.lock().unwrap().recv_timeout(TIMEOUT).unwrap();
        }
        let mut verdict = approval(params);
        verdict["verdict"] = json!("ESCALATE");
        Reply::Result(verdict)
    });
    let executor = Executor::start(Options::new().governor(&governor.url()));
    let mut client = executor.client();
    for is_withdrawn in [true, false] {
        let good = intent("write_file", write("file", "good"));
        let mut evil = good.clone();
        evil["arguments"] = write("file", "evil");
        let id = json!({ "intent_id": good["intent_id"] });
        let answer = std::thread::scope(|scope| {
            let sending = scope.spawn(|| executor.client().rpc("a2g/intent", &evil));
            eventually("the governor thinks", || (count_requests(&governor, &evil) == 1).then_some(()));
            assert_eq!(result(&client.rpc("a2g/intent", &good))["verdict"], "ESCALATE");
            if is_withdrawn {
                assert_eq!(result(&client.rpc("a2g/cancel", &id))["cancelled"], true);
            }
            release.send(()).unwrap();
            sending.join().unwrap()
        });
        error(&answer, -32600);
        let directive = json!({ "intent_id": good["intent_id"], "decision": "APPROVED" });
        let decided = client.rpc("g2a/directive", &directive);
        if is_withdrawn {
            error(&decided, -32602);
            assert_eq!(executor.file("file"), None);
        } else {
            assert_eq!(result(&decided), &json!({ "accepted": true }));
            // A file that is being written may be empty for a moment.
            let content =
                eventually("it ran", || executor.file("file").filter(|content| !content.is_empty()));
            assert_eq!(content, "good");
        }
    }
}

/// A repeat runs the call while the governor still decides on the first request.
#[test]
fn a_request_that_is_escalated_after_its_repeat_has_run_gets_the_report() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let first = Mutex::new(Some(released));
    let governor = FakeGovernor::deciding(move |params| {
        let mut verdict = approval(params);
        // Not in the condition, which would hold the lock while it waits.
        let released = first.lock().unwrap().take();
        if let Some(released) = released {
            released.recv_timeout(TIMEOUT).unwrap();
            verdict["verdict"] = json!("ESCALATE");
        }
        Reply::Result(verdict)
    });
    let executor = Executor::start(Options::new().governor(&governor.url()));
    let call = intent("write_file", write("file", "once"));
    let answers = std::thread::scope(|scope| {
        let sending = scope.spawn(|| executor.client().rpc("a2g/intent", &call));
        eventually("the governor thinks", || (count_requests(&governor, &call) == 1).then_some(()));
        let repeat = executor.client().rpc("a2g/intent", &call);
        release.send(()).unwrap();
        [sending.join().unwrap(), repeat]
    });
    for answer in &answers {
        assert_eq!(result(answer)["report"]["status"], "SUCCESS", "{answer}");
        assert_eq!(result(answer)["verdict"], "APPROVED", "{answer}");
    }
    assert_eq!(executor.home().list_journal(&[]).len(), 1);
}

#[test]
fn a_denial_or_garbage_over_web_socket_affects_no_other_intent() {
    const INTENTS: usize = 100;
    let all_asked = Rendezvous::of(INTENTS);
    let governor = FakeGovernor::deciding(move |params| {
        all_asked.join();
        let good = json!({ "jsonrpc": "2.0", "result": approval(params) }).to_string();
        let good = good.replacen('{', r#"{"id":$ID,"#, 1);
        match params["arguments"]["content"].as_str().unwrap() {
            "denied" => Reply::Messages(vec![reference_denial(params)]),
            "garbage" => Reply::Messages(garbage().into_iter().chain([good]).collect()),
            "twice" => Reply::Messages(vec![good.clone(), good]),
            _ => Reply::Messages(vec![good]),
        }
    });
    let options = Options::new().signed_only().governor(&governor.web_socket_url());
    let executor = Executor::start(options.set("executor.queue", 1000));
    executor.line_with("registered with the governor");
    let calls = (0..INTENTS).map(|n| {
        let content = match n % 10 {
            3 => "denied",
            5 => "garbage",
            7 => "twice",
            _ => "good",
        };
        let mut call = intent("write_file", write(&format!("{n}"), content));
        call["agent_did"] = json!(format!("did:aeon:agent{}:1.0:abc123", n % 7));
        let mut client = executor.client();
        (content, std::thread::spawn(move || client.rpc("a2g/intent", &call)))
    });
    for (content, call) in calls.collect::<Vec<_>>() {
        let answer = call.join().unwrap();
        if content == "denied" {
            assert_reference_denial(&answer);
        } else {
            assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{content}: {answer}");
        }
    }
    assert_eq!(governor.sockets(), 1, "the connection stayed");
    let asked = governor.seen().into_iter().filter(|(method, _)| method == "a2g/intent");
    assert_eq!(asked.count(), INTENTS, "every intent was asked about once");
    let line = executor.line_with("dropped a message of the governor");
    assert!(line.len() < 1000, "an excerpt is enough: {line}");
}

#[test]
fn a_denial_with_result_and_error_keeps_its_message_over_http() {
    let governor = FakeGovernor::deciding(|params| Reply::Body(reference_denial(params)));
    let executor = Executor::start(Options::new().signed_only().governor(&governor.url()));
    let answer = executor.rpc("a2g/intent", &intent("write_file", write("x", "x")));
    assert_reference_denial(&answer);
}

#[test]
fn a_malformed_answer_ends_its_own_call_at_once() {
    let governor = FakeGovernor::deciding(|params| match params["arguments"]["content"].as_str().unwrap() {
        "good" => Reply::Result(approval(params)),
        "long" => Reply::Body(format!(r#"{{"id":$ID,"result":"{}"}}"#, "x".repeat(2 << 20))),
        member => with(member),
    });
    let executor = Executor::start(Options::new().signed_only().governor(&governor.web_socket_url()));
    for content in [r#""error":"no""#, r#""error":{}"#, r#""no":1"#, r#""result":{"a":1,"a":2}"#, "long"] {
        let asked = std::time::Instant::now();
        let answer = executor.rpc("a2g/intent", &intent("write_file", write("x", content)));
        expect_blocked(&answer, "governor_unavailable");
        assert!(asked.elapsed() < Duration::from_secs(9), "{content}: not by a timeout");
    }
    let answer = executor.rpc("a2g/intent", &intent("write_file", write("x", "good")));
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    assert_eq!(governor.sockets(), 1, "the connection stayed");
}

#[test]
fn a_governor_error_other_than_a_denial_is_not_a_verdict() {
    const DENIALS: [i64; 2] = [-32000, -32003];
    const OTHERS: [i64; 11] =
        [-32700, -32600, -32601, -32602, -32603, -32001, -32002, -32004, -32099, 0, 500];
    let governor = FakeGovernor::deciding(|params| {
        let code = params["arguments"]["content"].as_str().unwrap();
        with(&format!(r#""error":{{"code":{code},"message":"the disk is full"}}"#))
    });
    for url in [governor.url(), governor.web_socket_url()] {
        let executor = Executor::start(Options::new().signed_only().governor(&url));
        let answers = DENIALS.iter().chain(&OTHERS).map(|code| {
            let call = intent("write_file", write("x", &code.to_string()));
            let mut client = executor.client();
            let asking = call.clone();
            (code, call, std::thread::spawn(move || client.rpc("a2g/intent", &asking)))
        });
        for (code, call, answer) in answers.collect::<Vec<_>>() {
            let answer = answer.join().unwrap();
            let denied = DENIALS.contains(code);
            let by = if denied { "verdict_denied" } else { "governor_unavailable" };
            let message = expect_blocked(&answer, by);
            assert!(denied || message.contains(&code.to_string()), "{code}: {message}");
            assert_eq!(count_requests(&governor, &call) > 1, !denied, "{code}");
        }
        executor.assert_workspace_is_empty("errors of the governor");
    }
}

/// A governor that fails so often, each time in another way, before it approves an intent.
fn failing(ways: &'static [fn() -> Reply]) -> FakeGovernor {
    let failed = Mutex::new(BTreeMap::<String, usize>::new());
    FakeGovernor::deciding(move |params| {
        let mut failed = failed.lock().unwrap();
        let count = failed.entry(params["intent_id"].to_string()).or_default();
        *count += 1;
        ways.get(*count - 1).map_or_else(|| Reply::Result(approval(params)), |way| way())
    })
}

#[test]
fn an_intent_is_resent_until_there_is_a_verdict() {
    fn busy() -> Reply {
        with(r#""error":{"code":-32603,"message":"the model is loading"}"#)
    }
    fn status(line: &str) -> Reply {
        Reply::Raw(
            format!("HTTP/1.1 {line}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}").into_bytes(),
        )
    }
    let anywhere = failing(&[busy, || Reply::Hangup]);
    let over_http = failing(&[|| status("500 Oops"), || status("503 Later")]);
    for (governor, url) in
        [(&anywhere, anywhere.url()), (&anywhere, anywhere.web_socket_url()), (&over_http, over_http.url())]
    {
        let executor = Executor::start(Options::new().signed_only().governor(&url));
        let call = intent("write_file", write("x", "x"));
        let answer = executor.rpc("a2g/intent", &call);
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
        assert_eq!(count_requests(governor, &call), 3);
    }
}
