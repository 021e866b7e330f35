//! The work before the steps: new contents are copied into the stashes, and originals that are kept elsewhere into the
//! store. All of it is on the disk before the first step, so a full disk changes nothing.

use super::check::{Depth, check};
use super::copy::{carry_owner, copy_content, copy_entry, give_to_user, set_mtime};
use super::log::{Event, Side, Stashed};
use super::ownership::Ownership;
use super::plan::{Identity, Item, NEW_FOLDER_MODE, StagedEntry, Staging};
use super::stash::{Stashes, item_name, kept_items, make_kept, make_own};
use super::{CommitError, Conflict, ConflictKind, Prepared, io_error, refuse};
use crate::current::{errno_of, open_regular, open_staged};
use crate::effects::{Effects, NewContent};
use crate::hash::Sha256;
use crate::name::EntryPath;
use crate::seen::Seen;
use rustix::fs::{Mode, OFlags, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

impl Prepared<'_> {
    /// Makes the stashes and all that is new, and compares everything once more.
    pub(super) fn stage(&mut self, effects: &Effects, staged: &[Staging]) -> Result<(), CommitError> {
        make_kept(self.folders.store, self.disk)?;
        make_own(self.folders.roots, &self.progress.plan.stashes, self.disk)?;
        let stashes = self.open_stashes()?;
        let mut stashed = Vec::new();
        for staging in staged {
            let stash = stashes.of(&EntryPath::of_root(staging.root));
            self.stage_entry(stash, staging)?;
            stashed.push(look_at_new(stash, staging.item)?);
        }
        for (item, at, content) in kept_items(&self.progress.plan) {
            if stashes.own_of(at).is_some() {
                let (folder, leaf) = self.current.open_parent(at).map_err(io_error("open a folder"))?;
                let name = item_name(item);
                copy_entry(self.disk, folder, leaf, &stashes.kept, &name)?;
                if !has_content(&stashes.kept, &name, content)? {
                    let what = ConflictKind::Changed;
                    return Err(CommitError::Conflicts(vec![Conflict { path: at.clone(), what }]));
                }
            }
        }
        stashes.all().try_for_each(|stash| self.disk.sync_all(stash)).map_err(io_error("save the stash"))?;
        refuse(check(effects, self.current, &self.progress.plan.stashes, Depth::Contents)?)?;
        self.note_stashed(stashed)
    }

    fn open_stashes(&self) -> Result<Stashes, CommitError> {
        let stashes = Stashes::open(self.folders.store, self.folders.roots, &self.progress.plan.stashes)?;
        stashes.ok_or_else(|| CommitError::Log("its stash is missing".to_owned()))
    }

    fn stage_entry(&self, stash: BorrowedFd<'_>, staging: &Staging) -> Result<(), CommitError> {
        let name = item_name(staging.item);
        match &staging.what {
            StagedEntry::File(content, like) => {
                self.stage_file(stash, &name, content, like.as_ref(), &staging.anchor)
            }
            StagedEntry::Folder => {
                self.disk.make_folder(stash, &name).map_err(io_error("make a folder"))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let folder = openat(stash, &name, flags, Mode::empty()).map_err(io_error("open a folder"))?;
                let folder = File::from(folder);
                let inherited = self.give_to_user(&staging.anchor, &folder)?;
                self.disk
                    .set_mode(&folder, NEW_FOLDER_MODE | inherited)
                    .map_err(io_error("set the mode of a folder"))
            }
            StagedEntry::Link(target, mtime) => {
                self.disk.make_link(target, stash, &name).map_err(io_error("make a link"))?;
                mtime.map_or(Ok(()), |mtime| set_mtime(self.disk, stash, &name, mtime))
            }
        }
    }

    fn stage_file(
        &self,
        stash: BorrowedFd<'_>,
        name: &OsStr,
        content: &NewContent,
        like: Option<&EntryPath>,
        anchor: &EntryPath,
    ) -> Result<(), CommitError> {
        let NewContent { number, size, sha256, mode, mtime } = *content;
        let (staged, seen) =
            open_staged(self.folders.upper, number).map_err(|_| CommitError::Staged { number })?;
        if seen.size != size {
            return Err(CommitError::Staged { number });
        }
        let file = self.disk.create_file(stash, name).map_err(io_error("create a file"))?;
        let file = File::from(file);
        copy_content(self.disk, &staged, &file, size).map_err(io_error("copy a staged content"))?;
        // The copy is what is compared: nobody else can change it any more.
        let now = Seen::look(&file, "").map_err(io_error("look at a copy"))?;
        if now.size != size || Sha256::of_file(&file, size).ok() != Some(sha256) {
            return Err(CommitError::Staged { number });
        }
        match like {
            Some(original) => {
                let (original, _) = self.current.open_file(original).map_err(io_error("open an original"))?;
                carry_owner(self.disk, &original, &file)?;
            }
            None => drop(self.give_to_user(anchor, &file)?),
        }
        self.disk.set_mode(&file, mode).map_err(io_error("set the mode of a file"))?;
        set_mtime(self.disk, stash, name, mtime)
    }

    fn give_to_user(&self, anchor: &EntryPath, entry: &File) -> Result<u32, CommitError> {
        let anchor = self.current.stat(anchor).map_err(io_error("look at a folder"))?;
        give_to_user(self.disk, self.folders.upper, &anchor, entry)
    }

    /// Copies what is kept in the store back into the roots' own stashes. What is to be put back is the original.
    pub(super) fn bring_back(&mut self) -> Result<(), CommitError> {
        make_own(self.folders.roots, &self.progress.plan.stashes, self.disk)?;
        let stashes = self.open_stashes()?;
        let mut stashed = Vec::new();
        for (item, at, content) in kept_items(&self.progress.plan) {
            if let Some(own) = stashes.own_of(at) {
                let name = item_name(item);
                copy_entry(self.disk, &stashes.kept, &name, own, &name)?;
                if !has_content(own, &name, content)? {
                    return Err(CommitError::Kept(at.clone()));
                }
                stashed.push(look_into(own, item, Side::Old)?);
            }
        }
        stashes.all().try_for_each(|stash| self.disk.sync_all(stash)).map_err(io_error("save the stash"))?;
        self.note_stashed(stashed)
    }

    fn note_stashed(&mut self, stashed: Vec<Stashed>) -> Result<(), CommitError> {
        self.log.append(self.disk, &Event::Stashed(stashed.clone()))?;
        self.log.reserve(self.disk)?;
        self.progress.add_stashed(stashed);
        Ok(())
    }
}

/// The state of an item in a stash.
fn look_into(stash: BorrowedFd<'_>, item: Item, side: Side) -> Result<Stashed, CommitError> {
    let seen = Seen::look(stash, item_name(item)).map_err(io_error("look into the stash"))?;
    Ok(Stashed { item, side, identity: Identity::of(&seen), ownership: None })
}

/// The state of an item that has just been made, with what an undo compares beside it.
fn look_at_new(stash: BorrowedFd<'_>, item: Item) -> Result<Stashed, CommitError> {
    let ownership = Ownership::look(stash, &item_name(item)).map_err(io_error("look into the stash"))?;
    Ok(Stashed { ownership: Some(ownership), ..look_into(stash, item, Side::New)? })
}

/// `true` if an item of a stash has this content, or if it is not to have any.
fn has_content(stash: impl AsFd, name: &OsStr, content: Option<Sha256>) -> Result<bool, CommitError> {
    let Some(content) = content else { return Ok(true) };
    let (file, seen) = open_regular(stash, name).map_err(io_error("open a copy"))?;
    let found = Sha256::of_file(&file, seen.size);
    found.map(|found| found == content).map_err(|error| io_error("read a copy")(errno_of(&error)))
}
