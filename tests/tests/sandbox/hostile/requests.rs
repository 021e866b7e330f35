//! Tools that declare their requests, and guests that try to send others.
//!
//! The guest (`tests/guests/http`) sends what its arguments say. What a process sends comes over its relay to
//! the server, and what an inline run sends comes directly.

use super::bench::{Bench, Call, Report};
use super::peer::{Peer, at, options};
use harness::{
    AGENT, Catalogue, Executor, FakeGovernor, Reply, Tool, guest, guest_wasip2, intent, manifest, result,
    tools, verdict,
};
use serde_json::{Value, json};

const TOOL: &str = "hostile_http";

/// Paths that are not declared, of which some lead to a declared one or away from it if a server reads them
/// in another way.
const PATHS: [&str; 32] = [
    "/",
    "/items",
    "/items/",
    "/items/1/2",
    "/items/1/",
    "/ITEMS/1",
    "/v1/x",
    "//items/1",
    "/items//1",
    "/./items/1",
    "/x/../items/1",
    "/items/.",
    "/items/..",
    "/items/../admin",
    "/items/%2e%2e",
    "/items/.%2e",
    "/items/..;",
    "/items/..;x=1",
    "/items/;x",
    "/items/..%20",
    "/items/..%2fadmin",
    "/items/..%5cadmin",
    "/items/..\\admin",
    "/items/1%00",
    "/items/1%0d%0ax:y",
    "/items/%252e%252e",
    "/items/%61",
    "/items/%c0%ae%c0%ae",
    "/items/%e9",
    "/items/1%zz",
    "/items/admin%3Fx",
    "/items/..%EF%BC%8F..",
];
/// Methods that are not declared for the path.
const METHODS: [&str; 6] = ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "get"];

/// The guest, which declares two requests to a peer.
fn declaring(web: &Peer) -> Tool {
    let requests = [format!("GET http://{}/items/{{id}}", at(web)), format!("POST http://{}/v1/**", at(web))];
    Tool::typed_bytes(TOOL, guest(TOOL)).network().requests(&requests)
}

/// A call that sends these requests.
fn send<'a>(bench: &'a Bench, requests: &Value) -> Call<'a> {
    let call = bench.call(TOOL).grant("network_allowed", true).grant("timeout_seconds", 30);
    call.arguments(json!({ "requests": requests }))
}

fn answers(report: &Report) -> &[Value] {
    report.0["result"].as_array().unwrap_or_else(|| panic!("no answers: {report:?}"))
}

#[test]
fn a_request_that_is_not_declared_is_not_sent() {
    for isolation in ["process", "inline"] {
        let web = Peer::page("x");
        let other = Peer::page("not declared");
        let online = options(&[&web, &other]).set("executor.isolation", isolation);
        let bench = Bench::start_tools(online, [declaring(&web)]);
        let refuse = |asked: &[Value], reason: &str| {
            let report = send(&bench, &json!(asked)).send().success();
            for (asked, answer) in asked.iter().zip(answers(&report)) {
                assert!(answer.to_string().contains("HttpRequestDenied"), "{isolation}: {asked}: {answer}");
            }
            assert_eq!(report.reasons(), vec![reason; asked.len()], "{isolation}: {report:?}");
        };
        let undeclared = "request_not_declared";
        refuse(&PATHS.map(|path| json!({ "authority": at(&web), "path": path })), undeclared);
        let by = |method: &str| json!({ "authority": at(&web), "path": "/items/1", "method": method });
        refuse(&METHODS.map(by), undeclared);
        refuse(
            &[
                json!({ "authority": at(&web), "path": "/items/1", "scheme": "https" }),
                json!({ "authority": at(&other), "path": "/items/1" }),
                json!({ "authority": "web.test", "path": "/items/1" }),
            ],
            undeclared,
        );
        let elsewhere = format!("a.test:{}", web.port());
        refuse(&[json!({ "authority": elsewhere, "path": "/items/1" })], "domain_not_allowed");
        assert_eq!((web.connections(), other.connections()), (0, 0), "{isolation}");

        let declared = json!([
            { "authority": at(&web), "path": "/items/1?x=/../y" },
            { "authority": format!("WEB.test.:{}", web.port()), "path": "/items/a%20b" },
            { "authority": at(&web), "path": "/v1/a/b", "method": "POST", "body": "b" },
        ]);
        let report = send(&bench, &declared).send().success();
        assert!(answers(&report).iter().all(|answer| answer["status"] == 200), "{isolation}: {report:?}");
        assert!(report.denied().is_empty(), "{report:?}");
        let network = report.in_force("network");
        assert_eq!(network["allowed_domains"], json!([{ "pattern": "web.test", "set_by": "tool" }]));
        assert_eq!(
            network["allowed_requests"],
            json!([
                { "pattern": format!("GET http://{}/items/{{id}}", at(&web)), "set_by": "tool" },
                { "pattern": format!("POST http://{}/v1/**", at(&web)), "set_by": "tool" },
            ])
        );
    }
}

