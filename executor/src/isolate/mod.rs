//! Where the sandbox runs.
//!
//! The default is the process ring: a process of its own for every run, so that a hole in the engine
//! is a hole in a process that has nothing. A tool that the operator trusts can run inline, on a
//! thread of the server.

mod cgroup;
mod channel;
mod child;
mod confine;
mod inline;
mod network;
mod process;
mod ring;
mod zygote;

pub use cgroup::Cgroups;
pub use confine::{
    Applied, ConfineError, Confinement, Feature, OVERHEAD_BYTES, OVERHEAD_PER_OUTPUT_BYTE, Row, Support,
    support,
};
pub use inline::Inline;
pub use zygote::zygote;

use crate::capability::Permit;
use crate::clock::Clock;
use crate::egress::Network;
use crate::ident::ToolName;
use crate::outcome::{AbortReason, End, Outcome};
use crate::sandbox::{Abort, Accounting, Artifact, Code, Execution, Input, Sandbox, Witness};
use ring::Ring;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long after its deadline a guest may still end by itself, so that its own account of the end
/// is preferred.
const GRACE: Duration = Duration::from_millis(20);

/// Where a tool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In a process of its own.
    Process,
    /// On a thread of the server.
    Inline,
}

impl Isolation {
    /// The word in the configuration and in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Inline => "inline",
        }
    }
}

/// What is known of every run before there is one.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// How many processes wait ahead of time.
    pub waiting: usize,
    /// The largest file that a run may make, in bytes.
    pub largest_file: u64,
    /// How many handles a run may have.
    pub handles: u64,
    /// Whether their instructions are counted.
    pub meters_fuel: bool,
}

/// A compiled tool, and where the operator lets it run.
#[derive(Debug, Clone, Copy)]
pub struct Module<'a> {
    /// Its name.
    pub name: &'a ToolName,
    /// What the compiler made of it.
    pub code: Code<'a>,
    /// Where it runs.
    pub isolation: Isolation,
}

/// All tools that can run, each in its place.
pub struct Isolate {
    inline: Inline,
    ring: Option<Ring>,
    places: BTreeMap<ToolName, Place>,
    clock: Arc<dyn Clock>,
}

/// Where one tool runs.
enum Place {
    Ring,
    Inline(Artifact),
    /// It cannot run, and why.
    Nowhere(String),
}

impl Isolate {
    /// Loads `tools`, with processes ahead of time for those that run in their own, each in a group of `cgroups`
    /// when there are any.
    ///
    /// # Errors
    /// When no zygote can be started.
    pub async fn start(
        tools: &[Module<'_>],
        ahead: Ahead,
        cgroups: Option<Arc<Cgroups>>,
        sandbox: &Arc<Sandbox>,
        clock: &Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let (apart, inside): (Vec<Module<'_>>, Vec<_>) =
            tools.iter().partition(|tool| tool.isolation == Isolation::Process);
        let loaded = inside.into_iter().map(|tool| {
            let place = match sandbox.load(tool.code) {
                Ok(artifact) => Place::Inline(artifact),
                Err(error) => Place::Nowhere(error.to_string()),
            };
            (tool.name.clone(), place)
        });
        let mut places = loaded.collect::<BTreeMap<_, _>>();
        let mut ring = None;
        if !apart.is_empty() {
            let (started, unusable) = Ring::start(&apart, ahead, cgroups, Arc::clone(clock)).await?;
            ring = Some(started);
            places.extend(apart.iter().map(|tool| (tool.name.clone(), Place::Ring)));
            places.extend(unusable.into_iter().map(|(tool, reason)| (tool, Place::Nowhere(reason))));
        }
        let inline = Inline::new(Arc::clone(sandbox), Arc::clone(clock));
        Ok(Self { inline, ring, places, clock: Arc::clone(clock) })
    }

    /// Whether a tool can run, or why not.
    ///
    /// # Errors
    /// The reason in words.
    pub fn usable(&self, tool: &ToolName) -> Result<(), &str> {
        match self.places.get(tool) {
            Some(Place::Ring | Place::Inline(_)) => Ok(()),
            Some(Place::Nowhere(reason)) => Err(reason),
            None => Err("it was not loaded"),
        }
    }

    /// The handle by which a run under `permit` over `network` can be watched, and stopped by `abort`;
    /// `witness` is told of it as it goes on. The run's clock starts here.
    #[must_use]
    pub fn begin(&self, permit: &Permit, network: Network, abort: Arc<Abort>, witness: Witness) -> Execution {
        Execution::begin(permit, network, abort, Accounting::Thread, witness, self.clock.monotonic())
    }

    /// What is to be reported of a run under `permit` when this process ends without a word.
    #[must_use]
    pub fn lost(&self, permit: &Permit) -> Outcome {
        let now = self.clock.monotonic();
        let (abort, witness) = (Arc::default(), Witness::default());
        let never_begun = Execution::begin(permit, Network::Off, abort, Accounting::Thread, witness, now);
        never_begun.outcome(End::Aborted(AbortReason::Lost), now)
    }

    /// Runs one guest where its tool belongs. At its end all of its connections are closed.
    pub async fn run(
        &self,
        tool: &ToolName,
        permit: Permit,
        arguments: String,
        execution: &Execution,
    ) -> Outcome {
        let outcome = self.placed(tool, permit, arguments, execution).await;
        execution.network().close();
        outcome
    }

    async fn placed(
        &self,
        tool: &ToolName,
        permit: Permit,
        arguments: String,
        execution: &Execution,
    ) -> Outcome {
        match (self.places.get(tool), &self.ring) {
            (Some(Place::Ring), Some(ring)) => ring.run(tool, permit, arguments, execution).await,
            (Some(Place::Inline(artifact)), _) => {
                self.inline.run(artifact.clone(), permit, Input::Arguments(arguments), execution).await
            }
            (Some(Place::Ring | Place::Nowhere(_)) | None, _) => {
                let end = End::Unlinkable("this tool is not loaded".to_owned());
                execution.outcome(end, self.clock.monotonic())
            }
        }
    }
}
