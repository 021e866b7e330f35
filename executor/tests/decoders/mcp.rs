//! Messages of the Model Context Protocol.

use super::BOUNDS;
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::Revision;
use a2g_wire::mcp::decode::{self, ClientMessage, McpDecodeError, McpRequest};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::resources::ResourceUri;
use a2g_wire::mcp::state::{StateOwner, StateSealer};
use a2g_wire::strict_json;
use serde_json::{Value, json};

/// A decoded call encodes to the same call; a rejected request gets an error with its id; nobody but the sealer makes a
/// state that opens.
pub(crate) fn mcp(body: &[u8]) {
    let Ok(text) = strict_json::check(body, &BOUNDS) else { return };
    let request = match decode::message(text) {
        Ok(ClientMessage::Request(request)) => request,
        Ok(ClientMessage::Notification(_) | ClientMessage::Answer { .. }) => return,
        Err(McpDecodeError { id, error }) => return is_an_error(&error, id.as_ref()),
    };
    assert!(!request.id.is_null());
    for revision in Revision::ALL {
        match request.decode(revision) {
            Err(fault) => is_an_error(&fault.into(), Some(&request.id)),
            Ok(McpRequest::CallTool(call)) => {
                assert_eq!(request.called_tool().as_ref(), Some(&call.tool));
                let params =
                    json!({ "name": call.tool, "arguments": call.arguments, "requestState": call.state });
                let again = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
                    .to_string();
                let Ok(ClientMessage::Request(again)) = decode::message(&again) else { panic!("{again}") };
                let Ok(McpRequest::CallTool(again)) = again.decode(revision) else {
                    panic!("not a call again")
                };
                assert_eq!((again.tool, again.arguments), (call.tool, call.arguments));
                let owner = StateOwner { caller: "anna", tool: "write_file" };
                let state = call.state.unwrap_or_default();
                assert_eq!(StateSealer::new(&[7; 32]).open(&state, owner), None);
            }
            Ok(McpRequest::ReadResource(uri)) => {
                assert_eq!(request.mirrored_name().as_ref(), Some(&uri));
                if let Some(parsed) = ResourceUri::parse(&uri) {
                    assert!(uri.to_lowercase().contains(&parsed.intent().to_string()));
                }
            }
            Ok(McpRequest::GetTask(_) | McpRequest::UpdateTask(..) | McpRequest::CancelTask(_)) => {
                assert_eq!(revision, Revision::Stateless);
            }
            Ok(_other) => {}
        }
    }
}

fn is_an_error(error: &McpError, id: Option<&Id>) {
    let answer = serde_json::from_str::<Value>(&error.response(id)).unwrap();
    assert!(answer["error"]["code"].as_i64().is_some_and(|code| code <= -32000), "{answer}");
    assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
    let status = error.http_status(Revision::Stateless);
    assert!((200..600).contains(&status), "{status}");
    assert_eq!(answer.get("id").map(Value::to_string).is_some(), id.is_some());
}
