//! Paths of built artifacts, and helpers that run the binary to its end.

use super::TIMEOUT;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// `<target>/debug`, beside which this test program lies.
fn profile() -> PathBuf {
    let program = std::env::current_exe().expect("this test program has a path");
    program.ancestors().nth(2).expect("it lies in <target>/debug/deps").to_owned()
}

fn target() -> PathBuf {
    profile().parent().expect("<target>/debug has a parent").to_owned()
}

/// The built executor, or the one that the benchmark names.
pub fn program() -> PathBuf {
    let named = std::env::var_os("A2G_TEST_PROGRAM").map(PathBuf::from);
    let program = named.unwrap_or_else(|| profile().join("a2g-executor"));
    assert!(program.is_file(), "{} is not built: run `cargo xtask test`", program.display());
    program
}

/// The catalogue of the tools that come with the executor.
pub fn tools() -> PathBuf {
    let tools = target().join("tools");
    assert!(
        tools.join("write_file/tool.toml").is_file(),
        "there are no tools in {}: run `cargo xtask test`",
        tools.display()
    );
    tools
}

/// The same but for the interpreters and the shell. A server reads all modules of its catalogue at its start, and without
/// these it has 3 MB to read instead of 56, and 10 MB of compiled code instead of 130.
pub fn small_tools() -> PathBuf {
    static COPIED: OnceLock<PathBuf> = OnceLock::new();
    COPIED.get_or_init(copy_small_tools).clone()
}

