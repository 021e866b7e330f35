//! The listing `code`: a list of tools offers only the interpreters and `describe_tools`, which describes the other
//! tools as typed stubs.
//!
//! A model reads every definition in a list before its first call. With this listing there are three, and the model
//! asks for the tools that it needs. The limits below keep such a list, an overview and an answer together under 2,000
//! tokens, at 3.5 bytes per token.

use crate::stubs::{self, Language, Stub};
use a2g_types::tool::Descriptor;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use strum::{IntoStaticStr, VariantArray};

/// The name of the request for descriptions, which looks like a tool to a host.
pub const DESCRIBE_TOOLS: &str = "describe_tools";
/// The tools that run programs, with the languages of the programs.
const INTERPRETERS: [(&str, Language); 2] =
    [("run_javascript", Language::Javascript), ("run_python", Language::Python)];

/// Maximum length of a query, in bytes.
pub const MAX_QUERY_BYTES: usize = 1_000;
/// Maximum number of words of a query. Further words are ignored.
const MAX_QUERY_WORDS: usize = 32;
// An overview and a search follow each other in one conversation, so they are short; a description of named tools is
// what a model has chosen to read.
/// Maximum length of the overview of all tools, in bytes.
pub const MAX_OVERVIEW_BYTES: usize = 1_700;
/// Maximum length of an answer to a query of words, in bytes.
pub const MAX_SEARCH_BYTES: usize = 2_800;
/// Maximum length of an answer to a query of names, in bytes.
pub const MAX_NAMED_BYTES: usize = 6_000;
/// The bytes of an overview that are kept for the text around its lists.
const OVERVIEW_WORDS_BYTES: usize = 60;
/// The bytes of an answer that are kept for the names of tools that it does not describe.
const NAMES_BYTES: usize = 500;
/// Maximum number of tools whose stubs are compared by length for one answer.
const MAX_COMPARED: usize = 48;
/// Minimum number of tools in an answer that cannot have all of them in full.
const MIN_CHOICE: usize = 4;
/// Maximum length of the beginning of a tool's description that is searched, in bytes.
const MAX_SEARCHED_BYTES: usize = 1_000;
/// The words that say nothing about a tool.
const STOP_WORDS: [&str; 16] =
    ["a", "an", "and", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "to", "tool", "with"];

/// The form in which a list offers the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Listing {
    /// Every tool with its schemas.
    #[default]
    Tools,
    /// The interpreters, and descriptions on request.
    Code,
}

impl Listing {
    /// The name in configurations and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Returns `true` for a tool that runs programs.
#[must_use]
pub fn is_interpreter(tool: &Descriptor) -> bool {
    INTERPRETERS.iter().any(|(name, _)| *name == tool.name.as_str())
}

/// A request for the descriptions of tools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DescribeRequest {
    /// Words, or names of tools; empty for an overview.
    pub query: String,
    /// The language of the stubs; `None` for that of the first interpreter.
    pub language: Option<Language>,
}

/// The answer to a [`DescribeRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ToolStubs")]
pub struct ToolStubs {
    /// The language of the stubs.
    pub language: Language,
    /// The number of tools that the caller may reach, without the interpreters.
    pub tools: usize,
    /// The number of them that the query matches.
    pub matched: usize,
    /// The names of those that `text` declares.
    pub described: Vec<String>,
    /// A TypeScript declaration file or a Python stub file; for an empty query, an overview.
    pub text: String,
}

