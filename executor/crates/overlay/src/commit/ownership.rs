//! What an entry has beside its content, mode and time. An undo that replaces or removes a committed entry would lose
//! what others have set of it since.

use super::copy::{MAX_XATTR_BYTES, open_folder, xattr_names};
use crate::current::open_regular;
use crate::hash::Sha256;
use crate::seen::{EntryKind, kind_of, stat_at};
use rustix::fs::fgetxattr;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::AsFd;

/// The attributes that the kernel derives from a mode, such as access lists. Of a folder they change with the mode that
/// the commit sets last; a file has its mode before it is placed.
const DERIVED_PREFIX: &[u8] = b"system.";

/// Owner, group, number of names and extended attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ownership {
    user: u32,
    group: u32,
    /// The number of hard links; `None` for a folder, of which it can change with the folders in it.
    names: Option<u64>,
    /// The hash of the extended attributes; `None` for a link, and for what this process may not read.
    xattrs: Option<Sha256>,
}

impl Ownership {
    /// Looks at an entry of a folder, without following a link.
    pub(super) fn look(folder: impl AsFd, name: &OsStr) -> Result<Self, Errno> {
        let stat = stat_at(&folder, name)?;
        let kind = kind_of(&stat);
        let opened = match kind {
            EntryKind::File => open_regular(&folder, name).map(|(file, _)| Some(file)),
            EntryKind::Folder => open_folder(&folder, name).map(Some),
            EntryKind::Link | EntryKind::Other => Ok(None),
        };
        let xattrs = match opened {
            Ok(Some(entry)) => Some(hash_xattrs(&entry, kind)?),
            Ok(None) | Err(Errno::ACCESS) => None,
            Err(error) => return Err(error),
        };
        let names = (kind != EntryKind::Folder).then_some(stat.stx_nlink.into());
        Ok(Self { user: stat.stx_uid, group: stat.stx_gid, names, xattrs })
    }
}

/// Hashes the extended attributes of an entry, in the order of their names.
fn hash_xattrs(entry: &File, kind: EntryKind) -> Result<Sha256, Errno> {
    let list = xattr_names(entry)?;
    let all = list.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    let is_own = |name: &&CStr| kind != EntryKind::Folder || !name.to_bytes().starts_with(DERIVED_PREFIX);
    let mut names = all.filter(is_own).collect::<Vec<_>>();
    names.sort_unstable();
    let mut bytes = Vec::new();
    let mut value = if names.is_empty() { Vec::new() } else { vec![0; MAX_XATTR_BYTES] };
    for name in names {
        let length = fgetxattr(entry, name, &mut *value)?;
        bytes.extend_from_slice(name.to_bytes_with_nul());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(value.get(..length).unwrap_or_default());
    }
    Ok(Sha256::of_bytes(&bytes))
}
