//! A governor that is away, slow, broken or forgetful.

use super::{catalogue, escalating, load, mark, options};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, VerifyingKey};
use harness::{
    Executor, FakeGovernor, Governor, HttpClient, Process, Reply, Server, assert_chain_holds, error,
    eventually, id_of, intent, intent_id, program, result, run, succeeds,
};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Number of clients that send at once.
const CLIENTS: usize = 4;

/// The reports that a governor was sent, in order.
fn sent_reports(governor: &FakeGovernor) -> Vec<Value> {
    let seen = governor.seen().into_iter();
    seen.filter(|(method, _)| method == "a2g/report").map(|(_, params)| params).collect()
}

#[test]
fn reports_survive_an_absent_governor_and_a_restart() {
    let mut governor = Governor::start(&[]);
    let catalogue = catalogue();
    let load = load();
    let executor = Executor::start(options(&catalogue, &governor.http_url()));
    executor.line_with("registered with the governor");
    governor.stop();
    for _ in 0..20 {
        load.send(executor.address());
    }
    // A server that is stopped in an orderly way leaves undelivered reports in its journal, too.
    let mut executor = executor;
    executor.process().stop();
    assert!(executor.stderr().contains("and wait for the next start"), "{}", executor.stderr());
    let executor = Executor::start_in(executor.kill());
    governor.restart();
    let reports = super::wait_until_settled(&executor, &governor);
    assert!(load.assert_balanced(executor.home(), &reports) > 10);
}

fn broken() -> Reply {
    Reply::Raw(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_vec())
}

fn refusal(code: i64) -> Reply {
    Reply::Body(format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{{"code":{code},"message":"no"}}}}"#))
}

/// A way of a governor to reply to a request. It calls `accept` for a reply that accepts.
type Behaviour = fn(accept: &dyn Fn() -> Reply) -> Reply;

/// The load continues while the governor changes its behaviour. At the end, the acknowledged
/// reports match the runs.
#[test]
fn a_slow_failing_or_forgetful_governor_loses_no_report() {
    let catalogue = catalogue();
    let load = load();
    let behaviours: [Behaviour; 7] = [
        |accept| Reply::Late(Duration::from_millis(300), Box::new(accept())),
        |_| broken(),
        // A report that is accepted in between ends the ever longer pauses.
        |accept| accept(),
        // The request is read, and the connection closed without an answer.
        |_| Reply::Hangup,
        |accept| accept(),
        |_| refusal(-32603),
        |accept| accept(),
    ];
    let behaviour = Arc::new(Mutex::new(behaviours[6]));
    // The acknowledged reports, with which the journal and the files are compared.
    let acknowledged: Arc<Mutex<Vec<Value>>> = Arc::default();
    let now = Arc::clone(&behaviour);
    let acknowledges = Arc::clone(&acknowledged);
    let governor = FakeGovernor::start(move |method, params| {
        let behaviour = *now.lock().unwrap();
        behaviour(&|| {
            if method == "a2g/report" {
                acknowledges.lock().unwrap().push(params.clone());
            }
            Reply::Result(json!({ "accepted": true }))
        })
    });
    let executor = Executor::start(options(&catalogue, &governor.url()));
    load.during(CLIENTS, executor.address(), || {
        for next in behaviours {
            *behaviour.lock().unwrap() = next;
            let before = sent_reports(&governor).len();
            eventually("reports arrive during this behaviour", || {
                (sent_reports(&governor).len() > before).then_some(())
            });
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    super::wait_until_delivered(&executor);
    let ran = load.assert_balanced(executor.home(), &acknowledged.lock().unwrap());
    assert!(ran > behaviours.len(), "only {ran} intents ran");
    assert_chain_holds(executor.home());
}

/// The same with a governor that is killed and started again, over both of its transports.
#[test]
fn a_governor_killed_under_load_loses_no_report() {
    for url in [Server::http_url, Server::web_socket_url] {
        let mut governor = Governor::start(&[]);
        let catalogue = catalogue();
        let load = load();
        let executor = Executor::start(options(&catalogue, &url(&governor)));
        executor.line_with("registered with the governor");
        load.during(CLIENTS, executor.address(), || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(200));
                governor.stop();
                std::thread::sleep(Duration::from_millis(200));
                governor.restart();
            }
        });
        let reports = super::wait_until_settled(&executor, &governor);
        assert!(load.assert_balanced(executor.home(), &reports) > 10);
    }
}

