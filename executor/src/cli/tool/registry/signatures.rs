//! The signatures of a package, stored in a registry as cosign does. They are pushed as referrers. They are read as
//! referrers, from the fallback tag of registries without a list of referrers, and from the tag of older versions of
//! cosign.
//!
//! This module verifies nothing. It skips a malformed signature with a note: an executor that requires signatures
//! refuses a tool without a valid one.

use super::super::super::output::note;
use super::client::{Answer, Outgoing, RegistryClient};
use super::download::{check_digest, read_blob};
use super::error::RegistryError;
use a2g_core::catalog::{MANIFEST_TYPE, MAX_MANIFEST_BYTES, MAX_SIGNATURES_BYTES};
use a2g_govern::MAX_SIGNATURES;
use a2g_types::tool::Digest;
use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The type of an index of manifests.
pub(super) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// The type of cosign's signatures.
const ARTIFACT_TYPE: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";
/// The type of a signed payload: a statement about the digest of a manifest.
const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation with the signature.
const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY_CONFIG: &[u8] = b"{}";
/// The header by which a registry confirms that its list of referrers has the new one.
const SUBJECT_HEADER: &str = "oci-subject";
/// The maximum size of a payload, in bytes.
const MAX_PAYLOAD_BYTES: u64 = 16 << 10;
/// The maximum length of a signature in Base64: one of RSA with 4096 bits has 684 characters.
const MAX_SIGNATURE_CHARS: usize = 1024;

/// The file `signatures.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SignaturesFile {
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Signature {
    payload: String,
    signature: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignatureManifest {
    schema_version: u32,
    media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<Descriptor>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    manifests: Vec<Descriptor>,
}

impl Descriptor {
    fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: format!("sha256:{}", Digest::compute(bytes)),
            size: bytes.len() as u64,
            artifact_type: None,
            annotations: BTreeMap::new(),
        }
    }

    fn parse_digest(&self) -> Option<Digest> {
        self.digest.strip_prefix("sha256:").and_then(|digits| Digest::parse(digits).ok())
    }
}

/// Returns the package that each signature is for. Verifies none.
///
/// # Errors
/// A message if the bytes are not a file of signatures.
pub(super) fn signed_digests(file: &[u8]) -> anyhow::Result<Vec<Option<Digest>>> {
    let SignaturesFile { signatures } =
        serde_json::from_slice(file).context("`signatures.json` is not a list of signatures")?;
    let digest_of = |signature: &Signature| {
        let payload = BASE64_STANDARD.decode(&signature.payload).ok()?;
        let payload: serde_json::Value = serde_json::from_slice(&payload).ok()?;
        let digest = payload.pointer("/critical/image/docker-manifest-digest")?.as_str()?;
        Digest::parse(digest.strip_prefix("sha256:")?).ok()
    };
    Ok(signatures.iter().map(digest_of).collect())
}

/// Pushes each signature as a referrer of the package's manifest. Returns their number.
pub(super) async fn push(client: &mut RegistryClient, manifest: &[u8], file: &[u8]) -> anyhow::Result<usize> {
    let SignaturesFile { signatures } =
        serde_json::from_slice(file).context("`signatures.json` is not a list of signatures")?;
    let package = Digest::compute(manifest);
    if !signatures.is_empty() {
        push_blob(client, EMPTY_CONFIG, "the config of a signature").await?;
    }
    for Signature { payload, signature } in &signatures {
        let payload =
            BASE64_STANDARD.decode(payload).context("a payload in `signatures.json` is not Base64")?;
        push_blob(client, &payload, "a signature").await?;
        let mut layer = Descriptor::of(PAYLOAD_TYPE, &payload);
        layer.annotations.insert(SIGNATURE_ANNOTATION.to_owned(), signature.clone());
        let document = SignatureManifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: Some(ARTIFACT_TYPE.to_owned()),
            config: Descriptor::of(EMPTY_TYPE, EMPTY_CONFIG),
            layers: vec![layer],
            subject: Some(Descriptor::of(MANIFEST_TYPE, manifest)),
        };
        let document = serde_json::to_vec(&document)?;
        let path = format!("manifests/sha256:{}", Digest::compute(&document));
        let answer = put_manifest(client, &path, MANIFEST_TYPE, &document, "the signature").await?;
        if !answer.headers.contains_key(SUBJECT_HEADER) {
            let mut entry = Descriptor::of(MANIFEST_TYPE, &document);
            entry.artifact_type = Some(ARTIFACT_TYPE.to_owned());
            add_to_fallback(client, package, entry).await?;
        }
    }
    Ok(signatures.len())
}

