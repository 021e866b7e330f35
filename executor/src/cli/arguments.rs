//! The commands and their options, as `--help` shows them.

use super::policy::{POLICY, PolicyCommand};
use a2g_config::DEFAULT_LISTEN;
use a2g_http::ListenAddress;
use a2g_sandbox::CodeFeatures;
use a2g_tool::ToolCommand;
use a2g_types::limit::{KeyNumbers, Layer, LimitMap, LimitRow, Unit, rows_set_by};
#[cfg(feature = "mcp")]
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
#[cfg(feature = "mcp")]
use std::path::{Component, Path};
use std::sync::LazyLock;

pub(super) use a2g_command::setup::Setup;

const EXAMPLES: &str = "\
Examples:
  a2g-executor serve --config executor.toml
  a2g-executor run hash_file --arguments '{\"path\":\"/tmp/x\"}' --scope '/tmp/**'
  a2g-executor run ./any.wasm --mount .:/data -- --verbose
  a2g-executor tool list

Exit codes:
  0 done   1 the tool or the command failed   2 wrong usage or configuration
  3 refused before anything ran   4 ended by a limit
  `run ./any.wasm` exits with the module's own code, 124 at the timeout, 134 for
  any other failure.

Environment:
  RUST_LOG   the log filter, such as `info` or `a2g=debug`
  NO_COLOR   no colours, even on a terminal
  COLUMNS    the width of lists that are not printed to a terminal
  TZ         the time zone of lists, instead of the machine's";

const KEYS: &str = "\
A governor with a key signs its verdicts. An executor that trusts the key accepts
them from any caller:

  a2g-executor key new governor.jwk --issuer did:a2g:governor:1.0:main
  a2g-executor key show --json governor.jwk > governor.pub
  a2g-executor governor --key governor.jwk

The governor signs for the executor that an intent names in `context.executor`.
On that executor, with the public key copied over and `trust.keys = \"keys\"`:

  a2g-executor key trust governor.pub --keys keys

Exit codes: 0 done, 2 wrong usage, or a key or a file that cannot be used";

const CALLERS: &str = "\
With `server.callers` in the configuration, only callers in that list can use
this executor. A caller presents a token (`Authorization: Bearer …`), a JSON Web
Token from an issuer in `[[server.issuer]]`, or, if `server.tls.client_ca` is
set, a certificate.

  agent      sends intents in the name of its agents; reads and cancels those
  governor   sends policies, revocations, directives; reads and cancels any
  approver   decides escalated intents and waiting file changes; reads any
  operator   reads and cancels any intent; stops and resumes; reads the metrics

Example:
  a2g-executor caller new planner --role agent \\
    --agent did:a2g:agent:1.0:planner > planner.token

Exit codes: 0 done, 2 wrong usage, or a list that cannot be used";

const EFFECTS: &str = "\
A run under `effects = \"staged\"` changes no file. If it succeeds, it ends as
STAGED: its changes wait until a person commits or discards them, and are
discarded when they expire (`effects.decide_within_hours`). No decision runs the
tool again. Changes in force, also those of runs under `atomic`, can be undone
for `effects.keep_days`, as long as no file of them has changed since.

INTENT is the id of the run, or its first block as in the list. A commit covers
exactly the changes that were shown, and all or none of them take effect. Each
decision is in the journal, with its author.

These commands need a running executor. With a list of callers, a commit and an
undo need the role `governor` or `approver`. Any role lists, shows and discards,
an agent only what is its own.

Examples:
  a2g-executor effects list --token-file ~/anna.token
  a2g-executor effects show 550e8400 --token-file ~/anna.token
  a2g-executor effects commit 550e8400 --token-file ~/anna.token

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not confirmed";

/// Runs approved agent intents as WebAssembly tools, with exactly the capabilities that their
/// verdict grants.
#[derive(Debug, Parser)]
#[command(name = "a2g-executor", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve intents over HTTP and WebSocket (`/jsonrpc`), or over stdio
    Serve(Serve),
    /// Run one tool of the catalogue, or try any WebAssembly module
    Run(Box<Run>),
    /// Serve tools to one agent host over MCP, on standard input and output
    #[cfg(feature = "mcp")]
    Mcp(Mcp),
    /// Make, build, test, check and add tools, and list those of the catalogue
    #[command(after_help = "\
Examples:
  a2g-executor tool list --tools target/tools

A new tool:
  a2g-executor tool new count_words --language python
  cd count_words
  a2g-executor tool build
  a2g-executor tool test
  a2g-executor tool add .")]
    Tool(ToolCommand),
    /// Start the bundled governor, which decides by simple rules from policy files
    Governor(Governor),
    /// Query, verify, prune and back up the journal
    #[command(after_help = "\
TIME is `2026-11-21` (local midnight), `2026-11-21T09:30:00Z`, or a time before
now: `90m`, `12h`, `30d`. Lists are in local time, JSON is in UTC.

