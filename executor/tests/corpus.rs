//! The inputs that fuzzing found, one folder of `tests/corpus/` for each target, and what has to hold for
//! each. `fuzz/README.md` says how they were made.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops at the first surprise"
)]

mod decoders;

use std::path::Path;

/// Goes through a folder, and shows which input it was if there is a finding.
fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let input = std::fs::read(&path).unwrap();
        let held = std::panic::catch_unwind(|| check(&input));
        assert!(held.is_ok(), "a finding: {}", path.display());
        inputs += 1;
    }
    assert!(inputs > 10, "only {inputs} inputs in {}", folder.display());
}

#[test]
fn a2a() {
    replay("a2a", decoders::a2a);
}

#[test]
fn strict_json() {
    replay("strict_json", decoders::strict_json);
}

#[test]
fn sovereign() {
    replay("sovereign", decoders::sovereign);
}

#[test]
fn a2e() {
    replay("a2e", decoders::a2e);
}

#[test]
fn intent() {
    replay("intent", decoders::intent);
}

#[test]
fn nexus() {
    replay("nexus", decoders::nexus);
}

#[test]
fn verdict() {
    replay("verdict", decoders::verdict);
}

#[test]
fn scope() {
    replay("scope", decoders::scope);
}

#[test]
fn proof() {
    replay("proof", decoders::proof);
    // Not because nothing is believed.
    decoders::the_good_proof_is_believed();
}

#[test]
fn jwt() {
    replay("jwt", decoders::jwt);
    // Not because nothing is taken.
    decoders::the_good_token_is_taken();
}