/// Adds a referrer to the fallback index that the OCI distribution specification defines for registries without a list.
async fn add_to_fallback(
    client: &mut RegistryClient,
    package: Digest,
    entry: Descriptor,
) -> anyhow::Result<()> {
    let mut manifests = match read_manifest(client, &format!("sha256-{package}"), INDEX_TYPE).await? {
        None => Vec::new(),
        Some(bytes) => {
            let Index { manifests, .. } = serde_json::from_slice(&bytes).with_context(|| {
                format!("the tag `sha256-{package}` of the registry is not an index of referrers")
            })?;
            manifests
        }
    };
    if manifests.iter().any(|other| other.digest == entry.digest) {
        return Ok(());
    }
    manifests.push(entry);
    let index = Index { schema_version: 2, media_type: INDEX_TYPE.to_owned(), manifests };
    let index = serde_json::to_vec(&index)?;
    let path = format!("manifests/sha256-{package}");
    put_manifest(client, &path, INDEX_TYPE, &index, "the list of signatures").await?;
    Ok(())
}

/// Pushes a part of a package, unless the registry already has it.
pub(super) async fn push_blob(
    client: &mut RegistryClient,
    bytes: &[u8],
    what: &str,
) -> Result<(), RegistryError> {
    let digest = Digest::compute(bytes);
    let head = Outgoing::new(Method::HEAD, client.url(&format!("blobs/sha256:{digest}")), what);
    if client.expect(&head, &[StatusCode::OK, StatusCode::NOT_FOUND]).await?.status == StatusCode::OK {
        return Ok(());
    }
    let begin = Outgoing::new(Method::POST, client.url("blobs/uploads/"), what);
    let begun = client.expect(&begin, &[StatusCode::ACCEPTED]).await?;
    let mut location = begun.location()?;
    client.check_target(&begun.url, &location)?;
    location.query_pairs_mut().append_pair("digest", &format!("sha256:{digest}"));
    let upload = Outgoing {
        content_type: Some("application/octet-stream"),
        body: Bytes::copy_from_slice(bytes),
        ..Outgoing::new(Method::PUT, location, what)
    };
    client.expect_with_progress(&upload, StatusCode::CREATED).await?;
    Ok(())
}

/// Pushes a manifest.
pub(super) async fn put_manifest(
    client: &mut RegistryClient,
    path: &str,
    media_type: &'static str,
    bytes: &[u8],
    what: &str,
) -> Result<Answer, RegistryError> {
    let outgoing = Outgoing {
        content_type: Some(media_type),
        body: Bytes::copy_from_slice(bytes),
        ..Outgoing::new(Method::PUT, client.url(path), what)
    };
    client.expect(&outgoing, &[StatusCode::CREATED]).await
}

/// Reads a manifest by its tag; `None` if there is none.
async fn read_manifest(
    client: &mut RegistryClient,
    tag: &str,
    media_type: &'static str,
) -> Result<Option<Vec<u8>>, RegistryError> {
    let url = client.url(&format!("manifests/{tag}"));
    let outgoing =
        Outgoing { accept: Some(media_type), ..Outgoing::new(Method::GET, url, "a list of signatures") };
    let answer = client.expect(&outgoing, &[StatusCode::OK, StatusCode::NOT_FOUND]).await?;
    if answer.status == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    answer.read(MAX_MANIFEST_BYTES).await.map(Some)
}

