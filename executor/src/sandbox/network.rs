//! The network as a guest sees it: `wasi:http`, here, and `wasi:sockets`, in [`super::sockets`], over the
//! run's carrier; or nothing.
//!
//! A component that imports a network interface is linked twice when it is loaded. In a run with a
//! network its calls go to the carrier without a look at them: who may be reached is decided there. In a
//! run without one, each of those functions ends the run with a sentence that says who took the network
//! away. UDP is offered to no run: it can be imported, because standard libraries do, and no socket is made.

use super::sockets;
use super::state::State;
use crate::egress::{Body, Carrier, EgressError, MAX_HEAD_BYTES, NetworkError, Patience};
use crate::limit::{Bound, Layer};
use crate::outcome::DenialReason;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, ResourceType, Val};
use wasmtime_wasi_http::{
    Error as HttpError, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

/// The interfaces by which a guest can ask for a web page.
const HTTP: [&str; 2] = ["wasi:http/types", "wasi:http/outgoing-handler"];
/// The interface of UDP, which no call gives a socket to use it with.
const UDP: &str = "wasi:sockets/udp";
/// And the one by which such a socket is asked for.
const UDP_CREATE: &str = "wasi:sockets/udp-create-socket";
/// The most bytes of a request's body that wait to be sent.
const CHUNK_BYTES: usize = 64 << 10;

/// The network of one store.
pub(super) struct Http {
    context: WasiHttpCtx,
    hooks: Hooks,
}

/// Where requests go.
struct Hooks {
    carrier: Option<Arc<dyn Carrier>>,
}

impl Http {
    pub(super) fn new(carrier: Option<Arc<dyn Carrier>>) -> Self {
        let mut context = WasiHttpCtx::new();
        context.set_field_size_limit(MAX_HEAD_BYTES);
        Self { context, hooks: Hooks { carrier } }
    }

    /// Whether the run has a network.
    pub(super) fn is_on(&self) -> bool {
        self.hooks.carrier.is_some()
    }

    /// Who takes what the guest asks of the network, when the run has one.
    pub(super) fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        self.hooks.carrier.clone()
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        let Self { wasi, http, .. } = self;
        let table = wasmtime_wasi::WasiView::ctx(wasi).table;
        WasiHttpCtxView { hooks: &mut http.hooks, table, ctx: &mut http.context }
    }
}

/// What comes back of a request: the answer, and a future of what only keeps it going.
type Sent = Result<(http::Response<WasiBody>, Background), HttpError>;
type Background = Box<dyn Future<Output = Result<(), HttpError>> + Send>;

impl WasiHttpHooks for Hooks {
    /// The checked host is written by the way out.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Background,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let carrier = self.carrier.clone();
        let RequestOptions { connect_timeout, first_byte_timeout, between_bytes_timeout } =
            options.unwrap_or_default();
        let patience = Patience {
            connect: connect_timeout,
            first_byte: first_byte_timeout,
            between_bytes: between_bytes_timeout,
        };
        let request: http::Request<Body> =
            request.map(|body| body.map_err(|_broken_off| NetworkError::RequestBody.into()).boxed_unsync());
        Box::new(async move {
            // Without a carrier nothing that leads here is linked.
            let carrier = carrier.ok_or(HttpError::HttpRequestDenied)?;
            let answer = carrier.send(request, patience).await.map_err(told)?;
            let answer = answer.map(|body| body.map_err(told).boxed_unsync());
            Ok((answer, Box::new(std::future::ready(Ok(()))) as Background))
        })
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }
}

/// A refusal in the words of `wasi:http`.
fn told(refusal: EgressError) -> HttpError {
    match refusal {
        EgressError::Denied(reason) => match reason {
            DenialReason::Authority => HttpError::HttpRequestUriInvalid,
            DenialReason::Address | DenialReason::IpLiteral | DenialReason::NotLookedUp => {
                HttpError::DestinationIpProhibited
            }
            DenialReason::Connections => HttpError::ConnectionLimitReached,
            DenialReason::SentBytes => HttpError::HttpRequestBodySize(None),
            DenialReason::ReceivedBytes => HttpError::HttpResponseBodySize(None),
            DenialReason::DomainNotAllowed
            | DenialReason::DomainBlocked
            | DenialReason::Requests
            | DenialReason::RequestRate
            | DenialReason::NetworkOff
            | DenialReason::NotOffered
            | DenialReason::OutsideScope
            | DenialReason::EscapesRoot
            | DenialReason::ReadOnly
            | DenialReason::HostPermissions
            | DenialReason::Link
            | DenialReason::HardLink => HttpError::HttpRequestDenied,
        },
        EgressError::Failed(failure) => match failure {
            NetworkError::Scheme | NetworkError::Request => HttpError::HttpProtocolError,
            NetworkError::Method => HttpError::HttpRequestMethodInvalid,
            NetworkError::RequestHead => HttpError::HttpRequestHeaderSectionSize(None),
            NetworkError::RequestBody => HttpError::HttpRequestBodySize(None),
            NetworkError::Name => HttpError::DestinationNotFound,
            NetworkError::Refused => HttpError::ConnectionRefused,
            NetworkError::ConnectTimeout => HttpError::ConnectionTimeout,
            NetworkError::Certificate => HttpError::TlsCertificateError,
            NetworkError::Tls => HttpError::TlsProtocolError,
            NetworkError::AnswerTimeout => HttpError::HttpResponseTimeout,
            NetworkError::AnswerHead => HttpError::HttpResponseHeaderSectionSize(None),
            NetworkError::Upgrade => HttpError::HttpUpgradeFailed,
            NetworkError::Answer => HttpError::HttpProtocolError,
            NetworkError::Incomplete | NetworkError::Broken => HttpError::HttpResponseIncomplete,
            NetworkError::Over => HttpError::ConnectionTerminated,
        },
    }
}

