//! Sessions under the revision 2025-11-25: calls that outlive their connection, and streams that can be resumed.
//!
//! ```text
//! open ─ requests ─▶ idle ─ MAX_IDLE ─▶ ended
//!   └──── DELETE, or a caller that needs its place ────▲
//! ```
//! In a fleet, the id of a session has what another node needs to continue it, unless that node has ended it. Calls and
//! streams end with their node.

use super::approval::{Elicitor, Questions};
use super::http::SESSION_HEADER;
use super::requests::{OpenRequest, OpenRequests};
use super::{MAX_UNREAD_NOTIFICATIONS, McpDoor, RequestContext, until_true};
use a2g_core::run::{Executor, Fleet};
use a2g_govern::Caller;
use a2g_http::McpSettings;
use a2g_http::body::no_room_fault;
use a2g_runtime::timer_now;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::memory::{self, CountedBytes, NoRoom};
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::decode::{McpRequest, SubscriptionFilter};
use a2g_wire::mcp::encode;
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::headers::HeaderValues;
use a2g_wire::mcp::{ClientCapabilities, MessageLevel};
use futures_util::Stream;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Interval at which idle sessions are ended.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of streams of a session that can be resumed: one for each request that may be open.
const MAX_STREAMS: usize = super::requests::MAX_OPEN;
/// Time for which a stream with its answer can be resumed.
const REPLAY_TIME: Duration = Duration::from_secs(60);
/// Maximum number of events of one stream that are sent again.
const MAX_STREAM_EVENTS: usize = 64;

/// Maximum number of ended sessions that are remembered: this node does not continue them.
const MAX_ENDED: usize = 1024;
/// The purpose of the ids.
const PURPOSE: &str = "mcp-session";

/// The sessions of all callers.
pub(super) struct Sessions {
    /// The fleet, whose nodes continue each other's sessions; `None` without one.
    fleet: Option<Arc<Fleet>>,
    /// The ids of the sessions that this node does not continue, the oldest first.
    ended: Mutex<VecDeque<String>>,
    all: Mutex<Vec<Arc<McpSession>>>,
    max_sessions: usize,
    max_per_caller: usize,
    max_idle: Duration,
}

/// One session.
pub(super) struct McpSession {
    id: String,
    owner: String,
    capabilities: ClientCapabilities,
    questions: Arc<Questions>,
    log_level: Mutex<Option<MessageLevel>>,
    requests: Arc<OpenRequests>,
    streams: Mutex<VecDeque<Arc<EventStream>>>,
    next_stream: AtomicU64,
    last_used: Mutex<Instant>,
    ended: watch::Sender<bool>,
}

impl Sessions {
    pub(super) fn new(executor: Arc<Executor>, settings: &McpSettings) -> Arc<Self> {
        let sessions = Arc::new(Self {
            fleet: executor.node.fleet().cloned(),
            ended: Mutex::default(),
            all: Mutex::default(),
            max_sessions: settings.max_sessions,
            max_per_caller: settings.max_sessions_per_caller,
            max_idle: settings.idle,
        });
        executor.session_tasks().spawn(sweep_sessions(Arc::downgrade(&sessions)));
        sessions
    }

    /// Opens a session, if necessary in place of the one that has been idle for longest: of the same caller, if that
    /// caller has its maximum.
    ///
    /// # Errors
    /// [`McpError::TooManySessions`] if all candidates have calls.
    pub(super) fn open(
        &self,
        caller: &Caller,
        capabilities: ClientCapabilities,
    ) -> Result<Arc<McpSession>, McpError> {
        let id = self.new_id(caller.name(), capabilities);
        self.open_as(&mut self.all.lock(), id, caller, capabilities)
    }

