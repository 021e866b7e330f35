//! One request of a chain, and how a redirect turns it into the next one.

use a2g_guest_sdk::http::{Error, HeaderMap, HeaderName, Method, Request};
use a2g_guest_sdk::prelude::*;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use url::Url;

use crate::{Encoding, HttpFetch};

/// Many servers refuse a request that does not say what sent it.
const USER_AGENT: &str = concat!("a2g-http_fetch/", env!("CARGO_PKG_VERSION"));
/// Headers with credentials, which are meant only for the origin that they were first sent to.
const CREDENTIALS: [HeaderName; 2] =
    [HeaderName::from_static("authorization"), HeaderName::from_static("cookie")];
/// Headers that describe a body, removed with it.
const ABOUT_THE_BODY: [HeaderName; 4] = [
    HeaderName::from_static("content-encoding"),
    HeaderName::from_static("content-language"),
    HeaderName::from_static("content-location"),
    HeaderName::from_static("content-type"),
];

/// A request that is checked, and can be sent more than once.
#[derive(Debug)]
pub(crate) struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Hop {
    /// The request that the caller asks for.
    pub(crate) fn first(arguments: &HttpFetch) -> Result<Self, ToolError> {
        let url = parse(&arguments.url)?;
        let mut request = Request::new(arguments.method.into(), &url)?;
        for (name, value) in &arguments.headers {
            request = request.header(name, value)?;
        }
        if !request.headers().contains_key("user-agent") {
            request = request.header("user-agent", USER_AGENT)?;
        }
        let body = match (&arguments.body, arguments.body_encoding) {
            (None, _) => Vec::new(),
            (Some(text), Encoding::Utf8) => text.as_bytes().to_vec(),
            (Some(text), Encoding::Base64) => BASE64_STANDARD.decode(text).map_err(|error| {
                ToolError::new("invalid_base64", format!("`body` is not base64: {error}"))
            })?,
        };
        Ok(Self { method: request.method().clone(), url, headers: request.headers().clone(), body })
    }

    /// The URL of the request.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// As a request that the SDK can send.
    pub(crate) fn request(&self) -> Result<Request, Error> {
        let mut request = Request::new(self.method.clone(), &self.url)?;
        for (name, value) in &self.headers {
            request = request.header(name, value)?;
        }
        Ok(request.body(self.body.clone()))
    }

    /// Turns it into what the status and the `location` of an answer ask for (RFC 9110, 15.4).
    ///
    /// # Errors
    /// `redirect_refused` where it would lead from https to http, or to what is not HTTP.
    pub(crate) fn redirect(mut self, status: u16, location: &str) -> Result<Self, ToolError> {
        let refused = |why: &str| {
            let from = self.url.as_str();
            let message = format!("`{from}` redirects to `{}`, {why}", location.escape_debug());
            ToolError::new("redirect_refused", message)
                .with_detail(json!({ "url": from, "location": location, "status": status }))
        };
        let mut to =
            self.url.join(location).map_err(|error| refused(&format!("which is no URL: {error}")))?;
        to.set_fragment(None);
        match (self.url.scheme(), to.scheme()) {
            ("https", "http") => {
                return Err(refused("which is not encrypted any more; fetch that by itself"));
            }
            (_, "http" | "https") => {}
            (_, _) => return Err(refused("which is not HTTP")),
        }
        if self.url.origin() != to.origin() {
            self.drop_headers(&CREDENTIALS);
        }
        // A 303 asks to look elsewhere for the outcome; 301 and 302 mean that for a POST by long custom.
        let becomes_get = match status {
            303 => self.method != Method::HEAD,
            301 | 302 => self.method == Method::POST,
            _ => false,
        };
        if becomes_get {
            self.method = Method::GET;
            self.body.clear();
            self.drop_headers(&ABOUT_THE_BODY);
        }
        self.url = to;
        Ok(self)
    }

    fn drop_headers(&mut self, names: &[HeaderName]) {
        for name in names {
            self.headers.remove(name);
        }
    }
}

/// Reads a URL as browsers do, which also makes it ASCII.
fn parse(text: &str) -> Result<Url, ToolError> {
    let mut url = Url::parse(text).map_err(|error| {
        let message = format!("`url` is not an absolute URL: {error}");
        ToolError::new("invalid_request", message).with_detail(json!({ "url": text }))
    })?;
    url.set_fragment(None);
    Ok(url)
}

impl From<crate::Method> for Method {
    fn from(method: crate::Method) -> Self {
        match method {
            crate::Method::Get => Self::GET,
            crate::Method::Head => Self::HEAD,
            crate::Method::Post => Self::POST,
            crate::Method::Put => Self::PUT,
            crate::Method::Patch => Self::PATCH,
            crate::Method::Delete => Self::DELETE,
            crate::Method::Options => Self::OPTIONS,
        }
    }
}
