//! The form that sends an intent, and the page of standing policies.

use super::sign_in;
use harness::callers::{List, agent, rpc};
use harness::console::{Client, field};
use harness::methods::ESCALATES;
use harness::*;
use serde_json::{Value, json};

/// The fields of the form for `write_file`, with the token and the intent of the page.
fn form<'a>(client: &'a Client, intent: &'a str, fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let own = [("form_token", client.token.as_str()), ("intent", intent), ("agent", AGENT)];
    let kept = own.into_iter().filter(|(name, _)| fields.iter().all(|(field, _)| field != name));
    kept.chain(fields.iter().copied()).collect()
}

const WRITE: &str = "/console/tools/write_file/send";
const PATH: (&str, &str) = ("argument.path", "/workspace/sent");
const CONTENT: (&str, &str) = ("argument.content", "two\r\nlines");

#[test]
fn a_person_sends_an_intent_from_the_page_of_its_tool() {
    let executor = Executor::start(Options::new());
    let Some(mut browser) = sign_in(&executor) else { return };
    browser.goto("/console/tools/write_file");
    browser.fill("textbox", "path (required)", "/workspace/sent");
    browser.fill("textbox", "content (required)", "two\nlines");
    browser.screenshot("send");
    browser.click("button", "Send the intent");
    browser.wait_for_text("SUCCESS");
    // A browser sends CRLF; the tool gets what the person typed.
    assert_eq!(executor.file("sent").as_deref(), Some("two\nlines"));
    let path = browser.path();
    let ran = path.strip_prefix("/console/runs/").expect("the page of the run").to_owned();
    let listed = executor.home().list_journal(&[]);
    assert_eq!(listed[0]["agent_did"], "did:a2g:agent:1.0:console", "{listed:?}");
    assert_eq!(listed[0]["intent_id"], ran, "{listed:?}");
    // An intent that the governor leaves to a person waits like any other.
    browser.goto("/console/tools/write_file");
    browser.fill("textbox", "path (required)", "/workspace/key");
    browser.fill("textbox", "content (required)", ESCALATES);
    browser.click("button", "Send the intent");
    browser.wait_for_text("WAITS FOR A PERSON");
    // An intent that does not run costs the person nothing that they typed.
    browser.goto("/console/tools/read_file");
    browser.fill("textbox", "path (required)", "/etc/passwd");
    browser.click("button", "Send the intent");
    browser.wait_for_text("The intent was not sent, or did not run");
    let value = browser.evaluate("document.getElementById('argument.path').value");
    assert_eq!(value, "/etc/passwd");
    browser.report().check_is_empty();
}

