//! `mcp`: one agent host, over standard input and output, with governor, journal and catalogue in this process or in a
//! running server.

use super::UsageError;
use super::arguments::{ListingForm, Mcp, McpHost, Setup};
use super::doors::StdioDoor;
use super::output::{note, print};
use super::serve::{self, Launch, MAX_JOURNALS, Transport};
use super::setup::{config, take_authority};
use a2g_capability::{Area, Glob};
use a2g_config::Config;
use a2g_core::catalog::ToolManifest;
use a2g_door_mcp::{RemoteServer, proxy_mcp_stdio};
use a2g_govern::Granter;
use a2g_govern::local::PolicySet;
use a2g_journal::IfMissing;
use a2g_sandbox::egress::client_config;
use a2g_types::call::Door;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::ToolName;
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{NetworkRule, Policy, ResourceRule, ToolRule};
use a2g_wire::listing::Listing;
use anyhow::{Context as _, bail};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn main(arguments: Mcp) -> anyhow::Result<ExitCode> {
    if let Some(host) = arguments.print_config {
        print(host_config(host, &arguments)?);
        if is_in_container() {
            note(CONTAINER_NOTE);
        }
        return Ok(ExitCode::SUCCESS);
    }
    super::log::start_logging("warn");
    if let Some(url) = &arguments.connect {
        return connect(url, &arguments);
    }
    let authority = take_authority()?;
    let (mut config, policies) = match &arguments.config {
        Some(path) => {
            let setup = Setup { config: Some(path.clone()), tools: arguments.tools.clone() };
            (config(&setup)?, None)
        }
        None => {
            let (config, policies) = configure(&arguments)?;
            (config, Some(policies))
        }
    };
    if let Some((settings, form)) = config.doors.mcp.as_mut().zip(arguments.listing) {
        settings.listing = listing(form);
    }
    let door =
        StdioDoor::of(Door::Mcp, &config).context("`doors.mcp.enabled` is false in the configuration")?;
    // A host may start this command once per window: each process then writes a journal of its own.
    let names_no_journal = arguments.config.is_none() && arguments.journal.is_none();
    let launch = Launch {
        transport: Transport::Stdio(door),
        accept_unsigned: None,
        if_missing: IfMissing::Create,
        policies,
        max_journals: if names_no_journal { MAX_JOURNALS } else { 1 },
    };
    serve::run(&config, Granter::new(authority), launch)
}

fn listing(form: ListingForm) -> Listing {
    match form {
        ListingForm::Tools => Listing::Tools,
        ListingForm::Code => Listing::Code,
    }
}

