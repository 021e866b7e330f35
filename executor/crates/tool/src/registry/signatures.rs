//! The signatures of a package, as cosign stores them beside it: written as referrers, and read as referrers, from the
//! tag that replaces them where a registry has no list of referrers, and from the tag of older versions of cosign.
//!
//! A signature that does not have the expected form, or that the registry does not send, is left out, with a note. Of the
//! others, `ToolTrust` chooses: an executor that requires signatures refuses a tool without a valid one.

use super::client::{Answer, Outgoing, RegistryClient};
use super::download::{check_digest, read_blob};
use super::error::RegistryError;
use a2g_command::output::note;
use a2g_core::catalog::{MANIFEST_TYPE, MAX_SIGNATURES_BYTES};
use a2g_govern::{
    MAX_SIGNATURES, OfferedTool, StoredSignature, ToolTrust, parse_signatures, write_signatures,
};
use a2g_types::tool::Digest;
use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// The type of an index of manifests.
pub(super) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// The type of cosign's signatures.
const ARTIFACT_TYPE: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";
/// The type of what is signed: a statement about the digest of a manifest.
const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation that has the signature.
const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY_CONFIG: &[u8] = b"{}";
/// The header with which a registry says that it lists the referrer.
const SUBJECT_HEADER: &str = "oci-subject";
/// The maximum number of requests for the signatures of one list.
const MAX_REQUESTS: usize = 256;
/// The maximum size of a list of signatures, in bytes: the usual limit of registries for a manifest.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// The maximum size of the manifest of one signature, in bytes: with a certificate and a bundle, it has about 10 kB.
const MAX_SIGNATURE_MANIFEST_BYTES: u64 = 64 << 10;
/// The maximum size of a payload, in bytes.
const MAX_PAYLOAD_BYTES: u64 = 16 << 10;
/// The maximum length of a signature in Base64: one of RSA with 4096 bits has 684 characters.
const MAX_SIGNATURE_CHARS: usize = 1024;

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

/// Reads the signatures of a package that is pushed.
///
/// They are not verified: the readers of a registry decide whose signatures they need, and who may write there can do so
/// with any client. The bounds of the file are what keeps a tool that was installed with a crowd of forged signatures
/// from spreading more of them than one tool may have.
///
/// # Errors
/// A message if the file has too many signatures, or one that is not for this package.
pub(super) fn parse_for(package: Digest, file: &[u8]) -> anyhow::Result<Vec<StoredSignature>> {
    let signatures = parse_signatures(file)
        .map_err(|reason| anyhow!("`signatures.json` cannot be pushed with the tool: {reason}"))?;
    for signature in &signatures {
        let claimed = signature.claimed_package().map_err(|reason| {
            anyhow!("`signatures.json` has a signature that is not for a package, because {reason}: sign the tool again, or \
                     remove the file")
        })?;
        if claimed != package {
            bail!(
                "`signatures.json` has a signature for another package than sha256:{package}, which would be pushed: sign \
                 the tool again, or remove the file"
            );
        }
    }
    Ok(signatures)
}

/// Pushes each signature as a referrer of the package's manifest.
pub(super) async fn push(
    client: &mut RegistryClient,
    manifest: &[u8],
    signatures: &[StoredSignature],
) -> anyhow::Result<()> {
    let package = Digest::compute(manifest);
    if !signatures.is_empty() {
        push_blob(client, EMPTY_CONFIG, "the config of a signature").await?;
    }
    for StoredSignature { payload, signature } in signatures {
        push_blob(client, payload, "a signature").await?;
        let mut layer = Descriptor::of(PAYLOAD_TYPE, payload);
        layer.annotations.insert(SIGNATURE_ANNOTATION.to_owned(), BASE64_STANDARD.encode(signature));
        let signed = SignatureManifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: Some(ARTIFACT_TYPE.to_owned()),
            config: Descriptor::of(EMPTY_TYPE, EMPTY_CONFIG),
            layers: vec![layer],
            subject: Some(Descriptor::of(MANIFEST_TYPE, manifest)),
        };
        let document = serde_json::to_vec(&signed)?;
        let path = format!("manifests/sha256:{}", Digest::compute(&document));
        let answer = put_manifest(client, &path, MANIFEST_TYPE, &document, "the signature").await?;
        if !answer.headers.contains_key(SUBJECT_HEADER) {
            let mut entry = Descriptor::of(MANIFEST_TYPE, &document);
            entry.artifact_type = Some(ARTIFACT_TYPE.to_owned());
            add_to_fallback(client, package, entry).await?;
        }
    }
    Ok(())
}

