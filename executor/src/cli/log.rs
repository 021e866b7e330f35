//! Logging to standard error, filtered by `RUST_LOG`.
//!
//! Interactive commands log text. A service (`serve`, `governor`) writes only its log: text if standard error is a
//! terminal, and otherwise one JSON object per line. The fields of an event and of its spans are members of the same
//! object, so that every line about an intent has `intent`, `agent` and `tool` in the same place. tracing-subscriber's
//! own JSON layer would put the fields of spans into `span` and `spans`, where no single query finds them all.

use super::output::supports_colours;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use serde_json::{Map, Value};
use std::fmt::Debug;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, FilterFn};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// RFC 3339 in UTC, with a fixed width.
const TIMESTAMP: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// Starts the log of an interactive command.
pub(super) fn start_logging(default: &str) {
    tracing_subscriber::registry().with(text_layer().with_filter(filter(default))).init();
}

/// Runs a service: all of its output, including the error that ends it, goes to its log. The last traces are sent at
/// the end.
pub fn service(command: impl FnOnce() -> anyhow::Result<ExitCode>) -> ExitCode {
    let layer = if std::io::stderr().is_terminal() {
        text_layer()
    } else {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        JsonLines.boxed()
    };
    let registry = tracing_subscriber::registry().with(layer.with_filter(filter("info")));
    #[cfg(feature = "otlp")]
    let _exporter = super::otlp::start(registry);
    #[cfg(not(feature = "otlp"))]
    registry.init();
    command().unwrap_or_else(|error| {
        tracing::error!("{}", ErrorChain(error.as_ref()));
        super::exit_code_of(&error)
    })
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn text_layer() -> BoxedLayer {
    let colours = supports_colours(&std::io::stderr());
    tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .boxed()
}

/// The filter of `RUST_LOG`, with `debug` and `trace` limited to the crates of the executor: jsonrpsee logs complete
/// messages, with arguments and proofs, and the URL that it connects to, with the password. A list of such crates would
/// have to be checked at every upgrade. No spans of other crates: wasmtime-wasi opens one of level `info` for each call
/// of a guest, so a guest in the server's own process would pay for a formatted record with every call.
pub(super) fn filter<S: Subscriber>(default: &str) -> impl Filter<S> + use<S> {
    let requested = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let safe = FilterFn::new(|metadata| {
        metadata.target().starts_with("a2g_") || (!metadata.is_span() && *metadata.level() <= Level::INFO)
    });
    // With a hint for both filters, code below the requested level costs one comparison.
    requested.and(safe.with_max_level_hint(Level::TRACE))
}

/// A layer that writes one JSON object for each event.
struct JsonLines;

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        match u64::try_from(value) {
            Ok(value) => self.set(field, value),
            Err(_) => self.set(field, value.to_string()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut event_fields = Fields::default();
        event.record(&mut event_fields);
        let mut line = line_head(event, &mut event_fields, SystemClock.now());
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            line.insert("span".to_owned(), span.name().into());
            if let Some(Fields(fields)) = span.extensions().get::<Fields>() {
                line.extend(fields.clone());
            }
        }
        line.extend(event_fields.0);
        // A single write, so that the lines of several threads do not mix.
        let line = format!("{}\n", Value::Object(line));
        let _ignored = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The members at the start of every line.
fn line_head(event: &Event<'_>, fields: &mut Fields, now: OffsetDateTime) -> Map<String, Value> {
    let metadata = event.metadata();
    let message = fields.0.shift_remove("message").unwrap_or_default();
    let head = [
        ("timestamp", now.format(TIMESTAMP).unwrap_or_default().into()),
        ("level", metadata.level().as_str().into()),
        ("target", metadata.target().into()),
        ("message", message),
    ];
    head.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
