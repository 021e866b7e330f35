//! An identity provider, and the JSON Web Tokens that it gives.
//!
//! They are made with `ring`, and share no code about tokens with the executor.

use super::callers::List;
use super::{AGENT, Options};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPairComponents, PublicKeyComponents};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;
use time::OffsetDateTime;

pub const ISSUER: &str = "https://id.example";

pub const DID: &str = "did:a2g:executor:1.0:tests";

/// The RSA key of RFC 7515, appendix A.2, because ring generates no RSA keys.
const RSA: &str = r#"{"kty":"RSA",
"n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
"e":"AQAB",
"d":"Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ",
"p":"4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc",
"q":"uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc",
"dp":"BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCjn12Sk3vmAktV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0",
"dq":"h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnwgjMd2w9cjz3_-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU",
"qi":"IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93IKLEdfnbJtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U"}"#;

/// A key of an identity provider.
pub enum Key {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Key {
    pub fn ed25519() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn p256() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self::P256(EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap())
    }

    fn rsa() -> Self {
        let rsa = rsa_jwk();
        let number = |name: &str| URL_SAFE_NO_PAD.decode(rsa[name].as_str().unwrap()).unwrap();
        let [n, e, d, p, q, dp, dq, qi] = ["n", "e", "d", "p", "q", "dp", "dq", "qi"].map(number);
        let public_key = PublicKeyComponents { n, e };
        Self::Rsa(
            RsaKeyPair::from_components(&KeyPairComponents { public_key, d, p, q, dP: dp, dQ: dq, qInv: qi })
                .unwrap(),
        )
    }

    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "EdDSA",
            Self::P256(_) => "ES256",
            Self::Rsa(_) => "RS256",
        }
    }

    /// The public key as a provider publishes it.
    pub fn jwk(&self, kid: &str) -> Value {
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": part(pair.public_key().as_ref()), "kid": kid })
            }
            Self::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": part(x), "y": part(y), "kid": kid, "use": "sig" })
            }
            Self::Rsa(_) => {
                let rsa = rsa_jwk();
                json!({ "kty": "RSA", "n": rsa["n"], "e": rsa["e"], "kid": kid, "alg": "RS256" })
            }
        }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
            Self::P256(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Self::Rsa(pair) => signed_by_rsa(pair, &RSA_PKCS1_SHA256, message),
        }
    }

    /// A token with this header and these claims, correctly signed.
    pub fn token(&self, header: &str, claims: &str) -> String {
        let signed = unsigned_token(header, claims);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes())))
    }
}

pub fn rsa_jwk() -> Value {
    serde_json::from_str(RSA).unwrap()
}

pub fn signed_by_rsa(
    pair: &RsaKeyPair,
    encoding: &'static dyn ring::signature::RsaEncoding,
    message: &[u8],
) -> Vec<u8> {
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

/// The first two parts of a token.
pub fn unsigned_token(header: &str, claims: &str) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
}

pub fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

/// Claims of a token for the subject, valid for five minutes from now.
pub fn claims(subject: &str) -> Value {
    json!({ "iss": ISSUER, "sub": subject, "aud": DID, "iat": now(), "exp": now() + 300, "scope": "openid" })
}

pub fn with(mut object: Value, member: &str, value: Value) -> Value {
    object[member] = value;
    object
}

/// An identity provider whose keys, named by their algorithms, are in a file.
pub struct Provider {
    pub folder: TempDir,
    pub keys: [Key; 3],
}

impl Provider {
    pub fn new() -> Self {
        let provider =
            Self { folder: tempfile::tempdir().unwrap(), keys: [Key::ed25519(), Key::p256(), Key::rsa()] };
        provider.publish(&["EdDSA", "ES256", "RS256"]);
        provider
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("jwks.json")
    }

    /// Publishes its keys for these algorithms, and one for encryption, as providers do.
    pub fn publish(&self, algorithms: &[&str]) {
        let keys = self.keys.iter().filter(|key| algorithms.contains(&key.algorithm()));
        let mut keys = keys.map(|key| key.jwk(key.algorithm())).collect::<Vec<_>>();
        let encrypts = with(with(self.keys[2].jwk("RS256"), "use", json!("enc")), "alg", json!("RSA-OAEP"));
        keys.push(encrypts);
        std::fs::write(self.path(), json!({ "keys": keys }).to_string()).unwrap();
    }

    /// Options of an executor that trusts this provider, with this list of callers.
    pub fn options(&self, list: &List) -> Options {
        self.add_to(list.options())
    }

    /// Adds this provider to the options of an executor, which then trusts its tokens. They are for any executor with these
    /// options, such as the nodes of a fleet.
    pub fn add_to(&self, options: Options) -> Options {
        let options = options.set("executor.did", DID);
        options.set("server.issuer", json!([{ "issuer": ISSUER, "keys": self.path() }]))
    }

    pub fn token(&self, claims: &Value) -> String {
        self.keys[0].token(&header(&self.keys[0]).to_string(), &claims.to_string())
    }
}

pub fn header(key: &Key) -> Value {
    json!({ "alg": key.algorithm(), "kid": key.algorithm(), "typ": "JWT" })
}

/// Adds a caller to the list who is identified by tokens about this subject.
pub fn add_subject(list: &List, name: &str, subject: &str, more: &[&str]) {
    let subject = ["--jwt-issuer", ISSUER, "--jwt-subject", subject];
    let printed = list.add(name, &[&subject, more].concat());
    assert_eq!(printed, "", "no token is printed");
}

pub fn add_agent(list: &List, subject: &str) {
    add_subject(list, subject, subject, &["--role", "agent", "--agent", AGENT]);
}
