//! The ids of sessions over HTTP. In a fleet, an id also names the process that made it, and has a code that binds both to
//! the owner of the session. Another node can thus continue the session of a process that has ended.

use a2g_core::run::Fleet;
use a2g_types::ident::IntentId;
use a2g_types::tool::Digest;
use a2g_wire::a2e::encode;
use std::sync::Arc;

/// The purpose of the code in an id.
const PURPOSE: &str = "a2e-session";

pub(super) struct SessionIds {
    fleet: Option<Arc<Fleet>>,
    process: IntentId,
}

impl SessionIds {
    pub(super) fn new(fleet: Option<Arc<Fleet>>) -> Self {
        Self { fleet, process: IntentId::random() }
    }

    /// A new id for a session of `owner`.
    pub(super) fn issue(&self, owner: &str) -> String {
        let Some(fleet) = &self.fleet else { return encode::random_id() };
        let text = format!("{}.{}", IntentId::random(), self.process);
        format!("{text}.{}", fleet.authenticate(PURPOSE, &format!("{text}.{owner}")))
    }

    /// The key of a session of `owner` that another process of the fleet has opened; `None` for any other id.
    pub(super) fn key_of_other_process(&self, id: &str, owner: &str) -> Option<IntentId> {
        let (text, code) = id.rsplit_once('.')?;
        let (_, process) = text.split_once('.')?;
        let code = Digest::parse(code).ok()?;
        let is_ours = self.fleet.as_ref()?.is_authentic(PURPOSE, &format!("{text}.{owner}"), &code);
        let is_other = IntentId::parse(process).is_ok_and(|process| process != self.process);
        (is_ours && is_other).then(|| session_key(id)).flatten()
    }
}

/// The part of an id by which the nodes of a fleet ask each other for its session; `None` outside of a fleet.
pub(super) fn session_key(id: &str) -> Option<IntentId> {
    IntentId::parse(id.split_once('.')?.0).ok()
}
