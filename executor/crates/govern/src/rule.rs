//! A policy's rule for one tool, parsed for checks of arguments.
//!
//! The local governor and the executor's standing policies share this module, so a rule means the same on both
//! sides. A rule that cannot be enforced exactly is an error, and never permits more.

use super::arguments::{ArgumentRole, Arguments};
use a2g_capability::{Area, Glob, HostClaims, HostError, HostPattern, ScopeError};
use a2g_types::ident::excerpt;
use a2g_types::verdict::{NetworkRule, ToolRule};
use std::collections::BTreeSet;
use std::fmt;

/// The reason why a rule cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A pattern of `paths` or `blocked_paths` is not valid.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// A text of `blocked_patterns` is empty.
    #[error("a text of `blocked_patterns` is empty and would block everything")]
    EmptyPattern,
}

/// The constraint that an argument violates. Messages name the necessary change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A relative path under a rule with `paths`.
    #[error("`paths`: `{path}` is not an absolute path; write it in full, inside {usable}")]
    Relative {
        /// An excerpt of the path.
        path: String,
        /// The paths that are left.
        usable: UsablePaths,
    },
    /// A path with a `..` component or a NUL. `..` is not resolved, because symbolic links make its meaning a guess.
    #[error("the path `{path}` contains `..` or a NUL; write it without")]
    Traversal {
        /// An excerpt of the path.
        path: String,
    },
    /// A path outside all patterns of `paths`.
    #[error("`paths`: `{path}` lies outside {usable}; {}", .usable.advice())]
    Outside {
        /// An excerpt of the path.
        path: String,
        /// The paths that are left.
        usable: UsablePaths,
    },
    /// A path that `blocked_paths` matches.
    #[error("`blocked_paths`: `{path}` is blocked by `{pattern}`; use another path")]
    BlockedPath {
        /// An excerpt of the path.
        path: String,
        /// The matching pattern.
        pattern: String,
    },
    /// A text of `blocked_patterns` occurs in an argument.
    #[error("`blocked_patterns`: an argument contains `{pattern}`; remove it")]
    BlockedPattern {
        /// The blocked text.
        pattern: String,
    },
    /// A string longer than `max_size_bytes`.
    #[error("`max_size_bytes`: an argument has {bytes} bytes and the maximum is {max}; send less")]
    TooLong {
        /// The length of the longest string argument, in bytes.
        bytes: u64,
        /// The maximum, in bytes.
        max: u64,
    },
}

/// The paths of a rule that a message names: those that a call can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsablePaths {
    /// The patterns, each in backquotes; empty if there are none.
    patterns: String,
    /// `true` if a path that the message refuses needs more than a wider rule: the executor does not open it either.
    is_closed: bool,
}

impl UsablePaths {
    /// The part of `areas` that an executor opens; all of them if its areas are not known.
    fn of(areas: &[Area], path: &str, open: Option<&[Area]>) -> Self {
        let Some(open) = open else { return Self { patterns: join_areas(areas), is_closed: false } };
        let left = areas.iter().flat_map(|area| open.iter().filter_map(|open| area.meet(open)));
        let left = left.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
        Self {
            patterns: join_areas(&left),
            is_closed: !open.iter().any(|open| is_in_area_or_root(open, path)),
        }
    }

    /// The changes that would help.
    fn advice(&self) -> &'static str {
        match (self.patterns.is_empty(), self.is_closed) {
            (false, false) => "name an absolute path inside, or ask the operator to widen `paths`",
            (false, true) => {
                "name an absolute path inside, or ask the operator to widen `paths` and the executor's \
                 `ceilings.filesystem_scope`"
            }
            (true, false) => "ask the operator to widen `paths`",
            (true, true) => {
                "ask the operator to widen `paths` and the executor's `ceilings.filesystem_scope`, and to create the \
                 folder there or map it with `[[mount]]`"
            }
        }
    }
}

impl fmt::Display for UsablePaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.patterns.is_empty() { "an empty list" } else { &self.patterns })
    }
}

/// A completely parsed rule.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    paths: Option<Vec<Area>>,
    blocked_paths: Vec<BlockedPath>,
    blocked_patterns: Vec<TextPattern>,
    max_size_bytes: Option<u64>,
}

impl Rule {
    /// Parses the constraints of a rule.
    pub(super) fn read(rule: &ToolRule) -> Result<Self, RuleError> {
        let areas = |patterns: &Vec<String>| -> Result<Vec<Vec<Area>>, ScopeError> {
            patterns.iter().map(|pattern| Area::parse(pattern)).collect()
        };
        let paths = rule.paths.as_ref().map(areas);
        Ok(Self {
            paths: paths.transpose()?.map(|areas| areas.concat()),
            blocked_paths: rule
                .blocked_paths
                .iter()
                .map(|p| BlockedPath::read(p))
                .collect::<Result<_, _>>()?,
            blocked_patterns: rule
                .blocked_patterns
                .iter()
                .map(|p| TextPattern::read(p))
                .collect::<Result<_, _>>()?,
            max_size_bytes: rule.max_size_bytes,
        })
    }

