//! Servers of a test's own on loopback, and what all tests have in common whose guests reach them.
//!
//! Loopback is refused like every address that is not public, so each test says which of its servers the operator
//! lifts that for, and shows that nobody else was connected to.

use super::bench::{Bench, Call, CallAnswer, Report};
use harness::{Options, eventually, isolation};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A server, which does with each connection what its function does, and then waits until the other side closes.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    /// The heads of HTTP requests, and what the body began with.
    requests: Vec<String>,
    /// What else came, of all connections.
    received: Vec<u8>,
    /// Number of connections that the other side has closed.
    closed: usize,
}

impl Peer {
    pub(super) fn start(work: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_as(move |_, stream| work(stream))
    }

    fn start_as(work: impl Fn(&Mutex<Seen>, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Seen>>::default();
        let books = Arc::clone(&seen);
        let work = Arc::new(work);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let books = Arc::clone(&books);
                let work = Arc::clone(&work);
                // Counted before anything else, so that whoever has heard from this server is counted.
                books.lock().unwrap().connections += 1;
                std::thread::spawn(move || {
                    work(&books, &mut stream);
                    let mut piece = [0; 4096];
                    while let Ok(read @ 1..) = stream.read(&mut piece) {
                        books.lock().unwrap().received.extend(&piece[..read]);
                    }
                    books.lock().unwrap().closed += 1;
                });
            }
        });
        Self { address, seen }
    }

    /// Says nothing.
    pub(super) fn silent() -> Self {
        Self::start(|_| {})
    }

    /// Says this, and that this is all.
    pub(super) fn saying(text: &'static str) -> Self {
        Self::start(move |stream| {
            let _gone = stream.write_all(text.as_bytes());
            let _gone = stream.shutdown(Shutdown::Write);
        })
    }

    /// Sends a byte now and then; with the head of an answer, after it has read a request.
    pub(super) fn dripping(head: &'static str) -> Self {
        Self::start(move |stream| {
            send_head(head, stream);
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    }

    /// Sends bytes without an end; with the head of an answer, after it has read a request.
    pub(super) fn endless(head: &'static str) -> Self {
        Self::start(move |stream| {
            send_head(head, stream);
            while stream.write_all(&[b'x'; 64 << 10]).is_ok() {}
        })
    }

    /// Reads a request over HTTP and answers it.
    pub(super) fn web(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_as(move |seen, stream| {
            let request = read_request(stream);
            seen.lock().unwrap().requests.push(request.clone());
            answer(&request, stream);
        })
    }

    /// Answers every request with 200 and this body.
    pub(super) fn page(body: &'static str) -> Self {
        Self::web(move |_, stream| {
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

    /// Waits until there have been so many connections, and checks that there were no more. Whoever has connected and
    /// heard nothing may not be counted yet.
    pub(super) fn expect_connections(&self, count: usize) {
        eventually("the connections are counted", || (self.connections() >= count).then_some(()));
        assert_eq!(self.connections(), count);
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().requests.clone()
    }

    pub(super) fn received(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().received).into_owned()
    }

    pub(super) fn assert_closed(&self) {
        eventually("every connection is closed", || {
            let seen = self.seen.lock().unwrap();
            (seen.closed == seen.connections).then_some(())
        });
    }
}

/// Answers a request by this head. An answer before its request would end the connection.
fn send_head(head: &str, stream: &mut TcpStream) {
    if !head.is_empty() {
        read_request(stream);
        let _gone = stream.write_all(head.as_bytes());
    }
}

/// One request: its head, and the beginning of its body when it says how long that is. What follows stays in
/// the stream.
pub(super) fn read_request(stream: &mut impl Read) -> String {
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
pub(super) fn options(lifted: &[&Peer]) -> Options {
    let lifted = lifted.iter().map(|peer| peer.address.to_string()).collect::<Vec<_>>();
    Options::new()
        .set("ceilings.network_allowed", true)
        .set("network.allowed_domains", json!(["*.test", "only.example"]))
        .set("network.allowed_addresses", json!(lifted))
        .set("network.hosts", json!({ "web.test": ["127.0.0.1"] }))
}

/// As [`options`], with names that are blocked.
pub(super) fn blocking_options(lifted: &[&Peer]) -> Options {
    let blocked = json!(["secret.test", "*.secret.test", "xn--bcher-kva.test"]);
    options(lifted).set("network.blocked_domains", blocked)
}

/// Names that nobody may reach under [`blocking_options`], and why.
pub(super) const REFUSED_NAMES: [(&str, &str); 21] = [
    ("other.example", "domain_not_allowed"),
    // The apex is not below itself, and a suffix is no label.
    ("test", "domain_not_allowed"),
    ("eviltest", "domain_not_allowed"),
    ("web.test.evil.example", "domain_not_allowed"),
    ("notonly.example", "domain_not_allowed"),
    ("sub.only.example", "domain_not_allowed"),
    ("localhost", "domain_not_allowed"),
    ("secret.test", "domain_blocked"),
    ("SECRET.TEST.", "domain_blocked"),
    ("a.Secret.Test", "domain_blocked"),
    ("XN--BCHER-KVA.test", "domain_blocked"),
    ("web.test@evil.example", "authority"),
    ("web.test..", "authority"),
    ("xn--0.test", "authority"),
    ("2130706433", "authority"),
    ("0x7f000001", "authority"),
    ("0x7f.0.0.1", "authority"),
    ("017700000001", "authority"),
    ("0177.0.0.1", "authority"),
    ("127.1", "authority"),
    ("127.0.0.1", "ip_literal"),
];

/// Names with addresses of which not all are public, beside `web.test`.
pub(super) const NON_PUBLIC: [(&str, &[&str]); 10] = [
    ("metadata.test", &["169.254.169.254"]),
    ("private.test", &["10.0.0.1"]),
    ("loopback6.test", &["::1"]),
    ("mapped.test", &["::ffff:127.0.0.1"]),
    ("nat64.test", &["64:ff9b::7f00:1"]),
    ("sixtofour.test", &["2002:7f00:1::"]),
    ("any.test", &["0.0.0.0"]),
    // One that is public does not vouch for the other, in any order.
    ("mixed.test", &["93.184.216.34", "10.0.0.1"]),
    ("mixed2.test", &["10.0.0.1", "93.184.216.34"]),
    ("localhost", &["127.0.0.1", "::1"]),
];

/// The same with an address that is lifted for another port, which is known when somebody connects.
pub(super) const LIFTED_FOR_ANOTHER_PORT: [(&str, &[&str]); 3] = [
    ("web.test", &["127.0.0.1"]),
    ("mixed3.test", &["93.184.216.34", "127.0.0.1"]),
    ("mixed4.test", &["127.0.0.1", "93.184.216.34"]),
];

/// The hosts of both lists.
pub(super) fn non_public_hosts() -> Value {
    let hosts = NON_PUBLIC.into_iter().chain(LIFTED_FOR_ANOTHER_PORT);
    hosts.map(|(name, addresses)| (name.to_owned(), json!(addresses))).collect::<Map<_, _>>().into()
}

pub(super) fn at(peer: &Peer) -> String {
    format!("web.test:{}", peer.port())
}

/// Checks that a call that waits for a peer ends at its deadline, and that its connection is closed then.
pub(super) fn assert_ends_at_its_deadline(call: Call<'_>, peer: &Peer) {
    let answer = call.grant("timeout_seconds", 1).send();
    assert!(answer.took < Duration::from_secs(5), "{:?}", answer.took);
    let report = answer.limit("time");
    assert_eq!(report.0["usage"]["contacted"][0]["requests"], 1, "{report:?}");
    peer.assert_closed();
}

/// Checks that the connections of calls that wait for a peer, each once there is more that the peer has `heard`, are
/// closed when they are cancelled, and when their processes are killed; and gives the report of the latter.
pub(super) fn assert_closed_at_the_end<'a>(
    bench: &'a Bench,
    peer: &Peer,
    heard: impl Fn() -> usize,
    call: impl Fn() -> Call<'a>,
) -> Option<Report> {
    let meanwhile = |work: &dyn Fn(&str)| -> CallAnswer {
        let before = heard();
        // This kills every process of every run.
        let call = call().undisturbed();
        let intent = call.intent();
        std::thread::scope(|scope| {
            let answer = scope.spawn(move || call.send());
            eventually("the peer hears of it", || (heard() > before).then_some(()));
            work(&intent);
            let answer = answer.join().expect("no panic");
            peer.assert_closed();
            answer
        })
    };
    let cancelled = meanwhile(&|intent| assert!(bench.cancel(intent))).aborted("cancelled");
    assert_eq!(cancelled.0["usage"]["contacted"][0]["requests"], 1, "{cancelled:?}");
    if isolation() == "inline" {
        return None;
    }
    let killed = meanwhile(&|_| super::isolation::kill_all_children(bench)).failure("SIGKILL");
    assert_eq!(killed.0["usage"]["contacted"][0]["requests"], 1, "{killed:?}");
    Some(killed)
}
