//! The trust in signatures: both kinds of keys, the claims, and the choice among several signatures.

use super::super::tool_key::ToolSigningKey;
use super::super::tool_signature::{MAX_SIGNATURES, PackageToSign, sign_package};
use super::*;
use a2g_types::clock::ManualClock;
use a2g_types::ident::Issuer;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use time::Duration;
use time::macros::datetime;

const NOW: OffsetDateTime = datetime!(2026-11-26 05:00 UTC);
const VERSION: &str = "1.2.3";

/// PKCS#8 and SubjectPublicKeyInfo of one P-256 key, and PKCS#8 of an Ed25519 key, made with `openssl genpkey`.
const P256_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgbFwQFbldQTMyj+26
5+F1Mcsnm0N/59vcje6aWRc+7JGhRANCAAQZMcJKXvgyp49k7+sW0VqESW6kzkNZ
VuMGj3ogGHKzkf1+ZEZJY0dprVMW67tGldKdHL6advmEqdEHETNbnBh5
-----END PRIVATE KEY-----
";
const P256_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGTHCSl74MqePZO/rFtFahElupM5D
WVbjBo96IBhys5H9fmRGSWNHaa1TFuu7RpXSnRy+mnb5hKnRBxEzW5wYeQ==
-----END PUBLIC KEY-----
";
const ED25519_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEICeDdgMP6mPDlCP7zNa/Vum0cu9UhvJT47MXF8YEq+pF
-----END PRIVATE KEY-----
";
const ED25519_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA3njhBAb3bFd5heFlP4X8NTugypkxI2UqF4qxlMym0tE=
-----END PUBLIC KEY-----
";

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: Arc::new(ManualClock::new(NOW)) }
    }

    fn file(&self, name: &str, text: &[u8], mode: u32) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn private(&self, text: &str) -> ToolSigningKey {
        ToolSigningKey::read(&self.file("private", text.as_bytes(), 0o600)).unwrap()
    }

    /// The signers `p256`, who may sign `read_*`, and `ed25519`, who may sign every tool.
    fn trust(&self) -> ToolTrust {
        let signer = |name: &str, key: &str, pattern: &str| SignerSettings {
            name: SignerName::parse(name).unwrap(),
            key_file: self.file(name, key.as_bytes(), 0o644),
            tools: vec![ToolPattern::parse(pattern).unwrap()],
        };
        let signers = [signer("p256", P256_PUBLIC, "read_*"), signer("ed25519", ED25519_PUBLIC, "*")];
        ToolTrust::read(Some(&signers), self.clock.clone()).unwrap()
    }
}

fn name(text: &str) -> ToolName {
    ToolName::parse(text).unwrap()
}

fn package() -> Digest {
    Digest::compute(b"package")
}

fn signed(key: &ToolSigningKey, tool: &str, days: Option<i64>, existing: Option<&[u8]>) -> Vec<u8> {
    let expires_at = days.map(|days| NOW + Duration::days(days));
    let what = PackageToSign { name: &name(tool), version: VERSION, package: package(), expires_at };
    sign_package(key, what, existing).unwrap()
}

fn check(trust: &ToolTrust, tool: &str, signatures: &[u8]) -> Result<TrustedTool, SignatureError> {
    let name = name(tool);
    let offered =
        OfferedTool { name: &name, version: VERSION, package: package(), signatures: Some(signatures) };
    trust.check(Some(offered))
}

fn signer_of(trusted: &TrustedTool) -> &str {
    trusted.signature().unwrap().signer.as_str()
}

