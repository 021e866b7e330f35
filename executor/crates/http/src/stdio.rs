//! One JSON-RPC message per line on standard input and output. Logs go to standard error.

use super::rpc::Rpc;
use super::transport::lines::{InputLine, open_stdin, read_line};
use a2g_govern::Caller;
use a2g_runtime::spawn::SessionTasks;
use std::io::Write;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum number of lines that are handled concurrently. Further lines are not read until one of them is answered.
const MAX_CONCURRENT: usize = 256;

/// Serves until standard input ends, and then until every line is answered. The process at the other end of the streams
/// is the only caller.
///
/// # Errors
/// If standard input cannot be read.
pub async fn serve_stdio(rpc: Rpc, caller: Arc<Caller>, sessions: &SessionTasks) -> std::io::Result<()> {
    let mut input = open_stdin()?;
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    loop {
        let line = match read_line(&mut input, rpc.bounds().max_bytes).await? {
            InputLine::End => break,
            InputLine::TooLong => {
                write_line(&rpc.too_long().text);
                continue;
            }
            InputLine::Whole(line) => line,
        };
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let rpc = rpc.clone();
        let caller = Arc::clone(&caller);
        sessions.spawn(async move {
            if let Some(answer) = rpc.answer(&line, &caller).await {
                write_line(&answer.text);
            }
            drop(permit);
        });
    }
    let _all_answered = permits.acquire_many(u32::try_from(MAX_CONCURRENT).unwrap_or(u32::MAX)).await;
    Ok(())
}

/// Writes one whole line. A closed standard output is only logged: the run is reported to the governor anyway.
fn write_line(line: &str) {
    let mut output = std::io::stdout().lock();
    let result = output
        .write_all(line.as_bytes())
        .and_then(|()| output.write_all(b"\n"))
        .and_then(|()| output.flush());
    if let Err(error) = result {
        tracing::warn!(%error, "standard output is closed");
    }
}
