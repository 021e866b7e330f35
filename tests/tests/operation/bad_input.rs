//! Invalid input: each case is refused with its code and sentence, and nothing runs.

use harness::methods::write;
use harness::*;
use serde_json::{Value, json};

/// The params of a call that would write a file, if it were not for what a test does to it.
fn call() -> Value {
    execute("write_file", write("ran", "x"))
}

fn call_with(pointer: &str, value: Value) -> Value {
    let mut call = call();
    set_member(&mut call, pointer, value);
    call
}

fn request(params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"a2g/execute","params":{params},"id":1}}"#)
}

/// Posts bytes, and checks code, words, the length of the answer and that nothing ran.
fn expect_error(executor: &Executor, what: &str, body: &[u8], code: i64, words: &str) -> Value {
    let answer = executor.client().post(body);
    assert_eq!(answer.status, 200, "{what}");
    assert!(answer.body.len() < 2000, "{what}: an answer of {} bytes", answer.body.len());
    let response = answer.json();
    let message = response["error"]["message"].as_str().unwrap_or_else(|| panic!("{what}: {response}"));
    assert_eq!(response["error"]["code"], code, "{what}: {response}");
    assert!(message.contains(words), "{what}: `{message}` does not say `{words}`");
    executor.assert_workspace_is_empty(what);
    response
}

#[test]
fn unknown_tools_and_invalid_arguments_are_refused_with_a_pointer() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let cases: [(&str, Value, &str, &str); 8] = [
        ("no_such_tool", json!({}), "/tool", "list of tools"),
        ("../write_file", json!({}), "/tool", "tool name"),
        ("write_file", json!({ "path": "/workspace/ran" }), "/arguments", "content"),
        ("write_file", json!({ "path": 5, "content": "x" }), "/arguments/path", "string"),
        ("write_file", json!({ "path": "/workspace/ran", "content": null }), "/arguments/content", "string"),
        (
            "write_file",
            json!({ "path": "/workspace/ran", "content": "x", "extra": 1 }),
            "/arguments",
            "extra",
        ),
        (
            "write_file",
            json!({ "path": "/workspace/ran", "content": "x", "mode": "destroy" }),
            "/arguments/mode",
            "",
        ),
        ("read_file", json!({ "path": "/workspace/ran", "limit": 0 }), "/arguments/limit", "minimum"),
    ];
    for (tool, arguments, pointer, words) in cases {
        for method in ["a2g/execute", "a2g/intent"] {
            // A pointer is into the params, and the intent is only one of the members of an execute.
            let (params, pointer) = match method {
                "a2g/execute" => (execute(tool, arguments.clone()), format!("/intent{pointer}")),
                _ => (intent(tool, arguments.clone()), pointer.to_owned()),
            };
            assert!(params.pointer(&pointer).is_some(), "{pointer} is in {params}");
            let response = client.rpc(method, &params);
            let refusal = error(&response, -32602);
            assert_eq!(refusal["data"]["pointer"], pointer, "{method} {tool} {arguments}: {refusal}");
            assert!(refusal["message"].as_str().unwrap().contains(words), "{refusal} does not say `{words}`");
            executor.assert_workspace_is_empty(tool);
        }
    }
}

