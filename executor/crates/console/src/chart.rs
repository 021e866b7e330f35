//! Charts of the runs over time, as SVG that is rendered here.
//!
//! The plot is stretched to the width of the page. Its lines keep their width (`vector-effect` in the style). The labels are in
//! separate SVGs without a `viewBox`, so they keep the page's text size. Nothing needs an inline style or a script. Colours
//! come from classes.

use super::page::{elapsed, scrolling_table};
use a2g_journal::{SeriesBucket, StatusCounts, UsageSeries, WallTimes};
use a2g_types::clock::format_seconds;
use maud::{Markup, html};
use std::time::Duration;
use time::OffsetDateTime;

/// Height of a plot in its own units.
const HEIGHT: u64 = 1_000;
/// Width of a bucket, in units of the plot.
const BUCKET_WIDTH: usize = 20;
/// Gap on each side of a bar, in units of the plot.
const BAR_GAP: usize = 2;
/// Height of the smallest part of a bar, so that one failure among thousands of runs is visible.
const MIN_PART_HEIGHT: u64 = 12;
/// Maximum number of times below a plot, for which a narrow screen has space.
const MAX_TICKS: i64 = 5;
/// Steps between the times below a plot, in seconds.
const TICK_STEPS: [i64; 14] = [
    600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000,
    7_776_000,
];

/// The statuses in the order in which their parts are stacked: class, name, and count.
type StatusPart = (&'static str, &'static str, fn(&StatusCounts) -> u64);
const STATUSES: [StatusPart; 4] = [
    ("success", "succeeded", |counts| counts.success),
    ("failure", "failed", |counts| counts.failure),
    ("timeout", "timed out", |counts| counts.timeout),
    ("aborted", "aborted", |counts| counts.aborted),
];

/// The percentiles: class, name, and time.
type Percentile = (&'static str, &'static str, fn(&WallTimes) -> Duration);
const PERCENTILES: [Percentile; 3] = [
    ("p50", "median", |wall| wall.p50),
    ("p95", "95th percentile", |wall| wall.p95),
    ("p99", "99th percentile", |wall| wall.p99),
];

/// The runs by status and their wall times, with the figures as a table. Runs that ended before `unread_until` are not
/// in the series.
pub(super) fn charts(series: &UsageSeries, unread_until: Option<OffsetDateTime>) -> Markup {
    let plot = Plot { series, unread_until };
    html! {
        div.charts { (plot.runs()) (plot.wall_times()) }
        details { summary { "The figures of the charts" } (table(series)) }
    }
}

/// A position on the vertical axis of a plot, in units from its top, with its text.
struct Mark {
    y: String,
    text: String,
}

struct Plot<'a> {
    series: &'a UsageSeries,
    unread_until: Option<OffsetDateTime>,
}

