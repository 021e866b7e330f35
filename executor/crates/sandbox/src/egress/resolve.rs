//! Name resolution, once for each request.

use a2g_capability::Domain;
use std::io::Result;
use std::net::IpAddr;
use std::pin::Pin;

/// A resolver of names; tests replace the system's.
pub(super) trait Resolve: Send + Sync {
    /// All addresses of a name, in the order in which they should be tried.
    fn addresses<'a>(
        &'a self,
        name: &'a Domain,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// The machine's own resolver.
#[derive(Debug)]
pub(super) struct SystemResolver;

impl Resolve for SystemResolver {
    fn addresses<'a>(
        &'a self,
        name: &'a Domain,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async move {
            // The trailing dot makes the name absolute. The resolver's search list would otherwise turn it into
            // another name, which was never checked.
            let name = format!("{}.", name.as_str());
            let addresses = tokio::net::lookup_host((name, 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }
}
