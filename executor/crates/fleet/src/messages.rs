//! The messages between the nodes of a fleet that no server stores.
//!
//! ```text
//! a2g-live.FLEET.waiting      a node announces that calls wait at it
//! a2g-live.FLEET.take.NODE    a node with a free slot asks for one of these calls; the reply has the call, or none
//! a2g-live.FLEET.run.INTENT   the events of a run, for the node at which its call waited
//! a2g-live.FLEET.ask          a question to all nodes; each replies, with an answer or without one
//! a2g-live.FLEET.reply.…      the replies to one request: its node and its nonce
//! ```
//! A message may be lost. A call is run only by the node that claims it, so a lost message costs time and nothing else.
//! Messages are authenticated as the values in the stream are: by fleet and subject.
//!
//! A node never publishes to the reply subject that a message of NATS names, because that is not authenticated: with the
//! node's own rights, it could name the API that purges the stream.

use crate::member::Member;
use crate::seal::SealedStore;
use crate::{FleetError, ServerStore};
use a2g_types::ident::IntentId;
use a2g_types::node::{CallMessage, NodeName, NodeText, PassedCall};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The maximum size of a message, in bytes. A server accepts messages of 1 MiB by default.
pub const MAX_MESSAGE_BYTES: usize = 512 << 10;
/// The maximum size of the rest of a message that has a text, in bytes.
const OTHER_BYTES: usize = 128;
/// The maximum size of an answer to a question, in bytes, with its escapes in the reply.
const MAX_ANSWER_BYTES: usize = 900 << 10;
/// The time in which a node answers a request for a call.
const TAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which a node passes calls on after an announcement.
const TICKET_LIFE: Duration = Duration::from_secs(5);
/// The minimum time between two tickets.
const TICKET_INTERVAL: Duration = Duration::from_millis(100);
const WAITING: &str = "waiting";
const ASK: &str = "ask";

/// An announcement that calls wait at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The node.
    pub node: NodeName,
    /// The highest priority of these calls; 0 is the lowest of all.
    pub priority: u8,
    /// Names the announcement in a request for one of these calls.
    pub ticket: String,
}

/// The tickets of the latest announcements of this node.
#[derive(Debug, Default)]
struct Tickets(Mutex<VecDeque<Ticket>>);

#[derive(Debug)]
struct Ticket {
    text: String,
    issued_at: Instant,
    /// The nonces of the requests that have named it: a copy of a request gets no call.
    used: HashSet<String>,
}

impl Tickets {
    fn issue(&self, now: Instant) -> String {
        let mut all = self.0.lock();
        let age = |ticket: &Ticket| now.saturating_duration_since(ticket.issued_at);
        all.retain(|ticket| age(ticket) < TICKET_LIFE);
        if let Some(latest) = all.back().filter(|latest| age(latest) < TICKET_INTERVAL) {
            return latest.text.clone();
        }
        let text = Uuid::new_v4().to_string();
        all.push_back(Ticket { text: text.clone(), issued_at: now, used: HashSet::new() });
        text
    }

    /// Returns `true` if the ticket is current, and no earlier request had this nonce.
    fn accept(&self, text: &str, nonce: &str, now: Instant) -> bool {
        let mut all = self.0.lock();
        let ticket = all.iter_mut().find(|ticket| ticket.text == text);
        ticket.is_some_and(|ticket| {
            now.saturating_duration_since(ticket.issued_at) < TICKET_LIFE
                && ticket.used.insert(nonce.to_owned())
        })
    }
}

/// The request of a node with a free slot for a waiting call.
#[derive(Debug)]
pub struct TakeRequest {
    /// The node.
    pub node: NodeName,
    /// The calls that it accepts.
    pub selection: CallSelection,
    nonce: Uuid,
}

/// The calls that a node accepts from another.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallSelection {
    /// The tools of the node, and the hash of the module of each.
    pub tools: HashMap<String, String>,
    /// The agents whose calls it cannot run now.
    pub full_agents: Vec<String>,
    /// The priority that a call has to exceed, because calls of this priority wait at the node itself.
    #[serde(default)]
    pub above: Option<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TakeMessage {
    node: NodeName,
    ticket: String,
    #[serde(flatten)]
    selection: CallSelection,
    nonce: String,
}

