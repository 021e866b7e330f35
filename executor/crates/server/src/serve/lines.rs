//! Standard input as lines, for the transports with one message a line.

use std::os::fd::AsFd;
use std::pin::Pin;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// Opens standard input. A pipe is polled by the runtime; anything else is read on a blocking thread.
pub(super) fn open_stdin() -> std::io::Result<BufReader<Pin<Box<dyn AsyncRead + Send>>>> {
    let handle = std::io::stdin().as_fd().try_clone_to_owned()?;
    let input: Pin<Box<dyn AsyncRead + Send>> = match tokio::net::unix::pipe::Receiver::from_owned_fd(handle)
    {
        Ok(pipe) => Box::pin(pipe),
        Err(_not_a_pipe) => Box::pin(tokio::io::stdin()),
    };
    Ok(BufReader::with_capacity(64 << 10, input))
}

/// One line of input.
pub(super) enum InputLine {
    /// The whole line, without its line end.
    Whole(Vec<u8>),
    /// The line is longer than allowed, and was dropped.
    TooLong,
    /// End of input.
    End,
}

/// Reads one line of at most `most` bytes. The rest of a longer one is read and dropped, so that the next line starts
/// at its beginning.
pub(super) async fn read_line(
    input: &mut (impl AsyncBufRead + Unpin),
    most: usize,
) -> std::io::Result<InputLine> {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let buffer = input.fill_buf().await?;
        if buffer.is_empty() {
            return Ok(match (too_long, line.is_empty()) {
                (true, _) => InputLine::TooLong,
                (false, true) => InputLine::End,
                (false, false) => InputLine::Whole(line),
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
            return Ok(if too_long { InputLine::TooLong } else { InputLine::Whole(line) });
        }
    }
}
