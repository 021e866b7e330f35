//! WASI preview 1 for core modules: wasmtime's implementation, with audited path calls.
//!
//! Every call that takes a path is replaced by one that forwards to wasmtime's and records refusals. A path below the
//! placeholder folder ([`PreopenKind::Outside`]) is refused with `EACCES`. Calls that use the host are charged to the
//! budgets before they are forwarded. Folders are listed by `listing.rs`, because wasmtime reads them whole at each
//! call.

use super::budgeted::MAX_RANDOM_BYTES;
use super::denials::Refusal;
use super::listing::Listing;
use super::state::{PreopenKind, StoreState};
use rustix::fs::FileType;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::component::Resource;
use wasmtime::{Caller, Extern, Linker};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView as _};
use wasmtime_wasi::p1::wasi_snapshot_preview1 as wasi;
use wasmtime_wasi::p2::bindings::filesystem::types::{HostDescriptor as _, PathFlags};
use wiggle::{GuestMemory, GuestPtr};

/// The first preopened descriptor.
const FIRST_PREOPEN: i32 = 3;
/// Maximum size of a path that is examined, in bytes: the kernel's own limit.
const MAX_PATH_BYTES: usize = 4096;

/// The preview 1 error numbers that this file returns or recognises.
mod errno {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const ACCES: i32 = 2;
    pub(super) const BADF: i32 = 8;
    pub(super) const ILSEQ: i32 = 25;
    pub(super) const INVAL: i32 = 28;
    pub(super) const IO: i32 = 29;
    pub(super) const NOENT: i32 = 44;
    pub(super) const NOTCAPABLE: i32 = 76;
    pub(super) const NOTSUP: i32 = 58;
    pub(super) const PERM: i32 = 63;
}

