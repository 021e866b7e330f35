//! What comes back of secrets: values that a run has sent, and those that its servers may have from other runs, are
//! replaced in its answers, and in what its guest returns.
//!
//! ```text
//! server ─ head, body ─▶ refused unless whole and plain ─ `[secret NAME]` for each value, streaming ─▶ guest
//! guest ─ result, logs, progress, artifacts, errors ────── `[secret NAME]` for each value ──────────▶ report
//! ```
//! All values that the run has sent are searched for in all of its answers, whichever request they answer: a server may
//! give a value back at another URL. So are the values that the server knows of the secrets of each host that has answered
//! the run, before its first answer is passed on: the log of that host may have them from another run. The forms of a value
//! that are found are those of [`a2g_redact`]. Nothing is decompressed here, so a run with secrets asks for answers without
//! compression, and gets none in parts.

use super::connection::ResponseBody;
use super::refusal::EgressError;
use super::secrets::SecretValue;
use super::session::NetworkSession;
use a2g_capability::{Rendering, SecretBinding};
use a2g_redact::{FormsError, Matcher, Redactor};
use a2g_types::ident::SecretName;
use a2g_types::outcome::{DenialReason, Usage};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Fields that ask for an answer in another character set, or for the difference from another answer.
const FORM_FIELDS: [&str; 2] = ["accept-charset", "a-im"];
/// The status of such a difference (RFC 3229).
const IM_USED: u16 = 226;
/// Fields of an answer that are computed from its whole body before values are replaced: a guest could try guesses of a
/// value, or of what else is around it.
const DIGEST_FIELDS: [HeaderName; 5] = [
    header::ETAG,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];
/// Character sets in which ASCII is as it is, with the beginnings of the names of others.
const CHARACTER_SETS: [&str; 6] = ["utf-8", "utf8", "us-ascii", "ascii", "latin1", "binary"];
const CHARACTER_SET_BEGINNINGS: [&str; 2] = ["iso-8859-", "windows-125"];

/// The values of secrets that a run has sent or that a host which answered it may have, or all turns of its session, whose
/// guest keeps its memory. Clones share them.
///
/// Of each secret, the last [`Usage::MAX_SECRET_VERSIONS`] different values are kept.
#[derive(Clone, Default)]
pub struct SentSecrets(Arc<Mutex<Sent>>);

#[derive(Default)]
struct Sent {
    values: Vec<SentValue>,
    /// `None` as long as there are no values.
    matcher: Option<Arc<Matcher>>,
}

#[derive(Clone)]
struct SentValue {
    name: SecretName,
    rendering: Rendering,
    value: Arc<SecretValue>,
}

impl SentSecrets {
    /// Adds a value. Call this before it is sent, and before an answer that may have it is passed on.
    ///
    /// # Errors
    /// [`FormsError`] if it could not be found together with the others. Neither must happen then.
    pub(super) fn add(&self, binding: &SecretBinding, value: &Arc<SecretValue>) -> Result<(), FormsError> {
        let mut sent = self.0.lock();
        let is_same = |known: &SentValue| known.name == *binding.name() && known.value.has_same_text(value);
        if sent.values.iter().any(is_same) {
            return Ok(());
        }
        let mut values = sent.values.clone();
        let is_of_secret = |known: &SentValue| known.name == *binding.name();
        if values.iter().filter(|known| is_of_secret(known)).count() >= Usage::MAX_SECRET_VERSIONS
            && let Some(oldest) = values.iter().position(is_of_secret)
        {
            values.remove(oldest);
        }
        values.push(SentValue {
            name: binding.name().clone(),
            rendering: binding.rendering().clone(),
            value: Arc::clone(value),
        });
        let all = values.iter().map(|SentValue { name, rendering, value }| (name, rendering, &**value));
        let matcher = Some(SecretValue::match_all(all)?);
        *sent = Sent { values, matcher };
        Ok(())
    }

    /// The forms of all values; `None` if none was sent.
    pub(super) fn matcher(&self) -> Option<Arc<Matcher>> {
        self.0.lock().matcher.clone()
    }
}

