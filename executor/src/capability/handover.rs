//! A permit on its way from the process that checked it to the one that runs under it.
//!
//! Authority has no `Deserialize`, because no wire may make it. This is the one form in which a
//! permit leaves a process: it goes over a private socket pair from the server to a child of its
//! own, with the opened folders beside it as descriptors. Only `isolate` may name it.

use super::grant::{Carried, Grant};
use super::permit::Permit;
use super::roots::{OpenRoot, Roots};
use crate::limit::Layer;
use cap_std::fs::Dir;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// A permit without its folders, as it is written down.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handover {
    grant: Carried,
    /// The guest path and the layer of each folder, in the order of the descriptors.
    roots: Vec<(String, Layer)>,
    watch_outside: bool,
}

impl Handover {
    /// Takes a permit apart: what can be written, and the folders that travel beside it.
    #[must_use]
    pub fn of(permit: Permit) -> (Self, Vec<OwnedFd>) {
        let (grant, roots) = permit.into_parts();
        let (opened, watch_outside) = roots.into_parts();
        let (mut named, mut folders) = (Vec::new(), Vec::new());
        for OpenRoot { guest, layer, dir } in opened {
            named.push((guest, layer));
            folders.push(dir.into_std_file().into());
        }
        (Self { grant: grant.carry(), roots: named, watch_outside }, folders)
    }

    /// Puts the permit together again; `None` when the folders are not the ones that were sent.
    #[must_use]
    pub fn receive(self, folders: Vec<OwnedFd>) -> Option<Permit> {
        if folders.len() != self.roots.len() {
            return None;
        }
        let named = self.roots.into_iter().zip(folders);
        let opened = named.map(|((guest, layer), folder)| OpenRoot {
            guest,
            layer,
            dir: Dir::from_std_file(folder.into()),
        });
        let roots = Roots::from_parts(opened.collect(), self.watch_outside);
        Some(Permit::new(Grant::carried(self.grant)?, roots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Ceilings, Claims, HostClaims, HostPattern, Mount, Mounts, Tree};
    use crate::limit::{Access, Budgets, NetworkBudgets};
    use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};

    #[test]
    fn a_permit_arrives_as_it_was_sent() {
        let host = tempfile::tempdir().unwrap();
        let data = Tree::parse_path("/data").unwrap();
        let ceilings = Ceilings {
            memory: MemoryLimit::from_mb(64).unwrap(),
            cpu: CpuPercent::new(50).unwrap(),
            timeout: Timeout::from_seconds(3).unwrap(),
            output: OutputLimit::from_bytes(1000).unwrap(),
            network: true,
            hosts: HostClaims { allowed: Some(vec![HostPattern::EveryName]), ..HostClaims::default() },
            network_budgets: NetworkBudgets::NONE,
            trees: vec![data.clone()],
            access: Access::ReadOnly,
            budgets: Budgets {
                written: MemoryLimit::from_mb(1024).unwrap(),
                created: 1000,
                hard_links: false,
            },
        };
        let claims = Claims { memory: MemoryLimit::from_mb(8).ok(), ..Claims::default() };
        let grant = Grant::new([(Layer::Verdict, claims)], &ceilings).unwrap();
        let mounts = Mounts::new(vec![Mount { guest: data, host: host.path().into() }]).unwrap();
        let roots = Roots::open(&grant, &mounts, &ceilings.trees).unwrap();
        let (written, folders) = Handover::of(Permit::new(grant.clone(), roots));
        let text = serde_json::to_string(&written).unwrap();
        let read = |text: &str| serde_json::from_str::<Handover>(text).unwrap();
        assert!(read(&text).receive(Vec::new()).is_none(), "the folder is missing");
        let permit = read(&text).receive(folders).unwrap();
        // Whom it may reach stays with who decides it.
        assert!(grant.reach().allowed().next().is_some());
        assert!(permit.grant().reach().allowed().next().is_none());
        assert_eq!(permit.grant().network(), grant.network());
        assert_eq!(permit.grant().memory(), grant.memory());
        assert_eq!(permit.grant().trees(), grant.trees());
        assert_eq!(permit.roots().as_slice()[0].guest, "/data");
        assert!(permit.roots().watch_outside());
    }
}
