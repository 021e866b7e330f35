//! The catalogue: a folder of tools, and what is known of each.
//!
//! ```text
//! catalogue/<name>/tool.toml + tool.wasm ─ digest checked ─▶ private cache, by digest and engine
//!                                                              │ absent: Entry::Preparing, until
//!                                                              │ Catalog::prepare has built it
//!                                                              ▼
//!                                            Descriptor + compiled code + schema validator
//! ```
//! A tool whose file is unreadable, whose digest is wrong or whose module does not compile is kept
//! with the reason, so that a caller is told why instead of being told that it does not exist. Opening a
//! catalogue compiles nothing and runs nothing.

mod cache;
mod code;
mod compiler;
mod componentize;
mod install;
mod manifest;
mod schema;

pub use cache::Cache;
pub use code::sealed;
pub use compiler::{
    CompileJob, CompileLimits, Compiled, Compiler, MAX_CODE_BYTES, MAX_MODULE_BYTES, write_code,
};
pub use componentize::{componentize, is_typed_core_module};
pub use install::install;
pub use manifest::{ManifestError, ToolManifest};
pub use schema::{QuickCheck, Schema, UnboundedSchemaError, Violation};

use crate::ident::{IdentError, ToolName};
use crate::tool::{Descriptor, Digest};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Why a tool cannot be used, or a catalogue not be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A file or folder could not be read or written.
    #[error("`{path}`: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said. Part of the sentence, so no `source`, which a chain would say again.
        error: std::io::Error,
    },
    /// A FIFO, a device or a folder stands where a file should.
    #[error("`{0}` is not a regular file")]
    NotAFile(PathBuf),
    /// A file is larger than is read.
    #[error("`{path}` has {bytes} bytes, and {max_bytes} are the most that is read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// `tool.toml` is not what it should be.
    #[error("`{path}`: {reason}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and key. Part of the sentence, so no `source`, which a chain would say again.
        reason: ManifestError,
    },
    /// The folder's name is not a tool's name.
    #[error(transparent)]
    Name(#[from] IdentError),
    /// The module is not the one that `tool.toml` pins.
    #[error(
        "the module's SHA-256 is {found}, but `tool.toml` pins {pinned}: it was changed after it was added"
    )]
    Digest {
        /// What the file has.
        found: String,
        /// What the manifest pins.
        pinned: String,
    },
    /// The module does not compile, or does not fit its contract.
    #[error("{0}")]
    Module(String),
    /// The argument schema is not a JSON Schema.
    #[error("the argument schema is not a JSON Schema: {0}")]
    Schema(String),
    /// The argument schema is one whose validation could take any time.
    #[error("the argument schema cannot be held to a budget: {0}")]
    SchemaTooComplex(UnboundedSchemaError),
    /// The cache is not private.
    #[error("the compile cache `{path}` is not private: {reason}")]
    CacheNotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// Who else could write it.
        reason: &'static str,
    },
}

