//! The network of a run in a process of its own: what the guest asks goes over a socket pair to the server,
//! which judges and does it.
//!
//! ```text
//! child                                            server
//!   Open, Data…, End  ── upload ────▶  the run's Line  (or Abort: the guest gave it up)
//!   Head, Data…, End  ◀── download ──                  (or Refused, before the head or after it)
//!   Credit            ◀─ each side ─▶                  so much was taken and may be sent again
//!   Enough            ◀──────────────                  no more of the upload is taken
//! ```
//! A stream is a request with its answer; a look-up, which has heads only; or a connection, whose directions
//! end each for itself, and which lives until the child aborts it or it is refused. A frame is a kind, the number of a stream, a length and that many bytes. Neither side holds more of a
//! stream than [`WINDOW_BYTES`] that the other has not taken. The server bounds all that a child may say,
//! and stops listening at the first frame that makes no sense; all its streams end with that.
//!
//! In the child one thread reads, which is started before the process is confined: afterwards no thread
//! can be, and no system call that receives is left but `read`.

use super::confine::Confinement;
use super::zygote::refused;
use crate::egress::{
    Body, Carrier, Connecting, EgressError, Line, LookingUp, MAX_HEAD_BYTES, NetworkError, Patience, Sending,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame as BodyFrame};
use http_body_util::{BodyExt as _, Empty};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

/// The most bytes of a stream, in one direction, that are on their way.
const WINDOW_BYTES: usize = 256 << 10;
/// The most bytes of one frame of a body.
const PIECE_BYTES: usize = 64 << 10;
/// What a piece takes of a window at least, so that many small ones cost no more memory than few large ones.
const MIN_FRAME_COST: usize = 1 << 10;
/// The most bytes of a frame with a head, whose text may be longer than what it stands for.
const MAX_HEAD_FRAME_BYTES: usize = 8 * MAX_HEAD_BYTES;
/// How often a child may open streams beyond the requests of its run, and the connections that look-ups have
/// paid for, which are all refused: a guest that does not take no for an answer.
const MAX_REJECTED_STREAMS: u32 = 1024;
/// How much is taken of a stream before the other side is told, but at its end.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;
/// The stack of the thread that reads in a child.
const READER_STACK_BYTES: usize = 256 << 10;

/// What a frame is about. The values are what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// What is asked, as [`Opening`].
    Open = 1,
    /// A piece of a body.
    Data = 2,
    /// The end of a body.
    End = 3,
    /// The child wants no more of this stream.
    Abort = 4,
    /// So many bytes were taken.
    Credit = 5,
    /// What is answered first, as [`Heading`].
    Head = 6,
    /// The end of a stream before its time, as an [`EgressError`].
    Refused = 7,
    /// The server takes no more of what the child sends over this connection.
    Enough = 8,
}

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Opening {
    /// The head of a request.
    Request {
        method: String,
        uri: String,
        fields: Vec<(String, String)>,
        body: bool,
        patience: Patience,
    },
    LookUp {
        name: String,
    },
    Connect {
        address: SocketAddr,
    },
}

impl Opening {
    fn kind(&self) -> StreamKind {
        match self {
            Self::Request { .. } | Self::LookUp { .. } => StreamKind::Exchange,
            Self::Connect { .. } => StreamKind::Connection,
        }
    }
}

/// How a stream goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    /// It is over with the end of the download.
    Exchange,
    /// Each direction ends for itself. A piece of the upload is sent when the one before it was taken, so
    /// that whoever sends knows what has gone out.
    Connection,
}

impl StreamKind {
    /// How much of an upload is taken before the child is told, but at its end.
    fn credit(self) -> usize {
        match self {
            Self::Exchange => CREDIT_BYTES,
            Self::Connection => 1,
        }
    }
}

/// What is answered first.
#[derive(Debug, Serialize, Deserialize)]
enum Heading {
    /// The head of an answer.
    Answer {
        status: u16,
        fields: Vec<(String, String)>,
    },
    Found(Vec<IpAddr>),
    Connected,
}

type Refusable<T> = std::result::Result<T, EgressError>;