    fn open_as(
        &self,
        all: &mut Vec<Arc<McpSession>>,
        id: String,
        caller: &Caller,
        capabilities: ClientCapabilities,
    ) -> Result<Arc<McpSession>, McpError> {
        let own = all.iter().filter(|session| session.owner == caller.name()).count();
        let is_full = own >= self.max_per_caller;
        if is_full || all.len() >= self.max_sessions {
            let numbered = all.iter().enumerate();
            let candidates = numbered.filter(|(_, session)| !is_full || session.owner == caller.name());
            let idle = candidates.filter(|(_, session)| session.is_idle());
            let oldest = idle.min_by_key(|(_, session)| *session.last_used.lock());
            let index = oldest.map(|(index, _)| index).ok_or(McpError::TooManySessions)?;
            self.end_removed(&all.remove(index));
        }
        let session = Arc::new(McpSession {
            id,
            owner: caller.name().to_owned(),
            capabilities,
            questions: Arc::default(),
            log_level: Mutex::default(),
            requests: Arc::default(),
            streams: Mutex::default(),
            next_stream: AtomicU64::new(1),
            last_used: Mutex::new(timer_now()),
            ended: watch::Sender::new(false),
        });
        all.push(Arc::clone(&session));
        Ok(session)
    }

    /// A random id. In a fleet it also has the capabilities of the client, and a code that binds both to the owner.
    fn new_id(&self, owner: &str, capabilities: ClientCapabilities) -> String {
        match &self.fleet {
            Some(fleet) => fleet.member.issue_id(PURPOSE, &to_bits(capabilities).to_string(), owner),
            None => IntentId::random().to_string(),
        }
    }

    /// The client's capabilities in an id that a node of the fleet has made for this owner; `None` for any other id, and
    /// for one whose session has ended here.
    fn capabilities_of(&self, id: &str, owner: &str) -> Option<ClientCapabilities> {
        if self.ended.lock().iter().any(|ended| ended == id) {
            return None;
        }
        let bits = self.fleet.as_ref()?.member.read_id(PURPOSE, id, owner)?;
        bits.parse().ok().and_then(from_bits)
    }

    /// The session that a request names, if it is the caller's; `None` if it names none.
    ///
    /// # Errors
    /// [`McpError::SessionNotFound`]; [`McpError::TooManySessions`] for a session of another node.
    pub(super) fn named(
        &self,
        headers: &impl HeaderValues,
        caller: &Caller,
    ) -> Result<Option<Arc<McpSession>>, McpError> {
        let Some(id) = headers.single(SESSION_HEADER.as_str())? else { return Ok(None) };
        let mut all = self.all.lock();
        let found = all.iter().find(|session| session.id == id && session.owner == caller.name());
        if let Some(session) = found {
            *session.last_used.lock() = timer_now();
            return Ok(Some(Arc::clone(session)));
        }
        let capabilities = self.capabilities_of(id, caller.name()).ok_or(McpError::SessionNotFound)?;
        let session = self.open_as(&mut all, id.to_owned(), caller, capabilities)?;
        tracing::debug!(caller = caller.name(), "a session of another node is continued here");
        Ok(Some(session))
    }

    /// Ends the session that a request names, if it is the caller's, and cancels its calls. Returns `false` if the request
    /// names none.
    ///
    /// # Errors
    /// [`McpError::SessionNotFound`].
    pub(super) fn end(&self, headers: &impl HeaderValues, caller: &Caller) -> Result<bool, McpError> {
        let Some(id) = headers.single(SESSION_HEADER.as_str())? else { return Ok(false) };
        let mut all = self.all.lock();
        match all.iter().position(|session| session.id == id && session.owner == caller.name()) {
            Some(index) => self.end_removed(&all.remove(index)),
            None if self.capabilities_of(id, caller.name()).is_some() => self.forget(id),
            None => return Err(McpError::SessionNotFound),
        }
        Ok(true)
    }

    fn end_removed(&self, session: &McpSession) {
        session.end();
        self.forget(&session.id);
    }

    /// Lets this node continue a session no more.
    fn forget(&self, id: &str) {
        if self.fleet.is_none() {
            return;
        }
        let mut ended = self.ended.lock();
        if ended.len() >= MAX_ENDED {
            ended.pop_front();
        }
        ended.push_back(id.to_owned());
    }

    fn sweep(&self) {
        let now = timer_now();
        self.all.lock().retain(|session| {
            let idle = now.saturating_duration_since(*session.last_used.lock());
            let is_over = session.is_idle() && idle >= self.max_idle;
            if is_over {
                self.end_removed(session);
            }
            session.streams.lock().retain(|stream| !stream.state.borrow().is_expired(now));
            !is_over
        });
    }
}

