//! The tool `http_fetch`, sent where it may not go: each redirect is decided about again, and without a
//! network it says what to change.

use super::bench::{Bench, Call, Report};
use super::peer::{Peer, at, blocking_options, options};
use harness::{Catalogue, Options};
use serde_json::{Value, json};
use std::io::Write as _;

fn fetch<'a>(bench: &'a Bench, arguments: &Value) -> Call<'a> {
    bench
        .call("http_fetch")
        .grant("network_allowed", true)
        .grant("timeout_seconds", 30)
        .arguments(arguments.clone())
}

/// Why the tool failed, which it has to.
fn expect_error(bench: &Bench, arguments: &Value, code: &str) -> Report {
    fetch(bench, arguments).send().failure(&format!("the tool failed with `{code}`: "))
}

/// A server that redirects `/307?http://…` to there with 307, and says what it was asked to all else.
fn redirecting() -> Peer {
    Peer::web(|request, stream| {
        let target = request.split(' ').nth(1).unwrap_or_default();
        let answer = match target.trim_start_matches('/').split_once('?') {
            Some((status, location)) => {
                format!("HTTP/1.1 {status} Elsewhere\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
            }
            None => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{request}", request.len()),
        };
        let _gone = stream.write_all(answer.as_bytes());
    })
}

#[test]
fn http_fetch_without_a_network_fails_with_advice() {
    let web = Peer::page("reached");
    let arguments = json!({ "url": format!("http://{}/?key=secret", at(&web)) });
    let off = |bench: &Bench, call: Call<'_>| {
        let report = call.send().failure("the tool failed with `network_off`: ");
        let sentence = report.sentence();
        assert!(sentence.contains("`network = true`") && !sentence.contains("secret"), "{sentence}");
        let is_plain = report.in_force("network_allowed")["set_by"] == "condition";
        assert_eq!(sentence.contains("plain http is refused"), is_plain, "{sentence}");
        // A call to an interface that is not linked would be denied, and would have ended the run.
        assert!(report.denied().is_empty(), "{report:?}");
        assert_eq!(report.in_force("network_allowed")["granted"], false);
        bench.assert_well("a tool without a network");
    };
    let bench = Bench::start_typed(options(&[&web]));
    off(&bench, fetch(&bench, &arguments).grant("network_allowed", false));
    off(&bench, fetch(&bench, &arguments).condition("no_network"));
    let bench = Bench::start_typed(Options::new());
    off(&bench, fetch(&bench, &arguments));
    assert_eq!(web.connections(), 0);
}