/// Copies them to a folder whose name follows from their descriptors, which have the digests of the modules.
fn copy_small_tools() -> PathBuf {
    let is_large = |name: &str| INTERPRETERS.contains(&name) || name == SHELL;
    let entries = std::fs::read_dir(tools()).expect("the tools").map(|entry| entry.expect("an entry").path());
    let mut folders = entries
        .filter(|path| !is_large(&path.file_name().expect("a name").to_string_lossy()))
        .collect::<Vec<_>>();
    folders.sort();
    let descriptors =
        folders.iter().map(|folder| std::fs::read(folder.join("tool.toml")).expect("a descriptor"));
    let digest = super::sha256(descriptors.collect::<Vec<_>>().concat());
    let place = cache_home().join(format!("tools-{digest}"));
    if place.is_dir() {
        return place;
    }
    let made = tempfile::tempdir_in(cache_home()).expect("a temp folder");
    for from in folders {
        let to = made.path().join(from.file_name().expect("a name"));
        std::fs::create_dir(&to).expect("a folder");
        for file in std::fs::read_dir(&from).expect("a folder") {
            let file = file.expect("an entry").path();
            std::fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
    let _another_test_program_was_faster = std::fs::rename(made.path(), &place);
    place
}

/// The tools that are built only where the programs that make their components can be installed.
pub const INTERPRETERS: [&str; 2] = ["run_javascript", "run_python"];
/// The tool that runs shell scripts, which is always built.
pub const SHELL: &str = "run_shell";

/// `true` if an interpreter is built. Otherwise the running test is named as skipped.
pub fn has_interpreter(tool: &str) -> bool {
    let is_built = tools().join(tool).exists();
    if !is_built {
        super::print_skipped(&format!("{tool} is not built"));
    }
    is_built
}

/// The folder in which `cargo xtask setup` installs third-party clients.
pub fn clients() -> PathBuf {
    target().join("xtask").join("clients")
}

/// The folder of an installed client; prints a message if it is missing.
pub fn client_folder(name: &str, part: &str) -> Option<PathBuf> {
    let path = clients().join(part);
    if path.exists() {
        return Some(path);
    }
    super::print_skipped(&format!("the client {name} is not installed"));
    None
}

/// The folder in which `cargo xtask setup` puts a collection of tests of others.
pub fn collection(name: &str) -> PathBuf {
    target().join("xtask").join("collections").join(name)
}

/// A guest that is built for the tests beside the tools.
pub fn guest(name: &str) -> Vec<u8> {
    guest_for("wasm32-wasip1", name)
}

/// One that is built for wasm32-wasip2, for tests with `wasip2` in their names.
pub fn guest_wasip2(name: &str) -> Vec<u8> {
    guest_for("wasm32-wasip2", name)
}

fn guest_for(triple: &str, name: &str) -> Vec<u8> {
    let module = target().join("guest").join(triple).join("release").join(name).with_extension("wasm");
    std::fs::read(&module)
        .unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask test`", module.display()))
}

/// The folder for `XDG_CACHE_HOME`, with which a command without `catalog.cache` uses [`cache`].
pub fn cache_home() -> PathBuf {
    cache().parent().expect("it has a parent").to_owned()
}

/// One cache of compiled modules for all tests, so that each module is compiled once.
pub fn cache() -> PathBuf {
    static WARM: OnceLock<PathBuf> = OnceLock::new();
    WARM.get_or_init(|| {
        let cache = target().join("test-cache").join("a2g-executor");
        let home = tempfile::tempdir().expect("a temp folder");
        let config = home.path().join("executor.toml");
        // Some scope without the cache in it, wherever the repository lies.
        let text = serde_json::json!({
            "catalog": { "tools": tools(), "cache": cache },
            "ceilings": { "filesystem_scope": ["/workspace/**"] },
        });
        std::fs::write(&config, toml::to_string(&text).expect("TOML")).expect("a config");
        let output = run(["tool", "list", "--json", "--config", config.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        cache
    })
    .clone()
}

/// One folder for the state of commands without a configuration. It must not be in a folder that guests may use, such
/// as `/tmp`. It is empty when the tests start.
pub fn state() -> PathBuf {
    static EMPTY: OnceLock<PathBuf> = OnceLock::new();
    EMPTY
        .get_or_init(|| {
            let state = target().join("test-state");
            let _was_absent = std::fs::remove_dir_all(&state);
            state
        })
        .clone()
}

/// A folder beside the repository, when it is there. When it is not, a line on standard error names
/// the test that is skipped.
fn shared_folder(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    super::print_skipped(&format!("there is no ../shared/{name} beside the repository"));
    None
}

/// The protocol documents.
pub fn seeds() -> Option<PathBuf> {
    shared_folder("seeds")
}

/// The test vectors of others.
pub fn vectors() -> Option<PathBuf> {
    shared_folder("vectors")
}

/// Runs the binary to its end, in an empty folder.
pub fn run<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Output {
    run_with_input(arguments, b"")
}

/// As [`run`], with something on standard input.
pub fn run_with_input<'a>(arguments: impl IntoIterator<Item = &'a str>, input: &[u8]) -> Output {
    let folder = tempfile::tempdir().expect("a temp folder");
    run_in(folder.path(), arguments, input)
}

/// As [`run`], in a folder, with something on standard input.
pub fn run_in<'a>(folder: &Path, arguments: impl IntoIterator<Item = &'a str>, input: &[u8]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(arguments);
    run_to_end(command, input)
}

/// Runs any command to its end, or kills it at the time limit.
pub fn run_to_end(command: Command, input: &[u8]) -> Output {
    run_to_end_within(command, input, TIMEOUT)
}

/// Runs any command to its end, or kills it at this time limit.
pub fn run_to_end_within(mut command: Command, input: &[u8], limit: Duration) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("RUST_LOG");
    if !command.get_envs().any(|(name, _)| name == "XDG_STATE_HOME") {
        command.env("XDG_STATE_HOME", state());
    }
    let mut child = command.spawn().expect("it starts");
    let id = rustix::process::Pid::from_child(&child);
    let (ended, on_end) = std::sync::mpsc::channel::<()>();
    let deadline = Instant::now() + limit;
    let watchdog = std::thread::spawn(move || {
        let in_vain = on_end.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        if in_vain == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _gone = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
    });
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        let _it_may_not_read = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    watchdog.join().expect("the watchdog ends");
    writer.join().expect("the writer ends");
    output
}
