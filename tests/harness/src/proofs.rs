//! Executors that trust keys, and calls with proofs.

use super::{EXECUTOR, Executor, Keys, Options, claims, execute};
use serde_json::{Value, json};
use std::sync::Barrier;

/// An executor that trusts these keys, takes nothing unsigned, and has no governor elsewhere.
pub fn trusting(keys: &Keys) -> Options {
    with_leave(keys).signed_only()
}

/// As [`trusting`], but unsigned verdicts are taken as well.
pub fn with_leave(keys: &Keys) -> Options {
    Options::new().set("executor.did", EXECUTOR).set("trust.keys", json!(keys.trusted_folder()))
}

/// The params of a call that appends one `x` to `/workspace/log`: its length is the number of runs.
pub fn append() -> Value {
    execute("write_file", json!({ "path": "/workspace/log", "content": "x", "mode": "append" }))
}

pub fn runs(executor: &Executor) -> usize {
    executor.file("log").map_or(0, |log| log.len())
}

/// A value with one member set.
pub fn with(value: &Value, member: &str, to: Value) -> Value {
    let mut value = value.clone();
    value[member] = to;
    value
}

/// Calls that differ in their intents alone: their proofs have one identifier.
pub fn of_one_identifier(keys: &Keys, count: usize) -> Vec<Value> {
    let calls = (0..count).map(|_| {
        let call = append();
        let proof = keys.sign(&with(&claims(&call), "jti", json!("the-same")));
        with(&call, "proof", json!(proof))
    });
    calls.collect()
}

/// Sends each call over a connection of its own, all at the same moment.
pub fn at_once(executor: &Executor, calls: &[Value]) -> Vec<Value> {
    let barrier = Barrier::new(calls.len());
    std::thread::scope(|scope| {
        let clients = calls.iter().map(|call| {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut client = executor.client();
                barrier.wait();
                client.rpc("a2g/execute", call)
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}