/// Links all of preview 1.
pub(super) fn add_to_linker(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p1::add_to_linker_async(linker, |state: &mut StoreState| &mut state.wasi)?;
    linker.allow_shadowing(true);
    link_path_calls(linker)?;
    link_writes(linker)?;
    link_listings(linker)?;
    link_random(linker)?;
    // wasmtime's own `proc_exit` traps at exit codes from 126 on.
    linker.func_wrap("wasi_snapshot_preview1", "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime_wasi::I32Exit(code).into())
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Replaces one call by an audited one: the descriptor and the path (pointer, length) are named, the remaining
/// arguments are forwarded. A `bare` path (pointer, length) loses its trailing slashes. A `checked` path may lead
/// neither to a file with several hard links nor to a FIFO or a device.
macro_rules! audited {
    (
        $linker:ident, $name:ident($($arg:ident: $ty:ty),*),
        changes $changes:expr, paths $(($fd:ident, $pointer:ident, $length:ident)),+ $(, makes $makes:ident)? $(, bare ($start:ident, $size:ident))? $(, checked ($lookup:ident $(, creates $oflags:ident)?))?
    ) => {
        $linker.func_wrap_async(
            "wasi_snapshot_preview1",
            stringify!($name),
            |mut caller: Caller<'_, StoreState>, ($($arg,)*): ($($ty,)*)| {
                Box::new(async move {
                    let paths = [$(PathArgument { fd: $fd, pointer: $pointer, length: $length }),+];
                    if paths.iter().any(|path| path.is_outside(caller.data())) {
                        return Ok(record(&mut caller, classify_refusal(errno::ACCES, $changes), &paths, errno::ACCES));
                    }
                    $(
                        if let Some(error) = $makes(&mut caller, &paths)? {
                            return Ok(error);
                        }
                    )?
                    let result = {
                        let (mut memory, state) = memory_and_state(&mut caller)?;
                        $(let $size = len_without_slashes(&memory, $start, $size);)?
                        $(
                            let [path] = &paths;
                            match stat_target(&memory, state, path, $lookup).await? {
                                Some(PathTarget { kind: REGULAR_FILE | SYMBOLIC_LINK, links: 2.. }) if !state.hard_links => {
                                    let refusal = Some(Refusal::HardLink);
                                    return Ok(record(&mut caller, refusal, &paths, errno::PERM));
                                }
                                Some(PathTarget { kind: DIRECTORY | REGULAR_FILE | SYMBOLIC_LINK, .. }) => {}
                                Some(_special) => return Ok(errno::NOTSUP),
                                $(None if $oflags & CREAT != 0 => state.stats.budget.charge_create()?,)?
                                None => {}
                            }
                        )?
                        wasi::$name(&mut state.wasi, &mut memory $(, $arg)*).await?
                    };
                    Ok(record(&mut caller, classify_refusal(result, $changes), &paths, result))
                })
            },
        )?;
    };
}

fn link_path_calls(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    audited!(
        linker,
        path_create_directory(fd: i32, path: i32, len: i32),
        changes true,
        paths (fd, path, len),
        makes spend_name
    );
    audited!(linker, path_filestat_get(fd: i32, flags: i32, path: i32, len: i32, out: i32), changes false, paths (fd, path, len));
    audited!(
        linker,
        path_filestat_set_times(fd: i32, flags: i32, path: i32, len: i32, atim: i64, mtim: i64, which: i32),
        changes true,
        paths (fd, path, len),
        checked (flags)
    );
    audited!(
        linker,
        path_link(old_fd: i32, flags: i32, old: i32, old_len: i32, new_fd: i32, new: i32, new_len: i32),
        changes true,
        paths (old_fd, old, old_len), (new_fd, new, new_len),
        makes check_link
    );
    audited!(
        linker,
        path_open(
            fd: i32, dirflags: i32, path: i32, len: i32, oflags: i32, rights: i64, inherited: i64, fdflags: i32, out: i32
        ),
        changes is_mutating(oflags, rights),
        paths (fd, path, len),
        checked (dirflags, creates oflags)
    );
    audited!(
        linker,
        path_readlink(fd: i32, path: i32, len: i32, buffer: i32, buffer_len: i32, out: i32),
        changes false,
        paths (fd, path, len)
    );
    audited!(
        linker,
        path_remove_directory(fd: i32, path: i32, len: i32),
        changes true,
        paths (fd, path, len),
        bare (path, len)
    );
    audited!(
        linker,
        path_rename(old_fd: i32, old: i32, old_len: i32, new_fd: i32, new: i32, new_len: i32),
        changes true,
        paths (old_fd, old, old_len), (new_fd, new, new_len)
    );
    audited!(
        linker,
        path_symlink(target: i32, target_len: i32, fd: i32, path: i32, len: i32),
        changes true,
        paths (fd, path, len),
        makes check_link
    );
    audited!(linker, path_unlink_file(fd: i32, path: i32, len: i32), changes true, paths (fd, path, len));
    linker.func_wrap_async(
        "wasi_snapshot_preview1",
        "poll_oneoff",
        |mut caller: Caller<'_, StoreState>, (input, output, count, out): (i32, i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, state) = memory_and_state(&mut caller)?;
                state.stats.budget.check_poll(count.cast_unsigned().into())?;
                // For a single clock, wasmtime would sleep on this thread, where neither the deadline nor a
                // cancellation ends the sleep. This code therefore sleeps itself, and then calls wasmtime with a
                // timeout of zero to write the event.
                let timeout = if count == 1 { ClockTimeout::read(&memory, input) } else { None };
                let timeout = timeout.filter(|timeout| timeout.nanos > MAX_BLOCKING_SLEEP_NANOS);
                if let Some(ClockTimeout { address, nanos }) = timeout {
                    tokio::time::sleep(Duration::from_nanos(nanos)).await;
                    memory.write(address, 0)?;
                    let result =
                        wasi::poll_oneoff(&mut state.wasi, &mut memory, input, output, count, out).await;
                    memory.write(address, nanos)?;
                    return result;
                }
                wasi::poll_oneoff(&mut state.wasi, &mut memory, input, output, count, out).await
            })
        },
    )?;
    Ok(())
}

