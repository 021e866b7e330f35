//! The client of an operator: calls methods of a running executor's A2G door over HTTP.
//!
//! It needs neither the configuration nor the journal of the executor, so an operator can use it on any machine. Nothing
//! is sent twice, and a token is never sent unencrypted to another machine.

use a2g_govern::FileError;
use a2g_http::server_url::{BearerError, ServerUrlError, parse_server_url, read_bearer};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use jsonrpsee::core::ClientError;
use jsonrpsee::core::client::ClientT as _;
use jsonrpsee::core::traits::ToRpcParams;
use jsonrpsee::http_client::transport::Error as TransportError;
use jsonrpsee::http_client::{HttpClient, HttpClientBuilder};
use serde_json::value::RawValue;
use std::path::Path;
use std::time::Duration;

/// The maximum time of a call. An answer waits for the journal's disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time of a decision on file changes, which may copy many gigabytes.
const DECISION_TIMEOUT: Duration = Duration::from_mins(30);
/// The path of the A2G door, for a URL without one.
const PATH: &str = "/jsonrpc";

/// The reason why a running executor cannot be used, or refused a call.
#[derive(Debug, thiserror::Error)]
pub enum OperatorClientError {
    /// The URL is not the URL of an executor.
    #[error("`--url`: `{0}` is not the URL of an executor, such as `https://HOST:PORT`")]
    InvalidUrl(String),
    /// The token would be readable on the network.
    #[error("`--url`: `{0}` would send the token unencrypted: use `https://`, or a server on this machine")]
    Unencrypted(String),
    /// The token cannot be read.
    #[error("`--token-file`: {0}")]
    Token(FileError),
    /// The token cannot be sent.
    #[error("`--token-file`: the token must be one line of visible ASCII")]
    TokenText,
    /// The executor refused the call.
    #[error("the executor refused: {0}")]
    Refused(String),
    /// The server refused the HTTP request.
    #[error("`{url}` answered HTTP {status}{advice}")]
    Status {
        /// The URL of the call.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The change to make.
        advice: &'static str,
    },
    /// The executor cannot be reached, or its answer is lost.
    #[error("`{url}` cannot be reached, or did not answer{advice}")]
    Unreachable {
        /// The URL of the call.
        url: String,
        /// The way to see if the call was carried out.
        advice: &'static str,
        /// The error of the connection.
        source: ClientError,
    },
}

impl OperatorClientError {
    /// `true` if the command line is at fault, and nothing was sent.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::InvalidUrl(_) | Self::Unencrypted(_) | Self::Token(_) | Self::TokenText => true,
            Self::Refused(_) | Self::Status { .. } | Self::Unreachable { .. } => false,
        }
    }
}

/// A client of a running executor.
pub struct OperatorClient {
    url: String,
    client: HttpClient,
}

/// Params that are JSON already.
struct EncodedParams(Box<RawValue>);

impl ToRpcParams for EncodedParams {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        Ok(Some(self.0))
    }
}

impl OperatorClient {
    /// Checks the URL, to which `/jsonrpc` is added if it has no path. `token_file` has the bearer token.
    ///
    /// # Ambient Authority
    /// Reads the token.
    ///
    /// # Errors
    /// For a URL that is not `http(s)://HOST…`, and for a token that would be sent unencrypted or cannot be read.
    pub fn new(
        url: &str,
        token_file: Option<&Path>,
        tls: rustls::ClientConfig,
    ) -> Result<Self, OperatorClientError> {
        let url = check_url(url, token_file.is_some())?;
        let mut headers = HeaderMap::new();
        if let Some(path) = token_file {
            headers.insert(AUTHORIZATION, read_token(path)?);
        }
        let client = HttpClientBuilder::default()
            .request_timeout(DECISION_TIMEOUT)
            .set_headers(headers)
            .with_custom_cert_store(tls)
            .build(&url)
            .map_err(|_error| OperatorClientError::InvalidUrl(url.clone()))?;
        Ok(Self { url, client })
    }

