//! The door as a protected resource of OAuth 2.1: the answers from which a client without a token, or with a token
//! without a scope, learns where to get another (RFC 9728, RFC 6750).

use a2g_core::run::Executor;
use a2g_govern::{Caller, Credential, missing_scope_message};
use a2g_http::CheckedHost;
use a2g_http::auth::Unauthenticated;
use a2g_http::document::Document;
use a2g_http::protocol::{AuthPolicy, ProtocolRouter};
use a2g_http::{DoorAccess, McpSettings};
use a2g_types::fault::BlockedBy;
use a2g_types::ident::ToolName;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde_json::json;
use std::sync::Arc;

const METADATA_PATH: &str = "/.well-known/oauth-protected-resource/mcp";

/// The facts that clients learn about the tokens of this door.
pub(super) struct Authorization {
    scheme: &'static str,
    /// `None` if the door accepts no JSON Web Tokens: clients are then told nothing.
    metadata: Option<Document>,
}

impl Authorization {
    pub(super) fn new(settings: &McpSettings) -> Self {
        let has_issuers = settings.door.access == DoorAccess::Callers && !settings.issuers.is_empty();
        let metadata = |url: &str| {
            let metadata = json!({
                "resource": url,
                "resource_name": "A2G executor",
                "authorization_servers": settings.issuers,
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["tools:*"],
            });
            metadata.to_string()
        };
        Self { scheme: settings.scheme, metadata: has_issuers.then(|| Document::new(metadata)) }
    }

    /// The metadata, which every client may read: a client without a token needs it.
    pub(super) fn router(self: &Arc<Self>) -> ProtocolRouter {
        let routes = Router::new().route(METADATA_PATH, get(metadata)).with_state(Arc::clone(self));
        ProtocolRouter { routes, auth: AuthPolicy::Public }
    }

    fn url(&self, CheckedHost(host): &CheckedHost, path: &str) -> String {
        format!("{}://{host}{path}", self.scheme)
    }

    /// A challenge with the address of the metadata, if there are any.
    fn challenge(&self, challenge: &str, host: &CheckedHost) -> String {
        if self.metadata.is_none() {
            return challenge.to_owned();
        }
        let separator = if challenge.contains(' ') { "," } else { "" };
        format!("{challenge}{separator} resource_metadata=\"{}\"", self.url(host, METADATA_PATH))
    }

    /// The answer to a call that the token's scope does not reach.
    pub(super) fn refuse_scope(&self, executor: &Executor, tool: &ToolName, host: &CheckedHost) -> Response {
        let message = missing_scope_message(tool);
        executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message.clone());
        let refused = format!("Bearer error=\"insufficient_scope\", scope=\"tools:{tool}\"");
        let challenge = self.challenge(&refused, host);
        (StatusCode::FORBIDDEN, [(header::WWW_AUTHENTICATE, challenge)], format!("{message}\n"))
            .into_response()
    }
}

async fn metadata(
    State(authorization): State<Arc<Authorization>>,
    Extension(host): Extension<CheckedHost>,
    headers: HeaderMap,
) -> Response {
    match &authorization.metadata {
        Some(metadata) => metadata.respond(&headers, &authorization.url(&host, "/mcp")),
        None => (StatusCode::NOT_FOUND, "this server accepts no JSON Web Tokens\n").into_response(),
    }
}

/// The caller of a request, or the answer that tells a client where to get a token.
pub(super) struct KnownCaller(pub(super) Arc<Caller>);

impl<S: Sync> FromRequestParts<S> for KnownCaller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let Parts { extensions, .. } = parts;
        let reason = match extensions.get::<Result<Arc<Caller>, Unauthenticated>>() {
            Some(Ok(caller)) => return Ok(Self(Arc::clone(caller))),
            Some(Err(reason)) => *reason,
            None => Unauthenticated::default(),
        };
        let credential = extensions.get::<Credential>().cloned().unwrap_or_default();
        let bearer = reason.challenge(&credential);
        let known = extensions.get::<Arc<Authorization>>().zip(extensions.get::<CheckedHost>());
        Err(reason.answer(match known {
            Some((authorization, host)) => authorization.challenge(&bearer, host),
            None => bearer,
        }))
    }
}
