//! JSON-RPC over HTTP/1.1: one request, one connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::run::Failure;

/// No step of the demo takes as long.
const LIMIT: Duration = Duration::from_secs(60);

/// A caller of the executor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client(SocketAddr);

impl Client {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self(address)
    }

    /// Calls a method and gives the whole answer, with its `result` or `error`.
    ///
    /// # Errors
    /// When no JSON-RPC answer comes back.
    pub(super) fn call(self, method: &str, params: &Value) -> Result<Value, Failure> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let no_answer = |why: String| Failure::Program(format!("`{method}` got no answer: {why}"));
        let answer = self.post("/jsonrpc", "", &request.to_string())?;
        if answer.get("result").is_some() == answer.get("error").is_some() {
            return Err(no_answer(format!("neither one result nor one error: {answer}")));
        }
        Ok(answer)
    }

    /// Posts a message, with one more header or none, and gives the JSON that comes back; null for an answer
    /// without a body.
    ///
    /// # Errors
    /// When no such answer comes back.
    pub(super) fn post(self, path: &str, header: &str, body: &str) -> Result<Value, Failure> {
        let no_answer = |why: String| Failure::Program(format!("POST {path} got no answer: {why}"));
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{header}"
        );
        let read = self.send(&head, body).and_then(|mut stream| {
            let mut response = String::new();
            stream.read_to_string(&mut response).map(|_bytes| response)
        });
        let response = read.map_err(|error| no_answer(error.to_string()))?;
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
        if !head.starts_with("HTTP/1.1 20") {
            let status = head.lines().next().unwrap_or("the connection was closed");
            return Err(no_answer(format!("{status} {body}").trim_end().to_owned()));
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(body).map_err(|error| no_answer(error.to_string()))
    }

    /// Opens a stream of server-sent events, of which each line that holds one is read as it comes.
    ///
    /// # Errors
    /// When the executor does not answer.
    pub(super) fn events(self, path: &str, header: &str) -> io::Result<impl Iterator<Item = Value>> {
        let stream = self.send(&format!("GET {path} HTTP/1.1\r\n{header}"), "")?;
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        Ok(lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()))
    }

    fn send(self, head: &str, body: &str) -> io::Result<TcpStream> {
        let Self(address) = self;
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.write_all(format!("{head}Host: {address}\r\nConnection: close\r\n\r\n{body}").as_bytes())?;
        Ok(stream)
    }
}