/// Answers a request about the tools that a caller may reach, sorted by name.
#[must_use]
pub fn describe<'a>(reachable: impl Iterator<Item = &'a Descriptor>, request: &DescribeRequest) -> ToolStubs {
    let (interpreters, tools) = reachable.partition::<Vec<_>, _>(|tool| is_interpreter(tool));
    let has = |name: &str| interpreters.iter().any(|tool| tool.name.as_str() == name);
    let first =
        INTERPRETERS.iter().find(|(name, _)| has(name)).map_or(Language::Javascript, |(_, first)| *first);
    let language = request.language.unwrap_or(first);
    if request.query.trim().is_empty() {
        let text = overview(&tools);
        return ToolStubs { language, tools: tools.len(), matched: tools.len(), described: Vec::new(), text };
    }
    let ranked = rank(&tools, &request.query);
    if ranked.is_empty() {
        let text = format!("No tool matches this query.\n{}", overview(&tools));
        return ToolStubs { language, tools: tools.len(), matched: 0, described: Vec::new(), text };
    }
    let named = named(&tools, &request.query);
    let max_bytes = if named.is_empty() { MAX_SEARCH_BYTES } else { MAX_NAMED_BYTES };
    let candidates = if named.is_empty() { ranked.clone() } else { unscored(named) };
    let selected = select(&candidates, language, max_bytes - NAMES_BYTES);
    let described = selected.iter().map(|(tool, _)| tool.name.to_string()).collect::<Vec<_>>();
    let file = stubs::file(language, &selected.iter().map(|(_, stub)| stub).collect::<Vec<_>>());
    let rest = ranked.iter().map(|(tool, _)| tool.name.as_str());
    let rest = rest.filter(|name| !described.iter().any(|own| own == name)).collect::<Vec<_>>();
    let text = format!("{}{file}{}", usage(language), rest_line(language, &rest));
    ToolStubs { language, tools: tools.len(), matched: ranked.len(), described, text }
}

/// The first line of an answer: how a program calls tools.
fn usage(language: Language) -> &'static str {
    match language {
        Language::Javascript => {
            "// In run_javascript: await tools.NAME({...}); several at once: await Promise.all([...])\n"
        }
        Language::Python => {
            "# In run_python: tools.NAME(key=value); several at once: tools.parallel([...])\n"
        }
    }
}

/// The last line of an answer: as many names as fit of the tools that match and are not described.
fn rest_line(language: Language, rest: &[&str]) -> String {
    if rest.is_empty() {
        return String::new();
    }
    let mark = match language {
        Language::Javascript => "//",
        Language::Python => "#",
    };
    let (names, left) = join_names(rest, NAMES_BYTES - 100);
    let more =
        if left == 0 { String::new() } else { format!(" and {left} more: narrow the query to see them") };
    format!("{mark} Not described, ask for them by name: {names}{more}\n")
}

/// As many names as fit, and the number of the others.
fn join_names(names: &[&str], max_bytes: usize) -> (String, usize) {
    let mut joined = String::new();
    for (index, name) in names.iter().enumerate() {
        if joined.len() + name.len() + 2 > max_bytes {
            return (joined, names.len() - index);
        }
        if !joined.is_empty() {
            joined.push_str(", ");
        }
        joined.push_str(name);
    }
    (joined, 0)
}

/// A tool and its score.
type Ranked<'a> = (&'a Descriptor, u32);

/// The tools that are described, by score and then by length of the stub. A stub that does not fit is left out, never
/// cut.
fn select<'a>(ranked: &[Ranked<'a>], language: Language, max_bytes: usize) -> Vec<(&'a Descriptor, Stub)> {
    let max_bytes = max_bytes - usage(language).len() - stubs::overhead(language);
    let compared = ranked.get(..MAX_COMPARED).unwrap_or(ranked);
    let make = |max_bytes: usize| {
        let stubs =
            compared.iter().map(|(tool, score)| (*tool, *score, Stub::new(tool, language, max_bytes)));
        stubs.collect::<Vec<_>>()
    };
    let mut stubs = make(max_bytes);
    if stubs.iter().map(|(_, _, stub)| stub.len()).sum::<usize>() > max_bytes {
        // Several tools without every detail help a model more than one tool with every detail.
        stubs = make(max_bytes / stubs.len().clamp(1, MIN_CHOICE));
    }
    stubs.sort_by_key(|(_, score, stub)| (Reverse(*score), stub.len()));
    let mut selected = Vec::new();
    let mut left = max_bytes;
    for (tool, _, stub) in stubs {
        if let Some(rest) = left.checked_sub(stub.len()) {
            left = rest;
            selected.push((tool, stub));
        }
    }
    selected
}

/// The tools that match any word of the query, by score and then by name.
fn rank<'a>(tools: &[&'a Descriptor], query: &str) -> Vec<Ranked<'a>> {
    let mut query = words(query).filter(|word| !STOP_WORDS.contains(&word.as_str())).collect::<Vec<_>>();
    query.truncate(MAX_QUERY_WORDS);
    let ranked = tools.iter().map(|tool| (*tool, score(tool, &query))).filter(|(_, score)| *score > 0);
    let mut ranked = ranked.collect::<Vec<_>>();
    ranked.sort_by(|(a, a_score), (b, b_score)| b_score.cmp(a_score).then_with(|| a.name.cmp(&b.name)));
    ranked
}

