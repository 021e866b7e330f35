//! A process for each run, written out by hand: fork, run with plain wasmtime, reap. No confinement, no
//! limits, no report. It happens in a process of its own, because only one with one thread may fork.

use super::{median, plain::Plain};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 500;
/// Says to the benchmark that it is the process that forks.
pub(crate) const ARGUMENT: &str = "fork-by-hand";

/// The median of one run after the other, measured by the process that forks.
pub(crate) fn measure(wasm: &Path, folder: &Path) -> Duration {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let mut child = child.arg(ARGUMENT).args([wasm, folder]).stdout(Stdio::piped()).spawn().unwrap();
    let mut nanos = String::new();
    child.stdout.take().unwrap().read_to_string(&mut nanos).unwrap();
    assert!(child.wait().unwrap().success());
    Duration::from_nanos(nanos.trim().parse().unwrap())
}

/// The process that forks.
pub(crate) fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1);
    let wasm = std::fs::read(arguments.next().unwrap()).unwrap();
    let folder = arguments.next().unwrap();
    // What is compiled here is loaded by a process that never had the compiler's threads.
    if let Some(compiled) = arguments.next() {
        let plain = Plain::load(&std::fs::read(compiled).unwrap());
        let mut times = (0..ROUNDS).map(|_| one(&plain, Path::new(&folder))).collect::<Vec<_>>();
        println!("{}", median(&mut times).as_nanos());
        return;
    }
    let compiled = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(compiled.path(), Plain::compile(&wasm)).unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(std::env::args().skip(1)).arg(compiled.path());
    assert!(again.status().unwrap().success());
}

#[allow(unsafe_code, reason = "the process has one thread")]
fn one(plain: &Plain, folder: &Path) -> Duration {
    let began = Instant::now();
    let (mut read, write) = std::io::pipe().unwrap();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(plain.run("{\"path\":\"/data\"}", Some(folder)));
        std::io::Write::write_all(&mut &write, b"done").unwrap();
        unsafe { libc::_exit(0) }
    }
    drop(write);
    let mut answer = String::new();
    read.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "done");
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    began.elapsed()
}
