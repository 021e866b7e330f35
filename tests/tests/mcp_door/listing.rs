//! The catalogue as code: the bytes that a model reads before it can call one of 500 tools, and the tools that are hidden
//! from it.

use crate::mcp::Host;
use harness::callers::{List, agent, assert_unusable, rpc};
use harness::mcp::{call, open_session, post, request};
use harness::*;
use serde_json::{Value, json};
use std::process::Command;

/// The tokens that a list, an overview and the answer to a query may cost together.
const MAX_TOKENS: usize = 2_000;
/// Bytes of text for two tokens: tokenizers make three to four bytes of JSON and code into one, so this counts 3.5.
const BYTES_PER_TWO_TOKENS: usize = 7;

const SYSTEMS: [&str; 10] =
    ["calendar", "chat", "files", "forge", "mail", "notes", "orders", "payments", "tickets", "wiki"];
const VERBS: [&str; 10] =
    ["archive", "assign", "create", "delete", "export", "list", "move", "read", "search", "update"];
const NOUNS: [&str; 5] = ["comment", "entry", "label", "owner", "report"];
/// The system whose tools no policy allows.
const FORBIDDEN: &str = "payments_";

/// 500 names, such as `mail_archive_comment`.
fn names() -> impl Iterator<Item = String> {
    SYSTEMS.into_iter().flat_map(|system| {
        VERBS.into_iter().flat_map(move |verb| NOUNS.map(|noun| format!("{system}_{verb}_{noun}")))
    })
}

/// A schema of the size that tools for services have.
fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["id"],
        "additionalProperties": false,
        "properties": {
            "id": { "type": "string", "description": "The id, as a list or a search has answered it." },
            "fields": { "type": "array", "items": { "enum": ["title", "body", "state"] },
                "description": "The fields of the answer; absent: all of them." },
            "filter": { "type": "object", "description": "What the answer is limited to.", "properties": {
                "since": { "type": "string", "format": "date-time", "description": "Changed since then." },
                "author": { "type": ["string", "null"], "description": "Written by this person." } } },
            "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "At most this many." },
        },
    })
}

fn interpreter(name: &str, language: &str) -> Tool {
    let description = format!(
        "Runs a {language} program. It calls other tools as `tools.NAME`, and its last value is the result. Files of the \
         granted scope can be opened."
    );
    let schema = json!({ "type": "object", "required": ["code"], "additionalProperties": false, "properties": {
        "code": { "type": "string", "description": "The program." },
        "input": { "description": "Any JSON, which the program has as `input`." } } });
    Tool::command(name, &saying(1, "{}", 0)).schema(schema).declare("description", json!(description))
}

/// The tools by name, all of them with one module, and two interpreters.
fn catalogue() -> Catalogue {
    let catalogue = Catalogue::empty()
        .add(interpreter("run_javascript", "JavaScript"))
        .add(interpreter("run_python", "Python"));
    let wasm = wat::parse_str(saying(1, "{}", 0)).expect("WAT");
    let result = json!({ "type": "object", "properties": { "state": { "type": "string" } } });
    names().fold(catalogue, |catalogue, name| {
        let words = name.replace('_', " ");
        let description = format!("Does what its name says ({words}), for the people of one project.");
        let tool = Tool::command_bytes(&name, wasm.clone()).schema(schema()).filesystem("none");
        catalogue.add(tool.declare("description", json!(description)).declare("result", result.clone()))
    })
}

/// A policy for every tool that is not forbidden.
fn policy() -> Value {
    let allowed = names().filter(|name| !name.starts_with(FORBIDDEN));
    let allowed = allowed.chain(["run_javascript", "run_python"].map(str::to_owned));
    let allowed = allowed.map(|name| (name, json!({}))).collect::<Vec<_>>();
    let allowed = allowed.iter().map(|(name, rule)| (&**name, rule.clone())).collect::<Vec<_>>();
    policy_for_all(&allowed)
}

fn as_code(options: Options) -> Options {
    options.set("doors.mcp", json!({ "listing": "code" }))
}

fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

fn tokens(bytes: usize) -> usize {
    (bytes * 2).div_ceil(BYTES_PER_TWO_TOKENS)
}

/// The longer one of the text and the structured content of a result: a model reads one of them.
fn cost(result: &Value) -> usize {
    text_of(result).len().max(result["structuredContent"].to_string().len())
}

/// The queries that look for forbidden tools, by name and by words.
fn curious() -> impl Iterator<Item = String> {
    let own = names().filter(|name| name.starts_with(FORBIDDEN)).step_by(7);
    own.flat_map(|name| [name.replace('_', " "), name]).chain(["payments", "", "zebra"].map(str::to_owned))
}

#[test]
fn five_hundred_tools_cost_under_2000_tokens_and_no_forbidden_one_is_named() {
    let catalogue = catalogue();
    let policies = methods::policy_folder(&[policy()]);
    let mut executor =
        Executor::start(as_code(Options::new().catalogue(&catalogue).policies(policies.path())));
    executor.process().line_with("all tools are prepared");
    let mut client = executor.client();
    let describe = |client: &mut HttpClient, arguments: Value| {
        let answer = post(client, &call(1, "describe_tools", &arguments), &[]).json();
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert!(!answer.to_string().contains(FORBIDDEN), "{arguments}: {answer}");
        assert!(answer["result"]["_meta"].get("a2g/intent_id").is_none(), "{answer}");
        answer["result"].clone()
    };

    let listed = post(&mut client, &request(1, "tools/list", json!({})), &[]).json()["result"].take();
    let tools = listed["tools"].as_array().expect("tools");
    let listed_names = tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect::<Vec<_>>();
    assert_eq!(listed_names, ["describe_tools", "run_javascript", "run_python"]);
    assert_eq!(listed.get("nextCursor"), None);
    assert_eq!(
        tools[0]["annotations"],
        json!({ "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false })
    );
    let overview = describe(&mut client, json!({}));
    assert!(text_of(&overview).contains("forge (50)"), "{overview}");
    assert_eq!(overview["structuredContent"]["tools"], 450);
    for language in ["javascript", "python"] {
        let found = describe(&mut client, json!({ "query": "search the tickets", "language": language }));
        let described = found["structuredContent"]["described"].as_array().expect("names");
        assert!(described.len() > 1 && described[0] == "tickets_search_entry", "{found}");
        let total = listed["tools"].to_string().len() + cost(&overview) + cost(&found);
        println!(
            "{language}: list {}, overview {}, answer {} with {} stubs: {} tokens",
            listed["tools"].to_string().len(),
            cost(&overview),
            cost(&found),
            described.len(),
            tokens(total)
        );
        assert!(tokens(total) < MAX_TOKENS, "{total} bytes");
    }
    let whole = result(&executor.rpc("a2g/tools", &json!({})))["tools"].to_string().len();
    println!("the whole list: {} tokens", tokens(whole));

    let exact = describe(&mut client, json!({ "query": "wiki_move_label" }));
    assert!(text_of(&exact).contains("  wiki_move_label(args: {\n"), "{exact}");
    curious().for_each(|query| drop(describe(&mut client, json!({ "query": query }))));

    // A description is no permission: what is not listed is decided about as before.
    let direct = post(&mut client, &call(2, "wiki_move_label", &json!({ "id": "7" })), &[]).json();
    assert_eq!(direct["result"]["isError"], false, "{direct}");
    let refused = post(&mut client, &call(3, "payments_read_entry", &json!({ "id": "7" })), &[]).json();
    assert_ne!(refused["result"]["isError"], false, "{refused}");
    assert_eq!(executor.wait_for_reports(1).len(), 1);

    // A2G, for the agent that MCP's calls have, and for one whose policy reaches less.
    let code = |more: Value| {
        let mut params = json!({ "listing": "code", "agent_did": "did:a2g:agent:1.0:mcp" });
        more.as_object().expect("an object").iter().for_each(|(name, value)| params[name] = value.clone());
        params
    };
    let listed = executor.rpc("a2g/tools", &code(json!({})));
    let a2g_tools = result(&listed)["tools"].as_array().expect("tools");
    assert_eq!(
        a2g_tools.iter().map(|tool| &tool["name"]).collect::<Vec<_>>(),
        ["run_javascript", "run_python"]
    );
    let overview = executor.rpc("a2g/tools", &code(json!({ "query": "" })));
    let query = json!({ "query": "search the tickets" });
    let found = executor.rpc("a2g/tools", &code(query.clone()));
    assert_eq!(result(&found), &describe(&mut client, query)["structuredContent"]);
    let total =
        [&listed, &overview, &found].map(|answer| result(answer).to_string().len()).iter().sum::<usize>();
    println!("A2G: {} tokens", tokens(total));
    assert!(tokens(total) < MAX_TOKENS, "{total} bytes");
    for query in curious() {
        let answer = executor.rpc("a2g/tools", &code(json!({ "query": query })));
        assert!(!result(&answer).to_string().contains(FORBIDDEN), "{query}: {answer}");
    }
    for (params, pointer) in [
        (json!({ "listing": "code" }), "/agent_did"),
        (json!({ "listing": "more" }), "/listing"),
        (json!({ "query": "x" }), "/query"),
        (code(json!({ "language": "python" })), "/query"),
        (code(json!({ "query": "x", "language": "perl" })), "/language"),
        (code(json!({ "query": "x".repeat(1001) })), "/query"),
        (code(json!({ "quary": "x" })), "/quary"),
    ] {
        let answer = executor.rpc("a2g/tools", &params);
        assert_eq!(error(&answer, -32602)["data"]["pointer"], pointer, "{answer}");
    }
}

/// Two tools, and a policy that allows both.
fn file_tools() -> (Catalogue, tempfile::TempDir) {
    let tool = |name: &str| Tool::command(name, &saying(1, "{}", 0)).schema(schema());
    let catalogue = Catalogue::empty().add(tool("read_file")).add(tool("hash_file"));
    let policy = policy_for_all(&[("read_file", json!({})), ("hash_file", json!({}))]);
    (catalogue, methods::policy_folder(&[policy]))
}

#[test]
fn arguments_of_describe_tools_are_checked_in_both_revisions() {
    let (catalogue, policies) = file_tools();
    let mut executor =
        Executor::start(as_code(Options::new().catalogue(&catalogue).policies(policies.path())));
    executor.process().line_with("all tools are prepared");
    let mut client = executor.client();
    for (arguments, pointer) in [
        (json!({ "query": 7 }), "/arguments/query"),
        (json!({ "query": "x".repeat(1001) }), "/arguments/query"),
        (json!({ "language": "perl" }), "/arguments/language"),
        (json!({ "words": "x" }), "/arguments/words"),
    ] {
        let answer = post(&mut client, &call(1, "describe_tools", &arguments), &[]).json();
        let details = &answer["result"]["_meta"]["a2g/error"];
        assert_eq!(
            (&answer["result"]["isError"], &details["pointer"]),
            (&json!(true), &json!(pointer)),
            "{answer}"
        );
    }
    let session = open_session(&mut client, &[], json!({}));
    let message = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "describe_tools", "arguments": { "query": "read_file" } } });
    let json_only = [("Content-Type", "application/json"), ("Accept", "application/json")];
    let headers = [&json_only[..], &[("Mcp-Session-Id", &*session)]].concat();
    let answer = client.request("POST", "/mcp", &headers, message.to_string().as_bytes()).json();
    assert_eq!(answer["result"]["structuredContent"]["described"], json!(["read_file"]), "{answer}");
    assert!(text_of(&answer["result"]).contains("read_file(args: {"), "{answer}");
    assert!(executor.home().list_journal(&[]).is_empty());
}

