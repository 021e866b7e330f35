//! The governed call of the checks: the digest of a note, also as an agent host asks for it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::demo::client::at;
use crate::run;

/// Below `/workspace`.
pub(super) const FILE: &str = "note.txt";
pub(super) const TEXT: &str = "water the plants\n";
/// Longer than the compilation of a small tool by a development build takes on a busy machine.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two calls, if the first one is refused with a retry time.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The arguments of `hash_file`.
pub(super) fn arguments() -> Value {
    json!({ "path": format!("/workspace/{FILE}") })
}

/// The answer of `hash_file` has the digest of the note.
pub(super) fn ensure_hashed(answer: &Value) -> Result<()> {
    let digest = run::to_hex(&Sha256::digest(TEXT));
    ensure!(answer.to_string().contains(&digest), "`hash_file` answered: {answer}");
    Ok(())
}

/// Calls `hash_file` by messages to the process of a command, whose input then ends.
pub(super) fn call_by_mcp(command: &mut Command) -> Result<Value> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let input = child.stdin.take().context("the process has no input")?;
    let output = child.stdout.take().context("the process has no output")?;
    // A thread reads, because reading has no time limit.
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _is_awaited = sender.send(line);
        }
    });
    let answer = converse(input, &lines);
    if answer.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    let answer = answer?;
    ensure!(status.success(), "`mcp` ended with {status}");
    Ok(answer)
}

fn converse(mut input: ChildStdin, lines: &Receiver<String>) -> Result<Value> {
    let client = json!({ "name": "check", "version": "1" });
    let initialize = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize });
    writeln!(input, "{request}")?;
    read_answer(lines, 1)?;
    writeln!(input, "{}", json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
    let call = json!({ "name": "hash_file", "arguments": arguments() });
    let started = run::now();
    let mut id = 1;
    loop {
        id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call });
        writeln!(input, "{request}")?;
        let answer = read_answer(lines, id)?;
        let is_busy = !at(&answer, "/result/_meta/a2g~1error/retry_after_ms").is_null();
        if !is_busy || started.elapsed() > ANSWER_TIMEOUT {
            return Ok(answer);
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Reads messages up to the answer of a request.
fn read_answer(lines: &Receiver<String>, id: u64) -> Result<Value> {
    let started = run::now();
    loop {
        let left = ANSWER_TIMEOUT.saturating_sub(started.elapsed());
        let line = lines.recv_timeout(left).with_context(|| format!("request {id} got no answer"))?;
        let message: Value = serde_json::from_str(&line).with_context(|| format!("it printed `{line}`"))?;
        if *at(&message, "/id") == id {
            return Ok(message);
        }
    }
}
