//! A compact JWS (RFC 7515), taken apart: what proofs and the tokens of callers have in common.
//!
//! Nothing of it is believed here. What it says, and who has signed it, is for whoever asked.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The parts of a compact JWS.
pub(super) struct Jws<'a> {
    /// What the signature is over: the first two parts, as they were sent.
    pub(super) signed: &'a str,
    /// The header, decoded.
    pub(super) header: Vec<u8>,
    /// The payload, decoded.
    pub(super) payload: Vec<u8>,
    /// The signature, decoded.
    pub(super) signature: Vec<u8>,
}

impl<'a> Jws<'a> {
    /// Takes a text apart; `None` for what is not three parts in base64url with a dot between them.
    pub(super) fn parse(compact: &'a str) -> Option<Self> {
        let (signed, signature) = compact.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        // This reads one text for each sequence of bytes: no padding, no bits left over.
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        Some(Self {
            signed,
            header: decoded(header)?,
            payload: decoded(payload)?,
            signature: decoded(signature)?,
        })
    }
}
