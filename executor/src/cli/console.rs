//! `console`: the link to the console of a running executor.
//!
//! A server without a list of callers writes a link with a key to a file beside its journal, which only its own user can
//! read. The first browser that opens the link uses up its key, and the server then writes the next link.

use super::UsageError;
use super::arguments::ConsoleCommand;
use super::output::{note, print};
use super::setup::config;
use a2g_core::run::Executor;
use a2g_govern::{WebhookKey, replace_private};
use a2g_runtime::spawn::SessionTasks;
use a2g_server::config::{Config, NotifySettings};
use a2g_server::serve::console::{ConsolePort, LocalKey, Notifier, NotifyHook};
use a2g_server::serve::{CallerDirectory, ConsoleUrl, ListenAddress, ProtocolRouter, PublicUrl};
use anyhow::{Context as _, bail};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Interval of the attempts to write a link that is missing.
const RESTORE_INTERVAL: Duration = Duration::from_secs(10);

/// The file with the link, beside the journal.
fn link_file(journal: &Path) -> PathBuf {
    let mut path = journal.to_owned().into_os_string();
    path.push(".console");
    path.into()
}

/// `true` if the port serves the console. No browser opens a Unix socket.
pub(super) fn is_served(config: &Config) -> bool {
    config.console.enabled && matches!(config.listen, ListenAddress::Tcp(_))
}

/// The key for the person who starts the server; `None` if there is a list of callers, each with a credential.
pub(super) fn local_key(config: &Config, journal: &Path) -> Option<Arc<LocalKey>> {
    (is_served(config) && config.callers.is_none()).then(|| Arc::new(LocalKey::new(link_file(journal))))
}

pub(super) fn router(
    config: &Config,
    callers: &CallerDirectory,
    executor: &Arc<Executor>,
    local_key: Option<&Arc<LocalKey>>,
) -> ProtocolRouter {
    let port = ConsolePort {
        callers: callers.clone(),
        tls: config.tls.is_some(),
        local_key: local_key.cloned(),
        request_timeout: config.connections.request_timeout,
        bounds: config.bounds,
    };
    a2g_server::serve::console::router(Arc::clone(executor), port)
}

/// Writes the first link, and tells the person at the terminal. `url` is the URL of `/jsonrpc` on the same port.
/// While the disk is full, the server runs without a link.
pub(super) fn announce(
    config: &Config,
    url: &str,
    local_key: Option<&Arc<LocalKey>>,
    console_url: &ConsoleUrl,
    sessions: &SessionTasks,
) {
    if !is_served(config) {
        return;
    }
    let url = format!("{}/console", url.strip_suffix("/jsonrpc").unwrap_or(url));
    // A wildcard address is not one that a browser could open.
    if config.listen.ip().is_some_and(|ip| !ip.is_unspecified()) {
        console_url.set(url.clone());
    }
    let link = match local_key {
        Some(key) => {
            sessions.spawn(restore_links(Arc::clone(key)));
            match key.publish(url) {
                Ok(link) => link,
                Err(error) => {
                    return tracing::error!(%error, "the link to the console cannot be written yet");
                }
            }
        }
        None => url,
    };
    // The log of a service may have other readers than its user, so only a terminal gets the key.
    if std::io::stderr().is_terminal() {
        note(format_args!("console: {link}"));
    }
}

/// Reads the keys of `[[console.notify]]`.
pub(super) fn read_notify_hooks(config: &Config) -> anyhow::Result<Vec<NotifyHook>> {
    let read = |NotifySettings { url, key_file }: &NotifySettings| {
        let key = WebhookKey::read(key_file).context("`console.notify.key_file`")?;
        Ok(NotifyHook { url: url.as_str().to_owned(), key })
    };
    config.console.notify.iter().map(read).collect()
}

/// The notifier of the configured webhooks; `None` if there are none.
pub(super) fn notifier(config: &Config, executor: &Arc<Executor>) -> anyhow::Result<Option<Notifier>> {
    let hosts = config.console.notify.iter().map(|webhook| webhook.url.host()).collect();
    // A poster of its own: callers may not post to these hosts, nor these webhooks to the hosts of callers.
    let poster = super::doors::webhooks(config, executor, hosts)?;
    let hooks = read_notify_hooks(config)?;
    Ok(poster.map(|poster| Notifier::new(Arc::clone(executor), poster, config.did.clone(), hooks)))
}

/// Starts the notifier. `url` is the URL of `/jsonrpc` on the port that serves the console.
pub(super) fn notify(
    config: &Config,
    url: &str,
    notifier: Notifier,
    sessions: &SessionTasks,
) -> anyhow::Result<()> {
    let public_url = match &config.console.public_url {
        Some(public_url) => public_url.clone(),
        None => PublicUrl::parse(url.strip_suffix("/jsonrpc").unwrap_or(url))?,
    };
    tracing::info!(webhooks = config.console.notify.len(), links_to = %public_url, "notifications are on");
    sessions.spawn(notifier.run(public_url));
    Ok(())
}

/// Writes a link whenever there is none. The server ends this task when it closes.
async fn restore_links(key: Arc<LocalKey>) {
    loop {
        tokio::time::sleep(RESTORE_INTERVAL).await;
        if !key.is_missing() {
            continue;
        }
        let key = Arc::clone(&key);
        // An error means that the disk is still full.
        let _ignored = tokio::task::spawn_blocking(move || key.restore()).await;
    }
}

pub(super) fn main(arguments: &ConsoleCommand) -> anyhow::Result<ExitCode> {
    let config = config(&arguments.setup)?;
    if !is_served(&config) {
        bail!(UsageError(
            "this configuration serves no console: set `console.enabled = true`, and a TCP address as `server.listen`"
                .to_owned()
        ));
    }
    let file = link_file(&config.journal);
    let link = match config.callers {
        Some(_) => {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            format!("{scheme}://{}/console", config.listen)
        }
        None => {
            let link = std::fs::read_to_string(&file).with_context(|| {
                format!(
                    "there is no link in `{}`: start `a2g-executor serve` with this configuration first, and run this as the \
                     same user",
                    file.display()
                )
            })?;
            link.trim().to_owned()
        }
    };
    print(&link);
    if !arguments.print && has_graphical_session() {
        open(&file, &link)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn has_graphical_session() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Opens a private file that leads to the link, not the link itself: every user of the machine can read the arguments
/// of a browser.
fn open(file: &Path, link: &str) -> anyhow::Result<()> {
    let page = LocalKey::page_file(file);
    let content = format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={link}\">");
    replace_private(&page, &content)?;
    let page = std::path::absolute(page)?;
    let mut browser = Command::new("xdg-open");
    browser.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match browser.status() {
        Ok(status) if status.success() => {}
        Ok(_) | Err(_) => note("no browser could be opened: open the link above"),
    }
    Ok(())
}
