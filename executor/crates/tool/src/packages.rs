//! `tool add --package`: a copy of `run_python`, under another name, that has packages of the Python package
//! index.
//!
//! pip gets the wheels from the index that the user has configured, and runs nothing of them;
//! `packages/unpack.py` checks them. Their files become a part of the module, as Python's own library is. So
//! the digest that `tool.toml` pins covers every file, whatever runs the tool has them without a grant, and
//! what a program changes in memory ends with its run.

use crate::arguments::PackageOptions;
use crate::toolchain::{self, ComponentizePy};
use a2g_command::UsageError;
use a2g_command::output::{list, note, one_line};
use a2g_types::ident::{ToolName, excerpt};
use anyhow::Context as _;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The maximum number of packages that are asked for. Those that they need are limited by `unpack.py`.
const MAX_REQUIREMENTS: usize = 32;
/// The maximum length of one of them, in bytes.
const MAX_REQUIREMENT_BYTES: usize = 128;
/// The version of Python in the component, by which pip chooses the wheels.
const PYTHON_VERSION: &str = "3.14";
const MAX_DOWNLOAD: Duration = Duration::from_secs(900);
const MAX_UNPACK: Duration = Duration::from_secs(120);

/// The program of Python that checks wheels: their folder, and the archive that it writes.
const UNPACK: &str = include_str!("packages/unpack.py");
const ARCHIVE: &str = "a2g_packages.zip";
const MANIFEST: &str = include_str!("../../../../tools/run_python/tool.toml");
const README: &str = include_str!("../../../../tools/run_python/README.md");
/// The words of the description that say which packages `run_python` has.
const NO_PACKAGES: &str = "no other packages";
/// The module of `run_python` that componentize-py begins with.
const ENTRY: &str = "run_python";
/// The module that says the name and the packages of the tool. Each copy has another one.
const ABOUT: &str = "a2g_about.py";

macro_rules! sources {
    ($($file:literal),* $(,)?) => {
        [$(($file, include_str!(concat!("../../../../tools/run_python/", $file)))),*]
    };
}

/// The sources of `run_python`. A unit test compares the list with the folder.
const SOURCES: [(&str, &str); 9] = sources![
    "a2g_about.py",
    "a2g_artifacts.py",
    "a2g_files.py",
    "a2g_json.py",
    "a2g_packages.py",
    "a2g_program.py",
    "a2g_stdlib.py",
    "a2g_tools.py",
    "run_python.py",
];

/// The packages and the tool that a user asks for, checked.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// At least one package, with or without a version, as pip takes it.
    requirements: &'a [String],
    from: Option<&'a Path>,
    tool: ToolName,
}

/// A wheel, as `unpack.py` describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wheel {
    name: String,
    version: String,
    file: String,
    sha256: String,
}

impl<'a> Order<'a> {
    /// Checks the options.
    ///
    /// # Errors
    /// [`UsageError`] if a package or the name of the tool is none.
    pub(crate) fn read(options: &'a PackageOptions) -> Result<Self, UsageError> {
        let PackageOptions { packages, from, name } = options;
        if packages.len() > MAX_REQUIREMENTS {
            return Err(UsageError(format!(
                "{} packages are more than the {MAX_REQUIREMENTS} of one tool; those that they need come by themselves",
                packages.len()
            )));
        }
        for package in packages {
            check_requirement(package)?;
        }
        let first = packages.first().map_or("", |package| package_name(package));
        let default = format!("python_{}", first.to_ascii_lowercase().replace(['-', '.'], "_"));
        let tool = ToolName::parse(name.as_ref().unwrap_or(&default))
            .map_err(|error| UsageError(error.to_string()))?;
        Ok(Self { requirements: packages, from: from.as_deref(), tool })
    }
}

/// The part of a requirement before its version.
fn package_name(requirement: &str) -> &str {
    requirement.split("==").next().unwrap_or_default()
}

/// Refuses everything but a name, or a name and one exact version: pip would also take options, addresses and
/// paths.
fn check_requirement(text: &str) -> Result<(), UsageError> {
    let is_letter_or_digit = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let consists_of = |text: &str, others: &[u8]| {
        is_letter_or_digit(text.bytes().next())
            && is_letter_or_digit(text.bytes().next_back())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
    };
    let name = package_name(text);
    let version = text.strip_prefix(name).and_then(|rest| rest.strip_prefix("=="));
    let is_valid = text.len() <= MAX_REQUIREMENT_BYTES
        && consists_of(name, b"._-")
        && version.is_none_or(|version| consists_of(version, b".!+_-"));
    if is_valid {
        return Ok(());
    }
    Err(UsageError(format!(
        "`{}` is not a package: name it as in `humanize`, or with one version as in `humanize==4.12.3`",
        excerpt(text)
    )))
}

