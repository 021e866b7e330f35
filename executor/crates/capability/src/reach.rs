//! The hosts that a run may reach: hosts, patterns of hosts, and the meet of the layers' limits on hosts and
//! requests.
//!
//! A host is parsed once, into the canonical spelling that is compared, resolved and sent: lower case, punycode,
//! without the trailing dot. An ambiguous text, such as `0x7f.1` or `allowed@evil`, is refused.

use super::grant::Ceilings;
use super::requests::{RequestRule, RequestTarget};
use a2g_types::ident::excerpt;
use a2g_types::limit::{Bound, Layer};
use a2g_types::request::PlainPath;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a label of a name in bytes.
const MAX_LABEL_BYTES: usize = 63;
/// The beginning of a pattern of one host over TLS.
const HTTPS: &str = "https://";
/// The port of such a pattern that names none.
const HTTPS_PORT: u16 = 443;

/// A host name in its canonical spelling: lower case, punycode, no trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(String);

/// The host of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name, which has to be resolved.
    Name(Domain),
    /// An address.
    Address(IpAddr),
}

/// A pattern of hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// `*`: every name, but no address.
    EveryName,
    /// `*.x`: every name below `x`, but not `x` itself.
    Below(Domain),
    /// One host, at every port and over every protocol.
    Exactly(Host),
    /// `https://x` or `https://x:port`: requests over HTTPS to one port of one host, and nothing else there.
    Https(Host, u16),
}

/// The reason why a text is not a valid host or pattern of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is neither a host name (such as `api.example.com`), `*.` and a name, `*`, `https://` and a host without a \
     path, nor an IP address in its usual notation (such as `192.0.2.1`)"
)]
pub struct HostError {
    text: String,
}

impl Domain {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Host {
    /// Parses a host as written in a URL: a name in any case and script with at most one trailing dot, an IPv4 address,
    /// or an IPv6 address in brackets.
    ///
    /// # Errors
    /// [`HostError`] for anything else, and for an address that is not in canonical form: some parsers read `127.1`,
    /// `0x7f000001` and `017700000001` all as 127.0.0.1.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let error = || HostError { text: excerpt(text) };
        // A longer text is refused without parsing. It cannot be a name of valid length: a character has at most 4
        // bytes in UTF-8, and takes at least one byte in punycode.
        if text.len() > 4 * MAX_NAME_BYTES {
            return Err(error());
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        // The parser would decode `%`, and other parsers take the text before `@` as credentials: they could read
        // another host here.
        if name.contains(['%', '@']) {
            return Err(error());
        }
        match url::Host::parse(name).map_err(|_| error())? {
            url::Host::Domain(name) => {
                let is_name_byte = |byte: u8| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
                };
                let is_valid_label = |label: &str| {
                    (1..=MAX_LABEL_BYTES).contains(&label.len()) && label.bytes().all(is_name_byte)
                };
                if name.len() <= MAX_NAME_BYTES && name.split('.').all(is_valid_label) {
                    Ok(Self::Name(Domain(name)))
                } else {
                    Err(error())
                }
            }
            url::Host::Ipv4(address) if text == address.to_string() => Ok(Self::Address(address.into())),
            url::Host::Ipv6(address) if text.eq_ignore_ascii_case(&format!("[{address}]")) => {
                Ok(Self::Address(address.into()))
            }
            url::Host::Ipv4(_) | url::Host::Ipv6(_) => Err(error()),
        }
    }
}

