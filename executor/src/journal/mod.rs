//! What happened to each intent, and which reports the governor does not have yet: on disk, so that a
//! crash loses nothing and repeats nothing.
//!
//! ```text
//! claim (in memory) ─▶ started (on disk, before the guest begins) ─▶ finished (receipt and outbox
//!   │                       └─▶ released: refused before it began       in one transaction)
//!   ├─ same content: the one record's receipt, now or when it is there
//!   └─ other content: conflict
//! ```
//! What has started without having finished when the journal is opened gets the receipt that it left
//! as its will: `ABORTED`. It is never started again. Only what is open is held in memory.

pub mod chain;
pub mod history;
mod outbox;
mod store;
mod tasks;
mod writer;

pub use outbox::Due;
pub use store::OpenError;
pub use tasks::{KeptTask, ListedTask, MOST_KEPT, MOST_KEPT_BYTES, Pace};

use crate::call::Call;
use crate::fault::BlockedBy;
use crate::ident::{AgentDid, IntentId, ProofId, ToolName};
use crate::metrics::JournalMetrics;
use crate::outcome::Receipt;
use crate::verdict::Verdict;
use chain::Head;
use outbox::Outbox;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use store::{Began, Finish, Found, Reader, Refusal, Run, Start, Store, Undelivered, Will};
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};
use writer::Entry;

/// A receipt up to this many bytes of JSON is read and written where it is needed; a longer one would
/// keep others waiting.
const AT_ONCE_BYTES: usize = 256 << 10;

/// Where an intent is.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// It waits for a slot.
    Queued,
    /// Its guest runs.
    Running,
    /// It is over.
    Finished(Arc<Receipt>),
    /// It is over, and its receipt was pruned.
    Forgotten,
    /// It was refused before it ran.
    Released,
}

/// An intent that is known already.
#[derive(Debug)]
pub enum Known {
    /// With the same content: where it is, and the governor's verdict when the executor asked for it.
    Same(Followed, Option<Arc<Verdict>>),
    /// With other content.
    Conflict,
}

/// A known intent, to be followed to its end.
#[derive(Debug)]
pub enum Followed {
    /// It is open in this process.
    Open(watch::Receiver<Stage>),
    /// It is over.
    Over(Stage),
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claim {
    /// The intent is not open; whoever claimed it has to finish or release it.
    New,
    /// It is open already.
    Known(Known),
}

/// The answer to the news that a run is about to begin.
#[derive(Debug)]
pub enum Beginning {
    /// It may: that it has started is on the disk.
    New,
    /// It has started before, and may not again. The claim is released.
    Known(Known),
    /// Another intent has started under its proof. The claim is released.
    Replayed,
}

/// Why something was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Too many reports wait for the governor.
    #[error("too many reports wait for the governor, which does not acknowledge them")]
    Backlog,
    /// There is no room, or the file is locked; it may work later. What the system said is for the log.
    #[error("the journal has no room for another run on its disk, or another program holds its file")]
    NoRoom,
    /// What is on the disk is not known. The process has to end.
    #[error("the journal is broken: {0}")]
    Broken(Arc<str>),
}

/// What is open in this process.
#[derive(Debug)]
struct Open {
    agent: AgentDid,
    content: [u8; 32],
    verdict: Option<Arc<Verdict>>,
    /// Once that it has started is on the disk.
    run: Option<Run>,
    stage: watch::Sender<Stage>,
    keep_until: OffsetDateTime,
    /// When the latest verdict expires that came for it since, if that is later.
    extended: Option<OffsetDateTime>,
}

type AllOpen = Arc<Mutex<HashMap<IntentId, Open>>>;

/// A run that is about to begin.
#[derive(Debug)]
pub struct Intended<'a> {
    /// The call.
    pub call: &'a Call,
    /// Until when the intent and its proof have to be known as used.
    pub keep_until: OffsetDateTime,
    /// The verdict's proof, which is good for one intent.
    pub proof: Option<&'a ProofId>,
    /// The receipt if the process ends before it can write another.
    pub will: &'a Receipt,
    /// Its task, when that is kept nowhere else yet.
    pub task: Option<&'a KeptTask>,
}

/// Who asked for what, of a call that is gone.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
}

impl Asked {
    /// Of a call.
    #[must_use]
    pub fn of(call: &Call) -> Self {
        Self { intent: call.intent, agent: call.agent.clone(), tool: call.tool.clone() }
    }
}

