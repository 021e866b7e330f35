//! The present values of all secrets, read again when they are due.

use super::source::{ReadValue, SecretSource};
use super::version::VersionKey;
use a2g_runtime::timer_now;
use a2g_sandbox::egress::{
    KnownSecretFuture, SecretFuture, SecretStore, SecretUnavailable, SecretValue, TokenClient,
};
use a2g_types::ident::SecretName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The time for which a failure is kept, and after which a value that a server refused is read again.
const MIN_AGE: Duration = Duration::from_secs(1);

/// The values of the secrets of one executor.
#[derive(Debug)]
pub struct Vault {
    entries: BTreeMap<SecretName, Entry>,
    key: VersionKey,
    /// Asks token endpoints; `None` if there are none.
    token_client: Option<TokenClient>,
}

#[derive(Debug)]
struct Entry {
    source: SecretSource,
    /// `true` if the value is to be read again before it is used next.
    is_forgotten: AtomicBool,
    /// The last read; locked while the source is read, so that a command runs once at a time, and a token endpoint is
    /// asked once.
    last: Mutex<Option<LastRead>>,
}

#[derive(Debug)]
struct LastRead {
    at: Instant,
    /// The time after which the source is read again; `None` if the result stays.
    max_age: Option<Duration>,
    result: Result<Arc<SecretValue>, SecretUnavailable>,
}

impl Vault {
    /// The values of these secrets, none of which is read yet.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = (SecretName, SecretSource)>, key: VersionKey) -> Self {
        let entry = |(name, source)| {
            let entry = Entry { source, is_forgotten: AtomicBool::new(false), last: Mutex::new(None) };
            (name, entry)
        };
        Self { entries: sources.into_iter().map(entry).collect(), key, token_client: None }
    }

    /// The same secrets, of which those with token endpoints are asked for with this client.
    #[must_use]
    pub fn with_token_client(self, client: TokenClient) -> Self {
        Self { token_client: Some(client), ..self }
    }

    /// Reads a secret, unless its last value or failure is recent.
    ///
    /// # Ambient Authority
    /// Reads the source of the secret.
    ///
    /// # Errors
    /// [`SecretUnavailable`] if it cannot be read.
    pub async fn read(&self, name: &SecretName) -> Result<Arc<SecretValue>, SecretUnavailable> {
        let Some(entry) = self.entries.get(name) else {
            return Err(SecretUnavailable(format!("this executor has no `[[secret]]` `{name}`")));
        };
        let mut last = entry.last.lock().await;
        if let Some(read) = last.as_ref().filter(|read| entry.is_recent(read)) {
            return read.result.clone();
        }
        entry.is_forgotten.store(false, Ordering::Relaxed);
        let read = self.read_source(name, &entry.source).await;
        let max_age = read.as_ref().map_or(Some(MIN_AGE), |(_, max_age)| *max_age);
        let result = read.map(|(value, _)| value).map_err(SecretUnavailable);
        *last = Some(LastRead { at: timer_now(), max_age, result: result.clone() });
        result
    }

    /// The value of a file or a variable, and the last value of another source; `None` if there is none.
    async fn read_known(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        let entry = self.entries.get(name)?;
        match &entry.source {
            SecretSource::File(_) | SecretSource::Environment(_) => self.read(name).await.ok(),
            // A command or a token endpoint that is asked just now is waited for.
            SecretSource::Command { .. } | SecretSource::OAuth(_) => {
                entry.last.lock().await.as_ref()?.result.clone().ok()
            }
        }
    }

    /// The value, and the time after which it is read again.
    async fn read_source(
        &self,
        name: &SecretName,
        source: &SecretSource,
    ) -> Result<(Arc<SecretValue>, Option<Duration>), String> {
        let ReadValue { text, max_age } = source.read(self.token_client.as_ref()).await?;
        let version = self.key.version(name, &text);
        let value = SecretValue::new(text, version);
        let usable = value.map_err(|error| format!("the {source} cannot be used: {error}"))?;
        Ok((Arc::new(usable), max_age))
    }
}

