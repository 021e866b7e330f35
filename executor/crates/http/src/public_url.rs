//! The URL at which people reach the console, for links that leave the server.

use super::server_url::{ServerUrlError, parse_server_url};
use std::fmt;

/// The origin of the console's pages: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl(String);

/// A text is not the URL of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "has to be `http://` or `https://` with a host and, if it is not the default, a port, such as \
     `https://tools.example.com`: no user, no path (the pages are at `/console`), no `?` and no `#`"
)]
pub struct PublicUrlError;

impl PublicUrl {
    /// Parses a URL without a path; a single `/` is allowed.
    ///
    /// # Errors
    /// [`PublicUrlError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, PublicUrlError> {
        let uri = parse_server_url(text, false).map_err(|_: ServerUrlError| PublicUrlError)?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(PublicUrlError);
        };
        // `Uri` drops what follows a `#`.
        let is_origin = ["", "/"].contains(&uri.path()) && uri.query().is_none() && !text.contains('#');
        if !is_origin || authority.host().is_empty() {
            return Err(PublicUrlError);
        }
        Ok(Self(format!("{scheme}://{authority}")))
    }

    /// The URL of a page, whose path begins with `/`.
    #[must_use]
    pub fn page(&self, path: &str) -> String {
        format!("{self}{path}")
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_is_an_origin() {
        for (text, page) in [
            ("https://tools.example.com", "https://tools.example.com/console"),
            ("https://tools.example.com/", "https://tools.example.com/console"),
            ("http://127.0.0.1:7420", "http://127.0.0.1:7420/console"),
            ("http://[::1]:7420/", "http://[::1]:7420/console"),
        ] {
            assert_eq!(PublicUrl::parse(text).map(|url| url.page("/console")).as_deref(), Ok(page), "{text}");
        }
        for text in [
            "",
            "/",
            "tools.example.com",
            "ftp://tools.example.com",
            "https://",
            "https://:7420",
            "https://tools.example.com/console",
            "https://tools.example.com/?a",
            "https://tools.example.com/#a",
            "https://tools.example.com#a",
            "https://person@tools.example.com",
            "https://tools.example.com:70000",
            "https://tools example.com",
            "javascript:alert(1)",
        ] {
            assert_eq!(PublicUrl::parse(text), Err(PublicUrlError), "{text}");
        }
    }
}