/// What was found when the journal was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Runs that were cut off, and are `ABORTED` now.
    pub aborted: usize,
    /// Reports that still go to the governor, those of the cut off runs among them.
    pub undelivered: usize,
}

/// The journal.
pub struct Journal {
    open: AllOpen,
    place: Place,
    outbox: Arc<Outbox>,
    most_undelivered: usize,
    head: watch::Receiver<Head>,
    broken: watch::Receiver<Option<Arc<str>>>,
    waiting: Mutex<Vec<String>>,
    metrics: JournalMetrics,
}

/// Where it is kept.
enum Place {
    /// In a file, which one thread writes.
    Disk { path: PathBuf, reader: Mutex<Reader>, entries: mpsc::Sender<Entry> },
    /// Nowhere; with the number of what was said to it.
    Memory(AtomicU64),
}

impl Journal {
    /// Opens or makes the journal at `path`, and writes the receipts of what was cut off. Admits
    /// nothing while `most_undelivered` reports wait.
    ///
    /// # Ambient Authority
    /// Makes the file, its folder and a lock beside it, for this user alone.
    ///
    /// # Errors
    /// [`OpenError`] when it is in use, is no journal, or cannot be read or written.
    pub fn open(
        path: &Path,
        most_undelivered: usize,
        now: OffsetDateTime,
    ) -> Result<(Self, Recovered), OpenError> {
        let failed = |reason: String| OpenError::Failed { path: path.to_owned(), reason };
        let mut store = Store::open(path)?;
        let aborted = recover(&mut store, micros(now)).map_err(failed)?;
        let left = store.undelivered().map_err(|error| failed(error.to_string()))?;
        let left = left.into_iter().map(|Undelivered { number, run, agent }| {
            AgentDid::parse(&agent).map(|agent| (number, run, agent))
        });
        let left = left.collect::<Result<Vec<_>, crate::ident::IdentError>>();
        let left = left.map_err(|error| failed(error.to_string()))?;
        let held = store.waiting().map_err(|error| failed(error.to_string()))?;
        let recovered = Recovered { aborted, undelivered: left.len() };
        let (entries, to_write) = mpsc::channel();
        let place = Place::Disk { path: path.to_owned(), reader: Mutex::new(Reader::open(path)?), entries };
        let (head_is, head) = watch::channel(store.head());
        let (break_it, broken) = watch::channel(None);
        let journal = Self {
            open: AllOpen::default(),
            place,
            outbox: Arc::new(Outbox::new(left)),
            most_undelivered,
            head,
            broken,
            waiting: Mutex::new(held),
            metrics: JournalMetrics::default(),
        };
        let (metrics, over) = (journal.metrics.clone(), journal.over());
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer::write(store, &to_write, &head_is, &break_it, &metrics, over))
            .map_err(|error| failed(error.to_string()))?;
        Ok((journal, recovered))
    }

    /// A journal that knows what is open and keeps nothing of what is over: for a single call, about which
    /// nobody asks again.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            open: AllOpen::default(),
            place: Place::Memory(AtomicU64::new(1)),
            outbox: Arc::new(Outbox::new([])),
            most_undelivered: usize::MAX,
            head: watch::channel(Head::START).1,
            broken: watch::channel(None).1,
            waiting: Mutex::default(),
            metrics: JournalMetrics::default(),
        }
    }

    /// What is done with a run that is over once its receipt has a number.
    fn over(&self) -> impl Fn(u64, &Finish) + Send + use<> {
        let (open, outbox) = (Arc::clone(&self.open), Arc::clone(&self.outbox));
        move |number, finish| {
            outbox.push(number, finish.run, &finish.receipt);
            close(&open, finish.receipt.intent, Stage::Finished(Arc::clone(&finish.receipt)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the disk; without one, nothing is known.
    fn read<T: Default>(
        &self,
        question: impl FnOnce(&Reader) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let Place::Disk { reader, .. } = &self.place else { return Ok(T::default()) };
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        question(&reader).map_err(|error| JournalError::Broken(error.to_string().into()))
    }

    /// Says something to the writer, whose answer can be waited for.
    fn tell<T>(&self, entry: impl FnOnce(oneshot::Sender<T>) -> Entry) -> Told<T> {
        let (reply, answer) = oneshot::channel();
        self.say(entry(reply));
        Told { answer, broken: self.broken.clone() }
    }

    /// Says something to the writer, and waits for its answer.
    async fn ask<T>(&self, entry: impl FnOnce(oneshot::Sender<T>) -> Entry) -> Result<T, JournalError> {
        self.tell(entry).answer().await
    }

    /// Says something to the writer that nobody waits for. When the writer is gone, the process is
    /// about to end.
    fn say(&self, entry: Entry) {
        match &self.place {
            Place::Disk { entries, .. } => drop(entries.send(entry)),
            Place::Memory(said) => writer::forget(entry, said.fetch_add(1, Relaxed), &self.over()),
        }
    }

    /// Whether the intent is known: asked before a governor is. A verdict that came with the call
    /// keeps the intent known until it has expired as well.
    ///
    /// # Errors
    /// [`JournalError::Broken`] when the journal cannot be read.
    pub async fn find(
        &self,
        call: &Call,
        expires_at: Option<OffsetDateTime>,
    ) -> Result<Option<Known>, JournalError> {
        let content = content(call);
        if let Some(open) = self.lock().get_mut(&call.intent) {
            expires_at.into_iter().for_each(|until| open.extend(until));
            return Ok(Some(open.known(content)));
        }
        let Some(found) = self.read(|reader| reader.find(call.intent))? else { return Ok(None) };
        let Found { content: before, keep_until, .. } = &found;
        if *before != content {
            return Ok(Some(Known::Conflict));
        }
        if let Some(later) = expires_at.map(micros).filter(|until| until > keep_until) {
            self.say(Entry::Keep(call.intent, later));
        }
        let verdict = found.verdict()?;
        let over = self.ended(&found).await?;
        Ok(Some(Known::Same(Followed::Over(over), verdict.map(Arc::new))))
    }

    /// Where an intent is that is not open in this process.
    async fn ended(&self, found: &Found) -> Result<Stage, JournalError> {
        // Without a receipt, it started in a process whose journal was opened by this one, which gives
        // every such intent a receipt. So this cannot be, and is not taken for an end.
        let Some(number) = found.receipt else {
            return Err(JournalError::Broken("an intent has neither ended nor is it open".into()));
        };
        Ok(match self.receipt(number).await? {
            Some(receipt) => Stage::Finished(receipt),
            None => Stage::Forgotten,
        })
    }

    /// The receipt with a number; `None` when it was pruned.
    async fn receipt(&self, number: u64) -> Result<Option<Arc<Receipt>>, JournalError> {
        let Some(body) = self.read(|reader| reader.body(number))? else { return Ok(None) };
        let long = body.len() > AT_ONCE_BYTES;
        let receipt = aside(long, move || serde_json::from_slice(&body)).await?;
        Ok(Some(Arc::new(receipt)))
    }

    /// Claims an intent in this process.
    ///
    /// # Errors
    /// [`JournalError::Backlog`] while too many reports wait, [`JournalError::Broken`].
    pub fn claim(
        &self,
        call: &Call,
        keep_until: OffsetDateTime,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<Claim, JournalError> {
        let content = content(call);
        let mut all = self.lock();
        if let Some(open) = all.get_mut(&call.intent) {
            open.extend(keep_until);
            return Ok(Claim::Known(open.known(content)));
        }
        if let Some(reason) = self.broken.borrow().clone() {
            return Err(JournalError::Broken(reason));
        }
        // What is open will need a place as well.
        if self.outbox.undelivered().saturating_add(all.len()) >= self.most_undelivered {
            return Err(JournalError::Backlog);
        }
        let (stage, _) = watch::channel(Stage::Queued);
        all.insert(
            call.intent,
            Open {
                agent: call.agent.clone(),
                content,
                verdict,
                run: None,
                stage,
                keep_until,
                extended: None,
            },
        );
        Ok(Claim::New)
    }

    /// Puts on the disk that a claimed intent starts. Without `New`, its guest must not begin.
    ///
    /// # Errors
    /// [`JournalError`]; the claim is released.
    pub async fn started(
        &self,
        intended: Intended<'_>,
        now: OffsetDateTime,
    ) -> Result<Beginning, JournalError> {
        let Intended { call, keep_until, proof, will, task } = intended;
        let verdict = self.lock().get(&call.intent).and_then(|open| open.verdict.clone());
        let start = Start {
            intent: call.intent,
            agent: call.agent.clone(),
            content: content(call),
            // Neither part has white space.
            proof: proof.map(|proof| format!("{} {}", proof.issuer(), proof.identifier())),
            keep_until: micros(keep_until),
            started: micros(now),
            verdict: verdict.map(|verdict| text(&*verdict)).transpose()?,
            will: text(will)?,
            task: task.map(text).transpose()?,
        };
        let began = self.ask(|reply| Entry::Start(Box::new(start), reply)).await;
        let began = match began {
            Ok(Ok(began)) => began,
            Ok(Err(_no_room)) => {
                close(&self.open, call.intent, Stage::Released);
                return Err(JournalError::NoRoom);
            }
            Err(broken) => {
                close(&self.open, call.intent, Stage::Released);
                return Err(broken);
            }
        };
        match began {
            Began::New(run) => {
                if let Some(open) = self.lock().get_mut(&call.intent) {
                    open.run = Some(run);
                    open.stage.send_replace(Stage::Running);
                }
                return Ok(Beginning::New);
            }
            Began::Known | Began::Replayed => close(&self.open, call.intent, Stage::Released),
        }
        if began == Began::Replayed {
            return Ok(Beginning::Replayed);
        }
        let gone = || JournalError::Broken("an intent was there and is gone".into());
        Ok(Beginning::Known(self.find(call, Some(keep_until)).await?.ok_or_else(gone)?))
    }

    /// Puts a receipt on the disk, its report in the outbox, and with them what became of its task: when this
    /// returns, all are for certain. While there is no room, it waits.
    ///
    /// # Errors
    /// [`JournalError::Broken`]: it is not known whether it is on the disk.
    pub async fn finished(
        &self,
        receipt: Arc<Receipt>,
        task: Option<KeptTask>,
        now: OffsetDateTime,
    ) -> Result<(), JournalError> {
        let long =
            usize::try_from(receipt.outcome.metrics.output_bytes).is_ok_and(|most| most > AT_ONCE_BYTES);
        let written = Arc::clone(&receipt);
        let body = aside(long, move || serde_json::to_string(&*written)).await?.into();
        let intent = receipt.intent;
        let open = self.lock().get(&intent).and_then(|open| Some((open.run?, open.extended)));
        let Some((run, extended)) = open else {
            return Err(JournalError::Broken("an intent has finished that has not started".into()));
        };
        let finish = Finish { run, receipt, body, task, ended: micros(now) };
        self.ask(|reply| Entry::Finish(Box::new(finish), reply)).await?;
        if let Some(until) = extended {
            self.say(Entry::Keep(intent, micros(until)));
        }
        Ok(())
    }

    /// Gives up a claim whose guest has not begun: the intent may be claimed again.
    ///
    /// # Errors
    /// [`JournalError::Broken`].
    pub async fn released(&self, intent: IntentId) -> Result<(), JournalError> {
        let run = self.lock().get(&intent).and_then(|open| open.run);
        let released = match run {
            Some(run) => self.ask(|reply| Entry::Release(run, reply)).await,
            None => Ok(()),
        };
        close(&self.open, intent, Stage::Released);
        released
    }

    /// Where an intent is, and whose it is.
    ///
    /// # Errors
    /// [`JournalError::Broken`] when the journal cannot be read.
    pub async fn stage(&self, intent: IntentId) -> Result<Option<(AgentDid, Stage)>, JournalError> {
        if let Some(open) = self.lock().get(&intent) {
            let stage = open.stage.borrow().clone();
            return Ok(Some((open.agent.clone(), stage)));
        }
        let Some(found) = self.read(|reader| reader.find(intent))? else { return Ok(None) };
        let agent = AgentDid::parse(&found.agent);
        let agent = agent.map_err(|error| JournalError::Broken(error.to_string().into()))?;
        Ok(Some((agent, self.ended(&found).await?)))
    }

    /// What the governor said of an intent that has started, when the executor asked it.
    ///
    /// # Errors
    /// [`JournalError::Broken`] when the journal cannot be read.
    pub fn verdict(&self, intent: IntentId) -> Result<Option<Verdict>, JournalError> {
        let found = self.read(|reader| reader.find(intent))?;
        found.map_or(Ok(None), |found| found.verdict())
    }

    /// Keeps an escalated intent, as whoever holds it writes it down, until it starts or is let go, also
    /// across restarts. What is held and let go is written in the order of these calls, however late their
    /// answers are waited for. `false` for an intent that has started meanwhile, which waits for nobody.
    ///
    /// # Errors
    /// [`JournalError`]; then it is not kept.
    pub fn hold(
        &self,
        intent: IntentId,
        text: String,
    ) -> impl Future<Output = Result<bool, JournalError>> + use<> {
        let held = self.tell(|reply| Entry::Hold(intent, text, reply));
        async { held.answer().await?.map_err(|_no_room| JournalError::NoRoom) }
    }

    /// Lets escalated intents go: when the answer is there, none of them waits any more after a crash.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: it is not on the disk yet, and is tried on; [`JournalError::Broken`].
    pub fn let_go(&self, intents: Vec<IntentId>) -> impl Future<Output = Result<(), JournalError>> + use<> {
        let gone = self.tell(|reply| Entry::LetGo(intents, Some(reply)));
        async { gone.answer().await?.map_err(|_no_room| JournalError::NoRoom) }
    }

    /// The escalated intents that an earlier process held. They are given once.
    pub fn held(&self) -> Vec<String> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps, among the latest, that a call was not run. Nobody waits for it, and a full disk drops it.
    pub fn refused(&self, asked: &Asked, blocked_by: BlockedBy, message: &str, now: OffsetDateTime) {
        let Asked { intent, agent, tool } = asked;
        self.say(Entry::Refuse(Box::new(Refusal {
            refused: micros(now),
            intent: *intent,
            agent: agent.clone(),
            tool: tool.clone(),
            blocked_by: blocked_by.as_str(),
            message: message.to_owned(),
        })));
    }

    /// An intent that is open in this process, to be followed to its end.
    #[must_use]
    pub fn follow(&self, intent: IntentId) -> Option<watch::Receiver<Stage>> {
        self.lock().get(&intent).map(|open| open.stage.subscribe())
    }

    /// The next report to deliver, with its receipt; waits until there is one.
    ///
    /// # Errors
    /// [`JournalError::Broken`] when the journal cannot be read.
    pub async fn next_report(&self) -> Result<(Due, Arc<Receipt>), JournalError> {
        let mut due = self.outbox.next().await;
        let receipt = match due.at_hand.take() {
            Some(receipt) => receipt,
            None => {
                let gone = || JournalError::Broken("a report is gone that was not delivered".into());
                self.receipt(due.number).await?.ok_or_else(gone)?
            }
        };
        Ok((due, receipt))
    }

    /// The governor has a report.
    pub fn delivered(&self, due: &Due) {
        self.say(Entry::Delivered(due.run));
        self.outbox.delivered(due);
    }

    /// The governor refused a report, or could not be reached. After a pause it has to be tried
    /// [`Self::again`].
    #[must_use]
    pub fn failed(&self, due: Due, refused: bool) -> Due {
        self.outbox.failed(due, refused)
    }

    /// It is a report's turn again.
    pub fn again(&self, due: Due) {
        self.outbox.again(due);
    }

    /// How many reports the governor does not have yet.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        self.outbox.undelivered()
    }

    /// When the oldest run ended whose report the governor does not have yet.
    ///
    /// # Errors
    /// [`JournalError::Broken`] when the journal cannot be read.
    pub fn oldest_undelivered(&self) -> Result<Option<OffsetDateTime>, JournalError> {
        // What was delivered just now may be on the disk yet.
        let oldest = if self.undelivered() > 0 { self.read(Reader::oldest_undelivered)? } else { None };
        let at = |micros: i64| OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000);
        Ok(oldest.and_then(|micros| at(micros).ok()))
    }

    /// How many bytes the journal's files have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Place::Disk { path, .. } = &self.place else { return 0 };
        store::files(path).iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    }

    /// What the journal counts.
    #[must_use]
    pub fn metrics(&self) -> &JournalMetrics {
        &self.metrics
    }

    /// Waits until the governor has every report.
    pub async fn all_delivered(&self) {
        self.outbox.all_delivered().await;
    }

    /// How far the chain of receipts goes.
    #[must_use]
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Waits until everything said before is on the disk.
    ///
    /// # Errors
    /// [`JournalError::Broken`].
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.ask(Entry::Flush).await
    }

    /// Waits until the journal breaks, and says how. The process has to end then.
    pub async fn broken(&self) -> Arc<str> {
        let mut broken = self.broken.clone();
        let reason = match broken.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_its_writer_is_gone) => None,
        };
        reason.unwrap_or_else(|| "its writer is gone".into())
    }
}

