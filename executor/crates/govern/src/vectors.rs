//! External test vectors, if present beside the repository.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The folder of one set. If it is absent, a line on standard error names the skipped test.
pub(super) fn folder(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/vectors").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    // `eprintln!` would be captured for a passing test.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ignored = writeln!(
        std::io::stderr(),
        "skipped {test}: there is no ../shared/vectors/{name} beside the repository"
    );
    None
}
