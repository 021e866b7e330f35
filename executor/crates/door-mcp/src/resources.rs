//! Resources: the receipts and artifacts of a caller's own runs, from the journal.

use super::{McpDoor, RequestContext};
use a2g_core::run::IntentState;
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::Receipt;
use a2g_wire::mcp::decode::Completion;
use a2g_wire::mcp::encode::ListedReceipt;
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::resources::ResourceUri;
use std::sync::Arc;

/// The number of receipts on one page, and among which the ids of intents are completed.
const PAGE_SIZE: usize = 50;
const COMPLETION_SIZE: usize = 500;

impl McpDoor {
    pub(super) async fn list_resources(
        &self,
        context: &RequestContext,
        before: Option<u64>,
    ) -> Result<String, McpError> {
        let page =
            self.executor.queries.recent_receipts(own_agents(&context.caller), before, PAGE_SIZE).await?;
        let listed = page.receipts.into_iter().map(|receipt| ListedReceipt {
            intent: receipt.intent,
            tool: receipt.tool,
            status: receipt.status,
            ended: receipt.ended,
        });
        Ok(context.encoder().resources(&context.id, &listed.collect::<Vec<_>>(), page.next))
    }

    pub(super) async fn read_resource(
        &self,
        context: &RequestContext,
        uri: String,
    ) -> Result<String, McpError> {
        let revision = context.revision;
        let Some(parsed) = ResourceUri::parse(&uri) else {
            return Err(McpError::ResourceNotFound { uri, revision });
        };
        let receipt = self.own_receipt(&context.caller, parsed.intent()).await?;
        let answer = receipt.and_then(|receipt| context.encoder().resource(&context.id, &parsed, &receipt));
        answer.ok_or(McpError::ResourceNotFound { uri, revision })
    }

    pub(super) async fn complete(
        &self,
        context: &RequestContext,
        completion: Completion,
    ) -> Result<String, McpError> {
        let values = match completion {
            Completion::Unknown => Vec::new(),
            Completion::Intent(prefix) => {
                let page = self
                    .executor
                    .queries
                    .recent_receipts(own_agents(&context.caller), None, COMPLETION_SIZE)
                    .await?;
                let ids = page.receipts.iter().map(|receipt| receipt.intent.to_string());
                ids.filter(|id| id.starts_with(&prefix)).collect()
            }
            Completion::Artifact(intent, prefix) => {
                let receipt = self.own_receipt(&context.caller, intent).await?;
                let artifacts = receipt.iter().flat_map(|receipt| &receipt.outcome.output.artifacts);
                let names = artifacts.map(|artifact| artifact.name.clone());
                names.filter(|name| name.starts_with(&prefix)).collect()
            }
        };
        Ok(context.encoder().completion(&context.id, values))
    }

    /// The receipt of a run that the caller may read. Others do not exist for it.
    async fn own_receipt(&self, caller: &Caller, intent: IntentId) -> Result<Option<Arc<Receipt>>, Fault> {
        let found = self.executor.queries.status(intent).await?;
        Ok(match found.filter(|(agent, _)| caller.may_read(agent)).map(|(_, state)| state) {
            Some(IntentState::Finished(receipt)) => receipt,
            Some(IntentState::Escalated | IntentState::Queued | IntentState::Running) | None => None,
        })
    }
}

/// Selects the agents that the caller acts for. Even a caller that may read every intent lists only its own.
fn own_agents(caller: &Arc<Caller>) -> impl Fn(&str) -> bool + Send + 'static {
    let caller = Arc::clone(caller);
    move |agent| AgentDid::parse(agent).is_ok_and(|agent| caller.may_act_as(&agent))
}
