//! The catalogue: a folder of tools with their descriptors, compiled code and schemas.
//!
//! ```text
//! catalogue/<name>/tool.toml + tool.wasm ─ digest checked ─▶ private cache, by digest and engine
//!                                                              │ absent: CatalogEntry::Preparing, until
//!                                                              │ Catalog::prepare has built it; listed
//!                                                              │ meanwhile if its package has its schema
//!                                                              ▼
//!                                            Descriptor + compiled code + schema validator
//! ```
//! If the operator requires signatures (`[catalog.trust]`), they are checked before the cache is read.
//!
//! A tool whose file is unreadable, whose digest is wrong or whose module does not compile stays in the
//! catalogue, so that a caller gets the reason instead of an unknown tool. Opening a catalogue neither
//! compiles nor runs a module, so that a server can listen before its tools are compiled.

mod cache;
mod code;
mod compiler;
mod componentize;
mod definition;
mod example;
mod facts;
mod install;
mod manifest;
mod package;
mod reference;
mod schema;
mod signed;
mod tools_folder;
mod trust;

pub use cache::Cache;
pub use code::create_sealed;
pub use compiler::{
    CompileJob, CompileLimits, Compiled, Compiler, MAX_CODE_BYTES, MAX_MODULE_BYTES, MAX_PULLED_MODULE_BYTES,
    write_code,
};
pub use componentize::{componentize, is_typed_core_module};
pub use definition::{
    Access, Change, ChangeKind, Definition, Definitions, Installation, Part, Update, compare, reject,
    waiting_updates,
};
pub use example::{AnswerBody, Example, Expected, RecordedAnswer};
pub use facts::ModuleFacts;
pub use install::{BareModule, CheckedTool, Installer, check, check_bare};
pub use manifest::{ManifestError, ToolManifest};
pub use package::{
    CONFIG_TYPE, MANIFEST_TYPE, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES, MODULE_TYPE, Package, PackageError,
    write_arguments,
};
pub use reference::{
    PinnedReference, Reference, ReferenceError, RemoteTool, Repository, Version, is_local_host, is_tag,
};
pub use schema::{QuickCheck, Schema, SchemaError, UnboundedSchemaError, Violation};
pub use signed::{SignedFolder, package_folder, sign};
pub use trust::MAX_SIGNATURES_BYTES;
pub use trust::find_installed_package;

use a2g_govern::{SignatureError, ToolTrust, TrustedTool};
use a2g_types::ident::{IdentError, ToolName};
use a2g_types::outcome::DecisionAct;
use a2g_types::tool::{CallTargets, Descriptor, Digest};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use trust::{PackageFiles, check_trust};

/// The size of a module, in bytes, from which its compilation takes seconds, and gives way to everything else.
const LARGE_MODULE_BYTES: u64 = 4 << 20;

