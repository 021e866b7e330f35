//! The attempts of both Pythons and the shell, as one table.
//!
//! Each has a program of each language, or the reason why that has none. The programs of both Pythons are the
//! same, but where one of them has other modules or other errors.

use super::python::PYTHON;
use super::{Case, ESCAPES, Failure, Limit, OUTSIDE, Refused, Returns, Status, Tells, case};
use harness::Language;
use serde_json::{Value, json};

struct Attempt {
    name: &'static str,
    python: Program,
    science: Program,
    shell: Program,
}

enum Program {
    Written(Case),
    /// The attempt cannot be expressed, for this reason.
    Absent(&'static str),
}
use Program::{Absent, Written};

const NO_PACKAGES: &str = "it has no packages";
const NO_PICTURES: &str = "it has neither artifacts nor pictures";
/// The words of the shell about a file outside the grant.
const ELSEWHERE: &str = "this run has files in /workspace only";
const NO_MEMORY: &str = "the program needs more memory than this run has";

fn attempt(name: &'static str, [python, science]: [Program; 2], shell: Program) -> Attempt {
    Attempt { name, python, science, shell }
}

fn both(case: Case) -> [Program; 2] {
    apart(case.clone(), case)
}

fn apart(python: Case, science: Case) -> [Program; 2] {
    [Written(python), Written(science.loosely())]
}

fn science(case: Case) -> [Program; 2] {
    [Absent(NO_PACKAGES), Written(case.loosely())]
}

fn script(code: &'static str, end: super::End) -> Program {
    Written(case(code, end).loosely())
}

fn python_error(code: &'static str, words: &'static str) -> Case {
    case(code, Refused(PYTHON, words))
}

fn refused(code: &'static str) -> Case {
    python_error(code, "PermissionError")
}

/// The programs of a language.
pub(super) fn of(language: Language) -> Vec<Case> {
    let groups = [
        files(),
        files_of_more_kinds(),
        network_and_processes(),
        endless(),
        floods(),
        memory(),
        calls(),
        artifacts_and_pictures(),
    ];
    groups.into_iter().flatten().filter_map(|attempt| attempt.program_in(language)).collect()
}

impl Attempt {
    fn program_in(self, language: Language) -> Option<Case> {
        let name = self.name;
        let program = match language {
            Language::Python => self.python,
            Language::SciencePython => self.science,
            Language::Shell => self.shell,
            Language::JavaScript => Absent("it has a table of its own"),
        };
        match program {
            Written(case) => Some(Case { name, ..case }),
            Absent(reason) => {
                eprintln!("no program for `{name}` in {language:?}: {reason}");
                None
            }
        }
    }
}

fn files() -> Vec<Attempt> {
    vec![
        attempt(
            "reads above its folder",
            both(
                refused("open('/workspace/../secret.txt')").denied(&[("/workspace/../secret.txt", ESCAPES)]),
            ),
            script("cat /workspace/../secret.txt", Status(1, ELSEWHERE)),
        ),
        attempt(
            "reads above its folder by way of a new one",
            both(
                refused("import os\nos.mkdir('/workspace/sub')\nopen('/workspace/sub/../../secret.txt')")
                    .denied(&[("/workspace/sub/../../secret.txt", ESCAPES)]),
            ),
            script("mkdir sub; cat sub/../../etc/passwd", Status(1, ELSEWHERE)),
        ),
        attempt(
            "reads a file of the system",
            both(refused("open('/etc/passwd')").denied(&[("/etc/passwd", OUTSIDE)])),
            script("cat /etc/passwd", Status(1, ELSEWHERE)),
        ),
        attempt(
            "reads the environment of its process",
            both(refused("open('/proc/self/environ')").denied(&[("/proc/self/environ", OUTSIDE)])),
            script("cat /proc/self/environ", Status(1, ELSEWHERE)),
        ),
        attempt(
            "reads the environment of the server",
            both(case("import os\n[name for name in os.environ if 'HOSTILE' in name]", Returns(json!([])))),
            script("echo \"[$A2G_HOSTILE_SECRET]\"", Status(0, "[]\n")),
        ),
        attempt(
            "reads in a folder whose name begins alike",
            both(
                refused("open('/workspacefoo/secret.txt')").denied(&[("/workspacefoo/secret.txt", OUTSIDE)]),
            ),
            script("cat /workspacefoo/secret.txt", Status(1, ELSEWHERE)),
        ),
        attempt(
            "reads through a link that leads out",
            both(
                refused("open('/workspace/planted/secret.txt')")
                    .denied(&[("/workspace/planted/secret.txt", ESCAPES)]),
            ),
            script("cat planted/secret.txt", Status(1, "cat: ")),
        ),
        attempt(
            "makes a link that leads out",
            both(
                refused("import os\nos.symlink('/etc/passwd', '/workspace/link')")
                    .denied(&[("/workspace/link", "link")]),
            ),
            script("ln -s /etc/passwd link; cat link", Status(1, "copy the file")),
        ),
        attempt(
            "writes above its folder",
            both(refused("open('/workspace/../out.txt', 'w')").denied(&[("/workspace/../out.txt", ESCAPES)])),
            script("echo x > ../out.txt", Status(1, ELSEWHERE)),
        ),
        attempt(
            "moves a file out of its folder",
            both(
                refused("import os\nos.rename('/workspace/in.txt', '/workspace/../out.txt')")
                    .denied(&[("/workspace/in.txt", ESCAPES), ("/workspace/../out.txt", ESCAPES)]),
            ),
            script("mv in.txt ../out.txt; cat in.txt", Status(0, "text")),
        ),
    ]
}

const WALK: &str = "import os\nlist(os.walk('/'))";
const REMOVE: &str = "import shutil\nshutil.rmtree('/', ignore_errors=True)";
/// Opens a file by the functions of packages, of which some are in C, and returns those that could.
const OPEN_BY_PACKAGES: &str = r#"
import numpy as np, pandas as pd
from lxml import etree
from PIL import Image
found = []
for read in (np.fromfile, np.load, pd.read_csv, pd.read_pickle, Image.open, etree.parse):
    try:
        read("/etc/passwd")
        found.append(read.__name__)
    except Exception:
        pass
found
"#;

fn files_of_more_kinds() -> Vec<Attempt> {
    vec![
        attempt(
            "writes to a device",
            both(refused("open('/dev/null', 'w')").denied(&[("/dev/null", OUTSIDE)])),
            script("echo x > /dev/sda", Status(1, ELSEWHERE)),
        ),
        attempt(
            "lists all files",
            apart(case(WALK, Returns(json!([]))).denied(&[("/.", OUTSIDE)]), case(WALK, Returns(json!([])))),
            script("ls /", Status(0, "workspace")),
        ),
        attempt(
            "removes all files",
            apart(
                case(REMOVE, Returns(Value::Null)).denied(&[("/.", OUTSIDE)]),
                case(REMOVE, Returns(Value::Null)),
            ),
            script("rm -rf /; cat /workspace/in.txt", Status(0, "text")),
        ),
        attempt(
            "reads a blocked path",
            both(
                refused("open('/workspace/blocked/in.txt')")
                    .under(&["blocked_path:/workspace/blocked/**"])
                    .loosely(),
            ),
            Written(
                case("cat blocked/in.txt", Status(1, "cat: "))
                    .under(&["blocked_path:/workspace/blocked/**"])
                    .loosely(),
            ),
        ),
        attempt(
            "changes what it may only read",
            both(case(super::CHANGES[0].1, Returns(json!(0))).under(&["read_only"]).loosely()),
            Written(
                case(
                    "echo x > in.txt; rm -f in.txt; mv in.txt out.txt; mkdir d; cat in.txt",
                    Status(0, "text"),
                )
                .under(&["read_only"])
                .loosely(),
            ),
        ),
        attempt(
            "loads a pickle that opens a file",
            both(
                refused("import pickle\npickle.loads(b'cbuiltins\\nopen\\n(V/etc/passwd\\ntR.')")
                    .denied(&[("/etc/passwd", OUTSIDE)]),
            ),
            Absent("it loads no objects"),
        ),
        attempt(
            "opens a file by packages",
            science(case(OPEN_BY_PACKAGES, Returns(json!([]))).denied(&[("/etc/passwd", OUTSIDE)])),
            Absent(NO_PACKAGES),
        ),
    ]
}

fn network_and_processes() -> Vec<Attempt> {
    const NO_SOCKETS: &str = "run_python has no sockets";
    const NO_PROCESSES: &str = "run_python starts no processes";
    const SOCKET: &str = "import socket\nsocket.socket()";
    const LOOK_UP: &str = "import socket\nsocket.getaddrinfo('example.test', 80)";
    const REQUEST: &str = "import http.client\nhttp.client.HTTPConnection('127.0.0.1').request('GET', '/')";
    const FORKS: &str = "import os\nwhile True: os.fork()";
    const PROGRAM: &str = "import subprocess\nsubprocess.run(['ls'])";
    const THREAD: &str = "import threading\nthreading.Thread(target=print).start()";
    const ABORT: &str = "import os\nos.abort()";
    vec![
        attempt(
            "opens a socket",
            both(python_error(SOCKET, NO_SOCKETS)),
            script("echo x > /dev/tcp/127.0.0.1/80", Status(1, "tool http_fetch")),
        ),
        attempt(
            "looks up a name",
            both(python_error(LOOK_UP, NO_SOCKETS)),
            script("dig example.test", Status(127, "tool http_fetch")),
        ),
        attempt(
            "makes a request",
            both(python_error(REQUEST, NO_SOCKETS)),
            script("curl http://127.0.0.1", Status(127, "tool http_fetch")),
        ),
        attempt(
            "forks without end",
            both(python_error(FORKS, NO_PROCESSES)),
            script(":(){ :|:& };:", Limit("output")),
        ),
        attempt(
            "starts a program",
            both(python_error(PROGRAM, NO_PROCESSES)),
            script("$(printf '\\x2fbin\\x2fls')", Status(127, "")),
        ),
        attempt(
            "sends a signal",
            both(python_error("import os\nos.kill(1, 9)", "AttributeError")),
            script("kill -9 1; kill -9 $$; echo alive", Status(137, "")),
        ),
        attempt(
            "starts a thread",
            both(python_error(THREAD, "use tools.parallel([...])")),
            Absent("its background jobs run in turn, on one thread"),
        ),
        attempt(
            "aborts",
            apart(case(ABORT, Failure("the tool trapped")), case(ABORT, Failure("the tool"))),
            Absent("a script ends with a status alone"),
        ),
    ]
}

/// Each module imports two others, none of which has been imported.
const IMPORTS: &str = r#"
import importlib.machinery, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, Finder) if name.startswith("bomb") else None
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        number = int(module.__name__[4:])
        __import__(f"bomb{2 * number}")
        __import__(f"bomb{2 * number + 1}")
