//! The result of an operation: the schema of its answers, and the place where they name the next page.

use super::document::{Document, list_member, object_member, text_member};
use super::operation::Operation;
use super::parameters::{Arguments, find_example};
use super::schema::Converter;
use super::settings::{Pagination, is_json};
use serde_json::{Map, Value, json};

/// The maximum number of different schemas of successful answers.
const MAX_SCHEMAS: usize = 4;
/// Members with the cursor of the next page, each with the query parameter for it.
const CURSORS: [(&str, &str); 6] = [
    ("nextPageToken", "pageToken"),
    ("next_page_token", "page_token"),
    ("next_cursor", "cursor"),
    ("nextCursor", "cursor"),
    ("next_token", "next_token"),
    ("nextToken", "nextToken"),
];
/// A member with the URL of the next page.
const NEXT: &str = "next";

/// The successful answers of an operation.
#[derive(Debug)]
pub(super) struct Responses<'a> {
    /// The status of the first one, 200 if the document gives none.
    status: u16,
    /// The first one with JSON, as the object of its media type.
    json: Option<&'a Value>,
    /// The schemas of the answers in JSON.
    schemas: Vec<&'a Value>,
    /// `true` if an answer declares the header `Link`.
    has_links: bool,
}

impl<'a> Responses<'a> {
    /// Reads the successful answers of an operation.
    ///
    /// # Errors
    /// If a reference leads outside of the document, or to nothing.
    pub(super) fn read(document: &'a Document, operation: &Operation<'a>) -> anyhow::Result<Self> {
        let mut responses = Self { status: 200, json: None, schemas: Vec::new(), has_links: false };
        let mut is_first = true;
        let successful =
            object_member(operation.value, "responses").filter(|(code, _)| code.starts_with('2'));
        for (code, object) in successful {
            let response = document.resolve(object)?;
            if is_first {
                is_first = false;
                responses.status = code.parse().unwrap_or(200);
            }
            let mut names = object_member(response, "headers").map(|(name, _)| name);
            responses.has_links |= names.any(|name| name.eq_ignore_ascii_case("link"));
            for (_, media) in object_member(response, "content").filter(|(name, _)| is_json(name)) {
                responses.json = responses.json.or(Some(media));
                if let Some(schema) = media.get("schema")
                    && responses.schemas.len() < MAX_SCHEMAS
                    && !responses.schemas.contains(&schema)
                {
                    responses.schemas.push(schema);
                }
            }
        }
        Ok(responses)
    }

    /// Makes the schema of the result.
    ///
    /// # Errors
    /// If a reference leads outside of the document, or to nothing.
    pub(super) fn schema(&self, converter: &mut Converter<'a>, has_pages: bool) -> anyhow::Result<Value> {
        let mut bodies = Vec::new();
        for schema in &self.schemas {
            bodies.push(converter.schema(schema)?);
        }
        let body =
            if bodies.len() > 1 { json!({ "anyOf": bodies }) } else { bodies.pop().unwrap_or(json!({})) };
        let artifact = json!({
            "type": "object",
            "description": "The artifact with the body, if it is no JSON, or too large.",
            "required": ["name", "media_type", "bytes"],
            "properties": {
                "name": { "type": "string" },
                "media_type": { "type": "string" },
                "bytes": { "type": "integer" },
            },
        });
        let mut properties = Map::from_iter([
            (
                "status".to_owned(),
                json!({ "type": "integer", "description": "The HTTP status, 200 to 299." }),
            ),
            ("body".to_owned(), body),
            ("artifact".to_owned(), artifact),
        ]);
        if has_pages {
            let text = "true if there are further pages.";
            properties.insert(
                "pages".to_owned(),
                json!({ "type": "integer", "description": "The number of pages." }),
            );
            properties.insert("has_more".to_owned(), json!({ "type": "boolean", "description": text }));
        }
        Ok(json!({ "type": "object", "required": ["status"], "properties": properties }))
    }

    /// The place where the answers name the next page.
    pub(super) fn pagination(
        &self,
        document: &Document,
        operation: &Operation<'_>,
        arguments: &Arguments<'_>,
    ) -> Option<Pagination> {
        if operation.method != "GET" {
            return None;
        }
        if self.has_links {
            return Some(Pagination::default());
        }
        let schema = document.resolve(self.schemas.first()?).ok()?;
        let is_object = |schema: &&Value| schema.get("properties").is_some();
        let parts = list_member(schema, "allOf").iter().filter_map(|part| document.resolve(part).ok());
        let mut objects = std::iter::once(schema).chain(parts).filter(is_object);
        objects.find_map(|object| find_next(document, object, arguments))
    }

    /// The status and the body of the answer that the examples of the document give; no body for an answer without one.
    pub(super) fn example(&self, document: &Document) -> Option<(u16, Option<Value>)> {
        match self.json {
            Some(media) => Some((self.status, Some(find_example(document, media)?.clone()))),
            None if self.status == 204 => Some((self.status, None)),
            None => None,
        }
    }
}

/// The member of an answer that names the next page.
fn find_next(document: &Document, schema: &Value, arguments: &Arguments<'_>) -> Option<Pagination> {
    let member = |name: &str| document.resolve(schema.get("properties")?.get(name)?).ok();
    for (name, parameter) in CURSORS {
        if let (Some(_), Some(argument)) = (member(name), arguments.query_argument(parameter)) {
            let argument = Some(argument.to_owned());
            return Some(Pagination { member: Some(name.to_owned()), argument });
        }
    }
    let is_url = ["uri", "url", "uri-reference"].contains(&text_member(member(NEXT)?, "format")?);
    is_url.then(|| Pagination { member: Some(NEXT.to_owned()), argument: None })
}
