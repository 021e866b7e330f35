//! The messages between the nodes of a fleet that no server stores.
//!
//! ```text
//! a2g-live.FLEET.waiting      a node announces that calls wait at it
//! a2g-live.FLEET.take.NODE    a node with a free slot asks for one of these calls; the reply has the call, or none
//! a2g-live.FLEET.run.INTENT   the events of a run, for the node at which its call waited
//! a2g-live.FLEET.ask          a question to all nodes; each replies, and one reply may have the answer
//! ```
//! A message may be lost. A call is run only by the node that claims it, so a lost message costs time and nothing else.
//! Messages are authenticated as the values in the stream are: by fleet, subject and, for a reply, the request.

use crate::nats::NatsStore;
use crate::seal::Seal;
use crate::{Fleet, FleetError, NodeName};
use a2g_types::ident::IntentId;
use async_nats::{Client, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The maximum size of a message, in bytes. A server accepts messages of 1 MiB by default.
pub const MAX_MESSAGE_BYTES: usize = 512 << 10;
/// The time in which a node answers a request for a call.
const TAKE_TIMEOUT: Duration = Duration::from_secs(2);
const WAITING: &str = "waiting";
const ASK: &str = "ask";

/// An announcement that calls wait at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The node.
    pub node: NodeName,
    /// The highest priority of these calls; 0 is the lowest of all.
    pub priority: u8,
}

/// The request of a node with a free slot for a waiting call.
#[derive(Debug)]
pub struct TakeRequest {
    /// The tools of that node, and the hash of the module of each.
    pub tools: HashMap<String, String>,
    /// The agents whose calls it cannot run now.
    pub full_agents: Vec<String>,
    nonce: String,
    reply: Subject,
}

#[derive(Debug, Serialize, Deserialize)]
struct TakeMessage {
    node: NodeName,
    tools: HashMap<String, String>,
    full_agents: Vec<String>,
    nonce: String,
}

/// A call that this node passes on to another.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallMessage {
    /// The call and its verdict.
    pub text: String,
    /// `true` if the governor was asked; `false` if the verdict came with the call.
    pub asked_governor: bool,
}

/// A call that another node of this fleet has passed on.
// Made only from an authenticated message, because its verdict counts as verified: so it is not `Deserialize`.
#[derive(Debug)]
pub struct PassedCall(CallMessage);

impl PassedCall {
    /// The call and its verdict.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns `true` if the other node has asked the governor; `false` if the verdict came with the call.
    #[must_use]
    pub fn has_asked_governor(&self) -> bool {
        self.0.asked_governor
    }
}

/// A question of another node.
#[derive(Debug)]
pub struct Question {
    text: NodeText,
    nonce: String,
    reply: Subject,
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

/// A text that a node of this fleet wrote.
// Made only from an authenticated message, as `PassedCall`.
#[derive(Debug)]
pub struct NodeText(String);

impl NodeText {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The announcements of other nodes.
pub struct Announcements(Subscription);

/// The requests of other nodes for calls that wait at this one.
pub struct TakeRequests(Subscription);

/// The events of one run at another node.
pub struct EventMessages(Subscription);

/// The questions of other nodes.
pub struct Questions(Subscription);

struct Subscription {
    fleet: Arc<Fleet<NatsStore>>,
    key: String,
    subscriber: Subscriber,
}

impl Subscription {
    async fn new(fleet: &Arc<Fleet<NatsStore>>, key: String) -> Result<Self, FleetError> {
        let subscriber = fleet.client().subscribe(fleet.live_subject(&key)).await;
        let subscriber = subscriber.map_err(|error| FleetError::unavailable("subscribe", error))?;
        Ok(Self { fleet: Arc::clone(fleet), key, subscriber })
    }

