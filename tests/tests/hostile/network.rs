//! A guest that asks for more of the network than it was granted, and servers that do the same to it.
//!
//! The guest (`tests/guests/http`) sends what its arguments say over `wasi:http`; the servers are this
//! test's own, on loopback. Loopback is refused like every address that is not public, so each test says
//! which of its servers the operator lifts that for, and shows that nobody else was connected to.

use super::bench::{Bench, Report};
use super::guest::wasm;
use crate::harness::{AGENT, Options, Tool, eventually, guest, isolation, result, tls_config};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TOOL: &str = "hostile_http";

/// A server of a test's own, which does with each connection what its function does.
pub(super) struct Web {
    address: SocketAddr,
    seen: Arc<Mutex<WebRecord>>,
}

#[derive(Default)]
struct WebRecord {
    connections: usize,
    /// The heads of the requests, and what the body began with.
    requests: Vec<String>,
    /// Number of connections that the peer has closed.
    closed: usize,
}

impl Web {
    /// Answers each request by `answer`, and then waits until the other side closes.
    pub(super) fn start(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<WebRecord>>::default();
        let (books, answer) = (Arc::clone(&seen), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (books, answer) = (Arc::clone(&books), Arc::clone(&answer));
                books.lock().unwrap().connections += 1;
                std::thread::spawn(move || {
                    let request = request(&stream);
                    books.lock().unwrap().requests.push(request.clone());
                    let mut stream = stream;
                    answer(&request, &mut stream);
                    let mut rest = [0; 4096];
                    while stream.read(&mut rest).is_ok_and(|read| read > 0) {}
                    books.lock().unwrap().closed += 1;
                });
            }
        });
        Self { address, seen }
    }

    /// Answers every request with 200 and this body.
    pub(super) fn saying(body: &'static str) -> Self {
        Self::start(move |_, stream| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-test: yes\r\n\r\n", body.len());
            let _gone = stream.write_all((head + body).as_bytes());
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().requests.clone()
    }

    fn closed(&self) -> usize {
        self.seen.lock().unwrap().closed
    }
}

/// One request: its head, and the beginning of its body when it says how long that is. What follows stays in
/// the stream.
fn request(mut stream: &TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.extend(byte),
            Ok(_) | Err(_) => break,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let field = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = field.and_then(|length| length.parse().ok()).unwrap_or(0).min(1000);
    let mut body = vec![0; length];
    let _cut = stream.read_exact(&mut body);
    head + &String::from_utf8_lossy(&body)
}

/// An executor whose runs may reach `*.test` and the hosts beside it, with `web.test` and all of `lifted`
/// on loopback.
pub(super) fn options(lifted: &[&Web]) -> Options {
    let lifted = lifted.iter().map(|web| web.address.to_string()).collect::<Vec<_>>();
    Options::new()
        .set("ceilings.network_allowed", true)
        .set("network.allowed_domains", json!(["*.test", "only.example"]))
        .set("network.allowed_addresses", json!(lifted))
        .set("network.hosts", json!({ "web.test": ["127.0.0.1"] }))
}

fn start(options: Options) -> Bench {
    Bench::start_tools(options, [Tool::typed_bytes(TOOL, guest(TOOL)).network()])
}

impl Bench {
    /// Sends these requests in one run, and gives its report.
    fn ask(&self, requests: &Value) -> Report {
        self.asking(json!({ "requests": requests })).send().success()
    }

    fn asking(&self, arguments: Value) -> super::bench::Call<'_> {
        self.call(TOOL).grant("network_allowed", true).grant("timeout_seconds", 30).arguments(arguments)
    }
}

impl Report {
    /// Results of the requests.
    fn answers(&self) -> &[Value] {
        self.0["result"].as_array().unwrap_or_else(|| panic!("no answers: {self:?}"))
    }

    fn reasons(&self) -> Vec<&str> {
        self.denied().into_iter().map(|(_, reason, _)| reason).collect()
    }
}

