//! One record of the chain: its columns, and its hash.
//!
//! A record is never changed. Its hash covers all of its columns and the hash of the record before it.

use super::chain::{Hash, from_hex, to_hex};
use a2g_types::grant::GrantSummary;
use a2g_types::stored::v1;
use a2g_types::verdict::Manifest;
use rusqlite::Row;
use rusqlite::types::{FromSqlError, ValueRef};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// The prefix of every hashed record, so that no other text that this program hashes has the same hash.
const PREFIX: &[u8] = b"a2g-executor record 1\n";

/// The kind of a record. The name of a variant is the name on the disk, and never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(super) enum RecordKind {
    /// An intent starts, and must never start again.
    Claim,
    /// The run of a claim has finished.
    Receipt,
    /// A claim was refused before its guest began.
    Released,
    /// A later verdict extends the time for which a claim is stored.
    Kept,
    /// The governor has acknowledged the reports of these receipts.
    Delivered,
    /// An intent waits for a person.
    Held,
    /// A person approved a waiting intent, which needs more approvals.
    PartlyApproved,
    /// A person approved a waiting intent, which may run.
    Approved,
    /// A person denied a waiting intent.
    Denied,
    /// A waiting intent was cancelled.
    Cancelled,
    /// A waiting intent was revoked.
    Revoked,
    /// A waiting or approved intent can no longer run.
    Expired,
    /// A caller stopped a run or a queued intent.
    Stopped,
    /// The governor revoked capabilities.
    Revocation,
    /// The state of a task.
    Task,
    /// A task is no longer stored.
    TaskDropped,
    /// The end of the chain of refusals.
    Refusals,
    /// Pruning has copied this claim to the end of the chain.
    Used,
    /// Records were pruned.
    Pruned,
    /// An operator stopped an agent, a tool or everything.
    StopSet,
    /// An operator lifted a stop.
    StopLifted,
    /// The executor has joined the fleet with this identity.
    Fleet,
}

impl RecordKind {
    /// The name in the file.
    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// The columns of a record, in the order of [`JournalRecord::read`].
pub(super) const RECORD_COLUMNS: &str =
    "number, kind, at, intent, agent, tool, status, about, proof, receipt, latest, body, hash";

/// A record without its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct JournalRecord<'a> {
    /// Records are numbered from 1, without gaps.
    pub(super) number: i64,
    pub(super) kind: RecordKind,
    /// Microseconds since 1970.
    pub(super) at: i64,
    pub(super) intent: Option<[u8; 16]>,
    pub(super) agent: Option<&'a str>,
    pub(super) tool: Option<&'a str>,
    /// The status of a receipt.
    pub(super) status: Option<&'a str>,
    /// The record that this one is about.
    pub(super) about: Option<i64>,
    /// Issuer and single-use id of the proof that a claim uses.
    pub(super) proof: Option<&'a str>,
    /// The number of a receipt, counted among the receipts.
    pub(super) receipt: Option<i64>,
    /// The record of the latest receipt up to this one; 0 before the first.
    pub(super) latest: i64,
    /// A receipt as JSON, 32 bytes for a task, the identity of a fleet, or one of the bodies below as JSON.
    pub(super) body: &'a [u8],
}

impl<'a> JournalRecord<'a> {
    /// Reads a record and its stored hash from a row with [`RECORD_COLUMNS`].
    ///
    /// # Errors
    /// If a column has a type or a kind that this version does not write.
    pub(super) fn read(row: &'a Row<'_>) -> rusqlite::Result<(Self, Hash)> {
        let kind = read_text(row, 1)?.and_then(RecordKind::parse).ok_or_else(|| column_error(1))?;
        let record = Self {
            number: row.get(0)?,
            kind,
            at: row.get(2)?,
            intent: row.get(3)?,
            agent: read_text(row, 4)?,
            tool: read_text(row, 5)?,
            status: read_text(row, 6)?,
            about: row.get(7)?,
            proof: read_text(row, 8)?,
            receipt: row.get(9)?,
            latest: row.get(10)?,
            body: row.get_ref(11)?.as_blob()?,
        };
        Ok((record, row.get(12)?))
    }

    /// The hash of this record, given the hash of the previous one.
    pub(super) fn hash(&self, previous: &Hash) -> Hash {
        // Names every column, so that a new one does not compile until it is hashed.
        let Self { number, kind, at, intent, agent, tool, status, about, proof, receipt, latest, body } =
            self;
        let mut hasher = Sha256::new();
        hasher.update(PREFIX);
        hasher.update(previous);
        [number, at, latest].into_iter().for_each(|number| hasher.update(number.to_le_bytes()));
        for number in [about, receipt] {
            hash_part(&mut hasher, number.map(i64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice));
        }
        hash_part(&mut hasher, intent.as_ref().map(<[u8; 16]>::as_slice));
        for text in [Some(kind.as_str()), *agent, *tool, *status, *proof] {
            hash_part(&mut hasher, text.map(str::as_bytes));
        }
        hash_part(&mut hasher, Some(body));
        hasher.finalize().into()
    }
}

/// Hashes a part with its length, so that no two lists of parts are hashed as the same bytes. A missing part has the
/// length `u64::MAX`.
fn hash_part(hasher: &mut Sha256, part: Option<&[u8]>) {
    let length = part.map_or(u64::MAX, |part| u64::try_from(part.len()).unwrap_or(u64::MAX - 1));
    hasher.update(length.to_le_bytes());
    hasher.update(part.unwrap_or_default());
}

fn read_text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Option<&'a str>> {
    Ok(row.get_ref(column)?.as_str_or_null()?)
}

/// The error of a column with a type or a name that this version does not write.
pub(super) fn column_error(column: usize) -> rusqlite::Error {
    let kind = ValueRef::Null.data_type();
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(FromSqlError::InvalidType))
}

