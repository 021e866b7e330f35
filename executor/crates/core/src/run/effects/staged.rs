//! The changes of one run, from its start to its receipt: kept apart, then in force, waiting, or taken back.

use super::changes::{ApplyError, RunChanges, list_changes, write_list};
use super::roots::RunRoots;
use super::sets::{KeptState, StoredSet};
use super::{EffectsFolder, Fate, RunFolder, shown};
use crate::run::faults::busy_fault;
use a2g_capability::Permit;
use a2g_overlay::{Effects, Upper};
use a2g_runtime::aside::run_aside;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::limit::FileEffects;
use a2g_types::outcome::{FileChanges, Receipt};
use a2g_types::tool::Digest;
use rustix::fs::syncfs;
use std::io;
use std::sync::Arc;
use time::OffsetDateTime;

/// The refusal of a call whose folder cannot be made.
const NO_FOLDER: &str = "the executor cannot keep the file changes of this call apart (its log has the reason): send the \
                         call again later";

/// The changes of a run that has not ended. Dropping it discards them.
pub(in crate::run) struct StagedChanges {
    effects: Arc<EffectsFolder>,
    folder: RunFolder,
    upper: Upper,
    /// Another handle of it, for the run.
    guests: Option<a2g_capability::Upper>,
    roots: RunRoots,
    mode: FileEffects,
    /// The owner of the run's message, who waits for a turn on the threads for long work.
    owner: Box<str>,
}

/// The changes of a run that has succeeded.
pub(in crate::run) struct Settled {
    pub(in crate::run) changes: FileChanges,
    /// `None` if the run has changed nothing.
    pub(in crate::run) kept: Option<Kept>,
}

/// The changes of a successful run, until its receipt is on the disk.
pub(in crate::run) enum Kept {
    /// They are in force.
    InForce(AppliedChanges),
    /// They wait for a decision.
    Waiting(WaitingChanges),
}

