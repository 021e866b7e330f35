//! The error that a tool reports: a stable code for programs, a sentence for people.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde_json::{Value, json};

/// An error that the tool itself reports, as opposed to a trap.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolError {
    code: String,
    message: String,
    detail: Option<Value>,
}

impl ToolError {
    /// Makes an error. `code` is stable and in snake case, such as `not_found`; `message` is one sentence for people.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), detail: None }
    }

    /// Adds machine-readable facts, usually `json!({..})`.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Value>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The sentence for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The machine-readable facts.
    #[must_use]
    pub fn detail(&self) -> Option<&Value> {
        self.detail.as_ref()
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl Error for ToolError {}

/// The part of a message about a relative path.
const RELATIVE_PATH: &str =
    "; a run has no working directory: name an absolute path, such as `/workspace/notes.txt`";

/// The code follows from the kind of the error. The message is that of the error without the system's error number.
/// [`AtPath::at`] adds the path.
impl From<io::Error> for ToolError {
    fn from(error: io::Error) -> Self {
        Self::new(io_code(&error), io_words(&error))
    }
}

/// Adds the path to the error of a filesystem operation, which the standard library does not do.
///
/// ```
/// use a2g_guest_sdk::prelude::*;
///
/// fn read(path: &str) -> Result<String, ToolError> {
///     std::fs::read_to_string(path).at(path)
/// }
/// let error = read("/no/such/file").unwrap_err();
/// assert_eq!(error.code(), "not_found");
/// assert!(error.message().starts_with("`/no/such/file`: "));
/// ```
pub trait AtPath<T> {
    /// Turns an I/O error into a [`ToolError`] whose message starts with the path and whose detail
    /// is `{"path": ..}`.
    ///
    /// # Errors
    /// The error of `self`, converted.
    fn at(self, path: impl AsRef<Path>) -> Result<T, ToolError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: impl AsRef<Path>) -> Result<T, ToolError> {
        self.map_err(|error| {
            let advice = if path.as_ref().is_absolute() { "" } else { RELATIVE_PATH };
            let path = path.as_ref().to_string_lossy();
            let message = format!("`{path}`: {}{advice}", io_words(&error));
            ToolError::new(io_code(&error), message).with_detail(json!({ "path": path }))
        })
    }
}

/// The stable code of an I/O error; `io_error` for kinds without a code of their own.
fn io_code(error: &io::Error) -> &'static str {
    if is_outside_the_grant(error) {
        return "permission_denied";
    }
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "`ErrorKind` is not exhaustive, and most kinds concern sockets"
    )]
    match error.kind() {
        ErrorKind::NotFound => "not_found",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::IsADirectory => "is_a_directory",
        ErrorKind::NotADirectory => "not_a_directory",
        ErrorKind::DirectoryNotEmpty => "directory_not_empty",
        ErrorKind::ReadOnlyFilesystem => "read_only_filesystem",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "storage_full",
        ErrorKind::FileTooLarge => "file_too_large",
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => "invalid_path",
        ErrorKind::InvalidData => "invalid_data",
        ErrorKind::UnexpectedEof => "unexpected_eof",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Unsupported => "unsupported",
        _ => "io_error",
    }
}

/// The message of an I/O error without WASI's error number, which the standard library appends and readers of a report
/// cannot use.
fn io_words(error: &io::Error) -> String {
    if is_outside_the_grant(error) {
        return "outside the granted folders".to_owned();
    }
    let words = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    number.and_then(|number| words.strip_suffix(&number).map(str::to_owned)).unwrap_or(words)
}

/// True if the error is `ENOTCAPABLE`: no granted folder contains the path. The standard library has no kind for it.
fn is_outside_the_grant(error: &io::Error) -> bool {
    const ENOTCAPABLE: i32 = 76;
    cfg!(target_os = "wasi") && error.raw_os_error() == Some(ENOTCAPABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_keeps_its_kind_and_its_message() {
        let check = |kind: ErrorKind, code: &str| {
            let error = ToolError::from(io::Error::new(kind, "reading `/a/b`"));
            assert_eq!((error.code(), error.message()), (code, "reading `/a/b`"));
            assert_eq!(error.detail(), None);
        };
        check(ErrorKind::NotFound, "not_found");
        check(ErrorKind::PermissionDenied, "permission_denied");
        check(ErrorKind::IsADirectory, "is_a_directory");
        check(ErrorKind::QuotaExceeded, "storage_full");
        check(ErrorKind::Other, "io_error");
    }

    #[test]
    fn the_errno_suffix_is_removed_from_an_io_error() {
        const ENOENT: i32 = 2;
        let failed: io::Result<()> = Err(io::Error::from_raw_os_error(ENOENT));
        let Err(error) = failed.at("/data/x") else { unreachable!("the result is an error") };
        assert_eq!((error.code(), error.message()), ("not_found", "`/data/x`: No such file or directory"));
        let other = ToolError::from(io::Error::other("read twice (os error 2)"));
        assert_eq!(other.message(), "read twice (os error 2)");
    }

    #[test]
    fn an_error_at_a_path_names_it_in_message_and_detail() {
        let failed: io::Result<()> = Err(io::Error::new(ErrorKind::NotFound, "gone"));
        let Err(error) = failed.at("/data/x") else { unreachable!("the result is an error") };
        assert_eq!(error.code(), "not_found");
        assert_eq!(error.message(), "`/data/x`: gone");
        assert_eq!(error.detail(), Some(&json!({ "path": "/data/x" })));
        assert_eq!(error.to_string(), "`/data/x`: gone (not_found)");
        let failed: io::Result<()> = Err(io::Error::new(ErrorKind::NotFound, "gone"));
        let Err(relative) = failed.at("data/x") else { unreachable!("the result is an error") };
        assert!(relative.message().ends_with(RELATIVE_PATH), "{relative}");
    }
}