Examples:
  a2g-executor journal list --status FAILURE --since 24h
  a2g-executor journal verify && a2g-executor journal prune --before 90d")]
    Journal {
        #[command(subcommand)]
        command: JournalCommand,
    },
    /// Create keys that sign verdicts, and manage trusted keys
    #[command(after_help = KEYS)]
    Key {
        #[command(subcommand)]
        command: Key,
    },
    /// Manage the callers of this executor: tokens, roles and agents
    #[command(after_help = CALLERS)]
    Caller {
        #[command(subcommand)]
        command: Caller,
    },
    /// Open the console of the executor that runs with this configuration
    #[cfg(feature = "console")]
    Console(ConsoleCommand),
    /// Stop an agent, a tool or everything on a running executor, until `resume`
    Stop(StopCommand),
    /// Lift a stop on a running executor
    Resume(ResumeCommand),
    /// Show file changes that wait for a decision, and commit, discard or undo them
    #[command(after_help = EFFECTS)]
    Effects {
        #[command(subcommand)]
        command: EffectsCommand,
    },
    /// Create a fleet, list its executors, or ask one of them to leave
    #[command(after_help = "Examples:
  a2g-executor fleet init --config executor.toml
  a2g-executor fleet status --config executor.toml
  a2g-executor fleet drain exec-1 --config executor.toml")]
    #[cfg(feature = "fleet")]
    Fleet {
        #[command(subcommand)]
        command: FleetCommand,
    },
    /// Check a configuration
    #[command(after_help = "Example:\n  a2g-executor config check --config executor.toml")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Check, test, convert and compare policies in Cedar, and print their schema
    #[command(after_help = POLICY)]
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// List the secrets that the executor sets in requests, and check that it can read them
    Secret {
        #[command(subcommand)]
        command: SecretCommand,
    },
    /// List this machine's protections against tools, and the ways to get missing ones
    #[command(
        after_help = "Exit code 1 if a protection is missing that `containment = \"required\"` needs.\n\nExample:\n  a2g-executor doctor"
    )]
    Doctor {
        /// The configuration whose journal is checked; default: `executor.toml` in this folder, if it exists
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  a2g-executor completions bash > /etc/bash_completion.d/a2g-executor")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    #[command(
        after_help = "Example:\n  a2g-executor man ~/.local/share/man/man1 && man a2g-executor-tool-add"
    )]
    Man {
        /// The folder of the pages, which is created if it is missing
        folder: PathBuf,
    },
    /// Fork the processes of guests, for the server at the other end of standard input
    #[command(hide = true)]
    Zygote {
        #[command(flatten)]
        features: FeatureOptions,
        /// Let children change to another user than root
        #[arg(long)]
        changes_users: bool,
    },
    /// Compile a module from standard input to standard output, under limits
    #[command(hide = true)]
    CompileModule(CompileModule),
}

/// Prints the link to the console, and opens it if there is a graphical session.
///
/// Without `server.callers`, the link has a key that signs in once. Only the user that runs the executor can read it.
#[cfg(feature = "console")]
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  a2g-executor console\n  a2g-executor console --print --config executor.toml"
)]
pub(super) struct ConsoleCommand {
    #[command(flatten)]
    pub(super) setup: Setup,
    /// Only print the link
    #[arg(long)]
    pub(super) print: bool,
}

/// The options that `CodeFeatures::options` makes.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct FeatureOptions {
    /// Count the instructions of guests
    #[arg(long)]
    fuel: bool,
    /// Allow modules with exceptions
    #[arg(long)]
    exceptions: bool,
}

impl From<FeatureOptions> for CodeFeatures {
    fn from(FeatureOptions { fuel, exceptions }: FeatureOptions) -> Self {
        Self { meters_fuel: fuel, exceptions }
    }
}

