//! Chromium without a window, driven by `tests/clients/console/console.mjs` over a pipe.

use super::{Process, TIMEOUT, clients, print_skipped};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const CHROMIUM: &str = "/usr/bin/chromium";
/// The time in which a browser ends by itself before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A browser with one page, whose paths belong to one server. It has no cookies when it starts.
pub struct Browser {
    process: Process,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The process id of Chromium, which is also that of its process group.
    chromium: Option<rustix::process::Pid>,
    version: String,
    /// The profile and the screenshots. Dropped after the processes that write there.
    _folder: tempfile::TempDir,
}

/// A page that was loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Visit {
    pub status: u64,
    /// Where it ended after redirections, with the query.
    pub path: String,
    /// All bytes received until its load event, with headers and with what its files refer to.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Scheme {
    Light,
    Dark,
}

/// A rule of axe and the selectors of the elements that break it.
#[derive(Debug)]
pub struct Finding {
    pub rule: String,
    pub impact: String,
    pub help: String,
    pub targets: Vec<String>,
}

/// What axe says about the rules of WCAG 2.2, levels A and AA.
#[derive(Debug)]
pub struct Accessibility {
    pub violations: Vec<Finding>,
    /// Elements that a person must look at, such as text over a picture.
    pub undecided: Vec<Finding>,
}

/// What the pages did since the last report, each list in the order of its events.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PageReport {
    /// The URLs of requests and WebSockets to another origin, also of those that a policy stopped.
    pub foreign: Vec<String>,
    /// The errors on the page's console, among them answers with an error status.
    pub console: Vec<String>,
    /// Violations of the content security policy: directive and URL, or `inline`.
    pub csp: Vec<String>,
    /// Exceptions of scripts that nothing caught.
    pub exceptions: Vec<String>,
    /// Requests that failed, without those that ended because the page was left.
    pub failed: Vec<String>,
    /// Dialogs that opened: kind and text.
    pub dialogs: Vec<String>,
    /// The URLs of windows that opened.
    pub popups: Vec<String>,
}

impl PageReport {
    /// Fails if a page did anything that the console never should.
    pub fn check_is_empty(&self) {
        assert_eq!(self, &Self::default());
    }
}

/// A cookie with its attributes.
#[derive(Debug, PartialEq, Eq)]
pub struct Cookie {
    pub name: String,
    pub value: String,
    pub domain: String,
    pub path: String,
    pub http_only: bool,
    pub secure: bool,
    /// `true` if it ends with the browser.
    pub is_for_session: bool,
    /// `Strict`, `Lax`, `None`, or empty if the server did not say.
    pub same_site: String,
}

/// A browser for pages of `http://ADDRESS`. If part of it is not installed, the running test is named as skipped.
pub fn browser_or_skip(base: &str) -> Option<Browser> {
    let parts = [
        ("chromium of Debian", PathBuf::from(CHROMIUM)),
        ("node of npm", clients().join("node22/node_modules/node/bin/node")),
        ("puppeteer-core", clients().join("console/node_modules/puppeteer-core")),
        ("axe-core", clients().join("console/node_modules/axe-core")),
    ];
    for (name, path) in &parts {
        if !path.exists() {
            print_skipped(&format!("{name} is not installed"));
            return None;
        }
    }
    let [_, (_, node), (_, library), _] = parts;
    Some(Browser::start(&node, library.parent().expect("node_modules"), base))
}

