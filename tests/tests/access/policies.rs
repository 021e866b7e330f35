//! Policies in Cedar: what they permit, forbid, escalate and limit. Files that are only observed change nothing.

use harness::callers::{assert_unusable, ends};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::io::Write as _;
use tempfile::TempDir;

/// Writing in `/workspace`, with one forbidden text and one name about which a person decides.
const FILES: &str = r#"@id("write")
@max_memory_mb("48")
permit (principal, action == Action::"write_file", resource);

@id("folder")
permit (principal, action in [Action::"read", Action::"write"], resource in Folder::"/workspace");

@id("no-codes")
@reason("nobody writes launch codes; leave them out")
forbid (principal, action == Action::"write_file", resource)
when { context.input.content like "*launch code*" };

@id("release")
@escalate("a release needs a person")
permit (principal, action == Action::"write_file", resource)
when { context.input.path like "*/release*" };
"#;

/// Reaching one host and the names below it, but for one of them.
const HOSTS: &str = r#"permit (principal, action == Action::"http_fetch", resource);

@max_requests_per_minute("1000")
permit (principal, action == Action::"reach", resource in Host::"web.test");

@reason("nobody reaches the inner names")
forbid (principal, action == Action::"reach", resource in Host::"inner.web.test");
"#;

/// Forbids what is allowed, and permits what is denied.
const OBSERVED: &str = r#"forbid (principal, action == Action::"write_file", resource)
when { context.input.path like "*/plain" };

permit (principal, action == Action::"hash_file", resource);
"#;

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

/// Starts an executor, and waits until all tools are known: before, no policies may fit them.
fn start(options: Options) -> Executor {
    let executor = Executor::start(options);
    executor.line_with("all tools are prepared");
    executor
}

/// The names of rules in a member of a message.
fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|name| name.as_str().expect("a name")).collect()
}

fn write_codes() -> Value {
    intent("write_file", write("codes", "the launch code is 0000"))
}

