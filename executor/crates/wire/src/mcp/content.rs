//! The content blocks of a result: text, and the artifacts of a run.

use super::resources::artifact_uri;
use a2g_types::ident::IntentId;
use a2g_types::outcome::Artifact;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

/// The size above which an artifact is linked to and not embedded.
pub const MAX_EMBEDDED_BYTES: usize = 64 << 10;

/// One block of content.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ContentBlock {
    Text { text: String },
    Image(MediaContent),
    Audio(MediaContent),
    Resource { resource: ResourceContent },
    ResourceLink(ResourceLink),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MediaContent {
    data: String,
    mime_type: String,
}

/// The content of a resource: text or base64.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceContent {
    uri: String,
    mime_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceLink {
    uri: String,
    name: String,
    mime_type: String,
    size: usize,
}

impl ContentBlock {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// The block for an artifact of a run.
    pub(super) fn artifact(intent: IntentId, artifact: &Artifact) -> Self {
        let Artifact { name, mime, content } = artifact;
        let mime_type = mime.clone();
        if content.len() > MAX_EMBEDDED_BYTES {
            let uri = artifact_uri(intent, name);
            return Self::ResourceLink(ResourceLink {
                uri,
                name: name.clone(),
                mime_type,
                size: content.len(),
            });
        }
        let media = |mime_type| MediaContent { data: STANDARD.encode(content), mime_type };
        match mime.split('/').next() {
            Some("image") => Self::Image(media(mime_type)),
            Some("audio") => Self::Audio(media(mime_type)),
            Some(_) | None => Self::Resource { resource: ResourceContent::artifact(intent, artifact) },
        }
    }
}

impl ResourceContent {
    pub(super) fn text(uri: String, mime_type: &str, text: String) -> Self {
        Self { uri, mime_type: mime_type.to_owned(), text: Some(text), blob: None }
    }

    /// The content of an artifact: text if its media type and its bytes are text.
    pub(super) fn artifact(intent: IntentId, Artifact { name, mime, content }: &Artifact) -> Self {
        let text = is_text(mime).then(|| std::str::from_utf8(content).ok()).flatten();
        Self {
            uri: artifact_uri(intent, name),
            mime_type: mime.clone(),
            text: text.map(str::to_owned),
            blob: text.is_none().then(|| STANDARD.encode(content)),
        }
    }
}

fn is_text(mime: &str) -> bool {
    let essence = mime.split(';').next().unwrap_or_default().trim();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || ["application/json", "application/xml", "application/x-ndjson", "application/yaml"]
            .contains(&essence)
}
