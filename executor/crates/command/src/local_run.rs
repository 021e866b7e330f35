//! The executor of a command that runs tools by itself, and the calls of such a command.

use crate::UsageError;
use crate::setup::ToolRuntime;
use a2g_config::Config;
use a2g_core::run::{Capacity, EffectsLocation, Executor, ExecutorParts, ExecutorSettings, SessionSettings};
use a2g_govern::local::LocalGovernor;
use a2g_govern::{Governor, Granter, Trust};
use a2g_journal::Journal;
use a2g_sandbox::egress::Egress;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::memory::Charge;
use a2g_types::tool::CallTargets;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The parts of a call that differ between the commands.
pub struct CallParts<'a> {
    /// The agent in whose name the tool runs.
    pub agent: &'a str,
    /// The tool.
    pub tool: ToolName,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// A call of a command line.
pub fn local_call(parts: CallParts<'_>) -> Result<Call, UsageError> {
    let CallParts { agent, tool, arguments } = parts;
    Ok(Call {
        caller_timeout: None,
        priority: Priority::Normal,
        door: Door::Cli,
        agent: AgentDid::parse(agent).map_err(|error| UsageError(format!("`--agent` {error}")))?,
        intent: IntentId::random(),
        is_new: true,
        charge: Charge::default(),
        parent: None,
        caller_tools: Some(CallTargets::All),
        session: None,
        tool,
        arguments,
        context: None,
    })
}

/// The executor of a command that runs `tool` again and again, with what that needs of the configured catalogue, and with
/// this network.
pub async fn start_executor(
    config: &Config,
    tools_runtime: &ToolRuntime,
    tool: &ToolName,
    egress: Option<Arc<Egress>>,
    granter: Granter,
    governor: LocalGovernor,
) -> anyhow::Result<Arc<Executor>> {
    let settings = ExecutorSettings {
        approval_rules: Vec::new(),
        granter,
        ceilings: config.ceilings.clone(),
        mounts: config.mounts.clone(),
        capacity: Capacity { concurrent: 1, concurrent_per_agent: 1, queue: 1, queue_per_agent: 1 },
        accept_unsigned: None,
        signatures: None,
        // The process ends with its last call.
        sessions: SessionSettings::default(),
    };
    // No keys are trusted, because a command line carries no proof.
    let trust = Trust::empty(config.did.clone());
    let governor = Governor::Local(Arc::new(governor), Arc::default());
    let loaded = tools_runtime.load_for(config, tool).await?;
    // The journal is in memory: no caller can repeat the intent later, and the report is printed.
    let journal = Journal::in_memory();
    let clock = Arc::clone(&tools_runtime.clock);
    let parts = ExecutorParts {
        loaded,
        governor,
        trust,
        egress,
        journal,
        effects: EffectsLocation::Temporary,
        effects_settings: config.effects_settings,
        fleet: None,
        passes_calls: false,
        clock,
    };
    Ok(Arc::new(Executor::new(settings, parts)))
}
