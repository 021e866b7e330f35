//! Stops, cancellations, revocations and the removal of an approver, after the guest of a run has ended or while a decision
//! waits for the commit of another run: what has not taken effect by then never does.

use super::{
    Act, BEFORE, EDITS, StagedFixture, StagedRun, decided, edits, entries, execute_as_other, tool_of_body,
};
use harness::callers::{ask, bearer};
use harness::{AGENT, HttpClient, Tool, eventually, execute, id_of, records, result};
use serde_json::{Value, json};
use std::thread::JoinHandle;
use std::time::Duration;

/// The tool that makes a large file, and the name of that file.
const SPARSE: &str = "sparse";
/// Sizes in bytes of that file, which is one hole and needs no space. The executor hashes it for the list of changes, and
/// again when it commits it: each takes a second or so.
const LISTED_BYTES: u64 = 600 << 20;
const HELD_BYTES: u64 = 1000 << 20;
/// Attempts until something comes in that time.
const ATTEMPTS: usize = 10;

fn sparse(effects: &str, bytes: u64) -> Tool {
    let body = format!(
        r#"(if (call $create (i32.const 3) @"{SPARSE}") (then (unreachable)))
           (if (call $fd_set_size (global.get $fd) (i64.const {bytes})) (then (unreachable)))"#
    );
    tool_of_body(SPARSE, effects, body)
}

/// The report of a run, whatever its end.
fn report_of(answer: &Value) -> &Value {
    answer.get("result").unwrap_or(&answer["error"]["data"]["report"])
}

impl StagedFixture {
    /// Starts with a tool whose commit holds up those of other runs.
    fn start_with_holder() -> Self {
        let tools = [edits(EDITS, "staged"), edits("together", "atomic"), sparse("atomic", HELD_BYTES)];
        Self::start_with(tools, |options| options.set("ceilings.max_written_mb", 4096))
    }

    /// Calls a method in a thread of its own.
    fn ask_aside(&self, token: &str, method: &'static str, params: &Value) -> JoinHandle<Value> {
        let address = self.executor().address();
        let token = token.to_owned();
        let params = params.clone();
        std::thread::spawn(move || HttpClient::ask_as(address, &token, method, &params).expect("an answer"))
    }

    /// Commits the changes of a run in a thread of its own, and returns once that is recorded.
    fn commit_aside(&self, token: &str, run: &StagedRun) -> JoinHandle<Value> {
        let is_start = |record: &Value| record["kind"] == "claim" && record["tool"] == "effects.commit";
        let begun = self.count_records(is_start);
        let committing = self.ask_aside(token, "a2g/commit", &Act::Commit.params(run));
        eventually("the commit begins", || (self.count_records(is_start) > begun).then_some(()));
        committing
    }

    fn count_records(&self, is_counted: impl Fn(&Value) -> bool) -> usize {
        records(self.home()).iter().filter(|record| is_counted(record)).count()
    }

    /// Waits until the guest of a run has ended, and the executor knows it.
    fn wait_for_guest(&self, run: &str) {
        eventually("the guest ends", || self.keeps_entry(run, "upper/table").then_some(()));
        std::thread::sleep(Duration::from_millis(100));
    }

    /// Lets a run of another agent commit [`SPARSE`]. Other commits wait for that while [`Self::is_turn_held`].
    fn hold_turn(&self) -> JoinHandle<Value> {
        let call = execute_as_other(SPARSE);
        let holding = self.ask_aside(&self.tokens["other"], "a2g/execute", &call);
        let intent = id_of(&call);
        eventually("its commit begins", || self.keeps_entry(&intent, "store/stash").then_some(()));
        holding
    }

    fn is_turn_held(&self) -> bool {
        !self.home().workspace().join(SPARSE).exists()
    }

    /// Waits until that commit is over, and removes its file.
    fn end_turn(&self, holding: JoinHandle<Value>) {
        let held = holding.join().unwrap();
        assert_eq!(result(&held)["status"], "SUCCESS", "{held}");
        std::fs::remove_file(self.home().workspace().join(SPARSE)).unwrap();
    }

    /// Lets the agent go on after a revocation and a stop.
    fn readmit_agent(&self) {
        let allowed = json!({ "allowed": true });
        let tools = json!({ SPARSE: allowed, EDITS: allowed, "together": allowed });
        let policy = json!({ "agent_did": AGENT, "version": "1", "capabilities": { "tools": tools } });
        result(&self.ask("gov", "g2a/policy", &policy));
        result(&self.ask("otto", "a2g/resume", &json!({ "target": { "agent_did": AGENT } })));
    }
}

