//! The catalogue that calls find, which is replaced as a whole. A run keeps the one that it began with.

use super::policies::Policies;
use super::tool_sessions::ToolSessions;
use crate::catalog::{Catalog, CatalogEntry, Preparing, Tool};
use a2g_govern::check_caller_tools;
use a2g_isolate::Isolate;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, ToolName, did_you_mean};
use a2g_types::tool::Descriptor;
use arc_swap::ArcSwap;
use std::sync::Arc;
use tokio::sync::watch;

/// The delay after which a caller should retry if its tool was not compiled in the time of the call.
pub(super) const PREPARING_RETRY_MS: u64 = 1_000;

/// A catalogue, and the isolate in which its tools run.
pub struct LoadedCatalog {
    pub(super) catalog: Catalog,
    pub(super) isolate: Isolate,
    /// The descriptors of the tools that are usable, or will be once they are compiled, by name.
    tools: Arc<[Descriptor]>,
}

impl LoadedCatalog {
    /// A catalogue whose tools are ready to run in `isolate`.
    #[must_use]
    pub fn new(catalog: Catalog, isolate: Isolate) -> Self {
        let tools = catalog.iter().filter_map(|(name, entry)| match entry {
            CatalogEntry::Ready(tool) => isolate.check_usable(name).is_ok().then_some(&tool.descriptor),
            CatalogEntry::Preparing(preparing) => preparing.descriptor.as_deref(),
            CatalogEntry::Broken(_) => None,
        });
        let tools = tools.cloned().collect();
        Self { catalog, isolate, tools }
    }

    /// The same catalogue, whose tools are listed with sessions only if `has_sessions` says so.
    #[must_use]
    pub fn with_sessions_of(self, has_sessions: impl Fn(&ToolName) -> bool) -> Self {
        let listed = |tool: &Descriptor| {
            let has_sessions = tool.has_sessions && has_sessions(&tool.name);
            Descriptor { has_sessions, ..tool.clone() }
        };
        Self { tools: self.tools.iter().map(listed).collect(), ..self }
    }

    /// Returns `true` if the folder of tools has none, not even one that is broken or being prepared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.catalog.iter().next().is_none()
    }

    /// The descriptors of all tools that have one, even if they cannot be used here: policies name them.
    pub fn described(&self) -> impl Iterator<Item = &Descriptor> {
        self.catalog.iter().filter_map(|(_, entry)| match entry {
            CatalogEntry::Ready(tool) => Some(&tool.descriptor),
            CatalogEntry::Preparing(preparing) => preparing.descriptor.as_deref(),
            CatalogEntry::Broken(_) => None,
        })
    }

    /// Returns `true` if there are tools, every one has a descriptor, and none is broken.
    #[must_use]
    pub fn describes_all(&self) -> bool {
        !self.is_empty() && self.catalog.iter().count() == self.described().count()
    }

    pub(super) fn usable_tool(&self, name: &ToolName) -> Option<&Tool> {
        self.catalog.get(name)?.tool().map(|tool| &**tool)
    }
}

/// The current catalogue.
pub struct CurrentCatalog {
    loaded: ArcSwap<LoadedCatalog>,
    changes: watch::Sender<()>,
    tool_changes: watch::Sender<()>,
    policies: Arc<Policies>,
    tool_sessions: Arc<ToolSessions>,
    clock: Arc<dyn Clock>,
}

impl CurrentCatalog {
    pub(super) fn new(
        loaded: LoadedCatalog,
        policies: Arc<Policies>,
        tool_sessions: Arc<ToolSessions>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        policies.governor().use_tools(loaded.described());
        Self {
            loaded: ArcSwap::from_pointee(loaded),
            changes: watch::Sender::new(()),
            tool_changes: watch::Sender::new(()),
            policies,
            tool_sessions,
            clock,
        }
    }

    /// The descriptors of all tools that are usable, or will be once they are compiled, sorted by name. A tool that is
    /// not compiled yet is included if its package describes it.
    #[must_use]
    pub fn tools(&self) -> Arc<[Descriptor]> {
        Arc::clone(&self.current().tools)
    }

    /// The current catalogue.
    #[must_use]
    pub fn catalog(&self) -> Catalog {
        self.current().catalog.clone()
    }

    /// The names of the tools that are usable or being prepared.
    #[must_use]
    pub fn tool_names(&self) -> Vec<String> {
        let loaded = self.current();
        let entries = loaded.catalog.iter().filter(|(name, entry)| match entry {
            CatalogEntry::Ready(_) => loaded.isolate.check_usable(name).is_ok(),
            CatalogEntry::Preparing(_) => true,
            CatalogEntry::Broken(_) => false,
        });
        entries.map(|(name, _)| name.to_string()).collect()
    }