sys.meta_path.insert(0, Finder)
import bomb1
"#;
const ENTITIES: &str = r#"
import xml.etree.ElementTree as tree
tree.fromstring(
    '<!DOCTYPE l [<!ENTITY a "' + 'x' * 1000 + '"><!ENTITY b "' + '&a;' * 1000 + '"><!ENTITY c "'
    + '&b;' * 1000 + '">]><l>&c;</l>'
)
"#;

/// The interpreter may find its stack too deep late, and then aborts.
fn imports_without_end() -> Case {
    let case = python_error(IMPORTS, "RecursionError").loosely();
    case.or(Limit("stack")).or(Failure("the tool trapped"))
}

fn endless() -> Vec<Attempt> {
    const DEEP_DATA: &str = "import json\njson.loads('[' * 100000)";
    vec![
        attempt(
            "loops",
            both(case(
                "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
                Limit("time"),
            )),
            script("while :; do :; done", Limit("time")),
        ),
        attempt(
            "computes without end in one step",
            both(case("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", Limit("time"))),
            script("for ((;;)); do x=1; done", Limit("time")),
        ),
        attempt(
            "sleeps",
            both(case("import time\ntime.sleep(1e9)", Limit("time"))),
            script("sleep 60", Limit("time")),
        ),
        attempt(
            "recurses",
            both(python_error("def f(): f()\nf()", "RecursionError")),
            script("f() { f; }; f", Refused("shell_limit", "")),
        ),
        attempt(
            "lets a library recurse",
            apart(
                case(DEEP_DATA, Limit("stack")),
                case(DEEP_DATA, Limit("stack")).or(Refused(PYTHON, "RecursionError")),
            ),
            script("jq -n 'def f: 1 + f; f'", Failure("trapped")),
        ),
        attempt(
            "imports without end",
            both(imports_without_end()),
            script("echo 'sh ./again' > again; sh ./again", Status(2, "maximum nesting depth exceeded")),
        ),
        attempt(
            "expands entities",
            both(python_error(ENTITIES, "limit on input amplification factor")),
            Absent("it reads no XML"),
        ),
    ]
}

