//! The wheel for PyPI: the program as a script of Python's environment, the tools as its data.
//!
//! It is written by hand: maturin would compile the program again, and puts no folder of data beside a program. An
//! installer puts `…data/scripts` into `bin` and `…data/data` into the prefix, so that the program finds its tools at
//! `../share/a2g-executor/tools`. `pip`, `uv` and `pipx` run no code of a wheel.
//!
//! The Python files are in `deploy/python`, beside the other files that only serve to install the program.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use fs_err as fs;
use rawzip::time::UtcDateTime;
use rawzip::{CompressionMethod, ZipArchiveWriter};
use sha2::{Digest as _, Sha256};

use super::Release;
use super::files::{self, READABLE};
use super::server_json;

const NAME: &str = "a2g_executor";
/// The glibc that the program needs, as wheels call it.
const PLATFORM: &str = "manylinux_2_28";
/// 1980-01-01, the first day that an archive can have, in seconds since 1970. Installers do not use the time, and with the
/// same one the same files give the same archive.
const EARLIEST_SECONDS: i64 = 315_532_800;
/// Where the documents of the package are in the root, which have places of their own in a wheel.
const DOCUMENTS: &str = "share/doc/a2g-executor/";

pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let path = path(release);
    fs::write(&path, bytes(release, &tag(release))?)?;
    Ok(vec![path])
}

/// The finished wheel.
pub(super) fn path(release: &Release<'_>) -> PathBuf {
    release.folder.join(format!("{NAME}-{}-{}.whl", release.version, tag(release)))
}

fn tag(release: &Release<'_>) -> String {
    format!("py3-none-{}", platform(release))
}

/// The platform of the wheel, as wheels call it.
pub(super) fn platform(release: &Release<'_>) -> String {
    format!("{PLATFORM}_{}", release.architecture.as_str())
}

