//! The changes of one run, from its start to its receipt: kept apart, then in force, waiting, or taken back. Until they
//! take effect, whoever stops the run finds it, although its guest has ended.

use super::changes::{ApplyError, RunChanges, list_changes, write_list};
use super::held::{HeldList, HeldStore};
use super::program::{CallTurn, GrantedRoots, Member, StageError, read_table};
use super::roots::RunRoots;
use super::sets::{KeptState, StoredSet};
use super::withdrawal::Withdrawal;
use super::{EffectsFolder, Fate, RunFolder, shown};
use crate::run::faults::busy_fault;
use crate::run::{ExecutorSettings, RunIdentity};
use a2g_capability::Permit;
use a2g_overlay::{Effects, Upper};
use a2g_runtime::aside::run_aside;
use a2g_sandbox::egress::HeldRequests;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::limit::FileEffects;
use a2g_types::memory::CountedBytes;
use a2g_types::outcome::{AbortReason, FileChanges, Receipt, Status};
use a2g_types::tool::Digest;
use rustix::fs::{fsync, syncfs};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// The answer to a call whose folder cannot be made now.
const NO_FOLDER: &str = "the executor cannot keep the file changes of this call apart (its log has the reason): send the \
                         call again later";

/// The changes of a run that has not ended. Dropping it discards them.
pub(in crate::run) struct StagedChanges {
    effects: Arc<EffectsFolder>,
    files: RunFiles,
    /// The requests that the run leaves for its commit; `None` if it may leave none.
    held: Option<Arc<HeldStore>>,
    /// The handles for the run.
    guests: Option<a2g_capability::Upper>,
    run: RunIdentity,
    mode: FileEffects,
    withdrawal: Withdrawal,
    /// The owner of the run's message, who waits for a turn on the threads for long work.
    owner: Box<str>,
}

/// The files of a run whose changes are kept apart.
enum RunFiles {
    /// No other run makes it.
    Own(OwnFiles),
    /// It is a call of a run, whose files it shares.
    Call { turn: CallTurn, member: Arc<Member> },
}

/// The files of a run that no other run makes.
enum OwnFiles {
    /// It makes no calls.
    Alone { folder: RunFolder, upper: Upper, roots: RunRoots },
    /// It may make calls, which share its files.
    Program { folder: RunFolder, member: Arc<Member> },
}

/// The state of the changes of a run that has succeeded.
pub(in crate::run) enum Settled {
    /// The run that made this call has them now.
    HandedOver,
    /// The run has changed nothing, and left nothing.
    Unchanged(FileChanges),
    /// They are in force, or wait.
    Kept(FileChanges, Box<Kept>),
}

/// The reason why the changes of a successful run have not taken effect as a whole.
pub(in crate::run) enum SettleError {
    /// Somebody has stopped the run meanwhile.
    Withdrawn(AbortReason),
    /// None could. The reason is a clause.
    NotCommitted(String),
    /// Some may be in force. The reason is a clause.
    LeftToOperator(String),
}

impl From<String> for SettleError {
    fn from(reason: String) -> Self {
        Self::NotCommitted(reason)
    }
}

/// The listed changes of a run.
struct Listed {
    folder: RunFolder,
    upper: Upper,
    roots: RunRoots,
    list: Effects,
    /// `None` if the run has left none.
    requests: Option<HeldList>,
    /// The memory of the list.
    _memory: CountedBytes,
}