fn floods() -> Vec<Attempt> {
    /// Calls that nothing waits for, by the modules of the interpreters themselves.
    const CALLS: &str = "import wit_world.imports.calls as calls\nwhile True: calls.start('none', '{}')";
    const SCIENCE_CALLS: &str = "import a2g_door\nwhile True: a2g_door.start('none', '{}')";
    const NOT_WAITED_FOR: &str = "`start`: 20000 calls were started and not waited for";
    vec![
        attempt(
            "floods the output",
            both(case("import os\nwhile True: os.write(1, b'x' * 100000)", Limit("output"))),
            script("for i in {1..9999}; do printf '%200s' ''; done", Limit("output")),
        ),
        attempt(
            "floods the log",
            both(case("import os\nwhile True: os.write(2, b'x' * 100000)", Limit("output"))),
            script("for i in {1..9999}; do printf '%200s' '' >&2; done", Limit("output")),
        ),
        attempt(
            "returns too much",
            both(case("['x' * 1000] * 20000", Tells("is longer than 256 KiB as JSON"))),
            script(
                "x=$(printf '%9999s' ''); for i in {1..500}; do echo \"$x\"; done",
                Refused("output_too_large", ""),
            ),
        ),
        attempt(
            "opens files without end",
            both(case("x = []\nwhile True: x.append(open('/workspace/in.txt'))", Limit("handles"))),
            Absent("it keeps no files open"),
        ),
        attempt(
            "makes files without end",
            both(case(
                "n = 0\nwhile True:\n    open(f'/workspace/new-{n}', 'w').close()\n    n += 1",
                Limit("created"),
            )),
            script("for i in {1..9999}; do echo x > new-$i; done", Limit("created")),
        ),
        attempt(
            "writes without end",
            both(case("f = open('/workspace/big', 'wb')\nwhile True: f.write(bytes(1 << 20))", {
                Limit("written_bytes")
            })),
            script(
                "x=$(printf '%9999s' ''); for i in {1..9999}; do echo \"$x\" >> big; done",
                Limit("written_bytes"),
            ),
        ),
        attempt(
            "makes a sparse file",
            both(case("open('/workspace/sparse', 'wb').truncate(1 << 40)", Limit("written_bytes"))),
            script("truncate -s 1000000000000 sparse", Status(1, "truncate: target size")),
        ),
        attempt(
            "draws random bytes without end",
            both(case("import os\nwhile True: os.urandom(1 << 20)", Limit("random_bytes"))),
            script("while :; do cat /dev/urandom > /dev/null; done", Limit("random_bytes")),
        ),
        attempt(
            "starts calls without end",
            apart(case(CALLS, Failure(NOT_WAITED_FOR)), case(SCIENCE_CALLS, Failure(NOT_WAITED_FOR))),
            Absent("it waits for each call"),
        ),
    ]
}

