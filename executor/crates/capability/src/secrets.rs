//! Secrets: the requests in which the executor sets a value that no tool sees.
//!
//! A [`SecretBinding`] says where a value may go, and has no value. What the tool puts at the place of the value is
//! overwritten and triggers nothing: a request gets a secret exactly if it is one of the binding's requests.

use super::requests::{RequestRule, RequestTarget};
use a2g_types::grant::SecretSummary;
use a2g_types::ident::{AgentDid, IdentError, SecretName, ToolName, excerpt};
use a2g_types::limit::Layer;
use a2g_types::request::PlainPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Maximum number of requests of one secret. Each is on the page of an approval.
const MAX_REQUESTS: usize = 64;
/// Maximum length of a place, in bytes.
const MAX_PLACE_BYTES: usize = 256;
/// Header fields that the executor writes itself or removes, or that decide what a server reads as the request.
const REFUSED_FIELDS: [&str; 18] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The reason why a secret cannot be bound so. It does not repeat a place or a scheme: a person may have written the value
/// into it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretBindingError {
    /// The place is not one that a value can be set in.
    #[error(
        "is no place such as `header:authorization`, `query:key` or `body:/token`, or is a header field that the \
         executor sets or removes itself"
    )]
    Place,
    /// The scheme is not one.
    #[error(
        "is no scheme such as `Bearer` or `Basic`, without the value, or the place is not a header field"
    )]
    Scheme,
    /// A request is not over TLS.
    #[error("`{0}` is not over `https`: a secret is sent only to a server that proves its name")]
    Plain(String),
    /// There are no requests, or too many.
    #[error("it needs 1 to 64 requests")]
    Requests,
    /// There are no tools.
    #[error("it needs at least one tool")]
    Tools,
    /// The variable cannot have a placeholder.
    #[error(
        "`{0}` is no name of a variable for guests: 1 to 64 of `A` to `Z`, digits and `_`, beginning with a letter, and \
         not with `A2G_`"
    )]
    Variable(String),
}

/// The place of a request where a value is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretPlace {
    /// The header field with this name, in lower case.
    Header(String),
    /// The parameter of the query with this name.
    Query(String),
    /// The member of the JSON body at this path of members and indices.
    Body(Vec<String>),
}

impl SecretPlace {
    /// Parses `header:NAME`, `query:NAME` or `body:` and a JSON Pointer.
    ///
    /// # Errors
    /// [`SecretBindingError::Place`] for any other text, and for a header field that the executor sets or removes.
    pub fn parse(text: &str) -> Result<Self, SecretBindingError> {
        let refuse = || SecretBindingError::Place;
        let (kind, place) =
            text.split_once(':').filter(|_| text.len() <= MAX_PLACE_BYTES).ok_or_else(refuse)?;
        let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_token = |name: &str| !name.is_empty() && name.bytes().all(is_token_byte);
        match kind {
            "header" if is_token(place) => {
                let name = place.to_ascii_lowercase();
                // Some servers read `_` as `-`.
                let is_refused = REFUSED_FIELDS.contains(&name.replace('_', "-").as_str());
                if is_refused { Err(refuse()) } else { Ok(Self::Header(name)) }
            }
            "query" if is_token(place) => Ok(Self::Query(place.to_owned())),
            "body" => {
                let segments = place.strip_prefix('/').ok_or_else(refuse)?.split('/');
                let decoded = segments.map(decode_segment).collect::<Option<Vec<_>>>();
                Ok(Self::Body(decoded.ok_or_else(refuse)?))
            }
            _other => Err(refuse()),
        }
    }

    /// `true` if a value at the one place could be overwritten by a value at the other.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            // As `set_field` of the network access replaces fields: some servers read `_` as `-`.
            (Self::Header(one), Self::Header(other)) => one.replace('_', "-") == other.replace('_', "-"),
            (Self::Query(one), Self::Query(other)) => one == other,
            (Self::Body(one), Self::Body(other)) => one.starts_with(other) || other.starts_with(one),
            (Self::Header(_), Self::Query(_) | Self::Body(_))
            | (Self::Query(_), Self::Header(_) | Self::Body(_))
            | (Self::Body(_), Self::Header(_) | Self::Query(_)) => false,
        }
    }
}

