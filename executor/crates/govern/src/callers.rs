//! Callers: authentication by token or certificate, roles, and the agents in whose name they act.
//!
//! A file lists the callers. It contains only the SHA-256 of each token, so a leaked list
//! grants no access. Without a list all callers are anonymous, which only a local server permits. A caller's identity
//! does not authenticate a verdict: only the governor's proof does, so a stolen token runs nothing.
//!
//! A token in the form of a JSON Web Token is verified as such, and never looked up by its hash: the hash would remain
//! valid after the token has expired or its issuer's key was removed.

use super::GOVERNOR;
use super::admit::AcceptUnsigned;
use super::files::{self, FileError, parent_folder};
use super::jwt::{Jwt, JwtSubject, TokenError, TokenIssuers};
use a2g_types::ident::{AgentDid, IdentError, Issuer};
use a2g_types::node::NodeText;
use a2g_types::tool::{CallTargets, Digest};
use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// Maximum size of a list of callers, in bytes.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Maximum length of a caller's name, in characters.
const MAX_NAME_CHARS: usize = 64;
/// The prefix of every token, by which scanners find tokens in logs and repositories.
const TOKEN_PREFIX: &str = "a2g_";
/// The number of random bytes in a token.
const TOKEN_BYTES: usize = 32;
/// The entry in `agents` that stands for all agents.
const EVERY_AGENT: &str = "*";

const HEADER: &str = "\
# The callers of this executor. `a2g-executor caller new|remove` writes this file, and removes other comments.
# It contains no token, only the SHA-256 of each. On SIGHUP the executor reads it again.
";

/// A role of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May send intents in the name of its agents, and query and cancel those.
    Agent,
    /// May send standing policies, revocations and directives, and query and cancel any intent.
    Governor,
    /// May decide escalated intents, and query any intent.
    Approver,
    /// May query and cancel any intent, and read the metrics.
    Operator,
}

impl Role {
    /// The name in the list of callers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Governor => "governor",
            Self::Approver => "approver",
            Self::Operator => "operator",
        }
    }
}

/// The reason why a list of callers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text is not a list of callers.
    #[error("`{path}`: {reason}")]
    NotAList {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// An entry is not valid.
    #[error("the caller `{name}` {reason}")]
    Caller {
        /// The name of the caller.
        name: String,
        /// The problem. It is part of the message; as a `source` it would be printed twice in an error
        /// chain.
        reason: CallerEntryError,
    },
}

/// The problem with one entry of the list, as the end of a sentence about the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerEntryError {
    /// The name is too long, empty, or not printable.
    #[error("needs a name of 1 to {MAX_NAME_CHARS} characters without white space or control characters")]
    Name,
    /// Another entry has the same name.
    #[error("is in the list already")]
    SameName,
    /// No entry has this name.
    #[error("is not in `{}`", .0.display())]
    NotListed(PathBuf),
    /// The entry has no role.
    #[error("has no role: give it `agent`, `governor`, `approver` or `operator`")]
    NoRole,
    /// The entry has agents without the role `agent`, or the role without agents.
    #[error(
        "must have `agents` (`--agent`) if it has the role `agent`, and only then: list the DIDs of the agents for \
         which it sends intents, or `*` for every agent"
    )]
    Agents,
    /// An agent is not a DID.
    #[error("has an invalid agent: {0}")]
    Agent(IdentError),
    /// The token's digest is not valid.
    #[error("has an invalid `token_sha256`: {0}")]
    NotADigest(&'static str),
    /// The digest is that of an empty token.
    #[error("has the SHA-256 of the empty text in `token_sha256`")]
    EmptyToken,
    /// The subject is empty.
    #[error("has an empty `subject` in `jwt`")]
    EmptySubject,
    /// The entry has no credential, or more than one.
    #[error("must have exactly one of `token_sha256`, `certificate` and `jwt`")]
    NotOneCredential,
    /// Another entry has the same credential.
    #[error("has the same credential as another caller")]
    SameCredential,
}

/// One entry of the list of callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallerEntry {
    /// The name in logs.
    pub name: String,
    /// The roles.
    pub roles: BTreeSet<Role>,
    /// The agents in whose name the caller may send intents: DIDs, or `*` for all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub agents: BTreeSet<String>,
    /// The SHA-256 of the caller's token, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_sha256: Option<String>,
    /// A DNS name or URI in the caller's certificate. Not a digest, because certificates are renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The time from which the entry is no longer valid.
    #[serde(default, with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<OffsetDateTime>,
    /// The issuer and the subject of the caller's JSON Web Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtSubject>,
}

