//! Servers that cannot store anything more.

use super::{Fleet, append, wait_at_the_gate, written};
use harness::*;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// Stores messages until the server refuses them.
fn fill_with_messages(servers: &NatsServers) {
    let stream = json!({ "name": "filler", "subjects": ["filler"] });
    let created = servers.ask(0, "$JS.API.STREAM.CREATE.filler", &stream).unwrap();
    assert!(created.get("error").is_none(), "{created}");
    // Large ones first, so that no room is left for a small one.
    for bytes in [400_000, 20_000, 1000, 100, 10] {
        let message = json!("x".repeat(bytes));
        eventually("the server is full", || {
            let answer = servers.ask(0, "filler", &message);
            answer.is_none_or(|answer| answer.get("error").is_some()).then_some(())
        });
    }
}

fn expect_retry(answer: &Value) {
    assert!(answer["error"]["data"]["retry_after_ms"].is_u64(), "{answer}");
}

/// Checks that nothing runs after `fill`, and that the nodes go on by themselves after `make_room`.
fn survive_a_full_server(
    mut fleet: Fleet,
    fill: impl FnOnce(&NatsServers),
    make_room: impl FnOnce(&mut NatsServers),
) {
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    assert_eq!(result(&one.rpc("a2g/execute", &append("x")))["status"], "SUCCESS");
    let (running, caller) = wait_at_the_gate(&one);
    fill(&fleet.servers);
    // A full disk still has the rest of a page for small messages.
    let mut runs = 1;
    let (call, ran) = eventually("a call is refused", || {
        let call = append("x");
        let answer = one.rpc("a2g/execute", &call);
        if answer["result"]["status"] == "SUCCESS" {
            runs += 1;
            return None;
        }
        expect_retry(&answer);
        // The claim may have fitted, and not the receipt.
        Some((call, usize::from(answer["error"]["data"]["ran"] == true)))
    });
    expect_retry(&two.rpc("a2g/execute", &call));
    // The lease cannot be renewed either, so the run is aborted.
    let answer = caller.join().unwrap();
    assert!(answer.get("result").is_none(), "{answer}");
    eventually("the node is not ready", || {
        (one.client().request("GET", "/health", &[], b"").status == 503).then_some(())
    });
    expect_retry(&two.rpc("a2g/execute", &call));
    assert_eq!(written(&[&one, &two]).len(), runs + ran);
    make_room(&mut fleet.servers);
    let mut ends = Vec::new();
    for node in [&one, &two] {
        ends.push(eventually("it runs or is answered", || {
            let answer = node.rpc("a2g/execute", &call);
            let report = answer.get("result").or_else(|| answer["error"]["data"].get("report"))?;
            report["status"].as_str().map(str::to_owned)
        }));
        eventually("the run has its end", || {
            let answer = node.rpc("a2g/execute", &running);
            let report = answer["error"]["data"].get("report")?;
            assert_eq!(report["status"], "ABORTED", "{answer}");
            Some(())
        });
    }
    // A run whose claim fitted, and not its receipt, may have been ended by the node that took its node over.
    let end = &ends[0];
    assert!(ends[1] == *end && (end == "SUCCESS" || ran == 1 && end == "ABORTED"), "{ends:?}, ran {ran}");
    assert_eq!(written(&[&one, &two]).len(), runs + 1);
    assert_eq!((one.runs_of_the_gate(), two.runs_of_the_gate()), (1, 0));
    for name in ["one", "two"] {
        fleet.wait_for(one.home(), name, |node| node["state"] == "live" && node["open"] == 0);
    }
    for (call, status) in [(&call, end.as_str()), (&running, "ABORTED")] {
        let reports = fleet.reports_of(&id_of(call));
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!(reports[0]["status"], status, "{reports:?}");
    }
}

#[test]
fn a_full_server_refuses_claims_until_it_has_room_again() {
    let Some(servers) = NatsServers::start_with(1, "jetstream { max_file_store: 8MB }") else { return };
    survive_a_full_server(Fleet::with(servers), fill_with_messages, |servers| {
        let deleted = servers.ask(0, "$JS.API.STREAM.DELETE.filler", &json!({})).unwrap();
        assert_eq!(deleted["success"], true, "{deleted}");
    });
}

/// A file system in memory, which is unmounted when the value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` if this user may not mount anything.
    fn mount(at: PathBuf) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(&at);
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let error = std::io::copy(&mut std::io::repeat(b'x'), &mut file).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _it_goes_with_the_machine = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_refuses_claims_until_it_has_room_again() {
    // More than the disk has: by default, the server takes a part of the disk only, and never fills it.
    let Some(mut servers) = NatsServers::start_with(1, "jetstream { max_file_store: 64MB }") else { return };
    servers.kill(0);
    let Some(disk) = SmallDisk::mount(servers.store(0)) else {
        print_skipped("this user may not mount a small disk");
        return;
    };
    servers.restart(0);
    let make_room = |servers: &mut NatsServers| {
        disk.make_room();
        // A stream whose message could not be written stores nothing more until its server starts again.
        servers.restart(0);
    };
    survive_a_full_server(Fleet::with(servers), |_| disk.fill(), make_room);
}