impl Plot<'_> {
    fn buckets(&self) -> &[SeriesBucket] {
        &self.series.buckets
    }

    /// Width of the plot in its own units.
    fn width(&self) -> usize {
        self.buckets().len() * BUCKET_WIDTH
    }

    fn runs(&self) -> Markup {
        let busiest = self.buckets().iter().max_by_key(|bucket| bucket.by_status.total());
        let (most, at) =
            busiest.map_or((0, String::new()), |busiest| (busiest.by_status.total(), format_start(busiest)));
        let sum = |count: fn(&StatusCounts) -> u64| {
            self.buckets().iter().map(|bucket| count(&bucket.by_status)).fold(0, u64::saturating_add)
        };
        let sums = STATUSES.map(|(_, name, count)| format!("{} {name}", sum(count))).join(", ");
        let label = format!(
            "Bars: the runs that ended in each {}: {sums}. The most in one were {most}, from {at}.",
            self.describe_bucket_width()
        );
        let top = round_up(most);
        let marks = [(0, top), (HEIGHT / 2, top / 2), (HEIGHT, 0)]
            .map(|(y, count)| Mark { y: y.to_string(), text: count.to_string() });
        let bars = html! {
            @for (number, bucket) in self.buckets().iter().enumerate().filter(|(_, bucket)| bucket.by_status.total() > 0) {
                g { title { (self.interval(bucket)) ": " (describe_counts(&bucket.by_status)) }
                    (bar(number, &bucket.by_status, top))
                }
            }
        };
        let legend = STATUSES.iter().map(|(class, name, _)| {
            (*name, html! { rect.part.(class) x="0" y="1" width="14" height="12" {} })
        });
        self.figure(&format!("Runs in each {}", self.describe_bucket_width()), &label, &marks, &bars, legend)
    }

    fn wall_times(&self) -> Markup {
        let walls = || self.buckets().iter().filter_map(|bucket| bucket.wall);
        let scale = LogScale::covering(walls());
        let slowest = walls().map(|wall| wall.p99).max().unwrap_or_default();
        let label = format!(
            "Lines on a logarithmic scale: the median, 95th and 99th percentile of the wall time in each {}. The greatest \
             value is {}.",
            self.describe_bucket_width(),
            elapsed(slowest)
        );
        let lines = html! {
            @for (number, bucket) in self.buckets().iter().enumerate() {
                @if let Some(wall) = bucket.wall {
                    rect.target x=(number * BUCKET_WIDTH) y="0" width=(BUCKET_WIDTH) height=(HEIGHT) {
                        title { (self.interval(bucket)) ": " (describe_wall(&wall)) }
                    }
                }
            }
            @for (class, _, time) in PERCENTILES {
                @let (line, dots) = lines(self.buckets(), time, &scale);
                path.line.(class) d=(line) {}
                path.dots.(class) d=(dots) {}
            }
        };
        let legend =
            PERCENTILES.iter().map(|(class, name, _)| (*name, html! { path.line.(class) d="M1 7H21" {} }));
        let caption = format!("Wall time of the runs in each {}", self.describe_bucket_width());
        self.figure(&caption, &label, &scale.marks(), &lines, legend)
    }

    fn figure<'a>(
        &self,
        caption: &str,
        label: &str,
        marks: &[Mark],
        shapes: &Markup,
        legend: impl Iterator<Item = (&'a str, Markup)>,
    ) -> Markup {
        let width = self.width();
        let unread = self.unread_width();
        html! {
            figure.chart {
                figcaption { (caption) }
                ul.legend {
                    @for (name, key) in legend { li { svg.key viewBox="0 0 22 14" aria-hidden="true" { (key) } " " (name) } }
                    @if unread > 0 { li { svg.key viewBox="0 0 22 14" aria-hidden="true" { rect.unread x="0" y="1" width="14" height="12" {} } " not read" } }
                }
                div.plot {
                    svg.vertical aria-hidden="true" {
                        @for Mark { y, text } in marks { text x="100%" y=(percent(y)) { (text) } }
                    }
                    svg.shapes viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(label) {
                        @if unread > 0 { rect.unread x="0" y="0" width=(unread) height=(HEIGHT) {} }
                        @for Mark { y, .. } in marks { path.grid d={ "M0 " (y) "H" (width) } {} }
                        (shapes)
                    }
                    svg.horizontal aria-hidden="true" {
                        @for (position, text) in self.ticks() { text x={ (position) "%" } y="14" { (text) } }
                    }
                }
            }
        }
    }

    /// Width of the part of the plot whose runs were not read.
    fn unread_width(&self) -> usize {
        let (Some(until), Some(first)) = (self.unread_until, self.buckets().first()) else { return 0 };
        let seconds = usize::try_from((until - first.begin).whole_seconds()).unwrap_or(0);
        let bucket_seconds = usize::try_from(self.series.width.as_secs()).unwrap_or(usize::MAX).max(1);
        (seconds.saturating_mul(BUCKET_WIDTH) / bucket_seconds).min(self.width())
    }

    /// The times below the plot: the position of each in percent of the width, and its text.
    fn ticks(&self) -> Vec<(usize, String)> {
        let width = i64::try_from(self.series.width.as_secs()).unwrap_or(i64::MAX).max(1);
        let count = self.buckets().len().max(1);
        let seconds = width.saturating_mul(i64::try_from(count).unwrap_or(i64::MAX));
        let fits = |step: &&i64| **step % width == 0 && seconds / **step <= MAX_TICKS;
        let step = TICK_STEPS.iter().find(fits).copied().unwrap_or(seconds);
        let is_tick = |(_, bucket): &(usize, &SeriesBucket)| bucket.begin.unix_timestamp() % step == 0;
        let marked = self.buckets().iter().enumerate().filter(is_tick);
        let ticks = marked.map(|(number, bucket)| (number * 100 / count, short_time(bucket.begin, step)));
        // A text at either end would be wider than the plot.
        ticks.filter(|(position, _)| (4..=94).contains(position)).collect()
    }

    fn describe_bucket_width(&self) -> String {
        let minutes = self.series.width.as_secs() / 60;
        match minutes {
            1 => "minute".to_owned(),
            2..60 => format!("{minutes} minutes"),
            60 => "hour".to_owned(),
            61..1_440 => format!("{} hours", minutes / 60),
            1_440 => "day".to_owned(),
            _ => format!("{} days", minutes / 1_440),
        }
    }

    fn interval(&self, bucket: &SeriesBucket) -> String {
        format!("{} and {} after", format_start(bucket), self.describe_bucket_width())
    }
}

