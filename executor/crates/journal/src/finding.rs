//! The findings of a check of a journal, and the reasons why a check stops.

use super::chain::{Head, to_hex};
use a2g_types::ident::IntentId;
use rusqlite::ErrorCode;

/// The result of a check: the journal is intact, or the first problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The journal is intact.
    Holds {
        /// The number of stored receipts.
        receipts: u64,
        /// The number of pruned receipts.
        pruned: u64,
        /// The number of stored records.
        records: u64,
        /// The checkpoint of the latest receipt.
        head: Head,
    },
    /// A record differs from the one that was written with its number.
    Changed {
        /// The number of the record.
        record: i64,
        /// The intent that the record names now, if it names one.
        intent: Option<IntentId>,
    },
    /// Records are missing between others.
    Missing {
        /// The first missing record.
        first: i64,
        /// The last missing record.
        last: i64,
    },
    /// The last records are missing.
    Cut {
        /// The last existing record.
        last: i64,
        /// The last record according to the marker or the table of chains.
        was: i64,
    },
    /// A record contradicts the earlier ones, such as a second claim of one intent.
    Order {
        /// The number of the record.
        record: i64,
        /// The intent of the record, if it has one.
        intent: Option<IntentId>,
        /// The contradiction.
        what: &'static str,
    },
    /// A row of another table is missing, changed, or without a record.
    Row {
        /// The table.
        table: &'static str,
        /// The number of the record or of the row.
        record: i64,
        /// The difference.
        what: &'static str,
    },
    /// SQLite cannot read the file.
    Unreadable {
        /// The last record that could be read.
        after: i64,
        /// SQLite's reason.
        reason: String,
    },
    /// Tables, indexes or triggers are not those of a journal.
    Schema {
        /// The first difference: the kind, the name and the table.
        name: String,
    },
    /// The history differs from that of the checkpoint: the journal is an older copy that was continued, or a new one.
    Differs {
        /// The number of the checkpoint.
        number: u64,
    },
    /// The receipts end before the one of the checkpoint.
    Short {
        /// The last existing receipt.
        last: u64,
        /// The number of the checkpoint.
        number: u64,
    },
    /// The receipt of the checkpoint was pruned, so it cannot be compared.
    CheckpointPruned {
        /// The number of the checkpoint.
        number: u64,
    },
}

/// A count with its noun, in the plural unless the count is 1.
#[derive(Debug)]
pub struct NounCount(pub u64, pub &'static str);

impl std::fmt::Display for NounCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(count, noun) = self;
        write!(f, "{count} {noun}{}", if *count == 1 { "" } else { "s" })
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name_intent = |intent: &Option<IntentId>| {
            intent.map(|intent| format!(" (intent {intent})")).unwrap_or_default()
        };
        match self {
            Self::Holds { receipts, pruned, records, head } => {
                let receipts = NounCount(*receipts, "receipt");
                let records = NounCount(*records, "record");
                let before =
                    if *pruned == 0 { String::new() } else { format!(" after {pruned} pruned ones") };
                write!(
                    f,
                    "the journal is intact: {receipts}{before}, {records}\ncheckpoint {}:{}",
                    head.number,
                    to_hex(&head.hash)
                )
            }
            Self::Changed { record, intent } => {
                write!(f, "record {record}{} is not what was written there", name_intent(intent))
            }
            Self::Missing { first, last } => write!(f, "the records {first} to {last} are missing"),
            Self::Cut { last, was } => {
                write!(f, "the end is cut off: the last record is {last}, but there was a record {was}")
            }
            Self::Order { record, intent, what } => {
                write!(f, "record {record}{} {what}", name_intent(intent))
            }
            Self::Row { table, record, what } => write!(f, "table `{table}`, row of record {record}: {what}"),
            Self::Unreadable { after, reason } => {
                write!(f, "the file cannot be read after record {after}: {reason}")
            }
            Self::Schema { name } => {
                write!(f, "`{name}` differs from the schema of a journal")
            }
            Self::Differs { number } => {
                write!(
                    f,
                    "receipt {number} is not the one of the checkpoint: the journal has another history"
                )
            }
            Self::Short { last, number } => {
                write!(
                    f,
                    "the end is cut off: the last receipt is {last}, but the checkpoint is that of receipt {number}"
                )
            }
            Self::CheckpointPruned { number } => {
                write!(f, "receipt {number} of the checkpoint was pruned: use a later checkpoint")
            }
        }
    }
}

/// The reason why a check stops.
#[derive(Debug)]
pub(super) enum CheckError {
    /// The check has a finding.
    Found(Finding),
    /// The file cannot be read at the moment.
    Sqlite(rusqlite::Error),
}

impl From<Finding> for CheckError {
    fn from(finding: Finding) -> Self {
        Self::Found(finding)
    }
}

impl From<rusqlite::Error> for CheckError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // An error without a code means a value with a type that this version does not write.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None => {
                Self::Found(Finding::Unreadable { after: 0, reason: error.to_string() })
            }
            Some(_) => Self::Sqlite(error),
        }
    }
}
