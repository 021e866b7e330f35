//! `tool new`: writes the folder of a new tool from the template of its language.
//!
//! A template is a folder of `templates`, a tool that works, called `template_tool`. The template in Rust comes with the
//! sources of the SDK, because a new tool has to build without the executor's repository.

use crate::language::Language;
use a2g_command::UsageError;
use a2g_command::output::{note, print};
use a2g_types::ident::ToolName;
use anyhow::{Context as _, bail};
use std::collections::BTreeSet;
use std::path::Path;

/// The name of the tool in each template.
const TEMPLATE_NAME: &str = "template_tool";
/// The dependency in the template's `Cargo.toml`, and its form beside a copy of the SDK.
const SDK_IN_REPOSITORY: &str = "path = \"../../../../../guest-sdk\"";
const SDK_FOLDER: &str = "a2g-guest-sdk";
/// The contract, which other languages than Rust and C get as a file.
pub(crate) const WIT: &str = include_str!("../../../../guest-sdk/wit/tool.wit");
/// The manifest of the workspace that the SDK belongs to.
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

type File = (&'static str, &'static str);

macro_rules! files {
    ($folder:literal: $($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!($folder, $file)))),*]
    };
}

const RUST: &[File] =
    files!("../templates/rust/": ".gitignore", "Cargo.toml", "README.md", "src/lib.rs", "tool.toml");
const C: &[File] = files!("../templates/c/": ".gitignore", "README.md", "tool.c", "tool.toml");
const GO: &[File] = files!(
    "../templates/go/": ".gitignore", "README.md", "go.mod", "main.go", "main_test.go", "tool.toml",
);
const JAVASCRIPT: &[File] = files!(
    "../templates/javascript/": ".gitignore", "README.md", "package.json", "tool.js", "tool.toml", "words.js",
    "words.test.js",
);
const PYTHON: &[File] = files!(
    "../templates/python/": ".gitignore", "README.md", "requirements.txt", "test_words.py", "tool.py",
    "tool.toml", "words.py",
);
/// The sources of the SDK. A unit test compares the list with the folder.
const SDK: &[File] = files!(
    "../../../../guest-sdk/": "Cargo.toml", "derive/Cargo.toml", "derive/src/container.rs", "derive/src/lib.rs",
    "derive/src/shadow.rs", "src/artifact.rs", "src/bindings.rs", "src/context.rs", "src/error.rs", "src/export.rs",
    "src/host.rs", "src/http/error.rs", "src/http/mod.rs", "src/http/tests.rs", "src/http/wasm.rs", "src/lib.rs",
    "src/testing.rs", "src/testing/network.rs", "src/testing/result_table.rs", "src/testing/tools.rs", "src/tool.rs", "src/tools.rs", "wit/tool.wit",
);

fn template(language: Language) -> &'static [File] {
    match language {
        Language::Rust => RUST,
        Language::C => C,
        Language::Go => GO,
        Language::Javascript => JAVASCRIPT,
        Language::Python => PYTHON,
    }
}

/// Writes the folder `name` in the current one. `sdk` is a copy of the SDK to use instead of the one in this program.
pub(crate) fn new(name: &str, language: Language, sdk: Option<&Path>) -> anyhow::Result<()> {
    let name = ToolName::parse(name).map_err(|error| UsageError(error.to_string()))?;
    let folder = Path::new(name.as_str());
    if sdk.is_some() && language != Language::Rust {
        bail!(UsageError(format!("`--sdk` is for Rust: a tool in {} has no SDK", language.name())));
    }
    let sdk = sdk.map(find_sdk).transpose()?;
    if let Err(error) = std::fs::create_dir(folder) {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            bail!("`{name}` exists already: choose another name, or remove that folder first");
        }
        return Err(error).with_context(|| format!("the folder `{name}` cannot be made"));
    }
    for (path, text) in template(language) {
        let named = text.replace(TEMPLATE_NAME, name.as_str());
        let text = match (&sdk, *path) {
            (Some(sdk), "Cargo.toml") => named.replace(SDK_IN_REPOSITORY, &format!("path = {sdk:?}")),
            (None, "Cargo.toml") => named.replace(SDK_IN_REPOSITORY, &format!("path = \"{SDK_FOLDER}\"")),
            _ => named,
        };
        write(&folder.join(path), &text)?;
    }
    match language {
        Language::Rust if sdk.is_none() => write_sdk(&folder.join(SDK_FOLDER))?,
        Language::Javascript | Language::Python => write(&folder.join("wit/tool.wit"), WIT)?,
        Language::Rust | Language::C | Language::Go => {}
    }
    let kind = if language.is_typed() { "a typed tool" } else { "a command" };
    print(format_args!("made `{name}`, {kind} in {}; its README.md says more", language.name()));
    note("next:");
    note(format_args!("  cd {name}"));
    if let Some(step) = language.preparation() {
        note(format_args!("  {step}"));
    }
    note("  a2g-executor tool build\n  a2g-executor tool test");
    Ok(())
}