fn unscored(tools: Vec<&Descriptor>) -> Vec<Ranked<'_>> {
    tools.into_iter().map(|tool| (tool, 0)).collect()
}

/// The tools that a query names; none if the query has any other word.
fn named<'a>(tools: &[&'a Descriptor], query: &str) -> Vec<&'a Descriptor> {
    let names = query.split(|c: char| c.is_whitespace() || c == ',').filter(|name| !name.is_empty());
    let names = names.collect::<BTreeSet<_>>();
    let find = |name: &&str| tools.iter().find(|tool| tool.name.as_str() == *name).copied();
    names.iter().map(find).collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// The score of a tool for words: its name counts more than its description, a whole word more than a part.
fn score(tool: &Descriptor, query: &[String]) -> u32 {
    let name = tool.name.as_str();
    let name_words = words(name).collect::<Vec<_>>();
    let title = tool.title.as_deref().unwrap_or_default();
    let text = beginning(&tool.description, MAX_SEARCHED_BYTES);
    let text_words = words(title).chain(words(text)).collect::<BTreeSet<_>>();
    let lower_name = name.to_lowercase();
    let of_word = |word: &String| {
        let in_name = if name_words.contains(word) {
            8
        } else if name_words.iter().any(|own| are_related(own, word)) {
            5
        } else if word.len() >= 3 && lower_name.contains(word.as_str()) {
            3
        } else {
            0
        };
        let in_text = if text_words.contains(word) {
            2
        } else {
            u32::from(text_words.iter().any(|own| are_related(own, word)))
        };
        in_name + in_text
    };
    query.iter().map(of_word).sum()
}

/// `true` if one of two words is the beginning of the other, as in `file` and `files`.
fn are_related(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    short.len() >= 3 && long.starts_with(short)
}

/// The words of a text in lower case. `readFile` has two.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in text.chars() {
        let begins = !c.is_alphanumeric() || (was_lower && c.is_uppercase());
        if begins && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.into_iter().filter(|word| !word.is_empty())
}

/// The beginning of a text, cut at a character boundary.
fn beginning(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or_default()
}

/// One line for each tool. If that is too long: shorter lines, then only names, then frequent words and some names.
fn overview(tools: &[&Descriptor]) -> String {
    let head = format!(
        "{} tools. To see how to call them, use `{DESCRIBE_TOOLS}` with words or names as `query`.\n",
        tools.len()
    );
    let max_bytes = MAX_OVERVIEW_BYTES - head.len();
    for max_chars in [100, 60, 30] {
        let lines = tools.iter().map(|tool| {
            let text = stubs::one_line(&tool.description, max_chars);
            format!("{}: {text}\n", tool.name)
        });
        if let Some(lines) = join_within(lines, max_bytes) {
            return head + &lines;
        }
    }
    let names = tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>();
    if let (names, 0) = join_names(&names, max_bytes) {
        return format!("{head}{names}\n");
    }
    let frequent = frequent_words(&names);
    let frequent = frequent.iter().map(String::as_str).collect::<Vec<_>>();
    let (frequent, _) = join_names(&frequent, max_bytes / 2);
    let (names, left) = join_names(&names, max_bytes - frequent.len() - OVERVIEW_WORDS_BYTES);
    format!("{head}Words in their names: {frequent}\nNames: {names} and {left} more\n")
}

/// All texts, if they fit.
fn join_within(texts: impl Iterator<Item = String>, max_bytes: usize) -> Option<String> {
    let mut joined = String::new();
    for text in texts {
        joined.push_str(&text);
        if joined.len() > max_bytes {
            return None;
        }
    }
    Some(joined)
}

/// The words that several names share, each with the number of those names, the most frequent first.
fn frequent_words(names: &[&str]) -> Vec<String> {
    let mut counts = BTreeMap::new();
    for name in names {
        for word in words(name).collect::<BTreeSet<_>>() {
            *counts.entry(word).or_insert(0_usize) += 1;
        }
    }
    // A word of only one name says no more than that name.
    let mut counts = counts.into_iter().filter(|(_, count)| *count > 1).collect::<Vec<_>>();
    counts.sort_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then_with(|| a.cmp(b)));
    counts.into_iter().map(|(word, count)| format!("{word} ({count})")).collect()
}

#[cfg(test)]
mod tests;
