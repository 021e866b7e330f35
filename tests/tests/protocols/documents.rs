//! The examples of the protocol's own document, as it writes them.

use harness::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The JSON examples by the heading above them, and the whole text.
fn document() -> Option<(BTreeMap<String, Value>, String)> {
    let folder = seeds()?;
    let path = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let path = path.into_iter().find(|path| path.to_string_lossy().contains("/000_")).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut examples = BTreeMap::new();
    let mut heading = String::new();
    let mut block = None::<String>;
    for line in text.lines() {
        match (&mut block, line) {
            (None, "```json") => block = Some(String::new()),
            (Some(json), "```") => {
                examples.insert(heading.clone(), serde_json::from_str(json).unwrap());
                block = None;
            }
            (Some(json), line) => *json += line,
            (None, line) => {
                if let Some(title) = line.strip_prefix("## ") {
                    title.clone_into(&mut heading);
                }
            }
        }
    }
    assert_eq!(examples.len(), 6, "{:?}", examples.keys());
    Some((examples, text))
}

/// The verdict example, valid until later.
fn verdict_of_today(examples: &BTreeMap<String, Value>) -> Value {
    let mut verdict = examples["G2A_VERDICT"]["result"].clone();
    verdict["expires_at"] = json!(in_seconds(3600));
    verdict
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Compares a report with the example: the same values, except for what is measured.
fn assert_is_the_report(report: &Value, example: &Value) {
    let example = &example["params"];
    for member in ["agent_did", "intent_id", "status", "result"] {
        assert_eq!(report[member], example[member], "{member}");
    }
    assert_eq!(keys(&report["metrics"]), keys(&example["metrics"]));
    assert!(report["metrics"]["duration_ms"].is_u64() && report["metrics"]["memory_used_mb"].is_u64());
    assert!(report["metrics"]["cpu_percent"].is_number());
}

#[test]
fn the_documented_intent_produces_the_documented_report() {
    let Some((examples, _)) = document() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let options = Options::new().mount("/tmp", temporary.path()).scope(&["/tmp/**", "/workspace/**"]);
    let executor = Executor::start(options);
    let intent = &examples["A2G_INTENT"]["params"];

    let as_written = json!({ "intent": intent, "verdict": examples["G2A_VERDICT"]["result"] });
    let expired = executor.rpc("a2g/execute", &as_written);
    assert!(expect_blocked(&expired, "verdict_expired").contains("2024-01-15T10:05:00Z"), "{expired}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);

    let today = json!({ "intent": intent, "verdict": verdict_of_today(&examples) });
    let response = executor.rpc("a2g/execute", &today);
    let report = result(&response);
    assert_is_the_report(report, &examples["A2G_REPORT"]);
    assert_eq!(std::fs::read_to_string(temporary.path().join("test.txt")).unwrap(), "Hello, World!");
    let limits = &report["usage"]["limits"];
    for (limit, granted) in [("max_memory_mb", 50), ("max_cpu_percent", 10), ("timeout_seconds", 30)] {
        assert_eq!(limits[limit]["granted"], granted, "{limits}");
        assert_eq!(limits[limit]["set_by"], "verdict", "{limits}");
    }
    assert_eq!(limits["filesystem_scope"]["granted"], json!(["/tmp/**", "/workspace/**"]));
    assert_eq!(limits["network_allowed"]["granted"], false);
    assert_eq!(executor.wait_for_reports(1)[0], *report);
}

#[test]
fn the_gateway_sends_the_documented_intent_and_report() {
    let Some((examples, _)) = document() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let verdict = verdict_of_today(&examples);
    let answer = verdict.clone();
    let governor = FakeGovernor::start(move |method, _| {
        Reply::Result(if method == "a2g/intent" { answer.clone() } else { json!({}) })
    });
    let options = Options::new().mount("/tmp", temporary.path()).scope(&["/tmp/**", "/workspace/**"]);
    let executor = Executor::start(options.governor(&governor.url()));
    // The request of the document, byte for byte as it is written.
    let request = examples["A2G_INTENT"].to_string();
    let response = executor.client().post(request.as_bytes()).json();
    assert_eq!(response["id"], "req-001");
    let answer = result(&response);
    for member in keys(&verdict) {
        assert_eq!(answer[member], verdict[member], "{member}");
    }
    assert_is_the_report(&answer["report"], &examples["A2G_REPORT"]);

    let params = |method: &str| {
        let seen = governor.seen().into_iter();
        seen.filter(|(called, _)| called == method).map(|(_, params)| params).next_back()
    };
    assert_eq!(params("a2g/intent").unwrap(), examples["A2G_INTENT"]["params"]);
    let report = eventually("the report", || params("a2g/report"));
    assert_is_the_report(&report, &examples["A2G_REPORT"]);
    let registration = eventually("the registration", || params("a2g/register"));
    let metadata = &examples["A2G_REGISTER"]["params"]["metadata"];
    assert_eq!(keys(&registration["metadata"]), keys(metadata), "{registration}");
    assert!(registration["capabilities_requested"].as_array().unwrap().contains(&json!("write_file")));
}

#[test]
fn the_documented_policy_takes_effect_verbatim() {
    let Some((examples, _)) = document() else { return };
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let policy = &examples["G2A_POLICY"];
    assert_eq!(client.post(policy.to_string().as_bytes()).status, 204);
    let mut call = execute("read_file", json!({ "path": "/workspace/x" }));
    call["intent"]["agent_did"] = policy["params"]["agent_did"].clone();
    assert!(expect_blocked(&client.rpc("a2g/execute", &call), "standing_policy").contains("2024-01-15"));
    let mut manifest = manifest();
    manifest["max_cpu_percent"] = json!(90);
    let intent = intent("write_file", json!({ "path": "/workspace/x", "content": "rm -rf" }));
    let mut call = approved(intent, &manifest);
    call["intent"]["agent_did"] = policy["params"]["agent_did"].clone();
    let response = client.rpc("a2g/execute", &call);
    let cpu = &result(&response)["usage"]["limits"]["max_cpu_percent"];
    assert_eq!((&cpu["granted"], &cpu["set_by"]), (&json!(50), &json!("standing_policy")));
}

#[test]
fn the_governor_accepts_the_documented_registration_and_denial() {
    let Some((examples, _)) = document() else { return };
    let governor = Governor::start(&[]);
    let registered = HttpClient::to_governor(governor.address())
        .post(examples["A2G_REGISTER"].to_string().as_bytes())
        .json();
    assert_eq!(registered["id"], "register-001");
    assert_eq!(result(&registered)["accepted"], true);
    let reported = HttpClient::to_governor(governor.address())
        .post(examples["A2G_REPORT"].to_string().as_bytes())
        .json();
    assert_eq!(reported["id"], "report-001");
    result(&reported);
    assert_eq!(governor.reports(), [examples["A2G_REPORT"]["params"].clone()]);

    let mut intent = examples["A2G_INTENT"]["params"].clone();
    intent["arguments"]["path"] = json!("/tmp/../etc/passwd");
    let denied = governor.rpc("a2g/intent", &intent);
    let denial = error(&denied, -32000);
    let example = &examples["Error Response"]["error"];
    assert_eq!(keys(denial), keys(example), "{denied}");
    assert_eq!(keys(&denial["data"]), keys(&example["data"]), "{denied}");
    assert_eq!(denial["data"]["intent_id"], intent["intent_id"]);
}

#[test]
fn the_documented_error_codes_have_the_documented_names() {
    let Some((_, text)) = document() else { return };
    let table: BTreeMap<i64, String> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?.parse().ok()?, cells.next()?.replace(' ', "")))
        })
        .collect();
    assert_eq!(table.len(), 9, "{table:?}");
    let discovered = Executor::start(Options::new()).rpc("rpc.discover", &json!({}));
    for (name, described) in result(&discovered)["components"]["errors"].as_object().unwrap() {
        if let Some(named) = table.get(&described["code"].as_i64().unwrap()) {
            assert_eq!(name, named);
        }
    }
}
