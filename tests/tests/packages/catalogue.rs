//! The catalogue as a server has it: tools that are prepared while it serves, the process that compiles them,
//! what describes them, and entries that are broken.

use harness::guests::Guest;
use harness::{
    Catalogue, Executor, FakeGovernor, Home, HttpClient, Options, Process, Reply, Tool, children_of, error,
    eventually, execute, expect_blocked, id_of, intent, manifest, result, run, saying, tools, typed, verdict,
};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A command whose compilation takes some seconds: many functions, each with a long body.
fn slow_to_compile(functions: usize) -> Vec<u8> {
    let step = "(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const 31)) (i32.load (local.get 0))))";
    let body = step.repeat(400);
    let functions =
        (0..functions).map(|n| format!("(func $f{n} (param i32) (result i32) {body} (local.get 0))"));
    let functions = functions.collect::<String>();
    Guest::new("(call $note (i32.const 7))").beside(&functions).wasm()
}

fn tool_command(arguments: &[&str], config: &Path) -> (bool, String) {
    let output = run([&["tool"], arguments, &["--config", config.to_str().expect("UTF-8")]].concat());
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8"))
}

/// Keeps guests out of the folder where the cache is.
const SCOPE: &str = "[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n";

/// `tool add` of one tool to a new catalogue with a cache of its own.
fn add(tool: &Tool, settings: &str) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a temp folder");
    tool.write(&folder.path().join("source"), false);
    let config = folder.path().join("executor.toml");
    std::fs::write(&config, format!("[catalog]\ntools = \"tools\"\ncache = \"cache\"\n{settings}\n{SCOPE}"))
        .unwrap();
    let source = folder.path().join("source");
    tool_command(&["add", source.to_str().unwrap()], &config)
}

fn proc_of(pid: u32, file: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

#[test]
fn a_command_compiles_the_tools_that_its_call_needs() {
    let named = |name: &str| Tool::command(name, &saying(1, &format!("\"{name}\""), 0));
    let catalogue = Catalogue::empty().add(named("called")).add(named("other"));
    let folder = tempfile::tempdir().expect("a temp folder");
    let config = folder.path().join("executor.toml");
    let tools = catalogue.folder();
    std::fs::write(&config, format!("[catalog]\ntools = {tools:?}\ncache = \"cache\"\n{SCOPE}")).unwrap();
    for (tool, compiled) in [("called", vec!["called"]), ("called", vec![]), ("other", vec!["other"])] {
        let output = run(["run", tool, "--config", config.to_str().expect("UTF-8")]);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{said}");
        let names =
            ["called", "other"].into_iter().filter(|name| said.contains(&format!("compiling `{name}`")));
        assert_eq!(names.collect::<Vec<_>>(), compiled, "{said}");
    }
}

#[test]
fn a_server_serves_while_tools_are_prepared_in_a_confined_process() {
    let cache = tempfile::tempdir().expect("a temp folder");
    let catalogue = Catalogue::empty().add(Tool::command("quick", &saying(1, "1", 0)));
    let options =
        |catalogue: &Catalogue| Options::new().catalogue(catalogue).set("catalog.cache", json!(cache.path()));
    // Compiled once, so that the next server has it in the cache.
    drop(Executor::start(options(&catalogue)));
    let late = Tool::command_bytes("late", slow_to_compile(401)).limit("timeout_seconds", 1);
    let slow = Tool::command_bytes("slow", slow_to_compile(400)).limit("timeout_seconds", 300);
    let catalogue = catalogue.add(slow).add(late);
    let home = Home::new(options(&catalogue));
    let server = Process::spawn("executor", &mut home.command());
    let mut client = HttpClient::connect(server.listens_on());
    let compiler = eventually("the compiler runs", || {
        let compiles =
            |pid: &u32| proc_of(*pid, "cmdline").is_some_and(|line| line.contains("compile-module"));
        children_of(server.id()).into_iter().find(compiles)
    });
    let status = eventually("it is confined", || {
        let status = proc_of(compiler, "status").expect("it still compiles");
        status.contains("Seccomp:\t2").then_some(status)
    });
    for line in ["NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(status.contains(line), "no `{line}` in {status}");
    }
    let open = std::fs::read_dir(format!("/proc/{compiler}/fd")).expect("it still compiles");
    let open = open.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap()).collect::<Vec<_>>();
    assert_eq!(open.len(), 3, "{open:?}");
    assert!(open.iter().all(|file| file.to_string_lossy().starts_with("/memfd:")), "{open:?}");
    assert_eq!(proc_of(compiler, "environ").as_deref(), Some(""));
    let limits = proc_of(compiler, "limits").expect("it still compiles");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).expect("a limit");
        line[name.len()..].split_whitespace().next().expect("a value").to_owned()
    };
    assert_eq!((limit("Max cpu time"), limit("Max data size")), ("60".into(), (1_u64 << 30).to_string()));
    let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("a namespace");
    assert_ne!(network(&compiler.to_string()), network("self"));
    // Meanwhile the server answers, lists all tools, and runs what is ready.
    assert_eq!(client.request("GET", "/health", &[], b"").status, 200);
    assert_eq!(listed_tools(&mut client), ["late", "quick", "slow"]);
    result(&client.rpc("a2g/execute", &execute("quick", json!({}))));
    // A call waits for its tool, at most as long as the call may take.
    let told = client.rpc("a2g/execute", &execute("late", json!({})));
    let told = error(&told, -32003);
    assert!(told["message"].as_str().unwrap().contains("is being prepared"), "{told}");
    assert!(told["data"]["retry_after_ms"].as_u64().is_some_and(|ms| ms >= 100), "{told}");
    server.line_with("compiling `slow`");
    result(&client.rpc("a2g/execute", &execute("slow", json!({}))));
    server.line_with("all tools are prepared");
    result(&client.rpc("a2g/execute", &execute("late", json!({}))));
}

