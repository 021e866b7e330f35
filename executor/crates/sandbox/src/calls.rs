//! The guest's calls to other tools: the interface `a2g:tool/calls`.
//!
//! ```text
//! guest ─ start, call ─▶ PendingCalls ─▶ CallBackend ─┬─ inline: the run's calls in the server
//!                                                     └─ process isolation: the relay to those calls
//! ```
//! Only the backend decides on a call. This module numbers the calls and holds their outcomes until the guest takes
//! them.

use super::files::Files;
use super::state::StoreState;
use super::typed::a2g::tool::calls::{Definition, Finished, Host, Summary};
use super::typed::a2g::tool::types::ToolError;
use a2g_runtime::spawn;
use a2g_types::memory::{CountedBytes, SMALL_MESSAGE_BYTES};
use futures_util::FutureExt as _;
use futures_util::future::Either;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::task::JoinHandle;

/// Maximum size of a call's arguments, in bytes. It equals the default of `server.max_body_bytes`.
pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;
/// Maximum size of the results that a run has not taken, in bytes.
// They are memory of the host, which the guest's memory limit does not cover.
const MAX_UNTAKEN_BYTES: usize = 16 << 20;
/// Maximum number of calls whose outcomes a run has not taken.
const MAX_PENDING: usize = 10_000;
/// Maximum number of outcomes that a run has not taken: of calls, and of as many refusals of further ones.
const MAX_OUTCOMES: usize = 2 * MAX_PENDING;
/// Maximum length in bytes of all uncounted arguments of a run's calls that have not ended. Further ones are counted however
/// short they are.
const MAX_UNCOUNTED_BYTES: usize = 256 << 10;

/// A request of a guest about other tools.
#[derive(Debug)]
pub enum CallRequest {
    /// The tools that the run may call.
    List,
    /// The interface of one such tool.
    Describe {
        /// The tool's name, as the guest wrote it.
        tool: String,
    },
    /// One call.
    Call {
        /// The tool's name, as the guest wrote it.
        tool: String,
        /// The arguments, as the guest wrote them.
        arguments: String,
        /// The count of long arguments, until they are charged; `None` in a process other than the server's.
        counted: Option<CountedBytes>,
    },
}

/// The answer to a [`CallRequest`].
#[derive(Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CallAnswer {
    /// The tools that the run may call, sorted by name.
    Tools(Vec<CallableTool>),
    /// The interface of a tool.
    Definition(ToolDefinition),
    /// The result of a call, as JSON text.
    Result(String),
}

/// A tool that a run may call.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallableTool {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
}

/// The interface of a tool.
#[derive(Debug, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The JSON Schema of its arguments, as JSON text.
    pub arguments_schema: String,
    /// The JSON Schema of its result, as JSON text.
    pub result_schema: Option<String>,
}

/// The reason why a call did not succeed, for the guest. The contract has the list of codes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallError {
    /// The code of the tool itself, or of the contract's list.
    pub code: String,
    /// The sentence for the guest: the refused item or the limit, and the change to make.
    pub message: String,
    /// The facts, as a JSON object.
    pub detail: Option<String>,
    /// `true` if every further request of this kind would be refused likewise.
    pub is_final: bool,
}

impl CallError {
    /// An error without facts.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), detail: None, is_final: false }
    }

    /// The error of a run that may make no further calls or ask no further questions.
    #[must_use]
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self { is_final: true, ..Self::new("calls_exhausted", message) }
    }

    /// The error of a run whose tool declares no calls.
    #[must_use]
    pub fn not_declared() -> Self {
        let message = "this tool may not call other tools: declare those that it calls in its `tool.toml` \
                       (`[capabilities] calls`)";
        Self::new("not_allowed", message)
    }

    /// The error of a call with more arguments than one may have.
    #[must_use]
    pub fn long_arguments() -> Self {
        let message = format!("the arguments have more than {MAX_ARGUMENT_BYTES} bytes: send less");
        Self::new("invalid_arguments", message)
    }

    /// The error of a run that has ended.
    #[must_use]
    pub fn run_ended() -> Self {
        Self::new("aborted", "the run that made this call has ended")
    }
}

