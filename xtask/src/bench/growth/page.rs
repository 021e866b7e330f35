//! The generated part about growth in `docs/benchmarks.md`.

use super::{Kind, MAX_RATIO, Row};
use crate::bench::markdown::{NONE, show_micros, table};
use crate::bench::plot::Bar;

/// The table, and below it the plot of each kind.
pub(super) fn render(machine: &str, kinds: &[&Kind], rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        let title = row.kind.title.to_owned();
        let size = match &row.outcome {
            Ok(_) => row.size.to_string(),
            Err(reason) => format!("{}: not measured: {reason}", row.size),
        };
        let [half, most] = [50, 99].map(|percent| row.percentile(percent).map(show_micros));
        let ratio = row.ratio(rows).map(show_ratio);
        let figures = [half, most, ratio].map(|figure| figure.unwrap_or_else(|| NONE.to_owned()));
        [title, size].into_iter().chain(figures).collect()
    });
    let head = ["what grows", "size", "p50", "p99", "p50 : smallest"];
    let plots = kinds.iter().map(|kind| format!("\n![{}](benchmarks/{}.svg)\n", kind.title, plot_name(kind)));
    format!("{machine}\n\n{}{}", table(&head, 2, lines), plots.collect::<String>())
}

/// The bars of a kind, the smallest size first.
pub(super) fn bars(kind: &Kind, rows: &[Row]) -> Vec<Bar> {
    let rows_of_kind = rows.iter().filter(|row| row.kind.growing == kind.growing);
    let bars = rows_of_kind.filter_map(|row| {
        let half = row.percentile(50)?;
        let label = format!("{}: {} ({:.2})", kind.title, row.size, row.ratio(rows)?);
        Some(Bar { label, is_ours: true, half, most: row.percentile(99)?, text: show_micros(half) })
    });
    bars.collect()
}

/// The name of the file with the plot of a kind.
pub(super) fn plot_name(kind: &Kind) -> String {
    format!("growth-{}", kind.name)
}

fn show_ratio(ratio: f64) -> String {
    format!("{ratio:.2}{}", if ratio > MAX_RATIO { ", missed" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::KINDS;
    use super::super::tests::row;
    use super::*;

    #[test]
    fn every_size_has_a_line_and_every_measured_one_a_bar() {
        let rows = [
            row(0, 1, Ok(vec![1000.0, 2000.0, 3000.0])),
            row(0, 10, Ok(vec![2500.0])),
            row(0, 100, Err("no | room")),
        ];
        let kinds = [&KINDS[0]];
        let text = render("A machine.", &kinds, &rows);
        let title = KINDS[0].title;
        for line in [
            "| what grows | size | p50 | p99 | p50 : smallest |".to_owned(),
            "|---|---|---:|---:|---:|".to_owned(),
            format!("| {title} | 1 | 2.00 ms | 3.00 ms | 1.00 |"),
            format!("| {title} | 10 | 2.50 ms | 2.50 ms | 1.25, missed |"),
            format!("| {title} | 100: not measured: no \\| room | – | – | – |"),
            format!("![{title}](benchmarks/growth-runs.svg)"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        let bars = bars(&KINDS[0], &rows);
        assert_eq!(bars.iter().map(|bar| bar.half).collect::<Vec<_>>(), [2000.0, 2500.0]);
        assert_eq!([&*bars[1].label, &*bars[1].text], [&*format!("{title}: 10 (1.25)"), "2.50 ms"]);
    }
}
