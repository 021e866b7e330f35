//! The meaning of errors of the client of NATS for an operator.

use crate::FleetError;
use std::fmt::Display;

/// Parts of the client's texts in lower case, and what they mean. The first that is found counts.
const MEANINGS: [(&[&str], &str); 7] = [
    (&["authorization violation"], "the server refuses the login"),
    (&["permissions violation"], "the login may not do this"),
    (&["connection refused"], "no server listens there"),
    (&["error code 10039)", "error code 10076)"], "JetStream is off for this login"),
    (
        &["error code 10008)", "error code 10009)", "error code 10118)"],
        "the cluster has no leader, so a majority of its servers has to be started",
    ),
    (
        &[
            "error code 10002)",
            "error code 10023)",
            "error code 10047)",
            "error code 10077)",
            "error code 10122)",
        ],
        "the server has no room",
    ),
    (
        &["timed out", "no responders", "resource does not exist"],
        "no server has answered in time: JetStream is off, the server cannot be reached, or its cluster has no majority",
    ),
];

impl FleetError {
    /// The error of a request to the servers.
    pub(super) fn unavailable(request: &'static str, reason: impl Display) -> Self {
        Self::Unavailable { request, reason: explain(reason) }
    }
}

/// The meaning of an error of the client, and its text; the text alone for any other error.
pub(super) fn explain(error: impl Display) -> String {
    let text = error.to_string();
    let lower = text.to_lowercase();
    let meaning = MEANINGS.iter().find(|(parts, _)| parts.iter().any(|part| lower.contains(part)));
    meaning.map_or_else(|| text.clone(), |(_, meaning)| format!("{meaning} ({text})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_errors_are_explained_and_quoted() {
        for (text, start) in [
            ("authorization violation: nats: Authorization Violation", "the server refuses the login (auth"),
            ("IO error: Connection refused (os error 111)", "no server listens there (IO error"),
            (
                "JetStream system temporarily unavailable (code 503, error code 10008)",
                "the cluster has no leader",
            ),
            ("request timed out", "no server has answered in time"),
            ("it keeps changing", "it keeps changing"),
        ] {
            let shown = explain(text);
            assert!(shown.starts_with(start) && shown.contains(text), "{shown}");
        }
    }
}
