//! Guests that attack.
