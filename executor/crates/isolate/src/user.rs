//! The user of a run's process, if the server is root.
//!
//! The user is the owner of the run's folders, so that new files belong to the owner of their folder. It is `nobody` if
//! there are no folders or all of them are world-writable. The run stays root, with only its rights over files, if a
//! folder is accessible only to root or the folders belong to different users: any other user would be refused some of
//! the granted files.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::AsFd;

/// The ids of a user and its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// A text that does not name a user. The message is a clause whose subject is the setting.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The text is neither a name nor two numbers.
    #[error("is `{0}`: write the name of a user, or `UID:GID`")]
    Form(String),
    /// This machine has no such user.
    #[error("is `{0}`, and `/etc/passwd` has no such user: write the name of a listed user, or `UID:GID`")]
    Unknown(String),
    /// The list of users cannot be read.
    #[error("names a user, and `/etc/passwd` cannot be read: {0}")]
    Read(#[from] std::io::Error),
}

/// The rule that selects a run's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    /// The server's own user: the server is not root, or may not change its user.
    Server,
    /// The owner of the run's folders, by the rule of this module.
    Owner,
    /// This user, for every run.
    User(User),
}

/// The users that can use a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Its owner, which is not root.
    User(User),
    /// Every user: root owns it, and it is world-readable and world-writable.
    Everybody,
    /// Only root.
    Root,
}

impl User {
    /// The user `nobody`, with the ids that most systems use.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };

    /// The user of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Makes this user the owner of an open folder.
    pub(super) fn own(self, folder: impl AsFd) -> rustix::io::Result<()> {
        let uid = rustix::fs::Uid::from_raw(self.uid);
        let gid = rustix::fs::Gid::from_raw(self.gid);
        rustix::fs::fchown(folder, Some(uid), Some(gid))
    }

    /// Reads `UID:GID`, or the name of a user of this machine.
    ///
    /// # Ambient Authority
    /// Reads `/etc/passwd` for a name.
    ///
    /// # Errors
    /// [`UserError`] if the text is not valid or the machine has no such user.
    pub fn parse(text: &str) -> Result<Self, UserError> {
        // The kernel reads the highest number as "do not change".
        let id = |digits: &str| digits.parse::<u32>().ok().filter(|id| *id != u32::MAX);
        if let Some((uid, gid)) = text.split_once(':') {
            let ids = id(uid).zip(id(gid)).ok_or_else(|| UserError::Form(text.to_owned()))?;
            return Ok(Self { uid: ids.0, gid: ids.1 });
        }
        if text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(UserError::Form(text.to_owned()));
        }
        let passwd = std::fs::read_to_string("/etc/passwd")?;
        let user = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let _password = fields.next()?;
            let ids = (id(fields.next()?)?, id(fields.next()?)?);
            (name == text).then_some(Self { uid: ids.0, gid: ids.1 })
        });
        user.ok_or_else(|| UserError::Unknown(text.to_owned()))
    }

    /// `true` if a folder of `owner` with this mode lets this user, who has no other group, create files in it.
    #[must_use]
    pub fn has_write_access(self, owner: Self, mode: u32) -> bool {
        const WRITE_AND_SEARCH: u32 = 0o3;
        let shift = if self.uid == owner.uid {
            6
        } else if self.gid == owner.gid {
            3
        } else {
            0
        };
        (mode >> shift) & WRITE_AND_SEARCH == WRITE_AND_SEARCH
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl Owner {
    /// The users that can use an open folder. A folder without a readable status counts as [`Self::Everybody`], which
    /// gives the run the fewest rights.
    #[must_use]
    pub fn of(folder: impl AsFd) -> Self {
        const OPEN_TO_EVERYBODY: u32 = 0o007;
        match rustix::fs::fstat(folder) {
            Ok(stat) if stat.st_uid != 0 => Self::User(User { uid: stat.st_uid, gid: stat.st_gid }),
            Ok(stat) if stat.st_mode & OPEN_TO_EVERYBODY != OPEN_TO_EVERYBODY => Self::Root,
            Ok(_) | Err(_) => Self::Everybody,
        }
    }
}

impl RunAs {
    /// The user of a run with these folders; `None` is the server's own user.
    #[must_use]
    pub fn user_for(self, folders: impl IntoIterator<Item = Owner>) -> Option<User> {
        let mut run_user = None;
        match self {
            Self::Server => return None,
            Self::User(user) => return (user.uid != 0).then_some(user),
            Self::Owner => {}
        }
        for owner in folders {
            match (owner, run_user) {
                (Owner::Everybody, _) => {}
                (Owner::User(user), None) => run_user = Some(user),
                (Owner::User(User { uid, .. }), Some(User { uid: other, .. })) if uid == other => {}
                (Owner::User(_), Some(_)) | (Owner::Root, _) => return None,
            }
        }
        Some(run_user.unwrap_or(User::NOBODY))
    }

    /// Returns `true` if a run may get a user other than the server's.
    #[must_use]
    pub fn changes_users(self) -> bool {
        !matches!(self, Self::Server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_owner_of_its_folders() {
        let [alice, bob] = [1000, 1001].map(|uid| User { uid, gid: 100 });
        let other_group = User { gid: 200, ..alice };
        let cases: [(&[Owner], Option<User>); 8] = [
            (&[], Some(User::NOBODY)),
            (&[Owner::Everybody], Some(User::NOBODY)),
            (&[Owner::User(alice)], Some(alice)),
            (&[Owner::Everybody, Owner::User(alice), Owner::User(other_group)], Some(alice)),
            (&[Owner::User(alice), Owner::User(bob)], None),
            (&[Owner::Root], None),
            (&[Owner::User(alice), Owner::Root], None),
            (&[Owner::Root, Owner::Everybody], None),
        ];
        for (folders, expected) in cases {
            assert_eq!(RunAs::Owner.user_for(folders.iter().copied()), expected, "{folders:?}");
            assert_eq!(RunAs::Server.user_for(folders.iter().copied()), None);
            assert_eq!(RunAs::User(bob).user_for(folders.iter().copied()), Some(bob));
        }
        assert_eq!(RunAs::User(User { uid: 0, gid: 0 }).user_for([Owner::User(alice)]), None);
    }

    #[test]
    fn a_mode_counts_for_the_first_class_that_a_user_is_in() {
        let owner = User { uid: 1000, gid: 100 };
        let colleague = User { uid: 1001, ..owner };
        let stranger = User { uid: 1001, gid: 200 };
        for (user, mode, expected) in [
            (owner, 0o300, true),
            (owner, 0o577, false),
            (owner, 0o677, false),
            (colleague, 0o730, true),
            (colleague, 0o757, false),
            (stranger, 0o1777, true),
            (stranger, 0o775, false),
            (stranger, 0o755, false),
        ] {
            assert_eq!(user.has_write_access(owner, mode), expected, "{user} {mode:o}");
        }
    }

    #[test]
    fn a_user_is_a_name_or_two_numbers() {
        assert_eq!(User::parse("12:34").unwrap(), User { uid: 12, gid: 34 });
        assert_eq!(User::parse("root").unwrap(), User { uid: 0, gid: 0 });
        for bad in ["", "12", "12:", ":12", "a:b", "-1:0", "4294967295:0", "1:2:3", "no such user"] {
            assert!(User::parse(bad).is_err(), "{bad:?}");
        }
    }
}
