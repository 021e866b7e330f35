//! Five layers set limits, and the report names for each limit the layer that did.

use super::bench::{Bench, Call};
use harness::guests::Guest;
use harness::{Options, Tool};
use serde_json::{Value, json};

/// Grows until it is refused and then traps; computes, writes or waits for as long as it may.
const GROWS: &str =
    "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (unreachable)";
const WRITES: &str = "(loop $more (call $cry (i32.const 65536) (i32.const 100)) (br $more))";
const WAITS: &str = "(drop (call $sleep (i64.const 3600000000000)))";

/// Gives the agent a standing policy that allows these tools.
fn policy(bench: &Bench, constraints: &Value, resources: &Value) {
    let rule = json!({ "allowed": true, "constraints": constraints });
    let tools = json!({ "plain": rule, "declares": rule, "grows": rule, "writes": rule, "waits": rule });
    bench.set_policy(&json!({ "tools": tools, "resources": resources }));
}

/// An executor with wide ceilings, a tool that declares limits of its own, and ones that break each.
fn start(options: Options) -> Bench {
    let tool = |name: &str, body: &str| Tool::command_bytes(name, Guest::new(body).wasm());
    let declares = tool("declares", "").filesystem("read");
    let declares =
        declares.limit("max_memory_mb", 20).limit("max_cpu_percent", 40).limit("timeout_seconds", 25);
    let tools =
        [tool("plain", ""), declares, tool("grows", GROWS), tool("writes", WRITES), tool("waits", WAITS)];
    Bench::start_tools(options, tools)
}

/// Checks one limit of the report of a harmless run.
fn assert_set(call: Call<'_>, limit: &str, granted: u64, by: &str) {
    let report = call.send().success();
    let in_force = report.in_force(limit);
    assert_eq!(
        (&in_force["granted"], &in_force["set_by"]),
        (&granted.into(), &by.into()),
        "{limit}: {report:?}"
    );
}

const MEMORY: &str = "max_memory_mb";
const CPU: &str = "max_cpu_percent";
const TIME: &str = "timeout_seconds";
const OUTPUT: &str = "max_output_bytes";

#[test]
fn each_limit_is_named_after_the_layer_that_set_it() {
    let options = Options::new().set("ceilings.max_memory_mb", 100).set("ceilings.max_cpu_percent", 90);
    let options = options.set("ceilings.timeout_seconds", 50).set("ceilings.max_output_bytes", 50_000);
    let bench = start(options);
    let plain = || bench.call("plain");
    let declares = || bench.call("declares");

    // The executor: nobody else says anything, or all say more.
    for (limit, granted) in [(MEMORY, 100), (CPU, 90), (TIME, 50), (OUTPUT, 50_000)] {
        assert_set(plain(), limit, granted, "executor");
    }
    let more = plain().grant(MEMORY, 101).grant(CPU, 100).grant(TIME, 51).condition("max_output_bytes:50001");
    let more = more.condition("max_memory_mb:102").condition("timeout_seconds:52").send().success();
    for limit in [MEMORY, CPU, TIME, OUTPUT] {
        assert_eq!(more.in_force(limit)["set_by"], "executor", "{limit}");
    }
    // The tool.
    for (limit, granted) in [(MEMORY, 20), (CPU, 40), (TIME, 25)] {
        assert_set(declares(), limit, granted, "tool");
        assert_set(declares().grant(limit, granted + 1), limit, granted, "tool");
    }
    // The verdict, below the tool.
    for (limit, granted) in [(MEMORY, 19), (CPU, 39), (TIME, 24)] {
        assert_set(declares().grant(limit, granted), limit, granted, "verdict");
    }
    // A condition, below the verdict; the lowest of two.
    for (limit, granted) in [(MEMORY, 18), (TIME, 23), (OUTPUT, 100)] {
        let conditioned = declares().grant(MEMORY, 19).grant(TIME, 24);
        let conditioned = conditioned
            .condition(&format!("{limit}:{granted}"))
            .condition(&format!("{limit}:{}", granted + 5));
        assert_set(conditioned, limit, granted, "condition");
    }
    // The standing policy, below all of them.
    policy(&bench, &json!({ "timeout_seconds": 9 }), &json!({ "max_memory_mb": 9, "max_cpu_percent": 9 }));
    for limit in [MEMORY, CPU, TIME] {
        let all = declares().grant(limit, 10);
        let all = if limit == CPU { all } else { all.condition(&format!("{limit}:11")) };
        assert_set(all, limit, 9, "standing_policy");
    }
    // At a tie the first of the five is named.
    for limit in [MEMORY, CPU, TIME] {
        assert_set(plain().grant(limit, 9), limit, 9, "verdict");
    }
    assert_set(plain().condition("max_memory_mb:9"), MEMORY, 9, "condition");
    // And a layer below the policy wins over it again.
    for limit in [MEMORY, CPU, TIME] {
        assert_set(plain().grant(limit, 8), limit, 8, "verdict");
    }
}

