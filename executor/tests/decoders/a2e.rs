//! Messages of A2E.

use super::Members;
use a2g_wire::a2e;
use a2g_wire::strict_json::{self, JsonBounds};
use serde_json::Value;

/// A line that is read says what another reader finds in it; one that is not has an answer of one short line.
pub(crate) fn a2e(body: &[u8]) {
    let Ok(text) = strict_json::check(body, &JsonBounds::default()) else { return };
    match a2e::decode::message(text) {
        Ok(message) => is_what_was_written(&message, text),
        Err(a2e::decode::A2eDecodeError::Ignored { kind }) => assert!(kind.len() < 1024),
        Err(a2e::decode::A2eDecodeError::Refused { id, handshake: _, failure }) => {
            assert_ne!(failure.code, a2e::fault::A2eCode::ParseError);
            let answer = a2e::encode::error(id.as_deref(), &failure, 0.0);
            assert!(answer.len() < 4096 && !answer.contains('\n'), "{answer}");
            let members = serde_json::from_str::<Members<'_>>(&answer).unwrap().0;
            assert_eq!(
                serde_json::from_str::<String>(members["req_id"].get()).unwrap(),
                id.unwrap_or_default()
            );
        }
    }
}

fn is_what_was_written(message: &a2e::decode::AgentMessage, text: &str) {
    use a2e::decode::{AgentMessage, MessageBody};
    let members = serde_json::from_str::<Members<'_>>(text).unwrap().0;
    let word = |name: &str| members.get(name).and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    let seconds = |default: u64| members.get("timeout").map_or(default, |raw| raw.get().parse().unwrap());
    let versions = [word("a2e"), word("version")];
    assert!(versions.iter().flatten().all(|version| version == a2e::VERSION), "{versions:?}");
    assert!(members.contains_key("a2e") || members.contains_key("version"));
    let AgentMessage { id, body } = message;
    assert_eq!(word("id").as_ref(), Some(id));
    let kind = word("type").unwrap();
    match body {
        MessageBody::Ping => assert_eq!(kind, "ping"),
        MessageBody::Shutdown(timeout) => {
            assert_eq!((kind.as_str(), timeout.seconds()), ("shutdown", seconds(10)));
        }
        MessageBody::Handshake(handshake) => {
            assert_eq!(kind, "handshake/req");
            assert_eq!(word("agent_id").unwrap_or_default(), handshake.agent_id);
            assert_eq!(word("auth_token").unwrap_or_default(), handshake.auth_token);
        }
        MessageBody::ToolList(filter) => {
            assert_eq!(kind, "tool/list/req");
            assert_eq!(word("query").unwrap_or_default(), filter.query);
        }
        MessageBody::ToolCall(call) => {
            assert_eq!(kind, "tool/call/req");
            assert_eq!(word("tool_name").as_ref(), Some(&call.tool_name));
            assert_eq!(seconds(30), call.timeout.seconds());
            let arguments = serde_json::from_str::<Value>(members["arguments"].get()).unwrap();
            assert_eq!(arguments.as_object(), Some(&call.arguments));
            if let Some(intent) = call.intent {
                let digits = |id: &str| id.replace('-', "").to_lowercase();
                assert_eq!(digits(&intent.to_string()), digits(id));
            }
        }
        MessageBody::Other { kind: other, capability } => {
            assert_eq!(&kind, other);
            assert!(!capability.is_some_and(a2e::is_tools_capability), "{kind}");
        }
    }
}
