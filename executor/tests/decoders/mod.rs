//! Properties that hold for any input of a decoder. There is one function for each target of
//! `fuzz/`, which generates inputs, and `corpus.rs` calls the same functions with the stored
//! inputs.
//!
//! Each function compares the decoder with another way to get the same result, so that it detects
//! not only panics but also wrong results.

mod a2e;
mod jwt;
mod mcp;
mod sovereign;
mod table;

pub(crate) use a2e::a2e;
pub(crate) use jwt::{jwt, the_good_token_is_taken};
pub(crate) use mcp::mcp;
pub(crate) use sovereign::sovereign;
pub(crate) use table::table;

use a2g_capability::{Area, Authority, Ceilings, Claims, Grant, Tree};
use a2g_govern::{AcceptUnsigned, Admission, Trust, TrustSettings, VerifiedVerdict, admit};
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::limit::{Access, NetworkBudgets};
use a2g_types::verdict::{Decision, Proof, Verdict};
use a2g_wire::a2a;
use a2g_wire::a2g::{decode, encode};
use a2g_wire::jsonrpc::{self, MAX_BATCH, RpcMessage};
use a2g_wire::nexus;
use a2g_wire::nexus::keys::AgentKeys;
use a2g_wire::nexus::message::SignatureScope;
use a2g_wire::strict_json::{self, JsonBounds};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer as _, SigningKey};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
use time::{Duration, OffsetDateTime};

// --- A2A ---

/// A decoded request encodes to the same request; a rejected one gets an answer with its id.
pub(crate) fn a2a(body: &[u8]) {
    let Ok(text) = strict_json::check(body, &BOUNDS) else { return };
    let (id, read) = match a2a::decode::request(text) {
        Ok((id, request)) => (id, Ok(request)),
        Err(malformed) => (malformed.id, Err(malformed.fault)),
    };
    assert!(!id.as_json().contains(['.', '{', '[']) || id.as_json().starts_with('"'), "{id:?}");
    let sent = match read {
        Err(fault) => {
            let answer =
                a2a::fault::to_error(&fault.into(), a2a::Dialect::A2a).response(&id, a2a::Dialect::A2a);
            let answer = serde_json::from_str::<Value>(&answer).unwrap();
            assert!(answer["error"]["code"].as_i64().is_some_and(|code| code <= -32000), "{answer}");
            return;
        }
        Ok(
            a2a::decode::A2aRequest::Send(sent)
            | a2a::decode::A2aRequest::Stream(sent)
            | a2a::decode::A2aRequest::Provide { sent },
        ) => sent,
        Ok(_without_a_message) => return,
    };
    assert!(!sent.message.parts.is_empty() && !sent.message.message_id.is_empty());
    let again = json!({ "jsonrpc": "2.0", "method": "message/send", "params": { "message": sent.message } });
    let Ok((_, a2a::decode::A2aRequest::Send(again))) = a2a::decode::request(&again.to_string()) else {
        panic!("a decoded message is refused when it is encoded again: {sent:?}");
    };
    assert_eq!(again.message, sent.message);
    // A call may also be given beside the message, which `again` does not contain.
    if again.call.is_some() {
        assert_eq!(again.call.map(|call| call.arguments), sent.call.map(|call| call.arguments));
    }
}

// --- strict JSON and the frame around every message ---

/// Small, so that both bounds are reached.
const BOUNDS: JsonBounds = JsonBounds { max_bytes: 2048, max_depth: 16, max_tree_bytes: 1 << 20 };

/// A body is accepted exactly if it is within the bounds and serde_json reads it, including all its
/// strings, and no object in it has equal keys. An accepted body is decoded as JSON-RPC, or refused
/// with an error that is no parse error.
pub(crate) fn strict_json(body: &[u8]) {
    let accepted = strict_json::check(body, &BOUNDS);
    assert_eq!(accepted.is_ok(), is_unambiguous_json(body), "{accepted:?}");
    let Ok(text) = accepted else { return };
    assert_eq!(text.as_bytes(), body);
    match jsonrpc::decode(text, MAX_BATCH) {
        Err(fault) => assert!(!matches!(fault, Fault::Parse(_)), "{fault:?}"),
        Ok(RpcMessage::Single(entry)) => check_entry(&entry),
        Ok(RpcMessage::Batch(entries)) => {
            assert!((1..=MAX_BATCH).contains(&entries.len()));
            entries.iter().for_each(check_entry);
        }
    }
}