/// An end for lack of memory. What is left of it may be too little for the words of an error, and code in C++
/// that is refused it may end the interpreter.
fn out_of_memory(code: &'static str, words: &'static str) -> Case {
    python_error(code, words).or(Limit("memory"))
}

fn memory() -> Vec<Attempt> {
    const TABLES: &str = "import numpy as np, pandas as pd\nx = []\n\
                          while True: x.append(pd.DataFrame({'a': np.ones(1 << 20)}))";
    const ARRAY: &str = "import numpy as np\nnp.zeros((31623, 31623), np.uint8)";
    const PICTURE: &str = "from PIL import Image\nImage.new('RGB', (31623, 31623))";
    const FIGURE: &str = "import matplotlib.pyplot as plt\nplt.figure(figsize=(316.23, 316.23))";
    vec![
        attempt(
            "takes much memory at once",
            both(python_error("bytearray(10**9)", NO_MEMORY)),
            script("x=a; while :; do x=$x$x; done", Refused("out_of_memory", "")),
        ),
        attempt(
            "takes memory without end",
            both(out_of_memory("x = []\nwhile True: x.append(bytearray(1 << 20))", NO_MEMORY)),
            script("x=$(printf '%9999s' ''); for i in {1..9999}; do echo \"$x\"; done", Limit("memory")),
        ),
        attempt("fills memory with tables", science(out_of_memory(TABLES, NO_MEMORY)), Absent(NO_PACKAGES)),
        attempt(
            "makes an array of 10^9 pixels",
            science(out_of_memory(ARRAY, NO_MEMORY)),
            Absent(NO_PICTURES),
        ),
        attempt(
            "makes a picture of 10^9 pixels",
            science(out_of_memory(PICTURE, "MemoryError")),
            Absent(NO_PICTURES),
        ),
        attempt(
            "leaves a figure of 10^9 pixels open",
            science(
                out_of_memory(FIGURE, "MemoryError")
                    .or(Refused(PYTHON, "cannot be saved"))
                    .or(Failure("the tool trapped")),
            ),
            Absent(NO_PICTURES),
        ),
        attempt(
            "reads a picture of 10^9 pixels",
            science(python_error(BOMB, "DecompressionBombError")),
            Absent(NO_PICTURES),
        ),
    ]
}

