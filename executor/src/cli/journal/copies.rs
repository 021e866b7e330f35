//! `journal init|backup|restore`: creates a journal, copies it, and replaces it with a copy.

use crate::cli::output::{note, one_line, print};
use a2g_journal::{JournalCopy, RestoredJournal};
use std::path::Path;

/// Creates an empty journal.
pub(super) fn init(journal: &Path) -> anyhow::Result<()> {
    a2g_journal::init(journal)?;
    print(format_args!("created the empty journal {}", one_line(journal.display())));
    Ok(())
}

/// Copies a journal, and prints the checkpoint of the copy.
pub(super) fn back_up(journal: &Path, file: &Path) -> anyhow::Result<()> {
    let JournalCopy { path, finding, bytes } = a2g_journal::back_up(journal, file)?;
    print(format_args!("{} has {bytes} bytes; {finding}", one_line(path.display())));
    Ok(())
}

/// Replaces a journal with a backup, and prints the new path of the old one.
pub(super) fn restore(file: &Path, journal: &Path, replace: bool) -> anyhow::Result<()> {
    let RestoredJournal { copy: JournalCopy { path, finding, .. }, previous } =
        a2g_journal::restore(file, journal, replace)?;
    print(format_args!("{} is restored; {finding}", one_line(path.display())));
    if let Some(previous) = previous {
        print(format_args!("the previous journal was renamed to {}", one_line(previous.display())));
    }
    note("runs after the backup are lost: their intents could run again until their verdicts have expired");
    Ok(())
}
