//! Valid proofs, and every way in which one is rejected.

use super::*;
use a2g_types::call::{Door, Priority};
use a2g_types::ident::{IntentId, Issuer, ToolName};
use a2g_types::verdict::{Decision, Manifest, Rationale};
use proptest::prelude::*;
use serde_json::json;
use std::sync::OnceLock;
use time::macros::datetime;

const NOW: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
const EXECUTOR: &str = "did:a2g:executor:1.0:test";

fn did(text: &str) -> AgentDid {
    AgentDid::parse(text).unwrap()
}

fn pair(issuer: &str) -> KeyPair {
    let folder = tempfile::tempdir().unwrap();
    KeyPair::create(&folder.path().join("key.jwk"), Issuer::parse(issuer).unwrap()).unwrap()
}

/// One governor's key, and an executor that trusts it.
fn governor() -> &'static (KeyPair, Trust) {
    static GOVERNOR: OnceLock<(KeyPair, Trust)> = OnceLock::new();
    GOVERNOR.get_or_init(|| {
        let pair = pair("did:a2g:governor:1.0:test");
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        TrustedKeys::add(&keys, pair.public()).unwrap();
        let max_lifetime = std::time::Duration::from_secs(600);
        let settings = TrustSettings { keys: Some(keys), max_lifetime, signature: None };
        (pair, Trust::read(&settings, did(EXECUTOR)).unwrap())
    })
}

fn call() -> Call {
    Call {
        caller_timeout: None,
        priority: Priority::Normal,
        door: Door::A2g,
        agent: did("did:aeon:agent:1.0:a"),
        intent: IntentId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap(),
        is_new: false,
        charge: a2g_types::memory::Charge::default(),
        parent: None,
        caller_tools: None,
        session: None,
        tool: ToolName::parse("write_file").unwrap(),
        arguments: json!({ "path": "/workspace/x", "n": 1 }).as_object().unwrap().clone(),
        context: None,
    }
}

fn verdict() -> Verdict {
    Verdict {
        decision: Decision::Approved,
        intent: call().intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: Some(NOW + Duration::minutes(5)),
        reason: None,
        rationale: Rationale::default(),
    }
}

fn sent(compact: String) -> Proof {
    Proof { compact, verdict: serde_json::from_str(encode::verdict(&verdict()).get()).unwrap() }
}

/// A proof with these two texts, properly signed.
fn signed(header: &str, claims: &str) -> Proof {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(governor().0.sign(signed.as_bytes()));
    sent(format!("{signed}.{signature}"))
}

fn header() -> Value {
    json!({ "alg": "EdDSA", "kid": governor().0.public().id() })
}

