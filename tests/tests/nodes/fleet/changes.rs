//! The file changes of staged runs, which are at the node that ran the call.

use super::elsewhere::{Nodes, ask};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};

#[test]
fn another_node_names_the_one_that_has_the_changes() {
    let Some(nodes) = Nodes::start_with(|_, options| options.set("ceilings.effects", "staged")) else {
        return;
    };
    let call = intent("write_file", write("new.txt", "new"));
    let staged = ask(&nodes.one, &nodes.agent, "a2g/intent", &call);
    let report = &result(&staged)["report"];
    assert_eq!(report["status"], "STAGED", "{staged}");
    let of_set = json!({ "intent": call["intent_id"] });
    let commit = json!({ "intent": call["intent_id"], "digest": report["usage"]["effects"]["digest"] });
    for (who, method, params, code) in [
        (&nodes.approver, "a2g/commit", &commit, -32600),
        (&nodes.approver, "a2g/undo", &of_set, -32600),
        (&nodes.agent, "a2g/discard", &of_set, -32602),
        (&nodes.agent, "a2g/effects", &of_set, -32602),
    ] {
        let refused = ask(&nodes.two, who, method, params);
        let message = error(&refused, code)["message"].as_str().expect("a message");
        assert!(message.contains("the node `one`") && message.contains("send this"), "{method}: {message}");
    }
    // To another agent, it is an intent that nobody knows.
    for method in ["a2g/discard", "a2g/effects"] {
        let [known, unknown] = [of_set.clone(), json!({ "intent": intent_id() })]
            .map(|params| (ask(&nodes.two, &nodes.other, method, &params), params));
        let text = |(answer, params): &(Value, Value)| {
            let message = error(answer, -32602)["message"].as_str().expect("a message").to_owned();
            message.replace(params["intent"].as_str().expect("an id"), "")
        };
        assert_eq!(text(&known), text(&unknown), "{method}");
    }
    assert!(!nodes.one.workspace().join("new.txt").exists());
    let committed = ask(&nodes.one, &nodes.approver, "a2g/commit", &commit);
    assert_eq!(result(&committed)["status"], "SUCCESS", "{committed}");
    assert_eq!(nodes.one.file("new.txt").as_deref(), Some("new"));
}