#[derive(Debug, Args)]
pub(super) struct CompileModule {
    /// The contract that the module must fit
    #[arg(long)]
    pub(super) contract: ContractArg,
    #[command(flatten)]
    pub(super) features: FeatureOptions,
    /// Maximum CPU time, in seconds
    #[arg(long)]
    pub(super) cpu_seconds: u64,
    /// Maximum memory, in MB
    #[arg(long)]
    pub(super) memory_mb: u64,
    /// Give way to all other processes
    #[arg(long)]
    pub(super) low_priority: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ContractArg {
    Command,
    Typed,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without `--governor` and without `governor.url` in the configuration, the built-in
governor decides, with the policies of `--policies`.

Examples:
  a2g-executor serve
  a2g-executor serve --governor ws://127.0.0.1:7410/jsonrpc
  a2g-executor serve --stdio < requests.ndjson
  a2g-executor serve --a2e-stdio < messages.ndjson")]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) setup: Setup,
    /// The address or name to listen on, or a socket
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    pub(super) listen: Option<ListenAddress>,
    /// The governor's URL: http, https, ws or wss
    #[arg(long, value_name = "URL", conflicts_with = "policies")]
    pub(super) governor: Option<String>,
    /// The policies of the built-in governor
    #[arg(long, value_name = "FOLDER")]
    pub(super) policies: Option<PathBuf>,
    /// The file in which the built-in governor records reports, one JSON object per line
    #[arg(long, value_name = "FILE", conflicts_with = "governor")]
    pub(super) reports: Option<PathBuf>,
    /// Serve one JSON-RPC message per line on standard input and output instead of listening
    #[arg(long)]
    pub(super) stdio: bool,
    /// Serve one A2E session on standard input and output instead of listening
    #[arg(long, conflicts_with = "stdio")]
    pub(super) a2e_stdio: bool,
    /// Create a new journal even if there was one before, whose intents could then run again
    #[arg(long)]
    pub(super) new_journal: bool,
    /// Accept unsigned verdicts and `g2a/…` messages from any caller. For development only: the executor then listens
    /// only on loopback addresses and sockets
    #[arg(long)]
    pub(super) insecure_accept_unsigned: bool,
}

#[cfg(feature = "mcp")]
#[derive(Debug, Args)]
#[command(after_help = "\
Without `--config`, nothing has to be configured: the governor and the journal are
in this process, tools may use the files below the current folder but no network,
and every call is recorded (`a2g-executor journal list`). With `--config`, the
governor, the journal and the ceilings are those of the file: in place of
`--scope`, it has `ceilings.filesystem_scope`, and its policies have `paths`.
With `--connect`, they are those of the running server.

Examples:
  a2g-executor mcp --print-config claude-code
  a2g-executor mcp --scope ~/notes --read-only
  a2g-executor mcp --connect https://executor.example/mcp --token-file ~/token")]
pub(super) struct Mcp {
    /// The configuration file; without this option, none is read
    #[arg(long, value_name = "FILE", value_parser = path_of_host())]
    pub(super) config: Option<PathBuf>,
    /// The folder of tools, instead of the configuration's or of the one installed with this program
    #[arg(long, value_name = "FOLDER", value_parser = path_of_host())]
    pub(super) tools: Option<PathBuf>,
    /// A folder that tools may use, instead of the current one; can be given more than once. A first `~` is the home
    /// folder, also where no shell expands it
    #[arg(long, value_name = "FOLDER", value_parser = path_of_host())]
    pub(super) scope: Vec<PathBuf>,
    /// Let tools only read files
    #[arg(long)]
    pub(super) read_only: bool,
    /// Let tools also use files with secrets in these folders, such as `.env` and `.ssh`
    #[arg(long)]
    pub(super) with_secrets: bool,
    /// The journal's file
    #[arg(long, value_name = "FILE", value_parser = path_of_host())]
    pub(super) journal: Option<PathBuf>,
    /// List every tool, or as `code` what a program needs to find and call them. Default: `doors.mcp.listing`, else
    /// tools
    #[arg(long, value_name = "FORM")]
    pub(super) listing: Option<ListingForm>,
    /// Forward messages to the running server at this URL (`https://HOST:PORT/mcp`) instead of starting one
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = ["config", "tools", "scope", "read_only", "with_secrets", "journal", "listing"]
    )]
    pub(super) connect: Option<String>,
    /// A file with the bearer token, readable only by its owner
    #[arg(long, value_name = "FILE", requires = "connect", value_parser = path_of_host())]
    pub(super) token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust besides the machine's
    #[arg(long, value_name = "FILE", requires = "connect", value_parser = path_of_host())]
    pub(super) ca_file: Option<PathBuf>,
    /// Print the configuration that makes a host start this command, and exit
    #[arg(long, value_name = "HOST")]
    pub(super) print_config: Option<McpHost>,
}

/// The parser of a path that may stand in a host's settings. A host starts the command without a shell, so `~` has to be
/// read here.
#[cfg(feature = "mcp")]
fn path_of_host() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        expand_home(path, home.as_deref())
    })
}

/// The path with `home` in place of a first component `~`.
#[cfg(feature = "mcp")]
fn expand_home(path: PathBuf, home: Option<&Path>) -> Result<PathBuf, String> {
    let mut components = path.components();
    let Some(Component::Normal(first)) = components.next() else { return Ok(path) };
    if first == "~" {
        let Some(home) = home.filter(|folder| folder.is_absolute()) else {
            return Err("`HOME` is not set to an absolute path: write this path in full".to_owned());
        };
        return Ok(home.components().chain(components).collect());
    }
    if first.as_encoded_bytes().starts_with(b"~") {
        return Err(format!(
            "the home of another user is not looked up: write the absolute path, or `./{}` for a path below the \
             current folder",
            path.display()
        ));
    }
    Ok(path)
}

/// The form in which hosts see the catalogue.
#[cfg(feature = "mcp")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ListingForm {
    Tools,
    Code,
}