impl EffectsFolder {
    /// Makes the folder of a run whose changes take effect together; `None` for any other run.
    pub(in crate::run) async fn stage(
        self: &Arc<Self>,
        call: &Call,
        permit: &Permit,
    ) -> Result<Option<StagedChanges>, Fault> {
        let mode = permit.grant().effects().value;
        if mode.is_direct() {
            return Ok(None);
        }
        self.check_room(&call.agent, mode)?;
        let owner = Box::<str>::from(call.charge.owner().unwrap_or(call.agent.as_str()));
        let effects = Arc::clone(self);
        let intent = call.intent;
        let made = run_aside(&owner, async move {
            let (folder, upper) = effects.make(intent)?;
            let guests = upper.try_clone()?;
            Ok::<_, io::Error>((folder, upper, guests))
        });
        let staged = match (RunRoots::of(permit), made.await) {
            (Ok(roots), Ok((folder, upper, guests))) => Ok(StagedChanges {
                effects: Arc::clone(self),
                folder,
                upper: Upper::new(upper),
                guests: Some(a2g_capability::Upper::new(guests)),
                roots,
                mode,
                owner,
            }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        staged.map(Some).map_err(|error| {
            tracing::error!(%intent, %error, "the folder for the file changes of a run cannot be made");
            busy_fault(NO_FOLDER)
        })
    }
}

impl StagedChanges {
    /// The folder for the run's permit.
    pub(in crate::run) fn take_upper(&mut self) -> Option<a2g_capability::Upper> {
        self.guests.take()
    }

    /// Lets all changes take effect, or none; those of a staged run wait for a decision from now on.
    ///
    /// # Errors
    /// The reason why none did, as a clause.
    pub(in crate::run) async fn settle(self, clock: &Arc<dyn Clock>) -> Result<Settled, String> {
        let effects = Arc::clone(&self.effects);
        let owner = self.owner.clone();
        let clock = Arc::clone(clock);
        effects.in_turn(&owner, move || self.settle_now(&*clock)).await
    }

    fn settle_now(self, clock: &dyn Clock) -> Result<Settled, String> {
        let Self { effects, mut folder, upper, guests: _, roots, mode, owner } = self;
        let list = list_changes(&upper, &roots)?;
        if let Err(path) = roots.check_granted(&list) {
            let shown = roots.describe_path(path);
            return Err(format!("the run was not granted {shown}, which they change: check the tool"));
        }
        let count = u64::try_from(list.changes.len()).unwrap_or(u64::MAX);
        let digest = Digest(*list.digest().as_bytes());
        let decisions = Some(IntentId::random());
        let mut changes = FileChanges { count, digest, shown: Vec::new(), decisions };
        if list.is_empty() {
            return Ok(Settled { changes, kept: None });
        }
        let waits = match mode {
            FileEffects::Staged => true,
            FileEffects::Direct | FileEffects::Atomic => false,
        };
        if waits {
            changes.shown = shown::list(&list, &roots, &upper, clock)?;
            write_list(&folder, &list).map_err(|error| no_space(&error))?;
        }
        let store = roots.prepare_commit(&folder).map_err(|error| no_space(&error))?;
        if !waits {
            // From here on, the log in the folder is what ends the commit, should this process not do it.
            folder.fate = Fate::Kept;
        }
        let run = RunChanges { folder, upper, store, roots };
        let kept = if waits {
            Kept::Waiting(WaitingChanges::new(effects, run, clock.now()).map_err(|error| no_space(&error))?)
        } else {
            Kept::InForce(AppliedChanges::commit(effects, run, owner, &list, clock.now())?)
        };
        Ok(Settled { changes, kept: Some(kept) })
    }
}

impl Kept {
    /// Lets others find the changes, whose run has this receipt. It is about to be written.
    pub(in crate::run) fn remember(&mut self, receipt: &Receipt) {
        match self {
            Self::InForce(AppliedChanges { effects, run, stored, owner: _ }) => {
                if let Some(stored) = stored {
                    effects.remember(receipt, run.folder.name.clone(), *stored, 0);
                }
            }
            Self::Waiting(WaitingChanges { effects, run, stored }) => {
                run.set_fate(Fate::Kept);
                effects.remember(receipt, run.folder.name.clone(), *stored, 0);
            }
        }
    }

    /// Lets the changes stay as they are: the receipt that says so is on the disk.
    pub(in crate::run) fn finish(self) {
        match self {
            Self::InForce(AppliedChanges { mut run, stored: None, .. }) => run.set_fate(Fate::Removed),
            Self::InForce(_) | Self::Waiting(_) => {}
        }
    }
}

fn no_space(error: &io::Error) -> String {
    format!("they could not be prepared ({error}): see that `effects.folder` has space")
}

/// The changes of a run that are in force, and are kept until its receipt is on the disk. Dropping it leaves what to do
/// to the next start.
pub(in crate::run) struct AppliedChanges {
    effects: Arc<EffectsFolder>,
    run: RunChanges,
    /// `None` if they cannot be undone after the receipt.
    stored: Option<StoredSet>,
    owner: Box<str>,
}

impl AppliedChanges {
    fn commit(
        effects: Arc<EffectsFolder>,
        mut run: RunChanges,
        owner: Box<str>,
        list: &Effects,
        now: OffsetDateTime,
    ) -> Result<Self, String> {
        if let Err(error) = run.apply(list) {
            match &error {
                ApplyError::Unchanged(_) => run.set_fate(Fate::Removed),
                ApplyError::Unsettled(_) => {}
            }
            return Err(error.into_reason());
        }
        let keep = effects.settings.keep;
        // Without the file, they cannot be undone, and nothing else is wrong.
        let stored = (!keep.is_zero()).then(|| run.mark(KeptState::InForce, now, now + keep).ok()).flatten();
        Ok(Self { effects, run, stored, owner })
    }

    /// Takes the changes back, because the run is reported with another end.
    pub(in crate::run) async fn take_back(self) {
        let effects = Arc::clone(&self.effects);
        let owner = self.owner.clone();
        effects.in_turn(&owner, move || self.take_back_now()).await;
    }

    fn take_back_now(self) {
        let mut run = self.run;
        match run.undo() {
            Ok(()) => run.set_fate(Fate::Removed),
            Err(reason) => {
                let folder = run.folder.path();
                tracing::error!(folder = %folder.display(), reason, "the file changes of a run that is reported as aborted are in force: the next start tries again to take them back");
            }
        }
    }
}

/// The changes of a staged run that wait for a decision once its receipt is on the disk. Dropping it before they are
/// remembered discards them.
pub(in crate::run) struct WaitingChanges {
    effects: Arc<EffectsFolder>,
    run: RunChanges,
    stored: StoredSet,
}

impl WaitingChanges {
    fn new(effects: Arc<EffectsFolder>, run: RunChanges, now: OffsetDateTime) -> io::Result<Self> {
        let stored = run.mark(KeptState::Waiting, now, now + effects.settings.decide_within)?;
        // What the receipt says to be there is there after a power failure, too.
        syncfs(run.upper.dir())?;
        Ok(Self { effects, run, stored })
    }
}
