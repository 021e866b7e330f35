//! The requests of a staged run that wait for the commit of its file changes, in a folder that the guest's process cannot
//! write.
//!
//! ```text
//! run     requests/0, requests/1, …: a body each ─ end of the run ─▶ requests/list.json, which the digest covers
//! commit  file changes in force ─▶ for each request: a line in requests/log ─ sent ─▶ a line with its end
//! ```
//! Each line is on the disk before the next step, so no request is ever sent twice: after a restart, one that has begun and
//! has no end may have arrived.

use super::{make_folder, open_folder};
use a2g_sandbox::egress::{BodyFile, HeldRequest, HeldRequests, HeldSecret, MAX_HELD_BODY_BYTES};
use a2g_types::outcome::ShownRequest;
use a2g_types::tool::Digest;
use a2g_types::visible_text::escape_invisible;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The folder with the requests, in that of the run.
const REQUESTS: &str = "requests";
/// The file in it with all requests but their bodies.
const LIST: &str = "list.json";
/// The file in it with what was sent.
const LOG: &str = "log";
/// The longest such file, in bytes: 64 URLs of 2 KiB and 256 KiB of header fields, of which every byte may be escaped.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The maximum size of a body whose text is shown, in bytes.
const MAX_SHOWN_BODY_BYTES: u64 = 4 << 10;
/// The maximum size of the texts of all bodies of a run that are shown, in bytes, escaped.
const MAX_SHOWN_BODIES_BYTES: usize = 64 << 10;
/// The maximum size of the names of header fields that are shown of all requests of a run, in bytes.
const MAX_SHOWN_FIELD_BYTES: usize = 16 << 10;
/// The beginning of the bytes of which the digest of changes with requests is.
const DIGEST_DOMAIN: &[u8] = b"a2g file changes with requests\0";

/// A request as the list has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::run) struct StoredRequest {
    pub(in crate::run) request: HeldRequest,
    /// The name of the file with the body.
    body: u32,
    bytes: u64,
    digest: Digest,
}

/// The end of a request that waited, in the result of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(in crate::run) enum RequestEnd {
    /// A server has answered.
    Sent { status: u16 },
    /// It was not sent. The reason is a clause.
    Failed { reason: String },
    /// It may have arrived. The reason is a clause.
    Unknown { reason: String },
    /// An earlier one was not answered, or the executor has stopped before.
    NotTried,
}

/// A line of the log: a request, by its number from 1, begins or ends.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLine {
    number: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<RequestEnd>,
}

/// The requests of a run that has not ended.
pub(super) struct HeldStore {
    /// The folder of the run.
    run: OwnedFd,
    /// The disk space that is left for requests, in bytes.
    room: AtomicU64,
    kept: Mutex<KeptRequests>,
}

#[derive(Default)]
struct KeptRequests {
    /// `None` until the run leaves a request.
    folder: Option<OwnedFd>,
    /// The name of the next body.
    next: u32,
    requests: Vec<StoredRequest>,
}

impl HeldStore {
    /// Requests in the folder of a run, with `room` bytes for them.
    pub(super) fn new(run: &OwnedFd, room: u64) -> io::Result<Self> {
        Ok(Self { run: run.try_clone()?, room: room.into(), kept: Mutex::default() })
    }