/// An agent host that starts MCP servers.
#[cfg(feature = "mcp")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum McpHost {
    ClaudeCode,
    ClaudeDesktop,
    Cursor,
    Vscode,
    Codex,
    Gemini,
    Zed,
    #[value(name = "opencode")]
    OpenCode,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  a2g-executor run write_file --scope '/tmp/**' \\
    --arguments '{\"path\":\"/tmp/a.txt\",\"content\":\"hi\"}'
  echo '{\"path\":\"/tmp/a.txt\"}' | \\
    a2g-executor run read_file --arguments - --policy policies/default.json
  a2g-executor run ./hello.wasm --mount ./data:/data --env LANG=C \\
    --max-memory-mb 32 -- one two")]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) setup: Setup,
    /// A tool of the catalogue, or the path of a module (with a `/` or ending in `.wasm`)
    pub(super) tool: String,
    /// The arguments of a tool: JSON, `@FILE`, or `-` for standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "{}")]
    pub(super) arguments: String,
    /// Let this policy file or folder decide, instead of the limits below
    #[arg(long, value_name = "PATH")]
    pub(super) policy: Option<PathBuf>,
    /// The agent that a tool runs for
    #[arg(long, value_name = "DID", default_value = "did:a2g:cli:1.0:local")]
    pub(super) agent: String,
    /// Files that a tool may use, such as `/tmp/**` or `/tmp/**/*.md`; can be given more than once
    #[arg(long, value_name = "PATTERN")]
    pub(super) scope: Vec<String>,
    #[command(flatten)]
    pub(super) limits: LimitOptions,
    /// A host folder and its path in a module; can be given more than once
    #[arg(long, value_name = "HOST:GUEST")]
    pub(super) mount: Vec<String>,
    /// A variable of a module's environment; can be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) env: Vec<String>,
    /// Let the file changes of a tool under `effects = "staged"` take effect without asking
    #[arg(long)]
    pub(super) yes: bool,
    /// Print the whole report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// The module's own arguments
    #[arg(last = true)]
    pub(super) args: Vec<String>,
}

/// An option for each limit that the operator sets in place of a verdict, in the unit of its key.
#[derive(Debug)]
pub(super) struct LimitOptions(pub(super) KeyNumbers);

static LIMIT_OPTIONS: LazyLock<LimitMap<String>> = LazyLock::new(|| {
    LimitMap::from_fn(|limit| limit.row().map(|row| row.key().replace('_', "-")).unwrap_or_default())
});

impl LimitOptions {
    /// The name of the option for a limit.
    pub(super) fn name(row: &LimitRow) -> &'static str {
        let names: &LimitMap<String> = &LIMIT_OPTIONS;
        names[row.limit].as_str()
    }

    fn option(row: &'static LimitRow) -> Arg {
        let resource = row.resource;
        let (unit, help) = match row.unit {
            Unit::Count => ("N", format!("Maximum number of {resource}")),
            Unit::Bytes => ("BYTES", format!("Maximum number of bytes of {resource}")),
            Unit::Megabytes => ("MB", format!("Maximum {resource} in MB")),
            Unit::Percent => ("PERCENT", format!("Maximum share of {resource}; 100 is one core")),
            Unit::Seconds => ("SECONDS", "Maximum duration".to_owned()),
        };
        let option = Arg::new(row.key()).long(Self::name(row)).value_name(unit).help(help);
        option.value_parser(clap::value_parser!(u64))
    }
}

impl Args for LimitOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(rows_set_by(Layer::Verdict).map(Self::option))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut numbers = KeyNumbers::default();
        for row in rows_set_by(Layer::Verdict) {
            numbers.set(row.limit, matches.get_one::<u64>(row.key()).copied());
        }
        Ok(Self(numbers))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
This governor is deliberately simple: it decides by policy files and a table of
rules, stores only the reports, and does not authenticate callers. An operator
approves an escalated intent with a `g2a/directive` to this governor, which
forwards it immediately to executors that are connected by WebSocket.

Example:
  a2g-executor governor --policies policies/ --reports reports.ndjson")]
