//! A text that may be nowhere but at its destination, searched for in all that an executor leaves behind.

use super::{Executor, children_of};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use memchr::memmem::Finder;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The part of a memory that is read at once, in bytes.
const PART_BYTES: usize = 1 << 20;

/// A secret text, which is searched for as it is and in other forms.
pub struct Canary {
    forms: Vec<(&'static str, Finder<'static>)>,
    /// The length of the longest form.
    longest: usize,
}

impl Canary {
    /// A text of unreserved characters (RFC 3986), so that it is the same in a URL and in JSON.
    pub fn new(text: &str) -> Self {
        let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        assert!(text.len() >= 16 && text.bytes().all(is_unreserved), "no text to search for: {text}");
        let bytes = text.as_bytes();
        let each = |form: fn(u8) -> String| text.bytes().map(form).collect::<String>().into_bytes();
        let mut forms = vec![
            ("as it is", bytes.to_vec()),
            ("reversed", bytes.iter().rev().copied().collect()),
            ("in UTF-16", bytes.iter().flat_map(|byte| [*byte, 0]).collect()),
            ("in hexadecimal digits", each(|byte| format!("{byte:02x}"))),
            ("percent-encoded", each(|byte| format!("%{byte:02X}"))),
            ("percent-encoded in lower case", each(|byte| format!("%{byte:02x}"))),
        ];
        // In base64, the form of a text depends on the number of bytes before it, and its ends on what is around it.
        for skipped in 0..3 {
            let whole = (bytes.len() - skipped) / 3 * 3;
            let inner = &bytes[skipped..skipped + whole];
            forms.push(("in base64", STANDARD.encode(inner).into_bytes()));
            forms.push(("in base64 for URLs", URL_SAFE.encode(inner).into_bytes()));
        }
        let longest = forms.iter().map(|(_, form)| form.len()).max().unwrap_or(0);
        let find = |(name, form): (&'static str, Vec<u8>)| (name, Finder::new(&form).into_owned());
        Self { forms: forms.into_iter().map(find).collect(), longest }
    }

    /// The form in which the text is in these bytes.
    pub fn find_in(&self, bytes: &[u8]) -> Option<&'static str> {
        self.forms.iter().find(|(_, form)| form.find(bytes).is_some()).map(|(name, _)| *name)
    }

    /// Checks that the text is not in these bytes.
    pub fn assert_not_in(&self, what: &str, bytes: &[u8]) {
        if let Some(form) = self.find_in(bytes) {
            panic!("{what} has the secret {form}: {}", String::from_utf8_lossy(bytes));
        }
    }

    /// Checks that the text is in no file of a folder, and in no name there.
    pub fn assert_in_no_file_of(&self, folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            self.assert_not_in("a name", path.as_os_str().as_encoded_bytes());
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                self.assert_in_no_file_of(&path);
            } else if kind.is_file() {
                let form = self.find_in(&std::fs::read(&path).unwrap_or_default());
                assert!(form.is_none(), "{} has the secret {form:?}", path.display());
            }
        }
    }

    /// The form in which the text is in the memory of a process, but for what it only reads from files. What
    /// the process frees meanwhile is left out.
    ///
    /// # Errors
    /// If this process may not read that memory.
    pub fn find_in_memory_of(&self, process: u32) -> std::io::Result<Option<&'static str>> {
        let memory = File::open(format!("/proc/{process}/mem"))?;
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
        let mut part = vec![0; PART_BYTES];
        for (start, end) in maps.lines().filter_map(own_memory) {
            let mut at = start;
            while at < end {
                let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(PART_BYTES);
                // Some of the kernel's own pages cannot be read.
                let Ok(read @ 1..) = memory.read_at(&mut part[..length], at) else { break };
                if let Some(form) = self.find_in(&part[..read]) {
                    return Ok(Some(form));
                }
                let is_last = u64::try_from(read).unwrap() >= end - at;
                // The text may be across the border of two parts.
                let step = if is_last || read <= self.longest { read } else { read - self.longest };
                at += u64::try_from(step).unwrap();
            }
        }
        Ok(None)
    }

    /// The processes below another one, each with the form in which the text is in its memory; `None` if this process may
    /// not read their memory.
    pub fn find_in_memory_below(&self, process: u32) -> Option<Vec<(u32, Option<&'static str>)>> {
        let mut found = Vec::new();
        for child in children_of(process) {
            match self.find_in_memory_of(child) {
                Ok(form) => found.push((child, form)),
                // It has ended meanwhile.
                Err(_) if !children_of(process).contains(&child) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
                Err(error) => panic!("the memory of process {child}: {error}"),
            }
            found.extend(self.find_in_memory_below(child)?);
        }
        Some(found)
    }

    /// Checks that the text is nowhere in what an executor has outside of its own memory: its folders with journal, reports
    /// and temporary files, standard error, metrics, and the memory and environment of its processes.
    pub fn assert_left_nowhere_by(&self, executor: &Executor) {
        self.assert_in_no_file_of(&executor.home().folder());
        self.assert_not_in("standard error", executor.stderr().as_bytes());
        let metrics = executor.client().request("GET", "/metrics", &[], b"");
        assert_eq!(metrics.status, 200, "{metrics:?}");
        self.assert_not_in("/metrics", &metrics.body);
        let found = self.find_in_memory_below(executor.id()).unwrap_or_default();
        assert!(found.iter().all(|(_, form)| form.is_none()), "processes with the secret: {found:?}");
    }
}

/// The start and the end of a region of memory, from a line of `/proc/PID/maps`; `None` if it cannot be read, or has
/// only the content of a file.
fn own_memory(line: &str) -> Option<(u64, u64)> {
    let mut parts = line.split_whitespace();
    let range = parts.next()?;
    let permissions = parts.next()?;
    let inode = parts.nth(2)?;
    let is_own = permissions.starts_with("rw") || permissions.starts_with('r') && inode == "0";
    let (start, end) = range.split_once('-').filter(|_| is_own)?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}