impl Entry {
    fn is_recent(&self, read: &LastRead) -> bool {
        let age = timer_now().saturating_duration_since(read.at);
        let is_forgotten = self.is_forgotten.load(Ordering::Relaxed);
        age < MIN_AGE || !is_forgotten && read.max_age.is_none_or(|max| age < max)
    }

    fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
    }
}

impl SecretStore for Vault {
    fn value(self: Arc<Self>, name: SecretName) -> SecretFuture {
        Box::pin(async move { self.read(&name).await })
    }

    fn known_value(self: Arc<Self>, name: SecretName) -> KnownSecretFuture {
        Box::pin(async move { self.read_known(&name).await })
    }

    fn forget(&self, name: &SecretName) {
        if let Some(entry) = self.entries.get(name) {
            entry.forget();
        }
    }

    fn forget_all(&self) {
        self.entries.values().for_each(Entry::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};

    fn name() -> SecretName {
        SecretName::parse("key").unwrap()
    }

    fn vault(folder: &Path, source: SecretSource) -> Vault {
        Vault::new([(name(), source)], VersionKey::open(&folder.join("secrets.key")).unwrap())
    }

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn shell(script: &str) -> SecretSource {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        SecretSource::Command {
            program: PathBuf::from("/bin/sh"),
            arguments,
            refresh: Duration::from_secs(300),
        }
    }

    #[tokio::test]
    async fn a_file_has_to_be_private_and_to_have_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        let source = SecretSource::File(path.clone());
        let vault = vault(folder.path(), source.clone());
        assert!(vault.read_source(&name(), &source).await.unwrap_err().contains("No such file"));
        let mut versions = Vec::new();
        for text in ["12345678\n", "12345678\r\n", "12345679"] {
            write(&path, text, 0o600);
            versions.push(vault.read_source(&name(), &source).await.unwrap().0.version().to_owned());
        }
        assert!(
            versions[0] == versions[1] && versions[1] != versions[2],
            "one line end is no part of the value"
        );
        let long = "1".repeat(2 << 20);
        for (text, mode, reason) in [
            ("12345678", 0o640, "other users may read"),
            ("1234567", 0o600, "has 7 bytes"),
            ("", 0o600, "has 0 bytes"),
            ("12345678\n12345678", 0o600, "control characters"),
            (&long, 0o600, "not a regular file of at most"),
        ] {
            write(&path, text, mode);
            let error = vault.read_source(&name(), &source).await.unwrap_err();
            assert!(error.contains(reason) && !error.contains("1234567"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_command_runs_once_until_its_value_is_due_or_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("runs");
        let source = shell(&format!("echo x >> {}; echo 12345678", log.display()));
        let vault = vault(folder.path(), source);
        let runs = || std::fs::read_to_string(&log).unwrap().lines().count();
        assert!(vault.read_known(&name()).await.is_none() && !log.exists(), "no command only to search");
        let first = vault.read(&name()).await.unwrap();
        assert!(vault.read_known(&name()).await.is_some_and(|known| Arc::ptr_eq(&first, &known)));
        vault.forget_all();
        assert!(Arc::ptr_eq(&first, &vault.read(&name()).await.unwrap()), "not again within a second");
        assert_eq!(runs(), 1);
        tokio::time::sleep(MIN_AGE).await;
        assert!(!Arc::ptr_eq(&first, &vault.read(&name()).await.unwrap()));
        vault.read(&name()).await.unwrap();
        assert_eq!(runs(), 2);
    }

    #[tokio::test]
    async fn a_command_that_fails_or_floods_has_no_value() {
        let folder = tempfile::tempdir().unwrap();
        for (script, reason) in [
            ("echo 12345678", ""),
            ("test -z \"$CARGO\" && echo 12345678", ""),
            ("echo 12345678; exit 3", "failed"),
            ("yes 12345678", "more than 65536 bytes"),
        ] {
            let vault = vault(folder.path(), shell(script));
            let error = vault.read(&name()).await.map_or_else(|error| error.to_string(), |_| String::new());
            assert!(error.contains(reason) && error.is_empty() == reason.is_empty(), "{script}: {error}");
        }
        let missing = SecretName::parse("other").unwrap();
        assert!(vault(folder.path(), shell("true")).read(&missing).await.is_err());
    }
}