pub(super) struct Governor {
    /// The address or name to listen on, or a socket
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH", default_value = "127.0.0.1:7410")]
    pub(super) listen: ListenAddress,
    /// The folder of policies; default: the built-in policy
    #[arg(long, value_name = "FOLDER")]
    pub(super) policies: Option<PathBuf>,
    /// The file in which reports are recorded, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub(super) reports: Option<PathBuf>,
    /// The key that verdicts are signed with, from `key new`: an intent that names an executor in `context.executor` is
    /// answered with a `proof` for that executor
    #[arg(long, value_name = "FILE")]
    pub(super) key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Key {
    /// Create a key pair in a new file that only you can read
    #[command(
        after_help = "Examples:\n  a2g-executor key new governor.jwk --issuer did:a2g:governor:1.0:main    # signs verdicts\n  a2g-executor key new release.jwk --issuer https://example.com           # signs tools: tool sign"
    )]
    New {
        /// The file to create; an existing one is never overwritten
        file: PathBuf,
        /// The name of who signs with the key, such as the DID or URL of a governor, or of who releases tools
        #[arg(long, value_name = "NAME")]
        issuer: String,
    },
    /// Show the public part of a key pair: id, issuer, key
    #[command(after_help = "Example:\n  a2g-executor key show --json governor.jwk > governor.pub")]
    Show {
        /// A file from `key new`
        file: PathBuf,
        /// Print the public key only, as JSON (RFC 7517), for `key trust`
        #[arg(long)]
        json: bool,
    },
    /// Trust a public key: this executor accepts verdicts that are signed with it
    #[command(
        after_help = "Examples:\n  a2g-executor key trust governor.pub\n  a2g-executor key trust --keys keys --issuer https://governor.example \\\n    '{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}'"
    )]
    Trust {
        /// The public key: JSON (RFC 7517), or a file with it
        #[arg(value_name = "FILE|JWK")]
        key: String,
        /// The only issuer that the key's proofs may have; default: the `iss` of the key
        #[arg(long, value_name = "NAME")]
        issuer: Option<String>,
        #[command(flatten)]
        folder: KeyFolder,
    },
    /// List the trusted keys
    #[command(after_help = "Example:\n  a2g-executor key list --config executor.toml")]
    List {
        #[command(flatten)]
        folder: KeyFolder,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The folder of trusted keys, or the configuration that names it.
#[derive(Debug, Args)]
pub(super) struct KeyFolder {
    /// The configuration that names the folder in `trust.keys`; default: `executor.toml` in this folder, if it exists
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    pub(super) config: Option<PathBuf>,
    /// The folder of trusted keys
    #[arg(long, value_name = "FOLDER")]
    pub(super) keys: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Caller {
    /// Add a caller, and print its token, once
    ///
    /// The token is printed on standard output and stored nowhere: the list has its SHA-256.
    #[command(after_help = "\
Examples:
  a2g-executor caller new planner --role agent \\
    --agent did:a2g:agent:1.0:planner > planner.token
  a2g-executor caller new governor --role governor \\
    --certificate governor.example
  a2g-executor caller new anna --role approver \\
    --jwt-issuer https://id.example.com --jwt-subject anna
  a2g-executor caller new prometheus --role operator --days 90")]
    New {
        /// The caller's name in logs
        name: String,
        /// A role; can be given more than once
        #[arg(long, value_name = "ROLE", required = true, value_parser = ["agent", "governor", "approver", "operator"])]
        role: Vec<String>,
        /// An agent that the caller may act for, `*` for every agent; can be given more than once
        #[arg(long, value_name = "DID")]
        agent: Vec<String>,
        /// A DNS name or URI in the certificate that the caller presents instead of a token
        #[arg(long, value_name = "NAME")]
        certificate: Option<String>,
        /// The issuer, from `[[server.issuer]]`, of the JSON Web Tokens that the caller presents instead of a token
        #[arg(long, value_name = "ISSUER", requires = "jwt_subject", conflicts_with = "certificate")]
        jwt_issuer: Option<String>,
        /// The subject (`sub`) of those tokens
        #[arg(long, value_name = "SUBJECT", requires = "jwt_issuer")]
        jwt_subject: Option<String>,
        /// Days until the caller expires
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: Option<u32>,
        #[command(flatten)]
        list: CallersFile,
    },
    /// List the callers with their credentials and expiry
    #[command(after_help = "Example:\n  a2g-executor caller list --json | jq -r '.[].name'")]
    List {
        #[command(flatten)]
        list: CallersFile,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a caller; a running server refuses it from the next SIGHUP on
    #[command(after_help = "Example:\n  a2g-executor caller remove planner && systemctl reload a2g-executor")]
    Remove {
        /// The caller's name
        name: String,
        #[command(flatten)]
        list: CallersFile,
    },
}

/// The list of callers, or the configuration that names it.
#[derive(Debug, Args)]
pub(super) struct CallersFile {
    /// The configuration that names the list in `server.callers`; default: `executor.toml` in this folder, if it exists
    #[arg(long, value_name = "FILE", conflicts_with = "callers")]
    pub(super) config: Option<PathBuf>,
    /// The list of callers
    #[arg(long, value_name = "FILE")]
    pub(super) callers: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("action").args(["agent", "tool", "all", "list"]).required(true),
    after_help = "\
Runs of the target are aborted, its queued and waiting intents are withdrawn, and
its calls are refused, with the reason and your name. The stop is recorded in the
journal and survives a restart; only an operator lifts it, with `resume`. A new
stop of the same target replaces the earlier one.

This command needs a running executor and a caller with the role `operator`. If
no executor runs, no call runs either: start it, and stop the target then.

Examples:
  a2g-executor stop --all --reason 'incident 42' --token-file ~/operator.token
  a2g-executor stop --agent did:a2g:agent:1.0:planner --reason 'wrong plan' \\
    --url https://executor.example --token-file ~/operator.token
  a2g-executor stop --list --token-file ~/operator.token"
)]
pub(super) struct StopCommand {
    #[command(flatten)]
    pub(super) target: TargetOptions,
    /// The reason, which refused agents are told; at most 500 characters
    #[arg(long, value_name = "TEXT", required_unless_present = "list", conflicts_with = "list")]
    pub(super) reason: Option<String>,
    /// List the stops in force instead
    #[arg(long)]
    pub(super) list: bool,
    /// Print the list as JSON
    #[arg(long, conflicts_with_all = ["agent", "tool", "all"])]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) address: ExecutorAddress,
}

#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("action").args(["agent", "tool", "all"]).required(true),
    after_help = "\
Only the named stop is lifted: a tool of a stopped agent stays stopped for that
agent. Exit code 1 if the target is not stopped.

Example:
  a2g-executor resume --tool write_file --token-file ~/operator.token"
)]
pub(super) struct ResumeCommand {
    #[command(flatten)]
    pub(super) target: TargetOptions,
    #[command(flatten)]
    pub(super) address: ExecutorAddress,
}

