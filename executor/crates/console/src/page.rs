//! The frame of every page, and the parts that pages share.

use super::session::FORM_TOKEN;
use a2g_govern::{Caller, Role};
use a2g_http::answers;
use a2g_types::clock::format_seconds;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::limit::Layer;
use a2g_types::visible_text::{escape_invisible, escape_invisible_lines};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum length of a text of a tool or an agent in one line, in characters.
pub(super) const MAX_LINE_CHARS: usize = 300;
/// Maximum length of a message of the executor, in characters. It may quote a text of a caller.
const MAX_MESSAGE_CHARS: usize = 2_000;
/// Length from which a block of text is folded, in bytes: about ten lines.
const FOLD_BYTES: usize = 800;

/// The caller for whom a page is rendered.
#[derive(Clone, Copy)]
pub(super) struct Viewer<'a> {
    pub(super) caller: &'a Caller,
    pub(super) form_token: &'a str,
    /// The number of intents that wait for a person and that the caller may see.
    pub(super) waiting: usize,
    /// The number of runs whose file changes wait for a decision and that the caller may see.
    pub(super) waiting_changes: usize,
}

impl Viewer<'_> {
    /// The token that every form of the session has to send.
    pub(super) fn token_field(&self) -> Markup {
        html! { input type="hidden" name=(FORM_TOKEN) value=(self.form_token); }
    }

    /// A whole page.
    pub(super) fn page(&self, title: &str, body: &Markup) -> Response {
        // An agent decides how long some pages are, so until the browser has read a page, the page counts against the
        // share of memory of the caller who asked for it.
        answers::charge(self.caller, document(title, Some(self), body).into_response())
    }
}

const INBOX: &str = "/console/inbox";
const CHANGES: &str = "/console/changes";
const TABS: [(&str, &str); 7] = [
    ("/console", "Overview"),
    (INBOX, "Inbox"),
    (CHANGES, "Changes"),
    ("/console/runs", "Runs"),
    ("/console/usage", "Usage"),
    ("/console/tools", "Tools"),
    ("/console/policies", "Policies"),
];

/// An HTML document.
pub(super) fn document(title: &str, viewer: Option<&Viewer<'_>>, body: &Markup) -> Html {
    let version = env!("CARGO_PKG_VERSION");
    // htmx may neither evaluate text nor add a style, which the content policy would refuse, nor keep pages in the
    // browser's storage.
    let config = r#"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"historyCacheSize":0,"selfRequestsOnly":true}"#;
    Html(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=(config);
                title {
                    @let decisions = viewer.map(|viewer| viewer.waiting.saturating_add(viewer.waiting_changes));
                    @if let Some(decisions) = decisions.filter(|decisions| *decisions > 0) { "(" (decisions) ") " }
                    (title) " · A2G executor"
                }
                link rel="icon" href={ "/console/assets/icon.svg?v=" (version) };
                link rel="stylesheet" href={ "/console/assets/console.css?v=" (version) };
                @if viewer.is_some() {
                    script defer src={ "/console/assets/htmx.min.js?v=" (version) } {}
                    script defer src={ "/console/assets/sse.min.js?v=" (version) } {}
                    script defer src={ "/console/assets/console.js?v=" (version) } {}
                }
            }
            body hx-ext=[viewer.map(|_| "sse")] sse-connect=[viewer.map(|_| "/console/events")] {
                a.skip href="#main" { "Skip to the content" }
                header {
                    span.brand { "A2G executor" }
                    @if let Some(viewer) = viewer {
                        nav aria-label="Pages" {
                            @for (path, name) in TABS {
                                a href=(path) aria-current=[(name == title).then_some("page")] {
                                    (name)
                                    @if path == INBOX { (waiting_count(viewer.waiting)) }
                                    @if path == CHANGES { (waiting_changes_count(viewer.waiting_changes)) }
                                }
                            }
                        }
                        form.session method="post" action="/console/sign-out" {
                            (viewer.token_field())
                            span { (line(viewer.caller.name())) span.roles { " (" (roles(viewer.caller)) ")" } }
                            button type="submit" { "Sign out" }
                        }
                    }
                }
                main #main { (body) }
            }
        }
    })
}

/// The number of intents that wait, which the page refreshes. The script copies the sum of both numbers to the title.
pub(super) fn waiting_count(waiting: usize) -> Markup {
    html! {
        span #waiting data-count=(waiting) hx-get="/console/waiting" hx-trigger="sse:inbox" hx-swap="outerHTML" {
            @if waiting > 0 { " (" (waiting) ")" }
        }
    }
}