/// The credential that identifies a caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallerIdentity {
    /// A token with this SHA-256.
    Token(Digest),
    /// A certificate for this DNS name or URI.
    Certificate(String),
    /// JSON Web Tokens with this issuer and subject.
    Jwt(JwtSubject),
}

impl CallerEntry {
    /// The credential of this entry, which must be exactly one of three.
    ///
    /// # Errors
    /// [`CallerEntryError`] when there is none or more than one.
    pub fn identity(&self) -> Result<CallerIdentity, CallerEntryError> {
        match (&self.token_sha256, &self.certificate, &self.jwt) {
            (Some(token), None, None) => match Digest::parse(token) {
                Ok(token) if token == Digest::compute(b"") => Err(CallerEntryError::EmptyToken),
                Ok(token) => Ok(CallerIdentity::Token(token)),
                Err(error) => Err(CallerEntryError::NotADigest(error)),
            },
            (None, Some(certificate), None) => Ok(CallerIdentity::Certificate(certificate.clone())),
            (None, None, Some(jwt)) if jwt.subject.is_empty() => Err(CallerEntryError::EmptySubject),
            (None, None, Some(jwt)) => Ok(CallerIdentity::Jwt(jwt.clone())),
            (None, None, None) | (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
                Err(CallerEntryError::NotOneCredential)
            }
        }
    }
}

/// The TOML form of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerFile {
    #[serde(default)]
    caller: Vec<CallerEntry>,
}

/// A secret token. Its text is shown once, when it is created.
pub struct Token(Zeroizing<String>);

impl Token {
    /// Creates a random token.
    ///
    /// # Ambient Authority
    /// Asks the system for random bytes.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub fn new() -> std::io::Result<Self> {
        let mut random = Zeroizing::new([0; TOKEN_BYTES]);
        getrandom::fill(&mut *random).map_err(std::io::Error::other)?;
        let digits = Zeroizing::new(URL_SAFE_NO_PAD.encode(*random));
        Ok(Self(Zeroizing::new(format!("{TOKEN_PREFIX}{}", *digits))))
    }

    /// The secret text, which only the caller may get.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The SHA-256 for the list of callers, in hexadecimal digits.
    #[must_use]
    pub fn sha256(&self) -> String {
        Digest::compute(self.0.as_bytes()).to_string()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The list of callers in a file.
#[derive(Debug)]
pub struct CallerList {
    path: PathBuf,
    entries: Vec<CallerEntry>,
    /// The lock of a list that is open for changes; it serializes concurrent changes.
    _lock: Option<File>,
}

impl CallerList {
    /// Reads a list.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`CallersError`], also when other users may change the file.
    pub fn read(path: &Path) -> Result<Self, CallersError> {
        let not_a_list = |reason: String| CallersError::NotAList { path: path.to_owned(), reason };
        let text = files::read_guarded(path, MAX_LIST_BYTES)?;
        let text = std::str::from_utf8(&text).map_err(|error| not_a_list(error.to_string()))?;
        let file = toml::from_str::<CallerFile>(text);
        let file = file.map_err(|error| not_a_list(error.to_string().trim_end().to_owned()))?;
        Ok(Self { path: path.to_owned(), entries: file.caller, _lock: None })
    }

    /// Opens a list for changes, empty if the file does not exist. Waits while another process changes a list
    /// in the same folder.
    ///
    /// # Ambient Authority
    /// Reads the file, and locks its folder.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn open_for_update(path: &Path) -> Result<Self, CallersError> {
        // The target of a symbolic link is changed, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = parent_folder(&path);
        let lock = File::open(folder).map_err(|error| FileError::io(folder, error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| FileError::io(folder, error))?;
        let list = match path.try_exists() {
            Ok(false) => Self { path, entries: Vec::new(), _lock: None },
            Ok(true) | Err(_) => Self::read(&path)?,
        };
        Ok(Self { _lock: Some(lock), ..list })
    }

    /// All entries, in the order of their addition.
    #[must_use]
    pub fn entries(&self) -> &[CallerEntry] {
        &self.entries
    }

    /// Adds an entry and writes the file.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// [`CallersError`] when the new list would not be valid; the file is then unchanged.
    pub fn add(&mut self, entry: CallerEntry) -> Result<(), CallersError> {
        self.entries.push(entry);
        Callers::from_entries(&self.entries, TokenIssuers::default())?;
        self.write()
    }

    /// Removes an entry and writes the file.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// [`CallersError`], also when no entry has this name.
    pub fn remove(&mut self, name: &str) -> Result<(), CallersError> {
        let count = self.entries.len();
        self.entries.retain(|entry| entry.name != name);
        if self.entries.len() == count {
            let reason = CallerEntryError::NotListed(self.path.clone());
            return Err(CallersError::Caller { name: name.to_owned(), reason });
        }
        self.write()
    }

    fn write(&self) -> Result<(), CallersError> {
        let text = toml::to_string(&CallerFile { caller: self.entries.clone() });
        let not_a_list = |error: toml::ser::Error| CallersError::NotAList {
            path: self.path.clone(),
            reason: error.to_string(),
        };
        let text = text.map_err(not_a_list)?;
        Ok(files::replace_private(&self.path, &format!("{HEADER}\n{text}"))?)
    }
}

/// An authenticated or anonymous caller. Only functions of this module construct one.
#[derive(Debug)]
pub struct Caller {
    name: Box<str>,
    roles: BTreeSet<Role>,
    agents: AllowedAgents,
    /// The tools that the scope of its token reaches.
    tools: CallTargets,
    origin: CallerOrigin,
}

/// Compares names and rights, but not their origin: a caller that a reload does not change stays equal.
impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        let Self { name, roles, agents, tools, origin: _ } = self;
        (name, roles, agents, tools) == (&other.name, &other.roles, &other.agents, &other.tools)
    }
}

