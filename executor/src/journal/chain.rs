//! The chain of receipts: each names the one before it by its hash.
//!
//! Whoever changes, removes or reorders a receipt changes every hash after it, and whoever knows one
//! hash (a checkpoint) can tell.

use sha2::{Digest, Sha256};

/// A SHA-256.
pub type Hash = [u8; 32];

/// What comes before the first receipt.
pub const NOTHING: Hash = [0; 32];

/// How far a chain goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the last receipt; the first one has 1.
    pub number: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Head {
    /// A chain without receipts.
    pub const START: Self = Self { number: 0, hash: NOTHING };

    /// The head after one more receipt.
    #[must_use]
    pub fn and(self, link: &Link<'_>) -> Self {
        let Link { intent, agent, tool, status, ended, body } = link;
        let number = self.number + 1;
        let mut hasher = Sha256::new();
        hasher.update(b"a2g-executor receipt 1\n");
        hasher.update(self.hash);
        hasher.update(number.to_le_bytes());
        hasher.update(ended.to_le_bytes());
        hasher.update(intent);
        for part in [agent.as_bytes(), tool.as_bytes(), status.as_bytes(), body] {
            hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(part);
        }
        Self { number, hash: hasher.finalize().into() }
    }
}

/// What a hash covers of one receipt, beside its number and the hash before it.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// The intent.
    pub intent: &'a [u8; 16],
    /// The agent.
    pub agent: &'a str,
    /// The tool.
    pub tool: &'a str,
    /// The status word.
    pub status: &'a str,
    /// When it ended, in microseconds since 1970.
    pub ended: i64,
    /// The receipt as JSON.
    pub body: &'a [u8],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_so_does_its_place() {
        let link =
            Link { intent: &[1; 16], agent: "did:a:b", tool: "t", status: "SUCCESS", ended: 7, body: b"{}" };
        let head = Head::START.and(&link);
        assert_eq!(head.number, 1);
        let others = [
            Link { intent: &[2; 16], ..link },
            Link { agent: "did:a:bt", tool: "", ..link },
            Link { status: "FAILURE", ..link },
            Link { ended: 8, ..link },
            Link { body: b"{ }", ..link },
        ];
        for other in others {
            assert_ne!(Head::START.and(&other).hash, head.hash, "{other:?}");
        }
        assert_ne!(head.and(&link).hash, head.hash);
        assert_eq!(shown(&NOTHING), "0".repeat(64));
    }
}