/// Something that was said to the writer.
struct Told<T> {
    answer: oneshot::Receiver<T>,
    broken: watch::Receiver<Option<Arc<str>>>,
}

impl<T> Told<T> {
    async fn answer(self) -> Result<T, JournalError> {
        self.answer.await.map_err(|_gone| {
            let reason = self.broken.borrow().clone();
            JournalError::Broken(reason.unwrap_or_else(|| "its writer is gone".into()))
        })
    }
}

impl Open {
    fn known(&self, content: [u8; 32]) -> Known {
        if self.content == content {
            Known::Same(Followed::Open(self.stage.subscribe()), self.verdict.clone())
        } else {
            Known::Conflict
        }
    }

    /// Another verdict was seen, which expires then.
    fn extend(&mut self, until: OffsetDateTime) {
        self.extended = self.extended.max((until > self.keep_until).then_some(until));
    }
}

impl Found {
    fn verdict(&self) -> Result<Option<Verdict>, JournalError> {
        let verdict = self.verdict.as_deref().map(serde_json::from_str).transpose();
        verdict.map_err(|error| JournalError::Broken(error.to_string().into()))
    }
}

/// An intent is no longer open, and whoever waits for it is told why.
fn close(all: &AllOpen, intent: IntentId, stage: Stage) {
    let open = all.lock().unwrap_or_else(PoisonError::into_inner).remove(&intent);
    if let Some(open) = open {
        open.stage.send_replace(stage);
    }
}

