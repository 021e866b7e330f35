//! SIGKILL of the executor at any moment of a program of eight calls: no call runs twice, all that began has an end, and
//! the governor gets its report.
//!
//! One journal outlives all kills. Each of them has a program of its own, whose calls add a line to files that no other
//! call has; afterwards the records of the executor, the governor and the files are compared.

use super::{decide, fan, fan_out, nested, one, read, word};
use harness::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of questions to the governor about one program: itself and its calls.
const QUESTIONS: usize = 9;

/// The moment of a kill.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// So long after the program was sent.
    After(Duration),
    /// At this question to the governor, which does not answer it.
    Question(usize),
    /// At this report to the governor, which does not acknowledge it.
    Report(usize),
    /// After the answer to an approval.
    Approval,
    /// Never.
    Never,
}

/// The messages of one process to the governor about one program, and the kill that they cause.
struct Ledger {
    questions: Vec<Value>,
    reports: Vec<Value>,
    moment: Moment,
    process: u32,
}

type SharedLedger = Arc<Mutex<Ledger>>;

impl Ledger {
    fn answer(&mut self, method: &str, params: &Value) -> Reply {
        let (is_due, reply) = match method {
            "a2g/intent" => {
                self.questions.push(params.clone());
                (self.moment == Moment::Question(self.questions.len()), decide(params))
            }
            "a2g/report" => {
                self.reports.push(params.clone());
                (self.moment == Moment::Report(self.reports.len()), json!({ "accepted": true }))
            }
            _ => (false, json!({ "accepted": true })),
        };
        if !is_due {
            return Reply::Result(reply);
        }
        self.kill();
        Reply::Hangup
    }

    /// Kills the executor, and waits until it does nothing more.
    fn kill(&mut self) {
        self.moment = Moment::Never;
        let id = i32::try_from(self.process).ok().and_then(rustix::process::Pid::from_raw).expect("an id");
        rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it runs");
        eventually("it is dead", || parent_of(self.process).is_none().then_some(()));
    }
}

/// A run of `fan_out` that makes four calls one after another, of which the third makes four calls at once.
struct Program {
    call: Value,
    /// The folder of its files.
    folder: String,
    root: Value,
    outer: [Value; 4],
    inner: [Value; 4],
}

impl Program {
    fn new(number: usize) -> Self {
        let append = |name: &str| {
            let path = format!("/workspace/{number}/{name}");
            let content = format!("{name}\n");
            one("write_file", json!({ "path": path, "content": content, "mode": "append" }))
        };
        let at_once = vec![append("second"), read("in.txt"), append("escalated"), read("in.txt")];
        let inner = one("fan_out", json!({ "calls": at_once, "parallel": true }));
        let call = fan(vec![append("first"), read("in.txt"), inner, append("last")], &json!({}));
        let root = call["intent_id"].clone();
        let outer = [1, 2, 3, 4].map(|ordinal| nested(&root, ordinal));
        let inner = [1, 2, 3, 4].map(|ordinal| nested(&outer[2], ordinal));
        Self { call, folder: number.to_string(), root, outer, inner }
    }

    fn intents(&self) -> impl Iterator<Item = &Value> {
        std::iter::once(&self.root).chain(&self.outer).chain(&self.inner)
    }