/// Hashes a text that is stored outside the chain.
pub(super) fn digest(text: &[u8]) -> Digest32 {
    Digest32(Sha256::digest(text).into())
}

/// A SHA-256 hash; in JSON, 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest32(pub(super) Hash);

impl Serialize for Digest32 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Digest32 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        from_hex(&digits)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("a hash must have 64 hexadecimal digits"))
    }
}

/// The body of [`RecordKind::Claim`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimBody {
    /// The hash of agent, tool and arguments.
    pub(super) content: Digest32,
    /// The expiry of the intent's last verdict, in microseconds since 1970.
    pub(super) keep_until: i64,
    /// The hash of the receipt that recovery writes if the process ends during the run.
    pub(super) fallback_receipt: Digest32,
    /// The hash of the task that recovery writes with that receipt, unless the task is already stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<Digest32>,
    /// The governor's verdict, if the executor asked the governor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Box<RawValue>>,
    /// The hash of the text in `arguments`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<Digest32>,
}

/// The body of [`RecordKind::Used`]: the part of the claim that is still needed. The column `about` has the record of
/// the receipt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsedBody {
    pub(super) content: Digest32,
    pub(super) keep_until: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Box<RawValue>>,
}

/// The body of [`RecordKind::Kept`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeptBody {
    pub(super) keep_until: i64,
}

/// The body of [`RecordKind::Delivered`]: the numbers of the records of receipts.
pub(super) type DeliveredBody = Vec<i64>;

/// The body of [`RecordKind::Held`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeldBody {
    pub(super) content: Digest32,
    /// The hash of the text in `waiting`: the call and the verdict that are shown to a person.
    #[serde(rename = "shown")]
    pub(super) text_hash: Digest32,
    /// The expiry of the verdict, in microseconds since 1970.
    pub(super) until: i64,
}

/// The body of [`RecordKind::PartlyApproved`], of [`RecordKind::Approved`] and of the other ends of a wait. The column `about`
/// has the record of the wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionBody {
    /// The caller that decided, or the reason why a decision is no longer possible.
    pub(super) by: String,
    /// The body of the record of the wait.
    pub(super) held: HeldBody,
    /// The governor's risk estimate, for the answer to a repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) risk_score: Option<f64>,
    /// The manifest that replaces the verdict's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "v1::optional_manifest")]
    pub(super) manifest: Option<Manifest>,
    /// The person's reason, if they gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The hash of what the person was shown, if a page showed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) basis: Option<Digest32>,
    /// For an approval: the grants that its approvers were shown. The run gets no more than any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "v1::grants")]
    pub(super) grants: Vec<GrantSummary>,
    /// For the end of a wait: the hash of the text in `arguments`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<Digest32>,
}

/// The body of [`RecordKind::Stopped`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopBody {
    pub(super) by: String,
    /// The method: `a2g/cancel`, `g2a/revoke` or `a2g/stop`.
    pub(super) method: String,
}

/// The body of [`RecordKind::Revocation`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevocationBody {
    pub(super) by: String,
    /// The number of runs and waiting intents that the revocation ended.
    pub(super) stopped: usize,
}

/// The body of [`RecordKind::StopSet`]. The columns have the target: the agent, the tool, or neither for everything.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopSetBody {
    pub(super) by: String,
    pub(super) reason: String,
    /// The time of the stop, in microseconds since 1970: that of a copy by pruning is older than its record.
    pub(super) since: i64,
}

/// The body of [`RecordKind::StopLifted`]. The columns have the target, and `about` the record of the stop.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopLiftedBody {
    pub(super) by: String,
}

/// The body of [`RecordKind::Refusals`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefusalsBody {
    pub(super) number: i64,
    pub(super) hash: Digest32,
}

/// The body of [`RecordKind::Pruned`]: the end of the removed part of the chain.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrunedBody {
    pub(super) number: i64,
    pub(super) hash: Digest32,
    /// The number of receipts up to that record. `checkpoint` is the hash of the last one.
    pub(super) receipts: i64,
    pub(super) checkpoint: Digest32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_covers_every_column() {
        let record = JournalRecord {
            number: 1,
            kind: RecordKind::Claim,
            at: 7,
            intent: Some([1; 16]),
            agent: Some("did:a:b"),
            tool: Some("t"),
            status: None,
            about: None,
            proof: None,
            receipt: None,
            latest: 0,
            body: b"{}",
        };
        let others = [
            JournalRecord { number: 2, ..record },
            JournalRecord { kind: RecordKind::Used, ..record },
            JournalRecord { at: 8, ..record },
            JournalRecord { intent: Some([2; 16]), ..record },
            JournalRecord { intent: None, ..record },
            JournalRecord { agent: Some("did:a:bt"), tool: Some(""), ..record },
            JournalRecord { agent: Some("did:a:b"), tool: None, status: Some("t"), ..record },
            JournalRecord { about: Some(0), ..record },
            JournalRecord { receipt: Some(0), ..record },
            JournalRecord { proof: Some(""), ..record },
            JournalRecord { latest: 1, ..record },
            JournalRecord { body: b"{ }", ..record },
        ];
        let hash = record.hash(&[0; 32]);
        for other in others {
            assert_ne!(other.hash(&[0; 32]), hash, "{other:?}");
        }
        assert_ne!(record.hash(&hash), hash);
        assert_eq!(record.hash(&[0; 32]), hash);
    }

    #[test]
    fn every_kind_has_its_own_name() {
        for kind in RecordKind::VARIANTS {
            assert_eq!(RecordKind::parse(kind.as_str()), Some(*kind));
        }
        assert_eq!(RecordKind::parse(""), None);
    }
}
