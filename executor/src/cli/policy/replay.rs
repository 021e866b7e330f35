//! `policy replay`: the calls of a journal against another set of policies.
//!
//! ```text
//! journal, in the order of the chain ─┬─ start ──▶ decided on in the past so far, compared ─▶ counted as admitted
//!                                     ├─ end ────▶ what it has done
//!                                     └─ denial ─▶ counted
//! ```
//! The past is what has happened, and not what would have happened under the other set, which nobody knows. A call of
//! which something was not kept is counted by the reason, and never guessed.

use super::Workplace;
use crate::cli::journal::parse_time;
use crate::cli::layout::{Listing, text};
use crate::cli::output::{list, print};
use a2g_capability::Area;
use a2g_govern::DENIED_BY_GOVERNOR;
use a2g_govern::local::{Trial, TrialOutcome};
use a2g_journal::history::{History, HistoryError, RefusalEntry};
use a2g_journal::{DecidedEvent, NounCount, StartedCall};
use a2g_policy::{AdmittedCall, CedarSet, DecisionWord, Ledger, Possible};
use a2g_types::call::{Call, Priority, StoredArguments};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::memory::Charge;
use a2g_types::outcome::DecisionAct;
use a2g_types::verdict::{Decision, Verdict};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use time::{Duration, OffsetDateTime};

/// The time that policies may ask for, before a call.
const HISTORY: Duration = Duration::DAY;
/// The maximum number of intents that a row names.
const MAX_NAMED: usize = 3;

/// The options of the command.
pub(super) struct ReplayOptions {
    pub(super) since: String,
    pub(super) policies: Option<PathBuf>,
    pub(super) journal: Option<PathBuf>,
}

pub(super) fn replay(workplace: &Workplace, options: &ReplayOptions) -> anyhow::Result<ExitCode> {
    let ReplayOptions { since, policies, journal } = options;
    let since = parse_time(since)?;
    let set = workplace.compile(&workplace.sources(policies.as_deref())?)?;
    let journal = journal.as_deref().unwrap_or(&workplace.config.journal);
    let summary = Replay::run(workplace, &set, journal, since, None)?;
    summary.show();
    Ok(ExitCode::SUCCESS)
}

/// A replay in progress.
pub(super) struct Replay<'a> {
    set: &'a CedarSet,
    areas: Vec<Area>,
    max_requests: u64,
    since: OffsetDateTime,
    /// The agent whose calls are decided on; `None`: every agent.
    only: Option<&'a AgentDid>,
    ledger: Ledger,
    summary: Summary,
}

/// The result of a replay.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// The number of calls with the same decision.
    pub(super) alike: u64,
    /// The others: what was decided, what would be, and the rules that would.
    pub(super) flips: BTreeMap<(DecisionWord, DecisionWord, String), Counted>,
    /// Calls that cannot be replayed, by the reason.
    pub(super) unknown: BTreeMap<&'static str, Counted>,
    /// The number of receipts that were pruned, at any time.
    pruned: u64,
}

/// A number of calls, and the first of them.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) count: u64,
    intents: Vec<IntentId>,
}

impl Counted {
    fn add(&mut self, intent: Option<IntentId>) {
        self.count = self.count.saturating_add(1);
        self.intents.extend(intent.filter(|_| self.intents.len() < MAX_NAMED));
    }

    fn intents(&self) -> String {
        let named = u64::try_from(self.intents.len()).unwrap_or(u64::MAX);
        match self.count.saturating_sub(named) {
            0 => list(&self.intents),
            _more if self.intents.is_empty() => String::new(),
            more => format!("{}, and {more} more", list(&self.intents)),
        }
    }
}

impl<'a> Replay<'a> {
    /// Replays a journal; with `only`, the decisions on calls of one agent.
    pub(super) fn run(
        workplace: &Workplace,
        set: &'a CedarSet,
        journal: &Path,
        since: OffsetDateTime,
        only: Option<&'a AgentDid>,
    ) -> anyhow::Result<Summary> {
        let history = History::open(journal)?;
        let summary = Summary { pruned: history.pruned_receipts()?, ..Summary::default() };
        let mut replay = Self {
            set,
            areas: workplace.config.open_areas(),
            max_requests: workplace.config.ceilings.network_budgets.requests.into(),
            since,
            only,
            ledger: Ledger::default(),
            summary,
        };
        let from = since.checked_sub(HISTORY).unwrap_or(since);
        let read = history.decided_since(from, |event| -> Result<(), HistoryError> {
            replay.add(event);
            Ok(())
        });
        read.with_context(|| {
            let done = replay.summary.replayed();
            format!("the replay ends after {}", NounCount(done, "call"))
        })?;
        Ok(replay.summary)
    }

    fn add(&mut self, event: DecidedEvent) {
        match event {
            DecidedEvent::Started(started) => self.start(*started),
            DecidedEvent::Ended { ended, receipt } => self.ledger.end_of(ended, &receipt),
            DecidedEvent::Refused(refusal) => self.refuse(&refusal),
            DecidedEvent::Damaged { record: _, intent } => {
                self.count_unknown("its record cannot be read: `journal verify` says more", intent);
            }
        }
    }

    /// `true` if the decision on a call is compared.
    fn is_asked(&self, at: OffsetDateTime, agent: &str) -> bool {
        at >= self.since && self.only.is_none_or(|only| only.as_str() == agent)
    }

