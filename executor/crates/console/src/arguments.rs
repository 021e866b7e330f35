//! The arguments of a call, as people read them.
//!
//! A text is shown as the text that it is: line by line with numbers, and with the colours of its language if that is
//! known. A character that nobody would see is shown as an escape in an element of its own, so it differs from the same
//! letters in the text. Lists and objects are shown part by part. What needs too many elements for that is shown as JSON.
//! Nothing is ever left out.

use super::page::{byte_size, counted, whole};
use super::syntax::{PartKind, Syntax};
use a2g_types::visible_text::{escape_invisible_lines, is_invisible};
use maud::{Markup, html};
use serde_json::{Map, Value};

/// Maximum size of the elements that show the arguments of one call part by part, without their texts, in bytes. A page
/// that another node of the fleet sends has to stay short.
const MAX_ELEMENT_BYTES: usize = 64 << 10;
/// Size of an element for a line, a coloured part, an escape or a value, in bytes.
const ELEMENT_BYTES: usize = 32;
/// Maximum number of lists and objects around a value that is shown part by part.
const MAX_DEPTH: usize = 4;
/// Maximum length of a text in one line that is shown without a frame of its own, in bytes.
const MAX_INLINE_BYTES: usize = 400;
/// The arguments that are programs, in tools whose names have a language.
const PROGRAM_NAMES: [&str; 5] = ["code", "program", "script", "source", "command"];

/// The arguments of a call of `tool`, which has this schema if it is known: first those that are short.
pub(super) fn arguments(tool: &str, schema: Option<&Value>, arguments: &Map<String, Value>) -> Markup {
    let mut renderer = Renderer { left: MAX_ELEMENT_BYTES, tool, schema, file: file_name(arguments) };
    let (short, long): (Vec<_>, Vec<_>) = arguments.iter().partition(|(_, value)| is_short(value));
    html! {
        @if arguments.is_empty() { p { "None." } }
        dl.arguments { @for (name, value) in short.into_iter().chain(long) { (renderer.named(name, value, 0)) } }
    }
}

/// The file that the arguments name, whose extension tells the language of a text beside it.
fn file_name(arguments: &Map<String, Value>) -> Option<&str> {
    ["path", "file", "output_path"].iter().find_map(|name| arguments.get(*name)?.as_str())
}

fn is_short(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => is_inline(text),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

fn is_inline(text: &str) -> bool {
    text.len() <= MAX_INLINE_BYTES && !text.contains('\n')
}

/// What a value is, for people.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(text) if text.is_empty() => "empty text".to_owned(),
        Value::String(text) if text.contains('\n') => {
            format!("text, {}", counted(text.lines().count(), "line"))
        }
        Value::String(text) if !is_inline(text) => format!("text, {}", byte_size(text.len() as u64)),
        Value::String(_) => "text".to_owned(),
        Value::Array(items) => format!("list of {}", counted(items.len(), "value")),
        Value::Object(members) => format!("object of {}", counted(members.len(), "value")),
    }
}

struct Renderer<'a> {
    /// The size of the elements that may still be made, in bytes.
    left: usize,
    tool: &'a str,
    schema: Option<&'a Value>,
    file: Option<&'a str>,
}

