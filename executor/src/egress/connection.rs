//! One connection: counted at the socket, with TLS or without, speaking HTTP/1.1.

use super::line::{Line, Place};
use super::refusal::{EgressError, NetworkError};
use super::target::Target;
use super::{Body, MAX_FIELDS, MAX_HEAD_BYTES};
use crate::capability::Host;
use crate::error_chain::BoxedError;
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

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of further certificates cannot be used.
    #[error("`{}` cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The library's error, or the words of this program.
        source: BoxedError,
    },
    /// The TLS library refuses its own settings.
    #[error("TLS cannot be set up")]
    Settings(#[from] rustls::Error),
}

/// What makes TLS connections.
pub(super) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let mut config = client_config(ca_file)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Trust in the certificates that the machine trusts, and in those of `ca_file` beside them.
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
    // The provider is named, so that nothing else in this process decides it.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// A socket whose bytes are counted, and that ends where the run's budget does.
pub(super) struct Counted {
    stream: TcpStream,
    line: Arc<Line>,
    /// What the line knows the other side by.
    contact: Option<usize>,
    target: String,
}

impl Counted {
    pub(super) fn new(stream: TcpStream, line: Arc<Line>, contact: Option<usize>, target: String) -> Self {
        Self { stream, line, contact, target }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, line, contact, target } = self.get_mut();
        line.receive(*contact, target, |left| {
            if left == 0 {
                return stream.poll_peek(context, &mut ReadBuf::new(&mut [0]));
            }
            let space = into.initialize_unfilled_to(into.remaining().min(left));
            let mut space = ReadBuf::new(space);
            ready!(Pin::new(stream).poll_read(context, &mut space))?;
            let read = space.filled().len();
            into.advance(read);
            Poll::Ready(Ok(read))
        })
        .map_ok(|_| ())
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, line, contact, target } = self.get_mut();
        line.transmit(*contact, target, |left| {
            Pin::new(stream).poll_write(context, bytes.get(..left).unwrap_or(bytes))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// What is read before there is an answer: the head, all the heads that only inform before it, and what of
/// the body comes along. More than this is no answer, and reading it would keep others waiting.
const MAX_INTERIM_BYTES: usize = 4 * MAX_HEAD_BYTES;

/// A stream that ends when too much was read of it before there was an answer.
struct Heads<S> {
    stream: S,
    left: usize,
    answered: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, left, answered } = self.get_mut();
        if !answered.load(Ordering::Relaxed) && *left == 0 {
            return Poll::Ready(Err(io::Error::other(EgressError::from(NetworkError::AnswerHead))));
        }
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(context, into))?;
        *left = left.saturating_sub(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
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

/// A connection that lives as long as this value, and no longer than its run.
pub(super) struct Connection {
    answered: Arc<AtomicBool>,
    driver: AbortHandle,
    _place: Place,
}

impl Connection {
    /// Says that the head of the answer is there.
    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Greets whoever is at the other end of `counted`, which was connected to a checked address.
pub(super) async fn greet(
    counted: Counted,
    target: &Target,
    tls: &TlsConnector,
    place: Place,
) -> Result<(SendRequest<Body>, Connection), EgressError> {
    if !target.tls {
        return speak(counted, place).await;
    }
    let name = match &target.host {
        Host::Name(name) => {
            ServerName::try_from(name.as_str().to_owned()).map_err(|_| NetworkError::Certificate)?
        }
        Host::Address(address) => ServerName::from(*address),
    };
    let greeted = tls.connect(name, counted).await.map_err(|error| {
        let inner = error.get_ref();
        if let Some(refusal) = inner.and_then(|inner| inner.downcast_ref::<EgressError>()) {
            return *refusal;
        }
        match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(_)) => NetworkError::Certificate.into(),
            Some(_) | None => NetworkError::Tls.into(),
        }
    })?;
    speak(greeted, place).await
}

async fn speak<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    place: Place,
) -> Result<(SendRequest<Body>, Connection), EgressError> {
    let answered = Arc::<AtomicBool>::default();
    let stream = Heads { stream, left: MAX_INTERIM_BYTES, answered: Arc::clone(&answered) };
    let handshake = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_FIELDS)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| EgressError::of(&error))?;
    let over = place.over();
    let driver = tokio::spawn(async move {
        tokio::select! {
            // What goes wrong is told to whoever waits for the answer.
            _told_elsewhere = connection => {}
            () = over => {}
        }
    });
    Ok((sender, Connection { answered, driver: driver.abort_handle(), _place: place }))
}

/// The body of an answer, which keeps its connection.
pub(super) struct Answer {
    incoming: Incoming,
    between: Option<Duration>,
    waiting: Option<Pin<Box<Sleep>>>,
    _connection: Connection,
}

impl Answer {
    pub(super) fn new(incoming: Incoming, between: Option<Duration>, connection: Connection) -> Self {
        Self { incoming, between, waiting: None, _connection: connection }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => {
                self.waiting = None;
                // Trailers end an answer, and no guest sees them.
                let frame = frame.filter(|frame| !frame.as_ref().is_ok_and(Frame::is_trailers));
                Poll::Ready(frame.map(|frame| frame.map_err(|error| EgressError::of(&error))))
            }
            Poll::Pending => {
                let Some(between) = self.between else { return Poll::Pending };
                let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(between)));
                ready!(waiting.as_mut().poll(context));
                Poll::Ready(Some(Err(NetworkError::AnswerTimeout.into())))
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
