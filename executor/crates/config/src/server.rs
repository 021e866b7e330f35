//! The section `[server]`: the HTTP port, and the memory of the server.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::machine::default_memory_mb;
use super::values::{check_rate, check_seconds, check_size, parse_value, to_usize};
use a2g_capability::Ceilings;
use a2g_core::run::Capacity;
use a2g_govern::IssuerSettings;
use a2g_http::{ConnectionLimits, ListenAddress, TlsSettings};
use a2g_types::ident::Issuer;
use a2g_types::limit::Limit;
use a2g_types::quantity::MemoryLimit;
use a2g_wire::strict_json::JsonBounds;
use std::path::{Path, PathBuf};

pub(super) fn parse_address(
    text: &str,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<ListenAddress, InvalidValueError> {
    Ok(match parse_value("server.listen", text, str::parse::<ListenAddress>)? {
        ListenAddress::Unix(path) => ListenAddress::Unix(resolve(path)),
        tcp @ ListenAddress::Tcp(_) => tcp,
    })
}

pub(super) fn parse_tls(tls: file::Tls, resolve: impl Fn(PathBuf) -> PathBuf) -> TlsSettings {
    let file::Tls { certificate, key, client_ca } = tls;
    TlsSettings { certificate: resolve(certificate), key: resolve(key), client_ca: client_ca.map(resolve) }
}

/// Checks that there is a list of callers if there is a `client_ca`, and that TLS is used only on a TCP port.
pub(super) fn check_port(
    listen: &ListenAddress,
    callers: Option<&Path>,
    tls: Option<&TlsSettings>,
) -> Result<(), InvalidValueError> {
    let requires_certificates = tls.is_some_and(|tls| tls.client_ca.is_some());
    if requires_certificates && callers.is_none() {
        return Err(invalid("server.tls.client_ca")(
            &"needs `server.callers`, which maps certificates to roles and agents",
        ));
    }
    if tls.is_some() && listen.ip().is_none() {
        return Err(invalid("server.tls")(&"is for a TCP port, and `server.listen` is a Unix socket"));
    }
    Ok(())
}

/// The issuers of JSON Web Tokens: for each the file of its keys and the required audience. They are tables of the
/// configuration because a JWK Set does not name its issuer. Keys are never fetched from a `jwks_uri`: the executor
/// would trust any host that answers there, and could start only while that host answers.
pub(super) fn parse_issuers(
    tables: Vec<file::Issuer>,
    did: &str,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<Vec<IssuerSettings>, InvalidValueError> {
    let invalid = invalid("server.issuer");
    let mut issuers = Vec::<IssuerSettings>::new();
    for file::Issuer { issuer, keys, audience } in tables {
        let issuer = Issuer::parse(&issuer).map_err(|error| invalid(&error))?;
        if issuers.iter().any(|other| other.issuer == issuer) {
            return Err(invalid(&format_args!("names `{issuer}` twice: put all of its keys into one file")));
        }
        let audience = match audience {
            Some(audience) if audience.is_empty() => return Err(invalid(&"has an empty `audience`")),
            Some(audience) => audience,
            None if did == file::Executor::default().did => {
                return Err(invalid(
                    &"needs an `audience`, or an `executor.did` as the default audience: a token for the default DID \
                      would be valid at every executor that sets none",
                ));
            }
            None => did.to_owned(),
        };
        issuers.push(IssuerSettings { issuer, keys: resolve(keys), audience });
    }
    Ok(issuers)
}

pub(super) fn parse_connections(server: &file::Server) -> Result<ConnectionLimits, InvalidValueError> {
    let per_minute = server.unauthenticated_per_minute;
    Ok(ConnectionLimits {
        max_connections: check_size("server.max_connections", server.max_connections, 100_000)?,
        request_timeout: check_seconds("server.request_seconds", server.request_seconds, 3600)?,
        unauthenticated_per_minute: check_rate("server.unauthenticated_per_minute", per_minute)?,
    })
}

pub(super) fn parse_bounds(
    server: &file::Server,
    memory: MemoryLimit,
) -> Result<JsonBounds, InvalidValueError> {
    Ok(JsonBounds {
        max_bytes: check_size("server.max_body_bytes", server.max_body_bytes, 1 << 30)?,
        max_depth: check_size("server.max_json_depth", server.max_json_depth, 100)?,
        max_tree_bytes: to_usize((memory.bytes() / 4).max(server.max_body_bytes.saturating_mul(8))),
    })
}

/// The memory of the server: by default with space for the output of as many runs as may run at once.
pub(super) fn parse_memory(
    max_mb: Option<u64>,
    capacity: &Capacity,
    ceilings: &Ceilings,
) -> Result<MemoryLimit, InvalidValueError> {
    let max_outputs = (capacity.concurrent as u64).saturating_mul(ceilings.limits[Limit::Output]);
    let default_mb =
        default_memory_mb().saturating_add(max_outputs.div_ceil(1 << 20)).min(MemoryLimit::MAX_MB);
    parse_value("server.max_memory_mb", max_mb.unwrap_or(default_mb), MemoryLimit::from_mb)
}

#[cfg(test)]
mod tests {
    use crate::tests::{REACHES_TMP, parse};
    use std::path::Path;

    #[test]
    fn a_name_to_listen_on_is_resolved() {
        assert_eq!(
            parse("[server]\nlisten = \"localhost:80\"\n").unwrap().listen.to_string(),
            "127.0.0.1:80"
        );
        assert!(parse("[server]\nlisten = \"localhost\"\n").is_err());
    }

    #[test]
    fn a_door_of_callers_with_certificates_needs_their_list() {
        let tls = "[server.tls]\ncertificate = \"s.pem\"\nkey = \"s.key\"\nclient_ca = \"c.pem\"\n";
        assert!(parse(tls).unwrap_err().contains("`server.tls.client_ca` needs `server.callers`"));
        let config = parse(&format!("[server]\ncallers = \"callers.toml\"\n{tls}")).unwrap();
        assert!(config.tls.unwrap().client_ca.unwrap().ends_with("c.pem"));
        let socket = "[server]\ncallers = \"callers.toml\"\nlisten = \"unix:executor.sock\"\n";
        assert!(parse(socket).unwrap().listen.is_local());
        assert!(parse(&format!("{socket}{tls}")).unwrap_err().contains("is for a TCP port"));
    }

    #[test]
    fn an_issuer_has_keys_an_audience_and_a_list_of_who_its_tokens_are_about() {
        let server = "[executor]\ndid = \"did:a:b\"\n[server]\ncallers = \"callers.toml\"\n";
        let issuer = |more: &str| {
            format!("[[server.issuer]]\nissuer = \"https://a.example\"\nkeys = \"a.jwks\"\n{more}")
        };
        let issuers = parse(&format!("{server}{}", issuer(""))).unwrap().issuers;
        let [only] = issuers.as_slice() else { panic!("{issuers:?}") };
        assert_eq!((only.issuer.as_str(), &*only.audience), ("https://a.example", "did:a:b"));
        assert_eq!(only.keys, Path::new("/srv/a2g/a.jwks"));
        let named = parse(&format!("{server}{}", issuer("audience = \"tools\"\n"))).unwrap();
        assert_eq!(named.issuers[0].audience, "tools");
        let refused = |text: String, words: &str| {
            let error = parse(&text).unwrap_err();
            assert!(error.contains("`server.issuer`") && error.contains(words), "{error}");
        };
        refused(format!("[executor]\ndid = \"did:a:b\"\n{}", issuer("")), "needs `server.callers`");
        refused(format!("[server]\ncallers = \"c.toml\"\n{}", issuer("")), "needs an `audience`");
        assert!(
            parse(&format!("[server]\ncallers = \"c.toml\"\n{}", issuer("audience = \"tools\"\n"))).is_ok()
        );
        refused(format!("{server}{}", issuer("audience = \"\"\n")), "empty `audience`");
        refused(
            format!("{server}{}", issuer("").replace("https://a.example", "a b")),
            "not the name of an issuer",
        );
        refused(format!("{server}{}", issuer("").repeat(2)), "twice");
        let reachable = issuer("").replace("a.jwks", "/tmp/a.jwks");
        assert!(
            parse(&format!("{REACHES_TMP}{server}{reachable}")).unwrap_err().contains("/tmp/a.jwks"),
            "a guest could change it"
        );
    }
}
