//! Keys that the binary made, and proofs that a test signs with them by itself: nothing of the executor's
//! own code says here what a proof is.

use super::{AGENT, run};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use time::OffsetDateTime;

/// The issuer that the keys speak for.
pub const ISSUER: &str = "did:a2g:governor:1.0:tests";
/// The DID of an executor that trusts keys.
pub const EXECUTOR: &str = "did:a2g:executor:1.0:tests";

/// A key pair, and a folder in which its public part is trusted.
pub struct Keys {
    folder: TempDir,
    key: SigningKey,
    id: String,
}

impl Keys {
    /// Makes a pair and trusts it, by the command line.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        let pair = path("governor.jwk");
        let public = path("governor.pub");
        let trusted = path("trusted");
        succeeds(&["key", "new", &pair, "--issuer", ISSUER]);
        std::fs::write(&public, succeeds(&["key", "show", "--json", &pair])).expect("a file");
        succeeds(&["key", "trust", &public, "--keys", &trusted]);
        let jwk: Value = serde_json::from_slice(&std::fs::read(&pair).expect("a key")).expect("JSON");
        let seed = URL_SAFE_NO_PAD.decode(jwk["d"].as_str().expect("a private key")).expect("base64url");
        let key = SigningKey::from_bytes(&seed.try_into().expect("32 bytes"));
        Self { folder, key, id: jwk["kid"].as_str().expect("an id").to_owned() }
    }

    /// The file with the pair.
    pub fn pair(&self) -> PathBuf {
        self.folder.path().join("governor.jwk")
    }

    /// The folder of trusted keys.
    pub fn trusted_folder(&self) -> PathBuf {
        self.folder.path().join("trusted")
    }

    /// The id of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret that must never be printed: the private key as stored in its file.
    pub fn private(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.key.to_bytes())
    }

    /// Signs claims under the usual header.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_under(&json!({ "alg": "EdDSA", "kid": self.id }), claims)
    }

    /// Signs claims under any header.
    pub fn sign_under(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()).to_bytes());
        format!("{signed}.{signature}")
    }

    /// The params of `a2g/execute` with a proof of what they say.
    pub fn proven(&self, mut call: Value) -> Value {
        call["proof"] = self.sign(&claims(&call)).into();
        call
    }
}

/// Claims of a proof of the params of `a2g/execute`: for [`EXECUTOR`], for five minutes from now.
pub fn claims(call: &Value) -> Value {
    let now = OffsetDateTime::now_utc().unix_timestamp();
    json!({
        "iss": ISSUER,
        "aud": EXECUTOR,
        "sub": AGENT,
        "jti": uuid::Uuid::new_v4().to_string(),
        "iat": now,
        "nbf": now,
        "exp": now + 300,
        "intent_id": call["intent"]["intent_id"],
        "tool": call["intent"]["tool"],
        "arguments_sha256": sha256(sort_members(&call["intent"]["arguments"]).to_string()),
        "verdict": call["verdict"],
    })
}

/// The SHA-256 of a text in hexadecimal.
pub fn sha256(text: impl AsRef<[u8]>) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Canonical JSON, as far as arguments of tests go: ASCII keys, strings and small integers.
fn sort_members(value: &Value) -> Value {
    let Value::Object(object) = value else { return value.clone() };
    let sorted: BTreeMap<_, _> =
        object.iter().map(|(key, value)| (key.clone(), sort_members(value))).collect();
    Value::Object(sorted.into_iter().collect())
}

/// Runs the binary, which has to succeed, and gives what it prints.
pub fn succeeds(arguments: &[&str]) -> Vec<u8> {
    let output = run(arguments.iter().copied());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Sets the mode of a file.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}
