//! The file with the secrets that Genesis Nexus agents share with this executor.
//!
//! Each line describes one agent: id, secret for signatures, and AES-256 key in 64 hexadecimal digits, or `-` for no
//! encryption. The format is not TOML, because a TOML parser would leave copies of the secrets in memory.

use super::files::read_secret;
use super::keys::KeyError;
use a2g_types::tool::Digest;
use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use zeroize::Zeroizing;

/// Minimum length of a secret in bytes: 128 bits in hexadecimal digits.
const MIN_SECRET_BYTES: usize = 32;

/// The secrets that one agent and this executor share. `Debug` prints none of them.
pub struct AgentSecret {
    /// The agent's id (`from.id`).
    pub agent: Box<str>,
    /// The secret for signatures.
    pub signing: Zeroizing<Vec<u8>>,
    /// The AES-256 key for encrypted payloads; `None` for no encryption.
    pub sealing: Option<Zeroizing<[u8; 32]>>,
}

impl fmt::Debug for AgentSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSecret").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// The reason why a file of secrets is not valid. No message repeats any part of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretsError {
    /// The file is not text.
    #[error("the file is not UTF-8")]
    NotUtf8,
    /// A line does not describe an agent.
    #[error("line {number} {reason}")]
    Line {
        /// The line number, from 1.
        number: usize,
        /// The problem.
        reason: &'static str,
    },
    /// The file lists no agent.
    #[error("the file lists no agent: each line is an id, a secret, and a key or `-`")]
    Empty,
    /// Two lines are for the same agent.
    #[error("the agent `{0}` is listed twice")]
    DuplicateAgent(Box<str>),
    /// Two agents have the same secret.
    #[error("the agent `{0}` has the secret of another agent: a signature must identify its agent")]
    SharedSecret(Box<str>),
}

impl AgentSecret {
    /// Reads the file.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also when other users can read the file. No message repeats any part of a secret.
    pub fn read(path: &Path) -> Result<Vec<Self>, KeyError> {
        let text = read_secret(path)?;
        let not_secrets = |reason| KeyError::NotSecrets { path: path.to_owned(), reason };
        let text = std::str::from_utf8(&text).map_err(|_| not_secrets(SecretsError::NotUtf8))?;
        parse(text).map_err(not_secrets)
    }
}

fn parse(text: &str) -> Result<Vec<AgentSecret>, SecretsError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let at = |number| move |reason| SecretsError::Line { number, reason };
    let secrets = lines.map(|(number, line)| parse_line(line).map_err(at(number)));
    let secrets = secrets.collect::<Result<Vec<_>, _>>()?;
    if secrets.is_empty() {
        return Err(SecretsError::Empty);
    }
    let mut agents = HashSet::new();
    if let Some(duplicate) = secrets.iter().find(|secret| !agents.insert(&secret.agent)) {
        return Err(SecretsError::DuplicateAgent(duplicate.agent.clone()));
    }
    let mut signing_secrets = HashSet::new();
    if let Some(duplicate) = secrets.iter().find(|secret| !signing_secrets.insert(secret.signing.as_slice()))
    {
        return Err(SecretsError::SharedSecret(duplicate.agent.clone()));
    }
    Ok(secrets)
}

fn parse_line(line: &str) -> Result<AgentSecret, &'static str> {
    let parts = line.split_ascii_whitespace().collect::<Vec<_>>();
    let &[agent, signing, sealing] = parts.as_slice() else {
        return Err("must be three parts: an agent's id, its secret, and its AES-256 key or `-`");
    };
    if signing.len() < MIN_SECRET_BYTES {
        return Err("has a secret of fewer than 32 characters: generate one with `openssl rand -hex 32`");
    }
    let sealing = match sealing {
        "-" => None,
        digits => {
            let key = Digest::parse(digits);
            let key = key.map_err(|_| "has a key that is not 64 hexadecimal digits in lower case")?;
            Some(Zeroizing::new(key.0))
        }
    };
    Ok(AgentSecret { agent: agent.into(), signing: Zeroizing::new(signing.as_bytes().to_vec()), sealing })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";

    #[test]
    fn each_line_is_an_agent() {
        let key = "ab".repeat(32);
        let text = format!("# the planner\nplanner {SECRET} {key}\n\n  did:nexus:b\t{OTHER} -\n");
        let secrets = parse(&text).unwrap();
        assert_eq!(
            secrets.iter().map(|secret| &*secret.agent).collect::<Vec<_>>(),
            ["planner", "did:nexus:b"]
        );
        assert_eq!(secrets[0].sealing.as_deref(), Some(&[0xab; 32]));
        assert!(secrets[1].sealing.is_none());
        assert_eq!(secrets[1].signing.as_slice(), OTHER.as_bytes());
        assert!(!format!("{secrets:?}").contains(SECRET));
    }

    #[test]
    fn an_invalid_file_is_refused_without_repeating_its_secrets() {
        let key = "ab".repeat(32);
        for bad in [
            "# no agent\n".to_owned(),
            format!("planner {SECRET}\n"),
            format!("planner {SECRET} - more\n"),
            "planner short -\n".to_owned(),
            format!("planner {SECRET} {}\n", &key[1..]),
            format!("planner {SECRET} {}\n", key.to_uppercase()),
            format!("planner {SECRET} -\nplanner {OTHER} -\n"),
            format!("planner {SECRET} -\nwriter {SECRET} -\n"),
        ] {
            let refusal = parse(&bad).unwrap_err();
            let refusal = refusal.to_string();
            assert!(!refusal.contains(SECRET) && !refusal.contains(&key[1..]), "{refusal}");
        }
    }
}
