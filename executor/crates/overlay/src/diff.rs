//! Differences between two contents, for people.
