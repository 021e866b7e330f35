//! An executor with hostile guests as its tools, and the results of calls to them.
//!
//! During each call a harmless tool runs, too, and `/health` is requested. A bench that is dropped
//! checks that there was one report for each run, that nothing outside the scope has changed, and
//! that no process, descriptor or file is left over (`side.rs`). All tests get these checks by
//! default. A test that cannot have one of them calls `undisturbed`, `change_outside` or
//! `mark_killed`.

use super::side::{Health, IdleResources, ReportAccounting, UngrantedFiles};
use harness::guests::Guest;
use harness::{
    AGENT, Catalogue, Executor, Options, Tool, are_processes_reused, in_seconds, intent_id, note_figures,
    result,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A started executor.
pub(super) struct Bench {
    pub(super) executor: Executor,
    pub(super) process: u32,
    pub(super) catalogue: Catalogue,
    pub(super) books: ReportAccounting,
    outside: UngrantedFiles,
    /// None once it is over.
    health: Option<Health>,
    /// None until the first run has opened what stays open.
    idle: Option<IdleResources>,
    /// True while the harmless tool runs beside a call.
    is_accompanied: AtomicBool,
    /// True to run the harmless tool beside calls.
    is_disturbed: bool,
    /// True if processes of tools may wait for another run.
    has_reused_processes: bool,
    is_killed: AtomicBool,
    /// The file grants, each with the number of folders that inline runs keep open for it.
    grants: Mutex<BTreeMap<String, usize>>,
    is_inline: bool,
    /// The highest peak of the memory of the server that was noted so far, in KiB.
    peak_kib: AtomicU64,
}

/// The harmless tool of every bench: it answers `[7]`.
pub(super) const HARMLESS: &str = "harmless";

/// The agent of the harmless tool, to which the standing policies of the tests do not apply.
const NEIGHBOUR: &str = "did:aeon:neighbour:1.0:abc123";

/// Default number of pre-forked processes.
const WAITING: u64 = 2;

/// Number of descriptors that a server may have beyond those after its first run. Inline, it also keeps for the next
/// runs the opened folders of each different grant.
const MORE_DESCRIPTORS: usize = 2;

impl Bench {
    /// Starts an executor with these guests and a harmless tool.
    pub(super) fn start<'a>(guests: impl IntoIterator<Item = (&'a str, Guest)>) -> Self {
        Self::start_with(Options::new(), guests)
    }

    /// As [`Self::start`], with a configuration.
    pub(super) fn start_with<'a>(
        options: Options,
        guests: impl IntoIterator<Item = (&'a str, Guest)>,
    ) -> Self {
        let tools = guests.into_iter().map(|(name, guest)| Tool::command_bytes(name, guest.wasm()));
        Self::start_tools(options, tools)
    }

    /// As [`Self::start`], with tools of any shape.
    pub(super) fn start_tools(options: Options, tools: impl IntoIterator<Item = Tool>) -> Self {
        Self::start_catalogue(options, tools.into_iter().fold(Catalogue::empty(), Catalogue::add))
    }

    /// As [`Self::start_with`], with a catalogue, to which the harmless tool is added.
    pub(super) fn start_catalogue(options: Options, catalogue: Catalogue) -> Self {
        let harmless = Guest::new("(call $note (i32.const 7))");
        let catalogue = catalogue.add(Tool::command_bytes(HARMLESS, harmless.wasm()));
        let books = ReportAccounting::open();
        let with_waiting = if options.get("executor.waiting").is_null() {
            options.set("executor.waiting", WAITING)
        } else {
            options
        };
        let options = set_tested_reuse(with_waiting, &catalogue);
        let waiting = options.get("executor.waiting").as_u64().and_then(|count| usize::try_from(count).ok());
        let forked = waiting.filter(|_| options.get("executor.isolation") == "process");
        let processes = match forked {
            Some(waiting) if options.get("executor.fresh_layout") == true => (waiting, waiting),
            Some(waiting) => (1, waiting),
            None => (0, 0),
        };
        let reused = options.get("executor.reuse")["tools"].clone();
        let has_reused_processes = reused.as_array().is_some_and(|tools| !tools.is_empty());
        let mounts = options.mounts();
        let mut executor = Executor::start(options.catalogue(&catalogue).governor(&books.url()));
        let process = executor.process().child().id();
        let home = executor.home();
        let granted = mounts.into_iter().chain([home.workspace(), home.temporary()]).collect();
        let outside = UngrantedFiles::of(&home.folder(), catalogue.folder(), granted);
        let mut bench = Self {
            health: Some(Health::of(executor.address())),
            executor,
            process,
            catalogue,
            books,
            outside,
            idle: None,
            is_accompanied: AtomicBool::new(false),
            is_disturbed: false,
            has_reused_processes,
            is_killed: AtomicBool::new(false),
            grants: Mutex::default(),
            is_inline: forked.is_none(),
            peak_kib: AtomicU64::new(0),
        };
        // The first run opens the descriptors that stay open. Files that the test prepares after it
        // do not count as changed by a guest.
        bench.assert_harmless("a start");
        bench.outside.forget();
        bench.idle = Some(IdleResources::before(process, &bench.executor.home().temporary(), processes));
        bench.is_disturbed = true;
        bench
    }

    /// Runs the harmless tool only at the end of the test, and not beside each call: for tests that
    /// measure time exactly, or that count, stop or kill all running processes.
    pub(super) fn undisturbed(mut self) -> Self {
        self.is_disturbed = false;
        self
    }

    /// Changes something that no guest was granted, as an operator does.
    pub(super) fn change_outside<T>(&self, change: impl FnOnce() -> T) -> T {
        self.outside.assert_unchanged();
        self.outside.forget();
        let changed = change();
        self.outside.remember();
        changed
    }

    /// Notes that the test has killed the server, so that the checks at the end send no requests to
    /// it.
    pub(super) fn mark_killed(&self) {
        self.is_killed.store(true, Ordering::SeqCst);
    }

    fn assert_harmless(&self, after: &str) {
        let call = self.call(HARMLESS).agent(NEIGHBOUR).grant("timeout_seconds", 60);
        assert_eq!(call.undisturbed().send().success().notes(), [7], "{after}");
    }

    fn finish(&mut self) {
        if !self.is_killed.load(Ordering::SeqCst) {
            // Once the report of this call has arrived, no report of an earlier call is still to
            // come.
            self.assert_harmless("the whole case");
            let slowest = self.health.take().expect("a bench finishes only once").finish();
            self.note_peak();
            note_figures(&format!("{} {}", self.peak_kib.load(Ordering::SeqCst), slowest.as_micros()));
            self.books.assert_balanced();
            let mut more = MORE_DESCRIPTORS;
            if self.is_inline {
                more += self.grants.lock().unwrap().values().sum::<usize>();
            }
            if self.has_reused_processes {
                self.end_reused_processes();
            }
            let idle = self.idle.as_ref().expect("it has started");
            idle.assert_again(self.process, &self.executor.home().temporary(), more);
        }
        self.outside.assert_unchanged();
    }

    /// Ends the processes that wait for another run, as any stop does.
    fn end_reused_processes(&self) {
        let target = json!({ "tool": HARMLESS });
        result(&self.executor.rpc("a2g/stop", &json!({ "target": target, "reason": "the end of a test" })));
        result(&self.executor.rpc("a2g/resume", &json!({ "target": target })));
    }

    /// Starts an executor with the typed tools of the repository.
    pub(super) fn start_typed(options: Options) -> Self {
        Self::start_catalogue(options, Catalogue::with_tools())
    }

    /// Gives the agent a standing policy.
    pub(super) fn set_policy(&self, capabilities: &Value) {
        let policy = json!({ "agent_did": AGENT, "version": "1", "capabilities": capabilities });
        harness::result(&self.executor.rpc("g2a/policy", &policy));
    }

    /// A call to a tool, under a manifest that grants nothing that is not asked for.
    pub(super) fn call(&self, tool: &str) -> Call<'_> {
        Call {
            bench: self,
            tool: tool.to_owned(),
            agent: AGENT.to_owned(),
            intent: intent_id(),
            arguments: json!({}),
            manifest: json!({}),
            conditions: Vec::new(),
            is_disturbed: self.is_disturbed,
        }
    }

    /// The state of an intent.
    pub(super) fn state(&self, intent: &str) -> String {
        let status = self.executor.rpc("a2g/status", &json!({ "intent_id": intent }));
        status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
    }

    /// Cancels an intent; true if there was something to cancel.
    pub(super) fn cancel(&self, intent: &str) -> bool {
        let cancelled = self.executor.rpc("a2g/cancel", &json!({ "intent_id": intent }));
        harness::result(&cancelled)["cancelled"] == true
    }

    /// Decides on the changes of a run by `a2g/commit`, `a2g/discard` or `a2g/undo`, which has to succeed. The decision has
    /// a report of its own.
    pub(super) fn decide(&self, method: &str, run: &Report) {
        let intent = &run.0["intent_id"];
        let params = match method {
            "a2g/commit" => json!({ "intent": intent, "digest": run.0["usage"]["effects"]["digest"] }),
            _without_digest => json!({ "intent": intent }),
        };
        let answer = self.executor.rpc(method, &params);
        let report = result(&answer);
        assert_eq!(report["status"], "SUCCESS", "{method}: {answer}");
        self.books.note(report["intent_id"].as_str().expect("an id").to_owned(), &answer);
    }

    /// Checks that the executor still works: `/health` answers, and the harmless tool runs.
    pub(super) fn assert_well(&self, after: &str) {
        let health = self.executor.client().request("GET", "/health", &[], b"");
        assert_eq!(health.status, 200, "{after}");
        let report = self.call(HARMLESS).grant("timeout_seconds", 30).send().success();
        assert_eq!(report.notes(), [7], "{after}");
    }

    /// One number of `/proc/PID/status`, such as `VmRSS` (in KiB) or `Threads`.
    pub(super) fn status(&self, name: &str) -> u64 {
        self.executor.status(name)
    }

    /// Notes the peak of the memory of the server, before a reset of the peak or at the end.
    fn note_peak(&self) {
        self.peak_kib.fetch_max(self.status("VmHWM"), Ordering::SeqCst);
    }

    /// Number of descriptors that the server has open.
    pub(super) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process)).expect("it runs").count()
    }

    /// By how much the memory of the server grew at its peak during `work`, in MB.
    pub(super) fn peak_since(&self, work: impl FnOnce()) -> u64 {
        self.note_peak();
        let reset = format!("/proc/{}/clear_refs", self.process);
        std::fs::write(reset, "5").expect("the peak of a child of ours can be reset");
        let before = self.status("VmRSS");
        work();
        self.status("VmHWM").saturating_sub(before) >> 10
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

/// Where reused processes are tested, reuses those of all tools, unless the test itself sets the lifetime of processes.
fn set_tested_reuse(options: Options, catalogue: &Catalogue) -> Options {
    let own = ["executor.reuse", "executor.fresh_layout", "executor.renew_runs"];
    let is_inline = options.get("executor.isolation") != "process";
    if !are_processes_reused() || is_inline || own.into_iter().any(|key| !options.get(key).is_null()) {
        return options;
    }
    let inline = options.get("executor.inline_tools").as_array().cloned().unwrap_or_default();
    let entries = std::fs::read_dir(catalogue.folder()).expect("a catalogue").flatten();
    let names = entries.map(|entry| json!(entry.file_name().to_string_lossy()));
    let tools = names.filter(|name| !inline.contains(name)).collect::<Vec<_>>();
    // An idle process ends before the bench looks for what is left over.
    options.set("executor.reuse", json!({ "tools": tools, "idle_ms": 200 }))
}

/// A call that is being prepared.
pub(super) struct Call<'a> {
    bench: &'a Bench,
    tool: String,
    agent: String,
    intent: String,
    arguments: Value,
    manifest: Value,
    conditions: Vec<String>,
    is_disturbed: bool,
}

