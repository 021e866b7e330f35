//! Identifiers chosen by callers, parsed once and valid afterwards.
//!
//! Alphabet and length are checked when a value is made, so no later layer has to check them again. No identifier
//! contains control characters, white space or characters beyond ASCII, such as look-alikes of `/`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason why an identifier is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentError {
    /// The text is not a DID in the syntax of DID Core 1.0, section 3.1.
    #[error("`{0}` is not a DID such as `did:aeon:agent:1.0:abc123`")]
    AgentDid(String),
    /// The text is not a UUID in its hyphenated form.
    #[error("`{0}` is not a UUID such as `550e8400-e29b-41d4-a716-446655440000`")]
    IntentId(String),
    /// The text is not a tool name.
    #[error("`{0}` is not a tool name: 1 to 64 of letters, digits, `_`, `-` and `.`, starting with a letter")]
    ToolName(String),
    /// The text is not the name of an issuer.
    #[error("`{0}` is not the name of an issuer: 1 to 256 visible ASCII characters, such as a DID or a URL")]
    Issuer(String),
    /// The text is not the identifier of a proof.
    #[error("`{0}` is not the identifier of a proof: 1 to 128 visible ASCII characters")]
    ProofId(String),
    /// The text is not a valid name of a signer of tools.
    #[error("`{0}` is not the name of a signer: 1 to 64 of letters, digits, `.`, `_`, `@` and `-`")]
    SignerName(String),
    /// The text is not the name of a secret.
    #[error(
        "`{0}` is not the name of a secret: 1 to 64 of `a` to `z`, digits, `_` and `-`, starting with a letter"
    )]
    SecretName(String),
}

/// Cuts caller-supplied text to 64 characters and escapes it, so that it is safe in an error or a log line.
#[must_use]
pub fn excerpt(text: &str) -> String {
    const MAX_LEN: usize = 64;
    let mut excerpt = String::new();
    for c in text.chars().take(MAX_LEN) {
        if c == ' ' || c.is_ascii_graphic() { excerpt.push(c) } else { excerpt.extend(c.escape_default()) }
    }
    if text.chars().nth(MAX_LEN).is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// `true` for a character that controls a terminal, or that can hide or reorder other text: all of category Cc, line
/// and paragraph separators, characters of Cf such as the bidirectional controls, and joiners and fillers without a shape.
#[must_use]
pub fn is_display_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{70f}' | '\u{1806}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2d7f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{16fe4}' | '\u{1107f}' | '\u{110bd}' | '\u{1d159}')
}

/// Maximum length of a name that is compared with the known ones, so that a caller cannot make the comparison slow.
const MAX_COMPARED_BYTES: usize = 128;
/// Number of characters of a name per tolerated typing error: a wrong, missing or surplus character, or two exchanged
/// ones.
const CHARACTERS_PER_TYPO: usize = 3;

/// Returns ` (did you mean `x`?)` with the nearest of the `known` names of which `name` is a misspelling, or else the
/// only one of which it is the beginning or a word; an empty text if there is none.
// A caller learns nothing new from this: every caller may list the tools and the methods.
#[must_use]
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    if name.len() > MAX_COMPARED_BYTES {
        return String::new();
    }
    let name = name.to_lowercase();
    let known = known.into_iter().collect::<Vec<_>>();
    let typos = known.iter().map(|known| (strsim::osa_distance(&name, &known.to_lowercase()), known));
    let max_typos = (name.chars().count() / CHARACTERS_PER_TYPO).max(1);
    let nearest = typos.filter(|(typos, _)| *typos <= max_typos).min_by_key(|(typos, _)| *typos);
    let completes =
        |known: &str| known.starts_with(&name) || known.split(['_', '-']).any(|word| word == name);
    let mut completions = known.iter().filter(|known| name.len() >= CHARACTERS_PER_TYPO && completes(known));
    let suggestion = match (nearest, completions.next(), completions.next()) {
        (Some((_, nearest)), _, _) => Some(nearest),
        (None, Some(only), None) => Some(only),
        (None, _, _) => None,
    };
    suggestion.map_or_else(String::new, |suggestion| format!(" (did you mean `{suggestion}`?)"))
}

/// The decentralized identifier of an agent: `did:<method>:<id>`, at most 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentDid(Box<str>);

