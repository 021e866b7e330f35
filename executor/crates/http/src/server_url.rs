//! What a client needs to connect to a server: its URL, and the token of the caller.

use super::port::is_loopback_host;
use a2g_govern::{FileError, read_secret};
use axum::http::uri::Scheme;
use axum::http::{HeaderValue, Uri};
use std::path::Path;

/// The reason why a URL is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerUrlError {
    /// It is not `http(s)://HOST…`, or has a user.
    Invalid,
    /// A token would be readable on the network.
    Unencrypted,
}

/// Parses the URL of a server. A token is sent unencrypted only to this machine.
///
/// # Errors
/// [`ServerUrlError`], with the reason.
pub fn parse_server_url(url: &str, sends_token: bool) -> Result<Uri, ServerUrlError> {
    let uri = url.parse::<Uri>().map_err(|_error| ServerUrlError::Invalid)?;
    let authority = uri.authority().ok_or(ServerUrlError::Invalid)?;
    let host = authority.host();
    // A user is refused, and so is a port that is not a number of 16 bits, which a client could ignore.
    let expected = authority.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    if authority.as_str() != expected {
        return Err(ServerUrlError::Invalid);
    }
    let is_encrypted = uri.scheme() == Some(&Scheme::HTTPS);
    if !is_encrypted && uri.scheme() != Some(&Scheme::HTTP) {
        return Err(ServerUrlError::Invalid);
    }
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if sends_token && !is_encrypted && !is_loopback_host(address) {
        return Err(ServerUrlError::Unencrypted);
    }
    Ok(uri)
}

/// The reason why a file gives no token.
#[derive(Debug)]
pub enum BearerError {
    /// The file cannot be read, or others can read it.
    File(FileError),
    /// Its text is not a token.
    NotAToken,
}

/// Reads the token in a file, as the value of `Authorization`.
///
/// # Ambient Authority
/// Reads the file.
///
/// # Errors
/// If the file cannot be read, if others can read it, or if its text is not a token.
pub fn read_bearer(path: &Path) -> Result<HeaderValue, BearerError> {
    let secret = read_secret(path).map_err(BearerError::File)?;
    let token = secret.trim_ascii();
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
        .ok()
        .filter(|value| value.to_str().is_ok() && !token.is_empty())
        .ok_or(BearerError::NotAToken)?;
    value.set_sensitive(true);
    Ok(value)
}
