//! JSON-RPC 2.0 over any transport: one message in, one answer out.
//!
//! jsonrpsee has the method table and makes the responses. Messages are parsed here first, because the strict reader
//! has to check the whole message: jsonrpsee's own server accepts duplicate keys, and answers valid JSON without an
//! `id`, such as `{"a":1}`, with a parse error (-32700) where the specification wants -32600.

use super::answers;
use super::body::{charge, no_room_fault};
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{did_you_mean, excerpt};
use a2g_types::memory::{Charge, CountedBytes};
use a2g_wire::a2g::fault::to_error as fault_parts;
use a2g_wire::jsonrpc::{self, Id, MAX_BATCH, RequestEntry, RpcMessage, RpcRequest};
use a2g_wire::strict_json::{self, JsonBounds};
use jsonrpsee::core::server::{ConnectionId, MethodCallback, Methods};
use jsonrpsee::types::{ErrorObjectOwned, Extensions, Params};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::sync::Arc;

/// A table of methods behind a strict reader.
#[derive(Clone)]
pub struct Rpc {
    methods: Methods,
    bounds: JsonBounds,
    /// The methods that are also accepted as notifications.
    notifications: &'static [&'static str],
}

/// Notifications that a method sends to its caller after its answer. Only connections that stay open have them.
#[derive(Debug, Default)]
pub struct Followups(Mutex<Vec<Arc<str>>>);

impl Followups {
    /// Queues a notification that is sent after the answer to the call with these extensions. Does nothing if the
    /// call's connection does not stay open.
    pub fn send(extensions: &Extensions, method: &str, params: &RawValue) {
        if let Some(Self(messages)) = extensions.get::<Arc<Self>>().map(|followups| &**followups) {
            let message = notification(method, params.get());
            messages.lock().push(message);
        }
    }

    /// Takes the queued notifications.
    pub(super) fn take(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A notification with these params, as JSON text.
#[must_use]
pub fn notification(method: &str, params: &str) -> Arc<str> {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#).into()
}

/// An answer, with its charge against the caller's share of memory until it is read.
#[derive(Debug)]
pub struct RpcAnswer {
    /// One response, or a batch of them.
    pub text: String,
    /// One charge for each long response.
    pub(super) counted: Vec<CountedBytes>,
}

impl From<String> for RpcAnswer {
    fn from(text: String) -> Self {
        Self { text, counted: Vec::new() }
    }
}

impl RpcAnswer {
    /// The response to one request, or an error if the caller's share is used up.
    fn charge(text: String, id: &Id, caller: &Caller) -> Self {
        match answers::hold(caller, text.len() as u64) {
            Ok(counted) => Self { text, counted: counted.into_iter().collect() },
            Err(no_room) => error_response(Some(id), &no_room_fault(no_room)).into(),
        }
    }

    /// The responses of a batch as one answer; `None` if there are none.
    fn batch(responses: Vec<Self>) -> Option<Self> {
        if responses.is_empty() {
            return None;
        }
        let bytes = responses.iter().map(|response| response.text.len() + 1).sum::<usize>() + 1;
        let mut batch = Self { text: String::with_capacity(bytes), counted: Vec::new() };
        // Each response is freed once it is copied, so that the batch never takes twice its size.
        for Self { text, counted } in responses {
            batch.text.push(if batch.text.is_empty() { '[' } else { ',' });
            batch.text.push_str(&text);
            batch.counted.extend(counted);
        }
        batch.text.push(']');
        Some(batch)
    }
}

/// The sender of a message.
#[derive(Clone, Copy)]
struct Peer<'a> {
    caller: &'a Arc<Caller>,
    followups: Option<&'a Arc<Followups>>,
    /// The message's charge against the caller's share of memory.
    charge: &'a Charge,
}

impl Rpc {
    /// Serves `methods`. Only those in `notifications` also run without an id.
    #[must_use]
    pub fn new(methods: Methods, bounds: JsonBounds, notifications: &'static [&'static str]) -> Self {
        Self { methods, bounds, notifications }
    }

    /// Size and depth limits of a message.
    #[must_use]
    pub fn bounds(&self) -> &JsonBounds {
        &self.bounds
    }

    /// Answers one message of a caller; `None` if it has no answer.
    pub async fn answer(&self, message: &[u8], caller: &Arc<Caller>) -> Option<RpcAnswer> {
        self.answer_peer(message, caller, None).await
    }

    /// Like [`Self::answer`], over a connection that stays open: methods add notifications to `followups`, and the
    /// caller of this function sends them after the answer.
    pub async fn answer_with_followups(
        &self,
        message: &[u8],
        caller: &Arc<Caller>,
        followups: &Arc<Followups>,
    ) -> Option<RpcAnswer> {
        self.answer_peer(message, caller, Some(followups)).await
    }

