//! TLS of the HTTP port, and the names in client certificates.
//!
//! With `client_ca`, the handshake fails without a certificate that this CA signed. The certificate grants nothing: the
//! list of callers maps its names to roles and agents. The list has names, not digests, because certificates are
//! renewed.

use a2g_govern::{FileError, read_secret, read_trusted};
use a2g_types::error_chain::BoxedError;
use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use webpki::EndEntityCert;

/// The PEM files that the TLS configuration is read from.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// The server's certificate, followed by any intermediate ones.
    pub certificate: PathBuf,
    /// The server's private key; no user but the file's owner may be able to read it.
    pub key: PathBuf,
    /// The CA of client certificates; `None`: no client certificates are requested.
    pub client_ca: Option<PathBuf>,
}

/// The configured TLS files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A file cannot be read, or has unsafe permissions.
    #[error(transparent)]
    Key(#[from] FileError),
    /// The content of a file is not valid.
    #[error("`{}` cannot be used", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The TLS library's error, or a reason that this program gives.
        source: BoxedError,
    },
}

/// The TLS configuration of the port, which can be reloaded while the port serves.
#[derive(Debug)]
pub struct Tls {
    settings: TlsSettings,
    config: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads certificates and key.
    ///
    /// # Ambient Authority
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// If a file cannot be read or is not valid, if other users can read the key, or if it does not match the
    /// certificate.
    pub fn read(settings: TlsSettings) -> Result<Self, ServerTlsError> {
        let config = ArcSwap::from_pointee(server_config(&settings)?);
        Ok(Self { settings, config })
    }

    /// Reads the files again, for all later handshakes. On an error the old configuration stays.
    ///
    /// # Ambient Authority
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn reload(&self) -> Result<(), ServerTlsError> {
        self.config.store(Arc::new(server_config(&self.settings)?));
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

fn unusable(path: &Path, error: impl Into<BoxedError>) -> ServerTlsError {
    ServerTlsError::Text { path: path.to_owned(), source: error.into() }
}

fn server_config(settings: &TlsSettings) -> Result<ServerConfig, ServerTlsError> {
    let TlsSettings { certificate, key, client_ca } = settings;
    // An explicit provider: the process-wide default could be set by any other crate.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::from_pem_slice(&read_secret(key)?).map_err(|error| unusable(key, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(certificate, error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error))?)
        }
    };
    let mut config = builder
        .with_single_cert(read_certificates(certificate)?, private)
        .map_err(|error| unusable(certificate, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if client_ca.is_some() {
        // Sessions are not resumed, because a resumed session would not present the certificate again, which may have
        // expired since.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Ok(config)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerTlsError> {
    let text = read_trusted(path)?;
    let parsed = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let certificates = parsed.map_err(|error| unusable(path, error))?;
    if certificates.is_empty() {
        return Err(unusable(path, "it contains no certificate in PEM"));
    }
    Ok(certificates)
}

/// The DNS names and URIs of a client, from the first of these certificates, which the handshake has verified.
pub(super) fn certificate_names(certificates: &[CertificateDer<'_>]) -> Arc<[Box<str>]> {
    let client = certificates.first().and_then(|first| EndEntityCert::try_from(first).ok());
    let names = client.iter().flat_map(|client| client.valid_dns_names().chain(client.valid_uri_names()));
    names.map(Box::from).collect()
}
