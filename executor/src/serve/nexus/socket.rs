//! The WebSocket of this door: messages are answered as they complete, and events are sent as they occur.

use super::{Nexus, Received, Told, Way};
use crate::clock::timer_now;
use crate::govern::Credential;
use crate::memory::Charge;
use crate::serve::connections::Connection;
use crate::serve::doorway::charge;
use crate::serve::http::{MAX_CONCURRENT, MIN_FRAME_BYTES, NOT_KNOWN, PingLimiter, bounded, not_an_upgrade};
use crate::wire::strict_json;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{interval_at, timeout};

/// The close code for an unauthenticated caller.
const NOT_KNOWN_CODE: u16 = 4001;
/// Interval of the check for events to send again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Heartbeats without a message after which the connection is closed.
const MAX_MISSED_BEATS: u32 = 3;

/// A connection as the target of events.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: u64,
    /// Notified when there is something to send.
    pub(super) wake: Arc<Notify>,
    agents: Mutex<BTreeSet<Box<str>>>,
}

impl Line {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), wake: Arc::default(), agents: Mutex::default() }
    }

    /// Adds an agent whose message arrived over it.
    pub(super) fn is_of(&self, agent: &str) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if !agents.contains(agent) {
            agents.insert(agent.into());
        }
    }

    /// The agents whose messages arrived over it.
    pub(super) fn agents(&self) -> BTreeSet<Box<str>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(super) async fn upgrade(
    State(door): State<Arc<Nexus>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(shown): Extension<Credential>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return not_an_upgrade(rejection),
    };
    if let Some(caller) = door.caller(&shown) {
        connection.known();
        connection.arriving.count_for(caller.name());
    }
    bounded(upgrade, &door.port.bounds).on_upgrade(async move |socket| {
        let line = Arc::new(Line::new());
        let gone = Gone { door: Arc::clone(&door), line: Arc::clone(&line) };
        tokio::select! {
            () = converse(&door, &connection, &shown, &line, socket) => {}
            () = connection.gives_way() => {}
        }
        drop(gone);
    })
}

/// Detaches a connection from the events when it ends, also on a panic.
struct Gone {
    door: Arc<Nexus>,
    line: Arc<Line>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.door.hub.detach(&self.line, self.door.executor.clock().monotonic());
    }
}

async fn converse(
    door: &Arc<Nexus>,
    connection: &Arc<Connection>,
    shown: &Credential,
    line: &Arc<Line>,
    socket: WebSocket,
) {
    let (mut sink, stream) = socket.split();
    let (answers, outgoing) = mpsc::channel(MAX_CONCURRENT);
    let known = if door.caller(shown).is_some() {
        tokio::select! {
            known = listen(door, connection, shown, line, stream, answers) => known,
            known = speak(door, shown, line, &mut sink, outgoing) => known,
        }
    } else {
        false
    };
    if !known {
        let frame = CloseFrame { code: NOT_KNOWN_CODE, reason: NOT_KNOWN.trim_end().into() };
        let close = sink.send(Message::Close(Some(frame)));
        let _nobody_reads = timeout(door.port.connections.request, close).await;
    }
}

/// Reads messages until the peer closes or is silent for too long, or until the caller is no longer authenticated: only
/// then it returns `false`.
async fn listen(
    door: &Arc<Nexus>,
    connection: &Arc<Connection>,
    shown: &Credential,
    line: &Arc<Line>,
    mut stream: SplitStream<WebSocket>,
    answers: mpsc::Sender<Told>,
) -> bool {
    let places = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let stale = door.settings.heartbeat.saturating_mul(MAX_MISSED_BEATS);
    let mut pings = PingLimiter::default();
    loop {
        let Ok(message) = timeout(stale, stream.next()).await else {
            tracing::debug!("a WebSocket is closed: it was silent for too long");
            return true;
        };
        let bytes = match message {
            Some(Ok(Message::Text(text))) => Bytes::from(text),
            Some(Ok(Message::Binary(bytes))) => bytes,
            Some(Ok(Message::Ping(sent))) if pings.acquire(&**door.executor.clock()) => {
                connection.arriving.leave_out(sent.len() + MIN_FRAME_BYTES);
                continue;
            }
            Some(Ok(Message::Pong(sent))) => {
                connection.arriving.leave_out(sent.len() + MIN_FRAME_BYTES);
                continue;
            }
            Some(Ok(Message::Ping(_) | Message::Close(_)) | Err(_)) | None => return true,
        };
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return true };
        // Authenticated after the wait for a permit, which the peer can make as long as it likes.
        let Some(caller) = door.caller(shown) else { return false };
        connection.arriving.is_whole();
        let (door, line, answers) = (Arc::clone(door), Arc::clone(line), answers.clone());
        let work = connection.works();
        tokio::spawn(async move {
            let (text, charge) = match charge(caller.name(), &bytes) {
                Ok(charge) => (strict_json::check(&bytes, &door.port.bounds), charge),
                Err(no_room) => (Err(no_room), Charge::default()),
            };
            door.take(&caller, Received { text, charge }, Way::Socket(&line), &answers).await;
            drop((work, place));
        });
    }
}

/// Writes answers and events until the peer does not read them in time, or until the caller is no longer authenticated:
/// only then it returns `false`.
async fn speak(
    door: &Nexus,
    shown: &Credential,
    line: &Line,
    sink: &mut SplitSink<WebSocket, Message>,
    mut outgoing: mpsc::Receiver<Told>,
) -> bool {
    let heartbeat = door.settings.heartbeat;
    let mut beat = interval_at(timer_now() + heartbeat, heartbeat);
    let mut again = interval_at(timer_now() + RECHECK_INTERVAL, RECHECK_INTERVAL);
    loop {
        let look = tokio::select! {
            answer = outgoing.recv() => {
                let Some(Told { text, last: _ }) = answer else { return true };
                if !taken(door, sink, Message::text(text)).await {
                    return true;
                }
                false
            }
            _ = beat.tick() => {
                if !taken(door, sink, Message::Ping(Bytes::new())).await {
                    return true;
                }
                false
            }
            () = line.wake.notified() => true,
            _ = again.tick() => true,
        };
        if !look {
            continue;
        }
        let Some(caller) = door.caller(shown) else { return false };
        let now = door.executor.clock().monotonic();
        for (agent, event) in door.hub.due(line, now, |of| Nexus::may_know(&caller, of)) {
            let Some(text) = door.event(&agent, &event) else { continue };
            if !taken(door, sink, Message::text(text)).await {
                return true;
            }
        }
    }
}

/// Sends a message. Returns `false` if the peer does not read it in time.
async fn taken(door: &Nexus, sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(door.port.connections.request, sink.send(message)).await, Ok(Ok(())))
}
