//! The client against a simulated network.

use super::*;
use a2g_guest_sdk::http::{Reason, Request};
use a2g_guest_sdk::testing::{self, Answer, Invocation, Network};
use std::cell::Cell;

const URL: &str = "https://api.example/v1/items/{id}";

fn settings(more: &Value) -> Value {
    let mut settings = json!({
        "kind": "openapi", "method": "GET", "url": URL, "retry": true,
        "parameter": [
            { "argument": "id", "name": "id", "in": "path", "style": "simple", "explode": false },
            { "argument": "page", "name": "page", "in": "query", "style": "form", "explode": true },
            { "argument": "trace", "name": "X-Trace", "in": "header", "style": "simple", "explode": false },
        ],
    });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

fn run(settings: Value, arguments: Value) -> Invocation {
    testing::invoke(api_client, json!({ "settings": settings, "arguments": arguments }))
}

fn json_answer(body: &Value) -> Answer {
    Answer::new(200).header("content-type", "application/json; charset=utf-8").body(body.to_string())
}

fn seen(network: &Network) -> Vec<String> {
    let text = |request: &Request| format!("{} {}", request.method(), request.url());
    network.requests().iter().map(text).collect()
}

#[test]
fn arguments_are_in_the_request_and_json_is_the_result() {
    let network = Network::answering(|_| Ok(json_answer(&json!({ "name": "x" }))));
    let found = run(settings(&json!({})), json!({ "id": "a b", "page": 2, "trace": "t" }));
    assert_eq!(found.result, Ok(json!({ "status": 200, "body": { "name": "x" } })));
    let [request] = network.requests().try_into().unwrap();
    assert_eq!(request.url().to_string(), "https://api.example/v1/items/a%20b?page=2");
    assert_eq!(request.headers()["x-trace"], "t");
    assert_eq!((request.body_bytes(), request.headers().get("content-type")), (&b""[..], None));
}

#[test]
fn a_body_has_the_form_of_its_media_type() {
    for (body, value, sent) in [
        (json!({ "media_type": "application/json" }), json!({ "a": [1] }), "{\"a\":[1]}"),
        (json!({ "media_type": "application/merge-patch+json" }), json!("x"), "\"x\""),
        (json!({ "media_type": "text/plain" }), json!("a b"), "a b"),
        (
            json!({ "media_type": "application/x-www-form-urlencoded", "deep": ["expand"] }),
            json!({ "a": "x y", "list": [1, 2], "expand": ["c"], "card": { "no": "4&2", "deep": { "x": true } } }),
            "a=x%20y&list=1&list=2&expand%5B0%5D=c&card%5Bno%5D=4%262&card%5Bdeep%5D%5Bx%5D=true",
        ),
    ] {
        let network = Network::answering(|_| Ok(Answer::new(204)));
        let media_type = body["media_type"].clone();
        let post = settings(&json!({ "method": "POST", "retry": false, "body": body }));
        let found = run(post, json!({ "id": "1", "body": value }));
        assert_eq!(found.result, Ok(json!({ "status": 204 })));
        let [request] = network.requests().try_into().unwrap();
        assert_eq!(request.body_bytes(), sent.as_bytes());
        assert_eq!(request.headers()["content-type"].to_str().unwrap(), media_type);
    }
    let found =
        run(settings(&json!({ "body": { "media_type": "text/plain" } })), json!({ "id": "1", "body": 1 }));
    assert_eq!(found.result.unwrap_err().code(), "invalid_arguments");
}

#[test]
fn every_style_writes_what_openapi_says() {
    let (text, list, object) = (json!("blue"), json!(["blue", "black"]), json!({ "R": 100, "G": 200 }));
    let table = [
        ("path", "simple", false, ["/blue", "/blue,black", "/R,100,G,200"]),
        ("path", "simple", true, ["/blue", "/blue,black", "/R=100,G=200"]),
        ("path", "label", false, ["/.blue", "/.blue,black", "/.R,100,G,200"]),
        ("path", "label", true, ["/.blue", "/.blue.black", "/.R=100.G=200"]),
        ("path", "matrix", false, ["/;color=blue", "/;color=blue,black", "/;color=R,100,G,200"]),
        ("path", "matrix", true, ["/;color=blue", "/;color=blue;color=black", "/;R=100;G=200"]),
        ("query", "form", false, ["?color=blue", "?color=blue,black", "?color=R,100,G,200"]),
        ("query", "form", true, ["?color=blue", "?color=blue&color=black", "?R=100&G=200"]),
        (
            "query",
            "spaceDelimited",
            false,
            ["?color=blue", "?color=blue%20black", "?color=R%20100%20G%20200"],
        ),
        ("query", "pipeDelimited", false, ["?color=blue", "?color=blue%7Cblack", "?color=R%7C100%7CG%7C200"]),
        (
            "query",
            "deepObject",
            true,
            ["?color=blue", "?color%5B0%5D=blue&color%5B1%5D=black", "?color%5BR%5D=100&color%5BG%5D=200"],
        ),
        (
            "query",
            "json",
            false,
            [
                "?color=%22blue%22",
                "?color=%5B%22blue%22%2C%22black%22%5D",
                "?color=%7B%22R%22%3A100%2C%22G%22%3A200%7D",
            ],
        ),
    ];
    for (place, style, explode, expected) in table {
        let url = if place == "path" { "https://a.example/{color}" } else { "https://a.example/" };
        let parameter =
            json!({ "argument": "c", "name": "color", "in": place, "style": style, "explode": explode });
        let settings = json!({ "kind": "openapi", "method": "GET", "url": url, "parameter": [parameter] });
        for (value, expected) in [&text, &list, &object].into_iter().zip(expected) {
            let network = Network::answering(|_| Ok(Answer::new(204)));
            run(settings.clone(), json!({ "c": value })).result.unwrap();
            let expected = expected.trim_start_matches('/');
            assert_eq!(seen(&network), [format!("GET https://a.example/{expected}")], "{style} {explode}");
        }
    }
}

#[test]
fn a_path_parameter_is_one_segment() {
    let _network = Network::answering(|request| Ok(json_answer(&json!(request.url().path()))));
    for (value, path) in [
        (json!("ü&=;,:@$+"), "/v1/items/%C3%BC%26%3D%3B%2C%3A%40%24%2B"),
        (json!("a.b"), "/v1/items/a.b"),
        (json!("100%"), "/v1/items/100%25"),
        (json!("50%x"), "/v1/items/50%25x"),
        (json!({ "{id}": "{id}" }), "/v1/items/%7Bid%7D,%7Bid%7D"),
        (json!(7), "/v1/items/7"),
    ] {
        let found = run(settings(&json!({})), json!({ "id": value }));
        assert_eq!(found.result, Ok(json!({ "status": 200, "body": path })));
    }
    for value in
        ["", ".", "..", " ", ". .", "a/b", "../x", "a\\b", "a?b", "a#b", "a\nb", "%2e%2E", "a%2Fb", "x%41"]
    {
        let error = run(settings(&json!({})), json!({ "id": value })).result.unwrap_err();
        assert_eq!(error.code(), "invalid_arguments", "{value}");
        assert!(error.message().starts_with("`id` "), "{error}");
    }
}

#[test]
fn arguments_lead_to_no_other_operation() {
    let others = settings(&json!({ "others": ["/items/Export", "/items/*:cancel", "/*/all"] }));
    for value in ["export", "EXPORT", " export ", "export;v=1", "5:cancel", "5:CANCEL", "all"] {
        let network = Network::answering(|_| Ok(Answer::new(204)));
        let error = run(others.clone(), json!({ "id": value })).result.unwrap_err();
        assert_eq!((error.code(), seen(&network).len()), ("invalid_arguments", 0), "{value}");
        assert!(error.message().contains("another operation"), "{error}");
    }
    for value in ["exports", "5:cancelled", "cancel", "every"] {
        let _network = Network::answering(|_| Ok(Answer::new(204)));
        let found = run(others.clone(), json!({ "id": value }));
        assert_eq!(found.result, Ok(json!({ "status": 204 })), "{value}");
    }
}

#[test]
fn anything_but_short_json_is_an_artifact() {
    let big = format!("[{}1]", "1,".repeat(300 << 10));
    for (kind, body, media_type) in [
        ("text/csv; header=present", "a,b".to_owned(), "text/csv"),
        ("not a type", "a,b".to_owned(), "application/octet-stream"),
        ("application/json", big, "application/json"),
    ] {
        let bytes = body.len();
        let _network =
            Network::answering(move |_| Ok(Answer::new(200).header("content-type", kind).body(body.clone())));
        let found =
            run(settings(&json!({ "url": "https://a.example/x/re%20port.csv" })), json!({ "id": "1" }));
        let artifact = json!({ "name": "re_20port.csv", "media_type": media_type, "bytes": bytes });
        assert_eq!(found.result, Ok(json!({ "status": 200, "artifact": artifact })));
        assert_eq!(found.record.artifacts.len(), 1);
    }
}

#[test]
fn a_failure_has_the_status_and_the_beginning_of_the_body() {
    let long = "é".repeat(4 << 10);
    for (status, kind, body, expected) in [
        (404, "application/json", "{\"a\":1}", json!({ "a": 1 })),
        (500, "text/plain", "oops", json!("oops")),
        (400, "text/plain", long.as_str(), json!("é".repeat(2 << 10))),
    ] {
        let body = body.to_owned();
        let _network = Network::answering(move |_| {
            Ok(Answer::new(status).header("content-type", kind).body(body.clone()))
        });
        let error = run(settings(&json!({})), json!({ "id": "1" })).result.unwrap_err();
        assert_eq!(error.code(), format!("http_{status}"));
        assert_eq!(error.detail(), Some(&json!({ "status": status, "body": expected })));
    }
    let network = Network::answering(|_| Ok(Answer::new(302).header("location", "https://evil.example/")));
    let error = run(settings(&json!({})), json!({ "id": "1" })).result.unwrap_err();
    assert_eq!((error.code(), seen(&network).len()), ("http_302", 1));
    assert!(error.message().contains("not followed"), "{error}");
}

#[test]
fn only_an_idempotent_request_is_sent_again() {
    let failing = |failures: usize, answer: fn() -> Result<Answer, Reason>| {
        let count = Cell::new(0);
        Network::answering(move |_| {
            count.set(count.get() + 1);
            if count.get() <= failures { answer() } else { Ok(json_answer(&json!(1))) }
        })
    };
    let broken = || Err(Reason::Transport("it broke".to_owned()));
    let busy = || Ok(Answer::new(503).header("retry-after", "0"));
    let patient = || Ok(Answer::new(429).header("retry-after", "3600"));
    let silent = || Ok(Answer::new(503));
    let denied = || Err(Reason::Denied("no".to_owned()));
    type Fails = fn() -> Result<Answer, Reason>;
    let cases: [(Fails, usize, bool, usize, Option<&str>); 8] = [
        (broken, 1, true, 2, None),
        (busy, 2, true, 3, None),
        (busy, 3, true, 3, Some("http_503")),
        (busy, 1, false, 1, Some("http_503")),
        (broken, 1, false, 1, Some("network_error")),
        (patient, 1, true, 1, Some("http_429")),
        (silent, 1, true, 1, Some("http_503")),
        (denied, 1, true, 1, Some("network_denied")),
    ];
    for (answer, failures, retry, sent, code) in cases {
        let network = failing(failures, answer);
        let found = run(settings(&json!({ "retry": retry })), json!({ "id": "1" })).result;
        assert_eq!(found.err().map(|error| error.code().to_owned()).as_deref(), code);
        assert_eq!(seen(&network).len(), sent);
    }
}

/// Three pages, which name the next one so.
fn pages(next: fn(u64, Answer, &mut Value) -> Answer) -> Network {
    Network::answering(move |request| {
        let query = request.url().query().unwrap_or_default();
        let page = query.rsplit_once("page=").and_then(|(_, number)| number.parse().ok()).unwrap_or(1_u64);
        let mut body = json!({ "items": [page], "at": page });
        let answer = if page < 3 { next(page + 1, Answer::new(200), &mut body) } else { Answer::new(200) };
        Ok(answer.header("content-type", "application/json").body(body.to_string()))
    })
}

#[test]
fn pages_are_joined_up_to_the_number_that_is_asked_for() {
    let link = |page: u64, answer: Answer, _: &mut Value| {
        answer.header("link", &format!("</v1/items/1>; rel=\"prev first\", <?page={page}>; rel=\"next\""))
    };
    let url = |page: u64, answer: Answer, body: &mut Value| {
        body["next"] = json!(format!("https://api.example/v1/items/1?page={page}"));
        answer
    };
    let cursor = |page: u64, answer: Answer, body: &mut Value| {
        body["next"] = json!(page);
        answer
    };
    type Next = fn(u64, Answer, &mut Value) -> Answer;
    let cases: [(Next, Value); 3] = [
        (link, json!({})),
        (url, json!({ "member": "next" })),
        (cursor, json!({ "member": "next", "argument": "page" })),
    ];
    for (next, pagination) in cases {
        let settings = settings(&json!({ "pagination": pagination }));
        let network = pages(next);
        let found = run(settings.clone(), json!({ "id": "1" })).result.unwrap();
        assert_eq!((&found["pages"], &found["has_more"], seen(&network).len()), (&json!(1), &json!(true), 1));
        let found = run(settings.clone(), json!({ "id": "1", "max_pages": 2 })).result.unwrap();
        assert_eq!((&found["body"]["items"], &found["body"]["at"]), (&json!([1, 2]), &json!(2)));
        let found = run(settings, json!({ "id": "1", "max_pages": 9 })).result.unwrap();
        assert_eq!(found["body"]["items"], json!([1, 2, 3]));
        assert_eq!((&found["pages"], &found["has_more"]), (&json!(3), &json!(false)));
    }
}

#[test]
fn a_link_to_another_operation_is_no_page() {
    for link in [
        "https://evil.example/v1/items/1?page=2",
        "http://api.example/v1/items/1?page=2",
        "https://api.example/v1/items/2?page=2",
        "https://api.example@evil.example/v1/items/1?page=2",
        "//evil.example/v1/items/1?page=2",
        "/v2/items/1?page=2",
        "page=2",
    ] {
        let network = Network::answering(move |_| {
            Ok(json_answer(&json!([1])).header("link", &format!("<{link}>; rel=next")))
        });
        let found = run(settings(&json!({ "pagination": {} })), json!({ "id": "1", "max_pages": 5 }));
        let expected = json!({ "status": 200, "body": [1], "pages": 1, "has_more": false });
        assert_eq!((found.result, seen(&network).len()), (Ok(expected), 1), "{link}");
    }
}

#[test]
fn settings_of_another_form_are_refused() {
    for (change, words) in [
        (json!({ "kind": "soap" }), "soap"),
        (json!({ "methods": "GET" }), "methods"),
        (json!({ "method": "" }), "method"),
    ] {
        let error = run(settings(&change), json!({ "id": "1" })).result.unwrap_err();
        assert_eq!(error.code(), "invalid_settings");
        assert!(error.message().contains(words), "{error}");
    }
}
