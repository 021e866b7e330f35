//! A guest that opens connections of its own, with the standard library's network, and peers that are no
//! better.
//!
//! The guest (`tests/guests/tcp`) takes the steps that its arguments name.

use super::bench::{Bench, Call, Report};
use super::peer::{
    NON_PUBLIC, Peer, REFUSED_NAMES, assert_closed_at_the_end, assert_ends_at_its_deadline, at,
    blocking_options, non_public_hosts, options,
};
use harness::{Options, Tool, eventually, guest, guest_wasip2};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

/// More bytes than any test sends, and an integer that every reader of JSON has exactly.
const MUCH: u64 = 1 << 52;

const TOOL: &str = "hostile_tcp";

fn start(options: Options) -> Bench {
    Bench::start_tools(options, [Tool::typed_bytes(TOOL, guest_wasip2(TOOL)).network()])
}

impl Bench {
    fn steps(&self, steps: &Value) -> Call<'_> {
        let call = self.call(TOOL).grant("network_allowed", true).grant("timeout_seconds", 30);
        call.arguments(json!({ "steps": steps }))
    }

    /// Takes these steps in one run, and gives its report.
    fn take(&self, steps: &Value) -> Report {
        self.steps(steps).send().success()
    }
}

fn step(report: &Report, which: usize) -> &Value {
    &report.0["result"][which]
}

