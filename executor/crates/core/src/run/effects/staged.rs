//! The changes of one run, from its start to its receipt: kept apart, then in force, waiting, or taken back.

use super::changes::{ApplyError, RunChanges, list_changes, write_list};
use super::program::{CallTurn, GrantedRoots, Member, read_table};
use super::roots::RunRoots;
use super::sets::{KeptState, StoredSet};
use super::{EffectsFolder, Fate, RunFolder, shown};
use crate::run::ExecutorSettings;
use crate::run::faults::busy_fault;
use a2g_capability::Permit;
use a2g_overlay::{Effects, Table, Upper};
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
    files: RunFiles,
    /// The handles for the run.
    guests: Option<a2g_capability::Upper>,
    mode: FileEffects,
    /// The owner of the run's message, who waits for a turn on the threads for long work.
    owner: Box<str>,
}

/// The files of a run whose changes are kept apart.
enum RunFiles {
    /// It makes no calls, and no other run makes it.
    Alone { folder: RunFolder, upper: Upper, roots: RunRoots },
    /// It may make calls, which share its files.
    Program { folder: RunFolder, member: Arc<Member> },
    /// It is a call of such a run.
    Call { turn: CallTurn, member: Arc<Member> },
}

/// Whose files a run has.
pub(in crate::run) enum Sharing {
    /// Its own.
    None,
    /// Those of the run that makes it.
    WithCaller(Arc<Member>),
}

/// The changes of a run that has succeeded.
pub(in crate::run) struct Settled {
    /// `None` if the run that made this call has them now.
    pub(in crate::run) changes: Option<FileChanges>,
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
    /// Makes the folders of a run whose changes take effect together; `None` for any other run. A call that shares the files
    /// of its caller waits until no other one has them.
    pub(in crate::run) async fn stage(
        self: &Arc<Self>,
        call: &Call,
        permit: &Permit,
        sharing: Sharing,
        settings: &Arc<ExecutorSettings>,
    ) -> Result<Option<StagedChanges>, Fault> {
        let mode = permit.grant().effects().value;
        let caller = match (mode.is_direct(), sharing) {
            (true, Sharing::None) => return Ok(None),
            (true, Sharing::WithCaller(_)) => {
                return Err(Fault::Internal(
                    "a call would change the files of its program at once".to_owned(),
                ));
            }
            (false, Sharing::None) => {
                self.check_room(&call.agent, mode)?;
                None
            }
            (false, Sharing::WithCaller(caller)) => Some(caller),
        };
        let owner = Box::<str>::from(call.charge.owner().unwrap_or(call.agent.as_str()));
        let granted = GrantedRoots::of(permit);
        let intent = call.intent;
        let made = match caller {
            Some(caller) => {
                let turn = caller.wait_for_turn().await;
                run_aside(&owner, async move { join(turn, granted) }).await
            }
            None if permit.grant().calls().allows_any() => {
                let effects = Arc::clone(self);
                let settings = Arc::clone(settings);
                run_aside(&owner, async move { effects.begin_program(intent, granted, &settings) }).await
            }
            None => match RunRoots::of(permit) {
                Ok(roots) => {
                    let effects = Arc::clone(self);
                    run_aside(&owner, async move { effects.begin_alone(intent, roots) }).await
                }
                Err(error) => Err(error.to_string()),
            },
        };
        match made {
            Ok((files, guests)) => {
                let effects = Arc::clone(self);
                Ok(Some(StagedChanges { effects, files, guests: Some(guests), mode, owner }))
            }
            Err(reason) => {
                tracing::error!(%intent, reason, "the folders for the file changes of a run cannot be made");
                Err(busy_fault(NO_FOLDER))
            }
        }
    }

    fn begin_alone(
        &self,
        intent: IntentId,
        roots: RunRoots,
    ) -> Result<(RunFiles, a2g_capability::Upper), String> {
        let made = || {
            let (folder, upper) = self.make(intent)?;
            let guests = a2g_capability::Upper::new(upper.try_clone()?);
            Ok((RunFiles::Alone { folder, upper: Upper::new(upper), roots }, guests))
        };
        made().map_err(|error: io::Error| error.to_string())
    }