    /// The calls that write, with their files.
    fn writers(&self) -> [(&Value, &'static str); 4] {
        let [first, _, _, last] = &self.outer;
        let [second, _, escalated, _] = &self.inner;
        [(first, "first"), (second, "second"), (escalated, "escalated"), (last, "last")]
    }

    fn file(&self, executor: &Executor, name: &str) -> Option<String> {
        executor.file(&format!("{}/{name}", self.folder))
    }

    /// The call that waits for a person.
    fn waiting(&self) -> &Value {
        &self.inner[2]
    }

    /// Pairs of intents of which the second is made only after the success of the first.
    fn order(&self) -> Vec<(&Value, &Value)> {
        let sequence = self.outer.windows(2).map(|pair| (&pair[0], &pair[1]));
        let before_inner = self.inner.iter().map(|inner| (&self.outer[1], inner));
        let after_inner = self.inner.iter().map(|inner| (inner, &self.outer[3]));
        sequence.chain(before_inner).chain(after_inner).collect()
    }

    /// Pairs of a run and a call that it makes.
    fn parents(&self) -> impl Iterator<Item = (&Value, &Value)> {
        let outer = self.outer.iter().map(|child| (&self.root, child));
        outer.chain(self.inner.iter().map(|child| (&self.outer[2], child)))
    }
}

/// One process of the executor. It has a governor of its own, whose ledger has its messages alone, however late they are
/// read.
struct Instance {
    executor: Executor,
    governor: FakeGovernor,
    ledger: SharedLedger,
}

impl Instance {
    fn start_in(home: Home) -> Self {
        let ledger = Ledger { questions: Vec::new(), reports: Vec::new(), moment: Moment::Never, process: 0 };
        let ledger = Arc::new(Mutex::new(ledger));
        let answering = Arc::clone(&ledger);
        let governor =
            FakeGovernor::start(move |method, params| answering.lock().unwrap().answer(method, params));
        let mut config: toml::Table = std::fs::read_to_string(home.config()).unwrap().parse().unwrap();
        config["governor"]["url"] = governor.url().into();
        std::fs::write(home.config(), config.to_string()).unwrap();
        Self { executor: Executor::start_in(home), governor, ledger }
    }

    fn wait_until_delivered(&self) {
        eventually("every report is delivered", || {
            scrape(&self.executor).is("a2g_undelivered_reports", 0.0).then_some(())
        });
    }

