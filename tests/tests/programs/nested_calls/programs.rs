//! The calls of programs: the table of calls, and calls of themselves, in each language.

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

/// Programs that call themselves with their input, and return how often that was possible.
const DEEPER_PYTHON: &str = r#"
try:
    result = [tools.run_python(**input, input=input)["result"][0] + 1]
except ToolError as error:
    result = [0 if error.code == "calls_exhausted" else error.code]
"#;
const DEEPER_JAVASCRIPT: &str = r#"
let depth;
try {
  depth = (await tools.run_javascript({ ...input, input })).result[0] + 1;
} catch (error) {
  depth = error.code === "calls_exhausted" ? 0 : error.code;
}
return [depth];
"#;
const DEEPER_SCRIPT: &str = r#"
jq -c '. + {"input": .}' > /tmp/arguments
deeper() {
  if tool run_shell - > /tmp/outcome 2> /tmp/error; then
    jq '(.stdout | rtrimstr("\n") | tonumber) + 1' < /tmp/outcome
  else
    tail -n 1 /tmp/error | jq -c 'if .code == "calls_exhausted" then 0 else .code end'
  fi
}
cat /tmp/arguments | deeper
"#;

/// The maximum number of runs above a call.
const DEPTH: u32 = 2;

/// Makes the calls of the table by one program, and calls of itself by the other.
fn check(language: Language, makes_calls: &str, calls_itself: &str) {
    let Some(catalogue) = language.catalogue() else { return };
    let nest = Nest::start_in(language.options().set("ceilings.max_call_depth", DEPTH), catalogue);
    check_calls(&nest, language, makes_calls);
    let report = run(&nest, language, calls_itself, language.arguments(calls_itself));
    assert_eq!(language.returned(&report["result"]), json!([DEPTH]), "{report}");
}

/// Runs a program to its success, and returns the report.
fn run(nest: &Nest, language: Language, program: &str, input: Value) -> Value {
    let mut arguments = language.arguments(program);
    arguments["input"] = input;
    let answer = nest.approving(|| nest.ask(&intent(language.tool(), arguments)));
    let report = result(&answer)["report"].clone();
    assert_eq!(report["status"], "SUCCESS", "{answer}");
    report
}

fn check_calls(nest: &Nest, language: Language, program: &str) {
    let calls = cases().into_iter().map(|(call, ..)| call).collect::<Vec<_>>();
    let report = run(nest, language, program, json!(calls));
    let returned = language.returned(&report["result"]);
    let codes = returned.as_array().unwrap_or_else(|| panic!("no codes: {report}"));
    let listed = report["calls"]["list"].as_array().expect("calls");
    // A call with too many arguments is refused before it is a call.
    assert_eq!((listed.len(), codes.len()), (calls.len(), calls.len() + 1), "{report}");
    for ((call, verdict, status, code), (listed, found)) in cases().iter().zip(listed.iter().zip(codes)) {
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
    check(Language::Python, PYTHON, DEEPER_PYTHON);
}

#[test]
fn calls_from_science_python_are_as_direct_ones() {
    check(Language::SciencePython, PYTHON, DEEPER_PYTHON);
}

#[test]
fn calls_from_javascript_are_as_direct_ones() {
    check(Language::JavaScript, JAVASCRIPT, DEEPER_JAVASCRIPT);
}

#[test]
fn calls_from_the_shell_are_as_direct_ones() {
    check(Language::Shell, SCRIPT, DEEPER_SCRIPT);
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
