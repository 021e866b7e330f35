//! The zygote: a process with everything ready for a guest, which forks a copy of itself for each.
//!
//! It has one thread, the engine, the linkers and the compiled tools, and of the server's own
//! nothing: no socket but the one to the server, no key, no file. It ends with the server, whose end
//! of that socket it watches, and its children end with it.

use super::channel::{FromZygote, ToZygote, VERSION, receive, send};
use super::child;
use super::confine::{ConfineError, Confinement};
use super::process::{Forked, close_inherited, fork, reap};
use crate::clock::SystemClock;
use crate::sandbox::{Artifact, Code, Sandbox};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// What a zygote has and its children inherit.
pub(super) struct Ready {
    pub(super) sandbox: Sandbox,
    pub(super) tools: BTreeMap<String, Artifact>,
    pub(super) null: File,
    pub(super) confinement: Arc<Confinement>,
    pub(super) largest_file: u64,
    pub(super) handles: u64,
}

/// A child that was forked and is not reaped yet.
struct Living {
    child: u64,
    pid: i32,
    pidfd: OwnedFd,
}

/// The life of a zygote, whose standard input is the socket to its server and whose engine counts
/// instructions when it `meters_fuel`.
///
/// # Errors
/// When the engine cannot be set up, or the socket fails. The end of the server is no error.
pub fn zygote(meters_fuel: bool, changes_users: bool) -> Result<()> {
    match serve(meters_fuel, changes_users) {
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        served => served,
    }
}

fn serve(meters_fuel: bool, changes_users: bool) -> Result<()> {
    close_inherited()?;
    let control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    if !has_greeted(&control)? {
        return Ok(());
    }
    let Some(ready) = load(&control, meters_fuel, changes_users)? else { return Ok(()) };
    let mut living: Vec<Living> = Vec::new();
    loop {
        // A child that is gone is reaped before another is made, because its outcome may wait for it.
        let (asked, gone) = wait(&control, &living)?;
        for index in gone.into_iter().rev() {
            let Living { child, pid, .. } = living.swap_remove(index);
            send(&control, &FromZygote::Exited { child, exit: reap(pid)? }, &[])?;
        }
        if !asked {
            continue;
        }
        match receive(&control)? {
            Some((ToZygote::Fork { child }, handles)) => {
                let Ok([socket]) = <[OwnedFd; 1]>::try_from(handles) else {
                    refuse(&control, child, &"the zygote has no room for a socket")?;
                    continue;
                };
                match fork() {
                    Ok(Forked::Child) => {
                        // Nothing of the zygote's own may stay open in a child.
                        drop((living, control));
                        child::live(&ready, UnixStream::from(socket));
                    }
                    Ok(Forked::Parent { pid }) => living.extend(forked(&control, child, pid)?),
                    Err(error) => refuse(&control, child, &error)?,
                }
            }
            Some((ToZygote::Hello { .. } | ToZygote::Load { .. } | ToZygote::Start { .. }, _)) => {
                return Err(protocol());
            }
            None => return Ok(()),
        }
    }
}

/// A control that this kernel has and that failed, with all that is known of it.
pub(super) fn refused(error: ConfineError) -> Error {
    use std::error::Error as _;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Error::other(format!("{error}{cause}"))
}

fn protocol() -> Error {
    Error::new(ErrorKind::InvalidData, "the server sent what a zygote does not expect")
}

/// Reads the first message of the server; `false` when the server is gone.
fn has_greeted(control: &UnixStream) -> Result<bool> {
    match receive(control)? {
        Some((ToZygote::Hello { version: VERSION }, _)) => Ok(true),
        Some((ToZygote::Hello { version }, _)) => {
            let message =
                format!("the server sends messages of version {version}, and this program reads {VERSION}");
            Err(Error::new(ErrorKind::InvalidData, message))
        }
        Some((ToZygote::Load { .. } | ToZygote::Start { .. } | ToZygote::Fork { .. }, _)) => Err(protocol()),
        None => Ok(false),
    }
}

/// Takes the tools; `None` when the server is gone before they are complete.
fn load(control: &UnixStream, meters_fuel: bool, changes_users: bool) -> Result<Option<Ready>> {
    let sandbox = Sandbox::new(1, meters_fuel, Arc::new(SystemClock)).map_err(Error::other)?;
    let confinement = Confinement::prepare().map_err(refused)?;
    // Confined before any code of a tool is loaded. The list of system calls follows after that, because it does not
    // allow making memory executable.
    confinement.zygote(changes_users).map_err(refused)?;
    let mut tools = BTreeMap::new();
    let mut unusable = Vec::new();
    let (largest_file, handles) = loop {
        match receive(control)? {
            Some((ToZygote::Load { tool, component, contract }, handles)) => {
                let mut files = handles.into_iter().map(File::from);
                let (module, componentised) = (files.next().ok_or_else(protocol)?, files.next());
                let componentised = componentised.as_ref();
                let code = Code { module: &module, component, componentised, contract: contract.into() };
                unusable.push(match sandbox.load(code) {
                    Ok(artifact) => {
                        tools.insert(tool, artifact);
                        None
                    }
                    Err(error) => Some(error.to_string()),
                });
            }
            Some((ToZygote::Start { largest_file, handles }, _)) => {
                break (largest_file, handles);
            }
            Some((ToZygote::Hello { .. } | ToZygote::Fork { .. }, _)) => return Err(protocol()),
            None => return Ok(None),
        }
    };
    let null = File::options().read(true).write(true).open("/dev/null")?;
    confinement.list().map_err(refused)?;
    send(control, &FromZygote::Ready { unusable }, &[])?;
    Ok(Some(Ready { sandbox, tools, null, confinement: Arc::new(confinement), largest_file, handles }))
}

/// Waits until the server says something (`true`) or children are gone (their places).
fn wait(control: &UnixStream, living: &[Living]) -> Result<(bool, Vec<usize>)> {
    let mut watched = vec![PollFd::new(control, PollFlags::IN)];
    watched.extend(living.iter().map(|living| PollFd::new(&living.pidfd, PollFlags::IN)));
    loop {
        match poll(&mut watched, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut spoke = watched.iter().map(|fd| !fd.revents().is_empty());
    let asked = spoke.next().unwrap_or(false);
    Ok((asked, spoke.enumerate().filter_map(|(index, spoke)| spoke.then_some(index)).collect()))
}

/// Tells of a child, or ends it when there is no descriptor left to know it by.
fn forked(control: &UnixStream, child: u64, pid: i32) -> Result<Option<Living>> {
    let known = Pid::from_raw(pid).ok_or_else(protocol)?;
    match pidfd_open(known, PidfdFlags::empty()) {
        Ok(pidfd) => {
            send(control, &FromZygote::Forked { child, pid }, &[pidfd.as_fd()])?;
            Ok(Some(Living { child, pid, pidfd }))
        }
        Err(error) => {
            // The server closes its end of the child's socket, and the child, without a job, ends.
            refuse(control, child, &std::io::Error::from(error))?;
            reap(pid)?;
            Ok(None)
        }
    }
}

fn refuse(control: &UnixStream, child: u64, reason: &dyn std::fmt::Display) -> Result<()> {
    send(control, &FromZygote::Refused { child, reason: reason.to_string() }, &[])
}
