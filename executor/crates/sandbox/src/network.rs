//! The guest's network interfaces: `wasi:http` here and `wasi:sockets` in [`super::sockets`], both over the
//! run's backend.
//!
//! A component that imports a network interface is linked twice when it is loaded. In a run with a network, its calls
//! go to the backend, and only the backend decides on destinations. In a run without one, each of those functions ends
//! the run with an error that names the layer that denied the network. No run has UDP: the interface can be imported,
//! because standard libraries import it, but no socket is created.

use super::sockets;
use super::state::StoreState;
use crate::egress::{Body, EgressError, MAX_HEAD_BYTES, NetworkBackend, NetworkError, Timeouts};
use a2g_types::failure_message::no_network_reason;
use a2g_types::limit::{Bound, Layer};
use a2g_types::outcome::DenialReason;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, ResourceType, Val};
use wasmtime_wasi_http::{
    Error as HttpError, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

/// The interfaces for outgoing HTTP requests.
const HTTP: [&str; 2] = ["wasi:http/types", "wasi:http/outgoing-handler"];
/// The UDP interface. Its functions need a socket, and none can be created.
const UDP: &str = "wasi:sockets/udp";
/// The interface that would create a UDP socket.
const UDP_CREATE: &str = "wasi:sockets/udp-create-socket";
/// Maximum number of bytes of a request body that wait to be sent.
const CHUNK_BYTES: usize = 64 << 10;

/// The `wasi:http` context of one store.
pub(super) struct Http {
    context: WasiHttpCtx,
    hooks: Hooks,
}

// wasmtime-wasi-http is built without its default sender, which resolves and connects without any check of
// addresses: this hook is the only network access.
struct Hooks {
    backend: Option<Arc<dyn NetworkBackend>>,
}

impl Http {
    pub(super) fn new(backend: Option<Arc<dyn NetworkBackend>>) -> Self {
        let mut context = WasiHttpCtx::new();
        // The guest fills header fields, which are host memory.
        context.set_field_size_limit(MAX_HEAD_BYTES);
        Self { context, hooks: Hooks { backend } }
    }

    pub(super) fn is_on(&self) -> bool {
        self.hooks.backend.is_some()
    }

    /// Replaces the network of the last turn of a session.
    pub(super) fn set_backend(&mut self, backend: Option<Arc<dyn NetworkBackend>>) {
        self.hooks.backend = backend;
    }

    /// The run's network backend; `None` in a run without a network.
    pub(super) fn backend(&self) -> Option<Arc<dyn NetworkBackend>> {
        self.hooks.backend.clone()
    }
}

impl WasiHttpView for StoreState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        let Self { wasi, http, .. } = self;
        let table = wasmtime_wasi::WasiView::ctx(wasi).table;
        WasiHttpCtxView { hooks: &mut http.hooks, table, ctx: &mut http.context }
    }
}

/// The response to a request, and a future that drives its connection.
type SendResult = Result<(http::Response<WasiBody>, Background), HttpError>;
type Background = Box<dyn Future<Output = Result<(), HttpError>> + Send>;

impl WasiHttpHooks for Hooks {
    fn set_host_header(&mut self) -> bool {
        // The network session writes the host that it has checked.
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Background,
    ) -> Box<dyn Future<Output = SendResult> + Send> {
        let backend = self.backend.clone();
        let RequestOptions { connect_timeout, first_byte_timeout, between_bytes_timeout } =
            options.unwrap_or_default();
        let timeouts = Timeouts {
            connect: connect_timeout,
            first_byte: first_byte_timeout,
            between_bytes: between_bytes_timeout,
        };
        let request: http::Request<Body> =
            request.map(|body| body.map_err(|_broken_off| NetworkError::RequestBody.into()).boxed_unsync());
        Box::new(async move {
            // Unreachable, because without a backend the functions that lead here are not linked. The call is denied
            // nevertheless.
            let backend = backend.ok_or(HttpError::HttpRequestDenied)?;
            let response = backend.send(request, timeouts).await.map_err(http_error)?;
            let response = response.map(|body| body.map_err(http_error).boxed_unsync());
            Ok((response, Box::new(std::future::ready(Ok(()))) as Background))
        })
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }
}

