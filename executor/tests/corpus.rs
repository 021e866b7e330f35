//! Inputs of the fuzz targets, one folder of `tests/corpus/` for each, and the property that holds for every input.

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

/// A test for each target: its folder and its decoder have its name.
macro_rules! targets {
    ($($target:ident),*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target), decoders::$target);
            }
        )*
    };
}

targets!(a2a, strict_json, sovereign, a2e, intent, mcp, nexus, verdict, scope, proof, jwt, table);

/// The others are not refused because nothing is believed.
#[test]
fn good_credentials_are_accepted() {
    decoders::the_good_proof_is_believed();
    decoders::the_good_token_is_taken();
}
