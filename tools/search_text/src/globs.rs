//! Selection of files to search, by their path relative to the start of the search.

use std::path::Path;

use a2g_guest_sdk::prelude::*;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The compiled `include` and `exclude`.
pub(crate) struct Globs {
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl Globs {
    /// # Errors
    /// `invalid_glob`, naming the glob.
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Result<Self, ToolError> {
        let include = (!include.is_empty()).then(|| compile(include)).transpose()?;
        let exclude = compile(exclude)?;
        Ok(Self { include, exclude })
    }

    /// True if a file is searched.
    pub(crate) fn includes(&self, relative: &Path) -> bool {
        let included = self.include.as_ref().is_none_or(|globs| globs.is_match(relative));
        included && !self.excludes(relative)
    }

    /// True if a path is excluded, with everything below it.
    pub(crate) fn excludes(&self, relative: &Path) -> bool {
        self.exclude.is_match(relative)
    }
}

fn compile(globs: &[String]) -> Result<GlobSet, ToolError> {
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        let compiled = GlobBuilder::new(&anywhere(glob))
            .literal_separator(true)
            .build()
            .map_err(|error| invalid(glob, &error))?;
        set.add(compiled);
    }
    set.build().map_err(|error| invalid("", &error))
}

/// A glob without a slash is about the name, so that `*.rs` means what people mean by it.
fn anywhere(glob: &str) -> String {
    if glob.contains('/') { glob.to_owned() } else { format!("**/{glob}") }
}

fn invalid(glob: &str, error: &globset::Error) -> ToolError {
    ToolError::new("invalid_glob", error.to_string()).with_detail(json!({ "glob": glob }))
}
