//! One pattern, component by component.
//!
//! A pattern is run along a path as a small automaton: a state is how many of its parts are used up,
//! and `**` may use up any number of components. So one thing answers three questions: does the path
//! match, can something below it, and does everything below it? Names are matched character by
//! character: `?` is one character of any alphabet, not one byte of it.

use super::scope::ScopeError;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::Peekable;
use std::ops::RangeInclusive;
use std::str::Chars;
use std::sync::Arc;

/// The most components of one pattern: its states are the bits of a `u64`.
const MAX_PARTS: usize = 60;
/// The most bytes of a pattern, as of a path.
const MAX_PATTERN_BYTES: usize = 4096;
/// How deep `{…}` may stand in `{…}`.
const MAX_DEPTH: usize = 32;
/// The most alternatives that `{a,b}` may give.
const MAX_ALTERNATIVES: usize = 64;

/// What a `**` with a slash after it is while choices are put together, and what one at the end is: no
/// pattern holds a NUL. So two `*` of different choices that come to stand side by side are no `**`,
/// and neither moves what `**` stands for.
const INNER: &str = "\0";
const LAST: &str = "\0\0";
const ALONE: &str = "`**` has to stand alone between slashes";
const NUL: &str = "it holds a NUL";
const RELATIVE: &str = "it does not start with `/`";
const FOREIGN: &str = "its root is that of another system or host: a path here starts with one `/`, such as \
                       `/workspace/**`";

/// An absolute pattern without alternatives.
#[derive(Clone)]
pub struct Glob {
    text: Box<str>,
    parts: Arc<[Part]>,
}

enum Part {
    /// `**`: any number of components; at the end of a pattern, at least one.
    Any,
    /// A name as it is written.
    Literal(Box<str>),
    /// A name with `*`, `?`, `[…]` or `\`.
    Wild(Vec<Piece>),
}

/// One piece of the pattern of a name.
enum Piece {
    /// `*`: any characters.
    Many,
    /// `?`, `[…]`, or a character as it is written: one character out of these ranges, or out of all
    /// others.
    One { negated: bool, ranges: Vec<RangeInclusive<char>> },
}

/// Which parts are used up: bit `n` says that the first `n` can be.
type States = u64;

impl Glob {
    /// Whether a text holds a character that patterns give a meaning to.
    pub(super) fn has_meaning(text: &str) -> bool {
        text.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
    }

    /// Parses an absolute pattern: one glob for each way to choose among its `{a,b}`.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] when it is no pattern, `**` does not stand alone between slashes, or
    /// it has too many components or alternatives.
    pub fn alternatives(pattern: &str) -> Result<Vec<Self>, ScopeError> {
        let malformed = |reason| ScopeError::malformed(pattern, reason);
        check_root(pattern).map_err(malformed)?;
        let texts = mark(pattern).and_then(|marked| expand(&marked)).map_err(malformed)?;
        texts.iter().map(|text| Self::parse(text).map_err(malformed)).collect()
    }

    /// Parses a pattern that takes something away, and all below it: an absolute one, or a relative
    /// one for wherever it lies. A `/**` at its end says nothing more.
    ///
    /// # Errors
    /// As [`Self::alternatives`].
    pub fn blocking(pattern: &str) -> Result<Vec<Self>, ScopeError> {
        if has_foreign_root(pattern) {
            return Err(ScopeError::malformed(pattern, FOREIGN));
        }
        let base = pattern.strip_suffix("/**").unwrap_or(pattern);
        if base.starts_with('/') {
            Self::alternatives(base)
        } else {
            Self::alternatives(&format!("/**/{base}"))
        }
    }

    /// Reads again what [`Self::text`] gave, in another process.
    pub(super) fn carried(text: &str) -> Option<Self> {
        mark(text).and_then(|marked| Self::parse(&marked)).ok()
    }

