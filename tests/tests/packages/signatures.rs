//! Required signatures (`[catalog.trust]`): what is refused, with which message, and that a refused tool is not
//! compiled.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::{Signer as _, SigningKey};
use harness::{
    Executor, HttpClient, Options, Tool, cache, children_of, eventually, execute, expect_blocked, in_seconds,
    intent, print_skipped, result, run, saying,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const TOOL: &str = "greet";

/// A folder with a tool's sources, keys, and the configuration of an executor that requires signatures.
struct Place {
    folder: TempDir,
}

impl Place {
    /// With the signer `release`, whose key was made by `key new`.
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().expect("a temp folder") };
        place.add_key("release");
        place.configure(&["release"], "*");
        place.source(TOOL, "1.0.0");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// A key pair made by `key new`: `NAME.jwk` and `NAME.pub`.
    fn add_key(&self, name: &str) {
        let pair = self.text(&format!("{name}.jwk"));
        succeeds(run(["key", "new", &pair, "--issuer", "https://example.com"]));
        let public = succeeds(run(["key", "show", "--json", &pair]));
        std::fs::write(self.path(&format!("{name}.pub")), public).expect("a file");
    }

    /// A P-256 key pair: `NAME.pem` as PKCS#8, and `NAME.pub`.
    fn add_p256_key(&self, name: &str) {
        let pair = rcgen::KeyPair::generate().expect("a key");
        self.private_file(&format!("{name}.pem"), &pair.serialize_pem());
        std::fs::write(self.path(&format!("{name}.pub")), pair.public_key_pem()).expect("a file");
    }

    fn private_file(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).expect("a mode");
    }

    /// Trusts these signers for tools of this pattern.
    fn configure(&self, signers: &[&str], pattern: &str) {
        let tables = signers.iter().map(|name| {
            format!("[[catalog.trust.signer]]\nname = \"{name}\"\nkey_file = \"{name}.pub\"\ntools = [\"{pattern}\"]\n")
        });
        let tables = tables.collect::<String>();
        let scope = "[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n";
        let text = format!("[catalog]\ntools = \"tools\"\ncache = \"cache\"\n{tables}{scope}");
        std::fs::write(self.path("executor.toml"), text).expect("a file");
        // For the author, who signs with a separate configuration and cache.
        std::fs::write(self.path("author.toml"), scope.to_owned() + "[catalog]\ncache = \"author-cache\"\n")
            .expect("a file");
    }

    /// The sources of a tool.
    fn source(&self, name: &str, version: &str) {
        let tool = Tool::command(name, &saying(1, "1", 0)).filesystem("none");
        tool.declare("version", json!(version)).write(&self.path(name), false);
        std::fs::write(self.path(name).join("README.md"), "# Greets\n").expect("a file");
    }

    fn sign(&self, name: &str, key: &str, more: &[&str]) -> String {
        let folder = self.text(name);
        let key = self.text(key);
        let config = self.text("author.toml");
        let command = [&["tool", "sign", &folder, "--key", &key, "--config", &config], more].concat();
        String::from_utf8(succeeds(run(command))).expect("UTF-8")
    }

    /// A `tool` command of the executor that requires signatures.
    fn tool(&self, arguments: &[&str]) -> (bool, String) {
        let config = self.text("executor.toml");
        let output = run([&["tool"], arguments, &["--config", &config]].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).expect("UTF-8"))
    }

    fn add(&self, name: &str) -> (bool, String) {
        self.tool(&["add", &self.text(name)])
    }

    fn is_anything_compiled(&self) -> bool {
        std::fs::read_dir(self.path("cache")).is_ok_and(|mut files| files.next().is_some())
    }

    /// Signs a payload with the key made by `key new`, without the executor's own code.
    fn sign_payload(&self, key: &str, payload: &str) -> String {
        let jwk = std::fs::read(self.path(key)).expect("a key");
        let jwk: Value = serde_json::from_slice(&jwk).expect("JSON");
        let seed = URL_SAFE_NO_PAD.decode(jwk["d"].as_str().expect("a private key")).expect("base64url");
        let key = SigningKey::from_bytes(&seed.try_into().expect("32 bytes"));
        signature_file(payload.as_bytes(), &key.sign(payload.as_bytes()).to_bytes())
    }

    /// The settings of a server in this folder.
    fn options(&self) -> Options {
        let config = std::fs::read_to_string(self.path("executor.toml")).expect("a file");
        let config: Value = toml::from_str(&config).expect("TOML");
        let mut trust = config["catalog"]["trust"].clone();
        for signer in trust["signer"].as_array_mut().expect("signers") {
            signer["key_file"] = json!(self.path(signer["key_file"].as_str().expect("a name")));
        }
        Options::new().set("catalog.tools", json!(self.path("tools"))).set("catalog.trust", trust)
    }
}