impl Eq for Caller {}

/// The origin of a caller's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CallerOrigin {
    /// There is no list: the rights hold while the process runs.
    Process,
    /// An entry of a list.
    Entry {
        identity: CallerIdentity,
        /// The number of the list.
        list: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowedAgents {
    Every,
    These(BTreeSet<AgentDid>),
}

/// The right to decide on escalated intents. Only [`Caller::decision_right`] and [`Governor::decision_right`] construct
/// one.
///
/// [`Governor::decision_right`]: crate::Governor::decision_right
#[derive(Debug)]
pub struct DecisionRight<'a> {
    by: &'a str,
    /// The deciding caller; `None` for the governor.
    caller: Option<&'a Caller>,
}

/// The author of a decision. It carries no right: [`Callers::may_decide`] says whether the author still has one.
#[derive(Debug, Clone)]
pub struct DecisionAuthor {
    name: Box<str>,
    /// `None` for the governor.
    origin: Option<CallerOrigin>,
}

impl DecisionAuthor {
    /// The name, for records.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `true` if both have the same name or the same credential. A reload may have given the credential another name.
    #[must_use]
    pub fn is_same_person(&self, other: &Self) -> bool {
        self.name == other.name || self.identity().is_some_and(|identity| other.identity() == Some(identity))
    }

    fn identity(&self) -> Option<&CallerIdentity> {
        match &self.origin {
            Some(CallerOrigin::Entry { identity, list: _ }) => Some(identity),
            Some(CallerOrigin::Process) | None => None,
        }
    }
}

/// A caller whom another node of the fleet has authenticated.
#[derive(Serialize, Deserialize)]
struct NodeCaller {
    name: Box<str>,
    identity: CallerIdentity,
}

/// The author of an approval that the fleet stores.
#[derive(Serialize, Deserialize)]
struct StoredAuthor {
    author: NodeCaller,
    /// The fingerprint of the list under which the approval was made.
    list: Box<str>,
}

/// The right to stop agents, tools or everything, and to resume them. Only [`Caller::stop_right`] constructs one.
#[derive(Debug)]
pub struct StopRight<'a> {
    by: &'a str,
}

impl StopRight<'_> {
    /// The name of the operator, for records.
    #[must_use]
    pub fn by(&self) -> &str {
        self.by
    }
}

impl DecisionRight<'static> {
    pub(crate) fn of_governor() -> Self {
        Self { by: GOVERNOR, caller: None }
    }
}