#[test]
fn a_signer_signs_the_tools_of_its_patterns_until_the_signature_expires() {
    let fixture = Fixture::new();
    let trust = fixture.trust();
    let p256 = fixture.private(P256_PRIVATE);
    let trusted = check(&trust, "read_file", &signed(&p256, "read_file", Some(2), None)).unwrap();
    assert_eq!(signer_of(&trusted), "p256");
    assert_eq!(trusted.signature().unwrap().package, package());
    assert_eq!(trusted.check_expiry(NOW + Duration::days(2) - Duration::SECOND), Ok(()));
    let expired = trusted.check_expiry(NOW + Duration::days(2)).unwrap_err();
    assert!(expired.to_string().contains("expired at 2026-11-28T05:00:00Z"), "{expired}");
    fixture.clock.set(NOW + Duration::days(3));
    let late = check(&trust, "read_file", &signed(&p256, "read_file", Some(2), None));
    assert_eq!(late, Err(expired));
    let other = check(&trust, "write_file", &signed(&p256, "write_file", None, None)).unwrap_err();
    assert!(
        matches!(other, SignatureError::NotAllowed { .. }) && other.to_string().contains("`read_*`"),
        "{other}"
    );
}

#[test]
fn of_several_signatures_the_valid_one_that_expires_last_counts() {
    let fixture = Fixture::new();
    let trust = fixture.trust();
    let [p256, ed25519] = [P256_PRIVATE, ED25519_PRIVATE].map(|key| fixture.private(key));
    let both = |first: Option<i64>, second: Option<i64>| {
        let one = signed(&p256, "read_file", first, None);
        signed(&ed25519, "read_file", second, Some(&one))
    };
    for (file, expected) in [
        (both(Some(1), Some(2)), "ed25519"),
        (both(Some(3), Some(2)), "p256"),
        (both(None, Some(2)), "p256"),
        (both(Some(1), None), "ed25519"),
        (both(Some(-1), Some(1)), "ed25519"),
    ] {
        assert_eq!(signer_of(&check(&trust, "read_file", &file).unwrap()), expected);
    }
    // The signature that passed most checks selects the message, wherever it is in the file.
    let refused = check(&trust, "read_file", &both(Some(-1), Some(-1))).unwrap_err();
    assert!(matches!(refused, SignatureError::Expired { .. }), "{refused}");
    // Signing again with the same key replaces its signature.
    let again = signed(&ed25519, "read_file", Some(9), Some(&both(Some(1), Some(2))));
    assert_eq!(serde_json::from_slice::<Value>(&again).unwrap()["signatures"].as_array().unwrap().len(), 2);
}

/// What is put beside a tool takes no place of what is accepted: forged signatures, those of a signer for another package,
/// and his expired ones.
#[test]
fn the_signatures_are_kept_that_come_nearest_to_being_accepted() {
    let fixture = Fixture::new();
    let trust = fixture.trust();
    let key = fixture.private(ED25519_PRIVATE);
    let read = |file: Vec<u8>| parse_signatures(&file).unwrap().remove(0);
    let valid = read(signed(&key, "read_file", Some(1), None));
    let expired = read(signed(&key, "read_file", Some(-1), None));
    let other = read(signed(&key, "other_tool", None, None));
    let forged = StoredSignature { signature: vec![0; 64], ..valid.clone() };
    let name = name("read_file");
    let offered = OfferedTool { name: &name, version: VERSION, package: package(), signatures: None };
    let all = [forged.clone(), expired.clone(), other.clone(), valid.clone(), forged.clone()];
    assert_eq!(trust.keep_nearest(&offered, all.to_vec()), [valid]);
    assert_eq!(trust.keep_nearest(&offered, vec![forged.clone(), expired.clone(), other.clone()]), [expired]);
    assert_eq!(trust.keep_nearest(&offered, vec![other.clone(), forged.clone()]), [other]);
    assert_eq!(trust.keep_nearest(&offered, Vec::new()), []);
    assert_eq!(ToolTrust::anyone().keep_nearest(&offered, all.to_vec()), all);
}

/// A signature over `payload` by the P-256 key.
fn over(key: &ToolSigningKey, payload: &Value) -> Vec<u8> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let payload = payload.to_string();
    let signature = key.sign(payload.as_bytes()).unwrap();
    let entry = json!({ "payload": STANDARD.encode(payload), "signature": STANDARD.encode(signature) });
    json!({ "signatures": [entry] }).to_string().into_bytes()
}

