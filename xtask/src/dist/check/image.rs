//! Checks the finished image by running it with podman: as people start it, and where it has to hold.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use uuid::Uuid;

use super::{Shared, note};
use crate::demo::client::{Client, at, text};
use crate::demo::fixture::Server;
use crate::dist::podman::Podman;
use crate::dist::{Release, image};
use crate::run;

/// The largest sum of the lengths of the image's files, in bytes.
const MAX_IMAGE: u64 = 90_000_000;
const CONFIGURATION: &str = "/etc/a2g-executor/executor.toml";
/// The default of `executor.drain_seconds`, and the 5 s that a slow machine may take in addition.
const MAX_STOP: Duration = Duration::from_secs(15);
/// The time that compiling the largest tool takes, or ends for want of memory.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Without swap, which would only make the end slower.
const MEMORY_LIMIT: [&str; 3] = ["--init", "--memory=256m", "--memory-swap=256m"];

pub(super) fn check(shared: &Shared<'_>) -> Result<()> {
    let podman = Podman::find(shared.release.workspace)?;
    let archive = image::archive(shared.release);
    ensure!(archive.exists(), "podman has not made the image: the line `Skipped` above says why");
    run::capture(podman.command(["load", "--quiet", "--input"]).arg(archive))?;
    let checks = Checks::create(shared, &podman)?;
    let steps: [(&str, Check<'_>); 7] = [
        ("the controls in a container", Checks::check_controls),
        ("calls by `mcp`, with a read-only root", Checks::check_mcp),
        ("the owners of volumes", Checks::check_volumes),
        ("calls of `serve`, and its end", Checks::check_serve),
        ("file changes that wait for a decision", Checks::check_changes),
        ("a memory limit", Checks::check_memory),
        ("the size", Checks::check_size),
    ];
    for (what, check) in steps {
        run::progress("Checking", &format!("the image: {what}"));
        check(&checks).with_context(|| format!("the image, {what}"))?;
    }
    Ok(())
}

type Check<'a> = fn(&Checks<'a>) -> Result<()>;

/// The state that all checks share.
struct Checks<'a> {
    release: &'a Release<'a>,
    podman: &'a Podman,
    name: String,
    /// The tools that `mcp` lists.
    tools: Vec<String>,
    /// The folder that tools get as `/workspace`, and other files.
    folder: TempDir,
    /// The options of podman for each list of system calls: podman's own, and that of this repository.
    seccomp: [Vec<String>; 2],
}

/// A running container. Dropping it ends and removes it.
struct Container<'a> {
    podman: &'a Podman,
    name: String,
    server: Server,
    log: PathBuf,
}

impl<'a> Checks<'a> {
    fn create(shared: &Shared<'a>, podman: &'a Podman) -> Result<Self> {
        let release = shared.release;
        let folder = tempfile::tempdir()?;
        // The user of the container has another id.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(folder.path().join("workspace"))?;
        fs::set_permissions(folder.path().join("workspace"), Permissions::from_mode(0o777))?;
        fs::write(folder.path().join("workspace").join(note::FILE), note::TEXT)?;
        let profile = release.workspace.root.join("deploy/container/seccomp.json");
        let seccomp = [Vec::new(), vec![format!("--security-opt=seccomp={}", profile.display())]];
        let name = format!("{}:{}", image::NAME, release.version);
        Ok(Self { release, podman, name, tools: shared.tools()?, folder, seccomp })
    }

    /// The option that gives the tools their folder.
    fn workspace(&self) -> String {
        format!("--volume={}:/workspace", self.folder.path().join("workspace").display())
    }

    fn check_size(&self) -> Result<()> {
        let size = self.podman.output(["image", "inspect", "--format={{.Size}}", &self.name])?;
        super::ensure_size("the image", size.parse().context("podman printed no size")?, MAX_IMAGE)
    }

    /// All controls exist but control groups, which nobody delegates to a container.
    fn check_controls(&self) -> Result<()> {
        for seccomp in &self.seccomp {
            let mut doctor = self.podman.run(["--network=none", "--cap-drop=all"]);
            doctor.args(seccomp).args([&self.name, "doctor", "--json"]);
            let found: Value = serde_json::from_str(&run::capture(&mut doctor)?)?;
            let controls = found.as_array().context("`doctor --json` lists no controls")?;
            let missing = controls.iter().filter(|control| !at(control, "/missing").is_null());
            let missing: Vec<&str> = missing.map(|control| text(control, "/name")).collect();
            ensure!(missing == ["cgroup"], "these controls are missing with {seccomp:?}: {missing:?}");
        }
        Ok(())
    }

