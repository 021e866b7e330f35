//! The sections `[[secret]]`: the values that requests of runs get, and that no tool sees.

use super::error::{InvalidValueError, invalid};
use super::values::{check_count, check_seconds};
use super::{Config, file};
use a2g_capability::{
    DeclaredRequest, HostPattern, Placeholder, Rendering, RequestRule, SecretBinding, SecretBindingError,
    SecretName, SecretParts, SecretPlace, ToolRange,
};
use a2g_isolate::Isolation;
use a2g_sandbox::egress::TokenUrl;
use a2g_secrets::{ClientAuth, OAuthClient, SecretSource};
use a2g_types::ident::{AgentDid, ToolName};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of secrets.
const MAX_SECRETS: usize = 64;
/// The default of `secret.refresh_seconds`.
const DEFAULT_REFRESH: Duration = Duration::from_secs(300);
/// Maximum length of `secret.oauth.client_id` and `secret.oauth.scope`, in bytes.
const MAX_OAUTH_TEXT_BYTES: usize = 4 << 10;
/// The largest `secret.max_uses`.
const MAX_USES: u64 = 1_000_000;

/// One secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSetting {
    /// The requests that get it.
    pub binding: Arc<SecretBinding>,
    /// The source of its value.
    pub source: SecretSource,
}

impl SecretSetting {
    /// The key of its source.
    pub(super) fn source_key(&self) -> &'static str {
        match self.source {
            SecretSource::File(_) => "secret.file",
            SecretSource::Environment(_) => "secret.env",
            SecretSource::Command { .. } => "secret.command",
            SecretSource::OAuth(_) => "secret.oauth.client_secret_file",
        }
    }
}