fn signature_file(payload: &[u8], signature: &[u8]) -> String {
    let entry = json!({ "payload": STANDARD.encode(payload), "signature": STANDARD.encode(signature) });
    json!({ "signatures": [entry] }).to_string()
}

fn succeeds(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).expect("a file");
}

fn change(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).expect("a file");
    assert!(text.contains(from), "{} has no `{from}`", path.display());
    std::fs::write(path, text.replace(from, to)).expect("a file");
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
    }
}

/// The payload of a signature for the package in a folder, with these optional members.
fn payload(folder: &Path, optional: &Value) -> String {
    let manifest = std::fs::read(folder.join("manifest.json")).expect("a manifest");
    json!({
        "critical": {
            "identity": { "docker-reference": "registry.example.com/greet" },
            "image": { "docker-manifest-digest": sha256(&manifest) },
            "type": "cosign container image signature",
        },
        "optional": optional,
    })
    .to_string()
}

/// Packages changed files again, with matching manifest, config and `tool.toml`.
fn repackage(folder: &Path) {
    let mut config = read_json(&folder.join("config.json"));
    let text = std::fs::read_to_string(folder.join("tool.toml")).expect("a file");
    config["a2g.tool"]["tool.toml"] = json!(text);
    write_json(&folder.join("config.json"), &config);
    let bytes = std::fs::read(folder.join("config.json")).expect("a file");
    let mut manifest = read_json(&folder.join("manifest.json"));
    manifest["config"]["digest"] = json!(sha256(&bytes));
    manifest["config"]["size"] = json!(bytes.len());
    write_json(&folder.join("manifest.json"), &manifest);
}

/// Changes the only entry of `signatures.json`.
fn change_signature(folder: &Path, change: impl FnOnce(&mut Value)) {
    let mut file = read_json(&folder.join("signatures.json"));
    change(&mut file["signatures"][0]);
    write_json(&folder.join("signatures.json"), &file);
}

type Tampering<'a> = (&'static str, &'a dyn Fn(&Path), &'static str);

