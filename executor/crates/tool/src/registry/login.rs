//! The logins of the usual Docker configuration: `auths`, `credHelpers` and `credsStore` of
//! `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`. The file is read only when a registry asks for a login.
//!
//! A login is sent only to its registry, and to the token server that this registry names.

use a2g_types::ident::excerpt;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdout, Command};

/// The maximum size of the configuration, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The maximum size of a credential helper's answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// The time limit of a credential helper, which may ask a person for a password.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
/// The user name in a helper's answer that stands for an identity token instead of a password.
const IDENTITY_TOKEN_USER: &str = "<token>";

/// The reason why a login cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    /// The configuration cannot be read.
    #[error("the logins in `{}` cannot be read: {reason}", path.display())]
    File {
        /// The configuration.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A credential helper failed.
    #[error("`{program}`, which `{}` configures for {host}, failed: {reason}", path.display())]
    Helper {
        /// The program.
        program: String,
        /// The configuration.
        path: PathBuf,
        /// The registry.
        host: String,
        /// The problem.
        reason: String,
    },
    /// The kind of login is not supported.
    #[error(
        "the login for {host} in `{}` is an identity token, which this program does not support: log in with a password \
         or an access token", path.display()
    )]
    IdentityToken {
        /// The configuration.
        path: PathBuf,
        /// The registry.
        host: String,
    },
}

/// The user and password for one registry.
#[derive(Clone)]
pub(super) struct Login {
    /// The user.
    pub(super) user: String,
    password: String,
}

impl Login {
    /// The value of the header `Authorization` for the scheme Basic.
    pub(super) fn to_basic(&self) -> Option<HeaderValue> {
        let encoded = BASE64_STANDARD.encode(format!("{}:{}", self.user, self.password));
        let mut value = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// The members of Docker's configuration that concern logins.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, DockerAuth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// The answer of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// The path of the logins, even if the file does not exist; `None` without a home folder.
#[allow(
    clippy::disallowed_methods,
    reason = "Docker's own variable, and the home folder that it defaults to"
)]
pub(super) fn docker_config() -> Option<PathBuf> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))?;
    Some(folder.join("config.json"))
}

/// Finds the login for `host`, which may have a port.
///
/// # Ambient Authority
/// Reads `path`, and runs the credential helper that it names.
pub(super) async fn find(path: &Path, host: &str) -> Result<Option<Login>, LoginError> {
    let Some(DockerConfig { auths, cred_helpers, creds_store }) = read(path)? else { return Ok(None) };
    let helper = cred_helpers.into_iter().find(|(key, _)| host_of(key) == host).map(|(_, name)| name);
    if let Some(name) = helper.or(creds_store.filter(|name| !name.is_empty())) {
        // When a store is set, Docker keeps the old entry in `auths`, but without a password.
        if let Some(login) = ask_helper(&name, path, host).await? {
            return Ok(Some(login));
        }
    }
    let Some((_, auth)) = auths.into_iter().find(|(key, _)| host_of(key) == host) else { return Ok(None) };
    login_of(auth, path, host)
}

/// The host of a key, which older versions of Docker write as a URL.
fn host_of(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

fn read(path: &Path) -> Result<Option<DockerConfig>, LoginError> {
    let failed = |reason: &dyn std::fmt::Display| LoginError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    let mut text = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        return Err(failed(&format_args!("it has more than {MAX_CONFIG_BYTES} bytes")));
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| failed(&error))
}

fn login_of(auth: DockerAuth, path: &Path, host: &str) -> Result<Option<Login>, LoginError> {
    let DockerAuth { auth, username, password, identitytoken } = auth;
    if identitytoken.is_some_and(|token| !token.is_empty()) {
        return Err(LoginError::IdentityToken { path: path.to_owned(), host: host.to_owned() });
    }
    if let Some(encoded) = auth.filter(|encoded| !encoded.is_empty()) {
        let text =
            BASE64_STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let reason = || format!("`auth` for {host} is not `user:password` in Base64");
        let text = text.ok_or_else(|| LoginError::File { path: path.to_owned(), reason: reason() })?;
        let (user, password) = text
            .split_once(':')
            .ok_or_else(|| LoginError::File { path: path.to_owned(), reason: reason() })?;
        return Ok(Some(Login {
            user: user.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
        }));
    }
    Ok(username.zip(password).map(|(user, password)| Login { user, password }))
}

