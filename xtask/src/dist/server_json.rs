//! `server.json`: the entry of the registry of MCP servers, with the three packages that serve a host.
//!
//! The registry compares the entry's name with `mcpName` of the package for npm, with a line of the description for
//! PyPI, and with a label of the image.

use std::path::PathBuf;

use anyhow::Result;
use fs_err as fs;
use serde_json::{Value, json};

use super::{Release, npm};

/// The version of the entry's format, by its date.
const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";
/// The name in the registry: the reversed domain of the repository's placeholder. Who publishes replaces both.
pub(crate) const NAME: &str = "invalid.example/a2g-executor";
/// The description that every registry shows. The schema permits 100 characters.
pub(crate) const DESCRIPTION: &str =
    "Runs agents' tools as WebAssembly modules that get what a governor granted, and keeps receipts";
/// The image without its version, below the same placeholder.
const IMAGE: &str = "example.invalid/a2g-executor";
/// The folder inside a container that tools may use.
const WORKSPACE: &str = "/workspace";

pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let path = release.folder.join("server.json");
    fs::write(&path, format!("{:#}\n", entry(&release.version)))?;
    Ok(vec![path])
}

fn entry(version: &str) -> Value {
    let folder = json!({
        "folder": {
            "description": "A folder below your home, such as that of a project",
            "format": "filepath",
            "isRequired": true,
        },
    });
    let arguments = json!([
        { "type": "positional", "value": "mcp" },
        {
            "type": "named",
            "name": "--scope",
            "description": "The folder that tools may use",
            "value": "{folder}",
            "variables": folder,
        },
    ]);
    let package = |registry: &str, hint: &str| {
        json!({
            "registryType": registry,
            "identifier": npm::NAME,
            "version": version,
            "runtimeHint": hint,
            "packageArguments": arguments,
            "transport": { "type": "stdio" },
        })
    };
    let image = json!({
        "registryType": "oci",
        "identifier": format!("{IMAGE}:{version}"),
        "runtimeHint": "docker",
        "runtimeArguments": [
            { "type": "named", "name": "--network", "value": "none" },
            {
                "type": "named",
                "name": "--volume",
                "value": format!("{{folder}}:{WORKSPACE}"),
                "variables": folder,
            },
        ],
        "packageArguments": [
            { "type": "positional", "value": "mcp" },
            { "type": "named", "name": "--scope", "value": WORKSPACE },
        ],
        "transport": { "type": "stdio" },
    });
    json!({
        "$schema": SCHEMA,
        "name": NAME,
        "title": "A2G executor",
        "description": DESCRIPTION,
        "version": version,
        "packages": [package("pypi", "uvx"), package("npm", "npx"), image],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `check/python.rs` compares the entry with the schema itself; this is what the schema cannot say.
    #[test]
    fn the_entry_names_this_version_of_three_packages() {
        let entry = entry("1.2.3");
        let packages = entry["packages"].as_array().unwrap();
        let names: Vec<&str> =
            packages.iter().map(|package| package["identifier"].as_str().unwrap()).collect();
        assert_eq!(names, ["a2g-executor", "a2g-executor", "example.invalid/a2g-executor:1.2.3"]);
        // A version of an image is part of its name.
        assert!(packages[2].get("version").is_none() && packages[0]["version"] == "1.2.3");
        assert!(DESCRIPTION.chars().count() <= 100);
        for package in packages {
            let arguments = package["packageArguments"].as_array().unwrap();
            assert_eq!((&arguments[0]["value"], &arguments[1]["name"]), (&json!("mcp"), &json!("--scope")));
        }
    }
}
