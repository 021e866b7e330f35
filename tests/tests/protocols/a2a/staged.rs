//! Tasks of staged runs, which wait until somebody decides on their file changes.

use super::*;
use harness::WallClock;
use harness::callers::rpc;

const ANSWER: &str = "tasks/provideInputAndContinue";

/// Callers, and an executor that lets the file changes of every run wait.
struct Staging {
    executor: Executor,
    agent: String,
    approver: String,
    /// The list of callers, which a restart reads again.
    _list: List,
}

impl Staging {
    fn start() -> Self {
        Self::start_with(|options| options)
    }

    fn start_with(more: impl FnOnce(Options) -> Options) -> Self {
        let list = List::new();
        let agent = agent(&list, "mine", MINE);
        let approver = list.add("anna", &["--role", "approver"]);
        let options = list.of(without_rate_limits(Options::new()));
        let executor = Executor::start(more(options.set("ceilings.effects", "staged")));
        Self { executor, agent, approver, _list: list }
    }

    fn agent(&self) -> Client {
        Client::with(&self.executor, &self.agent)
    }

    fn approver(&self) -> Client {
        Client::with(&self.executor, &self.approver)
    }

    /// Decides over A2G.
    fn decide(&self, method: &str, task: &Value) {
        let mut params = json!({ "intent": task["id"] });
        if method == "a2g/commit" {
            params["digest"] = changes(task)["digest"].clone();
        }
        let report = rpc(&mut self.executor.client(), &self.approver, method, &params);
        assert_eq!(report["result"]["status"], "SUCCESS", "{report}");
    }
}

fn answer(task: &Value, option: &str) -> Value {
    json!({ "taskId": task["id"], "permissionOptionId": option })
}

/// The list of file changes in a task that waits for a decision on them.
fn changes(task: &Value) -> &Value {
    assert_eq!(state(task), "input-required", "{task}");
    let prompt = &task["status"]["message"]["parts"][1]["data"];
    assert_eq!(prompt["toolId"], "effects.commit", "{task}");
    let options = prompt["permission_options"].as_array().unwrap().iter();
    assert_eq!(options.map(|option| &option["optionId"]).collect::<Vec<_>>(), ["commit", "discard"]);
    assert_eq!(task["metadata"]["status"], "STAGED", "{task}");
    let artifact = task["artifacts"].as_array().unwrap().last().unwrap();
    assert_eq!(artifact["artifactId"], "changes", "{task}");
    &artifact["parts"][1]["data"]
}

/// The last decision in the history of a task: its author, and what they answered.
fn last_decision(client: &mut Client, task: &Value) -> [String; 2] {
    let history = client.get(&format!("/a2a/tasks/{}/governor/history", id(task))).json();
    assert_eq!(history["pendingPermissions"], json!([]));
    let decision = history["permissionDecisions"].as_array().unwrap().last().unwrap();
    ["source", "optionId"].map(|member| decision[member].as_str().unwrap().to_owned())
}

