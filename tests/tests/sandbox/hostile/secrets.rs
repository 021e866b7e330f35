//! Secrets that the server sets in requests, and guests that try to see them or to send them elsewhere.
//!
//! The ways in which others were broken: a placeholder that is bound to a name and not to a destination, that is
//! replaced anywhere in a request or in any coding, or that blocks a request where it means nothing; two rules for one
//! place (`config::secrets::tests`); a request that is silently sent without its secret; cookies as credentials; plain
//! http. What an answer gives back of the value is in `secrets/answers.rs`, and further ways are in `secrets/ways.rs`.
//!
//! Every test that starts an executor by [`start`] also searches for the value in all that the executor leaves behind.

mod answers;
mod memory;
mod oauth;
mod rotation;
mod ways;

use super::bench::{Bench, Call, Report};
use super::peer::{self, Peer, read_request};
use harness::{
    Canary, Catalogue, Executor, FakeGovernor, Listener, Options, Reply, Tool, approved, expect_blocked,
    guest, intent, result, tls_config, verdict,
};
use serde_json::{Value, json};
use std::io::{self, Read as _, Write};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const TOOL: &str = "hostile_http";
/// The value of the secret, which occurs nowhere else.
const CANARY: &str = "c4n4ry-0f9d3a7be1562c84-ZK3nVq81xRtLm5Wp";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server over TLS, whose certificate is for `web.test` and `other.test`.
struct Api {
    listener: Listener,
    requests: Arc<Mutex<Vec<String>>>,
    /// The requests of the connections that have ended, each with what has arrived after it.
    ended: Arc<Mutex<Vec<(String, String)>>>,
    folder: TempDir,
}

impl Api {
    /// Answers every request so.
    fn answering(answer: &'static str) -> Self {
        Self::serving(move |_, stream| stream.write_all(answer.as_bytes()))
    }

    /// Answers each request with what is made of it.
    fn with(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::serving(move |request, stream| stream.write_all(answer(request).as_bytes()))
    }

    /// Answers each request by this function.
    fn serving(answer: impl Fn(&str, &mut dyn Write) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let (config, certificate) = tls_config(&["web.test", "other.test"]);
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let ended = Arc::<Mutex<Vec<(String, String)>>>::default();
        let seen = Arc::clone(&requests);
        let kept = Arc::clone(&ended);
        let listener = Listener::start(move |stream| {
            let server = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut tls = rustls::StreamOwned::new(server, stream);
            let request = read_request(&mut tls);
            if !request.is_empty() {
                seen.lock().unwrap().push(request.clone());
                let _gone = answer(&request, &mut tls);
                tls.conn.send_close_notify();
                let _gone = tls.flush();
                // The client may still send, and closes the connection once it has the answer.
                let mut more = Vec::new();
                let _waits_no_longer = tls.sock.set_read_timeout(Some(Duration::from_millis(300)));
                let _gone = tls.read_to_end(&mut more);
                kept.lock().unwrap().push((request, String::from_utf8_lossy(&more).into_owned()));
            }
        });
        let folder = tempfile::tempdir().expect("a temp folder");
        std::fs::write(folder.path().join("ca.pem"), certificate).expect("a file");
        let api = Self { listener, requests, ended, folder };
        api.write(CANARY, 0o600);
        api
    }

    fn secret_file(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    fn write(&self, value: &str, mode: u32) {
        std::fs::write(self.secret_file(), value).expect("a file");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.secret_file(), permissions).expect("a mode");
    }

    fn at(&self, host: &str) -> String {
        format!("{host}:{}", self.listener.address.port())
    }

    /// The binding of the secret, with these keys changed.
    fn secret(&self, changes: &Value) -> Value {
        let mut secret = json!({
            "name": "key",
            "file": self.secret_file(),
            "tools": ["hostile_*"],
            "requests": [
                format!("GET https://{}/v1/{{id}}", self.at("web.test")),
                format!("POST https://{}/v1/{{id}}", self.at("web.test")),
            ],
            "place": "header:authorization",
            "scheme": "Bearer",
        });
        for (key, value) in changes.as_object().expect("a table") {
            secret[key] = value.clone();
        }
        secret.as_object_mut().expect("a table").retain(|_, value| !value.is_null());
        secret
    }