/// A call to a network interface in a run that does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NetworkDeniedError {
    #[error("it called `{interface}`, and this run has no network: {}", why(*.layer))]
    Off { interface: &'static str, layer: Layer },
    #[error("it called `{interface}`, which this executor does not offer: use `wasi:http` or TCP")]
    NotOffered { interface: &'static str },
}

/// Who took the network away, and what to change.
fn why(layer: Layer) -> &'static str {
    match layer {
        Layer::Verdict => "the verdict does not grant it (`network_allowed`)",
        Layer::Operator => {
            "the operator does not grant it: `a2g-executor run` grants one by a policy (`--policy`)"
        }
        Layer::Condition => "the verdict is under the condition `no_network`",
        Layer::StandingPolicy => {
            "the standing policy of the agent allows no host that the other layers allow \
             (`capabilities.network.allowed_domains`)"
        }
        Layer::Tool => "the tool does not ask for it: set `network = true` in its `tool.toml`",
        Layer::Executor => {
            "the executor's configuration does not allow it (`ceilings.network_allowed`, \
             `network.allowed_domains`)"
        }
        Layer::Caller => "the caller did not ask for it",
    }
}

/// The name of a network interface without its version, when `import` is one in the version that is
/// offered.
fn interface(import: &str) -> Option<&'static str> {
    let (name, version) = import.split_once('@')?;
    let mut known = HTTP.into_iter().chain(sockets::OFFERED).chain([UDP, UDP_CREATE]);
    known.find(|known| *known == name && version.starts_with("0.2."))
}

/// Whether a component imports the network at all.
pub(super) fn is_imported(component: &Component, engine: &Engine) -> bool {
    component.component_type().imports(engine).any(|(name, _)| interface(name).is_some())
}

/// Links what a run with a network has: `wasi:http` and TCP, outgoing only.
pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    sockets::link(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)
}

/// Links those network interfaces of a component that a run does not have: all of them, or in one with a
/// network those of UDP. Each function ends the run, but that asking for a socket of UDP is refused where
/// there is a network.
pub(super) fn link_none(
    linker: &mut Linker<State>,
    component: &Component,
    engine: &Engine,
    on: bool,
) -> wasmtime::Result<()> {
    // Resources that came with an earlier import; a later one that names them again needs no definition.
    let mut known = Vec::new();
    for (import, item) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(instance) = item.ty else { continue };
        let mut resources = Vec::new();
        for (name, export) in instance.exports(engine) {
            if let ComponentItem::Resource(resource) = export.ty
                && !known.contains(&resource)
            {
                known.push(resource);
                resources.push(name);
            }
        }
        let Some(interface) = interface(import) else { continue };
        if on && interface != UDP && interface != UDP_CREATE {
            continue;
        }
        let mut linked = linker.instance(import)?;
        for name in resources {
            linked.resource(name, ResourceType::host::<NetworkDeniedError>(), |_, _| Ok(()))?;
        }
        for (name, export) in instance.exports(engine) {
            let ComponentItem::ComponentFunc(_) = export.ty else { continue };
            linked.func_new(name, move |mut store, _, _, results| {
                let state = store.data_mut();
                let Bound { value, layer } = state.network;
                let denials = &state.gauges.denials;
                if !value {
                    denials.record(interface, DenialReason::NetworkOff);
                    return Err(NetworkDeniedError::Off { interface, layer }.into());
                }
                denials.record(interface, DenialReason::NotOffered);
                match results {
                    [result] if interface == UDP_CREATE => {
                        let code = Val::Enum("not-supported".to_owned());
                        *result = Val::Result(Err(Some(Box::new(code))));
                        Ok(())
                    }
                    [] | [_, ..] => Err(NetworkDeniedError::NotOffered { interface }.into()),
                }
            })?;
        }
    }
    Ok(())
}
