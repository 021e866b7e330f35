//! Stops: what an operator has stopped, until an operator resumes it.

use crate::clock::format_seconds;
use crate::ident::{AgentDid, ToolName, is_display_control};
use std::fmt;
use time::OffsetDateTime;

/// What an operator stops or resumes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StopTarget {
    /// All calls of one agent.
    Agent(AgentDid),
    /// All calls of one tool, by any agent.
    Tool(ToolName),
    /// All calls.
    Everything,
}

impl StopTarget {
    /// `true` if a stop of this target stops the calls of `agent` with `tool`.
    #[must_use]
    pub fn includes(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        match self {
            Self::Agent(stopped) => stopped == agent,
            Self::Tool(stopped) => stopped == tool,
            Self::Everything => true,
        }
    }

    /// The options that name the target on the command line, such as `--tool write_file`.
    #[must_use]
    pub fn cli_options(&self) -> String {
        match self {
            Self::Agent(agent) => format!("--agent {agent}"),
            Self::Tool(tool) => format!("--tool {tool}"),
            Self::Everything => "--all".to_owned(),
        }
    }
}

impl fmt::Display for StopTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => write!(f, "the agent `{agent}`"),
            Self::Tool(tool) => write!(f, "the tool `{tool}`"),
            Self::Everything => f.write_str("every tool of every agent"),
        }
    }
}

/// The text cannot be the reason of a stop or a denial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a reason has 1 to {max} characters, without line ends or other control characters", max = OperatorReason::MAX_CHARS)]
pub struct OperatorReasonError;

/// A person's reason for a stop or a denial: 1 to [`OperatorReason::MAX_CHARS`] characters, none of which controls a terminal.
// Every refused agent is told the reason, so it is short, and cannot imitate other lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorReason(Box<str>);

impl OperatorReason {
    /// The maximum length of a reason, in characters.
    pub const MAX_CHARS: usize = 500;

    /// Parses a reason. White space around it is removed.
    ///
    /// # Errors
    /// [`OperatorReasonError`] for a text that is empty, too long, or has control characters.
    pub fn parse(text: &str) -> Result<Self, OperatorReasonError> {
        let text = text.trim();
        let is_short = text.chars().nth(Self::MAX_CHARS).is_none();
        if text.is_empty() || !is_short || text.chars().any(is_display_control) {
            return Err(OperatorReasonError);
        }
        Ok(Self(text.into()))
    }

    /// The reason as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperatorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A stop that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// What is stopped.
    pub target: StopTarget,
    /// The operator's reason.
    pub reason: OperatorReason,
    /// The operator's name.
    pub by: String,
    /// The time of the stop.
    pub since: OffsetDateTime,
}

impl Stop {
    /// The message for a call that this stop refuses: who stopped what, when and why, and how it is resumed.
    #[must_use]
    pub fn refusal_message(&self) -> String {
        let Self { target, reason, by, since } = self;
        let options = target.cli_options();
        format!(
            "`{by}` stopped {target} on {}: {reason}. No such call runs until an operator lifts the stop with \
             `a2g-executor resume {options}`",
            format_seconds(*since)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_includes_the_calls_of_its_agent_or_tool() {
        let [a, b] = ["did:a:a", "did:a:b"].map(|did| AgentDid::parse(did).unwrap());
        let [read, write] = ["read_file", "write_file"].map(|name| ToolName::parse(name).unwrap());
        let agent = StopTarget::Agent(a.clone());
        assert!(agent.includes(&a, &read) && agent.includes(&a, &write) && !agent.includes(&b, &read));
        let tool = StopTarget::Tool(read.clone());
        assert!(tool.includes(&a, &read) && tool.includes(&b, &read) && !tool.includes(&a, &write));
        assert!(StopTarget::Everything.includes(&b, &write));
    }

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(OperatorReason::parse(" it deletes files ").unwrap().as_str(), "it deletes files");
        let longest = "ü".repeat(OperatorReason::MAX_CHARS);
        assert!(OperatorReason::parse(&longest).is_ok());
        for bad in ["", "  ", "a\nb", "a\u{1b}[2J", "a\u{202e}b", &format!("{longest}x")] {
            assert_eq!(OperatorReason::parse(bad), Err(OperatorReasonError), "{bad:?}");
        }
    }

    #[test]
    fn a_refusal_names_operator_time_reason_and_remedy() {
        let stop = |target| Stop {
            target,
            reason: OperatorReason::parse("it deletes files").unwrap(),
            by: "anna".to_owned(),
            since: time::macros::datetime!(2026-11-25 20:13:07.5 UTC),
        };
        assert_eq!(
            stop(StopTarget::Tool(ToolName::parse("write_file").unwrap())).refusal_message(),
            "`anna` stopped the tool `write_file` on 2026-11-25T20:13:07Z: it deletes files. No such call runs until an \
             operator lifts the stop with `a2g-executor resume --tool write_file`"
        );
        assert!(stop(StopTarget::Everything).refusal_message().ends_with("`a2g-executor resume --all`"));
    }
}
