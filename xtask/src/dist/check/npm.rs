//! Installs the packages for npm from a registry on this machine, and uses what is then there.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use fs_err as fs;

use super::install::{expect_config, expect_refusal, expect_version, private};
use super::{Shared, required};
use crate::dist::npm;
use crate::run;
use crate::setup;

/// The first npm that runs no install script unless it is allowed by name.
const NPM: &str = "npm@12.2.0";
const VERDACCIO: &str = "verdaccio@6.10.4";
/// The requirement of verdaccio beside itself: its own choice of node-fetch is not in every registry.
const VERDACCIO_MANIFEST: &str = r#"{ "private": true, "overrides": { "node-fetch": "2.7.0" } }"#;
const REGISTRY_START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A registry for npm on this machine, with the packages of the release. It ends on drop.
pub(super) struct Registry {
    process: Child,
    pub(super) url: String,
    /// The `node_modules` with Node.js, npm and the registry.
    pub(super) modules: PathBuf,
}

impl Registry {
    pub(super) fn start(shared: &Shared<'_>) -> Result<Self> {
        let packages = [setup::NODE, NPM, VERDACCIO];
        let modules =
            setup::install_npm(shared.release.workspace, "registry", VERDACCIO_MANIFEST, &packages)?;
        let modules = required(modules, "npm or verdaccio cannot be installed")?;
        let home = shared.home("registry")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let url = format!("http://127.0.0.1:{port}/");
        // Without a registry behind it.
        let config = "storage: ./storage\nuplinks: {}\nmax_body_size: 400mb\nweb: { enable: false }\n\
                      packages: { '**': { access: $all, publish: $all } }\nlog: { type: stdout, level: warn }\n";
        fs::write(home.join("config.yaml"), config)?;
        let bin = modules.join(".bin");
        let mut verdaccio = private("verdaccio", &home, &[&bin]);
        verdaccio.args(["--config", "config.yaml", "--listen", &format!("127.0.0.1:{port}")]);
        let log = fs::File::create(home.join("log"))?.into_parts().0;
        let process = verdaccio.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let registry = Self { process, url, modules };
        let started = run::now();
        while !registry.answers() {
            ensure!(started.elapsed() < REGISTRY_START_TIMEOUT, "the registry for npm does not start");
            std::thread::sleep(POLL_INTERVAL);
        }
        for package in fs::read_dir(shared.release.folder.join("npm"))? {
            let package = package?.path();
            if package.extension().is_none_or(|kind| kind != "tgz") {
                continue;
            }
            let mut publish = private("npm", &home, &[&bin]);
            publish.args(["publish", "--registry", &registry.url]).arg(package);
            // npm wants a token, even where everybody may publish.
            publish.arg(format!("--//127.0.0.1:{port}/:_authToken=none"));
            shared.log("publish the packages for npm", &mut publish)?;
        }
        Ok(registry)
    }

    fn answers(&self) -> bool {
        let request = minreq::get(format!("{}-/ping", self.url)).with_timeout(1);
        request.send().is_ok_and(|response| response.status_code == 200)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended already.
        let _has_ended = self.process.kill();
        let _was_reaped = self.process.wait();
    }
}

pub(super) fn check(shared: &Shared<'_>) -> Result<()> {
    let registry = shared.registry()?;
    let bin = registry.modules.join(".bin");
    // This machine's Node.js, which may be another version, and the newest npm.
    let nodes: [(&str, &[&Path]); 2] = [("node", &[]), ("node-22", &[&bin])];
    for (name, first) in nodes {
        let home = shared.home(&format!("npm-{name}"))?;
        let Some(version) = run::output(private("node", &home, first).arg("--version")) else {
            run::progress("Skipped", &format!("{name}: this machine has none"));
            continue;
        };
        let npm = |words: &[&str]| -> Command {
            let mut command = private("npm", &home, first);
            command.args(words).args(["--registry", &registry.url, "--no-fund", "--no-audit"]);
            command
        };
        let started = run::now();
        let start = |words: &[&str]| -> Command {
            let mut command = private("npx", &home, first);
            command.args(["--registry", &registry.url, "-y", npm::NAME]).args(words);
            command
        };
        let way = format!("npx with Node.js {version}");
        shared.use_tools(&way, &home.to_string_lossy(), started, &start)?;
        expect_config(&start, "npx", "--registry")?;

        let prefix = home.join("prefix");
        let place = prefix.to_string_lossy();
        shared.log(
            "install the package with npm for all projects",
            &mut npm(&["install", "--global", "--ignore-scripts", "--prefix", &place, npm::NAME]),
        )?;
        let program = prefix.join("bin").join(npm::NAME);
        expect_version(&mut private(&program.to_string_lossy(), &home, first), &shared.release.version)?;

        let platform = npm::platform_name(shared.release.architecture);
        for (project, option) in [("omitted", "--omit=optional"), ("musl", "--libc=musl")] {
            let folder = home.join(project);
            fs::create_dir(&folder)?;
            let place = folder.to_string_lossy();
            shared.log(
                &format!("install the package with npm {option}"),
                &mut npm(&["install", option, "--prefix", &place, npm::NAME]),
            )?;
            let script = folder.join("node_modules/.bin").join(npm::NAME);
            let mut launcher = private(&script.to_string_lossy(), &home, first);
            expect_refusal(&mut launcher, 1, &format!("the package {platform} is missing"))?;
        }
    }
    Ok(())
}
