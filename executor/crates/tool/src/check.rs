//! `tool check`, and the last step of `tool build`: everything that `tool add` checks, and what the module asks for.

use crate::set_up;
use a2g_command::output::{note, one_line, print};
use a2g_config::Config;
use a2g_core::catalog::{CheckedTool, ModuleFacts, check as check_tool, check_bare, package_folder};
use a2g_govern::ToolTrust;
use a2g_types::quantity::{BYTES_PER_MB, MemoryLimit};
use a2g_types::tool::Contract;
use std::path::Path;

/// Interfaces that end a run without the network.
const NETWORK_INTERFACES: [&str; 2] = ["wasi:http/", "wasi:sockets/"];
const CALLS_INTERFACE: &str = "a2g:tool/calls@";
/// What the templates do, in their README and in their description.
const TEMPLATE_SENTENCE: &str = "Counts the words of a text";

/// Checks the tool or module at `path`, and prints what it needs.
pub(crate) fn check(path: &Path, config: &Config) -> anyhow::Result<()> {
    let runtime = set_up(config)?;
    if path.is_file() {
        let module = check_bare(path, &runtime.cache, &runtime)?;
        match &module.described {
            Some([name, version, description, _]) => print_title(name, version, description),
            None => print(format_args!("{}: a module without a `tool.toml`", path.display())),
        }
        let ceiling = format!("the configuration allows {}", memory_ceiling(config));
        print_facts(module.bytes, module.contract, &module.facts, &ceiling);
        return Ok(());
    }
    // The person who runs this command named the tool, and nothing is installed.
    let checked = check_tool(path, &runtime.cache, &runtime, &ToolTrust::anyone())?;
    let CheckedTool { tool, manifest, package: _, signatures: _, wasm, described: _ } = &checked;
    print_title(manifest.name.as_str(), &manifest.version, &manifest.description);
    let limit = match tool.descriptor.capabilities.limits.quantity::<MemoryLimit>() {
        Some(memory) => format!("`max_memory_mb` is {}", memory.mb()),
        None => {
            format!("`tool.toml` declares no limit, and the configuration allows {}", memory_ceiling(config))
        }
    };
    print_facts(wasm.len(), manifest.contract, &tool.facts, &limit);
    if let Err(error) = package_folder(path) {
        note(format_args!("note: {error}"));
    }
    remarks(&checked, config).into_iter().for_each(|remark| note(format_args!("note: {remark}")));
    Ok(())
}

fn print_title(name: &str, version: &str, description: &str) {
    print(format_args!("{} {}: {}", one_line(name), one_line(version), one_line(description)));
}

fn print_facts(bytes: usize, contract: Contract, facts: &ModuleFacts, limit: &str) {
    let form = if facts.is_component { "component" } else { "core module" };
    print(format_args!("size      {}, a {form}", format_size(bytes as u64)));
    print(format_args!("contract  {}", contract.as_str()));
    print(format_args!("memory    {} MB initially; {limit}", facts.start_memory_mb()));
    let mut imports = facts.imports.iter().map(one_line);
    print(format_args!("imports   {}", imports.next().as_deref().unwrap_or("nothing")));
    imports.for_each(|import| print(format_args!("          {import}")));
}

/// Remarks about a module that is valid, but probably not as its author meant it.
fn remarks(checked: &CheckedTool, config: &Config) -> Vec<String> {
    let CheckedTool { tool, manifest, described, .. } = checked;
    let mut remarks = start_memory_remark(checked, config).into_iter().collect::<Vec<_>>();
    // A module that several tools share describes none of them.
    if let Some([_, version, description, _]) = described.as_ref().filter(|_| manifest.settings.is_none()) {
        for (key, declared, reported) in
            [("version", &manifest.version, version), ("description", &manifest.description, description)]
        {
            if declared != reported {
                let reported = one_line(reported);
                remarks.push(format!(
                    "the module reports the {key} `{reported}`, but `tool.toml` overrides it with `{}`",
                    one_line(declared)
                ));
            }
        }
    }
    let is_template = |text: &str| text.contains(TEMPLATE_SENTENCE);
    if checked.package.readme().is_some_and(is_template) && !is_template(&manifest.description) {
        remarks.push(
            "`README.md` still describes the template; it is signed and pushed with the tool".to_owned(),
        );
    }
    let imports = |prefix: &str| tool.facts.imports.iter().any(|import| import.starts_with(prefix));
    let capabilities = &tool.descriptor.capabilities;
    // An interpreter imports everything that its programs could use, so its imports say nothing.
    let is_core = !tool.facts.is_component;
    if is_core && !capabilities.network && NETWORK_INTERFACES.into_iter().any(imports) {
        remarks.push(
            "the module imports the network, and `tool.toml` has `network = false`: the first use ends the run".to_owned(),
        );
    }
    if capabilities.network && !NETWORK_INTERFACES.into_iter().any(imports) {
        remarks.push(
            "`tool.toml` has `network = true`, and the module imports no network: remove it".to_owned(),
        );
    }
    let declares_calls = !capabilities.calls.is_empty();
    if is_core && !declares_calls && imports(CALLS_INTERFACE) {
        remarks.push(
            "the module calls other tools, and `tool.toml` has no `calls`: each call is refused as `not_allowed`".to_owned(),
        );
    }
    remarks
}

fn memory_ceiling(config: &Config) -> MemoryLimit {
    config.ceilings.limits.quantity()
}

/// The remark about a configuration under which the module cannot start.
pub(crate) fn start_memory_remark(checked: &CheckedTool, config: &Config) -> Option<String> {
    let facts = &checked.tool.facts;
    let ceiling = memory_ceiling(config);
    (facts.start_memory_bytes > ceiling.bytes()).then(|| {
        format!(
            "the module needs {} MB of memory to start, and `ceilings.max_memory_mb` of the configuration is {}: no run \
             can start",
            facts.start_memory_mb(),
            ceiling.mb()
        )
    })
}

/// A size in kB up to a MB, and otherwise in MB.
pub(crate) fn format_size(bytes: u64) -> String {
    if bytes < BYTES_PER_MB {
        return format!("{:.1} kB", bytes as f64 / 1024.0);
    }
    format!("{:.1} MB", bytes as f64 / BYTES_PER_MB as f64)
}
