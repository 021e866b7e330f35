//! Memory that callers make the server hold is bounded, is charged to them alone, and is released afterwards.

use harness::callers::{List, agent, ask, bearer, rpc};
use harness::guests::Guest;
use harness::{
    AGENT, Catalogue, Executor, FakeGovernor, GATE, HttpClient, Options, Reply, Tool, WebSocketClient, error,
    eventually, execute, has_interpreter, id_of, intent, manifest, note_figures, post_request, result,
    verdict,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const OTHER: &str = "did:aeon:other:1.0:abc123";

/// A caller that uses all it gets and one that must not be affected, with their tokens.
fn two_callers() -> (List, String, String) {
    let list = List::new();
    let greedy = agent(&list, "greedy", AGENT);
    let other = agent(&list, "other", OTHER);
    (list, greedy, other)
}

/// A call by the other caller.
fn write_by_other(content: &str) -> Value {
    in_name_of(OTHER, execute("write_file", json!({ "path": "/workspace/x", "content": content })))
}

/// Sends `body` on a new connection and does not read the answer.
fn send_without_reading(executor: &Executor, token: &str, body: &Value) -> TcpStream {
    let shown = format!("Authorization: {}", bearer(token));
    let request = post_request("/jsonrpc", &[&shown], &body.to_string());
    HttpClient::send_only(executor.address(), request.as_bytes())
}

fn status_request(call: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/status", "params": { "intent_id": id_of(call) } })
}

/// Objects whose parsed form takes about sixty times the memory of their text.
fn dense(bytes: usize) -> Value {
    json!({ "x": vec![json!({ "": 0 }); bytes / 7] })
}

#[test]
fn a_message_too_large_once_parsed_is_refused_before_parsing() {
    let executor = Executor::start(Options::new().set("server.max_body_bytes", 4 << 20));
    let before = executor.status("VmHWM");
    let dense = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/execute", "params": dense(3 << 20) });
    let refused = executor.client().post(dense.to_string().as_bytes()).json();
    assert!(
        error(&refused, -32700)["message"].as_str().unwrap().contains("would take more than"),
        "{refused}"
    );
    let grown = executor.status("VmHWM") - before;
    assert!(grown < 40 << 10, "the server grew by {grown} KiB");
    let many = json!({ "path": "/workspace/x", "content": "x".repeat(3 << 20) });
    result(&executor.rpc("a2g/execute", &execute("write_file", many)));
}

fn in_name_of(agent: &str, mut params: Value) -> Value {
    params["intent"]["agent_did"] = json!(agent);
    params
}

/// Runs `body` while each of `count` callers has a running or refused call that takes the caller's whole share.
fn while_calls_wait(options: Options, count: usize, body: impl FnOnce(&Executor, &[Value], &[String])) {
    let list = List::new();
    let names = (0..count).map(|n| (format!("caller-{n}"), format!("did:aeon:caller-{n}:1.0:abc123")));
    let names = names.collect::<Vec<_>>();
    let tokens = names.iter().map(|(name, did)| agent(&list, name, did)).collect::<Vec<_>>();
    let catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    let executor = Executor::start(list.of(options.catalogue(&catalogue)));
    let calls = names.iter().map(|(_, did)| in_name_of(did, execute("gate", dense(110_000))));
    let calls = calls.collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let waiting = tokens.iter().zip(&calls).map(|(token, call)| {
            let started = scope.spawn(|| rpc(&mut executor.client(), token, "a2g/execute", call));
            eventually("it runs or is refused", || {
                let status = json!({ "intent_id": id_of(call) });
                let runs = rpc(&mut executor.client(), token, "a2g/status", &status);
                (runs["result"]["state"] == "running" || started.is_finished()).then_some(())
            });
            started
        });
        let waiting = waiting.collect::<Vec<_>>();
        body(&executor, &calls, &tokens);
        for (started, (token, call)) in waiting.into_iter().zip(tokens.iter().zip(&calls)) {
            let cancel = json!({ "intent_id": id_of(call) });
            let cancelled = rpc(&mut executor.client(), token, "a2g/cancel", &cancel);
            let ended = started.join().expect("an answer");
            assert!(ended.get("error").is_some(), "{ended}");
            // A refused call is unknown to `a2g/cancel`.
            let was_known = cancelled["result"]["cancelled"] == true;
            assert_eq!(was_known, ended["error"]["code"] != -32003, "{cancelled} {ended}");
        }
        eventually("there is room again", || {
            let large = in_name_of(&names[0].1, execute("no_such_tool", dense(110_000)));
            let told = rpc(&mut executor.client(), &tokens[0], "a2g/execute", &large);
            (told["error"]["code"] != -32003).then_some(())
        });
        eventually("the memory goes back", || (executor.held_kib() < 19 << 10).then_some(()));
    });
}