#[test]
fn a_request_has_no_field_that_names_another_request() {
    let web = Peer::page("x");
    let bench = Bench::start_tools(options(&[&web]), [declaring(&web)]);
    let overrides = [
        "X-HTTP-Method-Override",
        "x_http_method_override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X-HTTP-Path-Override",
        "X-Override-URL",
        "X-Original-URL",
        "X-Original-URI",
        "X-Original-Host",
        "X-Original-Method",
        "X-Envoy-Original-Path",
        "x_rewrite-url",
        "x.rewrite.url",
        "X-Forwarded",
        "X-Forwarded-Host",
        "X-Forwarded-Prefix",
        "X-Forwarded-URI",
        "X-Forwarded-Path",
        "X-Forwarded-Method",
        "X-Host",
        "Forwarded",
        "Request-URI",
        "Destination",
        "X-HTTP-MethodOverride",
        "X-HTTPMethodOverride",
        "HTTP-Method-Override",
        "X-HTTP-DestinationURL",
        "X-Hostname",
        "X-VHost",
        "Disguised-Host",
        "X-Script-Name",
        "X-MS-Rename-Source",
        "X-MS-Copy-Source",
        "X-Goog-Copy-Source",
        "X-Amz-Copy-Source",
        "X-Copy-From",
    ];
    let mut fields = overrides.map(|name| [name, "/admin"]).to_vec();
    let kept = ["x-kept", "x-path-id", "x-hosted", "x-source", "urls", "path"];
    fields.extend(kept.map(|name| [name, "1"]));
    let call = send(&bench, &json!([{ "authority": at(&web), "path": "/items/1", "fields": fields }]));
    assert_eq!(answers(&call.send().success())[0]["status"], 200);
    let request = web.requests().remove(0);
    for name in kept {
        assert!(request.contains(&format!("\r\n{name}: 1\r\n")), "{name}: {request}");
    }
    assert!(!request.contains("admin"), "{request}");
}

#[test]
fn a_staged_run_sends_and_shows_no_field_that_names_another_request() {
    let web = Peer::page("x");
    let any = Tool::typed_bytes(TOOL, guest(TOOL)).network();
    let bench = Bench::start_tools(options(&[&web]).set("ceilings.held_requests", 4), [any]);
    let fields = json!([["x-http-method-override", "DELETE"], ["x-original-url", "/admin"], ["x-kept", "1"]]);
    let requests = json!([
        { "authority": at(&web), "path": "/1", "fields": fields },
        { "authority": at(&web), "path": "/2", "method": "POST", "body": "x", "fields": fields },
    ]);
    let run = send(&bench, &requests).condition("effects:staged").send().staged();
    let shown = run.0["usage"]["effects"]["requests"][0]["fields"].to_string();
    assert!(shown.contains("x-kept") && !shown.contains("x-original-url"), "{run:?}");
    bench.decide("a2g/commit", &run);
    let sent = web.requests();
    let lines = ["GET /1 HTTP/1.1\r\n", "POST /2 HTTP/1.1\r\n"];
    assert_eq!(sent.len(), lines.len(), "{sent:?}");
    for (request, line) in sent.iter().zip(lines) {
        assert!(request.starts_with(line) && request.contains("\r\nx-kept: 1\r\n"), "{request}");
        assert!(!request.contains("DELETE") && !request.contains("/admin"), "{request}");
    }
}

#[test]
fn a_tool_that_declares_requests_opens_no_connection() {
    let peer = Peer::silent();
    let declared = [format!("GET http://{}/**", at(&peer))];
    let module = guest_wasip2("hostile_tcp");
    let tool = Tool::typed_bytes("hostile_tcp", module).network().requests(&declared);
    let bench = Bench::start_tools(options(&[&peer]), [tool]);
    let call = bench.call("hostile_tcp").grant("network_allowed", true).grant("timeout_seconds", 30);
    let report = call.arguments(json!({ "steps": [{ "connect": at(&peer) }] })).send().success();
    assert!(report.0["result"][0]["error"].is_string(), "{report:?}");
    let tried = format!("tcp://{}", at(&peer));
    assert_eq!(report.denied(), [(&*tried, "request_not_declared", 1)], "{report:?}");
    assert_eq!(peer.connections(), 0);
}