/// Replaces the calls that write, to charge them to the budget, and those that replace descriptors.
fn link_writes(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    const MODULE: &str = "wasi_snapshot_preview1";
    linker.func_wrap_async(
        MODULE,
        "fd_write",
        |mut caller: Caller<'_, StoreState>, (fd, iovs, count, out): (i32, i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, state) = memory_and_state(&mut caller)?;
                spend_write(&memory, state, fd, iovs, count, None).await?;
                wasi::fd_write(&mut state.wasi, &mut memory, fd, iovs, count, out).await
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_pwrite",
        |mut caller: Caller<'_, StoreState>, (fd, iovs, count, offset, out): (i32, i32, i32, i64, i32)| {
            Box::new(async move {
                let (mut memory, state) = memory_and_state(&mut caller)?;
                spend_write(&memory, state, fd, iovs, count, Some(offset.cast_unsigned())).await?;
                wasi::fd_pwrite(&mut state.wasi, &mut memory, fd, iovs, count, offset, out).await
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_filestat_set_size",
        |mut caller: Caller<'_, StoreState>, (fd, size): (i32, i64)| {
            Box::new(async move {
                let (mut memory, state) = memory_and_state(&mut caller)?;
                state.stats.budget.charge_write(size.cast_unsigned())?;
                wasi::fd_filestat_set_size(&mut state.wasi, &mut memory, fd, size).await
            })
        },
    )?;
    linker.func_wrap_async(MODULE, "fd_close", |mut caller: Caller<'_, StoreState>, (fd,): (i32,)| {
        Box::new(async move {
            let (mut memory, state) = memory_and_state(&mut caller)?;
            state.renumbered |= fd < FIRST_PREOPEN;
            wasi::fd_close(&mut state.wasi, &mut memory, fd).await
        })
    })?;
    linker.func_wrap_async(
        MODULE,
        "fd_renumber",
        |mut caller: Caller<'_, StoreState>, (fd, to): (i32, i32)| {
            Box::new(async move {
                let (mut memory, state) = memory_and_state(&mut caller)?;
                state.renumbered |= fd < FIRST_PREOPEN || to < FIRST_PREOPEN;
                wasi::fd_renumber(&mut state.wasi, &mut memory, fd, to).await
            })
        },
    )?;
    Ok(())
}

/// Replaces `fd_readdir` by an implementation with [`Listing`].
fn link_listings(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    linker.func_wrap_async(
        "wasi_snapshot_preview1",
        "fd_readdir",
        |mut caller: Caller<'_, StoreState>, (fd, buffer, length, cookie, out): (i32, i32, i32, i64, i32)| {
            Box::new(async move {
                let (mut memory, state) = memory_and_state(&mut caller)?;
                let (folder, hash) = match open_folder(state, fd).await? {
                    Ok(folder) => folder,
                    Err(error) => return Ok(error),
                };
                let buffer = GuestPtr::<u8>::new(buffer.cast_unsigned()).as_array(length.cast_unsigned());
                match list_folder(&mut memory, state, &folder, hash, buffer, cookie.cast_unsigned()).await? {
                    Ok(length) => memory.write(GuestPtr::new(out.cast_unsigned()), length)?,
                    Err(error) => return Ok(error),
                }
                Ok(errno::SUCCESS)
            })
        },
    )?;
    Ok(())
}

/// Finds the open folder of a descriptor, and its inode number as preview 1 reports it. Returns an error number if the
/// descriptor is not a folder.
async fn open_folder(
    state: &mut StoreState,
    fd: i32,
) -> wasmtime::Result<Result<(Resource<Descriptor>, u64), i32>> {
    // The table from descriptors to handles is private to wasmtime. But `fd_filestat_get` returns the hash of device
    // and inode, and any open handle with the same hash is the same folder.
    let mut scratch = vec![0; FILESTAT_BYTES];
    let mut scratch_memory = GuestMemory::Unshared(&mut scratch);
    let error = wasi::fd_filestat_get(&mut state.wasi, &mut scratch_memory, fd, 0).await?;
    if error != errno::SUCCESS {
        return Ok(Err(error));
    }
    if scratch.get(TYPE) != Some(&DIRECTORY) {
        return Ok(Err(errno::BADF));
    }
    let hash = read_u64(&scratch, INODE);
    let handles = u32::try_from(state.wasi.ctx().table.max_capacity()).unwrap_or(u32::MAX);
    for handle in 0..handles {
        let open = || Resource::<Descriptor>::new_borrow(handle);
        if !matches!(state.wasi.ctx().table.get(&open()), Ok(Descriptor::Dir(_))) {
            continue;
        }
        if state.filesystem().metadata_hash(open()).await.is_ok_and(|known| known.lower == hash) {
            return Ok(Ok((open(), hash)));
        }
    }
    Err(wasmtime::Error::msg("an open folder has no handle"))
}

