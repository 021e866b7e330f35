//! Values that change while the server runs, sources that are missing, and runs that are parts of others: which value a
//! request gets, and which none.

use super::*;
use harness::{eventually, id_of};

/// Another value.
const OTHER: &str = "0th3r-value-of-the-secret-77ab";

/// The request that a server has seen since the last look.
fn only_request(api: &Api) -> String {
    let mut requests = api.take_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    requests.remove(0)
}

#[test]
fn a_source_is_read_again_when_it_is_due() {
    let api = Api::answering(OK);
    let fitting = json!({ "requests": [get(&api.at("web.test"), "/v1/1")] });
    for (source, after_change, after_hangup) in [
        (json!({}), OTHER, OTHER),
        // As long as `refresh_seconds`, or until SIGHUP.
        (json!({ "file": null, "command": ["/bin/cat", api.secret_file()] }), CANARY, OTHER),
        (json!({ "file": null, "env": "A2G_TEST_SECRET" }), CANARY, CANARY),
    ] {
        api.write(CANARY, 0o600);
        let options = api.options(&[], &source).environment("A2G_TEST_SECRET", CANARY);
        let mut served = Served::start(options, [tool()]);
        let first = served.run(fitting.clone());
        assert!(only_request(&api).contains(CANARY), "{source}: {first}");
        api.write(OTHER, 0o600);
        wait_for_a_change();
        let second = served.run(fitting.clone());
        assert!(only_request(&api).contains(after_change), "{source}: {second}");
        served.executor.process().hang_up();
        served.executor.line_with("catalogue reloaded");
        wait_for_a_change();
        let third = served.run(fitting.clone());
        assert!(only_request(&api).contains(after_hangup), "{source}: {third}");
        let version = |report: &Value| report["usage"]["secrets"][0]["versions"][0].clone();
        let is_first = [&second, &third].map(|report| version(report) == version(&first));
        assert_eq!(is_first, [after_change == CANARY, after_hangup == CANARY], "{source}");
    }
}

#[test]
fn a_missing_source_fails_the_call_and_not_the_start() {
    let api = Api::answering(OK);
    let fitting = || [get(&api.at("web.test"), "/v1/1")];
    let no_token = format!("https://{}/no-token", api.at("other.test"));
    let oauth = json!({ "token_url": no_token, "client_id": "a2g", "client_secret_file": api.secret_file() });
    for source in [
        json!({ "file": api.folder.path().join("missing") }),
        json!({ "file": null, "env": "A2G_NO_SUCH_VARIABLE" }),
        json!({ "file": null, "command": ["/no/such/program"] }),
        json!({ "file": null, "oauth": oauth }),
    ] {
        let bench = api.bench(&source);
        let report = send(&bench, &fitting()).send().success();
        assert_eq!(report.reasons(), ["secret_unavailable"], "{source}: {report:?}");
        assert!(report.denied()[0].0.starts_with("secret key for https"), "{source}: {report:?}");
        let requests = api.take_requests();
        assert!(requests.iter().all(|request| request.starts_with("POST /no-token ")), "{requests:?}");
    }
    std::fs::remove_file(api.secret_file()).expect("a file");
    let bench = api.bench(&json!({}));
    let refused = send(&bench, &fitting()).send().success();
    assert_eq!(refused.reasons(), ["secret_unavailable"], "{refused:?}");
    api.write(CANARY, 0o600);
    wait_for_a_change();
    let report = send(&bench, &fitting()).send().success();
    assert!(only_request(&api).contains(CANARY), "it works once the file is there: {report:?}");
}

#[test]
fn each_turn_of_a_session_gets_the_value_of_then() {
    let api = Api::answering(OK);
    let web = api.at("web.test");
    let options = api.options(&[], &json!({ "placeholder_env": "KEY" }));
    let served = Served::start(options, [tool().declare("session", json!(true))]);
    let turn = |session: &str| {
        let requests = json!([get(&web, "/v1/1"), get(&web, "/v2/{KEY}")]);
        let arguments = json!({ "environment": ["KEY"], "requests": requests });
        let mut call = approved(intent(TOOL, arguments), &with_network());
        call["session"] = json!(session);
        served.send(&call)
    };
    let first = turn("new");
    api.write(OTHER, 0o600);
    wait_for_a_change();
    let second = turn(first["session"]["handle"].as_str().expect("a handle"));
    let requests = api.take_requests();
    assert_eq!(requests.len(), 4, "{requests:?}");
    assert!(requests[0].contains(CANARY) && requests[2].contains(OTHER), "{requests:?}");
    assert_ne!(first["usage"]["secrets"][0]["versions"], second["usage"]["secrets"][0]["versions"]);
    for report in [&first, &second] {
        let used = &report["usage"]["secrets"][0];
        assert_eq!((&used["uses"], &used["placeholders"]), (&json!(1), &json!(1)), "{report}");
    }
    // The guest has one environment for all turns.
    let path = |request: &String| request.split(' ').nth(1).unwrap_or_default().to_owned();
    assert!(path(&requests[1]).starts_with("/v2/a2g-placeholder-key-"), "{requests:?}");
    assert_eq!(path(&requests[1]), path(&requests[3]));
}

#[test]
fn a_run_gets_nothing_of_the_secrets_of_its_calls() {
    let api = Api::answering(OK);
    let web = api.at("web.test");
    let parent = Tool::typed_bytes("fan_out", guest("fan_out")).calls(&[TOOL]);
    let served = Served::start(api.options(&[], &json!({})), [tool(), parent]);
    let nested = json!({ "tool": TOOL, "arguments": { "requests": [get(&web, "/v1/1")] } });
    let call = approved(intent("fan_out", json!({ "calls": [nested] })), &with_network());
    let report = served.send(&call);
    let outcome = &report["result"]["outcomes"][0]["result"];
    assert_eq!(outcome[0]["status"], 200, "{report}");
    assert!(only_request(&api).contains(&format!("authorization: Bearer {CANARY}\r\n")), "{report}");
    assert!(report["usage"].get("secrets").is_none(), "{report}");
    let id = &report["calls"]["list"][0]["intent_id"];
    let of_call = eventually("the call has a report", || {
        let status = served.executor.rpc("a2g/status", &json!({ "intent_id": id }));
        status["result"].get("report").cloned()
    });
    assert_eq!(of_call["usage"]["secrets"][0]["uses"], 1, "{of_call}");
}

#[test]
fn the_list_shows_who_used_a_secret_last_and_how_old_it_is() {
    let api = Api::answering(OK);
    let served = Served::start(api.options(&[], &json!({ "placeholder_env": "KEY" })), [tool()]);
    let listed = || {
        let output = served.executor.home().run(&["secret", "list"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        // Lines that are wrapped, as one.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let unused = listed();
    assert!(unused.contains("last use not in the last 0 runs"), "{unused}");
    assert!(unused.contains("variable KEY"), "{unused}");
    let call = |path: &str| {
        let requests = json!({ "requests": [get(&api.at("web.test"), path)] });
        approved(intent(TOOL, requests), &with_network())
    };
    let used = call("/v1/1");
    let report = served.send(&used);
    served.send(&call("/v2/1"));
    let version = report["usage"]["secrets"][0]["versions"][0].as_str().expect("a version");
    let last = format!("s ago by `{TOOL}`, run {}, version {version}", id_of(&used));
    let shown = listed();
    assert!(shown.contains(&last), "{shown}");
    assert!(shown.contains("value the file changed "), "{shown}");
    Canary::new(CANARY).assert_not_in("the list", shown.as_bytes());
}