/// The same for the runs whose file changes wait.
pub(super) fn waiting_changes_count(waiting: usize) -> Markup {
    html! {
        span #waiting-changes data-count=(waiting) hx-get="/console/waiting-changes" hx-trigger="sse:changes" hx-swap="outerHTML" {
            @if waiting > 0 { " (" (waiting) ")" }
        }
    }
}

fn roles(caller: &Caller) -> String {
    caller.roles().map(Role::as_str).collect::<Vec<_>>().join(", ")
}

/// An HTML answer.
pub(super) struct Html(pub(super) Markup);

impl axum::response::IntoResponse for Html {
    fn into_response(self) -> Response {
        let PreEscaped(text) = self.0;
        ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
    }
}

/// A page that says what is wrong, and whether anything was changed.
pub(super) fn problem(status: StatusCode, title: &str, text: &str) -> Response {
    let body = html! {
        h1 { (title) }
        p.error role="alert" { (text) }
        p { a href="/console" { "Back to the overview" } }
    };
    (status, document(title, None, &body)).into_response()
}

/// The page of a fault.
pub(super) fn fault_page(fault: &Fault) -> Response {
    let status = match fault {
        Fault::Busy { .. } | Fault::ReceiptPending { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Fault::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        Fault::Parse(_)
        | Fault::InvalidRequest(_)
        | Fault::MethodNotFound(_)
        | Fault::InvalidParams { .. }
        | Fault::ToolUnavailable { .. }
        | Fault::Refused { .. }
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Failed(_)
        | Fault::LimitReached(..) => StatusCode::CONFLICT,
    };
    problem(status, "The executor reports a problem", &fault_text(fault))
}

/// The message of a fault, escaped.
pub(super) fn fault_text(fault: &Fault) -> String {
    if let Fault::Internal(detail) = fault {
        tracing::error!(detail, "internal error");
        return "internal error of the executor: see its log".to_owned();
    }
    escape_invisible(&fault.sentence(), MAX_MESSAGE_CHARS)
}

/// The answer for a caller whose roles do not include a page or an action.
pub(super) fn forbidden(roles: &str) -> Response {
    let text = format!(
        "This takes the role {roles}, and a token whose scope does not name tools: see `a2g-executor caller`. Nothing was \
         changed."
    );
    problem(StatusCode::FORBIDDEN, "You may not do this", &text)
}

/// The answer for an intent or a tool that does not exist, or that the caller may not see.
pub(super) fn not_found(what: &str) -> Response {
    let text = format!("There is no such {what}, or it is not yours to see.");
    problem(StatusCode::NOT_FOUND, "Not found", &text)
}

/// A whole text of a tool, an agent or a governor in one line.
pub(super) fn whole(text: &str) -> String {
    escape_invisible(text, usize::MAX)
}

/// The granted folders that do not exist on the host, with what to do.
pub(super) fn missing_folders(folders: &[String]) -> Markup {
    html! {
        @for folder in folders {
            p.notice {
                "The granted folder " code { (whole(folder)) } " does not exist on the host: nothing is found or created in it, and a call whose arguments name a path in it is refused. Create it, or correct "
                code { "mount.host" } "."
            }
        }
    }
}

/// A text of a tool or an agent in one line: everything invisible is shown as an escape.
pub(super) fn line(text: &str) -> String {
    escape_invisible(text, MAX_LINE_CHARS)
}

/// The argument by which people recognise a call in a list.
pub(super) fn main_argument_part(argument: Option<&str>) -> Markup {
    html! { @if let Some(argument) = argument { code { (line(argument)) } } }
}

/// A block of text of a tool or an agent, folded if it is long.
pub(super) fn block(text: &str) -> Markup {
    let shown = escape_invisible_lines(text);
    html! {
        @if text.len() > FOLD_BYTES {
            details {
                summary { (first_line(&shown)) " … (" (byte_size(text.len() as u64)) ")" }
                pre tabindex="0" { (shown) }
            }
        } @else {
            pre tabindex="0" { (shown) }
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(60).collect()
}

/// A time, in UTC.
pub(super) fn at(time: OffsetDateTime) -> Markup {
    let exact = format_seconds(time);
    let shown = exact.replace('T', " ").replace('Z', " UTC");
    html! { time datetime=(exact) { (shown) } }
}

/// A table that scrolls sideways on its own if it is wider than the page.
pub(super) fn scrolling_table(label: &str, rows: &Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { table { (rows) } } }
}

/// A table whose rows are cards if the page is narrow. The styles take a table's meaning from its elements there, so each
/// of them has its role.
pub(super) fn cards<'a>(
    label: &str,
    columns: impl Iterator<Item = &'a &'static str>,
    rows: impl Iterator<Item = Markup>,
) -> Markup {
    html! {
        div.scroll role="region" aria-label=(label) tabindex="0" {
            table.cards role="table" {
                thead role="rowgroup" { tr role="row" { @for column in columns { th role="columnheader" { (column) } } } }
                tbody role="rowgroup" { @for row in rows { tr role="row" { (row) } } }
            }
        }
    }
}

/// A table of limits, whose columns may be narrow.
pub(super) fn limits_table(label: &str, rows: &Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { table.limits { (rows) } } }
}

