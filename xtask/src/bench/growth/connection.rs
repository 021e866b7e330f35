//! The client: one connection over which requests are sent in turn, and what it sends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::demo::client::text;

/// The agent whose calls are timed.
pub(super) const AGENT: &str = "did:a2g:agent:1.0:growth";
/// A part of the answer to a call that has run.
pub(super) const HAS_RUN: &str = "\"status\":\"SUCCESS\"";
/// A part of the answer to a call that waits for a person.
pub(super) const WAITS: &str = "escalation_pending";
/// The maximum time of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection with HTTP/1.1 to the A2G door.
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a message, and reads the body of its answer.
    pub(super) fn exchange(&mut self, message: &str) -> Result<String> {
        self.send(message)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            ensure!(self.0.read_line(&mut line)? > 0, "the executor has closed the connection");
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse()?;
                }
                None if line.trim_end().is_empty() => break,
                Some(_) | None => {}
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(String::from_utf8(body)?)
    }

    pub(super) fn send(&mut self, message: &str) -> Result<()> {
        let length = message.len();
        let request = format!(
            "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{message}"
        );
        Ok(self.0.get_mut().write_all(request.as_bytes())?)
    }
}

/// A small call, on which the governor of the executor decides.
pub(super) fn intent(agent: &str) -> String {
    message("a2g/intent", &call(agent, "hello", &Uuid::new_v4().to_string()))
}

/// A call with a decision, which needs `--insecure-accept-unsigned`.
pub(super) fn decided(agent: &str, tool: &str, decision: &str) -> String {
    let id = Uuid::new_v4().to_string();
    let verdict = json!({
        "verdict": decision,
        "intent_id": id,
        "capability_manifest": { "timeout_seconds": super::place::TIMEOUT_SECONDS },
        "conditions": [],
        "expires_at": "2999-01-01T00:00:00Z",
    });
    message("a2g/execute", &json!({ "intent": call(agent, tool, &id), "verdict": verdict }))
}

fn call(agent: &str, tool: &str, id: &str) -> Value {
    json!({ "agent_did": agent, "intent_id": id, "tool": tool, "arguments": { "name": "world" } })
}

fn message(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// Checks that an answer has a part, and otherwise fails with its error.
pub(super) fn check(answer: &str, part: &str) -> Result<()> {
    if answer.contains(part) {
        return Ok(());
    }
    let parsed = serde_json::from_str::<Value>(answer).unwrap_or_default();
    let error = text(&parsed, "/error/message");
    bail!("{}", if error.is_empty() { answer } else { error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_answer_is_read_to_its_end_and_an_error_quoted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = ["{\"status\":\"SUCCESS\"}", "{\"error\":{\"message\":\"no room\"}}"];
        let server = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            for answer in answers {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    stream.read_line(&mut head).unwrap();
                }
                stream.read_exact(&mut [0; 2]).unwrap();
                let length = answer.len();
                let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}");
                stream.get_mut().write_all(text.as_bytes()).unwrap();
            }
        });
        let mut connection = Connection::open(address).unwrap();
        check(&connection.exchange("{}").unwrap(), HAS_RUN).unwrap();
        let refused = check(&connection.exchange("{}").unwrap(), HAS_RUN).unwrap_err();
        assert_eq!(refused.to_string(), "no room");
        server.join().unwrap();
    }
}
