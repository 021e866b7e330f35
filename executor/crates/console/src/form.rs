//! The forms that a browser posts.

use super::ConsoleState;
use super::page::problem;
use a2g_govern::Caller;
use a2g_http::body::read_body;
use a2g_types::ident::excerpt;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use url::form_urlencoded;

/// Maximum size of a posted form, in bytes. The longest form is a decision, with a field for each granted pattern.
const MAX_FORM_BYTES: usize = 256 << 10;

/// The fields of a form, in order.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Reads a form that `sender` posts.
    ///
    /// # Errors
    /// The page that says why it cannot be read.
    pub(super) async fn read(
        console: &ConsoleState,
        body: Body,
        sender: &Caller,
    ) -> Result<Self, Box<Response>> {
        match read_body(body, MAX_FORM_BYTES, console.request_timeout, sender).await? {
            Some(bytes) => Ok(Self(form_urlencoded::parse(&bytes).into_owned().collect())),
            None => Err(Box::new(problem(
                StatusCode::PAYLOAD_TOO_LARGE,
                "The form is too long",
                &format!("A form may have {} KiB: shorten it. Nothing was changed.", MAX_FORM_BYTES >> 10),
            ))),
        }
    }

    /// Removes all fields with this name.
    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(field, _)| field != name);
    }

    /// The first field with this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| &**value)
    }

    /// The names of the fields, in order.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// Refuses a field that the page does not have, and one that is there twice: what is ignored would be decided
    /// otherwise than the person means.
    ///
    /// # Errors
    /// A sentence for the person, without its full stop.
    pub(super) fn check_names(
        &self,
        is_known: impl Fn(&str) -> bool,
        may_repeat: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        if let Some(unknown) = self.names().find(|name| !is_known(name)) {
            return Err(format!("the page has no field `{}`; correct or remove it", excerpt(unknown)));
        }
        let is_repeated = |name: &&str| !may_repeat(name) && self.all(name).count() > 1;
        match self.names().find(is_repeated) {
            Some(repeated) => Err(format!("the form has the field `{repeated}` twice; send it once")),
            None => Ok(()),
        }
    }

    /// All fields with this name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| &**value)
    }
}

/// `true` if the browser says that another site sent the request. Older browsers say nothing; the token in the form
/// stops those requests.
pub(super) fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(axum::http::HeaderValue::as_bytes);
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}
