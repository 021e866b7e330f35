//! (g): what runs take of memory, each in a process of its own: what the server itself grows by while they come and go,
//! and what many take together that sleep at once.

use super::HELLO;
use super::client::{Http, connect, post};
use super::doors::{Memory, Server, calls, install, request};
use super::subscribers::{SETTLED, WAITS};
use std::io::Write;
use std::path::Path;

/// What the first runs make is used again by all others.
const FIRST: usize = 1000;
const RUNS: usize = 10_000;
const GROWTH_GOAL_MB: f64 = 1.0;
const ASLEEP: usize = 200;
const ASLEEP_GOAL_MB: f64 = 1000.0;

pub(crate) fn measure(data: &Path) {
    let binary = crate::executor();
    let folder = tempfile::tempdir().unwrap();
    install(&binary, folder.path(), data, &[("hello", HELLO), ("waits", WAITS)]);
    let started = || Server::start(&binary, folder.path(), &folder.path().join("catalogue"));
    println!("{:<58} {:>8} {:>14}", "(g) process isolation: memory in MB", "", "goal");
    growth(&started());
    let config = folder.path().join("executor.toml");
    let table = format!("[executor]\nconcurrent = {ASLEEP}\nconcurrent_per_agent = {ASLEEP}\n");
    let wider = std::fs::read_to_string(&config).unwrap().replace("[executor]\n", &table);
    std::fs::write(&config, wider).unwrap();
    asleep(&started());
    println!(
        "Growth is of what is resident, shared libraries and all. Of a page that processes share, each has its"
    );
    println!("share (PSS), so that it is counted once.");
}

/// One client after the other's answer; the governor inside takes each report.
fn growth(server: &Server) {
    let mut http = Http::connect(&server.address);
    calls(&mut http, FIRST);
    std::thread::sleep(SETTLED);
    let before = server.memory();
    calls(&mut http, RUNS);
    std::thread::sleep(SETTLED);
    let grown = server.memory().rss_mb - before.rss_mb;
    row(&format!("the server, after {RUNS} runs more than {FIRST}: grown by"), grown, GROWTH_GOAL_MB);
}

fn asleep(server: &Server) {
    let sleepers = (0..ASLEEP).map(|_| {
        let mut sleeper = connect(&server.address);
        sleeper.write_all(&post("/jsonrpc", "", &request("waits"))).unwrap();
        sleeper
    });
    let sleepers = sleepers.collect::<Vec<_>>();
    let running = format!("\na2g_running {ASLEEP}\n");
    let mut http = Http::connect(&server.address);
    while !http.exchange(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").contains(&running) {
        std::thread::sleep(SETTLED / 10);
    }
    std::thread::sleep(SETTLED);
    let processes = server.processes();
    let what = format!("{ASLEEP} runs asleep, {} processes in all", processes.len());
    let shares = processes.iter().map(|process| Memory::of(*process).map(|memory| memory.pss_mb));
    match shares.sum::<Option<f64>>() {
        Some(all) => row(&what, all, ASLEEP_GOAL_MB),
        None => println!("{what:<58} skipped: the kernel shows the memory of children to root only"),
    }
    drop(sleepers);
}

fn row(what: &str, mb: f64, goal: f64) {
    let goal = format!("{goal:.0}{}", if mb <= goal { "" } else { ", missed" });
    println!("{what:<58} {mb:>8.2} {goal:>14}");
}
