//! Resolving paths below roots that are only partly granted.
//!
//! A path is walked name by name from its starting descriptor. Each folder is opened by its own name beneath the
//! previous one and never through a symbolic link; a link is read, and its target walked instead. The walked
//! path is checked against the grant, and the call then uses the last folder's handle with one name, so nothing can be
//! replaced between check and use. A name that the grant neither contains nor leads through is never touched.

#[cfg(test)]
mod tests;

use super::denials::Refusal;
use super::filesystem::AuditedFs;
use a2g_capability::Root;
use std::sync::Arc;
use wasmtime::component::Resource;
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorType, ErrorCode, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{FsError, FsResult};

/// Maximum number of symbolic links followed for one path: the kernel's limit.
const MAX_LINKS: usize = 40;
/// Maximum number of folders in one path.
// Each takes a handle while the path is walked.
const MAX_FOLDERS: usize = 128;
/// Maximum size of a path and of a link target, in bytes: the kernel's limit.
const MAX_PATH_BYTES: usize = 4096;

/// A root and a path below it, as it was walked.
#[derive(Debug, Clone)]
pub(super) struct WalkedPath {
    pub(super) root: Arc<Root>,
    pub(super) path: String,
}

impl WalkedPath {
    fn child(&self, name: &str) -> Self {
        Self { root: Arc::clone(&self.root), path: format!("{}/{name}", self.path) }
    }

    /// Returns `true` if a listing of this folder shows the entry. The rule is the same as for `stat`.
    pub(super) fn shows(&self, name: &str, kind: DescriptorType) -> bool {
        let child = self.child(name);
        let leads_to_grant = kind == DescriptorType::Directory && child.root.can_grant_below(&child.path);
        child.root.grants(&child.path) || leads_to_grant
    }
}

/// The grant that a call requires for its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathRequirement {
    /// The path itself is granted, or it is a folder on the way to something granted.
    Visible,
    /// The path itself is granted.
    Granted,
}

/// A resolved path: a folder and one name in it.
pub(super) struct ResolvedPath {
    /// The folders opened on the way, the innermost last.
    opened: Vec<Resource<Descriptor>>,
    start: u32,
    pub(super) name: String,
    /// The walked path; `None` where every root is granted whole and wasmtime-wasi resolves the path.
    pub(super) walked: Option<WalkedPath>,
    /// `SYMLINK_FOLLOW` if a final link must still be followed.
    pub(super) flags: PathFlags,
}

impl ResolvedPath {
    /// The folder that contains `name`.
    pub(super) fn folder(&self) -> Resource<Descriptor> {
        Resource::new_borrow(self.opened.last().map_or(self.start, Resource::rep))
    }
}

/// The state of one walk.
struct Walk {
    /// The path of each opened folder, the start first.
    paths: Vec<WalkedPath>,
    opened: Vec<Resource<Descriptor>>,
    /// The remaining names, the next one last.
    names: Vec<String>,
    /// `true` if the form of the path requires a folder at its end: `a/`, `a/.`, `a/..`.
    requires_folder: bool,
}

impl Walk {
    fn push(&mut self, path: &str) {
        let last = path.rsplit('/').next();
        if self.names.is_empty() {
            self.requires_folder |= matches!(last, Some("" | "." | ".."));
        }
        let names = path.split('/').rev().filter(|name| !matches!(*name, "" | "."));
        self.names.extend(names.map(str::to_owned));
    }
}