/// Forwards the host's messages to a running server.
fn connect(url: &str, arguments: &Mcp) -> anyhow::Result<ExitCode> {
    let server = remote_server(url, arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(proxy_mcp_stdio(server));
    // Standard input may be read on a thread of its own, which ends with the process.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS).context("standard input or output failed")
}

fn remote_server(url: &str, arguments: &Mcp) -> Result<RemoteServer, UsageError> {
    let tls = client_config(arguments.ca_file.as_deref())
        .map_err(|error| UsageError(format!("`--ca-file`: {}", ErrorChain(&error))))?;
    RemoteServer::new(url, arguments.token_file.clone(), tls).map_err(|error| UsageError(error.to_string()))
}

/// The configuration and the policies of a process without a configuration file.
fn configure(arguments: &Mcp) -> anyhow::Result<(Config, PolicySet)> {
    let catalog = arguments.tools.clone().map_or_else(find_tools, Ok)?;
    if !catalog.is_dir() {
        bail!(UsageError(format!("`--tools` is `{}`, which is not a folder", catalog.display())));
    }
    let folders = scope_folders(arguments)?;
    let scopes = folders.iter().map(|folder| scope_pattern(folder)).collect::<Result<Vec<_>, _>>()?;
    let catalog_path = catalog.to_str().context("the path of the tools is not UTF-8")?;
    let journal = arguments
        .journal
        .as_ref()
        .map(|path| path.to_str().context("`--journal` is not UTF-8"))
        .transpose()?;
    // A JSON string without control characters is a basic string of TOML.
    let text = |scopes: &[String]| {
        let journal = journal.map_or_else(String::new, |path| format!("[journal]\npath = {}\n", json!(path)));
        format!(
            "{journal}[catalog]\ntools = {}\n[ceilings]\nfilesystem_scope = {}\nread_only = {}\n\
             network_allowed = false\n",
            json!(catalog_path),
            json!(scopes),
            arguments.read_only
        )
    };
    let parse = |text: &str| Config::parse(text, Path::new("the command line"), Path::new("."));
    if let Some(inside) = folders.iter().find(|folder| folder.starts_with(resolve(&catalog))) {
        bail!(UsageError(format!(
            "`--scope`: `{}` is inside the folder of tools, which tools must not be able to change",
            inside.display()
        )));
    }
    check_scope(&folders, &parse(&text(&[]))?)?;
    let mut blocked = if arguments.with_secrets { Vec::new() } else { blocked_secrets(&folders)? };
    blocked.extend(own_files(&catalog, &folders)?);
    Ok((parse(&text(&scopes))?, policies(&catalog, &scopes, &blocked)?))
}

/// Checks that no folder of the scope contains the journal, the cache, or another folder of the scope.
fn check_scope(folders: &[PathBuf], config: &Config) -> Result<(), UsageError> {
    let own = [
        ("the journal", &config.journal),
        ("the cache of compiled tools", &config.cache),
        ("the accepted definitions of tools", &config.definitions),
    ];
    for folder in folders {
        let shown = folder.display();
        if let Some((what, path)) = own.iter().find(|(_, path)| resolve(path).starts_with(folder)) {
            return Err(UsageError(format!(
                "`--scope`: tools may not use `{shown}`, because it contains {what} (`{}`), which tools must not be \
                 able to change: name a folder below `{shown}`, such as that of your project, by `--scope` or as the \
                 current folder",
                path.display()
            )));
        }
        if let Some(inner) = folders.iter().find(|other| *other != folder && other.starts_with(folder)) {
            return Err(UsageError(format!(
                "`--scope`: `{}` is inside `{shown}`: name one of the two",
                inner.display()
            )));
        }
    }
    Ok(())
}

/// A path with its links resolved, as far as it exists.
fn resolve(path: &Path) -> PathBuf {
    let known =
        path.ancestors().find_map(|known| Some((known.canonicalize().ok()?, path.strip_prefix(known).ok()?)));
    // Without a rest, `join` would add a slash.
    known.map_or_else(|| path.to_owned(), |(known, rest)| known.join(rest).components().collect())
}

/// The folder of tools that was installed with this program.
fn find_tools() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("this program cannot find its own file")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = [
        "tools",
        "../tools",
        "../share/a2g-executor/tools",
        // An unpacked wheel, to which uv links with `link-mode = "symlink"`.
        "../data/share/a2g-executor/tools",
    ]
    .map(|tools| folder.join(tools));
    match candidates.iter().find(|tools| tools.is_dir()) {
        Some(tools) => Ok(tools.canonicalize()?),
        None => bail!(UsageError(format!(
            "the tools that belong to this program are not beside it (`{}` and `{}` are missing): install the package \
             again that it came from (`uv tool install --force`, `pipx reinstall`, `npm install`, `apt-get install \
             --reinstall`), or name a folder of tools with `--tools`",
            folder.join("tools").display(),
            folder.parent().unwrap_or(Path::new("/")).join("share/a2g-executor/tools").display(),
        ))),
    }
}

/// The name of the packages for Python and npm.
const PACKAGE: &str = "a2g-executor";

/// The names under which secrets are usually kept, as patterns of `blocked_paths`. Templates such as `.env.example` are
/// not among them.
const SECRETS: [&str; 19] = [
    ".env",
    ".env.local",
    ".env.*.local",
    ".env.{development,production,staging,test}",
    ".envrc",
    ".ssh",
    ".aws",
    ".gnupg",
    ".kube",
    ".azure",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".vault-token",
    "id_rsa",
    "id_{dsa,ecdsa}",
    "id_ed25519",
];

