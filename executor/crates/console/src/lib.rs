//! The console: pages for people, on the executor's port or a port of their own.
//!
//! ```text
//! browser ─ cookie ─▶ BrowserSessions ─ identifies the caller again ─▶ page or action ─▶ Executor
//! ```
//! The console is a client of the core like any door: each request has a [`Caller`](a2g_govern::Caller), and may do what
//! the roles of that caller allow. Pages are rendered on the server and work without JavaScript; scripts only refresh
//! what changes. Texts of tools and agents are escaped, with control and invisible characters made visible, and nothing
//! that they wrote is ever served as a page, a script or a style.

mod active;
mod arguments;
mod assets;
mod change_list;
mod changes;
mod chart;
mod containment;
mod decision;
mod elsewhere;
mod form;
#[cfg(test)]
mod hostile_texts;
mod inbox;
mod live;
mod live_log;
mod local_key;
mod merged_page;
mod narrower;
mod notify;
mod overview;
mod page;
mod places;
mod policies;
mod runs;
mod search;
mod send;
mod session;
mod sign_in;
mod syntax;
mod tools;
mod usage;

pub use containment::{Containment, ContainmentControl};
pub use local_key::{LinkError, LocalKey};
pub use notify::{Notifier, NotifyWebhook};

use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_http::auth::CallerDirectory;
use a2g_http::connections::PeerCertNames;
use a2g_http::protocol::{AuthPolicy, ProtocolRouter};
use a2g_wire::strict_json::JsonBounds;
use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Redirect, Response};
use axum::routing::{get, post};
use live::LiveChanges;
use places::{Place, Places};
use search::{RefusalRow, RunRow};
use session::{BrowserSessions, SignedIn};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the console needs to know about its port.
pub struct ConsolePort {
    /// The list of callers.
    pub callers: CallerDirectory,
    /// `true` if the port uses TLS.
    pub tls: bool,
    /// The key for the person who started the server; `None` if there is a list of callers, each with a credential.
    pub local_key: Option<Arc<LocalKey>>,
    /// Maximum time for the body of a request to arrive.
    pub request_timeout: Duration,
    /// The limits of arguments that a form has as JSON.
    pub bounds: JsonBounds,
    /// The containment of runs.
    pub containment: Containment,
    /// The journal's file, for the commands that verify receipts.
    pub journal: PathBuf,
    /// The time for which committed file changes can be undone; zero if they cannot.
    pub keep_changes: Duration,
}

struct ConsoleState {
    executor: Arc<Executor>,
    sessions: BrowserSessions,
    live: LiveChanges,
    request_timeout: Duration,
    bounds: JsonBounds,
    containment: Containment,
    journal: PathBuf,
    keep_changes: Duration,
    /// The requests that read the journal: its readers serve them one after another.
    readings: Places,
    /// The requests that merge the usage of all nodes.
    merges: Places,
}

/// Maximum number of requests of one caller that read the journal at once.
const MAX_READINGS_PER_CALLER: usize = 8;
/// The same for all callers: half of the queue of the journal's readers, which other doors use as well.
const MAX_READINGS: usize = 64;
/// Maximum number of requests of one caller that merge the usage of all nodes at once.
const MAX_MERGES_PER_CALLER: usize = 4;
/// The same for all callers: each holds the sums of every node, of up to 440 KiB as text.
const MAX_MERGES: usize = 16;

impl ConsoleState {
    /// Takes a place to read the journal for a caller.
    ///
    /// # Errors
    /// The page that says that too many are taken.
    #[allow(clippy::result_large_err, reason = "the caller answers with the page")]
    fn take_reading(&self, caller: &Caller) -> Result<Place, Response> {
        let too_many = || too_many_pages(MAX_READINGS_PER_CALLER, MAX_READINGS, "read the journal");
        self.readings.take(caller.name()).ok_or_else(too_many)
    }

    /// Takes a place to merge the usage of all nodes for a caller.
    ///
    /// # Errors
    /// The page that says that too many are taken.
    #[allow(clippy::result_large_err, reason = "the caller answers with the page")]
    fn take_merge(&self, caller: &Caller) -> Result<Place, Response> {
        let too_many = || too_many_pages(MAX_MERGES_PER_CALLER, MAX_MERGES, "add up the usage of the fleet");
        self.merges.take(caller.name()).ok_or_else(too_many)
    }
}

