//! `a2g-executor serve --stdio`, or `--a2e-stdio`, and the two ends of its pipe.

use super::executor::Home;
use super::published::check_answers;
use super::{Options, Process, TIMEOUT};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// An executor that serves lines.
pub struct StdioClient {
    process: Process,
    home: Home,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl StdioClient {
    /// Starts one that speaks A2G.
    pub fn start(options: Options) -> Self {
        Self::start_as("--stdio", options)
    }

    /// Starts one that speaks what an argument says.
    pub fn start_as(argument: &str, options: Options) -> Self {
        let home = Home::new(options.argument(argument));
        let mut process =
            Process::spawn("executor", home.command().stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdin = process.child().stdin.take();
        let stdout = process.child().stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { process, home, stdin, lines }
    }

    /// Sends one line.
    pub fn send(&mut self, line: &[u8]) {
        self.send_part(line);
        self.send_part(b"\n");
    }

    /// Sends what is not a whole line yet.
    pub fn send_part(&mut self, part: &[u8]) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        stdin.write_all(part).and_then(|()| stdin.flush()).expect("the executor reads");
    }

    /// The next line.
    pub fn receive(&self) -> Value {
        let line = self.lines.recv_timeout(TIMEOUT).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends one line and receives one.
    pub fn exchange(&mut self, line: &str) -> Value {
        self.send(line.as_bytes());
        let answer = self.receive();
        check_answers(line.as_bytes(), answer.to_string().as_bytes());
        answer
    }

    /// Closes standard input and gives the rest of the lines, once it has ended.
    pub fn finish(mut self) -> (std::process::ExitStatus, Vec<String>) {
        drop(self.stdin.take());
        let status = self.process.wait_for_exit();
        (status, self.lines.iter().collect())
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The host folder that guests know as `/workspace`.
    pub fn workspace(&self) -> PathBuf {
        self.home.workspace()
    }

    /// The folders.
    pub fn home(&self) -> &Home {
        &self.home
    }
}
