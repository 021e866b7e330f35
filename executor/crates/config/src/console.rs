//! The configuration of the console, and of the webhooks that are told what waits for a person.

use super::error::{InvalidValueError, invalid};
use super::features::has_door;
use super::file;
use a2g_http::{ListenAddress, PublicUrl};
use a2g_sandbox::egress::{EgressError, EgressSettings, WebhookUrl};
use a2g_types::call::Door;
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
        let enabled = enabled.unwrap_or(has_door(Door::Console));
        if enabled && !has_door(Door::Console) {
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

#[cfg(test)]
mod tests {
    use crate::tests::{REACHES_TMP, parse};
    use std::path::Path;

    #[test]
    fn a_notification_has_a_reachable_webhook_a_key_and_a_link_that_works() {
        let hook = |url: &str| format!("[[console.notify]]\nurl = \"{url}\"\nkey_file = \"hook.key\"\n");
        let example = hook("https://hooks.example.com/a2g/SECRET");
        let console = parse(&example).unwrap().console;
        let [only] = console.notify.as_slice() else { panic!("{console:?}") };
        assert_eq!(only.url.as_str(), "https://hooks.example.com/a2g/SECRET");
        assert_eq!(
            (only.url.host().to_string(), only.url.to_string()),
            ("hooks.example.com".into(), "https://hooks.example.com:443".into())
        );
        assert_eq!(only.key_file, Path::new("/srv/a2g/hook.key"));
        assert!(console.public_url.is_none() && !format!("{console:?}").contains("SECRET"));
        let public = format!("[console]\npublic_url = \"https://tools.example.com/\"\n{example}");
        assert_eq!(
            parse(&public).unwrap().console.public_url.unwrap().to_string(),
            "https://tools.example.com"
        );
        let anywhere = "[server]\nlisten = \"0.0.0.0:7420\"\n";
        assert!(parse(&format!("{anywhere}{public}")).is_ok() && parse(anywhere).is_ok());
        let allowed = "[network]\nallowed_addresses = [\"127.0.0.1:9000\"]\n\
                       hosts = { \"chat.internal\" = [\"127.0.0.1\"] }\n";
        for url in ["http://127.0.0.1:9000/", "http://chat.internal:9000/"] {
            assert!(parse(&format!("{allowed}{}", hook(url))).is_ok(), "{url}");
        }
        for (text, words) in [
            (format!("[console]\nenabled = false\n{example}"), "`console.notify` needs the console"),
            (format!("[server]\nlisten = \"unix:a.sock\"\n{example}"), "`console.notify` needs the console"),
            (format!("{anywhere}{example}"), "`console.public_url` is required"),
            (
                "[console]\npublic_url = \"https://a.example/console\"\n".to_owned(),
                "line 2: `console.public_url` has to be",
            ),
            (hook("hooks.example.com"), "line 2: `console.notify.url` has to be"),
            (hook("ftp://hooks.example.com/"), "`console.notify.url` has to be"),
            (hook("https://person@hooks.example.com/SECRET"), "`console.notify.url` has to be"),
            (hook("http://127.0.0.1:9000/"), "list `127.0.0.1:9000` in `network.allowed_addresses`"),
            (hook("https://169.254.169.254/"), "list `169.254.169.254:443` in"),
            (format!("{allowed}{}", hook("http://chat.internal:9001/SECRET")), "list `127.0.0.1:9001` in"),
            (
                format!("{example}{}", hook("http://[::1]:9000/")),
                "line 5: `console.notify.url` resolves to ::1",
            ),
            (example.repeat(2), "line 5: `console.notify.url` is also the URL of another"),
            ((0..17).map(|n| hook(&format!("https://{n}.example.com/"))).collect(), "may have at most 16"),
            ("[[console.notify]]\nurl = \"https://a.example/\"\n".to_owned(), "key_file"),
            (format!("{example}secret = \"x\"\n"), "secret"),
            (
                format!("{REACHES_TMP}{}", example.replace("hook.key", "/tmp/hook.key")),
                "(`console.notify.key_file`)",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(
                error.contains(words) && (words == "secret" || !error.contains("SECRET")),
                "{text}: {error}"
            );
        }
    }
}
