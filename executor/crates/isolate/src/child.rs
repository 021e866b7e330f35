//! One child: it waits for its job, confines itself, waits for the signal to begin, runs one guest and ends. If its tool's
//! processes are reused, it serves further runs under the same permit.

use super::ProcessLifetime;
use super::channel::{EndReport, FromChild, Job, Task, receive, receive_confined, send, wait_for_begin};
use super::relay::Relay;
use super::reuse::{ResourceCounts, may_go_on_after};
use super::zygote::{ZygoteState, confine_io_error, load};
use a2g_capability::{MemberFolders, Permit, ReceivedPermit, Upper};
use a2g_sandbox::egress::Network;
use a2g_sandbox::{Accounting, Artifact, Calls, EndedStore, EventSink, Execution, Input, Outside, Sandbox};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::limit::Access;
use rustix::time::{ClockId, clock_gettime};
use std::io::{Error, Result};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// The number of descriptors that a child may have in addition to its guest's handles.
const OWN_DESCRIPTORS: u64 = 256;

/// The main function of a child. It never returns to the zygote's code.
pub(super) fn child_main(zygote: &ZygoteState, socket: UnixStream) -> ! {
    let socket = Arc::new(socket);
    // A panic must not unwind into the zygote's loop, which would then run in the child.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(zygote, &socket)));
    let reason = match result {
        Ok(Ok(())) => std::process::exit(0),
        Ok(Err(error)) => error.to_string(),
        Err(_panic) => "the executor failed while it ran the guest".to_owned(),
    };
    let _server_may_have_ended = send(&socket, &FromChild::Failed(reason), &[]);
    std::process::exit(1)
}

