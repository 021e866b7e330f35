//! `requestState`: the text that a client carries from the question about a call to its answer.
//!
//! The client can neither read nor change it: the state is sealed with AES-256-GCM, and the caller and the tool are
//! authenticated with it. The server keeps the nonce of the latest state of each intent, which makes a state
//! single-use.

use a2g_types::ident::IntentId;
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use time::OffsetDateTime;

const IV_BYTES: usize = 12;
const ID_BYTES: usize = 16;

/// The content of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestState {
    /// The intent of the call.
    pub intent: IntentId,
    /// The number that makes the state single-use.
    pub nonce: [u8; ID_BYTES],
    /// The time at which the state expires, in whole seconds.
    pub expires_at: OffsetDateTime,
}

/// The call that a state belongs to.
#[derive(Debug, Clone, Copy)]
pub struct StateOwner<'a> {
    /// The name of the caller.
    pub caller: &'a str,
    /// The tool of the call.
    pub tool: &'a str,
}

impl StateOwner<'_> {
    /// A tool name contains no zero byte, so no two owners have the same data.
    fn associated_data(self) -> Vec<u8> {
        format!("{}\0{}", self.tool, self.caller).into_bytes()
    }
}

/// Seals and opens states with a key of this process.
pub struct StateSealer(Box<Aes256Gcm>);

impl StateSealer {
    /// A sealer with this key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Box::new(Aes256Gcm::new(key.into())))
    }

    /// Seals a state under an IV that no other state has. `None` if the cipher fails.
    #[must_use]
    pub fn seal(&self, state: &RequestState, owner: StateOwner<'_>, iv: [u8; IV_BYTES]) -> Option<String> {
        let RequestState { intent, nonce, expires_at } = state;
        let expires_at = expires_at.unix_timestamp().to_be_bytes();
        let plain = [intent.as_bytes().as_slice(), nonce, &expires_at].concat();
        let payload = Payload { msg: &plain, aad: &owner.associated_data() };
        let sealed = self.0.encrypt(&Nonce::from(iv), payload).ok()?;
        Some(URL_SAFE_NO_PAD.encode([iv.as_slice(), &sealed].concat()))
    }

    /// Opens a state; `None` if this sealer did not make it for this owner.
    #[must_use]
    pub fn open(&self, text: &str, owner: StateOwner<'_>) -> Option<RequestState> {
        const MAX_TEXT_BYTES: usize = 256;
        let bytes = (text.len() <= MAX_TEXT_BYTES).then(|| URL_SAFE_NO_PAD.decode(text).ok()).flatten()?;
        let (iv, sealed) = bytes.split_first_chunk::<IV_BYTES>()?;
        let payload = Payload { msg: sealed, aad: &owner.associated_data() };
        let plain = self.0.decrypt(&Nonce::from(*iv), payload).ok()?;
        let (intent, rest) = plain.split_first_chunk::<ID_BYTES>()?;
        let (nonce, rest) = rest.split_first_chunk::<ID_BYTES>()?;
        let expires_at = i64::from_be_bytes(rest.try_into().ok()?);
        let expires_at = OffsetDateTime::from_unix_timestamp(expires_at).ok()?;
        Some(RequestState { intent: IntentId::from_bytes(*intent), nonce: *nonce, expires_at })
    }
}

impl fmt::Debug for StateSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateSealer")
    }
}
