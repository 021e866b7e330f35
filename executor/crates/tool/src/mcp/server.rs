//! The requests that ask a server for its tools.
//!
//! They go through the network of runs: to the checked host alone, without redirects, with the secrets that the tools
//! will get. A server that answers in 2026-07-28 is asked so; any other is asked in a session of 2025-11-25. Every
//! answer is bounded in size and time.

use super::Source;
use super::endpoint::Endpoint;
use a2g_capability::GrantedSecret;
use a2g_command::output::{list, note};
use a2g_command::setup::open_vault;
use a2g_config::Config;
use a2g_sandbox::egress::{Body, Egress, EgressError, NetworkBackend as _, NetworkSession, Timeouts};
use a2g_types::clock::SystemClock;
use a2g_types::ident::{AgentDid, excerpt};
use a2g_types::limit::NetworkBudgets;
use a2g_types::outcome::DenialReason;
use a2g_types::visible_text::escape_invisible;
use a2g_wire::mcp::{Revision, headers, names};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyDataStream, BodyExt as _, Full};
use serde_json::{Map, Value, json};
use sse_stream::SseByteStream;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of tools that are read.
const MAX_TOOLS: usize = 200;
/// Maximum number of pages of a list.
const MAX_PAGES: usize = 50;
/// Maximum size of an answer with all messages before it, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Maximum part of a refusal that is shown, in characters.
const MAX_REFUSAL_CHARS: usize = 300;
/// Time limit of one request with its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of all of them.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);
const BUDGETS: NetworkBudgets = NetworkBudgets {
    requests: 64,
    connections: 4,
    sent_bytes: 1 << 20,
    received_bytes: 64 << 20,
    held_requests: 0,
};
/// Revisions with sessions that differ in nothing that is used here.
const SESSION_VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
const SESSION_HEADER: &str = "mcp-session-id";
/// The errors by which a server of 2026-07-28 refuses the form of a request, and not its revision.
const MALFORMED: [i64; 2] = [-32020, -32021];

/// The tools of a server, as it describes them.
pub(super) struct ListedTools {
    /// The revision in which it answered.
    pub(super) revision: Revision,
    /// The definitions, at most [`MAX_TOOLS`].
    pub(super) tools: Vec<Value>,
}

/// Asks a server for its tools.
///
/// # Ambient Authority
/// Reads the machine's certificates and the values of the secrets, and opens connections.
///
/// # Errors
/// If the server cannot be reached, refuses the credentials, or does not keep to the protocol.
pub(super) fn list_tools(source: &Source, config: &Config) -> anyhow::Result<ListedTools> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let network = open_network(source, config, &runtime)?;
    let listed = runtime.block_on(async {
        let mut server = RemoteServer::new(&network, source);
        let listed = timeout(TOTAL_TIMEOUT, server.list_tools()).await;
        server.end_session().await;
        network.close();
        listed.unwrap_or_else(|_late| bail!("it did not list its tools within {} s", TOTAL_TIMEOUT.as_secs()))
    });
    listed.with_context(|| format!("`{}` cannot be asked for its tools", source.endpoint))
}

