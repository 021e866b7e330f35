//! `dist --check`: uses the packages as people do, in parts that stand for themselves.
//!
//! A part that needs what this machine does not have is skipped by name. One run says everything that is wrong.

mod client;
mod deb;
mod debian_root;
mod from_nothing;
mod hosts;
mod image;
mod install;
mod note;
mod npm;
mod python;
mod reproduce;

use std::cell::OnceCell;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use fs_err as fs;
use tempfile::TempDir;

use super::{Packed, Release, root};
use crate::run;

/// The part that takes as long as the first compilation, and which `--check` leaves out.
pub(super) const COMPILE: &str = "compile";
/// The largest program without its symbols, in bytes.
const MAX_PROGRAM: u64 = 40_000_000;

type Check = fn(&Shared<'_>) -> Result<()>;

/// The parts, in an order in which what is quick comes first. The help describes each.
const PARTS: [(&str, Check); 15] = [
    ("size", check_size),
    ("packing", reproduce::check_packages),
    ("server-json", python::check_server_json),
    ("pip", python::check_pip),
    ("uv", python::check_uv),
    ("pipx", python::check_pipx),
    ("auditwheel", python::check_platform),
    ("npm", npm::check),
    ("debian-python", from_nothing::check_python),
    ("debian-node", from_nothing::check_node),
    ("hosts", hosts::check),
    ("lintian", deb::check_rules),
    ("deb", deb::check),
    ("image", image::check),
    (COMPILE, reproduce::check_compilation),
];

/// Why a part cannot be checked here: something that this machine does not have.
#[derive(Debug)]
struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Skips the part if it cannot have what it needs.
pub(super) fn require(is_here: bool, reason: &str) -> Result<()> {
    required(is_here.then_some(()), reason)
}

/// The thing that the part needs. Skips the part if there is none.
fn required<T>(found: Option<T>, reason: &str) -> Result<T> {
    Ok(found.ok_or_else(|| Missing(reason.to_owned()))?)
}

/// The state that the parts share.
struct Shared<'a> {
    packages: &'a [Packed<'a>],
    /// The release for this machine.
    release: &'a Release<'a>,
    /// A folder that is removed at the end.
    folder: TempDir,
    /// Started by the first part that needs it.
    registry: OnceCell<npm::Registry>,
}

impl Shared<'_> {
    /// The names of the tools that `mcp` lists without a configuration: those of the release that use no network.
    fn tools(&self) -> Result<Vec<String>> {
        let folder = self.release.root.join(root::TOOLS);
        let mut names = root::tools(&folder)?;
        names.retain(|name| {
            let manifest = fs::read_to_string(folder.join(name).join(root::MANIFEST));
            manifest.is_ok_and(|manifest| manifest.lines().all(|line| line != "network = true"))
        });
        Ok(names)
    }

    /// A registry for npm with the packages of the release.
    fn registry(&self) -> Result<&npm::Registry> {
        match self.registry.get() {
            Some(registry) => Ok(registry),
            None => {
                let registry = npm::Registry::start(self)?;
                Ok(self.registry.get_or_init(|| registry))
            }
        }
    }
}

/// The names of all parts.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(name, _)| *name)
}

/// Checks these parts, and prints how each has ended.
pub(super) fn run(names: &[&str], packages: &[Packed<'_>], release: &Release<'_>) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("a2g-check-").tempdir()?;
    let shared = Shared { packages, release, folder, registry: OnceCell::new() };
    let mut rows = Vec::new();
    for (name, check) in PARTS.iter().filter(|(name, _)| names.contains(name)) {
        run::progress("Checking", name);
        let started = run::now();
        let result = match check(&shared) {
            Ok(()) => "passed",
            Err(error) => {
                let result = if error.is::<Missing>() { "skipped" } else { "failed" };
                run::progress(result, &format!("{name}: {error:#}"));
                result
            }
        };
        rows.push((*name, result, started.elapsed()));
    }
    anstream::println!("\n{}", table(&rows));
    let failed = rows.iter().filter(|(_, result, _)| *result == "failed").map(|(name, ..)| *name);
    let failed = failed.collect::<Vec<_>>().join(", ");
    ensure!(failed.is_empty(), "the packages do not work, see above: {failed}");
    Ok(())
}

fn table(rows: &[(&str, &str, Duration)]) -> String {
    let rows = rows
        .iter()
        .map(|(name, result, time)| format!("\n{name:<13}  {result:<7}  {:>7.1}", time.as_secs_f64()));
    format!("{:<13}  {:<7}  {:>7}{}", "Part", "Result", "Seconds", rows.collect::<String>())
}

/// Checks the size of each program.
fn check_size(shared: &Shared<'_>) -> Result<()> {
    for Packed { release, .. } in shared.packages {
        let what = format!("the program for {}", release.architecture.as_str());
        ensure_size(&what, fs::metadata(release.root.join(root::PROGRAM))?.len(), MAX_PROGRAM)?;
    }
    Ok(())
}

fn ensure_size(what: &str, bytes: u64, max: u64) -> Result<()> {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let found = megabytes(bytes);
    let allowed = megabytes(max);
    run::progress("Measured", &format!("{what} has {found:.1} MB"));
    ensure!(
        bytes <= max,
        "{what} has {found:.1} MB, and at most {allowed} are allowed: `cargo xtask dist --symbols` reports what \
         makes the program large"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_table_has_a_line_of_at_most_80_columns_for_each_part() {
        let rows: Vec<_> = names().map(|name| (name, "skipped", Duration::from_millis(86_400_040))).collect();
        let table = table(&rows);
        assert_eq!(table.lines().count(), PARTS.len() + 1);
        assert!(table.contains("\nsize           skipped  86400.0\n"), "{table}");
        let widths = table.lines().map(|line| line.chars().count());
        assert!(widths.clone().all(|width| width <= 80 && Some(width) == widths.clone().max()), "{table}");
    }

    #[test]
    fn what_is_missing_is_no_failure_whatever_it_was_needed_for() {
        let error = require(false, "there is no podman").context("its files are in x").unwrap_err();
        assert!(error.is::<Missing>(), "{error:#}");
        assert!(require(true, "").is_ok());
    }

    #[test]
    fn a_size_above_the_limit_is_an_error() {
        assert!(ensure_size("x", MAX_PROGRAM, MAX_PROGRAM).is_ok());
        let error = ensure_size("x", MAX_PROGRAM + 1, MAX_PROGRAM).unwrap_err().to_string();
        assert!(error.starts_with("x has 40.0 MB, and at most 40 are allowed"), "{error}");
    }
}
