//! Hostile guests against the built executor.
//!
//! Each file is one thing that a guest may want more of than it was granted. A limit is shown from
//! both sides: just inside it a guest succeeds, just over it the guest ends as promised, with the
//! error, the report and the measurements that name the limit and who set it. Bounds on time and
//! memory of the server are generous, because the machine may be busy; they are still far below
//! what the attack would take.

mod bench;
mod cpu;
mod ends;
mod fetch;
mod files;
mod guest;
mod host;
mod layers;
mod memory;
mod modules;
mod network;
mod output;
mod ring;
mod stop;
mod time;
mod typed;
