//! Signatures as the SDKs make them.
//!
//! The hashes were made with Python 3 (`hmac`, `json.dumps(…, sort_keys=True, separators=(",", ":"))`,
//! with `ensure_ascii` as the SDK for Python has it, and without for the others).

use super::*;
use a2g_wire::a2g::decode::context_signature;
use time::macros::datetime;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const SIGNED_AT: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
const TIMESTAMP: &str = "1795262400000";
const NONCE: &str = "550e8400-e29b-41d4-a716-446655440000";
const INTENT: &str = r#""agent_did": "did:aeon:a:1.0:b", "intent_id": "550e8400-e29b-41d4-a716-446655440001",
    "tool": "write_file", "arguments": {"path": "/tmp/\u00fc\ud83d\ude00\u007f",
    "z": [1, 1.5, 1e-07, {"b": null, "a": "\n\"\\\u0001/"}], "n": 1e+16}"#;

/// The params of an intent; `context` has these members beside the signature.
fn params(context: &str, hash: &str) -> String {
    let signature = format!(r#"{{"timestamp":"{TIMESTAMP}","nonce":"{NONCE}","hash":"{hash}"}}"#);
    format!(r#"{{ {INTENT}, "context": {{ {context} "signature": {signature} }} }}"#)
}

fn of(form: KeyForm, escape: bool) -> IntentSignatures {
    IntentSignatures::new(KEY.as_bytes(), form, escape, Path::new("a test")).unwrap()
}

fn check(signatures: &IntentSignatures, params: &str, now: OffsetDateTime) -> Result<(), BadSignature> {
    let signature = context_signature(params, signatures.escape_non_ascii()).unwrap();
    signatures.check(signature.as_ref(), now)
}

/// Key form, escaping, the context that was signed, the hash.
const GOOD: [(KeyForm, bool, &str, &str); 8] = {
    use KeyForm::{Ascii, Bytes};
    let context = r#""session_id": "s", "reasoning": "ö","#;
    [
        (Ascii, true, "", "83c71ea14c541359bb4462c88acd34101828cee490cd950a8db9086ae3c05d24"),
        (Ascii, false, "", "b300edf11124971ecf1dddd2263bfd9d33a4eb0ca39fd84fa20d722815bab940"),
        (Bytes, true, "", "073625d94e60810372a1a4203d4a28f6f0a6a8311dca584b9cf7263add86eef0"),
        (Bytes, false, "", "ce0636bb8180937fca8ae01124609f6c75a8a0b97abb44b720c1ab15d0a861ad"),
        (Ascii, true, context, "e6e143bf413f4af2607b6b39e81d8cecc045fd6714eea41764de7a36fbc496db"),
        (Bytes, false, context, "72d588c6449b00fb50d81890690dcb77a94a4a8e2f05bebc8a2994cf7b1fa30e"),
        // Signed with an empty context instead of none.
        (Ascii, true, "", "8dfa97ca16acd06caca21c001bdac576384d32967e13b38c0d474aa6978a3e81"),
        (Bytes, false, "", "d20f45168498ab42429ee0d7141c680a37a599a5da57a3ffa6555b3a119b6903"),
    ]
};

#[test]
fn what_the_sdks_sign_is_good_in_the_mode_that_was_agreed_upon_and_in_no_other() {
    for (form, escape, context, hash) in GOOD {
        let params = params(context, hash);
        for other_form in [KeyForm::Ascii, KeyForm::Bytes] {
            for other_escape in [true, false] {
                let good = check(&of(other_form, other_escape), &params, SIGNED_AT).is_ok();
                assert_eq!(good, (other_form, other_escape) == (form, escape), "{form:?} {escape} {hash}");
            }
        }
    }
}

#[test]
fn a_signature_is_of_one_intent() {
    let (form, escape, context, hash) = GOOD[5];
    let good = params(context, hash);
    for (from, to) in [
        ("did:aeon:a:", "did:aeon:b:"),
        ("440001\"", "440002\""),
        ("write_file", "read_file"),
        ("1e-07", "1e-7"),
        ("null", "0"),
        ("\"s\"", "\"t\""),
        (TIMESTAMP, "1795262400001"),
        (NONCE, "550e8400-e29b-41d4-a716-446655440009"),
        ("72d588", "72d589"),
    ] {
        let other = good.replacen(from, to, 1);
        assert_ne!(other, good, "{from}");
        let bad = check(&of(form, escape), &other, SIGNED_AT).unwrap_err();
        assert_eq!(bad.blocked_by, BlockedBy::IntentUntrusted, "{from}");
    }
    // Another order of members, other white space and other escapes yield the same intent.
    let same = good.replacen("\"z\"", "\"\\u007a\"", 1).replace(", ", " ,\n");
    assert!(check(&of(form, escape), &same, SIGNED_AT).is_ok());
    let none = format!("{{ {INTENT} }}");
    assert_eq!(
        check(&of(form, escape), &none, SIGNED_AT).unwrap_err().blocked_by,
        BlockedBy::IntentUntrusted
    );
}

#[test]
fn a_signature_is_good_for_five_minutes_and_once() {
    let (form, escape, context, hash) = GOOD[4];
    let params = params(context, hash);
    let second = Duration::SECOND;
    for (at, good) in [
        (SIGNED_AT - WINDOW, true),
        (SIGNED_AT - WINDOW - second, false),
        (SIGNED_AT + WINDOW, true),
        (SIGNED_AT + WINDOW + second, false),
    ] {
        assert_eq!(check(&of(form, escape), &params, at).is_ok(), good, "{at}");
    }
    let signatures = of(form, escape);
    check(&signatures, &params, SIGNED_AT - WINDOW).unwrap();
    // A nonce is remembered for as long as its signature is valid.
    for at in [SIGNED_AT - WINDOW, SIGNED_AT, SIGNED_AT + WINDOW] {
        assert_eq!(
            check(&signatures, &params, at).unwrap_err().blocked_by,
            BlockedBy::IntentReplayed,
            "{at}"
        );
    }
}

#[test]
fn a_signature_of_another_shape_is_refused_with_its_place() {
    let good = params("", GOOD[0].3);
    for (from, to, place) in [
        (format!("\"{TIMESTAMP}\""), TIMESTAMP.to_owned(), "/context/signature/timestamp"),
        (TIMESTAMP.to_owned(), format!("+{TIMESTAMP}"), "/context/signature/timestamp"),
        (TIMESTAMP.to_owned(), format!("0{TIMESTAMP}"), "/context/signature/timestamp"),
        (NONCE.to_owned(), "a:b:c:d:e".to_owned(), "/context/signature/nonce"),
        (NONCE.to_owned(), String::new(), "/context/signature/nonce"),
        ("83c71e".to_owned(), "83C71E".to_owned(), "/context/signature/hash"),
        ("83c71e".to_owned(), String::new(), "/context/signature/hash"),
    ] {
        match context_signature(&good.replacen(&from, &to, 1), true) {
            Err(a2g_types::fault::Fault::InvalidParams { pointer, .. }) => assert_eq!(pointer, place),
            other => panic!("{from}: {other:?}"),
        }
    }
}

#[test]
fn a_key_is_64_digits_and_is_shown_nowhere() {
    for bad in ["", "00", &KEY.to_uppercase(), &format!("{KEY}00"), &KEY[1..]] {
        let error = IntentSignatures::new(bad.as_bytes(), KeyForm::Ascii, true, Path::new("k")).unwrap_err();
        assert!(bad.is_empty() || bad == "00" || !format!("{error} {error:?}").contains(bad));
    }
    assert!(!format!("{:?}", of(KeyForm::Ascii, true)).contains("0001"));
}
