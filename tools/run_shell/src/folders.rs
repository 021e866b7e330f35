//! The names of the granted folders.

use std::path::PathBuf;

/// The folders that the sandbox grants to this run, in its order.
#[cfg(target_family = "wasm")]
pub(crate) fn granted() -> Vec<PathBuf> {
    /// The number of the first granted folder: those before it are the standard streams.
    const FIRST: wasip1::Fd = 3;
    let mut folders = Vec::new();
    // The folders have consecutive numbers, and the first other number is refused.
    while let Some(folder) = u32::try_from(folders.len()).ok().and_then(|index| name(FIRST + index)) {
        folders.push(folder);
    }
    folders
}

#[cfg(target_family = "wasm")]
#[allow(unsafe_code, reason = "the standard library has no function for the names of the granted folders")]
fn name(number: wasip1::Fd) -> Option<PathBuf> {
    // SAFETY: the call has no pointer. A number that is not a granted folder is an error.
    let length = unsafe { wasip1::fd_prestat_get(number) }.ok().map(|folder| {
        // SAFETY: folders are the only kind of what preview 1 describes here.
        unsafe { folder.u.dir.pr_name_len }
    })?;
    let mut name = vec![0; length];
    // SAFETY: the buffer has the length that is passed.
    unsafe { wasip1::fd_prestat_dir_name(number, name.as_mut_ptr(), length) }.ok()?;
    String::from_utf8(name).ok().map(PathBuf::from)
}

/// The folder of a native test.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn granted() -> Vec<PathBuf> {
    vec![std::env::temp_dir()]
}
