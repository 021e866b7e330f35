//! Requests of staged runs that wait for the commit of the run's file changes, and are sent once then.
//!
//! ```text
//! guest ─ POST ─▶ NetworkSession: the checks of any request ─▶ HeldRequests, with the whole body ─▶ guest: 202, a2g-held
//!                                                 commit: Egress::send_held ─▶ the checks again, by a session of its own
//! ```

use super::redaction::SentSecrets;
use super::refusal::{EgressError, NetworkError};
use super::secrets::RunSecrets;
use super::session::NetworkSession;
use super::target::Target;
use super::{Body, Egress, NetworkBackend as _, Timeouts};
use a2g_capability::{Ceilings, GrantedSecret, HostPattern, Reach, RequestTarget};
use a2g_runtime::spawn;
use a2g_types::ident::{AgentDid, SecretName};
use a2g_types::limit::{FileEffects, NetworkBudgets};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Maximum size of the body of a request that waits, in bytes.
pub const MAX_HELD_BODY_BYTES: u64 = 1 << 20;
/// Maximum length of the URL of a request that waits, in bytes: people read all of it before they decide.
pub(super) const MAX_HELD_URL_BYTES: usize = 2 << 10;
/// Maximum length of its method, in bytes. The longest registered one has 17.
pub(super) const MAX_HELD_METHOD_BYTES: usize = 32;
/// Maximum size of the header fields of all requests of a run that wait, in bytes.
pub(super) const MAX_HELD_FIELD_BYTES: usize = 256 << 10;
/// The disk space of the file with its body beside the content, in bytes.
pub(super) const HELD_FILE_BYTES: usize = 4 << 10;
/// The field of the answer to a request that waits, with the number of the request.
const HELD_FIELD: HeaderName = HeaderName::from_static("a2g-held");
/// The size of the parts in which a body is written, in bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// Maximum time from the start of a request that is sent to the head of its answer.
const MAX_SEND_TIME: Duration = Duration::from_secs(30);
/// Maximum time in which the body of its answer is read.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
/// The part of the answer's body that is read, in bytes. Nobody gets it.
const MAX_READ_BYTES: usize = 64 << 10;
/// The bytes that a request may send beyond its body, with TLS and its head, and that its answer may have.
const MAX_EXTRA_BYTES: u64 = 1 << 20;

/// The place of the requests of one run that wait.
pub trait HeldRequests: Send + Sync {
    /// Sets aside the disk space for a part of a request, in bytes, also if the request is refused later. Returns `false`
    /// if there is not so much left for the run.
    fn reserve(&self, bytes: u64) -> bool;

    /// Makes an empty file for the body of a request. The guest's process must not be able to write it. Blocks.
    ///
    /// # Errors
    /// As the system calls.
    fn make_body(&self) -> io::Result<BodyFile>;

    /// Keeps a request, whose body is whole. Returns the number of the request, from 1. Blocks.
    ///
    /// # Errors
    /// As the system calls.
    fn keep(&self, request: HeldRequest, body: BodyFile) -> io::Result<u32>;
}

/// The file for the body of a request that waits.
#[derive(Debug)]
pub struct BodyFile {
    /// The name of the file at its place.
    pub name: u32,
    /// The file, open for reading and writing.
    pub file: File,
}

/// A request that waits, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldRequest {
    /// The method.
    pub method: String,
    /// The checked target with path and query. It has a port.
    pub url: String,
    /// The header fields as they are sent, but for those that follow from the URL and the body.
    pub fields: Vec<(String, String)>,
    /// The secrets that are set in it when it is sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<HeldSecret>,
}

/// A secret that is set in a request when it is sent. It has no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldSecret {
    /// The name of the secret.
    pub name: SecretName,
    /// The place where it is set, such as `header:authorization`.
    pub place: String,
}

impl HeldRequest {
    /// The pattern of the target to which it is sent.
    ///
    /// # Errors
    /// If the URL is not one that was checked.
    pub fn target(&self) -> Result<HostPattern, EgressError> {
        let uri = self.url.parse::<Uri>().map_err(|_| NetworkError::Request)?;
        Ok(Target::parse(&uri)?.pattern())
    }

    /// The secrets with which it would be sent now, of those that are bound to the agent and the tool of the
    /// run.
    ///
    /// # Errors
    /// If the URL is not one that was checked, or a secret that it needs is withheld.
    pub fn secrets_of(&self, granted: &[GrantedSecret]) -> Result<Vec<HeldSecret>, EgressError> {
        let uri = self.url.parse::<Uri>().map_err(|_| NetworkError::Request)?;
        let Target { tls, host, port } = &Target::parse(&uri)?;
        let sent =
            RequestTarget { method: &self.method, is_https: *tls, host, port: *port, path: uri.path() };
        let secrets = RunSecrets::new(granted, SentSecrets::default());
        let plan = secrets.plan(&sent).map_err(|refusal| EgressError::Denied(refusal.reason))?;
        Ok(plan.to_held())
    }
}

