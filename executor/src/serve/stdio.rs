//! One JSON-RPC message a line on standard input and output. Logs go to standard error.

use super::rpc::Rpc;
use crate::govern::Caller;
use std::io::Write;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::Semaphore;

/// How many lines are worked on at once; more are not read until one is done.
const MOST_AT_ONCE: usize = 256;

/// Serves until standard input ends, and then until every line is answered. Whoever holds the other ends is
/// the one caller.
///
/// # Errors
/// When standard input cannot be read.
pub async fn serve_stdio(rpc: Rpc, caller: Arc<Caller>) -> std::io::Result<()> {
    let mut input = BufReader::with_capacity(64 << 10, standard_input()?);
    let places = Arc::new(Semaphore::new(MOST_AT_ONCE));
    loop {
        let line = match read_line(&mut input, rpc.bounds().max_bytes).await? {
            Line::End => break,
            Line::TooLong => {
                write_line(&rpc.too_long());
                continue;
            }
            Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
            Line::Whole(line) => line,
        };
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let (rpc, caller) = (rpc.clone(), Arc::clone(&caller));
        tokio::spawn(async move {
            if let Some(answer) = rpc.answer(&line, &caller).await {
                write_line(&answer);
            }
            drop(place);
        });
    }
    let _all_answered = places.acquire_many(u32::try_from(MOST_AT_ONCE).unwrap_or(u32::MAX)).await;
    Ok(())
}

/// Standard input. A pipe is watched by the runtime itself, without a thread between it and us.
fn standard_input() -> std::io::Result<Pin<Box<dyn AsyncRead + Send>>> {
    let handle = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(match tokio::net::unix::pipe::Receiver::from_owned_fd(handle) {
        Ok(pipe) => Box::pin(pipe),
        Err(_not_a_pipe) => Box::pin(tokio::io::stdin()),
    })
}

enum Line {
    Whole(Vec<u8>),
    TooLong,
    End,
}

/// Reads one line of at most `most` bytes. The rest of a longer one is read and dropped, so that
/// the next line is understood.
async fn read_line(input: &mut (impl AsyncBufRead + Unpin), most: usize) -> std::io::Result<Line> {
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

/// Writes one whole line. A reader that is gone is no error of ours: the run was reported anyway.
fn write_line(line: &str) {
    let mut output = std::io::stdout().lock();
    let written = output
        .write_all(line.as_bytes())
        .and_then(|()| output.write_all(b"\n"))
        .and_then(|()| output.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "standard output is gone");
    }
}