fn check_entry(entry: &jsonrpc::RequestEntry<'_>) {
    let id = match entry {
        Ok(request) => request.id.as_ref(),
        Err((id, fault)) => {
            assert!(!matches!(fault, Fault::Parse(_)), "{fault:?}");
            id.as_ref()
        }
    };
    assert!(id.is_none_or(|id| id.as_json().len() <= jsonrpc::Id::MAX_BYTES));
    // The answer repeats the id exactly as it was written, even if it is a number.
    let answer = jsonrpc::error(id, -32600, "no", None);
    let members = serde_json::from_str::<Members<'_>>(answer.get()).unwrap().0;
    assert_eq!(members["id"].get(), id.map_or("null", jsonrpc::Id::as_json));
}

fn is_unambiguous_json(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= BOUNDS.max_bytes);
    let value = text.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    value.is_some_and(|value| is_unambiguous_value(value, BOUNDS.max_depth))
}

fn is_unambiguous_value(value: &RawValue, levels: usize) -> bool {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(text).is_ok(),
        Some(b'[' | b'{') if levels == 0 => false,
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(text)
            .is_ok_and(|values| values.iter().all(|value| is_unambiguous_value(value, levels - 1))),
        Some(b'{') => serde_json::from_str::<Members<'_>>(text)
            .is_ok_and(|members| members.0.values().all(|value| is_unambiguous_value(value, levels - 1))),
        // The remaining tokens are numbers and literals, whose grammar was checked with the whole text.
        _ => true,
    }
}

/// An object without equal keys.
struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = BTreeMap<String, &'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    if members.insert(key, value).is_some() {
                        return Err(serde::de::Error::custom("twice"));
                    }
                }
                Ok(members)
            }
        }
        reader.deserialize_map(Once).map(Self)
    }
}

// --- intents and the messages of agents ---

/// Messages of callers. A decoded intent encodes to the same intent. Both parts of `a2g/execute`
/// are decoded to the same as each part alone.
pub(crate) fn intent(body: &[u8]) {
    let Ok(text) = strict_json::check(body, &JsonBounds::default()) else { return };
    if let Ok(call) = decode::intent(text) {
        let written = encode::intent(&call);
        assert_eq!(decode::intent(written.get()).unwrap(), call, "{written}");
        let _named = decode::requested_executor(&call);
    }
    if let Ok(decode::ExecuteParams { call, verdict, proof }) = decode::execute_params(text) {
        let members = serde_json::from_str::<Members<'_>>(text).unwrap().0;
        assert_eq!(decode::intent(members["intent"].get()).unwrap(), call);
        assert_eq!(decode::verdict(members["verdict"].get()).unwrap(), verdict);
        let came = members.get("proof").is_some_and(|proof| proof.get() != "null");
        assert_eq!(proof.is_some(), came);
    }
    for escape in [false, true] {
        let _signed = decode::context_signature(text, escape);
    }
    let _ids = (decode::intent_id(text), decode::revoke_params(text), decode::tools_params(text));
    let _messages = (decode::registration(text), decode::heartbeat(text), decode::report(text));
}

// --- Genesis Nexus ---

