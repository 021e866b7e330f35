//! The folders that an earlier process has left: each is brought to what the receipt of its run says.

use super::roots::RunRoots;
use super::staged::settle;
use super::{DONE, EffectsFolder, EffectsPlace, Fate, OpenedFolder, RunFolder, STORE, UPPER, open_folder};
use a2g_journal::{IfFull, IntentClaims, JournalError, Stage};
use a2g_overlay::{Disk, Folders, Recovered, Upper, undo};
use a2g_types::ident::IntentId;
use a2g_types::outcome::Status;
use std::io;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// The state of the changes of a run, as the journal tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// They are in force.
    InForce,
    /// They are not.
    NotInForce,
    /// Nothing that could be relied on.
    Unknown,
}

impl Told {
    fn of(stage: Option<&Stage>) -> Self {
        match stage {
            Some(Stage::Finished(receipt)) => match receipt.outcome.end.status() {
                Status::Success => Self::InForce,
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
    /// removes the folders of all their runs.
    ///
    /// # Ambient Authority
    /// Opens the folder of the configuration, and the host folders that earlier runs changed.
    ///
    /// # Errors
    /// If the folder cannot be read or another process uses it.
    pub(in crate::run) async fn recover(self: &Arc<Self>, claims: &IntentClaims) -> io::Result<()> {
        let effects = Arc::clone(self);
        let left = spawn_blocking(move || effects.list_left()).await.map_err(io::Error::other)??;
        let Some((parent, names)) = left else { return Ok(()) };
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
            spawn_blocking(move || bring_to(folder, name, told)).await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The opened folder and the names in it; `None` if there is none.
    fn list_left(&self) -> io::Result<Option<(Arc<OpenedFolder>, Vec<String>)>> {
        match &self.place {
            EffectsPlace::Folder(path) if path.exists() => {}
            EffectsPlace::Folder(_) | EffectsPlace::Temporary => return Ok(None),
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

/// Brings the folders of a run to what was told of them, and removes its own. If that is not possible, an operator has to.
fn bring_to(parent: Arc<OpenedFolder>, name: String, told: Told) {
    let dir = match open_folder(&parent.dir, &name) {
        Ok(dir) => dir,
        Err(error) => return tracing::warn!(folder = name, %error, "this is not the folder of a run"),
    };
    let mut folder = RunFolder { parent, name, dir, fate: Fate::Kept };
    match end_commit(&folder, told) {
        Ok(()) => folder.fate = Fate::Removed,
        Err(reason) => {
            let path = folder.path();
            tracing::error!(folder = %path.display(), reason, "the file changes of an earlier run need an operator (docs/operations.md#file-changes)");
        }
    }
}

fn end_commit(folder: &RunFolder, told: Told) -> Result<(), String> {
    let io_error = |error: io::Error| error.to_string();
    // Without it, no commit began, whatever the run was.
    let Some(roots) = RunRoots::reopen(folder).map_err(io_error)? else { return Ok(()) };
    let open =
        |name| open_folder(&folder.dir, name).map_err(|error| format!("`{name}` cannot be opened: {error}"));
    let upper = Upper::new(open(UPPER)?);
    let store = open(STORE)?;
    let folders = Folders { roots: roots.lower(), upper: &upper, store: &store };
    let state = settle(folders).map_err(|error| roots.describe_commit_error(&error))?;
    let run = &folder.name;
    match (state, told) {
        (Recovered::Committed, Told::InForce) => Ok(()),
        (Recovered::Unchanged, Told::NotInForce) => {
            tracing::warn!(run, "the file changes of an interrupted run have not taken effect");
            Ok(())
        }
        (Recovered::Committed, Told::NotInForce) => {
            undo(folders, &Disk::new()).map_err(|error| {
                let reason = roots.describe_commit_error(&error);
                format!("they are in force, its report says that the run failed, and they cannot be taken back: {reason}")
            })?;
            tracing::warn!(run, "the file changes of an interrupted run were taken back");
            Ok(())
        }
        (Recovered::Unchanged, Told::InForce) => {
            Err("its report says that they are in force, and they are not".to_owned())
        }
        (Recovered::Committed, Told::Unknown) => {
            Err("they are in force, and the journal does not have the report of the run".to_owned())
        }
        (Recovered::Unchanged, Told::Unknown) => Ok(()),
    }
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