fn claims() -> Value {
    let proof = governor().0.prove(&did(EXECUTOR), &call(), &verdict(), NOW).unwrap();
    let payload = proof.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

/// A proof whose header has another member.
fn with_header(member: &str, value: Value) -> Proof {
    let mut header = header();
    header[member] = value;
    signed(&header.to_string(), &claims().to_string())
}

/// A proof whose claims have another member.
fn with_claim(member: &str, value: Value) -> Proof {
    let mut claims = claims();
    claims[member] = value;
    with_claims(&claims.to_string())
}

/// A proof with this text of claims.
fn with_claims(claims: &str) -> Proof {
    signed(&header().to_string(), claims)
}

fn believe(proof: &Proof) -> Result<VerifiedProof, ProofError> {
    governor().1.verify(&call(), proof, NOW).map(|(arguments, proven)| {
        assert_eq!(arguments, call().arguments);
        proven
    })
}

fn refused(proof: &Proof, by: BlockedBy, words: &str) {
    let ProofError { blocked_by, message } = believe(proof).unwrap_err();
    assert_eq!(blocked_by, by, "{message}");
    assert!(message.starts_with("the `proof` ") && message.contains(words), "`{words}`: {message}");
}

#[test]
fn what_a_governor_signs_is_believed() {
    let compact = governor().0.prove(&did(EXECUTOR), &call(), &verdict(), NOW).unwrap();
    let proven = believe(&sent(compact)).unwrap();
    assert_eq!(proven.id.issuer().as_str(), "did:a2g:governor:1.0:test");
    assert_eq!((proven.expires_at, proven.module), (NOW + Duration::minutes(5), None));
    // The other name of the same algorithm, and a type.
    let mut other = header();
    other["alg"] = json!("Ed25519");
    other["typ"] = json!("JWT");
    assert!(believe(&signed(&other.to_string(), &claims().to_string())).is_ok());
    let pinned = json!(Digest::compute(b"module").to_string());
    let proven = believe(&with_claim("tool_sha256", pinned)).unwrap();
    assert_eq!(proven.module, Some(Digest::compute(b"module")));
}

#[test]
fn headers_that_could_mean_something_else_are_refused() {
    let cases = [
        ("alg", json!("none"), "`alg`"),
        ("alg", json!("HS256"), "`alg`"),
        ("alg", json!("eddsa"), "`alg`"),
        ("alg", json!("Ed448"), "`alg`"),
        ("alg", json!(["EdDSA"]), "`alg`"),
        ("kid", json!(1), "`kid`"),
        ("kid", json!("someone"), "does not trust"),
        ("typ", json!("JOSE"), "`typ`"),
        ("crit", json!(["b64"]), "`crit`"),
        ("b64", json!(false), "`b64`"),
        ("jwk", json!({}), "`jwk`"),
        ("jku", json!("https://attacker.example"), "`jku`"),
        ("x5u", json!("https://attacker.example"), "`x5u`"),
        ("x5c", json!([]), "`x5c`"),
        ("cty", json!("JWT"), "`cty`"),
        ("zip", json!("DEF"), "`zip`"),
    ];
    for (member, value, words) in cases {
        refused(&with_header(member, value), BlockedBy::VerdictUntrusted, words);
    }
    for (header, words) in [
        ("{}".to_owned(), "`alg` is missing"),
        (r#"{"alg":"EdDSA"}"#.to_owned(), "`kid` is missing"),
        ("[]".to_owned(), "object"),
        (String::new(), "header"),
        (header().to_string().replacen('{', r#"{"alg":"EdDSA","#, 1), "duplicate key"),
        (header().to_string().replacen('{', r#"{"\u0061lg":"none","#, 1), "duplicate key"),
    ] {
        refused(&signed(&header, &claims().to_string()), BlockedBy::VerdictUntrusted, words);
    }
}

#[test]
fn claims_that_are_not_exactly_these_are_refused() {
    for member in claims().as_object().unwrap().keys() {
        let mut less = claims();
        less.as_object_mut().unwrap().remove(member);
        refused(&with_claims(&less.to_string()), BlockedBy::VerdictUntrusted, "is missing");
    }
    let cases = [
        ("aud", json!([EXECUTOR]), "`aud`"),
        ("exp", json!("1"), "`exp`"),
        ("exp", json!(1.5), "`exp`"),
        ("exp", json!(-1), "`exp`"),
        ("exp", json!(null), "`exp`"),
        ("exp", json!(u64::MAX), "`exp`"),
        ("iat", json!(1e3), "`iat`"),
        ("jti", json!(""), "`jti`"),
        ("jti", json!("x".repeat(129)), "`jti`"),
        ("arguments_sha256", json!("AA"), "`arguments_sha256`"),
        ("tool_sha256", json!(null), "`tool_sha256`"),
        ("verdict", json!([]), "`verdict`"),
        ("scope", json!("narrower"), "`scope`"),
    ];
    for (member, value, words) in cases {
        refused(&with_claim(member, value), BlockedBy::VerdictUntrusted, words);
    }
    let twice = claims().to_string().replacen('{', r#"{"jti":"other","#, 1);
    refused(&with_claims(&twice), BlockedBy::VerdictUntrusted, "duplicate key");
}

#[test]
fn a_proof_of_something_else_is_a_mismatch() {
    let cases = [
        ("aud", json!("did:a2g:executor:1.0:other"), "another executor"),
        ("sub", json!("did:aeon:agent:1.0:b"), "another agent"),
        ("intent_id", json!("550e8400-e29b-41d4-a716-446655440001"), "another intent"),
        ("tool", json!("read_file"), "another tool"),
        ("arguments_sha256", json!(Digest::compute(b"{}").to_string()), "other arguments"),
    ];
    for (member, value, words) in cases {
        refused(&with_claim(member, value), BlockedBy::VerdictMismatch, words);
    }
    let mut wider = with_claims(&claims().to_string());
    wider.verdict["capability_manifest"]["filesystem_scope"] = json!(["/workspace/**"]);
    refused(&wider, BlockedBy::VerdictMismatch, "another verdict");
    let mut more = with_claims(&claims().to_string());
    more.verdict.insert("conditions_of_mine".to_owned(), json!([]));
    refused(&more, BlockedBy::VerdictMismatch, "another verdict");
}

#[test]
fn a_proof_speaks_for_its_keys_issuer_and_within_its_time() {
    let at = |seconds: i64| json!(NOW.unix_timestamp() + seconds);
    for (member, value, words) in [
        ("iss", json!("did:a2g:governor:1.0:other"), "may speak for"),
        ("iat", at(31), "not valid before"),
        ("nbf", at(31), "not valid before"),
        ("exp", at(0), "before it was issued"),
        ("exp", at(601), "601 seconds, but at most 600"),
    ] {
        refused(&with_claim(member, value), BlockedBy::VerdictUntrusted, words);
    }
    for (member, value) in [("iat", at(30)), ("nbf", at(30)), ("exp", at(600))] {
        assert!(believe(&with_claim(member, value)).is_ok(), "{member}");
    }
}

#[test]
fn a_key_that_is_not_trusted_and_one_that_signs_for_another_are_refused() {
    let stranger = pair("did:a2g:governor:1.0:test");
    let compact = stranger.prove(&did(EXECUTOR), &call(), &verdict(), NOW).unwrap();
    refused(&sent(compact.clone()), BlockedBy::VerdictUntrusted, "does not trust");
    // The same proof under the name of the trusted key.
    let payload = compact.split('.').nth(1).unwrap();
    let renamed = format!("{}.{payload}", URL_SAFE_NO_PAD.encode(header().to_string()));
    let signature = URL_SAFE_NO_PAD.encode(stranger.sign(renamed.as_bytes()));
    refused(&sent(format!("{renamed}.{signature}")), BlockedBy::VerdictUntrusted, "is not signed by the key");
    let nobody = Trust::empty(did(EXECUTOR));
    let message = nobody.verify(&call(), &sent(compact), NOW).unwrap_err().message;
    assert!(message.contains("trusts no key"), "{message}");
}

#[test]
fn the_tool_gets_what_was_hashed() {
    let mut call = call();
    let compact = governor().0.prove(&did(EXECUTOR), &call, &verdict(), NOW).unwrap();
    call.arguments = serde_json::from_str(r#"{"n":1.0,"path":"\/workspace\/x"}"#).unwrap();
    let (arguments, _) = governor().1.verify(&call, &sent(compact), NOW).unwrap();
    assert_eq!(Value::Object(arguments).to_string(), r#"{"n":1,"path":"/workspace/x"}"#);
    call.arguments = json!({ "n": (1_u64 << 53) }).as_object().unwrap().clone();
    assert!(governor().0.prove(&did(EXECUTOR), &call, &verdict(), NOW).is_err());
    let compact = governor().0.prove(&did(EXECUTOR), &self::call(), &verdict(), NOW).unwrap();
    let message = governor().1.verify(&call, &sent(compact), NOW).unwrap_err().message;
    assert!(message.contains("9007199254740992"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_single_changed_byte_is_refused(at in any::<prop::sample::Index>(), to in 0_u8..128) {
        let mut bytes = with_claims(&claims().to_string()).compact.into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        prop_assert!(believe(&sent(String::from_utf8(bytes).unwrap())).is_err());
    }

    #[test]
    fn anything_else_is_refused_without_a_panic(compact in "[A-Za-z0-9_.=+/-]{0,200}") {
        prop_assert!(believe(&sent(compact)).is_err());
    }
}

#[test]
fn one_text_for_each_proof() {
    let compact = with_claims(&claims().to_string()).compact;
    let (signed, signature) = compact.rsplit_once('.').unwrap();
    // 64 bytes leave four bits in the last of 86 characters. Other values of them decode to the same bytes in a
    // lenient reader.
    let last = signature.chars().last().unwrap();
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for digit in digits.chars().filter(|digit| *digit != last) {
        let other = format!("{signed}.{}{digit}", &signature[..85]);
        assert!(believe(&sent(other)).is_err(), "{digit}");
    }
    for other in [format!("{compact}="), format!("{compact}."), format!(" {compact}"), format!(".{compact}")]
    {
        assert!(believe(&sent(other)).is_err());
    }
    // The same signature with the order of the group added to its second half.
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut carry = 0;
    for (byte, order) in bytes[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = u8::try_from(sum & 0xff).unwrap();
        carry = sum >> 8;
    }
    assert_eq!(carry, 0);
    refused(
        &sent(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(bytes))),
        BlockedBy::VerdictUntrusted,
        "is not signed by the key",
    );
}
