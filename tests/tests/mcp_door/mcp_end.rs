//! The end of `a2g-executor mcp`: whatever runs, it ends at once, and the journal has one receipt of each run.

use crate::mcp::Host;
use harness::mcp::{call, request};
use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A tenth of this suffices on an idle machine.
const AT_ONCE: Duration = Duration::from_secs(4);

/// The gate, a gate that never stops computing, and a guest that calls tools.
fn catalogue() -> Catalogue {
    let endless = GATE.replacen("(block $open", "(loop $endless (br $endless))\n    (block $open", 1);
    Catalogue::empty()
        .add(Tool::command("gate", GATE))
        .add(Tool::command("endless", &endless))
        .add(Tool::typed_bytes("fan_out", guest("fan_out")).calls(&["*"]))
}

fn start(arguments: &[&str]) -> Host {
    let mut host = Host::spawn_with(arguments, None, &[("RUST_LOG", "info")]);
    host.process().line_with("all tools are prepared");
    host
}

fn start_with_journal(tools: &Path, journal: &Path) -> Host {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    start(&["--tools", &text(tools), "--journal", &text(journal)])
}

/// Sends a call, and waits until its guests run.
fn begin(host: &mut Host, id: u64, tool: &str, arguments: &Value, runs: usize) {
    host.send(&call(id, tool, arguments));
    let file = host.path("runs");
    eventually("the guest runs", || {
        let written = std::fs::read(&file).map_or(0, |runs| runs.len());
        (written == runs).then_some(())
    });
}

/// The tool and the status of each receipt, sorted, from a journal that holds.
fn receipts(journal: &Path) -> Vec<(String, String)> {
    let path = journal.to_str().expect("UTF-8");
    succeeds(&["journal", "verify", "--journal", path]);
    let listed = succeeds(&["journal", "list", "--json", "--journal", path]);
    let listed = String::from_utf8(listed).expect("UTF-8");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let lines = listed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut receipts = lines.map(|line| (text(&line["tool"]), text(&line["status"]))).collect::<Vec<_>>();
    receipts.sort();
    receipts
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(tool, status)| ((*tool).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn the_end_of_its_input_or_a_signal_ends_what_runs() {
    let catalogue = catalogue();
    let tools = catalogue.folder();
    for by_signal in [false, true] {
        let state = tempfile::tempdir().expect("a folder");
        let journal = state.path().join("journal.db");
        let mut host = start_with_journal(&tools, &journal);
        let path = json!({ "path": host.path("x") });
        begin(&mut host, 1, "gate", &path, 1);
        begin(&mut host, 2, "endless", &path, 2);
        let nested = json!({ "calls": [{ "tool": "gate", "arguments": path }] });
        begin(&mut host, 3, "fan_out", &nested, 3);
        let began = Instant::now();
        if by_signal {
            host.process().terminate();
            assert_eq!(host.process().wait_for_exit().code(), Some(0));
        }
        let answers = host.finish();
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        let mut ids = answers.iter().map(|answer| answer["id"].as_u64().expect("an id")).collect::<Vec<_>>();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3], "{answers:?}");
        assert!(answers.iter().all(|answer| answer["result"]["isError"] == true), "{answers:?}");
        let expected =
            [("endless", "ABORTED"), ("fan_out", "ABORTED"), ("gate", "ABORTED"), ("gate", "ABORTED")];
        assert_eq!(receipts(&journal), pairs(&expected), "by a signal: {by_signal}");
    }
}

/// A host that reads nothing cannot keep the process either.
#[test]
fn a_host_that_does_not_read_keeps_nothing() {
    let catalogue = catalogue();
    let state = tempfile::tempdir().expect("a folder");
    let journal = state.path().join("journal.db");
    let mut host = start_with_journal(&catalogue.folder(), &journal);
    let path = json!({ "path": host.path("x") });
    begin(&mut host, 1, "gate", &path, 1);
    for id in 2..60 {
        host.send(&request(id, "tools/list", json!({})));
    }
    let began = Instant::now();
    host.close_input();
    assert_eq!(host.process().wait_for_exit().code(), Some(0));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert_eq!(receipts(&journal), pairs(&[("gate", "ABORTED")]));
}

/// A time that the operator has set is given after a signal. At the end of the input nobody gets the answer.
#[test]
fn a_drain_time_of_the_configuration_counts_for_the_signal_alone() {
    let catalogue = catalogue();
    for by_signal in [false, true] {
        let folders = tempfile::tempdir().expect("a folder");
        let folder = |name: &str| -> PathBuf {
            let path = folders.path().canonicalize().expect("a path").join(name);
            std::fs::create_dir(&path).expect("a folder");
            path
        };
        let work = folder("work");
        let state = folder("state");
        let policies = folder("policies");
        let pattern = format!("{}/**", work.display());
        write_policies(&policies, &[policy_for_all(&[("gate", json!({ "paths": [pattern] }))])]);
        let journal = state.join("journal.db");
        let config = state.join("executor.toml");
        let text = json!({
            "executor": { "drain_seconds": 60 },
            "catalog": { "tools": catalogue.folder() },
            "ceilings": { "filesystem_scope": [pattern] },
            "governor": { "policies": policies },
            "journal": { "path": journal },
        });
        std::fs::write(&config, toml::to_string(&text).expect("TOML")).expect("a file");
        let mut host = start(&["--config", config.to_str().expect("UTF-8")]);
        host.send(&call(1, "gate", &json!({ "path": work.join("x") })));
        eventually("the guest runs", || work.join("runs").exists().then_some(()));
        let began = Instant::now();
        if by_signal {
            host.process().terminate();
            std::fs::write(work.join("go"), "").expect("a file");
            assert_eq!(host.process().wait_for_exit().code(), Some(0));
        }
        let answers = host.finish();
        assert!(by_signal || began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        let status = if by_signal { "SUCCESS" } else { "ABORTED" };
        assert_eq!(answers[0]["result"]["isError"], !by_signal, "{answers:?}");
        assert_eq!(receipts(&journal), pairs(&[("gate", status)]), "by a signal: {by_signal}");
    }
}
