//! The MCP door: `POST /mcp` (Streamable HTTP) and standard input and output, in two revisions of the protocol.
//!
//! ```text
//! request ─ `_meta` names 2026-07-28 ─▶ answered by itself: one JSON body, or events and then the answer
//!         └ `initialize`, `Mcp-Session-Id` ─▶ session of 2025-11-25: streams that can be resumed
//! ```
//! A call is an intent like that of any other door. When a client gives a request up, its call is cancelled: by closing
//! the response in 2026-07-28, by `notifications/cancelled` in a session and on standard input.
//!
//! [`proxy`] is the other side: `mcp --connect` forwards a host's messages to such a door.

mod approval;
mod authorization;
mod call;
mod changes;
mod describe;
mod http;
mod proxy;
mod requests;
mod resources;
mod session;
mod staged;
mod stdio;
mod tasks;

pub use http::routers;
pub use proxy::{RemoteServer, RemoteServerError, proxy_mcp_stdio};
pub use stdio::serve_mcp_stdio;

use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_http::ConsoleUrl;
use a2g_http::document::PerCatalog;
use a2g_http::protocol::{self, DoorSettings};
use a2g_types::call::Door;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::Access;
use a2g_types::memory::Charge;
use a2g_types::tool::Descriptor;
use a2g_wire::jsonrpc::Id;
use a2g_wire::listing::Listing;
use a2g_wire::mcp::decode::{McpRequest, SubscriptionFilter};
use a2g_wire::mcp::elicit::Decider;
use a2g_wire::mcp::encode::{INSTRUCTIONS, ResultEncoder};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::tools::{Definition, Definitions};
use a2g_wire::mcp::{ClientCapabilities, MessageLevel, RequestMeta, Revision};
use a2g_wire::strict_json::JsonBounds;
use approval::{Elicitor, States};
use changes::{FinishedRuns, ListChanges};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The version of this server, as clients see it.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Maximum number of notifications of one request that wait for the client to read them. Further ones are dropped.
const MAX_UNREAD_NOTIFICATIONS: usize = 256;
/// The longest wait for tools that can be listed only when they are compiled. Hosts give a server about a minute.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(45);

/// The longest wait with the advice for models for tools that turn out to be unusable, which it names.
const ADVICE_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of unusable tools that the advice for models names.
const MAX_NAMED_TOOLS: usize = 8;

/// The delay after which a client should repeat a request that was refused because the maximum number of requests or
/// streams is open, in milliseconds.
const BUSY_RETRY_MS: u64 = 500;

fn busy_fault(message: String) -> Fault {
    Fault::Busy { message, retry_after_ms: BUSY_RETRY_MS }
}

/// The advice for models, with the most that the governor can grant.
fn instructions(executor: &Executor) -> String {
    let ceilings = executor.queries.ceilings();
    let areas = ceilings.areas.iter().map(|area| format!("`{area}`")).collect::<Vec<_>>();
    let reading = match ceilings.access {
        Access::ReadWrite => "",
        Access::ReadOnly => " for reading only",
    };
    let files = match areas.as_slice() {
        [] => "no files".to_owned(),
        areas => format!("files in {}{reading} (arguments name them by absolute paths)", areas.join(", ")),
    };
    let lists = ceilings.hosts.allowed.iter().chain(ceilings.tool_hosts.values());
    let has_network = ceilings.network && lists.flatten().next().is_some();
    let network = if has_network { "" } else { "; no network" };
    format!("{INSTRUCTIONS} At most, tools can use {files}{network}.")
}

/// Resolves when the flag is `true`.
async fn until_true(flag: &mut watch::Receiver<bool>) {
    // Every caller holds the owner of the sender, so the sender outlives this future.
    let _flag = flag.wait_for(|flag| *flag).await;
}

/// The state that requests share, over every transport.
struct McpDoor {
    executor: Arc<Executor>,
    settings: DoorSettings,
    listing: Listing,
    bounds: JsonBounds,
    /// `true` to answer lists and calls once every tool has a definition: those that their packages do not describe are
    /// compiled first. A host that starts this process lists its tools at once, and may never do so again.
    waits_for_tools: bool,
    states: States,
    /// The person who decides on calls whose client cannot be asked.
    decider: Decider,
    /// The URL of the console, for links to decisions.
    console_url: ConsoleUrl,
    /// The advice for models, without the tools that cannot be used.
    instructions: String,
    /// The definitions of the tools, without sessions and in a session.
    definitions: PerCatalog<Definitions>,
    session_definitions: PerCatalog<Definitions>,
    /// Made for the first client that follows lists, because it adds work to every run.
    runs: OnceLock<FinishedRuns>,
}

/// A request apart from its method and parameters.
struct RequestContext {
    revision: Revision,
    id: Id,
    caller: Arc<Caller>,
    meta: RequestMeta,
    /// The capabilities of the client, from this request or from its session.
    capabilities: ClientCapabilities,
    /// The lowest level of log messages that the client wants, if it wants any.
    log_level: Option<MessageLevel>,
    /// The request's charge against the caller's share of memory.
    charge: Charge,
    /// The receiver of the notifications that precede the answer, if the transport has room for them.
    notifications: Option<mpsc::Sender<String>>,
    /// The way to ask the client of a session; 2026-07-28 asks in its answers.
    elicitor: Option<Elicitor>,
}

impl RequestContext {
    fn encoder(&self) -> ResultEncoder {
        ResultEncoder { revision: self.revision, server_version: VERSION }
    }

