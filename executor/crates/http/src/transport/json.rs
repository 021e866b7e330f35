//! One JSON body for each request and each answer.

use crate::body::BufferedBody;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// An extractor that rejects a request whose body is not announced as `application/json`. A web page can send other
/// media types across origins without a preflight.
pub(crate) struct JsonContentType;

impl<S: Sync> FromRequestParts<S> for JsonContentType {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        if media_type(&parts.headers) == "application/json" {
            return Ok(Self);
        }
        Err(unsupported_media_type("send `Content-Type: application/json`\n"))
    }
}

/// The JSON body that the port has read for a door.
pub struct JsonBody(pub BufferedBody);

impl<S: Sync> FromRequestParts<S> for JsonBody {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        JsonContentType::from_request_parts(parts, state).await?;
        // The extension is absent only from a route without the port's middleware.
        let body = parts.extensions.remove().ok_or(StatusCode::INTERNAL_SERVER_ERROR);
        body.map(Self).map_err(IntoResponse::into_response)
    }
}

/// The answer to a body of another media type.
pub fn unsupported_media_type(message: &'static str) -> Response {
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response()
}

/// The media type of a body in lower case, without its parameters; empty without a `Content-Type`.
#[must_use]
pub fn media_type(headers: &HeaderMap) -> String {
    let essence = |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.map(essence).unwrap_or_default()
}

/// An answer of JSON text.
pub fn json_response(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