/// A message is verified only with the keys of its agent, over its own header, byte for byte.
/// Signed again with the right key, it is always verified, and its content is decoded or refused.
pub(crate) fn nexus(body: &[u8]) {
    static KEYS: LazyLock<AgentKeys> = LazyLock::new(|| AgentKeys::new(b"secret", Some(&[7; 32])).unwrap());
    static OTHER: LazyLock<AgentKeys> = LazyLock::new(|| AgentKeys::new(b"other", Some(&[8; 32])).unwrap());
    let Ok(text) = strict_json::check(body, &JsonBounds::default()) else { return };
    let Ok(envelope) = nexus::decode::envelope(text) else { return };
    assert!(envelope.verify(Some(&OTHER), SignatureScope::Header).is_err());
    let members = serde_json::from_str::<Members<'_>>(text).unwrap().0;
    let part = |name: &str| members[name].get();
    let header = format!(
        r#"{{"id":{},"type":{},"from":{},"to":{},"timestamp":{}}}"#,
        part("id"),
        part("type"),
        part("from"),
        part("to"),
        part("timestamp")
    );
    let mut signed = members.iter().filter(|(name, _)| *name != "signature").fold(
        String::from("{"),
        |mut text, (name, value)| {
            text.push_str(&format!("{}:{value},", Value::from(name.as_str())));
            text
        },
    );
    signed.push_str(&format!(r#""signature":"{}"}}"#, KEYS.sign(&header)));
    let envelope = nexus::decode::envelope(&signed).unwrap();
    let verified = envelope.verify(Some(&KEYS), SignatureScope::Header).unwrap();
    let content = verified.content(&KEYS, &JsonBounds::default());
    let clear = !verified.is_sealed() && verified.envelope().kind() == nexus::message::MessageType::Command;
    assert!(!clear || content.is_err(), "an unencrypted command is accepted");
    let full = nexus::decode::envelope(&signed).unwrap().verify(Some(&KEYS), SignatureScope::Full);
    let header_only = !members.contains_key("action") && !members.contains_key("payload");
    assert!(!header_only || full.is_ok(), "both signatures cover the same text");
}

// --- verdicts and the other messages of a governor ---

/// A decoded verdict encodes to the same verdict, and admits a call only if it approves the intent
/// of that call and has not expired.
pub(crate) fn verdict(body: &[u8]) {
    let Ok(text) = strict_json::check(body, &JsonBounds::default()) else { return };
    if let Ok(verdict) = decode::verdict(text) {
        let written = encode::verdict(&verdict);
        assert_eq!(decode::verdict(written.get()).unwrap(), verdict, "{written}");
        check_admission(verdict);
    }
    if let Ok(policy) = decode::policy(text) {
        let written = encode::policy(&policy);
        assert_eq!(decode::policy(written.get()).unwrap(), policy, "{written}");
    }
    let _others = (decode::directive(text), decode::policy_file(text), decode::registration_result(text));
}

fn check_admission(verdict: Verdict) {
    static CALL: LazyLock<Call> = LazyLock::new(|| decode::intent(&call().to_string()).unwrap());
    static ACCEPT_UNSIGNED: LazyLock<AcceptUnsigned> =
        LazyLock::new(|| AcceptUnsigned::from_command_line(&AUTHORITY));
    let unsigned = Some(*ACCEPT_UNSIGNED);
    let nobody = Trust::empty(AgentDid::parse(EXECUTOR).unwrap());
    let (call, authentic) =
        VerifiedVerdict::from_call(CALL.clone(), verdict.clone(), None, &nobody, unsigned, now()).unwrap();
    let admission = admit(call, authentic, now());
    let Ok(Admission::Run(admitted)) = admission else { return };
    assert!(matches!(verdict.decision, Decision::Approved | Decision::Conditional), "{verdict:?}");
    assert_eq!(verdict.intent, CALL.intent);
    assert!(verdict.expires_at.is_some_and(|at| at > now()), "{verdict:?}");
    assert!(admitted.check_expiry(now()).is_ok() && admitted.keep_until() >= admitted.expires_at());
}

// --- scopes ---

/// The input is two lines with a pattern each, and one with a path. An accepted pattern contains
/// only paths in its root, which is never `/`. Its text is parsed as the same pattern. A grant of
/// both patterns grants the path exactly if both contain it.
pub(crate) fn scope(body: &[u8]) {
    let Ok(text) = std::str::from_utf8(body) else { return };
    let mut lines = text.splitn(3, '\n');
    let [one, other, path] = [(); 3].map(|()| lines.next().unwrap_or_default());
    let path = path_of(path);
    let _tree = Tree::parse_path(one);
    let Ok(one) = Area::parse(one) else { return };
    one.iter().for_each(|area| stays_below_its_root(area, &path));
    let Ok(other) = Area::parse(other) else { return };
    for wide in &one {
        for area in other.iter().filter(|area| wide.covers(area)) {
            assert!(!area.contains(&path) || wide.contains(&path), "{wide} covers {area}, and not {path}");
        }
    }
    let both = [&one, &other].into_iter().all(|areas| areas.iter().any(|area| area.contains(&path)));
    let claims = Claims { areas: Some(one), ..Claims::default() };
    let Ok(grant) = Grant::for_operator(&AUTHORITY, claims, &ceilings(other)) else { return };
    let granted = grant.roots().iter().any(|root| root.grants(&path));
    assert_eq!(granted, both, "{path} under {grant:?}");
    let led = grant.roots().iter().any(|root| root.can_grant_below(above(&path)));
    assert!(!granted || led || grant.roots().iter().any(|root| root.tree().path() == path));
}

fn stays_below_its_root(area: &Area, path: &str) {
    let root = area.root().path();
    let names: Vec<&str> = root.split('/').skip(1).collect();
    assert!(root.starts_with('/') && !names.is_empty(), "{root}");
    assert!(names.iter().all(|name| !["", ".", ".."].contains(name) && !name.contains('\0')), "{root}");
    if area.contains(path) {
        assert!(area.root().contains(path));
        let below = path.strip_prefix(root).unwrap_or_else(|| panic!("{path} is not in {root}"));
        assert!(below.is_empty() || below.starts_with('/'), "{path} is beside {root}");
    }
    assert!(area.covers(area));
    let written = area.to_string();
    assert_eq!(Area::parse(&written).as_deref(), Ok(std::slice::from_ref(area)), "{written}");
}

/// A path in the form that the walk uses: without empty names, `.` and `..`.
fn path_of(text: &str) -> String {
    let names = text.split('/').filter(|name| !["", ".", ".."].contains(name));
    names.map(|name| format!("/{name}")).collect()
}

/// The authority of this process, which its decoders share.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::take().unwrap());

fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

fn ceilings(areas: Vec<Area>) -> Ceilings {
    Ceilings {
        network_budgets: NetworkBudgets {
            requests: 1,
            connections: 1,
            sent_bytes: 1,
            received_bytes: 1,
            ..NetworkBudgets::ZERO
        },
        areas,
        access: Access::ReadWrite,
        ..Ceilings::closed()
    }
}

// --- proofs ---

const ISSUER: &str = "did:a2g:governor:1.0:fuzz";
const EXECUTOR: &str = "did:a2g:executor:1.0:fuzz";
const KEY: &str = "fuzz";
const MAX_SECONDS: u64 = 600;
/// The time of every decoding, in seconds since the epoch.
const NOW: i64 = 1_800_000_000;

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(NOW).unwrap()
}

/// The call that the one good proof is for.
fn call() -> Value {
    json!({
        "agent_did": "did:aeon:tester:1.0:abc123",
        "intent_id": "550e8400-e29b-41d4-a716-446655440000",
        "tool": "write_file",
        "arguments": { "content": "x", "path": "/workspace/a" },
    })
}

fn good_verdict() -> Value {
    json!({
        "verdict": "APPROVED",
        "intent_id": call()["intent_id"],
        "capability_manifest": { "max_memory_mb": 64, "filesystem_scope": ["/workspace/**"] },
        "expires_at": "2027-01-15T08:05:00Z",
    })
}

fn good_claims() -> Value {
    let arguments = Sha256::digest(call()["arguments"].to_string());
    json!({
        "iss": ISSUER, "aud": EXECUTOR, "sub": call()["agent_did"], "jti": "one",
        "iat": NOW, "nbf": NOW, "exp": NOW + 300,
        "intent_id": call()["intent_id"], "tool": call()["tool"],
        "arguments_sha256": arguments.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "verdict": good_verdict(),
    })
}

fn good_header() -> Value {
    json!({ "alg": "EdDSA", "kid": KEY })
}

struct Signed {
    key: SigningKey,
    trust: Trust,
    call: Call,
    verdict: Verdict,
    good: String,
}

static SIGNED: LazyLock<Signed> = LazyLock::new(|| {
    let key = SigningKey::from_bytes(&[7; 32]);
    let x = URL_SAFE_NO_PAD.encode(key.verifying_key().to_bytes());
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": KEY, "iss": ISSUER });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key.jwk"), jwk.to_string()).unwrap();
    let settings = TrustSettings {
        keys: Some(folder.path().to_owned()),
        max_lifetime: std::time::Duration::from_secs(MAX_SECONDS),
        signature: None,
    };
    let trust = Trust::read(&settings, AgentDid::parse(EXECUTOR).unwrap()).unwrap();
    let good = compact(&key, good_header().to_string().as_bytes(), good_claims().to_string().as_bytes());
    Signed {
        key,
        trust,
        call: decode::intent(&call().to_string()).unwrap(),
        verdict: decode::verdict(&good_verdict().to_string()).unwrap(),
        good,
    }
});

