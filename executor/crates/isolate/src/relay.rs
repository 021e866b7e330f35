//! The network and the nested calls of a run in a separate process: the guest's requests go over a socket pair to the
//! server, which authorizes and performs them.
//!
//! ```text
//! child                                            server
//!   Open, Data…, End  ── upload ────▶  the run's session  (or Abort: the guest cancels the stream)
//!   Head, Data…, End  ◀── download ──                     (or Refused, before the head or after it)
//!   Credit            ◀─ each side ─▶                     bytes were consumed, so as many may be sent
//!   StopSending       ◀──────────────                     the rest of the upload is not read
//! ```
//! A stream is one of these:
//! - a request with its response;
//! - a name look-up, which has only heads;
//! - a request about other tools, whose upload is the arguments and whose download is the answer as JSON;
//! - a connection, whose directions end independently, and which lives until the child aborts it or the server refuses
//!   it.
//!
//! A frame is a kind, the number of a stream, a length and that many bytes. In each direction of a stream, at most
//! [`WINDOW_BYTES`] are in flight: sent, but not yet consumed. The server bounds everything that a child sends, and
//! closes the connection with all its streams at the first invalid frame.
//!
//! In the child, one thread reads the socket. It is started before the process is confined: afterwards no
//! thread can be started, and `read` is the only receiving system call that the thread makes. Each turn of a
//! session has a socket pair of its own, so that no frame of one turn is read in another; the thread reads
//! one after the other.

use super::confine::Confinement;
use super::zygote::confine_io_error;
use a2g_runtime::spawn;
use a2g_sandbox::egress::{
    Body, ConnectFuture, EgressError, LookUpFuture, MAX_HEAD_BYTES, NetworkBackend, NetworkError,
    NetworkSession, SendFuture, Timeouts,
};
use a2g_sandbox::{CallAnswer, CallBackend, CallError, CallFuture, CallRequest, MAX_ARGUMENT_BYTES};
use a2g_types::limit::NetworkBudgets;
use a2g_types::memory::{CountedBytes, SMALL_MESSAGE_BYTES};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame as BodyFrame};
use http_body_util::{BodyExt as _, Empty, Full};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of bytes that are in flight in one direction of a stream.
const WINDOW_BYTES: usize = 256 << 10;
/// Maximum number of bytes in one `Data` frame.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Minimum cost of a chunk against a window, in bytes.
// A peer that sends single bytes then costs no more memory than one that sends large chunks.
const MIN_FRAME_COST: usize = 1 << 10;
/// Maximum number of bytes in a frame with a head. As JSON, a head may be longer than in HTTP.
const MAX_HEAD_FRAME_BYTES: usize = 8 * MAX_HEAD_BYTES;
/// Maximum number of streams that a child may open in addition to those that its run's budgets allow.
// The server refuses all of these streams; the limit is for a guest that retries without end.
const MAX_REJECTED_STREAMS: u32 = 1024;
/// Maximum size of the answer to a request about other tools, in bytes.
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// Maximum number of requests about other tools that a child may make in addition to its run's calls: questions, and
/// calls that the server refuses.
const MAX_EXTRA_CALLS: u32 = 32 << 10;
/// The consumed bytes after which credit is returned to the sender.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;
/// The stack size of the child's reading thread, in bytes.
const READER_STACK_BYTES: usize = 256 << 10;

/// The kind of a frame. The numbers are the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum FrameKind {
    /// A new stream, with an [`OpenFrame`].
    Open = 1,
    /// A chunk of a body.
    Data = 2,
    /// The end of a body.
    End = 3,
    /// The child cancels the stream.
    Abort = 4,
    /// The number of bytes that were consumed.
    Credit = 5,
    /// The head of the response, a [`ResponseHead`].
    Head = 6,
    /// The failure of a stream, an [`EgressError`].
    Refused = 7,
    /// The server reads no more of this connection's upload.
    StopSending = 8,
}

/// The content of an `Open` frame.
#[derive(Debug, Serialize, Deserialize)]
enum OpenFrame {
    /// The head of a request.
    Request {
        method: String,
        uri: String,
        fields: Vec<(String, String)>,
        body: bool,
        timeouts: Timeouts,
    },
    LookUp {
        name: String,
    },
    Connect {
        address: SocketAddr,
    },
    Call(CallHead),
}

/// A [`CallRequest`] without the arguments, which are the upload.
#[derive(Debug, Serialize, Deserialize)]
enum CallHead {
    List,
    Describe { tool: String },
    Call { tool: String },
}

impl CallHead {
    fn split(request: CallRequest) -> (Self, Option<String>) {
        match request {
            CallRequest::List => (Self::List, None),
            CallRequest::Describe { tool } => (Self::Describe { tool }, None),
            // Nothing is counted in this process.
            CallRequest::Call { tool, arguments, counted: _ } => (Self::Call { tool }, Some(arguments)),
        }
    }

    fn join(self, arguments: String, counted: Option<CountedBytes>) -> CallRequest {
        match self {
            Self::List => CallRequest::List,
            Self::Describe { tool } => CallRequest::Describe { tool },
            Self::Call { tool } => CallRequest::Call { tool, arguments, counted },
        }
    }
}

impl OpenFrame {
    fn kind(&self) -> StreamKind {
        match self {
            Self::Request { .. } | Self::LookUp { .. } | Self::Call(_) => StreamKind::Exchange,
            Self::Connect { .. } => StreamKind::Connection,
        }
    }
}

/// The life cycle of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    /// Ends with its download.
    Exchange,
    /// Its directions end independently. A chunk of the upload is sent when the previous one has been consumed.
    // A guest may end as soon as its bytes are reported as flushed, so a chunk counts as sent only when the kernel has
    // accepted it.
    Connection,
}

impl StreamKind {
    /// The consumed bytes of an upload after which credit is returned.
    fn credit_threshold(self) -> usize {
        match self {
            Self::Exchange => CREDIT_BYTES,
            Self::Connection => 1,
        }
    }
}

/// The content of a `Head` frame.
#[derive(Debug, Serialize, Deserialize)]
enum ResponseHead {
    /// The head of an HTTP response.
    Answer {
        status: u16,
        fields: Vec<(String, String)>,
    },
    Found(Vec<IpAddr>),
    Connected,
    /// The answer to a request about other tools follows as a body.
    Called,
}

type EgressResult<T> = std::result::Result<T, EgressError>;

