//! A small WebSocket client (RFC 6455) that sends exactly the messages that it is given.

use super::TIMEOUT;
use super::published::check_answers;
use serde_json::Value;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// One WebSocket.
pub struct WebSocketClient {
    stream: BufReader<TcpStream>,
    /// Number of pings received.
    pub pings: usize,
    /// True to answer pings.
    pub pongs: bool,
    /// The code with which the server closed.
    pub closed_with: Option<u16>,
}

impl WebSocketClient {
    /// Connects and upgrades.
    pub fn connect(address: SocketAddr) -> Self {
        Self::upgrade(address, &[]).unwrap_or_else(|refusal| panic!("no WebSocket: {refusal}"))
    }

    /// Connects and asks for an upgrade with further headers.
    ///
    /// # Errors
    /// The status line of a refusal.
    pub fn upgrade(address: SocketAddr, headers: &[(&str, &str)]) -> Result<Self, String> {
        Self::upgrade_at(address, "/jsonrpc", headers)
    }

    /// As [`Self::upgrade`], at another path.
    ///
    /// # Errors
    /// The status line of a refusal.
    pub fn upgrade_at(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<Self, String> {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        let mut stream = BufReader::new(stream);
        let mut head = format!("GET {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {address}\r\n");
        }
        head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        stream.get_mut().write_all(head.as_bytes()).expect("the server reads");
        let (first, _, _) = super::http::read_message(&mut stream).expect("an answer");
        let client = Self { stream, pings: 0, pongs: true, closed_with: None };
        if first.contains(" 101 ") { Ok(client) } else { Err(first) }
    }

    /// Sends one text message, whatever its bytes are.
    pub fn send(&mut self, message: &[u8]) {
        self.frame(0x81, message);
    }

    /// Sends one binary message.
    pub fn send_binary(&mut self, message: &[u8]) {
        self.frame(0x82, message);
    }

    /// Sends so many pieces of one message that does not end, or as many as the server takes.
    pub fn send_pieces(&mut self, piece: &[u8], count: usize) {
        for nth in 0..count {
            self.frame(if nth == 0 { 0x01 } else { 0x00 }, piece);
        }
    }

    /// Sends one ping.
    pub fn ping(&mut self) {
        self.frame(0x89, &[0; 125]);
    }

    /// True if the peer has closed the connection, without reading its messages. The check takes a little time.
    pub fn is_gone(&mut self) -> bool {
        let stream = self.stream.get_mut();
        stream.set_write_timeout(Some(std::time::Duration::from_millis(50))).expect("a timeout");
        // An empty pong.
        matches!(stream.write_all(&[0x8a, 0x80, 0, 0, 0, 0]), Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
    }

    fn frame(&mut self, first: u8, payload: &[u8]) {
        // A server that refuses a message may close before it has read all of it.
        let _it_may_close =
            write_frame(self.stream.get_mut(), first, payload, Some([0x12, 0x34, 0x56, 0x78]));
    }

    /// The next text message; `None` once the server has closed. A server that does neither is a failure.
    pub fn receive(&mut self) -> Option<String> {
        loop {
            let (opcode, payload) = match read_frame(&mut self.stream) {
                Ok(frame) => frame,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("in {TIMEOUT:?} the server neither sends a message nor closes")
                }
                Err(_closed) => return None,
            };
            match opcode {
                1 | 2 => return Some(String::from_utf8(payload).expect("UTF-8")),
                8 => {
                    self.closed_with = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                    return None;
                }
                9 => {
                    self.pings += 1;
                    if self.pongs {
                        self.frame(0x8a, &payload);
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends one message and receives one, as JSON.
    pub fn exchange(&mut self, message: &str) -> Value {
        self.send(message.as_bytes());
        let answer = self.receive().expect("an answer");
        check_answers(message.as_bytes(), answer.as_bytes());
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

/// Reads one frame: its opcode, and its payload without the mask.
pub(super) fn read_frame(stream: &mut impl Read) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            u64::from(u16::from_be_bytes(length))
        }
        127 => {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            u64::from_be_bytes(length)
        }
        short => u64::from(short),
    };
    let mut mask = [0; 4];
    if head[1] & 0x80 != 0 {
        stream.read_exact(&mut mask)?;
    }
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload)?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok((head[0] & 0x0f, payload))
}

/// Writes one frame, with a mask as clients have it or without one as servers do.
pub(super) fn write_frame(
    stream: &mut impl Write,
    first: u8,
    payload: &[u8],
    mask: Option<[u8; 4]>,
) -> std::io::Result<()> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(masked | u8::try_from(length).unwrap()),
        length @ 126..=0xffff => {
            frame.push(masked | 126);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            frame.push(masked | 127);
            frame.extend(u64::try_from(length).unwrap().to_be_bytes());
        }
    }
    frame.extend(mask.iter().flatten());
    let mask = mask.unwrap_or_default();
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    stream.write_all(&frame)
}
