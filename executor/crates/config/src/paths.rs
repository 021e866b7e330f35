//! The paths of a configuration: no file of the executor is where a guest could reach it, and named folders exist.

use super::Config;
use super::ceilings::{NARROW_DEFAULT_SCOPE, parse_areas};
use super::error::{ConfigError, InvalidValueError, invalid};
use a2g_capability::{Area, Mounts};
use a2g_http::ListenAddress;
use a2g_types::ident::{ToolName, did_you_mean};
use std::path::{Path, PathBuf};

/// The number of links that are followed in a path, as in the kernel.
const MAX_LINKS: u32 = 40;

impl Config {
    /// Checks that no file of the executor is in a folder that a guest could reach. A default scope that would let
    /// guests reach one is narrowed: the executor does not refuse what nobody has set.
    pub(super) fn check_private_paths(&mut self) -> Result<(), InvalidValueError> {
        if self.has_default_scope
            && let Err(InvalidValueError { reason, .. }) = self.check_reach()
        {
            self.ceilings.areas = parse_areas(&[NARROW_DEFAULT_SCOPE])?;
            self.scope_note = Some(format!(
                "the default of `ceilings.filesystem_scope` is `{NARROW_DEFAULT_SCOPE}` alone here: the usual one, with \
                 `/tmp/**`, {reason}"
            ));
        }
        self.check_reach()?;
        self.check_definitions()
    }

    fn check_reach(&self) -> Result<(), InvalidValueError> {
        let tls = self.tls.as_ref();
        let socket = match &self.listen {
            ListenAddress::Unix(path) => Some(path),
            ListenAddress::Tcp(_) => None,
        };
        let paths = [
            ("catalog.cache", Some(&self.cache)),
            ("catalog.definitions", Some(&self.definitions)),
            ("journal.path", Some(&self.journal)),
            ("journal.key", self.journal_key.as_ref()),
            ("effects.folder", Some(&self.effects)),
            ("governor.reports", self.reports.as_ref()),
            ("governor.policies", self.policies.as_ref()),
            ("network.ca_file", self.ca_file.as_ref()),
            ("server.callers", self.callers.as_ref()),
            ("server.listen", socket),
            ("server.tls.certificate", tls.map(|tls| &tls.certificate)),
            ("server.tls.key", tls.map(|tls| &tls.key)),
            ("server.tls.client_ca", tls.and_then(|tls| tls.client_ca.as_ref())),
            ("trust.keys", self.trust.keys.as_ref()),
            ("fleet.key_file", self.fleet.as_ref().map(|fleet| &fleet.key_file)),
            ("fleet.credentials", self.fleet.as_ref().and_then(|fleet| fleet.login.credentials.as_ref())),
            ("fleet.nkey_file", self.fleet.as_ref().and_then(|fleet| fleet.login.nkey_file.as_ref())),
            ("fleet.ca_file", self.fleet.as_ref().and_then(|fleet| fleet.login.ca_file.as_ref())),
            (
                "trust.intent_signature.key_file",
                self.trust.signature.as_ref().map(|signature| &signature.key_file),
            ),
            ("doors.nexus.key_file", self.doors.nexus.as_ref().map(|nexus| &nexus.key_file)),
        ];
        let own = paths.into_iter().filter_map(|(key, path)| Some((key, path?)));
        let issuers = self.issuers.iter().map(|issuer| ("server.issuer.keys", &issuer.keys));
        let notify = self.console.notify.iter().map(|webhook| ("console.notify.key_file", &webhook.key_file));
        let secrets =
            self.secrets.iter().filter_map(|secret| Some((secret.source_key(), secret.source.path()?)));
        let signers = self.signers.iter().flatten();
        let signers = signers.map(|signer| ("catalog.trust.signer.key_file", &signer.key_file));
        check_apart(
            &self.ceilings.areas,
            &self.mounts,
            own.chain(issuers).chain(notify).chain(secrets).chain(signers),
        )
    }

    /// Checks that the file of accepted definitions is not in the folder of tools.
    fn check_definitions(&self) -> Result<(), InvalidValueError> {
        if resolve_existing(&self.definitions).starts_with(resolve_existing(&self.catalog)) {
            return Err(invalid("catalog.definitions")(&format_args!(
                "is `{}`, inside the catalogue `{}`, where an update of a tool could replace it: name a file elsewhere",
                self.definitions.display(),
                self.catalog.display()
            )));
        }
        Ok(())
    }

