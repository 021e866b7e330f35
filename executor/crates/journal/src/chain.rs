//! The checkpoint of a journal's receipts, which governors and operators store.
//!
//! The hash of a receipt covers all earlier records, so that a single hash stored elsewhere reveals if one of them is
//! changed, removed or moved.

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// The hash before the first record.
pub const INITIAL_HASH: Hash = [0; 32];

/// A checkpoint: the number and the hash of the last receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the last receipt, counted from 1.
    pub number: u64,
    /// The hash of its record.
    pub hash: Hash,
}

impl Head {
    /// The head of a journal without receipts.
    pub const START: Self = Self { number: 0, hash: INITIAL_HASH };
}

/// The hash as 64 hexadecimal digits.
#[must_use]
pub fn to_hex(hash: &Hash) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _never_fails = write!(text, "{byte:02x}");
        text
    })
}

/// Parses a hash from 64 hexadecimal digits; `None` for any other text.
#[must_use]
pub fn from_hex(digits: &str) -> Option<Hash> {
    let bytes = (0..32).map(|nth| u8::from_str_radix(digits.get(2 * nth..2 * nth + 2)?, 16).ok());
    let hash = bytes.collect::<Option<Vec<_>>>()?.try_into().ok()?;
    // Rejects other texts that `from_str_radix` accepts, such as `+0`.
    (to_hex(&hash) == digits.to_ascii_lowercase()).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_hexadecimal_digits_are_parsed() {
        let hash: Hash = std::array::from_fn(|nth| u8::try_from(nth * 7).unwrap());
        let digits = to_hex(&hash);
        assert_eq!((from_hex(&digits), from_hex(&digits.to_uppercase())), (Some(hash), Some(hash)));
        for invalid in ["", "00", &digits[1..], &format!("{digits}0"), &digits.replacen("00", "+0", 1), "é"]
        {
            assert_eq!(from_hex(invalid), None, "{invalid}");
        }
        assert_eq!(to_hex(&INITIAL_HASH), "0".repeat(64));
    }
}
