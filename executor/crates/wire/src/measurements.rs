//! Parts of an A2G report, for the messages of other protocols.

use crate::a2g;
use a2g_types::outcome::Receipt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The members `metrics` and `usage` of a report.
pub(crate) fn of_receipt(receipt: &Receipt) -> (Box<RawValue>, Box<RawValue>) {
    a2g::encode::measurements(receipt)
}

/// The whole report.
pub(crate) fn report(receipt: &Receipt) -> Box<RawValue> {
    a2g::encode::report(receipt)
}

/// The member `session` of a report; `None` for a run without a session.
pub(crate) fn session(receipt: &Receipt) -> Option<Value> {
    a2g::encode::session_turn(receipt)
}

/// The member `effects` of a report's `usage`; empty for a run whose file changes took effect at once.
pub(crate) fn effects(receipt: &Receipt) -> Map<String, Value> {
    #[derive(Deserialize)]
    struct UsagePart {
        #[serde(default)]
        effects: Map<String, Value>,
    }
    let (_metrics, usage) = of_receipt(receipt);
    serde_json::from_str::<UsagePart>(usage.get()).map(|usage| usage.effects).unwrap_or_default()
}
