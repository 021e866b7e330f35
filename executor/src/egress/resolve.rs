//! From a name to its addresses, once for each request.

use crate::capability::Domain;
use std::io::Result;
use std::net::IpAddr;
use std::pin::Pin;

/// Looks names up.
pub(super) trait Resolve: Send + Sync {
    /// All addresses of a name, in the order in which they should be tried.
    fn addresses<'a>(
        &'a self,
        name: &'a Domain,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// The machine's own resolver.
#[derive(Debug)]
pub(super) struct System;

impl Resolve for System {
    fn addresses<'a>(
        &'a self,
        name: &'a Domain,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async move {
            // With a dot at its end it is this name and no other: a resolver's list of suffixes would make
            // another one of it, which nobody has checked.
            let name = format!("{}.", name.as_str());
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
