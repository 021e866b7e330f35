//! `JSON.stringify` of a parsed value, which the document's `signMessage` signs.
//!
//! Each value has one text: without white space, with escapes only where JSON requires them, with every number as
//! ECMAScript writes a double, and with an object's members in JavaScript's order.

use serde_json::{Map, Value};

/// The text of a value.
pub(super) fn stringify(value: &Value) -> String {
    let mut text = String::new();
    write_value(value, &mut text);
    text
}

fn write_value(value: &Value, text: &mut String) {
    match value {
        // Both libraries escape a quote, a backslash and the control characters below U+0020, in the same way.
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            text.push_str(ryu_js::Buffer::new().format(number));
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_value(item, text);
            }
            text.push(']');
        }
        Value::Object(object) => write_object(object, text),
    }
}

fn write_object(object: &Map<String, Value>, text: &mut String) {
    let mut members = object.iter().collect::<Vec<_>>();
    // The sort is stable: names that are no indices stay in the order in which they were received.
    members.sort_by_key(|(name, _)| array_index(name).map_or((true, 0), |index| (false, index)));
    text.push('{');
    for (index, (name, value)) in members.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(name.as_str()).to_string());
        text.push(':');
        write_value(value, text);
    }
    text.push('}');
}

/// The index that a name is; a JavaScript object has its indices first, in rising order.
fn array_index(name: &str) -> Option<u32> {
    let index = name.parse::<u32>().ok()?;
    (index < u32::MAX && index.to_string() == name).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of Node.js.
    #[test]
    fn a_value_has_the_text_that_javascript_gives_it() {
        for (received, expected) in [
            (r#" { "a" : [ 1 , true, null ] } "#, r#"{"a":[1,true,null]}"#),
            (
                "[1.0,1e3,-0,-0.0,0.1,0.000001,1E-7,1e21,123456789012345678901,9007199254740993,5e-324,1e-400]",
                "[1,1000,0,0,0.1,0.000001,1e-7,1e+21,123456789012345680000,9007199254740992,5e-324,0]",
            ),
            (
                r#""\u00e9\/\u2028\u007f\u0007\u001F\b\t\n\f\r\"\\\ud83d\ude00""#,
                "\"é/\u{2028}\u{7f}\\u0007\\u001f\\b\\t\\n\\f\\r\\\"\\\\😀\"",
            ),
            (
                r#"{"b":1,"10":2,"2":3,"a":4,"4294967295":5,"4294967294":6,"01":7,"-1":8,"+1":9,"__proto__":{},"0":0}"#,
                r#"{"0":0,"2":3,"10":2,"4294967294":6,"b":1,"a":4,"4294967295":5,"01":7,"-1":8,"+1":9,"__proto__":{}}"#,
            ),
        ] {
            let text = stringify(&serde_json::from_str(received).unwrap());
            assert_eq!(text, expected);
            assert_eq!(stringify(&serde_json::from_str(&text).unwrap()), text, "the text is its own text");
        }
    }
}
