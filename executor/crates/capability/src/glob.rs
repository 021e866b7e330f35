//! A single path pattern, matched component by component.
//!
//! A pattern is matched by a small automaton: a state is the number of parts that are consumed, and `**` may
//! consume any number of components. The same automaton answers three questions: whether the path matches, whether
//! anything below it can match, and whether everything below it does. Names are matched by character: `?` is one
//! character of any alphabet, not one byte.
// globset is not used: it answers only the first question, and its `?` is one byte, so that a blocked `?.key` would not
// match `ß.key`.

use super::scope::ScopeError;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::Peekable;
use std::ops::RangeInclusive;
use std::str::Chars;
use std::sync::Arc;

/// Maximum number of components of a pattern: its states are the bits of a `u64`.
const MAX_PARTS: usize = 60;
/// Maximum length of a pattern in bytes, the same as that of a path.
const MAX_PATTERN_BYTES: usize = 4096;
/// Maximum nesting depth of `{…}`.
const MAX_DEPTH: usize = 32;
/// Maximum number of alternatives that a pattern may expand to.
const MAX_ALTERNATIVES: usize = 64;

/// Marks for `**` while alternatives are expanded: `INNER_MARK` for one with a slash after it, `LAST_MARK` for one at
/// the end. No pattern contains a NUL, so two `*` of different alternatives that become neighbours are not read as
/// `**`, and expansion does not change the meaning of a `**`.
const INNER_MARK: &str = "\0";
const LAST_MARK: &str = "\0\0";
const MISPLACED_DOUBLE_STAR: &str = "`**` has to be a whole path component";
const CONTAINS_NUL: &str = "it contains a NUL";
const NOT_ABSOLUTE: &str = "it does not start with `/`";
const FOREIGN_ROOT: &str = "its root is that of another system or host: a path here starts with one `/`, such as \
                       `/workspace/**`";

/// An absolute pattern without alternatives.
#[derive(Clone)]
pub struct Glob {
    text: Box<str>,
    parts: Arc<[PatternComponent]>,
}

enum PatternComponent {
    /// `**`: any number of components; at the end of a pattern, at least one.
    Any,
    /// A literal name.
    Literal(Box<str>),
    /// A name with `*`, `?`, `[…]` or `\`.
    Wild(Vec<Piece>),
}

/// One element of the pattern of a name.
enum Piece {
    /// `*`: any characters.
    Many,
    /// `?`, `[…]` or a literal character: one character from these ranges or, if negated, from all others.
    One { negated: bool, ranges: Vec<RangeInclusive<char>> },
}

/// The states that the automaton may be in: bit `n` is set if the first `n` parts may be consumed.
type StateSet = u64;

impl Glob {
    /// `true` for a text with a character that has a special meaning in patterns.
    pub(super) fn has_special_characters(text: &str) -> bool {
        text.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
    }

    /// Parses an absolute pattern into one glob for each combination of its `{a,b}` alternatives.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] if the pattern is not valid, has a `**` that is not a whole path component, or has too
    /// many components or alternatives.
    pub fn parse_alternatives(pattern: &str) -> Result<Vec<Self>, ScopeError> {
        let malformed = |reason| ScopeError::malformed(pattern, reason);
        check_root(pattern).map_err(malformed)?;
        let texts =
            mark_double_stars(pattern).and_then(|marked| expand_braces(&marked)).map_err(malformed)?;
        texts.iter().map(|text| Self::parse(text).map_err(malformed)).collect()
    }

    /// Parses a pattern that excludes its matches and everything below them. A relative pattern matches at any depth. A
    /// trailing `/**` has no effect.
    ///
    /// # Errors
    /// As [`Self::parse_alternatives`].
    pub fn parse_blocking(pattern: &str) -> Result<Vec<Self>, ScopeError> {
        if has_foreign_root(pattern) {
            return Err(ScopeError::malformed(pattern, FOREIGN_ROOT));
        }
        let base = pattern.strip_suffix("/**").unwrap_or(pattern);
        if base.starts_with('/') {
            Self::parse_alternatives(base)
        } else {
            Self::parse_alternatives(&format!("/**/{base}"))
        }
    }

