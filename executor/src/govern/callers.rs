//! Who calls: by which token or certificate a caller is known, what it may do here, and in whose name.
//!
//! A file lists the callers. It holds the SHA-256 of each token and never a token, so that whoever reads
//! it can call in nobody's name. Without such a file nobody is told apart, which only a local door allows.
//! A caller says nothing about a verdict: whose word that is, its proof shows.
//!
//! A token in the form of a JSON Web Token is read as one, and in no other way: it is never looked up by its
//! hash, which would go on being good when the token has expired.

use super::admit::AcceptUnsigned;
use super::files::{self, FileError, folder_of};
use super::jwt::{Jwt, JwtSubject, TokenError, TokenIssuers};
use crate::ident::{AgentDid, IdentError, Issuer};
use crate::tool::Digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// The most bytes of a list of callers.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// The longest name of a caller, in characters.
const MAX_NAME_BYTES: usize = 64;
/// What every token begins with, so that one that got into a log or a repository is found.
const TOKEN_PREFIX: &str = "a2g_";
/// How many random bytes a token has.
const TOKEN_BYTES: usize = 32;
/// In the place of an agent: all of them.
const EVERY_AGENT: &str = "*";

const HEADER: &str = "\
# Who may call this executor. `a2g-executor caller new|list|remove` writes this file, and keeps no comments.
# It holds no token, only the SHA-256 of each. SIGHUP makes the executor read it again.
";

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sends intents in the name of its agents, and asks for, and cancels, those.
    Agent,
    /// Sends standing policies, revocations and directives, and asks for, and cancels, any intent.
    Governor,
    /// Decides escalated intents, and asks for any.
    Approver,
    /// Asks for, and cancels, any intent, and reads the metrics.
    Operator,
}

impl Role {
    /// The word in the list of callers.
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

/// Why a list of callers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its text is not such a list.
    #[error("`{path}`: {reason}")]
    NotAList {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A caller that cannot be.
    #[error("the caller `{name}` {reason}")]
    Caller {
        /// Its name.
        name: String,
        /// What is wrong with it. Part of the sentence, so no `source`, which a chain would say again.
        reason: CallerEntryError,
    },
}

/// What is wrong with one caller of the list, as the end of a sentence about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerEntryError {
    /// A name that logs cannot show.
    #[error("needs a name of 1 to {MAX_NAME_BYTES} characters without white space or control characters")]
    Name,
    /// A name that was used before.
    #[error("is in the list already")]
    SameName,
    /// A name that is not there.
    #[error("is not in `{}`", .0.display())]
    NotListed(PathBuf),
    /// It may do nothing.
    #[error("has no role: give it `agent`, `governor`, `approver` or `operator`")]
    NoRole,
    /// Agents without the role, or the role without agents.
    #[error(
        "has to name in `agents` (`--agent`) for whom it sends intents when it has the role `agent`, and only then: DIDs, \
         or `*` for every agent"
    )]
    Agents,
    /// An agent's name that is no DID.
    #[error("has an agent that is none: {0}")]
    Agent(IdentError),
    /// No digest.
    #[error("has no SHA-256 in `token_sha256`: {0}")]
    NotADigest(&'static str),
    /// The digest of an empty token.
    #[error("has the SHA-256 of nothing in `token_sha256`")]
    EmptyToken,
    /// A JSON Web Token about nobody.
    #[error("has an empty `subject` in `jwt`")]
    EmptySubject,
    /// Nothing to be known by, or more than one thing.
    #[error("has to show one of three: `token_sha256`, `certificate` or `jwt`")]
    NotOneCredential,
    /// What another caller of the list is known by.
    #[error("shows the same as another caller")]
    SameCredential,
}

