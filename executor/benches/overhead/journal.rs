//! (d): what the journal costs, in one run: the built binary with its journal on the disk, with either durability, and
//! on a RAM disk, and the same executor with a journal that writes nothing; what a start with a long one takes; and what
//! an append takes while the oldest records are removed.

use super::doors::{Server, configure_durability, configure_with, install, over_http, request};
use super::{HELLO, median, micros, without};
use a2g_journal::history::{Filter, History, HistoryError, ReceiptEntry};
use a2g_journal::{
    ClaimResult, Journal, JournalOptions, Reporting, Retention, RunEffects, StartRequest, StartResult,
};
use a2g_types::durability::Durability;
use a2g_types::outcome::Receipt;
use a2g_wire::a2g::decode;
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// The number of measurements of each of the three, in turn.
const TURNS: usize = 3;
const FSYNC_COUNT: usize = 300;
const PAGE_BYTES: usize = 4096;
pub(crate) const RAM_DISK: &str = "/dev/shm";

/// The measurements of each turn: calls a second, and the median of one call.
type Turns = Vec<(f64, Duration)>;

pub(crate) fn measure(target: &Path, data: &Path) {
    let binary = crate::executor();
    // Beside what is built, because the system's temporary folder may be a RAM disk.
    let folder = tempfile::tempdir_in(target).unwrap();
    let in_ram = tempfile::tempdir_in(RAM_DISK).ok();
    install(&binary, folder.path(), data, &[("hello", HELLO)]);
    let catalogue = folder.path().join("catalogue");
    let journal = folder.path().join("journal.db");
    let started = |journal: &Path, durability: Durability| {
        configure_durability(folder.path(), data, "inline", journal, durability);
        Server::start(&binary, folder.path(), &catalogue)
    };
    let less = folder.path().join("less.db");
    println!("{:<52} {:>10} {:>12}", "(d) the journal: inline, hello, HTTP", "a second", "median");
    let mut receipts = 0;
    let [sixteen, one] = [16, 1].map(|clients| {
        let [mut none, mut ram, mut crash, mut disk] = [(); 4].map(|()| Turns::new());
        for _ in 0..TURNS {
            configure_with(folder.path(), data, "inline", &journal);
            let server = Server::spawn(&mut without::command(folder.path()));
            none.push(over_http(&server.address, clients));
            drop(server);
            if let Some(in_ram) = &in_ram {
                let server = started(&in_ram.path().join("journal.db"), Durability::PowerLoss);
                ram.push(over_http(&server.address, clients));
            }
            crash.push(over_http(&started(&less, Durability::ProcessCrash).address, clients));
            disk.push(over_http(&started(&journal, Durability::PowerLoss).address, clients));
            receipts += clients * super::doors::FROM_EACH_CLIENT;
        }
        let row = |what: &str, turns: &mut Turns| {
            let (per_second, half) = median_turn(turns);
            println!(
                "{:<52} {per_second:>10.0} {:>9.1} µs",
                format!("{what}, clients: {clients}"),
                micros(half)
            );
            (per_second, half)
        };
        let none = row("without a journal", &mut none);
        if in_ram.is_some() {
            row("with the journal on a RAM disk", &mut ram);
        }
        row("on the disk, durability process-crash", &mut crash);
        (none, row("on the disk, durability power-loss", &mut disk))
    });
    let over = measure_fdatasync(folder.path(), true);
    let more = measure_fdatasync(folder.path(), false);
    println!("\n{:<52} {:>23.1} µs", "fdatasync of a page that is overwritten", micros(over));
    println!("{:<52} {:>23.1} µs", "fdatasync of a page that is appended", micros(more));
    let receipt = read_first_receipt(&journal).parse_receipt().unwrap();
    for durability in [Durability::PowerLoss, Durability::ProcessCrash] {
        let unloaded = measure_unloaded(
            &folder.path().join(format!("{}.db", durability.as_str())),
            &receipt,
            durability,
        );
        let what = format!("the journal alone, {}: a start, then an end", durability.as_str());
        println!("{what:<52} {:>23.1} µs", micros(unloaded));
    }
    let ((without, _), (with, _)) = sixteen;
    println!("\nFrom 16 clients, {:.0} % of the calls without a journal are left.", 100.0 * with / without);
    let ((_, without), (_, with)) = one;
    let longer = with.saturating_sub(without);
    println!(
        "For one client a call takes {:.0} µs longer: {:.1} fdatasyncs of an overwritten page, {:.1} of an appended one.",
        micros(longer),
        longer.as_secs_f64() / over.as_secs_f64(),
        longer.as_secs_f64() / more.as_secs_f64()
    );
    println!(
        "Medians of {TURNS} turns. Clients and server share this machine. What is called \"without\" is the"
    );
    println!(
        "same executor behind the same door, whose journal is in memory, as that of `a2g-executor run`."
    );
    let verify = Instant::now();
    let mut command = Command::new(&binary);
    let verified = command.args(["journal", "verify", "--journal"]).arg(&journal).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let each = receipts as f64 / verify.elapsed().as_secs_f64();
    println!("`journal verify` read {receipts} receipts, {each:.0} a second with the start of its process.");
    let long = folder.path().join("long.db");
    measure_long_journal(&long, &receipt);
    measure_pruning(&long, &receipt);
}