    /// The tools that cannot be used, sorted by name, each with the reason that callers may know.
    #[must_use]
    pub fn unusable_tools(&self) -> Vec<(ToolName, String)> {
        let loaded = self.current();
        let unusable = loaded.catalog.iter().filter_map(|(name, entry)| {
            let reason = match entry {
                CatalogEntry::Ready(_) => loaded.isolate.check_usable(name).err()?.to_owned(),
                CatalogEntry::Preparing(_) => return None,
                CatalogEntry::Broken(error) => error.public_message(),
            };
            Some((name.clone(), reason))
        });
        unusable.collect()
    }

    /// Replaces the catalogue for later calls. A run that has begun keeps its catalogue.
    pub fn replace(&self, mut loaded: LoadedCatalog) {
        let old = self.tools();
        let is_changed = old != loaded.tools;
        if !is_changed {
            // The same list, so that what doors made of it stays in use.
            loaded.tools = old;
        }
        // First, so that no call of a new tool is decided by policies that do not know it.
        self.policies.governor().use_tools(loaded.described());
        let previous = self.loaded.swap(Arc::new(loaded));
        // No later call runs in it, and a stop would not reach its processes.
        previous.isolate.end_idle();
        let current = self.current();
        self.tool_sessions.end_changed(|tool| current.usable_tool(tool).map(|tool| tool.descriptor.digest));
        self.changes.send_replace(());
        if is_changed {
            self.tool_changes.send_replace(());
        }
    }

    /// Changes when a tool is added, removed or described otherwise, but not when one is compiled.
    #[must_use]
    pub fn tool_changes(&self) -> watch::Receiver<()> {
        self.tool_changes.subscribe()
    }

    /// Changes when the catalogue is replaced.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits until every tool that is not broken has a descriptor.
    pub async fn wait_until_described(&self) {
        self.wait_for(Catalog::has_all_descriptors).await;
    }

    /// Waits until every tool is compiled or broken.
    pub async fn wait_until_prepared(&self) {
        self.wait_for(|catalog| catalog.preparing_tools().is_empty()).await;
    }

    /// Waits until a condition of the catalogue is true.
    pub(super) async fn wait_for(&self, is_true: impl Fn(&Catalog) -> bool) {
        let mut changes = self.changes();
        while !is_true(&self.current().catalog) && changes.changed().await.is_ok() {}
    }

    pub(super) fn current(&self) -> Arc<LoadedCatalog> {
        self.loaded.load_full()
    }

    /// The tool of a call, if it is being compiled and the call's caller may use it.
    pub(super) fn preparing_tool(&self, call: &Call) -> Option<Preparing> {
        check_caller_tools(call).ok()?;
        match self.current().catalog.get(&call.tool)? {
            CatalogEntry::Preparing(preparing) => Some(preparing.clone()),
            CatalogEntry::Ready(_) | CatalogEntry::Broken(_) => None,
        }
    }

    /// Returns the current catalogue if the call's tool is usable in it. The run keeps this catalogue even after a
    /// reload.
    pub(super) fn find(&self, call: &Call) -> Result<Arc<LoadedCatalog>, Fault> {
        let loaded = self.current();
        let unavailable = |message| Fault::ToolUnavailable { tool: call.tool.clone(), message };
        match loaded.catalog.get(&call.tool) {
            Some(CatalogEntry::Ready(tool)) => {
                tool.trusted
                    .check_expiry(self.clock.now())
                    .map_err(|error| untrusted_fault(call, &error.to_string()))?;
                loaded.isolate.check_usable(&call.tool).map_err(|reason| unavailable(reason.to_owned()))?;
            }
            Some(CatalogEntry::Preparing(_)) => {
                let message =
                    format!("the tool `{}` is being prepared: its module is still being compiled", call.tool);
                return Err(Fault::Busy { message, retry_after_ms: PREPARING_RETRY_MS });
            }
            Some(CatalogEntry::Broken(error)) if error.is_untrusted() => {
                return Err(untrusted_fault(call, &error.public_message()));
            }
            Some(CatalogEntry::Broken(error)) => return Err(unavailable(error.public_message())),
            None => return Err(self.absent_tool_fault(&call.agent, &call.tool)),
        }
        Ok(loaded)
    }

    /// The fault of a call to a tool that is not in the catalogue, or that the agent must not learn of.
    #[must_use]
    pub fn absent_tool_fault(&self, agent: &AgentDid, tool: &ToolName) -> Fault {
        let loaded = self.current();
        // Only names that the agent's policies reach are suggested.
        let names = loaded.catalog.iter().map(|(name, _)| name);
        let names = names.filter(|name| self.policies.may_reach(agent, name)).map(ToolName::as_str);
        let nearest = did_you_mean(tool.as_str(), names);
        let message =
            format!("there is no tool `{tool}` in the catalogue{nearest}: ask for the list of tools");
        Fault::invalid("/tool", message)
    }
}

/// The refusal of a call to a tool that is not the one that an operator accepted.
fn untrusted_fault(call: &Call, reason: &str) -> Fault {
    Fault::Refused {
        intent: Some(call.intent),
        risk_score: None,
        blocked_by: BlockedBy::ToolUntrusted,
        message: format!("the tool `{}` cannot be used: {reason}", call.tool),
    }
}
