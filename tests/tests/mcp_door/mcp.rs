//! The MCP door over HTTP and over standard input and output, in both of its revisions.

use harness::mcp::{LATEST, call, events, initialize_request, open_session, post, request, stream};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

#[test]
fn a_host_lists_and_calls_tools_without_a_session() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let discovered = post(&mut client, &request(1, "server/discover", json!({})), &[]).json();
    assert_eq!(discovered["result"]["supportedVersions"], json!([LATEST, "2025-11-25"]), "{discovered}");
    assert_eq!(discovered["result"]["capabilities"]["tools"]["listChanged"], true);
    let listed = post(&mut client, &request(2, "tools/list", json!({})), &[]).json();
    let tools = listed["result"]["tools"].as_array().expect("tools");
    let names = tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect::<Vec<_>>();
    assert!(names.is_sorted() && names.contains(&"write_file"), "{names:?}");
    let find = |name: &str| tools.iter().find(|tool| tool["name"] == name).expect("the tool");
    assert_eq!(find("read_file")["annotations"]["readOnlyHint"], true);
    assert_eq!(find("write_file")["annotations"]["readOnlyHint"], false);

    let answer = post(&mut client, &call(3, "write_file", &write("a", "hi")), &[]).json();
    let result = &answer["result"];
    assert_eq!((&result["isError"], &result["resultType"]), (&json!(false), &json!("complete")), "{answer}");
    assert_eq!(result["structuredContent"]["path"], "/workspace/a");
    assert_eq!(result["_meta"]["a2g/verdict"]["decision"], "APPROVED");
    assert!(result["_meta"]["a2g/usage"]["limits"]["max_memory_mb"]["granted"].is_u64(), "{answer}");
    assert_eq!(executor.file("a").as_deref(), Some("hi"));
    let [report] = &executor.wait_for_reports(1)[..] else { panic!("one report") };
    assert_eq!(report["intent_id"], result["_meta"]["a2g/intent_id"]);
}

#[test]
fn refusals_and_failures_are_results_that_a_model_can_act_on() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    for (tool, arguments, member, value, text) in [
        (
            "write_file",
            json!({ "path": "/etc/passwd", "content": "x" }),
            "blocked_by",
            json!("verdict_denied"),
            "/etc/passwd",
        ),
        ("write_file", json!({ "path": 7, "content": "x" }), "pointer", json!("/arguments/path"), "path"),
        ("read_file", json!({ "path": "/workspace/none" }), "status", json!("FAILURE"), "none"),
    ] {
        let answer = post(&mut client, &call(1, tool, &arguments), &[]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let result = &answer.json()["result"];
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["_meta"]["a2g/error"][member], value, "{result}");
        assert!(result["content"][0]["text"].as_str().expect("a text").contains(text), "{result}");
    }
    assert_eq!(executor.wait_for_reports(1).len(), 1, "only the tool that ran is reported");
}

#[test]
fn an_intent_of_the_clients_own_runs_once() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let mut message = call(1, "write_file", &write("once", "1"));
    message["params"]["_meta"]["a2g/intent_id"] = json!(intent_id());
    let first = post(&mut client, &message, &[]).json();
    std::fs::remove_file(executor.workspace().join("once")).expect("it ran");
    assert_eq!(post(&mut client, &message, &[]).json(), first);
    assert_eq!(executor.file("once"), None, "it ran again");
    message["params"]["arguments"] = write("other", "2");
    let conflict = post(&mut client, &message, &[]).json();
    assert!(conflict.get("error").is_some() || conflict["result"]["isError"] == true, "{conflict}");
    executor.assert_workspace_is_empty("an intent with two contents");
}

#[test]
fn headers_that_contradict_the_message_are_refused_and_nothing_runs() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let message = call(1, "write_file", &write("a", "x"));
    for (header, value) in [
        ("MCP-Protocol-Version", ""),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("Mcp-Method", ""),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Name", ""),
        ("Mcp-Name", "read_file"),
        ("Mcp-Name", "=?base64?!!?="),
    ] {
        let answer = post(&mut client, &message, &[(header, value)]);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &json!(-32020)),
            "{header}: {value}"
        );
    }
    let mut unknown = message;
    unknown["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("1900-01-01");
    let answer = post(&mut client, &unknown, &[]);
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32022)));
    assert_eq!(answer.json()["error"]["data"]["supported"], json!([LATEST, "2025-11-25"]));
    let removed = post(&mut client, &request(2, "ping", json!({})), &[]);
    assert_eq!((removed.status, &removed.json()["error"]["code"]), (404, &json!(-32601)));
    executor.assert_workspace_is_empty("refused headers");
}

