//! The sets of file changes that are kept after their runs: those that wait for a decision, and those that are in force and
//! can be undone.
//!
//! ```text
//! staged run ─▶ Waiting ─ commit ─▶ InForce ─ undo, or its time is over ─▶ gone
//! atomic run ────────────────────────▲ │
//!                  Waiting ─ discard, or its time is over ─▶ gone
//! ```
//! With requests, a set is `Sending` from its commit until they are sent, which nothing on the disk says but their log.
//! Each set has the folder of its run, with the file `set.json`. No handle is open while nobody decides.

use super::changes::{RunChanges, read_receipt};
use super::held::HeldList;
use super::roots::RunRoots;
use super::{EffectsFolder, Fate, OpenedFolder, RunFolder, open_folder};
use crate::run::faults::busy_fault;
use crate::run::{AgentFilter, RunIdentity};
use a2g_types::clock::{from_micros, to_micros};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::FileEffects;
use a2g_types::outcome::{ChangeState, FileChanges, Receipt};
use a2g_types::tool::Digest;
use rustix::fs::{Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use time::OffsetDateTime;

/// The file that makes the folder of a run one of a set.
const SET: &str = "set.json";
/// Its name until it is complete.
const DRAFT: &str = "set.json.new";
/// The longest such file, in bytes.
const MAX_SET_BYTES: u64 = 4 << 10;
/// The version of its form.
const VERSION: u32 = 1;
/// The maximum number of waiting sets.
const MAX_WAITING: usize = 1_000;
/// The maximum number of waiting sets of one agent.
const MAX_WAITING_PER_AGENT: usize = MAX_WAITING / 4;
/// The room with which a run may begin to make a set, in bytes; an eighth of all room if that is less.
const MIN_ROOM: u64 = 1 << 20;
/// The maximum number of all sets.
const MAX_SETS: usize = 4_000;

/// A set of file changes, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeSetSummary {
    /// The intent of the run that made the changes.
    pub intent: IntentId,
    /// Its agent.
    pub agent: AgentDid,
    /// Its tool.
    pub tool: ToolName,
    /// The time at which its changes take effect.
    pub mode: FileEffects,
    /// The state of the changes.
    pub state: ChangeState,
    /// The number of changes.
    pub count: u64,
    /// The number of requests that a commit sends.
    pub requests: u64,
    /// The hash of all changes and requests: a decision names it.
    pub digest: Digest,
    /// The disk space that the set uses, in bytes.
    pub bytes: u64,
    /// The time at which this state began.
    pub since: OffsetDateTime,
    /// The time until which the set is kept in this state.
    pub until: OffsetDateTime,
}

/// The state of a set, as its file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeptState {
    Waiting,
    InForce,
}

impl KeptState {
    pub(super) fn state(self) -> ChangeState {
        match self {
            Self::Waiting => ChangeState::Waiting,
            Self::InForce => ChangeState::InForce,
        }
    }
}

/// The content of `set.json`. The receipt of the run has everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredSet {
    version: u32,
    pub(super) state: KeptState,
    /// Microseconds since 1970.
    since: i64,
    /// As `since`.
    until: i64,
    pub(super) bytes: u64,
}

/// The phase of the decisions on a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none now.
    Idle,
    /// One is being carried out.
    Deciding,
    /// One could be neither carried out nor taken back as a whole: an operator has to look at it.
    Stuck,
}

/// A set in memory.
pub(super) struct KeptSet {
    summary: ChangeSetSummary,
    /// The name of the run's folder.
    folder: String,
    /// The number of decisions so far.
    decisions: u32,
    phase: Phase,
    /// `true` once somebody has revoked or cancelled the run: it is not committed any more.
    is_withdrawn: bool,
}

impl EffectsFolder {
    /// The sets of the selected agents, newest first, without those that are left to an operator.
    pub(in crate::run) fn list(&self, filter: AgentFilter<'_>) -> Vec<ChangeSetSummary> {
        let sets = self.sets.lock();
        let is_selected = |set: &&KeptSet| set.phase != Phase::Stuck && filter(&set.summary.agent);
        let selected = sets.values().filter(is_selected);
        let mut summaries = selected.map(|set| set.summary.clone()).collect::<Vec<_>>();
        drop(sets);
        summaries.sort_by_key(|summary| std::cmp::Reverse((summary.since, summary.intent)));
        summaries
    }

    /// The number of the sets of the selected agents that wait for a decision.
    pub(in crate::run) fn waiting_count(&self, filter: AgentFilter<'_>) -> usize {
        let is_counted =
            |set: &&KeptSet| is_waiting(set) && set.phase != Phase::Stuck && filter(&set.summary.agent);
        self.sets.lock().values().filter(is_counted).count()
    }

