//! `http_fetch` against a simulated network.

use super::*;
use a2g_guest_sdk::http::{Reason, Request};
use a2g_guest_sdk::testing::{self, Answer, Network};

fn run(arguments: Value) -> Result<Value, ToolError> {
    testing::invoke(http_fetch, arguments).result
}

/// A network where `https://a.example/<status>?<location>` redirects, and any other URL returns
/// `end`.
fn redirecting() -> Network {
    Network::answering(|request| {
        let status = request.url().path().trim_start_matches('/').parse();
        Ok(match (status, request.url().query()) {
            (Ok(status), Some(location)) => Answer::new(status).header("location", location),
            _ => Answer::new(200).body("end"),
        })
    })
}

/// Method, URL and body of each request.
fn seen(network: &Network) -> Vec<(String, String, String)> {
    let text = |request: &Request| {
        let body = String::from_utf8(request.body_bytes().to_vec()).unwrap();
        (request.method().to_string(), request.url().to_string(), body)
    };
    network.requests().iter().map(text).collect()
}

#[test]
fn a_complete_answer_is_returned() {
    let network = Network::answering(|_| {
        let answer = Answer::new(404).header("content-type", "text/plain");
        Ok(answer.header("set-cookie", "a=1").header("set-cookie", "b=2").body("grüße"))
    });
    let expected = json!({
        "url": "https://a.example/x", "status": 404,
        "headers": { "content-type": ["text/plain"], "set-cookie": ["a=1", "b=2"] },
        "headers_left_out": 0, "body": "grüße", "encoding": "utf-8", "size": 7, "redirects": [],
    });
    assert_eq!(run(json!({ "url": "https://a.example/x#part" })), Ok(expected));
    let [request] = network.requests().try_into().unwrap();
    let agent = concat!("a2g-http_fetch/", env!("CARGO_PKG_VERSION"));
    assert_eq!(request.headers()["user-agent"], agent);
    assert_eq!((request.headers().len(), request.method().as_str()), (1, "GET"));
}

#[test]
fn the_request_of_the_caller_is_sent_unchanged() {
    let network = redirecting();
    let send = |body: Value| {
        let mut arguments = json!({
            "url": "https://a.example", "method": "PUT", "headers": { "X-One": "1", "User-Agent": "mine" },
        });
        arguments.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        run(arguments)
    };
    send(json!({ "body": "text" })).unwrap();
    send(json!({ "body": "Yf8=", "body_encoding": "base64" })).unwrap();
    send(json!({})).unwrap();
    let requests = network.requests();
    let bodies: Vec<_> = requests.iter().map(Request::body_bytes).collect();
    assert_eq!(bodies, [&b"text"[..], &[b'a', 0xff], b""]);
    assert_eq!(requests[0].method().as_str(), "PUT");
    assert_eq!((&requests[0].headers()["x-one"], requests[0].headers().len()), (&"1".parse().unwrap(), 2));
    assert_eq!(requests[0].headers()["user-agent"], "mine");
    assert_eq!(send(json!({ "body": "?", "body_encoding": "base64" })).unwrap_err().code(), "invalid_base64");
    assert_eq!(network.requests().len(), 3);
}

#[test]
fn urls_are_parsed_as_in_browsers() {
    let network = redirecting();
    let check = |url: &str, sent: &str| {
        run(json!({ "url": url })).unwrap();
        assert_eq!(network.requests().pop().unwrap().url(), &sent);
    };
    check("HTTPS://Bücher.example:443", "https://xn--bcher-kva.example/");
    check(
        " http://a.example/ä b/../c|^[]{}`?q=<ü>&x='\"",
        "http://a.example/c|^[]%7B%7D%60?q=%3C%C3%BC%3E&x=%27%22",
    );
    check("http:\\\\a.example\\x\n", "http://a.example/x");
    check("http://0x7f.1/", "http://127.0.0.1/");
    check("http://[::1]:8080/", "http://[::1]:8080/");
}

#[test]
fn a_binary_body_is_returned_as_base64() {
    let check = |sent: &'static [u8], body: &str, encoding: &str| {
        let _network = Network::answering(move |_| Ok(Answer::new(200).body(sent)));
        let fetched = run(json!({ "url": "https://a.example" })).unwrap();
        assert_eq!((&fetched["body"], &fetched["encoding"]), (&json!(body), &json!(encoding)));
        assert_eq!(fetched["size"], sent.len());
    };
    check(b"a\t\"b\"\r\n", "a\t\"b\"\r\n", "utf-8");
    check(&[b'a', 0xff], "Yf8=", "base64");
    check(b"a\0", "YQA=", "base64");
    check(b"\x1b[2J", "G1sySg==", "base64");
}

