//! The settings of a node.

use crate::FleetError;
use a2g_types::node::{FleetName, NodeName};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The login at the servers.
#[derive(Debug, Clone, Default)]
pub struct Login {
    /// A file with a JSON Web Token and its seed, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an NKey.
    pub nkey_file: Option<PathBuf>,
    /// A file with the certificates that servers' certificates are checked with.
    pub ca_file: Option<PathBuf>,
}

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct FleetSettings {
    /// The fleet.
    pub name: FleetName,
    /// This executor.
    pub node: NodeName,
    /// The addresses of servers: `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    /// The file of the key that authenticates the values.
    pub key_file: PathBuf,
    /// The login.
    pub login: Login,
    /// The number of servers that store each value: 1, 3 or 5. Used by `fleet init`.
    pub replicas: usize,
    /// The time for which a claim is stored after its last change. Used by `fleet init`.
    pub keep: Duration,
    /// `true` if other nodes may run calls that wait at this one, and this one runs calls that wait at others.
    pub passes_calls: bool,
}

impl FleetSettings {
    /// Says that this fleet cannot be used, and at which servers: the context of a [`FleetError`].
    #[must_use]
    pub fn describe_failure(&self) -> String {
        format!("the fleet `{}` at {} cannot be used", self.name, self.shown_servers())
    }

    /// The addresses of the servers, without passwords.
    pub(crate) fn shown_servers(&self) -> String {
        self.servers.iter().map(|server| shown_address(server)).collect::<Vec<_>>().join(", ")
    }
}

impl Login {
    /// Checks that the files of the login can be read.
    ///
    /// # Ambient Authority
    /// Opens the files.
    ///
    /// # Errors
    /// [`FleetError::File`].
    pub fn check_files(&self) -> Result<(), FleetError> {
        let Self { credentials, nkey_file, ca_file } = self;
        let files =
            [("fleet.credentials", credentials), ("fleet.nkey_file", nkey_file), ("fleet.ca_file", ca_file)];
        for (setting, path) in files {
            if let Some(path) = path
                && let Err(error) = std::fs::File::open(path)
            {
                return Err(file_error(path, setting, error));
            }
        }
        Ok(())
    }
}

pub(crate) fn file_error(path: &Path, setting: &'static str, error: impl Display) -> FleetError {
    FleetError::File { path: path.display().to_string(), setting, reason: error.to_string() }
}

/// An address without its user and password.
fn shown_address(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let host = rest.rsplit_once('@').map_or(rest, |(_login, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (address, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("tls://user:pass@nats.example:4222", "tls://nats.example:4222"),
            ("user:p@ss@nats.example", "nats.example"),
        ] {
            assert_eq!(shown_address(address), shown);
        }
    }
}