#[test]
fn an_approver_commits_the_changes_of_a_task() {
    let staging = Staging::start();
    let mut agent = staging.agent();
    let mut approver = staging.approver();
    let task = agent.call("write_file", write("x", "hello"));
    assert!(status_text(&task).contains("file changes of `write_file` (1)"), "{task}");
    assert_eq!(changes(&task)["files"][0]["path"], "/workspace/x");
    assert_eq!(task["artifacts"][0]["artifactId"], "result");
    staging.executor.assert_workspace_is_empty("a run whose changes wait");
    // Neither a message nor an answer of the agent itself decides.
    assert_eq!(agent.code("message/send", of_task(text("please"), &id(&task))), -32602);
    let refused = agent.rpc(ANSWER, answer(&task, "commit"));
    assert_eq!(refused["error"]["data"]["blocked_by"], "caller_unauthorized", "{refused}");
    // While they cannot take effect, the question stays.
    let file = staging.executor.workspace().join("x");
    std::fs::write(&file, "another's").unwrap();
    assert_eq!(approver.code(ANSWER, answer(&task, "commit")), -32602);
    assert_eq!(changes(&approver.task(&id(&task))), changes(&task));
    std::fs::remove_file(file).unwrap();

    let done = approver.result(ANSWER, answer(&task, "commit"));
    assert_eq!(state(&done), "completed", "{done}");
    assert!(status_text(&done).contains("are in force: they were committed by anna"), "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
    assert_eq!(agent.task(&id(&task)), done);
    assert_eq!(approver.code(ANSWER, answer(&task, "commit")), -32602, "nothing is pending");
    assert_eq!(last_decision(&mut agent, &task), ["caller:anna", "commit"]);
}

/// The prompt about the changes follows the approval of the call at once, so a repeat of that answer finds it.
#[test]
fn the_approval_of_a_call_that_is_sent_twice_commits_nothing() {
    let folder = methods::policy_folder(&[methods::policy()]);
    let staging = Staging::start_with(|options| options.policies(folder.path()));
    let mut agent = staging.agent();
    let mut approver = staging.approver();
    let refuses = |approver: &mut Client, task: &Value, options: [&str; 2], advice: &str| {
        for option in options {
            let refused = approver.rpc(ANSWER, answer(task, option));
            assert_eq!(refused["error"]["code"], -32602, "{refused}");
            assert!(refused["error"]["message"].as_str().unwrap().contains(advice), "{refused}");
        }
    };
    let asked = agent.call("write_file", write("x", ESCALATES));
    assert_eq!(asked["status"]["message"]["parts"][1]["data"]["toolId"], "write_file", "{asked}");
    refuses(&mut approver, &asked, ["commit", "discard"], "send `approved` or `denied`");
    approver.result(ANSWER, answer(&asked, "approved"));
    let task = agent.until(&id(&asked), "input-required");
    refuses(&mut approver, &task, ["approved", "denied"], "send `commit` or `discard`");
    staging.executor.assert_workspace_is_empty("a call that was approved, and not its changes");
    assert_eq!(changes(&agent.task(&id(&task))), changes(&task), "they still wait");
    let done = approver.result(ANSWER, answer(&task, "commit"));
    assert_eq!(state(&done), "completed", "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some(ESCALATES));
}

/// One byte makes a content that no list shows.
#[test]
fn a_prompt_says_that_a_content_is_not_shown() {
    let staging = Staging::start();
    let mut agent = staging.agent();
    let task = agent.call("write_file", write("x", "hello\0"));
    assert!(changes(&task)["files"][0].get("diff").is_none(), "{task}");
    let asked = status_text(&task);
    assert!(asked.contains("Not shown: binary content of 1 file."), "{asked}");
    let artifact = task["artifacts"].as_array().unwrap().last().unwrap();
    let listed = artifact["parts"][0]["text"].as_str().unwrap();
    assert!(listed.contains("`/workspace/x` (6 bytes, binary content not shown)"), "{listed}");
    let readable = agent.call("write_file", write("y", "hello"));
    assert!(!status_text(&readable).contains("Not shown"), "{readable}");
}

/// Neither a person nor a directive has decided.
#[test]
fn the_end_of_the_time_to_decide_is_recorded_as_the_executor_s() {
    let Some(clock) = WallClock::new() else { return };
    let staging =
        Staging::start_with(|options| clock.for_server(options).set("effects.decide_within_hours", 2));
    let mut agent = staging.agent();
    let task = agent.call("write_file", write("x", "hello"));
    changes(&task);
    clock.set(3 * 3600);
    let done = agent.until(&id(&task), "canceled");
    assert!(status_text(&done).contains("discarded by the executor"), "{done}");
    let [source, option] = last_decision(&mut agent, &task);
    assert!(source.contains("effects.decide_within_hours"), "{source}");
    assert_eq!(option, "discard");
    staging.executor.assert_workspace_is_empty("changes whose time is over");
}

#[test]
fn the_task_of_discarded_changes_is_canceled() {
    let staging = Staging::start();
    let mut agent = staging.agent();
    let discarded = agent.call("write_file", write("x", "hello"));
    let done = staging.approver().result(ANSWER, answer(&discarded, "discard"));
    assert_eq!(state(&done), "canceled", "{done}");
    assert!(status_text(&done).contains("discarded by anna"), "{done}");
    assert_eq!(last_decision(&mut agent, &done), ["caller:anna", "discard"]);
    // The agent itself discards by a cancellation.
    let canceled = agent.call("write_file", write("y", "hello"));
    let done = agent.result("tasks/cancel", json!({ "id": canceled["id"] }));
    assert_eq!(state(&done), "canceled", "{done}");
    assert!(status_text(&done).contains("discarded by mine"), "{done}");
    assert_eq!(last_decision(&mut agent, &done), ["caller:mine", "discard"]);
    staging.executor.assert_workspace_is_empty("two runs whose changes were discarded");
    // A stream ends with the question, and continues until the decision.
    let streamed = agent.stream("message/stream", &call("write_file", write("z", "hello"))).rest();
    let last = streamed.last().unwrap();
    assert_eq!((state(last), &last["final"]), ("input-required", &json!(true)), "{last}");
    let task = agent.task(last["taskId"].as_str().unwrap());
    let mut stream = agent.stream("tasks/resubscribe", &json!({ "id": task["id"] }));
    assert_eq!(stream.next().unwrap()["result"]["id"], task["id"]);
    staging.decide("a2g/commit", &task);
    let ended = stream.rest();
    assert_eq!(state(ended.last().unwrap()), "completed", "{ended:?}");
    assert_eq!(staging.executor.file("z").as_deref(), Some("hello"));
}

#[test]
fn a_task_follows_the_decision_after_a_restart() {
    let Staging { executor, agent, approver, _list } = Staging::start();
    let mut client = Client::with(&executor, &agent);
    let tasks = ["x", "y"].map(|name| client.call("write_file", write(name, "hello")));
    let executor = Executor::start_in(executor.kill());
    let staging = Staging { executor, agent, approver, _list };
    let mut client = staging.agent();
    let [committed, discarded] = &tasks;
    for task in [committed, discarded] {
        assert_eq!(changes(&client.task(&id(task))), changes(task), "it still waits");
    }
    staging.decide("a2g/commit", committed);
    staging.decide("a2g/discard", discarded);
    let done = client.until(&id(committed), "completed");
    assert!(status_text(&done).contains("committed by anna"), "{done}");
    assert_eq!(last_decision(&mut client, committed), ["anna", "commit"]);
    let done = client.until(&id(discarded), "canceled");
    assert!(status_text(&done).contains("discarded by anna"), "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
    assert_eq!(staging.executor.file("y"), None);
}
