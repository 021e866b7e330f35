//! `journal list|show|verify|export|prune`; `show --tree`, `show` of an intent without a receipt, and the other commands
//! have their own files. A list of receipts has one line for each, in local time. JSON has UTC; the JSON of `show` and
//! `export` includes the report.

mod copies;
mod records;
mod tree;
mod unended;

use super::UsageError;
use super::arguments::{JournalCommand, JournalFile, ReceiptFilter, Setup};
use super::changes;
use super::layout::{Listing, align, text, wrap};
use super::local_time::LocalTime;
use super::log::start_logging;
use super::output::{columns, note, one_line, print};
use super::page::page;
use super::serve::other_journals;
use super::setup::{self, config};
use a2g_govern::Escalated;
use a2g_journal::chain::{self, Head, to_hex};
use a2g_journal::history::{Filter, History, ReceiptEntry, RefusalEntry};
use a2g_journal::verify::Finding;
use a2g_journal::{NounCount, PruneSummary, prune};
use a2g_types::call::{Call, StoredArguments};
use a2g_types::clock::{Clock, SystemClock};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::Status;
use a2g_wire::a2g::encode;
use anyhow::bail;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use strum::VariantArray as _;
use time::format_description::well_known::Rfc3339;
use time::{Date, Duration, OffsetDateTime};

/// Maximum number of arguments that a list shows for each call.
const MAX_SHOWN: usize = 16;
/// Maximum number of characters that a list shows for each argument.
const MAX_SHOWN_CHARS: usize = 60;

