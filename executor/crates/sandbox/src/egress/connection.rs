//! One HTTP/1.1 connection, with or without TLS, whose bytes are counted at the socket.

use super::refusal::{EgressError, NetworkError};
use super::session::{ConnectionSlot, NetworkSession};
use super::target::Target;
use super::{Body, MAX_HEAD_BYTES};
use a2g_capability::Host;
use a2g_runtime::spawn;
use a2g_types::error_chain::BoxedError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tokio_rustls::TlsConnector;

/// Maximum number of header fields of a response.
const MAX_FIELDS: usize = 128;

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file of additional certificates cannot be used.
    #[error("`{}` cannot be used", path.display())]
    File {
        /// The file's path.
        path: PathBuf,
        /// The library's error, or this program's message.
        source: BoxedError,
    },
    /// The TLS library rejects the settings.
    #[error("TLS cannot be set up")]
    Settings(#[from] rustls::Error),
}

pub(super) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let mut config = client_config(ca_file)?;
    // Without this, a server could select HTTP/2, which this client does not support.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A client configuration that trusts the machine's certificates and those of `ca_file`.
///
/// # Ambient Authority
/// Reads the machine's certificates and `ca_file`.
///
/// # Errors
/// [`TlsError`] when `ca_file` cannot be read or holds no certificate.
pub fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "some of the machine's certificates cannot be read");
    }
    roots.add_parsable_certificates(native.certs);
    if let Some(path) = ca_file {
        let unusable = |source: BoxedError| TlsError::File { path: path.to_owned(), source };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.into()))?;
        let before = roots.len();
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unusable(error.into()))?;
            roots.add(certificate).map_err(|error| unusable(error.into()))?;
        }
        if roots.len() == before {
            return Err(unusable("it holds no certificate in PEM".into()));
        }
    }
    // The provider is named, so that a crate that installs a process-wide default cannot change it.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// A socket that counts its bytes, and fails when the run's budget is used up.
pub(super) struct MeteredStream {
    stream: TcpStream,
    session: Arc<NetworkSession>,
    /// The index of the other side in the session's list of contacts.
    contact: Option<usize>,
    target: String,
}

impl MeteredStream {
    pub(super) fn new(
        stream: TcpStream,
        session: Arc<NetworkSession>,
        contact: Option<usize>,
        target: String,
    ) -> Self {
        Self { stream, session, contact, target }
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, session, contact, target } = self.get_mut();
        session
            .receive(*contact, target, |budget| {
                if budget == 0 {
                    // Peeks for a further byte: the response may fit the budget exactly.
                    return stream.poll_peek(context, &mut ReadBuf::new(&mut [0]));
                }
                let space = into.initialize_unfilled_to(into.remaining().min(budget));
                let mut space = ReadBuf::new(space);
                ready!(Pin::new(stream).poll_read(context, &mut space))?;
                let read = space.filled().len();
                into.advance(read);
                Poll::Ready(Ok(read))
            })
            .map_ok(|_| ())
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, session, contact, target } = self.get_mut();
        session.transmit(*contact, target, |budget| {
            Pin::new(stream).poll_write(context, bytes.get(..budget).unwrap_or(bytes))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// Maximum number of bytes read before the response's head is complete: interim heads, the head itself, and the part of
/// the body that arrives with it.
// A server that sends interim heads without end would otherwise occupy the runtime.
const MAX_INTERIM_BYTES: usize = 4 * MAX_HEAD_BYTES;

/// A stream that fails when too much is read from it before the response's head is complete.
struct HeadLimit<S> {
    stream: S,
    remaining: usize,
    head_received: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadLimit<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, remaining, head_received } = self.get_mut();
        if !head_received.load(Ordering::Relaxed) && *remaining == 0 {
            return Poll::Ready(Err(io::Error::other(EgressError::from(NetworkError::ResponseHead))));
        }
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(context, into))?;
        *remaining = remaining.saturating_sub(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadLimit<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A connection that is closed when this value is dropped or the run ends.
pub(super) struct Connection {
    head_received: Arc<AtomicBool>,
    driver: AbortHandle,
    _slot: ConnectionSlot,
}

impl Connection {
    /// Removes the limit on bytes before the response's head.
    pub(super) fn lift_head_limit(&self) {
        self.head_received.store(true, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Performs the TLS handshake if the target requires it, then the HTTP handshake, over `stream`, which is connected to
/// a checked address.
pub(super) async fn tls_and_http_handshake(
    stream: MeteredStream,
    target: &Target,
    tls: &TlsConnector,
    slot: ConnectionSlot,
) -> Result<(SendRequest<Body>, Connection), EgressError> {
    if !target.tls {
        return http_handshake(stream, slot).await;
    }
    let name = match &target.host {
        Host::Name(name) => {
            ServerName::try_from(name.as_str().to_owned()).map_err(|_| NetworkError::Certificate)?
        }
        Host::Address(address) => ServerName::from(*address),
    };
    let encrypted = tls.connect(name, stream).await.map_err(|error| {
        let inner = error.get_ref();
        // A budget that is used up during the handshake is a denial, not a failure of TLS.
        if let Some(refusal) = inner.and_then(|inner| inner.downcast_ref::<EgressError>()) {
            return *refusal;
        }
        match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(_)) => NetworkError::Certificate.into(),
            Some(_) | None => NetworkError::Tls.into(),
        }
    })?;
    http_handshake(encrypted, slot).await
}

async fn http_handshake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    slot: ConnectionSlot,
) -> Result<(SendRequest<Body>, Connection), EgressError> {
    let head_received = Arc::<AtomicBool>::default();
    let stream =
        HeadLimit { stream, remaining: MAX_INTERIM_BYTES, head_received: Arc::clone(&head_received) };
    let handshake = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_FIELDS)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| EgressError::from_hyper(&error))?;
    let end = slot.wait_for_end();
    let driver = spawn::spawn_run_task(async move {
        tokio::select! {
            // The sender of the request, or the reader of the body, receives the error.
            _ = connection => {}
            () = end => {}
        }
    });
    Ok((sender, Connection { head_received, driver: driver.abort_handle(), _slot: slot }))
}

/// The body of a response, which owns its connection.
pub(super) struct ResponseBody {
    incoming: Incoming,
    between_bytes: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    _connection: Connection,
}

impl ResponseBody {
    pub(super) fn new(incoming: Incoming, between_bytes: Option<Duration>, connection: Connection) -> Self {
        Self { incoming, between_bytes, timer: None, _connection: connection }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => {
                self.timer = None;
                // Trailers end a response, and guests do not receive them.
                let frame = frame.filter(|frame| !frame.as_ref().is_ok_and(Frame::is_trailers));
                Poll::Ready(frame.map(|frame| frame.map_err(|error| EgressError::from_hyper(&error))))
            }
            Poll::Pending => {
                let Some(between_bytes) = self.between_bytes else { return Poll::Pending };
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(between_bytes)));
                ready!(timer.as_mut().poll(context));
                Poll::Ready(Some(Err(NetworkError::ResponseTimeout.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
