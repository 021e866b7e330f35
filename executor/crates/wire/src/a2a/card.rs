//! The agent card, with a skill for each tool, and the extended card for authenticated callers.

use super::Dialect;
use a2g_types::tool::{DeclaredFilesystem, Descriptor};
use serde_json::{Value, json};

/// The implemented version of A2A.
pub const PROTOCOL: &str = "0.3.0";
/// The version as clients of A2A 1.0 name it.
pub(super) const MAJOR_MINOR: &str = "0.3";
/// The path of the public card.
pub const PATH: &str = "/.well-known/agent-card.json";

/// Returns `true` for a version that this door speaks. A client that names none speaks it, too.
#[must_use]
pub fn is_supported_version(version: &str) -> bool {
    let version = version.trim();
    version.is_empty() || version == MAJOR_MINOR || version == PROTOCOL
}

/// The facts about this server that the cards publish.
#[derive(Debug, Clone)]
pub struct CardSettings {
    /// The URL of `POST /a2a/rpc`.
    pub url: String,
    /// `true` when callers must authenticate.
    pub requires_auth: bool,
    /// `true` when callers may authenticate with JSON Web Tokens.
    pub accepts_jwts: bool,
    /// `true` when webhooks are enabled.
    pub supports_push: bool,
}

/// The card at [`PATH`], for all callers.
#[must_use]
pub fn public_card(settings: &CardSettings, tools: &[Descriptor]) -> Value {
    card(settings, tools.iter().map(skill).collect())
}

/// The card for authenticated callers: each skill also has the JSON Schema of its arguments.
#[must_use]
pub fn extended_card(settings: &CardSettings, tools: &[Descriptor], dialect: Dialect) -> Value {
    let skills = tools.iter().map(|tool| {
        let mut skill = skill(tool);
        if let Some(skill) = skill.as_object_mut() {
            skill.insert("version".to_owned(), tool.version.clone().into());
            skill.insert("argumentsSchema".to_owned(), tool.arguments_schema.clone());
        }
        skill
    });
    let skills = skills.collect();
    match dialect {
        Dialect::A2a => card(settings, skills),
        Dialect::Acp => json!({
            "id": "a2g-executor",
            "name": NAME,
            "description": DESCRIPTION,
            "version": env!("CARGO_PKG_VERSION"),
            "capabilities": {
                "tasks": true,
                "contexts": true,
                "streaming": true,
                "files": true,
                "toolExecution": true,
            },
            "skills": skills,
            "supportedProtocols": [format!("a2a/{PROTOCOL}")],
            "metadata": { "provider": "a2g-executor", "model": null },
        }),
    }
}

const NAME: &str = "a2g-executor";
const DESCRIPTION: &str = "Runs WebAssembly tools with exactly the capabilities that a governor grants. Send one data part: \
     {\"tool\": name, \"arguments\": {…}}.";

fn card(settings: &CardSettings, skills: Vec<Value>) -> Value {
    let mut card = json!({
        "protocolVersion": PROTOCOL,
        "name": NAME,
        "description": DESCRIPTION,
        "url": settings.url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{ "url": settings.url, "transport": "JSONRPC" }],
        "version": env!("CARGO_PKG_VERSION"),
        "capabilities": {
            "streaming": true,
            "pushNotifications": settings.supports_push,
            "stateTransitionHistory": false,
        },
        "defaultInputModes": ["application/json", "text/plain"],
        "defaultOutputModes": ["application/json", "text/plain"],
        "skills": skills,
        "supportsAuthenticatedExtendedCard": settings.requires_auth,
    });
    if let (true, Some(card)) = (settings.requires_auth, card.as_object_mut()) {
        let mut schemes = json!({
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token from this executor's list of callers.",
            },
            "apiKey": {
                "type": "apiKey",
                "in": "header",
                "name": "X-API-Key",
                "description": "The same token, in another header.",
            },
        });
        let mut security = json!([{ "bearer": [] }, { "apiKey": [] }]);
        if let (true, Some(schemes), Some(security)) =
            (settings.accepts_jwts, schemes.as_object_mut(), security.as_array_mut())
        {
            let scheme = json!({
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "JWT",
                "description": "A JSON Web Token from a trusted issuer, whose subject is one of this executor's callers.",
            });
            schemes.insert("jwt".to_owned(), scheme);
            security.push(json!({ "jwt": [] }));
        }
        card.insert("securitySchemes".to_owned(), schemes);
        card.insert("security".to_owned(), security);
    }
    card
}

fn skill(tool: &Descriptor) -> Value {
    let files = match tool.capabilities.filesystem {
        DeclaredFilesystem::None => None,
        DeclaredFilesystem::Read => Some("files"),
        DeclaredFilesystem::ReadWrite => Some("files:write"),
    };
    let network = tool.capabilities.network.then_some("network");
    let tags = std::iter::once("tool").chain(files).chain(network).collect::<Vec<_>>();
    json!({
        "id": tool.name.as_str(),
        "name": tool.name.as_str(),
        "description": tool.description,
        "tags": tags,
        "inputModes": ["application/json"],
        "outputModes": ["application/json", "text/plain"],
    })
}
