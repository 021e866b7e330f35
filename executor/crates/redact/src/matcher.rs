//! The automaton that finds the forms of secrets.

use crate::forms::forms;
use crate::stream::Scan;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use std::fmt;

/// Minimum length of a text that is searched for, in bytes: a shorter one occurs by chance.
pub const MIN_TEXT_BYTES: usize = 8;
/// Maximum length of all forms of a matcher, in bytes. Its automaton has up to some 20 bytes for each of them, and up to
/// some 80 while it is made.
pub const MAX_FORM_BYTES: usize = 1 << 20;

/// The forms of the secrets are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the forms of the values have more than 1 MiB")]
pub struct FormsError;

/// The forms of secrets. `Debug` prints none of them.
///
/// What it was made of is cleared. The automaton has the forms as its transitions: its memory is freed when the matcher is
/// dropped, but the crate that makes it offers no way to clear it before.
pub struct Matcher {
    automaton: NFA,
    start: StateID,
    /// The secret of each form, by its number.
    owners: Vec<usize>,
    /// The names of the secrets.
    names: Vec<String>,
}

impl Matcher {
    /// A matcher for secrets, each with its name and its texts. Texts of less than [`MIN_TEXT_BYTES`] are not searched for.
    ///
    /// # Errors
    /// [`FormsError`] if the forms have more than [`MAX_FORM_BYTES`].
    pub fn new<'a, T>(secrets: impl IntoIterator<Item = (&'a str, T)>) -> Result<Self, FormsError>
    where
        T: IntoIterator<Item: AsRef<str>>,
    {
        let mut all = Vec::new();
        let mut owners = Vec::new();
        let mut names = Vec::new();
        let mut bytes = 0_usize;
        for (name, texts) in secrets {
            for whole in texts {
                let text = whole.as_ref();
                if text.len() < MIN_TEXT_BYTES {
                    continue;
                }
                // The shortest form has as many bytes as the text: no others are made of one that is too long.
                if bytes.saturating_add(text.len()) > MAX_FORM_BYTES {
                    return Err(FormsError);
                }
                let forms = forms(text);
                bytes = forms.iter().fold(bytes, |bytes, form| bytes.saturating_add(form.len()));
                if bytes > MAX_FORM_BYTES {
                    return Err(FormsError);
                }
                owners.resize(owners.len() + forms.len(), names.len());
                all.extend(forms);
            }
            names.push(name.to_owned());
        }
        // Each form is to be found, also one that overlaps another, so no match ends the search for others.
        let automaton = NFA::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .prefilter(false)
            .build(&all)
            .map_err(|_too_many_states| FormsError)?;
        let start = automaton.start_state(Anchored::No).map_err(|_never_fails| FormsError)?;
        Ok(Self { automaton, start, owners, names })
    }

    /// The text with each form replaced by `[secret NAME]`, and calls `found` with the name for each that is replaced;
    /// `None` if it has no form.
    pub fn redact(&self, text: &[u8], found: &mut dyn FnMut(&str)) -> Option<Vec<u8>> {
        if !self.occurs_in(text) {
            return None;
        }
        let mut redacted = Vec::with_capacity(text.len());
        let mut scan = Scan::new(self);
        scan.push(self, text, &mut redacted, found);
        scan.finish(self, &mut redacted, found);
        Some(redacted)
    }

    /// As [`Self::redact`], for text.
    pub fn redact_text(&self, text: &str, found: &mut dyn FnMut(&str)) -> Option<String> {
        let bytes = self.redact(text.as_bytes(), found)?;
        // A form is text, so it begins and ends between characters.
        let redacted = String::from_utf8(bytes);
        Some(redacted.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// `true` if a text has a form.
    pub(crate) fn occurs_in(&self, text: &[u8]) -> bool {
        let mut state = self.start;
        text.iter().any(|byte| {
            state = self.next(state, *byte);
            self.automaton.is_match(state)
        })
    }

    /// The state at the beginning of a text, and wherever no form can have begun.
    pub(crate) fn start(&self) -> StateID {
        self.start
    }

    #[inline]
    pub(crate) fn next(&self, state: StateID, byte: u8) -> StateID {
        self.automaton.next_state(Anchored::No, state, byte)
    }

    /// The longest form that ends in this state, as its length and the number of its secret.
    #[inline]
    pub(crate) fn longest_match(&self, state: StateID) -> Option<(usize, usize)> {
        if !self.automaton.is_match(state) {
            return None;
        }
        let matches = (0..self.automaton.match_len(state)).map(|at| self.automaton.match_pattern(state, at));
        let longest = matches.max_by_key(|form| self.automaton.pattern_len(*form))?;
        let owner = self.owners.get(longest.as_usize()).copied().unwrap_or_default();
        Some((self.automaton.pattern_len(longest), owner))
    }

    /// The length of the longest form, in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.automaton.max_pattern_len()
    }

    /// The name of a secret.
    pub(crate) fn name(&self, secret: usize) -> &str {
        self.names.get(secret).map_or("", String::as_str)
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").field("names", &self.names).finish_non_exhaustive()
    }
}
