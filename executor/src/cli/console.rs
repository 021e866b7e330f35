//! The console of a server, and the command `console`, which prints the link to it.
//!
//! A server without a list of callers writes a link with a key to a file beside its journal, which only its own user can
//! read. The first browser that opens the link uses up its key, and the server then writes the next link.

use super::UsageError;
use super::arguments::ConsoleCommand;
use super::doors::{DoorParts, OpenDoor, webhooks};
use super::output::{list, note, print, print_row};
use super::setup::{InspectedContainment, config};
use a2g_config::{Config, NotifySettings};
use a2g_console::{ConsolePort, Containment, ContainmentControl, LocalKey, Notifier, NotifyWebhook};
use a2g_core::run::Executor;
use a2g_govern::{WebhookKey, replace_private};
use a2g_http::{ConsoleUrl, HttpServer, ListenAddress, ProtocolRouter, PublicUrl};
use a2g_isolate::{Isolation, RunAs, Support};
use a2g_runtime::spawn::SessionTasks;
use anyhow::{Context as _, bail};
use std::io::IsTerminal as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Interval of the attempts to write a link that is missing.
const RESTORE_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time for a server of this machine to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The file with the link, beside the journal.
fn link_file(journal: &Path) -> PathBuf {
    let mut path = journal.to_owned().into_os_string();
    path.push(".console");
    path.into()
}

/// `true` if a port serves the console.
fn is_served(config: &Config) -> bool {
    config.console.address(&config.listen).is_some()
}

/// Prints the rows of `config check`.
pub(super) fn print_rows(config: &Config) -> anyhow::Result<()> {
    if is_served(config) {
        let own = config.console.listen.as_ref().map(|listen| format!("{listen}, "));
        print_row("console", format_args!("on, at {}/console", own.unwrap_or_default()));
    }
    // Checks the keys.
    read_notify_webhooks(config)?;
    for NotifySettings { url, key_file } in &config.console.notify {
        print_row("notify", format_args!("{url}, signed with the key in {}", key_file.display()));
    }
    Ok(())
}

/// Opens the console: on the server's port, or on one of its own, which serves from then on.
pub(super) async fn open_door<'a>(parts: &'a DoorParts<'a>) -> anyhow::Result<OpenDoor<'a>> {
    let config = parts.config;
    let sessions = parts.executor.session_tasks();
    let Some(console) = Console::new(parts)? else { return Ok(OpenDoor::default()) };
    let routers = vec![console.router(parts)];
    let Some(address) = &config.console.listen else {
        let announce = move |origin: &str| console.announce(config, origin, sessions);
        return Ok(OpenDoor { routers, on_bound: Some(Box::new(announce)) });
    };
    let server = HttpServer::bind_protocols(address, config.bounds, parts.http_settings(routers))
        .await
        .with_context(|| format!("cannot listen on {address} (`console.listen`)"))?;
    let origin = server.origin().context("the console has no TCP port")?;
    tracing::info!("the console is at {origin}/console");
    console.announce(config, &origin, sessions)?;
    let closing = Arc::clone(parts.executor);
    let until_closed = async move { closing.wait_until_closed().await };
    sessions.spawn(server.serve(until_closed));
    Ok(OpenDoor::default())
}

/// The console of a server, before its port is bound.
struct Console {
    /// The key for the person who starts the server; `None` if there is a list of callers, each with a credential.
    local_key: Option<Arc<LocalKey>>,
    notifier: Option<Notifier>,
    console_url: ConsoleUrl,
    journal: PathBuf,
}

impl Console {
    /// The configured console; `None` if none is served.
    ///
    /// # Errors
    /// If a key of `[[console.notify]]` cannot be read.
    fn new(parts: &DoorParts<'_>) -> anyhow::Result<Option<Self>> {
        let DoorParts { config, executor, journal, .. } = *parts;
        if !is_served(config) {
            return Ok(None);
        }
        let local_key = config.callers.is_none().then(|| Arc::new(LocalKey::new(link_file(journal))));
        Ok(Some(Self {
            local_key,
            notifier: notifier(config, executor)?,
            console_url: parts.console_url.clone(),
            journal: std::path::absolute(journal).unwrap_or_else(|_| journal.to_owned()),
        }))
    }

    fn router(&self, parts: &DoorParts<'_>) -> ProtocolRouter {
        let config = parts.config;
        let port = ConsolePort {
            callers: parts.callers.clone(),
            tls: config.tls.is_some(),
            local_key: self.local_key.clone(),
            request_timeout: config.connections.request_timeout,
            bounds: config.bounds,
            containment: containment(config, parts.contained, parts.has_cgroups),
            journal: self.journal.clone(),
            keep_changes: config.effects_settings.keep,
        };
        a2g_console::router(Arc::clone(parts.executor), port)
    }

