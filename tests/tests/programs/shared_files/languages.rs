//! Programs of interpreters: their own file calls and their calls of tools work on the same files.

use super::{BEFORE, Effects, Entries, Ran, Shared, TOOL};
use harness::{Catalogue, Options, Tool, guest, has_interpreter, intent};
use serde_json::{Value, json};

/// Opens a file and a folder, lets calls change both, and looks at them again through what it has open. What an interpreter
/// does not offer is an error that is the same under all effects.
const PYTHON: &str = r#"
import os

def attempt(act, *values, **named):
    try:
        return act(*values, **named)
    except Exception as error:
        return type(error).__name__

def steps(*steps):
    return tools.take_steps(steps=list(steps))["steps"]

file = open("/workspace/a.txt", "r+")
folder = attempt(os.open, "/workspace/sub", os.O_RDONLY)
os.rename("/workspace/b.txt", "/workspace/sub/b.txt")
os.mkdir("/workspace/made")
first = steps(
    ["read", "/workspace/sub/b.txt"],
    ["list", "/workspace/made"],
    ["write", "/workspace/a.txt", "by the call"],
    ["rename", "/workspace/sub", "/workspace/moved"],
    ["create", "/workspace/moved/new.txt", "new"],
    ["remove", "/workspace/moved/in.txt"],
)
seen = [file.read(), sorted(os.listdir("/workspace/moved")), os.path.exists("/workspace/sub")]
through_folder = [
    attempt(lambda: os.stat("new.txt", dir_fd=folder).st_size),
    attempt(lambda: os.stat("in.txt", dir_fd=folder).st_size),
    attempt(lambda: os.read(os.open("b.txt", os.O_RDONLY, dir_fd=folder), 10).decode()),
    attempt(lambda: sorted(os.listdir(folder))),
]
file.seek(0)
file.write("BY")
file.flush()
tools.parallel([("take_steps", {"steps": [["create", f"/workspace/made/{n}", "x"]]}) for n in range(8)])
started = tools.start.take_steps(steps=[["sleep", 200], ["write", "/workspace/late.txt", "late"]])
late = open("/workspace/late.txt").read() if EFFECTS != "direct" else "late"
started.result()
failed = attempt(steps, ["fail", "wanted"])
second = steps(["read", "/workspace/a.txt"], ["list", "/workspace/made"])
result = [first, seen, late, failed, second, sorted(os.listdir("/workspace/made")), through_folder]
"#;

const JAVASCRIPT: &str = r#"
fs.write("/workspace/a.txt", "ONE");
const steps = async (...steps) => (await tools.take_steps({ steps })).steps;
const first = await steps(["read", "/workspace/a.txt"], ["append", "/workspace/a.txt", "!"], ["remove", "/workspace/b.txt"]);
const seen = [fs.read("/workspace/a.txt")];
try {
  fs.read("/workspace/b.txt");
} catch {
  seen.push("gone");
}
await Promise.all(Array.from({ length: 8 }, (_, n) => steps(["create", `/workspace/sub/${n}`, "x"])));
const read = Array.from({ length: 8 }, (_, n) => fs.read(`/workspace/sub/${n}`));
try {
  await steps(["fail", "wanted"]);
} catch (error) {
  seen.push(error.code);
}
fs.write("/workspace/a.txt", fs.read("/workspace/a.txt") + "?");
return [first, seen, read.join(""), await steps(["read", "/workspace/a.txt"])];
"#;

/// Runs a program under each kind of effects. Returns the results, which have to be the same, and the files.
fn run(tool: &str, code: &str) -> Option<(Value, Entries)> {
    if !has_interpreter(tool) {
        return None;
    }
    let guest = Tool::typed_bytes(TOOL, guest(TOOL)).calls(&["*"]);
    let shared = Shared::start_in(Options::new(), Catalogue::empty().add(guest).copy(tool));
    let mut found = Vec::new();
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        let text = code.replace("EFFECTS", &format!("\"{}\"", effects.word()));
        let mut program = intent(tool, json!({ "code": text }));
        program["context"] = json!({ "grant": effects.grant(json!({ "memory_mb": 128 })) });
        let ran = Ran::of(&program, &shared.executor.rpc("a2g/intent", &program));
        assert_eq!(ran.report["status"], effects.status(), "{effects:?}: {}", ran.report);
        shared.settle(&ran);
        found.push((ran.report["result"]["result"].clone(), shared.files()));
    }
    let direct = found.remove(0);
    for (effects, other) in Effects::APART.into_iter().zip(found) {
        assert_eq!(other, direct, "{effects:?}");
    }
    Some(direct)
}

#[test]
fn a_program_in_python_shares_its_files() {
    let Some((result, files)) = run("run_python", PYTHON) else { return };
    let first = json!(["two", [], null, null, null, null]);
    let seen = json!(["by the call", ["b.txt", "deep", "new.txt"], false]);
    let made = json!(["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(json!(result.as_array().map(|all| &all[..3])), json!([first, seen, "late"]), "{result}");
    assert_eq!(result[3], "ToolError", "{result}");
    assert_eq!((&result[4], &result[5]), (&json!(["BY the call", made]), &made), "{result}");
    assert_eq!(files["moved/new.txt"], "new");
    assert_eq!(files["late.txt"], "late");
}

#[test]
fn a_program_in_javascript_shares_its_files() {
    let Some((result, files)) = run("run_javascript", JAVASCRIPT) else { return };
    let expected = json!([["ONE", null, null], ["ONE!", "gone", "wanted"], "xxxxxxxx", ["ONE!?"]]);
    assert_eq!(result, expected);
    assert_eq!((files["a.txt"].as_str(), files.contains_key("b.txt")), ("ONE!?", false));
}
