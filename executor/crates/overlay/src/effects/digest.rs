//! The canonical form of a list of changes: each field with its length or in a fixed number of bytes, in one order.

use super::{Change, ChangeKind, Effects, NewContent, NewEntry, Read};
use crate::hash::Sha256;
use crate::name::EntryPath;
use crate::seen::{EntryKind, FileTime, Seen};
use std::os::unix::ffi::OsStrExt as _;

const DOMAIN: &[u8] = b"a2g-effects-1";

pub(super) fn digest(effects: &Effects) -> Sha256 {
    let Effects { changes, reads } = effects;
    let mut form = Form(Vec::new());
    form.bytes(DOMAIN);
    form.number(changes.len() as u64);
    changes.iter().for_each(|change| form.change(change));
    form.number(reads.len() as u64);
    for Read { path, seen } in reads {
        form.path(path);
        form.seen(seen);
    }
    Sha256::of_bytes(&form.0)
}

struct Form(Vec<u8>);

impl Form {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn time(&mut self, time: FileTime) {
        let FileTime { seconds, nanoseconds } = time;
        self.0.extend_from_slice(&seconds.to_be_bytes());
        self.number(nanoseconds.into());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.number(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn path(&mut self, path: &EntryPath) {
        let EntryPath { root, names } = path;
        self.number(*root as u64);
        self.number(names.len() as u64);
        names.iter().for_each(|name| self.bytes(name.as_bytes()));
    }

    fn seen(&mut self, seen: &Seen) {
        let Seen { kind, device, inode, size, mode, mtime, ctime, nlink } = *seen;
        self.number(match kind {
            EntryKind::File => 0,
            EntryKind::Folder => 1,
            EntryKind::Link => 2,
            EntryKind::Other => 3,
        });
        for number in [device, inode, size, mode.into(), nlink] {
            self.number(number);
        }
        self.time(mtime);
        self.time(ctime);
    }

    fn content(&mut self, content: &NewContent) {
        let NewContent { number, size, sha256, mode, mtime } = content;
        self.number(*number);
        self.number(*size);
        self.bytes(sha256.as_bytes());
        self.number((*mode).into());
        self.time(*mtime);
    }

    fn entry(&mut self, entry: &NewEntry) {
        match entry {
            NewEntry::File(content) => {
                self.number(0);
                self.content(content);
            }
            NewEntry::Folder { mode, mtime } => {
                self.number(1);
                self.number((*mode).into());
                self.option(*mtime, Self::time);
            }
            NewEntry::Link { target, mtime } => {
                self.number(2);
                self.bytes(target.as_bytes());
                self.option(*mtime, Self::time);
            }
        }
    }

    fn change(&mut self, change: &Change) {
        let Change { path, kind } = change;
        self.path(path);
        match kind {
            ChangeKind::Deleted { before, content } => {
                self.number(0);
                self.seen(before);
                self.option(*content, |form, content| form.bytes(content.as_bytes()));
            }
            ChangeKind::Renamed { from, before, after } => {
                self.number(1);
                self.path(from);
                self.seen(before);
                self.option(after.as_ref(), Self::content);
            }
            ChangeKind::Created { new } => {
                self.number(2);
                self.entry(new);
            }
            ChangeKind::Changed { before, content_before, new } => {
                self.number(3);
                self.seen(before);
                self.bytes(content_before.as_bytes());
                self.content(new);
            }
            ChangeKind::Attributes { before, mode, mtime } => {
                self.number(4);
                self.seen(before);
                self.option(*mode, |form, mode| form.number(mode.into()));
                self.option(*mtime, Self::time);
            }
        }
    }
}
