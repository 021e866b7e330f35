//! Authentication: the list of callers, and the credentials of a request.

use super::connections::PeerCertNames;
use a2g_govern::{AuthError, Caller, Credential, CurrentCallers};
use a2g_metrics::CallerMetrics;
use a2g_runtime::timer_now;
use a2g_types::log_limiter::LogLimiter;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The answer to a request without valid credentials.
const UNAUTHENTICATED: &str =
    "show a token that this executor knows, as `Authorization: Bearer …`: see `a2g-executor caller`";
/// The header that may carry a token instead of `Authorization`, at all doors but A2G.
const API_KEY: &str = "x-api-key";
/// The scheme before a token, in lower case.
const BEARER: &[u8] = b"bearer ";

/// The list of callers, shared by all doors and by the reload.
#[derive(Debug, Clone)]
pub struct CallerDirectory {
    callers: CurrentCallers,
    metrics: CallerMetrics,
    /// Limits the log, which an unauthenticated client could otherwise fill.
    log_limiter: Arc<LogLimiter>,
}

impl CallerDirectory {
    /// Makes a directory with this list. Doors must use the executor's own [list](a2g_core::run::Policies::callers),
    /// which it also uses to check decisions.
    #[must_use]
    pub fn new(callers: CurrentCallers) -> Self {
        Self { callers, metrics: CallerMetrics::default(), log_limiter: Arc::default() }
    }

    /// Authenticates a credential. The reason for a failure is logged, and the client learns no more of it than
    /// [`Unauthenticated`] has. The result is not cached: a reload and a token's `exp` would have to invalidate it.
    ///
    /// # Errors
    /// [`Unauthenticated`] if the credential identifies no caller.
    pub fn identify(
        &self,
        credential: &Credential,
        now: OffsetDateTime,
    ) -> Result<Arc<Caller>, Unauthenticated> {
        self.callers.load().identify(credential, now).map_err(|reason| {
            self.log_rejection(&reason);
            Unauthenticated { expired_at: reason.expired_at() }
        })
    }

    /// Returns `true` if the credential still identifies the same caller with the same rights.
    pub(super) fn is_still_valid(
        &self,
        caller: &Caller,
        credential: &Credential,
        now: OffsetDateTime,
    ) -> bool {
        self.callers.load().identify(credential, now).is_ok_and(|current| *current == *caller)
    }

    pub(super) fn metrics(&self) -> &CallerMetrics {
        &self.metrics
    }

    fn log_rejection(&self, reason: &AuthError) {
        self.metrics.count_unauthenticated();
        if let AuthError::Token(refusal) = reason {
            self.metrics.count_rejected_token(refusal.as_str());
        }
        let Some(left_out) = self.log_limiter.try_acquire(timer_now().into_std()) else { return };
        if left_out > 0 {
            tracing::info!(
                left_out,
                "authentication failures were left out of the log: too many in one second"
            );
        }
        tracing::info!(%reason, "authentication failed");
    }
}

pub(super) fn read_credential(request: &Request, token: Result<Option<&[u8]>, MalformedToken>) -> Credential {
    let PeerCertNames(names) = request.extensions().get().cloned().unwrap_or_default();
    match token {
        Ok(token) => Credential::new(token, names),
        Err(MalformedToken) => Credential::malformed(),
    }
}

/// The credential of a request identifies no caller. The client is not told why, except that its credential was valid
/// until it expired: only who holds the credential can learn that.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unauthenticated {
    expired_at: Option<OffsetDateTime>,
}

impl Unauthenticated {
    /// The message for its sender.
    #[must_use]
    pub fn message(self) -> String {
        let expired_at = self.expired_at.and_then(|at| at.format(&Rfc3339).ok());
        expired_at.map_or_else(
            || UNAUTHENTICATED.to_owned(),
            |at| format!("this credential expired at {at}: get a new one"),
        )
    }

    /// The challenge to the client, as in RFC 6750, section 3.
    #[must_use]
    pub fn challenge(self, credential: &Credential) -> String {
        match (credential.has_token(), self.expired_at) {
            (false, _) => "Bearer".to_owned(),
            (true, None) => r#"Bearer error="invalid_token""#.to_owned(),
            (true, Some(_)) => {
                format!(r#"Bearer error="invalid_token", error_description="{}""#, self.message())
            }
        }
    }

    /// The answer to its request, with this challenge.
    pub fn answer(self, challenge: String) -> Response {
        let message = format!("{}\n", self.message());
        (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], message).into_response()
    }
}

/// The error of a request whose headers do not present exactly one well-formed token.
pub(super) struct MalformedToken;

/// The bearer token of a request; `None` without `Authorization`. Any value but exactly one well-formed token is an
/// error, so that a request with a bad token never passes as one without a token.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<&[u8]>, MalformedToken> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let (scheme, token) = first.as_bytes().split_at_checked(BEARER.len()).ok_or(MalformedToken)?;
    let is_valid = values.next().is_none() && scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty();
    if is_valid { Ok(Some(token)) } else { Err(MalformedToken) }
}

/// The token of a request, from `Authorization` or from `X-API-Key`; a request with both is an error.
pub(super) fn token_or_key(headers: &HeaderMap) -> Result<Option<&[u8]>, MalformedToken> {
    let mut keys = headers.get_all(API_KEY).iter();
    match (token(headers)?, keys.next(), keys.next()) {
        (bearer, None, _) => Ok(bearer),
        (None, Some(key), None) if !key.is_empty() => Ok(Some(key.as_bytes())),
        (_, Some(_), _) => Err(MalformedToken),
    }
}