impl DecisionRight<'_> {
    /// The name of the deciding caller, for records.
    #[must_use]
    pub fn by(&self) -> &str {
        self.by
    }

    /// `true` if the governor decides rather than a caller.
    #[must_use]
    pub fn is_of_governor(&self) -> bool {
        self.caller.is_none()
    }

    /// The author of the decision, to check when it is recorded that they still have the right.
    #[must_use]
    pub fn author(&self) -> DecisionAuthor {
        DecisionAuthor { name: self.by.into(), origin: self.caller.map(|caller| caller.origin.clone()) }
    }

    /// `true` if the deciding caller may also act for `agent`.
    #[must_use]
    pub fn acts_for(&self, agent: &AgentDid) -> bool {
        self.caller.is_some_and(|caller| caller.may_act_as(agent))
    }
}

impl Caller {
    /// The caller of a server without a list of callers. It has the roles agent, for every agent, and operator; if
    /// unsigned verdicts are permitted, also governor and approver.
    #[must_use]
    pub fn anonymous(permission: Option<AcceptUnsigned>) -> Self {
        let extra: &[Role] = if permission.is_some() { &[Role::Governor, Role::Approver] } else { &[] };
        let roles = [Role::Agent, Role::Operator].iter().chain(extra).copied().collect();
        Self { name: "anybody".into(), roles, ..Self::any_agent() }
    }

    /// The person whose program is at the other end of standard input: every agent, the operator, and an approver.
    #[must_use]
    pub fn local_person() -> Self {
        let roles = BTreeSet::from([Role::Agent, Role::Operator, Role::Approver]);
        Self { name: "the person at the host".into(), roles, ..Self::any_agent() }
    }

    /// The person who started a server without a list of callers, in a browser: the roles of [`Self::local_person`].
    #[must_use]
    pub fn console_person() -> Self {
        Self { name: "the person at the console".into(), ..Self::local_person() }
    }

    /// The name in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The roles.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.roles.iter().copied()
    }

    /// Returns `true` when the caller has at least one of these roles.
    #[must_use]
    pub fn is_any_of(&self, roles: &[Role]) -> bool {
        roles.iter().any(|role| self.roles.contains(role))
    }

    /// The caller's right to decide on escalated intents, if it has the role `approver` or `governor`. A token whose
    /// scope names tools decides nothing: an approval would run tools that the scope does not reach.
    #[must_use]
    pub fn decision_right(&self) -> Option<DecisionRight<'_>> {
        let may_decide = match self.tools {
            CallTargets::All => self.is_any_of(&[Role::Approver, Role::Governor]),
            CallTargets::Named(_) => false,
        };
        may_decide.then_some(DecisionRight { by: &self.name, caller: Some(self) })
    }

    /// The caller's right to stop and to resume, if it has the role `operator`, and no scope that names tools: a stop and its
    /// end concern other tools as well.
    #[must_use]
    pub fn stop_right(&self) -> Option<StopRight<'_>> {
        let may_stop = match self.tools {
            CallTargets::All => self.is_any_of(&[Role::Operator]),
            CallTargets::Named(_) => false,
        };
        may_stop.then_some(StopRight { by: &self.name })
    }

    /// The caller of a door that is open to everybody: an agent of any name, without further roles.
    #[must_use]
    pub fn any_agent() -> Self {
        Self {
            name: "anybody".into(),
            roles: BTreeSet::from([Role::Agent]),
            agents: AllowedAgents::Every,
            tools: CallTargets::All,
            origin: CallerOrigin::Process,
        }
    }

    /// The same caller with only these tools.
    fn narrowed_to(self: &Arc<Self>, tools: CallTargets) -> Arc<Self> {
        match tools {
            CallTargets::All => Arc::clone(self),
            CallTargets::Named(_) => {
                let Self { name, roles, agents, tools: _, origin } = &**self;
                let name = name.clone();
                let roles = roles.clone();
                let agents = agents.clone();
                Arc::new(Self { name, roles, agents, tools, origin: origin.clone() })
            }
        }
    }

    /// This caller in the form for another node of the fleet, which has its own list; `None` for a caller without an
    /// entry in a list, and for one whose token reaches only some tools, because the entry has more rights than it.
    #[must_use]
    pub fn to_node(&self) -> Option<Value> {
        let identity = match (&self.origin, &self.tools) {
            (CallerOrigin::Entry { identity, list: _ }, CallTargets::All) => identity.clone(),
            (CallerOrigin::Entry { .. }, CallTargets::Named(_)) | (CallerOrigin::Process, _) => {
                return None;
            }
        };
        serde_json::to_value(NodeCaller { name: self.name.clone(), identity }).ok()
    }

    /// The caller's agent, if it has exactly one.
    #[must_use]
    pub fn only_agent(&self) -> Option<&AgentDid> {
        match &self.agents {
            AllowedAgents::These(agents) if agents.len() == 1 => agents.first(),
            AllowedAgents::Every | AllowedAgents::These(_) => None,
        }
    }

    /// The tools that the scope of the caller's token reaches: all for a caller without such a scope.
    #[must_use]
    pub fn tools(&self) -> &CallTargets {
        &self.tools
    }

    /// Returns `true` when the caller may read the intents of all agents.
    #[must_use]
    pub fn may_read_all(&self) -> bool {
        self.is_any_of(&[Role::Governor, Role::Approver, Role::Operator])
    }

    /// Returns `true` when the caller may read the intents of this agent.
    #[must_use]
    pub fn may_read(&self, agent: &AgentDid) -> bool {
        self.may_read_all() || self.may_act_as(agent)
    }

    /// Returns `true` when the caller may cancel the intents of this agent.
    #[must_use]
    pub fn may_cancel(&self, agent: &AgentDid) -> bool {
        self.is_any_of(&[Role::Governor, Role::Operator]) || self.may_act_as(agent)
    }

    /// Returns `true` when the caller may send intents in this agent's name.
    #[must_use]
    pub fn may_act_as(&self, agent: &AgentDid) -> bool {
        let is_allowed = match &self.agents {
            AllowedAgents::Every => true,
            AllowedAgents::These(agents) => agents.contains(agent),
        };
        is_allowed && self.roles.contains(&Role::Agent)
    }
}

