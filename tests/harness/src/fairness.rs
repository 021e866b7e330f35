//! The check that a server answers others while a client floods it.

use super::{SetOnDrop, TIMEOUT};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time of three of four answers while callers send as much as they may. The promise is 200 ms, on a
/// machine with nothing else to do.
const FAIR: Duration = Duration::from_millis(500);
/// The same of 19 of 20 answers, which took 0.7 to 1.2 s where workers read such messages. Meant for an unoptimised
/// server beside two other tests on two cores.
const FAIR_AT_WORST: Duration = Duration::from_secs(1);

/// Observations of a client that polls `/health` continuously.
#[derive(Debug, Default)]
pub struct Watched {
    answers: usize,
    /// Of three in four answers.
    usual: Duration,
    /// Of 19 in 20 answers.
    at_worst: Duration,
    /// From the first time that it was asked for one answer.
    pub slowest: Duration,
    /// Connections that gave way to others before they were heard.
    unheard: usize,
}

impl Watched {
    pub fn assert_fair(&self) {
        assert!(self.usual < FAIR && self.at_worst < FAIR_AT_WORST, "{self:?}");
    }
}

/// Asks for `/health` again and again until `over`.
fn watch(address: SocketAddr, over: &AtomicBool) -> Watched {
    let mut watched = Watched::default();
    let mut times = Vec::new();
    while !over.load(Ordering::SeqCst) {
        let asked = Instant::now();
        while !is_healthy(address) {
            watched.unheard += 1;
            assert!(asked.elapsed() < TIMEOUT, "{watched:?}");
        }
        times.push(asked.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    times.sort_unstable();
    watched.answers = times.len();
    watched.slowest = times.last().copied().unwrap_or_default();
    let longest_of = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100);
        times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    };
    watched.usual = longest_of(75);
    watched.at_worst = longest_of(95);
    watched
}

/// Polls `/health` during `flood`.
pub fn watch_during(address: SocketAddr, flood: impl FnOnce()) -> Watched {
    let over = AtomicBool::new(false);
    let watched = std::thread::scope(|scope| {
        let health = scope.spawn(|| watch(address, &over));
        {
            let _over = SetOnDrop(&over);
            flood();
        }
        health.join().unwrap()
    });
    println!("/health: {watched:?}");
    assert!(watched.answers > 0, "{watched:?}");
    watched
}

/// True if a request over a new connection is answered.
fn is_healthy(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    ask().is_ok_and(|answer: String| answer.starts_with("HTTP/1.1 200") && answer.contains("ok"))
}
