//! A governor that answers whatever a test wants, valid or not.

use super::http::read_message;
use serde_json::Value;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What it answers.
pub enum Reply {
    /// This `result`.
    Result(Value),
    /// This `result`, after which the connection is closed.
    Last(Value),
    /// This body, in which `$ID` stands for the id of the request as JSON.
    Body(String),
    /// These bytes instead of HTTP.
    Raw(Vec<u8>),
    /// Nothing: the connection is closed.
    Hangup,
    /// Nothing for so long, and then a reply.
    Late(Duration, Box<Reply>),
}

type Decide = dyn Fn(&str, &Value) -> Reply + Send + Sync;

/// A running one.
pub struct FakeGovernor {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
}

impl FakeGovernor {
    /// Starts one that answers method and params by `decide`.
    pub fn start(decide: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let decide: Arc<Decide> = Arc::new(decide);
        let (until, note) = (Arc::clone(&stopped), Arc::clone(&seen));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if until.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let (decide, note) = (Arc::clone(&decide), Arc::clone(&note));
                std::thread::spawn(move || converse(stream, &*decide, &note));
            }
        });
        Self { address, stopped, seen }
    }

    /// `http://ADDRESS/jsonrpc`.
    pub fn url(&self) -> String {
        format!("http://{}/jsonrpc", self.address)
    }

    /// The methods that were called so far, with their params.
    pub fn seen(&self) -> Vec<(String, Value)> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for FakeGovernor {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _wakes_the_listener = TcpStream::connect(self.address);
    }
}

fn converse(stream: TcpStream, decide: &Decide, seen: &Mutex<Vec<(String, Value)>>) {
    let mut reader = BufReader::new(stream);
    while let Ok((_, _, body)) = read_message(&mut reader) {
        let request: Value = serde_json::from_slice(&body).expect("a request");
        let method = request["method"].as_str().expect("a method").to_owned();
        seen.lock().unwrap().push((method.clone(), request["params"].clone()));
        let reply = decide(&method, &request["params"]);
        if !send(reader.get_mut(), reply, &request["id"]) {
            return;
        }
    }
}

fn send(stream: &mut TcpStream, reply: Reply, id: &Value) -> bool {
    let closes = matches!(reply, Reply::Last(_));
    let body = match reply {
        Reply::Result(result) | Reply::Last(result) => {
            format!(r#"{{"jsonrpc":"2.0","result":{result},"id":{id}}}"#)
        }
        Reply::Body(body) => body.replace("$ID", &id.to_string()),
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