/// A received frame.
#[derive(Debug)]
struct Frame {
    kind: FrameKind,
    stream: u32,
    content: Bytes,
}

/// One byte of kind, four of stream number, four of length.
const HEADER_BYTES: usize = 9;

fn protocol_error() -> Error {
    Error::new(ErrorKind::InvalidData, "invalid or unexpected frame")
}

fn decode_header(header: [u8; HEADER_BYTES]) -> Result<(FrameKind, u32, usize)> {
    let [kind, s0, s1, s2, s3, l0, l1, l2, l3] = header;
    let kind = match kind {
        1 => FrameKind::Open,
        2 => FrameKind::Data,
        3 => FrameKind::End,
        4 => FrameKind::Abort,
        5 => FrameKind::Credit,
        6 => FrameKind::Head,
        7 => FrameKind::Refused,
        8 => FrameKind::StopSending,
        _ => return Err(protocol_error()),
    };
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    let max = match kind {
        FrameKind::Open | FrameKind::Head => MAX_HEAD_FRAME_BYTES,
        FrameKind::Data => MAX_CHUNK_BYTES,
        FrameKind::End | FrameKind::Abort | FrameKind::StopSending => 0,
        FrameKind::Credit => 4,
        FrameKind::Refused => 256,
    };
    if length > max {
        return Err(protocol_error());
    }
    Ok((kind, u32::from_le_bytes([s0, s1, s2, s3]), length))
}