/// Adds secrets to those that are known. What they demand of other sections is left to [`Config::check_secrets`].
pub(super) fn parse_secrets(
    mut secrets: Vec<SecretSetting>,
    sections: Vec<file::Secret>,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<Vec<SecretSetting>, InvalidValueError> {
    let count = secrets.len() + sections.len();
    if count > MAX_SECRETS {
        return Err(invalid("secret")(&format_args!("is given {count} times, and at most {MAX_SECRETS}")));
    }
    for (nth, section) in sections.into_iter().enumerate() {
        let secret = parse_secret(section, &resolve).map_err(|error| error.at_occurrence(nth))?;
        let name = secret.binding.name();
        for other in &secrets {
            if other.binding.name() == name {
                return Err(at(nth, "secret.name")(&format_args!("is `{name}` in two tables")));
            }
            if other.binding.contradicts(&secret.binding) {
                return Err(at(nth, "secret.place")(&format_args!(
                    "is `{}` of requests that the secret `{}` may set too: give the two different requests, methods, tools \
                     or agents",
                    secret.binding.place(),
                    other.binding.name()
                )));
            }
            if other.binding.shares_variable(&secret.binding) {
                return Err(at(nth, "secret.placeholder_env")(&format_args!(
                    "is that of the secret `{}` too, for the same tool and agent: give the two different variables",
                    other.binding.name()
                )));
            }
        }
        secrets.push(secret);
    }
    Ok(secrets)
}

/// The error for a key of the nth secret.
fn at(nth: usize, key: &'static str) -> impl Fn(&dyn Display) -> InvalidValueError {
    move |reason| invalid(key)(reason).at_occurrence(nth)
}

fn parse_secret(
    section: file::Secret,
    resolve: &impl Fn(PathBuf) -> PathBuf,
) -> Result<SecretSetting, InvalidValueError> {
    fn each<T, E: Display>(
        key: &'static str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Vec<T>, InvalidValueError> {
        texts.iter().map(|text| parse(text).map_err(|error| invalid(key)(&error))).collect()
    }
    let source = parse_source(&section, resolve)?;
    let rule = |text: &str| {
        let declared = DeclaredRequest::parse(text).map_err(|error| error.to_string())?;
        RequestRule::from_declared(&declared).map_err(|error| error.to_string())
    };
    let agents = section.agents.map(|texts| each("secret.agents", &texts, AgentDid::parse)).transpose()?;
    if agents.as_ref().is_some_and(Vec::is_empty) {
        return Err(invalid("secret.agents")(
            &"is empty, so no agent could use it: remove the secret, or this line",
        ));
    }
    let place = SecretPlace::parse(&section.place).map_err(|error| invalid("secret.place")(&error))?;
    let rendering = Rendering::parse(section.scheme.as_deref(), &place);
    let name = SecretName::parse(&section.name).map_err(|error| invalid("secret.name")(&error))?;
    let placeholder = section.placeholder_env.map(|variable| Placeholder::new(&variable, name.clone()));
    let parts = SecretParts {
        name,
        tools: each("secret.tools", &section.tools, ToolRange::parse)?,
        agents: agents.map(|agents| agents.into_iter().collect()),
        requests: each("secret.requests", &section.requests, rule)?,
        place,
        rendering: rendering.map_err(|error| invalid("secret.scheme")(&error))?,
        max_uses: check_count("secret.max_uses", section.max_uses, 1, MAX_USES)?,
        keeps_cookies: section.keep_cookies,
        placeholder: placeholder.transpose().map_err(|error| invalid("secret.placeholder_env")(&error))?,
    };
    let binding = SecretBinding::new(parts).map_err(|error| {
        let key = match error {
            SecretBindingError::Tools => "secret.tools",
            SecretBindingError::Requests | SecretBindingError::Plain(_) => "secret.requests",
            SecretBindingError::Place => "secret.place",
            SecretBindingError::Scheme => "secret.scheme",
            SecretBindingError::Variable(_) => "secret.placeholder_env",
        };
        invalid(key)(&error)
    })?;
    Ok(SecretSetting { binding: Arc::new(binding), source })
}

fn parse_source(
    section: &file::Secret,
    resolve: &impl Fn(PathBuf) -> PathBuf,
) -> Result<SecretSource, InvalidValueError> {
    let seconds = section.refresh_seconds;
    let given =
        seconds.map(|seconds| check_seconds("secret.refresh_seconds", seconds, 86_400)).transpose()?;
    let source = match (&section.file, &section.env, &section.command, &section.oauth) {
        (Some(path), None, None, None) => SecretSource::File(resolve(path.clone())),
        (None, Some(variable), None, None) if !variable.is_empty() && !variable.contains(['=', '\0']) => {
            SecretSource::Environment(variable.clone())
        }
        (None, None, None, Some(oauth)) => SecretSource::OAuth(parse_oauth(oauth, resolve)?),
        (None, None, Some(command), None) => {
            let program = command.first().map(PathBuf::from).filter(|program| program.is_absolute());
            let Some(program) = program else {
                return Err(invalid("secret.command")(
                    &"has to be a list that begins with the absolute path of a program: no shell is used",
                ));
            };
            let arguments = command.iter().skip(1).cloned().collect();
            return Ok(SecretSource::Command {
                program,
                arguments,
                refresh: given.unwrap_or(DEFAULT_REFRESH),
            });
        }
        (_, _, _, _) => {
            return Err(invalid("secret.name")(
                &"needs exactly one source: `file`, `env` (the name of a variable), `command` or `oauth`",
            ));
        }
    };
    match given {
        None => Ok(source),
        Some(_) => Err(invalid("secret.refresh_seconds")(
            &"is for `command`: a file is read again when it is used, the environment never, and a token as its endpoint \
              says",
        )),
    }
}

fn parse_oauth(
    section: &file::OAuth,
    resolve: &impl Fn(PathBuf) -> PathBuf,
) -> Result<OAuthClient, InvalidValueError> {
    let file::OAuth { token_url, client_id, client_secret_file, scope, auth } = section;
    let url = TokenUrl::parse(token_url).map_err(|_| {
        invalid("secret.oauth.token_url")(
            &"has to be `https://` with a host and a path, such as `https://id.example.com/token`, and without a user",
        )
    })?;
    let check = |key, text: &str| {
        let is_text = (1..=MAX_OAUTH_TEXT_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
        let reason = format!("has to have 1 to {MAX_OAUTH_TEXT_BYTES} bytes without control characters");
        if is_text { Ok(text.to_owned()) } else { Err(invalid(key)(&reason)) }
    };
    Ok(OAuthClient {
        token_url: url,
        client_id: check("secret.oauth.client_id", client_id)?,
        client_secret_file: resolve(client_secret_file.clone()),
        scope: scope.as_ref().map(|text| check("secret.oauth.scope", text)).transpose()?,
        auth: match auth {
            file::ClientAuth::Basic => ClientAuth::Basic,
            file::ClientAuth::Body => ClientAuth::Body,
        },
    })
}

impl Config {
    /// Checks that the tools of secrets run in processes, and that their hosts can be reached.
    pub(super) fn check_secrets(&self) -> Result<(), InvalidValueError> {
        for (nth, SecretSetting { binding, source }) in self.secrets.iter().enumerate() {
            if self.isolation == Isolation::Inline {
                return Err(at(nth, "secret.tools")(
                    &"names tools that `executor.isolation` lets run inside the server, beside the value: let them run in \
                      processes",
                ));
            }
            let is_bound = |tool: &ToolName| binding.tools().iter().any(|range| range.matches(tool));
            if let Some(tool) = self.inline_tools.iter().find(|tool| is_bound(tool)) {
                return Err(at(nth, "secret.tools")(&format_args!(
                    "names `{tool}`, which `executor.inline_tools` lets run inside the server, beside the value: remove \
                     it there or here"
                )));
            }
            if !self.ceilings.network {
                return Err(at(nth, "secret.requests")(
                    &"needs a network, and `ceilings.network_allowed` allows none",
                ));
            }
            let is_allowed = |host: &HostPattern| {
                let own = self.ceilings.tool_hosts.iter().filter(|(tool, _)| is_bound(tool));
                let mut hosts = own.flat_map(|(_, hosts)| hosts);
                self.ceilings.hosts.allows(host)
                    || !self.ceilings.hosts.blocks(host) && hosts.any(|pattern| pattern.covers(host))
            };
            if let SecretSource::OAuth(OAuthClient { token_url, .. }) = source
                && let Some(address) = token_url.refused_address(&self.egress)
            {
                return Err(at(nth, "secret.oauth.token_url")(&format_args!(
                    "resolves to {}, which is not a public address: use another host, or list `{address}` in \
                     `network.allowed_addresses`",
                    address.ip()
                )));
            }
            let mut requests = binding.requests().iter();
            if let Some(rule) = requests.find(|rule| !is_allowed(&rule.host_pattern())) {
                return Err(at(nth, "secret.requests")(&format_args!(
                    "has `{rule}`, whose host neither `network.allowed_domains` nor the `network.tools` of its tools allow"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;

    const NETWORK: &str =
        "[ceilings]\nnetwork_allowed = true\n[network]\nallowed_domains = [\"api.example.com\"]\n";
    const SECRET: &str = "[[secret]]\nname = \"github\"\nfile = \"secrets/github\"\ntools = [\"github_*\"]\n\
                          requests = [\"GET https://api.example.com/repos/**\"]\nplace = \"header:authorization\"\n";

    #[test]
    fn a_secret_has_a_source_and_a_binding() {
        let config = parse(&format!("{NETWORK}{SECRET}scheme = \"Bearer\"\n")).unwrap();
        let [secret] = config.secrets.as_slice() else { unreachable!() };
        assert_eq!(secret.source.to_string(), "file /srv/a2g/secrets/github");
        assert_eq!(config.ceilings.secrets, std::slice::from_ref(&secret.binding));
        assert_eq!((secret.binding.max_uses(), secret.binding.keeps_cookies()), (100, true));
        assert_eq!(config.secrets_key().file_name().unwrap(), "secrets.key");
        let command = SECRET.replace("file = \"secrets/github\"", "command = [\"/bin/pass\", \"github\"]");
        let config = parse(&format!("{NETWORK}{command}refresh_seconds = 5\n")).unwrap();
        assert_eq!(config.secrets[0].source.to_string(), "command /bin/pass");
        let config = parse(&format!("{NETWORK}{}", oauth("https://id.example/token", ""))).unwrap();
        let source = &config.secrets[0].source;
        assert_eq!(source.to_string(), "token endpoint https://id.example:443");
        assert_eq!(source.path().unwrap().to_str(), Some("/srv/a2g/secrets/client"));
    }

    /// The secret with a token endpoint as its source.
    fn oauth(url: &str, more: &str) -> String {
        let source = format!(
            "oauth = {{ token_url = \"{url}\", client_id = \"a2g\", client_secret_file = \"secrets/client\"{more} }}"
        );
        SECRET.replace("file = \"secrets/github\"", &source)
    }

    #[test]
    fn a_secret_that_cannot_be_kept_is_refused() {
        let other = SECRET.replace("\"github\"", "\"other\"");
        let elsewhere = other.replace("header:authorization", "query:key");
        for (text, words) in [
            (format!("{NETWORK}{SECRET}{SECRET}"), "`secret.name` is `github` in two tables"),
            (format!("{NETWORK}{SECRET}{other}"), "that the secret `github` may set too"),
            (
                format!("{NETWORK}{SECRET}placeholder_env = \"KEY\"\n{elsewhere}placeholder_env = \"KEY\"\n"),
                "is that of the secret `github` too",
            ),
            (format!("{NETWORK}{SECRET}placeholder_env = \"A2G_FOLDERS\"\n"), "`secret.placeholder_env`"),
            (SECRET.to_owned(), "`ceilings.network_allowed` allows none"),
            (
                format!("{NETWORK}{SECRET}").replace("api.example.com\"]", "other.example\"]"),
                "`network.allowed_domains`",
            ),
            (format!("{NETWORK}{SECRET}").replace("GET https://", "GET http://"), "is not over `https`"),
            (format!("{NETWORK}{SECRET}env = \"X\"\n"), "needs exactly one source"),
            (format!("{NETWORK}{SECRET}refresh_seconds = 5\n"), "is for `command`"),
            (format!("{NETWORK}{SECRET}agents = []\n"), "no agent could use it"),
            (format!("{NETWORK}{SECRET}max_uses = 0\n"), "`secret.max_uses`"),
            (format!("{NETWORK}{SECRET}scheme = \"a b\"\n"), "`secret.scheme`"),
            (format!("{NETWORK}{SECRET}").replace("header:authorization", "header:host"), "`secret.place`"),
            (format!("{NETWORK}{SECRET}").replace("github_*", "git*hub"), "`secret.tools`"),
            (
                format!("{NETWORK}{SECRET}").replace("file = \"secrets/github\"", "command = [\"pass\"]"),
                "absolute path",
            ),
            (format!("{NETWORK}{}", oauth("http://id.example/token", "")), "`secret.oauth.token_url`"),
            (format!("{NETWORK}{}", oauth("https://127.0.0.1/token", "")), "`network.allowed_addresses`"),
            (format!("{NETWORK}{}", oauth("https://id.example", ", scope = \"\"")), "`secret.oauth.scope`"),
            (format!("{NETWORK}{}", oauth("https://id.example", ", auth = \"none\"")), "`none`"),
            (
                format!("{NETWORK}{SECRET}[executor]\ninline_tools = [\"github_list\"]\n"),
                "`executor.inline_tools` lets run inside the server",
            ),
            (format!("{NETWORK}{SECRET}[executor]\nisolation = \"inline\"\n"), "`executor.isolation`"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