/// Records of the long journal, of which half are receipts.
const LONG_JOURNAL_RECORDS: usize = 1_000_000;
/// Receipts at its beginning that are older than [`KEPT_FOR`].
const EXPIRED_RECEIPTS: usize = 300_000;
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// The maximum time of an append while records are removed.
const PRUNING_GOAL: Duration = Duration::from_millis(50);
/// The maximum time until the expired receipts are removed.
const MAX_PRUNING: Duration = Duration::from_secs(1800);

/// The time that a start with a long journal takes.
fn measure_long_journal(path: &Path, like: &Receipt) {
    const AT_ONCE: usize = 400;
    let now = OffsetDateTime::now_utc();
    let options = JournalOptions { durability: Durability::ProcessCrash, ..JournalOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (journal, _) = Journal::open(path, usize::MAX, options, now).unwrap();
        // A claim and a receipt each, and one record for those that are delivered together.
        for turn in 0..LONG_JOURNAL_RECORDS / (2 * AT_ONCE) {
            // Verdicts are forgotten a day after they have expired.
            let at = if turn * AT_ONCE < EXPIRED_RECEIPTS { now - 2 * KEPT_FOR } else { now };
            let runs = (0..AT_ONCE).map(|_| run(&journal, like, at));
            futures_util::future::join_all(runs).await;
            while journal.deliveries.undelivered_count() > 0 {
                journal.deliveries.mark_delivered(&journal.deliveries.next_report().await.unwrap().0);
            }
        }
        journal.flush().await.unwrap();
    });
    let opened = || {
        let began = Instant::now();
        let (journal, _) = Journal::open(path, usize::MAX, JournalOptions::default(), now).unwrap();
        let took = began.elapsed();
        drop(journal);
        took
    };
    // The writer of the one before ends a moment after it was dropped.
    let mut times = Vec::new();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_secs(2));
        times.push(opened());
    }
    let bytes = path.metadata().unwrap().len() >> 20;
    let took = micros(median(&mut times)) / 1000.0;
    println!(
        "A journal of {LONG_JOURNAL_RECORDS} records ({bytes} MB) was opened, and its end checked, within {took:.0} ms."
    );
}