/// One caller of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallerEntry {
    /// What it is called in logs.
    pub name: String,
    /// What it may do.
    pub roles: BTreeSet<Role>,
    /// In whose name it sends intents: DIDs, or `*` for anybody's.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub agents: BTreeSet<String>,
    /// The SHA-256 of its token, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_sha256: Option<String>,
    /// Or a DNS name or URI that its certificate is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// When it is no longer known.
    #[serde(default, with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<OffsetDateTime>,
    /// Or about whom its JSON Web Tokens are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtSubject>,
}

/// What a caller is known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Shows {
    /// A token, which has this SHA-256.
    Token(Digest),
    /// A certificate for this DNS name or URI.
    Certificate(String),
    /// JSON Web Tokens about this subject.
    Jwt(JwtSubject),
}

impl CallerEntry {
    /// What it is known by, which is one of three.
    ///
    /// # Errors
    /// [`CallerEntryError`] when it is none or more of them.
    pub fn shows(&self) -> Result<Shows, CallerEntryError> {
        match (&self.token_sha256, &self.certificate, &self.jwt) {
            (Some(token), None, None) => match Digest::parse(token) {
                Ok(token) if token == Digest::of(b"") => Err(CallerEntryError::EmptyToken),
                Ok(token) => Ok(Shows::Token(token)),
                Err(error) => Err(CallerEntryError::NotADigest(error)),
            },
            (None, Some(certificate), None) => Ok(Shows::Certificate(certificate.clone())),
            (None, None, Some(jwt)) if jwt.subject.is_empty() => Err(CallerEntryError::EmptySubject),
            (None, None, Some(jwt)) => Ok(Shows::Jwt(jwt.clone())),
            (None, None, None) | (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
                Err(CallerEntryError::NotOneCredential)
            }
        }
    }
}

/// The file as it is written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    caller: Vec<CallerEntry>,
}

/// A token, which is shown once.
pub struct Token(Zeroizing<String>);

impl Token {
    /// A new one.
    ///
    /// # Ambient Authority
    /// Asks the system for random bytes.
    ///
    /// # Errors
    /// When there are none.
    pub fn new() -> std::io::Result<Self> {
        let mut random = Zeroizing::new([0; TOKEN_BYTES]);
        getrandom::fill(&mut *random).map_err(std::io::Error::other)?;
        let digits = Zeroizing::new(URL_SAFE_NO_PAD.encode(*random));
        Ok(Self(Zeroizing::new(format!("{TOKEN_PREFIX}{}", *digits))))
    }

