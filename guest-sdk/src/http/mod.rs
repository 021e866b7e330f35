//! HTTP requests, for tools whose run has a network.
//!
//! ```text
//! Request ──send──▶ network? ──no──▶ the error `Off`; no network interface is called
//!                      │ yes
//!                      ▼
//!                   one request through the executor ──▶ Response, complete, with a body of at most `max_bytes`
//! ```
//!
//! The executor decides on every request: the hosts and addresses that it may reach, the number of requests and
//! the number of bytes. This module follows no redirect, stores no cookie and decodes no compressed body: each further
//! request is made by the tool and checked by the executor again. [`Request::open`] reads a body while it arrives.
//!
//! ```
//! use a2g_guest_sdk::http::{self, Request};
//! use a2g_guest_sdk::prelude::*;
//! use a2g_guest_sdk::serde;
//! use std::time::Duration;
//!
//! /// Asks for the weather.
//! #[derive(Arguments)]
//! struct Weather {
//!     /// The address of the station.
//!     station: String,
//! }
//!
//! #[derive(serde::Deserialize)]
//! #[serde(crate = "serde")]
//! struct Reading {
//!     celsius: f64,
//! }
//!
//! fn weather(_: &mut Context, arguments: Weather) -> Result<Value, ToolError> {
//!     let response = Request::get(&arguments.station)?
//!         .header("accept", "application/json")?
//!         .timeout(Duration::from_secs(10))
//!         .max_bytes(64 * 1024)
//!         .send()?;
//!     if !response.is_success() {
//!         let message = format!("{} answered {}", response.url(), response.status());
//!         return Err(ToolError::new("station_failed", message));
//!     }
//!     let reading: Reading = response.json()?;
//!     http::post("https://log.example/readings", reading.celsius.to_string())?;
//!     Ok(json!({ "celsius": reading.celsius }))
//! }
//!
//! // In a native test, a `Network` answers the requests.
//! use a2g_guest_sdk::testing::{self, Answer, Network};
//!
//! let network = Network::answering(|request| match request.url().host() {
//!     Some("station.example") => Ok(Answer::new(200).body(r#"{"celsius":21.5}"#)),
//!     _ => Ok(Answer::new(204)),
//! });
//! let run = testing::invoke(weather, json!({ "station": "https://station.example/now" }));
//! assert_eq!(run.result, Ok(json!({ "celsius": 21.5 })));
//! assert_eq!(network.requests()[1].body_bytes(), b"21.5");
//! ```
//!
//! The WebAssembly module of a tool that does not use this module imports no network interface.

mod error;
#[cfg(target_family = "wasm")]
mod wasm;

use std::time::Duration;

use ::http::header;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
pub use error::{Error, Reason};

#[cfg(not(target_family = "wasm"))]
use crate::testing::network as transport;
#[cfg(target_family = "wasm")]
use wasm as transport;

/// Default maximum number of bytes of a response body: about as much text as is of use to an agent, and far less than
/// the memory that a tool usually has.
const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// Headers that only the executor sets. They control the connection or name the target, and the executor has checked
/// the target in the URL only.
const EXECUTOR_HEADERS: [HeaderName; 11] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Sends a `GET` request without further headers. The response body has at most 1 MiB.
///
/// # Errors
/// As [`Request::new`] and [`Request::send`].
pub fn get(url: impl AsRef<str>) -> Result<Response, Error> {
    Request::get(url)?.send()
}

/// Sends `body` in a `POST` request without a content type. The response body has at most 1 MiB.
///
/// # Errors
/// As [`Request::new`] and [`Request::send`].
pub fn post(url: impl AsRef<str>, body: impl Into<Vec<u8>>) -> Result<Response, Error> {
    Request::post(url, body)?.send()
}

/// An HTTP request.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until `send`"]
pub struct Request {
    method: Method,
    url: Uri,
    headers: HeaderMap,
    body: Vec<u8>,
    timeout: Option<Duration>,
    max_bytes: usize,
}

impl Request {
    /// Makes a request with the given method, such as `Request::new(Method::PUT, url)`.
    ///
    /// The URL is ASCII, as sent over the wire: other characters are percent-encoded, and host names are in punycode.
    /// The fragment (after `#`) is removed.
    ///
    /// # Errors
    /// [`Reason::Invalid`] if this is not an absolute `http` or `https` URL, or if it contains a user name or a
    /// password, which belong in a header.
    pub fn new(method: Method, url: impl AsRef<str>) -> Result<Self, Error> {
        let url = parse(url.as_ref())?;
        let (headers, body) = (HeaderMap::new(), Vec::new());
        Ok(Self { method, url, headers, body, timeout: None, max_bytes: DEFAULT_MAX_BYTES })
    }

