//! Bytes for `decoders::table`.

#![no_main]

#[path = "../../executor/tests/decoders/mod.rs"]
#[allow(dead_code, reason = "each target uses one part")]
mod decoders;

libfuzzer_sys::fuzz_target!(|body: &[u8]| decoders::table(body));
