//! JSON-RPC over HTTP/1.1: one request, one connection.

use std::io::{self, Read, Write};
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
        let response = self.post(&request.to_string()).map_err(|error| no_answer(error.to_string()))?;
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
        if !head.starts_with("HTTP/1.1 200 ") {
            let status = head.lines().next().unwrap_or("the connection was closed");
            return Err(no_answer(format!("{status} {body}").trim_end().to_owned()));
        }
        let answer: Value = serde_json::from_str(body).map_err(|error| no_answer(error.to_string()))?;
        if answer.get("result").is_some() == answer.get("error").is_some() {
            return Err(no_answer(format!("neither one result nor one error: {body}")));
        }
        Ok(answer)
    }

    fn post(self, body: &str) -> io::Result<String> {
        let Self(address) = self;
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let length = body.len();
        let request = format!(
            "POST /jsonrpc HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    }
}