/// The options that name what is stopped or resumed.
#[derive(Debug, Args)]
pub(super) struct TargetOptions {
    /// All calls of this agent
    #[arg(long, value_name = "DID")]
    pub(super) agent: Option<String>,
    /// All calls of this tool, by any agent
    #[arg(long, value_name = "NAME")]
    pub(super) tool: Option<String>,
    /// All calls
    #[arg(long)]
    pub(super) all: bool,
}

/// A running executor, and the caller's credentials.
#[derive(Debug, Args)]
pub(super) struct ExecutorAddress {
    /// The executor's URL; `/jsonrpc` is added if it has no path
    #[arg(long, value_name = "URL", default_value_t = Self::default_url())]
    pub(super) url: String,
    /// A file with the bearer token, readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust besides the machine's
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,
}

impl ExecutorAddress {
    /// The URL of an executor with its default settings.
    pub(super) fn default_url() -> String {
        format!("http://{DEFAULT_LISTEN}")
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum EffectsCommand {
    /// List changes that wait for a decision, or that can be undone, newest first
    ///
    /// STATE is `waiting` or `in_force`. Waiting changes are discarded at UNTIL; those in force can be undone until then.
    #[command(
        after_help = "Examples:\n  a2g-executor effects list --token-file ~/anna.token\n  a2g-executor effects list --json | jq -r '.[] | select(.state == \"waiting\") | .intent'"
    )]
    List {
        /// Show ids and agents in full at any width
        #[arg(long, conflicts_with = "json")]
        wide: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        address: ExecutorAddress,
    },
    /// Show the changes of a run: requests, deletions and renames, changes with differences, created files
    ///
    /// Changes that were committed, discarded or undone are shown with who decided, as long as the journal has the run.
    #[command(after_help = "Example:\n  a2g-executor effects show 550e8400 --token-file ~/anna.token | less")]
    Show {
        /// The id of the run, or its first block as in `effects list`
        intent: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        address: ExecutorAddress,
    },
    /// Show the waiting changes of a run, ask, and let all of them take effect together
    ///
    /// If a file that the run has read or changed is another one now, nothing is committed, and the changes still wait.
    ///
    /// Requests that the run has left are sent once the files are changed, each at most once. The first one that is not
    /// answered ends the sending.
    #[command(after_help = "\
File changes can be undone while they are kept (`effects.keep_days`). What was sent cannot be undone.

Exit code 0 if the file changes are in force, even if a request was not answered. A run that has left only requests:
0 if all were answered, otherwise 1.

Examples:
  a2g-executor effects commit 550e8400 --token-file ~/anna.token
  a2g-executor effects commit 550e8400 --token-file ~/anna.token \\
    --digest 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    Commit {
        #[command(flatten)]
        options: DecisionOptions,
        /// Do not ask, and commit only the changes with this digest, as `show` prints it
        #[arg(long, value_name = "HEX", conflicts_with = "yes")]
        digest: Option<String>,
    },
    /// Ask, and drop the waiting changes of a run for good
    #[command(after_help = "Example:\n  a2g-executor effects discard 550e8400 --token-file ~/anna.token")]
    Discard(DecisionOptions),
    /// Show changes in force, ask, and put back all that they replaced or removed
    ///
    /// If one of the files has changed since, nothing is undone.
    #[command(after_help = "Example:\n  a2g-executor effects undo 550e8400 --token-file ~/anna.token")]
    Undo(DecisionOptions),
}

/// The changes that a command decides on.
#[derive(Debug, Args)]
pub(super) struct DecisionOptions {
    /// The id of the run, or its first block as in `effects list`
    pub(super) intent: String,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) address: ExecutorAddress,
}

