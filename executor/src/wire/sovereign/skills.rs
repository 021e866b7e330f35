//! The tools as this protocol names them: skills with operations.

use crate::ident::{ToolName, excerpt};
use crate::tool::Descriptor;
use std::collections::BTreeMap;

/// The one operation of a tool that is a skill by itself.
pub const RUN: &str = "run";

/// A tool's skill and operation.
#[must_use]
pub fn of(tool: &ToolName) -> (&str, &str) {
    match tool.as_str().split_once('.') {
        Some((skill, operation)) if !operation.is_empty() => (skill, operation),
        Some(_) | None => (tool.as_str(), RUN),
    }
}

/// What is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The skill. The text says so.
    Skill(String),
    /// The operation, with those that there are.
    Operation(String, Vec<String>),
}

/// The tool behind a skill's operation. A skill with one operation needs none to be named.
///
/// # Errors
/// [`Missing`] says what is not there.
pub fn find<'a>(
    tools: &'a [Descriptor],
    skill: &str,
    operation: Option<&str>,
) -> Result<&'a Descriptor, Missing> {
    let theirs = tools.iter().filter_map(|tool| {
        let (of, operation) = self::of(&tool.name);
        (of == skill).then_some((operation, tool))
    });
    let operations = theirs.collect::<Vec<_>>();
    let found = match (operation, operations.as_slice()) {
        (_, []) => {
            let message = format!("there is no skill `{}`: `GET /capabilities` lists them", excerpt(skill));
            return Err(Missing::Skill(message));
        }
        (None, [(_, only)]) => Some(*only),
        (None, _) => None,
        (Some(operation), all) => all.iter().find(|(name, _)| *name == operation).map(|(_, tool)| *tool),
    };
    found.ok_or_else(|| {
        let message = match operation {
            Some(operation) => {
                format!("the skill `{}` has no operation `{}`", excerpt(skill), excerpt(operation))
            }
            None => format!("the skill `{}` has several operations: name one", excerpt(skill)),
        };
        Missing::Operation(message, operations.iter().map(|(name, _)| (*name).to_owned()).collect())
    })
}

/// All skills in order, each with its operations.
#[must_use]
pub fn all(tools: &[Descriptor]) -> BTreeMap<&str, Vec<(&str, &Descriptor)>> {
    let mut skills = BTreeMap::<&str, Vec<(&str, &Descriptor)>>::new();
    for tool in tools {
        let (skill, operation) = of(&tool.name);
        skills.entry(skill).or_default().push((operation, tool));
    }
    skills
}