    /// Makes a `GET` request.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn get(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::new(Method::GET, url)
    }

    /// Makes a `POST` request.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn post(url: impl AsRef<str>, body: impl Into<Vec<u8>>) -> Result<Self, Error> {
        Self::new(Method::POST, url).map(|request| request.body(body))
    }

    /// Adds a header. Headers of the same name are all sent.
    ///
    /// # Errors
    /// [`Reason::Invalid`] if the name or the value is not valid in a header, or if only the executor sets this header:
    /// `host`, `content-length` and those that control the connection.
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        let name = name.as_ref();
        let invalid = |what: String| Error::new(&self.url, Reason::Invalid(what));
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("`{}` is not a valid header name", name.escape_debug())))?;
        if EXECUTOR_HEADERS.contains(&parsed) {
            return Err(invalid(format!("the header `{parsed}` is set by the executor: remove it")));
        }
        let value = HeaderValue::from_bytes(value.as_ref()).map_err(|_| {
            invalid(format!("the value of the header `{parsed}` contains control characters"))
        })?;
        // A `HeaderMap` has a maximum of its own, in the tens of thousands.
        self.headers.try_append(parsed, value).map_err(|_| {
            Error::new(&self.url, Reason::Invalid("the request has too many headers".to_owned()))
        })?;
        Ok(self)
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body to JSON, and the content type to `application/json`.
    ///
    /// # Errors
    /// [`Reason::Invalid`] if the value cannot be serialized as JSON.
    pub fn json(self, value: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(value).map_err(|error| {
            Error::new(&self.url, Reason::Invalid(format!("the body cannot be serialized as JSON: {error}")))
        })?;
        self.body(body).header("content-type", "application/json")
    }

    /// Sets the time limit for sending the request and reading the whole response. Without it, only the deadline of the
    /// run applies.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the maximum number of bytes of the response body; the default is 1 MiB. A longer body results
    /// in the error [`Reason::TooLarge`]; a body is never truncated.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The method of the request.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The URL of the request.
    #[must_use]
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// The headers that were added.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body of the request.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        &self.body
    }

    /// Sends the request once and reads the whole response. Any status, even 404 or 500, is `Ok`.
    ///
    /// # Errors
    /// [`Reason::Off`] if the run has no network; any other reason if there is no complete response.
    pub fn send(self) -> Result<Response, Error> {
        self.open()?.finish()
    }

    /// Sends the request once, and returns as soon as the head of the response has arrived. The body is read in parts,
    /// for responses that come little by little, such as events (`text/event-stream`). Any status is `Ok`.
    ///
    /// # Errors
    /// As [`send`](Self::send), as far as they concern the head.
    pub fn open(self) -> Result<ResponseStream, Error> {
        if !transport::is_on() {
            return Err(Error::new(&self.url, Reason::Off));
        }
        let max_bytes = self.max_bytes;
        match transport::open(&self) {
            Ok(Opened { status, headers, body }) => {
                let head = Response { url: self.url, status, headers, body: Vec::new() };
                Ok(ResponseStream { head, body, received: 0, max_bytes })
            }
            Err(reason) => Err(Error::new(&self.url, reason)),
        }
    }
}

/// The head of a response, and its body as it arrives.
pub(crate) struct Opened {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: transport::Body,
}

/// A response whose body is still arriving. Dropping it closes the connection.
#[derive(Debug)]
pub struct ResponseStream {
    head: Response,
    body: transport::Body,
    /// The number of bytes of the body so far.
    received: usize,
    max_bytes: usize,
}

impl ResponseStream {
    /// The response without its body.
    #[must_use]
    pub fn head(&self) -> &Response {
        &self.head
    }

    /// Waits for the next part of the body, which is not empty; `None` at the end of the body.
    ///
    /// # Errors
    /// [`Reason::TooLarge`] if the body has more bytes than the maximum of the request; any other reason if the rest of
    /// it cannot be read. Nothing can be read after an error.
    pub fn next_part(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let part = self.body.next_part().map_err(|reason| Error::new(&self.head.url, reason))?;
        self.received = self.received.saturating_add(part.as_ref().map_or(0, Vec::len));
        if self.received > self.max_bytes {
            return Err(Error::new(&self.head.url, Reason::TooLarge { max_bytes: self.max_bytes }));
        }
        Ok(part)
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// As [`next_part`](Self::next_part).
    pub fn finish(mut self) -> Result<Response, Error> {
        let mut body = Vec::new();
        while let Some(part) = self.next_part()? {
            // The usual body is one part.
            if body.is_empty() {
                body = part;
            } else {
                body.extend_from_slice(&part);
            }
        }
        Ok(Response { body, ..self.head })
    }
}

/// A complete response to a request.
#[derive(Debug, Clone)]
pub struct Response {
    url: Uri,
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Response {
    /// The URL that the request was sent to.
    #[must_use]
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// The status code, such as 200.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// True if the status code is 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The headers of the response.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The first header of this name; `None` if there is none or its value is not visible ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as it was received.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the body without copying it.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The body as text.
    ///
    /// # Errors
    /// [`Reason::NotText`] if the body is not UTF-8. The content type is ignored.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.body)
            .map_err(|error| Error::new(&self.url, Reason::NotText { at: error.valid_up_to() }))
    }

    /// Parses the body as JSON.
    ///
    /// # Errors
    /// [`Reason::NotJson`] if the body is not JSON, or not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::new(&self.url, Reason::NotJson(error.to_string())))
    }
}

/// Parses an absolute `http` or `https` URL without credentials.
fn parse(text: &str) -> Result<Uri, Error> {
    let invalid = |what: &str| {
        let what = format!("`{}` {what}", excerpt(text));
        Error::about(String::new(), Reason::Invalid(what))
    };
    if !text.is_ascii() {
        return Err(invalid("is not ASCII: percent-encode it, and write the host name in punycode"));
    }
    let url: Uri = text.parse().map_err(|error| invalid(&format!("is not a URL: {error}")))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(invalid("has to start with http:// or https://"));
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        // The message does not repeat the URL, because it may contain a password.
        let what =
            "a URL must not contain a user name or a password: send the header `authorization` instead";
        return Err(Error::about(String::new(), Reason::Invalid(what.to_owned())));
    }
    Ok(url)
}

/// The beginning of an untrusted text, escaped for an error message.
fn excerpt(text: &str) -> String {
    text.chars().take(100).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
