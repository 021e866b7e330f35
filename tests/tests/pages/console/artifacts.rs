//! Artifacts of a run, on its page and as downloads.

use super::sign_in;
use harness::console::{Client, request};
use harness::methods::policy_folder;
use harness::*;
use serde_json::json;

/// A picture of one pixel.
const PNG: &[u8] = &[
    0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0, 0,
    1, 8, 6, 0, 0, 0, 0x1f, 0x15, 0xc4, 0x89, 0, 0, 0, 13, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63, 0xf8,
    0xcf, 0xc0, 0xf0, 0x1f, 0, 5, 0, 1, 0xff, 0x56, 0xc7, 0x2f, 0x0d, 0, 0, 0, 0, b'I', b'E', b'N', b'D',
    0xae, 0x42, 0x60, 0x82,
];
const PAGE: &[u8] = b"<!doctype html><script>document.title = 'run'; alert(1)</script>";
const SVG: &[u8] =
    b"<svg xmlns=\"http://www.w3.org/2000/svg\" onload=\"alert(2)\"><script>alert(3)</script></svg>";
/// A picture by its first bytes, and a page by the rest.
const BOTH: &[u8] = b"GIF89a<script>alert(4)</script>";

#[test]
fn artifacts_are_shown_as_images_or_text_and_never_run() {
    let guest = Tool::typed_bytes("hostile_artifact", guest("hostile_artifact"));
    let policies = policy_folder(&[policy_for_all(&[("hostile_artifact", json!({}))])]);
    let catalogue = Catalogue::empty().add(guest);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    // The name and the type that the tool gives to each are wrong.
    let artifacts = [
        ("pixel.html", "text/html", PNG.to_vec()),
        ("page.png", "image/png", PAGE.to_vec()),
        ("drawing.svg", "image/svg+xml", SVG.to_vec()),
        ("both.gif", "image/gif", BOTH.to_vec()),
        ("bytes.txt", "text/plain", vec![0xff, 0xfe, 0x80]),
        ("long.txt", "text/plain", vec![b'x'; (64 << 10) + 1]),
    ];
    let artifacts =
        artifacts.map(|(name, mime, content)| json!({ "name": name, "mime": mime, "content": content }));
    let call = intent("hostile_artifact", json!({ "artifacts": artifacts }));
    let answer = executor.rpc("a2g/intent", &call);
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    let page = format!("/console/runs/{}", call["intent_id"].as_str().expect("an id"));
    let client = Client::local(&executor);
    let get = |path: &str| {
        let head = format!("GET {page}/artifacts/{path} HTTP/1.1\r\nCookie: {}", client.cookie);
        let answer = request(executor.address(), &head, "");
        let (status, head, _) = &answer;
        assert!(
            *status == 404 || head.contains("content-security-policy: sandbox; default-src 'none'"),
            "{head}"
        );
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        (answer.0, answer.1)
    };
    for index in [1, 2, 4, 5] {
        for query in ["", "?image=true"] {
            let (status, head) = get(&format!("{index}{query}"));
            let is_download =
                head.contains(&format!("content-disposition: attachment; filename=\"artifact-{index}.bin\""));
            assert!(
                status == 200 && is_download && head.contains("content-type: application/octet-stream"),
                "{head}"
            );
        }
    }
    // An image that is a page as well is an image, also for a browser that opens it as a page.
    assert!(get("3?image=true").1.contains("content-type: image/gif"));
    assert_eq!(get("99").0, 404);
    let Some(mut browser) = sign_in(&executor) else { return };
    browser.goto(&page);
    let images = "[...document.querySelectorAll('main img')].map(image => image.naturalWidth)";
    eventually("the picture is loaded", || (browser.evaluate(images)[0] == 1).then_some(()));
    assert_eq!(browser.evaluate("document.querySelectorAll('main script, main svg').length"), 0);
    let text = browser.text("main");
    assert!(text.contains("alert(1)") && text.contains("onload=") && !text.contains("xxxxxxxxxx"), "{text}");
    for opened in ["3?image=true", "0?image=true"] {
        browser.goto(&format!("{page}/artifacts/{opened}"));
        assert_eq!(browser.evaluate("document.querySelectorAll('script').length"), 0);
    }
    // The second image of the page is none, and only that fails.
    let report = browser.report();
    assert!(
        report.dialogs.is_empty() && report.exceptions.is_empty() && report.foreign.is_empty(),
        "{report:?}"
    );
}
