//! The view, over originals that are the same as the plain folder at the start.

use super::call::{Call, Facts, Outcome, Side, TimeCall};
use super::plain::use_file;
use super::{FOLDER_SLOTS, MAX_FILES, ROOTS, open};
use a2g_overlay::{
    Access, EarlierFolder, Identity, Listing, LowerRoot, Name, NodeId, OpenFile, Stat, Table, Upper,
    UpperBudget, View,
};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const BUDGET: UpperBudget = UpperBudget { max_bytes: 1 << 30, max_nodes: 10_000 };

pub(super) struct Overlay {
    view: Option<View>,
    folders: [Option<NodeId>; FOLDER_SLOTS],
    files: [Option<OpenFile>; MAX_FILES],
    upper: PathBuf,
    contents: Contents,
    lower: PathBuf,
    is_read_only: [bool; ROOTS],
}

/// The folders of the contents that a member of a program reads.
#[derive(Clone, Default)]
pub(super) struct Contents {
    /// That of its own calls; `None` for one that is no member.
    pub(super) base: Option<PathBuf>,
    pub(super) from: u64,
    pub(super) earlier: Vec<(PathBuf, u64)>,
}

/// A listing of which some has been read.
pub(super) struct Listed {
    folder: usize,
    listing: Option<Listing>,
    cookie: u64,
    pub(super) names: Vec<OsString>,
}

fn name(name: &OsStr) -> Name {
    Name::new(name).unwrap()
}

fn facts(stat: &Stat) -> Facts {
    Facts::new(stat.kind, stat.size, stat.mode, stat.nlink, stat.modified)
}

impl Overlay {
    pub(super) fn new(upper: PathBuf, lower: PathBuf, is_read_only: [bool; ROOTS]) -> Self {
        let mut overlay = Self::without_view(upper, Contents::default(), lower, is_read_only);
        let view = View::new(open(&overlay.upper), overlay.roots(), BUDGET).unwrap();
        overlay.set_view(view);
        overlay
    }

    /// A member of a program, which begins with its table.
    pub(super) fn of_member(
        table: Table,
        upper: PathBuf,
        contents: Contents,
        lower: PathBuf,
        is_read_only: [bool; ROOTS],
    ) -> Self {
        let mut overlay = Self::without_view(upper, contents, lower, is_read_only);
        overlay.load(table);
        overlay
    }

    fn without_view(upper: PathBuf, contents: Contents, lower: PathBuf, is_read_only: [bool; ROOTS]) -> Self {
        let folders = [None; FOLDER_SLOTS];
        let files = [const { None }; MAX_FILES];
        Self { view: None, folders, files, upper, contents, lower, is_read_only }
    }

    fn load(&mut self, table: Table) {
        let view = View::load(table, self.all_contents(), self.roots(), BUDGET).unwrap();
        self.set_view(view);
    }

    fn roots(&self) -> Vec<LowerRoot> {
        let root = |(root, is_read_only): (usize, &bool)| LowerRoot {
            dir: open(&self.lower.join(root.to_string())),
            access: if *is_read_only { Access::Read } else { Access::Write },
        };
        self.is_read_only.iter().enumerate().map(root).collect()
    }

    fn set_view(&mut self, view: View) {
        for root in 0..ROOTS {
            self.folders[root] = view.root(root);
        }
        self.view = Some(view);
    }

    fn view(&mut self) -> &mut View {
        self.view.as_mut().unwrap()
    }

    fn folder(&self, slot: usize) -> NodeId {
        self.folders[slot].unwrap()
    }

    fn close_folder(&mut self, slot: usize) {
        if let Some(id) = self.folders[slot].take() {
            self.view().close_folder(id);
        }
    }

    pub(super) fn close_all(&mut self) {
        for slot in ROOTS..FOLDER_SLOTS {
            self.close_folder(slot);
        }
        self.files.fill_with(|| None);
    }

    /// Ends the view, and stores and reads its table.
    pub(super) fn into_table(mut self) -> Table {
        self.end()
    }

    pub(super) fn end(&mut self) -> Table {
        self.files.fill_with(|| None);
        self.folders.fill(None);
        let bytes = self.view.take().unwrap().into_table().to_bytes().unwrap();
        self.check_contents(&String::from_utf8(bytes.clone()).unwrap());
        let table = Table::from_bytes(&bytes, ROOTS).unwrap();
        assert_eq!(table.to_bytes().unwrap(), bytes);
        table
    }

