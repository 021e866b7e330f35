//! The ids that clients get from one node and send back to any: no value in the stream says which there are.

use crate::member::Member;
use a2g_types::tool::Digest;
use hmac::Mac as _;
use std::sync::Arc;
use uuid::Uuid;

/// The ids that this node makes and checks.
pub struct ClientIds<S>(Arc<Member<S>>);

impl<S> ClientIds<S> {
    pub(crate) fn new(member: Arc<Member<S>>) -> Self {
        Self(member)
    }

    /// Makes an id that a client gets and sends back, to any node: a random UUID, `extra`, and a code that binds both to the
    /// owner. `extra` has no dot.
    #[must_use]
    pub fn issue(&self, purpose: &str, extra: &str, owner: &str) -> String {
        let text = format!("{}.{extra}", Uuid::new_v4());
        let code = self.0.store.seal.code(&client_key(purpose), format!("{text}.{owner}").as_bytes());
        format!("{text}.{}", Digest(code.finalize().into_bytes().into()))
    }

    /// The `extra` of an id that a node of this fleet has made for this purpose and owner; `None` for any other text.
    #[must_use]
    pub fn read<'a>(&self, purpose: &str, id: &'a str, owner: &str) -> Option<&'a str> {
        let (text, code) = id.rsplit_once('.')?;
        let Digest(code) = Digest::parse(code).ok()?;
        let expected = self.0.store.seal.code(&client_key(purpose), format!("{text}.{owner}").as_bytes());
        expected.verify_slice(&code).ok()?;
        text.split_once('.').map(|(_uuid, extra)| extra)
    }
}

/// The key under which texts for clients are authenticated. No value has such a key.
fn client_key(purpose: &str) -> String {
    format!("client.{purpose}")
}
