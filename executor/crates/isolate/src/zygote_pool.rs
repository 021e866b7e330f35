//! The pool of zygotes: the current one and its replacement.
//!
//! ```text
//! shared layout:  zygote ── forks the children of many runs ── worn: the next one is started, warmed up and replaces
//!                 it ──▶ the old one ends with its last child
//! fresh layout:   one zygote for each child; the two end together
//! ```
//! The children of one zygote have one address layout, which a guest can learn. A zygote is therefore worn, that is,
//! due for replacement, after some runs or some time. No run waits for the replacement: it becomes current when its
//! first children are ready.

use super::cgroup::Cgroups;
use super::channel::ToZygote;
use super::error::ChildError;
use super::user::RunAs;
use super::zygote_handle::{Child, ChildResult, Refill, ToolImage, ZygoteHandle};
use super::{Module, PreforkConfig};
use a2g_runtime::spawn;
use a2g_runtime::timer_now;
use a2g_sandbox::Code;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::ToolName;
use std::convert::Infallible;
use std::fs::File;
use std::io::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// The pause before the next attempt to fork a child.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The pause before the next attempt to replace a worn zygote, which stays in use.
const ZYGOTE_RETRY_DELAY: Duration = Duration::from_secs(10);

pub(super) struct ZygotePool {
    tools: Vec<ToolImage>,
    settings: PreforkConfig,
    cgroups: Option<Arc<Cgroups>>,
    current: Mutex<Option<Arc<ZygoteHandle>>>,
    /// Notified when the current zygote has reached its number of runs.
    worn: Arc<Notify>,
    /// Closed when the pool is dropped, which ends the task that replaces zygotes.
    _open: oneshot::Sender<Infallible>,
}

