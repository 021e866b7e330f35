//! `tool allow`: lets one tool reach one host over HTTPS, at all places that have to allow it.
//!
//! | file | change |
//! |---|---|
//! | `tool.toml` | `capabilities.network = true` |
//! | configuration | `ceilings.network_allowed = true`, and the host in `network.tools.NAME` |
//! | policy | `capabilities.tools.NAME.allowed`, and the host in `capabilities.network.allowed_domains` |
//!
//! Only the list in `network.tools` is the tool's own. The others are for several tools, so the command
//! refuses changes with which another one would reach a host that it does not reach now.

mod policies;

use crate::approve::catalogue_options;
use crate::arguments::AllowOptions;
use crate::edit::{EditedFile, folder_of, toml, write_all};
use a2g_capability::{Ceilings, Host, HostPattern};
use a2g_command::UsageError;
use a2g_command::layout::wrap;
use a2g_command::output::{list, one_line, print};
use a2g_command::setup::{Setup, config, file, recorded_definitions};
use a2g_config::{Config, DEFAULT_FILE};
use a2g_core::catalog::ToolManifest;
use a2g_types::ident::{ToolName, did_you_mean};
use anyhow::{Context as _, bail};
use policies::Policies;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

/// The line width of this command's messages. Paths and commands to copy are not wrapped.
const MAX_COLUMNS: usize = 80;

/// Prints the changes that let a tool reach a host, and makes them if that is asked for.
pub(crate) fn allow(setup: &Setup, options: &AllowOptions) -> anyhow::Result<ExitCode> {
    let name = ToolName::parse(&options.name)?;
    let origin = Origin::parse(&options.url)?;
    let _lock = options.write.then(|| lock(folder_of(config_path(setup)))).transpose()?;
    let config = config(setup)?;
    origin.check_reachable(&config)?;
    let tools = read_manifests(&config);
    let Some(manifest) = tools.iter().find(|manifest| manifest.name == name) else {
        bail!(
            "there is no tool `{name}` in `{}`{}: `tool list` lists the tools",
            config.catalog.display(),
            did_you_mean(name.as_str(), tools.iter().map(|manifest| manifest.name.as_str()))
        );
    };
    let mut policies = Policies::read(&config, options, config_path(setup))?;
    let tool_file = change_manifest(manifest, &config)?;
    let mut config_file = EditedFile::read(config_path(setup))?;
    policies.change(&name, &origin.pattern(), options.agent.as_deref(), &mut config_file)?;
    let reached = change_config(&mut config_file, &config, manifest, &origin.pattern(), &policies)?;
    check_config(&config_file)?;
    check_others(&tools, &name, &config, &origin.pattern(), &policies)?;
    // The policy is the last: the others let no other tool reach a host if the command ends before it.
    let changed = [Some(&tool_file), Some(&config_file), policies.changed_file()];
    let files = changed.into_iter().flatten().filter(|file| file.is_changed()).collect::<Vec<_>>();
    let accepted = recorded_definitions(&config).accepted(&name)?;
    if options.write {
        write_all(&files)?;
    }
    show(&files, &name, &origin.pattern(), options.write);
    say(format_args!("`{name}` may reach no other host than {}.", list(&reached)));
    policies.advise(&name);
    let needs_approval = accepted.is_some_and(|definition| !definition.capabilities.network);
    if needs_approval {
        say("Then accept that the tool asks for the network, which it did not before:");
        print(format_args!("  a2g-executor tool approve {name}{}", catalogue_options(setup)));
    }
    if files.iter().any(|file| file.path() != tool_file.path()) {
        say(
            "Then restart the server, and a governor in a process of its own: they read the configuration and the \
             policies only at their start.",
        );
    } else if needs_approval || tool_file.is_changed() {
        say("Then send the server a SIGHUP, or restart it: it reads its tools again.");
    }
    if !files.is_empty() && !options.write {
        say("Nothing was written: `--write` makes these changes.");
    }
    Ok(ExitCode::SUCCESS)
}

/// The host of the command line, with its port.
struct Origin {
    host: Host,
    port: u16,
}

impl Origin {
    fn parse(url: &str) -> Result<Self, UsageError> {
        let refused = |reason: &str| UsageError(format!("`{}` {reason}", one_line(url)));
        let authority = match url.split_once("://") {
            Some((scheme, authority)) if scheme.eq_ignore_ascii_case("https") => authority,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => {
                return Err(refused(
                    "is plain http, which everybody on the way can read and change: name the host with `https://`",
                ));
            }
            Some(_) => return Err(refused("is not `https://HOST` or `https://HOST:PORT`")),
            None => return Err(refused("has no scheme: name the host with `https://` before it")),
        };
        if authority.contains('*') {
            return Err(refused(
                "is a wildcard, and a tool gets one host at a time: name it in full, or write the wildcard to \
                 `network.tools` and to the policy by hand",
            ));
        }
        let named = authority.strip_suffix('/').unwrap_or(authority);
        if named.contains(['/', '?', '#']) {
            return Err(refused("has a path, and a host is allowed as a whole: name the host alone"));
        }
        match HostPattern::parse(&format!("https://{named}")) {
            Ok(HostPattern::Https(host, port)) => Ok(Self { host, port }),
            Ok(HostPattern::EveryName | HostPattern::Below(_) | HostPattern::Exactly(_)) | Err(_) => {
                Err(refused("names no host in its usual form, such as `https://api.example.com`"))
            }
        }
    }

