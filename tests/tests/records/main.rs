//! The journal: nothing is lost or repeated, nothing is forged.

mod durability;
mod proofs;
mod replays;
mod staged;
