//! MCP on standard input and output. Standard output has only messages; logs go to standard error.

use super::approval::{Elicitor, Questions};
use super::requests::OpenRequests;
use super::{McpDoor, RequestContext, until_true};
use a2g_core::run::Executor;
use a2g_govern::{Caller, Governor};
use a2g_http::ConsoleUrl;
use a2g_http::McpSettings;
use a2g_http::body::charge;
use a2g_http::transport::lines::{InputLine, open_stdin, open_stdout, read_line, write_line};
use a2g_types::memory::Charge;
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::decode::{
    self, ClientMessage, ClientNotification, ClientRequest, McpDecodeError, McpRequest, SubscriptionFilter,
};
use a2g_wire::mcp::elicit::Decider;
use a2g_wire::mcp::encode;
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::{ClientCapabilities, MessageLevel, Revision};
use a2g_wire::strict_json::{self, JsonBounds};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;

/// Maximum number of messages that wait for the host to read them. Answers and refusals wait until there is room, so a
/// host that reads nothing gets no further request read.
pub(super) const MAX_UNREAD_MESSAGES: usize = 16;
/// The owner that the memory of messages is counted for.
const OWNER: &str = "stdio";

/// The conversation with the process at the other end.
struct Conversation {
    door: Arc<McpDoor>,
    caller: Arc<Caller>,
    /// Set by `initialize`: requests without `_meta` belong to the session from then on.
    session: Mutex<Option<StdioSession>>,
    requests: Arc<OpenRequests>,
    /// `true` once standard input has ended.
    has_ended: watch::Sender<bool>,
    output: mpsc::Sender<String>,
    questions: Arc<Questions>,
}

#[derive(Clone, Copy, Default)]
struct StdioSession {
    capabilities: ClientCapabilities,
    log_level: Option<MessageLevel>,
}

/// Serves until standard input ends, which `input_ended` is told, or the executor accepts no more calls, and then until
/// every call is answered.
///
/// # Errors
/// If standard input cannot be read or standard output is closed; the calls are then cancelled.
pub async fn serve_mcp_stdio(
    executor: Arc<Executor>,
    settings: McpSettings,
    bounds: JsonBounds,
    caller: Arc<Caller>,
    journal: &Path,
    input_ended: oneshot::Sender<()>,
) -> std::io::Result<()> {
    let input = open_stdin()?;
    let (output, lines) = mpsc::channel(MAX_UNREAD_MESSAGES);
    let decider = match executor.policies.governor() {
        Governor::Local(..) => Decider::PersonAtHost,
        Governor::Remote(_) => Decider::Governor,
    };
    let mut door = McpDoor::new(
        Arc::clone(&executor),
        settings.door,
        settings.listing,
        bounds,
        decider,
        ConsoleUrl::default(),
        true,
    );
    door.instructions.push_str(&format!(" The journal `{}` has every call.", journal.display()));
    let conversation = Arc::new(Conversation {
        door: Arc::new(door),
        caller,
        session: Mutex::default(),
        requests: Arc::default(),
        has_ended: watch::Sender::new(false),
        output,
        questions: Arc::default(),
    });
    let list_changes = executor.session_tasks().spawn(Arc::clone(&conversation).report_list_changes());
    let reading = async move {
        let read = conversation.read(input, input_ended).await;
        list_changes.abort();
        // The writer ends with the last sender.
        drop(conversation);
        read
    };
    // Both tasks run on the worker threads, where calls are answered: this thread would have to be woken for each
    // message.
    let tasks = executor.session_tasks();
    let (read, written) = tokio::join!(tasks.spawn(reading), tasks.spawn(write_lines(lines)));
    flatten(read).and(flatten(written))
}

fn flatten(ended: Result<Option<std::io::Result<()>>, JoinError>) -> std::io::Result<()> {
    // `None`: the server ended the task when it shut down, which is no error.
    ended.map_err(std::io::Error::other)?.unwrap_or(Ok(()))
}

/// Writes lines until every sender is gone.
async fn write_lines(mut lines: mpsc::Receiver<String>) -> std::io::Result<()> {
    let mut output = open_stdout()?;
    while let Some(line) = lines.recv().await {
        write_line(&mut output, line).await?;
    }
    Ok(())
}

impl Conversation {
    async fn read(
        self: &Arc<Self>,
        mut input: impl tokio::io::AsyncBufRead + Unpin,
        input_ended: oneshot::Sender<()>,
    ) -> std::io::Result<()> {
        let executor = Arc::clone(&self.door.executor);
        loop {
            let input_line = tokio::select! {
                line = read_line(&mut input, self.door.bounds.max_bytes) => line?,
                () = executor.wait_until_closed() => break,
                () = self.output.closed() => return Err(std::io::ErrorKind::BrokenPipe.into()),
            };
            let line = match input_line {
                InputLine::End => {
                    let _nobody_listens = input_ended.send(());
                    break;
                }
                InputLine::TooLong => {
                    let error = McpError::from(self.door.bounds.too_long_fault());
                    self.send(error.response(None)).await;
                    continue;
                }
                InputLine::Whole(line) => line,
            };
            self.receive(&line).await;
        }
        // Each request that is not answered yet keeps the writer waiting.
        self.has_ended.send_replace(true);
        self.questions.close();
        Ok(())
    }