/// Writes as many entries of a folder as fit `buffer`, beginning at `cookie`. Returns the number of bytes, or an error
/// number.
async fn list_folder(
    memory: &mut GuestMemory<'_>,
    state: &mut StoreState,
    folder: &Resource<Descriptor>,
    hash: u64,
    buffer: GuestPtr<[u8]>,
    cookie: u64,
) -> wasmtime::Result<Result<u32, i32>> {
    let Descriptor::Dir(dir) = state.wasi.ctx().table.get(folder)? else { return Ok(Err(errno::BADF)) };
    let mut listing = match Listing::open(&Arc::clone(&dir.dir), cookie) {
        Ok(listing) => listing,
        Err(error) => return Ok(Err(errno_of(&error))),
    };
    let mut offset = 0;
    while offset < buffer.len() {
        let entry = match listing.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => return Ok(Err(errno_of(&error))),
        };
        let is_dots = entry.is_dots();
        let Ok(name) = entry.name.into_string() else { return Ok(Err(errno::ILSEQ)) };
        let inode = if is_dots {
            hash
        } else {
            // 0 stands for an unknown inode number.
            let folder = Resource::new_borrow(folder.rep());
            let known = state.filesystem().metadata_hash_at(folder, PathFlags::empty(), name.clone()).await;
            known.map_or(0, |known| known.lower)
        };
        let mut dirent = Vec::with_capacity(DIRENT_BYTES + name.len());
        dirent.extend(entry.next.to_le_bytes());
        dirent.extend(inode.to_le_bytes());
        dirent.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
        dirent.extend([filetype(entry.kind), 0, 0, 0]);
        dirent.extend(name.as_bytes());
        let remaining = usize::try_from(buffer.len() - offset).unwrap_or(usize::MAX);
        // Preview 1 requires a truncated last entry, which the guest reads again, so only whole entries are charged.
        if dirent.len() <= remaining && !is_dots {
            state.stats.budget.charge_entry()?;
        }
        dirent.truncate(remaining);
        let length = u32::try_from(dirent.len()).unwrap_or(u32::MAX);
        let Some(at) = buffer.get_range(offset..offset.saturating_add(length)) else { break };
        memory.copy_from_slice(&dirent, at)?;
        offset += length;
    }
    Ok(Ok(offset))
}

/// The size of preview 1's `dirent` without the name, in bytes.
const DIRENT_BYTES: usize = 24;

fn filetype(kind: FileType) -> u8 {
    match kind {
        FileType::Unknown | FileType::Fifo => 0,
        FileType::BlockDevice => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => DIRECTORY,
        FileType::RegularFile => REGULAR_FILE,
        FileType::Socket => 6,
        FileType::Symlink => SYMBOLIC_LINK,
    }
}

fn errno_of(error: &std::io::Error) -> i32 {
    match error.raw_os_error() {
        Some(libc::EACCES) => errno::ACCES,
        Some(libc::EINVAL) => errno::INVAL,
        Some(libc::ENOENT) => errno::NOENT,
        Some(_) | None => errno::IO,
    }
}

/// Replaces `random_get`, to charge it to the budget.
fn link_random(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "wasi_snapshot_preview1",
        "random_get",
        |mut caller: Caller<'_, StoreState>, buffer: i32, length: i32| {
            let (mut memory, state) = memory_and_state(&mut caller)?;
            let bytes = length.cast_unsigned().into();
            // A larger call is refused by wasmtime and delivers no bytes, so it is not charged.
            if bytes <= MAX_RANDOM_BYTES {
                state.stats.budget.charge_random(bytes)?;
            }
            wasi::random_get(&mut state.wasi, &mut memory, buffer, length)
        },
    )?;
    Ok(())
}