    fn pattern(&self) -> HostPattern {
        HostPattern::Https(self.host.clone(), self.port)
    }

    /// As [`check_reachable`].
    fn check_reachable(&self, config: &Config) -> Result<(), UsageError> {
        check_reachable(&self.pattern(), &self.host, self.port, config)
    }
}

/// Refuses a host that no run can reach, whatever the lists of allowed hosts have.
pub(crate) fn check_reachable(
    pattern: &HostPattern,
    host: &Host,
    port: u16,
    config: &Config,
) -> Result<(), UsageError> {
    if let Some(address) = config.egress.refused_address(host, port) {
        let by_name = match host {
            Host::Address(_) => String::new(),
            Host::Name(_) => format!("has the address {} by `network.hosts`, and ", address.ip()),
        };
        return Err(UsageError(format!(
            "`{pattern}` {by_name}is not public, and no run connects to such an address: if it is a service of your own, \
             add \"{address}\" to `network.allowed_addresses` of the configuration first"
        )));
    }
    if config.ceilings.hosts.blocks(pattern) {
        return Err(UsageError(format!(
            "`network.blocked_domains` of the configuration blocks `{pattern}`, and blocked hosts win: remove the \
             entry first"
        )));
    }
    Ok(())
}

/// The configuration file, which need not exist.
pub(crate) fn config_path(setup: &Setup) -> &Path {
    file(setup).unwrap_or(Path::new(DEFAULT_FILE))
}

/// Waits until no other command changes the files of a configuration in this folder. The folder is locked, as
/// each change replaces the files.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let locked = File::open(folder).and_then(|file| {
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    });
    locked.with_context(|| format!("`{}` cannot be locked", folder.display()))
}

/// The manifests of the catalogue, by name. A tool that cannot be read is left out: it cannot run either.
fn read_manifests(config: &Config) -> Vec<ToolManifest> {
    let entries = std::fs::read_dir(&config.catalog).into_iter().flatten().flatten();
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let manifest = ToolManifest::read(&entry.path().join("tool.toml")).ok()?;
        (name.to_str() == Some(manifest.name.as_str())).then_some(manifest)
    };
    let mut manifests = entries.filter_map(read).collect::<Vec<_>>();
    manifests.sort_by(|one, other| one.name.cmp(&other.name));
    manifests
}

/// Lets the tool ask for the network.
fn change_manifest(manifest: &ToolManifest, config: &Config) -> anyhow::Result<EditedFile> {
    let name = &manifest.name;
    let path = config.catalog.join(name.as_str()).join("tool.toml");
    let mut file = EditedFile::read(&path)?;
    if manifest.capabilities.network {
        return Ok(file);
    }
    if config.signers.is_some() {
        bail!(
            "the `tool.toml` of `{name}` asks for no network, and its signature (`[catalog.trust]`) covers that: its author \
             has to set `network = true` and to sign it again (`a2g-executor tool sign`)"
        );
    }
    let set = |text: &str| toml::set(text, &["capabilities", "network"], "true");
    file.change("set `network = true` in `[capabilities]`", set)?;
    Ok(file)
}

/// Turns the network on, and adds the host to those of the tool. Returns all hosts that the tool then
/// reaches.
fn change_config(
    file: &mut EditedFile,
    config: &Config,
    manifest: &ToolManifest,
    origin: &HostPattern,
    policies: &Policies,
) -> anyhow::Result<Vec<HostPattern>> {
    let Ceilings { network: is_on, hosts, tool_hosts, .. } = &config.ceilings;
    if !is_on {
        let set = |text: &str| toml::set(text, &["ceilings", "network_allowed"], "true");
        file.change("set `network_allowed = true` in `[ceilings]`", set)?;
    }
    let own = tool_hosts.get(&manifest.name).map(Vec::as_slice);
    // A tool with a list of its own no longer has that of all tools, so what it reaches now is copied. One
    // without the network reaches none of these.
    let had_network = *is_on && manifest.capabilities.network && policies.had_network(&manifest.name);
    let shared = hosts.allowed.as_deref().filter(|_| had_network);
    let mut reached = own.or(shared).unwrap_or_default().to_vec();
    if reached.iter().any(|pattern| pattern.covers(origin)) {
        return Ok(reached);
    }
    reached.push(origin.clone());
    let key = ["network", "tools", manifest.name.as_str()];
    let text_of = |pattern: &HostPattern| toml::string(&pattern.to_string());
    let what = format!("add \"{origin}\" to `{}` in `[network.tools]`", manifest.name);
    match own {
        Some(_) => file.change(&what, |text| toml::push(text, &key, &text_of(origin)))?,
        None => {
            let all = format!("[{}]", list(reached.iter().map(text_of)));
            file.change(&what, |text| toml::set(text, &key, &all))?;
        }
    }
    Ok(reached)
}

