//! The code that the tests of all areas share: the built binary in a temporary home, and clients of its doors.
//!
//! ```text
//! Executor::start(Options::new())          a2g-executor serve, port 0, /workspace in a temp folder
//! Governor::start(&policies)               a2g-executor governor
//! FakeGovernor::start(|method, params| …)  answers what a real one never would
//! Catalogue::with_tools().add(Tool::command("name", WAT))
//! browser_or_skip("http://ADDRESS")         Chromium, which also reports what a page should not do
//! NatsServers::start(3)                     a cluster of NATS with JetStream
//! ```
//! Nothing here waits for a fixed time: every wait polls for its condition, until a generous
//! deadline. A process that was started is killed and reaped when its value is dropped.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::new_without_default,
    clippy::should_implement_trait,
    missing_docs,
    unreachable_pub,
    reason = "all of this is test code: a failure is a panic, time is the machine's, and only tests use these names"
)]

pub mod a2a;
mod a2e;
mod binary;
mod browser;
pub mod callers;
mod canary;
mod catalogue;
mod collector;
pub mod console;
pub mod doors;
mod executor;
mod exposition;
mod fairness;
mod fake_governor;
mod governor;
pub mod guests;
mod http;
pub mod jwt;
mod keys;
mod language;
pub mod mcp;
mod message;
pub mod methods;
mod nats;
pub mod nexus;
mod process;
pub mod proofs;
mod published;
mod stdio;
mod strace;
mod transport;
mod wall_clock;
mod web;
mod web_socket;

pub use a2e::{A2ePeer, A2eSession, a2e, a2e_call, a2e_handshake};
pub use binary::{
    INTERPRETERS, SHELL, cache, cache_home, client_folder, clients, collection, guest, guest_wasip2,
    has_interpreter, program, run, run_in, run_to_end, run_to_end_within, run_with_input, seeds, small_tools,
    state, tools, vectors,
};
pub use browser::{
    Accessibility, Browser, Cookie, Finding, PageReport, Scheme, Visit, browser_or_skip, rules,
};
pub use canary::Canary;
pub use catalogue::{Catalogue, GATE, Tool, saying, typed};
pub use collector::{Collector, Span};
pub use executor::{
    Executor, Home, Options, are_processes_reused, assert_chain_holds, call_in_background, call_queued,
    isolation, records,
};
pub use exposition::{Exposition, scrape};
pub use fairness::{Watched, watch_during};
pub use fake_governor::{FakeGovernor, Reply};
pub use governor::{Governor, policy_for_all, write_policies};
pub use http::{HttpAnswer, HttpClient, NoAnswer, post_request, read_message};
pub use keys::{EXECUTOR, ISSUER, Keys, claims, set_mode, sha256, succeeds};
pub use language::{Language, science_wheel};
pub use message::*;
pub use nats::{NatsClient, NatsServers};
pub use process::{Process, Server, children_of, parent_of};
pub use published::check_answer;
pub use stdio::StdioClient;
pub use strace::{has_strace, trace, under, under_strace};
pub use transport::MessageTransport;
pub use wall_clock::WallClock;
pub use web::Web;
pub use web_socket::WebSocketClient;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Time limit of every wait of a test. Far longer than it should take, because the
/// machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// The configuration of a TLS server for these names, and its self-signed certificate in PEM.
pub fn tls_config(names: &[&str]) -> (Arc<rustls::ServerConfig>, String) {
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a configuration");
    (Arc::new(config), made.cert.pem())
}

/// A server on loopback for one test, which stops when the value is dropped.
pub struct Listener {
    pub address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Listener {
    /// Starts a server that runs `converse` for each connection, on a thread of its own.
    pub fn start(converse: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stopped = Arc::<AtomicBool>::default();
        let until = Arc::clone(&stopped);
        let converse = Arc::new(converse);
        std::thread::spawn(move || {
            let streams = listener.incoming().take_while(|_| !until.load(Ordering::SeqCst));
            for stream in streams.flatten() {
                let converse = Arc::clone(&converse);
                std::thread::spawn(move || converse(stream));
            }
        });
        Self { address, stopped }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _wakes_the_listener = TcpStream::connect(self.address);
    }
}

/// Reports on standard error that the running test is skipped, and why.
pub fn print_skipped(why: &str) {
    say("skipped", why);
}

/// Makes a failing test print its error at once, and not only after the end of all tests.
fn fails_aloud() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            say("failed", &panic.to_string());
            usual(panic);
        }));
    });
}

fn say(what: &str, why: &str) {
    let test = std::thread::current().name().unwrap_or("a thread of a test").to_owned();
    // Not `eprintln!`, whose output is captured until the end of all tests.
    let _nowhere_to_say_it = writeln!(std::io::stderr(), "{what} {test}: {why}");
}

/// Adds a line with the figures of one server to the file that the benchmark names.
pub fn note_figures(line: &str) {
    let Some(path) = std::env::var_os("A2G_TEST_FIGURES") else { return };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a file");
    writeln!(file, "{line}").expect("a line");
}

/// Sets the flag at the end of a block, even after a panic: threads that wait for it would never
/// end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Calls `ask` until it returns a value; panics after [`TIMEOUT`].
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    eventually_within(TIMEOUT, what, ask)
}

/// Calls `ask` until it returns a value; panics after `timeout`.
pub fn eventually_within<T>(timeout: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Number of repetitions of a test, `few` in the short version and more in the long one:
/// `cargo xtask torture` sets the variable.
pub fn times(few: usize) -> usize {
    std::env::var("A2G_TORTURE").ok().and_then(|times| times.parse().ok()).unwrap_or(few)
}