#[test]
fn the_named_layer_set_the_effective_limit() {
    let options = Options::new().set("ceilings.max_memory_mb", 4).set("ceilings.timeout_seconds", 2);
    let options = options.set("ceilings.max_output_bytes", 4000);
    let bench = start(options);
    type Case = (&'static str, &'static str, &'static str, Option<u64>, Option<&'static str>, f64);
    let cases: [Case; 8] = [
        ("grows", "memory", "4 MB, set by the executor's configuration", None, None, 4.0),
        ("grows", "memory", "3 MB, set by the verdict", Some(3), None, 3.0),
        ("grows", "memory", "2 MB, set by a condition of the verdict", Some(3), Some("max_memory_mb:2"), 2.0),
        ("waits", "time", "2 s, set by the executor's configuration", None, None, 2.0),
        ("waits", "time", "1 s, set by the verdict", Some(1), None, 1.0),
        ("waits", "time", "1 s, set by a condition of the verdict", None, Some("timeout_seconds:1"), 1.0),
        ("writes", "output", "4000 bytes, set by the executor's configuration", None, None, 4000.0),
        (
            "writes",
            "output",
            "300 bytes, set by a condition of the verdict",
            None,
            Some("max_output_bytes:300"),
            300.0,
        ),
    ];
    for (tool, limit, words, granted, condition, used) in cases {
        let call = bench.call(tool);
        let name = if tool == "grows" { MEMORY } else { TIME };
        let call = if let Some(granted) = granted { call.grant(name, granted) } else { call };
        let call = if let Some(condition) = condition { call.condition(condition) } else { call };
        let report = call.send().limit(limit);
        assert!(report.sentence().contains(words), "not `{words}`: {report:?}");
        let name = match limit {
            "memory" => MEMORY,
            "time" => TIME,
            _ => OUTPUT,
        };
        let measured = report.in_force(name)["used"].as_f64().expect("a number");
        assert!(measured >= used && measured < used + 2.0, "{words}: {report:?}");
    }
    policy(&bench, &json!({ "timeout_seconds": 1 }), &json!({ "max_memory_mb": 1 }));
    let by_policy = "set by the standing policy of the agent";
    let grows = bench.call("grows").send().limit("memory");
    assert_eq!(grows.sentence(), format!("the tool reached its memory limit of 1 MB, {by_policy}"));
    let waits = bench.call("waits").send().limit("time");
    assert_eq!(waits.sentence(), format!("the tool ran longer than its timeout of 1 s, {by_policy}"));
}