/// The token part of a credential.
#[derive(Debug, Clone, Default)]
enum PresentedToken {
    #[default]
    Nothing,
    Hashed(Digest),
    /// A JSON Web Token, or the reason why it is not valid.
    Jwt(Arc<Result<Jwt, TokenError>>),
    /// An unreadable token. It is not ignored: the caller is rejected even with a listed certificate.
    Malformed,
}

/// The credentials that a caller presents.
#[derive(Debug, Clone, Default)]
pub struct Credential {
    token: PresentedToken,
    names: Arc<[Box<str>]>,
}

impl Credential {
    /// The credential that consists of the token, if the caller presented one, and of the names in a verified
    /// certificate.
    #[must_use]
    pub fn new(token: Option<&[u8]>, names: Arc<[Box<str>]>) -> Self {
        let token = match token {
            None => PresentedToken::Nothing,
            Some(token) if Jwt::looks_like_jwt(token) => PresentedToken::Jwt(Arc::new(Jwt::parse(token))),
            Some(token) => PresentedToken::Hashed(Digest::compute(token)),
        };
        Self { token, names }
    }

    /// Returns `true` when a readable token was presented, valid or not.
    #[must_use]
    pub fn has_token(&self) -> bool {
        match self.token {
            PresentedToken::Hashed(_) | PresentedToken::Jwt(_) => true,
            PresentedToken::Nothing | PresentedToken::Malformed => false,
        }
    }

    /// A credential with an unreadable token. It identifies no listed caller.
    #[must_use]
    pub fn malformed() -> Self {
        Self { token: PresentedToken::Malformed, names: Arc::default() }
    }
}

/// The reason why authentication failed. Only the operator sees the reason, except for [`Self::expired_at`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The caller presented no token and no certificate.
    #[error("the caller presented no credential")]
    NoCredential,
    /// No entry has this credential.
    #[error("no caller in the list has this credential")]
    Unlisted,
    /// The entry has expired.
    #[error("the entry of the caller `{name}` expired at {until}")]
    Expired {
        /// The name of the caller.
        name: Box<str>,
        /// The time of expiry.
        until: OffsetDateTime,
    },
    /// The JSON Web Token is not valid.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl AuthError {
    /// The time at which the credential expired, if nothing else is wrong with it. The client may learn it: it has the
    /// token or the certificate of an entry, or a token that an issuer signed for this executor.
    #[must_use]
    pub fn expired_at(&self) -> Option<OffsetDateTime> {
        match self {
            Self::Expired { until, name: _ } | Self::Token(TokenError::Expired(until)) => Some(*until),
            Self::NoCredential | Self::Unlisted | Self::Token(_) => None,
        }
    }
}

/// All callers that this server authenticates.
#[derive(Debug)]
pub struct Callers(CallerSource);