    /// Parses a marked text without choices.
    fn parse(marked: &str) -> Result<Self, &'static str> {
        let names = names(marked)?;
        let above = names.rsplit_once('/').map_or("", |(above, _)| above);
        if above.contains(LAST) {
            return Err("`**` at the end of a choice has to end the pattern");
        }
        let parts = names.split('/').map(Part::parse).collect::<Result<Arc<[_]>, _>>()?;
        if parts.len() > MAX_PARTS {
            return Err("it has more than 60 components");
        }
        Ok(Self { text: marked.replace(LAST, "**").replace(INNER, "**").into(), parts })
    }

    /// The pattern.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The folder that all matches lie in, and whether they are all of that folder. `None` when that
    /// would be `/`.
    pub(super) fn root(&self) -> Option<(String, bool)> {
        let literal = |part: &Part| match part {
            Part::Literal(name) => Some(format!("/{name}")),
            Part::Any | Part::Wild(_) => None,
        };
        // An exact path is one file in the folder above it.
        let (last, above) = self.parts.split_last()?;
        let names: Vec<String> = above.iter().map_while(literal).collect();
        let whole = matches!(last, Part::Any) && names.len() == above.len();
        (!names.is_empty()).then(|| (names.concat(), whole))
    }

    /// Whether the pattern matches an absolute path without `.` and `..`.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.run(path) & self.end() != 0
    }

    /// Whether it can match something below `path`.
    #[must_use]
    pub fn leads(&self, path: &str) -> bool {
        self.run(path) & (self.end() - 1) != 0
    }

    /// Whether it matches everything below `path`.
    #[must_use]
    pub fn matches_all_below(&self, path: &str) -> bool {
        matches!(self.parts.last(), Some(Part::Any)) && self.run(path) & (self.end() >> 1) != 0
    }

    /// Whether `path` or a folder above it matches.
    #[must_use]
    pub fn matches_at_or_above(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        ends.filter_map(|end| path.get(..end)).any(|above| self.matches(above))
    }

    /// The state in which all parts are used up.
    fn end(&self) -> States {
        1 << self.parts.len()
    }

    fn run(&self, path: &str) -> States {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(self.skip(1), |states, name| if states == 0 { 0 } else { self.step(states, name) })
    }

    /// Adds the states that are reached without a component: `**` in the middle may stand for none.
    fn skip(&self, mut states: States) -> States {
        for (index, part) in self.parts.iter().enumerate() {
            let last = index + 1 == self.parts.len();
            if matches!(part, Part::Any) && !last && states & (1 << index) != 0 {
                states |= 1 << (index + 1);
            }
        }
        states
    }

    fn step(&self, states: States, name: &str) -> States {
        let mut next = 0;
        for (index, part) in self.parts.iter().enumerate() {
            if states & (1 << index) == 0 {
                continue;
            }
            next |= match part {
                Part::Any => 0b11 << index,
                Part::Literal(literal) if **literal == *name => 0b10 << index,
                Part::Wild(pieces) if is_match(pieces, name) => 0b10 << index,
                Part::Literal(_) | Part::Wild(_) => 0,
            };
        }
        self.skip(next)
    }
}

impl Part {
    fn parse(name: &str) -> Result<Self, &'static str> {
        if matches!(name, INNER | LAST) {
            return Ok(Self::Any);
        }
        if name.contains(INNER) || name.contains("**") {
            return Err(ALONE);
        }
        if !Glob::has_meaning(name) {
            return Ok(Self::Literal(name.into()));
        }
        pieces(name).map(Self::Wild)
    }
}

fn pieces(name: &str) -> Result<Vec<Piece>, &'static str> {
    let one = |letter| Piece::One { negated: false, ranges: vec![letter..=letter] };
    let mut pieces = Vec::new();
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        pieces.push(match letter {
            '*' => Piece::Many,
            '?' => Piece::One { negated: true, ranges: Vec::new() },
            '[' => class(&mut letters)?,
            '\\' => one(letters.next().ok_or("it ends in a `\\`")?),
            plain => one(plain),
        });
    }
    Ok(pieces)
}

/// Reads the rest of a class after its `[`. A `]` or `-` that stands first, and a `-` that stands last, is a
/// member. A `^` that stands first is refused: it negates for some readers of such patterns and is a member for
/// others, such as `fnmatch`, so that a governor and its executor could disagree about what is granted.
fn class(letters: &mut Peekable<Chars<'_>>) -> Result<Piece, &'static str> {
    const OPEN: &str = "a class is not closed";
    if letters.peek() == Some(&'^') {
        return Err(
            "`[^` is read in two ways: write `[!x]` for any character but x, or `[x^]` for x and `^`",
        );
    }
    let negated = letters.next_if_eq(&'!').is_some();
    let mut ranges = Vec::new();
    let mut first = true;
    loop {
        let start = match letters.next().ok_or(OPEN)? {
            ']' if !first => return Ok(Piece::One { negated, ranges }),
            letter => letter,
        };
        first = false;
        let mut ahead = letters.clone();
        let end = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(end)) if end != ']' => end,
            (_, _) => {
                ranges.push(start..=start);
                continue;
            }
        };
        if end < start {
            return Err("a range of a class ends before it starts");
        }
        ranges.push(start..=end);
        *letters = ahead;
    }
}

/// Whether a name matches, by going back to the last `*` where it does not.
fn is_match(pieces: &[Piece], name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    let (mut piece, mut letter, mut back) = (0, 0, None);
    loop {
        match (pieces.get(piece), letters.get(letter)) {
            (Some(Piece::Many), _) => {
                back = Some((piece + 1, letter));
                piece += 1;
                continue;
            }
            (Some(Piece::One { negated, ranges }), Some(found))
                if ranges.iter().any(|range| range.contains(found)) != *negated =>
            {
                (piece, letter) = (piece + 1, letter + 1);
                continue;
            }
            (None, None) => return true,
            (Some(Piece::One { .. }) | None, _) => {}
        }
        // The `*` takes one character more.
        match back {
            Some((after, taken)) if taken < letters.len() => {
                back = Some((after, taken + 1));
                (piece, letter) = (after, taken + 1);
            }
            Some(_) | None => return false,
        }
    }
}