    /// Returns `true` if the answer to a call may be a task.
    fn offers_tasks(&self) -> bool {
        self.revision == Revision::Stateless && self.capabilities.has_tasks
    }
}

impl McpDoor {
    fn new(
        executor: Arc<Executor>,
        settings: DoorSettings,
        listing: Listing,
        bounds: JsonBounds,
        decider: Decider,
        console_url: ConsoleUrl,
        waits_for_tools: bool,
    ) -> Self {
        let instructions = instructions(&executor);
        Self {
            executor,
            settings,
            listing,
            bounds,
            waits_for_tools,
            states: States::new(),
            decider,
            console_url,
            instructions,
            definitions: PerCatalog::default(),
            session_definitions: PerCatalog::default(),
            runs: OnceLock::new(),
        }
    }

    /// The changes that a subscription or a session of this caller follows.
    fn list_changes(&self, caller: &Arc<Caller>, filter: SubscriptionFilter) -> ListChanges {
        let runs = self.runs.get_or_init(|| FinishedRuns::follow(&self.executor));
        ListChanges::new(&self.executor, runs, caller, filter)
    }

    /// The agent of a caller's intents.
    fn agent_of(&self, caller: &Caller) -> Result<AgentDid, Fault> {
        self.settings.agent_of(Door::Mcp, caller, None)
    }

    /// Returns `true` if `tools/list` shows the tool: the caller's scope and the agent's policies reach it. A caller
    /// learns nothing about the definition of any other tool.
    fn may_see(&self, caller: &Caller, agent: &AgentDid, tool: &ToolName) -> bool {
        protocol::may_see(&self.executor, caller, agent, tool)
    }

    /// The advice for models, with the tools that the caller would find in the list if they could be used.
    fn instructions_for(&self, caller: &Caller) -> Cow<'_, str> {
        let Ok(agent) = self.agent_of(caller) else { return Cow::Borrowed(&self.instructions) };
        let unusable = self.executor.catalogue.unusable_tools().into_iter();
        let seen = unusable.filter(|(name, _)| self.may_see(caller, &agent, name)).take(MAX_NAMED_TOOLS);
        let reasons = seen.map(|(name, reason)| format!("`{name}`: {reason}")).collect::<Vec<_>>();
        match reasons.as_slice() {
            [] => Cow::Borrowed(&self.instructions),
            reasons => format!(
                "{} Tools that are not in the list, because they cannot be used: {}.",
                self.instructions,
                reasons.join("; ")
            )
            .into(),
        }
    }

    /// Answers a request whose answer is a single message.
    ///
    /// # Errors
    /// [`McpError`] for a request that has no result.
    async fn answer(&self, context: RequestContext, request: McpRequest) -> Result<String, McpError> {
        let encoder = context.encoder();
        let needs_tools = matches!(request, McpRequest::ListTools { .. } | McpRequest::CallTool(_));
        let needs_advice = matches!(request, McpRequest::Discover | McpRequest::Initialize { .. });
        if self.waits_for_tools && needs_tools {
            self.wait_for_tools().await;
        } else if self.waits_for_tools && needs_advice {
            let prepared = self.executor.catalogue.wait_until_prepared();
            let _some_are_preparing = tokio::time::timeout(ADVICE_TIMEOUT, prepared).await;
        }
        match request {
            McpRequest::Discover => {
                Ok(encoder.discover(&context.id, &self.instructions_for(&context.caller)))
            }
            McpRequest::Initialize { version, capabilities: _ } => {
                Ok(encoder.initialize(&context.id, &version, &self.instructions_for(&context.caller)))
            }
            // A session stores the level before it asks for this answer.
            McpRequest::Ping | McpRequest::SetLogLevel(_) => Ok(encoder.empty(&context.id)),
            McpRequest::ListTools { after } => {
                let definitions = match context.revision {
                    Revision::Stateless => &self.definitions,
                    Revision::Session => &self.session_definitions,
                };
                let define = |tools: &[Descriptor]| Definitions::new(tools, context.revision);
                let definitions = definitions.get(self.executor.catalogue.tools(), define);
                let agent = self.agent_of(&context.caller)?;
                let is_listed = |tool: &&Definition| self.may_see(&context.caller, &agent, tool.tool());
                let listed = definitions.iter().filter(is_listed);
                Ok(encoder.tools(&context.id, listed, after.as_ref(), self.listing))
            }
            McpRequest::CallTool(call) if self.describes(&call.tool) => self.describe(&context, &call),
            McpRequest::CallTool(call) => self.call(context, *call).await,
            McpRequest::ListResources { before } => self.list_resources(&context, before).await,
            McpRequest::ListTemplates => Ok(encoder.templates(&context.id)),
            McpRequest::ReadResource(uri) => self.read_resource(&context, uri).await,
            McpRequest::Complete(completion) => self.complete(&context, completion).await,
            McpRequest::GetTask(task) => self.get_task(&context, task).await,
            McpRequest::UpdateTask(task, responses) => self.update_task(&context, task, responses).await,
            McpRequest::CancelTask(task) => self.cancel_task(&context, task).await,
            // Not reached: the transports answer this request with a stream.
            McpRequest::Listen(_) => Ok(encoder.subscription_end(&context.id)),
        }
    }

    /// Waits until every tool has a definition or is broken, or until [`PREPARE_TIMEOUT`].
    async fn wait_for_tools(&self) {
        let prepared = self.executor.catalogue.wait_until_described();
        let _some_are_missing = tokio::time::timeout(PREPARE_TIMEOUT, prepared).await;
    }
}