    /// Writes the first link, tells the person at the terminal, and starts the notifications. `origin` is that of the
    /// bound port. While the disk is full, the server runs without a link.
    ///
    /// # Errors
    /// If `origin` is not a valid origin.
    fn announce(self, config: &Config, origin: &str, sessions: &SessionTasks) -> anyhow::Result<()> {
        let Self { local_key, notifier, console_url, journal: _ } = self;
        let bound = PublicUrl::parse(origin)?;
        let public_url = config.console.public_url.clone();
        // No browser can open a wildcard address.
        let address = config.console.address(&config.listen).and_then(ListenAddress::ip);
        let links_to = public_url.or_else(|| {
            let is_usable = address.is_some_and(|ip| !ip.is_unspecified());
            is_usable.then(|| bound.clone())
        });
        if let Some(links_to) = &links_to {
            console_url.set(links_to.clone());
        }
        if let Some((notifier, links_to)) = notifier.zip(links_to) {
            tracing::info!(webhooks = config.console.notify.len(), %links_to, "notifications are on");
            sessions.spawn(notifier.run(links_to));
        }
        let page = bound.page("/console");
        let link = match local_key {
            Some(key) => {
                sessions.spawn(restore_links(Arc::clone(&key)));
                match key.publish(page) {
                    Ok(link) => link,
                    Err(error) => {
                        tracing::error!(%error, "the link to the console cannot be written yet");
                        return Ok(());
                    }
                }
            }
            None => page,
        };
        tracing::info!("people sign in to the console with `a2g-executor console`");
        // The log of a service may have other readers than its user, so only a terminal gets the key.
        if std::io::stderr().is_terminal() {
            note(format_args!("console: {link}"));
        }
        Ok(())
    }
}

/// The containment of this server's runs, for the overview: the result of `doctor`, as changed by the configuration.
fn containment(config: &Config, inspected: &InspectedContainment, has_cgroups: bool) -> Containment {
    let inline = list(&config.inline_tools);
    let mut isolation = match (config.isolation, inline.is_empty()) {
        (Isolation::Inline, _) => {
            "every tool runs on threads of the server, without these controls.".to_owned()
        }
        (Isolation::Process, true) => "each run has a process of its own.".to_owned(),
        (Isolation::Process, false) => {
            format!(
                "each run has a process of its own, except those of {inline}, which run on threads of the server."
            )
        }
    };
    if let RunAs::User(user) = inspected.run_as {
        isolation.push_str(&format!(" It runs as user {user}."));
    }
    if !config.reuse.tools.is_empty() {
        let reused = list(&config.reuse.tools);
        isolation.push_str(&format!(
            " Processes of {reused} are reused for runs of the same agent under the same grant."
        ));
    }
    let rows = inspected.support.as_ref().map(|support| support.rows()).into_iter().flatten();
    let controls = rows.map(|row| ContainmentControl {
        name: row.name,
        purpose: row.purpose,
        is_required: row.required,
        state: match row.state {
            Ok(_) if row.name == Support::CGROUP && !has_cgroups => {
                Err("delegated, but the control group could not be created: see the log".to_owned())
            }
            state => state.clone(),
        },
    });
    Containment { isolation, controls: controls.collect() }
}

/// Reads the keys of `[[console.notify]]`.
fn read_notify_webhooks(config: &Config) -> anyhow::Result<Vec<NotifyWebhook>> {
    let read = |NotifySettings { url, key_file }: &NotifySettings| {
        let key = WebhookKey::read(key_file).context("`console.notify.key_file`")?;
        Ok(NotifyWebhook { url: url.as_str().to_owned(), key })
    };
    config.console.notify.iter().map(read).collect()
}

/// The notifier of the configured webhooks; `None` if there are none.
fn notifier(config: &Config, executor: &Arc<Executor>) -> anyhow::Result<Option<Notifier>> {
    let hosts = config.console.notify.iter().map(|webhook| webhook.url.host()).collect();
    // A poster of its own: callers may not post to these hosts, nor these webhooks to the hosts of callers.
    let poster = webhooks(config, executor, hosts)?;
    let hooks = read_notify_webhooks(config)?;
    Ok(poster.map(|poster| Notifier::new(Arc::clone(executor), poster, config.did.clone(), hooks)))
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
    let Some(address) = config.console.address(&config.listen) else {
        bail!(UsageError(
            "this configuration serves no console: set `console.enabled = true`, and a TCP address as `console.listen` or \
             `server.listen`"
                .to_owned()
        ));
    };
    let file = link_file(&config.journal);
    let link = match config.callers {
        Some(_) => {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            let origin = config.console.public_url.as_ref().map(ToString::to_string);
            format!("{}/console", origin.unwrap_or_else(|| format!("{scheme}://{address}")))
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
    let bound = match config.callers {
        Some(_) => address.to_string(),
        // The link has the port that the server was given.
        None => link.split('/').nth(2).unwrap_or_default().to_owned(),
    };
    check_listens(&bound)?;
    print(&link);
    if !arguments.print && has_graphical_session() {
        open(&file, &link)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that a server listens at the address of the console. The file with the link outlives a server that was killed.
fn check_listens(bound: &str) -> anyhow::Result<()> {
    // A port that the system chooses is not known here.
    let Some(address) = bound.parse::<SocketAddr>().ok().filter(|address| address.port() != 0) else {
        return Ok(());
    };
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(drop).with_context(|| {
        format!(
            "no server listens on {address}: it has ended. Start `a2g-executor serve` with this configuration, and then \
             run this again"
        )
    })
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