#[test]
fn a_host_asks_for_code_with_an_option() {
    let (catalogue, _) = file_tools();
    let folder = catalogue.folder();
    let tools = ["--tools", folder.to_str().expect("UTF-8")];
    let mut host = Host::spawn(&[&tools[..], &["--listing", "code"]].concat(), None);
    let listed = host.ask(&request(1, "tools/list", json!({})))["result"]["tools"].take();
    let names = listed.as_array().expect("tools").iter().map(|tool| &tool["name"]).collect::<Vec<_>>();
    assert!(names.contains(&&json!("describe_tools")) && !names.contains(&&json!("read_file")), "{names:?}");
    let answer = host.ask(&call(2, "describe_tools", &json!({ "query": "hash_file", "language": "python" })));
    assert!(text_of(&answer["result"]).contains("    def hash_file(self, *,\n"), "{answer}");
    // Without it, there is no such tool.
    let mut host = Host::spawn(&tools, None);
    let answer = host.ask(&call(1, "describe_tools", &json!({})));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

/// Schemas and texts that are awkward as types.
fn awkward() -> Catalogue {
    let text = "*/ x(): void; /* \"\"\" \\ `${y}` # \u{202e}\u{2028}";
    let node = json!({ "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } } });
    let schema = json!({
        "type": "object",
        "required": ["in", "x"],
        "properties": {
            "in": { "enum": [text, 1, -2.5, true, null], "description": text },
            "x": { "oneOf": [{ "properties": { "kind": { "const": "a" } }, "required": ["kind"] }, { "type": "integer" }] },
            "y": { "type": ["array", "null"], "items": { "type": "object", "additionalProperties": { "type": "string" } } },
            "a b": { "$ref": "#/$defs/node" },
            "z": { "type": "object", "properties": { "class": {}, text: {} }, "additionalProperties": { "type": "number" } },
            "w": { "type": "string", "default": text },
        },
        "$defs": { "node": node },
    });
    let tool = |name: &str, schema: &Value| {
        let tool = Tool::command(name, &saying(1, "{}", 0)).schema(schema.clone());
        tool.declare("description", json!(text)).declare("result", schema.clone())
    };
    let open = json!({ "type": "object" });
    let closed = json!({ "type": "object", "additionalProperties": false });
    let either = json!({ "anyOf": [schema, closed], "$defs": schema["$defs"] });
    // TOML has no null.
    let schema: Value = serde_json::from_str(&schema.to_string().replace(",null]", "]")).expect("JSON");
    let either: Value = serde_json::from_str(&either.to_string().replace(",null]", "]")).expect("JSON");
    Catalogue::empty()
        .add(tool("plain", &schema))
        .add(tool("with-dash.and_dot", &schema))
        .add(tool("import", &open))
        .add(tool("closed", &closed))
        .add(tool("either", &either))
}

/// Runs a compiler, which has to accept what it is given.
fn accepts(command: &mut Command, what: &str) {
    let output = command.output().expect("it runs");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{said}\n{what}");
}

#[test]
fn the_compilers_of_both_languages_read_the_stubs() {
    let catalogue = awkward();
    let allowed = ["plain", "with-dash.and_dot", "import", "closed", "either"].map(|name| (name, json!({})));
    let policies = methods::policy_folder(&[policy_for_all(&allowed)]);
    let mut executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    executor.process().line_with("all tools are prepared");
    let query = allowed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
    let describe = |language: &str| {
        let params = json!({ "listing": "code", "agent_did": AGENT, "query": query, "language": language });
        let answer = executor.rpc("a2g/tools", &params);
        assert_eq!(result(&answer)["described"].as_array().map(Vec::len), Some(allowed.len()), "{answer}");
        result(&answer)["text"].as_str().expect("a text").to_owned()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };

    let stubs = describe("python");
    let script = "import ast, sys; ast.parse(open(sys.argv[1], encoding='utf-8').read())";
    if Command::new("python3").arg("--version").output().is_ok() {
        accepts(Command::new("python3").args(["-c", script]).arg(put("tools.pyi", &stubs)), &stubs);
    } else {
        print_skipped("there is no python3 here");
    }

    let stubs = describe("javascript");
    let modules = clients().join("node22/node_modules");
    let node = modules.join("node/bin/node");
    let compiler = modules.join("typescript/bin/tsc");
    if !(node.is_file() && compiler.is_file()) {
        return print_skipped("there is no TypeScript here: run `cargo xtask setup`");
    }
    let program = r#"
        tools.closed();
        tools.import({ any: "thing" });
        const made = await tools["with-dash.and_dot"]({ in: 1, x: { kind: "a" }, z: { more: 1 } });
        made.y?.map((entry) => entry["key"].length);
        // @ts-expect-error: `in` is missing.
        tools.plain({ x: 1 });
        // @ts-expect-error: there is no such tool.
        tools.none();
        export {};
    "#;
    let files = [put("tools.d.ts", &stubs), put("program.ts", program)];
    let options = ["--noEmit", "--strict", "--target", "es2022", "--module", "es2022", "--types", ""];
    accepts(Command::new(node).arg(compiler).args(options).args(files), &stubs);
}

/// Each caller of A2G is told of the tools of its own agents.
#[test]
fn a_list_of_code_is_that_of_the_callers_agent() {
    let list = List::new();
    let other = "did:aeon:other:1.0:abc123";
    let mine = agent(&list, "mine", AGENT);
    let boss = list.add("boss", &["--role", "governor"]);
    let mut narrow = policy_for_all(&[("read_file", json!({}))]);
    narrow["agent_did"] = json!(AGENT);
    let policies = methods::policy_folder(&[narrow, policy_for_all(&[("hash_file", json!({}))])]);
    let (catalogue, _) = file_tools();
    let mut executor = Executor::start(list.options().catalogue(&catalogue).policies(policies.path()));
    executor.process().line_with("all tools are prepared");
    let mut client = executor.client();
    let mut described = |token: &str, more: Value| {
        let mut params = json!({ "listing": "code", "query": "file" });
        more.as_object().expect("an object").iter().for_each(|(name, value)| params[name] = value.clone());
        rpc(&mut client, token, "a2g/tools", &params)
    };
    assert_eq!(result(&described(&mine, json!({})))["described"], json!(["read_file"]));
    expect_blocked(&described(&mine, json!({ "agent_did": other })), "caller_unauthorized");
    assert_eq!(error(&described(&boss, json!({})), -32602)["data"]["pointer"], "/agent_did");
    assert_eq!(result(&described(&boss, json!({ "agent_did": other })))["described"], json!(["hash_file"]));
}

#[test]
fn a_tool_with_the_name_of_the_request_is_refused_at_the_start() {
    let catalogue = Catalogue::empty().add(Tool::command("describe_tools", &saying(1, "{}", 0)));
    let words = "`doors.mcp.listing` is `code`, which lists `describe_tools` as the executor's own";
    assert_unusable(as_code(Options::new().catalogue(&catalogue)), words);
    // In a list of tools it is one of them.
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    eventually("it is listed", || {
        let listed = post(&mut executor.client(), &request(1, "tools/list", json!({})), &[]);
        (listed.status == 200).then_some(())
    });
}

#[test]
fn the_instructions_name_tools_that_cannot_be_used_and_no_forbidden_one() {
    let thrower = |name| {
        Tool::command(name, "(module (tag) (memory (export \"memory\") 1) (func (export \"_start\")))")
    };
    let catalogue = Catalogue::empty().add(thrower("throws")).add(thrower("payments_throw"));
    let policies = methods::policy_folder(&[policy_for_all(&[("throws", json!({}))])]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let mut client = executor.client();
    let named = "`throws`: the module cannot be compiled: it uses WebAssembly exceptions, which are off: the operator \
                 can set `exceptions = true`";
    let told = eventually("the tool is known to be unusable", || {
        let answer = post(&mut client, &request(1, "server/discover", json!({})), &[]).json();
        let told = answer["result"]["instructions"].as_str().unwrap_or_else(|| panic!("{answer}"));
        told.contains("`throws`").then(|| told.to_owned())
    });
    assert!(told.contains(named) && !told.contains("payments_throw"), "{told}");
}
