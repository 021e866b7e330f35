//! Lists of tasks: their pages begin after a key, and no call and no look-up waits for one.

use super::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The longest that anything may take beside the lists: far more than it takes, and less than an answer that hangs.
const BOUND: Duration = Duration::from_secs(20);

fn submit_denied_call(client: &mut Client) -> String {
    id(&client.call("write_file", json!({ "path": "/etc/denied", "content": "x" })))
}

/// The ids of all tasks, page after page.
fn pages(client: &mut Client, limit: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let mut params = json!({ "limit": limit });
    loop {
        let page = client.result("tasks/list", params.clone());
        ids.extend(page["tasks"].as_array().unwrap().iter().map(id));
        assert!(page["total"].as_u64().unwrap() >= ids.len() as u64, "{page}");
        let next = page.get("nextPageToken").cloned();
        assert_eq!(page["hasMore"], json!(next.is_some()), "{page}");
        let Some(next) = next else { return ids };
        params["pageToken"] = next;
    }
}

/// Ends the threads beside a test, also when it fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn long_task_lists_delay_no_calls_and_show_each_task_once() {
    let (executor, ..) = start_governed(|options| options);
    let made = std::thread::scope(|scope| {
        let makes = || (0..60).map(|_| submit_denied_call(&mut Client::of(&executor))).collect::<Vec<_>>();
        let makers = (0..4).map(|_| scope.spawn(makes)).collect::<Vec<_>>();
        makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect::<HashSet<_>>()
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let until_over = |work: &dyn Fn(&mut Client)| {
            let mut client = Client::of(&executor);
            while !is_over.load(Ordering::Relaxed) {
                work(&mut client);
            }
        };
        for limit in [7, 20, 100] {
            let made = &made;
            scope.spawn(move || {
                until_over(&|client| {
                    let listed = pages(client, limit);
                    let different = listed.iter().cloned().collect::<HashSet<_>>();
                    assert_eq!(different.len(), listed.len(), "a task is listed twice");
                    assert!(made.is_subset(&different), "{:?} are missing", made.difference(&different));
                });
            });
        }
        // Fewer than are kept of one agent.
        scope.spawn(|| {
            (0..300)
                .take_while(|_| !is_over.load(Ordering::Relaxed))
                .for_each(|_| drop(submit_denied_call(&mut Client::of(&executor))))
        });
        let _over = SetOnDrop(&is_over);
        let mut client = Client::of(&executor);
        for round in 0..20 {
            let began = Instant::now();
            let done = client.call("write_file", write(&format!("round{round}"), "x"));
            assert_eq!(state(&done), "completed", "{done}");
            assert_eq!(client.get("/health").status, 200);
            assert!(began.elapsed() < BOUND, "round {round} took {:?}", began.elapsed());
        }
    });
}

#[test]
fn a_page_token_is_a_position_and_grants_no_access() {
    let list = List::new();
    let mine = agent(&list, "mine", MINE);
    let theirs = agent(&list, "other", OTHER);
    let executor = Executor::start(list.of(without_rate_limits(Options::new())));
    let mut mine = Client::with(&executor, &mine);
    let mut theirs = Client::with(&executor, &theirs);
    let own = id(&theirs.result("message/send", text("Hello!")));
    let tasks = (0..3).map(|_| id(&mine.result("message/send", text("Hello!")))).collect::<Vec<_>>();
    let first = mine.result("tasks/list", json!({ "limit": 1 }));
    assert_eq!((id(&first["tasks"][0]), &first["total"]), (tasks[2].clone(), &json!(3)));
    let after =
        |client: &mut Client| client.result("tasks/list", json!({ "pageToken": first["nextPageToken"] }));
    let rest = after(&mut mine);
    assert_eq!(
        rest["tasks"].as_array().unwrap().iter().map(id).collect::<Vec<_>>(),
        [&*tasks[1], &*tasks[0]]
    );
    let others = after(&mut theirs);
    assert_eq!((id(&others["tasks"][0]), &others["total"]), (own, &json!(1)));
    for (params, at) in [
        (json!({ "pageToken": "x" }), "/pageToken"),
        (json!({ "pageToken": first["nextPageToken"], "offset": 1 }), "/pageToken"),
        (json!({ "offset": 1_001 }), "/offset"),
    ] {
        let refused = mine.rpc("tasks/list", params)["error"].clone();
        assert_eq!(
            (&refused["code"], &refused["data"]["pointer"]),
            (&json!(-32602), &json!(at)),
            "{refused}"
        );
    }
}
