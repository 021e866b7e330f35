//! What files grow to: the share of an agent in the journal, its automatic pruning, the copies of killed commands, and the
//! reports of a governor on a full disk.

use harness::{
    AGENT, Catalogue, Executor, HttpClient, Options, Process, Tool, assert_chain_holds, error, eventually,
    execute, has_strace, intent_id, program, result, saying, trace,
};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A tool with results of 50 KB.
fn catalogue() -> Catalogue {
    Catalogue::empty().add(Tool::command("long", &saying(1, &format!(r#""{}""#, "x".repeat(50_000)), 0)))
}

#[test]
fn an_agent_fills_only_its_share_of_the_journal_and_old_records_are_removed() {
    let catalogue = catalogue();
    let options = Options::new().catalogue(&catalogue).set("journal.max_mb_per_agent_hour", 1);
    let executor = Executor::start(options);
    let mut client = executor.client();
    let refused = (0..40).find_map(|_| {
        let answer = client.rpc("a2g/execute", &execute("long", json!({})));
        answer.get("error").is_some().then_some(answer)
    });
    let refused = error(refused.as_ref().expect("its share is used up"), -32003).clone();
    assert!(refused["message"].as_str().unwrap().contains("`journal.max_mb_per_agent_hour`"), "{refused}");
    let retry_ms = refused["data"]["retry_after_ms"].as_u64().unwrap();
    assert!((1..600_000).contains(&retry_ms), "it drains evenly: {refused}");
    // So is an intent that would wait, but not another agent.
    let mut waits = execute("long", json!({}));
    waits["verdict"]["verdict"] = json!("ESCALATE");
    error(&client.rpc("a2g/execute", &waits), -32003);
    let other = execute("long", json!({})).to_string().replace(AGENT, "did:aeon:other:1.0:abc123");
    result(&client.rpc("a2g/execute", &serde_json::from_str(&other).unwrap()));

    let count = executor.home().list_journal(&[]).len();
    assert!((15..30).contains(&count), "{count}");
    let home = executor.kill();
    let mut config: toml::Table = std::fs::read_to_string(home.config()).unwrap().parse().unwrap();
    config["journal"].as_table_mut().unwrap().insert("max_gb".to_owned(), 0.0005.into());
    std::fs::write(home.config(), config.to_string()).unwrap();
    let executor = Executor::start_in(home);
    eventually("the oldest are removed", || {
        Some(executor.home().list_journal(&[]).len()).filter(|kept| *kept < count / 2)
    });
    assert_chain_holds(executor.home());
}

/// A killed `journal backup` or `restore` leaves a whole copy, which the next command or start removes.
#[test]
fn copies_of_killed_commands_are_removed() {
    if !has_strace() {
        return;
    }
    let home = Executor::start(Options::new()).kill();
    let backups = tempfile::tempdir().expect("a temp folder");
    let backup = backups.path().join("backup.db");
    let config = home.config();
    let state = home.journal().parent().expect("a folder").to_owned();
    let killed = |arguments: &[&Path]| {
        let mut command = Command::new(program());
        command.current_dir(backups.path()).arg("journal").args(arguments).arg("--config").arg(&config);
        let inject = "--inject=renameat2:signal=KILL";
        assert!(!trace(&command, "renameat2", inject).status().expect("strace").success());
    };
    let left = || {
        let names = |folder: &Path| {
            let files = std::fs::read_dir(folder).expect("a folder");
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let copies = [names(backups.path()), names(&state)].concat();
        let is_copy = |name: &String| [".part", ".draft-", ".copy-"].iter().any(|kind| name.contains(kind));
        copies.into_iter().filter(is_copy).collect::<Vec<_>>()
    };
    result_of(&home.run(&["journal", "backup", backup.to_str().unwrap()]));
    for _ in 0..2 {
        killed(&["backup".as_ref(), &backups.path().join("other.db")]);
        assert!(left().iter().any(|name| name.ends_with(".part")), "{:?}", left());
    }
    home.list_journal(&[]);
    assert!(left().is_empty(), "{:?}", left());
    killed(&["backup".as_ref(), &backups.path().join("other.db")]);
    killed(&["restore".as_ref(), "--replace".as_ref(), &backup]);
    assert!(left().iter().any(|name| name.contains(".draft-")), "{:?}", left());
    let executor = Executor::start_in(home);
    assert!(left().is_empty(), "{:?}", left());
    assert_chain_holds(executor.home());
}

fn result_of(output: &std::process::Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A limit on the size of its files is to a process what a full disk is: a part of a line fits.
#[test]
fn a_governor_on_a_full_disk_leaves_no_part_of_a_report() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let reports = folder.path().join("reports.ndjson");
    let script = r#"trap '' XFSZ; ulimit -f 1; exec "$0" governor --listen 127.0.0.1:0 --reports "$1""#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(program()).arg(&reports).current_dir(folder.path());
    let process = Process::spawn("governor", &mut command);
    let mut client = HttpClient::connect(process.listens_on());
    let report = |_| {
        let id = intent_id();
        let report =
            json!({ "agent_did": AGENT, "intent_id": id, "status": "SUCCESS", "error": "x".repeat(150) });
        client.rpc("a2g/report", &report).get("error").is_none()
    };
    let recorded = (0..10).map(report).filter(|is_recorded| *is_recorded).count();
    assert!((1..10).contains(&recorded), "{recorded}");
    let text = std::fs::read_to_string(&reports).unwrap();
    let lines = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>();
    assert_eq!(lines.map(|lines| lines.len()).ok(), Some(recorded), "{text}");
    assert!(text.ends_with('\n'), "{text}");
}