impl fmt::Display for Host {
    /// Formats the host as in a URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name.as_str()),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl HostPattern {
    /// Parses a pattern in one of the forms of the variants. An IPv6 address may be written without brackets.
    ///
    /// # Errors
    /// [`HostError`] if the text is not a valid pattern.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text == "*" {
            return Ok(Self::EveryName);
        }
        if let Some(authority) = text.strip_prefix(HTTPS) {
            return Self::parse_https(authority).ok_or_else(|| HostError { text: excerpt(text) });
        }
        let host = match text.parse::<std::net::Ipv6Addr>() {
            Ok(_) => Host::parse(&format!("[{text}]"))?,
            Err(_) => match text.strip_prefix("*.") {
                Some(parent) => match Host::parse(parent)? {
                    Host::Name(parent) => return Ok(Self::Below(parent)),
                    Host::Address(_) => return Err(HostError { text: excerpt(text) }),
                },
                None => Host::parse(text)?,
            },
        };
        Ok(Self::Exactly(host))
    }

    /// Parses what follows [`HTTPS`]: a host, and a port in its shortest form.
    fn parse_https(authority: &str) -> Option<Self> {
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let number = port.parse::<u16>().ok().filter(|number| number.to_string() == port);
                (host, number.filter(|number| *number != 0)?)
            }
            Some(_) | None => (authority, HTTPS_PORT),
        };
        Some(Self::Https(Host::parse(host).ok()?, port))
    }

    /// `true` if the pattern matches this host at every port and over every protocol.
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        self.covers(&Self::Exactly(host.clone()))
    }

    /// `true` if there is something that both patterns match.
    fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// `true` if the pattern matches everything that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let is_below = |name: &Domain, parent: &Domain| {
            name.0.strip_suffix(&parent.0).is_some_and(|rest| rest.ends_with('.'))
        };
        match (self, other) {
            (
                Self::EveryName,
                Self::EveryName
                | Self::Below(_)
                | Self::Exactly(Host::Name(_))
                | Self::Https(Host::Name(_), _),
            ) => true,
            (Self::Below(parent), Self::Below(other)) => parent == other || is_below(other, parent),
            (Self::Below(parent), Self::Exactly(Host::Name(name)) | Self::Https(Host::Name(name), _)) => {
                is_below(name, parent)
            }
            (Self::Exactly(host), Self::Exactly(other) | Self::Https(other, _)) => host == other,
            (Self::Https(..), Self::Https(..)) => self == other,
            (
                Self::EveryName | Self::Below(_),
                Self::Exactly(Host::Address(_)) | Self::Https(Host::Address(_), _),
            )
            | (Self::Below(_), Self::EveryName)
            | (Self::Exactly(_), Self::EveryName | Self::Below(_))
            | (Self::Https(..), Self::EveryName | Self::Below(_) | Self::Exactly(_)) => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryName => f.write_str("*"),
            Self::Below(parent) => write!(f, "*.{}", parent.as_str()),
            Self::Exactly(host) => write!(f, "{host}"),
            Self::Https(host, HTTPS_PORT) => write!(f, "{HTTPS}{host}"),
            Self::Https(host, port) => write!(f, "{HTTPS}{host}:{port}"),
        }
    }
}

/// The limits that one layer sets on the hosts that a run may reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostClaims {
    /// The hosts that may be reached. `None` leaves them to the other layers; an empty list allows none.
    pub allowed: Option<Vec<HostPattern>>,
    /// The hosts that may not be reached, even if another layer allows them.
    pub blocked: Vec<HostPattern>,
    /// The only requests that may be sent to these hosts. `None` leaves them to the other layers.
    pub requests: Option<Vec<RequestRule>>,
    /// Maximum number of requests per minute of the agent, in all of its runs together.
    pub requests_per_minute: Option<u32>,
}

impl HostClaims {
    /// `true` if these limits alone allow everything that `wanted` matches.
    #[must_use]
    pub fn allows(&self, wanted: &HostPattern) -> bool {
        let covers = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.covers(wanted));
        !self.blocks(wanted) && self.allowed.as_deref().is_none_or(covers)
    }

    /// `true` if these limits block something that `wanted` matches.
    #[must_use]
    pub fn blocks(&self, wanted: &HostPattern) -> bool {
        self.blocked.iter().any(|pattern| pattern.overlaps(wanted))
    }
}

/// The hosts that a run may reach, each pattern with the layer that set it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// An antichain: no pattern in it covers another. `None` if no layer has set a list.
    pub(super) allowed: Option<BTreeMap<HostPattern, Layer>>,
    /// Every layer's own list, to find the layer that does not allow a host.
    lists: BTreeSet<(Layer, BTreeSet<HostPattern>)>,
    pub(super) blocked: BTreeSet<(HostPattern, Layer)>,
    /// The list of each layer that has one. A request has to be in all of them.
    requests: BTreeSet<(Layer, BTreeSet<RequestRule>)>,
    pub(super) requests_per_minute: Option<Bound<u32>>,
}