/// A question of another node.
#[derive(Debug)]
pub struct Question {
    node: NodeName,
    text: NodeText,
    nonce: Uuid,
}

impl Question {
    /// The text of the question.
    #[must_use]
    pub fn text(&self) -> &NodeText {
        &self.text
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct QuestionMessage {
    node: NodeName,
    text: String,
    nonce: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply<T> {
    node: NodeName,
    value: Option<T>,
}

/// The replies to one request.
struct Replies(Subscription);

/// The announcements of other nodes.
pub struct Announcements(Subscription);

/// The requests of other nodes for calls that wait at this one.
pub struct TakeRequests(Subscription);

/// The events of one run at another node.
pub struct EventMessages(Subscription);

/// The questions of other nodes.
pub struct Questions(Subscription);

struct Subscription {
    messages: Arc<Messages<ServerStore>>,
    key: String,
    stream: BoxStream<'static, Bytes>,
    /// `true` once the log has a message that was ignored: whoever may publish could otherwise fill the log.
    has_warned: bool,
}

impl Subscription {
    async fn new(messages: &Arc<Messages<ServerStore>>, key: String) -> Result<Self, FleetError> {
        let stream = messages.member.store.store.subscribe(messages.live_subject(&key)).await?;
        Ok(Self { messages: Arc::clone(messages), key, stream, has_warned: false })
    }

    /// The next authentic message; `None` if the connection is closed for good.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let message = self.stream.next().await?;
            match self.messages.member.store.seal.open(&self.key, &message) {
                Ok(value) => return Some(value),
                Err(error) if self.has_warned => tracing::debug!(%error, "a message is ignored"),
                Err(error) => {
                    self.has_warned = true;
                    tracing::warn!(%error, "a message is ignored, as will be later ones of this subject");
                }
            }
        }
    }

    /// The next authentic message that this version can read; `None` as for [`Self::next`].
    async fn next_parsed<T: for<'a> Deserialize<'a>>(&mut self) -> Option<T> {
        loop {
            let value = self.next().await?;
            match serde_json::from_slice(&value) {
                Ok(value) => return Some(value),
                Err(error) => {
                    tracing::debug!(subject = self.key, %error, "a message of another version is ignored");
                }
            }
        }
    }
}

impl Announcements {
    /// The next announcement of another node; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<Announcement> {
        loop {
            let announcement = self.0.next_parsed::<Announcement>().await?;
            if announcement.node != self.0.messages.member.node {
                return Some(announcement);
            }
        }
    }
}

impl TakeRequests {
    /// The next request; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<TakeRequest> {
        loop {
            let TakeMessage { node, ticket, selection, nonce } = self.0.next_parsed().await?;
            let messages = &self.0.messages;
            let Ok(parsed) = Uuid::parse_str(&nonce) else { continue };
            let request = TakeRequest { node, selection, nonce: parsed };
            if messages.tickets.accept(&ticket, &nonce, messages.member.clock.monotonic()) {
                return Some(request);
            }
            // The announcement is too old, or this is a copy of an earlier request.
            drop(messages.reply_to_take(request, None).await);
        }
    }
}

impl EventMessages {
    /// The next event; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.next().await
    }
}

impl Questions {
    /// The next question of another node; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let QuestionMessage { node, text, nonce } = self.0.next_parsed().await?;
            if node != self.0.messages.member.node
                && let Ok(nonce) = Uuid::parse_str(&nonce)
            {
                return Some(Question { node, text: NodeText::from_authenticated(text), nonce });
            }
        }
    }
}

impl Replies {
    /// The next reply, and the node that sent it; `None` if the connection is closed for good.
    async fn next<T: for<'a> Deserialize<'a>>(&mut self) -> Option<(NodeName, Option<T>)> {
        let Reply { node, value } = self.0.next_parsed().await?;
        Some((node, value))
    }
}

/// The messages of this node and to it.
pub struct Messages<S> {
    member: Arc<Member<S>>,
    tickets: Tickets,
}

impl<S> Messages<S> {
    pub(crate) fn new(member: Arc<Member<S>>) -> Self {
        Self { member, tickets: Tickets::default() }
    }
}

impl Messages<ServerStore> {
    fn live_subject(&self, key: &str) -> String {
        format!("a2g-live.{}.{key}", self.member.store.seal.fleet())
    }

