//! The interpreters of the catalogue: programs in Python and JavaScript that call no tool.

use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An executor with an interpreter and nothing else; `None` if it could not be built here.
fn interpreter(tool: &str) -> Option<Executor> {
    if !has_interpreter(tool) {
        return None;
    }
    Some(Executor::start(Options::new().catalogue(&Catalogue::empty().copy(tool))))
}

/// Runs a program under a grant with these limits.
fn run_within(executor: &Executor, tool: &str, arguments: Value, memory_mb: u64, seconds: u64) -> Value {
    executor.rpc("a2g/execute", &execute_within(tool, arguments, memory_mb, seconds))
}

fn run(executor: &Executor, tool: &str, code: &str) -> Value {
    run_within(executor, tool, json!({ "code": code }), 256, 60)
}

/// The expected end of a program.
enum Expect {
    /// It returns this.
    Result(Value),
    /// It returns null and prints this.
    Stdout(&'static str),
    /// It returns what is no JSON: the text of it, and words of the note that says why.
    Text(&'static str, &'static str),
    /// It is refused with this code; the line of the error, if it has one; and words of its message.
    Error(&'static str, Option<u64>, &'static str),
}
use Expect::{Error, Result, Stdout, Text};

fn check(tool: &str, cases: &[(&str, Expect)]) {
    let Some(executor) = interpreter(tool) else { return };
    std::fs::write(executor.workspace().join("in.txt"), "héllo\n").expect("a file");
    for (code, expect) in cases {
        let answer = run(&executor, tool, code);
        let output = &answer["result"]["result"];
        let refused = &answer["error"]["data"]["report"]["tool_error"];
        match expect {
            Result(value) => assert_eq!(output["result"], *value, "{code}: {answer}"),
            Stdout(text) => {
                assert_eq!(*output, json!({ "result": null, "stdout": text }), "{code}: {answer}")
            }
            Text(text, words) => {
                assert_eq!(
                    (&output["result"], &output["text"]),
                    (&Value::Null, &json!(text)),
                    "{code}: {answer}"
                );
                let note = output["note"].as_str().unwrap_or_default();
                assert!(note.contains(words), "{code}: {answer}");
            }
            Error(tool_code, line, words) => {
                assert_eq!(refused["code"], *tool_code, "{code}: {answer}");
                assert_eq!(refused["detail"]["line"].as_u64(), *line, "{code}: {answer}");
                let message = refused["message"].as_str().expect("a message");
                assert!(message.contains(words), "{code}: {message}");
            }
        }
    }
}

#[test]
fn python_programs() {
    check(
        "run_python",
        &[
            ("", Result(Value::Null)),
            ("x = [1, 2]\nx + [3]", Result(json!([1, 2, 3]))),
            ("result = {'a': (1, None)}\n'unused'", Result(json!({ "a": [1, null] }))),
            ("print('hi', 1)\nimport sys; sys.stdout.buffer.write(b'!'); None", Stdout("hi 1\n!")),
            ("input", Result(Value::Null)),
            ("eval('1 + 1') + len(compile('x', 'f', 'eval').co_names)", Result(json!(3))),
            ("import sys; sys.exit()", Result(Value::Null)),
            (
                "def f(n):\n    return 1 / n\n\nf(0)",
                Error("python_error", Some(2), "ZeroDivisionError: division by zero (line 2)"),
            ),
            (
                "import json\njson.loads('{')",
                Error("python_error", Some(2), "JSONDecodeError: Expecting property name"),
            ),
            ("def f(): f()\nf()", Error("python_error", Some(1), "RecursionError")),
            ("import sys\nsys.exit('no')", Error("python_error", Some(2), "SystemExit: no")),
            ("x = 1\ny = (", Error("syntax_error", Some(2), "SyntaxError: '(' was never closed")),
            ("if 1:\npass", Error("syntax_error", Some(2), "IndentationError")),
            ("await tools.read_file()", Error("syntax_error", Some(1), "so leave out `await`")),
            ("return 1", Error("syntax_error", Some(1), "set `result`")),
            (
                "tools.start.read_file(path='/x')['content']",
                Error("python_error", Some(1), "use its .result()"),
            ),
            ("{'items': [0, 1, float('nan'), float('inf')]}", Result(json!({ "items": [0, 1, null, null] }))),
            ("{'items': [0, 1, b'x']}", Text("{'items': [0, 1, b'x']}", "result.items[2] is of type bytes")),
            ("a = []\na.append(a)\na", Text("[[...]]", "result[0] contains itself")),
            ("'\\ud800'", Text("'\\ud800'", "result has a lone surrogate")),
            ("class A:\n    def __repr__(self): return 'A!'\n[A()]", Text("[A!]", "result[0] is of type A")),
            ("{'a': {2, 1}}", Result(json!({ "a": [1, 2] }))),
            (
                "import datetime, decimal, pathlib\n\
                 [datetime.date(2026, 1, 2), decimal.Decimal('1.10'), pathlib.Path('/a')]",
                Result(json!(["2026-01-02", "1.10", "/a"])),
            ),
            ("async def f(): pass\nf()", Error("result_not_json", None, "run it with asyncio.run(...)")),
            (
                "print('seen')\nasync def f(): pass\nf()",
                Error("result_not_json", None, "\nIt had printed:\nseen\n"),
            ),
            ("print('seen')\n1 / 0", Error("python_error", Some(2), "(line 2)\nIt had printed:\nseen\n")),
            ("name = input('name? ')", Error("python_error", Some(1), "there is nobody to ask")),
            ("open('/workspace/in.txt').read()", Result(json!("héllo\n"))),
            (
                "from pathlib import Path\np = Path('/workspace/sub')\np.mkdir()\n(p / 'x').write_text('1')\n\
                 [str(one) for one in p.iterdir()]",
                Result(json!(["/workspace/sub/x"])),
            ),
            ("f = open('/workspace/open.txt', 'w')\nf.write('kept')", Result(json!(4))),
            ("open('/workspace/open.txt').read()", Result(json!("kept"))),
            (
                "open('/workspace/none')",
                Error(
                    "python_error",
                    Some(1),
                    "FileNotFoundError: No such file or directory: '/workspace/none' (line 1)",
                ),
            ),
            (
                "open('/etc/passwd')",
                Error(
                    "python_error",
                    Some(1),
                    "PermissionError: Permission denied: '/etc/passwd': the files that were granted to this run do not \
                     include it, or only for reading: it has files in '/workspace', and in memory in '/tmp' and \
                     '/artifacts' (line 1)",
                ),
            ),
            (
                // The number in the text is that of the module too.
                "import errno\ndef names(path):\n    try: open(path)\n    except OSError as error: return \
                 [errno.errorcode[n] for n in (error.errno, int(str(error).split()[1][:-1]))]\n\
                 [names('/etc/passwd'), names('/workspace/none')]",
                Result(json!([["EACCES", "EACCES"], ["ENOENT", "ENOENT"]])),
            ),
            (
                "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 1\nasyncio.run(f())",
                Result(json!(1)),
            ),
            (
                "import threading\nthreading.Thread(target=print).start()",
                Error("python_error", Some(2), "use tools.parallel([...])"),
            ),
            (
                "from concurrent.futures import ThreadPoolExecutor as P\nP().submit(print)",
                Error("python_error", Some(2), "run_python has no threads"),
            ),
            (
                "import subprocess\nsubprocess.run(['ls'])",
                Error("python_error", Some(2), "run_python starts no processes"),
            ),
            (
                "from concurrent.futures import ProcessPoolExecutor as P\nP().submit(print)",
                Error("python_error", Some(2), "run_python starts no processes"),
            ),
            ("import multiprocessing", Error("python_error", Some(1), "run_python starts no processes")),
            ("import os\nos.system('ls')", Error("python_error", Some(2), "run_python starts no processes")),
            (
                "import socket\nsocket.socket()",
                Error("python_error", Some(2), "such as tools.http_fetch(url=...)"),
            ),
            (
                "from urllib.request import urlopen\nurlopen('https://example.test')",
                Error("python_error", Some(2), "run_python has no sockets"),
            ),
            ("import requests", Error("python_error", Some(1), "run_python has no sockets")),
            ("import smtplib", Error("python_error", Some(1), "run_python has no sockets")),
            ("import numpy", Error("python_error", Some(1), "run_python does not have the module `numpy`")),
            ("import pandas", Error("python_error", Some(1), "so use `csv`, `sqlite3` and `collections`")),
            ("frame.head()", Error("python_error", Some(1), "a run has nothing of the runs before it")),
            ("open('in.txt').read()", Result(json!("héllo\n"))),
            (
                "open('none')",
                Error(
                    "python_error",
                    Some(1),
                    "directory: 'none': the working folder is '/workspace' (line 1)",
                ),
            ),
            ("!pip install requests", Error("syntax_error", Some(1), "nothing can be installed")),
            ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nA(1).x", Result(json!(1))),
            ("import random\nrandom.random() != 0.5", Result(json!(true))),
        ],
    );
}

#[test]
fn python_has_its_standard_library() {
    let names = "abc argparse array ast asyncio base64 bisect calendar cmath collections.abc concurrent.futures \
                 configparser contextlib copy csv dataclasses datetime decimal difflib email.message enum fnmatch \
                 fractions functools glob gzip hashlib heapq hmac html.parser http.client importlib.resources inspect \
                 io ipaddress itertools json logging.handlers math mimetypes operator os.path pathlib pickle pprint \
                 queue random re sched secrets shlex shutil sqlite3 statistics string struct tarfile tempfile textwrap \
                 threading time tomllib traceback types typing unicodedata unittest.mock urllib.parse uuid \
                 xml.etree.ElementTree zipfile zlib zoneinfo";
    let list: Vec<_> = names.split_whitespace().collect();
    let code =
        format!("import importlib\n[importlib.import_module(name).__name__ for name in {}]", json!(list));
    let Some(executor) = interpreter("run_python") else { return };
    let answer = run(&executor, "run_python", &code);
    let found = answer["result"]["result"]["result"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(found.len(), list.len());
    let denied = |answer: &Value| answer["result"]["usage"]["denied"].clone();
    assert_eq!(denied(&answer), json!([]), "no module is looked for in files: {answer}");
    let looks = "import mimetypes, zoneinfo\ntry: zoneinfo.ZoneInfo('Europe/Berlin')\nexcept \
                 zoneinfo.ZoneInfoNotFoundError: pass\nmimetypes.guess_type('a.csv')";
    let looked = run(&executor, "run_python", looks);
    assert_eq!(denied(&looked), json!([]), "nor a time zone or a list of media types: {looked}");
    let traces = "import json, traceback\nfor act in (lambda: open('/tmp/none'), lambda: json.loads('x')):\n    try: act()\n    \
                  except Exception: traceback.print_exc()";
    let traced = run(&executor, "run_python", traces);
    assert_eq!(denied(&traced), json!([]), "nor a source for a traceback: {traced}");
}

#[test]
fn python_has_a_working_folder_and_temporary_files() {
    let Some(executor) = interpreter("run_python") else { return };
    std::fs::write(executor.workspace().join("in.txt"), "text").expect("a file");
    let run = |code: &str, scope: Value| {
        let mut grant = manifest();
        grant["max_memory_mb"] = json!(256);
        grant["filesystem_scope"] = scope;
        let answer =
            executor.rpc("a2g/execute", &approved(intent("run_python", json!({ "code": code })), &grant));
        assert_eq!(answer["result"]["usage"]["denied"], json!([]), "{code}: {answer}");
        answer["result"]["result"]["result"].clone()
    };
    for (code, result) in [
        (
            "import os\n[os.getcwd(), os.path.abspath('a'), os.listdir()]",
            json!(["/workspace", "/workspace/a", ["in.txt"]]),
        ),
        (
            "from pathlib import Path\n[[str(p) for p in Path('.').iterdir()], Path('in.txt').read_text()]",
            json!([["in.txt"], "text"]),
        ),
        (
            "import os\nos.mkdir('sub')\nos.chdir('sub')\n[os.getcwd(), open('../in.txt').read()]",
            json!(["/workspace/sub", "text"]),
        ),
        (
            "import os, tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'x')\n    f.seek(0)\n    found = f.read().decode()\n\
             with tempfile.TemporaryDirectory() as folder:\n    os.chdir(folder)\n    open('a', 'w').write('y')\n    found += open(f'{folder}/a').read()\n\
             [found, tempfile.gettempdir(), os.listdir('/tmp')]",
            json!(["xy", "/tmp", []]),
        ),
    ] {
        assert_eq!(run(code, json!(["/workspace/**"])), result, "{code}");
    }
    let patterns = json!(["/workspace/*.txt"]);
    assert_eq!(
        run("import os\n[os.getcwd(), open('in.txt').read()]", patterns),
        json!(["/workspace", "text"])
    );
    // Temporary files are those of the run, and without a grant it has no others.
    let without = run("import os\nopen('a', 'w').write('1')\n[os.getcwd(), os.listdir('/tmp')]", json!([]));
    assert_eq!(without, json!(["/tmp", ["a"]]));
    let mut grant = manifest();
    grant["max_memory_mb"] = json!(256);
    grant["filesystem_scope"] = json!([]);
    let missing = intent("run_python", json!({ "code": "open('orders.csv')" }));
    let answer = executor.rpc("a2g/execute", &approved(missing, &grant));
    let words = "no folder is granted to this run, so relative paths start in '/tmp'";
    assert!(answer["error"].to_string().contains(words), "{answer}");
}

#[test]
fn python_returns_files_as_artifacts() {
    let Some(executor) = interpreter("run_python") else { return };
    let written = "import os, gzip\nfrom pathlib import Path\nos.makedirs('/artifacts/sub')\n\
                   Path('/artifacts/sub/a.csv').write_text('a,b')\n\
                   open('/artifacts/left-open.bin', 'wb').write(b'x')\n\
                   with gzip.open('/artifacts/b.gz', 'wb') as f: f.write(b'y')\n\
                   with gzip.open('/artifacts/b.gz') as f: read = f.read().decode()\n\
                   os.rename('/artifacts/b.gz', '/artifacts/c.gz')\n\
                   [read, sorted(os.listdir('/artifacts')), os.stat('/artifacts/sub/a.csv').st_size]";
    let answer = run(&executor, "run_python", written);
    let output = &answer["result"]["result"];
    assert_eq!(output["result"], json!(["y", ["c.gz", "left-open.bin", "sub"], 3]), "{answer}");
    assert_eq!(output["artifacts"], json!(["c.gz", "left-open.bin", "sub-a.csv"]), "{answer}");
    let sent = answer["result"]["artifacts"].as_array().expect("artifacts");
    let facts = sent.iter().map(|one| [one["name"].clone(), one["mime"].clone()]).collect::<Vec<_>>();
    let kind = "application/octet-stream";
    assert_eq!(json!(facts), json!([["c.gz", kind], ["left-open.bin", kind], ["sub-a.csv", "text/csv"]]));
    // They end with the run.
    let listed = run(&executor, "run_python", "import os\nos.listdir('/artifacts')");
    assert_eq!(listed["result"]["result"], json!({ "result": [], "stdout": "" }), "{listed}");
    for (code, words) in [
        ("open('/artifacts/none/x', 'w')", "No such file or directory"),
        ("open('/artifacts/a\\x1b', 'w').write('1')", "invalid"),
        ("import os\nos.symlink('/etc/passwd', '/artifacts/link')", "python_error"),
        ("open('/packages/x', 'w')", "Read-only file system"),
        (
            "with open('/artifacts/big', 'wb') as f:\n    for _ in range(20): f.write(bytes(1 << 20))",
            "output",
        ),
    ] {
        let refused = run(&executor, "run_python", code);
        assert!(refused["error"].is_object() && refused.to_string().contains(words), "{code}: {refused}");
    }
}

#[test]
fn javascript_programs() {
    check(
        "run_javascript",
        &[
            ("", Result(Value::Null)),
            ("const x = [1, 2];\n[...x, 3]", Result(json!([1, 2, 3]))),
            ("return { a: [1, null], b: undefined }", Result(json!({ "a": [1, null] }))),
            ("const x = await Promise.resolve(2); x * 2", Result(json!(4))),
            ("await new Promise((done) => setTimeout(done, 5, 1))", Result(json!(1))),
            ("console.log('hi', 1, { a: ['b'] })", Stdout("hi 1 { a: [ \"b\" ] }\n")),
            ("input", Result(Value::Null)),
            ("eval('1 + 1') + new Function('return 1')()", Result(json!(3))),
            ("new Date(0)", Result(json!("1970-01-01T00:00:00.000Z"))),
            (
                "function f(n) {\n  return n.x.y;\n}\nf({})",
                Error("javascript_error", Some(2), "TypeError: can't access"),
            ),
            (
                "\n\nthrow new RangeError('far')",
                Error("javascript_error", Some(3), "RangeError: far (line 3)"),
            ),
            ("throw 'text'", Error("javascript_error", None, "uncaught: \"text\"")),
            ("console.log('seen'); null.x", Error("javascript_error", Some(1), "\nIt had printed:\nseen\n")),
            (
                "console.log('seen'); [tools.read_file({ path: '/x' })]",
                Error("result_not_json", None, "\nIt had printed:\nseen\n"),
            ),
            ("function f() { return f() }\nf()", Error("javascript_error", Some(1), "too much recursion")),
            ("await new Promise(() => {})", Error("javascript_error", None, "nothing can settle")),
            ("let x = 1;\nlet y = (;", Error("syntax_error", Some(2), "SyntaxError: expected expression")),
            ("import fs from 'fs';", Error("syntax_error", Some(1), "run_javascript has no modules")),
            ("if (1) {", Error("syntax_error", Some(1), "SyntaxError")),
            ("return { items: [0, 1, NaN] }", Text("{ items: [ 0, 1, NaN ] }", "result.items[2] is NaN")),
            ("const a = []; a.push(a); a", Text("[ [Circular] ]", "result[0] contains itself")),
            ("'\\ud800'", Text("\"\\ud800\"", "result has a lone surrogate")),
            (
                "return { a: new Set([1]), b: 1n }",
                Text("{ a: Set(1) { 1 }, b: 1n }", "result.a is of type Set"),
            ),
            ("return new Map([['k', 1]])", Text("Map(1) { \"k\" => 1 }", "use Object.fromEntries(...)")),
            ("return () => 1", Text("[Function: (anonymous)]", "result is a function")),
            ("fs.read('/workspace/in.txt')", Result(json!("héllo\n"))),
            ("fs.write('/workspace/out.txt', 'ä'); fs.stat('/workspace/out.txt').size", Result(json!(2))),
            ("[...fs.readBytes('/workspace/out.txt')]", Result(json!([195, 164]))),
            (
                "fs.list('/workspace')",
                Result(json!([
                    { "name": "in.txt", "path": "/workspace/in.txt", "type": "file" },
                    { "name": "out.txt", "path": "/workspace/out.txt", "type": "file" },
                ])),
            ),
            (
                "fs.read('/workspace/none')",
                Error("javascript_error", Some(1), "there is no such file or folder (not_found)"),
            ),
            ("fs.read('/etc/passwd')", Error("javascript_error", Some(1), "(permission_denied)")),
            (
                "const r = tools.read_file({ path: '/x' })\nr.content",
                Error("javascript_error", Some(2), "write await"),
            ),
            ("({ ...tools.read_file({ path: '/x' }) })", Error("javascript_error", Some(1), "write await")),
            ("`${tools.read_file({ path: '/x' })}`", Error("javascript_error", Some(1), "write await")),
            ("return { a: tools.read_file({ path: '/x' }) }", Error("result_not_json", None, "use await")),
            ("tools.parallel([])", Error("javascript_error", Some(1), "await Promise.all")),
            ("fs.read('in.txt')", Error("javascript_error", Some(1), "the path is not absolute")),
            (
                "await fetch('https://example.test')",
                Error("javascript_error", Some(1), "such as tools.http_fetch({ url })"),
            ),
            ("new Worker('x')", Error("javascript_error", Some(1), "use Promise.all([...])")),
            ("frame.head()", Error("javascript_error", Some(1), "a run has nothing of the runs before it")),
            ("process.cwd()", Error("javascript_error", Some(1), "run_javascript is no Node.js")),
            ("require('fs')", Error("javascript_error", Some(1), "run_javascript has no modules")),
            ("await import('fs')", Error("javascript_error", Some(1), "run_javascript has no modules")),
            ("Math.random() !== 0.5", Result(json!(true))),
        ],
    );
}

#[test]
fn programs_end_at_their_limits() {
    for (tool, endless, bomb, print) in [
        (
            "run_python",
            "while True: pass",
            "x = []\nwhile True: x.append('y' * 1000000)",
            "while True: print('x' * 10000)",
        ),
        (
            "run_javascript",
            "while (true);",
            "const x = []; while (true) x.push(new Uint8Array(1e6).fill(1));",
            "while (true) console.log('x'.repeat(10000))",
        ),
    ] {
        let Some(executor) = interpreter(tool) else { return };
        let limit_of = |answer: &Value| answer["error"]["data"]["report"]["limit"].clone();
        let run = |code: &str, seconds| run_within(&executor, tool, json!({ "code": code }), 128, seconds);
        let answer = run(endless, 2);
        assert!(answer.to_string().contains("timeout"), "{tool}: {answer}");
        let answer = run(bomb, 60);
        let text = answer.to_string();
        assert!(
            text.contains("memory") || text.contains("MemoryError"),
            "{tool}: {:?} {text}",
            limit_of(&answer)
        );
        let answer = run(print, 60);
        assert!(answer.to_string().contains("output"), "{tool}: {answer}");
    }
}

#[test]
fn long_results_and_output_are_told_in_short() {
    for (tool, long, prints) in [
        ("run_python", "'x' * 5000000", "print('x' * 2000000)\n5"),
        ("run_javascript", "'x'.repeat(5000000)", "console.log('x'.repeat(2000000)); 5"),
    ] {
        let Some(executor) = interpreter(tool) else { return };
        let answer = run(&executor, tool, long);
        let output = &answer["result"]["result"];
        let note = output["note"].as_str().unwrap_or_default();
        assert!(
            note.starts_with("result has 5000000 characters, and is longer than 256 KiB"),
            "{tool}: {answer}"
        );
        assert_eq!(output["result"], Value::Null, "{tool}: {answer}");
        let answer = run(&executor, tool, prints);
        let output = &answer["result"]["result"];
        let printed = output["stdout"].as_str().unwrap_or_default();
        assert!(printed.len() < 100_100 && printed.contains("left out: print less"), "{tool}: {answer}");
        assert_eq!(output["result"], 5, "{tool}: {answer}");
    }
}

#[test]
fn what_a_program_says_beside_its_output_is_in_the_log() {
    let programs = [
        ("run_python", "import sys, logging\nprint('one\\ntwo', file=sys.stderr)\nlogging.warning('three')"),
        ("run_javascript", "console.error('one\\ntwo'); console.warn('three')"),
    ];
    for (tool, code) in programs {
        let Some(executor) = interpreter(tool) else { return };
        let answer = run(&executor, tool, code);
        let logs = answer["result"]["logs"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        let lines: Vec<_> = logs.iter().map(|line| line["message"].as_str().expect("a text")).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0] == "one" && lines[1] == "two" && lines[2].contains("three"), "{lines:?}");
        assert_eq!(answer["result"]["result"]["stdout"], "", "{answer}");
    }
}

/// The modules of an interpreter that need no component, with calls that a script answers.
fn test_natively(mut command: Command) {
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", source("run_python"));
    let output = run_to_end(command, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

fn source(tool: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools").join(tool)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/code").join(name)
}

#[test]
fn python_calls_tools() {
    let Some(python) = client_folder("componentize-py", "python/bin/python") else { return };
    let mut command = Command::new(python);
    command.arg(script("tools_test.py"));
    test_natively(command);
}

#[test]
fn wheels_are_checked_and_files_in_memory_are_as_others() {
    let Some(python) = client_folder("componentize-py", "python/bin/python") else { return };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/crates/tool/src");
    let unpack = sources.join("packages/unpack.py").canonicalize().expect("a file");
    let mut command = Command::new(python);
    // Without the packages of the environment, which import modules before the files in memory are there.
    command.arg("-S").arg(script("packages_test.py")).arg(unpack);
    test_natively(command);
}

#[test]
fn javascript_calls_tools() {
    let Some(node) = client_folder("node of npm", "node22/node_modules/node/bin/node") else { return };
    let mut command = Command::new(node);
    command.arg(script("tools_test.mjs")).arg(source("run_javascript").canonicalize().expect("a folder"));
    test_natively(command);
}
