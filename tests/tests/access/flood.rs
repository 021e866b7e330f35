//! W3, W4 and W6 of the threats, all at once: thousands who hold on to the door, and messages without end.
//! Meanwhile `/health` answers; afterwards nothing has run.

use harness::callers::{List, agent};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The promise is 200 ms, on a machine with nothing else to do.
const HEALTHY: Duration = Duration::from_secs(5);
/// Number of connections held at once, if this process may have so many.
const CONNECTIONS: u64 = 10_000;
/// For everything else that this process has open.
const OTHERS: u64 = 1_000;
const OTHER: &str = "did:aeon:other:1.0:abc123";
/// Long enough to show that a message without an end is not read to its end.
const ENDLESS: usize = 64 << 20;

/// As many connections as this process may hold beside its other files.
fn connections() -> usize {
    let resource = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(resource);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(resource, raised).unwrap();
    let may = limit.maximum.unwrap_or(u64::MAX).saturating_sub(OTHERS);
    if may < CONNECTIONS {
        let _nowhere_to_say_it =
            writeln!(std::io::stderr(), "{may} connections instead of {CONNECTIONS}: `ulimit -Hn` is low");
    }
    usize::try_from(may.min(CONNECTIONS)).unwrap()
}

/// The time of a small call beside a flood, most of which is the start of its run on a busy machine.
const PROMPT: Duration = Duration::from_secs(3);

/// Sends pieces until the other side has had enough, and gives how many bytes it took.
fn pour(address: SocketAddr, head: &[u8], piece: &[u8]) -> (usize, String) {
    let mut stream = HttpClient::send_only(address, head);
    let mut sent = 0;
    while sent < ENDLESS && stream.write_all(piece).is_ok() {
        sent += piece.len();
    }
    // An answer may be lost if its sender closes while more input arrives.
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    (sent, String::from_utf8_lossy(&answer).into_owned())
}

/// A call that would write a file, if it were let in.
fn call() -> String {
    json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": execute("write_file", write("ran", "x")), "id": 1 })
        .to_string()
}

/// Messages that are whole and refused as a whole, with their codes.
fn monsters() -> Vec<(&'static str, Vec<u8>, i64)> {
    let call = call();
    let batch = format!("[{}]", vec![call.as_str(); 100_000].join(","));
    let deep = call
        .replace("\"content\":\"x\"", &format!("\"content\":{}{}", "[".repeat(100_000), "]".repeat(100_000)));
    let id = call.replace("\"id\":1", &format!("\"id\":\"{}\"", "x".repeat(10 << 20)));
    assert!(deep.len() > 200_000 && id.len() > 10 << 20);
    vec![
        ("a batch of 100,000", batch.into_bytes(), -32600),
        ("depth 100,000", deep.into_bytes(), -32700),
        ("a 10 MB id", id.into_bytes(), -32600),
    ]
}

/// That nothing has run, by the journal and by the files.
fn assert_nothing_ran(executor: &Executor) {
    assert!(executor.home().list_journal(&[]).is_empty());
    executor.assert_workspace_is_empty("a flood");
    assert!(executor.reports().is_empty());
}

/// A call takes its place among those that wait before it is written.
#[test]
fn no_more_calls_of_a_burst_wait_for_a_person_than_may() {
    let executor = Executor::start(Options::new());
    let address = executor.address();
    let calls = (0..400).map(|nth| {
        let mut call = execute("write_file", write(&format!("{nth}"), "x"));
        call["verdict"]["verdict"] = json!("ESCALATE");
        call
    });
    let answers = std::thread::scope(|scope| {
        let ask = |call: Value| {
            scope.spawn(move || HttpClient::ask(address, "a2g/execute", &call).expect("an answer"))
        };
        let asking = calls.map(ask).collect::<Vec<_>>();
        asking.into_iter().map(|asking| asking.join().expect("no panic")).collect::<Vec<_>>()
    });
    let waits = |answer: &&Value| answer["error"]["data"]["blocked_by"] == "escalation_pending";
    let (waiting, refused) = answers.iter().partition::<Vec<_>, _>(waits);
    assert_eq!((waiting.len(), refused.len()), (250, 150));
    for answer in refused {
        let refusal = error(answer, -32003);
        let message = refusal["message"].as_str().expect("a message");
        assert!(message.starts_with("too many intents wait for a person"), "{message}");
        assert_eq!(refusal["data"]["retry_after_ms"], 60_000, "{answer}");
    }
    executor.assert_workspace_is_empty("a burst");
}

