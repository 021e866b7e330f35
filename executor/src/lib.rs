//! The A2G executor: an approved intent runs as one WebAssembly tool, under exactly the
//! capabilities that its verdict grants, and is reported.
//!
//! ```text
//! bytes ─ wire: decode ─▶ Call ─ govern: admit ─▶ Admitted ─ govern: grant ─▶ Grant
//!    ─ capability: open ─▶ Permit (used up by the run) ─ core: journal, slot
//!    ─ isolate ─▶ sandbox: execute ─▶ Outcome ─ journal ─▶ Receipt ─ wire: encode ─▶ bytes
//!                                                             └─ core: deliver ─▶ a2g/report
//! ```
//! Each arrow is a type that only the crate before it can make. The crates are below `executor/crates`; this one is
//! the command line. `docs/architecture.md` lists the allowed dependencies.

pub mod cli;
