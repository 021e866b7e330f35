//! The files that were installed with the program.

use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// The places of a file or folder that belongs to the program, such as `tools`: beside the program, as `cargo xtask`
/// builds it, in the prefix of an installation, and in an unpacked wheel, to which uv links with
/// `link-mode = "symlink"`.
///
/// # Ambient Authority
/// Reads the path of this program.
///
/// # Errors
/// If this program cannot find its own file.
pub fn installed_places(name: &str) -> anyhow::Result<[PathBuf; 4]> {
    let program = std::env::current_exe().context("this program cannot find its own file")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(Path::new("/"));
    let shared = Path::new("share/a2g-executor").join(name);
    Ok([folder.join(name), prefix.join(name), prefix.join(&shared), prefix.join("data").join(shared)])
}
