//! The sets of file changes that are kept after their runs: those that wait for a decision, and those that are in force and
//! can be undone.
//!
//! ```text
//! staged run ─▶ Waiting ─ commit ─▶ InForce ─ undo, or its time is over ─▶ gone
//! atomic run ────────────────────────▲ │
//!                  Waiting ─ discard, or its time is over ─▶ gone
//! ```
//! Each set has the folder of its run, with the file `set.json`. No handle is open while nobody decides.

use super::changes::RunChanges;
use super::roots::RunRoots;
use super::{EffectsFolder, Fate, OpenedFolder, RunFolder, open_folder};
use crate::run::AgentFilter;
use crate::run::faults::busy_fault;
use a2g_types::clock::{from_micros, to_micros};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::FileEffects;
use a2g_types::outcome::{ChangeState, Receipt};
use a2g_types::tool::Digest;
use rustix::fs::{Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
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
    /// The hash of all changes: a decision names it.
    pub digest: Digest,
    /// The disk space that the set uses, in bytes.
    pub bytes: u64,
    /// The time at which this state began.
    pub since: OffsetDateTime,
    /// The time until which the set is kept in this state.
    pub until: OffsetDateTime,
}

/// What becomes of the changes of the set in the future, as the file says.
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
    bytes: u64,
}

/// A decision that somebody makes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Deciding,
}

/// A set in memory.
pub(super) struct KeptSet {
    summary: ChangeSetSummary,
    /// The name of the run's folder.
    folder: String,
    /// The number of decisions so far.
    decisions: u32,
    phase: Phase,
}

impl EffectsFolder {
    /// The sets of the selected agents, newest first.
    pub(in crate::run) fn list(&self, filter: AgentFilter<'_>) -> Vec<ChangeSetSummary> {
        let sets = self.sets.lock();
        let selected = sets.values().filter(|set| filter(&set.summary.agent));
        let mut summaries = selected.map(|set| set.summary.clone()).collect::<Vec<_>>();
        drop(sets);
        summaries.sort_by_key(|summary| std::cmp::Reverse((summary.since, summary.intent)));
        summaries
    }

    /// The number of the sets of the selected agents that wait for a decision.
    pub(in crate::run) fn waiting_count(&self, filter: AgentFilter<'_>) -> usize {
        let is_counted = |set: &&KeptSet| is_waiting(set) && filter(&set.summary.agent);
        self.sets.lock().values().filter(is_counted).count()
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
        let found = sets.get_mut(&intent).filter(|set| set.summary.state == state);
        let Some(set) = found else { return Err(wrong_state_fault(intent, state)) };
        match set.phase {
            Phase::Idle => set.phase = Phase::Deciding,
            Phase::Deciding => return Err(busy_fault("somebody else decides on these file changes now")),
        }
        Ok(TakenSet {
            effects: Arc::clone(self),
            summary: set.summary.clone(),
            folder: set.folder.clone(),
            decisions: set.decisions,
            parent,
        })
    }

    /// Checks that another run may keep its changes apart.
    pub(super) fn check_room(&self, agent: &AgentDid, mode: FileEffects) -> Result<(), Fault> {
        let sets = self.sets.lock();
        let waiting = sets.values().filter(|set| is_waiting(set));
        let bytes = waiting.clone().map(|set| set.summary.bytes).fold(0_u64, u64::saturating_add);
        if bytes >= self.settings.max_bytes {
            return Err(busy_fault(
                "the file changes that wait for a decision use all of `effects.max_mb`: decide on some of them first \
                 (`a2g-executor effects list`)",
            ));
        }
        if mode != FileEffects::Staged {
            return Ok(());
        }
        let of_agent = waiting.clone().filter(|set| set.summary.agent == *agent).count();
        if waiting.count() >= MAX_WAITING || of_agent >= MAX_WAITING_PER_AGENT {
            return Err(busy_fault(
                "too many sets of file changes wait for a decision: decide on some of them first (`a2g-executor effects list`)",
            ));
        }
        Ok(())
    }

    /// Remembers a set. `decisions` is the number of decisions on it so far.
    pub(super) fn remember(&self, receipt: &Receipt, folder: String, stored: StoredSet, decisions: u32) {
        let Some(changes) = &receipt.outcome.usage.changes else { return };
        let summary = ChangeSetSummary {
            intent: receipt.intent,
            agent: receipt.agent.clone(),
            tool: receipt.tool.clone(),
            mode: receipt.outcome.usage.effects.value,
            state: stored.state.state(),
            count: changes.count,
            digest: changes.digest,
            bytes: stored.bytes,
            since: from_micros(stored.since),
            until: from_micros(stored.until),
        };
        let set = KeptSet { summary, folder, decisions, phase: Phase::Idle };
        self.sets.lock().insert(receipt.intent, set);
    }

    /// The sets in force to forget, so that all sets together use no more than allowed: the oldest ones.
    pub(in crate::run) fn excess(&self) -> Vec<IntentId> {
        let sets = self.sets.lock();
        let mut bytes = sets.values().map(|set| set.summary.bytes).fold(0_u64, u64::saturating_add);
        let is_in_force = |set: &&KeptSet| set.phase == Phase::Idle && !is_waiting(set);
        let mut in_force = sets.values().filter(is_in_force).collect::<Vec<_>>();
        in_force.sort_by_key(|set| set.summary.since);
        let mut forgotten = Vec::new();
        for set in in_force {
            if bytes <= self.settings.max_bytes {
                break;
            }
            bytes = bytes.saturating_sub(set.summary.bytes);
            forgotten.push(set.summary.intent);
        }
        forgotten
    }
}

fn is_waiting(set: &KeptSet) -> bool {
    set.summary.state == ChangeState::Waiting
}

/// The fault for a decision on changes that are not in the state for it.
pub(in crate::run) fn wrong_state_fault(intent: IntentId, state: ChangeState) -> Fault {
    let what = match state {
        ChangeState::Waiting => "wait for a decision",
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

    /// Forgets the set, and removes its folder.
    pub(in crate::run) fn remove(self) {
        self.effects.sets.lock().remove(&self.summary.intent);
        self.parent.remove(&self.folder);
    }
}

impl Drop for TakenSet {
    fn drop(&mut self) {
        if let Some(set) = self.effects.sets.lock().get_mut(&self.summary.intent) {
            set.phase = Phase::Idle;
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
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
        if metadata.is_dir() {
            bytes = bytes.saturating_add(measure(&entry.path())?);
        }
    }
    Ok(bytes)
}
