//! `tool dev`: builds and tests a tool again whenever one of its files changes.
//!
//! Each round runs `tool build` and `tool test` as programs of their own, so a round that fails ends nothing else.

use crate::find_manifest;
use a2g_command::output::{note, one_line};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The interval between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The maximum number of watched files. A look at this many takes some 10 ms.
const MAX_FILES: usize = 5_000;
/// Folders that are results, or that the author does not edit.
const UNWATCHED: [&str; 6] = ["target", "build", "node_modules", "__pycache__", "a2g-guest-sdk", "signed"];

/// The modification times and sizes of a tool's files.
type Snapshot = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// Builds and tests the tool in `folder` now, and after each change, until the program is ended. `options` go to both
/// commands.
pub(crate) fn dev(folder: &Path, options: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("this program cannot find its own file")?;
    find_manifest(folder)?;
    let outputs = own_outputs();
    let mut built: Option<Snapshot> = None;
    loop {
        // Taken before the build, so that a change during the build starts another one.
        let now = snapshot(folder, &outputs)?;
        match &built {
            Some(built) if *built == now => {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            Some(built) => note(format_args!("\n{}", describe_change(built, &now))),
            None => {}
        }
        let succeeds = |command: &str| -> anyhow::Result<bool> {
            let mut command_line = Command::new(&program);
            command_line.args(["tool", command]).arg(folder).args(options);
            Ok(command_line.status().context("this program cannot be started again")?.success())
        };
        let state = match succeeds("build")? && succeeds("test")? {
            true => "the examples pass",
            false => "there is an error, see above",
        };
        note(format_args!("{state}; watching {} files, Ctrl-C ends", now.len()));
        built = Some(now);
    }
}

/// The device and inode of the files that this program's output goes to. Each build would change them.
fn own_outputs() -> Vec<(u64, u64)> {
    let identity =
        |stat: rustix::io::Result<rustix::fs::Stat>| stat.ok().map(|stat| (stat.st_dev, stat.st_ino));
    let outputs = [rustix::fs::fstat(std::io::stdout()), rustix::fs::fstat(std::io::stderr())];
    outputs.into_iter().filter_map(identity).collect()
}

/// A sentence about the first file that differs between two snapshots.
fn describe_change(before: &Snapshot, now: &Snapshot) -> String {
    let changed = now.iter().find(|(path, facts)| before.get(*path) != Some(facts)).map(|(path, _)| path);
    let gone = || before.keys().find(|path| !now.contains_key(*path));
    match changed {
        Some(path) => format!("`{}` has changed", one_line(path.display())),
        None => gone().map_or_else(String::new, |path| format!("`{}` is gone", one_line(path.display()))),
    }
}

fn snapshot(folder: &Path, left_out: &[(u64, u64)]) -> anyhow::Result<Snapshot> {
    let mut found = Snapshot::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let listed = std::fs::read_dir(&next);
        let entries = match listed {
            Ok(entries) => entries,
            // A folder may vanish while its parent is read, but the tool's own has to exist.
            Err(_) if next != folder => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("`{}` cannot be read", folder.display()));
            }
        };
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let file_name = entry.file_name();
            let name = file_name.to_string_lossy();
            // The names of other files that builds write end in `.wasm`, `.wasm-draft` and `.lock`.
            let is_result = name.contains(".wasm") || name.ends_with(".lock");
            if name.starts_with('.') || UNWATCHED.contains(&&*name) || is_result {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && !left_out.contains(&(metadata.dev(), metadata.ino())) {
                found.insert(path, (metadata.modified().ok(), metadata.len()));
            }
            if found.len() > MAX_FILES {
                bail!(
                    "`{}` has more than {MAX_FILES} files: `tool dev` watches the folder of one tool",
                    folder.display()
                );
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_watched_and_results_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("tool.py", "1");
        let first = snapshot(folder.path(), &[]).unwrap();
        assert_eq!(first.len(), 1);
        for unwatched in ["tool.wasm", "build/x", "target/x", ".venv/x", "node_modules/x", "Cargo.lock"] {
            put(unwatched, "1");
        }
        assert_eq!(snapshot(folder.path(), &[]).unwrap(), first);
        put("tool.py", "12");
        assert_ne!(snapshot(folder.path(), &[]).unwrap(), first);
        let log = folder.path().join("dev.log");
        put("dev.log", "1");
        let log = log.metadata().unwrap();
        assert_eq!(snapshot(folder.path(), &[(log.dev(), log.ino())]).unwrap().len(), 1);
        std::fs::remove_file(folder.path().join("dev.log")).unwrap();
        put("package/more.py", "1");
        assert_eq!(snapshot(folder.path(), &[]).unwrap().len(), 2);
        assert!(snapshot(&folder.path().join("missing"), &[]).is_err());
    }
}
