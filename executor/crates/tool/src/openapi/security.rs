//! The secrets that an operation needs, and their places.

use super::document::{Document, text_member};
use super::operation::{Operation, snake_case};
use crate::client::Binding;
use a2g_types::ident::SecretName;
use anyhow::bail;
use serde_json::Value;
use std::collections::BTreeSet;

/// The way in which a security scheme is sent.
struct Credential {
    place: String,
    scheme: Option<&'static str>,
}

impl Credential {
    fn bearer() -> Self {
        Self { place: "header:authorization".to_owned(), scheme: Some("Bearer") }
    }
}

/// The secrets of an operation: those that `named` names, in the order of the security schemes, or else named by them.
///
/// # Errors
/// If a name is not one of a secret, or more are named than are needed.
pub(super) fn bindings(
    document: &Document,
    operation: &Operation<'_>,
    prefix: &str,
    named: &[String],
    remarks: &mut BTreeSet<&'static str>,
) -> anyhow::Result<Vec<Binding>> {
    let schemes = choose_schemes(document, operation, !named.is_empty(), remarks);
    let is_guess = schemes.is_empty() && !named.is_empty();
    if is_guess {
        remarks.insert(
            "its document asks for no key: the secret is a bearer token, unless you change its place",
        );
    }
    let needed = if is_guess { vec![(String::new(), Credential::bearer())] } else { schemes };
    if named.len() > needed.len() {
        bail!("it needs {} secrets, and `--secret` names {}", needed.len(), named.len());
    }
    let mut bindings = Vec::new();
    for (index, (scheme_name, Credential { place, scheme })) in needed.into_iter().enumerate() {
        let name = match named.get(index) {
            Some(name) => SecretName::parse(name)?,
            None => {
                let default = snake_case(&format!("{prefix} {scheme_name}"));
                SecretName::parse(default.get(..64).unwrap_or(&default))?
            }
        };
        bindings.push(Binding { name, place, scheme });
    }
    Ok(bindings)
}

/// The security schemes of the first alternative that can be sent. None if a request without a key is another one,
/// unless a key is there.
fn choose_schemes(
    document: &Document,
    operation: &Operation<'_>,
    has_key: bool,
    remarks: &mut BTreeSet<&'static str>,
) -> Vec<(String, Credential)> {
    let required = operation.value.get("security").or_else(|| document.root.get("security"));
    let alternatives = required.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let schemes = |alternative: &Value| {
        let names = alternative.as_object()?.keys();
        names.map(|name| Some((name.clone(), credential(document, name)?))).collect::<Option<Vec<_>>>()
    };
    let is_public =
        alternatives.iter().any(|alternative| alternative.as_object().is_some_and(|all| all.is_empty()));
    if alternatives.is_empty() || is_public && !has_key {
        return Vec::new();
    }
    let mut possible = alternatives.iter().filter_map(schemes);
    possible.find(|schemes| !schemes.is_empty()).unwrap_or_else(|| {
        remarks.insert("its key is a cookie or a certificate, which cannot be sent, so it has none");
        Vec::new()
    })
}

/// The place of a security scheme; `None` if it cannot be sent.
fn credential(document: &Document, name: &str) -> Option<Credential> {
    let schemes = document.root.get("components")?.get("securitySchemes")?;
    let scheme = document.resolve(schemes.get(name)?).ok()?;
    match text_member(scheme, "type")? {
        "http" => match text_member(scheme, "scheme")?.to_ascii_lowercase().as_str() {
            "bearer" => Some(Credential::bearer()),
            "basic" => Some(Credential { scheme: Some("Basic"), ..Credential::bearer() }),
            _ => None,
        },
        "oauth2" | "openIdConnect" => Some(Credential::bearer()),
        "apiKey" => {
            let place = text_member(scheme, "in").filter(|place| ["header", "query"].contains(place))?;
            let place = format!("{place}:{}", text_member(scheme, "name")?);
            Some(Credential { place, scheme: None })
        }
        _ => None,
    }
}