#[test]
fn large_calls_of_a_caller_at_its_memory_share_are_deferred() {
    let options = Options::new().set("server.max_memory_mb", 48).set("executor.concurrent", 8);
    while_calls_wait(options, 2, |executor, calls, tokens| {
        let mine = |call| in_name_of("did:aeon:caller-0:1.0:abc123", call);
        let mut client = executor.client();
        let more = mine(execute("gate", dense(110_000)));
        let told = rpc(&mut client, &tokens[0], "a2g/execute", &more);
        let told = error(&told, -32003);
        assert!(told["data"]["retry_after_ms"].is_u64(), "{told}");
        assert!(told["message"].as_str().unwrap().contains("share of `server.max_memory_mb`"), "{told}");
        // The sovereign door reports it too, with HTTP status 200 and the code in the body.
        let body =
            json!({ "jsonrpc": "3.0", "id": 1, "method": "gate", "params": { "payload": dense(110_000) } });
        let headers = [("Content-Type", "application/json"), ("X-API-Key", tokens[0].as_str())];
        let busy = client.request("POST", "/run", &headers, body.to_string().as_bytes());
        assert_eq!(busy.status, 200, "{}", busy.text());
        assert_eq!(busy.json()["error"]["data"]["status_code"], "BUSY", "{}", busy.text());
        // Small calls of the same caller run, and so does the large call of the other caller.
        let small = mine(execute("write_file", json!({ "path": "/workspace/x", "content": "x" })));
        assert_eq!(result(&rpc(&mut client, &tokens[0], "a2g/execute", &small))["status"], "SUCCESS");
        let status = json!({ "intent_id": id_of(&calls[1]) });
        let other = rpc(&mut client, &tokens[1], "a2g/status", &status);
        assert_eq!(result(&other)["state"], "running");
    });
}

#[test]
fn large_calls_wait_for_memory_and_cancels_do_not() {
    let options = Options::new().set("server.max_memory_mb", 48).set("executor.concurrent", 16);
    while_calls_wait(options, 10, |executor, calls, tokens| {
        let over = calls.iter().zip(tokens).find_map(|(call, token)| {
            let told = rpc(&mut executor.client(), token, "a2g/execute", call);
            told["error"]["message"]
                .as_str()
                .filter(|text| text.contains("(`server.max_memory_mb`)"))
                .map(drop)
        });
        assert!(over.is_some(), "ten callers with a quarter of the memory each exceed it");
        assert_eq!(executor.client().request("GET", "/health", &[], b"").status, 200);
        let peak = executor.peak_held_kib();
        assert!(peak < 155 << 10, "{peak} KiB");
    });
}

#[test]
fn a_run_waits_for_output_memory() {
    let options = Options::new().set("server.max_memory_mb", 48).set("executor.concurrent", 8);
    let catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    let executor = Executor::start(options.catalogue(&catalogue).set("ceilings.max_output_bytes", 16 << 20));
    let calls = [0; 2].map(|_| execute("gate", json!({})));
    std::thread::scope(|scope| {
        let waiting = calls.each_ref().map(|call| {
            let started = scope.spawn(|| executor.rpc("a2g/execute", call));
            let status = json!({ "intent_id": id_of(call) });
            let state = || executor.rpc("a2g/status", &status)["result"]["state"].clone();
            eventually("it runs", || (state() == "running").then_some(()));
            started
        });
        let refused = executor.rpc("a2g/execute", &execute("gate", json!({})));
        let told = error(&refused, -32003);
        assert!(told["message"].as_str().unwrap().contains("server.max_memory_mb"), "{told}");
        for call in &calls {
            result(&executor.rpc("a2g/cancel", &json!({ "intent_id": id_of(call) })));
        }
        for waiting in waiting {
            waiting.join().expect("an answer");
        }
    });
    let write = execute("write_file", json!({ "path": "/workspace/x", "content": "x" }));
    eventually("there is room again", || executor.rpc("a2g/execute", &write).get("result").map(drop));
}

