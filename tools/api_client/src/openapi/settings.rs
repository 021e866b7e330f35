//! The settings of a tool that is one operation of an HTTP API. `a2g-executor tool new --openapi` writes them, and the
//! client reads them: both have this file.

use serde::{Deserialize, Serialize};

/// The settings of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenapiSettings {
    /// The method, in upper case.
    pub(crate) method: String,
    /// The URL without a query. `{name}` stands for the path parameter of this name.
    pub(crate) url: String,
    /// `true` if a request may be sent again after a failure, because the method is idempotent.
    #[serde(default)]
    pub(crate) retry: bool,
    /// The paths of other operations of the method below the server, to which no arguments may lead. `*` stands for a
    /// parameter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<String>,
    /// The form of the request's body, which is the argument `body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Body>,
    /// The place where an answer names the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pagination: Option<Pagination>,
    /// The parameters.
    #[serde(default, rename = "parameter", skip_serializing_if = "Vec::is_empty")]
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameter {
    /// The argument with its value.
    pub(crate) argument: String,
    /// Its name in the request.
    pub(crate) name: String,
    /// Its place.
    #[serde(rename = "in")]
    pub(crate) place: Place,
    /// The way in which its value is written.
    pub(crate) style: Style,
    /// `true` if each item or member of its value is written by itself.
    pub(crate) explode: bool,
}

/// The place of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    Path,
    Query,
    Header,
}

/// The styles of OpenAPI, and JSON for a parameter with `content`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Style {
    Simple,
    Label,
    Matrix,
    Form,
    SpaceDelimited,
    PipeDelimited,
    DeepObject,
    Json,
}

/// The form of a request's body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Body {
    /// The media type: JSON, `application/x-www-form-urlencoded`, or that of a text.
    pub(crate) media_type: String,
    /// The members of a form whose items are numbered (`deepObject`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) deep: Vec<String>,
}

/// The place where an answer names the next page: the header `Link`, if neither is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pagination {
    /// The member of the answer's body with the URL of the next page, or with its cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) member: Option<String>,
    /// The argument for the cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) argument: Option<String>,
}

/// The media type of a form.
pub(crate) const FORM: &str = "application/x-www-form-urlencoded";

/// `true` for a media type of JSON.
pub(crate) fn is_json(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}
