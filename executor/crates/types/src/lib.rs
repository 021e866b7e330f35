//! The domain types of the executor: parsed values, without I/O and without authority.
//!
//! Every crate except `a2g-runtime` uses this one. Outcomes can be serialized; authority cannot.

pub mod call;
pub mod clock;
pub mod durability;
pub mod error_chain;
pub mod failure_message;
pub mod fault;
pub mod grant;
pub mod ident;
pub mod json;
mod json_schema;
pub mod limit;
pub mod limit_keys;
pub mod log_limiter;
pub mod memory;
pub mod node;
pub mod outcome;
pub mod quantity;
pub mod rate_limit;
pub mod request;
pub mod session;
pub mod stop;
pub mod stored;
pub mod strict_json;
pub mod tool;
pub mod verdict;
pub mod visible_text;