/// Reads the signatures of a package, as the bytes of `signatures.json`; `None` if it has none.
pub(super) async fn read(
    client: &mut RegistryClient,
    package: Digest,
) -> Result<Option<Vec<u8>>, RegistryError> {
    let mut found = Vec::<Signature>::new();
    for descriptor in referrers(client, package).await? {
        match read_referrer(client, package, &descriptor).await? {
            Ok(signature) => found.push(signature),
            Err(reason) => note(format_args!("note: a signature of the tool is left out: {reason}")),
        }
    }
    for layer in older_layers(client, package).await? {
        match read_layer(client, &layer).await? {
            Ok(signature) => found.push(signature),
            Err(reason) => note(format_args!("note: a signature of the tool is left out: {reason}")),
        }
    }
    let mut file = SignaturesFile::default();
    for signature in found {
        if !file.signatures.contains(&signature) {
            file.signatures.push(signature);
        }
    }
    // Shortest first, so that long signatures of others cannot displace the usual short ones.
    file.signatures.sort_by_key(|signature| signature.payload.len() + signature.signature.len());
    if file.signatures.len() > MAX_SIGNATURES {
        note(format_args!(
            "note: the tool has more than {MAX_SIGNATURES} signatures: the others are left out"
        ));
        file.signatures.truncate(MAX_SIGNATURES);
    }
    loop {
        if file.signatures.is_empty() {
            return Ok(None);
        }
        let bytes = serde_json::to_vec(&file).unwrap_or_default();
        if bytes.len() as u64 <= MAX_SIGNATURES_BYTES {
            return Ok(Some(bytes));
        }
        note("note: the signatures of the tool are too long: the longest one is left out");
        file.signatures.pop();
    }
}

/// The referrers of a package that are signatures.
async fn referrers(client: &mut RegistryClient, package: Digest) -> Result<Vec<Descriptor>, RegistryError> {
    let url = client.url(&format!("referrers/sha256:{package}"));
    let outgoing =
        Outgoing { accept: Some(INDEX_TYPE), ..Outgoing::new(Method::GET, url, "a list of signatures") };
    let answer = client.send(&outgoing).await?;
    let index = match answer.status {
        StatusCode::OK if !answer.is_web_page() => Some(answer.read(MAX_MANIFEST_BYTES).await?),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
            return Err(client.refusal(answer).await);
        }
        status if status.is_server_error() => return Err(client.refusal(answer).await),
        // Registries without the list respond to an unknown path in different ways.
        _ => read_manifest(client, &format!("sha256-{package}"), INDEX_TYPE).await?,
    };
    let Some(index) = index else { return Ok(Vec::new()) };
    let Ok(Index { manifests, .. }) = serde_json::from_slice(&index) else {
        note("note: the signatures of the tool are left out: their list cannot be read");
        return Ok(Vec::new());
    };
    let is_signature = |one: &Descriptor| one.artifact_type.as_deref() == Some(ARTIFACT_TYPE);
    // One more than the maximum, so that the caller notices omitted ones.
    Ok(manifests.into_iter().filter(is_signature).take(MAX_SIGNATURES + 1).collect())
}

/// Reads one signature; the inner error is a reason to skip it.
async fn read_referrer(
    client: &mut RegistryClient,
    package: Digest,
    descriptor: &Descriptor,
) -> Result<Result<Signature, String>, RegistryError> {
    leave_out_unreadable(try_read_referrer(client, package, descriptor).await)
}

async fn try_read_referrer(
    client: &mut RegistryClient,
    package: Digest,
    descriptor: &Descriptor,
) -> Result<Signature, Unread> {
    let Some(digest) = descriptor.parse_digest() else {
        return Err(Unread::Reason("its digest is not a SHA-256"));
    };
    if descriptor.size > MAX_MANIFEST_BYTES {
        return Err(Unread::Reason("its manifest is too large"));
    }
    let url = client.url(&format!("manifests/sha256:{digest}"));
    let outgoing = Outgoing { accept: Some(MANIFEST_TYPE), ..Outgoing::new(Method::GET, url, "a signature") };
    let bytes = client.expect(&outgoing, &[StatusCode::OK]).await?.read(MAX_MANIFEST_BYTES).await?;
    check_digest("a signature", Digest::compute(&bytes), digest)?;
    let Ok(SignatureManifest { artifact_type, layers, subject, .. }) = serde_json::from_slice(&bytes) else {
        return Err(Unread::Reason("its manifest cannot be read"));
    };
    if artifact_type.as_deref() != Some(ARTIFACT_TYPE) {
        return Err(Unread::Reason("its manifest has another type"));
    }
    if subject.as_ref().and_then(Descriptor::parse_digest) != Some(package) {
        return Err(Unread::Reason("its manifest is about another artifact"));
    }
    let [layer] = &layers[..] else {
        return Err(Unread::Reason("its manifest has not exactly one layer"));
    };
    try_read_layer(client, layer).await
}

