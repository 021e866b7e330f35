//! Guests that try to use more of the network than was granted, and hostile servers.
//!
//! The guest (`tests/guests/http`) sends what its arguments say over `wasi:http`.

use super::bench::{Bench, Report};
use super::peer::{
    LIFTED_FOR_ANOTHER_PORT, NON_PUBLIC, Peer, REFUSED_NAMES, assert_closed_at_the_end,
    assert_ends_at_its_deadline, at, blocking_options, non_public_hosts, options,
};
use harness::guests::component;
use harness::{Listener, Options, Tool, guest, tls_config};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

const TOOL: &str = "hostile_http";

fn start(options: Options) -> Bench {
    Bench::start_tools(options, [Tool::typed_bytes(TOOL, guest(TOOL)).network()])
}

impl Bench {
    /// Sends these requests in one run, which must succeed, and returns its report.
    fn ask(&self, requests: &Value) -> Report {
        self.prepare(json!({ "requests": requests })).send().success()
    }

    /// A call with these arguments that is granted network access.
    fn prepare(&self, arguments: Value) -> super::bench::Call<'_> {
        self.call(TOOL).grant("network_allowed", true).grant("timeout_seconds", 30).arguments(arguments)
    }
}

impl Report {
    /// Results of the requests.
    fn answers(&self) -> &[Value] {
        self.0["result"].as_array().unwrap_or_else(|| panic!("no answers: {self:?}"))
    }
}

