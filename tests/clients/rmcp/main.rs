//! The MCP door as the protocol's own Rust library sees it. It fails where an answer is not as expected.
//!
//! Arguments: the folder of the tools' files, as tools name it and as this program does; then a URL, or a command.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationCapability, ErrorCode, Implementation,
    ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams, RequestMetaObject,
    ResourceContents, object,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext, RoleClient, RunningService,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ErrorData, ServiceError};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;
use uuid::Uuid;

const ESCALATES: &str = "-----BEGIN PRIVATE KEY-----";
const POLL_INTERVAL: Duration = Duration::from_millis(10);

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The client's end: approves every form, and keeps what the server sends besides answers.
#[derive(Default)]
struct Person {
    forms: Mutex<Vec<String>>,
    progress: Mutex<Vec<ProgressNotificationParam>>,
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::default());
        ClientConfig::new(capabilities, Implementation::new("tests", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> std::result::Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        self.forms.lock().unwrap().push(message);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "decision": "approve" })))
    }

    async fn on_progress(
        &self,
        report: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.progress.lock().unwrap().push(report);
    }
}

type Client = RunningService<RoleClient, Person>;

/// The folder of the tools' files: as tools name it, and as this program does.
struct Folder {
    guest: String,
    host: PathBuf,
}

fn call(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(object(arguments))
}

async fn call_successfully(client: &Client, tool: &'static str, arguments: Value) -> Result<CallToolResult> {
    let result = client.call_tool(call(tool, arguments)).await?;
    assert_eq!(result.is_error, Some(false), "{result:?}");
    Ok(result)
}

