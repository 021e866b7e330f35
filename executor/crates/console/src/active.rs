//! The active runs: those that have begun or wait for a slot, at all nodes of the fleet.

use super::ConsoleState;
use super::elsewhere::{self, FleetAnswers};
use super::page::{intent_link, line, scrolling_table};
use super::session::SignedIn;
use a2g_core::run::RunIdentity;
use a2g_govern::Caller;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::NodeName;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

/// Maximum number of active runs of one node that are listed.
const MAX_LISTED: usize = 50;

/// The active runs of a node that a caller may see, in the form for another node.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeRuns {
    /// At most [`MAX_LISTED`].
    runs: Vec<ActiveRow>,
    /// The number of all.
    count: usize,
}

#[derive(Serialize, Deserialize)]
struct ActiveRow {
    intent: IntentId,
    agent: AgentDid,
    tool: ToolName,
}

impl NodeRuns {
    pub(super) fn read(console: &ConsoleState, caller: &Caller) -> Self {
        let mut runs = console.executor.queries.active_runs();
        runs.retain(|run| caller.may_read(&run.agent));
        let row = |RunIdentity { agent, intent, tool }| ActiveRow { intent, agent, tool };
        Self { count: runs.len(), runs: runs.into_iter().take(MAX_LISTED).map(row).collect() }
    }
}

/// The active runs of all nodes that have answered.
pub(super) struct ActiveList {
    here: NodeRuns,
    elsewhere: FleetAnswers<NodeRuns>,
}

impl ActiveList {
    pub(super) async fn read(console: &ConsoleState, signed_in: &SignedIn) -> Self {
        let caller = &*signed_in.caller;
        let elsewhere = elsewhere::list_active_runs(console, caller).await;
        Self { here: NodeRuns::read(console, caller), elsewhere }
    }

    /// The list. `own_name` is the name of this node in its fleet.
    pub(super) fn part(&self, own_name: Option<&NodeName>) -> Markup {
        let FleetAnswers { answers, notice } = &self.elsewhere;
        let here = (own_name, &self.here);
        let nodes = || std::iter::once(here).chain(answers.iter().map(|(node, runs)| (Some(node), runs)));
        let count = nodes().map(|(_, runs)| runs.count).fold(0, usize::saturating_add);
        let more = count.saturating_sub(nodes().map(|(_, runs)| runs.runs.len()).sum());
        html! {
            @if count == 0 { p { "None of the runs that you may see is active." } }
            @if count > 0 {
                (scrolling_table("Active runs", &html! {
                    thead { tr { th { "Run" } th { "Agent" } th { "Tool" } @if own_name.is_some() { th { "Node" } } } }
                    tbody {
                        @for (node, runs) in nodes() {
                            @for ActiveRow { intent, agent, tool } in &runs.runs {
                                tr {
                                    td { (intent_link(*intent)) } td { (line(agent.as_str())) } td { (tool) }
                                    @if let Some(node) = node { td { (node) } }
                                }
                            }
                        }
                    }
                }))
                @if more > 0 { p { "and " (more) " more" } }
            }
            @if let Some(notice) = notice { p role="status" { (notice) } }
        }
    }
}