#[test]
fn policies_in_cedar_permit_forbid_and_escalate() {
    let policies = folder(&[("files.cedar", FILES)]);
    let executor = start(Options::new().policies(policies.path()));
    let call = intent("write_file", write("plain", "x"));
    let answer = executor.rpc("a2g/intent", &call);
    let answer = result(&answer);
    let report = &answer["report"];
    assert_eq!(report["status"], "SUCCESS", "{answer}");
    let memory = &report["usage"]["limits"]["max_memory_mb"];
    assert_eq!((&memory["granted"], &memory["set_by"]), (&json!(48), &json!("verdict")), "{answer}");
    for decided in [&answer["decided_by"], &report["decided_by"]] {
        assert!(names(decided).contains(&"files.cedar:1 (write)"), "{answer}");
    }
    let run = call["intent_id"].as_str().expect("an id");
    let (_, page) = console::Client::local(&executor).get(&format!("/console/runs/{run}"));
    assert!(page.contains("Decided by") && page.contains("files.cedar:1 (write)"), "{page}");

    // The forbid wins over the permit, and says why.
    let refused = executor.rpc("a2g/intent", &write_codes());
    let message = expect_blocked(&refused, "verdict_denied");
    for part in ["nobody writes launch codes; leave them out", "files.cedar:8"] {
        assert!(message.contains(part), "not `{part}`: {message}");
    }
    for (tool, arguments, words) in [
        ("write_file", json!({ "path": "/tmp/plain", "content": "x" }), "/tmp/plain"),
        ("hash_file", json!({ "path": "/workspace/plain" }), "hash_file"),
    ] {
        let denied = executor.rpc("a2g/intent", &intent(tool, arguments));
        let message = expect_blocked(&denied, "verdict_denied");
        assert!(message.contains(words), "{tool}: {message}");
    }

    let waiting = executor.rpc("a2g/intent", &intent("write_file", write("release-1", "x")));
    let waiting = result(&waiting);
    assert_eq!(waiting["verdict"], "ESCALATE", "{waiting}");
    let reason = waiting["reason"].as_str().expect("a reason");
    for part in ["a release needs a person", "a person has to decide"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!((executor.file("codes"), executor.file("release-1")), (None, None));
    assert_eq!(executor.file("plain").as_deref(), Some("x"));

    let (_, page) = console::Client::local(&executor).get("/console/policies");
    for part in ["files.cedar:8 (no-codes)", "Forbids", "it decided 1 intent", "In force since"] {
        assert!(page.contains(part), "not `{part}`: {page}");
    }
    // The standing policy that an agent would get of JSON policies is not sent.
    assert!(page.contains("No agent that you may see has one"), "{page}");
}

/// A server that redirects `/302?http://…` to there, and says `reached` to all else.
fn redirecting() -> Web {
    Web::start(|mut stream, request| {
        let target = request.split(' ').nth(1).unwrap_or_default();
        let answer = match target.split_once('?') {
            Some((_, location)) => {
                format!("HTTP/1.1 302 Elsewhere\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
            }
            None => "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nreached".to_owned(),
        };
        let _gone = stream.write_all(answer.as_bytes());
    })
}

#[test]
fn the_hosts_of_policies_in_cedar_are_enforced_in_the_run() {
    let web = redirecting();
    let port = web.authority().rsplit(':').next().expect("a port").to_owned();
    let policies = folder(&[("hosts.cedar", HOSTS)]);
    let catalogue = Catalogue::empty().copy("http_fetch");
    let loopback = json!(["127.0.0.1"]);
    let names_of_loopback = json!({ "web.test": loopback, "a.web.test": loopback, "other.test": loopback });
    let executor = start(
        Options::new()
            .catalogue(&catalogue)
            .policies(policies.path())
            .set("ceilings.network_allowed", true)
            .set("network.allowed_domains", json!(["*"]))
            .set("network.allowed_addresses", json!([web.address()]))
            .set("network.hosts", names_of_loopback),
    );
    let fetch = |url: &str| executor.rpc("a2g/intent", &intent("http_fetch", json!({ "url": url })));
    for host in ["web.test", "a.web.test"] {
        let answer = fetch(&format!("http://{host}:{port}/"));
        let answer = result(&answer);
        assert_eq!(answer["verdict"], "CONDITIONAL", "{answer}");
        let conditions = names(&answer["conditions"]);
        for condition in ["host:web.test", "host:*.web.test", "max_requests_per_minute:1000", "no_secrets"] {
            assert!(conditions.contains(&condition), "{host}: {conditions:?}");
        }
        assert!(conditions.contains(&"blocked_host:inner.web.test"), "{conditions:?}");
        assert_eq!(answer["report"]["result"]["body"], "reached", "{answer}");
    }
    // In an argument, it is refused before the run.
    let answer = fetch(&format!("http://other.test:{port}/"));
    assert!(expect_blocked(&answer, "verdict_denied").contains("other.test"), "{answer}");
    // The run itself reaches no other host either.
    let answer = fetch(&format!("http://web.test:{port}/302?http://other.test:{port}/"));
    let report = &result(&answer)["report"];
    assert_eq!(report["usage"]["denied"][0]["reason"], "domain_not_allowed", "{answer}");
    let error = report["error"].as_str().expect("a text");
    assert!(error.contains("a condition of the verdict does not allow it"), "{error}");
    assert_eq!(web.requests().len(), 3, "the redirect was asked for, and not followed: {:?}", web.requests());
}

#[test]
fn an_observed_file_changes_nothing_and_is_recorded() {
    let policies = folder(&[("files.cedar", FILES), ("new.cedar", OBSERVED)]);
    let options = Options::new().policies(policies.path()).set("governor.observe", json!(["new.cedar"]));
    let executor = start(options);
    let answer = executor.rpc("a2g/intent", &intent("write_file", write("plain", "x")));
    let answer = result(&answer);
    assert_eq!(answer["report"]["status"], "SUCCESS", "{answer}");
    for observed in [&answer["observed"], &answer["report"]["observed"]] {
        let would = json!([{ "file": "new.cedar", "decision": "DENIED", "decided_by": ["new.cedar:1"] }]);
        assert_eq!(*observed, would, "{answer}");
    }
    let denied = executor.rpc("a2g/intent", &intent("hash_file", json!({ "path": "/workspace/plain" })));
    expect_blocked(&denied, "verdict_denied");
    let metrics = executor.client().request("GET", "/metrics", &[], b"").text();
    for decision in ["DENIED", "APPROVED"] {
        let line = format!("a2g_observed_decisions_total{{file=\"new.cedar\",decision=\"{decision}\"}} 1");
        assert!(metrics.contains(&line), "not `{line}`: {metrics}");
    }
    let (_, page) = console::Client::local(&executor).get("/console/policies");
    assert!(page.contains("Of 2 intents") && page.contains("it would have decided 1 intent"), "{page}");
}

#[test]
fn policies_that_cannot_decide_are_refused_at_the_start() {
    let json_policy = policy_for_all(&[("write_file", json!({}))]).to_string();
    let with =
        |folder: &TempDir, key: &str, value: Value| Options::new().policies(folder.path()).set(key, value);
    let cedar = folder(&[("files.cedar", FILES)]);
    let mixed = folder(&[("files.cedar", FILES), ("all.json", &json_policy)]);
    let plain = folder(&[("all.json", &json_policy)]);
    for (options, words) in [
        (Options::new().policies(mixed.path()), "`a2g-executor policy convert`"),
        (with(&cedar, "governor.escalate_from", json!(0.5)), "context.risk.score"),
        (with(&cedar, "governor.observe", json!(["gone.cedar"])), "gone.cedar"),
        (with(&plain, "governor.observe", json!(["files.cedar"])), "only policies in Cedar can be observed"),
        (Options::new().set("governor.observe", json!(["files.cedar"])), "needs `governor.policies`"),
    ] {
        assert_unusable(options, words);
    }
    // What depends on the tools is known once these are read.
    start(Options::new());
    for (text, place) in [
        ("\npermit (principal, action == Action::\"no_such_tool\", resource);", "line 2"),
        (
            "permit (principal, action == Action::\"write_file\", resource)\n\
             when { context.input.colour == \"red\" };",
            "wrong.cedar",
        ),
    ] {
        let wrong = folder(&[("wrong.cedar", text)]);
        let home = Home::new(Options::new().policies(wrong.path()));
        ends(&mut home.command(), 2, "wrong.cedar");
        let said = home.run(&["run", "write_file", "--policy", wrong.path().to_str().expect("UTF-8")]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("wrong.cedar") && said.contains(place), "{said}");
    }
}

#[test]
fn policies_follow_the_catalogue_and_stay_in_force_if_they_no_longer_fit() {
    let policies = folder(&[("files.cedar", FILES)]);
    let catalogue = Catalogue::empty().copy("write_file").copy("hash_file");
    let mut executor = start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let health = |executor: &Executor| executor.client().request("GET", "/health", &[], b"");
    assert_eq!(health(&executor).text(), r#"{"status":"ok"}"#);
    std::fs::remove_dir_all(catalogue.folder().join("write_file")).expect("a tool");
    executor.process().hang_up();
    let is_warning = |now: &HttpAnswer| now.text().contains("\"warning\"");
    let warned = eventually("a warning", || Some(health(&executor)).filter(is_warning));
    assert_eq!(warned.status, 200);
    let (_, page) = console::Client::local(&executor).get("/console/policies");
    assert!(page.contains("do not fit the tools") && page.contains("files.cedar:8"), "{page}");
    let home = executor.kill();
    // A start with policies that fit no tools is refused.
    ends(&mut home.command(), 2, "files.cedar");
}

#[test]
fn a_path_in_another_spelling_is_denied_before_rules_compare_it() {
    let policies = folder(&[("files.cedar", FILES)]);
    let executor = start(Options::new().policies(policies.path()));
    for path in ["/workspace/./plain", "//workspace/plain", "/workspace//plain", "/workspace/plain/"] {
        let arguments = json!({ "path": path, "content": "x" });
        let denied = executor.rpc("a2g/intent", &intent("write_file", arguments));
        let reason = expect_blocked(&denied, "verdict_denied");
        assert!(reason.contains("write `/workspace/plain`"), "{path}: {reason}");
    }
}
