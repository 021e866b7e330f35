//! A child process whose standard error is captured, and which is killed when its value is dropped.

use super::{TIMEOUT, eventually, fails_aloud};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

#[derive(Default)]
struct Captured {
    /// The text so far, and whether the stream has ended.
    text: Mutex<(String, bool)>,
    grown: Condvar,
}

/// A running child. Killed and reaped on drop; its standard error is shown when the test failed.
pub struct Process {
    name: &'static str,
    child: Child,
    captured: Arc<Captured>,
}

impl Process {
    /// Starts a command whose standard error is captured.
    pub fn spawn(name: &'static str, command: &mut Command) -> Self {
        fails_aloud();
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the executor starts");
        let stderr = child.stderr.take().expect("a pipe");
        let captured = Arc::new(Captured::default());
        let into = Arc::clone(&captured);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                into.text.lock().unwrap().0.push_str(&String::from_utf8_lossy(&line));
                into.grown.notify_all();
                line.clear();
            }
            into.text.lock().unwrap().1 = true;
            into.grown.notify_all();
        });
        Self { name, child, captured }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// All that it has written to standard error.
    pub fn stderr(&self) -> String {
        self.captured.text.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Waits until standard error is closed, and returns all that was written to it.
    pub fn whole_stderr(&self) -> String {
        let name = self.name;
        eventually(&format!("standard error of the {name} is closed"), || {
            let text = self.captured.text.lock().unwrap();
            text.1.then(|| text.0.clone())
        })
    }

    /// Waits for a line with `mark` on standard error and gives the line.
    pub fn line_with(&self, mark: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        let mut text = self.captured.text.lock().unwrap();
        loop {
            if let Some(line) = text.0.lines().find(|line| line.contains(mark)) {
                return line.to_owned();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let name = self.name;
            let shown = &text.0;
            assert!(!text.1, "the {name} ended before it said `{mark}`:\n{shown}");
            assert!(!left.is_zero(), "the {name} does not say `{mark}`:\n{shown}");
            text = self.captured.grown.wait_timeout(text, left).unwrap().0;
        }
    }

    /// Waits for the line that names the address on which it listens, and returns the address.
    pub fn listens_on(&self) -> std::net::SocketAddr {
        let line = self.line_with("listens on http");
        let rest = line.split("://").nth(1).expect("an address");
        rest.split('/').next().expect("an address").parse().expect("an address")
    }

    /// As [`Self::listens_on`], but waits until all of its tools can be called, too.
    pub fn serves_on(&self) -> std::net::SocketAddr {
        self.line_with("all tools are prepared");
        self.listens_on()
    }

    /// As [`Self::listens_on`], or `None` if it ends before it listens.
    pub fn listens_on_unless_it_ends(&mut self) -> Option<std::net::SocketAddr> {
        eventually("it listens or ends", || {
            let listens = self.stderr().contains("listens on http");
            (listens || !self.is_running()).then_some(listens)
        })
        .then(|| self.listens_on())
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be waited for").is_none()
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Asks it to stop, and checks that it exits with 0.
    pub fn stop(&mut self) {
        self.terminate();
        assert_eq!(self.wait_for_exit().code(), Some(0), "{}", self.stderr());
    }

    /// Asks it to read its files again (SIGHUP).
    pub fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    /// Stops it until [`Self::resume`], without its knowledge (SIGSTOP).
    pub fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it continue (SIGCONT).
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).expect("the child is there");
    }

    /// One number of `/proc/PID/status`, such as `VmRSS` in KiB.
    pub fn status(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = text.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("a known name");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    }

    /// The memory that it holds, in KiB, without pages of files. Most of those are its program's: their number
    /// depends on how the program was compiled, and the system drops them when it needs memory.
    pub fn held_kib(&self) -> u64 {
        self.status("RssAnon") + self.status("RssShmem")
    }

    /// The most that [`Self::held_kib`] has been. The system counts the peak with the pages of files, whose number
    /// changes little once the program works.
    pub fn peak_held_kib(&self) -> u64 {
        let files = self.status("RssFile");
        self.status("VmHWM").saturating_sub(files)
    }

    /// Waits until it has ended.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let name = self.name;
        eventually(&format!("the {name} ends"), || {
            self.child.try_wait().expect("the child can be waited for")
        })
    }

    /// Kills the children of its first thread, such as the program that a tracer runs.
    pub fn kill_children(&self) {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        for child in
            children.split_whitespace().filter_map(|id| rustix::process::Pid::from_raw(id.parse().ok()?))
        {
            let _gone = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
    }

    /// Kills it, which has the effect of a crash.
    pub fn kill(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A process that serves A2G at an address.
pub struct Server {
    pub(super) process: Process,
    pub(super) address: std::net::SocketAddr,
}

impl Server {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// One number of `/proc/PID/status`, such as `VmRSS` in KiB.
    pub fn status(&self, name: &str) -> u64 {
        self.process.status(name)
    }

    /// See [`Process::held_kib`].
    pub fn held_kib(&self) -> u64 {
        self.process.held_kib()
    }

    /// See [`Process::peak_held_kib`].
    pub fn peak_held_kib(&self) -> u64 {
        self.process.peak_held_kib()
    }

    /// Address that it listens on.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// `http://ADDRESS/jsonrpc`.
    pub fn http_url(&self) -> String {
        format!("http://{}/jsonrpc", self.address)
    }

    /// `ws://ADDRESS/jsonrpc`.
    pub fn web_socket_url(&self) -> String {
        format!("ws://{}/jsonrpc", self.address)
    }

    /// All that it has written to standard error.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Waits for a line on standard error.
    pub fn line_with(&self, mark: &str) -> String {
        self.process.line_with(mark)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- standard error of the {}:\n{}", self.name, self.stderr());
        }
    }
}

/// The processes whose parent is `parent`, without zombies.
pub fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent_of(*pid).is_some_and(|of| of == parent)).collect()
}

/// The parent of a process; `None` if the process has ended, even if it is not reaped.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}