/// Writes what was cut off into receipts, keeps the tasks that it left, and gives its number.
fn recover(store: &mut Store, now: i64) -> Result<usize, String> {
    let wills = store.wills().map_err(|error| error.to_string())?;
    if wills.is_empty() {
        return Ok(0);
    }
    let finish = |Will { run, receipt: body, task }| {
        let receipt = Arc::new(serde_json::from_str::<Receipt>(&body)?);
        let task = task.map(|task| serde_json::from_str(&task)).transpose()?;
        Ok(Finish { run, receipt, body: body.into(), task, ended: now })
    };
    let finishes = wills.into_iter().map(finish).collect::<serde_json::Result<Vec<_>>>();
    let finishes = finishes.map_err(|error| error.to_string())?;
    store
        .commit(|batch| finishes.iter().try_for_each(|finish| batch.finish(finish).map(drop)))
        .map_err(|trouble| trouble.to_string())?;
    Ok(finishes.len())
}

/// Turns something into JSON or back, on another thread when it is long.
async fn aside<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> serde_json::Result<T> + Send + 'static,
) -> Result<T, JournalError> {
    let broken = |error: String| JournalError::Broken(error.into());
    let done = if long {
        tokio::task::spawn_blocking(work).await.map_err(|error| broken(error.to_string()))?
    } else {
        work()
    };
    done.map_err(|error| broken(error.to_string()))
}

