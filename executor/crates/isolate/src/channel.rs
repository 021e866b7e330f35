//! Messages between the server, its zygote and the zygote's children.
//!
//! A message is a length of four bytes, that many bytes of JSON, and descriptors attached to the length. A single byte
//! tells a child that has received its job to begin. The zygote and its children block on their end of a socket pair;
//! the server's runtime reads the other end without blocking.

use super::user::User;
use a2g_capability::{Handover, TurnLimits};
use a2g_sandbox::{Code, Event};
use a2g_types::limit::BudgetUsage;
use a2g_types::outcome::{Denial, End};
use a2g_types::tool::Contract;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, read};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tokio::io::Interest;

/// Maximum size of a message, in bytes. A larger announced length is an error.
const MAX_MESSAGE_BYTES: usize = 2 << 30;
/// The byte that lets a prepared child begin.
const BEGIN: u8 = b'!';
/// Maximum number of descriptors in one message: the kernel's limit (`SCM_MAX_FD`).
pub(super) const MAX_DESCRIPTORS: usize = 253;
/// The buffer size of a read from a child, in bytes.
const CHILD_READ_BYTES: usize = 64 << 10;
/// The buffer size of a read from a zygote, whose messages are short, in bytes.
const ZYGOTE_READ_BYTES: usize = 4 << 10;

/// Maximum size of the messages of a child between two runs, in bytes.
const MAX_IDLE_BYTES: usize = 4 << 10;

/// The version of these messages, raised with every change to one of them. Both ends are the same program, so no other
/// version is accepted, and the messages may contain domain types.
pub(super) const VERSION: u32 = 5;

/// A message from the server to its zygote.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToZygote {
    /// The first message.
    Hello { version: u32 },
    /// A tool that the zygote keeps loaded for its next children; its code is attached.
    Load { tool: String, form: CodeForm },
    /// A tool that the zygote does not keep, and only tries to load; its code is attached. Comes before
    /// [`Self::Start`].
    Check { form: CodeForm },
    /// The zygote no longer keeps this tool.
    Unload { tool: String },
    /// All tools have been sent that the zygote keeps or checks from the start. `largest_file` is the maximum size of a file that a run writes, in bytes, and
    /// `handles` the maximum number of handles of a run.
    Start { largest_file: u64, handles: u64 },
    /// Requests a child that communicates over the attached socket.
    Fork { child: u64 },
}

/// A message from the zygote to its server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromZygote {
    /// The zygote is confined. `unusable` has, for each [`ToZygote::Load`] and [`ToZygote::Check`] in their order, the
    /// reason why the tool cannot run, or `None` if it can.
    Ready { unusable: Vec<Option<String>> },
    /// The child was forked; its pidfd is attached.
    Forked { child: u64, pid: i32 },
    /// The child could not be forked.
    Refused { child: u64, reason: String },
    /// The child has ended and was reaped.
    Exited { child: u64, exit: Exit },
}

/// The exit of a child, as the kernel reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Exit {
    /// A description such as `exit code 1`.
    pub(super) description: String,
    /// CPU time of the process since its fork, in microseconds.
    pub(super) cpu_us: u64,
    /// Peak resident memory, in bytes.
    pub(super) peak_resident: u64,
}

/// The first message from the server to a child. The file of the tool's code is attached, then the folders of
/// the permit (the granted ones, and those for the run's file changes if they are kept apart), and the
/// relay's socket if the run has a network or may call tools. Each further message to a child that serves
/// several runs is the text of one run's arguments; in a session, a [`NextTurn`] with the socket of that
/// turn's relay if the first one had one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) tool: String,
    /// The form of the attached code, which the child loads unless its zygote had the tool loaded.
    pub(super) form: CodeForm,
    pub(super) task: Task,
    pub(super) permit: Handover,
    /// `true` if the run has a network.
    pub(super) network: bool,
    /// Maximum number of simultaneous calls to other tools; 0 if the run may make none.
    pub(super) max_parallel_calls: u32,
    /// The user that the child changes to; `None` keeps the zygote's.
    pub(super) user: Option<User>,
    pub(super) lifetime: JobLifetime,
}

/// A turn of a session after the first one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NextTurn<'a> {
    /// The arguments as JSON text.
    pub(super) arguments: Cow<'a, str>,
    pub(super) limits: TurnLimits,
}

/// The end of a child's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JobLifetime {
    /// After one run.
    OneRun,
    /// After several runs, each in a store of its own.
    Runs,
    /// After several turns of a session, in one store.
    Turns,
}

/// The function of the tool that a child calls.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// The tool's function, with arguments as JSON text.
    Invoke { arguments: String },
    /// `describe` of a typed tool.
    Describe,
}

