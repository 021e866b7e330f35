//! Folders with Debian and a few packages, which debootstrap makes once below `target/`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;

use super::{require, required};
use crate::dist::files;
use crate::run::{self, Workspace};
use crate::{collections, debian, setup};

/// The time that debootstrap takes to load and unpack 240 MB, which is 2 minutes.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Returns the root of a minimal Debian of a release with these packages. It stays for later runs.
pub(super) fn prepare(workspace: &Workspace, release: &str, packages: &str) -> Result<PathBuf> {
    require(run::is_root() && debian::applies(), "debootstrap needs root and Debian")?;
    require(setup::prepare_debootstrap(workspace)?, "there is no debootstrap")?;
    let name = format!("{release}-{}", packages.replace(',', "-"));
    let root = workspace.state().join("roots").join(&name);
    if root.exists() {
        return Ok(root);
    }
    let unfinished = root.with_extension("unfinished");
    files::create_empty(&unfinished)?;
    let mut debootstrap = Command::new("/usr/sbin/debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={packages}"), release]).arg(&unfinished);
    debootstrap.arg(required(collections::mirror(), "apt-get has no mirror of Debian")?);
    let what = format!("make a root of {name}");
    let make = || run::log(workspace, &what, &mut debootstrap, TIMEOUT);
    require(setup::try_once(workspace, &what, make)?, "debootstrap fails")?;
    fs::rename(&unfinished, &root)?;
    Ok(root)
}