type Change<'a> = &'a dyn Fn(&mut Value);

#[test]
fn a_payload_is_what_cosign_writes_and_nothing_else() {
    let fixture = Fixture::new();
    let trust = fixture.trust();
    let key = fixture.private(ED25519_PRIVATE);
    let payload = |change: Change<'_>| {
        let mut payload = json!({
            "critical": {
                "identity": { "docker-reference": "registry.example.com/tools/read_file" },
                "image": { "docker-manifest-digest": format!("sha256:{}", package()) },
                "type": "cosign container image signature",
            },
            "optional": null,
        });
        change(&mut payload);
        check(&trust, "read_file", &over(&key, &payload))
    };
    assert!(payload(&|_| {}).is_ok());
    assert!(payload(&|payload| payload["optional"] = json!({ "build": "42", "more": [1] })).is_ok());
    let cases: [(Change<'_>, &str); 8] = [
        (&|payload| payload["critical"]["type"] = json!("atomic container signature"), "its type is"),
        (&|payload| payload["critical"]["more"] = json!(1), "more"),
        (
            &|payload| payload["critical"]["image"]["docker-manifest-digest"] = json!("sha256:x"),
            "64 hexadecimal",
        ),
        (&|payload| payload["optional"] = json!({ "a2g.expires": "tomorrow" }), "not an RFC 3339 time"),
        (&|payload| payload["optional"] = json!({ "a2g.expires": 5 }), "not a text"),
        (&|payload| payload["optional"] = json!({ "a2g.host": "here" }), "not known to this version"),
        (&|payload| payload["optional"] = json!({ "a2g.tool": "write_file" }), "for the tool `write_file`"),
        (&|payload| payload["optional"] = json!({ "a2g.version": "1.0.0" }), "for version `1.0.0`"),
    ];
    for (change, reason) in cases {
        let error = payload(change).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

#[test]
fn a_signature_that_no_key_verifies_is_refused_by_what_it_claims() {
    let fixture = Fixture::new();
    let trust = fixture.trust();
    let good = signed(&fixture.private(ED25519_PRIVATE), "read_file", None, None);
    let changed = |change: Change<'_>| {
        let mut file: Value = serde_json::from_slice(&good).unwrap();
        change(&mut file["signatures"][0]);
        check(&trust, "read_file", file.to_string().as_bytes()).unwrap_err()
    };
    let other = signed(&fixture.private(P256_PRIVATE), "read_file", None, None);
    let other: Value = serde_json::from_slice(&other).unwrap();
    let swapped = changed(&|entry| entry["signature"] = other["signatures"][0]["signature"].clone());
    assert_eq!(swapped, SignatureError::Changed { signer: SignerName::parse("ed25519").unwrap() });
    let foreign = super::super::keys::KeyPair::create(
        &fixture.folder.path().join("foreign.jwk"),
        Issuer::parse("https://example.com").unwrap(),
    );
    let id = foreign.unwrap().public().thumbprint();
    let foreign = ToolSigningKey::read(&fixture.folder.path().join("foreign.jwk")).unwrap();
    let unknown = check(&trust, "read_file", &signed(&foreign, "read_file", None, None)).unwrap_err();
    assert_eq!(unknown, SignatureError::UnknownSigner { key: Some(id) });
    for (file, reason) in [
        ("{}".to_owned(), "signatures"),
        ("[".to_owned(), "cannot be read"),
        (r#"{"signatures":[{"payload":"?","signature":""}]}"#.to_owned(), "cannot be read"),
        (r#"{"signatures":[],"signatures":[]}"#.to_owned(), "cannot be read"),
        (r#"{"signatures":[]}"#.to_owned(), "is not signed"),
        (
            format!(
                r#"{{"signatures":[{}]}}"#,
                vec![r#"{"payload":"","signature":""}"#; MAX_SIGNATURES + 1].join(",")
            ),
            "33 signatures",
        ),
    ] {
        let error = check(&trust, "read_file", file.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn without_a_requirement_every_tool_is_accepted_and_without_signers_none() {
    let fixture = Fixture::new();
    assert_eq!(ToolTrust::anyone().check(None), Ok(TrustedTool(None)));
    let nobody = ToolTrust::nobody(fixture.clock.clone());
    assert_eq!(nobody.check(None), Err(SignatureError::NotPackaged));
    let good = signed(&fixture.private(ED25519_PRIVATE), "read_file", None, None);
    assert!(matches!(check(&nobody, "read_file", &good), Err(SignatureError::UnknownSigner { .. })));
}

#[test]
fn keys_have_the_same_id_in_every_form_and_other_files_are_refused() {
    let fixture = Fixture::new();
    for (private, public) in [(P256_PRIVATE, P256_PUBLIC), (ED25519_PRIVATE, ED25519_PUBLIC)] {
        let pair = fixture.private(private);
        let read = ToolKey::read(&fixture.file("public", public.as_bytes(), 0o644)).unwrap();
        assert_eq!((pair.public(), pair.public().id()), (&read, read.id()));
        assert!(!format!("{pair:?}").contains("PRIVATE"));
        let error = ToolKey::read(&fixture.file("private", private.as_bytes(), 0o644)).unwrap_err();
        assert!(error.to_string().contains("no `PUBLIC KEY`"), "{error}");
    }
    // RFC 7517, appendix A.1: the point is on the curve.
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" });
    assert_eq!(ToolKey::parse(jwk.to_string().as_bytes(), Path::new("x")).unwrap().kind(), "ECDSA P-256");
    let exposed = fixture.file("exposed", P256_PRIVATE.as_bytes(), 0o644);
    assert!(ToolSigningKey::read(&exposed).unwrap_err().to_string().contains("chmod 600"));
    let writable = fixture.file("writable", P256_PUBLIC.as_bytes(), 0o666);
    assert!(ToolKey::read(&writable).unwrap_err().to_string().contains("chmod go-w"));
    let sealed = P256_PRIVATE.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    for text in [sealed.as_str(), "nonsense", "{}", "-----BEGIN X-----\n-----END X-----\n"] {
        assert!(ToolSigningKey::read(&fixture.file("bad", text.as_bytes(), 0o600)).is_err(), "{text}");
        assert!(ToolKey::parse(text.as_bytes(), Path::new("bad")).is_err(), "{text}");
    }
    let weak = json!({ "kty": "OKP", "crv": "Ed25519", "x": "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" });
    assert!(ToolKey::parse(weak.to_string().as_bytes(), Path::new("weak")).is_err());
}

#[test]
fn a_key_belongs_to_one_signer() {
    let fixture = Fixture::new();
    let signer = |name: &str| SignerSettings {
        name: SignerName::parse(name).unwrap(),
        key_file: fixture.file(name, P256_PUBLIC.as_bytes(), 0o644),
        tools: vec![ToolPattern::parse("*").unwrap()],
    };
    let error = ToolTrust::read(Some(&[signer("a"), signer("b")]), fixture.clock.clone()).unwrap_err();
    assert!(error.to_string().contains("`b` and `a` have the same key"), "{error}");
}

#[test]
fn a_pattern_is_a_name_with_asterisks() {
    for (pattern, matching, other) in [
        ("*", "anything", None),
        ("read_*", "read_file", Some("reads")),
        ("read_*", "read_", Some("my_read_file")),
        ("*.x", "a.x", Some("a-x")),
        ("exact", "exact", Some("exactly")),
    ] {
        let pattern = ToolPattern::parse(pattern).unwrap();
        assert!(pattern.includes(&name(matching)), "{pattern:?}");
        assert!(other.is_none_or(|other| !pattern.includes(&name(other))), "{pattern:?} {other:?}");
    }
    for bad in ["", "a?", "[ab]", "{a,b}", "!a", "a/b", "ä", &"a".repeat(65)] {
        assert!(ToolPattern::parse(bad).is_err(), "{bad}");
    }
}