    /// An executor that may reach this server and `others` on loopback, and has the secret.
    fn options(&self, others: &[&Peer], changes: &Value) -> Options {
        let own = self.listener.address.to_string();
        let lifted = others.iter().map(|peer| peer.address.to_string()).chain([own]).collect::<Vec<_>>();
        peer::options(&[])
            .set("executor.isolation", "process")
            .set("network.allowed_addresses", json!(lifted))
            .set("network.hosts", json!({ "web.test": ["127.0.0.1"], "other.test": ["127.0.0.1"] }))
            .set("network.ca_file", json!(self.folder.path().join("ca.pem")))
            .set("secret", json!([self.secret(changes)]))
    }

    fn bench(&self, changes: &Value) -> Searched {
        start(self.options(&[], changes), [tool()])
    }

    /// The requests that have arrived since the last look.
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

/// An executor that must have left the value nowhere at its end.
struct Searched(Bench);

impl Deref for Searched {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.0
    }
}

impl Drop for Searched {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let canary = Canary::new(CANARY);
            canary.assert_left_nowhere_by(&self.executor);
            canary.assert_not_in("a report", self.books.text().as_bytes());
            canary.assert_in_no_file_of(&self.catalogue.folder());
        }
    }
}

fn start(options: Options, tools: impl IntoIterator<Item = Tool>) -> Searched {
    Searched(Bench::start_tools(options, tools))
}

/// An executor without the checks of a bench, which must have left the value nowhere at its end either. Its governor
/// approves every call, with a network.
struct Served {
    executor: Executor,
    _governor: FakeGovernor,
    _catalogue: Catalogue,
}

impl Served {
    fn start(options: Options, tools: impl IntoIterator<Item = Tool>) -> Self {
        let catalogue = tools.into_iter().fold(Catalogue::empty(), Catalogue::add);
        let governor = FakeGovernor::deciding(|call| {
            Reply::Result(verdict(call["intent_id"].as_str().expect("an id"), &with_network()))
        });
        let executor = Executor::start(options.catalogue(&catalogue).governor(&governor.url()));
        Self { executor, _governor: governor, _catalogue: catalogue }
    }

    /// The report of a call of the tool, which has to succeed.
    fn run(&self, arguments: Value) -> Value {
        self.send(&approved(intent(TOOL, arguments), &with_network()))
    }

    fn send(&self, call: &Value) -> Value {
        let answer = self.executor.rpc("a2g/execute", call);
        let report = result(&answer);
        assert_eq!(report["status"], "SUCCESS", "{answer}");
        report.clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            Canary::new(CANARY).assert_left_nowhere_by(&self.executor);
        }
    }
}

/// A manifest with a network.
fn with_network() -> Value {
    json!({ "network_allowed": true, "timeout_seconds": 60 })
}

fn tool() -> Tool {
    Tool::typed_bytes(TOOL, guest(TOOL)).network()
}

/// A call that sends these requests.
fn send<'a>(bench: &'a Bench, requests: &[Value]) -> Call<'a> {
    let call = bench.call(TOOL).grant("network_allowed", true).grant("timeout_seconds", 30);
    call.arguments(json!({ "requests": requests }))
}

/// A GET over TLS.
fn get(authority: &str, path: &str) -> Value {
    json!({ "scheme": "https", "authority": authority, "path": path, "patience_ms": 10000 })
}

fn answer(report: &Report, number: usize) -> &Value {
    &report.0["result"][number]
}

/// Checks that no file of the executor and nothing that it says of a run has the value.
fn assert_nowhere(bench: &Bench, report: &Report) {
    let canary = Canary::new(CANARY);
    canary.assert_not_in("a report", format!("{report:?}").as_bytes());
    canary.assert_in_no_file_of(&bench.executor.home().folder());
}

/// Waits until a change of a source is noticed: a value is remembered for a second.
fn wait_for_a_change() {
    std::thread::sleep(Duration::from_millis(1200));
}