#[test]
fn a_session_lists_calls_cancels_and_ends() {
    let executor = Executor::start(Options::new());
    let mut client = executor.client();
    let plain = |id: u64, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let json = ("Content-Type", "application/json");
    let session = open_session(&mut client, &[], json!({}));
    let mine = ("Mcp-Session-Id", &*session);
    let accepts = ("Accept", "application/json, text/event-stream");
    let mut send = |message: &Value, headers: &[(&str, &str)]| {
        client.request("POST", "/mcp", headers, message.to_string().as_bytes())
    };
    let started = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(send(&started, &[json, mine]).status, 202);
    let listed = send(&plain(2, "tools/list", json!({})), &[json, mine]).json();
    assert!(listed["result"]["tools"].is_array() && listed["result"].get("ttlMs").is_none(), "{listed}");
    let written = plain(3, "tools/call", json!({ "name": "write_file", "arguments": write("s", "hi") }));
    let answer = send(&written, &[json, mine, accepts]);
    let answered = events(&answer);
    assert_eq!(answered.last().expect("an answer")["result"]["isError"], false, "{answered:?}");
    // The first event lets a client resume the stream before there is a message, and says when. An earlier revision does
    // not have it.
    assert!(
        answer.text().starts_with("id: 1-0\nretry: 1000\ndata: \n\nid: 1-1\ndata: {"),
        "{}",
        answer.text()
    );
    let mut earlier = initialize_request(json!({}));
    earlier["params"]["protocolVersion"] = json!("2025-06-18");
    let opened = send(&earlier, &[json]);
    let session_of = |answer: &HttpAnswer| {
        let session = answer.headers.iter().find(|(name, _)| name == "mcp-session-id");
        session.expect("a session").1.clone()
    };
    let earlier = session_of(&opened);
    let answer = send(&written, &[json, ("Mcp-Session-Id", &earlier), accepts]);
    assert!(answer.text().starts_with("id: 1-0\ndata: {"), "{}", answer.text());
    // Nobody else's session, and none that has ended, is there.
    for (headers, status) in [
        (vec![json], 400),
        (vec![json, ("Mcp-Session-Id", "none")], 404),
        (vec![json, mine, ("MCP-Protocol-Version", "1900-01-01")], 400),
    ] {
        let answer = send(&plain(4, "tools/list", json!({})), &headers);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
    }
    assert_eq!(client.request("DELETE", "/mcp", &[mine], b"").status, 204);
    assert_eq!(client.request("GET", "/mcp", &[mine], b"").status, 404);
}

/// A client that gives up waiting stops what runs for it, by closing its response, or in a session by a notification.
#[test]
fn a_call_that_its_client_gives_up_is_cancelled() {
    let catalogue = methods::catalogue();
    let anywhere = json!({ "paths": ["/workspace/**"] });
    let policies = methods::policy_folder(&[policy_for_all(&[("gate", anywhere)])]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let arguments = json!({ "path": "/workspace/x" });
    let plain = call(1, "gate", &arguments);
    let mut streamed = plain.clone();
    streamed["params"]["_meta"]["progressToken"] = json!("p");
    for (round, message) in [(1, &plain), (2, &streamed)] {
        let events = stream(&executor, &[], message);
        executor.wait_at_the_gate(round);
        drop(events);
        assert_eq!(executor.wait_for_reports(round)[round - 1]["status"], "ABORTED", "{message}");
    }

    let mut client = executor.client();
    let json = ("Content-Type", "application/json");
    let session = open_session(&mut client, &[], json!({}));
    let called = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "gate", "arguments": arguments } });
    let mine = [("Mcp-Session-Id", &*session), ("MCP-Protocol-Version", "2025-11-25")];
    let events = stream(&executor, &mine, &called);
    executor.wait_at_the_gate(3);
    // A connection that breaks cancels nothing here.
    drop(events);
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    let sent =
        client.request("POST", "/mcp", &[json, ("Mcp-Session-Id", &session)], cancel.to_string().as_bytes());
    assert_eq!(sent.status, 202);
    assert_eq!(executor.wait_for_reports(3)[2]["status"], "ABORTED");
}