/// The reason why a tool is unusable, or a catalogue cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A file or folder could not be read or written.
    #[error("`{path}`: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error. It is part of the message; as a `source`, an error chain would print it twice.
        error: std::io::Error,
    },
    /// The path is a FIFO, a device, a folder or a link.
    #[error("`{0}` is not a regular file")]
    NotAFile(PathBuf),
    /// A file exceeds its size limit.
    #[error("`{path}` has {bytes} bytes, but at most {max_bytes} are accepted")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        max_bytes: u64,
    },
    /// `tool.toml` is not valid.
    #[error("`{path}`: {reason}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The problem, with line and key.
        reason: ManifestError,
    },
    /// The folder's name is not a valid tool name.
    #[error(transparent)]
    Name(#[from] IdentError),
    /// The name is that of a decision on file changes.
    #[error(
        "`{0}` names a decision on the file changes of a run, so no tool may have the name: give it another one"
    )]
    ReservedName(ToolName),
    /// The module's digest differs from the one in `tool.toml`.
    #[error(
        "the module's SHA-256 is {found}, but `tool.toml` pins {pinned}: the module was changed after it was added"
    )]
    Digest {
        /// The digest of the file.
        found: String,
        /// The digest in `tool.toml`.
        pinned: String,
    },
    /// The package beside the tool is invalid, or that of another tool.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The tool lacks a signature that the operator requires.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The tool cannot be signed.
    #[error(transparent)]
    Sign(#[from] a2g_govern::SignError),
    /// An older version would replace the installed one.
    #[error(
        "version `{offered}` of `{name}` is older than the installed version `{installed}`, and an old signature is as valid \
         as a new one: to go back to it, remove `{name}` from the catalogue first"
    )]
    Rollback {
        /// The tool.
        name: ToolName,
        /// The version to be installed.
        offered: String,
        /// The version that is installed.
        installed: String,
    },
    /// A validly signed version that might be older would replace the installed one.
    #[error(
        "version `{offered}` of `{name}` cannot be compared with the installed version `{installed}`, because it is not a \
         semantic version, so it may be older: its signer should give it a semantic version, such as 1.2.3; to install it \
         as it is, remove `{name}` from the catalogue first"
    )]
    NotComparable {
        /// The tool.
        name: ToolName,
        /// The version to be installed.
        offered: String,
        /// The version that is installed.
        installed: String,
    },
    /// The signed package in a tool's folder was made of other files than the folder has now.
    #[error(
        "`{folder}` does not match {file}, which changed after it was signed: sign the tool again with \
         `a2g-executor tool sign`, or remove `{folder}`"
    )]
    SignedOutdated {
        /// The folder with the signed package.
        folder: PathBuf,
        /// The file that was changed.
        file: &'static str,
    },
    /// The module starts with more memory than its author declares.
    #[error(
        "the module needs {needed_mb} MB of memory to start, but `tool.toml` declares `max_memory_mb = {declared_mb}`: \
         declare at least {needed_mb}, or build the module with a smaller stack"
    )]
    StartMemory {
        /// The memory that the module starts with, in MB.
        needed_mb: u64,
        /// `capabilities.max_memory_mb`.
        declared_mb: u64,
    },
    /// The module does not compile, or violates its contract.
    #[error("{0}")]
    Module(String),
    /// The package of the tool describes other arguments than its module.
    #[error(
        "`arguments.json` is not the schema of the arguments that the module reports: add the tool again with \
         `a2g-executor tool add`"
    )]
    ArgumentsDiffer,
    /// The argument schema is not a JSON Schema.
    #[error("the argument schema is not a JSON Schema: {0}")]
    Schema(String),
    /// The result schema cannot be used.
    #[error("the schema `[result]` of `tool.toml`: {0}")]
    ResultSchema(SchemaError),
    /// The cost of a validation with the argument schema has no acceptable bound.
    #[error("the argument schema is too complex: {0}")]
    SchemaTooComplex(UnboundedSchemaError),
    /// The definition of the tool changed since it was accepted.
    #[error(
        "its definition changed since it was accepted ({}): `a2g-executor tool approve {tool}` shows the difference, and \
         accepts it",
        part_names(parts)
    )]
    DefinitionChanged {
        /// The tool.
        tool: ToolName,
        /// The parts that changed and need approval.
        parts: Vec<Part>,
    },
    /// The file of accepted definitions cannot be written.
    #[error(
        "the accepted definitions of tools cannot be written to `{path}` (`catalog.definitions`): {reason}"
    )]
    DefinitionsNotWritten {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The file of accepted definitions cannot be used.
    #[error("the accepted definitions of tools in `{path}` (`catalog.definitions`) cannot be used: {reason}")]
    Definitions {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The update was replaced after its changes were shown and before its approval.
    #[error("the update of `{0}` that was shown was replaced: run `a2g-executor tool approve {0}` again")]
    UpdateReplaced(ToolName),
    /// Other users may write to the cache, which contains machine code.
    #[error("the compile cache `{path}` is not private: {reason}")]
    CacheNotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        reason: &'static str,
    },
}

