//! Tasks of staged runs, which wait until somebody decides on their file changes.

use super::*;
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
        let list = List::new();
        let agent = agent(&list, "mine", MINE);
        let approver = list.add("anna", &["--role", "approver"]);
        let options = list.of(without_rate_limits(Options::new()));
        let executor = Executor::start(options.set("ceilings.effects", "staged"));
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
    assert_eq!(task["status"]["message"]["parts"][1]["data"]["toolId"], "effects.commit", "{task}");
    assert_eq!(task["metadata"]["status"], "STAGED", "{task}");
    let artifact = task["artifacts"].as_array().unwrap().last().unwrap();
    assert_eq!(artifact["artifactId"], "changes", "{task}");
    &artifact["parts"][1]["data"]
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
    let refused = agent.rpc(ANSWER, answer(&task, "approved"));
    assert_eq!(refused["error"]["data"]["blocked_by"], "caller_unauthorized", "{refused}");
    // While they cannot take effect, the question stays.
    let file = staging.executor.workspace().join("x");
    std::fs::write(&file, "another's").unwrap();
    assert_eq!(approver.code(ANSWER, answer(&task, "approved")), -32602);
    assert_eq!(changes(&approver.task(&id(&task))), changes(&task));
    std::fs::remove_file(file).unwrap();

    let done = approver.result(ANSWER, answer(&task, "approved"));
    assert_eq!(state(&done), "completed", "{done}");
    assert!(status_text(&done).contains("are in force: they were committed by anna"), "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
    assert_eq!(agent.task(&id(&task)), done);
    assert_eq!(approver.code(ANSWER, answer(&task, "approved")), -32602, "nothing is pending");
    let history = agent.get(&format!("/a2a/tasks/{}/governor/history", id(&task))).json();
    let decision = history["permissionDecisions"].as_array().unwrap().last().unwrap();
    assert_eq!((&decision["source"], &decision["optionId"]), (&json!("caller:anna"), &json!("approved")));
    assert_eq!(history["pendingPermissions"], json!([]));
}

#[test]
fn the_task_of_discarded_changes_is_canceled() {
    let staging = Staging::start();
    let mut agent = staging.agent();
    let denied = agent.call("write_file", write("x", "hello"));
    let done = staging.approver().result(ANSWER, answer(&denied, "denied"));
    assert_eq!(state(&done), "canceled", "{done}");
    assert!(status_text(&done).contains("discarded by anna"), "{done}");
    // The agent itself discards by a cancellation.
    let canceled = agent.call("write_file", write("y", "hello"));
    let done = agent.result("tasks/cancel", json!({ "id": canceled["id"] }));
    assert_eq!(state(&done), "canceled", "{done}");
    assert!(status_text(&done).contains("discarded by mine"), "{done}");
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
    let done = client.until(&id(discarded), "canceled");
    assert!(status_text(&done).contains("discarded by anna"), "{done}");
    assert_eq!(staging.executor.file("x").as_deref(), Some("hello"));
    assert_eq!(staging.executor.file("y"), None);
}