impl AgentDid {
    /// Parses a DID.
    ///
    /// # Errors
    /// [`IdentError::AgentDid`] unless the text is `did:`, a method of lower-case letters and digits, `:`, and an
    /// identifier of letters, digits and `._:%-`.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        let refuse = || IdentError::AgentDid(excerpt(text));
        if text.len() > 256 {
            return Err(refuse());
        }
        let (method, id) =
            text.strip_prefix("did:").and_then(|rest| rest.split_once(':')).ok_or_else(refuse)?;
        let method_ok =
            !method.is_empty() && method.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let id_ok = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:%-".contains(&b));
        if method_ok && id_ok { Ok(Self(text.into())) } else { Err(refuse()) }
    }
}

/// The UUID of one intent. Written in lower case, as RFC 9562 requires; read in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IntentId(uuid::Uuid);

impl IntentId {
    /// Parses the hyphenated form of a UUID, of any version.
    ///
    /// # Errors
    /// [`IdentError::IntentId`] for any other text, including the forms with braces, as a URN and without hyphens.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        let refuse = || IdentError::IntentId(excerpt(text));
        if text.len() != 36 {
            return Err(refuse());
        }
        uuid::Uuid::try_parse(text).map(Self).map_err(|_| refuse())
    }

    /// The 16 bytes of the UUID.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Makes an identifier from the 16 bytes of a UUID.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(uuid::Uuid::from_bytes(bytes))
    }

    /// A new random identifier (UUID version 4), for intents that are created in this process.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }

    /// The identifier of a nested call (UUID version 5): `self` is the namespace, the decimal `ordinal` the name.
    #[must_use]
    pub fn nested(&self, ordinal: u32) -> Self {
        Self(uuid::Uuid::new_v5(&self.0, ordinal.to_string().as_bytes()))
    }
}

impl fmt::Display for IntentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The name of a tool in the catalogue. It is also the name of the tool's folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(Box<str>);

impl ToolName {
    /// Parses a tool name.
    ///
    /// # Errors
    /// [`IdentError::ToolName`] unless it is 1 to 64 letters, digits, `_`, `-` and `.`, starting with a letter.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        let alphabet = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        let starts_with_letter = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
        if starts_with_letter && text.len() <= 64 && text.bytes().all(alphabet) {
            Ok(Self(text.into()))
        } else {
            Err(IdentError::ToolName(excerpt(text)))
        }
    }
}

/// The name of a secret, as the operator chose it (`[[secret]]`). It says nothing of the value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(Box<str>);

impl SecretName {
    /// Parses the name of a secret.
    ///
    /// # Errors
    /// [`IdentError::SecretName`] unless it is 1 to 64 of `a` to `z`, digits, `_` and `-`, starting with a
    /// letter.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        let alphabet = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
        let starts_with_letter = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        if starts_with_letter && text.len() <= 64 && text.bytes().all(alphabet) {
            Ok(Self(text.into()))
        } else {
            Err(IdentError::SecretName(excerpt(text)))
        }
    }
}

/// The signer of a proof (`iss`): 1 to 256 visible ASCII characters, such as a DID or a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Issuer(Box<str>);

impl Issuer {
    /// Parses the name of an issuer.
    ///
    /// # Errors
    /// [`IdentError::Issuer`] unless the name is 1 to 256 visible ASCII characters.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        if is_visible_ascii(text, 256) {
            Ok(Self(text.into()))
        } else {
            Err(IdentError::Issuer(excerpt(text)))
        }
    }
}

/// The name of a signer of tools, as the operator chose it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SignerName(Box<str>);

impl SignerName {
    /// Parses the name of a signer.
    ///
    /// # Errors
    /// [`IdentError::SignerName`] unless the name has 1 to 64 letters, digits, `.`, `_`, `@` and `-`.
    pub fn parse(text: &str) -> Result<Self, IdentError> {
        let alphabet = |b: u8| b.is_ascii_alphanumeric() || b"._@-".contains(&b);
        if (1..=64).contains(&text.len()) && text.bytes().all(alphabet) {
            Ok(Self(text.into()))
        } else {
            Err(IdentError::SignerName(excerpt(text)))
        }
    }
}

/// The single-use identity of one proof: the issuer (`iss`) and the issuer's identifier for the proof (`jti`, 1 to 128
/// visible ASCII characters).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProofId {
    issuer: Issuer,
    identifier: Box<str>,
}

impl ProofId {
    /// Parses the identifier of a proof of `issuer`.
    ///
    /// # Errors
    /// [`IdentError::ProofId`] unless the identifier is 1 to 128 visible ASCII characters.
    pub fn parse(issuer: Issuer, identifier: &str) -> Result<Self, IdentError> {
        if is_visible_ascii(identifier, 128) {
            Ok(Self { issuer, identifier: identifier.into() })
        } else {
            Err(IdentError::ProofId(excerpt(identifier)))
        }
    }

