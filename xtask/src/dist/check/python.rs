//! Installs the wheel as people do, and uses what is then there.

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;
use std::process::Command;

use super::client::Client;
use super::install::{expect_config, expect_refusal, expect_version, private};
use super::{Shared, require};
use crate::dist::{files, npm, wheel};
use crate::run;
use crate::setup;

pub(super) const UV: &str = "uv==0.13.8";
const PIPX: &str = "pipx==1.18.4";
const AUDITWHEEL: &str = "auditwheel==6.8.2";
/// Validates with the schema of [`SKILLSAW`].
const JSONSCHEMA: &str = "jsonschema==4.26.0";
/// A linter that contains the schemas of the registry of MCP servers, which is all that is used of it.
const SKILLSAW: (&str, [&str; 1]) =
    ("skillsaw==0.22.0", ["7c4b4f48961d9b1676831aeb65396ddc59a18efac39e505b0dfe500f4c055906"]);

/// Validates `server.json` by the registry's own schema.
pub(super) fn check_server_json(shared: &Shared<'_>) -> Result<()> {
    let workspace = shared.release.workspace;
    require(setup::install_wheel(workspace, SKILLSAW.0, &SKILLSAW.1)?, "its schema is missing")?;
    require(setup::install_python(workspace, JSONSCHEMA)?, "jsonschema cannot be installed")?;
    let entry = shared.release.folder.join("server.json");
    let content: Value = serde_json::from_slice(&fs::read(&entry)?)?;
    let address = content.get("$schema").and_then(Value::as_str).context("server.json has no $schema")?;
    let date = address.split('/').rev().nth(1).context("its $schema has no date")?;
    let packages = fs::read_dir(shared.python().with_file_name("lib"))?;
    let mut schemas = packages.filter_map(|python| {
        let folder = python.ok()?.path().join("site-packages/skillsaw/schemas/mcp_registry");
        let schema = folder.join(format!("v{}", date.replace('-', "_"))).join("server.schema.json");
        schema.exists().then_some(schema)
    });
    let schema = schemas.next().with_context(|| format!("there is no schema of {date}"))?;
    let mut validate = private("python", &shared.home("schema")?, &[&shared.python()]);
    let script = "import json, sys, jsonschema as j; e, s = (json.load(open(f)) for f in sys.argv[1:]); \
                  j.Draft7Validator.check_schema(s); j.Draft7Validator(s).validate(e)";
    shared.log("validate server.json", validate.args(["-c", script]).args([entry, schema]))
}

pub(super) fn check_pip(shared: &Shared<'_>) -> Result<()> {
    let home = shared.home("pip")?;
    let started = run::now();
    let bin = shared.install_with_pip(&home)?;
    let program = bin.join(npm::NAME);
    let start = |words: &[&str]| -> Command {
        let mut command = private("python", &home, &[&bin]);
        command.args(["-m", "a2g_executor"]).args(words);
        command
    };
    expect_version(&mut start(&[]), &shared.release.version)?;
    shared.use_tools("pip", &home.to_string_lossy(), started, &start)?;

    let missing = home.join("missing");
    let words = ["mcp", "--scope", &missing.to_string_lossy()];
    expect_refusal(&mut start(&words), 2, "cannot be used")?;
    files::remove(&bin.with_file_name("share"))?;
    expect_refusal(
        &mut start(&["mcp", "--scope", "notes"]),
        2,
        "the tools that belong to this program are not beside it",
    )?;
    files::remove(&program)?;
    expect_refusal(&mut start(&["--version"]), 1, "the package a2g-executor is incomplete")
}

pub(super) fn check_uv(shared: &Shared<'_>) -> Result<()> {
    require(setup::install_python(shared.release.workspace, UV)?, "uv cannot be installed")?;
    // With links too, the program finds its tools: it is then inside uv's cache.
    for mode in ["hardlink", "symlink"] {
        let home = shared.home(&format!("uv-{mode}"))?;
        let started = run::now();
        let start = |words: &[&str]| -> Command {
            let mut command = private("uvx", &home, &[&shared.python()]);
            command.args(["--offline", "--no-index", "--link-mode", mode, "--find-links"]);
            command.arg(&shared.release.folder).arg(npm::NAME).args(words);
            command
        };
        let way = format!("uvx with {mode}");
        shared.use_tools(&way, &home.to_string_lossy(), started, &start)?;
        expect_config(&start, "uvx", "--find-links")?;
    }
    Ok(())
}

pub(super) fn check_pipx(shared: &Shared<'_>) -> Result<()> {
    let workspace = shared.release.workspace;
    require(setup::install_python(workspace, UV)?, "uv cannot be installed")?;
    require(setup::install_python(workspace, PIPX)?, "pipx cannot be installed")?;
    let home = shared.home("pipx")?;
    let arguments = format!("--no-index --find-links {}", shared.release.folder.display());
    let mut install = private("pipx", &home, &[&shared.python()]);
    install.args(["install", "--pip-args", &arguments, npm::NAME]);
    shared.log("install the wheel with pipx", &mut install)?;
    let program = home.join(".local/bin").join(npm::NAME);
    let start = || private(&program.to_string_lossy(), &home, &[]);
    expect_version(&mut start(), &shared.release.version)?;
    let mut client = Client::start(start().args(["mcp", "--scope", "notes"]))?;
    client.ensure_lists(&shared.tools()?)?;
    client.end()
}

/// Compares the glibc that the wheel names with the one that its program needs.
pub(super) fn check_platform(shared: &Shared<'_>) -> Result<()> {
    let is_installed = setup::install_python(shared.release.workspace, AUDITWHEEL)?;
    require(is_installed, "auditwheel cannot be installed")?;
    let mut show = private("auditwheel", &shared.home("auditwheel")?, &[&shared.python()]);
    let shown = run::capture(show.arg("show").arg(wheel::path(shared.release)))?;
    let platform = wheel::platform(shared.release);
    ensure!(
        shown.contains(&format!("\"{platform}\"")),
        "auditwheel says that it is not for {platform}: {shown}"
    );
    Ok(())
}
