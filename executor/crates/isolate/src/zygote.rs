//! The zygote: a process with everything ready for a guest, which forks a copy of itself for each run.
//!
//! It has one thread, the engine, the linkers and some of the compiled tools, and nothing of the server: no socket but the
//! one to the server, no key, no file. It ends when the server closes that socket, and its children end with it.

use super::channel::{CodeForm, FromZygote, ToZygote, VERSION, receive, send};
use super::child;
use super::confine::{ConfineError, Confinement};
use super::process::{ForkSide, close_inherited, fork, reap};
use a2g_sandbox::{Artifact, CodeFeatures, Sandbox};
use a2g_types::error_chain::ErrorChain;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The reason for a missing descriptor: the kernel discards those for which a process has no number left.
const NO_DESCRIPTOR: &str = "the process has reached its limit on open descriptors (`RLIMIT_NOFILE`)";

/// The state of a zygote, which its children inherit.
pub(super) struct ZygoteState {
    pub(super) sandbox: Sandbox,
    /// The tools that it keeps loaded.
    pub(super) tools: BTreeMap<String, Artifact>,
    /// `/dev/null`, which replaces a child's standard streams.
    pub(super) null: File,
    pub(super) confinement: Arc<Confinement>,
    /// Maximum size of a file that a run writes, in bytes.
    pub(super) largest_file: u64,
    /// Maximum number of handles of a run.
    pub(super) handles: u64,
}

/// A child that has not been reaped yet.
struct ForkedChild {
    child: u64,
    pid: i32,
    pidfd: OwnedFd,
}

/// Runs the zygote until its server ends. Standard input is the socket to the server; `features` are those of
/// the code that it loads; with `changes_users` children may get another user.
///
/// # Errors
/// If the engine cannot be set up, or the socket fails. The end of the server is not an error.
pub fn run_zygote(features: CodeFeatures, changes_users: bool) -> Result<()> {
    match serve(features, changes_users) {
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        result => result,
    }
}

fn serve(features: CodeFeatures, changes_users: bool) -> Result<()> {
    close_inherited()?;
    let control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    if !receive_hello(&control)? {
        return Ok(());
    }
    let Some(mut state) = confine_and_load(&control, features, changes_users)? else { return Ok(()) };
    let mut children: Vec<ForkedChild> = Vec::new();
    loop {
        // Ended children are reaped before another is forked, because an outcome may wait for the exit.
        let (has_message, exited_indexes) = wait_for_events(&control, &children)?;
        for index in exited_indexes.into_iter().rev() {
            let ForkedChild { child, pid, .. } = children.swap_remove(index);
            send(&control, &FromZygote::Exited { child, exit: reap(pid)? }, &[])?;
        }
        if !has_message {
            continue;
        }
        match receive(&control)? {
            Some((ToZygote::Fork { child }, handles)) => {
                let Ok([socket]) = <[OwnedFd; 1]>::try_from(handles) else {
                    refuse(&control, child, &NO_DESCRIPTOR)?;
                    continue;
                };
                // The child belongs to this process and not to the server: glibc does not support `CLONE_PARENT`.
                match fork() {
                    Ok(ForkSide::Child) => {
                        // The zygote's own descriptors must not stay open in a child.
                        drop((children, control));
                        child::child_main(&state, UnixStream::from(socket));
                    }
                    Ok(ForkSide::Parent { pid }) => children.extend(register_child(&control, child, pid)?),
                    Err(error) => refuse(&control, child, &error)?,
                }
            }
            Some((ToZygote::Load { tool, form }, handles)) => {
                // If this fails, the children of the tool try it again, and one of them reports the reason.
                if let Ok(artifact) = load(&state.sandbox, form, handles) {
                    state.tools.insert(tool, artifact);
                }
            }
            Some((ToZygote::Unload { tool }, _)) => drop(state.tools.remove(&tool)),
            Some((ToZygote::Hello { .. } | ToZygote::Check { .. } | ToZygote::Start { .. }, _)) => {
                return Err(unexpected_message());
            }
            None => return Ok(()),
        }
    }
}

/// Loads and links a tool from the files of its code. The error is the reason as text.
pub(super) fn load(
    sandbox: &Sandbox,
    form: CodeForm,
    handles: Vec<OwnedFd>,
) -> std::result::Result<Artifact, String> {
    let files = handles.into_iter().map(File::from).collect::<Vec<_>>();
    let code = form.code(&files).ok_or(NO_DESCRIPTOR)?;
    sandbox.load(code).map_err(|error| ErrorChain(&error).to_string())
}

