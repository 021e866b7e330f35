//! The texts that the journal stores for domain types.
//!
//! Domain types change with the code; data on the disk does not. Each stored type therefore has a copy in [`v1`], its
//! twin, that defines the serialized form. The derived code of the twin destructures and builds the type completely, so
//! a variant or a member that the twin lacks does not compile. `tests/journals/rows.txt` has a text of each kind, which
//! a test compares byte for byte. The hashes of the journal's records cover these texts.
//!
//! A later form will be a module `v2` beside `v1`, and the number of the journal's own format will say which one a
//! journal uses.
// The twins are serde's remote types: a twin with conversions would copy each artifact before it is written.

mod arguments;
mod budgets;
pub mod v1;

pub use arguments::{ArgumentsRow, read_arguments, write_arguments};

use crate::outcome::Receipt;
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::Result;

/// Serializes a receipt.
///
/// # Errors
/// If a value has no JSON form.
pub fn write_receipt(receipt: &Receipt) -> Result<String> {
    #[derive(Serialize)]
    struct Text<'a>(#[serde(with = "v1::Receipt")] &'a Receipt);
    serde_json::to_string(&Text(receipt))
}

/// Parses a receipt that [`write_receipt`] wrote.
///
/// # Errors
/// If the text is not a receipt.
pub fn read_receipt(text: &[u8]) -> Result<Receipt> {
    #[derive(Deserialize)]
    struct Text(#[serde(with = "v1::Receipt")] Receipt);
    serde_json::from_slice(text).map(|Text(receipt)| receipt)
}

/// Serializes a verdict.
///
/// # Errors
/// If a time has no serialized form, such as one after the year 9999.
pub fn write_verdict(verdict: &Verdict) -> Result<String> {
    #[derive(Serialize)]
    struct Text<'a>(#[serde(with = "v1::Verdict")] &'a Verdict);
    serde_json::to_string(&Text(verdict))
}

/// Parses a verdict that [`write_verdict`] wrote.
///
/// # Errors
/// If the text is not a verdict.
pub fn read_verdict(text: &str) -> Result<Verdict> {
    #[derive(Deserialize)]
    struct Text(#[serde(with = "v1::Verdict")] Verdict);
    serde_json::from_str(text).map(|Text(verdict)| verdict)
}