#[test]
fn a_request_that_is_not_declared_waits_for_no_commit() {
    let web = Peer::page("x");
    let bench = Bench::start_tools(options(&[&web]).set("ceilings.held_requests", 4), [declaring(&web)]);
    let requests = json!([
        { "authority": at(&web), "path": "/admin", "method": "POST", "body": "x" },
        { "authority": at(&web), "path": "/v1/a", "method": "POST", "body": "x", "fields": [["x-original-url", "/admin"]] },
        { "authority": at(&web), "path": "/items/1" },
    ]);
    let run = send(&bench, &requests).condition("effects:staged").send().staged();
    assert_eq!(run.reasons(), ["request_not_declared"], "{run:?}");
    assert_eq!((&answers(&run)[1]["status"], &answers(&run)[2]["status"]), (&json!(202), &json!(200)));
    let waiting = run.0["usage"]["effects"]["requests"].as_array().map(Vec::len);
    assert_eq!((waiting, web.requests().len()), (Some(1), 1), "{run:?}");
    bench.decide("a2g/commit", &run);
    let sent = web.requests();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent[1].starts_with("POST /v1/a HTTP/1.1\r\n") && !sent[1].contains("admin"), "{sent:?}");
}

#[test]
fn each_turn_of_a_session_sends_only_declared_requests() {
    let web = Peer::page("x");
    let tool = declaring(&web).declare("session", json!(true));
    let bench = Bench::start_tools(options(&[&web]).set("executor.isolation", "process"), [tool]);
    let requests = json!([
        { "authority": at(&web), "path": "/items/1" },
        { "authority": at(&web), "path": "/admin" },
    ]);
    let mut session = "new".to_owned();
    for _turn in 0..2 {
        let call = send(&bench, &requests);
        let intent = call.intent();
        let mut parameters = call.parameters();
        parameters["session"] = json!(session);
        let answer = bench.executor.rpc("a2g/execute", &parameters);
        bench.books.note(intent, &answer);
        let report = Report(result(&answer).clone());
        assert_eq!(answers(&report)[0]["status"], 200, "{report:?}");
        assert_eq!(report.reasons(), ["request_not_declared"], "{report:?}");
        session = report.0["session"]["handle"].as_str().expect("a handle").to_owned();
    }
    assert_eq!(web.requests().len(), 2);
    let end = json!({ "agent_did": AGENT, "session": session });
    assert_eq!(result(&bench.executor.rpc("a2g/session/end", &end))["ended"], true);
}

#[test]
fn a_nested_call_sends_only_what_its_own_tool_declares() {
    let web = Peer::page("x");
    let governor = FakeGovernor::deciding(|call| {
        let mut limits = manifest();
        limits["network_allowed"] = json!(true);
        Reply::Result(verdict(call["intent_id"].as_str().expect("an id"), &limits))
    });
    let parent = Tool::typed_bytes("fan_out", guest("fan_out")).network().calls(&["*"]);
    let catalogue = Catalogue::empty().add(parent).add(declaring(&web));
    let executor = Executor::start(options(&[&web]).catalogue(&catalogue).governor(&governor.url()));
    let requests = json!([
        { "authority": at(&web), "path": "/items/1" },
        { "authority": at(&web), "path": "/admin" },
    ]);
    let call = json!({ "tool": TOOL, "arguments": { "requests": requests } });
    let answer = executor.rpc("a2g/intent", &intent("fan_out", json!({ "calls": [call] })));
    let outcome = &result(&answer)["report"]["result"]["outcomes"][0]["result"];
    assert_eq!(outcome[0]["status"], 200, "{answer}");
    assert!(outcome[1].to_string().contains("HttpRequestDenied"), "{answer}");
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn the_error_names_the_request_and_the_key() {
    let web = Peer::page("x");
    let module = std::fs::read(tools().join("http_fetch/tool.wasm")).expect("a tool");
    let declared = [format!("GET http://{}/items/{{id}}", at(&web))];
    let tool = Tool::typed_bytes("http_fetch", module).network().requests(&declared);
    let bench = Bench::start_tools(options(&[&web]), [tool]);
    let call = bench.call("http_fetch").grant("network_allowed", true).grant("timeout_seconds", 30);
    let url = format!("http://{}/admin", at(&web));
    let report = call.arguments(json!({ "url": url })).send().failure("network_denied");
    let sentence = report.sentence();
    let refused = format!("`GET {url}` was refused");
    assert!(sentence.contains(&refused) && sentence.contains("`capabilities.requests`"), "{sentence}");
}
