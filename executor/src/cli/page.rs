//! A receipt as a page of labelled lines.

use super::layout::wrap;
use super::output::one_line;
use serde_json::{Map, Value};

/// Members of the report that the receipt also has.
const REPEATED_MEMBERS: [&str; 3] = ["agent_did", "intent_id", "status"];
/// Members with a tool's own JSON, which is printed as JSON.
const AS_JSON: [&str; 3] = ["result", "detail", "arguments"];
/// Indent of the lines below a label, in columns.
const STEP: usize = 2;

/// Formats a receipt, given as JSON.
pub(super) fn page(receipt: Value, width: usize) -> String {
    let Value::Object(mut receipt) = receipt else { return String::new() };
    if let Some(Value::Object(report)) = receipt.remove("report") {
        receipt.extend(report.into_iter().filter(|(name, _)| !REPEATED_MEMBERS.contains(&name.as_str())));
    }
    let mut lines = Vec::new();
    push_members(&receipt, 0, width, &mut lines);
    lines.join("\n")
}

fn push_members(members: &Map<String, Value>, indent: usize, width: usize, lines: &mut Vec<String>) {
    let longest = members.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    for (name, value) in members {
        let start = format!("{:indent$}{:longest$}  ", "", one_line(name));
        match (format_scalars(value), value) {
            _ if AS_JSON.contains(&name.as_str()) => lines.push(format_json(&start, value)),
            (Some(text), _) => lines.push(wrap(&start, &text, width)),
            (None, Value::Array(items)) => {
                for (nth, item) in items.iter().enumerate() {
                    let blank = " ".repeat(start.chars().count());
                    let start = if nth == 0 { &start } else { &blank };
                    let text = format_scalars(item).unwrap_or_else(|| one_line(item));
                    lines.push(wrap(start, &text, width));
                }
            }
            (None, Value::Object(inner)) => {
                lines.push(start.trim_end().to_owned());
                push_members(inner, indent + STEP, width, lines);
            }
            (None, other) => lines.push(wrap(&start, &one_line(other), width)),
        }
    }
}

/// A value on one line, if it is a scalar or contains only scalars.
fn format_scalars(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("none".to_owned()),
        Value::Bool(yes) => Some(if *yes { "yes" } else { "no" }.to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(one_line(text)),
        Value::Array(items) if items.is_empty() => Some("none".to_owned()),
        Value::Array(items) if items.iter().all(is_scalar) => {
            Some(items.iter().filter_map(format_scalars).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) if members.values().all(is_scalar) => {
            let members_text =
                members.iter().filter_map(|(name, value)| Some(format!("{name} {}", format_scalars(value)?)));
            Some(one_line(members_text.collect::<Vec<_>>().join(", ")))
        }
        Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

fn format_json(start: &str, value: &Value) -> String {
    let blank = " ".repeat(start.chars().count());
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    format!("{start}{}", text.lines().map(one_line).collect::<Vec<_>>().join(&format!("\n{blank}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_receipt_is_a_page_of_labelled_lines() {
        let receipt = json!({
            "number": 3, "intent_id": "550e8400-e29b-41d4-a716-446655440000", "ended": "yesterday", "delivered": true,
            "report": {
                "intent_id": "550e8400-e29b-41d4-a716-446655440000", "error": null,
                "usage": { "limits": { "max_memory_mb": { "granted": 64, "set_by": "verdict" } }, "denied": [
                    { "what": "/etc/passwd", "count": 1 }, { "what": "/etc/shadow", "count": 2 },
                ] },
                "result": { "path": "/a\u{1b}" },
            },
        });
        let expected = "\
number     3
intent_id  550e8400-e29b-41d4-a716-446655440000
ended      yesterday
delivered  yes
error      none
usage
  limits
    max_memory_mb  granted 64, set_by verdict
  denied  what /etc/passwd, count 1
          what /etc/shadow, count 2
result     {
             \"path\": \"/a\\u001b\"
           }";
        assert_eq!(page(receipt, 80), expected);
    }
}
