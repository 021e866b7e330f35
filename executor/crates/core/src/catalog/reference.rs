//! The address of a tool in an OCI registry: `oci://HOST[:PORT]/NAME`, with `:TAG` or `@sha256:DIGEST`.
//!
//! A parsed repository is safe to put into a URL: its host and name have no character with a special meaning in URLs,
//! and the name has no `..`.

use a2g_types::ident::{ToolName, excerpt};
use a2g_types::tool::Digest;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

const SCHEME: &str = "oci://";
const DIGEST_PREFIX: &str = "sha256:";
/// The maximum length of a repository's name, in bytes, as in other registry clients.
const MAX_NAME_BYTES: usize = 255;
/// The maximum length of a tag, in bytes, from the OCI distribution specification.
const MAX_TAG_BYTES: usize = 128;

/// The reason why a text is not the address of a tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text does not begin with `oci://`.
    #[error("`{0}` is not an address of a registry: it has to begin with `oci://`")]
    Scheme(String),
    /// The host or the port is not valid.
    #[error(
        "`{0}` has no valid registry: `oci://` has to be followed by a host name or IP address, with an optional port"
    )]
    Host(String),
    /// The name is not valid.
    #[error(
        "`{0}` has no valid name: lower-case letters and digits, separated by `.`, `_`, `-` or `/`, without `..`, at most \
         {MAX_NAME_BYTES} bytes"
    )]
    Name(String),
    /// The tag is not valid.
    #[error("`{0}` has no valid tag: letters, digits, `_`, `.` and `-`, at most {MAX_TAG_BYTES} bytes")]
    Tag(String),
    /// The digest is not valid.
    #[error(
        "`{0}` has no valid digest: after `@sha256:`, 64 hexadecimal digits in lower case have to follow"
    )]
    Digest(String),
    /// The text has a tag and a digest.
    #[error("`{0}` names a tag and a digest, but the digest alone identifies the version: leave the tag out")]
    TagAndDigest(String),
    /// The text has neither a tag nor a digest.
    #[error("`{0}` names no version: add `@sha256:DIGEST` or `:TAG`")]
    NoVersion(String),
    /// A digest is required.
    #[error(
        "`{0}` has no digest, and a tag may be moved to another tool: replace it by the address with `@sha256:` that \
         `a2g-executor tool add {0}` prints"
    )]
    Unpinned(String),
}

/// A repository of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Repository {
    host: String,
    port: Option<u16>,
    name: String,
}

/// A version of the tool in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// A name for a version, which the owner of the repository may move.
    Tag(String),
    /// The digest of the tool's package.
    Digest(Digest),
}

/// The address of a tool, with or without a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The repository.
    pub repository: Repository,
    /// The version.
    pub version: Option<Version>,
}

/// The address of exactly one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedReference {
    /// The repository.
    pub repository: Repository,
    /// The digest of the package.
    pub digest: Digest,
}

/// A tool of a registry, listed in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteTool {
    /// The address.
    pub reference: PinnedReference,
    /// The name that the tool must have.
    pub name: Option<ToolName>,
}

impl Reference {
    /// Returns `true` if a command's argument is an address rather than a path.
    #[must_use]
    pub fn is_address(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Parses an address.
    ///
    /// # Errors
    /// [`ReferenceError`] with the part that is not valid.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let said = || excerpt(text);
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| ReferenceError::Scheme(said()))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = parse_authority(authority).ok_or_else(|| ReferenceError::Host(said()))?;
        let (path, digest) = match path.split_once('@') {
            Some((path, digest)) => (path, Some(digest)),
            None => (path, None),
        };
        let (name, tag) = match path.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (path, None),
        };
        if !is_name(name) {
            return Err(ReferenceError::Name(said()));
        }
        let version = match (tag, digest) {
            (Some(_), Some(_)) => return Err(ReferenceError::TagAndDigest(said())),
            (Some(tag), None) if is_tag(tag) => Some(Version::Tag(tag.to_owned())),
            (Some(_), None) => return Err(ReferenceError::Tag(said())),
            (None, Some(digest)) => {
                let digits = digest.strip_prefix(DIGEST_PREFIX);
                let digest = digits.and_then(|digits| Digest::parse(digits).ok());
                Some(Version::Digest(digest.ok_or_else(|| ReferenceError::Digest(said()))?))
            }
            (None, None) => None,
        };
        Ok(Self { repository: Repository { host, port, name: name.to_owned() }, version })
    }
}

impl PinnedReference {
    /// Parses an address with a digest.
    ///
    /// # Errors
    /// [`ReferenceError`] if the text is invalid, or has no digest.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let Reference { repository, version } = Reference::parse(text)?;
        match version {
            Some(Version::Digest(digest)) => Ok(Self { repository, digest }),
            Some(Version::Tag(_)) => Err(ReferenceError::Unpinned(text.to_owned())),
            None => Err(ReferenceError::NoVersion(excerpt(text))),
        }
    }
}

impl Repository {
    /// The host and port, in the form of a URL.
    #[must_use]
    pub fn authority(&self) -> String {
        let Self { host, port, name: _ } = self;
        port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
    }

