//! The replacement of forms in a stream.
//!
//! ```text
//! passed on │ held back: could still become a form │ next chunk
//! ```

use crate::matcher::Matcher;
use aho_corasick::automaton::StateID;
use std::fmt;
use std::sync::Arc;

/// The state of the replacement of forms in one stream. All positions are numbers of bytes of the stream.
pub(crate) struct Scan {
    state: StateID,
    /// The bytes that are not passed on.
    held: Vec<u8>,
    /// The position of the first of them.
    base: usize,
    /// The last position at which the automaton was at its start: no form that is not complete begins before it.
    settled: usize,
    /// What forms cover and is not replaced yet, in order. The first part may begin before `base`.
    covered: Vec<Part>,
}

/// A part of a stream that forms cover, each of which overlaps another one.
struct Part {
    start: usize,
    end: usize,
    /// The number of the secret whose form begins first; of several, that of the longest.
    secret: usize,
}

impl Scan {
    pub(crate) fn new(matcher: &Matcher) -> Self {
        Self { state: matcher.start(), held: Vec::new(), base: 0, settled: 0, covered: Vec::new() }
    }

    /// Reads a chunk, and appends to `out` what no form covers any more, or its replacement.
    pub(crate) fn push(
        &mut self,
        matcher: &Matcher,
        chunk: &[u8],
        out: &mut Vec<u8>,
        found: &mut dyn FnMut(&str),
    ) {
        let mut end = self.base + self.held.len();
        self.held.extend_from_slice(chunk);
        for byte in chunk {
            end += 1;
            self.state = matcher.next(self.state, *byte);
            if self.state == matcher.start() {
                self.settled = end;
            } else if let Some((length, secret)) = matcher.longest_match(self.state) {
                self.cover(Part { start: end.saturating_sub(length), end, secret });
            }
        }
        let earliest = end.saturating_sub(matcher.longest().saturating_sub(1));
        self.pass_on(matcher, self.settled.max(earliest), out, found);
    }

    /// Appends the rest to `out`: no further chunk follows.
    pub(crate) fn finish(&mut self, matcher: &Matcher, out: &mut Vec<u8>, found: &mut dyn FnMut(&str)) {
        let end = self.base + self.held.len();
        self.pass_on(matcher, end, out, found);
    }

    /// Adds a form that was found. It ends at or after all others.
    fn cover(&mut self, mut part: Part) {
        while let Some(earlier) = self.covered.pop_if(|earlier| earlier.end > part.start) {
            if earlier.start < part.start {
                part.start = earlier.start;
                part.secret = earlier.secret;
            }
        }
        self.covered.push(part);
    }

    /// Passes on what comes before `limit`, where every form that is not complete begins at or after `limit`. Of a covered
    /// part that ends after it, nothing is passed on: another form could extend it.
    fn pass_on(&mut self, matcher: &Matcher, limit: usize, out: &mut Vec<u8>, found: &mut dyn FnMut(&str)) {
        let Self { held, base, covered, .. } = self;
        // Nothing, if the end is before the start: what has been passed on begins a covered part.
        let between = |start: usize, end: usize| {
            let range = start.saturating_sub(*base)..end.saturating_sub(*base);
            held.get(range).unwrap_or_default()
        };
        let complete = covered.partition_point(|part| part.end <= limit);
        let mut at = *base;
        for Part { start, end, secret } in covered.drain(..complete) {
            out.extend_from_slice(between(at, start));
            let name = matcher.name(secret);
            for piece in ["[secret ", name, "]"] {
                out.extend_from_slice(piece.as_bytes());
            }
            found(name);
            at = end;
        }
        let next = covered.first().map_or(limit, |part| part.start.min(limit));
        out.extend_from_slice(between(at, next));
        let passed = limit.saturating_sub(*base).min(held.len());
        held.drain(..passed);
        *base += passed;
    }
}

/// Replaces forms in a stream, whose chunks may have any size.
pub struct Redactor {
    matcher: Arc<Matcher>,
    scan: Scan,
}

impl Redactor {
    /// A redactor at the beginning of a stream.
    #[must_use]
    pub fn new(matcher: Arc<Matcher>) -> Self {
        let scan = Scan::new(&matcher);
        Self { matcher, scan }
    }

    /// Reads a chunk. Appends to `out` what can be passed on, and calls `found` with the name of a secret for each form
    /// that is replaced. Less than the length of the longest form is held back.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, found: &mut dyn FnMut(&str)) {
        self.scan.push(&self.matcher, chunk, out, found);
    }

    /// Appends the rest to `out` at the end of the stream.
    pub fn finish(&mut self, out: &mut Vec<u8>, found: &mut dyn FnMut(&str)) {
        self.scan.finish(&self.matcher, out, found);
    }

    /// Goes on with another matcher, for what is held back and all that follows.
    pub fn switch(&mut self, matcher: &Arc<Matcher>, out: &mut Vec<u8>, found: &mut dyn FnMut(&str)) {
        if Arc::ptr_eq(&self.matcher, matcher) {
            return;
        }
        // What is covered stays so, whatever the other one finds.
        let covered = self.scan.covered.last().map_or(self.scan.base, |part| part.end);
        self.scan.pass_on(&self.matcher, covered, out, found);
        let rest = std::mem::take(&mut self.scan.held);
        *self = Self::new(Arc::clone(matcher));
        self.push(&rest, out, found);
    }

    /// `true` if nothing is held back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scan.held.is_empty()
    }

    /// The number of bytes that are held back.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.scan.held.len()
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("matcher", &self.matcher).finish_non_exhaustive()
    }
}