/// Any answer other than an acknowledgement makes the executor resend the report; one that is
/// acknowledged does not.
#[test]
fn a_report_is_resent_until_it_is_acknowledged() {
    let catalogue = catalogue();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let governor = FakeGovernor::start(move |method, _| {
        if method != "a2g/report" {
            // The answers to other methods may have any form.
            return Reply::Result(json!("welcome"));
        }
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::Hangup,
            1 => broken(),
            2 => refusal(-32603),
            3 => Reply::Body("not JSON".to_owned()),
            _ => Reply::Result(Value::Null),
        }
    });
    let executor = Executor::start(options(&catalogue, &governor.url()));
    let call = mark(0);
    let answer = executor.rpc("a2g/execute", &call);
    eventually("the report is acknowledged", || (sent_reports(&governor).len() == 5).then_some(()));
    assert!(sent_reports(&governor).iter().all(|report| report == result(&answer)));
    std::thread::sleep(Duration::from_millis(500));
    let executor = Executor::start_in(executor.kill());
    executor.rpc("a2g/execute", &mark(1));
    eventually("the next report is acknowledged", || (sent_reports(&governor).len() >= 6).then_some(()));
    let last: Vec<Value> = sent_reports(&governor).split_off(5);
    assert!(last.iter().all(|report| report["intent_id"] != id_of(&call)), "{last:?}");
}

#[test]
fn reports_arrive_in_order_and_a_refused_one_delays_others_briefly() {
    let catalogue = catalogue();
    let refused_intent = Arc::new(Mutex::new(String::new()));
    let to_refuse = Arc::clone(&refused_intent);
    let governor = FakeGovernor::start(move |method, params| {
        let intent = params["intent_id"].as_str().unwrap_or_default();
        if method == "a2g/report" && intent == *to_refuse.lock().unwrap() {
            return refusal(-32600);
        }
        Reply::Result(json!({ "accepted": true }))
    });
    let executor = Executor::start(options(&catalogue, &governor.url()));
    let calls: Vec<Value> = (0..12)
        .map(|nth| {
            let mut call = mark(nth);
            call["intent"]["agent_did"] = format!("did:test:agent:{}", nth % 3).into();
            call
        })
        .collect();
    *refused_intent.lock().unwrap() = id_of(&calls[3]);
    for call in &calls {
        result(&executor.rpc("a2g/execute", call));
    }
    let refused = id_of(&calls[3]);
    let is_refused = |report: &Value| report["intent_id"] == refused;
    let accepted = || {
        let mut accepted: HashMap<String, Vec<Value>> = HashMap::new();
        for report in sent_reports(&governor).into_iter().filter(|report| !is_refused(report)) {
            let agent = report["agent_did"].as_str().unwrap().to_owned();
            accepted.entry(agent).or_default().push(report["intent_id"].clone());
        }
        accepted
    };
    eventually("all other reports have arrived", || {
        (accepted().values().map(Vec::len).sum::<usize>() == calls.len() - 1).then_some(())
    });
    for (agent, intents) in accepted() {
        let sent = calls.iter().map(|call| &call["intent"]).filter(|intent| intent["agent_did"] == *agent);
        let sent = sent.filter(|intent| !is_refused(intent)).map(|intent| intent["intent_id"].clone());
        assert_eq!(intents, sent.collect::<Vec<_>>());
    }
    // The refused report is still to be delivered. After a start it is due at once; before, only after a long pause.
    let undelivered = executor.home().list_journal(&["--undelivered"]);
    assert!(undelivered.iter().any(|row| row.to_string().contains(&refused)), "{undelivered:?}");
    let tried = || sent_reports(&governor).iter().filter(|report| is_refused(report)).count();
    let before = tried();
    refused_intent.lock().unwrap().clear();
    let executor = Executor::start_in(executor.kill());
    super::wait_until_delivered(&executor);
    assert!(tried() > before);
}

