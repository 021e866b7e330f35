//! One child: it waits for its job, confines itself, waits for the signal to begin, runs one guest and ends.
//! If its tool's processes are reused, it serves further runs under the same permit; in a session, further
//! turns in the same store.

use super::channel::{
    EndReport, FromChild, Job, JobLifetime, NextTurn, Task, receive, receive_confined, send, wait_for_begin,
};
use super::confine::Confinement;
use super::relay::{Relay, RelayReader};
use super::reuse::ResourceCounts;
use super::zygote::{ZygoteState, confine_io_error, load};
use a2g_capability::{MemberFolders, Permit, ReceivedPermit, TurnLimits, Upper};
use a2g_sandbox::egress::Network;
use a2g_sandbox::{
    Accounting, Artifact, Calls, EndedStore, EventSink, Execution, Input, Outside, Sandbox, SessionStore,
};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::limit::{Access, Limit};
use a2g_types::outcome::Outcome;
use rustix::time::{ClockId, clock_gettime};
use std::io::{Error, Result};
use std::os::fd::{AsFd as _, OwnedFd};
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
    let relays = job.has_relay().then(|| Relays::start(&job, &zygote.confinement)).transpose()?;
    let link = match &relays {
        Some(relays) => relays.open(handles.next_back())?,
        None => Link::default(),
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
    let memory = permit.grant().memory().value;
    let output = permit.grant().output().value;
    let confinement = &zygote.confinement;
    let confined = if lifetime == JobLifetime::Turns && relays.is_some() {
        confinement.apply_to_session(&folders, memory, output, user)
    } else {
        confinement.apply(&folders, upper.map(Upper::as_fd), memory, output, user)
    };
    confined.map_err(confine_io_error)?;
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
    let max_descriptors = zygote.handles + OWN_DESCRIPTORS;
    let runner = GuestRunner { sandbox: &zygote.sandbox, artifact, socket, runtime, max_descriptors };
    match lifetime {
        JobLifetime::OneRun => {
            if let Some(store) = runner.run_once(received.into_permit(), arguments, link.outside)? {
                store.leak();
            }
            wait_for_kill();
        }
        JobLifetime::Runs => runner.serve(&received, arguments),
        JobLifetime::Turns => {
            let limits = received.permit().grant().turn_limits();
            let first = ReadyTurn { arguments, limits, link };
            runner.serve_session(&received, first, relays.as_ref())
        }
    }
}

/// The relays of a child's runs, one after the other.
struct Relays {
    reader: RelayReader,
    network: bool,
    max_parallel_calls: u32,
}

/// The connection of one run to the server. By default, there is none.
#[derive(Default)]
struct Link {
    relay: Option<Arc<Relay>>,
    outside: Outside,
}

/// A turn of a session that may begin.
struct ReadyTurn {
    arguments: String,
    limits: TurnLimits,
    link: Link,
}

impl ReadyTurn {
    fn new(next: NextTurn<'_>, link: Link) -> Self {
        let NextTurn { arguments, limits } = next;
        Self { arguments: arguments.into_owned(), limits, link }
    }
}

impl Relays {
    /// Starts the thread of the relays of a job that has some. Call this before the process is confined.
    fn start(job: &Job, confinement: &Arc<Confinement>) -> Result<Self> {
        let reader = RelayReader::start(confinement)?;
        Ok(Self { reader, network: job.network, max_parallel_calls: job.max_parallel_calls })
    }

    /// The connection of a run over the received `socket`.
    fn open(&self, socket: Option<OwnedFd>) -> Result<Link> {
        let socket = socket.ok_or_else(|| Error::other("a run arrived without its relay's socket"))?;
        let relay = self.reader.open(socket, self.max_parallel_calls)?;
        let may_call = self.max_parallel_calls > 0;
        let outside = Outside {
            calls: if may_call { Calls::new(Arc::<Relay>::clone(&relay)) } else { Calls::default() },
            network: if self.network { Network::Remote(Arc::<Relay>::clone(&relay)) } else { Network::Off },
        };
        Ok(Link { relay: Some(relay), outside })
    }
}

/// Runs the guests of a confined child.
struct GuestRunner<'a> {
    sandbox: &'a Sandbox,
    artifact: &'a Artifact,
    socket: &'a Arc<UnixStream>,
    runtime: Runtime,
    /// The number below which all descriptors of the process are numbered.
    max_descriptors: u64,
}

