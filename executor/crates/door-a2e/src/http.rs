//! A2E over HTTP: `POST /a2e/session`, `POST /a2e/send`, `GET /a2e/stream`, `GET /a2e/health`.
//!
//! Errors in a message are reported on the stream; HTTP statuses report only errors in a request. A session belongs to
//! the caller that opened it; to any other caller it does not exist. In a fleet, a stream continues the session of a process
//! that has ended.

use super::A2eShared;
use super::session::{Session, SessionCaller};
use super::session_id::{SessionIds, session_key};
use a2g_core::run::Executor;
use a2g_govern::{Caller, Credential};
use a2g_http::A2eSettings;
use a2g_http::auth::CallerDirectory;
use a2g_http::body::{BufferedBody, no_room_message};
use a2g_http::connections::{Connection, RequestGuard};
use a2g_http::protocol::{AuthPolicy, DoorAccess, ProtocolRouter, SelfReauthenticating};
use a2g_http::transport::events::event_response;
use a2g_http::transport::json::{json_response, media_type, unsupported_media_type};
use a2g_types::ident::IntentId;
use a2g_types::memory::Charge;
use a2g_wire::a2e::encode;
use a2g_wire::strict_json::JsonBounds;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The header that names a session.
const SESSION_HEADER: &str = "x-session-id";
/// Maximum number of messages in the body of one `POST /a2e/send`.
const MAX_LINES: usize = 16;
/// Interval at which abandoned sessions are ended.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The kind of document by which the nodes of a fleet ask each other for a session.
const SESSION_DOCUMENT: &str = "a2e-session";
/// The answers of a node that has the session, and of one that is about to continue it.
const OPEN: &str = "open";
const RESUMING: &str = "resuming";

/// The status and text for a request that is refused.
type Refusal = (StatusCode, &'static str);

const TOO_MANY_SESSIONS: Refusal = (
    StatusCode::TOO_MANY_REQUESTS,
    "there are too many sessions, and all of them have calls: end one of them first\n",
);
const NO_SUCH_SESSION: Refusal = (
    StatusCode::NOT_FOUND,
    "there is no such session here: `POST /a2e/session` begins one, and in a fleet, `GET /a2e/stream` continues one whose \
     node is lost\n",
);
const OPEN_ELSEWHERE: Refusal =
    (StatusCode::CONFLICT, "this session is open at another node of the fleet: connect to that node\n");
const PERHAPS_ELSEWHERE: Refusal = (
    StatusCode::SERVICE_UNAVAILABLE,
    "a node of the fleet may have this session, or is about to continue it: connect again in a few seconds\n",
);

struct Sessions {
    shared: Arc<A2eShared>,
    ids: SessionIds,
    /// The sessions for which the other nodes are being asked. They count as open here, so that no two nodes continue one.
    resuming: Mutex<HashSet<IntentId>>,
    all: Mutex<Vec<SessionEntry>>,
}

struct SessionEntry {
    owner: Box<str>,
    session: Arc<Session>,
}

/// The router of this door. Spawns the tasks that end abandoned sessions, and all sessions at shutdown.
#[must_use]
pub fn router(
    executor: Arc<Executor>,
    settings: A2eSettings,
    bounds: JsonBounds,
    callers: CallerDirectory,
) -> ProtocolRouter {
    let access = settings.door.access;
    let shared = A2eShared::new(Arc::clone(&executor), settings, bounds, callers);
    let ids = SessionIds::new(executor.node.fleet().cloned());
    let sessions = Arc::new(Sessions { shared, ids, resuming: Mutex::default(), all: Mutex::default() });
    share_sessions(&executor, &sessions);
    let tasks = executor.session_tasks().clone();
    tasks.spawn(sweep_sessions(Arc::downgrade(&sessions)));
    tasks.spawn(drain_on_shutdown(Arc::downgrade(&sessions), executor));
    let routes = Router::new()
        .route("/a2e/session", post(open_session))
        .route("/a2e/send", post(send))
        .route("/a2e/stream", get(stream))
        .route("/a2e/health", get(health))
        .with_state(sessions);
    ProtocolRouter { routes, auth: AuthPolicy::Required(access) }
}

async fn health(State(sessions): State<Arc<Sessions>>) -> Response {
    json_response(StatusCode::OK, encode::health(sessions.shared.uptime_seconds()))
}

async fn open_session(
    State(sessions): State<Arc<Sessions>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(credential): Extension<Credential>,
) -> Response {
    match sessions.open(&caller, credential) {
        Some(session) => json_response(StatusCode::OK, encode::session(session.id())),
        None => TOO_MANY_SESSIONS.into_response(),
    }
}

async fn send(
    State(sessions): State<Arc<Sessions>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(body): Extension<BufferedBody>,
    headers: HeaderMap,
) -> Response {
    // Clients of the protocol's own library send `text/plain`. A web page cannot send such a request without a CORS
    // preflight, because of the header `X-Session-Id`.
    let is_readable =
        matches!(&*media_type(&headers), "application/json" | "application/x-ndjson" | "text/plain");
    if !is_readable {
        return unsupported_media_type("send `Content-Type: application/x-ndjson`\n");
    }
    let session = match named_id(&headers).and_then(|id| sessions.find(id, &caller).ok_or(NO_SUCH_SESSION)) {
        Ok(session) => session,
        Err(refusal) => return refusal.into_response(),
    };
    if !session.out.has_capacity() {
        let message = "too many answers are unread: read `/a2e/stream` first, then send this again\n";
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], message).into_response();
    }
    match &body {
        BufferedBody::TooLong => session.receive(None, Ok(Charge::default())),
        BufferedBody::OverBudget(no_room) => {
            let message = no_room_message(*no_room);
            return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], message).into_response();
        }
        BufferedBody::Whole(bytes, charge) => {
            let pieces = bytes.split(|&byte| byte == b'\n');
            let lines = pieces.filter(|line| !line.iter().all(u8::is_ascii_whitespace)).collect::<Vec<_>>();
            if lines.len() > MAX_LINES {
                let message = format!("a body has at most {MAX_LINES} messages: none of these was read\n");
                return (StatusCode::PAYLOAD_TOO_LARGE, message).into_response();
            }
            lines.into_iter().for_each(|line| session.receive(Some(line), Ok(charge.clone())));
        }
    }
    StatusCode::ACCEPTED.into_response()
}

