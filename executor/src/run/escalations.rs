//! Intents that wait for a person, which the journal keeps as well.
//!
//! ```text
//! hold ─▶ waits ─ decide ─▶ decided ─ approved ─▶ runs, or waits to run ─ resume ─▶ decided
//!           └─ drop_one, drop_all: denied, cancelled, revoked, expired
//! ```
//! Whoever changes what waits tells the journal while nobody else can change it, so that the journal hears of
//! changes in the order in which they were made. Its answers are waited for afterwards.

use super::{Whose, not_usable};
use crate::call::Call;
use crate::fault::Fault;
use crate::govern::Escalated;
use crate::ident::{AgentDid, IntentId};
use crate::journal::{Approval, HeldIntent};
use crate::verdict::Verdict;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use tokio::sync::watch;

/// How many intents may wait at once.
const MAX_WAITING: usize = 1000;
/// How many of them may be one agent's.
const MAX_WAITING_PER_AGENT: usize = MAX_WAITING / 4;

/// All escalated intents whose verdicts have not expired.
#[derive(Debug)]
pub(super) struct Escalations {
    waiting: Mutex<HashMap<IntentId, Held>>,
    /// Changes whenever something waits no longer.
    changes: watch::Sender<()>,
}

/// An intent that waits.
#[derive(Debug)]
struct Held {
    escalated: Escalated,
    /// Somebody decides about it just now, and nobody else meanwhile.
    decided: bool,
    /// It was approved, and waits to run.
    approval: Option<Approval>,
}

impl Held {
    fn new(escalated: Escalated, approval: Option<Approval>) -> Self {
        Self { escalated, decided: false, approval }
    }

    fn call(&self) -> &Call {
        self.escalated.call()
    }

    fn waits(&self, now: OffsetDateTime) -> bool {
        self.escalated.is_pending(now)
    }

    fn is_undecided(&self) -> bool {
        !self.decided && self.approval.is_none()
    }
}

impl Escalations {
    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Held>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With those that an earlier process held; beside them, those whose verdicts have expired.
    pub(super) fn new(held: Vec<HeldIntent>, now: OffsetDateTime) -> (Self, Vec<Escalated>) {
        let held = held.into_iter().filter_map(|HeldIntent { text, approval }| {
            let read = Escalated::from_journal(&text);
            read.inspect_err(|error| tracing::error!(%error, "an escalated intent of the journal is lost"))
                .ok()
                .map(|escalated| (escalated.call().intent, Held::new(escalated, approval)))
        });
        let mut held = held.collect::<HashMap<_, _>>();
        let expired = held.extract_if(|_, held| !held.waits(now)).map(|(_, held)| held.escalated).collect();
        (Self { waiting: Mutex::new(held), changes: watch::Sender::new(()) }, expired)
    }

    /// Tells whenever something waits no longer.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The number of intents that wait for a person.
    pub(super) fn count(&self, now: OffsetDateTime) -> usize {
        self.lock().values().filter(|held| held.waits(now) && held.approval.is_none()).count()
    }

    /// Those that were approved and wait to run.
    pub(super) fn approved(&self) -> Vec<IntentId> {
        self.lock().iter().filter(|(_, held)| held.approval.is_some()).map(|(intent, _)| *intent).collect()
    }