#[test]
fn a_value_goes_only_to_its_destination_whatever_names_it() {
    let api = Api::answering(OK);
    let stranger = Api::answering(OK);
    let options = api.options(&[], &json!({}));
    let lifted = json!([api.listener.address.to_string(), stranger.listener.address.to_string()]);
    let bench = start(options.set("network.allowed_addresses", lifted), [tool()]);
    let web = api.at("web.test");
    let named = json!([["authorization", "Bearer {{key}}"], ["x-secret", "key"]]);
    let mut others = vec![
        get(&web, "/v2/1"),
        get(&web, "/v1/1/2"),
        get(&web, "/v1/../v1/1"),
        get(&web, "/v1/%31"),
        get(&web, "//v1/1"),
        get(&api.at("other.test"), "/v1/1"),
    ];
    others.iter_mut().for_each(|request| request["fields"] = named.clone());
    let mut put = get(&web, "/v1/1");
    put["method"] = json!("PUT");
    others.push(put);
    // The certificate of this one is not trusted, and the port is not that of the secret.
    others.push(get(&stranger.at("web.test"), "/v1/1"));
    let report = send(&bench, &others).send().success();
    let requests = api.take_requests();
    assert_eq!(requests.len(), 7, "{report:?}");
    assert!(requests.iter().all(|request| !request.contains(CANARY)), "{requests:?}");
    assert!(requests[0].contains("authorization: Bearer {{key}}\r\n"), "{}", requests[0]);
    assert_eq!(stranger.take_requests(), Vec::<String>::new());
    assert_eq!(report.0["usage"]["secrets"][0]["uses"], 0, "{report:?}");
    assert_eq!(report.0["usage"]["secrets"][0]["without"], 7, "{report:?}");

    let report = send(&bench, &[get(&web, "/v1/1")]).send().success();
    let requests = api.take_requests();
    assert!(requests[0].contains(&format!("authorization: Bearer {CANARY}\r\n")), "{report:?}");
    let used = &report.0["usage"]["secrets"][0];
    assert_eq!((&used["name"], &used["uses"], &used["without"]), (&json!("key"), &json!(1), &json!(0)));
    assert_eq!(used["versions"][0].as_str().map(str::len), Some(16), "{used}");
    assert_nowhere(&bench, &report);
}

#[test]
fn only_the_place_is_set_and_no_placeholder_is_replaced() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({}));
    let codings = "key {{key}} $KEY %7B%7Bkey%7D%7D \\u007b\\u007bkey e3trZXl9fQ==";
    let mut request = get(&api.at("web.test"), "/v1/%7B%7Bkey%7D%7D?q=%7B%7Bkey%7D%7D&key=1");
    request["method"] = json!("POST");
    request["body"] = json!(codings);
    request["fields"] = json!([
        ["Authorization", "guest-1"],
        ["authorization", "guest-2"],
        ["x-authorization", codings],
        ["content-length", codings.len().to_string()],
    ]);
    let report = send(&bench, &[request]).send().success();
    assert_eq!(answer(&report, 0)["status"], 200, "{report:?}");
    let request = api.take_requests().remove(0);
    assert_eq!(request.matches(CANARY).count(), 1, "{request}");
    assert_eq!(request.matches("\r\nauthorization: ").count(), 1, "{request}");
    assert!(request.contains(&format!("\r\nauthorization: Bearer {CANARY}\r\n")), "{request}");
    assert!(!request.contains("guest-"), "{request}");
    assert!(request.contains(&format!("x-authorization: {codings}\r\n")), "{request}");
    assert!(request.starts_with("POST /v1/%7B%7Bkey%7D%7D?q=%7B%7Bkey%7D%7D&key=1 "), "{request}");
    assert!(request.ends_with(codings), "{request}");
    assert!(report.denied().is_empty(), "{report:?}");
    assert_nowhere(&bench, &report);
}

