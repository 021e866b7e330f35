//! The hash of all that a decision depends on.

use a2g_govern::Escalated;
use a2g_intent::WaitId;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::grant::GrantSummary;
use a2g_types::tool::{Descriptor, Digest};

/// The SHA-256 of what a decision depends on: the call, its wait, the tool, the verdict, the approvals so far and the
/// grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionBasis(Digest);

impl DecisionBasis {
    /// Parses the text of a basis, as [`Self::to_string`] writes it.
    ///
    /// # Errors
    /// If the text is not 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        Digest::parse(text).map(Self)
    }

    /// The bytes of the hash.
    pub(super) fn hash(self) -> [u8; 32] {
        self.0.0
    }

    pub(super) fn from_hash(hash: [u8; 32]) -> Self {
        Self(Digest(hash))
    }

    pub(super) fn compute(
        escalated: &Escalated,
        wait: WaitId,
        descriptor: Option<&Descriptor>,
        approved_by: &[String],
        grant: &Result<GrantSummary, Fault>,
    ) -> Self {
        let call = escalated.call();
        let verdict = escalated.verdict();
        // The fields that are left out are not shown, change nothing in what runs, or have their effect in the grant.
        // The debug format of a value that is hashed has all of its fields.
        let Call {
            door,
            agent,
            intent,
            is_new: _,
            tool,
            arguments,
            context: _,
            caller_timeout: _,
            priority: _,
            charge: _,
            parent,
            caller_tools: _,
            session,
        } = call;
        let arguments = serde_json::Value::Object(arguments.clone());
        // The schemas and the contract are not shown, and the declared capabilities take effect in the grant.
        let shown_tool = descriptor.map(|Descriptor { digest, version, title, description, .. }| {
            (digest, version, title, description)
        });
        // If a person withdraws an intent and it is sent again, it is in a new wait.
        let wait = wait.number();
        let session_text = session.as_ref().map(|session| format!("session {} ", session.request));
        let shown_session = session_text.unwrap_or_default();
        let shown = format!(
            "{shown_session}{intent} {wait} {door:?} {agent:?} {tool:?} {arguments} {parent:?} {shown_tool:?} {verdict:?} {approved_by:?} {grant:?}"
        );
        Self(Digest::compute(shown.as_bytes()))
    }
}

impl std::fmt::Display for DecisionBasis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
