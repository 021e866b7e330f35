//! Bytes of incomplete WebSocket messages, counted in their caller's share of memory.
//!
//! The WebSocket library buffers a message before the server gets it. Without this count, each connection of one caller
//! could hold most of a message that never ends.

use super::doorway::SMALL_MESSAGE_BYTES;
use crate::memory::{self, Held};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of the incomplete message of one connection. Nothing is counted until a caller is set.
#[derive(Debug, Default)]
pub(super) struct Arriving(Mutex<Option<Unfinished>>);

#[derive(Debug)]
struct Unfinished {
    caller: Box<str>,
    bytes: u64,
    held: Option<Held>,
}

impl Arriving {
    fn lock(&self) -> MutexGuard<'_, Option<Unfinished>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts for this caller from now on.
    pub(super) fn count_for(&self, caller: &str) {
        *self.lock() = Some(Unfinished { caller: caller.into(), bytes: 0, held: None });
    }

    /// Adds bytes that were read.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] if the caller's share has no room for them.
    pub(super) fn read(&self, bytes: usize) -> io::Result<()> {
        let mut unfinished = self.lock();
        let Some(Unfinished { caller, bytes: sum, held }) = &mut *unfinished else { return Ok(()) };
        *sum = sum.saturating_add(bytes as u64);
        if *sum <= SMALL_MESSAGE_BYTES {
            return Ok(());
        }
        match held {
            Some(held) if held.has_room(bytes as u64) => held.set(*sum),
            Some(_) => return Err(io::ErrorKind::OutOfMemory.into()),
            None => *held = Some(memory::hold(caller, *sum).ok_or(io::ErrorKind::OutOfMemory)?),
        }
        Ok(())
    }

    /// Subtracts a control frame of this many bytes: one may stand between the fragments of a message.
    pub(super) fn leave_out(&self, bytes: usize) {
        if let Some(unfinished) = &mut *self.lock() {
            unfinished.bytes = unfinished.bytes.saturating_sub(bytes as u64);
        }
    }

    /// Resets the count: the message is complete, and its handler counts it from now on.
    pub(super) fn is_whole(&self) {
        if let Some(unfinished) = &mut *self.lock() {
            (unfinished.bytes, unfinished.held) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_until_it_is_whole_and_a_control_frame_does_not_end_it() {
        let arriving = Arriving::default();
        arriving.read(1 << 20).unwrap();
        let held = |arriving: &Arriving| arriving.lock().as_ref().is_some_and(|state| state.held.is_some());
        assert!(!held(&arriving), "nobody is named");
        arriving.count_for("arriving");
        arriving.read(10 << 10).unwrap();
        assert!(!held(&arriving));
        arriving.read(10 << 10).unwrap();
        arriving.leave_out(100);
        assert!(held(&arriving));
        arriving.is_whole();
        assert!(!held(&arriving));
    }
}
