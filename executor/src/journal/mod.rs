//! What happened to each intent, and which reports still have to be delivered.
//!
//! This journal is in memory: it holds its promises for as long as the process lives. Its calls are
//! those that a durable journal will keep: claim, started, finished, next report, acknowledged.
//!
//! ```text
//! claim ─▶ Escalated ─▶ Queued ─▶ Running ─▶ Finished (receipt, queued for delivery)
//!   │          └──────────────────▶ released: refused before it ran, and may be claimed again
//!   ├─ same content: the one record's receipt, now or when it is there
//!   ├─ other content: conflict
//!   └─ a new intent, with the proof of another one: replayed
//! ```
//! An intent is remembered at least until its verdict has expired, so that no verdict can run twice.
//! Its receipt is kept while there is room.

use crate::call::Call;
use crate::ident::{AgentDid, IntentId, ProofId};
use crate::outcome::Receipt;
use crate::verdict::Verdict;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};

/// How many intents are remembered at once.
const MOST_RECORDS: usize = 200_000;
/// How many bytes of output the kept receipts may hold. The oldest are dropped first; that their
/// intents ran is remembered all the same.
const MOST_KEPT_BYTES: u64 = 256 << 20;
/// How much more a parsed result may take in memory than as text: measured at 60 for small objects.
const PARSED_FACTOR: u64 = 60;
/// What a receipt takes beside the output of its tool.
const RECEIPT_BYTES: u64 = 2 << 10;
/// How many reports may wait for the governor.
const MOST_UNDELIVERED: usize = 10_000;

/// Where an intent is.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// It waits for a person.
    Escalated,
    /// It waits for a slot.
    Queued,
    /// Its guest runs.
    Running,
    /// It is over.
    Finished(Arc<Receipt>),
    /// It is over, and its receipt is no longer kept.
    Forgotten,
    /// It was refused before it ran.
    Released,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claim {
    /// The intent is new; whoever claimed it has to finish or release it.
    New,
    /// The intent is known, with the same content.
    Known(watch::Receiver<Stage>),
    /// The intent is known, with other content.
    Conflict,
    /// The intent is new, and its proof was used for another one.
    Replayed,
}

/// Why nothing more is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Too many intents whose verdicts have not expired.
    #[error("too many intents are remembered whose verdicts have not expired yet")]
    Records,
    /// Too many reports wait for the governor.
    #[error("too many reports wait for the governor, which does not acknowledge them")]
    Reports,
}

#[derive(Debug)]
struct Record {
    agent: AgentDid,
    content: [u8; 32],
    verdict: Option<Arc<Verdict>>,
    stage: watch::Sender<Stage>,
    keep_until: OffsetDateTime,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<IntentId, Record>,
    /// The intent for which each proof was used; as long as there is a record of it.
    proofs: HashMap<ProofId, IntentId>,
    /// Reports that are not being delivered at the moment.
    waiting: VecDeque<Arc<Receipt>>,
    /// Reports that are being delivered.
    in_flight: usize,
    /// Finished intents whose receipts are kept, oldest first, with the bytes of each.
    kept: VecDeque<(IntentId, u64)>,
    kept_bytes: u64,
}

/// The journal.
#[derive(Debug, Default)]
pub struct Journal {
    inner: Mutex<Inner>,
    report_ready: Notify,
    delivered: Notify,
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims an intent and the proof that it came with, both to be kept at least until `keep_until`.
    ///
    /// # Errors
    /// [`Full`] when nothing more can be remembered without forgetting what must not be forgotten.
    pub fn claim(
        &self,
        call: &Call,
        proof: Option<&ProofId>,
        keep_until: OffsetDateTime,
        now: OffsetDateTime,
    ) -> Result<Claim, Full> {
        let content = content(call);
        let mut inner = self.lock();
        if proof.and_then(|proof| inner.proofs.get(proof)).is_some_and(|used_for| *used_for != call.intent) {
            return Ok(Claim::Replayed);
        }
        if let Some(record) = inner.records.get_mut(&call.intent) {
            let released = *record.stage.borrow() == Stage::Released;
            record.keep_until = record.keep_until.max(keep_until);
            return Ok(match (record.content == content, released) {
                (false, _) => Claim::Conflict,
                (true, false) => Claim::Known(record.stage.subscribe()),
                (true, true) => {
                    record.stage.send_replace(Stage::Queued);
                    inner.proofs.extend(proof.map(|proof| (proof.clone(), call.intent)));
                    Claim::New
                }
            });
        }
        if inner.waiting.len() + inner.in_flight >= MOST_UNDELIVERED {
            return Err(Full::Reports);
        }
        if inner.records.len() >= MOST_RECORDS {
            inner.forget_expired(now);
            if inner.records.len() >= MOST_RECORDS {
                return Err(Full::Records);
            }
        }
        let (stage, _) = watch::channel(Stage::Queued);
        let record = Record { agent: call.agent.clone(), content, verdict: None, stage, keep_until };
        inner.records.insert(call.intent, record);
        inner.proofs.extend(proof.map(|proof| (proof.clone(), call.intent)));
        Ok(Claim::New)
    }