fn to_bits(capabilities: ClientCapabilities) -> u8 {
    let ClientCapabilities { elicits_forms, elicits_urls, has_tasks, reads_empty_events } = capabilities;
    let flags = [elicits_forms, elicits_urls, has_tasks, reads_empty_events];
    flags.into_iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(flag))
}

fn from_bits(bits: u8) -> Option<ClientCapabilities> {
    let has = |bit: u8| bits & bit != 0;
    (bits < 16).then(|| ClientCapabilities {
        elicits_forms: has(1),
        elicits_urls: has(2),
        has_tasks: has(4),
        reads_empty_events: has(8),
    })
}

/// Runs until the door is dropped.
async fn sweep_sessions(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        match sessions.upgrade() {
            Some(sessions) => sessions.sweep(),
            None => return,
        }
    }
}

impl McpSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn questions(&self) -> &Questions {
        &self.questions
    }

    pub(super) fn set_log_level(&self, level: MessageLevel) {
        *self.log_level.lock() = Some(level);
    }

    fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    fn end(&self) {
        self.ended.send_replace(true);
        self.requests.cancel_all();
    }

    /// Cancels the call of a request.
    pub(super) fn cancel(&self, id: &Id) {
        self.requests.cancel(id);
    }

    /// Answers a request; it ends early when the client cancels it or the session ends.
    pub(super) async fn answer(
        self: &Arc<Self>,
        door: &McpDoor,
        context: RequestContext,
        request: McpRequest,
    ) -> Result<String, McpError> {
        let open = self.requests.begin(&context.id)?;
        self.answer_open(&open, door, context, request).await
    }

    async fn answer_open(
        self: &Arc<Self>,
        open: &OpenRequest,
        door: &McpDoor,
        mut context: RequestContext,
        request: McpRequest,
    ) -> Result<String, McpError> {
        context.log_level = *self.log_level.lock();
        context.capabilities = self.capabilities;
        let id = context.id.clone();
        let answer = open.run(door.answer(context, request)).await;
        *self.last_used.lock() = timer_now();
        answer.unwrap_or_else(|| {
            let message = format!("the request {} was cancelled", id.as_json());
            Err(Fault::InvalidRequest(message).into())
        })
    }

    /// Answers a request on a stream of its own. The request goes on when the connection breaks: only a cancel or the
    /// end of the session stops it.
    ///
    /// # Errors
    /// If the id is in use, or the session has its maximum number of requests.
    pub(super) fn answer_on_stream(
        self: &Arc<Self>,
        door: &Arc<McpDoor>,
        mut context: RequestContext,
        request: McpRequest,
    ) -> Result<impl Stream<Item = (String, String)> + Send + use<>, McpError> {
        // Registered before the response begins: a cancellation may follow it at once.
        let open = self.requests.begin(&context.id)?;
        let stream = self.open_stream();
        // An event without a message, so that a client can resume before the first one.
        if self.capabilities.reads_empty_events {
            stream.push(String::new());
        }
        let (notifications, mut unread) = mpsc::channel::<String>(MAX_UNREAD_NOTIFICATIONS);
        context.elicitor =
            Some(Elicitor { questions: Arc::clone(&self.questions), output: notifications.clone() });
        context.notifications = Some(notifications);
        let session = Arc::clone(self);
        let door = Arc::clone(door);
        let events = Arc::clone(&stream);
        door.executor.session_tasks().clone().spawn(async move {
            let id = context.id.clone();
            let answer = session.answer_open(&open, &door, context, request);
            tokio::pin!(answer);
            let text = loop {
                tokio::select! {
                    biased;
                    Some(text) = unread.recv() => events.push(text),
                    answer = &mut answer => break answer.unwrap_or_else(|error| error.response(Some(&id))),
                }
            };
            while let Ok(text) = unread.try_recv() {
                events.push(text);
            }
            // The receipt is in the journal: a repeat with the intent's id gets the answer.
            events.finish(text, || McpError::from(no_room_fault(NoRoom::Share)).response(Some(&id)));
        });
        Ok(read_events(stream, 0))
    }

    fn open_stream(&self) -> Arc<EventStream> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(EventStream::new(number, &self.owner));
        let mut streams = self.streams.lock();
        if streams.len() >= MAX_STREAMS {
            let finished = streams.iter().position(|stream| stream.state.borrow().finished.is_some());
            streams.remove(finished.unwrap_or(0));
        }
        streams.push_back(Arc::clone(&stream));
        stream
    }

    /// The events after the one with this id; `None` if its stream is no longer known.
    pub(super) fn resume(&self, last: &str) -> Option<impl Stream<Item = (String, String)> + Send + use<>> {
        let (stream, event) = last.split_once('-')?;
        let number = stream.parse::<u64>().ok()?;
        let after = event.parse::<u64>().ok()?;
        let streams = self.streams.lock();
        let found = streams.iter().find(|known| known.number == number)?;
        Some(read_events(Arc::clone(found), after.saturating_add(1)))
    }

    /// The notifications that belong to no request.
    pub(super) fn notifications(
        self: &Arc<Self>,
        door: &McpDoor,
        caller: &Arc<Caller>,
    ) -> impl Stream<Item = String> + Send + use<> {
        let changes = door.list_changes(caller, SubscriptionFilter::EVERY_LIST);
        let state = (Arc::clone(self), changes, self.ended.subscribe());
        futures_util::stream::unfold(state, async |(session, mut changes, mut ended)| {
            tokio::select! {
                list = changes.next() => {
                    Some((encode::list_changed(list?, None), (session, changes, ended)))
                }
                () = until_true(&mut ended) => None,
            }
        })
    }
}