#[test]
fn no_run_starts_at_the_backlog_limit() {
    let catalogue = catalogue();
    let mut governor = Governor::start(&[]);
    let options = options(&catalogue, &governor.http_url()).set("journal.max_undelivered", 3);
    let executor = Executor::start(options);
    executor.line_with("registered with the governor");
    governor.stop();
    let run = |nth: u32| executor.rpc("a2g/execute", &mark(nth));
    for nth in 0..3 {
        result(&run(nth));
    }
    let refused = run(3);
    let full = error(&refused, -32003);
    assert!(full["message"].as_str().unwrap().contains("wait for the governor"), "{refused}");
    assert!(full["data"]["retry_after_ms"].is_u64() && executor.file("000003").is_none(), "{refused}");
    governor.restart();
    eventually("the governor takes them and there is room", || run(3).get("result").map(drop));
}

#[test]
fn an_escalated_intent_stays_pending_across_a_restart() {
    let catalogue = catalogue();
    let governor = escalating(3600);
    let executor = Executor::start(options(&catalogue, &governor.url()));
    let call = intent("mark", json!({ "n": "000000" }));
    let denied = intent("mark", json!({ "n": "000001" }));
    for call in [&call, &denied] {
        assert_eq!(result(&executor.rpc("a2g/intent", call))["verdict"], "ESCALATE");
    }
    let executor = Executor::start_in(executor.kill());
    let id = json!({ "intent_id": call["intent_id"] });
    let state = |executor: &Executor| executor.rpc("a2g/status", &id)["result"]["state"].clone();
    assert_eq!(state(&executor), "escalated");
    // The governor is not asked again, and the intent runs once when it is approved.
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    assert_eq!(governor.seen().iter().filter(|(method, _)| method == "a2g/intent").count(), 2);
    let directive = |id: &Value, decision: &str| json!({ "intent_id": id, "decision": decision });
    result(&executor.rpc("g2a/directive", &directive(&denied["intent_id"], "DENIED")));
    result(&executor.rpc("g2a/directive", &directive(&call["intent_id"], "APPROVED")));
    eventually("it ran", || (state(&executor) == "finished").then_some(()));
    let executor = Executor::start_in(executor.kill());
    error(&executor.rpc("g2a/directive", &directive(&call["intent_id"], "APPROVED")), -32602);
    error(&executor.rpc("g2a/directive", &directive(&denied["intent_id"], "APPROVED")), -32602);
    assert_eq!(state(&executor), "finished");
    assert_eq!(executor.file("000000").as_deref(), Some("x"));
    assert!(executor.file("000001").is_none());
}

/// With the stored checkpoints of heartbeats, `journal verify` later checks the same history.
#[test]
fn heartbeats_contain_a_signed_journal_checkpoint() {
    let catalogue = catalogue();
    let folder = tempfile::tempdir().unwrap();
    let governor = FakeGovernor::start(|_, _| Reply::Result(json!({ "accepted": true })));
    let key = folder.path().join("executor.key");
    succeeds(&["key", "new", key.to_str().unwrap(), "--issuer", "did:test:executor:1"]);
    let options = options(&catalogue, &governor.url()).set("governor.heartbeat_seconds", 1);
    let options =
        options.set("journal.key", key.to_str().unwrap()).set("executor.did", "did:test:executor:1");
    let executor = Executor::start(options);
    for nth in 0..3 {
        result(&executor.rpc("a2g/execute", &mark(nth)));
    }
    let journal = eventually("a heartbeat after three runs", || {
        let beats = governor.seen().into_iter().filter(|(method, _)| method == "a2g/heartbeat");
        beats.map(|(_, params)| params["journal"].clone()).find(|journal| journal["count"] == 3)
    });
    let checkpoint = format!("3:{}", journal["root"].as_str().unwrap());
    let path = executor.home().journal();
    succeeds(&["journal", "verify", "--checkpoint", &checkpoint, "--journal", path.to_str().unwrap()]);
    let other = format!("3:{}", "00".repeat(32));
    let differs = run(["journal", "verify", "--checkpoint", &other, "--journal", path.to_str().unwrap()]);
    assert_eq!(differs.status.code(), Some(1));

    let compact = journal["signature"].as_str().unwrap();
    let (signed, signature) = compact.rsplit_once('.').unwrap();
    let public: Value =
        serde_json::from_slice(&succeeds(&["key", "show", "--json", key.to_str().unwrap()])).unwrap();
    let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
    let public = VerifyingKey::from_bytes(&bytes(public["x"].as_str().unwrap()).try_into().unwrap()).unwrap();
    let signature = Signature::from_slice(&bytes(signature)).unwrap();
    public.verify_strict(signed.as_bytes(), &signature).unwrap();
    let claims: Value = serde_json::from_slice(&bytes(signed.split('.').nth(1).unwrap())).unwrap();
    assert_eq!((&claims["count"], &claims["root"]), (&journal["count"], &journal["root"]));
    assert_eq!(claims["iss"], "did:test:executor:1");
}

