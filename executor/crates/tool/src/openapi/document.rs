//! An OpenAPI document: read within limits, and references followed inside it.

use super::uri::decode;
use a2g_command::output::one_line;
use a2g_types::ident::excerpt;
use a2g_types::visible_text::is_invisible;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The maximum size of a document, in bytes.
const MAX_BYTES: u64 = 5 << 20;
/// The maximum nesting of a document in YAML. JSON has the limit of its parser, 128.
const MAX_DEPTH: usize = 64;
/// The maximum number of values of a document in YAML.
const MAX_NODES: usize = 2_000_000;
/// The maximum number of values that its aliases add.
const MAX_ALIASED_NODES: usize = 200_000;
/// The maximum number of references between an object and what it stands for.
const MAX_REFERENCES: usize = 16;

/// The versions of OpenAPI that differ in their schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 3.0: its schemas are not quite JSON Schema.
    V30,
    /// 3.1: its schemas are JSON Schema 2020-12.
    V31,
}

/// A document.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: Value,
    pub(crate) version: Version,
}

impl Document {
    /// Reads a document in YAML or JSON.
    ///
    /// # Errors
    /// If it is too large, neither YAML nor JSON, or not of a version that is known here.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let mut bytes = Vec::new();
        let file = File::open(path).with_context(|| format!("`{name}` cannot be read"))?;
        file.take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .with_context(|| format!("`{name}` cannot be read"))?;
        if bytes.len() as u64 > MAX_BYTES {
            bail!(
                "`{name}` has more than {} MiB, which is the most that is read: leave out operations that you do not need",
                MAX_BYTES >> 20
            );
        }
        let text = String::from_utf8(bytes).with_context(|| format!("`{name}` is not UTF-8"))?;
        Self::parse(&text).with_context(|| format!("`{name}` cannot be used"))
    }

    /// Parses the text of a document.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let text = text.trim_start_matches('\u{feff}');
        let root = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).context("it is not JSON")?
        } else {
            parse_yaml(text)?
        };
        let version = match text_member(&root, "openapi") {
            Some(version) if version.starts_with("3.0") => Version::V30,
            Some(version) if version.starts_with("3.1") => Version::V31,
            Some(version) => {
                bail!("its version of OpenAPI is {}, and 3.0 and 3.1 are known here", excerpt(version))
            }
            None if root.get("swagger").is_some() => {
                bail!(
                    "it is Swagger 2.0: convert it to OpenAPI 3 first, as Swagger's editor and `swagger2openapi` do"
                )
            }
            None => bail!("it has no member `openapi`, so it is no OpenAPI document"),
        };
        Ok(Self { root, version })
    }

    /// The object that this one is, or refers to.
    ///
    /// # Errors
    /// If a reference leads outside of the document, to nothing, or in a circle.
    pub(crate) fn resolve<'a>(&'a self, object: &'a Value) -> anyhow::Result<&'a Value> {
        let mut object = object;
        for _ in 0..MAX_REFERENCES {
            match text_member(object, "$ref") {
                Some(reference) => object = self.target(reference)?,
                None => return Ok(object),
            }
        }
        bail!("more than {MAX_REFERENCES} references (`$ref`) follow each other, perhaps in a circle")
    }

    /// The value that a reference names.
    ///
    /// # Errors
    /// If it leads outside of the document, or to nothing.
    pub(crate) fn target(&self, reference: &str) -> anyhow::Result<&Value> {
        let shown = excerpt(reference);
        let Some(pointer) = reference.strip_prefix('#') else {
            bail!(
                "`$ref: {shown}` leads outside of the document, and nothing else is read: make one document of them \
                 first, for example with `redocly bundle`"
            )
        };
        let found = self.root.pointer(pointer).or_else(|| self.root.pointer(&decode(pointer)));
        found.with_context(|| format!("`$ref: {shown}` leads to nothing"))
    }
}

fn parse_yaml(text: &str) -> anyhow::Result<Value> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_documents: 1,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_NODES },
        // As in JSON: `on`, `yes` and `no` are texts.
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(value) => Ok(value),
        Err(error) => bail!("it is not YAML, or exceeds a limit: {}", one_line(error)),
    }
}

