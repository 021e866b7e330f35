//! Transfers a permit from the process that made it to the process that runs a guest under it.
//!
//! Authority has no `Deserialize`, because no message may create it. A permit leaves a process only in this form: over
//! a private socket pair from the server to one of its own children, with the opened folders as file descriptors. Only
//! `isolate` may use it, and a process that makes its own grants cannot receive a permit. A child that serves several runs
//! has the same permit for all of them, except that each turn of a session has its own [`TurnLimits`].

use super::authority::Authority;
use super::grant::{Grant, GrantTransfer, TurnLimits};
use super::permit::Permit;
use super::roots::{OpenRoot, Roots};
use super::upper::{EarlierFolder, MemberFolders, Place, Upper};
use cap_std::fs::Dir;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The serialized form of a permit, without its folders.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handover {
    grant: GrantTransfer,
    watch_outside: bool,
    /// Whether each folder stands for one that does not exist on the host, in the order of the folders.
    are_missing: Vec<bool>,
    /// The folders that follow the granted ones.
    changes: ChangesTransfer,
}

/// The folders for a run's file changes, in the order in which they are sent.
#[derive(Debug, Serialize, Deserialize)]
enum ChangesTransfer {
    /// None: the run changes its granted folders.
    Direct,
    /// The run's own folder.
    Apart,
    /// The run's own folder, then the [`MemberFolders`]: `base`, as many of `earlier` as there are numbers, then `roots`
    /// and `readable`.
    OfMember { earlier: Vec<u64>, roots: usize, readable: usize, places: Vec<Option<Place>> },
}

impl Handover {
    /// Splits a permit into its serializable part and its folders, which are sent as file descriptors: the granted ones,
    /// then those for the run's file changes, if these are kept apart.
    #[must_use]
    pub fn from_permit(permit: Permit) -> (Self, Vec<OwnedFd>) {
        let (grant, roots, upper) = permit.into_parts();
        let (opened, watch_outside) = roots.into_parts();
        let are_missing = opened.iter().map(|root| root.is_missing).collect();
        let granted = opened.into_iter().map(|root| OwnedFd::from(root.dir.into_std_file()));
        let mut folders = granted.collect::<Vec<_>>();
        let changes = ChangesTransfer::send(upper, &mut folders);
        (Self { grant: grant.to_transfer(), watch_outside, are_missing, changes }, folders)
    }

    /// Reassembles the permit; `None` if the folders do not fit the grant, or if this process has had an
    /// [`Authority`]: a text that reaches a server cannot create a permit there. The call takes the authority itself,
    /// so a process receives one permit and can make no other, except copies of it for its further runs.
    #[must_use]
    pub fn receive(self, folders: Vec<OwnedFd>) -> Option<ReceivedPermit> {
        if Authority::is_in_use() {
            return None;
        }
        let grant = Grant::from_transfer(self.grant)?;
        // The first folders of a governed run are exactly the roots of its grant, in the same order.
        let count = grant.roots().len();
        if folders.len() < count || self.are_missing.len() != count {
            return None;
        }
        let mut rest = folders.into_iter();
        let granted = rest.by_ref().take(count).collect::<Vec<_>>();
        let upper = match self.changes {
            ChangesTransfer::Direct => None,
            ChangesTransfer::Apart => Some(Upper::new(rest.next()?)),
            ChangesTransfer::OfMember { earlier, roots, readable, places } => {
                if places.len() != count {
                    return None;
                }
                let upper = Upper::new(rest.next()?);
                let base = rest.next()?;
                let mut next = |number: usize| {
                    let taken = rest.by_ref().take(number).collect::<Vec<_>>();
                    (taken.len() == number).then_some(taken)
                };
                let earlier_folders = next(earlier.len())?.into_iter().zip(earlier);
                Some(upper.with_member(MemberFolders {
                    base,
                    earlier: earlier_folders.map(|(folder, from)| EarlierFolder { folder, from }).collect(),
                    roots: next(roots)?,
                    readable: next(readable)?,
                    places,
                }))
            }
        };
        if rest.next().is_some() {
            return None;
        }
        let _authority = Authority::take()?;
        let marked = granted.into_iter().zip(self.are_missing);
        let opened = grant.roots().iter().zip(marked).map(|(root, (folder, is_missing))| OpenRoot {
            guest: root.tree().path().to_owned(),
            granted: Some(Arc::clone(root)),
            is_missing,
            dir: Dir::from_std_file(folder.into()),
        });
        let roots = Roots::from_parts(opened.collect(), self.watch_outside);
        let permit = Permit::new(grant, roots);
        Some(ReceivedPermit(match upper {
            Some(upper) => permit.with_upper(upper),
            None => permit,
        }))
    }
}

impl ChangesTransfer {
    /// Adds the folders for a run's file changes to those that are sent.
    fn send(upper: Option<Upper>, folders: &mut Vec<OwnedFd>) -> Self {
        let Some(upper) = upper else { return Self::Direct };
        let (dir, member) = upper.into_parts();
        folders.push(dir);
        let Some(MemberFolders { base, earlier, roots, places, readable }) = member else {
            return Self::Apart;
        };
        let sent = Self::OfMember {
            earlier: earlier.iter().map(|earlier| earlier.from).collect(),
            roots: roots.len(),
            readable: readable.len(),
            places,
        };
        folders.push(base);
        folders.extend(earlier.into_iter().map(|earlier| earlier.folder).chain(roots).chain(readable));
        sent
    }
}

