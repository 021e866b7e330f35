//! Access tokens as values: what the token endpoint is asked, and what is made of its answers.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::set_mode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The secret of the executor at the token endpoint, which occurs nowhere else.
const CLIENT_SECRET: &str = "cl13nt-s3cr3t-9f2b7c61d0aa";

fn json_answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// The source of the secret: the endpoint `/token` of the server, with these keys added.
fn source(api: &Api, more: &Value) -> Value {
    let file = api.folder.path().join("client");
    std::fs::write(&file, format!("{CLIENT_SECRET}\n")).expect("a file");
    set_mode(&file, 0o600);
    let url = format!("https://{}/token", api.at("web.test"));
    let mut oauth = json!({ "token_url": url, "client_id": "a2g", "client_secret_file": file });
    for (key, value) in more.as_object().expect("a table") {
        oauth[key] = value.clone();
    }
    json!({ "file": null, "oauth": oauth })
}

/// The requests for tokens, and the others.
fn take_split(api: &Api) -> (Vec<String>, Vec<String>) {
    api.take_requests().into_iter().partition(|request| request.starts_with("POST /token "))
}

#[test]
fn a_token_is_asked_for_once_and_again_after_a_401_or_near_its_end() {
    let asked = AtomicUsize::new(0);
    let api = Api::with(move |request| match request.split(' ').nth(1) {
        Some("/token") => {
            let nth = asked.fetch_add(1, Ordering::SeqCst);
            // The second one is used for a second: it is not used for 5 s before its end.
            let seconds = if nth == 1 { 6 } else { 3600 };
            let token = format!("{CANARY}-{nth}");
            let members = json!({ "access_token": token, "token_type": "bearer", "expires_in": seconds });
            json_answer("200 OK", &members.to_string())
        }
        Some("/v1/401") => json_answer("401 Unauthorized", "{}"),
        _any => OK.to_owned(),
    });
    let bench = api.bench(&source(&api, &json!({ "scope": "read write" })));
    let web = api.at("web.test");
    let both = json!({ "requests": [get(&web, "/v1/1"), get(&web, "/v1/2")], "at_once": true });
    send(&bench, &[]).arguments(both).send().success();
    let (tokens, others) = take_split(&api);
    assert_eq!((tokens.len(), others.len()), (1, 2), "{tokens:?} {others:?}");
    let credentials = STANDARD.encode(format!("a2g:{CLIENT_SECRET}"));
    assert!(tokens[0].contains(&format!("\r\nauthorization: Basic {credentials}\r\n")), "{tokens:?}");
    assert!(tokens[0].ends_with("\r\n\r\ngrant_type=client_credentials&scope=read+write"), "{tokens:?}");
    let has_token = |request: &String, nth: usize| {
        request.contains(&format!("\r\nauthorization: Bearer {CANARY}-{nth}\r\n"))
    };
    assert!(others.iter().all(|request| has_token(request, 0)), "{others:?}");
    // What the guest asks for last, how many tokens are asked for then, and which one the request has.
    for (path, asked, nth) in [("/v1/401", 0, 0), ("/v1/1", 1, 1), ("/v1/1", 1, 2), ("/v1/1", 0, 2)] {
        wait_for_a_change();
        send(&bench, &[get(&web, path)]).send().success();
        let (tokens, others) = take_split(&api);
        assert_eq!((tokens.len(), others.len()), (asked, 1), "{path} {nth}: {tokens:?}");
        assert!(has_token(&others[0], nth), "{path} {nth}: {others:?}");
    }
    Canary::new(CLIENT_SECRET).assert_left_nowhere_by(&bench.executor);
}

#[test]
fn an_answer_without_a_token_is_described_by_its_status_and_known_code() {
    let answer = Arc::<Mutex<String>>::default();
    let given = Arc::clone(&answer);
    let api = Api::with(move |_| given.lock().unwrap().clone());
    let bench = api.bench(&source(&api, &json!({ "auth": "body" })));
    let token = |token: &str, kind: &str| {
        json_answer("200 OK", &json!({ "access_token": token, "token_type": kind }).to_string())
    };
    let redirect = format!("HTTP/1.1 302 Found\r\nlocation: /{CANARY}\r\ncontent-length: 0\r\n\r\n");
    for (given, reason) in [
        (
            json_answer(
                "401 Unauthorized",
                &json!({ "error": "invalid_client", "error_description": CANARY }).to_string(),
            ),
            "answered 401: `invalid_client`",
        ),
        (json_answer("400 Bad Request", &json!({ "error": CANARY }).to_string()), "answered 400"),
        (redirect, "answered 302"),
        (json_answer("200 OK", CANARY), "answered without `access_token`"),
        (token(CANARY, "mac"), "another type than `Bearer`"),
        (token("short", "Bearer"), "has 5 bytes"),
        (json_answer("200 OK", &CANARY.repeat(2000)), "more than 64 KiB"),
        (format!("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{CANARY}"), "could not be asked"),
    ] {
        *answer.lock().unwrap() = given;
        let output = bench.executor.home().run(&["secret", "check"]);
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason) && said.starts_with("key: "), "{reason}: {said}");
        Canary::new(CANARY).assert_not_in("the message", said.as_bytes());
        let requests = api.take_requests();
        assert_eq!(requests.len(), 1, "a redirect is not followed: {requests:?}");
        let form = format!("grant_type=client_credentials&client_id=a2g&client_secret={CLIENT_SECRET}");
        assert!(requests[0].ends_with(&form) && !requests[0].contains("authorization"), "{requests:?}");
    }
    let report = send(&bench, &[get(&api.at("web.test"), "/v1/1")]).send().success();
    assert_eq!(report.reasons(), ["secret_unavailable"], "{report:?}");
    Canary::new(CLIENT_SECRET).assert_left_nowhere_by(&bench.executor);
}
