//! `sbom`: writes a CycloneDX document that lists what is linked into the executor.
//!
//! The packages and their graph are those of `cargo tree`, which resolves features as a build does; `cargo metadata`
//! has the licences, and Cargo.lock the checksums. The document depends on the commit, the target and the compiler
//! only: it has no time, and its serial number follows from its content.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::run::{self, Workspace};

pub(crate) const HELP: &str = "\
Write the list of what is linked into the executor (SBOM, CycloneDX 1.6, JSON).

Usage: cargo xtask sbom [FILE]

It writes to FILE, or else to standard output. The list has the packages that a
release build of a2g-executor links on this machine, with licences, checksums
and dependencies. Macros and what they need have the scope `excluded`: they run
in the compiler, and no code of theirs is in the binary. Dependencies of tests
and of build scripts are not listed.";

const EXECUTOR: &str = "a2g-executor";

/// A package, by its name and version: `deny.toml` permits no second source of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PackageId {
    name: String,
    version: String,
}

/// The packages that a build of the executor needs besides build scripts.
#[derive(Debug, Default)]
struct Graph {
    /// The dependencies of each package.
    dependencies: BTreeMap<PackageId, BTreeSet<PackageId>>,
    macros: BTreeSet<PackageId>,
    root: Option<PackageId>,
}

/// The licence and checksum of each package.
#[derive(Debug, Default)]
struct PackageFacts {
    licences: BTreeMap<PackageId, String>,
    /// The SHA-256 of the archive in the registry. The crates of this repository have none.
    checksums: BTreeMap<PackageId, String>,
}

/// The target and the version of the compiler.
struct Compiler {
    target: String,
    version: String,
}

/// The packages that are linked into the executor.
pub(crate) struct Components {
    graph: Graph,
    facts: PackageFacts,
    compiler: Compiler,
}

/// A package of a release: the executor with its tools.
pub(crate) struct Package<'a> {
    /// The name of the file.
    pub(crate) name: String,
    pub(crate) sha256: String,
    pub(crate) version: &'a str,
    pub(crate) tools: &'a [Tool],
}

/// A tool of a package.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The digest of the module.
    pub(crate) sha256: String,
}

/// The command `sbom`.
pub(crate) fn run(workspace: &Workspace, file: Option<&Path>) -> Result<()> {
    let text = document(workspace)?;
    match file {
        Some(file) => fs::write(file, text)?,
        None => anstream::print!("{text}"),
    }
    Ok(())
}

fn document(workspace: &Workspace) -> Result<String> {
    Components::find(workspace, None)?.document(None)
}

impl Components {
    /// The components of a build for a target, by default that of this machine.
    pub(crate) fn find(workspace: &Workspace, target: Option<&str>) -> Result<Self> {
        let mut compiler = Compiler::find(workspace)?;
        if let Some(target) = target {
            target.clone_into(&mut compiler.target);
        }
        let edges = tree(workspace, &compiler.target, &["--edges", "normal", "--prefix", "depth"])?;
        let facts = PackageFacts::find(workspace, &compiler.target)?;
        Ok(Self { graph: Graph::parse(&edges)?, facts, compiler })
    }

    /// The document of the executor, or of a package with it.
    pub(crate) fn document(&self, package: Option<&Package<'_>>) -> Result<String> {
        let mut bom = bom(&self.graph, &self.facts, &self.compiler)?;
        if let Some(package) = package {
            let root = self.graph.root.as_ref().context("cargo listed no package")?;
            describe_package(&mut bom, package, &root.reference())?;
        }
        let serial = Uuid::new_v5(&Uuid::NAMESPACE_OID, bom.to_string().as_bytes());
        if let Some(place) = bom.get_mut("serialNumber") {
            *place = json!(serial.urn().to_string());
        }
        Ok(format!("{bom:#}\n"))
    }
}

