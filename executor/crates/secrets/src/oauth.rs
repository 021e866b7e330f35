//! Access tokens by client credentials (RFC 6749, section 4.4). No message repeats anything of an answer but one of the
//! known error codes.

use a2g_sandbox::egress::{EgressError, TokenAnswer, TokenClient, TokenUrl};
use a2g_types::outcome::DenialReason;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use url::form_urlencoded::{Serializer, byte_serialize};
use zeroize::Zeroizing;

/// The time for which a token is used if its endpoint does not say how long it is valid.
const DEFAULT_AGE: Duration = Duration::from_secs(300);
/// Maximum time for which a token is used.
const MAX_AGE: Duration = Duration::from_secs(86_400);
/// The time before its end at which a token is not used any more, in seconds: a tenth of its time, within these bounds.
const MIN_MARGIN: u64 = 5;
const MAX_MARGIN: u64 = 60;
/// The error codes of RFC 6749, sections 4.1.2.1 and 5.2. A server could write anything else into that member.
const ERROR_CODES: [&str; 9] = [
    "access_denied",
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_scope",
    "server_error",
    "temporarily_unavailable",
    "unauthorized_client",
    "unsupported_grant_type",
];

/// The executor as a client of an authorization server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthClient {
    /// The token endpoint.
    pub token_url: TokenUrl,
    /// The name of the client.
    pub client_id: String,
    /// A file that only its owner can read, with the client's secret.
    pub client_secret_file: PathBuf,
    /// The scopes that are asked for, separated by spaces; `None` leaves them to the server.
    pub scope: Option<String>,
    /// The place of the client's name and secret.
    pub auth: ClientAuth,
}

/// The place of the client's name and secret in a request for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// The field `authorization`.
    Basic,
    /// The body.
    Body,
}

/// An access token, and the time for which it is used.
pub(crate) struct AccessToken {
    pub(crate) text: Zeroizing<String>,
    pub(crate) max_age: Duration,
}

impl OAuthClient {
    /// Asks for a token. The caller limits the time.
    ///
    /// # Errors
    /// The reason, as the rest of a sentence that begins with the token endpoint.
    pub(crate) async fn request_token(
        &self,
        client: &TokenClient,
        secret: &str,
    ) -> Result<AccessToken, String> {
        let (authorization, form) = self.credentials(secret);
        let field = authorization.as_deref().map(String::as_str);
        let answer = client.post_form(&self.token_url, field, &form).await;
        read_answer(&answer.map_err(describe_failure)?)
    }

    /// The field `authorization`, if the client's secret is sent there, and the form.
    fn credentials(&self, secret: &str) -> (Option<Zeroizing<String>>, Zeroizing<String>) {
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if let Some(scope) = &self.scope {
            form.append_pair("scope", scope);
        }
        let authorization = match self.auth {
            ClientAuth::Basic => {
                // Both are form-encoded first (RFC 6749, section 2.3.1), so that neither can have a colon.
                let encode = |text: &str| Zeroizing::new(byte_serialize(text.as_bytes()).collect::<String>());
                let pair = Zeroizing::new(format!("{}:{}", *encode(&self.client_id), *encode(secret)));
                let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
                Some(Zeroizing::new(format!("Basic {}", *encoded)))
            }
            ClientAuth::Body => {
                form.append_pair("client_id", &self.client_id).append_pair("client_secret", secret);
                None
            }
        };
        (authorization, Zeroizing::new(form.finish()))
    }
}

/// The members of an answer with a token that are read.
#[derive(Deserialize)]
struct Token {
    access_token: String,
    token_type: String,
    /// A number of seconds, which some servers write as a text.
    #[serde(default)]
    expires_in: Value,
}

/// The member of an answer without a token that is read.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

fn read_answer(TokenAnswer { status, body }: &TokenAnswer) -> Result<AccessToken, String> {
    if *status != 200 {
        let refusal = serde_json::from_slice::<Refusal>(body).ok();
        let code = refusal.and_then(|refusal| ERROR_CODES.iter().find(|code| **code == refusal.error));
        return Err(match code {
            Some(code) => format!("answered {status}: `{code}`"),
            None => format!("answered {status}"),
        });
    }
    let parsed = serde_json::from_slice::<Token>(body);
    let Token { access_token, token_type, expires_in } =
        parsed.map_err(|_| "answered without `access_token` and `token_type` (RFC 6749, section 5.1)")?;
    let text = Zeroizing::new(access_token);
    if !token_type.eq_ignore_ascii_case("bearer") {
        return Err("gave a token of another type than `Bearer`".to_owned());
    }
    let seconds = expires_in.as_u64().or_else(|| expires_in.as_str()?.parse::<u64>().ok());
    Ok(AccessToken { text, max_age: max_age(seconds) })
}

