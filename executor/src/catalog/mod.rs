//! The catalogue: a folder of tools, and what is known of each.
//!
//! ```text
//! catalogue/<name>/tool.toml + tool.wasm ─ digest checked ─▶ private cache, by digest and engine
//!                                                              │ absent: compiled in a child process
//!                                                              ▼
//!                                            Descriptor + compiled bytes + schema validator
//! ```
//! A tool whose file is unreadable, whose digest is wrong or whose module does not compile is kept
//! with the reason, so that a caller is told why instead of being told that it does not exist.

mod cache;
mod compiler;
mod componentize;
mod install;
mod manifest;
mod schema;

pub use cache::Cache;
pub use compiler::{CompileJob, Compiled, Compiler};
pub use componentize::{componentize, is_typed_core_module};
pub use install::install;
pub use manifest::ToolManifest;
pub use schema::{QuickCheck, Schema, Violation};

use crate::ident::{IdentError, ToolName};
use crate::tool::{Descriptor, Digest};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    /// `tool.toml` is not what it should be.
    #[error("`{path}`: {reason}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and key.
        reason: String,
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
    SchemaTooComplex(String),
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
    /// The compiled module.
    pub compiled: Vec<u8>,
    /// Whether the compiled module is a component.
    pub component: bool,
    /// A core module's other form, compiled, or why it has none; see [`Compiled::componentised`].
    pub componentised: Option<Result<Vec<u8>, String>>,
}

/// A tool by its name: usable, or not and why.
pub type Entry = Result<Tool, CatalogError>;

/// The tools of one folder.
#[derive(Debug, Default)]
pub struct Catalog {
    tools: BTreeMap<ToolName, Entry>,
}

impl Catalog {
    /// Reads a folder of tools, compiling what the cache does not have.
    ///
    /// `progress` is told the name of each tool that has to be compiled.
    ///
    /// # Ambient Authority
    /// Reads the folder, reads and writes the cache, starts the compiler's process.
    ///
    /// # Errors
    /// [`CatalogError`] when the folder itself cannot be read. A single broken tool is no error.
    pub fn open(
        folder: &Path,
        cache: &Cache,
        compiler: &Compiler,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, CatalogError> {
        let entries = std::fs::read_dir(folder).map_err(|error| CatalogError::io(folder, error))?;
        let mut tools = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(|error| CatalogError::io(folder, error))?.path();
            if !path.join(manifest::FILE).is_file() {
                continue;
            }
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // A leading dot is a folder that `tool add` is working on, or left when it was killed.
            if name.starts_with('.') {
                continue;
            }
            let name = ToolName::parse(&name)?;
            let tool = open_tool(&path, &name, cache, compiler, progress);
            if let Err(error) = &tool {
                tracing::warn!(tool = %name, %error, "this tool cannot be used");
            }
            tools.insert(name, tool);
        }
        Ok(Self { tools })
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
}

/// Reads one tool's folder.
fn open_tool(
    folder: &Path,
    name: &ToolName,
    cache: &Cache,
    compiler: &Compiler,
    progress: &mut dyn FnMut(&str),
) -> Entry {
    let manifest = ToolManifest::read(&folder.join(manifest::FILE))?;
    if manifest.name != *name {
        return Err(CatalogError::Manifest {
            path: folder.join(manifest::FILE),
            reason: format!("`name` is `{}`, but the folder is called `{name}`", manifest.name),
        });
    }
    let module = folder.join(&manifest.module);
    let wasm = std::fs::read(&module).map_err(|error| CatalogError::io(&module, error))?;
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
    prepare(manifest, digest, wasm, cache, compiler, progress)
}

/// Makes a tool of a module that was checked, from the cache or by compiling it.
fn prepare(
    manifest: ToolManifest,
    digest: Digest,
    wasm: Vec<u8>,
    cache: &Cache,
    compiler: &Compiler,
    progress: &mut dyn FnMut(&str),
) -> Result<Tool, CatalogError> {
    let key = cache.key(digest, manifest.contract);
    let compiled = match cache.read(&key)? {
        Some(compiled) => compiled,
        None => {
            progress(manifest.name.as_str());
            let compiled = compiler.run(&CompileJob { wasm, contract: manifest.contract })?;
            cache.write(&key, &compiled)?;
            compiled
        }
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
    Ok(Tool { descriptor, schema, compiled: module, component, componentised })
}
