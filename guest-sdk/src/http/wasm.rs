//! Requests over `wasi:http/outgoing-handler` 0.2.12, the WASI release that the preview 1 adapter also uses.
//!
//! No request takes longer than its timeout, because every wait also waits for the clock.

use std::time::Duration;

use wasip2::clocks::monotonic_clock;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    self as wasi, ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, OutgoingBody,
    OutgoingRequest,
};
use wasip2::io::poll::{self, Pollable};
use wasip2::io::streams::{InputStream, StreamError};

use super::{HeaderMap, HeaderName, HeaderValue, Method, Opened, Reason, Request};
use crate::bindings::a2g::tool::host;

/// Size of one read of a body, in bytes.
const CHUNK_BYTES: u64 = 64 * 1024;

/// True if the run has a network. Without one, a call of any function of `wasi:http` ends the run.
pub(super) fn is_on() -> bool {
    host::network()
}

/// Sends the request and reads the head of the response.
pub(super) fn open(request: &Request) -> Result<Opened, Reason> {
    let clock = Clock::start(request.timeout);
    let outgoing = outgoing(request)?;
    // A call of `body()`, even for an empty body, would add body headers to the request.
    let body = if request.body.is_empty() {
        None
    } else {
        Some(outgoing.body().map_err(|()| invalid_value("the body"))?)
    };
    let answer = outgoing_handler::handle(outgoing, None).map_err(reason)?;
    let unfinished = match body {
        None => None,
        Some(body) => upload(body, &request.body, &answer, &clock)?,
    };
    let response = loop {
        match answer.get() {
            Some(Ok(result)) => break result.map_err(reason)?,
            Some(Err(())) => return Err(Reason::Transport("the response was already taken".to_owned())),
            None => clock.wait(&[&answer.subscribe()])?,
        }
    };
    let status = response.status();
    let headers = headers(&response)?;
    let taken = |()| Reason::Transport("the body was already taken".to_owned());
    let incoming = response.consume().map_err(taken)?;
    let stream = incoming.stream().map_err(taken)?;
    let body = Body {
        stream,
        _incoming: incoming,
        _response: response,
        _answer: answer,
        _unfinished: unfinished,
        clock,
    };
    Ok(Opened { status, headers, body })
}

/// The body of a response, as it arrives. The fields are dropped in this order, because the contract requires that a
/// stream is dropped before its body.
#[derive(Debug)]
pub(crate) struct Body {
    stream: InputStream,
    _incoming: IncomingBody,
    _response: IncomingResponse,
    _answer: FutureIncomingResponse,
    /// An unfinished body of the request lives until the response is read, because dropping it closes the connection.
    _unfinished: Option<OutgoingBody>,
    clock: Clock,
}

impl Body {
    /// Waits for the next chunk; `None` at the end.
    pub(super) fn next_part(&mut self) -> Result<Option<Vec<u8>>, Reason> {
        loop {
            match self.stream.read(CHUNK_BYTES) {
                Ok(chunk) if chunk.is_empty() => self.clock.wait(&[&self.stream.subscribe()])?,
                Ok(chunk) => return Ok(Some(chunk)),
                Err(StreamError::Closed) => return Ok(None),
                Err(StreamError::LastOperationFailed(error)) => {
                    return Err(wasi::http_error_code(&error)
                        .map_or_else(|| Reason::Transport(error.to_debug_string()), reason));
                }
            }
        }
    }
}

/// The deadline of one request.
#[derive(Debug)]
struct Clock {
    deadline: Option<(Pollable, Duration)>,
}

impl Clock {
    fn start(timeout: Option<Duration>) -> Self {
        let deadline = timeout.map(|timeout| {
            let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            (monotonic_clock::subscribe_duration(nanoseconds), timeout)
        });
        Self { deadline }
    }

    /// Waits until one of `on` is ready. After the deadline the wait fails even if one of them is ready; otherwise a
    /// peer that sends a byte now and then could prolong the request forever.
    fn wait(&self, on: &[&Pollable]) -> Result<(), Reason> {
        let Some((passed, timeout)) = &self.deadline else {
            poll::poll(on);
            return Ok(());
        };
        let all: Vec<&Pollable> = on.iter().copied().chain([passed]).collect();
        poll::poll(&all);
        if passed.ready() {
            let rounded = *timeout + Duration::from_micros(500);
            let within = Duration::from_millis(u64::try_from(rounded.as_millis()).unwrap_or(u64::MAX));
            return Err(Reason::Timeout(format!("there was no complete response within {within:?}")));
        }
        Ok(())
    }
}

