//! Metrics, logs and traces.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A secret that must occur nowhere but in its call.
const CANARY: &str = "canary-c0ffee-e5c5";

/// Scrapes until something holds.
fn scrape_until(executor: &Executor, what: &str, holds: impl Fn(&Exposition) -> bool) -> Exposition {
    eventually(what, || Some(scrape(executor)).filter(&holds))
}

/// All lines so far, each of which has to be a JSON object with what every line has.
fn log(stderr: &str) -> Vec<Value> {
    let line = |line: &str| {
        let read: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for member in ["timestamp", "level", "target", "message"] {
            assert!(read[member].is_string(), "{member}: {line}");
        }
        let at = read["timestamp"].as_str().unwrap();
        let at = time::OffsetDateTime::parse(at, &time::format_description::well_known::Rfc3339);
        assert!(at.is_ok_and(|at| at.offset().is_utc()), "{line}");
        read
    };
    stderr.lines().map(line).collect()
}

/// The lines of one intent.
fn lines_of(log: &[Value], intent: &str) -> Vec<Value> {
    log.iter().filter(|line| line["intent"] == intent).cloned().collect()
}

/// Waits for a line of an intent with this message.
fn line_of(executor: &Executor, intent: &str, message: &str) -> Value {
    eventually(&format!("`{message}` of {intent}"), || {
        let stderr = executor.stderr();
        let whole = stderr.rfind('\n').map_or("", |end| &stderr[..end]);
        lines_of(&log(whole), intent).into_iter().find(|line| line["message"] == message)
    })
}

/// A call whose verdict denies it.
fn denied() -> Value {
    let mut call = write_file("two");
    call["verdict"]["verdict"] = json!("DENIED");
    call
}

fn write_file(name: &str) -> Value {
    execute("write_file", write(name, "x"))
}

#[test]
fn metrics_count_every_execution_and_refusal_once() {
    let catalogue = methods::catalogue().add(Tool::command("slow", GATE).limit("timeout_seconds", 1));
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    let before = scrape(&executor);
    assert!(before.is("a2g_journal_receipts_total", 0.0) && !before.has("a2g_queue_seconds_total"));
    let mut client = executor.client();
    let twice = write_file("one");
    result(&client.rpc("a2g/execute", &twice));
    // The stored report is no second run.
    result(&client.rpc("a2g/execute", &twice));
    result(&client.rpc("a2g/intent", &intent("write_file", write("two", "x"))));
    error(&client.rpc("a2g/execute", &execute("read_file", json!({ "path": "/workspace/none" }))), -32001);
    error(&client.rpc("a2g/execute", &execute("slow", json!({}))), -32003);
    expect_blocked(&client.rpc("a2g/execute", &denied()), "verdict_denied");
    let unknown = client.rpc("a2g/execute", &execute("no_such_tool", json!({})));
    error(&unknown, -32602);
    let after = scrape_until(&executor, "all reports are delivered", |now| {
        now.is("a2g_deliveries_total{outcome=\"delivered\"}", 4.0)
    });
    for (series, count) in [
        ("a2g_executions_total{tool=\"write_file\",status=\"SUCCESS\"}", 2.0),
        ("a2g_executions_total{tool=\"read_file\",status=\"FAILURE\"}", 1.0),
        ("a2g_executions_total{tool=\"slow\",status=\"TIMEOUT\"}", 1.0),
        ("a2g_refusals_total{blocked_by=\"verdict_denied\"}", 1.0),
        ("a2g_run_seconds_count{tool=\"write_file\"}", 2.0),
        ("a2g_run_seconds_count{tool=\"slow\"}", 1.0),
        ("a2g_run_seconds_bucket{le=\"1.0\",tool=\"slow\"}", 0.0),
        ("a2g_run_seconds_bucket{le=\"60.0\",tool=\"slow\"}", 1.0),
        ("a2g_peak_memory_bytes_count{tool=\"read_file\"}", 1.0),
        ("a2g_queue_seconds_count", 4.0),
        ("a2g_overhead_seconds_count", 4.0),
        ("a2g_governor_seconds_count", 1.0),
        ("a2g_busy_total", 0.0),
        ("a2g_journal_receipts_total", 4.0),
        ("a2g_undelivered_reports", 0.0),
        ("a2g_oldest_undelivered_report_seconds", 0.0),
        ("a2g_running", 0.0),
        ("a2g_queued", 0.0),
    ] {
        assert!(after.is(series, count), "{series}: {} and not {count}", after.value(series));
    }
    let ran = after.series().filter(|series| series.starts_with("a2g_executions_total"));
    assert_eq!(ran.count(), 3);
    for series in ["a2g_cpu_seconds_total{tool=\"write_file\"}", "a2g_journal_bytes", "a2g_connections"] {
        assert!(after.value(series) > 0.0, "{series}");
    }
    // Four starts and four receipts were written, and what was written with them shares a transaction.
    let commits = after.value("a2g_journal_commit_seconds_count");
    assert!((4.0..=20.0).contains(&commits), "{commits}");
    assert!(after.value("a2g_journal_commit_entries_sum") >= 8.0);
    // Values from callers create no time series.
    assert!(!after.series().any(|series| series.contains("no_such_tool") || series.contains(AGENT)));
    let timed_out = after.value("a2g_run_seconds_sum{tool=\"slow\"}");
    assert!((1.0..10.0).contains(&timed_out), "{timed_out}");
    let overhead = after.value("a2g_overhead_seconds_sum");
    assert!(overhead > 0.0 && overhead < timed_out, "the guests' time is not overhead: {overhead}");
}