#[derive(Debug)]
enum CallerSource {
    Anonymous(Arc<Caller>),
    Listed(CallerTable),
}

#[derive(Debug, Default)]
struct CallerTable {
    /// The number of the list in this process.
    number: u64,
    /// A hash of the entries and of the issuers' keys.
    fingerprint: Box<str>,
    callers: Vec<CallerRecord>,
    index: HashMap<CallerIdentity, usize>,
    issuers: TokenIssuers,
}

#[derive(Debug)]
struct CallerRecord {
    caller: Arc<Caller>,
    expires_at: Option<OffsetDateTime>,
}

/// The current list of callers, shared by all doors, the executor and the reload.
#[derive(Debug, Clone)]
pub struct CurrentCallers(Arc<ArcSwap<Callers>>);

impl CurrentCallers {
    /// Starts with this list.
    #[must_use]
    pub fn new(callers: Callers) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(callers)))
    }

    /// The current list.
    #[must_use]
    pub fn load(&self) -> impl Deref<Target = Arc<Callers>> {
        self.0.load()
    }

    /// Replaces the list. Later look-ups use the new one.
    pub fn replace(&self, callers: Callers) {
        self.0.store(Arc::new(callers));
    }
}

/// The result of looking up the author of a decision.
enum FoundAuthor<'a> {
    /// The governor, whose connection authenticates it.
    Governor,
    /// A person, when there is no list of callers.
    Unlisted,
    /// An entry that may decide.
    Entry(&'a Caller),
    /// The entry has lost the role, has another name, has expired, or is not in the list.
    Gone,
}

impl Callers {
    /// Treats every caller as [`Caller::anonymous`].
    #[must_use]
    pub fn anonymous(permission: Option<AcceptUnsigned>) -> Self {
        Self(CallerSource::Anonymous(Arc::new(Caller::anonymous(permission))))
    }

    /// Rejects every caller.
    #[must_use]
    pub fn empty() -> Self {
        Self(CallerSource::Listed(CallerTable::default()))
    }

    /// Reads a list of callers, whose JSON Web Tokens are verified with the keys of `issuers`.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`CallersError`] for the first entry that is not valid. No entry is skipped, because the operator relies on
    /// each.
    pub fn read(path: &Path, issuers: TokenIssuers) -> Result<Self, CallersError> {
        Self::from_entries(CallerList::read(path)?.entries(), issuers)
    }

    fn from_entries(entries: &[CallerEntry], issuers: TokenIssuers) -> Result<Self, CallersError> {
        static LIST_COUNT: AtomicU64 = AtomicU64::new(0);
        let number = LIST_COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        let fingerprint = fingerprint(entries, &issuers);
        let mut table = CallerTable { number, fingerprint, issuers, ..CallerTable::default() };
        let mut names = BTreeSet::new();
        for entry in entries {
            let invalid = |reason| CallersError::Caller { name: entry.name.clone(), reason };
            if !names.insert(&entry.name) {
                return Err(invalid(CallerEntryError::SameName));
            }
            table.add(entry).map_err(invalid)?;
        }
        Ok(Self(CallerSource::Listed(table)))
    }

