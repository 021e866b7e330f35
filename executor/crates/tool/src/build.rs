//! `tool build`: makes the module of a tool with the toolchain of its language, and checks it.

use crate::language::Language;
use crate::{check, find_manifest, toolchain};
use a2g_command::output::note;
use a2g_config::Config;
use a2g_core::catalog::ToolManifest;
use anyhow::bail;
use std::path::Path;

pub(crate) fn build(folder: &Path, config: &Config) -> anyhow::Result<()> {
    let path = find_manifest(folder)?;
    // Read first, so that a mistake in it is known before the toolchain works for a minute.
    let manifest = ToolManifest::read(&path)?;
    if manifest.sha256.is_some() {
        bail!(
            "`{}` has `sha256`, which would refuse the new module: remove it, because `tool add` pins the digest",
            path.display()
        );
    }
    let language = Language::of(folder)?;
    let module = folder.join(&manifest.module);
    let made = toolchain::make(folder, language, &module)?;
    note(format_args!("made {} with {} in {:.1} s", module.display(), made.program, made.seconds));
    check::check(folder, config)
}