    /// Calls a method, once. Returns its result. An answer has to arrive within 30 seconds, that to a decision on file
    /// changes within 30 minutes.
    ///
    /// # Errors
    /// [`OperatorClientError`], also if the executor refuses the call.
    pub async fn call(
        &self,
        method: &str,
        params: Box<RawValue>,
    ) -> Result<Box<RawValue>, OperatorClientError> {
        let call = self.client.request(method, EncodedParams(params));
        let answer = tokio::time::timeout(timeout_of(method), call).await;
        answer.unwrap_or(Err(ClientError::RequestTimeout)).map_err(|error| self.explain(method, error))
    }

    fn explain(&self, method: &str, error: ClientError) -> OperatorClientError {
        let url = self.url.clone();
        if let ClientError::Call(refusal) = &error {
            return OperatorClientError::Refused(refusal.message().to_owned());
        }
        if let ClientError::Transport(transport) = &error
            && let Some(TransportError::Rejected { status_code }) = transport.downcast_ref()
        {
            let advice = status_advice(*status_code);
            return OperatorClientError::Status { url, status: *status_code, advice };
        }
        OperatorClientError::Unreachable { url, advice: lost_advice(method), source: error }
    }
}

fn timeout_of(method: &str) -> Duration {
    match method {
        "a2g/commit" | "a2g/discard" | "a2g/undo" => DECISION_TIMEOUT,
        _other => CALL_TIMEOUT,
    }
}

/// The way to see if a call without an answer was carried out.
fn lost_advice(method: &str) -> &'static str {
    match method {
        "a2g/stop" | "a2g/resume" => ": list the stops to see if the call was carried out",
        "a2g/commit" | "a2g/discard" | "a2g/undo" => {
            ": `a2g-executor effects show` says if the decision was carried out, which goes on without its caller"
        }
        _other => "",
    }
}

/// The change to make for an HTTP status.
fn status_advice(status: u16) -> &'static str {
    match status {
        401 => ": name the file with your token, by `--token-file`; a token may have expired",
        400 => ": if the server has `server.tls`, plain http is refused: use an `https` URL",
        404 | 405 => ": the path of an executor is `/jsonrpc`",
        _other => "",
    }
}

/// Checks a URL, and adds the path of the door if it has none.
fn check_url(url: &str, sends_token: bool) -> Result<String, OperatorClientError> {
    let uri = parse_server_url(url, sends_token).map_err(|error| match error {
        ServerUrlError::Invalid => OperatorClientError::InvalidUrl(url.to_owned()),
        ServerUrlError::Unencrypted => OperatorClientError::Unencrypted(url.to_owned()),
    })?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(OperatorClientError::InvalidUrl(url.to_owned()));
    };
    let path = if uri.path() == "/" { PATH } else { uri.path() };
    Ok(format!("{scheme}://{authority}{path}"))
}

fn read_token(path: &Path) -> Result<HeaderValue, OperatorClientError> {
    read_bearer(path).map_err(|error| match error {
        BearerError::File(error) => OperatorClientError::Token(error),
        BearerError::NotAToken => OperatorClientError::TokenText,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_path_is_that_of_the_door() {
        for (url, expected) in [
            ("http://127.0.0.1:7420", "http://127.0.0.1:7420/jsonrpc"),
            ("https://executor.example/", "https://executor.example/jsonrpc"),
            ("https://executor.example/a/jsonrpc", "https://executor.example/a/jsonrpc"),
            ("http://[::1]:7420/jsonrpc", "http://[::1]:7420/jsonrpc"),
        ] {
            assert_eq!(check_url(url, true).unwrap(), expected);
        }
    }

    #[test]
    fn a_token_is_not_sent_unencrypted_to_another_machine() {
        let refused = check_url("http://executor.example", true).unwrap_err();
        assert!(matches!(refused, OperatorClientError::Unencrypted(_)) && refused.is_usage());
        assert!(check_url("http://executor.example", false).is_ok());
        for bad in
            ["executor.example", "ftp://executor.example", "https://user@executor.example", "https://a:70000"]
        {
            assert!(matches!(check_url(bad, false), Err(OperatorClientError::InvalidUrl(_))), "{bad}");
        }
    }
}
