//! A2E over HTTP: `POST /a2e/session`, `POST /a2e/send`, `GET /a2e/stream`, `GET /a2e/health`.
//!
//! What is wrong with a message is said on the stream; HTTP says only what is wrong with a request. A session
//! belongs to the caller who made it: to any other it is not there.

use super::session::{Session, Who};
use super::{A2eSettings, Host};
use crate::govern::{Caller, Credential};
use crate::memory::Charge;
use crate::run::Executor;
use crate::serve::connections::{Connection, Work};
use crate::serve::doorway::{Arrived, AsksAgain, Doorway, Gate, NO_SHARE, OpenTo};
use crate::serve::http::{KnownCallers, media_type};
use crate::wire::a2e::encode;
use crate::wire::strict_json::JsonBounds;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The header that names a session.
const SESSION: &str = "x-session-id";
/// How many messages one body may hold.
const MAX_LINES: usize = 16;
/// How often the sessions are looked after.
const ROUND: Duration = Duration::from_millis(250);
/// How often a stream without news shows that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What is wrong with a request.
type Refusal = (StatusCode, &'static str);

/// All sessions of this door.
struct Sessions {
    host: Arc<Host>,
    all: Mutex<Vec<Entry>>,
}

struct Entry {
    owner: Box<str>,
    session: Arc<Session>,
}

/// This door.
#[must_use]
pub fn doorway(
    executor: Arc<Executor>,
    settings: A2eSettings,
    bounds: JsonBounds,
    known: KnownCallers,
) -> Doorway {
    let open_to = settings.door.open_to;
    let host = Host::new(Arc::clone(&executor), settings, bounds, known);
    let sessions = Arc::new(Sessions { host, all: Mutex::default() });
    let tasks = executor.sessions().clone();
    tasks.spawn(look_after(Arc::downgrade(&sessions)));
    tasks.spawn(drain_at_the_end(Arc::downgrade(&sessions), executor));
    let routes = Router::new()
        .route("/a2e/session", post(begin))
        .route("/a2e/send", post(send))
        .route("/a2e/stream", get(stream))
        .route("/a2e/health", get(health))
        .with_state(sessions);
    Doorway { routes, gate: Gate::Port(open_to) }
}

async fn health(State(sessions): State<Arc<Sessions>>) -> Response {
    json(encode::health(sessions.host.uptime_seconds()))
}

async fn begin(
    State(sessions): State<Arc<Sessions>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(shown): Extension<Credential>,
) -> Response {
    let who = match sessions.host.settings.door.open_to {
        OpenTo::Callers => Who::Shown(shown),
        OpenTo::Everybody => Who::Open(Arc::clone(&caller)),
    };
    match sessions.begin(caller.name(), who) {
        Some(session) => json(encode::session(session.id())),
        None => {
            let message = "there are too many sessions, and all of them have calls: end one of them first\n";
            (StatusCode::TOO_MANY_REQUESTS, message).into_response()
        }
    }
}

async fn send(
    State(sessions): State<Arc<Sessions>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(body): Extension<Arrived>,
    headers: HeaderMap,
) -> Response {
    // Clients of the protocol's own library send `text/plain`. No web page gets here with it: the header
    // that names the session is not one that a page may send by itself.
    let is_readable =
        matches!(&*media_type(&headers), "application/json" | "application/x-ndjson" | "text/plain");
    if !is_readable {
        let message = "send `Content-Type: application/x-ndjson`\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response();
    }
    let session = match sessions.named(&headers, &caller) {
        Ok(session) => session,
        Err(refusal) => return refusal.into_response(),
    };
    if !session.out.has_room() {
        let message = "take what waits on `/a2e/stream` first: nothing of this was read\n";
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], message).into_response();
    }
    match &body {
        Arrived::TooLong => session.receive(None, Ok(Charge::default())),
        Arrived::NoRoom(_) => {
            return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], NO_SHARE).into_response();
        }
        Arrived::Whole(bytes, charge) => {
            let lines = bytes.split(|&byte| byte == b'\n');
            let lines = lines.filter(|line| !line.iter().all(u8::is_ascii_whitespace)).collect::<Vec<_>>();
            if lines.len() > MAX_LINES {
                let message =
                    format!("a body holds at most {MAX_LINES} messages: nothing of this was read\n");
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
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
) -> Response {
    let session = match sessions.named(&headers, &caller) {
        Ok(session) => session,
        Err(refusal) => return refusal.into_response(),
    };
    let reading = Reading { reader: session.out.attach(), session, _work: connection.works() };
    let events = futures_util::stream::unfold(reading, async |reading| {
        let next = tokio::time::timeout(KEEP_ALIVE, reading.session.next(reading.reader)).await;
        let event = match next {
            Ok(line) => format!("data: {}\n\n", line?),
            Err(_no_news) => ":\n\n".to_owned(),
        };
        Some((Ok::<_, Infallible>(Bytes::from(event)), reading))
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    // A session ends when its caller is not known any more, and a handshake may have shown another token.
    (Extension(AsksAgain), head, Body::from_stream(events)).into_response()
}

/// A stream that is open.
struct Reading {
    session: Arc<Session>,
    reader: u64,
    /// Its connection is not idle: that another one comes ends no calls.
    _work: Work,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.session.out.detach(self.reader);
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session, if need be in the place of the one that has been idle for longest: of the same caller,
    /// when it has as many as it may. `None` when all that could make room have calls.
    fn begin(&self, owner: &str, who: Who) -> Option<Arc<Session>> {
        let settings = &self.host.settings;
        let mut all = self.lock();
        let theirs = all.iter().filter(|entry| *entry.owner == *owner).count();
        let full = theirs >= settings.max_sessions_per_caller;
        if full || all.len() >= settings.max_sessions {
            let candidates = all.iter().enumerate().filter(|(_, entry)| !full || *entry.owner == *owner);
            let idle = candidates.filter_map(|(index, entry)| Some((entry.session.idle()?, index)));
            let (_, index) = idle.max_by_key(|(idle, _)| *idle)?;
            all.remove(index).session.desert();
        }
        let session = Session::new(Arc::clone(&self.host), owner, who);
        all.push(Entry { owner: owner.into(), session: Arc::clone(&session) });
        Some(session)
    }

    /// The session that a request names, when it is the caller's.
    fn named(&self, headers: &HeaderMap, caller: &Caller) -> Result<Arc<Session>, Refusal> {
        let mut ids = headers.get_all(SESSION).iter();
        let (Some(id), None) = (ids.next(), ids.next()) else {
            let message = "name one session in `X-Session-Id`: `POST /a2e/session` begins one\n";
            return Err((StatusCode::BAD_REQUEST, message));
        };
        let all = self.lock();
        let mut theirs = all.iter().filter(|entry| *entry.owner == *caller.name());
        let found = theirs.find(|entry| entry.session.id().as_bytes() == id.as_bytes());
        let message = "there is no such session: `POST /a2e/session` begins one\n";
        found.map(|entry| Arc::clone(&entry.session)).ok_or((StatusCode::NOT_FOUND, message))
    }

    /// Ends sessions whose agents are gone, or are not known any more, and forgets those that are over.
    fn round(&self) {
        self.lock().retain(|Entry { owner, session }| {
            if session.is_deserted() || !session.is_known() {
                tracing::debug!(owner, "a session ends, and its calls with it");
                session.desert();
                return false;
            }
            // Its calls may be waiting because of another session of the same caller.
            session.start_waiting();
            !session.is_over()
        });
    }
}

/// Until the door is gone.
async fn look_after(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(ROUND).await;
        match sessions.upgrade() {
            Some(sessions) => sessions.round(),
            None => return,
        }
    }
}

/// When the executor takes no more calls, every session answers those that it has, and ends.
async fn drain_at_the_end(sessions: Weak<Sessions>, executor: Arc<Executor>) {
    executor.closed().await;
    let Some(sessions) = sessions.upgrade() else { return };
    for entry in sessions.lock().iter() {
        executor.sessions().spawn(Arc::clone(&entry.session).drained(None));
    }
}

fn json(answer: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}
