//! The strings in a call's arguments, each with its presumed role.
//!
//! A governor does not have a tool's schema, so it guesses from a value's key and first byte whether the value is a
//! path. The guess only allows early and clear refusals: only the grant determines the files that a guest can reach.

use serde_json::{Map, Value};
use std::borrow::Cow;

/// Last words of keys whose values are paths.
const PATH_WORDS: [&str; 15] = [
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "filenames",
    "filepath",
    "filepaths",
    "directory",
    "directories",
    "dir",
    "dirs",
    "folder",
    "folders",
    "cwd",
];

/// Last words of keys whose values are text to store, to search for or to replace. Source text often starts
/// with `/` (`//! …`, `/* … */`) and must not be taken for a path.
const CONTENT_WORDS: [&str; 32] = [
    "code",
    "script",
    "content",
    "contents",
    "text",
    "string",
    "body",
    "data",
    "line",
    "lines",
    "old",
    "new",
    "find",
    "search",
    "replace",
    "replacement",
    "pattern",
    "patterns",
    "regex",
    "glob",
    "globs",
    "include",
    "exclude",
    "query",
    "needle",
    "message",
    "comment",
    "note",
    "description",
    "prompt",
    "title",
    "reason",
];

/// The presumed role of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentRole {
    /// The path of a file or a folder.
    Path,
    /// Text that the tool stores, searches for or replaces.
    Content,
    /// Anything else: a command, a URL, a mode.
    Other,
    /// All strings of a list, joined by spaces, so that `["rm", "-rf", "/"]` is recognized as a command. The
    /// caller did not send the joined string.
    Joined,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArgumentText<'a> {
    pub(super) role: ArgumentRole,
    pub(super) text: Cow<'a, str>,
}

/// Every string of a JSON object, keys included, at any depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arguments<'a>(Vec<ArgumentText<'a>>);

impl<'a> Arguments<'a> {
    pub(super) fn of(object: &'a Map<String, Value>) -> Self {
        let mut arguments = Self(Vec::new());
        arguments.walk_object(object);
        arguments
    }

    pub(super) fn texts(&self) -> &[ArgumentText<'a>] {
        &self.0
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|text| text.role == ArgumentRole::Path).map(|text| &*text.text)
    }

    fn push(&mut self, role: ArgumentRole, text: &'a str) {
        let role = match role {
            ArgumentRole::Other | ArgumentRole::Joined if text.starts_with('/') => ArgumentRole::Path,
            ArgumentRole::Path | ArgumentRole::Content | ArgumentRole::Other | ArgumentRole::Joined => role,
        };
        self.0.push(ArgumentText { role, text: Cow::Borrowed(text) });
    }

    fn walk_object(&mut self, object: &'a Map<String, Value>) {
        for (key, value) in object {
            self.push(ArgumentRole::Other, key);
            self.walk(role_of(key), value);
        }
    }

    fn walk(&mut self, role: ArgumentRole, value: &'a Value) {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => self.push(role, text),
            Value::Array(items) => {
                self.join(role, items);
                items.iter().for_each(|item| self.walk(role, item));
            }
            Value::Object(object) => self.walk_object(object),
        }
    }

    fn join(&mut self, role: ArgumentRole, items: &[Value]) {
        let words: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
        if role == ArgumentRole::Other && words.len() > 1 {
            self.0.push(ArgumentText { role: ArgumentRole::Joined, text: Cow::Owned(words.join(" ")) });
        }
    }
}

fn role_of(key: &str) -> ArgumentRole {
    let word = last_word(key);
    if PATH_WORDS.contains(&&*word) {
        ArgumentRole::Path
    } else if CONTENT_WORDS.contains(&&*word) {
        ArgumentRole::Content
    } else {
        ArgumentRole::Other
    }
}

/// The last word of `snake_case`, `kebab-case`, `dotted.case` and `camelCase`, in lower case.
fn last_word(key: &str) -> String {
    let tail = key.rsplit(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty()).unwrap_or(key);
    let pairs = tail.chars().zip(tail.char_indices().skip(1));
    let start = pairs
        .filter(|(before, (_, letter))| before.is_lowercase() && letter.is_uppercase())
        .map(|(_, (at, _))| at)
        .last()
        .unwrap_or(0);
    tail.get(start..).unwrap_or(tail).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn roles(arguments: &Value) -> Vec<(ArgumentRole, String)> {
        let object = arguments.as_object().unwrap();
        let keys: Vec<&String> = object.keys().collect();
        Arguments::of(object)
            .texts()
            .iter()
            .filter(|text| !keys.iter().any(|key| **key == text.text))
            .map(|text| (text.role, text.text.clone().into_owned()))
            .collect()
    }

    #[test]
    fn a_value_is_a_path_by_its_key_or_a_leading_slash() {
        for key in ["path", "paths", "output_path", "filePath", "log-file", "directory", "Dir", "a.folder"] {
            assert_eq!(roles(&json!({ key: "x y" })), [(ArgumentRole::Path, "x y".to_owned())], "{key}");
        }
        for key in ["profile", "xpath", "mode", "url", ""] {
            assert_eq!(roles(&json!({ key: "x y" })), [(ArgumentRole::Other, "x y".to_owned())], "{key}");
            assert_eq!(roles(&json!({ key: "/x y" })), [(ArgumentRole::Path, "/x y".to_owned())], "{key}");
        }
        for key in ["content", "old_text", "newString", "pattern"] {
            assert_eq!(roles(&json!({ key: "// x" })), [(ArgumentRole::Content, "// x".to_owned())], "{key}");
        }
    }

    #[test]
    fn strings_in_lists_objects_and_keys_are_found() {
        assert_eq!(
            roles(&json!({ "args": ["rm", "-rf"] })),
            [
                (ArgumentRole::Joined, "rm -rf".to_owned()),
                (ArgumentRole::Other, "rm".to_owned()),
                (ArgumentRole::Other, "-rf".to_owned())
            ]
        );
        assert_eq!(
            roles(&json!({ "edits": [{ "paths": ["a"] }, { "/b": "c", "n": 1 }] })),
            [
                (ArgumentRole::Other, "paths".to_owned()),
                (ArgumentRole::Path, "a".to_owned()),
                (ArgumentRole::Path, "/b".to_owned()),
                (ArgumentRole::Other, "c".to_owned()),
                (ArgumentRole::Other, "n".to_owned())
            ]
        );
    }
}
