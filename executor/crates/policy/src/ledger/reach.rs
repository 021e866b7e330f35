//! The folders and hosts of a call, as it was granted or used them, and which literals of policies they concern.
//!
//! They are kept as they are, and compared with the literals when a decision asks: another set of policies has other
//! literals, and the past stays the same. Where a pattern cannot be compared exactly, it concerns the literal.

use std::collections::BTreeSet;

/// Maximum size in bytes of all patterns of one call. One with more concerns every literal.
const MAX_PATTERN_BYTES: usize = 8 * 1024;
/// The characters with a special meaning in a pattern of paths.
const SPECIAL: [char; 5] = ['*', '?', '[', '{', '\\'];

/// A part of the filesystem.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Folders {
    is_everything: bool,
    areas: BTreeSet<Area>,
    /// Folders and files that are excluded, each with everything below it.
    blocked: BTreeSet<String>,
}

/// A pattern of paths, reduced to what can be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Area {
    /// The folder that has all matches; empty for the root.
    base: String,
    /// `false` for the path of one file.
    is_tree: bool,
}

impl Folders {
    /// The whole filesystem.
    pub(super) fn every() -> Self {
        Self { is_everything: true, ..Self::default() }
    }

    /// What these patterns match, without what the `blocked` ones match.
    pub(super) fn new<'a>(
        granted: impl Iterator<Item = &'a str> + Clone,
        blocked: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        if granted.clone().chain(blocked.clone()).map(str::len).sum::<usize>() > MAX_PATTERN_BYTES {
            return Self::every();
        }
        Self {
            is_everything: false,
            areas: granted.map(Area::of_pattern).collect(),
            blocked: blocked.filter_map(blocked_path).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_everything && self.areas.is_empty()
    }

    /// `true` if something in the folder `literal` belongs to it.
    pub(super) fn concerns(&self, literal: &str) -> bool {
        let literal = literal.trim_end_matches('/');
        let is_blocked = |path: &str| self.blocked.iter().any(|blocked| is_within(path, blocked));
        self.is_everything
            || self.areas.iter().any(|Area { base, is_tree }| {
                let lies_inside = is_within(base, literal) && !is_blocked(base);
                lies_inside || (*is_tree && is_within(literal, base) && !is_blocked(literal))
            })
    }
}

impl Area {
    fn of_pattern(pattern: &str) -> Self {
        // A pattern that several layers have narrowed begins with the folder that contains it: `/a/** & /a/*.txt`.
        let pattern = pattern.split(" & ").next().unwrap_or(pattern);
        let mut base = String::new();
        for name in pattern.split('/').filter(|name| !name.is_empty()) {
            if name.contains(SPECIAL) {
                return Self { base, is_tree: true };
            }
            base.push('/');
            base.push_str(name);
        }
        Self { base, is_tree: false }
    }
}

/// The path that a pattern blocks with everything below it; `None` for a pattern that does not name one path.
fn blocked_path(pattern: &str) -> Option<String> {
    let path = pattern.strip_suffix("/**").unwrap_or(pattern);
    let names_one = path.starts_with('/') && !path.contains(SPECIAL);
    names_one.then(|| path.trim_end_matches('/').to_owned())
}

/// `true` if a path is the folder, or lies below it. An empty path is the root.
fn is_within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A set of hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Hosts {
    is_everything: bool,
    allowed: BTreeSet<HostPart>,
    blocked: BTreeSet<HostPart>,
}

/// A host, or all hosts below a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum HostPart {
    Exactly(String),
    Below(String),
}

impl Hosts {
    /// All hosts.
    pub(super) fn every() -> Self {
        Self { is_everything: true, ..Self::default() }
    }