impl CatalogError {
    /// The message for callers, without host paths.
    #[must_use]
    pub fn public_message(&self) -> String {
        match self {
            Self::Io { .. } => "its module cannot be read".to_owned(),
            Self::NotAFile(_) => "one of its files is not a regular file".to_owned(),
            Self::TooLarge { path: _, bytes, max_bytes } => {
                format!("one of its files has {bytes} bytes, but at most {max_bytes} are accepted")
            }
            Self::Manifest { .. } => "its `tool.toml` is not valid".to_owned(),
            Self::DefinitionChanged { tool: _, parts } => format!(
                "its definition changed since an operator accepted it ({}), and the change is not approved",
                part_names(parts)
            ),
            Self::Definitions { .. } => {
                "the executor's list of accepted definitions cannot be used".to_owned()
            }
            Self::DefinitionsNotWritten { .. } => {
                "its definition cannot be recorded, because nothing can be written to the executor's list of accepted \
                 definitions: its operator makes room, and loads the catalogue again (SIGHUP)"
                    .to_owned()
            }
            Self::CacheNotPrivate { .. } => "the executor's compile cache is not private".to_owned(),
            Self::SignedOutdated { .. } => "its signed package is not that of its files".to_owned(),
            Self::Digest { .. }
            | Self::Name(_)
            | Self::ReservedName(_)
            | Self::UpdateReplaced(_)
            | Self::Package(_)
            | Self::Signature(_)
            | Self::Sign(_)
            | Self::Rollback { .. }
            | Self::NotComparable { .. }
            | Self::StartMemory { .. }
            | Self::Module(_)
            | Self::ArgumentsDiffer
            | Self::Schema(_)
            | Self::ResultSchema(_)
            | Self::SchemaTooComplex(_) => self.to_string(),
        }
    }

    /// Returns `true` for an installed tool whose signature, definition or module is not one that an operator accepted.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        match self {
            // An installed tool is compared with its package only if signatures are required.
            Self::Signature(_) | Self::Package(_) => true,
            Self::Digest { .. } | Self::DefinitionChanged { .. } | Self::ArgumentsDiffer => true,
            Self::Definitions { .. } | Self::DefinitionsNotWritten { .. } => true,
            Self::Io { .. }
            | Self::NotAFile(_)
            | Self::TooLarge { .. }
            | Self::Manifest { .. }
            | Self::Name(_)
            | Self::ReservedName(_)
            | Self::Sign(_)
            | Self::Rollback { .. }
            | Self::NotComparable { .. }
            | Self::SignedOutdated { .. }
            | Self::UpdateReplaced(_)
            | Self::StartMemory { .. }
            | Self::Module(_)
            | Self::Schema(_)
            | Self::ResultSchema(_)
            | Self::SchemaTooComplex(_)
            | Self::CacheNotPrivate { .. } => false,
        }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// Parses the name of a tool that the catalogue may have.
///
/// # Errors
/// [`CatalogError::Name`] and [`CatalogError::ReservedName`].
fn parse_tool_name(text: &str) -> Result<ToolName, CatalogError> {
    let name = ToolName::parse(text)?;
    match DecisionAct::of_tool(name.as_str()) {
        Some(_decision) => Err(CatalogError::ReservedName(name)),
        None => Ok(name),
    }
}

/// The keys of the parts, separated by commas.
fn part_names(parts: &[Part]) -> String {
    parts.iter().map(Part::to_string).collect::<Vec<_>>().join(", ")
}

/// A usable tool.
#[derive(Debug)]
pub struct Tool {
    /// The tool's name, version, description and capabilities.
    pub descriptor: Descriptor,
    /// The compiled schema of its arguments.
    pub schema: Schema,
    /// The compiled schema of its result.
    pub result_schema: Option<Schema>,
    /// The compiled module, in a sealed memory file.
    pub compiled: File,
    /// `true` if the compiled module is a component.
    pub component: bool,
    /// The compiled component form of a core module, or the reason why there is none: see
    /// [`Compiled::componentised`].
    pub componentised: Option<Result<File, String>>,
    /// The imports and the start memory of the module.
    pub facts: ModuleFacts,
    /// The evidence that the tool may be loaded.
    pub trusted: TrustedTool,
}