/// The future answer to a [`CallRequest`].
pub type CallFuture = Pin<Box<dyn Future<Output = Result<CallAnswer, CallError>> + Send>>;

/// Decides on the calls of one run, and makes them, in this process or in another one.
pub trait CallBackend: Send + Sync {
    /// Performs one request. A call has begun when this returns; it goes on if the future is dropped.
    fn perform(self: Arc<Self>, request: CallRequest) -> CallFuture;

    /// Counts this many bytes of arguments until the returned value is dropped, which [`CallRequest::Call`] passes on. By
    /// default, they are not counted.
    ///
    /// # Errors
    /// The error for the guest, if there is no memory for them.
    fn hold(&self, _bytes: u64) -> Result<Option<CountedBytes>, CallError> {
        Ok(None)
    }
}

/// The calls of one run; by default, it may make none.
#[derive(Clone, Default)]
pub struct Calls(Option<Arc<dyn CallBackend>>);

impl Calls {
    /// Calls over `backend`.
    #[must_use]
    pub fn new(backend: Arc<dyn CallBackend>) -> Self {
        Self(Some(backend))
    }

    /// The receiver of the run's calls; `None` for a run that may make none.
    #[must_use]
    pub fn backend(&self) -> Option<&Arc<dyn CallBackend>> {
        self.0.as_ref()
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Calls(on)" } else { "Calls(off)" })
    }
}

/// A call whose outcome was not taken. Dropping it drops the outcome.
type PendingCall = Either<Ready<Outcome>, CallTask>;

type Outcome = Result<String, CallError>;

/// The task of a call, which ends with it.
struct CallTask(JoinHandle<Outcome>);

impl Future for CallTask {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0).poll(context).map(|end| end.unwrap_or_else(|_| Err(CallError::run_ended())))
    }
}

impl Drop for CallTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The calls of one store.
pub(super) struct PendingCalls {
    calls: Calls,
    last: u32,
    pending: HashMap<u32, PendingCall>,
    untaken_bytes: Arc<AtomicUsize>,
    /// The length of the short arguments of the calls that have not ended, in bytes.
    short_bytes: Arc<AtomicUsize>,
    /// The refusal of every further call, so that a guest that goes on without end costs the server nothing.
    exhausted: Arc<OnceLock<CallError>>,
    /// The refusal of every further question.
    no_questions: OnceLock<CallError>,
}

/// The short arguments of a call that has not ended, in the sum of those of its run.
struct ShortText {
    sum: Arc<AtomicUsize>,
    bytes: usize,
    /// `true` if the run has so many of them that this one counts against its caller's share.
    is_counted: bool,
}

impl ShortText {
    fn new(sum: &Arc<AtomicUsize>, bytes: usize) -> Self {
        let before = sum.fetch_add(bytes, Ordering::SeqCst);
        Self { sum: Arc::clone(sum), bytes, is_counted: before.saturating_add(bytes) > MAX_UNCOUNTED_BYTES }
    }
}

