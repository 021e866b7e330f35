//! The pool of zygotes: the current one and its replacement.
//!
//! ```text
//! shared layout:  zygote ── forks the children of many runs ── due: the next one is started, warmed up and replaces
//!                 it ──▶ the old one ends with its last child
//! fresh layout:   one zygote for each child; the two end together
//! ```
//! The children of one zygote have one address layout, which a guest can learn. A zygote is therefore due for
//! replacement after a number of runs or a time. No run waits for the replacement: the new zygote becomes current when
//! its first children are ready.

use super::cgroup::Cgroups;
use super::error::ChildError;
use super::reuse::ReuseLimits;
use super::tool_images::{ToolImage, ToolImages};
use super::user::RunAs;
use super::zygote_handle::{Child, ChildResult, Refill, TriedTools, ZygoteHandle};
use super::{Module, PreforkConfig};
use a2g_runtime::spawn;
use a2g_runtime::timer_now;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::ToolName;
use std::convert::Infallible;
use std::io::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// The delay before the next attempt to fork a child.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The delay before the next attempt to replace a zygote, which stays in use.
const ZYGOTE_RETRY_DELAY: Duration = Duration::from_secs(10);

pub(super) struct ZygotePool {
    tools: Arc<ToolImages>,
    settings: PreforkConfig,
    cgroups: Option<Arc<Cgroups>>,
    current: Mutex<Option<Arc<ZygoteHandle>>>,
    /// Notified when the current zygote has served `renew_runs` runs.
    replacement_due: Arc<Notify>,
    /// Closed when the pool is dropped, which ends the task that replaces zygotes.
    _open: oneshot::Sender<Infallible>,
}