#[test]
fn each_unusable_verdict_blocks_with_its_own_reason() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let scope = "/verdict/capability_manifest/filesystem_scope";
    let conditional = |condition: &str| {
        let mut call = call_with("/verdict/verdict", json!("CONDITIONAL"));
        call["verdict"]["conditions"] = json!([condition]);
        call
    };
    let mut cases: Vec<(String, Value, &str, &str)> = vec![
        (
            "expired".into(),
            call_with("/verdict/expires_at", json!(in_seconds(-1))),
            "verdict_expired",
            "expired at",
        ),
        (
            "expired with an offset".into(),
            call_with("/verdict/expires_at", json!("2020-01-01T00:00:00+14:00")),
            "verdict_expired",
            "expired at",
        ),
        (
            "another intent".into(),
            call_with("/verdict/intent_id", json!(intent_id())),
            "verdict_mismatch",
            "another intent",
        ),
        ("denied".into(), call_with("/verdict/verdict", json!("DENIED")), "verdict_denied", "denied"),
        (
            "escalated".into(),
            call_with("/verdict/verdict", json!("ESCALATE")),
            "escalation_pending",
            "person",
        ),
        ("a proof".into(), call_with("/proof", json!("e30.e30.AA")), "verdict_untrusted", "`proof`"),
        ("an empty proof".into(), call_with("/proof", json!("")), "verdict_untrusted", "`proof`"),
        (
            "a class that is read in two ways".into(),
            call_with(scope, json!(["/workspace/[^x]*"])),
            "scope_unenforceable",
            "write `[!x]`",
        ),
        (
            "a missing root".into(),
            {
                let mut call = call_with(scope, json!(["/workspace/missing/**"]));
                call["intent"]["arguments"]["path"] = json!("/workspace/missing/ran");
                call
            },
            "scope_unenforceable",
            "does not exist",
        ),
    ];
    // The other conditions and patterns that are none are in the tables of `capability`.
    for condition in ["READ_ONLY", "max_memory_mb:0"] {
        for verdict in ["CONDITIONAL", "APPROVED"] {
            let mut call = conditional(condition);
            call["verdict"]["verdict"] = json!(verdict);
            cases.push((format!("{verdict}, `{condition}`"), call, "condition_unknown", "condition"));
        }
    }
    for pattern in ["/workspace/a**", "C:\\**"] {
        let words = if pattern.starts_with("C:") { "another system or host" } else { "" };
        for (what, call) in [
            ("scope", call_with(scope, json!([pattern]))),
            ("beside a good one", call_with(scope, json!(["/workspace/**", pattern]))),
            ("condition", conditional(&format!("filesystem_scope:{pattern}"))),
        ] {
            cases.push((format!("{what} {pattern:?}"), call, "scope_unenforceable", words));
        }
    }
    for (what, call, by, words) in cases {
        let response = client.rpc("a2g/execute", &call);
        assert_eq!(response["error"]["code"], -32000, "{what}: {response}");
        assert_eq!(response["error"]["data"]["blocked_by"], by, "{what}: {response}");
        assert_eq!(response["error"]["data"]["intent_id"], call["intent"]["intent_id"], "{what}");
        assert!(expect_blocked(&response, by).contains(words), "{what}: {response}");
        executor.assert_workspace_is_empty(&what);
    }
}

#[test]
fn a_granted_folder_behind_a_symbolic_link_is_refused() {
    let executor = Executor::start(Options::new());
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), executor.workspace().join("link")).unwrap();
    let mut call = execute("write_file", json!({ "path": "/workspace/link/ran", "content": "x" }));
    call["verdict"]["capability_manifest"]["filesystem_scope"] = json!(["/workspace/link/**"]);
    let response = executor.rpc("a2g/execute", &call);
    assert!(expect_blocked(&response, "scope_unenforceable").contains("symbolic link"));
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_scope_that_grants_nothing_leaves_the_tool_without_files() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let scope = "/verdict/capability_manifest/filesystem_scope";
    for (grant, by) in
        [(json!([]), "verdict"), (json!(["/etc/**"]), "executor"), (json!(["/workspaces/**"]), "executor")]
    {
        let response = client.rpc("a2g/execute", &call_with(scope, grant.clone()));
        let report = &error(&response, -32001)["data"]["report"];
        let filesystem = &report["usage"]["limits"]["filesystem_scope"];
        assert_eq!((&filesystem["granted"], &filesystem["set_by"]), (&json!([]), &json!(by)), "{grant}");
        executor.assert_workspace_is_empty("a scope without files");
    }
    let mut without = call();
    without["verdict"]["capability_manifest"] = json!({});
    let response = client.rpc("a2g/execute", &without);
    let limits = &error(&response, -32001)["data"]["report"]["usage"]["limits"];
    assert_eq!(limits["network_allowed"]["granted"], false, "an absent network is none");
    for limit in ["max_memory_mb", "max_cpu_percent", "timeout_seconds", "max_output_bytes"] {
        assert!(limits[limit]["granted"].as_u64().unwrap() > 0, "an absent {limit} is not unlimited");
        assert!(["executor", "tool"].contains(&limits[limit]["set_by"].as_str().unwrap()), "{limits}");
    }
    executor.assert_workspace_is_empty("a manifest without members");
}

