//! Tools in OCI registries: against Debian's `docker-registry`, where `cargo xtask setup` could unpack it, and against
//! a misbehaving registry of the test.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use harness::*;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

/// A registry's folder, configuration and process, which ends when the value is dropped.
struct Registry {
    address: SocketAddr,
    process: Child,
    _folder: TempDir,
}

/// The password file for the user `ann` with the password `secret` (bcrypt).
const HTPASSWD: &str = "ann:$2b$04$HApEU15po9oJmmQ93vS3YuVAb7Wztp1.rWlaccF.IjiLd1QoOKMCe\n";

impl Registry {
    /// Starts Debian's registry. Returns `None` and reports the test as skipped if it is not installed.
    fn start() -> Option<Self> {
        Self::start_with("")
    }

    fn start_with_login() -> Option<Self> {
        Self::start_with("auth:\n  htpasswd:\n    realm: tests\n    path: FOLDER/htpasswd\n")
    }

    fn start_with(more: &str) -> Option<Self> {
        let program = client_folder("docker-registry", "docker-registry/usr/bin/docker-registry")?;
        let folder = tempfile::tempdir().unwrap();
        // The port stays free until the registry takes it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let path = folder.path().to_str().unwrap();
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: FOLDER/data\n\
             http:\n  addr: {address}\n{more}"
        );
        std::fs::write(folder.path().join("config.yml"), text.replace("FOLDER", path)).unwrap();
        std::fs::write(folder.path().join("htpasswd"), HTPASSWD).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg(folder.path().join("config.yml")).stdin(Stdio::null());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let registry = Self { address, process, _folder: folder };
        eventually("the registry listens", || TcpStream::connect(address).ok());
        Some(registry)
    }

    fn stop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The configuration, catalogue, cache and Docker configuration of one test.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        place.configure("");
        place
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "[catalog]\ntools = \"tools\"\ncache = \"cache\"\n{more}\n[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n\
             [journal]\npath = \"journal.db\"\n"
        );
        std::fs::write(self.path("executor.toml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn login(&self, config: &Value) {
        std::fs::create_dir_all(self.path("docker")).unwrap();
        std::fs::write(self.path("docker/config.json"), config.to_string()).unwrap();
    }

    /// Writes a tool's folder.
    fn write(&self, name: &str, tool: &Tool) -> String {
        tool.write(&self.path(name), false);
        self.path(name).to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.current_dir(self.folder.path()).env("DOCKER_CONFIG", self.path("docker"));
        command.args(arguments).arg("--config").arg(self.path("executor.toml"));
        command
    }

    /// Runs a `tool` command. Returns whether it succeeded, and its output.
    fn tool(&self, arguments: &[&str]) -> (bool, String) {
        said_by(self.command(&[&["tool"], arguments].concat()))
    }

    /// Runs a command of `key`, and returns what it printed.
    fn key(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(program());
        command.arg("key").args(arguments);
        let output = run_to_end(command, b"");
        assert!(output.status.success(), "{arguments:?}");
        output.stdout
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let (is_ok, said) = self.tool(arguments);
        assert!(is_ok, "{arguments:?}: {said}");
        said
    }

    fn fail(&self, arguments: &[&str], words: &str) -> String {
        let (is_ok, said) = self.tool(arguments);
        assert!(!is_ok && said.contains(words), "{arguments:?}: `{words}` is not in: {said}");
        said
    }

    /// The names in a folder, except those that begin with a dot.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut names = names.filter(|name| !name.starts_with('.')).collect::<Vec<_>>();
        names.sort();
        names
    }

    fn partial_files(&self) -> Vec<String> {
        let mut names = self.names("cache");
        names.retain(|name| name.ends_with(".partial"));
        names
    }

    fn installed(&self, name: &str, file: &str) -> Vec<u8> {
        std::fs::read(self.path("tools").join(name).join(file)).unwrap()
    }
}

fn said_by(command: Command) -> (bool, String) {
    let output = run_to_end(command, b"");
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The address with digest in a command's output.
fn pinned(said: &str) -> String {
    let mut words = said.split_whitespace();
    words.rfind(|word| word.starts_with("oci://") && word.contains("@sha256:")).unwrap().to_owned()
}

fn greet() -> Tool {
    Tool::command("greet", &saying(1, "1", 0))
}

/// A tool whose module has this many random bytes, which do not compress.
fn large(bytes: usize) -> Tool {
    let mut wasm = wat::parse_str(saying(1, "1", 0)).unwrap();
    let mut state = 1_u64;
    let mut section = b"\x05noise".to_vec();
    section.extend((0..bytes).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    }));
    wasm.push(0);
    let mut length = section.len();
    while length >= 0x80 {
        wasm.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    wasm.push(length.to_le_bytes()[0]);
    wasm.extend(section);
    Tool::command_bytes("large", wasm)
}

#[test]
fn a_tool_is_pushed_and_added_by_tag_and_by_digest() {
    let Some(registry) = Registry::start() else { return };
    let author = Place::new();
    let user = Place::new();
    let folder = author.write("greet", &greet());
    let address = format!("oci://{}/tools/greet", registry.address);
    let said = author.succeed(&["push", &address, &folder]);
    let by_digest = pinned(&said);
    assert!(said.contains(&format!("pushed greet 1.0.0 as {address}@sha256:")), "{said}");
    // The tag is the version, and the output has the address with the digest.
    let said = user.succeed(&["add", &format!("{address}:1.0.0")]);
    assert_eq!(pinned(&said), by_digest, "{said}");
    assert_eq!(format!("{address}@sha256:{}", hex(&user.installed("greet", "manifest.json"))), by_digest);
    let (is_ok, said) = said_by(user.command(&["run", "greet"]));
    assert!(is_ok, "{said}");
    let other = Place::new();
    other.succeed(&["add", &by_digest]);
    for file in ["tool.toml", "tool.wasm", "manifest.json", "config.json"] {
        assert_eq!(user.installed("greet", file), other.installed("greet", file), "{file}");
    }
    assert!(other.partial_files().is_empty());
    // The pulled and installed tool gives the same package when it is pushed again, to any tag.
    let said = user.succeed(&["push", &format!("{address}:copy"), "--installed", "greet"]);
    assert_eq!(pinned(&said), by_digest);
    other.fail(&["add", &format!("{address}:none")], "does not have `tools/greet:none`");
    other.fail(&["add", &address], "names no version");
    other.fail(&["push", &by_digest, &folder], "push to a tag, not to a digest");
    other.fail(&["add", &format!("oci://{}/a/../b:1", registry.address)], "has no valid name");
}