/// A segment of a JSON Pointer (RFC 6901); `None` if it has a `~` that encodes nothing.
fn decode_segment(segment: &str) -> Option<String> {
    let mut parts = segment.split('~');
    let mut decoded = parts.next()?.to_owned();
    for part in parts {
        let letter = if part.starts_with('0') { '~' } else { '/' };
        decoded.push(letter);
        decoded.push_str(part.strip_prefix(['0', '1'])?);
    }
    Some(decoded)
}

impl fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Body(segments) => {
                f.write_str("body:")?;
                let encode = |segment: &String| segment.replace('~', "~0").replace('/', "~1");
                segments.iter().try_for_each(|segment| write!(f, "/{}", encode(segment)))
            }
        }
    }
}

/// The text that is set at the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendering {
    /// The value alone.
    Plain,
    /// This scheme, a space and the value.
    Scheme(String),
    /// `Basic`, a space and the base64 of the value, which is `user:password`.
    Basic,
}

impl Rendering {
    /// Parses the scheme of a header field; `None` sets the value alone.
    ///
    /// # Errors
    /// [`SecretBindingError::Scheme`] if the scheme is not letters, digits and `-`, or the place is no header field.
    pub fn parse(scheme: Option<&str>, place: &SecretPlace) -> Result<Self, SecretBindingError> {
        let Some(text) = scheme else { return Ok(Self::Plain) };
        let is_scheme = (1..=32).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && matches!(place, SecretPlace::Header(_));
        match text {
            _ if !is_scheme => Err(SecretBindingError::Scheme),
            "Basic" => Ok(Self::Basic),
            other => Ok(Self::Scheme(other.to_owned())),
        }
    }
}

/// The beginning of every placeholder.
const PLACEHOLDER_BEGINNING: &str = "a2g-placeholder";
/// The number of random bytes of a placeholder.
pub const PLACEHOLDER_BYTES: usize = 16;

/// A variable in the environment of guests with a text in the place of a value, for client libraries that insist on one.
/// The text is another one for each run, and means nothing: no request gets a value because of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placeholder {
    variable: String,
    secret: SecretName,
}

impl Placeholder {
    /// The placeholder of a secret in this variable.
    ///
    /// # Errors
    /// [`SecretBindingError::Variable`] if the text is no such name, or begins with `A2G_`, which is the executor's own.
    pub fn new(variable: &str, secret: SecretName) -> Result<Self, SecretBindingError> {
        let is_byte = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_name = (1..=64).contains(&variable.len())
            && variable.bytes().all(is_byte)
            && variable.starts_with(|first: char| first.is_ascii_uppercase())
            && !variable.starts_with("A2G_");
        if is_name {
            Ok(Self { variable: variable.to_owned(), secret })
        } else {
            Err(SecretBindingError::Variable(excerpt(variable)))
        }
    }

    /// The name of the variable.
    #[must_use]
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// The text for one run, all of whose characters may be in a URL and in a header field.
    #[must_use]
    pub fn text(&self, random: [u8; PLACEHOLDER_BYTES]) -> String {
        let digits = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{PLACEHOLDER_BEGINNING}-{}-{digits}", self.secret)
    }

    /// `true` if a text of this form is in `bytes`, as it is: no coding of it is looked for.
    #[must_use]
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        let beginning = format!("{PLACEHOLDER_BEGINNING}-{}-", self.secret);
        let has_form = |part: &[u8]| {
            let digits = part.strip_prefix(beginning.as_bytes());
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        bytes.windows(beginning.len() + 2 * PLACEHOLDER_BYTES).any(has_form)
    }
}

/// A tool, or all tools whose names begin in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolRange {
    /// This tool.
    Exactly(ToolName),
    /// Every tool whose name begins so.
    Beginning(String),
}