/// The parts of one bar, from the bottom.
fn bar(number: usize, counts: &StatusCounts, top: u64) -> Markup {
    let mut y = HEIGHT;
    let parts = STATUSES.iter().filter_map(|(class, _, count)| {
        let count = count(counts);
        let height = (count.saturating_mul(HEIGHT) / top.max(1)).max(MIN_PART_HEIGHT);
        y = y.saturating_sub(if count > 0 { height } else { 0 });
        (count > 0).then_some((*class, y, height))
    });
    let parts = parts.collect::<Vec<_>>();
    html! {
        rect.target x=(number * BUCKET_WIDTH) y="0" width=(BUCKET_WIDTH) height=(HEIGHT) {}
        @for (class, y, height) in parts {
            rect.part.(class) x=(number * BUCKET_WIDTH + BAR_GAP) y=(y) width=(BUCKET_WIDTH - 2 * BAR_GAP) height=(height) {}
        }
    }
}

/// A path through the buckets that have runs, with gaps at those that have none, and a path with a dot for each bucket
/// between two gaps.
fn lines(buckets: &[SeriesBucket], time: fn(&WallTimes) -> Duration, scale: &LogScale) -> (String, String) {
    let mut line = String::new();
    let mut dots = String::new();
    let mut is_drawn = false;
    for (number, bucket) in buckets.iter().enumerate() {
        if let Some(wall) = &bucket.wall {
            let x = number * BUCKET_WIDTH + BUCKET_WIDTH / 2;
            let y = scale.position(time(wall));
            let has_next = buckets.get(number + 1).is_some_and(|next| next.wall.is_some());
            match (is_drawn, has_next) {
                (true, _) => line.push_str(&format!("L{x} {y}")),
                (false, true) => line.push_str(&format!("M{x} {y}")),
                // A line of no length is drawn as a dot, because its ends are round.
                (false, false) => dots.push_str(&format!("M{x} {y}h0")),
            }
        }
        is_drawn = bucket.wall.is_some();
    }
    (line, dots)
}

/// A logarithmic scale from one power of ten of seconds to another.
struct LogScale {
    low: i32,
    high: i32,
}

impl LogScale {
    /// The powers of ten that are named, from a microsecond to 12 days.
    const NAMES: [&'static str; 13] = [
        "1 µs",
        "10 µs",
        "100 µs",
        "1 ms",
        "10 ms",
        "100 ms",
        "1 s",
        "10 s",
        "100 s",
        "1,000 s",
        "10,000 s",
        "100,000 s",
        "1,000,000 s",
    ];
    const LOWEST: i32 = -6;
    const HIGHEST: i32 = 6;