#[test]
fn sync_brings_what_is_missing_once_and_then_needs_no_registry() {
    let Some(mut registry) = Registry::start() else { return };
    let author = Place::new();
    let user = Place::new();
    let push = |folder: &str, tool: &Tool| {
        let folder = author.write(folder, tool);
        let name = Path::new(&folder).file_name().unwrap().to_str().unwrap().to_owned();
        pinned(&author.succeed(&["push", &format!("oci://{}/{name}", registry.address), &folder]))
    };
    let first = push("greet", &greet());
    let second = push("other", &Tool::command("other", &saying(1, "2", 0)));
    let same_name = push("again", &Tool::command("greet", &saying(1, "3", 0)));
    let table = |address: &str| format!("[[catalog.remote]]\ntool = \"{address}\"\n");
    // Two tools of one name: nothing is written, not even the tool with a unique name.
    user.configure(&[table(&second), table(&first), table(&same_name)].concat());
    let said = user.fail(&["sync"], "are both called `greet`");
    assert!(said.contains(&first) && said.contains(&same_name), "{said}");
    assert!(user.names("tools").is_empty() && user.partial_files().is_empty());
    user.configure(&[&table(&first), "name = \"hello\"\n"].concat());
    user.fail(&["sync"], "is the tool `greet`, but `catalog.remote.name` says `hello`");
    user.configure(&[&table(&first), "name = \"greet\"\n", &table(&second)].concat());
    let said = user.succeed(&["sync"]);
    assert!(said.contains(&format!("greet: added 1.0.0 from {first}")), "{said}");
    assert!(said.contains(&format!("other: added 1.0.0 from {second}")), "{said}");
    assert_eq!(user.names("tools"), ["greet", "other"]);
    let before = std::fs::metadata(user.path("tools/greet/tool.wasm")).unwrap().modified().unwrap();
    registry.stop();
    let said = user.succeed(&["sync"]);
    assert!(said.contains("greet: already installed") && said.contains("other: already installed"), "{said}");
    assert_eq!(std::fs::metadata(user.path("tools/greet/tool.wasm")).unwrap().modified().unwrap(), before);
    let (is_ok, said) = said_by(user.command(&["run", "greet"]));
    assert!(is_ok, "{said}");
    // A tool that no longer matches its package is pulled again, which cannot succeed here.
    std::fs::write(user.path("tools/other/tool.wasm"), b"changed").unwrap();
    user.fail(&["sync"], "cannot be reached");
}

/// A proxy on loopback that closes each connection after passing on this many bytes from the registry.
struct Cutter {
    listener: Listener,
    passed: Arc<AtomicU64>,
    requests: Arc<Mutex<String>>,
}

impl Cutter {
    fn start(to: SocketAddr, after: u64, times: usize) -> Self {
        let passed = Arc::<AtomicU64>::default();
        let requests = Arc::<Mutex<String>>::default();
        let count = Arc::clone(&passed);
        let heads = Arc::clone(&requests);
        let cut = Arc::<AtomicUsize>::default();
        let listener = Listener::start(move |mut client| {
            let mut server = TcpStream::connect(to).unwrap();
            let mut from_client = client.try_clone().unwrap();
            let mut to_server = server.try_clone().unwrap();
            let heads = Arc::clone(&heads);
            std::thread::spawn(move || {
                let mut part = [0; 1 << 16];
                while let Ok(read @ 1..) = from_client.read(&mut part) {
                    heads.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..read]));
                    if to_server.write_all(&part[..read]).is_err() {
                        break;
                    }
                }
                let _closed = to_server.shutdown(std::net::Shutdown::Both);
            });
            let mut part = [0; 1 << 14];
            let mut here = 0;
            while let Ok(read @ 1..) = server.read(&mut part) {
                if client.write_all(&part[..read]).is_err() {
                    break;
                }
                here += read as u64;
                count.fetch_add(read as u64, Ordering::SeqCst);
                if here > after && cut.fetch_add(1, Ordering::SeqCst) < times {
                    break;
                }
            }
            let _closed = client.shutdown(std::net::Shutdown::Both);
            let _closed = server.shutdown(std::net::Shutdown::Both);
        });
        Self { listener, passed, requests }
    }

    fn address(&self) -> String {
        format!("oci://{}/large:1.0.0", self.listener.address)
    }
}