#[test]
fn a_scrape_counts_32_active_runs() {
    let catalogue = methods::catalogue();
    let options = Options::new().catalogue(&catalogue).set("executor.concurrent", 8);
    let options = options.set("executor.queue", 24).set("executor.concurrent_per_agent", 8);
    let executor = Executor::start(options.set("executor.queue_per_agent", 24));
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let mut client = executor.client();
            std::thread::spawn(move || client.rpc("a2g/execute", &execute("gate", json!({}))))
        })
        .collect();
    let full = |now: &Exposition| now.is("a2g_running", 8.0) && now.is("a2g_queued", 24.0);
    let busy = scrape_until(&executor, "8 run and 24 wait", full);
    assert!(busy.value("a2g_connections") >= 33.0, "{}", busy.value("a2g_connections"));
    assert!(!busy.series().any(|series| series.starts_with("a2g_executions_total")));
    error(&executor.rpc("a2g/execute", &execute("gate", json!({}))), -32003);
    executor.open_the_gate();
    calls.into_iter().for_each(|call| drop(result(&call.join().unwrap()).clone()));
    let after = scrape_until(&executor, "nobody runs", |now| now.is("a2g_running", 0.0));
    assert!(after.is("a2g_executions_total{tool=\"gate\",status=\"SUCCESS\"}", 32.0));
    assert!(after.is("a2g_queued", 0.0) && after.is("a2g_busy_total", 1.0));
}

#[test]
fn undelivered_reports_and_their_age_are_shown() {
    let mut governor = Governor::start(&[methods::policy()]);
    let executor = Executor::start(Options::new().governor(&governor.http_url()));
    executor.line_with("registered with the governor");
    governor.stop();
    result(&executor.rpc("a2g/execute", &write_file("one")));
    let waits = scrape_until(&executor, "a report waits for a second", |now| {
        now.is("a2g_undelivered_reports", 1.0) && now.value("a2g_oldest_undelivered_report_seconds") > 1.0
    });
    assert!(waits.value("a2g_deliveries_total{outcome=\"failed\"}") >= 1.0);
    assert!(waits.value("a2g_oldest_undelivered_report_seconds") < 120.0);
    governor.restart();
    let gone = scrape_until(&executor, "it is delivered", |now| now.is("a2g_undelivered_reports", 0.0));
    assert!(gone.is("a2g_oldest_undelivered_report_seconds", 0.0));
}