impl Renderer<'_> {
    /// Takes the size of `count` elements; `false` if so many may not be made.
    fn take(&mut self, count: usize) -> bool {
        let left = self.left.checked_sub(count.saturating_mul(ELEMENT_BYTES));
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// Takes the size of the parts of a text and of its `elements`, which are its lines and escapes. Returns the parts, or
    /// `None` if all of these together may not be made. No more parts are looked for then: a text may have one for every
    /// two bytes.
    fn take_parts<'t>(
        &mut self,
        syntax: &'static Syntax,
        text: &'t str,
        elements: usize,
    ) -> Option<Vec<(PartKind, &'t str)>> {
        let max = (self.left / ELEMENT_BYTES).checked_sub(elements)?;
        let parts = syntax.split(text).take(max + 1).collect::<Vec<_>>();
        self.take(elements + parts.len()).then_some(parts)
    }

    fn named(&mut self, name: &str, value: &Value, depth: usize) -> Markup {
        let is_shown_as_it_is = self.take(element_count(name));
        html! {
            dt {
                @if name.is_empty() { span.kind { "without a name" } }
                @if is_shown_as_it_is { (visible(name)) } @else { (whole(&Value::from(name).to_string())) }
                " " span.kind { (kind(value)) }
            }
            dd { (self.value(name, value, depth)) }
        }
    }

    fn value(&mut self, name: &str, value: &Value, depth: usize) -> Markup {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => html! { code.value { (value.to_string()) } },
            Value::String(text) => self.text(name, text),
            Value::Array(items) if items.is_empty() => html! {},
            Value::Object(members) if members.is_empty() => html! {},
            // The values of a list or an object: at least its names and kinds are elements.
            Value::Array(items) if depth < MAX_DEPTH && self.take(items.len().saturating_mul(2)) => html! {
                ol.arguments { @for item in items { li { span.kind { (kind(item)) } " " (self.value(name, item, depth + 1)) } } }
            },
            Value::Object(members) if depth < MAX_DEPTH && self.take(members.len().saturating_mul(4)) => {
                html! {
                    dl.arguments { @for (name, value) in members { (self.named(name, value, depth + 1)) } }
                }
            }
            Value::Array(_) | Value::Object(_) => as_json(value),
        }
    }

    fn text(&mut self, name: &str, text: &str) -> Markup {
        let syntax = self.find_syntax(name, text);
        let elements = element_count(text);
        if is_inline(text) && syntax.is_none() {
            if !self.take(elements) {
                return as_json(&text.into());
            }
            return html! { @if !text.is_empty() { code.value { (visible(text)) } } };
        }
        let coloured = syntax.and_then(|syntax| self.take_parts(syntax, text, elements));
        let plain = || self.take(elements).then(|| vec![(PartKind::Plain, text)]);
        let Some(parts) = coloured.or_else(plain) else { return as_json(&text.into()) };
        html! {
            pre.lines tabindex="0" {
                @for line in split_lines(&parts) {
                    span.l { @for (kind, part) in line {
                        @match kind.class() {
                            Some(class) => { span class=(class) { (visible(part)) } }
                            None => { (visible(part)) }
                        }
                    } }
                    "\n"
                }
            }
        }
    }

    /// The language of a text: that of its media type in the schema, of the tool for a program, or of the file beside it.
    fn find_syntax(&self, name: &str, text: &str) -> Option<&'static Syntax> {
        let property = self.schema.and_then(|schema| schema.get("properties")?.get(name));
        if let Some(media_type) = property.and_then(|property| property.get("contentMediaType")?.as_str()) {
            return Syntax::find(media_type);
        }
        if PROGRAM_NAMES.contains(&name) {
            return Syntax::find(self.tool);
        }
        let (_, extension) = self.file.filter(|_| text.contains('\n'))?.rsplit_once('.')?;
        Syntax::find(extension)
    }
}

/// Splits parts at line ends.
fn split_lines<'a>(parts: &[(PartKind, &'a str)]) -> Vec<Vec<(PartKind, &'a str)>> {
    let mut lines = vec![Vec::new()];
    for (kind, part) in parts {
        for (index, piece) in part.split('\n').enumerate() {
            if index > 0 {
                lines.push(Vec::new());
            }
            if let Some(line) = lines.last_mut().filter(|_| !piece.is_empty()) {
                line.push((*kind, piece));
            }
        }
    }
    lines
}

/// The number of elements for the lines and the escapes of a text.
fn element_count(text: &str) -> usize {
    1 + text.chars().filter(|c| is_invisible(*c) && *c != '\t').count()
}

/// A text with an element around each escape of a character that nobody sees.
fn visible(text: &str) -> Markup {
    html! {
        @for run in text.split_inclusive(is_invisible) {
            @match run.chars().next_back() {
                // A tab is as wide as it looks.
                Some(last) if is_invisible(last) && last != '\t' => {
                    (run.strip_suffix(last).unwrap_or_default())
                    span.escape { (last.escape_default().to_string()) }
                }
                Some(_) | None => { (run) }
            }
        }
    }
}

