//! The root of a release: the files as below a prefix such as `/usr`.
//!
//! ```text
//! bin/a2g-executor
//! share/a2g-executor/tools/NAME/     written by `tool add` from what `tool sign` has signed
//! share/a2g-executor/clients/        the module of the tools that `tool new --openapi` and `--mcp` make
//! share/doc/a2g-executor/            README.md, LICENSE, CHANGELOG.md
//! share/man/man1/                    written by `man`
//! share/bash-completion/…, share/zsh/…, share/fish/…
//! ```

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::checksums::Key;
use super::{Release, files};
use crate::run;

pub(crate) const PROGRAM: &str = "bin/a2g-executor";
/// The program looks there, relative to its own folder.
pub(crate) const TOOLS: &str = "share/a2g-executor/tools";
/// `tool new` looks there for the modules that tools share.
pub(crate) const CLIENTS: &str = "share/a2g-executor/clients";
/// The file that describes a tool.
pub(crate) const MANIFEST: &str = "tool.toml";
const PAGES: [&str; 3] = ["README.md", "LICENSE", "CHANGELOG.md"];
/// The shells with the file in which each looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/a2g-executor"),
    ("zsh", "share/zsh/site-functions/_a2g-executor"),
    ("fish", "share/fish/vendor_completions.d/a2g-executor.fish"),
];
/// Time limit of adding a tool. The largest one compiles in 20 to 40 s.
const TOOL_TIMEOUT: Duration = Duration::from_secs(600);

/// Lays out the root with a program that runs on this machine.
pub(crate) fn lay_out(release: &Release<'_>, program: &Path, key: &Key) -> Result<()> {
    let root = &release.root;
    create(root, program)?;
    let pages = root.join("share/doc/a2g-executor");
    fs::create_dir_all(&pages)?;
    for name in PAGES {
        fs::copy(release.workspace.root.join(name), pages.join(name))?;
    }
    add_tools(release, key)?;
    files::copy(files::list(&release.workspace.target.join("clients"))?, &root.join(CLIENTS))?;
    let program = root.join(PROGRAM);
    for (shell, file) in COMPLETIONS {
        let script = run::output(Command::new(&program).args(["completions", shell]));
        let script = script.with_context(|| format!("`a2g-executor completions {shell}` fails"))?;
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, script + "\n")?;
    }
    let mut pages = Command::new(&program);
    pages.arg("man").arg(root.join("share/man/man1"));
    run::log(release.workspace, "write the manual pages", &mut pages, TOOL_TIMEOUT)
}

/// Lays out a root that differs from another one only in the program.
pub(crate) fn lay_out_like(other: &Release<'_>, release: &Release<'_>, program: &Path) -> Result<()> {
    create(&release.root, program)?;
    let shared = files::list(&other.root)?.into_iter().filter(|entry| !entry.path.starts_with("bin/"));
    files::copy(shared, &release.root)
}

/// The names of the tools in a folder, sorted.
pub(super) fn tools(folder: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<String>>>()?;
    names.retain(|name| folder.join(name).join(MANIFEST).is_file());
    names.sort_unstable();
    ensure!(!names.is_empty(), "there are no tools in {}", folder.display());
    Ok(names)
}

/// Creates a root with nothing but the program.
fn create(root: &Path, program: &Path) -> Result<()> {
    files::remove(root)?;
    fs::create_dir_all(root.join("bin"))?;
    fs::copy(program, root.join(PROGRAM))?;
    Ok(())
}

/// Signs the built tools, and adds them. `tool add` then also checks the signatures, as the configuration requires
/// them. Both compile each tool, once: they share a cache, which stays for the next run.
fn add_tools(release: &Release<'_>, key: &Key) -> Result<()> {
    let built = release.workspace.target.join("tools");
    let work = release.folder.join("work/tools");
    for name in ["unsigned", "state"] {
        files::create_empty(&work.join(name))?;
    }
    let configuration = work.join("executor.toml");
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let text = format!(
        "[journal]\npath = {}\n\n[catalog]\ntools = {}\ncache = {}\n\n\
         [[catalog.trust.signer]]\nname = \"release\"\nkey_file = {}\n",
        quoted(&work.join("state/journal.db")),
        quoted(&release.root.join(TOOLS)),
        quoted(&work.join("cache")),
        quoted(key.public()),
    );
    fs::write(&configuration, text)?;
    fs::create_dir_all(release.root.join(TOOLS))?;
    for name in tools(&built)? {
        let folder = work.join("unsigned").join(&name);
        files::copy(files::list(&built.join(&name))?, &folder)?;
        let tool = |verb: &str| {
            let mut command = Command::new(release.root.join(PROGRAM));
            command.args([OsStr::new("tool"), OsStr::new(verb), OsStr::new("--config")]).arg(&configuration);
            command.arg(&folder);
            command
        };
        let mut sign = tool("sign");
        sign.arg("--key").arg(key.private());
        run::log(release.workspace, &format!("sign the tool {name}"), &mut sign, TOOL_TIMEOUT)?;
        run::log(release.workspace, &format!("add the tool {name}"), &mut tool("add"), TOOL_TIMEOUT)?;
    }
    Ok(())
}
