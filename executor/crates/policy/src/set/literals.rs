//! The folders, hosts and secrets that policies name. There are no others: a path belongs to the deepest folder that
//! contains it, and a host to the narrowest one.

use crate::ledger::LiteralNames;
use crate::schema::{EntityKind, EntityTypes};
use a2g_capability::{Host, HostPattern, Tree};
use a2g_types::ident::SecretName;
use cedar_policy::{Entity, EntityUid};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// What the policies for an agent name, to ask for each.
#[derive(Debug, Default)]
pub(crate) struct Literals {
    /// The folders, each before those below it.
    pub(crate) folders: Vec<FolderLiteral>,
    /// The hosts. For a name, an entry for itself and one for all names below it.
    pub(crate) hosts: Vec<HostLiteral>,
    /// The secrets that permits name.
    pub(crate) secrets: Vec<SecretName>,
    /// The folders and hosts, as the past of an agent is compared with them.
    pub(crate) names: LiteralNames,
}

/// `Folder::"/workspace"`: the folder and everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FolderLiteral {
    pub(crate) tree: Tree,
    /// The resource of a request for it.
    pub(crate) uid: EntityUid,
    /// `true` if a permit names it, or a folder around it. Only then is it granted by itself: what forbids alone name is
    /// not opened by a permit of everything.
    pub(crate) is_permitted: bool,
}

/// A part of `Host::"example.com"` that can be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostLiteral {
    /// The part: `example.com`, or `*.example.com`. Its text is an entry of a list of domains.
    pub(crate) pattern: HostPattern,
    /// The resource of a request for this part.
    pub(crate) uid: EntityUid,
    /// The text of the literal of which it is a part, for facts: `example.com`.
    pub(crate) literal: String,
    /// `true` if a permit names it, or hosts around it, as for a folder.
    pub(crate) is_permitted: bool,
}

/// What one policy names, or several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Named {
    folders: BTreeSet<Tree>,
    /// With the text of the literal of which the pattern is a part. Where `example.com` is, `*.example.com` is too.
    hosts: BTreeMap<HostPattern, String>,
    secrets: BTreeSet<SecretName>,
}

impl Named {
    /// Adds a folder.
    ///
    /// # Errors
    /// A message unless the text is an absolute path in its shortest form.
    pub(super) fn add_folder(&mut self, text: &str) -> Result<(), String> {
        let tree = Tree::parse_path(text).map_err(|error| error.to_string())?;
        if tree.path() != text {
            return Err(format!("write the folder without the `/` at its end: `{}`", tree.path()));
        }
        self.folders.insert(tree);
        Ok(())
    }

    /// Adds a host.
    ///
    /// # Errors
    /// A message unless the text is a host, or a pattern of hosts, in its usual form.
    pub(super) fn add_host(&mut self, text: &str) -> Result<(), String> {
        let pattern = HostPattern::parse(text).map_err(|error| error.to_string())?;
        let usual = pattern.to_string();
        if usual != text {
            return Err(format!("write the host in its usual form: `{usual}`"));
        }
        if let HostPattern::Exactly(Host::Name(name)) = &pattern {
            self.hosts.insert(HostPattern::Below(name.clone()), usual.clone());
        }
        self.hosts.entry(pattern).or_insert(usual);
        Ok(())
    }

