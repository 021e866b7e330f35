//! MCP on standard input and output. Standard output has messages only; logs go to standard error.

use super::approval::{Elicitor, Questions};
use super::{McpDoor, RequestContext, VERSION};
use crate::serve::body::charge;
use crate::serve::protocol::DoorSettings;
use crate::serve::transport::lines::{InputLine, open_stdin, read_line};
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::memory::Charge;
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::decode::{
    self, ClientMessage, ClientNotification, ClientRequest, McpDecodeError, McpRequest, SubscriptionFilter,
};
use a2g_wire::mcp::encode::{self, ResultEncoder};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::{ClientCapabilities, MessageLevel, Revision};
use a2g_wire::strict_json::{self, JsonBounds};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, Semaphore, mpsc};

/// Requests that are answered at once; further ones are refused.
const MAX_CONCURRENT: u32 = 64;
/// The delay after which a host should repeat a refused request, in milliseconds.
const BUSY_RETRY_MS: u64 = 500;
/// Messages that wait for the host to read them. Answers and refusals wait until there is room, so a host that reads
/// nothing gets no further request read.
const MAX_UNREAD_MESSAGES: usize = 16;
/// The owner that the memory of messages is counted for.
const OWNER: &str = "stdio";

/// The conversation with the process at the other end.
struct Conversation {
    door: McpDoor,
    caller: Arc<Caller>,
    /// Set by `initialize`: requests without `_meta` belong to the session from then on.
    session: Mutex<Option<StdioSession>>,
    /// The requests that are being answered, by their ids.
    in_flight: Mutex<HashMap<String, InFlight>>,
    output: mpsc::Sender<String>,
    questions: Arc<Questions>,
}

struct InFlight {
    cancelled: Arc<Notify>,
    is_subscription: bool,
}

#[derive(Clone, Copy, Default)]
struct StdioSession {
    capabilities: ClientCapabilities,
    log_level: Option<MessageLevel>,
}

/// Serves until standard input ends or the executor accepts no more calls, and then until every call is answered.
///
/// # Errors
/// If standard input cannot be read or standard output is closed; the calls are then cancelled.
pub async fn serve_mcp_stdio(
    executor: Arc<Executor>,
    settings: DoorSettings,
    bounds: JsonBounds,
    caller: Arc<Caller>,
) -> std::io::Result<()> {
    let input = open_stdin()?;
    let (output, lines) = mpsc::channel(MAX_UNREAD_MESSAGES);
    let conversation = Arc::new(Conversation {
        door: McpDoor::new(Arc::clone(&executor), settings, bounds, true),
        caller,
        session: Mutex::default(),
        in_flight: Mutex::default(),
        output,
        questions: Arc::default(),
    });
    let list_changes = executor.sessions().spawn(Arc::clone(&conversation).report_list_changes());
    let reading = async {
        let read = conversation.read(input).await;
        list_changes.abort();
        // The writer ends with the last sender.
        drop(conversation);
        read
    };
    let (read, written) = tokio::join!(reading, write(lines));
    read.and(written)
}

/// Writes lines until every sender is gone.
async fn write(mut lines: mpsc::Receiver<String>) -> std::io::Result<()> {
    let mut output = tokio::io::stdout();
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}

impl Conversation {
    async fn read(self: &Arc<Self>, mut input: impl tokio::io::AsyncBufRead + Unpin) -> std::io::Result<()> {
        let places = Arc::new(Semaphore::new(MAX_CONCURRENT as usize));
        let executor = Arc::clone(&self.door.executor);
        loop {
            let line = tokio::select! {
                line = read_line(&mut input, self.door.bounds.max_bytes) => line?,
                () = executor.wait_until_closed() => break,
                () = self.output.closed() => return Err(std::io::ErrorKind::BrokenPipe.into()),
            };
            let line = match line {
                InputLine::End => break,
                InputLine::TooLong => {
                    let error = McpError::from(self.door.bounds.too_long_fault());
                    self.send(error.response(None)).await;
                    continue;
                }
                InputLine::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                InputLine::Whole(line) => line,
            };
            self.receive(&line, &places).await;
        }
        self.end_subscriptions();
        self.questions.close();
        let _all_answered = places.acquire_many(MAX_CONCURRENT).await;
        Ok(())
    }

    async fn send(&self, message: String) {
        // A reader that is gone ends the conversation at the next line.
        let _unread = self.output.send(message).await;
    }

