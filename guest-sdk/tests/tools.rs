//! A tool that calls other tools, run natively.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test that fails should stop where it stands"
)]

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::testing::{self, Call, TestContext, Tools};
use a2g_guest_sdk::{Descriptor, serde};

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(crate = "a2g_guest_sdk::serde")]
struct File {
    content: String,
}

fn files() -> Tools {
    Tools::new()
        .tool("read_file", |arguments| match arguments["path"].as_str() {
            Some("/gone") => {
                Err(ToolError::new("not_found", "no file").with_detail(json!({ "path": "/gone" })))
            }
            path => Ok(json!({ "content": path })),
        })
        .denied("write_file", "not on a Sunday")
        .limited("slow", "time", "too slow")
}

fn read(ctx: &Context, path: &str) -> Result<File, ToolError> {
    ctx.tools().call("read_file", &json!({ "path": path }))
}

#[test]
fn a_call_returns_a_typed_result_or_the_error_of_the_tool() {
    let tools = files();
    let ctx = TestContext::new();
    assert_eq!(read(&ctx, "/a"), Ok(File { content: "/a".to_owned() }));
    let error = read(&ctx, "/gone").unwrap_err();
    assert_eq!((error.code(), error.message()), ("not_found", "no file"));
    assert_eq!(error.detail(), Some(&json!({ "path": "/gone" })));
    let unexpected = ctx.tools().call::<u32>("read_file", &json!({ "path": "/a" })).unwrap_err();
    assert_eq!(unexpected.code(), "unexpected_result");
    assert!(unexpected.message().starts_with("`read_file` returned a result of"), "{unexpected}");
    let first = Call { tool: "read_file".to_owned(), arguments: json!({ "path": "/a" }) };
    assert_eq!((tools.calls().len(), &tools.calls()[0]), (3, &first));
}

#[test]
fn a_refused_call_has_the_code_of_the_executor() {
    let _tools = files();
    let ctx = TestContext::new();
    let code = |name: &str, arguments: Value| ctx.tools().call::<Value>(name, &arguments).unwrap_err();
    let denied = code("write_file", json!({}));
    assert_eq!((denied.code(), denied.message()), ("denied", "not on a Sunday"));
    assert_eq!(denied.detail().unwrap()["blocked_by"], "verdict_denied");
    assert_eq!(code("slow", json!({})).detail(), Some(&json!({ "limit": "time" })));
    assert_eq!(code("none", json!({})).code(), "unknown_tool");
    assert_eq!(code("read_file", json!([])).code(), "invalid_arguments");
}

#[test]
fn calls_are_counted_whatever_becomes_of_them() {
    let tools = files().max_calls(2);
    let ctx = TestContext::new();
    assert!(read(&ctx, "/a").is_ok());
    assert_eq!(ctx.tools().call::<Value>("none", &json!({})).unwrap_err().code(), "unknown_tool");
    assert_eq!(read(&ctx, "/a").unwrap_err().code(), "calls_exhausted");
    assert_eq!(tools.calls().len(), 2);
}

#[test]
fn several_calls_are_waited_for_in_any_order() {
    let _tools = files();
    let ctx = TestContext::new();
    let paths = ["/a", "/gone", "/b"].map(|path| ("read_file", json!({ "path": path })));
    let outcomes = ctx.tools().all::<File>(paths).unwrap();
    let codes =
        outcomes.iter().map(|outcome| outcome.as_ref().err().map(ToolError::code)).collect::<Vec<_>>();
    assert_eq!(codes, [None, Some("not_found"), None]);

    let start = |path: &str| ctx.tools().start("read_file", &json!({ "path": path })).unwrap();
    let mut calls = vec![start("/c"), start("/gone")];
    let numbers = calls.iter().map(|call| call.number()).collect::<Vec<_>>();
    assert_eq!(numbers, [4, 5], "calls have numbers from 1");
    let mut finished = Vec::new();
    while let Some(one) = ctx.tools().wait_any::<File>(&mut calls) {
        finished.push((one.number, one.outcome.is_ok()));
    }
    finished.sort_unstable();
    assert_eq!(finished, [(4, true), (5, false)]);
    assert_eq!(start("/d").wait(), Ok(File { content: "/d".to_owned() }));
}

#[test]
fn tools_are_listed_and_described() {
    let descriptor = Descriptor {
        name: "add".to_owned(),
        version: "1.0.0".to_owned(),
        description: "Adds two integers".to_owned(),
        arguments_schema: r#"{"type":"object","required":["a","b"]}"#.to_owned(),
    };
    let _tools = files().described_tool(&descriptor, |_| Ok(json!(3)));
    let ctx = TestContext::new();
    let names = ctx.tools().list().into_iter().map(|tool| tool.name).collect::<Vec<_>>();
    assert_eq!(names, ["add", "read_file", "slow", "write_file"]);
    let add = ctx.tools().describe("add").unwrap();
    assert_eq!(add.description, "Adds two integers");
    assert_eq!(add.arguments_schema["required"], json!(["a", "b"]));
    assert_eq!(ctx.tools().describe("none").unwrap_err().code(), "unknown_tool");
}

#[derive(Arguments)]
struct Nothing {}

fn calls_read_file(ctx: &mut Context, _: Nothing) -> Result<Value, ToolError> {
    ctx.tools().call("read_file", &json!({ "path": "/a" }))
}

#[test]
fn without_tools_a_run_may_call_nothing() {
    let run = || testing::invoke(calls_read_file, json!({})).result;
    {
        let _tools = files();
        assert_eq!(run(), Ok(json!({ "content": "/a" })));
    }
    assert_eq!(run().unwrap_err().code(), "not_allowed");
    assert_eq!(TestContext::new().tools().list(), []);
}