    fn check_mcp(&self) -> Result<()> {
        for seccomp in &self.seccomp {
            let mut mcp =
                self.podman.run(["--interactive", "--network=none", "--cap-drop=all", "--read-only"]);
            mcp.args(seccomp).args([&self.workspace(), &self.name, "mcp", "--scope", "/workspace"]);
            note::hash_by_mcp(&mut mcp, &self.tools)?;
        }
        Ok(())
    }

    /// A new volume, and one that was created empty, belong to the user of the image, and the journal stays.
    fn check_volumes(&self) -> Result<()> {
        self.podman.output(["volume", "create", "journal"])?;
        let folders = [("journal", "/var/lib/a2g-executor"), ("cache", "/var/cache/a2g-executor")];
        let volumes = folders.map(|(name, folder)| format!("--volume={name}:{folder}"));
        let container = self.start(&volumes, &[])?;
        container.hash_note()?;
        container.stop()?;
        let mut list = self.podman.run(&volumes);
        list.args(["--network=none", &self.name, "journal", "list", "--json", "--config", CONFIGURATION]);
        let list = run::capture(&mut list)?;
        ensure!(list.contains("\"hash_file\""), "the journal does not have the call: {list}");
        for (name, _) in folders {
            let folder = self.podman.output(["volume", "inspect", "--format={{.Mountpoint}}", name])?;
            let metadata = fs::metadata(folder)?;
            let found = (u64::from(metadata.uid()), u64::from(metadata.gid()), metadata.mode() & 0o7777);
            ensure!(found == (image::USER, image::USER, 0o700), "the volume `{name}` has {found:?}");
        }
        Ok(())
    }

    fn check_serve(&self) -> Result<()> {
        for init in [&["--init".to_owned()][..], &[]] {
            let container = self.start(init, &[])?;
            container.hash_note()?;
            container.stop().with_context(|| format!("with the options {init:?}"))?;
        }
        Ok(())
    }

    /// A run changes nothing, a commit changes the folder, and an undo takes that back. The folder of the changes is in the
    /// volume of the journal, which is another mount.
    fn check_changes(&self) -> Result<()> {
        let path = |name: &str| self.folder.path().join(name);
        let workspace = self.release.workspace;
        // The last section has the ceilings.
        let example = fs::read_to_string(workspace.root.join("deploy/container/executor.toml"))?;
        fs::write(path("staged.toml"), format!("{example}effects = \"staged\"\n"))?;
        fs::create_dir_all(path("writers"))?;
        let bundled = self.release.root.join("share/a2g-executor/tools/write_file");
        run::capture(Command::new("cp").arg("--recursive").arg(bundled).arg(path("writers")))?;
        let mounts = [("writers", "/tools"), ("staged.toml", CONFIGURATION)];
        let volumes = mounts.map(|(name, to)| format!("--volume={}:{to}:ro", path(name).display()));
        let file = path("workspace/staged.txt");
        for seccomp in &self.seccomp {
            let container = self.start(&[seccomp.as_slice(), &volumes].concat(), &["--tools", "/tools"])?;
            let arguments = json!({ "path": "/workspace/staged.txt", "content": "staged" });
            let staged = container.intent("write_file", &arguments)?;
            let report = at(&staged, "/result/report");
            let is_waiting = text(report, "/status") == "STAGED" && !file.exists();
            ensure!(is_waiting, "the change does not wait with {seccomp:?}: {staged}");
            let set = json!({ "intent": at(report, "/intent_id") });
            let shown =
                json!({ "intent": at(report, "/intent_id"), "digest": at(report, "/usage/effects/digest") });
            for (method, params, is_there) in [("a2g/commit", &shown, true), ("a2g/undo", &set, false)] {
                let decided = Client(container.server.address).call(method, params)?;
                let is_done = text(&decided, "/result/status") == "SUCCESS" && file.exists() == is_there;
                ensure!(is_done, "`{method}` with {seccomp:?}: {decided}");
            }
            container.stop()?;
        }
        Ok(())
    }

    /// The server outlives a compiler and a run that take more memory than the container has.
    fn check_memory(&self) -> Result<()> {
        let limits = MEMORY_LIMIT.map(str::to_owned);
        let mut probe = self.podman.run(&limits);
        if let Err(error) = run::capture(probe.args(["--network=none", &self.name, "--version"])) {
            run::progress("Skipped", &format!("a memory limit of the image: {error:#}"));
            return Ok(());
        }
        let container = self.start(&self.write_bomb()?, &["--tools", "/tools", "--policies", "/policies"])?;
        for _ in 0..2 {
            let outcome = container.intent("memory_bomb", &json!({}))?;
            ensure!(
                text(&outcome, "/result/report/status") == "FAILURE",
                "the run has not failed: {outcome}"
            );
            container.hash_note()?;
        }
        container.stop()?;

        // The largest tools need more memory to compile than there is, and are left out.
        let mut container = self.start(&limits, &[])?;
        container.wait_for("all tools are prepared")?;
        container.hash_note()?;
        container.stop()
    }

