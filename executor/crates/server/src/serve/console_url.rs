//! The URL of the console, for the links that other doors give to people.

use a2g_types::ident::IntentId;
use std::sync::{Arc, OnceLock};

/// The URL of the console. It is known once its port is bound, and absent if no port serves the console.
#[derive(Debug, Clone, Default)]
pub struct ConsoleUrl(Arc<OnceLock<String>>);

impl ConsoleUrl {
    /// Sets the URL, `http(s)://HOST…/console`. Only the first call has an effect.
    pub fn set(&self, url: String) {
        let _is_set = self.0.set(url);
    }

    /// The page on which people decide on a waiting intent. It takes a session, so the link gives no rights.
    #[must_use]
    pub fn decision_page(&self, intent: IntentId) -> Option<String> {
        self.0.get().map(|url| format!("{url}/decide/{intent}"))
    }
}