impl Call<'_> {
    /// Grants one thing.
    pub(super) fn grant(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.manifest[name] = value.into();
        self
    }

    /// Grants one tree.
    pub(super) fn scope(self, pattern: &str) -> Self {
        self.grant("filesystem_scope", json!([pattern]))
    }

    /// Adds a condition, which makes the verdict CONDITIONAL.
    pub(super) fn condition(mut self, condition: &str) -> Self {
        self.conditions.push(condition.to_owned());
        self
    }

    /// Sets the arguments.
    pub(super) fn arguments(self, arguments: Value) -> Self {
        Self { arguments, ..self }
    }

    /// Sets the agent.
    pub(super) fn agent(mut self, agent: &str) -> Self {
        self.agent = agent.to_owned();
        self
    }

    /// Runs no harmless tool beside this call: for tests that kill all running processes.
    pub(super) fn undisturbed(self) -> Self {
        Self { is_disturbed: false, ..self }
    }

    /// The id of the intent.
    pub(super) fn intent(&self) -> String {
        self.intent.clone()
    }

    /// The params of `a2g/execute`.
    pub(super) fn parameters(self) -> Value {
        let Self { bench: _, tool, agent, intent, arguments, manifest, conditions, is_disturbed: _ } = self;
        let decision = if conditions.is_empty() { "APPROVED" } else { "CONDITIONAL" };
        json!({
            "intent": { "agent_did": agent, "intent_id": intent, "tool": tool, "arguments": arguments },
            "verdict": {
                "verdict": decision,
                "intent_id": intent,
                "capability_manifest": manifest,
                "conditions": conditions,
                "expires_at": in_seconds(3600),
            },
        })
    }

    /// Makes the call.
    pub(super) fn send(self) -> CallAnswer {
        let bench = self.bench;
        let intent = self.intent();
        let is_disturbed = self.is_disturbed;
        let scope = &self.manifest["filesystem_scope"];
        let grant = format!("{scope} {:?}", self.conditions);
        bench.grants.lock().unwrap().insert(grant, scope.as_array().map_or(0, Vec::len) + 1);
        let params = self.parameters();
        bench.outside.remember();
        let _watched = bench.health.as_ref().map(Health::during);
        let answer = std::thread::scope(|scope| {
            // One harmless tool is enough for all calls that run at once: a call starts it only if
            // it is not running.
            let needs_one = is_disturbed && !bench.is_accompanied.swap(true, Ordering::SeqCst);
            let beside = needs_one.then(|| {
                scope.spawn(|| {
                    bench.assert_harmless("a call beside it");
                    bench.is_accompanied.store(false, Ordering::SeqCst);
                })
            });
            let began = Instant::now();
            let response = bench.executor.rpc("a2g/execute", &params);
            let took = began.elapsed();
            if let Some(beside) = beside {
                beside.join().expect("a harmless tool runs beside a hostile one");
            }
            CallAnswer { response, took }
        });
        bench.books.note(intent, &answer.response);
        answer
    }
}

