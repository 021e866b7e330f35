//! Checks every message body before other code reads it: RFC 8259 without its ambiguities.
//!
//! A body that passes this check has one interpretation. It is UTF-8 without a byte order mark, is one JSON value,
//! contains no object with two equal keys (compared unescaped, so `"a"` and `"\u0061"` are the same key) and no lone
//! surrogate, and exceeds neither the maximum size nor the maximum depth. Two parsers therefore cannot disagree about a
//! governor's grant.
//!
//! The check makes one pass without recursion, stores only the keys of the objects that are currently open, and counts
//! the memory that the value would take as a tree. Only the grammar of numbers is checked: `1e309` is JSON, which the
//! field's decoder refuses with a pointer to the field. If no decoder follows ([`check_finite`]), the check itself
//! refuses such a number.
// This is not a visitor of serde_json, whose parser recurses, and refuses `1e309` without the pointer to the field.

use crate::fault::Fault;
use crate::ident::excerpt;
use std::borrow::Cow;
use std::collections::HashSet;

/// The maximum size and depth of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonBounds {
    /// Maximum size of a body in bytes.
    pub max_bytes: usize,
    /// Maximum nesting depth of objects and arrays. Values over 120 have no effect on the decoders, because
    /// `serde_json` stops at 128.
    pub max_depth: usize,
    /// Maximum size in bytes of the body as a tree, as estimated by this check.
    pub max_tree_bytes: usize,
}

/// Memory of a value in a growing list of values: `serde_json::Value` is 72 bytes, and the capacity of a list is up to
/// twice its length.
const VALUE_BYTES: usize = 110;
/// Memory of an object with one member, and with capacity for three more.
const OBJECT_BYTES: usize = 500;

/// Number of copies of the text of a running call: unmodified, as values, and as passed to the guest, with spare
/// capacity.
const TEXT_COPIES: usize = 5;

impl JsonBounds {
    /// The fault for a body that was not read to its end, because it was too long.
    #[must_use]
    pub fn too_long_fault(&self) -> Fault {
        Fault::Parse(format!("the message is longer than {} bytes", self.max_bytes))
    }
}

impl Default for JsonBounds {
    /// 1 MiB, 64 levels, and 64 MiB as a tree.
    fn default() -> Self {
        Self { max_bytes: 1 << 20, max_depth: 64, max_tree_bytes: 64 << 20 }
    }
}

/// Checks a body and returns it as text.
///
/// # Errors
/// [`Fault::Parse`] with the problem and its line and column.
pub fn check<'a>(body: &'a [u8], bounds: &JsonBounds) -> Result<&'a str, Fault> {
    scan(body, bounds, false)
}

/// Like [`check`], for a value that no decoder checks: also refuses numbers that a double cannot represent, because
/// parsers of the enclosing message may reject them.
///
/// # Errors
/// As [`check`].
pub fn check_finite<'a>(body: &'a [u8], bounds: &JsonBounds) -> Result<&'a str, Fault> {
    scan(body, bounds, true)
}

/// Removes the white space between the tokens of a JSON text that has passed [`check`].
#[must_use]
pub fn compact(text: &str) -> Cow<'_, str> {
    let mut compacted = String::new();
    let mut start = 0;
    let mut at = 0;
    let mut is_in_string = false;
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => is_in_string = !is_in_string,
            // An escaped character does not end the string.
            b'\\' => at += 1,
            b' ' | b'\t' | b'\n' | b'\r' if !is_in_string => {
                compacted.push_str(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _other => {}
        }
        at += 1;
    }
    if start == 0 {
        return Cow::Borrowed(text);
    }
    compacted.push_str(text.get(start..).unwrap_or_default());
    Cow::Owned(compacted)
}

/// Memory in bytes of a message while it is processed: its values, as counted by [`check`], and the copies of its text.
/// The message need not be valid.
#[must_use]
pub fn tree_bytes(body: &[u8]) -> u64 {
    let mut bytes = VALUE_BYTES;
    let mut is_in_string = false;
    let mut is_escaped = false;
    for byte in body {
        match byte {
            _escaped if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            _inside if is_in_string => {}
            b'{' => bytes += OBJECT_BYTES,
            b'[' | b',' | b':' => bytes += VALUE_BYTES,
            _other => {}
        }
    }
    text_bytes(body.len()).saturating_add(bytes as u64)
}

/// The part of [`tree_bytes`] that a message's length alone determines.
#[must_use]
pub fn text_bytes(length: usize) -> u64 {
    length.saturating_mul(TEXT_COPIES) as u64
}