#[test]
fn a_tool_that_is_not_listed_reveals_neither_name_nor_header() {
    let schema = json!({ "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
    let says = wat::parse_str(saying(1, "1", 0)).expect("WAT");
    let catalogue = Catalogue::with_tools().add(Tool::command_bytes("says", says).schema(schema));
    for (allowed, expected) in [("says", json!(-32020)), ("write_file", Value::Null)] {
        let policies = methods::policy_folder(&[policy_for_all(&[(allowed, json!({}))])]);
        let executor = Executor::start(Options::new().policies(policies.path()).catalogue(&catalogue));
        let mut client = executor.client();
        eventually("the tool is compiled", || {
            let answer = post(&mut client, &call(1, "says", &json!({ "region": "x" })), &[]).json();
            let is_compiling = answer["result"]["_meta"]["a2g/error"].get("retry_after_ms").is_some();
            (!is_compiling && answer["error"]["code"] != -32602).then_some(())
        });
        let answer = post(&mut client, &call(1, "says", &json!({ "region": "x" })), &[]).json();
        assert_eq!(answer["error"]["code"], expected, "{answer}");
        assert!(allowed == "says" || answer["result"]["isError"] == true, "{answer}");
        let misspelt = post(&mut client, &call(2, "sayz", &json!({})), &[]).json();
        let message = misspelt["error"]["message"].as_str().expect("a text");
        assert_eq!(message.contains("did you mean"), allowed == "says", "{message}");
    }
}

/// `a2g-executor mcp` in a folder of its own.
pub struct Host {
    process: Process,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
    /// Beside the folder that tools may use: they must not reach the journal.
    state: tempfile::TempDir,
}

impl Host {
    pub fn start(more: &[&str]) -> Self {
        Self::start_with(more, None)
    }

    /// Starts it with the state of another one, or with its own.
    fn start_with(more: &[&str], shared: Option<&Path>) -> Self {
        let tools = tools();
        let own = ["--tools", tools.to_str().expect("UTF-8")];
        Self::spawn(&[&own, more].concat(), shared)
    }

    /// Starts one that uses an executor which runs already.
    pub fn connect(address: SocketAddr, more: &[&str]) -> Self {
        let url = format!("http://{address}/mcp");
        Self::connect_to(&url, more)
    }

    /// Starts one that uses a server at this URL.
    pub fn connect_to(url: &str, more: &[&str]) -> Self {
        Self::spawn(&[&["--connect", url], more].concat(), None)
    }

    /// Starts the command with these arguments alone.
    pub fn spawn(arguments: &[&str], shared: Option<&Path>) -> Self {
        Self::spawn_with(arguments, shared, &[])
    }

    /// As [`Self::spawn`], with these variables.
    pub fn spawn_with(arguments: &[&str], shared: Option<&Path>, variables: &[(&str, &str)]) -> Self {
        let state = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(program());
        command.arg("mcp").args(arguments);
        command.env("XDG_STATE_HOME", shared.unwrap_or(state.path())).env("XDG_CACHE_HOME", cache_home());
        command.envs(variables.iter().copied());
        Self::from_command(command, state)
    }

    /// Starts a command in a folder of its own. `state` is removed with it.
    pub fn from_command(mut command: Command, state: tempfile::TempDir) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn("host", &mut command);
        let output = process.child().stdout.take().map(BufReader::new);
        Self { input: process.child().stdin.take(), output, process, folder, state }
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Closes standard input, and gives the messages until the end.
    pub fn finish(mut self) -> Vec<Value> {
        drop(self.input.take());
        let lines = self.output.take().expect("it is open").lines();
        let reading = std::thread::spawn(move || {
            lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect()
        });
        let ended = self.process.wait_for_exit();
        assert!(ended.success(), "{}", self.process.stderr());
        reading.join().expect("messages")
    }

    /// The folder of its state.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// Closes standard input.
    pub fn close_input(&mut self) {
        drop(self.input.take());
    }

    /// Closes standard output, and gives the exit status once standard input is closed, too.
    pub fn abandon(mut self) -> std::process::ExitStatus {
        drop(self.output.take());
        drop(self.input.take());
        self.process.wait_for_exit()
    }

    pub fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{message}").and_then(|()| input.flush()).expect("it reads");
    }

    pub fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.as_mut().expect("it is open").read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub fn ask(&mut self, message: &Value) -> Value {
        self.send(message);
        self.receive()
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().canonicalize().expect("a path").join(name).to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.input.take());
        if !std::thread::panicking() && self.output.is_some() {
            assert!(self.process.wait_for_exit().success(), "{}", self.process.stderr());
        }
    }
}