#[test]
fn metrics_follow_the_access_rules_of_the_door() {
    let executor = Executor::start(Options::new());
    let status = |method: &str, headers: &[(&str, &str)]| {
        executor.client().request(method, "/metrics", headers, b"").status
    };
    assert_eq!(status("GET", &[]), 200);
    assert_eq!(status("GET", &[("Host", "rebound.example")]), 403);
    assert_eq!(status("GET", &[("Origin", "https://page.example")]), 403);
    assert_eq!(status("POST", &[]), 405);
    let governor = Governor::start(&[]);
    assert_eq!(HttpClient::connect(governor.address()).request("GET", "/metrics", &[], b"").status, 404);
}

#[test]
fn every_log_line_without_a_terminal_is_json() {
    let governor = Governor::start(&[methods::policy()]);
    let options = Options::new().environment("RUST_LOG", "debug").governor(&governor.http_url());
    let mut executor = Executor::start(options);
    let call = intent("write_file", write("one", "x"));
    let id = call["intent_id"].as_str().unwrap().to_owned();
    result(&executor.rpc("a2g/intent", &call));
    line_of(&executor, &id, "delivered");
    executor.client().post(b"no JSON");
    executor.process().stop();
    let said = log(&executor.process().whole_stderr());
    assert!(
        said.iter().any(|line| line["message"].as_str().unwrap().contains("listens on http://127.0.0.1:"))
    );
    let decided = governor.line_with("decided");
    assert_eq!(lines_of(&log(&decided), &id).len(), 1, "{decided}");
    // A service that cannot start says so in the same way.
    for arguments in [["serve", "--listen", "192.0.2.1:1"], ["governor", "--listen", "192.0.2.1:1"]] {
        let output = run(arguments);
        let said = log(&String::from_utf8(output.stderr).unwrap());
        assert_eq!(said.last().expect("a line")["level"], "ERROR", "{said:?}");
        assert!(!output.status.success());
    }
}

/// A zygote that the kernel lets down says so, and its server says it on.
#[test]
fn zygote_messages_are_logged_by_the_server() {
    if !has_strace() {
        return;
    }
    let home = Executor::start(Options::new().set("executor.isolation", "process")).kill();
    let mut traced = under_strace(&home, "prctl", "--inject=prctl:error=EPERM");
    let mut traced = Process::spawn("traced executor", &mut traced);
    assert_eq!(traced.wait_for_exit().code(), Some(1));
    let said = log(&traced.whole_stderr());
    let line = said.iter().find(|line| line["message"] == "message from the zygote").expect("its line");
    assert!(line["line"].as_str().unwrap().contains("Operation not permitted"), "{line}");
    assert_eq!(said.last().unwrap()["level"], "ERROR");
}

#[test]
fn every_log_line_about_an_intent_has_its_fields() {
    let catalogue = methods::catalogue();
    let options = Options::new().catalogue(&catalogue).environment("RUST_LOG", "debug");
    let executor = Executor::start(options);
    let call = write_file("one");
    let id = id_of(&call);
    result(&executor.rpc("a2g/execute", &call));
    let stages = [("queued", "queue"), ("started", "run"), ("finished", "intent"), ("delivered", "delivery")];
    for (message, span) in stages {
        let line = line_of(&executor, &id, message);
        assert_eq!((&line["agent"], &line["tool"]), (&json!(AGENT), &json!("write_file")), "{line}");
        assert_eq!(line["span"], span, "{line}");
        let door = if span == "delivery" { Value::Null } else { json!("a2g") };
        assert_eq!(line["door"], door, "{line}");
    }
    let end = line_of(&executor, &id, "finished");
    assert_eq!((&end["level"], &end["status"]), (&json!("INFO"), &json!("SUCCESS")), "{end}");
    assert!(["wall_us", "queue_us", "overhead_us"].iter().all(|name| end[name].is_u64()), "{end}");
    let refused = denied();
    expect_blocked(&executor.rpc("a2g/execute", &refused), "verdict_denied");
    let line = line_of(&executor, &id_of(&refused), "refused");
    assert_eq!(line["level"], "WARN", "{line}");
    assert_eq!((&line["agent"], &line["tool"]), (&json!(AGENT), &json!("write_file")), "{line}");
    assert_eq!(line["blocked_by"], "verdict_denied", "{line}");
}

