//! (d): what the journal costs, in one run: the built binary with its journal on the disk and on a RAM disk,
//! and the same steps without one.

use super::doors::{Server, configure_with, install, over_http};
use super::{HELLO, median, micros, without};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often each of the three is measured, in turn.
const TURNS: usize = 3;
const FSYNCS: usize = 300;
const PAGE: usize = 4096;
pub(crate) const RAM_DISK: &str = "/dev/shm";

/// What was measured in each turn: calls a second, and the median of one call.
type Turns = Vec<(f64, Duration)>;

pub(crate) fn measure(target: &Path, data: &Path) {
    let binary = target.join("debug").join("a2g-executor");
    // Beside what is built, because the system's temporary folder may be a RAM disk.
    let folder = tempfile::tempdir_in(target).unwrap();
    let in_ram = tempfile::tempdir_in(RAM_DISK).ok();
    install(&binary, folder.path(), data, &[("hello", HELLO)]);
    let catalogue = folder.path().join("catalogue");
    let journal = folder.path().join("journal.db");
    let started = |journal: &Path| {
        configure_with(folder.path(), data, "inline", journal);
        Server::start(&binary, folder.path(), &catalogue)
    };
    println!("{:<52} {:>10} {:>12}", "(d) the journal: inline, hello, HTTP", "a second", "median");
    let mut receipts = 0;
    let [sixteen, one] = [16, 1].map(|clients| {
        let (mut none, mut ram, mut disk) = (Turns::new(), Turns::new(), Turns::new());
        for _ in 0..TURNS {
            configure_with(folder.path(), data, "inline", &journal);
            let server = Server::spawn(&mut without::command(&binary, folder.path()));
            none.push(over_http(&server.address, clients));
            drop(server);
            if let Some(in_ram) = &in_ram {
                ram.push(over_http(&started(&in_ram.path().join("journal.db")).address, clients));
            }
            disk.push(over_http(&started(&journal).address, clients));
            receipts += clients * super::doors::FROM_EACH_CLIENT;
        }
        let row = |what: &str, turns: &mut Turns| {
            let (per_second, half) = middle(turns);
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
        (none, row("with the journal on the disk", &mut disk))
    });
    let (over, more) = (fdatasync(folder.path(), true), fdatasync(folder.path(), false));
    println!("\n{:<52} {:>23.1} µs", "fdatasync of a page that is overwritten", micros(over));
    println!("{:<52} {:>23.1} µs", "fdatasync of a page that is appended", micros(more));
    let ((without, _), (with, _)) = sixteen;
    println!("\nFrom 16 clients, {:.0} % of the calls without a journal are left.", 100.0 * with / without);
    let ((_, without), (_, with)) = one;
    let longer = with.saturating_sub(without);
    println!(
        "For one client a call takes {:.0} µs longer, which is {:.1} such fdatasyncs of an overwritten page.",
        micros(longer),
        longer.as_secs_f64() / over.as_secs_f64()
    );
    println!(
        "Medians of {TURNS} turns. Clients and server share this machine. What is called \"without\" is put"
    );
    println!(
        "together in the benchmark from the library: decode, admit, grant, run, report and encode, behind"
    );
    println!(
        "the same HTTP, but no claim, no queue, no journal and no outbox. The product has no such switch."
    );
    let verify = Instant::now();
    let mut command = Command::new(&binary);
    let verified = command.args(["journal", "verify", "--journal"]).arg(&journal).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let each = receipts as f64 / verify.elapsed().as_secs_f64();
    println!("`journal verify` read {receipts} receipts, {each:.0} a second with the start of its process.");
}

/// The turn in the middle, for each column by itself.
fn middle(turns: &mut Turns) -> (f64, Duration) {
    let mut halves = turns.iter().map(|(_, half)| *half).collect::<Vec<_>>();
    turns.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    (turns[turns.len() / 2].0, median(&mut halves))
}

/// The median time until one page is on the disk of `folder`.
fn fdatasync(folder: &Path, overwritten: bool) -> Duration {
    let file = folder.join("pages");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(file).unwrap();
    if overwritten {
        file.write_all_at(&vec![0; PAGE * FSYNCS], 0).unwrap();
        file.sync_all().unwrap();
    }
    let times = (0..FSYNCS).map(|page| {
        let started = Instant::now();
        file.write_all_at(&[1; PAGE], u64::try_from(page * PAGE).unwrap()).unwrap();
        file.sync_data().unwrap();
        started.elapsed()
    });
    median(&mut times.collect::<Vec<_>>())
}
