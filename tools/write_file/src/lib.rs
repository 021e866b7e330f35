//! Writes one file. It touches no other path, except that it creates missing parents when asked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

#[derive(Arguments)]
struct WriteFile {
    /// The absolute path of the file.
    path: String,
    /// What to write.
    content: String,
    /// How `content` is encoded: "utf-8" (the default) writes the text as it is, "base64" writes the
    /// decoded bytes.
    #[serde(default)]
    #[schemars(extend("default" = "utf-8"))]
    encoding: Encoding,
    /// "overwrite" (the default) replaces the content of the file, "create" fails when it exists,
    /// "append" adds to its end.
    #[serde(default)]
    #[schemars(extend("default" = "overwrite"))]
    mode: Mode,
    /// Whether to create the missing directories above the file.
    #[serde(default)]
    create_parents: bool,
}

#[derive(Arguments, Clone, Copy, Default)]
enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Arguments, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Overwrite,
    Create,
    Append,
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Written {
    /// How many bytes this call wrote.
    bytes_written: usize,
    /// The path as it was given.
    path: String,
}

fn write_file(_: &mut Context, arguments: WriteFile) -> Result<Written, ToolError> {
    let path = arguments.path;
    let bytes = decode(arguments.content, arguments.encoding)?;
    if arguments.create_parents {
        create_parents(&path)?;
    }
    let written = open(&path, arguments.mode).and_then(|mut file| file.write_all(&bytes));
    if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        check_parent(&path)?;
    }
    written.at(&path)?;
    Ok(Written { bytes_written: bytes.len(), path })
}

fn decode(content: String, encoding: Encoding) -> Result<Vec<u8>, ToolError> {
    match encoding {
        Encoding::Utf8 => Ok(content.into_bytes()),
        Encoding::Base64 => BASE64_STANDARD
            .decode(content)
            .map_err(|error| ToolError::new("invalid_base64", format!("`content` is not base64: {error}"))),
    }
}

fn create_parents(path: &str) -> Result<(), ToolError> {
    match Path::new(path).parent() {
        Some(parent) => fs::create_dir_all(parent).at(parent),
        None => Ok(()),
    }
}

/// Checks that the folder of the file exists. Every mode creates the file, so an open that finds nothing misses the folder,
/// or follows a link to nothing.
fn check_parent(path: &str) -> Result<(), ToolError> {
    let Some(folder) = Path::new(path).parent().filter(|folder| !folder.exists()) else { return Ok(()) };
    let message = format!(
        "the folder `{}` does not exist: set `create_parents` to true to create it",
        folder.display()
    );
    Err(ToolError::new("not_found", message).with_detail(json!({ "path": path })))
}

fn open(path: &str, mode: Mode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match mode {
        Mode::Overwrite => options.write(true).create(true).truncate(true),
        Mode::Create => options.write(true).create_new(true),
        Mode::Append => options.append(true).create(true),
    };
    options.open(path)
}

export_tool!(
    write_file,
    description = "Writes text or binary content to a file: overwrites it, creates it, or appends to it."
);

#[cfg(test)]
mod tests;
