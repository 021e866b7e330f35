//! Installs the wheel and the packages for npm as people do, and uses what is then there.
//!
//! Everything comes from `target/dist`: from its folder for pip, uv and pipx, and from a registry on this machine for npm.
//! Each way has a home folder of its own. The parts that need root, Debian or an agent host are skipped by name where
//! these are missing.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use super::mcp_client::Client;
use super::{Release, npm};
use crate::run::{self, Workspace};
use crate::{collections, debian, setup};

const UV: &str = "uv==0.13.8";
const PIPX: &str = "pipx==1.18.4";
const AUDITWHEEL: &str = "auditwheel==6.8.2";
/// Validates with the schema of [`SKILLSAW`].
const JSONSCHEMA: &str = "jsonschema==4.26.0";
/// A linter that contains the schemas of the registry of MCP servers, which is all that is used of it.
const SKILLSAW: (&str, [&str; 1]) =
    ("skillsaw==0.22.0", ["7c4b4f48961d9b1676831aeb65396ddc59a18efac39e505b0dfe500f4c055906"]);
/// The first npm that runs no install script unless it is allowed by name.
const NPM: &str = "npm@12.2.0";
const VERDACCIO: &str = "verdaccio@6.10.4";
/// What verdaccio needs beside itself: its own choice of node-fetch is not in every registry.
const VERDACCIO_MANIFEST: &str = r#"{ "private": true, "overrides": { "node-fetch": "2.7.0" } }"#;
/// Agent hosts, which list their servers without a login.
const AGENT_HOSTS: [&str; 3] =
    ["@anthropic-ai/claude-code@2.1.328", "@openai/codex@0.169.0", "@google/gemini-cli@0.61.0"];
/// The release of Debian for the folders with nothing else in them: the oldest one with support, and so the oldest
/// glibc (2.36).
const DEBIAN: &str = "bookworm";
const DEBOOTSTRAP: &str = "/usr/sbin/debootstrap";
const DEBOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(900);
/// The time limit of one command of an installation.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);
const REGISTRY_START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Tools that `mcp` does not list without a configuration, because they declare the network.
const UNLISTED: [&str; 1] = ["http_fetch"];
/// The home folder in the folders of Debian.
const HOME: &str = "/home/user";

type Part = fn(&Bench<'_>) -> Result<()>;

/// The parts, in an order in which what is quick comes first.
const PARTS: [(&str, Part); 9] = [
    ("server.json", check_server_json),
    ("the wheel with pip", check_pip),
    ("the wheel with uv", check_uv),
    ("the wheel with pipx", check_pipx),
    ("the platform of the wheel", check_platform),
    ("the packages with npm", check_npm),
    ("a Debian with Python only", check_debian_with_python),
    ("a Debian with Node.js only", check_debian_with_node),
    ("agent hosts", check_agent_hosts),
];

/// What the parts share.
struct Bench<'a> {
    release: &'a Release<'a>,
    /// A folder that is removed at the end.
    folder: PathBuf,
    /// The folder `bin` of the Python environment with uv and pipx.
    python: PathBuf,
    /// The registry for npm, if npm and verdaccio could be installed.
    registry: Option<Registry>,
}