    /// Its text, for its bearer alone.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Its SHA-256, as the list has it.
    #[must_use]
    pub fn sha256(&self) -> String {
        Digest::of(self.0.as_bytes()).to_string()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The list of callers, as a file has it.
#[derive(Debug)]
pub struct CallerList {
    path: PathBuf,
    entries: Vec<CallerEntry>,
    /// Held by whoever changes the list, so that two who do it at once do it one after the other.
    _lock: Option<File>,
}

impl CallerList {
    /// Reads a list.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`CallersError`], also when others may change the file.
    pub fn read(path: &Path) -> Result<Self, CallersError> {
        let not_a_list = |reason: String| CallersError::NotAList { path: path.to_owned(), reason };
        let text = files::read_guarded(path, MAX_LIST_BYTES)?;
        let text = std::str::from_utf8(&text).map_err(|error| not_a_list(error.to_string()))?;
        let written = toml::from_str::<Written>(text);
        let written = written.map_err(|error| not_a_list(error.to_string().trim_end().to_owned()))?;
        Ok(Self { path: path.to_owned(), entries: written.caller, _lock: None })
    }

    /// The list of a file that may not be there yet, to change it. Waits for whoever changes one beside it.
    ///
    /// # Ambient Authority
    /// Reads the file, and locks its folder.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn to_change(path: &Path) -> Result<Self, CallersError> {
        // What a link leads to is changed, and not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = folder_of(&path);
        let lock = File::open(folder).map_err(|error| FileError::io(folder, error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| FileError::io(folder, error))?;
        let list = match path.try_exists() {
            Ok(false) => Self { path, entries: Vec::new(), _lock: None },
            Ok(true) | Err(_) => Self::read(&path)?,
        };
        Ok(Self { _lock: Some(lock), ..list })
    }

    /// All callers, in the order in which they were added.
    #[must_use]
    pub fn entries(&self) -> &[CallerEntry] {
        &self.entries
    }

    /// Adds a caller, and writes the list.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// [`CallersError`] when the list would not be one to go by; then the file is as it was.
    pub fn add(&mut self, entry: CallerEntry) -> Result<(), CallersError> {
        self.entries.push(entry);
        Callers::of(&self.entries, TokenIssuers::default())?;
        self.write()
    }

    /// Removes a caller, and writes the list.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// [`CallersError`], also when there is none of this name.
    pub fn remove(&mut self, name: &str) -> Result<(), CallersError> {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.name != name);
        if self.entries.len() == before {
            let reason = CallerEntryError::NotListed(self.path.clone());
            return Err(CallersError::Caller { name: name.to_owned(), reason });
        }
        self.write()
    }

    fn write(&self) -> Result<(), CallersError> {
        let text = toml::to_string(&Written { caller: self.entries.clone() });
        let not_a_list = |error: toml::ser::Error| CallersError::NotAList {
            path: self.path.clone(),
            reason: error.to_string(),
        };
        let text = text.map_err(not_a_list)?;
        Ok(files::replace(&self.path, &format!("{HEADER}\n{text}"), 0o600)?)
    }
}

/// Somebody who calls and is known. Only [`Callers::identify`], [`Caller::anybody`] and
/// [`Caller::any_agent`] make one.
#[derive(Debug, PartialEq, Eq)]
pub struct Caller {
    name: Box<str>,
    roles: BTreeSet<Role>,
    agents: Agents,
}

#[derive(Debug, PartialEq, Eq)]
enum Agents {
    Every,
    These(BTreeSet<AgentDid>),
}

impl Caller {
    /// Whoever reaches a door that tells nobody apart: every agent, and the operator. With the leave to take
    /// unsigned verdicts it is the governor as well.
    #[must_use]
    pub fn anybody(leave: Option<AcceptUnsigned>) -> Self {
        let more: &[Role] = if leave.is_some() { &[Role::Governor, Role::Approver] } else { &[] };
        let roles = [Role::Agent, Role::Operator].iter().chain(more).copied().collect();
        Self { name: "anybody".into(), roles, agents: Agents::Every }
    }

    /// What it is called in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it may do.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.roles.iter().copied()
    }

    /// Whether it may do what any of these may.
    #[must_use]
    pub fn is_any_of(&self, roles: &[Role]) -> bool {
        roles.iter().any(|role| self.roles.contains(role))
    }

    /// Whoever reaches a door that is open to everybody: an agent of any name, and nothing more.
    #[must_use]
    pub fn any_agent() -> Self {
        Self { name: "anybody".into(), roles: BTreeSet::from([Role::Agent]), agents: Agents::Every }
    }

    /// The agent in whose name it sends intents, when there is only one.
    #[must_use]
    pub fn only_agent(&self) -> Option<&AgentDid> {
        match &self.agents {
            Agents::These(agents) if agents.len() == 1 => agents.first(),
            Agents::Every | Agents::These(_) => None,
        }
    }

    /// Whether it sends intents in this agent's name.
    #[must_use]
    pub fn speaks_for(&self, agent: &AgentDid) -> bool {
        let theirs = match &self.agents {
            Agents::Every => true,
            Agents::These(agents) => agents.contains(agent),
        };
        theirs && self.roles.contains(&Role::Agent)
    }
}

/// What was shown in the place of a token.
#[derive(Debug, Clone, Default)]
enum Presented {
    #[default]
    Nothing,
    Hashed(Digest),
    /// In the form of a JSON Web Token.
    Jwt(Arc<Result<Jwt, TokenError>>),
    /// It is nobody's, and is not passed over.
    Nonsense,
}

