//! Clients that keep connections open, or send as slowly as they can.

use harness::callers::{List, agent, bearer};
use harness::{AGENT, Executor, HttpClient, Options, eventually, execute, result};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Far longer than an answer should take, because the machine may be busy.
const SOON: Duration = Duration::from_secs(5);

fn health(executor: &Executor) {
    let asked = Instant::now();
    let answer = HttpClient::connect(executor.address()).request("GET", "/health", &[], b"");
    assert!(answer.text().contains("ok"), "{answer:?}");
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

/// True if the peer has closed the connection, orderly or not.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => true,
        Ok(_) => is_closed(stream),
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// If too many connections are silent or have sent half a head or half a body, the oldest are closed for new clients.
#[test]
fn idle_connections_are_evicted_for_new_clients() {
    let executor = Executor::start(Options::new().set("server.max_connections", 20));
    let halves: [&[u8]; 3] = [
        b"",
        b"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-",
        b"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    ];
    let mut held: Vec<TcpStream> = Vec::new();
    for nth in 0..200 {
        held.push(HttpClient::send_only(executor.address(), halves[nth % 3]));
        if nth % 20 == 19 {
            health(&executor);
        }
    }
    let file = json!({ "path": "/workspace/a", "content": "x" });
    let answer = HttpClient::connect(executor.address()).rpc("a2g/execute", &execute("write_file", file));
    result(&answer);
    eventually("the oldest are closed", || held.iter_mut().take(150).all(is_closed).then_some(()));
    assert!(held.iter_mut().rev().take(5).all(|last| !is_closed(last)), "the latest stay open");
}

/// A silent WebSocket is evicted too; one with a running call is not.
#[test]
fn a_connection_with_a_running_call_is_not_evicted() {
    let catalogue = harness::methods::catalogue();
    let executor = Executor::start(Options::new().catalogue(&catalogue).set("server.max_connections", 8));
    let mut socket = executor.web_socket();
    let call =
        json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": execute("gate", json!({})), "id": 1 });
    socket.send(call.to_string().as_bytes());
    executor.wait_at_the_gate(1);
    let mut idle = executor.web_socket();
    // Its caller is authenticated, as those of these are, so that it is the oldest of its kind.
    let held = (0..40).map(|_| executor.web_socket()).collect::<Vec<_>>();
    health(&executor);
    executor.open_the_gate();
    let answer = socket.receive().expect("an answer");
    assert!(answer.contains("SUCCESS"), "{answer}");
    assert!(idle.receive().is_none(), "it was evicted");
    drop(held);
}

#[test]
fn a_head_and_a_body_have_to_arrive_in_time() {
    let executor = Executor::start(Options::new().set("server.request_seconds", 1));
    let mut head = HttpClient::send_only(executor.address(), b"POST /jsonrpc HTTP/1.1\r\nHost: loc");
    let mut body = HttpClient::send_only(
        executor.address(),
        b"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    );
    // A byte now and then does not extend the time.
    let began = Instant::now();
    eventually("the slow head is closed", || {
        let _closed = head.write_all(b"a");
        is_closed(&mut head).then_some(())
    });
    assert!(began.elapsed() < SOON * 2, "{:?}", began.elapsed());
    body.set_read_timeout(Some(SOON * 2)).unwrap();
    let mut answer = [0; 12];
    body.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    health(&executor);
}

/// A client that is refused before its body was read can reuse its connection. If the body is incomplete or too long to
/// be read, the answer has `Connection: close`.
#[test]
fn a_refused_request_leaves_its_connection_usable() {
    let list = List::new();
    let authorization = format!("Authorization: {}", bearer(&agent(&list, "planner", AGENT)));
    let executor = Executor::start(list.options());
    let json = "Content-Type: application/json";
    let local = "Host: localhost";
    let long = vec![b' '; 3 << 20];
    let post = |path: &str, headers: &[&str], body: &[u8]| {
        let headers = headers.join("\r\n");
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\n{headers}\r\nContent-Length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/tools" }).to_string();
    let good = post("/jsonrpc", &[local, json, &authorization], call.as_bytes());
    let evil = ["Host: evil.example", json, &authorization];
    let from_a_page = [local, json, &authorization, "Origin: https://evil.example"];
    for (path, headers, status) in [
        ("/jsonrpc", &[local, json][..], 401),
        ("/jsonrpc", &[local, json, "Authorization: Basic x"], 401),
        ("/jsonrpc", &[local, &authorization], 415),
        ("/jsonrpc", &evil, 403),
        ("/jsonrpc", &from_a_page, 403),
        ("/metrics", &[local, json, &authorization], 405),
        ("/nowhere", &[local, json, &authorization], 404),
        ("/run", &[local, json], 401),
        ("/jsonrpc", &[local, json, &authorization], 200),
    ] {
        let mut client = executor.client();
        let refused = client.raw(&post(path, headers, &long));
        assert_eq!(refused.status, status, "{path} {headers:?}: {}", refused.text());
        let next = client
            .on_kept_connection(&good)
            .unwrap_or_else(|| panic!("{path} {headers:?}: the connection is closed"));
        assert!(next.json()["result"].is_object(), "{}", next.text());
    }
    // The server does not wait for an absent or overlong body.
    let held_back = "Expect: 100-continue\r\nContent-Length: 9";
    for rest in [held_back, "Content-Length: 99999999"] {
        let asked = Instant::now();
        let head = format!("POST /jsonrpc HTTP/1.1\r\n{local}\r\n{json}\r\n{rest}\r\n\r\n");
        let refused = executor.client().raw(head.as_bytes());
        assert_eq!(refused.status, 401);
        assert!(refused.headers.contains(&("connection".to_owned(), "close".to_owned())), "{refused:?}");
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    }
    let begun = format!("POST /jsonrpc HTTP/1.1\r\n{local}\r\n{json}\r\nContent-Length: 9\r\n\r\n1");
    let refused = executor.client().raw(begun.as_bytes());
    assert!(refused.headers.contains(&("connection".to_owned(), "close".to_owned())), "{refused:?}");
}

/// Every ping is answered, so answers would pile up for a client that pings endlessly and reads nothing.
#[test]
fn a_connection_that_pings_endlessly_is_closed() {
    let executor = Executor::start(Options::new());
    let mut socket = executor.web_socket();
    for _ in 0..1000 {
        socket.ping();
    }
    eventually("it is closed", || socket.is_gone().then_some(()));
    let mut polite = executor.web_socket();
    polite.ping();
    polite.send(br#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#);
    assert!(polite.receive().is_some());
}

/// WebSockets that send requests and read no answers do not keep other clients out, because they are evicted.
#[test]
fn connections_that_read_no_answers_are_evicted_for_new_clients() {
    let executor = Executor::start(Options::new().set("server.max_connections", 4));
    let discover = r#"{"jsonrpc":"2.0","method":"rpc.discover","id":1}"#;
    let batch = format!("[{}]", [discover; 16].join(","));
    let mut held: Vec<_> = (0..4).map(|_| executor.web_socket()).collect();
    for socket in &mut held {
        for _ in 0..150 {
            socket.send(batch.as_bytes());
        }
    }
    for _ in 0..20 {
        eventually("another client is served", || {
            let answer = HttpClient::ask(executor.address(), "a2g/tools", &json!({}));
            answer.filter(|answer| answer.get("result").is_some()).map(drop)
        });
    }
    eventually("an evicted connection is closed", || {
        held.iter_mut().any(|socket| socket.is_gone()).then_some(())
    });
}

/// Sends `bytes` on a new connection, and returns everything that it receives until the connection is closed.
fn exchange(executor: &Executor, bytes: &str) -> String {
    let mut stream = HttpClient::send_only(executor.address(), bytes.as_bytes());
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("the connection is closed");
    said
}

/// A line of a head ends with CR and LF. A proxy in front of the server might parse a bare LF differently, and could
/// then be made to see two requests instead of one.
#[test]
fn a_bare_line_feed_is_refused_in_a_head_but_not_in_a_body() {
    let executor = Executor::start(Options::new());
    let good = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let bad = [
        "GET /health HTTP/1.1\nHost: localhost\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\n",
        "GET /health HTTP/1.1\nHost: localhost\n\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\nContent-Length: 5\r\n\r\n",
        "\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ];
    for bad in bad {
        let said = exchange(&executor, bad);
        assert!(said.starts_with("HTTP/1.1 400 "), "{bad:?}: {said}");
        // The same holds after another request, with and without a body.
        let call = "{\"jsonrpc\":\"2.0\",\n\"method\":\"a2g/tools\",\n\n\"id\":1}";
        let head = "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let length = format!("{head}Content-Length: {}\r\n\r\n{call}", call.len());
        let chunked =
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{call}\r\n0\r\n\r\n", call.len());
        for before in [good, &length, &chunked] {
            let said = exchange(&executor, &format!("{before}{bad}"));
            assert!(said.starts_with("HTTP/1.1 200 "), "{before:?} {bad:?}: {said}");
            assert!(said.contains("HTTP/1.1 400 "), "{before:?} {bad:?}: {said}");
            assert_eq!(said.contains("write_file"), before != good, "the body arrives unchanged: {said}");
        }
    }
    let mut socket = executor.web_socket();
    for _ in 0..3 {
        let answer = socket.exchange("{\"jsonrpc\":\"2.0\",\n\n\"method\":\"a2g/tools\",\n\"id\":1}");
        assert!(result(&answer)["tools"].is_array(), "{answer}");
    }
}