/// A tool whose module is not compiled yet.
#[derive(Debug, Clone)]
pub struct Preparing {
    /// The tool as its package describes it, to be confirmed by its module; `None` if the package has no schema of the
    /// arguments.
    pub descriptor: Option<Arc<Descriptor>>,
    /// The size of the module, in bytes.
    pub module_bytes: u64,
}

/// A tool's folder that was read.
enum Opened {
    Ready(Box<Tool>),
    Preparing(Preparing),
}

/// An entry of the catalogue.
#[derive(Debug, Clone)]
pub enum CatalogEntry {
    /// The tool is usable.
    Ready(Arc<Tool>),
    /// The tool's module is not compiled yet.
    Preparing(Preparing),
    /// The tool is unusable. Contains the reason.
    Broken(Arc<CatalogError>),
}

impl CatalogEntry {
    /// The tool, if it is usable.
    #[must_use]
    pub fn tool(&self) -> Option<&Arc<Tool>> {
        match self {
            Self::Ready(tool) => Some(tool),
            Self::Preparing(_) | Self::Broken(_) => None,
        }
    }

    /// The reason why the tool is unusable.
    #[must_use]
    pub fn error(&self) -> Option<&CatalogError> {
        match self {
            Self::Broken(error) => Some(error),
            Self::Ready(_) | Self::Preparing(_) => None,
        }
    }
}

impl From<Result<Opened, CatalogError>> for CatalogEntry {
    fn from(opened: Result<Opened, CatalogError>) -> Self {
        match opened {
            Ok(Opened::Ready(tool)) => Self::Ready(Arc::from(tool)),
            Ok(Opened::Preparing(preparing)) => Self::Preparing(preparing),
            Err(error) => Self::Broken(Arc::new(error)),
        }
    }
}

/// Builds a tool's code in confined processes: compiles the module, loads the code as a test, and queries the
/// description of a typed tool.
pub trait ToolBuilder: Sync {
    /// Builds one module.
    ///
    /// # Errors
    /// [`CatalogError::Module`] when the module does not compile, link or answer.
    fn build(&self, name: &str, job: &CompileJob) -> Result<Compiled, CatalogError>;
}

/// The tools of one folder, by name.
#[derive(Debug, Default, Clone)]
pub struct Catalog {
    tools: BTreeMap<ToolName, CatalogEntry>,
    /// Folders whose names are not valid tool names.
    misnamed: BTreeMap<String, Arc<CatalogError>>,
}