/// The patterns of [`SECRETS`] that tools may not use. A folder that was named, such as `~/.ssh`, may be used; in the
/// other folders the pattern stays blocked.
fn blocked_secrets(folders: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut blocked = Vec::new();
    for pattern in SECRETS {
        let globs = Glob::parse_blocking(pattern)?;
        let is_named = |folder: &Path| {
            folder.to_str().is_some_and(|path| globs.iter().any(|glob| glob.matches_at_or_above(path)))
        };
        if folders.iter().any(|folder| is_named(folder)) {
            let others = folders.iter().filter(|folder| !is_named(folder));
            for folder in others {
                blocked.push(format!("{}/**/{pattern}", literal_pattern(folder)?));
            }
        } else {
            blocked.push(pattern.to_owned());
        }
    }
    Ok(blocked)
}

/// The folders that tools may use.
fn scope_folders(arguments: &Mcp) -> anyhow::Result<Vec<PathBuf>> {
    let folders = match arguments.scope.as_slice() {
        [] => &[PathBuf::from(".")],
        folders => folders,
    };
    let resolved = folders.iter().map(|folder| {
        let path = folder.canonicalize().map_err(|error| {
            UsageError(format!(
                "`--scope` names `{}`, which cannot be used: create the folder, or correct the path ({error})",
                folder.display()
            ))
        })?;
        if !path.is_dir() || path == Path::new("/") {
            bail!(UsageError(format!("`--scope` needs a folder below `/`, not `{}`", path.display())));
        }
        Ok(path)
    });
    Ok(resolved.collect::<anyhow::Result<BTreeSet<_>>>()?.into_iter().collect())
}

/// The patterns of this program and of its tools, if they are in the scope, as with `npm install` in a project: tools must
/// not be able to change them.
fn own_files(catalog: &Path, folders: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("this program cannot find its own file")?;
    let mut own = vec![program.clone(), resolve(catalog)];
    // The package of the program for npm, and the one beside it, whose launcher the host starts.
    let package = program.ancestors().nth(2);
    let has_name =
        |package: &&Path| package.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PACKAGE));
    if let Some(package) = package.filter(has_name) {
        own.push(package.to_owned());
        own.push(package.with_file_name(PACKAGE));
    }
    let is_in_scope = |path: &&PathBuf| folders.iter().any(|folder| path.starts_with(folder));
    own.iter().filter(is_in_scope).map(|path| literal_pattern(path)).collect()
}

/// The pattern that matches only this path.
fn literal_pattern(path: &Path) -> anyhow::Result<String> {
    let path = path.to_str().with_context(|| format!("the path `{}` is not UTF-8", path.display()))?;
    Ok(path.chars().fold(String::new(), |mut escaped, c| {
        if "*?[]{}\\".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    }))
}

/// The pattern of a folder's files. A guest sees them under their host paths.
fn scope_pattern(folder: &Path) -> anyhow::Result<String> {
    let pattern = format!("{}/**", literal_pattern(folder)?);
    Area::parse(&pattern).map_err(|error| UsageError(format!("`--scope`: {error}")))?;
    Ok(pattern)
}

