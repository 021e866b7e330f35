//! The signature that the protocol's SDKs add to an intent: HMAC-SHA256 with a secret that agents and executor share.
//!
//! The SDKs differ in two points, so the operator configures both: whether the key is the text of its
//! hexadecimal digits or the bytes that they encode, and whether non-ASCII characters are escaped. A signature
//! is valid within five minutes of its timestamp, and a nonce is valid once.

use super::files::read_secret;
use super::keys::KeyError;
use a2g_types::call::ContextSignature;
use a2g_types::fault::BlockedBy;
use a2g_types::tool::Digest;
use hmac::{Hmac, KeyInit as _, Mac as _};
use parking_lot::Mutex;
use sha2::Sha256;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

/// Maximum difference between a timestamp and now, in both directions: the SDKs' own limit.
const WINDOW: Duration = Duration::seconds(300);
/// Maximum number of remembered nonces. Only holders of the key can add one.
const MAX_NONCES: usize = 200_000;

/// The conversion of the key file's text to the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// The 64 hexadecimal digits as ASCII, as in the SDKs for Python and TypeScript.
    Ascii,
    /// The 32 bytes that the digits encode, as in the SDK for Rust.
    Bytes,
}

/// The operator's settings for signatures of intents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureSettings {
    /// The file with the shared secret: 64 hexadecimal digits in lower case.
    pub key_file: PathBuf,
    /// The conversion of the file's text to the key.
    pub key_form: KeyForm,
    /// `true` if signers escape non-ASCII characters, as Python's `json` does.
    pub escape_non_ascii: bool,
}

/// Verifies the signatures of intents. `Debug` does not print the key.
pub struct IntentSignatures {
    hmac: Hmac<Sha256>,
    escape_non_ascii: bool,
    /// Each used nonce and the time until which it must be remembered.
    nonces: Mutex<HashMap<String, OffsetDateTime>>,
}

impl std::fmt::Debug for IntentSignatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntentSignatures").finish_non_exhaustive()
    }
}

/// The reason why a signature is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadSignature {
    /// The value for `data.blocked_by`.
    pub blocked_by: BlockedBy,
    /// The problem and its remedy.
    pub message: &'static str,
}

impl IntentSignatures {
    /// Reads the key file.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also when other users can read the file. No message repeats any of the file's content.
    pub fn read(settings: &SignatureSettings) -> Result<Self, KeyError> {
        let SignatureSettings { key_file, key_form, escape_non_ascii } = settings;
        let text = read_secret(key_file)?;
        Self::new(text.trim_ascii_end(), *key_form, *escape_non_ascii, key_file)
    }

    fn new(text: &[u8], form: KeyForm, escape_non_ascii: bool, path: &Path) -> Result<Self, KeyError> {
        let not_a_key = || KeyError::NotAKey {
            path: path.to_owned(),
            reason: "the key must be 64 hexadecimal digits in lower case, as the SDKs generate it".to_owned(),
        };
        let digits = std::str::from_utf8(text).map_err(|_| not_a_key())?;
        let bytes = Zeroizing::new(Digest::parse(digits).map_err(|_| not_a_key())?.0);
        let key = match form {
            KeyForm::Ascii => digits.as_bytes(),
            KeyForm::Bytes => bytes.as_slice(),
        };
        let hmac = Hmac::new_from_slice(key).map_err(|_| not_a_key())?;
        Ok(Self { hmac, escape_non_ascii, nonces: Mutex::default() })
    }

    /// `true` if signers escape non-ASCII characters.
    #[must_use]
    pub fn escape_non_ascii(&self) -> bool {
        self.escape_non_ascii
    }

    /// Verifies the signature of an intent and consumes its nonce.
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
            untrusted("the intent is not signed: this executor requires `context.signature`")
        })?;
        if !signature.texts.iter().any(|text| self.matches_hash(text, &signature.hash)) {
            return Err(untrusted("`context.signature` does not match this intent and the shared key"));
        }
        let signed_at =
            OffsetDateTime::from_unix_timestamp_nanos(i128::from(signature.timestamp_ms) * 1_000_000);
        let signed_at = signed_at.ok().filter(|at| (now - *at).abs() <= WINDOW).ok_or_else(|| {
            untrusted("`context.signature` differs from the executor's time by more than 5 minutes: compare the clocks, and sign again")
        })?;
        let mut nonces = self.nonces.lock();
        if nonces.len() >= MAX_NONCES {
            nonces.retain(|_, until| *until >= now);
        }
        if nonces.len() >= MAX_NONCES {
            return Err(untrusted("too many signed intents arrived within 5 minutes: try again later"));
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

    /// Compares the hash of a text in constant time.
    fn matches_hash(&self, text: &str, hash: &str) -> bool {
        let Ok(hash) = Digest::parse(hash) else { return false };
        self.hmac.clone().chain_update(text).verify_slice(&hash.0).is_ok()
    }
}

#[cfg(test)]
mod tests;