#[test]
fn every_known_condition_is_enforced() {
    const GROW: &str = r#"(module (memory (export "memory") 1)
        (func (export "_start")
          (if (i32.eq (memory.grow (i32.const 64)) (i32.const -1)) (then (unreachable)))))"#;
    let catalogue = methods::catalogue().add(Tool::command("grow", GROW));
    let executor =
        Executor::start(Options::new().catalogue(&catalogue).set("ceilings.network_allowed", true));
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    std::fs::create_dir(executor.workspace().join("inside")).unwrap();
    let mut client = executor.client();
    let mut run = |tool: &str, arguments: Value, condition: &str| {
        let mut call = execute(tool, arguments);
        call["verdict"]["verdict"] = json!("CONDITIONAL");
        call["verdict"]["conditions"] = json!([condition]);
        call["verdict"]["capability_manifest"]["network_allowed"] = json!(true);
        client.rpc("a2g/execute", &call)
    };
    let limits = |response: &Value| {
        let report = response.get("result").unwrap_or(&response["error"]["data"]["report"]);
        report["usage"]["limits"].clone()
    };

    let response = run("write_file", write("ran", "x"), "read_only");
    error(&response, -32001);
    let tree = &limits(&response)["filesystem_scope"]["trees"][0];
    assert_eq!((&tree["access"], &tree["access_set_by"]), (&json!("read-only"), &json!("condition")));
    assert_eq!(executor.file("ran"), None);
    result(&run("list_directory", json!({ "path": "/workspace" }), "read_only"));

    let response = run("gate", json!({ "n": 1 }), "no_network");
    result(&response);
    let network = &limits(&response)["network_allowed"];
    assert_eq!((&network["granted"], &network["set_by"]), (&json!(false), &json!("condition")));

    let outside = run("write_file", write("ran", "x"), "filesystem_scope:/workspace/inside/**");
    error(&outside, -32001);
    assert_eq!(executor.file("ran"), None);
    let inside = run("write_file", write("inside/ran", "x"), "filesystem_scope:/workspace/inside/**");
    result(&inside);
    let tree = &limits(&inside)["filesystem_scope"]["trees"][0];
    assert_eq!((&tree["path"], &tree["set_by"]), (&json!("/workspace/inside"), &json!("condition")));

    for (tool, condition, limit) in
        [("grow", "max_memory_mb:2", "memory"), ("gate", "max_output_bytes:10", "output")]
    {
        let response = run(tool, json!({ "condition": condition }), condition);
        assert_eq!(error(&response, -32003)["data"]["limit"], limit, "{response}");
        let (name, value) = condition.split_once(':').unwrap();
        let in_force = &limits(&response)[name];
        assert_eq!(in_force["granted"].to_string(), value);
        assert_eq!(in_force["set_by"], "condition");
    }
    std::fs::remove_file(executor.workspace().join("go")).unwrap();
    let response = run("gate", json!({ "n": 2 }), "timeout_seconds:1");
    let late = error(&response, -32003);
    assert_eq!(
        (&late["data"]["limit"], &late["data"]["report"]["status"]),
        (&json!("time"), &json!("TIMEOUT"))
    );
    assert_eq!(limits(&response)["timeout_seconds"]["set_by"], "condition");
}

#[test]
fn a_tampered_tool_does_not_run_and_other_tools_do() {
    let catalogue = Catalogue::with_tools()
        .add(Tool::command("broken", "(module (memory (export \"memory\") 1) (func (export \"_start\")))"))
        .add(Tool::command_bytes("garbage", b"\0asm of a kind".to_vec()))
        .add(Tool::command("unpinned", GATE))
        .add(Tool::command(
            "unlinkable",
            r#"(module (import "env" "system" (func)) (func (export "_start")))"#,
        ))
        .add(Tool::command("renamed", GATE));
    let module = catalogue.module("write_file");
    let mut bytes = std::fs::read(&module).unwrap();
    bytes.extend([0, 2, 1, b'x']);
    std::fs::write(&module, bytes).unwrap();
    std::fs::remove_file(catalogue.module("broken")).unwrap();
    std::fs::create_dir(catalogue.module("broken")).unwrap();
    Tool::command("unpinned", GATE).write(&catalogue.folder().join("unpinned"), false);
    Tool::command("other", GATE).write(&catalogue.folder().join("renamed"), true);
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    let mut client = executor.client();
    let folder = catalogue.folder().to_string_lossy().into_owned();
    for (tool, words) in [
        ("write_file", "SHA-256"),
        ("broken", "not a regular file"),
        ("garbage", ""),
        ("unpinned", "`tool.toml` is not valid"),
        ("unlinkable", ""),
        ("renamed", "`tool.toml` is not valid"),
    ] {
        let arguments = if tool == "write_file" { write("ran", "x") } else { json!({}) };
        for (method, params) in [
            ("a2g/execute", execute(tool, arguments.clone())),
            ("a2g/intent", intent(tool, arguments.clone())),
        ] {
            let response = client.rpc(method, &params);
            if tool == "write_file" {
                expect_blocked(&response, "tool_untrusted");
            } else {
                assert_eq!(error(&response, -32001)["data"]["tool"], tool, "{response}");
            }
            let refusal = &response["error"];
            assert!(refusal["message"].as_str().unwrap().contains(words), "{tool}: {refusal}");
            assert!(!refusal.to_string().contains(&folder), "a host path is told: {refusal}");
            executor.assert_workspace_is_empty(tool);
        }
    }
    let tools = client.rpc("a2g/tools", &json!({}));
    assert_eq!(result(&tools)["tools"].as_array().unwrap().len(), 6, "only usable tools are listed");
    result(&client.rpc("a2g/execute", &execute("list_directory", json!({ "path": "/workspace" }))));
}

