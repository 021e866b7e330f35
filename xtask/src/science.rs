//! `run_python` with its scientific packages, for the demo and the benchmark, where its wheel is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;

use crate::run::{self, Workspace};
use crate::setup;

/// The time for making and compiling it on a busy machine, once for each build of the executor.
const MAX_ADD: Duration = Duration::from_secs(1800);

/// The reason why the tool is left out.
pub(crate) const MISSING: &str = "left out: the wheel of its packages could not be downloaded here";

/// A catalogue with this tool alone.
pub(crate) struct Science {
    pub(crate) tools: PathBuf,
    /// A configuration that can run it.
    pub(crate) config: PathBuf,
}

impl Science {
    /// Adds the tool with this executor. The code that the tests have compiled is used again. `None` without
    /// the wheel.
    pub(crate) fn add(workspace: &Workspace, executor: &Path) -> Result<Option<Self>> {
        setup::prepare_science(workspace)?;
        let Some(wheel) = setup::science_wheel(workspace) else { return Ok(None) };
        let folder = workspace.state().join("science");
        let science = Self { tools: folder.join("tools"), config: folder.join("executor.toml") };
        fs::create_dir_all(&folder)?;
        let cache = workspace.target.join("test-cache");
        let config = format!(
            "[catalog]\ntools = {:?}\ncache = {:?}\nexceptions = true\n[ceilings]\nmax_memory_mb = 1024\n",
            science.tools,
            cache.join("a2g-executor")
        );
        fs::write(&science.config, config)?;
        run::progress("Adding", "run_python with its scientific packages, which takes minutes once");
        let mut add = Command::new(executor);
        add.args(["tool", "add", "--python", "science", "--wheel"]).arg(wheel);
        add.arg("--config").arg(&science.config);
        run::log(workspace, "add run_python with its scientific packages", &mut add, MAX_ADD)?;
        Ok(Some(science))
    }
}
