//! The A2G executor: runs one WebAssembly tool for each approved intent, with exactly the capabilities that the verdict
//! grants, and reports the run.
//!
//! ```text
//! bytes ─ wire: decode ─▶ Call ─ govern: admit ─▶ Admitted ─ govern: grant ─▶ Grant
//!    ─ capability: open ─▶ Permit (consumed by the run) ─ core: journal, slot
//!    ─ isolate ─▶ sandbox: execute ─▶ Outcome ─ journal ─▶ Receipt ─ wire: encode ─▶ bytes
//!                                                             └─ core: deliver ─▶ a2g/report
//! ```
//! Each value can be constructed only by the crate named to its left. The crates are below `executor/crates`; this one
//! is the command line. `docs/architecture.md` lists the allowed dependencies.

pub mod cli;