    /// The receipt that is stored beside the changes of a run. Blocks.
    pub(in crate::run) fn read_receipt(&self, intent: IntentId) -> Option<Receipt> {
        read_receipt(&self.open_set(intent, |_set| true)?).ok().flatten()
    }

    /// The texts of the short bodies of requests that wait; `None` if none do, or they cannot be read.
    /// Blocks.
    pub(in crate::run) fn read_body_texts(&self, intent: IntentId) -> Option<Vec<Option<String>>> {
        let folder = self.open_set(intent, is_waiting)?;
        let read =
            HeldList::open(&folder.dir).and_then(|list| list.map(|list| list.read_body_texts()).transpose());
        read.unwrap_or_else(|error| {
            tracing::warn!(%intent, %error, "the bodies of requests that wait cannot be read");
            None
        })
    }

    /// Opens the folder of a set.
    fn open_set(&self, intent: IntentId, is_wanted: impl Fn(&KeptSet) -> bool) -> Option<RunFolder> {
        let name = self.sets.lock().get(&intent).filter(|set| is_wanted(set))?.folder.clone();
        let parent = self.open().ok()?;
        let dir = open_folder(&parent.dir, &name).ok()?;
        Some(RunFolder { parent, name, dir, fate: Fate::Kept })
    }

    /// One set.
    pub(in crate::run) fn summary(&self, intent: IntentId) -> Option<ChangeSetSummary> {
        self.sets.lock().get(&intent).map(|set| set.summary.clone())
    }

    /// The sets whose time is over.
    pub(in crate::run) fn due(&self, now: OffsetDateTime) -> Vec<ChangeSetSummary> {
        let is_due = |set: &&KeptSet| set.phase == Phase::Idle && set.summary.until <= now;
        self.sets.lock().values().filter(is_due).map(|set| set.summary.clone()).collect()
    }

    /// Takes a set for a decision.
    ///
    /// # Errors
    /// If there is no such set in this state, or somebody else decides on it now.
    pub(in crate::run) fn take(
        self: &Arc<Self>,
        intent: IntentId,
        state: ChangeState,
    ) -> Result<TakenSet, Fault> {
        let parent = self.open().map_err(|error| {
            Fault::Internal(format!("the folder of file changes cannot be opened: {error}"))
        })?;
        let mut sets = self.sets.lock();
        let is_found = |set: &&mut KeptSet| [state, ChangeState::Sending].contains(&set.summary.state);
        let Some(set) = sets.get_mut(&intent).filter(is_found) else {
            return Err(wrong_state_fault(intent, state));
        };
        match set.phase {
            Phase::Idle => set.phase = Phase::Deciding,
            Phase::Deciding => return Err(busy_fault("somebody else decides on these file changes now")),
            Phase::Stuck => {
                return Err(Fault::InvalidRequest(format!(
                    "the file changes of the intent `{intent}` are left to the executor's next start, and to its operator: a \
                     decision could be neither carried out nor taken back as a whole, or its record could not be stored \
                     (the executor's log has the reason; docs/operations.md#after-a-crash)"
                )));
            }
        }
        Ok(TakenSet {
            effects: Arc::clone(self),
            summary: set.summary.clone(),
            folder: set.folder.clone(),
            decisions: set.decisions,
            parent,
        })
    }

    /// Checks that another run may keep its changes apart. An agent has half of the room.
    pub(super) fn check_room(&self, agent: &AgentDid, mode: FileEffects) -> Result<(), Fault> {
        const ALL: &str = "the file changes that wait for a decision use nearly all of `effects.max_mb`: decide on some of \
                           them first (`a2g-executor effects list`)";
        const SHARE: &str = "the file changes of this agent that wait for a decision use nearly its half of `effects.max_mb`: \
                             decide on some of them first (`a2g-executor effects list`)";
        const MANY: &str = "too many sets of file changes wait for a decision: decide on some of them first (`a2g-executor \
                            effects list`)";
        let waiting = Waiting::of(&self.sets.lock(), agent);
        let min = (self.settings.max_bytes / 8).min(MIN_ROOM);
        if waiting.left(self.settings.max_bytes) < min {
            return Err(busy_fault(ALL));
        }
        if waiting.left_of_share(self.settings.max_bytes) < min {
            return Err(busy_fault(SHARE));
        }
        let has_many = waiting.all.sets >= MAX_WAITING || waiting.own.sets >= MAX_WAITING_PER_AGENT;
        if mode == FileEffects::Staged && has_many { Err(busy_fault(MANY)) } else { Ok(()) }
    }