/// Makes the answer to a guest whose request waits.
pub(super) fn make_answer(number: u32) -> Response<Body> {
    let body = Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(HELD_FIELD, HeaderValue::from(number));
    response
}

/// A body that is being written to its file.
pub(super) struct Spool {
    body: BodyFile,
    block: Vec<u8>,
}

impl Spool {
    pub(super) async fn begin(held: &Arc<dyn HeldRequests>) -> Result<Self, EgressError> {
        let held = Arc::clone(held);
        let body = in_background(move || held.make_body()).await?;
        Ok(Self { body, block: Vec::new() })
    }

    /// Adds a part. What is in memory stays shorter than a block and a part.
    pub(super) async fn write(mut self, part: &[u8]) -> Result<Self, EgressError> {
        self.block.extend_from_slice(part);
        if self.block.len() < BLOCK_BYTES { Ok(self) } else { self.flush().await }
    }

    async fn flush(mut self) -> Result<Self, EgressError> {
        in_background(move || {
            self.body.file.write_all(&self.block)?;
            self.block.clear();
            Ok(self)
        })
        .await
    }

    /// Keeps the request with all that was written. Returns its number.
    pub(super) async fn keep(
        self,
        held: Arc<dyn HeldRequests>,
        request: HeldRequest,
    ) -> Result<u32, EgressError> {
        let Self { body, .. } = self.flush().await?;
        in_background(move || held.keep(request, body)).await
    }
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, EgressError> {
    let result = spawn_blocking(work).await.map_err(|_| NetworkError::RunEnded)?;
    result.map_err(|error| {
        tracing::warn!(%error, "a request cannot be kept until the commit of its run");
        NetworkError::Broken.into()
    })
}

impl Egress {
    /// Sends a request that has waited, once, and returns the status of the answer. `agent` is that of the
    /// run, and `blocked` are the hosts that were blocked for the run. The host has to be one that `ceilings`
    /// allow now. The request gets those of `secrets` that it fits. Redirects are not followed.
    ///
    /// # Errors
    /// [`EgressError`] if there is no answer. [`EgressError::may_have_arrived`] says whether the request was sent. A
    /// request whose future is dropped may have arrived.
    pub async fn send_held(
        self: &Arc<Self>,
        agent: &AgentDid,
        ceilings: &Ceilings,
        blocked: Vec<HostPattern>,
        secrets: &[GrantedSecret],
        request: &HeldRequest,
        body: Vec<u8>,
    ) -> Result<u16, EgressError> {
        let reach = Reach::for_held_request(request.target()?, ceilings, blocked);
        let body_bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
        let budgets = NetworkBudgets {
            requests: 1,
            connections: 1,
            sent_bytes: MAX_EXTRA_BYTES.saturating_add(body_bytes),
            received_bytes: MAX_EXTRA_BYTES,
            ..NetworkBudgets::ZERO
        };
        let session = NetworkSession::with_reach(
            Arc::clone(self),
            agent.clone(),
            reach,
            budgets,
            FileEffects::Direct,
            None,
            RunSecrets::new(secrets, SentSecrets::default()),
        );
        let message = make_message(request, body)?;
        let answer = timeout(MAX_SEND_TIME, session.send(message, Timeouts::default())).await;
        let response = answer.unwrap_or(Err(NetworkError::ResponseTimeout.into()))?;
        let status = response.status().as_u16();
        // The body is read although no caller waits for it, so that its server is not cut off at once.
        spawn::spawn_run_task(async move {
            let _rest_is_dropped = timeout(MAX_READ_TIME, read_some(response.into_body())).await;
        });
        Ok(status)
    }
}

fn make_message(request: &HeldRequest, body: Vec<u8>) -> Result<Request<Body>, EgressError> {
    let method = Method::from_bytes(request.method.as_bytes()).map_err(|_| NetworkError::Method)?;
    let uri = request.url.parse::<Uri>().map_err(|_| NetworkError::Request)?;
    let mut message = Request::builder().method(method).uri(uri);
    for (name, value) in &request.fields {
        let mut field = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| NetworkError::Request)?;
        field.set_sensitive(true);
        message = message.header(name.as_str(), field);
    }
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    message.body(body).map_err(|_| NetworkError::Request.into())
}

async fn read_some(mut body: Body) {
    let mut bytes = 0_usize;
    while let Some(Ok(frame)) = body.frame().await {
        bytes = bytes.saturating_add(frame.data_ref().map_or(0, Bytes::len));
        if bytes >= MAX_READ_BYTES {
            return;
        }
    }
}
