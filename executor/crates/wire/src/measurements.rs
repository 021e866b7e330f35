//! Parts of an A2G report, for the messages of other protocols.

use crate::a2g;
use a2g_types::outcome::Receipt;
use serde_json::value::RawValue;

/// The members `metrics` and `usage` of a report.
pub(crate) fn of_receipt(receipt: &Receipt) -> (Box<RawValue>, Box<RawValue>) {
    a2g::encode::measurements(receipt)
}

/// The whole report.
pub(crate) fn report(receipt: &Receipt) -> Box<RawValue> {
    a2g::encode::report(receipt)
}