impl Browser {
    fn start(node: &Path, libraries: &Path, base: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temp folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/console/console.mjs");
        let mut command = Command::new(node);
        command.arg(script).arg(libraries).arg(base).arg(folder.path());
        // The browser writes below its home, too.
        command.env("HOME", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn("browser", &mut command);
        let stdin = process.child().stdin.take();
        let stdout = process.child().stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        let mut browser =
            Self { process, stdin, lines, chromium: None, version: String::new(), _folder: folder };
        let started = browser.receive();
        let id = started["browser"].as_i64().and_then(|id| i32::try_from(id).ok());
        browser.chromium = id.and_then(rustix::process::Pid::from_raw);
        browser.version = text(&started["version"]);
        browser
    }

    /// The name and version of the browser.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Opens a path of the server, waits for its load event, and counts bytes anew.
    pub fn goto(&mut self, path: &str) -> Visit {
        let visit = self.ask(json!({ "do": "goto", "path": path }));
        Visit { status: number(&visit["status"]), path: text(&visit["path"]), bytes: number(&visit["bytes"]) }
    }

    /// The path of the page, with the query.
    pub fn path(&mut self) -> String {
        text(&self.ask(json!({ "do": "path" })))
    }

    /// Clicks the only visible element with this role and accessible name, once there is one.
    pub fn click(&mut self, role: &str, name: &str) {
        self.ask(json!({ "do": "click", "role": role, "name": name }));
    }

    /// As [`Self::click`], below the first element of a selector.
    pub fn click_within(&mut self, selector: &str, role: &str, name: &str) {
        self.ask(json!({ "do": "click", "role": role, "name": name, "within": selector }));
    }

    /// Replaces the content of a text field.
    pub fn fill(&mut self, role: &str, name: &str, text: &str) {
        self.ask(json!({ "do": "fill", "role": role, "name": name, "text": text }));
    }

    /// Chooses an option of a `select` element by its value.
    pub fn select(&mut self, name: &str, value: &str) {
        self.ask(json!({ "do": "select", "role": "combobox", "name": name, "value": value }));
    }

    /// Presses one key, such as `Tab`, `Enter` or `Escape`.
    pub fn press(&mut self, key: &str) {
        self.ask(json!({ "do": "press", "key": key }));
    }

    /// Shows another tab, and then the page again.
    pub fn switch_tabs(&mut self) {
        self.ask(json!({ "do": "switch_tabs" }));
    }

    /// The role and accessible name of the element that has the focus.
    pub fn focused(&mut self) -> (String, String) {
        let focused = self.ask(json!({ "do": "focused" }));
        (text(&focused["role"]), text(&focused["name"]))
    }

    /// The visible text of the only element that a selector finds.
    pub fn text(&mut self, selector: &str) -> String {
        let mut texts = self.texts(selector);
        assert_eq!(texts.len(), 1, "{selector}: {texts:?}");
        texts.remove(0)
    }

    /// The visible texts of all elements that a selector finds.
    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        texts(&self.ask(json!({ "do": "texts", "selector": selector })))
    }

    /// Waits until the visible text of the page has this part, also across a navigation.
    pub fn wait_for_text(&mut self, part: &str) {
        self.ask(json!({ "do": "wait_for_text", "text": part }));
    }

    /// Waits until the visible text of the page no longer has this part.
    pub fn wait_for_no_text(&mut self, part: &str) {
        self.ask(json!({ "do": "wait_for_no_text", "text": part }));
    }

    /// Waits until the page has this path, with its query.
    pub fn wait_for_path(&mut self, path: &str) {
        self.ask(json!({ "do": "wait_for_path", "path": path }));
    }