/// The `wasi:http` error code of a refusal.
fn http_error(refusal: EgressError) -> HttpError {
    match refusal {
        EgressError::Denied(DenialReason::RequestAuthority) => HttpError::HttpRequestUriInvalid,
        EgressError::Denied(DenialReason::Address | DenialReason::IpLiteral | DenialReason::NotLookedUp) => {
            HttpError::DestinationIpProhibited
        }
        EgressError::Denied(DenialReason::Connections) => HttpError::ConnectionLimitReached,
        EgressError::Denied(DenialReason::SentBytes) => HttpError::HttpRequestBodySize(None),
        EgressError::Denied(DenialReason::ReceivedBytes) => HttpError::HttpResponseBodySize(None),
        EgressError::Denied(DenialReason::SecretAnswer) => HttpError::HttpResponseContentCoding(None),
        EgressError::Denied(_) => HttpError::HttpRequestDenied,
        EgressError::Failed(failure) => match failure {
            NetworkError::Scheme | NetworkError::Request => HttpError::HttpProtocolError,
            NetworkError::Method => HttpError::HttpRequestMethodInvalid,
            NetworkError::RequestHead => HttpError::HttpRequestHeaderSectionSize(None),
            NetworkError::RequestBody => HttpError::HttpRequestBodySize(None),
            NetworkError::Memory => HttpError::InternalError(Some(failure.to_string())),
            NetworkError::Name => HttpError::DestinationNotFound,
            NetworkError::Refused => HttpError::ConnectionRefused,
            NetworkError::ConnectTimeout => HttpError::ConnectionTimeout,
            NetworkError::Certificate => HttpError::TlsCertificateError,
            NetworkError::Tls => HttpError::TlsProtocolError,
            NetworkError::ResponseTimeout => HttpError::HttpResponseTimeout,
            NetworkError::ResponseHead => HttpError::HttpResponseHeaderSectionSize(None),
            NetworkError::Upgrade => HttpError::HttpUpgradeFailed,
            NetworkError::Response => HttpError::HttpProtocolError,
            NetworkError::Incomplete | NetworkError::Broken => HttpError::HttpResponseIncomplete,
            NetworkError::RunEnded => HttpError::ConnectionTerminated,
        },
    }
}

/// A guest called a network interface that its run does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NetworkDeniedError {
    #[error("it called `{interface}`, and this run has no network: {}", no_network_reason(*.layer))]
    Off { interface: &'static str, layer: Layer },
    #[error("it called `{interface}`, which this executor does not offer: use `wasi:http` or TCP")]
    NotOffered { interface: &'static str },
}

/// The name of a network interface without its version; `None` when `import` is not a network interface or has an
/// unsupported version.
fn network_interface(import: &str) -> Option<&'static str> {
    let (name, version) = import.split_once('@')?;
    let mut interfaces = HTTP.into_iter().chain(sockets::INTERFACES).chain([UDP, UDP_CREATE]);
    interfaces.find(|interface| *interface == name && version.starts_with("0.2."))
}

/// Returns `true` when a component imports any network interface.
pub(super) fn is_imported(component: &Component, engine: &Engine) -> bool {
    component.component_type().imports(engine).any(|(name, _)| network_interface(name).is_some())
}

/// Links `wasi:http` and outgoing TCP, for runs with a network.
pub(super) fn link(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    sockets::link(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)
}

/// Links the network interfaces that a run does not have: only UDP if `has_network`, otherwise all. Each function ends
/// the run; with a network, creating a UDP socket is an error for the guest instead.
pub(super) fn link_unavailable(
    linker: &mut Linker<StoreState>,
    component: &Component,
    engine: &Engine,
    has_network: bool,
) -> wasmtime::Result<()> {
    // The resources of earlier imports. A later import that names one of them must not define it again.
    let mut defined = Vec::new();
    for (import, item) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(instance) = item.ty else { continue };
        let mut resources = Vec::new();
        for (name, export) in instance.exports(engine) {
            if let ComponentItem::Resource(resource) = export.ty
                && !defined.contains(&resource)
            {
                defined.push(resource);
                resources.push(name);
            }
        }
        let Some(interface) = network_interface(import) else { continue };
        if has_network && interface != UDP && interface != UDP_CREATE {
            continue;
        }
        let mut interface_linker = linker.instance(import)?;
        for name in resources {
            interface_linker.resource(name, ResourceType::host::<NetworkDeniedError>(), |_, _| Ok(()))?;
        }
        for (name, export) in instance.exports(engine) {
            let ComponentItem::ComponentFunc(_) = export.ty else { continue };
            interface_linker.func_new(name, move |mut store, _, _, results| {
                let state = store.data_mut();
                let Bound { value, layer } = state.network;
                let denials = &state.stats.denials;
                if !value {
                    denials.record(interface, DenialReason::NetworkOff);
                    return Err(NetworkDeniedError::Off { interface, layer }.into());
                }
                denials.record(interface, DenialReason::NotOffered);
                match results {
                    // An error that the guest can handle, because the network itself is granted.
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
