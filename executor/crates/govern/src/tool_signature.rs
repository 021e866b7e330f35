//! Signatures of tools: cosign's "simple signing" payloads, and the file `signatures.json` that stores them.
//!
//! ```text
//! signatures.json ─▶ { payload: bytes, signature: bytes } ─ a trusted key verifies the bytes ─▶ Payload
//! ```
//! A payload names the digest of a package. `optional` may have members of this project, which are also signed: the
//! name and version of the tool, the time of expiry, and the id of the key. No member is read before a key has verified
//! the payload, except the id of the key, which only selects the message of a refusal.

use super::keys::KeyError;
use super::tool_key::{ToolKey, ToolSigningKey};
use a2g_types::ident::{ToolName, excerpt};
use a2g_types::outcome::as_base64;
use a2g_types::strict_json::{self, JsonBounds};
use a2g_types::tool::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The maximum number of signatures of one tool. Each is compared with every key of the operator's list.
pub const MAX_SIGNATURES: usize = 32;
/// The maximum sizes of the file and of a payload, in bytes.
const BOUNDS: JsonBounds = JsonBounds { max_bytes: 64 << 10, max_depth: 16, max_tree_bytes: 4 << 20 };
/// The only payload type that stands for the signature of an image.
const PAYLOAD_TYPE: &str = "cosign container image signature";
/// The prefix of this project's members.
const OWN_PREFIX: &str = "a2g.";
const DIGEST_PREFIX: &str = "sha256:";

/// A signature as stored in the file. It is not verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredSignature {
    /// The signed bytes.
    #[serde(with = "as_base64")]
    pub payload: Vec<u8>,
    /// The signature of these bytes.
    #[serde(with = "as_base64")]
    pub signature: Vec<u8>,
}

impl StoredSignature {
    /// The package that the signature claims to be for.
    ///
    /// # Errors
    /// The problem of the payload, as the end of a sentence.
    pub fn claimed_package(&self) -> Result<Digest, String> {
        Payload::parse(&self.payload).map(|payload| payload.package)
    }
}

/// The content of `signatures.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureFile<S> {
    signatures: S,
}

/// Reads `signatures.json`. The signatures are not verified.
///
/// # Errors
/// The problem, as the end of a sentence.
pub fn parse_signatures(bytes: &[u8]) -> Result<Vec<StoredSignature>, String> {
    let text = strict_json::check(bytes, &BOUNDS).map_err(|fault| fault.sentence().into_owned())?;
    let SignatureFile { signatures } = serde_json::from_str::<SignatureFile<Vec<StoredSignature>>>(text)
        .map_err(|error| error.to_string())?;
    if signatures.len() > MAX_SIGNATURES {
        return Err(format!(
            "it has {} signatures, but at most {MAX_SIGNATURES} are accepted",
            signatures.len()
        ));
    }
    Ok(signatures)
}

/// Writes `signatures.json`.
///
/// # Errors
/// If the signatures cannot be written as JSON.
pub fn write_signatures(signatures: &[StoredSignature]) -> Result<Vec<u8>, serde_json::Error> {
    let mut file = serde_json::to_vec(&SignatureFile { signatures })?;
    file.push(b'\n');
    Ok(file)
}

/// A payload, as written by cosign and by this program.
#[derive(Debug, Serialize, Deserialize)]
struct PayloadText {
    critical: Critical,
    // cosign writes `null` for an empty `optional`.
    #[serde(default)]
    optional: Option<Map<String, Value>>,
}

/// The part in which a reader has to know every member.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    identity: Identity,
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Identity {
    docker_reference: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

/// The claims of a signature about one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    /// The digest of the package.
    pub(super) package: Digest,
    /// The name of the tool, if the signer named it.
    pub(super) tool: Option<String>,
    /// The version of the tool, if the signer named it.
    pub(super) version: Option<String>,
    /// The time at which the signature expires, if the signer set one.
    pub(super) expires_at: Option<OffsetDateTime>,
}

