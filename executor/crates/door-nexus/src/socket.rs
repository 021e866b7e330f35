//! The WebSocket of this door: messages are answered as they complete, and events are sent as they occur.

use super::{MessageTransport, Nexus, Received, Reply};
use a2g_govern::{Caller, Credential};
use a2g_http::body::charge;
use a2g_http::connections::Connection;
use a2g_http::transport::websocket::{
    self, Incoming, IncomingMessage, MAX_CONCURRENT, MessageReader, MessageSink,
};
use a2g_runtime::aside::run_large;
use a2g_runtime::timer_now;
use a2g_types::memory::Charge;
use a2g_wire::strict_json;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::interval_at;

/// The close code for an unauthenticated caller.
const UNAUTHENTICATED_CLOSE_CODE: u16 = 4001;
/// Interval of the checks for events that have to be sent again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of heartbeats without a message after which the connection is closed.
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

    /// Adds an agent whose message arrived over this connection.
    pub(super) fn add_agent(&self, agent: &str) {
        let mut agents = self.agents.lock();
        if !agents.contains(agent) {
            agents.insert(agent.into());
        }
    }

    /// The agents whose messages arrived over this connection.
    pub(super) fn agents(&self) -> BTreeSet<Box<str>> {
        self.agents.lock().clone()
    }
}

pub(super) async fn upgrade(
    State(door): State<Arc<Nexus>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(credential): Extension<Credential>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let caller = door.caller(&credential);
    let sessions = door.executor.session_tasks().clone();
    let bounds = door.port.bounds;
    let served = Arc::clone(&connection);
    websocket::accept(upgrade, &bounds, connection, caller.as_deref().ok(), sessions, async move |socket| {
        let target = Arc::new(EventTarget::new());
        let _guard = DetachGuard { door: Arc::clone(&door), target: Arc::clone(&target) };
        serve_websocket(&door, served, &credential, &target, socket).await;
    })
}

/// Detaches a connection from its agents' mailboxes when it ends, also on a panic.
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
    connection: Arc<Connection>,
    credential: &Credential,
    target: &Arc<EventTarget>,
    socket: WebSocket,
) {
    let (answers, outgoing) = mpsc::channel(MAX_CONCURRENT);
    let clock = Arc::clone(door.executor.clock());
    let write_timeout = door.port.connections.request_timeout;
    let authenticate = || door.caller(credential).ok();
    let (reader, mut sink) = websocket::split(socket, connection, clock, write_timeout, authenticate);
    let reader = reader.with_idle_timeout(door.settings.heartbeat.saturating_mul(MAX_MISSED_BEATS));
    let is_authenticated = if door.caller(credential).is_ok() {
        tokio::select! {
            is_authenticated = read_messages(door, target, reader, answers) => is_authenticated,
            is_authenticated = write_messages(door, credential, target, &mut sink, outgoing) => is_authenticated,
        }
    } else {
        false
    };
    if !is_authenticated {
        let reason = door.caller(credential).err().unwrap_or_default();
        sink.close(UNAUTHENTICATED_CLOSE_CODE, &reason.message()).await;
    }
}

/// Reads messages until the peer closes the connection or is silent for too long, or until the caller is no longer
/// authenticated. Returns `false` only in the last case.
async fn read_messages<A: FnMut() -> Option<Arc<Caller>>>(
    door: &Arc<Nexus>,
    target: &Arc<EventTarget>,
    mut reader: MessageReader<A>,
    answers: mpsc::Sender<Reply>,
) -> bool {
    loop {
        let IncomingMessage { bytes, caller, work, permit } = match reader.next().await {
            Incoming::Message(message) => message,
            Incoming::Closed => return true,
            Incoming::Unauthenticated => return false,
        };
        let door = Arc::clone(door);
        let target = Arc::clone(target);
        let answers = answers.clone();
        door.executor.session_tasks().clone().spawn(async move {
            let owner = Arc::clone(&caller);
            let length = strict_json::text_bytes(bytes.len());
            let answer = async move {
                let (text, charge) = match charge(caller.name(), &bytes) {
                    Ok(charge) => (strict_json::check(&bytes, &door.port.bounds), charge),
                    Err(fault) => (Err(fault), Charge::default()),
                };
                let transport = MessageTransport::Socket(&target);
                door.dispatch(&caller, Received { text, charge }, transport, &answers).await;
            };
            run_large(owner.name(), length, answer).await;
            drop((work, permit));
        });
    }
}

/// Writes answers and events until the peer does not read them in time, or until the caller is no longer authenticated.
/// Returns `false` only in the last case.
async fn write_messages(
    door: &Nexus,
    credential: &Credential,
    target: &EventTarget,
    sink: &mut MessageSink,
    mut outgoing: mpsc::Receiver<Reply>,
) -> bool {
    let heartbeat = door.settings.heartbeat;
    let mut ping = interval_at(timer_now() + heartbeat, heartbeat);
    let mut recheck = interval_at(timer_now() + RECHECK_INTERVAL, RECHECK_INTERVAL);
    loop {
        let message = tokio::select! {
            answer = outgoing.recv() => match answer {
                Some(Reply { text, last: _ }) => Some(Message::text(text)),
                None => return true,
            },
            _ = ping.tick() => Some(Message::Ping(Bytes::new())),
            () = target.wake.notified() => None,
            _ = recheck.tick() => None,
        };
        if let Some(message) = message {
            if !sink.send(message).await {
                return true;
            }
            continue;
        }
        let Ok(caller) = door.caller(credential) else { return false };
        let now = door.executor.clock().monotonic();
        for (agent, event) in door.hub.take_due(target, now, |agent| Nexus::may_see(&caller, agent)) {
            let Some(text) = door.event(&agent, &event) else { continue };
            if !sink.send(Message::text(text)).await {
                return true;
            }
        }
    }
}
