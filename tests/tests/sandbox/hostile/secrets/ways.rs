//! Ways in which others gave a secret away, and requests that are made to lead it elsewhere.

use super::*;
use harness::eventually;
use harness::guests::Guest;
use std::collections::BTreeSet;

/// A text of the form of a placeholder.
const PLACEHOLDER: &str = "a2g-placeholder-key-0123456789abcdef0123456789abcdef";

/// A POST of this body over TLS to a request of the secret.
fn post(api: &Api, body: &str) -> Value {
    let mut request = get(&api.at("web.test"), "/v1/1");
    request["method"] = json!("POST");
    request["body"] = json!(body);
    request
}

/// A command that prints its environment, of one variable, as a JSON text.
const PRINTS_ENVIRONMENT: &str = r#"(module
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (drop (call $sizes (i32.const 0) (i32.const 4)))
    (drop (call $environ (i32.const 64) (i32.const 1024)))
    (i32.store8 (i32.const 1023) (i32.const 34))
    ;; In the place of the zero at its end.
    (i32.store8 (i32.add (i32.const 1023) (i32.load (i32.const 4))) (i32.const 34))
    (i32.store (i32.const 16) (i32.const 1023))
    (i32.store (i32.const 20) (i32.add (i32.load (i32.const 4)) (i32.const 1)))
    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24)))))"#;

#[test]
fn a_placeholder_is_another_one_in_each_run_and_blocks_nothing() {
    let api = Api::answering(OK);
    let [web, other] = ["web.test", "other.test"].map(|host| api.at(host));
    let prints = Tool::command("hostile_prints", PRINTS_ENVIRONMENT);
    let bench = start(api.options(&[], &json!({ "placeholder_env": "KEY" })), [tool(), prints]);
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let with_field = |authority: &str, path: &str| {
            let mut request = get(authority, path);
            request["fields"] = json!([["authorization", "Bearer {KEY}"]]);
            request
        };
        let requests = [
            with_field(&web, "/v1/1"),
            with_field(&web, "/v2/1"),
            with_field(&other, "/v1/1"),
            get(&web, "/v1/1?key={KEY}"),
        ];
        let arguments = json!({ "environment": ["KEY"], "requests": requests });
        let report = send(&bench, &[]).arguments(arguments).send().success();
        let statuses = (0..4).map(|nth| answer(&report, nth)["status"].clone()).collect::<Vec<_>>();
        assert_eq!(statuses, [200, 200, 200, 200], "{report:?}");
        assert!(report.denied().is_empty(), "{report:?}");
        let used = &report.0["usage"]["secrets"][0];
        assert_eq!((&used["uses"], &used["placeholders"]), (&json!(2), &json!(3)), "{report:?}");
        let requests = api.take_requests();
        let of_placeholder =
            |request: &String| Some(request.split_once("Bearer ")?.1.split_once("\r\n")?.0.to_owned());
        assert_eq!(of_placeholder(&requests[0]).as_deref(), Some(CANARY));
        let [one, same] = [1, 2].map(|nth| of_placeholder(&requests[nth]).expect("a placeholder"));
        assert_eq!(one, same);
        assert!(
            requests[3].contains(&format!("?key={one} ")) && requests[3].contains(CANARY),
            "{requests:?}"
        );
        seen.insert(one);
        let printed = bench.call("hostile_prints").send().success();
        let variable = printed.0["result"].as_str().expect("a text").to_owned();
        seen.insert(variable.strip_prefix("KEY=").expect("the variable").to_owned());
    }
    assert_eq!(seen.len(), 4, "each run has another one: {seen:?}");
    for text in &seen {
        let digits = text.strip_prefix("a2g-placeholder-key-").expect("the form");
        assert!(digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    }
}

