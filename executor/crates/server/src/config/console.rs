//! The configuration of the console, and of the webhooks that are told what waits for a person.

use super::{InvalidValueError, file, invalid};
use crate::serve::{ListenAddress, PublicUrl};
use a2g_sandbox::egress::{EgressError, EgressSettings, WebhookUrl};
use std::path::PathBuf;

/// Maximum number of webhooks. Each of them gets every message.
const MAX_WEBHOOKS: usize = 16;

/// The operator's settings of the console.
#[derive(Debug, Clone)]
pub struct ConsoleSettings {
    /// `true` if the port serves the console.
    pub enabled: bool,
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
        let file::ConsoleSection { enabled, public_url, notify } = section;
        let enabled = enabled.unwrap_or(cfg!(feature = "console"));
        if enabled && !cfg!(feature = "console") {
            return Err(invalid("console.enabled")(
                &"needs the console, which this build lacks: disable it, or build with the feature `console`",
            ));
        }
        let public_url = public_url.map(|url| PublicUrl::parse(&url)).transpose();
        Ok(Self {
            enabled,
            public_url: public_url.map_err(|error| invalid("console.public_url")(&error))?,
            notify: parse_notify(notify, egress, resolve)?,
        })
    }

    /// Checks that the links in notifications lead to the console, which is served on `listen`.
    pub(super) fn check_links(&self, listen: &ListenAddress) -> Result<(), InvalidValueError> {
        if self.notify.is_empty() {
            return Ok(());
        }
        if !self.enabled {
            return Err(invalid("console.notify")(
                &"needs the console, to which its messages link: set `console.enabled = true` in a build that has the \
                  feature `console`, or remove `[[console.notify]]`",
            ));
        }
        let Some(address) = listen.ip() else {
            return Err(invalid("console.notify")(&format_args!(
                "needs the console, to which its messages link, and a Unix socket does not serve it: `server.listen` is \
                 {listen}"
            )));
        };
        if self.public_url.is_none() && address.is_unspecified() {
            return Err(invalid("console.public_url")(&format_args!(
                "has to be set where `[[console.notify]]` is: its messages link to the console, and no browser opens \
                 {listen} (`server.listen`)"
            )));
        }
        Ok(())
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
                "leads to {}, which is no public address: name another host, or list `{address}` in \
                 `network.allowed_addresses`",
                address.ip()
            )));
        }
        if webhooks.iter().any(|other| other.url == url) {
            return Err(invalid(&"is that of another `[[console.notify]]`: remove one of the two"));
        }
        webhooks.push(NotifySettings { url, key_file: resolve(key_file) });
    }
    Ok(webhooks)
}
