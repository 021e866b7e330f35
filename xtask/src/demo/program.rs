//! The step with a program in Python that calls other tools, and the web server that it fetches a page from.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use uuid::Uuid;

use super::client::{Client, at, text};
use super::fixture::Fixture;
use super::output;
use super::steps::{POLL_INTERVAL, StepResult, current_state, expect};
use crate::run;

pub(super) const TOOL: &str = "run_python";
pub(super) const TITLE: &str = "run_python, which calls other tools";
/// The agent of `program.json`.
const AGENT: &str = "did:a2g:agent:1.0:program";
const PROGRAM: &str = include_str!("program.py");
/// The files that the program reads.
pub(super) const NOTES: [(&str, &str); 3] =
    [("plants.txt", "water the plants\n"), ("shop.txt", "buy bread\n"), ("visit.txt", "call the plumber\n")];
const PAGE: &str = "sunny, 21 degrees\n";
/// The tool, verdict and status of each call that the program makes.
const CALLS: [[&str; 3]; 7] = [
    ["list_directory", "APPROVED", "SUCCESS"],
    ["read_file", "APPROVED", "SUCCESS"],
    ["read_file", "APPROVED", "SUCCESS"],
    ["read_file", "APPROVED", "SUCCESS"],
    ["read_file", "DENIED", "REFUSED"],
    ["http_fetch", "ESCALATE", "SUCCESS"],
    ["write_file", "APPROVED", "SUCCESS"],
];
/// The number of the call that a person approves.
const ESCALATED_CALL: &str = "6";
const ESCALATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends the program, and approves its fetch as a person would.
pub(super) fn take(executor: Client, governor: Client, fixture: &Fixture) -> Result<StepResult> {
    let intent = Uuid::new_v4();
    let code = PROGRAM.replace("ADDRESS", &fixture.web_server.to_string());
    let params = json!({ "agent_did": AGENT, "intent_id": intent.to_string(), "tool": TOOL,
        "arguments": { "code": code } });
    let escalated = Uuid::new_v5(&intent, ESCALATED_CALL.as_bytes());
    let (answer, approved) = thread::scope(|scope| {
        let call = scope.spawn(|| executor.call("a2g/intent", &params));
        let approved = approve(executor, governor, escalated, || call.is_finished());
        (call.join(), approved)
    });
    let answer = answer.map_err(|_| anyhow!("the thread that sends the program panicked"))??;
    let verify = || {
        expect("verdict", "CONDITIONAL", &output::verdict(&answer))?;
        expect("outcome", "SUCCESS", output::outcome(&answer))?;
        approved?;
        check(&answer, fixture)
    };
    let note = verify();
    Ok((answer, note))
}

fn approve(executor: Client, governor: Client, intent: Uuid, has_ended: impl Fn() -> bool) -> Result<()> {
    let params = json!({ "intent_id": intent.to_string() });
    let started = run::now();
    while current_state(executor, &params)? != "escalated" {
        let is_late = has_ended() || started.elapsed() > ESCALATION_TIMEOUT;
        ensure!(!is_late, "call {ESCALATED_CALL} of the program did not wait for a person");
        thread::sleep(POLL_INTERVAL);
    }
    let directive = json!({ "intent_id": intent.to_string(), "decision": "APPROVED" });
    let answer = governor.call("g2a/directive", &directive)?;
    ensure!(at(&answer, "/result/accepted") == true, "the governor did not take the approval: {answer}");
    Ok(())
}

fn check(answer: &Value, fixture: &Fixture) -> Result<String> {
    let calls: Vec<_> = calls(answer)
        .iter()
        .map(|call| ["/tool", "/verdict", "/status"].map(|pointer| text(call, pointer)))
        .collect();
    ensure!(calls == CALLS, "the calls are {calls:?}");
    let notes: String = NOTES.iter().map(|(_, content)| *content).collect();
    let summary = fs::read_to_string(fixture.path("workspace/notes/summary.txt"))?;
    ensure!(summary == format!("{notes}{PAGE}/etc/passwd: denied\n"), "the summary is {summary:?}");
    Ok("its own grant has no files; each call has its own verdict, and a person approved the fetch"
        .to_owned())
}

/// The calls in the report of a program.
pub(super) fn calls(answer: &Value) -> &[Value] {
    at(answer, "/result/report/calls/list").as_array().map_or(&[], Vec::as_slice)
}

/// The reports of the calls that ran, with the ordinal of each.
pub(super) fn reports(executor: Client, answer: &Value) -> Result<Vec<(String, Value)>> {
    let ran = calls(answer).iter().filter(|call| text(call, "/status") != "REFUSED");
    ran.map(|call| {
        let status = executor.call("a2g/status", &json!({ "intent_id": at(call, "/intent_id") }))?;
        Ok((at(call, "/ordinal").to_string(), at(&status, "/result/report").clone()))
    })
    .collect()
}

/// Starts a web server with one page. Its thread ends with this process.
pub(super) fn start_web_server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // A failed answer is a failed fetch, which the step shows.
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(serve_page(&stream))));
    Ok(address)
}

/// Reads the head of a request and sends the page.
fn serve_page(mut stream: &TcpStream) -> io::Result<()> {
    let head = BufReader::new(stream).lines().map_while(io::Result::ok);
    let _length = head.take_while(|line| !line.is_empty()).count();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PAGE}",
        PAGE.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_web_server_has_one_page() {
        let address = start_web_server().unwrap();
        for _ in 0..2 {
            let answer = minreq::get(format!("http://{address}/weather")).with_timeout(10).send().unwrap();
            assert_eq!(answer.as_str().unwrap(), PAGE);
        }
    }
}