fn text(value: &impl serde::Serialize) -> Result<String, JournalError> {
    serde_json::to_string(value).map_err(|error| JournalError::Broken(error.to_string().into()))
}

/// Microseconds since 1970.
fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// What makes two calls the same: agent, tool and arguments. Keys are hashed in order of their
/// names, so that the order in which they were sent does not count.
fn content(call: &Call) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [call.agent.as_str(), call.tool.as_str()] {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hash_object(&call.arguments, &mut hasher);
    hasher.finalize().into()
}

fn hash_object(object: &serde_json::Map<String, serde_json::Value>, hasher: &mut Sha256) {
    let mut entries = object.iter().collect::<Vec<_>>();
    entries.sort_unstable_by_key(|(key, _)| *key);
    hasher.update(b"{");
    for (key, value) in entries {
        hasher.update(key.len().to_le_bytes());
        hasher.update(key);
        hash_value(value, hasher);
    }
    hasher.update(b"}");
}

fn hash_value(value: &serde_json::Value, hasher: &mut Sha256) {
    use serde_json::Value;
    match value {
        Value::Object(object) => hash_object(object, hasher),
        Value::Array(items) => {
            hasher.update(b"[");
            items.iter().for_each(|item| hash_value(item, hasher));
            hasher.update(b"]");
        }
        Value::String(text) => {
            hasher.update(b"\"");
            hasher.update(text.len().to_le_bytes());
            hasher.update(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            hasher.update(b" ");
            hasher.update(value.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