    async fn send(&self, key: &str, value: &[u8]) -> Result<(), FleetError> {
        let SealedStore { store, seal } = &self.member.store;
        store.send(self.live_subject(key), seal.seal(key, value)).await
    }

    /// Sends a request with a nonce, and subscribes to the replies before.
    async fn send_request(
        self: &Arc<Self>,
        key: &str,
        nonce: Uuid,
        message: &impl Serialize,
    ) -> Result<Replies, FleetError> {
        let replies = Subscription::new(self, reply_key(&self.member.node, nonce)).await?;
        self.send(key, &to_bytes(message)?).await?;
        Ok(Replies(replies))
    }

    /// Replies to the request of `node` with this nonce.
    async fn send_reply(
        &self,
        node: &NodeName,
        nonce: Uuid,
        value: Option<impl Serialize>,
    ) -> Result<(), FleetError> {
        let reply = Reply { node: self.member.node.clone(), value };
        self.send(&reply_key(node, nonce), &to_bytes(&reply)?).await
    }

    /// Announces that calls wait at this node, with the highest priority of these calls.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn announce_waiting(&self, priority: u8) -> Result<(), FleetError> {
        let ticket = self.tickets.issue(self.member.clock.monotonic());
        let announcement = Announcement { node: self.member.node.clone(), priority, ticket };
        self.send(WAITING, &to_bytes(&announcement)?).await
    }

    /// Subscribes to the announcements of other nodes.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn announcements(self: &Arc<Self>) -> Result<Announcements, FleetError> {
        Subscription::new(self, WAITING.to_owned()).await.map(Announcements)
    }

    /// Asks a node for a waiting call, with the ticket of its announcement. Returns `None` if no call of the selection
    /// waits there.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn take_call(
        self: &Arc<Self>,
        from: &NodeName,
        ticket: &str,
        selection: CallSelection,
    ) -> Result<Option<PassedCall>, FleetError> {
        let nonce = Uuid::new_v4();
        let ticket = ticket.to_owned();
        let request =
            TakeMessage { node: self.member.node.clone(), ticket, selection, nonce: nonce.to_string() };
        let ask = async {
            let mut replies = self.send_request(&take_key(from), nonce, &request).await?;
            let (_, call) = replies.next::<CallMessage>().await.ok_or(FleetError::NotAnswered)?;
            Ok(call.map(PassedCall::from_authenticated))
        };
        tokio::time::timeout(TAKE_TIMEOUT, ask).await.unwrap_or(Err(FleetError::NotAnswered))
    }

    /// Subscribes to the requests for calls that wait at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn take_requests(self: &Arc<Self>) -> Result<TakeRequests, FleetError> {
        Subscription::new(self, take_key(&self.member.node)).await.map(TakeRequests)
    }

    /// Replies to a request with a call, or with `None` if no call that fits waits at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn reply_to_take(
        &self,
        request: TakeRequest,
        call: Option<CallMessage>,
    ) -> Result<(), FleetError> {
        self.send_reply(&request.node, request.nonce, call).await
    }

    /// Sends an event of a run to the node at which its call waited.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn send_event(&self, intent: IntentId, event: &[u8]) -> Result<(), FleetError> {
        self.send(&run_key(intent), event).await
    }

    /// Subscribes to the events of a run.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn events_of(self: &Arc<Self>, intent: IntentId) -> Result<EventMessages, FleetError> {
        Subscription::new(self, run_key(intent)).await.map(EventMessages)
    }

    /// Asks the other nodes, and returns the first answer; `None` if all nodes that are known to run have replied
    /// without one.
    ///
    /// # Errors
    /// [`FleetError`]; [`FleetError::NotAnswered`] if a node that is not known to be lost has not replied within `timeout`.
    pub async fn ask(
        self: &Arc<Self>,
        text: &str,
        timeout: Duration,
    ) -> Result<Option<NodeText>, FleetError> {
        let mut first = None;
        let is_complete = self
            .collect_replies(text, timeout, |_node, answer| {
                first = answer;
                if first.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .await?;
        if first.is_none() && !is_complete { Err(FleetError::NotAnswered) } else { Ok(first) }
    }

    /// Asks the other nodes. Returns the answers of those that give one within `timeout`, and `true` if all nodes that are
    /// known to run have given one.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn ask_all(
        self: &Arc<Self>,
        text: &str,
        timeout: Duration,
    ) -> Result<(HashMap<NodeName, NodeText>, bool), FleetError> {
        let mut answers = HashMap::new();
        let mut have_answered = true;
        let collect = |node, answer| {
            match answer {
                Some(answer) => drop(answers.insert(node, answer)),
                None => have_answered = false,
            }
            ControlFlow::Continue(())
        };
        let have_replied = self.collect_replies(text, timeout, collect).await?;
        Ok((answers, have_replied && have_answered))
    }

    /// Asks the other nodes, and passes each reply to `collect`, until that breaks. Returns `true` if it broke or all
    /// nodes that are known to run have replied, and `false` after `timeout`.
    async fn collect_replies(
        self: &Arc<Self>,
        text: &str,
        timeout: Duration,
        mut collect: impl FnMut(NodeName, Option<NodeText>) -> ControlFlow<()>,
    ) -> Result<bool, FleetError> {
        let others = match self.member.live_others() {
            Some(others) if !others.is_empty() => others,
            // Others may have joined since the latest sweep.
            Some(_) | None => self.member.read_live_others().await?,
        };
        if others.is_empty() {
            return Ok(true);
        }
        let nonce = Uuid::new_v4();
        let node = self.member.node.clone();
        let question = QuestionMessage { node, text: text.to_owned(), nonce: nonce.to_string() };
        let mut replies = self.send_request(ASK, nonce, &question).await?;
        let collect_all = async {
            let mut silent = others;
            while !silent.is_empty() {
                let (node, answer) = replies.next::<String>().await.ok_or(FleetError::NotAnswered)?;
                silent.remove(&node);
                if collect(node, answer.map(NodeText::from_authenticated)).is_break() {
                    break;
                }
            }
            Ok(true)
        };
        tokio::time::timeout(timeout, collect_all).await.unwrap_or(Ok(false))
    }

    /// Subscribes to the questions of other nodes.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn questions(self: &Arc<Self>) -> Result<Questions, FleetError> {
        Subscription::new(self, ASK.to_owned()).await.map(Questions)
    }

    /// Replies to a question with an answer, or with `None` if this node has none, or one that is longer than
    /// `MAX_ANSWER_BYTES`.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn reply_to_question(
        &self,
        question: Question,
        answer: Option<String>,
    ) -> Result<(), FleetError> {
        let Question { node, nonce, text: _ } = question;
        let bytes = to_bytes(&answer)?.len();
        self.send_reply(&node, nonce, answer.filter(|_| bytes <= MAX_ANSWER_BYTES)).await
    }
}