/// The reason why a signature was not read.
enum Unread {
    /// It does not have the expected form.
    Reason(&'static str),
    /// The registry did not answer, or answered with an unexpected response.
    Registry(RegistryError),
}

impl From<RegistryError> for Unread {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

fn leave_out_unreadable(read: Result<Signature, Unread>) -> Result<Result<Signature, String>, RegistryError> {
    match read {
        Ok(signature) => Ok(Ok(signature)),
        Err(Unread::Reason(reason)) => Ok(Err(reason.to_owned())),
        Err(Unread::Registry(error)) => reason_to_leave_out(error).map(Err),
    }
}

/// An error in the content of one signature is a reason to skip it. Otherwise, anybody with write access to the
/// registry could make a tool impossible to add. Any other error ends the command.
fn reason_to_leave_out(error: RegistryError) -> Result<String, RegistryError> {
    match error {
        RegistryError::NotFound { .. }
        | RegistryError::Length { .. }
        | RegistryError::TooLarge { .. }
        | RegistryError::Digest { .. }
        | RegistryError::WebPage { .. } => Ok(error.to_string()),
        RegistryError::Unreachable { .. }
        | RegistryError::Silent { .. }
        | RegistryError::TooSlow { .. }
        | RegistryError::Interrupted { .. }
        | RegistryError::Partial { .. }
        | RegistryError::Locked { .. }
        | RegistryError::LoginMissing { .. }
        | RegistryError::LoginRefused { .. }
        | RegistryError::Login(_)
        | RegistryError::Refused { .. }
        | RegistryError::Invalid { .. }
        | RegistryError::Redirect { .. }
        | RegistryError::Io { .. } => Err(error),
    }
}

/// The layers of the manifest in which older versions of cosign store all signatures of a package.
async fn older_layers(
    client: &mut RegistryClient,
    package: Digest,
) -> Result<Vec<Descriptor>, RegistryError> {
    let Some(bytes) = read_manifest(client, &format!("sha256-{package}.sig"), MANIFEST_TYPE).await? else {
        return Ok(Vec::new());
    };
    let Ok(SignatureManifest { layers, .. }) = serde_json::from_slice(&bytes) else {
        note("note: a signature of the tool is left out: its manifest cannot be read");
        return Ok(Vec::new());
    };
    Ok(layers.into_iter().take(MAX_SIGNATURES + 1).collect())
}

/// Reads the signature of a layer; the inner error is a reason to skip it.
async fn read_layer(
    client: &mut RegistryClient,
    layer: &Descriptor,
) -> Result<Result<Signature, String>, RegistryError> {
    leave_out_unreadable(try_read_layer(client, layer).await)
}

async fn try_read_layer(client: &mut RegistryClient, layer: &Descriptor) -> Result<Signature, Unread> {
    if layer.media_type != PAYLOAD_TYPE {
        return Err(Unread::Reason("its payload has another type"));
    }
    if layer.size > MAX_PAYLOAD_BYTES {
        return Err(Unread::Reason("its payload is too large"));
    }
    let Some(digest) = layer.parse_digest() else {
        return Err(Unread::Reason("the digest of its payload is not a SHA-256"));
    };
    let Some(signature) = layer.annotations.get(SIGNATURE_ANNOTATION) else {
        return Err(Unread::Reason("its manifest has no signature"));
    };
    // One signature that cannot be decoded would make the whole file unreadable.
    if signature.len() > MAX_SIGNATURE_CHARS || BASE64_STANDARD.decode(signature).is_err() {
        return Err(Unread::Reason("its signature is not Base64 of a usual length"));
    }
    let payload = read_blob(client, digest, layer.size, "a signature").await?;
    Ok(Signature { payload: BASE64_STANDARD.encode(payload), signature: signature.clone() })
}

/// Refuses signatures for another package than the pushed one.
pub(super) fn check_are_for(package: Digest, file: &[u8]) -> anyhow::Result<()> {
    if signed_digests(file)?.iter().any(|digest| *digest != Some(package)) {
        bail!(
            "`signatures.json` has a signature for another package than sha256:{package}, which would be pushed: sign the \
             tool again, or remove the file"
        );
    }
    Ok(())
}
