//! `tool allow`: what it prints, writes and refuses, and that a call then reaches the host, and no other.

use super::cli::CommandFolder;
use harness::*;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

const TOOL: &str = "http_fetch";

/// A policy as a person writes it, which does not list the tool.
const POLICY: &str = r#"{
  "agent_did": "*",
  "version": "1",
  "capabilities": {
    "tools": {
      "list_directory": { "allowed": true }
    }
  }
}
"#;

/// A TLS server for the name `web.test` that answers `secret`, and its certificate in PEM.
fn tls_server() -> (Listener, String) {
    let (config, certificate) = tls_config(&["web.test"]);
    let listener = Listener::start(move |stream| {
        let server = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
        let mut tls = rustls::StreamOwned::new(server, stream);
        if tls.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
            let _gone = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret");
            tls.conn.send_close_notify();
            let _gone = tls.flush();
        }
    });
    (listener, certificate)
}

/// The output of a command, which has to end with this code.
fn said(output: &Output, code: i32) -> String {
    let said = [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_tool_reaches_a_host_after_one_command() {
    let (server, certificate) = tls_server();
    let port = server.address.port();
    let origin = format!("https://web.test:{port}");
    let catalogue = Catalogue::empty().copy(TOOL);
    let manifest = catalogue.folder().join(TOOL).join("tool.toml");
    std::fs::write(&manifest, read(&manifest).replace("network = true", "network = false # for now"))
        .unwrap();
    let folder = tempfile::tempdir().expect("a temp folder");
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, certificate).expect("a file");
    let policies = folder.path().join("policies");
    std::fs::create_dir(&policies).expect("a folder");
    let policy = policies.join("everybody.json");
    std::fs::write(&policy, POLICY).expect("a file");
    let names = json!({ "web.test": ["127.0.0.1"], "late.test": ["127.0.0.1"] });
    let options = Options::new()
        .catalogue(&catalogue)
        .policies(&policies)
        .set("network.ca_file", json!(ca_file))
        .set("network.allowed_addresses", json!([server.address.to_string()]))
        .set("network.hosts", names);
    let home = Home::new(options);
    let config = home.config();
    std::fs::write(&config, format!("# Ours.\n{}# The end.\n", read(&config))).expect("a file");
    // The server accepts the definition without a network.
    let executor = Executor::start_in(home);
    executor.line_with("all tools are prepared");
    let home = executor.kill();

    let files = [manifest.as_path(), config.as_path(), policy.as_path()];
    let before = files.map(read);
    let command = ["tool", "allow", TOOL, origin.as_str()];
    let printed = said(&home.run(&command), 0);
    let listed = format!("  + {TOOL} = [\"{origin}\"]");
    let hosts = format!("  +     \"network\": {{ \"allowed_domains\": [\"{origin}\"] }}");
    let approve = format!("\n  a2g-executor tool approve {TOOL} --config ");
    for part in [
        "  - network = false # for now\n  + network = true # for now\n",
        "\n  + network_allowed = true\n",
        "\n  + [network.tools]\n",
        listed.as_str(),
        "\n  +       \"http_fetch\": { \"allowed\": true }\n",
        hosts.as_str(),
        approve.as_str(),
        "restart the server",
        "Nothing was written",
    ] {
        assert!(printed.contains(part), "not `{part}`:\n{printed}");
    }
    let is_copied = |line: &&str| line.starts_with('/') || line.starts_with("  a2g-executor ");
    let long = printed.lines().filter(|line| !is_copied(line)).find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "{printed}");
    assert_eq!(files.map(read), before, "without `--write`, nothing is changed");

    let changed = said(&home.run(&[&command[..], &["--write"]].concat()), 0);
    assert!(changed.contains("These changes were made") && !changed.contains("Nothing was"), "{changed}");
    let texts = files.map(read);
    assert_eq!(texts[0], before[0].replace("network = false # for now", "network = true # for now"));
    assert!(texts[1].starts_with("# Ours.\n") && texts[1].contains("# The end.\n"), "{}", texts[1]);
    let rule = "\"list_directory\": { \"allowed\": true }";
    let tools = POLICY.replace(rule, &format!("{rule},\n      \"{TOOL}\": {{ \"allowed\": true }}"));
    let whole = format!("    }},\n    \"network\": {{ \"allowed_domains\": [\"{origin}\"] }}\n  }}\n}}\n");
    assert_eq!(texts[2], tools.replace("    }\n  }\n}\n", &whole));
    let again = said(&home.run(&[&command[..], &["--write"]].concat()), 0);
    assert!(again.contains("Nothing is to change") && again.contains("tool approve"), "{again}");
    assert_eq!(files.map(read), texts);

    let shown = said(&home.run(&["tool", "approve", TOOL]), 3);
    let digest = shown.split("--digest ").nth(1).and_then(|rest| rest.split_whitespace().next());
    said(&home.run(&["tool", "approve", TOOL, "--digest", digest.expect("a digest")]), 0);
    let approved = said(&home.run(&command), 0);
    assert!(!approved.contains("tool approve"), "{approved}");

    // A host that the policy allows and the configuration does not.
    let late = format!("https://late.test:{port}");
    std::fs::write(
        &policy,
        texts[2].replace(&format!("[\"{origin}\"]"), &format!("[\"{origin}\", \"{late}\"]")),
    )
    .expect("a file");
    expect_only(&Executor::start_in(home), &origin, &late, port);
}