/// The receipt at a URI, or nothing if there is none.
async fn read_receipt(client: &Client, uri: &str) -> Result<Option<Value>> {
    let version = &client.peer_info().expect("it is connected").protocol_version;
    let missing =
        if version.has_initialize() { ErrorCode::RESOURCE_NOT_FOUND } else { ErrorCode::INVALID_PARAMS };
    match client.read_resource(ReadResourceRequestParams::new(uri)).await {
        Ok(result) => {
            let Some(ResourceContents::TextResourceContents { text, .. }) = result.contents.first() else {
                return Err(format!("not a text: {result:?}").into());
            };
            Ok(Some(serde_json::from_str(text)?))
        }
        Err(ServiceError::McpError(error)) if error.code == missing => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn lists_tools(client: &Client, _folder: &Folder, _name: &str) -> Result {
    let tools = client.list_all_tools().await?;
    let tools: HashMap<_, _> = tools.iter().map(|tool| (&*tool.name, tool.annotations.as_ref())).collect();
    let hints = |name| tools[name].expect("annotations");
    assert_eq!(hints("search_text").read_only_hint, Some(true), "{tools:?}");
    assert_eq!(hints("write_file").destructive_hint, Some(true), "{tools:?}");
    let server = client.peer_info().expect("it is connected");
    assert_eq!(server.server_info.as_ref().map(|info| &*info.name), Some("a2g-executor"));
    assert!(server.instructions.is_some());
    Ok(())
}

async fn writes_a_file_and_reads_the_receipt(client: &Client, folder: &Folder, name: &str) -> Result {
    let path = format!("{}/{name}", folder.guest);
    let result = call_successfully(client, "write_file", json!({ "path": path, "content": "hi" })).await?;
    let text = &result.content.first().and_then(|block| block.as_text()).expect("a text").text;
    assert_eq!(result.structured_content, Some(json!({ "path": path, "bytes_written": 2 })));
    assert_eq!(serde_json::from_str::<Value>(text).ok(), result.structured_content, "{text}");
    let intent = result.meta.as_ref().and_then(|meta| meta.get("a2g/intent_id")?.as_str()).expect("an id");
    let uri = format!("a2g://receipts/{intent}");
    let listed = client.list_all_resources().await?;
    assert!(listed.iter().any(|resource| resource.uri == uri), "{listed:?}");
    let receipt = read_receipt(client, &uri).await?.expect("a receipt");
    assert_eq!(
        (&receipt["status"], Some(&receipt["result"])),
        (&json!("SUCCESS"), result.structured_content.as_ref())
    );
    Ok(())
}

async fn approves_a_call(client: &Client, folder: &Folder, name: &str) -> Result {
    let path = format!("{}/{name}-approved", folder.guest);
    call_successfully(client, "write_file", json!({ "path": path, "content": ESCALATES })).await?;
    assert_eq!(std::fs::read_to_string(folder.host.join(format!("{name}-approved")))?, ESCALATES);
    Ok(())
}

async fn cancels_a_call(client: &Client, folder: &Folder, _name: &str) -> Result {
    let runs = || std::fs::metadata(folder.host.join("runs")).map_or(0, |file| file.len());
    let before = runs();
    let intent = Uuid::new_v4().to_string();
    let mut params = call("gate", json!({ "path": format!("{}/x", folder.guest) }));
    params.meta = Some(RequestMetaObject::from(object(json!({ "a2g/intent_id": intent }))));
    // The library cancels a call whose future is dropped.
    tokio::select! {
        result = client.call_tool(params) => panic!("the gate is closed: {result:?}"),
        () = async { while runs() == before { sleep(POLL_INTERVAL).await } } => {}
    }
    let receipt = loop {
        match read_receipt(client, &format!("a2g://receipts/{intent}")).await? {
            Some(receipt) => break receipt,
            None => sleep(POLL_INTERVAL).await,
        }
    };
    assert_eq!(receipt["status"], "ABORTED", "{receipt}");
    Ok(())
}

async fn gets_progress(client: &Client, folder: &Folder, _name: &str) -> Result {
    client.service().progress.lock().unwrap().clear();
    call_successfully(client, "search_text", json!({ "path": folder.guest, "pattern": "hi" })).await?;
    // The library hands out reports beside the answer, and may be later with them.
    let seen = loop {
        let seen = client.service().progress.lock().unwrap().clone();
        if seen.last().is_some_and(|report| report.total == Some(100.0)) {
            break seen;
        }
        sleep(POLL_INTERVAL).await;
    };
    assert!(seen.len() > 1 && seen.is_sorted_by(|a, b| a.progress < b.progress), "{seen:?}");
    Ok(())
}

async fn converse(client: &Client, folder: &Folder, name: &str) -> Result {
    macro_rules! steps {
        ($($step:ident),*) => {
            $(println!("{name} {}", stringify!($step)); $step(client, folder, name).await?;)*
        };
    }
    steps!(lists_tools, writes_a_file_and_reads_the_receipt, approves_a_call, cancels_a_call, gets_progress);
    let forms = client.service().forms.lock().unwrap();
    assert!(matches!(&forms[..], [form] if form.contains(ESCALATES)), "{forms:?}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [guest, host, target, words @ ..] = &arguments[..] else {
        return Err("three arguments or more".into());
    };
    let folder = Folder { guest: guest.clone(), host: host.into() };
    // `Auto` sends the same, but takes a server that needs 10 seconds to start for one of 2025-11-25.
    let latest = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
    for (revision, mode) in [("2026-07-28", latest), ("2025-11-25", ClientLifecycleMode::Initialize)] {
        let person = Person::default();
        let client = if words.is_empty() {
            let transport = StreamableHttpClientTransport::from_uri(&**target);
            person.serve_with_lifecycle(transport, mode).await?
        } else {
            let mut command = Command::new(target);
            command.args(words);
            person.serve_with_lifecycle(TokioChildProcess::new(command)?, mode).await?
        };
        assert_eq!(client.peer_info().expect("it is connected").protocol_version.as_str(), revision);
        converse(&client, &folder, revision).await?;
        client.cancel().await?;
    }
    Ok(())
}
