//! Starts of `a2g-executor mcp` where something is missing, full or read-only: each is told with what to do, and what
//! can work does.

use crate::mcp::{Host, call_compiled, folder_beside_the_program, program_at};
use harness::callers::ends;
use harness::*;
use serde_json::json;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

/// The beginning of the warning about a cache that cannot be written.
const NOT_STORED: &str = "compiled tools cannot be stored";

/// The command with a state of its own, in a folder.
fn mcp(program: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("mcp").args(arguments).current_dir(folder).stdin(std::process::Stdio::null());
    command.env("XDG_STATE_HOME", folder.join("state")).env("XDG_CACHE_HOME", folder.join("cache"));
    command
}

#[test]
fn a_folder_that_is_missing_ends_the_start_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder_beside_the_program();
    let alone = program_at(place.path());
    let tools = tools();
    let tools = tools.to_str().expect("UTF-8");
    std::fs::create_dir(folder.path().join("notes")).expect("a folder");
    std::fs::write(folder.path().join("file"), "").expect("a file");
    for (program, arguments, words) in [
        (program(), &["--tools", tools, "--scope", "nowhere"][..], "create the folder, or correct the path"),
        (program(), &["--tools", tools, "--scope", "file"], "`--scope` needs a folder"),
        (program(), &["--tools", tools, "--scope", "/"], "`--scope` needs a folder"),
        (
            program(),
            &["--tools", "nowhere", "--scope", "notes"],
            "`--tools` is `nowhere`, which is not a folder",
        ),
        (alone.clone(), &["--scope", "notes"], "install the package again"),
        (
            alone,
            &["--scope", "notes", "--print-config", "cursor"],
            "or name a folder of tools with `--tools`",
        ),
    ] {
        ends(&mut mcp(&program, folder.path(), arguments), 2, words);
        for made in ["state", "cache", "nowhere"] {
            assert!(!folder.path().join(made).exists(), "{arguments:?} made {made}");
        }
    }
}

/// A host starts the command without a shell.
#[test]
fn a_tilde_that_no_shell_expands_is_the_home_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().canonicalize().expect("a path");
    std::fs::create_dir_all(home.join("notes")).expect("a folder");
    let tools = tools();
    let with_scope = |scope: &str| {
        let arguments =
            ["--tools", tools.to_str().expect("UTF-8"), "--scope", scope, "--print-config", "codex"];
        mcp(&program(), &home, &arguments)
    };
    for scope in ["~/notes", "notes"] {
        let mut command = with_scope(scope);
        command.env("HOME", &home);
        let output = run_to_end(command, b"");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        let expected = format!("\"--scope\",\"{}\"", home.join("notes").display());
        assert!(
            printed.contains(&expected),
            "{scope}: {printed} {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    ends(with_scope("~/notes").env_remove("HOME"), 2, "`HOME` is not set to an absolute path");
    ends(with_scope("~alice/notes").env("HOME", &home), 2, "the home of another user is not looked up");
}

/// As in a container, where a folder of the host belongs to another user.
#[test]
fn a_scope_in_which_tools_cannot_write_is_named_with_its_owner() {
    // Root may write everywhere, so it gives that up, and the right to become the owner.
    let launcher: &[&str] = if rustix::process::geteuid().is_root() {
        &["setpriv", "--bounding-set=-dac_override,-setuid"]
    } else {
        &["env"]
    };
    let can = Command::new(launcher[0]).args(&launcher[1..]).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        print_skipped("`setpriv` is missing, or may not be used");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().canonicalize().expect("a path").join("notes");
    std::fs::create_dir(&notes).expect("a folder");
    let owner = std::fs::metadata(&notes).expect("a folder");
    let named = format!("folder={} owner={}:{} user=", notes.display(), owner.uid(), owner.gid());
    for (mode, option, is_told) in
        [(0o555, None, true), (0o555, Some("--read-only"), false), (0o755, None, false)]
    {
        std::fs::set_permissions(&notes, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let mut command = Command::new(launcher[0]);
        command.args(&launcher[1..]).arg(program()).args(["mcp", "--tools"]).arg(tools());
        command.arg("--scope").arg(&notes).args(option);
        command.env("XDG_STATE_HOME", folder.path().join("state")).env("XDG_CACHE_HOME", cache_home());
        let output = run_to_end(command, b"");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{said}");
        let lines = said.lines().filter(|line| line.contains("tools cannot write")).collect::<Vec<_>>();
        assert_eq!(lines.len(), usize::from(is_told), "{mode:o} {option:?}: {said}");
        assert!(lines.iter().all(|line| line.contains(&named) && line.contains("`chown`")), "{said}");
    }
}

#[test]
fn a_cache_that_cannot_be_made_is_named_with_what_to_set() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("notes")).expect("a folder");
    // A file in place of the folder.
    std::fs::write(folder.path().join("cache"), "").expect("a file");
    let tools = tools();
    let arguments = ["--tools", tools.to_str().expect("UTF-8"), "--scope", "notes"];
    ends(&mut mcp(&program(), folder.path(), &arguments), 1, "`XDG_CACHE_HOME` or `catalog.cache`");
}