/// The reason why a host may not be reached, with the layer whose list refuses it; of several, the first in the order of
/// [`Layer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachError {
    /// No allowed pattern of the layer matches the host.
    NotAllowed(Layer),
    /// The host is an IP address that no allowed pattern of the layer lists.
    AddressNotAllowed(Layer),
    /// A blocked pattern of the layer matches the host.
    Blocked(Layer),
}

impl ReachError {
    /// The layer whose list refuses the host.
    #[must_use]
    pub fn layer(self) -> Layer {
        match self {
            Self::NotAllowed(layer) | Self::AddressNotAllowed(layer) | Self::Blocked(layer) => layer,
        }
    }
}

impl Reach {
    /// The limits of one layer.
    pub(super) fn from_claims(layer: Layer, claims: HostClaims) -> Self {
        let HostClaims { allowed, blocked, requests, requests_per_minute } = claims;
        let remove_covered = |patterns: Vec<HostPattern>| {
            let is_covered =
                |one: &HostPattern| patterns.iter().any(|other| other != one && other.covers(one));
            patterns.iter().filter(|one| !is_covered(one)).map(|one| (one.clone(), layer)).collect()
        };
        let list = allowed.iter().map(|patterns| (layer, patterns.iter().cloned().collect()));
        Self {
            lists: list.collect(),
            allowed: allowed.map(remove_covered),
            blocked: blocked.into_iter().map(|pattern| (pattern, layer)).collect(),
            requests: requests.into_iter().map(|rules| (layer, rules.into_iter().collect())).collect(),
            requests_per_minute: requests_per_minute.map(|value| Bound { value, layer }),
        }
    }

    /// The hosts that the executor itself may reach, as configured by the operator. They are not part of any grant.
    #[must_use]
    pub fn for_executor(hosts: Vec<HostPattern>) -> Self {
        Self::from_claims(Layer::Executor, HostClaims { allowed: Some(hosts), ..HostClaims::default() })
    }

    /// The host of a request that waited for the commit of its run, as far as the executor's ceilings allow it now.
    /// `blocked` are the hosts that were blocked for the run.
    #[must_use]
    pub fn for_held_request(host: HostPattern, ceilings: &Ceilings, blocked: Vec<HostPattern>) -> Self {
        let allowed = ceilings.hosts.allowed.clone().filter(|_| ceilings.network).unwrap_or_default();
        let mut all_blocked = ceilings.hosts.blocked.clone();
        all_blocked.extend(blocked);
        let claims = HostClaims { allowed: Some(allowed), blocked: all_blocked, ..HostClaims::default() };
        Self::for_executor(vec![host]).meet(Self::from_claims(Layer::Executor, claims))
    }

    /// The meet of both sides: the intersection of the allowed hosts and requests, and the union of the
    /// blocked hosts.
    pub(super) fn meet(self, other: Self) -> Self {
        let mut blocked = self.blocked;
        blocked.extend(other.blocked);
        let mut lists = self.lists;
        lists.extend(other.lists);
        let mut requests = self.requests;
        requests.extend(other.requests);
        Self {
            lists,
            allowed: match (self.allowed, other.allowed) {
                (Some(a), Some(b)) => Some(intersect(&a, &b)),
                (only, None) | (None, only) => only,
            },
            blocked,
            requests,
            requests_per_minute: match (self.requests_per_minute, other.requests_per_minute) {
                (Some(a), Some(b)) => Some(a.narrower(b)),
                (only, None) | (None, only) => only,
            },
        }
    }

    /// `true` if a layer has set a list of allowed hosts, and a blocked pattern covers each pattern in it.
    pub(super) fn is_allowed_list_blocked(&self) -> bool {
        let is_blocked = |pattern: &HostPattern| self.blocked.iter().any(|(block, _)| block.covers(pattern));
        self.allowed.as_ref().is_some_and(|allowed| allowed.keys().all(is_blocked))
    }

    /// Checks that the allowed and blocked patterns permit `host` at every port and over every protocol.
    /// Resolved addresses are checked elsewhere.
    ///
    /// # Errors
    /// As [`Self::check_pattern`].
    pub fn check(&self, host: &Host) -> Result<(), ReachError> {
        self.check_pattern(&HostPattern::Exactly(host.clone()))
    }