#[test]
fn governor_messages_need_the_operators_permission() {
    let executor = Executor::start(Options::new().signed_only());
    let mut client = executor.client();
    expect_blocked(&client.rpc("a2g/execute", &call()), "verdict_untrusted");
    expect_blocked(
        &client.rpc("a2g/execute", &call_with("/proof", json!("e30.e30.AA"))),
        "verdict_untrusted",
    );
    let blocks = |response: &Value| assert!(!expect_blocked(response, "caller_unauthorized").is_empty());
    executor.assert_workspace_is_empty("an unsigned verdict");
    let none = json!({ "agent_did": AGENT, "version": "1", "capabilities": { "tools": {} } });
    blocks(&client.rpc("g2a/policy", &none));
    blocks(&client.rpc("g2a/revoke", &json!({ "agent_did": AGENT })));
    blocks(&client.rpc("g2a/directive", &json!({ "intent_id": intent_id(), "decision": "APPROVED" })));
    let notification = json!({ "jsonrpc": "2.0", "method": "g2a/policy", "params": none });
    assert_eq!(client.post(notification.to_string().as_bytes()).status, 204);
    // The governor's own word still counts, and none of the above was obeyed.
    let answer = client.rpc("a2g/intent", &intent("write_file", write("ran", "x")));
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
}

