//! The errors of registries, with messages that say what to do.

use super::login::LoginError;
use http::StatusCode;
use std::path::PathBuf;

/// The reason why a registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistryError {
    /// The connection failed.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// The host, with its port.
        host: String,
        /// The causes.
        reason: String,
    },
    /// The other side sent nothing.
    #[error("{host} has sent nothing for {seconds} s ({what}): try again later")]
    Silent {
        /// The host, with its port.
        host: String,
        /// The awaited part.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// The other side sent too little.
    #[error("{host} did not finish {what} within {seconds} s, the limit for its size: try again later")]
    TooSlow {
        /// The host, with its port.
        host: String,
        /// The awaited part.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// The connection ended early.
    #[error("the connection to {host} ended during the transfer of {what}: {reason}")]
    Interrupted {
        /// The host, with its port.
        host: String,
        /// The awaited part.
        what: String,
        /// The causes.
        reason: String,
    },
    /// A download was interrupted; the received bytes are kept.
    #[error(
        "the download of {what} ended after {done} of {total} bytes, which are kept: run the command again to get the \
         rest ({reason})"
    )]
    Partial {
        /// The awaited part.
        what: String,
        /// The number of kept bytes.
        done: u64,
        /// The full size, in bytes.
        total: u64,
        /// The last interruption.
        reason: Box<RegistryError>,
    },
    /// Another process downloads the same module.
    #[error("another process is downloading {what}: wait until it has finished")]
    Locked {
        /// The awaited part.
        what: String,
    },
    /// The response is a web page.
    #[error(
        "{url} answered with a web page: this is not a registry, or a proxy's or sign-in page answers in its place"
    )]
    WebPage {
        /// The address that responded.
        url: String,
    },
    /// The registry requires a login, and there is none.
    #[error(
        "{host} needs a login for `{name}`, and {file} has none: `docker login {host}` writes one ({message})"
    )]
    LoginMissing {
        /// The host, with its port.
        host: Box<str>,
        /// The repository.
        name: Box<str>,
        /// The Docker configuration.
        file: Box<str>,
        /// The registry's response.
        message: Box<str>,
    },
    /// The registry refuses the login.
    #[error(
        "{host} refuses the login of `{user}` from {file} for `{name}`: check its password, and whether this user may {may} \
         ({message})"
    )]
    LoginRefused {
        /// The host, with its port.
        host: Box<str>,
        /// The repository.
        name: Box<str>,
        /// The user.
        user: Box<str>,
        /// The Docker configuration.
        file: Box<str>,
        /// `read` or `write there`.
        may: &'static str,
        /// The registry's response.
        message: Box<str>,
    },
    /// The login cannot be read.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The tool, version or part does not exist.
    #[error("{host} does not have {what}: check the name and the version ({message})")]
    NotFound {
        /// The host, with its port.
        host: String,
        /// The requested part.
        what: String,
        /// The registry's response.
        message: String,
    },
    /// The status is unexpected.
    #[error("{host} did not accept a request for {what}: status {status} ({message})")]
    Refused {
        /// The host, with its port.
        host: String,
        /// The requested part.
        what: String,
        /// The status.
        status: StatusCode,
        /// The registry's response.
        message: String,
    },
    /// The response violates HTTP or the OCI distribution specification.
    #[error("the answer of {url} cannot be used: {reason}")]
    Invalid {
        /// The address that responded.
        url: String,
        /// The problem.
        reason: String,
    },
    /// The response leads to a refused address.
    #[error("{from} {names} {to}, which is refused: {reason}")]
    Redirect {
        /// The address that responded.
        from: String,
        /// The verb before the address, such as `redirects to`.
        names: &'static str,
        /// The refused address.
        to: String,
        /// The reason.
        reason: &'static str,
    },
    /// The size of a part differs from its descriptor.
    #[error(
        "{what} has the wrong length: {host} sends {found} bytes instead of {expected}; nothing was kept"
    )]
    Length {
        /// The host, with its port.
        host: String,
        /// The part.
        what: String,
        /// The announced or received size, in bytes.
        found: u64,
        /// The size in the descriptor, in bytes.
        expected: u64,
    },
    /// The response exceeds the limit for its kind.
    #[error("{host} sends more than {max_bytes} bytes as {what}, which is the limit; nothing was kept")]
    TooLarge {
        /// The host, with its port.
        host: String,
        /// The part.
        what: String,
        /// The limit, in bytes.
        max_bytes: u64,
    },
    /// The content of a part does not match its digest.
    #[error("{what} was changed: its SHA-256 is {found} instead of {expected}; nothing was kept")]
    Digest {
        /// The part.
        what: String,
        /// The actual digest.
        found: String,
        /// The requested digest.
        expected: String,
    },
    /// A local file cannot be used.
    #[error("`{}`: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system. It is in the message; as a `source`, an error chain would print it twice.
        error: std::io::Error,
    },
}
