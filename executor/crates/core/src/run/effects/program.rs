//! The files that a run shares with the calls that it makes: one list of changes for the whole program.
//!
//! ```text
//! run      areas opened, table made ─▶ its folders: `upper`, which it writes, and `base`, which this server alone writes
//!   call   a turn ─ the caller's table is taken and checked ─▶ folders of its own; it reads those of its callers
//!     end  SUCCESS ─ its table is checked ─▶ its contents go to the caller's `base`, its table is the caller's
//!            └─ any other end ─▶ its folders are removed, and the caller's table is as before
//! end      the last table is checked, and settled as that of any other run
//! ```
//! A process may have been taken over by its guest. So each table is compared with the one before it: what the grant of its
//! run does not allow has to be the same in both. One call at a time has the files; others wait for their turn. Tables are
//! read and counted in `table.rs`.

mod table;

pub(super) use table::read_table;

use super::removal::remove_tree;
use super::roots::show_bytes;
use super::{UPPER, make_folder, open_folder};
use a2g_capability::{Ceilings, Mounts, Permit, Place, Root, Tree};
use a2g_overlay::{Access, Act, EntryPath, LowerRoot, Name, Table, Upper};
use a2g_types::limit::Access as FileAccess;
use a2g_types::memory;
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Uid, chownat, fchmod, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use table::{CountedTable, TableRefused, unreadable};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The folder of a run with the table of its files, and with the contents of the calls that it has made.
pub(super) const BASE: &str = "base";
/// The name of a table until it is complete.
const DRAFT: &str = "table.new";
/// The maximum number of files and folders outside of its grant that a call may read, because its program has moved them
/// into it.
const MAX_READABLE: usize = 128;
/// The mode of a table: the user of the run reads it, and no other user reaches its folder.
const TABLE_MODE: Mode = Mode::from_raw_mode(0o644);

/// The reason why the file changes of a run cannot be kept apart.
#[derive(Debug, thiserror::Error)]
pub(super) enum StageError {
    /// They never can, under this grant and configuration. The text is a sentence for the caller.
    #[error("{0}")]
    Refused(String),
    /// The files of the calling run are of no use any more. The text is a clause.
    #[error("{0}")]
    Broken(String),
    /// There is no memory for them now. The text is for the caller.
    #[error("{0}")]
    NoRoom(&'static str),
    /// They cannot now. The text is for the log.
    #[error("{0}")]
    Failed(String),
}

impl From<TableRefused> for StageError {
    fn from(refused: TableRefused) -> Self {
        match refused {
            TableRefused::NoRoom(reason) => Self::NoRoom(reason),
            TableRefused::Unusable(reason) => Self::Broken(reason),
        }
    }
}

impl From<io::Error> for StageError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The part of the host's files that runs may have at all, opened once for a program: the roots of its table.
pub(super) struct Areas {
    roots: Vec<AreaRoot>,
    /// Those that do not exist on the host: they are no places in the folders around them.
    missing: Vec<Tree>,
}

/// One folder of them.
pub(super) struct AreaRoot {
    pub(super) guest: Tree,
    pub(super) dir: OwnedFd,
}

impl Areas {
    /// Opens the folders of the operator's ceilings and mounts. One that does not exist is left out.
    ///
    /// # Ambient Authority
    /// Opens these folders.
    ///
    /// # Errors
    /// If one cannot be opened, or lies in another: a file must not have two places.
    fn open(mounts: &Mounts, ceilings: &Ceilings) -> Result<Self, StageError> {
        let areas = ceilings.areas.iter().map(|area| area.root().clone());
        let mounted = mounts.as_slice().iter().map(|mount| mount.guest.clone());
        let is_granted = |tree: &Tree| ceilings.areas.iter().any(|area| area.root().covers(tree));
        let mut trees = areas.chain(mounted.filter(is_granted)).collect::<Vec<_>>();
        trees.sort_unstable_by(|one, other| one.path().cmp(other.path()));
        trees.dedup_by(|one, other| one.path() == other.path());
        let mut found = Vec::<(Tree, PathBuf)>::new();
        for guest in trees {
            let Some(host) = mounts.host_path(&guest, &ceilings.areas) else { continue };
            // A folder below another one, and not elsewhere on the host, is a place in that one.
            let contains = |(above, folder): &(Tree, PathBuf)| {
                above.relative_path(guest.path()).is_some_and(|rest| folder.join(rest) == host)
            };
            if !found.iter().any(contains) {
                found.push((guest, host));
            }
        }
        let mut roots = Vec::<AreaRoot>::new();
        let mut missing = Vec::new();
        let mut reals = Vec::<PathBuf>::new();
        for (guest, host) in found {
            let dir = match File::open(&host) {
                Ok(folder) => OwnedFd::from(folder),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    missing.push(guest);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let real = std::fs::canonicalize(&host)?;
            let overlaps = |other: &PathBuf| other.starts_with(&real) || real.starts_with(other);
            let other = reals.iter().position(overlaps).and_then(|index| roots.get(index));
            if let Some(other) = other {
                return Err(StageError::Refused(format!(
                    "a run and its calls cannot share their file changes, because `{}` and `{}` are one folder on the host, \
                     or one lies in the other: ask the operator to keep them apart (`ceilings.filesystem_scope`, `[[mount]]`)",
                    guest.path(),
                    other.guest.path()
                )));
            }
            reals.push(real);
            roots.push(AreaRoot { guest, dir });
        }
        Ok(Self { roots, missing })
    }

    pub(super) fn roots(&self) -> &[AreaRoot] {
        &self.roots
    }

    /// Handles of the folders for the table, with the rights of all runs together.
    pub(super) fn lower(&self) -> io::Result<Vec<LowerRoot>> {
        let lower = |root: &AreaRoot| Ok(LowerRoot { dir: root.dir.try_clone()?, access: Access::Write });
        self.roots.iter().map(lower).collect()
    }

    /// Handles for look-ups only: a process that has them reads no folder with them.
    fn for_look_ups(&self) -> io::Result<Vec<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.roots.iter().map(|root| Ok(openat(&root.dir, ".", flags, Mode::empty())?)).collect()
    }

