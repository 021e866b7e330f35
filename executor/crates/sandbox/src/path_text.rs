//! Replaces the calls of `wasi:filesystem` that take a path, so that a path that is not UTF-8 results in the error
//! `illegal-byte-sequence`. wasmtime's own linking decodes the path before the call, and traps if that fails.

use super::filesystem::AuditedFs;
use super::state::StoreState;
use std::borrow::Cow;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, WasmStr};
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, ErrorCode, Host as _, HostDescriptor as _, NewTimestamp, OpenFlags, PathFlags,
};

/// The interface in the version that wasmtime-wasi links; the tests in `hostile::names` fail when it changes.
const TYPES: &str = "wasi:filesystem/types@0.2.12";

/// Links one call again with its own parameters; `text` names those that are paths.
macro_rules! text_paths {
    ($types:ident: $($call:ident = $name:literal ($($arg:ident: $ty:ty),*) text $($path:ident),+;)*) => {
        $($types.func_wrap_async(
            concat!("[method]descriptor.", $name),
            |mut caller: StoreContextMut<'_, StoreState>, ($($arg,)*): ($($ty,)*)| {
                Box::new(async move {
                    $(let Ok($path) = $path.to_str(&caller).map(Cow::into_owned) else {
                        return Ok((Err(ErrorCode::IllegalByteSequence),));
                    };)+
                    let mut files = AuditedFs(caller.data_mut());
                    Ok((match files.$call($($arg),*).await {
                        Ok(value) => Ok(value),
                        Err(error) => Err(files.convert_error_code(error)?),
                    },))
                })
            },
        )?;)*
    };
}

/// Replaces the path calls of `linker`.
pub(super) fn add_to_linker(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    type Fd = Resource<Descriptor>;
    linker.allow_shadowing(true);
    let mut types = linker.instance(TYPES)?;
    text_paths! { types:
        create_directory_at = "create-directory-at" (fd: Fd, path: WasmStr) text path;
        stat_at = "stat-at" (fd: Fd, flags: PathFlags, path: WasmStr) text path;
        set_times_at = "set-times-at"
            (fd: Fd, flags: PathFlags, path: WasmStr, accessed: NewTimestamp, modified: NewTimestamp) text path;
        link_at = "link-at" (fd: Fd, flags: PathFlags, old: WasmStr, new_fd: Fd, new: WasmStr) text old, new;
        open_at = "open-at" (fd: Fd, flags: PathFlags, path: WasmStr, open: OpenFlags, mode: DescriptorFlags) text path;
        readlink_at = "readlink-at" (fd: Fd, path: WasmStr) text path;
        remove_directory_at = "remove-directory-at" (fd: Fd, path: WasmStr) text path;
        rename_at = "rename-at" (fd: Fd, old: WasmStr, new_fd: Fd, new: WasmStr) text old, new;
        symlink_at = "symlink-at" (fd: Fd, target: WasmStr, path: WasmStr) text target, path;
        unlink_file_at = "unlink-file-at" (fd: Fd, path: WasmStr) text path;
        metadata_hash_at = "metadata-hash-at" (fd: Fd, flags: PathFlags, path: WasmStr) text path;
    }
    linker.allow_shadowing(false);
    Ok(())
}