    /// Checks that each own content is that of a node, and each content of a node in one of the folders.
    fn check_contents(&self, table: &str) {
        let parts = table.split(r#"{"upper_file":{"number":"#).skip(1);
        let numbers = parts.map(|part| part.split_once('}').unwrap().0).collect::<BTreeSet<_>>();
        for entry in std::fs::read_dir(&self.upper).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(numbers.contains(name.to_str().unwrap()), "contents that no node has are removed");
        }
        for number in numbers {
            self.all_contents().open(number.parse().unwrap(), OFlags::RDONLY).unwrap();
        }
    }

    fn reload(&mut self) {
        let table = self.end();
        self.load(table);
    }

    /// Lends the table to another member.
    pub(super) fn lend(&mut self) -> Table {
        let bytes = self.view().snapshot().to_bytes().unwrap();
        Table::from_bytes(&bytes, ROOTS).unwrap()
    }

    /// Goes on with the table of another member. What is open keeps its identity.
    pub(super) fn take_back(&mut self, table: Table) {
        let before = self.identities();
        self.view().reload(table).unwrap();
        assert_eq!(self.identities(), before);
    }

    pub(super) fn removed_files(&self) -> Vec<usize> {
        let view = self.view.as_ref().unwrap();
        let is_removed = |file: &Option<OpenFile>| {
            file.as_ref().is_some_and(|file| view.stat(file.node).unwrap().nlink == 0)
        };
        (0..MAX_FILES).filter(|slot| is_removed(&self.files[*slot])).collect()
    }

    fn identities(&mut self) -> Vec<Identity> {
        let files = self.files.iter().flatten().map(|file| file.node);
        let open = files.chain(self.folders.iter().flatten().copied()).collect::<Vec<_>>();
        open.into_iter().map(|id| self.view().stat(id).unwrap().identity).collect()
    }

    /// The folders of all contents.
    pub(super) fn all_contents(&self) -> Upper {
        let Contents { base, from, earlier } = &self.contents;
        let Some(base) = base else { return Upper::new(open(&self.upper)) };
        let earlier =
            earlier.iter().map(|(folder, from)| EarlierFolder { folder: open(folder), from: *from });
        Upper::of_member(open(&self.upper), open(base), *from, earlier.collect())
    }

    pub(super) fn open_base(&self) -> OwnedFd {
        open(self.contents.base.as_ref().unwrap())
    }

    /// The earlier contents of a call of this member.
    pub(super) fn earlier_of_calls(&self) -> Vec<(PathBuf, u64)> {
        let own = [self.contents.base.as_ref().unwrap(), &self.upper];
        let own = own.map(|folder| (folder.clone(), self.contents.from));
        self.contents.earlier.iter().cloned().chain(own).collect()
    }

    /// Uses the folders at two places instead of the roots, if both are there.
    pub(super) fn use_places(&mut self, places: &[Vec<Name>; ROOTS]) -> bool {
        let found = [0, 1].map(|root| self.view().open_place(root, &places[root]).unwrap());
        let are_there = found.iter().all(Option::is_some);
        if are_there {
            self.folders[..ROOTS].copy_from_slice(&found);
        }
        are_there
    }

    fn list(&mut self, folder: usize) -> Result<Outcome> {
        let mut listing = {
            let id = self.folder(folder);
            self.view().list(id, 0)?
        };
        let mut names = BTreeMap::new();
        while let Some(entry) = listing.next(self.view())? {
            if entry.name != "." && entry.name != ".." {
                assert_eq!(names.insert(entry.name.clone(), entry.kind), None, "{:?} twice", entry.name);
            }
        }
        Ok(Outcome::Names(names))
    }

    /// Begins a listing, and reads some of it.
    pub(super) fn list_some(&mut self, folder: usize, count: usize) -> Listed {
        let id = self.folder(folder);
        let listing = self.view().list(id, 0).unwrap();
        let mut listed = Listed { folder, listing: Some(listing), cookie: 0, names: Vec::new() };
        for _ in 0..count {
            listed.read(self);
        }
        listed
    }

    fn set_times(&mut self, at: &TimeCall, times: super::call::Times) -> Result<()> {
        let accessed = times.accessed;
        let modified = times.modified;
        match at {
            TimeCall::Entry(folder, entry) => {
                let folder = self.folder(*folder);
                self.view().set_times_at(folder, &name(entry), accessed, modified)
            }
            TimeCall::File(slot) => {
                let node = self.files[*slot].as_ref().unwrap().node;
                self.view().set_times(node, accessed, modified)
            }
            TimeCall::Folder(folder) => {
                let folder = self.folder(*folder);
                self.view().set_times(folder, accessed, modified)
            }
        }
    }