/// A policy that allows every tool of the catalogue on these files, except those that declare the network.
fn policies(catalog: &Path, scopes: &[String], blocked: &[String]) -> anyhow::Result<PolicySet> {
    let rule = |name: &ToolName| {
        let manifest = ToolManifest::read(&catalog.join(name.as_str()).join("tool.toml"));
        let declared = manifest.map(|manifest| manifest.capabilities).unwrap_or_default();
        ToolRule {
            allowed: !declared.network,
            paths: Some(scopes.to_vec()),
            blocked_paths: blocked.to_vec(),
            // The arguments of a program do not name the files that its code names.
            grants_all_paths: declared.calls == CallTargets::All,
            ..ToolRule::default()
        }
    };
    let entries = std::fs::read_dir(catalog)
        .with_context(|| format!("the tools in `{}` cannot be read", catalog.display()))?;
    let names = entries.filter_map(|entry| ToolName::parse(entry.ok()?.file_name().to_str()?).ok());
    let policy = Policy {
        agent: None,
        version: "1".to_owned(),
        tools: names.map(|name| (name.clone(), rule(&name))).collect::<BTreeMap<_, _>>(),
        network: NetworkRule { allowed_domains: Some(Vec::new()), ..NetworkRule::default() },
        resources: ResourceRule::default(),
        constitution_hash: None,
    };
    Ok(PolicySet::of_mcp_command(policy)?)
}

/// The text to paste into a host's configuration, or the command to run.
fn host_config(host: McpHost, arguments: &Mcp) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("this program cannot find its own file")?;
    let mut line = program_words(&program)?;
    line.extend(command_words(arguments)?);
    let (program, words) = line.split_first().context("a command line has a program")?;
    let server = json!({ "command": program, "args": words });
    let pretty = |value: &serde_json::Value| serde_json::to_string_pretty(value).unwrap_or_default();
    Ok(match host {
        McpHost::ClaudeCode => {
            let words = line.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
            format!("claude mcp add a2g -- {words}")
        }
        McpHost::ClaudeDesktop | McpHost::Cursor | McpHost::Gemini => {
            pretty(&json!({ "mcpServers": { "a2g": server } }))
        }
        McpHost::Vscode => {
            let server = json!({ "type": "stdio", "command": program, "args": words });
            pretty(&json!({ "servers": { "a2g": server } }))
        }
        McpHost::Zed => pretty(&json!({ "context_servers": { "a2g": server } })),
        McpHost::OpenCode => {
            let server = json!({ "type": "local", "command": line, "enabled": true });
            pretty(&json!({ "mcp": { "a2g": server } }))
        }
        // A JSON string without control characters is a basic string of TOML.
        McpHost::Codex => format!("[mcp_servers.a2g]\ncommand = {}\nargs = {}", json!(program), json!(words)),
    })
}

/// The note beside a configuration that is printed in a container.
const CONTAINER_NOTE: &str = "note: these paths are those inside of this container. A host outside of it starts the \
                              container instead: docs/install.md, section Container, has the line (`podman run -i … mcp \
                              --scope /workspace`)";

/// `true` if this program runs in a container, as far as the container's engine says so.
fn is_in_container() -> bool {
    // Of Docker, and of podman.
    let has_mark = ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists());
    // Of podman, and of systemd's containers.
    has_mark || std::env::var_os("container").is_some_and(|engine| !engine.is_empty())
}