    async fn answer_peer(
        &self,
        message: &[u8],
        caller: &Arc<Caller>,
        followups: Option<&Arc<Followups>>,
    ) -> Option<RpcAnswer> {
        let charge = match charge(caller.name(), message) {
            Ok(charge) => charge,
            Err(fault) => return self.refuse_unread(message, &fault),
        };
        let body =
            strict_json::check(message, &self.bounds).and_then(|text| jsonrpc::decode(text, MAX_BATCH));
        let peer = Peer { caller, followups, charge: &charge };
        match body {
            Err(fault) => Some(error_response(None, &fault).into()),
            Ok(RpcMessage::Single(entry)) => self.answer_entry(entry, peer).await,
            Ok(RpcMessage::Batch(entries)) => {
                let answers = futures_util::future::join_all(
                    entries.into_iter().map(|entry| self.answer_entry(entry, peer)),
                );
                RpcAnswer::batch(answers.await.into_iter().flatten().collect())
            }
        }
    }

    /// The answer to a message for which there is no memory now. Only its frame is read, for the ids: to check the whole
    /// message would take longer than to send it. One that is always too large gets the reason.
    fn refuse_unread(&self, message: &[u8], fault: &Fault) -> Option<RpcAnswer> {
        let is_too_large = strict_json::tree_bytes(message) > self.bounds.max_tree_bytes as u64;
        if let Some(reason) = is_too_large.then(|| strict_json::check(message, &self.bounds).err()).flatten()
        {
            return Some(error_response(None, &reason).into());
        }
        let refuse = |entry: RequestEntry<'_>| match entry {
            Ok(RpcRequest { id, .. }) => id.map(|id| error_response(Some(&id), fault).into()),
            Err((id, fault)) => Some(error_response(id.as_ref(), &fault).into()),
        };
        let text = std::str::from_utf8(message).map_err(|_| fault.clone());
        match text.and_then(|text| jsonrpc::decode(text, MAX_BATCH)) {
            Ok(RpcMessage::Single(entry)) => refuse(entry),
            Ok(RpcMessage::Batch(entries)) => {
                RpcAnswer::batch(entries.into_iter().filter_map(refuse).collect())
            }
            Err(fault) => Some(error_response(None, &fault).into()),
        }
    }

    /// The answer to a message that is too long to be read.
    #[must_use]
    pub fn too_long(&self) -> RpcAnswer {
        error_response(None, &self.bounds.too_long_fault()).into()
    }

    async fn answer_entry(&self, entry: RequestEntry<'_>, peer: Peer<'_>) -> Option<RpcAnswer> {
        match entry {
            Err((id, fault)) => Some(error_response(id.as_ref(), &fault).into()),
            Ok(RpcRequest { id: None, method, params }) => {
                if self.notifications.contains(&method.as_ref()) {
                    let _unanswered = self.call(None, &method, params, peer).await;
                } else {
                    let method = excerpt(&method);
                    tracing::debug!(method, "a notification was dropped: its method needs an id");
                }
                None
            }
            Ok(RpcRequest { id: Some(id), method, params }) => {
                let text = self.call(Some(&id), &method, params, peer).await;
                Some(RpcAnswer::charge(text, &id, peer.caller))
            }
        }
    }

    async fn call(&self, id: Option<&Id>, method: &str, params: Option<&RawValue>, peer: Peer<'_>) -> String {
        let Some(callback) = self.methods.method(method) else {
            let nearest = did_you_mean(method, self.methods.method_names());
            return error_response(
                id,
                &Fault::MethodNotFound(format!("there is no method `{}`{nearest}", excerpt(method))),
            );
        };
        // jsonrpsee supports only some of the ids that JSON-RPC allows. It gets a stand-in, and the answer gets the id
        // verbatim.
        let stand_in = jsonrpsee::types::Id::Null;
        let params = Params::new(params.map(RawValue::get)).into_owned();
        let mut extensions = Extensions::new();
        extensions.insert(Arc::clone(peer.caller));
        extensions.insert(peer.charge.clone());
        if let Some(followups) = peer.followups {
            extensions.insert(Arc::clone(followups));
        }
        let response = match callback {
            MethodCallback::Async(callback) => {
                callback(stand_in, params, ConnectionId(0), usize::MAX, extensions).await
            }
            MethodCallback::Sync(callback) => callback(stand_in, params, usize::MAX, extensions),
            MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_) => {
                return error_response(
                    id,
                    &Fault::Internal("the method table has no subscriptions".to_owned()),
                );
            }
        };
        with_id(id, response.into_json())
    }
}

/// Replaces the stand-in with the caller's id. jsonrpsee writes `jsonrpc`, `id`, and then the result or error, so the
/// stand-in is at a known place at the start.
fn with_id(id: Option<&Id>, response: Box<RawValue>) -> String {
    const BEFORE: &str = r#"{"jsonrpc":"2.0","id":"#;
    const STAND_IN: &str = "null";
    let mut text = String::from(Box::<str>::from(response));
    if !text.strip_prefix(BEFORE).is_some_and(|rest| rest.starts_with(STAND_IN)) {
        return error_response(id, &Fault::Internal("the response has an unexpected form".to_owned()));
    }
    // Replaced in place: a long response is not copied.
    text.replace_range(BEFORE.len()..BEFORE.len() + STAND_IN.len(), id.map_or(STAND_IN, Id::as_json));
    text
}