impl Drop for ShortText {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl PendingCalls {
    pub(super) fn new(calls: Calls) -> Self {
        Self {
            calls,
            last: 0,
            pending: HashMap::new(),
            untaken_bytes: Arc::default(),
            short_bytes: Arc::default(),
            exhausted: Arc::default(),
            no_questions: OnceLock::new(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.calls.0.is_some()
    }

    /// Gives the guest the calls of the next turn of its session.
    pub(super) fn begin_turn(&mut self, calls: Calls) {
        self.calls = calls;
    }

    /// Ends the calls that the guest has left open, and makes no others until the next turn begins.
    // The numbers go on, so that a number of an earlier turn, which the guest may still have, never names
    // another call.
    pub(super) fn end_turn(&mut self) {
        *self = Self { last: self.last, ..Self::new(Calls::default()) };
    }

    fn request(&self, request: CallRequest) -> CallFuture {
        match self.calls.backend() {
            Some(backend) => Arc::clone(backend).perform(request),
            None => refuse(CallError::not_declared()),
        }
    }

    /// Begins a call, which has the files of the run until its end if it shares them. Longer arguments than a call may have
    /// are refused first: neither the files nor memory would help.
    fn request_call(&self, tool: String, arguments: String, files: &mut Files) -> CallFuture {
        let Some(backend) = self.calls.backend() else { return refuse(CallError::not_declared()) };
        if arguments.len() > MAX_ARGUMENT_BYTES {
            return refuse(CallError::long_arguments());
        }
        match files.lend() {
            Ok(None) => self.perform_call(backend, tool, arguments),
            Ok(Some(loan)) => {
                let answer = self.perform_call(backend, tool, arguments);
                Box::pin(async move {
                    let ended = answer.await;
                    drop(loan);
                    ended
                })
            }
            Err(error) => {
                let message = format!("the call could not see the file changes of this run: {error}");
                refuse(CallError::new("failed", message))
            }
        }
    }

    /// Passes a call to the backend. Long arguments are counted from now on, as those that the relay receives are.
    fn perform_call(&self, backend: &Arc<dyn CallBackend>, tool: String, arguments: String) -> CallFuture {
        let bytes = arguments.len() as u64;
        if bytes > SMALL_MESSAGE_BYTES {
            return match backend.hold(bytes) {
                Ok(counted) => Arc::clone(backend).perform(CallRequest::Call { tool, arguments, counted }),
                Err(error) => refuse(error),
            };
        }
        let short = ShortText::new(&self.short_bytes, arguments.len());
        let counted = if short.is_counted { backend.hold(bytes) } else { Ok(None) };
        match counted {
            Ok(counted) => {
                let answer =
                    Arc::clone(backend).perform(CallRequest::Call { tool, arguments, counted: None });
                // The values of a short text are not charged, so the text is counted until the call's end.
                Box::pin(async move {
                    let answer = answer.await;
                    drop((short, counted));
                    answer
                })
            }
            Err(error) => refuse(error),
        }
    }

    async fn ask(&self, question: CallRequest) -> Result<CallAnswer, CallError> {
        if let Some(error) = self.no_questions.get() {
            return Err(error.clone());
        }
        let answer = self.request(question).await;
        if let Err(error) = &answer
            && error.is_final
        {
            let _set_once = self.no_questions.set(error.clone());
        }
        answer
    }

    async fn list(&self) -> Result<Vec<CallableTool>, RequestRefusedError> {
        match self.ask(CallRequest::List).await {
            Ok(CallAnswer::Tools(tools)) => Ok(tools),
            // The contract has no error for this question, and an empty list would be a wrong answer.
            Err(error) if error.is_final => {
                Err(RequestRefusedError { request: "list", message: error.message })
            }
            // A run that may make no calls, and one whose server has ended, have an empty list.
            Ok(CallAnswer::Definition(_) | CallAnswer::Result(_)) | Err(_) => Ok(Vec::new()),
        }
    }

    /// Begins a call for the guest's `request`, which is `start` or `call`.
    async fn start(
        &mut self,
        request: &'static str,
        tool: String,
        arguments: String,
        files: &mut Files,
    ) -> Result<u32, RequestRefusedError> {
        if self.pending.len() >= MAX_OUTCOMES {
            let message = format!("{MAX_OUTCOMES} calls were started and not waited for");
            return Err(RequestRefusedError { request, message });
        }
        self.last = self.last.saturating_add(1);
        let mut answer = if let Some(error) = self.exhausted.get() {
            refuse(error.clone())
        } else if self.pending.len() >= MAX_PENDING {
            let message = format!("{MAX_PENDING} calls were started and not waited for: wait for them first");
            refuse(CallError::new("calls_exhausted", message))
        } else {
            self.request_call(tool, arguments, files)
        };
        let untaken_bytes = Arc::clone(&self.untaken_bytes);
        let exhausted = Arc::clone(&self.exhausted);
        let end = move |answer| {
            let outcome = expect_result(answer);
            if let Err(error) = &outcome
                && error.is_final
            {
                let _set_once = exhausted.set(error.clone());
            }
            count_untaken(outcome, &untaken_bytes)
        };
        // A refusal has no task: the CPU time of a guest that is refused again and again is that of its own thread.
        let call = match (&mut answer).now_or_never() {
            Some(answer) => Either::Left(ready(end(answer))),
            None => {
                let task = CallTask(spawn::spawn_run_task(async move { end(answer.await) }));
                // The call begins now, and not when the guest first waits for something.
                tokio::task::yield_now().await;
                Either::Right(task)
            }
        };
        self.pending.insert(self.last, call);
        Ok(self.last)
    }

    /// Waits for the first of these calls that ends, and takes its outcome.
    async fn wait(&mut self, calls: &[u32]) -> Result<(u32, Outcome), CallError> {
        if let Some(unknown) = calls.iter().find(|call| !self.pending.contains_key(call)) {
            let message =
                format!("no call {unknown} is pending: its outcome was taken, or it was not started");
            return Err(CallError::new("unknown_call", message));
        }
        if calls.is_empty() {
            return Err(CallError::new("unknown_call", "name at least one call to wait for"));
        }
        let (call, outcome) = std::future::poll_fn(|context| {
            for call in calls {
                let Some(pending) = self.pending.get_mut(call) else { continue };
                if let Poll::Ready(outcome) = Pin::new(pending).poll(context) {
                    return Poll::Ready((*call, outcome));
                }
            }
            Poll::Pending
        })
        .await;
        self.pending.remove(&call);
        self.untaken_bytes.fetch_sub(size(&outcome), Ordering::SeqCst);
        Ok((call, outcome))
    }
}

fn refuse(error: CallError) -> CallFuture {
    Box::pin(std::future::ready(Err(error)))
}

fn size(outcome: &Outcome) -> usize {
    outcome.as_ref().map_or(0, String::len)
}

/// Counts a result until it is taken. Too many untaken results become errors.
fn count_untaken(outcome: Outcome, untaken_bytes: &AtomicUsize) -> Outcome {
    let bytes = size(&outcome);
    if untaken_bytes.fetch_add(bytes, Ordering::SeqCst) + bytes <= MAX_UNTAKEN_BYTES {
        return outcome;
    }
    untaken_bytes.fetch_sub(bytes, Ordering::SeqCst);
    let message = format!(
        "the call succeeded, but its result and those that were not waited for are over {MAX_UNTAKEN_BYTES} \
         bytes: wait for earlier calls first, or ask the tool for less"
    );
    Err(CallError::new("limit_reached", message))
}

fn expect_result(answer: Result<CallAnswer, CallError>) -> Outcome {
    match answer? {
        CallAnswer::Result(text) => Ok(text),
        CallAnswer::Tools(_) | CallAnswer::Definition(_) => Err(unexpected_answer()),
    }
}

fn unexpected_answer() -> CallError {
    CallError::new("failed", "the executor sent an answer of an unexpected kind")
}

/// Ends a run that goes on with a request for whose refusal the contract has no error: it asks for the list of tools after
/// it has used up its questions, or starts calls and takes no outcomes.
#[derive(Debug, thiserror::Error)]
#[error("`{request}`: {message}")]
pub(super) struct RequestRefusedError {
    request: &'static str,
    message: String,
}

impl From<CallError> for ToolError {
    fn from(CallError { code, message, detail, is_final: _ }: CallError) -> Self {
        Self { code, message, detail }
    }
}

impl Host for StoreState {
    async fn list(&mut self) -> wasmtime::Result<Vec<Summary>> {
        let summary = |CallableTool { name, description }| Summary { name, description };
        Ok(self.calls.list().await?.into_iter().map(summary).collect())
    }

    async fn describe(&mut self, tool: String) -> wasmtime::Result<Result<Definition, ToolError>> {
        Ok(match self.calls.ask(CallRequest::Describe { tool }).await {
            Ok(CallAnswer::Definition(definition)) => {
                let ToolDefinition { name, description, arguments_schema, result_schema } = definition;
                Ok(Definition { name, description, arguments_schema, result_schema })
            }
            Ok(CallAnswer::Tools(_) | CallAnswer::Result(_)) => Err(unexpected_answer().into()),
            Err(error) => Err(error.into()),
        })
    }

    async fn call(&mut self, tool: String, arguments: String) -> wasmtime::Result<Result<String, ToolError>> {
        let call = self.calls.start("call", tool, arguments, &mut self.files).await?;
        let outcome = self.calls.wait(&[call]).await.and_then(|(_, outcome)| outcome);
        // Now, because what the guest reads from an open file does not wait.
        self.files.take_back_if_ended()?;
        Ok(outcome.map_err(ToolError::from))
    }

    async fn start(&mut self, tool: String, arguments: String) -> wasmtime::Result<u32> {
        Ok(self.calls.start("start", tool, arguments, &mut self.files).await?)
    }

    async fn wait(&mut self, calls: Vec<u32>) -> wasmtime::Result<Result<Finished, ToolError>> {
        let finished = self.calls.wait(&calls).await;
        self.files.take_back_if_ended()?;
        Ok(finished
            .map(|(call, outcome)| Finished { call, outcome: outcome.map_err(ToolError::from) })
            .map_err(ToolError::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers one question.
    struct OneQuestion(AtomicUsize);

    impl CallBackend for OneQuestion {
        fn perform(self: Arc<Self>, _: CallRequest) -> CallFuture {
            let answer = match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(CallAnswer::Tools(Vec::new())),
                _further => Err(CallError::exhausted("no more questions")),
            };
            Box::pin(std::future::ready(answer))
        }
    }

    #[tokio::test]
    async fn a_list_after_the_last_question_is_refused_like_a_description() {
        let backend = Arc::new(OneQuestion(AtomicUsize::new(0)));
        let calls = PendingCalls::new(Calls::new(Arc::clone(&backend) as Arc<dyn CallBackend>));
        assert!(calls.list().await.unwrap().is_empty());
        for _ in 0..3 {
            assert_eq!(calls.list().await.unwrap_err().to_string(), "`list`: no more questions");
        }
        let described = calls.ask(CallRequest::Describe { tool: "x".to_owned() }).await;
        assert_eq!(described.unwrap_err().code, "calls_exhausted");
        assert_eq!(backend.0.load(Ordering::SeqCst), 2, "further questions cost the server nothing");
        assert!(PendingCalls::new(Calls::default()).list().await.unwrap().is_empty());
    }

    /// Runs calls, and has no memory for long arguments.
    #[derive(Default)]
    struct NoMemory {
        asked: AtomicUsize,
        performed: AtomicUsize,
    }

    impl CallBackend for NoMemory {
        fn perform(self: Arc<Self>, _: CallRequest) -> CallFuture {
            self.performed.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::ready(Ok(CallAnswer::Result("1".to_owned()))))
        }

        fn hold(&self, _bytes: u64) -> Result<Option<CountedBytes>, CallError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            Err(CallError::new("busy", "no memory"))
        }
    }

    #[tokio::test]
    async fn arguments_that_no_call_may_have_are_never_counted() {
        let small = usize::try_from(SMALL_MESSAGE_BYTES).unwrap();
        for (bytes, code, asked, performed) in [
            (small, None, 0, 1),
            (small + 1, Some("busy"), 1, 0),
            (MAX_ARGUMENT_BYTES, Some("busy"), 1, 0),
            (MAX_ARGUMENT_BYTES + 1, Some("invalid_arguments"), 0, 0),
        ] {
            let backend = Arc::new(NoMemory::default());
            let mut calls = PendingCalls::new(Calls::new(Arc::clone(&backend) as Arc<dyn CallBackend>));
            let call =
                calls.start("call", "x".to_owned(), " ".repeat(bytes), &mut Files::Direct).await.unwrap();
            let outcome = calls.wait(&[call]).await.unwrap().1;
            assert_eq!(outcome.err().map(|error| error.code).as_deref(), code, "{bytes}");
            let counts = (backend.asked.load(Ordering::SeqCst), backend.performed.load(Ordering::SeqCst));
            assert_eq!(counts, (asked, performed), "{bytes}");
        }
        let mut none = PendingCalls::new(Calls::default());
        let call = none
            .start("call", "x".to_owned(), " ".repeat(MAX_ARGUMENT_BYTES + 1), &mut Files::Direct)
            .await
            .unwrap();
        assert_eq!(none.wait(&[call]).await.unwrap().1.unwrap_err().code, "not_allowed");
    }

    /// Never ends a call, and has no memory for counted arguments.
    struct Endless;

    impl CallBackend for Endless {
        fn perform(self: Arc<Self>, _: CallRequest) -> CallFuture {
            Box::pin(std::future::pending())
        }

        fn hold(&self, _bytes: u64) -> Result<Option<CountedBytes>, CallError> {
            Err(CallError::new("busy", "no memory"))
        }
    }

    #[tokio::test]
    async fn many_short_arguments_are_counted() {
        let mut calls = PendingCalls::new(Calls::new(Arc::new(Endless)));
        let short = usize::try_from(SMALL_MESSAGE_BYTES).unwrap();
        for _ in 0..MAX_UNCOUNTED_BYTES / short {
            calls.start("start", "x".to_owned(), " ".repeat(short), &mut Files::Direct).await.unwrap();
        }
        let counted = calls.start("start", "x".to_owned(), " ".to_owned(), &mut Files::Direct).await.unwrap();
        assert_eq!(calls.wait(&[counted]).await.unwrap().1.unwrap_err().code, "busy");
        // The end of a call makes room.
        calls.pending.remove(&1);
        tokio::task::yield_now().await;
        let free = calls.start("start", "x".to_owned(), " ".to_owned(), &mut Files::Direct).await.unwrap();
        assert!(calls.wait(&[free]).now_or_never().is_none(), "it has begun");
    }

    #[tokio::test]
    async fn a_number_of_an_earlier_turn_names_no_call() {
        let backend = Arc::new(Endless) as Arc<dyn CallBackend>;
        let mut calls = PendingCalls::new(Calls::new(Arc::clone(&backend)));
        let files = &mut Files::Direct;
        assert_eq!(calls.start("start", "x".to_owned(), "{}".to_owned(), files).await.unwrap(), 1);
        calls.end_turn();
        assert!(!calls.is_on());
        calls.begin_turn(Calls::new(backend));
        assert_eq!(calls.wait(&[1]).await.unwrap_err().code, "unknown_call");
        assert_eq!(calls.start("start", "x".to_owned(), "{}".to_owned(), files).await.unwrap(), 2);
        assert_eq!(calls.wait(&[1]).await.unwrap_err().code, "unknown_call");
    }

    #[tokio::test]
    async fn a_run_that_takes_no_outcomes_ends() {
        let mut calls = PendingCalls::new(Calls::default());
        for number in 1..=20_000 {
            assert_eq!(
                calls.start("start", "x".to_owned(), "{}".to_owned(), &mut Files::Direct).await.unwrap(),
                number
            );
        }
        for (number, code) in [(10_000, "not_allowed"), (10_001, "calls_exhausted")] {
            let outcome = calls.wait(&[number]).await.unwrap();
            assert_eq!((outcome.0, outcome.1.unwrap_err().code.as_str()), (number, code));
        }
        for number in [20_001, 20_002] {
            assert_eq!(
                calls.start("start", "x".to_owned(), "{}".to_owned(), &mut Files::Direct).await.unwrap(),
                number
            );
        }
        for request in ["start", "call"] {
            let refused =
                calls.start(request, "x".to_owned(), "{}".to_owned(), &mut Files::Direct).await.unwrap_err();
            let message = format!("`{request}`: 20000 calls were started and not waited for");
            assert_eq!(refused.to_string(), message);
        }
        assert_eq!(calls.pending.len(), 20_000);
    }
}
