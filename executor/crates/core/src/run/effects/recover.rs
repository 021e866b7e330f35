//! The folders that an earlier process has left: each is brought to what the receipt of its run says.

use super::changes::{ApplyError, RunChanges, read_receipt, settle};
use super::held::RequestEnd;
use super::roots::RunRoots;
use super::sets::{KeptState, StoredSet};
use super::{
    DONE, EffectsFolder, EffectsLocation, EffectsSettings, Fate, OpenedFolder, RunFolder, open_folder,
};
use crate::run::RunIdentity;
use a2g_journal::{IfFull, IntentClaims, JournalError, Stage};
use a2g_overlay::Recovered;
use a2g_types::ident::IntentId;
use a2g_types::outcome::{Receipt, Status, Usage};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

/// The state of the changes of a run, as the journal tells it.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    /// They are in force, unless they were undone since.
    InForce(Arc<Receipt>),
    /// They wait for a decision, unless there was one since.
    Waiting(Arc<Receipt>),
    /// They are not in force.
    NotInForce,
    /// Nothing that could be relied on. The receipt in the folder says what was told.
    Unknown,
}

/// Changes of an earlier process's run that may be kept.
pub(in crate::run) struct LeftSet {
    /// The receipt of the run.
    pub(in crate::run) receipt: Arc<Receipt>,
    /// The state in which the changes are now.
    pub(in crate::run) found: Recovered,
    run: RunChanges,
    stored: Option<StoredSet>,
}

impl LeftSet {
    /// Lets the changes wait for a decision, or be undone if they are in force, for as long as they had when they were
    /// left, after so many decisions.
    pub(in crate::run) fn keep(self, effects: &EffectsFolder, decisions: u32, now: OffsetDateTime) {
        let Self { receipt, found, mut run, stored } = self;
        let EffectsSettings { decide_within, keep, max_bytes: _ } = effects.settings;
        let listed = receipt.outcome.usage.changes.as_ref();
        let has_files = listed.is_some_and(|changes| changes.count > 0);
        let state = match found {
            Recovered::Committed => KeptState::InForce,
            Recovered::Unchanged => KeptState::Waiting,
        };
        let time = match state {
            KeptState::InForce if has_files => keep,
            // Requests alone cannot be undone.
            KeptState::InForce => Duration::ZERO,
            KeptState::Waiting => decide_within,
        };
        let stored = match stored.filter(|stored| stored.state == state) {
            Some(stored) => Ok(stored),
            None if time.is_zero() => return run.set_fate(Fate::Removed),
            None => run.mark(state, now, now + time),
        };
        match stored {
            Ok(stored) => {
                let Receipt { intent, agent, tool, .. } = &*receipt;
                let identity = RunIdentity { intent: *intent, agent: agent.clone(), tool: tool.clone() };
                let Usage { effects: mode, changes, .. } = &receipt.outcome.usage;
                if let Some(changes) = changes {
                    let name = run.folder.name.clone();
                    effects.remember(&identity, mode.value, changes, name, stored, decisions);
                }
            }
            Err(error) => {
                let folder = run.folder.path();
                tracing::error!(folder = %folder.display(), %error, "the file changes of an earlier run cannot be kept: the next start tries again");
            }
        }
    }

    /// `true` if the changes were in force when the set was last marked.
    pub(in crate::run) fn was_in_force(&self) -> bool {
        self.stored.is_some_and(|stored| stored.state == KeptState::InForce)
    }

    /// The end of each request that a commit sends.
    pub(in crate::run) fn read_request_ends(&self) -> Vec<RequestEnd> {
        self.run.read_request_ends()
    }

    /// Removes the folder.
    pub(in crate::run) fn remove(mut self) {
        self.run.set_fate(Fate::Removed);
    }

    /// Leaves the folder to an operator.
    pub(in crate::run) fn leave(self, effects: &EffectsFolder, reason: &str) {
        effects.block(self.receipt.intent);
        leave(&self.run.folder.path(), reason);
    }
}

fn leave(path: &Path, reason: &str) {
    tracing::error!(folder = %path.display(), reason, "the file changes of an earlier run need an operator (docs/operations.md#after-a-crash)");
}

impl Told {
    fn of(stage: Option<&Stage>) -> Self {
        match stage {
            Some(Stage::Finished(receipt)) => match receipt.outcome.end.status() {
                Status::Success => Self::InForce(Arc::clone(receipt)),
                Status::Staged => Self::Waiting(Arc::clone(receipt)),
                Status::Failure | Status::Timeout | Status::Aborted => Self::NotInForce,
            },
            // No run that has begun is without a record.
            None | Some(Stage::Released) => Self::NotInForce,
            // The receipt of the recovery is not on the disk yet, or has been removed from it.
            Some(Stage::Queued | Stage::Running | Stage::Ended | Stage::Pruned) => Self::Unknown,
        }
    }
}