/// What somebody shows to say who they are.
#[derive(Debug, Clone, Default)]
pub struct Credential {
    token: Presented,
    names: Arc<[Box<str>]>,
}

impl Credential {
    /// A token, if one was shown, and the names of a certificate that was checked.
    #[must_use]
    pub fn new(token: Option<&[u8]>, names: Arc<[Box<str>]>) -> Self {
        let token = match token {
            None => Presented::Nothing,
            Some(token) if Jwt::is_meant(token) => Presented::Jwt(Arc::new(Jwt::parse(token))),
            Some(token) => Presented::Hashed(Digest::of(token)),
        };
        Self { token, names }
    }

    /// Whether a token was shown, good or not.
    #[must_use]
    pub fn shows_a_token(&self) -> bool {
        match self.token {
            Presented::Hashed(_) | Presented::Jwt(_) => true,
            Presented::Nothing | Presented::Nonsense => false,
        }
    }

    /// Something in the place of a token that is none: where callers are listed, it is nobody's.
    #[must_use]
    pub fn nonsense() -> Self {
        Self { token: Presented::Nonsense, names: Arc::default() }
    }
}

/// Why somebody is not known. For the operator: a caller is told no more than that it is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Nobody in the list shows this.
    #[error("nobody in the list of callers shows this")]
    Unlisted,
    /// Somebody who was known for some time.
    #[error("the caller `{name}` was known until {until}")]
    Over {
        /// What it was called.
        name: Box<str>,
        /// When it ended.
        until: OffsetDateTime,
    },
    /// A JSON Web Token that is not taken.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// Everybody who is known.
#[derive(Debug)]
pub struct Callers(Known);

#[derive(Debug)]
enum Known {
    /// Nobody is told apart.
    Anybody(Arc<Caller>),
    /// Those of a list.
    Listed(Listed),
}

#[derive(Debug, Default)]
struct Listed {
    callers: Vec<Listing>,
    places: HashMap<Shows, usize>,
    issuers: TokenIssuers,
}

#[derive(Debug)]
struct Listing {
    caller: Arc<Caller>,
    expires_at: Option<OffsetDateTime>,
}

impl Callers {
    /// Tells nobody apart.
    #[must_use]
    pub fn anybody(leave: Option<AcceptUnsigned>) -> Self {
        Self(Known::Anybody(Arc::new(Caller::anybody(leave))))
    }

    /// Knows nobody at all.
    #[must_use]
    pub fn nobody() -> Self {
        Self(Known::Listed(Listed::default()))
    }

    /// Those of a list, some of whom may show tokens of these issuers.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`CallersError`] for the first caller that cannot be. Nobody is left out: an operator who wrote it
    /// means it.
    pub fn read(path: &Path, issuers: TokenIssuers) -> Result<Self, CallersError> {
        Self::of(CallerList::read(path)?.entries(), issuers)
    }

    fn of(entries: &[CallerEntry], issuers: TokenIssuers) -> Result<Self, CallersError> {
        let mut listed = Listed { issuers, ..Listed::default() };
        let mut names = BTreeSet::new();
        for entry in entries {
            let wrong = |reason| CallersError::Caller { name: entry.name.clone(), reason };
            if !names.insert(&entry.name) {
                return Err(wrong(CallerEntryError::SameName));
            }
            listed.add(entry).map_err(wrong)?;
        }
        Ok(Self(Known::Listed(listed)))
    }

