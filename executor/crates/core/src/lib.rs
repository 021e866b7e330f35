//! The path of a call: a tool from the catalogue, a verdict, a claim in the journal, one run, and its report.

pub mod catalog;
pub mod deliver;
pub mod run;
