//! Standard input as lines, for the transports that speak one message a line.

use std::os::fd::AsFd;
use std::pin::Pin;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// Standard input, of which a pipe is watched by the runtime itself, without a thread between it and us.
pub(super) fn standard_input() -> std::io::Result<BufReader<Pin<Box<dyn AsyncRead + Send>>>> {
    let handle = std::io::stdin().as_fd().try_clone_to_owned()?;
    let input: Pin<Box<dyn AsyncRead + Send>> = match tokio::net::unix::pipe::Receiver::from_owned_fd(handle)
    {
        Ok(pipe) => Box::pin(pipe),
        Err(_not_a_pipe) => Box::pin(tokio::io::stdin()),
    };
    Ok(BufReader::with_capacity(64 << 10, input))
}

/// What was read of one line.
pub(super) enum Line {
    /// All of it, without its end.
    Whole(Vec<u8>),
    /// It is longer than it may be, and was not kept.
    TooLong,
    /// There are no more.
    End,
}

/// Reads one line of at most `most` bytes. The rest of a longer one is read and dropped, so that
/// the next line is understood.
pub(super) async fn read_line(input: &mut (impl AsyncBufRead + Unpin), most: usize) -> std::io::Result<Line> {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let buffer = input.fill_buf().await?;
        if buffer.is_empty() {
            return Ok(match (too_long, line.is_empty()) {
                (true, _) => Line::TooLong,
                (false, true) => Line::End,
                (false, false) => Line::Whole(line),
            });
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let piece = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
        too_long |= line.len() + piece.len() > most;
        if !too_long {
            line.extend_from_slice(piece);
        }
        let used = piece.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(if too_long { Line::TooLong } else { Line::Whole(line) });
        }
    }
}
