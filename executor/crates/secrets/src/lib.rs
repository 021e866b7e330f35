//! The values of an executor's secrets. Only the server's process reads them, and only [`a2g_sandbox::egress`] sets them
//! in requests.

mod oauth;
mod source;
mod vault;
mod version;

pub use oauth::{ClientAuth, OAuthClient};
pub use source::SecretSource;
pub use vault::Vault;
pub use version::VersionKey;