    /// Sends a program, approves its call that waits, and kills the executor at a moment: the answer, if there was one.
    fn run(&self, program: &Program, moment: Moment) -> Option<Value> {
        {
            let mut ledger = self.ledger.lock().unwrap();
            (ledger.moment, ledger.process) = (moment, self.executor.id());
        }
        let address = self.executor.address();
        let is_over = AtomicBool::new(false);
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let _over = SetOnDrop(&is_over);
                HttpClient::ask(address, "a2g/intent", &program.call)
            });
            scope.spawn(|| self.approve_until(&is_over, address, program));
            if let Moment::After(delay) = moment {
                std::thread::sleep(delay);
                self.ledger.lock().unwrap().kill();
            }
            asked.join().unwrap()
        });
        // The last messages come after the answer.
        let is_past = || (self.ledger.lock().unwrap().moment == Moment::Never).then_some(());
        eventually(&format!("it is killed: {moment:?}"), is_past);
        answer
    }

    fn approve_until(&self, is_over: &AtomicBool, address: SocketAddr, program: &Program) {
        let directive = json!({ "intent_id": program.waiting(), "decision": "APPROVED" });
        while !is_over.load(Ordering::SeqCst) {
            let is_asked = self.ledger.lock().unwrap().questions.iter().any(|call| word(call) == "escalated");
            if is_asked
                && let Some(answer) = HttpClient::ask(address, "g2a/directive", &directive)
                && answer.get("result").is_some()
            {
                let mut ledger = self.ledger.lock().unwrap();
                if ledger.moment == Moment::Approval {
                    ledger.kill();
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a whole program, and returns the time that it took.
    fn run_whole(&self, program: &Program) -> Duration {
        let begun = Instant::now();
        let answer = self.run(program, Moment::Never).expect("an answer");
        let time = begun.elapsed();
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
        let reports = self.reports(program);
        assert_eq!(reports.len(), QUESTIONS, "{reports:?}");
        for (writer, name) in program.writers() {
            let file = program.file(&self.executor, name);
            assert_eq!(file, Some(format!("{name}\n")), "{writer}");
        }
        time
    }

    /// The reports of the intents of a program that have begun. All of them have ended.
    fn reports(&self, program: &Program) -> HashMap<Value, Value> {
        let mut client = self.executor.client();
        let mut reports = HashMap::new();
        for intent in program.intents() {
            let status = client.rpc("a2g/status", &json!({ "intent_id": intent }));
            if status.get("error").is_some() {
                error(&status, -32602);
                continue;
            }
            let report = result(&status).get("report").unwrap_or_else(|| panic!("it has no end: {status}"));
            reports.insert(intent.clone(), report.clone());
        }
        reports
    }

    /// Checks that nothing of a program waits or runs, and that the journal is whole.
    fn check_leftovers(&self, program: &Program) {
        let figures = scrape(&self.executor);
        for figure in ["a2g_waiting_intents", "a2g_running", "a2g_queued", "a2g_undelivered_reports"] {
            assert!(figures.has(figure) && figures.is(figure, 0.0), "{figure}: {}", figures.value(figure));
        }
        let directive = json!({ "intent_id": program.waiting(), "decision": "APPROVED" });
        error(&self.executor.rpc("g2a/directive", &directive), -32602);
        assert_chain_holds(self.executor.home());
    }

    /// Sends a program again: one that began is answered from the journal, and another one runs as a whole.
    fn repeat(&self, observed: &Observed<'_>) {
        let Observed { program, reports, .. } = observed;
        let Some(report) = reports.get(&program.root) else {
            self.run_whole(program);
            return;
        };
        let before = self.ledger.lock().unwrap().questions.len();
        let answer = self.executor.rpc("a2g/intent", &program.call);
        assert_eq!(&result(&answer)["report"], report, "{observed:?}");
        assert_eq!(self.ledger.lock().unwrap().questions.len(), before, "{observed:?}");
        assert_eq!(self.reports(program), *reports, "{observed:?}");
        observed.check_files(&self.executor);
    }
}

/// An executor that is killed again and again.
struct Sweep {
    instance: Instance,
    _catalogue: Catalogue,
    /// Number of programs so far.
    programs: usize,
    /// The reports of their intents.
    told: HashMap<Value, Value>,
    /// Numbers of the programs by how many of their intents began and succeeded.
    ends: BTreeMap<(usize, usize), usize>,
}

impl Sweep {
    fn start() -> Self {
        let catalogue = Catalogue::empty().add(fan_out(&["*"])).copy("read_file").copy("write_file");
        let options = Options::new().set("executor.concurrent", 16).catalogue(&catalogue);
        // Each process gets a governor when it starts.
        let home = Home::new(options.governor("http://127.0.0.1:1/jsonrpc"));
        std::fs::write(home.workspace().join("in.txt"), "text").unwrap();
        let instance = Instance::start_in(home);
        Self { instance, _catalogue: catalogue, programs: 0, told: HashMap::new(), ends: BTreeMap::new() }
    }

    /// A new program, for which the ledger is empty.
    fn next_program(&mut self) -> Program {
        self.programs += 1;
        let program = Program::new(self.programs);
        std::fs::create_dir(self.instance.executor.workspace().join(&program.folder)).unwrap();
        let mut ledger = self.instance.ledger.lock().unwrap();
        (ledger.questions, ledger.reports) = (Vec::new(), Vec::new());
        program
    }

    /// Waits until the governor has all reports of a program, and remembers them.
    fn end_program(&mut self, program: &Program) {
        self.instance.wait_until_delivered();
        self.told.extend(self.instance.reports(program));
    }

    /// Kills the executor at one moment of a program, starts it again, and compares its records with those of the
    /// governor.
    fn kill(mut self, moment: Moment) -> Self {
        let program = self.next_program();
        let answer = self.instance.run(&program, moment);
        let Instance { executor, governor, ledger } = self.instance;
        self.instance = Instance::start_in(executor.kill());
        let reports = self.instance.reports(&program);
        let observed = {
            let ledger = ledger.lock().unwrap();
            let questions = ledger.questions.clone();
            let told = ledger.reports.clone();
            Observed { moment, program: &program, questions, told, reports }
        };
        observed.check_order();
        observed.check_ends(answer.as_ref());
        observed.check_files(&self.instance.executor);
        observed.check_deliveries(&self);
        self.instance.check_leftovers(&program);
        self.instance.repeat(&observed);
        let succeeded = observed.reports.keys().filter(|intent| observed.has_succeeded(intent)).count();
        *self.ends.entry((observed.reports.len(), succeeded)).or_default() += 1;
        self.end_program(&program);
        // Each report matches the published schema.
        governor.seen();
        self
    }
}

/// The records of a program that was killed.
#[derive(Debug)]
struct Observed<'a> {
    moment: Moment,
    program: &'a Program,
    /// The questions to the governor, until the kill.
    questions: Vec<Value>,
    /// The reports to the governor, until the kill.
    told: Vec<Value>,
    /// The reports of the journal after it, by intent.
    reports: HashMap<Value, Value>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { folder, root, outer, inner, .. } = self;
        write!(f, "program {folder}: {root}, {outer:?}, {inner:?}")
    }
}

impl Observed<'_> {
    fn has_succeeded(&self, intent: &Value) -> bool {
        self.reports.get(intent).is_some_and(|report| report["status"] == "SUCCESS")
    }

    /// Checks that each intent was asked about once, in the order of the program, and began only after that.
    fn check_order(&self) {
        let asked = self.questions.iter().map(|question| &question["intent_id"]).collect::<Vec<_>>();
        let once = asked.iter().collect::<HashSet<_>>();
        assert_eq!(once.len(), asked.len(), "asked twice: {self:#?}");
        let known = self.program.intents().collect::<HashSet<_>>();
        assert!(asked.iter().all(|asked| known.contains(asked)), "a call of no program: {self:#?}");
        assert!(self.reports.keys().all(|begun| asked.contains(&begun)), "not asked about: {self:#?}");
        for (parent, child) in self.program.parents() {
            assert!(!asked.contains(&child) || self.reports.contains_key(parent), "{child}: {self:#?}");
        }
        for (first, second) in self.program.order() {
            assert!(!asked.contains(&second) || self.has_succeeded(first), "{first}, {second}: {self:#?}");
        }
        if let Moment::Question(nth) = self.moment {
            assert!(!self.reports.contains_key(asked[nth - 1]), "it began unanswered: {self:#?}");
        }
    }

    /// Checks that what had ended is as it was, and all else is ABORTED.
    fn check_ends(&self, answer: Option<&Value>) {
        for (intent, report) in &self.reports {
            assert!(
                self.has_succeeded(intent) || report["status"] == "ABORTED",
                "{intent}: {report}\n{self:#?}"
            );
        }
        for told in &self.told {
            assert_eq!(self.reports.get(&told["intent_id"]), Some(told), "{self:#?}");
        }
        if let Some(answer) = answer {
            assert_eq!(self.reports.get(&self.program.root), Some(&result(answer)["report"]), "{self:#?}");
        }
        for parent in [&self.program.root, &self.program.outer[2]] {
            let Some(report) = self.reports.get(parent) else { continue };
            let children = self.program.parents().filter(|(of, _)| *of == parent).map(|(_, child)| child);
            let children = children.collect::<Vec<_>>();
            if self.has_succeeded(parent) {
                let listed = report["calls"]["list"].as_array().unwrap_or_else(|| panic!("{report}"));
                let listed = listed.iter().map(|call| &call["intent_id"]).collect::<Vec<_>>();
                assert_eq!(listed, children, "{report}");
                assert!(children.iter().all(|child| self.has_succeeded(child)), "{self:#?}");
            } else {
                let listed = report["calls"]["list"].as_array().unwrap_or_else(|| panic!("{report}"));
                for call in listed {
                    let status = self.reports.get(&call["intent_id"]).map(|report| &report["status"]);
                    assert_eq!(&call["status"], status.unwrap_or(&json!("REFUSED")), "{report}");
                }
                let listed = listed.iter().map(|call| &call["intent_id"]).collect::<Vec<_>>();
                let begun = children.iter().filter(|child| self.reports.contains_key(child));
                assert!(begun.clone().all(|child| listed.contains(child)), "{report}\n{self:#?}");
                assert!(listed.iter().all(|child| children.contains(child)), "{report}");
            }
        }
    }

    /// Checks that a call has written once if it succeeded, and at most once if it began.
    fn check_files(&self, executor: &Executor) {
        for (writer, name) in self.program.writers() {
            let file = self.program.file(executor, name);
            let line = format!("{name}\n");
            match (&file, self.reports.contains_key(writer)) {
                (Some(file), true) if *file == line => {}
                // A call that was stopped may have created its file only.
                (None, true) if !self.has_succeeded(writer) => {}
                (Some(file), true) if file.is_empty() && !self.has_succeeded(writer) => {}
                (None, false) => {}
                _ => panic!("{name}: {file:?}\n{self:#?}"),
            }
        }
    }

    /// Checks that the governor gets each report once from the process that is there, unless the earlier one was told
    /// that the governor has it.
    fn check_deliveries(&self, sweep: &Sweep) {
        sweep.instance.wait_until_delivered();
        let after = &sweep.instance.ledger.lock().unwrap().reports;
        for (intent, report) in &self.reports {
            let count = |told: &[Value]| told.iter().filter(|told| told["intent_id"] == *intent).count();
            let counts = (count(&self.told), count(after));
            assert!(matches!(counts, (0 | 1, 1) | (1, 0)), "{report} came {counts:?} times: {self:#?}");
        }
        for told in self.told.iter().chain(after) {
            // The last acknowledgements before a kill may not be on the disk, so an earlier program has repeats too.
            let id = &told["intent_id"];
            let report = self.reports.get(id).or_else(|| sweep.told.get(id));
            assert_eq!(report, Some(told), "another report, or one of what did not begin: {self:#?}");
        }
        if let Moment::Report(nth) = self.moment {
            let unacknowledged = &self.told[nth - 1];
            assert!(after.contains(unacknowledged), "it was not acknowledged: {unacknowledged}\n{self:#?}");
        }
    }
}

