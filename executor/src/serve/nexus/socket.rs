//! The WebSocket of this door: messages are answered as they get done, and events go out as they come.

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

/// The code with which a WebSocket of nobody is closed.
const NOT_KNOWN_CODE: u16 = 4001;
/// How often it is asked whether an event has to be sent again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How many heartbeats may go by without a word.
const MAX_MISSED_BEATS: u32 = 3;

/// One connection, as the events know it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: u64,
    /// That there is something to send.
    pub(super) wake: Arc<Notify>,
    agents: Mutex<BTreeSet<Box<str>>>,
}

impl Line {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), wake: Arc::default(), agents: Mutex::default() }
    }

    /// A message of this agent came over it.
    pub(super) fn is_of(&self, agent: &str) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if !agents.contains(agent) {
            agents.insert(agent.into());
        }
    }

    /// Whose messages came over it.
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

/// Takes a connection from the events when it ends, however it does.
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

/// Reads messages until the other side ends or says nothing for too long, or its caller is not known: only then
/// `false`.
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
            tracing::debug!("a WebSocket said nothing for too long");
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
        // Asked last of all: there may have been no place for as long as the other side liked.
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

/// Writes answers and events until the other side does not take them, or its caller is not known: only then
/// `false`.
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

/// Whether the other side takes a message in time.
async fn taken(door: &Nexus, sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(door.port.connections.request, sink.send(message)).await, Ok(Ok(())))
}