/// The network of the command, with the secrets of the source and no others.
fn open_network(
    source: &Source,
    config: &Config,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Arc<NetworkSession>> {
    let bindings = source.bindings(config)?;
    let without_secrets =
        Egress::new(config.egress.clone(), config.ca_file.as_deref(), Arc::new(SystemClock))?;
    let vault = if bindings.is_empty() { None } else { open_vault(config)? };
    let egress = Arc::new(match vault {
        Some(vault) => without_secrets.with_secrets(vault),
        None => without_secrets,
    });
    // Here, the error has the reason: a request would only be refused.
    for name in &source.secrets {
        let read = runtime.block_on(egress.read_secret(name));
        read.with_context(|| format!("the secret `{name}` cannot be used"))?;
    }
    let grant = |binding: &Arc<_>| GrantedSecret { binding: Arc::clone(binding), withheld_by: None };
    let secrets = bindings.into_iter().map(grant).collect::<Vec<_>>();
    let operator = AgentDid::parse("did:a2g:operator:1.0:local")?;
    Ok(egress.open_for_operator(&operator, source.endpoint.pattern().clone(), &secrets, BUDGETS))
}

/// The answer to a request.
enum Reply {
    Result(Map<String, Value>),
    Error {
        code: i64,
        message: String,
        supports_stateless: bool,
    },
    /// A status other than success, without an error of JSON-RPC.
    Refused {
        status: StatusCode,
        text: String,
    },
}

impl Reply {
    fn into_result(self) -> anyhow::Result<Map<String, Value>> {
        match self {
            Self::Result(result) => Ok(result),
            Self::Error { code, message, .. } => {
                bail!("it answered with an error: {} (code {code})", shorten(&message))
            }
            Self::Refused { status, text } => bail!("it answered HTTP {status}: {}", shorten(&text)),
        }
    }
}

struct RemoteServer<'a> {
    network: &'a Arc<NetworkSession>,
    source: &'a Source,
    revision: Revision,
    /// The revision that requests name, once it is agreed on.
    version: Option<&'static str>,
    session: Option<HeaderValue>,
    last_id: u64,
}

impl<'a> RemoteServer<'a> {
    fn new(network: &'a Arc<NetworkSession>, source: &'a Source) -> Self {
        let revision = Revision::Stateless;
        let version = Some(revision.as_str());
        Self { network, source, revision, version, session: None, last_id: 0 }
    }

    async fn list_tools(&mut self) -> anyhow::Result<ListedTools> {
        if !self.speaks_stateless().await? {
            self.open_session().await?;
        }
        let mut tools = Vec::new();
        let mut cursor = None;
        for _page in 0..MAX_PAGES {
            let params = cursor.map(|cursor: Value| ("cursor".to_owned(), cursor)).into_iter().collect();
            let mut result = self.exchange("tools/list", params).await?.into_result()?;
            let Some(Value::Array(page)) = result.remove("tools") else {
                bail!("it answered without a list of tools")
            };
            tools.extend(page);
            if tools.len() > MAX_TOOLS {
                note(format_args!(
                    "note: the server lists more tools than the first {MAX_TOOLS}, which are used"
                ));
                tools.truncate(MAX_TOOLS);
                return Ok(ListedTools { revision: self.revision, tools });
            }
            cursor = result.remove("nextCursor").filter(Value::is_string);
            if cursor.is_none() {
                return Ok(ListedTools { revision: self.revision, tools });
            }
        }
        bail!("its list of tools has more than {MAX_PAGES} pages")
    }

    /// `true` if the server answers in 2026-07-28.
    async fn speaks_stateless(&mut self) -> anyhow::Result<bool> {
        match self.exchange("server/discover", Map::new()).await? {
            Reply::Result(result) => {
                let versions = result.get("supportedVersions").and_then(Value::as_array);
                Ok(versions
                    .is_some_and(|versions| versions.iter().any(|one| one == Revision::Stateless.as_str())))
            }
            Reply::Error { supports_stateless: true, .. } => Ok(true),
            Reply::Error { code, message, .. } if MALFORMED.contains(&code) => {
                bail!("it refuses a request of 2026-07-28: {} (code {code})", shorten(&message))
            }
            // A server of an earlier revision refuses it in its own way.
            Reply::Error { .. } | Reply::Refused { .. } => Ok(false),
        }
    }

    async fn open_session(&mut self) -> anyhow::Result<()> {
        self.revision = Revision::Session;
        self.version = None;
        let client = json!({ "name": "a2g-executor", "version": env!("CARGO_PKG_VERSION") });
        let params = Map::from_iter([
            ("protocolVersion".to_owned(), json!(self.revision.as_str())),
            ("capabilities".to_owned(), json!({})),
            ("clientInfo".to_owned(), client),
        ]);
        let result = self.exchange("initialize", params).await?.into_result()?;
        let named = result.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
        let Some(version) = SESSION_VERSIONS.into_iter().find(|version| *version == named) else {
            bail!("it speaks the revision `{}` of MCP, and not 2026-07-28 or 2025-11-25", excerpt(named));
        };
        self.version = Some(version);
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let response = timeout(REQUEST_TIMEOUT, self.send(Method::POST, Some(&message))).await;
        let status = response.map_err(|_late| too_late())??.status();
        if status.is_success() {
            Ok(())
        } else {
            bail!("it answered HTTP {status} to the start of a session")
        }
    }