/// Expects that calls reach the host of `origin` and no other, also not that of `late`, which only the policy allows.
fn expect_only(executor: &Executor, origin: &str, late: &str, port: u16) {
    let fetch = |url: &str| {
        let call = intent(TOOL, json!({ "url": url }));
        (executor.rpc("a2g/intent", &call), call["intent_id"].as_str().expect("an id").to_owned())
    };
    let report = |answer: &Value| result(answer)["report"].clone();
    let (answer, _) = fetch(&format!("{origin}/"));
    let reached = report(&answer);
    assert_eq!(
        (&reached["status"], &reached["result"]["body"]),
        (&json!("SUCCESS"), &json!("secret")),
        "{answer}"
    );
    for (url, words) in [
        (format!("http://web.test:{port}/"), "plain http is refused for `web.test`"),
        (
            "https://web.test/".to_owned(),
            "`allowed_domains`: the list has `web.test` with `https://`, and not its port 443",
        ),
        ("https://other.test/".to_owned(), "`allowed_domains`: the domain `other.test` is not in the list"),
    ] {
        let (answer, _) = fetch(&url);
        let message = expect_blocked(&answer, "verdict_denied");
        assert!(message.contains(words), "{url}: {message}");
    }
    let (answer, run) = fetch(&format!("{late}/"));
    let refused = report(&answer);
    let error = refused["error"].as_str().expect("a sentence");
    assert!(error.contains("the executor's configuration does not allow it"), "{error}");
    assert!(error.contains("`network.tools`") && !error.contains("tool allow"), "{error}");
    // The operator is told what to do.
    let (status, page) = console::Client::local(executor).get(&format!("/console/runs/{run}"));
    assert_eq!(status, 200, "{page}");
    assert!(page.contains(&format!("a2g-executor tool allow {TOOL} {late}")), "{page}");
}

#[test]
fn a_configuration_without_policies_gets_a_folder_of_them() {
    let catalogue = Catalogue::empty().copy(TOOL).copy("list_directory");
    let place = CommandFolder::with(&catalogue.folder());
    let command = format!("tool allow {TOOL} https://api.example.com");
    let says = [
        "policies/default.json (new)",
        "a copy of the one that is part of the program",
        "restart the server",
    ];
    place.expect(&format!("{command} --write"), 0, &says);
    let config = read(&place.path("executor.toml"));
    assert!(config.contains("[governor]\npolicies = \"policies\"\n"), "{config}");
    let written = read(&place.path("policies/default.json"));
    assert!(written.contains("\"http_fetch\": { \"allowed\": true }"), "{written}");
    let mut policy = serde_json::from_str::<Value>(&written).expect("JSON");
    let capabilities = policy["capabilities"].as_object_mut().expect("an object");
    let network = json!({ "allowed_domains": ["https://api.example.com"] });
    let before = json!({ "allowed_domains": [] });
    assert_eq!(capabilities.insert("network".to_owned(), before), Some(network));
    assert!(capabilities["tools"].as_object_mut().expect("an object").remove(TOOL).is_some());
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/default.json");
    assert_eq!(
        policy,
        serde_json::from_str::<Value>(&read(&built_in)).expect("JSON"),
        "all else is the same"
    );
    place.expect(
        "config check",
        0,
        &["http_fetch: https://api.example.com", "/policies, for every other agent"],
    );
    place.expect(&command, 0, &["Nothing is to change"]);
    // The next host is one more, and the first stays.
    place.expect(&format!("tool allow {TOOL} https://b.example.com:8443 --write"), 0, &[]);
    let config = read(&place.path("executor.toml"));
    let hosts = "http_fetch = [\"https://api.example.com\", \"https://b.example.com:8443\"]\n";
    assert!(config.contains(hosts), "{config}");
    let listed = "[\"https://api.example.com\", \"https://b.example.com:8443\"]";
    assert!(read(&place.path("policies/default.json")).contains(listed));
}