    /// The space that is left for changes of an agent that wait, in bytes.
    pub(super) fn room(&self, agent: &AgentDid) -> u64 {
        Waiting::of(&self.sets.lock(), agent).room(self.settings.max_bytes)
    }

    /// Remembers changes that wait from now on, if there is room for them.
    ///
    /// # Errors
    /// The reason why there is none, as a clause.
    pub(super) fn remember_waiting(
        &self,
        run: &RunIdentity,
        changes: &FileChanges,
        folder: String,
        stored: StoredSet,
    ) -> Result<(), String> {
        // Compared in the same step: other runs may have ended since this one began.
        let mut sets = self.sets.lock();
        let room = Waiting::of(&sets, &run.agent).room(self.settings.max_bytes);
        if stored.bytes > room {
            return Err(format!(
                "they use {} KiB, and what waits for a decision leaves {} KiB of `effects.max_mb` to this agent: decide on some \
                 of that first (`a2g-executor effects list`), and run it again",
                stored.bytes.div_ceil(1 << 10),
                room >> 10
            ));
        }
        sets.insert(run.intent, KeptSet::new(run, FileEffects::Staged, changes, folder, stored, 0));
        Ok(())
    }

    /// Remembers a set of changes. `decisions` is the number of decisions on it so far.
    pub(super) fn remember(
        &self,
        run: &RunIdentity,
        mode: FileEffects,
        changes: &FileChanges,
        folder: String,
        stored: StoredSet,
        decisions: u32,
    ) {
        let set = KeptSet::new(run, mode, changes, folder, stored, decisions);
        self.sets.lock().insert(run.intent, set);
    }

    /// Forgets a set, whose folder is left as it is.
    pub(super) fn forget(&self, intent: IntentId) {
        self.sets.lock().remove(&intent);
    }

    /// Remembers that the changes of an earlier run are left to an operator.
    pub(super) fn block(&self, intent: IntentId) {
        self.blocked.lock().insert(intent);
    }

    /// `true` if the state of the changes of a run is not known, because an operator has to look at them.
    pub(in crate::run) fn is_blocked(&self, intent: IntentId) -> bool {
        let is_stuck = |set: &KeptSet| set.phase == Phase::Stuck;
        self.blocked.lock().contains(&intent) || self.sets.lock().get(&intent).is_some_and(is_stuck)
    }

    /// `true` if the requests of the set of one of the selected agents are being sent.
    pub(in crate::run) fn is_sending(&self, intent: IntentId, filter: AgentFilter<'_>) -> bool {
        let is_selected = |set: &KeptSet| set.is_sending() && filter(&set.summary.agent);
        self.sets.lock().get(&intent).is_some_and(is_selected)
    }

    /// As [`Self::withdraw_sets`], for one set.
    pub(in crate::run) fn withdraw_set(&self, intent: IntentId, filter: AgentFilter<'_>) {
        let mut sets = self.sets.lock();
        if let Some(set) = sets.get_mut(&intent).filter(|set| set.may_be_withdrawn(filter)) {
            set.is_withdrawn = true;
        }
    }

    /// Lets no decision in progress commit the selected waiting sets, or send more of their requests. Returns their
    /// intents.
    pub(in crate::run) fn withdraw_sets(&self, filter: AgentFilter<'_>) -> Vec<IntentId> {
        let mut sets = self.sets.lock();
        let open = sets.values_mut().filter(|set| set.may_be_withdrawn(filter));
        open.map(|set| {
            set.is_withdrawn = true;
            set.summary.intent
        })
        .collect()
    }

    /// `true` if a waiting set must not be committed, and no request of it may be sent.
    pub(in crate::run) fn is_withdrawn(&self, intent: IntentId) -> bool {
        self.sets.lock().get(&intent).is_none_or(|set| set.is_withdrawn)
    }

    /// The sets in force to forget, so that all sets together use no more than allowed: the oldest ones of the agent that
    /// uses most.
    pub(in crate::run) fn excess(&self) -> Vec<IntentId> {
        let sets = self.sets.lock();
        let mut all = Use::of(sets.values());
        let mut agents = HashMap::<&AgentDid, Use>::new();
        let mut in_force = Vec::new();
        for set in sets.values() {
            agents.entry(&set.summary.agent).or_default().add(set);
            if set.phase == Phase::Idle && !is_waiting(set) {
                in_force.push(set);
            }
        }
        in_force.sort_by_key(|set| set.summary.since);
        let mut forgotten = Vec::new();
        while all.bytes > self.settings.max_bytes || all.sets > MAX_SETS {
            let used = |set: &&KeptSet| agents.get(&set.summary.agent).copied().unwrap_or_default();
            let most = in_force.iter().map(used).max();
            let next = in_force.iter().position(|set| Some(used(set)) == most);
            let Some(set) = next.map(|index| in_force.remove(index)) else { break };
            all.subtract(set);
            if let Some(agent) = agents.get_mut(&set.summary.agent) {
                agent.subtract(set);
            }
            forgotten.push(set.summary.intent);
        }
        forgotten
    }
}