/// A PNG whose head says that it has 10^9 pixels.
const BOMB: &str = r#"
import io, struct, zlib
from PIL import Image
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
head = chunk(b"IHDR", struct.pack(">IIBBBBB", 31623, 31623, 8, 2, 0, 0, 0))
Image.open(io.BytesIO(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b""))))
"#;

/// Calls that are refused before the governor is asked.
fn calls() -> Vec<Attempt> {
    const CALL: &str = "tools.call('harmless', {})";
    const CALL_IN_SCRIPT: &str = "tool harmless '{}'";
    /// A verdict that allows a program another tool, or no call at all.
    const OTHER: &[&str] = &["calls:read_file"];
    const NONE: &[&str] = &["max_calls:0"];
    vec![
        attempt(
            "calls a tool that there is not",
            both(python_error("tools.none()", "(unknown_tool)")),
            script("tool none '{}'", Status(1, "unknown_tool")),
        ),
        attempt(
            "calls a tool that it may not call",
            both(python_error(CALL, "(not_allowed)").under(OTHER)),
            Written(case(CALL_IN_SCRIPT, Status(1, "not_allowed")).under(OTHER).loosely()),
        ),
        attempt(
            "makes more calls than it may",
            both(python_error(CALL, "(calls_exhausted)").under(NONE)),
            Written(case(CALL_IN_SCRIPT, Status(1, "calls_exhausted")).under(NONE).loosely()),
        ),
    ]
}

/// An artifact that does harm to a program that loads it.
const EVIL_PICKLE: &str = r#"
import pickle
class Evil:
    def __reduce__(self):
        return eval, ("open('/workspace/owned', 'w')",)
open("/artifacts/evil.pkl", "wb").write(pickle.dumps(Evil()))
result = "written"
"#;

fn artifacts_and_pictures() -> Vec<Attempt> {
    let attempts = [
        (
            "returns too large an artifact",
            case(
                "with open('/artifacts/big', 'wb') as f:\n    for _ in range(20): f.write(bytes(1 << 20))",
                Limit("output"),
            ),
        ),
        (
            "returns too many artifacts",
            case("for n in range(11): open(f'/artifacts/{n}', 'w').close()", Limit("artifacts")),
        ),
        (
            "returns an artifact whose name controls a terminal",
            case(
                "open('/artifacts/\\x1b[31mred\\u202e', 'w').close()",
                Refused("invalid", "cannot be returned as an artifact"),
            ),
        ),
        ("writes above the artifacts", refused("open('/artifacts/../out.txt', 'w')").loosely()),
        (
            "makes a link in the artifacts",
            refused("import os\nos.symlink('/etc/passwd', '/artifacts/link')").loosely(),
        ),
        ("returns a pickle that opens a file", case(EVIL_PICKLE, Returns(json!("written")))),
    ];
    attempts.map(|(name, case)| attempt(name, both(case), Absent(NO_PICTURES))).into()
}
