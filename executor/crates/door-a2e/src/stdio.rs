//! A2E on standard input and output. Standard output has only messages; logs go to standard error.

use super::A2eShared;
use super::session::{Session, SessionCaller};
use a2g_core::run::Executor;
use a2g_govern::Credential;
use a2g_http::A2eSettings;
use a2g_http::auth::CallerDirectory;
use a2g_http::body::charge;
use a2g_http::transport::lines::{InputLine, open_stdin, open_stdout, read_line, write_line};
use a2g_types::memory::Charge;
use a2g_wire::a2e::encode;
use a2g_wire::strict_json::JsonBounds;
use std::sync::Arc;

/// The owner whose share the session's memory counts against.
const OWNER: &str = "stdio";

/// Serves one session until standard input ends, the agent shuts the session down, or the executor accepts no more
/// calls; and then until every call is answered. If there is a list of callers, the handshake has to present the token
/// of one of them; otherwise the process at the other end of the streams is the only caller.
///
/// # Errors
/// If standard input cannot be read or standard output is closed. The calls are then cancelled.
pub async fn serve_a2e_stdio(
    executor: Arc<Executor>,
    settings: A2eSettings,
    bounds: JsonBounds,
    callers: CallerDirectory,
) -> std::io::Result<()> {
    let input = open_stdin()?;
    let shared = A2eShared::new(Arc::clone(&executor), settings, bounds, callers);
    let caller = SessionCaller::Authenticated(Credential::default());
    let session = Session::new(shared, encode::random_id(), OWNER, caller);
    let reader = session.out.attach();
    // The end of input does not end the session: the writer does, once all calls are answered.
    let reading = async {
        read(&session, input, bounds, &executor).await?;
        std::future::pending().await
    };
    tokio::select! {
        written = write(&session, reader) => written,
        failed = reading => failed,
    }
}

/// Writes lines until the queue is closed.
async fn write(session: &Arc<Session>, reader: u64) -> std::io::Result<()> {
    let mut output = open_stdout()?;
    while let Some(line) = session.next(reader).await {
        if let Err(error) = write_line(&mut output, line).await {
            session.abandon();
            return Err(error);
        }
    }
    Ok(())
}

/// Reads messages until the end of input, and then drains the session.
async fn read(
    session: &Arc<Session>,
    mut input: impl tokio::io::AsyncBufRead + Unpin,
    bounds: JsonBounds,
    executor: &Executor,
) -> std::io::Result<()> {
    loop {
        // Backpressure: no further message is read from an agent that reads no answers.
        session.out.wait_for_capacity().await;
        let line = tokio::select! {
            line = read_line(&mut input, bounds.max_bytes) => line?,
            () = executor.wait_until_closed() => break,
        };
        match line {
            InputLine::End => break,
            InputLine::TooLong => session.receive(None, Ok(Charge::default())),
            InputLine::Whole(line) => session.receive(Some(&line), charge(OWNER, &line)),
        }
    }
    Arc::clone(session).drain(None).await;
    Ok(())
}