#[test]
fn every_change_of_a_signed_tool_is_refused_with_its_sentence_before_anything_is_compiled() {
    let place = Place::new();
    place.add_key("stranger");
    place.source("other", "1.0.0");
    place.sign(TOOL, "release.jwk", &["--expires-days", "30"]);
    place.sign("other", "release.jwk", &[]);
    let signed_by = |key: &str, folder: &Path, optional: &Value| {
        let file = place.sign_payload(key, &payload(folder, optional));
        std::fs::write(folder.join("signatures.json"), file).expect("a file");
    };
    let other = place.path("other/signed/signatures.json");
    let cases: [Tampering<'_>; 20] = [
        (
            "no signatures",
            &|folder| std::fs::remove_file(folder.join("signatures.json")).unwrap(),
            "the tool is not signed",
        ),
        (
            "no package",
            &|folder| std::fs::remove_file(folder.join("manifest.json")).unwrap(),
            "it has no package (`manifest.json`)",
        ),
        (
            "not JSON",
            &|folder| std::fs::write(folder.join("signatures.json"), "<html>").unwrap(),
            "(`signatures.json`) cannot be read",
        ),
        (
            "a member more",
            &|folder| change(&folder.join("signatures.json"), "{\"signatures\"", "{\"x\":1,\"signatures\""),
            "(`signatures.json`) cannot be read",
        ),
        (
            "too large",
            &|folder| std::fs::write(folder.join("signatures.json"), " ".repeat(70_000)).unwrap(),
            "at most 65536",
        ),
        (
            "a stranger",
            &|folder| signed_by("stranger.jwk", folder, &json!({})),
            "no signer of this executor's list",
        ),
        (
            "another signature",
            &|folder| {
                change_signature(folder, |entry| entry["signature"] = json!(STANDARD.encode([7_u8; 64])));
            },
            "the signature by `release` does not verify",
        ),
        (
            "another payload",
            &|folder| {
                change_signature(folder, |entry| {
                    let payload = STANDARD.decode(entry["payload"].as_str().unwrap()).unwrap();
                    let payload = String::from_utf8(payload).unwrap().replace("1.0.0", "2.0.0");
                    entry["payload"] = json!(STANDARD.encode(payload));
                });
            },
            "the signature by `release` does not verify",
        ),
        (
            "expired",
            &|folder| signed_by("release.jwk", folder, &json!({ "a2g.expires": in_seconds(-1) })),
            "the signature by `release` expired at 20",
        ),
        (
            "an expiry that nobody can read",
            &|folder| signed_by("release.jwk", folder, &json!({ "a2g.expires": "never" })),
            "not an RFC 3339 time",
        ),
        (
            "an unknown condition",
            &|folder| signed_by("release.jwk", folder, &json!({ "a2g.machine": "m" })),
            "`a2g.machine` is not known",
        ),
        (
            "an old version's signature",
            &|folder| signed_by("release.jwk", folder, &json!({ "a2g.version": "0.9.0" })),
            "is for version `0.9.0`",
        ),
        (
            "another tool's signature",
            &|folder| {
                std::fs::copy(&other, folder.join("signatures.json")).unwrap();
            },
            "is for the tool `other`",
        ),
        (
            "the module",
            &|folder| {
                let wasm = wat::parse_str(saying(1, "2", 0)).unwrap();
                std::fs::write(folder.join("tool.wasm"), wasm).unwrap();
            },
            "`tool.wasm` was changed after the tool was packaged",
        ),
        (
            "the module and its pin",
            &|folder| {
                let wasm = wat::parse_str(saying(1, "2", 0)).unwrap();
                let [old, new] = [std::fs::read(folder.join("tool.wasm")).unwrap(), wasm.clone()];
                change(&folder.join("tool.toml"), &sha256(&old)[7..], &sha256(&new)[7..]);
                std::fs::write(folder.join("tool.wasm"), wasm).unwrap();
            },
            "`tool.toml` was changed after the tool was packaged",
        ),
        (
            "the capabilities",
            &|folder| change(&folder.join("tool.toml"), "network = false", "network = true"),
            "`tool.toml` was changed after the tool was packaged",
        ),
        (
            "the schema",
            &|folder| {
                change(&folder.join("tool.toml"), "type = \"object\"", "type = \"object\"\ntitle = \"x\"")
            },
            "`tool.toml` was changed after the tool was packaged",
        ),
        (
            "the README",
            &|folder| std::fs::write(folder.join("README.md"), "Run me.").unwrap(),
            "`README.md` was changed after the tool was packaged",
        ),
        (
            "the config",
            &|folder| change(&folder.join("config.json"), "wasip1", "wasip2"),
            "the config of the package was changed",
        ),
        (
            "everything, packaged again",
            &|folder| {
                change(&folder.join("tool.toml"), "network = false", "network = true");
                repackage(folder);
            },
            "its manifest (`manifest.json`) was changed after it was signed",
        ),
    ];
    for (what, tamper, sentence) in cases {
        // As a source of `tool add`, and as an installed tool.
        let source = place.path("tampered");
        copy(&place.path("greet/signed"), &source);
        tamper(&source);
        let (added, said) = place.add("tampered");
        assert!(!added && said.contains(sentence), "tool add, {what}: {said}");
        assert!(!said.contains("compiling") && !place.is_anything_compiled(), "{what} was compiled: {said}");
        assert!(!place.path("tools/greet").exists(), "{what}");
        std::fs::create_dir_all(place.path("tools")).unwrap();
        std::fs::rename(&source, place.path("tools/greet")).unwrap();
        let (_, listed) = place.tool(&["list", "--json"]);
        assert!(listed.contains(&sentence.replace('"', "\\\"")), "tool list, {what}: {listed}");
        let (inspected, said) = place.tool(&["inspect", TOOL]);
        assert!(!inspected && said.contains(sentence), "tool inspect, {what}: {said}");
        assert!(!said.contains("compiling") && !place.is_anything_compiled(), "{what} was compiled: {said}");
        std::fs::remove_dir_all(place.path("tools")).unwrap();
    }
    // The same tool, unchanged.
    let (added, said) = place.add(TOOL);
    assert!(added && said.contains("signed by release") && place.is_anything_compiled(), "{said}");
}