/// The text of a result that is an error.
fn error_text(answer: &Value) -> &str {
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["content"][0]["text"].as_str().expect("a text")
}

#[test]
fn a_host_needs_no_configuration() {
    let mut host = Host::start(&[]);
    let journal = host.state.path().join("a2g-executor/journal.db");
    host.process().line_with(&format!("the journal of this process is {}", journal.display()));
    let listed = host.ask(&request(1, "tools/list", json!({})));
    let tools = listed["result"]["tools"].as_array().expect("tools");
    assert!(tools.len() > 5 && tools.iter().all(|tool| tool["name"] != "http_fetch"), "{listed}");
    let inside = json!({ "path": host.path("notes.txt"), "content": "hi" });
    let answer = host.ask(&call(2, "write_file", &inside));
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    assert_eq!(std::fs::read_to_string(host.folder.path().join("notes.txt")).expect("a file"), "hi");
    // Each refusal says what to change, and nothing of a policy that nobody has written.
    for (id, tool, arguments, expected) in [
        (3, "write_file", json!({ "path": "/etc/notes.txt", "content": "hi" }), "`--scope`"),
        (4, "write_file", json!({ "path": "notes.txt", "content": "hi" }), "write it in full, inside"),
        (5, "http_fetch", json!({ "url": "http://localhost/" }), "grants none without `--config`"),
    ] {
        let refused = host.ask(&call(id, tool, &arguments));
        let text = error_text(&refused);
        assert!(text.contains(expected) && !text.contains("capabilities.tools"), "{text}");
        assert_eq!(refused["result"]["_meta"]["a2g/error"]["blocked_by"], "verdict_denied", "{refused}");
    }
    let bad = host.ask(&json!([]));
    assert_eq!((&bad["error"]["code"], bad.get("id")), (&json!(-32600), None), "{bad}");
    for message in [request(6, "server/discover", json!({})), initialize_request(json!({}))] {
        let answer = host.ask(&message);
        let told = answer["result"]["instructions"].as_str().expect("a text");
        for expected in [&*host.path("**"), "no network", journal.to_str().expect("UTF-8")] {
            assert!(told.contains(expected), "{expected}: {told}");
        }
    }
}

#[test]
fn a_second_host_of_one_user_writes_another_journal() {
    let mut first = Host::start(&[]);
    let journal = first.state.path().join("a2g-executor/journal.db");
    first.process().line_with("journal.db");
    let mut second = Host::start_with(&["--read-only"], Some(first.state.path()));
    second.process().line_with("journal-2.db");
    let answer = second.ask(&call(1, "write_file", &json!({ "path": second.path("x"), "content": "hi" })));
    assert!(error_text(&answer).contains("`--read-only`"), "{answer}");
    let discovered = second.ask(&request(2, "server/discover", json!({})));
    let told = discovered["result"]["instructions"].as_str().expect("a text");
    assert!(told.contains("for reading only"), "{told}");
    // Not with the defaults: their scope has the folder of temporary files, where this journal is.
    let config = first.state.path().join("executor.toml");
    let text = format!("journal.path = {}\nceilings.filesystem_scope = []\n", json!(journal));
    std::fs::write(&config, text).expect("a file");
    let list = |option: &str, path: &Path| {
        let output = run(["journal", "list", option, path.to_str().expect("UTF-8")]);
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{text}");
        text
    };
    let other = journal.with_file_name("journal-2.db");
    assert!(list("--config", &config).contains(other.to_str().expect("UTF-8")));
    assert!(!list("--journal", &journal).contains("journal-2"));
}

