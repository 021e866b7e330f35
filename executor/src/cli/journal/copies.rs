//! `journal init|backup|restore`: a new journal, a copy of one, and a copy in the place of one.

use crate::cli::output::{note, one_line, print};
use crate::journal::{Copied, Restored, back_up as copy, init as make, restore as put};
use std::path::Path;

/// Makes an empty journal.
pub(super) fn init(journal: &Path) -> anyhow::Result<()> {
    make(journal)?;
    print(format_args!("the journal {} is new and empty", one_line(journal.display())));
    Ok(())
}

/// Copies a journal, and says how far the copy goes.
pub(super) fn back_up(journal: &Path, file: &Path) -> anyhow::Result<()> {
    let Copied { path, finding, bytes } = copy(journal, file)?;
    print(format_args!("{} has {bytes} bytes; {finding}", one_line(path.display())));
    Ok(())
}

/// Puts a backup in the place of a journal, and says where the old one is.
pub(super) fn restore(file: &Path, journal: &Path, replace: bool) -> anyhow::Result<()> {
    let Restored { copy: Copied { path, finding, .. }, kept } = put(file, journal, replace)?;
    print(format_args!("{} is restored; {finding}", one_line(path.display())));
    if let Some(kept) = kept {
        print(format_args!("the journal before is kept as {}", one_line(kept.display())));
    }
    note(
        "what ran since the backup was made is forgotten: verdicts of that time that have not expired could run again",
    );
    Ok(())
}