#[test]
fn each_folder_grant_is_named_after_the_layer_that_chose_it() {
    let bench = start(Options::new().scope(&["/workspace/**"]));
    for folder in ["a/b/c", "other"] {
        std::fs::create_dir_all(bench.executor.workspace().join(folder)).expect("a folder");
    }
    let trees = |call: Call<'_>| {
        let report = call.send().success();
        let scope = report.in_force("filesystem_scope").clone();
        let named = |tree: &Value| {
            format!(
                "{} {}",
                tree["path"].as_str().expect("a path"),
                tree["set_by"].as_str().expect("a layer")
            )
        };
        let trees: Vec<_> = scope["trees"].as_array().expect("a list").iter().map(named).collect();
        (trees, scope["set_by"].as_str().map(str::to_owned))
    };
    let only = |tree: &str| (vec![tree.to_owned()], None);
    let none = |layer: &str| (Vec::new(), Some(layer.to_owned()));
    let plain = || bench.call("plain");

    assert_eq!(trees(plain()), none("verdict"), "no scope is no folder");
    assert_eq!(trees(plain().scope("/workspace/a/**")), only("/workspace/a verdict"));
    assert_eq!(trees(plain().scope("/workspace/**")), only("/workspace verdict"), "a tie");
    let conditioned = plain().scope("/workspace/**").condition("filesystem_scope:/workspace/a/b/**");
    assert_eq!(trees(conditioned), only("/workspace/a/b condition"));
    let contradicted = plain().scope("/workspace/a/**").condition("filesystem_scope:/workspace/other/**");
    assert_eq!(trees(contradicted), none("condition"));
    // The executor's ceiling lies inside what the verdict grants, or beside it.
    let narrow = start(Options::new().scope(&["/workspace/a/**"]));
    std::fs::create_dir_all(narrow.executor.workspace().join("a")).expect("a folder");
    assert_eq!(trees(narrow.call("plain").scope("/workspace/**")), only("/workspace/a executor"));
    assert_eq!(trees(narrow.call("plain").scope("/workspace/other/**")), none("executor"));
    // A tool that declares no files gets none.
    let no_files = Tool::command_bytes("no_files", Guest::new("").wasm()).filesystem("none");
    let without = Bench::start_tools(Options::new(), [no_files]);
    assert_eq!(trees(without.call("no_files").scope("/workspace/**")), none("tool"));

    policy(&bench, &json!({ "paths": ["/workspace/a/b/**"] }), &json!({}));
    assert_eq!(trees(plain().scope("/workspace/**")), only("/workspace/a/b standing_policy"));
    policy(&bench, &json!({ "blocked_paths": ["/workspace/**"] }), &json!({}));
    assert_eq!(trees(plain().scope("/workspace/a/**")), none("standing_policy"));
}

#[test]
fn each_access_mode_is_named_after_the_layer_that_narrowed_it() {
    let access = |call: Call<'_>| {
        let report = call.scope("/workspace/**").send().success();
        let tree = &report.in_force("filesystem_scope")["trees"][0];
        let text = |name: &str| tree[name].as_str().expect("a word").to_owned();
        (text("access"), text("access_set_by"))
    };
    let says = |access: &str, by: &str| (access.to_owned(), by.to_owned());
    let bench = start(Options::new());
    assert_eq!(access(bench.call("plain")).0, "read-write");
    assert_eq!(access(bench.call("declares")), says("read-only", "tool"));
    assert_eq!(access(bench.call("plain").condition("read_only")), says("read-only", "condition"));
    assert_eq!(access(bench.call("declares").condition("read_only")), says("read-only", "condition"));
    let read_only = start(Options::new().set("ceilings.read_only", true));
    assert_eq!(access(read_only.call("plain")), says("read-only", "executor"));
}