#[test]
fn a_placeholder_is_sent_as_it_is_in_every_coding() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({ "placeholder_env": "KEY" }));
    let percent = PLACEHOLDER.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let json_text = PLACEHOLDER.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<String>();
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, PLACEHOLDER);
    let (begin, end) = PLACEHOLDER.split_at(20);
    let body = format!("{PLACEHOLDER} {percent} {json_text} {base64} {begin} {end}");
    let mut request = post(&api, &body);
    request["path"] = json!(format!("/v1/{PLACEHOLDER}?a={percent}&b={begin}&c={end}"));
    request["fields"] = json!([
        ["authorization", format!("Bearer {PLACEHOLDER}")],
        ["x-raw", PLACEHOLDER],
        ["x-percent", percent],
        ["x-basic", format!("Basic {base64}")],
        ["x-begin", begin],
        ["x-end", end],
        ["content-length", body.len().to_string()],
    ]);
    let report = send(&bench, &[request]).send().success();
    assert_eq!(answer(&report, 0)["status"], 200, "{report:?}");
    let request = api.take_requests().remove(0);
    assert_eq!(request.matches(CANARY).count(), 1, "{request}");
    assert!(request.contains(&format!("\r\nauthorization: Bearer {CANARY}\r\n")), "{request}");
    let target = format!("POST /v1/{PLACEHOLDER}?a={percent}&b={begin}&c={end} HTTP/1.1\r\n");
    assert!(request.starts_with(&target) && request.ends_with(&body), "{request}");
    for field in [
        format!("x-raw: {PLACEHOLDER}"),
        format!("x-percent: {percent}"),
        format!("x-basic: Basic {base64}"),
        format!("x-begin: {begin}"),
        format!("x-end: {end}"),
    ] {
        assert!(request.contains(&format!("\r\n{field}\r\n")), "{field}: {request}");
    }
    let used = &report.0["usage"]["secrets"][0];
    assert_eq!((&used["uses"], &used["placeholders"]), (&json!(1), &json!(1)), "{report:?}");
    assert!(report.denied().is_empty(), "{report:?}");
}

#[test]
fn two_secrets_of_one_request_go_to_their_own_places() {
    const SECOND: &str = "s3c0nd-value-5d2e88c1f0b7";
    let api = Api::answering(OK);
    let file = api.folder.path().join("second");
    std::fs::write(&file, SECOND).expect("a file");
    harness::set_mode(&file, 0o600);
    let changes = json!({
        "name": "second",
        "file": file,
        "place": "header:x-api-key",
        "scheme": null,
        "placeholder_env": "SECOND",
    });
    let secrets = json!([api.secret(&json!({ "placeholder_env": "KEY" })), api.secret(&changes)]);
    let bench = start(api.options(&[], &json!({})).set("secret", secrets), [tool()]);
    let mut request = get(&api.at("web.test"), "/v1/1");
    // Each placeholder is in the place of the other.
    request["fields"] = json!([["authorization", "Bearer {SECOND}"], ["x-api-key", "{KEY}"]]);
    let arguments = json!({ "environment": ["KEY", "SECOND"], "requests": [request] });
    let report = send(&bench, &[]).arguments(arguments).send().success();
    let request = api.take_requests().remove(0);
    assert!(request.contains(&format!("\r\nauthorization: Bearer {CANARY}\r\n")), "{request}");
    assert!(request.contains(&format!("\r\nx-api-key: {SECOND}\r\n")), "{request}");
    assert!(!request.contains("a2g-placeholder"), "{request}");
    for used in report.0["usage"]["secrets"].as_array().expect("a list") {
        assert_eq!((&used["uses"], used.get("placeholders")), (&json!(1), None), "{report:?}");
    }
    Canary::new(SECOND).assert_left_nowhere_by(&bench.executor);
}