#[test]
fn oversized_and_deeply_nested_input_is_refused_briefly() {
    let executor = Executor::start(Options::new());
    let nested = |levels: usize| {
        // Two levels are the request and its params.
        let deep = format!("{}{}", "[".repeat(levels - 2), "]".repeat(levels - 2));
        request(&format!(r#"{{"deep":{deep}}}"#))
    };
    expect_error(&executor, "depth 65", nested(65).as_bytes(), -32700, "nested deeper than 64 levels");
    expect_error(&executor, "depth 64", nested(64).as_bytes(), -32602, "`intent` is missing");
    let most = vec![b' '; 1 << 20];
    let more = vec![b' '; (1 << 20) + 1];
    expect_error(&executor, "a body of 1 MiB and one", &more, -32700, "longer than 1048576 bytes");
    expect_error(&executor, "a body of 1 MiB", &most, -32700, "expected a value");
    let long = "x".repeat(10 << 20);
    let id = request(&call().to_string()).replace("\"id\":1", &format!("\"id\":\"{long}\""));
    expect_error(&executor, "a 10 MB id", id.as_bytes(), -32700, "longer than");
    let half = "x".repeat(900_000);
    for (what, call, by) in [
        ("a long condition", call_with("/verdict/conditions", json!([half])), "condition_unknown"),
        (
            "a long scope",
            call_with("/verdict/capability_manifest/filesystem_scope", json!([format!("/{half}/**")])),
            "scope_unenforceable",
        ),
    ] {
        let response = expect_error(&executor, what, request(&call.to_string()).as_bytes(), -32000, "");
        assert_eq!(response["error"]["data"]["blocked_by"], by);
    }
    let method = request(&call().to_string()).replace("a2g/execute", &half);
    expect_error(&executor, "a long method", method.as_bytes(), -32601, "there is no method");
    let large = Options::new().set("server.max_body_bytes", 16 << 20).set("server.max_json_depth", 8);
    let executor = Executor::start(large);
    expect_error(
        &executor,
        "a 10 MB id that is read",
        id.as_bytes(),
        -32600,
        "`id` is longer than 128 bytes",
    );
    expect_error(&executor, "depth 9", nested(9).as_bytes(), -32700, "nested deeper than 8 levels");
}

#[test]
fn an_invalid_configuration_exits_with_2_and_names_line_and_key() {
    // All that may be wrong is in the tests of `config`.
    let cases = [
        ("[ceilings]\n\nmax_memry_mb = 5\n", "line 3", "max_memry_mb"),
        ("[governor]\nurl = \"ftp://x\"\n", "line 2", "governor.url"),
    ];
    for (text, line, key) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("executor.toml"), text).unwrap();
        for arguments in [vec!["config", "check"], vec!["serve"], vec!["tool", "list"]] {
            let output = run_in(folder.path(), arguments.clone(), b"");
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{arguments:?} {text:?}: {stderr}");
            assert!(stderr.contains(line) && stderr.contains(key), "{arguments:?} {text:?}: {stderr}");
            assert!(output.stdout.is_empty());
        }
    }
    let missing = run(["serve", "--config", "missing.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("missing.toml"));
}

#[test]
fn an_invalid_policy_exits_with_2_and_names_line_or_key() {
    let good = methods::policy().to_string();
    let cases = [
        (good.replace("\"version\"", "\"versio\""), "version"),
        (good.replacen("\"/workspace/**\"", "\"/workspace/../**\"", 1), "/capabilities/tools/"),
        (good.replacen("\"allowed\":true", "\"allowed\":\"yes\"", 1), "/allowed"),
        (good.replacen("\"allowed\":true", "\"allow\":true", 1), "`allowed` is missing"),
        (
            good.replacen("\"paths\"", "\"path\"", 1),
            "`path` is not a known member (did you mean `paths`?); the members here are `blocked_paths`",
        ),
        (
            good.replacen("\"allowed\":true", "\"allowed\":true,\"allowed\":true", 1),
            "duplicate key `allowed` at line 1",
        ),
        (format!("\n\n{good}}}"), "line 3"),
        (String::new(), "line 1"),
    ];
    for (text, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.json"), &text).unwrap();
        let policies = folder.path().to_str().unwrap();
        let config = json!({ "catalog": { "tools": tools(), "cache": cache() },
            "ceilings": { "filesystem_scope": ["/workspace/**"] } });
        std::fs::write(folder.path().join("executor.toml"), toml::to_string(&config).unwrap()).unwrap();
        let config = folder.path().join("executor.toml");
        let config = config.to_str().unwrap();
        for arguments in [
            vec!["governor", "--listen", "127.0.0.1:0", "--policies", policies],
            vec!["serve", "--listen", "127.0.0.1:0", "--config", config, "--policies", policies],
            vec!["run", "list_directory", "--config", config, "--policy", policies],
        ] {
            let output = run(arguments.clone());
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{arguments:?} {text}: {stderr}");
            assert!(stderr.contains("policy.json") && stderr.contains(words), "{text}: {stderr}");
        }
    }
    let empty = tempfile::tempdir().unwrap();
    let output = run(["governor", "--policies", empty.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn unsigned_verdicts_are_accepted_on_loopback_only() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let output = run(["serve", "--insecure-accept-unsigned", "--listen", address]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{address}: {stderr}");
        assert!(stderr.contains("loopback"), "{stderr}");
    }
    let executor = Executor::start(Options::new());
    assert!(executor.stderr().contains("WARN") && executor.stderr().contains("--insecure-accept-unsigned: "));
}

/// Addresses are reserved only for runs in the server's own process.
#[test]
fn as_many_runs_as_may_be_configured_have_processes_of_their_own() {
    let options = |isolation: &str| {
        Options::new().set("executor.concurrent", 4096).set("executor.isolation", isolation)
    };
    drop(Executor::start(options("process")));
    drop(Executor::start(options("inline").set("executor.concurrent", 166)));
    harness::callers::assert_unusable(
        options("inline"),
        "`executor.concurrent` has to be at most 166 with tools inside the server",
    );
}
