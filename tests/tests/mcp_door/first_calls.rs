//! The first calls that a model makes, each with the answer that it gets: `tests/transcripts/first-calls.txt`.
//!
//! With `A2G_WRITE_TRANSCRIPTS`, the answers are written to that file and not compared.

use harness::mcp::{call, post, request};
use harness::methods::policy_folder;
use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A call as its paragraph of the file has it.
struct FirstCall {
    /// The lines before the answer, as they are written.
    written: String,
    tool: String,
    arguments: Value,
    /// The line of the answer, with `<` or `!`.
    answer: String,
}

impl FirstCall {
    fn parse(paragraph: &str) -> Self {
        let is_answer = |line: &&str| line.starts_with(['<', '!']);
        let lines_of = |sign: char| paragraph.lines().filter_map(move |line| line.strip_prefix(sign));
        let call = lines_of('>').next().expect("a line with a call").trim();
        let (tool, given) = call.split_once(' ').unwrap_or((call, "{}"));
        let mut arguments = serde_json::from_str::<Value>(given).expect("JSON");
        let code_lines = lines_of('|').map(|line| line.strip_prefix(' ').unwrap_or(line));
        let program = code_lines.collect::<Vec<_>>().join("\n");
        if !program.is_empty() {
            arguments["code"] = json!(program);
        }
        let written = paragraph.lines().filter(|line| !is_answer(line)).collect::<Vec<_>>().join("\n");
        let answer = paragraph.lines().find(is_answer).unwrap_or_default().to_owned();
        Self { written, tool: tool.to_owned(), arguments, answer }
    }

    /// True if its tool could not be built here.
    fn is_skipped(&self) -> bool {
        INTERPRETERS.contains(&self.tool.as_str()) && !has_interpreter(&self.tool)
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts/first-calls.txt")
}

/// An executor with the bundled tools, and the files and policies that the head of the transcript describes.
struct Fixture {
    executor: Executor,
    _catalogue: Catalogue,
    _policies: tempfile::TempDir,
}

fn start() -> Fixture {
    let built = INTERPRETERS.into_iter().filter(|tool| has_interpreter(tool));
    let catalogue = built.chain([SHELL]).fold(Catalogue::with_tools(), Catalogue::copy);
    let files = json!({ "paths": ["/workspace/**"] });
    let called = ["list_directory", "read_file", "search_text", "write_file"];
    let program = json!({ "paths": ["/workspace/**"], "grant_all_paths": true, "calls": called });
    let mut rules =
        ["edit_file"].into_iter().chain(called).map(|tool| (tool, files.clone())).collect::<Vec<_>>();
    rules.extend(INTERPRETERS.into_iter().chain([SHELL]).map(|tool| (tool, program.clone())));
    rules.push(("http_fetch", json!({})));
    let mut policy = policy_for_all(&rules);
    policy["capabilities"]["network"] = json!({ "allowed_domains": ["example.org"] });
    let policies = policy_folder(&[policy]);
    let options = Options::new()
        .catalogue(&catalogue)
        .policies(policies.path())
        .set("ceilings.network_allowed", true)
        .set("network.allowed_domains", json!(["example.org"]));
    let executor = Executor::start(options);
    let files = [
        ("notes.txt", "Buy milk.\nBuy milk and bread.\n"),
        ("sales.csv", "region,amount\nnorth,10\nsouth,5\nnorth,2\n"),
    ];
    for (name, content) in files {
        std::fs::write(executor.workspace().join(name), content).expect("a file");
    }
    Fixture { executor, _catalogue: catalogue, _policies: policies }
}

/// The answer to a call as the transcript has it.
fn ask(client: &mut HttpClient, id: u64, first: &FirstCall) -> String {
    let message = call(id, &first.tool, &first.arguments);
    let answer = eventually("the tool is compiled", || {
        let received = post(client, &message, &[]).json();
        received["result"]["_meta"]["a2g/error"]["retry_after_ms"].is_null().then_some(received)
    });
    if let Some(message) = answer["error"]["message"].as_str() {
        return format!("! {message}");
    }
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let sign = if result["isError"] == true { '!' } else { '<' };
    if sign == '<' {
        let parsed = serde_json::from_str::<Value>(text).expect("JSON");
        assert_eq!(result["structuredContent"], parsed, "{answer}");
    }
    without_times(&format!("{sign} {text}"))
}

/// The text with `<time>` in place of each time at which a file was modified.
fn without_times(text: &str) -> String {
    const MARK: &str = "\"modified\":";
    let mut parts = text.split(MARK);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        format!("{text}{MARK}<time>{rest}")
    })
}

/// A model, and whoever generates functions for it, reads in the list what each tool returns.
fn check_result_schemas(client: &mut HttpClient) {
    let listed = post(client, &request(0, "tools/list", json!({})), &[]).json();
    let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
    assert!(!tools.is_empty(), "{listed}");
    for tool in tools {
        assert!(tool["outputSchema"]["required"].is_array(), "{tool}");
    }
}

#[test]
fn the_first_calls_of_a_model_get_answers_that_help() {
    let text = std::fs::read_to_string(file()).expect("the transcript");
    let (head, calls) = text.split_once("\n\n").expect("a head");
    let calls = calls.trim_end().split("\n\n").map(FirstCall::parse).collect::<Vec<_>>();
    assert_eq!(calls.len(), 24);
    let fixture = start();
    let mut client = fixture.executor.client();
    check_result_schemas(&mut client);
    let mut written = head.to_owned();
    let mut wrong = Vec::new();
    for (id, first) in (1..).zip(&calls) {
        let answer = if first.is_skipped() { first.answer.clone() } else { ask(&mut client, id, first) };
        if answer != first.answer {
            wrong.push(format!("{}\n  is {answer}\n  not {}", first.written, first.answer));
        }
        written += &format!("\n\n{}\n{answer}", first.written);
    }
    if std::env::var_os("A2G_WRITE_TRANSCRIPTS").is_some() {
        std::fs::write(file(), written + "\n").expect("the transcript is written");
        return;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