fn scan<'a>(body: &'a [u8], bounds: &JsonBounds, is_finite: bool) -> Result<&'a str, Fault> {
    if body.len() > bounds.max_bytes {
        let bytes = body.len();
        let max_bytes = bounds.max_bytes;
        return Err(Fault::Parse(format!("the body has {bytes} bytes, and the maximum is {max_bytes}")));
    }
    let text = std::str::from_utf8(body)
        .map_err(|error| Fault::Parse(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    let max_depth = bounds.max_depth;
    let max_tree_bytes = bounds.max_tree_bytes;
    let mut scanner = Scanner {
        text,
        at: 0,
        keys: OpenKeys::default(),
        max_depth,
        is_finite,
        tree_bytes: 0,
        max_tree_bytes,
    };
    match scanner.scan_document() {
        Ok(()) => Ok(text),
        Err(refusal) => Err(Fault::Parse(refusal.message(text))),
    }
}

/// The problem with a refused text, and the problem's byte offset in the text.
struct SyntaxError {
    at: usize,
    problem: Cow<'static, str>,
}

impl SyntaxError {
    fn message(&self, text: &str) -> String {
        let before = text.get(..self.at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("{} at line {line} column {column}", self.problem)
    }
}

/// An open container, with its keys so far.
enum OpenContainer<'a> {
    Array,
    /// The keys are in [`OpenKeys::list`] from `first` on or, if there are many, in `set`.
    Object {
        first: usize,
        set: Option<HashSet<Cow<'a, str>>>,
    },
}

/// The keys of all open objects. Small objects share one list.
#[derive(Default)]
struct OpenKeys<'a> {
    list: Vec<Cow<'a, str>>,
    open: Vec<OpenContainer<'a>>,
}

impl<'a> OpenKeys<'a> {
    /// Maximum number of keys of an object in the list: the total cost of searching a list is quadratic.
    const MAX_LIST_KEYS: usize = 16;

    fn open_object(&mut self) {
        self.open.push(OpenContainer::Object { first: self.list.len(), set: None });
    }

    /// Closes the innermost container and drops its keys.
    fn close(&mut self) {
        if let Some(OpenContainer::Object { first, .. }) = self.open.pop() {
            self.list.truncate(first);
        }
    }

    /// Adds a key of the innermost object; `false` if the object already has the key.
    fn insert(&mut self, key: Cow<'a, str>) -> bool {
        let Some(OpenContainer::Object { first, set }) = self.open.last_mut() else { return true };
        if let Some(set) = set {
            return set.insert(key);
        }
        let keys = self.list.get(*first..).unwrap_or_default();
        if keys.contains(&key) {
            return false;
        }
        let is_full = keys.len() >= Self::MAX_LIST_KEYS;
        self.list.push(key);
        if is_full {
            *set = Some(self.list.drain(*first..).collect());
        }
        true
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    keys: OpenKeys<'a>,
    max_depth: usize,
    is_finite: bool,
    tree_bytes: usize,
    max_tree_bytes: usize,
}

impl<'a> Scanner<'a> {
    /// Checks one value, and that nothing follows it.
    fn scan_document(&mut self) -> Result<(), SyntaxError> {
        loop {
            if self.scan_value_or_opening()? {
                continue;
            }
            if self.scan_after_value()? {
                return Ok(());
            }
        }
    }

    /// Reads a whole scalar or empty container (`false`), or opens a container and stops before its first value
    /// (`true`).
    fn scan_value_or_opening(&mut self) -> Result<bool, SyntaxError> {
        self.skip_space();
        self.charge(VALUE_BYTES)?;
        match self.peek() {
            Some(b'{') => {
                self.open_container()?;
                self.keys.open_object();
                self.scan_first_member(b'}')
            }
            Some(b'[') => {
                self.open_container()?;
                self.keys.open.push(OpenContainer::Array);
                self.scan_first_member(b']')
            }
            Some(b'"') => self.scan_string().map(|_| false),
            Some(b'-' | b'0'..=b'9') => self.scan_number().map(|()| false),
            Some(b't') => self.scan_literal("true"),
            Some(b'f') => self.scan_literal("false"),
            Some(b'n') => self.scan_literal("null"),
            Some(_) | None => Err(self.expected_error("a value")),
        }
    }

    /// Counts `bytes` of the memory that the value would take as a tree; fails beyond the maximum.
    fn charge(&mut self, bytes: usize) -> Result<(), SyntaxError> {
        self.tree_bytes = self.tree_bytes.saturating_add(bytes);
        if self.tree_bytes > self.max_tree_bytes {
            let max_mb = self.max_tree_bytes >> 20;
            let problem = format!("the parsed body would take more than {max_mb} MB of memory");
            return Err(SyntaxError { at: self.at, problem: problem.into() });
        }
        Ok(())
    }

    /// Counts one level of depth and skips the bracket.
    fn open_container(&mut self) -> Result<(), SyntaxError> {
        if self.keys.open.len() >= self.max_depth {
            let problem = format!("nested deeper than {} levels", self.max_depth);
            return Err(SyntaxError { at: self.at, problem: problem.into() });
        }
        self.at += 1;
        Ok(())
    }

    /// Called after an opening bracket: an empty container ends here, and an object starts with a key.
    fn scan_first_member(&mut self, closing: u8) -> Result<bool, SyntaxError> {
        self.skip_space();
        if self.eat(closing) {
            self.keys.close();
            return Ok(false);
        }
        if closing == b'}' {
            self.charge(OBJECT_BYTES)?;
            self.scan_key()?;
        }
        Ok(true)
    }