impl ZygotePool {
    /// Starts a zygote with `tools`. Returns the reason for each tool that it cannot run.
    pub(super) async fn start(
        tools: &[Module<'_>],
        settings: PreforkConfig,
        cgroups: Option<Arc<Cgroups>>,
    ) -> Result<(Arc<Self>, Vec<(ToolName, String)>)> {
        let loaded = tools.iter().map(tool_image).collect::<Result<Vec<_>>>()?;
        let (open, closed) = oneshot::channel();
        let (current, worn) = (Mutex::default(), Arc::default());
        let pool = Arc::new(Self { tools: loaded, settings, cgroups, current, worn, _open: open });
        let (zygote, unusable) = pool.start_zygote(settings.children()).await?;
        // The first zygote has tried to load every tool; with fresh layouts it has no other use.
        let zygote = if settings.fresh_layout { pool.handle_with_zygote_per_child() } else { zygote };
        *pool.current.lock().await = Some(Arc::new(zygote));
        if !settings.fresh_layout {
            spawn::spawn_run_task(replace_worn_zygotes(
                Arc::downgrade(&pool),
                Arc::clone(&pool.worn),
                closed,
            ));
        }
        let unusable = tools.iter().zip(unusable);
        let unusable = unusable.filter_map(|(tool, reason)| Some((tool.name.clone(), reason?))).collect();
        Ok((pool, unusable))
    }

    /// The configured number of waiting children.
    pub(super) fn waiting(&self) -> usize {
        self.settings.waiting
    }

    /// The user under which runs execute.
    pub(super) fn run_as(&self) -> RunAs {
        self.settings.run_as
    }

    /// A living child that waits already, if any; or the reason why it could not be forked.
    pub(super) fn try_child(&self) -> Option<std::result::Result<(Child, Refill), ChildError>> {
        let zygote = self.current_zygote()?;
        let made = zygote.try_next()?;
        let refill = self.count_run(zygote);
        match made {
            Ok(child) if child.is_alive() => Some(Ok((child, refill))),
            Ok(_killed_while_it_waited) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// A waiting child, or the next one to be forked.
    pub(super) async fn child(self: &Arc<Self>) -> std::result::Result<(Child, Refill), ChildError> {
        loop {
            let zygote = match self.current_zygote() {
                Some(zygote) => zygote,
                // A task of its own: a run that is cancelled in between must not leave a half-started zygote.
                None => {
                    let started = spawn::spawn_run_task(Arc::clone(self).revive()).await;
                    started??
                }
            };
            let made = tokio::select! {
                biased;
                made = zygote.next() => made,
                // A retired zygote forks no more, so its next child might never arrive.
                () = zygote.wait_retired() => continue,
            };
            match made.ok_or(ChildError::ZygoteEnded)? {
                Ok(child) if child.is_alive() => return Ok((child, self.count_run(zygote))),
                Ok(_killed_while_it_waited) => zygote.request_replacement(),
                Err(error) => {
                    // Requests a replacement, so that the configured number waits once resources allow it.
                    zygote.request_replacement();
                    tracing::warn!(reason = %ErrorChain(&error), "fork failed");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    fn count_run(&self, zygote: Arc<ZygoteHandle>) -> Refill {
        let refill = Arc::clone(&zygote).count_run();
        if zygote.runs() >= self.settings.renew_runs {
            self.worn.notify_one();
        }
        refill
    }

    /// The current zygote, if it is alive and not being replaced.
    fn current_zygote(&self) -> Option<Arc<ZygoteHandle>> {
        // A held lock means a replacement: the caller goes on to `revive`, which waits for it.
        let current = self.current.try_lock().ok()?;
        current.as_ref().filter(|living| living.is_alive()).map(Arc::clone)
    }

    /// The current zygote, or a new one if it is dead.
    async fn revive(self: Arc<Self>) -> Result<Arc<ZygoteHandle>> {
        let mut current = self.current.lock().await;
        match &*current {
            Some(living) if living.is_alive() => Ok(Arc::clone(living)),
            Some(_) | None => {
                tracing::warn!("the zygote has died and is replaced");
                let (started, _unusable) = self.start_zygote(self.settings.children()).await?;
                Ok(Arc::clone(current.insert(Arc::new(started))))
            }
        }
    }

    /// Ends the current zygote and waits until it is reaped. To be called when no run is left.
    pub(super) async fn close(&self) {
        let current = self.current.lock().await.take();
        if let Some(current) = current.and_then(Arc::into_inner) {
            current.close().await;
        }
    }

    async fn start_zygote(&self, children: usize) -> Result<(ZygoteHandle, Vec<Option<String>>)> {
        ZygoteHandle::start(&self.tools, &self.settings, children, self.cgroups.clone()).await
    }

    /// The time at which the current zygote is due for replacement: now, if it has reached its number of runs.
    async fn worn_at(&self) -> Instant {
        let current = self.current.lock().await;
        match &*current {
            Some(current) if current.runs() < self.settings.renew_runs => {
                current.started_at() + self.settings.renew_after
            }
            Some(_) => timer_now(),
            // The pool is closed, and no zygote may follow.
            None => timer_now() + self.settings.renew_after,
        }
    }

    /// Replaces the current zygote.
    async fn replace_zygote(&self) -> Result<()> {
        let (next, _unusable) = self.start_zygote(self.settings.children()).await?;
        // Without the lock: runs take children of the old zygote until the new one's are ready.
        next.warm_up(self.settings.children()).await?;
        let before = self.current.lock().await.replace(Arc::new(next));
        if let Some(before) = before {
            before.retire();
            tracing::debug!(runs = before.runs(), "the zygote was replaced");
        }
        Ok(())
    }

    /// A source whose children each have a zygote of their own, and with it an address layout of their own.
    fn handle_with_zygote_per_child(self: &Arc<Self>) -> ZygoteHandle {
        // A zygote may not start programs (its system calls are filtered), and a child that the server starts itself
        // would get its death signal with the thread that started it. A zygote per child keeps confinement, reaping and
        // killing the same, for the price of starting a program that loads the catalogue.
        let (fork, mut wanted) = mpsc::unbounded_channel();
        let (made, ready) = mpsc::unbounded_channel();
        for _ in 0..self.settings.children() {
            let _just_made = fork.send(());
        }
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (pool, at_once) = (Arc::downgrade(self), Arc::new(Semaphore::new(at_once)));
        spawn::spawn_run_task(async move {
            while wanted.recv().await.is_some() {
                let turn = Arc::clone(&at_once).acquire_owned().await;
                let Some(pool) = pool.upgrade() else { return };
                let made = made.clone();
                spawn::spawn_run_task(async move {
                    let child = pool.start_single_child().await;
                    drop((pool, turn));
                    let _nobody_waits = made.send(child);
                });
            }
        });
        ZygoteHandle::new(fork, ready)
    }

    /// The only child of a new zygote; the two end together.
    async fn start_single_child(&self) -> ChildResult {
        let (zygote, _unusable) = self.start_zygote(1).await?;
        zygote.next().await.unwrap_or(Err(ChildError::ZygoteEnded))
    }
}

/// Replaces each worn zygote until the pool is dropped.
async fn replace_worn_zygotes(
    pool: Weak<ZygotePool>,
    worn: Arc<Notify>,
    mut closed: oneshot::Receiver<Infallible>,
) {
    while let Some(open) = pool.upgrade() {
        let at = open.worn_at().await;
        if at > timer_now() {
            // A wait must not keep the pool alive.
            drop(open);
            tokio::select! {
                _ = &mut closed => return,
                () = worn.notified() => {}
                () = tokio::time::sleep_until(at) => {}
            }
        } else if let Err(error) = open.replace_zygote().await {
            drop(open);
            tracing::warn!(%error, "replacing the zygote failed; it stays in use until the next attempt");
            tokio::time::sleep(ZYGOTE_RETRY_DELAY).await;
        }
    }
}

/// The message and the files by which a zygote receives a tool.
fn tool_image(tool: &Module<'_>) -> Result<ToolImage> {
    let Code { module, component, componentised, contract } = tool.code;
    let message = ToZygote::load(tool.name, component, contract);
    let files = std::iter::once(module).chain(componentised).map(File::try_clone);
    Ok(ToolImage { message, files: files.collect::<Result<_>>()? })
}
