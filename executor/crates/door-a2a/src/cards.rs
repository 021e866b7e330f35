//! The agent cards: one for everybody, and one for authenticated clients.

use super::{A2aPort, Answer};
use a2g_core::run::Executor;
use a2g_http::A2aSettings;
use a2g_http::document::{Document, PerCatalog};
use a2g_http::protocol::DoorAccess;
use a2g_types::fault::Fault;
use a2g_types::tool::Descriptor;
use a2g_wire::a2a::card::{self, CardSettings};
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::{Dialect, encode};
use a2g_wire::jsonrpc::Id;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;
use serde_json::value::RawValue;
use std::sync::Arc;

/// The cards of this door, made again when the catalogue changes.
pub(super) struct Cards {
    executor: Arc<Executor>,
    dialect: Dialect,
    scheme: &'static str,
    /// The settings, still without the URL by which a client names this door.
    settings: CardSettings,
    public: PerCatalog<Document>,
    extended: PerCatalog<Document>,
}

impl Cards {
    pub(super) fn new(
        executor: Arc<Executor>,
        door: &A2aSettings,
        port: &A2aPort,
        supports_push: bool,
    ) -> Self {
        let settings = CardSettings {
            url: String::new(),
            requires_auth: port.lists_callers && door.door.access == DoorAccess::Callers,
            accepts_jwts: port.accepts_jwts,
            supports_push,
        };
        Self {
            executor,
            dialect: door.dialect,
            scheme: if port.tls { "https" } else { "http" },
            settings,
            public: PerCatalog::default(),
            extended: PerCatalog::default(),
        }
    }

    /// The answer to a request for the card for everybody.
    pub(super) fn public(&self, uri: &Uri, headers: &HeaderMap) -> Response {
        let render = |tools: &[Descriptor]| {
            Document::new(|url| card::public_card(&self.settings(url), tools).to_string())
        };
        self.public.get(self.executor.catalogue.tools(), render).respond(headers, &self.url(uri, headers))
    }

    /// The card for authenticated clients; in the ACP dialect, every client gets it.
    pub(super) fn extended(&self, id: &Id, url: &str) -> Answer {
        if self.dialect == Dialect::A2a && !self.settings.requires_auth {
            return Err(Problem::NoExtendedCard);
        }
        let render = |tools: &[Descriptor]| {
            Document::new(|url| card::extended_card(&self.settings(url), tools, self.dialect).to_string())
        };
        let text = self.extended.get(self.executor.catalogue.tools(), render).text(url);
        let card = RawValue::from_string(text).map_err(|error| Fault::Internal(error.to_string()))?;
        Ok(encode::response(id, &card))
    }

    /// The URL by which a client names this door. `Host` was checked before the handler ran.
    pub(super) fn url(&self, uri: &Uri, headers: &HeaderMap) -> String {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let authority = uri.authority().map(Authority::as_str).or(host).unwrap_or_default();
        format!("{}://{authority}/a2a/rpc", self.scheme)
    }

    fn settings(&self, url: &str) -> CardSettings {
        CardSettings { url: url.to_owned(), ..self.settings.clone() }
    }
}