    /// The hosts that these patterns match (`example.com`, `*.example.com`, `https://example.com:8443`, `*`), without those
    /// that the `blocked` ones match.
    pub(super) fn new<'a>(
        allowed: impl Iterator<Item = &'a str> + Clone,
        blocked: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let bytes = allowed.clone().chain(blocked.clone()).map(str::len).sum::<usize>();
        if bytes > MAX_PATTERN_BYTES {
            return Self::every();
        }
        Self {
            is_everything: allowed.clone().any(|pattern| pattern == "*"),
            allowed: allowed.filter(|pattern| *pattern != "*").map(HostPart::of_pattern).collect(),
            // A pattern with a protocol and a port leaves the other ports of its host.
            blocked: blocked
                .filter(|pattern| *pattern != "*" && !pattern.contains("://"))
                .map(HostPart::of_pattern)
                .collect(),
        }
    }

    /// The host of an authority or a URL, such as `https://api.example.com:443`.
    pub(super) fn of_authority(authority: &str) -> Self {
        Self { allowed: [HostPart::Exactly(host_of(authority))].into(), ..Self::default() }
    }

    /// `true` if the literal names one of the hosts.
    pub(super) fn concerns(&self, literal: &HostLiteral) -> bool {
        if self.excludes(literal) {
            return false;
        }
        self.is_everything || self.allowed.iter().any(|part| literal.names_one_of(part))
    }

    /// `true` if all hosts of the literal are blocked.
    fn excludes(&self, literal: &HostLiteral) -> bool {
        let blocks_below = |name: &str| {
            self.blocked.iter().any(|part| match part {
                HostPart::Exactly(_) => false,
                HostPart::Below(parent) => is_host_within(name, parent),
            })
        };
        // `*.example.com` does not block `example.com` itself.
        let blocks_itself = |name: &str| {
            self.blocked.iter().any(|part| match part {
                HostPart::Exactly(host) => host == name,
                HostPart::Below(parent) => name != parent && is_host_within(name, parent),
            })
        };
        match literal {
            HostLiteral::NameAndBelow(name) => blocks_below(name) && blocks_itself(name),
            HostLiteral::Below(parent) => blocks_below(parent),
            HostLiteral::EveryName => false,
        }
    }
}

/// The hosts that a literal of a policy names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostLiteral {
    /// `Host::"example.com"` is the name and every name below it.
    NameAndBelow(String),
    /// `Host::"*.example.com"`.
    Below(String),
    /// `Host::"*"`.
    EveryName,
}

impl HostLiteral {
    /// Reads a literal. One with a protocol and a port stands for its host at every port.
    pub(super) fn of(text: &str) -> Self {
        match (text, text.strip_prefix("*.")) {
            ("*", _) => Self::EveryName,
            (_, Some(parent)) => Self::Below(host_of(parent)),
            (name, None) => Self::NameAndBelow(host_of(name)),
        }
    }

    fn names_one_of(&self, part: &HostPart) -> bool {
        match (self, part) {
            (Self::EveryName, _) => true,
            (Self::NameAndBelow(name), HostPart::Exactly(host)) => is_host_within(host, name),
            (Self::Below(parent), HostPart::Exactly(host)) => host != parent && is_host_within(host, parent),
            (Self::NameAndBelow(name) | Self::Below(name), HostPart::Below(parent)) => {
                is_host_within(parent, name) || is_host_within(name, parent)
            }
        }
    }
}

/// The folders and hosts that a set of policies names, ready to be compared with what calls had.
#[derive(Debug, Default)]
pub(crate) struct LiteralNames {
    pub(super) folders: Vec<String>,
    /// With the text of each.
    pub(super) hosts: Vec<(String, HostLiteral)>,
}

impl LiteralNames {
    /// Reads the literals; one that is there twice counts once.
    pub(crate) fn new(
        folders: impl IntoIterator<Item = String>,
        hosts: impl IntoIterator<Item = String>,
    ) -> Self {
        let hosts = hosts.into_iter().collect::<BTreeSet<_>>().into_iter();
        Self {
            folders: folders.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
            hosts: hosts.map(|text| (text.clone(), HostLiteral::of(&text))).collect(),
        }
    }
}

impl HostPart {
    fn of_pattern(pattern: &str) -> Self {
        match pattern.strip_prefix("*.") {
            Some(parent) => Self::Below(host_of(parent)),
            None => Self::Exactly(host_of(pattern)),
        }
    }
}