impl ToolRange {
    /// Parses a name, or a beginning and `*`.
    ///
    /// # Errors
    /// [`IdentError::ToolName`] if it is neither.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        match text.strip_suffix('*') {
            None => ToolName::parse(text).map(Self::Exactly),
            Some("") => Ok(Self::Beginning(String::new())),
            // A beginning of names is a name, if it is not too long for any.
            Some(beginning) => Ok(Self::Beginning(ToolName::parse(beginning)?.to_string())),
        }
    }

    /// `true` if the pattern matches this tool.
    #[must_use]
    pub fn matches(&self, tool: &ToolName) -> bool {
        match self {
            Self::Exactly(name) => name == tool,
            Self::Beginning(beginning) => tool.as_str().starts_with(beginning),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exactly(name), pattern) | (pattern, Self::Exactly(name)) => pattern.matches(name),
            (Self::Beginning(one), Self::Beginning(other)) => {
                one.starts_with(other.as_str()) || other.starts_with(one.as_str())
            }
        }
    }
}

impl fmt::Display for ToolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => name.fmt(f),
            Self::Beginning(beginning) => write!(f, "{beginning}*"),
        }
    }
}

/// The parts of a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretParts {
    /// The name of the secret.
    pub name: SecretName,
    /// The tools whose requests get it.
    pub tools: Vec<ToolRange>,
    /// The agents whose runs may use it; `None` for every agent.
    pub agents: Option<BTreeSet<AgentDid>>,
    /// The requests that get it.
    pub requests: Vec<RequestRule>,
    /// The place where it is set.
    pub place: SecretPlace,
    /// The text that is set there.
    pub rendering: Rendering,
    /// Maximum number of requests of a run that get it.
    pub max_uses: u32,
    /// `true` if the guest does not get the cookies of the answers.
    pub keeps_cookies: bool,
    /// The text that the guest gets in the place of the value; `None`: nothing.
    pub placeholder: Option<Placeholder>,
}

/// A secret, and the only requests in which it is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretBinding(SecretParts);

impl SecretBinding {
    /// Binds a secret.
    ///
    /// # Errors
    /// [`SecretBindingError`] if a request is not over TLS, or there are no or too many requests, or no tools.
    pub fn new(parts: SecretParts) -> Result<Self, SecretBindingError> {
        if !(1..=MAX_REQUESTS).contains(&parts.requests.len()) {
            return Err(SecretBindingError::Requests);
        }
        if parts.tools.is_empty() {
            return Err(SecretBindingError::Tools);
        }
        match parts.requests.iter().find(|rule| !rule.is_https()) {
            Some(plain) => Err(SecretBindingError::Plain(plain.to_string())),
            None => Ok(Self(parts)),
        }
    }

    /// The name of the secret.
    #[must_use]
    pub fn name(&self) -> &SecretName {
        &self.0.name
    }

    /// The tools whose requests get it.
    #[must_use]
    pub fn tools(&self) -> &[ToolRange] {
        &self.0.tools
    }

    /// The agents whose runs may use it; `None` for every agent.
    #[must_use]
    pub fn agents(&self) -> Option<&BTreeSet<AgentDid>> {
        self.0.agents.as_ref()
    }

    /// The requests that get it.
    #[must_use]
    pub fn requests(&self) -> &[RequestRule] {
        &self.0.requests
    }

    /// The place where it is set.
    #[must_use]
    pub fn place(&self) -> &SecretPlace {
        &self.0.place
    }

    /// The text that is set there.
    #[must_use]
    pub fn rendering(&self) -> &Rendering {
        &self.0.rendering
    }

    /// Maximum number of requests of a run that get it.
    #[must_use]
    pub fn max_uses(&self) -> u32 {
        self.0.max_uses
    }

    /// `true` if the guest does not get the cookies of the answers.
    #[must_use]
    pub fn keeps_cookies(&self) -> bool {
        self.0.keeps_cookies
    }

    /// The text that the guest gets in the place of the value; `None`: nothing.
    #[must_use]
    pub fn placeholder(&self) -> Option<&Placeholder> {
        self.0.placeholder.as_ref()
    }

    /// `true` if the secret is for the runs of this tool that this agent asks for.
    #[must_use]
    pub fn is_for(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        self.0.tools.iter().any(|pattern| pattern.matches(tool))
            && self.0.agents.as_ref().is_none_or(|agents| agents.contains(agent))
    }