async fn stream(
    State(sessions): State<Arc<Sessions>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(credential): Extension<Credential>,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
) -> Response {
    let found = async {
        let id = named_id(&headers)?;
        match sessions.find(id, &caller) {
            Some(session) => Ok(session),
            None => sessions.resume(id, &caller, credential).await,
        }
    };
    let session = match found.await {
        Ok(session) => session,
        Err(refusal) => return refusal.into_response(),
    };
    let stream = OpenStream { reader: session.out.attach(), session, _work: connection.begin_request() };
    let lines = futures_util::stream::unfold(stream, async |stream| {
        let line = stream.session.next(stream.reader).await?;
        Some((line, stream))
    });
    // The session authenticates its caller itself, because a later handshake may have presented another token.
    (Extension(SelfReauthenticating), event_response(lines)).into_response()
}

/// An open stream.
struct OpenStream {
    session: Arc<Session>,
    reader: u64,
    /// Marks the connection as busy, so that a new connection does not evict it and cancel calls.
    _work: RequestGuard,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.session.out.detach(self.reader);
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Vec<SessionEntry>> {
        self.all.lock()
    }

    /// Opens a session. At the caller's limit, the new session replaces the caller's longest idle one; at the limit of
    /// all sessions, the longest idle one of any caller. `None` if all of these have calls.
    fn open(&self, caller: &Arc<Caller>, credential: Credential) -> Option<Arc<Session>> {
        self.open_as(&mut self.lock(), self.ids.issue(caller.name()), caller, credential)
    }

    fn open_as(
        &self,
        all: &mut Vec<SessionEntry>,
        id: String,
        caller: &Arc<Caller>,
        credential: Credential,
    ) -> Option<Arc<Session>> {
        let settings = &self.shared.settings;
        let owner = caller.name();
        let own = all.iter().filter(|entry| *entry.owner == *owner).count();
        let is_at_caller_limit = own >= settings.max_sessions_per_caller;
        if is_at_caller_limit || all.len() >= settings.max_sessions {
            let candidates =
                all.iter().enumerate().filter(|(_, entry)| !is_at_caller_limit || *entry.owner == *owner);
            let idle = candidates.filter_map(|(index, entry)| Some((entry.session.idle()?, index)));
            let (_, index) = idle.max_by_key(|(idle, _)| *idle)?;
            all.remove(index).session.abandon();
        }
        let session_caller = match settings.door.access {
            DoorAccess::Callers => SessionCaller::Authenticated(credential),
            DoorAccess::Public => SessionCaller::Anonymous(Arc::clone(caller)),
        };
        let session = Session::new(Arc::clone(&self.shared), id, owner, session_caller);
        all.push(SessionEntry { owner: owner.into(), session: Arc::clone(&session) });
        Some(session)
    }