fn encode_frame(kind: FrameKind, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
    bytes.push(kind as u8);
    bytes.extend(stream.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(content);
    bytes
}

fn encode_json_frame(kind: FrameKind, stream: u32, content: &impl Serialize) -> Vec<u8> {
    // Plain values without maps: serializing them cannot fail.
    encode_frame(kind, stream, &serde_json::to_vec(content).unwrap_or_default())
}

fn encode_credit(stream: u32, bytes: usize) -> Vec<u8> {
    encode_frame(FrameKind::Credit, stream, &u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes())
}

fn decode_credit(content: &[u8]) -> Result<usize> {
    let bytes = u32::from_le_bytes(content.try_into().map_err(|_| protocol_error())?);
    usize::try_from(bytes).map_err(|_| protocol_error())
}

/// Header fields as text; each byte of a value becomes the character with the same number.
fn encode_headers(fields: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    fields.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

fn decode_headers(fields: Vec<(String, String)>) -> Option<HeaderMap> {
    let fields = fields.into_iter().map(|(name, value)| {
        let value = value.chars().map(|c| u8::try_from(c).ok()).collect::<Option<Vec<_>>>()?;
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    });
    let mut map = HeaderMap::new();
    for field in fields {
        let (name, value) = field?;
        map.try_append(name, value).ok()?;
    }
    Some(map)
}

/// Flow-control cost of a chunk of the given size.
fn weight(bytes: usize) -> usize {
    bytes.max(MIN_FRAME_COST)
}

/// A body that arrives over the socket, in chunks.
struct BodyStream {
    chunks: mpsc::UnboundedReceiver<EgressResult<Bytes>>,
    /// The cost of the chunks that have been consumed but not yet credited.
    pending_credit: usize,
    /// The cost at which credit is returned.
    credit_threshold: usize,
    /// The cost of the chunks in flight, shared with [`RecvWindow`], which enforces the limit.
    in_flight: Arc<AtomicUsize>,
    return_credit: Box<dyn Fn(usize) + Send>,
    /// Notifies the other side when this body is dropped.
    drop_notice: Option<DropNotice>,
}

/// The notification that a body is no longer read.
enum DropNotice {
    /// In the child: the stream ends when its download is no longer read.
    Child { _stream: StreamGuard },
    /// In the server, for the upload of a connection.
    Server { _notice: SendOnDrop },
}

/// Sends a frame when it is dropped.
struct SendOnDrop {
    frame: Vec<u8>,
    to: mpsc::UnboundedSender<Vec<u8>>,
}

impl Drop for SendOnDrop {
    fn drop(&mut self) {
        // Fails if the child has ended, which ends the stream as well.
        let _child_may_have_ended = self.to.send(std::mem::take(&mut self.frame));
    }
}

impl http_body::Body for BodyStream {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<EgressResult<BodyFrame<Bytes>>>> {
        // Polling for the next chunk acknowledges all previous ones.
        if self.pending_credit >= self.credit_threshold {
            let credit = std::mem::take(&mut self.pending_credit);
            self.in_flight.fetch_sub(credit, Ordering::SeqCst);
            (self.return_credit)(credit);
        }
        let chunk = std::task::ready!(self.chunks.poll_recv(context));
        if let Some(Ok(bytes)) = &chunk {
            self.pending_credit += weight(bytes.len());
        }
        Poll::Ready(chunk.map(|chunk| chunk.map(BodyFrame::data)))
    }
}

/// The receiving end of one direction of a stream.
struct RecvWindow {
    chunks: mpsc::UnboundedSender<EgressResult<Bytes>>,
    in_flight: Arc<AtomicUsize>,
}

impl RecvWindow {
    fn new(credit_threshold: usize, return_credit: impl Fn(usize) + Send + 'static) -> (Self, BodyStream) {
        let (sender, chunks) = mpsc::unbounded_channel();
        let in_flight = Arc::<AtomicUsize>::default();
        let recv_window = Self { chunks: sender, in_flight: Arc::clone(&in_flight) };
        (
            recv_window,
            BodyStream {
                chunks,
                pending_credit: 0,
                credit_threshold,
                in_flight,
                return_credit: Box::new(return_credit),
                drop_notice: None,
            },
        )
    }

    fn accept(&self, chunk: Bytes) -> Result<()> {
        let weight = weight(chunk.len());
        if self.in_flight.fetch_add(weight, Ordering::SeqCst) + weight > WINDOW_BYTES {
            return Err(protocol_error());
        }
        // The reader may have been dropped; the rest of the body is then discarded.
        let _unread = self.chunks.send(Ok(chunk));
        Ok(())
    }
}

/// The sending end of one direction of a stream.
struct SendWindow {
    /// One permit for each byte that may be sent.
    window: Arc<Semaphore>,
}

impl SendWindow {
    fn new() -> (Self, Arc<Semaphore>) {
        let window = Arc::new(Semaphore::new(WINDOW_BYTES));
        (Self { window: Arc::clone(&window) }, window)
    }

    fn add_credit(&self, bytes: usize) -> Result<()> {
        if self.window.available_permits().saturating_add(bytes) > WINDOW_BYTES {
            return Err(protocol_error());
        }
        self.window.add_permits(bytes);
        Ok(())
    }
}

impl Drop for SendWindow {
    fn drop(&mut self) {
        // No more credit will arrive: a sender that waits for it has to fail.
        self.window.close();
    }
}

/// Sends a body in chunks, each when the window has capacity for it. With `one_by_one`, each part is sent only after
/// the previous one has been consumed.
async fn pump(
    body: &mut Body,
    window: &Semaphore,
    one_by_one: bool,
    send: impl Fn(Bytes),
) -> EgressResult<()> {
    let acquire = |weight: usize| window.acquire_many(u32::try_from(weight).unwrap_or(u32::MAX));
    while let Some(part) = body.frame().await {
        let Ok(mut rest) = part?.into_data() else { return Ok(()) };
        while !rest.is_empty() {
            let chunk = rest.split_to(rest.len().min(MAX_CHUNK_BYTES));
            acquire(weight(chunk.len())).await.map_err(|_| NetworkError::RunEnded)?.forget();
            send(chunk);
        }
        if one_by_one {
            drop(acquire(WINDOW_BYTES).await.map_err(|_| NetworkError::RunEnded)?);
        }
    }
    Ok(())
}

/// The streams of one child, by number.
type Streams = Arc<Mutex<HashMap<u32, ServerStream>>>;

/// The services of the server for one child.
pub(super) struct Services {
    /// Performs its network requests; `None` if the run has no network.
    pub(super) network: Option<Arc<NetworkSession>>,
    /// Makes its calls; `None` if the run may make none.
    pub(super) calls: Option<CallService>,
}

/// The nested calls of one child.
pub(super) struct CallService {
    pub(super) backend: Arc<dyn CallBackend>,
    /// Maximum number of calls.
    pub(super) max_calls: u32,
    /// Maximum number of simultaneous calls.
    pub(super) max_parallel: u32,
}

/// The bytes, frames and streams that a child may still send.
struct ReceiveBudget {
    bytes: u64,
    frames: u64,
    streams: u32,
    open_calls: Arc<Semaphore>,
}

impl ReceiveBudget {
    fn new(services: &Services) -> Self {
        let network = services.network.as_ref().map(|session| session.budgets());
        let network = network.unwrap_or(NetworkBudgets::ZERO);
        // Worst case: a frame for each sent byte. A received byte costs at most `MIN_FRAME_COST`, and for each
        // `CREDIT_BYTES` of cost the child returns one credit frame with 4 bytes. The factor 2 and the bytes and frames
        // below are slack.
        let credits = network.received_bytes / (CREDIT_BYTES / MIN_FRAME_COST) as u64;
        let bytes = network.sent_bytes.saturating_mul(2).saturating_add(credits.saturating_mul(4));
        let calls = services.calls.as_ref();
        let calls_streams = calls.map_or(0, |calls| calls.max_calls.saturating_add(MAX_EXTRA_CALLS));
        Self {
            bytes: bytes.saturating_add(1 << 20),
            frames: network.sent_bytes.saturating_add(credits).saturating_add(1 << 10),
            // One request may open two streams: a look-up pays for the first connection to its addresses.
            streams: network
                .requests
                .saturating_mul(2)
                .saturating_add(MAX_REJECTED_STREAMS)
                .saturating_add(calls_streams),
            open_calls: Arc::new(Semaphore::new(calls.map_or(0, |calls| calls.max_parallel as usize))),
        }
    }

    fn spend_frame(&mut self, length: usize) -> Result<()> {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        self.bytes = self.bytes.checked_sub(length).ok_or_else(protocol_error)?;
        self.frames = self.frames.checked_sub(1).ok_or_else(protocol_error)?;
        Ok(())
    }

    /// Spends a stream, and makes room for the chunks that are in flight when it is refused. A call also has room for
    /// its arguments and for the credit of its answer.
    fn spend_stream(&mut self, opening: &OpenFrame) -> Result<Option<OwnedSemaphorePermit>> {
        self.streams = self.streams.checked_sub(1).ok_or_else(protocol_error)?;
        let bytes = MAX_HEAD_FRAME_BYTES + WINDOW_BYTES;
        let frames = 8 + WINDOW_BYTES / MIN_FRAME_COST;
        let (is_call, bytes, frames) = match opening {
            OpenFrame::Request { .. } | OpenFrame::LookUp { .. } | OpenFrame::Connect { .. } => {
                (false, bytes, frames)
            }
            OpenFrame::Call(_) => {
                let credits = MAX_ANSWER_BYTES / CREDIT_BYTES;
                let chunks = MAX_ARGUMENT_BYTES / MIN_FRAME_COST;
                (true, bytes + MAX_ARGUMENT_BYTES + 4 * credits, frames + chunks + credits)
            }
        };
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.frames = self.frames.saturating_add(frames as u64);
        // The child has the same limit, so one that exceeds it is compromised.
        let permit = || Arc::clone(&self.open_calls).try_acquire_owned().map_err(|_| protocol_error());
        is_call.then(permit).transpose()
    }
}

/// The server's state of a stream.
struct ServerStream {
    upload: Option<RecvWindow>,
    download: SendWindow,
    task: AbortHandle,
    /// Completes when the task has dropped everything, including its slot among the run's connections.
    release: oneshot::Receiver<Infallible>,
}

/// Serves the requests of one child. Returns when the child has ended, or with an error at the first invalid frame. The
/// future has to be dropped when the run ends.
pub(super) async fn serve_child(services: Services, socket: UnixStream) -> Result<()> {
    let (mut from_child, mut to_child) = socket.into_split();
    // The queue is bounded by the windows of the streams, and by the number of streams that a child may open.
    let (frames, mut outgoing) = mpsc::unbounded_channel::<Vec<u8>>();
    let writer = async move {
        while let Some(frame) = outgoing.recv().await {
            to_child.write_all(&frame).await?;
        }
        Ok(())
    };
    let reader = async move {
        let streams = Streams::default();
        let mut tasks = JoinSet::new();
        let mut last_stream = 0;
        let mut order = CallOrder::default();
        let mut budget = ReceiveBudget::new(&services);
        while let Some(Frame { kind, stream, content }) = read_frame(&mut from_child).await? {
            budget.spend_frame(content.len())?;
            let aborted = {
                let mut open_streams = streams.lock();
                match kind {
                    FrameKind::Open => {
                        let opening = serde_json::from_slice(&content).map_err(|_| protocol_error())?;
                        if stream <= last_stream {
                            return Err(protocol_error());
                        }
                        last_stream = stream;
                        let permit = budget.spend_stream(&opening)?;
                        while tasks.try_join_next().is_some() {}
                        // The task removes its own stream at its end. The lock is held until the stream is in the
                        // map, so a task that ends at once cannot remove it too early.
                        let place = order.place(&opening);
                        let request = OpenRequest { stream, opening, permit, place };
                        open_streams
                            .insert(stream, serve_stream(&services, request, &frames, &streams, &mut tasks)?);
                        None
                    }
                    FrameKind::Data => {
                        // The child may not have received the end of this stream yet.
                        let recv_window = open_streams.get(&stream).and_then(|served| served.upload.as_ref());
                        recv_window.map_or(Ok(()), |recv_window| recv_window.accept(content))?;
                        None
                    }
                    FrameKind::End => {
                        if let Some(served) = open_streams.get_mut(&stream) {
                            served.upload = None;
                        }
                        None
                    }
                    FrameKind::Abort => open_streams.remove(&stream),
                    FrameKind::Credit => {
                        let bytes = decode_credit(&content)?;
                        open_streams
                            .get(&stream)
                            .map_or(Ok(()), |served| served.download.add_credit(bytes))?;
                        None
                    }
                    FrameKind::Head | FrameKind::Refused | FrameKind::StopSending => {
                        return Err(protocol_error());
                    }
                }
            };
            if let Some(ServerStream { task, release, .. }) = aborted {
                task.abort();
                // The slot must be free for the child's next request.
                let _sender_is_dropped = release.await;
            }
        }
        Ok(())
    };
    tokio::select! {
        result = writer => result,
        result = reader => result,
    }
}

/// Reads one frame; `None` at the end of the connection.
async fn read_frame(from: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Option<Frame>> {
    let mut head = [0; HEADER_BYTES];
    if from.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..]).await?;
    let (kind, stream, length) = decode_header(head)?;
    let mut content = vec![0; length];
    from.read_exact(&mut content).await?;
    Ok(Some(Frame { kind, stream, content: content.into() }))
}

/// A stream that a child has opened.
struct OpenRequest {
    stream: u32,
    opening: OpenFrame,
    /// One of the run's `max_parallel` permits; `None` if this is not a request about other tools.
    permit: Option<OwnedSemaphorePermit>,
    /// The place of a call in the order of the child's calls.
    place: Place,
}

/// The order in which a child has opened its calls.
#[derive(Default)]
struct CallOrder {
    last: Option<oneshot::Receiver<Infallible>>,
}

/// The place of one call. The next call may begin once it is dropped.
struct Place {
    previous: Option<oneshot::Receiver<Infallible>>,
    _next: Option<oneshot::Sender<Infallible>>,
}

impl CallOrder {
    /// The place of a stream that was just opened. Only calls have an order.
    fn place(&mut self, opening: &OpenFrame) -> Place {
        let OpenFrame::Call(CallHead::Call { .. }) = opening else {
            return Place { previous: None, _next: None };
        };
        let (next, last) = oneshot::channel();
        Place { previous: self.last.replace(last), _next: Some(next) }
    }
}

impl Place {
    /// Waits until all earlier calls have begun, or have been given up.
    async fn wait(&mut self) {
        if let Some(previous) = self.previous.take() {
            let _sender_is_dropped = previous.await;
        }
    }
}

/// Starts to serve a stream.
fn serve_stream(
    services: &Services,
    OpenRequest { stream, opening, permit, place }: OpenRequest,
    frames: &mpsc::UnboundedSender<Vec<u8>>,
    streams: &Streams,
    tasks: &mut JoinSet<()>,
) -> Result<ServerStream> {
    let kind = opening.kind();
    let credits = frames.clone();
    let (recv_window, mut chunks) = RecvWindow::new(kind.credit_threshold(), move |bytes| {
        drop(credits.send(encode_credit(stream, bytes)))
    });
    let session = || services.network.clone().ok_or_else(protocol_error);
    let (request, uploads) = match opening {
        OpenFrame::Request { method, uri, fields, body, timeouts } => {
            let empty = || Empty::new().map_err(|never| match never {}).boxed_unsync();
            let mut request = Request::new(if body { chunks.boxed_unsync() } else { empty() });
            *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| protocol_error())?;
            *request.uri_mut() = uri.parse::<Uri>().map_err(|_| protocol_error())?;
            *request.headers_mut() = decode_headers(fields).ok_or_else(protocol_error)?;
            (StreamRequest::Request(session()?, Box::new(request), timeouts), body)
        }
        OpenFrame::LookUp { name } => (StreamRequest::LookUp(session()?, name), false),
        OpenFrame::Connect { address } => {
            let notice =
                SendOnDrop { frame: encode_frame(FrameKind::StopSending, stream, &[]), to: frames.clone() };
            chunks.drop_notice = Some(DropNotice::Server { _notice: notice });
            (StreamRequest::Connect(session()?, address, chunks.boxed_unsync()), true)
        }
        OpenFrame::Call(head) => {
            let calls = services.calls.as_ref().ok_or_else(protocol_error)?;
            let has_arguments = matches!(head, CallHead::Call { .. });
            (
                StreamRequest::Call(Arc::clone(&calls.backend), head, chunks.boxed_unsync(), place),
                has_arguments,
            )
        }
    };
    let (download, window) = SendWindow::new();
    let frames = frames.clone();
    let streams = Arc::clone(streams);
    let (release_tx, release) = oneshot::channel();
    let task = tasks.spawn(async move {
        // Values are dropped in reverse order, so this one signals that all others have been dropped.
        let _release_tx = release_tx;
        // Fails if the child has ended, which ends this task as well.
        let send = |frame| drop(frames.send(frame));
        let permit = permit;
        let work = async {
            let (head, mut body) = request.perform().await?;
            send(encode_json_frame(FrameKind::Head, stream, &head));
            if let Some(body) = &mut body {
                pump(body, &window, false, |chunk| send(encode_frame(FrameKind::Data, stream, &chunk)))
                    .await?;
            }
            EgressResult::Ok(body)
        };
        let result = work.await;
        // Dropped before the last frame: the child may open its next call as soon as it has received that frame.
        drop(permit);
        match (result, kind) {
            (Err(refusal), _) => send(encode_json_frame(FrameKind::Refused, stream, &refusal)),
            (Ok(body), StreamKind::Exchange) => {
                // The body holds the stream's slot, which the child may need as soon as it has received the `End`.
                drop(body);
                send(encode_frame(FrameKind::End, stream, &[]));
            }
            (Ok(_body), StreamKind::Connection) => {
                send(encode_frame(FrameKind::End, stream, &[]));
                // The upload may continue. The connection ends when its download is dropped.
                std::future::pending().await
            }
        }
        streams.lock().remove(&stream);
    });
    Ok(ServerStream { upload: uploads.then_some(recv_window), download, task, release })
}