    /// The name within the registry.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `true` if the registry is on this machine: its host is `localhost` or a loopback address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_local_host(&self.host)
    }
}

/// Returns `true` for `localhost` and loopback addresses, with IPv6 in brackets.
#[must_use]
pub fn is_local_host(host: &str) -> bool {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host == "localhost"
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || v6.and_then(|host| host.parse::<Ipv6Addr>().ok()).is_some_and(|address| address.is_loopback())
}

/// Returns `true` for a valid tag.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= MAX_TAG_BYTES
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

fn parse_authority(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    };
    let port = match port {
        // `parse` alone would accept a sign.
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse().ok().filter(|port| *port != 0)?)
        }
        Some(_) => return None,
        None => None,
    };
    let is_valid = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => is_host_name(host),
    };
    is_valid.then(|| (host.to_ascii_lowercase(), port))
}

fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(is_label)
}

/// The grammar of the OCI distribution specification: words joined by one `.`, one or two `_`, or any number of `-`.
fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let starts_and_ends =
            part.bytes().next().is_some_and(is_word) && part.bytes().last().is_some_and(is_word);
        let mut separators = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        starts_and_ends
            && separators
                .all(|text| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|byte| byte == b'-'))
    };
    name.len() <= MAX_NAME_BYTES && name.split('/').all(is_part)
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.authority(), self.name)
    }
}

impl fmt::Display for PinnedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{DIGEST_PREFIX}{}", self.repository, self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_a_name_and_a_version() {
        let digest = "a".repeat(64);
        for (text, authority, name) in [
            ("oci://registry.example.com/tools/greet:1.0.0", "registry.example.com", "tools/greet"),
            ("oci://127.0.0.1:5000/a.b_c__d---e:v1", "127.0.0.1:5000", "a.b_c__d---e"),
            ("oci://[::1]:5000/greet:_x", "[::1]:5000", "greet"),
            ("oci://Registry/greet", "registry", "greet"),
            (&format!("oci://[::1]/greet@sha256:{digest}"), "[::1]", "greet"),
        ] {
            let Reference { repository, version } = Reference::parse(text).unwrap();
            assert_eq!((repository.authority().as_str(), repository.name()), (authority, name), "{text}");
            assert_eq!(version.is_none(), text.ends_with("/greet"), "{text}");
        }
        let pinned = format!("oci://registry.example.com/greet@sha256:{digest}");
        assert_eq!(PinnedReference::parse(&pinned).unwrap().to_string(), pinned);
    }

    #[test]
    fn what_a_url_could_read_otherwise_is_refused() {
        let hosts = [
            "", "a b", "a@b", "u:p@h", "a?", "a#", "[::1", "::1", "-a", "a..b", "h:0", "h:+1", "h:99999",
            "h:",
        ];
        for host in hosts {
            let refused = Reference::parse(&format!("oci://{host}/greet:1"));
            assert!(matches!(refused, Err(ReferenceError::Host(_))), "{host}: {refused:?}");
        }
        let long = "a".repeat(256);
        let names = [
            "", "..", "a/../b", "a..b", "/a", "a/", "a//b", "A", "a%2e", "a?b", "a#b", ".a", "a_", "a___b",
            &long,
        ];
        for name in names {
            let refused = Reference::parse(&format!("oci://h/{name}"));
            assert!(matches!(refused, Err(ReferenceError::Name(_))), "{name}: {refused:?}");
        }
        for tag in ["", "..", "-a", "a/b", "a b", "a%", &"a".repeat(129)] {
            assert!(
                matches!(Reference::parse(&format!("oci://h/a:{tag}")), Err(ReferenceError::Tag(_))),
                "{tag}"
            );
        }
        for digest in ["", "sha256:", "sha512:aa", &format!("sha256:{}", "A".repeat(64))] {
            let refused = Reference::parse(&format!("oci://h/a@{digest}"));
            assert!(matches!(refused, Err(ReferenceError::Digest(_))), "{digest}: {refused:?}");
        }
        assert!(matches!(Reference::parse("https://h/a:1"), Err(ReferenceError::Scheme(_))));
        let both = format!("oci://h/a:1@sha256:{}", "a".repeat(64));
        assert!(matches!(Reference::parse(&both), Err(ReferenceError::TagAndDigest(_))));
    }

    #[test]
    fn a_tag_does_not_pin() {
        let error = PinnedReference::parse("oci://h/a:1").unwrap_err();
        assert!(error.to_string().contains("`a2g-executor tool add oci://h/a:1` prints"), "{error}");
        assert!(matches!(PinnedReference::parse("oci://h/a"), Err(ReferenceError::NoVersion(_))));
    }

    #[test]
    fn this_machine_is_loopback_alone() {
        for (host, local) in [("127.0.0.1", true), ("127.9.9.9", true), ("[::1]", true), ("localhost", true)]
            .into_iter()
            .chain([
                ("10.0.0.1", false),
                ("127.0.0.1.example.com", false),
                ("localhost.example.com", false),
                ("[::2]", false),
                ("0.0.0.0", false),
            ])
        {
            assert_eq!(is_local_host(host), local, "{host}");
        }
    }
}
