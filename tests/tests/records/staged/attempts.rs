//! The number of attempts to commit: each is a record, so nobody makes them without end, and changes can be discarded however
//! many have failed.

use super::{Act, EDITS, StagedFixture, decided, edits};
use harness::error;

const MAX_ATTEMPTS: usize = 100;

#[test]
fn after_a_hundred_commits_without_effect_changes_can_only_be_discarded() {
    let mut fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    std::fs::write(fixture.home().workspace().join("a.txt"), "of another program").unwrap();
    for _ in 0..MAX_ATTEMPTS {
        decided(&fixture.decide("anna", Act::Commit, &run), "FAILURE");
    }
    // A restart counts them again.
    for _ in 0..2 {
        let refused = fixture.decide("anna", Act::Commit, &run);
        let message = error(&refused, -32600)["message"].as_str().expect("a message");
        assert!(message.contains("discard them"), "{message}");
        assert_eq!(fixture.decisions(&run).len(), MAX_ATTEMPTS, "a refusal is no decision");
        assert_eq!(fixture.state(&run), "waiting");
        let home = fixture.kill();
        fixture.start_in(home);
    }
    fixture.succeed("agent", Act::Discard, &run);
    assert_eq!(fixture.decisions(&run).len(), MAX_ATTEMPTS + 1);
    assert_eq!(fixture.files()["a.txt"], "of another program");
}
