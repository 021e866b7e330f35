//! The figures of the console: the charts and the narrower limits of Usage, and the figures of the overview.

use crate::console::sign_in;
use harness::callers::List;
use harness::console::Client;
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};

/// The text of the only `pre` with an id.
fn copied(page: &str, id: &str) -> String {
    let text = page
        .split_once(&format!("<pre id=\"{id}\" tabindex=\"0\">"))
        .unwrap_or_else(|| panic!("{id}: {page}"))
        .1;
    let text = text.split_once("</pre>").expect("its end").0;
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// A web server that answers every request.
fn web() -> Listener {
    Listener::start(|mut stream| {
        let _head = stream.read(&mut [0; 4096]);
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi");
    })
}

/// The runs that are repeated: each with its tool, its arguments, and `true` for the network.
fn runs(web: &Listener) -> Vec<(&'static str, Value, bool)> {
    let mut runs = vec![
        ("write_file", write("file", &"text ".repeat(1_000)), false),
        ("read_file", json!({ "path": "/workspace/file" }), false),
        ("http_fetch", json!({ "url": format!("http://web.test:{}/", web.address.port()) }), true),
    ];
    if has_interpreter("run_javascript") {
        let code = "[await tools.read_file({path: '/workspace/file'}), await tools.read_file({path: '/workspace/file'})].length";
        runs.push(("run_javascript", json!({ "code": code }), false));
    }
    runs
}

/// Makes the runs, each of which has to succeed.
fn repeat(executor: &Executor, runs: &[(&str, Value, bool)]) -> Vec<Value> {
    let run = |(tool, arguments, network): &(&str, Value, bool)| {
        let mut manifest = manifest();
        manifest["network_allowed"] = json!(network);
        manifest["max_memory_mb"] = json!(128);
        let answer = executor.rpc("a2g/execute", &approved(intent(tool, arguments.clone()), &manifest));
        let report = result(&answer).clone();
        assert_eq!(report["status"], "SUCCESS", "{tool}: {report}");
        report
    };
    runs.iter().map(run).collect()
}

#[test]
fn the_same_runs_succeed_under_the_narrower_limits() {
    let web = web();
    let mut catalogue = ["write_file", "read_file", "http_fetch", "hash_file"]
        .into_iter()
        .fold(Catalogue::empty(), |catalogue, tool| catalogue.copy(tool));
    if has_interpreter("run_javascript") {
        catalogue = catalogue.copy("run_javascript");
    }
    let options = Options::new()
        .catalogue(&catalogue)
        .set("ceilings.network_allowed", true)
        .set("network.allowed_domains", json!(["*.test"]))
        .set("network.allowed_addresses", json!([web.address.to_string()]))
        .set("network.hosts", json!({ "web.test": ["127.0.0.1"], "other.test": ["127.0.0.1"] }));
    let mut executor = Executor::start(options);
    let runs = runs(&web);
    repeat(&executor, &runs);
    let client = Client::local(&executor);
    let (status, page) = client.get("/console/usage");
    assert_eq!(status, 200, "{page}");

    let policy: Value = serde_json::from_str(&copied(&page, &format!("policy-{AGENT}"))).expect("JSON");
    let capabilities = &policy["capabilities"];
    let mut tools = capabilities["tools"].as_object().expect("tools").keys().collect::<Vec<_>>();
    tools.retain(|tool| *tool != "run_javascript");
    assert_eq!(tools, ["http_fetch", "read_file", "write_file"], "{policy}");
    assert_eq!(capabilities["network"]["allowed_domains"], json!(["web.test"]), "{policy}");
    assert!(capabilities["resources"]["max_memory_mb"].as_u64().is_some_and(|mb| mb < 128), "{policy}");
    for (tool, rule) in capabilities["tools"].as_object().unwrap() {
        let seconds = rule["constraints"]["timeout_seconds"].as_u64();
        assert!(seconds.is_some_and(|seconds| (2..=30).contains(&seconds)), "{tool}: {rule}");
    }
    if has_interpreter("run_javascript") {
        let constraints = &capabilities["tools"]["run_javascript"]["constraints"];
        assert_eq!(
            (&constraints["calls"], &constraints["max_calls"]),
            (&json!(["read_file"]), &json!(3)),
            "{policy}"
        );
    }

    let mut limits = Vec::new();
    for (tool, ..) in &runs {
        let text = copied(&page, &format!("limits-{tool}"));
        let section: toml::Table = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        limits.push((*tool, section["capabilities"].clone()));
    }
    let limit = |tool: &str, key: &str| {
        let (_, section) = limits.iter().find(|(name, _)| *name == tool).expect("the tool");
        section.get(key).cloned()
    };
    assert_eq!(limit("http_fetch", "network"), Some(true.into()));
    assert_eq!(limit("http_fetch", "filesystem"), Some("none".into()));
    assert_eq!(limit("write_file", "filesystem"), Some("read-write".into()));
    assert!(limit("read_file", "max_memory_mb").and_then(|mb| mb.as_integer()).is_some_and(|mb| mb < 64));

    // The policy: the same runs, and nothing else.
    assert_eq!(result(&executor.rpc("g2a/policy", &policy))["accepted"], true);
    repeat(&executor, &runs);
    let unused = execute("hash_file", json!({ "path": "/workspace/file" }));
    expect_blocked(&executor.rpc("a2g/execute", &unused), "standing_policy");
    // The limits of the tools, instead of those that their authors declared.
    for (tool, section) in &limits {
        let file = catalogue.folder().join(tool).join("tool.toml");
        let mut manifest: toml::Table = toml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        manifest.insert("capabilities".to_owned(), section.clone());
        std::fs::write(&file, toml::to_string(&manifest).unwrap()).unwrap();
    }
    executor.process().hang_up();
    let declared = limit("read_file", "max_memory_mb").and_then(|mb| mb.as_integer()).expect("a limit");
    eventually("the catalogue is read again", || {
        let tools = executor.rpc("a2g/tools", &json!({}));
        let tools = result(&tools)["tools"].as_array()?.clone();
        let read = tools.iter().find(|tool| tool["name"] == "read_file")?;
        (tools.len() >= 4 && read["capabilities"]["max_memory_mb"] == declared).then_some(())
    });
    let reports = repeat(&executor, &runs);
    let memory = &reports[1]["usage"]["limits"]["max_memory_mb"];
    assert_eq!((&memory["granted"], &memory["set_by"]), (&json!(declared), &json!("tool")), "{memory}");
}

#[test]
fn narrower_limits_are_for_those_who_see_the_runs() {
    let list = List::new();
    let operator = list.add("olga", &["--role", "operator"]);
    let agent = list.add("planner", &["--role", "agent", "--agent", AGENT]);
    let governor = list.add("governor", &["--role", "governor"]);
    let other_agent = "did:aeon:other:1.0:abc123";
    let other = list.add("other", &["--role", "agent", "--agent", other_agent]);
    let executor = Executor::start(list.options());
    let ask = |token: &str, method: &str, params: &Value| {
        HttpClient::ask_as(executor.address(), token, method, params).unwrap()
    };
    result(&ask(&agent, "a2g/intent", &intent("write_file", write("file", "text"))));
    let mut call = intent("read_file", json!({ "path": "/workspace/file" }));
    call["agent_did"] = json!(other_agent);
    result(&ask(&other, "a2g/intent", &call));
    let pages =
        [&operator, &agent, &other].map(|token| Client::with_token(&executor, token).get("/console/usage").1);
    let has = |page: &str, id: &str| page.contains(&format!("<pre id=\"{id}\""));
    for (page, expected) in pages.iter().zip([[true, true, true], [true, false, false], [false, true, false]])
    {
        let ids =
            [format!("policy-{AGENT}"), format!("policy-{other_agent}"), "limits-write_file".to_owned()];
        assert_eq!(ids.map(|id| has(page, &id)), expected, "{page}");
    }
    // A policy would end a revocation.
    result(&ask(&governor, "g2a/revoke", &json!({ "agent_did": AGENT })));
    let page = Client::with_token(&executor, &operator).get("/console/usage").1;
    assert!(!has(&page, &format!("policy-{AGENT}")) && page.contains("refused every tool"), "{page}");
    // The figures of the whole executor are an operator's alone.
    for (token, is_shown) in [(&operator, true), (&agent, false)] {
        let page = Client::with_token(&executor, token).get("/console").1;
        for part in ["runs per second", "Containment:", "receipts to verify at the start"] {
            assert_eq!(page.contains(part), is_shown, "{part}: {page}");
        }
    }
}

#[test]
fn the_overview_says_what_was_verified() {
    let reused = if isolation() == "process" { json!(["hash_file"]) } else { json!([]) };
    let executor = Executor::start(Options::new().set("executor.reuse", json!({ "tools": reused })));
    for n in 0..3 {
        result(&executor.rpc("a2g/intent", &intent("write_file", write(&format!("{n}"), "text"))));
    }
    let page = Client::local(&executor).get("/console").1;
    assert!(page.contains("<span class=\"value\">0.1</span>"), "3 runs in a minute: {page}");
    let executor = Executor::start_in(executor.kill());
    let client = Client::local(&executor);
    eventually("the check of the start is known", || {
        client.get("/console").1.contains("The chain was verified up to receipt 3, ").then_some(())
    });
    let doctor = executor.home().run(&["doctor", "--json"]);
    let page = client.get("/console").1;
    if isolation() == "process" {
        assert!(page.contains("Processes of hash_file are reused"), "{page}");
        let rows: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
        // The rows about the configuration are elsewhere on the page.
        let of_configuration = [json!("process-for-each-run"), json!("journal-durability")];
        for row in rows.as_array().unwrap().iter().filter(|row| !of_configuration.contains(&row["name"])) {
            assert!(page.contains(row["name"].as_str().unwrap()), "{row}: {page}");
        }
    }
}

/// The charts over a day whose hours pass at once, where the machine has the library for that.
#[test]
fn charts_are_readable_without_a_script_or_colours() {
    let clock = WallClock::new();
    let options = match &clock {
        Some(clock) => clock.for_server(Options::new()),
        None => Options::new(),
    };
    let executor = Executor::start(options);
    for hour in 0..22 {
        if let Some(clock) = &clock {
            clock.set((hour - 22) * 3_600);
        }
        for n in 0..=(hour * 7 % 5) {
            executor.rpc("a2g/intent", &intent("write_file", write("file", &"text ".repeat(1 << (2 * n)))));
        }
        if hour % 4 == 3 {
            executor.rpc("a2g/intent", &intent("read_file", json!({ "path": "/workspace/absent" })));
        }
    }
    if let Some(clock) = &clock {
        clock.set(0);
    }
    let Some(mut browser) = sign_in(&executor) else { return };
    // A search ends after 60 ms, in which a busy machine may not read all runs.
    eventually("the charts have all runs", || {
        browser.goto("/console/usage");
        let names = browser.evaluate(
            "[...document.querySelectorAll('svg[role=img]')].map((svg) => svg.ariaLabel).join(' ')",
        );
        names.as_str().expect("a text").contains("succeeded, 5 failed").then_some(())
    });
    // All parts are unfolded, so that the check of accessibility covers them.
    browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })");
    for scheme in [Scheme::Light, Scheme::Dark] {
        for width in [1600, 360] {
            assert!(!browser.set_appearance(scheme, width), "the page is wider than {width} pixels");
            browser.screenshot("usage-open");
            let violations = browser.axe_violations();
            assert!(violations.is_empty(), "{scheme:?} {width}: {violations:#?}");
        }
    }
    let names = browser
        .evaluate("[...document.querySelectorAll('svg[role=img]')].map((svg) => svg.ariaLabel).join(' ')");
    let names = names.as_str().expect("a text");
    assert!(names.contains("succeeded, 5 failed") && names.contains("logarithmic"), "{names}");
    browser.click_within(".copied", "button", "Copy");
    browser.wait_for_text("Copied");
    let selected = browser.evaluate("getSelection().toString()");
    assert!(selected.as_str().is_some_and(|text| text.contains("agent_did")), "{selected}");
    browser.report().check_is_empty();

    browser.goto("/console");
    browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })");
    for (scheme, width) in [(Scheme::Light, 1600), (Scheme::Dark, 360)] {
        assert!(!browser.set_appearance(scheme, width), "the page is wider than {width} pixels");
        browser.screenshot("overview-open");
        let violations = browser.axe_violations();
        assert!(violations.is_empty(), "{scheme:?} {width}: {violations:#?}");
    }
    browser.set_javascript(false);
    browser.goto("/console/usage");
    assert_eq!(browser.evaluate("document.querySelectorAll('svg[role=img] .part.failure').length > 0"), true);
    assert!(!browser.text("main").contains("Copy"), "a button without its script");
    browser.report().check_is_empty();
}