/// Answer to a call, with measurements.
#[derive(Debug)]
pub(super) struct CallAnswer {
    pub(super) response: Value,
    pub(super) took: Duration,
}

impl CallAnswer {
    /// Asserts that the call succeeded, and returns its report.
    pub(super) fn success(self) -> Report {
        let report = Report(harness::result(&self.response).clone());
        assert_eq!(report.0["status"], "SUCCESS", "{self:?}");
        assert!(report.0.get("error").is_none_or(Value::is_null), "{self:?}");
        report
    }

    /// Asserts that the call succeeded and that its file changes wait for a decision, and returns its report.
    pub(super) fn staged(self) -> Report {
        let report = Report(harness::result(&self.response).clone());
        assert_eq!(report.0["status"], "STAGED", "{self:?}");
        report
    }

    /// Asserts that this limit ended the run, and returns its report.
    pub(super) fn limit(self, limit: &str) -> Report {
        let error = harness::error(&self.response, -32003);
        assert_eq!(error["data"]["limit"], limit, "{self:?}");
        let status = if limit == "time" { "TIMEOUT" } else { "FAILURE" };
        self.ended(status)
    }

    /// Asserts that the run failed by itself with an error that contains `words`, and returns its
    /// report.
    pub(super) fn failure(self, words: &str) -> Report {
        self.ended_with("FAILURE", words)
    }

