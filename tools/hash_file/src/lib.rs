//! Computes the digest of one file. It streams: the size of the file does not matter.

use std::fs::File;
use std::io::Read;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};
use sha2::{Digest, Sha256, Sha512};

/// Size of one read, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes between two progress reports; shorter work ends before a report would be useful.
const PROGRESS_BYTES: u64 = 64 << 20;

#[derive(Arguments)]
struct HashFile {
    /// The absolute path of the file.
    path: String,
    /// "sha256" (the default), "sha512" or "blake3".
    #[serde(default)]
    #[schemars(extend("default" = "sha256"))]
    algorithm: Algorithm,
}

#[derive(Arguments, Clone, Copy, Default, Serialize)]
#[serde(crate = "serde", rename_all = "lowercase")]
enum Algorithm {
    #[default]
    Sha256,
    Sha512,
    Blake3,
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Hashed {
    /// The path as it was given.
    path: String,
    algorithm: Algorithm,
    /// In lower-case hexadecimal.
    digest: String,
    /// The size of the file.
    bytes: u64,
}

fn hash_file(ctx: &mut Context, arguments: HashFile) -> Result<Hashed, ToolError> {
    let HashFile { path, algorithm } = arguments;
    let mut file = File::open(&path).at(&path)?;
    let metadata = file.metadata().at(&path)?;
    if metadata.is_dir() {
        let message = format!("`{path}` is a directory");
        return Err(ToolError::new("is_a_directory", message));
    }
    let mut hasher = Hasher::new(algorithm);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0_u64;
    loop {
        let read = file.read(&mut chunk).at(&path)?;
        if read == 0 {
            break;
        }
        hasher.update(chunk.get(..read).unwrap_or(&chunk));
        bytes += read as u64;
        if bytes.is_multiple_of(PROGRESS_BYTES) {
            ctx.progress(percent(bytes, metadata.len()), "hashing");
        }
    }
    Ok(Hashed { path, algorithm, digest: hasher.finish(), bytes })
}

/// Progress in percent after `bytes`; unknown while the file grows during the run.
fn percent(bytes: u64, size: u64) -> Option<f32> {
    (bytes <= size).then(|| bytes as f32 / size as f32 * 100.0)
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
    // Its state is two kilobytes, ten times that of the others.
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// The digest in lowercase hexadecimal.
    fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Sha512(hasher) => hex(&hasher.finalize()),
            Self::Blake3(hasher) => hex(hasher.finalize().as_bytes()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

export_tool!(hash_file, description = "Computes the SHA-256, SHA-512 or BLAKE3 digest of a file.");

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_guest_sdk::testing;
    use std::fs;

    fn run(arguments: Value) -> Result<Value, ToolError> {
        testing::invoke(hash_file, arguments).result
    }

    /// The published digests of "abc".
    const ABC: [(&str, &str); 3] = [
        ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            "sha512",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
             2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ),
        ("blake3", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    ];

    #[test]
    fn digests_match_published_vectors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        fs::write(&path, "abc").unwrap();
        for (algorithm, digest) in ABC {
            let expected = json!({ "path": path, "algorithm": algorithm, "digest": digest, "bytes": 3 });
            let arguments = json!({ "path": path, "algorithm": algorithm });
            assert_eq!(run(arguments), Ok(expected));
        }
        let default = run(json!({ "path": path })).unwrap();
        assert_eq!(default["algorithm"], "sha256");
    }

    #[test]
    fn a_file_longer_than_a_chunk_is_hashed_completely() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zeros");
        let content = vec![0; CHUNK_BYTES * 2 + 1];
        fs::write(&path, &content).unwrap();
        let result = run(json!({ "path": path })).unwrap();
        assert_eq!(result["bytes"], content.len());
        assert_eq!(result["digest"], hex(&Sha256::digest(&content)));
    }

    #[test]
    fn failures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let check = |arguments: Value, code: &str| {
            assert_eq!(run(arguments).unwrap_err().code(), code);
        };
        check(json!({ "path": folder.path() }), "is_a_directory");
        check(json!({ "path": folder.path().join("no") }), "not_found");
        check(json!({ "path": "/x", "algorithm": "md5" }), "invalid_arguments");
    }

    #[test]
    fn the_manifest_matches_the_tool() {
        let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
        assert!(differences.is_empty(), "{differences:?}");
    }

    #[test]
    fn the_manifest_has_the_schema_of_the_result() {
        let table = testing::result_table(hash_file);
        assert!(include_str!("../tool.toml").contains(&table), "{table}");
    }
}