fn compact(key: &SigningKey, header: &[u8], payload: &[u8]) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()).to_bytes());
    format!("{signed}.{signature}")
}

fn is_accepted(compact: &str) -> bool {
    let Signed { trust, call, verdict, .. } = &*SIGNED;
    let Value::Object(sent) = good_verdict() else { unreachable!("it is an object") };
    let proof = Proof { compact: compact.to_owned(), verdict: sent };
    VerifiedVerdict::from_call(call.clone(), verdict.clone(), Some(&proof), trust, None, now()).is_ok()
}

/// The first byte selects what the others are: a whole proof, changes to the good proof, the claims
/// of a proof that is signed with the trusted key, or its header. Only the good proof is accepted,
/// and one that the key has signed with equivalent content.
pub(crate) fn proof(body: &[u8]) {
    let Signed { key, good, .. } = &*SIGNED;
    let Some((kind, rest)) = body.split_first() else { return };
    match kind % 4 {
        0 => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            assert_eq!(is_accepted(text), text == good, "{text}");
        }
        1 => {
            let Ok(text) = String::from_utf8(apply_changes(good.as_bytes(), rest)) else { return };
            assert_eq!(is_accepted(&text), text == *good, "{text}");
        }
        2 => {
            let text = compact(key, good_header().to_string().as_bytes(), rest);
            assert!(!is_accepted(&text) || says_the_same(rest), "{text}");
        }
        _ => {
            let text = compact(key, rest, good_claims().to_string().as_bytes());
            assert!(!is_accepted(&text) || names_the_key(rest), "{text}");
        }
    }
}

