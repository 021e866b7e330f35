//! The findings of a check of a journal, and the reasons for which a check stops.

use super::chain::{Head, to_hex};
use a2g_types::ident::IntentId;
use rusqlite::ErrorCode;

/// The finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The journal is intact.
    Holds {
        /// The number of its receipts.
        receipts: u64,
        /// The number of receipts that were pruned before them.
        pruned: u64,
        /// The number of its records.
        records: u64,
        /// The checkpoint of its latest receipt.
        head: Head,
    },
    /// A record differs from the one that was written, or from its place.
    Changed {
        /// Its number.
        record: i64,
        /// Its intent as it is stored now, if it has one.
        intent: Option<IntentId>,
    },
    /// Records are missing between others.
    Missing {
        /// The first of them.
        first: i64,
        /// The last of them.
        last: i64,
    },
    /// The last records are missing.
    Cut {
        /// The last existing record.
        last: i64,
        /// The last record that there was.
        was: i64,
    },
    /// A record contradicts those before it, such as a second claim of one intent.
    Order {
        /// Its number.
        record: i64,
        /// Its intent, if it has one.
        intent: Option<IntentId>,
        /// The contradiction.
        what: &'static str,
    },
    /// A row of another table is missing, changed, or without a record.
    Row {
        /// The table.
        table: &'static str,
        /// The record, or the row.
        record: i64,
        /// The difference.
        what: &'static str,
    },
    /// SQLite cannot read the file.
    Unreadable {
        /// The last record that was intact.
        after: i64,
        /// SQLite's reason.
        reason: String,
    },
    /// Tables, indexes or triggers are not those of a journal.
    Schema {
        /// The first of them.
        name: String,
    },
    /// The history differs from that of the checkpoint: an older copy that was continued, or a journal that was made
    /// anew.
    Differs {
        /// The number of the checkpoint.
        number: u64,
    },
    /// The receipts end before that of the checkpoint.
    Short {
        /// The last existing receipt.
        last: u64,
        /// The number of the checkpoint.
        number: u64,
    },
    /// The receipt of the checkpoint was pruned, so that it cannot be compared.
    CheckpointPruned {
        /// The number of the checkpoint.
        number: u64,
    },
}

/// A count with its noun, in the plural unless it is 1.
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
        let describe = |intent: &Option<IntentId>| {
            intent.map(|intent| format!(" (intent {intent})")).unwrap_or_default()
        };
        match self {
            Self::Holds { receipts, pruned, records, head } => {
                let (receipts, records) = (NounCount(*receipts, "receipt"), NounCount(*records, "record"));
                let before =
                    if *pruned == 0 { String::new() } else { format!(", after {pruned} that were pruned") };
                write!(
                    f,
                    "the journal holds: {receipts}{before}, {records}\ncheckpoint {}:{}",
                    head.number,
                    to_hex(&head.hash)
                )
            }
            Self::Changed { record, intent } => {
                write!(f, "record {record}{} is not what was written there", describe(intent))
            }
            Self::Missing { first, last } => write!(f, "the records {first} to {last} are missing"),
            Self::Cut { last, was } => {
                write!(f, "the end is cut off: the last record is {last}, and there was a record {was}")
            }
            Self::Order { record, intent, what } => write!(f, "record {record}{} {what}", describe(intent)),
            Self::Row { table, record, what } => write!(f, "table `{table}`, row of record {record}: {what}"),
            Self::Unreadable { after, reason } => {
                write!(f, "the file cannot be read after record {after}: {reason}")
            }
            Self::Schema { name } => {
                write!(f, "`{name}` is not as in a journal: a table, an index or a trigger was changed")
            }
            Self::Differs { number } => {
                write!(
                    f,
                    "receipt {number} is another one than the checkpoint's: this is not the same history"
                )
            }
            Self::Short { last, number } => {
                write!(
                    f,
                    "the end is cut off: the last receipt is {last}, and the checkpoint is of receipt {number}"
                )
            }
            Self::CheckpointPruned { number } => {
                write!(f, "receipt {number} of the checkpoint was pruned: take a later checkpoint")
            }
        }
    }
}

/// The reason for which a check stops.
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
            // An error without a code means a value of another type than the one that was written.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None => {
                Self::Found(Finding::Unreadable { after: 0, reason: error.to_string() })
            }
            Some(_) => Self::Sqlite(error),
        }
    }
}
