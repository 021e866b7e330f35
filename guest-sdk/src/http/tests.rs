//! Requests that the network of a test answers.

use super::*;
use crate::ToolError;
use crate::testing::{Answer, Network};
use serde_json::{Value, json};

/// A network that answers every request with `answer`.
fn network(answer: &Answer) -> Network {
    let answer = answer.clone();
    Network::answering(move |_| Ok(answer.clone()))
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    result.unwrap_err().reason().clone()
}

#[test]
fn a_request_without_a_network_fails_with_a_remedy() {
    let error = ToolError::from(get("https://example.org/a?key=secret").unwrap_err());
    assert_eq!(error.code(), "network_off");
    for word in
        ["`https://example.org/a`", "`network = true`", "`tool.toml`", "`usage.limits.network_allowed`"]
    {
        assert!(error.message().contains(word), "{error}");
    }
    assert!(!error.to_string().contains("secret"), "{error}");

    let network = network(&Answer::new(200));
    assert_eq!(get("https://example.org").unwrap().status(), 200);
    drop(network);
    assert_eq!(reason(get("https://example.org")), Reason::Off);
}

#[test]
fn a_request_contains_its_method_url_headers_and_body() {
    let network = network(&Answer::new(201).header("x-id", "7").body("made"));
    let request = Request::new(Method::PUT, "HTTP://xn--bcher-kva.example:80/%C3%A4?q=%20#part").unwrap();
    let request = request.header("X-One", "1").unwrap().header("x-one", "2").unwrap();
    let response = request.json(&json!({ "a": 1 })).unwrap().send().unwrap();
    assert_eq!((response.status(), response.is_success(), response.header("X-ID")), (201, true, Some("7")));
    assert_eq!((response.text(), response.header("x-none")), (Ok("made"), None));

    let [sent] = network.requests().try_into().unwrap();
    assert_eq!(sent.url(), &"http://xn--bcher-kva.example:80/%C3%A4?q=%20");
    assert_eq!((sent.method(), sent.body_bytes()), (&Method::PUT, &br#"{"a":1}"#[..]));
    let values: Vec<_> = sent.headers().get_all("x-one").iter().collect();
    assert_eq!(values, ["1", "2"]);
    assert_eq!(sent.headers()["content-type"], "application/json");
}

#[test]
fn an_invalid_request_is_refused_before_it_is_sent() {
    let network = network(&Answer::new(200));
    let invalid = |result: Result<Request, Error>, word: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.code(), "invalid_request");
        assert!(error.to_string().contains(word), "{error}");
    };
    invalid(Request::get(""), "not a URL");
    invalid(Request::get("http://"), "not a URL");
    invalid(Request::get("https://example.org/a b"), "not a URL");
    invalid(Request::get("https://example.org\r\n"), r"`https://example.org\r\n` is not a URL");
    invalid(Request::get("https://bücher.example"), "punycode");
    invalid(Request::get("https://example.org/ä"), "percent-encode");
    invalid(Request::get("/relative"), "start with http://");
    invalid(Request::get("example.org:80"), "start with http://");
    invalid(Request::get("ftp://example.org"), "start with http://");
    invalid(Request::get("https://user@example.org"), "authorization");
    invalid(Request::get("https://:secret@example.org"), "authorization");
    let header = |name: &str, value: &str| Request::get("https://example.org").unwrap().header(name, value);
    invalid(header("a b", "1"), "not a valid header name");
    invalid(header("a\r\nb", "1"), r"a\r\nb");
    invalid(header("a", "1\r\nb: 2"), "control characters");
    for name in ["Host", "content-length", "Transfer-Encoding", "connection", "proxy-authorization"] {
        invalid(header(name, "x"), "set by the executor");
    }
    assert!(network.requests().is_empty());
}

#[test]
fn an_oversized_body_is_an_error() {
    let _network = network(&Answer::new(200).body("12345"));
    let read = |max_bytes| Request::get("https://example.org").unwrap().max_bytes(max_bytes).send();
    assert_eq!(read(5).unwrap().into_body(), b"12345");
    let error = read(4).unwrap_err();
    assert_eq!(error.reason(), &Reason::TooLarge { max_bytes: 4 });
    let error = ToolError::from(error);
    assert_eq!(error.code(), "response_too_large");
    assert_eq!(error.detail(), Some(&json!({ "url": "https://example.org/", "max_bytes": 4 })));
    assert!(error.message().contains("raise `max_bytes`"), "{error}");
}

#[test]
fn a_body_is_read_in_parts_up_to_its_maximum() {
    let _network = network(&Answer::new(200).header("x-id", "7").body("12345"));
    let open = |max_bytes| Request::get("https://example.org").unwrap().max_bytes(max_bytes).open().unwrap();
    let mut stream = open(5);
    assert_eq!((stream.head().status(), stream.head().header("x-id")), (200, Some("7")));
    assert_eq!(stream.next_part().unwrap().unwrap(), b"12345");
    assert_eq!(stream.next_part(), Ok(None));
    assert!(stream.finish().unwrap().body().is_empty());
    assert_eq!(reason(open(4).next_part()), Reason::TooLarge { max_bytes: 4 });
}

#[test]
fn a_body_of_the_wrong_type_is_a_named_error() {
    let _network = network(&Answer::new(200).body(vec![b'{', 0xff]));
    let response = get("https://example.org").unwrap();
    assert_eq!(response.text().unwrap_err().reason(), &Reason::NotText { at: 1 });
    assert_eq!(response.json::<Value>().unwrap_err().code(), "invalid_json");
    assert_eq!(response.body(), [b'{', 0xff]);
}

#[test]
fn every_failure_has_a_distinct_code() {
    let words = String::new;
    let reasons = [
        (Reason::Off, "network_off"),
        (Reason::Invalid(words()), "invalid_request"),
        (Reason::Denied(words()), "network_denied"),
        (Reason::Limit(words()), "network_limit"),
        (Reason::Timeout(words()), "network_timeout"),
        (Reason::TooLarge { max_bytes: 1 }, "response_too_large"),
        (Reason::Transport(words()), "network_error"),
        (Reason::NotText { at: 0 }, "not_utf8"),
        (Reason::NotJson(words()), "invalid_json"),
    ];
    for (reason, code) in reasons {
        let fails = reason.clone();
        let _network = Network::answering(move |_| Err(fails.clone()));
        let error = post("https://example.org", "x").unwrap_err();
        assert_eq!((error.reason(), error.code()), (&reason, code));
        assert!(error.to_string().starts_with("`https://example.org/`: "), "{error}");
    }
}