#[test]
fn a_redirect_takes_no_value_along() {
    // To the other name of the same server.
    let api = Api::with(|request| {
        let port = request.split_once("host: web.test:").and_then(|(_, rest)| rest.split_once("\r\n"));
        match port {
            Some((port, _)) => format!(
                "HTTP/1.1 307 Elsewhere\r\nlocation: https://other.test:{port}/v1/1\r\ncontent-length: 0\r\n\r\n"
            ),
            None => OK.to_owned(),
        }
    });
    let catalogue = harness::Catalogue::empty().copy("http_fetch").add(tool());
    let changes = json!({ "tools": ["hostile_*", "http_fetch"] });
    let bench = Searched(Bench::start_catalogue(api.options(&[], &changes), catalogue));
    let web = api.at("web.test");
    let report = send(&bench, &[get(&web, "/v1/1")]).send().success();
    let location = format!("https://{}/v1/1", api.at("other.test"));
    let fields = answer(&report, 0)["fields"].to_string();
    assert!(answer(&report, 0)["status"] == 307 && fields.contains(&location), "{report:?}");
    let requests = api.take_requests();
    assert!(requests.len() == 1 && requests[0].contains(CANARY), "{requests:?}");
    // The tool asks there by itself.
    let call = bench.call("http_fetch").grant("network_allowed", true).grant("timeout_seconds", 30);
    let report = call.arguments(json!({ "url": format!("https://{web}/v1/1") })).send().success();
    let requests = api.take_requests();
    assert_eq!(requests.len(), 2, "{report:?}");
    assert!(requests[0].contains(CANARY), "{requests:?}");
    assert!(requests[1].contains("host: other.test:") && !requests[1].contains(CANARY), "{requests:?}");
}

#[test]
fn no_form_of_a_target_leads_the_value_elsewhere() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({}));
    let web = api.at("web.test");
    let with = |key: &str, value: Value| {
        let mut request = get(&web, "/v1/1");
        request[key] = value;
        request
    };
    let unsent = [
        with("path", json!(format!("https://{}/v1/1", api.at("other.test")))),
        with("path", json!(format!("{}/v1/1", api.at("other.test")))),
        with("path", json!("*")),
        with("fields", json!([["host", "other.test"]])),
        with("fields", json!([["Transfer-Encoding", "chunked"]])),
        with("authority", json!(format!("{web}@other.test"))),
        with("authority", json!(format!("other.test@{web}"))),
        with("method", json!("CONNECT")),
        with("scheme", json!("http")),
    ];
    let report = send(&bench, &unsent).send().success();
    for (nth, request) in unsent.iter().enumerate() {
        assert!(answer(&report, nth).get("status").is_none(), "{request}: {report:?}");
    }
    assert_eq!(api.take_requests(), Vec::<String>::new());
    let overriding = json!([
        ["x-forwarded-host", "other.test"],
        ["forwarded", "host=other.test"],
        ["x-original-url", "/v2/1"],
        ["x-http-method-override", "DELETE"],
        ["destination", "/v2/1"],
        ["x-accel-mapping", "/v1/=/v2/1"],
        ["x_sendfile_type", "/v2/1"],
    ]);
    send(&bench, &[with("fields", overriding)]).send().success();
    let request = api.take_requests().remove(0);
    assert!(request.starts_with("GET /v1/1 HTTP/1.1\r\n") && request.contains(CANARY), "{request}");
    assert!(request.contains(&format!("\r\nhost: {web}\r\n")), "{request}");
    for other in ["other.test", "/v2/1", "DELETE"] {
        assert!(!request.contains(other), "{other}: {request}");
    }
}

#[test]
fn nothing_is_smuggled_beside_the_value() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({}));
    let hidden = "GET /v2/smuggled HTTP/1.1\r\nhost: web.test\r\n\r\n";
    let with = |fields: Value| {
        let mut request = post(&api, &format!("xxxxx{hidden}"));
        request["fields"] = fields;
        request
    };
    let mut trailers = post(&api, "chunked");
    trailers["trailers"] = json!([["x-late", "1"], ["authorization", "Bearer guest"]]);
    let split_path = get(&api.at("web.test"), &format!("/v1/1 HTTP/1.1\r\n\r\n{hidden}"));
    let attempts = [
        with(json!([["content-length", "5"]])),
        with(json!([["content-length", "5"], ["content-length", "60"]])),
        with(json!([["content-length", "5, 60"]])),
        with(json!([["content-length", "+5"]])),
        with(json!([["x-split", format!("1\r\n\r\n{hidden}")]])),
        with(json!([["x-split\r\nx-other", "1"]])),
        split_path,
        trailers,
        post(&api, hidden),
    ];
    // A request that is cut off is an error for the guest, and no end of its run.
    let report = send(&bench, &attempts).send().success();
    let ended = eventually("all connections have ended", || {
        let ended = api.ended.lock().unwrap().clone();
        (ended.len() == api.requests.lock().unwrap().len()).then_some(ended)
    });
    assert!(!ended.is_empty(), "{report:?}");
    for (request, rest) in &ended {
        let (head, _) = request.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("POST /v1/1 HTTP/1.1\r\n"), "{request}");
        assert_eq!(head.matches(CANARY).count(), 1, "{request}");
        assert!(!head.contains("x-other") && !head.contains("smuggled"), "{request}");
        match [head.contains("\r\ncontent-length: "), head.contains("\r\ntransfer-encoding: chunked")] {
            [true, false] => assert_eq!(rest, "", "nothing follows the body: {request}"),
            [false, true] => assert_only_chunks(rest),
            other => panic!("{other:?}: {request}"),
        }
    }
}