impl GuestRunner<'_> {
    /// Serves runs until the server ends or kills this process. The first run has begun.
    fn serve(&self, received: &ReceivedPermit, first_arguments: String) -> Result<()> {
        let before = self.count_before(received)?;
        let mut arguments = first_arguments;
        loop {
            let ended = self.run_once(received.duplicate()?, arguments, Outside::default())?;
            let Some(store) = ended else { wait_for_kill() };
            drop(store);
            self.report_idle(before.check(&self.count_resources()?))?;
            let Some(next_arguments) = receive_confined(self.socket)? else { return Ok(()) };
            arguments = next_arguments;
            if !wait_for_begin(self.socket)? {
                return Ok(());
            }
        }
    }

    /// Serves the turns of a session until the server ends or kills this process. The `first` one has begun.
    /// Each has another one of the `relays`, if there are any.
    fn serve_session(
        &self,
        received: &ReceivedPermit,
        first: ReadyTurn,
        relays: Option<&Relays>,
    ) -> Result<()> {
        let before = self.count_before(received)?;
        // The guest keeps its open files, each with at most one descriptor.
        let max_kept = received.permit().grant().limit(Limit::Handles).value;
        let mut kept = None;
        let mut turn = first;
        loop {
            let ReadyTurn { arguments, limits, link: Link { relay, outside } } = turn;
            let permit = received.duplicate_for_turn(&limits)?;
            let Some(store) = self.run_turn(kept, permit, arguments, outside)? else { wait_for_kill() };
            kept = Some(store);
            if let (Some(relays), Some(relay)) = (relays, relay) {
                relays.reader.close(&relay)?;
            }
            self.report_idle(before.check_kept(&self.count_resources()?, max_kept))?;
            let Some(next) = self.receive_turn(relays)? else { return Ok(()) };
            turn = next;
            if !wait_for_begin(self.socket)? {
                return Ok(());
            }
        }
    }

    /// Waits for the next turn; `None` when the server has closed the connection.
    fn receive_turn(&self, relays: Option<&Relays>) -> Result<Option<ReadyTurn>> {
        let Some(relays) = relays else {
            let next = receive_confined(self.socket)?;
            return Ok(next.map(|turn| ReadyTurn::new(turn, Link::default())));
        };
        let Some((next, attached)) = receive(self.socket)? else { return Ok(None) };
        Ok(Some(ReadyTurn::new(next, relays.open(attached.into_iter().next())?)))
    }

    /// Opens the folders, which stay open for all runs, and counts what the process has before its first one.
    fn count_before(&self, received: &ReceivedPermit) -> Result<ResourceCounts> {
        self.sandbox.open_folders(received.permit()).map_err(Error::other)?;
        self.count_resources()
    }

    fn count_resources(&self) -> Result<ResourceCounts> {
        ResourceCounts::count(self.max_descriptors)
    }

    /// Reports that the process waits for its next run, or the difference that `checked` has found.
    fn report_idle(&self, checked: std::result::Result<(), String>) -> Result<()> {
        if let Err(reason) = checked {
            send(self.socket, &FromChild::Failed(reason), &[])?;
            wait_for_kill();
        }
        send(self.socket, &FromChild::Idle, &[])
    }

    /// Runs the guest once and reports its end. Returns its store if another run may follow.
    fn run_once(&self, permit: Permit, arguments: String, outside: Outside) -> Result<Option<EndedStore>> {
        let execution = self.begin(&permit, outside)?;
        let input = Input::Arguments(arguments);
        let guest = self.sandbox.execute_keeping_store(self.artifact, permit, input, &execution);
        let (outcome, store) = self.runtime.block_on(guest);
        let kept = if outcome.end.is_answer() {
            store
        } else {
            if let Some(store) = store {
                store.leak();
            }
            None
        };
        self.report(outcome)?;
        Ok(kept)
    }

    /// Runs a turn in the store that was `kept`, the first one in a new store, and reports its end. Returns
    /// the store if another turn may follow.
    fn run_turn(
        &self,
        kept: Option<SessionStore>,
        permit: Permit,
        arguments: String,
        outside: Outside,
    ) -> Result<Option<SessionStore>> {
        let execution = self.begin(&permit, outside)?;
        let (outcome, store) = match kept {
            Some(store) => {
                self.runtime.block_on(self.sandbox.execute_turn(store, permit, arguments, &execution))
            }
            None => {
                let turn = self.sandbox.open_session(self.artifact, permit, arguments, &execution);
                self.runtime.block_on(turn)
            }
        };
        let next = store.filter(|_| outcome.end.is_answer());
        self.report(outcome)?;
        Ok(next)
    }

    /// Begins a run that reaches `outside`, and reports its begin.
    fn begin(&self, permit: &Permit, outside: Outside) -> Result<Execution> {
        let event_socket = Arc::clone(self.socket);
        // A send fails only if the server has ended, and this process ends with it.
        let events = EventSink::new(move |event| drop(send(&event_socket, &FromChild::Event(event), &[])));
        let now = SystemClock.monotonic();
        let grant = permit.grant().clone();
        let execution = Execution::begin(grant, outside, Arc::default(), Accounting::Process, events, now);
        // The server subtracts this: the child's own start-up is not the guest's CPU time.
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_ns =
            u64::try_from(cpu.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(cpu.tv_nsec).unwrap_or(0);
        send(self.socket, &FromChild::Began { cpu_ns }, &[])?;
        Ok(execution)
    }

    fn report(&self, outcome: Outcome) -> Result<()> {
        let report = EndReport {
            end: outcome.end.into(),
            output_bytes: outcome.metrics.output_bytes,
            truncated: outcome.output.truncated,
            spent: outcome.usage.spent,
            denied: outcome.usage.denied,
            denied_truncated: outcome.usage.denied_truncated,
        };
        // The server reads the kernel's accounting of this process while the process is alive.
        send(self.socket, &FromChild::Ended(Box::new(report)), &[])
    }
}

/// Waits for SIGKILL from the server, which may still have to read the kernel's accounting of this process.
// This is cheaper than running exit handlers, and the server ends every child the same way.
fn wait_for_kill() -> ! {
    loop {
        std::thread::park();
    }
}
