//! A whole tool, written as an author would write it, and run natively.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test that fails should stop where it stands"
)]

use std::io::Write;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::testing::{self, TestContext};

/// Adds two integers.
#[derive(Arguments)]
struct Add {
    /// The first summand.
    a: i64,
    /// The second summand.
    b: i64,
}

fn add(ctx: &mut Context, arguments: Add) -> Result<Value, ToolError> {
    ctx.log(Level::Info, "adding");
    let sum = arguments
        .a
        .checked_add(arguments.b)
        .ok_or_else(|| ToolError::new("overflow", "the sum is too large").with_detail(json!({})))?;
    Ok(json!({ "sum": sum }))
}

export_tool!(add, description = "Adds two integers");

#[test]
fn the_descriptor_matches_the_source() {
    let descriptor = describe();
    assert_eq!(descriptor.name, "add");
    assert_eq!(descriptor.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(descriptor.description, "Adds two integers");
    let schema: Value = serde_json(&descriptor.arguments_schema);
    let expected = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Add",
        "description": "Adds two integers.",
        "type": "object",
        "properties": {
            "a": { "description": "The first summand.", "type": "integer", "format": "int64" },
            "b": { "description": "The second summand.", "type": "integer", "format": "int64" },
        },
        "additionalProperties": false,
        "required": ["a", "b"],
    });
    assert_eq!(schema, expected);
}

fn serde_json(text: &str) -> Value {
    a2g_guest_sdk::serde_json::from_str(text).unwrap()
}

#[test]
fn invoke_takes_and_returns_json_text() {
    assert_eq!(invoke(r#"{"a":1,"b":2}"#).as_deref(), Ok(r#"{"sum":3}"#));
    let check = |arguments: &str, code: &str, message: &str| {
        let error = invoke(arguments).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.message().contains(message), "{error}");
    };
    check(r#"{"a":1}"#, "invalid_arguments", "missing field `b`");
    check(r#"{"a":1,"b":2,"c":3}"#, "invalid_arguments", "unknown field `c`");
    check(r#"{"a":1,"b":"2"}"#, "invalid_arguments", "expected i64");
    check("", "invalid_arguments", "EOF");
    let overflow = invoke(&json!({ "a": i64::MAX, "b": 1 }).to_string()).unwrap_err();
    assert_eq!((overflow.code(), overflow.detail()), ("overflow", Some(&json!({}))));
}

/// A result of the author's own, and an error that converts.
fn read(_: &mut Context, arguments: Add) -> Result<Vec<i64>, std::io::Error> {
    if arguments.a == 0 {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    Ok(vec![arguments.a, arguments.b])
}

#[test]
fn results_serialize_and_errors_convert() {
    let run = |a: i64| testing::invoke(read, json!({ "a": a, "b": 2 })).result;
    assert_eq!(run(1), Ok(json!([1, 2])));
    assert_eq!(run(0).unwrap_err().code(), "permission_denied");
}

#[test]
fn a_test_context_records_logs_progress_and_artifacts() {
    let mut ctx = TestContext::new();
    add(&mut ctx, Add { a: 1, b: 2 }).unwrap();
    ctx.progress(50.0, "halfway");
    ctx.progress(None, "somewhere");
    ctx.progress(f32::NAN, "nowhere");
    ctx.progress(120.0, "beyond");
    let record = ctx.record();
    assert_eq!(record.logs.len(), 1);
    assert_eq!((record.logs[0].level, record.logs[0].message.as_str()), (Level::Info, "adding"));
    let percents: Vec<_> = record.progress.iter().map(|report| report.percent).collect();
    assert_eq!(percents, [Some(50.0), None, None, Some(100.0)]);
    assert_eq!(record.progress[1].message, "somewhere");
}

#[test]
fn artifact_chunks_are_joined() {
    let ctx = TestContext::new();
    ctx.artifact("empty", "text/plain", "").unwrap();
    ctx.artifact("large", "application/octet-stream", vec![7; 200_000]).unwrap();
    let mut writer = ctx.artifact_writer("report", "text/csv");
    writeln!(writer, "a,b").unwrap();
    writer.flush().unwrap();
    writeln!(writer, "1,2").unwrap();
    writer.finish().unwrap();
    let mut abandoned = ctx.artifact_writer("half", "text/plain");
    abandoned.write_all(b"x").unwrap();
    abandoned.flush().unwrap();
    drop(abandoned);

    let artifacts = ctx.record().artifacts;
    let summary: Vec<_> = artifacts
        .iter()
        .map(|artifact| {
            let name = artifact.name.as_str();
            (name, artifact.content.len(), artifact.chunks, artifact.complete)
        })
        .collect();
    let expected =
        [("empty", 0, 1, true), ("large", 200_000, 4, true), ("report", 8, 2, true), ("half", 1, 1, false)];
    assert_eq!(summary, expected);
    assert_eq!(artifacts[2].content, b"a,b\n1,2\n");
    assert_eq!(artifacts[2].mime, "text/csv");
}

#[test]
fn manifest_differences_from_the_tool_are_reported() {
    let version = env!("CARGO_PKG_VERSION");
    let manifest = format!(
        "name = \"add\"  # a comment\nversion = \"{version}\"\ndescription = \"Adds\"\n[capabilities]\n"
    );
    let differences = testing::manifest_differences(&manifest, &describe());
    assert_eq!(differences, [r#"description = "Adds two integers""#]);
}
