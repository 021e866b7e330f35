//! The sign-in link of a server without a list of callers, for the person who started it.

use super::session::new_secret;
use a2g_govern::{FileError, replace_private};
use a2g_types::tool::Digest;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};

/// The reason why there is no link to the console.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system provides no random bytes.
    #[error("the system provides no random bytes")]
    Random(#[from] std::io::Error),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The key with which the person who started the server signs in, once. Each use replaces it.
pub struct LocalKey {
    /// The file with the link that contains the current key. Only the user that runs the server can read it.
    file: PathBuf,
    state: Mutex<KeyState>,
    /// Locked while a link is written, so that the file always has the key of the last hash.
    writing: Mutex<()>,
}

#[derive(Default)]
struct KeyState {
    /// The URL of the console, without a key. Empty until the port is bound.
    url: String,
    /// The hash of the current key.
    digest: Option<Digest>,
}

impl LocalKey {
    /// A `LocalKey` that has no key yet, and will write its links to `file`.
    #[must_use]
    pub fn new(file: PathBuf) -> Self {
        Self { file, state: Mutex::default(), writing: Mutex::default() }
    }

    /// The page that leads to the link in `file`. `a2g-executor console` writes it for the browser.
    #[must_use]
    pub fn page_file(file: &Path) -> PathBuf {
        let mut page = file.to_owned().into_os_string();
        page.push(".html");
        page.into()
    }

    /// Makes the first key for the console at `url`, and writes the link with it to the file. Returns the link.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn publish(&self, url: String) -> Result<String, LinkError> {
        self.state.lock().url = url;
        self.replace()
    }

    /// Writes a new link if there is none. There is none if the disk was full at the start, or when the last link was
    /// used.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn restore(&self) -> Result<(), LinkError> {
        let _writing = self.writing.lock();
        if self.is_missing() { self.write_new().map(drop) } else { Ok(()) }
    }

    /// `true` if there is no link.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.state.lock().digest.is_none()
    }

    pub(super) fn replace(&self) -> Result<String, LinkError> {
        let _writing = self.writing.lock();
        self.write_new()
    }

    fn write_new(&self) -> Result<String, LinkError> {
        let key = new_secret()?;
        let link = format!("{}?key={key}", self.state.lock().url);
        replace_private(&self.file, &format!("{link}\n"))?;
        // The page with the link that is used up, if `a2g-executor console` has made one.
        let _there_may_be_none = std::fs::remove_file(Self::page_file(&self.file));
        self.state.lock().digest = Some(Digest::compute(key.as_bytes()));
        Ok(link)
    }

    /// Uses up the key. Returns `false` if `key` is not the current one.
    pub(super) fn redeem(&self, key: &str) -> bool {
        // The hashes are compared, so the time of the comparison tells nothing about the key.
        self.state.lock().digest.take_if(|digest| *digest == Digest::compute(key.as_bytes())).is_some()
    }
}
