//! A small HTTP/1.1 client that sends exactly the bytes that it is given.

use super::TIMEOUT;
use super::published::check_answers;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

/// One HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The reason why there is no whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// There was no connection.
    Unreachable,
    /// The connection ended before the whole answer. The server may have read the request.
    Broken,
}

/// A whole request that posts JSON to a path, with these lines of its head beside those that say what it is.
pub fn post_request(path: &str, lines: &[&str], body: &str) -> String {
    let more: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// A client with one connection, which is kept and made again when the server has closed it.
pub struct HttpClient {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
    next_id: u64,
    /// True if the server is an executor, whose answers must match its published schema.
    is_executor: bool,
}

impl HttpClient {
    /// A client of an executor.
    pub fn connect(address: SocketAddr) -> Self {
        Self { address, connection: None, next_id: 0, is_executor: true }
    }

    /// A client of a governor, which publishes no document.
    pub fn to_governor(address: SocketAddr) -> Self {
        Self { is_executor: false, ..Self::connect(address) }
    }

    /// Calls a method and gives the whole response, whose id is checked.
    pub fn rpc(&mut self, method: &str, params: &Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let request = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": id });
        let response = self.post(request.to_string().as_bytes()).json();
        assert_eq!(response["jsonrpc"], "2.0", "{response}");
        assert_eq!(response["id"], id, "{response}");
        response
    }

    /// As [`Self::rpc`], over a connection of its own to a server that may be gone at any moment:
    /// `None` when there was no whole answer.
    pub fn ask(address: SocketAddr, method: &str, params: &Value) -> Option<Value> {
        Self::ask_with(address, &[], method, params)
    }

    /// As [`Self::ask`], by the caller who has a token.
    pub fn ask_as(address: SocketAddr, token: &str, method: &str, params: &Value) -> Option<Value> {
        Self::ask_with(address, &[&format!("Authorization: Bearer {token}")], method, params)
    }

    fn ask_with(address: SocketAddr, lines: &[&str], method: &str, params: &Value) -> Option<Value> {
        let request = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": 1 }).to_string();
        let answer = Self::post_to(address, "/jsonrpc", lines, &request).ok()?;
        check_answers(request.as_bytes(), &answer.body);
        Some(answer.json())
    }

    /// Posts JSON with these lines added to the head, over a new connection to a server that may end at any moment.
    pub fn post_to(
        address: SocketAddr,
        path: &str,
        lines: &[&str],
        body: &str,
    ) -> Result<HttpAnswer, NoAnswer> {
        let stream = TcpStream::connect(address).map_err(|_refused| NoAnswer::Unreachable)?;
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut client = Self { connection: Some(BufReader::new(stream)), ..Self::connect(address) };
        client.exchange(post_request(path, lines, body).as_bytes()).map_err(|_ended| NoAnswer::Broken)
    }

    /// Posts bytes to `/jsonrpc` as JSON.
    pub fn post(&mut self, body: &[u8]) -> HttpAnswer {
        self.post_with(&[("Content-Type", "application/json")], body)
    }

    /// Posts bytes to `/jsonrpc` with these headers, beside `Host` and `Content-Length` where they
    /// are not among them.
    pub fn post_with(&mut self, headers: &[(&str, &str)], body: &[u8]) -> HttpAnswer {
        self.request("POST", "/jsonrpc", headers, body)
    }

    /// Sends one request.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpAnswer {
        let has = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !has("host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        if !has("content-length") && !has("transfer-encoding") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let bytes = [head.as_bytes(), b"\r\n", body].concat();
        let answer = self.raw(&bytes);
        if self.is_executor && path == "/jsonrpc" {
            check_answers(body, &answer.body);
        }
        answer
    }

    /// Sends these bytes and reads one response.
    pub fn raw(&mut self, bytes: &[u8]) -> HttpAnswer {
        // A kept connection may have been closed meanwhile; a new one was not.
        if self.connection.is_some()
            && let Ok(answer) = self.exchange(bytes)
        {
            return answer;
        }
        self.connection = Some(BufReader::new(connect(self.address)));
        self.exchange(bytes).unwrap_or_else(|error| panic!("no answer from {}: {error}", self.address))
    }

    /// Sends `bytes` over the connection of the last request and reads one response; `None` if it is closed.
    pub fn on_kept_connection(&mut self, bytes: &[u8]) -> Option<HttpAnswer> {
        self.connection.as_ref()?;
        self.exchange(bytes).ok()
    }

    /// Sends these bytes on a new connection and reads nothing.
    pub fn send_only(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = connect(address);
        stream.write_all(bytes).expect("the server reads");
        stream
    }

    fn exchange(&mut self, bytes: &[u8]) -> std::io::Result<HttpAnswer> {
        let reader = self.connection.as_mut().expect("it is connected");
        // The server may answer, and close, before it has read everything.
        let written = reader.get_mut().write_all(bytes);
        let answer = read_answer(reader).or_else(|error| written.and(Err(error)));
        let closes = match &answer {
            Err(_) => true,
            Ok(answer) => answer.headers.iter().any(|(name, value)| name == "connection" && value == "close"),
        };
        if closes {
            self.connection = None;
        }
        answer
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    stream
}

/// The first line of a message, its headers with names in lower case, and its body.
type Message = (String, Vec<(String, String)>, Vec<u8>);

/// Reads one message.
pub fn read_message(reader: &mut impl BufRead) -> std::io::Result<Message> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let first = lines.first().cloned().unwrap_or_default();
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    if header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        let body = read_chunks(reader)?;
        return Ok((first, headers, body));
    }
    let mut body = vec![0; header("content-length").map_or(0, |value| value.parse().expect("a length"))];
    reader.read_exact(&mut body)?;
    Ok((first, headers, body))
}

/// The chunks of a body, without trailers.
fn read_chunks(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        reader.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(std::io::Error::other)?;
        let start = body.len();
        body.resize(start + size + 2, 0);
        reader.read_exact(&mut body[start..])?;
        body.truncate(start + size);
        if size == 0 {
            return Ok(body);
        }
    }
}

fn read_answer(reader: &mut impl BufRead) -> std::io::Result<HttpAnswer> {
    let (first, headers, body) = read_message(reader)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(HttpAnswer { status: status.unwrap_or_else(|| panic!("no HTTP: {first}")), headers, body })
}
