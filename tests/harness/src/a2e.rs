//! The agent's side of A2E: a session over HTTP, or the two ends of a pipe.

use super::{Executor, HttpClient, StdioClient, TIMEOUT};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{SystemTime, UNIX_EPOCH};

/// A message of an agent, with these members beside those that every message has.
pub fn a2e(kind: &str, id: &str, more: Value) -> Value {
    let ts = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs_f64();
    let mut message = json!({ "a2e": "1.0", "type": kind, "id": id, "ts": ts });
    let Value::Object(more) = more else { panic!("an object") };
    message.as_object_mut().expect("an object").extend(more);
    message
}

/// A handshake that asks for tools.
pub fn a2e_handshake(agent: &str, token: &str) -> Value {
    a2e("handshake/req", "hello", json!({ "agent_id": agent, "agent_caps": ["tools"], "auth_token": token }))
}

/// A call.
pub fn a2e_call(id: &str, tool: &str, arguments: Value) -> Value {
    a2e("tool/call/req", id, json!({ "tool_name": tool, "arguments": arguments }))
}

/// Somebody to talk A2E with.
pub trait A2ePeer {
    /// Sends one line.
    fn send_line(&mut self, line: &[u8]);

    /// The next message.
    fn next(&mut self) -> Value;

    /// Sends one message.
    fn tell(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    /// The answer to a message, and the events before it. Nothing else comes meanwhile.
    fn answer(&mut self, id: &str) -> (Vec<Value>, Value) {
        let mut events = Vec::new();
        loop {
            let message = self.next();
            assert_eq!((&message["a2e"], &message["version"]), (&json!("1.0"), &json!("1.0")), "{message}");
            assert_eq!(message["req_id"], id, "{message}");
            if message["type"] != "tool/event" {
                return (events, message);
            }
            events.push(message);
        }
    }

    /// Sends one message and gives its answer.
    fn ask(&mut self, message: &Value) -> Value {
        self.tell(message);
        self.answer(message["id"].as_str().expect("an id")).1
    }

    /// Sends a handshake that has to hold, and gives the answer.
    fn shake_hands(&mut self, agent: &str, token: &str) -> Value {
        let answer = self.ask(&a2e_handshake(agent, token));
        assert_eq!((&answer["type"], &answer["ok"]), (&json!("handshake/resp"), &json!(true)), "{answer}");
        answer
    }
}

impl A2ePeer for StdioClient {
    fn send_line(&mut self, line: &[u8]) {
        self.send(line);
    }

    fn next(&mut self) -> Value {
        self.receive()
    }
}

/// One session over HTTP.
pub struct A2eSession {
    client: HttpClient,
    address: SocketAddr,
    token: Option<String>,
    pub id: String,
    stream: Option<(TcpStream, Receiver<String>)>,
}

impl A2eSession {
    /// A session without a stream.
    pub fn begin(executor: &Executor, token: Option<&str>) -> Self {
        let address = executor.address();
        let token = token.map(str::to_owned);
        let mut session = Self { client: executor.client(), address, token, id: String::new(), stream: None };
        let answer = session.request("POST", "/a2e/session", b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        session.id = answer.json()["session_id"].as_str().expect("an id").to_owned();
        session
    }

    /// A session with a stream.
    pub fn open(executor: &Executor, token: Option<&str>) -> Self {
        let mut session = Self::begin(executor, token);
        session.attach();
        session
    }

    /// The same session, as the bearer of another token knows it.
    pub fn as_seen_by(&self, token: Option<&str>) -> Self {
        Self {
            client: HttpClient::connect(self.address),
            address: self.address,
            token: token.map(str::to_owned),
            id: self.id.clone(),
            stream: None,
        }
    }

    /// The same session at another node of the fleet.
    pub fn at(&self, node: &Executor, token: Option<&str>) -> Self {
        Self { client: node.client(), address: node.address(), ..self.as_seen_by(token) }
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![("Content-Type", "application/x-ndjson".to_owned())];
        headers.extend(self.token.as_ref().map(|token| ("Authorization", format!("Bearer {token}"))));
        if !self.id.is_empty() {
            headers.push(("X-Session-Id", self.id.clone()));
        }
        headers
    }

    /// Sends a request with what names the caller and the session.
    pub fn request(&mut self, method: &str, path: &str, body: &[u8]) -> super::HttpAnswer {
        let headers = self.headers();
        let headers = headers.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>();
        self.client.request(method, path, &headers, body)
    }

    /// Sends lines, and gives the status.
    pub fn post(&mut self, body: &[u8]) -> u16 {
        self.request("POST", "/a2e/send", body).status
    }

    /// Asks for the stream, of which nothing is read.
    pub fn attach_unread(&mut self) -> TcpStream {
        let mut head = format!("GET /a2e/stream HTTP/1.1\r\nHost: {}\r\n", self.address);
        for (name, value) in self.headers() {
            head += &format!("{name}: {value}\r\n");
        }
        HttpClient::send_only(self.address, format!("{head}\r\n").as_bytes())
    }

    /// Asks for the stream, and reads it.
    pub fn attach(&mut self) {
        self.try_attach().expect("a stream");
    }

    /// As [`Self::attach`]. Returns the first line of the answer if it has no stream.
    pub fn try_attach(&mut self) -> Result<(), String> {
        let stream = self.attach_unread();
        let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
        let mut status = String::new();
        reader.read_line(&mut status).expect("a status");
        if !status.contains(" 200 ") {
            return Err(status);
        }
        let (sender, events) = channel();
        std::thread::spawn(move || {
            let mut head = String::new();
            while reader.read_line(&mut head).is_ok_and(|length| length > 2) {}
            let mut text = Vec::new();
            let mut size = String::new();
            loop {
                size.clear();
                let read = reader.read_line(&mut size);
                let length = usize::from_str_radix(size.trim(), 16);
                let (Ok(1..), Ok(length @ 1..)) = (read, length) else { return };
                let start = text.len();
                text.resize(start + length + 2, 0);
                if reader.read_exact(&mut text[start..]).is_err() {
                    return;
                }
                text.truncate(start + length);
                while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
                    let event = String::from_utf8(text.drain(..end + 2).collect()).expect("UTF-8");
                    if let Some(line) = event.strip_prefix("data: ")
                        && sender.send(line.trim_end().to_owned()).is_err()
                    {
                        return;
                    }
                }
            }
        });
        self.stream = Some((stream, events));
        Ok(())
    }

    /// Closes the stream, as an agent that goes away does.
    pub fn detach(&mut self) {
        if let Some((stream, _)) = self.stream.take() {
            let _closed_already = stream.shutdown(Shutdown::Both);
        }
    }

    /// All messages until the stream ends.
    pub fn rest(&mut self) -> Vec<Value> {
        let (_, events) = self.stream.as_ref().expect("a stream");
        let mut rest = Vec::new();
        loop {
            match events.recv_timeout(TIMEOUT) {
                Ok(line) => rest.push(serde_json::from_str(&line).expect("JSON")),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return rest,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the stream does not end"),
            }
        }
    }
}

impl A2ePeer for A2eSession {
    fn send_line(&mut self, line: &[u8]) {
        let answer = self.request("POST", "/a2e/send", line);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }

    fn next(&mut self) -> Value {
        let (_, events) = self.stream.as_ref().expect("a stream");
        let line = events.recv_timeout(TIMEOUT).expect("an event");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}