    /// The place of a guest path; `None` if its area does not exist on the host.
    fn place(&self, path: &str) -> Option<EntryPath> {
        let found = self.roots.iter().enumerate().filter_map(|(index, root)| {
            Some((index, root.guest.path().len(), root.guest.relative_path(path)?))
        });
        let (root, length, rest) = found.max_by_key(|(_, length, _)| *length)?;
        if self.missing.iter().any(|guest| guest.contains(path) && guest.path().len() > length) {
            return None;
        }
        let names = rest.split('/').filter(|name| !name.is_empty()).map(|name| Name::new(name).ok());
        Some(EntryPath { root, names: names.collect::<Option<_>>()? })
    }

    /// The guest path of a place; `None` if a name in it is not text.
    fn guest_path(&self, path: &EntryPath) -> Option<String> {
        let mut text = self.roots.get(path.root)?.guest.path().to_owned();
        for name in &path.names {
            if !text.ends_with('/') {
                text.push('/');
            }
            text.push_str(name.as_os_str().to_str()?);
        }
        Some(text)
    }
}

/// The grant of a run of a program, in the areas.
struct Granted {
    access: FileAccess,
    /// The granted folders, in the order of the grant; without a place if their area does not exist.
    roots: Vec<(Option<EntryPath>, Option<Arc<Root>>)>,
}

/// The grant of a run, before the areas are open.
pub(super) struct GrantedRoots {
    access: FileAccess,
    roots: Vec<(String, Option<Arc<Root>>)>,
}

impl GrantedRoots {
    pub(super) fn of(permit: &Permit) -> Self {
        let roots = permit.roots().as_slice().iter();
        let roots = roots.map(|root| (root.guest.clone(), root.granted.clone())).collect();
        Self { access: permit.grant().access().value, roots }
    }
}

impl Granted {
    fn of(GrantedRoots { access, roots }: GrantedRoots, areas: &Areas) -> Self {
        let roots = roots.into_iter().map(|(guest, granted)| (areas.place(&guest), granted)).collect();
        Self { access, roots }
    }

    /// The places of the granted folders.
    fn places(&self) -> impl Iterator<Item = &EntryPath> {
        self.roots.iter().filter_map(|(place, _)| place.as_ref())
    }

