//! `tool sync NAME`: compares the folders of a server's tools with what the server offers now.
//!
//! A call asks the server for no definition: a second request for each call would not help, because the model has
//! already read the definition that people accepted. This command is where a change becomes visible, and `tool add` then
//! leaves it waiting for an approval like any other. What an operator has changed in `[capabilities]`, and `idempotent`,
//! stays.

use super::definition::{Definitions, KIND};
use super::endpoint::Endpoint;
use super::{Source, print_left_out, print_tools, say};
use crate::approve::catalogue_options;
use crate::client::{check_folder, find_module, write_tool};
use crate::difference::{self, Extent};
use a2g_command::output::{can_ask, confirm, list, note, print};
use a2g_command::setup::{Setup, config};
use a2g_core::catalog::{Definition, ToolManifest, compare};
use a2g_types::ident::ToolName;
use anyhow::{Context as _, bail};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// The exit code if there are changes that were not written.
const NOT_WRITTEN: u8 = 3;

/// Shows what has changed at the server of these tools, and writes the changes if that is asked for or confirmed.
pub(crate) fn sync(setup: &Setup, name: &str, write: bool) -> anyhow::Result<ExitCode> {
    let prefix = ToolName::parse(name)?;
    let present = read_present(&prefix)?;
    let Some(url) = present.values().find_map(|tool| setting(tool, "url")) else {
        bail!(
            "this folder has no tool of an MCP server whose name begins with `{prefix}_`: change to the folder in which \
             `a2g-executor tool new {prefix} --mcp URL` made them"
        );
    };
    if let Some(other) = present.values().find(|tool| setting(tool, "url") != Some(url)) {
        bail!(
            "`{}` is a tool of another server than `{url}`: change its `[settings]`, or remove it",
            other.name
        );
    }
    let config = config(setup)?;
    let secrets = present.values().flat_map(|tool| tool.capabilities.secrets.iter().cloned()).collect();
    let source = Source { prefix, endpoint: Endpoint::parse(url, &config)?, secrets };
    let Definitions { revision: _, tools, left_out } = source.read_definitions(&config)?;
    print_left_out(&left_out);
    let changes = Changes::find(&present, tools);
    changes.show(&present);
    let written = changes.to_write();
    if written.is_empty() {
        say(format_args!("{}: nothing is to be written ({} tools)", source.endpoint, present.len()));
        return Ok(ExitCode::SUCCESS);
    }
    if !write {
        if !can_ask() {
            note("nothing was written: `--write` writes these folders");
            return Ok(ExitCode::from(NOT_WRITTEN));
        }
        if !confirm("Write these folders?").context("the answer cannot be read")? {
            return Ok(ExitCode::from(NOT_WRITTEN));
        }
    }
    changes.added.iter().try_for_each(|tool| check_folder(tool.name.as_str(), false))?;
    let module = find_module()?;
    for tool in &written {
        write_tool(tool, &source.endpoint.to_string(), &module)?;
    }
    let options = catalogue_options(setup);
    say("Written. Then, for each that agents may use; a changed one waits for `tool approve`:");
    for tool in &written {
        print(format_args!("  a2g-executor tool add {}{options}", tool.name));
    }
    Ok(ExitCode::SUCCESS)
}

/// The tools of the server in the current folder, by name.
fn read_present(prefix: &ToolName) -> anyhow::Result<BTreeMap<ToolName, ToolManifest>> {
    let mut present = BTreeMap::new();
    for entry in std::fs::read_dir(".").context("this folder cannot be read")? {
        let folder = entry?.file_name();
        let Some(name) = folder.to_str().filter(|name| name.starts_with(&format!("{prefix}_"))) else {
            continue;
        };
        let Ok(manifest) = ToolManifest::read(&std::path::Path::new(name).join("tool.toml")) else {
            continue;
        };
        // Another server's names may begin in the same way.
        let is_own = setting(&manifest, "tool").is_some_and(|tool| name == format!("{prefix}_{tool}"));
        if is_own && setting(&manifest, "kind") == Some(KIND) && manifest.name.as_str() == name {
            present.insert(manifest.name.clone(), manifest);
        }
    }
    Ok(present)
}

/// A text of the settings.
fn setting<'a>(tool: &'a ToolManifest, key: &str) -> Option<&'a str> {
    tool.settings.as_ref()?.get(key)?.as_str()
}

/// The differences between the folders and the server.
struct Changes {
    added: Vec<ToolManifest>,
    changed: Vec<ToolManifest>,
    vanished: Vec<ToolName>,
}

impl Changes {
    fn find(present: &BTreeMap<ToolName, ToolManifest>, offered: Vec<ToolManifest>) -> Self {
        let is_offered = |name: &ToolName| offered.iter().any(|tool| tool.name == *name);
        let vanished = present.keys().filter(|name| !is_offered(name)).cloned().collect();
        let mut changes = Self { added: Vec::new(), changed: Vec::new(), vanished };
        for tool in offered {
            match present.get(&tool.name) {
                None => changes.added.push(tool),
                Some(old) => {
                    let updated = update(old, tool);
                    if updated != *old {
                        changes.changed.push(updated);
                    }
                }
            }
        }
        changes
    }

    fn to_write(&self) -> Vec<&ToolManifest> {
        self.changed.iter().chain(&self.added).collect()
    }

    fn show(&self, present: &BTreeMap<ToolName, ToolManifest>) {
        for tool in &self.changed {
            if let Some(old) = present.get(&tool.name) {
                print(format_args!("{}, as it is here (-) and at the server (+):\n", tool.name));
                let found = compare(&definition(old), &definition(tool));
                difference::lines(&found, Extent::Full).into_iter().for_each(print);
                print("");
            }
        }
        if !self.added.is_empty() {
            say("New at the server:");
            print_tools(&self.added);
        }
        if !self.vanished.is_empty() {
            say(format_args!(
                "No longer offered, or not in a form that can be used: {}. Remove their folders, here and in the \
                 catalogue: each call of one fails.",
                list(&self.vanished)
            ));
        }
    }
}

/// The manifest with what the server says now, and with all else as it was.
fn update(old: &ToolManifest, offered: ToolManifest) -> ToolManifest {
    let ToolManifest { title, description, arguments, result, settings, capabilities, .. } = offered;
    let mut updated = ToolManifest { title, description, arguments, result, settings, ..old.clone() };
    // Another revision ends its sessions by another request.
    if setting(old, "revision") != setting(&updated, "revision") {
        updated.capabilities.requests = capabilities.requests;
    }
    updated
}

/// The definition that an approval would cover.
fn definition(tool: &ToolManifest) -> Definition {
    Definition {
        title: tool.title.clone(),
        version: tool.version.clone(),
        description: tool.description.clone(),
        contract: tool.contract,
        arguments_schema: tool.arguments.clone().unwrap_or_else(|| json!({})),
        result_schema: tool.result.clone(),
        settings: tool.settings.clone(),
        is_idempotent: tool.idempotent,
        has_sessions: tool.session,
        capabilities: tool.capabilities.clone(),
    }
}