impl Payload {
    /// Reads a payload. Its members are facts only if a key has verified the bytes.
    ///
    /// # Errors
    /// The problem, as the end of a sentence. An unknown member `a2g.…` is a problem, because it may restrict the
    /// signature.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = strict_json::check(bytes, &BOUNDS).map_err(|fault| fault.sentence().into_owned())?;
        let PayloadText { critical, optional } =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Critical { identity: Identity { docker_reference: _ }, image, kind } = critical;
        if kind != PAYLOAD_TYPE {
            return Err(format!("its type is `{}`, and not `{PAYLOAD_TYPE}`", excerpt(&kind)));
        }
        let digest = image.docker_manifest_digest.strip_prefix(DIGEST_PREFIX).map(Digest::parse);
        let Some(Ok(package)) = digest else {
            return Err("its `docker-manifest-digest` is not `sha256:` and 64 hexadecimal digits".to_owned());
        };
        let mut payload = Self { package, tool: None, version: None, expires_at: None };
        for (name, value) in optional.unwrap_or_default() {
            let Some(own) = name.strip_prefix(OWN_PREFIX) else { continue };
            let Value::String(value) = value else {
                return Err(format!("its `{}` is not a text", excerpt(&name)));
            };
            match own {
                "tool" => payload.tool = Some(value),
                "version" => payload.version = Some(value),
                "expires" => {
                    let expiry = OffsetDateTime::parse(&value, &Rfc3339);
                    payload.expires_at = Some(expiry.map_err(|_| {
                        format!("its `a2g.expires` is `{}`, which is not an RFC 3339 time", excerpt(&value))
                    })?);
                }
                // The key that has verified the payload counts, not the claimed one.
                "key" => {}
                _unknown => {
                    return Err(format!("its `{}` is not known to this version", excerpt(&name)));
                }
            }
        }
        Ok(payload)
    }
}

/// The id of the key that an unverified payload claims. It only selects the message of a refusal.
pub(super) fn claimed_key(payload: &[u8]) -> Option<String> {
    let text = strict_json::check(payload, &BOUNDS).ok()?;
    let PayloadText { critical: _, optional } = serde_json::from_str(text).ok()?;
    Some(optional?.get("a2g.key")?.as_str()?.to_owned())
}

/// The package to sign.
#[derive(Debug, Clone, Copy)]
pub struct PackageToSign<'a> {
    /// The name of the tool.
    pub name: &'a ToolName,
    /// The version of the tool.
    pub version: &'a str,
    /// The digest of the package.
    pub package: Digest,
    /// The time at which the signature expires.
    pub expires_at: Option<OffsetDateTime>,
}

/// Signs a package, and adds the signature to those in `existing`, the content of a `signatures.json`. An earlier
/// signature by the same key is replaced. Returns the new content of the file.
///
/// # Errors
/// [`SignError`] with the problem of `existing`, or of the key.
pub fn sign_package(
    key: &ToolSigningKey,
    what: PackageToSign<'_>,
    existing: Option<&[u8]>,
) -> Result<Vec<u8>, SignError> {
    let PackageToSign { name, version, package, expires_at } = what;
    let public = key.public();
    let mut signatures =
        existing.map(parse_signatures).transpose().map_err(SignError::Existing)?.unwrap_or_default();
    signatures.retain(|StoredSignature { payload, signature }| !public.verifies(payload, signature));
    if signatures.len() >= MAX_SIGNATURES {
        return Err(SignError::TooMany);
    }
    let payload = payload_text(public, name, version, package, expires_at)?;
    let signature = key.sign(&payload).map_err(KeyError::from)?;
    signatures.push(StoredSignature { payload, signature });
    Ok(write_signatures(&signatures)?)
}

fn payload_text(
    key: &ToolKey,
    name: &ToolName,
    version: &str,
    package: Digest,
    expires_at: Option<OffsetDateTime>,
) -> Result<Vec<u8>, SignError> {
    let mut optional = Map::new();
    let mut put = |name: &str, value: String| {
        optional.insert(format!("{OWN_PREFIX}{name}"), Value::String(value));
    };
    put("tool", name.to_string());
    put("version", version.to_owned());
    if let Some(expires_at) = expires_at {
        put("expires", expires_at.format(&Rfc3339).map_err(|_| SignError::Expiry)?);
    }
    put("key", key.id());
    let text = PayloadText {
        critical: Critical {
            identity: Identity { docker_reference: name.to_string() },
            image: Image { docker_manifest_digest: format!("{DIGEST_PREFIX}{package}") },
            kind: PAYLOAD_TYPE.to_owned(),
        },
        optional: Some(optional),
    };
    Ok(serde_json::to_vec(&text)?)
}

/// The reason why a package cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The existing signatures cannot be read.
    #[error("`signatures.json` cannot be read, so no signature can be added: {0}")]
    Existing(String),
    /// The tool has too many signatures.
    #[error(
        "the tool has {MAX_SIGNATURES} signatures, the most that are accepted: remove `signatures.json`, and sign again"
    )]
    TooMany,
    /// The time of expiry cannot be written.
    #[error("the time of expiry is after the year 9999")]
    Expiry,
    /// The signature cannot be written as JSON.
    #[error("the signature cannot be written: {0}")]
    Encoding(#[from] serde_json::Error),
}
