//! The decision page in the hands of a person: keys, times, a telephone, and what it says first.

use super::{escalate, sign_in};
use harness::console::Client;
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::json;
use std::time::Duration;

/// The time until a page may approve, and a little more.
const UNTIL_ARMED: Duration = Duration::from_millis(1_200);
const UNDECIDED: &str = "Nothing is decided yet";

#[test]
fn only_the_button_approves_and_only_what_was_seen() {
    let executor = Executor::start(Options::new());
    let id = escalate(&executor, write("entered", ESCALATES));
    let path = format!("/console/decide/{id}");
    let Some(mut browser) = sign_in(&executor) else { return };
    // Enter in any field shows the page again, also without scripts, and keeps what the person has typed.
    for has_scripts in [false, true] {
        browser.set_javascript(has_scripts);
        for (role, name, text) in
            [("spinbutton", "Memory", "64"), ("textbox", "Reason, which the agent is told", "not yet")]
        {
            browser.goto(&path);
            std::thread::sleep(UNTIL_ARMED);
            browser.fill(role, name, text);
            browser.press("Enter");
            browser.wait_for_text(UNDECIDED);
        }
        assert_eq!(browser.evaluate("document.getElementById('reason').value"), "not yet");
    }
    // A page that was just switched to approves nothing, whichever key or button the person meant.
    browser.goto(&path);
    std::thread::sleep(UNTIL_ARMED);
    browser.switch_tabs();
    browser.evaluate("document.querySelector('button[value=approve]').click()");
    browser.wait_for_text(UNDECIDED);
    assert_eq!(browser.path(), path);
    assert_eq!(executor.file("entered"), None);
    std::thread::sleep(UNTIL_ARMED);
    // Space on the button itself approves.
    browser.evaluate("document.querySelector('button[value=approve]').focus()");
    browser.press("Space");
    browser.wait_for_path(&format!("/console/runs/{id}"));
    eventually("it ran", || executor.file("entered"));
    browser.report().check_is_empty();
}

/// A program that the built-in governor escalates.
const PROGRAM: &str = "import os\n\n# Writes the key.\nKEY = '-----BEGIN PRIVATE KEY-----'\nfor part in KEY.split('\u{202e}'):\n    print(part, 12)\n";

/// Width and height of a telephone's screen, in CSS pixels.
const TELEPHONE: (u32, u32) = (390, 844);