#[test]
fn a_scope_that_has_the_journal_is_refused_by_its_own_name() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let path = home.path().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (state, project, inner) = (folder("state"), folder("project"), folder("project/inner"));
    let tools = tools();
    for (scopes, expected) in [
        (vec![home.path().to_str().expect("UTF-8")], "contains the journal"),
        (vec![&*state], "contains the journal"),
        (vec![&*project, &*inner], "name one of the two"),
    ] {
        let mut command = Command::new(program());
        command.arg("mcp").arg("--tools").arg(&tools).current_dir(home.path());
        command.args(scopes.iter().flat_map(|scope| ["--scope", scope])).env("XDG_STATE_HOME", &state);
        let output = run_to_end(command, b"");
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("`--scope`") && text.contains(expected), "{text}");
        assert!(!text.contains("filesystem_scope") && !text.contains("line"), "{text}");
    }
}

/// A copy of the program in a folder of its own, with the tools where a package has them.
fn installed_at(prefix: &Path) -> PathBuf {
    std::fs::create_dir_all(prefix.join("share/a2g-executor")).expect("a folder");
    std::os::unix::fs::symlink(tools(), prefix.join("share/a2g-executor/tools")).expect("a link");
    program_at(prefix)
}

/// A copy of the program in a folder of its own, without tools.
pub fn program_at(prefix: &Path) -> PathBuf {
    std::fs::create_dir_all(prefix.join("bin")).expect("a folder");
    let installed = prefix.join("bin/a2g-executor");
    // On the same file system, so that nothing large is copied.
    std::fs::hard_link(program(), &installed).expect("a link");
    installed
}

/// A folder beside the program.
pub fn folder_beside_the_program() -> tempfile::TempDir {
    let own = program().canonicalize().expect("a path");
    tempfile::tempdir_in(own.parent().expect("a folder")).expect("a folder")
}

