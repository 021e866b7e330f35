//! The isolation of runs.
//!
//! The default is the process ring: a process of its own for every run, so that a vulnerability in the engine
//! compromises a process without rights. A tool that the operator trusts can run inline, on a thread of the server.

mod cgroup;
mod channel;
mod child;
mod compiler;
mod confine;
mod generation;
mod inline;
mod network;
mod nursery;
mod probe;
mod process;
mod ring;
mod user;
mod zygote;

pub use cgroup::Cgroups;
pub use compiler::{CompilerLimits, confine_compiler};
pub use confine::{
    Applied, ConfineError, Confinement, Feature, OVERHEAD_BYTES, OVERHEAD_PER_OUTPUT_BYTE, Row, Support,
    support,
};
pub use inline::Inline;
pub use probe::probe;
pub use ring::Prepared;
pub use user::{Owner, RunAs, User, UserError};
pub use zygote::zygote;

use crate::capability::{Grant, Permit};
use crate::clock::Clock;
use crate::egress::Network;
use crate::ident::ToolName;
use crate::outcome::{AbortReason, End, Outcome};
use crate::sandbox::{Abort, Accounting, Artifact, Code, EventSink, Execution, Input, Sandbox};
use ring::Ring;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time after its deadline in which a guest may still end on its own.
// The guest's own end has more detail than the server's, so it is preferred.
const GRACE: Duration = Duration::from_millis(20);

/// The isolation of a tool's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A process of its own for each run.
    Process,
    /// A thread of the server for each run.
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

/// Settings of the processes that are forked before their runs are known.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// The number of children that wait for a job.
    pub waiting: usize,
    /// The largest file that a run may write, in bytes.
    pub largest_file: u64,
    /// The most handles of one run.
    pub handles: u64,
    /// `true` when generated code counts its instructions.
    pub meters_fuel: bool,
    /// The number of runs after which the zygote is replaced.
    pub renew_runs: u64,
    /// The time after which the zygote is replaced, regardless of its runs.
    pub renew_after: Duration,
    /// `true` when each run gets a new address layout: one zygote per child.
    pub fresh_layout: bool,
    /// The user that runs execute as.
    pub run_as: RunAs,
}

impl Ahead {
    fn children(&self) -> usize {
        // A child is forked when the one before is taken, so at least one has to be forked at the start.
        self.waiting.max(1)
    }
}

/// A compiled tool, and the isolation that the operator has chosen for it.
#[derive(Debug, Clone, Copy)]
pub struct Module<'a> {
    /// The name under which runs refer to it.
    pub name: &'a ToolName,
    /// Its machine code.
    pub code: Code<'a>,
    /// The isolation of its runs.
    pub isolation: Isolation,
}

/// All loaded tools, each with its isolation.
pub struct Isolate {
    inline: Inline,
    ring: Option<Ring>,
    places: BTreeMap<ToolName, Place>,
    clock: Arc<dyn Clock>,
}

enum Place {
    Ring,
    Inline(Artifact),
    /// The tool cannot run, for this reason.
    Nowhere(String),
}

/// A run that is about to start, with its isolation.
pub struct Order {
    grant: Grant,
    place: Placed,
}

impl Order {
    /// The grant that the run executes under.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }
}

/// One run's authority and its arguments as JSON text, assigned to its tool's isolation.
enum Placed {
    Ring(ring::Order),
    Inline(Artifact, Permit, String),
    Nowhere,
}

impl Isolate {
    /// Loads `tools`. Starts a zygote if any of them runs in a process of its own; each child is in a control group
    /// if `cgroups` are available.
    ///
    /// # Errors
    /// No zygote can be started.
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

    /// Checks that a tool can run.
    ///
    /// # Errors
    /// The reason that it cannot, as a clause about the tool.
    pub fn usable(&self, tool: &ToolName) -> Result<(), &str> {
        match self.places.get(tool) {
            Some(Place::Ring | Place::Inline(_)) => Ok(()),
            Some(Place::Nowhere(reason)) => Err(reason),
            None => Err("it was not loaded"),
        }
    }

    /// A run of `tool` under `permit` with `arguments` as JSON text.
    #[must_use]
    pub fn order(&self, tool: &ToolName, permit: Permit, arguments: String) -> Order {
        let grant = permit.grant().clone();
        let place = match (self.places.get(tool), &self.ring) {
            (Some(Place::Ring), Some(ring)) => {
                Placed::Ring(ring.order(tool, permit, channel::Task::Invoke { arguments }))
            }
            (Some(Place::Inline(artifact)), _) => Placed::Inline(artifact.clone(), permit, arguments),
            (Some(Place::Ring), None) | (Some(Place::Nowhere(_)) | None, _) => Placed::Nowhere,
        };
        Order { grant, place }
    }

    /// Prepares a child for the run before it may begin; no code of the guest runs. `None` when nothing can be
    /// prepared ahead: [`Self::run`] then does all of it.
    pub async fn prepare(&self, order: &Order) -> Option<Prepared> {
        match (&order.place, &self.ring) {
            (Placed::Ring(job), Some(ring)) => ring.prepare(job, &order.grant).await,
            (Placed::Ring(_), None) | (Placed::Inline(..) | Placed::Nowhere, _) => None,
        }
    }

    /// The observer of a run over `network`, which `abort` can stop; `events` receives its events. The run's clock
    /// starts now.
    #[must_use]
    pub fn begin(&self, order: &Order, network: Network, abort: Arc<Abort>, events: EventSink) -> Execution {
        Execution::begin(&order.grant, network, abort, Accounting::Thread, events, self.clock.monotonic())
    }

    /// The outcome to be reported if this process dies during the run.
    #[must_use]
    pub fn lost(&self, order: &Order) -> Outcome {
        let never_begun = self.begin(order, Network::Off, Arc::default(), EventSink::default());
        never_begun.outcome(End::Aborted(AbortReason::Lost), never_begun.started_at())
    }

    /// Runs one guest with its tool's isolation, in the `prepared` child if there is one. All of its network
    /// connections are closed at its end.
    pub async fn run(&self, order: Order, prepared: Option<Prepared>, execution: &Execution) -> Outcome {
        let outcome = match (order.place, &self.ring) {
            (Placed::Ring(job), Some(ring)) => ring.run(job, prepared, execution).await,
            (Placed::Inline(artifact, permit, arguments), _) => {
                self.inline.run(artifact, permit, Input::Arguments(arguments), execution).await
            }
            (Placed::Ring(_), None) | (Placed::Nowhere, _) => {
                let end = End::Unlinkable("this tool is not loaded".to_owned());
                execution.outcome(end, self.clock.monotonic())
            }
        };
        execution.network().close();
        outcome
    }
}
