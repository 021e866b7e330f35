//! A governor that answers what a test wants, valid or not, over HTTP and WebSocket.

use super::Listener;
use super::http::read_message;
use super::web_socket::{read_frame, write_frame};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One answer of the fake governor.
pub enum Reply {
    /// This `result`.
    Result(Value),
    /// This `result`, after which the connection is closed.
    Last(Value),
    /// This body, in which `$ID` stands for the id of the request as JSON.
    Body(String),
    /// These messages of a WebSocket, in which `$ID` stands for the id of the request as JSON.
    Messages(Vec<String>),
    /// These bytes instead of HTTP.
    Raw(Vec<u8>),
    /// Nothing: the connection is closed.
    Hangup,
    /// The reply, after this delay.
    Late(Duration, Box<Reply>),
}

type Decide = dyn Fn(&str, &Value) -> Reply + Send + Sync;

/// The state that the connections of a fake governor share.
struct Shared {
    decide: Box<Decide>,
    sockets: AtomicUsize,
    /// All requests, in order of arrival.
    seen: Mutex<Vec<Value>>,
}

/// A running fake governor.
pub struct FakeGovernor {
    listener: Listener,
    shared: Arc<Shared>,
}

impl FakeGovernor {
    /// Starts one that answers a method with its params by `decide`. Over a WebSocket, each request
    /// is answered on a thread of its own.
    pub fn start(decide: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            decide: Box::new(decide),
            sockets: AtomicUsize::new(0),
            seen: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        Self { listener: Listener::start(move |stream| converse(stream, &serving)), shared }
    }

    /// Starts one that answers intents by `decide`, and accepts all else.
    pub fn deciding(decide: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(move |method, params| match method {
            "a2g/intent" => decide(params),
            _ => Reply::Result(json!({ "accepted": true })),
        })
    }

    /// `http://ADDRESS/jsonrpc`.
    pub fn url(&self) -> String {
        format!("http://{}/jsonrpc", self.listener.address)
    }

    /// `ws://ADDRESS/jsonrpc`.
    pub fn web_socket_url(&self) -> String {
        format!("ws://{}/jsonrpc", self.listener.address)
    }

    /// All requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Value> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The methods that were called so far, with their params.
    pub fn seen(&self) -> Vec<(String, Value)> {
        let seen = self.named();
        let reports = seen.iter().filter(|(method, _)| method == "a2g/report");
        reports.for_each(|(_, report)| super::published::check_report(report));
        seen
    }

    fn named(&self) -> Vec<(String, Value)> {
        let named = |request: Value| {
            (request["method"].as_str().expect("a method").to_owned(), request["params"].clone())
        };
        self.requests().into_iter().map(named).collect()
    }

    /// The number of WebSockets that were opened so far.
    pub fn sockets(&self) -> usize {
        self.shared.sockets.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// The reply to a request, and the id of the request.
    fn reply(&self, body: &[u8]) -> (Reply, Value) {
        let request: Value = serde_json::from_slice(body).expect("a request");
        self.seen.lock().unwrap().push(request.clone());
        (
            (self.decide)(request["method"].as_str().expect("a method"), &request["params"]),
            request["id"].clone(),
        )
    }
}

fn converse(stream: TcpStream, shared: &Arc<Shared>) {
    let mut reader = BufReader::new(stream);
    while let Ok((_, headers, body)) = read_message(&mut reader) {
        if let Some((_, key)) = headers.iter().find(|(name, _)| name == "sec-websocket-key") {
            return upgrade(reader, key, shared);
        }
        let (reply, id) = shared.reply(&body);
        if !send(reader.get_mut(), reply, &id) {
            return;
        }
    }
}

/// Upgrades the connection to a WebSocket (RFC 6455), and serves it.
fn upgrade(mut reader: BufReader<TcpStream>, key: &str, shared: &Arc<Shared>) {
    let salted = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, salted.as_bytes());
    let accept = STANDARD.encode(accept);
    let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    let head = format!("{head}Sec-WebSocket-Accept: {accept}\r\n\r\n");
    reader.get_mut().write_all(head.as_bytes()).expect("a connection");
    shared.sockets.fetch_add(1, Ordering::SeqCst);
    let writer = Arc::new(Mutex::new(reader.get_ref().try_clone().expect("a clone")));
    while let Ok((opcode, payload)) = read_frame(&mut reader) {
        match opcode {
            1 | 2 => {
                let shared = Arc::clone(shared);
                let writer = Arc::clone(&writer);
                std::thread::spawn(move || {
                    let (reply, id) = shared.reply(&payload);
                    say(&writer, reply, &id);
                });
            }
            8 => return,
            9 => drop(write_frame(&mut *writer.lock().unwrap(), 0x8a, &payload, None)),
            _ => {}
        }
    }
}

/// Answers over a WebSocket.
fn say(writer: &Mutex<TcpStream>, reply: Reply, id: &Value) {
    let messages = match reply {
        Reply::Result(result) | Reply::Last(result) => {
            vec![format!(r#"{{"jsonrpc":"2.0","result":{result},"id":$ID}}"#)]
        }
        Reply::Body(body) => vec![body],
        Reply::Messages(messages) => messages,
        Reply::Raw(bytes) => return drop(write_frame(&mut *writer.lock().unwrap(), 0x82, &bytes, None)),
        Reply::Hangup => return drop(writer.lock().unwrap().shutdown(std::net::Shutdown::Both)),
        Reply::Late(pause, reply) => {
            std::thread::sleep(pause);
            return say(writer, *reply, id);
        }
    };
    for message in messages {
        let message = message.replace("$ID", &id.to_string());
        let _gone = write_frame(&mut *writer.lock().unwrap(), 0x81, message.as_bytes(), None);
    }
}

fn send(stream: &mut TcpStream, reply: Reply, id: &Value) -> bool {
    let closes = matches!(reply, Reply::Last(_));
    let body = match reply {
        Reply::Result(result) | Reply::Last(result) => {
            format!(r#"{{"jsonrpc":"2.0","result":{result},"id":{id}}}"#)
        }
        Reply::Body(body) => body.replace("$ID", &id.to_string()),
        Reply::Messages(_) => panic!("a request over HTTP has one answer"),
        Reply::Raw(bytes) => {
            let _gone = stream.write_all(&bytes);
            return false;
        }
        Reply::Hangup => return false,
        Reply::Late(pause, reply) => {
            std::thread::sleep(pause);
            return send(stream, *reply, id);
        }
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let connection = if closes { "Connection: close\r\n" } else { "" };
    let message = format!("{head}{connection}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(message.as_bytes()).is_ok() && !closes
}