/// The wheel's content. `tag` is the Python, ABI and platform that it is for.
fn bytes(release: &Release<'_>, tag: &str) -> Result<Vec<u8>> {
    let version = &release.version;
    // A version with a pre-release is written otherwise in Python.
    ensure!(
        version.chars().all(|c| c.is_ascii_digit() || c == '.'),
        "a wheel needs a version such as 1.2.3, not `{version}`: write the rule of PEP 440 for it in wheel.rs"
    );
    let sources = release.workspace.root.join("deploy/python");
    let information = format!("{NAME}-{version}.dist-info");
    let mut wheel = Wheel::new();
    for entry in files::list(&sources.join(NAME))? {
        if entry.path.ends_with(".py") {
            wheel.add(&format!("{NAME}/{}", entry.path), entry.mode, &fs::read(&entry.file)?)?;
        }
    }
    for entry in files::list(&release.root)? {
        let place = if let Some(name) = entry.path.strip_prefix("bin/") {
            format!("{NAME}-{version}.data/scripts/{name}")
        } else if let Some(name) = entry.path.strip_prefix(DOCUMENTS) {
            if name.ends_with(".cdx.json") {
                // PEP 770
                format!("{information}/sboms/{name}")
            } else if name == "LICENSE" {
                format!("{information}/licenses/{name}")
            } else {
                continue;
            }
        } else {
            format!("{NAME}-{version}.data/data/{}", entry.path)
        };
        wheel.add(&place, entry.mode, &fs::read(&entry.file)?)?;
    }
    let readme = fs::read_to_string(sources.join("README.md"))?;
    wheel.add(&format!("{information}/METADATA"), READABLE, metadata(version, &readme).as_bytes())?;
    let about = format!(
        "Wheel-Version: 1.0\nGenerator: cargo xtask dist ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    wheel.add(&format!("{information}/WHEEL"), READABLE, about.as_bytes())?;
    wheel.finish(&format!("{information}/RECORD"))
}

/// The description of the package, with the text for PyPI's page.
fn metadata(version: &str, readme: &str) -> String {
    let readme = readme.replace("MCP_NAME", server_json::NAME);
    format!(
        "Metadata-Version: 2.4\n\
         Name: a2g-executor\n\
         Version: {version}\n\
         Summary: {}\n\
         License-Expression: Apache-2.0\n\
         License-File: LICENSE\n\
         Keywords: agent,mcp,sandbox,webassembly\n\
         Classifier: Environment :: Console\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Rust\n\
         Requires-Python: >=3.8\n\
         Description-Content-Type: text/markdown; charset=UTF-8\n\
         \n\
         {readme}",
        server_json::DESCRIPTION
    )
}

/// A wheel that is being written.
struct Wheel {
    archive: ZipArchiveWriter<Vec<u8>>,
    /// The lines of RECORD: path, digest and size of each file.
    record: String,
}

impl Wheel {
    fn new() -> Self {
        Self { archive: ZipArchiveWriter::new(Vec::new()), record: String::new() }
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        ensure!(!path.contains([',', '"', '\n']), "RECORD cannot name `{path}`");
        self.write(path, mode, content)?;
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(content));
        self.record.push_str(&format!("{path},sha256={digest},{}\n", content.len()));
        Ok(())
    }

    fn write(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let file = self.archive.new_file(path).compression_method(CompressionMethod::DEFLATE);
        let file = file.last_modified(UtcDateTime::from_unix(EARLIEST_SECONDS)).unix_permissions(mode);
        let (mut entry, config) = file.start()?;
        let mut writer = config.wrap(DeflateEncoder::new(&mut entry, Compression::best()));
        writer.write_all(content)?;
        let (encoder, descriptor) = writer.finish()?;
        encoder.finish()?;
        entry.finish(descriptor)?;
        Ok(())
    }

    /// Adds RECORD, which has a line without a digest for itself, and ends the archive.
    fn finish(mut self, record: &str) -> Result<Vec<u8>> {
        let text = format!("{}{record},,\n", self.record);
        self.write(record, READABLE, text.as_bytes())?;
        Ok(self.archive.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use flate2::bufread::DeflateDecoder;
    use rawzip::ZipArchive;

    use super::*;
    use crate::dist::tests::Sample;

    #[test]
    fn a_wheel_records_each_of_its_files() {
        let sample = Sample::new("#!/bin/sh\n");
        let [path] = build(&sample.release()).unwrap().try_into().unwrap();
        assert_eq!(path.file_name().unwrap(), "a2g_executor-0.1.0-py3-none-manylinux_2_28_x86_64.whl");
        let wheel = fs::read(&path).unwrap();

        let archive = ZipArchive::from_slice(&wheel).unwrap();
        let mut contents = BTreeMap::new();
        let mut entries = archive.entries();
        while let Some(entry) = entries.next_entry().unwrap() {
            let name = entry.file_path().try_normalize().unwrap().as_ref().to_owned();
            let day = entry.last_modified_dos();
            assert_eq!((day.year(), day.month(), day.day()), (1980, 1, 1), "{name}");
            let mode = entry.mode().permissions();
            assert_eq!(mode, if name.contains("/scripts/") { 0o755 } else { 0o644 }, "{name}");
            let file = archive.get_entry(entry.wayfinder()).unwrap();
            let mut content = Vec::new();
            file.verifying_reader(DeflateDecoder::new(file.data())).read_to_end(&mut content).unwrap();
            contents.insert(name, content);
        }
        let data = "a2g_executor-0.1.0.data";
        let information = "a2g_executor-0.1.0.dist-info";
        let expected = [
            format!("{data}/data/share/a2g-executor/tools/greet/tool.toml"),
            format!("{data}/data/share/a2g-executor/tools/greet/tool.wasm"),
            format!("{data}/data/share/man/man1/a2g-executor.1"),
            format!("{data}/scripts/a2g-executor"),
            format!("{information}/METADATA"),
            format!("{information}/RECORD"),
            format!("{information}/WHEEL"),
            format!("{information}/licenses/LICENSE"),
            format!("{information}/sboms/a2g-executor.cdx.json"),
            "a2g_executor/__init__.py".to_owned(),
            "a2g_executor/__main__.py".to_owned(),
        ];
        assert_eq!(contents.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());

        let record = String::from_utf8(contents[&format!("{information}/RECORD")].clone()).unwrap();
        assert_eq!(record.lines().count(), contents.len());
        for line in record.lines() {
            let [path, digest, size] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
            if path.ends_with("/RECORD") {
                assert_eq!((digest, size), ("", ""));
                continue;
            }
            let content = &contents[path];
            assert_eq!(size, content.len().to_string(), "{path}");
            assert_eq!(
                digest,
                format!("sha256={}", URL_SAFE_NO_PAD.encode(Sha256::digest(content))),
                "{path}"
            );
        }
        let metadata = String::from_utf8(contents[&format!("{information}/METADATA")].clone()).unwrap();
        let (head, readme) = metadata.split_once("\n\n").unwrap();
        assert!(head.contains("\nName: a2g-executor\nVersion: 0.1.0\n"), "{head}");
        // The registry of MCP servers looks for it, to know that both belong together.
        assert!(readme.contains(&format!("mcp-name: {}", server_json::NAME)), "{readme}");

        // The same files give the same bytes, whenever they were written.
        fs::remove_file(&path).unwrap();
        build(&Sample::new("#!/bin/sh\n").release()).unwrap();
        build(&sample.release()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), wheel);
    }

    #[test]
    fn a_version_that_python_writes_otherwise_is_refused() {
        let sample = Sample::new("");
        let release = Release { version: "0.2.0-rc.1".to_owned(), ..sample.release() };
        assert!(build(&release).unwrap_err().to_string().contains("PEP 440"));
    }
}