    /// Ends the session, if there is one. If that fails, the server ends it when it has become idle.
    async fn end_session(&self) {
        if self.session.is_some() {
            let _is_idle_soon = timeout(REQUEST_TIMEOUT, self.send(Method::DELETE, None)).await;
        }
    }

    /// Sends a request, and reads its answer.
    async fn exchange(&mut self, method: &str, mut params: Map<String, Value>) -> anyhow::Result<Reply> {
        self.last_id += 1;
        if self.revision == Revision::Stateless {
            let meta = json!({
                names::PROTOCOL_VERSION: Revision::Stateless.as_str(),
                names::CLIENT_INFO: { "name": "a2g-executor", "version": env!("CARGO_PKG_VERSION") },
                names::CLIENT_CAPABILITIES: {},
            });
            params.insert("_meta".to_owned(), meta);
        }
        let message = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params });
        let exchanging = async {
            let response = self.send(Method::POST, Some(&message)).await?;
            let session = response.headers().get(SESSION_HEADER).cloned();
            let reply = self.read_reply(response).await?;
            Ok::<_, anyhow::Error>((session, reply))
        };
        let (session, reply) = timeout(REQUEST_TIMEOUT, exchanging).await.map_err(|_late| too_late())??;
        if method == "initialize" {
            self.session = session;
        }
        Ok(reply)
    }

    async fn send(&self, method: Method, message: Option<&Value>) -> anyhow::Result<Response<Body>> {
        let named = message.and_then(|message| message.get("method")).and_then(Value::as_str);
        let mut request = Request::builder()
            .method(method)
            .uri(self.source.endpoint.as_str())
            .header(ACCEPT, "application/json, text/event-stream")
            .header(USER_AGENT, concat!("a2g-executor/", env!("CARGO_PKG_VERSION")));
        if message.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(version) = self.version {
            request = request.header(headers::PROTOCOL_VERSION, version);
        }
        if let Some(named) = named.filter(|_| self.revision == Revision::Stateless) {
            request = request.header(headers::METHOD, named);
        }
        if let Some(session) = &self.session {
            request = request.header(SESSION_HEADER, session);
        }
        let text = message.map(Value::to_string).unwrap_or_default();
        let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
        let sent = Arc::clone(self.network).send(request.body(body)?, Timeouts::default()).await;
        let response = sent.map_err(|error| describe(error, &self.source.endpoint))?;
        self.check_status(&response)?;
        Ok(response)
    }

    /// Refuses an answer that leads elsewhere, or asks for other credentials.
    fn check_status(&self, response: &Response<Body>) -> anyhow::Result<()> {
        let status = response.status();
        if status.is_redirection() {
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let place = location.unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
            bail!("it redirects to `{}`: name that address, if it is the server's", shorten(place));
        }
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status) {
            if self.source.secrets.is_empty() {
                bail!(
                    "it needs credentials (HTTP {status}): `a2g-executor tool new NAME --mcp URL` takes the file of a \
                     token (`--token-file`), or a `[[secret]]` of the configuration (`--secret`)"
                );
            }
            bail!("it refuses the credentials (HTTP {status}) of {}", list(&self.source.secrets));
        }
        Ok(())
    }

    async fn read_reply(&self, response: Response<Body>) -> anyhow::Result<Reply> {
        let status = response.status();
        let named = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind =
            named.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let body = limit(response.into_body());
        if !status.is_success() {
            let bytes = read_whole(body).await.unwrap_or_default();
            let text = self.redact(String::from_utf8_lossy(&bytes).into_owned());
            let parsed = serde_json::from_str::<Value>(&text).ok().and_then(to_error);
            return Ok(parsed.unwrap_or(Reply::Refused { status, text }));
        }
        match kind.as_str() {
            "application/json" => {
                let text = String::from_utf8(read_whole(body).await?).context("its answer is not UTF-8")?;
                let parsed = serde_json::from_str::<Value>(&self.redact(text));
                self.to_reply(parsed.context("its answer is not JSON")?)
            }
            "text/event-stream" => self.read_events(body).await,
            _ => bail!("it answered neither with JSON nor with events: is this the URL of an MCP endpoint?"),
        }
    }

    /// A text of the server with the values of secrets replaced that its JSON stands for. They have been replaced in its
    /// bytes, but a parser reads more escapes than those that are found there.
    fn redact(&self, text: String) -> String {
        self.network.redact_json(&text).unwrap_or(text)
    }

    /// Reads events up to the answer. What the server sends or asks before it concerns no tool.
    async fn read_events(
        &self,
        body: impl Stream<Item = io::Result<Bytes>> + Unpin,
    ) -> anyhow::Result<Reply> {
        let mut events = SseByteStream::new(body);
        while let Some(read) = events.next().await {
            let event = read?;
            let is_message = event.event.as_deref().is_none_or(|kind| ["", "message"].contains(&kind));
            let Some(data) = event.data.filter(|data| is_message && !data.is_empty()) else { continue };
            let parsed = serde_json::from_str::<Value>(&self.redact(data));
            let message = parsed.context("one of its events is not JSON")?;
            if message.get("method").is_none() {
                return self.to_reply(message);
            }
        }
        bail!("it ended its answer before the result")
    }

    /// The answer to the last request.
    fn to_reply(&self, mut message: Value) -> anyhow::Result<Reply> {
        let id = message.get("id").cloned().unwrap_or_default();
        if let Some(Value::Object(result)) = message.get_mut("result").map(Value::take) {
            if id != json!(self.last_id) {
                bail!("it answered another request");
            }
            return Ok(Reply::Result(result));
        }
        if !id.is_null() && id != json!(self.last_id) {
            bail!("it answered another request");
        }
        to_error(message).context("its answer has neither a result nor an error")
    }
}

