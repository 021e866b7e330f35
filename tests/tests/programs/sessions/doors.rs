//! Sessions over the other doors, each of which names them in its own way.

use super::*;
use harness::doors::{DOORS, PEER, open_doors};
use harness::mcp::{call, post, request};

#[test]
fn mcp_has_an_argument_for_the_session() {
    let fixture = Fixture::start(options().set("doors.mcp", json!({ "agent": AGENT })));
    let mut client = fixture.executor.client();
    let listed = post(&mut client, &request(1, "tools/list", json!({})), &[]).json();
    for tool in listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}")) {
        let argument = &tool["inputSchema"]["properties"]["session"];
        assert_eq!(argument.is_object(), tool["name"] == "take_steps", "{tool}");
        assert!(!tool["inputSchema"]["required"].to_string().contains("session"), "{tool}");
    }
    let mut ask = |session: &str, text: &str| {
        let arguments = json!({ "steps": [["keep", text]], "session": session });
        post(&mut client, &call(2, "take_steps", &arguments), &[]).json()
    };
    let first = ask("new", "a");
    let session = &first["result"]["_meta"]["a2g/session"];
    assert_eq!((&session["turn"], &session["state"]), (&json!(1), &json!("kept")), "{first}");
    let handle = session["handle"].as_str().expect("a handle");
    // Models do not see `_meta`.
    let content = first["result"]["content"].as_array().expect("content");
    let last = content.last().and_then(|part| part["text"].as_str()).expect("a text");
    assert!(last.contains(handle), "{first}");
    assert_eq!(first["result"]["structuredContent"], json!({ "steps": [["a"]] }), "{first}");
    let second = ask(handle, "b");
    assert_eq!(second["result"]["structuredContent"], json!({ "steps": [["a", "b"]] }), "{second}");
    assert_eq!(second["result"]["_meta"]["a2g/session"]["turn"], 2, "{second}");
    let forged = ask(&format!("ses_{}", "0".repeat(32)), "c");
    assert!(forged.to_string().contains("session_lost"), "{forged}");
    let malformed = ask("mine", "c");
    assert!(malformed.to_string().contains("session"), "{malformed}");
    assert!(malformed["result"]["structuredContent"].is_null(), "{malformed}");
}

#[test]
fn nexus_and_sovereign_have_the_member_of_a2g() {
    let keys = nexus::Keys::of(&[PEER]);
    let fixture = Fixture::start(open_doors(options(), &keys));
    for (name, result, session) in
        [("nexus", "/data/result", "/data/session"), ("sovereign", "/result/data", "/result/session")]
    {
        let door = DOORS.iter().find(|door| door.name == name).expect("a door");
        let mut transport = (door.transports[0])(&fixture.executor);
        let mut ask = |text: &str, session: &str| {
            let arguments = json!({ "steps": [["keep", text]] });
            let message = if name == "nexus" {
                let parameters = json!({ "tool": "take_steps", "arguments": arguments, "session": session });
                PEER.command("tool.execute", &parameters)
            } else {
                let mut message = (door.call)("take_steps", &arguments);
                message["params"]["session"] = json!(session);
                message
            };
            door.exchange(&mut transport, message.to_string().as_bytes())
        };
        let first = ask("a", "new");
        let handle = first.pointer(session).map(|session| session["handle"].clone()).unwrap_or_default();
        let second = ask("b", handle.as_str().unwrap_or_else(|| panic!("{name}: {first}")));
        assert_eq!(second.pointer(result), Some(&json!({ "steps": [["a", "b"]] })), "{name}: {second}");
    }
}