fn flood(address: SocketAddr) {
    let call = call();
    let whole = post_request("/jsonrpc", &[], &call);
    let halves: [&[u8]; 4] = [
        b"",
        b"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-",
        &whole.as_bytes()[..200],
        b"GET /jsonrpc HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: web",
    ];
    let many = connections();
    let mut held: Vec<TcpStream> = Vec::with_capacity(many);
    for nth in 0..many {
        held.push(HttpClient::send_only(address, halves[nth % halves.len()]));
    }
    // Those who stay go on as slowly as they can, and others make no sense.
    for stream in held.iter_mut().rev().take(200) {
        let _may_have_given_way = stream.write_all(b"a");
    }
    for (what, body, code) in monsters() {
        let answer = HttpClient::connect(address).post(&body);
        assert!(answer.body.len() < 2000, "{what}: an answer of {} bytes", answer.body.len());
        error(&answer.json(), code);
    }
    let line = b"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nX-Endless: ";
    let (sent, answer) = pour(address, line, &[b'a'; 8 << 10]);
    assert!(sent < ENDLESS, "a header line of {sent} bytes was read");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[test]
fn health_checks_are_answered_during_ten_thousand_held_connections() {
    // Bodies are let in that are long enough for their content to be what is refused.
    let executor = Executor::start(Options::new().set("server.max_body_bytes", 128 << 20));
    let address = executor.address();
    let watched = watch_during(address, || flood(address));
    watched.assert_fair();
    assert!(watched.slowest < HEALTHY, "{watched:?}");
    assert_nothing_ran(&executor);
}

/// Messages that take far longer to read than to send, over many connections of one caller, delay that caller alone.
#[test]
fn large_messages_of_one_caller_delay_no_other() {
    let list = List::new();
    let greedy = agent(&list, "greedy", AGENT);
    let other = agent(&list, "other", OTHER);
    let executor = Executor::start(list.options());
    let address = executor.address();
    let shown = format!("Authorization: Bearer {greedy}");
    let members = (0..90_000).map(|n| (format!("k{n:05}"), 1)).collect::<Value>();
    let urls = (0..50_000).map(|n| format!("http://h{n:05}.x")).collect::<Value>();
    // The governor parses each URL several times, so one such message keeps a core busy for long.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (method, params, connections) in [
        ("a2g/execute", execute("write_file", members), 16),
        ("a2g/intent", intent("write_file", json!({ "urls": urls })), cores),
    ] {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        assert!(body.len() < 1 << 20, "a body of {} bytes is refused unread", body.len());
        let with_id = params.get("intent").unwrap_or(&params);
        let id = with_id["intent_id"].as_str().expect("an id");
        let watched = watch_during(address, || {
            std::thread::scope(|scope| {
                for _ in 0..connections {
                    scope.spawn(|| {
                        // A repeated intent would wait for the first one.
                        let another = body.replace(id, &intent_id());
                        let answer = HttpClient::post_to(address, "/jsonrpc", &[&shown], &another);
                        // 503 if the caller's share of memory is used up.
                        let is_refused =
                            |answer: &HttpAnswer| answer.status == 503 || answer.text().contains("-32");
                        assert!(answer.as_ref().is_ok_and(is_refused), "{method}: {answer:?}");
                    });
                }
                let mut call = execute("write_file", write("out", "x"));
                call["intent"]["agent_did"] = json!(OTHER);
                let answer = HttpClient::ask_as(address, &other, "a2g/execute", &call).expect("an answer");
                assert_eq!(result(&answer)["status"], "SUCCESS");
            });
        });
        watched.assert_fair();
    }
}

