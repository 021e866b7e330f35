//! Rejects bare line feeds in the heads of HTTP requests.
//!
//! hyper's parser (httparse) accepts a line that ends with only LF, and cannot be configured otherwise. A proxy in
//! front of the executor may read such a head differently, so that the two disagree about its end (request smuggling).
//! The bytes of a connection therefore pass through this filter first: it replaces a bare LF in a head by a NUL, which
//! hyper answers with 400 and the end of the connection, as it does every invalid head. Bodies are skipped by the
//! length or the chunks that their head announces, so that a large body is not scanned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of bytes of a header line that are stored. A `Content-Length` line has to fit.
const MAX_LINE: usize = 128;
const CHUNKED: &[u8] = b"transfer-encoding:";
const LENGTH: &[u8] = b"content-length:";

/// Follows the framing of one connection.
#[derive(Debug, Default)]
pub(super) struct BareLfFilter {
    position: Position,
    line: HeaderLine,
    framing: Framing,
    /// `true` once the connection has switched protocols.
    upgraded: Arc<AtomicBool>,
}

/// The context of the next byte.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// In a head, before or after its first line.
    #[default]
    Head,
    /// In a body or a chunk with this many bytes remaining. A chunk size follows a chunk, and a head follows a body.
    Body { remaining: u64, chunked: bool },
    /// In the size line of a chunk: the value so far, and `true` once its digits have ended.
    Size { value: u64, ended: bool },
    /// In the lines after the last chunk.
    Trailers,
}

/// The framing of the body after the current head.
#[derive(Debug, Default, Clone, Copy)]
struct Framing {
    /// `true` once a line of the head was read.
    has_started: bool,
    chunked: bool,
    length: u64,
}

/// The start of the current line, and its last byte.
#[derive(Debug, Default)]
struct HeaderLine {
    start: Vec<u8>,
    last: u8,
}

impl HeaderLine {
    fn push(&mut self, bytes: &[u8]) {
        let capacity = MAX_LINE.saturating_sub(self.start.len());
        self.start.extend_from_slice(bytes.get(..capacity).unwrap_or(bytes));
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// Ends the line, and returns its start without the CR. `None` if it does not end with CR.
    fn end(&mut self) -> Option<Vec<u8>> {
        let mut line = std::mem::take(&mut self.start);
        if std::mem::take(&mut self.last) != b'\r' {
            return None;
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(line)
    }
}

impl Framing {
    /// Reads a header line. Returns `false` for an invalid `Content-Length`: with a guessed length, part of a body
    /// could be taken for a head.
    fn read(&mut self, line: &[u8]) -> bool {
        let value = |name: &[u8]| {
            let (start, value) = line.split_at_checked(name.len())?;
            start.eq_ignore_ascii_case(name).then_some(value)
        };
        self.has_started = true;
        self.chunked |= value(CHUNKED).is_some();
        let Some(length) = value(LENGTH) else { return true };
        let length = std::str::from_utf8(length).ok().filter(|_| line.len() < MAX_LINE);
        match length.and_then(|length| length.trim().parse().ok()) {
            Some(length) => self.length = length,
            None => return false,
        }
        true
    }

    fn position_after_head(self) -> Position {
        match (self.chunked, self.length) {
            (true, _) => Position::Size { value: 0, ended: false },
            (false, 0) => Position::Head,
            (false, remaining) => Position::Body { remaining, chunked: false },
        }
    }
}

impl BareLfFilter {
    /// The flag to set when the connection switches protocols.
    pub(super) fn upgrade_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.upgraded)
    }

    /// Scans received bytes, and replaces each bare LF of a head with a NUL.
    pub(super) fn filter(&mut self, mut bytes: &mut [u8]) {
        if self.upgraded.load(Ordering::Acquire) {
            return;
        }
        while !bytes.is_empty() {
            let read = match self.position {
                Position::Head | Position::Trailers => self.read_line(bytes),
                Position::Body { remaining, chunked } => self.skip_body(remaining, chunked, bytes.len()),
                Position::Size { value, ended } => self.read_chunk_size(value, ended, bytes),
            };
            bytes = bytes.get_mut(read..).unwrap_or_default();
        }
    }