impl EffectsFolder {
    /// Makes the folders of a run whose changes are kept apart; `None` for any other run. A call that shares the files of
    /// its caller waits until no other one has them.
    ///
    /// # Errors
    /// [`Fault::Refused`] if the changes of such a run can never be kept apart; [`Fault::Busy`] if there is no room for
    /// them now, or their folders cannot be made.
    pub(in crate::run) async fn stage(
        self: &Arc<Self>,
        call: &Call,
        permit: &Permit,
        shared_files: Option<CallTurn>,
        settings: &Arc<ExecutorSettings>,
    ) -> Result<Option<StagedChanges>, Fault> {
        let mode = permit.grant().effects().value;
        match (mode.is_direct(), &shared_files) {
            (true, None) => return Ok(None),
            (true, Some(_)) => {
                return Err(Fault::Internal(
                    "a call would change the files of its program at once".to_owned(),
                ));
            }
            (false, None) => self.check_room(&call.agent, mode)?,
            (false, Some(_)) => {}
        }
        let owner = Box::<str>::from(call.charge.owner().unwrap_or(call.agent.as_str()));
        let granted = GrantedRoots::of(permit);
        let may_hold = mode == FileEffects::Staged
            && permit.grant().network().value
            && permit.grant().network_budgets().held_requests > 0;
        let intent = call.intent;
        let made = match shared_files {
            Some(turn) => run_aside(&owner, async move { join(turn, granted) }).await,
            None if permit.grant().calls().allows_any() => {
                let effects = Arc::clone(self);
                let settings = Arc::clone(settings);
                let program_owner = owner.clone();
                let begin = async move { effects.begin_program(intent, granted, &settings, &program_owner) };
                run_aside(&owner, begin).await
            }
            None => match RunRoots::of(permit) {
                Ok(roots) => {
                    let effects = Arc::clone(self);
                    run_aside(&owner, async move { effects.begin_alone(intent, roots) }).await
                }
                Err(error) => Err(error.into()),
            },
        };
        let with_requests = made.and_then(|(files, guests)| {
            let held = if may_hold { files.hold_requests(self.max_staged(&call.agent))? } else { None };
            Ok((files, guests, held))
        });
        match with_requests {
            Ok((files, guests, held)) => {
                let Call { intent, agent, tool, .. } = call;
                let run = RunIdentity { intent: *intent, agent: agent.clone(), tool: tool.clone() };
                let withdrawal = self.watch(&run);
                let effects = Arc::clone(self);
                let guests = Some(guests);
                Ok(Some(StagedChanges { effects, files, held, guests, run, mode, withdrawal, owner }))
            }
            Err(error) => Err(stage_fault(intent, error)),
        }
    }

    /// The number of bytes that a staged run of an agent may write to files, and leave in requests.
    fn max_staged(&self, agent: &AgentDid) -> u64 {
        self.room(agent).max(MIN_WRITTEN_BYTES)
    }

    fn begin_alone(
        &self,
        intent: IntentId,
        roots: RunRoots,
    ) -> Result<(RunFiles, a2g_capability::Upper), StageError> {
        let (folder, upper) = self.make(intent)?;
        let guests = a2g_capability::Upper::new(upper.try_clone()?);
        Ok((RunFiles::Own(OwnFiles::Alone { folder, upper: Upper::new(upper), roots }), guests))
    }

    fn begin_program(
        &self,
        intent: IntentId,
        granted: GrantedRoots,
        settings: &ExecutorSettings,
        owner: &str,
    ) -> Result<(RunFiles, a2g_capability::Upper), StageError> {
        let (folder, upper) = self.make(intent)?;
        let dir = folder.dir.try_clone()?;
        let member = Member::begin(dir, upper, granted, &settings.mounts, &settings.ceilings, owner)?;
        let guests = a2g_capability::Upper::new(member.upper()?).with_member(member.to_permit()?);
        Ok((RunFiles::Own(OwnFiles::Program { folder, member: Arc::new(member) }), guests))
    }
}

/// The answer to a call whose file changes cannot be kept apart, or not now.
fn stage_fault(intent: IntentId, error: StageError) -> Fault {
    match error {
        StageError::Refused(message) => refuse(intent, message),
        StageError::Broken(reason) => refuse(
            intent,
            format!("the file changes of the run that makes this call cannot be read: {reason}"),
        ),
        StageError::NoRoom(reason) => busy_fault(reason),
        StageError::Failed(reason) => {
            tracing::error!(%intent, reason, "the folders for the file changes of a run cannot be made");
            busy_fault(NO_FOLDER)
        }
    }
}

/// The refusal of a run whose file changes can never be kept apart.
fn refuse(intent: IntentId, message: String) -> Fault {
    tracing::warn!(%intent, reason = message, "the file changes of a run cannot be kept apart");
    let blocked_by = BlockedBy::ScopeUnenforceable;
    Fault::Refused { intent: Some(intent), risk_score: None, blocked_by, message }
}

