//! `tool new --mcp` and `tool sync NAME`: a tool for each tool of an MCP server.
//!
//! ```text
//! server ─ tools/list ─▶ its definition of a tool ─▶ ToolManifest ─▶ NAME_TOOL/tool.toml, with the shared module
//!                                                └▶ the reason why it is left out
//! ```
//! What a server says of its tools is a stranger's text. A definition that the executor could not check, or that a
//! person could not read as a model does, makes no tool. What is written is then like any other tool: `tool add`
//! remembers its definition, and a changed one waits for approval. Confinement ends at the request: what the server does
//! with it is not limited here.

mod definition;
mod endpoint;
mod server;
mod sync;

pub(crate) use sync::sync;

use crate::allow::config_path;
use crate::approve::{catalogue_options, quoted};
use crate::arguments::ApiOptions;
use crate::client::{Binding, check_folder, find_module, write_tool};
use a2g_capability::SecretBinding;
use a2g_command::UsageError;
use a2g_command::layout::{Listing, text, wrap};
use a2g_command::output::{list, note, one_line, print};
use a2g_command::setup::{Setup, config};
use a2g_config::Config;
use a2g_core::catalog::ToolManifest;
use a2g_types::ident::{SecretName, ToolName};
use a2g_wire::mcp::Revision;
use anyhow::{Context as _, bail};
use definition::{Definitions, LeftOut};
use endpoint::Endpoint;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The line width of these commands' messages. Commands to copy are not wrapped.
const MAX_COLUMNS: usize = 80;

/// A server, and what its tools have in common.
#[derive(Debug)]
struct Source {
    /// The beginning of the tools' names.
    prefix: ToolName,
    endpoint: Endpoint,
    secrets: BTreeSet<SecretName>,
}

impl Source {
    /// The bindings of the secrets.
    ///
    /// # Errors
    /// If one is not configured, or not for requests to the server.
    fn bindings<'a>(&self, config: &'a Config) -> anyhow::Result<Vec<&'a Arc<SecretBinding>>> {
        let find = |name: &SecretName| {
            let found =
                config.secrets.iter().map(|secret| &secret.binding).find(|binding| binding.name() == name);
            let Some(binding) = found.filter(|binding| binding.fits(&self.endpoint.target())) else {
                note(self.secret_advice(name));
                bail!("the configuration has no `[[secret]]` `{name}` for requests to `{}`", self.endpoint);
            };
            Ok(binding)
        };
        self.secrets.iter().map(find).collect()
    }

    /// The sections of the configuration that let the tools use a secret.
    fn secret_advice(&self, name: &SecretName) -> String {
        let Self { prefix, endpoint, secrets: _ } = self;
        let origin = endpoint.origin();
        let file = format!("secrets/{name}");
        let requests = BTreeSet::from([endpoint.post().to_string()]);
        let secret = Binding::bearer(name.clone()).to_toml(&file, prefix.as_str(), &requests);
        format!(
            "For a token in a file, `--token-file` is enough. For a secret with `env`, `command` or `oauth` in the place of \
             `file`, the configuration needs:\n\n\
             [ceilings]\nnetwork_allowed = true\n\n\
             [network.tools]\n\"{prefix}_tools\" = [\"{origin}\"]   # `tool allow` adds the tools later\n\n{secret}"
        )
    }

    /// Asks the server for its tools, and makes the manifests of those that can be used.
    fn read_definitions(&self, config: &Config) -> anyhow::Result<Definitions> {
        let listed = server::list_tools(self, config)?;
        Ok(definition::read_all(self, listed))
    }
}

/// A bearer token in a file, of which the configuration does not know yet.
struct Token {
    binding: Binding,
    file: String,
}

impl Token {
    /// Adds the token to the secrets that this command reads, for requests to the server alone.
    ///
    /// # Errors
    /// If the configuration could not have it: the server has no TLS, or another secret has its name or its place.
    fn add(file: &Path, source: &mut Source, config: &mut Config) -> anyhow::Result<Self> {
        let mut named = source.secrets.iter();
        let name = match (named.next(), named.next()) {
            (None, _) => {
                let default = source.prefix.as_str().to_lowercase().replace('.', "_");
                SecretName::parse(&default).or_else(|_| SecretName::parse("mcp"))?
            }
            (Some(name), None) => name.clone(),
            (Some(_), Some(_)) => {
                bail!(UsageError("`--token-file` is the file of one secret: give `--secret` once".to_owned()))
            }
        };
        let path = std::path::absolute(file).context("the file of `--token-file` cannot be found")?;
        let binding = Binding::bearer(name.clone());
        let token = Self { binding, file: path.to_string_lossy().into_owned() };
        let text = token.to_toml(source, Revision::Session);
        config
            .add_secrets(&text, Path::new("--token-file"))
            .map_err(|error| UsageError(error.to_string()))?;
        source.secrets.insert(name);
        Ok(token)
    }

