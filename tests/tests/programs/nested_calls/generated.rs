//! Generated programs against a model of the tree of calls, each of them run by the built executor.
//!
//! By default the test runs some hundreds of programs, and with `A2G_TORTURE=100000` that many. The
//! seeds are fixed, so that a failure can be reproduced, and a failing program is shortened before
//! it is shown. The governor finds its decision on an intent by the id that the model predicts for
//! it.

use super::{fan, fan_out, nested, one};
use harness::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Number of programs in one catalogue.
const PROGRAMS: usize = 32;
/// Number of clients that run them.
const CLIENTS: usize = 4;
/// The tools in the catalogue.
const TOOLS: [&str; 5] = ["read_file", "write_file", "fan_out", "fails", "gate"];
/// Default limits of a run: number of calls, number of parallel calls, and depth of a call.
const DEFAULTS: (u32, u32, u32) = (1000, 8, 4);

/// The declaration of `fan_out`, and the ceilings of its executor.
#[derive(Debug, Clone)]
struct Settings {
    calls: Vec<&'static str>,
    max_calls: Option<u32>,
    max_parallel: Option<u32>,
    ceiling_calls: Option<u32>,
    ceiling_parallel: Option<u32>,
    max_depth: Option<u32>,
}

/// A run of `fan_out`.
#[derive(Debug, Clone)]
struct Fan {
    is_parallel: bool,
    calls: Vec<Call>,
}

/// A call, with the governor's decision about it.
#[derive(Debug, Clone)]
struct Call {
    target: Target,
    arguments: Arguments,
    ruling: Ruling,
}

