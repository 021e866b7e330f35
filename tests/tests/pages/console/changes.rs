//! The page of file changes that wait: what it shows first, and what decides.

use super::sign_in;
use harness::callers::{List, agent};
use harness::console::{Client, Fields, field};
use harness::guests::Guest;
use harness::*;
use serde_json::json;
use std::fs;
use std::time::Duration;

/// The time until a page may commit, and a little more.
const UNTIL_ARMED: Duration = Duration::from_millis(1_200);
/// Width of a telephone's screen, in CSS pixels.
const TELEPHONE: u32 = 390;
/// The number of good edits beside a harmful deletion.
const EDITS: usize = 200;

fn must(call: &str) -> String {
    format!("(if {call} (then (unreachable)))\n")
}

fn remove(path: &str) -> String {
    must(&format!(r#"(call $path_unlink (i32.const 3) @"{path}")"#))
}

fn write(path: &str, content: &str) -> String {
    [
        must(&format!(r#"(call $create (i32.const 3) @"{path}")"#)),
        must(&format!(r#"(call $write (global.get $fd) @"{content}")"#)),
        must("(call $fd_close (global.get $fd))"),
    ]
    .concat()
}

/// A catalogue with one tool, whose file changes wait.
fn catalogue_of(tool: &str, guest: &Guest) -> Catalogue {
    Catalogue::empty().add(Tool::command_bytes(tool, guest.wasm()).effects("staged"))
}

/// Runs the tool, and returns its intent.
fn stage(executor: &Executor, tool: &str) -> String {
    let call = execute(tool, json!({ "task": "tidy up" }));
    let answer = executor.rpc("a2g/execute", &call);
    assert_eq!(result(&answer)["status"], "STAGED", "{answer}");
    id_of(&call)
}

fn path_of(id: &str) -> String {
    format!("/console/changes/{id}")
}

fn module(number: usize) -> String {
    format!("src/module_{number:03}.py")
}

/// A tool that edits all modules, and deletes a file that none of them is about.
fn tidy() -> Guest {
    let edits = (0..EDITS).map(|number| write(&module(number), "LIMIT = 2"));
    Guest::new(edits.chain([remove("customers.db")]).collect::<String>())
}

fn prepare(executor: &Executor) {
    let workspace = executor.workspace();
    fs::create_dir(workspace.join("src")).unwrap();
    for number in 0..EDITS {
        fs::write(workspace.join(module(number)), "LIMIT = 1\nprint(LIMIT)\n").unwrap();
    }
    fs::write(workspace.join("customers.db"), "everybody").unwrap();
}

/// The space between the last row of the first list and the buttons, on the first screen; negative if the row is not on it.
const SPACE: &str = "scrollTo(0, 0); document.querySelector('form.bar').getBoundingClientRect().top
    - Math.max(...[...document.querySelector('ul.changes').children].map((row) => row.getBoundingClientRect().bottom))";
/// The height of the buttons that is below the screen.
const BELOW: &str = "document.querySelector('form.bar').getBoundingClientRect().bottom - innerHeight";

fn number(browser: &mut Browser, expression: &str) -> f64 {
    browser.evaluate(expression).as_f64().expect("a number")
}

#[test]
fn a_deletion_among_many_edits_is_seen_first() {
    let catalogue = catalogue_of("tidy", &tidy());
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    prepare(&executor);
    let Some(mut browser) = sign_in(&executor) else { return };
    let id = stage(&executor, "tidy");
    // The navigation of an open page counts what waits.
    eventually("it is counted", || browser.text("nav").contains("Changes (1)").then_some(()));
    eventually("the title counts it", || {
        (browser.evaluate("document.title") == "(1) Overview · A2G executor").then_some(())
    });
    for (scheme, width) in
        [(Scheme::Light, 1600), (Scheme::Dark, 1600), (Scheme::Light, TELEPHONE), (Scheme::Dark, TELEPHONE)]
    {
        browser.goto("/console/changes");
        assert!(!browser.set_appearance(scheme, width), "the list is wider than {width} pixels");
        browser.screenshot("changes");
        let violations = browser.axe_violations();
        assert!(violations.is_empty(), "{scheme:?} {width}: {violations:#?}");
        browser.click("link", &format!("Look at {}", &id[..8]));
        browser.wait_for_path(&path_of(&id));
        let visit = browser.goto(&path_of(&id));
        assert!(visit.status == 200 && visit.bytes < 400 << 10, "{visit:?}");
        assert!(!browser.set_appearance(scheme, width), "the page is wider than {width} pixels");
        browser.screenshot("change-set");
        let violations = browser.axe_violations();
        assert!(violations.is_empty(), "{scheme:?} {width}: {violations:#?}");
        let space = number(&mut browser, SPACE);
        assert!(space >= 0.0, "{width}: the deletion is {space} pixels below the first screen");
        let below = number(&mut browser, BELOW);
        assert!(below <= 0.0, "{width}: {below} pixels of the buttons are below the screen");
    }
    let text = browser.text("main");
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    let parts = [
        "Tool tidy: A tool of the tests.",
        AGENT,
        " UTC with tidy up",
        "Deletes 1, changes 200",
        "Not applied yet",
        "All of it or none",
        "Deleted (1) can be undone for up to 1 day after a commit",
        "/workspace/customers.db −1 +0, 9 bytes",
        "What has left the machine",
        "Nothing: the run had no network.",
        "Changed (200)",
        "/workspace/src/module_000.py −1 +1, 23 bytes",
        "/workspace/src/module_199.py",
        "Commit all 201, deleting 1",
    ];
    assert!(parts.map(place).is_sorted(), "{text}");
    // The button that deletes has the colour of danger, and the other one no colour.
    let is_dangerous = ["commit", "discard"].map(|value| {
        browser.evaluate(&format!("document.querySelector('button[value={value}]').matches('.danger')"))
    });
    assert_eq!(is_dangerous, [true, false]);
    // The first differences are open, and the others folded, as is that of the deletion.
    let added = browser.texts(".changes details[open] .plus");
    assert!(added.len() == 3 && added.iter().all(|line| line.trim() == "+LIMIT = 2"), "{added:?}");
    assert_eq!(browser.evaluate("document.querySelectorAll('.changes details').length"), EDITS + 1);
    assert_eq!(
        browser.evaluate(
            "document.querySelectorAll('.changes')[0].querySelectorAll('details:not([open]) .minus').length"
        ),
        1
    );
    browser.goto(&format!("/console/runs/{id}"));
    browser.wait_for_text("STAGED");
    browser.click("link", "See its 201 file changes, and whether they are applied");
    browser.wait_for_path(&path_of(&id));
    browser.report().check_is_empty();
}

#[test]
fn five_deletions_among_ten_thousand_changes_are_on_the_first_screen() {
    const REMOVED: [&str; 5] = ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"];
    // Makes the folder `many`, and 9,994 folders in it.
    let beside = r#"
(data (i32.const 120000) "many/f00000")
(func $make_many (param $count i32) (local $number i32) (local $rest i32) (local $digit i32)
  (loop $more
    (local.set $rest (local.get $number))
    (local.set $digit (i32.const 120010))
    (loop $digits
      (i32.store8 (local.get $digit) (i32.add (i32.const 48) (i32.rem_u (local.get $rest) (i32.const 10))))
      (local.set $rest (i32.div_u (local.get $rest) (i32.const 10)))
      (local.set $digit (i32.sub (local.get $digit) (i32.const 1)))
      (br_if $digits (i32.gt_u (local.get $digit) (i32.const 120005))))
    (if (call $path_mkdir (i32.const 3) (i32.const 120000) (i32.const 11)) (then (unreachable)))
    (local.set $number (i32.add (local.get $number) (i32.const 1)))
    (br_if $more (i32.lt_u (local.get $number) (local.get $count)))))"#;
    let many = must(r#"(call $path_mkdir (i32.const 3) @"many")"#) + "(call $make_many (i32.const 9994))";
    let body = many + &REMOVED.map(remove).concat();
    let catalogue = catalogue_of("many", &Guest::new(body).beside(beside));
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    for name in REMOVED {
        fs::write(executor.workspace().join(name), "x").unwrap();
    }
    let id = stage(&executor, "many");
    let client = Client::local(&executor);
    let (status, page) = client.get(&path_of(&id));
    assert!(status == 200 && page.len() < 600 << 10, "{status}: {} bytes", page.len());
    let place = |part: &str| page.find(part).unwrap_or_else(|| panic!("{part}"));
    assert!(
        REMOVED.map(|name| place(&format!("/workspace/{name}"))).iter().all(|at| *at < place("Created ("))
    );
    assert!(page.contains(">Deletes 5<") && page.contains(", creates 9995"));
    assert!(
        page.contains("Created (9995, ")
            && page.contains("none of them a deletion, a rename or the loss of most of a file (creates ")
    );
    assert!(page.contains("A commit includes it."));
    let Some(mut browser) = sign_in(&executor) else { return };
    for width in [1600, TELEPHONE] {
        browser.goto(&path_of(&id));
        assert!(!browser.set_appearance(Scheme::Light, width), "the page is wider than {width} pixels");
        assert_eq!(browser.evaluate("document.querySelector('ul.changes').children.length"), REMOVED.len());
        let space = number(&mut browser, SPACE);
        assert!(space >= 0.0, "{width}: a deletion is {space} pixels below the first screen");
    }
    browser.click("button", "Discard all");
    browser.wait_for_text("it was discarded");
    assert_eq!(executor.file("a.txt").as_deref(), Some("x"));
    assert!(!executor.workspace().join("many").exists());
    browser.report().check_is_empty();
}

#[test]
fn only_a_button_commits_and_only_what_was_seen() {
    let body = [write("new.txt", "new"), remove("old.txt")].concat();
    let catalogue = catalogue_of("swap", &Guest::new(body));
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    fs::write(executor.workspace().join("old.txt"), "old").unwrap();
    let Some(mut browser) = sign_in(&executor) else { return };
    let id = stage(&executor, "swap");
    let path = path_of(&id);
    browser.goto(&path);
    std::thread::sleep(UNTIL_ARMED);
    browser.press("Enter");
    // A page that was just switched to commits nothing.
    browser.switch_tabs();
    browser.evaluate("document.querySelector('button[value=commit]').click()");
    browser.wait_for_text("Nothing is decided yet");
    assert_eq!((executor.file("new.txt"), executor.file("old.txt").as_deref()), (None, Some("old")));
    std::thread::sleep(UNTIL_ARMED);
    browser.click("button", "Commit all 2, deleting 1");
    browser.wait_for_text("it can be undone until");
    assert_eq!((executor.file("new.txt").as_deref(), executor.file("old.txt")), (Some("new"), None));
    browser.wait_for_text("commit by the person at the console SUCCESS");
    eventually("nothing is counted", || (!browser.text("nav").contains('(')).then_some(()));
    browser.goto("/console/changes");
    browser.wait_for_text("Applied, and can be undone");
    browser.goto(&path);
    // The button that undoes is where the other one was: a second click on that place does nothing.
    browser.click("button", "Undo all 2");
    std::thread::sleep(UNTIL_ARMED);
    assert_eq!(executor.file("old.txt"), None);
    browser.click("button", "Undo all 2");
    browser.wait_for_text("it was undone");
    assert_eq!((executor.file("new.txt"), executor.file("old.txt").as_deref()), (None, Some("old")));
    assert_eq!(browser.evaluate("document.querySelectorAll('form.bar').length"), 0);
    browser.report().check_is_empty();
    // Without scripts, the server waits as long.
    browser.set_javascript(false);
    let again = stage(&executor, "swap");
    browser.goto(&path_of(&again));
    std::thread::sleep(UNTIL_ARMED);
    browser.click("button", "Commit all 2, deleting 1");
    browser.wait_for_text("it can be undone until");
}

/// The fields of the page, as if it had been open for longer than a commit needs.
fn shown(client: &Client, page: &str, action: &str) -> Fields {
    let shown_at = field(page, "shown_at").parse::<u64>().expect("a time") - 1_500;
    [
        ("form_token", client.token.clone()),
        ("action", action.to_owned()),
        ("digest", field(page, "digest")),
        ("shown_at", shown_at.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn post(client: &Client, path: &str, fields: &Fields) -> (u16, String) {
    let fields = fields.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>();
    client.post(path, &fields, "")
}

#[test]
fn a_form_decides_only_on_the_changes_that_it_shows() {
    let catalogue = catalogue_of("make", &Guest::new(write("new.txt", "new")));
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    let client = Client::local(&executor);
    let id = stage(&executor, "make");
    let path = path_of(&id);
    let page = client.get(&path).1;
    let digest = field(&page, "digest");
    let refuse = |action: &str, change: &dyn Fn(&mut Fields), notice: &str| {
        let mut fields = shown(&client, &page, action);
        change(&mut fields);
        let (status, answer) = post(&client, &path, &fields);
        assert!(status == 200 && answer.contains(notice), "{action} {notice}: {status} {answer}");
        assert!(
            answer.contains("Not applied yet") && executor.file("new.txt").is_none(),
            "{action} {notice}"
        );
    };
    let set = |name: &'static str, value: String| {
        move |fields: &mut Fields| {
            fields.retain(|(field, _)| field != name);
            fields.push((name.to_owned(), value.clone()));
        }
    };
    let other = digest.chars().rev().collect::<String>();
    let just_now = field(&page, "shown_at").parse::<u64>().unwrap() + 60_000;
    for value in [other, String::new(), digest.to_uppercase() + "0"] {
        refuse("commit", &set("digest", value), "the form is of other changes");
    }
    refuse("commit", &|fields| fields.retain(|(name, _)| name != "digest"), "the form is of other changes");
    refuse("commit", &set("shown_at", just_now.to_string()), "within a second of the page");
    refuse("commit", &|fields| fields.retain(|(name, _)| name != "shown_at"), "within a second of the page");
    for action in ["approve", "", "Commit"] {
        refuse(action, &|_| {}, "the form names no action");
    }
    refuse("undo", &|_| {}, "Nothing was decided");
    for action in ["commit", "discard"] {
        refuse(action, &|fields| fields.push(("scope".to_owned(), "/".to_owned())), "no field `scope`");
        refuse(action, &|fields| fields.push(("action".to_owned(), "discard".to_owned())), "`action` twice");
    }
    let fields = shown(&client, &page, "commit");
    let mut foreign = fields.clone();
    foreign[0].1 = "0".repeat(64);
    assert_eq!(post(&client, &path, &foreign).0, 403);
    let second = stage(&executor, "make");
    assert_eq!(post(&client, &path, &fields).0, 303);
    assert_eq!(executor.file("new.txt").as_deref(), Some("new"));
    let (status, answer) = post(&client, &path, &fields);
    assert!(status == 200 && answer.contains("Nothing was decided"), "{answer}");
    // The second run has found no such file, so a commit of its changes fails, and they still wait.
    let page = client.get(&path_of(&second)).1;
    assert_eq!(post(&client, &path_of(&second), &shown(&client, &page, "commit")).0, 303);
    let page = client.get(&path_of(&second)).1;
    for part in ["The last attempt to commit them failed", "/workspace/new.txt", "Not applied yet", "FAILURE"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(post(&client, &path_of(&second), &shown(&client, &page, "discard")).0, 303);
    let page = client.get(&path_of(&second)).1;
    assert!(page.contains("it was discarded") && !page.contains("value=\"commit\""), "{page}");
    assert!(client.get("/console/runs?status=STAGED").1.contains(&second));
}

#[test]
fn each_person_decides_as_far_as_their_roles_allow() {
    const OTHER: &str = "did:aeon:other:1.0:abc123";
    let list = List::new();
    let tokens = [
        list.add("anna", &["--role", "approver"]),
        list.add("olga", &["--role", "operator"]),
        agent(&list, "planner", AGENT),
        agent(&list, "other", OTHER),
    ];
    let catalogue = catalogue_of("make", &Guest::new(write("new.txt", "new")));
    let executor = Executor::start(list.options().catalogue(&catalogue));
    let stage = || {
        let call = execute("make", json!({}));
        let answer = HttpClient::ask_as(executor.address(), &tokens[2], "a2g/execute", &call).unwrap();
        assert_eq!(result(&answer)["status"], "STAGED", "{answer}");
        id_of(&call)
    };
    let [anna, olga, planner, other] = tokens.each_ref().map(|token| Client::with_token(&executor, token));
    let id = stage();
    let page = anna.get(&path_of(&id)).1;
    for (client, sees, may_commit, may_discard) in [
        (&anna, true, true, true),
        (&olga, true, false, true),
        (&planner, true, false, true),
        (&other, false, false, false),
    ] {
        let (status, shown) = client.get(&path_of(&id));
        assert_eq!(status, if sees { 200 } else { 404 });
        assert_eq!(client.get("/console/changes").1.contains(&id), sees);
        assert_eq!(client.get("/console").1.contains("data-count=\"1\""), sees);
        assert_eq!(shown.contains("value=\"commit\""), may_commit);
        assert_eq!(shown.contains("value=\"discard\""), may_discard);
    }
    for action in ["commit", "undo"] {
        for (client, status) in [(&olga, 403), (&planner, 403), (&other, 404)] {
            assert_eq!(post(client, &path_of(&id), &shown(client, &page, action)).0, status, "{action}");
        }
    }
    assert_eq!(post(&other, &path_of(&id), &shown(&other, &page, "discard")).0, 404);
    assert_eq!(executor.file("new.txt"), None);
    for client in [&olga, &planner] {
        let id = stage();
        let page = client.get(&path_of(&id)).1;
        assert_eq!(post(client, &path_of(&id), &shown(client, &page, "discard")).0, 303);
        assert!(client.get(&path_of(&id)).1.contains("it was discarded"));
    }
    assert_eq!(post(&anna, &path_of(&id), &shown(&anna, &page, "commit")).0, 303);
    assert_eq!(executor.file("new.txt").as_deref(), Some("new"));
    let page = olga.get(&path_of(&id)).1;
    assert!(page.contains("it can be undone until") && page.contains("anna"), "{page}");
    assert!(!page.contains("value=\"undo\""), "{page}");
}

/// A name and a content, as text of WebAssembly, that would be markup, a script and a reversed line.
const HOSTILE_NAME: &str = r"<img src=x onerror=alert(1)>\e2\80\ae- deleted (0) becomes safe";
const HOSTILE_CONTENT: &str =
    r"<script>alert(2)</script></pre></details>\0a-\e2\80\aenot deleted\0a@@ -1 +1 @@\0a";

#[test]
fn hostile_names_and_contents_are_shown_and_do_nothing() {
    let body =
        [write("plain.txt", HOSTILE_CONTENT), write(HOSTILE_NAME, "x"), remove("gone <b>.txt")].concat();
    let catalogue = catalogue_of("hostile", &Guest::new(body));
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    fs::write(executor.workspace().join("gone <b>.txt"), "").unwrap();
    let id = stage(&executor, "hostile");
    let Some(mut browser) = sign_in(&executor) else { return };
    for path in [path_of(&id), format!("/console/runs/{id}"), "/console/changes".to_owned()] {
        browser.goto(&path);
        for element in ["main script", "main img", "main b"] {
            let count = browser.evaluate(&format!("document.querySelectorAll('{element}').length"));
            assert_eq!(count, 0, "{path}: {element}");
        }
        let text = browser.text("main");
        assert!(!text.contains('\u{202e}'), "{path}: {text}");
    }
    browser.goto(&path_of(&id));
    for part in ["gone <b>.txt", "<img src=x onerror=alert(1)>\\u{202e}", "<script>alert(2)</script>"] {
        browser.wait_for_text(part);
    }
    // A line that imitates another kind of line begins with the sign of its own.
    let added = browser.texts(".changes details[open] .plus").join("\n");
    assert!(added.contains("+-\\u{202e}not deleted") && added.contains("+@@ -1 +1 @@"), "{added}");
    assert_eq!(browser.texts(".changes .minus"), Vec::<String>::new());
    browser.report().check_is_empty();
}
