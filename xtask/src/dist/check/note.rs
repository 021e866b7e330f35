//! The governed call of the checks of servers: the digest of a note.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::client::Client;
use crate::run;

/// Below `/workspace`.
pub(super) const FILE: &str = "note.txt";
pub(super) const TEXT: &str = "water the plants\n";

/// The arguments of `hash_file`.
pub(super) fn arguments() -> Value {
    json!({ "path": format!("/workspace/{FILE}") })
}

/// Checks that an answer of `hash_file` has the digest of the note.
pub(super) fn ensure_hashed(answer: &Value) -> Result<()> {
    let digest = run::to_hex(&Sha256::digest(TEXT));
    ensure!(answer.to_string().contains(&digest), "`hash_file` answered: {answer}");
    Ok(())
}

/// Calls `hash_file` as an agent host does that starts this command. The command has to list these tools.
pub(super) fn hash_by_mcp(command: &mut Command, tools: &[String]) -> Result<()> {
    let mut client = Client::start(command)?;
    client.ensure_lists(tools)?;
    ensure_hashed(&client.call("hash_file", &arguments())?)?;
    client.end()
}