    /// Writes the list, and removes the bodies of refused requests. Returns `None` if the run has left no request.
    pub(super) fn finish(&self) -> io::Result<Option<HeldList>> {
        let KeptRequests { folder, next, requests } = std::mem::take(&mut *self.kept.lock());
        let Some(folder) = folder else { return Ok(None) };
        for refused in (0..next).filter(|name| requests.iter().all(|stored| stored.body != *name)) {
            match unlinkat(&folder, refused.to_string(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if requests.is_empty() {
            return Ok(None);
        }
        let text = serde_json::to_vec(&requests)?;
        if u64::try_from(text.len()).is_ok_and(|bytes| bytes > MAX_FILE_BYTES) {
            return Err(io::Error::other(format!(
                "the list of the requests has more than {MAX_FILE_BYTES} bytes"
            )));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_file(&folder, LIST, flags)?.write_all(&text)?;
        Ok(Some(HeldList { folder, text, requests }))
    }
}

impl HeldRequests for HeldStore {
    fn reserve(&self, bytes: u64) -> bool {
        self.room.fetch_update(Relaxed, Relaxed, |room| room.checked_sub(bytes)).is_ok()
    }

    fn make_body(&self) -> io::Result<BodyFile> {
        let mut kept = self.kept.lock();
        let folder = match kept.folder.take() {
            Some(folder) => folder,
            None => make_folder(&self.run, REQUESTS)?,
        };
        let name = kept.next;
        kept.next += 1;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open_file(&folder, &name.to_string(), flags);
        kept.folder = Some(folder);
        Ok(BodyFile { name, file: file? })
    }

    fn keep(&self, request: HeldRequest, body: BodyFile) -> io::Result<u32> {
        let BodyFile { name, mut file } = body;
        file.rewind()?;
        let content = read_all(file, MAX_HELD_BODY_BYTES)?;
        let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let stored = StoredRequest { request, body: name, bytes, digest: Digest::compute(&content) };
        let mut kept = self.kept.lock();
        kept.requests.push(stored);
        Ok(u32::try_from(kept.requests.len()).unwrap_or(u32::MAX))
    }
}

/// The requests of a run that has ended, with what became of them.
pub(in crate::run) struct HeldList {
    folder: OwnedFd,
    /// The list as it is on the disk.
    text: Vec<u8>,
    requests: Vec<StoredRequest>,
}

impl HeldList {
    /// Opens the requests of an earlier run; `None` if it has left none.
    pub(super) fn open(run: &OwnedFd) -> io::Result<Option<Self>> {
        let folder = match open_folder(run, REQUESTS) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(file) = find_file(&folder, LIST)? else { return Ok(None) };
        let text = read_all(file, MAX_FILE_BYTES)?;
        let requests = serde_json::from_slice(&text)?;
        Ok(Some(Self { folder, text, requests }))
    }

    /// The requests, in their order.
    pub(in crate::run) fn requests(&self) -> &[StoredRequest] {
        &self.requests
    }

    /// The digest of file changes together with these requests. `files` is that of the file changes alone.
    pub(super) fn bind(&self, files: &Digest) -> Digest {
        Digest::compute(&[DIGEST_DOMAIN, &files.0, &self.text].concat())
    }

    /// The requests as people see them.
    pub(super) fn to_shown(&self) -> Vec<ShownRequest> {
        let mut left = MAX_SHOWN_FIELD_BYTES;
        let shown = |StoredRequest { request, body: _, bytes, digest }: &StoredRequest| {
            // No name of a field has a space.
            let set = |HeldSecret { name, place }: &HeldSecret| format!("secret {name} in {place}");
            let secrets = request.secrets.iter().map(set);
            ShownRequest {
                method: request.method.clone(),
                url: escape_invisible(&request.url, usize::MAX),
                fields: show_fields(&request.fields, &mut left).into_iter().chain(secrets).collect(),
                body_bytes: *bytes,
                body_digest: *digest,
                // Receipts have these.
                body: None,
            }
        };
        self.requests.iter().map(shown).collect()
    }

    /// The body of a request.
    ///
    /// # Errors
    /// If it cannot be read, or is not the one that was kept.
    pub(in crate::run) fn read_body(&self, stored: &StoredRequest) -> io::Result<Vec<u8>> {
        let file = find_file(&self.folder, &stored.body.to_string())?.ok_or(io::ErrorKind::NotFound)?;
        let content = read_all(file, MAX_HELD_BODY_BYTES)?;
        if Digest::compute(&content) != stored.digest {
            return Err(io::Error::other("the body is not the one that was listed"));
        }
        Ok(content)
    }

    /// The texts of the short bodies, as a person sees them; `None` for each other body.
    ///
    /// # Errors
    /// As [`Self::read_body`].
    pub(super) fn read_body_texts(&self) -> io::Result<Vec<Option<String>>> {
        let mut left = MAX_SHOWN_BODIES_BYTES;
        let mut texts = Vec::new();
        for stored in &self.requests {
            let is_short = (1..=MAX_SHOWN_BODY_BYTES).contains(&stored.bytes);
            let content = if is_short && has_text_type(&stored.request.fields) {
                self.read_body(stored)?
            } else {
                Vec::new()
            };
            let text = String::from_utf8(content).ok().filter(|text| !text.is_empty());
            let shown =
                text.map(|text| escape_invisible(&text, usize::MAX)).filter(|shown| shown.len() <= left);
            left = left.saturating_sub(shown.as_ref().map_or(0, String::len));
            texts.push(shown);
        }
        Ok(texts)
    }

    /// Checks that all bodies are those that were kept.
    pub(super) fn check_bodies(&self) -> io::Result<()> {
        self.requests.iter().try_for_each(|stored| self.read_body(stored).map(drop))
    }

    /// Notes on the disk that a request is about to be sent, or with `end` what became of it. `number` is from 1.
    ///
    /// # Errors
    /// If it is not on the disk: then the request must not be sent.
    pub(in crate::run) fn note(&self, number: usize, end: Option<RequestEnd>) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut log = open_file(&self.folder, LOG, flags)?;
        let mut line = serde_json::to_vec(&LogLine { number, end })?;
        line.push(b'\n');
        log.write_all(&line)?;
        log.sync_all()?;
        fsync(&self.folder)?;
        Ok(())
    }

    /// The end of each request so far. If the log cannot be read, each may have arrived, so that none is sent again.
    pub(in crate::run) fn read_ends(&self) -> Vec<RequestEnd> {
        self.read_log().unwrap_or_else(|error| self.all_unknown(&error))
    }

    /// The ends of all requests if the log cannot be read.
    pub(in crate::run) fn all_unknown(&self, error: &io::Error) -> Vec<RequestEnd> {
        let reason = format!("the log of what was sent cannot be read ({error})");
        vec![RequestEnd::Unknown { reason }; self.requests.len()]
    }

    fn read_log(&self) -> io::Result<Vec<RequestEnd>> {
        let mut ends = vec![RequestEnd::NotTried; self.requests.len()];
        let Some(file) = find_file(&self.folder, LOG)? else { return Ok(ends) };
        let log = read_all(file, MAX_FILE_BYTES)?;
        for line in log.split_inclusive(|byte| *byte == b'\n') {
            // A line that a crash has cut off was not on the disk yet, so no request was sent after it.
            if !line.ends_with(b"\n") {
                break;
            }
            let LogLine { number, end } = serde_json::from_slice(line)?;
            if let Some(slot) = number.checked_sub(1).and_then(|index| ends.get_mut(index)) {
                let stopped = || RequestEnd::Unknown { reason: "the executor stopped meanwhile".to_owned() };
                *slot = end.unwrap_or_else(stopped);
            }
        }
        Ok(ends)
    }
}

/// `true` if the field `content-type` names JSON, a form or another text.
fn has_text_type(fields: &[(String, String)]) -> bool {
    let is_text = |value: &String| {
        let named = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        named.starts_with("text/")
            || named.ends_with("+json")
            || ["application/json", "application/x-www-form-urlencoded"].contains(&named.as_str())
    };
    fields.iter().any(|(name, value)| name == "content-type" && is_text(value))
}

/// The names of header fields for which `left` bytes are left, and the number of the others, such as `12 more`: no name
/// has a space.
fn show_fields(fields: &[(String, String)], left: &mut usize) -> Vec<String> {
    let mut names = Vec::new();
    for (name, _) in fields {
        let Some(rest) = left.checked_sub(name.len()) else { break };
        *left = rest;
        names.push(name.clone());
    }
    let more = fields.len().saturating_sub(names.len());
    names.extend((more > 0).then(|| format!("{more} more")));
    names
}

/// One sentence about the ends of all requests; `None` without requests.
pub(in crate::run) fn describe_ends(ends: &[RequestEnd]) -> Option<String> {
    let count = |is_counted: fn(&RequestEnd) -> bool| ends.iter().filter(|end| is_counted(end)).count();
    let sent = count(|end| matches!(end, RequestEnd::Sent { .. }));
    let not_tried = count(|end| *end == RequestEnd::NotTried);
    let for_good = if sent > 0 { ", which cannot be undone" } else { "" };
    let mut text = format!("{sent} of {} requests were sent{for_good}", ends.len());
    for (number, end) in (1..).zip(ends) {
        match end {
            RequestEnd::Failed { reason } => {
                text.push_str(&format!("; request {number} was not sent: {reason}"));
            }
            RequestEnd::Unknown { reason } => {
                text.push_str(&format!("; request {number} may have arrived: {reason}"));
            }
            RequestEnd::Sent { .. } | RequestEnd::NotTried => {}
        }
    }
    if not_tried > 0 {
        text.push_str(&format!("; not tried: {not_tried}"));
    }
    (!ends.is_empty()).then_some(text)
}

fn open_file(folder: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    Ok(File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?))
}

fn find_file(folder: impl AsFd, name: &str) -> io::Result<Option<File>> {
    match openat(folder, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_all(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(max_bytes).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves requests with these bodies in the folder of a run.
    fn leave(run: &OwnedFd, bodies: &[&str]) -> Option<HeldList> {
        let store = HeldStore::new(run, u64::MAX).unwrap();
        for (number, body) in (1..).zip(bodies) {
            let mut held = store.make_body().unwrap();
            held.file.write_all(body.as_bytes()).unwrap();
            let fields = vec![("cookie".to_owned(), "secret".to_owned())];
            let url = "https://a.example:443/\u{202e}".to_owned();
            let request = HeldRequest { method: "POST".to_owned(), url, fields, secrets: Vec::new() };
            assert_eq!(store.keep(request, held).unwrap(), number);
        }
        store.finish().unwrap()
    }

    fn open(path: &std::path::Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn requests_are_found_again_and_the_digest_is_of_every_byte() {
        let home = tempfile::tempdir().unwrap();
        let run = open(home.path());
        assert!(leave(&run, &[]).is_none() && HeldList::open(&run).unwrap().is_none());
        let list = leave(&run, &["one", ""]).unwrap();
        let again = HeldList::open(&run).unwrap().unwrap();
        assert_eq!(again.requests(), list.requests());
        let files = Digest([1; 32]);
        assert_eq!(again.bind(&files), list.bind(&files));
        assert_ne!(list.bind(&files), list.bind(&Digest([2; 32])));
        let other = tempfile::tempdir().unwrap();
        assert_ne!(leave(&open(other.path()), &["onE", ""]).unwrap().bind(&files), list.bind(&files));

        let shown = list.to_shown();
        assert_eq!((shown[0].body_bytes, shown[1].body_bytes), (3, 0));
        assert!(!shown[0].url.contains('\u{202e}') && !format!("{shown:?}").contains("secret"));
        assert_eq!(list.read_body(&list.requests()[0]).unwrap(), b"one");
        std::fs::write(home.path().join(REQUESTS).join("0"), "two").unwrap();
        assert!(list.check_bodies().is_err());
    }

    #[test]
    fn requests_use_no_more_than_their_room_and_a_list_is_not_longer_than_it_may_be_read() {
        let home = tempfile::tempdir().unwrap();
        let run = open(home.path());
        let store = HeldStore::new(&run, 10).unwrap();
        assert!(!store.reserve(11) && store.reserve(10) && !store.reserve(1));
        let first = store.make_body().unwrap();
        let fields = vec![("x".to_owned(), "x".repeat(5 << 20))];
        let request = HeldRequest {
            method: "POST".to_owned(),
            url: "https://a.example:443/".to_owned(),
            fields,
            secrets: Vec::new(),
        };
        store.keep(request, first).unwrap();
        assert!(store.finish().is_err());
    }

    #[test]
    fn the_body_of_a_refused_request_does_not_stay() {
        let home = tempfile::tempdir().unwrap();
        let store = HeldStore::new(&open(home.path()), u64::MAX).unwrap();
        drop(store.make_body().unwrap());
        assert!(store.finish().unwrap().is_none());
        assert_eq!(std::fs::read_dir(home.path().join(REQUESTS)).unwrap().count(), 0);
    }

    #[test]
    fn only_short_texts_are_shown_of_bodies() {
        let home = tempfile::tempdir().unwrap();
        let store = HeldStore::new(&open(home.path()), u64::MAX).unwrap();
        let long = "x".repeat(4097);
        let bodies: [(&str, &[u8]); 8] = [
            ("application/json; charset=utf-8", b"{\"a\":\n1}"),
            ("Text/Plain", "a\u{202e}b".as_bytes()),
            ("application/x-www-form-urlencoded", b"a=b"),
            ("application/problem+json", b"{}"),
            ("application/octet-stream", b"text"),
            ("text/plain", b"\xff"),
            ("text/plain", b""),
            ("text/plain", long.as_bytes()),
        ];
        for (media_type, body) in bodies {
            let mut file = store.make_body().unwrap();
            file.file.write_all(body).unwrap();
            let fields = vec![("content-type".to_owned(), media_type.to_owned())];
            let url = "https://a.example:443/".to_owned();
            store
                .keep(HeldRequest { method: "POST".to_owned(), url, fields, secrets: Vec::new() }, file)
                .unwrap();
        }
        let list = store.finish().unwrap().unwrap();
        let texts = list.read_body_texts().unwrap();
        let shown = texts.iter().map(Option::as_deref).collect::<Vec<_>>();
        let expected =
            [Some(r#"{"a":\n1}"#), Some(r"a\u{202e}b"), Some("a=b"), Some("{}"), None, None, None, None];
        assert_eq!(shown, expected);
        assert!(list.to_shown().iter().all(|request| request.body.is_none()), "a receipt has none");
    }

    #[test]
    fn so_many_names_of_fields_are_shown() {
        let fields = ["a", "bc", "d"].map(|name| (name.to_owned(), String::new()));
        let mut left = 4;
        assert_eq!(show_fields(&fields, &mut left), ["a", "bc", "d"]);
        assert_eq!(show_fields(&fields, &mut left), ["3 more"]);
        assert_eq!(show_fields(&fields, &mut 2), ["a", "2 more"]);
        assert!(show_fields(&[], &mut left).is_empty());
    }

    #[test]
    fn a_request_that_has_begun_is_never_one_that_was_not_tried() {
        let home = tempfile::tempdir().unwrap();
        let list = leave(&open(home.path()), &["", "", "", ""]).unwrap();
        assert_eq!(list.read_ends(), vec![RequestEnd::NotTried; 4]);
        let sent = RequestEnd::Sent { status: 201 };
        let failed = RequestEnd::Failed { reason: "no".to_owned() };
        for (number, end) in [(1, None), (1, Some(sent.clone())), (2, Some(failed.clone())), (3, None)] {
            list.note(number, end).unwrap();
        }
        let log = home.path().join(REQUESTS).join(LOG);
        let whole = std::fs::read(&log).unwrap();
        std::fs::write(&log, [&*whole, br#"{"number":4"#].concat()).unwrap();
        let ends = list.read_ends();
        std::fs::write(&log, "unreadable\n").unwrap();
        assert!(list.read_ends().iter().all(|end| matches!(end, RequestEnd::Unknown { .. })));
        assert_eq!((&ends[0], &ends[1], &ends[3]), (&sent, &failed, &RequestEnd::NotTried));
        assert!(matches!(ends[2], RequestEnd::Unknown { .. }), "{ends:?}");
        let said = describe_ends(&ends).unwrap();
        for part in ["1 of 4 requests", "request 2 was not sent: no", "request 3 may have", "; not tried: 1"]
        {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(describe_ends(&[]), None);
    }
}