/// The time that an append takes while automatic pruning removes the expired receipts of the long journal in slices.
fn measure_pruning(path: &Path, like: &Receipt) {
    const CALLS_BETWEEN_LOOKS: usize = 100;
    const PAUSE: Duration = Duration::from_millis(5);
    // The writer of the one before ends a moment after it was dropped.
    std::thread::sleep(Duration::from_secs(2));
    let now = OffsetDateTime::now_utc();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut appends = runtime.block_on(async {
        let (journal, _) = Journal::open(path, usize::MAX, JournalOptions::default(), now).unwrap();
        journal.prune_regularly(Retention { max_age: Some(KEPT_FOR), max_bytes: None }).unwrap();
        let opened = Instant::now();
        let first_receipt = || {
            assert!(opened.elapsed() < MAX_PRUNING, "the receipts are not removed");
            usize::try_from(read_first_receipt(path).number).unwrap()
        };
        // Nothing is removed before the whole journal was checked.
        while first_receipt() == 1 {
            std::thread::sleep(PAUSE);
        }
        let mut times = Vec::new();
        while first_receipt() <= EXPIRED_RECEIPTS {
            for _ in 0..CALLS_BETWEEN_LOOKS {
                times.extend(run(&journal, like, now).await);
                journal.deliveries.mark_delivered(&journal.deliveries.next_report().await.unwrap().0);
                std::thread::sleep(PAUSE);
            }
        }
        times
    });
    let half = micros(median(&mut appends)) / 1000.0;
    // The median has sorted them.
    let longest = appends[appends.len() - 1];
    let goal = if longest <= PRUNING_GOAL { "50 ms" } else { "50 ms, missed" };
    let what = format!("a call beside a prune of {EXPIRED_RECEIPTS} receipts: an append");
    println!("\n{:<52} {:>10} {:>12} {:>14}", "", "median", "maximum", "goal");
    println!("{what:<52} {half:>7.1} ms {:>9.1} ms {goal:>14}", micros(longest) / 1000.0);
}

/// The turn in the middle, for each column by itself.
fn median_turn(turns: &mut Turns) -> (f64, Duration) {
    let mut halves = turns.iter().map(|(_, half)| *half).collect::<Vec<_>>();
    turns.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    (turns[turns.len() / 2].0, median(&mut halves))
}

fn read_first_receipt(journal: &Path) -> ReceiptEntry {
    let mut first = None;
    let keep = |entry: ReceiptEntry| {
        first = Some(entry);
        Ok::<_, HistoryError>(())
    };
    History::open(journal).unwrap().receipts(&Filter::default(), true, Some(1), keep).unwrap();
    first.unwrap()
}

/// The median time that a new journal takes for a run when nothing else goes on: until its start is on the disk, and
/// then its receipt.
fn measure_unloaded(path: &Path, like: &Receipt, durability: Durability) -> Duration {
    let now = OffsetDateTime::now_utc();
    let options = JournalOptions { durability, ..JournalOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (journal, _) = Journal::open(path, usize::MAX, options, now).unwrap();
        let mut times = Vec::new();
        for _ in 0..super::ROUNDS {
            times.push(run(&journal, like, now).await.iter().sum::<Duration>());
            journal.deliveries.mark_delivered(&journal.deliveries.next_report().await.unwrap().0);
        }
        median(&mut times)
    })
}

/// A run of an intent of its own, and how long its start and its receipt took.
async fn run(journal: &Journal, like: &Receipt, now: OffsetDateTime) -> [Duration; 2] {
    let params = serde_json::from_str::<Value>(&request("hello")).unwrap()["params"].to_string();
    let call = decode::execute_params(&params).unwrap().call;
    let receipt = Arc::new(Receipt { intent: call.intent, ..like.clone() });
    let started = Instant::now();
    assert!(matches!(journal.claims.claim(&call, now, None), Ok(ClaimResult::New)));
    let request = StartRequest {
        call: &call,
        keep_until: now,
        proof: None,
        fallback_receipt: &receipt,
        task: None,
        effects: RunEffects::Possible,
    };
    assert!(matches!(journal.claims.start(request, now).await, Ok(StartResult::New)));
    let start_took = started.elapsed();
    let ended = Instant::now();
    journal.claims.finish(receipt, None, Reporting::Here, now).await.unwrap();
    [start_took, ended.elapsed()]
}

/// The median time until one page is on the disk of `folder`.
fn measure_fdatasync(folder: &Path, overwritten: bool) -> Duration {
    let file = folder.join("pages");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(file).unwrap();
    if overwritten {
        file.write_all_at(&vec![0; PAGE_BYTES * FSYNC_COUNT], 0).unwrap();
        file.sync_all().unwrap();
    }
    let times = (0..FSYNC_COUNT).map(|page| {
        let started = Instant::now();
        file.write_all_at(&[1; PAGE_BYTES], u64::try_from(page * PAGE_BYTES).unwrap()).unwrap();
        file.sync_data().unwrap();
        started.elapsed()
    });
    median(&mut times.collect::<Vec<_>>())
}
