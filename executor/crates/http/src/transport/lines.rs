//! One JSON value on each line: streamed answers, and standard input and output.

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use std::os::fd::AsFd;
use std::pin::Pin;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

/// An answer of lines, each sent as soon as the stream yields it.
pub fn ndjson_response(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    let lines = texts.map(|text| Ok::<_, std::convert::Infallible>(Bytes::from(text + "\n")));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Opens standard input. A pipe is polled by the runtime; anything else is read on a blocking thread.
///
/// # Errors
/// If it is not open.
pub fn open_stdin() -> std::io::Result<BufReader<Pin<Box<dyn AsyncRead + Send>>>> {
    let handle = std::io::stdin().as_fd().try_clone_to_owned()?;
    let input: Pin<Box<dyn AsyncRead + Send>> = match tokio::net::unix::pipe::Receiver::from_owned_fd(handle)
    {
        Ok(pipe) => Box::pin(pipe),
        Err(_not_a_pipe) => Box::pin(tokio::io::stdin()),
    };
    Ok(BufReader::with_capacity(64 << 10, input))
}

/// Opens standard output. A pipe is polled by the runtime; anything else is written on a blocking thread.
///
/// # Errors
/// If it is not open.
pub fn open_stdout() -> std::io::Result<Pin<Box<dyn AsyncWrite + Send>>> {
    let handle = std::io::stdout().as_fd().try_clone_to_owned()?;
    Ok(match tokio::net::unix::pipe::Sender::from_owned_fd(handle) {
        Ok(pipe) => Box::pin(pipe),
        Err(_not_a_pipe) => Box::pin(tokio::io::stdout()),
    })
}

/// Writes one line.
///
/// # Errors
/// If it cannot be written.
pub async fn write_line(output: &mut (impl AsyncWrite + Unpin), mut line: String) -> std::io::Result<()> {
    line.push('\n');
    output.write_all(line.as_bytes()).await?;
    output.flush().await
}

/// One line of input.
pub enum InputLine {
    /// The whole line, without its line end.
    Whole(Vec<u8>),
    /// The line is longer than allowed, and was dropped.
    TooLong,
    /// End of input.
    End,
}

// tokio-util's `LinesCodec` ends at input that is not UTF-8; here such a line is one bad message, which is answered.
/// Reads one line of at most `max_bytes` bytes that is not blank. A longer one is read to its end and dropped.
///
/// # Errors
/// If the input cannot be read.
pub async fn read_line(
    input: &mut (impl AsyncBufRead + Unpin),
    max_bytes: usize,
) -> std::io::Result<InputLine> {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let buffer = input.fill_buf().await?;
        if buffer.is_empty() {
            return Ok(match (too_long, line.iter().all(u8::is_ascii_whitespace)) {
                (true, _) => InputLine::TooLong,
                (false, true) => InputLine::End,
                (false, false) => InputLine::Whole(line),
            });
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let piece = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
        too_long |= line.len() + piece.len() > max_bytes;
        if !too_long {
            line.extend_from_slice(piece);
        }
        let consumed = piece.len() + usize::from(end.is_some());
        input.consume(consumed);
        let is_blank = !too_long && line.iter().all(u8::is_ascii_whitespace);
        match end {
            Some(_) if is_blank => line.clear(),
            Some(_) => return Ok(if too_long { InputLine::TooLong } else { InputLine::Whole(line) }),
            None => {}
        }
    }
}