/// Charges a write of a list of buffers, at `offset` or at the descriptor's position: the bytes written, or the growth
/// of the file if that is larger.
async fn spend_write(
    memory: &GuestMemory<'_>,
    state: &mut StoreState,
    fd: i32,
    iovs: i32,
    count: i32,
    offset: Option<u64>,
) -> wasmtime::Result<()> {
    const IOVEC_BYTES: u32 = 8;
    // Standard output and error have the output limit, unless the guest has put a file in their place.
    if (0..FIRST_PREOPEN).contains(&fd) && !state.renumbered {
        return Ok(());
    }
    let mut total = 0u64;
    for index in 0..count.cast_unsigned() {
        // A list that is not entirely in memory is refused by the call itself.
        let at = index.checked_mul(IOVEC_BYTES).and_then(|at| at.checked_add(iovs.cast_unsigned()));
        let length = at.and_then(|at| at.checked_add(4)).map(GuestPtr::<u32>::new);
        let Some(Ok(length)) = length.map(|length| memory.read(length)) else { break };
        total = total.saturating_add(length.into());
    }
    // The results of these two calls go to separate memory, so that the guest's memory stays unchanged.
    let mut scratch = vec![0; FILESTAT_BYTES];
    let error = {
        let mut scratch_memory = GuestMemory::Unshared(&mut scratch);
        wasi::fd_filestat_get(&mut state.wasi, &mut scratch_memory, fd, 0).await?
    };
    let size = if error == 0 { read_u64(&scratch, SIZE) } else { 0 };
    let at = match offset {
        Some(offset) => offset,
        None => {
            let mut scratch_memory = GuestMemory::Unshared(&mut scratch);
            let error = wasi::fd_tell(&mut state.wasi, &mut scratch_memory, fd, 0)?;
            if error == 0 { read_u64(&scratch, 0) } else { 0 }
        }
    };
    let grown = at.saturating_add(total).saturating_sub(size);
    Ok(state.stats.budget.charge_write(total.max(grown))?)
}

/// The size of preview 1's `filestat` in bytes; the offsets of its fields follow.
const FILESTAT_BYTES: usize = 64;
const INODE: usize = 8;
const TYPE: usize = 16;
const LINKS: usize = 24;
const SIZE: usize = 32;

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The flag of `path_open` that creates a file.
const CREAT: i32 = 1;

fn is_mutating(oflags: i32, rights: i64) -> bool {
    const TRUNC: i32 = 8;
    const FD_WRITE: i64 = 1 << 6;
    oflags & (CREAT | TRUNC) != 0 || rights & FD_WRITE != 0
}

/// Maximum sleep that is left to wasmtime. The runtime's timers have no finer resolution.
const MAX_BLOCKING_SLEEP_NANOS: u64 = 1_000_000;

/// The relative timeout of a clock subscription.
struct ClockTimeout {
    /// The timeout's address in guest memory.
    address: GuestPtr<u64>,
    nanos: u64,
}

impl ClockTimeout {
    /// Reads a `subscription`; `None` unless it is for a clock and has a relative timeout.
    fn read(memory: &GuestMemory<'_>, subscription: i32) -> Option<Self> {
        const TAG: u32 = 8;
        const CLOCK: u8 = 0;
        const TIMEOUT: u32 = 24;
        const FLAGS: u32 = 40;
        const ABSOLUTE: u16 = 1;
        let start = subscription.cast_unsigned();
        let tag = memory.read(GuestPtr::<u8>::new(start.checked_add(TAG)?)).ok()?;
        let flags = memory.read(GuestPtr::<u16>::new(start.checked_add(FLAGS)?)).ok()?;
        let address = GuestPtr::new(start.checked_add(TIMEOUT)?);
        let nanos = memory.read(address).ok()?;
        (tag == CLOCK && flags & ABSOLUTE == 0).then_some(Self { address, nanos })
    }
}

/// The target of a path.
struct PathTarget {
    kind: u8,
    /// The number of hard links to the target.
    links: u64,
}

/// The target of a path; `None` if it cannot be determined, in which case the call itself fails.
// Opening a FIFO or a device could block this thread, and setting a file's times also opens the file.
async fn stat_target(
    memory: &GuestMemory<'_>,
    state: &mut StoreState,
    argument: &PathArgument,
    lookup: i32,
) -> wasmtime::Result<Option<PathTarget>> {
    let GuestMemory::Unshared(memory) = memory else { return Ok(None) };
    let Some(path) = argument.bytes(memory) else { return Ok(None) };
    // Path and result are in separate memory, so that the guest's memory stays unchanged.
    let mut scratch = vec![0; FILESTAT_BYTES];
    let length = path.len();
    scratch.extend_from_slice(path);
    let mut scratch_memory = GuestMemory::Unshared(&mut scratch);
    let (Ok(start), Ok(length)) = (i32::try_from(FILESTAT_BYTES), i32::try_from(length)) else {
        return Ok(None);
    };
    let error =
        wasi::path_filestat_get(&mut state.wasi, &mut scratch_memory, argument.fd, lookup, start, length, 0)
            .await?;
    let target = scratch.get(TYPE).map(|kind| PathTarget { kind: *kind, links: read_u64(&scratch, LINKS) });
    Ok(target.filter(|_| error == 0))
}