impl fmt::Debug for SentSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentSecrets").finish_non_exhaustive()
    }
}

/// Asks for the whole answer as it is, whatever the guest asks for: no value can be found in what is compressed, or in a
/// part of it.
pub(super) fn ask_for_whole(fields: &mut HeaderMap) {
    // Parts are asked for with `range`, `if-range`, the earlier name `request-range`, `x-ms-range` and the like. A
    // `content-range` says what is sent, and `x-amz-copy-source-range` what is copied.
    let is_refused = |name: &&HeaderName| {
        let words = name.as_str().replace('_', "-");
        let is_range = words == "range" || words.ends_with("-range");
        let is_of_request = words == "content-range" || words.ends_with("-source-range");
        is_range && !is_of_request || FORM_FIELDS.contains(&words.as_str())
    };
    let refused = fields.keys().filter(is_refused).cloned().collect::<Vec<_>>();
    for name in refused {
        fields.remove(name);
    }
    fields.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Removes what an answer to a request with a secret says of its own body, which is not the one that is passed on.
pub(super) fn remove_digests(fields: &mut HeaderMap) {
    for name in DIGEST_FIELDS {
        fields.remove(name);
    }
}

/// `true` for the type of an answer whose characters of ASCII are as they are, as far as it says.
fn has_plain_text(kind: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase();
    text.split(';').skip(1).map(str::trim).filter(|part| part.starts_with("charset")).all(|part| {
        let value = part.split_once('=').map_or("", |(_, value)| value.trim().trim_matches(['"', '\'']));
        CHARACTER_SETS.contains(&value) || CHARACTER_SET_BEGINNINGS.iter().any(|one| value.starts_with(*one))
    })
}

/// `true` for an answer with the whole of what it is about, in a plain character set, and without a coding besides chunks.
fn is_whole<B>(response: &Response<B>) -> bool {
    let has_only = |name: HeaderName, plain: &[&str]| {
        let fields = response.headers().get_all(name);
        let codings = fields.iter().flat_map(|field| field.as_bytes().split(|byte| *byte == b','));
        codings
            .map(<[u8]>::trim_ascii)
            .filter(|coding| !coding.is_empty())
            .all(|coding| plain.iter().any(|plain| coding.eq_ignore_ascii_case(plain.as_bytes())))
    };
    response.status() != StatusCode::PARTIAL_CONTENT
        && response.status().as_u16() != IM_USED
        && response.headers().get_all(header::CONTENT_TYPE).iter().all(has_plain_text)
        && has_only(header::CONTENT_ENCODING, &["identity"])
        && has_only(header::TRANSFER_ENCODING, &["chunked", "identity"])
}

impl NetworkSession {
    /// Refuses an answer of `subject` in which values could not be found, and replaces those in its head.
    pub(super) fn redact_head<B: http_body::Body>(
        &self,
        response: &mut Response<B>,
        subject: &str,
    ) -> Result<(), EgressError> {
        // An answer without a body may say what another one would have.
        let has_body = !response.body().is_end_stream();
        if has_body && !is_whole(response) {
            return Err(self.deny(DenialReason::SecretAnswer, &format!("answer of {subject}")));
        }
        // The words after the status are no part of it.
        response.extensions_mut().clear();
        if has_body {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        let Some(matcher) = self.secrets().matcher() else { return Ok(()) };
        let mut fields = HeaderMap::with_capacity(response.headers().len());
        for (name, field) in response.headers() {
            let is_named =
                matcher.redact(name.as_str().as_bytes(), &mut |name| self.secrets().count_redacted(name));
            // No name of a field can say what it replaces.
            if is_named.is_some() {
                continue;
            }
            let redacted = matcher.redact(field.as_bytes(), &mut |name| self.secrets().count_redacted(name));
            let kept = match redacted {
                None => Some(field.clone()),
                Some(text) => HeaderValue::from_bytes(&text).ok(),
            };
            if let Some(field) = kept {
                let _has_room_as_before = fields.try_append(name.clone(), field);
            }
        }
        *response.headers_mut() = fields;
        Ok(())
    }

    /// A text of the guest with the values of secrets replaced; `None` if it has none of them.
    pub(crate) fn redact_text(&self, text: &str) -> Option<String> {
        self.secrets().matcher()?.redact_text(text, &mut |name| self.secrets().count_redacted(name))
    }

    /// As [`Self::redact_text`], for bytes.
    pub(crate) fn redact_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.secrets().matcher()?.redact(bytes, &mut |name| self.secrets().count_redacted(name))
    }

    /// The text of a JSON value with the values of secrets replaced in its strings and numbers, whatever their escapes are;
    /// `None` if it has none of them.
    #[must_use]
    pub fn redact_json(&self, json: &str) -> Option<String> {
        self.secrets().matcher()?.redact_json(json, &mut |name| self.secrets().count_redacted(name))
    }
}

/// The body of an answer, in which the values that the run has sent by then are replaced. There is no limit on its length:
/// no more of it is held back than one value has.
pub(super) struct RedactedBody {
    body: ResponseBody,
    session: Arc<NetworkSession>,
    /// `None` until the run has sent a value.
    redactor: Option<Redactor>,
    has_ended: bool,
}

impl RedactedBody {
    pub(super) fn new(body: ResponseBody, session: Arc<NetworkSession>) -> Self {
        Self { body, session, redactor: None, has_ended: false }
    }

    /// What can be passed on of a chunk; at the end of the body, with `None`, all that was held back.
    fn redact(&mut self, chunk: Option<Bytes>) -> Bytes {
        let Self { session, redactor, .. } = self;
        let mut found = |name: &str| session.secrets().count_redacted(name);
        let mut passed = Vec::new();
        // Another request may have sent a value since the last chunk.
        if let Some(matcher) = session.secrets().matcher() {
            match redactor {
                Some(redactor) => redactor.switch(&matcher, &mut passed, &mut found),
                None => *redactor = Some(Redactor::new(matcher)),
            }
        }
        match (redactor, chunk) {
            (None, chunk) => return chunk.unwrap_or_default(),
            (Some(redactor), Some(chunk)) => redactor.push(&chunk, &mut passed, &mut found),
            (Some(redactor), None) => redactor.finish(&mut passed, &mut found),
        }
        passed.into()
    }
}

impl http_body::Body for RedactedBody {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        let this = self.get_mut();
        while !this.has_ended {
            let passed = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let Ok(chunk) = frame.into_data() else { continue };
                    this.redact(Some(chunk))
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    this.has_ended = true;
                    this.redact(None)
                }
            };
            // A chunk may be held back as a whole.
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.redactor.as_ref().is_none_or(Redactor::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_capability::{RequestRule, SecretParts, SecretPlace, ToolRange};
    use a2g_types::request::DeclaredRequest;
    use zeroize::Zeroizing;

    fn binding(name: &str, rendering: Rendering) -> SecretBinding {
        let declared = DeclaredRequest::parse("GET https://api.example/v1/{id}").unwrap();
        let parts = SecretParts {
            name: SecretName::parse(name).unwrap(),
            tools: vec![ToolRange::parse("*").unwrap()],
            agents: None,
            requests: vec![RequestRule::from_declared(&declared).unwrap()],
            place: SecretPlace::parse("header:authorization").unwrap(),
            rendering,
            max_uses: 1,
            keeps_cookies: true,
            placeholder: None,
        };
        SecretBinding::new(parts).unwrap()
    }

    fn value(text: &str) -> Arc<SecretValue> {
        Arc::new(SecretValue::new(Zeroizing::new(text.to_owned()), String::new()).unwrap())
    }

    fn redact(sent: &SentSecrets, text: &str) -> Option<String> {
        sent.matcher()?.redact_text(text, &mut |_| ())
    }

    #[test]
    fn the_last_values_of_each_secret_and_a_password_alone_are_found() {
        let sent = SentSecrets::default();
        let earlier_turn = sent.clone();
        assert_eq!(redact(&sent, "user:password"), None);
        sent.add(&binding("login", Rendering::Basic), &value("user:password")).unwrap();
        for (text, redacted) in [
            ("user:password", Some("[secret login]")),
            ("Basic dXNlcjpwYXNzd29yZA==", Some("Basic [secret login]")),
            ("of user is password!", Some("of user is [secret login]!")),
            ("user:passwor", None),
        ] {
            assert_eq!(redact(&earlier_turn, text).as_deref(), redacted, "{text}");
        }
        let key = binding("key", Rendering::Plain);
        for number in 0..=Usage::MAX_SECRET_VERSIONS {
            sent.add(&key, &value(&format!("a-value-{number}"))).unwrap();
            sent.add(&key, &value(&format!("a-value-{number}"))).unwrap();
        }
        let found =
            (0..=Usage::MAX_SECRET_VERSIONS).map(|number| redact(&sent, &format!("a-value-{number}")));
        let is_found = found.map(|redacted| redacted.is_some()).collect::<Vec<_>>();
        assert_eq!(is_found, [&[false][..], &[true; Usage::MAX_SECRET_VERSIONS]].concat());
        assert!(redact(&sent, "password").is_some(), "a secret has only its own values replaced");
    }

    #[test]
    fn a_value_that_could_not_be_found_is_not_added() {
        let sent = SentSecrets::default();
        let text = |number: usize| format!("{number}{}", "\"".repeat(8000));
        let refused = (0..9).find(|number| {
            let key = binding(&format!("k{number}"), Rendering::Plain);
            sent.add(&key, &value(&text(*number))) == Err(FormsError)
        });
        let refused = refused.unwrap();
        assert!(refused > 0 && redact(&sent, &text(refused - 1)).is_some(), "{refused}");
        assert_eq!(redact(&sent, &text(refused)), None);
    }

    #[test]
    fn an_answer_is_whole_without_coding_and_range() {
        let is_whole = |status: u16, fields: &[(&'static str, &'static str)]| {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            for (name, text) in fields {
                response.headers_mut().append(*name, HeaderValue::from_static(text));
            }
            super::is_whole(&response)
        };
        assert!(is_whole(200, &[]));
        assert!(is_whole(404, &[("content-encoding", " Identity,"), ("transfer-encoding", "CHUNKED")]));
        for kind in
            ["text/html", "text/html; Charset=\"UTF-8\"", "text/plain;charset=iso-8859-1", "image/png"]
        {
            assert!(is_whole(200, &[("content-type", kind)]), "{kind}");
        }
        let partial: [(u16, &[(&'static str, &'static str)]); 9] = [
            (206, &[]),
            (226, &[]),
            (200, &[("content-type", "text/html; charset=utf-16")]),
            (200, &[("content-type", "text/html; x=1; charset = 'IBM037'")]),
            (200, &[("content-type", "text/html"), ("content-type", "text/html; charset=utf-7")]),
            (200, &[("content-encoding", "gzip")]),
            (500, &[("content-encoding", "identity"), ("content-encoding", "br")]),
            (200, &[("content-encoding", "identity, zstd")]),
            (200, &[("transfer-encoding", "gzip, chunked")]),
        ];
        for (status, fields) in partial {
            assert!(!is_whole(status, fields), "{status} {fields:?}");
        }
        let mut fields = HeaderMap::new();
        for (name, text) in [
            ("accept-encoding", "gzip"),
            ("Range", "bytes=0-1"),
            ("request-range", "bytes=0-1"),
            ("If_Range", "x"),
            ("x-ms-range", "bytes=0-1"),
            ("accept-charset", "utf-16"),
            ("A-IM", "vcdiff"),
            ("content-range", "bytes 0-1/2"),
        ] {
            fields.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_static(text));
        }
        ask_for_whole(&mut fields);
        assert_eq!(fields["accept-encoding"], "identity");
        assert!(fields.len() == 2 && fields.contains_key("content-range"), "{fields:?}");
    }
}
