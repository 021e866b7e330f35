//! Reads one file, or a part of it. What it holds in memory is bounded by `limit`, not by the file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

mod text;

/// One answer that an agent can still take in; more comes with `offset`.
const DEFAULT_LIMIT: u64 = 1 << 20;
/// Base64 and JSON each copy the content, and all of it has to fit into 64 MiB.
const MAX_LIMIT: u64 = 8 << 20;

#[derive(Arguments)]
struct ReadFile {
    /// The absolute path of the file.
    path: String,
    /// How many bytes to skip at the start.
    #[serde(default)]
    offset: u64,
    /// At most how many bytes to read. Text ends at a character boundary, so it may be up to three
    /// bytes shorter.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = 8_388_608))]
    limit: u64,
    /// "utf-8" (the default) or "base64", which any file can be read as.
    #[serde(default)]
    #[schemars(extend("default" = "utf-8"))]
    encoding: Encoding,
}

fn default_limit() -> u64 {
    DEFAULT_LIMIT
}

#[derive(Arguments, Clone, Copy, Default, Serialize)]
#[serde(crate = "serde")]
enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Part {
    /// The path as it was given.
    path: String,
    /// What was read, as `encoding` says.
    content: String,
    encoding: Encoding,
    /// Where `content` starts, in bytes.
    offset: u64,
    /// How many bytes of the file were read. The next part starts at `offset + bytes_read`.
    bytes_read: usize,
    /// The size of the whole file in bytes.
    size: u64,
    /// Whether nothing follows.
    eof: bool,
}

fn read_file(_: &mut Context, arguments: ReadFile) -> Result<Part, ToolError> {
    let ReadFile { path, offset, limit, encoding } = arguments;
    let limit = limit_bytes(limit)?;
    let window = Window::read(&path, offset, limit)?;
    let taken = match encoding {
        Encoding::Utf8 => text::whole_characters(&window.bytes, limit)
            .map_err(|problem| problem.into_error(&path, offset))?,
        Encoding::Base64 => window.bytes.get(..limit).unwrap_or(&window.bytes),
    };
    Ok(Part {
        content: match encoding {
            Encoding::Utf8 => String::from_utf8_lossy(taken).into_owned(),
            Encoding::Base64 => BASE64_STANDARD.encode(taken),
        },
        bytes_read: taken.len(),
        eof: window.ends && taken.len() == window.bytes.len(),
        size: window.size,
        path,
        encoding,
        offset,
    })
}

/// The executor checks the range as well, but the memory of the tool should not depend on that.
fn limit_bytes(limit: u64) -> Result<usize, ToolError> {
    usize::try_from(limit).ok().filter(|_| (1..=MAX_LIMIT).contains(&limit)).ok_or_else(|| {
        let message = format!("`limit` is {limit}; it must be from 1 to {MAX_LIMIT}");
        ToolError::new("invalid_arguments", message)
    })
}

/// The bytes from the offset on, and a few beyond the limit, which show how text continues there.
struct Window {
    bytes: Vec<u8>,
    /// True if the file ends within `bytes`.
    ends: bool,
    /// The size of the file in bytes.
    size: u64,
}

impl Window {
    /// Enough to complete any character that starts within the limit, and to see that more follows.
    const LOOKAHEAD: usize = 4;

    fn read(path: &str, offset: u64, limit: usize) -> Result<Self, ToolError> {
        let mut file = File::open(path).at(path)?;
        let metadata = file.metadata().at(path)?;
        if metadata.is_dir() {
            return Err(ToolError::new("is_a_directory", format!("`{path}` is a directory")));
        }
        if offset > 0 {
            file.seek(SeekFrom::Start(offset)).at(path)?;
        }
        let wanted = limit + Self::LOOKAHEAD;
        let mut bytes = Vec::new();
        file.take(wanted as u64).read_to_end(&mut bytes).at(path)?;
        Ok(Self { ends: bytes.len() < wanted, bytes, size: metadata.len() })
    }
}

export_tool!(read_file, description = "Reads a file, or a part of it, as text or as base64.");

#[cfg(test)]
mod tests;