/// A child's request, with the service that performs it.
enum StreamRequest {
    Request(Arc<NetworkSession>, Box<Request<Body>>, Timeouts),
    LookUp(Arc<NetworkSession>, String),
    Connect(Arc<NetworkSession>, SocketAddr, Body),
    Call(Arc<dyn CallBackend>, CallHead, Body, Place),
}

impl StreamRequest {
    /// Performs the request. Returns the head of the response, and its body if it has one.
    async fn perform(self) -> EgressResult<(ResponseHead, Option<Body>)> {
        Ok(match self {
            Self::Request(session, request, timeouts) => {
                let (head, body) = session.send(*request, timeouts).await?.into_parts();
                let head = ResponseHead::Answer {
                    status: head.status.as_u16(),
                    fields: encode_headers(&head.headers),
                };
                (head, Some(body))
            }
            Self::LookUp(session, name) => (ResponseHead::Found(session.look_up(name).await?), None),
            Self::Connect(session, address, upload) => {
                (ResponseHead::Connected, Some(session.connect(address, upload).await?))
            }
            Self::Call(backend, head, upload, mut place) => {
                let answer = match head {
                    CallHead::List | CallHead::Describe { .. } => {
                        backend.perform(head.join(String::new(), None)).await
                    }
                    CallHead::Call { .. } => match read_arguments(&*backend, upload).await? {
                        Ok((arguments, counted)) => {
                            place.wait().await;
                            let answer = backend.perform(head.join(arguments, counted));
                            drop(place);
                            answer.await
                        }
                        Err(error) => Err(error),
                    },
                };
                (ResponseHead::Called, Some(encode_answer(&answer)))
            }
        })
    }
}

