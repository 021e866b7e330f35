//! One tool's rule of a policy, made ready for checking arguments.
//!
//! The local governor and the executor's standing policies read rules by this one file, so that a
//! rule means the same on both sides. A rule that cannot be read exactly is an error and never a
//! rule that allows more.

use super::arguments::{Arguments, Role};
use crate::capability::{HostClaims, HostError, HostPattern, Pattern, ScopeError, Tree};
use crate::ident::excerpt;
use crate::verdict::{NetworkRule, ToolRule};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Why a rule cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A pattern of `paths` or `blocked_paths`.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// A blocked pattern without any text.
    #[error("a text of `blocked_patterns` is empty and would block everything")]
    EmptyPattern,
}

/// Which rule an argument breaks, in words that say what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A path that is not absolute, where `paths` binds.
    #[error("`paths`: `{path}` is not an absolute path; write it with a leading `/`")]
    Relative {
        /// The path, cut to a printable excerpt.
        path: String,
    },
    /// A path with a `..` component. Links make its meaning a guess, so it is not resolved.
    #[error("the path `{path}` holds `..` or a NUL; write it without")]
    Traversal {
        /// The path, cut to a printable excerpt.
        path: String,
    },
    /// A path that no pattern of `paths` covers.
    #[error("`paths`: `{path}` lies outside {allowed}; name a path inside, or widen `paths`")]
    Outside {
        /// The path, cut to a printable excerpt.
        path: String,
        /// The patterns that are allowed.
        allowed: String,
    },
    /// A path that `blocked_paths` names.
    #[error("`blocked_paths`: `{path}` is blocked by `{pattern}`; leave it alone")]
    BlockedPath {
        /// The path, cut to a printable excerpt.
        path: String,
        /// The pattern that blocks it.
        pattern: String,
    },
    /// A path that `blocked_paths` names may lie in a tree that would have to be granted.
    #[error(
        "`blocked_paths`: `{pattern}` may lie in `{tree}`, and a grant of that tree cannot leave it out; \
         list narrower trees in `paths`"
    )]
    Inseparable {
        /// The tree that the arguments touch.
        tree: Tree,
        /// The pattern that may lie in it.
        pattern: String,
    },
    /// A text that `blocked_patterns` names.
    #[error("`blocked_patterns`: an argument contains `{pattern}`; take it out")]
    BlockedPattern {
        /// The text that is blocked.
        pattern: String,
    },
    /// A string longer than `max_size_bytes`.
    #[error("`max_size_bytes`: an argument is {bytes} bytes long and {most} are allowed; send less")]
    TooLong {
        /// The length of the longest string argument.
        bytes: u64,
        /// The most allowed.
        most: u64,
    },
}

/// A rule that was read completely.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    paths: Option<Vec<Tree>>,
    blocked_paths: Vec<BlockedPath>,
    blocked_patterns: Vec<TextPattern>,
    max_size_bytes: Option<u64>,
}

