//! The console in a real browser, and what its pages refuse to clients that are none.

mod artifacts;
mod changes;
mod deciding;
mod grants;
mod load;
mod notify;
mod port;
mod send;

use harness::callers::List;
use harness::console::{Client, Fields, field, link, percent, request, shown};
use harness::methods::{ESCALATES, policy_folder, write};
use harness::*;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A text that would be markup, a script, a reversed line and a terminal command if it were not escaped.
const HOSTILE: &str =
    "<script>alert(1)</script><img src=x onerror=alert(2)>\u{202e}\u{1b}[31m\"'--> </pre></title>";

fn base(executor: &Executor) -> String {
    format!("http://{}", executor.address())
}

/// Starts an executor without a list of callers, and signs a browser in; `None` if there is no browser.
pub(super) fn sign_in(executor: &Executor) -> Option<Browser> {
    let mut browser = browser_or_skip(&base(executor))?;
    browser.goto(&link(executor));
    browser.wait_for_path("/console");
    Some(browser)
}

/// Sends a call that the built-in governor escalates, and returns its intent.
fn escalate(executor: &Executor, arguments: Value) -> String {
    let call = intent("write_file", arguments);
    let answer = executor.rpc("a2g/intent", &call);
    assert_eq!(result(&answer)["verdict"], "ESCALATE", "{answer}");
    call["intent_id"].as_str().unwrap().to_owned()
}

#[test]
fn an_event_during_a_refresh_causes_another_refresh() {
    let executor = Executor::start(Options::new());
    let Some(mut browser) = sign_in(&executor) else { return };
    let refreshes = "performance.getEntriesByName(new URL('/console/inbox', location).href).length";
    // The first event of the stream causes a refresh. Events during the end of it count as one.
    let is_settled = "!document.querySelector('#inbox').matches('[class*=htmx-]')";
    let before = eventually("the end of the first refresh", || {
        browser
            .evaluate(refreshes)
            .as_u64()
            .filter(|count| *count > 0 && browser.evaluate(is_settled) == true)
    });
    let events = "for (const nth of [1, 2])
        document.body['htmx-internal-data'].sseEventSource.dispatchEvent(new MessageEvent('inbox'))";
    browser.evaluate(events);
    eventually("two more refreshes", || (browser.evaluate(refreshes) == before + 2).then_some(()));
}

#[test]
fn a_person_narrows_approves_and_proves_a_call() {
    let executor = Executor::start(Options::new());
    let Some(mut browser) = sign_in(&executor) else { return };
    browser.wait_for_text("Nothing waits for a decision.");
    let id = escalate(&executor, write("approved", ESCALATES));
    // The page is told by an event.
    browser.wait_for_text("private_key");
    browser.click("link", &format!("Decide on {}", &id[..8]));
    browser.wait_for_path(&format!("/console/decide/{id}"));
    browser.wait_for_text("PRIVATE KEY");
    browser.fill("spinbutton", "Memory", "16");
    // For a second, the button takes no clicks.
    std::thread::sleep(Duration::from_millis(1_500));
    browser.click("button", "Approve what is shown");
    // What the person changed is shown before it counts, and marked.
    browser.wait_for_text("What you changed is marked");
    browser.wait_for_text("you lowered it from 64 MB");
    assert_eq!(browser.texts(".changed").len(), 1);
    assert_eq!(executor.file("approved"), None);
    let shown = browser.evaluate("document.querySelector('input[name=basis]').value");
    let shown = shown.as_str().expect("a hash").to_owned();
    browser.evaluate("document.querySelector('main > details summary').click()");
    browser.wait_for_text(&shown);
    // The second click of a double-click approves nothing.
    browser.click("button", "Approve what is shown");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(executor.file("approved"), None);
    browser.wait_for_text("Nothing is decided yet");
    browser.click("button", "Approve what is shown");
    browser.wait_for_path(&format!("/console/runs/{id}"));
    browser.wait_for_text("SUCCESS");
    browser.wait_for_text("the person at the console");
    browser.wait_for_text("Approved as it was shown: 16 MB");
    // The record of the approval names what was shown, and so does the page of the run.
    browser.wait_for_text(&shown);
    let records = executor.home().run(&["journal", "records"]);
    assert!(
        String::from_utf8_lossy(&records.stdout).contains(&format!("\"basis\":\"{shown}\"")),
        "{records:?}"
    );
    // The command of the page works in any folder.
    let command = browser.texts("pre code").pop().expect("a command");
    let verify = command.lines().next().expect("two lines").replace("a2g-executor ", "").replace('\'', "");
    let verified = executor.home().run(&verify.split_whitespace().collect::<Vec<_>>());
    assert!(verified.status.success(), "{verify}: {}", String::from_utf8_lossy(&verified.stderr));
    assert_eq!(executor.file("approved").as_deref(), Some(ESCALATES));
    let status = executor.rpc("a2g/status", &json!({ "intent_id": id }));
    let memory = &result(&status)["report"]["usage"]["limits"]["max_memory_mb"];
    assert_eq!((&memory["granted"], &memory["set_by"]), (&json!(16), &json!("verdict")), "{status}");
    // The hash on the page is that of the journal.
    let hashes = browser.texts("code.hash");
    let hash = hashes.iter().find(|hash| **hash != shown).expect("the hash of the receipt");
    let records = executor.home().run(&["journal", "show", &id, "--json"]);
    assert!(String::from_utf8_lossy(&records.stdout).contains(hash), "{hash}: {records:?}");
    browser.report().check_is_empty();
}

