//! A machine that lacks a control that contains tools: the start depends on who can call. File changes wait there, too.

use harness::callers::{List, agent, ends};
use harness::methods::write;
use harness::{
    AGENT, Catalogue, Executor, Home, HttpClient, Options, Process, execute, print_skipped, result, run,
};
use serde_json::json;
use std::process::Command;

/// A user namespace with root in it who may not leave the network, make another namespace or become another user: so
/// two things are absent that a program can go without.
const WITHOUT_NAMESPACES: &str = "echo 0 > /proc/sys/user/max_user_namespaces && \
    exec setpriv --bounding-set=-sys_admin \"$0\" \"$@\"";
const UNDER: [&str; 6] = ["unshare", "--user", "--map-root-user", "sh", "-c", WITHOUT_NAMESPACES];

/// The command that starts an executor there.
fn there(home: &Home, more: &[&str]) -> Command {
    let plain = home.command();
    let [program, arguments @ ..] = &UNDER;
    let mut command = Command::new(program);
    command.args(arguments).arg(plain.get_program()).args(plain.get_args()).args(more);
    command.current_dir(home.folder()).env_remove("RUST_LOG").env("TMPDIR", home.temporary());
    command
}

fn can_be_taken_away() -> bool {
    let [program, arguments @ ..] = &UNDER;
    let can = Command::new(program).args(arguments).arg("true").status().is_ok_and(|status| status.success());
    if !can {
        print_skipped("this user may make no user namespace, or `setpriv` is missing");
    }
    can
}

fn options() -> Options {
    Options::new().set("executor.isolation", "process")
}

/// Callers for whom an executor may listen where others reach it.
fn options_with_callers() -> (List, Options) {
    let list = List::new();
    agent(&list, "planner", AGENT);
    let options = list.of(options()).signed_only();
    (list, options)
}

const REACHABLE: [&str; 2] = ["--listen", "0.0.0.0:0"];

#[test]
fn on_loopback_one_warning_names_the_missing_controls() {
    if !can_be_taken_away() {
        return;
    }
    let home = Home::new(options());
    let executor = Process::spawn("executor", &mut there(&home, &[]));
    executor.listens_on();
    let said = executor.stderr();
    let warned =
        said.lines().filter(|line| line.contains("this machine lacks protections")).collect::<Vec<_>>();
    assert!(warned.len() == 1 && warned[0].contains("network-namespace (not allowed: "), "{said}");
    let user = said.lines().filter(|line| line.contains("tools run as root")).collect::<Vec<_>>();
    assert!(user.len() == 1 && user[0].contains("CAP_SETUID"), "{said}");
}

/// Neither a run whose changes wait nor a decision on them needs a namespace.
#[test]
fn file_changes_wait_and_are_decided_on_without_namespaces() {
    if !can_be_taken_away() {
        return;
    }
    let catalogue = Catalogue::empty().copy("write_file");
    let home = Home::new(options().catalogue(&catalogue).set("ceilings.effects", "staged"));
    let executor = Process::spawn("executor", &mut there(&home, &[]));
    let mut client = HttpClient::connect(executor.serves_on());
    let said = executor.stderr();
    assert!(said.contains("network-namespace (not allowed: "), "{said}");
    let file = home.workspace().join("new.txt");
    let staged = client.rpc("a2g/execute", &execute("write_file", write("new.txt", "new")));
    let report = result(&staged);
    assert_eq!((&report["status"], file.exists()), (&json!("STAGED"), false), "{staged}");
    let set = json!({ "intent": report["intent_id"] });
    let shown = json!({ "intent": report["intent_id"], "digest": report["usage"]["effects"]["digest"] });
    for (method, params, is_there) in [("a2g/commit", &shown, true), ("a2g/undo", &set, false)] {
        let decided = client.rpc(method, params);
        let status = &result(&decided)["status"];
        assert_eq!((status, file.exists()), (&json!("SUCCESS"), is_there), "{method}: {decided}");
    }
}

#[test]
fn a_public_server_does_not_start_with_missing_controls() {
    let (_list, options) = options_with_callers();
    let home = Home::new(options);
    if can_be_taken_away() {
        let words = "`executor.containment` is `required`, because other machines can call 0.0.0.0:0, and this \
                     machine lacks network-namespace (";
        ends(&mut there(&home, &REACHABLE), 2, words);
        let (_list, options) = options_with_callers();
        let home = Home::new(options.set("executor.containment", "best-effort"));
        Process::spawn("executor", &mut there(&home, &REACHABLE))
            .line_with("this machine lacks protections: tools run without them");
    }
    // With all that is needed it starts, and tools that nothing contains are refused.
    let doctor = run(["doctor"]).status;
    if doctor.success() {
        let mut plain = home.command();
        Process::spawn("executor", plain.args(REACHABLE)).listens_on();
    }
    let (_list, options) = options_with_callers();
    let inline = Home::new(options.set("executor.isolation", "inline"));
    let mut command = inline.command();
    ends(command.args(REACHABLE), 2, "`inline` are not contained: run them in processes, or set");
    // On loopback they are the operator's own affair.
    Executor::start(Options::new().set("executor.isolation", "inline"));
}