impl Rule {
    /// Reads the constraints of a rule.
    ///
    /// # Errors
    /// [`RuleError`] when a pattern of `paths` is not a whole tree, a pattern of `blocked_paths` is
    /// not a glob, or a blocked text is empty.
    pub(super) fn read(rule: &ToolRule) -> Result<Self, RuleError> {
        let tree = |pattern: &String| Pattern::parse(pattern).and_then(Pattern::into_tree);
        let trees = |patterns: &Vec<String>| patterns.iter().map(tree).collect();
        let paths: Option<Result<Vec<Tree>, ScopeError>> = rule.paths.as_ref().map(trees);
        Ok(Self {
            paths: paths.transpose()?,
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

    /// The trees of `paths`; `None` when the rule says nothing about paths.
    pub(super) fn trees(&self) -> Option<&[Tree]> {
        self.paths.as_deref()
    }

    /// The patterns of `blocked_paths`, without those that can lie in none of the trees of `paths`.
    pub(super) fn blocked(&self) -> impl Iterator<Item = &Pattern> {
        let matters = |blocked: &&BlockedPath| match &self.paths {
            Some(trees) => trees.iter().any(|tree| blocked.may_lie_in(tree)),
            None => true,
        };
        self.blocked_paths.iter().filter(matters).map(|blocked| &blocked.pattern)
    }

    /// Checks `blocked_patterns` and `max_size_bytes`.
    pub(super) fn check_texts(&self, arguments: &Arguments<'_>) -> Result<(), Breach> {
        let sent = arguments.texts().iter().filter(|text| text.role != Role::Joined);
        let longest = sent.map(|text| text.text.len()).max().unwrap_or(0);
        let bytes = u64::try_from(longest).unwrap_or(u64::MAX);
        if let Some(most) = self.max_size_bytes.filter(|most| bytes > *most) {
            return Err(Breach::TooLong { bytes, most });
        }
        if self.blocked_patterns.is_empty() {
            return Ok(());
        }
        for text in arguments.texts() {
            let squeezed = Squeezed::of(&text.text);
            if let Some(pattern) = self.blocked_patterns.iter().find(|p| p.is_in(&squeezed)) {
                return Err(Breach::BlockedPattern { pattern: pattern.shown.clone() });
            }
        }
        Ok(())
    }

    /// Checks `paths` and `blocked_paths` against every argument that seems to be a path.
    pub(super) fn check_paths(&self, arguments: &Arguments<'_>) -> Result<(), Breach> {
        if self.paths.is_none() && self.blocked_paths.is_empty() {
            return Ok(());
        }
        arguments.paths().try_for_each(|path| self.check_path(path))
    }

    /// The trees of `paths` that the arguments touch.
    ///
    /// # Errors
    /// [`Breach::Inseparable`] when one of them may hold a blocked path: a grant has no word for "all
    /// of this tree but that file".
    pub(super) fn touched(&self, arguments: &Arguments<'_>) -> Result<Vec<Tree>, Breach> {
        let paths: Vec<String> = arguments.paths().filter_map(normalise).collect();
        let touched = |tree: &&Tree| paths.iter().any(|path| holds(tree, path));
        let trees: Vec<Tree> = self.paths.iter().flatten().filter(touched).cloned().collect();
        for tree in &trees {
            if let Some(blocked) = self.blocked_paths.iter().find(|blocked| blocked.may_lie_in(tree)) {
                return Err(Breach::Inseparable { tree: tree.clone(), pattern: blocked.shown.clone() });
            }
        }
        Ok(trees)
    }

    fn check_path(&self, sent: &str) -> Result<(), Breach> {
        let path = || excerpt(sent);
        let normal = normalise(sent).ok_or_else(|| Breach::Traversal { path: path() })?;
        if let Some(blocked) = self.blocked_paths.iter().find(|blocked| blocked.covers(&normal)) {
            return Err(Breach::BlockedPath { path: path(), pattern: blocked.shown.clone() });
        }
        let Some(trees) = &self.paths else { return Ok(()) };
        if !normal.starts_with('/') {
            return Err(Breach::Relative { path: path() });
        }
        if trees.iter().any(|tree| holds(tree, &normal)) {
            return Ok(());
        }
        Err(Breach::Outside { path: path(), allowed: listed(trees) })
    }
}

fn listed(trees: &[Tree]) -> String {
    if trees.is_empty() {
        return "an empty list".to_owned();
    }
    trees.iter().map(|tree| format!("`{tree}`")).collect::<Vec<_>>().join(", ")
}

/// Whether a normal path is the root of a tree or lies below it, in whole components.
fn holds(tree: &Tree, path: &str) -> bool {
    path.strip_prefix(tree.path()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The network part of a policy as claims. A rate beyond what can be counted is as good as none.
///
/// # Errors
/// [`HostError`] when a host cannot be read exactly.
pub(super) fn host_claims(rule: &NetworkRule) -> Result<HostClaims, HostError> {
    let NetworkRule { allowed_domains, blocked_domains, max_requests_per_minute } = rule;
    let patterns = |texts: &[String]| texts.iter().map(|text| HostPattern::parse(text)).collect();
    Ok(HostClaims {
        allowed: allowed_domains.as_deref().map(patterns).transpose()?,
        blocked: patterns(blocked_domains)?,
        requests_per_minute: max_requests_per_minute.map(|rate| u32::try_from(rate).unwrap_or(u32::MAX)),
    })
}

/// The path without `.`, empty components and trailing slashes. `None` for `..` and NUL.
pub(super) fn normalise(path: &str) -> Option<String> {
    if path.contains('\0') || path.split('/').any(|component| component == "..") {
        return None;
    }
    let components: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let root = if path.starts_with('/') { "/" } else { "" };
    Some(format!("{root}{}", components.join("/")))
}

/// One pattern of `blocked_paths`. It blocks what it matches and everything below that; a relative
/// pattern does so wherever it lies.
#[derive(Debug, Clone)]
struct BlockedPath {
    shown: String,
    pattern: Pattern,
    globs: GlobSet,
    absolute: bool,
}

impl BlockedPath {
    fn read(pattern: &str) -> Result<Self, ScopeError> {
        let malformed = |reason| ScopeError::Malformed { pattern: excerpt(pattern), reason };
        let absolute = pattern.starts_with('/');
        let parsed = if absolute {
            Pattern::parse(pattern)?
        } else {
            check_relative(pattern).map_err(malformed)?;
            // A glob cannot be taken out of a granted tree, so `Grant::new` refuses every run that
            // is granted a tree. That is what a name that may lie anywhere needs.
            Pattern::Glob(pattern.into())
        };
        let base = pattern.strip_suffix("/**").unwrap_or(pattern);
        let base = if absolute { base.to_owned() } else { format!("**/{base}") };
        let globs = globs([&base, &format!("{base}/**")]).map_err(|_| malformed("it is not a glob"))?;
        Ok(Self { shown: excerpt(pattern), pattern: parsed, globs, absolute })
    }

    /// Whether something that the pattern blocks can lie in the tree, judged by the components before
    /// its first wildcard.
    fn may_lie_in(&self, tree: &Tree) -> bool {
        if !self.absolute {
            return true;
        }
        let literal = |part: &&str| !part.contains(['*', '?', '[', '{', '\\', '!']);
        let text = self.pattern.to_string();
        let root: Vec<&str> = text.split('/').take_while(literal).collect();
        let tree: Vec<&str> = tree.path().split('/').collect();
        root.starts_with(&tree) || tree.starts_with(&root)
    }

    fn covers(&self, normal: &str) -> bool {
        let path = if self.absolute { normal } else { normal.trim_start_matches('/') };
        self.globs.is_match(path)
    }
}

fn globs(patterns: [&str; 2]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(GlobBuilder::new(pattern).literal_separator(true).build()?);
    }
    set.build()
}

fn check_relative(pattern: &str) -> Result<(), &'static str> {
    if pattern.contains('\0') {
        return Err("it holds a NUL");
    }
    if pattern == "**" {
        return Err("it would block everything; set `allowed` to false instead");
    }
    for component in pattern.split('/') {
        match component {
            "" | "." | ".." => return Err("it holds an empty component, `.` or `..`"),
            shell if shell.starts_with(['~', '$']) => {
                return Err("`~` and variables are not known here; write the name itself, such as `.ssh/**`");
            }
            _named => {}
        }
    }
    Ok(())
}

/// A text of `blocked_patterns`: literal, but blind to the amount of white space. Where it holds a
/// `|`, its parts may also stand in stages of a pipeline with something between them, so that
/// `curl|bash` finds `curl -s https://x | sudo bash`.
#[derive(Debug, Clone)]
struct TextPattern {
    shown: String,
    stages: Vec<String>,
}

impl TextPattern {
    fn read(pattern: &str) -> Result<Self, RuleError> {
        let squeezed = squeeze(pattern);
        let stages: Vec<String> = squeezed.split('|').map(|stage| stage.trim().to_owned()).collect();
        if stages.iter().all(String::is_empty) {
            return Err(RuleError::EmptyPattern);
        }
        Ok(Self { shown: excerpt(pattern), stages })
    }

    fn is_in(&self, text: &Squeezed) -> bool {
        match self.stages.as_slice() {
            [only] => text.whole.contains(&**only),
            stages => text.pipelines.iter().any(|line| stages_in_order(stages, line)),
        }
    }
}

fn stages_in_order(stages: &[String], line: &str) -> bool {
    let mut parts = line.split('|');
    stages.iter().all(|stage| parts.any(|part| part.contains(&**stage)))
}

/// A text with its white space squeezed, and those of its command lines that hold a `|`.
pub(super) struct Squeezed {
    /// All of it on one line.
    pub(super) whole: String,
    /// The lines with a pipe; a line that ends in `|` or `\` goes on in the next.
    pub(super) pipelines: Vec<String>,
}

impl Squeezed {
    /// Squeezes a text.
    pub(super) fn of(text: &str) -> Self {
        let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
        let mut pipelines = Vec::new();
        let mut open = String::new();
        for line in joined.lines() {
            open.push_str(line);
            open.push(' ');
            if line.trim_end().ends_with('|') {
                continue;
            }
            let line = std::mem::take(&mut open);
            if line.contains('|') {
                pipelines.push(squeeze(&line));
            }
        }
        if open.contains('|') {
            pipelines.push(squeeze(&open));
        }
        Self { whole: squeeze(&joined), pipelines }
    }
}

/// Every run of white space as one space, none at the ends.
fn squeeze(text: &str) -> String {
    let mut squeezed = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !squeezed.is_empty() {
            squeezed.push(' ');
        }
        squeezed.push_str(word);
    }
    squeezed
}