    fn allows(&self, areas: &Areas, path: &EntryPath, act: Act) -> bool {
        match (act, self.access) {
            (Act::Read, _) | (Act::Alter | Act::Change | Act::Move, FileAccess::ReadWrite) => {}
            (Act::Alter | Act::Change | Act::Move, FileAccess::ReadOnly) => return false,
        }
        let text = areas.guest_path(path);
        self.roots.iter().any(|(place, granted)| {
            let contains = |place: &EntryPath| {
                let is_inside = place.root == path.root && path.names.starts_with(&place.names);
                match act {
                    Act::Read | Act::Alter => is_inside,
                    // The granted folder itself is an entry of one that is not granted.
                    Act::Change | Act::Move => is_inside && path.names.len() > place.names.len(),
                }
            };
            let Some(root) = granted.as_deref().filter(|_| place.as_ref().is_some_and(contains)) else {
                return false;
            };
            root.is_whole()
                || text.as_deref().is_some_and(|text| match act {
                    Act::Read | Act::Alter | Act::Change => root.grants(text),
                    Act::Move => root.grants(text) && root.grants_all_below(text),
                })
        })
    }
}

/// A run of a program: the run that makes the calls, or one of the calls.
pub(in crate::run) struct Member {
    areas: Arc<Areas>,
    /// The folder with the folders of this run and those of its calls.
    dir: OwnedFd,
    upper: OwnedFd,
    base: OwnedFd,
    /// The folders with contents of the runs that have led to this one.
    earlier: Vec<(OwnedFd, u64)>,
    granted: Granted,
    /// The owner of the message that began the program.
    owner: Arc<str>,
    /// The first number of its contents: [`Table::next_content`] of the table with which it began.
    from: u64,
    /// The table that its calls find.
    latest: Mutex<Arc<CountedTable>>,
    /// The reason why its files are of no use any more, as a clause.
    broken: Mutex<Option<String>>,
    turn: Arc<Semaphore>,
    /// The number of its calls so far.
    calls: AtomicU64,
}

/// A call that has the files of its caller, until it is dropped.
pub(in crate::run) struct CallTurn {
    caller: Arc<Member>,
    /// The name of the call's folder in that of its caller.
    name: String,
    _turn: OwnedSemaphorePermit,
}

impl Member {
    /// Makes the run that begins a program, in the folder `dir`, which has its folder `upper`.
    ///
    /// # Ambient Authority
    /// As [`Areas::open`].
    ///
    /// # Errors
    /// If the areas cannot be opened or overlap, or the folders cannot be made.
    pub(super) fn begin(
        dir: OwnedFd,
        upper: OwnedFd,
        granted: GrantedRoots,
        mounts: &Mounts,
        ceilings: &Ceilings,
        owner: &str,
    ) -> Result<Self, StageError> {
        let areas = Arc::new(Areas::open(mounts, ceilings)?);
        let table = Table::new(&areas.lower()?).map_err(io::Error::from)?;
        // It is small.
        let counted = CountedTable { table, counted: memory::hold_always(owner, 0) };
        Ok(Self::make(areas, dir, upper, Vec::new(), granted, Arc::new(counted), owner.into())?)
    }

    fn make(
        areas: Arc<Areas>,
        dir: OwnedFd,
        upper: OwnedFd,
        earlier: Vec<(OwnedFd, u64)>,
        granted: GrantedRoots,
        table: Arc<CountedTable>,
        owner: Arc<str>,
    ) -> io::Result<Self> {
        let base = make_folder(&dir, BASE)?;
        write_table(&base, &table)?;
        let granted = Granted::of(granted, &areas);
        Ok(Self {
            areas,
            dir,
            upper,
            base,
            earlier,
            granted,
            owner,
            from: table.next_content(),
            latest: Mutex::new(table),
            broken: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
            calls: AtomicU64::default(),
        })
    }

    /// Waits until no other call has the files.
    pub(in crate::run) async fn wait_for_turn(self: &Arc<Self>) -> CallTurn {
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        match turn {
            Ok(turn) => CallTurn { caller: Arc::clone(self), name: format!("call-{number}"), _turn: turn },
            // Never closed.
            Err(_closed) => std::future::pending().await,
        }
    }