fn take_key(node: &NodeName) -> String {
    format!("take.{node}")
}

/// The key of the replies to a request of `node`.
fn reply_key(node: &NodeName, nonce: Uuid) -> String {
    format!("reply.{node}.{nonce}")
}

fn run_key(intent: IntentId) -> String {
    format!("run.{intent}")
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, FleetError> {
    serde_json::to_vec(value).map_err(|error| FleetError::value("(new)", error))
}

/// Returns `true` if a text is too large for a string in a message or a value.
#[must_use]
pub fn is_too_large(text: &str) -> bool {
    let escapes = text.matches(['"', '\\']).count();
    text.len() + escapes + OTHER_BYTES > MAX_MESSAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};

    #[test]
    fn a_request_is_accepted_once_and_only_for_a_current_ticket() {
        let tickets = Tickets::default();
        let start = SystemClock.monotonic();
        let ticket = tickets.issue(start);
        assert_eq!(tickets.issue(start + TICKET_INTERVAL / 2), ticket);
        assert!(tickets.accept(&ticket, "first", start) && tickets.accept(&ticket, "second", start));
        assert!(!tickets.accept(&ticket, "first", start), "it is a copy");
        assert!(!tickets.accept("another", "third", start), "the node has not issued it");
        let later = tickets.issue(start + TICKET_LIFE / 2);
        assert!(!tickets.accept(&ticket, "third", start + TICKET_LIFE), "it is too old");
        assert!(tickets.accept(&later, "third", start + TICKET_LIFE));
    }
}
