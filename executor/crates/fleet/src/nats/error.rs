//! The meaning of errors of the client of NATS for an operator.

use crate::FleetError;
use std::fmt::Display;

/// Parts of the client's texts in lower case, and what they mean. The first that is found counts.
const MEANINGS: [(&[&str], &str); 12] = [
    (&["authorization violation"], "the server refuses the login"),
    (&["permissions violation"], "the login may not do this"),
    (&["connection refused"], "no server listens there"),
    (
        &["failed signing nonce"],
        "the login has no usable key: `fleet.nkey_file` has to contain the seed of a user, which begins with `SU`",
    ),
    (
        &["cannot parse user jwt", "cannot parse nkey"],
        "it is not a credentials file, which has a JWT and a seed: make one with `nsc generate creds`, or name a file \
         that has only a seed in `fleet.nkey_file`",
    ),
    (
        &["unknownissuer"],
        "this executor does not trust who has signed the server's certificate: name that authority's certificate in \
         `fleet.ca_file`",
    ),
    (
        &["invalid peer certificate"],
        "the server's certificate is not valid for it: compare its names with `fleet.servers`, its issuer with \
         `fleet.ca_file`, and its dates",
    ),
    (
        &["replicas > 1 not supported"],
        "the server is in no cluster: start `fleet.replicas` servers as a cluster, or set `fleet.replicas = 1`",
    ),
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
            ("authentication error: failed signing nonce", "the login has no usable key"),
            ("cannot parse user JWT from the credentials file", "it is not a credentials file"),
            ("cannot parse nkey from the credentials file", "it is not a credentials file"),
            ("TLS error: invalid peer certificate: UnknownIssuer", "this executor does not trust"),
            ("TLS error: invalid peer certificate: Expired", "the server's certificate is not valid"),
            (
                "replicas > 1 not supported in non-clustered mode (code 500, error code 10074)",
                "the server is in no cluster",
            ),
        ] {
            let shown = explain(text);
            assert!(shown.starts_with(start) && shown.ends_with(&format!(" ({text})")), "{shown}");
        }
        assert_eq!(explain("it keeps changing"), "it keeps changing");
    }
}