/// The words with which a host starts this program: its path, or those that started it if its folder does not last.
///
/// `npx` and `uvx` keep a package in a folder of their caches, and remove the folder when they want. Only the path of the
/// program tells this reliably: the variables that both set (`npm_command`, `UV`) are inherited by every program
/// below them, also by an installed one, and no launcher has to do anything for it.
fn program_words(program: &Path) -> anyhow::Result<Vec<String>> {
    let path = program.to_str().context("this program's path is not UTF-8")?;
    let folders = || path.split('/');
    // Such as `~/.npm/_npx/HASH/node_modules/…`, `~/.cache/uv/archive-v0/HASH/bin/…` and, of older versions of uv,
    // `~/.cache/uv/environments-v2/…`.
    let is_of_uv = |name: &str| {
        let version = ["archive-v", "environments-v", "builds-v"].iter().find_map(|of| name.strip_prefix(of));
        version
            .is_some_and(|version| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let words: &[&str] = if folders().any(|name| name == "_npx") {
        &["npx", "-y", PACKAGE]
    } else if folders().any(is_of_uv) {
        &["uvx", PACKAGE]
    } else {
        return Ok(vec![path.to_owned()]);
    };
    Ok(words.iter().map(|word| (*word).to_owned()).collect())
}

/// The arguments with which a host starts this command, with absolute paths: a host has a working folder of its own.
fn command_words(arguments: &Mcp) -> anyhow::Result<Vec<String>> {
    let mut words = vec!["mcp".to_owned()];
    let mut add = |option: &str, path: &Path| -> anyhow::Result<()> {
        let path = std::path::absolute(path)?;
        words.extend([option.to_owned(), path.to_str().context("a path is not UTF-8")?.to_owned()]);
        Ok(())
    };
    if let Some(url) = &arguments.connect {
        // A configuration that would not start is not printed.
        remote_server(url, arguments)?;
        if let Some(token) = &arguments.token_file {
            add("--token-file", token)?;
        }
        if let Some(certificates) = &arguments.ca_file {
            add("--ca-file", certificates)?;
        }
        words.extend(["--connect".to_owned(), url.clone()]);
        return Ok(words);
    }
    if let Some(config) = &arguments.config {
        add("--config", config)?;
    }
    if let Some(tools) = &arguments.tools {
        add("--tools", tools)?;
    }
    if let Some(journal) = &arguments.journal {
        add("--journal", journal)?;
    }
    if arguments.config.is_none() {
        configure(arguments)?;
        let here = [PathBuf::from(".")];
        let folders = if arguments.scope.is_empty() { here.as_slice() } else { &arguments.scope };
        for folder in folders {
            let folder = folder.canonicalize().with_context(|| format!("`{}`", folder.display()))?;
            add("--scope", &folder)?;
        }
    }
    if arguments.read_only {
        words.push("--read-only".to_owned());
    }
    if arguments.with_secrets {
        words.push("--with-secrets".to_owned());
    }
    if let Some(form) = arguments.listing {
        words.extend(["--listing".to_owned(), listing(form).as_str().to_owned()]);
    }
    Ok(words)
}

/// Quotes a word for a POSIX shell, if necessary.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_cache_is_started_by_what_put_it_there() {
        let npx = &["npx", "-y", "a2g-executor"][..];
        let uvx = &["uvx", "a2g-executor"][..];
        let own: &[&str] = &[];
        for (path, words) in [
            ("/home/a/.npm/_npx/3f2a/node_modules/a2g-executor-linux-x64/bin/a2g-executor", npx),
            ("/root/.cache/uv/archive-v0/Bf3_x/bin/a2g-executor", uvx),
            ("/tmp/cache/environments-v2/a2g-executor-12ab/bin/a2g-executor", uvx),
            ("/home/a/.cache/uv/builds-v0/.tmpX/bin/a2g-executor", uvx),
            ("/usr/lib/node_modules/a2g-executor/node_modules/a2g-executor-linux-x64/bin/a2g-executor", own),
            ("/home/a/.local/share/uv/tools/a2g-executor/bin/a2g-executor", own),
            ("/home/a/.local/pipx/venvs/a2g-executor/bin/a2g-executor", own),
            ("/usr/bin/a2g-executor", own),
            ("/srv/archive-video/archive-v/npx/a2g-executor", own),
        ] {
            let expected = if words.is_empty() { vec![path] } else { words.to_vec() };
            assert_eq!(program_words(Path::new(path)).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn the_patterns_of_secrets_can_be_blocked_and_what_is_named_is_not() {
        let blocked = |folder: &str| blocked_secrets(&[PathBuf::from(folder)]).unwrap();
        assert_eq!(blocked("/home/a/project"), SECRETS);
        let two = ["/home/a/project", "/home/a/.ssh/project"].map(PathBuf::from);
        assert!(blocked_secrets(&two).unwrap().contains(&"/home/a/project/**/.ssh".to_owned()));
        for (folder, pattern) in [("/home/a/.ssh", ".ssh"), ("/home/a/.aws/sso", ".aws"), ("/w/.env", ".env")]
        {
            assert!(!blocked(folder).iter().any(|other| other == pattern), "{folder}");
            assert_eq!(blocked(folder).len(), SECRETS.len() - 1, "{folder}");
        }
    }
}
