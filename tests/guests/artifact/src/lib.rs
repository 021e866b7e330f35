//! A guest that hands over artifacts under whatever names and media types its arguments say.

use a2g_guest_sdk::prelude::*;
use std::io::Write as _;

/// One artifact.
#[derive(Arguments)]
struct Labelled {
    /// Its name.
    name: String,
    /// Its media type.
    mime: String,
    /// Its bytes, if they are not `x`.
    content: Option<Vec<u8>>,
}

/// Hands over artifacts.
#[derive(Arguments)]
struct HostileArtifact {
    /// One after the other.
    artifacts: Vec<Labelled>,
}

/// The codes of those that were refused, `null` for the others: whole, and then in pieces under the same names.
fn hostile_artifact(ctx: &mut Context, arguments: HostileArtifact) -> Result<Value, ToolError> {
    let code = |handed: Result<(), ToolError>| handed.err().map(|error| error.code().to_owned());
    let whole = arguments.artifacts.iter().map(|Labelled { name, mime, content }| {
        code(ctx.artifact(name, mime, content.as_deref().unwrap_or(b"x")))
    });
    let whole = whole.collect::<Vec<_>>();
    let in_pieces = arguments.artifacts.iter().map(|Labelled { name, mime, content: _ }| {
        let mut writer = ctx.artifact_writer(name, mime);
        let wrote = writer.write_all(b"x").and_then(|()| writer.flush());
        wrote.map_err(|error| error.kind().to_string()).err().or_else(|| code(writer.finish()))
    });
    let in_pieces = in_pieces.collect::<Vec<_>>();
    Ok(json!({ "whole": whole, "in_pieces": in_pieces }))
}

export_tool!(
    hostile_artifact,
    description = "Hands over the artifacts of its arguments, and tells which were refused"
);