/// The params of a report that an executor would send.
fn report(intent: &str, status: &str) -> Value {
    json!({ "agent_did": "did:test:agent:1", "intent_id": intent, "status": status, "metrics": { "duration_ms": 7 } })
}

#[test]
fn the_bundled_governor_stores_a_repeated_report_once() {
    let mut governor = Governor::start(&[]);
    let intents = [intent_id(), intent_id()];
    for _restart in 0..3 {
        for _repeat in 0..2 {
            for intent in &intents {
                let answer = governor.rpc("a2g/report", &report(intent, "SUCCESS"));
                assert_eq!(*result(&answer), json!({ "accepted": true }));
            }
        }
        governor.restart();
    }
    assert_eq!(governor.reports(), intents.each_ref().map(|intent| report(intent, "SUCCESS")));
    // A different report of the same intent is not treated as a repetition.
    result(&governor.rpc("a2g/report", &report(&intents[0], "FAILURE")));
    assert_eq!(governor.reports_of(&intents[0]).len(), 2);
}

#[test]
fn the_bundled_governor_acknowledges_only_stored_reports() {
    if !harness::has_strace() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mut governor = Command::new(program());
    governor.current_dir(home.path());
    governor.args(["governor", "--listen", "127.0.0.1:0", "--reports", "reports.ndjson"]);
    let mut traced = harness::trace(&governor, "fdatasync", "--inject=fdatasync:error=EIO:when=1");
    let mut governor = Process::spawn("traced governor", &mut traced);
    let mut client = HttpClient::to_governor(governor.listens_on());
    let report = report(&intent_id(), "SUCCESS");
    let answers = [(); 2].map(|()| client.rpc("a2g/report", &report));
    // Killing strace alone would leave the governor running, with the output pipes of this test
    // open.
    governor.kill_children();
    governor.wait_for_exit();
    error(&answers[0], -32603);
    result(&answers[1]);
    governor.line_with("could not be recorded");
}

/// A report that was sent and not acknowledged is sent again after a kill, with the same JSON, so
/// that the governor can detect the repetition.
#[test]
fn a_report_resent_after_a_kill_is_identical() {
    let catalogue = catalogue();
    let governor = FakeGovernor::start(|method, _| match method {
        "a2g/report" => Reply::Hangup,
        _ => Reply::Result(json!({ "accepted": true })),
    });
    let executor = Executor::start(options(&catalogue, &governor.url()));
    result(&executor.rpc("a2g/execute", &mark(0)));
    let count = |least: usize| {
        eventually("it is sent", || Some(sent_reports(&governor).len()).filter(|n| *n >= least))
    };
    let before = count(1);
    let home = executor.kill();
    let _again = Executor::start_in(home);
    count(before + 2);
    let texts = sent_reports(&governor).iter().map(Value::to_string).collect::<BTreeSet<_>>();
    assert_eq!(texts.len(), 1, "{texts:#?}");
}