    /// Parses the [`Self::text`] of a glob of another process.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        mark_double_stars(text).and_then(|marked| Self::parse(&marked)).ok()
    }

    /// Parses a marked text without alternatives.
    fn parse(marked: &str) -> Result<Self, &'static str> {
        let names = check_names(marked)?;
        let above = names.rsplit_once('/').map_or("", |(above, _)| above);
        if above.contains(LAST_MARK) {
            return Err("`**` at the end of a choice has to end the pattern");
        }
        let parts = names.split('/').map(PatternComponent::parse).collect::<Result<Arc<[_]>, _>>()?;
        if parts.len() > MAX_PARTS {
            return Err("it has more than 60 components");
        }
        Ok(Self { text: marked.replace(LAST_MARK, "**").replace(INNER_MARK, "**").into(), parts })
    }

    /// The pattern as text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The folder that contains all matches, and `true` if the pattern matches everything below it. `None` if that
    /// folder would be `/`.
    pub(super) fn root(&self) -> Option<(String, bool)> {
        let literal_name = |part: &PatternComponent| match part {
            PatternComponent::Literal(name) => Some(format!("/{name}")),
            PatternComponent::Any | PatternComponent::Wild(_) => None,
        };
        // An exact path is one file in the folder above it.
        let (last, above) = self.parts.split_last()?;
        let names: Vec<String> = above.iter().map_while(literal_name).collect();
        let is_whole = matches!(last, PatternComponent::Any) && names.len() == above.len();
        (!names.is_empty()).then(|| (names.concat(), is_whole))
    }

    /// `true` if the pattern matches an absolute path without `.` and `..`.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.match_path(path) & self.accepting_state() != 0
    }

    /// `true` if the pattern can match something below `path`.
    #[must_use]
    pub fn can_match_below(&self, path: &str) -> bool {
        self.match_path(path) & (self.accepting_state() - 1) != 0
    }

    /// `true` if the pattern matches everything below `path`.
    #[must_use]
    pub fn matches_all_below(&self, path: &str) -> bool {
        matches!(self.parts.last(), Some(PatternComponent::Any))
            && self.match_path(path) & (self.accepting_state() >> 1) != 0
    }

    /// Patterns that together match what this one matches below the folder `path`, which has no special characters.
    pub(super) fn patterns_below(&self, path: &str) -> Vec<String> {
        let states = self.match_path(path);
        let is_reached = |index: usize| states & (1 << index) != 0;
        // The rest after a `**` is a case of the rest from that `**`.
        let follows_any = |index: usize| {
            let before = index.checked_sub(1).filter(|before| is_reached(*before));
            before.is_some_and(|before| matches!(self.parts.get(before), Some(PatternComponent::Any)))
        };
        let starts = (0..self.parts.len()).filter(|index| is_reached(*index) && !follows_any(*index));
        // The text begins with a `/`, so its first piece is empty.
        let rest = |start: usize| self.text.split('/').skip(start + 1).collect::<Vec<_>>().join("/");
        starts.map(|start| format!("{path}/{}", rest(start))).collect()
    }

    /// `true` if the pattern matches `path` or a folder above `path`.
    #[must_use]
    pub fn matches_at_or_above(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        ends.filter_map(|end| path.get(..end)).any(|above| self.matches(above))
    }

    /// The state in which all parts are consumed.
    fn accepting_state(&self) -> StateSet {
        1 << self.parts.len()
    }

    fn match_path(&self, path: &str) -> StateSet {
        let names = path.split('/').filter(|name| !name.is_empty());
        names
            .fold(self.empty_closure(1), |states, name| if states == 0 { 0 } else { self.step(states, name) })
    }

    /// Adds the states that are reached without a component: a `**` in the middle may match no component.
    fn empty_closure(&self, mut states: StateSet) -> StateSet {
        for (index, part) in self.parts.iter().enumerate() {
            let last = index + 1 == self.parts.len();
            if matches!(part, PatternComponent::Any) && !last && states & (1 << index) != 0 {
                states |= 1 << (index + 1);
            }
        }
        states
    }

    fn step(&self, states: StateSet, name: &str) -> StateSet {
        let mut next = 0;
        for (index, part) in self.parts.iter().enumerate() {
            if states & (1 << index) == 0 {
                continue;
            }
            next |= match part {
                PatternComponent::Any => 0b11 << index,
                PatternComponent::Literal(literal) if **literal == *name => 0b10 << index,
                PatternComponent::Wild(pieces) if is_match(pieces, name) => 0b10 << index,
                PatternComponent::Literal(_) | PatternComponent::Wild(_) => 0,
            };
        }
        self.empty_closure(next)
    }
}

