//! `effects`: the file changes of runs that wait for a decision or can be undone, over the A2G door of a running executor.

use super::UsageError;
use super::arguments::{DecisionOptions, EffectsCommand, ExecutorAddress};
use super::changes;
use super::journal::{Row, lines, parse_first_block};
use super::layout::wrap;
use super::local_time::LocalTime;
use super::output::{can_ask, columns, confirm, note, one_line, print};
use super::remote::{call, member, options, unreadable};
use a2g_journal::NounCount;
use a2g_types::ident::IntentId;
use a2g_types::limit::FileEffects;
use a2g_types::outcome::{ChangeState, DecisionAct, Status};
use a2g_types::tool::Digest;
use a2g_wire::a2g::decode::{self, EffectsDecision, EffectsSet};
use a2g_wire::a2g::encode;
use anyhow::{Context as _, bail};
use serde_json::value::RawValue;
use std::process::ExitCode;

/// The exit code if a person did not confirm a decision.
const NOT_CONFIRMED: u8 = 3;
/// Width of the labels of a page.
const LABEL_WIDTH: usize = 7;

pub(super) fn main(command: EffectsCommand) -> anyhow::Result<ExitCode> {
    match command {
        EffectsCommand::List { wide, json, address } => list(&address, wide, json),
        EffectsCommand::Show { intent, json, address } => show(&address, &intent, json),
        EffectsCommand::Commit { options, digest } => {
            decide(DecisionAct::Commit, &options, digest.as_deref())
        }
        EffectsCommand::Discard(options) => decide(DecisionAct::Discard, &options, None),
        EffectsCommand::Undo(options) => decide(DecisionAct::Undo, &options, None),
    }
}

fn list(address: &ExecutorAddress, wide: bool, json: bool) -> anyhow::Result<ExitCode> {
    let result = read(address, None)?;
    if json {
        print(format_args!("{:#}", member(&result, "sets")?));
        return Ok(ExitCode::SUCCESS);
    }
    let sets = parse(&result)?;
    if sets.is_empty() {
        note("no file changes wait for a decision, and none can be undone");
        return Ok(ExitCode::SUCCESS);
    }
    list_lines(&sets, &LocalTime::read(), wide, columns(&std::io::stdout())).iter().for_each(print);
    Ok(ExitCode::SUCCESS)
}

fn list_lines(sets: &[EffectsSet], here: &LocalTime, wide: bool, width: usize) -> Vec<String> {
    let count = |set: &EffectsSet| match set.held {
        0 => set.changes.count.to_string(),
        held => format!("{}, sends {held}", set.changes.count),
    };
    let rows = sets.iter().map(|set| Row {
        cells: vec![
            here.format_seconds(set.until),
            set.state.as_str().to_owned(),
            one_line(&set.tool),
            count(set),
        ],
        intent: set.intent,
        agent: set.agent.to_string(),
    });
    lines(&["until", "state", "tool", "changes"], &rows.collect::<Vec<_>>(), wide, width)
}

