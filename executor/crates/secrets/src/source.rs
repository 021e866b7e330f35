//! The sources of values: a file, a variable of the server's environment, a command, a token endpoint.

use super::oauth::{AccessToken, OAuthClient};
use a2g_govern::read_secret;
use a2g_sandbox::egress::TokenClient;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Maximum time in which a source is read.
const MAX_READ_TIME: Duration = Duration::from_secs(10);
/// Maximum length of the output of a command, in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// Maximum length of a client's secret, in bytes.
const MAX_CLIENT_SECRET_BYTES: usize = 8 << 10;
/// The time after which a file is read again.
const FILE_REFRESH: Duration = Duration::from_secs(1);
/// The variables of the server's environment that a command gets.
const COMMAND_VARIABLES: [&str; 2] = ["HOME", "PATH"];

/// The source of the value of a secret. `Display` names it without anything of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A file that only its owner can read.
    File(PathBuf),
    /// A variable of the server's environment, as it was at the start.
    Environment(String),
    /// The output of a command.
    Command {
        /// The absolute path of the program.
        program: PathBuf,
        /// Its arguments.
        arguments: Vec<String>,
        /// The time after which it is run again.
        refresh: Duration,
    },
    /// An access token of an authorization server.
    OAuth(OAuthClient),
}

/// A value that was read, and the time after which it is read again; `None` for one that stays.
pub(crate) struct ReadValue {
    pub(crate) text: Zeroizing<String>,
    pub(crate) max_age: Option<Duration>,
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "variable {name}"),
            // An argument could be a password.
            Self::Command { program, .. } => write!(f, "command {}", program.display()),
            Self::OAuth(OAuthClient { token_url, .. }) => write!(f, "token endpoint {token_url}"),
        }
    }
}

impl SecretSource {
    /// The file that is read or run.
    #[must_use]
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::File(path)
            | Self::Command { program: path, .. }
            | Self::OAuth(OAuthClient { client_secret_file: path, .. }) => Some(path),
            Self::Environment(_) => None,
        }
    }

    /// Reads the value, without a line end at its end. Tokens are asked for with `client`.
    ///
    /// # Ambient Authority
    /// Reads the file or the environment, runs the command, or asks the token endpoint.
    ///
    /// # Errors
    /// The reason, which names the source and repeats nothing of its content.
    pub(crate) async fn read(&self, client: Option<&TokenClient>) -> Result<ReadValue, String> {
        let parse = |bytes: &[u8]| parse_line(bytes).ok_or_else(|| format!("the {self} has no UTF-8 text"));
        match self {
            Self::File(path) => {
                let text = parse(&read_file(path.clone()).await?)?;
                Ok(ReadValue { text, max_age: Some(FILE_REFRESH) })
            }
            Self::Environment(name) => {
                let value =
                    std::env::var_os(name).ok_or_else(|| format!("the variable `{name}` is not set"))?;
                let text = parse(&Zeroizing::new(value.into_encoded_bytes()))?;
                Ok(ReadValue { text, max_age: None })
            }
            Self::Command { program, arguments, refresh } => {
                let text = parse(&run(program, arguments).await?)?;
                Ok(ReadValue { text, max_age: Some(*refresh) })
            }
            Self::OAuth(oauth) => request_token(oauth, client).await,
        }
    }
}

/// The text of a value, without a line end at its end; `None` if it is not UTF-8.
fn parse_line(bytes: &[u8]) -> Option<Zeroizing<String>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let line = text.strip_suffix('\n').unwrap_or(text);
    Some(Zeroizing::new(line.strip_suffix('\r').unwrap_or(line).to_owned()))
}

/// Reads the client's secret, which may have changed, and asks for a token with it.
async fn request_token(oauth: &OAuthClient, client: Option<&TokenClient>) -> Result<ReadValue, String> {
    let file = &oauth.client_secret_file;
    let bytes = read_file(file.clone()).await?;
    let Some(secret) = parse_line(&bytes).filter(|text| is_client_secret(text)) else {
        let path = file.display();
        return Err(format!("`{path}` has to have one line of 1 to {MAX_CLIENT_SECRET_BYTES} bytes"));
    };
    let endpoint = format!("the token endpoint {}", oauth.token_url);
    let Some(client) = client else { return Err(format!("{endpoint} cannot be asked here")) };
    match timeout(MAX_READ_TIME, oauth.request_token(client, &secret)).await {
        Ok(Ok(AccessToken { text, max_age })) => Ok(ReadValue { text, max_age: Some(max_age) }),
        Ok(Err(reason)) => Err(format!("{endpoint} {reason}")),
        Err(_late) => Err(format!("{endpoint} did not answer within {} seconds", MAX_READ_TIME.as_secs())),
    }
}

fn is_client_secret(text: &str) -> bool {
    (1..=MAX_CLIENT_SECRET_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

async fn read_file(path: PathBuf) -> Result<Zeroizing<Vec<u8>>, String> {
    let shown = path.display().to_string();
    let reading = tokio::task::spawn_blocking(move || read_secret(&path).map_err(|error| error.to_string()));
    match timeout(MAX_READ_TIME, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(_ended)) => Err(format!("`{shown}` was not read, because the executor ends")),
        Err(_late) => Err(format!("`{shown}` could not be read within {} seconds", MAX_READ_TIME.as_secs())),
    }
}

/// Runs a command with nothing of the server but two variables, and returns its output.
async fn run(program: &Path, arguments: &[String]) -> Result<Zeroizing<Vec<u8>>, String> {
    let shown = program.display();
    check_program(program)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    for name in COMMAND_VARIABLES {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let mut child = command.spawn().map_err(|error| format!("`{shown}` cannot be run: {error}"))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let output = timeout(MAX_READ_TIME, read_output(&mut child)).await;
    let result =
        output.unwrap_or_else(|_late| Err(format!("did not end within {} seconds", MAX_READ_TIME.as_secs())));
    // Until it is waited for, the number of its group is no other's.
    if result.is_err()
        && let Some(running) = group.filter(|_| child.id().is_some())
    {
        let _has_ended = kill_process_group(running, Signal::KILL);
    }
    result.map_err(|reason| format!("`{shown}` {reason}"))
}

async fn read_output(child: &mut Child) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut bytes = Zeroizing::new(Vec::new());
    if let Some(output) = child.stdout.take() {
        let read = output.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes).await;
        read.map_err(|error| format!("cannot be read: {error}"))?;
    }
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_OUTPUT_BYTES {
        return Err(format!("has an output of more than {MAX_OUTPUT_BYTES} bytes"));
    }
    let status = child.wait().await.map_err(|error| format!("cannot be waited for: {error}"))?;
    if status.success() { Ok(bytes) } else { Err(format!("failed ({status})")) }
}

/// Checks that only root or this user can change a program.
fn check_program(program: &Path) -> Result<(), String> {
    let shown = program.display();
    let metadata = std::fs::metadata(program).map_err(|error| format!("`{shown}`: {error}"))?;
    let is_own = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    if is_own && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(format!("`{shown}` can be changed by other users: run `chown` and `chmod go-w` on it"))
}
