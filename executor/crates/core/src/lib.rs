//! The core: the catalogue of tools, the pipeline of a call from its verdict to its receipt, and the delivery of
//! reports.

pub mod catalog;
pub mod deliver;
pub mod run;
