//! The WebSocket of this door: messages are answered as they complete, and events are sent as they occur.

use super::{MessageTransport, Nexus, Received, Reply};
use crate::serve::connections::Connection;
use crate::serve::http::{
    MAX_CONCURRENT, MIN_FRAME_BYTES, PingLimiter, UNAUTHENTICATED, reject_upgrade, with_limits,
};
use crate::serve::protocol::charge;
use a2g_govern::Credential;
use a2g_runtime::timer_now;
use a2g_types::memory::Charge;
use a2g_wire::strict_json;
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
const UNAUTHENTICATED_CLOSE_CODE: u16 = 4001;
/// Interval of the check for events to send again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Heartbeats without a message after which the connection is closed.
const MAX_MISSED_BEATS: u32 = 3;

/// A connection as the target of events.
#[derive(Debug)]
pub(super) struct EventTarget {
    pub(super) id: u64,
    /// Notified when there is something to send.
    pub(super) wake: Arc<Notify>,
    agents: Mutex<BTreeSet<Box<str>>>,
}

impl EventTarget {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), wake: Arc::default(), agents: Mutex::default() }
    }

    /// Adds an agent whose message arrived over it.
    pub(super) fn add_agent(&self, agent: &str) {
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
    Extension(credential): Extension<Credential>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return reject_upgrade(rejection),
    };
    if let Some(caller) = door.caller(&credential) {
        connection.mark_authenticated();
        connection.partial_message.set_caller(caller.name());
    }
    let sessions = door.executor.sessions().clone();
    with_limits(upgrade, &door.port.bounds).on_upgrade(async move |socket| {
        let target = Arc::new(EventTarget::new());
        let guard = DetachGuard { door: Arc::clone(&door), target: Arc::clone(&target) };
        let conversation = async {
            tokio::select! {
                () = serve_websocket(&door, &connection, &credential, &target, socket) => {}
                () = connection.wait_for_eviction() => {}
            }
        };
        sessions.adopt(conversation).await;
        drop(guard);
    })
}

/// Detaches a connection from the events when it ends, also on a panic.
struct DetachGuard {
    door: Arc<Nexus>,
    target: Arc<EventTarget>,
}

impl Drop for DetachGuard {
    fn drop(&mut self) {
        self.door.hub.detach(&self.target, self.door.executor.clock().monotonic());
    }
}

async fn serve_websocket(
    door: &Arc<Nexus>,
    connection: &Arc<Connection>,
    credential: &Credential,
    target: &Arc<EventTarget>,
    socket: WebSocket,
) {
    let (mut sink, stream) = socket.split();
    let (answers, outgoing) = mpsc::channel(MAX_CONCURRENT);
    let known = if door.caller(credential).is_some() {
        tokio::select! {
            known = read_messages(door, connection, credential, target, stream, answers) => known,
            known = write_messages(door, credential, target, &mut sink, outgoing) => known,
        }
    } else {
        false
    };
    if !known {
        let frame =
            CloseFrame { code: UNAUTHENTICATED_CLOSE_CODE, reason: UNAUTHENTICATED.trim_end().into() };
        let close = sink.send(Message::Close(Some(frame)));
        let _nobody_reads = timeout(door.port.connections.request_timeout, close).await;
    }
}

/// Reads messages until the peer closes or is silent for too long, or until the caller is no longer authenticated: only
/// then it returns `false`.
async fn read_messages(
    door: &Arc<Nexus>,
    connection: &Arc<Connection>,
    credential: &Credential,
    target: &Arc<EventTarget>,
    mut stream: SplitStream<WebSocket>,
    answers: mpsc::Sender<Reply>,
) -> bool {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
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
                connection.partial_message.subtract(sent.len() + MIN_FRAME_BYTES);
                continue;
            }
            Some(Ok(Message::Pong(sent))) => {
                connection.partial_message.subtract(sent.len() + MIN_FRAME_BYTES);
                continue;
            }
            Some(Ok(Message::Ping(_) | Message::Close(_)) | Err(_)) | None => return true,
        };
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return true };
        // Authenticated after the wait for a permit, which the peer can make as long as it likes.
        let Some(caller) = door.caller(credential) else { return false };
        connection.partial_message.complete();
        let (door, target, answers) = (Arc::clone(door), Arc::clone(target), answers.clone());
        let work = connection.begin_request();
        door.executor.sessions().clone().spawn(async move {
            let (text, charge) = match charge(caller.name(), &bytes) {
                Ok(charge) => (strict_json::check(&bytes, &door.port.bounds), charge),
                Err(no_room) => (Err(no_room), Charge::default()),
            };
            door.dispatch(&caller, Received { text, charge }, MessageTransport::Socket(&target), &answers)
                .await;
            drop((work, permit));
        });
    }
}

/// Writes answers and events until the peer does not read them in time, or until the caller is no longer authenticated:
/// only then it returns `false`.
async fn write_messages(
    door: &Nexus,
    credential: &Credential,
    target: &EventTarget,
    sink: &mut SplitSink<WebSocket, Message>,
    mut outgoing: mpsc::Receiver<Reply>,
) -> bool {
    let heartbeat = door.settings.heartbeat;
    let mut ping = interval_at(timer_now() + heartbeat, heartbeat);
    let mut recheck = interval_at(timer_now() + RECHECK_INTERVAL, RECHECK_INTERVAL);
    loop {
        let events_due = tokio::select! {
            answer = outgoing.recv() => {
                let Some(Reply { text, last: _ }) = answer else { return true };
                if !send_in_time(door, sink, Message::text(text)).await {
                    return true;
                }
                false
            }
            _ = ping.tick() => {
                if !send_in_time(door, sink, Message::Ping(Bytes::new())).await {
                    return true;
                }
                false
            }
            () = target.wake.notified() => true,
            _ = recheck.tick() => true,
        };
        if !events_due {
            continue;
        }
        let Some(caller) = door.caller(credential) else { return false };
        let now = door.executor.clock().monotonic();
        for (agent, event) in door.hub.due(target, now, |of| Nexus::may_see(&caller, of)) {
            let Some(text) = door.event(&agent, &event) else { continue };
            if !send_in_time(door, sink, Message::text(text)).await {
                return true;
            }
        }
    }
}

/// Sends a message. Returns `false` if the peer does not read it in time.
async fn send_in_time(door: &Nexus, sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(door.port.connections.request_timeout, sink.send(message)).await, Ok(Ok(())))
}