#[test]
fn rust_log_sets_the_log_filter() {
    let messages = |filter: Option<&str>| {
        let mut options = Options::new();
        if let Some(filter) = filter {
            options = options.environment("RUST_LOG", filter);
        }
        // The log filter contains the address, so the port is chosen before the start.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut executor = Executor::start_at(port, options);
        let ran = write_file("one");
        let refused = denied();
        result(&executor.rpc("a2g/execute", &ran));
        expect_blocked(&executor.rpc("a2g/execute", &refused), "verdict_denied");
        executor.process().stop();
        let said = log(&executor.process().whole_stderr());
        let of = |intent: &str| {
            let lines = lines_of(&said, intent).into_iter();
            lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        (of(&id_of(&ran)), of(&id_of(&refused)), said.len())
    };
    let (ran, refused, _) = messages(None);
    assert_eq!(ran, ["finished"], "one line for each execution");
    assert_eq!(refused.len(), 1, "{refused:?}");
    let (ran, refused, _) = messages(Some("warn"));
    assert!(ran.is_empty() && refused.len() == 1, "{ran:?} {refused:?}");
    let (ran, refused, all) = messages(Some("off"));
    assert!(ran.is_empty() && refused.is_empty() && all == 0, "{ran:?} {refused:?}");
    let (ran, ..) = messages(Some("warn,a2g_core::run=debug"));
    assert_eq!(ran, ["queued", "started", "finished"]);
}

/// The arguments, the result and the context of a call, its proof, and the secrets of the configuration and
/// the environment: none of them may be seen.
#[test]
fn no_secret_and_no_argument_is_in_any_log_metric_or_trace() {
    let collector = Collector::start();
    for scheme in ["http", "ws"] {
        let governor = Governor::start_logging(&[methods::policy()], "trace");
        let catalogue = methods::catalogue().add(Tool::command("counted", GATE).schema(json!({
            "type": "object",
            "properties": { "n": { "type": "integer", "enum": [1, 2] } },
            "additionalProperties": false,
        })));
        let url = format!("{scheme}://operator:{CANARY}@{}/jsonrpc", governor.address());
        let options = tracing_options(&collector).environment("RUST_LOG", "trace");
        let options = options.catalogue(&catalogue).governor(&url);
        let executor = Executor::start(options);
        executor.line_with("registered with the governor");
        let mut client = executor.client();

        let secret = write(&format!("{CANARY}.txt"), CANARY);
        let mut asked = intent("write_file", secret.clone());
        asked["context"] = json!({ "session": CANARY, CANARY: "x" });
        let response = client.rpc("a2g/intent", &asked);
        assert_eq!(result(&response)["report"]["status"], "SUCCESS", "{response}");
        let file = json!({ "path": format!("/workspace/{CANARY}.txt") });
        let read = client.rpc("a2g/execute", &execute("read_file", file));
        assert!(result(&read).to_string().contains(CANARY), "the guest saw it: {read}");
        // Failing calls, refused calls, and malformed requests.
        let missing = json!({ "path": format!("/workspace/{CANARY}/missing") });
        error(&client.rpc("a2g/execute", &execute("read_file", missing)), -32001);
        let outside = intent("write_file", json!({ "path": format!("/etc/{CANARY}"), "content": CANARY }));
        expect_blocked(&client.rpc("a2g/intent", &outside), "verdict_denied");
        let mut proven = execute("write_file", secret.clone());
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let token = format!("{}.{}.{}", part("{\"alg\":\"EdDSA\"}"), part(CANARY), part(CANARY));
        proven["proof"] = json!(token);
        assert!(client.rpc("a2g/execute", &proven).get("error").is_some());
        for wrong in [json!({ "n": CANARY }), json!({ CANARY: [CANARY] }), json!({ "n": [{ CANARY: 1 }] })] {
            assert!(client.rpc("a2g/execute", &execute("counted", wrong)).get("error").is_some());
        }
        for malformed in [
            format!("{{\"jsonrpc\": \"2.0\", \"id\": 1, \"{CANARY}\": {CANARY}"),
            format!("{{\"{CANARY}\": 1, \"{CANARY}\": 2}}"),
            format!("{{\"jsonrpc\": \"2.0\", \"method\": \"x\", \"params\": [\"{CANARY}\"]}}"),
        ] {
            client.post(malformed.as_bytes());
        }
        let bearer = format!("Bearer {CANARY}");
        client.post_with(&[("Content-Type", "application/json"), ("Authorization", &bearer)], b"[]");
        let response = client.request("GET", "/metrics", &[], b"").text();
        line_of(&executor, asked["intent_id"].as_str().unwrap(), "delivered");
        collector.spans_of(asked["intent_id"].as_str().unwrap(), 4);

        for hidden in [CANARY, &part(CANARY), &token, &part(&format!("operator:{CANARY}"))] {
            let own = executor.stderr();
            let governors = governor.stderr();
            // The bundled governor's log is there to say why it decided.
            let governors = governors.lines().filter(|line| !line.contains("\"message\":\"decided\""));
            let line = own.lines().chain(governors).find(|line| line.contains(hidden));
            assert!(line.is_none(), "over {scheme}: {line:?}");
            assert!(!response.contains(hidden), "{response}");
            let sent = collector.bytes();
            assert!(
                !sent.windows(hidden.len()).any(|part| part == hidden.as_bytes()),
                "a trace holds {hidden}"
            );
        }
        assert!(executor.stderr().contains("\"level\":\"DEBUG\""), "details are logged");
    }
}

fn tracing_options(collector: &Collector) -> Options {
    tracing_options_to(collector.url())
}

fn tracing_options_to(url: &str) -> Options {
    let options = Options::new().environment("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    options.environment("OTEL_BSP_SCHEDULE_DELAY", "50")
}

#[test]
fn each_intent_is_one_trace_from_queue_to_delivery() {
    let collector = Collector::start();
    let options = tracing_options(&collector).environment("OTEL_EXPORTER_OTLP_HEADERS", "x-key=1");
    // Exported spans do not depend on the log filter.
    let executor = Executor::start(options.environment("RUST_LOG", "a2g_executor::cli=info"));
    let call = write_file("one");
    let id = id_of(&call);
    result(&executor.rpc("a2g/execute", &call));
    let spans = collector.spans_of(&id, 4);
    let named =
        |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}"));
    let root = named("intent");
    assert!(root.parent.is_empty() && root.service == "a2g-executor", "{root:?}");
    for (name, value) in [("a2g.agent", AGENT), ("a2g.tool", "write_file"), ("a2g.status", "SUCCESS")] {
        assert_eq!(root.attribute(name), value, "{root:?}");
    }
    for part in ["queue", "run", "delivery"] {
        assert_eq!(named(part).parent, root.id, "{part} is a part of the intent");
        assert!(!named(part).failed);
    }
    assert!(named("run").nanoseconds > 0 && named("run").nanoseconds <= root.nanoseconds);
    assert_eq!(spans.len(), 4);
    // The trace of an MCP client is a link. A context that is not valid is none.
    for (trace, links) in [("4bf92f3577b34da6a3ce929d0e0e4736", 1), ("00000000000000000000000000000000", 0)] {
        let mut message = mcp::call(1, "write_file", &write("mcp", "x"));
        message["params"]["_meta"]["traceparent"] = json!(format!("00-{trace}-00f067aa0ba902b7-01"));
        let answer = mcp::post(&mut executor.client(), &message, &[]).json();
        let intent = answer["result"]["_meta"]["a2g/intent_id"].as_str().expect("an id").to_owned();
        let spans = collector.spans_of(&intent, 4);
        let root = spans.iter().find(|span| span.name == "intent").expect("the root");
        assert_eq!(root.links, vec![(trace.to_owned(), "00f067aa0ba902b7".to_owned()); links]);
    }
    // A repeat and a refusal are spans of their own, and change nothing of the one that ran.
    result(&executor.rpc("a2g/execute", &call));
    let spans = collector.spans_of(&id, 5);
    assert_eq!(spans.iter().filter(|span| span.id == root.id).count(), 1);
    let refused = denied();
    expect_blocked(&executor.rpc("a2g/execute", &refused), "verdict_denied");
    assert_eq!(collector.spans_of(&id_of(&refused), 1)[0].attribute("a2g.blocked_by"), "verdict_denied");
    let failed = execute("read_file", json!({ "path": "/workspace/none" }));
    error(&executor.rpc("a2g/execute", &failed), -32001);
    let spans = collector.spans_of(&id_of(&failed), 4);
    assert!(spans.iter().any(|span| span.name == "intent" && span.failed), "{spans:?}");
}

#[test]
fn a_delivery_after_a_restart_belongs_to_the_same_trace() {
    let collector = Collector::start();
    let mut governor = Governor::start(&[methods::policy()]);
    let executor = Executor::start(tracing_options(&collector).governor(&governor.http_url()));
    executor.line_with("registered with the governor");
    governor.stop();
    let call = write_file("one");
    result(&executor.rpc("a2g/execute", &call));
    let spans = collector.spans_of(&id_of(&call), 4);
    assert!(spans.iter().any(|span| span.name == "delivery" && span.failed), "{spans:?}");
    let root = spans.iter().find(|span| span.name == "intent").unwrap().id.clone();
    let home = executor.kill();
    governor.restart();
    let _again = Executor::start_in(home);
    eventually("it is delivered by the next process", || {
        let spans = collector.spans_of(&id_of(&call), 5);
        spans.into_iter().find(|span| span.name == "delivery" && !span.failed && span.parent == root)
    });
}

#[test]
fn a_tls_collector_must_present_a_trusted_certificate() {
    let (collector, certificate) = Collector::start_with_tls();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("collector.pem");
    std::fs::write(&file, certificate).unwrap();
    let call = write_file("one");
    let mut distrusting = Executor::start(tracing_options(&collector));
    result(&distrusting.rpc("a2g/execute", &call));
    distrusting.line_with("the collector does not accept traces");
    distrusting.process().terminate();
    distrusting.process().wait_for_exit();
    assert!(collector.spans().is_empty());
    let trusting =
        tracing_options(&collector).environment("OTEL_EXPORTER_OTLP_CERTIFICATE", file.to_str().unwrap());
    let trusting = Executor::start(trusting);
    let call = write_file("one");
    result(&trusting.rpc("a2g/execute", &call));
    collector.spans_of(&id_of(&call), 4);
}

#[test]
fn pending_traces_are_flushed_at_shutdown() {
    let collector = Collector::start();
    let options = tracing_options(&collector).environment("OTEL_BSP_SCHEDULE_DELAY", "3600000");
    let mut executor = Executor::start(options);
    let call = write_file("one");
    result(&executor.rpc("a2g/execute", &call));
    line_of(&executor, &id_of(&call), "finished");
    assert!(collector.spans().is_empty());
    executor.process().stop();
    collector.spans_of(&id_of(&call), 4);
}

/// A collector that takes connections and never answers holds up neither runs nor the end of the process.
#[test]
fn an_absent_or_silent_collector_delays_nothing() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [silent.local_addr().unwrap(), away] {
        let mut executor = Executor::start(tracing_options_to(&format!("http://{address}")));
        let mut client = executor.client();
        let began = Instant::now();
        for _ in 0..20 {
            result(&client.rpc("a2g/execute", &write_file("one")));
        }
        assert!(began.elapsed() < Duration::from_secs(15), "{address}: {:?}", began.elapsed());
        let began = Instant::now();
        executor.process().stop();
        assert!(began.elapsed() < Duration::from_secs(15), "{address}: {:?}", began.elapsed());
        log(&executor.process().whole_stderr());
    }
    let collector = Collector::start();
    for (name, value) in [("OTEL_SDK_DISABLED", "true"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")] {
        let executor = Executor::start(tracing_options(&collector).environment(name, value));
        result(&executor.rpc("a2g/execute", &write_file("one")));
        assert!(collector.spans().is_empty());
    }
}
