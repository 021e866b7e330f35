//! Copies of `run_python` that have packages: wheels that are made here, without a network.

use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The maximum time for making and compiling a component on a busy machine.
const MAX_MAKE: Duration = Duration::from_secs(900);
/// Makes wheels in a folder: `hum`, which needs `num-words`, and others that are refused.
const MAKE_WHEELS: &str = r#"
import base64, hashlib, sys, zipfile
def wheel(name, tag, needs, files):
    info = f"{name}-1.0.dist-info"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    lines = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}"
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}-1.0-{tag}.whl", "w") as archive:
        record = f"{info}/RECORD,,\n"
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{path},sha256={digest},{len(text.encode())}\n"
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", record)
pure = "py3-none-any"
wheel("hum", pure, ["num-words"], {
    "hum/__init__.py": "from importlib import resources\nfrom num_words import NUMBERS\n"
        "def say(n): return resources.files(__name__).joinpath('hello.txt').read_text() + NUMBERS[n]\n",
    "hum/hello.txt": "hum ",
})
wheel("num_words", pure, [], {"num_words.py": "NUMBERS = ['zero', 'one', 'two']\n"})
wheel("fast", "cp314-cp314-manylinux_2_17_x86_64", [], {"fast/__init__.py": ""})
wheel("httpx", pure, [], {"httpx.py": ""})
wheel("needs_httpx", pure, ["httpx"], {"needs_httpx.py": ""})
wheel("escapes", pure, [], {"../escapes.py": ""})
wheel("hides", pure, [], {"hides/fast.so": ""})
"#;

/// A folder with the wheels, and the PATH on which pip and componentize-py are; `None` if they are not
/// installed.
fn wheels() -> Option<(tempfile::TempDir, String)> {
    let program = client_folder("componentize-py, for packages", "python/bin/componentize-py")?;
    let bin = program.parent().expect("a folder");
    let folder = tempfile::tempdir().expect("a folder");
    let mut make = Command::new(bin.join("python3"));
    make.args(["-I", "-c", MAKE_WHEELS]).arg(folder.path());
    let made = run_to_end(make, b"");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let machine = std::env::var("PATH").expect("a PATH");
    Some((folder, format!("{}:{machine}", bin.display())))
}

/// Runs `tool add` with these words, which has to end with this code, and returns what it says.
fn add(tools: &Path, path: &str, words: &[&str], from: &Path, code: i32) -> String {
    let mut command = Command::new(program());
    command.args(["tool", "add"]).args(words).arg("--from").arg(from).arg("--tools").arg(tools);
    command.env("PATH", path).env("XDG_CACHE_HOME", cache_home());
    let output = run_to_end_within(command, b"", MAX_MAKE);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    said
}

fn run(executor: &Executor, code: &str) -> Value {
    executor.rpc("a2g/execute", &execute_within("python_hum", json!({ "code": code }), 256, 30))
}

#[test]
fn a_copy_of_run_python_has_packages_that_nobody_can_change() {
    let Some((wheels, path)) = wheels() else { return };
    let catalogue = Catalogue::empty();
    let tools = catalogue.folder();
    let said = add(&tools, &path, &["--package", "hum==1.0"], wheels.path(), 0);
    assert!(said.contains("added python_hum 0.1.0"), "{said}");
    let read = |name: &str| std::fs::read_to_string(tools.join("python_hum").join(name)).expect("a file");
    assert!(read("tool.toml").contains("and the packages hum 1.0, num-words 1.0, with files"));
    for wheel in ["hum-1.0-py3-none-any.whl", "num_words-1.0-py3-none-any.whl"] {
        let content = std::fs::read(wheels.path().join(wheel)).expect("a wheel");
        assert!(read("README.md").contains(&format!("| `{wheel}` | `{}` |", sha256(content))), "{wheel}");
    }
    for effects in ["direct", "atomic", "staged"] {
        let options = Options::new().catalogue(&catalogue).set("ceilings.effects", effects);
        packages_work(&Executor::start(options.set("ceilings.max_memory_mb", 256)));
    }
    let module = catalogue.module("python_hum");
    let mut changed = std::fs::read(&module).expect("a module");
    let text = b"NUMBERS = ['zero'";
    let at = changed.windows(text.len()).position(|part| part == text).expect("the package is in the module");
    changed[at] = b'M';
    std::fs::write(&module, changed).expect("a file");
    let mut inspect = Command::new(program());
    inspect.args(["tool", "inspect", "python_hum", "--tools"]).arg(&tools);
    inspect.env("XDG_CACHE_HOME", cache_home());
    let refused = run_to_end(inspect, b"");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("the module's SHA-256 is"), "{said}");
}