#[test]
fn the_time_of_effects_is_named_after_the_layer_that_set_it() {
    let tool = |name: &str| Tool::command_bytes(name, Guest::new("").wasm());
    let tools = || [tool("plain"), tool("asks").effects("atomic")];
    let assert_set = |call: Call<'_>, expected: Option<&str>| {
        let report = call.scope("/workspace/**").send().success();
        assert_eq!(report.effects(), expected.map(|layer| ("atomic", layer)), "{report:?}");
    };
    let bench = Bench::start_tools(Options::new(), tools());
    assert_set(bench.call("plain"), None);
    assert_set(bench.call("asks"), Some("tool"));
    assert_set(bench.call("plain").condition("effects:atomic"), Some("condition"));
    assert_set(bench.call("asks").condition("effects:atomic"), Some("condition"));
    let rule = json!({ "allowed": true, "constraints": { "effects": "atomic" } });
    bench.set_policy(&json!({ "tools": { "plain": rule, "asks": rule } }));
    for tool in ["plain", "asks"] {
        assert_set(bench.call(tool), Some("standing_policy"));
    }
    assert_set(bench.call("plain").condition("effects:atomic"), Some("condition"));
    let executor = Bench::start_tools(Options::new().set("ceilings.effects", "atomic"), tools());
    assert_set(executor.call("plain"), Some("executor"));
    assert_set(executor.call("asks"), Some("tool"));
}

#[test]
fn the_network_is_named_after_the_layer_that_turned_it_off() {
    let wants = || [Tool::command_bytes("plain", Guest::new("").wasm()).network()];
    let enabled = || Options::new().set("ceilings.network_allowed", true);
    let online = || enabled().set("network.allowed_domains", json!(["*.example"]));
    let bench = Bench::start_tools(online(), wants());
    let network = |call: Call<'_>| {
        let report = call.send().success();
        let network = report.in_force("network_allowed").clone();
        assert_eq!(network["linked"], network["granted"], "{report:?}");
        assert_eq!(report.in_force("network").is_object(), network["granted"] == true, "{report:?}");
        (
            network["granted"].as_bool().expect("a word"),
            network["set_by"].as_str().expect("a layer").to_owned(),
        )
    };
    let off = |by: &str| (false, by.to_owned());
    let on = || bench.call("plain").grant("network_allowed", true);
    assert_eq!(network(bench.call("plain")), off("verdict"), "an absent network is off");
    assert_eq!(network(bench.call("plain").grant("network_allowed", false)), off("verdict"));
    assert_eq!(network(on().condition("no_network")), off("condition"));
    assert!(network(on()).0);
    for (other, layer) in [
        (start(online()), "tool"),
        (Bench::start_tools(Options::new(), wants()), "executor"),
        (Bench::start_tools(enabled(), wants()), "executor"),
    ] {
        assert_eq!(network(other.call("plain").grant("network_allowed", true)), off(layer));
    }
    // A list that has nothing in common with the executor's own leaves nobody either.
    for (domains, layer) in [(json!([]), "standing_policy"), (json!(["example.org"]), "executor")] {
        let tools = json!({ "plain": { "allowed": true } });
        bench.set_policy(&json!({ "tools": tools, "network": { "allowed_domains": domains } }));
        assert_eq!(network(on()), off(layer));
    }
}

#[test]
fn an_unenforceable_condition_runs_nothing() {
    let bench = start(Options::new());
    for condition in [
        "max_memory_mb:0",
        "max_memory_mb:-1",
        "max_memory_mb:1.5",
        "max_memory_mb:",
        "timeout_seconds:5e1",
        "max_output_bytes:99999999999999999999",
        "max_cpu_percent:10",
        "be_nice",
        "",
        "read_only:1",
        "READ_ONLY",
        "effects",
        "effects:direct",
        "effects:later",
    ] {
        let answer = bench.call("plain").condition(condition).send();
        harness::expect_blocked(&answer.response, "condition_unknown");
    }
    for pattern in ["/**", "/", "relative/**", "/workspace/../etc/**", "/workspace/a**", "/workspace"] {
        let answer = bench
            .call("plain")
            .scope("/workspace/**")
            .condition(&format!("filesystem_scope:{pattern}"))
            .send();
        harness::expect_blocked(&answer.response, "scope_unenforceable");
        let answer = bench.call("plain").scope(pattern).send();
        harness::expect_blocked(&answer.response, "scope_unenforceable");
    }
    bench.executor.assert_workspace_is_empty("verdicts that cannot be enforced");
}