/// Makes the folders of a call that shares the files of its caller.
fn join(turn: CallTurn, granted: GrantedRoots) -> Result<(RunFiles, a2g_capability::Upper), StageError> {
    let member = turn.begin(granted)?;
    let guests = a2g_capability::Upper::new(member.upper()?).with_member(member.to_permit()?);
    Ok((RunFiles::Call { turn, member: Arc::new(member) }, guests))
}

/// The smallest limit that a report can name. The room is compared again, to the byte, at the end of a run.
const MIN_WRITTEN_BYTES: u64 = 1 << 20;

impl StagedChanges {
    /// The folder for the run's permit.
    pub(in crate::run) fn take_upper(&mut self) -> Option<a2g_capability::Upper> {
        self.guests.take()
    }

    /// The number of bytes that the run may write, because its changes will wait beside those that wait already; `None` if
    /// they will not wait.
    pub(in crate::run) fn max_written(&self) -> Option<u64> {
        match self.mode {
            FileEffects::Staged => Some(self.effects.max_staged(&self.run.agent)),
            FileEffects::Direct | FileEffects::Atomic => None,
        }
    }

    /// The run's part in a program; `None` if it shares its files with no other run.
    pub(in crate::run) fn member(&self) -> Option<Arc<Member>> {
        match &self.files {
            RunFiles::Own(OwnFiles::Alone { .. }) => None,
            RunFiles::Own(OwnFiles::Program { member, .. }) | RunFiles::Call { member, .. } => {
                Some(Arc::clone(member))
            }
        }
    }

    /// Notes that the guest has ended, and is no longer among the active runs: from now on, whoever stops the run finds it
    /// here.
    pub(in crate::run) fn note_end(&self) {
        self.withdrawal.note_end();
    }

    /// Discards the changes of a run that has not succeeded.
    ///
    /// # Errors
    /// The reason for which somebody has stopped the run meanwhile.
    pub(in crate::run) fn discard(self) -> Result<(), AbortReason> {
        self.withdrawal.close()
    }

    /// The place of the requests that the run leaves for its commit; `None` if it may leave none.
    pub(in crate::run) fn held_requests(&self) -> Option<Arc<dyn HeldRequests>> {
        let held = self.held.clone()?;
        Some(held)
    }

    /// Lets all changes take effect, or none; those of a call go to the run that makes it, and those of a staged run wait
    /// for a decision from now on.
    ///
    /// # Errors
    /// The reason why none did.
    pub(in crate::run) async fn settle(self, clock: &Arc<dyn Clock>) -> Result<Settled, SettleError> {
        let Self { effects, files, held, guests: _, run, mode, withdrawal, owner } = self;
        let own = match files {
            RunFiles::Own(own) => own,
            RunFiles::Call { turn, member } => {
                // A stop from here on comes too late: its caller gets the changes.
                withdrawal.close().map_err(SettleError::Withdrawn)?;
                run_aside(&owner, async move { turn.hand_over(&member) }).await?;
                return Ok(Settled::HandedOver);
            }
        };
        let list_owner = owner.clone();
        let listed = run_aside(&owner, async move { own.list(held.as_deref(), &list_owner) }).await?;
        let count = u64::try_from(listed.list.changes.len()).unwrap_or(u64::MAX);
        let files_digest = Digest(*listed.list.digest().as_bytes());
        let changes = FileChanges {
            count,
            digest: listed.requests.as_ref().map_or(files_digest, |requests| requests.bind(&files_digest)),
            counts: None,
            shown: Vec::new(),
            requests: listed.requests.as_ref().map(HeldList::to_shown).unwrap_or_default(),
            decisions: Some(IntentId::random()),
        };
        if changes.is_empty() {
            return Ok(Settled::Unchanged(changes));
        }
        let settling = Settling { effects: Arc::clone(&effects), listed, run, mode, withdrawal, changes };
        let clock = Arc::clone(clock);
        match mode {
            FileEffects::Staged => run_aside(&owner, async move { settling.wait(&*clock) }).await,
            FileEffects::Direct | FileEffects::Atomic => {
                effects.change_originals(move || settling.commit(&*clock)).await
            }
        }
    }
}

