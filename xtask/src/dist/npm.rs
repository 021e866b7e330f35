//! The packages for npm: `a2g-executor` with a launcher, and one package for each platform with the program and its
//! tools, which the first has as optional dependencies.
//!
//! npm, pnpm and yarn install the optional dependency whose `os`, `cpu` and `libc` are those of the machine. No package
//! has an install script: npm 12 runs none. The names have no scope, because a scope is an organisation of a registry,
//! which this project does not have; `-gnu` leaves room for a program that is linked against musl.
//!
//! The archives are written here instead of by `npm pack`, whose compression depends on the version of Node.js, and so
//! that making them needs no Node.js.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use flate2::write::GzEncoder;
use fs_err as fs;
use serde_json::{Map, Value, json};
use tar::Header;

use super::files::{self, PUBLIC, READABLE};
use super::server_json;
use super::tarball::Tarball;
use super::{Architecture, Release};

pub(crate) const NAME: &str = "a2g-executor";
/// The oldest Node.js that the launcher needs.
const NODE: &str = ">=18";

/// The name of a processor in Node.js.
fn cpu(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "x64",
        Architecture::Aarch64 => "arm64",
    }
}

pub(crate) fn platform_name(architecture: Architecture) -> String {
    format!("{NAME}-linux-{}-gnu", cpu(architecture))
}

/// The package of the launcher, which is the same for each architecture.
pub(crate) fn build_launcher(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let sources = release.workspace.root.join("deploy/npm");
    let platforms = Architecture::ALL.map(platform_name);
    let optional = platforms.into_iter().map(|name| (name, json!(release.version)));
    let script = format!("bin/{NAME}.js");
    let manifest = json!({
        "name": NAME,
        "version": release.version,
        "description": server_json::DESCRIPTION,
        "license": "Apache-2.0",
        "mcpName": server_json::NAME,
        "bin": { NAME: script },
        "engines": { "node": NODE },
        "optionalDependencies": optional.collect::<Map<_, _>>(),
    });
    let mut package = Package::new(release, &manifest)?;
    package.add("LICENSE", READABLE, &fs::read(release.workspace.root.join("LICENSE"))?)?;
    package.add("README.md", READABLE, &fs::read(sources.join("README.md"))?)?;
    package.add(&script, PUBLIC, &fs::read(sources.join(&script))?)?;
    package.write(release, NAME)
}

/// The package of the program for a platform.
pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let name = platform_name(release.architecture);
    let description = format!("The program of the package {NAME} for Linux with glibc 2.28 or newer");
    let manifest = json!({
        "name": name,
        "version": release.version,
        "description": description,
        "license": "Apache-2.0",
        "os": ["linux"],
        "cpu": [cpu(release.architecture)],
        "libc": ["glibc"],
        // yarn, which keeps packages in archives, unpacks this one, so that the program can be executed.
        "preferUnplugged": true,
    });
    let mut package = Package::new(release, &manifest)?;
    let readme = format!("# {name}\n\n{description}. Install {NAME} instead.\n");
    package.add("README.md", READABLE, readme.as_bytes())?;
    let mut has_program = false;
    for entry in files::list(&release.root)? {
        let place = if let Some(document) = entry.path.strip_prefix("share/doc/a2g-executor/") {
            // The documents that a package has to have, beside its manifest.
            match document {
                "LICENSE" | "a2g-executor.cdx.json" => document,
                _ => continue,
            }
        } else if entry.path.starts_with("bin/") || entry.path.starts_with("share/a2g-executor/") {
            has_program |= entry.path == "bin/a2g-executor";
            entry.path.as_str()
        } else {
            // npm installs neither manual pages of a dependency nor completions.
            continue;
        };
        package.add(place, entry.mode, &fs::read(&entry.file)?)?;
    }
    ensure!(has_program, "{} has no bin/a2g-executor", release.root.display());
    package.write(release, &name)
}

/// A package that is being written: an archive whose files are below `package/`.
struct Package(Tarball<GzEncoder<Vec<u8>>>);

impl Package {
    /// `manifest` is its package.json.
    fn new(release: &Release<'_>, manifest: &Value) -> Result<Self> {
        let mut package = Self(Tarball::compressed(Header::new_ustar(), release.epoch));
        package.add("package.json", READABLE, format!("{manifest:#}\n").as_bytes())?;
        Ok(package)
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.0.add_file(&format!("package/{path}"), mode, content)
    }