#[test]
fn an_unsigned_folder_or_module_is_refused_at_once() {
    let place = Place::new();
    let (added, said) = place.add(TOOL);
    assert!(!added && said.contains("it has no package"), "{said}");
    let (added, said) = place.add("greet/tool.wasm");
    assert!(!added && said.contains("it has no package"), "{said}");
    assert!(!place.is_anything_compiled());
    // The author's own commands require no signature.
    let (checked, said) = place.tool(&["check", &place.text(TOOL)]);
    assert!(checked, "{said}");
}

#[test]
fn keys_of_both_kinds_sign_and_only_the_names_of_their_patterns() {
    let place = Place::new();
    place.add_p256_key("ci");
    for (signer, key) in [("release", "release.jwk"), ("ci", "ci.pem")] {
        let said = place.sign(TOOL, key, &["--expires-days", "7"]);
        assert!(said.contains("package  sha256:") && said.contains("expires  20"), "{said}");
        place.configure(&[signer], "read_*");
        let (added, said) = place.add(TOOL);
        let sentence = format!("`{signer}` signed the tool, and may not sign tools of the name `greet`");
        assert!(!added && said.contains(&sentence) && said.contains("`read_*`"), "{said}");
        assert!(!place.is_anything_compiled());
        place.configure(&[signer], "gr*t");
        let (added, said) = place.add(TOOL);
        assert!(added && said.contains(&format!("signed by {signer}")), "{said}");
        let (_, table) = place.tool(&["list"]);
        assert!(table.contains("signer") && table.contains(signer), "{table}");
        let (_, inspected) = place.tool(&["inspect", TOOL]);
        assert!(inspected.contains(&format!("signed by  {signer}, until 20")), "{inspected}");
        let (_, listed) = place.tool(&["list", "--json"]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let manifest = std::fs::read(place.path("tools/greet/manifest.json")).unwrap();
        assert_eq!(listed[0]["signature"]["signer"], signer);
        assert_eq!(listed[0]["signature"]["package"], sha256(&manifest));
        std::fs::remove_dir_all(place.path("cache")).unwrap();
    }
    // The second signature was added to the first.
    let signatures = read_json(&place.path("greet/signed/signatures.json"));
    assert_eq!(signatures["signatures"].as_array().map(Vec::len), Some(2));
    let private = std::fs::read_to_string(place.path("release.jwk")).unwrap();
    let secret = serde_json::from_str::<Value>(&private).unwrap()["d"].as_str().unwrap().to_owned();
    assert!(!signatures.to_string().contains(&secret));
}

#[test]
fn changed_sources_have_to_be_signed_again_and_an_older_version_replaces_no_newer_one() {
    let place = Place::new();
    place.sign(TOOL, "release.jwk", &[]);
    copy(&place.path("greet/signed"), &place.path("old"));
    place.source(TOOL, "2.0.0");
    let (added, said) = place.add(TOOL);
    assert!(!added && said.contains("does not match tool.toml"), "{said}");
    std::fs::write(place.path("greet/README.md"), "New.").unwrap();
    place.sign(TOOL, "release.jwk", &[]);
    std::fs::write(place.path("greet/README.md"), "Newer.").unwrap();
    let (added, said) = place.add(TOOL);
    assert!(!added && said.contains("does not match README.md"), "{said}");
    let wasm = std::fs::read(place.path("greet/tool.wasm")).unwrap();
    std::fs::write(place.path("greet/tool.wasm"), wat::parse_str(saying(1, "3", 0)).unwrap()).unwrap();
    let (added, said) = place.add(TOOL);
    assert!(!added && said.contains("does not match module"), "{said}");
    std::fs::write(place.path("greet/tool.wasm"), wasm).unwrap();
    std::fs::write(place.path("greet/README.md"), "New.").unwrap();
    assert!(place.add(TOOL).0);
    std::fs::remove_dir_all(place.path("cache")).unwrap();
    let (added, said) = place.add("old");
    assert!(!added && said.contains("is older than the installed version `2.0.0`"), "{said}");
    assert!(!place.is_anything_compiled());
    std::fs::remove_dir_all(place.path("tools/greet")).unwrap();
    assert!(place.add("old").0);
}

/// A version without an order could be any, so it is no way back to an old one.
#[test]
fn a_signed_version_that_is_no_semantic_one_replaces_no_semantic_one() {
    let place = Place::new();
    let versions = ["0", "1.0", "1.99", "02.0.0", "2.0.0.0", "v1"];
    for version in versions.into_iter().chain(["2.0.0", "2.0.0+build.7"]) {
        place.source(TOOL, version);
        place.sign(TOOL, "release.jwk", &[]);
        copy(&place.path("greet/signed"), &place.path(version));
    }
    assert!(place.add("2.0.0").0);
    std::fs::remove_dir_all(place.path("cache")).unwrap();
    for version in versions {
        let (added, said) = place.add(version);
        let words =
            format!("version `{version}` of `greet` cannot be compared with the installed version `2.0.0`");
        assert!(!added && said.contains(&words), "{said}");
        assert!(!place.is_anything_compiled());
    }
    assert!(place.add("2.0.0+build.7").0);
    std::fs::remove_dir_all(place.path("tools/greet")).unwrap();
    // Among themselves, such versions are not compared.
    for version in ["1.99", "0", "2.0.0"] {
        let (added, said) = place.add(version);
        assert!(added, "{said}");
    }
}

#[test]
fn a_configuration_that_could_trust_the_wrong_key_is_refused() {
    let place = Place::new();
    let config = std::fs::read_to_string(place.path("executor.toml")).unwrap();
    let cases = [
        (config.replace("name = \"release\"", "name = \"re lease\""), "is not the name of a signer"),
        (config.replace("\"*\"", "\"[a-z]\""), "`[a-z]`"),
        (config.replace("[\"*\"]", "[]"), "could sign no tool"),
        (config.replace("release.pub", "missing.pub"), "missing.pub"),
        (config.replace("release.pub", "release.jwk"), "private key"),
        (config.replace("[[catalog.trust.signer]]", "[catalog.trust]\n[[catalog.signer]]"), "signer"),
    ];
    for (text, sentence) in cases {
        std::fs::write(place.path("executor.toml"), text).unwrap();
        let (listed, said) = place.tool(&["list"]);
        assert!(!listed && said.contains(sentence), "{sentence}: {said}");
    }
    std::fs::write(place.path("executor.toml"), config).unwrap();
    std::fs::set_permissions(place.path("release.pub"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let (listed, said) = place.tool(&["list"]);
    assert!(!listed && said.contains("chmod go-w"), "{said}");
}

#[test]
fn openssl_verifies_our_signatures_and_makes_signatures_that_we_verify() {
    let Ok(version) = Command::new("openssl").arg("version").output() else {
        return print_skipped("there is no openssl here");
    };
    if !String::from_utf8_lossy(&version.stdout).starts_with("OpenSSL 3") {
        return print_skipped("there is no OpenSSL 3 here");
    }
    let place = Place::new();
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        succeeds(command.current_dir(place.folder.path()).args(arguments.split(' ')).output().unwrap())
    };
    let kinds = [("p256", "EC -pkeyopt ec_paramgen_curve:P-256", "-digest sha256"), ("ed", "ED25519", "")];
    for (name, algorithm, digest) in kinds {
        openssl(&format!("genpkey -algorithm {algorithm} -out {name}.pem"));
        openssl(&format!("pkey -in {name}.pem -pubout -out {name}.pub"));
        let pem = std::fs::read_to_string(place.path(&format!("{name}.pem"))).unwrap();
        place.private_file(&format!("{name}.pem"), &pem);
        let _none_yet = std::fs::remove_dir_all(place.path("greet/signed"));
        place.sign(TOOL, &format!("{name}.pem"), &[]);
        // Our signature, verified by openssl.
        let signed = read_json(&place.path("greet/signed/signatures.json"))["signatures"][0].clone();
        for part in ["payload", "signature"] {
            std::fs::write(place.path(part), STANDARD.decode(signed[part].as_str().unwrap()).unwrap())
                .unwrap();
        }
        let keyed = format!("-rawin {digest}").trim().to_owned();
        let verified = openssl(&format!(
            "pkeyutl -verify -pubin -inkey {name}.pub {keyed} -in payload -sigfile signature"
        ));
        assert!(String::from_utf8_lossy(&verified).contains("Verified Successfully"));
        // A signature by openssl, verified by us; the key also as DER.
        let text = payload(&place.path("greet/signed"), &json!({ "a2g.tool": TOOL }));
        std::fs::write(place.path("payload"), &text).unwrap();
        openssl(&format!("pkeyutl -sign -inkey {name}.pem {keyed} -in payload -out signature"));
        openssl(&format!("pkey -pubin -in {name}.pub -outform DER -out {name}-der.pub"));
        let signature = std::fs::read(place.path("signature")).unwrap();
        let file = signature_file(text.as_bytes(), &signature);
        std::fs::write(place.path("greet/signed/signatures.json"), file).unwrap();
        for key in [name.to_owned(), format!("{name}-der")] {
            place.configure(&[&key], "*");
            let (added, said) = place.add(TOOL);
            assert!(added && said.contains(&format!("signed by {key}")), "{said}");
        }
        let mut changed = signature;
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(place.path("greet/signed/signatures.json"), signature_file(text.as_bytes(), &changed))
            .unwrap();
        let (added, said) = place.add(TOOL);
        assert!(!added && said.contains("no signer of this executor's list"), "{said}");
    }
}

/// No process compiles a module for this server.
fn is_compiling(server: u32) -> bool {
    let compiles = |pid: u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.contains("compile-module"))
    };
    children_of(server).into_iter().any(compiles)
}

