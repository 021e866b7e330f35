//! The files of a policy folder, as text, and the reasons why they are refused.
//!
//! | file | what |
//! |---|---|
//! | `*.cedar` | policies; together they are one set |
//! | `entities.json` | the groups of agents, and further labels of tools, in Cedar's JSON form; optional |
//! | `schema.cedarschema` | the tools, for a governor without a catalogue; `a2g-executor policy schema` writes it |

use a2g_types::ident::is_display_control;
use miette::{Diagnostic, LabeledSpan};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Maximum size of a file of policies, and of `entities.json`, in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 1_000_000;
/// Maximum size of `schema.cedarschema` in bytes: that of a catalogue of some thousand tools.
const MAX_SCHEMA_BYTES: u64 = 16_000_000;
/// Maximum number of files of policies.
const MAX_FILES: usize = 1000;
/// The name of the file of entities.
pub(crate) const ENTITIES_FILE: &str = "entities.json";
/// The name of the file of the schema.
pub(crate) const SCHEMA_FILE: &str = "schema.cedarschema";

/// The reason why policies are refused. Messages are for the operator and contain paths.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A folder or file cannot be read.
    #[error("`{}` cannot be read: {error}", path.display())]
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// The system's error. It is part of the message; as a `source` it would be printed twice in an error chain.
        error: io::Error,
    },
    /// A file is too large.
    #[error("`{}` has more than {max_bytes} bytes; divide it into several files", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its maximum size in bytes.
        max_bytes: u64,
    },
    /// The folder has no policies, so everything would be denied.
    #[error("`{}` contains no `*.cedar` policy file; add one, or start without a policy folder", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has policies in both forms, and it would be unclear which of them decides.
    #[error(
        "`{}` contains policies in Cedar and the JSON policy `{json}`; keep one form (`a2g-executor policy convert` \
         writes JSON policies in Cedar)",
        path.display()
    )]
    Mixed {
        /// The folder.
        path: PathBuf,
        /// The name of the file in JSON.
        json: String,
    },
    /// There are too many files or policies.
    #[error("there are more than {max} {what}; remove some, or say the same with fewer")]
    TooMany {
        /// Files or policies.
        what: &'static str,
        /// Their maximum number.
        max: usize,
    },
    /// A file that is to be observed is not among the files.
    #[error(
        "`governor.observe` names `{file}`, which is no `*.cedar` file of the policy folder; correct the name, or \
         remove it"
    )]
    NotObservable {
        /// The name.
        file: String,
    },
    /// A place in a file does not mean what it has to.
    #[error("`{file}`, line {line}: {message}")]
    At {
        /// The name of the file.
        file: String,
        /// The line, from 1.
        line: u32,
        /// What is refused, and what to write instead.
        message: String,
    },
    /// A file does not mean what it has to, as a whole.
    #[error("`{file}`: {message}")]
    In {
        /// The name of the file.
        file: String,
        /// What is refused, and what to write instead.
        message: String,
    },
    /// No schema can be made of the tools.
    #[error("the tools have no schema in Cedar: {message}")]
    Schema {
        /// The reason.
        message: String,
    },
}

impl PolicyError {
    /// A refusal at a place, or in the whole file if there is none.
    pub(crate) fn at(file: &str, line: Option<u32>, message: String) -> Self {
        let file = file.to_owned();
        match line {
            Some(line) => Self::At { file, line, message },
            None => Self::In { file, message },
        }
    }

    /// A refusal by Cedar of this text.
    pub(crate) fn of(file: &str, text: &str, error: &dyn Diagnostic) -> Self {
        let (line, message) = describe(error, text);
        Self::at(file, line, message)
    }
}

/// The line of an error of Cedar in a text, if it has one, and its message.
pub(crate) fn describe(error: &dyn Diagnostic, text: &str) -> (Option<u32>, String) {
    let label = error.labels().and_then(|mut labels| labels.next());
    let line = label.as_ref().map(|label| line_of(text, label.offset()));
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    let note = label.as_ref().and_then(LabeledSpan::label).filter(|note| !note.is_empty());
    let notes = note.map(str::to_owned).into_iter().chain(error.help().map(|help| help.to_string()));
    let whole = notes.fold(message, |message, note| format!("{message}; {note}"));
    // It repeats texts of the file.
    (line, whole.replace(is_display_control, " "))
}

/// The line of a byte, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> u32 {
    let lines = text.get(..offset).unwrap_or(text).matches('\n').count();
    u32::try_from(lines).map_or(u32::MAX, |lines| lines.saturating_add(1))
}

/// The texts of a policy folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicySources {
    /// The files of policies, by name.
    pub files: Vec<PolicyFile>,
    /// The text of `entities.json`.
    pub entities: Option<String>,
    /// The text of `schema.cedarschema`.
    pub schema: Option<String>,
}