/// Kills one executor at each of these moments. Returns the numbers of the programs by how many of their intents began
/// and succeeded.
fn sweep(moments: impl FnOnce(Duration) -> Vec<Moment>) -> BTreeMap<(usize, usize), usize> {
    let mut sweep = Sweep::start();
    let mut times = [(); 3].map(|()| {
        let program = sweep.next_program();
        let time = sweep.instance.run_whole(&program);
        sweep.end_program(&program);
        time
    });
    times.sort_unstable();
    for moment in moments(times[1]) {
        sweep = sweep.kill(moment);
    }
    println!("{:?}: {:?}", times[1], sweep.ends);
    sweep.ends
}

#[test]
fn a_kill_at_any_time_of_a_program_runs_no_call_twice() {
    let ends = sweep(|length| {
        let moments = u32::try_from(times(60)).unwrap();
        (0..moments).map(|nth| Moment::After(length * nth / moments)).collect()
    });
    let is_amid = |(began, succeeded): &(usize, usize)| (1..QUESTIONS).contains(began) && *succeeded > 0;
    assert!(ends.keys().any(is_amid), "no kill was amid the calls: {ends:?}");
}

#[test]
fn a_kill_at_any_message_to_the_governor_runs_no_call_twice() {
    sweep(|_| {
        let questions = (1..=QUESTIONS).map(Moment::Question);
        let reports = (1..=QUESTIONS).map(Moment::Report);
        questions.chain(reports).chain([Moment::Approval]).collect()
    });
}
