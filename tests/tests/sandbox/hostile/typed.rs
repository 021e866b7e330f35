//! The typed tools of the repository, asked for what was not granted. They are components, so their
//! files go through WASI 0.2, and a refusal comes back as a tool's own error.

use super::bench::{Bench, Report};
use super::disk::Disk;
use harness::guests::make_fifo;
use serde_json::{Value, json};

/// Content of the file that no tool may read.
const SECRET: &str = "correct horse battery staple";

/// `/jobs` beside a folder that is not granted, with a file in each and links between.
fn disk() -> Disk {
    let links = [
        ("relative", "../outside/secret.txt"),
        ("absolute", "~/outside/secret.txt"),
        ("folder", "../outside"),
    ];
    let disk = Disk::with(&["jobs/inside.txt", "outside/secret.txt"], &[], &links);
    std::fs::write(disk.at("outside/secret.txt"), SECRET).expect("a file");
    make_fifo(&disk.at("jobs/fifo"));
    disk
}

/// Runs a tool that has to fail, and gives its report, which holds nothing of what was not granted.
fn expect_refusal(bench: &Bench, tool: &str, arguments: &Value, condition: Option<&str>) -> Report {
    let call = bench.call(tool).scope("/jobs/**").grant("timeout_seconds", 20).arguments(arguments.clone());
    let call = if let Some(condition) = condition { call.condition(condition) } else { call };
    let report = call.send().failure("the tool failed with ");
    assert!(!report.0.to_string().contains(SECRET) && report.0.get("result").is_none(), "{report:?}");
    report
}

#[test]
fn access_outside_the_grant_is_refused_and_reported() {
    let disk = disk();
    let bench = Bench::start_typed(disk.options());
    let outside = "outside_scope";
    let escapes = "escapes_root";
    let write = |path: &str| json!({ "path": path, "content": "changed" });
    let read = |path: &str| json!({ "path": path });
    let cases = [
        ("read_file", read("/etc/passwd"), "/etc/passwd", outside),
        ("read_file", read("/jobsfoo/x"), "/jobsfoo/x", outside),
        (
            "hash_file",
            json!({ "path": "/outside/secret.txt", "algorithm": "sha256" }),
            "/outside/secret.txt",
            outside,
        ),
        ("write_file", write("/planted"), "/planted", outside),
        ("read_file", read("/jobs/relative"), "/jobs/relative", escapes),
        ("read_file", read("/jobs/absolute"), "/jobs/absolute", escapes),
        ("read_file", read("/jobs/folder/secret.txt"), "/jobs/folder/secret.txt", escapes),
        ("read_file", read("/jobs/../outside/secret.txt"), "/jobs/../outside/secret.txt", escapes),
        ("write_file", write("/jobs/relative"), "/jobs/relative", escapes),
        ("write_file", write("/jobs/folder/planted"), "/jobs/folder/planted", escapes),
    ];
    for (tool, arguments, what, reason) in cases {
        let report = expect_refusal(&bench, tool, &arguments, None);
        let denied = report.denied();
        let seen = denied.iter().any(|(path, why, _)| path.starts_with(what) && *why == reason);
        assert!(seen, "{tool} {arguments}: {denied:?}");
        assert!(denied.iter().all(|(_, why, _)| *why == reason), "{tool} {arguments}: {denied:?}");
        let secret = std::fs::read_to_string(disk.at("outside/secret.txt")).expect("a file");
        assert_eq!(secret, SECRET, "{tool} {arguments}");
        assert_eq!(std::fs::read_dir(disk.at("outside")).expect("a folder").count(), 1);
    }
    let inside =
        bench.call("read_file").scope("/jobs/**").arguments(read("/jobs/inside.txt")).send().success();
    assert!(inside.denied().is_empty() && inside.0["result"].to_string().contains("inside"), "{inside:?}");
    bench.assert_well("tools that asked for more");
}

#[test]
fn a_read_only_grant_refuses_every_write() {
    let disk = disk();
    let bench = Bench::start_typed(disk.options());
    let cases = [
        ("write_file", json!({ "path": "/jobs/new.txt", "content": "x" })),
        ("write_file", json!({ "path": "/jobs/inside.txt", "content": "x" })),
        ("edit_file", json!({ "path": "/jobs/inside.txt", "old_text": "inside.txt", "new_text": "x" })),
    ];
    for (tool, arguments) in cases {
        let report = expect_refusal(&bench, tool, &arguments, Some("read_only"));
        let denied = report.denied();
        assert!(!denied.is_empty(), "{tool} {arguments}: {report:?}");
        assert!(denied.iter().all(|(_, why, _)| *why == "read_only"), "{tool} {arguments}: {denied:?}");
        let inside = std::fs::read_to_string(disk.at("jobs/inside.txt")).expect("a file");
        assert_eq!(inside, "jobs/inside.txt", "{tool} {arguments}");
        assert!(!disk.at("jobs/new.txt").exists(), "{tool} {arguments}");
    }
}

#[test]
fn a_fifo_is_not_opened() {
    let disk = disk();
    let bench = Bench::start_typed(disk.options());
    for (tool, arguments) in [
        ("read_file", json!({ "path": "/jobs/fifo" })),
        ("hash_file", json!({ "path": "/jobs/fifo", "algorithm": "sha256" })),
        ("write_file", json!({ "path": "/jobs/fifo", "content": "x" })),
    ] {
        expect_refusal(&bench, tool, &arguments, None);
    }
    bench.assert_well("a FIFO");
}

#[test]
fn a_limit_ends_a_typed_tool() {
    let disk = disk();
    std::fs::write(disk.at("jobs/large.txt"), "x".repeat(4 << 20)).expect("a file");
    let bench = Bench::start_typed(disk.options());
    let call = || bench.call("read_file").scope("/jobs/**").arguments(json!({ "path": "/jobs/large.txt" }));
    let report = call().condition("max_output_bytes:1000").send();
    if report.response["error"]["data"]["limit"] == "output" {
        report.limit("output");
    } else {
        // The tool may bound what it answers by itself; then a bound below that ends it.
        report.success();
        call().condition("max_output_bytes:10").send().limit("output");
    }
    let report = call().grant("max_memory_mb", 1).send().limit("memory");
    assert!(report.sentence().contains("set by the verdict"), "{report:?}");
}