#[test]
fn calls_tools_and_receipts_show_the_signer_and_a_refused_call_is_on_record() {
    let place = Place::new();
    place.sign(TOOL, "release.jwk", &["--expires-days", "30"]);
    assert!(place.add(TOOL).0);
    // A second tool, put directly into the catalogue, whose code is in the cache of the server.
    Tool::command("planted", &saying(1, "1", 0)).filesystem("none").write(&place.path("tools/planted"), true);
    let mut executor = Executor::start(place.options().set("catalog.cache", json!(cache())));
    executor.process().line_with("planted");
    let manifest = std::fs::read(place.path("tools/greet/manifest.json")).unwrap();
    let package = sha256(&manifest);
    let listed = executor.rpc("a2g/tools", &json!({}));
    let tools = result(&listed)["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 1, "{listed}");
    assert_eq!(tools[0]["signature"]["signer"], "release");
    assert_eq!(tools[0]["signature"]["package"], package);
    let answer = executor.rpc("a2g/execute", &execute(TOOL, json!({})));
    let expected = &tools[0]["signature"];
    assert_eq!(&result(&answer)["tool_signature"], expected, "{answer}");
    assert_eq!(&executor.wait_for_reports(1)[0]["tool_signature"], expected);
    let id = result(&answer)["intent_id"].as_str().unwrap();
    let shown = executor.home().run(&["journal", "show", id, "--json"]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains(&package));
    for (method, params) in
        [("a2g/execute", execute("planted", json!({}))), ("a2g/intent", intent("planted", json!({})))]
    {
        let response = executor.rpc(method, &params);
        let said = expect_blocked(&response, "tool_untrusted");
        assert!(said.contains("it has no package"), "{said}");
    }
    assert!(!is_compiling(executor.process().id()));
    let refused = eventually("the refusals are on record", || {
        Some(executor.home().list_journal(&["--refused"])).filter(|refused| refused.len() == 2)
    });
    for refusal in refused {
        let text = refusal.to_string();
        assert!(text.contains("tool_untrusted") && text.contains("planted"), "{text}");
    }
    executor.process().line_with("tool_untrusted");
}

#[test]
fn a_reload_removes_the_tools_of_a_removed_signer_and_fails_closed() {
    let place = Place::new();
    place.add_p256_key("ci");
    place.configure(&["release", "ci"], "*");
    place.sign(TOOL, "ci.pem", &[]);
    assert!(place.add(TOOL).0);
    let mut executor = Executor::start(place.options());
    let mut client = executor.client();
    result(&client.rpc("a2g/execute", &execute(TOOL, json!({}))));
    let config = executor.home().config();
    let original = std::fs::read_to_string(&config).unwrap();
    let mut changed: Value = toml::from_str(&original).unwrap();
    changed["catalog"]["trust"]["signer"].as_array_mut().unwrap().truncate(1);
    let reload = |executor: &mut Executor, text: &str, mark: &str| {
        std::fs::write(&config, text).unwrap();
        executor.process().hang_up();
        executor.process().line_with(mark);
    };
    let refused = |client: &mut HttpClient, sentence: &str| {
        eventually(sentence, || {
            let response = client.rpc("a2g/execute", &execute(TOOL, json!({})));
            let refusal = response.get("error")?;
            assert_eq!(refusal["data"]["blocked_by"], "tool_untrusted", "{response}");
            refusal["message"].as_str().unwrap().contains(sentence).then_some(())
        });
    };
    reload(
        &mut executor,
        &toml::to_string(&changed).unwrap(),
        r#""message":"signers of tools reloaded","signers":1"#,
    );
    refused(&mut client, "no signer of this executor's list");
    // The signatures are read again as well.
    place.sign(TOOL, "release.jwk", &[]);
    std::fs::copy(place.path("greet/signed/signatures.json"), place.path("tools/greet/signatures.json"))
        .unwrap();
    executor.process().hang_up();
    eventually("the new signature is accepted", || {
        client.rpc("a2g/execute", &execute(TOOL, json!({}))).get("result").map(drop)
    });
    let listed = client.rpc("a2g/tools", &json!({}));
    assert_eq!(result(&listed)["tools"][0]["signature"]["signer"], "release");
    // If the configuration cannot be read, nobody is trusted.
    reload(&mut executor, "nonsense", "no tool is accepted until the signers can be read again");
    refused(&mut client, "no signer of this executor's list");
    std::fs::write(&config, &original).unwrap();
    executor.process().hang_up();
    eventually("the signers are back", || {
        client.rpc("a2g/execute", &execute(TOOL, json!({}))).get("result").map(drop)
    });
}

#[test]
fn a_signature_that_expires_while_the_server_runs_ends_its_tool() {
    let place = Place::new();
    place.sign(TOOL, "release.jwk", &[]);
    assert!(place.add(TOOL).0);
    let folder = place.path("tools/greet");
    let expires = json!({ "a2g.expires": in_seconds(20) });
    std::fs::write(
        folder.join("signatures.json"),
        place.sign_payload("release.jwk", &payload(&folder, &expires)),
    )
    .unwrap();
    let executor = Executor::start(place.options());
    let answer = executor.rpc("a2g/execute", &execute(TOOL, json!({})));
    assert!(result(&answer)["tool_signature"]["expires_at"].is_string(), "{answer}");
    let mut client = executor.client();
    eventually("it expires", || {
        let response = client.rpc("a2g/execute", &execute(TOOL, json!({})));
        response.get("error")?;
        let said = expect_blocked(&response, "tool_untrusted");
        assert!(said.contains("the signature by `release` expired at"), "{said}");
        Some(())
    });
}