impl CatalogError {
    /// What a caller may be told: the same without host paths.
    #[must_use]
    pub fn public_message(&self) -> String {
        match self {
            Self::Io { .. } => "its module cannot be read".to_owned(),
            Self::NotAFile(_) => "one of its files is not a regular file".to_owned(),
            Self::TooLarge { path: _, bytes, max_bytes } => {
                format!("one of its files has {bytes} bytes, and {max_bytes} are the most that is read")
            }
            Self::Manifest { .. } => "its `tool.toml` is not valid".to_owned(),
            Self::CacheNotPrivate { .. } => "the executor's compile cache is not private".to_owned(),
            Self::Digest { .. }
            | Self::Name(_)
            | Self::Module(_)
            | Self::Schema(_)
            | Self::SchemaTooComplex(_) => self.to_string(),
        }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// One usable tool.
#[derive(Debug)]
pub struct Tool {
    /// What it says about itself.
    pub descriptor: Descriptor,
    /// Its arguments' schema, ready to validate.
    pub schema: Schema,
    /// The compiled module, in a sealed memory file.
    pub compiled: File,
    /// Whether the compiled module is a component.
    pub component: bool,
    /// A core module's other form, compiled, or why it has none; see [`Compiled::componentised`].
    pub componentised: Option<Result<File, String>>,
}

/// A tool by its name.
#[derive(Debug, Clone)]
pub enum Entry {
    /// It can be used.
    Ready(Arc<Tool>),
    /// Its module is not compiled yet.
    Preparing,
    /// It cannot be used, and why.
    Broken(Arc<CatalogError>),
}

impl Entry {
    /// The tool, when it can be used.
    #[must_use]
    pub fn tool(&self) -> Option<&Arc<Tool>> {
        match self {
            Self::Ready(tool) => Some(tool),
            Self::Preparing | Self::Broken(_) => None,
        }
    }

    /// Why the tool cannot be used.
    #[must_use]
    pub fn error(&self) -> Option<&CatalogError> {
        match self {
            Self::Broken(error) => Some(error),
            Self::Ready(_) | Self::Preparing => None,
        }
    }
}

impl From<Result<Option<Tool>, CatalogError>> for Entry {
    fn from(opened: Result<Option<Tool>, CatalogError>) -> Self {
        match opened {
            Ok(Some(tool)) => Self::Ready(Arc::new(tool)),
            Ok(None) => Self::Preparing,
            Err(error) => Self::Broken(Arc::new(error)),
        }
    }
}

/// Builds a tool's code: compiles its module, loads the code for a try, and asks a typed tool what it is, each
/// in a confined process.
pub trait Build: Sync {
    /// Builds one module.
    ///
    /// # Errors
    /// [`CatalogError::Module`] when it does not compile, link or answer.
    fn build(&self, name: &str, job: &CompileJob) -> Result<Compiled, CatalogError>;
}

/// The tools of one folder.
#[derive(Debug, Default, Clone)]
pub struct Catalog {
    tools: BTreeMap<ToolName, Entry>,
    /// Folders whose names no tool can have.
    misnamed: BTreeMap<String, Arc<CatalogError>>,
}

impl Catalog {
    /// Reads a folder of tools. Those that the cache does not have are [`Entry::Preparing`].
    ///
    /// # Ambient Authority
    /// Reads the folder and the cache.
    ///
    /// # Errors
    /// [`CatalogError`] when the folder itself cannot be read. A single broken tool is no error.
    pub fn open(folder: &Path, cache: &Cache) -> Result<Self, CatalogError> {
        let mut catalog = Self::default();
        for entry in std::fs::read_dir(folder).map_err(|error| CatalogError::io(folder, error))? {
            let path = entry.map_err(|error| CatalogError::io(folder, error))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // A leading dot is a folder that `tool add` is working on, or left when it was killed.
            if name.starts_with('.') || path.join(manifest::FILE).symlink_metadata().is_err() {
                continue;
            }
            match ToolName::parse(&name) {
                Ok(name) => catalog.insert(name.clone(), open_tool(&path, &name, cache, None).into()),
                Err(error) => {
                    let shown = crate::ident::excerpt(&name);
                    tracing::warn!(folder = shown, %error, "this folder of the catalogue is left out");
                    catalog.misnamed.insert(shown, Arc::new(error.into()));
                }
            }
        }
        Ok(catalog)
    }

    /// Puts a tool in the place of the one that has its name.
    pub fn insert(&mut self, name: ToolName, entry: Entry) {
        if let Some(error) = entry.error() {
            tracing::warn!(tool = %name, %error, "this tool cannot be used");
        }
        self.tools.insert(name, entry);
    }

    /// A tool by its name.
    #[must_use]
    pub fn get(&self, name: &ToolName) -> Option<&Entry> {
        self.tools.get(name)
    }

    /// All tools, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ToolName, &Entry)> {
        self.tools.iter()
    }

    /// The tools that can be used, sorted by name.
    pub fn ready(&self) -> impl Iterator<Item = (&ToolName, &Arc<Tool>)> {
        self.iter().filter_map(|(name, entry)| Some((name, entry.tool()?)))
    }

    /// The folders that are left out because no tool can have their name, with the reason.
    pub fn misnamed(&self) -> impl Iterator<Item = (&str, &CatalogError)> {
        self.misnamed.iter().map(|(name, error)| (name.as_str(), &**error))
    }

    /// The tools that have to be built.
    #[must_use]
    pub fn preparing(&self) -> Vec<ToolName> {
        let preparing = self.iter().filter(|(_, entry)| matches!(entry, Entry::Preparing));
        preparing.map(|(name, _)| name.clone()).collect()
    }

    /// Builds the tools that are [`Entry::Preparing`], as many at once as there are cores.
    pub fn prepare(&mut self, folder: &Path, cache: &Cache, build: &dyn Build) {
        prepare(self.preparing(), folder, cache, build, |built| {
            built.into_iter().for_each(|(name, entry)| self.insert(name, entry));
        });
    }
}

/// Builds tools, as many at once as there are cores, and hands what became of each to `take` while the others
/// go on.
///
/// # Ambient Authority
/// Reads the folder, reads and writes the cache, and does what `build` does.
pub fn prepare<T>(
    names: Vec<ToolName>,
    folder: &Path,
    cache: &Cache,
    build: &dyn Build,
    take: impl FnOnce(mpsc::Receiver<(ToolName, Entry)>) -> T,
) -> T {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(names.len());
    let names = Mutex::new(names.into_iter());
    let (built, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            let built = built.clone();
            let names = &names;
            scope.spawn(move || {
                loop {
                    let next = names.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(name) = next else { return };
                    let entry = open_tool(&folder.join(name.as_str()), &name, cache, Some(build)).into();
                    let _nobody_waits = built.send((name, entry));
                }
            });
        }
        drop(built);
        take(results)
    })
}