/// A frame as it came.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    stream: u32,
    content: Bytes,
}

/// Kind, stream, length.
const HEADER_BYTES: usize = 9;

fn nonsense() -> Error {
    Error::new(ErrorKind::InvalidData, "a frame makes no sense here")
}

fn header(header: [u8; HEADER_BYTES]) -> Result<(Kind, u32, usize)> {
    let [kind, s0, s1, s2, s3, l0, l1, l2, l3] = header;
    let kind = match kind {
        1 => Kind::Open,
        2 => Kind::Data,
        3 => Kind::End,
        4 => Kind::Abort,
        5 => Kind::Credit,
        6 => Kind::Head,
        7 => Kind::Refused,
        8 => Kind::Enough,
        _ => return Err(nonsense()),
    };
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    let most = match kind {
        Kind::Open | Kind::Head => MAX_HEAD_FRAME_BYTES,
        Kind::Data => PIECE_BYTES,
        Kind::End | Kind::Abort | Kind::Enough => 0,
        Kind::Credit => 4,
        Kind::Refused => 256,
    };
    if length > most {
        return Err(nonsense());
    }
    Ok((kind, u32::from_le_bytes([s0, s1, s2, s3]), length))
}

fn frame(kind: Kind, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
    bytes.push(kind as u8);
    bytes.extend(stream.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(content);
    bytes
}

fn written(kind: Kind, stream: u32, content: &impl Serialize) -> Vec<u8> {
    // Plain values, which always can be written.
    frame(kind, stream, &serde_json::to_vec(content).unwrap_or_default())
}

fn credit(stream: u32, bytes: usize) -> Vec<u8> {
    frame(Kind::Credit, stream, &u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes())
}

fn credited(content: &[u8]) -> Result<usize> {
    let bytes = u32::from_le_bytes(content.try_into().map_err(|_| nonsense())?);
    usize::try_from(bytes).map_err(|_| nonsense())
}

/// Header fields as text: a byte of a value is the character of the same number.
fn told(fields: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    fields.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

fn heard(fields: Vec<(String, String)>) -> Option<HeaderMap> {
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

/// What a piece of so many bytes takes of a window.
fn weight(bytes: usize) -> usize {
    bytes.max(MIN_FRAME_COST)
}

/// The pieces of a body that come over the socket.
struct Pieces {
    arrived: mpsc::UnboundedReceiver<Refusable<Bytes>>,
    /// How much was taken and not told yet, in weight.
    taken: usize,
    /// How much is told at once.
    credit: usize,
    /// What the other side may not have more of on the way.
    waiting: Arc<AtomicUsize>,
    tell: Box<dyn Fn(usize) + Send>,
    /// What ends when nobody reads any more.
    reader: Option<Reader>,
}

/// Who is told that nobody reads any more.
enum Reader {
    /// In the child: the stream lives as long as its download is read.
    Child { _stream: Forgotten },
    /// In the server, of the upload of a connection.
    Server { _told: Told },
}

/// Sends a frame when it is dropped.
struct Told {
    frame: Vec<u8>,
    to: mpsc::UnboundedSender<Vec<u8>>,
}

impl Drop for Told {
    fn drop(&mut self) {
        // Nobody writes any more when the child is gone.
        let _gone = self.to.send(std::mem::take(&mut self.frame));
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Refusable<BodyFrame<Bytes>>>> {
        // Whoever asks for the next piece is done with those before it.
        if self.taken >= self.credit {
            let taken = std::mem::take(&mut self.taken);
            self.waiting.fetch_sub(taken, Ordering::SeqCst);
            (self.tell)(taken);
        }
        let piece = std::task::ready!(self.arrived.poll_recv(context));
        if let Some(Ok(bytes)) = &piece {
            self.taken += weight(bytes.len());
        }
        Poll::Ready(piece.map(|piece| piece.map(BodyFrame::data)))
    }
}

/// One direction of a stream, at the side that receives.
struct Inlet {
    pieces: mpsc::UnboundedSender<Refusable<Bytes>>,
    waiting: Arc<AtomicUsize>,
}

impl Inlet {
    fn new(credit: usize, tell: impl Fn(usize) + Send + 'static) -> (Self, Pieces) {
        let (pieces, arrived) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let inlet = Self { pieces, waiting: Arc::clone(&waiting) };
        (inlet, Pieces { arrived, taken: 0, credit, waiting, tell: Box::new(tell), reader: None })
    }

    fn take(&self, piece: Bytes) -> Result<()> {
        let weight = weight(piece.len());
        if self.waiting.fetch_add(weight, Ordering::SeqCst) + weight > WINDOW_BYTES {
            return Err(nonsense());
        }
        // Whoever reads may have gone.
        let _unread = self.pieces.send(Ok(piece));
        Ok(())
    }
}

/// One direction of a stream, at the side that sends.
struct Outlet {
    /// How many bytes may be sent.
    window: Arc<Semaphore>,
}

impl Outlet {
    fn new() -> (Self, Arc<Semaphore>) {
        let window = Arc::new(Semaphore::new(WINDOW_BYTES));
        (Self { window: Arc::clone(&window) }, window)
    }

    fn credit(&self, bytes: usize) -> Result<()> {
        if self.window.available_permits().saturating_add(bytes) > WINDOW_BYTES {
            return Err(nonsense());
        }
        self.window.add_permits(bytes);
        Ok(())
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // Nobody gives credit any more.
        self.window.close();
    }
}

/// Sends all of a body in pieces, each when there is room for it. Of an upload over a connection each part is
/// waited for until it was taken.
async fn pump(body: &mut Body, window: &Semaphore, awaited: bool, send: impl Fn(Bytes)) -> Refusable<()> {
    let room = |weight: usize| window.acquire_many(u32::try_from(weight).unwrap_or(u32::MAX));
    while let Some(part) = body.frame().await {
        let Ok(mut rest) = part?.into_data() else { return Ok(()) };
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            room(weight(piece.len())).await.map_err(|_| NetworkError::Over)?.forget();
            send(piece);
        }
        if awaited {
            drop(room(WINDOW_BYTES).await.map_err(|_| NetworkError::Over)?);
        }
    }
    Ok(())
}

/// The streams of one child.
type Streams = Arc<Mutex<HashMap<u32, Served>>>;

/// A stream as the server knows it.
struct Served {
    upload: Option<Inlet>,
    download: Outlet,
    task: AbortHandle,
    /// Ends when all that the task held is gone, its place among the run's connections too.
    gone: oneshot::Receiver<Infallible>,
}

/// Carries what one child asks to its run's line, until the child is gone or says what makes no
/// sense. To be dropped when the run ends.
pub(super) async fn carry(line: Arc<Line>, socket: UnixStream) -> Result<()> {
    let (mut from_child, mut to_child) = socket.into_split();
    // Bounded by the windows of the streams, and by how many a child may open.
    let (frames, mut outgoing) = mpsc::unbounded_channel::<Vec<u8>>();
    let writing = async move {
        while let Some(frame) = outgoing.recv().await {
            to_child.write_all(&frame).await?;
        }
        Ok(())
    };
    let reading = async move {
        let streams = Streams::default();
        let mut tasks = JoinSet::new();
        let (mut last, mut opened) = (0, 0);
        let budgets = line.budgets();
        // At the most each byte that is sent has a frame of its own. Credit comes in quarters of a window, and
        // each byte that is received may have taken the least weight of one.
        let credits = budgets.received_bytes / (CREDIT_BYTES / MIN_FRAME_COST) as u64;
        let mut left_frames = budgets.sent_bytes.saturating_add(credits).saturating_add(1 << 10);
        let mut left = budgets.sent_bytes.saturating_mul(2).saturating_add(credits.saturating_mul(4));
        left = left.saturating_add(1 << 20);
        while let Some(Frame { kind, stream, content }) = next(&mut from_child).await? {
            let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
            left = left.checked_sub(length).ok_or_else(nonsense)?;
            left_frames = left_frames.checked_sub(1).ok_or_else(nonsense)?;
            let aborted = {
                let mut known = streams.lock().unwrap_or_else(PoisonError::into_inner);
                match kind {
                    Kind::Open => {
                        opened += 1;
                        let most = budgets.requests.saturating_mul(2).saturating_add(MAX_REJECTED_STREAMS);
                        if stream <= last || opened > most {
                            return Err(nonsense());
                        }
                        last = stream;
                        // What is on its way when it is refused is lost.
                        left = left.saturating_add((MAX_HEAD_FRAME_BYTES + WINDOW_BYTES) as u64);
                        left_frames = left_frames.saturating_add((8 + WINDOW_BYTES / MIN_FRAME_COST) as u64);
                        while tasks.try_join_next().is_some() {}
                        let opening = serde_json::from_slice(&content).map_err(|_| nonsense())?;
                        // The task takes its stream out of the list, which is locked until it is in.
                        known.insert(stream, open(&line, stream, opening, &frames, &streams, &mut tasks)?);
                        None
                    }
                    Kind::Data => {
                        // A stream that has just ended here may not have ended there yet.
                        let inlet = known.get(&stream).and_then(|served| served.upload.as_ref());
                        inlet.map_or(Ok(()), |inlet| inlet.take(content))?;
                        None
                    }
                    Kind::End => {
                        if let Some(served) = known.get_mut(&stream) {
                            served.upload = None;
                        }
                        None
                    }
                    Kind::Abort => known.remove(&stream),
                    Kind::Credit => {
                        let bytes = credited(&content)?;
                        known.get(&stream).map_or(Ok(()), |served| served.download.credit(bytes))?;
                        None
                    }
                    Kind::Head | Kind::Refused | Kind::Enough => return Err(nonsense()),
                }
            };
            if let Some(Served { task, gone, .. }) = aborted {
                task.abort();
                // What is asked next finds the place free.
                let _gone = gone.await;
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = writing => ended,
        ended = reading => ended,
    }
}

/// Reads one frame; `None` at the end.
async fn next(from: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Option<Frame>> {
    let mut head = [0; HEADER_BYTES];
    if from.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..]).await?;
    let (kind, stream, length) = header(head)?;
    let mut content = vec![0; length];
    from.read_exact(&mut content).await?;
    Ok(Some(Frame { kind, stream, content: content.into() }))
}

/// Begins to serve a stream.
fn open(
    line: &Arc<Line>,
    stream: u32,
    opening: Opening,
    frames: &mpsc::UnboundedSender<Vec<u8>>,
    streams: &Streams,
    tasks: &mut JoinSet<()>,
) -> Result<Served> {
    let kind = opening.kind();
    let credits = frames.clone();
    let (inlet, mut pieces) =
        Inlet::new(kind.credit(), move |bytes| drop(credits.send(credit(stream, bytes))));
    let (asked, uploads) = match opening {
        Opening::Request { method, uri, fields, body, patience } => {
            let nothing = || Empty::new().map_err(|never| match never {}).boxed_unsync();
            let mut request = Request::new(if body { pieces.boxed_unsync() } else { nothing() });
            *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| nonsense())?;
            *request.uri_mut() = uri.parse::<Uri>().map_err(|_| nonsense())?;
            *request.headers_mut() = heard(fields).ok_or_else(nonsense)?;
            (Asking::Request(Box::new(request), patience), body)
        }
        Opening::LookUp { name } => (Asking::LookUp(name), false),
        Opening::Connect { address } => {
            let told = Told { frame: frame(Kind::Enough, stream, &[]), to: frames.clone() };
            pieces.reader = Some(Reader::Server { _told: told });
            (Asking::Connect(address, pieces.boxed_unsync()), true)
        }
    };
    let (download, window) = Outlet::new();
    let (line, frames, streams) = (Arc::clone(line), frames.clone(), Arc::clone(streams));
    let (held, gone) = oneshot::channel();
    let task = tasks.spawn(async move {
        // The first value of a task is dropped after all others.
        let _held = held;
        // Nobody writes any more when the child is gone.
        let send = |frame| drop(frames.send(frame));
        let answered = async {
            let (heading, mut body) = asked.answered(line).await?;
            send(written(Kind::Head, stream, &heading));
            if let Some(body) = &mut body {
                pump(body, &window, false, |piece| send(frame(Kind::Data, stream, &piece))).await?;
            }
            match kind {
                StreamKind::Exchange => {
                    // With it goes its place, which whoever sees the end may want for the next one.
                    drop(body);
                    send(frame(Kind::End, stream, &[]));
                    Refusable::Ok(())
                }
                StreamKind::Connection => {
                    send(frame(Kind::End, stream, &[]));
                    // What the guest sends may go on. The connection ends when its download is dropped.
                    std::future::pending().await
                }
            }
        };
        if let Err(refusal) = answered.await {
            send(written(Kind::Refused, stream, &refusal));
        }
        streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    });
    Ok(Served { upload: uploads.then_some(inlet), download, task, gone })
}

/// What a child asks, as the line takes it.
enum Asking {
    Request(Box<Request<Body>>, Patience),
    LookUp(String),
    Connect(SocketAddr, Body),
}

impl Asking {
    /// What comes first of the answer, and what comes after it.
    async fn answered(self, line: Arc<Line>) -> Refusable<(Heading, Option<Body>)> {
        Ok(match self {
            Self::Request(request, patience) => {
                let (head, body) = line.send(*request, patience).await?.into_parts();
                let heading = Heading::Answer { status: head.status.as_u16(), fields: told(&head.headers) };
                (heading, Some(body))
            }
            Self::LookUp(name) => (Heading::Found(line.look_up(name).await?), None),
            Self::Connect(address, upload) => {
                (Heading::Connected, Some(line.connect(address, upload).await?))
            }
        })
    }
}

/// A stream as the child knows it.
struct Asked {
    kind: StreamKind,
    /// Who waits for the head; it comes once.
    head: Option<oneshot::Sender<Refusable<Heading>>>,
    /// Until the download has ended.
    download: Option<Inlet>,
    /// Until no more of the upload is taken.
    upload: Option<Outlet>,
}

/// The network of a run, in its own process.
pub(super) struct Remote {
    socket: File,
    writing: Mutex<()>,
    next: AtomicU32,
    streams: Mutex<Option<HashMap<u32, Asked>>>,
}

/// Forgets a stream when it is dropped, and tells the server, which ends it if it goes on.
struct Forgotten {
    remote: Arc<Remote>,
    stream: u32,
    /// What sends the upload.
    upload: Option<AbortHandle>,
}

impl Drop for Forgotten {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            upload.abort();
        }
        let known = self.remote.with(|streams| streams.remove(&self.stream));
        if known.is_some() {
            self.remote.tell(&frame(Kind::Abort, self.stream, &[]));
        }
    }
}

impl Remote {
    /// The way to the server over `socket`, with the thread that reads from it. Call it before the process
    /// is confined.
    ///
    /// # Errors
    /// When no thread can be started, or the thread cannot be confined.
    pub(super) fn start(socket: OwnedFd, confinement: &Arc<Confinement>) -> Result<Arc<Self>> {
        // A file is read by `read`, and a socket by a call that a guest's process may not make.
        let mut reading = File::from(socket.try_clone()?);
        let remote = Arc::new(Self {
            socket: File::from(socket),
            writing: Mutex::default(),
            next: AtomicU32::new(1),
            streams: Mutex::new(Some(HashMap::new())),
        });
        let (confinement, reader) = (Arc::clone(confinement), Arc::clone(&remote));
        let (did, done) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("network".into()).stack_size(READER_STACK_BYTES);
        thread.spawn(move || {
            let confined = confinement.bystander().map_err(refused);
            let failed = confined.is_err();
            let _nobody_waits = did.send(confined);
            while !failed && reader.read(&mut reading).is_ok() {}
            // What waits ends, and nothing begins any more.
            *reader.streams.lock().unwrap_or_else(PoisonError::into_inner) = None;
        })?;
        done.recv().map_err(Error::other)??;
        Ok(remote)
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<u32, Asked>) -> Option<T>) -> Option<T> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.as_mut().and_then(work)
    }

    fn tell(&self, frame: &[u8]) {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // A server that is gone ends this process.
        let _nobody_listens = (&self.socket).write_all(frame);
    }

    /// Reads one frame and hands it on.
    fn read(&self, from: &mut File) -> Result<()> {
        let mut head = [0; HEADER_BYTES];
        from.read_exact(&mut head)?;
        let (kind, stream, length) = header(head)?;
        let mut content = vec![0; length];
        from.read_exact(&mut content)?;
        match kind {
            Kind::Head => {
                let heading = serde_json::from_slice(&content)?;
                let waits = self.with(|streams| streams.get_mut(&stream)?.head.take());
                let _given_up = waits.map(|waits| waits.send(Ok(heading)));
            }
            Kind::Data => {
                self.with(|streams| Some(streams.get(&stream)?.download.as_ref()?.take(content.into())))
                    .transpose()?;
            }
            Kind::End => drop(self.with(|streams| {
                let asked = streams.get_mut(&stream)?;
                asked.download = None;
                (asked.kind == StreamKind::Exchange).then(|| streams.remove(&stream))
            })),
            Kind::Refused => {
                let refusal = serde_json::from_slice(&content)?;
                if let Some(asked) = self.with(|streams| streams.remove(&stream)) {
                    asked.fail(refusal);
                }
            }
            Kind::Credit => {
                let bytes = credited(&content)?;
                self.with(|streams| Some(streams.get(&stream)?.upload.as_ref()?.credit(bytes)))
                    .transpose()?;
            }
            Kind::Enough => drop(self.with(|streams| streams.get_mut(&stream)?.upload.take())),
            Kind::Open | Kind::Abort => return Err(nonsense()),
        }
        Ok(())
    }

    async fn asked(self: Arc<Self>, request: Request<Body>, patience: Patience) -> Refusable<Response<Body>> {
        let (parts, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let opening = Opening::Request {
            method: parts.method.as_str().to_owned(),
            uri: parts.uri.to_string(),
            fields: told(&parts.headers),
            body: has_body,
            patience,
        };
        let (heading, pieces) = self.opened(&opening, has_body.then_some(body)).await?;
        let Heading::Answer { status, fields } = heading else { return Err(NetworkError::Answer.into()) };
        let mut response = Response::new(pieces.boxed_unsync());
        *response.status_mut() = StatusCode::from_u16(status).map_err(|_| NetworkError::Answer)?;
        *response.headers_mut() = heard(fields).ok_or(NetworkError::Answer)?;
        Ok(response)
    }

    async fn found(self: Arc<Self>, name: String) -> Refusable<Vec<IpAddr>> {
        match self.opened(&Opening::LookUp { name }, None).await? {
            (Heading::Found(addresses), _) => Ok(addresses),
            (Heading::Answer { .. } | Heading::Connected, _) => Err(NetworkError::Answer.into()),
        }
    }

    async fn connected(self: Arc<Self>, address: SocketAddr, upload: Body) -> Refusable<Body> {
        match self.opened(&Opening::Connect { address }, Some(upload)).await? {
            (Heading::Connected, pieces) => Ok(pieces.boxed_unsync()),
            (Heading::Answer { .. } | Heading::Found(_), _) => Err(NetworkError::Answer.into()),
        }
    }

    /// Opens a stream, begins to send its upload, and waits for its head.
    async fn opened(
        self: Arc<Self>,
        opening: &Opening,
        upload: Option<Body>,
    ) -> Refusable<(Heading, Pieces)> {
        let kind = opening.kind();
        let stream = self.next.fetch_add(1, Ordering::SeqCst);
        let opening = written(Kind::Open, stream, opening);
        if opening.len() > MAX_HEAD_FRAME_BYTES {
            return Err(NetworkError::RequestHead.into());
        }
        let (head, heading) = oneshot::channel();
        let (outlet, window) = Outlet::new();
        let mut forgotten = Forgotten { remote: Arc::clone(&self), stream, upload: None };
        let telling = Arc::clone(&self);
        let (inlet, mut pieces) = Inlet::new(CREDIT_BYTES, move |bytes| telling.tell(&credit(stream, bytes)));
        let asked = Asked { kind, head: Some(head), download: Some(inlet), upload: Some(outlet) };
        let begun = self.with(|streams| {
            streams.insert(stream, asked);
            Some(())
        });
        begun.ok_or(NetworkError::Over)?;
        self.tell(&opening);
        if let Some(body) = upload {
            let upload = tokio::spawn(Arc::clone(&self).upload(stream, kind, body, window));
            forgotten.upload = Some(upload.abort_handle());
        }
        let heading = heading.await.map_err(|_| NetworkError::Over)??;
        pieces.reader = Some(Reader::Child { _stream: forgotten });
        Ok((heading, pieces))
    }

    /// Sends what goes up, also while something comes down already.
    async fn upload(self: Arc<Self>, stream: u32, kind: StreamKind, mut body: Body, window: Arc<Semaphore>) {
        let awaited = kind == StreamKind::Connection;
        let send = |piece: Bytes| self.tell(&frame(Kind::Data, stream, &piece));
        match (pump(&mut body, &window, awaited, send).await, kind) {
            (Ok(()), _) => self.tell(&frame(Kind::End, stream, &[])),
            // Whoever sends sees that nothing is taken any more.
            (Err(_not_taken), StreamKind::Connection) => {}
            (Err(_broken_off), StreamKind::Exchange) => {
                if let Some(asked) = self.with(|streams| streams.remove(&stream)) {
                    self.tell(&frame(Kind::Abort, stream, &[]));
                    asked.fail(NetworkError::RequestBody.into());
                }
            }
        }
    }
}