    /// `true` for a request to a host of the secret, at any port and over any protocol.
    #[must_use]
    pub fn is_at(&self, target: &RequestTarget<'_>) -> bool {
        self.0.requests.iter().any(|rule| rule.is_at(target))
    }

    /// `true` if this request gets the secret. None does whose path has more than one reading.
    #[must_use]
    pub fn fits(&self, target: &RequestTarget<'_>) -> bool {
        let Some(path) = PlainPath::parse(target.path) else { return false };
        self.0.requests.iter().any(|rule| rule.matches(target, &path))
    }

    /// `true` if there may be a request in which both would be set at the same place.
    #[must_use]
    pub fn contradicts(&self, other: &Self) -> bool {
        let of_request = |one: &RequestRule| other.0.requests.iter().any(|rule| rule.overlaps(one));
        self.0.place.overlaps(&other.0.place)
            && self.shares_run(other)
            && self.0.requests.iter().any(of_request)
    }

    /// `true` if there may be a run that would get both placeholders in one variable.
    #[must_use]
    pub fn shares_variable(&self, other: &Self) -> bool {
        let variable = |binding: &Self| binding.placeholder().map(|one| one.variable.clone());
        variable(self).is_some_and(|own| variable(other) == Some(own)) && self.shares_run(other)
    }

    /// `true` if there may be a run that both are for.
    fn shares_run(&self, other: &Self) -> bool {
        let of_tool = |one: &ToolRange| other.0.tools.iter().any(|pattern| pattern.overlaps(one));
        let shares_agent = match (&self.0.agents, &other.0.agents) {
            (Some(one), Some(other)) => !one.is_disjoint(other),
            (None, _) | (_, None) => true,
        };
        shares_agent && self.0.tools.iter().any(of_tool)
    }
}

/// A secret that is bound to the agent and the tool of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedSecret {
    /// The secret, and the requests in which it is set.
    pub binding: Arc<SecretBinding>,
    /// The layer that does not let the run use it; `None` if the run may.
    pub withheld_by: Option<Layer>,
}

