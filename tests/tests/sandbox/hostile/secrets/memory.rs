//! The memory of guests, and all that is written of their runs: the value is in none of it.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use harness::{Collector, call_in_background, id_of, print_skipped};

/// A text that the guest has in its memory.
const MARKER: &str = "m4rk3r-of-the-guest-1f0c77e2";

#[test]
fn a_canary_is_found_in_each_form_and_wherever_it_begins() {
    let canary = Canary::new(CANARY);
    let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    for before in ["", "a", "ab", "abc"] {
        let whole = format!("{before}{CANARY} and more");
        let reversed = whole.chars().rev().collect::<String>();
        let coded = [
            STANDARD.encode(&whole),
            URL_SAFE.encode(&whole),
            percent(&whole),
            percent(&whole).to_uppercase(),
        ];
        for text in [&whole, &reversed].into_iter().chain(&coded) {
            assert!(canary.find_in(text.as_bytes()).is_some(), "{text}");
            assert_eq!(canary.find_in(&text.as_bytes()[..text.len() / 3]), None, "{text}");
        }
    }
}

#[test]
fn a_guest_that_waits_has_no_value_in_its_memory_and_nothing_writes_one() {
    let collector = Collector::start();
    let api = Api::answering(OK);
    let silent = Peer::silent();
    let options = api
        .options(&[&silent], &json!({ "placeholder_env": "KEY" }))
        .environment("RUST_LOG", "trace")
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())
        .environment("OTEL_BSP_SCHEDULE_DELAY", "50");
    let served = Served::start(options, [tool()]);
    let waits = json!({
        "authority": format!("other.test:{}", silent.port()),
        "fields": [["x-marker", MARKER]],
        "patience_ms": 60_000,
    });
    let requests = json!({ "requests": [get(&api.at("web.test"), "/v1/1"), waits] });
    let call = approved(intent(TOOL, requests), &with_network());
    let running = call_in_background(&served.executor, "a2g/execute", &call);
    silent.expect_connections(1);
    assert!(api.take_requests()[0].contains(CANARY), "the value has been used");

    let server = served.executor.id();
    let canary = Canary::new(CANARY);
    let found = canary.find_in_memory_below(server);
    match (found, Canary::new(MARKER).find_in_memory_below(server)) {
        (Some(values), Some(markers)) => {
            assert!(markers.iter().any(|(_, form)| form.is_some()), "the guest was not found: {markers:?}");
            assert!(values.iter().all(|(_, form)| form.is_none()), "{values:?}");
            // The same search finds the value where it is.
            assert!(canary.find_in_memory_of(server).expect("it runs").is_some());
        }
        (None, _) | (_, None) => print_skipped("this user may not read the memory of guests"),
    }
    let cancel = served.executor.rpc("a2g/cancel", &json!({ "intent_id": id_of(&call) }));
    assert_eq!(result(&cancel)["cancelled"], true);
    let answer = running.join().expect("an answer");
    canary.assert_not_in("the answer", answer.to_string().as_bytes());
    let spans = collector.spans_of(&id_of(&call), 1);
    assert!(!spans.is_empty());
    canary.assert_not_in("a trace", &collector.bytes());
    assert!(served.executor.stderr().contains("\"level\":\"DEBUG\""), "details are logged");
}
