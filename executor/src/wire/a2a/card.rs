//! The agent card, with a skill for each tool, and the extended card for authenticated callers.

use super::Dialect;
use crate::tool::{DeclaredFilesystem, Descriptor};
use serde_json::{Value, json};

/// The implemented version of A2A.
pub const PROTOCOL: &str = "0.3.0";

/// The facts about this server that the cards publish.
#[derive(Debug, Clone)]
pub struct Place {
    /// The URL of `POST /a2a/rpc`.
    pub url: String,
    /// `true` when callers must authenticate.
    pub asks: bool,
    /// `true` when callers may authenticate with JSON Web Tokens.
    pub jwts: bool,
    /// `true` when webhooks are enabled.
    pub pushes: bool,
}

/// The card at `/.well-known/agent-card.json`, for all callers.
#[must_use]
pub fn public(place: &Place, tools: &[Descriptor]) -> Value {
    card(place, tools.iter().map(skill).collect())
}

/// The card for authenticated callers: each skill also has the JSON Schema of its arguments.
#[must_use]
pub fn extended(place: &Place, tools: &[Descriptor], dialect: Dialect) -> Value {
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
        Dialect::A2a => card(place, skills),
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
const DESCRIPTION: &str = "Runs WebAssembly tools under exactly what a governor grants. Send one data part: \
     {\"tool\": name, \"arguments\": {…}}.";

fn card(place: &Place, skills: Vec<Value>) -> Value {
    let mut card = json!({
        "protocolVersion": PROTOCOL,
        "name": NAME,
        "description": DESCRIPTION,
        "url": place.url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{ "url": place.url, "transport": "JSONRPC" }],
        "version": env!("CARGO_PKG_VERSION"),
        "capabilities": {
            "streaming": true,
            "pushNotifications": place.pushes,
            "stateTransitionHistory": false,
        },
        "defaultInputModes": ["application/json", "text/plain"],
        "defaultOutputModes": ["application/json", "text/plain"],
        "skills": skills,
        "supportsAuthenticatedExtendedCard": place.asks,
    });
    if let (true, Some(card)) = (place.asks, card.as_object_mut()) {
        let mut schemes = json!({
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of this executor's list of callers.",
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
            (place.jwts, schemes.as_object_mut(), security.as_array_mut())
        {
            let scheme = json!({
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "JWT",
                "description": "A JSON Web Token of an issuer that this executor knows, about a caller of its list.",
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