    /// The areas of `paths`; `None` if the rule has no `paths`.
    pub(super) fn areas(&self) -> Option<&[Area]> {
        self.paths.as_deref()
    }

    /// The patterns of `blocked_paths` that can match inside an area of `paths`.
    pub(super) fn blocked_globs(&self) -> impl Iterator<Item = &Glob> {
        let is_relevant = |blocked: &&BlockedPath| match &self.paths {
            Some(areas) => areas.iter().any(|area| blocked.may_lie_in(area)),
            None => true,
        };
        self.blocked_paths.iter().filter(is_relevant).flat_map(|blocked| &blocked.globs)
    }

    /// Checks `blocked_patterns` and `max_size_bytes`.
    pub(super) fn check_texts(&self, arguments: &Arguments<'_>) -> Result<(), Breach> {
        let caller_texts = arguments.texts().iter().filter(|text| text.role != ArgumentRole::Joined);
        let longest = caller_texts.map(|text| text.text.len()).max().unwrap_or(0);
        let bytes = u64::try_from(longest).unwrap_or(u64::MAX);
        if let Some(max) = self.max_size_bytes.filter(|max| bytes > *max) {
            return Err(Breach::TooLong { bytes, max });
        }
        if self.blocked_patterns.is_empty() {
            return Ok(());
        }
        for text in arguments.texts() {
            let normalized = NormalizedText::of(&text.text);
            if let Some(pattern) = self.blocked_patterns.iter().find(|p| p.occurs_in(&normalized)) {
                return Err(Breach::BlockedPattern { pattern: pattern.excerpt.clone() });
            }
        }
        Ok(())
    }

    /// Checks `paths` and `blocked_paths` against every argument that is presumably a path. A message names only paths
    /// in `open`, the areas that the executor opens, if they are known.
    pub(super) fn check_paths(&self, arguments: &Arguments<'_>, open: Option<&[Area]>) -> Result<(), Breach> {
        if self.paths.is_none() && self.blocked_paths.is_empty() {
            return Ok(());
        }
        arguments.paths().try_for_each(|path| self.check_path(path, open))
    }

    /// The areas of `paths` that the arguments need, or all of them; without those of which everything is blocked.
    pub(super) fn areas_for(&self, arguments: &Arguments<'_>, all: bool) -> Vec<Area> {
        let paths: Vec<String> = arguments.paths().filter_map(normalize).collect();
        let is_needed = |area: &&Area| all || paths.iter().any(|path| is_in_area_or_root(area, path));
        let is_blocked =
            |area: &Area| self.blocked_paths.iter().any(|blocked| blocked.covers(area.root().path()));
        let areas = self.paths.iter().flatten().filter(is_needed);
        areas.filter(|area| !is_blocked(area)).cloned().collect()
    }

    /// The patterns of `blocked_paths` that can match inside one of these areas, as written.
    pub(super) fn blocked_in(&self, areas: &[Area]) -> impl Iterator<Item = &str> {
        let is_relevant = move |blocked: &&BlockedPath| areas.iter().any(|area| blocked.may_lie_in(area));
        self.blocked_paths.iter().filter(is_relevant).map(|blocked| &*blocked.pattern)
    }

    fn check_path(&self, argument: &str, open: Option<&[Area]>) -> Result<(), Breach> {
        let path = || excerpt(argument);
        let normal = normalize(argument).ok_or_else(|| Breach::Traversal { path: path() })?;
        if let Some(blocked) = self.blocked_paths.iter().find(|blocked| blocked.covers(&normal)) {
            return Err(Breach::BlockedPath { path: path(), pattern: blocked.excerpt.clone() });
        }
        let Some(areas) = &self.paths else { return Ok(()) };
        if !normal.starts_with('/') {
            return Err(Breach::Relative { path: path(), usable: UsablePaths::of(areas, &normal, open) });
        }
        if areas.iter().any(|area| is_in_area_or_root(area, &normal)) {
            return Ok(());
        }
        Err(Breach::Outside { path: path(), usable: UsablePaths::of(areas, &normal, open) })
    }
}

/// `true` for a path in an area, and for the area's root folder, which a tool may list.
fn is_in_area_or_root(area: &Area, path: &str) -> bool {
    area.contains(path) || area.root().path() == path
}

fn join_areas(areas: &[Area]) -> String {
    areas.iter().map(|area| format!("`{area}`")).collect::<Vec<_>>().join(", ")
}

