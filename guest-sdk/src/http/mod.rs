//! Requests over HTTP, for tools whose run was granted a network.
//!
//! ```text
//! Request ──send──▶ network? ──no──▶ Off, and nothing of the network was called
//!                      │ yes
//!                      ▼
//!                   one request through the executor ──▶ Response, read whole and at most `max_bytes`
//! ```
//!
//! The executor decides about every request: which domains and addresses may be reached, how often,
//! how much. Nothing here follows a redirect, keeps a cookie or decodes a compressed body: what is to
//! be asked next is the tool's to ask, and the executor's to decide again.
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
//! // Natively, a test answers in the network's place.
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
//! A tool that does not use this module does not import the network: nothing of it stays in the
//! module that is built.

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

/// At most how many bytes of a body are read where the tool says nothing: what an agent can still take
/// in, far below the memory that a tool usually has.
const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// Headers that the executor sets by itself: they steer the connection, or say whom the request is
/// for, and it has checked the address of the URL only.
const OF_THE_EXECUTOR: [HeaderName; 11] = [
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

/// Asks for what is at `url`: a `GET` without headers of its own, for at most 1 MiB.
///
/// # Errors
/// As [`Request::new`] and [`Request::send`].
pub fn get(url: impl AsRef<str>) -> Result<Response, Error> {
    Request::get(url)?.send()
}

/// Sends `body` to `url`: a `POST` without a content type, with an answer of at most 1 MiB.
///
/// # Errors
/// As [`Request::new`] and [`Request::send`].
pub fn post(url: impl AsRef<str>, body: impl Into<Vec<u8>>) -> Result<Response, Error> {
    Request::post(url, body)?.send()
}

/// One request, in the making or as a test sees it.
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
    /// A request with a method of your choice: `Request::new(Method::PUT, url)`.
    ///
    /// The URL is ASCII, as it goes over the wire: anything else in it is percent-encoded already, and
    /// a name in punycode. What follows a `#` is left out.
    ///
    /// # Errors
    /// [`Reason::Invalid`] when it is no absolute `http` or `https` URL, or when it holds a user name or
    /// a password, which belong into a header.
    pub fn new(method: Method, url: impl AsRef<str>) -> Result<Self, Error> {
        let url = parse(url.as_ref())?;
        let (headers, body) = (HeaderMap::new(), Vec::new());
        Ok(Self { method, url, headers, body, timeout: None, max_bytes: DEFAULT_MAX_BYTES })
    }

    /// A `GET`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn get(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::new(Method::GET, url)
    }

    /// A `POST`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn post(url: impl AsRef<str>, body: impl Into<Vec<u8>>) -> Result<Self, Error> {
        Self::new(Method::POST, url).map(|request| request.body(body))
    }

    /// Adds a header. One that is there already stays, and both are sent.
    ///
    /// # Errors
    /// [`Reason::Invalid`] when name or value cannot stand in a header, or when the executor sets this
    /// header by itself: `host`, `content-length` and those that steer the connection.
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        let name = name.as_ref();
        let invalid = |what: String| Error::new(&self.url, Reason::Invalid(what));
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("`{}` is not the name of a header", name.escape_debug())))?;
        if OF_THE_EXECUTOR.contains(&parsed) {
            return Err(invalid(format!("the header `{parsed}` is set by the executor: leave it out")));
        }
        let value = HeaderValue::from_bytes(value.as_ref())
            .map_err(|_| invalid(format!("the value of the header `{parsed}` holds control characters")))?;
        // The map has a bound of its own, in the ten thousands.
        self.headers
            .try_append(parsed, value)
            .map_err(|_| Error::new(&self.url, Reason::Invalid("it has too many headers".to_owned())))?;
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
    /// [`Reason::Invalid`] when the value has no JSON form.
    pub fn json(self, value: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(value).map_err(|error| {
            Error::new(&self.url, Reason::Invalid(format!("the body has no JSON form: {error}")))
        })?;
        self.body(body).header("content-type", "application/json")
    }

    /// At most how long it may take until the whole answer is read. Without it, the deadline of the run
    /// is the only one.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// At most how many bytes of the answer's body are read; 1 MiB where nothing is said. A longer body
    /// is [`Reason::TooLarge`], never cut.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The method.
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

    /// The body.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        &self.body
    }

    /// Sends it once and reads the answer. Every status is an answer, also 404 or 500.
    ///
    /// # Errors
    /// [`Reason::Off`] without a network; otherwise why there is no whole answer.
    pub fn send(self) -> Result<Response, Error> {
        if !transport::is_on() {
            return Err(Error::new(&self.url, Reason::Off));
        }
        let max_bytes = self.max_bytes;
        match transport::send(&self) {
            Ok(answer) if answer.body.len() > max_bytes => {
                Err(Error::new(&self.url, Reason::TooLarge { max_bytes }))
            }
            Ok(Answer { status, headers, body }) => Ok(Response { url: self.url, status, headers, body }),
            Err(reason) => Err(Error::new(&self.url, reason)),
        }
    }
}

/// The complete answer to a request.
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

    /// The status, such as 200.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// True if the status is one of 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The first header of this name, where there is one and it is visible ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body, as it came.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, taken out.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The body as text.
    ///
    /// # Errors
    /// [`Reason::NotText`] when it is not UTF-8, whatever its content type says.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.body)
            .map_err(|error| Error::new(&self.url, Reason::NotText { at: error.valid_up_to() }))
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    /// [`Reason::NotJson`] when it is not the JSON that `T` wants.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::new(&self.url, Reason::NotJson(error.to_string())))
    }
}

/// The answer to a request, from the network or, natively, from a test in its place.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// The URL, where it is one that can be asked.
fn parse(text: &str) -> Result<Uri, Error> {
    let invalid = |what: &str| {
        let what = format!("`{}` {what}", excerpt(text));
        Error::about(String::new(), Reason::Invalid(what))
    };
    if !text.is_ascii() {
        return Err(invalid("is not ASCII: percent-encode it, and write the name in punycode"));
    }
    let url: Uri = text.parse().map_err(|error| invalid(&format!("is not a URL: {error}")))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(invalid("has to start with http:// or https://"));
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        // Not repeated: it may be a password.
        let what = "a URL must not hold a user name or a password: send the header `authorization`";
        return Err(Error::about(String::new(), Reason::Invalid(what.to_owned())));
    }
    Ok(url)
}

/// The beginning of a text that somebody else chose, for a message.
fn excerpt(text: &str) -> String {
    text.chars().take(100).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
