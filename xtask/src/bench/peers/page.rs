//! The generated part of `docs/benchmarks.md`.

use super::judge::CHECKS;
use super::{Figures, Measured, Peer, Row, WORKLOADS, Workload};
use crate::bench::markdown::{NONE, show_micros, table};
use crate::bench::plot::Bar;

/// All tables, and a plot above each table of times.
pub(super) fn render(machine: &str, rows: &[Row]) -> String {
    let mut text = format!("{machine}\n\n{}", list_peers(rows));
    for workload in &WORKLOADS {
        let Workload { name, title, remark } = workload;
        let times = list_times(workload, rows);
        text += &format!("\n### {title}\n\n{remark}\n\n![{title}](benchmarks/{name}.svg)\n\n{times}");
    }
    format!("{text}\n### What is kept\n\n{}", list_verdicts(rows))
}

/// The bars of the plot of a workload, the fastest first.
pub(super) fn bars(workload: &Workload, rows: &[Row]) -> Vec<Bar> {
    let bars = figures(workload, rows).into_iter().map(|(peer, figures)| {
        let [half, most] = [50, 99].map(|percent| figures.percentile(percent));
        Bar { label: peer.label(), is_ours: peer.is_ours(), half, most, text: show_micros(half) }
    });
    bars.collect()
}

fn list_peers(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        let [version, fresh] = match &row.outcome {
            Ok(Measured { version, fresh, .. }) => [version.clone(), fresh.clone()],
            Err(reason) => [reason.clone(), NONE.to_owned()],
        };
        vec![row.peer.label(), row.peer.what.to_owned(), version, fresh]
    });
    table(&["peer", "what it is", "version", "fresh for each call?"], 4, lines)
}

fn list_times(workload: &Workload, rows: &[Row]) -> String {
    let measured = figures(workload, rows).into_iter().map(|(peer, figures)| {
        let [half, most] = [50, 99].map(|percent| show_micros(figures.percentile(percent)));
        let rate = figures.per_second.map_or_else(|| NONE.to_owned(), |rate| format!("{rate:.0}"));
        let memory = format!("{} MB", figures.peak_kib.div_ceil(1024));
        vec![peer.label(), figures.micros.len().to_string(), half, most, rate, memory]
    });
    let failed = rows.iter().filter_map(|row| {
        let timings = &row.outcome.as_ref().ok()?.timings;
        let timing = timings.iter().find(|timing| timing.workload == workload.name)?;
        let reason = format!("{}: {}", row.peer.label(), timing.figures.as_ref().err()?);
        Some(std::iter::once(reason).chain(std::iter::repeat_n(NONE.to_owned(), 5)).collect())
    });
    let head = ["peer", "calls", "p50", "p99", "a second, 16 clients", "peak memory"];
    table(&head, 1, measured.chain(failed))
}

/// The figures of all that were measured with a workload, the fastest first.
fn figures<'rows>(workload: &Workload, rows: &'rows [Row]) -> Vec<(&'static Peer, &'rows Figures)> {
    let of_row = |row: &'rows Row| {
        let timings = &row.outcome.as_ref().ok()?.timings;
        let timing = timings.iter().find(|timing| timing.workload == workload.name)?;
        Some((row.peer, timing.figures.as_ref().ok()?))
    };
    let mut figures = rows.iter().filter_map(of_row).collect::<Vec<_>>();
    figures.sort_by(|(_, one), (_, other)| one.percentile(50).total_cmp(&other.percentile(50)));
    figures
}

fn list_verdicts(rows: &[Row]) -> String {
    let head = std::iter::once("peer").chain(CHECKS.iter().map(|check| check.title)).collect::<Vec<_>>();
    let lines = rows.iter().filter_map(|row| {
        let verdicts = row.outcome.as_ref().ok()?.verdicts.iter().map(|verdict| verdict.show());
        Some(std::iter::once(row.peer.label()).chain(verdicts).collect())
    });
    table(&head, head.len(), lines)
}

#[cfg(test)]
mod tests {
    use super::super::judge::Verdict;
    use super::super::{PEERS, Timing};
    use super::*;

    fn rows() -> Vec<Row> {
        let micros = vec![1.0, 1500.0, 2_000_000.0];
        let figures = Ok(Figures { micros, per_second: Some(123.4), peak_kib: 2049 });
        let timings = vec![
            Timing { workload: "json", figures },
            Timing { workload: "list", figures: Err("no\nfolder".to_owned()) },
        ];
        let verdicts = vec![Verdict::Kept, Verdict::NotKept("it went on"), Verdict::NoSetting];
        let measured = Measured { version: "1.0".to_owned(), fresh: "a store".to_owned(), timings, verdicts };
        let outcomes = [Ok(measured), Err("not installed: a | b".to_owned())];
        PEERS.iter().zip(outcomes).map(|(peer, outcome)| Row { peer, outcome }).collect()
    }

    #[test]
    fn every_peer_is_listed_with_its_figures_or_the_reason_why_there_are_none() {
        let text = render("A machine.", &rows());
        let label = PEERS[0].label();
        for line in [
            format!("| {label} | {} | 1.0 | a store |", PEERS[0].what),
            format!("| {} | {} | not installed: a \\| b | – |", PEERS[1].label(), PEERS[1].what),
            format!("| {label} | 3 | 1.50 ms | 2.00 s | 123 | 3 MB |"),
            format!("| {label}: no folder | – | – | – | – | – |"),
            format!("| {label} | yes | no (it went on) | no (no setting) |"),
            "|---|---:|---:|---:|---:|---:|".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert_eq!(bars(&WORKLOADS[0], &rows()).len(), 1);
    }
}
