//! Changes of TOML texts. The result is parsed again: it has to be the table of before with this one change.

use super::{indent_at, splice};
use std::ops::Range;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// The text with the value of a key, given by its parts. `value` is TOML. `None` if the text is not TOML, or
/// has the tables of the key in a form that is not changed here, such as `a.b = 1`.
pub(crate) fn set(text: &str, key: &[&str], value: &str) -> Option<String> {
    let (name, tables) = key.split_last()?;
    let document = DeTable::parse(text).ok()?;
    let changed = match descend(document.get_ref(), tables)? {
        Place::Table { span, table } => match find(table, name) {
            Some(old) => splice(text, old.span(), value)?,
            // A table that has only sections below it may get its own; one of dotted keys may not, which is
            // found out below.
            None => {
                let pair = pair(name, value);
                insert(text, span, &pair).unwrap_or_else(|| append(text, tables, &pair))
            }
        },
        Place::Absent { span, missing } => match span.filter(|span| is_inline(text, span)) {
            Some(span) => insert(text, Some(span), &nested(missing, name, value)?)?,
            None => append(text, tables, &pair(name, value)),
        },
    };
    checked(text, changed, key, parse_value(value)?)
}

/// The text with one more value at the end of the list of a key, which is made if there is none. `item` is
/// TOML.
pub(crate) fn push(text: &str, key: &[&str], item: &str) -> Option<String> {
    let (name, tables) = key.split_last()?;
    let document = DeTable::parse(text).ok()?;
    let list = match descend(document.get_ref(), tables)? {
        Place::Table { span: _, table } => find(table, name),
        Place::Absent { .. } => None,
    };
    let Some(list) = list else { return set(text, key, &format!("[{item}]")) };
    let DeValue::Array(items) = list.get_ref() else { return None };
    let changed = match items.last() {
        None => splice(text, list.span(), &format!("[{item}]"))?,
        Some(last) => {
            let end = last.span().end;
            let rest = text.get(end..list.span().end)?;
            match rest.find('\n') {
                None => splice(text, end..end, &format!(", {item}"))?,
                Some(line_end) => {
                    let has_comma = rest.trim_start().starts_with(',');
                    let [after_last, after_item] = if has_comma { ["", ","] } else { [",", ""] };
                    let line = rest.get(..line_end)?.trim_end_matches('\r');
                    let indent = indent_at(text, last.span().start)?;
                    let new = format!("{after_last}{line}\n{indent}{item}{after_item}");
                    splice(text, end..end + line.len(), &new)?
                }
            }
        }
    };
    let mut values = value_of(&text.parse::<Table>().ok()?, key)?.as_array()?.clone();
    values.push(parse_value(item)?);
    checked(text, changed, key, Value::Array(values))
}

/// A TOML string with this text, which has neither control characters nor quotes.
pub(crate) fn string(text: &str) -> String {
    format!("\"{text}\"")
}

/// The place of a key.
enum Place<'a, 'i> {
    /// The table that has it, or is to have it, with its span; no span for the root.
    Table { span: Option<Range<usize>>, table: &'a DeTable<'i> },
    /// There is no such table: the span of the last one that there is, and the names of those below.
    Absent { span: Option<Range<usize>>, missing: &'a [&'a str] },
}

/// Finds a table by the parts of its name. `None` if one of them is no table.
fn descend<'a, 'i>(root: &'a DeTable<'i>, tables: &'a [&'a str]) -> Option<Place<'a, 'i>> {
    let mut table = root;
    let mut span = None;
    for (depth, name) in tables.iter().enumerate() {
        let Some(inner) = find(table, name) else {
            return Some(Place::Absent { span, missing: tables.get(depth..)? });
        };
        table = inner.get_ref().as_table()?;
        span = Some(inner.span());
    }
    Some(Place::Table { span, table })
}

fn find<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| **key.get_ref() == *name).map(|(_, value)| value)
}

/// `true` for a table in braces. The span of any other table is its header, or a key.
fn is_inline(text: &str, span: &Range<usize>) -> bool {
    text.get(span.clone()).is_some_and(|table| table.starts_with('{'))
}

/// Inserts a pair at the beginning of a table. `None` for a table that has neither braces nor a header.
fn insert(text: &str, span: Option<Range<usize>>, pair: &str) -> Option<String> {
    let Some(span) = span else { return splice(text, 0..0, &format!("{pair}\n")) };
    let table = text.get(span.clone())?;
    if let Some(members) = table.strip_prefix('{') {
        let at = span.start + 1;
        let is_empty = members.trim_end_matches('}').trim().is_empty();
        return splice(text, at..at, &if is_empty { format!(" {pair} ") } else { format!(" {pair},") });
    }
    if !table.starts_with('[') {
        return None;
    }
    let rest = text.get(span.end..)?;
    let at = span.end + rest.find('\n').unwrap_or(rest.len());
    splice(text, at..at, &format!("\n{pair}"))
}

