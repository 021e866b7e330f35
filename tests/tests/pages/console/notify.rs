//! The signed messages to the operator's webhooks about calls that wait for a person.

use super::{base, escalate};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::console::Client;
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The key of the webhooks of these tests.
const KEY: [u8; 32] = *b"0123456789abcdef0123456789abcdef";

/// One attempt to post a message.
#[derive(Debug, Clone)]
struct Attempt {
    id: String,
    timestamp: i64,
    body: String,
}

impl Attempt {
    /// Checks the signature over exactly the bytes that arrived, as a library of Standard Webhooks does.
    fn read(headers: &[(String, String)], body: &[u8]) -> Self {
        let header = |name: &str| {
            let mut values =
                headers.iter().filter(|(given, _)| given == name).map(|(_, value)| value.clone());
            let only = values.next().unwrap_or_else(|| panic!("no {name}: {headers:?}"));
            assert_eq!(values.next(), None, "two of {name}");
            only
        };
        assert_eq!(header("content-type"), "application/json");
        let id = header("webhook-id");
        let timestamp = header("webhook-timestamp");
        let signature = header("webhook-signature");
        let body = String::from_utf8(body.to_vec()).unwrap();
        let signature = STANDARD.decode(signature.strip_prefix("v1,").expect("version 1")).unwrap();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &KEY);
        ring::hmac::verify(&key, format!("{id}.{timestamp}.{body}").as_bytes(), &signature).expect("signed");
        let timestamp = timestamp.parse::<i64>().unwrap();
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        assert!((now - 60..=now + 1).contains(&timestamp), "{timestamp} is not {now}");
        Self { id, timestamp, body }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A receiver that records every attempt.
struct Receiver {
    address: SocketAddr,
    attempts: Arc<Mutex<Vec<Attempt>>>,
}

impl Receiver {
    /// Answers with these statuses, and then with 204. A redirect leads to the receiver itself.
    fn start(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&attempts);
        let mut statuses = statuses.iter().copied();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let Ok((first, headers, body)) = read_message(&mut reader) else { continue };
                assert_eq!(first, "POST /told?a=b HTTP/1.1");
                all.lock().unwrap().push(Attempt::read(&headers, &body));
                let status = statuses.next().unwrap_or(204);
                let head = format!("HTTP/1.1 {status} X\r\nLocation: http://hook.example:{}", address.port());
                let _gone = reader.get_mut().write_all(format!("{head}/told?a=b\r\n\r\n").as_bytes());
            }
        });
        Self { address, attempts }
    }

    fn url(&self, host: &str) -> String {
        format!("http://{host}:{}/told?a=b", self.address.port())
    }

    fn attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().unwrap().clone()
    }

    fn wait_for(&self, count: usize) -> Vec<Attempt> {
        eventually("a message arrives", || Some(self.attempts()).filter(|all| all.len() >= count))
    }

    /// Options of an executor that may post to this receiver.
    fn options(&self, keys: &Path) -> Options {
        Options::new()
            .set("console.notify", json!([{ "url": self.url("hook.example"), "key_file": key_file(keys) }]))
            .set("network.hosts", json!({ "hook.example": ["127.0.0.1"] }))
            .set("network.allowed_addresses", json!([self.address.to_string()]))
    }
}

/// Writes a file with the key.
fn key_file(folder: &Path) -> PathBuf {
    write_key(folder, &format!("whsec_{}\n", STANDARD.encode(KEY)), 0o600)
}

fn write_key(folder: &Path, text: &str, mode: u32) -> PathBuf {
    let file = folder.join("hook.key");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    file
}