impl PatternComponent {
    fn parse(name: &str) -> Result<Self, &'static str> {
        if matches!(name, INNER_MARK | LAST_MARK) {
            return Ok(Self::Any);
        }
        if name.contains(INNER_MARK) || name.contains("**") {
            return Err(MISPLACED_DOUBLE_STAR);
        }
        if !Glob::has_special_characters(name) {
            return Ok(Self::Literal(name.into()));
        }
        parse_pieces(name).map(Self::Wild)
    }
}

fn parse_pieces(name: &str) -> Result<Vec<Piece>, &'static str> {
    let literal = |letter| Piece::One { negated: false, ranges: vec![letter..=letter] };
    let mut pieces = Vec::new();
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        pieces.push(match letter {
            '*' => Piece::Many,
            '?' => Piece::One { negated: true, ranges: Vec::new() },
            '[' => parse_class(&mut letters)?,
            '\\' => literal(letters.next().ok_or("it ends in a `\\`")?),
            plain => literal(plain),
        });
    }
    Ok(pieces)
}

/// Parses the rest of a class after its `[`. A leading `]` or `-` and a trailing `-` are members. A leading `^` is
/// refused: it negates in some implementations and is a member in others, such as `fnmatch`, so a governor and its
/// executor could disagree about the grant.
fn parse_class(letters: &mut Peekable<Chars<'_>>) -> Result<Piece, &'static str> {
    const OPEN: &str = "a class is not closed";
    if letters.peek() == Some(&'^') {
        return Err("`[^` is ambiguous: write `[!x]` for any character but x, or `[x^]` for x and `^`");
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

/// `true` if a name matches. On a mismatch, matching resumes at the last `*`.
fn is_match(pieces: &[Piece], name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    let mut piece = 0;
    let mut letter = 0;
    let mut last_star = None;
    loop {
        match (pieces.get(piece), letters.get(letter)) {
            (Some(Piece::Many), _) => {
                last_star = Some((piece + 1, letter));
                piece += 1;
                continue;
            }
            (Some(Piece::One { negated, ranges }), Some(next))
                if ranges.iter().any(|range| range.contains(next)) != *negated =>
            {
                (piece, letter) = (piece + 1, letter + 1);
                continue;
            }
            (None, None) => return true,
            (Some(Piece::One { .. }) | None, _) => {}
        }
        // The last `*` consumes one more character.
        match last_star {
            Some((next_piece, end)) if end < letters.len() => {
                last_star = Some((next_piece, end + 1));
                (piece, letter) = (next_piece, end + 1);
            }
            Some(_) | None => return false,
        }
    }
}

// Two globs with the same text match the same paths.
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

/// Refuses a relative pattern, and one with a root of another system or host. A pattern whose root is inside braces
/// passes, because its alternatives are expanded first.
fn check_root(pattern: &str) -> Result<(), &'static str> {
    if has_foreign_root(pattern) {
        return Err(FOREIGN_ROOT);
    }
    if pattern.starts_with(['/', '{']) { Ok(()) } else { Err(NOT_ABSOLUTE) }
}

/// `true` for a pattern that starts at a drive, `C:\` or `C:/`, or at another host, `\\host` or `//host`.
fn has_foreign_root(pattern: &str) -> bool {
    let drive = pattern.strip_prefix(|letter: char| letter.is_ascii_alphabetic());
    let drive = drive.and_then(|rest| rest.strip_prefix(':'));
    drive.is_some_and(|path| path.starts_with(['\\', '/']))
        || pattern.starts_with(r"\\")
        || pattern.starts_with("//")
}

/// Returns an absolute path without the leading `/`, if each of its components is a valid name.
pub(super) fn check_components(path: &str) -> Result<&str, &'static str> {
    if path.contains('\0') {
        return Err(CONTAINS_NUL);
    }
    check_names(path)
}

fn check_names(text: &str) -> Result<&str, &'static str> {
    let names = text.strip_prefix('/').ok_or(NOT_ABSOLUTE)?;
    if matches!(names, "" | LAST_MARK) {
        return Err("its root is `/`");
    }
    for name in names.split('/') {
        match name {
            "" => return Err("it contains an empty component"),
            "." | ".." => return Err("it contains `.` or `..`"),
            long if long.len() > 255 => return Err("a component is longer than 255 bytes"),
            _named => {}
        }
    }
    Ok(names)
}

