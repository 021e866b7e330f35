//! The network of a run in a process of its own: requests go over a socket pair to the server, which
//! judges and sends them.
//!
//! ```text
//! child                                            server
//!   Open, Data…, End  ── request ──▶  Line::send   (or Abort: the guest gave it up)
//!   Head, Data…, End  ◀── answer ───               (or Refused, before the head or after it)
//!   Credit            ◀─ each side ─▶              so much was taken and may be sent again
//! ```
//! A frame is a kind, the number of a stream, a length and that many bytes. Neither side holds more of a
//! stream than [`WINDOW_BYTES`] that the other has not taken. The server bounds all that a child may say,
//! and stops listening at the first frame that makes no sense; all its streams end with that.
//!
//! In the child one thread reads, which is started before the process is confined: afterwards no thread
//! can be, and no system call that receives is left but `read`.

use super::confine::Confinement;
use super::zygote::refused;
use crate::egress::{Body, Carrier, Failure, Line, MOST_HEAD_BYTES, Patience, Refusal, Sending};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame as BodyFrame};
use http_body_util::{BodyExt as _, Empty};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
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
/// The most bytes of a frame with a head, whose text may be longer than what it stands for.
const LONGEST_HEAD: usize = 8 * MOST_HEAD_BYTES;
/// How often a child may open streams beyond the requests of its run, which are all refused: a guest that
/// does not take no for an answer.
const OPENS_IN_VAIN: u32 = 1024;
/// How much is taken of a stream before the other side is told, but at its end.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;
/// The stack of the thread that reads in a child.
const READER_STACK_BYTES: usize = 256 << 10;

/// What a frame is about. The values are what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A request, as [`Opening`].
    Open = 1,
    /// A piece of a body.
    Data = 2,
    /// The end of a body.
    End = 3,
    /// The child wants no more of this stream.
    Abort = 4,
    /// So many bytes were taken.
    Credit = 5,
    /// The head of an answer, as [`Heading`].
    Head = 6,
    /// The end of a stream before its time, as a [`Refusal`].
    Refused = 7,
}

/// The head of a request.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    method: String,
    uri: String,
    fields: Vec<(String, String)>,
    body: bool,
    patience: Patience,
}

/// The head of an answer.
#[derive(Debug, Serialize, Deserialize)]
struct Heading {
    status: u16,
    fields: Vec<(String, String)>,
}

