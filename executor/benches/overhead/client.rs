//! The clients of the benchmark: they send the bytes that they are given, and read one answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// What a WebSocket's client masks its frames with. It need not be random where nothing is between.
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// A request with a JSON body, and further header lines, each with its line end.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// HTTP/1.1 with keep-alive.
pub(crate) struct Http {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Http {
    pub(crate) fn connect(address: &str) -> Self {
        Self { stream: connect(address), buffer: vec![0; 64 << 10] }
    }

    /// Sends a request and gives the body of its answer, which has to be of a status from 200 to 299 and to say
    /// how long it is.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> &str {
        self.stream.write_all(request).unwrap();
        let mut length = 0;
        let body = loop {
            let more = self.stream.read(&mut self.buffer[length..]).unwrap();
            assert!(more > 0, "the server hung up");
            length += more;
            let text = std::str::from_utf8(&self.buffer[..length]).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            assert!(head.starts_with("HTTP/1.1 2"), "{text}");
            if body.len() == content_length(head) {
                break length - body.len()..length;
            }
        };
        std::str::from_utf8(&self.buffer[body]).unwrap()
    }
}

fn content_length(head: &str) -> usize {
    let length = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned);
    head.lines().find_map(length).unwrap().parse().unwrap()
}

/// Server-sent events. Each comes in one chunk of its own, so that its line is whole.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// Sends the request that opens the stream.
    pub(crate) fn open(address: &str, request: &[u8]) -> Self {
        let mut stream = connect(address);
        stream.write_all(request).unwrap();
        let mut events = Self(BufReader::with_capacity(4 << 10, stream));
        let status = events.line();
        assert!(status.starts_with("HTTP/1.1 200 "), "{status}");
        events
    }

    /// The data of the next event.
    pub(crate) fn next(&mut self) -> String {
        loop {
            if let Some(data) = self.line().strip_prefix("data: ") {
                return data.trim_end().to_owned();
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
        line
    }
}

/// One WebSocket.
pub(crate) struct WebSocket(BufReader<TcpStream>);

impl WebSocket {
    pub(crate) fn open(address: &str, path: &str) -> Self {
        let mut stream = BufReader::with_capacity(4 << 10, connect(address));
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self(stream)
    }

    /// A text message as its frame.
    pub(crate) fn frame(text: &str) -> Vec<u8> {
        let mut frame = vec![0x81];
        match (u8::try_from(text.len()), u16::try_from(text.len())) {
            (Ok(length @ ..=125), _) => frame.push(0x80 | length),
            (_, Ok(length)) => {
                frame.push(0x80 | 126);
                frame.extend(length.to_be_bytes());
            }
            (_, Err(_)) => panic!("no message of the benchmark is as long as {} bytes", text.len()),
        }
        frame.extend(MASK);
        frame.extend(text.bytes().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.0.get_mut().write_all(frame).unwrap();
    }

    /// The next text message.
    pub(crate) fn receive(&mut self) -> String {
        loop {
            let [kind, length] = self.bytes();
            let length = match length {
                126 => u16::from_be_bytes(self.bytes()).into(),
                short @ ..=125 => short.into(),
                _longer_or_masked => panic!("no answer of the benchmark is like this"),
            };
            let mut text = vec![0; length];
            self.0.read_exact(&mut text).unwrap();
            match kind {
                0x81 => return String::from_utf8(text).unwrap(),
                // A ping that need not be answered for as long as a benchmark takes.
                0x89 => {}
                other => panic!("a frame that begins with {other:#x}: {}", String::from_utf8_lossy(&text)),
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }
}