    /// How many are known; `None` when nobody is told apart.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        match &self.0 {
            Known::Anybody(_) => None,
            Known::Listed(listed) => Some(listed.callers.len()),
        }
    }

    /// Whose JSON Web Tokens are of an issuer that is not configured, so that none is believed: the caller's name
    /// and its issuer.
    #[must_use]
    pub fn without_issuer(&self) -> Vec<(&str, &Issuer)> {
        let Known::Listed(Listed { callers, places, issuers }) = &self.0 else { return Vec::new() };
        let missing = places.iter().filter_map(|(shows, place)| match shows {
            Shows::Jwt(JwtSubject { issuer, .. }) if !issuers.has(issuer) => {
                Some((&*callers.get(*place)?.caller.name, issuer))
            }
            Shows::Jwt(_) | Shows::Token(_) | Shows::Certificate(_) => None,
        });
        let mut missing = missing.collect::<Vec<_>>();
        missing.sort();
        missing
    }

    /// Who shows this. A token decides alone; without one, a certificate has to name one caller.
    ///
    /// # Errors
    /// [`AuthError`] says why nobody does.
    pub fn identify(&self, shown: &Credential, now: OffsetDateTime) -> Result<Arc<Caller>, AuthError> {
        let listed = match &self.0 {
            Known::Anybody(caller) => return Ok(Arc::clone(caller)),
            Known::Listed(listed) => listed,
        };
        let found = match &shown.token {
            Presented::Hashed(token) => listed.places.get(&Shows::Token(*token)).copied(),
            Presented::Jwt(token) => Some(listed.about(token, now)?),
            Presented::Nothing => listed.certified(&shown.names),
            Presented::Nonsense => None,
        };
        let found = found.and_then(|found| listed.callers.get(found));
        let Listing { caller, expires_at } = found.ok_or(AuthError::Unlisted)?;
        match expires_at {
            Some(until) if *until <= now => Err(AuthError::Over { name: caller.name.clone(), until: *until }),
            Some(_) | None => Ok(Arc::clone(caller)),
        }
    }
}

impl Listed {
    /// The one caller that a certificate names.
    fn certified(&self, names: &[Box<str>]) -> Option<usize> {
        let shown = names.iter().map(|name| Shows::Certificate(String::from(&**name)));
        let mut found = shown.filter_map(|shown| self.places.get(&shown).copied());
        let first = found.next()?;
        found.all(|other| other == first).then_some(first)
    }

    /// The one caller that a token is about.
    fn about(&self, token: &Result<Jwt, TokenError>, now: OffsetDateTime) -> Result<usize, TokenError> {
        let token = token.as_ref().map_err(Clone::clone)?;
        let subject = self.issuers.believe(token, now)?;
        let place = self.places.get(&Shows::Jwt(subject.clone())).copied();
        place.ok_or(TokenError::Unlisted(subject))
    }

    fn add(&mut self, entry: &CallerEntry) -> Result<(), CallerEntryError> {
        let CallerEntry { name, roles, agents, expires_at, .. } = entry;
        let fits = (1..=MAX_NAME_BYTES).contains(&name.chars().count());
        if !fits || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(CallerEntryError::Name);
        }
        if roles.is_empty() {
            return Err(CallerEntryError::NoRole);
        }
        let agents = agents_of(roles, agents)?;
        if self.places.insert(entry.shows()?, self.callers.len()).is_some() {
            return Err(CallerEntryError::SameCredential);
        }
        let caller = Arc::new(Caller { name: name.as_str().into(), roles: roles.clone(), agents });
        self.callers.push(Listing { caller, expires_at: *expires_at });
        Ok(())
    }
}

fn agents_of(roles: &BTreeSet<Role>, agents: &BTreeSet<String>) -> Result<Agents, CallerEntryError> {
    if roles.contains(&Role::Agent) == agents.is_empty() {
        return Err(CallerEntryError::Agents);
    }
    if agents.contains(EVERY_AGENT) {
        return Ok(Agents::Every);
    }
    let agents = agents.iter().map(|agent| AgentDid::parse(agent)).collect::<Result<_, _>>();
    agents.map(Agents::These).map_err(CallerEntryError::Agent)
}

#[cfg(test)]
mod tests;
