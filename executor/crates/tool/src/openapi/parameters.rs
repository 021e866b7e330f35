//! The arguments of an operation: its parameters and its body, as a schema and as settings of the client.

use super::document::{Document, clean, list_member, object_member, text_member};
use super::operation::{Operation, Route};
use super::schema::Converter;
use super::settings::{Body, FORM, Parameter, Place, Style, is_json};
use a2g_types::ident::excerpt;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The argument with the body.
const BODY: &str = "body";
/// The argument with the number of pages.
const MAX_PAGES: &str = "max_pages";
/// The maximum length of an argument's name, which clients of models accept.
const MAX_NAME_CHARS: usize = 64;
/// The maximum length of an argument's description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 300;
/// Header fields that OpenAPI leaves to other parts of a document, and that the executor sets. No cookies are sent.
const OTHER_FIELDS: [&str; 14] = [
    "accept",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// An argument of an operation.
#[derive(Debug)]
pub(super) struct Argument<'a> {
    pub(super) parameter: Parameter,
    is_required: bool,
    /// The object of the parameter; `None` for one that only the path names.
    object: Option<&'a Value>,
    schema: Option<&'a Value>,
}

/// The body of an operation's request.
#[derive(Debug)]
pub(super) struct RequestBody<'a> {
    pub(super) settings: Body,
    is_required: bool,
    description: Option<&'a str>,
    /// The object of its media type.
    pub(super) media: &'a Value,
}

/// The arguments of an operation.
#[derive(Debug)]
pub(super) struct Arguments<'a> {
    pub(super) all: Vec<Argument<'a>>,
    pub(super) body: Option<RequestBody<'a>>,
    pub(super) remarks: BTreeSet<&'static str>,
}

impl<'a> Arguments<'a> {
    /// Reads the parameters and the body of an operation.
    ///
    /// # Errors
    /// If one that is required cannot be sent.
    pub(super) fn read(
        document: &'a Document,
        operation: &Operation<'a>,
        route: &Route,
    ) -> anyhow::Result<Self> {
        let mut remarks = BTreeSet::new();
        let mut all = Vec::<Argument<'a>>::new();
        let body = read_body(document, operation, &mut remarks)?;
        // A parameter of the operation replaces that of the path.
        let objects = [operation.item, operation.value].map(|object| list_member(object, "parameters"));
        for object in objects.into_iter().flatten() {
            let read = read_parameter(document.resolve(object)?, &mut remarks)?;
            let Some(argument) = read else { continue };
            let Parameter { name, place, .. } = &argument.parameter;
            all.retain(|known| known.parameter.name != *name || known.parameter.place != *place);
            all.push(argument);
        }
        let is_in_path = |name: &String| route.parameters.contains(name);
        all.retain(|argument| {
            argument.parameter.place != Place::Path || is_in_path(&argument.parameter.name)
        });
        for name in &route.parameters {
            let is_known =
                |known: &Argument<'_>| known.parameter.place == Place::Path && known.parameter.name == *name;
            if !all.iter().any(is_known) {
                all.push(Argument::of_path(name));
            }
        }
        name_arguments(&mut all);
        Ok(Self { all, body, remarks })
    }