    /// The value of an expression of JavaScript in the page, which the page's own policy does not forbid.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        self.ask(json!({ "do": "evaluate", "expression": expression }))
    }

    /// Turns the scripts of pages that are opened later on or off.
    pub fn set_javascript(&mut self, enabled: bool) {
        self.ask(json!({ "do": "javascript", "enabled": enabled }));
    }

    /// Accepts the dialogs that follow, such as `confirm`. Otherwise they are dismissed.
    pub fn set_accepts_dialogs(&mut self, accept: bool) {
        self.ask(json!({ "do": "dialogs", "accept": accept }));
    }

    /// Sets the preferred colour scheme and the width in CSS pixels. Returns `true` if the page must be scrolled
    /// sideways. A browser starts with a light scheme and 1600 pixels.
    pub fn set_appearance(&mut self, scheme: Scheme, width: u32) -> bool {
        let scheme = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let overflows = self.ask(json!({ "do": "appearance", "scheme": scheme, "width": width }));
        overflows.as_bool().expect("true or false")
    }

    /// The result of axe for the page as it is. Fails if axe checked nothing.
    pub fn accessibility(&mut self) -> Accessibility {
        let result = self.ask(json!({ "do": "axe" }));
        let [violations, undecided] = ["violations", "undecided"].map(|list| findings(&result[list]));
        assert!(number(&result["passed"]) > 0 || !violations.is_empty(), "axe checked nothing: {result}");
        Accessibility { violations, undecided }
    }

    /// The violations of WCAG 2.2, levels A and AA, that axe finds.
    pub fn axe_violations(&mut self) -> Vec<Finding> {
        self.accessibility().violations
    }

    /// Saves the whole page as `NAME-SCHEME-WIDTH.png`. If the variable `A2G_TEST_SCREENSHOTS` names a folder, a copy
    /// stays there for a person to look at.
    pub fn screenshot(&mut self, name: &str) -> PathBuf {
        let path = PathBuf::from(text(&self.ask(json!({ "do": "screenshot", "name": name }))));
        if let Some(folder) = std::env::var_os("A2G_TEST_SCREENSHOTS") {
            std::fs::create_dir_all(&folder).expect("a folder");
            let copy = Path::new(&folder).join(path.file_name().expect("a name"));
            std::fs::copy(&path, copy).expect("a copy");
        }
        path
    }

    /// All cookies of the browser, by name.
    pub fn cookies(&mut self) -> Vec<Cookie> {
        let cookies = self.ask(json!({ "do": "cookies" }));
        let is = |value: &Value| value.as_bool().expect("true or false");
        let cookie = |cookie: &Value| Cookie {
            name: text(&cookie["name"]),
            value: text(&cookie["value"]),
            domain: text(&cookie["domain"]),
            path: text(&cookie["path"]),
            http_only: is(&cookie["httpOnly"]),
            secure: is(&cookie["secure"]),
            is_for_session: is(&cookie["session"]),
            same_site: cookie["sameSite"].as_str().unwrap_or_default().to_owned(),
        };
        let mut cookies: Vec<_> = cookies.as_array().expect("a list").iter().map(cookie).collect();
        cookies.sort_by(|one, other| one.name.cmp(&other.name));
        cookies
    }

    /// What the pages did since the last report.
    pub fn report(&mut self) -> PageReport {
        let report = self.ask(json!({ "do": "report" }));
        let list = |name: &str| texts(&report[name]);
        PageReport {
            foreign: list("foreign"),
            console: list("console"),
            csp: list("csp"),
            exceptions: list("exceptions"),
            failed: list("failed"),
            dialogs: list("dialogs"),
            popups: list("popups"),
        }
    }

    /// Sends a command and waits for its value. Fails with the error of the driver.
    fn ask(&mut self, command: Value) -> Value {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        writeln!(stdin, "{command}").and_then(|()| stdin.flush()).expect("the browser reads");
        self.receive()
    }

    fn receive(&self) -> Value {
        let received = self.lines.recv_timeout(TIMEOUT);
        let line = received.unwrap_or_else(|error| panic!("{error}: {}", self.process.stderr()));
        let mut answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(answer.get("error").is_none(), "{}", text(&answer["error"]));
        answer["ok"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of its input ends the driver, and with it the browser.
        drop(self.stdin.take());
        let deadline = Instant::now() + GRACE;
        while self.process.is_running() {
            if Instant::now() >= deadline {
                self.process.kill();
                if let Some(group) = self.chromium {
                    let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The names of the rules of some findings.
pub fn rules(findings: &[Finding]) -> BTreeSet<&str> {
    findings.iter().map(|finding| finding.rule.as_str()).collect()
}

fn findings(list: &Value) -> Vec<Finding> {
    let finding = |finding: &Value| Finding {
        rule: text(&finding["rule"]),
        impact: text(&finding["impact"]),
        help: text(&finding["help"]),
        targets: texts(&finding["targets"]),
    };
    list.as_array().expect("a list").iter().map(finding).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().unwrap_or_else(|| panic!("{list} is no list")).iter().map(text).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
