//! The key that signs the messages to a webhook, as Standard Webhooks 1.0 defines it: HMAC-SHA256 of the message's id,
//! the time and the body.
//!
//! The file of a key has the form that the libraries of Standard Webhooks read: `whsec_` and base64. The key never
//! appears in a log or a message.

use super::files::read_secret;
use super::keys::KeyError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// The prefix of a key's text, by which scanners for leaked secrets recognise it.
const PREFIX: &[u8] = b"whsec_";
/// The lengths of a key in bytes: at least the output of SHA-256, and at most what Standard Webhooks allows.
const KEY_BYTES: RangeInclusive<usize> = 32..=64;

/// Signs the messages to one webhook. `Debug` does not print the key.
pub struct WebhookKey(Hmac<Sha256>);

impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookKey").finish_non_exhaustive()
    }
}

impl WebhookKey {
    /// Reads the key file.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also when other users can read the file. No message repeats any of the file's content.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = read_secret(path)?;
        let key = parse(text.trim_ascii_end()).and_then(|key| Self::new(&key));
        key.ok_or_else(|| {
            KeyError::not_a_key(
                path,
                "the key must be `whsec_` and the base64 of 32 to 64 bytes: make one with \
                 `(umask 077; echo whsec_$(openssl rand -base64 32) > FILE)`",
            )
        })
    }

    fn new(key: &[u8]) -> Option<Self> {
        Hmac::new_from_slice(key).ok().map(Self)
    }

    /// The value of `webhook-signature` for a message, its time in whole seconds since 1970, and its body.
    #[must_use]
    pub fn sign(&self, message: &str, at: OffsetDateTime, body: &str) -> String {
        let head = format!("{message}.{}.", at.unix_timestamp());
        let signature = self.0.clone().chain_update(head).chain_update(body).finalize().into_bytes();
        format!("v1,{}", STANDARD.encode(signature))
    }
}

/// The bytes of a key's text.
fn parse(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let bytes = Zeroizing::new(STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?);
    KEY_BYTES.contains(&bytes.len()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the libraries of Standard Webhooks, whose key is shorter than the keys that are read here.
    #[test]
    fn a_signature_is_that_of_the_published_example() {
        let key = WebhookKey::new(&STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()).unwrap();
        let at = OffsetDateTime::from_unix_timestamp(1_614_265_330).unwrap();
        assert_eq!(
            key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, r#"{"test": 2432232314}"#),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert_eq!(format!("{key:?}"), "WebhookKey { .. }");
    }

    #[test]
    fn a_key_has_one_form_and_a_minimum_length() {
        let text = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for bytes in [32, 64] {
            assert_eq!(parse(text(bytes).as_bytes()).map(|key| key.len()), Some(bytes));
        }
        let whole = text(32);
        for bad in [
            "",
            "whsec_",
            &text(31),
            &text(65),
            &whole[6..],
            whole.trim_end_matches('='),
            &format!(" {whole}"),
            &whole.replace("whsec_", "whpk_"),
            &whole.replace("Bw", "B-"),
        ] {
            assert!(parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