    fn begin_program(
        &self,
        intent: IntentId,
        granted: GrantedRoots,
        settings: &ExecutorSettings,
    ) -> Result<(RunFiles, a2g_capability::Upper), String> {
        let made = || {
            let (folder, upper) = self.make(intent)?;
            let guests = a2g_capability::Upper::new(upper.try_clone()?);
            let dir = folder.dir.try_clone()?;
            let member = Member::begin(dir, upper, granted, &settings.mounts, &settings.ceilings)?;
            let guests = guests.with_member(member.to_permit()?);
            Ok((RunFiles::Program { folder, member: Arc::new(member) }, guests))
        };
        made().map_err(|error: io::Error| error.to_string())
    }
}

/// Makes the folders of a call that shares the files of its caller.
fn join(turn: CallTurn, granted: GrantedRoots) -> Result<(RunFiles, a2g_capability::Upper), String> {
    let member = turn.begin(granted)?;
    let made = || {
        let upper = a2g_capability::Upper::new(member.upper()?);
        Ok(upper.with_member(member.to_permit()?))
    };
    let guests = made().map_err(|error: io::Error| error.to_string())?;
    Ok((RunFiles::Call { turn, member: Arc::new(member) }, guests))
}

impl StagedChanges {
    /// The folder for the run's permit.
    pub(in crate::run) fn take_upper(&mut self) -> Option<a2g_capability::Upper> {
        self.guests.take()
    }

    /// The run's part in a program; `None` if it shares its files with no other run.
    pub(in crate::run) fn member(&self) -> Option<Arc<Member>> {
        match &self.files {
            RunFiles::Alone { .. } => None,
            RunFiles::Program { member, .. } | RunFiles::Call { member, .. } => Some(Arc::clone(member)),
        }
    }

    /// Lets all changes take effect, or none; those of a call go to the run that makes it, and those of a staged run wait for a decision from now on.
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
        let Self { effects, files, guests: _, mode, owner } = self;
        let (mut folder, upper, roots, list) = match files {
            RunFiles::Alone { folder, upper, roots } => {
                let bytes = read_table(upper.dir()).map_err(unreadable)?;
                let bytes = bytes.ok_or_else(|| unreadable(io::ErrorKind::NotFound.into()))?;
                let table =
                    Table::from_bytes(&bytes, roots.lower().len()).map_err(|error| error.to_string())?;
                drop(bytes);
                let list = list_changes(&table, &upper, &roots)?;
                if let Err(path) = roots.check_granted(&list) {
                    let shown = roots.describe_path(path);
                    return Err(format!(
                        "the run was not granted {shown}, which they change: check the tool"
                    ));
                }
                (folder, upper, roots, list)
            }
            // What each of its runs may change was checked at its end.
            RunFiles::Program { folder, member } => {
                let table = member.finish()?;
                let upper = member.contents().map_err(unreadable)?;
                let roots = RunRoots::of_areas(member.areas()).map_err(unreadable)?;
                let list = list_changes(&table, &upper, &roots)?;
                (folder, upper, roots, list)
            }
            RunFiles::Call { turn, member } => {
                turn.hand_over(&member)?;
                return Ok(Settled { changes: None, kept: None });
            }
        };
        let count = u64::try_from(list.changes.len()).unwrap_or(u64::MAX);
        let digest = Digest(*list.digest().as_bytes());
        let decisions = Some(IntentId::random());
        let mut changes = FileChanges { count, digest, shown: Vec::new(), decisions };
        if list.is_empty() {
            return Ok(Settled { changes: Some(changes), kept: None });
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
        Ok(Settled { changes: Some(changes), kept: Some(kept) })
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

fn unreadable(error: io::Error) -> String {
    format!("their table cannot be read ({error}): run it again")
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