/// Turns the network on, with these hosts for all tools, and lets one policy allow tools and hosts.
fn turn_on(place: &CommandFolder, more: &str, tools: &[&str], hosts: &[&str]) {
    place.configure(&format!("[governor]\npolicies = \"one\"\n{more}"));
    let config = read(&place.path("executor.toml"));
    let is_on = config.replace("[ceilings]\n", "[ceilings]\nnetwork_allowed = true\n");
    assert_ne!(is_on, config);
    place.put("executor.toml", is_on);
    let rules = tools.iter().map(|tool| ((*tool).to_owned(), json!({ "allowed": true })));
    let capabilities =
        json!({ "tools": Value::Object(rules.collect()), "network": { "allowed_domains": hosts } });
    std::fs::create_dir_all(place.path("one")).unwrap();
    let policy = json!({ "agent_did": "*", "version": "1", "capabilities": capabilities });
    place.put("one/all.json", policy.to_string());
}

#[test]
fn a_tool_without_the_network_gets_no_host_of_all_tools() {
    let catalogue = Catalogue::empty().copy(TOOL);
    let place = CommandFolder::with(&catalogue.folder());
    let allow = format!("tool allow {TOOL} https://api.example.com");
    let only = format!("  + {TOOL} = [\"https://api.example.com\"]");
    // Neither of these policies grants it the network.
    let without: [(&[&str], &[&str]); 2] = [(&[TOOL], &[]), (&[], &["b.test"])];
    for (tools, hosts) in without {
        turn_on(&place, "[network]\nallowed_domains = [\"*\"]", tools, hosts);
        place.expect(&allow, 0, &[&only, "may reach no other host than https://api.example.com."]);
    }
    // This one does, and the tool keeps what it has.
    turn_on(&place, "[network]\nallowed_domains = [\"b.test\"]", &[TOOL], &["b.test"]);
    place.expect(&allow, 0, &[&format!("  + {TOOL} = [\"b.test\", \"https://api.example.com\"]")]);
}

#[test]
fn a_host_that_another_tool_would_reach_too_is_refused() {
    let catalogue = Catalogue::empty().copy(TOOL).add(Tool::command("other", "(module)").network());
    let place = CommandFolder::with(&catalogue.folder());
    let allow = format!("tool allow {TOOL} https://api.example.com --write");
    let all = "[network]\nallowed_domains = [\"*\"]";
    turn_on(&place, all, &[TOOL, "other"], &["a.test"]);
    let policy = read(&place.path("one/all.json"));
    place.expect(&allow, 1, &["reach hosts: `other` (https://api.example.com).", "`[network.tools]`"]);
    assert_eq!(read(&place.path("one/all.json")), policy);
    for hosts in ["", "\"a.test\""] {
        turn_on(&place, &format!("{all}\n[network.tools]\nother = [{hosts}]"), &[TOOL, "other"], &["a.test"]);
        place.expect(&allow, 0, &["These changes were made"]);
    }
    // It gains nothing if the policy does not allow it, or has the host.
    turn_on(&place, all, &[TOOL], &["a.test"]);
    place.expect(&allow, 0, &["These changes were made"]);
    turn_on(&place, all, &[TOOL, "other"], &["*.example.com"]);
    place.expect(&allow, 0, &["Nothing is to change"]);
}

#[test]
fn a_command_changes_all_files_or_none_and_waits_for_others() {
    let catalogue = Catalogue::empty().copy(TOOL);
    let place = CommandFolder::with(&catalogue.folder());
    turn_on(&place, "", &[], &[]);
    let [config, policy] = ["executor.toml", "one/all.json"].map(|name| place.path(name));
    let before = [&config, &policy].map(|path| read(path));
    std::fs::rename(&config, place.path("real.toml")).unwrap();
    std::os::unix::fs::symlink("real.toml", &config).unwrap();
    place.expect(
        &format!("tool allow {TOOL} https://api.example.com --write"),
        1,
        &["executor.toml` is a link"],
    );
    assert_eq!([&config, &policy].map(|path| read(path)), before);

    std::fs::rename(place.path("real.toml"), &config).unwrap();
    let hosts = ["a", "b", "c", "d"].map(|name| format!("https://{name}.example.com"));
    std::thread::scope(|scope| {
        for host in &hosts {
            let place = &place;
            scope
                .spawn(move || place.expect(&format!("tool allow {TOOL} {host} --write"), 0, &["were made"]));
        }
    });
    for host in hosts {
        assert!(read(&config).contains(&format!("\"{host}\"")), "{host}: {}", read(&config));
        assert!(read(&policy).contains(&format!("\"{host}\"")), "{host}: {}", read(&policy));
    }
}

