//! The part of a WebSocket's message that has arrived, counted in its caller's share of memory.
//!
//! The WebSocket's own buffer grows with a message before anything here sees it. Without this count, the connections of
//! one caller could each hold most of a message that never ends.

use super::doorway::SMALL_MESSAGE_BYTES;
use crate::memory::{self, Held};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes that one connection has read of a message. It counts nothing until a caller is named.
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

    /// Counts bytes that were read.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] when the caller's share has no room for them.
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

    /// Takes a control frame of so many bytes out of the count: it may stand between the parts of a message.
    pub(super) fn leave_out(&self, bytes: usize) {
        if let Some(unfinished) = &mut *self.lock() {
            unfinished.bytes = unfinished.bytes.saturating_sub(bytes as u64);
        }
    }

    /// A message is whole, and counted elsewhere from now on.
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
