//! What an agent and this executor share: the secret that messages are signed with, and the key that payloads
//! are sealed with.
//!
//! A secret belongs to one agent, so that a signature says whose a message is. Both are gone from memory with
//! the value, and nothing here shows them.

use crate::tool::Digest;
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::collections::HashMap;
use std::fmt;

/// How many bytes the tag at the end of a ciphertext has.
const TAG_BYTES: usize = 16;

/// What is sealed, as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The nonce.
    pub iv: [u8; 12],
    /// As long as what was sealed.
    pub ciphertext: Vec<u8>,
    /// The tag.
    pub auth_tag: [u8; TAG_BYTES],
}

/// What one agent and this executor share.
pub struct AgentKeys {
    signing: Hmac<Sha256>,
    sealing: Option<Box<Aes256Gcm>>,
}

impl AgentKeys {
    /// Keys of `secret`, of any length, and a key for AES-256.
    #[must_use]
    pub fn new(secret: &[u8], sealing: Option<&[u8; 32]>) -> Option<Self> {
        let signing = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(secret).ok()?;
        let sealing = match sealing {
            Some(key) => Some(Box::new(Aes256Gcm::new_from_slice(key).ok()?)),
            None => None,
        };
        Some(Self { signing, sealing })
    }

    /// The signature of a text: 64 hexadecimal digits in lower case.
    #[must_use]
    pub fn sign(&self, text: &str) -> String {
        Digest(self.signing.clone().chain_update(text).finalize().into_bytes().into()).to_string()
    }

    /// Whether a signature is of a text, compared in constant time.
    #[must_use]
    pub fn verifies(&self, text: &str, signature: &str) -> bool {
        let Ok(signature) = Digest::parse(signature) else { return false };
        self.signing.clone().chain_update(text).verify_slice(&signature.0).is_ok()
    }

    /// Whether payloads can be sealed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.sealing.is_some()
    }

    /// Seals a text, bound to `associated`. An `iv` is never used twice.
    #[must_use]
    pub fn seal(&self, text: &str, associated: &str, iv: [u8; 12]) -> Option<Sealed> {
        let payload = Payload { msg: text.as_bytes(), aad: associated.as_bytes() };
        let mut ciphertext = self.sealing.as_ref()?.encrypt(&Nonce::from(iv), payload).ok()?;
        let tag = ciphertext.split_off(ciphertext.len().checked_sub(TAG_BYTES)?);
        Some(Sealed { iv, ciphertext, auth_tag: tag.try_into().ok()? })
    }

    /// Opens what was sealed, when it was bound to `associated`.
    #[must_use]
    pub fn open(&self, sealed: &Sealed, associated: &str) -> Option<Vec<u8>> {
        let Sealed { iv, ciphertext, auth_tag } = sealed;
        let whole = [ciphertext.as_slice(), auth_tag].concat();
        let payload = Payload { msg: &whole, aad: associated.as_bytes() };
        self.sealing.as_ref()?.decrypt(&Nonce::from(*iv), payload).ok()
    }
}

impl fmt::Debug for AgentKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentKeys").finish_non_exhaustive()
    }
}

/// The keys of all agents, by `from.id`.
#[derive(Debug, Default)]
pub struct Keyring(HashMap<Box<str>, AgentKeys>);

impl Keyring {
    /// These.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = (Box<str>, AgentKeys)>) -> Self {
        Self(keys.into_iter().collect())
    }

    /// Those of one agent.
    #[must_use]
    pub fn get(&self, agent: &str) -> Option<&AgentKeys> {
        self.0.get(agent)
    }

    /// Whose there are.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(AsRef::as_ref)
    }
}