/// Marks each `**` of a pattern. A `**` is valid only as a whole name before the alternatives are expanded: between
/// slashes, first in an alternative with a slash after it, or after a slash at the end of the pattern or of an
/// alternative.
fn mark_double_stars(pattern: &str) -> Result<String, &'static str> {
    if pattern.contains('\0') {
        return Err(CONTAINS_NUL);
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err("it has more than 4096 bytes");
    }
    let mut marked = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("**") {
        marked.push_str(before);
        marked.push_str(match (before.chars().next_back(), after.chars().next()) {
            (None | Some('/' | '{' | ','), Some('/')) => INNER_MARK,
            (None | Some('/'), None | Some(',' | '}')) => LAST_MARK,
            (_, _) => return Err(MISPLACED_DOUBLE_STAR),
        });
        rest = after;
    }
    marked.push_str(rest);
    Ok(marked)
}

/// Expands every combination of the `{a,b}` alternatives of a pattern. Braces that are escaped or in a class are
/// literal.
fn expand_braces(pattern: &str) -> Result<Vec<String>, &'static str> {
    let mut texts = Vec::new();
    let mut pending = vec![pattern.to_owned()];
    while let Some(text) = pending.pop() {
        match find_braces(&text)? {
            None => texts.push(text),
            Some((before, choices, after)) => {
                pending.extend(choices.iter().map(|choice| [before, choice, after].concat()));
            }
        }
        if texts.len() + pending.len() > MAX_ALTERNATIVES {
            return Err("it has more than 64 alternatives");
        }
    }
    Ok(texts)
}

/// The text before the first outermost braces, the alternatives inside them, and the text after.
type Braces<'a> = (&'a str, Vec<&'a str>, &'a str);

fn find_braces(text: &str) -> Result<Option<Braces<'_>>, &'static str> {
    const UNBALANCED: &str = "its braces are not balanced";
    // Every byte that is compared is ASCII, which never occurs inside another character in UTF-8.
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut depth = 0usize;
    // The offsets at which the outermost braces open, separate alternatives and close.
    let mut cuts = Vec::new();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'[' => at += class_len(bytes.get(at..).unwrap_or_default()).ok_or("a class is not closed")? - 1,
            b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err("its braces are nested more than 32 deep");
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

/// The length in bytes of the class `[…]` at the start of a text. A leading `]` is a member.
fn class_len(text: &[u8]) -> Option<usize> {
    let negated = matches!(text.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let after = first + usize::from(text.get(first) == Some(&b']'));
    let close = text.get(after..)?.iter().position(|byte| *byte == b']')?;
    Some(after + close + 1)
}