impl ZygotePool {
    /// Starts a zygote with these tools. Returns those that it cannot run, with the reasons.
    pub(super) async fn start(
        modules: &[Module<'_>],
        settings: PreforkConfig,
        cgroups: Option<Arc<Cgroups>>,
    ) -> Result<(Arc<Self>, Vec<(ToolName, String)>)> {
        let tools = Arc::new(ToolImages::new(modules)?);
        let (open, closed) = oneshot::channel();
        let current = Mutex::default();
        let replacement_due = Arc::default();
        let pool = Arc::new(Self { tools, settings, cgroups, current, replacement_due, _open: open });
        let (zygote, unusable) = pool.start_zygote(TriedTools::All, settings.children()).await?;
        for (tool, _) in &unusable {
            pool.tools.forget(tool);
        }
        // The first zygote shows which tools can be loaded; with fresh layouts, that is its only use.
        let zygote = if settings.fresh_layout { pool.handle_with_zygote_per_child() } else { zygote };
        *pool.current.lock().await = Some(Arc::new(zygote));
        if !settings.fresh_layout {
            spawn::spawn_run_task(replace_due_zygotes(
                Arc::downgrade(&pool),
                Arc::clone(&pool.replacement_due),
                closed,
            ));
        }
        Ok((pool, unusable))
    }

    /// The tool with this name, in the form in which a child receives it.
    pub(super) fn image(&self, tool: &ToolName) -> Option<Arc<ToolImage>> {
        self.tools.get(tool)
    }

    /// The configured number of waiting children.
    pub(super) fn waiting(&self) -> usize {
        self.settings.waiting
    }

    /// The limits of a process that serves several runs.
    pub(super) fn reuse(&self) -> ReuseLimits {
        self.settings.reuse
    }

    /// The rule that selects the user of a run.
    pub(super) fn run_as(&self) -> RunAs {
        self.settings.run_as
    }

    /// Takes a child that is already waiting and alive, for a run of `tool`; `None` if there is none. Returns an error if
    /// the child could not be forked.
    pub(super) fn try_take_child(
        &self,
        tool: &ToolName,
    ) -> Option<std::result::Result<(Child, Refill), ChildError>> {
        let zygote = self.current_zygote()?;
        let result = zygote.try_take_child()?;
        let refill = self.count_run(zygote, tool);
        match result {
            Ok(child) if child.is_alive() => Some(Ok((child, refill))),
            Ok(_killed_while_it_waited) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Takes a waiting child, or the next one that is forked, for a run of `tool`.
    pub(super) async fn take_child(
        self: &Arc<Self>,
        tool: &ToolName,
    ) -> std::result::Result<(Child, Refill), ChildError> {
        loop {
            let zygote = match self.current_zygote() {
                Some(zygote) => zygote,
                // The zygote starts in a separate task, so that the cancellation of this run leaves no half-started
                // zygote.
                None => {
                    let zygote = spawn::spawn_run_task(Arc::clone(self).ensure_alive()).await;
                    zygote??
                }
            };
            let result = tokio::select! {
                biased;
                result = zygote.take_child() => result,
                // A retired zygote forks no more children, so the next one might never arrive.
                () = zygote.wait_retired() => continue,
            };
            match result.ok_or(ChildError::ZygoteEnded)? {
                Ok(child) if child.is_alive() => return Ok((child, self.count_run(zygote, tool))),
                Ok(_killed_while_it_waited) => zygote.request_child(),
                Err(error) => {
                    // The configured number of children is then waiting again as soon as resources allow.
                    zygote.request_child();
                    tracing::warn!(reason = %ErrorChain(&error), "fork failed");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    fn count_run(&self, zygote: Arc<ZygoteHandle>, tool: &ToolName) -> Refill {
        self.tools.note_run(tool);
        let refill = Arc::clone(&zygote).count_run();
        if zygote.runs() >= self.settings.renew_runs {
            self.replacement_due.notify_one();
        }
        refill
    }

    /// The current zygote, if it is alive and not being replaced.
    fn current_zygote(&self) -> Option<Arc<ZygoteHandle>> {
        // `ensure_alive` holds the lock while it replaces a dead zygote; `take_child` then waits for the lock there.
        let current = self.current.try_lock().ok()?;
        current.as_ref().filter(|zygote| zygote.is_alive()).map(Arc::clone)
    }

    /// The current zygote, or a new one if it is dead.
    async fn ensure_alive(self: Arc<Self>) -> Result<Arc<ZygoteHandle>> {
        let mut current = self.current.lock().await;
        match &*current {
            Some(zygote) if zygote.is_alive() => Ok(Arc::clone(zygote)),
            Some(_) | None => {
                tracing::warn!("no zygote is alive: a new one is started");
                let (zygote, _unusable) =
                    self.start_zygote(TriedTools::Kept, self.settings.children()).await?;
                Ok(Arc::clone(current.insert(Arc::new(zygote))))
            }
        }
    }

    /// Ends the current zygote and waits until it is reaped. Call this when no run is left.
    pub(super) async fn close(&self) {
        let current = self.current.lock().await.take();
        if let Some(current) = current.and_then(Arc::into_inner) {
            current.close().await;
        }
    }

    async fn start_zygote(
        &self,
        tried: TriedTools,
        children: usize,
    ) -> Result<(ZygoteHandle, Vec<(ToolName, String)>)> {
        ZygoteHandle::start(&self.tools, tried, &self.settings, children, self.cgroups.clone()).await
    }

    /// The time at which the current zygote is due for replacement: now, if it has served `renew_runs` runs.
    async fn replacement_due_at(&self) -> Instant {
        let current = self.current.lock().await;
        match &*current {
            Some(current) if current.runs() < self.settings.renew_runs => {
                current.started_at() + self.settings.renew_after
            }
            Some(_) => timer_now(),
            // The pool is closed, so no zygote needs a replacement.
            None => timer_now() + self.settings.renew_after,
        }
    }

    /// Replaces the current zygote.
    async fn replace_zygote(&self) -> Result<()> {
        let (next, _unusable) = self.start_zygote(TriedTools::Kept, self.settings.children()).await?;
        // The lock is not held meanwhile: runs take children of the old zygote until those of the new one are ready.
        next.warm_up(self.settings.children()).await?;
        let old = self.current.lock().await.replace(Arc::new(next));
        if let Some(old) = old {
            old.retire();
            tracing::debug!(runs = old.runs(), "the zygote was replaced");
        }
        Ok(())
    }

    /// A handle whose children each have their own zygote, and so their own address layout.
    fn handle_with_zygote_per_child(self: &Arc<Self>) -> ZygoteHandle {
        // A zygote may not start programs (its system calls are filtered), and a child that the server starts directly
        // would be killed (`PR_SET_PDEATHSIG`) when the server's thread that started it ends. One zygote per child
        // keeps confinement, reaping and killing the same, at the cost of starting a program that loads tools.
        let (fork, mut fork_requests) = mpsc::unbounded_channel();
        let (children, ready) = mpsc::unbounded_channel();
        for _ in 0..self.settings.children() {
            let _receiver_is_open = fork.send(());
        }
        let max_parallel = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pool = Arc::downgrade(self);
        let starts = Arc::new(Semaphore::new(max_parallel));
        spawn::spawn_run_task(async move {
            while fork_requests.recv().await.is_some() {
                let permit = Arc::clone(&starts).acquire_owned().await;
                let Some(pool) = pool.upgrade() else { return };
                let children = children.clone();
                spawn::spawn_run_task(async move {
                    let child = pool.start_single_child().await;
                    drop((pool, permit));
                    let _nobody_waits = children.send(child);
                });
            }
        });
        ZygoteHandle::new(fork, ready)
    }

    /// Starts a zygote and takes its only child; the two end together.
    async fn start_single_child(&self) -> ChildResult {
        let (zygote, _unusable) = self.start_zygote(TriedTools::Kept, 1).await?;
        zygote.take_child().await.unwrap_or(Err(ChildError::ZygoteEnded))
    }
}

/// Replaces each zygote that is due, until the pool is dropped.
async fn replace_due_zygotes(
    pool: Weak<ZygotePool>,
    replacement_due: Arc<Notify>,
    mut closed: oneshot::Receiver<Infallible>,
) {
    while let Some(pool) = pool.upgrade() {
        let due_at = pool.replacement_due_at().await;
        if due_at > timer_now() {
            // A wait must not keep the pool alive.
            drop(pool);
            tokio::select! {
                _ = &mut closed => return,
                () = replacement_due.notified() => {}
                () = tokio::time::sleep_until(due_at) => {}
            }
        } else if let Err(error) = pool.replace_zygote().await {
            drop(pool);
            tracing::warn!(%error, "replacing the zygote failed; it stays in use until the next attempt");
            tokio::time::sleep(ZYGOTE_RETRY_DELAY).await;
        }
    }
}