type Answered = std::result::Result<Response<Body>, Refusal>;

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
        _ => return Err(nonsense()),
    };
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    let most = match kind {
        Kind::Open | Kind::Head => LONGEST_HEAD,
        Kind::Data => PIECE_BYTES,
        Kind::End | Kind::Abort => 0,
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

/// The pieces of a body that come over the socket.
struct Pieces {
    arrived: mpsc::UnboundedReceiver<std::result::Result<Bytes, Refusal>>,
    /// How much was taken and not told yet.
    taken: usize,
    /// What the other side may not have more of on the way.
    waiting: Arc<AtomicUsize>,
    tell: Box<dyn Fn(usize) + Send>,
    /// Goes with an answer: its stream lives as long as it is read.
    stream: Option<Forgotten>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<BodyFrame<Bytes>, Refusal>>> {
        let piece = std::task::ready!(self.arrived.poll_recv(context));
        if let Some(Ok(bytes)) = &piece {
            self.taken += bytes.len();
            if self.taken >= CREDIT_BYTES {
                let taken = std::mem::take(&mut self.taken);
                self.waiting.fetch_sub(taken, Ordering::SeqCst);
                (self.tell)(taken);
            }
        }
        Poll::Ready(piece.map(|piece| piece.map(BodyFrame::data)))
    }
}

/// One direction of a stream, at the side that receives.
struct Inlet {
    pieces: mpsc::UnboundedSender<std::result::Result<Bytes, Refusal>>,
    waiting: Arc<AtomicUsize>,
}

impl Inlet {
    fn new(tell: impl Fn(usize) + Send + 'static) -> (Self, Pieces) {
        let (pieces, arrived) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let inlet = Self { pieces, waiting: Arc::clone(&waiting) };
        (inlet, Pieces { arrived, taken: 0, waiting, tell: Box::new(tell), stream: None })
    }

    fn take(&self, piece: Bytes) -> Result<()> {
        if self.waiting.fetch_add(piece.len(), Ordering::SeqCst) + piece.len() > WINDOW_BYTES {
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

/// Sends all of a body in pieces, each when there is room for it.
async fn pump(mut body: Body, window: &Semaphore, send: impl Fn(Bytes)) -> std::result::Result<(), Refusal> {
    while let Some(part) = body.frame().await {
        let Ok(mut rest) = part?.into_data() else { return Ok(()) };
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            let room = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            window.acquire_many(room).await.map_err(|_| Failure::Over)?.forget();
            send(piece);
        }
    }
    Ok(())
}

/// The streams of one child.
type Streams = Arc<Mutex<HashMap<u32, Served>>>;

/// A stream as the server knows it.
struct Served {
    request: Option<Inlet>,
    answer: Outlet,
    task: AbortHandle,
}

/// Carries the requests of one child to its run's line, until the child is gone or says what makes no
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
        // Credit comes in quarters of a window, so what it takes is far below what it stands for.
        let bodies = budgets.sent_bytes.saturating_add(budgets.received_bytes / 64);
        let mut left = bodies.saturating_mul(2).saturating_add(1 << 20);
        while let Some(Frame { kind, stream, content }) = next(&mut from_child).await? {
            let length = u64::try_from(HEADER_BYTES + content.len()).unwrap_or(u64::MAX);
            left = left.checked_sub(length).ok_or_else(nonsense)?;
            let mut known = streams.lock().unwrap_or_else(PoisonError::into_inner);
            match kind {
                Kind::Open => {
                    opened += 1;
                    if stream <= last || opened > budgets.requests.saturating_add(OPENS_IN_VAIN) {
                        return Err(nonsense());
                    }
                    last = stream;
                    // What is on its way when the request is refused is lost.
                    left = left.saturating_add((LONGEST_HEAD + WINDOW_BYTES) as u64);
                    while tasks.try_join_next().is_some() {}
                    let opening = serde_json::from_slice(&content).map_err(|_| nonsense())?;
                    // The task takes its stream out of the list, which is locked until it is in.
                    known.insert(stream, open(&line, stream, opening, &frames, &streams, &mut tasks)?);
                }
                Kind::Data => {
                    // A stream that has just ended here may not have ended there yet.
                    let inlet = known.get(&stream).and_then(|served| served.request.as_ref());
                    inlet.map_or(Ok(()), |inlet| inlet.take(content))?;
                }
                Kind::End => {
                    if let Some(served) = known.get_mut(&stream) {
                        served.request = None;
                    }
                }
                Kind::Abort => {
                    if let Some(served) = known.remove(&stream) {
                        served.task.abort();
                    }
                }
                Kind::Credit => {
                    let bytes = credited(&content)?;
                    known.get(&stream).map_or(Ok(()), |served| served.answer.credit(bytes))?;
                }
                Kind::Head | Kind::Refused => return Err(nonsense()),
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
    let Opening { method, uri, fields, body, patience } = opening;
    let credits = frames.clone();
    let (inlet, pieces) = Inlet::new(move |bytes| drop(credits.send(credit(stream, bytes))));
    let nothing = || Empty::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::new(if body { pieces.boxed_unsync() } else { nothing() });
    *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| nonsense())?;
    *request.uri_mut() = uri.parse::<Uri>().map_err(|_| nonsense())?;
    *request.headers_mut() = heard(fields).ok_or_else(nonsense)?;
    let (answer, window) = Outlet::new();
    let (line, frames, streams) = (Arc::clone(line), frames.clone(), Arc::clone(streams));
    let task = tasks.spawn(async move {
        // Nobody writes any more when the child is gone.
        let send = |frame| drop(frames.send(frame));
        let answered = async {
            let (head, body) = line.send(request, patience).await?.into_parts();
            let heading = Heading { status: head.status.as_u16(), fields: told(&head.headers) };
            send(written(Kind::Head, stream, &heading));
            pump(body, &window, |piece| send(frame(Kind::Data, stream, &piece))).await
        };
        match answered.await {
            Ok(()) => send(frame(Kind::End, stream, &[])),
            Err(refusal) => send(written(Kind::Refused, stream, &refusal)),
        }
        streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    });
    Ok(Served { request: body.then_some(inlet), answer, task })
}

/// A stream as the child knows it.
struct Asked {
    /// Who waits for the head; it comes once.
    head: Option<oneshot::Sender<std::result::Result<Heading, Refusal>>>,
    answer: Inlet,
    request: Outlet,
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
    /// What sends the body of the request.
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
                self.with(|streams| Some(streams.get(&stream)?.answer.take(content.into()))).transpose()?;
            }
            Kind::End => drop(self.with(|streams| streams.remove(&stream))),
            Kind::Refused => {
                let refusal = serde_json::from_slice(&content)?;
                if let Some(asked) = self.with(|streams| streams.remove(&stream)) {
                    asked.fail(refusal);
                }
            }
            Kind::Credit => {
                let bytes = credited(&content)?;
                self.with(|streams| Some(streams.get(&stream)?.request.credit(bytes))).transpose()?;
            }
            Kind::Open | Kind::Abort => return Err(nonsense()),
        }
        Ok(())
    }

    async fn asked(self: Arc<Self>, request: Request<Body>, patience: Patience) -> Answered {
        let (parts, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let opening = Opening {
            method: parts.method.as_str().to_owned(),
            uri: parts.uri.to_string(),
            fields: told(&parts.headers),
            body: has_body,
            patience,
        };
        let stream = self.next.fetch_add(1, Ordering::SeqCst);
        let opening = written(Kind::Open, stream, &opening);
        if opening.len() > LONGEST_HEAD {
            return Err(Failure::RequestHead.into());
        }
        let (head, heading) = oneshot::channel();
        let (request, window) = Outlet::new();
        let mut forgotten = Forgotten { remote: Arc::clone(&self), stream, upload: None };
        let telling = Arc::clone(&self);
        let (answer, mut pieces) = Inlet::new(move |bytes| telling.tell(&credit(stream, bytes)));
        let asked = Asked { head: Some(head), answer, request };
        let begun = self.with(|streams| {
            streams.insert(stream, asked);
            Some(())
        });
        begun.ok_or(Failure::Over)?;
        self.tell(&opening);
        if has_body {
            let upload = tokio::spawn(Arc::clone(&self).upload(stream, body, window));
            forgotten.upload = Some(upload.abort_handle());
        }
        let Heading { status, fields } = heading.await.map_err(|_| Failure::Over)??;
        pieces.stream = Some(forgotten);
        let mut response = Response::new(pieces.boxed_unsync());
        *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Failure::Answer)?;
        *response.headers_mut() = heard(fields).ok_or(Failure::Answer)?;
        Ok(response)
    }

    /// Sends the body of a request, also while its answer comes already.
    async fn upload(self: Arc<Self>, stream: u32, body: Body, window: Arc<Semaphore>) {
        let sent = pump(body, &window, |piece| self.tell(&frame(Kind::Data, stream, &piece))).await;
        match sent {
            Ok(()) => self.tell(&frame(Kind::End, stream, &[])),
            Err(_broken_off) => {
                if let Some(asked) = self.with(|streams| streams.remove(&stream)) {
                    self.tell(&frame(Kind::Abort, stream, &[]));
                    asked.fail(Failure::RequestBody.into());
                }
            }
        }
    }
}

