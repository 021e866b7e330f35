//! A web server, which records the requests that it receives.

use super::Listener;
use serde_json::{Value, json};
use std::io::Read as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

/// A web server on loopback for one test.
pub struct Web {
    listener: Listener,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Web {
    /// Starts a server that runs `answer` for each request, on a thread of its own.
    pub fn start(answer: impl Fn(TcpStream, &str) + Send + Sync + 'static) -> Self {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&requests);
        let listener = Listener::start(move |mut stream| {
            let request = read_request(&mut stream);
            seen.lock().unwrap().push(request.clone());
            answer(stream, &request);
        });
        Self { listener, requests }
    }

    /// The requests so far, each with its body.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The address that `network.allowed_addresses` has to name.
    pub fn address(&self) -> String {
        self.listener.address.to_string()
    }

    /// The authority of its URLs. `network.hosts` has to name 127.0.0.1 for it.
    pub fn authority(&self) -> String {
        format!("web.test:{}", self.listener.address.port())
    }

    /// A request to this server, as an argument of the guest `hostile_http`.
    pub fn post(&self, path: &str, body: &str) -> Value {
        let authority = self.authority();
        let fields = json!([["x-secret", "hunter2"]]);
        json!({ "authority": authority, "method": "POST", "path": path, "fields": fields, "body": body })
    }
}

/// The head of a request with its body.
fn read_request(stream: &mut TcpStream) -> String {
    let mut request = String::new();
    let mut byte = [0];
    while !request.ends_with("\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        request.push(byte[0].into());
    }
    let length = request.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    let _cut = stream.read_exact(&mut body);
    request + &String::from_utf8_lossy(&body)
}