fn outgoing(request: &Request) -> Result<OutgoingRequest, Reason> {
    let outgoing = OutgoingRequest::new(fields(request)?);
    let url = &request.url;
    let scheme = if url.scheme_str() == Some("https") { wasi::Scheme::Https } else { wasi::Scheme::Http };
    let authority = url.authority().map(|authority| authority.as_str());
    let path = url.path_and_query().map(|path| path.as_str());
    outgoing.set_method(&method(&request.method)).map_err(|()| invalid_value("the method"))?;
    outgoing.set_scheme(Some(&scheme)).map_err(|()| invalid_value("the scheme"))?;
    outgoing.set_authority(authority).map_err(|()| invalid_value("the authority"))?;
    outgoing.set_path_with_query(path).map_err(|()| invalid_value("the path"))?;
    Ok(outgoing)
}

fn method(method: &Method) -> wasi::Method {
    match method.as_str() {
        "GET" => wasi::Method::Get,
        "HEAD" => wasi::Method::Head,
        "POST" => wasi::Method::Post,
        "PUT" => wasi::Method::Put,
        "DELETE" => wasi::Method::Delete,
        "OPTIONS" => wasi::Method::Options,
        "PATCH" => wasi::Method::Patch,
        other => wasi::Method::Other(other.to_owned()),
    }
}

/// The headers of the request, with a `content-length` if the server expects one. Without it, the body would be sent in
/// chunks, which some servers reject.
fn fields(request: &Request) -> Result<Fields, Reason> {
    let fields = Fields::new();
    for (name, value) in &request.headers {
        fields.append(name.as_str(), value.as_bytes()).map_err(|error| match error {
            wasi::HeaderError::Forbidden => {
                Reason::Invalid(format!("a tool may not set the header `{name}`: remove it"))
            }
            wasi::HeaderError::InvalidSyntax | wasi::HeaderError::Immutable => {
                invalid_value(&format!("the header `{name}`"))
            }
        })?;
    }
    let wants_length = matches!(request.method, Method::POST | Method::PUT | Method::PATCH);
    if wants_length || !request.body.is_empty() {
        let length = request.body.len().to_string();
        fields
            .append("content-length", length.as_bytes())
            .map_err(|_| invalid_value("the length of the body"))?;
    }
    Ok(fields)
}

/// Sends the body until the server has responded, which it may do before it has read everything. Returns the body if it
/// is unfinished.
fn upload(
    body: OutgoingBody,
    bytes: &[u8],
    answer: &FutureIncomingResponse,
    clock: &Clock,
) -> Result<Option<OutgoingBody>, Reason> {
    let stream = body.write().map_err(|()| invalid_value("the body"))?;
    let mut left = bytes;
    while !left.is_empty() {
        // If the stream breaks, the reason is in the response.
        let Ok(room) = stream.check_write() else { return Ok(Some(body)) };
        let (now, later) = left.split_at(left.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
        if now.is_empty() {
            let answered = answer.subscribe();
            clock.wait(&[&stream.subscribe(), &answered])?;
            if answered.ready() {
                return Ok(Some(body));
            }
        } else if stream.write(now).is_err() {
            return Ok(Some(body));
        }
        left = later;
    }
    // The same holds for a flush that fails.
    let _ = stream.flush();
    drop(stream);
    OutgoingBody::finish(body, None).map_err(reason)?;
    Ok(None)
}

fn headers(response: &IncomingResponse) -> Result<HeaderMap, Reason> {
    let mut headers = HeaderMap::new();
    for (name, value) in response.headers().entries() {
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value))
        else {
            return Err(Reason::Transport("the response contains an invalid header".to_owned()));
        };
        headers
            .try_append(name, value)
            .map_err(|_| Reason::Transport("the response has too many headers".to_owned()))?;
    }
    Ok(headers)
}

/// The error for a part of the request that the executor rejects.
fn invalid_value(what: &str) -> Reason {
    Reason::Invalid(format!("the executor does not accept {what} of this request"))
}

