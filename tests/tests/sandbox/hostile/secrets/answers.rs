//! Answers that give a value back: in every coding, in each part of an answer, at another URL or host, in a later turn,
//! split, compressed or in ranges; and guests that say it.
//!
//! A result is searched, too, so the guest tells what it has received in the opposite order: a coding of its own, in which
//! nothing is found.

use super::{Api, CANARY, OK, TOOL, answer, assert_nowhere, get, send, tool};
use crate::hostile::bench::{Bench, Report};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use harness::{AGENT, result};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// What the guest gets in place of a value.
const MARK: &str = "[secret key]";
/// A value of which each coding differs.
const CODED: &str = r#"c4n4ry "q"/s+t&u<v>é'0f9d3a7b"#;
/// The value in codings of servers.
const CODINGS: [&str; 15] = [
    CODED,
    r#"C4N4RY "Q"/S+T&U<V>é'0F9D3A7B"#,
    // URLs: Python, Go and forms, JavaScript.
    "c4n4ry%20%22q%22/s%2Bt%26u%3Cv%3E%C3%A9%270f9d3a7b",
    "c4n4ry+%22q%22%2Fs%2Bt%26u%3Cv%3E%C3%A9%270f9d3a7b",
    "c4n4ry%20%22q%22%2fs%2bt%26u%3cv%3e%c3%a9'0f9d3a7b",
    // JSON: Rust, Python, PHP, Go, .NET.
    r#"c4n4ry \"q\"/s+t&u<v>é'0f9d3a7b"#,
    r#"c4n4ry \"q\"/s+t&u<v>\u00e9'0f9d3a7b"#,
    r#"c4n4ry \"q\"\/s+t&u<v>\u00e9'0f9d3a7b"#,
    r#"c4n4ry \"q\"/s+t\u0026u\u003cv\u003eé'0f9d3a7b"#,
    r"c4n4ry \u0022q\u0022/s\u002Bt\u0026u\u003Cv\u003E\u00E9\u00270f9d3a7b",
    // HTML.
    "c4n4ry &quot;q&quot;/s+t&amp;u&lt;v&gt;é&#39;0f9d3a7b",
    // PHP, `html/template`, OWASP, .NET.
    "c4n4ry &quot;q&quot;/s+t&amp;u&lt;v&gt;é&#039;0f9d3a7b",
    "c4n4ry &#34;q&#34;/s&#43;t&amp;u&lt;v&gt;é&#39;0f9d3a7b",
    "c4n4ry &quot;q&quot;&#x2F;s+t&amp;u&lt;v&gt;é&#x27;0f9d3a7b",
    "c4n4ry &quot;q&quot;/s&#x2B;t&amp;u&lt;v&gt;&#xE9;&#x27;0f9d3a7b",
];

/// All codings of the value.
fn codings() -> Vec<String> {
    let mut all = CODINGS.map(str::to_owned).to_vec();
    all.push(STANDARD.encode(CODED));
    all.push(URL_SAFE_NO_PAD.encode(CODED));
    all.push(CODED.bytes().map(|byte| format!("{byte:02x}")).collect());
    all
}

