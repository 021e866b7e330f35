//! Bytes of incomplete WebSocket messages, counted in their caller's share of memory.
//!
//! The WebSocket library buffers a message until it is complete. Without this count, a caller could have the server
//! buffer one unfinished message of maximum size on each of many connections.

use a2g_types::memory::{self, CountedBytes, SMALL_MESSAGE_BYTES};
use parking_lot::{Mutex, MutexGuard};
use std::io;

/// The bytes of the incomplete message of one connection. Nothing is counted until a caller is set.
#[derive(Debug, Default)]
pub(super) struct PartialMessage(Mutex<Option<CountedMessage>>);

#[derive(Debug)]
struct CountedMessage {
    caller: Box<str>,
    bytes: u64,
    counted: Option<CountedBytes>,
}

impl PartialMessage {
    fn lock(&self) -> MutexGuard<'_, Option<CountedMessage>> {
        self.0.lock()
    }

    /// Sets the caller whose share the bytes count against from now on.
    pub(super) fn set_caller(&self, caller: &str) {
        *self.lock() = Some(CountedMessage { caller: caller.into(), bytes: 0, counted: None });
    }

    /// Counts bytes that were read from the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] if the caller's share is used up.
    pub(super) fn add(&self, bytes: usize) -> io::Result<()> {
        let mut message = self.lock();
        let Some(CountedMessage { caller, bytes: sum, counted }) = &mut *message else { return Ok(()) };
        *sum = sum.saturating_add(bytes as u64);
        if *sum <= SMALL_MESSAGE_BYTES {
            return Ok(());
        }
        match counted {
            Some(counted) if counted.has_room(bytes as u64) => counted.set(*sum),
            Some(_) => return Err(io::ErrorKind::OutOfMemory.into()),
            None => *counted = Some(memory::hold(caller, *sum).map_err(|_| io::ErrorKind::OutOfMemory)?),
        }
        Ok(())
    }

    /// Subtracts a control frame of this many bytes: it may come between the fragments of a message, but is not a part
    /// of it.
    pub(super) fn subtract(&self, bytes: usize) {
        if let Some(message) = &mut *self.lock() {
            message.bytes = message.bytes.saturating_sub(bytes as u64);
        }
    }

    /// Resets the count: the message is complete, and its handler counts it from here on.
    pub(super) fn complete(&self) {
        if let Some(message) = &mut *self.lock() {
            (message.bytes, message.counted) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_until_it_is_complete_and_a_control_frame_does_not_complete_it() {
        let partial_message = PartialMessage::default();
        partial_message.add(1 << 20).unwrap();
        let is_counted = |partial_message: &PartialMessage| {
            partial_message.lock().as_ref().is_some_and(|state| state.counted.is_some())
        };
        assert!(!is_counted(&partial_message), "no caller is set");
        partial_message.set_caller("arriving");
        partial_message.add(10 << 10).unwrap();
        assert!(!is_counted(&partial_message));
        partial_message.add(10 << 10).unwrap();
        partial_message.subtract(100);
        assert!(is_counted(&partial_message));
        partial_message.complete();
        assert!(!is_counted(&partial_message));
    }
}