impl KeptSet {
    fn new(
        run: &RunIdentity,
        mode: FileEffects,
        changes: &FileChanges,
        folder: String,
        stored: StoredSet,
        decisions: u32,
    ) -> Self {
        let summary = ChangeSetSummary {
            intent: run.intent,
            agent: run.agent.clone(),
            tool: run.tool.clone(),
            mode,
            state: stored.state.state(),
            count: changes.count,
            requests: u64::try_from(changes.requests.len()).unwrap_or(u64::MAX),
            digest: changes.digest,
            bytes: stored.bytes,
            since: from_micros(stored.since),
            until: from_micros(stored.until),
        };
        Self { summary, folder, decisions, phase: Phase::Idle, is_withdrawn: false }
    }

    /// `true` while a commit sends the requests.
    fn is_sending(&self) -> bool {
        self.summary.state == ChangeState::Sending && self.phase == Phase::Deciding
    }

    /// `true` for a set of a selected agent that waits, or whose requests are being sent.
    fn may_be_withdrawn(&self, filter: AgentFilter<'_>) -> bool {
        (is_waiting(self) || self.is_sending()) && filter(&self.summary.agent)
    }
}

/// The room that waiting sets use: all of them, and those of one agent, which has half of the room.
struct Waiting {
    all: Use,
    own: Use,
}

impl Waiting {
    fn of(sets: &HashMap<IntentId, KeptSet>, agent: &AgentDid) -> Self {
        let waiting = sets.values().filter(|set| is_waiting(set));
        let own = Use::of(waiting.clone().filter(|set| set.summary.agent == *agent));
        Self { all: Use::of(waiting), own }
    }

    /// The bytes that are left of `max_bytes` for all agents.
    fn left(&self, max_bytes: u64) -> u64 {
        max_bytes.saturating_sub(self.all.bytes)
    }

    /// The bytes that are left of the agent's half of `max_bytes`.
    fn left_of_share(&self, max_bytes: u64) -> u64 {
        (max_bytes / 2).saturating_sub(self.own.bytes)
    }

    /// The bytes that the agent may use.
    fn room(&self, max_bytes: u64) -> u64 {
        self.left(max_bytes).min(self.left_of_share(max_bytes))
    }
}

/// The room that sets use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    bytes: u64,
    sets: usize,
}

impl Use {
    fn of<'a>(sets: impl Iterator<Item = &'a KeptSet>) -> Self {
        sets.fold(Self::default(), |mut all, set| {
            all.add(set);
            all
        })
    }

    fn add(&mut self, set: &KeptSet) {
        self.bytes = self.bytes.saturating_add(set.summary.bytes);
        self.sets = self.sets.saturating_add(1);
    }

    fn subtract(&mut self, set: &KeptSet) {
        self.bytes = self.bytes.saturating_sub(set.summary.bytes);
        self.sets = self.sets.saturating_sub(1);
    }
}

fn is_waiting(set: &KeptSet) -> bool {
    set.summary.state == ChangeState::Waiting
}

/// The fault for a decision on changes that are not in the state for it.
pub(in crate::run) fn wrong_state_fault(intent: IntentId, state: ChangeState) -> Fault {
    let what = match state {
        ChangeState::Waiting | ChangeState::Sending => "wait for a decision",
        ChangeState::InForce | ChangeState::Kept => "can be undone",
        ChangeState::Discarded | ChangeState::Undone => "are kept",
    };
    Fault::InvalidRequest(format!(
        "the intent `{intent}` has no file changes here that {what}: `a2g-executor effects list` shows those that do"
    ))
}

/// A set that is being decided on. Dropping it lets others decide.
pub(in crate::run) struct TakenSet {
    effects: Arc<EffectsFolder>,
    pub(in crate::run) summary: ChangeSetSummary,
    folder: String,
    decisions: u32,
    parent: Arc<OpenedFolder>,
}

impl TakenSet {
    /// The number of the decision, from 1.
    pub(in crate::run) fn next_decision(&self) -> u32 {
        self.decisions.saturating_add(1)
    }

