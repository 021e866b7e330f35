//! Finds the values of secrets in texts and streams, and replaces them by `[secret NAME]`.
//!
//! ```text
//! texts of secrets ─ forms ─▶ Matcher ─┬─ redact, redact_text, redact_json ─▶ a whole text
//!                                      └─ Redactor: push, push, …, finish ──▶ a stream, in chunks of any size
//! ```
//! A *form* is a text as a server may give it back: as it is, percent-encoded, escaped for JSON or HTML or in
//! quoted-printable as usual encoders do it (the tables of `forms.rs`), in Base64 at any place of what was encoded, or in
//! hexadecimal digits. Upper and lower case of ASCII letters are not distinguished.
//!
//! - Nothing that a form covers is left, also where forms overlap. Text without a form stays as it is.
//! - A stream holds back only what could still become a form: less than the longest form. How it is split does not
//!   matter, and there is no limit on its length.
//! - Each byte is looked at a bounded number of times, whatever the text is.
//! - What nobody lists here is not found: two codings one over the other, any other choice of the characters that are
//!   escaped, compression, other character sets, a value in parts.
//!
//! This crate has no input or output, and no clock.

mod forms;
mod json;
mod matcher;
mod stream;
#[cfg(test)]
mod tests;

pub use matcher::{FormsError, MAX_FORM_BYTES, MIN_TEXT_BYTES, Matcher};
pub use stream::Redactor;