/// The end of a run by somebody else: the caller, the method, and its parameters for the run.
type End = (&'static str, &'static str, fn(&str) -> Value);

const ENDS: [End; 4] = [
    ("agent", "a2g/cancel", |run| json!({ "intent_id": run })),
    ("gov", "g2a/revoke", |run| json!({ "intent_id": run })),
    ("gov", "g2a/revoke", |_run| json!({ "agent_did": AGENT })),
    ("otto", "a2g/stop", |_run| json!({ "target": { "agent_did": AGENT }, "reason": "it is enough" })),
];

/// Ends a run while its changes are listed. Returns `false` if that was too late.
fn is_ended_in_time(fixture: &StagedFixture, (who, method, params): End) -> bool {
    let call = execute(SPARSE, json!({}));
    let intent = id_of(&call);
    let running = fixture.ask_aside(&fixture.tokens["agent"], "a2g/execute", &call);
    fixture.wait_for_guest(&intent);
    let ended = fixture.ask(who, method, &params(&intent));
    // It is made after the list, before anything takes effect or waits.
    let is_in_time = !fixture.keeps_entry(&intent, "store");
    let answer = running.join().unwrap();
    fixture.readmit_agent();
    if !is_in_time {
        let _is_there = std::fs::remove_file(fixture.home().workspace().join(SPARSE));
        fixture.ask("anna", "a2g/discard", &json!({ "intent": intent }));
        return false;
    }
    let member = if method == "a2g/cancel" { "cancelled" } else { "accepted" };
    assert_eq!(result(&ended)[member], true, "{method}: {ended}");
    let report = report_of(&answer);
    assert_eq!(report["status"], "ABORTED", "{method}: {answer}");
    assert_eq!(report["usage"]["effects"].get("changes"), None, "{method}: {answer}");
    assert!(!fixture.home().workspace().join(SPARSE).exists(), "{method}: its change is in force");
    assert!(fixture.sets("otto").iter().all(|set| set["intent"] != *intent), "{method}: its change waits");
    assert_eq!(fixture.governor.reports_of(&intent)[0]["status"], "ABORTED", "{method}");
    eventually("nothing is kept of it", || (!fixture.keeps_entry(&intent, "")).then_some(()));
    true
}

#[test]
fn a_run_can_be_ended_after_its_guest_until_its_changes_take_effect() {
    for effects in ["staged", "atomic"] {
        let fixture = StagedFixture::start([sparse(effects, LISTED_BYTES)]);
        for end in ENDS {
            let is_ended = (0..ATTEMPTS).any(|_| is_ended_in_time(&fixture, end));
            assert!(is_ended, "{effects}: the list is always made before {}", end.1);
        }
    }
}

/// Stops an agent while a commit of its changes and a run of it wait for another commit. Returns `false` if that was too
/// late.
fn is_stopped_in_time(fixture: &StagedFixture) -> bool {
    fixture.set_files(BEFORE);
    let run = fixture.stage(EDITS);
    let holding = fixture.hold_turn();
    let committing = fixture.commit_aside(&fixture.tokens["anna"], &run);
    let call = execute("together", json!({}));
    let running = fixture.ask_aside(&fixture.tokens["agent"], "a2g/execute", &call);
    fixture.wait_for_guest(&id_of(&call));
    let target = json!({ "agent_did": AGENT });
    let stop = json!({ "target": target, "reason": "it changes the wrong files" });
    result(&fixture.ask("otto", "a2g/stop", &stop));
    let is_in_time = fixture.is_turn_held();
    let committed = committing.join().unwrap();
    let ran = running.join().unwrap();
    fixture.end_turn(holding);
    result(&fixture.ask("otto", "a2g/resume", &json!({ "target": target })));
    if !is_in_time {
        fixture.ask("anna", "a2g/discard", &json!({ "intent": run.intent }));
        return false;
    }
    let failed = decided(&committed, "FAILURE");
    let told = failed["error"].as_str().expect("a sentence");
    assert!(told.contains("it changes the wrong files"), "{told}");
    assert_eq!(report_of(&ran)["status"], "ABORTED", "{ran}");
    assert_eq!((&*fixture.state(&run), fixture.files()), ("waiting", entries(BEFORE)));
    assert_eq!(fixture.decisions(&run), [["commit", "FAILURE", "anna"].map(str::to_owned)]);
    // Nothing is against it any more.
    fixture.succeed("anna", Act::Commit, &run);
    true
}