/// Reads one tool's folder; `None` when its code is not in the cache and there is nobody to build it.
fn open_tool(
    folder: &Path,
    name: &ToolName,
    cache: &Cache,
    build: Option<&dyn Build>,
) -> Result<Option<Tool>, CatalogError> {
    let manifest = ToolManifest::read(&folder.join(manifest::FILE))?;
    if manifest.name != *name {
        return Err(CatalogError::Manifest {
            path: folder.join(manifest::FILE),
            reason: format!("`name` is `{}`, but the folder is called `{name}`", manifest.name).into(),
        });
    }
    let wasm = code::read_regular(&folder.join(&manifest.module), MAX_MODULE_BYTES)?;
    let digest = Digest::of(&wasm);
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
    make(manifest, digest, wasm, cache, build)
}

/// Makes a tool of a module that was checked, from the cache or by building it.
fn make(
    manifest: ToolManifest,
    digest: Digest,
    wasm: Vec<u8>,
    cache: &Cache,
    build: Option<&dyn Build>,
) -> Result<Option<Tool>, CatalogError> {
    let job = CompileJob { wasm, contract: manifest.contract };
    let Some(compiled) = cached_or_built(manifest.name.as_str(), digest, &job, cache, build)? else {
        return Ok(None);
    };
    let Compiled { module, component, componentised, described } = compiled;
    let (manifest, arguments_schema) = manifest.complete(described)?;
    let schema = Schema::new(&arguments_schema)?;
    let descriptor = Descriptor {
        name: manifest.name,
        version: manifest.version,
        description: manifest.description,
        contract: manifest.contract,
        digest,
        arguments_schema,
        capabilities: manifest.capabilities,
    };
    Ok(Some(Tool { descriptor, schema, compiled: module, component, componentised }))
}

/// The code of a module, from the cache or by building it; `None` when it is in no cache and nobody builds it.
fn cached_or_built(
    name: &str,
    digest: Digest,
    job: &CompileJob,
    cache: &Cache,
    build: Option<&dyn Build>,
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