fn packages_work(executor: &Executor) {
    for (code, result) in [
        ("import hum\nhum.say(2)", json!("hum two")),
        ("import importlib.metadata as m\n[m.version('hum'), m.version('num-words')]", json!(["1.0", "1.0"])),
        (
            "import num_words, inspect\ninspect.getsource(num_words)",
            json!("NUMBERS = ['zero', 'one', 'two']\n"),
        ),
        ("open('/packages/hum/hello.txt').read()", json!("hum ")),
        // Changes that a program makes in memory end with its run.
        ("import num_words\nnum_words.NUMBERS[2] = 'x'\nimport hum\nhum.say(2)", json!("hum x")),
        ("import hum\nhum.say(2)", json!("hum two")),
    ] {
        let answer = run(executor, code);
        assert_eq!(answer["result"]["result"]["result"], result, "{code}: {answer}");
        assert_eq!(answer["result"]["usage"]["denied"], json!([]), "{code}: {answer}");
    }
    for (code, words) in [
        ("open('/packages/num_words.py', 'a')", "Read-only file system"),
        ("import os\nos.remove('/packages/num_words.py')", "Read-only file system"),
        ("from pathlib import Path\nPath('/packages/new.py').write_text('')", "Read-only file system"),
        ("import fast", "does not have the module `fast`"),
    ] {
        let answer = run(executor, code);
        assert!(answer.to_string().contains(words), "{code}: {answer}");
    }
}

#[test]
fn packages_that_cannot_work_are_refused_by_name() {
    let Some((wheels, path)) = wheels() else { return };
    let folder = wheels.path();
    std::fs::write(folder.join("torn-1.0-py3-none-any.whl"), "no archive").expect("a file");
    let catalogue = Catalogue::empty();
    let tools = catalogue.folder();
    for (package, says) in [
        ("fast", &["No matching distribution found for fast", "`fast-1.0-cp314-cp314-manylinux"][..]),
        ("missing", &["No matching distribution found for missing"]),
        ("hum==2.0", &["No matching distribution found for hum==2.0"]),
        ("needs-httpx", &["httpx cannot work: it needs sockets"]),
        ("escapes", &["'../escapes.py', which is no plain relative path"]),
        ("hides", &["has compiled code", "'hides/fast.so'"]),
        ("torn", &["torn"]),
    ] {
        let said = add(&tools, &path, &["--package", package], folder, 1);
        for text in says {
            assert!(said.contains(text), "{package}: {said}");
        }
    }
    for (words, says) in [
        (&["--package", "hum; os_name"][..], "is not a package"),
        (&["--package", "./hum"], "is not a package"),
        (&["--package", "hum", "--name", "1"], "is not a tool name"),
        (&["--package", "hum", "folder"], "cannot be used with"),
        (&["--package", "hum", "--python", "science"], "cannot be used with"),
        (&["folder"], "cannot be used with"),
    ] {
        let said = add(&tools, &path, words, folder, 2);
        assert!(said.contains(says), "{words:?}: {said}");
    }
    let nowhere = PathBuf::from("nowhere");
    assert!(add(&tools, &path, &["--package", "hum"], &nowhere, 1).contains("`nowhere` cannot be read"));
    let programs = tempfile::tempdir().expect("a folder");
    let bare = programs.path().display().to_string();
    let said = add(&tools, &bare, &["--package", "hum"], folder, 1);
    assert!(said.contains("`python3` is not on the PATH"), "{said}");
    assert!(!tools.join("python_hum").exists(), "nothing was installed");
}
