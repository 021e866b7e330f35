//! Documents that are made once, and served from memory with an `ETag`.

use a2g_types::ident::IntentId;
use a2g_types::tool::{Descriptor, Digest};
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use std::sync::Arc;

/// A JSON document that names this server by the URL that each client uses.
#[derive(Debug)]
pub struct Document {
    /// The text between the places of the URL.
    parts: Vec<Box<str>>,
    etag: HeaderValue,
}

impl Document {
    /// A document with the URL that `render` gets, wherever it writes it.
    // One text for each URL would let a client that invents names, such as ports, have each of them made.
    pub fn new(render: impl FnOnce(&str) -> String) -> Self {
        // Random, so that no other text in the document contains it.
        let place = IntentId::random().to_string();
        let parts = render(&place).split(&place).map(Box::from).collect::<Vec<Box<str>>>();
        let digest = format!("\"{}\"", Digest::compute(parts.concat().as_bytes()));
        // A digest has visible ASCII only.
        let etag = HeaderValue::try_from(digest).unwrap_or(HeaderValue::from_static("\"\""));
        Self { parts, etag }
    }

    /// The document for a client that names this server by `url`.
    pub fn text(&self, url: &str) -> String {
        let quoted = serde_json::Value::from(url).to_string();
        self.parts.join(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default())
    }

    /// The answer to a `GET`; without the document if the client has it.
    pub fn respond(&self, request: &HeaderMap, url: &str) -> Response {
        // A cache that serves several names of this server must not mix them up.
        let etag = [(header::ETAG, self.etag.clone()), (header::VARY, HeaderValue::from_static("Host"))];
        if has_document(request, &self.etag) {
            return (StatusCode::NOT_MODIFIED, etag).into_response();
        }
        let media_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        (etag, media_type, Bytes::from(self.text(url))).into_response()
    }
}

/// Returns `true` if a request names the document that its client has, as in RFC 9110, section 13.1.2.
fn has_document(request: &HeaderMap, etag: &HeaderValue) -> bool {
    let values = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut named = values.flat_map(|value| value.split(',')).map(str::trim);
    named.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// What a door makes of the catalogue's tools, kept until the catalogue changes.
#[derive(Debug)]
pub struct PerCatalog<T>(Mutex<Option<Made<T>>>);

/// The tools, and the value that was made of them.
type Made<T> = (Arc<[Descriptor]>, Arc<T>);

impl<T> Default for PerCatalog<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerCatalog<T> {
    /// The value for these tools, which `make` makes if they are not those of the call before.
    pub fn get(&self, tools: Arc<[Descriptor]>, make: impl FnOnce(&[Descriptor]) -> T) -> Arc<T> {
        let mut made = self.0.lock();
        if let Some((made_of, value)) = &*made
            && Arc::ptr_eq(made_of, &tools)
        {
            return Arc::clone(value);
        }
        let value = Arc::new(make(&tools));
        *made = Some((tools, Arc::clone(&value)));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    fn document() -> Document {
        Document::new(|url| format!(r#"{{"a":"{url}/x","b":"{url}"}}"#))
    }

    #[tokio::test]
    async fn a_client_that_has_a_document_does_not_get_it_again() {
        let document = document();
        let mut request = HeaderMap::new();
        let first = document.respond(&request, "http://h:1\"");
        let etag = first.headers()[header::ETAG].clone();
        let body = to_bytes(first.into_body(), 100).await.unwrap();
        assert_eq!(body, r#"{"a":"http://h:1\"/x","b":"http://h:1\""}"#);
        let text = etag.to_str().unwrap();
        for (value, status) in [
            (text.to_owned(), StatusCode::NOT_MODIFIED),
            (format!("\"x\", W/{text}"), StatusCode::NOT_MODIFIED),
            ("*".to_owned(), StatusCode::NOT_MODIFIED),
            ("\"x\"".to_owned(), StatusCode::OK),
        ] {
            request.insert(header::IF_NONE_MATCH, value.try_into().unwrap());
            let answer = document.respond(&request, "http://h");
            assert_eq!((answer.status(), &answer.headers()[header::ETAG]), (status, &etag));
        }
        assert_eq!(self::document().etag, etag, "it depends on the content alone");
    }

    #[test]
    fn a_value_is_made_once_for_each_catalogue() {
        let cache = PerCatalog::default();
        let mut made = 0;
        let tools: [Arc<[Descriptor]>; 2] = [Arc::from([]), Arc::from([])];
        let mut get = |tools: &Arc<[Descriptor]>| {
            *cache.get(Arc::clone(tools), |_| {
                made += 1;
                made
            })
        };
        assert_eq!([&tools[0], &tools[0], &tools[1], &tools[1]].map(&mut get), [1, 1, 2, 2]);
    }
}