    /// Reads to the end of a line, and returns the number of bytes.
    fn read_line(&mut self, bytes: &mut [u8]) -> usize {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.push(bytes);
            return bytes.len();
        };
        self.line.push(bytes.get(..end).unwrap_or_default());
        let mut refuse = |reason| {
            tracing::debug!(reason, "a request is refused");
            if let Some(line_feed) = bytes.get_mut(end) {
                *line_feed = 0;
            }
        };
        match self.line.end() {
            None => refuse("bare line feed in the head"),
            Some(line) if !line.is_empty() => {
                if self.position == Position::Head && !self.framing.read(&line) {
                    refuse("invalid Content-Length");
                }
            }
            Some(_) if self.position == Position::Trailers => self.position = Position::Head,
            // Empty lines before a request line are allowed (RFC 9112, section 2.2).
            Some(_) if !self.framing.has_started => {}
            Some(_) => self.position = std::mem::take(&mut self.framing).position_after_head(),
        }
        end + 1
    }

    /// Skips the bytes of the body among the `available` ones, and returns their number.
    fn skip_body(&mut self, remaining: u64, chunked: bool, available: usize) -> usize {
        let read = usize::try_from(remaining).unwrap_or(usize::MAX).min(available);
        let remaining = remaining.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
        self.position = match (remaining, chunked) {
            (0, true) => Position::Size { value: 0, ended: false },
            (0, false) => Position::Head,
            (remaining, chunked) => Position::Body { remaining, chunked },
        };
        read
    }

    /// Reads the hexadecimal size of a chunk, and returns the number of bytes.
    fn read_chunk_size(&mut self, mut value: u64, mut ended: bool, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            match (char::from(*byte).to_digit(16), byte) {
                (_, b'\n') => {
                    // Counts the CRLF after the data as part of the chunk.
                    self.position = match value {
                        0 => Position::Trailers,
                        value => Position::Body { remaining: value.saturating_add(2), chunked: true },
                    };
                    return index + 1;
                }
                (Some(digit), _) if !ended => value = value.saturating_mul(16).saturating_add(digit.into()),
                _ => ended = true,
            }
        }
        self.position = Position::Size { value, ended };
        bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Filters text that arrives in chunks of this length.
    fn filtered(text: &str, piece: usize) -> String {
        let mut line_feeds = BareLfFilter::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(piece).for_each(|piece| line_feeds.filter(piece));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_bare_line_feed_is_refused_in_heads_only() {
        let good = [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-LENGTH:  5 \r\nX: y\r\n\r\na\nb\ncGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n\
             3\r\n\n\n\n\r\n0A;x=\"1\"\r\n0123\n5678\n\r\n0\r\nT: x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ];
        for text in good {
            for piece in 1..=text.len() {
                assert_eq!(filtered(text, piece), text, "in pieces of {piece}");
            }
        }
        let bad = [
            ("GET / HTTP/1.1\nHost: x\r\n\r\n", 1),
            ("GET / HTTP/1.1\r\nHost: x\n\r\n", 1),
            ("GET / HTTP/1.1\r\nHost: x\r\n\n", 1),
            ("GET / HTTP/1.1\n\n", 2),
            ("\nGET / HTTP/1.1\r\n\r\n", 1),
            ("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\nX: y\r\n\r\n", 1),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\nGET / HTTP/1.1\n\r\n", 1),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\nT: x\n\r\n", 1),
            ("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 1),
            (&format!("POST / HTTP/1.1\r\nContent-Length:{}5\r\n\r\n12345", " ".repeat(MAX_LINE)), 1),
        ];
        for (text, count) in bad {
            for piece in 1..=text.len() {
                let refused = filtered(text, piece).matches('\0').count();
                assert_eq!(refused, count, "{text:?} in pieces of {piece}");
            }
        }
        let mut line_feeds = BareLfFilter::default();
        line_feeds.upgrade_flag().store(true, Ordering::Release);
        let mut frame = *b"\x81\x05a\nb\nc";
        line_feeds.filter(&mut frame);
        assert_eq!(frame, *b"\x81\x05a\nb\nc");
    }
}