pub(super) fn main(command: JournalCommand) -> anyhow::Result<ExitCode> {
    start_logging("error");
    match command {
        JournalCommand::List { journal, waiting: true, limit, json, .. } => {
            list_waiting(&read_waiting(&listed_journal(&journal)?, limit)?, json);
        }
        JournalCommand::List { journal, filter, refused: true, limit, wide, json, .. } => {
            list_refusals(
                &History::open(&listed_journal(&journal)?)?.refusals(&parse_filter(&filter)?, limit)?,
                wide,
                json,
            );
        }
        JournalCommand::List { journal, filter, limit, wide, json, .. } => {
            let mut entries = Vec::new();
            let collect = |entry| -> anyhow::Result<()> {
                entries.push(entry);
                Ok(())
            };
            History::open(&listed_journal(&journal)?)?.receipts(
                &parse_filter(&filter)?,
                false,
                Some(limit),
                collect,
            )?;
            list(&entries, wide, json);
        }
        JournalCommand::Show { journal, intent, tree, json } => {
            let history = History::open(&journal_path(&journal)?)?;
            let intent = find(&history, &intent)?;
            match (history.receipt_of(intent)?, tree) {
                (Some(entry), true) => tree::show(&history, &entry.parse_receipt()?, json)?,
                (Some(entry), false) => show(&history, &entry, json)?,
                (None, true) => bail!("the intent `{intent}` has no receipt, and so no calls"),
                (None, false) => unended::show(&history, intent, json)?,
            }
        }
        JournalCommand::Verify { journal, checkpoint, json } => {
            let checkpoint = checkpoint.as_deref().map(parse_checkpoint).transpose()?;
            let finding = History::open(&journal_path(&journal)?)?.verify(checkpoint, print_progress)?;
            end_progress();
            return Ok(print_finding(&finding, json));
        }
        JournalCommand::Export { journal, filter } => {
            let export = |entry: ReceiptEntry| -> anyhow::Result<()> {
                print(entry_json(&entry)?);
                Ok(())
            };
            History::open(&journal_path(&journal)?)?.receipts(&parse_filter(&filter)?, true, None, export)?;
        }
        JournalCommand::Prune { journal, before } => {
            let now = SystemClock.now();
            let PruneSummary { receipts, intents, tasks } =
                prune(&journal_path(&journal)?, parse_time(&before)?, now)?;
            print(format_args!(
                "{} pruned, {} forgotten, {} pruned",
                NounCount(receipts, "receipt"),
                NounCount(intents, "intent"),
                NounCount(tasks, "task")
            ));
        }
        JournalCommand::Records { journal, intent } => {
            records::list(&journal_path(&journal)?, intent.as_deref())?
        }
        JournalCommand::Init { journal } => copies::init(&journal_path(&journal)?)?,
        JournalCommand::Backup { journal, file } => copies::back_up(&journal_path(&journal)?, &file)?,
        JournalCommand::Restore { journal, file, replace } => {
            copies::restore(&file, &journal_path(&journal)?, replace)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn journal_path(file: &JournalFile) -> anyhow::Result<PathBuf> {
    let path = match &file.journal {
        Some(path) => path.clone(),
        None => {
            let setup = Setup { config: file.config.clone(), tools: None };
            let path = config(&setup)?.journal;
            if setup::file(&setup).is_none() {
                note(format_args!("no configuration: using {}", one_line(path.display())));
            }
            path
        }
    };
    // Whole copies of the journal, which nobody would look for.
    a2g_journal::sweep(&path);
    Ok(path)
}

/// Returns the path of the journal to list, and prints a note about the journals that other processes have in the same
/// folder: an agent host may start several.
fn listed_journal(file: &JournalFile) -> anyhow::Result<PathBuf> {
    let path = journal_path(file)?;
    let others = if file.journal.is_none() { other_journals(&path) } else { Vec::new() };
    if !others.is_empty() {
        let others = others.iter().map(|path| one_line(path.display())).collect::<Vec<_>>().join(", ");
        note(format_args!(
            "not listed, because other processes wrote them: {others} (`--journal` lists one)"
        ));
    }
    Ok(path)
}

fn parse_filter(filter: &ReceiptFilter) -> Result<Filter, UsageError> {
    let ReceiptFilter { agent, tool, status, since, until, undelivered } = filter;
    let usage = |error: &dyn std::fmt::Display| UsageError(error.to_string());
    let is_requested =
        |known: &Status| status.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(known.as_str()));
    Ok(Filter {
        agent: agent.as_deref().map(AgentDid::parse).transpose().map_err(|error| usage(&error))?,
        tool: tool.as_deref().map(ToolName::parse).transpose().map_err(|error| usage(&error))?,
        status: status.as_ref().and_then(|_| Status::VARIANTS.iter().copied().find(is_requested)),
        since: since.as_deref().map(parse_time).transpose()?,
        until: until.as_deref().map(parse_time).transpose()?,
        undelivered: *undelivered,
    })
}

/// Parses a date, a timestamp, or an age.
pub(super) fn parse_time(text: &str) -> Result<OffsetDateTime, UsageError> {
    let invalid = || {
        UsageError(format!(
            "`{text}` is not a valid time: write `2026-11-21`, `2026-11-21T09:30:00Z`, or an age such as `90m`, `12h` or `30d`"
        ))
    };
    if let Ok(moment) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(moment);
    }
    if let Ok(date) = Date::parse(text, time::macros::format_description!("[year]-[month]-[day]")) {
        return Ok(LocalTime::read().midnight(date));
    }
    let unit = match text.chars().last() {
        Some('m') => Duration::MINUTE,
        Some('h') => Duration::HOUR,
        Some('d') => Duration::DAY,
        Some(_) | None => return Err(invalid()),
    };
    let number = text.get(..text.len() - 1).and_then(|number| number.parse::<i32>().ok());
    let duration = number.filter(|number| *number >= 0).and_then(|number| unit.checked_mul(number));
    duration.and_then(|duration| SystemClock.now().checked_sub(duration)).ok_or_else(invalid)
}

fn parse_checkpoint(text: &str) -> Result<Head, UsageError> {
    // `journal verify` prints the word `checkpoint` first.
    let checkpoint = text.strip_prefix("checkpoint").unwrap_or(text).trim();
    let parse = || {
        let (number, hash) = checkpoint.split_once(':')?;
        let number = number.parse::<u64>().ok().filter(|parsed| parsed.to_string() == number)?;
        Some(Head { number, hash: chain::from_hex(hash)? })
    };
    parse().ok_or_else(|| {
        UsageError(
            "`--checkpoint` must be the number of a receipt, `:`, and the 64 digits of its hash".to_owned(),
        )
    })
}

/// Finds an intent by its id or the first block of that id.
fn find(history: &History, intent: &str) -> anyhow::Result<IntentId> {
    match parse_first_block(intent) {
        None => Ok(IntentId::parse(intent).map_err(|error| UsageError(error.to_string()))?),
        Some(block) => match history.intents_with_prefix(block)?.as_slice() {
            [only] => Ok(*only),
            [] => bail!("the journal has no intent whose id begins with `{intent}`: {LISTS_ADVICE}"),
            several => {
                let several = several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                bail!("several intents begin with `{intent}`: {several}")
            }
        },
    }
}

fn show(history: &History, entry: &ReceiptEntry, json: bool) -> anyhow::Result<()> {
    let mut whole = entry_json(entry)?;
    add_arguments(&mut whole, history.arguments_of(entry.intent, &entry.agent)?);
    let changes = if json { Vec::new() } else { take_changes(&mut whole, entry)? };
    print_page(whole, &[("ended", entry.ended)], json);
    changes.iter().for_each(print);
    Ok(())
}

/// Takes the list of a staged run's file changes out of its report, and returns it as lines.
fn take_changes(whole: &mut Value, entry: &ReceiptEntry) -> anyhow::Result<Vec<String>> {
    if let Some(effects) = whole.pointer_mut("/report/usage/effects").and_then(Value::as_object_mut) {
        effects.shift_remove("files");
    }
    let recorded = entry.parse_receipt()?.outcome.usage.changes;
    let Some(staged) = recorded.filter(|changes| !changes.shown.is_empty()) else { return Ok(Vec::new()) };
    let state = "\nThese file changes were left to a decision (`a2g-executor effects show`):".to_owned();
    Ok([state].into_iter().chain(changes::lines(&staged)).collect())
}

/// Prints an entry as JSON, or as a page with these members as local times.
fn print_page(mut entry: Value, times: &[(&str, OffsetDateTime)], json: bool) {
    if json {
        return print(format_args!("{entry:#}"));
    }
    let here = LocalTime::read();
    for (name, at) in times {
        if let Some(shown) = entry.get_mut(*name) {
            *shown = here.format_milliseconds(*at).into();
        }
    }
    print(page(entry, columns(&std::io::stdout())));
}

/// Adds what the journal has of the arguments.
fn add_arguments(entry: &mut Value, stored: Option<StoredArguments>) {
    let Some(members) = entry.as_object_mut() else { return };
    match stored {
        Some(StoredArguments::Kept { arguments, left_out }) => {
            members.insert("arguments".to_owned(), arguments.into());
            if !left_out.is_empty() {
                members.insert("arguments_left_out".to_owned(), left_out.into());
            }
        }
        Some(StoredArguments::TooLarge { max_bytes }) => {
            members.insert("arguments_not_stored".to_owned(), encode::too_large(max_bytes).into());
        }
        None => {}
    }
}

/// The end of a message: the lists that have the intents.
const LISTS_ADVICE: &str =
    "`journal list`, `journal list --refused` and `journal list --waiting` list the known ones";

/// Parses the first block of an intent's id, as the list shows it.
pub(super) fn parse_first_block(text: &str) -> Option<[u8; 4]> {
    let is_block = text.len() == 8 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_block.then(|| u32::from_str_radix(text, 16).ok()).flatten().map(u32::to_be_bytes)
}

/// The titles of the columns that take the most room, and come last.
const NAMES: [&str; 2] = ["agent", "intent"];

/// A row of a list, with its agent and intent apart.
pub(super) struct Row {
    /// The first one has the time, the third one the tool.
    pub(super) cells: Vec<String>,
    pub(super) intent: IntentId,
    pub(super) agent: String,
}

impl Row {
    fn whole_names(&self) -> Vec<String> {
        vec![one_line(&self.agent), self.intent.to_string()]
    }

    /// The last part of the agent's DID, and the first block of the intent's id.
    fn short_names(&self) -> Vec<String> {
        let block = self.intent.to_string().split('-').next().unwrap_or_default().to_owned();
        vec![one_line(self.agent.rsplit(':').next().unwrap_or(&self.agent)), block]
    }
}

/// The titles and each row, as one line if the whole names fit into `width`. Otherwise a wide list has the names in
/// lines of their own, and a narrow one has their short forms, and truncates long agents and tools.
pub(super) fn lines(titles: &[&str], rows: &[Row], is_wide: bool, width: usize) -> Vec<String> {
    const TOOL: (usize, usize) = (2, 12);
    const MIN_AGENT: usize = 8;
    let table = |name_titles: &[&str], names: fn(&Row) -> Vec<String>, flexible: &[(usize, usize)]| {
        let titles = titles.iter().chain(name_titles).map(|title| (*title).to_owned()).collect();
        let cells = rows.iter().map(|row| row.cells.iter().cloned().chain(names(row)).collect());
        let rows = std::iter::once(titles).chain(cells).collect::<Vec<Vec<String>>>();
        align(&rows, flexible, width).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let whole = table(&NAMES, Row::whole_names, &[]);
    if whole.iter().all(|line| line.chars().count() <= width) {
        return whole;
    }
    if !is_wide {
        return table(&NAMES, Row::short_names, &[(titles.len(), MIN_AGENT), TOOL]);
    }
    let names = std::iter::once(NAMES.join(" ")).chain(rows.iter().map(|row| row.whole_names().join(" ")));
    let rows = table(&[], |_row| Vec::new(), &[]).into_iter().zip(names);
    rows.map(|(line, names)| format!("{line}\n{}", wrap("    ", &names, width))).collect()
}

fn list(entries: &[ReceiptEntry], wide: bool, json: bool) {
    if json {
        entries.iter().for_each(|entry| print(summary_json(entry)));
        return;
    }
    let here = LocalTime::read();
    let all = ["ended", "status", "tool", "number", "delivered"];
    let titles = if wide { &all[..] } else { &all[..3] };
    let rows = entries.iter().map(|entry| {
        let ReceiptEntry { number, intent, agent, tool, status, ended, delivered, .. } = entry;
        let ended = if wide { here.format_milliseconds(*ended) } else { here.format_seconds(*ended) };
        let mut cells = vec![ended, one_line(status), one_line(tool)];
        if wide {
            cells.extend([number.to_string(), if *delivered { "yes" } else { "no" }.to_owned()]);
        }
        Row { cells, intent: *intent, agent: agent.to_string() }
    });
    lines(titles, &rows.collect::<Vec<_>>(), wide, columns(&std::io::stdout())).iter().for_each(print);
}

fn list_refusals(refusals: &[RefusalEntry], wide: bool, json: bool) {
    if json {
        for RefusalEntry { at, intent, agent, tool, blocked_by, message } in refusals {
            print(json!({
                "refused": format_time(*at), "intent_id": intent.to_string(), "agent_did": agent,
                "tool": tool, "blocked_by": blocked_by, "message": message,
            }));
        }
        return;
    }
    let here = LocalTime::read();
    let rows = refusals.iter().map(|RefusalEntry { at, intent, agent, tool, blocked_by, .. }| {
        let at = if wide { here.format_milliseconds(*at) } else { here.format_seconds(*at) };
        let cells = vec![at, one_line(blocked_by), one_line(tool)];
        Row { cells, intent: *intent, agent: agent.to_string() }
    });
    let rows = rows.collect::<Vec<_>>();
    let width = columns(&std::io::stdout());
    let mut lines = lines(&["refused", "blocked by", "tool"], &rows, wide, width).into_iter();
    lines.next().iter().for_each(print);
    for (line, RefusalEntry { message, .. }) in lines.zip(refusals) {
        print(line);
        print(wrap("    ", &one_line(message), width));
    }
}

/// Reads the waiting intents that have not expired, ordered by expiry.
fn read_waiting(journal: &Path, limit: u64) -> anyhow::Result<Vec<Escalated>> {
    let now = SystemClock.now();
    let texts = History::open(journal)?.waiting_texts()?;
    let all = texts.iter().map(|text| Escalated::from_journal(text)).collect::<Result<Vec<_>, _>>()?;
    let mut waiting = all.into_iter().filter(|escalated| escalated.is_in_time(now)).collect::<Vec<_>>();
    waiting.sort_by_key(|escalated| escalated.verdict().expires_at);
    waiting.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(waiting)
}

fn list_waiting(waiting: &[Escalated], json: bool) {
    let until = |escalated: &Escalated| escalated.verdict().expires_at.map(format_time).unwrap_or_default();
    let risk = |escalated: &Escalated| escalated.verdict().risk.as_ref().map(|risk| risk.score);
    let reason = |escalated: &Escalated| escalated.verdict().reason.clone();
    if json {
        for escalated in waiting {
            let Call { intent, agent, tool, arguments, .. } = escalated.call();
            print(json!({
                "until": until(escalated), "intent_id": intent.to_string(), "agent_did": agent.as_str(),
                "tool": tool.as_str(), "risk_score": risk(escalated), "reason": reason(escalated), "arguments": arguments,
            }));
        }
        return;
    }
    let here = LocalTime::read();
    let mut listing = Listing::new(&["intent", "until", "tool", "agent", "reason", "arguments"]);
    for escalated in waiting {
        let Call { intent, agent, tool, arguments, .. } = escalated.call();
        listing.row([
            text(intent),
            text(escalated.verdict().expires_at.map_or_else(String::new, |at| here.format_seconds(at))),
            text(tool),
            text(agent),
            text(reason(escalated).unwrap_or_default()),
            text(summarize_arguments(arguments)),
        ]);
    }
    listing.show_blocks(std::io::stdout());
}

/// The start of each of the first [`MAX_SHOWN`] arguments, so that a long one does not hide the others.
fn summarize_arguments(arguments: &Map<String, Value>) -> String {
    let short = |(name, value): (&String, &Value)| {
        let value = value.to_string();
        match value.char_indices().nth(MAX_SHOWN_CHARS) {
            Some((end, _)) => format!("{name}: {}… ({} bytes)", value.split_at(end).0, value.len()),
            None => format!("{name}: {value}"),
        }
    };
    let shown = arguments.iter().take(MAX_SHOWN).map(short).collect::<Vec<_>>().join(", ");
    match arguments.len().checked_sub(MAX_SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}, and {more} more (--json has all)"),
    }
}

fn summary_json(entry: &ReceiptEntry) -> Value {
    let ReceiptEntry { number, intent, agent, tool, status, ended, delivered, hash, .. } = entry;
    json!({
        "number": number, "intent_id": intent.to_string(), "agent_did": agent, "tool": tool, "status": status,
        "ended": format_time(*ended), "delivered": delivered, "hash": to_hex(hash),
    })
}

/// The entry as JSON, with the report that the governor receives.
fn entry_json(entry: &ReceiptEntry) -> anyhow::Result<Value> {
    let mut whole = summary_json(entry);
    let receipt = entry.parse_receipt()?;
    let report = encode::report(&receipt);
    if let Some(members) = whole.as_object_mut() {
        members.insert("door".to_owned(), receipt.door.to_string().into());
        members.extend(receipt.approved_by.map(|by| ("approved_by".to_owned(), by.into())));
        members.insert("report".to_owned(), serde_json::from_str(report.get())?);
    }
    Ok(whole)
}

fn print_finding(finding: &Finding, json: bool) -> ExitCode {
    let holds = matches!(finding, Finding::Holds { .. });
    if json {
        print(json!({ "holds": holds, "found": finding_json(finding), "says": finding.to_string() }));
    } else {
        print(finding);
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn finding_json(finding: &Finding) -> Value {
    let id = |intent: &Option<IntentId>| intent.map(|intent| intent.to_string());
    match finding {
        Finding::Holds { receipts, pruned, records, head } => {
            let checkpoint = format!("{}:{}", head.number, to_hex(&head.hash));
            json!({ "receipts": receipts, "pruned": pruned, "records": records, "checkpoint": checkpoint })
        }
        Finding::Changed { record, intent } => json!({ "changed": record, "intent_id": id(intent) }),
        Finding::Missing { first, last } => json!({ "missing": { "first": first, "last": last } }),
        Finding::Cut { last, was } => json!({ "cut": { "last": last, "was": was } }),
        Finding::Order { record, intent, what } => {
            json!({ "order": record, "intent_id": id(intent), "what": what })
        }
        Finding::Row { table, record, what } => {
            json!({ "row": { "table": table, "record": record, "what": what } })
        }
        Finding::Unreadable { after, reason } => {
            json!({ "unreadable": { "after": after, "reason": reason } })
        }
        Finding::Schema { name } => json!({ "schema": name }),
        Finding::Differs { number } => json!({ "differs": number }),
        Finding::Short { last, number } => json!({ "short": { "last": last, "checkpoint": number } }),
        Finding::CheckpointPruned { number } => json!({ "checkpoint_pruned": number }),
    }
}

fn print_progress(checked: u64) {
    if std::io::stderr().is_terminal() {
        let _ignored = write!(std::io::stderr(), "\r{checked} records");
    }
}

fn end_progress() {
    if std::io::stderr().is_terminal() {
        note("\r");
    }
}

fn format_time(at: OffsetDateTime) -> String {
    at.truncate_to_millisecond().format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}