impl RunFiles {
    /// Makes the place of requests that wait, in the folder of the run, with `room` bytes. A call that shares the files of
    /// its caller has no network.
    fn hold_requests(&self, room: u64) -> io::Result<Option<Arc<HeldStore>>> {
        match self {
            Self::Own(OwnFiles::Alone { folder, .. } | OwnFiles::Program { folder, .. }) => {
                Ok(Some(Arc::new(HeldStore::new(&folder.dir, room)?)))
            }
            Self::Call { .. } => Ok(None),
        }
    }
}

impl OwnFiles {
    /// Lists the changes, and the requests that the run has left at `held`.
    fn list(self, held: Option<&HeldStore>, owner: &str) -> Result<Listed, String> {
        let list_requests = || match held {
            Some(held) => held.finish().map_err(|error| no_space(&error)),
            None => Ok(None),
        };
        match self {
            Self::Alone { folder, upper, roots } => {
                let read = read_table(upper.dir(), roots.lower().len(), owner, 0);
                let found = read.map_err(|refused| refused.to_string())?;
                let table = found.ok_or_else(|| unreadable(io::ErrorKind::NotFound.into()))?;
                let list = list_changes(&table, &upper, &roots)?;
                if let Err(path) = roots.check_granted(&list) {
                    let shown = roots.describe_path(path);
                    return Err(format!(
                        "the run was not granted {shown}, which they change: check the tool"
                    ));
                }
                let memory = table.count_list(owner);
                Ok(Listed { folder, upper, roots, list, requests: list_requests()?, _memory: memory })
            }
            // The changes of each of its runs were compared with the grant at its end.
            Self::Program { folder, member } => {
                let table = member.finish()?;
                let upper = member.contents().map_err(unreadable)?;
                let roots = RunRoots::of_areas(member.areas()).map_err(unreadable)?;
                let list = list_changes(&table, &upper, &roots)?;
                let memory = table.count_list(owner);
                Ok(Listed { folder, upper, roots, list, requests: list_requests()?, _memory: memory })
            }
        }
    }
}

/// Listed changes that take effect now, or wait.
struct Settling {
    effects: Arc<EffectsFolder>,
    listed: Listed,
    run: RunIdentity,
    mode: FileEffects,
    withdrawal: Withdrawal,
    changes: FileChanges,
}

impl Settling {
    /// Lets the changes wait for a decision.
    fn wait(self, clock: &dyn Clock) -> Result<Settled, SettleError> {
        let Self { effects, listed, run, mode, withdrawal, mut changes } = self;
        let Listed { folder, upper, roots, list, requests, _memory } = listed;
        changes.counts = Some(shown::count(&list));
        changes.shown = shown::list(&list, &roots, &upper, clock)?;
        write_list(&folder, &list).map_err(|error| no_space(&error))?;
        let now = clock.now();
        let until = now + effects.settings.decide_within;
        let stored =
            StoredSet::write(&folder, KeptState::Waiting, now, until).map_err(|error| no_space(&error))?;
        // The receipt names all of them, so they have to outlast a power failure as it does. One sync of the file system takes
        // less time than one of each file.
        let store = roots.prepare_commit(&folder, |_roots| Ok(syncfs(&folder.dir)?));
        let store = store.map_err(|error| no_space(&error))?;
        let run_changes = RunChanges { folder, upper, store, roots, requests: requests.map(Arc::new) };
        effects.remember_waiting(&run, &changes, run_changes.folder.name.clone(), stored)?;
        let kept = Kept::new(effects, run_changes, &run, mode, Some(stored));
        // A stop of the run from here on finds the set.
        withdrawal.close().map_err(SettleError::Withdrawn)?;
        Ok(Settled::Kept(changes, Box::new(kept)))
    }

