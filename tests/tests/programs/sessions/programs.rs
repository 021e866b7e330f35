//! Programs of the interpreters, one after the other in a session.

use super::*;

/// Expects the result of a program, or words of its error.
enum Expect {
    Result(Value),
    Error(&'static str),
}
use Expect::{Error, Result};

/// A call in a session, for which the governor grants so much memory and time.
fn call(tool: &str, arguments: Value, session: &str, memory_mb: u64, seconds: u64) -> Value {
    let grant = json!({ "max_memory_mb": memory_mb, "timeout_seconds": seconds });
    granted(in_session(intent(tool, arguments), session), &grant)
}

/// Runs programs in one session, if the interpreter could be built here.
fn check(tool: &str, programs: &[(&str, Expect)]) {
    if !has_interpreter(tool) {
        return;
    }
    let fixture = Fixture::start_in(options(), Catalogue::empty().copy(tool));
    std::fs::write(fixture.executor.workspace().join("in.txt"), "text").expect("a file");
    let mut session = "new".to_owned();
    for ((code, expect), number) in programs.iter().zip(1..) {
        let arguments = json!({ "code": code, "input": code.len() });
        let report = fixture.run(&call(tool, arguments, &session, 256, 60));
        session = handle_of(&report);
        assert_eq!(report["session"]["turn"], number, "{report}");
        match expect {
            Result(value) => assert_eq!(report["result"]["result"], *value, "{code}: {report}"),
            Error(words) => {
                let message = report["tool_error"]["message"].as_str().unwrap_or_default();
                assert!(message.contains(words), "{code}: {report}");
            }
        }
        assert_eq!(report["usage"]["denied"], json!([]), "{code}: {report}");
    }
}

#[test]
fn python_keeps_names_imports_and_files() {
    check(
        "run_python",
        &[
            (
                "import math\nx = [1]\nf = open('/workspace/out.txt', 'w+')\ndef half(n):\n    return n / x[0]",
                Result(Value::Null),
            ),
            (
                "x.append(math.floor(half(2.5)))\nf.write('a')\nprint('seen once')\nresult = x",
                Result(json!([1, 2])),
            ),
            ("x", Result(json!([1, 2]))),
            ("result", Error("begins without `result`")),
            ("x[0] = 0\ny = 'kept'\nhalf(1)", Error("division by zero (line 3)")),
            ("[x[0], y]", Result(json!([0, "kept"]))),
            ("missing", Error("nor an earlier one of the session defines it (line 1)")),
            ("f.write('b')\nf.seek(0)\nf.read()", Result(json!("ab"))),
            ("input", Result(json!(5))),
            ("c = tools.start.read_file(path='/workspace/in.txt')\n1 / 0", Error("division by zero")),
            ("tools.start.read_file(path='/workspace/in.txt').result()['content']", Result(json!("text"))),
            ("c.result()", Error("the call ended with the program that started it")),
            ("import a2g_tools\na2g_tools.Handle(tools, 'read_file', 1).result()", Error("unknown_call")),
            (
                "import os\nos.mkdir('sub')\nos.chdir('sub')\nopen('/tmp/note', 'w').write('kept')",
                Result(json!(4)),
            ),
            (
                "open('here', 'w').close()\n[os.getcwd(), os.listdir('/workspace/sub'), open('/tmp/note').read()]",
                Result(json!(["/workspace/sub", ["here"], "kept"])),
            ),
            ("os.chdir('/tmp')\n1 / 0", Error("division by zero")),
            ("[os.getcwd(), open('note').read()]", Result(json!(["/tmp", "kept"]))),
        ],
    );
}

#[test]
fn javascript_keeps_declarations_and_globals() {
    check(
        "run_javascript",
        &[
            (
                "let n = 1; const list = [1]; function up() { return ++n }\nclass Two { get() { return 2 } }",
                Result(Value::Null),
            ),
            ("free = 5; [up(), n, list, new Two().get()]", Result(json!([2, 2, [1], 2]))),
            ("n = 10; list.push(free); [up(), list]", Result(json!([11, [1, 5]]))),
            ("list = []", Error("TypeError")),
            ("var kept = 1; const { late } = null;", Error("TypeError")),
            ("[kept, typeof late, n]", Result(json!([1, "undefined", 11]))),
            ("function fails() {\n\n  throw new Error('far') }\nundefined", Result(Value::Null)),
            ("\nfails()", Error("Error: far (line 2)")),
            ("missing", Error("nor an earlier one of the session defines it (line 1)")),
            (
                "'use strict'; const strict = (function () { return this === undefined })(); strict",
                Result(json!(true)),
            ),
            ("strict && (function () { return this === globalThis })()", Result(json!(true))),
            ("input", Result(json!(5))),
            ("var call = tools.read_file({ path: '/workspace/in.txt' }); null.x", Error("TypeError")),
            ("(await tools.read_file({ path: '/workspace/in.txt' })).content", Result(json!("text"))),
            ("await call", Error("nothing can settle")),
        ],
    );
}

#[test]
fn the_shell_keeps_variables_functions_and_its_folder() {
    let fixture = Fixture::start_in(options(), Catalogue::empty().copy("run_shell"));
    let mut session = "new".to_owned();
    for (script, stdout, status) in [
        ("x=1; list=(a b); double() { echo $(($1 * 2)); }; mkdir /workspace/sub; cd /workspace/sub", "", 0),
        ("double 21; echo $x ${list[1]}; pwd", "42\n1 b\n/workspace/sub\n", 0),
        ("echo one > /tmp/note; exit 3", "", 3),
        ("cat /tmp/note; echo $x", "one\n1\n", 0),
    ] {
        let report = fixture.run(&call("run_shell", json!({ "script": script }), &session, 128, 60));
        session = handle_of(&report);
        assert_eq!(report["result"]["stdout"], stdout, "{report}");
        assert_eq!(report["result"]["exit_code"], status, "{report}");
    }
}

#[test]
fn a_program_beyond_its_time_or_memory_ends_the_session() {
    for (tool, endless, first, second) in [
        ("run_python", "while True: pass", "x = 1", "x"),
        ("run_javascript", "while (true);", "globalThis.x = 1", "x"),
    ] {
        if !has_interpreter(tool) {
            continue;
        }
        let fixture = Fixture::start_in(options(), Catalogue::empty().copy(tool));
        let program = |session: &str, code: &str| call(tool, json!({ "code": code }), session, 256, 5);
        let handle = handle_of(&fixture.run(&program("new", first)));
        let report = fixture.run(&program(&handle, endless));
        assert_eq!(
            (&report["status"], &report["session"]["state"]),
            (&json!("TIMEOUT"), &json!("ended")),
            "{report}"
        );
        expect_blocked(&fixture.ask(&program(&handle, second)), "session_lost");
        let report = fixture.run(&program("new", second));
        assert!(report["tool_error"]["message"].to_string().contains("is not defined"), "{report}");
    }
}

#[test]
fn artifacts_of_a_failed_program_come_with_its_own_call() {
    if !has_interpreter("run_python") {
        return;
    }
    let fixture = Fixture::start_in(options(), Catalogue::empty().copy("run_python"));
    let program = |session: &str, code: &str| call("run_python", json!({ "code": code }), session, 256, 60);
    let failed = fixture.run(&program("new", "open('/artifacts/a.txt', 'w').write('a')\n1 / 0"));
    assert_eq!(failed["artifacts"][0]["name"], "a.txt", "{failed}");
    assert_eq!(failed["tool_error"]["detail"]["artifacts"], json!(["a.txt"]), "{failed}");
    let large = "open('/artifacts/b', 'wb').write(bytes(600_000))\n1 / 0";
    let dropped = fixture.run(&program(&handle_of(&failed), large));
    let message = dropped["tool_error"]["message"].to_string();
    assert!(message.contains("1 new file(s) in /artifacts were not returned"), "{dropped}");
    let next = fixture.run(&program(&handle_of(&failed), "1"));
    assert_eq!(next["result"], json!({ "result": 1, "stdout": "" }), "{next}");
    assert!(dropped["artifacts"].is_null() && next["artifacts"].is_null(), "{dropped} {next}");
}