#[test]
fn a_value_is_set_in_a_parameter_and_in_a_document() {
    let api = Api::answering(OK);
    let web = api.at("web.test");
    let bench = api.bench(&json!({ "place": "query:key", "scheme": null }));
    let report = send(&bench, &[get(&web, "/v1/1?k%65y=guest&a=%41")]).send().success();
    let request = api.take_requests().remove(0);
    assert!(request.starts_with(&format!("GET /v1/1?a=%41&key={CANARY} ")), "{request}");
    assert_nowhere(&bench, &report);

    let changes = json!({ "place": "body:/auth/key", "scheme": null });
    let bench = start(api.options(&[], &changes).set("ceilings.held_requests", 9), [tool()]);
    let post = |kind: &str, body: &str| {
        let mut request = get(&web, "/v1/1");
        request["method"] = json!("POST");
        request["body"] = json!(body);
        request["fields"] = json!([["content-type", kind], ["content-length", body.len().to_string()]]);
        request
    };
    let document = "application/json; charset=utf-8";
    let report = send(&bench, &[post(document, r#"{"auth":{"key":"guest"},"n":1}"#)]).send().success();
    let request = api.take_requests().remove(0);
    let body = format!(r#"{{"auth":{{"key":"{CANARY}"}},"n":1}}"#);
    assert!(request.ends_with(&body), "{request}");
    assert!(request.contains(&format!("content-length: {}\r\n", body.len())), "{request}");
    assert_nowhere(&bench, &report);
    let mut requests = vec![
        post(document, "{}"),
        post(document, "{"),
        post("text/plain", r#"{"auth":{}}"#),
        post("application/json; charset=utf-7", r#"{"auth":{}}"#),
        post(document, r#"{"auth":{"key":"guest","k\u0065y":"guest"}}"#),
        post(document, r#"{"auth":{},"auth":{"key":"guest"}}"#),
        post(document, r#"{"auth":{"key":"guest","KEY":"guest"}}"#),
    ];
    let refused = |report: &Report| {
        let denied = report.denied();
        assert_eq!(
            denied.iter().map(|denial| (denial.1, denial.2)).collect::<Vec<_>>(),
            [("secret_place", 7)]
        );
        assert_eq!(api.take_requests(), Vec::<String>::new());
    };
    refused(&send(&bench, &requests).send().success());
    // A request that waits is refused at once as well, and not by the commit.
    requests.push(post(document, r#"{"n":1234567890123456789012,"auth":{}}"#));
    let run = send(&bench, &requests).condition("effects:staged").send().staged();
    refused(&run);
    assert_eq!(answer(&run, 7)["status"], 202, "{run:?}");
    bench.decide("a2g/commit", &run);
    let request = api.take_requests().remove(0);
    let body = format!(r#"{{"n":1234567890123456789012,"auth":{{"key":"{CANARY}"}}}}"#);
    assert!(request.ends_with(&body), "{request}");
}

#[test]
fn a_request_that_needs_a_secret_is_refused_without_it() {
    let api = Api::answering(OK);
    let web = Peer::page("plain");
    let bench = start(api.options(&[&web], &json!({ "max_uses": 2 })), [tool()]);
    let fitting = get(&api.at("web.test"), "/v1/1");
    let refused = |call: Call<'_>, reason: &str| {
        let report = call.send().success();
        assert_eq!(report.reasons(), [reason], "{report:?}");
        let what = report.denied()[0].0.to_owned();
        assert!(what.starts_with("secret key for http"), "{what}");
        report
    };
    let one = || send(&bench, std::slice::from_ref(&fitting));
    refused(one().condition("no_secrets"), "secret_withheld");
    refused(one().condition("secrets:other"), "secret_withheld");
    refused(send(&bench, &[json!({ "authority": peer::at(&web), "path": "/x" })]), "secret_place");
    assert_eq!((api.take_requests().len(), web.connections()), (0, 0));
    one().condition("secrets:key").send().success();
    assert_eq!(api.take_requests().len(), 1);

    let four: [Value; 4] = std::array::from_fn(|_| fitting.clone());
    let report = refused(send(&bench, &four), "secret_uses");
    assert_eq!((report.denied()[0].2, api.take_requests().len()), (2, 2), "{report:?}");

    for (value, mode) in [(CANARY, 0o644), ("short", 0o600)] {
        api.write(value, mode);
        wait_for_a_change();
        refused(one(), "secret_unavailable");
    }
    std::fs::remove_file(api.secret_file()).expect("a file");
    wait_for_a_change();
    let report = refused(one(), "secret_unavailable");
    assert_eq!(api.take_requests(), Vec::<String>::new());
    assert_nowhere(&bench, &report);
}

#[test]
fn a_tool_that_declares_a_secret_does_not_run_without_it() {
    let api = Api::answering(OK);
    let declaring = || tool().secrets(&["key"]);
    let bench = start(api.options(&[], &json!({})), [declaring()]);
    let fitting = [get(&api.at("web.test"), "/v1/1")];
    send(&bench, &fitting).send().success();
    let withheld = send(&bench, &fitting).condition("no_secrets").send();
    let message = expect_blocked(&withheld.response, "secret_missing");
    assert!(message.contains("`key`") && message.contains("a condition of the verdict"), "{message}");
    std::fs::remove_file(api.secret_file()).expect("a file");
    wait_for_a_change();
    let missing = send(&bench, &fitting).send();
    let message = expect_blocked(&missing.response, "secret_missing");
    assert!(message.contains("`key`") && message.contains("secret check"), "{message}");
    assert_eq!(api.take_requests().len(), 1);

    let bench = start(api.options(&[], &json!({ "tools": ["another"] })), [declaring()]);
    let unbound = send(&bench, &fitting).send();
    let message = expect_blocked(&unbound.response, "secret_missing");
    assert!(message.contains("no `[[secret]]`"), "{message}");
}

#[test]
fn a_value_is_for_its_tools_and_agents() {
    let api = Api::answering(OK);
    for changes in [json!({ "tools": ["another"] }), json!({ "agents": ["did:a:another"] })] {
        let bench = api.bench(&changes);
        let report = send(&bench, &[get(&api.at("web.test"), "/v1/1")]).send().success();
        assert_eq!(answer(&report, 0)["status"], 200, "{report:?}");
        assert!(!api.take_requests().remove(0).contains(CANARY), "{changes}");
        assert!(report.0["usage"].get("secrets").is_none(), "{report:?}");
    }
}

#[test]
fn a_value_that_changes_is_used_without_a_restart() {
    let api = Api::answering(OK);
    let bench = api.bench(&json!({}));
    let mut versions = Vec::new();
    for value in [CANARY, "another-value-of-the-secret"] {
        api.write(value, 0o600);
        wait_for_a_change();
        let report = send(&bench, &[get(&api.at("web.test"), "/v1/1")]).send().success();
        assert!(api.take_requests().remove(0).contains(value), "{report:?}");
        versions.push(report.0["usage"]["secrets"][0]["versions"][0].clone());
    }
    assert_ne!(versions[0], versions[1]);
    for (value, is_short) in [("fifteen-letters", true), ("sixteen--letters", false)] {
        api.write(value, 0o600);
        let output = bench.executor.home().run(&["secret", "check"]);
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && said.contains("less than 16 bytes") == is_short, "{said}");
    }
}

#[test]
fn cookies_stay_in_the_server() {
    let api = Api::answering(
        "HTTP/1.1 200 OK\r\nset-cookie: sid=s3ss10n; Path=/; HttpOnly\r\nset-cookie: b=2\r\nset-cookie2: c=3\r\n\
         content-length: 2\r\n\r\nok",
    );
    let bench = api.bench(&json!({}));
    let web = api.at("web.test");
    let mut with_cookie = get(&web, "/v1/2");
    with_cookie["fields"] = json!([["cookie", "guest=1"]]);
    let fixed = with_cookie.clone();
    let report = send(&bench, &[get(&web, "/v1/1"), with_cookie, get(&web, "/v2/1")]).send().success();
    let requests = api.take_requests();
    assert!(!requests[0].contains("\r\ncookie: "), "{}", requests[0]);
    assert!(requests[1].contains("\r\ncookie: sid=s3ss10n; b=2\r\n"), "{}", requests[1]);
    assert!(!requests[2].contains("\r\ncookie: "), "{}", requests[2]);
    let has_cookie = |number| answer(&report, number)["fields"].to_string().contains("set-cookie");
    assert!(!has_cookie(0) && !has_cookie(1) && has_cookie(2), "{report:?}");
    assert_eq!(report.0["usage"]["secrets"][0]["kept_cookies"], 4, "{report:?}");
    // A session of the guest's choice does not become one with the secret.
    let again = send(&bench, &[fixed]).send().success();
    assert!(!api.take_requests()[0].contains("\r\ncookie: "), "a run finds no cookie of another: {again:?}");
}

#[test]
fn a_request_that_waits_has_the_value_only_when_it_is_sent() {
    let api = Api::answering(OK);
    let options = api.options(&[], &json!({})).set("ceilings.held_requests", 4);
    let bench = start(options, [tool()]);
    let post = || {
        let mut request = get(&api.at("web.test"), "/v1/1");
        request["method"] = json!("POST");
        request["fields"] = json!([["authorization", "guest"]]);
        send(&bench, &[request]).condition("effects:staged")
    };
    let run = post().send().staged();
    assert_eq!(answer(&run, 0)["status"], 202, "{run:?}");
    let fields = &run.0["usage"]["effects"]["requests"][0]["fields"];
    assert!(fields.to_string().contains("secret key in header:authorization"), "{fields}");
    assert_nowhere(&bench, &run);
    api.write("the-value-of-the-commit", 0o600);
    wait_for_a_change();
    bench.decide("a2g/commit", &run);
    let request = api.take_requests().remove(0);
    assert!(request.contains("\r\nauthorization: Bearer the-value-of-the-commit\r\n"), "{request}");
    assert!(!request.contains("guest") && !request.contains(CANARY), "{request}");

    let refused = post().condition("no_secrets").send().success();
    assert_eq!(refused.reasons(), ["secret_withheld"], "{refused:?}");
    assert_eq!(api.take_requests(), Vec::<String>::new());
}