fn run(zygote: &ZygoteState, socket: &Arc<UnixStream>) -> Result<()> {
    // The inherited standard input is the zygote's socket to the server, and standard error goes to the server's log.
    rustix::stdio::dup2_stdin(&zygote.null)?;
    rustix::stdio::dup2_stdout(&zygote.null)?;
    rustix::stdio::dup2_stderr(&zygote.null)?;
    // The work that does not depend on the job is done before the job arrives, so that no run waits for it. The zygote
    // cannot do this work for all children: their guests would draw the same random numbers (`hostile::residue`).
    zygote
        .confinement
        .confine_waiting(zygote.handles + OWN_DESCRIPTORS, zygote.largest_file)
        .map_err(confine_io_error)?;
    let confinement = Arc::clone(&zygote.confinement);
    zygote.sandbox.start_ticker(move || confinement.confine_aux_thread().map_err(confine_io_error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    zygote.sandbox.warm_up();
    let Some((job, attached)) = receive::<Job>(socket)? else {
        return Ok(());
    };
    let mut handles = attached.into_iter();
    let code = handles.next().ok_or_else(|| Error::other("the job arrived without the code of its tool"))?;
    let outside = if job.has_relay() {
        let socket =
            handles.next_back().ok_or_else(|| Error::other("the job arrived without its relay's socket"))?;
        let relay = Relay::start(socket, job.max_parallel_calls, &zygote.confinement)?;
        let may_call = job.max_parallel_calls > 0;
        Outside {
            calls: if may_call { Calls::new(Arc::<Relay>::clone(&relay)) } else { Calls::default() },
            network: if job.network { Network::Remote(relay) } else { Network::Off },
        }
    } else {
        Outside::default()
    };
    let Job { tool, form, task, permit, network: _, max_parallel_calls: _, user, lifetime } = job;
    let received = permit
        .receive(handles.collect())
        .ok_or_else(|| Error::other("the job arrived without its folder descriptors"))?;
    // The code is loaded now, because this process can load none once it is confined. The received descriptor is closed
    // before, too: it shares its position with the server's.
    let loaded;
    let artifact = match zygote.tools.get(&tool) {
        Some(kept) => {
            drop(code);
            kept
        }
        None => {
            loaded = load(&zygote.sandbox, form, vec![code]).map_err(Error::other)?;
            &loaded
        }
    };
    let permit = received.permit();
    let access = permit.grant().access().value;
    let granted_folders = permit.roots().as_slice().iter().map(|root| (root.dir.as_fd(), access));
    let upper = permit.upper();
    // The roots of a program's files are not among them: without a right, they serve for look-ups only.
    let of_program = upper.and_then(Upper::member).into_iter().flat_map(MemberFolders::readable_handles);
    let read_only = of_program.chain([zygote.sandbox.outside()]).map(|folder| (folder, Access::ReadOnly));
    let folders = granted_folders.chain(read_only).collect::<Vec<_>>();
    let grant = permit.grant();
    zygote
        .confinement
        .apply(&folders, upper.map(Upper::as_fd), grant.memory().value, grant.output().value, user)
        .map_err(confine_io_error)?;
    drop(folders);
    if !wait_for_begin(socket)? {
        return Ok(());
    }
    let arguments = match task {
        Task::Invoke { arguments } => arguments,
        Task::Describe => {
            let description = runtime.block_on(zygote.sandbox.describe(artifact, received.into_permit()));
            let description = description.map_err(|error| ErrorChain(&error).to_string());
            send(socket, &FromChild::Described(description), &[])?;
            wait_for_kill();
        }
    };
    let runner = GuestRunner { sandbox: &zygote.sandbox, artifact, socket, runtime, outside };
    match lifetime {
        ProcessLifetime::OneRun => {
            if let Some(store) = runner.run_once(received.into_permit(), arguments)? {
                store.leak();
            }
            wait_for_kill();
        }
        ProcessLifetime::Reused => runner.serve(&received, arguments, zygote.handles + OWN_DESCRIPTORS),
    }
}

/// Runs the guests of a confined child.
struct GuestRunner<'a> {
    sandbox: &'a Sandbox,
    artifact: &'a Artifact,
    socket: &'a Arc<UnixStream>,
    runtime: Runtime,
    outside: Outside,
}

impl GuestRunner<'_> {
    /// Serves runs until the server ends or kills this process, whose descriptors are numbered below `max_descriptors`. The
    /// first run has begun.
    fn serve(&self, received: &ReceivedPermit, first_arguments: String, max_descriptors: u64) -> Result<()> {
        // The folders stay open for all runs.
        self.sandbox.open_folders(received.permit()).map_err(Error::other)?;
        let before = ResourceCounts::count(max_descriptors)?;
        let mut arguments = first_arguments;
        loop {
            let Some(store) = self.run_once(received.duplicate()?, arguments)? else { wait_for_kill() };
            drop(store);
            if let Err(reason) = before.check(&ResourceCounts::count(max_descriptors)?) {
                send(self.socket, &FromChild::Failed(reason), &[])?;
                wait_for_kill();
            }
            send(self.socket, &FromChild::Idle, &[])?;
            let Some(next_arguments) = receive_confined(self.socket)? else { return Ok(()) };
            arguments = next_arguments;
            if !wait_for_begin(self.socket)? {
                return Ok(());
            }
        }
    }

    /// Runs the guest once and reports its end. Returns its store if another run may follow.
    fn run_once(&self, permit: Permit, arguments: String) -> Result<Option<EndedStore>> {
        let event_socket = Arc::clone(self.socket);
        // A send fails only if the server has ended, and this process ends with it.
        let events = EventSink::new(move |event| drop(send(&event_socket, &FromChild::Event(event), &[])));
        let now = SystemClock.monotonic();
        let outside = self.outside.clone();
        let grant = permit.grant().clone();
        let execution = Execution::begin(grant, outside, Arc::default(), Accounting::Process, events, now);
        // The server subtracts this: the child's own start-up is not the guest's CPU time.
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_ns =
            u64::try_from(cpu.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(cpu.tv_nsec).unwrap_or(0);
        send(self.socket, &FromChild::Began { cpu_ns }, &[])?;
        let input = Input::Arguments(arguments);
        let guest = self.sandbox.execute_keeping_store(self.artifact, permit, input, &execution);
        let (outcome, store) = self.runtime.block_on(guest);
        let store = if may_go_on_after(&outcome.end) {
            store
        } else {
            if let Some(store) = store {
                store.leak();
            }
            None
        };
        let report = EndReport {
            end: outcome.end.into(),
            output_bytes: outcome.metrics.output_bytes,
            truncated: outcome.output.truncated,
            spent: outcome.usage.spent,
            denied: outcome.usage.denied,
            denied_truncated: outcome.usage.denied_truncated,
        };
        // The server reads the kernel's accounting of this process while the process is alive.
        send(self.socket, &FromChild::Ended(Box::new(report)), &[])?;
        Ok(store)
    }
}

/// Waits for SIGKILL from the server, which may still have to read the kernel's accounting of this process.
// This is cheaper than running exit handlers, and the server ends every child the same way.
fn wait_for_kill() -> ! {
    loop {
        std::thread::park();
    }
}