/// The time until a verdict expires, which a script counts down.
pub(super) fn countdown(until: OffsetDateTime, now: OffsetDateTime) -> Markup {
    let exact = exact_time(until);
    html! { time data-until=(exact) datetime=(exact) { (duration((until - now).whole_seconds())) } }
}

/// A time for the script, with parts of a second.
pub(super) fn exact_time(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_default()
}

fn duration(seconds: i64) -> String {
    match seconds {
        ..=0 => "expired".to_owned(),
        1..=119 => format!("in {seconds} s"),
        120..=7199 => format!("in {} min", seconds / 60),
        _ => format!("in {} h", seconds / 3600),
    }
}

/// A number of things, such as `1 call` or `5 calls`.
pub(super) fn counted<N: std::fmt::Display + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// A size, such as `1 byte` or `12.5 KB`. 1 KB is 1,024 bytes.
pub(super) fn byte_size(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
    let shown =
        |unit: u32| format!("{:.1}", bytes as f64 / f64::from(unit)).trim_end_matches(".0").to_owned();
    match bytes {
        ..1_024 => counted(bytes, "byte"),
        1_024..1_048_576 => format!("{} KB", shown(1 << 10)),
        _ => format!("{} MB", shown(1 << 20)),
    }
}

/// The beginning of an intent's id. It tells random ids in a list apart, but not always those made from the time.
pub(super) fn short_id(intent: IntentId) -> String {
    intent.to_string().chars().take(8).collect()
}

/// A link to the page of an intent.
pub(super) fn intent_link(intent: IntentId) -> Markup {
    let text = intent.to_string();
    html! { a.id href={ "/console/runs/" (text) } title=(text) { (short_id(intent)) } }
}

/// The time that something took, such as `3.2 ms`, `1.50 s` or `12 min 5 s`.
pub(super) fn elapsed(duration: std::time::Duration) -> String {
    match duration.as_secs() {
        0 => format!("{:.1} ms", duration.as_secs_f64() * 1000.0),
        1..=59 => format!("{:.2} s", duration.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// The layer that set a limit.
pub(super) fn set_by(layer: Layer) -> &'static str {
    match layer {
        Layer::Verdict => "the governor's verdict",
        Layer::Operator => "the operator",
        Layer::Condition => "a condition of the verdict",
        Layer::StandingPolicy => "the agent's standing policy",
        Layer::Tool => "the tool's declaration",
        Layer::Executor => "the executor's ceilings",
        Layer::Caller => "the caller",
    }
}

/// The status of a run, with an attribute from which the style derives its colour.
pub(super) fn status(status: &str) -> Markup {
    html! { span.status data-status=(status) { (status) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn numbers_have_units_and_plurals() {
        let counts = [0_u64, 1, 2].map(|count| counted(count, "call"));
        assert_eq!(counts, ["0 calls", "1 call", "2 calls"]);
        let sizes = [0, 1, 1_023, 1_024, 12_800, 1 << 20, 3 << 19].map(byte_size);
        assert_eq!(sizes, ["0 bytes", "1 byte", "1023 bytes", "1 KB", "12.5 KB", "1 MB", "1.5 MB"]);
        let left = [0, 1, 119, 120, 7_199, 7_200].map(duration);
        assert_eq!(left, ["expired", "in 1 s", "in 119 s", "in 2 min", "in 119 min", "in 2 h"]);
        let took = [3_200, 1_500_000, 725_000_000].map(|micros| elapsed(Duration::from_micros(micros)));
        assert_eq!(took, ["3.2 ms", "1.50 s", "12 min 5 s"]);
    }
}