impl Asked {
    /// Ends the stream for whoever waits for its head, or reads its download.
    fn fail(self, refusal: EgressError) {
        match (self.head, self.download) {
            (Some(waits), _) => drop(waits.send(Err(refusal))),
            (None, Some(download)) => drop(download.pieces.send(Err(refusal))),
            (None, None) => {}
        }
    }
}

impl Carrier for Remote {
    fn send(self: Arc<Self>, request: Request<Body>, patience: Patience) -> Sending {
        Box::pin(self.asked(request, patience))
    }

    fn look_up(self: Arc<Self>, name: String) -> LookingUp {
        Box::pin(self.found(name))
    }

    fn connect(self: Arc<Self>, address: SocketAddr, upload: Body) -> Connecting {
        Box::pin(self.connected(address, upload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Host;
    use crate::clock::SystemClock;
    use crate::egress::{Egress, EgressSettings, tests};
    use crate::ident::AgentDid;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// A run's line that reaches only `held.example`, who never answers, and what a child holds of the
    /// socket.
    fn child(held: &std::net::TcpListener) -> (Arc<Line>, UnixStream, std::os::unix::net::UnixStream) {
        let held = held.local_addr().unwrap();
        let Ok(Host::Name(name)) = Host::parse("held.example") else { panic!("a name") };
        let settings = EgressSettings {
            lifted: vec![held.to_string().parse().unwrap()],
            hosts: BTreeMap::from([(name, vec![held.ip()])]),
            connect: Duration::from_secs(20),
        };
        let egress = Arc::new(Egress::new(settings, None, Arc::new(SystemClock)).unwrap());
        let agent = AgentDid::parse("did:a2g:one:1").unwrap();
        let line = Arc::clone(egress.open(&agent, &tests::grant(tests::BUDGETS)).line().unwrap());
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (line, UnixStream::from_std(ours).unwrap(), theirs)
    }

    fn opening(stream: u32, uri: &str) -> Vec<u8> {
        let opening = Opening::Request {
            method: "POST".to_owned(),
            uri: uri.to_owned(),
            fields: Vec::new(),
            body: true,
            patience: Patience::default(),
        };
        written(Kind::Open, stream, &opening)
    }

    /// What comes of a child that says these frames, and then nothing more.
    async fn said(held: &std::net::TcpListener, frames: Vec<Vec<u8>>) -> Result<()> {
        let (line, ours, theirs) = child(held);
        let talking = tokio::task::spawn_blocking(move || {
            // The other side stops listening when it has heard enough.
            let _heard = frames.iter().try_for_each(|frame| (&theirs).write_all(frame));
            let _closed = theirs.shutdown(std::net::Shutdown::Write);
            let mut told = Vec::new();
            let _gone = (&theirs).read_to_end(&mut told);
        });
        let carried = tokio::time::timeout(Duration::from_secs(20), carry(line, ours)).await;
        talking.await.unwrap();
        carried.expect("it is not kept waiting")
    }

    #[tokio::test]
    async fn a_child_that_makes_no_sense_is_not_listened_to_any_longer() {
        let somewhere = "http://127.0.0.1:1/";
        let data = |stream, bytes| frame(Kind::Data, stream, &vec![0; bytes]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let held = || opening(1, &format!("http://held.example:{port}/"));
        // So that next to nothing of what is sent to it is taken by the kernel.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let connect = |stream| {
            let address = listener.local_addr().unwrap();
            written(Kind::Open, stream, &Opening::Connect { address })
        };
        let cases = [
            ("no kind", vec![vec![0; HEADER_BYTES]]),
            ("another kind", vec![vec![9; HEADER_BYTES]]),
            ("no address", vec![frame(Kind::Open, 1, br#"{"Connect":{"address":"held.example:80"}}"#)]),
            ("a long piece", vec![held(), data(1, PIECE_BYTES + 1)]),
            ("a long head", vec![frame(Kind::Open, 1, &vec![b' '; MAX_HEAD_FRAME_BYTES + 1])]),
            ("no head", vec![frame(Kind::Open, 1, b"{}")]),
            ("no URI", vec![opening(1, "http://a b/")]),
            ("a number twice", vec![opening(1, somewhere), opening(1, somewhere)]),
            ("an older number", vec![opening(2, somewhere), opening(1, somewhere)]),
            ("what the server says", vec![written(Kind::Refused, 1, &EgressError::from(NetworkError::Over))]),
            ("an answer", vec![written(Kind::Head, 1, &Heading::Connected)]),
            ("an end of what it sends itself", vec![frame(Kind::Enough, 1, &[])]),
            ("credit without a number", vec![frame(Kind::Credit, 1, b"1")]),
            ("too much credit", vec![held(), credit(1, 1)]),
            ("more than the window", [vec![held()], vec![data(1, PIECE_BYTES); 10]].concat()),
            ("half a frame", vec![data(1, 100)[..50].to_vec()]),
            ("streams without end", (1..3000).map(|stream| opening(stream, somewhere)).collect()),
            // To no stream at all, and more of it than the run may send.
            ("pieces without end", vec![data(7, PIECE_BYTES); 100]),
            ("empty pieces without end", vec![vec![data(7, 0); 10_000].concat(); 200]),
        ];
        for (what, frames) in cases {
            assert!(said(&listener, frames).await.is_err(), "{what}");
        }
        let proper = vec![
            opening(1, somewhere),
            data(1, 10),
            frame(Kind::End, 1, &[]),
            frame(Kind::Abort, 1, &[]),
            written(Kind::Open, 2, &Opening::LookUp { name: "held.example".to_owned() }),
            connect(3),
            data(3, 10),
            frame(Kind::End, 3, &[]),
        ];
        said(&listener, proper).await.unwrap();
    }

    #[test]
    fn small_pieces_fill_a_window_too() {
        let (inlet, _pieces) = Inlet::new(CREDIT_BYTES, |_| {});
        let most = WINDOW_BYTES / MIN_FRAME_COST;
        assert!((0..most).all(|_| inlet.take(Bytes::from_static(b"x")).is_ok()));
        assert!(inlet.take(Bytes::new()).is_err());
    }

    #[test]
    fn header_fields_of_any_bytes_come_back() {
        let mut fields = HeaderMap::new();
        fields.append("x", HeaderValue::from_bytes(b"a\xff\xc3\xa9\t\"").unwrap());
        fields.append("x", HeaderValue::from_static("second"));
        assert_eq!(heard(told(&fields)), Some(fields));
        assert_eq!(heard(vec![("x".to_owned(), "\u{100}".to_owned())]), None);
        assert_eq!(heard(vec![("x".to_owned(), "a\r\nb: c".to_owned())]), None);
    }
}
