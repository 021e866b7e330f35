//! The configuration of the console, and of the webhooks that are told what waits for a person.

use super::error::{InvalidValueError, invalid};
use super::file;
use a2g_http::{ListenAddress, PublicUrl};
use a2g_sandbox::egress::{EgressError, EgressSettings, WebhookUrl};
use std::path::PathBuf;

/// Maximum number of webhooks. Each of them gets every message.
const MAX_WEBHOOKS: usize = 16;

/// The operator's settings of the console.
#[derive(Debug, Clone)]
pub struct ConsoleSettings {
    /// `true` if the console is served.
    pub enabled: bool,
    /// The address of the console's own port; `None`: it is served on `server.listen`.
    pub listen: Option<ListenAddress>,
    /// The URL at which people reach the console; `None`: that of the port.
    pub public_url: Option<PublicUrl>,
    /// The webhooks that are told what waits for a person.
    pub notify: Vec<NotifySettings>,
}

/// The operator's settings of one webhook that is told what waits for a person.
#[derive(Debug, Clone)]
pub struct NotifySettings {
    /// The URL to post to.
    pub url: WebhookUrl,
    /// The file with the key that signs its messages.
    pub key_file: PathBuf,
}

impl ConsoleSettings {
    pub(super) fn parse(
        section: file::ConsoleSection,
        egress: &EgressSettings,
        resolve: impl Fn(PathBuf) -> PathBuf,
    ) -> Result<Self, InvalidValueError> {
        let file::ConsoleSection { enabled, listen, public_url, notify } = section;
        let enabled = enabled.unwrap_or(cfg!(feature = "console"));
        if enabled && !cfg!(feature = "console") {
            return Err(invalid("console.enabled")(
                &"needs the console, which this build lacks: disable it, or build with the feature `console`",
            ));
        }
        let listen = listen.map(|listen| parse_listen(&listen)).transpose()?;
        if listen.is_some() && !enabled {
            return Err(invalid("console.listen")(
                &"needs the console: set `console.enabled = true`, or remove `console.listen`",
            ));
        }
        let public_url = public_url.map(|url| PublicUrl::parse(&url)).transpose();
        Ok(Self {
            enabled,
            listen,
            public_url: public_url.map_err(|error| invalid("console.public_url")(&error))?,
            notify: parse_notify(notify, egress, resolve)?,
        })
    }

    /// The address of the console, where `listen` is the address of the other protocols; `None` if the console is not served.
    /// No browser can open a Unix socket.
    #[must_use]
    pub fn address<'a>(&'a self, listen: &'a ListenAddress) -> Option<&'a ListenAddress> {
        let address = self.listen.as_ref().unwrap_or(listen);
        Some(address).filter(|address| self.enabled && address.ip().is_some())
    }

    /// Checks the console's address, and that the links in notifications lead to it, if other protocols are served on
    /// `listen`.
    pub(super) fn check_address(&self, listen: &ListenAddress) -> Result<(), InvalidValueError> {
        let is_fixed =
            |address: &ListenAddress| matches!(address, ListenAddress::Tcp(address) if address.port() != 0);
        if self.listen.as_ref().is_some_and(|own| own == listen && is_fixed(own)) {
            return Err(invalid("console.listen")(
                &"is the same address as `server.listen`: choose another port, or remove `console.listen`",
            ));
        }
        if self.notify.is_empty() {
            return Ok(());
        }
        if !self.enabled {
            return Err(invalid("console.notify")(
                &"needs the console, because the messages link to it: set `console.enabled = true` in a build that has the \
                  feature `console`, or remove `[[console.notify]]`",
            ));
        }
        let listen = self.listen.as_ref().unwrap_or(listen);
        let Some(address) = listen.ip() else {
            return Err(invalid("console.notify")(&format_args!(
                "needs the console, because the messages link to it, but `server.listen` is {listen}, and the console is not \
                 served on a Unix socket: set `console.listen`"
            )));
        };
        if self.public_url.is_none() && address.is_unspecified() {
            return Err(invalid("console.public_url")(&format_args!(
                "is required with `[[console.notify]]`: the messages link to the console, and no browser can open {listen} \
                 (`console.listen`, or else `server.listen`)"
            )));
        }
        Ok(())
    }
}

fn parse_listen(text: &str) -> Result<ListenAddress, InvalidValueError> {
    let address = text.parse::<ListenAddress>().map_err(|error| invalid("console.listen")(&error))?;
    match address.ip() {
        Some(_) => Ok(address),
        None => Err(invalid("console.listen")(
            &"is a Unix socket, which no browser opens: name an address and a port",
        )),
    }
}

fn parse_notify(
    tables: Vec<file::Notify>,
    egress: &EgressSettings,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<Vec<NotifySettings>, InvalidValueError> {
    if tables.len() > MAX_WEBHOOKS {
        return Err(invalid("console.notify")(&format_args!(
            "has {} tables, and may have at most {MAX_WEBHOOKS}",
            tables.len()
        )));
    }
    let mut webhooks = Vec::<NotifySettings>::new();
    for (nth, file::Notify { url, key_file }) in tables.into_iter().enumerate() {
        let invalid =
            |reason: &dyn std::fmt::Display| invalid("console.notify.url")(reason).at_occurrence(nth);
        // The messages do not repeat the path of the URL, which may be a secret.
        let url = WebhookUrl::parse(&url).map_err(|_: EgressError| {
            invalid(
                &"has to be `http://` or `https://` with a host and a path, such as `https://hooks.example.com/a2g`, and \
                  without a user",
            )
        })?;
        if let Some(address) = url.refused_address(egress) {
            return Err(invalid(&format_args!(
                "resolves to {}, which is not a public address: use another host, or list `{address}` in \
                 `network.allowed_addresses`",
                address.ip()
            )));
        }
        if webhooks.iter().any(|other| other.url == url) {
            return Err(invalid(&"is also the URL of another `[[console.notify]]`: remove one of the two"));
        }
        webhooks.push(NotifySettings { url, key_file: resolve(key_file) });
    }
    Ok(webhooks)
}