    fn write(self, release: &Release<'_>, name: &str) -> Result<Vec<PathBuf>> {
        let folder = release.folder.join("npm");
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{name}-{}.tgz", release.version));
        fs::write(&path, self.0.into_bytes()?)?;
        Ok(vec![path])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::{Child, Command, Output, Stdio};

    use flate2::read::GzDecoder;
    use tar::Archive;

    use super::*;
    use crate::dist::tests::Sample;

    /// Says what it was given, and ends as its first argument says.
    const PROGRAM: &str = "#!/bin/sh\n\
        case $1 in\n\
        exit) exit $2;;\n\
        kill) kill -$2 $$;;\n\
        wait) trap 'echo got $2; exit 7' $2; echo ready; while :; do sleep 0.05; done;;\n\
        *) echo \"$@\"; cat;;\n\
        esac\n";

    /// The paths, modes and contents of an archive.
    fn contents(path: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = Archive::new(GzDecoder::new(fs::File::open(path).unwrap()));
        let mut contents = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 1_700_000_000));
            let mode = header.mode().unwrap();
            let path = entry.path().unwrap().to_str().unwrap().strip_prefix("package/").unwrap().to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            contents.insert(path, (mode, content));
        }
        contents
    }

    /// The launcher's package and the platform's.
    fn packages_of(release: &Release<'_>) -> Vec<PathBuf> {
        [build_launcher, build].iter().flat_map(|build| build(release).unwrap()).collect()
    }

    fn manifest(contents: &BTreeMap<String, (u32, Vec<u8>)>) -> Value {
        serde_json::from_slice(&contents["package.json"].1).unwrap()
    }

    #[test]
    fn packages_have_no_scripts_and_the_same_bytes_each_time() {
        let sample = Sample::new(PROGRAM);
        let packages = packages_of(&sample.release());
        let [launcher, platform] = packages.as_slice() else { panic!("{packages:?}") };
        assert_eq!(launcher.file_name().unwrap(), "a2g-executor-0.1.0.tgz");
        assert_eq!(platform.file_name().unwrap(), "a2g-executor-linux-x64-gnu-0.1.0.tgz");
        let aarch64 = Release { architecture: Architecture::Aarch64, ..sample.release() };
        let before = packages.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>();
        let other = Sample::new(PROGRAM);
        let again = packages_of(&other.release());
        assert_eq!(again.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), before);
        let arm = packages_of(&aarch64);
        assert_eq!(fs::read(&arm[0]).unwrap(), before[0], "the launcher is that of one architecture");

        let contents_of_launcher = contents(launcher);
        let names: Vec<&str> = contents_of_launcher.keys().map(String::as_str).collect();
        assert_eq!(names, ["LICENSE", "README.md", "bin/a2g-executor.js", "package.json"]);
        assert_eq!(contents_of_launcher["bin/a2g-executor.js"].0, 0o755);
        let text = String::from_utf8(contents_of_launcher["bin/a2g-executor.js"].1.clone()).unwrap();
        assert!(text.lines().count() <= 40, "the launcher has {} lines", text.lines().count());

        let contents_of_platform = contents(platform);
        let names: Vec<(&str, u32)> =
            contents_of_platform.iter().map(|(name, (mode, _))| (name.as_str(), *mode)).collect();
        assert_eq!(
            names,
            [
                ("LICENSE", 0o644),
                ("README.md", 0o644),
                ("a2g-executor.cdx.json", 0o644),
                ("bin/a2g-executor", 0o755),
                ("package.json", 0o644),
                ("share/a2g-executor/tools/greet/tool.toml", 0o644),
                ("share/a2g-executor/tools/greet/tool.wasm", 0o644),
            ]
        );
        let needed = &manifest(&contents_of_launcher)["optionalDependencies"];
        for (path, cpu) in [(platform, "x64"), (&arm[1], "arm64")] {
            let manifest = manifest(&contents(path));
            assert_eq!(manifest["cpu"], json!([cpu]));
            assert_eq!((&manifest["os"], &manifest["libc"]), (&json!(["linux"]), &json!(["glibc"])));
            assert_eq!(needed[manifest["name"].as_str().unwrap()], "0.1.0");
        }
        for contents in [contents_of_launcher, contents_of_platform] {
            let manifest = manifest(&contents);
            assert!(
                manifest.get("scripts").is_none() && manifest.get("dependencies").is_none(),
                "{manifest}"
            );
        }
    }

    /// The programs Node.js to test with: this machine's, and the one that the clients use.
    fn nodes() -> Vec<PathBuf> {
        let program = std::env::current_exe().unwrap();
        let target = program.ancestors().nth(3).unwrap();
        let installed = target.join("xtask/clients/node22/node_modules/node/bin/node");
        let nodes = [PathBuf::from("node"), installed].into_iter();
        let nodes: Vec<PathBuf> = nodes
            .filter(|node| {
                let version = Command::new(node).arg("--version").output();
                version.is_ok_and(|output| output.status.success() && !output.stdout.starts_with(b"v1"))
            })
            .collect();
        if nodes.is_empty() {
            eprintln!("skipped: there is no Node.js");
        }
        nodes
    }

    /// Unpacks the packages into `node_modules` of a folder, as npm does.
    fn install(folder: &Path, packages: &[&PathBuf]) -> PathBuf {
        let modules = folder.join("node_modules");
        for path in packages {
            let name = path.file_name().unwrap().to_str().unwrap().strip_suffix("-0.1.0.tgz").unwrap();
            Archive::new(GzDecoder::new(fs::File::open(path).unwrap())).unpack(folder).unwrap();
            fs::create_dir_all(&modules).unwrap();
            fs::rename(folder.join("package"), modules.join(name)).unwrap();
        }
        modules.join(NAME).join("bin/a2g-executor.js")
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn the_launcher_is_the_program_to_whoever_starts_it() {
        let sample = Sample::new(PROGRAM);
        let packages = packages_of(&sample.release());
        let folder = tempfile::tempdir().unwrap();
        let script = install(folder.path(), &packages.iter().collect::<Vec<_>>());
        for node in nodes() {
            let start = |words: &[&str]| -> Child {
                let mut command = Command::new(&node);
                command.arg(&script).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
                command.spawn().unwrap()
            };
            let run = |words: &[&str]| -> Output { start(words).wait_with_output().unwrap() };
            let mut child = start(&["mcp", "--scope", "a b"]);
            io::Write::write_all(&mut child.stdin.take().unwrap(), b"{}\n").unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(text(&output.stdout), "mcp --scope a b\n{}\n", "{node:?}");
            assert_eq!(run(&["exit", "3"]).status.code(), Some(3), "{node:?}");
            assert_eq!(run(&["kill", "KILL"]).status.signal(), Some(9), "{node:?}");
            assert_eq!(run(&["kill", "TERM"]).status.signal(), Some(15), "{node:?}");
            for signal in ["INT", "TERM", "HUP"] {
                let mut child = start(&["wait", signal]);
                let mut ready = [0; 6];
                child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
                let id = child.id().to_string();
                assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
                let output = child.wait_with_output().unwrap();
                assert_eq!(text(&output.stdout), format!("got {signal}\n"), "{node:?}");
                assert_eq!(output.status.code(), Some(7), "{node:?}");
            }
        }
    }

    #[test]
    fn the_launcher_says_which_package_is_missing_and_why() {
        let sample = Sample::new(PROGRAM);
        let packages = packages_of(&sample.release());
        let folder = tempfile::tempdir().unwrap();
        let script = install(folder.path(), &[&packages[0]]);
        // Each makes Node.js say something else about the machine before the launcher asks.
        let musl = "process.report.getReport = () => ({ header: {} });";
        let mac = "Object.defineProperty(process, 'platform', { value: 'darwin' });";
        let cases = [
            ("", "a2g-executor-linux-x64-gnu is missing or incomplete"),
            (musl, "a2g-executor-linux-x64-gnu needs glibc 2.28 or newer"),
            (mac, "a2g-executor runs on Linux (x64, arm64), not on darwin"),
        ];
        if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
            return;
        }
        for node in nodes() {
            for (preload, expected) in cases {
                let file = folder.path().join("preload.js");
                fs::write(&file, preload).unwrap();
                let output =
                    Command::new(&node).arg("--require").arg(&file).arg(&script).arg("x").output().unwrap();
                let message = text(&output.stderr);
                assert!(message.starts_with("error: ") && message.contains(expected), "{message}");
                assert_eq!((message.lines().count(), output.status.code()), (1, Some(1)), "{message}");
            }
        }
        // The same without the program in its package.
        let platform = install(&folder.path().join("other"), &packages.iter().collect::<Vec<_>>());
        let program =
            platform.ancestors().nth(3).unwrap().join("a2g-executor-linux-x64-gnu/bin/a2g-executor");
        fs::remove_file(program).unwrap();
        for node in nodes() {
            let output = Command::new(&node).arg(&platform).output().unwrap();
            assert!(text(&output.stderr).contains("is missing or incomplete"), "{}", text(&output.stderr));
        }
    }
}