impl Catalog {
    /// Reads a folder of tools. A tool whose code is not in the cache is [`CatalogEntry::Preparing`]. A tool that
    /// `trust` refuses is [`CatalogEntry::Broken`], and neither compiled nor read from the cache. A tool whose
    /// definition is not the accepted one is also broken.
    ///
    /// # Ambient Authority
    /// Reads the folder and the cache, and reads and writes the file of `definitions`.
    ///
    /// # Errors
    /// [`CatalogError`] when the folder itself or the file of definitions cannot be read. A broken tool is a
    /// [`CatalogEntry::Broken`].
    pub fn open(
        folder: &Path,
        cache: &Cache,
        trust: &ToolTrust,
        definitions: &Definitions,
    ) -> Result<Self, CatalogError> {
        let mut catalog = Self::default();
        let mut opened = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|error| CatalogError::io(folder, error))? {
            let path = entry.map_err(|error| CatalogError::io(folder, error))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // A leading dot marks a temporary folder of `tool add`, which remains if that process is killed.
            if name.starts_with('.') || path.join(manifest::FILE).symlink_metadata().is_err() {
                continue;
            }
            match parse_tool_name(&name) {
                Ok(name) => {
                    let tool = open_tool(&path, &name, cache, None, trust);
                    opened.push((name, tool));
                }
                Err(error) => {
                    let excerpt = a2g_types::ident::excerpt(&name);
                    tracing::warn!(folder = excerpt, %error, "skipped a folder of the catalogue whose name no tool may have");
                    catalog.misnamed.insert(excerpt, Arc::new(error));
                }
            }
        }
        let ready = opened.iter().filter_map(|(_, tool)| match tool {
            Ok(Opened::Ready(tool)) => Some(&tool.descriptor),
            Ok(Opened::Preparing(_)) | Err(_) => None,
        });
        let mut admitted = definitions.admit(&ready.collect::<Vec<_>>())?.into_iter();
        for (name, tool) in opened {
            let tool = tool.and_then(|tool| match &tool {
                // Fails closed if there were fewer results than tools.
                Opened::Ready(_) => admitted.next().unwrap_or_else(|| Err(not_compared())).map(|()| tool),
                // Nothing is remembered before the module has confirmed it.
                Opened::Preparing(Preparing { descriptor: Some(descriptor), .. }) => {
                    definitions.check(descriptor).map(|()| tool)
                }
                Opened::Preparing(Preparing { descriptor: None, .. }) => Ok(tool),
            });
            catalog.insert(name, tool.into());
        }
        Ok(catalog)
    }

    /// Adds a tool, or replaces the one of the same name.
    pub fn insert(&mut self, name: ToolName, entry: CatalogEntry) {
        if let Some(error) = entry.error() {
            tracing::warn!(tool = %name, %error, "this tool cannot be used");
        }
        self.tools.insert(name, entry);
    }

    /// The entry of a tool.
    #[must_use]
    pub fn get(&self, name: &ToolName) -> Option<&CatalogEntry> {
        self.tools.get(name)
    }

    /// All entries, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ToolName, &CatalogEntry)> {
        self.tools.iter()
    }

    /// The usable tools, sorted by name.
    pub fn ready_tools(&self) -> impl Iterator<Item = (&ToolName, &Arc<Tool>)> {
        self.iter().filter_map(|(name, entry)| Some((name, entry.tool()?)))
    }

    /// The folders whose names are not valid tool names, with the reason.
    pub fn misnamed_folders(&self) -> impl Iterator<Item = (&str, &CatalogError)> {
        self.misnamed.iter().map(|(name, error)| (name.as_str(), &**error))
    }

    /// The tools that are not built yet, the smallest first: their callers wait the shortest time.
    #[must_use]
    pub fn preparing_tools(&self) -> Vec<ToolName> {
        let preparing = self.iter().filter_map(|(name, entry)| match entry {
            CatalogEntry::Preparing(preparing) => Some((preparing.module_bytes, name.clone())),
            CatalogEntry::Ready(_) | CatalogEntry::Broken(_) => None,
        });
        let mut preparing = preparing.collect::<Vec<_>>();
        preparing.sort();
        preparing.into_iter().map(|(_bytes, name)| name).collect()
    }

    /// As [`Self::preparing_tools`], those that a call of `tool` needs: itself, and what it and the tools that it
    /// calls may call.
    #[must_use]
    pub fn preparing_for(&self, tool: &ToolName) -> Vec<ToolName> {
        let mut needed = BTreeSet::new();
        let mut open = vec![tool.clone()];
        while let Some(name) = open.pop() {
            let calls = match self.get(&name) {
                Some(CatalogEntry::Ready(tool)) => Some(&tool.descriptor.capabilities.calls),
                Some(CatalogEntry::Preparing(preparing)) => {
                    preparing.descriptor.as_ref().map(|descriptor| &descriptor.capabilities.calls)
                }
                Some(CatalogEntry::Broken(_)) | None => continue,
            };
            match calls {
                Some(CallTargets::Named(names)) => {
                    if needed.insert(name) {
                        open.extend(names.iter().cloned());
                    }
                }
                Some(CallTargets::All) | None => return self.preparing_tools(),
            }
        }
        let mut preparing = self.preparing_tools();
        preparing.retain(|name| needed.contains(name));
        preparing
    }

    /// Returns `true` if every tool that is not broken has a descriptor.
    #[must_use]
    pub fn has_all_descriptors(&self) -> bool {
        self.iter().all(|(_, entry)| match entry {
            CatalogEntry::Preparing(preparing) => preparing.descriptor.is_some(),
            CatalogEntry::Ready(_) | CatalogEntry::Broken(_) => true,
        })
    }

    /// Builds these tools in parallel, one on each core.
    pub fn prepare(
        &mut self,
        names: Vec<ToolName>,
        folder: &Path,
        cache: &Cache,
        build: &dyn ToolBuilder,
        trust: &ToolTrust,
        definitions: &Definitions,
    ) {
        prepare(names, folder, cache, build, trust, definitions, |entries| {
            entries.into_iter().for_each(|(name, entry)| self.insert(name, entry));
        });
    }
}