#[test]
fn a_form_that_is_not_valid_sends_nothing() {
    let executor = Executor::start(Options::new());
    let client = Client::local(&executor);
    let others = |text: &'static str| ("arguments", text);
    let id = intent_id();
    for (expected, fields) in [
        ("has no intent", vec![("intent", "x"), PATH, CONTENT]),
        ("DID", vec![("agent", "nobody"), PATH, CONTENT]),
        ("not valid JSON", vec![PATH, CONTENT, others("{")]),
        ("duplicate", vec![PATH, CONTENT, others(r#"{"a":1,"a":2}"#)]),
        ("have to be a JSON object", vec![PATH, CONTENT, others("[1]")]),
        ("is given twice", vec![PATH, CONTENT, others(r#"{"path":"/workspace/other"}"#)]),
        ("do not match the schema", vec![PATH, CONTENT, others(r#"{"unknown":1}"#)]),
        ("verdict_denied", vec![("argument.path", "/etc/passwd"), CONTENT]),
    ] {
        let (status, page) = client.post(WRITE, &form(&client, &id, &fields), "");
        let is_expected = page.contains(expected) || expected == "verdict_denied";
        assert!(
            status == 200 && is_expected && page.contains("The intent was not sent, or did not run"),
            "{expected}: {page}"
        );
        // The page still has the text that was typed.
        assert!(page.contains("lines</textarea>"), "{page}");
        executor.assert_workspace_is_empty(expected);
    }
    let foreign = form(&client, &id, &[("form_token", "x"), PATH, CONTENT]);
    assert_eq!(client.post(WRITE, &foreign, "").0, 403);
    let valid = form(&client, &id, &[PATH, CONTENT]);
    assert_eq!(client.post(WRITE, &valid, "\r\nSec-Fetch-Site: cross-site").0, 403);
    assert_eq!(client.post("/console/tools/absent/send", &valid, "").0, 404);
    executor.assert_workspace_is_empty("a foreign form");
    // A form that is sent twice runs once.
    for _ in 0..2 {
        assert_eq!(client.post(WRITE, &valid, "").0, 303);
    }
    eventually("it ran", || executor.file("sent").filter(|text| text == "two\nlines"));
    eventually("it has a receipt", || (executor.home().list_journal(&[]).len() == 1).then_some(()));
}

#[test]
fn a_person_sends_only_for_their_own_agents() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let approver = list.add("anna", &["--role", "approver"]);
    let executor = Executor::start(list.options());
    let [mine, approver] = [&mine, &approver].map(|token| Client::with_token(&executor, token));
    let page = mine.get("/console/tools/write_file").1;
    assert!(page.contains(&format!("value=\"{AGENT}\"")), "the only agent is filled in: {page}");
    let id = field(&page, "intent");
    let (_, page) = mine.post(WRITE, &form(&mine, &id, &[("agent", "did:a:other"), PATH, CONTENT]), "");
    assert!(page.contains("may not send intents in the name of"), "{page}");
    assert!(!approver.get("/console/tools/write_file").1.contains("Send the intent"));
    assert_eq!(approver.post(WRITE, &form(&approver, &id, &[PATH, CONTENT]), "").0, 403);
    executor.assert_workspace_is_empty("an agent of somebody else");
    assert_eq!(mine.post(WRITE, &form(&mine, &id, &[PATH, CONTENT]), "").0, 303);
    eventually("it ran", || executor.file("sent").filter(|text| text == "two\nlines"));
}

#[test]
fn policies_are_shown_to_those_who_may_read_them() {
    const OTHER: &str = "did:aeon:other:1.0:x";
    let list = List::new();
    let tokens = [agent(&list, "mine", AGENT), list.add("gov", &["--role", "governor"])];
    let executor = Executor::start(list.options());
    let mut client = executor.client();
    let mut send = |method: &str, params: Value| {
        let answer = rpc(&mut client, &tokens[1], method, &params);
        assert_eq!(result(&answer)["accepted"], true, "{answer}");
    };
    let policy = |agent: &str, version: &str| {
        let tools =
            json!({ "read_file": { "allowed": true, "constraints": { "paths": ["/workspace/**"] } } });
        json!({ "agent_did": agent, "version": version, "capabilities": { "tools": tools } })
    };
    send("g2a/policy", policy(AGENT, "v-mine"));
    send("g2a/policy", policy(OTHER, "v-other"));
    let [mine, governor] = [&tokens[0], &tokens[1]].map(|token| Client::with_token(&executor, token));
    let page = governor.get("/console/policies").1;
    // The policy by which the governor in the program decides is that for every agent.
    let every = "Every agent without a policy of its own (<code>*</code>)</h3><p>From this program";
    for text in ["v-mine", "v-other", "Set by gov", "read_file", "/workspace/**", every, "run_python"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let page = mine.get("/console/policies").1;
    assert!(page.contains("v-mine") && !page.contains(OTHER) && !page.contains("v-other"), "{page}");
    assert!(!page.contains("<code>*</code>"), "{page}");
    send("g2a/revoke", json!({ "agent_did": AGENT }));
    let page = mine.get("/console/policies").1;
    assert!(page.contains("Revoked by gov") && !page.contains("v-mine"), "{page}");
}