    /// Whether the intent is known, and with the same content: asked before a governor is. A verdict
    /// that came with the call keeps the intent known until it has expired as well.
    #[must_use]
    pub fn find(
        &self,
        call: &Call,
        expires_at: Option<OffsetDateTime>,
    ) -> Option<(Claim, Option<Arc<Verdict>>)> {
        let mut inner = self.lock();
        let record = inner.records.get_mut(&call.intent)?;
        record.keep_until = record.keep_until.max(expires_at.unwrap_or(record.keep_until));
        if record.content != content(call) {
            return Some((Claim::Conflict, None));
        }
        if *record.stage.borrow() == Stage::Released {
            return None;
        }
        Some((Claim::Known(record.stage.subscribe()), record.verdict.clone()))
    }

    /// Notes the verdict of a claimed intent.
    pub fn decided(&self, intent: IntentId, verdict: Arc<Verdict>) {
        if let Some(record) = self.lock().records.get_mut(&intent) {
            record.verdict = Some(verdict);
        }
    }

    /// Moves a claimed intent to a stage before its end.
    pub fn advance(&self, intent: IntentId, stage: Stage) {
        if let Some(record) = self.lock().records.get(&intent) {
            record.stage.send_replace(stage);
        }
    }

    /// Records the end of a run and queues its report.
    pub fn finished(&self, receipt: Arc<Receipt>) {
        let mut inner = self.lock();
        if let Some(record) = inner.records.get(&receipt.intent) {
            record.stage.send_replace(Stage::Finished(Arc::clone(&receipt)));
        }
        inner.keep(&receipt);
        inner.waiting.push_back(receipt);
        drop(inner);
        self.report_ready.notify_one();
    }

    /// Where an intent is, and whose it is.
    #[must_use]
    pub fn stage(&self, intent: IntentId) -> Option<(AgentDid, Stage)> {
        let inner = self.lock();
        let record = inner.records.get(&intent)?;
        let stage = record.stage.borrow().clone();
        (stage != Stage::Released).then(|| (record.agent.clone(), stage))
    }

    /// The next report to deliver; waits until there is one.
    pub async fn next_report(&self) -> Arc<Receipt> {
        loop {
            let ready = self.report_ready.notified();
            {
                let mut inner = self.lock();
                if let Some(receipt) = inner.waiting.pop_front() {
                    inner.in_flight += 1;
                    if !inner.waiting.is_empty() {
                        self.report_ready.notify_one();
                    }
                    return receipt;
                }
            }
            ready.await;
        }
    }

    /// The governor has a report.
    pub fn acknowledged(&self) {
        let mut inner = self.lock();
        inner.in_flight = inner.in_flight.saturating_sub(1);
        drop(inner);
        self.delivered.notify_waiters();
    }

    /// How many reports the governor does not have yet.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        let inner = self.lock();
        inner.waiting.len() + inner.in_flight
    }

    /// Waits until the governor has every report.
    pub async fn all_delivered(&self) {
        loop {
            let delivered = self.delivered.notified();
            if self.undelivered() == 0 {
                return;
            }
            delivered.await;
        }
    }
}

impl Inner {
    /// Keeps a receipt, and drops the oldest when there are too many bytes of them.
    fn keep(&mut self, receipt: &Receipt) {
        let bytes =
            receipt.outcome.metrics.output_bytes.saturating_mul(PARSED_FACTOR).saturating_add(RECEIPT_BYTES);
        self.kept.push_back((receipt.intent, bytes));
        self.kept_bytes += bytes;
        while self.kept_bytes > MOST_KEPT_BYTES && self.kept.len() > 1 {
            let Some((oldest, bytes)) = self.kept.pop_front() else { return };
            self.kept_bytes = self.kept_bytes.saturating_sub(bytes);
            if let Some(record) = self.records.get_mut(&oldest) {
                record.stage.send_replace(Stage::Forgotten);
                record.verdict = None;
            }
        }
    }

    fn forget_expired(&mut self, now: OffsetDateTime) {
        self.records.retain(|_, record| {
            let stage = record.stage.borrow();
            let over = matches!(*stage, Stage::Finished(_) | Stage::Forgotten | Stage::Released);
            !over || record.keep_until > now
        });
        let Self { records, proofs, .. } = self;
        proofs.retain(|_, intent| records.contains_key(intent));
    }
}