    /// Writes a catalogue with a tool that takes all memory, a policy and a configuration that let it. Returns the
    /// options of a container with them.
    fn write_bomb(&self) -> Result<Vec<String>> {
        let path = |name: &str| self.folder.path().join(name);
        let workspace = self.release.workspace;
        let source = workspace.root.join("xtask/src/demo/guests/memory_bomb");
        fs::create_dir_all(path("tools/memory_bomb"))?;
        fs::create_dir_all(path("policies"))?;
        let module = path("tools/memory_bomb/tool.wasm");
        let mut assemble = workspace.cargo(&["run", "--locked", "-p", "xtask", "--features", "wat"]);
        assemble.args(["--bin", "assemble", "--"]).arg(source.with_extension("wat")).arg(&module);
        run::log(workspace, "assemble a tool that takes all memory", &mut assemble, run::UNLIMITED)?;
        let digest = run::to_hex(&Sha256::digest(fs::read(&module)?));
        let descriptor = fs::read_to_string(source.with_extension("toml"))?;
        let descriptor = descriptor.replace("max_memory_mb = 64", "max_memory_mb = 1024");
        fs::write(path("tools/memory_bomb/tool.toml"), format!("sha256 = \"{digest}\"\n{descriptor}"))?;
        let bundled = self.release.root.join("share/a2g-executor/tools/hash_file");
        run::capture(Command::new("cp").arg("--recursive").arg(bundled).arg(path("tools")))?;
        let policy = json!({
            "agent_did": "*", "version": "1",
            "capabilities": {
                "tools": {
                    "memory_bomb": { "allowed": true },
                    "hash_file": { "allowed": true, "constraints": { "paths": ["/workspace/**"] } },
                },
                "resources": { "max_memory_mb": 1024, "max_cpu_percent": 100 },
            },
        });
        fs::write(path("policies/default.json"), policy.to_string())?;
        // The last section has the ceilings.
        let example = fs::read_to_string(workspace.root.join("deploy/container/executor.toml"))?;
        fs::write(path("executor.toml"), format!("{example}max_memory_mb = 1024\n"))?;
        let volumes = [("tools", "/tools"), ("policies", "/policies"), ("executor.toml", CONFIGURATION)];
        let volumes = volumes.map(|(name, to)| format!("--volume={}:{to}:ro", path(name).display()));
        Ok(MEMORY_LIMIT.map(str::to_owned).into_iter().chain(volumes).collect())
    }

    /// Starts a server on a port of this machine.
    fn start(&self, options: &[String], arguments: &[&str]) -> Result<Container<'a>> {
        let name = format!("a2g-{}", Uuid::new_v4());
        let mut command = self.podman.run(["--name", &name, "--network=host", "--cap-drop=all"]);
        command.args(options).args([&self.workspace(), &self.name, "serve", "--config", CONFIGURATION]);
        command.arg("--listen=127.0.0.1:0").args(arguments);
        let log = self.release.workspace.state().join("image.log");
        let server = Server::start("image", command, log.clone(), "")?;
        Ok(Container { podman: self.podman, name, server, log })
    }
}

impl Container<'_> {
    /// Sends an intent, and returns the answer.
    fn intent(&self, tool: &str, arguments: &Value) -> Result<Value> {
        let intent = json!({
            "agent_did": "did:a2g:agent:1.0:check", "intent_id": Uuid::new_v4().to_string(),
            "tool": tool, "arguments": arguments, "context": { "reasoning": "The user asks for it." },
        });
        Client(self.server.address).call("a2g/intent", &intent)
    }

    fn hash_note(&self) -> Result<()> {
        note::ensure_hashed(&self.intent("hash_file", &note::arguments())?)
    }

    /// Waits until the log has a text.
    fn wait_for(&mut self, ready: &str) -> Result<()> {
        let started = run::now();
        while started.elapsed() < COMPILE_TIMEOUT {
            if fs::read_to_string(&self.log)?.contains(ready) {
                return Ok(());
            }
            self.server.check_alive()?;
            thread::sleep(POLL_INTERVAL);
        }
        bail!("the log does not say `{ready}` within {} s: {}", COMPILE_TIMEOUT.as_secs(), self.log.display())
    }

    /// Asks the server to end, as `podman stop` does. It has to end by itself, without an error and in time.
    fn stop(mut self) -> Result<()> {
        let started = run::now();
        self.podman.output(["kill", "--signal=TERM", &self.name])?;
        self.server.wait()?;
        let elapsed = started.elapsed();
        ensure!(elapsed < MAX_STOP, "it has ended after {} s", elapsed.as_secs());
        Ok(())
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // The process that `server` kills is podman's client, and the container would go on.
        let _has_ended = self.podman.command(["rm", "--force", "--time=0", &self.name]).output();
    }
}