    /// Makes a new random identifier (UUID version 4).
    #[must_use]
    pub fn random(issuer: Issuer) -> Self {
        Self { issuer, identifier: uuid::Uuid::new_v4().to_string().into() }
    }

    /// The issuer that signed the proof (`iss`).
    #[must_use]
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// The issuer's identifier for the proof (`jti`).
    #[must_use]
    pub fn identifier(&self) -> &str {
        &self.identifier
    }
}

/// `true` for a text of 1 to `max_len` visible ASCII characters.
fn is_visible_ascii(text: &str, max_len: usize) -> bool {
    (1..=max_len).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// The text of an identifier that is stored as text.
macro_rules! shown_as_stored {
    ($($kind:ident),*) => {$(
        impl $kind {
            /// The identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

shown_as_stored!(AgentDid, Issuer, SecretName, SignerName, ToolName);

/// Serializes an identifier as text. Deserialization parses and checks the text.
macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $kind {
            type Error = IdentError;

            fn try_from(text: String) -> Result<Self, IdentError> {
                Self::parse(&text)
            }
        }
    )*};
}

as_text!(AgentDid, IntentId, Issuer, SecretName, SignerName, ToolName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_and_proof_ids_are_visible_ascii_of_limited_length() {
        let issuer = Issuer::parse("https://governor.example").unwrap();
        assert!(ProofId::parse(issuer.clone(), "550e8400").is_ok());
        for bad in ["", "a b", "a\n", "ü", &"x".repeat(257)] {
            assert!(Issuer::parse(bad).is_err(), "{bad:?}");
            assert!(ProofId::parse(issuer.clone(), bad).is_err(), "{bad:?}");
        }
        assert!(ProofId::parse(issuer, &"x".repeat(129)).is_err());
    }

    #[test]
    fn the_name_of_a_secret_is_short_and_in_lower_case() {
        for good in ["a", "github", "api_key-2"] {
            assert_eq!(SecretName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "1a", "_a", "GitHub", "a.b", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(SecretName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_complete_dids_are_accepted() {
        for good in ["did:aeon:myagent:1.0:abc123", "did:key:z6Mk", "did:web:example.com%3A3000"] {
            assert_eq!(AgentDid::parse(good).unwrap().as_str(), good);
        }
        let long = format!("did:a:{}", "x".repeat(256));
        for bad in ["", "did:", "did:aeon", "did:aeon:", "did::x", "DID:a:b", "did:a:b c", "did:a:b\n", &long]
        {
            assert!(AgentDid::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_hyphenated_uuids_are_intent_ids() {
        let upper = "550E8400-E29B-41D4-A716-446655440000";
        assert_eq!(IntentId::parse(upper).unwrap().to_string(), upper.to_lowercase());
        for bad in ["", "req-1", "550e8400e29b41d4a716446655440000", "{50e8400-e29b-41d4-a716-446655440000}"]
        {
            assert!(IntentId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tool_names_are_short_and_start_with_a_letter() {
        for good in ["write_file", "a", "git.status-2"] {
            assert!(ToolName::parse(good).is_ok());
        }
        let long = "x".repeat(65);
        for bad in ["", ".hidden", "..", "a/b", "a b", "1st", "ü", &long] {
            assert!(ToolName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_nearest_name_is_suggested_and_a_distant_one_is_not() {
        let known = [
            "edit_file",
            "hash_file",
            "list_directory",
            "read_file",
            "search_text",
            "a2g/execute",
            "a2g/intent",
        ];
        for (name, nearest) in [
            ("hash_fil", "hash_file"),
            ("hashfile", "hash_file"),
            ("Read-File", "read_file"),
            ("list_dir", "list_directory"),
            ("read", "read_file"),
            ("text", "search_text"),
            ("a2g/exceute", "a2g/execute"),
            ("a2g/intend", "a2g/intent"),
        ] {
            assert_eq!(did_you_mean(name, known), format!(" (did you mean `{nearest}`?)"), "{name}");
        }
        for name in
            ["", "fly", "a2g/fly", "a2g", "execute_command", "nothing", "file", &"hash_file".repeat(20)]
        {
            assert_eq!(did_you_mean(name, known), "", "{name}");
        }
    }

    #[test]
    fn an_excerpt_is_short_and_printable() {
        let excerpt = excerpt(&"\u{1b}[31m\n".repeat(100));
        assert!(excerpt.chars().all(|c| c.is_ascii_graphic() || c == '…'), "{excerpt}");
        assert!(excerpt.len() < 500);
    }
}