    /// The areas that a run can get: those of the ceilings whose host folders exist.
    ///
    /// # Ambient Authority
    /// Looks at the folders.
    #[must_use]
    pub fn open_areas(&self) -> Vec<Area> {
        let areas = &self.ceilings.areas;
        let is_open =
            |area: &&Area| self.mounts.host_path(area.root(), areas).is_some_and(|folder| folder.is_dir());
        areas.iter().filter(is_open).cloned().collect()
    }

    /// Checks that the host folders of all mounts exist. This is for the start: with a mistyped folder, every call that
    /// needs it would fail.
    ///
    /// # Ambient Authority
    /// Looks at the folders, and reads the configuration again for its line numbers.
    ///
    /// # Errors
    /// [`ConfigError::Value`], with the key of the first folder that is missing.
    pub fn check_mounts(&self) -> Result<(), ConfigError> {
        let mut mounts = self.mounts.as_slice().iter().enumerate();
        let Some((nth, mount)) = mounts.find(|(_, mount)| !mount.host.is_dir()) else { return Ok(()) };
        let error = invalid("mount.host")(&no_such_folder(&mount.host)).at_occurrence(nth);
        let path = self.file.as_deref().unwrap_or(Path::new("the defaults"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Err(error.at_path(path, &text))
    }

    /// The tools of the catalogue that settings of the section `[executor]` name, each with the key of its setting.
    pub fn named_tools(&self) -> impl Iterator<Item = (&'static str, &ToolName)> {
        let inline = self.inline_tools.iter().map(|tool| ("executor.inline_tools", tool));
        let reused = self.reuse.tools.iter().map(|tool| ("executor.reuse.tools", tool));
        let with_hosts = self.ceilings.tool_hosts.keys().map(|tool| ("network.tools", tool));
        inline.chain(reused).chain(with_hosts)
    }

    /// Checks that the folders and tools that the file at `path` names exist. This is for `config check`: without it,
    /// a missing folder or tool would be noticed only when a server needs it.
    ///
    /// # Ambient Authority
    /// Looks at the folders, and reads the file again for its line numbers.
    ///
    /// # Errors
    /// [`ConfigError::Value`], with the key of the first folder or tool that is missing.
    pub fn check_folders(&self, path: &Path) -> Result<(), ConfigError> {
        let missing_folder =
            (!self.catalog.is_dir()).then(|| ("catalog.tools", no_such_folder(&self.catalog)));
        let missing_tool = || {
            let mut named = self.named_tools();
            let is_missing = |tool: &ToolName| !self.catalog.join(tool.as_str()).join("tool.toml").is_file();
            let (key, tool) = named.find(|(_, tool)| is_missing(tool))?;
            let entries = std::fs::read_dir(&self.catalog).into_iter().flatten().flatten();
            let known = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>();
            let nearest = did_you_mean(tool.as_str(), known.iter().map(String::as_str));
            let reason =
                format!("names `{tool}`{nearest}, and there is no such tool in `{}`", self.catalog.display());
            Some((key, reason))
        };
        if missing_folder.is_none() {
            self.check_mounts()?;
        }
        let Some((key, reason)) = missing_folder.or_else(missing_tool) else { return Ok(()) };
        // The defaults have no file, and so no line number.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Err(invalid(key)(&reason).at_path(path, &text))
    }
}

fn no_such_folder(folder: &Path) -> String {
    format!("names `{}`, and there is no such folder: create it, or correct the path", folder.display())
}

/// Checks that no path of `own` is in a folder that guests can reach, and that no such folder is inside another.
fn check_apart<'a>(
    areas: &[Area],
    mounts: &Mounts,
    own: impl Iterator<Item = (&'static str, &'a PathBuf)>,
) -> Result<(), InvalidValueError> {
    let resolve = resolve_existing;
    let own = own.map(|(key, path)| (key, resolve(path))).collect::<Vec<_>>();
    // The host folders that guests may access: the folder of each area, and of each mount that an area covers.
    let mounted =
        mounts.as_slice().iter().filter(|mount| areas.iter().any(|area| area.root().covers(&mount.guest)));
    let granted = areas.iter().filter_map(|area| mounts.host_path(area.root(), areas));
    let mut bases =
        granted.chain(mounted.map(|mount| mount.host.clone())).map(|host| resolve(&host)).collect::<Vec<_>>();
    bases.sort();
    bases.dedup();
    for host in &bases {
        if let Some((key, inside)) = own.iter().find(|(_, path)| path.starts_with(host)) {
            return Err(invalid("ceilings.filesystem_scope")(&format_args!(
                "lets guests into `{}`, which contains the executor's own `{}` (`{key}`): move one of the two, or narrow the \
                 scope, such as to `[\"/workspace/**\"]`",
                host.display(),
                inside.display()
            )));
        }
        // A guest that may change the outer folder could replace the inner one.
        if let Some(outer) = bases.iter().find(|outer| *outer != host && host.starts_with(outer)) {
            return Err(invalid("ceilings.filesystem_scope")(&format_args!(
                "lets guests into `{}` and, by another mount, into `{}` inside it: make them separate folders",
                outer.display(),
                host.display()
            )));
        }
    }
    Ok(())
}

/// The absolute path without links and `..`. It may not exist yet: each link is followed, also one whose target is
/// missing, because what is created through it is created there.
fn resolve_existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut pending = reversed_components(&absolute);
    let mut resolved = PathBuf::new();
    let mut links = 0;
    while let Some(component) = pending.pop() {
        match component.to_str() {
            Some(".") => {}
            Some("..") => {
                resolved.pop();
            }
            Some("/") => resolved = component,
            Some(_) | None => {
                let next = resolved.join(component);
                match next.read_link() {
                    Ok(target) if links < MAX_LINKS => {
                        links += 1;
                        pending.extend(reversed_components(&target));
                    }
                    Ok(_) | Err(_) => resolved = next,
                }
            }
        }
    }
    resolved
}

