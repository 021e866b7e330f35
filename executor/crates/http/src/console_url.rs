//! The URL of the console, for the links that other doors give to people.

use super::PublicUrl;
use a2g_types::ident::IntentId;
use std::sync::{Arc, OnceLock};

/// The URL of the console. It is set when the console's port is bound. It is absent if no port serves the console, or if
/// the port has a wildcard address and `console.public_url` is not set.
#[derive(Debug, Clone, Default)]
pub struct ConsoleUrl(Arc<OnceLock<PublicUrl>>);

impl ConsoleUrl {
    /// Sets the URL. Only the first call has an effect.
    pub fn set(&self, url: PublicUrl) {
        let _is_set = self.0.set(url);
    }

    /// The page on which people decide on a waiting intent. The page requires signing in, so the link gives no rights.
    #[must_use]
    pub fn decision_page(&self, intent: IntentId) -> Option<String> {
        self.0.get().map(|url| url.page(&format!("/console/decide/{intent}")))
    }

    /// The page on which people decide on the file changes of a run. It gives no rights either.
    #[must_use]
    pub fn changes_page(&self, intent: IntentId) -> Option<String> {
        self.0.get().map(|url| url.page(&format!("/console/changes/{intent}")))
    }
}