// The text says all: two globs with one text match the same.
impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Glob {}

impl PartialOrd for Glob {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Glob {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Hash for Glob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// Refuses a pattern with a root of another system, in words that say so. Where the root stands in a choice, the choice is
/// read first.
fn check_root(pattern: &str) -> Result<(), &'static str> {
    if has_foreign_root(pattern) {
        return Err(FOREIGN);
    }
    if pattern.starts_with(['/', '{']) { Ok(()) } else { Err(RELATIVE) }
}

/// `true` for a pattern that starts at a drive, `C:\` or `C:/`, or at another host, `\\host` or `//host`.
fn has_foreign_root(pattern: &str) -> bool {
    let drive = pattern.strip_prefix(|letter: char| letter.is_ascii_alphabetic());
    let drive = drive.and_then(|rest| rest.strip_prefix(':'));
    drive.is_some_and(|path| path.starts_with(['\\', '/']))
        || pattern.starts_with(r"\\")
        || pattern.starts_with("//")
}

/// The components of an absolute path, each of which has to be a name.
pub(super) fn check_components(path: &str) -> Result<&str, &'static str> {
    if path.contains('\0') {
        return Err(NUL);
    }
    names(path)
}

fn names(text: &str) -> Result<&str, &'static str> {
    let names = text.strip_prefix('/').ok_or(RELATIVE)?;
    if matches!(names, "" | LAST) {
        return Err("its root is `/`");
    }
    for name in names.split('/') {
        match name {
            "" => return Err("it holds an empty component"),
            "." | ".." => return Err("it holds `.` or `..`"),
            long if long.len() > 255 => return Err("a component is longer than 255 bytes"),
            _named => {}
        }
    }
    Ok(names)
}

/// A pattern with its `**` marked. Only one that stands as a whole name before the choices are put
/// together is one: between slashes, first in a choice with a slash after it, or after a slash at the
/// end of the pattern or of a choice.
fn mark(pattern: &str) -> Result<String, &'static str> {
    if pattern.contains('\0') {
        return Err(NUL);
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err("it has more than 4096 bytes");
    }
    let mut marked = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("**") {
        marked.push_str(before);
        marked.push_str(match (before.chars().next_back(), after.chars().next()) {
            (None | Some('/' | '{' | ','), Some('/')) => INNER,
            (None | Some('/'), None | Some(',' | '}')) => LAST,
            (_, _) => return Err(ALONE),
        });
        rest = after;
    }
    marked.push_str(rest);
    Ok(marked)
}

/// Every way to choose among the `{a,b}` of a pattern. What is escaped or in a class is no brace.
fn expand(pattern: &str) -> Result<Vec<String>, &'static str> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_owned()];
    while let Some(text) = open.pop() {
        match first_braces(&text)? {
            None => done.push(text),
            Some((before, choices, after)) => {
                open.extend(choices.iter().map(|choice| [before, choice, after].concat()));
            }
        }
        if done.len() + open.len() > MAX_ALTERNATIVES {
            return Err("it has more than 64 alternatives");
        }
    }
    Ok(done)
}

/// The text before the first outermost braces, what they hold between commas, and the text after.
type Braces<'a> = (&'a str, Vec<&'a str>, &'a str);

fn first_braces(text: &str) -> Result<Option<Braces<'_>>, &'static str> {
    const UNBALANCED: &str = "its braces are not balanced";
    // Every byte looked at is ASCII, which UTF-8 uses in no other letter.
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0usize);
    // Where the outermost braces open, choose and close.
    let mut cuts = Vec::new();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'[' => {
                at += class_length(bytes.get(at..).unwrap_or_default()).ok_or("a class is not closed")? - 1
            }
            b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err("its braces stand more than 32 deep");
                }
                if depth == 1 {
                    cuts.push(at);
                }
            }
            b',' if depth == 1 => cuts.push(at),
            b'}' => {
                depth = depth.checked_sub(1).ok_or(UNBALANCED)?;
                if depth == 0 {
                    cuts.push(at);
                    let choices = cuts.windows(2).filter_map(|cut| text.get(cut.first()? + 1..*cut.last()?));
                    let before = cuts.first().and_then(|&start| text.get(..start)).unwrap_or_default();
                    return Ok(Some((before, choices.collect(), text.get(at + 1..).unwrap_or_default())));
                }
            }
            _plain => {}
        }
        at += 1;
    }
    if depth == 0 { Ok(None) } else { Err(UNBALANCED) }
}

/// The bytes of the class `[…]` that a text starts with. A `]` that stands first in it is a member.
fn class_length(text: &[u8]) -> Option<usize> {
    let negated = matches!(text.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let after = first + usize::from(text.get(first) == Some(&b']'));
    let close = text.get(after..)?.iter().position(|byte| *byte == b']')?;
    Some(after + close + 1)
}