/// Makes a package the subject of a document about the executor, which becomes one of its components.
fn describe_package(bom: &mut Value, package: &Package<'_>, executor: &str) -> Result<()> {
    let hash = |sha256: &str| json!([{ "alg": "SHA-256", "content": sha256 }]);
    let subject = json!({
        "type": "application",
        "bom-ref": package.name,
        "name": package.name,
        "version": package.version,
        "hashes": hash(&package.sha256),
    });
    let tools = package.tools.iter().map(|tool| {
        let Tool { name, version, sha256 } = tool;
        let reference = format!("tools/{name}@{version}");
        json!({
            "type": "application",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "scope": "required",
            "hashes": hash(sha256),
        })
    });
    let tools: Vec<Value> = tools.collect();
    let place = bom.pointer_mut("/metadata/component").context("the document has no subject")?;
    let executor_component = std::mem::replace(place, subject);
    let mut contents = vec![executor.to_owned()];
    contents.extend(tools.iter().filter_map(|tool| tool.get("bom-ref")?.as_str().map(str::to_owned)));
    let mut extend = |member: &str, values: Vec<Value>| {
        let list = bom.get_mut(member).and_then(Value::as_array_mut);
        list.with_context(|| format!("the document has no `{member}`")).map(|list| list.extend(values))
    };
    extend("dependencies", vec![json!({ "ref": package.name, "dependsOn": contents })])?;
    extend("components", [vec![executor_component], tools].concat())
}

/// The output of `cargo tree` for the executor with the features of a release. A line has the name, the version, and
/// marks in parentheses.
fn tree(workspace: &Workspace, target: &str, options: &[&str]) -> Result<String> {
    let mut tree = workspace.cargo(&["tree", "--locked", "--package", EXECUTOR, "--format", " {p}"]);
    tree.args(["--target", target]).args(options);
    run::output(&mut tree).with_context(|| format!("`cargo tree --locked --package {EXECUTOR}` fails"))
}

impl Compiler {
    fn find(workspace: &Workspace) -> Result<Self> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let text = run::output(Command::new(rustc).arg("-vV").current_dir(&workspace.root))
            .context("`rustc -vV` does not work: install Rust first")?;
        let target =
            text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
        Ok(Self { target: target.to_owned(), version: text.lines().next().unwrap_or_default().to_owned() })
    }
}

impl Graph {
    /// Parses the output of `cargo tree --prefix depth`. A package with dependencies that were printed before is
    /// printed without them.
    fn parse(text: &str) -> Result<Self> {
        let mut graph = Self::default();
        let mut parents: Vec<PackageId> = Vec::new();
        for line in text.lines() {
            let (depth, id, marks) = parse_line(line).with_context(|| format!("cargo printed `{line}`"))?;
            parents.truncate(depth);
            ensure!(parents.len() == depth, "cargo printed `{line}` below nothing");
            if let Some(parent) = parents.last() {
                graph.dependencies.entry(parent.clone()).or_default().insert(id.clone());
            } else {
                graph.root = Some(id.clone());
            }
            graph.dependencies.entry(id.clone()).or_default();
            if marks.contains("(proc-macro)") {
                graph.macros.insert(id.clone());
            }
            parents.push(id);
        }
        Ok(graph)
    }

    /// The packages that are reached without passing through a macro.
    fn linked(&self) -> BTreeSet<&PackageId> {
        let mut linked = BTreeSet::new();
        let mut waiting: Vec<&PackageId> = self.root.iter().collect();
        while let Some(id) = waiting.pop() {
            if !self.macros.contains(id) && linked.insert(id) {
                waiting.extend(self.dependencies.get(id).into_iter().flatten());
            }
        }
        linked
    }
}

/// The depth, the package and the marks of a line such as `2 serde v1.0.0 (*)`.
fn parse_line(line: &str) -> Option<(usize, PackageId, &str)> {
    let mut words = line.splitn(4, ' ');
    let depth = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let version = words.next()?.strip_prefix('v')?.to_owned();
    Some((depth, PackageId { name, version }, words.next().unwrap_or_default()))
}

impl PackageFacts {
    fn find(workspace: &Workspace, target: &str) -> Result<Self> {
        let options = ["metadata", "--locked", "--format-version", "1", "--filter-platform", target];
        let text = run::output(&mut workspace.cargo(&options)).context("`cargo metadata --locked` fails")?;
        let metadata: Value = serde_json::from_str(&text)?;
        let packages =
            metadata.get("packages").and_then(Value::as_array).context("cargo lists no packages")?;
        let licences = packages.iter().filter_map(|package| {
            let text = |member: &str| package.get(member).and_then(Value::as_str).map(str::to_owned);
            Some((PackageId { name: text("name")?, version: text("version")? }, text("license")?))
        });
        let lock = fs::read_to_string(workspace.root.join("Cargo.lock"))?;
        Ok(Self { licences: licences.collect(), checksums: checksums(&lock) })
    }
}