/// Makes the folder of the tool.
///
/// # Ambient Authority
/// Writes to `cache`, reads the folder of wheels, and runs `componentize-py` and `python3`, whose `pip` opens
/// connections.
///
/// # Errors
/// If a program is missing, a package cannot be had, or one cannot work in the sandbox.
pub(crate) fn make(order: &Order<'_>, cache: &Path) -> anyhow::Result<TempDir> {
    let python = toolchain::find_on_path("python3").context(
        "`python3` is not on the PATH: `tool add --package` gets packages with the `pip` of Python 3",
    )?;
    let program = toolchain::find_on_path("componentize-py").context(
        "`componentize-py`, which makes the module of the tool, is not on the PATH: `pip install \
         componentize-py` installs it",
    )?;
    let maker = ComponentizePy::new(program)?;
    let work = TempDir::new_in(cache)?;
    let work_folder = work.path().canonicalize()?;
    let downloaded = download(&python, order, &work_folder)?;
    let sources = work_folder.join("python");
    std::fs::create_dir(&sources)?;
    let mut unpack = Command::new(&python);
    unpack.args(["-I", "-c", UNPACK]).arg(&downloaded).arg(sources.join(ARCHIVE));
    let found = toolchain::capture("the check of the packages", &mut unpack, MAX_UNPACK)?;
    let wheels: Vec<Wheel> = serde_json::from_str(&found)?;
    let packages = name_packages(&wheels);
    for (name, text) in SOURCES {
        std::fs::write(sources.join(name), text)?;
    }
    std::fs::write(sources.join(ABOUT), about(&order.tool, &packages))?;
    let contract = toolchain::contract_folder(&work_folder, &work_folder)?;
    note(format_args!("making {} with {packages}", order.tool));
    let module = maker.make(ENTRY, &sources, &contract, &work_folder)?;
    let folder = TempDir::new_in(cache)?;
    std::fs::copy(module, folder.path().join("tool.wasm"))?;
    std::fs::write(folder.path().join("tool.toml"), manifest(&order.tool, &packages))?;
    std::fs::write(folder.path().join("README.md"), readme(&order.tool, &wheels))?;
    Ok(folder)
}

/// Gets the wheels of the packages and of all that they need, and returns their folder, below `work`.
fn download(python: &Path, order: &Order<'_>, work: &Path) -> anyhow::Result<PathBuf> {
    let folder = work.join("wheels");
    let mut pip = Command::new(python);
    // Python would take a module `pip` of the current folder.
    pip.current_dir(work).args(["-m", "pip", "download", "--no-input", "--disable-pip-version-check"]);
    // With these, pip builds nothing, and chooses only wheels without compiled code.
    pip.args(["--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none"]);
    pip.arg(format!("--python-version={PYTHON_VERSION}")).arg("--dest").arg(&folder);
    if let Some(from) = order.from {
        let unreadable = || format!("`{}` cannot be read", one_line(from.display()));
        pip.arg("--no-index").arg("--find-links").arg(from.canonicalize().with_context(unreadable)?);
    } else {
        note("downloading packages with pip");
    }
    pip.args(order.requirements);
    toolchain::capture("pip", &mut pip, MAX_DOWNLOAD).with_context(|| {
        format!(
            "the packages cannot be had as wheels in pure Python (`py3-none-any`). One with compiled code, \
             such as an extension in C, cannot run in the sandbox; for numpy, pandas and others there is \
             `tool add --python science`. Without the index, `--from FOLDER` takes wheels that are there{}",
            order.from.map(compiled_wheels).unwrap_or_default()
        )
    })?;
    Ok(folder)
}

/// The wheels in a folder that have compiled code, as the end of an error.
fn compiled_wheels(folder: &Path) -> String {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut compiled = names
        .filter(|name| name.ends_with(".whl") && !name.ends_with("-none-any.whl"))
        .map(|name| format!("`{}`", excerpt(&name)))
        .collect::<Vec<_>>();
    compiled.sort();
    if compiled.is_empty() {
        return String::new();
    }
    format!(". These there have compiled code: {}", list(compiled))
}

fn name_packages(wheels: &[Wheel]) -> String {
    let names = wheels.iter().map(|wheel| format!("{} {}", wheel.name, wheel.version));
    format!("the packages {}", list(names))
}

