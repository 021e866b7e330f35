//! `mcp`: one agent host, over standard input and output, with governor, journal and catalogue in this process or in a
//! running server.

use super::UsageError;
use super::arguments::{ListingForm, Mcp, McpHost, Setup};
use super::doors::StdioDoor;
use super::output::{note, print};
use super::serve::{self, Launch, MAX_JOURNALS, Transport};
use super::setup::{config, take_authority};
use a2g_capability::{Area, Glob};
use a2g_command::installed::installed_places;
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
    check_options(&arguments)?;
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

/// Refuses the options in whose place a configuration has keys.
fn check_options(arguments: &Mcp) -> Result<(), UsageError> {
    if arguments.config.is_none() {
        return Ok(());
    }
    let replaced = [
        (
            !arguments.scope.is_empty(),
            "--scope",
            "`ceilings.filesystem_scope`, and `paths` in the rules of its policies",
        ),
        (arguments.read_only, "--read-only", "`ceilings.read_only`"),
        (arguments.with_secrets, "--with-secrets", "`blocked_paths` in the rules of its policies"),
        (arguments.journal.is_some(), "--journal", "`journal.path`"),
    ];
    match replaced.into_iter().find(|(is_given, _, _)| *is_given) {
        Some((_, option, keys)) => {
            Err(UsageError(format!("`{option}` cannot be used with `--config`: the file has {keys}")))
        }
        None => Ok(()),
    }
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
    let places = installed_places("tools")?;
    let [beside, _, shared, _] = &places;
    match places.iter().find(|tools| tools.is_dir()) {
        Some(tools) => Ok(tools.canonicalize()?),
        None => bail!(UsageError(format!(
            "the tools that belong to this program are not beside it (`{}` and `{}` are missing): install the package \
             again that it came from (`uv tool install --force`, `pipx reinstall`, `npm install`, `apt-get install \
             --reinstall`), or name a folder of tools with `--tools`",
            beside.display(),
            shared.display(),
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
            // For all projects of the user, as the paths are absolute.
            format!("claude mcp add -s user a2g -- {words}")
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
const CONTAINER_NOTE: &str = "note: this is for a host in this container, as in a dev container. A host outside of it \
                              starts the container instead: docs/install.md, section Container, has the line (`podman \
                              run -i … mcp --scope /workspace`)";

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
/// below them, also by an installed one, and no launcher has to do anything for it. What cannot be read is not guessed:
/// the mere name of the package may be another one in the index that a host asks.
fn program_words(program: &Path) -> anyhow::Result<Vec<String>> {
    let path = program.to_str().context("this program's path is not UTF-8")?;
    // Such as `~/.cache/uv/archive-v0/HASH/bin/…` and, of older versions of uv, `~/.cache/uv/environments-v2/…`.
    let is_of_uv = |name: &str| {
        let version = ["archive-v", "environments-v", "builds-v"].iter().find_map(|of| name.strip_prefix(of));
        version
            .is_some_and(|version| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
    };
    // Such as `~/.npm/_npx/HASH`.
    let is_of_npx =
        |folder: &&Path| folder.parent().and_then(Path::file_name).is_some_and(|name| name == "_npx");
    let words = if let Some(folder) = program.ancestors().find(is_of_npx) {
        // npm sets it for a registry that was named to it.
        let registry = std::env::var_os("npm_config_registry").and_then(|url| url.into_string().ok());
        npx_manifest(folder).and_then(|manifest| npx_words(folder, &manifest, registry))
    } else if path.split('/').any(is_of_uv) {
        let own = std::env::args_os().skip(1).map(|word| word.into_string().ok());
        parent_line().zip(own.collect::<Option<Vec<_>>>()).and_then(|(line, own)| uvx_words(&line, &own))
    } else {
        None
    };
    Ok(words.unwrap_or_else(|| vec![path.to_owned()]))
}

/// The manifest that npx writes into a folder of its cache. Its dependencies are the packages that npx was given.
fn npx_manifest(folder: &Path) -> Option<serde_json::Value> {
    let manifest = std::fs::read(folder.join("package.json")).ok()?;
    serde_json::from_slice(&manifest).ok()
}

/// The words with which npx installs the packages of this manifest again. `--package` has no short form here, because
/// `claude mcp add` would take `-p` for an option of its own.
fn npx_words(folder: &Path, manifest: &serde_json::Value, registry: Option<String>) -> Option<Vec<String>> {
    let packages = manifest.get("dependencies")?.as_object()?;
    let mut words = ["npx", "-y"].map(str::to_owned).to_vec();
    if let Some(registry) = registry {
        words.extend(["--registry".to_owned(), registry]);
    }
    // Files and addresses, unlike versions.
    let is_place = |spec: &serde_json::Value| spec.as_str().is_some_and(|spec| spec.contains([':', '/']));
    if packages.values().any(is_place) {
        for (name, spec) in packages {
            let spec = spec.as_str()?;
            let package = match spec.strip_prefix("file:") {
                Some(file) => folder.join(file).canonicalize().ok()?.to_str()?.to_owned(),
                None => format!("{name}@{spec}"),
            };
            words.extend(["--package".to_owned(), package]);
        }
    }
    words.push(PACKAGE.to_owned());
    Some(words)
}

/// The command line of the process that started this one.
fn parent_line() -> Option<Vec<String>> {
    let line = std::fs::read(format!("/proc/{}/cmdline", std::os::unix::process::parent_id())).ok()?;
    let line = String::from_utf8(line).ok()?;
    Some(line.strip_suffix('\0')?.split('\0').map(str::to_owned).collect())
}

/// The options of uv whose value may be a path without a slash.
const UV_PATH_OPTIONS: [&str; 8] = [
    "-f",
    "--find-links",
    "--index",
    "--default-index",
    "-c",
    "--constraints",
    "--config-file",
    "--cache-dir",
];

/// The words of uv's command line before the arguments of this program, with absolute paths.
fn uvx_words(line: &[String], own: &[String]) -> Option<Vec<String>> {
    let (uv, words) = line.strip_suffix(own)?.split_first()?;
    // `uvx` replaces itself with `uv tool uvx`.
    let words = match (Path::new(uv).file_name()?.to_str()?, words) {
        ("uvx", words) => words,
        ("uv", [tool, run, words @ ..]) if tool == "tool" && (run == "uvx" || run == "run") => words,
        _ => return None,
    };
    let parts = words.iter().flat_map(|word| match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => vec![option, value],
        Some(_) | None => vec![word.as_str()],
    });
    let mut started = vec!["uvx".to_owned()];
    let mut previous = "";
    for word in parts {
        let may_be_path = UV_PATH_OPTIONS.contains(&previous) || word.contains('/') || word.ends_with(".whl");
        let path = if may_be_path { absolute_path(word) } else { None };
        // `claude mcp add` would take `-p` for an option of its own.
        let word_for_host = if word == "-p" { "--python" } else { word };
        started.push(path.unwrap_or_else(|| word_for_host.to_owned()));
        previous = word;
    }
    Some(started)
}

/// The absolute path of a file or folder. `None` if there is none.
fn absolute_path(path: &str) -> Option<String> {
    let path = Path::new(path);
    if !path.exists() {
        return None;
    }
    std::path::absolute(path).ok()?.to_str().map(str::to_owned)
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
    fn a_program_is_started_by_its_path_unless_the_command_that_put_it_in_a_cache_is_known() {
        for path in [
            "/home/a/.npm/_npx/3f2a/node_modules/a2g-executor-linux-x64/bin/a2g-executor",
            "/root/.cache/uv/archive-v0/Bf3_x/bin/a2g-executor",
            "/usr/lib/node_modules/a2g-executor/node_modules/a2g-executor-linux-x64/bin/a2g-executor",
            "/home/a/.local/share/uv/tools/a2g-executor/bin/a2g-executor",
            "/usr/bin/a2g-executor",
        ] {
            assert_eq!(program_words(Path::new(path)).unwrap(), [path]);
        }
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_options_of_uvx_are_kept_with_absolute_paths() {
        let own = words("mcp --scope a --print-config codex");
        let here = env!("CARGO_MANIFEST_DIR");
        let dist = format!("uvx --no-index --find-links {here}/src a2g-executor");
        for (start, expected) in [
            ("uvx a2g-executor", Some("uvx a2g-executor")),
            ("/opt/uv tool uvx --no-index --find-links src a2g-executor", Some(&*dist)),
            ("uv tool run --no-index --find-links=src a2g-executor", Some(&*dist)),
            // A name, although there is such a folder, and an address.
            (
                "uv tool uvx -p 3.12 --with src --index https://index.example/simple a2g-executor==0.1.0",
                Some("uvx --python 3.12 --with src --index https://index.example/simple a2g-executor==0.1.0"),
            ),
            ("uv run a2g-executor", None),
            ("bash", None),
        ] {
            let line = [words(start), own.clone()].concat();
            assert_eq!(uvx_words(&line, &own), expected.map(words), "{start}");
        }
        assert_eq!(uvx_words(&words("uvx a2g-executor serve"), &own), None, "the line of another process");
    }

    #[test]
    fn the_files_that_npx_was_given_are_kept_with_absolute_paths() {
        let here = env!("CARGO_MANIFEST_DIR");
        let start = |dependencies: serde_json::Value, registry: Option<&str>| {
            let manifest = json!({ "dependencies": dependencies });
            npx_words(&Path::new(here).join("src"), &manifest, registry.map(str::to_owned))
        };
        let by_name = json!({ "a2g-executor": "^0.1.0" });
        assert_eq!(start(by_name.clone(), None), Some(words("npx -y a2g-executor")));
        assert_eq!(
            start(by_name, Some("https://npm.example/")),
            Some(words("npx -y --registry https://npm.example/ a2g-executor"))
        );
        let files = json!({ "a2g-executor": "file:../Cargo.toml", "other": "^1.0.0" });
        assert_eq!(
            start(files, None),
            Some(words(&format!("npx -y --package {here}/Cargo.toml --package other@^1.0.0 a2g-executor")))
        );
        assert_eq!(start(json!({ "a2g-executor": "file:../missing.tgz" }), None), None);
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
