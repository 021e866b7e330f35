//! The hostile programs in Python with the standard library, beside those of `attempts`.

use super::{Case, ESCAPES, Failure, Limit, OUTSIDE, Refused, Returns, Tells, case};
use serde_json::{Value, json};

pub(super) const PYTHON: &str = "python_error";

pub(super) fn cases() -> Vec<Case> {
    [files(), network_and_processes(), endless(), floods(), results(), internals()].concat()
}

fn files() -> Vec<Case> {
    let refused = |code| case(code, Refused(PYTHON, "PermissionError"));
    vec![
        refused("import os\nos.chdir('/workspace')\nopen('../secret.txt')")
            .denied(&[("/workspace/../secret.txt", ESCAPES)]),
        refused("open('../secret.txt')").denied(&[("/workspace/../secret.txt", ESCAPES)]),
        refused("import os\nos.chdir('..')\nopen('secret.txt')").denied(&[("/workspace/..", ESCAPES)]),
        refused("import os\nos.chdir('/tmp')\nopen('../etc/passwd')").denied(&[("/etc/passwd", OUTSIDE)]),
        refused("import os\nfd = os.open('/workspace', os.O_RDONLY)\nos.open('../secret.txt', os.O_RDONLY, dir_fd=fd)")
            .denied(&[("…/../secret.txt", ESCAPES)]),
        refused("import os\nos.link('/workspace/in.txt', '/workspace/link')")
            .denied(&[("/workspace/in.txt", "link"), ("/workspace/link", "link")]),
        refused("import os\nos.rename('/workspace/../secret.txt', '/workspace/in.txt')")
            .denied(&[("/workspace/../secret.txt", ESCAPES), ("/workspace/in.txt", ESCAPES)]),
        refused("import os\nos.rename('/workspace/in.txt', '/srv/out.txt')").denied(&[("/srv/out.txt", OUTSIDE)]),
        case(
            "import os\nos.rename('/workspace/in.txt', '/tmp/out.txt')",
            Refused(PYTHON, "OSError: Cross-device link"),
        ),
        // Whatever is open in the component.
        case(
            "import os\nfound = []\nfor fd in range(50):\n    try: found.append(os.open('../secret.txt', os.O_RDONLY, \
             dir_fd=fd))\n    except OSError: pass\nfound",
            Returns(json!([])),
        )
        .denied(&[("/workspace/../secret.txt", ESCAPES), ("/../secret.txt", OUTSIDE)]),
        case("import os\nos.mkfifo('/workspace/fifo')", Refused(PYTHON, "AttributeError")),
    ]
}

/// Modules of C that were changed are made anew, so that what they offer is as it was.
fn network_and_processes() -> Vec<Case> {
    vec![
        case(
            "import _imp, importlib.machinery\nspec = importlib.machinery.BuiltinImporter.find_spec('_socket')\n\
             made = _imp.create_builtin(spec)\n_imp.exec_builtin(made)\nmade.socket(2, 1).connect(('127.0.0.1', 80))",
            Refused(PYTHON, "OSError: Protocol not supported"),
        ),
        case(
            "import _imp, importlib.machinery\nspec = importlib.machinery.BuiltinImporter.find_spec('_socket')\n\
             made = _imp.create_builtin(spec)\n_imp.exec_builtin(made)\nmade.getaddrinfo('example.test', 80)",
            Failure("this run has no network: the verdict does not grant it"),
        )
        .denied(&[("wasi:sockets/instance-network", "network_off")]),
        case(
            "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', 80))",
            Refused(PYTHON, "run_python has no sockets"),
        ),
        case(
            "import _imp, importlib.machinery\nspec = importlib.machinery.BuiltinImporter.find_spec('_thread')\n\
             made = _imp.create_builtin(spec)\n_imp.exec_builtin(made)\nmade.start_new_thread(print, ())",
            Refused(PYTHON, "RuntimeError: can't start new thread"),
        ),
        case("import posix\nposix.fork()", Refused(PYTHON, "AttributeError")),
        case("import os\nos.execv('/bin/sh', ['sh'])", Refused(PYTHON, "run_python starts no processes")),
        case("import os\nos._exit(0)", Failure("the tool exited with code 0")),
        // A lock that is held cannot become free without another thread.
        case("import queue\nqueue.Queue().get()", Failure("the tool trapped")),
        case(
            "import asyncio\nasyncio.new_event_loop().run_forever()",
            Refused(PYTHON, "the program waits for something that never comes"),
        ),
        case("async def f(): return 1\nf()", Refused("result_not_json", "is of type coroutine")),
    ]
}