/// The member of an object, if it is a text.
pub(crate) fn text_member<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get(name)?.as_str()
}

/// The members of the object that a member is; none if it is no object.
pub(crate) fn object_member<'a>(
    object: &'a Value,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object.get(name).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The items of the list that a member is; none if it is no list.
pub(crate) fn list_member<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A text of the document on one line, without characters that a person could not see, cut to so many characters.
pub(crate) fn clean(text: &str, max_chars: usize) -> String {
    let visible = text.chars().map(|letter| if letter.is_whitespace() { ' ' } else { letter });
    let words = visible.filter(|letter| !is_invisible(*letter)).collect::<String>();
    let joined = words.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", joined.get(..end).unwrap_or_default().trim_end()),
        None => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fmt::Write as _;

    fn error(text: &str) -> String {
        format!("{:#}", Document::parse(text).unwrap_err())
    }

    #[test]
    fn yaml_and_json_of_both_versions_are_read() {
        let yaml =
            "openapi: 3.0.3\npaths:\n  /a:\n    get:\n      responses:\n        200: {description: on}\n";
        let document = Document::parse(yaml).unwrap();
        assert_eq!(document.version, Version::V30);
        assert_eq!(document.root["paths"]["/a"]["get"]["responses"]["200"]["description"], "on");
        assert_eq!(Document::parse("\u{feff} {\"openapi\":\"3.1.0\"}").unwrap().version, Version::V31);
        for (text, words) in [
            ("swagger: '2.0'", "Swagger 2.0"),
            ("openapi: 4.0.0", "4.0.0"),
            ("info: {}", "no member `openapi`"),
            ("{\"openapi\":", "not JSON"),
            ("a: [", "not YAML"),
            ("openapi: 3.0.0\n---\nopenapi: 3.0.0", "not YAML"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }

    #[test]
    fn aliases_and_nesting_are_bounded() {
        let mut laughs = "openapi: 3.0.0\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let items = vec![format!("*a{}", level - 1); 10].join(", ");
            writeln!(laughs, "a{level}: &a{level} [{items}]").unwrap();
        }
        assert!(error(&laughs).contains("not YAML"), "{}", error(&laughs));
        let flow = format!("openapi: 3.0.0\na: {}{}", "[".repeat(5000), "]".repeat(5000));
        let block =
            (0..500).fold("openapi: 3.0.0\n".to_owned(), |text, depth| text + &" ".repeat(depth) + "a:\n");
        for deep in [flow, block, format!("{{\"openapi\":\"3.0.0\",\"a\":{}1", "[".repeat(5000))] {
            assert!(error(&deep).contains("not "), "{}", error(&deep));
        }
        let used = "openapi: 3.0.0\na: &a {b: 1}\nc: *a\n";
        assert_eq!(Document::parse(used).unwrap().root["c"], json!({ "b": 1 }));
    }

    #[test]
    fn references_stay_in_the_document() {
        let text = json!({
            "openapi": "3.0.0", "a~/b": { "x": 1 }, "one": { "$ref": "#/two" }, "two": { "$ref": "#/one" },
            "good": { "$ref": "#/a~0~1b" }, "coded": { "$ref": "#/a%7E0%7E1b" },
        });
        let document = Document::parse(&text.to_string()).unwrap();
        for name in ["good", "coded"] {
            assert_eq!(document.resolve(&document.root[name]).unwrap(), &json!({ "x": 1 }), "{name}");
        }
        let circle = document.resolve(&document.root["one"]).unwrap_err().to_string();
        assert!(circle.contains("circle"), "{circle}");
        for reference in ["other.yaml#/a", "https://evil.example/x", "/etc/passwd", "file:///etc/passwd", ""]
        {
            let error = document.target(reference).unwrap_err().to_string();
            assert!(error.contains("leads outside"), "{error}");
        }
        assert!(document.target("#/missing").unwrap_err().to_string().contains("leads to nothing"));
    }

    #[test]
    fn texts_are_on_one_line_and_cut() {
        assert_eq!(clean("  a\r\n\tb\u{202e}c\u{1b}[2J ", 100), "a bc[2J");
        assert_eq!(clean("äöü x", 3), "äöü…");
    }
}
