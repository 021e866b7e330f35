//! The Debian package: the files of the release below `/usr`, the unit and its user, and an example configuration.
//!
//! `dpkg-deb` writes it. What a machine with Debian packages has differs in nothing from what `deploy/README.md` lets
//! people install by hand below `/usr/local`, except in the folders.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::tree::Tree;
use super::{Architecture, Release, files};
use crate::run;

const DPKG_DEB: &str = "dpkg-deb";
/// The level of compression, xz's default. A level of 3 takes a third of the time, for a package that is 14 % larger.
const LEVEL: u8 = 6;
const UNIT: &str = "usr/lib/systemd/system/a2g-executor.service";
const DOCUMENTATION: &str = "usr/share/doc/a2g-executor";
/// The scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
pub(super) const CONFIGURATION: &str = "etc/a2g-executor/executor.toml";

/// The finished package.
pub(super) fn archive(release: &Release<'_>) -> PathBuf {
    release.folder.join(format!("a2g-executor_{}_{}.deb", release.version, architecture(release)))
}

pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    if run::output(Command::new(DPKG_DEB).arg("--version")).is_none() {
        run::progress("Skipped", "the Debian package: there is no dpkg-deb");
        return Ok(Vec::new());
    }
    fs::create_dir_all(&release.folder)?;
    let file = archive(release);
    package(release, &version(&release.version), LEVEL, &file)?;
    Ok(vec![file])
}

fn architecture(release: &Release<'_>) -> &'static str {
    match release.architecture {
        Architecture::X86_64 => "amd64",
        Architecture::Aarch64 => "arm64",
    }
}

/// Debian's form of a version: `~` is what sorts before a release.
fn version(semantic: &str) -> String {
    semantic.replacen('-', "~", 1)
}

/// Writes the package of this version to `file`, compressed to this level.
pub(super) fn package(release: &Release<'_>, version: &str, level: u8, file: &Path) -> Result<()> {
    let folder = release.root.with_file_name("deb");
    files::remove(&folder)?;
    run::progress("Packaging", &file.display().to_string());
    let tree = tree(release, version)?;
    tree.write_files(&folder)?;
    let mut paths = compress(&tree, &folder)?;
    paths.sort();
    let sums = run::capture(Command::new("md5sum").args(&paths).current_dir(&folder))?;
    write_control(release, version, tree.bytes(), &folder.join("DEBIAN"), &sums)?;
    let mut build = Command::new(DPKG_DEB);
    // dpkg reads zstd only in newer versions than the program needs. With several threads, xz writes other bytes.
    build.args(["--root-owner-group", "-Zxz", &format!("-z{level}"), "--build"]).arg(&folder).arg(file);
    build.env("DPKG_DEB_THREADS_MAX", "1").env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    run::log(release.workspace, "build the Debian package", &mut build, run::UNLIMITED)?;
    Ok(fs::remove_dir_all(&folder)?)
}

fn tree(release: &Release<'_>, version: &str) -> Result<Tree> {
    let deploy = release.workspace.root.join("deploy");
    let mut tree = Tree::default();
    tree.copy(&release.root.join("bin"), Path::new("usr/bin"))?;
    tree.copy(&release.root.join("share"), Path::new("usr/share"))?;
    // Debian has the text of the licence.
    tree.remove(Path::new(DOCUMENTATION).join("LICENSE").as_path());
    tree.add_file(&format!("{DOCUMENTATION}/copyright"), fs::read(deploy.join("debian/copyright"))?);
    let log = changelog(version, release.epoch)?;
    tree.add_file(&format!("{DOCUMENTATION}/changelog"), log);

    let systemd = deploy.join("systemd");
    let unit = fs::read_to_string(systemd.join("a2g-executor.service"))?;
    tree.add_file(UNIT, replaced(&unit, "ExecStart=/usr/local/bin/", "ExecStart=/usr/bin/")?);
    let user = fs::read(systemd.join("a2g-executor.sysusers"))?;
    tree.add_file("usr/lib/sysusers.d/a2g-executor.conf", user);
    let example = fs::read_to_string(systemd.join("executor.toml"))?;
    let tools = "tools = \"/usr/share/a2g-executor/tools\"";
    tree.add_file(CONFIGURATION, replaced(&example, "tools = \"/var/lib/a2g-executor/tools\"", tools)?);
    Ok(tree)
}

/// A text in which `from` has to be.
fn replaced(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.matches(from).count() == 1, "`{from}` is expected once in a file below deploy/systemd");
    Ok(text.replace(from, to))
}

/// Compresses what Debian wants compressed. Returns the paths of all files but those of the configuration, for the sums.
fn compress(tree: &Tree, folder: &Path) -> Result<Vec<PathBuf>> {
    let is_compressed =
        |path: &Path| path.starts_with("usr/share/man") || path == Path::new(DOCUMENTATION).join("changelog");
    let (compressed, others): (Vec<_>, Vec<_>) =
        tree.files_below("usr").into_iter().partition(|path| is_compressed(path));
    let mut gzip = Command::new("gzip");
    gzip.args(["--best", "--no-name"]).args(&compressed).current_dir(folder);
    run::capture(&mut gzip)?;
    let compressed = compressed.into_iter().map(|path| format!("{}.gz", path.display()).into());
    Ok(others.into_iter().chain(compressed).collect())
}

/// Writes what dpkg reads.
fn write_control(
    release: &Release<'_>,
    version: &str,
    bytes: usize,
    folder: &Path,
    sums: &str,
) -> Result<()> {
    let sources = release.workspace.root.join("deploy/debian");
    let (major, minor) = needed_glibc(&fs::read(release.root.join("bin/a2g-executor"))?)
        .context("the program is not linked with glibc")?;
    let control = fs::read_to_string(sources.join("control"))?
        .replace("VERSION", version)
        .replace("ARCHITECTURE", architecture(release))
        .replace("SIZE", &bytes.div_ceil(1024).to_string())
        .replace("GLIBC", &format!("{major}.{minor}"));
    let mut tree = Tree::default();
    tree.add_file("control", control);
    tree.add_file("conffiles", format!("/{CONFIGURATION}\n"));
    tree.add_file("md5sums", format!("{sums}\n"));
    for script in SCRIPTS {
        tree.add_program(script, fs::read(sources.join(script))?);
    }
    tree.write_files(folder)
}

/// The newest version of glibc whose symbols a program uses.
fn needed_glibc(program: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let starts = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let versions = starts.filter_map(|(start, _)| {
        let rest = program.get(start + MARK.len()..)?;
        let text = rest.split(|byte| *byte == 0).next()?;
        let mut numbers = std::str::from_utf8(text).ok()?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

/// Debian's log of changes has the versions of the package.
fn changelog(version: &str, epoch: u64) -> Result<String> {
    let date =
        run::capture(Command::new("date").args(["--utc", "--rfc-email", &format!("--date=@{epoch}")]))?;
    Ok(format!(
        "a2g-executor ({version}) stable; urgency=medium\n\n  * Version {version}. CHANGELOG.md has what is new.\n\n \
         -- A2G executor maintainers <maintainers@a2g-executor.invalid>  {date}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_is_found() {
        let program = b"\0GLIBC_2.9\0GLIBC_2.28\0GLIBC_2.2.5\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(needed_glibc(program), Some((2, 28)));
        assert_eq!(needed_glibc(b"musl"), None);
    }

    #[test]
    fn a_version_before_a_release_sorts_before_it() {
        assert_eq!(version("0.2.0-rc.1"), "0.2.0~rc.1");
        assert_eq!(version("0.2.0"), "0.2.0");
    }
}