#[test]
fn a_request_is_sent_and_fully_reported() {
    let web = Peer::page("hello");
    let bench = start(options(&[&web]));
    let report = bench.ask(&json!([
        { "authority": at(&web), "path": "/a?b=c", "fields": [["x-guest", "1"]] },
        { "authority": at(&web), "method": "POST", "path": "/post", "body": "payload" },
        { "authority": format!("WEB.test.:{}", web.port()) },
    ]));
    for answer in report.answers() {
        assert_eq!((&answer["status"], &answer["body"]), (&json!(200), &json!("hello")), "{report:?}");
        assert!(answer["fields"].to_string().contains(r#"["x-test","yes"]"#), "{report:?}");
    }
    let requests = web.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[0].starts_with("GET /a?b=c HTTP/1.1\r\n") && requests[0].contains("x-guest: 1\r\n"));
    assert!(requests[1].starts_with("POST /post HTTP/1.1\r\n"), "{requests:?}");
    for request in &requests {
        assert_eq!(request.matches("host: ").count(), 1, "{request}");
        assert!(request.contains(&format!("host: web.test:{}\r\n", web.port())), "{request}");
    }
    let contacted = &report.0["usage"]["contacted"];
    assert_eq!(contacted.as_array().map(Vec::len), Some(1), "{report:?}");
    assert_eq!(contacted[0]["authority"], format!("http://web.test:{}", web.port()));
    assert_eq!(contacted[0]["address"], web.address.to_string());
    assert_eq!(contacted[0]["requests"], 3);
    let sent = requests.iter().map(String::len).sum::<usize>() as u64;
    let counted = contacted[0]["sent_bytes"].as_u64().expect("a count");
    // The chunked encoding adds a few bytes, and the server did not wait for the last of them.
    assert!((sent..sent + 64).contains(&counted), "{counted} of {sent}");
    let limits = report.in_force("network");
    assert_eq!(limits["max_requests"]["used"], 3, "{report:?}");
    assert_eq!(limits["max_sent_bytes"]["used"], counted);
    assert_eq!(limits["max_received_bytes"]["used"], contacted[0]["received_bytes"]);
    assert_eq!(limits["max_connections"]["used"], 1);
    assert_eq!(limits["allowed_domains"][0], json!({ "pattern": "*.test", "set_by": "executor" }));
    assert!(report.denied().is_empty(), "{report:?}");
    assert_eq!(
        bench.prepare(json!({ "requests": [], "only_ask": true })).send().success().0["result"]["network"],
        true
    );
}

#[test]
fn only_allowed_hosts_are_reached_in_any_spelling() {
    let web = Peer::page("reached");
    let bench = start(blocking_options(&[&web]));
    let port = web.port();
    let others = [
        ("web.test:x@127.0.0.1", "authority"),
        ("[::ffff:7f00:1]", "authority"),
        ("[0:0:0:0:0:0:0:1]", "authority"),
        ("169.254.169.254", "ip_literal"),
        ("93.184.216.34", "ip_literal"),
        ("[::1]", "ip_literal"),
        ("[::ffff:127.0.0.1]", "ip_literal"),
    ];
    for (host, reason) in REFUSED_NAMES.into_iter().chain(others) {
        let code = match reason {
            "authority" => "HttpRequestUriInvalid",
            "ip_literal" => "DestinationIpProhibited",
            _ => "HttpRequestDenied",
        };
        let report = bench.ask(&json!([{ "authority": format!("{host}:{port}") }]));
        assert!(
            report.answers()[0]["error"].as_str().is_some_and(|e| e.contains(code)),
            "{host}: {report:?}"
        );
        assert_eq!(report.reasons(), [reason], "{host}: {report:?}");
        assert!(report.0["usage"]["contacted"].as_array().is_some_and(Vec::is_empty), "{report:?}");
    }
    for (scheme, code) in [("ftp", "HttpProtocolError"), ("file", "HttpProtocolError")] {
        let report = bench.ask(&json!([{ "scheme": scheme, "authority": at(&web) }]));
        assert!(report.answers()[0].to_string().contains(code), "{report:?}");
    }
    assert_eq!(web.connections(), 0);
    assert_eq!(bench.ask(&json!([{ "authority": at(&web) }])).answers()[0]["status"], 200);
}

#[test]
fn non_public_addresses_are_not_reached_under_any_name() {
    let web = Peer::page("lifted");
    let other = Peer::page("not lifted");
    let port = other.port();
    let listed = json!(["*.test", "127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "localhost"]);
    let lifted = options(&[&web]).set("network.hosts", non_public_hosts());
    let bench = start(lifted.set("network.allowed_domains", listed));
    // The exemption covers one port of one address, and neither the executor's own door nor any other port.
    let others = ["127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]"];
    let names = NON_PUBLIC.into_iter().chain(LIFTED_FOR_ANOTHER_PORT).map(|(name, _)| name);
    for host in names.chain(others) {
        let ports = [port, bench.executor.address().port()];
        for port in ports {
            let report = bench.ask(&json!([{ "authority": format!("{host}:{port}") }]));
            assert!(
                report.answers()[0].to_string().contains("DestinationIpProhibited"),
                "{host}: {report:?}"
            );
            assert_eq!(report.reasons(), ["address"], "{host}: {report:?}");
            let used = &report.in_force("network")["max_connections"]["used"];
            assert_eq!(used, 0, "a refused request is counted as a connection: {report:?}");
        }
    }
    assert_eq!(other.connections(), 0);
    for host in ["web.test", "127.0.0.1"] {
        let report = bench.ask(&json!([{ "authority": format!("{host}:{}", web.port()) }]));
        assert_eq!(report.answers()[0]["body"], "lifted", "{report:?}");
    }
}

#[test]
fn redirects_are_not_followed() {
    let secret = Peer::page("secret");
    let to = format!("http://127.0.0.1:{}/", secret.port());
    let web = Peer::web(move |_, stream| {
        let answer = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        let _gone = stream.write_all(answer.as_bytes());
    });
    let bench = start(options(&[&web]));
    let report = bench.ask(&json!([{ "authority": at(&web) }]));
    assert_eq!(report.answers()[0]["status"], 302, "{report:?}");
    assert_eq!(secret.connections(), 0);
}

#[test]
fn a_guest_cannot_override_the_host_of_a_request() {
    let web = Peer::page("x");
    let bench = start(options(&[&web]));
    for field in ["Host", "host", "Connection", "Transfer-Encoding", "Upgrade", "Proxy-Authorization"] {
        let asked = json!({ "authority": at(&web), "fields": [[field, "evil.example"]] });
        let report = bench.ask(&json!([asked]));
        assert_eq!(report.answers()[0]["refused"], "forbidden field", "{field}: {report:?}");
    }
    let overriding = json!([
        { "authority": at(&web), "fields": [["Expect", "100-continue"], ["TE", "trailers"], ["Trailer", "x"]] },
        { "authority": at(&web), "method": "CONNECT" },
        { "authority": at(&web), "path": "http://evil.example/" },
    ]);
    let report = bench.ask(&overriding);
    assert_eq!(report.answers()[0]["status"], 200, "{report:?}");
    assert!(report.answers()[1].to_string().contains("HttpRequestMethodInvalid"), "{report:?}");
    assert_eq!(report.answers()[2]["refused"], "path", "{report:?}");
    let requests = web.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    for field in ["expect", "te:", "trailer"] {
        assert!(!requests[0].contains(field), "{requests:?}");
    }
}

#[test]
fn an_endless_answer_ends_at_the_limit_with_little_memory() {
    const LIMIT: u64 = 8 << 20;
    let web = Peer::endless("HTTP/1.1 200 OK\r\n\r\n");
    let bench = start(options(&[&web]).set("network.max_received_bytes", LIMIT));
    let peak = bench.peak_since(|| {
        let report = bench.ask(&json!([{ "authority": at(&web) }, { "authority": at(&web) }]));
        let broken = report.answers()[0]["broken"].as_str().expect("it breaks off");
        assert!(broken.contains("body size exceeds limit"), "{report:?}");
        assert!(report.answers()[1].to_string().contains("HttpResponseBodySize"), "{report:?}");
        let received = &report.in_force("network")["max_received_bytes"];
        assert_eq!((&received["used"], &received["slack"]), (&json!(LIMIT), &json!(0)), "{report:?}");
        assert_eq!(report.reasons(), ["received_bytes"], "{report:?}");
    });
    assert!(peak < 64, "{peak} MB");
    // An answer that the guest does not read stays at the server.
    let report = bench.ask(&json!([{ "authority": at(&web), "read": 1 }]));
    let received = report.in_force("network")["max_received_bytes"]["used"].as_u64().expect("a count");
    assert!(received < 4 << 20, "{received}");
    web.assert_closed();
}

#[test]
fn an_answer_of_exactly_the_limit_is_allowed() {
    let web = Peer::page("exactly");
    let bench = start(options(&[&web]));
    let ask = json!([{ "authority": at(&web) }]);
    let report = bench.ask(&ask);
    let size = report.in_force("network")["max_received_bytes"]["used"].as_u64().expect("a count");
    for (most, denied) in [(size, 0), (size - 1, 1)] {
        let report = start(options(&[&web]).set("network.max_received_bytes", most)).ask(&ask);
        assert_eq!(report.in_force("network")["max_received_bytes"]["used"], most, "{report:?}");
        assert_eq!(report.denied().len(), denied, "{most}: {report:?}");
        assert_eq!(report.answers()[0]["broken"].is_null(), denied == 0, "{most}: {report:?}");
    }
}

#[test]
fn an_endless_request_ends_at_the_limit() {
    let web = Peer::silent();
    let bench = start(options(&[&web]).set("network.max_sent_bytes", 1 << 20));
    let body = "x".repeat(4096);
    let report = bench.ask(
        &json!([{ "authority": at(&web), "method": "POST", "body": body, "times": 1000, "patience_ms": 20_000 }]),
    );
    assert!(report.answers()[0].to_string().contains("HttpRequestBodySize"), "{report:?}");
    assert_eq!(report.in_force("network")["max_sent_bytes"]["used"], 1 << 20, "{report:?}");
    assert_eq!(report.reasons(), ["sent_bytes"], "{report:?}");
}

#[test]
fn large_requests_and_answers_arrive_complete() {
    const SIZE: usize = 5 << 20;
    let web = Peer::web(|request, stream| {
        if request.starts_with("POST") {
            // Reads the whole body first, which is larger than all buffers on the way together.
            let mut read = 1000;
            let mut piece = [0; 64 << 10];
            while read < SIZE {
                match stream.read(&mut piece) {
                    Ok(more) if more > 0 => read += more,
                    Ok(_) | Err(_) => return,
                }
            }
        }
        let _head = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
        let _gone = stream.write_all(&vec![b'y'; SIZE]);
    });
    let bench = start(options(&[&web]));
    let body = "x".repeat(4096);
    let length = SIZE.to_string();
    let post = json!({
        "authority": at(&web), "method": "POST", "body": body, "times": SIZE / 4096,
        "fields": [["content-length", length]],
    });
    let report = bench.ask(&json!([{ "authority": at(&web) }, post]));
    for answer in report.answers() {
        assert_eq!((&answer["read"], &answer["broken"]), (&json!(SIZE), &Value::Null), "{report:?}");
    }
}

#[test]
fn a_slow_server_delays_a_run_only_until_its_deadline() {
    let silent = Peer::silent();
    let drips = Peer::dripping("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
    let bench = start(options(&[&silent, &drips]));
    for web in [&silent, &drips] {
        let call = bench.prepare(json!({ "requests": [{ "authority": at(web) }] }));
        assert_ends_at_its_deadline(call, web);
    }
    // A guest may set a timeout that is shorter than that of its run.
    let report = bench.ask(&json!([
        { "authority": at(&silent), "patience_ms": 100 },
        { "authority": at(&drips), "patience_ms": 5000, "read": 3 },
    ]));
    assert!(report.answers()[0].to_string().contains("HttpResponseTimeout"), "{report:?}");
    assert_eq!(report.answers()[1]["read"], 3, "{report:?}");
    bench.assert_well("slow servers");
}

#[test]
fn a_malformed_answer_is_an_error() {
    let many = |count: usize| (0..count).map(|i| format!("x-{i}: y\r\n")).collect::<String>();
    let cases = [
        (format!("HTTP/1.1 200 OK\r\n{}", "x".repeat(1 << 20)), "HttpResponseHeaderSectionSize"),
        (format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)), "HttpResponseHeaderSectionSize"),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", many(1000)), "HttpResponseHeaderSectionSize"),
        (format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(66 << 10)), "HttpResponseHeaderSectionSize"),
        // Its final status is 200, after more informational heads than the client accepts.
        (
            format!(
                "{}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                "HTTP/1.1 103 E\r\n\r\n".repeat(100_000)
            ),
            "HttpResponseHeaderSectionSize",
        ),
        ("SSH-2.0-OpenSSH_9.9\r\n".to_owned(), "HttpProtocolError"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_owned(),
            "HttpUpgradeFailed",
        ),
    ];
    let texts = cases.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>();
    let web = Peer::web(move |request, stream| {
        let which = request.split(['/', ' ']).nth(2).and_then(|which| which.parse::<usize>().ok());
        let _gone = stream.write_all(which.map_or("", |which| &texts[which]).as_bytes());
        if which == Some(5) {
            let _gone = stream.shutdown(std::net::Shutdown::Write);
        }
    });
    let bench = start(options(&[&web]));
    for (which, (_, code)) in cases.iter().enumerate() {
        let report = bench.ask(&json!([{ "authority": at(&web), "path": format!("/{which}") }]));
        assert!(report.answers()[0].to_string().contains(code), "{which}: {report:?}");
    }
    let cut = Peer::web(|_, stream| {
        let _head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this");
        let _gone = stream.shutdown(std::net::Shutdown::Write);
    });
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let lifted = json!([cut.address.to_string(), nobody.to_string()]);
    let bench = start(options(&[]).set("network.allowed_addresses", lifted));
    let report = bench.ask(&json!([
        { "authority": at(&cut) },
        { "authority": format!("web.test:{}", nobody.port()) },
        { "authority": "nobody-has-this-name.test" },
    ]));
    assert!(report.answers()[0]["broken"].as_str().is_some_and(|e| e.contains("incomplete")), "{report:?}");
    assert!(report.answers()[1].to_string().contains("ConnectionRefused"), "{report:?}");
    assert!(report.answers()[2].to_string().contains("DestinationNotFound"), "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
}

#[test]
fn requests_and_connections_are_limited() {
    let web = Peer::page("x");
    let bench = start(options(&[&web]).set("network.max_requests", 3));
    let asked = (0..2000).map(|_| json!({ "authority": at(&web) })).collect::<Vec<_>>();
    let report = bench.ask(&json!(asked));
    let answers = report.answers();
    assert!(answers[..3].iter().all(|answer| answer["status"] == 200), "{:?}", &answers[..4]);
    // If a guest continues after many refusals, its requests are no longer answered, and fail as
    // well.
    assert!(answers[3..].iter().all(|answer| answer["error"].is_string()), "{:?}", &answers[..4]);
    assert!(answers[3].to_string().contains("HttpRequestDenied"), "{:?}", answers[3]);
    let (_, reason, count) = report.denied()[0];
    assert!(reason == "requests" && count > 900, "{:?}", report.denied());
    assert_eq!(report.in_force("network")["max_requests"]["used"], 3);
    web.expect_connections(3);

    let waits = Peer::web(|_, stream| {
        let _head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n");
    });
    let bench = start(options(&[&waits]).set("network.max_connections", 2));
    let held = json!({ "authority": at(&waits), "read": 0 });
    let report = bench.ask(&json!([held, held, held, held]));
    let codes = report.answers().iter().map(|answer| answer["status"] == 200).collect::<Vec<_>>();
    assert_eq!(codes, [true, true, false, false], "{report:?}");
    assert!(report.answers()[2].to_string().contains("ConnectionLimitReached"), "{report:?}");
    assert_eq!(report.denied()[0].1, "connections", "{report:?}");
    assert_eq!(report.in_force("network")["max_connections"]["used"], 2, "{report:?}");
    waits.assert_closed();
}

#[test]
fn concurrent_requests_are_independent() {
    let web = Peer::web(|request, stream| {
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = path.repeat(20_000);
        let _gone = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    });
    let bench = start(options(&[&web]));
    let asked = (0..8).map(|i| json!({ "authority": at(&web), "path": format!("/{i}{i}{i}") }));
    let arguments = json!({ "requests": asked.collect::<Vec<_>>(), "at_once": true });
    let report = bench.prepare(arguments).send().success();
    for (i, answer) in report.answers().iter().enumerate() {
        assert_eq!(answer["read"], 80_000, "{report:?}");
        assert!(answer["body"].as_str().is_some_and(|body| body.starts_with(&format!("/{i}{i}{i}/{i}"))));
    }
}

#[test]
fn the_standing_policy_limits_hosts_and_request_rate() {
    let web = Peer::page("x");
    let hosts =
        json!({ "web.test": ["127.0.0.1"], "a.web.test": ["127.0.0.1"], "b.web.test": ["127.0.0.1"] });
    let bench = start(options(&[&web]).set("network.hosts", hosts));
    let policy = |network: Value| {
        bench.set_policy(&json!({ "tools": { TOOL: { "allowed": true } }, "network": network }));
    };
    policy(json!({ "allowed_domains": ["*.web.test", "elsewhere.org"], "blocked_domains": ["B.web.test"] }));
    let asked = |host: &str| json!({ "authority": format!("{host}:{}", web.port()) });
    let report = bench.ask(&json!([asked("a.web.test"), asked("b.web.test"), asked("web.test")]));
    assert_eq!(report.answers()[0]["status"], 200, "{report:?}");
    assert_eq!(report.reasons(), ["domain_blocked", "domain_not_allowed"], "{report:?}");
    let network = report.in_force("network");
    assert_eq!(network["allowed_domains"], json!([{ "pattern": "*.web.test", "set_by": "standing_policy" }]));
    assert_eq!(network["blocked_domains"], json!([{ "pattern": "b.web.test", "set_by": "standing_policy" }]));

    policy(json!({ "max_requests_per_minute": 3 }));
    let report = bench.ask(&json!([asked("web.test"), asked("web.test")]));
    assert!(report.denied().is_empty(), "{report:?}");
    assert_eq!(
        report.in_force("network")["max_requests_per_minute"],
        json!({ "granted": 3, "set_by": "standing_policy" })
    );
    // The requests per minute are counted for the agent, and not for the run.
    let report = bench.ask(&json!([asked("web.test"), asked("web.test")]));
    assert_eq!(report.answers()[0]["status"], 200, "{report:?}");
    assert_eq!(report.reasons(), ["request_rate"], "{report:?}");

    policy(json!({ "allowed_domains": ["http://web.test/"] }));
    let answer = bench.prepare(json!({ "requests": [] })).send();
    let refused = harness::expect_blocked(&answer.response, "standing_policy");
    assert!(refused.contains("capabilities.network"), "{refused}");
}

#[test]
fn connections_are_closed_at_the_end_of_the_run() {
    let web = Peer::web(|_, stream| {
        let _head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n");
    });
    let bench = start(options(&[&web]));
    let ask = || bench.prepare(json!({ "requests": [{ "authority": at(&web) }] }));
    if let Some(killed) = assert_closed_at_the_end(&bench, &web, || web.requests().len(), ask) {
        assert!(killed.in_force("network")["max_received_bytes"]["used"].as_u64() > Some(0), "{killed:?}");
    }
    // Connections that a guest leaves open when it returns are closed as well.
    let report = bench.ask(&json!([{ "authority": at(&web), "read": 0 }]));
    assert_eq!(report.answers()[0]["status"], 200, "{report:?}");
    web.assert_closed();
    bench.assert_well("runs that ended in the middle of a request");
}

#[test]
fn without_a_network_calls_name_the_layer_that_disabled_it() {
    let web = Peer::page("never");
    let online = || options(&[&web]);
    let ask = json!({ "requests": [{ "authority": at(&web) }] });
    let only_ask = json!({ "requests": [], "only_ask": true });
    let bench = start(online());
    let refused = |call: super::bench::Call<'_>, words: &str| {
        let report = call.arguments(ask.clone()).send().failure("this run has no network");
        assert!(report.sentence().contains(words), "not `{words}`: {report:?}");
        assert!(report.0["usage"].get("contacted").is_none(), "{report:?}");
        let denied = report.denied();
        assert!(denied.len() == 1 && denied[0].1 == "network_off", "{report:?}");
        assert!(denied[0].0.starts_with("wasi:http/"), "{report:?}");
    };
    refused(bench.call(TOOL), "`network_allowed`");
    refused(bench.call(TOOL).grant("network_allowed", false), "`network_allowed`");
    refused(bench.call(TOOL).grant("network_allowed", true).condition("no_network"), "`no_network`");
    let undeclared = Bench::start_tools(online(), [Tool::typed_bytes(TOOL, guest(TOOL))]);
    refused(undeclared.call(TOOL).grant("network_allowed", true), "`tool.toml`");
    let off = start(Options::new());
    refused(off.call(TOOL).grant("network_allowed", true), "`ceilings.network_allowed`");
    let nobody = start(Options::new().set("ceilings.network_allowed", true));
    refused(nobody.call(TOOL).grant("network_allowed", true), "`network.allowed_domains`");
    // A guest that asks first whether it has a network is not ended.
    let report = off.call(TOOL).grant("network_allowed", true).arguments(only_ask).send().success();
    assert_eq!(report.0["result"]["network"], false, "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
    assert_eq!(web.connections(), 0);
}

#[test]
fn sockets_are_linked_only_with_a_network() {
    let before = r#"
        (import "wasi:sockets/network@0.2.0" (instance $types (export "network" (type (sub resource)))))
        (alias export $types "network" (type $network))
        (import "wasi:sockets/instance-network@0.2.0" (instance $instance
          (alias outer 1 $network (type $outer))
          (export "network" (type $inner (eq $outer)))
          (export "instance-network" (func (result (own $inner))))))
        (core func $call (canon lower (func $instance "instance-network")))"#;
    let component = component(before, &[("call", "(result i32)")], "(drop (call $call))");
    let bench = Bench::start_tools(options(&[]), [Tool::command_bytes("sockets", component).network()]);
    let report = bench.call("sockets").grant("network_allowed", true).send().success();
    assert!(report.denied().is_empty(), "{report:?}");
    let report = bench.call("sockets").send().failure("this run has no network");
    assert_eq!(report.denied(), [("wasi:sockets/instance-network", "network_off", 1)], "{report:?}");
}

/// A TLS server with a self-signed certificate for `names`, and the certificate in PEM.
fn tls_server(names: &[&str]) -> (Listener, String) {
    let (config, certificate) = tls_config(names);
    let listener = Listener::start(move |stream| {
        let server = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
        let mut tls = rustls::StreamOwned::new(server, stream);
        if tls.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
            let _gone = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret");
            tls.conn.send_close_notify();
            let _gone = tls.flush();
        }
    });
    (listener, certificate)
}

#[test]
fn tls_certificates_must_match_the_checked_host() {
    let (server, certificate) = tls_server(&["web.test"]);
    let address = server.address;
    let folder = tempfile::tempdir().expect("a temp folder");
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, certificate).expect("a file");
    let online = || {
        options(&[])
            .set("network.allowed_addresses", json!([address.to_string()]))
            .set("network.hosts", json!({ "web.test": ["127.0.0.1"], "other.test": ["127.0.0.1"] }))
    };
    let asked = |host: &str, scheme: &str| json!([{ "scheme": scheme, "authority": format!("{host}:{}", address.port()), "patience_ms": 5000 }]);
    let trusting = start(online().set("network.ca_file", json!(ca_file)));
    let report = trusting.ask(&asked("web.test", "https"));
    assert_eq!(report.answers()[0]["body"], "secret", "{report:?}");
    let contact = &report.0["usage"]["contacted"][0];
    assert_eq!(contact["authority"], format!("https://web.test:{}", address.port()));
    // Bytes are counted at the socket, which includes the TLS handshake.
    assert!(contact["sent_bytes"].as_u64() > Some(200), "{report:?}");
    let report = trusting.ask(&asked("other.test", "https"));
    assert!(report.answers()[0].to_string().contains("TlsCertificateError"), "{report:?}");
    let report = start(online()).ask(&asked("web.test", "https"));
    assert!(report.answers()[0].to_string().contains("TlsCertificateError"), "{report:?}");
    let plain = Peer::page("not TLS");
    let bench = start(options(&[&plain]));
    let report = bench.ask(&json!([{ "scheme": "https", "authority": at(&plain), "patience_ms": 5000 }]));
    assert!(report.answers()[0]["error"].is_string(), "{report:?}");
}
