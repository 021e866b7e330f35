//! The calls of a run in `journal show --tree` and in `a2g/status`.

use super::{Nest, fan, gate, nested, one, read, with_context};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};

fn show(home: &Home, arguments: &[&str]) -> String {
    let output = home.run(&[&["journal", "show"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn short_id(intent: &Value) -> String {
    intent.as_str().expect("an id")[..8].to_owned()
}

#[test]
fn the_journal_shows_a_run_with_its_calls() {
    let nest = Nest::start(Options::new());
    let calls = vec![read("in.txt"), read("denied"), read("missing"), one("none", json!({}))];
    let call = fan(calls, &json!({ "recurse": 1 }));
    let id = &call["intent_id"];
    nest.outcomes(&call);
    let child = nested(id, 1);
    let home = nest.executor.home();
    let shown = show(home, &[id.as_str().unwrap(), "--tree"]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        (vec!["call", "verdict", "status"], "intent".to_owned()),
        (vec!["fan_out", "APPROVED", "SUCCESS"], short_id(id)),
        (vec!["1", "fan_out", "APPROVED", "SUCCESS"], short_id(&child)),
        (vec!["1", "read_file", "APPROVED", "SUCCESS"], short_id(&nested(&child, 1))),
        (vec!["2", "read_file", "DENIED", "REFUSED"], short_id(&nested(&child, 2))),
        (vec!["3", "read_file", "APPROVED", "FAILURE"], short_id(&nested(&child, 3))),
        (vec!["4", "none", "-", "REFUSED"], short_id(&nested(&child, 4))),
    ];
    assert_eq!(lines.len(), expected.len(), "{shown}");
    for (line, (start, end)) in lines.iter().zip(&expected) {
        assert!(line.starts_with(start) && *line.last().unwrap() == end, "not {start:?} {end}: {shown}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let indent = |nth: usize| shown.lines().nth(nth).map(|line| line.len() - line.trim_start().len());
    assert_eq!([indent(1), indent(2), indent(3), indent(6)], [Some(0), Some(2), Some(4), Some(4)], "{shown}");

    // A short id from the tree is also an argument: it shows that call with its own calls, below a line that names the
    // parent.
    let below = show(home, &[&short_id(&child), "--tree"]);
    assert_eq!(below.lines().next(), Some(format!("call 1 of fan_out, {}", id.as_str().unwrap()).as_str()));
    assert_eq!(below.lines().count(), 7, "{below}");
    let json: Value = serde_json::from_str(&show(home, &[id.as_str().unwrap(), "--tree", "--json"])).unwrap();
    assert_eq!(json["calls"][0]["calls"][1]["status"], "REFUSED", "{json}");
    assert_eq!(json["calls"][0]["calls"][0]["intent_id"], nested(&child, 1), "{json}");
    let help = run(["journal", "show", "--help"]);
    assert!(
        String::from_utf8_lossy(&help.stdout).contains("each call is an intent with a report of its own")
    );
}

#[test]
fn the_calls_of_a_run_that_was_lost_are_found() {
    let nest = Nest::start(Options::new().set("executor.concurrent", 16));
    // The third is of an unknown tool and has no record, so the tree of a lost run only counts it. A kill may lose the
    // record of the second, which is a refusal.
    let calls = vec![read("in.txt"), read("denied"), one("none", json!({})), gate()];
    let call = fan(calls, &json!({ "parallel": true }));
    let id = call["intent_id"].as_str().unwrap().to_owned();
    let address = nest.executor.address();
    let asked = std::thread::spawn(move || HttpClient::ask(address, "a2g/intent", &call));
    nest.executor.wait_at_the_gate(1);
    nest.report(&nested(&json!(id), 1));
    let Nest { executor, governor: _governor, _catalogue } = nest;
    let executor = Executor::start_in(executor.kill());
    asked.join().unwrap();
    let shown = show(executor.home(), &[&id, "--tree"]);
    let lines: Vec<Vec<&str>> = shown.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let has_refusal = lines.iter().any(|line| line.starts_with(&["2", "read_file", "DENIED", "REFUSED"]));
    let starts = [
        &["fan_out", "APPROVED", "ABORTED"][..],
        &["1", "read_file", "APPROVED", "SUCCESS"],
        if has_refusal { &["2", "read_file"] } else { &["4", "gate", "APPROVED", "ABORTED"] },
        if has_refusal { &["4", "gate", "APPROVED", "ABORTED"] } else { &["and", "2", "more"] },
        if has_refusal { &["and", "1", "more"] } else { &[] },
    ];
    let starts = starts.into_iter().filter(|start| !start.is_empty()).collect::<Vec<_>>();
    assert_eq!(lines.len(), starts.len(), "{shown}");
    assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{shown}");
}

#[test]
fn the_status_of_a_run_has_its_calls_so_far() {
    let nest = Nest::start(Options::new());
    let calls = vec![read("in.txt"), read("denied"), gate(), one("write_file", write("never", "x"))];
    let call = with_context(fan(calls, &json!({})), json!({ "timeout_seconds": 60 }));
    let id = call["intent_id"].clone();
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(1);
    let status = nest.status(&id);
    let so_far = result(&status)["calls"].as_array().unwrap_or_else(|| panic!("no calls: {status}"));
    let shown =
        so_far.iter().map(|call| (call["ordinal"].as_u64().unwrap(), call["status"].as_str().unwrap()));
    assert_eq!(shown.collect::<Vec<_>>(), [(1, "SUCCESS"), (2, "REFUSED"), (3, "PENDING")], "{status}");
    assert_eq!((&so_far[0]["intent_id"], &so_far[0]["verdict"]), (&nested(&id, 1), &json!("APPROVED")));
    nest.executor.open_the_gate();
    answer.join().unwrap();
    let status = nest.status(&id);
    assert_eq!(result(&status)["calls"], Value::Null, "{status}");
    assert_eq!(result(&status)["report"]["calls"]["list"].as_array().unwrap().len(), 4, "{status}");
}
