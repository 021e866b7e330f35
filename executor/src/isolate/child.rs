//! The life of one child: it waits for its job, confines itself, waits until it may begin, runs one guest,
//! and ends.

use super::channel::{Ended, FromChild, Job, Task, may_begin, receive, send};
use super::network::Remote;
use super::zygote::{Ready, refused};
use crate::clock::{Clock as _, SystemClock};
use crate::egress::Network;
use crate::error_chain::ErrorChain;
use crate::limit::Access;
use crate::sandbox::{Accounting, Execution, Input, Witness};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Error, Result};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// How many descriptors a child may have beside its guest's handles.
const OWN_FILES: u64 = 256;

/// Lives the life of a child, and never comes back to the zygote's code.
pub(super) fn live(ready: &Ready, socket: UnixStream) -> ! {
    let socket = Arc::new(socket);
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(ready, &socket)));
    let failed = match lived {
        Ok(Ok(())) => std::process::exit(0),
        Ok(Err(error)) => error.to_string(),
        Err(_panic) => "the executor failed while it ran the guest".to_owned(),
    };
    let _nobody_listens = send(&socket, &FromChild::Failed(failed), &[]);
    std::process::exit(1)
}

fn run(ready: &Ready, socket: &Arc<UnixStream>) -> Result<()> {
    // The socket to the server was the zygote's standard input; standard error is the server's log.
    rustix::stdio::dup2_stdin(&ready.null)?;
    rustix::stdio::dup2_stdout(&ready.null)?;
    rustix::stdio::dup2_stderr(&ready.null)?;
    // All that needs no job is done while there is none.
    ready.confinement.waiting(ready.handles + OWN_FILES, ready.largest_file).map_err(refused)?;
    let bystander = Arc::clone(&ready.confinement);
    ready.sandbox.start_ticker(move || bystander.bystander().map_err(refused))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    ready.sandbox.warm_up();
    let Some((Job { tool, task, permit, network, user }, mut folders)) = receive(socket)? else {
        return Ok(());
    };
    let network = match network {
        true => {
            let socket = folders.pop().ok_or_else(|| Error::other("the job came without its network"))?;
            Network::Carried(Remote::start(socket, &ready.confinement)?)
        }
        false => Network::Off,
    };
    let permit = permit.receive(folders).ok_or_else(|| Error::other("the job came without its folders"))?;
    let artifact =
        ready.tools.get(&tool).ok_or_else(|| Error::other("the job names no tool of this child"))?;
    let telling = Arc::clone(socket);
    // When the server is gone there is nobody to tell, and this process is about to end as well.
    let witness = Witness::new(move |event| drop(send(&telling, &FromChild::Event(event), &[])));
    let access = permit.grant().access().value;
    let granted = permit.roots().as_slice().iter().map(|root| (root.dir.as_fd(), access));
    let folders = granted.chain([(ready.sandbox.outside(), Access::ReadOnly)]).collect::<Vec<_>>();
    let grant = permit.grant();
    ready.confinement.apply(&folders, grant.memory().value, grant.output().value, user).map_err(refused)?;
    drop(folders);
    if !may_begin(socket)? {
        return Ok(());
    }
    let arguments = match task {
        Task::Invoke { arguments } => arguments,
        Task::Describe => {
            let described = runtime.block_on(ready.sandbox.describe(artifact, permit));
            let described = described.map_err(|error| ErrorChain(&error).to_string());
            send(socket, &FromChild::Described(described), &[])?;
            wait_for_the_end();
        }
    };
    let now = SystemClock.monotonic();
    let execution =
        Execution::begin(permit.grant().clone(), network, Arc::default(), Accounting::Process, witness, now);
    let used = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_ns =
        u64::try_from(used.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0);
    send(socket, &FromChild::Began { cpu_ns }, &[])?;
    let outcome =
        runtime.block_on(ready.sandbox.execute(artifact, permit, Input::Arguments(arguments), &execution));
    let ended = Ended {
        end: outcome.end.into(),
        output_bytes: outcome.metrics.output_bytes,
        truncated: outcome.output.truncated,
        spent: outcome.usage.spent,
        denied: outcome.usage.denied,
        denied_truncated: outcome.usage.denied_truncated,
    };
    send(socket, &FromChild::Ended(Box::new(ended)), &[])?;
    // The server takes what the kernel counted of this process while it still lives.
    wait_for_the_end()
}

/// The server ends this process.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}
