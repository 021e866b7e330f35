//! Reads what `GET /metrics` answers, as strictly as the OpenMetrics text format is written down.

use super::Executor;
use std::collections::{BTreeMap, BTreeSet};

/// The samples of one scrape: the name with its labels, as written, and the value.
pub struct Exposition(BTreeMap<String, f64>);

impl Exposition {
    /// Reads a text, and panics at the first line that breaks the format.
    pub fn read(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("it ends with `# EOF`");
        let mut samples = BTreeMap::new();
        let mut families = BTreeSet::new();
        let mut family = ("", "");
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let kind = words.next();
                let name = words.next();
                let value = words.next();
                match (kind, name, value) {
                    (Some("HELP"), Some(name), Some(help)) => {
                        assert!(families.insert(name), "`{name}` comes twice");
                        assert!(!help.is_empty(), "{line}");
                        family = (name, "");
                    }
                    (Some("TYPE"), Some(name), Some(kind)) => {
                        assert_eq!(name, family.0, "{line}");
                        assert!(["counter", "gauge", "histogram", "info"].contains(&kind), "{line}");
                        family.1 = kind;
                    }
                    (Some("UNIT"), Some(name), Some(unit)) => {
                        assert!(name == family.0 && name.ends_with(&format!("_{unit}")), "{line}");
                    }
                    _ => panic!("no line of the format: {line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            let name = check_series(series);
            let suffix = name.strip_prefix(family.0).unwrap_or_else(|| panic!("outside its family: {line}"));
            let suffixes: &[&str] = match family.1 {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("a family of type `{other}`: {line}"),
            };
            assert!(suffixes.contains(&suffix), "{} with `{line}`", family.1);
            let value: f64 = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(value.is_finite() && (value >= 0.0 || family.1 == "gauge"), "{line}");
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
        }
        let read = Self(samples);
        read.check_buckets(body);
        read
    }

    /// The value of a series, such as `a2g_refusals_total{blocked_by="verdict_denied"}`; 0 when it is not there.
    pub fn value(&self, series: &str) -> f64 {
        self.0.get(series).copied().unwrap_or(0.0)
    }

    /// True if a series has this value.
    pub fn is(&self, series: &str, value: f64) -> bool {
        (self.value(series) - value).abs() < f64::EPSILON
    }

    /// True if there is such a series.
    pub fn has(&self, series: &str) -> bool {
        self.0.contains_key(series)
    }

    /// The names of all series, with their labels.
    pub fn series(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Buckets grow, their bounds as well, and the last holds everything.
    fn check_buckets(&self, body: &str) {
        let mut last: Option<(String, f64, f64)> = None;
        for line in body.lines().filter(|line| line.contains("_bucket{")) {
            let (series, count) = line.rsplit_once(' ').unwrap();
            let (before, bound) = series.split_once("le=\"").expect("a bucket has a bound");
            let (bound, after) = bound.split_once('"').unwrap();
            let key = format!("{before}{after}").replace("_bucket", "_count").replace("{,", "{");
            let key = key.replace("{}", "");
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
            let count: f64 = count.parse().unwrap();
            if let Some((_, least, fewest)) = last.as_ref().filter(|(of, ..)| *of == key) {
                assert!(bound > *least && count >= *fewest, "{line}");
            }
            if bound.is_infinite() {
                assert!((self.value(&key) - count).abs() < f64::EPSILON, "{line} of {key}");
            }
            last = Some((key, bound, count));
        }
    }
}

/// Checks `name{label="value",…}` and gives the name.
fn check_series(series: &str) -> &str {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let (name, labels) = match series.split_once('{') {
        None => (series, None),
        Some((name, labels)) => (name, Some(labels.strip_suffix('}').expect("labels end"))),
    };
    assert!(is_name(name) && name.starts_with("a2g_"), "{series}");
    for label in labels.into_iter().flat_map(|labels| labels.split(',')) {
        let (key, value) = label.split_once('=').unwrap_or_else(|| panic!("no label: {series}"));
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let plain = value.is_some_and(|value| !value.contains(['"', '\\', '\n']));
        assert!(is_name(key) && plain, "{series}");
    }
    name
}

/// Asks an executor for its metrics.
pub fn scrape(executor: &Executor) -> Exposition {
    let answer = executor.client().request("GET", "/metrics", &[], b"");
    assert_eq!(answer.status, 200);
    let kind = answer.headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| &**value);
    assert_eq!(kind, Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    Exposition::read(&answer.text())
}