#[test]
fn each_redirect_is_a_separate_request() {
    let network = redirecting();
    let fetched = run(json!({ "url": "http://a.example/302?https://b.example/301?/there?q=1%23x" })).unwrap();
    let redirects = json!([
        { "status": 302, "url": "https://b.example/301?/there?q=1%23x" },
        { "status": 301, "url": "https://b.example/there?q=1%23x" },
    ]);
    assert_eq!((&fetched["redirects"], &fetched["body"]), (&redirects, &json!("end")));
    assert_eq!(fetched["url"], "https://b.example/there?q=1%23x");
    assert_eq!(network.requests().len(), 3);
}

#[test]
fn the_redirect_status_decides_method_and_body() {
    let check = |status: u16, method: &str, next_method: &str, body: &str| {
        let network = redirecting();
        let headers = json!({ "content-type": "text/plain", "x-one": "1" });
        let url = format!("https://a.example/{status}?/next");
        run(json!({ "url": url, "method": method, "body": "sent", "headers": headers })).unwrap();
        let (got, _, sent) = seen(&network).remove(1);
        assert_eq!((got.as_str(), sent.as_str()), (next_method, body), "{status} {method}");
        let next = &network.requests()[1];
        assert_eq!(next.headers().contains_key("content-type"), body == "sent", "{status} {method}");
        assert!(next.headers().contains_key("x-one"), "{status} {method}");
    };
    for status in [301, 302] {
        check(status, "POST", "GET", "");
        check(status, "PUT", "PUT", "sent");
        check(status, "HEAD", "HEAD", "sent");
    }
    check(303, "POST", "GET", "");
    check(303, "DELETE", "GET", "");
    check(303, "HEAD", "HEAD", "sent");
    for status in [307, 308] {
        check(status, "POST", "POST", "sent");
        check(status, "DELETE", "DELETE", "sent");
    }
}

#[test]
fn credentials_stay_with_their_origin() {
    let check = |location: &str, kept: bool| {
        let network = redirecting();
        let headers = json!({ "Authorization": "Bearer x", "COOKIE": "a=1", "accept": "*/*" });
        run(json!({ "url": format!("http://a.example/307?{location}"), "headers": headers })).unwrap();
        let last = network.requests().pop().unwrap();
        assert_eq!(last.headers().contains_key("authorization"), kept, "{location}");
        assert_eq!(last.headers().contains_key("cookie"), kept, "{location}");
        assert!(last.headers().contains_key("accept"), "{location}");
        assert_eq!(network.requests()[0].headers()["authorization"], "Bearer x");
    };
    check("/next", true);
    check("http://A.example:80/next", true);
    check("http://b.example/", false);
    check("http://sub.a.example/", false);
    check("http://a.example:8080/", false);
    check("https://a.example/", false);
    // Dropped headers stay dropped.
    check("http://b.example/307?http://a.example/", false);
}

#[test]
fn insecure_and_non_http_redirects_are_refused() {
    let refused = |url: &str, word: &str| {
        let network = redirecting();
        let error = run(json!({ "url": url })).unwrap_err();
        assert_eq!(error.code(), "redirect_refused", "{error}");
        assert!(error.message().contains(word), "{error}");
        assert_eq!(error.detail().unwrap()["url"], url);
        assert_eq!(network.requests().len(), 1);
    };
    refused("https://a.example/301?http://a.example/", "not encrypted");
    refused("http://a.example/302?file:///etc/passwd", "not HTTP");
    refused("http://a.example/307?data:text/plain,x", "not HTTP");
    refused("http://a.example/308?http://", "no URL");

    let network = redirecting();
    let error = run(json!({ "url": "http://a.example/301?http://user:secret@b.example/" })).unwrap_err();
    assert_eq!((error.code(), network.requests().len()), ("invalid_request", 1));
}

#[test]
fn the_number_of_redirects_is_limited() {
    let network = Network::answering(|_| Ok(Answer::new(302).header("location", "/again")));
    let fetch =
        |max_redirects: u64| run(json!({ "url": "http://a.example", "max_redirects": max_redirects }));
    let error = fetch(3).unwrap_err();
    assert_eq!(error.code(), "too_many_redirects");
    assert_eq!(error.detail().unwrap()["redirects"].as_array().unwrap().len(), 3);
    assert_eq!(network.requests().len(), 4);
    let redirect = fetch(0).unwrap();
    assert_eq!((&redirect["status"], &redirect["headers"]["location"]), (&json!(302), &json!(["/again"])));
    assert_eq!(network.requests().len(), 5);
}