/// Prints the configuration of a host, in a scope, as a child of `uvx` with these words, if there are some.
fn print_config(program: &Path, host: &str, scope: &Path, uvx: &[&str]) -> String {
    let mut command = Command::new(program);
    if !uvx.is_empty() {
        // A shell with the command line of `uvx`, which begins with `uv tool`. Its script has the name of the second word.
        let script = "while [ \"$1\" != a2g-executor ]; do shift; done; shift; \"$PROGRAM\" \"$@\"; exit $?";
        std::fs::write(scope.join("tool"), script).expect("a script");
        command = Command::new("sh");
        command.arg0("uv").arg("tool").args(uvx).env("PROGRAM", program);
    }
    command.args(["mcp", "--print-config", host, "--scope"]).arg(scope).current_dir(scope);
    command.env_remove("npm_config_registry");
    let output = run_to_end(command, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn each_host_gets_a_configuration_that_starts_the_program() {
    let place = folder_beside_the_program();
    let scope = tempfile::tempdir().expect("a folder");
    let scope = scope.path().canonicalize().expect("a path");
    let packages = place.path().canonicalize().expect("a path").join("npm/a2g-executor.tgz");
    let npx = place.path().join("npm/_npx/0a1b");
    std::fs::create_dir_all(&npx).expect("a folder");
    std::fs::write(&packages, "").expect("a file");
    let manifest = json!({ "dependencies": { "a2g-executor": "file:../../a2g-executor.tgz" } });
    std::fs::write(npx.join("package.json"), manifest.to_string()).expect("a file");
    let package = packages.to_str().expect("UTF-8");
    let dist = scope.join("dist");
    std::fs::create_dir(&dist).expect("a folder");
    let dist = dist.to_str().expect("UTF-8");
    let by_npx = ["npx", "-y", "--package", package, "a2g-executor"];
    let by_uvx = ["uvx", "--no-index", "--find-links", dist, "a2g-executor"];
    let uvx_here = ["uvx", "--no-index", "--find-links", "dist", "a2g-executor"];
    for (prefix, uvx, expected) in [
        ("usr", &[][..], None),
        ("npm/_npx/0a1b/node_modules/a2g-executor-linux-x64", &[][..], Some(&by_npx[..])),
        ("uv/archive-v0/Bf3x", &uvx_here[..], Some(&by_uvx[..])),
    ] {
        let installed = installed_at(&place.path().join(prefix));
        let path = installed.to_str().expect("UTF-8");
        let start = expected.map_or_else(|| vec![path], <[_]>::to_vec);
        let words = [&start[..], &["mcp", "--scope", scope.to_str().expect("UTF-8")]].concat();
        let (command, arguments) = words.split_first().expect("words");
        let print = |host: &str| print_config(&installed, host, &scope, uvx);
        let json_of = |host: &str| serde_json::from_str::<Value>(&print(host)).expect("JSON");
        assert_eq!(print("claude-code").trim(), format!("claude mcp add -s user a2g -- {}", words.join(" ")));
        let server = json!({ "command": command, "args": arguments });
        for host in ["claude-desktop", "cursor", "gemini"] {
            assert_eq!(json_of(host), json!({ "mcpServers": { "a2g": server } }), "{host}");
        }
        assert_eq!(json_of("zed"), json!({ "context_servers": { "a2g": server } }));
        let typed = json!({ "type": "stdio", "command": command, "args": arguments });
        assert_eq!(json_of("vscode"), json!({ "servers": { "a2g": typed } }));
        let whole = json!({ "type": "local", "command": words, "enabled": true });
        assert_eq!(json_of("opencode"), json!({ "mcp": { "a2g": whole } }));
        let codex = toml::from_str::<Value>(&print("codex")).expect("TOML");
        assert_eq!(codex, json!({ "mcp_servers": { "a2g": server } }));
        if expected.is_none() {
            let mut start = Command::new(command);
            start.args(arguments).env("XDG_CACHE_HOME", cache_home());
            let list = request(1, "tools/list", json!({})).to_string() + "\n";
            let output = run_to_end(start, list.as_bytes());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let answer = serde_json::from_slice::<Value>(&output.stdout).expect("an answer");
            assert!(answer["result"]["tools"].is_array(), "{answer}");
        }
    }
}

/// The host may be outside, where the paths are others.
#[test]
fn a_configuration_that_is_printed_in_a_container_is_said_to_be_for_a_host_in_it() {
    let place = folder_beside_the_program();
    let installed = installed_at(place.path());
    let scope = tempfile::tempdir().expect("a folder");
    let is_marked = ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists());
    for (engine, is_told) in [("podman", true), ("", is_marked)] {
        let mut command = Command::new(&installed);
        command.args(["mcp", "--print-config", "cursor"]).current_dir(&scope).env("container", engine);
        let output = run_to_end(command, b"");
        let told = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{told}");
        serde_json::from_slice::<Value>(&output.stdout).expect("nothing but the text for the host");
        assert_eq!(told.contains("docs/install.md, section Container"), is_told, "{engine}: {told}");
    }
}

#[test]
fn a_folder_without_tools_is_announced() {
    let empty = tempfile::tempdir().expect("a folder");
    let mut host = Host::spawn(&["--tools", empty.path().to_str().expect("UTF-8")], None);
    host.process().line_with("there are no tools");
    assert_eq!(host.ask(&request(1, "tools/list", json!({})))["result"]["tools"], json!([]));
}

/// A folder below `/var`, `/root` and so on is as good as any other, if the person names it.
#[test]
fn a_scope_in_a_system_folder_can_be_used() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let path = folder.path().join("a.txt");
    let mut host = Host::start(&["--scope", folder.path().to_str().expect("UTF-8")]);
    let written = host.ask(&call(1, "write_file", &json!({ "path": path, "content": "hi" })));
    assert_eq!(written["result"]["isError"], false, "{written}");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "hi");
    let read = host.ask(&call(2, "read_file", &json!({ "path": path })));
    assert_eq!(read["result"]["structuredContent"]["content"], "hi", "{read}");
}

/// Calls a tool, again while it is being compiled.
pub fn call_compiled(host: &mut Host, tool: &str, arguments: &Value) -> Value {
    eventually("the tool is compiled", || {
        let answer = host.ask(&call(1, tool, arguments));
        answer["result"]["_meta"]["a2g/error"]["retry_after_ms"].is_null().then_some(answer)
    })
}