    fn covering(walls: impl Iterator<Item = WallTimes> + Clone) -> Self {
        let fastest = walls.clone().map(|wall| wall.p50).min().unwrap_or_default();
        let slowest = walls.map(|wall| wall.p99).max().unwrap_or_default();
        let power = |power: &i32| 10_f64.powi(*power);
        let mut powers = (Self::LOWEST..Self::HIGHEST).rev();
        let low = powers.find(|low| power(low) <= fastest.as_secs_f64()).unwrap_or(Self::LOWEST);
        let mut powers = low + 1..Self::HIGHEST;
        let high = powers.find(|high| power(high) >= slowest.as_secs_f64()).unwrap_or(Self::HIGHEST);
        Self { low, high }
    }

    /// The position of a time, in units from the top of the plot.
    fn position(&self, time: Duration) -> String {
        let share = (time.as_secs_f64().log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        format!("{:.0}", 1_000.0 * (1.0 - share.clamp(0.0, 1.0)))
    }

    fn marks(&self) -> Vec<Mark> {
        let marks = (self.low..=self.high).map(|power| {
            let share = f64::from(power - self.low) / f64::from(self.high - self.low);
            let name = usize::try_from(power - Self::LOWEST).ok().and_then(|name| Self::NAMES.get(name));
            Mark {
                y: format!("{:.0}", 1_000.0 * (1.0 - share)),
                text: name.copied().unwrap_or_default().to_owned(),
            }
        });
        marks.collect()
    }
}

fn table(series: &UsageSeries) -> Markup {
    scrolling_table(
        "The figures of the charts",
        &html! {
            thead { tr {
                th { "From" }
                @for (_, name, _) in STATUSES { th { (name) } }
                @for (_, name, _) in PERCENTILES { th { (name) } }
                th { "longest" }
            } }
            tbody {
                @for bucket in series.buckets.iter().filter(|bucket| bucket.by_status.total() > 0) {
                    tr {
                        th.number scope="row" { (format_start(bucket)) }
                        @for (_, _, count) in STATUSES { td.number { (count(&bucket.by_status)) } }
                        @for (_, _, time) in PERCENTILES { td.number { @if let Some(wall) = &bucket.wall { (elapsed(time(wall))) } } }
                        td.number { @if let Some(wall) = &bucket.wall { (elapsed(wall.max)) } }
                    }
                }
            }
        },
    )
}

fn describe_counts(counts: &StatusCounts) -> String {
    let parts = STATUSES.iter().map(|(_, name, count)| (count(counts), name)).filter(|(count, _)| *count > 0);
    parts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn describe_wall(wall: &WallTimes) -> String {
    PERCENTILES.map(|(_, name, time)| format!("{name} {}", elapsed(time(wall)))).join(", ")
}

/// The start of a bucket, to the minute.
fn format_start(bucket: &SeriesBucket) -> String {
    let text = format_seconds(bucket.begin).replace('T', " ");
    format!("{} UTC", text.get(..16).unwrap_or(&text))
}

/// The hour and minute of a time, or its month and day if the times below the plot are days apart.
fn short_time(at: OffsetDateTime, step: i64) -> String {
    if step < 86_400 {
        format!("{:02}:{:02}", at.hour(), at.minute())
    } else {
        format!("{:02}-{:02}", u8::from(at.month()), at.day())
    }
}

/// A position as a percentage of the height.
fn percent(y: &str) -> String {
    // The units are tenths of a percent.
    format!("{}%", y.parse::<f64>().unwrap_or_default() / 10.0)
}

/// The next number that can be halved and is easy to read: 2, 4, 6, 8 or 10, times a power of ten.
fn round_up(count: u64) -> u64 {
    let mut unit = 1_u64;
    while count > unit.saturating_mul(10) {
        unit = unit.saturating_mul(10);
    }
    [2, 4, 6, 8]
        .map(|factor| unit.saturating_mul(factor))
        .into_iter()
        .find(|top| *top >= count)
        .unwrap_or(unit.saturating_mul(10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    fn bucket(minute: i64, success: u64, failure: u64, wall_ms: u64) -> SeriesBucket {
        let ms = Duration::from_millis;
        let wall =
            WallTimes { p50: ms(wall_ms), p95: ms(wall_ms * 2), p99: ms(wall_ms * 3), max: ms(wall_ms * 9) };
        SeriesBucket {
            begin: datetime!(2026-11-26 10:00 UTC) + time::Duration::minutes(minute),
            by_status: StatusCounts { success, failure, ..StatusCounts::default() },
            wall: (wall_ms > 0).then_some(wall),
        }
    }

    fn series(buckets: Vec<SeriesBucket>) -> UsageSeries {
        UsageSeries { width: Duration::from_secs(1_800), buckets }
    }

    #[test]
    fn scales_are_easy_to_read() {
        for (count, top) in
            [(0, 2), (1, 2), (3, 4), (10, 10), (11, 20), (61, 80), (100, 100), (8_001, 10_000)]
        {
            assert_eq!(round_up(count), top, "{count}");
        }
        assert!(round_up(u64::MAX) > 0);
        let buckets = [bucket(0, 1, 0, 2), bucket(30, 1, 0, 50)];
        let scale = LogScale::covering(buckets.iter().filter_map(|bucket| bucket.wall));
        assert_eq!((scale.low, scale.high), (-3, 0));
        assert_eq!(scale.position(Duration::from_millis(1)), "1000");
        assert_eq!(scale.position(Duration::from_millis(10)), "667");
        assert_eq!(scale.position(Duration::from_secs(5)), "0");
        assert_eq!(scale.position(Duration::ZERO), "1000");
        let texts = scale.marks().into_iter().map(|mark| mark.text).collect::<Vec<_>>();
        assert_eq!(texts, ["1 ms", "10 ms", "100 ms", "1 s"]);
        let empty = LogScale::covering(std::iter::empty());
        assert_eq!((empty.low, empty.high), (LogScale::LOWEST, LogScale::LOWEST + 1));
    }

    #[test]
    fn lines_have_gaps_and_dots() {
        let buckets = [bucket(0, 1, 0, 1), bucket(30, 1, 0, 10), bucket(60, 0, 0, 0), bucket(90, 1, 0, 100)];
        let scale = LogScale { low: -3, high: 0 };
        let (line, dots) = lines(&buckets, |wall| wall.p50, &scale);
        assert_eq!((line.as_str(), dots.as_str()), ("M10 1000L30 667", "M70 333h0"));
    }

    #[test]
    fn every_figure_is_also_text() {
        let chart =
            charts(&series(vec![bucket(0, 4_000, 1, 7), bucket(30, 0, 0, 0), bucket(60, 2, 0, 3)]), None);
        let text = chart.into_string();
        for part in [
            "role=\"img\" aria-label=\"Bars: the runs that ended in each 30 minutes: 4002 succeeded, 1 failed",
            "The most in one were 4001, from 2026-11-26 10:00 UTC.",
            "<title>2026-11-26 10:00 UTC and 30 minutes after: 4000 succeeded, 1 failed</title>",
            "median 7.0 ms, 95th percentile 14.0 ms",
            "<td class=\"number\">4000</td>",
            // One failure among 4,000 runs is visible.
            "class=\"part failure\" x=\"2\" y=\"322\" width=\"16\" height=\"12\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("style=") && !text.contains("not read"));
    }

    #[test]
    fn what_was_not_read_is_marked() {
        let half = Some(datetime!(2026-11-26 10:30 UTC));
        let text = charts(&series(vec![bucket(0, 0, 0, 0), bucket(30, 2, 0, 3)]), half).into_string();
        assert!(text.contains("class=\"unread\" x=\"0\" y=\"0\" width=\"20\" height=\"1000\""), "{text}");
        assert!(text.contains("not read"));
    }
}
