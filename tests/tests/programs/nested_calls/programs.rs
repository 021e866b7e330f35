//! The calls of programs: the table of calls through both interpreters and the shell.

use super::{Nest, cases, with_context, word};
use harness::*;
use serde_json::{Value, json};

/// Makes the calls of its input one after another, then one with more arguments than a call may have, and returns their
/// codes.
const PYTHON: &str = r#"
result = []
def make(tool, arguments):
    try:
        tools.call(tool, arguments)
        result.append("")
    except ToolError as error:
        result.append(error.code)
for call in input:
    make(call["tool"], call["arguments"])
make("write_file", {"path": "/workspace/long", "content": "a" * (1 << 20)})
"#;
const JAVASCRIPT: &str = r#"
const codes = [];
async function make(tool, parameters) {
  try {
    await tools[tool](parameters);
    codes.push("");
  } catch (error) {
    codes.push(error.code);
  }
}
for (const call of input) await make(call.tool, call.arguments);
await make("write_file", { path: "/workspace/long", content: "a".repeat(1 << 20) });
return codes;
"#;

/// The same, with one code in a line. `tool` prints it in the second line of its error.
const SCRIPT: &str = r#"
make() {
  if tool "$1" - > /dev/null 2> /tmp/error; then echo '""'; else tail -n 1 /tmp/error | jq -c .code; fi
}
jq -c '.[]' > /tmp/calls
while read -r call; do
  jq -c .arguments <<< "$call" | make "$(jq -r .tool <<< "$call")"
done < /tmp/calls
printf 'a%.0s' {1..1024} | jq -Rc '. * 1024' | jq -c '{path: "/workspace/long", content: .}' | make write_file
"#;

fn check(interpreter: &str, code: &str) {
    if !has_interpreter(interpreter) {
        return;
    }
    check_calls(interpreter, "code", code, |result| result["result"].as_array().expect("codes").clone());
}

/// Makes the calls by a program, which is the argument `argument`; `codes_of` takes their codes from its
/// result.
fn check_calls(interpreter: &str, argument: &str, code: &str, codes_of: impl Fn(&Value) -> Vec<Value>) {
    let nest = Nest::start_in(Options::new(), Catalogue::empty().copy(interpreter));
    let calls = cases().into_iter().map(|(call, ..)| call).collect::<Vec<_>>();
    let call = intent(interpreter, json!({ argument: code, "input": calls }));
    let call = with_context(call, json!({ "max_memory_mb": 128 }));
    let answer = nest.approving(|| nest.ask(&call));
    let report = &result(&answer)["report"];
    assert_eq!(report["status"], "SUCCESS", "{answer}");
    let listed = report["calls"]["list"].as_array().expect("calls");
    let codes = codes_of(&report["result"]);
    // A call with too many arguments is refused before it is a call.
    assert_eq!((listed.len(), codes.len()), (calls.len(), calls.len() + 1), "{report}");
    for ((call, verdict, status, code), (listed, found)) in cases().iter().zip(listed.iter().zip(&codes)) {
        let expected = if verdict.is_empty() { Value::Null } else { json!(verdict) };
        let seen =
            (&listed["tool"], listed.get("verdict").cloned().unwrap_or_default(), &listed["status"], found);
        assert_eq!(seen, (&call["tool"], expected, &json!(status), &json!(code)), "{call}");
    }
    assert_eq!((codes.last(), nest.executor.file("long")), (Some(&json!("invalid_arguments")), None));
    let asked = nest.asked().iter().filter(|call| word(call) == "long").count();
    assert_eq!(asked, 0, "the governor was asked about arguments that no call may have");
}

#[test]
fn calls_from_python_are_as_direct_ones() {
    check("run_python", PYTHON);
}

#[test]
fn calls_from_javascript_are_as_direct_ones() {
    check("run_javascript", JAVASCRIPT);
}

#[test]
fn calls_from_the_shell_are_as_direct_ones() {
    check_calls(SHELL, "script", SCRIPT, |result| {
        let lines = result["stdout"].as_str().expect("a text").lines();
        lines.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    });
}

/// The arguments of a program's calls count against the share of the program's caller.
#[test]
fn arguments_of_calls_have_a_share_of_memory() {
    if !has_interpreter("run_python") {
        return;
    }
    // Without a list of callers, a share is half of it: room for six of these calls as values (5.6 MB each), and for the
    // three texts (1 MiB each) that are read at the same time as the sixth. If the texts counted longer, five would fit.
    let options = Options::new().set("server.max_memory_mb", 72);
    let nest = Nest::start_in(options, Catalogue::empty().copy("run_python"));
    let code = r#"
calls = [tools.start.gate(x="a" * 900_000, y=[0] * 9_000) for _ in range(8)]
result = []
for call in calls:
    try:
        call.result()
        result.append("")
    except ToolError as error:
        result.append(error.message)
"#;
    let call = with_context(intent("run_python", json!({ "code": code })), json!({ "max_memory_mb": 128 }));
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| nest.ask(&call));
        nest.executor.wait_at_the_gate(6);
        nest.executor.open_the_gate();
        let answer = answer.join().unwrap();
        let said = &result(&answer)["report"]["result"]["result"];
        let said =
            said.as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(|text| text.as_str().unwrap());
        let refused = said.filter(|text| text.contains("share of `server.max_memory_mb`")).count();
        assert_eq!(refused, 2, "{answer}");
    });
}

/// Arguments that take far longer to read than to send delay no other request.
#[test]
fn large_arguments_of_programs_delay_no_other() {
    if !has_interpreter("run_python") {
        return;
    }
    let nest = Nest::start_in(Options::new(), Catalogue::empty().copy("run_python"));
    let code = r#"
given = {f"k{n:05}": 1 for n in range(60_000)}
result = 0
for _ in range(2):
    try:
        tools.write_file(**given)
    except ToolError:
        result += 1
"#;
    let call =
        || with_context(intent("run_python", json!({ "code": code })), json!({ "max_memory_mb": 128 }));
    let watched = watch_during(nest.executor.address(), || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let answer = nest.ask(&call());
                    assert_eq!(result(&answer)["report"]["result"]["result"], 2, "{answer}");
                });
            }
        });
    });
    watched.assert_fair();
}