    fn refuse(&mut self, refusal: &RefusalEntry) {
        let RefusalEntry { at, intent, agent, message, .. } = refusal;
        // What was refused for other reasons was not decided by policies.
        if !message.starts_with(DENIED_BY_GOVERNOR) {
            return;
        }
        if let Ok(agent) = AgentDid::parse(agent) {
            self.ledger.deny(*at, &agent);
        }
        if self.is_asked(*at, &refusal.agent) {
            self.count_unknown("it was denied, and arguments of denied calls are not kept", Some(*intent));
        }
    }

    fn start(&mut self, mut started: StartedCall) {
        let StartedCall { at, intent, .. } = started;
        // A decision on file changes is no call.
        if DecisionAct::of_tool(&started.tool).is_some() {
            return;
        }
        let Some(verdict) = started.verdict.take() else {
            if self.is_asked(at, &started.agent) {
                self.count_unknown("its verdict did not come from the executor's governor", Some(intent));
            }
            return;
        };
        if self.is_asked(at, &started.agent) {
            match self.call(&mut started) {
                Ok(call) => {
                    let past = self.ledger.view(self.set, &call.agent);
                    let risk = verdict.risk.as_ref();
                    let trial = Trial { call: &call, at, past: &past, risk, open: Some(&self.areas) };
                    let outcome = trial.decide_by(self.set);
                    self.summary.compare(intent, verdict.decision, &outcome);
                }
                Err(reason) => self.count_unknown(reason, Some(intent)),
            }
        }
        self.admit(&started, &verdict);
    }

    /// Counts a call that has run.
    fn admit(&mut self, started: &StartedCall, verdict: &Verdict) {
        let Ok(agent) = AgentDid::parse(&started.agent) else { return };
        let Ok(tool) = ToolName::parse(&started.tool) else { return };
        let possible = Possible::of_verdict(verdict, self.max_requests);
        let call = AdmittedCall { agent: &agent, intent: started.intent, tool: &tool, possible };
        let admission = self.ledger.admit(started.at, call);
        self.ledger.begin(&admission);
    }

    /// The call as it was; or the reason why nobody knows it.
    fn call(&self, started: &mut StartedCall) -> Result<Call, &'static str> {
        let unreadable = |_| "its agent or tool cannot be read";
        let agent = AgentDid::parse(&started.agent).map_err(unreadable)?;
        let tool = ToolName::parse(&started.tool).map_err(unreadable)?;
        if !self.set.knows(&tool) {
            return Err("the catalogue does not have its tool any more");
        }
        let row = started.arguments.take().ok_or("its arguments were not kept (`journal.arguments`)")?;
        let arguments = match row.arguments {
            StoredArguments::Kept { arguments, left_out } if left_out.is_empty() => arguments,
            StoredArguments::Kept { .. } => {
                return Err("members of its arguments are never kept (`journal.arguments`)");
            }
            StoredArguments::TooLarge { .. } => return Err("its arguments were too long to be kept"),
        };
        // Its door and its parent are in the receipt.
        let receipt = started.receipt.as_ref().ok_or("it has not ended")?;
        Ok(Call {
            door: receipt.door,
            agent,
            intent: started.intent,
            is_new: false,
            tool,
            arguments,
            context: None,
            caller_timeout: None,
            priority: Priority::Normal,
            charge: Charge::default(),
            parent: receipt.parent.clone(),
            caller_tools: None,
            session: row.session.map(Into::into),
        })
    }

    fn count_unknown(&mut self, reason: &'static str, intent: Option<IntentId>) {
        self.summary.unknown.entry(reason).or_default().add(intent);
    }
}

impl Summary {
    fn compare(&mut self, intent: IntentId, was: Decision, outcome: &TrialOutcome) {
        let was = DecisionWord::from(was);
        let would_be = DecisionWord::from(outcome.verdict.decision);
        if was == would_be {
            self.alike = self.alike.saturating_add(1);
            return;
        }
        let rules = match outcome.decided_by.as_slice() {
            [] => "no permit".to_owned(),
            [only] => only.to_string(),
            [first, others @ ..] => format!("{first} and {} more", others.len()),
        };
        self.flips.entry((was, would_be, rules)).or_default().add(Some(intent));
    }

    /// The number of calls that would be decided otherwise.
    pub(super) fn flipped(&self) -> u64 {
        self.flips.values().map(|counted| counted.count).sum()
    }

    fn replayed(&self) -> u64 {
        self.alike.saturating_add(self.flipped())
    }

    pub(super) fn show(&self) {
        if !self.flips.is_empty() {
            let mut listing = Listing::new(&["calls", "was", "would be", "by", "intents"]);
            for ((was, would_be, rules), counted) in &self.flips {
                let cells = [text(counted.count), text(was), text(would_be), text(rules)];
                listing.row(cells.into_iter().chain([text(counted.intents())]));
            }
            listing.show(std::io::stdout());
        }
        if !self.unknown.is_empty() {
            let mut listing = Listing::new(&["calls", "not replayed", "intents"]);
            for (reason, counted) in &self.unknown {
                listing.row([text(counted.count), text(reason), text(counted.intents())]);
            }
            listing.show(std::io::stdout());
        }
        if self.pruned > 0 {
            print(format_args!(
                "{} pruned from this journal, of any time: their calls are not in the replay",
                NounCount(self.pruned, "receipt")
            ));
        }
        print(format_args!(
            "{} replayed: {} decided alike, {} otherwise",
            NounCount(self.replayed(), "call"),
            self.alike,
            self.flipped()
        ));
    }
}
