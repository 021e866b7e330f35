//! The head of a journal's receipts, as governors and operators keep it: a checkpoint.
//!
//! Changing, removing or reordering anything that was recorded before a receipt changes the hash of that receipt, so
//! that one hash which is kept elsewhere shows it.

/// A SHA-256.
pub type Hash = [u8; 32];

/// The hash before the first record.
pub const NOTHING: Hash = [0; 32];

/// A checkpoint: how far the receipts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the last receipt; the first one has 1.
    pub number: u64,
    /// The hash of its record.
    pub hash: Hash,
}

impl Head {
    /// A journal without receipts.
    pub const START: Self = Self { number: 0, hash: NOTHING };
}

/// A hash as people read it.
#[must_use]
pub fn shown(hash: &Hash) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _never_fails = write!(text, "{byte:02x}");
        text
    })
}

/// The hash of 64 hexadecimal digits.
#[must_use]
pub fn parse(digits: &str) -> Option<Hash> {
    let bytes = (0..32).map(|nth| u8::from_str_radix(digits.get(2 * nth..2 * nth + 2)?, 16).ok());
    let hash = bytes.collect::<Option<Vec<_>>>()?.try_into().ok()?;
    // Only the one spelling, so that what is compared as text is compared as a hash.
    (shown(&hash) == digits.to_ascii_lowercase()).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_shown_and_not_otherwise() {
        let hash: Hash = std::array::from_fn(|nth| u8::try_from(nth * 7).unwrap());
        let digits = shown(&hash);
        assert_eq!((parse(&digits), parse(&digits.to_uppercase())), (Some(hash), Some(hash)));
        for other in ["", "00", &digits[1..], &format!("{digits}0"), &digits.replacen("00", "+0", 1), "é"] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(shown(&NOTHING), "0".repeat(64));
    }
}