/// The components of a path, the last one first.
fn reversed_components(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|component| PathBuf::from(component.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::resolve_existing;
    use crate::Config;
    use crate::tests::{REACHES_TMP, parse};
    use std::path::PathBuf;

    #[test]
    fn a_missing_folder_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("executor.toml");
        let mount = |guest: &str, host: &str| format!("[[mount]]\nguest = \"/{guest}\"\nhost = \"{host}\"\n");
        let head = "[catalog]\ntools = \".\"\n[ceilings]\nfilesystem_scope = []\n";
        let text = format!("{head}{}{}", mount("workspace", "."), mount("data", "away"));
        let missing = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Config::read(&file).unwrap().check_folders(&file).map_err(|error| error.to_string())
        };
        let error = missing(&text).unwrap_err();
        assert!(error.contains("line 10: `mount.host`") && error.contains("away"), "{error}");
        let error = missing(&text.replacen("\".\"", "\"tools\"", 1)).unwrap_err();
        assert!(error.contains("line 2: `catalog.tools`"), "{error}");
        std::fs::create_dir(folder.path().join("away")).unwrap();
        assert_eq!(missing(&text), Ok(()));
    }

    #[test]
    fn the_executors_own_files_are_never_grantable() {
        // Nothing else is in a folder that may be in a scope, whatever `HOME` is.
        const ELSEWHERE: &str = "[journal]\npath = \"/srv/journal.db\"\n[catalog]\ncache = \"/srv/cache\"\n";
        const KEYS: &str = "[executor]\ndid = \"did:a:b\"\n[trust]\nkeys = \"/tmp/keys\"\n";
        for (text, file) in [
            (format!("{REACHES_TMP}{}", ELSEWHERE.replace("/srv/cache", "/tmp/cache")), "/tmp/cache"),
            (format!("{REACHES_TMP}{ELSEWHERE}{KEYS}"), "/tmp/keys"),
            (format!("{ELSEWHERE}[governor]\nreports = \"/workspace/reports.ndjson\"\n"), "reports.ndjson"),
            (format!("{ELSEWHERE}[network]\nca_file = \"/workspace/ca.pem\"\n"), "ca.pem"),
            (format!("{ELSEWHERE}[effects]\nfolder = \"/workspace/effects\"\n"), "/workspace/effects"),
            (format!("{ELSEWHERE}[[mount]]\nguest = \"/workspace\"\nhost = \"/srv\"\n"), "/srv/cache"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(file), "{error}");
        }
        assert_eq!(parse(ELSEWHERE).unwrap().scope_note, None);
        // A default is narrowed instead, with a note.
        let config = parse(&format!("{ELSEWHERE}{KEYS}")).unwrap();
        let areas = config.ceilings.areas.iter().map(ToString::to_string).collect::<Vec<_>>();
        let note = config.scope_note.unwrap();
        assert!(
            areas == ["/workspace/**"] && note.contains("`/tmp/keys` (`trust.keys`)"),
            "{areas:?}: {note}"
        );
    }

    /// A file that is created through a link or a missing folder lies where that leads.
    #[test]
    fn a_path_that_does_not_exist_yet_leads_where_it_will_be_created() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("nowhere/../gone", real.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", real.join("loop")).unwrap();
        let current = std::env::current_dir().unwrap().canonicalize().unwrap();
        for (path, expected) in [
            (real.join("link/file"), real.join("gone/file")),
            (real.join("missing/../../x"), real.parent().unwrap().join("x")),
            (PathBuf::from("missing.ndjson"), current.join("missing.ndjson")),
            (PathBuf::from("./a/.//b/../c"), current.join("a/c")),
            (PathBuf::from("/../x"), PathBuf::from("/x")),
            (real.join("loop/x"), real.join("loop/x")),
        ] {
            assert_eq!(resolve_existing(&path), expected, "{}", path.display());
        }
    }

    #[test]
    fn a_folder_that_guests_reach_in_two_ways_is_refused() {
        let two = |inner: &str| {
            format!(
                "[catalog]\ncache = \"/srv/cache\"\n[ceilings]\nfilesystem_scope = [\"/workspace/**\", \"/data/**\"]\n\
                 [[mount]]\nguest = \"/workspace\"\nhost = \"/srv/ws\"\n[[mount]]\nguest = \"/data\"\nhost = \"{inner}\"\n"
            )
        };
        assert!(parse(&two("/srv/ws/data")).unwrap_err().contains("/srv/ws/data"));
        assert!(parse(&two("/srv/wsdata")).is_ok());
        let nested = "[catalog]\ncache = \"/srv/cache\"\n[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n\
                      [[mount]]\nguest = \"/workspace/deep\"\nhost = \"/srv/cache\"\n";
        assert!(parse(nested).unwrap_err().contains("/srv/cache"));
    }

    #[test]
    fn a_default_scope_leaves_out_what_contains_own_files() {
        let scope = |text: &str| {
            let config = parse(text)?;
            let areas = config.ceilings.areas.iter().map(ToString::to_string).collect::<Vec<_>>();
            Ok::<_, String>((areas.join(" "), config.scope_note))
        };
        let elsewhere = "[journal]\npath = \"/srv/journal.db\"\n[catalog]\ncache = ";
        let usual = scope(&format!("{elsewhere}\"/srv/cache\"\n")).unwrap();
        assert_eq!(usual, ("/tmp/** /workspace/**".to_owned(), None));
        let below_tmp = format!("{elsewhere}\"/tmp/clone/cache\"\n");
        let (areas, note) = scope(&below_tmp).unwrap();
        assert_eq!(areas, "/workspace/**");
        let note = note.unwrap();
        assert!(note.contains("`/workspace/**` alone") && note.contains("`catalog.cache`"), "{note}");
        // What an operator wrote is refused, and so is a default that nothing makes safe.
        let refused =
            scope(&format!("{below_tmp}[ceilings]\nfilesystem_scope = [\"/tmp/**\"]\n")).unwrap_err();
        assert!(refused.contains("line 6") && refused.contains("ceilings.filesystem_scope"), "{refused}");
        scope(&format!("{elsewhere}\"/workspace/cache\"\n")).unwrap_err();
    }

    #[test]
    fn accepted_definitions_are_beside_the_journal_and_outside_of_the_catalogue() {
        let head = "[journal]\npath = \"state/journal.db\"\n[catalog]\ncache = \"/srv/cache\"\n";
        let definitions = |more: &str| parse(&format!("{head}{more}")).map(|config| config.definitions);
        assert!(definitions("").unwrap().ends_with("state/definitions.json"));
        assert!(definitions("definitions = \"pins.json\"\n").unwrap().ends_with("pins.json"));
        for inside in ["definitions = \"tools/pins.json\"\n", "definitions = \"tools\"\n", "tools = \".\"\n"]
        {
            let error = definitions(inside).unwrap_err().to_string();
            assert!(
                error.contains("`catalog.definitions`") && error.contains("inside the catalogue"),
                "{error}"
            );
        }
    }
}
