//! `deny`: checks the licences, versions and sources of all dependencies with cargo-deny, and their advisories.
//!
//! A dependency that `deny.toml` does not accept is a failure, and so is a cargo-deny that cannot be installed. The
//! advisories are skipped, by name, if their database cannot be fetched, and for no other reason.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::{self, Workspace};
use crate::setup;

pub(crate) const HELP: &str = "\
Check the licences, versions, sources and advisories of all dependencies.

Usage: cargo xtask deny

It runs cargo-deny, which `cargo xtask setup` installs, for the lock files of
the main workspace, the tools, the fuzz targets and the client in Rust. The file
deny.toml has what is accepted, with dates and reasons.

The database of advisories is fetched with git. If it cannot be fetched, the
advisories are skipped, and the last line says so.";

/// The manifests of the workspaces, with the options that each needs.
const WORKSPACES: [(&str, &[&str]); 4] = [
    ("Cargo.toml", &[]),
    // The distributed modules of the tools are compiled for WebAssembly.
    ("tools/Cargo.toml", &["--target", setup::WASIP1]),
    ("fuzz/Cargo.toml", &[]),
    ("tests/clients/rmcp/Cargo.toml", &[]),
];
/// Silences the complaint that `deny.toml` accepts more than one workspace needs: the four share it.
const ALLOW_UNUSED: [&str; 4] = ["--allow", "unmatched-skip", "--allow", "unmatched-skip-root"];

/// The command `deny`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let program = setup::prepare_deny(workspace)?
        .context("cargo-deny is not installed, see above: without it no dependency is checked")?;
    for (manifest, options) in WORKSPACES {
        check(workspace, &program, manifest, options, &["bans", "licenses", "sources"])?;
    }
    let mut fetch = cargo_deny(workspace, &program);
    fetch.args(["fetch", "db"]);
    if let Err(error) = run::log(workspace, "fetch the advisories", &mut fetch, setup::INSTALL_TIMEOUT) {
        anstream::println!(
            "dependencies: ok; advisories: skipped, as their database cannot be fetched: {error:#}"
        );
        return Ok(());
    }
    for (manifest, options) in WORKSPACES {
        check(workspace, &program, manifest, options, &["advisories"])?;
    }
    anstream::println!("dependencies: ok; advisories: ok");
    Ok(())
}

/// Runs some of cargo-deny's checks for one workspace.
fn check(
    workspace: &Workspace,
    program: &Path,
    manifest: &str,
    options: &[&str],
    checks: &[&str],
) -> Result<()> {
    let mut deny = cargo_deny(workspace, program);
    deny.args(["--manifest-path", manifest, "--locked"]).args(options);
    deny.arg("check").args(ALLOW_UNUSED).args(checks);
    let what = format!("{} of {manifest}", checks.join(", "));
    run::progress("Checking", &what);
    run::show(&format!("accept the {what}"), &mut deny)
}

/// A cargo-deny that reads `deny.toml`. It calls the cargo that runs this program.
fn cargo_deny(workspace: &Workspace, program: &Path) -> Command {
    let mut deny = Command::new(program);
    deny.args(["--config", "deny.toml"]).current_dir(&workspace.root);
    run::remove_package_variables(&mut deny);
    deny
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fs_err as fs;

    /// Every advisory in `docs/security.md` is fixed in the wasmtime of Cargo.lock, or says why it does not apply.
    #[test]
    fn each_advisory_is_fixed_in_the_locked_version_or_does_not_apply() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
        let (_, package) = lock.split_once("\nname = \"wasmtime\"\nversion = \"").unwrap();
        let locked = package.split('"').next().unwrap();
        let text = fs::read_to_string(root.join("docs/security.md")).unwrap();
        assert!(
            text.contains(&format!("`Cargo.lock` has wasmtime {locked},")),
            "{locked} is not the version in the text"
        );

        let parts =
            |version: &str| version.split('.').map(|part| part.parse::<u32>().unwrap()).collect::<Vec<_>>();
        let (_, section) = text.split_once("## Advisories of the engine").unwrap();
        let is_version = |row: &&str| row.starts_with(|first: char| first.is_ascii_digit());
        let mut ids = BTreeSet::new();
        for row in section.lines().filter_map(|line| line.strip_prefix("| ")).filter(is_version) {
            let (version, fixed) = row.trim_end_matches(" |").split_once(" | ").unwrap();
            assert!(parts(version) <= parts(locked), "{version} is newer than {locked}");
            fixed.split(", ").for_each(|id| assert!(ids.insert(id), "{id} is listed twice"));
        }
        for row in section.lines().filter(|line| line.starts_with("| GHSA-")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [id, _, _, here] = cells[..] else { panic!("{row}") };
            assert!(ids.insert(id), "{id} is listed twice");
            assert!(here.starts_with("not affected: "), "{id} has no answer");
        }
        assert!(ids.len() > 70 && ids.iter().all(|id| id.starts_with("GHSA-")), "{ids:?}");
    }
}