fn show(address: &ExecutorAddress, intent: &str, json: bool) -> anyhow::Result<ExitCode> {
    let id = find(address, intent)?;
    let result = read(address, Some(id))?;
    if json {
        let sets = member(&result, "sets")?;
        print(format_args!("{:#}", sets.get(0).context("the executor's answer has no changes")?));
    } else {
        print(page(&parse_one(&result, id)?, &LocalTime::read(), columns(&std::io::stdout())));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the changes of a run, asks, and decides on exactly these.
fn decide(
    act: DecisionAct,
    DecisionOptions { intent, yes, address }: &DecisionOptions,
    digest: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let parsed = digest.map(|hex| Digest::parse(hex.strip_prefix("sha256:").unwrap_or(hex))).transpose();
    let named = parsed.map_err(|reason| UsageError(format!("`--digest` {reason}")))?;
    let id = find(address, intent)?;
    let set = parse_one(&read(address, Some(id))?, id)?;
    let here = LocalTime::read();
    print(page(&set, &here, columns(&std::io::stdout())));
    if set.state != act.applies_to() {
        bail!("the changes of {id} cannot be {}: {}", past_name(act), describe_state(&set, &here));
    }
    if let Some(named) = named.filter(|named| *named != set.changes.digest) {
        bail!("the changes of {id} do not have the digest {named} (`--digest`): nothing was committed");
    }
    if !yes && named.is_none() {
        if !can_ask() {
            note(format_args!(
                "not confirmed, and there is no terminal to ask at. To {} exactly this:\n  {}",
                act.as_str(),
                confirming_command(act, &set, address)
            ));
            return Ok(ExitCode::from(NOT_CONFIRMED));
        }
        if !confirm(question(act, &set)).context("the answer cannot be read")? {
            note(format_args!("not confirmed: {}", describe_state(&set, &here)));
            return Ok(ExitCode::from(NOT_CONFIRMED));
        }
    }
    let report = match act {
        DecisionAct::Commit => call(address, "a2g/commit", encode::commit_params(id, &set.changes.digest))?,
        DecisionAct::Discard => call(address, "a2g/discard", encode::decision_params(id))?,
        DecisionAct::Undo => call(address, "a2g/undo", encode::decision_params(id))?,
    };
    if member(&report, "status")?.as_str() == Some(Status::Success.as_str()) {
        note(describe_success(act, &set, address));
        changes::report_requests(&set.changes, &member(&report, "result")?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let error = member(&report, "error")?;
    let why = error.as_str().unwrap_or("the executor's answer does not say why the decision failed");
    if member(&report, "left_to_operator")? == true {
        bail!("{why}");
    }
    bail!("{why}; {}", advice_after_failure(act));
}

/// Asks the executor for all changes, or for those of one run.
fn read(address: &ExecutorAddress, intent: Option<IntentId>) -> anyhow::Result<Box<RawValue>> {
    call(address, "a2g/effects", encode::effects_params(intent))
}

fn parse(result: &RawValue) -> anyhow::Result<Vec<EffectsSet>> {
    decode::effects_result(result.get()).map_err(|fault| unreadable("list of file changes", &fault))
}

fn parse_one(result: &RawValue, intent: IntentId) -> anyhow::Result<EffectsSet> {
    let found = parse(result)?.into_iter().find(|set| set.intent == intent);
    found.with_context(|| format!("the executor's answer has no changes of {intent}"))
}

/// Finds a run by its id, or by the first block of an id in the list.
fn find(address: &ExecutorAddress, intent: &str) -> anyhow::Result<IntentId> {
    if parse_first_block(intent).is_none() {
        return Ok(IntentId::parse(intent).map_err(|error| UsageError(error.to_string()))?);
    }
    let sets = parse(&read(address, None)?)?;
    let block = intent.to_ascii_lowercase();
    let found = sets.iter().map(|set| set.intent).filter(|id| id.to_string().starts_with(&block));
    match found.collect::<Vec<_>>().as_slice() {
        [only] => Ok(*only),
        [] => bail!(
            "`a2g-executor effects list` has no run whose id begins with `{intent}`: write the whole id of a run whose \
             changes were discarded or undone, or can no longer be undone"
        ),
        several => {
            let several = several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            bail!("several runs begin with `{intent}`: {several}")
        }
    }
}

/// The changes of a run as a page of labelled lines and a list.
fn page(set: &EffectsSet, here: &LocalTime, width: usize) -> String {
    let EffectsSet { intent, agent, tool, changes, decisions, .. } = set;
    let decided = decisions.iter().flatten().map(|decision| ("decided", describe_decision(decision)));
    let facts = [
        ("intent", intent.to_string()),
        ("agent", agent.to_string()),
        ("tool", tool.to_string()),
        ("digest", changes.digest.to_string()),
        ("state", describe_state(set, here)),
    ];
    let rows = facts.into_iter().chain(decided).chain([("changes", summarize(set))]);
    let labelled =
        rows.map(|(label, value)| wrap(&format!("{label:LABEL_WIDTH$}  "), &one_line(value), width));
    let list = match set.mode {
        FileEffects::Staged => changes::lines(changes),
        FileEffects::Direct | FileEffects::Atomic => Vec::new(),
    };
    let blank = (!list.is_empty()).then(String::new);
    labelled.chain(blank).chain(list).collect::<Vec<_>>().join("\n")
}

/// The number of changes of each group; for a run whose changes nobody decided on, their number.
fn summarize(EffectsSet { mode, changes, .. }: &EffectsSet) -> String {
    match mode {
        FileEffects::Staged => changes.summarize(),
        FileEffects::Direct | FileEffects::Atomic => {
            format!("{}, of which the executor has no list", changes.count)
        }
    }
}

/// The state of changes. Only those that wait or can be undone have a time. Without file changes, there is nothing to undo.
fn describe_state(set: &EffectsSet, here: &LocalTime) -> String {
    let until = here.format_seconds(set.until);
    let has_files = set.changes.count > 0;
    match set.state {
        ChangeState::Waiting if !has_files => {
            format!("waiting, not sent; discarded at {until} unless they are committed")
        }
        ChangeState::Waiting => {
            format!("waiting, not in force; discarded at {until} unless they are committed")
        }
        ChangeState::Sending => "committed; its requests are being sent".to_owned(),
        ChangeState::InForce => format!("in force; can be undone until {until}"),
        ChangeState::Kept if !has_files => "committed; there is nothing to undo".to_owned(),
        ChangeState::Kept => "in force; can no longer be undone".to_owned(),
        ChangeState::Discarded if !has_files => "discarded; never sent".to_owned(),
        ChangeState::Discarded => "discarded; never in force".to_owned(),
        ChangeState::Undone => "undone; no longer in force".to_owned(),
    }
}

fn describe_decision(EffectsDecision { act, status, by, message, intent: _ }: &EffectsDecision) -> String {
    let by = by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let why = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{}{by}: {}{why}", act.as_str(), status.as_str())
}

fn past_name(act: DecisionAct) -> &'static str {
    match act {
        DecisionAct::Commit => "committed",
        DecisionAct::Discard => "discarded",
        DecisionAct::Undo => "undone",
    }
}

fn question(act: DecisionAct, set: &EffectsSet) -> String {
    let summary = summarize(set);
    match act {
        DecisionAct::Commit => changes::commit_question(&summary, &set.changes),
        DecisionAct::Discard => format!("Discard ({summary}): drop all of this for good?"),
        DecisionAct::Undo if set.held > 0 => {
            format!("Undo ({summary}): put back all files as they were before? What was sent stays sent.")
        }
        DecisionAct::Undo => format!("Undo ({summary}): put back everything as it was before?"),
    }
}

/// The command that decides without a question.
fn confirming_command(act: DecisionAct, set: &EffectsSet, address: &ExecutorAddress) -> String {
    let confirmed = match act {
        DecisionAct::Commit => format!("--digest {}", set.changes.digest),
        DecisionAct::Discard | DecisionAct::Undo => "--yes".to_owned(),
    };
    format!("a2g-executor effects {} {} {confirmed}{}", act.as_str(), set.intent, options(address))
}

/// The sentence after a decision that was carried out.
fn describe_success(act: DecisionAct, set: &EffectsSet, address: &ExecutorAddress) -> String {
    let intent = set.intent;
    let count = NounCount(set.changes.count, "change");
    match act {
        DecisionAct::Commit if set.changes.count == 0 => {
            format!("Committed: {intent} has changed no file, so there is nothing to undo.")
        }
        DecisionAct::Commit => format!(
            "Committed: {count} of {intent} took effect. `a2g-executor effects undo {intent}{}` takes them back while \
             they are kept (`effects.keep_days`).",
            options(address)
        ),
        DecisionAct::Discard if set.held > 0 => {
            let requests = NounCount(set.held, "request");
            format!(
                "Discarded: {count} and {requests} of {intent}. No file was changed, and nothing was sent."
            )
        }
        DecisionAct::Discard => format!("Discarded: {count} of {intent}. No file was changed."),
        DecisionAct::Undo => format!("Undone: {count} of {intent}."),
    }
}

/// The state after a decision that was not carried out, and what to do, as a clause.
fn advice_after_failure(act: DecisionAct) -> &'static str {
    match act {
        DecisionAct::Commit => {
            "the changes still wait: if files have changed, put those back and commit again, or discard the changes and \
             let the tool run again"
        }
        DecisionAct::Discard => "the changes still wait: discard them again",
        DecisionAct::Undo => {
            "the changes are still in force: if files have changed, put those back and undo again, or correct them by hand"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::ident::{AgentDid, ToolName};
    use a2g_types::outcome::{ChangeWord, EntryWord, FileChanges, ShownChange};
    use std::path::PathBuf;
    use time::macros::datetime;

    fn set(state: ChangeState) -> EffectsSet {
        let deletion = ShownChange {
            bytes_before: Some(12),
            ..ShownChange::new(ChangeWord::Deleted, EntryWord::File, "/workspace/a.txt")
        };
        let failed = EffectsDecision {
            intent: IntentId::parse("6c2f1a4e-8f0d-4b8e-9f57-0d4f1c3b2a10").unwrap(),
            act: DecisionAct::Commit,
            status: Status::Failure,
            by: Some("anna".to_owned()),
            message: Some("`/workspace/a.txt` has changed".to_owned()),
        };
        EffectsSet {
            intent: IntentId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap(),
            agent: AgentDid::parse("did:a2g:agent:1.0:planner").unwrap(),
            tool: ToolName::parse("rename_files").unwrap(),
            mode: FileEffects::Staged,
            state,
            changes: FileChanges { shown: vec![deletion], ..FileChanges::new(1234, Digest([0xab; 32])) },
            held: 0,
            bytes: 4096,
            since: datetime!(2026-12-03 09:12:33 UTC),
            until: datetime!(2026-12-04 09:12:33 UTC),
            decisions: Some(vec![failed]),
        }
    }

    #[test]
    fn the_list_fits_a_terminal_of_80_columns() {
        let sets = [ChangeState::Waiting, ChangeState::InForce].map(set);
        let expected = "\
until                state     tool          changes  agent    intent
2026-12-04 09:12:33  waiting   rename_files  1234     planner  550e8400
2026-12-04 09:12:33  in_force  rename_files  1234     planner  550e8400";
        assert_eq!(list_lines(&sets, &LocalTime::utc(), false, 80).join("\n"), expected);
        let mut long = set(ChangeState::InForce);
        long.tool = ToolName::parse("a_tool_with_quite_a_long_name_indeed").unwrap();
        long.agent = AgentDid::parse("did:a2g:agent:1.0:an-agent-with-quite-a-long-name").unwrap();
        long.changes.count = u64::from(u32::MAX);
        let lines = list_lines(&[long], &LocalTime::utc(), false, 80);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("550e8400") || line.contains("intent")), "{lines:?}");
    }

    #[test]
    fn a_page_has_the_state_the_decisions_and_the_list() {
        let expected = "\
intent   550e8400-e29b-41d4-a716-446655440000
agent    did:a2g:agent:1.0:planner
tool     rename_files
digest   abababababababababababababababababababababababababababababababab
state    waiting, not in force; discarded at 2026-12-04 09:12:33 unless they are
         committed
decided  commit by anna: FAILURE: `/workspace/a.txt` has changed
changes  deletes 1, makes 1233 more changes that are not listed

Deleted (1)
  file    12 bytes  /workspace/a.txt
Not shown: 1233 more changes, none of them a deletion, a rename or the loss of most of a file.";
        assert_eq!(page(&set(ChangeState::Waiting), &LocalTime::utc(), 80), expected);
    }

    #[test]
    fn without_file_changes_no_undo_is_offered() {
        let mut only = set(ChangeState::Kept);
        only.changes = FileChanges::new(0, Digest([0xab; 32]));
        only.held = 1;
        let address = ExecutorAddress { url: String::new(), token_file: None, ca_file: None };
        for (act, part) in [(DecisionAct::Commit, "nothing to undo"), (DecisionAct::Discard, "1 request")] {
            let said = describe_success(act, &only, &address);
            assert!(said.contains(part) && !said.contains("effects undo"), "{said}");
        }
        assert_eq!(describe_state(&only, &LocalTime::utc()), "committed; there is nothing to undo");
        let files = describe_success(DecisionAct::Commit, &set(ChangeState::Waiting), &address);
        assert!(files.contains("effects undo"), "{files}");
    }

    #[test]
    fn a_run_under_atomic_has_no_list() {
        let mut atomic = set(ChangeState::InForce);
        atomic.mode = FileEffects::Atomic;
        atomic.changes.shown = Vec::new();
        atomic.decisions = Some(Vec::new());
        let expected = "\
state    in force; can be undone until 2026-12-04 09:12:33
changes  1234, of which the executor has no list";
        let page = page(&atomic, &LocalTime::utc(), 80);
        assert!(page.ends_with(expected), "{page}");
    }

    #[test]
    fn the_command_without_a_question_decides_on_what_was_shown() {
        let address = ExecutorAddress {
            url: "https://executor.example".to_owned(),
            token_file: Some(PathBuf::from("anna.token")),
            ca_file: None,
        };
        let command = |act| confirming_command(act, &set(ChangeState::Waiting), &address);
        let end = " --url https://executor.example --token-file anna.token";
        let id = "550e8400-e29b-41d4-a716-446655440000";
        let digest = "ab".repeat(32);
        let commit = format!("a2g-executor effects commit {id} --digest {digest}{end}");
        assert_eq!(command(DecisionAct::Commit), commit);
        assert_eq!(command(DecisionAct::Undo), format!("a2g-executor effects undo {id} --yes{end}"));
    }
}
