//! The signature that the protocol's SDKs put into an intent: HMAC-SHA256 by a secret that agents and
//! executor share.
//!
//! The SDKs disagree about two things, so the operator says both: whether the key is the text of its
//! hexadecimal digits or the bytes that they stand for, and whether what is not ASCII was escaped. A
//! signature is good for five minutes either way of its timestamp, and its nonce for one intent.

use super::files::read_secret;
use super::keys::KeyError;
use crate::call::ContextSignature;
use crate::fault::BlockedBy;
use crate::tool::Digest;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

/// How far a timestamp may be from now, either way: the SDKs' own limit.
const WINDOW: Duration = Duration::seconds(300);
/// How many nonces are remembered at once. Only who has the key can make one count.
const MAX_NONCES: usize = 200_000;

/// How the key file becomes the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// The 64 hexadecimal digits as ASCII, as the SDKs for Python and TypeScript take them.
    Ascii,
    /// The 32 bytes that they stand for, as the SDK for Rust takes them.
    Bytes,
}

/// How intents have to be signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureSettings {
    /// The file with the shared secret: 64 hexadecimal digits in lower case.
    pub key_file: PathBuf,
    /// How it becomes the key.
    pub key_form: KeyForm,
    /// Whether what is not ASCII was escaped in the text that is signed, as Python's `json` does.
    pub escape_non_ascii: bool,
}

/// Checks the signatures of intents. It shows nothing of its key.
pub struct IntentSignatures {
    keyed: Hmac<Sha256>,
    escape_non_ascii: bool,
    /// Each nonce with the time until when it has to be known.
    nonces: Mutex<HashMap<String, OffsetDateTime>>,
}

impl std::fmt::Debug for IntentSignatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntentSignatures").finish_non_exhaustive()
    }
}

/// Why a signature is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadSignature {
    /// The word for it.
    pub blocked_by: BlockedBy,
    /// What to change.
    pub message: &'static str,
}

impl IntentSignatures {
    /// Reads the key.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also when others can read the file. No message repeats anything of it.
    pub fn read(settings: &SignatureSettings) -> Result<Self, KeyError> {
        let SignatureSettings { key_file, key_form, escape_non_ascii } = settings;
        let text = read_secret(key_file)?;
        Self::new(text.trim_ascii_end(), *key_form, *escape_non_ascii, key_file)
    }

    fn new(text: &[u8], form: KeyForm, escape_non_ascii: bool, path: &Path) -> Result<Self, KeyError> {
        let not_a_key = || KeyError::NotAKey {
            path: path.to_owned(),
            reason: "the key has to be 64 hexadecimal digits in lower case, as the SDKs make it".to_owned(),
        };
        let digits = std::str::from_utf8(text).map_err(|_| not_a_key())?;
        let bytes = Zeroizing::new(Digest::parse(digits).map_err(|_| not_a_key())?.0);
        let key = match form {
            KeyForm::Ascii => digits.as_bytes(),
            KeyForm::Bytes => bytes.as_slice(),
        };
        let keyed = Hmac::new_from_slice(key).map_err(|_| not_a_key())?;
        Ok(Self { keyed, escape_non_ascii, nonces: Mutex::default() })
    }

    /// Whether what is not ASCII was escaped in the text that is signed.
    #[must_use]
    pub fn escape_non_ascii(&self) -> bool {
        self.escape_non_ascii
    }

    /// Checks the signature of an intent, and uses up its nonce.
    ///
    /// # Errors
    /// [`BadSignature`] with `intent_untrusted` or `intent_replayed`.
    pub fn check(
        &self,
        signature: Option<&ContextSignature>,
        now: OffsetDateTime,
    ) -> Result<(), BadSignature> {
        let untrusted = |message| BadSignature { blocked_by: BlockedBy::IntentUntrusted, message };
        let signature = signature.ok_or_else(|| {
            untrusted("the intent is not signed: this executor asks for a `context.signature`")
        })?;
        if !signature.texts.iter().any(|text| self.is_of(text, &signature.hash)) {
            return Err(untrusted(
                "`context.signature` is not of this intent by the key that is agreed upon",
            ));
        }
        let signed_at =
            OffsetDateTime::from_unix_timestamp_nanos(i128::from(signature.timestamp_ms) * 1_000_000);
        let signed_at = signed_at.ok().filter(|at| (now - *at).abs() <= WINDOW).ok_or_else(|| {
            untrusted("`context.signature` was made more than 5 minutes from now: look at the clocks, and sign again")
        })?;
        let mut nonces = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        if nonces.len() >= MAX_NONCES {
            nonces.retain(|_, until| *until >= now);
        }
        if nonces.len() >= MAX_NONCES {
            return Err(untrusted("too many signed intents came within 5 minutes: send it again later"));
        }
        if nonces.get(&signature.nonce).is_some_and(|until| *until >= now) {
            return Err(BadSignature {
                blocked_by: BlockedBy::IntentReplayed,
                message: "the nonce of `context.signature` was used before: sign the intent again",
            });
        }
        nonces.insert(signature.nonce.clone(), signed_at.saturating_add(WINDOW));
        Ok(())
    }

    /// Whether a hash is of a text, compared in constant time.
    fn is_of(&self, text: &str, hash: &str) -> bool {
        let Ok(hash) = Digest::parse(hash) else { return false };
        self.keyed.clone().chain_update(text).verify_slice(&hash.0).is_ok()
    }
}

#[cfg(test)]
mod tests;