pub(super) fn at(web: &Web) -> String {
    format!("web.test:{}", web.port())
}

#[test]
fn a_request_is_sent_and_fully_reported() {
    let web = Web::saying("hello");
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
    // The chunked body came with a few bytes around it, of which the server did not wait for the last.
    assert!((sent..sent + 64).contains(&counted), "{counted} of {sent}");
    let limits = report.in_force("network");
    assert_eq!(limits["max_requests"]["used"], 3, "{report:?}");
    assert_eq!(limits["max_sent_bytes"]["used"], counted);
    assert_eq!(limits["max_received_bytes"]["used"], contacted[0]["received_bytes"]);
    assert_eq!(limits["max_connections"]["used"], 1);
    assert_eq!(limits["allowed_domains"][0], json!({ "pattern": "*.test", "set_by": "executor" }));
    assert!(report.denied().is_empty(), "{report:?}");
    assert_eq!(
        bench.asking(json!({ "requests": [], "only_ask": true })).send().success().0["result"]["network"],
        true
    );
}

#[test]
fn only_allowed_hosts_are_reached_in_any_spelling() {
    let web = Web::saying("reached");
    let blocked = options(&[&web])
        .set("network.blocked_domains", json!(["secret.test", "*.secret.test", "xn--bcher-kva.test"]));
    let bench = start(blocked);
    let port = web.port();
    let (denied, uri, literal) = ("HttpRequestDenied", "HttpRequestUriInvalid", "DestinationIpProhibited");
    let cases = [
        ("other.example", denied, "domain_not_allowed"),
        // The apex is not below itself, and a suffix is no label.
        ("test", denied, "domain_not_allowed"),
        ("eviltest", denied, "domain_not_allowed"),
        ("web.test.evil.example", denied, "domain_not_allowed"),
        ("notonly.example", denied, "domain_not_allowed"),
        ("sub.only.example", denied, "domain_not_allowed"),
        ("secret.test", denied, "domain_blocked"),
        ("SECRET.TEST.", denied, "domain_blocked"),
        ("a.Secret.Test", denied, "domain_blocked"),
        ("XN--BCHER-KVA.test", denied, "domain_blocked"),
        ("web.test@evil.example", uri, "authority"),
        ("web.test:x@127.0.0.1", uri, "authority"),
        ("web.test..", uri, "authority"),
        ("xn--0.test", uri, "authority"),
        ("2130706433", uri, "authority"),
        ("0x7f000001", uri, "authority"),
        ("0x7f.0.0.1", uri, "authority"),
        ("017700000001", uri, "authority"),
        ("0177.0.0.1", uri, "authority"),
        ("127.1", uri, "authority"),
        ("[::ffff:7f00:1]", uri, "authority"),
        ("[0:0:0:0:0:0:0:1]", uri, "authority"),
        ("127.0.0.1", literal, "ip_literal"),
        ("169.254.169.254", literal, "ip_literal"),
        ("93.184.216.34", literal, "ip_literal"),
        ("[::1]", literal, "ip_literal"),
        ("[::ffff:127.0.0.1]", literal, "ip_literal"),
    ];
    for (host, code, reason) in cases {
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
    let (web, other) = (Web::saying("lifted"), Web::saying("not lifted"));
    let port = other.port();
    let addresses = json!({
        "web.test": ["127.0.0.1"],
        "metadata.test": ["169.254.169.254"],
        "private.test": ["10.0.0.1"],
        "loopback6.test": ["::1"],
        "mapped.test": ["::ffff:127.0.0.1"],
        "nat64.test": ["64:ff9b::7f00:1"],
        "sixtofour.test": ["2002:7f00:1::"],
        "any.test": ["0.0.0.0"],
        // One that is public does not vouch for the other, in any order.
        "mixed.test": ["93.184.216.34", "127.0.0.1"],
        "mixed2.test": ["127.0.0.1", "93.184.216.34"],
        "localhost": ["127.0.0.1", "::1"],
    });
    let listed = json!(["*.test", "127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "localhost"]);
    let bench =
        start(options(&[&web]).set("network.hosts", addresses).set("network.allowed_domains", listed));
    // The exemption covers one port of one address, and neither the executor's own door nor any other port.
    for host in [
        "web.test",
        "metadata.test",
        "private.test",
        "loopback6.test",
        "mapped.test",
        "nat64.test",
        "sixtofour.test",
        "any.test",
        "mixed.test",
        "mixed2.test",
        "localhost",
        "127.0.0.1",
        "169.254.169.254",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ] {
        let ports = [port, bench.executor.address().port()];
        for port in ports {
            let report = bench.ask(&json!([{ "authority": format!("{host}:{port}") }]));
            assert!(
                report.answers()[0].to_string().contains("DestinationIpProhibited"),
                "{host}: {report:?}"
            );
            assert_eq!(report.reasons(), ["address"], "{host}: {report:?}");
            let used = &report.in_force("network")["max_connections"]["used"];
            assert_eq!(used, 0, "what was refused is no connection: {report:?}");
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
    let secret = Web::saying("secret");
    let to = format!("http://127.0.0.1:{}/", secret.port());
    let web = Web::start(move |_, stream| {
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
    let web = Web::saying("x");
    let bench = start(options(&[&web]));
    for field in ["Host", "host", "Connection", "Transfer-Encoding", "Upgrade", "Proxy-Authorization"] {
        let asked = json!({ "authority": at(&web), "fields": [[field, "evil.example"]] });
        let report = bench.ask(&json!([asked]));
        assert_eq!(report.answers()[0]["refused"], "forbidden field", "{field}: {report:?}");
    }
    let quiet = json!([
        { "authority": at(&web), "fields": [["Expect", "100-continue"], ["TE", "trailers"], ["Trailer", "x"]] },
        { "authority": at(&web), "method": "CONNECT" },
        { "authority": at(&web), "path": "http://evil.example/" },
    ]);
    let report = bench.ask(&quiet);
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
    let web = Web::start(|_, stream| {
        let piece = [b'x'; 64 << 10];
        let _head = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&piece).is_ok() {}
    });
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
    // One that nobody reads waits at the other side.
    let report = bench.ask(&json!([{ "authority": at(&web), "read": 1 }]));
    let received = report.in_force("network")["max_received_bytes"]["used"].as_u64().expect("a count");
    assert!(received < 4 << 20, "{received}");
    eventually("connections are closed", || (web.closed() == web.connections()).then_some(()));
}

#[test]
fn an_answer_of_exactly_the_limit_is_allowed() {
    let web = Web::saying("exactly");
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
    let web = Web::start(|_, _| {});
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
    let web = Web::start(|request, stream| {
        if request.starts_with("POST") {
            // All of the body first, which is longer than what is ever on its way.
            let (mut read, mut piece) = (1000, [0; 64 << 10]);
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
    let silent = Web::start(|_, _| {});
    let drips = Web::start(|_, stream| {
        let _head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let bench = start(options(&[&silent, &drips]));
    for web in [&silent, &drips] {
        let call = bench.asking(json!({ "requests": [{ "authority": at(web) }] }));
        let answer = call.grant("timeout_seconds", 1).send();
        assert!(answer.took < Duration::from_secs(5), "{:?}", answer.took);
        let report = answer.limit("time");
        assert_eq!(report.0["usage"]["contacted"][0]["requests"], 1, "{report:?}");
        eventually("the connection is closed", || (web.closed() == web.connections()).then_some(()));
    }
    // A guest may have less patience than its run.
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
    let web = Web::start(move |request, stream| {
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
    let cut = Web::start(|_, stream| {
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
    let web = Web::saying("x");
    let bench = start(options(&[&web]).set("network.max_requests", 3));
    let asked = (0..2000).map(|_| json!({ "authority": at(&web) })).collect::<Vec<_>>();
    let report = bench.ask(&json!(asked));
    let answers = report.answers();
    assert!(answers[..3].iter().all(|answer| answer["status"] == 200), "{:?}", &answers[..4]);
    // A guest that asks on and on is not answered any more at some point, and fails all the same.
    assert!(answers[3..].iter().all(|answer| answer["error"].is_string()), "{:?}", &answers[..4]);
    assert!(answers[3].to_string().contains("HttpRequestDenied"), "{:?}", answers[3]);
    let (_, reason, count) = report.denied()[0];
    assert!(reason == "requests" && count > 900, "{:?}", report.denied());
    assert_eq!(report.in_force("network")["max_requests"]["used"], 3);
    assert_eq!(web.connections(), 3);

    let waits = Web::start(|_, stream| {
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
    eventually("connections are closed", || (waits.closed() == waits.connections()).then_some(()));
}

#[test]
fn concurrent_requests_are_independent() {
    let web = Web::start(|request, stream| {
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = path.repeat(20_000);
        let _gone = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    });
    let bench = start(options(&[&web]));
    let asked = (0..8).map(|i| json!({ "authority": at(&web), "path": format!("/{i}{i}{i}") }));
    let arguments = json!({ "requests": asked.collect::<Vec<_>>(), "at_once": true });
    let report = bench.asking(arguments).send().success();
    for (i, answer) in report.answers().iter().enumerate() {
        assert_eq!(answer["read"], 80_000, "{report:?}");
        assert!(answer["body"].as_str().is_some_and(|body| body.starts_with(&format!("/{i}{i}{i}/{i}"))));
    }
}

#[test]
fn the_standing_policy_limits_hosts_and_request_rate() {
    let web = Web::saying("x");
    let hosts =
        json!({ "web.test": ["127.0.0.1"], "a.web.test": ["127.0.0.1"], "b.web.test": ["127.0.0.1"] });
    let bench = start(options(&[&web]).set("network.hosts", hosts));
    let policy = |network: Value| {
        let tools = json!({ TOOL: { "allowed": true } });
        let policy = json!({
            "agent_did": AGENT, "version": "1", "capabilities": { "tools": tools, "network": network },
        });
        result(&bench.executor.rpc("g2a/policy", &policy));
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
    // The minute is the agent's, and not the run's.
    let report = bench.ask(&json!([asked("web.test"), asked("web.test")]));
    assert_eq!(report.answers()[0]["status"], 200, "{report:?}");
    assert_eq!(report.reasons(), ["request_rate"], "{report:?}");

    policy(json!({ "allowed_domains": ["http://web.test/"] }));
    let answer = bench.asking(json!({ "requests": [] })).send();
    let refused = crate::harness::expect_blocked(&answer.response, "standing_policy");
    assert!(refused.contains("capabilities.network"), "{refused}");
}

#[test]
fn connections_are_closed_at_the_end_of_the_run() {
    let web = Web::start(|_, stream| {
        let _head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n");
    });
    let bench = start(options(&[&web]));
    let ask = || bench.asking(json!({ "requests": [{ "authority": at(&web) }] }));
    let meanwhile = |work: &dyn Fn(&str)| {
        let before = web.connections();
        // This kills every process of every run.
        let call = ask().undisturbed();
        let intent = call.intent();
        std::thread::scope(|scope| {
            let answer = scope.spawn(move || call.send());
            eventually("it has asked", || (web.requests().len() > before).then_some(()));
            work(&intent);
            let answer = answer.join().expect("no panic");
            eventually("the connection is closed", || (web.closed() == web.connections()).then_some(()));
            answer
        })
    };
    let cancel = |intent: &str| drop(bench.executor.rpc("a2g/cancel", &json!({ "intent_id": intent })));
    let report = meanwhile(&cancel).aborted("cancelled");
    assert_eq!(report.0["usage"]["contacted"][0]["requests"], 1, "{report:?}");
    if isolation() != "inline" {
        let report = meanwhile(&|_| super::ring::kill_all_children(&bench)).failure("SIGKILL");
        assert_eq!(report.0["usage"]["contacted"][0]["requests"], 1, "{report:?}");
        assert!(report.in_force("network")["max_received_bytes"]["used"].as_u64() > Some(0), "{report:?}");
    }
    // Connections that a guest leaves open when it returns are closed as well.
    let report = bench.ask(&json!([{ "authority": at(&web), "read": 0 }]));
    assert_eq!(report.answers()[0]["status"], 200, "{report:?}");
    eventually("the connection is closed", || (web.closed() == web.connections()).then_some(()));
    bench.assert_well("runs that ended in the middle of a request");
}

#[test]
fn without_a_network_calls_name_the_layer_that_disabled_it() {
    let web = Web::saying("never");
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
    // A guest that asks first is not ended.
    let report = off.call(TOOL).grant("network_allowed", true).arguments(only_ask).send().success();
    assert_eq!(report.0["result"]["network"], false, "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
    assert_eq!(web.connections(), 0);
}

#[test]
fn sockets_are_linked_only_with_a_network() {
    let component = wasm(
        r#"(component
            (import "wasi:sockets/network@0.2.0" (instance $types (export "network" (type (sub resource)))))
            (alias export $types "network" (type $network))
            (import "wasi:sockets/instance-network@0.2.0" (instance $instance
              (alias outer 1 $network (type $outer))
              (export "network" (type $inner (eq $outer)))
              (export "instance-network" (func (result (own $inner))))))
            (core func $call (canon lower (func $instance "instance-network")))
            (core module $m
              (import "host" "call" (func $call (result i32)))
              (func (export "run") (result i32) (drop (call $call)) (i32.const 0)))
            (core instance $i (instantiate $m (with "host" (instance (export "call" (func $call))))))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $command (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $command)))"#,
    );
    let bench = Bench::start_tools(options(&[]), [Tool::command_bytes("sockets", component).network()]);
    let report = bench.call("sockets").grant("network_allowed", true).send().success();
    assert!(report.denied().is_empty(), "{report:?}");
    let report = bench.call("sockets").send().failure("this run has no network");
    assert_eq!(report.denied(), [("wasi:sockets/instance-network", "network_off", 1)], "{report:?}");
}

/// A server of its own that speaks TLS with this certificate for `names`, and the certificate as PEM.
fn tls_server(names: &[&str]) -> (SocketAddr, String) {
    let (config, certificate) = tls_config(names);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut tls = rustls::StreamOwned::new(server, stream);
            let mut head = [0; 4096];
            if tls.read(&mut head).is_ok_and(|read| read > 0) {
                let _gone = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret");
                tls.conn.send_close_notify();
                let _gone = tls.flush();
            }
        }
    });
    (address, certificate)
}

#[test]
fn tls_certificates_must_match_the_checked_host() {
    let (address, certificate) = tls_server(&["web.test"]);
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
    // Counted at the socket: the greeting of TLS is in it.
    assert!(contact["sent_bytes"].as_u64() > Some(200), "{report:?}");
    let report = trusting.ask(&asked("other.test", "https"));
    assert!(report.answers()[0].to_string().contains("TlsCertificateError"), "{report:?}");
    let report = start(online()).ask(&asked("web.test", "https"));
    assert!(report.answers()[0].to_string().contains("TlsCertificateError"), "{report:?}");
    let plain = Web::saying("not TLS");
    let bench = start(options(&[&plain]));
    let report = bench.ask(&json!([{ "scheme": "https", "authority": at(&plain), "patience_ms": 5000 }]));
    assert!(report.answers()[0]["error"].is_string(), "{report:?}");
}