fn error_response(id: Option<&Id>, fault: &Fault) -> String {
    let (code, message, data) = fault_parts(fault);
    log_fault(fault, code);
    jsonrpc::error(id, code, &message, data.as_ref()).get().to_owned()
}

/// A fault as jsonrpsee's error, for a method's result.
#[must_use]
pub fn error_object(fault: &Fault) -> ErrorObjectOwned {
    let (code, message, data) = fault_parts(fault);
    log_fault(fault, code);
    ErrorObjectOwned::owned(i32::try_from(code).unwrap_or(-32603), message, data)
}

fn log_fault(fault: &Fault, code: i64) {
    match fault {
        Fault::Internal(detail) => tracing::error!(detail, "internal fault"),
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            tracing::debug!(intent = %receipt.intent, "the tool failed");
        }
        // Logged at the origin: by the executor for its refusals, by the governor for its decisions.
        Fault::Refused { intent, blocked_by, .. } => {
            let intent = intent.map(tracing::field::display);
            tracing::debug!(intent, blocked_by = blocked_by.as_str(), "answered with a refusal");
        }
        Fault::ToolUnavailable { tool, message } => tracing::warn!(%tool, "{message}"),
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => tracing::info!("{message}"),
        Fault::Busy { message, .. } => tracing::debug!("{message}"),
        Fault::ReceiptPending { intent, .. } => {
            tracing::debug!(%intent, "a receipt waits for space in the journal")
        }
        // Only the code is logged: the messages quote the caller's text.
        Fault::Parse(_)
        | Fault::InvalidRequest(_)
        | Fault::MethodNotFound(_)
        | Fault::InvalidParams { .. } => {
            tracing::debug!(code, "answered with an error");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::memory::{self, SMALL_MESSAGE_BYTES};
    use jsonrpsee::RpcModule;
    use jsonrpsee::core::RpcResult;

    fn rpc() -> Rpc {
        let mut module = RpcModule::new(());
        let wrong = || error_object(&Fault::InvalidRequest("no".to_owned()));
        module.register_method("right", |_, (), _| RpcResult::Ok([1])).unwrap();
        module.register_method("wrong", move |_, (), _| RpcResult::<()>::Err(wrong())).unwrap();
        module.register_async_method("later", |_, _, _| async { RpcResult::Ok([1]) }).unwrap();
        Rpc::new(module.into(), JsonBounds::default(), &[])
    }

    /// The message has a duplicate key, which the strict reader would find.
    #[tokio::test]
    async fn a_message_without_memory_for_it_is_refused_before_it_is_read() {
        let rpc = rpc();
        let caller = Arc::new(Caller::anonymous(None));
        let pad = "x".repeat(usize::try_from(SMALL_MESSAGE_BYTES).unwrap());
        let call =
            |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"right","params":{{"a":"{pad}","a":1}}}}"#);
        let answer = async |message: &str| rpc.answer(message.as_bytes(), &caller).await.unwrap().text;
        let read = answer(&call(7)).await;
        assert!(read.contains("duplicate key `a`") && read.contains(r#""id":null"#), "{read}");
        memory::set_budget(u64::MAX, 1 << 40);
        let _all = memory::hold_always(caller.name(), 1 << 41);
        let refused = answer(&format!("[{},{}]", call(7), call(8))).await;
        assert_eq!(refused.matches(r#""error":{"code":-32003"#).count(), 2, "{refused}");
        for id in [7, 8] {
            assert!(refused.contains(&format!(r#""id":{id}}}"#)), "{refused}");
        }
        assert!(
            refused.contains("share of `server.max_memory_mb`") && !refused.contains("duplicate"),
            "{refused}"
        );
    }

    /// The stand-in is found by the text that jsonrpsee writes around it, so the test uses jsonrpsee's own responses.
    #[tokio::test]
    async fn every_response_of_jsonrpsee_gets_the_id_of_its_request() {
        let rpc = rpc();
        let caller = Arc::new(Caller::anonymous(None));
        let result = r#""result":[1]"#;
        for (method, rest) in
            [("right", result), ("later", result), ("wrong", r#""error":{"code":-32600,"message":"no"}"#)]
        {
            // jsonrpsee supports neither of the last two.
            for id in ["null", "7", r#""a""#, "-1.50e3", "18446744073709551616"] {
                let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
                let answer = rpc.answer(message.as_bytes(), &caller).await.unwrap();
                assert_eq!(answer.text, format!(r#"{{"jsonrpc":"2.0","id":{id},{rest}}}"#));
            }
        }
    }
}