/// The arguments of a call and, if they are long, their count; or the error for its guest.
async fn read_arguments(
    backend: &dyn CallBackend,
    mut upload: Body,
) -> EgressResult<std::result::Result<(String, Option<CountedBytes>), CallError>> {
    let mut bytes = Vec::new();
    let mut counted = None;
    while let Some(frame) = upload.frame().await {
        let Ok(chunk) = frame.map_err(|_| NetworkError::RunEnded)?.into_data() else { continue };
        let length = bytes.len().saturating_add(chunk.len());
        if length > MAX_ARGUMENT_BYTES {
            return Ok(Err(CallError::long_arguments()));
        }
        if counted.is_none() && length as u64 > SMALL_MESSAGE_BYTES {
            match backend.hold(MAX_ARGUMENT_BYTES as u64) {
                Ok(count) => counted = count,
                Err(error) => return Ok(Err(error)),
            }
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(match String::from_utf8(bytes) {
        Ok(arguments) => Ok((arguments, counted)),
        Err(_) => Err(CallError::new("invalid_arguments", "the arguments are not UTF-8")),
    })
}

fn encode_answer(answer: &std::result::Result<CallAnswer, CallError>) -> Body {
    // Plain values without maps: serializing them cannot fail.
    let text = serde_json::to_vec(answer).unwrap_or_default();
    let text = if text.len() <= MAX_ANSWER_BYTES {
        text
    } else {
        let message = format!("the result has more than {MAX_ANSWER_BYTES} bytes: ask the tool for less");
        let error: std::result::Result<CallAnswer, _> = Err(CallError::new("limit_reached", message));
        serde_json::to_vec(&error).unwrap_or_default()
    };
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// The child's state of a stream.
struct ChildStream {
    kind: StreamKind,
    /// Receives the head; `None` once it has arrived.
    head: Option<oneshot::Sender<EgressResult<ResponseHead>>>,
    /// `None` once the download has ended.
    download: Option<RecvWindow>,
    /// `None` once the server reads no more of the upload.
    upload: Option<SendWindow>,
}

/// The network and the calls of a run, in the run's own process.
pub(super) struct Relay {
    /// `None` once the run has ended.
    socket: Mutex<Option<File>>,
    /// One permit for each request about other tools that may be open at the same time.
    calls: Arc<Semaphore>,
    next: AtomicU32,
    streams: Mutex<Option<HashMap<u32, ChildStream>>>,
}

/// Removes a stream when it is dropped, and sends the server an `Abort` if the stream has not ended.
struct StreamGuard {
    relay: Arc<Relay>,
    stream: u32,
    /// The task that sends the upload.
    upload: Option<AbortHandle>,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            upload.abort();
        }
        let stream = self.relay.with_streams(|streams| streams.remove(&self.stream));
        if stream.is_some() {
            self.relay.send_frame(&encode_frame(FrameKind::Abort, self.stream, &[]));
        }
    }
}

/// The thread of a child that reads the sockets of its relays, one after the other.
pub(super) struct RelayReader {
    sockets: std::sync::mpsc::Sender<(Arc<Relay>, File)>,
    /// Receives one message for each socket, once it is read to its end.
    ends: std::sync::mpsc::Receiver<()>,
}

impl RelayReader {
    /// Starts the thread. Call this before the process is confined.
    ///
    /// # Errors
    /// If no thread can be started, or the thread cannot be confined.
    pub(super) fn start(confinement: &Arc<Confinement>) -> Result<Self> {
        let (sockets, next_sockets) = std::sync::mpsc::channel::<(Arc<Relay>, File)>();
        let (end_tx, ends) = std::sync::mpsc::channel();
        let (result_tx, result_rx) = std::sync::mpsc::sync_channel(1);
        let confinement = Arc::clone(confinement);
        let thread = std::thread::Builder::new().name("relay".into()).stack_size(READER_STACK_BYTES);
        thread.spawn(move || {
            let result = confinement.confine_aux_thread().map_err(confine_io_error);
            let has_failed = result.is_err();
            let _nobody_waits = result_tx.send(result);
            if has_failed {
                return;
            }
            for (relay, mut input) in next_sockets {
                while relay.dispatch_frame(&mut input).is_ok() {}
                // Fails every pending request, and every later one.
                relay.end();
                drop((relay, input));
                let _nobody_waits = end_tx.send(());
            }
        })?;
        result_rx.recv().map_err(Error::other)??;
        Ok(Self { sockets, ends })
    }

    /// The relay of a run that makes at most `max_parallel` simultaneous calls, over `socket`. The one before
    /// it has been closed.
    ///
    /// # Errors
    /// If the process has reached its limit on open descriptors, or the thread has ended.
    pub(super) fn open(&self, socket: OwnedFd, max_parallel: u32) -> Result<Arc<Relay>> {
        // The socket is a `File`, which is read by `read`. A `UnixStream` would use `recv`, which a guest's
        // process may not call.
        let input = File::from(socket.try_clone()?);
        let relay = Arc::new(Relay {
            socket: Mutex::new(Some(File::from(socket))),
            calls: Arc::new(Semaphore::new(max_parallel as usize)),
            next: AtomicU32::new(1),
            streams: Mutex::new(Some(HashMap::new())),
        });
        let sent = self.sockets.send((Arc::clone(&relay), input));
        sent.map_err(|_unread| Error::other("the thread of the relay has ended"))?;
        Ok(relay)
    }

    /// Ends a relay with its run, and waits until the server has closed its end of the socket pair.
    ///
    /// # Errors
    /// If the thread has ended.
    pub(super) fn close(&self, relay: &Relay) -> Result<()> {
        relay.end();
        self.ends.recv().map_err(Error::other)
    }
}

impl Relay {
    /// Fails all that the guest has asked for and sends nothing more, also if the guest still has a stream of
    /// this relay.
    fn end(&self) {
        let open = self.streams.lock().take();
        // A body that only ended here would look complete.
        let streams = open.into_iter().flat_map(HashMap::into_values);
        streams.for_each(|stream| stream.fail(NetworkError::RunEnded.into()));
        *self.socket.lock() = None;
    }

    fn with_streams<T>(&self, work: impl FnOnce(&mut HashMap<u32, ChildStream>) -> Option<T>) -> Option<T> {
        let mut streams = self.streams.lock();
        streams.as_mut().and_then(work)
    }

    fn send_frame(&self, frame: &[u8]) {
        // Frames must not interleave: the guest and uploads write from several tasks.
        let mut open = self.socket.lock();
        if let Some(socket) = open.as_mut() {
            // Fails only if the server has ended the run.
            let _nobody_listens = socket.write_all(frame);
        }
    }

    /// Reads one frame and dispatches it.
    fn dispatch_frame(&self, from: &mut File) -> Result<()> {
        let mut head = [0; HEADER_BYTES];
        from.read_exact(&mut head)?;
        let (kind, stream, length) = decode_header(head)?;
        let mut content = vec![0; length];
        from.read_exact(&mut content)?;
        match kind {
            FrameKind::Head => {
                let head = serde_json::from_slice(&content)?;
                let sender = self.with_streams(|streams| streams.get_mut(&stream)?.head.take());
                let _nobody_waits = sender.map(|sender| sender.send(Ok(head)));
            }
            FrameKind::Data => {
                self.with_streams(|streams| {
                    Some(streams.get(&stream)?.download.as_ref()?.accept(content.into()))
                })
                .transpose()?;
            }
            FrameKind::End => drop(self.with_streams(|streams| {
                let child_stream = streams.get_mut(&stream)?;
                child_stream.download = None;
                (child_stream.kind == StreamKind::Exchange).then(|| streams.remove(&stream))
            })),
            FrameKind::Refused => {
                let refusal = serde_json::from_slice(&content)?;
                if let Some(child_stream) = self.with_streams(|streams| streams.remove(&stream)) {
                    child_stream.fail(refusal);
                }
            }
            FrameKind::Credit => {
                let bytes = decode_credit(&content)?;
                self.with_streams(|streams| Some(streams.get(&stream)?.upload.as_ref()?.add_credit(bytes)))
                    .transpose()?;
            }
            FrameKind::StopSending => {
                drop(self.with_streams(|streams| streams.get_mut(&stream)?.upload.take()))
            }
            FrameKind::Open | FrameKind::Abort => return Err(protocol_error()),
        }
        Ok(())
    }

    async fn send_request(
        self: Arc<Self>,
        request: Request<Body>,
        timeouts: Timeouts,
    ) -> EgressResult<Response<Body>> {
        let (parts, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let opening = OpenFrame::Request {
            method: parts.method.as_str().to_owned(),
            uri: parts.uri.to_string(),
            fields: encode_headers(&parts.headers),
            body: has_body,
            timeouts,
        };
        let (head, chunks) = self.open_stream(&opening, has_body.then_some(body)).await?;
        let ResponseHead::Answer { status, fields } = head else {
            return Err(NetworkError::Response.into());
        };
        let mut response = Response::new(chunks.boxed_unsync());
        *response.status_mut() = StatusCode::from_u16(status).map_err(|_| NetworkError::Response)?;
        *response.headers_mut() = decode_headers(fields).ok_or(NetworkError::Response)?;
        Ok(response)
    }

    async fn look_up_name(self: Arc<Self>, name: String) -> EgressResult<Vec<IpAddr>> {
        match self.open_stream(&OpenFrame::LookUp { name }, None).await? {
            (ResponseHead::Found(addresses), _) => Ok(addresses),
            (ResponseHead::Answer { .. } | ResponseHead::Connected | ResponseHead::Called, _) => {
                Err(NetworkError::Response.into())
            }
        }
    }

    async fn open_connection(self: Arc<Self>, address: SocketAddr, upload: Body) -> EgressResult<Body> {
        match self.open_stream(&OpenFrame::Connect { address }, Some(upload)).await? {
            (ResponseHead::Connected, chunks) => Ok(chunks.boxed_unsync()),
            (ResponseHead::Answer { .. } | ResponseHead::Found(_) | ResponseHead::Called, _) => {
                Err(NetworkError::Response.into())
            }
        }
    }

    /// Sends a request about other tools, and waits for its answer.
    async fn send_call(self: Arc<Self>, request: CallRequest) -> std::result::Result<CallAnswer, CallError> {
        // Cannot fail: the semaphore is never closed.
        let _permit = Arc::clone(&self.calls).acquire_owned().await.map_err(|_| CallError::run_ended())?;
        let (head, arguments) = CallHead::split(request);
        let upload =
            arguments.map(|text| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync());
        let answer = async {
            let (head, chunks) = self.open_stream(&OpenFrame::Call(head), upload).await?;
            let ResponseHead::Called = head else { return Err(NetworkError::Response.into()) };
            EgressResult::Ok(chunks.collect().await?.to_bytes())
        };
        let answer = answer.await.map_err(|_| CallError::run_ended())?;
        serde_json::from_slice(&answer).unwrap_or_else(|_| Err(CallError::run_ended()))
    }

    /// Opens a stream, starts its upload and waits for the head of the response.
    async fn open_stream(
        self: Arc<Self>,
        opening: &OpenFrame,
        upload: Option<Body>,
    ) -> EgressResult<(ResponseHead, BodyStream)> {
        let kind = opening.kind();
        let stream = self.next.fetch_add(1, Ordering::SeqCst);
        let opening = encode_json_frame(FrameKind::Open, stream, opening);
        if opening.len() > MAX_HEAD_FRAME_BYTES {
            return Err(NetworkError::RequestHead.into());
        }
        let (head_tx, head_rx) = oneshot::channel();
        let (send_window, window) = SendWindow::new();
        let mut guard = StreamGuard { relay: Arc::clone(&self), stream, upload: None };
        let sender = Arc::clone(&self);
        let (recv_window, mut chunks) =
            RecvWindow::new(CREDIT_BYTES, move |bytes| sender.send_frame(&encode_credit(stream, bytes)));
        let child_stream =
            ChildStream { kind, head: Some(head_tx), download: Some(recv_window), upload: Some(send_window) };
        let inserted = self.with_streams(|streams| {
            streams.insert(stream, child_stream);
            Some(())
        });
        inserted.ok_or(NetworkError::RunEnded)?;
        self.send_frame(&opening);
        if let Some(body) = upload {
            let upload = spawn::spawn_run_task(Arc::clone(&self).upload(stream, kind, body, window));
            guard.upload = Some(upload.abort_handle());
        }
        let head = head_rx.await.map_err(|_| NetworkError::RunEnded)??;
        chunks.drop_notice = Some(DropNotice::Child { _stream: guard });
        Ok((head, chunks))
    }

    /// Sends an upload, which may overlap the download.
    async fn upload(self: Arc<Self>, stream: u32, kind: StreamKind, mut body: Body, window: Arc<Semaphore>) {
        let one_by_one = kind == StreamKind::Connection;
        let send = |chunk: Bytes| self.send_frame(&encode_frame(FrameKind::Data, stream, &chunk));
        match (pump(&mut body, &window, one_by_one, send).await, kind) {
            (Ok(()), _) => self.send_frame(&encode_frame(FrameKind::End, stream, &[])),
            // The guest's writes fail, because their receiver is dropped here.
            (Err(_), StreamKind::Connection) => {}
            (Err(_), StreamKind::Exchange) => {
                if let Some(child_stream) = self.with_streams(|streams| streams.remove(&stream)) {
                    self.send_frame(&encode_frame(FrameKind::Abort, stream, &[]));
                    child_stream.fail(NetworkError::RequestBody.into());
                }
            }
        }
    }
}

impl ChildStream {
    /// Fails the stream for the receiver of its head or the reader of its download.
    fn fail(self, refusal: EgressError) {
        match (self.head, self.download) {
            (Some(sender), _) => drop(sender.send(Err(refusal))),
            (None, Some(download)) => drop(download.chunks.send(Err(refusal))),
            (None, None) => {}
        }
    }
}

impl NetworkBackend for Relay {
    fn send(self: Arc<Self>, request: Request<Body>, timeouts: Timeouts) -> SendFuture {
        Box::pin(self.send_request(request, timeouts))
    }

    fn look_up(self: Arc<Self>, name: String) -> LookUpFuture {
        Box::pin(self.look_up_name(name))
    }

    fn connect(self: Arc<Self>, address: SocketAddr, upload: Body) -> ConnectFuture {
        Box::pin(self.open_connection(address, upload))
    }
}

impl CallBackend for Relay {
    fn perform(self: Arc<Self>, request: CallRequest) -> CallFuture {
        Box::pin(self.send_call(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::ceilings;
    use a2g_capability::{Ceilings, Grant, Host, HostClaims, HostPattern};
    use a2g_sandbox::egress::{Egress, EgressSettings};
    use a2g_types::clock::SystemClock;
    use a2g_types::ident::AgentDid;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// A run's session that reaches only `held.example`, which never answers, and the child's end of the socket.
    fn child(
        held: &std::net::TcpListener,
        sent_bytes: u64,
    ) -> (Arc<NetworkSession>, UnixStream, std::os::unix::net::UnixStream) {
        let held = held.local_addr().unwrap();
        let Ok(Host::Name(name)) = Host::parse("held.example") else { panic!("a name") };
        let settings = EgressSettings {
            allowed_addresses: vec![held.to_string().parse().unwrap()],
            hosts: BTreeMap::from([(name, vec![held.ip()])]),
            connect: Duration::from_secs(20),
        };
        let egress = Arc::new(Egress::new(settings, None, Arc::new(SystemClock)).unwrap());
        let agent = AgentDid::parse("did:a2g:one:1").unwrap();
        let network_budgets = NetworkBudgets {
            requests: 10,
            connections: 2,
            sent_bytes,
            received_bytes: 1 << 20,
            ..NetworkBudgets::ZERO
        };
        let hosts = HostClaims { allowed: Some(vec![HostPattern::EveryName]), ..HostClaims::default() };
        let ceilings = Ceilings { network: true, hosts, network_budgets, ..ceilings(64, 100) };
        let grant = Grant::meet(crate::test_authority(), [], &ceilings).unwrap();
        let session = Arc::clone(egress.open(&agent, &grant).session().unwrap());
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (session, UnixStream::from_std(ours).unwrap(), theirs)
    }

    fn opening(stream: u32, uri: &str) -> Vec<u8> {
        let opening = OpenFrame::Request {
            method: "POST".to_owned(),
            uri: uri.to_owned(),
            fields: Vec::new(),
            body: true,
            timeouts: Timeouts::default(),
        };
        encode_json_frame(FrameKind::Open, stream, &opening)
    }

    /// The result of serving a child that sends these frames and nothing more.
    async fn serve_frames(held: &std::net::TcpListener, frames: Vec<Vec<u8>>) -> Result<()> {
        serve_frames_within(held, 1 << 20, frames).await
    }

    /// The same for a run that may send `sent_bytes`.
    async fn serve_frames_within(
        held: &std::net::TcpListener,
        sent_bytes: u64,
        frames: Vec<Vec<u8>>,
    ) -> Result<()> {
        let (session, ours, theirs) = child(held, sent_bytes);
        let client = tokio::task::spawn_blocking(move || {
            // The server closes the connection at the first invalid frame.
            let _may_fail = frames.iter().try_for_each(|frame| (&theirs).write_all(frame));
            let _may_be_closed = theirs.shutdown(std::net::Shutdown::Write);
            let _may_be_reset = (&theirs).read_to_end(&mut Vec::new());
        });
        let result = tokio::time::timeout(
            Duration::from_secs(20),
            serve_child(Services { network: Some(session), calls: None }, ours),
        )
        .await;
        client.await.unwrap();
        result.expect("serving ends in time")
    }

    #[tokio::test]
    async fn the_first_invalid_frame_ends_the_connection() {
        let somewhere = "http://127.0.0.1:1/";
        let data = |stream, bytes| encode_frame(FrameKind::Data, stream, &vec![0; bytes]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let held = || opening(1, &format!("http://held.example:{port}/"));
        // With a small buffer, the kernel accepts almost nothing that is sent.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let connect = |stream| {
            let address = listener.local_addr().unwrap();
            encode_json_frame(FrameKind::Open, stream, &OpenFrame::Connect { address })
        };
        let cases = [
            ("no kind", vec![vec![0; HEADER_BYTES]]),
            ("another kind", vec![vec![9; HEADER_BYTES]]),
            (
                "no address",
                vec![encode_frame(FrameKind::Open, 1, br#"{"Connect":{"address":"held.example:80"}}"#)],
            ),
            ("a long chunk", vec![held(), data(1, MAX_CHUNK_BYTES + 1)]),
            ("a long head", vec![encode_frame(FrameKind::Open, 1, &vec![b' '; MAX_HEAD_FRAME_BYTES + 1])]),
            ("no head", vec![encode_frame(FrameKind::Open, 1, b"{}")]),
            ("no URI", vec![opening(1, "http://a b/")]),
            ("a number twice", vec![opening(1, somewhere), opening(1, somewhere)]),
            ("an older number", vec![opening(2, somewhere), opening(1, somewhere)]),
            (
                "a frame of the server",
                vec![encode_json_frame(FrameKind::Refused, 1, &EgressError::from(NetworkError::RunEnded))],
            ),
            ("an answer", vec![encode_json_frame(FrameKind::Head, 1, &ResponseHead::Connected)]),
            ("`StopSending`, which is for the child", vec![encode_frame(FrameKind::StopSending, 1, &[])]),
            ("credit without a number", vec![encode_frame(FrameKind::Credit, 1, b"1")]),
            ("too much credit", vec![held(), encode_credit(1, 1)]),
            ("half a frame", vec![data(1, 100)[..50].to_vec()]),
            ("streams without end", (1..3000).map(|stream| opening(stream, somewhere)).collect()),
            // These chunks belong to no stream, and exceed the bytes that the run may send.
            ("chunks without end", vec![data(7, MAX_CHUNK_BYTES); 100]),
            ("empty chunks without end", vec![vec![data(7, 0); 10_000].concat(); 200]),
        ];
        for (what, frames) in cases {
            assert!(serve_frames(&listener, frames).await.is_err(), "{what}");
        }
        // The amount exceeds the kernel's buffers, so the window fills even if the connection is established at once.
        let window = [vec![held()], vec![data(1, MAX_CHUNK_BYTES); 256]].concat();
        assert!(serve_frames_within(&listener, 1 << 30, window).await.is_err(), "more than the window");
        let valid = vec![
            opening(1, somewhere),
            data(1, 10),
            encode_frame(FrameKind::End, 1, &[]),
            encode_frame(FrameKind::Abort, 1, &[]),
            encode_json_frame(FrameKind::Open, 2, &OpenFrame::LookUp { name: "held.example".to_owned() }),
            connect(3),
            data(3, 10),
            encode_frame(FrameKind::End, 3, &[]),
        ];
        serve_frames(&listener, valid).await.unwrap();
    }

    #[tokio::test]
    async fn what_a_turn_leaves_open_fails_and_the_next_one_has_another_relay() {
        let reader = RelayReader::start(&Arc::new(Confinement::prepare().unwrap())).unwrap();
        let ended = || Err(EgressError::from(NetworkError::RunEnded));
        for _turn in 0..2 {
            let (server, child) = std::os::unix::net::UnixStream::pair().unwrap();
            let relay = reader.open(child.into(), 0).unwrap();
            let left_open = spawn::spawn_run_task(Arc::clone(&relay).look_up_name("held.example".to_owned()));
            tokio::task::yield_now().await;
            (&server).read_exact(&mut [0; HEADER_BYTES]).unwrap();
            drop(server);
            reader.close(&relay).unwrap();
            assert_eq!(left_open.await.unwrap(), ended());
            assert_eq!(relay.look_up_name("late.example".to_owned()).await, ended());
        }
    }

    #[test]
    fn small_chunks_have_the_minimum_cost() {
        let (recv_window, _body) = RecvWindow::new(CREDIT_BYTES, |_| {});
        let max = WINDOW_BYTES / MIN_FRAME_COST;
        assert!((0..max).all(|_| recv_window.accept(Bytes::from_static(b"x")).is_ok()));
        assert!(recv_window.accept(Bytes::new()).is_err());
    }

    #[test]
    fn header_fields_are_decoded_as_they_were_encoded() {
        let mut fields = HeaderMap::new();
        fields.append("x", HeaderValue::from_bytes(b"a\xff\xc3\xa9\t\"").unwrap());
        fields.append("x", HeaderValue::from_static("second"));
        assert_eq!(decode_headers(encode_headers(&fields)), Some(fields));
        assert_eq!(decode_headers(vec![("x".to_owned(), "\u{100}".to_owned())]), None);
        assert_eq!(decode_headers(vec![("x".to_owned(), "a\r\nb: c".to_owned())]), None);
    }
}
