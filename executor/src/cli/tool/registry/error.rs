//! What can go wrong with a registry, in sentences that say what to do.

use super::login::LoginError;
use http::StatusCode;
use std::path::PathBuf;

/// The reason why a registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistryError {
    /// No connection.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// The host, with its port.
        host: String,
        /// The causes.
        reason: String,
    },
    /// The other side sends nothing.
    #[error("{host} has sent nothing for {seconds} s ({what}): try again later")]
    Silent {
        /// The host, with its port.
        host: String,
        /// What was awaited.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// The other side sends too little.
    #[error("{host} did not finish {what} within {seconds} s, the limit for its size: try again later")]
    TooSlow {
        /// The host, with its port.
        host: String,
        /// What was awaited.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// The connection ended in the middle.
    #[error("the connection to {host} ended during the transfer of {what}: {reason}")]
    Interrupted {
        /// The host, with its port.
        host: String,
        /// What was awaited.
        what: String,
        /// The causes.
        reason: String,
    },
    /// A download was interrupted, and what has arrived is kept.
    #[error(
        "the download of {what} ended after {done} of {total} bytes, which are kept: run the command again to get the \
         rest ({reason})"
    )]
    Partial {
        /// What was awaited.
        what: String,
        /// The bytes that are kept.
        done: u64,
        /// The size.
        total: u64,
        /// The last interruption.
        reason: Box<RegistryError>,
    },
    /// Another process downloads the same module.
    #[error("another process is downloading {what}: wait for its end")]
    Locked {
        /// What was awaited.
        what: String,
    },
    /// HTML instead of an answer.
    #[error(
        "{url} answered with a web page: this is not a registry, or a proxy's or sign-in page answers in its place"
    )]
    WebPage {
        /// The address that answered.
        url: String,
    },
    /// The registry wants a login, and there is none.
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
        /// The answer of the registry.
        message: Box<str>,
    },
    /// The registry does not accept the login.
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
        /// The answer of the registry.
        message: Box<str>,
    },
    /// The login cannot be read.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// There is no such tool, version or part.
    #[error("{host} does not have {what}: check the name and the version ({message})")]
    NotFound {
        /// The host, with its port.
        host: String,
        /// What was asked for.
        what: String,
        /// The answer of the registry.
        message: String,
    },
    /// Any other status.
    #[error("{host} did not accept a request for {what}: status {status} ({message})")]
    Refused {
        /// The host, with its port.
        host: String,
        /// What was asked for.
        what: String,
        /// The status.
        status: StatusCode,
        /// The answer of the registry.
        message: String,
    },
    /// The answer contradicts the rules of HTTP or of registries.
    #[error("the answer of {url} cannot be used: {reason}")]
    Invalid {
        /// The address that answered.
        url: String,
        /// The problem.
        reason: String,
    },
    /// An answer leads to a place that is not accepted.
    #[error("{from} {names} {to}, which is refused: {reason}")]
    Redirect {
        /// The address that answered.
        from: String,
        /// What it says of the other address, such as `redirects to`.
        names: &'static str,
        /// The address that it names.
        to: String,
        /// The reason.
        reason: &'static str,
    },
    /// A part has another size than its description says.
    #[error(
        "{what} has another length than it should: {host} sends {found} bytes instead of {expected}; nothing was kept"
    )]
    Length {
        /// The host, with its port.
        host: String,
        /// The part.
        what: String,
        /// The announced or received size.
        found: u64,
        /// The described size.
        expected: u64,
    },
    /// An answer is larger than any that is needed.
    #[error(
        "{host} sends more than {max_bytes} bytes as {what}, the most that is accepted; nothing was kept"
    )]
    TooLarge {
        /// The host, with its port.
        host: String,
        /// The part.
        what: String,
        /// The limit, in bytes.
        max_bytes: u64,
    },
    /// A part has another content than its digest says.
    #[error("{what} was changed: its SHA-256 is {found} instead of {expected}; nothing was kept")]
    Digest {
        /// The part.
        what: String,
        /// The digest of what arrived.
        found: String,
        /// The digest that was asked for.
        expected: String,
    },
    /// A local file.
    #[error("`{}`: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system. It is part of the message; as a `source`, an error chain would print it twice.
        error: std::io::Error,
    },
}
