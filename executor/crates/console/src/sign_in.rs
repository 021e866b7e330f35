//! Signing in and out.

use super::ConsoleState;
use super::form::{FormFields, is_cross_site};
use super::page::{document, problem};
use super::session::{Identity, PostedForm};
use a2g_govern::{Caller, Credential};
use a2g_http::connections::PeerCertNames;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::html;
use std::sync::Arc;
use std::time::Duration;

/// The answer to somebody who asks for a page without being signed in.
pub(super) fn sign_in_first(headers: &HeaderMap, path: &str) -> Response {
    let path = return_path(path);
    if is_cross_site(headers) {
        return reopen(path);
    }
    Redirect::to(&format!("/console/sign-in?to={path}")).into_response()
}

/// A page that opens a path of the console. A browser sends the cookie of a session neither with a request that another
/// site or program caused nor when it follows a redirect from there, but does with the request that this page causes.
fn reopen(path: &str) -> Response {
    let body = html! {
        meta http-equiv="refresh" content={ "0; url=" (path) };
        p { a href=(path) { "Continue" } }
    };
    document("Console", None, &body).into_response()
}

/// The page to return to after signing in; any text that is not a path of the console becomes the start page.
fn return_path(path: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_".contains(&byte);
    let is_own = path.starts_with("/console") && path.bytes().all(is_plain) && !path.contains("//");
    if is_own && path != "/console/sign-in" { path } else { "/console" }
}

#[derive(serde::Deserialize)]
pub(super) struct SignInQuery {
    #[serde(default)]
    to: String,
}

/// `GET /console/sign-in`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    Query(query): Query<SignInQuery>,
    certificate: Option<axum::Extension<PeerCertNames>>,
) -> Response {
    let has_certificate = certificate.is_some_and(|axum::Extension(PeerCertNames(names))| !names.is_empty());
    sign_in_page(&console, StatusCode::OK, None, return_path(&query.to), has_certificate)
}

fn sign_in_page(
    console: &ConsoleState,
    status: StatusCode,
    error: Option<&str>,
    to: &str,
    has_certificate: bool,
) -> Response {
    let body = html! {
        h1 { "Sign in" }
        @if let Some(error) = error { p.error role="alert" { (error) } }
        @if console.sessions.local_key().is_some() {
            p { "This executor has no list of callers, so the person who started it signs in with a link that works once." }
            p { "Run this on the executor's machine, as the user that runs the executor:" }
            pre { code { "a2g-executor console" } }
            p { "It reads the link from a file that only that user can read." }
        } @else {
            form method="post" action="/console/sign-in" {
                input type="hidden" name="to" value=(to);
                label for="token" { "Token" }
                p #token-help { "The token that `a2g-executor caller new` printed, or a JSON Web Token." }
                input #token type="password" name="token" autocomplete="current-password"
                    aria-describedby="token-help" required;
                p { button type="submit" { "Sign in" } }
            }
            @if has_certificate {
                form method="post" action="/console/sign-in" {
                    input type="hidden" name="to" value=(to);
                    p { button type="submit" name="certificate" value="yes" { "Sign in with the certificate of this browser" } }
                }
            }
        }
    };
    (status, document("Sign in", None, &body)).into_response()
}

/// `POST /console/sign-in`.
pub(super) async fn sign_in(
    State(console): State<Arc<ConsoleState>>,
    certificate: Option<axum::Extension<PeerCertNames>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let names = certificate.map(|axum::Extension(PeerCertNames(names))| names).unwrap_or_default();
    // A foreign page could otherwise sign a person in as somebody else.
    if is_cross_site(&headers) {
        return problem(
            StatusCode::FORBIDDEN,
            "This form is from another site",
            "Nothing was changed. Open the console's own sign-in page, and sign in there.",
        );
    }
    // The caller is not known yet, so the bodies of all sign-ins together have the share of memory of one caller.
    let form = match FormFields::read(&console, body, &Caller::any_agent()).await {
        Ok(form) => form,
        Err(page) => return *page,
    };
    let to = return_path(form.get("to").unwrap_or_default()).to_owned();
    let token = form.get("token").map(str::trim).filter(|token| !token.is_empty());
    let certificate = if token.is_some() { Arc::default() } else { Arc::clone(&names) };
    let credential = Credential::new(token.map(str::as_bytes), certificate);
    match console.sessions.begin(Identity::Credential(credential), Arc::clone(&names)) {
        Some(Ok(cookie)) => ([(header::SET_COOKIE, cookie)], Redirect::to(&to)).into_response(),
        Some(Err(error)) => {
            tracing::error!(%error, "a session of the console cannot be made");
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "You cannot sign in now",
                "Try again. If it fails again, see the log of the executor.",
            )
        }
        None => {
            let error = if token.is_some() {
                "This executor does not know that token, or it has expired: ask its operator for a new one (`a2g-executor caller new`)."
            } else {
                "No caller of this executor has the names in your certificate: ask its operator to add one (`a2g-executor caller new`)."
            };
            sign_in_page(&console, StatusCode::UNAUTHORIZED, Some(error), &to, !names.is_empty())
        }
    }
}

/// Redeems the key of a link. Returns the answer that begins the session.
pub(super) async fn redeem_key(console: &Arc<ConsoleState>, key: &str) -> Response {
    let is_current = console.sessions.local_key().is_some_and(|local| local.redeem(key));
    if !is_current {
        let error = "This link was used before, or is from before a restart. Each link works once.";
        return sign_in_page(console, StatusCode::UNAUTHORIZED, Some(error), "/console", false);
    }
    let replaced = {
        let console = Arc::clone(console);
        tokio::task::spawn_blocking(move || {
            console.sessions.local_key().map(|local| local.replace()).transpose().map(drop)
        })
        .await
    };
    if let Ok(Err(error)) = replaced {
        tracing::error!(%error, "the next link to the console cannot be written");
    }
    match console.sessions.begin(Identity::Local, Arc::default()) {
        // Opened again, so that the key is no longer in the address bar.
        Some(Ok(cookie)) => ([(header::SET_COOKIE, cookie)], reopen("/console")).into_response(),
        failed @ (Some(Err(_)) | None) => {
            let error = failed.and_then(Result::err);
            tracing::error!(?error, "a session of the console cannot be made");
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "You cannot sign in now",
                "The link is used up. Run `a2g-executor console` for a new one.",
            )
        }
    }
}

/// `POST /console/sign-out`.
pub(super) async fn sign_out(
    State(console): State<Arc<ConsoleState>>,
    headers: HeaderMap,
    _: PostedForm,
) -> Response {
    console.sessions.end(&headers);
    match console.sessions.cookie_header("", Duration::ZERO) {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], Redirect::to("/console/sign-in")).into_response(),
        Err(_) => Redirect::to("/console/sign-in").into_response(),
    }
}