#[test]
fn a_denial_has_its_reason_and_is_final() {
    let executor = Executor::start(Options::new());
    let id = escalate(&executor, write("denied", ESCALATES));
    let Some(mut browser) = sign_in(&executor) else { return };
    browser.goto(&format!("/console/decide/{id}"));
    browser.fill("textbox", "Reason, which the agent is told", "keys never leave the vault");
    browser.click("button", "Deny permanently");
    browser.wait_for_path(&format!("/console/runs/{id}"));
    browser.wait_for_text("DID NOT RUN");
    // The record of a refusal may come after the answer, because no caller waits for it.
    eventually("the refusal is listed", || {
        browser.goto("/console/refused");
        browser.text("main").contains("keys never leave the vault").then_some(())
    });
    browser.goto(&format!("/console/decide/{id}"));
    browser.wait_for_text("This intent no longer waits");
    browser.report().check_is_empty();
}

#[test]
fn every_page_is_usable_by_everybody() {
    let executor = Executor::start(Options::new());
    let waiting = escalate(&executor, write("waits", HOSTILE_KEY));
    let call = intent("read_file", json!({ "path": "/workspace/absent" }));
    executor.rpc("a2g/intent", &call);
    let ran = call["intent_id"].as_str().unwrap();
    executor.rpc("a2g/intent", &intent("read_file", json!({ "path": "/etc/passwd" })));
    let Some(mut browser) = browser_or_skip(&base(&executor)) else { return };
    browser.goto("/console");
    browser.wait_for_path("/console/sign-in?to=/console");
    let first = browser.goto(&link(&executor));
    assert!(first.bytes < 400 << 10, "{first:?}");
    browser.wait_for_path("/console");
    let pages = [
        ("overview", "/console".to_owned()),
        ("inbox", "/console/inbox".to_owned()),
        ("decide", format!("/console/decide/{waiting}")),
        ("changes", "/console/changes".to_owned()),
        ("runs", "/console/runs".to_owned()),
        ("run", format!("/console/runs/{ran}")),
        ("refused", "/console/refused".to_owned()),
        ("usage", "/console/usage".to_owned()),
        ("tools", "/console/tools".to_owned()),
        ("tool", "/console/tools/write_file".to_owned()),
        ("policies", "/console/policies".to_owned()),
    ];
    for (name, path) in &pages {
        for scheme in [Scheme::Light, Scheme::Dark] {
            for width in [1600, 360] {
                let visit = browser.goto(path);
                assert_eq!(visit.status, 200, "{path}");
                assert!(visit.bytes < 400 << 10, "{path}: {visit:?}");
                let scrolls_sideways = browser.set_appearance(scheme, width);
                assert!(!scrolls_sideways, "{path} is wider than {width} pixels");
                browser.screenshot(name);
                let violations = browser.axe_violations();
                assert!(violations.is_empty(), "{path} {scheme:?} {width}: {violations:#?}");
            }
        }
    }
    // Nothing that a page says needs a script.
    browser.set_javascript(false);
    browser.goto("/console/inbox");
    browser.wait_for_text("private_key");
    browser.report().check_is_empty();
}

/// A private key, which the built-in governor escalates, in a hostile text.
const HOSTILE_KEY: &str = concat!(
    "-----BEGIN PRIVATE KEY-----\n<script>alert(1)</script><img src=x onerror=alert(2)>\u{202e}\u{1b}[31m",
    "\"'--> </pre></title><style>*{display:none}</style>"
);