/// What makes two calls the same: agent, tool and arguments. Keys are hashed in order of their
/// names, so that the order in which they were sent does not count.
fn content(call: &Call) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [call.agent.as_str(), call.tool.as_str()] {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hash_object(&call.arguments, &mut hasher);
    hasher.finalize().into()
}

fn hash_object(object: &serde_json::Map<String, serde_json::Value>, hasher: &mut Sha256) {
    let mut entries = object.iter().collect::<Vec<_>>();
    entries.sort_unstable_by_key(|(key, _)| *key);
    hasher.update(b"{");
    for (key, value) in entries {
        hasher.update(key.len().to_le_bytes());
        hasher.update(key);
        hash_value(value, hasher);
    }
    hasher.update(b"}");
}

fn hash_value(value: &serde_json::Value, hasher: &mut Sha256) {
    use serde_json::Value;
    match value {
        Value::Object(object) => hash_object(object, hasher),
        Value::Array(items) => {
            hasher.update(b"[");
            items.iter().for_each(|item| hash_value(item, hasher));
            hasher.update(b"]");
        }
        Value::String(text) => {
            hasher.update(b"\"");
            hasher.update(text.len().to_le_bytes());
            hasher.update(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            hasher.update(b" ");
            hasher.update(value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Door;
    use crate::ident::{Issuer, ToolName};
    use time::Duration;

    fn call(arguments: &str) -> Call {
        Call {
            door: Door::A2g,
            agent: AgentDid::parse("did:a:b").unwrap(),
            intent: IntentId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap(),
            tool: ToolName::parse("t").unwrap(),
            arguments: serde_json::from_str(arguments).unwrap(),
            context: None,
        }
    }

    #[test]
    fn the_order_of_keys_does_not_count_and_their_values_do() {
        assert_eq!(content(&call(r#"{"a":1,"b":[2]}"#)), content(&call(r#"{"b":[2],"a":1}"#)));
        assert_ne!(content(&call(r#"{"a":1}"#)), content(&call(r#"{"a":"1"}"#)));
        assert_ne!(content(&call(r#"{"a":["b"]}"#)), content(&call(r#"{"a":"b"}"#)));
    }

    #[test]
    fn an_intent_is_claimed_once() {
        let journal = Journal::default();
        let now = OffsetDateTime::UNIX_EPOCH;
        let later = now + Duration::minutes(5);
        assert!(matches!(journal.claim(&call(r#"{"a":1}"#), None, later, now), Ok(Claim::New)));
        assert!(matches!(journal.claim(&call(r#"{"a":1}"#), None, later, now), Ok(Claim::Known(_))));
        assert!(matches!(journal.claim(&call(r#"{"a":2}"#), None, later, now), Ok(Claim::Conflict)));
        journal.advance(call("{}").intent, Stage::Released);
        assert!(matches!(journal.claim(&call(r#"{"a":1}"#), None, later, now), Ok(Claim::New)));
    }

    #[test]
    fn a_proof_is_good_for_one_intent() {
        let journal = Journal::default();
        let now = OffsetDateTime::UNIX_EPOCH;
        let later = now + Duration::minutes(5);
        let proof = |issuer: &str| ProofId::parse(Issuer::parse(issuer).unwrap(), "1").unwrap();
        let claim =
            |call: &Call, issuer: &str| journal.claim(call, Some(&proof(issuer)), later, now).unwrap();
        let (one, other) = (call("{}"), Call { intent: IntentId::random(), ..call("{}") });
        assert!(matches!(claim(&one, "a"), Claim::New));
        assert!(matches!(claim(&one, "a"), Claim::Known(_)));
        assert!(matches!(claim(&other, "a"), Claim::Replayed));
        // Another issuer counts for itself.
        assert!(matches!(claim(&other, "b"), Claim::New));
        // What was refused before it ran is still what the proof was used for.
        journal.advance(one.intent, Stage::Released);
        assert!(matches!(claim(&Call { intent: IntentId::random(), ..call("{}") }, "a"), Claim::Replayed));
        assert!(matches!(claim(&one, "a"), Claim::New));
        journal.advance(one.intent, Stage::Released);
        journal.lock().forget_expired(later);
        assert_eq!(journal.lock().proofs.len(), 1);
    }

    #[test]
    fn what_has_not_expired_is_never_forgotten() {
        let journal = Journal::default();
        let now = OffsetDateTime::UNIX_EPOCH;
        let later = now + Duration::minutes(5);
        assert!(matches!(journal.claim(&call("{}"), None, later, now), Ok(Claim::New)));
        journal.advance(call("{}").intent, Stage::Released);
        journal.lock().forget_expired(now);
        assert_eq!(journal.lock().records.len(), 1);
        journal.lock().forget_expired(later);
        assert_eq!(journal.lock().records.len(), 0);
    }
}