    /// Notes that a decision has used its number.
    pub(in crate::run) fn count_decision(&mut self) {
        self.decisions = self.next_decision();
        if let Some(set) = self.effects.sets.lock().get_mut(&self.summary.intent) {
            set.decisions = self.decisions;
        }
    }

    /// Opens what a commit or an undo needs.
    ///
    /// # Ambient Authority
    /// Opens the folder of the run, and the host folders that it changed.
    ///
    /// # Errors
    /// The reason why that is not possible, as a clause.
    pub(in crate::run) fn open(&self) -> Result<RunChanges, String> {
        let io_error = |error: &dyn std::fmt::Display| format!("their folder cannot be opened ({error})");
        let parent = Arc::clone(&self.parent);
        let dir = open_folder(&parent.dir, &self.folder).map_err(|error| io_error(&error))?;
        let folder = RunFolder { parent, name: self.folder.clone(), dir, fate: Fate::Kept };
        let roots = RunRoots::reopen(&folder).map_err(|error| io_error(&error))?;
        let roots = roots.ok_or_else(|| io_error(&"it has no list of folders"))?;
        RunChanges::open(folder, roots).map_err(|error| io_error(&error))
    }

    /// Notes in memory that the changes are in force, and that their requests are being sent.
    pub(in crate::run) fn note_sending(&mut self) {
        self.summary.state = ChangeState::Sending;
        if let Some(set) = self.effects.sets.lock().get_mut(&self.summary.intent) {
            set.summary.state = ChangeState::Sending;
        }
    }

    /// Notes on the disk and in memory that the changes are in force, until `until`.
    ///
    /// # Errors
    /// If the file cannot be written. The next start finds the state.
    pub(in crate::run) fn set_in_force(
        &mut self,
        changes: &RunChanges,
        since: OffsetDateTime,
        until: OffsetDateTime,
    ) -> io::Result<()> {
        let stored = changes.mark(KeptState::InForce, since, until)?;
        self.summary.state = ChangeState::InForce;
        self.summary.since = since;
        self.summary.until = until;
        self.summary.bytes = stored.bytes;
        if let Some(set) = self.effects.sets.lock().get_mut(&self.summary.intent) {
            set.summary = self.summary.clone();
        }
        Ok(())
    }

    /// Leaves the set to the next start, and to an operator.
    pub(in crate::run) fn leave(self) {
        if let Some(set) = self.effects.sets.lock().get_mut(&self.summary.intent) {
            set.phase = Phase::Stuck;
        }
    }

    /// Forgets the set, and removes its folder.
    pub(in crate::run) fn remove(self) {
        self.effects.sets.lock().remove(&self.summary.intent);
        self.parent.remove(&self.folder);
    }
}

impl Drop for TakenSet {
    fn drop(&mut self) {
        if let Some(set) = self.effects.sets.lock().get_mut(&self.summary.intent) {
            set.phase = match set.phase {
                Phase::Stuck => Phase::Stuck,
                // They are in force, and no record says so yet.
                Phase::Idle | Phase::Deciding if set.summary.state == ChangeState::Sending => Phase::Stuck,
                Phase::Idle | Phase::Deciding => Phase::Idle,
            };
        }
    }
}

impl StoredSet {
    /// Reads the file in the folder of a run; `None` if there is none.
    pub(super) fn read(folder: &RunFolder) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&folder.dir, SET, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = Vec::new();
        file.take(MAX_SET_BYTES).read_to_end(&mut text)?;
        let stored: Self = serde_json::from_slice(&text)?;
        if stored.version != VERSION {
            return Err(io::Error::other(format!("another version of the executor wrote `{SET}`")));
        }
        Ok(Some(stored))
    }

    /// Writes the file. A power failure may lose it, after which the set gets a new time.
    pub(super) fn write(
        folder: &RunFolder,
        state: KeptState,
        since: OffsetDateTime,
        until: OffsetDateTime,
    ) -> io::Result<Self> {
        let stored = Self {
            version: VERSION,
            state,
            since: to_micros(since),
            until: to_micros(until),
            bytes: measure(&folder.path())?,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut draft = File::from(openat(&folder.dir, DRAFT, flags, Mode::RUSR | Mode::WUSR)?);
        draft.write_all(&serde_json::to_vec(&stored)?)?;
        renameat(&folder.dir, DRAFT, &folder.dir, SET)?;
        Ok(stored)
    }
}

/// The disk space of a folder and everything in it, in bytes.
fn measure(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // A process that was taken over can nest folders as deep as it likes.
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