#[derive(Debug, Subcommand)]
pub(super) enum JournalCommand {
    /// List runs, newest first; or refusals, or intents that wait for a directive
    #[command(
        after_help = "Examples:\n  a2g-executor journal list --tool write_file --since 1h --json | jq .status\n  a2g-executor journal list --waiting"
    )]
    List {
        #[command(flatten)]
        journal: JournalFile,
        #[command(flatten)]
        filter: ReceiptFilter,
        /// List refusals instead of runs
        #[arg(long, conflicts_with_all = ["status", "undelivered"])]
        refused: bool,
        /// List intents that wait for a directive instead, ordered by expiry
        #[arg(long, conflicts_with_all = ["refused", "agent", "tool", "status", "since", "until", "undelivered"])]
        waiting: bool,
        /// Maximum number of entries
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u64,
        /// Show ids and agents in full at any width, and times to the millisecond
        #[arg(long, conflicts_with = "json")]
        wide: bool,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Show the report of one intent
    ///
    /// A program calls other tools while it runs, and each call is an intent with a report of its own. `--tree` shows
    /// them below the program, with number, tool, verdict, status, duration and the first block of the id, which this
    /// command takes as well.
    #[command(
        after_help = "Examples:\n  a2g-executor journal show 550e8400\n  a2g-executor journal show 550e8400 --tree\n  a2g-executor journal show 550e8400-e29b-41d4-a716-446655440000 --json | jq .report"
    )]
    Show {
        #[command(flatten)]
        journal: JournalFile,
        /// The id of the intent, or its first block as in `journal list`
        intent: String,
        /// Show the calls that the run made, and theirs, instead of the report
        #[arg(long)]
        tree: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check that no record of the journal was changed, removed, moved or truncated
    ///
    /// Without a checkpoint this command finds every change except a complete rewrite of the history. A checkpoint is a
    /// number and a hash that this command printed before, and that were stored elsewhere. Exit code 1 if the journal
    /// is not intact.
    #[command(after_help = "Example:\n  a2g-executor journal verify --checkpoint 1042:9f86d081884c7d65…")]
    Verify {
        #[command(flatten)]
        journal: JournalFile,
        /// A checkpoint that the journal must contain: the number of a receipt and its hash
        #[arg(long, value_name = "NUMBER:HASH")]
        checkpoint: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print receipts with their reports as JSON, one per line, oldest first
    #[command(
        after_help = "Example:\n  a2g-executor journal export --until 2026-11-01 | gzip > october.ndjson.gz"
    )]
    Export {
        #[command(flatten)]
        journal: JournalFile,
        #[command(flatten)]
        filter: ReceiptFilter,
    },
    /// Remove old receipts that the governor has acknowledged; a server may be running
    #[command(after_help = "Example:\n  a2g-executor journal prune --before 90d")]
    Prune {
        #[command(flatten)]
        journal: JournalFile,
        /// Remove receipts of runs that ended before this time
        #[arg(long, value_name = "TIME")]
        before: String,
    },
    /// Print the records of the journal as JSON, one per line, oldest first: runs, approvals, denials, cancellations,
    /// revocations and stops
    #[command(after_help = "Example:\n  a2g-executor journal records 550e8400-e29b-41d4-a716-446655440000")]
    Records {
        #[command(flatten)]
        journal: JournalFile,
        /// Only the records of this intent
        intent: Option<String>,
    },
    /// Create an empty journal where there is none
    ///
    /// `serve` does this automatically, unless there was a journal before: with a new journal, intents of the previous
    /// one could run again.
    #[command(
        after_help = "Example:\n  a2g-executor journal init --journal /var/lib/a2g-executor/journal.db"
    )]
    Init {
        #[command(flatten)]
        journal: JournalFile,
    },
    /// Copy the journal to a new file that only this user can read, and verify it; a server may be running
    #[command(after_help = "Example:\n  a2g-executor journal backup /backup/journal-$(date +%F).db")]
    Backup {
        #[command(flatten)]
        journal: JournalFile,
        /// The new file
        file: PathBuf,
    },
    /// Replace the journal with a backup, while no server uses it
    ///
    /// Runs that started after the backup are lost, and could run again under a verdict that has not expired: wait
    /// until such verdicts have expired.
    #[command(
        after_help = "Example:\n  a2g-executor journal restore --replace /backup/journal-2026-11-21.db"
    )]
    Restore {
        #[command(flatten)]
        journal: JournalFile,
        /// The backup
        file: PathBuf,
        /// Replace an existing journal, which is renamed and not deleted
        #[arg(long)]
        replace: bool,
    },
}

/// The journal, or the configuration that names it.
#[derive(Debug, Clone, Args)]
pub(super) struct JournalFile {
    /// The configuration file; default: `executor.toml` in this folder, if it exists
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The journal, instead of the configuration's
    #[arg(long, value_name = "FILE")]
    pub(super) journal: Option<PathBuf>,
}

/// Filters for receipts and refusals.
#[derive(Debug, Clone, Args)]
pub(super) struct ReceiptFilter {
    /// Only entries of this agent
    #[arg(long, value_name = "DID")]
    pub(super) agent: Option<String>,
    /// Only entries of this tool
    #[arg(long, value_name = "NAME")]
    pub(super) tool: Option<String>,
    /// Only runs with this status
    #[arg(long, value_name = "STATUS", ignore_case = true, value_parser = ["SUCCESS", "STAGED", "FAILURE", "TIMEOUT", "ABORTED"])]
    pub(super) status: Option<String>,
    /// Only entries that ended, or were refused, at this time or later
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<String>,
    /// Only entries that ended, or were refused, before this time
    #[arg(long, value_name = "TIME")]
    pub(super) until: Option<String>,
    /// Only runs whose report the governor has not acknowledged
    #[arg(long)]
    pub(super) undelivered: bool,
}