    /// Its `[[secret]]`, for the requests of a revision.
    fn to_toml(&self, Source { prefix, endpoint, secrets: _ }: &Source, revision: Revision) -> String {
        let end = (revision == Revision::Session).then(|| endpoint.delete().to_string());
        let requests = std::iter::once(endpoint.post().to_string()).chain(end).collect::<BTreeSet<_>>();
        self.binding.to_toml(&self.file, prefix.as_str(), &requests)
    }
}

/// Writes a folder for each tool of the server at `url`.
pub(crate) fn new(setup: &Setup, name: &str, url: &str, options: &ApiOptions) -> anyhow::Result<()> {
    let prefix = ToolName::parse(name).map_err(|error| UsageError(error.to_string()))?;
    let mut config = config(setup)?;
    let parse_secret = |name: &String| SecretName::parse(name).map_err(|error| UsageError(error.to_string()));
    let secrets = options.secrets.iter().map(parse_secret).collect::<Result<_, _>>()?;
    let mut source = Source { prefix, endpoint: Endpoint::parse(url, &config)?, secrets };
    let token_file = options.token_file.as_deref();
    let token = token_file.map(|file| Token::add(file, &mut source, &mut config)).transpose()?;
    let module = find_module()?;
    let Definitions { revision, tools, left_out } = source.read_definitions(&config)?;
    print_left_out(&left_out);
    if tools.is_empty() {
        bail!("`{}` has no tool that can be used", source.endpoint);
    }
    // All folders are checked before the first is written.
    tools.iter().try_for_each(|tool| check_folder(tool.name.as_str(), options.force))?;
    for tool in &tools {
        write_tool(tool, &source.endpoint.to_string(), &module)?;
    }
    print_tools(&tools);
    say(format_args!(
        "made {} tools of {} (MCP {}). Confinement ends at the request: what this server does with one is not limited \
         by this executor.",
        tools.len(),
        source.endpoint,
        revision.as_str()
    ));
    note_unbound(&source, revision, &tools, &config)?;
    print_next(setup, &source);
    if let Some(token) = token {
        say("The token stays in its file. The configuration says where it goes:");
        let config_file = quoted(config_path(setup));
        print(format_args!("cat >> {config_file} <<'END'\n\n{}END", token.to_toml(&source, revision)));
        say("Then restart the server: it reads its configuration only at its start.");
    }
    Ok(())
}

fn print_tools(tools: &[ToolManifest]) {
    let mut listing = Listing::new(&["tool", "description"]);
    for tool in tools {
        listing.row([text(&tool.name), text(tool.description.lines().next().unwrap_or_default())]);
    }
    listing.show(std::io::stdout());
}

fn print_left_out(left_out: &[LeftOut]) {
    for LeftOut { tool, reason } in left_out {
        note(wrap("", &format!("left out: `{}`: {}", one_line(tool), one_line(reason)), MAX_COLUMNS));
    }
}

/// Says which tools and requests the secrets are not bound to.
fn note_unbound(
    source: &Source,
    revision: Revision,
    tools: &[ToolManifest],
    config: &Config,
) -> anyhow::Result<()> {
    for binding in source.bindings(config)? {
        let is_bound = |tool: &&ToolManifest| binding.tools().iter().any(|range| range.matches(&tool.name));
        let unbound = tools.iter().filter(|tool| !is_bound(tool)).map(|tool| &tool.name).collect::<Vec<_>>();
        if !unbound.is_empty() {
            note(format_args!("note: add to `tools` of the secret `{}`: {}", binding.name(), list(unbound)));
        }
        if revision == Revision::Session && !binding.fits(&source.endpoint.delete_target()) {
            let request = source.endpoint.delete();
            note(format_args!("note: add to `requests` of the secret `{}`: \"{request}\"", binding.name()));
        }
    }
    Ok(())
}

/// Prints the commands that let agents use the tools.
fn print_next(setup: &Setup, source: &Source) {
    let Source { prefix, endpoint, secrets: _ } = source;
    let options = catalogue_options(setup);
    let origin = endpoint.origin();
    say("Remove the folders of tools that nobody needs. Then, for each of the others:");
    print(format_args!("  for tool in {prefix}_*; do\n    a2g-executor tool add $tool{options}"));
    if endpoint.is_https() {
        print(format_args!("    a2g-executor tool allow $tool {origin} --write{options}"));
    }
    print("  done");
    if !endpoint.is_https() {
        say(format_args!(
            "The server is reached by plain http, which `tool allow` does not set up: let each tool reach its host in \
             `[network.tools]` and in a policy by hand."
        ));
    }
}

fn say(text: impl std::fmt::Display) {
    print(wrap("", &text.to_string(), MAX_COLUMNS));
}