/// The module [`ABOUT`] of a copy. `unpack.py` lets names and versions have no character that ends a text in
/// Python or TOML.
fn about(tool: &ToolName, packages: &str) -> String {
    format!("NAME = \"{tool}\"\nPACKAGES = \"{packages}\"\nARCHIVE = \"{ARCHIVE}\"\n")
}

fn manifest(tool: &ToolName, packages: &str) -> String {
    MANIFEST.replacen(&format!("name = \"{ENTRY}\""), &format!("name = \"{tool}\""), 1).replacen(
        NO_PACKAGES,
        packages,
        1,
    )
}

fn readme(tool: &ToolName, wheels: &[Wheel]) -> String {
    let own = README.replacen(&format!("# {ENTRY}"), &format!("# {tool}"), 1);
    let rows = wheels.iter().map(|Wheel { name, version, file, sha256 }| {
        format!("| {name} {version} | `{file}` | `{sha256}` |\n")
    });
    format!(
        "{own}\n## Packages\nTheir files are below `/packages`, and can only be read.\n\n\
         | package | wheel | SHA-256 |\n|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_core::catalog::ToolManifest;
    use std::collections::BTreeSet;

    fn order(packages: &[&str], name: Option<&str>) -> Result<String, String> {
        let packages = packages.iter().map(|package| (*package).to_owned()).collect();
        let options = PackageOptions { packages, from: None, name: name.map(str::to_owned) };
        Order::read(&options).map(|order| order.tool.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn packages_are_names_with_or_without_one_version() {
        assert_eq!(order(&["humanize"], None).unwrap(), "python_humanize");
        assert_eq!(order(&["Ruamel.Yaml-X==1!2.0+a_b"], None).unwrap(), "python_ruamel_yaml_x");
        assert_eq!(order(&["a", "b==1"], Some("my-tool")).unwrap(), "my-tool");
        for refused in [
            "",
            "==1",
            "a==",
            "a==1==2",
            "a>=1",
            "a==1.*",
            "a[b]",
            "-r",
            "--index-url=x",
            "./a",
            "../a.whl",
            "https://example.test/a.whl",
            "a @ file:///a",
            "a b",
            "a\x1b[31m",
            "ä",
            "a".repeat(129).as_str(),
        ] {
            let error = order(&[refused], None).unwrap_err();
            assert!(error.contains("is not a package"), "{refused}: {error}");
            assert!(!error.contains('\x1b'), "{error:?}");
        }
        assert!(order(&["a"], Some("1")).unwrap_err().contains("is not a tool name"));
        assert!(order(&["a"; 33], None).unwrap_err().contains("more than the 32"));
    }

    #[test]
    fn a_copy_differs_in_its_name_and_packages() {
        let wheel = Wheel {
            name: "humanize".to_owned(),
            version: "4.12.3".to_owned(),
            file: "humanize-4.12.3-py3-none-any.whl".to_owned(),
            sha256: "00".repeat(32),
        };
        let tool = ToolName::parse("python_humanize").unwrap();
        let packages = name_packages(std::slice::from_ref(&wheel));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool.toml");
        std::fs::write(&path, manifest(&tool, &packages)).unwrap();
        let copy = ToolManifest::read(&path).unwrap();
        std::fs::write(&path, MANIFEST).unwrap();
        let own = ToolManifest::read(&path).unwrap();
        assert!(copy.description.contains("standard library and the packages humanize 4.12.3, "));
        let description = copy.description.replace(&packages, NO_PACKAGES);
        let name = own.name.clone();
        assert_eq!(ToolManifest { name, description, ..copy }, own);
        assert!(about(&tool, &packages).contains("PACKAGES = \"the packages humanize 4.12.3\"\n"));
        let text = readme(&tool, &[wheel]);
        assert!(text.starts_with("# python_humanize\n"), "{text}");
        assert!(text.contains("| humanize 4.12.3 | `humanize-4.12.3-py3-none-any.whl` | `0000"), "{text}");
    }

    #[test]
    fn every_source_of_run_python_is_included() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tools/run_python");
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let found = names.filter(|name| name.ends_with(".py")).collect::<BTreeSet<_>>();
        assert_eq!(SOURCES.map(|(name, _)| name.to_owned()).into_iter().collect::<BTreeSet<_>>(), found);
        assert!(SOURCES.iter().any(|(name, text)| *name == ABOUT && text.contains(NO_PACKAGES)));
    }
}
