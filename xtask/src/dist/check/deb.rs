//! Checks the Debian package as people use it: in a new root of Debian with systemd as process 1, it is installed,
//! started, called, upgraded over an older version, and purged.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::{Shared, debian_root, note, require};
use crate::dist::podman::Podman;
use crate::dist::{deb, files};
use crate::run;
use crate::setup;

/// A version before any that was published.
const OLDER: &str = "0.0.9";
const USER: &str = "a2g-executor";
const SERVICE: &str = "a2g-executor.service";
const CONTAINER: &str = "a2g-debian";
/// The folder of tools, which the configuration mounts as `/workspace`.
const WORKSPACE: &str = "/srv/agents/workspace";
/// The packages of both versions, inside the root.
const PACKAGES: &str = "/packages";
const SYSUSERS: &str = "/usr/bin/systemd-sysusers";
/// Waits for up to 60 s until the executor listens.
const AWAIT_PORT: &str =
    "for _ in {1..300}; do (: < /dev/tcp/127.0.0.1/7420) 2> /dev/null && exit; sleep 0.2; done; exit 1";
const LINTIAN_TIMEOUT: Duration = Duration::from_secs(1200);
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Uses the package in a root of this machine's Debian.
pub(super) fn check(shared: &Shared<'_>) -> Result<()> {
    let release = shared.release;
    let package = deb::archive(release);
    require(package.exists(), "there is no Debian package")?;
    let podman = Podman::find(release.workspace)?;
    let system = fs::read_to_string("/etc/os-release")?;
    let debian = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let debian = debian.context("/etc/os-release has no VERSION_CODENAME")?;
    let base = debian_root::prepare(release.workspace, debian, "systemd,systemd-sysv")?;
    let root = release.root.with_file_name("debian");
    files::remove(&root)?;
    run::capture(Command::new("cp").arg("--archive").args([&base, &root]))?;
    let packages = root.join(PACKAGES.trim_start_matches('/'));
    fs::create_dir(&packages)?;
    fs::copy(&package, packages.join("newer.deb"))?;
    // It is not downloaded, so it is not compressed.
    deb::package(release, OLDER, 0, &packages.join("older.deb"))?;
    let has_systemd = start(&podman, &root)?;
    let machine = Machine { podman: &podman, has_systemd, tools: shared.tools()? };
    machine.check(&release.version)?;
    podman.output(["rm", "--force", "--time=0", CONTAINER])?;
    Ok(fs::remove_dir_all(&root)?)
}

/// Lets lintian compare the package with the rules of Debian.
pub(super) fn check_rules(shared: &Shared<'_>) -> Result<()> {
    let package = deb::archive(shared.release);
    require(package.exists(), "there is no Debian package")?;
    require(setup::prepare_lintian(shared.release.workspace)?, "there is no lintian")?;
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error"]).arg(package);
    let what = "accept the Debian package with lintian";
    run::log(shared.release.workspace, what, &mut lintian, LINTIAN_TIMEOUT)
}

/// Starts the root as a container with systemd, or, where systemd does not start, with a program that only waits.
fn start(podman: &Podman, root: &Path) -> Result<bool> {
    let run = |program: &[&str]| {
        let mut command = podman.run(["--detach", "--name", CONTAINER, "--network=none", "--systemd=always"]);
        run::capture(command.arg("--rootfs").arg(root).args(program))
    };
    run(&["/sbin/init"])?;
    let started = run::now();
    while started.elapsed() < BOOT_TIMEOUT {
        let mut state = podman.command(["exec", CONTAINER, "systemctl", "is-system-running"]);
        let state = state.output()?.stdout;
        // A unit that a container cannot have does not concern the package.
        if ["running", "degraded"].contains(&String::from_utf8_lossy(&state).trim()) {
            return Ok(true);
        }
        thread::sleep(POLL_INTERVAL);
    }
    run::progress("Skipped", "the started unit: systemd does not start in a container here");
    podman.output(["rm", "--force", "--ignore", "--time=0", CONTAINER])?;
    run(&["/bin/sleep", "infinity"])?;
    Ok(false)
}

