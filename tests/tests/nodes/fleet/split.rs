//! Nodes that cannot reach the servers, while the servers and the other nodes go on.

use super::{Fleet, append, status, wait_at_the_gate, written};
use harness::*;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The treatment of the bytes of a connection that is cut.
#[derive(Clone, Copy)]
enum Cut {
    /// They arrive once the link is healed, because the kernel sends them again: late renewals and claims.
    Hold,
    /// They never arrive, so the two ends no longer understand each other.
    Drop,
}

/// A network link between a node and a server, which can be cut without closing a connection.
struct Link {
    listener: Listener,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    fn to(server: SocketAddr, cut: Cut) -> Self {
        let is_cut = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&is_cut);
        let listener = Listener::start(move |near| {
            let Ok(far) = TcpStream::connect(server) else { return };
            let (near_copy, far_copy, flag_copy) =
                (near.try_clone().unwrap(), far.try_clone().unwrap(), Arc::clone(&flag));
            let back = std::thread::spawn(move || pass(far_copy, near_copy, &flag_copy, cut));
            pass(near, far, &flag, cut);
            back.join().unwrap();
        });
        Self { listener, is_cut }
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    fn heal(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Threads that hold bytes would never end.
        self.heal();
    }
}

/// Passes on bytes in one direction, until either end closes.
fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool, cut: Cut) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut bytes).unwrap_or(0);
        let must_wait = length == 0 || matches!(cut, Cut::Hold);
        let is_lost = !must_wait && is_cut.load(Ordering::SeqCst);
        while must_wait && is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if length == 0 || (!is_lost && to.write_all(&bytes[..length]).is_err()) {
            break;
        }
    }
    for end in [&from, &to] {
        let _closed_already = end.shutdown(Shutdown::Both);
    }
}

/// The gate, which also writes a byte every 10 ms while it waits.
fn ticking_gate() -> String {
    const SLEEP: &str = ";; Sleep for 10 ms";
    assert!(GATE.contains(SLEEP));
    let tick = "(call $write (i32.load (i32.const 140)) (i32.const 32) (i32.const 1))\n";
    GATE.replace(SLEEP, &format!("{tick}{SLEEP}"))
}

/// The status code of `/health`.
fn health(node: &Executor) -> u16 {
    node.client().request("GET", "/health", &[], b"").status
}

#[test]
fn a_node_that_is_cut_off_stops_its_runs_and_joins_again() {
    let Some(mut fleet) = Fleet::start() else { return };
    fleet.catalogue = Catalogue::with_tools().add(Tool::command("gate", &ticking_gate()));
    let server = fleet.servers.addresses()[0];
    let links = [Link::to(server, Cut::Hold), Link::to(server, Cut::Drop)];
    let cut_off: Vec<Executor> = ["one", "two"]
        .into_iter()
        .zip(&links)
        .map(|(node, link)| {
            let url = format!("nats://{}", link.listener.address);
            Executor::start(fleet.options(node).set("fleet.servers", json!([url])))
        })
        .collect();
    let three = fleet.node("three");
    let runs: Vec<_> = cut_off.iter().map(wait_at_the_gate).collect();
    let (kept, keeps) = wait_at_the_gate(&three);
    links.iter().for_each(Link::cut);
    // Refused before anything runs, even if the node has not noticed the cut yet.
    for node in &cut_off {
        let refused = node.rpc("a2g/execute", &append("x"));
        assert!(refused["error"]["data"]["retry_after_ms"].is_u64(), "{refused}");
    }
    assert_eq!(result(&three.rpc("a2g/execute", &append("x")))["status"], "SUCCESS");
    for name in ["one", "two"] {
        fleet.wait_for(three.home(), name, |node| node["taken_over_by"] == "three");
    }
    // No guest acts once another node may have reported its end.
    let ticks = |nodes: &[Executor]| nodes.iter().map(Executor::runs_of_the_gate).collect::<Vec<_>>();
    let at_takeover = ticks(&cut_off);
    let mut calls = Vec::new();
    for (node, (call, caller)) in cut_off.iter().zip(runs) {
        assert_eq!(health(node), 503);
        let reports = fleet.reports_of(&id_of(&call));
        assert!(reports.iter().all(|report| report["status"] == "ABORTED"), "{reports:?}");
        calls.push((call, caller));
    }
    assert_eq!(health(&three), 200);
    let still = three.runs_of_the_gate();
    eventually("the other node's run goes on", || (three.runs_of_the_gate() > still).then_some(()));
    links.iter().for_each(Link::heal);
    for name in ["one", "two"] {
        fleet.wait_for(three.home(), name, |node| node["state"] == "live" && node["open"] == 0);
    }
    three.open_the_gate();
    assert_eq!(result(&keeps.join().unwrap())["status"], "SUCCESS");
    assert_eq!(result(&cut_off[0].rpc("a2g/execute", &kept))["status"], "SUCCESS");
    for (call, caller) in calls {
        // Answered as aborted, or with a time for a repeat.
        let answer = caller.join().unwrap();
        assert!(answer.get("result").is_none(), "{answer}");
        let ends: Vec<Value> = [&cut_off[0], &cut_off[1], &three]
            .map(|node| eventually("an end", || ended(&node.rpc("a2g/execute", &call))))
            .into();
        assert!(ends.iter().all(|end| *end == ends[0] && end["status"] == "ABORTED"), "{ends:?}");
        let reports = fleet.reports_of(&id_of(&call));
        assert!(reports.iter().all(|report| report["status"] == "ABORTED"), "{reports:?}");
        assert_eq!(reports.len(), 1, "{reports:?}");
    }
    for node in &cut_off {
        eventually("it claims again", || {
            (node.rpc("a2g/execute", &append("y"))["result"]["status"] == "SUCCESS").then_some(())
        });
        let verified = node.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
    assert_eq!(ticks(&cut_off), at_takeover, "a guest acted after the end of its lease");
    let nodes = [&cut_off[0], &cut_off[1], &three];
    assert_eq!(written(&nodes).matches('x').count(), 1);
    assert_eq!(status(three.home())["nodes"].as_array().unwrap().len(), 3);
}

/// The report of an intent that did not succeed.
fn ended(answer: &Value) -> Option<Value> {
    Some(answer["error"]["data"]["report"].clone()).filter(Value::is_object)
}
