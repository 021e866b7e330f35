//! Any transport of any door.

use super::{A2ePeer as _, A2eSession, HttpClient, StdioClient, WebSocketClient, mcp};
use serde_json::Value;

/// The transport of messages.
pub enum MessageTransport {
    /// With the path to which messages are posted.
    Http(HttpClient, &'static str),
    Socket(WebSocketClient),
    Stdio(StdioClient),
    Session(A2eSession),
}

impl MessageTransport {
    pub fn send(&mut self, text: &str) {
        match self {
            Self::Socket(socket) => socket.send(text.as_bytes()),
            Self::Stdio(client) => client.send(text.as_bytes()),
            Self::Session(session) => session.send_line(text.as_bytes()),
            Self::Http(..) => unreachable!("a request is answered at once"),
        }
    }

    /// Sends one message, whatever its bytes are, and gives its only answer.
    pub fn exchange(&mut self, message: &[u8]) -> Value {
        match self {
            Self::Http(client, path) => {
                let mirrored = if *path == "/mcp" { mcp::mirror_headers(message) } else { Vec::new() };
                let mirrored = mirrored.iter().map(|(name, value)| (*name, &**value));
                let headers = mirrored.chain([("Content-Type", "application/json")]).collect::<Vec<_>>();
                return client.request("POST", path, &headers, message).json();
            }
            Self::Socket(socket) => socket.send_binary(message),
            Self::Stdio(client) => client.send(message),
            Self::Session(session) => session.send_line(message),
        }
        self.receive()
    }

    pub fn receive(&mut self) -> Value {
        match self {
            Self::Socket(socket) => {
                let text = socket.receive().expect("a message");
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
            }
            Self::Stdio(client) => client.receive(),
            Self::Session(session) => session.next(),
            Self::Http(..) => unreachable!("a request is answered at once"),
        }
    }
}
