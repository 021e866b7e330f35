//! The tests of CPython's library and test262, from source packages of Debian, and those of wasm-tools, from its crate.
//!
//! Debian 13 keeps the upstream version of a package, and a published version of a crate never changes, so the digest
//! of each archive is pinned. Debian's package lists and downloads have folders of their own: the machine's apt-get is
//! not changed, and root is not needed. cargo downloads a crate to its own cache.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use sha2::{Digest as _, Sha256};

use crate::debian;
use crate::run::{self, Workspace};
use crate::setup;

/// The release whose sources are taken, whatever the machine's own release is.
const RELEASE: &str = "trixie";
/// The larger archive has 157 MB.
const TIMEOUT: Duration = Duration::from_secs(900);

struct Collection {
    /// The name of the folder that the tests read.
    name: &'static str,
    title: &'static str,
    source: Source,
    /// The SHA-256 of the archive.
    digest: &'static str,
    /// The only folder of the archive that is kept: the path inside the archive.
    folder: &'static str,
}

/// The origin of an archive.
enum Source {
    /// A source package of [`RELEASE`].
    Debian { package: &'static str, archive: &'static str },
    /// A crate of cargo's default registry.
    Crate { name: &'static str, version: &'static str },
}

const COLLECTIONS: [Collection; 3] = [
    Collection {
        name: "python",
        title: "the tests of Python's library",
        source: Source::Debian { package: "python3.13", archive: "python3.13_3.13.5.orig.tar.xz" },
        digest: "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640",
        folder: "Python-3.13.5/Lib/test",
    },
    // The source of SpiderMonkey, which has a copy of test262.
    Collection {
        name: "javascript",
        title: "test262",
        source: Source::Debian { package: "mozjs128", archive: "mozjs128_128.14.0.orig.tar.xz" },
        digest: "41cca35149710ce45fbabc5fefcf86a01fdf833fdb783941964fca3a55fb72dd",
        folder: "firefox-128.14.0/js/src/tests/test262",
    },
    Collection {
        name: "wasm-tools",
        title: "the tests of wasm-tools",
        source: Source::Crate { name: "wasm-tools", version: "1.263.0" },
        digest: "14b8ed798ec13f0e0939dcc403836ba5fd7fb29ff9772e6438a9bcc227bfdc96",
        folder: "wasm-tools-1.263.0/tests",
    },
];

/// Downloads and unpacks the collections, unless that was done or has failed before.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    let state = workspace.state().join("collections");
    for collection in &COLLECTIONS {
        let stamp = state.join(collection.name).with_extension("digest");
        if fs::read_to_string(&stamp).is_ok_and(|digest| digest == collection.digest) {
            continue;
        }
        let unpack = || unpack(workspace, collection, &state.join(collection.name));
        if setup::try_once(workspace, collection.title, unpack)? {
            fs::write(&stamp, collection.digest)?;
        }
    }
    remove(&apt(workspace))
}

/// Replaces the folder of a collection.
fn unpack(workspace: &Workspace, collection: &Collection, folder: &Path) -> Result<()> {
    let Collection { title, source, digest, folder: kept, .. } = collection;
    let archive = match source {
        Source::Debian { package, archive } => download_debian_source(workspace, title, package, archive)?,
        Source::Crate { name, version } => download_crate(workspace, title, name, version)?,
    };
    let found = run::to_hex(&Sha256::digest(fs::read(&archive)?));
    ensure!(found == *digest, "{} has the digest {found}, which is not the pinned one", archive.display());
    // The tests assume that an existing folder is complete.
    let unpacked = folder.with_extension("unpacked");
    remove(&unpacked)?;
    fs::create_dir_all(&unpacked)?;
    let above = Path::new(kept).components().count() - 1;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--no-same-owner", &format!("--strip-components={above}"), "--file"]);
    tar.arg(&archive).arg(kept).current_dir(&unpacked);
    run::log(workspace, &format!("unpack {title}"), &mut tar, TIMEOUT)?;
    remove(folder)?;
    Ok(fs::rename(unpacked, folder)?)
}