/// The checksums of a Cargo.lock, which cargo writes with one member in a line.
fn checksums(lock: &str) -> BTreeMap<PackageId, String> {
    let packages = lock.split("[[package]]\n").filter_map(|package| {
        let member = |name: &str| {
            let value = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            value.and_then(|value| value.strip_suffix('"')).map(str::to_owned)
        };
        Some((PackageId { name: member("name")?, version: member("version")? }, member("checksum")?))
    });
    packages.collect()
}

impl PackageId {
    /// The name of this package inside the document.
    fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// The package URL. `+` stands for a space in some readers of URLs.
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

/// The document without its serial number.
fn bom(graph: &Graph, facts: &PackageFacts, compiler: &Compiler) -> Result<Value> {
    let root = graph.root.as_ref().context("cargo listed no package")?;
    let linked = graph.linked();
    let others = graph.dependencies.keys().filter(|id| *id != root);
    let components = others.map(|id| component(id, "library", linked.contains(id), facts));
    let dependencies = graph.dependencies.iter().map(|(id, needed)| {
        let needed: Vec<String> = needed.iter().map(PackageId::reference).collect();
        json!({ "ref": id.reference(), "dependsOn": needed })
    });
    let mut executor = component(root, "application", true, facts);
    executor.insert(
        "properties".to_owned(),
        json!([
            { "name": "cargo:target", "value": compiler.target },
            { "name": "cargo:compiler", "value": compiler.version },
        ]),
    );
    let tool =
        json!({ "type": "application", "name": "cargo xtask sbom", "version": env!("CARGO_PKG_VERSION") });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": null,
        "version": 1,
        "metadata": { "tools": { "components": [tool] }, "component": executor },
        "components": components.collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

fn component(id: &PackageId, kind: &str, is_linked: bool, facts: &PackageFacts) -> Map<String, Value> {
    let mut members = Map::new();
    let mut insert = |name: &str, value: Value| drop(members.insert(name.to_owned(), value));
    insert("type", json!(kind));
    insert("bom-ref", json!(id.reference()));
    insert("name", json!(id.name));
    insert("version", json!(id.version));
    insert("scope", json!(if is_linked { "required" } else { "excluded" }));
    // A package URL names a package of the registry, and the crates of this repository are in none.
    if let Some(checksum) = facts.checksums.get(id) {
        insert("hashes", json!([{ "alg": "SHA-256", "content": checksum }]));
    }
    if let Some(licence) = facts.licences.get(id) {
        insert("licenses", json!([{ "expression": expression(licence) }]));
    }
    if facts.checksums.contains_key(id) {
        insert("purl", json!(id.purl()));
    }
    members
}

/// An SPDX expression. Manifests from before SPDX separate alternatives by a slash.
fn expression(licence: &str) -> String {
    licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, version: &str) -> PackageId {
        PackageId { name: name.to_owned(), version: version.to_owned() }
    }

    #[test]
    fn what_only_a_macro_needs_is_not_linked() {
        let tree = "0 top v1.0.0 (/folder)\n1 derive v1.0.0 (proc-macro)\n2 syntax v2.0.0\n3 shared v1.0.0\n\
                    1 shared v1.0.0\n1 other v1.0.0+build\n2 shared v1.0.0 (*)\n";
        let graph = Graph::parse(tree).unwrap();
        let linked: Vec<String> = graph.linked().into_iter().map(PackageId::reference).collect();
        assert_eq!(linked, ["other@1.0.0+build", "shared@1.0.0", "top@1.0.0"]);
        assert_eq!(graph.dependencies.len(), 5);
        assert_eq!(graph.dependencies[&id("top", "1.0.0")].len(), 3);
        for wrong in ["0 top", "1 top v1.0.0", "top v1.0.0", "0 top v1.0.0\n2 low v1.0.0"] {
            assert!(Graph::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(id("other", "1.0.0+build").purl(), "pkg:cargo/other@1.0.0%2Bbuild");
        assert_eq!(expression("MIT / Apache-2.0"), "MIT OR Apache-2.0");
    }

    #[test]
    fn the_document_of_a_package_lists_the_executor_and_its_tools() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
        let workspace = Workspace::new(root.clone(), root.join("target"));
        let components = Components::find(&workspace, None).unwrap();
        let tool = Tool { name: "x".to_owned(), version: "2.0.0".to_owned(), sha256: "ab".to_owned() };
        let tools = [tool];
        let package =
            Package { name: "p.deb".to_owned(), sha256: "cd".to_owned(), version: "1.0.0", tools: &tools };
        let bom: Value = serde_json::from_str(&components.document(Some(&package)).unwrap()).unwrap();
        assert_eq!(bom["metadata"]["component"]["name"], "p.deb");
        let listed = bom["components"].as_array().unwrap();
        let executor = listed.iter().find(|component| component["name"] == EXECUTOR).unwrap();
        assert!(listed.iter().any(|component| component["hashes"][0]["content"] == "ab"));
        let dependencies = bom["dependencies"].as_array().unwrap();
        let contents = dependencies.iter().find(|entry| entry["ref"] == "p.deb").unwrap();
        assert_eq!(contents["dependsOn"], json!([executor["bom-ref"], "tools/x@2.0.0"]));
        let other = Package { sha256: "ce".to_owned(), ..package };
        let other: Value = serde_json::from_str(&components.document(Some(&other)).unwrap()).unwrap();
        assert_ne!(other["serialNumber"], bom["serialNumber"]);
    }

    /// The document of this workspace says what cargo says, asked in another way.
    #[test]
    fn the_document_has_every_linked_package_and_no_other() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
        let workspace = Workspace::new(root.clone(), root.join("target"));
        let text = document(&workspace).unwrap();
        assert_eq!(text, document(&workspace).unwrap(), "two documents of one commit differ");

        let bom: Value = serde_json::from_str(&text).unwrap();
        let executor = &bom["metadata"]["component"];
        let components: Vec<&Value> =
            bom["components"].as_array().unwrap().iter().chain([executor]).collect();
        let text_of = |component: &Value, member: &str| component[member].as_str().unwrap().to_owned();
        let references = |wanted: &dyn Fn(&Value) -> bool| -> BTreeSet<String> {
            let wanted = components.iter().filter(|component| wanted(component));
            wanted.map(|component| text_of(component, "bom-ref")).collect()
        };

        let target = Compiler::find(&workspace).unwrap().target;
        let packages = |edges: &str| -> BTreeSet<String> {
            let text = tree(&workspace, &target, &["--edges", edges, "--prefix", "none"]).unwrap();
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.map(|words| format!("{}@{}", words[0], &words[1][1..])).collect()
        };
        assert_eq!(references(&|_| true), packages("normal"));
        assert_eq!(components.len(), packages("normal").len(), "a package is listed twice");
        assert_eq!(
            references(&|component| component["scope"] == "required"),
            packages("normal,no-proc-macro")
        );

        // The crates of this repository are those without a source in the lock file.
        let lock = fs::read_to_string(workspace.root.join("Cargo.lock")).unwrap();
        for component in &components {
            let name = text_of(component, "name");
            let version = text_of(component, "version");
            let head = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
            let package = lock.split_once(&head).unwrap().1.split("\n\n").next().unwrap();
            let checksum = component["hashes"][0]["content"].as_str();
            assert_eq!(checksum.is_some(), package.starts_with("source = "), "{name}");
            assert_eq!(component["purl"].is_string(), checksum.is_some(), "{name}");
            assert!(
                checksum.is_none_or(|sum| package.contains(&format!("\nchecksum = \"{sum}\""))),
                "{name}"
            );
            let licence = text_of(&component["licenses"][0], "expression");
            assert!(!licence.is_empty() && !licence.contains('/'), "{name}");
        }

        // Every package is a dependency of another one, and the edges are those between listed packages.
        let dependencies = bom["dependencies"].as_array().unwrap();
        let owners: BTreeSet<String> = dependencies.iter().map(|entry| text_of(entry, "ref")).collect();
        let needed: BTreeSet<String> = dependencies
            .iter()
            .flat_map(|entry| entry["dependsOn"].as_array().unwrap())
            .map(|reference| reference.as_str().unwrap().to_owned())
            .chain([text_of(executor, "bom-ref")])
            .collect();
        assert_eq!(owners, references(&|_| true));
        assert_eq!(needed, owners);
        assert!(bom["serialNumber"].as_str().unwrap().starts_with("urn:uuid:"));
    }
}
