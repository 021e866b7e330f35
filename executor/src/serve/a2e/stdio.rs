//! A2E on standard input and output: nothing but messages on the one, logs on standard error.

use super::session::{Session, Who};
use super::{A2eSettings, Host};
use crate::govern::Credential;
use crate::memory::Charge;
use crate::run::Executor;
use crate::serve::doorway::charge;
use crate::serve::http::KnownCallers;
use crate::serve::lines::{Line, read_line, standard_input};
use crate::wire::strict_json::JsonBounds;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;

/// The name for which the session's memory is counted.
const OWNER: &str = "stdio";

/// Serves one session until standard input ends, the agent shuts it down, or the executor takes no more
/// calls; and then until every call is answered. Where callers are listed, the handshake has to show the token
/// of one; otherwise whoever holds the other ends is the one caller.
///
/// # Errors
/// When standard input cannot be read, or standard output is gone; then its calls are cancelled.
pub async fn serve_a2e_stdio(
    executor: Arc<Executor>,
    settings: A2eSettings,
    bounds: JsonBounds,
    known: KnownCallers,
) -> std::io::Result<()> {
    let input = standard_input()?;
    let host = Host::new(Arc::clone(&executor), settings, bounds, known);
    let session = Session::new(host, OWNER, Who::Shown(Credential::default()));
    let reader = session.out.attach();
    // What was read to its end is still answered: only the writer says that all is done.
    let reading = async {
        read(&session, input, bounds, &executor).await?;
        std::future::pending().await
    };
    tokio::select! {
        written = write(&session, reader) => written,
        failed = reading => failed,
    }
}

/// Writes lines until there will be no more.
async fn write(session: &Arc<Session>, reader: u64) -> std::io::Result<()> {
    let mut output = tokio::io::stdout();
    while let Some(mut line) = session.next(reader).await {
        line.push('\n');
        let written = async {
            output.write_all(line.as_bytes()).await?;
            output.flush().await
        };
        if let Err(error) = written.await {
            session.desert();
            return Err(error);
        }
    }
    Ok(())
}

/// Reads messages for as long as there may be any, and then lets the session end.
async fn read(
    session: &Arc<Session>,
    mut input: impl tokio::io::AsyncBufRead + Unpin,
    bounds: JsonBounds,
    executor: &Executor,
) -> std::io::Result<()> {
    loop {
        // Whoever takes no answers is asked for none.
        session.out.room().await;
        let line = tokio::select! {
            line = read_line(&mut input, bounds.max_bytes) => line?,
            () = executor.closed() => break,
        };
        match line {
            Line::End => break,
            Line::TooLong => session.receive(None, Ok(Charge::default())),
            Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => {}
            Line::Whole(line) => session.receive(Some(&line), charge(OWNER, &line)),
        }
    }
    Arc::clone(session).drained(None).await;
    Ok(())
}