/// Downloads a source package of Debian. Returns the path of its archive.
fn download_debian_source(
    workspace: &Workspace,
    title: &str,
    package: &str,
    archive: &str,
) -> Result<PathBuf> {
    let apt = apt(workspace);
    let apt_get = prepare_apt_get(&apt)?;
    run::log(workspace, &format!("list the sources of Debian {RELEASE}"), apt_get().arg("update"), TIMEOUT)?;
    let mut download = apt_get();
    download.args(["source", "--download-only", "--only-source", package]);
    run::log(workspace, &format!("download {title}"), &mut download, TIMEOUT)?;
    let archive = apt.join(archive);
    ensure!(archive.is_file(), "Debian {RELEASE} has another version of {package} than the pinned one");
    Ok(archive)
}

/// Downloads a crate. Returns the path of its archive in cargo's cache.
fn download_crate(workspace: &Workspace, title: &str, name: &str, version: &str) -> Result<PathBuf> {
    // `cargo info` downloads the crate that it describes, and no other: its dependencies are not needed here.
    let mut info = workspace.cargo(&["info", "--quiet", &format!("{name}@{version}")]);
    run::log(workspace, &format!("download {title}"), &mut info, TIMEOUT)?;
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo"))).context("cargo has no home folder")?;
    // Each registry has a folder of its own.
    let registries = fs::read_dir(home.join("registry/cache"))?.collect::<Result<Vec<_>, _>>()?;
    let archive = format!("{name}-{version}.crate");
    let mut archives = registries.into_iter().map(|registry| registry.path().join(&archive));
    archives.find(|path| path.is_file()).with_context(|| format!("cargo has no {archive} in its cache"))
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// The folder of apt-get's lists and downloads.
fn apt(workspace: &Workspace) -> PathBuf {
    workspace.state().join("collections/apt")
}

/// Returns a function that makes apt-get commands. They know only the sources of [`RELEASE`], and write only below
/// `folder`.
fn prepare_apt_get(folder: &Path) -> Result<impl Fn() -> Command + use<>> {
    ensure!(debian::applies(), "only apt-get can download it");
    let mirror = mirror().context("apt-get has no mirror of Debian")?;
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let list = folder.join("sources.list");
    fs::write(&list, format!("deb-src {mirror} {RELEASE} main\n"))?;
    let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
    let options = [
        option("Dir::Etc::SourceList", list),
        option("Dir::Etc::SourceParts", "-".into()),
        option("Dir::State::Lists", folder.join("lists")),
        option("Dir::Cache", folder.join("cache")),
    ];
    let folder = folder.to_owned();
    Ok(move || {
        let mut command = Command::new("apt-get");
        command.env("LC_ALL", "C").current_dir(&folder);
        options.iter().for_each(|option| {
            command.arg("-o").arg(option);
        });
        command
    })
}

/// The mirror that this machine's apt-get reads.
pub(crate) fn mirror() -> Option<String> {
    let indexes = run::output(Command::new("apt-get").args(["update", "--print-uris"]))?;
    find_mirror(&indexes).map(str::to_owned)
}

/// The first mirror of these indexes that has more than security updates.
fn find_mirror(indexes: &str) -> Option<&str> {
    let addresses = indexes.lines().filter_map(|line| line.strip_prefix('\'')?.split_once("/dists/"));
    addresses.map(|(address, _)| address).find(|address| !address.contains("security"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_release_and_not_of_its_security_updates() {
        let indexes = "'http://mirror/debian-security/dists/x-security/InRelease' a 0\n\
                       'http://mirror/debian/dists/x/InRelease' b 0\n";
        assert_eq!(find_mirror(indexes), Some("http://mirror/debian"));
        assert_eq!(find_mirror("Reading package lists..."), None);
    }
}