/// The permit that a process of guests has received. The server has made a permit for each run; all runs of the process use
/// this one.
#[derive(Debug)]
pub struct ReceivedPermit(Permit);

impl ReceivedPermit {
    /// A permit for one of several runs, with the same grant and descriptors of its own.
    ///
    /// # Errors
    /// If the process has reached its limit on open descriptors.
    pub fn duplicate(&self) -> std::io::Result<Permit> {
        self.0.duplicate()
    }

    /// A permit for one turn of a session: as [`Self::duplicate`], with the limits of that turn.
    ///
    /// # Errors
    /// As [`Self::duplicate`].
    // The server enforces the same limits, so a process that changes them gains nothing.
    pub fn duplicate_for_turn(&self, turn: &TurnLimits) -> std::io::Result<Permit> {
        Ok(self.0.duplicate()?.for_turn(turn))
    }

    /// The permit of the process's only run.
    #[must_use]
    pub fn into_permit(self) -> Permit {
        self.0
    }

    /// The grant and the opened folders.
    #[must_use]
    pub fn permit(&self) -> &Permit {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ceilings, Claims, HostClaims, HostPattern, Mount, Mounts, Tree};
    use a2g_types::limit::{ClaimedLimits, Layer, Limit, LimitMap};
    use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};

    #[test]
    fn a_permit_arrives_as_it_was_sent() {
        let host = tempfile::tempdir().unwrap();
        let data = Tree::parse_path("/data").unwrap();
        let ceilings = Ceilings {
            limits: LimitMap::defaults()
                .with(MemoryLimit::from_mb(64).unwrap())
                .with(CpuPercent::new(50).unwrap())
                .with(Timeout::from_seconds(3).unwrap())
                .with(OutputLimit::from_bytes(1000).unwrap()),
            network: true,
            hosts: HostClaims { allowed: Some(vec![HostPattern::EveryName]), ..HostClaims::default() },
            areas: vec![data.clone().into()],
            ..Ceilings::closed()
        };
        let claims = Claims {
            limits: ClaimedLimits::default().with(MemoryLimit::from_mb(8).ok()),
            ..Claims::default()
        };
        let grant = Grant::meet(&Authority::for_tests(), [(Layer::Verdict, claims)], &ceilings).unwrap();
        let mounts = Mounts::new(vec![Mount { guest: data, host: host.path().into() }]).unwrap();
        let original = Permit::open(grant, &mounts, &ceilings.areas, |_| true).unwrap();
        let grant = original.grant().clone();
        let (handover, folders) = Handover::from_permit(original);
        let text = serde_json::to_string(&handover).unwrap();
        let parse = |text: &str| serde_json::from_str::<Handover>(text).unwrap();
        assert!(parse(&text).receive(Vec::new()).is_none(), "the folder is missing");
        let outside = text.replacen(r#"["/data",[]"#, r#"["/etc",[]"#, 1);
        assert_ne!(outside, text);
        let folder = || vec![folders[0].try_clone().unwrap()];
        assert!(parse(&outside).receive(folder()).is_none(), "an area lies outside of its folder");
        let same_folder = folder();
        let received = parse(&text).receive(folders).unwrap();
        let permit = received.duplicate().unwrap();
        assert!(parse(&text).receive(same_folder).is_none(), "a process receives one permit");
        // The reachable hosts are not sent: the server decides on them.
        assert!(grant.reach().allowed_patterns().next().is_some());
        assert!(permit.grant().reach().allowed_patterns().next().is_none());
        assert_eq!(permit.grant().network(), grant.network());
        assert_eq!(permit.grant().memory(), grant.memory());
        for limit in Limit::ALL {
            assert_eq!(permit.grant().limit(*limit), grant.limit(*limit));
        }
        assert_eq!(permit.grant().roots(), grant.roots());
        assert_eq!(permit.roots().as_slice()[0].guest, "/data");
        assert!(permit.roots().should_watch_outside());
        let of_caller = Claims {
            limits: ClaimedLimits::default()
                .with(Timeout::from_seconds(2).ok())
                .with(CpuPercent::new(5).ok()),
            ..Claims::default()
        };
        let shorter = Grant::meet(&Authority::for_tests(), [(Layer::Caller, of_caller)], &ceilings).unwrap();
        let turn = received.duplicate_for_turn(&shorter.turn_limits()).unwrap();
        assert_eq!((turn.grant().timeout(), turn.grant().cpu()), (shorter.timeout(), shorter.cpu()));
        assert_eq!(turn.grant().memory(), grant.memory());
        assert!(permit.grant().is_of_same_session(turn.grant()));
        assert!(!permit.grant().is_same_grant(turn.grant()));
        assert!(!permit.grant().is_of_same_session(&grant), "the hosts differ");
        let own = received.duplicate_for_turn(&permit.grant().turn_limits()).unwrap();
        assert!(own.grant().is_same_grant(permit.grant()));
        assert!(received.into_permit().grant().is_same_grant(permit.grant()));
    }
}
