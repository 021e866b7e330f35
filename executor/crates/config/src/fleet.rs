//! The configuration of the fleet that the executor is a node of.

use super::error::{InvalidValueError, invalid};
use super::features::has_fleet;
use super::file;
use super::values::{check_max, to_usize};
use a2g_fleet::{FleetSettings, Login};
use a2g_types::node::NodeName;
use std::path::PathBuf;
use std::time::Duration;

/// The number of servers from which three of them store each value by default.
const REPLICATED_SERVERS: usize = 3;
/// The maximum number of servers in `fleet.servers`.
const MAX_SERVERS: usize = 16;

/// Checks the section `[fleet]`. `resolve` makes a path absolute.
pub(super) fn parse_fleet(
    section: file::Fleet,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<FleetSettings, InvalidValueError> {
    let file::Fleet {
        name,
        node,
        servers,
        key_file,
        credentials,
        nkey_file,
        ca_file,
        replicas,
        keep_hours,
        pass_calls,
    } = section;
    if !has_fleet() {
        return Err(invalid("fleet")(
            &"needs the client of NATS, which this build lacks: remove the section, or build with the feature `fleet`",
        ));
    }
    if !(1..=MAX_SERVERS).contains(&servers.len()) {
        return Err(invalid("fleet.servers")(&format_args!(
            "has to name 1 to {MAX_SERVERS} servers of NATS"
        )));
    }
    // The client would ignore the login, and the configuration contains no secrets.
    if servers.iter().any(|server| server.contains('@')) {
        return Err(invalid("fleet.servers")(
            &"has an address with a login: name a file with the login in `fleet.credentials` or `fleet.nkey_file`",
        ));
    }
    let is_url = |server: &&String| ["nats://", "tls://"].iter().any(|scheme| server.starts_with(scheme));
    if let Some(other) = servers.iter().find(|server| !is_url(server)) {
        return Err(invalid("fleet.servers")(&format_args!(
            "has `{other}`, which is not a URL such as `nats://127.0.0.1:4222` or `tls://nats.example:4222`"
        )));
    }
    if credentials.is_some() && nkey_file.is_some() {
        return Err(invalid("fleet.nkey_file")(
            &"and `fleet.credentials` are two logins: remove one of them",
        ));
    }
    let node = match node {
        Some(node) => node,
        None => rustix::system::uname().nodename().to_string_lossy().replace('.', "-"),
    };
    let replicas = match replicas {
        Some(replicas @ (1 | 3 | 5)) => replicas,
        Some(_) => return Err(invalid("fleet.replicas")(&"has to be 1, 3 or 5")),
        None if servers.len() >= REPLICATED_SERVERS => 3,
        None => 1,
    };
    let keep = Duration::from_secs(check_max("fleet.keep_hours", keep_hours, 24 * 366)? * 3600);
    Ok(FleetSettings {
        name: name.try_into().map_err(|error| invalid("fleet.name")(&error))?,
        node: NodeName::try_from(node).map_err(|error| invalid("fleet.node")(&error))?,
        servers,
        key_file: resolve(key_file),
        login: Login {
            credentials: credentials.map(&resolve),
            nkey_file: nkey_file.map(&resolve),
            ca_file: ca_file.map(&resolve),
        },
        replicas: to_usize(replicas),
        keep,
        passes_calls: pass_calls,
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;

    #[test]
    fn a_fleet_needs_a_build_that_has_it() {
        let parsed =
            parse("\n[fleet]\nname = \"a\"\nnode = \"b\"\nservers = [\"nats://c\"]\nkey_file = \"key\"\n");
        if cfg!(feature = "fleet") {
            assert!(parsed.unwrap().fleet.is_some());
        } else {
            let error = parsed.unwrap_err();
            assert!(
                error.contains("`fleet` needs") && error.contains("build with the feature `fleet`"),
                "{error}"
            );
        }
    }
}