#[test]
fn an_interrupted_download_is_continued_and_never_a_tool() {
    const SIZE: usize = 4 << 20;
    let Some(registry) = Registry::start() else { return };
    let author = Place::new();
    let user = Place::new();
    let folder = author.write("large", &large(SIZE));
    author.succeed(&["push", &format!("oci://{}/large", registry.address), &folder]);
    // One cut: the command itself resumes.
    let once = Cutter::start(registry.address, SIZE as u64 / 2, 1);
    Place::new().succeed(&["add", &once.address()]);
    assert!(
        once.passed.load(Ordering::SeqCst) < SIZE as u64 + (1 << 20),
        "it was downloaded from its beginning"
    );
    assert!(
        once.requests.lock().unwrap().to_lowercase().contains("\r\nrange: bytes="),
        "no part was asked for"
    );
    // More cuts than one command accepts: the received bytes are kept, and there is no tool.
    let always = Cutter::start(registry.address, 512 << 10, usize::MAX);
    user.fail(&["add", &always.address()], "bytes, which are kept");
    assert!(user.names("tools").is_empty());
    let kept = user.partial_files();
    let kept = std::fs::metadata(user.path("cache").join(&kept[0])).unwrap();
    assert!(kept.len() > SIZE as u64 / 4, "{}", kept.len());
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&kept.permissions()) & 0o777, 0o600);
    let rest = Cutter::start(registry.address, 0, 0);
    user.succeed(&["add", &rest.address()]);
    assert!(rest.passed.load(Ordering::SeqCst) < SIZE as u64 + 100_000 - kept.len(), "it began again");
    assert_eq!(user.installed("large", "tool.wasm"), std::fs::read(author.path("large/tool.wasm")).unwrap());
    assert!(user.partial_files().is_empty());
    // The partial bytes are not from this module: the download restarts, and the tool is the right one.
    let other = Place::new();
    std::fs::create_dir_all(other.path("cache")).unwrap();
    std::fs::set_permissions(other.path("cache"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    let name = format!("{}.partial", hex(&user.installed("large", "tool.wasm")));
    std::fs::write(other.path("cache").join(name), vec![7; 100_000]).unwrap();
    other.succeed(&["add", &rest.address()]);
    assert_eq!(other.installed("large", "tool.wasm"), user.installed("large", "tool.wasm"));
}

/// An unverified signature of a package, in the form of `signatures.json`.
fn signatures(package: &str) -> Vec<u8> {
    let payload = json!({
        "critical": {
            "identity": { "docker-reference": "" },
            "image": { "docker-manifest-digest": format!("sha256:{package}") },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let payload = BASE64_STANDARD.encode(payload.to_string());
    json!({ "signatures": [{ "payload": payload, "signature": BASE64_STANDARD.encode("signed") }] })
        .to_string()
        .into()
}

#[test]
fn signatures_are_pushed_and_pulled_as_referrers() {
    let Some(registry) = Registry::start() else { return };
    let author = Place::new();
    let user = Place::new();
    author.succeed(&["add", &author.write("greet", &greet())]);
    let package = hex(&author.installed("greet", "manifest.json"));
    let written = signatures(&package);
    std::fs::write(author.path("tools/greet/signatures.json"), &written).unwrap();
    let address = format!("oci://{}/greet", registry.address);
    let said = author.succeed(&["push", &address, "--installed", "greet"]);
    assert!(said.contains("with 1 signature"), "{said}");
    // Pushing twice gives the same result.
    author.succeed(&["push", &address, "--installed", "greet"]);
    user.succeed(&["add", &format!("{address}@sha256:{package}")]);
    let read: Value = serde_json::from_slice(&user.installed("greet", "signatures.json")).unwrap();
    assert_eq!(read, serde_json::from_slice::<Value>(&written).unwrap());
    // This registry has no list of referrers, so there is the fallback tag.
    let mut client = HttpClient::connect(registry.address);
    let accept = ("Accept", "application/vnd.oci.image.index.v1+json");
    let index =
        client.request("GET", &format!("/v2/greet/manifests/sha256-{package}"), &[accept], b"").json();
    let [entry] = &index["manifests"].as_array().unwrap()[..] else { panic!("{index}") };
    assert_eq!(entry["artifactType"], "application/vnd.dev.cosign.artifact.sig.v1+json");
    let digest = entry["digest"].as_str().unwrap();
    let accept = ("Accept", "application/vnd.oci.image.manifest.v1+json");
    let manifest = client.request("GET", &format!("/v2/greet/manifests/{digest}"), &[accept], b"").json();
    assert_eq!(manifest["subject"]["digest"], format!("sha256:{package}"));
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.oci.empty.v1+json");
    let layer = &manifest["layers"][0];
    assert_eq!(layer["mediaType"], "application/vnd.dev.cosign.simplesigning.v1+json");
    assert_eq!(layer["annotations"]["dev.cosignproject.cosign/signature"], BASE64_STANDARD.encode("signed"));
    // Signatures of another package are refused.
    std::fs::write(author.path("tools/greet/signatures.json"), signatures(&"0".repeat(64))).unwrap();
    author.fail(&["push", &address, "--installed", "greet"], "has a signature for another package");
}

#[test]
fn oras_reads_what_was_pushed() {
    let Some(registry) = Registry::start() else { return };
    let Some(python) = client_folder("oras", "python/bin/python") else { return };
    let mut import = Command::new(&python);
    import.args(["-c", "import oras"]);
    if !run_to_end(import, b"").status.success() {
        return print_skipped("the client oras is not installed");
    }
    let author = Place::new();
    let folder = author.write("greet", &greet());
    author.succeed(&["push", &format!("oci://{}/tools/greet", registry.address), &folder]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/oras_pull.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("{}/tools/greet:1.0.0", registry.address)).arg(author.path("pulled"));
    let (is_ok, said) = said_by(command);
    assert!(is_ok, "{said}");
    let manifest: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm");
    let files = std::fs::read_dir(author.path("pulled")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>();
    assert_eq!(files, [std::fs::read(author.path("greet/tool.wasm")).unwrap()]);
}

#[test]
fn a_login_of_docker_is_used_and_a_wrong_one_named() {
    let Some(registry) = Registry::start_with_login() else { return };
    let place = Place::new();
    let folder = place.write("greet", &greet());
    let address = format!("oci://{}/greet", registry.address);
    let push = ["push", &address, &folder];
    let said = place.fail(&push, "needs a login");
    assert!(said.contains("docker/config.json") && said.contains("docker login"), "{said}");
    let with = |login: &str| json!({ "auths": { registry.address.to_string(): { "auth": BASE64_STANDARD.encode(login) } } });
    place.login(&with("ann:wrong"));
    let said = place.fail(&push, "refuses the login of `ann`");
    assert!(said.contains("docker/config.json") && !said.contains("wrong"), "{said}");
    place.login(&with("ann:secret"));
    place.succeed(&push);
    place.succeed(&["add", &format!("{address}:1.0.0")]);
    // The same login from a credential helper.
    let helper = "#!/bin/sh\nread host\ntest \"$1\" = get && echo \"{\\\"Username\\\":\\\"ann\\\",\\\"Secret\\\":\\\"secret\\\"}\"\n";
    let program = place.path("docker-credential-ofthetest");
    std::fs::write(&program, helper).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    place.login(&json!({ "credsStore": "ofthetest" }));
    let path = format!("{}:{}", place.folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = place.command(&["tool", "push", &address, &folder]);
    command.env("PATH", path);
    let (is_ok, said) = said_by(command);
    assert!(is_ok, "{said}");
    place.fail(&push, "`docker-credential-ofthetest`, which");
}

/// The files of a package, as `tool add` makes them.
#[derive(Clone)]
struct Package {
    manifest: Vec<u8>,
    config: Vec<u8>,
    module: Vec<u8>,
}

impl Package {
    fn of_greet() -> Self {
        static GREET: OnceLock<Package> = OnceLock::new();
        GREET
            .get_or_init(|| {
                let place = Place::new();
                place.succeed(&["add", &place.write("greet", &greet())]);
                let read = |file| place.installed("greet", file);
                Package {
                    manifest: read("manifest.json"),
                    config: read("config.json"),
                    module: read("tool.wasm"),
                }
            })
            .clone()
    }

    fn digest(&self) -> String {
        hex(&self.manifest)
    }

    /// The same package with another `tool.toml` and matching digests.
    fn with_tool_toml(mut self, change: impl Fn(&str) -> String) -> Self {
        let mut config: Value = serde_json::from_slice(&self.config).unwrap();
        let text = change(config["a2g.tool"]["tool.toml"].as_str().unwrap());
        config["a2g.tool"]["tool.toml"] = json!(text);
        self.config = config.to_string().into_bytes();
        let mut manifest: Value = serde_json::from_slice(&self.manifest).unwrap();
        manifest["config"]["digest"] = json!(format!("sha256:{}", hex(&self.config)));
        manifest["config"]["size"] = json!(self.config.len());
        self.manifest = manifest.to_string().into_bytes();
        self
    }
}

/// One response of the test's registry.
#[derive(Clone)]
struct Reply {
    status: &'static str,
    headers: Vec<String>,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Bytes(Vec<u8>),
    /// Spaces until the client disconnects.
    Endless,
    /// The announced length, and the content sent instead.
    Announced(u64, Vec<u8>),
}

fn reply(status: &'static str, headers: &[&str], body: &[u8]) -> Reply {
    let headers = headers.iter().map(|line| (*line).to_owned()).collect();
    Reply { status, headers, body: Body::Bytes(body.to_vec()) }
}

fn ok(body: &[u8]) -> Reply {
    reply("200 OK", &[], body)
}

/// A registry with responses chosen by the test. It records the heads of all requests.
struct Fake {
    listener: Listener,
    heads: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicU64>,
}

impl Fake {
    /// `answer` gets the method and path, and the whole head.
    fn start(answer: impl Fn(&str, &str) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_on(None, answer)
    }

    fn start_on(
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(&str, &str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let sent = Arc::<AtomicU64>::default();
        let seen = Arc::clone(&heads);
        let counter = Arc::clone(&sent);
        let listener = Listener::start(move |mut stream| {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            match &tls {
                None => serve(&mut stream, &answer, &seen, &counter),
                Some(config) => {
                    let connection = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                    serve(&mut rustls::StreamOwned::new(connection, stream), &answer, &seen, &counter);
                }
            }
        });
        Self { listener, heads, sent }
    }

    /// A registry that has a package in the repository `greet`, except where `change` responds.
    fn with_package(
        package: Package,
        change: impl Fn(&str, &str) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |request, head| {
            change(request, head).unwrap_or_else(|| answer_of(&package, request))
        })
    }

    fn tag(&self) -> String {
        format!("oci://{}/greet:1", self.listener.address)
    }

    fn pinned(&self, package: &Package) -> String {
        format!("oci://{}/greet@sha256:{}", self.listener.address, package.digest())
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// The response of a correct registry.
fn answer_of(package: &Package, request: &str) -> Reply {
    let Package { manifest, config, module } = package;
    let path = request.split(' ').nth(1).unwrap();
    let is = |kind: &str, bytes: &[u8]| path == format!("/v2/greet/{kind}/sha256:{}", hex(bytes));
    if path == "/v2/" {
        ok(b"{}")
    } else if path == "/v2/greet/manifests/1" || is("manifests", manifest) {
        ok(manifest)
    } else if is("blobs", config) {
        ok(config)
    } else if is("blobs", module) {
        ok(module)
    } else {
        reply("404 Not Found", &[], br#"{"errors":[{"code":"UNKNOWN","message":"unknown here"}]}"#)
    }
}

fn serve(
    stream: &mut (impl std::io::Read + std::io::Write),
    answer: &impl Fn(&str, &str) -> Reply,
    seen: &Mutex<Vec<String>>,
    sent: &AtomicU64,
) {
    loop {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        seen.lock().unwrap().push(head.clone());
        let request = head.lines().next().unwrap().to_owned();
        let Reply { status, headers, body } = answer(&request, &head);
        let mut start = format!("HTTP/1.1 {status}\r\n");
        for line in headers {
            start += &format!("{line}\r\n");
        }
        let (length, bytes) = match &body {
            Body::Bytes(bytes) => (format!("Content-Length: {}", bytes.len()), bytes.clone()),
            Body::Announced(length, bytes) => (format!("Content-Length: {length}"), bytes.clone()),
            Body::Endless => ("Connection: close".to_owned(), Vec::new()),
        };
        let start = format!("{start}{length}\r\n\r\n");
        if stream.write_all(start.as_bytes()).and_then(|()| stream.write_all(&bytes)).is_err() {
            return;
        }
        match body {
            Body::Bytes(_) => {}
            Body::Announced(..) => return,
            Body::Endless => {
                while stream.write_all(&[b' '; 1 << 12]).is_ok() {
                    sent.fetch_add(1 << 12, Ordering::SeqCst);
                }
                return;
            }
        }
    }
}

/// Adds from a registry with one fault: the command fails with these words, and leaves nothing behind.
fn refuse(
    package: &Package,
    by_digest: bool,
    words: &str,
    change: impl Fn(&str) -> Option<Reply> + Send + Sync + 'static,
) {
    let fake = Fake::with_package(package.clone(), move |request, _head| change(request));
    let place = Place::new();
    let address = if by_digest { fake.pinned(package) } else { fake.tag() };
    let said = place.fail(&["add", &address], words);
    assert!(!said.contains("panicked"), "{said}");
    assert!(place.names("tools").is_empty(), "{words}");
    assert!(place.partial_files().is_empty(), "{words}: {:?}", place.partial_files());
    // The buffers of the pipe hold part of the endless body.
    assert!(fake.sent.load(Ordering::SeqCst) < 32 << 20, "{words}: {}", fake.sent.load(Ordering::SeqCst));
}

#[test]
fn what_is_not_the_described_tool_is_refused() {
    let package = Package::of_greet();
    let of = |kind: &'static str, bytes: &[u8]| {
        let path = format!("/greet/{kind}/sha256:{}", hex(bytes));
        move |request: &str| request.contains(&path)
    };
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        bytes
    };
    type Answer = fn(&[u8]) -> Reply;
    let endless: Answer = |_| Reply { status: "200 OK", headers: Vec::new(), body: Body::Endless };
    let huge: Answer =
        |_| Reply { status: "200 OK", headers: Vec::new(), body: Body::Announced(1 << 40, Vec::new()) };
    let short: Answer = |bytes| ok(&bytes[1..]);
    let page: Answer =
        |_| reply("200 OK", &["Content-Type: text/html; charset=utf-8"], b"<html>Sign in</html>");
    // The correct registry first, so that a refusal below has the expected reason.
    let fake = Fake::with_package(package.clone(), |_, _| None);
    Place::new().succeed(&["add", &fake.pinned(&package)]);

    for (bytes, what) in [(&package.config, "the config of the tool"), (&package.module, "the module")] {
        let is = of("blobs", bytes);
        let changed = flipped(bytes);
        refuse(&package, true, "was changed: its SHA-256 is", {
            let is = of("blobs", bytes);
            move |request| is(request).then(|| ok(&changed))
        });
        for (answer, words) in [
            (short, "has the wrong length"),
            (huge, "has the wrong length"),
            (page, "answered with a web page"),
        ] {
            let is = of("blobs", bytes);
            let bytes = bytes.clone();
            refuse(&package, true, words, move |request| is(request).then(|| answer(&bytes)));
        }
        let words = format!("bytes as {what}");
        refuse(&package, true, &words, move |request| is(request).then(|| endless(b"")));
    }
    let is_manifest = |request: &str| request.contains("/manifests/");
    let changed = flipped(&package.manifest);
    refuse(&package, true, "the manifest was changed: its SHA-256 is", move |request| {
        is_manifest(request).then(|| ok(&changed))
    });
    // A tag, and another digest in the header.
    let other = format!("Docker-Content-Digest: sha256:{}", "0".repeat(64));
    let manifest = package.manifest.clone();
    refuse(&package, false, "the manifest was changed", move |request| {
        is_manifest(request).then(|| reply("200 OK", &[&other], &manifest))
    });
    for (answer, words) in [
        (page, "answered with a web page"),
        (endless, "sends more than 1048576 bytes"),
        (huge, "sends more than 1048576 bytes"),
    ] {
        refuse(&package, false, words, move |request| is_manifest(request).then(|| answer(b"")));
    }
    // A web page without a content type.
    refuse(&package, false, "answered with a web page", move |request| {
        is_manifest(request).then(|| ok(b"\n<!doctype html>"))
    });
}

#[test]
fn manifests_that_are_no_tools_are_refused() {
    let package = Package::of_greet();
    let with_layers = |layers: Vec<Value>| {
        let mut manifest: Value = serde_json::from_slice(&package.manifest).unwrap();
        manifest["layers"] = json!(layers);
        Package { manifest: manifest.to_string().into_bytes(), ..package.clone() }
    };
    let layer = json!({ "mediaType": "application/wasm", "digest": "x", "size": 1 });
    for (changed, words) in [
        (with_layers(vec![layer.clone(); 10_000]), "has 10000 layers"),
        (with_layers(Vec::new()), "has 0 layers"),
        (with_layers(vec![json!({ "mediaType": "text/plain", "digest": "x", "size": 1 })]), "`text/plain`"),
        (with_layers(vec![layer]), "is not a SHA-256"),
        (Package { manifest: vec![b'['; 200_000], ..package.clone() }, "cannot be read"),
        (package.clone().with_tool_toml(|text| text.replace("greet", "../greet")), "../greet"),
        (package.clone().with_tool_toml(|text| text.replace("tool.wasm", "../../secret")), "`tool.toml`"),
        (
            package.clone().with_tool_toml(|text| text.replace("tool.wasm", "other.wasm")),
            "names the module `other.wasm`",
        ),
        (
            package.clone().with_tool_toml(|text| text.replace(&hex(&package.module), &"0".repeat(64))),
            "is for a module with the SHA-256 0000",
        ),
        (
            package.clone().with_tool_toml(|text| {
                text.lines().filter(|l| !l.starts_with("sha256")).fold(String::new(), |all, l| all + l + "\n")
            }),
            "does not pin its module",
        ),
        (package.clone().with_tool_toml(|text| text.replace("command", "typed")), "cannot"),
    ] {
        refuse(&changed, true, words, |_| None);
    }
}

#[test]
fn a_registry_that_refuses_is_quoted_with_the_file_of_the_login() {
    let package = Package::of_greet();
    let denied = br#"{"errors":[{"code":"DENIED","message":"you may not"}]}"#;
    for (status, words) in [
        ("401 Unauthorized", "needs a login for `greet`"),
        ("403 Forbidden", "needs a login for `greet`"),
        ("404 Not Found", "does not have `greet:1`"),
        ("500 Internal Server Error", "status 500"),
        ("307 Temporary Redirect", "it names no location"),
    ] {
        refuse(&package, false, words, move |request| {
            request.contains("/manifests/").then(|| reply(status, &[], denied))
        });
    }
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    Place::new().fail(&["add", &format!("oci://{refused}/greet:1")], "cannot be reached");
    // Names under `.invalid` never resolve.
    Place::new().fail(&["add", "oci://registry.invalid/greet:1"], "cannot be reached");
}

/// Basic and Bearer, and a redirect of the module to another host, which must get neither login nor token.
#[test]
fn a_login_goes_to_the_registry_and_its_token_server_alone() {
    let package = Package::of_greet();
    let module = package.module.clone();
    let elsewhere = Fake::start(move |_, _| ok(&module));
    let target = format!("Location: http://{}/module?signed=1", elsewhere.listener.address);
    for scheme in ["Basic", "Bearer"] {
        let all = package.clone();
        let target = target.clone();
        let tokens = Fake::start(|_, _| ok(br#"{"token":"t0ken"}"#));
        let realm = format!("http://{}/token", tokens.listener.address);
        let fake = Fake::with_package(package.clone(), move |request, head| {
            if request.contains("/v2/ ") {
                return None;
            }
            let wanted =
                if scheme == "Basic" { BASE64_STANDARD.encode("ann:secret") } else { "t0ken".to_owned() };
            if !head.to_lowercase().contains(&format!("authorization: {scheme} {wanted}").to_lowercase()) {
                let challenge = format!("WWW-Authenticate: {scheme} realm=\"{realm}\",service=\"a b\"");
                return Some(reply("401 Unauthorized", &[&challenge], b""));
            }
            let is_module = request.contains(&format!("/blobs/sha256:{}", hex(&all.module)));
            is_module.then(|| reply("307 Temporary Redirect", &[&target], b""))
        });
        let place = Place::new();
        let auth = BASE64_STANDARD.encode("ann:secret");
        place.login(&json!({ "auths": { fake.listener.address.to_string(): { "auth": auth } } }));
        place.succeed(&["add", &fake.tag()]);
        let heads = elsewhere.heads();
        assert!(
            !heads.is_empty() && heads.iter().all(|head| !head.to_lowercase().contains("authorization")),
            "{heads:?}"
        );
        if scheme == "Bearer" {
            let [head] = &tokens.heads()[..] else { panic!("{:?}", tokens.heads()) };
            assert!(
                head.starts_with("GET /token?service=a+b&scope=repository%3Agreet%3Apull HTTP"),
                "{head}"
            );
            assert!(head.contains(&format!("Basic {auth}")), "{head}");
        }
    }
}

#[test]
fn a_redirect_or_token_server_without_tls_is_refused() {
    let package = Package::of_greet();
    for (reply_with, words) in [
        (
            reply("307 Temporary Redirect", &["Location: http://192.0.2.1/x"], b""),
            "plain HTTP is only for registries",
        ),
        (reply("307 Temporary Redirect", &["Location: file:///etc/passwd"], b""), "neither HTTP nor HTTPS"),
        (reply("307 Temporary Redirect", &["Location: https://a:b@192.0.2.1/"], b""), "contains a login"),
        (reply("307 Temporary Redirect", &["Location: /v2/greet/manifests/1"], b""), "too many redirects"),
        (
            reply("401 Unauthorized", &["WWW-Authenticate: Bearer realm=\"http://192.0.2.1/t\""], b""),
            "names the token server http://192.0.2.1/t, which is refused: plain HTTP is only",
        ),
        (
            reply("401 Unauthorized", &["WWW-Authenticate: Bearer realm=\"::\""], b""),
            "its token server (`realm`) is not a valid URL",
        ),
    ] {
        refuse(&package, false, words, move |request| {
            request.contains("/manifests/").then(|| reply_with.clone())
        });
    }
    // Invalid tokens, and an oversized one.
    for (token, words) in [
        (ok(b"{\"token\":\"a\\nb\"}"), "characters that HTTP does not accept"),
        (ok(b"{}"), "it has no token"),
        (reply("200 OK", &["Content-Type: text/html"], b"<html>"), "web page"),
        (Reply { status: "200 OK", headers: Vec::new(), body: Body::Endless }, "sends more than 65536 bytes"),
    ] {
        let tokens = Fake::start(move |_, _| token.clone());
        let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{}/t\"", tokens.listener.address);
        refuse(&package, false, words, move |request| {
            request.contains("/manifests/").then(|| reply("401 Unauthorized", &[&challenge], b""))
        });
    }
}

#[test]
fn tls_is_checked_and_never_left() {
    let package = Package::of_greet();
    let (tls, certificate) = tls_config(&["localhost"]);
    let plain = Fake::with_package(package.clone(), |_, _| None);
    let (all, target) = (package.clone(), format!("Location: http://{}/module", plain.listener.address));
    let fake = Fake::start_on(Some(tls), move |request, _| {
        if request.contains("/manifests/sha256:") {
            return reply("307 Temporary Redirect", &[&target], b"");
        }
        answer_of(&all, request)
    });
    let address = |version: &str| format!("oci://localhost:{}/greet{version}", fake.listener.address.port());
    let place = Place::new();
    std::fs::write(place.path("ca.pem"), certificate).unwrap();
    let said = place.fail(&["add", &address(":1")], "cannot be reached");
    assert!(said.contains("certificate"), "{said}");
    let ca_file = place.path("ca.pem");
    let with_ca =
        |version: &str| place.tool(&["add", &address(version), "--ca-file", ca_file.to_str().unwrap()]);
    let (is_ok, said) = with_ca(&format!("@sha256:{}", package.digest()));
    assert!(!is_ok && said.contains("plain HTTP is only for registries"), "{said}");
    assert!(plain.heads().is_empty(), "{:?}", plain.heads());
    // Even if the registry itself has no TLS.
    let by_tls = format!(
        "Location: https://localhost:{}/v2/greet/manifests/sha256:{}",
        fake.listener.address.port(),
        package.digest()
    );
    let first = Fake::with_package(package.clone(), move |request, _| {
        let is_manifest = request.contains("/manifests/sha256:");
        is_manifest.then(|| reply("307 Temporary Redirect", &[&by_tls], b""))
    });
    let (is_ok, said) = place.tool(&["add", &first.pinned(&package), "--ca-file", ca_file.to_str().unwrap()]);
    assert!(!is_ok && said.contains("plain HTTP is only for registries"), "{said}");
    assert!(plain.heads().is_empty(), "{:?}", plain.heads());
    place.configure("[network]\nca_file = \"ca.pem\"\n");
    place.succeed(&["add", &address(":1")]);
}

#[test]
fn signatures_of_older_cosign_are_read_and_broken_ones_left_out() {
    let package = Package::of_greet();
    let file: Value = serde_json::from_slice(&signatures(&package.digest())).unwrap();
    let payload = BASE64_STANDARD.decode(file["signatures"][0]["payload"].as_str().unwrap()).unwrap();
    let layer = |bytes: &[u8]| {
        json!({
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": format!("sha256:{}", hex(bytes)),
            "size": bytes.len(),
            "annotations": { "dev.cosignproject.cosign/signature": BASE64_STANDARD.encode("signed") },
        })
    };
    let mut unsigned = layer(&payload);
    unsigned["annotations"] = json!({});
    let mut large = layer(&payload);
    large["size"] = json!(1 << 30);
    // Anybody with write access to the registry could add such signatures.
    let mut undecodable = layer(&payload);
    undecodable["annotations"] = json!({ "dev.cosignproject.cosign/signature": "!" });
    let mut short = layer(&payload);
    short["size"] = json!(5);
    let absent = layer(b"it is nowhere");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": "x", "size": 1 },
        "layers": [unsigned, large, undecodable, short, absent, layer(&payload)],
    });
    let tag = format!("/manifests/sha256-{}.sig", package.digest());
    let blob = format!("/blobs/sha256:{}", hex(&payload));
    let fake = Fake::with_package(package.clone(), move |request, _| {
        if request.contains(&tag) {
            return Some(ok(manifest.to_string().as_bytes()));
        }
        request.contains(&blob).then(|| ok(&payload))
    });
    let place = Place::new();
    let said = place.succeed(&["add", &fake.pinned(&package)]);
    for words in [
        "note: signatures of the tool: 1 read, 5 left out: ",
        "1 because it has another length than its description says",
        "1 because its manifest has no signature",
        "1 because its payload is too large",
        "1 because its signature is not Base64 of a usual length",
        "1 because the registry does not have it",
    ] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    let read: Value = serde_json::from_slice(&place.installed("greet", "signatures.json")).unwrap();
    assert_eq!(read, file);
}

/// A package with the parts of its signature, and the public key.
struct Signed {
    package: Package,
    key: Vec<u8>,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl Signed {
    fn greet() -> Self {
        Self::by(&Place::new())
    }

    /// Signs the tool in a place, where `greet` is then to be pushed from.
    fn by(author: &Place) -> Self {
        let pair = author.path("key.jwk");
        let pair = pair.to_str().unwrap();
        author.key(&["new", pair, "--issuer", "https://example.com"]);
        let folder = author.write("greet", &greet());
        author.succeed(&["sign", &folder, "--key", pair]);
        let read = |file: &str| std::fs::read(author.path("greet/signed").join(file)).unwrap();
        let file: Value = serde_json::from_slice(&read("signatures.json")).unwrap();
        let part =
            |name: &str| BASE64_STANDARD.decode(file["signatures"][0][name].as_str().unwrap()).unwrap();
        Self {
            package: Package {
                manifest: read("manifest.json"),
                config: read("config.json"),
                module: read("tool.wasm"),
            },
            key: author.key(&["show", "--json", pair]),
            payload: part("payload"),
            signature: part("signature"),
        }
    }

    /// The place of an operator who requires the signature.
    fn operator(&self) -> Place {
        let place = Place::new();
        std::fs::write(place.path("key.pub"), &self.key).unwrap();
        place.configure("[[catalog.trust.signer]]\nname = \"release\"\nkey_file = \"key.pub\"\n");
        place
    }

    /// Checks that the signature was chosen, and no other.
    fn check_installed(&self, place: &Place) {
        let read: Value = serde_json::from_slice(&place.installed("greet", "signatures.json")).unwrap();
        let payload = BASE64_STANDARD.encode(&self.payload);
        let signature = BASE64_STANDARD.encode(&self.signature);
        assert_eq!(read, json!({ "signatures": [{ "payload": payload, "signature": signature }] }));
    }

    /// A payload for the package, which nobody has signed.
    fn unsigned_payload(&self, number: usize) -> Vec<u8> {
        let digest = format!("sha256:{}", self.package.digest());
        let payload = json!({
            "critical": {
                "identity": { "docker-reference": "" },
                "image": { "docker-manifest-digest": digest },
                "type": "cosign container image signature",
            },
            "optional": { "n": number },
        });
        payload.to_string().into_bytes()
    }
}

/// The referrers of a package, and what the registry has of them.
#[derive(Clone, Default)]
struct Referrers {
    entries: Vec<Value>,
    parts: HashMap<String, Vec<u8>>,
}

impl Referrers {
    fn add(&mut self, package: &Package, payload: &[u8], signature: &[u8]) {
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let artifact_type = "application/vnd.dev.cosign.artifact.sig.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "artifactType": artifact_type,
            "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": "x", "size": 2 },
            "layers": [{
                "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
                "digest": format!("sha256:{}", hex(payload)),
                "size": payload.len(),
                "annotations": { "dev.cosignproject.cosign/signature": BASE64_STANDARD.encode(signature) },
            }],
            "subject": {
                "mediaType": manifest_type,
                "digest": format!("sha256:{}", package.digest()),
                "size": package.manifest.len(),
            },
        });
        let manifest = manifest.to_string().into_bytes();
        let digest = hex(&manifest);
        self.entries.push(json!({
            "mediaType": manifest_type,
            "digest": format!("sha256:{digest}"),
            "size": manifest.len(),
            "artifactType": artifact_type,
        }));
        self.parts.insert(format!("/manifests/sha256:{digest}"), manifest);
        self.parts.insert(format!("/blobs/sha256:{}", hex(payload)), payload.to_vec());
    }

    /// Entries of which the registry has nothing.
    fn add_missing(&mut self, count: usize) {
        let entry = |number: usize| {
            json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": format!("sha256:{number:064x}"),
                "size": 500,
                "artifactType": "application/vnd.dev.cosign.artifact.sig.v1+json",
            })
        };
        self.entries.extend((0..count).map(entry));
    }

    /// A registry with these referrers, except where `change` answers.
    fn serve(
        self,
        package: &Package,
        change: impl Fn(&str) -> Option<Reply> + Send + Sync + 'static,
    ) -> Fake {
        let list = format!("/referrers/sha256:{}", package.digest());
        Fake::with_package(package.clone(), move |request, _| {
            let Self { entries, parts } = &self;
            change(request).or_else(|| {
                if request.contains(&list) {
                    return Some(ok(json!({ "schemaVersion": 2, "manifests": entries })
                        .to_string()
                        .as_bytes()));
                }
                let path = request.split(' ').nth(1).unwrap().strip_prefix("/v2/greet").unwrap_or_default();
                parts.get(path).map(|bytes| ok(bytes))
            })
        })
    }
}

/// Somebody who may write to the repository puts others before it, or makes the registry refuse some.
#[test]
fn no_crowd_of_other_signatures_hides_a_valid_one() {
    let signed = Signed::greet();
    let Signed { package, payload, signature, .. } = &signed;
    let forged = |referrers: &mut Referrers, count: usize, length: usize| {
        for number in 0..count {
            let payload = [signed.unsigned_payload(number), vec![b' '; length]].concat();
            referrers.add(package, &payload, b"forged");
        }
    };
    type Crowd<'a> = &'a dyn Fn(&mut Referrers);
    let repeated = |referrers: &mut Referrers| {
        forged(referrers, 1, 0);
        referrers.entries[0]["annotations"] = json!({ "padding": "x".repeat(2000) });
        referrers.entries = vec![referrers.entries[0].clone(); 600];
    };
    let crowds: [Crowd<'_>; 5] = [
        &|referrers| referrers.add_missing(33),
        &|referrers| forged(referrers, 127, 0),
        &|referrers| forged(referrers, 40, 8000),
        &repeated,
        // A forged signature over the very payload that is signed.
        &|referrers| referrers.add(package, payload, b"forged"),
    ];
    for crowd in crowds {
        let mut referrers = Referrers::default();
        crowd(&mut referrers);
        referrers.add(package, payload, signature);
        let fake = referrers.serve(package, |_| None);
        let place = signed.operator();
        place.succeed(&["add", &fake.pinned(package)]);
        signed.check_installed(&place);
    }
    let mut referrers = Referrers::default();
    forged(&mut referrers, 1, 0);
    let refused = referrers.entries[0]["digest"].as_str().unwrap().to_owned();
    referrers.add(package, payload, signature);
    for status in ["400 Bad Request", "403 Forbidden", "429 Too Many Requests", "500 Internal Server Error"] {
        for path in [format!("/manifests/{refused}"), format!("/manifests/sha256-{}.sig", package.digest())] {
            let fake = referrers
                .clone()
                .serve(package, move |request| request.contains(&path).then(|| reply(status, &[], b"no")));
            let place = signed.operator();
            let said = place.succeed(&["add", &fake.pinned(package)]);
            assert!(said.contains("left out: "), "{said}");
            signed.check_installed(&place);
        }
    }
}

#[test]
fn a_long_list_of_signatures_costs_a_limited_number_of_requests_and_is_explained() {
    let signed = Signed::greet();
    let Signed { package, payload, signature, .. } = &signed;
    let mut referrers = Referrers::default();
    referrers.add(package, &signed.unsigned_payload(0), b"forged");
    referrers.add_missing(1_000);
    referrers.add(package, payload, signature);
    let fake = referrers.clone().serve(package, |_| None);
    let said = signed.operator().fail(&["add", &fake.pinned(package)], "no signer of this executor's list");
    for words in [
        "note: signatures of the tool: 1 read, 1001 left out: ",
        "747 because its list needs too many requests",
        "254 because the registry does not have it",
    ] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    // Besides those for signatures: the version, the package, its config and module, and the two lists.
    assert!(fake.heads().len() <= 256 + 8, "{}", fake.heads().len());
    // A list that is longer than any registry should keep is no reason to read on, or to end.
    referrers.entries[0]["annotations"] = json!({ "padding": "x".repeat(5 << 20) });
    let fake = referrers.serve(package, |_| None);
    let said = signed.operator().fail(&["add", &fake.pinned(package)], "the tool is not signed");
    assert!(said.contains("a list of the tool's signatures is left out: it is too large"), "{said}");
}

#[test]
fn forged_signatures_that_were_pushed_hide_no_valid_one() {
    let Some(registry) = Registry::start() else { return };
    let author = Place::new();
    let mallory = Place::new();
    let signed = Signed::by(&author);
    let address = format!("oci://{}/greet", registry.address);
    let folder = author.path("greet");
    let pinned = format!("{address}@sha256:{}", signed.package.digest());
    let push = || author.succeed(&["push", &address, folder.to_str().unwrap()]);
    let first = || {
        let mut client = HttpClient::connect(registry.address);
        let path = format!("/v2/greet/manifests/sha256-{}", signed.package.digest());
        let accept = ("Accept", "application/vnd.oci.image.index.v1+json");
        client.request("GET", &path, &[accept], b"").json()["manifests"][0]["digest"].clone()
    };
    push();
    let own = first();
    mallory.succeed(&["add", &pinned]);
    let forge = |count: usize| {
        let entry = |number| {
            let payload = BASE64_STANDARD.encode(signed.unsigned_payload(number));
            json!({ "payload": payload, "signature": "AAAA" })
        };
        let file = json!({ "signatures": (0..count).map(entry).collect::<Vec<_>>() });
        std::fs::write(mallory.path("tools/greet/signatures.json"), file.to_string()).unwrap();
    };
    forge(33);
    mallory.fail(&["push", &address, "--installed", "greet"], "at most 32 are accepted");
    forge(32);
    mallory.succeed(&["push", &address, "--installed", "greet"]);
    assert_ne!(first(), own);
    let operator = signed.operator();
    operator.succeed(&["add", &pinned]);
    signed.check_installed(&operator);
    // To push again helps against any crowd.
    push();
    assert_eq!(first(), own);
}
