//! An OpenTelemetry collector: it takes traces over OTLP (HTTP, protobuf), and keeps them.

use super::http::read_message;
use super::{Listener, eventually, tls_config};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufReader, Read, Write};
use std::sync::{Arc, Mutex};

/// One span, as it was sent.
#[derive(Debug, Clone)]
pub struct Span {
    pub service: String,
    pub name: String,
    /// As the intent's id is written.
    pub trace: String,
    pub id: Vec<u8>,
    pub parent: Vec<u8>,
    /// Trace and span of each link, in hexadecimal.
    pub links: Vec<(String, String)>,
    pub attributes: Vec<(String, String)>,
    pub failed: bool,
    pub nanoseconds: u64,
}

impl Span {
    /// One attribute, empty when it has none of that name.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

#[derive(Default)]
struct CollectedSpans {
    spans: Vec<Span>,
    /// Heads and bodies as they came.
    bytes: Vec<u8>,
}

/// A running one.
pub struct Collector {
    url: String,
    _listener: Listener,
    kept: Arc<Mutex<CollectedSpans>>,
}

impl Collector {
    /// Starts one.
    pub fn start() -> Self {
        Self::start_as("http://127.0.0.1", None)
    }

    /// Starts one that speaks TLS, and gives its certificate in PEM.
    pub fn start_with_tls() -> (Self, String) {
        let (config, certificate) = tls_config(&["localhost"]);
        (Self::start_as("https://localhost", Some(config)), certificate)
    }

    fn start_as(place: &str, tls: Option<Arc<ServerConfig>>) -> Self {
        let kept = Arc::<Mutex<CollectedSpans>>::default();
        let into = Arc::clone(&kept);
        let listener = Listener::start(move |stream| match &tls {
            None => converse(stream, &into),
            Some(config) => {
                let server = ServerConnection::new(Arc::clone(config)).expect("a connection");
                converse(StreamOwned::new(server, stream), &into);
            }
        });
        Self { url: format!("{place}:{}", listener.address.port()), _listener: listener, kept }
    }

    /// URL of the collector for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.kept.lock().unwrap().spans.clone()
    }

    /// The spans of one intent, once there are so many.
    pub fn spans_of(&self, intent: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans of {intent}"), || {
            let of: Vec<_> = self.spans().into_iter().filter(|span| span.trace == intent).collect();
            (of.len() >= count).then_some(of)
        })
    }

    /// Everything that was sent to it.
    pub fn bytes(&self) -> Vec<u8> {
        self.kept.lock().unwrap().bytes.clone()
    }
}

fn converse(stream: impl Read + Write, kept: &Mutex<CollectedSpans>) {
    let mut reader = BufReader::new(stream);
    while let Ok((first, headers, body)) = read_message(&mut reader) {
        assert_eq!(first, "POST /v1/traces HTTP/1.1");
        let protobuf = ("content-type".to_owned(), "application/x-protobuf".to_owned());
        assert!(headers.contains(&protobuf), "{headers:?}");
        let request = ExportTraceServiceRequest::decode(&*body).expect("OTLP");
        let mut kept = kept.lock().unwrap();
        kept.bytes.extend(format!("{headers:?}").bytes());
        kept.bytes.extend(&body);
        kept.spans.extend(spans(request));
        drop(kept);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        if reader.get_mut().write_all(answer).is_err() {
            return;
        }
    }
}

fn spans(request: ExportTraceServiceRequest) -> Vec<Span> {
    let text = |value: Option<AnyValue>| match value?.value {
        Some(Value::StringValue(text)) => Some(text),
        other => Some(format!("{other:?}")),
    };
    let mut all = Vec::new();
    for resource in request.resource_spans {
        let attributes = resource.resource.expect("a resource").attributes;
        let service = attributes.into_iter().find(|attribute| attribute.key == "service.name");
        let service = text(service.expect("a service").value).unwrap_or_default();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let trace = <[u8; 16]>::try_from(span.trace_id).expect("16 bytes");
            let attributes = span.attributes.into_iter();
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let links = span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect();
            all.push(Span {
                links,
                service: service.clone(),
                name: span.name,
                trace: uuid::Uuid::from_bytes(trace).to_string(),
                id: span.span_id,
                parent: span.parent_span_id,
                attributes: attributes.map(|a| (a.key, text(a.value).unwrap_or_default())).collect(),
                failed: span.status.is_some_and(|status| status.code == 2),
                nanoseconds: span.end_time_unix_nano - span.start_time_unix_nano,
            });
        }
    }
    all
}