#[test]
fn a_connection_is_made_and_fully_reported() {
    let peer = Peer::start(|stream| {
        let mut hello = [0; 5];
        let _cut = stream.read_exact(&mut hello);
        let _gone = stream.write_all(b"welcome");
        let mut rest = Vec::new();
        let _cut = stream.read_to_end(&mut rest);
        // The other side has said that there is no more, and still listens.
        let _gone = write!(stream, ", {}", String::from_utf8_lossy(&rest));
        let _gone = stream.shutdown(Shutdown::Write);
    });
    let bench = start(options(&[&peer]));
    let report = bench.take(&json!([
        { "connect": at(&peer) },
        { "write": [0, "hello", 1] },
        { "read": [0, 7] },
        { "write": [0, "friend", 1] },
        { "shutdown": [0, "write"] },
        { "read": [0, 1000] },
        { "write": [0, "more", 1] },
        { "close": 0 },
    ]));
    assert_eq!(step(&report, 0)["peer"], peer.address.to_string(), "{report:?}");
    assert_eq!(step(&report, 0)["local"], "0.0.0.0:0", "the server's own address is its own");
    assert_eq!(step(&report, 2)["first"], "welcome", "{report:?}");
    assert_eq!(step(&report, 5)["first"], ", friend", "{report:?}");
    assert!(step(&report, 6)["error"].is_string(), "{report:?}");
    let contacted = &report.0["usage"]["contacted"];
    let contact = json!([{
        "authority": format!("tcp://web.test:{}", peer.port()), "address": peer.address.to_string(),
        "requests": 1, "sent_bytes": 11, "received_bytes": 15,
    }]);
    assert_eq!(contacted, &contact, "{report:?}");
    let network = report.in_force("network");
    // The look-up is one request, and pays for the connection.
    assert_eq!(network["max_requests"]["used"], 1, "{report:?}");
    assert_eq!(network["max_connections"]["used"], 1, "{report:?}");
    assert_eq!(network["max_sent_bytes"]["used"], 11, "{report:?}");
    assert_eq!(network["max_received_bytes"]["used"], 15, "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
    peer.assert_closed();
}

#[test]
fn connections_need_an_address_from_a_name_lookup() {
    let peer = Peer::saying("lifted");
    let other = Peer::saying("also lifted");
    let bench = start(options(&[&peer, &other]));
    let port = peer.port();
    let address = peer.address.to_string();
    // Not before its name was looked up in this run, whatever another run has done.
    for _ in 0..2 {
        let report =
            bench.take(&json!([{ "connect": address }, { "connect": at(&peer) }, { "read": [1, 100] }]));
        assert_eq!(step(&report, 0)["error"], "PermissionDenied", "{report:?}");
        assert_eq!(step(&report, 2)["first"], "lifted", "{report:?}");
        assert_eq!(report.reasons(), ["not_looked_up"], "{report:?}");
        assert_eq!(report.denied()[0].0, format!("tcp://{address}"), "{report:?}");
    }
    let hosts = [
        format!("127.0.0.2:{port}"),
        format!("10.0.0.1:{port}"),
        format!("169.254.169.254:{port}"),
        format!("93.184.216.34:{port}"),
        format!("0.0.0.0:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("[64:ff9b::7f00:1]:{port}"),
        bench.executor.address().to_string(),
    ];
    for host in hosts {
        let report = bench.take(&json!([{ "connect": host }]));
        assert!(step(&report, 0)["error"].is_string(), "{host}: {report:?}");
        assert_eq!(report.reasons(), ["not_looked_up"], "{host}: {report:?}");
        assert!(report.0["usage"]["contacted"].as_array().is_some_and(Vec::is_empty), "{report:?}");
    }
    peer.expect_connections(2);
    assert_eq!(other.connections(), 0);
    // A number that is listed needs no look-up; the other address rules hold for it.
    let listed = options(&[&peer])
        .set("network.allowed_domains", json!(["127.0.0.1", "10.0.0.1", "::ffff:127.0.0.1"]));
    let bench = start(listed);
    let others =
        [other.address.to_string(), format!("10.0.0.1:{port}"), format!("[::ffff:127.0.0.1]:{port}")];
    let report = bench.take(&json!([
        { "connect": address }, { "read": [0, 100] },
        { "connect": others[0] }, { "connect": others[1] }, { "connect": others[2] },
        { "look_up": "127.0.0.1" }, { "look_up": "10.0.0.1" }, { "look_up": "::ffff:127.0.0.1" },
        { "look_up": "127.0.0.2" },
    ]));
    assert_eq!(step(&report, 1)["first"], "lifted", "{report:?}");
    for which in [2, 3, 4] {
        assert_eq!(step(&report, which)["error"], "PermissionDenied", "{which}: {report:?}");
    }
    assert!(step(&report, 5)["addresses"].as_array().is_some_and(|found| found.len() == 1), "{report:?}");
    for which in [6, 7, 8] {
        assert!(
            step(&report, which)["error"]
                .as_str()
                .is_some_and(|e| e.contains("access-denied") || e.contains("AccessDenied")),
            "{which}: {report:?}"
        );
    }
    let mut why = report.reasons();
    why.sort_unstable();
    assert_eq!(why, ["address", "address", "address", "address", "address", "ip_literal"], "{report:?}");
    peer.expect_connections(3);
    assert_eq!(other.connections(), 0);
}

/// Every byte of a connection may be an order, so a run under `staged` gets none.
#[test]
fn a_staged_run_gets_no_connection() {
    let peer = Peer::saying("reached");
    let bench = start(options(&[&peer]));
    let call = bench.steps(&json!([{ "look_up": "web.test" }, { "connect": at(&peer) }]));
    let report = call.condition("effects:staged").send().success();
    assert!(step(&report, 0)["addresses"].is_array(), "{report:?}");
    assert_eq!(step(&report, 1)["error"], "PermissionDenied", "{report:?}");
    assert_eq!(report.denied(), [(&*format!("tcp://{}", at(&peer)), "staged", 1)]);
    assert_eq!(peer.connections(), 0);
}

#[test]
fn a_lookup_returns_only_permitted_addresses() {
    let peer = Peer::saying("lifted");
    let other = Peer::saying("not lifted");
    let allowed = json!(["*.test", "localhost"]);
    let lifted = options(&[&peer]).set("network.hosts", non_public_hosts());
    let bench = start(lifted.set("network.allowed_domains", allowed));
    for (host, _) in NON_PUBLIC {
        let to = format!("{host}:{}", peer.port());
        let report = bench.take(&json!([{ "look_up": host }, { "connect": to }]));
        assert!(step(&report, 0)["error"].is_string() && step(&report, 1)["error"].is_string(), "{report:?}");
        assert_eq!(report.reasons(), ["address"], "{host}: {report:?}");
    }
    // The exemption covers one port of the address, and the port is known at connect time.
    let ports = [other.port(), bench.executor.address().port()];
    for port in ports {
        let report =
            bench.take(&json!([{ "look_up": "web.test" }, { "connect": format!("127.0.0.1:{port}") }]));
        assert!(step(&report, 0)["addresses"].is_array(), "{report:?}");
        assert_eq!(step(&report, 1)["error"], "PermissionDenied", "{report:?}");
        assert_eq!(report.reasons(), ["address"], "{report:?}");
        assert_eq!(report.denied()[0].0, format!("tcp://web.test:{port} (127.0.0.1)"), "{report:?}");
        let used = &report.in_force("network")["max_connections"]["used"];
        assert_eq!(used, 0, "what was refused is no connection: {report:?}");
    }
    assert_eq!((peer.connections(), other.connections()), (0, 0));
}

#[test]
fn only_allowed_names_are_looked_up() {
    let peer = Peer::saying("reached");
    let bench = start(blocking_options(&[&peer]));
    let long = "a".repeat(100_000);
    let others = [
        ("bücher.test", "domain_blocked"),
        ("web.test:80", "authority"),
        ("0x7f.1", "authority"),
        ("", "authority"),
        (&long, "authority"),
        ("::1", "ip_literal"),
        ("fe80::1", "ip_literal"),
        ("::ffff:127.0.0.1", "ip_literal"),
    ];
    for (name, reason) in REFUSED_NAMES.into_iter().chain(others) {
        let report = bench.take(&json!([{ "look_up": name }, { "connect": peer.address.to_string() }]));
        assert!(step(&report, 0)["error"].is_string(), "{name}: {report:?}");
        assert!(step(&report, 1)["error"].is_string(), "{name}: {report:?}");
        let mut why = report.reasons();
        why.retain(|why| *why != "not_looked_up");
        assert_eq!(why, [reason], "{name}: {report:?}");
    }
    let to = format!("secret.test:{}", peer.port());
    let report = bench.take(&json!([{ "connect": to }]));
    assert_eq!(report.reasons(), ["domain_blocked"], "{report:?}");
    assert_eq!(peer.connections(), 0);
    let report =
        bench.take(&json!([{ "connect": format!("WEB.Test.:{}", peer.port()) }, { "read": [0, 100] }]));
    assert_eq!(step(&report, 1)["first"], "reached", "{report:?}");
    // The rules of every layer apply.
    let network = json!({ "allowed_domains": ["*.test"], "blocked_domains": ["Web.test"] });
    bench.set_policy(&json!({ "tools": { TOOL: { "allowed": true } }, "network": network }));
    let report = bench.take(&json!([{ "connect": at(&peer) }]));
    assert_eq!(report.reasons(), ["domain_blocked"], "{report:?}");
    peer.expect_connections(1);
}

#[test]
fn listening_and_udp_are_refused() {
    let bench = start(options(&[]));
    let report = bench.take(&json!([
        { "bind": "0.0.0.0:0" }, { "bind": "127.0.0.1:8080" }, "listen", { "udp": "0.0.0.0:0" },
    ]));
    for which in [0, 1, 3] {
        assert!(step(&report, which)["error"].is_string(), "{which}: {report:?}");
    }
    for what in ["listen", "accept"] {
        let error = step(&report, 2)[what]["error"].as_str().expect("an error");
        assert!(error.to_lowercase().replace(['-', '_'], "").contains("notsupported"), "{error}");
    }
    let mut denied = report.denied();
    denied.sort_unstable();
    let expected = [
        ("wasi:sockets/tcp: accept", "not_offered", 1),
        ("wasi:sockets/tcp: bind", "not_offered", 2),
        ("wasi:sockets/tcp: listen", "not_offered", 1),
        ("wasi:sockets/udp-create-socket", "not_offered", 1),
    ];
    assert_eq!(denied, expected, "{report:?}");
    assert_eq!(report.in_force("network")["max_requests"]["used"], 0, "{report:?}");
}

#[test]
fn connections_and_requests_share_one_budget() {
    let peer = Peer::silent();
    let bench = start(options(&[&peer]).set("network.max_connections", 2));
    let connect = json!({ "connect": at(&peer) });
    let report = bench.take(&json!([connect, connect, connect, { "close": 0 }, connect]));
    let stood = |which: usize| step(&report, which)["peer"].is_string();
    assert!(stood(0) && stood(1) && !stood(2) && stood(4), "{report:?}");
    assert_eq!(report.reasons(), ["connections"], "{report:?}");
    assert_eq!(report.in_force("network")["max_connections"]["used"], 2, "{report:?}");
    peer.expect_connections(3);
    peer.assert_closed();
    // One that has ended on both sides is one until the guest lets go of it.
    let brief = Peer::saying("bye");
    let bench = start(options(&[&brief]).set("network.max_connections", 1));
    let to = json!({ "connect": at(&brief) });
    let said = json!({ "read": [0, 100] });
    let report = bench
        .take(&json!([to, { "shutdown": [0, "write"] }, said, { "sleep": 300 }, to, { "close": 0 }, to]));
    assert!(step(&report, 4)["error"].is_string() && step(&report, 6)["peer"].is_string(), "{report:?}");
    assert_eq!(report.reasons(), ["connections"], "{report:?}");

    // A look-up is a request, and so is a connection that no look-up has paid for.
    let bench = start(options(&[&peer]).set("network.max_requests", 4));
    let direct = json!({ "connect": peer.address.to_string() });
    let report = bench.take(&json!([
        connect, direct, direct, { "resolve": [at(&peer), 1000] }, { "look_up": "web.test" }, connect, direct,
    ]));
    let stood = |which: usize| step(&report, which)["peer"].is_string();
    // One of the look-ups stands for the next connection, of the others nothing is left.
    assert!(stood(0) && stood(1) && stood(2) && !stood(5), "{report:?}");
    assert!(step(&report, 3)["error"].is_string() && step(&report, 4)["error"].is_string(), "{report:?}");
    assert!(report.reasons().iter().all(|reason| *reason == "requests"), "{report:?}");
    assert_eq!(report.in_force("network")["max_requests"]["used"], 4, "{report:?}");
    assert!(peer.connections() <= 3 + 4, "{report:?}");

    let bench = start(options(&[&peer]).set("network.max_requests", 2));
    let report = bench.take(&json!([connect, direct, direct]));
    assert!(step(&report, 1)["peer"].is_string() && step(&report, 2)["error"].is_string(), "{report:?}");
    assert_eq!(report.reasons(), ["requests"], "{report:?}");

    // HTTP and connections of the guest's own together.
    let both = [
        Tool::typed_bytes(TOOL, guest_wasip2(TOOL)).network(),
        Tool::typed_bytes("hostile_http", guest("hostile_http")).network(),
    ];
    let bench = Bench::start_tools(options(&[&peer]), both);
    let tools = json!({ TOOL: { "allowed": true }, "hostile_http": { "allowed": true } });
    bench.set_policy(&json!({ "tools": tools, "network": { "max_requests_per_minute": 2 } }));
    let report = bench.take(&json!([connect, connect, connect]));
    assert_eq!(report.reasons(), ["request_rate"], "{report:?}");
    let ask = json!({ "requests": [{ "authority": at(&peer), "patience_ms": 100 }] });
    let call = bench.call("hostile_http").grant("network_allowed", true).grant("timeout_seconds", 30);
    let report = call.arguments(ask).send().success();
    assert_eq!(report.reasons(), ["request_rate"], "{report:?}");
}

#[test]
fn sent_and_received_bytes_are_limited() {
    const LIMIT: u64 = 8 << 20;
    let endless = Peer::endless("");
    let bench = start(options(&[&endless]).set("network.max_received_bytes", LIMIT));
    let peak = bench.peak_since(|| {
        let report = bench.take(&json!([
            { "connect": at(&endless) }, { "read": [0, MUCH] }, { "connect": at(&endless) }, { "read": [1, 10] },
        ]));
        assert_eq!(step(&report, 1)["read"], LIMIT, "{report:?}");
        assert!(step(&report, 1)["error"].is_string() && step(&report, 3)["error"].is_string(), "{report:?}");
        assert_eq!(report.in_force("network")["max_received_bytes"]["used"], LIMIT, "{report:?}");
        assert_eq!(report.reasons(), ["received_bytes"], "{report:?}");
    });
    assert!(peak < 64, "{peak} MB");
    // One that nobody reads waits at the other side.
    let report = bench.take(&json!([{ "connect": at(&endless) }, { "read": [0, 1] }, { "sleep": 500 }]));
    let received = report.in_force("network")["max_received_bytes"]["used"].as_u64().expect("a count");
    assert!(received < 4 << 20, "{received}");
    endless.assert_closed();

    let sink = Peer::silent();
    let bench = start(options(&[&sink]).set("network.max_sent_bytes", 1 << 20));
    let text = "y".repeat(4096);
    let report = bench.take(&json!([{ "connect": at(&sink) }, { "write": [0, text, 1000] }]));
    assert!(step(&report, 1)["error"].is_string(), "{report:?}");
    assert_eq!(report.in_force("network")["max_sent_bytes"]["used"], 1 << 20, "{report:?}");
    assert_eq!(report.reasons(), ["sent_bytes"], "{report:?}");
    sink.assert_closed();
    assert_eq!(sink.received().len(), 1 << 20);
}

#[test]
fn traffic_of_exactly_the_limit_is_allowed() {
    let peer = Peer::saying("exactly");
    let bench =
        start(options(&[&peer]).set("network.max_received_bytes", 7).set("network.max_sent_bytes", 4));
    let report =
        bench.take(&json!([{ "connect": at(&peer) }, { "write": [0, "four", 1] }, { "read": [0, 100] }]));
    assert_eq!((&step(&report, 2)["first"], &step(&report, 2)["error"]), (&json!("exactly"), &Value::Null));
    assert!(report.denied().is_empty(), "{report:?}");
}

#[test]
fn large_transfers_arrive_complete_under_backpressure() {
    const SIZE: usize = 5 << 20;
    let peer = Peer::start(|stream| {
        let mut all = Vec::new();
        let _cut = stream.read_to_end(&mut all);
        let right = all.len() == SIZE && all.chunks(16).all(|piece| piece == b"abcdefghijklmnop");
        let _gone = stream.write_all(if right { b"right " } else { b"wrong " });
        let _gone = stream.write_all(&vec![b'z'; SIZE]);
        let _gone = stream.shutdown(Shutdown::Write);
    });
    let bench = start(options(&[&peer]));
    let text = "abcdefghijklmnop".repeat(256);
    let report = bench.take(&json!([
        { "connect": at(&peer) }, { "write": [0, text, SIZE / 4096] }, { "shutdown": [0, "write"] },
        { "read": [0, MUCH] },
    ]));
    assert_eq!(step(&report, 3)["read"], SIZE + 6, "{report:?}");
    assert!(step(&report, 3)["first"].as_str().is_some_and(|text| text.starts_with("right z")), "{report:?}");

    // A peer that reads nothing holds the guest until its deadline, and no more than what is on its way.
    let deaf = Peer::start(|stream| {
        std::thread::sleep(Duration::from_secs(4));
        let _only_now = stream;
    });
    let bench = start(options(&[&deaf]));
    let peak = bench.peak_since(|| {
        let text = "y".repeat(256 << 10);
        let call = bench.steps(&json!([{ "connect": at(&deaf) }, { "write": [0, text, 240] }]));
        let report = call.grant("timeout_seconds", 2).send().limit("time");
        let sent = report.in_force("network")["max_sent_bytes"]["used"].as_u64().expect("a count");
        assert!(sent < 16 << 20, "{sent}");
    });
    assert!(peak < 64, "{peak} MB");
    deaf.assert_closed();
}

#[test]
fn a_guest_may_read_without_blocking() {
    let peer = Peer::start(|stream| {
        std::thread::sleep(Duration::from_millis(200));
        let _gone = stream.write_all(b"first");
        let mut all = vec![0; 2 << 20];
        let _cut = stream.read_exact(&mut all);
        let _gone = stream.write_all(b"second");
    });
    let bench = start(options(&[&peer]));
    // With a pause between, and as fast as it can.
    for pause in [5, 0] {
        let report = bench.take(&json!([
            { "connect": at(&peer) }, { "poll": [0, pause] }, { "spin": [0, 2 << 20] }, { "poll": [0, pause] },
        ]));
        assert_eq!(step(&report, 1), &json!({ "text": "first", "waited": true }), "{report:?}");
        assert_eq!(step(&report, 2), "spun", "{report:?}");
        assert_eq!(step(&report, 3)["text"], "second", "{report:?}");
    }
}

#[test]
fn written_bytes_are_sent_without_a_flush() {
    let sink = Peer::silent();
    let bench = start(options(&[&sink]));
    bench.take(&json!([{ "connect": at(&sink) }, { "write_and_close": [0, "the last words"] }]));
    sink.assert_closed();
    assert_eq!(sink.received(), "the last words");
}

#[test]
fn a_slow_peer_delays_a_run_only_until_its_deadline() {
    let silent = Peer::silent();
    let drips = Peer::dripping("");
    let bench = start(options(&[&silent, &drips]));
    for peer in [&silent, &drips] {
        let steps = json!([{ "connect": at(peer) }, { "read": [0, MUCH] }]);
        assert_ends_at_its_deadline(bench.steps(&steps), peer);
    }
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let bench = start(options(&[]).set("network.allowed_addresses", json!([nobody.to_string()])));
    let to = format!("web.test:{}", nobody.port());
    let report = bench.take(&json!([{ "connect": to }, { "look_up": "nobody-has-this-name.test" }]));
    assert_eq!(step(&report, 0)["error"], "ConnectionRefused", "{report:?}");
    assert!(step(&report, 1)["error"].is_string(), "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
}

#[test]
fn a_peer_that_never_closes_keeps_no_connection_open() {
    // It neither reads nor closes, so only this side can end the connection.
    let holds = Peer::start(|_| {
        loop {
            std::thread::park();
        }
    });
    let bench = start(options(&[&holds]).set("network.max_connections", 4));
    let connect = json!({ "connect": at(&holds) });
    let before = bench.descriptors();
    let report = bench.take(&json!([connect, connect, connect, connect, { "close": 0 }, connect]));
    assert!(step(&report, 5)["peer"].is_string(), "{report:?}");
    let text = "y".repeat(256 << 10);
    let writing = json!([connect, connect, connect, connect, { "write": [0, text, 240] }]);
    let report = bench.steps(&writing).grant("timeout_seconds", 1).send().limit("time");
    assert_eq!(report.0["usage"]["contacted"][0]["requests"], 4, "{report:?}");
    eventually("connections are closed", || (bench.descriptors() < before + 4).then_some(()));
}

#[test]
fn connections_are_closed_at_the_end_of_the_run() {
    let peer = Peer::start(|stream| drop(stream.write_all(b"x")));
    let bench = start(options(&[&peer]));
    // A peer may see a connection before its guest does; what the guest wrote on it comes later.
    let steps = json!([{ "connect": at(&peer) }, { "write": [0, "y", 1] }, { "read": [0, MUCH] }]);
    assert_closed_at_the_end(&bench, &peer, || peer.received().len(), || bench.steps(&steps));
    // Connections that a guest leaves open when it returns are closed as well.
    bench.take(&json!([{ "connect": at(&peer) }, { "read": [0, 1] }]));
    peer.assert_closed();
    bench.assert_well("runs that ended in the middle of a connection");
}

#[test]
fn a_connection_without_a_network_ends_the_run() {
    let peer = Peer::silent();
    let bench = start(options(&[&peer]));
    for step in [
        json!({ "connect": at(&peer) }),
        json!({ "connect": peer.address.to_string() }),
        json!({ "udp": "0.0.0.0:0" }),
    ] {
        let call = bench.call(TOOL).arguments(json!({ "steps": [step] }));
        let report = call.send().failure("this run has no network");
        assert_eq!(report.reasons(), ["network_off"], "{report:?}");
        assert!(report.denied()[0].0.starts_with("wasi:sockets/"), "{report:?}");
    }
    assert_eq!(peer.connections(), 0);
}
