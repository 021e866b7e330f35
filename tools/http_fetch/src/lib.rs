//! Fetches one URL. Every redirect is a request of its own, which the executor decides on again.

use std::collections::BTreeMap;
use std::time::Duration;

use a2g_guest_sdk::http::{HeaderMap, Response};
use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

mod chain;
mod hop;

use chain::{Chain, Redirect};
use hop::Hop;

/// One answer that an agent can still take in.
const DEFAULT_MAX_BYTES: u64 = 1 << 20;
/// JSON can double a body, and the buffer that it grows in doubles by itself: all of it has to fit into
/// 64 MiB.
const MAX_MAX_BYTES: u64 = 4 << 20;
/// As many as browsers and libraries commonly follow, or fewer.
const DEFAULT_MAX_REDIRECTS: u64 = 5;
const MAX_MAX_REDIRECTS: u64 = 20;
/// Half of what `tool.toml` asks for, so that the tool can still say that it took too long.
const DEFAULT_TIMEOUT_SECONDS: u64 = 30;
const MAX_TIMEOUT_SECONDS: u64 = 300;
/// Limit of the returned headers, in bytes of names and values. Common answers have one to four
/// thousand.
const MAX_HEADER_BYTES: usize = 16 << 10;

#[derive(Arguments)]
struct HttpFetch {
    /// Where to fetch from: an absolute URL that starts with http:// or https://.
    url: String,
    /// The method.
    #[serde(default)]
    #[schemars(extend("default" = "GET"))]
    method: Method,
    /// Headers by name. `host`, `content-length` and those that steer the connection are set by the
    /// executor.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The body to send, as `body_encoding` says.
    body: Option<String>,
    /// "utf-8" (the default): `body` is sent as it is. "base64": `body` is decoded first.
    #[serde(default)]
    #[schemars(extend("default" = "utf-8"))]
    body_encoding: Encoding,
    /// At most how many bytes of the answer's body to read. A longer one is an error, never cut.
    #[serde(default = "default_max_bytes")]
    #[schemars(range(min = 1, max = 4_194_304))]
    max_bytes: u64,
    /// How many redirects to follow. With 0, a redirect itself is the answer.
    #[serde(default = "default_max_redirects")]
    #[schemars(range(min = 0, max = 20))]
    max_redirects: u64,
    /// At most how long everything together may take, in seconds.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 300))]
    timeout_seconds: u64,
}

fn default_max_bytes() -> u64 {
    DEFAULT_MAX_BYTES
}

fn default_max_redirects() -> u64 {
    DEFAULT_MAX_REDIRECTS
}

fn default_timeout_seconds() -> u64 {
    DEFAULT_TIMEOUT_SECONDS
}

#[derive(Arguments, Clone, Copy, Default)]
#[serde(rename_all = "UPPERCASE")]
enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
}

#[derive(Arguments, Clone, Copy, Default, Serialize)]
#[serde(crate = "serde")]
enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Fetched {
    /// The URL that answered, after the redirects.
    url: String,
    /// The HTTP status. An answer such as 404 is a result, and no error.
    status: u16,
    /// The values of each header of the answer, by its name in lower case.
    headers: BTreeMap<String, Vec<String>>,
    /// How many headers did not fit.
    headers_left_out: usize,
    /// The body, as `encoding` says.
    body: String,
    /// "utf-8" for text, "base64" for anything else.
    encoding: Encoding,
    /// The size of the body in bytes.
    size: usize,
    /// The redirects that were followed, in order.
    redirects: Vec<Redirect>,
}

fn http_fetch(ctx: &mut Context, arguments: HttpFetch) -> Result<Fetched, ToolError> {
    let max_bytes = in_range("max_bytes", arguments.max_bytes, 1..=MAX_MAX_BYTES)?;
    let max_redirects = in_range("max_redirects", arguments.max_redirects, 0..=MAX_MAX_REDIRECTS)?;
    let seconds = arguments.timeout_seconds;
    in_range("timeout_seconds", seconds, 1..=MAX_TIMEOUT_SECONDS)?;
    let first = Hop::first(&arguments)?;
    let chain = Chain::new(max_bytes, max_redirects, Duration::from_secs(seconds));
    let (response, redirects) = chain.follow(ctx, first)?;
    Ok(fetched(response, redirects))
}

/// The executor checks the range as well, but the memory of the tool should not depend on that.
fn in_range(name: &str, value: u64, range: std::ops::RangeInclusive<u64>) -> Result<usize, ToolError> {
    usize::try_from(value).ok().filter(|_| range.contains(&value)).ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        let message = format!("`{name}` is {value}; it must be from {least} to {most}");
        ToolError::new("invalid_arguments", message)
    })
}

fn fetched(response: Response, redirects: Vec<Redirect>) -> Fetched {
    let (headers, headers_left_out) = headers(response.headers());
    let (url, status) = (response.url().to_string(), response.status());
    let bytes = response.into_body();
    let size = bytes.len();
    let (body, encoding) = match String::from_utf8(bytes) {
        Ok(text) if is_readable(&text) => (text, Encoding::Utf8),
        Ok(text) => (BASE64_STANDARD.encode(text), Encoding::Base64),
        Err(error) => (BASE64_STANDARD.encode(error.as_bytes()), Encoding::Base64),
    };
    Fetched { url, status, headers, headers_left_out, body, encoding, size, redirects }
}

/// True if tabs and line ends are the only control characters. JSON writes any other one in six
/// bytes, and content with them is not text.
fn is_readable(text: &str) -> bool {
    text.bytes().all(|byte| !byte.is_ascii_control() || matches!(byte, b'\t' | b'\n' | b'\r'))
}

/// The headers by name, in lower case, and how many did not fit. What is no UTF-8 is shown with
/// replacement characters.
fn headers(all: &HeaderMap) -> (BTreeMap<String, Vec<String>>, usize) {
    let (mut headers, mut room, mut left_out) = (BTreeMap::<_, Vec<_>>::new(), MAX_HEADER_BYTES, 0);
    for (name, value) in all {
        match room.checked_sub(name.as_str().len() + value.len()) {
            Some(rest) => {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                headers.entry(name.as_str().to_owned()).or_default().push(value);
                room = rest;
            }
            None => left_out += 1,
        }
    }
    (headers, left_out)
}

export_tool!(
    http_fetch,
    description = "Fetches a URL over HTTP; redirects are followed, each as a request of its own."
);

#[cfg(test)]
mod tests;