/// The limits that the network part of a policy sets. A rate beyond `u32` is capped.
pub(super) fn host_claims(rule: &NetworkRule) -> Result<HostClaims, HostError> {
    let NetworkRule { allowed_domains, blocked_domains, max_requests_per_minute } = rule;
    let patterns = |texts: &[String]| texts.iter().map(|text| HostPattern::parse(text)).collect();
    Ok(HostClaims {
        allowed: allowed_domains.as_deref().map(patterns).transpose()?,
        blocked: patterns(blocked_domains)?,
        requests: None,
        requests_per_minute: max_requests_per_minute.map(|rate| u32::try_from(rate).unwrap_or(u32::MAX)),
    })
}

/// The path without `.`, empty components and trailing slashes; `None` if it contains `..` or NUL.
pub(super) fn normalize(path: &str) -> Option<String> {
    if path.contains('\0') || path.split('/').any(|component| component == "..") {
        return None;
    }
    let components: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let root = if path.starts_with('/') { "/" } else { "" };
    Some(format!("{root}{}", components.join("/")))
}

/// One pattern of `blocked_paths`. It blocks every match and everything below; a relative pattern matches in every
/// folder.
#[derive(Debug, Clone)]
struct BlockedPath {
    pattern: String,
    excerpt: String,
    globs: Vec<Glob>,
    is_absolute: bool,
}

impl BlockedPath {
    fn read(pattern: &str) -> Result<Self, ScopeError> {
        let is_absolute = pattern.starts_with('/');
        if !is_absolute {
            let malformed = |reason| ScopeError::Malformed { pattern: excerpt(pattern), reason };
            check_relative(pattern).map_err(malformed)?;
        }
        Ok(Self {
            pattern: pattern.to_owned(),
            excerpt: excerpt(pattern),
            globs: Glob::parse_blocking(pattern)?,
            is_absolute,
        })
    }

    /// `true` when the pattern can match inside the area's folder.
    fn may_lie_in(&self, area: &Area) -> bool {
        let root = area.root().path();
        self.globs.iter().any(|glob| glob.matches_at_or_above(root) || glob.can_match_below(root))
    }

    fn covers(&self, normal: &str) -> bool {
        let is_comparable = normal.starts_with('/') || !self.is_absolute;
        is_comparable && self.globs.iter().any(|glob| glob.matches_at_or_above(normal))
    }
}

fn check_relative(pattern: &str) -> Result<(), &'static str> {
    if pattern.contains('\0') {
        return Err("it contains a NUL");
    }
    if pattern == "**" {
        return Err("it would block everything; set `allowed` to false instead");
    }
    for component in pattern.split('/') {
        match component {
            "" | "." | ".." => return Err("it contains an empty component, `.` or `..`"),
            shell if shell.starts_with(['~', '$']) => {
                return Err("`~` and variables are not known here; write the name itself, such as `.ssh/**`");
            }
            _named => {}
        }
    }
    Ok(())
}

/// A text of `blocked_patterns`, matched literally except for the amount of white space. The parts around a `|`
/// may match different stages of a pipeline, so that `curl|bash` matches `curl -s https://x | sudo bash`.
#[derive(Debug, Clone)]
struct TextPattern {
    excerpt: String,
    stages: Vec<String>,
}

impl TextPattern {
    fn read(pattern: &str) -> Result<Self, RuleError> {
        let normalized = collapse_whitespace(pattern);
        let stages: Vec<String> = normalized.split('|').map(|stage| stage.trim().to_owned()).collect();
        if stages.iter().all(String::is_empty) {
            return Err(RuleError::EmptyPattern);
        }
        Ok(Self { excerpt: excerpt(pattern), stages })
    }

    fn occurs_in(&self, text: &NormalizedText) -> bool {
        match self.stages.as_slice() {
            [only] => text.whole.contains(&**only),
            stages => text.pipelines.iter().any(|line| has_stages_in_order(stages, line)),
        }
    }
}

fn has_stages_in_order(stages: &[String], line: &str) -> bool {
    let mut parts = line.split('|');
    stages.iter().all(|stage| parts.any(|part| part.contains(&**stage)))
}

/// A text with collapsed white space, and its command lines that contain a `|`.
pub(super) struct NormalizedText {
    pub(super) whole: String,
    /// The lines with a pipe; a line that ends in `|` or `\` continues on the next.
    pub(super) pipelines: Vec<String>,
}

impl NormalizedText {
    pub(super) fn of(text: &str) -> Self {
        let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
        let mut pipelines = Vec::new();
        let mut command = String::new();
        for line in joined.lines() {
            command.push_str(line);
            command.push(' ');
            if line.trim_end().ends_with('|') {
                continue;
            }
            let command = std::mem::take(&mut command);
            if command.contains('|') {
                pipelines.push(collapse_whitespace(&command));
            }
        }
        if command.contains('|') {
            pipelines.push(collapse_whitespace(&command));
        }
        Self { whole: collapse_whitespace(&joined), pipelines }
    }
}

/// Replaces each run of white space by one space, and trims both ends.
fn collapse_whitespace(text: &str) -> String {
    let mut normalized = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !normalized.is_empty() {
            normalized.push(' ');
        }
        normalized.push_str(word);
    }
    normalized
}
