//! Lets agent hosts list the executor among their servers.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::install::private;
use super::{Shared, required};
use crate::dist::npm;
use crate::run;
use crate::setup;

/// They list their servers without a login.
const AGENT_HOSTS: [&str; 3] =
    ["@anthropic-ai/claude-code@2.1.328", "@openai/codex@0.169.0", "@google/gemini-cli@0.61.0"];

/// The hosts that people use, on their first start with the executor, without a cache.
pub(super) fn check(shared: &Shared<'_>) -> Result<()> {
    let workspace = shared.release.workspace;
    let hosts = setup::install_npm(workspace, "hosts", r#"{ "private": true }"#, &AGENT_HOSTS)?;
    let hosts = required(hosts, "they cannot be installed with npm")?;
    let registry = shared.registry()?;
    let executor = shared.install_with_pip(&shared.home("hosts")?)?.join(npm::NAME);
    let executor = executor.to_string_lossy();
    let bins = [hosts.join(".bin"), registry.modules.join(".bin")];
    let first = bins.each_ref().map(PathBuf::as_path);
    // Each with the words that add a server, and what its list then says of it. Codex connects to none for its list.
    let cases: [(&str, &[&str], &str); 3] = [
        ("claude", &["mcp", "add", "a2g", "--", &executor, "mcp"], "✔ Connected"),
        ("codex", &["mcp", "add", "a2g", "--", &executor, "mcp"], "enabled"),
        ("gemini", &["mcp", "add", "a2g", &executor, "mcp"], "Connected"),
    ];
    for (name, add, expected) in cases {
        let home = shared.home(name)?;
        let host = |words: &[&str]| -> Command {
            let mut command = private(name, &home, &first);
            command.args(words).current_dir(home.join("notes"));
            // Nothing of these hosts is asked of a server elsewhere.
            command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
            command.env("GEMINI_CLI_TRUST_WORKSPACE", "true");
            command
        };
        shared.log(&format!("add the server to {name}"), &mut host(add))?;
        let output = host(&["mcp", "list"]).stdin(Stdio::null()).output()?;
        // Gemini CLI prints its list on standard error.
        let lines = [output.stdout, output.stderr].concat();
        let lines = String::from_utf8_lossy(&lines);
        let line = lines.lines().find(|line| line.contains(&*executor)).unwrap_or(&lines);
        if !line.contains(expected) || line.contains("fail") {
            bail!("{name} says of the executor: {line}");
        }
        run::progress("Listed", &format!("by {name}: {expected}"));
    }
    Ok(())
}
