//! The names of entries, and the paths of entries below a root.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;

/// The longest name that Linux allows, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The maximum number of names of a path that is read from its stored form: as many as a path of Linux has (`PATH_MAX`).
pub(crate) const MAX_PATH_NAMES: usize = 2048;

/// The name of one entry of a folder: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`. Its clones share them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<OsStr>);

/// The reason why bytes are not a [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// There are no bytes.
    #[error("the name of an entry is empty")]
    Empty,
    /// There are too many bytes.
    #[error("the name of an entry is longer than Linux's limit of {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// The bytes lead to another folder, or end a path.
    #[error("the name of an entry is `.` or `..`, or contains `/` or NUL")]
    Reserved,
}

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NameError`] says which rule the name breaks.
    pub fn new(name: impl AsRef<OsStr>) -> Result<Self, NameError> {
        let text = name.as_ref();
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            Err(NameError::Empty)
        } else if bytes.len() > MAX_NAME_BYTES {
            Err(NameError::TooLong)
        } else if matches!(bytes, b"." | b"..") || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            Err(NameError::Reserved)
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The name for system calls.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// The bytes of the name, which need not be UTF-8.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(self.as_bytes()))
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes =
            unescape(&text).ok_or_else(|| D::Error::custom("a name is not escaped as it should be"))?;
        Self::new(OsString::from_vec(bytes)).map_err(D::Error::custom)
    }
}

/// The path of an entry: a root, and the names that lead from it to the entry. A root itself has no names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryPath {
    /// The index of the root.
    pub root: usize,
    /// The names below the root, the outermost first.
    #[serde(deserialize_with = "read_names")]
    pub names: Vec<Name>,
}

fn read_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Name>, D::Error> {
    read_list(deserializer, MAX_PATH_NAMES)
}

/// Reads a list of at most `max` items, and no further.
pub(crate) fn read_list<'de, D, T>(deserializer: D, max: usize) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T>(usize, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "a list of at most {} items", self.0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() >= self.0 {
                    return Err(A::Error::custom(format_args!("a list has more than {} items", self.0)));
                }
                list.push(item);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(List(max, PhantomData))
}

impl EntryPath {
    /// The path of a root.
    #[must_use]
    pub const fn of_root(root: usize) -> Self {
        Self { root, names: Vec::new() }
    }

    /// The path of the entry `name` of the folder that has this path.
    #[must_use]
    pub fn child(&self, name: &Name) -> Self {
        let mut names = Vec::with_capacity(self.names.len().saturating_add(1));
        names.extend_from_slice(&self.names);
        names.push(name.clone());
        Self { root: self.root, names }
    }

    /// The folder that contains the entry, and the entry's name in it; `None` for a root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &Name)> {
        let (name, names) = self.names.split_last()?;
        Some((Self { root: self.root, names: names.to_vec() }, name))
    }
}

/// Writes bytes as text: letters, digits and most punctuation as they are, every other byte as `%` and two hexadecimal
/// digits. Equal texts mean equal bytes, and no two texts mean the same bytes.
pub(crate) fn escape(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            let _a_string_takes_all = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Reads what [`escape`] wrote; `None` for any other text.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if is_plain(first) {
            bytes.push(first);
            rest = after;
        } else {
            let (digits, after) = (first == b'%').then(|| after.split_at_checked(2)).flatten()?;
            let is_canonical = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
            let digits = std::str::from_utf8(digits).ok().filter(|_| is_canonical)?;
            let byte = u8::from_str_radix(digits, 16).ok()?;
            bytes.push((!is_plain(byte)).then_some(byte)?);
            rest = after;
        }
    }
    Some(bytes)
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'%' | b'"' | b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_component() {
        for (name, error) in [
            (&b""[..], NameError::Empty),
            (b".", NameError::Reserved),
            (b"..", NameError::Reserved),
            (b"a/b", NameError::Reserved),
            (b"a\0", NameError::Reserved),
            (&[b'x'; 256], NameError::TooLong),
        ] {
            assert_eq!(Name::new(OsStr::from_bytes(name)), Err(error));
        }
        for name in [&b"..."[..], b".a", b"\xff", &[b'x'; 255]] {
            assert_eq!(Name::new(OsStr::from_bytes(name)).unwrap().as_bytes(), name);
        }
    }

    #[test]
    fn each_byte_has_one_spelling() {
        let all = (0..=255).collect::<Vec<u8>>();
        assert_eq!(unescape(&escape(&all)), Some(all));
        for wrong in ["%41", "%0a", "%0", "%", "\n", "\u{e9}", "%+1"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }
}
