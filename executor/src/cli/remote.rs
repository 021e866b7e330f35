//! The running executor of a command that is a client: `stop`, `resume`, `effects`.

use super::UsageError;
use super::arguments::ExecutorAddress;
use super::output::{note, one_line};
use a2g_door_a2g::{OperatorClient, OperatorClientError};
use a2g_sandbox::egress::client_config;
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::Fault;
use anyhow::anyhow;
use serde_json::Value;
use serde_json::value::RawValue;
use std::pin::pin;
use std::time::Duration;

/// The time after which a command says that it waits.
const FIRST_NOTE: Duration = Duration::from_secs(1);
/// The time between two further notes.
const NOTE_INTERVAL: Duration = Duration::from_secs(5);

/// Calls a method of the executor, and returns its result. While the answer takes long, notes say so.
///
/// # Ambient Authority
/// Reads the token and the certificates.
// Each call has a connection of its own: a person may think for long between two calls.
pub(super) fn call(
    address: &ExecutorAddress,
    method: &str,
    params: Box<RawValue>,
) -> anyhow::Result<Box<RawValue>> {
    let ExecutorAddress { url, token_file, ca_file } = address;
    let tls = client_config(ca_file.as_deref())
        .map_err(|error| UsageError(format!("`--ca-file`: {}", ErrorChain(&error))))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The client is made inside the runtime, because its timers belong to it.
    let result = runtime.block_on(async {
        let client = OperatorClient::new(url, token_file.as_deref(), tls)?;
        note_while_waiting(client.call(method, params)).await
    });
    result.map_err(explain)
}

/// Waits for an answer, and notes how long after one second and then every five seconds.
async fn note_while_waiting<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    let mut waited = FIRST_NOTE;
    let mut wait = FIRST_NOTE;
    loop {
        if let Ok(answer) = tokio::time::timeout(wait, &mut answer).await {
            return answer;
        }
        note(format_args!("waiting for the executor: {} s so far", waited.as_secs()));
        // The second note comes at a multiple of the interval.
        wait = if waited == FIRST_NOTE { NOTE_INTERVAL - FIRST_NOTE } else { NOTE_INTERVAL };
        waited += wait;
    }
}

fn explain(error: OperatorClientError) -> anyhow::Error {
    if error.is_usage() { UsageError(error.to_string()).into() } else { error.into() }
}

/// The options with which another command reaches the same executor as the same caller.
pub(super) fn options(ExecutorAddress { url, token_file, ca_file }: &ExecutorAddress) -> String {
    let mut options = String::new();
    if *url != ExecutorAddress::default_url() {
        options.push_str(&format!(" --url {}", one_line(url)));
    }
    for (name, file) in [("--token-file", token_file), ("--ca-file", ca_file)] {
        if let Some(file) = file {
            options.push_str(&format!(" {name} {}", one_line(file.display().to_string())));
        }
    }
    options
}

/// A member of a result.
pub(super) fn member(result: &RawValue, name: &str) -> anyhow::Result<Value> {
    let result: Value = serde_json::from_str(result.get())?;
    Ok(result.get(name).cloned().unwrap_or_default())
}

/// The error for an answer that this version cannot read. `what` names the answer.
pub(super) fn unreadable(what: &str, fault: &Fault) -> anyhow::Error {
    let mut at = String::new();
    if let Fault::InvalidParams { pointer, .. } = fault {
        at = format!("`{pointer}`: ");
    }
    anyhow!("the executor's {what} cannot be read: {at}{}", fault.sentence())
}