/// Checks the changed configuration as a server does at its start.
fn check_config(file: &EditedFile) -> anyhow::Result<()> {
    Config::parse(file.text(), file.path(), folder_of(file.path()))?;
    Ok(())
}

/// Refuses changes that would turn the network on for other tools, or let them reach the host: the switch of
/// the ceilings, and the list of a policy, are for all of them.
fn check_others(
    tools: &[ToolManifest],
    name: &ToolName,
    config: &Config,
    origin: &HostPattern,
    policies: &Policies,
) -> anyhow::Result<()> {
    let gain = |tool: &ToolManifest| {
        let ceilings = config.ceilings.for_tool(&tool.name);
        let hosts = ceilings.hosts.allowed.as_deref().unwrap_or_default();
        let gained: &[HostPattern] = if policies.turns_on(&tool.name, config.ceilings.network) {
            hosts
        } else if policies.adds_host_for(&tool.name) && hosts.iter().any(|pattern| pattern.covers(origin)) {
            std::slice::from_ref(origin)
        } else {
            &[]
        };
        let is_gain = tool.name != *name && tool.capabilities.network && !gained.is_empty();
        is_gain.then(|| format!("`{}` ({})", tool.name, list(gained)))
    };
    let gains = tools.iter().filter_map(gain).collect::<Vec<_>>();
    if gains.is_empty() {
        return Ok(());
    }
    bail!(
        "these changes would also let other tools reach hosts: {}. First list the hosts of each in `[network.tools]` of \
         the configuration, such as `NAME = []` for none, or make the changes by hand if they may reach these",
        gains.join(", ")
    );
}

/// Prints the changed lines of each file.
fn show(files: &[&EditedFile], name: &ToolName, origin: &HostPattern, is_written: bool) {
    if files.is_empty() {
        say(format_args!("Nothing is to change: `{name}` may reach {origin}."));
        return;
    }
    let verb = if is_written { "were made" } else { "are needed" };
    say(format_args!("These changes {verb}, so that `{name}` may reach {origin}:"));
    for file in files {
        let remark = if file.is_new() { " (new)" } else { "" };
        print(format_args!("\n{}{remark}", one_line(file.path().display())));
        file.lines().iter().for_each(print);
    }
    print("");
}

fn say(text: impl std::fmt::Display) {
    print(wrap("", &text.to_string(), MAX_COLUMNS));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_over_https_is_accepted() {
        for (url, pattern) in [
            ("https://API.example.com", "https://api.example.com"),
            ("HTTPS://api.example.com/", "https://api.example.com"),
            ("https://api.example.com:8443", "https://api.example.com:8443"),
            ("https://93.184.216.34", "https://93.184.216.34"),
        ] {
            let origin = Origin::parse(url).unwrap();
            assert_eq!(origin.pattern().to_string(), pattern, "{url}");
        }
        for (url, words) in [
            ("http://api.example.com", "is plain http"),
            ("api.example.com", "has no scheme"),
            ("ftp://api.example.com", "is not `https://HOST`"),
            ("https://*.example.com", "is a wildcard"),
            ("https://api.example.com/v1", "has a path"),
            ("https://api.example.com?x=1", "has a path"),
            ("https://user@api.example.com", "names no host"),
            ("https://127.1", "names no host"),
            ("https://api.example.com:0", "names no host"),
            ("https://", "names no host"),
        ] {
            let error = Origin::parse(url).err().unwrap().to_string();
            assert!(error.contains(words) && error.starts_with(&format!("`{url}` ")), "{url}: {error}");
        }
    }

    #[test]
    fn an_address_that_is_not_public_is_refused() {
        let check = |url: &str, text: &str| {
            let config = Config::parse(text, Path::new("executor.toml"), Path::new("/srv/a2g")).unwrap();
            Origin::parse(url).unwrap().check_reachable(&config).map_err(|error| error.to_string())
        };
        for url in ["https://10.1.2.3", "https://127.0.0.1:8443", "https://169.254.169.254", "https://[::1]"]
        {
            assert!(check(url, "").unwrap_err().contains("`network.allowed_addresses`"), "{url}");
        }
        let hosts = "[network.hosts]\n\"db.example\" = [\"10.1.2.3\"]\n";
        let error = check("https://db.example:5443", hosts).unwrap_err();
        assert!(error.contains("has the address 10.1.2.3 by `network.hosts`"), "{error}");
        assert!(error.contains("\"10.1.2.3:5443\""), "{error}");
        let lifted = format!("[network]\nallowed_addresses = [\"10.1.2.3:5443\"]\n{hosts}");
        assert_eq!(check("https://db.example:5443", &lifted), Ok(()));
        let blocked = "[network]\nblocked_domains = [\"*.example.com\"]\n";
        let error = check("https://api.example.com", blocked).unwrap_err();
        assert!(error.contains("`network.blocked_domains`"), "{error}");
        assert_eq!(check("https://93.184.216.34", blocked), Ok(()));
    }
}