/// An I/O error with a confinement error's message and cause.
pub(super) fn confine_io_error(error: ConfineError) -> Error {
    Error::other(ErrorChain(&error).to_string())
}

fn unexpected_message() -> Error {
    Error::new(ErrorKind::InvalidData, "the server sent a message that a zygote does not expect")
}

/// Reads the first message of the server; `false` when the server has closed the connection.
fn receive_hello(control: &UnixStream) -> Result<bool> {
    match receive(control)? {
        Some((ToZygote::Hello { version: VERSION }, _)) => Ok(true),
        Some((ToZygote::Hello { version }, _)) => {
            let message =
                format!("the server sends messages of version {version}, and this program reads {VERSION}");
            Err(Error::new(ErrorKind::InvalidData, message))
        }
        Some((
            ToZygote::Load { .. }
            | ToZygote::Check { .. }
            | ToZygote::Unload { .. }
            | ToZygote::Start { .. }
            | ToZygote::Fork { .. },
            _,
        )) => Err(unexpected_message()),
        None => Ok(false),
    }
}

/// Confines the process and loads the tools; `None` when the server ends before it has sent all of them.
fn confine_and_load(
    control: &UnixStream,
    features: CodeFeatures,
    changes_users: bool,
) -> Result<Option<ZygoteState>> {
    let sandbox = Sandbox::builder().features(features).build();
    let sandbox = sandbox.map_err(|error| Error::other(ErrorChain(&error).to_string()))?;
    let confinement = Confinement::prepare().map_err(confine_io_error)?;
    // The process is confined before it loads any code of a tool.
    confinement.confine_zygote(changes_users).map_err(confine_io_error)?;
    confinement.filter_system_calls().map_err(confine_io_error)?;
    let mut tools = BTreeMap::new();
    let mut unusable = Vec::new();
    let (largest_file, handles) = loop {
        match receive(control)? {
            Some((ToZygote::Load { tool, form }, handles)) => {
                unusable.push(match load(&sandbox, form, handles) {
                    Ok(artifact) => {
                        tools.insert(tool, artifact);
                        None
                    }
                    Err(reason) => Some(reason),
                });
            }
            Some((ToZygote::Check { form }, handles)) => {
                unusable.push(load(&sandbox, form, handles).err());
            }
            Some((ToZygote::Start { largest_file, handles }, _)) => {
                break (largest_file, handles);
            }
            Some((ToZygote::Hello { .. } | ToZygote::Unload { .. } | ToZygote::Fork { .. }, _)) => {
                return Err(unexpected_message());
            }
            None => return Ok(None),
        }
    };
    let null = File::options().read(true).write(true).open("/dev/null")?;
    send(control, &FromZygote::Ready { unusable }, &[])?;
    Ok(Some(ZygoteState { sandbox, tools, null, confinement: Arc::new(confinement), largest_file, handles }))
}

/// Waits until the server has sent a message (`true`) or children have ended (their indexes).
fn wait_for_events(control: &UnixStream, children: &[ForkedChild]) -> Result<(bool, Vec<usize>)> {
    let mut poll_fds = vec![PollFd::new(control, PollFlags::IN)];
    poll_fds.extend(children.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)));
    loop {
        match poll(&mut poll_fds, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut signalled = poll_fds.iter().map(|fd| !fd.revents().is_empty());
    let has_message = signalled.next().unwrap_or(false);
    Ok((has_message, signalled.enumerate().filter_map(|(index, is_set)| is_set.then_some(index)).collect()))
}

/// Reports a new child to the server. If no descriptor is left for its pidfd, refuses the request and reaps the child.
fn register_child(control: &UnixStream, child: u64, pid: i32) -> Result<Option<ForkedChild>> {
    let child_pid = Pid::from_raw(pid).ok_or_else(unexpected_message)?;
    match pidfd_open(child_pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            send(control, &FromZygote::Forked { child, pid }, &[pidfd.as_fd()])?;
            Ok(Some(ForkedChild { child, pid, pidfd }))
        }
        Err(error) => {
            // The server then closes its end of the child's socket, and a child without a job ends.
            refuse(control, child, &std::io::Error::from(error))?;
            reap(pid)?;
            Ok(None)
        }
    }
}

fn refuse(control: &UnixStream, child: u64, reason: &dyn std::fmt::Display) -> Result<()> {
    send(control, &FromZygote::Refused { child, reason: reason.to_string() }, &[])
}