    /// The part of the run in its program, for its permit. The run has made no calls yet.
    ///
    /// # Errors
    /// If a handle cannot be made, or the run may read too much that was moved into its grant.
    pub(super) fn to_permit(&self) -> Result<a2g_capability::MemberFolders, StageError> {
        let places = self.granted.roots.iter().map(|(place, _)| place.as_ref().map(to_place)).collect();
        let earlier = self.earlier.iter().map(|(folder, from)| {
            Ok(a2g_capability::EarlierFolder { folder: folder.try_clone()?, from: *from })
        });
        let granted = self.granted.places().cloned().collect::<Vec<_>>();
        let moved = self.latest.lock().moved_in(&granted);
        if moved.len() > MAX_READABLE {
            return Err(StageError::Refused(format!(
                "the program has moved {} files and folders into the granted folders of this call from outside of them, and \
                 at most {MAX_READABLE} are allowed: grant the folders from which they come, too",
                moved.len()
            )));
        }
        let lower = self.areas.lower()?;
        let open = |path: &EntryPath| {
            let root = lower.get(path.root).ok_or(Errno::BADF)?;
            root.open_entry(&path.names)
        };
        // Others may have removed some: these are missed when they are read.
        let readable = moved.iter().filter_map(|path| open(path).ok()).collect();
        Ok(a2g_capability::MemberFolders {
            base: self.base.try_clone()?,
            earlier: earlier.collect::<io::Result<_>>()?,
            roots: self.areas.for_look_ups()?,
            places,
            readable,
        })
    }

    /// Another handle of the folder that the process of the run writes.
    pub(super) fn upper(&self) -> io::Result<OwnedFd> {
        self.upper.try_clone()
    }

    /// The areas, which are the roots of the table.
    pub(super) fn areas(&self) -> &Areas {
        &self.areas
    }

    /// The contents that the run and its calls have made.
    pub(super) fn contents(&self) -> io::Result<Upper> {
        Ok(Upper::of_member(self.upper.try_clone()?, self.base.try_clone()?, 0, Vec::new()))
    }

    /// Takes the table that the process of the run has stored, if there is a new one.
    ///
    /// # Errors
    /// The reason why it is not taken. After [`TableRefused::NoRoom`] it can be taken later; after any other reason, none
    /// ever is.
    fn take_stored(&self) -> Result<(), TableRefused> {
        if let Some(reason) = &*self.broken.lock() {
            return Err(TableRefused::Unusable(reason.clone()));
        }
        let taken = self.try_take_stored();
        if let Err(TableRefused::Unusable(reason)) = &taken {
            *self.broken.lock() = Some(reason.clone());
        }
        taken
    }

    fn try_take_stored(&self) -> Result<(), TableRefused> {
        let latest = Arc::clone(&self.latest.lock());
        let kept = latest.counted.bytes();
        let Some(table) = read_table(&self.upper, self.areas.roots.len(), &self.owner, kept)? else {
            return Ok(());
        };
        let allows = |path: &EntryPath, act| self.granted.allows(&self.areas, path, act);
        Table::check_member(&latest, &table, allows).map_err(|error| {
            let path = error.path().and_then(|path| self.areas.guest_path(path));
            let shown = path.map_or_else(String::new, |path| format!(": `{}`", show_bytes(path.as_bytes())));
            TableRefused::Unusable(format!("their table is not true ({error}{shown}): check the tool"))
        })?;
        unlinkat(&self.upper, Upper::TABLE, AtFlags::empty())
            .map_err(|error| unreadable(&io::Error::from(error)))?;
        self.set_latest(Arc::new(table));
        Ok(())
    }

    /// Makes a table the one that the calls find, and removes the contents of ended calls that it does not name.
    ///
    /// No process looks for these any more: calls have the files one after another, so none is running that began with an
    /// earlier table. The run itself looks for none before it has this table, and what it has open stays open.
    fn set_latest(&self, table: Arc<CountedTable>) {
        let before = std::mem::replace(&mut *self.latest.lock(), Arc::clone(&table));
        if let Err(error) = before.discard_contents(&table, &self.base) {
            // They go with the folder of the program.
            tracing::warn!(%error, "contents that calls have replaced cannot be removed");
        }
    }