/// A public document is made once, and requests that have all arrived take turns with those of other connections.
#[test]
fn pipelined_requests_delay_no_other_connection() {
    // The card lists every tool.
    let module = wat::parse_str(saying(1, "1", 0)).expect("WAT");
    let catalogue = (0..40).fold(Catalogue::with_tools(), |catalogue, number| {
        catalogue.add(Tool::command_bytes(&format!("copy_{number}"), module.clone()))
    });
    let options = Options::new().catalogue(&catalogue);
    let executor = Executor::start(options.set("server.unauthenticated_per_minute", 10_000_000));
    let address = executor.address();
    let mut client = executor.client();
    let path = "/.well-known/agent-card.json";
    let card = client.request("GET", path, &[], b"");
    let etag = card.headers.iter().find(|(name, _)| name == "etag").map(|(_, value)| value.as_str());
    let again = client.request("GET", path, &[("If-None-Match", etag.expect("an ETag"))], b"");
    assert_eq!((again.status, again.body.len()), (304, 0));
    let connections = 100;
    let requests = 100;
    let pipelined = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(requests - 1);
    let pipelined =
        pipelined + &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let watched = watch_during(address, || {
        let open = || HttpClient::send_only(address, pipelined.as_bytes());
        let sent = (0..connections).map(|_| open()).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let asked = Instant::now();
                let answer = executor.rpc("a2g/execute", &execute("write_file", write("out", "x")));
                assert_eq!(result(&answer)["status"], "SUCCESS");
                assert!(asked.elapsed() < PROMPT, "a call took {:?}", asked.elapsed());
            });
            for mut stream in sent {
                let mut answers = String::new();
                stream.read_to_string(&mut answers).expect("all answers");
                assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), requests);
            }
        });
    });
    watched.assert_fair();
}

/// The rate of requests without credentials is limited for each address; callers behind it are not affected.
#[test]
fn requests_without_credentials_have_a_rate() {
    let list = List::new();
    let token = agent(&list, "planner", AGENT);
    let executor = Executor::start(list.options().set("server.unauthenticated_per_minute", 20));
    let card = "/.well-known/agent-card.json";
    let mut client = executor.client();
    let mut get = |path: &str, headers: &[(&str, &str)]| client.request("GET", path, headers, b"");
    let statuses = (0..20).map(|n| get(["/metrics", card, "/console/sign-in", "/mcp"][n % 4], &[]).status);
    assert_eq!(statuses.collect::<HashSet<_>>(), HashSet::from([200, 401]));
    for path in ["/metrics", card, "/console/sign-in", "/mcp", "/capabilities"] {
        let refused = get(path, &[]);
        assert_eq!(refused.status, 429, "{path}: {refused:?}");
        assert!(refused.headers.iter().any(|(name, _)| name == "retry-after"), "{refused:?}");
        assert!(refused.text().contains("server.unauthenticated_per_minute"), "{}", refused.text());
    }
    assert_eq!(get("/health", &[]).status, 200);
    let bearer = format!("Bearer {token}");
    assert_eq!(get("/capabilities", &[("Authorization", &bearer)]).status, 200);
    assert_eq!(get(card, &[]).status, 200, "the connection is that of a caller");
    assert_eq!(executor.client().request("GET", card, &[], b"").status, 429);
}

/// Without a length nobody knows how long a body is, until it is too long.
#[test]
fn an_endless_body_is_refused_at_the_limit() {
    let executor = Executor::start(Options::new());
    let head = b"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let piece = [b"10000\r\n".as_slice(), &[b'['; 0x10000], b"\r\n"].concat();
    let (sent, answer) = pour(executor.address(), head, &piece);
    assert!(sent < ENDLESS, "a body of {sent} bytes was read");
    assert!(answer.is_empty() || answer.contains("-32700"), "{answer}");
    // A message in pieces that never end is one message.
    let mut socket = executor.web_socket();
    socket.send_pieces(&[b'['; 0x10000], ENDLESS / 0x10000);
    assert!(socket.receive().is_none(), "it is closed");
    assert_nothing_ran(&executor);
}

/// A line without an end takes no more memory than the longest that is read, and the next is understood.
#[test]
fn an_endless_line_over_stdio_is_not_buffered() {
    let mut door = StdioClient::start(Options::new());
    error(&door.exchange(&"[".repeat(1000)), -32700);
    let before = door.process().status("VmRSS");
    let piece = vec![b'['; 1 << 20];
    for _ in 0..ENDLESS / piece.len() {
        door.send_part(&piece);
    }
    let grown = door.process().status("VmRSS").saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KB more after {ENDLESS} bytes of one line");
    error(&door.exchange("]"), -32700);
    for (what, body, code) in monsters() {
        door.send(&body);
        let answer = door.receive();
        // By default a line of so many bytes is too long to be looked at.
        let code = if body.len() > 1 << 20 { -32700 } else { code };
        assert_eq!(answer["error"]["code"], code, "{what}: {answer}");
    }
    result(&door.exchange(r#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#));
    assert!(std::fs::read_dir(door.workspace()).unwrap().next().is_none(), "something ran");
    assert!(door.home().list_journal(&[]).is_empty());
}