    /// Makes the schema of the arguments.
    ///
    /// # Errors
    /// If a reference leads outside of the document, or to nothing.
    pub(super) fn schema(&self, converter: &mut Converter<'a>, has_pages: bool) -> anyhow::Result<Value> {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for Argument { parameter, is_required, object, schema } in &self.all {
            let made = match schema {
                Some(schema) => converter.schema(schema)?,
                None => json!({ "type": "string" }),
            };
            let text = object.and_then(|object| text_member(object, "description"));
            properties.insert(parameter.argument.clone(), with_description(made, text));
            if *is_required {
                required.push(parameter.argument.clone());
            }
        }
        if let Some(RequestBody { settings, is_required, description, media }) = &self.body {
            let has_value = is_json(&settings.media_type) || settings.media_type == FORM;
            let made = match media.get("schema").filter(|_| has_value) {
                Some(schema) => converter.schema(schema)?,
                None if is_json(&settings.media_type) => json!({}),
                None if settings.media_type == FORM => json!({ "type": "object" }),
                None => json!({ "type": "string" }),
            };
            properties.insert(BODY.to_owned(), with_description(made, *description));
            if *is_required {
                required.push(BODY.to_owned());
            }
        }
        if has_pages {
            let text =
                "How many pages to get at most. The lists of further pages are added to those of the first.";
            let pages =
                json!({ "type": "integer", "minimum": 1, "maximum": 20, "default": 1, "description": text });
            properties.insert(MAX_PAGES.to_owned(), pages);
        }
        // An empty list is no schema in the oldest drafts.
        let required = (!required.is_empty()).then(|| ("required".to_owned(), json!(required)));
        let members = [
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), Value::Object(properties)),
            ("additionalProperties".to_owned(), json!(false)),
        ];
        Ok(Value::Object(members.into_iter().chain(required).collect()))
    }

    /// The argument for a query parameter; `None` if there is none of this name.
    pub(super) fn query_argument(&self, name: &str) -> Option<&str> {
        let is_it = |argument: &&Argument<'_>| {
            argument.parameter.place == Place::Query && argument.parameter.name == name
        };
        self.all.iter().find(is_it).map(|argument| argument.parameter.argument.as_str())
    }

    /// The arguments that the examples of the document give: those that are required, and no body that is not. `None`
    /// if one is missing.
    pub(super) fn example(&self, document: &Document) -> Option<Map<String, Value>> {
        let mut example = Map::new();
        for Argument { parameter, is_required, object, schema } in &self.all {
            let own = object.and_then(|object| find_example(document, object));
            let schema = schema.and_then(|schema| document.resolve(schema).ok());
            let value = own.or_else(|| schema.and_then(schema_example));
            match value {
                Some(value) if *is_required => {
                    drop(example.insert(parameter.argument.clone(), value.clone()))
                }
                None if *is_required => return None,
                Some(_) | None => {}
            }
        }
        if let Some(body) = self.body.as_ref().filter(|body| body.is_required) {
            example.insert(BODY.to_owned(), find_example(document, body.media)?.clone());
        }
        Some(example)
    }
}

impl Argument<'_> {
    /// A parameter that only the path names.
    fn of_path(name: &str) -> Self {
        let parameter = Parameter {
            argument: String::new(),
            name: name.to_owned(),
            place: Place::Path,
            style: Style::Simple,
            explode: false,
        };
        Self { parameter, is_required: true, object: None, schema: None }
    }
}

/// The example of a parameter or of a media type.
pub(super) fn find_example<'a>(document: &'a Document, object: &'a Value) -> Option<&'a Value> {
    let named = || {
        let (_, example) = object_member(object, "examples").next()?;
        document.resolve(example).ok()?.get("value")
    };
    let of_schema = || schema_example(document.resolve(object.get("schema")?).ok()?);
    object.get("example").or_else(named).or_else(of_schema)
}

fn schema_example(schema: &Value) -> Option<&Value> {
    let lists = || list_member(schema, "examples").first().or_else(|| list_member(schema, "enum").first());
    schema.get("example").or_else(|| schema.get("default")).or_else(lists)
}

/// Reads a parameter; `None` if it is sent by something else, or not at all.
fn read_parameter<'a>(
    object: &'a Value,
    remarks: &mut BTreeSet<&'static str>,
) -> anyhow::Result<Option<Argument<'a>>> {
    let name = text_member(object, "name").context("a parameter has no `name`")?.to_owned();
    let is_required = object.get("required") == Some(&Value::Bool(true));
    let place = match text_member(object, "in") {
        Some("path") => Place::Path,
        Some("query") => Place::Query,
        Some("header") if OTHER_FIELDS.contains(&name.to_ascii_lowercase().as_str()) => return Ok(None),
        Some("header") => Place::Header,
        Some("cookie") if is_required => {
            bail!("it needs the cookie `{}`, and cookies are not sent", excerpt(&name))
        }
        Some("cookie") => {
            remarks.insert("its cookies are not sent");
            return Ok(None);
        }
        _ => bail!("the parameter `{}` has no place (`in`)", excerpt(&name)),
    };
    let content = object_member(object, "content").next().map(|(_, media)| media);
    let style = match (content, text_member(object, "style")) {
        (Some(_), _) => Style::Json,
        (None, None) if place == Place::Query => Style::Form,
        (None, None) => Style::Simple,
        (None, Some(style)) => serde_json::from_value(style.into())
            .with_context(|| format!("the parameter `{}` has an unknown `style`", excerpt(&name)))?,
    };
    let explode = object.get("explode").and_then(Value::as_bool).unwrap_or(style == Style::Form);
    let schema = content.unwrap_or(object).get("schema");
    let is_required = is_required || place == Place::Path;
    let parameter = Parameter { argument: String::new(), name, place, style, explode };
    Ok(Some(Argument { parameter, is_required, object: Some(object), schema }))
}