/// The reason for each error code of `wasi:http`.
fn reason(code: ErrorCode) -> Reason {
    let timeout = |what: &str| Reason::Timeout(what.to_owned());
    let denied = |what: &str| Reason::Denied(what.to_owned());
    let limit = |what: &str| Reason::Limit(what.to_owned());
    let invalid = |what: &str| Reason::Invalid(what.to_owned());
    let broken = |what: &str| Reason::Transport(what.to_owned());
    match code {
        ErrorCode::DnsTimeout => timeout("the host name was not resolved in time"),
        ErrorCode::ConnectionTimeout => timeout("the connection was not established in time"),
        ErrorCode::ConnectionReadTimeout => timeout("no data was received in time"),
        ErrorCode::ConnectionWriteTimeout => timeout("the request could not be sent in time"),
        ErrorCode::HttpResponseTimeout => timeout("there was no response in time"),

        ErrorCode::DestinationIpProhibited => denied("the address of the host is not allowed"),
        ErrorCode::HttpRequestDenied => {
            denied("the host or the method is not allowed, or there were too many requests")
        }

        ErrorCode::ConnectionLimitReached => limit("too many connections or requests"),
        ErrorCode::HttpRequestBodySize(_) => limit("the body of the request is too large"),
        ErrorCode::HttpRequestUriTooLong => limit("the URL is too long"),
        ErrorCode::HttpRequestHeaderSectionSize(_) | ErrorCode::HttpRequestHeaderSize(_) => {
            limit("the headers of the request are too large")
        }
        ErrorCode::HttpRequestTrailerSectionSize(_) | ErrorCode::HttpRequestTrailerSize(_) => {
            limit("the trailers of the request are too large")
        }
        ErrorCode::HttpResponseHeaderSectionSize(_) | ErrorCode::HttpResponseHeaderSize(_) => {
            limit("the headers of the response are too large")
        }
        ErrorCode::HttpResponseBodySize(_) => limit("the body of the response is too large"),
        ErrorCode::HttpResponseTrailerSectionSize(_) | ErrorCode::HttpResponseTrailerSize(_) => {
            limit("the trailers of the response are too large")
        }

        ErrorCode::HttpRequestLengthRequired => invalid("the request has to state the length of its body"),
        ErrorCode::HttpRequestMethodInvalid => invalid("the executor does not accept this method"),
        ErrorCode::HttpRequestUriInvalid => invalid("the executor does not accept this URL"),

        ErrorCode::DnsError(payload) => Reason::Transport(match payload.rcode {
            Some(rcode) => format!("the host name could not be resolved: {rcode}"),
            None => "the host name could not be resolved".to_owned(),
        }),
        ErrorCode::DestinationNotFound => broken("there is no such host"),
        ErrorCode::DestinationUnavailable => broken("the host cannot be reached"),
        ErrorCode::DestinationIpUnroutable => broken("there is no route to the host"),
        ErrorCode::ConnectionRefused => broken("the host refused the connection"),
        ErrorCode::ConnectionTerminated => broken("the connection was closed before there was a response"),
        ErrorCode::TlsProtocolError => broken("the TLS handshake with the host failed"),
        ErrorCode::TlsCertificateError => broken("the certificate of the host is not trusted"),
        ErrorCode::TlsAlertReceived(payload) => Reason::Transport(match payload.alert_message {
            Some(alert) => format!("the host closed the TLS connection: {alert}"),
            None => "the host closed the TLS connection".to_owned(),
        }),
        ErrorCode::HttpResponseIncomplete => broken("the response ended too early"),
        ErrorCode::HttpResponseTransferCoding(_) => broken("the response has an unknown transfer coding"),
        ErrorCode::HttpResponseContentCoding(_) => broken("the response has an unknown content coding"),
        ErrorCode::HttpUpgradeFailed => broken("the host requires another protocol"),
        ErrorCode::HttpProtocolError => broken("the request or the response is not valid HTTP"),
        ErrorCode::LoopDetected => broken("a loop of requests was detected"),
        ErrorCode::ConfigurationError => broken("the network of the executor is misconfigured"),
        ErrorCode::InternalError(what) => Reason::Transport(match what {
            Some(what) => format!("the request failed: {what}"),
            None => "the request failed inside the executor".to_owned(),
        }),
    }
}
