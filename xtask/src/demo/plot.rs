//! A plot of `run_python` with its scientific packages, whose picture stays beside the logs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fs_err as fs;
use serde_json::{Value, json};

use super::client::{at, text};
use crate::run::{self, Workspace};
use crate::science::{MISSING, Science};

const PROGRAM: &str = include_str!("plot.py");
/// The name of the picture of the first figure.
const PICTURE: &str = "figure-1.png";
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Runs the program by `a2g-executor run`, with a catalogue of its own, and writes the picture to `folder`.
pub(super) fn draw(workspace: &Workspace, folder: &Path) -> Result<()> {
    let Some(science) = Science::add(workspace, &workspace.executor())? else {
        anstream::println!("\nA plot with pandas and matplotlib: {MISSING}");
        return Ok(());
    };
    let arguments = folder.join("plot.json");
    fs::write(&arguments, json!({ "code": PROGRAM }).to_string())?;
    let mut program = Command::new(workspace.executor());
    program.args(["run", "run_python", "--json", "--arguments", "-", "--config"]).arg(&science.config);
    let input = fs::File::open(&arguments)?.into_parts().0;
    let report: Value = serde_json::from_str(&run::capture_reading(&mut program, input.into())?)?;
    let artifacts = at(&report, "/artifacts").as_array().map_or(&[][..], Vec::as_slice);
    let found = artifacts.iter().find(|artifact| text(artifact, "/name") == PICTURE);
    let artifact = found.context("the program returned no picture")?;
    let picture = STANDARD.decode(text(artifact, "/content"))?;
    ensure!(picture.starts_with(SIGNATURE), "{PICTURE} is no PNG");
    let path = folder.join("calls.png");
    fs::write(&path, &picture)?;
    let calls = at(&report, "/result/result");
    let shown = path.strip_prefix(&workspace.root).unwrap_or(&path).display();
    anstream::println!("\nA plot with pandas and matplotlib, of {calls}: {shown} ({} bytes)", picture.len());
    Ok(())
}