/// A message from a child to the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromChild {
    /// The child is confined and starts the guest. `cpu_ns` is the CPU time of the process so far, in nanoseconds.
    Began { cpu_ns: u64 },
    /// An event of the run.
    Event(Event),
    /// The guest has ended. This is the last message, unless the child serves several runs.
    Ended(Box<EndReport>),
    /// The child has cleared everything of its last run and waits for another one.
    Idle,
    /// A typed tool's name, version, description and argument schema, or the reason why there is none. This is
    /// the last message.
    Described(std::result::Result<[String; 4], String>),
    /// The child could not start the guest, for this reason. This is the last message.
    Failed(String),
}

/// A guest's end, with the values that only its own process knows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EndReport {
    pub(super) end: ReportedEnd,
    pub(super) output_bytes: u64,
    pub(super) truncated: bool,
    pub(super) spent: Option<BudgetUsage>,
    pub(super) denied: Vec<Denial>,
    pub(super) denied_truncated: bool,
}

/// An [`End`] as a child reports it.
// Results stay text, so that the server knows their size before it parses them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ReportedEnd {
    Returned(String),
    ToolError { code: String, message: String, detail: Option<String> },
    Other(End),
}

impl From<End> for ReportedEnd {
    fn from(end: End) -> Self {
        match end {
            End::Returned(result) => Self::Returned(result.as_str().to_owned()),
            End::ToolError { code, message, detail } => {
                Self::ToolError { code, message, detail: detail.map(|detail| detail.to_string()) }
            }
            End::Staged(_)
            | End::Exited { .. }
            | End::ResultNotJson
            | End::ResultInvalid { .. }
            | End::Trapped(_)
            | End::NotStarted(_)
            | End::Crashed(_)
            | End::NotCommitted(_)
            | End::LeftToOperator(_)
            | End::LimitReached(_)
            | End::Aborted(_) => Self::Other(end),
        }
    }
}

/// The form of a tool's machine code, which is attached to the same message: a file, and in second place the one of the
/// same tool as a component, if the code has both.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct CodeForm {
    is_component: bool,
    is_componentised: bool,
    contract: SerializedContract,
}

impl CodeForm {
    pub(super) fn of(code: Code<'_>) -> Self {
        Self {
            is_component: code.is_component(),
            is_componentised: code.componentised_file().is_some(),
            contract: code.expected_contract().into(),
        }
    }

    /// The code of this form in `files`; `None` if a file is missing.
    pub(super) fn code(self, files: &[File]) -> Option<Code<'_>> {
        let in_file = |file| if self.is_component { Code::component(file) } else { Code::module(file) };
        let code = match (files, self.is_componentised) {
            ([compiled], false) => in_file(compiled),
            ([compiled, component], true) => in_file(compiled).componentised(component),
            ([] | [_, ..], _) => return None,
        };
        Some(code.contract(self.contract.into()))
    }
}

/// A [`Contract`] in serialized form.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum SerializedContract {
    Command,
    Typed,
}

impl From<Contract> for SerializedContract {
    fn from(contract: Contract) -> Self {
        match contract {
            Contract::Command => Self::Command,
            Contract::Typed => Self::Typed,
        }
    }
}

impl From<SerializedContract> for Contract {
    fn from(contract: SerializedContract) -> Self {
        match contract {
            SerializedContract::Command => Self::Command,
            SerializedContract::Typed => Self::Typed,
        }
    }
}

impl Job {
    /// `true` if the relay's socket is attached.
    pub(super) fn has_relay(&self) -> bool {
        self.network || self.max_parallel_calls > 0
    }
}

/// Sends one message. Blocks until the kernel has accepted all of it.
pub(super) fn send(socket: &UnixStream, message: &impl Serialize, handles: &[BorrowedFd<'_>]) -> Result<()> {
    let bytes = encode(message)?;
    let offset = send_some(socket.as_fd(), &bytes, handles)?;
    let mut socket = socket;
    socket.write_all(bytes.get(offset..).unwrap_or_default())
}

/// Waits for one message; `None` when the other side has closed the connection.
pub(super) fn receive<T: DeserializeOwned>(socket: &UnixStream) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let mut handles = VecDeque::new();
    let mut header = [0; 4];
    let mut offset = 0;
    while let Some(rest) = header.get_mut(offset..).filter(|rest| !rest.is_empty()) {
        match receive_some(socket.as_fd(), rest, &mut handles)? {
            0 if offset == 0 => return Ok(None),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => offset += read,
        }
    }
    Ok(Some((receive_content(socket, header)?, handles.into())))
}

/// Waits for the signal to begin; `false` when the other side has closed the connection.
pub(super) fn wait_for_begin(socket: &UnixStream) -> Result<bool> {
    let mut signal = [0];
    Ok(fill(socket, &mut signal)? && signal == [BEGIN])
}