    /// The last table of a run whose process and calls have ended.
    ///
    /// # Errors
    /// The reason why there is none, as a clause.
    pub(super) fn finish(&self) -> Result<Arc<CountedTable>, String> {
        if self.turn.available_permits() == 0 {
            return Err("a call of the run still has its files".to_owned());
        }
        self.take_stored().map_err(|refused| refused.to_string())?;
        Ok(Arc::clone(&self.latest.lock()))
    }
}

impl CallTurn {
    /// Makes the call's folders. Returns it as a member of the program.
    ///
    /// # Errors
    /// If the table of the caller is not taken, or the folders cannot be made.
    pub(super) fn begin(&self, granted: GrantedRoots) -> Result<Member, StageError> {
        let caller = &self.caller;
        caller.take_stored()?;
        let made = || {
            let dir = make_folder(&caller.dir, &self.name)?;
            let upper = make_folder(&dir, UPPER)?;
            let from = caller.from;
            let own = [(caller.base.try_clone()?, from), (caller.upper.try_clone()?, from)];
            let above = caller.earlier.iter().map(|(folder, from)| Ok((folder.try_clone()?, *from)));
            let mut earlier = above.collect::<io::Result<Vec<_>>>()?;
            earlier.extend(own);
            let table = Arc::clone(&caller.latest.lock());
            let owner = Arc::clone(&caller.owner);
            Member::make(Arc::clone(&caller.areas), dir, upper, earlier, granted, table, owner)
        };
        made().map_err(|error: io::Error| StageError::Failed(format!("its folders cannot be made ({error})")))
    }

    /// Gives the changes of the call, which has succeeded, to its caller.
    ///
    /// # Errors
    /// The reason why the caller does not have them, as a clause.
    pub(super) fn hand_over(&self, member: &Member) -> Result<(), String> {
        let table = member.finish()?;
        let caller = &self.caller;
        let handed = || {
            table.move_contents(member.from, &member.contents()?, &caller.base)?;
            give_contents(&caller.base, member.from)?;
            write_table(&caller.base, &table)
        };
        if let Err(error) = handed() {
            // A content that was moved has a number that another call may give, too.
            if let Err(left) = remove_contents(&caller.base, member.from) {
                let reason = format!("what a call has left cannot be removed ({left})");
                *caller.broken.lock() = Some(reason);
            }
            return Err(format!("they cannot be handed to the calling run ({error})"));
        }
        caller.set_latest(table);
        Ok(())
    }
}

impl Drop for CallTurn {
    fn drop(&mut self) {
        let caller = Arc::clone(&self.caller);
        let name = std::mem::take(&mut self.name);
        let remove = move || {
            match remove_tree(&caller.dir, &name) {
                Ok(()) => {}
                // It was not made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // It goes with the folder of the program.
                Err(error) => {
                    tracing::warn!(%error, "the folder of a call's file changes cannot be removed");
                }
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_no_runtime) => remove(),
        }
    }
}

fn to_place(path: &EntryPath) -> Place {
    Place { root: path.root, names: path.names.iter().map(|name| name.as_bytes().to_vec()).collect() }
}

/// Replaces the table in a folder that the process of a run reads.
fn write_table(base: &OwnedFd, table: &Table) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(base, DRAFT, flags, TABLE_MODE)?);
    // The umask may have removed permissions.
    fchmod(&file, TABLE_MODE)?;
    let mut written = BufWriter::new(file);
    table.write_to(&mut written).map_err(io::Error::other)?;
    written.flush()?;
    Ok(renameat(base, DRAFT, base, Upper::TABLE)?)
}

/// Gives the contents with these numbers to the user of the run that reads them.
fn give_contents(base: &OwnedFd, from: u64) -> io::Result<()> {
    let owner = fstat(base)?;
    for_each_content(base, from, |name| {
        let file = statat(base, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (file.st_uid, file.st_gid) == (owner.st_uid, owner.st_gid) {
            return Ok(());
        }
        let user = Some(Uid::from_raw(owner.st_uid));
        let group = Some(Gid::from_raw(owner.st_gid));
        chownat(base, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
    })
}

/// Removes the contents with these numbers.
fn remove_contents(base: &OwnedFd, from: u64) -> io::Result<()> {
    for_each_content(base, from, |name| unlinkat(base, name, AtFlags::empty()))
}

fn for_each_content(
    base: &OwnedFd,
    from: u64,
    act: impl Fn(&CStr) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let folder = openat(base, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for entry in rustix::fs::Dir::new(folder)? {
        let entry = entry?;
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<u64>().ok());
        if number.is_some_and(|number| number >= from) {
            act(entry.file_name())?;
        }
    }
    Ok(())
}

/// Opens the contents of an earlier process's run.
pub(super) fn reopen_contents(dir: &OwnedFd) -> rustix::io::Result<Upper> {
    let upper = open_folder(dir, UPPER)?;
    match open_folder(dir, BASE) {
        Ok(base) => Ok(Upper::of_member(upper, base, 0, Vec::new())),
        Err(Errno::NOENT) => Ok(Upper::new(upper)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
