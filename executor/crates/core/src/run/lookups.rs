//! What doors tell callers about their own intents, beside the state: the question to a person, times, hashes, lists.

use super::{Executor, decisions};
use a2g_journal::{IntentRecords, ReceiptPage};
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::verdict::Verdict;

impl Executor {
    /// Returns `false` if the policies refuse every call of an agent with a tool.
    #[must_use]
    pub fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        self.governor.may_reach(agent, tool) && self.standing.may_reach(agent, tool)
    }

    /// The call and the verdict of an intent about which a person has to decide.
    #[must_use]
    pub fn undecided_call(&self, intent: IntentId) -> Option<(Call, Verdict)> {
        let escalated = self.escalations.find_undecided(intent)?;
        Some((escalated.call().clone(), escalated.verdict().clone()))
    }

    /// The records of an intent, in short; `None` for an intent without records.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn intent_records(&self, intent: IntentId) -> Result<Option<IntentRecords>, Fault> {
        self.journal.intent_records(intent).map_err(|error| self.journal_fault(&error))
    }

    /// The fault of a call with an intent that a person denied; `None` for any other intent.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn denial(&self, intent: IntentId) -> Result<Option<Fault>, Fault> {
        let denial = self.journal.denial(intent).map_err(|error| self.journal_fault(&error))?;
        Ok(denial.map(|denial| decisions::denial_fault(intent, &denial)))
    }

    /// The hash of the record with the receipt of an intent, in hexadecimal; `None` without a journal on the disk.
    #[must_use]
    pub fn receipt_hash(&self, intent: IntentId) -> Option<String> {
        // A damaged file stops the server; see `Journal::wait_until_broken`.
        let hash = self.journal.receipt_hash(intent).ok().flatten()?;
        Some(a2g_journal::chain::to_hex(&hash))
    }

    /// The latest receipts of the agents that `filter` selects: see [`a2g_journal::Journal::recent_receipts`].
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn recent_receipts(
        &self,
        filter: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ReceiptPage, Fault> {
        let page = self.journal.recent_receipts(filter, before, limit).await;
        page.map_err(|error| self.journal_fault(&error))
    }
}
