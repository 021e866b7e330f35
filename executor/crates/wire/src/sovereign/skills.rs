//! The mapping of tools to this protocol's skills and operations.

use a2g_types::ident::{ToolName, excerpt};
use a2g_types::tool::Descriptor;
use std::collections::BTreeMap;

/// The operation of a tool without a dot in its name.
pub const DEFAULT_OPERATION: &str = "run";

/// The skill and the operation of a tool.
#[must_use]
pub fn skill_and_operation(tool: &ToolName) -> (&str, &str) {
    match tool.as_str().split_once('.') {
        Some((skill, operation)) if !operation.is_empty() => (skill, operation),
        Some(_) | None => (tool.as_str(), DEFAULT_OPERATION),
    }
}

/// The tool whose skill and operation these are; `None` if no tool can have them. The operation may be omitted if it is
/// [`DEFAULT_OPERATION`].
#[must_use]
pub fn tool_of(skill: &str, operation: Option<&str>) -> Option<ToolName> {
    let name = match operation {
        None | Some(DEFAULT_OPERATION) => skill.to_owned(),
        Some(operation) => format!("{skill}.{operation}"),
    };
    let tool = ToolName::parse(&name).ok()?;
    (skill_and_operation(&tool) == (skill, operation.unwrap_or(DEFAULT_OPERATION))).then_some(tool)
}

/// A requested skill or operation that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The skill does not exist. The text is the error message.
    Skill(String),
    /// The operation does not exist: the error message, and the existing operations.
    Operation(String, Vec<String>),
}

/// Finds the tool of an operation, which may be omitted for a skill with a single one.
///
/// # Errors
/// If the skill or the operation does not exist, or if the operation is omitted and the skill has several.
pub fn find<'a>(
    tools: &'a [Descriptor],
    skill: &str,
    operation: Option<&str>,
) -> Result<&'a Descriptor, Missing> {
    let operations = tools.iter().filter_map(|tool| {
        let (tool_skill, operation) = self::skill_and_operation(&tool.name);
        (tool_skill == skill).then_some((operation, tool))
    });
    let operations = operations.collect::<Vec<_>>();
    let tool = match (operation, operations.as_slice()) {
        (_, []) => {
            let message =
                format!("there is no skill `{}`: `GET /capabilities` lists the skills", excerpt(skill));
            return Err(Missing::Skill(message));
        }
        (None, [(_, only)]) => Some(*only),
        (None, _) => None,
        (Some(operation), all) => all.iter().find(|(name, _)| *name == operation).map(|(_, tool)| *tool),
    };
    tool.ok_or_else(|| {
        let message = match operation {
            Some(operation) => {
                format!("the skill `{}` has no operation `{}`", excerpt(skill), excerpt(operation))
            }
            None => format!("the skill `{}` has several operations: name one", excerpt(skill)),
        };
        Missing::Operation(message, operations.iter().map(|(name, _)| (*name).to_owned()).collect())
    })
}

/// All skills in alphabetical order, each with its operations.
#[must_use]
pub fn group_by_skill(tools: &[Descriptor]) -> BTreeMap<&str, Vec<(&str, &Descriptor)>> {
    let mut skills = BTreeMap::<&str, Vec<(&str, &Descriptor)>>::new();
    for tool in tools {
        let (skill, operation) = skill_and_operation(&tool.name);
        skills.entry(skill).or_default().push((operation, tool));
    }
    skills
}
