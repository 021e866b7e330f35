//! Intents that wait for a person, which the journal keeps as well, and what a person denied of late.
//!
//! Whoever changes what waits tells the journal while nobody else can change it, so that the journal hears of
//! changes in the order in which they were made. Its answers are waited for afterwards.

use super::{Whose, not_usable};
use crate::call::Call;
use crate::fault::Fault;
use crate::govern::Escalated;
use crate::ident::{AgentDid, IntentId};
use crate::journal::Asked;
use crate::verdict::Verdict;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use tokio::sync::watch;

/// How many intents may wait at once.
const MOST_WAITING: usize = 1000;
/// How many of them may be one agent's.
const MOST_OF_AN_AGENT: usize = MOST_WAITING / 4;

/// All escalated intents whose verdicts have not expired.
#[derive(Debug)]
pub(super) struct Escalations {
    waiting: Mutex<HashMap<IntentId, Held>>,
    /// What a person denied, until the verdict expires that they were asked about: the same is not put to them again.
    denied: Mutex<HashMap<IntentId, Denied>>,
    /// Changes whenever something waits no longer.
    changes: watch::Sender<()>,
}

/// An intent that a person denied.
#[derive(Debug)]
struct Denied {
    until: OffsetDateTime,
    call: Call,
    fault: Fault,
}

/// An intent that waits.
#[derive(Debug)]
struct Held {
    escalated: Escalated,
    /// Somebody has approved it, and it is about to run or to wait again. Nobody else decides meanwhile.
    decided: bool,
}

impl Held {
    fn new(escalated: Escalated) -> Self {
        Self { escalated, decided: false }
    }

    fn call(&self) -> &Call {
        self.escalated.call()
    }

    fn asked(&self) -> Asked {
        Asked::of(self.call())
    }

    fn waits(&self, now: OffsetDateTime) -> bool {
        self.escalated.waits(now)
    }
}

impl Escalations {
    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Held>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With those that an earlier process held; beside them, those whose verdicts have expired.
    pub(super) fn new(held: &[String], now: OffsetDateTime) -> (Self, Vec<Asked>) {
        let held = held.iter().filter_map(|text| {
            let read = Escalated::from_journal(text);
            read.inspect_err(|error| tracing::error!(%error, "an escalated intent of the journal is lost"))
                .ok()
        });
        let mut held = held.map(|held| (held.call().intent, Held::new(held))).collect::<HashMap<_, _>>();
        let expired = held.extract_if(|_, held| !held.waits(now)).map(|(_, held)| held.asked()).collect();
        (
            Self { waiting: Mutex::new(held), denied: Mutex::default(), changes: watch::Sender::new(()) },
            expired,
        )
    }

    /// Tells whenever something waits no longer.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// How many wait.
    pub(super) fn count(&self, now: OffsetDateTime) -> usize {
        self.lock().values().filter(|held| held.waits(now)).count()
    }

    /// Holds an intent, and says whether it is new. The first verdict for it stays. `said` hears which
    /// others have expired.
    pub(super) fn hold<T>(
        &self,
        escalated: Escalated,
        now: OffsetDateTime,
        said: impl FnOnce(Vec<Asked>) -> T,
    ) -> Result<(bool, T), Fault> {
        let mut waiting = self.lock();
        let intent = escalated.call().intent;
        let gone = waiting.extract_if(|_, held| !held.waits(now)).map(|(_, held)| held.asked()).collect();
        let new = !waiting.contains_key(&intent);
        let theirs = waiting.values().filter(|held| held.call().agent == escalated.call().agent).count();
        if new && (waiting.len() >= MOST_WAITING || theirs >= MOST_OF_AN_AGENT) {
            return Err(Fault::Busy {
                message: "too many intents wait for a person".to_owned(),
                retry_after_ms: 60_000,
            });
        }
        waiting.entry(intent).or_insert_with(|| Held::new(escalated));
        Ok((new, said(gone)))
    }

    /// Remembers that somebody denied an intent that waited. The latest are remembered.
    pub(super) fn deny(&self, escalated: &Escalated, denied: Fault, now: OffsetDateTime) {
        let mut all = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, denied| denied.until > now);
        if all.len() >= MOST_WAITING
            && let Some(first) = all.iter().min_by_key(|(_, denied)| denied.until).map(|(intent, _)| *intent)
        {
            all.remove(&first);
        }
        if let Some(until) = escalated.verdict().expires_at {
            let call = escalated.call().clone();
            all.insert(call.intent, Denied { until, call, fault: denied });
        }
    }

    /// Refuses a call that somebody denied of late, and one that has the intent of such a call.
    pub(super) fn check_denied(&self, call: &Call, now: OffsetDateTime) -> Result<(), Fault> {
        let all = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&call.intent).filter(|denied| denied.until > now) {
            Some(denied) if same(&denied.call, call) => Err(denied.fault.clone()),
            Some(_) => Err(not_usable(call.intent)),
            None => Ok(()),
        }
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
        self.lock().get(&intent).filter(|held| !held.decided).map(|held| held.escalated.clone())
    }

    /// One that nobody else decides about until it was [given back](Self::give_back) or [has run](Self::runs).
    pub(super) fn decide(&self, intent: IntentId) -> Option<Escalated> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| !held.decided)?;
        held.decided = true;
        Some(held.escalated.clone())
    }

    /// It waits on: what was decided cannot be done.
    pub(super) fn give_back(&self, intent: IntentId) {
        if let Some(held) = self.lock().get_mut(&intent) {
            held.decided = false;
        }
    }

    /// It waits no longer: it is among what runs.
    pub(super) fn runs(&self, intent: IntentId) {
        self.lock().remove(&intent);
        self.changes.send_replace(());
    }

    /// Drops one about which nobody has decided, if it is one of these agents', and says so.
    pub(super) fn drop_one<T>(
        &self,
        intent: IntentId,
        of: Whose<'_>,
        said: impl FnOnce(Vec<Asked>) -> T,
    ) -> Option<T> {
        let mut waiting = self.lock();
        let asked = waiting.get(&intent).filter(|held| !held.decided && of(&held.call().agent))?.asked();
        waiting.remove(&intent);
        self.changes.send_replace(());
        Some(said(vec![asked]))
    }

    /// Drops all of these agents, counts them and says so.
    pub(super) fn drop_all<T>(&self, of: Whose<'_>, said: impl FnOnce(Vec<Asked>) -> T) -> (usize, T) {
        let mut waiting = self.lock();
        let theirs = |held: &Held| of(&held.call().agent);
        let gone =
            waiting.extract_if(|_, held| theirs(held)).map(|(_, held)| held.asked()).collect::<Vec<_>>();
        self.changes.send_replace(());
        (gone.len(), said(gone))
    }
}

fn same(a: &Call, b: &Call) -> bool {
    a.agent == b.agent && a.tool == b.tool && a.arguments == b.arguments
}