    /// Called after a value: closes the containers that end here. `true` at the end of the body, `false` if another
    /// value has to follow.
    fn scan_after_value(&mut self) -> Result<bool, SyntaxError> {
        loop {
            self.skip_space();
            match (self.keys.open.last(), self.peek()) {
                (None, None) => return Ok(true),
                (None, Some(_)) => return Err(self.expected_error("nothing after the value")),
                (Some(OpenContainer::Object { .. }), Some(b',')) => {
                    self.at += 1;
                    self.skip_space();
                    return self.scan_key().map(|()| false);
                }
                (Some(OpenContainer::Array), Some(b',')) => {
                    self.at += 1;
                    return Ok(false);
                }
                (Some(OpenContainer::Object { .. }), Some(b'}'))
                | (Some(OpenContainer::Array), Some(b']')) => {
                    self.at += 1;
                    self.keys.close();
                }
                (Some(OpenContainer::Object { .. }), _) => return Err(self.expected_error("`,` or `}`")),
                (Some(OpenContainer::Array), _) => return Err(self.expected_error("`,` or `]`")),
            }
        }
    }

    /// Reads a key of the innermost object and the colon after it.
    fn scan_key(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.expected_error("a key in double quotes"));
        }
        let has_escape = self.scan_string()?;
        let quoted = self.text.get(start..self.at).unwrap_or_default();
        let key: Cow<'a, str> = if has_escape {
            // The decoders unescape in the same way, so they and this check see the same key.
            serde_json::from_str::<String>(quoted)
                .map_err(|_| SyntaxError { at: start, problem: "not JSON: an invalid key".into() })?
                .into()
        } else {
            quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().into()
        };
        let text = key.clone();
        if !self.keys.insert(key) {
            return Err(SyntaxError {
                at: start,
                problem: format!("duplicate key `{}`", excerpt(&text)).into(),
            });
        }
        self.skip_space();
        if self.eat(b':') { Ok(()) } else { Err(self.expected_error("`:`")) }
    }

    /// Reads a string in double quotes. Returns `true` if it contains an escape.
    fn scan_string(&mut self) -> Result<bool, SyntaxError> {
        let start = self.at;
        let has_escape = self.scan_to_end_of_string()?;
        self.charge(self.at - start)?;
        Ok(has_escape)
    }

    fn scan_to_end_of_string(&mut self) -> Result<bool, SyntaxError> {
        self.at += 1;
        let mut has_escape = false;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let stop = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1f));
            self.at += stop.unwrap_or(rest.len());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(has_escape);
                }
                Some(b'\\') => {
                    has_escape = true;
                    self.scan_escape()?;
                }
                Some(_) => return Err(self.expected_error("no control character in a string")),
                None => return Err(self.expected_error("the end of a string")),
            }
        }
    }

    fn scan_escape(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => {
                self.at += 1;
                match self.scan_four_hex_digits()? {
                    0xD800..=0xDBFF if self.eat(b'\\') && self.eat(b'u') => {
                        match self.scan_four_hex_digits()? {
                            0xDC00..=0xDFFF => Ok(()),
                            _ => Err(Self::lone_surrogate_error(start)),
                        }
                    }
                    0xD800..=0xDFFF => Err(Self::lone_surrogate_error(start)),
                    _ => Ok(()),
                }
            }
            Some(_) | None => Err(self.expected_error("a JSON escape")),
        }
    }

    fn lone_surrogate_error(at: usize) -> SyntaxError {
        SyntaxError { at, problem: "a lone surrogate, which is no character,".into() }
    }

    fn scan_four_hex_digits(&mut self) -> Result<u32, SyntaxError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|b| char::from(b).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.expected_error("four hexadecimal digits"))?;
            self.at += 1;
        }
        Ok(code)
    }

    /// Checks a number's grammar and, if no decoder follows, its magnitude.
    fn scan_number(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        self.scan_digits_and_signs()?;
        let number = self.text.get(start..self.at).unwrap_or_default();
        if self.is_finite && !number.parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(SyntaxError { at: start, problem: "a number beyond the range of a double".into() });
        }
        Ok(())
    }

    fn scan_digits_and_signs(&mut self) -> Result<(), SyntaxError> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.scan_digits()?;
        }
        if self.eat(b'.') {
            self.scan_digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.scan_digits()?;
        }
        Ok(())
    }

    fn scan_digits(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.expected_error("a digit")) }
    }

    fn scan_literal(&mut self, literal: &'static str) -> Result<bool, SyntaxError> {
        if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(literal)) {
            self.at += literal.len();
            Ok(false)
        } else {
            Err(self.expected_error("a value"))
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expected_error(&self, expected: &str) -> SyntaxError {
        SyntaxError { at: self.at, problem: format!("not JSON: expected {expected}").into() }
    }
}

#[cfg(test)]
mod tests;