/// Files with secrets are blocked in the grant, and not only in the arguments, where a program does not name them.
#[test]
fn neither_a_tool_nor_a_program_reaches_files_with_secrets() {
    for (option, is_open) in [(None, false), (Some("--with-secrets"), true)] {
        let mut host = Host::start(option.as_slice());
        for (name, is_usable) in
            [(".env", is_open), (".ssh/id", is_open), (".env.example", true), ("a.env", true)]
        {
            let path = host.path(name);
            let file = Path::new(&path);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            let arguments = json!({ "path": path, "content": "x" });
            let answer = call_compiled(&mut host, "write_file", &arguments);
            assert_eq!(answer["result"]["isError"], !is_usable, "{name}: {answer}");
            assert!(is_usable || error_text(&answer).contains("`--with-secrets`"), "{answer}");
            assert_eq!(file.exists(), is_usable, "{name}");
            for (tool, code) in [
                ("run_python", "open('FILE', 'w').write('by a program')"),
                ("run_javascript", "fs.write('FILE', 'by a program')"),
            ] {
                if !has_interpreter(tool) {
                    continue;
                }
                let code = json!({ "code": code.replace("FILE", &path) });
                let answer = call_compiled(&mut host, tool, &code);
                assert_eq!(answer["result"]["isError"], !is_usable, "{tool} {name}: {answer}");
                assert_eq!(file.exists(), is_usable, "{tool} {name}");
            }
        }
    }
}

/// Tools cannot change the program if it is installed in the folder that they may use.
#[test]
fn tools_in_the_scope_are_used_and_not_changed() {
    let catalogue = Catalogue::empty().copy("write_file").copy("list_directory");
    let scope = tempfile::tempdir().expect("a folder");
    let tools = scope.path().join("tools");
    std::fs::rename(catalogue.folder(), &tools).expect("a folder");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let mut host = Host::spawn(&["--tools", &text(&tools), "--scope", &text(scope.path())], None);
    let manifest = tools.join("write_file/tool.toml");
    let before = std::fs::read(&manifest).expect("a file");
    for (path, is_usable) in
        [(scope.path().join("a"), true), (manifest.clone(), false), (tools.join("new"), false)]
    {
        let arguments = json!({ "path": path, "content": "x" });
        let answer = call_compiled(&mut host, "write_file", &arguments);
        assert_eq!(answer["result"]["isError"], !is_usable, "{answer}");
        assert!(is_usable || error_text(&answer).contains("keeps tools from its own files"), "{answer}");
    }
    assert_eq!(std::fs::read(&manifest).expect("a file"), before);
}

/// The arguments of a program do not name the files that its code names, so it gets the whole scope.
#[test]
fn a_program_at_the_command_uses_the_files_of_the_scope() {
    for (tool, code) in
        [("run_python", "open('FILE', 'w').write('x')"), ("run_javascript", "fs.write('FILE', 'x')")]
    {
        if !has_interpreter(tool) {
            continue;
        }
        let mut host = Host::start(&[]);
        // A busy machine may need longer to compile the tool than a call waits for it.
        let run = |host: &mut Host, path: &str| {
            call_compiled(host, tool, &json!({ "code": code.replace("FILE", path) }))
        };
        let path = host.path("made");
        let made = run(&mut host, &path);
        assert_eq!(made["result"]["structuredContent"]["result"], 1, "{made}");
        assert_eq!(std::fs::read_to_string(path).expect("a file"), "x");
        let outside = run(&mut host, "/etc/made");
        let text = error_text(&outside);
        assert!(text.contains("(line 1)") && text.contains("/etc/made"), "{text}");
    }
}

/// An open question to the person, or a subscription, does not keep the process when standard input ends.
#[test]
fn the_end_of_standard_input_ends_questions_and_subscriptions() {
    let mut host = Host::start(&[]);
    host.ask(&initialize_request(json!({ "elicitation": {} })));
    let arguments = json!({ "path": host.path("x"), "content": methods::ESCALATES });
    host.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "write_file", "arguments": arguments } }));
    while host.receive()["method"] != "elicitation/create" {}
    let last = host.finish();
    let last = last.last().expect("the answer to the call");
    assert_eq!((&last["id"], &last["result"]["isError"]), (&json!(2), &json!(true)), "{last}");

    let mut host = Host::start(&[]);
    let filter = json!({ "toolsListChanged": true, "resourcesListChanged": true });
    let listening = host.ask(&request(1, "subscriptions/listen", json!({ "notifications": filter })));
    assert_eq!(listening["method"], "notifications/subscriptions/acknowledged", "{listening}");
    host.finish();

    // The test does not read the answers.
    let mut host = Host::start(&[]);
    host.ask(&request(1, "tools/list", json!({})));
    for id in 2..40 {
        host.send(&request(id, "tools/list", json!({})));
    }
    host.abandon();
}