/// The host of an authority, without protocol, port, brackets and a last dot, in lower case.
fn host_of(authority: &str) -> String {
    let rest = authority.split_once("://").map_or(authority, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    // Of a host without brackets, more than one colon are those of an IPv6 address.
    let host = match rest.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (host.ends_with(']') || !host.contains(':')) => host,
        Some(_) | None => rest,
    };
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// `true` if a host is the other one, or a name below it.
fn is_host_within(host: &str, parent: &str) -> bool {
    host.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_concerns_the_folders_that_it_opens_a_part_of() {
        // granted, blocked, literal, concerned
        let cases: &[(&[&str], &[&str], &str, bool)] = &[
            (&["/workspace/**"], &[], "/workspace", true),
            (&["/workspace/**"], &[], "/workspace/secrets", true),
            (&["/workspace/**"], &["/workspace/secrets/**"], "/workspace/secrets", false),
            (&["/workspace/**"], &["/workspace/secrets"], "/workspace/secrets", false),
            (&["/workspace/**"], &["/workspace/secrets"], "/workspace/secrets/deep", false),
            (&["/workspace/**"], &["/workspace/secrets/deep"], "/workspace/secrets", true),
            (&["/workspace/**"], &["**/*.pem"], "/workspace/secrets", true),
            (&["/workspace/**"], &[], "/works", false),
            (&["/workspace/**"], &[], "/workspaces", false),
            (&["/workspace/secrets/**"], &[], "/workspace", true),
            (&["/workspace/a.txt"], &[], "/workspace", true),
            (&["/workspace/a.txt"], &[], "/workspace/secrets", false),
            (&["/workspace/*.txt"], &[], "/workspace/secrets", true),
            (&["/workspace/** & /workspace/*.txt"], &[], "/tmp", false),
            (&["/workspace/secrets/**"], &["/workspace/secrets"], "/workspace", false),
            (&["/tmp/**", "/workspace/b/**"], &[], "/workspace/b", true),
            (&[], &[], "/workspace", false),
        ];
        for (granted, blocked, literal, expected) in cases {
            let folders = Folders::new(granted.iter().copied(), blocked.iter().copied());
            assert_eq!(folders.concerns(literal), *expected, "{granted:?} without {blocked:?}: {literal}");
            assert!(Folders::every().concerns(literal));
        }
        let long = "/x".repeat(MAX_PATTERN_BYTES);
        assert!(Folders::new([&*long].into_iter(), [].into_iter()).concerns("/workspace"));
    }

    #[test]
    fn a_set_of_hosts_concerns_the_literals_that_it_has_a_host_of() {
        // allowed, blocked, literal, concerned
        let cases: &[(&[&str], &[&str], &str, bool)] = &[
            (&["api.example.com"], &[], "api.example.com", true),
            (&["api.example.com"], &[], "example.com", true),
            (&["api.example.com"], &[], "ample.com", false),
            (&["example.com"], &[], "api.example.com", false),
            (&["*.example.com"], &[], "api.example.com", true),
            (&["*.example.com"], &[], "example.com", true),
            (&["*.example.com"], &["api.example.com", "*.api.example.com"], "api.example.com", false),
            (&["*.example.com"], &["api.example.com"], "api.example.com", true),
            (&["*.example.com"], &["*.api.example.com"], "api.example.com", true),
            (&["*.example.com"], &["*.api.example.com"], "v1.api.example.com", false),
            (&["https://Example.com:8443"], &[], "example.com", true),
            (&["*"], &[], "example.org", true),
            (&["example.org"], &[], "*", true),
            (&["api.example.com"], &[], "*.example.com", true),
            (&["example.com"], &[], "*.example.com", false),
            (&["*.example.com"], &["*.example.com"], "*.example.com", false),
            (&["example.com"], &[], "https://example.com:8443", true),
            (&["::1"], &[], "[::1]", true),
            (&[], &[], "example.com", false),
        ];
        for (allowed, blocked, literal, expected) in cases {
            let hosts = Hosts::new(allowed.iter().copied(), blocked.iter().copied());
            let found = hosts.concerns(&HostLiteral::of(literal));
            assert_eq!(found, *expected, "{allowed:?} without {blocked:?}: {literal}");
        }
        for authority in
            ["https://api.example.com:443", "tcp://API.example.com.:5", "http://api.example.com/v1?x=1"]
        {
            assert_eq!(Hosts::of_authority(authority), Hosts::of_authority("api.example.com"), "{authority}");
        }
        let address = Hosts::of_authority("https://[2001:db8::1]:443");
        assert!(address.concerns(&HostLiteral::of("2001:db8::1")));
    }
}