/// Each of 100 connections buffers most of a message that never ends.
#[test]
fn unfinished_messages_count_against_their_caller_only() {
    let (list, greedy, other) = two_callers();
    let executor = Executor::start(list.of(Options::new().set("server.max_memory_mb", 160)));
    let bearer = bearer(&greedy);
    // The server's memory has space for all of them, a caller's share for fewer than half.
    let mut begun = (0..100)
        .map(|_| {
            let headers = [("Authorization", bearer.as_str())];
            let mut socket = WebSocketClient::upgrade(executor.address(), &headers).expect("a WebSocket");
            socket.send_pieces(&[b'x'; 100 << 10], 9);
            // A ping does not end the message.
            socket.ping();
            socket
        })
        .collect::<Vec<_>>();
    let closed = eventually("the connections beyond the share are closed", || {
        let closed = begun.iter_mut().filter_map(|socket| socket.is_gone().then_some(())).count();
        (closed >= 50).then_some(closed)
    });
    assert!(closed < 100, "some of them fit");
    let held = executor.held_kib();
    assert!(held < 85 << 10, "the server holds {held} KiB");
    let write = write_by_other("x");
    let large = in_name_of(OTHER, execute("no_such_tool", dense(100_000)));
    let mut client = executor.client();
    assert_eq!(rpc(&mut client, &other, "a2g/execute", &large)["error"]["code"], -32602);
    assert_eq!(result(&rpc(&mut client, &other, "a2g/execute", &write))["status"], "SUCCESS");
    drop(begun);
    eventually("there is room for the same caller again", || {
        let large = execute("no_such_tool", dense(100_000));
        let told = rpc(&mut executor.client(), &greedy, "a2g/execute", &large);
        (told["error"]["code"] == -32602).then_some(())
    });
}

#[test]
fn arguments_of_running_calls_count_against_their_caller() {
    let (list, greedy, other) = two_callers();
    let catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    let options = Options::new().set("server.max_memory_mb", 160).set("executor.concurrent", 64);
    let executor = Executor::start(list.of(options.catalogue(&catalogue)));
    let large = |bytes: usize| json!({ "x": "x".repeat(bytes) });
    let calls = (0..40).map(|_| execute("gate", large(900_000))).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let executor = &executor;
        let shown = bearer(&greedy);
        let waiting = calls.iter().map(|call| {
            let shown = shown.clone();
            scope.spawn(move || ask(&mut executor.client(), Some(&shown), "a2g/execute", call).status)
        });
        let waiting = waiting.collect::<Vec<_>>();
        eventually("the share is full", || {
            let refused = waiting.iter().filter(|waiting| waiting.is_finished()).count();
            (refused >= 25).then_some(())
        });
        let mut client = executor.client();
        for bytes in [1, 300_000] {
            let write = write_by_other(&"x".repeat(bytes));
            assert_eq!(result(&rpc(&mut client, &other, "a2g/execute", &write))["status"], "SUCCESS");
        }
        for call in &calls {
            rpc(&mut client, &greedy, "a2g/cancel", &json!({ "intent_id": id_of(call) }));
        }
    });
}

/// A module that prints a JSON string of `bytes` bytes, at most 12 MiB.
fn printer(bytes: usize) -> Vec<u8> {
    let last = 65_536 + bytes - 1;
    let body = format!(
        "(memory.fill (i32.const 65536) (i32.const 120) (i32.const {bytes}))
        (i32.store8 (i32.const 65536) (i32.const 34)) (i32.store8 (i32.const {last}) (i32.const 34))
        (call $say (i32.const 65536) (i32.const {bytes}))"
    );
    Guest::new(body).memory(193).silent().wasm()
}

/// An executor with a tool that prints `bytes` bytes, and the call that `greedy` has made to it.
fn start_with_a_large_receipt(list: &List, greedy: &str, bytes: usize) -> (Executor, Catalogue, Value) {
    let catalogue = Catalogue::with_tools().add(Tool::command_bytes("says", printer(bytes)));
    let options = list.options().catalogue(&catalogue).set("server.max_memory_mb", 96);
    let executor = Executor::start(options.set("ceilings.max_output_bytes", 16 << 20));
    let call = execute("says", json!({}));
    let said = rpc(&mut executor.client(), greedy, "a2g/execute", &call);
    assert_eq!(result(&said)["result"].as_str().map(str::len), Some(bytes - 2));
    (executor, catalogue, call)
}

/// Receipts are read into memory a few at a time, and each response of a batch counts.
#[test]
fn stored_receipts_are_read_no_faster_than_clients_receive_them() {
    let (list, greedy, other) = two_callers();
    let (executor, _catalogue, read) = start_with_a_large_receipt(&list, &greedy, 2 << 20);
    let mut client = executor.client();
    let body = Value::Array(vec![status_request(&read); 16]);
    let unread = (0..40).map(|_| send_without_reading(&executor, &greedy, &body));
    let unread = unread.collect::<Vec<_>>();
    let write = write_by_other("x");
    assert_eq!(result(&rpc(&mut client, &other, "a2g/execute", &write))["status"], "SUCCESS");
    for mut connection in &unread {
        connection.read_exact(&mut [0; 12]).expect("an answer");
    }
    let peak = executor.peak_held_kib();
    // The budget, and three copies for each of the two readers and each worker. If all queries in the readers' queue
    // were read at once, they would take 256 MB.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let limit = 96 + 3 * 2 * (2 + workers as u64);
    assert!(peak < limit << 10, "{peak} KiB, more than {limit} MiB");
}