/// The events of one request, which stay until the session needs their place.
struct EventStream {
    number: u64,
    state: watch::Sender<StreamState>,
}

struct StreamState {
    /// The number of the first event that is still there.
    first: u64,
    events: VecDeque<Arc<str>>,
    /// The bytes of the events, in the caller's share of memory.
    counted: CountedBytes,
    bytes: u64,
    /// The time of the answer.
    finished: Option<Instant>,
}

impl EventStream {
    fn new(number: u64, owner: &str) -> Self {
        let counted = memory::hold_always(owner, 0);
        let state = StreamState { first: 0, events: VecDeque::new(), counted, bytes: 0, finished: None };
        Self { number, state: watch::Sender::new(state) }
    }

    /// Adds a notification, if the caller's share has room for it.
    fn push(&self, text: String) {
        self.state.send_modify(|state| {
            let _is_added = state.offer(text);
        });
    }

    /// Adds the answer, or a refusal if the caller's share has no room for it.
    fn finish(&self, answer: String, refusal: impl FnOnce() -> String) {
        self.state.send_modify(|state| {
            if !state.offer(answer) {
                state.push(refusal());
            }
            state.finished = Some(timer_now());
        });
    }
}

impl StreamState {
    /// Adds an event; `false` if the caller's share has no room for it.
    fn offer(&mut self, text: String) -> bool {
        let fits = self.counted.has_room(text.len() as u64);
        if fits {
            self.push(text);
        }
        fits
    }

    fn push(&mut self, text: String) {
        if self.events.len() >= MAX_STREAM_EVENTS
            && let Some(oldest) = self.events.pop_front()
        {
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(oldest.len() as u64);
        }
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        self.counted.set(self.bytes);
        self.events.push_back(text.into());
    }

    fn is_expired(&self, now: Instant) -> bool {
        self.finished.is_some_and(|finished| now.saturating_duration_since(finished) >= REPLAY_TIME)
    }

    /// The first event with at least this number.
    fn event(&self, number: u64) -> Option<(u64, Arc<str>)> {
        let number = number.max(self.first);
        let index = usize::try_from(number - self.first).ok()?;
        self.events.get(index).map(|text| (number, Arc::clone(text)))
    }
}

/// The events of a stream from one on, with their ids, until its answer.
fn read_events(stream: Arc<EventStream>, from: u64) -> impl Stream<Item = (String, String)> + Send {
    let changes = stream.state.subscribe();
    futures_util::stream::unfold((stream.number, changes, from), async |(stream, mut changes, next)| {
        let event = {
            let state = changes
                .wait_for(|state| state.event(next).is_some() || state.finished.is_some())
                .await
                .ok()?;
            state.event(next)
        };
        let (number, text) = event?;
        Some(((format!("{stream}-{number}"), text.to_string()), (stream, changes, number + 1)))
    })
}