impl Asked {
    /// Ends the stream for whoever waits for its head, or reads its answer.
    fn fail(self, refusal: Refusal) {
        match self.head {
            Some(waits) => drop(waits.send(Err(refusal))),
            None => drop(self.answer.pieces.send(Err(refusal))),
        }
    }
}

impl Carrier for Remote {
    fn send(self: Arc<Self>, request: Request<Body>, patience: Patience) -> Sending {
        Box::pin(self.asked(request, patience))
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
        let opening = Opening {
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
        let piece = WINDOW_BYTES / 4;
        let cases = [
            ("no kind", vec![vec![0; HEADER_BYTES]]),
            ("another kind", vec![vec![9; HEADER_BYTES]]),
            ("a long piece", vec![held(), data(1, PIECE_BYTES + 1)]),
            ("a long head", vec![frame(Kind::Open, 1, &vec![b' '; LONGEST_HEAD + 1])]),
            ("no head", vec![frame(Kind::Open, 1, b"{}")]),
            ("no URI", vec![opening(1, "http://a b/")]),
            ("a number twice", vec![opening(1, somewhere), opening(1, somewhere)]),
            ("an older number", vec![opening(2, somewhere), opening(1, somewhere)]),
            ("what the server says", vec![written(Kind::Refused, 1, &Refusal::from(Failure::Over))]),
            ("an answer", vec![written(Kind::Head, 1, &Heading { status: 200, fields: Vec::new() })]),
            ("credit without a number", vec![frame(Kind::Credit, 1, b"1")]),
            ("too much credit", vec![held(), credit(1, 1)]),
            ("more than the window", [vec![held()], vec![data(1, piece); 5]].concat()),
            ("half a frame", vec![data(1, 100)[..50].to_vec()]),
            ("streams without end", (1..3000).map(|stream| opening(stream, somewhere)).collect()),
            // To no stream at all, and more of it than the run may send.
            ("pieces without end", vec![data(7, PIECE_BYTES); 100]),
        ];
        for (what, frames) in cases {
            assert!(said(&listener, frames).await.is_err(), "{what}");
        }
        let proper =
            vec![opening(1, somewhere), data(1, 10), frame(Kind::End, 1, &[]), frame(Kind::Abort, 1, &[])];
        said(&listener, proper).await.unwrap();
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
