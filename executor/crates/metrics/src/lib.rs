//! The executor's metrics, and their text for Prometheus.
//!
//! Every label is a tool of the operator's catalogue, a policy file that the operator named, or a value of a closed set, so
//! no caller can create another time series. An executor has one [`Metrics`], and a journal its own [`JournalMetrics`]: prometheus-client needs no global
//! registry, and writes the OpenMetrics text without protobuf.

mod recent;

pub use recent::{RecentRuns, RecentSummary, RecentWall};

use a2g_types::durability::Durability;
use a2g_types::fault::BlockedBy;
use a2g_types::outcome::Receipt;
use a2g_types::verdict::{Observation, Rationale};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The media type of [`Metrics::encode`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Histogram buckets in seconds, from a fast run to a long one.
const SECONDS_BUCKETS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
];
/// Histogram buckets in bytes, from the smallest guest to the largest ceiling.
const MEMORY_BUCKETS: [f64; 8] = [
    65_536.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
];
/// Histogram buckets for the number of entries in a transaction of the journal.
const ENTRY_BUCKETS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 512.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExecutionLabels {
    tool: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolLabel {
    tool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabel {
    blocked_by: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObservedLabels {
    file: String,
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabel {
    outcome: &'static str,
}

type Histograms = Family<ToolLabel, Histogram, fn() -> Histogram>;

/// The duration of each part of one execution. Together with the governor's time for a verdict, the parts add up to the
/// time from the arrival of the call until its receipt is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionTimes {
    /// From the claim of the intent until it gets a slot.
    pub queue: Duration,
    /// The guest's wall time.
    pub run: Duration,
    /// Everything else: checks, the journal, entering and leaving the sandbox.
    pub overhead: Duration,
}

/// The gauges at the moment of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Executions that are running.
    pub running: usize,
    /// Executions that are waiting for a slot.
    pub queued: usize,
    /// Escalated intents that wait for a directive.
    pub escalated: usize,
    /// Open connections.
    pub connections: usize,
    /// Sessions of tools.
    pub sessions: usize,
    /// Receipts in the journal's chain, including pruned ones and those of earlier processes.
    pub receipts: u64,
    /// Size of the journal's files in bytes.
    pub journal_bytes: u64,
    /// Bytes of the heap in use.
    pub heap_bytes: u64,
    /// Reports that the governor has not acknowledged.
    pub undelivered: usize,
    /// Age of the oldest unacknowledged report.
    pub oldest_undelivered: Duration,
    /// The state of this node of a fleet; `None` without a fleet.
    pub fleet: Option<FleetGauges>,
}

/// The state of a node of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FleetGauges {
    /// `true` while the node may claim intents.
    pub may_claim: bool,
    /// Values that no node of the fleet wrote.
    pub refused_values: u64,
    /// Reports of lost nodes that this one has to deliver.
    pub reports_of_others: usize,
    /// Calls that waited at this node and ran at another.
    pub passed_calls: u64,
    /// Calls that waited at another node and ran at this one.
    pub taken_calls: u64,
}

/// The metrics that a journal counts.
#[derive(Debug, Clone)]
pub struct JournalMetrics {
    durability: Durability,
    commits: Histogram,
    entries: Histogram,
}

impl JournalMetrics {
    /// Makes metrics at zero, for a journal with this durability.
    #[must_use]
    pub fn new(durability: Durability) -> Self {
        Self { durability, commits: seconds_histogram(), entries: Histogram::new(ENTRY_BUCKETS) }
    }

    /// Counts a transaction with this many entries, once it is on the disk.
    pub fn record_commit(&self, entries: usize, duration: Duration) {
        self.commits.observe(duration.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "there are 512 at most")]
        self.entries.observe(entries as f64);
    }
}

/// Requests and messages that failed authentication.
#[derive(Debug, Clone, Default)]
pub struct CallerMetrics {
    unknown: Counter,
    tokens: Family<TokenLabel, Counter>,
}

impl CallerMetrics {
    /// Counts a request or message that failed authentication.
    pub fn count_unauthenticated(&self) {
        self.unknown.inc();
    }

    /// Counts a rejected JSON Web Token; `reason` is a value of a closed set.
    pub fn count_rejected_token(&self, reason: &'static str) {
        self.tokens.get_or_create(&TokenLabel { reason }).inc();
    }

    fn register(&self, registry: &mut Registry) {
        let unknown = "Requests that failed authentication";
        registry.register("unknown_callers", unknown, self.unknown.clone());
        let tokens = "JSON Web Tokens that were rejected, by reason";
        registry.register("refused_tokens", tokens, self.tokens.clone());
    }
}

/// The metrics of one executor.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    executions: Family<ExecutionLabels, Counter>,
    refusals: Family<RefusalLabel, Counter>,
    observed: Family<ObservedLabels, Counter>,
    busy: Counter,
    governor: Histogram,
    queue: Histogram,
    run: Histograms,
    overhead: Histogram,
    cpu: Family<ToolLabel, Counter<f64, AtomicU64>>,
    memory: Histograms,
    deliveries: Family<DeliveryLabel, Counter>,
    recent: RecentRuns,
}

