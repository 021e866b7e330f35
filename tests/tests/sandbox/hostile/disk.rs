//! Folders of the host, of which guests are granted `jobs` as `/jobs`, and snapshots of the content
//! of folders.

use super::bench::{Bench, Report};
use harness::Options;
use harness::guests::Guest;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder that holds `jobs` and what is beside it.
pub(super) struct Disk(TempDir);

impl Disk {
    /// A disk with these files, each of which contains its own path, these folders, and these links
    /// in `jobs` by name and target. In a target, `~` stands for the folder of the disk.
    pub(super) fn with(files: &[&str], folders: &[&str], links: &[(&str, &str)]) -> Self {
        let disk = Self(tempfile::tempdir().expect("a temp folder"));
        for folder in folders {
            fs::create_dir_all(disk.at(folder)).expect("a folder");
        }
        for file in files {
            fs::create_dir_all(disk.at(file).parent().expect("a folder")).expect("a folder");
            fs::write(disk.at(file), file).expect("a file");
        }
        for (name, target) in links {
            let target = target.replace('~', disk.0.path().to_str().expect("UTF-8"));
            symlink(target, disk.at("jobs").join(name)).expect("a link");
        }
        disk
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Options of an executor that may grant all of `/jobs`.
    pub(super) fn options(&self) -> Options {
        self.of(Options::new())
    }

    /// As [`Self::options`], based on other options.
    pub(super) fn of(&self, options: Options) -> Options {
        options.mount("/jobs", &self.at("jobs")).scope(&["/jobs/**"])
    }

    /// An executor that can grant `/jobs`, and these guests.
    pub(super) fn bench<'a>(&self, guests: impl IntoIterator<Item = (&'a str, Guest)>) -> Bench {
        Bench::start_with(self.options(), guests)
    }

    /// Runs each host call as a guest of its own under a grant of `patterns`, with a condition or
    /// without, and passes its report to `check`. Asserts that no call has changed anything.
    pub(super) fn try_calls(
        &self,
        calls: &[impl AsRef<str>],
        patterns: &[&str],
        condition: Option<&str>,
        mut check: impl FnMut(usize, &str, Report),
    ) {
        let names: Vec<_> = (0..calls.len()).map(|index| format!("case_{index}")).collect();
        let guests = calls.iter().map(|call| Guest::new(format!("(call $note {})", call.as_ref())));
        let bench = self.bench(names.iter().map(String::as_str).zip(guests));
        let before = (self.outside(), self.inside());
        for (index, (name, call)) in names.iter().zip(calls).enumerate() {
            let tried = bench.call(name).grant("filesystem_scope", json!(patterns));
            let tried = if let Some(condition) = condition { tried.condition(condition) } else { tried };
            check(index, call.as_ref(), tried.send().success());
            assert_eq!((self.outside(), self.inside()), before, "{} changed something", call.as_ref());
        }
    }

    /// A snapshot of everything that is granted.
    pub(super) fn inside(&self) -> BTreeMap<PathBuf, String> {
        look([self.at("jobs")], |_| false)
    }

    /// A snapshot of everything that is not granted.
    pub(super) fn outside(&self) -> BTreeMap<PathBuf, String> {
        let jobs = self.at("jobs");
        look([self.0.path().to_owned()], |path| path == jobs)
    }
}

/// A snapshot: kind, mode, times, links and content of all entries in and below folders, except
/// those that `is_left_out` selects.
pub(super) fn look(
    roots: impl IntoIterator<Item = PathBuf>,
    is_left_out: impl Fn(&Path) -> bool,
) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut left = roots.into_iter().collect::<Vec<_>>();
    while let Some(path) = left.pop() {
        if is_left_out(&path) || seen.contains_key(&path) {
            continue;
        }
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        let content = if metadata.is_file() {
            Sha256::digest(fs::read(&path).expect("a file")).to_vec()
        } else if metadata.is_symlink() {
            fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        }
        let kind = metadata.file_type();
        let mode = metadata.permissions().mode();
        let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.nlink());
        seen.insert(path, format!("{kind:?} {mode:o} {times:?} {content:x?}"));
    }
    seen
}