/// The time for which a token is used that is valid for so many seconds.
fn max_age(valid_seconds: Option<u64>) -> Duration {
    let Some(seconds) = valid_seconds else { return DEFAULT_AGE };
    let margin = (seconds / 10).clamp(MIN_MARGIN, MAX_MARGIN);
    Duration::from_secs(seconds.saturating_sub(margin)).min(MAX_AGE)
}

fn describe_failure(error: EgressError) -> String {
    if error == EgressError::Denied(DenialReason::Address) {
        return "has an address that is not public: list it in `network.allowed_addresses`".to_owned();
    }
    if error == EgressError::Denied(DenialReason::ReceivedBytes) {
        return "answered with more than 64 KiB".to_owned();
    }
    format!("could not be asked: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(auth: ClientAuth, scope: Option<&str>) -> OAuthClient {
        OAuthClient {
            token_url: TokenUrl::parse("https://id.example/token").unwrap(),
            client_id: "a:b c".to_owned(),
            client_secret_file: PathBuf::from("/x"),
            scope: scope.map(str::to_owned),
            auth,
        }
    }

    #[test]
    fn the_clients_secret_is_in_the_field_or_in_the_form() {
        let (authorization, form) = client(ClientAuth::Basic, None).credentials("s:t%");
        assert_eq!(*form, "grant_type=client_credentials");
        let encoded = authorization.unwrap().strip_prefix("Basic ").unwrap().to_owned();
        assert_eq!(STANDARD.decode(encoded).unwrap(), b"a%3Ab+c:s%3At%25");
        let (authorization, form) = client(ClientAuth::Body, Some("read write")).credentials("s&t");
        assert!(authorization.is_none());
        assert_eq!(
            *form,
            "grant_type=client_credentials&scope=read+write&client_id=a%3Ab+c&client_secret=s%26t"
        );
    }

    #[test]
    fn an_answer_has_a_bearer_token_or_a_known_error() {
        let read = |status, body: &str| {
            let answer = TokenAnswer { status, body: Zeroizing::new(body.as_bytes().to_vec()) };
            read_answer(&answer).map(|token| (token.text.to_string(), token.max_age.as_secs()))
        };
        for (rest, seconds) in [
            ("", 300),
            (r#","expires_in":3600"#, 3540),
            (r#","expires_in":"3600","scope":"x""#, 3540),
            (r#","expires_in":100"#, 90),
            (r#","expires_in":20"#, 15),
            (r#","expires_in":3"#, 0),
            (r#","expires_in":-1"#, 300),
            (r#","expires_in":null"#, 300),
            (r#","expires_in":18446744073709551615"#, 86_400),
        ] {
            let body = format!(r#"{{"access_token":"t0ken","token_type":"bEARER"{rest}}}"#);
            assert_eq!(read(200, &body), Ok(("t0ken".to_owned(), seconds)), "{rest}");
        }
        for (status, body, reason) in [
            (
                401,
                r#"{"error":"invalid_client","error_description":"t0ken"}"#,
                "answered 401: `invalid_client`",
            ),
            (400, r#"{"error":"t0ken"}"#, "answered 400"),
            (302, "t0ken", "answered 302"),
            (200, "t0ken", "answered without `access_token`"),
            (200, r#"{"access_token":"t0ken"}"#, "answered without `access_token`"),
            (200, r#"{"access_token":["t0ken"],"token_type":"Bearer"}"#, "answered without `access_token`"),
            (200, r#"{"access_token":"t0ken","token_type":"mac"}"#, "another type than `Bearer`"),
        ] {
            let error = read(status, body).unwrap_err();
            assert!(error.contains(reason) && !error.contains("t0ken"), "{body}: {error}");
        }
    }

    #[test]
    fn a_token_endpoint_is_over_tls_and_shown_without_its_path() {
        let url = TokenUrl::parse("https://id.example/tenant/token").unwrap();
        assert_eq!(url.to_string(), "https://id.example:443");
        assert_eq!(format!("{url:?}"), "TokenUrl(https://id.example:443)");
        for text in ["http://id.example/token", "id.example", "https://user@id.example/", "ftp://id.example/"]
        {
            assert!(TokenUrl::parse(text).is_err(), "{text}");
        }
    }
}