impl Metrics {
    /// Makes metrics at zero, together with those of the journal.
    #[must_use]
    pub fn new(journal: &JournalMetrics) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("a2g"),
            executions: Family::default(),
            refusals: Family::default(),
            observed: Family::default(),
            busy: Counter::default(),
            governor: seconds_histogram(),
            queue: seconds_histogram(),
            run: Family::new_with_constructor(seconds_histogram),
            overhead: seconds_histogram(),
            cpu: Family::default(),
            memory: Family::new_with_constructor(|| Histogram::new(MEMORY_BUCKETS)),
            deliveries: Family::default(),
            recent: RecentRuns::default(),
        };
        metrics.register(journal);
        metrics
    }

    fn register(&mut self, journal: &JournalMetrics) {
        let registry = &mut self.registry;
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("executor", "The version of the executor", version);
        let durability = Info::new(vec![("durability", journal.durability.as_str())]);
        registry.register(
            "journal",
            "The worst kind of failure that loses no answered call: the end of the process, or a power loss",
            durability,
        );
        registry.register("executions", "Executions that ended, by tool and status", self.executions.clone());
        let refusals = "Calls that were refused before a run, by reason";
        registry.register("refusals", refusals, self.refusals.clone());
        let observed = "Decisions that observed policy files would have made, by file and decision";
        registry.register("observed_decisions", observed, self.observed.clone());
        registry.register("busy", "Calls that were refused for lack of capacity", self.busy.clone());
        let deliveries = "Attempts to deliver a report, by outcome";
        registry.register("deliveries", deliveries, self.deliveries.clone());
        for (name, help, histogram) in [
            ("governor", "Time that the governor took for a verdict", &self.governor),
            ("queue", "Time from the claim of an intent to a slot", &self.queue),
            ("overhead", "Time from a call to its receipt, without governor, queue and run", &self.overhead),
            ("journal_commit", "Time of a transaction of the journal, its fsync included", &journal.commits),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        let entries = "Entries of a transaction of the journal";
        registry.register("journal_commit_entries", entries, journal.entries.clone());
        let run = "Wall time of guests, by tool";
        registry.register_with_unit("run", run, Unit::Seconds, self.run.clone());
        registry.register_with_unit("cpu", "CPU time of guests, by tool", Unit::Seconds, self.cpu.clone());
        let memory = "Peak memory of guests, by tool";
        registry.register_with_unit("peak_memory", memory, Unit::Bytes, self.memory.clone());
    }

    /// Counts an execution, once its receipt is on the disk. `now` is that time.
    pub fn record_execution(&self, receipt: &Receipt, times: &ExecutionTimes, now: Instant) {
        let ExecutionTimes { queue, run, overhead } = times;
        self.recent.record(now, *run);
        let label = ToolLabel { tool: receipt.tool.to_string() };
        let status = receipt.outcome.end.status().as_str();
        self.executions.get_or_create(&ExecutionLabels { tool: label.tool.clone(), status }).inc();
        self.queue.observe(queue.as_secs_f64());
        self.overhead.observe(overhead.as_secs_f64());
        self.run.get_or_create(&label).observe(run.as_secs_f64());
        let run_metrics = &receipt.outcome.metrics;
        self.cpu.get_or_create(&label).inc_by(run_metrics.cpu.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "a bucket needs no more than 53 bits")]
        self.memory.get_or_create(&label).observe(run_metrics.peak_memory_bytes as f64);
    }

    /// The latest executions.
    #[must_use]
    pub fn recent(&self) -> &RecentRuns {
        &self.recent
    }

    /// Records the duration of a request for a verdict, failed or not.
    pub fn record_verdict_time(&self, duration: Duration) {
        self.governor.observe(duration.as_secs_f64());
    }

    /// Counts a call that was refused before its run.
    pub fn count_refusal(&self, blocked_by: BlockedBy) {
        self.refusals.get_or_create(&RefusalLabel { blocked_by: blocked_by.as_str() }).inc();
    }

    /// Counts what observed policy files of the operator would have decided.
    pub fn count_observed(&self, rationale: &Rationale) {
        for Observation { file, decision, .. } in &rationale.observed {
            let labels = ObservedLabels { file: file.clone(), decision: decision.as_str() };
            self.observed.get_or_create(&labels).inc();
        }
    }

    /// Counts a call that was refused for lack of capacity.
    pub fn count_busy(&self) {
        self.busy.inc();
    }

    /// Counts an attempt to deliver a report; `delivered` if the governor acknowledged it.
    pub fn record_delivery(&self, delivered: bool) {
        let outcome = if delivered { "delivered" } else { "failed" };
        self.deliveries.get_or_create(&DeliveryLabel { outcome }).inc();
    }

    /// Encodes all metrics and the gauges as text in the OpenMetrics format.
    ///
    /// # Errors
    /// Never: writing to a string cannot fail.
    pub fn encode(&self, gauges: &Gauges, callers: &CallerMetrics) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let mut gauges = gauges.registry();
        callers.register(&mut gauges);
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &gauges)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl Gauges {
    fn registry(&self) -> Registry {
        let Self {
            running,
            queued,
            escalated,
            connections,
            sessions,
            receipts,
            journal_bytes,
            heap_bytes,
            undelivered,
            oldest_undelivered,
            fleet,
        } = *self;
        let mut registry = Registry::with_prefix("a2g");
        for (name, help, level) in [
            ("running", "Executions that are running", running),
            ("queued", "Executions that wait for a slot", queued),
            ("waiting_intents", "Escalated intents that wait for a directive", escalated),
            ("connections", "Connections that are open", connections),
            ("sessions", "Sessions that keep the store of a tool", sessions),
            ("undelivered_reports", "Reports that the governor has not acknowledged", undelivered),
        ] {
            registry.register(name, help, const_gauge(level as u64));
        }
        let bytes = "Size of the files of the journal";
        registry.register_with_unit("journal", bytes, Unit::Bytes, const_gauge(journal_bytes));
        let heap = "Heap memory in use, which `server.max_memory_mb` bounds";
        registry.register_with_unit("heap", heap, Unit::Bytes, const_gauge(heap_bytes));
        let receipts = ConstCounter::new(receipts);
        registry.register(
            "journal_receipts",
            "Receipts written, including those of earlier processes",
            receipts,
        );
        let oldest = ConstGauge::new(oldest_undelivered.as_secs_f64());
        let help = "Age of the oldest report that the governor has not acknowledged; 0 if there is none";
        registry.register_with_unit("oldest_undelivered_report", help, Unit::Seconds, oldest);
        if let Some(FleetGauges { may_claim, refused_values, reports_of_others, passed_calls, taken_calls }) =
            fleet
        {
            let help = "1 while this node of the fleet may claim intents, otherwise 0";
            registry.register("fleet_may_claim", help, const_gauge(may_claim.into()));
            let help = "Values in the fleet that none of its nodes wrote";
            registry.register("fleet_refused_values", help, ConstCounter::new(refused_values));
            let help = "Reports of lost nodes that this one has to deliver";
            registry.register("fleet_reports_of_others", help, const_gauge(reports_of_others as u64));
            let help = "Calls that waited at this node of the fleet and ran at another";
            registry.register("fleet_passed_calls", help, ConstCounter::new(passed_calls));
            let help = "Calls that waited at another node of the fleet and ran at this one";
            registry.register("fleet_taken_calls", help, ConstCounter::new(taken_calls));
        }
        registry
    }
}