/// The JSON of a value that has too many parts. JSON doubles a backslash of the agent, so its own escapes differ from those
/// of this page.
fn as_json(value: &Value) -> Markup {
    html! { pre tabindex="0" { (escape_invisible_lines(&value.to_string())) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use html5gum::{Token, Tokenizer};
    use proptest::prelude::*;
    use serde_json::json;

    /// The elements of a rendering and the values of their attributes, in order, and the text as a person reads it.
    fn read(arguments: &Value) -> (Vec<String>, String) {
        let markup = super::arguments("run_python", None, arguments.as_object().unwrap()).0;
        let mut elements = Vec::new();
        let mut shown = String::new();
        for token in Tokenizer::new(&markup) {
            match token.unwrap() {
                Token::StartTag(tag) => {
                    let attributes = tag.attributes.iter().map(|(name, value)| {
                        let [name, value] =
                            [name.to_vec(), value.to_vec()].map(|text| String::from_utf8(text).unwrap());
                        format!(" {name}={value}")
                    });
                    elements.push(
                        String::from_utf8_lossy(&tag.name).into_owned() + &attributes.collect::<String>(),
                    );
                }
                Token::String(text) => shown.push_str(&String::from_utf8_lossy(&text)),
                Token::Comment(comment) => panic!("{comment:?}"),
                Token::EndTag(_) | Token::Doctype(_) | Token::Error(_) => {}
            }
        }
        (elements, shown)
    }

    const KNOWN: [&str; 17] = [
        "dl class=arguments",
        "ol class=arguments",
        "dt",
        "dd",
        "li",
        "code class=value",
        "pre tabindex=0",
        "pre class=lines tabindex=0",
        "span class=kind",
        "span class=escape",
        "span class=l",
        "span class=c",
        "span class=t",
        "span class=n",
        "span class=k",
        "p",
        "pre tabindex=0 class=lines",
    ];

    proptest! {
        #[test]
        fn every_text_is_shown_whole_and_makes_no_element(
            text in "(<script>|</pre>|\\\\u\\{202e\\}|&lt;|['\"#\n\t \u{202e}\u{0}\u{1b}a-z]){0,40}",
            name in "(code|path|x<b>)",
        ) {
            let shape = json!({ (name.clone()): text, "list": [{ "deep": text }] });
            let (elements, shown) = read(&shape);
            let unknown = elements.iter().find(|element| !KNOWN.contains(&element.as_str()));
            prop_assert_eq!(unknown, None);
            // As the page escapes it; a text in one line has its tabs, too.
            let expected = escape_invisible_lines(&text);
            prop_assert!(shown.matches(&expected).count() >= 2, "{:?} in {:?}", expected, shown);
            prop_assert!(shown.chars().all(|c| !is_invisible(c) || c == '\n' || c == '\t'));
        }
    }

    #[test]
    fn a_program_has_lines_and_colours() {
        let (elements, shown) =
            read(&json!({ "code": "import os\n\nprint('x') # y", "input": { "a": [1, true] } }));
        let count = |element: &str| elements.iter().filter(|one| *one == element).count();
        assert_eq!(["l", "k", "t", "c"].map(|class| count(&format!("span class={class}"))), [3, 1, 1, 1]);
        for part in ["text, 3 lines", "import os\n\nprint('x') # y", "object of 1 value", "list of 2 values"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        // Short values come first.
        assert!(shown.find("object").unwrap() > shown.find("code").unwrap());
        let (_, shown) = read(&json!({ "content": "a\nb", "path": "/workspace/a.txt" }));
        assert!(shown.find("/workspace/a.txt").unwrap() < shown.find("content").unwrap(), "{shown}");
    }

    /// An escape of the page is an element; the same letters in a text are not.
    #[test]
    fn an_escape_differs_from_its_letters() {
        for name in ["code", "x"] {
            let escapes = |text: &str| {
                let (elements, _) = read(&json!({ (name): text }));
                elements.iter().filter(|element| *element == "span class=escape").count()
            };
            assert_eq!((escapes("a\u{202e}b"), escapes("a\\u{202e}b")), (1, 0), "{name}");
        }
    }

    #[test]
    fn what_needs_too_many_elements_is_shown_as_json() {
        let mut deep = json!("end");
        for _ in 0..50 {
            deep = json!([deep]);
        }
        let texts = [
            json!("\n".repeat(300_000)),
            json!("\u{1}a".repeat(100_000)),
            json!("'a' ".repeat(100_000)),
            json!(vec![0; 100_000]),
            json!({ "\n".repeat(100_000): 1 }),
            deep,
        ];
        for value in texts {
            let arguments = json!({ "code": value });
            let markup = super::arguments("run_python", None, arguments.as_object().unwrap()).0;
            let max = 7 * arguments.to_string().len() + MAX_ELEMENT_BYTES * 2;
            assert!(markup.len() < max, "{} of {max}", markup.len());
            assert!(read(&arguments).1.len() >= arguments.to_string().len() / 2);
        }
    }
}