/// The file types of preview 1 that may be opened or changed, or that lead to such a file.
const DIRECTORY: u8 = 3;
const REGULAR_FILE: u8 = 4;
const SYMBOLIC_LINK: u8 = 7;

/// A path argument: a descriptor, and a text in guest memory.
struct PathArgument {
    fd: i32,
    pointer: i32,
    length: i32,
}

impl PathArgument {
    fn is_outside(&self, state: &StoreState) -> bool {
        preopen(state, self.fd).is_some_and(|preopen| preopen.kind == PreopenKind::Outside)
    }

    fn read(&self, memory: &[u8]) -> Option<String> {
        self.bytes(memory).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    fn bytes<'a>(&self, memory: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(self.pointer.cast_unsigned()).ok()?;
        let length = usize::try_from(self.length.cast_unsigned()).ok()?;
        memory.get(start..start.checked_add(length.min(MAX_PATH_BYTES))?)
    }
}

fn preopen(state: &StoreState, fd: i32) -> Option<&super::state::Preopen> {
    state.preopens.get(usize::try_from(fd.checked_sub(FIRST_PREOPEN)?).ok()?)
}

/// The guest's memory and the store's state, as preview 1 calls need them.
fn memory_and_state<'a>(
    caller: &'a mut Caller<'_, StoreState>,
) -> wasmtime::Result<(GuestMemory<'a>, &'a mut StoreState)> {
    use wasi::WasiSnapshotPreview1 as _;
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Err(wasmtime::Error::msg("the module exports no memory"));
    };
    // wasmtime-wasi's own linking passes the store's limit on copied bytes to the context; calls that are linked
    // again have to do the same.
    let fuel = wasmtime::AsContextMut::as_context_mut(caller).hostcall_fuel();
    let (memory, state) = memory.data_and_store_mut(caller);
    state.wasi.set_hostcall_fuel(fuel);
    Ok((GuestMemory::Unshared(memory), state))
}

/// The length of a path without trailing slashes.
// `folder/` has to be removed like `folder`, but wasmtime removes `folder/.`, which no system allows
// (bytecodealliance/wasmtime#11524).
fn len_without_slashes(memory: &GuestMemory<'_>, pointer: i32, length: i32) -> i32 {
    let (GuestMemory::Unshared(memory), Ok(start), Ok(size)) =
        (memory, usize::try_from(pointer.cast_unsigned()), usize::try_from(length.cast_unsigned()))
    else {
        return length;
    };
    let end = start.checked_add(size).filter(|_| size <= MAX_PATH_BYTES);
    let path = end.and_then(|end| memory.get(start..end)).unwrap_or_default();
    let slashes = path.iter().skip(1).rev().take_while(|byte| **byte == b'/').count();
    i32::try_from(slashes).map_or(length, |slashes| length - slashes)
}

/// Charges one created name.
fn spend_name(caller: &mut Caller<'_, StoreState>, _: &[PathArgument]) -> wasmtime::Result<Option<i32>> {
    caller.data().stats.budget.charge_create()?;
    Ok(None)
}

/// Refuses to create a link if the operator does not allow links; charges one name otherwise.
fn check_link(caller: &mut Caller<'_, StoreState>, paths: &[PathArgument]) -> wasmtime::Result<Option<i32>> {
    if caller.data().links {
        return spend_name(caller, paths);
    }
    Ok(Some(record(caller, Some(Refusal::Link), paths, errno::PERM)))
}

/// The refusal that an error number stands for, if any. `changes` is `true` for mutating calls.
fn classify_refusal(result: i32, changes: bool) -> Option<Refusal> {
    match result {
        errno::ACCES => Some(Refusal::Access),
        errno::PERM | errno::NOTCAPABLE if changes => Some(Refusal::Write),
        errno::PERM | errno::NOTCAPABLE => Some(Refusal::Read),
        _allowed => None,
    }
}

/// Records a refusal and returns `result`.
fn record(
    caller: &mut Caller<'_, StoreState>,
    refusal: Option<Refusal>,
    paths: &[PathArgument],
    result: i32,
) -> i32 {
    let Some(refusal) = refusal else { return result };
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return result;
    };
    let (memory, state) = memory.data_and_store_mut(caller);
    let paths = paths.iter().filter_map(|path| Some((preopen(state, path.fd), path.read(memory)?)));
    state.stats.denials.record_refusal(refusal, paths.collect());
    result
}