fn const_gauge(level: u64) -> ConstGauge {
    ConstGauge::new(i64::try_from(level).unwrap_or(i64::MAX))
}

fn seconds_histogram() -> Histogram {
    Histogram::new(SECONDS_BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_events_appear_in_the_text() {
        let journal = JournalMetrics::new(Durability::PowerLoss);
        let metrics = Metrics::new(&journal);
        journal.record_commit(3, Duration::from_micros(700));
        metrics.count_refusal(BlockedBy::VerdictDenied);
        metrics.record_delivery(false);
        metrics.count_busy();
        let observed = Observation {
            file: "new.cedar".to_owned(),
            decision: a2g_types::verdict::Decision::Denied,
            decided_by: Vec::new(),
        };
        metrics.count_observed(&Rationale { observed: vec![observed], ..Rationale::default() });
        let callers = CallerMetrics::default();
        callers.count_unauthenticated();
        callers.count_rejected_token("expired");
        let gauges = Gauges { running: 2, escalated: 1, receipts: 7, ..Gauges::default() };
        let text = metrics.encode(&gauges, &callers).unwrap();
        for line in [
            "a2g_refusals_total{blocked_by=\"verdict_denied\"} 1",
            "a2g_deliveries_total{outcome=\"failed\"} 1",
            "a2g_busy_total 1",
            "a2g_observed_decisions_total{file=\"new.cedar\",decision=\"DENIED\"} 1",
            "a2g_running 2",
            "a2g_waiting_intents 1",
            "a2g_unknown_callers_total 1",
            "a2g_refused_tokens_total{reason=\"expired\"} 1",
            "a2g_journal_receipts_total 7",
            "a2g_journal_info{durability=\"power-loss\"} 1",
            "a2g_journal_commit_seconds_bucket{le=\"0.0005\"} 0",
            "a2g_journal_commit_seconds_bucket{le=\"0.001\"} 1",
            "a2g_journal_commit_entries_sum 3.0",
            "a2g_oldest_undelivered_report_seconds 0.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|reported| reported == line), "{line}\n{text}");
        }
    }
}