/// Checks that there is one chunked body, possibly cut off, and nothing after it, no trailer either.
fn assert_only_chunks(text: &str) {
    let mut rest = text;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|error| panic!("{error}: {text}"));
        if size == 0 {
            assert!(["", "\r", "\r\n"].contains(&after), "{text}");
            return;
        }
        rest = after.get(size..).and_then(|next| next.strip_prefix("\r\n")).unwrap_or_default();
    }
}

#[test]
fn a_document_without_an_end_gets_no_value_and_costs_little() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({ "place": "body:/auth/key", "scheme": null }));
    let mut request = post(&api, &format!("{:1024}", "{\"auth\": {\"key\": \""));
    request["fields"] = json!([["content-type", "application/json"]]);
    request["times"] = json!(10 << 10);
    let before = bench.status("VmHWM");
    let report = send(&bench, &[request]).send().success();
    assert_eq!(report.reasons(), ["secret_place"], "{report:?}");
    let grown_mb = (bench.status("VmHWM") - before) >> 10;
    assert!(grown_mb < 40, "{grown_mb} MB");
    assert_eq!(api.take_requests(), Vec::<String>::new());
}

#[test]
fn a_document_of_many_parts_costs_no_more_than_its_bytes() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({ "place": "body:/auth/key", "scheme": null }));
    let mut request = post(&api, &r#"{"":0},"#.repeat(140));
    request["fields"] = json!([["content-type", "application/json"]]);
    request["times"] = json!(1000);
    request["around"] = json!([r#"{"auth":{},"x":["#, "0]}"]);
    let grown_mb = bench.peak_since(|| {
        let report = send(&bench, &[request]).send().success();
        assert_eq!(answer(&report, 0)["status"], 200, "{report:?}");
    });
    assert!(grown_mb < 40, "{grown_mb} MB");
    let request = api.take_requests().remove(0);
    let beginning = format!(r#"{{"auth":{{"key":"{CANARY}"}},"x":[{{"":0}},"#);
    assert!(request.contains(&beginning), "{request:.1000}");
}

#[test]
fn a_document_is_read_only_for_a_free_connection() {
    let api = Api::serving(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok")?;
        // The connection stays open while the guest sends the next request.
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    });
    let changes = json!({ "place": "body:/auth/key", "scheme": null });
    let bench = start(api.options(&[], &changes).set("network.max_connections", 1), [tool()]);
    let mut open = get(&api.at("web.test"), "/v2/1");
    open["read"] = json!(0);
    let report = send(&bench, &[open, post(&api, "{")]).send().success();
    assert_eq!(report.reasons(), ["connections"], "{report:?}");
}

#[test]
fn a_guest_without_secrets_has_no_placeholder() {
    let api = Api::answering(OK);
    let counts = Guest::new(
        "(drop (call $environ_sizes (i32.const 0) (i32.const 4))) (call $note (i32.load (i32.const 0)))",
    );
    let tools = || ["hostile_count", "count"].map(|name| Tool::command_bytes(name, counts.wasm()));
    let bench = start(api.options(&[], &json!({ "placeholder_env": "KEY" })), tools());
    let variables = |call: Call<'_>| call.send().success().notes();
    assert_eq!(variables(bench.call("hostile_count")), [1]);
    assert_eq!(variables(bench.call("hostile_count").condition("no_secrets")), [0]);
    assert_eq!(variables(bench.call("count")), [0]);
}
