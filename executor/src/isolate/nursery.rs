//! The source of children: the zygote in use, and the next one.
//!
//! ```text
//! shared layout:  zygote ── forks the children of many runs ── worn: the next one is started, warmed up, put in its
//!                 place ──▶ the old one ends with its last child
//! fresh layout:   a zygote for each child, which it forks and ends with
//! ```
//! The children of one zygote have one address layout, which a guest can learn. So a zygote is worn after some runs or
//! some time, and a run never waits for the next one: it is put in place when its first children wait for work.

use super::cgroup::Cgroups;
use super::channel::ToZygote;
use super::error::ChildError;
use super::generation::{Child, Generation, Loaded, Made, Refill};
use super::user::RunAs;
use super::{Ahead, Module};
use crate::clock::timer_now;
use crate::error_chain::ErrorChain;
use crate::ident::ToolName;
use crate::sandbox::Code;
use std::convert::Infallible;
use std::fs::File;
use std::io::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// The pause before another try to make a child.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The time for which a worn zygote stays in use before another try to replace it.
const ZYGOTE_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The source of children.
pub(super) struct Nursery {
    tools: Vec<Loaded>,
    settings: Ahead,
    cgroups: Option<Arc<Cgroups>>,
    current: Mutex<Option<Arc<Generation>>>,
    /// Told when the zygote in use has made children for as many runs as it may.
    worn: Arc<Notify>,
    /// Closed with the nursery, so that what replaces its zygotes ends.
    _open: oneshot::Sender<Infallible>,
}