pub(crate) fn check(release: &Release<'_>) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("a2g-check-").tempdir()?;
    let workspace = release.workspace;
    let modules =
        setup::install_npm(workspace, "registry", VERDACCIO_MANIFEST, &[setup::NODE, NPM, VERDACCIO])?;
    let bench = Bench {
        release,
        folder: folder.path().to_owned(),
        python: setup::clients_folder(workspace).join("python/bin"),
        registry: modules.map(|modules| Registry::start(release, folder.path(), modules)).transpose()?,
    };
    let mut failed = Vec::new();
    for (name, part) in PARTS {
        run::progress("Checking", name);
        // Each part stands for itself: one run says everything that is wrong.
        if let Err(error) = part(&bench) {
            run::progress("Failed", &format!("{name}: {error:#}"));
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "the packages do not work, see above: {}", failed.join("; "));
    Ok(())
}

fn skip(name: &str, reason: &str) -> Result<()> {
    run::progress("Skipped", &format!("{name}: {reason}"));
    Ok(())
}

impl Bench<'_> {
    fn workspace(&self) -> &Workspace {
        self.release.workspace
    }

    /// A new folder for one way of installation, which is its home.
    fn home(&self, name: &str) -> Result<PathBuf> {
        let home = self.folder.join(name);
        fs::create_dir_all(home.join("notes"))?;
        Ok(home)
    }

    fn wheel(&self) -> Result<PathBuf> {
        let names = fs::read_dir(&self.release.folder)?;
        let mut paths = names.filter_map(|entry| Some(entry.ok()?.path()));
        let ending = format!("{}.whl", self.release.architecture.as_str());
        paths.find(|path| path.to_string_lossy().ends_with(&ending)).context("there is no wheel")
    }

    /// The names of the tools that `mcp` lists.
    fn tools(&self) -> Result<Vec<String>> {
        let folder = self.release.root.join("share/a2g-executor/tools");
        let names: Result<Vec<String>> = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .filter(|name| !name.as_ref().is_ok_and(|name| UNLISTED.contains(&name.as_str())))
            .collect();
        let mut names = names?;
        names.sort_unstable();
        Ok(names)
    }

    /// Lists the tools, writes and reads a file, is refused another one, and lets a person decide about a third. Returns
    /// the time from `started` to the answer of the first call.
    ///
    /// `start` makes the command of the executor from its arguments; `home` is its home folder as it sees it.
    fn use_tools(
        &self,
        home: &str,
        started: Instant,
        start: &dyn Fn(&[&str]) -> Command,
    ) -> Result<Duration> {
        let scope = format!("{home}/notes");
        let mut client = Client::start(&mut start(&["mcp", "--scope", &scope]))?;
        let path = format!("{scope}/hello.txt");
        let written = client.call("write_file", &json!({ "path": path, "content": "Hello" }))?;
        ensure!(!is_error(&written), "a file below the scope is not written: {written}");
        let first_call = started.elapsed();
        let listed = client.list()?;
        ensure!(listed == self.tools()?, "the list of tools is {listed:?}");
        let read = client.call("read_file", &json!({ "path": path }))?;
        ensure!(
            read.pointer("/structuredContent/content") == Some(&json!("Hello")),
            "the written file is not read: {read}"
        );
        let outside = client.call("write_file", &json!({ "path": "/srv/hello.txt", "content": "Hello" }))?;
        let blocked = outside.pointer("/_meta/a2g~1error/blocked_by");
        ensure!(
            is_error(&outside) && blocked.is_some(),
            "a file outside the scope is not refused: {outside}"
        );
        let key = json!({ "path": format!("{scope}/key.pem"), "content": "-----BEGIN PRIVATE KEY-----" });
        let approved = client.call("write_file", &key)?;
        ensure!(
            !is_error(&approved) && approved.get("was_asked").is_some(),
            "a person was not asked, or the approved call did not run: {approved}"
        );
        client.end()?;
        let journal = format!("{home}/.local/state/a2g-executor/journal.db");
        let verified = output(&mut start(&["journal", "verify", "--journal", &journal]))?;
        ensure!(verified.status.success(), "the journal is not intact: {}", text(&verified));
        Ok(first_call)
    }

    /// Runs a program of an installation, with its output in a log.
    fn log(&self, what: &str, command: &mut Command) -> Result<()> {
        run::log(self.workspace(), what, command, COMMAND_TIMEOUT)
    }

    /// Makes a Python environment with the wheel.
    fn install_with_pip(&self, home: &Path) -> Result<PathBuf> {
        let mut venv = private("python", home, &[&self.python]);
        self.log("make a Python environment", venv.args(["-m", "venv"]).arg(home.join("venv")))?;
        let bin = home.join("venv/bin");
        let mut pip = private("pip", home, &[&bin]);
        pip.args(["install", "--no-index", "--find-links"]).arg(&self.release.folder).arg(npm::NAME);
        self.log("install the wheel with pip", &mut pip)?;
        Ok(bin)
    }
}

/// A program with nothing of this process's environment but its path, after `first`.
fn private(program: &str, home: &Path, first: &[&Path]) -> Command {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = first.iter().map(|path| path.to_path_buf()).chain(std::env::split_paths(&paths));
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("LANG", "C.UTF-8").current_dir(home);
    command.env("PATH", std::env::join_paths(paths).unwrap_or_default());
    command
}

fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&json!(true))
}

fn output(command: &mut Command) -> Result<Output> {
    let what = format!("could not start {}", command.get_program().display());
    command.stdin(Stdio::null()).output().context(what)
}

fn text(output: &Output) -> String {
    let bytes = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Checks that a program ends with a code and one sentence about the reason.
fn expect_refusal(command: &mut Command, code: i32, sentence: &str) -> Result<()> {
    let output = output(command)?;
    let message = text(&output);
    ensure!(
        output.status.code() == Some(code) && message.contains(sentence),
        "expected the exit code {code} and `{sentence}`, not {} and `{message}`",
        output.status
    );
    Ok(())
}

/// Checks that a configuration for a host starts the executor as it was started here.
fn expect_config(start: &dyn Fn(&[&str]) -> Command, program: &str) -> Result<()> {
    let printed = output(&mut start(&["mcp", "--scope", "notes", "--print-config", "codex"]))?;
    let expected = format!("command = \"{program}\"");
    ensure!(text(&printed).contains(&expected), "`{expected}` is not in {}", text(&printed));
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    if path.is_dir() {
        fs::remove_dir_all(path)?;
    } else if path.exists() {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Validates `server.json` by the registry's own schema.
fn check_server_json(bench: &Bench<'_>) -> Result<()> {
    let has_schema = setup::install_wheel(bench.workspace(), SKILLSAW.0, &SKILLSAW.1)?;
    if !has_schema || !setup::install_python(bench.workspace(), JSONSCHEMA)? {
        return skip("server.json", "its schema is missing");
    }
    let entry = bench.release.folder.join("server.json");
    let content: Value = serde_json::from_slice(&fs::read(&entry)?)?;
    let address = content.get("$schema").and_then(Value::as_str).context("server.json has no $schema")?;
    let date = address.split('/').rev().nth(1).context("its $schema has no date")?;
    let packages = fs::read_dir(bench.python.with_file_name("lib"))?;
    let mut schemas = packages.filter_map(|python| {
        let folder = python.ok()?.path().join("site-packages/skillsaw/schemas/mcp_registry");
        let schema = folder.join(format!("v{}", date.replace('-', "_"))).join("server.schema.json");
        schema.exists().then_some(schema)
    });
    let schema = schemas.next().with_context(|| format!("there is no schema of {date}"))?;
    let mut validate = private("python", &bench.home("schema")?, &[&bench.python]);
    let script = "import json, sys, jsonschema as j; e, s = (json.load(open(f)) for f in sys.argv[1:]); \
                  j.Draft7Validator.check_schema(s); j.Draft7Validator(s).validate(e)";
    bench.log("validate server.json", validate.args(["-c", script]).args([entry, schema]))
}

fn check_pip(bench: &Bench<'_>) -> Result<()> {
    let home = bench.home("pip")?;
    let started = run::now();
    let bin = bench.install_with_pip(&home)?;
    let program = bin.join(npm::NAME);
    let start = |words: &[&str]| -> Command {
        let mut command = private("python", &home, &[&bin]);
        command.args(["-m", "a2g_executor"]).args(words);
        command
    };
    let version = output(&mut start(&["--version"]))?;
    ensure!(text(&version).ends_with(&bench.release.version), "the version is {}", text(&version));
    let seconds = bench.use_tools(&home.to_string_lossy(), started, &start)?;
    run::progress("Measured", &format!("pip: {:.1} s to the first call", seconds.as_secs_f64()));

    let missing = home.join("missing");
    let words = ["mcp", "--scope", &missing.to_string_lossy()];
    expect_refusal(&mut start(&words), 2, "cannot be used")?;
    remove(&bin.with_file_name("share"))?;
    expect_refusal(
        &mut start(&["mcp", "--scope", "notes"]),
        2,
        "the tools that belong to this program are not beside it",
    )?;
    remove(&program)?;
    expect_refusal(&mut start(&["--version"]), 1, "the package a2g-executor is incomplete")
}

fn check_uv(bench: &Bench<'_>) -> Result<()> {
    if !setup::install_python(bench.workspace(), UV)? {
        return skip("uv", "it cannot be installed");
    }
    // With links too, the program finds its tools: it is then inside uv's cache.
    for mode in ["hardlink", "symlink"] {
        let home = bench.home(&format!("uv-{mode}"))?;
        let started = run::now();
        let start = |words: &[&str]| -> Command {
            let mut command = private("uvx", &home, &[&bench.python]);
            command.args(["--offline", "--no-index", "--link-mode", mode, "--find-links"]);
            command.arg(&bench.release.folder).arg(npm::NAME).args(words);
            command
        };
        let seconds = bench.use_tools(&home.to_string_lossy(), started, &start)?;
        let seconds = seconds.as_secs_f64();
        run::progress("Measured", &format!("uvx with {mode}: {seconds:.1} s to the first call"));
        expect_config(&start, "uvx")?;
    }
    Ok(())
}

fn check_pipx(bench: &Bench<'_>) -> Result<()> {
    let has_uv = setup::install_python(bench.workspace(), UV)?;
    if !has_uv || !setup::install_python(bench.workspace(), PIPX)? {
        return skip("pipx", "it cannot be installed");
    }
    let home = bench.home("pipx")?;
    let arguments = format!("--no-index --find-links {}", bench.release.folder.display());
    let mut install = private("pipx", &home, &[&bench.python]);
    install.args(["install", "--pip-args", &arguments, npm::NAME]);
    bench.log("install the wheel with pipx", &mut install)?;
    let program = home.join(".local/bin").join(npm::NAME);
    let version = output(private(&program.to_string_lossy(), &home, &[]).arg("--version"))?;
    ensure!(text(&version).ends_with(&bench.release.version), "the version is {}", text(&version));
    let mut client =
        Client::start(private(&program.to_string_lossy(), &home, &[]).args(["mcp", "--scope", "notes"]))?;
    let listed = client.list()?;
    ensure!(listed == bench.tools()?, "the list of tools is {listed:?}");
    client.end()
}

/// Compares the glibc that the wheel names with the one that its program needs.
fn check_platform(bench: &Bench<'_>) -> Result<()> {
    if !setup::install_python(bench.workspace(), AUDITWHEEL)? {
        return skip("the platform of the wheel", "auditwheel cannot be installed");
    }
    let wheel = bench.wheel()?;
    let shown =
        output(private("auditwheel", &bench.home("auditwheel")?, &[&bench.python]).arg("show").arg(&wheel))?;
    let name = wheel.to_string_lossy().into_owned();
    let platform = name.rsplit('-').next().and_then(|name| name.strip_suffix(".whl")).unwrap_or_default();
    ensure!(
        shown.status.success() && text(&shown).contains(&format!("\"{platform}\"")),
        "auditwheel says that it is not for {platform}: {}",
        text(&shown)
    );
    Ok(())
}

/// A registry for npm on this machine, with the packages of the release. It ends on drop.
struct Registry {
    process: Child,
    url: String,
    /// The `node_modules` with Node.js, npm and the registry.
    modules: PathBuf,
}

impl Registry {
    fn start(release: &Release<'_>, folder: &Path, modules: PathBuf) -> Result<Self> {
        let home = folder.join("registry");
        fs::create_dir(&home)?;
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
        for package in fs::read_dir(release.folder.join("npm"))? {
            let mut publish = private("npm", &home, &[&bin]);
            publish.args(["publish", "--registry", &registry.url]).arg(package?.path());
            // npm wants a token, even where everybody may publish.
            publish.arg(format!("--//127.0.0.1:{port}/:_authToken=none"));
            run::log(release.workspace, "publish the packages for npm", &mut publish, COMMAND_TIMEOUT)?;
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

fn check_npm(bench: &Bench<'_>) -> Result<()> {
    let Some(registry) = &bench.registry else {
        return skip("the packages with npm", "npm or verdaccio cannot be installed");
    };
    let bin = registry.modules.join(".bin");
    // This machine's Node.js, which may be another version, and the newest npm.
    let nodes: [(&str, &[&Path]); 2] = [("node", &[]), ("node-22", &[&bin])];
    for (name, first) in nodes {
        let home = bench.home(&format!("npm-{name}"))?;
        let Ok(version) = output(private("node", &home, first).arg("--version")) else {
            skip(name, "this machine has none")?;
            continue;
        };
        let version = text(&version);
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
        let seconds = bench.use_tools(&home.to_string_lossy(), started, &start)?;
        let seconds = seconds.as_secs_f64();
        run::progress("Measured", &format!("npx with Node.js {version}: {seconds:.1} s to the first call"));
        expect_config(&start, "npx")?;

        let prefix = home.join("prefix");
        let place = prefix.to_string_lossy();
        bench.log(
            "install the package with npm for all projects",
            &mut npm(&["install", "--global", "--ignore-scripts", "--prefix", &place, npm::NAME]),
        )?;
        let program = prefix.join("bin").join(npm::NAME);
        let shown = output(private(&program.to_string_lossy(), &home, first).arg("--version"))?;
        ensure!(text(&shown).ends_with(&bench.release.version), "the version is {}", text(&shown));

        let platform = npm::platform_name(bench.release.architecture);
        for (project, option) in [("omitted", "--omit=optional"), ("musl", "--libc=musl")] {
            let folder = home.join(project);
            fs::create_dir(&folder)?;
            let place = folder.to_string_lossy();
            bench.log(
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

/// Makes a folder with Debian and these packages, which later runs use again; `None` if it cannot be made here.
fn debian_folder(bench: &Bench<'_>, name: &str, packages: &str) -> Result<Option<PathBuf>> {
    let what = format!("a Debian with {name} only");
    let is_root = run::output(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if !is_root || !debian::applies() {
        skip(&what, "debootstrap needs root and Debian")?;
        return Ok(None);
    }
    let workspace = bench.workspace();
    let root = workspace.state().join("hosts").join(name);
    if !root.exists() {
        let install = || {
            let what = "install debootstrap with apt-get";
            debian::satisfy(workspace, what, "debootstrap", setup::INSTALL_TIMEOUT)?;
            let mirror = collections::mirror().context("apt-get has no mirror of Debian")?;
            let part = root.with_extension("part");
            remove(&part)?;
            fs::create_dir_all(&part)?;
            let mut debootstrap = Command::new(DEBOOTSTRAP);
            debootstrap.args(["--variant=minbase", &format!("--include={packages}"), DEBIAN]);
            debootstrap.arg(&part).arg(mirror);
            run::log(
                workspace,
                &format!("make {name} with debootstrap"),
                &mut debootstrap,
                DEBOOTSTRAP_TIMEOUT,
            )?;
            Ok(fs::rename(&part, &root)?)
        };
        if !setup::try_once(workspace, &what, install)? {
            skip(&what, "debootstrap does not work")?;
            return Ok(None);
        }
    }
    // A compiler would make the check say less than it claims.
    for program in ["cc", "rustc", "cargo"] {
        ensure!(!root.join("usr/bin").join(program).exists(), "{} has {program}", root.display());
    }
    Ok(Some(root))
}

/// Empties the home folder and `/dist` of a folder with Debian.
fn clean(root: &Path) -> Result<()> {
    for name in ["home/user", "dist"] {
        remove(&root.join(name))?;
    }
    fs::create_dir_all(root.join("home/user/notes"))?;
    Ok(fs::create_dir(root.join("dist"))?)
}

/// A program inside a folder with Debian: with processes and mounts of its own, which end with it.
fn inside(root: &Path, paths: &str, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--root"]).arg(root);
    command.args(["--wd", HOME, "/usr/bin/env", "-i", "LANG=C.UTF-8"]);
    command.args([format!("HOME={HOME}"), format!("PATH={paths}:/usr/bin:/bin")]).args(words);
    command
}

/// pip and uv, which come from PyPI, with the wheels in a folder.
fn check_debian_with_python(bench: &Bench<'_>) -> Result<()> {
    let Some(root) = debian_folder(bench, "python", "python3-venv")? else { return Ok(()) };
    let wheel = bench.wheel()?;
    let name = wheel.file_name().context("the wheel has no name")?;
    for way in ["pip", "uvx"] {
        clean(&root)?;
        fs::copy(&wheel, root.join("dist").join(name))?;
        let mut download = Command::new(bench.python.join("pip"));
        download.args(["download", "--quiet", "--no-deps", "--dest"]).arg(root.join("dist")).arg(UV);
        bench.log("download uv", &mut download)?;
        let paths = format!("{HOME}/venv/bin");
        let started = run::now();
        bench.log(
            "make a Python environment in Debian",
            &mut inside(&root, "", &["python3", "-m", "venv", "venv"]),
        )?;
        let package = if way == "uvx" { "uv" } else { npm::NAME };
        let pip = ["pip", "install", "--no-index", "--find-links", "/dist", package];
        bench.log(&format!("install {package} with pip in Debian"), &mut inside(&root, &paths, &pip))?;
        let uvx = ["uvx", "--offline", "--no-index", "--find-links", "/dist", npm::NAME];
        let start = |words: &[&str]| -> Command {
            let program = if way == "uvx" { uvx.as_slice() } else { &[npm::NAME] };
            inside(&root, &paths, &[program, words].concat())
        };
        let seconds = bench.use_tools(HOME, started, &start)?;
        ensure!(root.join("home/user/notes/key.pem").exists(), "the approved call wrote no file");
        let seconds = seconds.as_secs_f64();
        run::progress(
            "Measured",
            &format!("Debian, from nothing with {way}: {seconds:.1} s to the first call"),
        );
    }
    clean(&root)
}

/// npx, with a registry on this machine.
fn check_debian_with_node(bench: &Bench<'_>) -> Result<()> {
    let Some(registry) = &bench.registry else {
        return skip("a Debian with Node.js only", "npm or verdaccio cannot be installed");
    };
    let modules = &registry.modules;
    let Some(root) = debian_folder(bench, "node", "libstdc++6")? else { return Ok(()) };
    clean(&root)?;
    remove(&root.join("opt/node"))?;
    fs::create_dir_all(root.join("opt/node"))?;
    fs::copy(modules.join(".bin/node").canonicalize()?, root.join("opt/node/node"))?;
    let mut cp = Command::new("cp");
    cp.args(["--recursive"]).arg(modules.join("npm")).arg(root.join("opt/node/npm"));
    bench.log("copy npm", &mut cp)?;
    let npx = ["node", "/opt/node/npm/bin/npx-cli.js", "--registry", &registry.url, "-y", npm::NAME];
    let start = |words: &[&str]| inside(&root, "/opt/node", &[&npx, words].concat());
    let seconds = bench.use_tools(HOME, run::now(), &start)?.as_secs_f64();
    run::progress("Measured", &format!("Debian, from nothing with npx: {seconds:.1} s to the first call"));
    clean(&root)
}

/// The hosts that people use, on their first start with the executor, without a cache.
fn check_agent_hosts(bench: &Bench<'_>) -> Result<()> {
    let hosts = setup::install_npm(bench.workspace(), "hosts", r#"{ "private": true }"#, &AGENT_HOSTS)?;
    let (Some(hosts), Some(registry)) = (hosts, &bench.registry) else {
        return skip("agent hosts", "they cannot be installed with npm");
    };
    let executor = bench.install_with_pip(&bench.home("hosts")?)?.join(npm::NAME);
    let executor = executor.to_string_lossy();
    let bins = [hosts.join(".bin"), registry.modules.join(".bin")];
    let first = bins.each_ref().map(PathBuf::as_path);
    // Each with the words that add a server, and what its list then says of it. Codex connects to none for its list.
    let cases: [(&str, &[&str], &str); 3] = [
        ("claude", &["mcp", "add", "a2g", "--", &executor, "mcp"], "✔ Connected"),
        ("codex", &["mcp", "add", "a2g", "--", &executor, "mcp"], "enabled"),
        ("gemini", &["mcp", "add", "a2g", &executor, "mcp"], "Connected"),
    ];
    for (name, add, expected) in cases {
        let home = bench.home(name)?;
        let host = |words: &[&str]| -> Command {
            let mut command = private(name, &home, &first);
            command.args(words).current_dir(home.join("notes"));
            // Nothing of these hosts is asked of a server elsewhere.
            command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
            command.env("GEMINI_CLI_TRUST_WORKSPACE", "true");
            command
        };
        bench.log(&format!("add the server to {name}"), &mut host(add))?;
        let listed = output(&mut host(&["mcp", "list"]))?;
        let lines = text(&listed);
        let line = lines.lines().find(|line| line.contains(&*executor)).unwrap_or(&lines);
        if !line.contains(expected) || line.contains("fail") {
            bail!("{name} says of the executor: {line}");
        }
        run::progress("Listed", &format!("by {name}: {expected}"));
    }
    Ok(())
}