    async fn receive(self: &Arc<Self>, line: &[u8], places: &Arc<Semaphore>) {
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
                if let Err((id, error)) = self.begin(request, charge, places).await {
                    self.send(error.response(Some(&id))).await;
                }
            }
            Ok(ClientMessage::Notification(ClientNotification::Cancelled(id))) => {
                if let Some(entry) = self.in_flight.lock().get(id.as_json()) {
                    entry.cancelled.notify_one();
                }
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

    /// Starts to answer a request, unless as many as allowed are being answered.
    async fn begin(
        self: &Arc<Self>,
        request: ClientRequest<'_>,
        charge: Charge,
        places: &Arc<Semaphore>,
    ) -> Result<(), (Id, McpError)> {
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
        let is_subscription = matches!(decoded, McpRequest::Listen(_));
        let entry = self.enter(&request.id, is_subscription).map_err(|fault| failed(fault.into()))?;
        let session = self.session.lock().unwrap_or_default();
        let (capabilities, log_level, elicitor) = match revision {
            Revision::Stateless => {
                (request.meta.capabilities.unwrap_or_default(), request.meta.log_level, None)
            }
            Revision::Session => {
                let (questions, output) = (Arc::clone(&self.questions), self.output.clone());
                (session.capabilities, session.log_level, Some(Elicitor { questions, output }))
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
            let filter = decode::check_subscription(filter, capabilities).map_err(failed)?;
            let conversation = Arc::clone(self);
            self.door.executor.sessions().spawn(async move {
                let _cancelled = entry.run(conversation.listen(context.id, filter)).await;
            });
            return Ok(());
        }
        // Waiting for a place would keep the answers from being read that free one.
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            return Err(failed(too_many_requests()));
        };
        let conversation = Arc::clone(self);
        self.door.executor.sessions().spawn(async move {
            let id = context.id.clone();
            let answer = entry.run(conversation.door.answer(context, decoded)).await;
            // A cancelled request has no answer.
            if let Some(answer) = answer {
                let text = answer.unwrap_or_else(|error| error.response(Some(&id)));
                conversation.send(text).await;
            }
            drop(place);
        });
        Ok(())
    }

    fn revision_of(&self, request: &ClientRequest<'_>) -> Result<Revision, McpError> {
        if request.meta.version.is_some() {
            decode::require_stateless_meta(&request.meta)?;
            return Ok(Revision::Stateless);
        }
        let is_in_session = request.method == "initialize" || self.session.lock().is_some();
        if is_in_session { Ok(Revision::Session) } else { Err(McpError::SessionRequired) }
    }

    fn enter(self: &Arc<Self>, id: &Id, is_subscription: bool) -> Result<Entry, Fault> {
        let mut in_flight = self.in_flight.lock();
        let key = id.as_json().to_owned();
        if in_flight.contains_key(&key) {
            let message = "`id` is that of a request that is not answered yet";
            return Err(Fault::InvalidRequest(message.to_owned()));
        }
        let cancelled = Arc::new(Notify::new());
        in_flight.insert(key.clone(), InFlight { cancelled: Arc::clone(&cancelled), is_subscription });
        Ok(Entry { conversation: Arc::clone(self), key, cancelled })
    }

    fn end_subscriptions(&self) {
        let in_flight = self.in_flight.lock();
        for entry in in_flight.values().filter(|entry| entry.is_subscription) {
            entry.cancelled.notify_one();
        }
    }

    /// Sends the notifications of a subscription until it is cancelled.
    async fn listen(&self, id: Id, filter: SubscriptionFilter) {
        let mut changes = self.door.list_changes(&self.caller, filter);
        self.send(encode::acknowledged(&id, filter)).await;
        loop {
            tokio::select! {
                list = changes.next() => {
                    let Some(list) = list else { return };
                    self.send(encode::list_changed(list, Some(&id))).await;
                }
                () = self.door.executor.wait_until_closed() => {
                    let encoder = ResultEncoder { revision: Revision::Stateless, server_version: VERSION };
                    return self.send(encoder.subscription_end(&id)).await;
                }
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

fn too_many_requests() -> McpError {
    let message = format!("{MAX_CONCURRENT} requests are being answered: wait for one of them");
    Fault::Busy { message, retry_after_ms: BUSY_RETRY_MS }.into()
}

/// The entry of a request for as long as it is being answered.
struct Entry {
    conversation: Arc<Conversation>,
    key: String,
    cancelled: Arc<Notify>,
}

impl Entry {
    /// Awaits the answer; `None` if the client cancels the request. Dropping the answer's future cancels its call.
    async fn run<T>(self, answer: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            answer = answer => Some(answer),
            () = self.cancelled.notified() => None,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.conversation.in_flight.lock().remove(&self.key);
    }
}
