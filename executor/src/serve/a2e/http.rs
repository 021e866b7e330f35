//! A2E over HTTP: `POST /a2e/session`, `POST /a2e/send`, `GET /a2e/stream`, `GET /a2e/health`.
//!
//! Errors in a message are reported on the stream, and only errors in a request by HTTP. A session belongs to the
//! caller that opened it; for any other caller it does not exist.

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
const MAX_LINES: usize = 16;
/// Interval at which abandoned sessions are ended.
const ROUND: Duration = Duration::from_millis(250);
/// Interval of the comments that keep a stream without events open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The status and text for a request that is refused.
type Refusal = (StatusCode, &'static str);

struct Sessions {
    host: Arc<Host>,
    all: Mutex<Vec<Entry>>,
}

struct Entry {
    owner: Box<str>,
    session: Arc<Session>,
}

/// The router of this door. It spawns the task that ends abandoned sessions.
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
    tokio::spawn(look_after(Arc::downgrade(&sessions)));
    tokio::spawn(drain_at_the_end(Arc::downgrade(&sessions), executor));
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
    // Clients of the protocol's own library send `text/plain`. A web page cannot use that to get here: `X-Session-Id`
    // is not a header that a page may send without a CORS preflight.
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
        let message = "too many answers wait: read `/a2e/stream` first, then send this again\n";
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
                let message = format!("a body holds at most {MAX_LINES} messages: none of these was read\n");
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
    // The session checks its caller itself, because a later handshake may have presented another token.
    (Extension(AsksAgain), head, Body::from_stream(events)).into_response()
}

/// An open stream.
struct Reading {
    session: Arc<Session>,
    reader: u64,
    /// Marks the connection as busy, so that a new connection does not evict it and cancel calls.
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

    /// Opens a session, if necessary in place of the one that has been idle for longest: of the same caller, if that
    /// has as many as it may. `None` if all candidates have calls.
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

    /// The session that a request names, if it is the caller's.
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

    /// Ends sessions that are abandoned or whose caller is no longer authenticated, and removes those that have ended.
    fn round(&self) {
        self.lock().retain(|Entry { owner, session }| {
            if session.is_deserted() || !session.is_known() {
                tracing::debug!(owner, "a session is ended, and its calls are cancelled");
                session.desert();
                return false;
            }
            // Another session of the same caller may have used up the share of memory that its calls wait for.
            session.start_waiting();
            !session.is_over()
        });
    }
}

/// Runs until the door is dropped.
async fn look_after(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(ROUND).await;
        match sessions.upgrade() {
            Some(sessions) => sessions.round(),
            None => return,
        }
    }
}

/// Once the executor accepts no more calls, every session answers the calls that it has, and ends.
async fn drain_at_the_end(sessions: Weak<Sessions>, executor: Arc<Executor>) {
    executor.closed().await;
    let Some(sessions) = sessions.upgrade() else { return };
    for entry in sessions.lock().iter() {
        tokio::spawn(Arc::clone(&entry.session).drained(None));
    }
}

fn json(answer: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}