    /// Lets the changes take effect.
    fn commit(self, clock: &dyn Clock) -> Result<Settled, SettleError> {
        let Self { effects, listed, run, mode, withdrawal, changes } = self;
        // Only a staged run leaves requests.
        let Listed { mut folder, upper, roots, list, requests: _, _memory } = listed;
        let sync = |stored: &File| {
            stored.sync_all()?;
            Ok(fsync(&folder.parent.dir)?)
        };
        let store = roots.prepare_commit(&folder, sync).map_err(|error| no_space(&error))?;
        // A stop from here on comes too late.
        withdrawal.close().map_err(SettleError::Withdrawn)?;
        // From here on, the log in the folder is what ends the commit, should this process not do it.
        folder.fate = Fate::Kept;
        let mut run_changes = RunChanges { folder, upper, store, roots, requests: None };
        if let Err(error) = run_changes.apply(&list) {
            return Err(match error {
                ApplyError::Unchanged(reason) => {
                    run_changes.set_fate(Fate::Removed);
                    SettleError::NotCommitted(format!("{reason}: run it again"))
                }
                ApplyError::LeftToOperator(reason) => SettleError::LeftToOperator(reason),
            });
        }
        let keep = effects.settings.keep;
        let now = clock.now();
        // Without the file, they cannot be undone, and nothing else is wrong.
        let marked = (!keep.is_zero()).then(|| run_changes.mark(KeptState::InForce, now, now + keep).ok());
        let stored = marked.flatten();
        if let Some(set) = stored {
            effects.remember(&run, mode, &changes, run_changes.folder.name.clone(), set, 0);
        }
        let kept = Kept::new(effects, run_changes, &run, mode, stored);
        Ok(Settled::Kept(changes, Box::new(kept)))
    }
}

fn unreadable(error: io::Error) -> String {
    format!("their table cannot be read ({error}): run it again")
}

fn no_space(error: &io::Error) -> String {
    format!("they could not be prepared ({error}): see that `effects.folder` has space")
}

/// The changes of a successful run, until its receipt is on the disk. Others find them already. Dropping those that wait
/// discards them; what becomes of those in force is left to the next start.
pub(in crate::run) struct Kept {
    effects: Arc<EffectsFolder>,
    /// `None` once it is finished or taken back.
    run: Option<RunChanges>,
    intent: IntentId,
    mode: FileEffects,
    /// `None` if they cannot be undone after the receipt.
    stored: Option<StoredSet>,
}

impl Kept {
    fn new(
        effects: Arc<EffectsFolder>,
        run: RunChanges,
        identity: &RunIdentity,
        mode: FileEffects,
        stored: Option<StoredSet>,
    ) -> Self {
        Self { effects, run: Some(run), intent: identity.intent, mode, stored }
    }

    /// The status of the run whose changes are kept so.
    pub(in crate::run) fn status(&self) -> Status {
        match self.mode {
            FileEffects::Staged => Status::Staged,
            FileEffects::Direct | FileEffects::Atomic => Status::Success,
        }
    }

    /// Takes the changes back, because the run is reported with another end.
    pub(in crate::run) async fn take_back(mut self) {
        let Some(mut run) = self.run.take() else { return };
        self.effects.forget(self.intent);
        match self.mode {
            FileEffects::Staged => return,
            FileEffects::Direct | FileEffects::Atomic => {}
        }
        let effects = Arc::clone(&self.effects);
        effects
            .change_originals(move || match run.undo() {
                Ok(()) => run.set_fate(Fate::Removed),
                Err(error) => {
                    let folder = run.folder.path();
                    let reason = error.into_reason();
                    tracing::error!(folder = %folder.display(), reason, "the file changes of a run that is reported as aborted are in force: the next start tries again to take them back");
                }
            })
            .await;
    }

    /// Lets the changes stay as they are: the receipt that says so is on the disk.
    pub(in crate::run) async fn finish(mut self, receipt: &Arc<Receipt>) {
        let Some(mut run) = self.run.take() else { return };
        if self.stored.is_none() {
            return run.set_fate(Fate::Removed);
        }
        run.set_fate(Fate::Kept);
        let stored_receipt = Arc::clone(receipt);
        // Waited for, because a journal in memory has forgotten it: a decision that follows at once would not
        // find it.
        drop(tokio::task::spawn_blocking(move || run.write_receipt(&stored_receipt)).await);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.run.is_some() {
            self.effects.forget(self.intent);
        }
    }
}
