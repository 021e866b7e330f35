//! Splits and decodes a compact JWS (RFC 7515), for proofs and for callers' tokens.
//!
//! This module verifies nothing; its callers check signature and content. It does not use a JOSE crate, because those
//! parse the header themselves and pass on only the members that they know: a duplicate or unknown member would be lost
//! before it could be rejected.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The parts of a compact JWS.
pub(super) struct Jws<'a> {
    /// The signed text: the first two parts, verbatim.
    pub(super) signed: &'a str,
    /// The header, decoded.
    pub(super) header: Vec<u8>,
    /// The payload, decoded.
    pub(super) payload: Vec<u8>,
    /// The signature, decoded.
    pub(super) signature: Vec<u8>,
}

impl<'a> Jws<'a> {
    /// Splits a text; `None` unless it is three parts in base64url separated by dots.
    pub(super) fn parse(compact: &'a str) -> Option<Self> {
        let (signed, signature) = compact.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        // This decoder accepts exactly one text for each sequence of bytes: no padding, no stray bits.
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        Some(Self {
            signed,
            header: decode(header)?,
            payload: decode(payload)?,
            signature: decode(signature)?,
        })
    }
}
