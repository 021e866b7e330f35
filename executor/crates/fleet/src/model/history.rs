//! What the simulation has seen, and what has to be true of it.

use super::world::ProcessId;
use a2g_types::ident::IntentId;
use std::collections::HashMap;

#[derive(Debug, Default)]
struct IntentHistory {
    /// The process of the guest, from its begin to its end.
    running: Option<ProcessId>,
    /// `true` if the claim of the running guest has ended.
    is_outlived: bool,
    begun: u32,
    /// The receipt in the claim.
    end: Option<String>,
    answers: Vec<String>,
    reports: Vec<String>,
    is_replayed: bool,
    /// `true` once a node has answered that the intent is denied.
    is_denied: bool,
    /// The decision on each wait for a person, by its number.
    decisions: HashMap<u64, String>,
    /// The waits of which a node has answered that they are approved.
    approved: Vec<u64>,
    /// The first wait whose approval counts: those of earlier ones were withdrawn while no node had claimed the intent.
    first_wait: u64,
}

/// The events of all intents.
#[derive(Debug, Default)]
pub(super) struct History {
    intents: HashMap<IntentId, IntentHistory>,
    proofs: HashMap<u8, IntentId>,
}

impl History {
    fn of(&mut self, intent: IntentId) -> &mut IntentHistory {
        self.intents.entry(intent).or_default()
    }

    pub(super) fn end(&self, intent: IntentId) -> Option<&String> {
        self.intents.get(&intent)?.end.as_ref()
    }

    pub(super) fn set_end(&mut self, intent: IntentId, end: Option<String>) {
        self.of(intent).end = end;
    }

    pub(super) fn running(&self, intent: IntentId) -> Option<ProcessId> {
        self.intents.get(&intent)?.running
    }

    pub(super) fn outlived(&mut self, intent: IntentId) {
        self.of(intent).is_outlived = true;
    }

    /// A guest begins. Returns `false` if one has begun before.
    pub(super) fn begin(&mut self, intent: IntentId, process: ProcessId) -> bool {
        let history = self.of(intent);
        history.begun += 1;
        (history.running, history.is_outlived) = (Some(process), false);
        history.begun == 1
    }

    /// The intent is denied. Returns `false` if a guest has begun before.
    pub(super) fn deny(&mut self, intent: IntentId) -> bool {
        let history = self.of(intent);
        history.is_denied = true;
        history.begun == 0
    }

    /// The value of an intent has this decision. Returns `false` if its wait had another one.
    pub(super) fn decide(&mut self, intent: IntentId, number: u64, decision: String) -> bool {
        let decisions = &mut self.of(intent).decisions;
        *decisions.entry(number).or_insert_with(|| decision.clone()) == decision
    }

    /// An intent is in this wait, and no node has claimed it.
    pub(super) fn wait(&mut self, intent: IntentId, number: u64) {
        self.of(intent).first_wait = number;
    }

    /// Returns `true` if an approval in this wait counts.
    pub(super) fn is_approved(&mut self, intent: IntentId, number: u64) -> bool {
        let history = self.of(intent);
        let decision = history.decisions.get(&number);
        number >= history.first_wait && decision.is_some_and(|decision| decision.contains("approved"))
    }

    /// A person is told that their approval counts.
    pub(super) fn approve(&mut self, intent: IntentId, number: u64) {
        self.of(intent).approved.push(number);
    }

    /// The latest wait that a person was told to have approved.
    pub(super) fn approved(&self, intent: IntentId) -> Option<u64> {
        self.intents.get(&intent)?.approved.iter().copied().max()
    }

    pub(super) fn is_denied(&self, intent: IntentId) -> bool {
        self.intents.get(&intent).is_some_and(|history| history.is_denied)
    }

    /// A guest begins with a proof. Returns `false` if a guest of another intent has used it.
    pub(super) fn use_proof(&mut self, proof: u8, intent: IntentId) -> bool {
        *self.proofs.entry(proof).or_insert(intent) == intent
    }

    /// Returns `true` if the claim of a running guest has ended.
    pub(super) fn is_outlived(&mut self, intent: IntentId) -> bool {
        self.of(intent).is_outlived
    }

    pub(super) fn stop(&mut self, intent: IntentId) {
        self.of(intent).running = None;
    }

    /// A process is killed, and its guests with it.
    pub(super) fn kill(&mut self, node: usize) {
        for history in self.intents.values_mut() {
            history.running = history.running.filter(|process| process.node != node);
        }
    }

    pub(super) fn answer(&mut self, intent: IntentId, receipt: String) {
        self.of(intent).answers.push(receipt);
    }

    pub(super) fn replay(&mut self, intent: IntentId) {
        self.of(intent).is_replayed = true;
    }

    pub(super) fn report(&mut self, intent: IntentId, receipt: String) {
        self.of(intent).reports.push(receipt);
    }

    /// The first thing that is wrong with an intent.
    pub(super) fn check(&self, intent: IntentId) -> Option<String> {
        let history = self.intents.get(&intent)?;
        let mut all = history.answers.iter().chain(&history.reports);
        if let Some(first) = all.next()
            && let Some(other) = all.find(|other| *other != first)
        {
            return Some(format!("the receipts {first} and {other} of one intent differ"));
        }
        let has_ended = history.begun > 0 || !history.answers.is_empty();
        (has_ended && history.reports.is_empty()).then(|| "an intent has no report".to_owned())
    }

    /// Returns `true` if the governor has a report.
    pub(super) fn is_reported(&self, intent: IntentId) -> bool {
        self.intents.get(&intent).is_some_and(|history| !history.reports.is_empty())
    }

    /// Returns `true` if a caller got a receipt.
    pub(super) fn is_answered(&self, intent: IntentId) -> bool {
        self.intents.get(&intent).is_some_and(|history| !history.answers.is_empty())
    }

    pub(super) fn is_replayed(&self, intent: IntentId) -> bool {
        self.intents.get(&intent).is_some_and(|history| history.is_replayed)
    }

    pub(super) fn begun(&self) -> u64 {
        self.intents.values().map(|history| u64::from(history.begun)).sum()
    }

    /// The number of reports, and of those that were delivered again.
    pub(super) fn reports(&self) -> (u64, u64) {
        let counts = self.intents.values().map(|history| history.reports.len() as u64);
        counts.fold((0, 0), |(all, again), count| (all + count, again + count.saturating_sub(1)))
    }
}
