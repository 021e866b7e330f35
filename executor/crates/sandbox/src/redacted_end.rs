//! The end of a run, with the values of its secrets replaced in what the guest wrote.

use crate::egress::Network;
use a2g_types::json::JsonText;
use a2g_types::outcome::End;
use serde_json::Value;

/// The reason why a result with a value is none.
const EQUAL_KEYS: &str = "two keys of an object are equal once the values of secrets in them are replaced";

/// Replaces the values of the run's secrets in an end. A result stays JSON: a number with a value becomes a string.
pub(super) fn redact_end(network: &Network, end: End) -> End {
    if !network.has_sent_secrets() {
        return end;
    }
    let text = |text: String| network.redact_text(text);
    match end {
        End::Returned(result) => redact_result(network, result, End::Returned),
        End::Staged(result) => redact_result(network, result, End::Staged),
        End::ToolError { code, message, detail } => End::ToolError {
            code: text(code),
            message: text(message),
            detail: detail.map(|detail| redact_detail(network, detail)),
        },
        End::Exited { code, stderr_tail } => End::Exited { code, stderr_tail: text(stderr_tail) },
        End::ResultInvalid { pointer, message } => {
            End::ResultInvalid { pointer: text(pointer), message: text(message) }
        }
        End::Trapped(trap) => End::Trapped(text(trap)),
        End::NotStarted(reason) => End::NotStarted(text(reason)),
        End::Crashed(reason) => End::Crashed(text(reason)),
        End::NotCommitted(reason) => End::NotCommitted(text(reason)),
        End::LeftToOperator(reason) => End::LeftToOperator(text(reason)),
        same @ (End::ResultNotJson | End::LimitReached(_) | End::Aborted(_)) => same,
    }
}

/// The end with a result in which the values are replaced, unless it is no result without them.
fn redact_result(network: &Network, result: JsonText, end: impl FnOnce(JsonText) -> End) -> End {
    let Some(redacted) = network.redact_json(result.as_str()) else { return end(result) };
    match JsonText::parse(&redacted) {
        Ok(result) => end(result),
        Err(_equal_keys) => End::ResultInvalid { pointer: String::new(), message: EQUAL_KEYS.to_owned() },
    }
}

fn redact_detail(network: &Network, detail: Value) -> Value {
    match network.redact_json(&detail.to_string()) {
        // Of equal keys, the last one stays.
        Some(redacted) => serde_json::from_str(&redacted).unwrap_or_default(),
        None => detail,
    }
}