#[test]
fn hostile_texts_are_shown_and_do_nothing() {
    let wat = saying(2, "<script>alert(3)</script> \\u{202e}log", 1);
    let catalogue = Catalogue::with_tools().add(Tool::command("hostile", &wat));
    let anywhere = json!({ "paths": ["/workspace/**"] });
    let rules = [("write_file", anywhere.clone()), ("read_file", anywhere.clone()), ("hostile", anywhere)];
    let policies = policy_folder(&[policy_for_all(&rules)]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let id = escalate(&executor, write("hostile", HOSTILE_KEY));
    let call = intent("hostile", json!({}));
    executor.rpc("a2g/intent", &call);
    executor.rpc("a2g/intent", &intent("read_file", json!({ "path": HOSTILE })));
    let Some(mut browser) = sign_in(&executor) else { return };
    let paths = [
        format!("/console/decide/{id}"),
        format!("/console/runs/{}", call["intent_id"].as_str().unwrap()),
        "/console/runs".to_owned(),
        format!("/console/runs?text={}", percent(HOSTILE)),
        "/console/refused".to_owned(),
        "/console/inbox".to_owned(),
        "/console/usage".to_owned(),
    ];
    for path in &paths {
        browser.goto(path);
        for element in ["main script", "main img", "main style"] {
            let count = browser.evaluate(&format!("document.querySelectorAll('{element}').length"));
            assert_eq!(count, 0, "{path}: {element}");
        }
        let text = browser.text("main");
        let is_visible = |c: char| c != '\u{202e}' && c != '\u{1b}';
        assert!(text.chars().all(is_visible), "{path}: {text}");
    }
    browser.goto(&paths[0]);
    browser.wait_for_text("<script>alert(1)</script>");
    browser.wait_for_text("\\u{202e}");
    browser.report().check_is_empty();
}

#[test]
fn searches_select_what_their_forms_say() {
    let executor = Executor::start(Options::new());
    let call = |tool: &str, arguments: Value| {
        let call = intent(tool, arguments);
        executor.rpc("a2g/intent", &call);
        call["intent_id"].as_str().unwrap().to_owned()
    };
    let written = call("write_file", write("found", "text"));
    let failed = call("read_file", json!({ "path": "/workspace/absent" }));
    let refused = call("read_file", json!({ "path": "/etc/shadow" }));
    let denied = escalate(&executor, write("denied", ESCALATES));
    executor.rpc("g2a/directive", &json!({ "intent_id": denied, "decision": "DENIED" }));
    let client = Client::local(&executor);
    // The arguments of a call that waited are stored, and those of one that was refused at once are not.
    eventually("the refusals are listed", || {
        let page = client.get("/console/refused").1;
        (page.contains(&refused) && page.contains("<code>/workspace/denied</code>")).then_some(())
    });
    assert!(client.get("/console/runs").1.contains("<code>/workspace/absent</code>"));
    let find = |path: &str| {
        let (status, page) = client.get(path);
        assert_eq!(status, 200, "{path}: {page}");
        [&written, &failed, &refused].map(|intent| page.contains(&format!("/console/runs/{intent}\"")))
    };
    for (query, expected) in [
        ("", [true, true, false]),
        ("?tool=write_file", [true, false, false]),
        ("?door=a2g", [true, true, false]),
        ("?door=mcp", [false, false, false]),
        ("?status=FAILURE", [false, true, false]),
        ("?text=ABSENT", [false, true, false]),
        ("?agent=did:a:nobody", [false, false, false]),
        ("?since=2026-01-01T00:00", [true, true, false]),
        ("?until=2026-01-01T00:00", [false, false, false]),
        ("?since=2026-01-01T00:00:30&until=2126-01-01T00:00&tool=read_file&status=", [false, true, false]),
    ] {
        assert_eq!(find(&format!("/console/runs{query}")), expected, "{query}");
    }
    eventually("all reports are delivered", || {
        (find("/console/runs?undelivered=yes") == [false; 3]).then_some(())
    });
    for (query, is_found) in [
        ("", true),
        ("?tool=read_file", true),
        ("?tool=write_file", false),
        ("?blocked_by=verdict_denied", true),
        ("?blocked_by=verdict_expired", false),
        ("?text=shadow", true),
        ("?until=2026-01-01T00:00", false),
    ] {
        assert_eq!(find(&format!("/console/refused{query}")), [false, false, is_found], "{query}");
    }
    // A size of less than a megabyte is not "0 of 1 MB".
    let page = client.get(&format!("/console/runs/{written}")).1;
    let output =
        page.split_once("Output used").and_then(|(_, rest)| rest.split_once("</tr>")).expect("a row").0;
    assert!(output.contains(" bytes of "), "{output}");
    // The page of a refused call has its reason.
    let (status, page) = client.get(&format!("/console/runs/{refused}"));
    assert!(status == 200 && page.contains("Refused call") && page.contains("verdict_denied"), "{page}");
    for query in ["?status=DONE", "?door=x", "?since=yesterday", "?agent=x", "?tool=no/name", "?before=x"] {
        assert_eq!(client.get(&format!("/console/runs{query}")).0, 400, "{query}");
    }
    assert_eq!(client.get("/console/refused?blocked_by=nothing").0, 400);
}

/// A program has the same lines and colours before and after the decision.
#[test]
fn a_run_shows_its_arguments_as_its_decision_did() {
    let executor = Executor::start(Options::new());
    let id = escalate(&executor, write("main.py", &format!("{ESCALATES}\nimport os\n")));
    let client = Client::local(&executor);
    let arguments = |kind: &str| {
        let page = client.get(&format!("/console/{kind}/{id}")).1;
        let (_, shown) = page.split_once("<dl class=\"arguments\">").expect("the arguments");
        shown.split_once("</dl>").expect("their end").0.to_owned()
    };
    let decided = arguments("decide");
    assert!(decided.contains("<span class=\"k\">import</span>"), "{decided}");
    result(&executor.rpc("g2a/directive", &json!({ "intent_id": id, "decision": "DENIED" })));
    assert_eq!(arguments("runs"), decided);
}

#[test]
fn what_was_shown_is_what_is_approved() {
    let executor = Executor::start(Options::new());
    let id = escalate(&executor, write("file", ESCALATES));
    let path = format!("/console/decide/{id}");
    let client = Client::local(&executor);
    let page = client.get(&path).1;
    let token = ("form_token", client.token.as_str());
    let fields = shown(&page);
    let approve = |change: &dyn Fn(&mut Fields)| {
        let mut fields = fields.clone();
        change(&mut fields);
        let mut form = vec![token, ("action", "approve")];
        form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        client.post(&path, &form, "")
    };
    let set = |name: &'static str, value: &'static str| {
        move |fields: &mut Fields| {
            fields.retain(|(field, _)| field != name);
            fields.push((name.to_owned(), value.to_owned()));
        }
    };
    // Wider than what is granted, in each limit.
    for (name, value) in
        [("memory", "4096"), ("cpu", "400"), ("timeout", "3600"), ("network", "yes"), ("scope", "/**")]
    {
        let (status, answer) = approve(&set(name, value));
        assert_eq!(status, 200, "{name}: {answer}");
        assert!(answer.contains("wider than the current grant"), "{name}: {answer}");
    }
    // Other than what was shown: the page is shown again.
    let just_now = field(&page, "shown_at").parse::<u64>().expect("a time") + 60_000;
    let (status, answer) = approve(&|fields| {
        fields.retain(|(name, _)| name != "shown_at");
        fields.push(("shown_at".to_owned(), just_now.to_string()));
    });
    assert!(status == 200 && answer.contains("within a second of the page"), "{answer}");
    let (status, answer) = approve(&|fields| fields.retain(|(name, _)| name != "shown_at"));
    assert!(status == 200 && answer.contains("within a second of the page"), "{answer}");
    for (name, value) in [("memory", "8"), ("timeout", "1"), ("basis", ""), ("basis", "00")] {
        let (status, answer) = approve(&set(name, value));
        assert!(status == 200 && answer.contains("Nothing is decided yet"), "{name}: {answer}");
    }
    for (name, value, error) in [
        ("memory", "x", "`memory` is not a whole number"),
        ("memory", "0", "`memory` must be an integer from 1 to 1048576"),
        ("cpu", "-1", "`cpu` is not a whole number"),
        ("timeout", "604801", "`timeout` must be an integer from 1 to 604800"),
    ] {
        let (status, answer) = approve(&set(name, value));
        let notice = format!("Nothing was decided: {error}");
        assert!(status == 200 && answer.contains(&notice), "{name}: {answer}");
    }
    assert!(!page.contains("will probably fail"), "{page}");
    let (status, answer) =
        approve(&|fields| fields.retain(|(name, value)| name != "scope" || value == "/tmp/**"));
    assert!(status == 200 && answer.contains("will probably fail"), "{answer}");
    assert_eq!(executor.file("file"), None);
    // A standing policy that is narrower arrives between the page and the decision.
    let rule = json!({ "write_file": { "allowed": true, "constraints": {} } });
    let capabilities = json!({ "tools": rule, "resources": { "max_memory_mb": 32 } });
    let policy = json!({ "agent_did": AGENT, "version": "2", "capabilities": capabilities });
    result(&executor.rpc("g2a/policy", &policy));
    let (status, answer) = approve(&|_| {});
    assert!(status == 200 && answer.contains("wider than the current grant"), "{answer}");
    assert_eq!(executor.file("file"), None);
    let mut form = vec![token, ("action", "approve")];
    let fields = shown(&answer);
    form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    assert_eq!(client.post(&path, &form, "").0, 303);
    eventually("it ran", || executor.file("file"));
    // Single use, and one decision of two people.
    let (status, answer) = client.post(&path, &form, "");
    assert!(status == 200 && answer.contains("no longer waits"), "{answer}");
}

#[test]
fn a_form_with_another_field_decides_nothing() {
    let executor = Executor::start(Options::new());
    let id = escalate(&executor, write("file", ESCALATES));
    let path = format!("/console/decide/{id}");
    let client = Client::local(&executor);
    let fields = shown(&client.get(&path).1);
    let send = |action: &str, more: &[(&str, &str)]| {
        let mut form = vec![("form_token", client.token.as_str()), ("action", action)];
        form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        form.extend(more.iter().copied());
        client.post(&path, &form, "")
    };
    for action in ["approve", "preview", "deny"] {
        for (name, error) in [
            ("max_memory_mb", "the page has no field `max_memory_mb`"),
            ("Memory", "the page has no field `Memory`"),
            ("", "the page has no field ``"),
            ("memory", "the form has the field `memory` twice"),
        ] {
            let (status, answer) = send(action, &[(name, "8")]);
            let notice = format!("Nothing was decided: {error}");
            assert!(status == 200 && answer.contains(&notice), "{action} {name}: {answer}");
        }
    }
    let status = executor.rpc("a2g/status", &json!({ "intent_id": id }));
    assert_eq!(result(&status)["state"], "escalated", "{status}");
    assert_eq!(executor.file("file"), None);
    assert_eq!(send("approve", &[]).0, 303);
    eventually("it ran", || executor.file("file"));
}

#[test]
fn a_link_works_once_and_only_the_user_can_read_it() {
    let executor = Executor::start(Options::new());
    let first = link(&executor);
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    let mut file = executor.home().journal().into_os_string();
    file.push(".console");
    assert_eq!(mode(file.as_ref()), 0o600);
    drop(Client::local(&executor));
    let (status, head, _) = request(executor.address(), &format!("GET {first} HTTP/1.1"), "");
    assert_eq!(status, 401, "{head}");
    assert!(!head.contains("set-cookie"), "{head}");
    assert_ne!(link(&executor), first);
    // A token is no way in: without a list, every client of the port is anonymous.
    let post = "POST /console/sign-in HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded";
    for body in ["token=x", "", "certificate=yes"] {
        assert_eq!(request(executor.address(), post, body).0, 401);
    }
    for path in ["/console", "/console/inbox", "/console/runs", "/console/events", "/console/tools"] {
        let (status, head, body) = request(executor.address(), &format!("GET {path} HTTP/1.1"), "");
        assert_eq!((status, &*body), (303, ""), "{path}: {head}");
    }
}

#[test]
fn a_session_has_the_rights_of_its_caller_and_ends_with_them() {
    let list = List::new();
    let approver = list.add("anna", &["--role", "approver"]);
    let operator = list.add("olga", &["--role", "operator"]);
    let agent = list.add("planner", &["--role", "agent", "--agent", AGENT]);
    let other = list.add("other", &["--role", "agent", "--agent", "did:aeon:other:1.0:abc123"]);
    let mut executor = Executor::start(list.options());
    let call = intent("write_file", write("file", ESCALATES));
    let address = executor.address();
    let ask = |call: &Value| HttpClient::ask_as(address, &agent, "a2g/intent", call).unwrap();
    assert_eq!(result(&ask(&call))["verdict"], "ESCALATE");
    let id = call["intent_id"].as_str().unwrap();
    let path = format!("/console/decide/{id}");
    let [approver, operator, planner, other] =
        [&approver, &operator, &agent, &other].map(|token| Client::with_token(&executor, token));
    // Each sees what its roles allow.
    for (client, status) in [(&approver, 200), (&operator, 200), (&planner, 200), (&other, 404)] {
        assert_eq!(client.get(&path).0, status);
        assert_eq!(client.get("/console/inbox").1.contains(id), status == 200);
    }
    // Cookies of the same name that another program on this host has set hide none.
    let shadows = format!("a2g_console={}; ", "0".repeat(64)).repeat(30);
    let shadowed = Client { address, cookie: shadows + &approver.cookie, token: String::new() };
    assert_eq!(shadowed.get("/console").0, 200);
    // And does no more: an agent never approves what it asked for.
    for client in [&operator, &planner, &other] {
        for action in ["approve", "deny"] {
            let form = [("form_token", client.token.as_str()), ("action", action)];
            assert_eq!(client.post(&path, &form, "").0, 403, "{action}");
        }
    }
    for client in [&approver, &planner] {
        let form = [("form_token", client.token.as_str()), ("target", "everything"), ("reason", "why not")];
        assert_eq!(client.post("/console/stop", &form, "").0, 403);
        assert_eq!(client.post("/console/resume", &form, "").0, 403);
    }
    // The token of another session, none, and a request that a browser says is another site's.
    for (token, headers) in [
        (operator.token.as_str(), ""),
        ("", ""),
        (approver.token.as_str(), "\r\nSec-Fetch-Site: cross-site"),
        (approver.token.as_str(), "\r\nOrigin: http://evil.example"),
    ] {
        let form = [("form_token", token), ("action", "deny")];
        assert_eq!(approver.post(&path, &form, headers).0, 403, "{token} {headers}");
    }
    // A removed caller is signed out at once; the others stay.
    list.remove("anna");
    executor.process().hang_up();
    eventually("she is signed out", || (approver.get("/console").0 == 303).then_some(()));
    let form = [("form_token", approver.token.as_str()), ("action", "deny")];
    assert_eq!(approver.post(&path, &form, "").0, 401);
    assert_eq!(operator.get("/console").0, 200);
    // An operator's stop withdraws it.
    let form =
        [("form_token", operator.token.as_str()), ("target", "agent"), ("name", AGENT), ("reason", "enough")];
    assert_eq!(operator.post("/console/stop", &form, "").0, 303);
    let (_, page) = operator.get("/console");
    assert!(page.contains("enough") && page.contains("olga"), "{page}");
    // A stop names agents that others may not see.
    for client in [&planner, &other] {
        assert!(!client.get("/console").1.contains("olga"));
    }
    assert!(planner.get("/console/inbox").1.contains("Nothing waits"));
    let refused = ask(&intent("read_file", json!({ "path": "/workspace/x" })));
    expect_blocked(&refused, "stopped");
    // Both are found by the reason: the call that was withdrawn, and the one that was refused.
    let page = eventually("both are listed", || {
        let (_, page) = operator.get("/console/refused?blocked_by=stopped");
        (page.matches("<code>stopped</code>").count() >= 2).then_some(page)
    });
    assert_eq!((page.matches("<code>stopped</code>").count(), page.contains(id)), (2, true), "{page}");
    let form = [("form_token", operator.token.as_str()), ("target", "agent"), ("name", AGENT)];
    assert_eq!(operator.post("/console/resume", &form, "").0, 303);
    assert!(operator.get("/console").1.contains("Nothing is stopped."));
    assert_eq!(executor.file("file"), None);
    // Signing out ends the session on the server.
    let form = [("form_token", operator.token.as_str())];
    assert_eq!(operator.post("/console/sign-out", &form, "").0, 303);
    assert_eq!(operator.get("/console").0, 303);
}

#[test]
fn two_people_approve_and_nobody_their_own_agent() {
    let list = List::new();
    let [anna, bert] = ["anna", "bert"].map(|name| list.add(name, &["--role", "approver"]));
    let carl = list.add("carl", &["--role", "approver", "--role", "agent", "--agent", AGENT]);
    let rule = json!([{ "tools": ["write_file"], "min_risk": 0.7, "required": 2 }]);
    let executor = Executor::start(list.options().set("approvals", rule));
    let call = intent("write_file", write("file", ESCALATES));
    let ask = |token: &str, method: &str, params: &Value| {
        HttpClient::ask_as(executor.address(), token, method, params).unwrap()
    };
    assert_eq!(result(&ask(&carl, "a2g/intent", &call))["verdict"], "ESCALATE");
    let path = format!("/console/decide/{}", call["intent_id"].as_str().unwrap());
    let [first, second, own] = [&anna, &bert, &carl].map(|token| Client::with_token(&executor, token));
    let approve = |client: &Client, memory: Option<&str>| {
        let page = client.get(&path).1;
        let mut fields = shown(&page);
        if let Some(memory) = memory {
            fields.retain(|(name, _)| name != "memory");
            fields.push(("memory".to_owned(), memory.to_owned()));
        }
        let mut form = vec![("form_token", client.token.as_str()), ("action", "approve")];
        form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let (status, page) = client.post(&path, &form, "");
        if memory.is_none() {
            return (status, page);
        }
        let fields = shown(&page);
        let mut form = vec![("form_token", client.token.as_str()), ("action", "approve")];
        form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        client.post(&path, &form, "")
    };
    let (status, page) = approve(&own, None);
    assert!(status == 200 && page.contains("has to approve (`[[approvals]]`)"), "{page}");
    let page = own.get(&path).1;
    assert!(
        page.contains("Another person has to approve this call: you may act for its agent")
            && !page.contains("value=\"approve\""),
        "{page}"
    );
    let directive = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    expect_blocked(&ask(&carl, "g2a/directive", &directive), "caller_unauthorized");
    // A manifest that is wider than the verdict's would replace what the others approve.
    let wider = json!({
        "max_memory_mb": 16, "max_cpu_percent": 50, "timeout_seconds": 10, "network_allowed": false,
        "filesystem_scope": ["/**"],
    });
    let mut wide = directive.clone();
    wide["capability_manifest"] = wider;
    expect_blocked(&ask(&anna, "g2a/directive", &wide), "caller_unauthorized");
    // One approval is not enough, neither from the console nor twice from the same person.
    let (status, page) = approve(&first, Some("24"));
    assert!(status == 200 && page.contains("Your approval counts"), "{page}");
    let (status, page) = approve(&first, None);
    assert!(status == 200 && page.contains("has already approved this intent"), "{page}");
    expect_blocked(&ask(&anna, "g2a/directive", &directive), "caller_unauthorized");
    assert_eq!(executor.file("file"), None);
    // The second person sees the first approval and its limits, and the run gets no more.
    let page = second.get(&path).1;
    assert!(page.contains("1 of 2") && page.contains("anna"), "{page}");
    let approved = ask(&bert, "g2a/directive", &directive);
    assert_eq!(result(&approved), &json!({ "accepted": true }));
    eventually("it ran", || executor.file("file"));
    let records = executor.home().run(&["journal", "records"]);
    let records = String::from_utf8_lossy(&records.stdout).into_owned();
    let partly = records.lines().filter(|line| line.contains("partly_approved")).collect::<Vec<_>>();
    assert!(partly.len() == 1 && partly[0].contains("anna"), "{records}");
    // The file is there before the receipt.
    let report = eventually("it has a report", || {
        let status = ask(&carl, "a2g/status", &json!({ "intent_id": call["intent_id"] }));
        Some(result(&status)["report"].clone()).filter(|report| !report.is_null())
    });
    assert_eq!(report["usage"]["limits"]["max_memory_mb"]["granted"], 24, "{report}");
    let show = executor.home().run(&["journal", "show", call["intent_id"].as_str().unwrap()]);
    assert!(String::from_utf8_lossy(&show.stdout).contains("anna, bert"), "{show:?}");
}

#[test]
fn an_approval_covers_no_more_than_was_shown() {
    let list = List::new();
    let tokens = ["anna", "bert", "carl"].map(|name| list.add(name, &["--role", "approver"]));
    let governor = list.add("governor", &["--role", "governor"]);
    let planner = list.add("planner", &["--role", "agent", "--agent", AGENT]);
    let rule = json!([{ "required": 2 }]);
    let mut executor = Executor::start(list.options().set("approvals", rule));
    let address = executor.address();
    let ask = |token: &str, method: &str, params: &Value| {
        HttpClient::ask_as(address, token, method, params).unwrap()
    };
    let set_memory = |mb: u64| {
        let rule = json!({ "write_file": { "allowed": true, "constraints": {} } });
        let capabilities = json!({ "tools": rule, "resources": { "max_memory_mb": mb } });
        let policy = json!({ "agent_did": AGENT, "version": mb.to_string(), "capabilities": capabilities });
        result(&ask(&governor, "g2a/policy", &policy));
    };
    set_memory(24);
    let call = intent("write_file", write("file", ESCALATES));
    result(&ask(&planner, "a2g/intent", &call));
    let path = format!("/console/decide/{}", call["intent_id"].as_str().unwrap());
    let [anna, bert, carl] = tokens.each_ref().map(|token| Client::with_token(&executor, token));
    let approve = |client: &Client| {
        let fields = shown(&client.get(&path).1);
        let mut form = vec![("form_token", client.token.as_str()), ("action", "approve")];
        form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        client.post(&path, &form, "")
    };
    let counted = "Your approval counts";
    // Without a page, she approves what the verdict and all other layers grant now.
    let directive = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    let approved = ask(&tokens[0], "g2a/directive", &directive);
    assert_eq!(result(&approved), &json!({ "accepted": true, "needs_more_approvals": true }));
    // The run would get more than that: her approval no longer counts.
    set_memory(48);
    let (status, page) = approve(&bert);
    assert!(status == 200 && page.contains("everybody has to approve again"), "{page}");
    assert!(bert.get(&path).1.contains("0 of 2"));
    // Nor does that of somebody who is no longer listed.
    assert!(approve(&anna).1.contains(counted));
    list.remove("anna");
    executor.process().hang_up();
    eventually("it is forgotten", || bert.get(&path).1.contains("0 of 2").then_some(()));
    assert_eq!(executor.file("file"), None);
    assert!(approve(&bert).1.contains(counted));
    assert_eq!(approve(&carl).0, 303);
    eventually("it ran", || executor.file("file"));
}

#[test]
fn a_page_approves_nothing_that_was_withdrawn_and_sent_again() {
    let list = List::new();
    let anna = list.add("anna", &["--role", "approver", "--role", "operator"]);
    let governor = list.add("governor", &["--role", "governor"]);
    let planner = list.add("planner", &["--role", "agent", "--agent", AGENT]);
    let executor = Executor::start(list.options());
    let address = executor.address();
    let ask = |token: &str, method: &str, params: &Value| {
        result(&HttpClient::ask_as(address, token, method, params).unwrap()).clone()
    };
    let client = Client::with_token(&executor, &anna);
    for (round, method) in ["g2a/revoke", "a2g/cancel", "a2g/stop"].into_iter().enumerate() {
        let file = format!("file-{round}");
        let call = intent("write_file", write(&file, ESCALATES));
        let path = format!("/console/decide/{}", call["intent_id"].as_str().unwrap());
        let id = json!({ "intent_id": call["intent_id"] });
        let approve = |page: &str| {
            let fields = shown(page);
            let mut form = vec![("form_token", client.token.as_str()), ("action", "approve")];
            form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            client.post(&path, &form, "")
        };
        ask(&planner, "a2g/intent", &call);
        let old = client.get(&path).1;
        match method {
            "g2a/revoke" => ask(&governor, method, &id),
            "a2g/cancel" => ask(&planner, method, &id),
            _ => {
                let target = json!({ "tool": "write_file" });
                ask(&anna, method, &json!({ "target": target, "reason": "not now" }));
                ask(&anna, "a2g/resume", &json!({ "target": target }))
            }
        };
        assert_eq!(ask(&planner, "a2g/intent", &call)["verdict"], "ESCALATE");
        let (status, page) = approve(&old);
        assert!(status == 200 && page.contains("Nothing is decided yet"), "{method}: {status} {page}");
        assert_eq!(executor.file(&file), None, "{method}");
        assert_eq!(approve(&page).0, 303, "{method}");
        eventually("it ran", || executor.file(&file));
    }
}

#[test]
fn another_site_gets_nothing() {
    let executor = Executor::start(Options::new());
    let id = escalate(&executor, write("attacked", ESCALATES));
    let Some(mut browser) = sign_in(&executor) else { return };
    let target = base(&executor);
    // The attacker's page on another port, which is another origin of the same site: cookies do not tell them apart.
    let forms = [
        format!("/console/decide/{id}"),
        "/console/stop".to_owned(),
        format!("/console/runs/{id}/stop"),
        format!("/console/changes/{id}"),
        "/console/sign-out".to_owned(),
        "/console/resume".to_owned(),
        "/console/sign-in".to_owned(),
        "/console/tools/write_file/send".to_owned(),
    ];
    let count = forms.len();
    let forms = forms.map(|path| {
        format!(
            "<form method=post action='{target}{path}'><input name=action value=approve>\
             <input name=target value=everything><input name=reason value=x><input name=agent value='{AGENT}'>\
             <input name=intent value={id}><input name='argument.path' value=/workspace/attacked>\
             <input name='argument.content' value=x></form>"
        )
    });
    let page = format!(
        "<!doctype html><title>attack</title>an attack <iframe src='{target}/console'></iframe>{}",
        forms.join("")
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let attacker = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _head = stream.read(&mut [0; 4096]);
            let _sent = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                page.len()
            );
        }
    });
    for form in 0..count {
        browser.evaluate(&format!("void (location.href = 'http://{attacker}/')"));
        browser.wait_for_text("an attack");
        let frame = "document.querySelector('iframe').contentDocument";
        assert_eq!(
            browser.evaluate(&format!("{frame}?.body.textContent.includes('Overview') ?? false")),
            false
        );
        browser.evaluate(&format!("void document.forms[{form}].submit()"));
        browser.wait_for_text("not served here");
    }
    // Nothing happened: it still waits, nothing is stopped, and the session goes on.
    browser.goto("/console");
    browser.wait_for_text("Nothing is stopped.");
    browser.wait_for_text("private_key");
    assert_eq!(executor.file("attacked"), None);
}

#[test]
fn pages_that_follow_events_are_bounded() {
    let executor = Executor::start(Options::new());
    let client = Client::local(&executor);
    let open = || {
        let mut stream = TcpStream::connect(executor.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let address = executor.address();
        let cookie = &client.cookie;
        write!(stream, "GET /console/events HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n")
            .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (stream, String::from_utf8_lossy(&head).into_owned())
    };
    let streams = (0..64).map(|_| open()).collect::<Vec<_>>();
    assert!(streams.iter().all(|(_, head)| head == "HTTP/1.1 200"));
    assert_eq!(open().1, "HTTP/1.1 503");
    // Runs go on beside them.
    for _ in 0..32 {
        executor.rpc("a2g/intent", &intent("read_file", json!({ "path": "/workspace/absent" })));
    }
    assert_eq!(client.get("/console").0, 200);
    drop(streams);
    eventually("a place is free", || (open().1 == "HTTP/1.1 200").then_some(()));
}