    /// Checks that the allowed and blocked patterns permit everything that `wanted` matches.
    ///
    /// # Errors
    /// [`ReachError`] with the reason. While no layer has set a list of allowed hosts, every host is refused.
    pub fn check_pattern(&self, wanted: &HostPattern) -> Result<(), ReachError> {
        if let Some((_, layer)) = self.blocked.iter().find(|(pattern, _)| pattern.overlaps(wanted)) {
            return Err(ReachError::Blocked(*layer));
        }
        let mut allowed = self.allowed.iter().flat_map(BTreeMap::keys);
        if allowed.any(|pattern| pattern.covers(wanted)) {
            return Ok(());
        }
        // The patterns that match one host are nested, so what is outside the meet of the lists is outside
        // one of them.
        let mut lists = self.lists.iter();
        let refusing = lists.find(|(_, patterns)| !patterns.iter().any(|pattern| pattern.covers(wanted)));
        let layer = refusing.map_or(Layer::Executor, |(layer, _)| *layer);
        Err(match wanted {
            HostPattern::Exactly(Host::Address(_)) | HostPattern::Https(Host::Address(_), _) => {
                ReachError::AddressNotAllowed(layer)
            }
            HostPattern::EveryName
            | HostPattern::Below(_)
            | HostPattern::Exactly(Host::Name(_))
            | HostPattern::Https(Host::Name(_), _) => ReachError::NotAllowed(layer),
        })
    }

    /// Checks a request to an allowed host. Without a list of requests, each one is allowed.
    ///
    /// # Errors
    /// The first layer whose list does not have the request. No list has one whose path has more than one
    /// reading.
    pub fn check_request(&self, target: &RequestTarget<'_>) -> Result<(), Layer> {
        let Some(first) = self.requests_set_by() else { return Ok(()) };
        let path = PlainPath::parse(target.path).ok_or(first)?;
        let has = |rules: &BTreeSet<RequestRule>| rules.iter().any(|rule| rule.matches(target, &path));
        match self.requests.iter().find(|(_, rules)| !has(rules)) {
            Some((layer, _)) => Err(*layer),
            None => Ok(()),
        }
    }

    /// The first layer that has a list of requests; `None` if no layer has one, so that every request to an
    /// allowed host may be sent.
    #[must_use]
    pub fn requests_set_by(&self) -> Option<Layer> {
        self.requests.first().map(|(layer, _)| *layer)
    }

    /// The requests of the layers' lists. A run may send those that all lists have.
    pub fn allowed_requests(&self) -> impl Iterator<Item = (&RequestRule, Layer)> {
        self.requests.iter().flat_map(|(layer, rules)| rules.iter().map(move |rule| (rule, *layer)))
    }

    /// The allowed patterns, sorted.
    pub fn allowed_patterns(&self) -> impl Iterator<Item = (&HostPattern, Layer)> {
        self.allowed.iter().flatten().map(|(pattern, layer)| (pattern, *layer))
    }

    /// The blocked patterns, sorted.
    pub fn blocked_patterns(&self) -> impl Iterator<Item = (&HostPattern, Layer)> {
        self.blocked.iter().map(|(pattern, layer)| (pattern, *layer))
    }

    /// Maximum number of requests per minute of the agent, in all of its runs together.
    #[must_use]
    pub fn requests_per_minute(&self) -> Option<Bound<u32>> {
        self.requests_per_minute
    }
}