/// Waits for a message without descriptors; `None` when the other side has closed the connection. A child that is confined
/// may call this. It may call [`receive`] only if it was confined for that (`Confinement::apply_to_session`).
pub(super) fn receive_confined<T: DeserializeOwned>(socket: &UnixStream) -> Result<Option<T>> {
    let mut header = [0; 4];
    if !fill(socket, &mut header)? {
        return Ok(None);
    }
    receive_content(socket, header).map(Some)
}

/// Waits for the message of which only the `header` has arrived.
fn receive_content<T: DeserializeOwned>(socket: &UnixStream, header: [u8; 4]) -> Result<T> {
    let mut bytes = vec![0; parse_length(header)?];
    if !fill(socket, &mut bytes)? {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Fills `buffer`. Returns `false` when the other side has closed the connection before.
fn fill(socket: &UnixStream, buffer: &mut [u8]) -> Result<bool> {
    let mut offset = 0;
    while let Some(rest) = buffer.get_mut(offset..).filter(|rest| !rest.is_empty()) {
        // `recv` is not used: `read` is the only receiving system call that a confined child may make.
        match read(socket, rest) {
            Ok(0) => return Ok(false),
            Ok(length) => offset += length,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// The server's end of a socket pair.
pub(super) struct Channel {
    stream: tokio::net::UnixStream,
    buffer: VecDeque<u8>,
    /// Received descriptors that were not taken yet. With `None`, the kernel discards every descriptor that arrives.
    handles: Option<VecDeque<OwnedFd>>,
    /// The number of bytes that the other side may still send.
    remaining: u64,
}

impl Channel {
    /// A channel to a zygote, which sends descriptors.
    pub(super) fn to_zygote(socket: UnixStream) -> Result<Self> {
        Ok(Self { handles: Some(VecDeque::new()), ..Self::to_child(socket)? })
    }

    /// A channel to a child. Descriptors that the child sends are discarded.
    // A compromised child could otherwise exhaust the server's descriptors.
    pub(super) fn to_child(socket: UnixStream) -> Result<Self> {
        socket.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(socket)?;
        Ok(Self { stream, buffer: VecDeque::new(), handles: None, remaining: u64::MAX })
    }

    /// Limits the number of bytes that are received from now on; exceeding the limit is an error.
    pub(super) fn set_receive_limit(&mut self, bytes: u64) {
        self.remaining = bytes;
    }

    pub(super) async fn send(&self, message: &impl Serialize, handles: &[BorrowedFd<'_>]) -> Result<()> {
        self.write(&encode(message)?, handles).await
    }

    /// Lets a prepared child begin.
    pub(super) async fn begin(&self) -> Result<()> {
        self.write(&[BEGIN], &[]).await
    }

    async fn write(&self, bytes: &[u8], handles: &[BorrowedFd<'_>]) -> Result<()> {
        let mut offset = 0;
        while offset < bytes.len() {
            self.stream.writable().await?;
            // The descriptors are attached to the first bytes, once.
            let attachments = if offset == 0 { handles } else { &[] };
            let rest = bytes.get(offset..).unwrap_or_default();
            let write = || send_some(self.stream.as_fd(), rest, attachments);
            match self.stream.try_io(Interest::WRITABLE, write) {
                Ok(length) => offset += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for one message; `None` when the other side has closed the connection. Cancelling the wait loses no data.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(message) = self.parse_next()? {
                return Ok(Some(message));
            }
            self.stream.readable().await?;
            let stream = &self.stream;
            let handles = &mut self.handles;
            let mut chunk = Vec::new();
            let read = || match handles {
                Some(handles) => {
                    chunk.resize(ZYGOTE_READ_BYTES, 0);
                    receive_some(stream.as_fd(), &mut chunk, handles)
                }
                None => {
                    // Reading into spare capacity saves clearing the buffer.
                    chunk.reserve(CHILD_READ_BYTES);
                    Ok(recv(stream, spare_capacity(&mut chunk), RecvFlags::empty())?.1)
                }
            };
            match stream.try_io(Interest::READABLE, read) {
                Ok(0) => return Ok(None),
                Ok(read) => self.add(chunk.get(..read).unwrap_or_default())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the only message that has arrived from a child between two runs; `None` if none has arrived yet.
    ///
    /// # Errors
    /// If more than the message has arrived, or the child has closed the connection.
    pub(super) fn take_only_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut chunk = Vec::with_capacity(MAX_IDLE_BYTES);
        match recv(&self.stream, spare_capacity(&mut chunk), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => self.add(&chunk)?,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        let message = self.parse_next()?;
        if self.buffer.is_empty() || message.is_none() {
            Ok(message)
        } else {
            Err(ErrorKind::InvalidData.into())
        }
    }

    /// Waits for the only message of a child between two turns of a session; `None` when the child has closed
    /// the connection.
    ///
    /// # Errors
    /// If more than the message has arrived.
    pub(super) async fn receive_only_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let message = self.receive().await?;
        if self.buffer.is_empty() { Ok(message) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// Returns the memory of the last run's messages. Returns `false` if there are more messages than one between two runs.
    pub(super) fn shrink(&mut self) -> bool {
        self.buffer.shrink_to_fit();
        self.buffer.len() <= MAX_IDLE_BYTES
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.remaining = self
            .remaining
            .checked_sub(length)
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "it sent more than its output limit allows"))?;
        self.buffer.extend(bytes);
        Ok(())
    }

    /// Takes the first received descriptor that was not taken yet.
    pub(super) fn take_handle(&mut self) -> Option<OwnedFd> {
        self.handles.as_mut()?.pop_front()
    }

    fn parse_next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let buffer = self.buffer.make_contiguous();
        let Some((header, rest)) = buffer.split_first_chunk() else { return Ok(None) };
        let length = parse_length(*header)?;
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(bytes)?;
        self.buffer.drain(..4 + length);
        Ok(Some(message))
    }
}

fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).map_err(|_| Error::from(ErrorKind::FileTooLarge))?;
    if let Some(header) = bytes.first_chunk_mut() {
        *header = length.to_le_bytes();
    }
    Ok(bytes)
}

fn parse_length(header: [u8; 4]) -> Result<usize> {
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    if length <= MAX_MESSAGE_BYTES { Ok(length) } else { Err(ErrorKind::FileTooLarge.into()) }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], handles: &[BorrowedFd<'_>]) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !handles.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(handles)) {
        return Err(Error::new(ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

fn receive_some(socket: BorrowedFd<'_>, buffer: &mut [u8], handles: &mut VecDeque<OwnedFd>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            handles.extend(received);
        }
    }
    Ok(read.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[tokio::test]
    async fn messages_and_their_descriptors_arrive_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::to_zygote(ours).unwrap();
        let other = std::thread::spawn(move || {
            for child in 0..3 {
                let null = std::fs::File::open("/dev/null").unwrap();
                send(&theirs, &FromZygote::Forked { child, pid: 1 }, &[null.as_fd()]).unwrap();
            }
            let (big, handles) = receive::<String>(&theirs).unwrap().unwrap();
            assert_eq!((big.len(), handles.len()), (3 << 20, 2));
            assert!(receive::<String>(&theirs).unwrap().is_none());
        });
        for expected in 0..3 {
            let Some(FromZygote::Forked { child, .. }) = channel.receive().await.unwrap() else { panic!() };
            assert_eq!(child, expected);
            assert!(channel.take_handle().unwrap().as_raw_fd() > 2);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        channel.send(&"x".repeat(3 << 20), &[null.as_fd(), null.as_fd()]).await.unwrap();
        drop(channel);
        other.join().unwrap();
    }

    #[tokio::test]
    async fn a_child_between_two_runs_may_send_one_short_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::to_child(ours).unwrap();
        assert!(channel.take_only_message::<String>().unwrap().is_none());
        let long = "x".repeat(1 << 20);
        let sender = std::thread::spawn(move || {
            send(&theirs, &long, &[]).unwrap();
            theirs
        });
        assert_eq!(channel.receive::<String>().await.unwrap().map(|text| text.len()), Some(1 << 20));
        let theirs = sender.join().unwrap();
        assert!(channel.shrink() && channel.buffer.capacity() <= MAX_IDLE_BYTES);
        send(&theirs, &"idle", &[]).unwrap();
        assert_eq!(channel.take_only_message::<String>().unwrap().as_deref(), Some("idle"));
        send(&theirs, &"two", &[]).unwrap();
        send(&theirs, &"messages", &[]).unwrap();
        assert!(channel.take_only_message::<String>().is_err());
        drop(theirs);
        assert!(channel.take_only_message::<String>().is_err(), "it has ended");
    }

    #[tokio::test]
    async fn a_length_above_the_maximum_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[0xff; 8]).unwrap();
        assert!(Channel::to_child(ours).unwrap().receive::<String>().await.is_err());
    }

    #[tokio::test]
    async fn a_child_cannot_pass_descriptors_to_the_server() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::to_child(ours).unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let null = std::fs::File::open("/dev/null").unwrap();
        send(&theirs, &"hello", &[null.as_fd(); 200]).unwrap();
        let before = open();
        assert_eq!(channel.receive::<String>().await.unwrap().as_deref(), Some("hello"));
        assert!(open() < before + 100);
        assert!(channel.take_handle().is_none());
    }
}