fn not_compared() -> CatalogError {
    CatalogError::Module("its definition was not compared with the accepted one".to_owned())
}

/// Builds tools in parallel, one on each core, and compares their definitions with the accepted ones. `consume`
/// receives each result while the other builds continue.
///
/// # Ambient Authority
/// Reads the folder, reads and writes the cache and the file of `definitions`, and runs `build`.
pub fn prepare<T>(
    names: Vec<ToolName>,
    folder: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
    trust: &ToolTrust,
    definitions: &Definitions,
    consume: impl FnOnce(mpsc::Receiver<(ToolName, CatalogEntry)>) -> T,
) -> T {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(names.len());
    let names = Mutex::new(names.into_iter());
    let (result_tx, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            let result_tx = result_tx.clone();
            let names = &names;
            scope.spawn(move || {
                loop {
                    let next = names.lock().next();
                    let Some(name) = next else { return };
                    let tool = open_tool(&folder.join(name.as_str()), &name, cache, Some(build), trust);
                    let entry = tool.and_then(|tool| admit(tool, definitions)).into();
                    if result_tx.send((name, entry)).is_err() {
                        // The others are not awaited either.
                        return;
                    }
                }
            });
        }
        drop(result_tx);
        consume(results)
    })
}

/// Returns the tool if its definition is the accepted one.
fn admit(opened: Opened, definitions: &Definitions) -> Result<Opened, CatalogError> {
    let Opened::Ready(tool) = &opened else { return Ok(opened) };
    definitions.admit(&[&tool.descriptor])?.into_iter().next().unwrap_or_else(|| Err(not_compared()))?;
    Ok(opened)
}

/// Opens the tool in a folder. It is [`Opened::Preparing`] when its code is not cached and `build` is `None`.
fn open_tool(
    folder: &Path,
    name: &ToolName,
    cache: &Cache,
    build: Option<&dyn ToolBuilder>,
    trust: &ToolTrust,
) -> Result<Opened, CatalogError> {
    let (manifest, text) = ToolManifest::read_with_text(&folder.join(manifest::FILE))?;
    if manifest.name != *name {
        return Err(CatalogError::Manifest {
            path: folder.join(manifest::FILE),
            reason: format!("`name` is `{}`, but the folder is called `{name}`", manifest.name).into(),
        });
    }
    let wasm = code::read_regular_file(&folder.join(&manifest.module), MAX_MODULE_BYTES)?;
    let digest = Digest::compute(&wasm);
    let files = if trust.requires_signatures() {
        PackageFiles::read(folder)?
    } else {
        PackageFiles { arguments: package::read_arguments(folder)?, ..PackageFiles::default() }
    };
    let trusted = check_trust(trust, &manifest, &text, digest, &files)?;
    match &manifest.sha256 {
        Some(pinned) if *pinned == digest.to_string() => {}
        Some(pinned) => {
            return Err(CatalogError::Digest { found: digest.to_string(), pinned: pinned.clone() });
        }
        None => {
            return Err(CatalogError::Manifest {
                path: folder.join(manifest::FILE),
                reason: "`sha256` is missing: add the tool with `a2g-executor tool add`, which pins it"
                    .into(),
            });
        }
    }
    assemble(manifest, digest, wasm, files.arguments.as_deref(), cache, build, trusted)
}

