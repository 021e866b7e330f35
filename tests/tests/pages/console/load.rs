//! Pages of runs that go on: what they show, and many of them beside runs.

use harness::callers::{List, agent};
use harness::console::{Client, request};
use harness::methods::policy_folder;
use harness::*;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of open pages. Each of four callers has a quarter of them, because one may have 64 at most.
const PAGES: usize = 200;
const RUNS: usize = 32;

/// A page that follows events, and asks for its changed part after each event about runs. Returns at the end of the
/// stream.
fn follow(client: &Client, events_seen: &AtomicUsize, is_over: &AtomicBool) {
    let mut stream = TcpStream::connect(client.address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let address = client.address;
    let cookie = &client.cookie;
    write!(stream, "GET /console/events HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n")
        .expect("sent");
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next().expect("an answer").expect("a line");
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    for line in lines.map_while(Result::ok) {
        if line.starts_with("event: runs") {
            events_seen.fetch_add(1, Ordering::Relaxed);
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            assert_eq!(client.get("/console").0, 200);
        }
    }
}

#[test]
fn runs_go_on_beside_two_hundred_pages_and_one_that_asks_without_end() {
    let list = List::new();
    let tokens = ["a", "b", "c", "d"].map(|name| list.add(name, &["--role", "operator"]));
    let mine = agent(&list, "mine", AGENT);
    let executor = Executor::start(list.options());
    let clients = tokens.each_ref().map(|token| Client::with_token(&executor, token));
    let events_seen = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let clients = &clients;
        let events_seen = &events_seen;
        let is_over = &is_over;
        let answers = &answers;
        let pages = (0..PAGES)
            .map(|page| scope.spawn(move || follow(&clients[page % clients.len()], events_seen, is_over)));
        let pages = pages.collect::<Vec<_>>();
        eventually("every page has its first event", || {
            (events_seen.load(Ordering::Relaxed) >= PAGES).then_some(())
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(clients[0].get("/console/usage?hours=8784").0, 200);
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        let runs = (0..RUNS).map(|number| {
            let address = executor.address();
            let mine = &mine;
            scope.spawn(move || {
                let path = format!("/workspace/{number}");
                let call = intent("write_file", json!({ "path": path, "content": "text" }));
                HttpClient::ask_as(address, mine, "a2g/intent", &call).expect("an answer")
            })
        });
        for run in runs.collect::<Vec<_>>() {
            let answer = run.join().expect("it ends");
            assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
        }
        let (status, _, _) = request(executor.address(), "GET /health HTTP/1.1", "");
        assert_eq!(status, 200);
        eventually("the endless page is answered", || (answers.load(Ordering::Relaxed) > 0).then_some(()));
        is_over.store(true, Ordering::Relaxed);
        eventually("every page learns of a further run", || {
            let call = intent("read_file", json!({ "path": "/workspace/0" }));
            HttpClient::ask_as(executor.address(), &mine, "a2g/intent", &call);
            pages.iter().all(|page| page.is_finished()).then_some(())
        });
    });
}

#[test]
fn the_page_of_a_run_shows_its_log_while_it_runs() {
    let text = "reading <b>a.md</b> \\u{202e}";
    let endless =
        saying(2, &format!("{text}\n"), 0).replace("(call $exit (i32.const 0))", "(loop $again (br $again))");
    let catalogue = Catalogue::empty().add(Tool::command("endless", &endless));
    let policies = policy_folder(&[policy_for_all(&[("endless", json!({}))])]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let client = Client::local(&executor);
    let call = intent("endless", json!({}));
    let page = format!("/console/runs/{}", call["intent_id"].as_str().expect("an id"));
    std::thread::scope(|scope| {
        let run = scope.spawn(|| executor.rpc("a2g/intent", &call));
        eventually("it has said something", || {
            let page = client.get(&page).1;
            let said = "reading &lt;b&gt;a.md&lt;/b&gt; \\u{202e}";
            (page.contains("RUNNING") && page.contains("Log so far") && page.contains(said)).then_some(())
        });
        let form = [("form_token", client.token.as_str())];
        assert_eq!(client.post(&format!("{page}/stop"), &form, "").0, 303);
        run.join().expect("it ends");
    });
    let ended = eventually("it has ended", || {
        let page = client.get(&page).1;
        page.contains("ABORTED").then_some(page)
    });
    assert!(!ended.contains("Log so far") && ended.contains("reading &lt;b&gt;"), "{ended}");
}
