//! The texts that the journal keeps of the vocabulary.
//!
//! The types of the vocabulary change with the code; what is on a disk does not. So each type that is stored has a twin
//! in [`v1`], which says how it is written and read, and whose derived code takes the type apart and puts it together
//! without a rest: a variant or a member that the twin does not know fails to compile. `tests/journals/rows.txt` has a
//! text of each kind, which is compared byte for byte. The hashes of the journal's records cover these texts.
//!
//! A later form is a module `v2` beside this one, which the journal's own format then names; `v1` goes on to be read.

pub(crate) mod v1;

use crate::outcome::Receipt;
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::Result;

/// Writes a receipt.
///
/// # Errors
/// When a value has no JSON.
pub(crate) fn write_receipt(receipt: &Receipt) -> Result<String> {
    #[derive(Serialize)]
    struct Text<'a>(#[serde(with = "v1::Receipt")] &'a Receipt);
    serde_json::to_string(&Text(receipt))
}

/// Reads a receipt that [`write_receipt`] wrote.
///
/// # Errors
/// When the text is not one.
pub(crate) fn read_receipt(text: &[u8]) -> Result<Receipt> {
    #[derive(Deserialize)]
    struct Text(#[serde(with = "v1::Receipt")] Receipt);
    serde_json::from_slice(text).map(|Text(receipt)| receipt)
}

/// Writes a verdict.
///
/// # Errors
/// When a moment cannot be written, such as one after the year 9999.
pub(crate) fn write_verdict(verdict: &Verdict) -> Result<String> {
    #[derive(Serialize)]
    struct Text<'a>(#[serde(with = "v1::Verdict")] &'a Verdict);
    serde_json::to_string(&Text(verdict))
}

/// Reads a verdict that [`write_verdict`] wrote.
///
/// # Errors
/// When the text is not one.
pub(crate) fn read_verdict(text: &str) -> Result<Verdict> {
    #[derive(Deserialize)]
    struct Text(#[serde(with = "v1::Verdict")] Verdict);
    serde_json::from_str(text).map(|Text(verdict)| verdict)
}