/// A caller that requests large answers and reads none is refused further ones; other callers are not.
#[test]
fn unread_answers_count_against_their_caller_only() {
    let (list, greedy, other) = two_callers();
    let (executor, _catalogue, call) = start_with_a_large_receipt(&list, &greedy, 12 << 20);
    let mut client = executor.client();
    let mut unread = Vec::new();
    eventually("it is refused more", || {
        let mut connection = send_without_reading(&executor, &greedy, &status_request(&call));
        let mut answer = [0; 600];
        let read = connection.read(&mut answer).expect("an answer");
        let is_refused = String::from_utf8_lossy(&answer[..read]).contains("-32003");
        unread.push(connection);
        is_refused.then_some(())
    });
    let write = write_by_other("x");
    // Until the memory of a refused answer has been released, another caller may be told to retry.
    eventually("another caller is served", || {
        let answer = rpc(&mut client, &other, "a2g/execute", &write);
        (answer["result"]["status"] == "SUCCESS").then_some(())
    });
    drop(unread);
    let status = json!({ "intent_id": id_of(&call) });
    eventually("it is answered again", || {
        let answer = ask(&mut executor.client(), Some(&bearer(&greedy)), "a2g/status", &status);
        (answer.status == 200).then_some(())
    });
}

/// Agents that hold all that they can: bodies that do not end, answers that they do not read, and arguments of their
/// programs' calls.
#[test]
fn four_agents_stay_within_the_memory_of_the_default() {
    let list = List::new();
    let agents = ["one", "two", "three", "four"].map(|name| {
        let did = format!("did:aeon:{name}:1.0:abc123");
        (agent(&list, name, &did), did)
    });
    let mut catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    catalogue = catalogue.add(Tool::command_bytes("says", printer(1_000_000)));
    if has_interpreter("run_python") {
        catalogue = catalogue.copy("run_python");
    }
    let governor = FakeGovernor::deciding(|call| {
        let mut manifest = manifest();
        manifest["max_memory_mb"] = json!(128);
        Reply::Result(verdict(call["intent_id"].as_str().unwrap(), &manifest))
    });
    let executor = Executor::start(list.of(Options::new().catalogue(&catalogue).governor(&governor.url())));
    let program = r#"
for _ in range(4):
    calls = [tools.start.gate(x="a" * 1_000_000) for _ in range(8)]
    for call in calls:
        try:
            call.result()
        except ToolError:
            pass
"#;
    let body = format!("{{\"x\":\"{}", "x".repeat(990_000));
    let unfinished = |token: &str| {
        let head = format!(
            "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\nContent-Type: application/json\r\n\
             Content-Length: 1000000\r\n\r\n",
            bearer(token)
        );
        // The server may refuse it before it is sent.
        let mut stream = HttpClient::send_only(executor.address(), head.as_bytes());
        let _refused = stream.write_all(body.as_bytes());
        stream
    };
    let said = agents.each_ref().map(|(token, did)| {
        let says = in_name_of(did, execute("says", json!({})));
        result(&rpc(&mut executor.client(), token, "a2g/execute", &says));
        status_request(&says)
    });
    let attack = |token: &str, did: &str, status: &Value| {
        let mut held = Vec::new();
        if has_interpreter("run_python") {
            held.extend((0..6).map(|_| {
                let mut call = intent("run_python", json!({ "code": program }));
                call["agent_did"] = json!(did);
                let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/intent", "params": call });
                send_without_reading(&executor, token, &body)
            }));
        }
        let read = Value::Array(vec![status.clone(); 16]);
        held.extend((0..16).map(|_| send_without_reading(&executor, token, &read)));
        held.extend((0..60).map(|_| unfinished(token)));
        held
    };
    let held = std::thread::scope(|scope| {
        let attacks = agents.iter().zip(&said);
        let attacks = attacks.map(|((token, did), status)| scope.spawn(|| attack(token, did, status)));
        let attacks = attacks.collect::<Vec<_>>();
        attacks.into_iter().map(|attack| attack.join().unwrap()).collect::<Vec<_>>()
    });
    let seen = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(100));
        executor.peak_held_kib()
    });
    let peak = seen.take(50).last().unwrap_or_default();
    println!("peak: {peak} KiB");
    if has_interpreter("run_python") {
        note_figures(&executor.status("VmHWM").to_string());
    }
    // Together with 45 MiB for the program, 200 MiB.
    assert!(peak < 155 << 10, "{peak} KiB");
    assert_eq!(executor.client().request("GET", "/health", &[], b"").status, 200);
    drop(held);
}