/// The running root.
struct Machine<'a> {
    podman: &'a Podman,
    has_systemd: bool,
    tools: Vec<String>,
}

impl Machine<'_> {
    fn check(&self, version: &str) -> Result<()> {
        run::progress("Checking", "the Debian package: an installation");
        self.install("older.deb")?;
        self.run(&["a2g-executor", "--version"])?;
        let unit =
            self.run(&["sh", "-c", &format!("systemd-analyze verify --man=no {SERVICE} 2>&1 || true")])?;
        ensure!(unit.is_empty(), "systemd-analyze verify: {unit}");
        self.run_as_user(&["a2g-executor", "doctor", "--config", &configuration()])?;
        self.configure()?;
        if self.has_systemd {
            run::progress("Checking", "the Debian package: the started unit");
            self.run(&["systemctl", "enable", "--now", SERVICE])?;
            self.call()?;
            self.run(&["systemctl", "reload", SERVICE])?;
        }

        run::progress("Checking", "the Debian package: an upgrade");
        let configured = self.run(&["cat", &configuration()])?;
        self.install("newer.deb")?;
        let installed = self.run(&["dpkg-query", "--show", "--showformat=${Version}", "a2g-executor"])?;
        ensure!(installed == version, "version {installed} is installed instead of {version}");
        let kept = self.run(&["cat", &configuration()])?;
        ensure!(kept == configured, "the upgrade has changed the configuration:\n{kept}");
        if self.has_systemd {
            self.call()?;
            let list = ["a2g-executor", "journal", "list", "--json", "--config", &configuration()];
            let calls = self.run_as_user(&list)?.matches("\"hash_file\"").count();
            ensure!(calls == 2, "the journal has {calls} calls instead of the one before and the one after");
        }

        run::progress("Checking", "the Debian package: its removal");
        self.purge()?;
        // The packages of a system without systemd-sysusers.
        self.run(&["userdel", USER])?;
        self.run(&["mv", SYSUSERS, "/root/sysusers"])?;
        self.install("newer.deb")?;
        self.run(&["id", USER])?;
        self.purge()
    }

    /// Runs a program as root.
    fn run(&self, words: &[&str]) -> Result<String> {
        run::capture(self.podman.command(["exec", CONTAINER]).args(words))
    }

    /// Runs a program as the user of the unit.
    fn run_as_user(&self, words: &[&str]) -> Result<String> {
        run::capture(self.podman.command(["exec", "--user", USER, CONTAINER]).args(words))
    }

    fn install(&self, name: &str) -> Result<()> {
        self.run(&["dpkg", "--install", &format!("{PACKAGES}/{name}")]).map(drop)
    }

    /// Does what a person does: adds a folder for tools to the configuration.
    fn configure(&self) -> Result<()> {
        let mount = format!("[[mount]]\nguest = \"/workspace\"\nhost = \"{WORKSPACE}\"");
        let file = note::FILE;
        let text = note::TEXT.trim_end();
        let path = configuration();
        let script = format!(
            "mkdir --parents {WORKSPACE}; echo '{text}' > {WORKSPACE}/{file}; echo '{mount}' >> {path}"
        );
        self.run(&["sh", "-euc", &script]).map(drop)
    }

    /// Calls a tool of the running unit, once it listens.
    fn call(&self) -> Result<()> {
        self.run(&["bash", "-c", AWAIT_PORT])?;
        let url = "http://127.0.0.1:7420/mcp";
        let words = ["exec", "--interactive", CONTAINER, "a2g-executor", "mcp", "--connect", url];
        note::hash_by_mcp(&mut self.podman.command(words), &self.tools)
    }

    /// Purges the package. It leaves nothing but its user.
    fn purge(&self) -> Result<()> {
        self.run(&["dpkg", "--purge", "a2g-executor"])?;
        let left = self.run(&["find", "/", "-xdev", "-name", "*a2g-executor*"])?;
        ensure!(left.is_empty(), "the purged package has left {left}");
        Ok(())
    }
}

/// The configuration's path.
fn configuration() -> String {
    format!("/{}", deb::CONFIGURATION)
}
