//! Exports traces to an OpenTelemetry collector over OTLP (HTTP, protobuf), if the standard environment variables name
//! a collector.
//!
//! ```text
//! trace id = the intent's id     intent ─┬─ queue
//!                                        ├─ run
//!                                        └─ delivery, one for each attempt, even by a later process
//! ```
//! The id of the root span is derived from the intent's id as well, so that a process that only delivers the report,
//! after a restart, can name the parent of its span. `tracing-opentelemetry` can derive neither of these two ids, which
//! is why spans are created here. The caller's own trace is therefore a link of the intent's span, and not its parent.
//! The SDK queues spans and sends them from its own thread: while the collector is unreachable, spans are lost, but no
//! run is delayed. Sampling is left to the collector: the root span is exported after its children, so a decision about
//! the root span would come too late for its children.

use a2g_sandbox::egress::client_config;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor};
use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::runtime::Runtime;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use uuid::Uuid;

/// Maximum time for sending the last spans at the end of the process.
const LAST_SPANS_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of one request to the collector. The exporter's own limit for all attempts of a batch is
/// `OTEL_EXPORTER_OTLP_TIMEOUT`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts logging, and exporting if the environment names a collector. Dropping the returned value sends the last
/// spans.
pub(super) fn start(log: impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync) -> Option<Exporter> {
    let exporter = Exporter::from_environment();
    subscriber(log, exporter.as_ref().ok().and_then(Option::as_ref)).init();
    exporter.unwrap_or_else(|error| {
        tracing::error!("traces are not exported: {}", ErrorChain(error.as_ref()));
        None
    })
}

/// Not `with(None)`: an absent layer has no filter, so every span of every crate would be created for it.
fn subscriber(
    log: impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    exporter: Option<&Exporter>,
) -> Dispatch {
    match exporter {
        Some(exporter) => log.with(exporter.layer()).into(),
        None => log.into(),
    }
}

#[allow(clippy::disallowed_methods, reason = "the names and their meaning are OpenTelemetry's")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns `true` if the environment names a collector. The SDK reads the other variables, such as headers and the size
/// of a batch.
fn has_collector() -> bool {
    let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    !disabled && endpoints.into_iter().any(|name| variable(name).is_some())
}

/// Exports spans. Dropping this value sends the last spans.
pub(super) struct Exporter(Arc<BatchSpanProcessor>);

impl Exporter {
    fn from_environment() -> anyhow::Result<Option<Self>> {
        if !has_collector() {
            return Ok(None);
        }
        let exporter =
            SpanExporter::builder().with_http().with_http_client(CollectorClient::new()?).build()?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        processor.set_resource(&resource());
        Ok(Some(Self(Arc::new(processor))))
    }

    fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        let unversioned = InstrumentationScope::builder(env!("CARGO_PKG_NAME"));
        let scope = unversioned.with_version(env!("CARGO_PKG_VERSION")).build();
        let own_spans = FilterFn::new(|metadata| metadata.is_span() && metadata.target().starts_with("a2g_"));
        let executor_spans = own_spans.with_max_level_hint(LevelFilter::INFO);
        TraceLayer { processor: Arc::clone(&self.0), scope }.with_filter(executor_spans)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_SPANS_TIMEOUT) {
            tracing::warn!(%error, "the last traces could not be exported");
        }
    }
}

/// The resource from the environment, or else one with this program's name.
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let name = resource.get(&"service.name".into());
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return resource;
    }
    Resource::builder().with_service_name(env!("CARGO_PKG_NAME")).build()
}

/// The HTTP client of the collector, used only on the exporter's thread.
#[derive(Debug)]
struct CollectorClient {
    runtime: Runtime,
    client: Arc<dyn HttpClient>,
    /// `true` if the last request failed, so that an outage is logged once.
    is_unreachable: AtomicBool,
}

impl CollectorClient {
    fn new() -> anyhow::Result<Self> {
        let variables = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
        let certificates = variables.into_iter().find_map(variable).map(PathBuf::from);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(certificates.as_deref())?)
            .https_or_http()
            .enable_http1()
            .build();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Arc::new(HyperClient::new(connector, REQUEST_TIMEOUT, None));
        Ok(Self { runtime, client, is_unreachable: AtomicBool::new(false) })
    }

    /// Logs when the collector becomes unreachable, and when it is reachable again.
    fn log_reachability(&self, answer: &Result<Response<Bytes>, HttpError>) {
        let problem = match answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        match (self.is_unreachable.swap(problem.is_some(), Ordering::Relaxed), problem) {
            (false, Some(error)) => tracing::warn!(error, "the collector does not accept traces"),
            (true, None) => tracing::info!("the collector accepts traces again"),
            (true, Some(_)) | (false, None) => {}
        }
    }
}

