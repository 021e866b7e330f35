//! The SHA-256 of contents.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;
use std::fmt;
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt as _;

/// The bytes that are read at once.
const BLOCK_BYTES: usize = 256 << 10;

/// The SHA-256 of a content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Hashes the first `size` bytes of a file.
    ///
    /// # Errors
    /// If the file is shorter, or cannot be read.
    pub(crate) fn of_file(file: &File, size: u64) -> Result<Self> {
        let mut hasher = sha2::Sha256::new();
        let mut block = vec![0; BLOCK_BYTES];
        let mut at = 0;
        while at < size {
            let length = usize::try_from(size - at).map_or(BLOCK_BYTES, |rest| rest.min(BLOCK_BYTES));
            let (part, _) = block.split_at_mut(length);
            file.read_exact_at(part, at)?;
            hasher.update(&*part);
            at += length as u64;
        }
        Ok(Self(hasher.finalize().into()))
    }

    fn parse(text: &str) -> Option<Self> {
        let is_canonical =
            text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).ok().filter(|_| is_canonical)?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom("a SHA-256 is not 64 lower-case hexadecimal digits"))
    }
}