/// The error of an answer.
fn to_error(message: Value) -> Option<Reply> {
    let error = message.get("error")?.as_object()?;
    let text = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    let supported = error.get("data").and_then(|data| data.get("supported")?.as_array());
    let is_stateless = |version: &Value| version == Revision::Stateless.as_str();
    Some(Reply::Error {
        code: error.get("code").and_then(Value::as_i64).unwrap_or_default(),
        message: text,
        supports_stateless: supported.is_some_and(|supported| supported.iter().any(is_stateless)),
    })
}

/// A body that fails when it exceeds the maximum.
fn limit(body: Body) -> impl Stream<Item = io::Result<Bytes>> + Unpin {
    let mut received = 0_usize;
    BodyDataStream::new(body).map(move |read| {
        let part = read.map_err(io::Error::other)?;
        received = received.saturating_add(part.len());
        if received > MAX_ANSWER_BYTES {
            return Err(io::Error::other(format!(
                "it sent more than {MAX_ANSWER_BYTES} bytes for one answer"
            )));
        }
        Ok(part)
    })
}

async fn read_whole(mut body: impl Stream<Item = io::Result<Bytes>> + Unpin) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(part) = body.next().await {
        bytes.extend_from_slice(&part?);
    }
    Ok(bytes)
}

fn describe(error: EgressError, endpoint: &Endpoint) -> anyhow::Error {
    if error == EgressError::Denied(DenialReason::Address) {
        return anyhow::anyhow!(
            "the name of `{endpoint}` has an address that is not public: if it is a service of your own, add it to \
             `network.allowed_addresses` of the configuration"
        );
    }
    error.into()
}

fn too_late() -> anyhow::Error {
    anyhow::anyhow!("it did not answer within {} s", REQUEST_TIMEOUT.as_secs())
}

/// A server's text for a message.
fn shorten(text: &str) -> String {
    escape_invisible(text.trim(), MAX_REFUSAL_CHARS)
}