/// Runs `docker-credential-NAME get`; `None` if it has no login for the host.
async fn ask_helper(name: &str, path: &Path, host: &str) -> Result<Option<Login>, LoginError> {
    let program = format!("docker-credential-{}", excerpt(name));
    let failed = |reason: String| LoginError::Helper {
        program: program.clone(),
        path: path.to_owned(),
        host: host.to_owned(),
        reason,
    };
    // A name with `/` would be a path instead of a helper in `PATH`.
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err(failed(
            "its name has other characters than letters, digits, `-`, `_` and `.`".to_owned(),
        ));
    }
    let talk = async {
        let mut child = Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A helper that exits without reading has reported the reason on its output.
            let _closed = stdin.write_all(host.as_bytes()).await;
        }
        let said = read_bounded(child.stdout.take()).await?;
        Ok::<_, std::io::Error>((child.wait().await?, said))
    };
    let talked = tokio::time::timeout(HELPER_TIMEOUT, talk).await;
    let ended = talked.map_err(|_| failed(format!("it takes longer than {} s", HELPER_TIMEOUT.as_secs())))?;
    let (status, said) = ended.map_err(|error| failed(error.to_string()))?;
    let Some(said) = said else {
        return Err(failed(format!("it writes more than {MAX_ANSWER_BYTES} bytes")));
    };
    if !status.success() {
        let text = String::from_utf8_lossy(&said);
        // Every helper answers with this sentence if it has no login for the registry.
        if text.contains("credentials not found") {
            return Ok(None);
        }
        let text = match text.trim() {
            login if login.starts_with('{') => {
                "its output is not shown, because it may be a login".to_owned()
            }
            text => excerpt(text),
        };
        return Err(failed(format!("it ended with {status}: {text}")));
    }
    let answer =
        serde_json::from_slice(&said).map_err(|_| failed("its answer is not a login in JSON".to_owned()))?;
    let HelperAnswer { username, secret } = answer;
    if username == IDENTITY_TOKEN_USER {
        return Err(LoginError::IdentityToken { path: path.to_owned(), host: host.to_owned() });
    }
    Ok(Some(Login { user: username, password: secret }))
}

/// Reads an output to its end; `None` if it is longer than a login.
async fn read_bounded(output: Option<ChildStdout>) -> std::io::Result<Option<Vec<u8>>> {
    let mut said = Vec::new();
    if let Some(output) = output {
        output.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut said).await?;
    }
    Ok((said.len() as u64 <= MAX_ANSWER_BYTES).then_some(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(text: &str, host: &str) -> Result<Option<Login>, LoginError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(find(&path, host))
    }

    #[test]
    fn a_login_is_that_of_the_host_and_the_port() {
        let auth = BASE64_STANDARD.encode("ann:pass:word");
        let text = format!(r#"{{"auths":{{"https://r.example.com/v1/":{{"auth":"{auth}"}}}}}}"#);
        let login = find_in(&text, "r.example.com").unwrap().unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("ann", "pass:word"));
        for host in ["r.example.com:443", "example.com", "xr.example.com"] {
            assert!(find_in(&text, host).unwrap().is_none(), "{host}");
        }
    }

    #[test]
    fn what_is_no_login_is_an_error_that_names_the_file() {
        for (text, words) in [
            ("<html>", "config.json"),
            (r#"{"auths":{"r":{"auth":"!"}}}"#, "Base64"),
            (r#"{"auths":{"r":{"identitytoken":"x"}}}"#, "identity token"),
            (r#"{"credsStore":"../../bin/sh"}"#, "other characters"),
            (
                r#"{"credHelpers":{"r":"there-is-no-such-helper"}}"#,
                "docker-credential-there-is-no-such-helper",
            ),
        ] {
            let Err(error) = find_in(text, "r") else { panic!("{text} is accepted") };
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
        assert!(find_in("{}", "r").unwrap().is_none());
    }
}
