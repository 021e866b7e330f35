//! The files that the executor writes for itself: nobody else can read them, whatever the umask is.

use harness::callers::ends;
use harness::methods::write;
use harness::*;
use serde_json::json;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Everything below a folder that this test has not made, with its mode.
fn list_written(folder: &Path, made_here: &[PathBuf], found: &mut Vec<(PathBuf, u32)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        let is_made_here = made_here.contains(&path);
        if !is_made_here {
            found.push((path.clone(), metadata.mode() & 0o777));
        }
        if metadata.is_dir() && !is_made_here {
            list_written(&path, made_here, found);
        }
    }
}

/// `docs/operations.md` lists every file of a used executor, and none of them is open to others.
#[test]
fn no_file_of_the_executor_is_open_to_others_under_any_umask() {
    const ANY_UMASK: [&str; 3] = ["sh", "-c", "umask 0; exec \"$0\" \"$@\""];
    let others = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::empty().copy("write_file");
    let options =
        Options::new().catalogue(&catalogue).set("catalog.cache", json!(others.path().join("cache")));
    let executor = Executor::start_under(&ANY_UMASK, options);
    executor.line_with("all tools are prepared");
    let call = intent("write_file", write("one", "hi"));
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["report"]["status"], "SUCCESS");
    executor.wait_for_reports(1);
    let home = executor.home();
    let config = executor.home().config();
    for arguments in [
        &["journal", "backup", "backup.db", "--config", config.to_str().unwrap()][..],
        &["caller", "new", "anna", "--callers", "callers.toml", "--role", "operator"],
        &["key", "new", "key.jwk", "--issuer", "did:a:issuer"],
    ] {
        let mut command = std::process::Command::new(ANY_UMASK[0]);
        command.args(&ANY_UMASK[1..]).arg(program()).args(arguments).current_dir(others.path());
        let done = run_to_end(command, b"");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let mut found = Vec::new();
    list_written(&home.folder(), &[config, home.workspace(), home.temporary()], &mut found);
    list_written(others.path(), &[], &mut found);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let document = std::fs::read_to_string(document).unwrap();
    // The names of these are the test's.
    let named = ["backup.db", "callers.toml", "key.jwk"];
    for (path, mode) in &found {
        let name = path.file_name().unwrap().to_string_lossy();
        let is_listed = path.is_dir()
            || document.contains(&format!("`{name}`"))
            || named.contains(&&*name)
            || (name.contains(".compiled-") && document.contains("`*.compiled-N`"));
        assert!(is_listed, "docs/operations.md does not list {}", path.display());
        let widest = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode & !widest, 0, "{mode:04o} {}", path.display());
    }
    for written in
        ["journal.db", "journal.db.lock", "journal.db.console", "definitions.json", "reports.ndjson"]
    {
        assert!(found.iter().any(|(path, _)| path.ends_with(written)), "{written}: {found:?}");
    }
    assert!(found.iter().any(|(path, _)| path.to_string_lossy().contains(".compiled-")), "{found:?}");

    // One that others may read has been read already: the executor does not go on to write to it.
    let home = executor.kill();
    std::fs::set_permissions(home.reports(), std::fs::Permissions::from_mode(0o640)).unwrap();
    ends(&mut home.command(), 1, "run `chmod 600` on it");
}
