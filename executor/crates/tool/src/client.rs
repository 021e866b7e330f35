//! The tools that need no sources: each is a `tool.toml` with `[settings]` for a module that belongs to this program.

use a2g_command::installed::installed_places;
use a2g_core::catalog::ToolManifest;
use a2g_types::ident::{SecretName, excerpt};
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The module, in one of the [`installed_places`].
const MODULE: &str = "clients/api_client.wasm";
/// The first line of each `tool.toml` that is written here, and of no other.
const MARK: &str = "# Made by `a2g-executor tool new`";

/// The module of all these tools.
///
/// # Errors
/// If it was not installed with this program.
pub(crate) fn find_module() -> anyhow::Result<PathBuf> {
    let places = installed_places(MODULE)?;
    let [_, beside, shared, _] = &places;
    match places.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => bail!(
            "the client that these tools run on is not beside this program (`{}` and `{}` are missing): install the \
             package again that it came from, or build it with `cargo xtask tools`",
            beside.display(),
            shared.display()
        ),
    }
}

/// The folder of a tool that is to be written.
///
/// # Errors
/// If the current folder has something else of this name, or `force` is missing for a folder that was written before.
pub(crate) fn check_folder(name: &str, force: bool) -> anyhow::Result<()> {
    let folder = Path::new(name);
    if folder.symlink_metadata().is_err() {
        return Ok(());
    }
    let manifest = std::fs::read_to_string(folder.join("tool.toml")).unwrap_or_default();
    if !manifest.starts_with(MARK) {
        bail!(
            "`{name}` exists already, and was not made by this command: choose another name, or remove it first"
        );
    }
    if !force {
        bail!("`{name}` exists already: `--force` replaces its `tool.toml` and its module");
    }
    Ok(())
}

/// A secret with the place where requests get it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binding {
    pub(crate) name: SecretName,
    /// As `place` of a `[[secret]]` has it.
    pub(crate) place: String,
    /// The word before the value.
    pub(crate) scheme: Option<&'static str>,
}

impl Binding {
    /// That of a bearer token.
    pub(crate) fn bearer(name: SecretName) -> Self {
        Self { name, place: "header:authorization".to_owned(), scheme: Some("Bearer") }
    }

    /// The `[[secret]]` with its value in `file`, for tools whose names begin with `prefix` and these requests.
    pub(crate) fn to_toml(&self, file: &str, prefix: &str, requests: &BTreeSet<String>) -> String {
        let Self { name, place, scheme } = self;
        let quote = |text: &str| Value::from(text).to_string();
        let listed = requests.iter().map(|request| format!("\n  {},", quote(request))).collect::<String>();
        let scheme_line = scheme.map(|scheme| format!("scheme = \"{scheme}\"\n")).unwrap_or_default();
        let content = match scheme {
            Some("Basic") => "   # `user:password`, mode 0600",
            Some(_) | None => "   # the key alone, mode 0600",
        };
        format!(
            "[[secret]]\nname = \"{name}\"\nfile = {}{content}\ntools = [\"{prefix}_*\"]\n\
             requests = [{listed}\n]\nplace = {}\n{scheme_line}",
            quote(file),
            quote(&excerpt(place))
        )
    }
}

/// `false` for a value that has something that TOML does not have: `null`, or an integer above those of 64 bits with a
/// sign.
pub(crate) fn is_toml(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => items.iter().all(is_toml),
        Value::Object(members) => members.values().all(is_toml),
        Value::Number(number) => !number.is_u64() || number.is_i64(),
        Value::Bool(_) | Value::String(_) => true,
    }
}

/// Writes the folder of a tool: its `tool.toml`, which says what it was made of, and a copy of the `module`. Its
/// other files, such as a README, stay.
///
/// # Errors
/// If a file cannot be written, or the manifest has a value that TOML does not have.
pub(crate) fn write_tool(manifest: &ToolManifest, made_of: &str, module: &Path) -> anyhow::Result<()> {
    let folder = Path::new(manifest.name.as_str());
    let path = folder.join("tool.toml");
    let what = || format!("`{}` cannot be written", path.display());
    // A line end in the name of a file would end the comment.
    let made_of = made_of.replace(char::is_control, " ");
    let text = format!("{MARK} of {made_of}\n{}", manifest.to_toml().with_context(what)?);
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text)).with_context(what)?;
    let copy = folder.join(&manifest.module);
    std::fs::copy(module, &copy).with_context(|| format!("`{}` cannot be written", copy.display()))?;
    Ok(())
}