fn too_many_pages(max_per_caller: usize, max: usize, work: &str) -> Response {
    let text = format!(
        "At most {max_per_caller} pages of one caller, and {max} of all, {work} at once: wait a moment, and load the page again."
    );
    page::problem(StatusCode::SERVICE_UNAVAILABLE, "Too many pages are being loaded", &text)
}

/// A signed-in caller with a place to read the journal.
struct ReadingViewer {
    signed_in: SignedIn,
    _place: Place,
}

impl FromRequestParts<Arc<ConsoleState>> for ReadingViewer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Arc<ConsoleState>) -> Result<Self, Response> {
        let signed_in = <SignedIn as FromRequestParts<_>>::from_request_parts(parts, console).await?;
        let place = console.take_reading(&signed_in.caller)?;
        Ok(Self { signed_in, _place: place })
    }
}

/// The router of the console. It authenticates its requests itself, by the cookie of a session.
#[must_use]
pub fn router(executor: Arc<Executor>, port: ConsolePort) -> ProtocolRouter {
    let ConsolePort { callers, tls, local_key, request_timeout, bounds, containment, journal, keep_changes } =
        port;
    let clock = Arc::clone(executor.clock());
    let sessions = BrowserSessions::new(callers, clock, tls, local_key);
    let live = LiveChanges::subscribe(&executor);
    let readings = Places::new(MAX_READINGS, MAX_READINGS_PER_CALLER);
    let merges = Places::new(MAX_MERGES, MAX_MERGES_PER_CALLER);
    let console = Arc::new(ConsoleState {
        executor,
        sessions,
        live,
        request_timeout,
        bounds,
        containment,
        journal,
        keep_changes,
        readings,
        merges,
    });
    elsewhere::answer_other_nodes(&console);
    let signed_in = Arc::clone(&console);
    let is_signed_in = move |head: &Parts| {
        let certificate = head.extensions.get::<PeerCertNames>().cloned().unwrap_or_default();
        signed_in.sessions.find(&head.headers, &certificate.0).is_some()
    };
    let routes = Router::new()
        .route("/", get(|| async { Redirect::to("/console") }))
        .route("/console", get(overview::show))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/console/sign-out", post(sign_in::sign_out))
        .route("/console/events", get(live::events))
        .route("/console/inbox", get(inbox::list))
        .route("/console/waiting", get(inbox::count))
        .route("/console/decide/{intent}", get(decision::show).post(decision::decide))
        .route("/console/changes", get(changes::list))
        .route("/console/waiting-changes", get(changes::count))
        .route("/console/changes/{intent}", get(changes::show).post(changes::decide))
        .route("/console/runs", get(search::list::<RunRow>))
        .route("/console/runs/{intent}", get(runs::show))
        .route("/console/runs/{intent}/stop", post(runs::stop))
        .route("/console/runs/{intent}/artifacts/{index}", get(runs::artifact))
        .route("/console/refused", get(search::list::<RefusalRow>))
        .route("/console/usage", get(usage::show))
        .route("/console/policies", get(policies::list))
        .route("/console/tools", get(tools::list))
        .route("/console/tools/{tool}", get(tools::show))
        .route("/console/tools/{tool}/send", post(send::send))
        .route("/console/stop", post(overview::stop))
        .route("/console/resume", post(overview::resume))
        .route("/console/assets/{name}", get(assets::serve))
        .layer(middleware::from_fn_with_state(tls, add_headers))
        .with_state(console);
    ProtocolRouter { routes, auth: AuthPolicy::Session(Box::new(is_signed_in)) }
}

/// The policy of every page: only scripts, styles and images of this server load, none of them inline, and forms are sent
/// only to this origin. No page may be framed.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Adds the headers that confine a page in the browser. A handler may set a stricter content policy.
async fn add_headers(State(tls): State<bool>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    // Not `no-referrer`: under that policy, a browser sends the forms of a page with `Origin: null`.
    set(header::REFERRER_POLICY, "same-origin");
    set(header::CACHE_CONTROL, "no-store");
    set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    set(HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), usb=()");
    if tls {
        set(header::STRICT_TRANSPORT_SECURITY, "max-age=31536000");
    }
    response
}