fn endless() -> Vec<Case> {
    vec![
        case("class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", Limit("time")),
        case("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()", Limit("stack")),
        case("x = []\nfor _ in range(10**5): x = [x]\ndel x", Limit("stack")),
        case("eval('(' * 10**5 + ')' * 10**5)", Refused(PYTHON, "MemoryError: Parser stack overflowed")),
        case("s = 'exec(s)'\nexec(s)", Refused(PYTHON, "RecursionError")),
    ]
}

fn floods() -> Vec<Case> {
    vec![
        case("raise ValueError('x' * 10**6)", Refused(PYTHON, "characters ...]")),
        case("'x' * (40 << 20)", Tells("is longer than 256 KiB as JSON")),
    ]
}

pub(super) fn results() -> Vec<Case> {
    let no_json = |code, words| case(code, Tells(words));
    vec![
        no_json("{'\\ud800': 1}", "has a key that has a lone surrogate"),
        no_json("class S(str):\n    def encode(self, *_): return b''\nS('\\ud800')", "lone surrogate"),
        no_json("class D(dict):\n    def items(self): return [('a', 1), ('a', 2)]\nD(x=1)", "two keys"),
        no_json("x = []\nfor _ in range(100): x = [x]\nx", "is below 46 levels"),
        no_json("x = []\nfor _ in range(10**5): x = [b'', x]\nx", "result[0] is of type bytes"),
        no_json("class E:\n    def __getattr__(self, name): raise KeyError\nE()", "is of type E"),
        no_json("class E:\n    def __fspath__(self): raise KeyError\nE()", "whose own methods fail"),
        case("[1e999]", Returns(json!([null]))),
        no_json("class E:\n    def __repr__(self): raise SystemExit\nE()", "is of type E"),
        no_json("class E:\n    def __repr__(self): return '\\ud800' * 10**6\nE()", "is of type E"),
        case("class E:\n    def __repr__(self):\n        while True: pass\nE()", Limit("time")),
        case("class I(int):\n    def __repr__(self): return '5}, {'\nI(5)", Returns(json!(5))),
        case("print('\\ud800')", Returns(Value::Null)),
        // A terminal is told nothing by the text of an exception, or by its name.
        case(
            "raise ValueError('\\x1b[31mred\\u202eevil\\0\\ufeff')",
            Refused(PYTHON, "ValueError: \u{1b}[31mred\u{202e}"),
        ),
        case(
            "raise type('\\x1b[31mE\\u202e', (Exception,), {})('x')",
            Refused(PYTHON, "\u{1b}[31mE\u{202e}: x"),
        ),
        case(
            "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E",
            Refused(PYTHON, "cannot be made"),
        ),
        case("raise KeyboardInterrupt", Refused(PYTHON, "KeyboardInterrupt")),
    ]
}

/// The parts of run_python itself, which a program can reach and change.
fn internals() -> Vec<Case> {
    vec![
        case(
            "import a2g_program\nraise a2g_program.Failure('denied', 'm', None)",
            Refused(PYTHON, "Failure: m"),
        ),
        case(
            "import componentize_py_types as t, wit_world.imports.types as w\n\
             raise t.Err(w.ToolError('denied', 'm', None))",
            Refused(PYTHON, "Err: ToolError(code='denied'"),
        ),
        case("import json\njson.dumps = lambda *a, **k: '1}, \"x\": {'\n5", Failure("is not one JSON value")),
        case(
            "import a2g_json\na2g_json.clean = lambda value, *_: value\nfloat('nan')",
            Tells("own methods fail"),
        ),
        case("import a2g_json\na2g_json.encode = lambda *a: 'NaN'\n5", Failure("is not one JSON value")),
        case("import sys\nsys.modules.clear()\n5", Returns(json!(5))),
        case("import ctypes", Refused(PYTHON, "does not have the module `ctypes`")),
    ]
}