#[test]
fn an_incomplete_redirect_is_returned_as_the_answer() {
    let _network = Network::answering(|request| {
        Ok(match request.url().path() {
            "/no-location" => Answer::new(302),
            _ => Answer::new(300).header("location", "/x"),
        })
    });
    let status = |url: &str| run(json!({ "url": url })).unwrap()["status"].clone();
    assert_eq!(
        (status("http://a.example/no-location"), status("http://a.example/")),
        (302.into(), 300.into())
    );
}

#[test]
fn returned_headers_are_bounded_and_omitted_ones_counted() {
    let large = "x".repeat(MAX_HEADER_BYTES / 3);
    let _network = Network::answering(move |_| {
        let answer = (0..4).fold(Answer::new(200), |answer, _| answer.header("x-large", &large));
        Ok(answer.header("x-small", "1"))
    });
    let fetched = run(json!({ "url": "http://a.example" })).unwrap();
    assert_eq!(fetched["headers"]["x-large"].as_array().unwrap().len(), 2);
    assert_eq!((&fetched["headers"]["x-small"][0], &fetched["headers_left_out"]), (&json!("1"), &json!(2)));
}

#[test]
fn failures_are_named() {
    let url = "https://a.example/";
    assert_eq!(run(json!({ "url": url })).unwrap_err().code(), "network_off");
    let reasons = [
        (Reason::Denied("private".to_owned()), "network_denied"),
        (Reason::Timeout("late".to_owned()), "network_timeout"),
        (Reason::Transport("broken".to_owned()), "network_error"),
    ];
    for (reason, code) in reasons {
        let _network = Network::answering(move |_| Err(reason.clone()));
        let error = run(json!({ "url": url })).unwrap_err();
        assert_eq!((error.code(), &error.detail().unwrap()["url"]), (code, &json!(url)));
    }
    let network = Network::answering(|_| Ok(Answer::new(200).body("12345")));
    let check = |arguments: Value, code: &str| {
        let mut whole = json!({ "url": url });
        whole.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        assert_eq!(run(whole).unwrap_err().code(), code, "{arguments}");
    };
    check(json!({ "max_bytes": 4 }), "response_too_large");
    assert_eq!(network.requests().len(), 1);
    check(json!({ "url": "a.example" }), "invalid_request");
    check(json!({ "url": "/etc/passwd" }), "invalid_request");
    check(json!({ "url": "file:///etc/passwd" }), "invalid_request");
    check(json!({ "url": "https://user:secret@a.example" }), "invalid_request");
    check(json!({ "headers": { "Host": "b.example" } }), "invalid_request");
    check(json!({ "headers": { "a": "1\r\nb: 2" } }), "invalid_request");
    check(json!({ "method": "CONNECT" }), "invalid_arguments");
    check(json!({ "method": "get" }), "invalid_arguments");
    check(json!({ "max_bytes": 0 }), "invalid_arguments");
    check(json!({ "max_bytes": MAX_MAX_BYTES + 1 }), "invalid_arguments");
    check(json!({ "max_redirects": MAX_MAX_REDIRECTS + 1 }), "invalid_arguments");
    check(json!({ "timeout_seconds": 0 }), "invalid_arguments");
    check(json!({ "extra": 1 }), "invalid_arguments");
    assert_eq!(network.requests().len(), 1);
}

#[test]
fn the_schema_states_the_enforced_bounds() {
    let schema: Value = a2g_guest_sdk::serde_json::from_str(&describe().arguments_schema).unwrap();
    let property = |name: &str, keyword: &str| schema["properties"][name][keyword].clone();
    let bounds = [
        ("max_bytes", 1, MAX_MAX_BYTES, DEFAULT_MAX_BYTES),
        ("max_redirects", 0, MAX_MAX_REDIRECTS, DEFAULT_MAX_REDIRECTS),
        ("timeout_seconds", 1, MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS),
    ];
    for (name, least, most, default) in bounds {
        assert_eq!(
            (property(name, "minimum"), property(name, "maximum")),
            (json!(least), json!(most)),
            "{name}"
        );
        assert_eq!(property(name, "default"), json!(default), "{name}");
    }
    assert_eq!(property("method", "default"), "GET");
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(http_fetch);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
