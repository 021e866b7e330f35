//! The section `[catalog]`: where tools come from, who signs them, and how they are compiled.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::values::{check_max, parse_value};
use a2g_core::catalog::{CompileLimits, PinnedReference, RemoteTool};
use a2g_govern::{MAX_SIGNERS, SignerSettings, ToolPattern};
use a2g_isolate::Isolation;
use a2g_types::ident::{SignerName, ToolName};
use a2g_types::quantity::MemoryLimit;
use std::collections::BTreeSet;
use std::path::PathBuf;

pub(super) fn parse_compile_limits(catalog: &file::Catalog) -> Result<CompileLimits, InvalidValueError> {
    let memory_mb = catalog.compile_memory_mb;
    Ok(CompileLimits {
        cpu_seconds: check_max("catalog.compile_seconds", catalog.compile_seconds, 3600)?,
        memory: parse_value("catalog.compile_memory_mb", memory_mb, MemoryLimit::from_mb)?,
    })
}

/// `true` if modules may use exceptions, which is refused where a tool runs in the server's own process.
// An advisory of wasmtime without a fix in the release in use lets a guest with exceptions abort its process.
pub(super) fn parse_exceptions(
    catalog: &file::Catalog,
    isolation: Isolation,
    inline_tools: &BTreeSet<ToolName>,
) -> Result<bool, InvalidValueError> {
    if catalog.exceptions && (isolation == Isolation::Inline || !inline_tools.is_empty()) {
        return Err(invalid("catalog.exceptions")(
            &"needs `executor.isolation = \"process\"` and no `executor.inline_tools`: a tool with exceptions could end \
              the server",
        ));
    }
    Ok(catalog.exceptions)
}

/// The tools of `[[catalog.remote]]`. Addresses and names must be unique.
pub(super) fn parse_remote_tools(
    tables: Vec<file::RemoteTool>,
) -> Result<Vec<RemoteTool>, InvalidValueError> {
    let mut tools = Vec::<RemoteTool>::new();
    // The key `name` is optional, so names are counted separately from the tables.
    let mut names = 0;
    for (nth, file::RemoteTool { tool, name }) in tables.into_iter().enumerate() {
        let at = |key: &'static str, nth: usize, reason: &dyn std::fmt::Display| {
            invalid(key)(reason).at_occurrence(nth)
        };
        let reference =
            PinnedReference::parse(&tool).map_err(|error| at("catalog.remote.tool", nth, &error))?;
        let name = match name {
            None => None,
            Some(name) => {
                let name =
                    ToolName::parse(&name).map_err(|error| at("catalog.remote.name", names, &error))?;
                if tools.iter().any(|other| other.name.as_ref() == Some(&name)) {
                    let reason =
                        format!("is `{name}` in two tables, but the names in a catalogue are unique");
                    return Err(at("catalog.remote.name", names, &reason));
                }
                names += 1;
                Some(name)
            }
        };
        if tools.iter().any(|other| other.reference.digest == reference.digest) {
            return Err(at(
                "catalog.remote.tool",
                nth,
                &"is the same package as in another table: remove one of them",
            ));
        }
        tools.push(RemoteTool { reference, name });
    }
    Ok(tools)
}

/// The signers of tools. Their names must differ, so that a name in a receipt identifies one key.
pub(super) fn parse_signers(
    trust: file::CatalogTrust,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<Vec<SignerSettings>, InvalidValueError> {
    let file::CatalogTrust { signer: tables } = trust;
    if !(1..=MAX_SIGNERS).contains(&tables.len()) {
        let reason =
            format_args!("has to have 1 to {MAX_SIGNERS} signers, because every tool needs a signature");
        return Err(invalid("catalog.trust.signer")(&reason));
    }
    let mut signers = Vec::<SignerSettings>::new();
    for (nth, file::Signer { name, key_file, tools }) in tables.into_iter().enumerate() {
        let at =
            |key: &'static str| move |reason: &dyn std::fmt::Display| invalid(key)(reason).at_occurrence(nth);
        let name = SignerName::parse(&name).map_err(|error| at("catalog.trust.signer.name")(&error))?;
        if signers.iter().any(|other| other.name == name) {
            return Err(at("catalog.trust.signer.name")(&format_args!(
                "`{name}` is the name of two signers"
            )));
        }
        if tools.is_empty() {
            let reason =
                "is empty, so the signer could sign no tool: remove the signer, or the line for every tool";
            return Err(at("catalog.trust.signer.tools")(&reason));
        }
        let parsed = tools.iter().map(|pattern| ToolPattern::parse(pattern)).collect::<Result<_, _>>();
        let tools = parsed.map_err(|error| at("catalog.trust.signer.tools")(&error))?;
        signers.push(SignerSettings { name, key_file: resolve(key_file), tools });
    }
    Ok(signers)
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;
    use a2g_types::ident::ToolName;

    #[test]
    fn tools_of_registries_are_pinned_and_different() {
        let table = |digit: &str, more: &str| {
            let digest = digit.repeat(64);
            format!("[[catalog.remote]]\ntool = \"oci://registry.example.com/greet@sha256:{digest}\"\n{more}")
        };
        let tools = parse(&[table("a", "name = \"greet\"\n"), table("b", "")].concat()).unwrap().remote_tools;
        let names = tools.iter().map(|tool| tool.name.as_ref().map(ToolName::as_str)).collect::<Vec<_>>();
        assert_eq!(names, [Some("greet"), None]);
        let refused = |text: String, words: &str| {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let tag = "[[catalog.remote]]\ntool = \"oci://registry.example.com/greet:1\"\n";
        refused(tag.to_owned(), "`a2g-executor tool add oci://registry.example.com/greet:1` prints");
        refused(table("a", "") + &table("a", ""), "line 4: `catalog.remote.tool` is the same package");
        let named = |digit| table(digit, "name = \"greet\"\n");
        refused(named("a") + &named("b"), "line 6: `catalog.remote.name` is `greet` in two tables");
        refused(table("a", "name = \"../x\"\n"), "`catalog.remote.name`");
    }
}
