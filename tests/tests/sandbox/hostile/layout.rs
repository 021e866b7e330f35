//! The addresses of code and data in the processes of guests: for how long they are the same, so that a guest could use
//! what another has learnt.

use super::bench::{Bench, HARMLESS};
use super::isolation::{SLEEPS, zygote_of};
use harness::guests::Guest;
use harness::{Options, children_of, eventually, parent_of, print_skipped};
use std::collections::BTreeSet;
use std::fs;

const WAITING: usize = 2;

fn start(key: &str, value: impl Into<serde_json::Value>) -> Bench {
    start_with(Options::new().set("executor.waiting", WAITING).set(key, value))
}

fn start_with(options: Options) -> Bench {
    let options = options.set("executor.isolation", "process");
    Bench::start_with(options, [("sleeps", Guest::new(SLEEPS))]).undisturbed()
}

/// The addresses of the program and its libraries in a process.
fn layout(pid: u32) -> Option<BTreeSet<String>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let fixed = maps
        .lines()
        .filter(|line| line.ends_with("/a2g-executor") || line.contains(".so") || line.ends_with("[vdso]"));
    Some(fixed.map(str::to_owned).collect()).filter(|layout: &BTreeSet<_>| !layout.is_empty())
}

/// True when the kernel gives each program a layout of its own, and shows this user the layout of others.
fn can_be_seen(bench: &Bench) -> bool {
    let is_random = fs::read_to_string("/proc/sys/kernel/randomize_va_space");
    let is_random = is_random.is_ok_and(|level| level.trim() != "0");
    let can = is_random && children_of(bench.process).into_iter().all(|zygote| layout(zygote).is_some());
    if !can {
        print_skipped("layouts are not random here, or only root sees them");
    }
    can
}

/// The children of all zygotes while a guest sleeps, when as many wait as have to.
fn while_one_sleeps<T>(bench: &Bench, work: impl FnOnce(&str, Vec<u32>) -> T) -> T {
    let call = bench.call("sleeps").grant("timeout_seconds", 60);
    let intent = call.intent();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| call.send());
        let children = eventually("the guest runs", || {
            let children = children_of(bench.process).into_iter().flat_map(children_of).collect::<Vec<_>>();
            (bench.state(&intent) == "running" && children.len() == WAITING + 1).then_some(children)
        });
        let worked = work(&intent, children);
        assert!(bench.cancel(&intent));
        answer.join().expect("no panic").aborted("cancelled");
        worked
    })
}

fn layouts(children: Vec<u32>) -> BTreeSet<BTreeSet<String>> {
    children.into_iter().map(|child| layout(child).expect("it lives")).collect()
}

#[test]
fn children_share_a_layout_until_their_zygote_is_replaced() {
    let bench = start("executor.renew_runs", 5);
    if !can_be_seen(&bench) {
        return;
    }
    let first = zygote_of(&bench);
    let before = while_one_sleeps(&bench, |intent, children| {
        let before = layouts(children);
        // While its guest runs, the old one lives, and other runs get children of the next.
        let next = eventually("another zygote", || {
            bench.call(HARMLESS).send().success();
            children_of(bench.process).into_iter().find(|zygote| *zygote != first)
        });
        eventually("the old one has no child that waits", || (children_of(first).len() == 1).then_some(()));
        assert!(parent_of(next).is_some());
        assert_eq!(bench.state(intent), "running");
        before
    });
    eventually("the old one is gone", || parent_of(first).is_none().then_some(()));
    let after = while_one_sleeps(&bench, |_, children| layouts(children));
    assert_eq!((before.len(), after.len()), (1, 1), "{before:?} {after:?}");
    assert_ne!(before, after);
    let said = bench.executor.stderr();
    assert!(!said.contains("WARN\",\"target\":\"a2g_isolate"), "a run noticed: {said}");
}

#[test]
fn a_zygote_is_also_replaced_after_a_time() {
    let bench = start("executor.renew_seconds", 1);
    let first = children_of(bench.process);
    eventually("another zygote", || {
        let now = children_of(bench.process);
        (now.len() == 1 && now != first).then_some(())
    });
    bench.assert_well("a zygote that was replaced");
}

#[test]
fn all_runs_submitted_during_zygote_replacement_complete() {
    // Fewer wait than are wanted, so that at each change some runs wait for a child.
    let options = Options::new().set("executor.waiting", 1).set("executor.concurrent", 16);
    let bench = start_with(options.set("executor.renew_runs", 1));
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..60 {
                    bench.call(HARMLESS).grant("timeout_seconds", 20).send().success();
                }
            });
        }
    });
}

#[test]
fn with_fresh_layouts_every_child_has_its_own_layout() {
    let bench = start("executor.fresh_layout", true);
    if !can_be_seen(&bench) {
        return;
    }
    let (seen, zygotes) = while_one_sleeps(&bench, |_, children| {
        assert_eq!(children_of(bench.process).len(), WAITING + 1, "each has a zygote of its own");
        (layouts(children), children_of(bench.process).len())
    });
    assert_eq!((seen.len(), zygotes), (WAITING + 1, WAITING + 1), "{seen:?}");
    for _ in 0..5 {
        bench.assert_well("a run with a layout of its own");
    }
}