    fn change(&mut self, call: &Call) -> Result<Outcome> {
        match call {
            Call::MakeFolder { folder, name: entry } => {
                let folder = self.folder(*folder);
                self.view().create_folder(folder, &name(entry))?;
            }
            Call::RemoveFolder { folder, name: entry } => {
                let folder = self.folder(*folder);
                self.view().remove_folder(folder, &name(entry))?;
            }
            Call::Unlink { folder, name: entry } => {
                let folder = self.folder(*folder);
                self.view().unlink(folder, &name(entry))?;
            }
            Call::Rename { folder, name: entry, to_folder, to } => {
                let folder = self.folder(*folder);
                let to_folder = self.folder(*to_folder);
                self.view().rename((folder, &name(entry)), (to_folder, &name(to)))?;
            }
            Call::Symlink { folder, name: entry, target } => {
                let folder = self.folder(*folder);
                self.view().symlink(target, folder, &name(entry))?;
            }
            Call::SetTimes { at, times } => self.set_times(at, *times)?,
            other => panic!("{other:?} is no change"),
        }
        Ok(Outcome::Done)
    }
}

impl Side for Overlay {
    fn try_run(&mut self, call: &Call) -> Result<Outcome> {
        match call {
            Call::OpenFolder { folder, name: entry, slot } => {
                let folder = self.folder(*folder);
                let opened = self.view().open_folder(folder, &name(entry))?;
                self.close_folder(*slot);
                self.folders[*slot] = Some(opened);
            }
            Call::Reload => self.reload(),
            Call::CloseFolder { slot } => self.close_folder(*slot),
            Call::Open { folder, name: entry, how, slot } => {
                let folder = self.folder(*folder);
                self.files[*slot] = Some(self.view().open_file(folder, &name(entry), *how)?);
            }
            Call::Close { slot } => self.files[*slot] = None,
            Call::Read { slot, .. }
            | Call::ReadAll { slot }
            | Call::Write { slot, .. }
            | Call::Resize { slot, .. } => {
                let open = self.files[*slot].as_ref().unwrap();
                let outcome = use_file(&open.file, call)?;
                let is_written = matches!(
                    (call, &outcome),
                    (Call::Write { .. }, Outcome::Count(1..)) | (Call::Resize { .. }, _)
                );
                if is_written {
                    open.written.set();
                }
                return Ok(outcome);
            }
            Call::Stat { folder, name: entry } => {
                let folder = self.folder(*folder);
                return Ok(Outcome::Facts(facts(&self.view().lookup(folder, &name(entry))?)));
            }
            Call::StatFile { slot } => {
                let node = self.files[*slot].as_ref().unwrap().node;
                return Ok(Outcome::Facts(facts(&self.view().stat(node)?)));
            }
            Call::StatFolder { folder } => {
                let folder = self.folder(*folder);
                return Ok(Outcome::Facts(facts(&self.view().stat(folder)?)));
            }
            Call::List { folder } => return self.list(*folder),
            Call::ReadLink { folder, name: entry } => {
                let folder = self.folder(*folder);
                return self.view().read_link(folder, &name(entry)).map(Outcome::Target);
            }
            Call::IsSame { folder, name: entry, slot } => {
                let folder = self.folder(*folder);
                let node = self.files[*slot].as_ref().unwrap().node;
                let entry = self.view().lookup(folder, &name(entry))?;
                return Ok(Outcome::Is(entry.identity == self.view().stat(node)?.identity));
            }
            Call::MakeFolder { .. }
            | Call::RemoveFolder { .. }
            | Call::Unlink { .. }
            | Call::Rename { .. }
            | Call::Symlink { .. }
            | Call::SetTimes { .. } => return self.change(call),
        }
        Ok(Outcome::Done)
    }
}

impl Listed {
    /// Reads one entry; returns `false` at the end, and in a folder that was removed.
    fn read(&mut self, overlay: &mut Overlay) -> bool {
        let entry = match self.listing.as_mut().unwrap().next(overlay.view()) {
            Ok(entry) => entry,
            Err(Errno::NOENT) => None,
            Err(error) => panic!("{error}"),
        };
        let Some(entry) = entry else { return false };
        self.cookie = entry.next;
        if entry.name != "." && entry.name != ".." {
            self.names.push(entry.name);
        }
        true
    }

    /// Reads the rest, perhaps by a new listing for each entry.
    pub(super) fn finish(&mut self, overlay: &mut Overlay, anew: bool) {
        loop {
            if anew {
                let folder = overlay.folder(self.folder);
                self.listing = Some(overlay.view().list(folder, self.cookie).unwrap());
            }
            if !self.read(overlay) {
                return;
            }
        }
    }
}
