//! The A2G executor: an approved intent runs as one WebAssembly tool, under exactly the
//! capabilities that its verdict grants, and is reported.
//!
//! ```text
//! bytes ─ wire: decode ─▶ Call ─ govern: admit ─▶ Admitted ─ govern: grant ─▶ Grant
//!    ─ capability: open ─▶ Permit (used up by the run) ─ run: journal, slot
//!    ─ isolate ─▶ sandbox::execute ─▶ Outcome ─ journal ─▶ Receipt ─ wire: encode ─▶ bytes
//!                                                             └─ deliver ─▶ a2g/report
//! ```
//! Each arrow is a type that only the module before it can make. The modules below are in reading order;
//! `docs/architecture.md` lists the allowed imports.

pub mod call;
pub mod clock;
pub mod durability;
pub mod error_chain;
pub mod fault;
pub mod ident;
pub mod json;
pub mod limit;
pub mod log_limiter;
pub mod memory;
pub mod outcome;
pub mod quantity;
pub mod rate_limit;
pub mod spawn;
mod stored;
pub mod strict_json;
pub mod tool;
pub mod verdict;

pub mod capability;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod deliver;
pub mod egress;
pub mod govern;
pub mod isolate;
pub mod journal;
pub mod metrics;
pub mod run;
pub mod sandbox;
pub mod serve;
pub mod wire;
