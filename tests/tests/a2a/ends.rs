//! The end that nobody asks for: of an intent about which nobody decides.

use super::*;
use crate::durability::decisions::records;

/// A governor that asks a person about everything, for so many seconds.
fn escalating(seconds: i64) -> FakeGovernor {
    FakeGovernor::start(move |method, params| {
        if method != "a2g/intent" {
            return Reply::Result(json!({ "accepted": true }));
        }
        Reply::Result(json!({
            "verdict": "ESCALATE", "intent_id": params["intent_id"], "conditions": [],
            "capability_manifest": { "filesystem_scope": ["/workspace/**"] }, "expires_at": in_seconds(seconds),
        }))
    })
}

#[test]
fn a_task_about_which_nobody_decides_ends_when_its_verdict_expires() {
    let governor = escalating(2);
    let executor = Executor::start(unlimited(Options::new().governor(&governor.url())));
    let mut client = Client::of(&executor);
    let asked = client.call("write_file", write("x", "x"));
    assert_eq!(state(&asked), "input-required", "{asked}");
    let ended = client.until(&id(&asked), "rejected");
    assert!(says(&ended).contains("nobody approved it in time"), "{ended}");
    let expired = eventually("that it expired is on record", || {
        let all = records(executor.home());
        all.into_iter().find(|record| record["kind"] == "expired" && record["intent_id"] == asked["id"])
    });
    assert!(expired["says"]["by"].as_str().unwrap().contains("nobody decided"), "{expired}");
    executor.assert_workspace_is_empty("a call that nobody approved");
}
