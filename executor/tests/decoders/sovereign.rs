//! Requests of the sovereign door.

use a2g_wire::jsonrpc;
use a2g_wire::sovereign;
use a2g_wire::strict_json::{self, JsonBounds};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A request that is read names the skill that another reader finds in it; one that is not is answered in one
/// short line of JSON.
pub(crate) fn sovereign(body: &[u8]) {
    use sovereign::decode::{RequestForm, SovereignDecodeError, request};
    let Ok(text) = strict_json::check(body, &JsonBounds::default()) else { return };
    match request(text) {
        Ok(request) => {
            // A number beyond all numbers, such as an id, is kept as its text.
            let Ok(body) = serde_json::from_str::<Value>(text) else { return };
            let version = match request.form {
                RequestForm::Sovereign => json!("3.0"),
                RequestForm::JsonRpc2 => json!("2.0"),
                RequestForm::Legacy => Value::Null,
            };
            assert_eq!(body["jsonrpc"], version);
            let named = body["method"].as_str().map_or_else(
                || if version.is_null() { body["skill"].as_str() } else { body["params"]["skill"].as_str() },
                |method| method.split('/').next(),
            );
            if version.is_null() {
                assert_eq!(body["skill"].as_str(), Some(request.skill.as_str()));
            } else {
                assert_eq!(named, Some(request.skill.as_str()));
            }
            assert!(!request.skill.is_empty());
        }
        Err(malformed) => {
            let SovereignDecodeError { form, id, named: (skill, operation), fault } = *malformed;
            let failure = sovereign::fault::to_error(&fault);
            let id = id.unwrap_or_else(jsonrpc::Id::null);
            let answer = sovereign::encode::ReplyEncoder { form, id, skill, operation }.failure(&failure);
            // Its id may be a number that only its caller can read.
            let read = serde_json::from_str::<&RawValue>(&answer).unwrap();
            assert!(!answer.contains('\n') && read.get().starts_with('{'));
        }
    }
}