#[test]
fn a_stop_reaches_commits_and_runs_that_wait_for_another_commit() {
    let fixture = StagedFixture::start_with_holder();
    let is_stopped = (0..ATTEMPTS).any(|_| is_stopped_in_time(&fixture));
    assert!(is_stopped, "the other commit is always over before the stop");
}

/// Removes an approver from the callers while their commit waits for another one. Returns `false` if that was too late.
fn is_removed_in_time(fixture: &mut StagedFixture, name: &str) -> bool {
    let token = fixture.list.add(name, &["--role", "approver"]);
    reload_callers(fixture, &token, 200);
    fixture.set_files(BEFORE);
    let run = fixture.stage(EDITS);
    let holding = fixture.hold_turn();
    let committing = fixture.commit_aside(&token, &run);
    fixture.list.remove(name);
    reload_callers(fixture, &token, 401);
    let is_in_time = fixture.is_turn_held();
    let committed = committing.join().unwrap();
    fixture.end_turn(holding);
    if !is_in_time {
        fixture.ask("anna", "a2g/discard", &json!({ "intent": run.intent }));
        return false;
    }
    let failed = decided(&committed, "FAILURE");
    let told = failed["error"].as_str().expect("a sentence");
    assert!(told.contains(name), "{told}");
    assert_eq!((&*fixture.state(&run), fixture.files()), ("waiting", entries(BEFORE)));
    fixture.succeed("anna", Act::Commit, &run);
    true
}

/// Lets the server read the callers again, and waits until it answers the caller with this token so.
fn reload_callers(fixture: &mut StagedFixture, token: &str, status: u16) {
    let executor = fixture.executor.as_mut().expect("it runs");
    executor.process().hang_up();
    let mut client = executor.client();
    let shown = bearer(token);
    eventually("it has read the callers", || {
        let answer = ask(&mut client, Some(&shown), "a2g/effects", &json!({}));
        (answer.status == status).then_some(())
    });
}

#[test]
fn an_approver_who_is_removed_while_their_commit_waits_commits_nothing() {
    let mut fixture = StagedFixture::start_with_holder();
    let is_removed = (0..ATTEMPTS).any(|attempt| is_removed_in_time(&mut fixture, &format!("bert{attempt}")));
    assert!(is_removed, "the other commit is always over before the removal");
}

/// Revokes an agent while a commit of its newest changes waits for another one. Returns `false` if that was too late.
fn is_revoked_in_time(fixture: &StagedFixture) -> bool {
    fixture.set_files(BEFORE);
    let runs = [(); 3].map(|()| fixture.stage(EDITS));
    let is_revocation = |record: &Value| record["kind"] == "revocation";
    let revoked_before = fixture.count_records(is_revocation);
    let holding = fixture.hold_turn();
    let committing = fixture.commit_aside(&fixture.tokens["anna"], &runs[2]);
    let of_agent = json!({ "agent_did": AGENT });
    let revoking = fixture.ask_aside(&fixture.tokens["gov"], "g2a/revoke", &of_agent);
    eventually("it is recorded", || (fixture.count_records(is_revocation) > revoked_before).then_some(()));
    let is_in_time = fixture.is_turn_held();
    let committed = committing.join().unwrap();
    let revoked = revoking.join().unwrap();
    fixture.end_turn(holding);
    fixture.readmit_agent();
    if !is_in_time {
        return false;
    }
    assert_eq!(result(&revoked)["accepted"], true, "{revoked}");
    decided(&committed, "FAILURE");
    assert_eq!(runs.each_ref().map(|run| fixture.state(run)), ["discarded"; 3]);
    assert_eq!(fixture.files(), entries(BEFORE));
    let made = [["commit", "FAILURE", "anna"], ["discard", "SUCCESS", "gov"]];
    assert_eq!(fixture.decisions(&runs[2]), made.map(|words| words.map(str::to_owned)));
    true
}

#[test]
fn a_revocation_of_an_agent_outlasts_a_decision_on_one_of_its_sets() {
    let fixture = StagedFixture::start_with_holder();
    let is_revoked = (0..ATTEMPTS).any(|_| is_revoked_in_time(&fixture));
    assert!(is_revoked, "the other commit is always over before the revocation");
}