#[test]
fn a_telephone_shows_first_what_matters() {
    let executor = Executor::start(Options::new());
    executor.rpc("a2g/intent", &intent("read_file", json!({ "path": "/workspace/absent" })));
    executor.rpc("a2g/intent", &intent("read_file", json!({ "path": "/etc/passwd" })));
    let program = PROGRAM.to_owned() + &"print(KEY)\n".repeat(40);
    let id = escalate(&executor, json!({ "content": program, "path": "/workspace/deploy.py" }));
    let Some(mut browser) = sign_in(&executor) else { return };
    browser.goto(&format!("/console/decide/{id}"));
    browser.set_appearance(Scheme::Light, TELEPHONE.0);
    browser.screenshot("telephone-decide");
    // One screen further, the arguments are above its end, and both buttons in it.
    let (width, height) = TELEPHONE;
    assert_eq!(browser.evaluate("innerWidth"), width);
    let bottom = format!(
        "scrollTo(0, {height}); Math.max(...[...document.querySelectorAll('dl.arguments, [value=approve], [value=deny]')]
            .map((element) => element.getBoundingClientRect().bottom)) - innerHeight"
    );
    let beyond = browser.evaluate(&bottom).as_f64().expect("a number");
    assert!(beyond <= 0.0, "{beyond} pixels");
    // The risk with its reason once.
    let text = browser.text("main");
    for once in ["0.75", "private_key"] {
        assert_eq!(text.matches(once).count(), 1, "{once}: {text}");
    }
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    let parts = [
        "private_key",
        "/workspace/deploy.py",
        "import os",
        "What the run may touch",
        "Limits of the run",
        "Approve what is shown",
        "Intent and hashes",
    ];
    assert!(parts.map(place).is_sorted(), "{text}");
    // The program is a program: its lines have numbers, and its words colours.
    let lines = browser.texts(".lines .l");
    assert_eq!((lines.len(), lines[0].as_str(), lines[1].as_str()), (47, "import os", ""), "{lines:?}");
    assert_eq!(browser.texts(".lines .c"), ["# Writes the key."]);
    assert_eq!(browser.texts(".escape"), ["\\u{202e}"]);
    assert!(browser.texts(".lines .k").starts_with(&["import".to_owned(), "for".to_owned()]));
    for (page, parts) in [
        ("/console/inbox", &["write_file", "HIGH 0.75", "/workspace/deploy.py", "min"][..]),
        ("/console/runs", &["read_file", "FAILURE", "UTC"]),
        ("/console/refused", &["read_file", "verdict_denied", "/etc/passwd", "UTC"]),
    ] {
        browser.goto(page);
        browser.screenshot(&format!("telephone{}", page.replace('/', "-")));
        let hidden = "[...document.querySelectorAll('.cards tr td, .scroll')]
            .filter((element) => element.scrollWidth > element.clientWidth + 1
                || element.getBoundingClientRect().right > innerWidth).length";
        assert_eq!(browser.evaluate(hidden), 0, "{page}");
        let card = browser.texts(".cards tbody tr").remove(0);
        assert!(parts.iter().all(|part| card.contains(part)), "{page}: {card}");
    }
    // The navigation and the title count what waits, and follow the events.
    assert!(browser.text("nav").contains("Inbox (1)"));
    let title = "document.title";
    assert_eq!(browser.evaluate(title), "(1) Refused calls · A2G executor");
    let deny = json!({ "intent_id": id, "decision": "DENIED" });
    result(&executor.rpc("g2a/directive", &deny));
    eventually("the count is refreshed", || {
        (browser.evaluate(title) == "Refused calls · A2G executor").then_some(())
    });
    assert!(!browser.text("nav").contains('('));
    browser.report().check_is_empty();
}

#[test]
fn an_expired_page_says_so_first() {
    let governor = FakeGovernor::deciding(|call| {
        let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest());
        verdict["verdict"] = "ESCALATE".into();
        verdict["expires_at"] = in_seconds(6).into();
        Reply::Result(verdict)
    });
    let executor = Executor::start(Options::new().governor(&governor.url()));
    // A browser that starts beside a load takes longer than the call waits.
    let browser = sign_in(&executor);
    let id = escalate(&executor, write("late", "x"));
    let path = format!("/console/decide/{id}");
    let client = Client::local(&executor);
    assert!(client.get(&path).1.contains("hidden>Expired"));
    if let Some(mut browser) = browser {
        browser.goto(&path);
        browser.wait_for_text("Expired: nobody decided in time");
        let first = "document.querySelector('main').firstElementChild.textContent.startsWith('Expired')";
        assert_eq!(browser.evaluate(first), true);
        assert_eq!(browser.evaluate("document.querySelectorAll('form.decision button:enabled').length"), 0);
        browser.report().check_is_empty();
    }
    let page = eventually("it has expired", || {
        Some(client.get(&path).1).filter(|page| !page.contains("hidden>Expired"))
    });
    assert!(page.contains("Expired: nobody decided in time"), "{page}");
    assert!(!page.contains("value=\"approve\"") && !page.contains("value=\"deny\""), "{page}");
    // The next intent that waits ends the wait of this one.
    escalate(&executor, write("next", "x"));
    let page = eventually("its end is recorded", || {
        Some(client.get(&path).1).filter(|page| page.contains("no longer waits") && page.contains("Expired"))
    });
    assert!(page.contains("Expired: nobody decided in time"), "{page}");
    assert!(client.get(&format!("/console/runs/{id}")).1.contains("EXPIRED"));
}