/// Assembles a tool from a module with a valid digest. `arguments` is the schema of a typed tool's arguments in its
/// package, if the package has it.
fn assemble(
    manifest: ToolManifest,
    digest: Digest,
    wasm: Vec<u8>,
    arguments: Option<&str>,
    cache: &Cache,
    build: Option<&dyn ToolBuilder>,
    trusted: TrustedTool,
) -> Result<Opened, CatalogError> {
    let announced = match &manifest.arguments {
        Some(declared) => Some(declared.clone()),
        None => arguments.map(Schema::parse).transpose()?,
    };
    let job = CompileJob { wasm, contract: manifest.contract };
    let Some(compiled) = load_or_build(manifest.name.as_str(), digest, &job, cache, build, &trusted)? else {
        let descriptor = match announced {
            // Checked as that of a built tool is: clients get it.
            Some(schema) => {
                Schema::new(&schema)?;
                manifest.result.as_ref().map(Schema::new_for_result).transpose()?;
                Some(Arc::new(describe(manifest, digest, schema, &trusted)))
            }
            None => None,
        };
        return Ok(Opened::Preparing(Preparing { descriptor, module_bytes: job.wasm.len() as u64 }));
    };
    let Compiled { module, component, componentised, described, facts } = compiled;
    let (manifest, arguments_schema) = manifest.complete(described)?;
    if announced.is_some_and(|announced| announced != arguments_schema) {
        return Err(CatalogError::ArgumentsDiffer);
    }
    let schema = Schema::new(&arguments_schema)?;
    let result_schema = manifest.result.as_ref().map(Schema::new_for_result).transpose()?;
    let descriptor = describe(manifest, digest, arguments_schema, &trusted);
    let compiled = module;
    let tool = Tool { descriptor, schema, result_schema, compiled, component, componentised, facts, trusted };
    Ok(Opened::Ready(Box::new(tool)))
}

fn describe(
    manifest: ToolManifest,
    digest: Digest,
    arguments_schema: Value,
    trusted: &TrustedTool,
) -> Descriptor {
    Descriptor {
        name: manifest.name,
        title: manifest.title,
        version: manifest.version,
        description: manifest.description,
        contract: manifest.contract,
        digest: match &manifest.settings {
            Some(settings) => settings_digest(digest, settings),
            None => digest,
        },
        arguments_schema,
        result_schema: manifest.result,
        settings: manifest.settings,
        is_idempotent: manifest.idempotent,
        has_sessions: manifest.session,
        capabilities: manifest.capabilities,
        signature: trusted.signature().cloned(),
    }
}

/// The digest of what a tool with settings runs: its module and the settings, whatever their order.
fn settings_digest(module: Digest, settings: &Map<String, Value>) -> Digest {
    let mut sorted = Value::Object(settings.clone());
    sorted.sort_all_objects();
    Digest::compute(format!("{module} {sorted}").as_bytes())
}

/// The code of a module, from the cache or the builder; `None` when it is not cached and `build` is `None`.
// The evidence is a parameter, so no caller can skip the check.
fn load_or_build(
    name: &str,
    digest: Digest,
    job: &CompileJob,
    cache: &Cache,
    build: Option<&dyn ToolBuilder>,
    _trusted: &TrustedTool,
) -> Result<Option<Compiled>, CatalogError> {
    let key = cache.key(digest, job.contract);
    match (cache.read(&key)?, build) {
        (Some(compiled), _) => Ok(Some(compiled)),
        (None, None) => Ok(None),
        (None, Some(build)) => {
            let compiled = build.build(name, job)?;
            cache.write(&key, &compiled)?;
            Ok(Some(compiled))
        }
    }
}