/// Writes an answer with this head and body, and the length of the body.
fn write_answer(stream: &mut dyn Write, head: &str, body: &str) -> io::Result<()> {
    write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// The last segment of the path of a request.
fn last_segment(request: &str) -> &str {
    let path = request.split(' ').nth(1).unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default()
}

fn reversed(text: &str) -> String {
    text.chars().rev().collect()
}

/// A request whose answer the guest tells in the opposite order.
fn ask(authority: &str, path: &str) -> Value {
    let mut request = get(authority, path);
    request["reversed"] = json!(true);
    request
}

/// The number of replacements that a report counts.
fn count(report: &Report) -> &Value {
    &report.0["usage"]["secrets"][0]["redacted"]
}

#[test]
fn a_value_is_replaced_in_each_coding() {
    let api = Api::serving(|request, stream| {
        let number = last_segment(request).parse::<usize>().expect("a number");
        write_answer(stream, "200 OK", &format!("({})", codings()[number]))
    });
    api.write(CODED, 0o600);
    let web = api.at("web.test");
    let bench = api.bench(&json!({}));
    let all = codings();
    let requests = (0..all.len()).map(|number| ask(&web, &format!("/v1/{number}"))).collect::<Vec<_>>();
    let report = send(&bench, &requests).send().success();
    for (number, coded) in all.iter().enumerate() {
        let told = answer(&report, number);
        assert_eq!(
            (&told["body"], &told["read"]),
            (&json!(reversed("([secret key])")), &json!(14)),
            "{coded}"
        );
    }
    assert_eq!(*count(&report), json!(all.len()), "{report:?}");
}

#[test]
fn a_value_is_found_inside_of_what_was_encoded_with_it() {
    let api = Api::serving(|_, stream| {
        let body = STANDARD.encode(format!(r#"{{"authorization":"Bearer {CANARY}"}}"#));
        write_answer(stream, "200 OK", &body)
    });
    let bench = api.bench(&json!({}));
    let report = send(&bench, &[ask(&api.at("web.test"), "/v1/1")]).send().success();
    let body = reversed(answer(&report, 0)["body"].as_str().expect("a text"));
    let (before, after) = body.split_once(MARK).unwrap_or_else(|| panic!("{report:?}"));
    let is_short = |rest: &str, text: &str| rest.len() <= STANDARD.encode(text).len() + 2;
    assert!(is_short(before, r#"{"authorization":"Bearer "#) && is_short(after, r#""}"#), "{body}");
    assert_eq!(*count(&report), 1, "{report:?}");
    assert_nowhere(&bench, &report);
}

#[test]
fn no_part_of_an_answer_and_no_other_url_or_host_gives_a_value_back() {
    let api = Api::serving(|request, stream| {
        if !request.starts_with("GET /v1/") {
            return write_answer(stream, "200 OK", &format!("<p>{CANARY}</p>"));
        }
        write!(stream, "HTTP/1.1 103 Early Hints\r\nlink: </{CANARY}>\r\n\r\n")?;
        let fields =
            format!("www-authenticate: Bearer {CANARY}\r\nlocation: /?key={CANARY}\r\nx-{CANARY}: 1");
        let body = format!(r#"{{"invalid":"{CANARY}"}}"#);
        write_answer(stream, &format!("401 {CANARY}\r\n{fields}"), &body)
    });
    let bench = api.bench(&json!({}));
    let web = api.at("web.test");
    let requests = [ask(&web, "/v1/1"), ask(&web, "/v2/stored"), ask(&api.at("other.test"), "/stored")];
    let report = send(&bench, &requests).send().success();
    let told = answer(&report, 0);
    assert_eq!(
        (&told["status"], &told["body"]),
        (&json!(401), &json!(reversed(r#"{"invalid":"[secret key]"}"#)))
    );
    for kept in ["Bearer [secret key]", "/?key=[secret key]"] {
        assert!(told["fields"].to_string().contains(&reversed(kept)), "{told}");
    }
    for number in 0..requests.len() {
        let text = answer(&report, number).to_string().to_lowercase();
        assert!(!text.contains(&reversed(CANARY).to_lowercase()), "{text}");
    }
    for number in [1, 2] {
        assert_eq!(answer(&report, number)["body"], reversed("<p>[secret key]</p>"), "{report:?}");
    }
    // Two fields with a value, one with it in its name, and each body.
    assert_eq!(*count(&report), 6, "{report:?}");
    assert_nowhere(&bench, &report);
}

#[test]
fn a_value_that_only_another_run_has_sent_is_replaced() {
    let api = Api::serving(|_, stream| write_answer(stream, "200 OK", &format!("log: {CANARY}")));
    let bench = api.bench(&json!({}));
    let log = [ask(&api.at("web.test"), "/v2/log")];
    for call in [send(&bench, &log), send(&bench, &log).condition("no_secrets")] {
        let report = call.send().success();
        assert_eq!(answer(&report, 0)["body"], reversed(&format!("log: {MARK}")), "{report:?}");
        assert!(!api.take_requests().remove(0).contains(CANARY), "{report:?}");
        assert_nowhere(&bench, &report);
    }
}

#[test]
fn a_value_is_found_however_an_answer_is_split_and_however_long_it_is() {
    const BLOCK: usize = 1 << 20;
    let api = Api::serving(|request, stream| {
        if last_segment(request) == "long" {
            let length = 10 * (BLOCK + CANARY.len());
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
            return (0..10).try_for_each(|_| {
                stream.write_all(&vec![b'c'; BLOCK])?;
                stream.write_all(CANARY.as_bytes())
            });
        }
        write!(stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-key\r\n\r\n")?;
        for byte in format!("<{CANARY}{CANARY}{}", &CANARY[..20]).bytes() {
            write!(stream, "1\r\n{}\r\n", char::from(byte))?;
            stream.flush()?;
        }
        write!(stream, "0\r\nx-key: {CANARY}\r\n\r\n")
    });
    let bench = api.bench(&json!({}));
    let web = api.at("web.test");
    let report = send(&bench, &[ask(&web, "/v1/bytes"), ask(&web, "/v1/long")]).send().success();
    let split = format!("<{MARK}{MARK}{}", &CANARY[..20]);
    assert_eq!(answer(&report, 0)["body"], reversed(&split), "{report:?}");
    assert_eq!(answer(&report, 1)["read"], json!(10 * (BLOCK + MARK.len())), "{report:?}");
    assert_eq!(*count(&report), 12, "{report:?}");
    assert_nowhere(&bench, &report);
}

#[test]
fn an_answer_in_which_no_value_could_be_found_is_refused() {
    let api = Api::serving(|request, stream| match last_segment(request) {
        "gzip" => write_answer(stream, "200 OK\r\ncontent-encoding: gzip", "compressed"),
        "coded" => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked";
            write!(stream, "{head}\r\n\r\na\r\ncompressed\r\n0\r\n\r\n")
        }
        "part" => write_answer(stream, "206 Partial Content\r\ncontent-range: bytes 0-3/40", &CANARY[..4]),
        "head" => {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 40\r\n\r\n")
        }
        "same" => write!(stream, "HTTP/1.1 304 Not Modified\r\ncontent-encoding: gzip\r\n\r\n"),
        _plain => write_answer(stream, "200 OK", "ok"),
    });
    let bench = api.bench(&json!({}));
    let web = api.at("web.test");
    let names = ["gzip", "coded", "part", "head", "same", "plain"];
    let mut requests = names.map(|name| get(&web, &format!("/v1/{name}")));
    requests[3]["method"] = json!("HEAD");
    for request in &mut requests {
        request["fields"] = json!([
            ["Accept-Encoding", "gzip"],
            ["Range", "bytes=0-3"],
            ["if-range", "\"x\""],
            ["request-range", "bytes=0-3"],
        ]);
    }
    let report = send(&bench, &requests).send().success();
    for number in 0..3 {
        let error = answer(&report, number)["error"].as_str().unwrap_or_else(|| panic!("{report:?}"));
        assert!(error.contains("ContentCoding"), "{error}");
    }
    let statuses = [3, 4, 5].map(|number| answer(&report, number)["status"].clone());
    assert_eq!(statuses, [200, 304, 200], "{report:?}");
    let refused = format!("answer of https://{web}");
    assert_eq!(report.denied(), [(&*refused, "secret_answer", 3)], "{report:?}");
    for request in api.take_requests() {
        assert!(request.contains("\r\naccept-encoding: identity\r\n"), "{request}");
        assert!(!request.contains("range: ") && !request.contains("gzip\r\n"), "{request}");
    }
    assert!(count(&report).is_null(), "{report:?}");
}

#[test]
fn later_turns_of_a_session_find_the_values_of_earlier_ones() {
    const NEXT: &str = "another-value-of-the-secret";
    let api = Api::serving(|_, stream| write_answer(stream, "200 OK", &format!("{CANARY} {NEXT}")));
    let session_tool = tool().declare("session", json!(true));
    let bench = Bench::start_tools(api.options(&[], &json!({})), [session_tool]);
    let web = api.at("web.test");
    let mut session = json!("new");
    for (value, path, body, replaced) in [
        (CANARY, "/v1/1", format!("{MARK} {NEXT}"), 1),
        // Without the secret.
        (CANARY, "/v2/1", format!("{MARK} {NEXT}"), 1),
        (NEXT, "/v1/1", format!("{MARK} {MARK}"), 2),
    ] {
        if value == NEXT {
            api.write(value, 0o600);
            std::thread::sleep(Duration::from_millis(1200));
        }
        let call = send(&bench, &[ask(&web, path)]);
        let intent = call.intent();
        let mut parameters = call.parameters();
        parameters["session"] = session;
        let response = bench.executor.rpc("a2g/execute", &parameters);
        bench.books.note(intent, &response);
        let report = Report(result(&response).clone());
        assert_eq!(answer(&report, 0)["body"], reversed(&body), "{report:?}");
        assert_eq!(*count(&report), replaced, "{report:?}");
        session = report.0["session"]["handle"].clone();
    }
    let end = json!({ "agent_did": AGENT, "session": session });
    assert_eq!(result(&bench.executor.rpc("a2g/session/end", &end))["ended"], true);
}

#[test]
fn what_a_guest_says_has_no_value() {
    let api = Api::answering(OK);
    // Its guest makes the value by itself, so that the value is in the memory of processes.
    let bench = Bench::start_tools(api.options(&[], &json!({})), [tool()]);
    let web = api.at("web.test");
    let say = |fail: bool| {
        let (first, rest) = CANARY.split_at(20);
        let call = bench.call(TOOL).grant("network_allowed", true).grant("timeout_seconds", 30);
        call.arguments(json!({ "requests": [get(&web, "/v1/1")], "say": [first, rest], "fail": fail }))
    };
    let report = say(false).send().success();
    assert_eq!(*answer(&report, 1), json!({ MARK: [MARK] }), "{report:?}");
    assert_eq!(report.logs(), [MARK, MARK], "{report:?}");
    let artifact = &report.0["artifacts"][0];
    assert_eq!((&artifact["name"], &artifact["content"]), (&json!(MARK), &json!(STANDARD.encode(MARK))));
    // Its key and its value, two lines, the progress, and the name and the content of the artifact.
    assert_eq!(*count(&report), 7, "{report:?}");
    assert_nowhere(&bench, &report);

    let failed = say(true).send();
    assert!(!format!("{failed:?}").contains(CANARY), "{failed:?}");
    let report = failed.failure(MARK);
    assert_eq!(report.0["tool_error"]["message"], MARK, "{report:?}");
    assert_nowhere(&bench, &report);
}