/// Gives each argument a name of its own, in the characters that clients of models accept.
fn name_arguments(all: &mut [Argument<'_>]) {
    let mut taken = BTreeSet::from([BODY.to_owned(), MAX_PAGES.to_owned()]);
    for argument in all {
        let Parameter { name, place, .. } = &argument.parameter;
        let plain = plain_name(name);
        let suffix = match place {
            Place::Path => "path",
            Place::Query => "query",
            Place::Header => "header",
        };
        let numbered = (2..).map(|number| format!("{plain}_{suffix}_{number}"));
        let mut names = [plain.clone(), format!("{plain}_{suffix}")].into_iter().chain(numbered);
        let unused = names.find(|name| !taken.contains(name)).unwrap_or_default();
        taken.insert(unused.clone());
        argument.parameter.argument = unused;
    }
}

fn plain_name(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if name.chars().all(is_plain) && (1..=MAX_NAME_CHARS).contains(&name.len()) {
        return name.to_owned();
    }
    let replaced = name.chars().map(|letter| if is_plain(letter) { letter } else { '_' });
    let cut = replaced.take(MAX_NAME_CHARS / 2).collect::<String>();
    let words = cut.split('_').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
    if words.is_empty() { "parameter".to_owned() } else { words }
}

/// Reads the body in the form that is the most useful; `None` if there is none, or only others and none is required.
fn read_body<'a>(
    document: &'a Document,
    operation: &Operation<'a>,
    remarks: &mut BTreeSet<&'static str>,
) -> anyhow::Result<Option<RequestBody<'a>>> {
    let Some(body) = operation.value.get("requestBody") else { return Ok(None) };
    let body = document.resolve(body)?;
    let is_required = body.get("required") == Some(&Value::Bool(true));
    let media = object_member(body, "content").collect::<Vec<_>>();
    let is_text = |name: &str| name.starts_with("text/") || name.ends_with("xml");
    let forms: [&dyn Fn(&str) -> bool; 4] =
        [&|name| name == "application/json", &is_json, &|name| name == FORM, &is_text];
    let is_concrete = |name: &str| !name.contains('*');
    let find = |form: &&dyn Fn(&str) -> bool| {
        media.iter().find(|(name, _)| is_concrete(name) && form(name.as_str()))
    };
    let Some(&(name, media)) = forms.iter().find_map(find) else {
        let is_needed = is_required || ["PATCH", "POST", "PUT"].contains(&operation.method);
        if is_needed && !media.is_empty() {
            let names = media.iter().map(|(name, _)| excerpt(name)).collect::<Vec<_>>().join(", ");
            bail!("its body is {names}, and only JSON, forms and texts are sent");
        }
        remarks.insert("its body is not sent: it is neither JSON nor a form nor a text");
        return Ok(None);
    };
    let encodings = object_member(media, "encoding");
    let is_deep = |encoding: &Value| text_member(encoding, "style") == Some("deepObject");
    let deep = encodings.filter(|(_, encoding)| is_deep(encoding)).map(|(name, _)| name.clone()).collect();
    let settings = Body { media_type: name.clone(), deep };
    let description = text_member(body, "description");
    Ok(Some(RequestBody { settings, is_required, description, media }))
}

/// The schema with this description, if there is one.
fn with_description(mut schema: Value, text: Option<&str>) -> Value {
    let cleaned = clean(text.unwrap_or_default(), MAX_DESCRIPTION_CHARS);
    match &mut schema {
        Value::Object(members) if !cleaned.is_empty() && !members.contains_key("$ref") => {
            members.insert("description".to_owned(), cleaned.into());
        }
        Value::Object(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_) => {}
    }
    schema
}