/// The absolute path of a folder with the SDK.
fn find_sdk(path: &Path) -> anyhow::Result<String> {
    let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
    if !manifest.lines().any(|line| line == "name = \"a2g-guest-sdk\"") {
        bail!(UsageError(format!(
            "`--sdk {}` is not the folder `guest-sdk` of the executor's repository",
            path.display()
        )));
    }
    let path = path.canonicalize().context("the folder of `--sdk` cannot be found")?;
    Ok(path.to_string_lossy().into_owned())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("`{}` cannot be written", path.display()))
}

/// Writes the SDK as a workspace of its own.
fn write_sdk(folder: &Path) -> anyhow::Result<()> {
    for (path, text) in SDK {
        let more = if *path == "Cargo.toml" { sdk_workspace() } else { String::new() };
        write(&folder.join(path), &format!("{text}{more}"))?;
    }
    Ok(())
}

/// The part of the workspace's manifest that the SDK's manifests inherit.
fn sdk_workspace() -> String {
    let manifests = SDK.iter().filter(|(path, _)| path.ends_with("Cargo.toml"));
    let inherited = manifests
        .flat_map(|(_, text)| text.lines().filter_map(|line| line.strip_suffix(".workspace = true")))
        .collect::<BTreeSet<_>>();
    let lines_of = |table: &str| {
        let mut lines = WORKSPACE.lines().skip_while(|line| *line != table).skip(1).collect::<Vec<_>>();
        let end = lines.iter().position(|line| line.starts_with('[')).unwrap_or(lines.len());
        lines.truncate(end);
        let is_inherited =
            |line: &&str| line.split_once(" = ").is_some_and(|(key, _)| inherited.contains(key));
        lines.into_iter().filter(is_inherited).map(|line| format!("{line}\n")).collect::<String>()
    };
    format!(
        "\n[workspace]\n\n[workspace.package]\n{}\n[workspace.dependencies]\n{}\n[workspace.lints]\n",
        lines_of("[workspace.package]"),
        lines_of("[workspace.dependencies]")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_below(folder: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                let relative = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                let is_built =
                    ["target", "build", "node_modules", "__pycache__", ".venv", "Cargo.lock", "tool.wasm"]
                        .iter()
                        .any(|name| relative.split('/').any(|part| part == *name));
                if is_built {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.insert(relative);
                }
            }
        }
        found
    }

    fn names(files: &[File]) -> BTreeSet<String> {
        files.iter().map(|(path, _)| (*path).to_owned()).collect()
    }

    #[test]
    fn every_file_of_a_template_and_of_the_sdk_is_included() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for language in Language::ALL {
            let folder = root.join("templates").join(language.folder());
            assert_eq!(names(template(language)), files_below(&folder), "{language:?}");
            let manifest = template(language).iter().find(|(path, _)| *path == "tool.toml").unwrap().1;
            assert!(manifest.starts_with("name = \"template_tool\"\n"));
        }
        let mut sdk = files_below(&root.join("../../../guest-sdk"));
        sdk.retain(|path| !path.starts_with("tests/"));
        assert_eq!(names(SDK), sdk);
    }

    #[test]
    fn the_copy_of_the_sdk_has_what_its_manifests_inherit() {
        let workspace = sdk_workspace();
        for inherited in
            ["version = ", "edition = ", "license = ", "serde = ", "serde_json = ", "schemars = "]
        {
            assert!(workspace.contains(&format!("\n{inherited}")), "{inherited}: {workspace}");
        }
        assert!(!workspace.contains("wasmtime"), "{workspace}");
        assert!(RUST.iter().any(|(_, text)| text.contains(SDK_IN_REPOSITORY)));
    }
}