#[cfg(feature = "fleet")]
#[derive(Debug, Subcommand)]
pub(super) enum FleetCommand {
    /// Create the fleet's stream at the servers of NATS: once, before its first node starts
    #[command(after_help = "\
The stream has a random id, which the journal of every node remembers. If the
stream is missing or has another id, the claims of the fleet are gone, and its
nodes run nothing. Restore the stream, or accept the loss with `--new`: intents
that have run are then refused only by the nodes whose own journals have them.

Run again, the command changes nothing.

Examples:
  a2g-executor fleet init --config executor.toml
  a2g-executor fleet init --new --config executor.toml")]
    Init {
        #[command(flatten)]
        setup: Setup,
        /// Accept that the claims in the stream that the journal remembers are gone
        #[arg(long)]
        new: bool,
        /// Also accept that the claims in the stream with this id are gone, as a refused node names it
        #[arg(long, value_name = "ID", requires = "new")]
        replaces: Vec<String>,
        /// The time after which another node takes over one that is lost. Holds for all nodes; with a shorter one, a node
        /// that stands still for a moment is taken for lost
        #[arg(long, value_name = "SECONDS", default_value_t = 20)]
        lease_seconds: u64,
    },
    /// List the nodes: state, version, load, open intents, undelivered reports, receipts
    #[command(after_help = "\
STATE is `live`, `draining`, `left`, or `lost` and the node that took over. A node
is also `lost` once it has not renewed its lease in time; what it last said of
itself is then not shown. SEEN is the age of its last sign of life, or the time
since it left or was taken over.

QUEUED calls wait for a slot, WAITING intents, which any node decides on, for a
person. OPEN is the number of intents that a node has claimed and whose reports
are not delivered, UNSENT that of the reports that the governor has not
acknowledged. The fleet hash covers the latest receipts of all journals. Each
node writes its figures every 3 s.

Example:
  a2g-executor fleet status --json | jq '.nodes[] | select(.state != \"live\")'")]
    Status {
        #[command(flatten)]
        setup: Setup,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask a node to finish its runs, to leave the fleet and to end, and wait until it has left
    #[command(after_help = "\
The node starts no more runs, and ends those that go on for longer than its
`executor.drain_seconds`. Ctrl-C ends only the wait: the node still leaves.

If the node does not run, or is lost before it has left, the command says since
when and what becomes of its work, and exits with 1.

Example:
  a2g-executor fleet drain exec-1 --config executor.toml")]
    Drain {
        #[command(flatten)]
        setup: Setup,
        /// Return once the node is asked
        #[arg(long)]
        no_wait: bool,
        /// The name of the node (`fleet.node`)
        node: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check a configuration and print the effective settings
    #[command(
        after_help = "Example:\n  a2g-executor config check --config executor.toml && \\\n    systemctl restart a2g-executor"
    )]
    Check(Setup),
}

#[derive(Debug, Subcommand)]
pub(super) enum SecretCommand {
    /// List each secret with its source, age, last use and requests, without its value
    #[command(after_help = "Example:\n  a2g-executor secret list --config executor.toml")]
    List(Setup),
    /// Read each secret as the server does, and print the version of its value
    #[command(
        after_help = "Exit code 1 if one cannot be read.\n\nExample:\n  a2g-executor secret check --config executor.toml"
    )]
    Check(Setup),
}

#[cfg(all(test, feature = "mcp"))]
mod tests {
    use super::*;

    #[test]
    fn a_first_tilde_is_the_home_and_nothing_else_is_changed() {
        let home = Some(Path::new("/home/a"));
        let expanded = |path: &str, home| expand_home(PathBuf::from(path), home);
        for (path, expected) in [
            ("~", "/home/a"),
            ("~/", "/home/a"),
            ("~/x/y", "/home/a/x/y"),
            ("/x/~/y", "/x/~/y"),
            ("/~", "/~"),
            ("./~/x", "./~/x"),
            ("x/~", "x/~"),
            (".", "."),
        ] {
            assert_eq!(expanded(path, home), Ok(PathBuf::from(expected)), "{path}");
        }
        for other in ["~alice", "~alice/x"] {
            assert!(expanded(other, home).unwrap_err().contains(&format!("`./{other}`")), "{other}");
        }
        for without in [None, Some(Path::new("")), Some(Path::new("a"))] {
            assert!(expanded("~/x", without).unwrap_err().starts_with("`HOME` is not set"), "{without:?}");
        }
        assert_eq!(expanded("/x", None), Ok(PathBuf::from("/x")));
    }
}