    /// Asserts that the run was stopped from outside, with an error that contains `words`, and
    /// returns its report.
    pub(super) fn aborted(self, words: &str) -> Report {
        self.ended_with("ABORTED", words)
    }

    fn ended_with(&self, status: &str, words: &str) -> Report {
        harness::error(&self.response, -32001);
        let report = self.ended(status);
        assert!(report.sentence().contains(words), "not `{words}`: {report:?}");
        report
    }

    fn ended(&self, status: &str) -> Report {
        let error = &self.response["error"];
        let report = Report(error["data"]["report"].clone());
        assert_eq!(report.0["status"], status, "{self:?}");
        assert_eq!(report.0["error"], error["message"], "both say the same: {self:?}");
        assert!(report.0.get("result").is_none_or(Value::is_null), "{self:?}");
        report
    }
}

/// A report.
#[derive(Debug)]
pub(super) struct Report(pub(super) Value);

impl Report {
    /// The numbers that the guest noted.
    pub(super) fn notes(&self) -> Vec<u64> {
        let result = self.0["result"].as_array().unwrap_or_else(|| panic!("no notes: {self:?}"));
        result.iter().map(|note| note.as_u64().expect("a number")).collect()
    }

    /// The error message of the run.
    pub(super) fn sentence(&self) -> &str {
        self.0["error"].as_str().unwrap_or_else(|| panic!("no sentence: {self:?}"))
    }