#[derive(Debug, Clone)]
enum Target {
    /// Reads this file.
    Read(&'static str),
    /// Appends to a file that no other call uses.
    Write,
    /// Exits with a code.
    Fails,
    /// Goes on until its time limit.
    Gate,
    /// A tool that is not in the catalogue.
    Absent(&'static str),
    Fan(Fan),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Arguments {
    Valid,
    /// An object that does not match the schema.
    Mismatched,
    NoObject,
}

#[derive(Debug, Clone)]
enum Ruling {
    Approved,
    Denied,
    /// Conditional, with a condition that the executor does not know.
    Unenforceable,
    Conditional(Conditions),
}

#[derive(Debug, Clone, Default)]
struct Conditions {
    is_read_only: bool,
    is_short: bool,
    calls: Vec<&'static str>,
    max_calls: Vec<u32>,
}

fn settings() -> impl Strategy<Value = Settings> {
    let calls = prop_oneof![
        4 => Just(vec!["*"]),
        3 => subsequence(TOOLS.to_vec(), 1..TOOLS.len()),
        2 => Just(Vec::new()),
    ];
    let ceilings =
        (option::weighted(0.2, 0..8_u32), option::weighted(0.5, 1..4_u32), option::weighted(0.3, 0..4_u32));
    (calls, option::weighted(0.3, 1..8_u32), option::weighted(0.4, 1..4_u32), ceilings).prop_map(
        |(calls, max_calls, max_parallel, (ceiling_calls, ceiling_parallel, max_depth))| Settings {
            calls,
            max_calls,
            max_parallel,
            ceiling_calls,
            ceiling_parallel,
            max_depth,
        },
    )
}

fn ruling() -> impl Strategy<Value = Ruling> {
    prop_oneof![
        8 => Just(Ruling::Approved),
        1 => Just(Ruling::Denied),
        1 => Just(Ruling::Unenforceable),
        4 => conditional(),
    ]
}

fn conditional() -> impl Strategy<Value = Ruling> {
    let calls = prop_oneof![2 => Just(Vec::new()), 1 => subsequence(TOOLS.to_vec(), 1..4)];
    let max_calls = prop_oneof![2 => Just(Vec::new()), 1 => vec(0..8_u32, 1..3)];
    (any::<bool>(), any::<bool>(), calls, max_calls).prop_map(|(is_read_only, is_short, calls, max_calls)| {
        Ruling::Conditional(Conditions { is_read_only, is_short, calls, max_calls })
    })
}

fn call() -> impl Strategy<Value = Call> {
    let leaf = prop_oneof![
        90 => select(vec!["small", "large", "missing"]).prop_map(Target::Read),
        60 => Just(Target::Write),
        24 => Just(Target::Fails),
        24 => select(vec!["absent", "no/name", ""]).prop_map(Target::Absent),
        // Rare, because it takes a second.
        2 => Just(Target::Gate),
    ];
    leaf_or(leaf).prop_recursive(5, 16, 4, |inner| {
        leaf_or(
            (any::<bool>(), vec(inner, 0..5))
                .prop_map(|(is_parallel, calls)| Target::Fan(Fan { is_parallel, calls })),
        )
    })
}

fn leaf_or(target: impl Strategy<Value = Target>) -> impl Strategy<Value = Call> {
    let arguments = prop_oneof![
        16 => Just(Arguments::Valid),
        1 => Just(Arguments::Mismatched),
        1 => Just(Arguments::NoObject),
    ];
    (target, arguments, ruling()).prop_map(|(target, arguments, ruling)| Call { target, arguments, ruling })
}

/// A whole program, with the governor's decision about its first intent.
fn program() -> impl Strategy<Value = (Fan, Ruling)> {
    let fan = (any::<bool>(), vec(call(), 0..7)).prop_map(|(is_parallel, calls)| Fan { is_parallel, calls });
    (fan, prop_oneof![Just(Ruling::Approved), conditional()])
}

impl Conditions {
    fn to_json(&self, target: &Target) -> Value {
        let Self { is_read_only, is_short, calls, max_calls } = self;
        let mut conditions = vec!["max_memory_mb:40".to_owned()];
        if *is_read_only {
            conditions.push("read_only".to_owned());
        }
        // Not for `fan_out`, whose answer may be longer.
        if *is_short && !matches!(target, Target::Fan(_)) {
            conditions.push("max_output_bytes:1000".to_owned());
        }
        conditions.extend(calls.iter().map(|name| format!("calls:{name}")));
        conditions.extend(max_calls.iter().map(|max| format!("max_calls:{max}")));
        conditions.into()
    }
}

impl Target {
    fn name(&self) -> &'static str {
        match self {
            Self::Read(_) => "read_file",
            Self::Write => "write_file",
            Self::Fails => "fails",
            Self::Gate => "gate",
            Self::Absent(name) => name,
            Self::Fan(_) => "fan_out",
        }
    }
}

impl Call {
    /// The call as `fan_out` reads it. `place` is unique to the call.
    fn to_json(&self, place: &str) -> Value {
        one(self.target.name(), self.arguments_json(place))
    }

    fn arguments_json(&self, place: &str) -> Value {
        match (self.arguments, &self.target) {
            (Arguments::NoObject, _) => json!([place]),
            (Arguments::Mismatched, Target::Fan(_)) => json!({ "calls": 7 }),
            (Arguments::Mismatched, _) => json!({ "path": 7 }),
            (Arguments::Valid, Target::Read(name)) => json!({ "path": format!("/workspace/{name}") }),
            (Arguments::Valid, Target::Write) => {
                json!({ "path": format!("/workspace/{place}"), "content": place, "mode": "append" })
            }
            (Arguments::Valid, Target::Fails | Target::Gate | Target::Absent(_)) => json!({ "place": place }),
            (Arguments::Valid, Target::Fan(fan)) => fan.to_json(place),
        }
    }

    /// True if the tool has a schema that the arguments do not match.
    fn is_mismatched(&self) -> bool {
        let has_schema = matches!(self.target, Target::Read(_) | Target::Write | Target::Fan(_));
        self.arguments == Arguments::Mismatched && has_schema
    }
}

impl Fan {
    fn to_json(&self, place: &str) -> Value {
        let calls = self.calls.iter().zip(1..).map(|(call, nth)| call.to_json(&format!("{place}-{nth}")));
        json!({ "calls": calls.collect::<Vec<_>>(), "parallel": self.is_parallel })
    }
}

/// A limit, and the layer that set it.
type Bound = (u32, &'static str);

/// The prediction for a run of `fan_out`.
#[derive(Debug)]
struct PredictedRun {
    intent: Value,
    /// The `parent` of its report.
    parent: Value,
    /// Its calls, in the order of the program.
    made: Vec<PredictedCall>,
    /// `None` if it declares no calls.
    limits: Option<(Bound, Bound)>,
    /// `Some` if its calls are too deep: the most calls that may be counted until the refusal of
    /// the first one ends all of them.
    too_deep: Option<usize>,
}

/// The prediction for a call.
#[derive(Debug)]
struct PredictedCall {
    tool: &'static str,
    /// `None` for a call that is not counted.
    intent: Option<Value>,
    code: &'static str,
    /// The layer that does not allow it.
    set_by: Option<&'static str>,
    status: &'static str,
    verdict: Option<&'static str>,
    /// The arguments and the verdict, if the governor is asked.
    asked: Option<(Value, Value)>,
    run: Option<PredictedRun>,
    /// A file that the call writes, or must not.
    file: Option<String>,
}

impl PredictedCall {
    fn refused(call: &Call, intent: Option<Value>, code: &'static str, place: &str) -> Self {
        Self {
            tool: call.target.name(),
            intent,
            code,
            set_by: None,
            status: "REFUSED",
            verdict: None,
            asked: None,
            run: None,
            file: matches!(call.target, Target::Write).then(|| place.to_owned()),
        }
    }
}

/// The least of some limits; of equal ones, the first.
fn least(limits: impl IntoIterator<Item = Bound>) -> Bound {
    limits.into_iter().min_by_key(|(value, _)| *value).expect("a ceiling")
}

impl Settings {
    /// Predicts a run with `depth` runs above it.
    fn predict(
        &self,
        fan: &Fan,
        ruling: &Ruling,
        intent: &Value,
        parent: Value,
        depth: u32,
        place: &str,
    ) -> PredictedRun {
        let none = Conditions::default();
        let conditions = if let Ruling::Conditional(conditions) = ruling { conditions } else { &none };
        let by = |layer: &'static str| move |value: u32| (value, layer);
        let max_calls = conditions.max_calls.iter().copied().map(by("condition"));
        let max_calls = max_calls.chain(self.max_calls.map(by("tool")));
        let max_calls = least(max_calls.chain([(self.ceiling_calls.unwrap_or(DEFAULTS.0), "executor")]));
        let max_parallel = self.max_parallel.map(by("tool")).into_iter();
        let max_parallel =
            least(max_parallel.chain([(self.ceiling_parallel.unwrap_or(DEFAULTS.1), "executor")]));
        let is_declared = !self.calls.is_empty();
        let is_too_deep = depth + 1 > self.max_depth.unwrap_or(DEFAULTS.2) && max_calls.0 > 0;
        let mut made = Vec::new();
        let mut count = 0;
        for (call, nth) in fan.calls.iter().zip(1..) {
            let place = format!("{place}-{nth}");
            made.push(if !is_declared {
                PredictedCall::refused(call, None, "not_allowed", &place)
            } else if count >= max_calls.0 || is_too_deep {
                PredictedCall::refused(call, None, "calls_exhausted", &place)
            } else {
                count += 1;
                self.predict_call(call, conditions, intent, count, depth, &place)
            });
        }
        let at_once = if fan.is_parallel { max_calls.0 as usize } else { 1 };
        let too_deep = (is_declared && is_too_deep).then_some(at_once.min(made.len()));
        PredictedRun {
            intent: intent.clone(),
            parent,
            made,
            limits: is_declared.then_some((max_calls, max_parallel)),
            too_deep,
        }
    }

    fn predict_call(
        &self,
        call: &Call,
        conditions: &Conditions,
        parent: &Value,
        ordinal: u32,
        depth: u32,
        place: &str,
    ) -> PredictedCall {
        let intent = nested(parent, ordinal);
        let name = call.target.name();
        let refused = |code| PredictedCall::refused(call, Some(intent.clone()), code, place);
        if !TOOLS.contains(&name) {
            return refused("unknown_tool");
        }
        let includes = |names: &[&str]| names.contains(&name) || names.contains(&"*");
        let condition = (!conditions.calls.is_empty()).then_some((&conditions.calls, "condition"));
        let refusing =
            condition.into_iter().chain([(&self.calls, "tool")]).find(|(names, _)| !includes(names));
        if let Some((_, layer)) = refusing {
            return PredictedCall { set_by: Some(layer), ..refused("not_allowed") };
        }
        if call.arguments == Arguments::NoObject {
            return refused("invalid_arguments");
        }
        let asked = Some((call.arguments_json(place), verdict_by(&call.ruling, &call.target, &intent)));
        let (verdict, is_read_only, is_short) = match &call.ruling {
            Ruling::Approved => ("APPROVED", false, false),
            Ruling::Conditional(Conditions { is_read_only, is_short, .. }) => {
                ("CONDITIONAL", *is_read_only, *is_short)
            }
            Ruling::Denied => return PredictedCall { asked, verdict: Some("DENIED"), ..refused("denied") },
            Ruling::Unenforceable => return PredictedCall { asked, ..refused("denied") },
        };
        if call.is_mismatched() {
            return PredictedCall { asked, ..refused("invalid_arguments") };
        }
        let (status, code) = match &call.target {
            Target::Read("missing") => ("FAILURE", "not_found"),
            Target::Read("large") if is_short => ("FAILURE", "limit_reached"),
            Target::Write if is_read_only => ("FAILURE", "permission_denied"),
            Target::Fails => ("FAILURE", "failed"),
            // The gate traps if it cannot write to its file `runs`.
            Target::Gate if is_read_only => ("FAILURE", "failed"),
            Target::Gate => ("TIMEOUT", "limit_reached"),
            Target::Read(_) | Target::Write | Target::Absent(_) | Target::Fan(_) => ("SUCCESS", ""),
        };
        let run = if let Target::Fan(fan) = &call.target {
            let parent =
                json!({ "intent_id": parent, "tool": "fan_out", "ordinal": ordinal, "depth": depth + 1 });
            Some(self.predict(fan, &call.ruling, &intent, parent, depth + 1, place))
        } else {
            None
        };
        PredictedCall { asked, verdict: Some(verdict), status, code, run, ..refused("") }
    }
}

/// The governor's verdict about a call.
fn verdict_by(ruling: &Ruling, target: &Target, intent: &Value) -> Value {
    let mut manifest = manifest();
    manifest["timeout_seconds"] = if matches!(target, Target::Gate) { 1 } else { 60 }.into();
    let mut verdict = verdict(intent.as_str().expect("an id"), &manifest);
    let (word, conditions) = match ruling {
        Ruling::Approved => ("APPROVED", json!([])),
        Ruling::Denied => ("DENIED", json!([])),
        Ruling::Unenforceable => ("CONDITIONAL", json!(["max_calls:-1"])),
        Ruling::Conditional(conditions) => ("CONDITIONAL", conditions.to_json(target)),
    };
    (verdict["verdict"], verdict["conditions"]) = (word.into(), conditions);
    verdict
}

impl PredictedRun {
    /// This run and those below it.
    fn runs(&self) -> Vec<&Self> {
        let below = self.made.iter().filter_map(|made| made.run.as_ref());
        std::iter::once(self).chain(below.flat_map(Self::runs)).collect()
    }

    /// The outcomes that the guest reports: a list for a call of `fan_out` that succeeds, an empty
    /// text for any other success, and code, layer and intent for an error.
    fn outcomes(&self) -> Value {
        self.made.iter().map(PredictedCall::outcome).collect()
    }

    /// The calls in its report, `used` of which were counted.
    fn calls(&self, used: usize) -> Value {
        let Some(((max_calls, by), (max_parallel, parallel_by))) = self.limits else { return Value::Null };
        let listed = self.made.iter().zip(1_u32..).take(used).map(|(made, ordinal)| {
            let intent = nested(&self.intent, ordinal);
            assert!(
                self.too_deep.is_some() || made.intent.as_ref() == Some(&intent),
                "the model must list each counted call"
            );
            let mut listed =
                json!({ "ordinal": ordinal, "tool": made.tool, "intent_id": intent, "status": made.status });
            if let Some(verdict) = made.verdict {
                listed["verdict"] = verdict.into();
            }
            listed
        });
        json!({
            "max_calls": {
                "granted": max_calls, "used": used, "slack": max_calls as usize - used, "set_by": by,
            },
            "max_parallel_calls": { "granted": max_parallel, "set_by": parallel_by },
            "list": listed.collect::<Vec<_>>(),
        })
    }

    /// The number of calls that are counted.
    fn count(&self) -> usize {
        self.made.iter().filter(|made| made.intent.is_some()).count()
    }

    /// Checks the calls in a report, and returns their number.
    fn check_calls(&self, report: &Value) -> Result<usize, TestCaseError> {
        let mut calls = report["calls"].clone();
        for call in calls.pointer_mut("/list").and_then(Value::as_array_mut).into_iter().flatten() {
            let time = call.as_object_mut().expect("a call").remove("duration_ms");
            prop_assert!(time.is_some_and(|time| time.is_u64()), "{report}");
        }
        let used = calls["max_calls"]["used"].as_u64().map_or(0, |used| usize::try_from(used).unwrap());
        match self.too_deep {
            Some(most) => prop_assert!((most.min(1)..=most).contains(&used), "{report}"),
            None => prop_assert_eq!(used, self.count(), "{}", report),
        }
        prop_assert_eq!(calls, self.calls(used), "{}", report);
        Ok(used)
    }
}

impl PredictedCall {
    fn outcome(&self) -> Value {
        if self.code.is_empty() {
            return self.run.as_ref().map_or_else(|| "".into(), PredictedRun::outcomes);
        }
        // An error names the intent only if the governor was asked about it.
        let intent = self.intent.as_ref().filter(|_| self.asked.is_some());
        json!([self.code, self.set_by, intent])
    }
}

/// The outcomes that a guest reported, in the form of [`PredictedRun::outcomes`].
fn reported_outcomes(result: &Value) -> Value {
    let outcome = |outcome: &Value| match outcome.get("error") {
        Some(error) => json!([error["code"], error["detail"]["set_by"], error["detail"]["intent_id"]]),
        None if outcome["result"].get("outcomes").is_some() => reported_outcomes(&outcome["result"]),
        None if outcome["result"].is_object() => "".into(),
        None => outcome.clone(),
    };
    result["outcomes"].as_array().expect("outcomes").iter().map(outcome).collect()
}

/// The governor's verdicts by intent, and its questions by agent.
#[derive(Default)]
struct Rulings {
    verdicts: HashMap<String, Value>,
    asked: HashMap<String, Vec<Value>>,
}

/// An executor with these settings, and its governor.
struct Bench {
    settings: Settings,
    executor: Executor,
    governor: FakeGovernor,
    rulings: Arc<Mutex<Rulings>>,
    programs: AtomicUsize,
    /// The intents that have run.
    ran: Mutex<BTreeSet<String>>,
    /// How often each kind of run and outcome occurred.
    figures: Mutex<BTreeMap<String, usize>>,
    _catalogue: Catalogue,
}

impl Bench {
    fn start(settings: Settings) -> Self {
        let rulings = Arc::<Mutex<Rulings>>::default();
        let ruling = Arc::clone(&rulings);
        let governor = FakeGovernor::deciding(move |call| {
            let mut rulings = ruling.lock().unwrap();
            let agent = call["agent_did"].as_str().expect("an agent").to_owned();
            rulings.asked.entry(agent).or_default().push(call.clone());
            match rulings.verdicts.get(&call["intent_id"].to_string()) {
                Some(verdict) => Reply::Result(verdict.clone()),
                None => Reply::Hangup,
            }
        });
        let Settings { calls, max_calls, max_parallel, ceiling_calls, ceiling_parallel, max_depth } =
            &settings;
        let tool = [("max_calls", max_calls), ("max_parallel_calls", max_parallel)];
        let tool = tool.into_iter().fold(fan_out(calls), |tool, (name, limit)| match limit {
            Some(limit) => tool.limit(name, (*limit).into()),
            None => tool,
        });
        let catalogue = Catalogue::empty().add(tool).copy("read_file").copy("write_file");
        let fails = Tool::command("fails", &saying(2, "no", 3));
        let catalogue = catalogue.add(fails).add(Tool::command("gate", GATE));
        let ceilings = [
            ("ceilings.max_calls", ceiling_calls),
            ("ceilings.max_parallel_calls", ceiling_parallel),
            ("ceilings.max_call_depth", max_depth),
        ];
        let options =
            Options::new().catalogue(&catalogue).governor(&governor.url()).set("executor.concurrent", 16);
        let options = ceilings.into_iter().fold(options, |options, (name, limit)| match limit {
            Some(limit) => options.set(name, *limit),
            None => options,
        });
        let executor = Executor::start(options);
        for (name, content) in [("small", "text".to_owned()), ("large", "x".repeat(10_000))] {
            std::fs::write(executor.workspace().join(name), content).unwrap();
        }
        let (programs, ran, figures) = Default::default();
        Self { settings, executor, governor, rulings, programs, ran, figures, _catalogue: catalogue }
    }

    /// Runs a program, and compares it with its prediction.
    fn check(&self, client: &mut HttpClient, fan_out: &Fan, ruling: &Ruling) -> Result<(), TestCaseError> {
        let number = self.programs.fetch_add(1, Ordering::SeqCst);
        let place = format!("of-{number}");
        let agent = format!("did:aeon:tester:1.0:{number}");
        let root = Value::from(intent_id());
        let arguments = fan_out.to_json(&place);
        let predicted = self.settings.predict(fan_out, ruling, &root, Value::Null, 0, &place);
        let mut call = fan(Vec::new(), &arguments);
        (call["agent_did"], call["intent_id"], call["arguments"]) =
            (agent.as_str().into(), root.clone(), arguments);
        let runs = predicted.runs();
        {
            let mut rulings = self.rulings.lock().unwrap();
            let target = Target::Fan(fan_out.clone());
            rulings.verdicts.insert(root.to_string(), verdict_by(ruling, &target, &root));
            for made in runs.iter().flat_map(|run| &run.made) {
                if let (Some(intent), Some((_, verdict))) = (&made.intent, &made.asked) {
                    rulings.verdicts.insert(intent.to_string(), verdict.clone());
                }
            }
        }
        let answer = client.rpc("a2g/intent", &call);
        let report = &answer["result"]["report"];
        prop_assert_eq!(&report["status"], "SUCCESS", "{}", answer);
        prop_assert_eq!(reported_outcomes(&report["result"]), predicted.outcomes(), "{}", answer);
        self.check_questions(&agent, &predicted, &call)?;
        for run in &runs {
            let report = Self::report(client, &run.intent)?;
            prop_assert_eq!(&report["parent"], &run.parent, "{}", report);
            let used = run.check_calls(&report)?;
            self.record(None, &format!("run at depth {}", run.parent["depth"].as_u64().unwrap_or(0)));
            // The id that one more call would have had is unknown.
            let next = u32::try_from(used).unwrap() + 1;
            let status = client.rpc("a2g/status", &json!({ "intent_id": nested(&run.intent, next) }));
            prop_assert_eq!(&status["error"]["code"], -32602, "{}", status);
            for made in &run.made {
                self.check_made(client, made)?;
            }
        }
        self.record(Some(&root), "program");
        Ok(())
    }

    fn report(client: &mut HttpClient, intent: &Value) -> Result<Value, TestCaseError> {
        let status = client.rpc("a2g/status", &json!({ "intent_id": intent }));
        let report = status["result"].get("report");
        report.cloned().ok_or_else(|| TestCaseError::fail(format!("{intent} has no report: {status}")))
    }

    /// Checks that the governor was asked about exactly the predicted intents, each once with its
    /// parent.
    fn check_questions(
        &self,
        agent: &str,
        predicted: &PredictedRun,
        call: &Value,
    ) -> Result<(), TestCaseError> {
        let mut asked = self.rulings.lock().unwrap().asked.remove(agent).unwrap_or_default();
        let key = |call: &Value| call["intent_id"].to_string();
        asked.sort_by_key(key);
        let mut expected = vec![call.clone()];
        for run in predicted.runs() {
            for (made, ordinal) in run.made.iter().zip(1_u32..) {
                let (Some(intent), Some((arguments, _))) = (&made.intent, &made.asked) else { continue };
                let depth = run.parent["depth"].as_u64().unwrap_or(0) + 1;
                let parent =
                    json!({ "intent_id": run.intent, "tool": "fan_out", "ordinal": ordinal, "depth": depth });
                expected.push(json!({
                    "agent_did": agent, "intent_id": intent, "tool": made.tool, "arguments": arguments,
                    "context": { "parent": parent },
                }));
            }
        }
        expected.sort_by_key(key);
        prop_assert_eq!(asked, expected);
        Ok(())
    }

    fn check_made(&self, client: &mut HttpClient, made: &PredictedCall) -> Result<(), TestCaseError> {
        let word = if made.code.is_empty() || made.status == "TIMEOUT" { made.status } else { made.code };
        if let Some(name) = &made.file {
            let written = (made.status == "SUCCESS").then(|| name.clone());
            prop_assert_eq!(self.executor.file(name), written, "{}", name);
        }
        match &made.intent {
            Some(intent) if made.status == "REFUSED" => {
                let status = client.rpc("a2g/status", &json!({ "intent_id": intent }));
                // The refusal of a call that the governor denied is written soon after its answer.
                let is_denied = made.verdict == Some("DENIED") && status["result"]["state"] == "denied";
                prop_assert!(is_denied || status["error"]["code"] == -32602, "{}", status);
                self.record(None, word);
            }
            Some(intent) => {
                let report = Self::report(client, intent)?;
                prop_assert_eq!(&report["status"], made.status, "{}", report);
                self.record(Some(intent), word);
            }
            None => self.record(None, &format!("{word}, not counted")),
        }
        Ok(())
    }

    fn record(&self, ran: Option<&Value>, word: &str) {
        *self.figures.lock().unwrap().entry(word.to_owned()).or_default() += 1;
        self.ran.lock().unwrap().extend(ran.map(Value::to_string));
    }

    /// Checks that the governor has one report of each intent that ran, and that no intent waits or
    /// runs.
    fn finish(self) -> BTreeMap<String, usize> {
        eventually("every report is delivered", || {
            scrape(&self.executor).is("a2g_undelivered_reports", 0.0).then_some(())
        });
        let figures = scrape(&self.executor);
        for figure in ["a2g_waiting_intents", "a2g_running", "a2g_queued"] {
            assert!(figures.has(figure) && figures.is(figure, 0.0), "{figure}: {}", figures.value(figure));
        }
        let reports = self.governor.seen().into_iter().filter(|(method, _)| method == "a2g/report");
        let mut told = reports.map(|(_, report)| report["intent_id"].to_string()).collect::<Vec<_>>();
        told.sort_unstable();
        assert_eq!(told, self.ran.into_inner().unwrap().into_iter().collect::<Vec<_>>());
        assert_chain_holds(self.executor.home());
        self.figures.into_inner().unwrap()
    }
}

/// A runner whose cases depend only on these numbers.
fn runner(cases: usize, numbers: [u64; 2]) -> TestRunner {
    let mut seed = [0; 32];
    for (place, number) in seed.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let config = Config {
        cases: u32::try_from(cases).unwrap(),
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

#[test]
fn generated_programs_are_as_the_model_predicts() {
    let (mut all, mut drawing) = (BTreeMap::<String, usize>::new(), runner(1, [0, 0]));
    for nth in 0..times(320).div_ceil(PROGRAMS) {
        let drawn = settings().new_tree(&mut drawing).expect("settings").current();
        let bench = Bench::start(drawn);
        std::thread::scope(|scope| {
            for lane in 1..=CLIENTS {
                let bench = &bench;
                scope.spawn(move || {
                    let mut runner = runner(PROGRAMS / CLIENTS, [lane as u64, nth as u64]);
                    let client = std::cell::RefCell::new(bench.executor.client());
                    let checked = runner.run(&program(), |(fan_out, ruling)| {
                        bench.check(&mut client.borrow_mut(), &fan_out, &ruling)
                    });
                    if let Err(TestError::Fail(reason, program)) = &checked {
                        panic!(
                            "{reason}
in {:#?}
{program:#?}",
                            bench.settings
                        );
                    }
                    checked.expect("no case is rejected");
                });
            }
        });
        for (word, count) in bench.finish() {
            *all.entry(word).or_default() += count;
        }
    }
    println!("{all:#?}");
    for word in [
        "SUCCESS",
        "unknown_tool",
        "not_allowed",
        "not_allowed, not counted",
        "invalid_arguments",
        "denied",
        "calls_exhausted, not counted",
        "not_found",
        "permission_denied",
        "limit_reached",
        "TIMEOUT",
        "failed",
    ] {
        assert!(all.contains_key(word), "no call ended in this way: {word}");
    }
}
