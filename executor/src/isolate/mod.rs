//! Where the sandbox runs.
//!
//! The default is the process ring: a process of its own for every run, so that a hole in the engine
//! is a hole in a process that has nothing. A tool that the operator trusts can run inline, on a
//! thread of the server.

mod cgroup;
mod channel;
mod child;
mod compiler;
mod confine;
mod error;
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
pub use error::ChildError;
pub use inline::Inline;
pub use probe::probe;
pub use ring::Prepared;
pub use user::{Owner, RunAs, User, UserError};
pub use zygote::zygote;

use crate::capability::{Grant, GrantView, Permit};
use crate::clock::Clock;
use crate::egress::Network;
use crate::error_chain::ErrorChain;
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
    /// The number of runs after which the zygote is replaced.
    pub renew_runs: u64,
    /// The time after which the zygote is replaced, however few its runs.
    pub renew_after: Duration,
    /// `true` for a process with an address layout of its own for each run, started instead of forked.
    pub fresh_layout: bool,
    /// The user as which they run.
    pub run_as: RunAs,
}

impl Ahead {
    /// The least number of children with which the next run finds one.
    fn children(&self) -> usize {
        self.waiting.max(1)
    }
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

/// One run that is to be, in its place.
pub struct Order {
    grant: GrantView,
    place: Placed,
}

impl Order {
    /// What it may do.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }
}

/// One run's authority, with its arguments as JSON text, where its tool belongs.
enum Placed {
    Ring(ring::Order),
    Inline(Artifact, Permit, String),
    Nowhere,
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
                Err(error) => Place::Nowhere(ErrorChain(&error).to_string()),
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

    /// What is to run of `tool` under `permit`, in its place.
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

    /// Makes ready what can be before the run may begin: nothing of the guest's runs. `None` when that is nothing.
    pub async fn prepare(&self, order: &Order) -> Option<Prepared> {
        match (&order.place, &self.ring) {
            (Placed::Ring(job), Some(ring)) => ring.prepare(job, &order.grant).await,
            (Placed::Ring(_), None) | (Placed::Inline(..) | Placed::Nowhere, _) => None,
        }
    }

    /// The handle by which a run over `network` can be watched, and stopped by `abort`; `witness` is told of it as
    /// it goes on. The run's clock starts here.
    #[must_use]
    pub fn begin(&self, order: &Order, network: Network, abort: Arc<Abort>, witness: Witness) -> Execution {
        let grant = order.grant.clone();
        Execution::begin(grant, network, abort, Accounting::Thread, witness, self.clock.monotonic())
    }

    /// What is to be reported of a run when this process ends without a word.
    #[must_use]
    pub fn lost(&self, order: &Order) -> Outcome {
        let never_begun = self.begin(order, Network::Off, Arc::default(), Witness::default());
        never_begun.outcome(End::Aborted(AbortReason::Lost), never_begun.began())
    }

    /// Runs one guest where its tool belongs, in what was prepared for it. At its end all of its connections are
    /// closed.
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