/// Adds a referrer to the index that the OCI distribution specification defines for registries without a list.
async fn add_to_fallback(
    client: &mut RegistryClient,
    package: Digest,
    entry: Descriptor,
) -> anyhow::Result<()> {
    let mut manifests = match read_list(client, &format!("sha256-{package}"), INDEX_TYPE).await? {
        None => Vec::new(),
        Some(bytes) => {
            let Index { manifests, .. } = serde_json::from_slice(&bytes).with_context(|| {
                format!("the tag `sha256-{package}` of the registry is not an index of referrers")
            })?;
            manifests
        }
    };
    // First, because readers read a limited number: to push again helps against a crowd of others.
    manifests.retain(|other| other.digest != entry.digest);
    manifests.insert(0, entry);
    let list = Index { schema_version: 2, media_type: INDEX_TYPE.to_owned(), manifests };
    let index = serde_json::to_vec(&list)?;
    let path = format!("manifests/sha256-{package}");
    put_manifest(client, &path, INDEX_TYPE, &index, "the list of signatures").await?;
    Ok(())
}

/// Pushes a part of a package, unless the registry has it.
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
    client.check_target(&begun.url, "names the address for an upload", &location)?;
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

/// Reads a list of signatures by its tag; `None` if there is none.
async fn read_list(
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
    answer.read(MAX_LIST_BYTES).await.map(Some)
}

/// Reads the signatures of a package, as the bytes of `signatures.json`; `None` if it has none.
///
/// Anybody who may write to the repository can add signatures, so those that `trust` accepts are chosen among all that are
/// read, and only the number of requests is limited, with a limit for each list.
pub(super) async fn read(
    client: &mut RegistryClient,
    trust: &ToolTrust,
    offered: &OfferedTool<'_>,
) -> Result<Option<Vec<u8>>, RegistryError> {
    let mut reader = Reader { client, package: offered.package, requests: 0, left_out: BTreeMap::new() };
    let mut found = reader.read_referrers().await?;
    reader.requests = 0;
    found.append(&mut reader.read_older().await?);
    let read = found.len();
    let mut signatures = Vec::<StoredSignature>::new();
    for signature in found {
        if !signatures.contains(&signature) {
            signatures.push(signature);
        }
    }
    let mut signatures = trust.keep_nearest(offered, signatures);
    // The longest are left out first: usual signatures are short, and anybody may add long ones to a repository.
    signatures.sort_by_key(|signature| signature.payload.len() + signature.signature.len());
    let mut file = None;
    while !signatures.is_empty() {
        if signatures.len() <= MAX_SIGNATURES
            && let Ok(bytes) = write_signatures(&signatures)
            && bytes.len() as u64 <= MAX_SIGNATURES_BYTES
        {
            file = Some(bytes);
            break;
        }
        signatures.pop();
        reader.leave_out(format!(
            "a tool has at most {MAX_SIGNATURES} signatures of {MAX_SIGNATURES_BYTES} bytes together"
        ));
    }
    reader.note(read);
    Ok(file)
}

/// Reads one list of signatures after the other.
struct Reader<'a> {
    client: &'a mut RegistryClient,
    package: Digest,
    /// The number of requests for signatures of the present list.
    requests: usize,
    /// The reasons why signatures were left out, with the number of times.
    left_out: BTreeMap<String, usize>,
}