/// Each change is three bytes: a position in two bytes, and the new byte there. The position after
/// the end appends a byte.
fn apply_changes(good: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut text = good.to_vec();
    for change in changes.chunks_exact(3) {
        let [high, low, byte] = change else { continue };
        let at = usize::from(u16::from_be_bytes([*high, *low])) % (text.len() + 1);
        match text.get_mut(at) {
            Some(there) => *there = *byte,
            None => text.push(*byte),
        }
    }
    text
}

fn says_the_same(payload: &[u8]) -> bool {
    let (said, good): (Value, Value) = (serde_json::from_slice(payload).unwrap(), good_claims());
    let second = |name: &str| said[name].as_i64().unwrap_or(i64::MIN);
    let id = |value: &Value| value.as_str().and_then(|id| IntentId::parse(id).ok());
    let lifetime = Duration::seconds(second("exp").saturating_sub(second("iat")));
    ["iss", "aud", "sub", "tool", "arguments_sha256"].iter().all(|name| said[name] == good[name])
        && id(&said["intent_id"]) == id(&good["intent_id"])
        && plain(&said["verdict"]) == plain(&good["verdict"])
        && lifetime.is_positive()
        && lifetime.whole_seconds() <= i64::try_from(MAX_SECONDS).unwrap()
        && second("iat").max(second("nbf")) <= NOW + 30
}

/// With every number as a double: canonical JSON knows no others.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(values) => values.iter().map(plain).collect(),
        Value::Object(members) => members.iter().map(|(key, value)| (key.clone(), plain(value))).collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

fn names_the_key(header: &[u8]) -> bool {
    let said: Value = serde_json::from_slice(header).unwrap();
    let known = |name: &String| ["alg", "kid", "typ"].contains(&name.as_str());
    said["kid"] == KEY
        && (said["alg"] == "EdDSA" || said["alg"] == "Ed25519")
        && said.as_object().is_some_and(|members| members.keys().all(known))
}

/// Checks that the good proof is accepted: otherwise [`proof`] would compare nothing.
pub(crate) fn the_good_proof_is_believed() {
    assert!(is_accepted(&SIGNED.good));
    assert!(says_the_same(good_claims().to_string().as_bytes()));
    assert!(names_the_key(good_header().to_string().as_bytes()));
}
