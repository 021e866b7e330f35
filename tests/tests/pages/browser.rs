//! The browser of the harness on pages with known faults: a detector that finds nothing would pass every test of the
//! console.

use harness::*;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

const STRICT: &str = "default-src 'none'; form-action 'self'";
const LOOSE: &str = "default-src * 'unsafe-inline'";

const GOOD: &str = r#"<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<title>Good</title><main><h1>Good</h1><form action="/second">
<label>Name <input name="name"></label>
<label>Colour <select name="colour"><option value="r">red<option value="b">blue</select></label>
<button>Send "it" (now)</button></form></main></html>"#;
const SECOND: &str = r#"<!doctype html><html lang="en"><title>Second</title><main><h1>Second</h1>
<p class="script">plain</p><noscript>without scripts</noscript>
<script>document.querySelector("p.script").textContent = "scripted"</script></main></html>"#;
/// No language, grey on white, two small targets, and wider than a telephone.
const INACCESSIBLE: &str = r#"<!doctype html><title>Bad</title><p style="color:#ccc;background:#fff">faint</p>
<button style="width:9px;height:9px;padding:0">x</button><button style="width:9px;height:9px;padding:0">y</button>
<div style="width:900px">wide</div>"#;
const FOREIGN: &str = r#"<!doctype html><title>Foreign</title><img src="http://foreign.invalid/a.png">
<script>new WebSocket("ws://foreign.invalid/b")</script>"#;
const ACTIVE: &str = r#"<!doctype html><title>Active</title><p>waiting</p><a href="/second" target="_blank">window</a>
<button onclick="document.querySelector('p').textContent = confirm('sure?') ? 'accepted' : 'dismissed'">ask</button>
<script>console.error("said"); thereIsNoSuchFunction()</script>"#;
const FORBIDDEN: &str = r#"<!doctype html><title>Forbidden</title><p style="color:red">text</p>
<script>alert(1)</script>"#;

/// Answers one request.
fn serve(mut stream: TcpStream) {
    let mut lines =
        BufReader::new(stream.try_clone().expect("a second handle")).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let target = first.split(' ').nth(1).unwrap_or_default();
    let (status, policy, body) = match target.split('?').next().unwrap_or_default() {
        "/good" => ("200 OK", STRICT, GOOD),
        "/second" => ("200 OK", LOOSE, SECOND),
        "/inaccessible" => ("200 OK", LOOSE, INACCESSIBLE),
        "/foreign" => ("200 OK", LOOSE, FOREIGN),
        "/active" => ("200 OK", LOOSE, ACTIVE),
        "/forbidden" => ("200 OK", STRICT, FORBIDDEN),
        _ => ("404 Not Found", STRICT, "not found"),
    };
    let _gone = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         Content-Security-Policy: {policy}\r\nSet-Cookie: key=value; HttpOnly; SameSite=Strict; Path=/\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
}

/// The server, which must outlive the browser, and a browser.
fn start() -> Option<(Browser, Listener)> {
    let server = Listener::start(serve);
    Some((browser_or_skip(&format!("http://{}", server.address))?, server))
}

#[test]
fn a_good_page_gives_no_finding_and_obeys() {
    let Some((mut browser, _server)) = start() else { return };
    let visit = browser.goto("/good?key=1");
    assert_eq!((visit.status, visit.path.as_str()), (200, "/good?key=1"));
    assert!((GOOD.len() as u64..2000).contains(&visit.bytes), "{visit:?}");
    let found = browser.axe_violations();
    assert!(found.is_empty(), "{found:?}");
    let expected = Cookie {
        name: "key".to_owned(),
        value: "value".to_owned(),
        domain: "127.0.0.1".to_owned(),
        path: "/".to_owned(),
        http_only: true,
        secure: false,
        is_for_session: true,
        same_site: "Strict".to_owned(),
    };
    assert_eq!(browser.cookies(), [expected]);
    for (scheme, width) in [(Scheme::Light, 360), (Scheme::Dark, 1600)] {
        assert!(!browser.set_appearance(scheme, width), "{scheme:?} {width}");
        assert!(std::fs::read(browser.screenshot("good")).expect("a file").starts_with(b"\x89PNG"));
    }
    browser.fill("textbox", "Name", "first");
    browser.fill("textbox", "Name", "Ann");
    assert_eq!(browser.focused(), ("textbox".to_owned(), "Name".to_owned()));
    browser.press("Tab");
    assert_eq!(browser.focused().1, "Colour");
    browser.select("Colour", "b");
    browser.click_within("form", "button", "Send \"it\" (now)");
    browser.wait_for_text("scripted");
    browser.wait_for_path("/second?name=Ann&colour=b");
    assert_eq!(browser.text("h1"), "Second");
    browser.report().check_is_empty();
}

#[test]
fn inaccessible_pages_are_found() {
    let Some((mut browser, _server)) = start() else { return };
    browser.goto("/inaccessible");
    let found = browser.axe_violations();
    assert_eq!(rules(&found), ["color-contrast", "html-has-lang", "target-size"].into(), "{found:?}");
    assert!(!browser.set_appearance(Scheme::Light, 1600));
    assert!(browser.set_appearance(Scheme::Light, 360), "the page is wider");
}

#[test]
fn foreign_requests_are_found_and_do_not_leave() {
    let Some((mut browser, _server)) = start() else { return };
    browser.goto("/foreign");
    let mut report = browser.report();
    report.foreign.sort_unstable();
    assert_eq!(report.foreign, ["http://foreign.invalid/a.png", "ws://foreign.invalid/b"]);
    assert_eq!(report.failed, ["http://foreign.invalid/a.png: net::ERR_NAME_NOT_RESOLVED"]);
}

#[test]
fn forbidden_scripts_and_styles_are_found() {
    let Some((mut browser, _server)) = start() else { return };
    browser.goto("/forbidden");
    let report = browser.report();
    assert_eq!(report.csp, ["style-src-attr: inline", "script-src-elem: inline"]);
    assert!(report.dialogs.is_empty() && report.console.len() == 2, "{report:?}");
}

#[test]
fn dialogs_windows_and_errors_are_found() {
    let Some((mut browser, _server)) = start() else { return };
    browser.goto("/active");
    browser.click("button", "ask");
    browser.wait_for_text("dismissed");
    browser.set_accepts_dialogs(true);
    browser.click("button", "ask");
    browser.wait_for_text("accepted");
    browser.wait_for_no_text("dismissed");
    let report = browser.report();
    assert_eq!(report.dialogs, ["confirm: sure?", "confirm: sure?"]);
    assert_eq!(report.exceptions, ["thereIsNoSuchFunction is not defined"]);
    assert!(matches!(&report.console[..], [said] if said.starts_with("said")), "{report:?}");
    browser.click("link", "window");
    eventually("the window is reported", || (!browser.report().popups.is_empty()).then_some(()));
    assert_eq!(browser.goto("/missing").status, 404);
    assert!(browser.report().console[0].contains("404"));
}

#[test]
fn a_page_without_javascript_can_be_checked() {
    let Some((mut browser, _server)) = start() else { return };
    browser.set_javascript(false);
    browser.goto("/second");
    assert_eq!(browser.texts("p.script"), ["plain"]);
    browser.wait_for_text("without scripts");
    let found = browser.axe_violations();
    assert!(found.is_empty(), "{found:?}");
    browser.goto("/second?again");
    assert_eq!(browser.texts("p.script"), ["plain"], "the check turned scripts on");
    browser.set_javascript(true);
    browser.goto("/second");
    browser.wait_for_text("scripted");
    assert_eq!(browser.evaluate("1 + 1"), 2);
}