#[test]
fn what_is_not_one_host_over_https_is_refused() {
    let place = CommandFolder::new();
    for (url, words) in [
        ("http://api.example.com", "is plain http"),
        ("api.example.com", "has no scheme"),
        ("ftp://api.example.com", "is not `https://HOST`"),
        ("https://*.example.com", "is a wildcard"),
        ("https://api.example.com/v1", "has a path"),
        ("https://user@api.example.com", "names no host"),
        ("https://0x7f.1", "names no host"),
        ("https://10.0.0.1", "`network.allowed_addresses`"),
        ("https://169.254.169.254", "`network.allowed_addresses`"),
        ("https://[::1]:8443", "`network.allowed_addresses`"),
    ] {
        let done = place.expect(&format!("tool allow {TOOL} {url} --write"), 2, &[words]);
        assert!(done.stdout.is_empty(), "{url}: {}", done.stdout);
    }
    place.expect("tool allow http_fetc https://api.example.com", 1, &["(did you mean `http_fetch`?)"]);
    assert!(!place.path("policies").exists(), "nothing was made");
}

#[test]
fn a_change_that_would_help_nothing_or_widen_more_is_refused() {
    let catalogue = Catalogue::empty()
        .copy(TOOL)
        .add(Tool::command("quiet", "(module)"))
        .add(Tool::command("other", "(module)").network());
    let place = CommandFolder::with(&catalogue.folder());
    let allow = format!("tool allow {TOOL} https://api.example.com");
    place.configure("[network]\nblocked_domains = [\"*.example.com\"]");
    place.expect(&allow, 2, &["`network.blocked_domains` of the configuration blocks"]);

    // Several policies: the agent has to be named.
    let policy = |agent: &str, capabilities: &Value| {
        json!({ "agent_did": agent, "version": "1", "capabilities": capabilities }).to_string()
    };
    std::fs::create_dir(place.path("two")).unwrap();
    place.put("two/all.json", policy("*", &json!({ "tools": { "other": { "allowed": true } } })));
    place.put("two/one.json", policy("did:aeon:one:1.0:abc123", &json!({})));
    place.configure("[governor]\npolicies = \"two\"");
    place.expect(&allow, 2, &["name the agent with `--agent`, one of *, did:aeon:one:1.0:abc123"]);
    place.expect(
        &format!("{allow} --agent did:aeon:two:1.0:abc123"),
        1,
        &["no policy is for `did:aeon:two:1.0:abc123` alone"],
    );
    let says = ["two/one.json", "The policy is that of did:aeon:one:1.0:abc123."];
    place.expect(&format!("{allow} --agent did:aeon:one:1.0:abc123"), 0, &says);
    let blocked = json!({ "network": { "blocked_domains": ["api.example.com"] } });
    place.put("two/one.json", policy("did:aeon:one:1.0:abc123", &blocked));
    let says = ["(`capabilities.network.blocked_domains`)"];
    place.expect(&format!("{allow} --agent did:aeon:one:1.0:abc123"), 1, &says);

    // The switches are for all tools: another one would get the network with them.
    let shared = "[network]\nallowed_domains = [\"a.example\"]\n[governor]\npolicies = \"two\"";
    place.configure(shared);
    let for_all = format!("{allow} --agent *");
    place.expect(&for_all, 1, &["would also let other tools reach hosts: `other` (a.example)."]);
    place.configure(&format!("{shared}\n[network.tools]\nother = []"));
    place.expect(&for_all, 0, &[&format!("  + {TOOL} = [\"https://api.example.com\"]")]);

    // A signature covers the `tool.toml` of a tool.
    let signer = "[[catalog.trust.signer]]\nname = \"x\"\nkey_file = \"x.pem\"\ntools = [\"*\"]";
    place.configure(signer);
    place.expect("tool allow quiet https://api.example.com", 1, &["(`[catalog.trust]`) covers that"]);

    // A governor of one's own has no policies here.
    place.configure(
        "[network]\nallowed_domains = [\"a.example\"]\n[governor]\nurl = \"http://127.0.0.1:1/jsonrpc\"",
    );
    let says = ["\"capability_manifest\": { \"network_allowed\": true }", "(`g2a/policy`)"];
    let done = place.expect(&format!("{allow} --write"), 1, &["would also let other tools reach hosts"]);
    assert!(done.stdout.is_empty(), "{}", done.stdout);
    std::fs::remove_dir_all(catalogue.folder().join("other")).unwrap();
    place.expect(&format!("{allow} --write"), 0, &says);
}