/// The sentence names the key of the list that refuses, in each layer that has one, and no entry of the list.
#[test]
fn the_error_of_a_refused_host_names_the_key_that_refuses_it() {
    let web = Peer::page("reached");
    let other = Peer::page("not lifted");
    let refused = |bench: &Bench, url: &str, words: &[&str]| {
        let sentence = expect_error(bench, &json!({ "url": url }), "network_denied").sentence().to_owned();
        for word in words {
            assert!(sentence.contains(word), "{url}: not `{word}`: {sentence}");
        }
        assert!(!sentence.contains("only.example") && !sentence.contains("tool allow"), "{sentence}");
    };
    let bench = Bench::start_typed(blocking_options(&[&web]));
    let reached = format!("http://{}/", at(&web));
    let executor = "the executor's configuration";
    for (url, words) in [
        ("http://other.example/".to_owned(), [executor, "does not allow it (`network.allowed_domains`"]),
        (
            format!("http://127.0.0.1:{}/", web.port()),
            [executor, "does not allow it (`network.allowed_domains`"],
        ),
        ("https://secret.test/".to_owned(), [executor, "blocks it (`network.blocked_domains`)"]),
        (format!("http://web.test:{}/", other.port()), [executor, "`network.allowed_addresses`"]),
    ] {
        refused(&bench, &url, &words);
    }
    let policy = |network: Value| {
        bench.set_policy(&json!({ "tools": { "http_fetch": { "allowed": true } }, "network": network }));
    };
    let by_policy = "the standing policy of the agent";
    policy(json!({ "allowed_domains": ["other.test"] }));
    refused(&bench, &reached, &[by_policy, "does not allow it (`capabilities.network.allowed_domains`)"]);
    policy(json!({ "allowed_domains": ["https://web.test"] }));
    refused(&bench, &reached, &[by_policy, "an entry with `https://` allows no plain http"]);
    policy(json!({ "blocked_domains": ["web.test"] }));
    refused(&bench, &reached, &[by_policy, "blocks it (`capabilities.network.blocked_domains`)"]);

    let other_host = json!({ "http_fetch": ["https://api.test"] });
    let own = Bench::start_typed(options(&[&web]).set("network.tools", other_host));
    refused(&own, &reached, &[executor, "`network.tools`", "an entry with `https://` allows no plain http"]);
    assert_eq!((web.connections(), other.connections()), (0, 0));

    // Without a network, the layer that denies all of it.
    let off = |call: Call<'_>, words: &str| {
        let report = call.send().failure("the tool failed with `network_off`: ");
        assert!(report.sentence().contains(words), "not `{words}`: {}", report.sentence());
    };
    let arguments = json!({ "url": reached });
    policy(json!({ "allowed_domains": [] }));
    off(fetch(&bench, &arguments), "allow (`capabilities.network.allowed_domains`)");
    off(
        fetch(&own, &arguments).grant("network_allowed", false),
        "the verdict does not grant it (`network_allowed`)",
    );
    off(fetch(&own, &arguments).condition("no_network"), "(`no_network`)");
    let none = options(&[&web]).set("network.tools", json!({ "http_fetch": [] }));
    off(fetch(&Bench::start_typed(none), &arguments), "or `network.tools` if that has the tool");
    off(fetch(&Bench::start_typed(Options::new()), &arguments), "(`ceilings.network_allowed`)");
    let catalogue = Catalogue::with_tools();
    let manifest = catalogue.folder().join("http_fetch").join("tool.toml");
    let text = std::fs::read_to_string(&manifest).expect("a file");
    std::fs::write(&manifest, text.replace("network = true", "network = false")).expect("a file");
    let undeclared = Bench::start_catalogue(options(&[&web]), catalogue);
    off(fetch(&undeclared, &arguments), "set `network = true` in its `tool.toml`");
}

#[test]
fn http_fetch_sends_the_request_and_returns_the_answer() {
    let web = redirecting();
    let bench = Bench::start_typed(options(&[&web]));
    let url = format!("http://{}/path", at(&web));
    let headers = json!({ "X-One": "1" });
    let arguments = json!({ "url": url, "method": "POST", "body": "sent", "headers": headers });
    let report = fetch(&bench, &arguments).send().success();
    let result = &report.0["result"];
    assert_eq!((&result["status"], &result["url"]), (&json!(200), &json!(url)), "{report:?}");
    let echoed = result["body"].as_str().expect("a text").to_lowercase();
    assert!(echoed.starts_with("post /path http/1.1\r\n") && echoed.ends_with("\r\n\r\nsent"), "{echoed}");
    for field in ["x-one: 1\r\n", "content-length: 4\r\n", "user-agent: a2g-http_fetch/"] {
        assert!(echoed.contains(field), "{echoed}");
    }
    assert_eq!(report.0["usage"]["contacted"][0]["requests"], 1, "{report:?}");
}

