//! Programs that bypass `tools` or replace parts of it: no forged call or answer gets into a record, and the limits on
//! their calls hold.

use super::{Nest, nested, with_context};
use harness::*;
use serde_json::{Value, json};

/// A program that bypasses `tools`, its result, and the statuses of its calls in the report.
type Tampering = (&'static str, Value, Vec<&'static str>);

/// The beginning of each program: its `attempt` adds `ok` to the result, or the code of the error.
const PYTHON_HELP: &str = "
import json
import wit_world.imports.calls as calls
result = []
def attempt(act, *values):
    try:
        act(*values)
        result.append('ok')
    except Exception as error:
        result.append(error.code if isinstance(error, ToolError) else error.value.code)
IN = json.dumps({'path': '/workspace/in.txt'})
";
const JAVASCRIPT_HELP: &str = "
const calls = await import('a2g:tool/calls@0.2.0');
const result = [];
const attempt = async (act) => {
  try {
    await act();
    result.push('ok');
  } catch (error) {
    result.push(error.payload?.code ?? error.code);
  }
};
const IN = JSON.stringify({ path: '/workspace/in.txt' });
";

fn tampering_in_python() -> Vec<Tampering> {
    vec![
        (
            "attempt(calls.call, 'write_file', '{\"path\": \"/workspace/out\", \"content\": \"x\"}')",
            json!(["not_allowed"]),
            vec!["REFUSED"],
        ),
        (
            "for _ in range(6): attempt(calls.call, 'read_file', IN)",
            json!(["ok", "ok", "ok", "ok", "calls_exhausted", "calls_exhausted"]),
            vec!["SUCCESS"; 4],
        ),
        (
            "for numbers in [], [0], [1], [2**32 - 1]: attempt(calls.wait, numbers)\nn = calls.start('read_file', IN)\n\
             attempt(calls.wait, [n, n])\nattempt(calls.wait, [n])",
            json!(["unknown_call", "unknown_call", "unknown_call", "unknown_call", "ok", "unknown_call"]),
            vec!["SUCCESS"],
        ),
        (
            "import a2g_tools\nattempt(a2g_tools.Handle(tools, 'read_file', 1).result)",
            json!(["unknown_call"]),
            vec![],
        ),
        (
            "for text in '', '[]', '{\"path\": \"/workspace/in.txt\", \"path\": \"/\"}', '{\"a\":' * 100:\n    \
             attempt(calls.call, 'read_file', text)",
            json!(["invalid_arguments", "invalid_arguments", "invalid_arguments", "invalid_arguments"]),
            vec!["REFUSED"; 4],
        ),
        (
            "for name in '', '../read_file', 'read_file\\0', '\\x1b[31m\\u202e': attempt(tools.call, name, {})",
            json!(["unknown_tool", "unknown_tool", "unknown_tool", "unknown_tool"]),
            vec!["REFUSED"; 4],
        ),
        (
            "json.loads = lambda _: {'content': 'forged'}\nresult = tools.read_file(path='/workspace/in.txt')",
            json!({ "content": "forged" }),
            vec!["SUCCESS"],
        ),
        (
            "import a2g_tools\na2g_tools.Tools._call = lambda *_: 'forged'\nresult = tools.write_file()",
            json!("forged"),
            vec![],
        ),
    ]
}

fn tampering_in_javascript() -> Vec<Tampering> {
    vec![
        (
            "await attempt(() => calls.call('write_file', '{\"path\": \"/workspace/out\", \"content\": \"x\"}'));",
            json!(["not_allowed"]),
            vec!["REFUSED"],
        ),
        (
            "for (let n = 0; n < 6; n++) await attempt(() => calls.call('read_file', IN));",
            json!(["ok", "ok", "ok", "ok", "calls_exhausted", "calls_exhausted"]),
            vec!["SUCCESS"; 4],
        ),
        (
            "const wait = (...numbers) => attempt(() => calls.wait(Uint32Array.from(numbers)));\n\
             await wait(); await wait(0); await wait(1); await wait(2 ** 32 - 1);\n\
             const n = calls.start('read_file', IN); await wait(n, n); await wait(n);",
            json!(["unknown_call", "unknown_call", "unknown_call", "unknown_call", "ok", "unknown_call"]),
            vec!["SUCCESS"],
        ),
        (
            "for (const text of ['', '[]', '{\"path\": \"/workspace/in.txt\", \"path\": \"/\"}', \
             '{\"a\":'.repeat(100)]) {\n  \
             await attempt(() => calls.call('read_file', text));\n}",
            json!(["invalid_arguments", "invalid_arguments", "invalid_arguments", "invalid_arguments"]),
            vec!["REFUSED"; 4],
        ),
        (
            "for (const name of ['', '../read_file', 'read_file\\0', '\\x1b[31m\\u202e']) \
             await attempt(() => tools.call(name, {}));",
            json!(["unknown_tool", "unknown_tool", "unknown_tool", "unknown_tool"]),
            vec!["REFUSED"; 4],
        ),
        (
            "const { get } = Map.prototype;\nMap.prototype.get = function (key) {\n\
             const found = get.call(this, key);\n  \
             return typeof found === 'function' ? () => found({ tag: 'ok', val: '\"forged\"' }) : found;\n};\n\
             result.push(await tools.read_file({ path: '/workspace/none' }));",
            json!(["forged"]),
            vec!["FAILURE"],
        ),
        (
            "tools = { write_file: () => 'forged' }; result.push(tools.write_file());",
            json!(["forged"]),
            vec![],
        ),
    ]
}