#[test]
fn a_signed_message_says_that_a_call_waits_and_leads_to_it() {
    let receiver = Receiver::start(&[]);
    let keys = tempfile::tempdir().unwrap();
    let executor = Executor::start(receiver.options(keys.path()));
    let first = escalate(&executor, write("secret-name", ESCALATES));
    let told = receiver.wait_for(1).remove(0);
    let message = told.json();
    let expires_at = message["expires_at"].as_str().unwrap();
    assert!(*expires_at > *in_seconds(0) && *expires_at <= *in_seconds(3600), "{message}");
    let risk = message["risk"].as_object().unwrap();
    assert!(risk["level"].is_string() && risk["score"].is_f64() && risk.len() == 2, "{message}");
    let path = format!("/console/decide/{first}");
    let expected = json!({
        "event": "waiting",
        "intent": first,
        "agent": AGENT,
        "tool": "write_file",
        "risk": risk,
        "expires_at": expires_at,
        "url": format!("{}{path}", base(&executor)),
    });
    assert_eq!(message, expected);
    for secret in ["secret-name", "PRIVATE", "workspace", "whsec_"] {
        assert!(!told.body.contains(secret), "{}", told.body);
    }
    let (status, page) = Client::local(&executor).get(&path);
    assert!(status == 200 && page.contains("PRIVATE KEY"), "{page}");

    // An intent is announced once, and again by the process that follows a restart.
    let second = escalate(&executor, write("second", ESCALATES));
    let messages = receiver.wait_for(2);
    assert_eq!((messages.len(), &messages[1].json()["intent"]), (2, &json!(second)));
    assert_ne!(messages[0].id, messages[1].id);
    let executor = Executor::start_in(executor.kill());
    let after = receiver.wait_for(4);
    let announced = |attempts: &[Attempt]| {
        attempts.iter().map(|one| one.json()["intent"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(announced(&after[2..]), BTreeSet::from([first.clone(), second]));
    let denial = json!({ "intent_id": first, "decision": "DENY" });
    executor.rpc("g2a/directive", &denial);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(receiver.attempts().len(), 4, "a decision is no reason for a message");
}

#[test]
fn a_failed_message_is_sent_again_with_its_id_and_a_new_time() {
    let receiver = Receiver::start(&[500, 503]);
    let keys = tempfile::tempdir().unwrap();
    let options = receiver.options(keys.path()).set("console.public_url", "https://tools.example.com/");
    let executor = Executor::start(options);
    let intent = escalate(&executor, write("x", ESCALATES));
    let attempts = receiver.wait_for(3);
    let url = format!("https://tools.example.com/console/decide/{intent}");
    assert_eq!(attempts[0].json()["url"], url);
    assert!(attempts.iter().all(|one| (&one.id, &one.body) == (&attempts[0].id, &attempts[0].body)));
    // The delays are 0.5 and 2 s.
    assert!(attempts[2].timestamp > attempts[0].timestamp, "{attempts:?}");
}

#[test]
fn no_redirect_is_followed_and_no_private_address_is_posted_to() {
    let moved = Receiver::start(&[302]);
    let keys = tempfile::tempdir().unwrap();
    let executor = Executor::start(moved.options(keys.path()));
    escalate(&executor, write("x", ESCALATES));
    let dropped = executor.line_with("a notification is dropped");
    assert!(dropped.contains("console.notify 1") && dropped.contains("302"), "{dropped}");
    assert_eq!(moved.attempts().len(), 1);
    assert!(!executor.stderr().contains("told?a=b"), "the log has the URL, which may be a secret");

    // Known addresses are refused at the start. Those of a look-up are checked as for every webhook, by the same client.
    let port = moved.address.port();
    for host in ["hook.example", "127.0.0.1"] {
        let webhooks = json!([{ "url": moved.url(host), "key_file": key_file(keys.path()) }]);
        let options = moved.options(keys.path()).set("console.notify", webhooks);
        let home = Home::new(options.set("network.allowed_addresses", json!(["127.0.0.1:1"])));
        let output = run_to_end(home.command(), b"");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        let advice = format!("list `127.0.0.1:{port}` in `network.allowed_addresses`");
        assert!(said.contains("`console.notify.url`") && said.contains(&advice), "{said}");
        assert!(!said.contains("told?a=b"), "{said}");
    }
    assert_eq!(moved.attempts().len(), 1);
}

#[test]
fn a_flood_of_waiting_calls_is_announced_in_few_messages() {
    const CALLS: usize = 60;
    let receiver = Receiver::start(&[]);
    let keys = tempfile::tempdir().unwrap();
    let executor = Executor::start(receiver.options(keys.path()));
    let start = Instant::now();
    let sent = (0..CALLS).map(|n| escalate(&executor, write(&n.to_string(), ESCALATES)));
    let sent = sent.collect::<BTreeSet<_>>();
    let messages = eventually("every call is told", || {
        let messages = receiver.attempts().iter().map(Attempt::json).collect::<Vec<_>>();
        let told = messages.iter().map(|message| message["count"].as_u64().unwrap_or(1)).sum::<u64>();
        (told >= CALLS as u64).then_some(messages)
    });
    // Ten at once, and one more in each six seconds.
    let most = 11 + usize::try_from(start.elapsed().as_secs()).unwrap() / 6;
    assert!(messages.len() <= most, "{} messages in {:?}", messages.len(), start.elapsed());
    let mut named = BTreeSet::new();
    let mut counted = 0;
    for message in &messages {
        match message["intent"].as_str() {
            Some(intent) => assert!(named.insert(intent.to_owned()), "{intent} is told twice"),
            None => {
                counted += message["count"].as_u64().unwrap();
                let expected = json!({
                    "event": "waiting",
                    "count": message["count"],
                    "url": format!("{}/console/inbox", base(&executor)),
                });
                assert_eq!(*message, expected);
            }
        }
    }
    assert!(named.is_subset(&sent) && named.len() + usize::try_from(counted).unwrap() == CALLS);
    assert!(counted > 0, "{messages:?}");
}

#[test]
fn a_key_that_others_can_read_or_guess_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[]);
    let whole = format!("whsec_{}", STANDARD.encode(KEY));
    for (text, mode, words) in [
        (whole.as_str(), 0o640, "chmod 600"),
        (&format!("whsec_{}", STANDARD.encode(&KEY[..31])), 0o600, "32 to 64 bytes"),
        (&whole["whsec_".len()..], 0o600, "`whsec_`"),
        ("", 0o600, "openssl rand"),
    ] {
        let options = receiver.options(folder.path());
        write_key(folder.path(), text, mode);
        let home = Home::new(options);
        for output in [home.run(&["config", "check"]), run_to_end(home.command(), b"")] {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("`console.notify.key_file`") && said.contains(words), "{said}");
            assert!(text.is_empty() || !said.contains(text), "{said}");
        }
    }
    let home = Home::new(receiver.options(folder.path()));
    let checked = home.run(&["config", "check"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && said.contains("notify      http://hook.example:"), "{checked:?}");
    assert!(!said.contains("told?a=b"), "{said}");
    // A port that the console is not served on has no links.
    let mut elsewhere = home.command();
    elsewhere.args(["--listen", "unix:executor.sock"]);
    let output = run_to_end(elsewhere, b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("`console.notify` needs the console"), "{said}");
}