impl EffectsFolder {
    /// Ends the commits that earlier processes left unfinished, once the journal has the receipts of their runs, and
    /// removes their folders. Returns the sets that may be kept.
    ///
    /// # Ambient Authority
    /// Opens the folder of the configuration, and the host folders that earlier runs changed.
    ///
    /// # Errors
    /// If the folder cannot be read or another process uses it.
    pub(in crate::run) async fn recover(self: &Arc<Self>, claims: &IntentClaims) -> io::Result<Vec<LeftSet>> {
        let effects = Arc::clone(self);
        let left = spawn_blocking(move || effects.list_left()).await.map_err(io::Error::other)??;
        let Some((parent, names)) = left else { return Ok(Vec::new()) };
        let mut sets = Vec::new();
        for name in names {
            let folder = Arc::clone(&parent);
            if name.starts_with(DONE) {
                spawn_blocking(move || folder.remove(&name)).await.map_err(io::Error::other)?;
                continue;
            }
            let Some(intent) = parse_intent(&name) else {
                tracing::warn!(
                    entry = name,
                    "an entry of `effects.folder` is not of this program, and is left alone"
                );
                continue;
            };
            let told = find_told(claims, intent).await.unwrap_or_else(|error| {
                tracing::warn!(%intent, %error, "the journal does not say how this run ended");
                Told::Unknown
            });
            let path = parent.path.join(&name);
            let brought = spawn_blocking(move || bring_to(folder, name, told)).await;
            match brought.map_err(io::Error::other)? {
                Ok(set) => sets.extend(set),
                Err(reason) => {
                    leave(&path, &reason);
                    self.block(intent);
                }
            }
        }
        Ok(sets)
    }

    /// The opened folder and the names in it; `None` if there is none.
    fn list_left(&self) -> io::Result<Option<(Arc<OpenedFolder>, Vec<String>)>> {
        match &self.location {
            EffectsLocation::Folder(path) if path.exists() => {}
            EffectsLocation::Folder(_) | EffectsLocation::Temporary => return Ok(None),
        }
        let parent = self.open()?;
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&parent.path)? {
            // This program gives only names that are text.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(Some((parent, names)))
    }
}

/// The intent of a run's folder; `None` for any other name.
fn parse_intent(name: &str) -> Option<IntentId> {
    let (intent, _number) = name.rsplit_once('-')?;
    IntentId::parse(intent).ok()
}

async fn find_told(claims: &IntentClaims, intent: IntentId) -> Result<Told, JournalError> {
    let stage = claims.stage(intent, IfFull::Wait).await?;
    Ok(Told::of(stage.as_ref().map(|(_agent, stage)| stage)))
}

/// Brings the folders of a run to what was told of them, and removes its own unless the changes may be kept.
///
/// # Errors
/// The reason why only an operator can.
fn bring_to(parent: Arc<OpenedFolder>, name: String, told: Told) -> Result<Option<LeftSet>, String> {
    let dir = open_folder(&parent.dir, &name).map_err(|error| error.to_string())?;
    let mut folder = RunFolder { parent, name, dir, fate: Fate::Kept };
    let Some(roots) = RunRoots::reopen(&folder).map_err(|error| error.to_string())? else {
        // No commit began, and nothing was listed, whatever the run was.
        folder.fate = Fate::Removed;
        return Ok(None);
    };
    let told_in_folder = read_receipt(&folder).unwrap_or_else(|error| {
        tracing::warn!(folder = folder.name, %error, "the receipt beside these file changes cannot be read");
        None
    });
    let told = match (told, told_in_folder) {
        // The journal has pruned it.
        (Told::Unknown, Some(receipt)) => Told::of(Some(&Stage::Finished(Arc::new(receipt)))),
        (Told::NotInForce, Some(_)) => {
            return Err(
                "their run had a report that the journal does not have: is it an older copy?".to_owned()
            );
        }
        (told, _) => told,
    };
    let mut run = RunChanges::open(folder, roots).map_err(|error| error.to_string())?;
    let found = settle(run.folders()).map_err(|error| run.roots.describe_commit_error(&error))?;
    match (told, found) {
        (Told::InForce(receipt) | Told::Waiting(receipt), Recovered::Committed | Recovered::Unchanged) => {
            let stored = StoredSet::read(&run.folder).unwrap_or_else(|error| {
                tracing::warn!(folder = run.folder.name, %error, "the time of these file changes begins again");
                None
            });
            return Ok(Some(LeftSet { receipt, found, run, stored }));
        }
        (Told::NotInForce, Recovered::Committed) => {
            run.undo().map_err(ApplyError::into_reason).map_err(|reason| {
                format!("they are in force, its report says that the run failed, and they cannot be taken back: {reason}")
            })?;
            tracing::warn!(run = run.folder.name, "the file changes of an interrupted run were taken back");
        }
        (Told::NotInForce, Recovered::Unchanged) => {
            tracing::warn!(
                run = run.folder.name,
                "the file changes of an interrupted run have not taken effect"
            );
        }
        (Told::Unknown, Recovered::Committed) => {
            return Err("they are in force, and the journal does not have the report of the run".to_owned());
        }
        (Told::Unknown, Recovered::Unchanged) => {}
    }
    run.set_fate(Fate::Removed);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_its_intent() {
        let intent = IntentId::random();
        assert_eq!(parse_intent(&format!("{intent}-12")), Some(intent));
        for name in [format!("{DONE}{intent}-12"), intent.to_string(), "x".to_owned(), String::new()] {
            assert_eq!(parse_intent(&name), None, "{name}");
        }
    }

    #[test]
    fn only_a_success_lets_changes_stay() {
        assert_eq!(Told::of(None), Told::NotInForce);
        assert_eq!(Told::of(Some(&Stage::Released)), Told::NotInForce);
        for stage in [Stage::Queued, Stage::Running, Stage::Ended, Stage::Pruned] {
            assert_eq!(Told::of(Some(&stage)), Told::Unknown);
        }
    }
}