#[test]
fn a_second_program_at_one_journal_is_told_how_to_name_another() {
    let mut first = Host::start(&[]);
    first.process().line_with("journal.db");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("notes")).expect("a folder");
    let tools = tools();
    let journal = first.state().join("a2g-executor/journal.db");
    let arguments = [
        "--tools",
        tools.to_str().expect("UTF-8"),
        "--scope",
        "notes",
        "--journal",
        journal.to_str().expect("UTF-8"),
    ];
    let mut second = mcp(&program(), folder.path(), &arguments);
    ends(second.env("XDG_CACHE_HOME", cache_home()), 1, "`--journal` of `mcp`");
}

/// Starts the command with a file system of these options at its cache, and calls a tool.
fn call_with_cache(options: &str) -> Option<String> {
    let can_mount = Command::new("unshare").args(["--mount", "true"]).status();
    if !can_mount.is_ok_and(|status| status.success()) {
        print_skipped("no file system can be mounted here");
        return None;
    }
    let catalogue = Catalogue::empty().add(Tool::command("says", &saying(1, r#"{"n":1}"#, 0)));
    let state = tempfile::tempdir().expect("a folder");
    let cache = state.path().join("cache/a2g-executor");
    std::fs::create_dir_all(&cache).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o mode=700,{options} none '{0}' && \"$@\"; code=$?; \
         for left in '{0}'/.tmp*; do test -e \"$left\" && echo \"left: $left\" >&2; done; exit $code",
        cache.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(program());
    command.args(["mcp", "--tools"]).arg(catalogue.folder());
    command
        .env("XDG_STATE_HOME", state.path().join("state"))
        .env("XDG_CACHE_HOME", state.path().join("cache"));
    let mut host = Host::from_command(command, state);
    let answer = call_compiled(&mut host, "says", &json!({}));
    assert_eq!(answer["result"]["structuredContent"], json!({ "n": 1 }), "{options}: {answer}");
    host.close_input();
    assert!(host.process().wait_for_exit().success(), "{}", host.process().stderr());
    Some(host.process().whole_stderr())
}

/// A tool that was compiled is used, even if it cannot be stored for the next start.
#[test]
fn a_cache_that_is_read_only_or_full_costs_time_and_no_tool() {
    for options in ["ro", "size=4k"] {
        let Some(said) = call_with_cache(options) else { return };
        assert_eq!(said.matches(NOT_STORED).count(), 1, "{options}: {said}");
        assert!(said.contains("`XDG_CACHE_HOME`") && !said.contains("left: "), "{options}: {said}");
    }
}

/// Code is run from memory, so a home from which nothing may be executed is as good as any other.
#[test]
fn a_cache_without_execution_is_used() {
    let Some(said) = call_with_cache("noexec") else { return };
    assert!(!said.contains(NOT_STORED), "{said}");
}
