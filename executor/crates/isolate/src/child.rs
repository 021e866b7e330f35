//! One child: it waits for its job, confines itself, waits for the signal to begin, runs one guest and ends.

use super::channel::{EndReport, FromChild, Job, Task, receive, send, wait_for_begin};
use super::network::RemoteNetwork;
use super::zygote::{ZygoteState, confine_io_error};
use a2g_sandbox::egress::Network;
use a2g_sandbox::{Accounting, EventSink, Execution, Input};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::limit::Access;
use rustix::time::{ClockId, clock_gettime};
use std::io::{Error, Result};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The descriptors that a child may have besides its guest's handles.
const OWN_FILES: u64 = 256;

/// The main function of a child. It never returns to the zygote's code.
pub(super) fn child_main(zygote: &ZygoteState, socket: UnixStream) -> ! {
    let socket = Arc::new(socket);
    // A panic must not unwind into the zygote's loop, which would then run in the child.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(zygote, &socket)));
    let failed = match result {
        Ok(Ok(())) => std::process::exit(0),
        Ok(Err(error)) => error.to_string(),
        Err(_panic) => "the executor failed while it ran the guest".to_owned(),
    };
    let _nobody_listens = send(&socket, &FromChild::Failed(failed), &[]);
    std::process::exit(1)
}

fn run(zygote: &ZygoteState, socket: &Arc<UnixStream>) -> Result<()> {
    // Inherited: standard input is the zygote's socket to the server, standard error goes to the server's log.
    rustix::stdio::dup2_stdin(&zygote.null)?;
    rustix::stdio::dup2_stdout(&zygote.null)?;
    rustix::stdio::dup2_stderr(&zygote.null)?;
    // Everything that does not depend on the job happens before it arrives, so that no run waits for it. It cannot
    // happen once in the zygote: guests of all children would draw the same random numbers (`hostile::residue`).
    zygote
        .confinement
        .confine_waiting(zygote.handles + OWN_FILES, zygote.largest_file)
        .map_err(confine_io_error)?;
    let confinement = Arc::clone(&zygote.confinement);
    zygote.sandbox.start_ticker(move || confinement.confine_aux_thread().map_err(confine_io_error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    zygote.sandbox.warm_up();
    let Some((Job { tool, task, permit, network, user }, mut folders)) = receive(socket)? else {
        return Ok(());
    };
    let network = match network {
        true => {
            let socket = folders.pop().ok_or_else(|| Error::other("the job came without its network"))?;
            Network::Remote(RemoteNetwork::start(socket, &zygote.confinement)?)
        }
        false => Network::Off,
    };
    let permit = permit.receive(folders).ok_or_else(|| Error::other("the job came without its folders"))?;
    let artifact = zygote.tools.get(&tool).ok_or_else(|| Error::other("the job names an unknown tool"))?;
    let telling = Arc::clone(socket);
    // A send fails only if the server has ended, and this process ends with it.
    let events = EventSink::new(move |event| drop(send(&telling, &FromChild::Event(event), &[])));
    let access = permit.grant().access().value;
    let granted = permit.roots().as_slice().iter().map(|root| (root.dir.as_fd(), access));
    let folders = granted.chain([(zygote.sandbox.outside(), Access::ReadOnly)]).collect::<Vec<_>>();
    let grant = permit.grant();
    zygote
        .confinement
        .apply(&folders, grant.memory().value, grant.output().value, user)
        .map_err(confine_io_error)?;
    drop(folders);
    if !wait_for_begin(socket)? {
        return Ok(());
    }
    let arguments = match task {
        Task::Invoke { arguments } => arguments,
        Task::Describe => {
            let described = runtime.block_on(zygote.sandbox.describe(artifact, permit));
            let described = described.map_err(|error| ErrorChain(&error).to_string());
            send(socket, &FromChild::Described(described), &[])?;
            wait_for_the_end();
        }
    };
    let now = SystemClock.monotonic();
    let execution =
        Execution::begin(permit.grant().clone(), network, Arc::default(), Accounting::Process, events, now);
    // The server subtracts this: the child's own start-up is not the guest's CPU time.
    let used = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_ns =
        u64::try_from(used.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0);
    send(socket, &FromChild::Began { cpu_ns }, &[])?;
    let outcome =
        runtime.block_on(zygote.sandbox.execute(artifact, permit, Input::Arguments(arguments), &execution));
    let ended = EndReport {
        end: outcome.end.into(),
        output_bytes: outcome.metrics.output_bytes,
        truncated: outcome.output.truncated,
        spent: outcome.usage.spent,
        denied: outcome.usage.denied,
        denied_truncated: outcome.usage.denied_truncated,
    };
    send(socket, &FromChild::Ended(Box::new(ended)), &[])?;
    // The server reads the kernel's figures of this process while it is alive.
    wait_for_the_end()
}

/// Waits for SIGKILL from the server.
// Cheaper than running exit handlers, and it leaves no choice to a compromised child.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}