impl Nursery {
    /// Starts a zygote with `tools`, and gives the reason for each tool that it cannot run.
    pub(super) async fn start(
        tools: &[Module<'_>],
        settings: Ahead,
        cgroups: Option<Arc<Cgroups>>,
    ) -> Result<(Arc<Self>, Vec<(ToolName, String)>)> {
        let loaded = tools.iter().map(load).collect::<Result<Vec<_>>>()?;
        let (open, closed) = oneshot::channel();
        let (current, worn) = (Mutex::default(), Arc::default());
        let nursery = Arc::new(Self { tools: loaded, settings, cgroups, current, worn, _open: open });
        let (generation, unusable) = nursery.zygote(settings.children()).await?;
        let generation = if settings.fresh_layout { nursery.fresh() } else { generation };
        *nursery.current.lock().await = Some(Arc::new(generation));
        if !settings.fresh_layout {
            tokio::spawn(keep_renewing(Arc::downgrade(&nursery), Arc::clone(&nursery.worn), closed));
        }
        let unusable = tools.iter().zip(unusable);
        let unusable = unusable.filter_map(|(tool, reason)| Some((tool.name.clone(), reason?))).collect();
        Ok((nursery, unusable))
    }

    /// The number of children that wait ahead of time.
    pub(super) fn waiting(&self) -> usize {
        self.settings.waiting
    }

    /// The user as which runs run.
    pub(super) fn run_as(&self) -> RunAs {
        self.settings.run_as
    }

    /// A child that waits, if any does and lives; or why it could not be made.
    pub(super) fn try_child(&self) -> Option<std::result::Result<(Child, Refill), ChildError>> {
        let generation = self.living()?;
        let made = generation.try_next()?;
        let refill = self.taken(generation);
        match made {
            Ok(child) if child.lives() => Some(Ok((child, refill))),
            Ok(_killed_while_it_waited) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// A child that waits, or a new one when none does.
    pub(super) async fn child(self: &Arc<Self>) -> std::result::Result<(Child, Refill), ChildError> {
        loop {
            let generation = match self.living() {
                Some(generation) => generation,
                // A task of its own, so that a run that is cancelled meanwhile leaves no zygote behind.
                None => {
                    let started = tokio::spawn(Arc::clone(self).revived()).await;
                    started??
                }
            };
            let made = tokio::select! {
                biased;
                made = generation.next() => made,
                // A retired generation forks no more, so its next child might never come.
                () = generation.retired() => continue,
            };
            match made.ok_or(ChildError::ZygoteEnded)? {
                Ok(child) if child.lives() => return Ok((child, self.taken(generation))),
                Ok(_killed_while_it_waited) => generation.lost(),
                Err(error) => {
                    // Another child is asked for, so that as many wait as before once there is room again.
                    generation.lost();
                    tracing::warn!(reason = %ErrorChain(&error), "a child could not be made");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    fn taken(&self, generation: Arc<Generation>) -> Refill {
        let refill = Arc::clone(&generation).taken();
        if generation.runs() >= self.settings.renew_runs {
            self.worn.notify_one();
        }
        refill
    }

    /// The generation in use, when its zygote lives and nobody is about to replace it.
    fn living(&self) -> Option<Arc<Generation>> {
        let current = self.current.try_lock().ok()?;
        current.as_ref().filter(|living| living.lives()).map(Arc::clone)
    }

    /// The generation in use, or another when its zygote is gone.
    async fn revived(self: Arc<Self>) -> Result<Arc<Generation>> {
        let mut current = self.current.lock().await;
        match &*current {
            Some(living) if living.lives() => Ok(Arc::clone(living)),
            Some(_) | None => {
                tracing::warn!("the zygote is gone, and another is started");
                let (started, _unusable) = self.zygote(self.settings.children()).await?;
                Ok(Arc::clone(current.insert(Arc::new(started))))
            }
        }
    }

    /// Ends the zygote in use and waits until it is reaped. Nothing runs any more.
    pub(super) async fn close(&self) {
        let current = self.current.lock().await.take();
        if let Some(current) = current.and_then(Arc::into_inner) {
            current.close().await;
        }
    }

    async fn zygote(&self, children: usize) -> Result<(Generation, Vec<Option<String>>)> {
        Generation::start(&self.tools, &self.settings, children, self.cgroups.clone()).await
    }

    /// The time at which the zygote in use is worn: now, after as many runs as it may have.
    async fn worn_at(&self) -> Instant {
        let current = self.current.lock().await;
        match &*current {
            Some(current) if current.runs() < self.settings.renew_runs => {
                current.since() + self.settings.renew_after
            }
            Some(_) => timer_now(),
            // It is closed, and no zygote may follow.
            None => timer_now() + self.settings.renew_after,
        }
    }

    /// Puts another zygote in the place of the one in use.
    async fn renew(&self) -> Result<()> {
        let (next, _unusable) = self.zygote(self.settings.children()).await?;
        next.warm_up(self.settings.children()).await?;
        let before = self.current.lock().await.replace(Arc::new(next));
        if let Some(before) = before {
            before.retire();
            tracing::debug!(runs = before.runs(), "the zygote was replaced");
        }
        Ok(())
    }

    /// A generation each of whose children has a zygote of its own, and with it an address layout.
    fn fresh(self: &Arc<Self>) -> Generation {
        let (fork, mut wanted) = mpsc::unbounded_channel();
        let (made, ready) = mpsc::unbounded_channel();
        for _ in 0..self.settings.children() {
            let _just_made = fork.send(());
        }
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (nursery, at_once) = (Arc::downgrade(self), Arc::new(Semaphore::new(at_once)));
        tokio::spawn(async move {
            while wanted.recv().await.is_some() {
                let turn = Arc::clone(&at_once).acquire_owned().await;
                let Some(nursery) = nursery.upgrade() else { return };
                let made = made.clone();
                tokio::spawn(async move {
                    let child = nursery.only_child().await;
                    drop((nursery, turn));
                    let _nobody_waits = made.send(child);
                });
            }
        });
        Generation::new(fork, ready)
    }

    /// The one child of a zygote, which ends with it.
    async fn only_child(&self) -> Made {
        let (zygote, _unusable) = self.zygote(1).await?;
        zygote.next().await.unwrap_or(Err(ChildError::ZygoteEnded))
    }
}

/// Replaces each worn zygote of a nursery, until that is gone.
async fn keep_renewing(nursery: Weak<Nursery>, worn: Arc<Notify>, mut closed: oneshot::Receiver<Infallible>) {
    while let Some(open) = nursery.upgrade() {
        let at = open.worn_at().await;
        if at > timer_now() {
            drop(open);
            tokio::select! {
                _ = &mut closed => return,
                () = worn.notified() => {}
                () = tokio::time::sleep_until(at) => {}
            }
        } else if let Err(error) = open.renew().await {
            drop(open);
            tracing::warn!(%error, "the zygote could not be replaced, and stays in use for now");
            tokio::time::sleep(ZYGOTE_RETRY_DELAY).await;
        }
    }
}

/// A tool as zygotes are given it.
fn load(tool: &Module<'_>) -> Result<Loaded> {
    let Code { module, component, componentised, contract } = tool.code;
    let message = ToZygote::load(tool.name, component, contract);
    let files = std::iter::once(module).chain(componentised).map(File::try_clone);
    Ok(Loaded { message, files: files.collect::<Result<_>>()? })
}
