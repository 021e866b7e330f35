//! `a2g-executor governor` in a process of its own.

use super::{HttpClient, Process, Server, eventually, program};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A policy that lets every agent use these tools, with these constraints each.
pub fn policy_for_all(tools: &[(&str, Value)]) -> Value {
    let rule = |constraints: &Value| json!({ "allowed": true, "constraints": constraints });
    let tools: Map<String, Value> =
        tools.iter().map(|(name, constraints)| ((*name).to_owned(), rule(constraints))).collect();
    json!({
        "agent_did": "*",
        "version": "test-1",
        "capabilities": { "tools": tools, "network": {}, "resources": {} },
    })
}

/// Writes policies to a folder.
pub fn write_policies(folder: &Path, policies: &[Value]) {
    for (index, policy) in policies.iter().enumerate() {
        std::fs::write(folder.join(format!("{index}.json")), policy.to_string()).expect("a policy");
    }
}

/// The lines of an NDJSON file so far. One that a kill cut off was not acknowledged, and comes again.
pub(super) fn read_reports(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |line: &str| match serde_json::from_str(line) {
        Err(error) if error.is_eof() => None,
        report => Some(report.unwrap_or_else(|error| panic!("a report is JSON: {error}: {line}"))),
    };
    whole.lines().filter_map(read).collect()
}

/// A governor process.
pub struct Governor {
    server: Server,
    home: TempDir,
    arguments: Vec<String>,
    filter: Option<String>,
}

impl std::ops::Deref for Governor {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Governor {
    /// Starts one with these policies, or with the built-in one when there are none.
    pub fn start(policies: &[Value]) -> Self {
        Self::start_with(policies, &[])
    }

    /// As [`Governor::start`], with a value of `RUST_LOG`.
    pub fn start_logging(policies: &[Value], filter: &str) -> Self {
        Self::start_as(policies, &[], Some(filter))
    }

    /// As [`Governor::start`], with more arguments.
    pub fn start_with(policies: &[Value], arguments: &[&str]) -> Self {
        Self::start_as(policies, arguments, None)
    }

    fn start_as(policies: &[Value], arguments: &[&str], filter: Option<&str>) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let home = tempfile::tempdir().expect("a temp folder");
        if !policies.is_empty() {
            let folder = home.path().join("policies");
            std::fs::create_dir(&folder).expect("a folder");
            write_policies(&folder, policies);
        }
        let filter = filter.map(str::to_owned);
        let process = Self::spawn(&home, "127.0.0.1:0", &arguments, filter.as_deref());
        let address = process.listens_on();
        Self { server: Server { process, address }, home, arguments, filter }
    }

    fn spawn(home: &TempDir, listen: &str, arguments: &[String], filter: Option<&str>) -> Process {
        let mut command = Command::new(program());
        command.current_dir(home.path()).env_remove("RUST_LOG").args(["governor", "--listen", listen]);
        command.envs(filter.map(|filter| ("RUST_LOG", filter)));
        command.arg("--reports").arg(home.path().join("reports.ndjson"));
        let policies = home.path().join("policies");
        if policies.is_dir() {
            command.arg("--policies").arg(policies);
        }
        Process::spawn("governor", command.args(arguments))
    }

    /// Kills it, as a crash would.
    pub fn stop(&mut self) {
        self.server.process.kill();
    }

    /// Starts it again on the same port.
    pub fn restart(&mut self) {
        self.stop();
        let listen = self.address.to_string();
        self.server.process = Self::spawn(&self.home, &listen, &self.arguments, self.filter.as_deref());
        assert_eq!(self.process.listens_on(), self.address);
    }

    /// Calls a method and gives the whole response.
    pub fn rpc(&self, method: &str, params: &Value) -> Value {
        HttpClient::to_governor(self.address).rpc(method, params)
    }

    /// The file of its reports.
    pub fn reports_file(&self) -> PathBuf {
        self.home.path().join("reports.ndjson")
    }

    /// The reports that it has so far.
    pub fn reports(&self) -> Vec<Value> {
        let reports = read_reports(&self.reports_file());
        // Tests send it shorter ones, of agents that are no executor.
        let of_executors = reports.iter().filter(|report| report.get("usage").is_some());
        of_executors.for_each(super::published::check_report);
        reports
    }

    /// The reports of one intent, once there is one.
    pub fn reports_of(&self, intent: &str) -> Vec<Value> {
        eventually(&format!("a report of {intent}"), || {
            let of: Vec<Value> = self.reports().into_iter().filter(|r| r["intent_id"] == intent).collect();
            (!of.is_empty()).then_some(of)
        })
    }
}
