//! Nodes that are replaced one after another while clients send.

use super::Fleet;
use super::kills::{Load, NODES, options};
use harness::nexus::PLANNER;
use harness::*;
use std::sync::atomic::Ordering;

const CLIENTS: usize = 8;

#[test]
fn nodes_are_replaced_under_load_and_no_call_fails() {
    let Some(fleet) = Fleet::start() else { return };
    let keys = nexus::Keys::of(&[PLANNER]);
    let mut nodes: Vec<Executor> = NODES.map(|node| Executor::start(options(&fleet, &keys, node))).into();
    let load = Load::new(&nodes);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&load.has_ended);
        let load = &load;
        for client in 0..CLIENTS {
            scope.spawn(move || load.send(client));
        }
        for nth in 0..NODES.len() {
            let asked = nodes[(nth + 1) % 3].home().run(&["fleet", "drain", NODES[nth]]);
            assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
            assert!(nodes[nth].process().wait_for_exit().success());
            // The process has ended, so this only returns its folders.
            let home = nodes.remove(nth).kill();
            nodes.insert(nth, Executor::start_in(home));
            load.addresses.lock().unwrap()[nth] = nodes[nth].address();
        }
        load.has_ended.store(true, Ordering::Relaxed);
    });
    {
        let seen = load.seen.lock().unwrap();
        let aborted: Vec<_> = seen.ended.iter().filter(|(_, status)| status != "SUCCESS").collect();
        assert!(aborted.is_empty(), "{aborted:?}");
        // A request that a process has not read when it ends gets no answer. If a drained node cut off calls, there
        // would be many more.
        assert!(seen.broken.len() <= CLIENTS, "{:?}", seen.broken);
    }
    load.check(&fleet, &nodes);
}
