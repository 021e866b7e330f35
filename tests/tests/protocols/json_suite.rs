//! JSONTestSuite at every transport: what is no JSON is a parse error, and what is JSON is none.

use harness::*;
use serde_json::{Value, json};

/// JSON, but with equal keys, which this project refuses.
const DUPLICATES: [&str; 2] = ["y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"];

fn suite() -> Option<Vec<(String, Vec<u8>)>> {
    let folder = vectors()?.join("json-test-suite");
    let mut suite: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| name.ends_with(".json"))
        .collect();
    suite.sort();
    assert!(suite.len() >= 300, "only {} documents", suite.len());
    Some(suite)
}

/// Checks one answer by the first letter of the document's name.
fn check(name: &str, answer: &Value) {
    let answers = answer.as_array().map_or(std::slice::from_ref(answer), Vec::as_slice);
    let codes: Vec<&Value> = answers.iter().map(|answer| &answer["error"]["code"]).collect();
    assert!(codes.iter().all(|code| code.is_i64()), "{name}: none of them is a request: {answer}");
    let refused = codes == [&json!(-32700)];
    if DUPLICATES.contains(&name) {
        assert!(refused && answer.to_string().contains("duplicate key"), "{name}: {answer}");
    } else if name.starts_with("n_") {
        assert!(refused, "{name} is no JSON, and was read: {answer}");
    } else if name.starts_with("y_") {
        assert!(!codes.contains(&&json!(-32700)), "{name} is JSON, and was not read: {answer}");
    } else {
        assert!(name.starts_with("i_"), "{name}");
    }
}

#[test]
fn the_json_suite_is_classified_correctly_over_http() {
    let Some(suite) = suite() else { return };
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    for (name, body) in suite {
        check(&name, &client.post(&body).json());
    }
}

#[test]
fn the_json_suite_is_classified_correctly_over_web_socket() {
    let Some(suite) = suite() else { return };
    let executor = Executor::start(Options::new());
    let mut socket = executor.web_socket();
    for (name, body) in suite {
        // A text message is UTF-8 by the rules of WebSocket itself.
        match std::str::from_utf8(&body) {
            Ok(_) => socket.send(&body),
            Err(_) => socket.send_binary(&body),
        }
        let answer = socket.receive().unwrap_or_else(|| panic!("{name} closed the connection"));
        check(&name, &serde_json::from_str(&answer).unwrap());
    }
}

#[test]
fn the_json_suite_is_classified_correctly_over_stdio() {
    let Some(suite) = suite() else { return };
    let mut door = StdioClient::start(Options::new());
    let one_line = |body: &[u8]| !body.contains(&b'\n') && !body.iter().all(u8::is_ascii_whitespace);
    for (name, body) in suite.into_iter().filter(|(_, body)| one_line(body)) {
        door.send(&body);
        check(&name, &door.receive());
    }
}