    /// The next authentic message; `None` if the connection is closed for good.
    async fn next(&mut self) -> Option<(Message, Bytes)> {
        loop {
            let message = self.subscriber.next().await?;
            match self.fleet.seal().open(&self.key, &message.payload) {
                Ok(value) => return Some((message, value)),
                Err(error) => tracing::warn!(%error, "a message is ignored"),
            }
        }
    }

    /// The next authentic message that this version can read; `None` as for [`Self::next`].
    async fn next_parsed<T: for<'a> Deserialize<'a>>(&mut self) -> Option<(Message, T)> {
        loop {
            let (message, value) = self.next().await?;
            match serde_json::from_slice(&value) {
                Ok(value) => return Some((message, value)),
                Err(error) => {
                    tracing::warn!(subject = self.key, %error, "a message of another version is ignored");
                }
            }
        }
    }
}

impl Announcements {
    /// The next announcement of another node; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<Announcement> {
        loop {
            let (_, announcement) = self.0.next_parsed::<Announcement>().await?;
            if announcement.node != self.0.fleet.node {
                return Some(announcement);
            }
        }
    }
}

impl TakeRequests {
    /// The next request; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<TakeRequest> {
        loop {
            let (message, TakeMessage { node: _, tools, full_agents, nonce }) = self.0.next_parsed().await?;
            if let Some(reply) = message.reply {
                return Some(TakeRequest { tools, full_agents, nonce, reply });
            }
        }
    }
}

impl EventMessages {
    /// The next event; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.next().await.map(|(_, value)| value)
    }
}

impl Questions {
    /// The next question of another node; `None` if the connection is closed for good.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let (message, QuestionMessage { node, text, nonce }) = self.0.next_parsed().await?;
            if let Some(reply) = message.reply.filter(|_| node != self.0.fleet.node) {
                return Some(Question { text: NodeText(text), nonce, reply });
            }
        }
    }
}

impl Fleet<NatsStore> {
    fn client(&self) -> &Client {
        &self.store.store.client
    }

    fn seal(&self) -> &Seal {
        &self.store.seal
    }

    fn live_subject(&self, key: &str) -> String {
        format!("a2g-live.{}.{key}", self.store.seal.fleet())
    }

    async fn send(&self, key: &str, value: &[u8]) -> Result<(), FleetError> {
        let sent = self.client().publish(self.live_subject(key), self.seal().seal(key, value)).await;
        sent.map_err(|error| FleetError::unavailable("send a message", error))
    }

    /// Sends a sealed reply. `request` names the operation in an error.
    async fn send_reply(
        &self,
        reply: Subject,
        key: &str,
        value: &impl Serialize,
        request: &'static str,
    ) -> Result<(), FleetError> {
        let sealed = self.seal().seal(key, &to_bytes(value)?);
        let sent = self.client().publish(reply, sealed).await;
        sent.map_err(|error| FleetError::unavailable(request, error))
    }