    /// The session with this id, if it is the caller's.
    fn find(&self, id: &str, caller: &Caller) -> Option<Arc<Session>> {
        find_session(&self.lock(), id, caller)
    }

    /// Continues a session whose process has ended: with its id, and without its handshake and its calls.
    async fn resume(
        &self,
        id: &str,
        caller: &Arc<Caller>,
        credential: Credential,
    ) -> Result<Arc<Session>, Refusal> {
        let key = self.ids.key_of_other_process(id, caller.name()).ok_or(NO_SUCH_SESSION)?;
        let _resuming = Resuming::begin(self, key).ok_or(PERHAPS_ELSEWHERE)?;
        match self.shared.executor.peers.find_document(SESSION_DOCUMENT, key).await {
            Ok(None) => {}
            Ok(Some(state)) if state == RESUMING => return Err(PERHAPS_ELSEWHERE),
            Ok(Some(_)) => return Err(OPEN_ELSEWHERE),
            Err(_) => return Err(PERHAPS_ELSEWHERE),
        }
        let mut all = self.lock();
        if let Some(session) = find_session(&all, id, caller) {
            return Ok(session);
        }
        let session = self.open_as(&mut all, id.to_owned(), caller, credential).ok_or(TOO_MANY_SESSIONS)?;
        tracing::debug!(caller = caller.name(), "a session of another process is continued");
        Ok(session)
    }

    /// Ends sessions that are abandoned or whose caller is no longer authenticated, and removes those that have ended.
    fn sweep(&self) {
        self.lock().retain(|SessionEntry { owner, session }| {
            if session.is_abandoned() || !session.is_authenticated() {
                tracing::debug!(owner, "a session is ended, and its calls are cancelled");
                session.abandon();
                return false;
            }
            // Its calls may have waited for memory that another session of the same caller has released.
            session.start_waiting();
            !session.has_ended()
        });
    }
}

/// Marks a session for which the other nodes are being asked.
struct Resuming<'a> {
    sessions: &'a Sessions,
    key: IntentId,
}

impl<'a> Resuming<'a> {
    /// `None` if another request does so.
    fn begin(sessions: &'a Sessions, key: IntentId) -> Option<Self> {
        sessions.resuming.lock().insert(key).then_some(Self { sessions, key })
    }
}

impl Drop for Resuming<'_> {
    fn drop(&mut self) {
        self.sessions.resuming.lock().remove(&self.key);
    }
}

/// The id in the header of a request.
fn named_id(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut ids = headers.get_all(SESSION_HEADER).iter();
    let (Some(id), None) = (ids.next(), ids.next()) else {
        let message = "name one session in `X-Session-Id`: `POST /a2e/session` begins one\n";
        return Err((StatusCode::BAD_REQUEST, message));
    };
    id.to_str().map_err(|_not_ascii| NO_SUCH_SESSION)
}

fn find_session(all: &[SessionEntry], id: &str, caller: &Caller) -> Option<Arc<Session>> {
    let mut own = all.iter().filter(|entry| *entry.owner == *caller.name());
    own.find(|entry| entry.session.id() == id).map(|entry| Arc::clone(&entry.session))
}

/// Tells the other nodes of the fleet which sessions are open here.
fn share_sessions(executor: &Executor, sessions: &Arc<Sessions>) {
    let weak = Arc::downgrade(sessions);
    executor.peers.share_documents(SESSION_DOCUMENT, move |key| {
        let state = weak.upgrade().and_then(|sessions| {
            // The order matters: a session that is continued is open before it is no longer resuming.
            if sessions.resuming.lock().contains(&key) {
                return Some(RESUMING);
            }
            let is_open = sessions.lock().iter().any(|entry| session_key(entry.session.id()) == Some(key));
            is_open.then_some(OPEN)
        });
        Box::pin(std::future::ready(state.map(str::to_owned)))
    });
}

/// Sweeps the sessions every [`SWEEP_INTERVAL`] until the door is dropped.
async fn sweep_sessions(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        match sessions.upgrade() {
            Some(sessions) => sessions.sweep(),
            None => return,
        }
    }
}

/// Waits until the executor accepts no more calls, and then ends each session as soon as its calls are answered.
async fn drain_on_shutdown(sessions: Weak<Sessions>, executor: Arc<Executor>) {
    executor.wait_until_closed().await;
    let Some(sessions) = sessions.upgrade() else { return };
    for entry in sessions.lock().iter() {
        executor.session_tasks().spawn(Arc::clone(&entry.session).drain(None));
    }
}
