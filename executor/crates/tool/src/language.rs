//! The languages that `tool new` and `tool build` know.

use anyhow::bail;
use clap::ValueEnum;
use std::path::Path;

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Rust,
    C,
    Go,
    Javascript,
    Python,
}

impl Language {
    pub(crate) const ALL: [Self; 5] = [Self::Rust, Self::C, Self::Go, Self::Javascript, Self::Python];

    /// The name in sentences.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::C => "C",
            Self::Go => "Go",
            Self::Javascript => "JavaScript",
            Self::Python => "Python",
        }
    }

    /// The name of the template's folder.
    #[cfg(test)]
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::C => "c",
            Self::Go => "go",
            Self::Javascript => "javascript",
            Self::Python => "python",
        }
    }

    /// `true` if the template is a typed tool. C and Go need a generator of bindings for that.
    pub(crate) fn is_typed(self) -> bool {
        match self {
            Self::Rust | Self::Javascript | Self::Python => true,
            Self::C | Self::Go => false,
        }
    }

    /// The file by which `tool build` recognises the language.
    fn mark(self) -> &'static str {
        match self {
            Self::Rust => "Cargo.toml",
            Self::C => "tool.c",
            Self::Go => "go.mod",
            Self::Javascript => "tool.js",
            Self::Python => "tool.py",
        }
    }

    /// The command that installs what is installed for each tool, and not once for all.
    pub(crate) fn preparation(self) -> Option<&'static str> {
        match self {
            Self::Javascript => Some("npm install"),
            Self::Python => Some("python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"),
            Self::Rust | Self::C | Self::Go => None,
        }
    }

    /// The language of the sources in a folder.
    pub(crate) fn of(folder: &Path) -> anyhow::Result<Self> {
        let found = Self::ALL.into_iter().filter(|language| folder.join(language.mark()).is_file());
        match found.collect::<Vec<_>>().as_slice() {
            [language] => Ok(*language),
            [] => {
                let marks = Self::ALL.map(|language| format!("`{}` ({})", language.mark(), language.name()));
                bail!(
                    "`{}` has no sources: one of these files is needed: {}",
                    folder.display(),
                    marks.join(", ")
                )
            }
            several => {
                let marks = several.iter().map(|language| format!("`{}`", language.mark()));
                let marks = marks.collect::<Vec<_>>().join(" and ");
                bail!(
                    "`{}` has {marks}: a tool has one language, so put one of them elsewhere",
                    folder.display()
                )
            }
        }
    }
}