/// A file of policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFile {
    /// The name of the file in the folder.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl PolicySources {
    /// Reads a policy folder.
    ///
    /// # Errors
    /// [`PolicyError`] if the folder has no `*.cedar` file, or a JSON policy too, or a file cannot be read or is too
    /// large.
    ///
    /// # Ambient Authority
    /// Reads a folder that the operator names.
    pub fn read(dir: &Path) -> Result<Self, PolicyError> {
        let names = names(dir)?;
        let cedar = names.iter().filter(|name| has_extension(name, "cedar")).collect::<Vec<_>>();
        if cedar.is_empty() {
            return Err(PolicyError::Empty { path: dir.into() });
        }
        if cedar.len() > MAX_FILES {
            return Err(PolicyError::TooMany { what: "files of policies", max: MAX_FILES });
        }
        if let Some(json) = names.iter().find(|name| has_extension(name, "json") && *name != ENTITIES_FILE) {
            return Err(PolicyError::Mixed { path: dir.into(), json: json.clone() });
        }
        let optional = |name: &str, max_bytes| {
            let is_there = names.iter().any(|other| other == name);
            is_there.then(|| read(&dir.join(name), max_bytes)).transpose()
        };
        let file = |name: &String| {
            read(&dir.join(name), MAX_FILE_BYTES).map(|text| PolicyFile { name: name.clone(), text })
        };
        Ok(Self {
            files: cedar.into_iter().map(file).collect::<Result<_, _>>()?,
            entities: optional(ENTITIES_FILE, MAX_FILE_BYTES)?,
            schema: optional(SCHEMA_FILE, MAX_SCHEMA_BYTES)?,
        })
    }

    /// `true` if a folder has policies in Cedar; `false` also for one that cannot be read.
    ///
    /// # Ambient Authority
    /// Reads a folder that the operator names.
    #[must_use]
    pub fn has_cedar(dir: &Path) -> bool {
        names(dir).is_ok_and(|names| names.iter().any(|name| has_extension(name, "cedar")))
    }

    /// Checks that files can be observed.
    ///
    /// # Errors
    /// [`PolicyError::NotObservable`] for a name that is not among the files.
    pub fn check_observed(&self, names: &[String]) -> Result<(), PolicyError> {
        let is_absent = |name: &&String| !self.files.iter().any(|file| file.name == **name);
        match names.iter().find(is_absent) {
            Some(name) => Err(PolicyError::NotObservable { file: name.clone() }),
            None => Ok(()),
        }
    }

    /// The same with only some of the files.
    pub(crate) fn filtered(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        let files = self.files.iter().filter(|file| is_kept(&file.name)).cloned().collect();
        Self { files, entities: self.entities.clone(), schema: self.schema.clone() }
    }
}

/// The names of the files in a folder, sorted. One that is not UTF-8 is shown with replacement characters, so it cannot
/// be read, and an error names it.
fn names(dir: &Path) -> Result<Vec<String>, PolicyError> {
    let unreadable = |error| PolicyError::Unreadable { path: dir.into(), error };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found == extension)
}

/// Reads a file of at most this size.
fn read(path: &Path, max_bytes: u64) -> Result<String, PolicyError> {
    let unreadable = |error| PolicyError::Unreadable { path: path.into(), error };
    // Another kind of file could make the start wait forever.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::other("it is not a file")));
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read_bytes = file.take(max_bytes + 1).read_to_string(&mut text);
    // A character that is cut at the limit is not the reason.
    match read_bytes {
        Ok(bytes) if u64::try_from(bytes).is_ok_and(|bytes| bytes <= max_bytes) => Ok(text),
        Err(error) if std::fs::metadata(path).is_ok_and(|file| file.len() <= max_bytes) => {
            Err(unreadable(error))
        }
        Ok(_) | Err(_) => Err(PolicyError::TooLarge { path: path.into(), max_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let text = "a\nbü\n\nc";
        for (offset, line) in [(0, 1), (1, 1), (2, 2), (5, 2), (6, 3), (7, 4), (99, 4)] {
            assert_eq!(line_of(text, offset), line, "{offset}");
        }
    }

    #[test]
    fn some_files_are_left_out_and_the_rest_stays() {
        let file = |name: &str| PolicyFile { name: name.to_owned(), text: String::new() };
        let sources = PolicySources {
            files: vec![file("a.cedar"), file("b.cedar")],
            entities: Some("[]".to_owned()),
            schema: None,
        };
        let kept = sources.filtered(|name| name == "b.cedar");
        assert_eq!(kept, PolicySources { files: vec![file("b.cedar")], ..sources });
    }
}
