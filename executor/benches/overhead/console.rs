//! The console: what ten open pages cost the runs beside them, and the first page.

use super::client::{Events, Http, connect};
use super::doors::{FROM_EACH_CLIENT, Server, calls, configure, serve};
use super::{median, micros};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PAGES: usize = 10;
/// Alternating measurements with and without the pages, so that both see the same machine.
const ROUNDS: usize = 4;
const FIRST_PAGES: usize = 200;
/// An event of one kind follows another of the same stream after a second at the earliest.
const QUIET: Duration = Duration::from_millis(1200);

pub(crate) fn measure(binary: &Path, folder: &Path, data: &Path) {
    configure(folder, data, "process");
    let mut command = serve(binary, folder, &folder.join("catalogue"));
    let server = Server::spawn(command.args(["--listen", "127.0.0.1:0"]));
    let cookie = sign_in(folder, &server.address);
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n").into_bytes()
    };
    let address = &*server.address;
    let mut client = Http::connect(address);
    calls(&mut client, 200);
    let mut without = Vec::new();
    let mut with = Vec::new();
    let pages_loaded = AtomicUsize::new(0);
    for _ in 0..ROUNDS {
        without.extend(calls(&mut client, FROM_EACH_CLIENT / ROUNDS));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..PAGES {
                scope.spawn(|| {
                    let mut events = Events::open(address, &get("/console/events"));
                    let mut page = Http::connect(address);
                    while !is_over.load(Ordering::Relaxed) {
                        events.next();
                        page.exchange(&get("/console"));
                        pages_loaded.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(QUIET);
            with.extend(calls(&mut client, FROM_EACH_CLIENT / ROUNDS));
            is_over.store(true, Ordering::Relaxed);
            // Each page waits for an event before it sees that it is over.
            std::thread::sleep(QUIET);
            calls(&mut client, 1);
        });
    }
    let without = median(&mut without);
    let with = median(&mut with);
    println!("\n{:<52} {:>10} {:>12}", "The console, process ring, 1 client", "ratio", "median");
    let what = format!("{PAGES} pages open ({} loads), over none", pages_loaded.into_inner());
    println!("{what:<52} {:>10.3} {:>9.1} µs", with.as_secs_f64() / without.as_secs_f64(), micros(with));
    println!("{:<52} {:>10} {:>9.1} µs", "no page open", "", micros(without));
    let pages = (0..FIRST_PAGES).map(|_| {
        let started = Instant::now();
        Http::connect(address).exchange(&get("/console"));
        started.elapsed()
    });
    let mut pages = pages.collect::<Vec<_>>();
    println!("{:<52} {:>10} {:>9.1} µs", "first page, on a new connection", "", micros(median(&mut pages)));
}

/// Uses the link beside the journal, and returns the cookie.
fn sign_in(folder: &Path, address: &str) -> String {
    let link = std::fs::read_to_string(folder.join("journal.db.console")).unwrap();
    let path = link.trim().split_once("/console").unwrap().1.to_owned();
    let mut stream = connect(address);
    let request = format!("GET /console{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    cookie.split(';').next().unwrap().to_owned()
}