/// All overlaps of a pattern of one side with a pattern of the other. The overlap is the narrower of the two.
fn intersect(
    a: &BTreeMap<HostPattern, Layer>,
    b: &BTreeMap<HostPattern, Layer>,
) -> BTreeMap<HostPattern, Layer> {
    let mut shared = BTreeMap::new();
    for (x, &x_layer) in a {
        for (y, &y_layer) in b {
            let (inner, layer) = match (x.covers(y), y.covers(x)) {
                (true, true) => (x, x_layer.min(y_layer)),
                (true, false) => (y, y_layer),
                (false, true) => (x, x_layer),
                (false, false) => continue,
            };
            shared
                .entry(inner.clone())
                .and_modify(|first: &mut Layer| *first = (*first).min(layer))
                .or_insert(layer);
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::request::DeclaredRequest;
    use proptest::prelude::*;

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text).unwrap()
    }

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn rule(text: &str) -> RequestRule {
        RequestRule::from_declared(&DeclaredRequest::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn the_limits_of_one_layer_allow_a_host_or_not() {
        let claims = |allowed: Option<&[&str]>, blocked: &[&str]| {
            let patterns = |texts: &[&str]| texts.iter().map(|text| pattern(text)).collect::<Vec<_>>();
            HostClaims { allowed: allowed.map(patterns), blocked: patterns(blocked), ..HostClaims::default() }
        };
        let one = HostPattern::Exactly(host("a.example"));
        assert!(claims(None, &[]).allows(&one) && claims(Some(&["*.example"]), &["b.example"]).allows(&one));
        for refused in [claims(Some(&[]), &[]), claims(None, &["*"]), claims(Some(&["b.example"]), &[])] {
            assert!(!refused.allows(&one), "{refused:?}");
        }
    }

    #[test]
    fn a_held_request_reaches_its_host_if_the_ceilings_allow_it_now() {
        let ceilings = |network, allowed: &[&str], blocked: &[&str]| {
            let patterns = |texts: &[&str]| texts.iter().map(|text| pattern(text)).collect::<Vec<_>>();
            let hosts = HostClaims {
                allowed: Some(patterns(allowed)),
                blocked: patterns(blocked),
                ..HostClaims::default()
            };
            Ceilings { network, hosts, ..Ceilings::closed() }
        };
        let check = |ceilings: &Ceilings, blocked: &[&str]| {
            let patterns = blocked.iter().map(|text| pattern(text)).collect();
            let reach = Reach::for_held_request(pattern("a.example"), ceilings, patterns);
            assert!(reach.check(&host("b.example")).is_err(), "no other host");
            reach.check(&host("a.example"))
        };
        let wide = ceilings(true, &["*"], &[]);
        assert_eq!(check(&wide, &[]), Ok(()));
        assert_eq!(check(&wide, &["a.example"]), Err(ReachError::Blocked(Layer::Executor)));
        assert_eq!(
            check(&ceilings(true, &["*.example"], &["a.example"]), &[]),
            Err(ReachError::Blocked(Layer::Executor))
        );
        assert_eq!(
            check(&ceilings(true, &["b.example"], &[]), &[]),
            Err(ReachError::NotAllowed(Layer::Executor))
        );
        assert_eq!(check(&ceilings(false, &["*"], &[]), &[]), Err(ReachError::NotAllowed(Layer::Executor)));
        assert_eq!(check(&Ceilings::closed(), &[]), Err(ReachError::NotAllowed(Layer::Executor)));
    }

    #[test]
    fn a_host_has_one_spelling() {
        for (text, spelling) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            // Full-width letters and the ideographic full stop.
            ("ｅxample。com", "example.com"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("localhost", "localhost"),
            ("93.184.216.34", "93.184.216.34"),
            ("[2606:2800::1]", "[2606:2800::1]"),
            ("[2606:2800::A]", "[2606:2800::a]"),
        ] {
            assert_eq!(host(text).to_string(), spelling, "{text}");
        }
    }

    #[test]
    fn ambiguous_and_invalid_hosts_are_refused() {
        let long = format!("{}.example", "a".repeat(64));
        let longer = ["a"; 130].join(".");
        for text in [
            "",
            ".",
            "..",
            "example.com..",
            "a..b",
            ".example.com",
            "allowed@evil.example",
            "exa%6dple.com",
            "127.1",
            "0x7f000001",
            "0x7f.0.0.1",
            "2130706433",
            "017700000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "1.2.3.4.5",
            "256.0.0.1",
            "::1",
            "[::1",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:0:0:1]",
            "[fe80::1%25eth0]",
            "exa mple.com",
            "example.com/x",
            "example.com:80",
            "example.com#",
            "exam\tple.com",
            "a\0.com",
            "xn--0.example",
            "*.example.com",
            "*",
            "a*b.com",
            &long,
            &longer,
        ] {
            assert!(Host::parse(text).is_err(), "{text:?}: {:?}", Host::parse(text));
        }
    }

    #[test]
    fn a_star_matches_whole_labels_and_not_the_apex() {
        for (text, host_text, matches) in [
            ("example.com", "EXAMPLE.com.", true),
            ("example.com", "api.example.com", false),
            ("*.example.com", "api.example.com", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "evilexample.com", false),
            ("*.example.com", "example.com.evil.org", false),
            ("*.Bücher.example", "a.xn--bcher-kva.example", true),
            ("*", "anything.example", true),
            ("*", "93.184.216.34", false),
            ("*", "[2606:2800::1]", false),
            ("93.184.216.34", "93.184.216.34", true),
            ("93.184.216.34", "93.184.216.35", false),
            ("2606:2800::1", "[2606:2800::1]", true),
        ] {
            assert_eq!(pattern(text).matches(&host(host_text)), matches, "{text} {host_text}");
        }
        for text in ["**", "*.*.com", "*com", "a.*", "*.127.0.0.1", "*.", "http://a.com", "10.0.0.0/8"] {
            assert!(HostPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_with_https_is_one_port_of_one_host() {
        for (text, spelling) in [
            ("https://API.Example.com", "https://api.example.com"),
            ("https://example.com:443", "https://example.com"),
            ("https://example.com.:8443", "https://example.com:8443"),
            ("https://93.184.216.34:1", "https://93.184.216.34:1"),
            ("https://[2606:2800::1]", "https://[2606:2800::1]"),
            ("https://[2606:2800::1]:8443", "https://[2606:2800::1]:8443"),
        ] {
            assert_eq!(pattern(text).to_string(), spelling, "{text}");
            assert_eq!(pattern(spelling), pattern(text));
        }
        for text in [
            "https://",
            "https://*.example.com",
            "https://*",
            "https://example.com/",
            "https://example.com/v1",
            "https://example.com?x",
            "https://example.com:",
            "https://example.com:0",
            "https://example.com:080",
            "https://example.com:+80",
            "https://example.com:65536",
            "https://a@example.com",
            "https://127.1",
            "https://https://example.com",
            "HTTPS://example.com",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text}: {:?}", HostPattern::parse(text));
        }
        let one = pattern("https://api.example.com");
        for wider in ["*", "*.example.com", "api.example.com"] {
            assert!(pattern(wider).covers(&one) && !one.covers(&pattern(wider)), "{wider}");
        }
        for other in ["https://api.example.com:8443", "https://example.com", "example.com", "10.0.0.1"] {
            assert!(!pattern(other).covers(&one) && !one.covers(&pattern(other)), "{other}");
        }
        assert!(!one.matches(&host("api.example.com")), "other ports and protocols are left out");
        assert!(!pattern("*").covers(&pattern("https://10.0.0.1")));
    }

    #[test]
    fn a_refusal_names_the_layer_whose_list_refuses() {
        let list = |layer, allowed: Option<&[&str]>, blocked: &[&str]| {
            let patterns = |texts: &[&str]| texts.iter().map(|text| pattern(text)).collect::<Vec<_>>();
            let claims = HostClaims {
                allowed: allowed.map(patterns),
                blocked: patterns(blocked),
                ..HostClaims::default()
            };
            Reach::from_claims(layer, claims)
        };
        let policy = list(Layer::StandingPolicy, Some(&["*.a.com", "c.com"]), &["evil.a.com"]);
        let executor = list(Layer::Executor, Some(&["https://x.a.com", "c.com", "10.0.0.1"]), &["10.0.0.2"]);
        let reach = policy.meet(executor);
        let by_policy = Layer::StandingPolicy;
        let by_executor = Layer::Executor;
        assert_eq!(reach.check_pattern(&pattern("https://x.a.com")), Ok(()));
        for (text, port, error) in [
            ("x.a.com", 8443, ReachError::NotAllowed(by_executor)),
            ("y.a.com", 443, ReachError::NotAllowed(by_executor)),
            ("evil.a.com", 443, ReachError::Blocked(by_policy)),
            ("other.com", 443, ReachError::NotAllowed(by_policy)),
            ("10.0.0.1", 443, ReachError::AddressNotAllowed(by_policy)),
            ("10.0.0.2", 443, ReachError::Blocked(by_executor)),
        ] {
            assert_eq!(
                reach.check_pattern(&HostPattern::Https(host(text), port)),
                Err(error),
                "{text}:{port}"
            );
        }
        assert_eq!(reach.check(&host("x.a.com")), Err(ReachError::NotAllowed(by_executor)), "plain http");
        assert_eq!(reach.check(&host("c.com")), Ok(()));
        let half = list(Layer::Executor, Some(&["*"]), &["https://a.com"]);
        let is_blocked = Err(ReachError::Blocked(Layer::Executor));
        assert_eq!(half.check(&host("a.com")), is_blocked, "a part of it is blocked");
        assert_eq!(half.check_pattern(&pattern("https://a.com")), is_blocked);
        assert_eq!(half.check_pattern(&pattern("https://a.com:8443")), Ok(()));
    }

    #[test]
    fn a_run_with_declared_requests_sends_those_and_no_others() {
        let texts = ["GET https://API.example.com./items/{id}", "POST http://10.0.0.1:8080/v1/**"];
        let declared = texts.map(|text| DeclaredRequest::parse(text).unwrap());
        let reach = Reach::from_claims(Layer::Tool, HostClaims::of_requests(&declared.into()));
        let check = |method, is_https, name: &str, port, path| {
            reach.check_request(&RequestTarget { method, is_https, host: &host(name), port, path })
        };
        assert_eq!(check("GET", true, "api.example.com", 443, "/items/1"), Ok(()));
        assert_eq!(check("POST", false, "10.0.0.1", 8080, "/v1/x/y"), Ok(()));
        for (method, is_https, name, port, path) in [
            ("HEAD", true, "api.example.com", 443, "/items/1"),
            ("get", true, "api.example.com", 443, "/items/1"),
            ("GET", false, "api.example.com", 443, "/items/1"),
            ("GET", true, "api.example.com", 8443, "/items/1"),
            ("GET", true, "example.com", 443, "/items/1"),
            ("GET", true, "api.example.com", 443, "/items"),
            ("GET", true, "api.example.com", 443, "/items/"),
            ("GET", true, "api.example.com", 443, "/items/1/2"),
            ("GET", true, "api.example.com", 443, "/items/../1"),
            ("GET", true, "api.example.com", 443, "//items/1"),
            ("POST", false, "10.0.0.1", 80, "/v1/x"),
            ("POST", false, "10.0.0.1", 8080, "/v1/..%2fx"),
        ] {
            let refused = check(method, is_https, name, port, path);
            assert_eq!(refused, Err(Layer::Tool), "{method} {name}:{port}{path}");
        }
        assert_eq!(reach.check_pattern(&pattern("https://api.example.com")), Ok(()));
        for other in ["api.example.com", "https://api.example.com:8443", "https://b.example"] {
            assert_eq!(reach.check_pattern(&pattern(other)), Err(ReachError::NotAllowed(Layer::Tool)));
        }
        assert_eq!(reach.allowed_requests().count(), 2);
    }

    #[test]
    fn a_tool_that_declares_no_request_to_a_valid_host_sends_none() {
        let all = Reach::from_claims(Layer::Tool, HostClaims::of_requests(&BTreeSet::new()));
        assert!(all.requests_set_by().is_none() && all.allowed.is_none() && sends(&all, "/x/../y"));
        let declared = DeclaredRequest::parse("GET https://0x7f.1/**").unwrap();
        let none = Reach::from_claims(Layer::Tool, HostClaims::of_requests(&[declared].into()));
        assert!(!sends(&none, "/") && none.is_allowed_list_blocked());
    }

    #[test]
    fn blocked_patterns_win_and_an_empty_list_allows_no_host() {
        let reach_of = |allowed: &[&str], blocked: &[&str]| {
            let patterns = |texts: &[&str]| texts.iter().map(|text| pattern(text)).collect::<Vec<_>>();
            let claims = HostClaims {
                allowed: Some(patterns(allowed)),
                blocked: patterns(blocked),
                ..HostClaims::default()
            };
            Reach::from_claims(Layer::Executor, claims)
        };
        let reach = reach_of(&["*.example.com", "10.0.0.1"], &["secret.example.com"]);
        assert_eq!(reach.check(&host("a.example.com")), Ok(()));
        assert_eq!(reach.check(&host("10.0.0.1")), Ok(()));
        assert_eq!(reach.check(&host("secret.example.com")), Err(ReachError::Blocked(Layer::Executor)));
        assert_eq!(reach.check(&host("example.org")), Err(ReachError::NotAllowed(Layer::Executor)));
        assert_eq!(reach.check(&host("10.0.0.2")), Err(ReachError::AddressNotAllowed(Layer::Executor)));
        assert_eq!(
            Reach::default().check(&host("a.example.com")),
            Err(ReachError::NotAllowed(Layer::Executor))
        );
        assert!(
            reach_of(&[], &[]).is_allowed_list_blocked()
                && reach_of(&["a.com"], &["*"]).is_allowed_list_blocked()
        );
        assert!(!reach_of(&["a.com", "b.com"], &["a.com"]).is_allowed_list_blocked());
    }

    const NAMES: [&str; 8] =
        ["*", "*.com", "*.a.com", "a.com", "b.a.com", "10.0.0.1", "https://a.com", "https://10.0.0.1:8443"];
    const REQUESTS: [&str; 5] = [
        "GET https://a.com/x",
        "GET https://a.com/*",
        "GET https://a.com/x/**",
        "POST https://a.com/**",
        "GET https://b.a.com/**",
    ];
    const HOSTS: [&str; 6] = ["com", "a.com", "b.a.com", "c.b.a.com", "10.0.0.1", "evil.org"];

    fn reach() -> impl Strategy<Value = Reach> {
        let patterns = || prop::sample::subsequence(NAMES.to_vec(), 0..4);
        let layers = [Layer::Verdict, Layer::StandingPolicy, Layer::Tool, Layer::Executor];
        let rate = prop::option::of(1u32..4);
        let requests = prop::option::of(prop::sample::subsequence(REQUESTS.to_vec(), 0..4));
        let hosts = (prop::option::of(patterns()), patterns());
        let parts = (prop::sample::select(layers.to_vec()), hosts, requests, rate);
        parts.prop_map(|(layer, (allowed, blocked), requests, requests_per_minute)| {
            let parsed = |texts: Vec<&str>| texts.into_iter().map(pattern).collect::<Vec<_>>();
            let claims = HostClaims {
                allowed: allowed.map(parsed),
                blocked: parsed(blocked),
                requests: requests.map(|texts| texts.into_iter().map(rule).collect()),
                requests_per_minute,
            };
            Reach::from_claims(layer, claims)
        })
    }

    /// `true` if the run may send a GET of this path to one host.
    fn sends(reach: &Reach, path: &str) -> bool {
        let target = RequestTarget { method: "GET", is_https: true, host: &host("a.com"), port: 443, path };
        reach.check_request(&target).is_ok()
    }

    proptest! {
        #[test]
        fn the_meet_is_idempotent_commutative_and_associative(a in reach(), b in reach(), c in reach()) {
            prop_assert_eq!(a.clone().meet(a.clone()), a.clone());
            prop_assert_eq!(a.clone().meet(b.clone()), b.clone().meet(a.clone()));
            prop_assert_eq!(
                a.clone().meet(b.clone()).meet(c.clone()),
                a.clone().meet(b.clone().meet(c.clone()))
            );
        }

        #[test]
        fn the_meet_allows_exactly_what_both_allow(a in reach(), b in reach()) {
            let met = a.clone().meet(b.clone());
            let allows = |reach: &Reach, text, port: Option<u16>| {
                let one = host(text);
                let checked = match port {
                    Some(port) => reach.check_pattern(&HostPattern::Https(one, port)),
                    None => reach.check(&one),
                };
                match &reach.allowed {
                    // A layer without a list leaves the decision to the others.
                    None => !matches!(checked, Err(ReachError::Blocked(_))),
                    Some(_) => checked.is_ok(),
                }
            };
            for text in HOSTS {
                for port in [None, Some(443), Some(8443)] {
                    let both = allows(&a, text, port) && allows(&b, text, port);
                    prop_assert_eq!(allows(&met, text, port), both, "{} {:?}", text, port);
                }
            }
            for path in ["/x", "/y", "/x/y", "/x/../y", "/"] {
                prop_assert_eq!(sends(&met, path), sends(&a, path) && sends(&b, path), "{}", path);
            }
        }

        #[test]
        fn a_formatted_host_parses_to_itself(text in "\\PC{0,40}|[a-zA-Z0-9.\\-_\\[\\]:%@]{0,30}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
        }
    }
}
