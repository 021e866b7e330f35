//! `tool sign`: signs the package of a tool, for executors that require signatures (`[catalog.trust]`).

use crate::{set_up, toolchain};
use a2g_command::UsageError;
use a2g_command::output::{note, one_line, print};
use a2g_config::Config;
use a2g_core::catalog::{SignedFolder, ToolManifest, sign as sign_tool};
use a2g_govern::ToolSigningKey;
use a2g_types::clock::{Clock as _, SystemClock, format_seconds};
use anyhow::{Context as _, bail};
use std::path::Path;
use time::Duration;

/// The maximum validity of a signature, in days.
const MAX_DAYS: u32 = 3650;

/// Checks the tool in `folder`, and writes its package, signed with the key in `key_file`, to `signed/` in it.
pub(crate) fn sign(
    folder: &Path,
    key_file: &Path,
    expires_days: Option<u32>,
    config: &Config,
) -> anyhow::Result<()> {
    if let Some(days) = expires_days.filter(|days| !(1..=MAX_DAYS).contains(days)) {
        bail!(UsageError(format!("`--expires-days` is {days}, and has to be from 1 to {MAX_DAYS}")));
    }
    if !folder.is_dir() {
        bail!(
            "`{}` is not a folder: a signature covers `tool.toml` and the module together, so put the module into a \
             folder with a `tool.toml`",
            folder.display()
        );
    }
    // Read first, so that a wrong key is reported before the module is compiled.
    let key = ToolSigningKey::read(key_file)?;
    let expires_at = expires_days
        .map(|days| {
            let now = SystemClock.now().replace_nanosecond(0)?;
            now.checked_add(Duration::days(i64::from(days))).context("the time of expiry is too late")
        })
        .transpose()?;
    let manifest = ToolManifest::read(&folder.join("tool.toml"))?;
    if let Some(remark) = toolchain::stale_module_remark(folder, &manifest) {
        note(format_args!("note: {remark}, and sign it again"));
    }
    let runtime = set_up(config)?;
    let signed = sign_tool(folder, &key, expires_at, &runtime.cache, &runtime)?;
    let SignedFolder { folder: written, name, version, package } = &signed;
    print(format_args!("signed {name} {} to {}", one_line(version), one_line(written.display())));
    print(format_args!("package  sha256:{package}"));
    print(format_args!("key      {} ({})", key.public().id(), key.public().kind()));
    match expires_at {
        Some(at) => print(format_args!("expires  {}", format_seconds(at))),
        None => note(
            "note: the signature never expires: `--expires-days` limits how long an old version is accepted",
        ),
    }
    Ok(())
}
