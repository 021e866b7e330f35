//! Makes components of the tools in Python and JavaScript, with componentize-py and componentize-js.
//!
//! Making a component takes seconds, so it is made again only after a change of something that it depends on:
//! the tool's files, the contract, the program that makes the component, or that program's arguments.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;
use sha2::{Digest as _, Sha256};

use crate::run::{self, Workspace};
use crate::setup::{self, Makers};

/// Far more time than a busy machine needs to make a component.
const MAKE_TIMEOUT: Duration = Duration::from_secs(300);
/// The script that makes a component of JavaScript, here and in the tests.
const SCRIPT: &str = "executor/crates/tool/templates/componentize.mjs";
const CONTRACT: &str = "guest-sdk/wit/tool.wit";

/// The language of the source in a folder of `tools/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Python,
    JavaScript,
}

impl Language {
    /// The language of a tool: that of the file with the tool's name, or else Rust.
    pub(crate) fn of(folder: &Path, name: &str) -> Self {
        let has = |extension: &str| folder.join(name).with_extension(extension).is_file();
        match (has("py"), has("js")) {
            (true, _) => Self::Python,
            (_, true) => Self::JavaScript,
            _ => Self::Rust,
        }
    }
}

/// The component of a tool, made if necessary; `None` if the program that makes it is not installed.
pub(crate) fn component(
    workspace: &Workspace,
    makers: &Makers,
    language: Language,
    name: &str,
) -> Result<Option<Vec<u8>>> {
    let maker = match language {
        Language::Python => makers.python.as_deref(),
        Language::JavaScript => makers.javascript.as_deref(),
        Language::Rust => None,
    };
    let Some(maker) = maker else { return Ok(None) };
    let source = workspace.root.join("tools").join(name);
    let state = workspace.state().join("components");
    let module = state.join(name).with_extension("wasm");
    let stamp = state.join(name).with_extension("stamp");
    let digest = digest(workspace, &source, language)?;
    if !module.exists() || fs::read_to_string(&stamp).ok().as_ref() != Some(&digest) {
        let work = state.join(name);
        let mut command = prepare(workspace, &source, &work, language, name, maker)?;
        let made = work.join("made.wasm");
        run::log(workspace, &format!("make a component of {name}"), command.arg(&made), MAKE_TIMEOUT)?;
        fs::rename(&made, &module)?;
        fs::write(&stamp, &digest)?;
    }
    Ok(Some(fs::read(module)?))
}

/// A digest of everything that the component depends on.
fn digest(workspace: &Workspace, source: &Path, language: Language) -> Result<String> {
    let mut files = files(source)?;
    files.extend([CONTRACT, SCRIPT].map(|path| workspace.root.join(path)));
    let mut hash = Sha256::new();
    hash.update(match language {
        Language::JavaScript => setup::COMPONENTIZE_JS,
        Language::Python | Language::Rust => setup::COMPONENTIZE_PY,
    });
    // This source file, because it has the arguments of the program that makes the component.
    hash.update(include_bytes!("components.rs"));
    for path in files {
        let content = fs::read(&path)?;
        hash.update(path.strip_prefix(&workspace.root).unwrap_or(&path).as_os_str().as_encoded_bytes());
        hash.update(content.len().to_le_bytes());
        hash.update(content);
    }
    Ok(run::to_hex(&hash.finalize()))
}

/// The files of a tool that its component is made of, sorted.
fn files(source: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(source)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("__pycache__") {
            found.extend(files(&path)?);
        } else if path
            .extension()
            .is_some_and(|extension| ["py", "js", "wit"].iter().any(|&kind| kind == extension))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Copies the source to an empty folder, because the programs write beside it, and returns the command that
/// makes the component; the path of the component is its last argument.
fn prepare(
    workspace: &Workspace,
    source: &Path,
    work: &Path,
    language: Language,
    name: &str,
    maker: &Path,
) -> Result<Command> {
    if work.exists() {
        fs::remove_dir_all(work)?;
    }
    for path in files(source)? {
        let copy = work.join(path.strip_prefix(source)?);
        fs::create_dir_all(copy.parent().unwrap_or(work))?;
        fs::copy(path, copy)?;
    }
    let mut command;
    if language == Language::JavaScript {
        let wit = work.join("wit");
        fs::copy(workspace.root.join(CONTRACT), wit.join("deps/tool.wit"))?;
        command = Command::new(maker.join("node/bin/node"));
        // The order of the script: source, WIT, world and library, and then the component.
        // componentize-js stores the folder of the source in the component. On Linux, this name of it says nothing.
        let folder = if cfg!(target_os = "linux") { "/proc/self/cwd/" } else { "" };
        command.arg(workspace.root.join(SCRIPT)).arg(format!("{folder}{name}.js")).arg("wit");
        command.arg(name.replace('_', "-")).arg(maker.join("@bytecodealliance/componentize-js"));
    } else {
        command = Command::new(maker);
        command.arg("--quiet").arg("--wit-path").arg(workspace.root.join("guest-sdk/wit"));
        command.args(["--world", "tool", "componentize", name, "--python-path", ".", "--output"]);
    }
    command.current_dir(work);
    // Otherwise Python modules of the environment that xtask runs in would come before the tool's own.
    command.env_remove("VIRTUAL_ENV").env_remove("PYTHONPATH");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::Scratch;

    #[test]
    fn a_component_is_made_again_only_if_its_source_or_the_contract_has_changed() {
        let scratch = Scratch::new();
        let (workspace, write) =
            (&scratch.workspace, |path: &str, content: &str| scratch.write(path, content));
        let source = workspace.root.join("tools/x");
        let current = || digest(workspace, &source, Language::Python).unwrap();
        write(CONTRACT, "package a2g:tool;");
        write(SCRIPT, "");
        write("tools/x/x.py", "1");
        assert_eq!(Language::of(&source, "x"), Language::Python);
        let first = current();
        write("tools/x/README.md", "text");
        write("tools/x/__pycache__/x.py", "1");
        assert_eq!(current(), first, "neither is a part of the component");
        for (path, content) in
            [("tools/x/x.py", "2"), ("tools/x/y.py", "2"), (CONTRACT, "package a2g:tool;\n")]
        {
            let before = current();
            write(path, content);
            assert_ne!(current(), before, "{path}");
        }
        assert_ne!(digest(workspace, &source, Language::JavaScript).unwrap(), current());
    }
}