    /// The number of callers; `None` without a list.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        match &self.0 {
            CallerSource::Anonymous(_) => None,
            CallerSource::Listed(table) => Some(table.callers.len()),
        }
    }

    /// Name and issuer of each caller whose tokens are never valid, because their issuer is not configured.
    #[must_use]
    pub fn with_unknown_issuer(&self) -> Vec<(&str, &Issuer)> {
        let CallerSource::Listed(CallerTable { number: _, fingerprint: _, callers, index, issuers }) =
            &self.0
        else {
            return Vec::new();
        };
        let missing = index.iter().filter_map(|(identity, position)| match identity {
            CallerIdentity::Jwt(JwtSubject { issuer, .. }) if !issuers.contains(issuer) => {
                Some((&*callers.get(*position)?.caller.name, issuer))
            }
            CallerIdentity::Jwt(_) | CallerIdentity::Token(_) | CallerIdentity::Certificate(_) => None,
        });
        let mut missing = missing.collect::<Vec<_>>();
        missing.sort();
        missing
    }

    /// Authenticates a caller. If there is a token, only the token counts; otherwise the certificate must name exactly
    /// one caller.
    ///
    /// # Errors
    /// [`AuthError`] with the reason.
    pub fn identify(&self, credential: &Credential, now: OffsetDateTime) -> Result<Arc<Caller>, AuthError> {
        let table = match &self.0 {
            CallerSource::Anonymous(caller) => return Ok(Arc::clone(caller)),
            CallerSource::Listed(table) => table,
        };
        let mut tools = CallTargets::All;
        let position = match &credential.token {
            PresentedToken::Hashed(token) => table.index.get(&CallerIdentity::Token(*token)).copied(),
            // The token is verified again with each request: a cached result would have to be invalidated at
            // `exp` and at SIGHUP.
            PresentedToken::Jwt(token) => {
                let (position, scope) = table.find_by_jwt(token, now)?;
                tools = scope;
                Some(position)
            }
            PresentedToken::Nothing if credential.names.is_empty() => return Err(AuthError::NoCredential),
            PresentedToken::Nothing => table.find_by_certificate(&credential.names),
            PresentedToken::Malformed => None,
        };
        let record = position.and_then(|position| table.callers.get(position));
        let CallerRecord { caller, expires_at } = record.ok_or(AuthError::Unlisted)?;
        match expires_at {
            Some(until) if *until <= now => {
                Err(AuthError::Expired { name: caller.name.clone(), until: *until })
            }
            Some(_) | None => Ok(caller.narrowed_to(tools)),
        }
    }
}

impl Callers {
    /// `true` if the author of a decision may still decide: its credential is listed under the same name, with the role
    /// `approver` or `governor`, and its entry has not expired. A JSON Web Token may expire after the decision was
    /// sent. It counts only under the list, with its keys of issuers, that verified it.
    #[must_use]
    pub fn may_decide(&self, author: &DecisionAuthor, now: OffsetDateTime) -> bool {
        match self.find_author(author, now) {
            FoundAuthor::Governor | FoundAuthor::Unlisted | FoundAuthor::Entry(_) => true,
            FoundAuthor::Gone => false,
        }
    }

    /// The listed caller whom another node has authenticated, and for whom that node asks; `None` if this list has no
    /// such caller. `question` is an object whose member `caller` is from [`Caller::to_node`].
    #[must_use]
    pub fn caller_from_node(&self, question: &NodeText, now: OffsetDateTime) -> Option<Arc<Caller>> {
        #[derive(Deserialize)]
        struct CallerQuestion {
            caller: NodeCaller,
        }
        let CallerQuestion { caller: NodeCaller { name, identity } } =
            serde_json::from_str(question.as_str()).ok()?;
        let CallerSource::Listed(table) = &self.0 else { return None };
        let CallerRecord { caller, expires_at } = table.callers.get(*table.index.get(&identity)?)?;
        let is_valid = caller.name == name && expires_at.is_none_or(|until| until > now);
        is_valid.then(|| Arc::clone(caller))
    }

    /// The author of an approval in the form for the other nodes of a fleet; `None` unless the author has an entry in
    /// this list.
    #[must_use]
    pub fn author_to_node(&self, author: &DecisionAuthor) -> Option<Value> {
        let CallerSource::Listed(table) = &self.0 else { return None };
        let identity = author.identity()?.clone();
        let list = table.fingerprint.clone();
        let author = NodeCaller { name: author.name.clone(), identity };
        serde_json::to_value(StoredAuthor { author, list }).ok()
    }

    /// The author of an approval that a node of the fleet has stored, an object whose member `author` is from
    /// [`Self::author_to_node`]. `None` if it was made under another list.
    // That node has verified the person's token, with the keys of the issuers that belong to the list.
    #[must_use]
    pub fn author_from_node(&self, approval: &NodeText) -> Option<DecisionAuthor> {
        #[derive(Deserialize)]
        struct StoredApproval {
            author: StoredAuthor,
        }
        let StoredApproval { author: StoredAuthor { author: NodeCaller { name, identity }, list } } =
            serde_json::from_str(approval.as_str()).ok()?;
        let CallerSource::Listed(table) = &self.0 else { return None };
        (list == table.fingerprint).then_some(DecisionAuthor {
            name,
            origin: Some(CallerOrigin::Entry { identity, list: table.number }),
        })
    }