impl HttpClient for CollectorClient {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let answer = self.runtime.block_on(self.client.send_bytes(request));
            self.log_reachability(&answer);
            answer
        })
    }
}

/// Converts each span of an intent into an OpenTelemetry span when it ends.
struct TraceLayer {
    processor: Arc<BatchSpanProcessor>,
    scope: InstrumentationScope,
}

struct OpenSpan {
    started_at: SystemTime,
    fields: Fields,
}

/// The exported fields of a span, with the prefix `a2g.`.
#[derive(Default)]
struct Fields {
    intent: Option<Uuid>,
    /// `true` for the span of an intent that ran.
    has_run: bool,
    failed: Option<String>,
    /// The trace context of the caller, from the span around the intent's span.
    caller: Option<SpanContext>,
    attributes: Vec<KeyValue>,
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "failed" && value {
            self.failed = Some("the governor did not acknowledge the report".to_owned());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "traceparent" {
            self.caller = parse_traceparent(value);
            return;
        }
        if field.name() == "status" {
            self.has_run = true;
            self.failed = (!["SUCCESS", "STAGED"].contains(&value)).then(|| value.to_owned());
        }
        self.attributes.push(KeyValue::new(format!("a2g.{}", field.name()), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        if field.name() == "intent" {
            self.intent = Uuid::parse_str(&value).ok();
        }
        self.record_str(field, &value);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let Some(span) = context.span(id) else { return };
        if let Some(parent) = span.parent()
            && let Some(OpenSpan { fields: outer, .. }) = parent.extensions().get::<OpenSpan>()
        {
            fields.caller = match fields.intent {
                Some(_) => outer.caller.clone(),
                None => fields.caller,
            };
            fields.intent = fields.intent.or(outer.intent);
        }
        span.extensions_mut().insert(OpenSpan { started_at: SystemClock.now().into(), fields });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<OpenSpan>()
        {
            values.record(&mut open.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else { return };
        if let Some(data) = self.data(span.name(), open) {
            self.processor.on_end(data);
        }
    }
}

impl TraceLayer {
    /// The span as it is exported; `None` if it belongs to no intent.
    fn data(&self, name: &'static str, open: OpenSpan) -> Option<SpanData> {
        let OpenSpan { started_at, fields: Fields { intent, has_run, failed, caller, attributes } } = open;
        let intent = intent?;
        let trace = TraceId::from(intent.as_u128());
        let root = SpanId::from(intent.as_u64_pair().1);
        let kind = match name {
            "intent" => SpanKind::Server,
            "delivery" => SpanKind::Client,
            _part_of_an_intent => SpanKind::Internal,
        };
        // Only the intent span that ran is the root. A refusal, or a repeat that got the stored receipt, is another
        // span of the same trace.
        let (id, parent) = match (name, has_run) {
            ("intent", true) => (root, SpanId::INVALID),
            ("intent", false) => (random_span_id(), SpanId::INVALID),
            _part_of_an_intent => (random_span_id(), root),
        };
        let mut links = SpanLinks::default();
        links.links.extend(caller.map(Link::with_context));
        Some(SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default()),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: kind,
            name: name.into(),
            start_time: started_at,
            end_time: SystemClock.now().into(),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: failed.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        })
    }
}

/// Parses a trace context that the door of the call has checked.
fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let [_, trace, span, flags] = *text.split('-').collect::<Vec<_>>() else { return None };
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let trace = TraceId::from_hex(trace).ok()?;
    let span = SpanId::from_hex(span).ok()?;
    Some(SpanContext::new(trace, span, flags, true, TraceState::default()))
}

fn random_span_id() -> SpanId {
    SpanId::from(Uuid::new_v4().as_u64_pair().1)
}

#[cfg(test)]
mod tests {
    use super::super::log::filter;
    use super::subscriber;
    use tracing::dispatcher::with_default;
    use tracing::{Level, enabled, info_span};
    use tracing_subscriber::Layer as _;
    use tracing_subscriber::layer::SubscriberExt as _;

    #[test]
    fn spans_of_other_crates_are_never_created() {
        let layer = tracing_subscriber::fmt::layer().with_filter(filter("info"));
        let log = tracing_subscriber::registry().with(layer);
        with_default(&subscriber(log, None), || {
            assert!(info_span!(target: "wasmtime_wasi::p1", "fd_write").is_disabled());
            assert!(!info_span!(target: "a2g_core::run", "intent").is_disabled());
            assert!(enabled!(target: "jsonrpsee", Level::WARN));
            assert!(!enabled!(target: "jsonrpsee", Level::DEBUG));
        });
    }
}