#[test]
fn every_redirect_is_authorized_again() {
    let web = redirecting();
    let next = redirecting();
    let private = Peer::page("private");
    let bench = Bench::start_typed(options(&[&web, &next]));
    let redirect = |to: &str| json!({ "url": format!("http://{}/302?{to}", at(&web)) });

    let there = format!("http://{}/there", at(&next));
    let report = fetch(&bench, &redirect(&there)).send().success();
    let redirects = json!([{ "status": 302, "url": there }]);
    assert_eq!((&report.0["result"]["redirects"], &report.0["result"]["status"]), (&redirects, &json!(200)));
    assert_eq!(report.0["usage"]["contacted"].as_array().map(Vec::len), Some(2), "{report:?}");

    let port = private.port();
    let cases = [
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "network_denied", "ip_literal"),
        (format!("http://127.0.0.1:{port}/"), "network_denied", "ip_literal"),
        (format!("http://web.test:{port}/"), "network_denied", "address"),
        // Read as browsers read it, before the executor sees it.
        (format!("http://2130706433:{port}/"), "network_denied", "ip_literal"),
        ("http://other.example/".to_owned(), "network_denied", "domain_not_allowed"),
    ];
    for (to, code, reason) in cases {
        let report = expect_error(&bench, &redirect(&to), code);
        assert_eq!(report.reasons(), [reason], "{to}");
        assert!(report.sentence().contains("`usage.denied`"), "{to}: {report:?}");
    }
    assert_eq!(private.connections(), 0);
    let report = expect_error(&bench, &redirect("file:///etc/passwd"), "redirect_refused");
    assert!(report.denied().is_empty(), "{report:?}");
    bench.assert_well("redirects");
}

/// Nobody can take back what a run has sent, so under `staged` it only asks.
#[test]
fn a_staged_run_sends_only_get_and_head() {
    let web = Peer::web(|_, stream| {
        let _gone = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    });
    let bench = Bench::start_typed(options(&[&web]));
    let by =
        |method: &str| fetch(&bench, &json!({ "url": format!("http://{}/", at(&web)), "method": method }));
    for method in ["GET", "HEAD"] {
        let report = by(method).condition("effects:staged").send().success();
        assert_eq!(report.0["result"]["status"], 204, "{method}: {report:?}");
        assert_eq!(report.effects(), Some(("staged", "condition")));
        assert!(report.denied().is_empty(), "{method}: {report:?}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let refused = by(method).condition("effects:staged").send();
        let report = refused.failure("the tool failed with `network_denied`: ");
        assert_eq!(report.denied(), [(&*format!("http://{}", at(&web)), "staged", 1)], "{method}");
        let sentence = report.sentence();
        assert!(
            sentence.contains("set by a condition of the verdict, only requests with GET and HEAD"),
            "{sentence}"
        );
    }
    assert_eq!(web.connections(), 2, "what is refused reaches no server");
    for call in [by("POST"), by("POST").condition("effects:atomic")] {
        assert_eq!(call.send().success().0["result"]["status"], 204);
    }
    assert_eq!(web.connections(), 4);
}

#[test]
fn credentials_do_not_follow_to_another_origin() {
    let web = redirecting();
    let next = redirecting();
    let bench = Bench::start_typed(options(&[&web, &next]));
    let headers = json!({ "Authorization": "Bearer secret", "Cookie": "a=secret", "Accept": "text/plain" });
    let go = |to: &str| {
        let url = format!("http://{}/307?{to}", at(&web));
        fetch(&bench, &json!({ "url": url, "headers": headers })).send().success();
    };
    go("/same");
    go(&format!("http://{}/other", at(&next)));
    let requests = web.requests();
    assert_eq!(
        requests.iter().filter(|request| request.contains("Bearer secret")).count(),
        3,
        "{requests:?}"
    );
    let [other] = next.requests().try_into().expect("one request");
    assert!(other.contains("text/plain") && !other.contains("secret"), "{other}");
}

#[test]
fn http_fetch_applies_its_own_bounds_before_the_run_limits() {
    let silent = Peer::silent();
    let large = Peer::web(|_, stream| {
        let body = "\"".repeat(4 << 20);
        let _gone = stream
            .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    });
    let room = options(&[&silent, &large]).set("ceilings.max_output_bytes", 16 << 20);
    let bench = Bench::start_typed(room);
    let url = |web: &Peer| format!("http://{}/", at(web));
    expect_error(&bench, &json!({ "url": url(&silent), "timeout_seconds": 1 }), "network_timeout");
    expect_error(&bench, &json!({ "url": url(&large) }), "response_too_large");
    // The most that it takes fits into the memory that it declares, in the form that takes the most.
    let most = json!({ "url": url(&large), "max_bytes": 4 << 20 });
    let report = fetch(&bench, &most).send().success();
    assert_eq!(report.0["result"]["size"], 4 << 20);
}
