//! The secrets that an agent and this executor share: one for signatures, and one for sealed payloads.
//!
//! A secret belongs to one agent, so that a signature identifies its sender. Secrets are wiped from memory when
//! the value is dropped, and `Debug` prints none of them.

use a2g_types::tool::Digest;
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::collections::HashMap;
use std::fmt;

/// The length of an authentication tag, in bytes.
const TAG_BYTES: usize = 16;

/// A sealed payload (`encryption`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedPayload {
    /// The nonce.
    pub iv: [u8; 12],
    /// The ciphertext, as long as the plaintext.
    pub ciphertext: Vec<u8>,
    /// The authentication tag.
    pub auth_tag: [u8; TAG_BYTES],
}

/// The keys that one agent and this executor share.
pub struct AgentKeys {
    signing: Hmac<Sha256>,
    sealing: Option<Box<Aes256Gcm>>,
}

impl AgentKeys {
    /// Keys from a signing secret of any length and an optional AES-256 key.
    #[must_use]
    pub fn new(secret: &[u8], sealing: Option<&[u8; 32]>) -> Option<Self> {
        let signing = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(secret).ok()?;
        let sealing = match sealing {
            Some(key) => Some(Box::new(Aes256Gcm::new_from_slice(key).ok()?)),
            None => None,
        };
        Some(Self { signing, sealing })
    }

    /// The HMAC-SHA256 of a text: 64 hexadecimal digits in lower case.
    #[must_use]
    pub fn sign(&self, text: &str) -> String {
        Digest(self.signing.clone().chain_update(text).finalize().into_bytes().into()).to_string()
    }

    /// Returns `true` when a signature belongs to a text. The comparison takes constant time.
    #[must_use]
    pub fn verify(&self, text: &str, signature: &str) -> bool {
        let Ok(signature) = Digest::parse(signature) else { return false };
        self.signing.clone().chain_update(text).verify_slice(&signature.0).is_ok()
    }

    /// Returns `true` when there is a key for sealed payloads.
    #[must_use]
    pub fn can_seal(&self) -> bool {
        self.sealing.is_some()
    }

    /// Encrypts a text and binds it to `associated`; `None` if there is no key for sealed payloads. The caller must
    /// never reuse an `iv`.
    #[must_use]
    pub fn seal(&self, text: &str, associated: &str, iv: [u8; 12]) -> Option<SealedPayload> {
        let payload = Payload { msg: text.as_bytes(), aad: associated.as_bytes() };
        let mut ciphertext = self.sealing.as_ref()?.encrypt(&Nonce::from(iv), payload).ok()?;
        let tag = ciphertext.split_off(ciphertext.len().checked_sub(TAG_BYTES)?);
        Some(SealedPayload { iv, ciphertext, auth_tag: tag.try_into().ok()? })
    }

    /// Decrypts a payload; `None` when it was not sealed with this key and `associated`.
    #[must_use]
    pub fn open(&self, sealed: &SealedPayload, associated: &str) -> Option<Vec<u8>> {
        let SealedPayload { iv, ciphertext, auth_tag } = sealed;
        let message = [ciphertext.as_slice(), auth_tag].concat();
        let payload = Payload { msg: &message, aad: associated.as_bytes() };
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
    /// A key ring of these keys, each with the id of its agent.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = (Box<str>, AgentKeys)>) -> Self {
        Self(keys.into_iter().collect())
    }

    /// The keys of one agent; `None` if the agent is unknown.
    #[must_use]
    pub fn get(&self, agent: &str) -> Option<&AgentKeys> {
        self.0.get(agent)
    }

    /// The ids of all agents.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(AsRef::as_ref)
    }
}