impl Reader<'_> {
    /// The signatures in the list of referrers.
    async fn read_referrers(&mut self) -> Result<Vec<StoredSignature>, RegistryError> {
        let url = self.client.url(&format!("referrers/sha256:{}", self.package));
        let outgoing =
            Outgoing { accept: Some(INDEX_TYPE), ..Outgoing::new(Method::GET, url, "a list of signatures") };
        let answer = self.client.send(&outgoing).await?;
        let list = match answer.status {
            StatusCode::OK if !answer.is_web_page() => answer.read(MAX_LIST_BYTES).await.map(Some),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                return Err(self.client.refusal(answer).await);
            }
            status if status.is_server_error() => return Err(self.client.refusal(answer).await),
            // A registry without the list answers an unknown path in its own way.
            _ => read_list(self.client, &format!("sha256-{}", self.package), INDEX_TYPE).await,
        };
        let Some(Index { manifests, .. }) = parse_list(list)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        for one in manifests {
            let is_signature = one.artifact_type.as_deref() == Some(ARTIFACT_TYPE);
            if is_signature && seen.insert(one.digest.clone()) {
                let read = self.read_referrer(&one).await;
                found.extend(self.leave_out_unreadable(read)?);
            }
        }
        Ok(found)
    }

    /// The signatures in the layers of the manifest in which older versions of cosign store all of a package.
    async fn read_older(&mut self) -> Result<Vec<StoredSignature>, RegistryError> {
        let list = read_list(self.client, &format!("sha256-{}.sig", self.package), MANIFEST_TYPE).await;
        let Some(SignatureManifest { layers, .. }) = parse_list(list)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for layer in &layers {
            let read = self.read_layer(layer).await;
            found.extend(self.leave_out_unreadable(read)?);
        }
        Ok(found)
    }

    /// Counts a request, and refuses one too many.
    fn count_request(&mut self) -> Result<(), Unread> {
        self.requests += 1;
        if self.requests > MAX_REQUESTS {
            return Err(Unread::Reason("its list needs too many requests"));
        }
        Ok(())
    }

    async fn read_referrer(&mut self, descriptor: &Descriptor) -> Result<StoredSignature, Unread> {
        let Some(digest) = descriptor.parse_digest() else {
            return Err(Unread::Reason("its digest is not a SHA-256"));
        };
        self.count_request()?;
        let url = self.client.url(&format!("manifests/sha256:{digest}"));
        let outgoing =
            Outgoing { accept: Some(MANIFEST_TYPE), ..Outgoing::new(Method::GET, url, "a signature") };
        let answer = self.client.expect(&outgoing, &[StatusCode::OK]).await?;
        let bytes = answer.read(MAX_SIGNATURE_MANIFEST_BYTES).await?;
        check_digest("a signature", Digest::compute(&bytes), digest)?;
        let Ok(SignatureManifest { artifact_type, layers, subject, .. }) = serde_json::from_slice(&bytes)
        else {
            return Err(Unread::Reason("its manifest cannot be read"));
        };
        if artifact_type.as_deref() != Some(ARTIFACT_TYPE) {
            return Err(Unread::Reason("its manifest has another type"));
        }
        if subject.as_ref().and_then(Descriptor::parse_digest) != Some(self.package) {
            return Err(Unread::Reason("its manifest is about another artifact"));
        }
        let [layer] = &layers[..] else {
            return Err(Unread::Reason("its manifest does not have exactly one layer"));
        };
        self.read_layer(layer).await
    }

    async fn read_layer(&mut self, layer: &Descriptor) -> Result<StoredSignature, Unread> {
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
        let signature = Some(signature).filter(|text| text.len() <= MAX_SIGNATURE_CHARS);
        let Some(signature) = signature.and_then(|text| BASE64_STANDARD.decode(text).ok()) else {
            return Err(Unread::Reason("its signature is not Base64 of a usual length"));
        };
        self.count_request()?;
        let payload = read_blob(self.client, digest, layer.size, "a signature").await?;
        Ok(StoredSignature { payload, signature })
    }

    fn leave_out(&mut self, reason: String) {
        *self.left_out.entry(reason).or_default() += 1;
    }

    fn leave_out_unreadable(
        &mut self,
        read: Result<StoredSignature, Unread>,
    ) -> Result<Option<StoredSignature>, RegistryError> {
        match read {
            Ok(signature) => return Ok(Some(signature)),
            Err(Unread::Reason(reason)) => self.leave_out(reason.to_owned()),
            Err(Unread::Registry(error)) => {
                let reason = reason_to_leave_out(error)?;
                self.leave_out(reason);
            }
        }
        Ok(None)
    }

    /// Says how many signatures were left out, and why.
    fn note(&self, read: usize) {
        let counted = self.left_out.iter().map(|(reason, count)| format!("{count} because {reason}"));
        let reasons = counted.collect::<Vec<_>>();
        if !reasons.is_empty() {
            let count = self.left_out.values().sum::<usize>();
            note(format_args!(
                "note: signatures of the tool: {read} read, {count} left out: {}",
                reasons.join(", ")
            ));
        }
    }
}

/// Parses a list of signatures; `None` if there is none. One that is not usable is left out.
fn parse_list<T: DeserializeOwned>(
    list: Result<Option<Vec<u8>>, RegistryError>,
) -> Result<Option<T>, RegistryError> {
    let reason = match list {
        Ok(None) => return Ok(None),
        Ok(Some(bytes)) => match serde_json::from_slice(&bytes) {
            Ok(parsed) => return Ok(Some(parsed)),
            Err(_no_list) => "it cannot be read".to_owned(),
        },
        Err(error) => reason_to_leave_out(error)?,
    };
    note(format_args!("note: a list of the tool's signatures is left out: {reason}"));
    Ok(None)
}

/// The reason why a signature was not read.
enum Unread {
    /// It does not have the expected form.
    Reason(&'static str),
    /// The registry does not answer, or with something else.
    Registry(RegistryError),
}

impl From<RegistryError> for Unread {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

/// An answer about one signature, or one list, is a reason to leave it out: anybody who may write to the registry could
/// otherwise make a tool impossible to add. An error of the connection or of this machine ends the command.
fn reason_to_leave_out(error: RegistryError) -> Result<String, RegistryError> {
    let reason = match error {
        RegistryError::NotFound { .. } => "the registry does not have it",
        RegistryError::Length { .. } => "it has another length than its description says",
        RegistryError::TooLarge { .. } => "it is too large",
        RegistryError::Digest { .. } => "it has another content than its digest says",
        RegistryError::WebPage { .. } => "a web page came in its place",
        RegistryError::LoginMissing { .. } | RegistryError::LoginRefused { .. } => {
            "the registry does not let this user read it"
        }
        RegistryError::Refused { status, .. } => {
            return Ok(format!("the registry answered with status {status}"));
        }
        RegistryError::Invalid { .. } | RegistryError::Redirect { .. } => "the answer cannot be used",
        RegistryError::Unreachable { .. }
        | RegistryError::Silent { .. }
        | RegistryError::TooSlow { .. }
        | RegistryError::Interrupted { .. }
        | RegistryError::Partial { .. }
        | RegistryError::Locked { .. }
        | RegistryError::Login(_)
        | RegistryError::Io { .. } => return Err(error),
    };
    Ok(reason.to_owned())
}
