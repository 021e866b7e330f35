//! The ids of sessions over HTTP. In a fleet, an id also names the process that made it, and has a code that binds both to
//! the owner of the session. Another node can thus continue the session of a process that has ended.

use a2g_core::run::Fleet;
use a2g_types::ident::IntentId;
use a2g_wire::a2e::encode;
use std::sync::Arc;

/// The purpose of the ids.
const PURPOSE: &str = "a2e-session";

/// Makes and checks the ids of sessions.
pub(super) struct SessionIds {
    fleet: Option<Arc<Fleet>>,
    /// A random name of this process.
    process: String,
}

impl SessionIds {
    pub(super) fn new(fleet: Option<Arc<Fleet>>) -> Self {
        Self { fleet, process: encode::random_id() }
    }

    /// A new id for a session of `owner`.
    pub(super) fn issue(&self, owner: &str) -> String {
        match &self.fleet {
            Some(fleet) => fleet.member.issue_id(PURPOSE, &self.process, owner),
            None => encode::random_id(),
        }
    }

    /// The key of a session of `owner` that another process of the fleet has opened; `None` for any other id.
    pub(super) fn key_of_other_process(&self, id: &str, owner: &str) -> Option<IntentId> {
        let process = self.fleet.as_ref()?.member.read_id(PURPOSE, id, owner)?;
        if process == self.process { None } else { session_key(id) }
    }
}

/// The UUID in an id, by which the nodes of a fleet ask each other for its session; `None` outside of a fleet.
pub(super) fn session_key(id: &str) -> Option<IntentId> {
    IntentId::parse(id.split_once('.')?.0).ok()
}