/// Appends a section with one pair.
fn append(text: &str, tables: &[&str], pair: &str) -> String {
    let header = tables.iter().map(|name| quote_key(name)).collect::<Vec<_>>().join(".");
    let gap = if text.is_empty() {
        ""
    } else if text.ends_with('\n') {
        "\n"
    } else {
        "\n\n"
    };
    format!("{text}{gap}[{header}]\n{pair}\n")
}

/// A pair whose value are the missing tables in braces, around the pair of `name`.
fn nested(missing: &[&str], name: &str, value: &str) -> Option<String> {
    let (first, others) = missing.split_first()?;
    let inner =
        others.iter().rev().fold(pair(name, value), |inner, table| pair(table, &format!("{{ {inner} }}")));
    Some(pair(first, &format!("{{ {inner} }}")))
}

fn pair(name: &str, value: &str) -> String {
    format!("{} = {value}", quote_key(name))
}

fn quote_key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !name.is_empty() && name.bytes().all(is_bare) { name.to_owned() } else { string(name) }
}

fn parse_value(value: &str) -> Option<Value> {
    pair("v", value).parse::<Table>().ok()?.remove("v")
}

fn value_of<'a>(table: &'a Table, key: &[&str]) -> Option<&'a Value> {
    let (name, tables) = key.split_last()?;
    tables.iter().try_fold(table, |table, part| table.get(*part)?.as_table())?.get(*name)
}

/// The changed text, if it is the table of `text` with this value of the key.
fn checked(text: &str, changed: String, key: &[&str], value: Value) -> Option<String> {
    let mut expected = text.parse::<Table>().ok()?;
    let (name, tables) = key.split_last()?;
    let mut table = &mut expected;
    for part in tables {
        let inner = table.entry(*part).or_insert_with(|| Value::Table(Table::new()));
        table = inner.as_table_mut()?;
    }
    table.insert((*name).to_owned(), value);
    (changed.parse::<Table>().ok()? == expected).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_set_and_all_else_stays() {
        for (text, expected) in [
            ("", "[a]\nk = true\n"),
            ("# why\nx = 1", "# why\nx = 1\n\n[a]\nk = true\n"),
            ("[a]\nk = false # off\n", "[a]\nk = true # off\n"),
            ("[a]\n\"k\"=false\n", "[a]\n\"k\"=true\n"),
            ("[a] # why\n# k = false\nb = 1\n[b]\n", "[a] # why\nk = true\n# k = false\nb = 1\n[b]\n"),
            ("[a]", "[a]\nk = true"),
            ("[a]\r\nb = 1\r\n", "[a]\r\nk = true\nb = 1\r\n"),
            ("[a.b]\nx = 1\n", "[a.b]\nx = 1\n\n[a]\nk = true\n"),
            ("a = { k = false, b = 1 }\n", "a = { k = true, b = 1 }\n"),
            ("a = { b = 1 }\n", "a = { k = true, b = 1 }\n"),
            ("a = {}\n", "a = { k = true }\n"),
            ("a.k = false\n", "a.k = true\n"),
        ] {
            assert_eq!(set(text, &["a", "k"], "true").as_deref(), Some(expected), "{text:?}");
        }
        for text in ["a.b = 1\n", "a = 1\n", "[a\n", "[[a]]\n"] {
            assert_eq!(set(text, &["a", "k"], "true"), None, "{text:?}");
        }
        let set_deep = |text| set(text, &["a", "b", "x.y"], "[]");
        assert_eq!(set_deep("[a]\nk = 1\n").as_deref(), Some("[a]\nk = 1\n\n[a.b]\n\"x.y\" = []\n"));
        assert_eq!(set_deep("a = { k = 1 }\n").as_deref(), Some("a = { b = { \"x.y\" = [] }, k = 1 }\n"));
    }

    #[test]
    fn a_list_gets_one_more_value_and_keeps_its_comments() {
        for (list, expected) in [
            ("[]", "[\"c\"]"),
            ("[ \"a\" ]", "[ \"a\", \"c\" ]"),
            ("[\"a\", \"b\"]  # few", "[\"a\", \"b\", \"c\"]  # few"),
            ("[\"a\",]", "[\"a\", \"c\",]"),
            ("[\n  \"a\", # one\n  \"b\", # two\n]", "[\n  \"a\", # one\n  \"b\", # two\n  \"c\",\n]"),
            ("[\n\t\"a\", # one\n\t\"b\" # two\n]", "[\n\t\"a\", # one\n\t\"b\", # two\n\t\"c\"\n]"),
        ] {
            let text = format!("[n]\nk = {list}\nz = 1\n");
            let pushed = push(&text, &["n", "k"], &string("c"));
            assert_eq!(pushed, Some(format!("[n]\nk = {expected}\nz = 1\n")), "{list}");
        }
        assert_eq!(push("", &["n", "t", "x"], "1").as_deref(), Some("[n.t]\nx = [1]\n"));
        assert_eq!(push("[n]\nk = 1\n", &["n", "k"], "1"), None);
        let odd = push("k = [1 # one\n, ]\n", &["k"], "2");
        assert_eq!(odd.as_deref(), Some("k = [1, # one\n2\n, ]\n"));
    }
}