impl AuditedFs<'_> {
    /// Resolves a path and checks the grant that the call requires. The caller has to [`Self::release`] the result.
    pub(super) async fn resolve(
        &mut self,
        fd: &Resource<Descriptor>,
        path: &str,
        flags: PathFlags,
        required: PathRequirement,
    ) -> FsResult<ResolvedPath> {
        // A walk costs a few system calls for each folder, so whole trees go directly to wasmtime-wasi.
        if !self.0.walks {
            let name = path.to_owned();
            let start = fd.rep();
            return Ok(ResolvedPath { opened: Vec::new(), start, name, walked: None, flags });
        }
        let start = self.walked_path(fd)?;
        let mut walk =
            Walk { paths: vec![start], opened: Vec::new(), names: Vec::new(), requires_folder: false };
        let result = self.walk(fd, path, flags, required, &mut walk).await;
        let result = match result {
            Ok((name, walked)) => {
                self.check_requirement(fd, &walk, &name, &walked, required).await.map(|()| (name, walked))
            }
            Err(error) => Err(error),
        };
        match result {
            Ok((name, walked)) => Ok(ResolvedPath {
                opened: walk.opened,
                start: fd.rep(),
                name,
                walked: Some(walked),
                flags: PathFlags::empty(),
            }),
            Err(error) => {
                self.close(walk.opened);
                Err(error)
            }
        }
    }

    /// Closes the folders that were opened on the way.
    pub(super) fn release(&mut self, resolved: ResolvedPath) {
        self.close(resolved.opened);
    }

    fn close(&mut self, opened: Vec<Resource<Descriptor>>) {
        for folder in opened {
            let _must_exist = self.files().close(folder);
        }
    }

    /// The path of an open folder.
    pub(super) fn walked_path(&mut self, fd: &Resource<Descriptor>) -> FsResult<WalkedPath> {
        if let Some(walked) = self.0.walked_paths.get(&fd.rep()) {
            return Ok(walked.clone());
        }
        let root = self.preopen(fd).and_then(|preopen| preopen.root()).ok_or(ErrorCode::NotDirectory)?;
        let path = root.tree().path().to_owned();
        Ok(WalkedPath { root, path })
    }

    /// Records an attempt on a path that is not granted.
    pub(super) fn deny_path(&mut self, walked: &WalkedPath) -> ErrorCode {
        self.0.stats.denials.record_outside_grant(&walked.path);
        ErrorCode::Access
    }

    /// Records a path that leads out of its starting descriptor.
    fn deny_escape(&mut self, fd: &Resource<Descriptor>, path: &str) -> FsError {
        let paths = [(self.preopen(fd), path)];
        self.record(Refusal::Read, &paths);
        ErrorCode::NotPermitted.into()
    }

    async fn walk(
        &mut self,
        fd: &Resource<Descriptor>,
        path: &str,
        flags: PathFlags,
        required: PathRequirement,
        walk: &mut Walk,
    ) -> FsResult<(String, WalkedPath)> {
        if path.is_empty() {
            return Err(ErrorCode::NoEntry.into());
        }
        let mut links = 0;
        let mut next = path.to_owned();
        loop {
            // `next` is the path as received, and later the target of each link.
            if next.len() > MAX_PATH_BYTES {
                return Err(ErrorCode::NameTooLong.into());
            }
            if next.starts_with('/') {
                return Err(self.deny_escape(fd, path));
            }
            walk.push(&next);
            next = loop {
                let Some(here) = walk.paths.last().cloned() else { return Err(self.deny_escape(fd, path)) };
                let Some(name) = walk.names.pop() else { return Ok((".".to_owned(), here)) };
                if name == ".." {
                    let Some(folder) = walk.opened.pop() else { return Err(self.deny_escape(fd, path)) };
                    walk.paths.pop();
                    self.close(vec![folder]);
                    continue;
                }
                let walked = here.child(&name);
                if !walked.root.grants(&walked.path) && !walked.root.can_grant_below(&walked.path) {
                    return Err(self.deny_path(&walked).into());
                }
                let last = walk.names.is_empty();
                if last && !walk.requires_folder && !flags.contains(PathFlags::SYMLINK_FOLLOW) {
                    return Ok((name, walked));
                }
                match self.entry_type(fd, walk, &name).await? {
                    // A link that is not granted is not followed: its target is hidden as well.
                    Some(DescriptorType::SymbolicLink) if walked.root.grants(&walked.path) => {
                        // Calls that modify an entry never follow a final link.
                        if last
                            && required == PathRequirement::Granted
                            && !flags.contains(PathFlags::SYMLINK_FOLLOW)
                        {
                            return Err(ErrorCode::NotDirectory.into());
                        }
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(ErrorCode::Loop.into());
                        }
                        let folder = current_folder(fd, walk);
                        break match self.files().readlink_at(folder, name).await {
                            // The target is a path of the host, which is not shown.
                            Err(error) if matches!(error.downcast_ref(), Some(ErrorCode::NotPermitted)) => {
                                return Err(self.deny_escape(fd, path));
                            }
                            target => target?,
                        };
                    }
                    Some(DescriptorType::Directory) if last => return Ok((name, walked)),
                    Some(DescriptorType::Directory) => {
                        if walk.opened.len() >= MAX_FOLDERS {
                            return Err(ErrorCode::NameTooLong.into());
                        }
                        let folder = current_folder(fd, walk);
                        let open_flags = OpenFlags::DIRECTORY;
                        let descriptor_flags = DescriptorFlags::READ;
                        let opened = self
                            .files()
                            .open_at(folder, PathFlags::empty(), name, open_flags, descriptor_flags)
                            .await?;
                        walk.opened.push(opened);
                        walk.paths.push(walked);
                    }
                    // An entry that exists but is not granted looks as if it did not exist.
                    Some(_file) if !walked.root.grants(&walked.path) => {
                        return Err(if last { self.deny_path(&walked) } else { ErrorCode::NoEntry }.into());
                    }
                    Some(_file) if last && !walk.requires_folder => return Ok((name, walked)),
                    Some(_file) => return Err(ErrorCode::NotDirectory.into()),
                    None if last && !walk.requires_folder => return Ok((name, walked)),
                    None => return Err(ErrorCode::NoEntry.into()),
                }
            };
        }
    }

    /// Refuses a walked path that does not have the required grant.
    async fn check_requirement(
        &mut self,
        fd: &Resource<Descriptor>,
        walk: &Walk,
        name: &str,
        walked: &WalkedPath,
        required: PathRequirement,
    ) -> FsResult<()> {
        if walked.root.grants(&walked.path) {
            return Ok(());
        }
        let is_folder_on_the_way = required == PathRequirement::Visible
            && walked.root.can_grant_below(&walked.path)
            && self.entry_type(fd, walk, name).await? == Some(DescriptorType::Directory);
        if is_folder_on_the_way { Ok(()) } else { Err(self.deny_path(walked).into()) }
    }

    /// The type of an entry, without following links; `None` if there is no such entry.
    async fn entry_type(
        &mut self,
        fd: &Resource<Descriptor>,
        walk: &Walk,
        name: &str,
    ) -> FsResult<Option<DescriptorType>> {
        let stat = self.files().stat_at(current_folder(fd, walk), PathFlags::empty(), name.to_owned()).await;
        match stat {
            Ok(stat) => Ok(Some(stat.type_)),
            Err(error) if matches!(error.downcast_ref(), Some(ErrorCode::NoEntry)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The current folder of a walk.
fn current_folder(fd: &Resource<Descriptor>, walk: &Walk) -> Resource<Descriptor> {
    Resource::new_borrow(walk.opened.last().map_or(fd.rep(), Resource::rep))
}