    /// One measured number.
    pub(super) fn metric(&self, name: &str) -> f64 {
        self.0["metrics"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }

    /// One limit that was in force, from `usage`.
    pub(super) fn in_force(&self, name: &str) -> &Value {
        &self.0["usage"]["limits"][name]
    }

    /// The mode of the file effects, and the layer that set it; `None` for a report without them.
    pub(super) fn effects(&self) -> Option<(&str, &str)> {
        let effects = self.0["usage"].get("effects")?;
        let text = |name: &str| effects[name].as_str().expect("a text");
        Some((text("mode"), text("set_by")))
    }

    /// The denials: path, reason, count.
    pub(super) fn denied(&self) -> Vec<(&str, &str, u64)> {
        list(&self.0["usage"]["denied"])
            .iter()
            .map(|denial| {
                let text = |name: &str| denial[name].as_str().expect("a text");
                (text("what"), text("reason"), denial["count"].as_u64().expect("a count"))
            })
            .collect()
    }

    /// Why each was denied.
    pub(super) fn reasons(&self) -> Vec<&str> {
        self.denied().into_iter().map(|(_, reason, _)| reason).collect()
    }

    /// The messages of its log.
    pub(super) fn logs(&self) -> Vec<&str> {
        list(&self.0["logs"]).iter().map(|line| line["message"].as_str().expect("a text")).collect()
    }
}

/// A list that a report leaves out when it is empty.
fn list(member: &Value) -> &[Value] {
    member.as_array().map_or(&[], Vec::as_slice)
}