impl GrantedSecret {
    /// The description for people.
    #[must_use]
    pub fn to_summary(&self) -> SecretSummary {
        let SecretParts { name, requests, place, max_uses, .. } = &self.binding.0;
        SecretSummary {
            name: name.clone(),
            place: place.to_string(),
            requests: requests.iter().map(ToString::to_string).collect(),
            max_uses: *max_uses,
            withheld_by: self.withheld_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Ceilings, Claims, DeclaredRequest, Grant, Host};

    fn binding(name: &str, tools: &[&str], place: &str, request: &str) -> SecretBinding {
        let declared = DeclaredRequest::parse(request).unwrap();
        SecretBinding::new(SecretParts {
            name: SecretName::parse(name).unwrap(),
            tools: tools.iter().map(|text| ToolRange::parse(text).unwrap()).collect(),
            agents: None,
            requests: vec![RequestRule::from_declared(&declared).unwrap()],
            place: SecretPlace::parse(place).unwrap(),
            rendering: Rendering::Plain,
            max_uses: 5,
            keeps_cookies: true,
            placeholder: None,
        })
        .unwrap()
    }

    #[test]
    fn a_placeholder_is_found_by_its_form_and_secret() {
        let placeholder = |secret: &str| Placeholder::new("KEY", SecretName::parse(secret).unwrap()).unwrap();
        let [own, longer] = ["a", "a-b"].map(placeholder);
        let [one, other] =
            [[0x0a; PLACEHOLDER_BYTES], [0x0b; PLACEHOLDER_BYTES]].map(|random| own.text(random));
        assert_eq!(one, format!("a2g-placeholder-a-{}", "0a".repeat(16)));
        assert_ne!(one, other);
        let in_header = format!("Bearer {one}, x");
        assert!(own.is_in(in_header.as_bytes()) && !longer.is_in(in_header.as_bytes()));
        assert!(!own.is_in(longer.text([1; PLACEHOLDER_BYTES]).as_bytes()));
        for text in ["", "a2g-placeholder-a-", "a2g-placeholder-a-xyz", &one[1..], &one[..one.len() - 1]] {
            assert!(!own.is_in(text.as_bytes()), "{text}");
        }
        for variable in ["", "1A", "_A", "a", "A=", "A2G_FOLDERS", &"A".repeat(65)] {
            assert!(Placeholder::new(variable, SecretName::parse("a").unwrap()).is_err(), "{variable}");
        }
    }

    #[test]
    fn two_placeholders_share_a_variable_only_in_a_run_that_both_are_for() {
        let request = "GET https://api.example/v1/{id}";
        let with = |name: &str, tool: &str, variable: &str, agent: Option<&str>| {
            let mut binding = binding(name, &[tool], "query:key", request);
            let placeholder = Placeholder::new(variable, SecretName::parse(name).unwrap());
            binding.0.placeholder = Some(placeholder.unwrap());
            binding.0.agents = agent.map(|agent| [AgentDid::parse(agent).unwrap()].into());
            binding
        };
        let own = with("a", "t_*", "KEY", Some("did:a:x"));
        for (tool, variable, agent, shares) in [
            ("t_b", "KEY", None, true),
            ("t_b", "KEY", Some("did:a:x"), true),
            ("t_b", "KEY", Some("did:a:y"), false),
            ("s", "KEY", None, false),
            ("t_b", "OTHER", None, false),
        ] {
            let other = with("b", tool, variable, agent);
            assert_eq!(own.shares_variable(&other), shares, "{other:?}");
            assert_eq!(other.shares_variable(&own), shares, "{other:?}");
        }
        let without = binding("c", &["*"], "query:key", request);
        assert!(!without.shares_variable(&own) && !own.shares_variable(&without));
    }

    #[test]
    fn a_place_is_a_field_a_parameter_or_a_member() {
        for text in ["header:authorization", "header:x-api-key", "query:key", "body:/a/0/b~1c~0d"] {
            assert_eq!(SecretPlace::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(SecretPlace::parse("header:X-Key"), SecretPlace::parse("header:x-key"));
        for text in [
            "",
            "header:",
            "header:a b",
            "header:Host",
            "header:Transfer_Encoding",
            "header:cookie",
            "query:",
            "query:a=b",
            "body:",
            "body:a",
            "body:/a~2",
            "body:/a~",
            "path:/a",
        ] {
            assert!(SecretPlace::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_scheme_needs_a_header_field() {
        let header = SecretPlace::parse("header:authorization").unwrap();
        assert_eq!(Rendering::parse(Some("Bearer"), &header), Ok(Rendering::Scheme("Bearer".to_owned())));
        assert_eq!(Rendering::parse(Some("Basic"), &header), Ok(Rendering::Basic));
        assert_eq!(Rendering::parse(None, &header), Ok(Rendering::Plain));
        assert!(
            Rendering::parse(Some(""), &header).is_err() && Rendering::parse(Some("a b"), &header).is_err()
        );
        assert!(Rendering::parse(Some("Bearer"), &SecretPlace::parse("query:key").unwrap()).is_err());
    }

    #[test]
    fn a_secret_fits_its_requests_and_no_others() {
        let secret = binding("a", &["t"], "query:key", "GET https://api.example/v1/{id}");
        let host = Host::parse("api.example").unwrap();
        let other = Host::parse("other.example").unwrap();
        let fitting = RequestTarget { method: "GET", is_https: true, host: &host, port: 443, path: "/v1/2" };
        assert!(secret.fits(&fitting) && secret.is_at(&fitting));
        for (target, is_at) in [
            (RequestTarget { method: "POST", ..fitting }, true),
            (RequestTarget { is_https: false, port: 80, ..fitting }, true),
            (RequestTarget { is_https: false, ..fitting }, true),
            (RequestTarget { port: 8443, ..fitting }, true),
            (RequestTarget { host: &other, ..fitting }, false),
            (RequestTarget { path: "/v1/2/3", ..fitting }, true),
            (RequestTarget { path: "/v1/..%2f2", ..fitting }, true),
        ] {
            assert!(!secret.fits(&target), "{target:?}");
            assert_eq!(secret.is_at(&target), is_at, "{target:?}");
        }
    }

    #[test]
    fn two_secrets_contradict_only_at_one_place_of_one_request() {
        let request = "GET https://api.example/v1/{id}";
        let one = binding("a", &["t_*"], "header:x-key", request);
        for (tools, place, request, contradicts) in [
            ("t_a", "header:x-key", request, true),
            ("t_*", "header:x-key", "GET https://API.example/v1/2", true),
            ("*", "header:x-key", "GET https://api.example/**", true),
            ("t_a", "header:X_Key", request, true),
            ("s", "header:x-key", request, false),
            ("t_a", "header:x-other", request, false),
            ("t_a", "query:x-key", request, false),
            ("t_a", "header:x-key", "POST https://api.example/v1/{id}", false),
            ("t_a", "header:x-key", "GET https://api.example/v2/{id}", false),
        ] {
            let other = binding("b", &[tools], place, request);
            assert_eq!(one.contradicts(&other), contradicts, "{other:?}");
            assert_eq!(other.contradicts(&one), contradicts, "{other:?}");
        }
        let inner = binding("a", &["t"], "body:/a/b", request);
        assert!(inner.contradicts(&binding("b", &["t"], "body:/a", request)));
        assert!(!inner.contradicts(&binding("b", &["t"], "body:/b", request)));
    }

    #[test]
    fn a_grant_has_a_secret_only_for_the_agent_and_tool_that_it_is_bound_to() {
        let request = "GET https://api.example/v1/{id}";
        let mut of_agent = binding("mine", &["t"], "query:b", request);
        of_agent.0.agents = Some([AgentDid::parse("did:a:x").unwrap()].into());
        let mut api = binding("api", &["t"], "header:x-key", request);
        api.0.placeholder = Placeholder::new("KEY", SecretName::parse("api").unwrap()).ok();
        let bindings = [api, of_agent];
        let ceilings = Ceilings { secrets: bindings.map(Arc::new).to_vec(), ..Ceilings::closed() };
        let authority = Authority::for_tests();
        let granted = |claims: Vec<(Layer, Claims)>, agent: &str, tool: &str| {
            let grant = Grant::meet(&authority, claims, &ceilings).unwrap();
            assert!(grant.secrets().is_empty());
            let agent = AgentDid::parse(agent).unwrap();
            let grant = grant.bind_secrets(&ceilings, &agent, &ToolName::parse(tool).unwrap());
            let variables = grant.placeholders().iter().map(Placeholder::variable).collect::<Vec<_>>();
            let is_usable = |secret: &GrantedSecret| {
                secret.binding.name().as_str() == "api" && secret.withheld_by.is_none()
            };
            let has_placeholder = grant.secrets().iter().any(is_usable);
            assert_eq!(variables, if has_placeholder { vec!["KEY"] } else { Vec::new() });
            let of = |secret: &GrantedSecret| (secret.binding.name().to_string(), secret.withheld_by);
            grant.secrets().iter().map(of).collect::<Vec<_>>()
        };
        let names = |texts: &[&str]| {
            let names = texts.iter().map(|text| SecretName::parse(text).unwrap()).collect();
            Claims { secrets: Some(names), ..Claims::default() }
        };
        let [api, mine] = ["api", "mine"].map(str::to_owned);
        assert!(granted(Vec::new(), "did:a:y", "s").is_empty());
        assert_eq!(granted(Vec::new(), "did:a:y", "t"), [(api.clone(), None)]);
        assert_eq!(granted(Vec::new(), "did:a:x", "t"), [(api.clone(), None), (mine.clone(), None)]);
        let layers = vec![
            (Layer::StandingPolicy, names(&["api", "mine"])),
            (Layer::Condition, names(&["mine"])),
            (Layer::Tool, names(&[])),
        ];
        let expected = [(api, Some(Layer::Condition)), (mine, Some(Layer::Tool))];
        assert_eq!(granted(layers, "did:a:x", "t"), expected);
    }
}
