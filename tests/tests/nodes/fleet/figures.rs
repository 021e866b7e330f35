//! The console of one node, which shows the active runs, usage and tools of all.

use super::elsewhere::{Nodes, ask};
use harness::methods::write;
use harness::*;
use serde_json::json;

#[test]
fn the_console_of_any_node_counts_the_runs_of_all() {
    let Some(mut nodes) = Nodes::start() else { return };
    let Nodes { one, two, .. } = &nodes;
    let send = |node: &Executor, bytes: usize| {
        let call = intent("write_file", write("file", &"x".repeat(bytes)));
        let answer = ask(node, &nodes.agent, "a2g/intent", &call);
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    };
    send(one, 10);
    send(one, 20_000);
    send(two, 10);
    let refused = intent("read_file", json!({ "path": "/etc/shadow" }));
    error(&ask(one, &nodes.agent, "a2g/intent", &refused), -32000);
    let [agent, operator, other] =
        [&nodes.agent, &nodes.operator, &nodes.other].map(|token| console::Client::with_token(two, token));
    for person in [&agent, &operator] {
        let page = eventually("the refused call is counted", || {
            let page = person.get("/console/usage").1;
            let suggests = page.contains("It would have allowed 3 runs since");
            (suggests && page.contains("3 runs, 3 succeeded, 1 refused")).then_some(page)
        });
        assert!(page.contains("3 runs in the last 24 hours."), "{page}");
        // The chart has them too: one row, or two if a bucket began between the runs.
        let table = page.split_once("<table").expect("the table of the charts").1;
        let table = table.split_once("</table>").expect("its end").0;
        let has = |runs: u64| table.contains(&format!("<td class=\"number\">{runs}</td>"));
        assert!(has(3) || (has(2) && has(1)), "{table}");
    }
    assert!(other.get("/console/usage").1.contains("0 runs in the last 24 hours."));
    // Narrower limits would hold at the node that is missing, too.
    nodes.one.process().pause();
    let page = operator.get("/console/usage").1;
    let told = agent.get("/console/usage").1;
    nodes.one.process().resume();
    let missing = "What these nodes have is missing here: one (no answer). No narrower limits are shown";
    assert!(page.contains(missing) && page.contains("1 run in the last 24 hours."), "{page}");
    assert!(told.contains("A node of the fleet has given no answer"), "{told}");
    assert!(!page.contains("A narrower policy") && !told.contains("A narrower policy"), "{page} {told}");
    // The same holds for a node that has left.
    let drained = nodes.two.home().run(&["fleet", "drain", "one"]);
    assert!(drained.status.success(), "{drained:?}");
    let told = eventually("the node has left", || {
        let page = agent.get("/console/usage").1;
        page.contains("A node of the fleet does not run").then_some(page)
    });
    assert!(told.contains("1 run in the last 24 hours.") && !told.contains("A narrower policy"), "{told}");
}

#[test]
fn the_console_of_any_node_lists_the_active_runs_of_all() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { one, two, agent, other, operator, .. } = &nodes;
    let call = intent("gate", json!({ "path": "/workspace" }));
    let id = call["intent_id"].as_str().unwrap().to_owned();
    let (address, token) = (one.address(), agent.clone());
    let answer = std::thread::spawn(move || HttpClient::ask_as(address, &token, "a2g/intent", &call));
    one.wait_at_the_gate(1);
    let link = format!("/console/runs/{id}");
    for (token, sees_it) in [(agent, true), (operator, true), (other, false)] {
        let page = console::Client::with_token(two, token).get("/console").1;
        assert_eq!(page.contains(&link) && page.contains("<td>one</td>"), sees_it, "{page}");
        assert_eq!(page.contains("None of the runs that you may see is active."), !sees_it, "{page}");
    }
    let client = console::Client::with_token(two, operator);
    eventually("the loads of all nodes are added up", || {
        let page = client.get("/console").1;
        page.contains("<th>All</th><td></td><td></td><td>1 of ").then_some(())
    });
    // Its page is that of its node, with the button that stops it.
    let page = client.get(&link).1;
    let form = [("form_token", &*console::field(&page, "form_token"))];
    assert_eq!(client.post(&format!("{link}/stop"), &form, "").0, 303);
    let answer = answer.join().unwrap().expect("an answer");
    assert_eq!(result(&answer)["report"]["status"], "ABORTED", "{answer}");
}

#[test]
fn the_console_says_that_no_server_of_the_fleet_answers() {
    let Some(mut nodes) = Nodes::start() else { return };
    let client = console::Client::with_token(&nodes.one, &nodes.operator);
    let fleet_part = || {
        let page = client.get("/console").1;
        let part = page.split_once("<section id=\"fleet\"").unwrap_or_else(|| panic!("{page}")).1;
        part.split_once("</section>").expect("its end").0.to_owned()
    };
    let wait_for_all = || {
        eventually("both nodes are shown as live", || {
            let part = fleet_part();
            (part.matches("<td>live</td>").count() == 2 && part.matches(" s ago</td>").count() == 2)
                .then_some(())
        });
    };
    wait_for_all();
    nodes.fleet.servers.kill(0);
    eventually("the page says that no server answers", || {
        let part = fleet_part();
        let is_said = part.contains("The servers of the fleet do not answer");
        assert!(is_said != part.contains("live"), "{part}");
        is_said.then_some(())
    });
    nodes.fleet.servers.restart(0);
    wait_for_all();
}

#[test]
fn the_console_of_any_node_compares_the_tools_of_all() {
    let Some(nodes) = Nodes::start() else { return };
    let another = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
    let catalogue = Catalogue::empty()
        .copy("read_file")
        .add(Tool::command("gate", another))
        .add(Tool::command("extra", GATE));
    let three = Executor::start(nodes.list.of(nodes.fleet.options("three").catalogue(&catalogue)));
    nodes.fleet.wait_for(nodes.one.home(), "three", |node| node["state"] == "live");
    let row = |page: &str, tool: &str| {
        let rows = page.split("<tr>").filter(|row| row.contains(&format!("{tool}</a></td>")));
        let mut rows =
            rows.chain(page.split("<tr>").filter(|row| row.starts_with(&format!("<td>{tool}</td>"))));
        rows.next().unwrap_or_else(|| panic!("{tool}: {page}")).to_owned()
    };
    let client = console::Client::with_token(&nodes.one, &nodes.agent);
    let page = eventually("the node knows the third one", || {
        let page = client.get("/console/tools").1;
        page.contains("only at three (").then_some(page)
    });
    assert!(row(&page, "read_file").contains("the same module"), "{page}");
    assert!(row(&page, "write_file").contains("<td>not at three</td>"), "{page}");
    assert!(row(&page, "gate").contains("<td>another module at three</td>"), "{page}");
    assert!(row(&page, "extra").contains("only at three ("), "{page}");
    let client = console::Client::with_token(&three, &nodes.agent);
    let page = eventually("the third node knows the others", || {
        let page = client.get("/console/tools").1;
        page.contains("only at one (").then_some(page)
    });
    let row = row(&page, "write_file");
    assert!(row.contains("only at one (") && row.contains(", two ("), "{page}");
}