    /// Announces that calls wait at this node, with the highest priority of these calls.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn announce_waiting(&self, priority: u8) -> Result<(), FleetError> {
        let announcement = Announcement { node: self.node.clone(), priority };
        self.send(WAITING, &to_bytes(&announcement)?).await
    }

    /// Subscribes to the announcements of other nodes.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn announcements(self: &Arc<Self>) -> Result<Announcements, FleetError> {
        Subscription::new(self, WAITING.to_owned()).await.map(Announcements)
    }

    /// Asks a node for a waiting call. `tools` are the tools of this node with the hashes of their modules, and
    /// `full_agents` the agents whose calls this node cannot run now. Returns `None` if no call that fits waits there.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn take_call(
        &self,
        from: &NodeName,
        tools: HashMap<String, String>,
        full_agents: Vec<String>,
    ) -> Result<Option<PassedCall>, FleetError> {
        let failed = |error: String| FleetError::unavailable("ask for a waiting call", error);
        let key = take_key(from);
        let request =
            TakeMessage { node: self.node.clone(), tools, full_agents, nonce: Uuid::new_v4().to_string() };
        let sealed = self.seal().seal(&key, &to_bytes(&request)?);
        let reply = self.client().request(self.live_subject(&key), sealed);
        let reply =
            tokio::time::timeout(TAKE_TIMEOUT, reply).await.map_err(|error| failed(error.to_string()))?;
        let reply = reply.map_err(|error| failed(error.to_string()))?;
        let key = take_reply_key(from, &request.nonce);
        let value = self.seal().open(&key, &reply.payload)?;
        let call = serde_json::from_slice::<Option<CallMessage>>(&value);
        call.map(|call| call.map(PassedCall)).map_err(|error| FleetError::value(&key, error))
    }

    /// Subscribes to the requests for calls that wait at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn take_requests(self: &Arc<Self>) -> Result<TakeRequests, FleetError> {
        Subscription::new(self, take_key(&self.node)).await.map(TakeRequests)
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
        let key = take_reply_key(&self.node, &request.nonce);
        self.send_reply(request.reply, &key, &call, "pass on a call").await
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
    pub async fn event_messages(self: &Arc<Self>, intent: IntentId) -> Result<EventMessages, FleetError> {
        Subscription::new(self, run_key(intent)).await.map(EventMessages)
    }

    /// Asks the other nodes, and returns the first answer; `None` if every node that is known to run has replied
    /// without one, or after `timeout`.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn ask(&self, text: &str, timeout: Duration) -> Result<Option<NodeText>, FleetError> {
        // Before the first sweep, the number is unknown; a node that joins is counted by the next one.
        let others = self.live_others().unwrap_or(usize::MAX);
        if others == 0 {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| FleetError::unavailable("ask the other nodes", error);
        let inbox = self.client().new_inbox();
        let mut replies = self.client().subscribe(inbox.clone()).await.map_err(|error| failed(&error))?;
        let nonce = Uuid::new_v4().to_string();
        let key = ask_reply_key(&nonce);
        let question = QuestionMessage { node: self.node.clone(), text: text.to_owned(), nonce };
        let question = self.seal().seal(ASK, &to_bytes(&question)?);
        let sent = self.client().publish_with_reply(self.live_subject(ASK), inbox, question).await;
        sent.map_err(|error| failed(&error))?;
        let answer = async {
            for _ in 0..others {
                let reply = replies.next().await?;
                // A reply that cannot be read counts as one without an answer.
                if let Ok(value) = self.seal().open(&key, &reply.payload)
                    && let Ok(Some(answer)) = serde_json::from_slice::<Option<String>>(&value)
                {
                    return Some(NodeText(answer));
                }
            }
            None
        };
        Ok(tokio::time::timeout(timeout, answer).await.unwrap_or_default())
    }

    /// Subscribes to the questions of other nodes.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn questions(self: &Arc<Self>) -> Result<Questions, FleetError> {
        Subscription::new(self, ASK.to_owned()).await.map(Questions)
    }

    /// Replies to a question with an answer, or with `None` if this node has none. An answer of more than
    /// [`MAX_MESSAGE_BYTES`] is replaced by `None`.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn reply_to_question(
        &self,
        question: Question,
        answer: Option<String>,
    ) -> Result<(), FleetError> {
        let answer = answer.filter(|answer| answer.len() <= MAX_MESSAGE_BYTES);
        let key = ask_reply_key(&question.nonce);
        self.send_reply(question.reply, &key, &answer, "reply to a question").await
    }
}

fn take_key(node: &NodeName) -> String {
    format!("take.{node}")
}

fn take_reply_key(node: &NodeName, nonce: &str) -> String {
    format!("take.{node}.{nonce}")
}

fn run_key(intent: IntentId) -> String {
    format!("run.{intent}")
}

fn ask_reply_key(nonce: &str) -> String {
    format!("{ASK}.{nonce}")
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, FleetError> {
    serde_json::to_vec(value).map_err(|error| FleetError::value("(new)", error))
}