    /// Holds an intent, and says whether it is new. The first verdict for it stays. `said` hears which
    /// others have expired.
    pub(super) fn hold<T>(
        &self,
        escalated: Escalated,
        now: OffsetDateTime,
        said: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Result<(bool, T), Fault> {
        let mut waiting = self.lock();
        let intent = escalated.call().intent;
        let gone = waiting.extract_if(|_, held| !held.waits(now)).map(|(_, held)| held.escalated).collect();
        let new = !waiting.contains_key(&intent);
        let theirs = waiting.values().filter(|held| held.call().agent == escalated.call().agent).count();
        if new && (waiting.len() >= MAX_WAITING || theirs >= MAX_WAITING_PER_AGENT) {
            return Err(Fault::Busy {
                message: "too many intents wait for a person".to_owned(),
                retry_after_ms: 60_000,
            });
        }
        waiting.entry(intent).or_insert_with(|| Held::new(escalated, None));
        Ok((new, said(gone)))
    }

    /// The verdict of a call that waits already.
    pub(super) fn waiting(&self, call: &Call, now: OffsetDateTime) -> Result<Option<Verdict>, Fault> {
        match self.lock().get(&call.intent).filter(|held| held.waits(now)) {
            None => Ok(None),
            Some(held) if same(held.call(), call) => Ok(Some(held.escalated.verdict().clone())),
            Some(_) => Err(not_usable(call.intent)),
        }
    }

    /// Whose intent it is, when it waits.
    pub(super) fn whose(&self, intent: IntentId, now: OffsetDateTime) -> Option<AgentDid> {
        self.lock().get(&intent).filter(|held| held.waits(now)).map(|held| held.call().agent.clone())
    }

    /// One about which nobody has decided.
    pub(super) fn undecided(&self, intent: IntentId) -> Option<Escalated> {
        self.lock().get(&intent).filter(|held| held.is_undecided()).map(|held| held.escalated.clone())
    }

    /// Takes an intent to decide about it; no one else can until it is [given back](Self::give_back) or
    /// [runs](Self::runs).
    pub(super) fn decide(&self, intent: IntentId) -> Option<Escalated> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| held.is_undecided())?;
        held.decided = true;
        Some(held.escalated.clone())
    }

    /// Takes an approved intent to run it; `None` when it was cancelled or revoked.
    pub(super) fn resume(&self, intent: IntentId) -> Option<(Escalated, Approval)> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| !held.decided)?;
        let approval = held.approval.clone()?;
        held.decided = true;
        Some((held.escalated.clone(), approval))
    }

    /// It waits on: what was decided cannot be done.
    pub(super) fn give_back(&self, intent: IntentId) {
        if let Some(held) = self.lock().get_mut(&intent) {
            held.decided = false;
        }
    }

    /// It was approved and cannot run now: until it is [resumed](Self::resume), it can be taken back.
    pub(super) fn wait_to_run(&self, escalated: Escalated, approval: Approval) {
        self.lock().insert(escalated.call().intent, Held::new(escalated, Some(approval)));
    }

    /// It waits no longer: it is among what runs, or can run no more.
    pub(super) fn runs(&self, intent: IntentId) {
        self.lock().remove(&intent);
        self.changes.send_replace(());
    }

    /// Drops an intent of these agents that nobody is deciding about, and gives it to `said`.
    pub(super) fn drop_one<T>(
        &self,
        intent: IntentId,
        of: Whose<'_>,
        said: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Option<T> {
        self.drop_if(intent, |held| !held.decided && of(&held.call().agent), said)
    }

    /// Drops an intent that nobody has decided about, and gives it to `said`.
    pub(super) fn deny<T>(&self, intent: IntentId, said: impl FnOnce(Vec<Escalated>) -> T) -> Option<T> {
        self.drop_if(intent, Held::is_undecided, said)
    }

    fn drop_if<T>(
        &self,
        intent: IntentId,
        may: impl FnOnce(&Held) -> bool,
        said: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Option<T> {
        let mut waiting = self.lock();
        waiting.get(&intent).filter(|held| may(held))?;
        let gone = waiting.remove(&intent)?;
        self.changes.send_replace(());
        Some(said(vec![gone.escalated]))
    }

    /// Drops all of these agents, counts them and says so.
    pub(super) fn drop_all<T>(&self, of: Whose<'_>, said: impl FnOnce(Vec<Escalated>) -> T) -> (usize, T) {
        let mut waiting = self.lock();
        let theirs = |held: &Held| of(&held.call().agent);
        let gone = waiting.extract_if(|_, held| theirs(held)).map(|(_, held)| held.escalated);
        let gone = gone.collect::<Vec<_>>();
        self.changes.send_replace(());
        (gone.len(), said(gone))
    }
}

fn same(a: &Call, b: &Call) -> bool {
    a.agent == b.agent && a.tool == b.tool && a.arguments == b.arguments
}