    /// Adds a secret.
    ///
    /// # Errors
    /// A message unless the text is the name of a secret.
    pub(super) fn add_secret(&mut self, text: &str) -> Result<(), String> {
        self.secrets.insert(SecretName::parse(text).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Adds what another policy names.
    pub(super) fn add(&mut self, other: &Self) {
        self.folders.extend(other.folders.iter().cloned());
        self.secrets.extend(other.secrets.iter().cloned());
        for (pattern, literal) in &other.hosts {
            let held = self.hosts.entry(pattern.clone()).or_insert_with(|| literal.clone());
            // Of `example.com` and `*.example.com`, the first names more.
            if literal.len() < held.len() {
                held.clone_from(literal);
            }
        }
    }

    /// The entities of all of them, each with the nearest above it.
    pub(super) fn entities(&self, types: &EntityTypes) -> Vec<Entity> {
        let folders = self.folders.iter().map(|tree| {
            let above = folders_above(tree.path()).find(|above| self.has_folder(above));
            (EntityKind::Folder, tree.path().to_owned(), above.map(str::to_owned))
        });
        let hosts = self
            .hosts
            .keys()
            .map(|pattern| (EntityKind::Host, pattern.to_string(), self.host_above(pattern)));
        let secrets = self.secrets.iter().map(|name| (EntityKind::Secret, name.to_string(), None));
        let entity = |(kind, id, above): (EntityKind, String, Option<String>)| {
            let parents = above.map(|above| types.uid(kind, &above)).into_iter().collect::<HashSet<_>>();
            Entity::new_no_attrs(types.uid(kind, &id), parents)
        };
        folders.chain(hosts).chain(secrets).map(entity).collect()
    }

    fn has_folder(&self, path: &str) -> bool {
        Tree::parse_path(path).is_ok_and(|tree| self.folders.contains(&tree))
    }

    /// The narrowest pattern that contains all of this one.
    fn host_above(&self, pattern: &HostPattern) -> Option<String> {
        let has = |text: &str| HostPattern::parse(text).is_ok_and(|other| self.hosts.contains_key(&other));
        let (name, itself) = match pattern {
            HostPattern::EveryName | HostPattern::Exactly(Host::Address(_)) => return None,
            HostPattern::Https(host, _) => (host.to_string(), Some(host.to_string())),
            HostPattern::Below(name) => (name.as_str().to_owned(), Some(name.as_str().to_owned())),
            HostPattern::Exactly(Host::Name(name)) => (name.as_str().to_owned(), None),
        };
        let is_address = matches!(pattern, HostPattern::Https(Host::Address(_), _));
        let domains =
            name.match_indices('.').filter_map(|(at, _)| name.get(at..)).map(|rest| format!("*{rest}"));
        let above = domains.chain(["*".to_owned()]).filter(|_| !is_address);
        itself.into_iter().chain(above).find(|text| has(text))
    }
}

/// The folders above a path, the deepest first.
fn folders_above(path: &str) -> impl Iterator<Item = &str> {
    path.rmatch_indices('/').filter_map(|(at, _)| path.get(..at)).filter(|above| !above.is_empty())
}

impl Literals {
    /// The literals of all policies for an agent, of which `permitted` are in permits.
    pub(super) fn of(named: &Named, permitted: &Named, types: &EntityTypes) -> Self {
        let uid = |kind, id: &str| types.uid(kind, id);
        let folder = |tree: &Tree| FolderLiteral {
            tree: tree.clone(),
            uid: uid(EntityKind::Folder, tree.path()),
            is_permitted: permitted.folders.contains(tree)
                || folders_above(tree.path()).any(|above| permitted.has_folder(above)),
        };
        let host = |(pattern, literal): (&HostPattern, &String)| HostLiteral {
            pattern: pattern.clone(),
            uid: uid(EntityKind::Host, &pattern.to_string()),
            literal: literal.clone(),
            is_permitted: permitted.hosts.contains_key(pattern) || permitted.host_above(pattern).is_some(),
        };
        // Of `example.com` and `*.example.com`, a policy may ask for each.
        let hosts = named.hosts.iter().flat_map(|(pattern, literal)| [pattern.to_string(), literal.clone()]);
        Self {
            folders: named.folders.iter().map(folder).collect(),
            hosts: named.hosts.iter().map(host).collect(),
            secrets: permitted.secrets.iter().cloned().collect(),
            names: LiteralNames::new(named.folders.iter().map(|tree| tree.path().to_owned()), hosts),
        }
    }

    /// The number of them.
    pub(super) fn len(&self) -> usize {
        self.folders.len() + self.hosts.len() + self.secrets.len()
    }
}