    /// `true` if the author of a decision may still decide, and does not act for `agent`.
    #[must_use]
    pub fn may_decide_for_others(
        &self,
        author: &DecisionAuthor,
        agent: &AgentDid,
        now: OffsetDateTime,
    ) -> bool {
        match self.find_author(author, now) {
            FoundAuthor::Entry(caller) => !caller.may_act_as(agent),
            // Only people count, and without a list everybody acts for every agent.
            FoundAuthor::Governor | FoundAuthor::Unlisted | FoundAuthor::Gone => false,
        }
    }

    fn find_author(&self, author: &DecisionAuthor, now: OffsetDateTime) -> FoundAuthor<'_> {
        let (identity, list) = match &author.origin {
            None => return FoundAuthor::Governor,
            Some(CallerOrigin::Process) => return FoundAuthor::Unlisted,
            Some(CallerOrigin::Entry { identity, list }) => (identity, *list),
        };
        let CallerSource::Listed(table) = &self.0 else { return FoundAuthor::Gone };
        let is_verified = match identity {
            CallerIdentity::Jwt(_) => list == table.number,
            CallerIdentity::Token(_) | CallerIdentity::Certificate(_) => true,
        };
        let record = table.index.get(identity).and_then(|position| table.callers.get(*position));
        match record {
            Some(CallerRecord { caller, expires_at })
                if is_verified
                    && caller.name == author.name
                    && caller.decision_right().is_some()
                    && expires_at.is_none_or(|until| until > now) =>
            {
                FoundAuthor::Entry(caller)
            }
            Some(_) | None => FoundAuthor::Gone,
        }
    }
}

impl CallerTable {
    /// The index of the only caller that a certificate names.
    fn find_by_certificate(&self, names: &[Box<str>]) -> Option<usize> {
        let identities = names.iter().map(|name| CallerIdentity::Certificate(String::from(&**name)));
        let mut positions = identities.filter_map(|identity| self.index.get(&identity).copied());
        let first = positions.next()?;
        positions.all(|other| other == first).then_some(first)
    }

    /// Verifies a token and returns the index of the caller with the token's subject, and the tools of its scope.
    fn find_by_jwt(
        &self,
        token: &Result<Jwt, TokenError>,
        now: OffsetDateTime,
    ) -> Result<(usize, CallTargets), TokenError> {
        let token = token.as_ref().map_err(Clone::clone)?;
        let (subject, tools) = self.issuers.verify(token, now)?;
        let position = self.index.get(&CallerIdentity::Jwt(subject.clone())).copied();
        position.map(|position| (position, tools)).ok_or(TokenError::Unlisted(subject))
    }

    fn add(&mut self, entry: &CallerEntry) -> Result<(), CallerEntryError> {
        let CallerEntry { name, roles, agents, expires_at, .. } = entry;
        let has_valid_length = (1..=MAX_NAME_CHARS).contains(&name.chars().count());
        if !has_valid_length || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(CallerEntryError::Name);
        }
        if roles.is_empty() {
            return Err(CallerEntryError::NoRole);
        }
        let agents = parse_agents(roles, agents)?;
        let identity = entry.identity()?;
        if self.index.insert(identity.clone(), self.callers.len()).is_some() {
            return Err(CallerEntryError::SameCredential);
        }
        let caller = Caller {
            name: name.as_str().into(),
            roles: roles.clone(),
            agents,
            tools: CallTargets::All,
            origin: CallerOrigin::Entry { identity, list: self.number },
        };
        self.callers.push(CallerRecord { caller: Arc::new(caller), expires_at: *expires_at });
        Ok(())
    }
}

/// A hash of a list of callers, in hexadecimal.
fn fingerprint(entries: &[CallerEntry], issuers: &TokenIssuers) -> Box<str> {
    let mut hash = Sha256::new();
    // A list that was read from a file can be serialized.
    hash.update(serde_json::to_vec(entries).unwrap_or_default());
    hash.update(format!("{issuers:?}"));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

fn parse_agents(
    roles: &BTreeSet<Role>,
    agents: &BTreeSet<String>,
) -> Result<AllowedAgents, CallerEntryError> {
    if roles.contains(&Role::Agent) == agents.is_empty() {
        return Err(CallerEntryError::Agents);
    }
    if agents.contains(EVERY_AGENT) {
        return Ok(AllowedAgents::Every);
    }
    let agents = agents.iter().map(|agent| AgentDid::parse(agent)).collect::<Result<_, _>>();
    agents.map(AllowedAgents::These).map_err(CallerEntryError::Agent)
}

#[cfg(test)]
mod tests;