    async fn send(&self, message: String) {
        // If the host no longer reads, the conversation ends at the next line.
        let _unread = self.output.send(message).await;
    }

    async fn receive(self: &Arc<Self>, line: &[u8]) {
        let message = match strict_json::check(line, &self.door.bounds) {
            Ok(text) => decode::message(text),
            Err(fault) => Err(fault.into()),
        };
        match message {
            Ok(ClientMessage::Request(request)) => {
                let charge = match charge(OWNER, line) {
                    Ok(charge) => charge,
                    Err(fault) => return self.send(McpError::from(fault).response(Some(&request.id))).await,
                };
                if let Err((id, error)) = self.begin(request, charge) {
                    self.send(error.response(Some(&id))).await;
                }
            }
            Ok(ClientMessage::Notification(ClientNotification::Cancelled(id))) => {
                self.requests.cancel(&id);
            }
            Ok(ClientMessage::Notification(ClientNotification::Initialized | ClientNotification::Other)) => {}
            Ok(ClientMessage::Answer { id, answer }) => {
                if !self.questions.answer(&id, answer, &self.caller) {
                    tracing::debug!(id = id.as_json(), "an answer to no open request");
                }
            }
            Err(McpDecodeError { id, error }) => self.send(error.response(id.as_ref())).await,
        }
    }

    /// Starts to answer a request, unless the maximum number of requests is being answered.
    fn begin(self: &Arc<Self>, request: ClientRequest<'_>, charge: Charge) -> Result<(), (Id, McpError)> {
        let id = request.id.clone();
        let failed = |error: McpError| (id.clone(), error);
        let revision = self.revision_of(&request).map_err(failed)?;
        let decoded = request.decode(revision).map_err(|fault| failed(fault.into()))?;
        match &decoded {
            McpRequest::Initialize { capabilities, .. } => {
                *self.session.lock() = Some(StdioSession { capabilities: *capabilities, log_level: None });
            }
            McpRequest::SetLogLevel(level) => {
                self.session.lock().get_or_insert_default().log_level = Some(*level);
            }
            McpRequest::Discover
            | McpRequest::Ping
            | McpRequest::ListTools { .. }
            | McpRequest::CallTool(_)
            | McpRequest::ListResources { .. }
            | McpRequest::ListTemplates
            | McpRequest::ReadResource(_)
            | McpRequest::Complete(_)
            | McpRequest::GetTask(_)
            | McpRequest::UpdateTask(..)
            | McpRequest::CancelTask(_)
            | McpRequest::Listen(_) => {}
        }
        let open = self.requests.begin(&request.id).map_err(|fault| failed(fault.into()))?;
        let session = self.session.lock().unwrap_or_default();
        let (capabilities, log_level, elicitor) = match revision {
            Revision::Stateless => {
                (request.meta.capabilities.unwrap_or_default(), request.meta.log_level, None)
            }
            Revision::Session => {
                let elicitor =
                    Elicitor { questions: Arc::clone(&self.questions), output: self.output.clone() };
                (session.capabilities, session.log_level, Some(elicitor))
            }
        };
        let context = RequestContext {
            revision,
            id: request.id.clone(),
            caller: Arc::clone(&self.caller),
            capabilities,
            log_level,
            meta: request.meta,
            charge,
            notifications: Some(self.output.clone()),
            elicitor,
        };
        if let McpRequest::Listen(filter) = decoded {
            decode::check_subscription(&filter, capabilities).map_err(failed)?;
            let conversation = Arc::clone(self);
            self.door.executor.session_tasks().spawn(async move {
                let _cancelled = open.run(conversation.listen(context, filter)).await;
            });
            return Ok(());
        }
        let conversation = Arc::clone(self);
        self.door.executor.session_tasks().spawn(async move {
            let id = context.id.clone();
            let answer = open.run(conversation.door.answer(context, decoded)).await;
            // A cancelled request has no answer.
            if let Some(answer) = answer {
                let text = answer.unwrap_or_else(|error| error.response(Some(&id)));
                conversation.send(text).await;
            }
        });
        Ok(())
    }

    fn revision_of(&self, request: &ClientRequest<'_>) -> Result<Revision, McpError> {
        if request.meta.version.is_some() {
            request.stateless_capabilities()?;
            return Ok(Revision::Stateless);
        }
        let is_in_session = request.method == "initialize" || self.session.lock().is_some();
        if is_in_session { Ok(Revision::Session) } else { Err(McpError::SessionRequired) }
    }

    /// Sends the messages of a subscription until it is cancelled or standard input ends.
    async fn listen(&self, context: RequestContext, filter: SubscriptionFilter) {
        let mut has_ended = self.has_ended.subscribe();
        let mut messages = pin!(Arc::clone(&self.door).subscribe(context, filter).await);
        loop {
            tokio::select! {
                // The last message, if the executor closes.
                biased;
                message = messages.next() => match message {
                    Some(message) => self.send(message).await,
                    None => return,
                },
                () = until_true(&mut has_ended) => return,
            }
        }
    }

    /// Reports changed lists to a session.
    async fn report_list_changes(self: Arc<Self>) {
        let mut changes = self.door.list_changes(&self.caller, SubscriptionFilter::EVERY_LIST);
        while let Some(list) = changes.next().await {
            let is_session = self.session.lock().is_some();
            if is_session {
                self.send(encode::list_changed(list, None)).await;
            }
        }
    }
}
