//! The test vectors of others, where they lie beside the repository.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// One folder of them. When it is not there, a line on standard error names the test that is skipped.
pub(super) fn folder(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    // Not `eprintln!`, which a passing test keeps to itself.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _nowhere_to_say_it = writeln!(
        std::io::stderr(),
        "skipped {test}: there is no ../shared/vectors/{name} beside the repository"
    );
    None
}