/// A call that waits for its tool is one that waits: it has a state, ends like any other, and never runs then.
#[test]
fn a_call_that_waits_for_its_tool_can_be_cancelled_and_stopped() {
    let cache = tempfile::tempdir().expect("a temp folder");
    let slow = Tool::command_bytes("slow", slow_to_compile(800)).limit("timeout_seconds", 300);
    let catalogue = Catalogue::empty().add(slow);
    let home = Home::new(Options::new().catalogue(&catalogue).set("catalog.cache", json!(cache.path())));
    let server = Process::spawn("executor", &mut home.command());
    let address = server.listens_on();
    let ask = |method: &str, params: &Value| HttpClient::ask(address, method, params).expect("an answer");
    for (method, params, told) in [
        ("a2g/cancel", None, "it was cancelled while its tool was compiled"),
        ("a2g/stop", Some(json!({ "target": { "tool": "slow" }, "reason": "it is broken" })), "it is broken"),
    ] {
        let call = execute("slow", json!({}));
        let id = json!({ "intent_id": id_of(&call) });
        let refused = std::thread::scope(|scope| {
            let calling = scope.spawn(|| ask("a2g/execute", &call));
            eventually("it waits", || (ask("a2g/status", &id)["result"]["state"] == "queued").then_some(()));
            result(&ask(method, params.as_ref().unwrap_or(&id)));
            calling.join().expect("an answer")
        });
        let refused = error(&refused, -32000)["message"].as_str().expect("a message");
        assert!(refused.contains(told), "{refused}");
        assert!(!server.stderr().contains("all tools are prepared"), "it was refused at once");
        assert_ne!(ask("a2g/status", &id)["result"]["state"], "queued");
    }
    server.line_with("all tools are prepared");
    let listed = run(["journal", "list", "--json", "--config", home.config().to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "", "nothing ran");
}

/// A repeat of an intent that waits for a person waits for its tool before it is looked up.
#[test]
fn a_cancellation_ends_an_intent_and_its_repeat_that_waits_for_the_tool() {
    let governor = FakeGovernor::deciding(|params| {
        let mut escalated = verdict(params["intent_id"].as_str().expect("an id"), &manifest());
        escalated["verdict"] = json!("ESCALATE");
        Reply::Result(escalated)
    });
    let folder = tempfile::tempdir().expect("a temp folder");
    let cache = folder.path().join("cache");
    let slow = Tool::command_bytes("slow", slow_to_compile(800)).limit("timeout_seconds", 300);
    let catalogue = Catalogue::empty().add(slow);
    let options = Options::new().catalogue(&catalogue).governor(&governor.url());
    let executor = Executor::start(options.set("catalog.cache", json!(cache)));
    let call = intent("slow", json!({}));
    let id = json!({ "intent_id": call["intent_id"] });
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    let home = executor.kill();
    std::fs::remove_dir_all(&cache).expect("the cache is removed");
    let server = Process::spawn("executor", &mut home.command());
    let address = server.listens_on();
    let ask = |method: &str, params: &Value| HttpClient::ask(address, method, params).expect("an answer");
    let repeated = std::thread::scope(|scope| {
        let repeating = scope.spawn(|| ask("a2g/intent", &call));
        // No state tells that the repeat has arrived. One that comes later gets another error, below.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(result(&ask("a2g/cancel", &id))["cancelled"], true);
        repeating.join().expect("an answer")
    });
    let told = error(&repeated, -32000)["message"].as_str().expect("a message").to_owned();
    assert!(told.contains("it was cancelled while its tool was compiled"), "{told}");
    assert!(!server.stderr().contains("all tools are prepared"), "it was refused at once");
    assert_ne!(ask("a2g/status", &id)["result"]["state"], "escalated");
    let approval = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    error(&ask("g2a/directive", &approval), -32602);
}

fn listed_tools(client: &mut HttpClient) -> Vec<String> {
    let listed = client.rpc("a2g/tools", &json!({}));
    let tools = result(&listed)["tools"].as_array().expect("a list").iter();
    tools.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

/// A typed tool is listed with the arguments that its folder has, and its module has to confirm them.
#[test]
fn a_typed_tool_is_listed_before_its_module_is_compiled() {
    let cache = tempfile::tempdir().expect("a temp folder");
    let catalogue = Catalogue::empty().copy("read_file").copy("write_file");
    let catalogue = catalogue.add(Tool::command_bytes("slow", slow_to_compile(100)));
    let arguments = |tool: &str| format!("{tool}/arguments.json");
    let described = arguments("write_file");
    std::fs::copy(tools().join(&described), catalogue.folder().join(&described)).expect("a copy");
    let lie = json!({ "type": "object" }).to_string();
    std::fs::write(catalogue.folder().join(arguments("read_file")), lie).expect("a file");
    let home = Home::new(Options::new().catalogue(&catalogue).set("catalog.cache", json!(cache.path())));
    let server = Process::spawn("executor", &mut home.command());
    let mut client = HttpClient::connect(server.listens_on());
    assert_eq!(listed_tools(&mut client), ["read_file", "slow", "write_file"]);
    assert!(!server.stderr().contains("all tools are prepared"), "it compiles meanwhile");
    let schema = client.rpc("a2g/tools", &json!({}));
    let tools = result(&schema)["tools"].as_array().unwrap();
    let write_file = tools.iter().find(|tool| tool["name"] == "write_file").expect("it is listed");
    assert!(write_file.to_string().contains("The absolute path of the file."), "{write_file}");
    let written = execute("write_file", json!({ "path": "/workspace/a", "content": "b" }));
    let written = client.rpc("a2g/execute", &written);
    assert_eq!(result(&written)["status"], "SUCCESS", "{written}");
    let refused = client.rpc("a2g/execute", &execute("read_file", json!({ "path": "/workspace/a" })));
    expect_blocked(&refused, "tool_untrusted");
    assert!(refused.to_string().contains("`arguments.json` is not the schema"), "{refused}");
    server.line_with("all tools are prepared");
    assert_eq!(listed_tools(&mut client), ["slow", "write_file"]);
}

#[test]
fn a_compilation_ends_at_its_limits_and_names_the_limit() {
    let slow = Tool::command_bytes("slow", slow_to_compile(1500));
    for (setting, named) in [
        ("compile_seconds = 1", "catalog.compile_seconds"),
        ("compile_memory_mb = 32", "catalog.compile_memory_mb"),
    ] {
        let (added, said) = add(&slow, setting);
        assert!(!added && said.contains(named), "{setting}: {said}");
    }
    let (added, said) = add(&Tool::command_bytes("none", b"\0asm nonsense".to_vec()), "");
    assert!(!added && said.contains("cannot be compiled"), "{said}");
}

/// The file has no content on the disk, and nothing of it is read.
#[test]
fn a_module_above_the_maximum_size_is_refused() {
    const MAX_MODULE_BYTES: u64 = 256 << 20;
    let folder = tempfile::tempdir().expect("a temp folder");
    let config = folder.path().join("executor.toml");
    std::fs::write(&config, format!("[catalog]\ntools = \"tools\"\ncache = \"cache\"\n{SCOPE}")).unwrap();
    let module = folder.path().join("large.wasm");
    std::fs::File::create(&module).expect("a file").set_len(MAX_MODULE_BYTES + 1).expect("a length");
    let (added, said) = tool_command(&["add", module.to_str().expect("UTF-8")], &config);
    let numbers = [MAX_MODULE_BYTES + 1, MAX_MODULE_BYTES].map(|bytes| bytes.to_string());
    assert!(!added && numbers.iter().all(|number| said.contains(number)), "{said}");
}

/// What the pool has no room for is refused before it can be called, with the number of the module and the bound.
#[test]
fn a_module_beyond_the_pool_is_refused_with_both_numbers() {
    let of_module =
        |fields: &str| format!("(module (memory (export \"memory\") 1) {fields} (func (export \"_start\")))");
    let of_component = |module: &str, instances: usize| {
        let instances = "(core instance (instantiate $m))".repeat(instances);
        format!("(component (core module $m {module}) {instances})")
    };
    let global = "(global v128 (v128.const i32x4 0 0 0 0))";
    for (wat, numbers) in [
        (of_module("(table 100001 funcref)"), ["100001", "100000"]),
        (of_module(&"(table 1 funcref)".repeat(65)), ["65", "64"]),
        (of_module(&"(memory 1)".repeat(16)), ["17", "16"]),
        (of_module(&global.repeat(600_000)), ["9600240", "8388608"]),
        (of_component("", 65), ["65", "64"]),
        (of_component("(memory 1)", 17), ["17", "16"]),
        (of_component("(table 1 funcref) (table 1 funcref)", 33), ["66", "64"]),
    ] {
        let (added, said) = add(&Tool::command("large", &wat), "");
        let is_exact = numbers.iter().all(|number| said.contains(number)) && !said.contains("/proc/");
        assert!(!added && is_exact, "{numbers:?}: {said}");
    }
}

/// `describe` is the tool's own code: it has a process of its own, some memory and some seconds.
#[test]
fn an_endless_or_oversized_tool_description_is_refused() {
    let spin = "(loop $again (br $again))";
    let trap = "(unreachable)";
    let exhaust =
        "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) (unreachable)";
    // On a busy machine, the server's own limit may be the first.
    let endless = ["time limit", "did not answer within"];
    let trapped = ["unreachable"];
    for (describe, says) in [(spin, &endless[..]), (trap, &trapped), (exhaust, &trapped)] {
        let (added, said) = add(&Tool::typed_bytes("odd", typed("odd", &json!({}), describe)), "");
        assert!(!added && says.iter().any(|text| said.contains(text)), "{says:?}: {said}");
    }
    let long = json!({ "description": "x".repeat(400 << 10) });
    let (added, said) = add(&Tool::typed_bytes("odd", typed("odd", &long, "")), "");
    assert!(!added && said.contains("bytes"), "{said}");
    let (added, said) = add(&Tool::typed_bytes("odd", typed("odd", &json!({ "type": "object" }), "")), "");
    assert!(added, "{said}");
}

#[test]
fn a_broken_entry_is_skipped_and_the_others_are_served() {
    let catalogue = Catalogue::empty().add(Tool::command("good", &saying(1, "1", 0)));
    let folder = catalogue.folder();
    let tool = Tool::command("other", &saying(1, "1", 0));
    for name in ["bad name", "fifo", "huge", "unreadable", "deep"] {
        tool.write(&folder.join(name), true);
    }
    let fifo = |path: &Path| {
        let _was_there = std::fs::remove_file(path);
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let rename = |name: &str| {
        let manifest = folder.join(name).join("tool.toml");
        let text = std::fs::read_to_string(&manifest).unwrap().replace("\"other\"", &format!("\"{name}\""));
        std::fs::write(manifest, text).unwrap();
    };
    ["fifo", "huge", "deep"].into_iter().for_each(rename);
    fifo(&folder.join("fifo/tool.wasm"));
    fifo(&folder.join("unreadable/tool.toml"));
    std::fs::File::create(folder.join("huge/tool.wasm")).unwrap().set_len(257 << 20).unwrap();
    let deep = (0..66).fold(json!({}), |inner, _| json!({ "not": inner }));
    let deep = Tool::command("deep", &saying(1, "1", 0)).schema(deep);
    deep.write(&folder.join("deep"), true);
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    result(&executor.rpc("a2g/execute", &execute("good", json!({}))));
    assert!(executor.stderr().contains("bad name"), "{}", executor.stderr());
    let (listed, said) = tool_command(&["list", "--json"], &executor.home().config());
    assert!(listed, "{said}");
    let listed: Value = serde_json::from_str(said.get(said.find('[').unwrap()..).unwrap()).expect("JSON");
    for (name, reason) in [
        ("bad name", "tool name"),
        ("fifo", "not a regular file"),
        ("unreadable", "not a regular file"),
        ("huge", "are accepted"),
        ("deep", "nested deeper"),
    ] {
        let entry = listed.as_array().unwrap().iter().find(|tool| tool["name"] == name);
        let entry = entry.unwrap_or_else(|| panic!("no `{name}` in {listed}"));
        assert!(entry["error"].as_str().unwrap().contains(reason), "{entry}");
        if name != "bad name" {
            let refused = executor.rpc("a2g/execute", &execute(name, json!({})));
            assert!(!error(&refused, -32001)["message"].as_str().unwrap().contains("/tmp"), "{refused}");
        }
    }
}

/// An agent that may do nothing learns nothing of a tool's schema.
#[test]
fn a_denied_agent_learns_nothing_of_the_schema() {
    let executor = Executor::start(Options::new());
    let wrong = json!({ "path": 5 });
    let mut denied = intent("write_file", json!({ "path": "/etc/x", "wrong": 1 }));
    expect_blocked(&executor.rpc("a2g/intent", &denied), "verdict_denied");
    denied["arguments"] = wrong.clone();
    let _either = executor.rpc("a2g/intent", &denied);
    let params = {
        let mut params = execute("write_file", wrong);
        params["verdict"]["verdict"] = json!("DENIED");
        params
    };
    expect_blocked(&executor.rpc("a2g/execute", &params), "verdict_denied");
}