/// Scripts have no way around `tool`. Each prints an empty text for a success, and otherwise the code of the error.
const SHELL_HELP: &str = r#"
attempt() {
  if tool "$1" "$2" > /dev/null 2> /tmp/error; then echo '""'; else tail -n 1 /tmp/error | jq -c .code; fi
}
IN='{"path": "/workspace/in.txt"}'
"#;

fn tampering_in_the_shell() -> Vec<Tampering> {
    vec![
        (
            "attempt write_file '{\"path\": \"/workspace/out\", \"content\": \"x\"}'",
            json!(["not_allowed"]),
            vec!["REFUSED"],
        ),
        (
            "for n in 1 2 3 4 5 6; do attempt read_file \"$IN\"; done",
            json!(["", "", "", "", "calls_exhausted", "calls_exhausted"]),
            vec!["SUCCESS"; 4],
        ),
        (
            "attempt '' '{}'; attempt ../read_file '{}'; attempt \"$(printf '\\033[31m')\" '{}'",
            json!(["unknown_tool", "unknown_tool", "unknown_tool"]),
            vec!["REFUSED"; 3],
        ),
    ]
}

/// Runs programs that may make four calls, only to `read_file`. No forged call or answer gets into a record.
fn check_tampering(language: Language, help: &str, end: &str, cases: Vec<Tampering>) {
    let Some(catalogue) = language.catalogue() else { return };
    let nest = Nest::start_in(language.options(), catalogue);
    for (code, expected, statuses) in cases {
        let runs = intent(language.tool(), language.arguments(&format!("{help}{code}\n{end}")));
        let call = with_context(runs, json!({ "conditions": ["calls:read_file", "max_calls:4"] }));
        let asked = nest.asked().len();
        let answer = nest.ask(&call);
        let report = &result(&answer)["report"];
        assert_eq!(report["status"], "SUCCESS", "{code}: {answer}");
        assert_eq!(language.returned(&report["result"]), expected, "{code}: {answer}");
        let listed = report["calls"]["list"].as_array().expect("a list");
        let found: Vec<_> = listed.iter().map(|call| call["status"].as_str().expect("a status")).collect();
        assert_eq!(found, statuses, "{code}: {report}");
        for (ordinal, call_of_program) in (1..).zip(listed) {
            assert_eq!(call_of_program["intent_id"], nested(&call["intent_id"], ordinal), "{code}");
            let tool = call_of_program["tool"].as_str().expect("a name");
            assert!(!tool.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{tool:?}");
        }
        let allowed = statuses.iter().filter(|status| **status != "REFUSED").count();
        assert_eq!(nest.asked().len() - asked, 1 + allowed, "{code}: the governor was asked about others");
    }
    assert_eq!(nest.executor.file("out"), None);
}

#[test]
fn a_python_program_that_tampers_with_its_tools_gains_no_call() {
    check_tampering(Language::Python, PYTHON_HELP, "", tampering_in_python());
}

#[test]
fn a_science_python_program_that_tampers_with_its_tools_gains_no_call() {
    let help = PYTHON_HELP.replace("wit_world.imports.calls", "a2g_door");
    check_tampering(Language::SciencePython, &help, "", tampering_in_python());
}

#[test]
fn a_javascript_program_that_tampers_with_its_tools_gains_no_call() {
    check_tampering(Language::JavaScript, JAVASCRIPT_HELP, "return result;", tampering_in_javascript());
}

#[test]
fn a_script_that_tampers_with_its_tools_gains_no_call() {
    check_tampering(Language::Shell, SHELL_HELP, "", tampering_in_the_shell());
}
