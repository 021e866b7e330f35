//! The operations of a document, and the requests that they send.

use super::document::{Document, list_member, object_member, text_member};
use super::uri::{fits, plain};
use a2g_types::ident::excerpt;
use a2g_types::request::DeclaredRequest;
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use url::Url;

/// The methods of a path item that can be a tool. TRACE returns the request that a server got.
const METHODS: [(&str, Effect); 7] = [
    ("GET", Effect::Idempotent),
    ("PUT", Effect::Idempotent),
    ("POST", Effect::Any),
    ("DELETE", Effect::Idempotent),
    ("OPTIONS", Effect::Idempotent),
    ("HEAD", Effect::Idempotent),
    ("PATCH", Effect::Any),
];

/// The effect of a repeated request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// That of one request (RFC 9110, section 9.2.2).
    Idempotent,
    /// Perhaps another one.
    Any,
}

/// An operation of a document.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    /// Its `operationId`, or the method and the words of its path.
    pub(crate) id: String,
    /// The method, in upper case.
    pub(crate) method: &'static str,
    /// The effect of a repetition.
    pub(crate) effect: Effect,
    /// The template of its path, below the server.
    pub(crate) path: &'a str,
    /// The object of the path, with what all of its operations have.
    pub(crate) item: &'a Value,
    /// The object of the operation.
    pub(crate) value: &'a Value,
}

/// The request of an operation.
#[derive(Debug)]
pub(crate) struct Route {
    /// The scheme and the host, with the port unless it is the scheme's default.
    pub(crate) origin: String,
    /// The URL with the names of path parameters in braces.
    pub(crate) url: String,
    /// The declaration of exactly this request.
    pub(crate) declared: DeclaredRequest,
    /// The names of the path parameters.
    pub(crate) parameters: Vec<String>,
}

/// The operations of a document, in its order.
///
/// # Errors
/// If a path refers to what is not in the document, or there is no operation.
pub(crate) fn list(document: &Document) -> anyhow::Result<Vec<Operation<'_>>> {
    let mut operations = Vec::new();
    let mut ids = BTreeSet::new();
    let mut numbers = BTreeMap::new();
    for (path, item) in object_member(&document.root, "paths").filter(|(path, _)| path.starts_with('/')) {
        let item = document.resolve(item).with_context(|| format!("the path `{}`", excerpt(path)))?;
        for (method, effect) in METHODS {
            let Some(value) = item.get(method.to_ascii_lowercase()).filter(|value| value.is_object()) else {
                continue;
            };
            let named = text_member(value, "operationId").map(str::trim).filter(|id| !id.is_empty());
            let own = named.filter(|id| !ids.contains(*id)).map(str::to_owned);
            let words = || snake_case(&format!("{method} {path}"));
            let id = own.unwrap_or_else(|| unused_id(words(), &ids, &mut numbers));
            ids.insert(id.clone());
            operations.push(Operation { id, method, effect, path, item, value });
        }
    }
    if operations.is_empty() {
        bail!("the document has no operation (`paths`)");
    }
    Ok(operations)
}

/// This id, or with a number that makes it new. `numbers` has the next one of each id: a large document may have very
/// many operations of one name.
fn unused_id(id: String, ids: &BTreeSet<String>, numbers: &mut BTreeMap<String, usize>) -> String {
    if !ids.contains(&id) {
        return id;
    }
    let number = numbers.entry(id.clone()).or_insert(2);
    loop {
        let numbered = format!("{id}_{number}");
        *number += 1;
        if !ids.contains(&numbered) {
            return numbered;
        }
    }
}

/// The words of a name in lower case, joined by `_`: `getItemByID` becomes `get_item_by_id`.
pub(crate) fn snake_case(name: &str) -> String {
    let letters = name.chars().collect::<Vec<_>>();
    let mut words = String::new();
    for (index, letter) in letters.iter().enumerate() {
        if !letter.is_ascii_alphanumeric() {
            words.push('_');
            continue;
        }
        let before = index.checked_sub(1).and_then(|before| letters.get(before));
        let is_lower_after = letters.get(index + 1).is_some_and(char::is_ascii_lowercase);
        let begins_word = letter.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || before.is_ascii_uppercase() && is_lower_after
            });
        if begins_word {
            words.push('_');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words.split('_').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
}

impl Operation<'_> {
    /// The member of the operation, or else of its path, or else of the document, that is a list with items.
    fn inherited_list<'a>(&'a self, document: &'a Document, name: &str) -> &'a [Value] {
        let lists = [self.value, self.item, &document.root].map(|object| list_member(object, name));
        lists.into_iter().find(|list| !list.is_empty()).unwrap_or_default()
    }

    /// The paths of other operations of its method to which arguments of this one could lead, with `*` for a parameter.
    pub(crate) fn others(&self, operations: &[Operation<'_>]) -> BTreeSet<String> {
        let own = patterns(self.path);
        if !own.iter().any(|segment| segment.contains('*')) {
            return BTreeSet::new();
        }
        let of_method = operations.iter().filter(|other| other.method == self.method);
        let all = of_method.filter(|other| !other.path.contains('*')).map(|other| patterns(other.path));
        let may_be_same = |one: &str, other: &str| {
            one.contains('*') && other.contains('*') || fits(one, other) || fits(other, one)
        };
        let could_be_reached = |other: &Vec<String>| {
            let mut pairs = own.iter().zip(other);
            own.len() == other.len() && pairs.all(|(one, another)| may_be_same(&plain(one), &plain(another)))
        };
        // Every path of this one is also one of such an operation, from which its server tells it.
        let has_every_path = |other: &Vec<String>| {
            own.iter().zip(other).all(|(one, another)| another == "*" || one == another)
        };
        all.filter(|other| could_be_reached(other) && !has_every_path(other))
            .map(|other| format!("/{}", other.join("/")))
            .collect()
    }

    /// The request of the operation at `server`, or else at the server of the document.
    ///
    /// # Errors
    /// If there is no such server, or no request with this path can be declared.
    pub(crate) fn route(&self, document: &Document, server: Option<&str>) -> anyhow::Result<Route> {
        let named = self.inherited_list(document, "servers").first().map(server_url).transpose()?;
        let text: &str = match (server, &named) {
            (Some(server), _) => server,
            (None, Some(named)) => named,
            (None, None) => "/",
        };
        let (origin, base) = parse_server(text)?;
        if self.path.contains(['?', '#']) {
            bail!("its path `{}` has a query or a fragment, which are no part of a path", excerpt(self.path));
        }
        let mut parameters = Vec::new();
        let parsed = self.path.split('/').skip(1).map(|segment| Segment::parse(segment, &mut parameters));
        let segments = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        let url = segments.iter().fold(format!("{origin}{base}"), |url, segment| url + "/" + &segment.url);
        let pattern = segments.iter().fold(base, |path, segment| path + "/" + &segment.pattern);
        let declared = DeclaredRequest::parse(&format!("{} {origin}{pattern}", self.method))?;
        Ok(Route { origin, url, declared, parameters })
    }
}

/// The segments of a path, with one `*` for all parameters of a segment and what is between them.
fn patterns(path: &str) -> Vec<String> {
    let segments = path.trim_matches('/').split('/');
    let pattern = |segment: &str| match (segment.split_once('{'), segment.rsplit_once('}')) {
        (Some((before, _)), Some((_, after))) => format!("{before}*{after}"),
        (_, _) => segment.to_owned(),
    };
    segments.map(pattern).collect()
}

/// The URL of a server with its variables.
fn server_url(server: &Value) -> anyhow::Result<String> {
    let mut url = text_member(server, "url").context("the document has a server without `url`")?.to_owned();
    for (name, variable) in object_member(server, "variables") {
        let default = text_member(variable, "default").unwrap_or_default();
        url = url.replace(&format!("{{{name}}}"), default);
    }
    Ok(url)
}

/// The origin and the path of a server's URL, without a `/` at the end.
fn parse_server(text: &str) -> anyhow::Result<(String, String)> {
    let shown = excerpt(text);
    if text.starts_with('/') || !text.contains("://") {
        bail!(
            "the document does not say at which host its server `{shown}` is: name it with `--server https://HOST/…`"
        );
    }
    let url = Url::parse(text)
        .with_context(|| format!("the server `{shown}` is no URL: name it with `--server`"))?;
    if !["http", "https"].contains(&url.scheme()) {
        bail!("the server `{shown}` is reached with {}, and not with http or https", url.scheme());
    }
    let has_more = !url.username().is_empty() || url.password().is_some();
    if has_more || url.query().is_some() || url.fragment().is_some() || text.contains(['{', '}', '*']) {
        bail!("the server `{shown}` is more than scheme, host, port and path: name it with `--server`");
    }
    let host = url.host_str().with_context(|| format!("the server `{shown}` has no host"))?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Ok((format!("{}://{host}{port}", url.scheme()), url.path().trim_end_matches('/').to_owned()))
}

/// A segment of a path.
struct Segment {
    /// As part of a URL, with the names of parameters in braces.
    url: String,
    /// As part of a declared request.
    pattern: String,
}

impl Segment {
    /// Reads a segment, and adds the names of its parameters.
    fn parse(text: &str, parameters: &mut Vec<String>) -> anyhow::Result<Self> {
        let mut url = String::new();
        let mut pattern = String::new();
        let mut names = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            let named = after.split_once('}').filter(|(name, _)| !name.is_empty() && !name.contains('{'));
            let (name, tail) = named.with_context(|| format!("its path has `{}`", excerpt(text)))?;
            let encoded = encode_literal(literal)?;
            url.push_str(&format!("{encoded}{{{name}}}"));
            pattern.push_str(&format!("{encoded}{{{}}}", placeholder(name)));
            names.push(name.to_owned());
            rest = tail;
        }
        let encoded = encode_literal(rest)?;
        url.push_str(&encoded);
        pattern.push_str(&encoded);
        if names.len() > 1 {
            "*".clone_into(&mut pattern);
        }
        parameters.extend(names);
        Ok(Self { url, pattern })
    }
}

/// The name of a parameter as a declared request may have it.
fn placeholder(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
}

/// Percent-encodes what has to be in a path.
fn encode_literal(text: &str) -> anyhow::Result<String> {
    if text.contains(['*', '}']) {
        bail!("its path has `{}`, which a declared request cannot have", excerpt(text));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()+,;=:@%".contains(&byte);
    let encode =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    Ok(text.bytes().map(encode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn document(root: Value) -> Document {
        Document::parse(&root.to_string()).unwrap()
    }

    #[test]
    fn operations_without_an_id_of_their_own_are_named_by_their_request() {
        let document = document(json!({ "openapi": "3.0.0", "paths": {
            "/items/{id}": { "get": {}, "post": { "operationId": "add" }, "trace": {}, "parameters": [] },
            "/items/id": { "get": { "operationId": "add" }, "put": { "operationId": "" } },
            "/items/{ID}": { "get": {} },
        } }));
        let operations = list(&document).unwrap();
        let ids = operations.iter().map(|operation| operation.id.as_str()).collect::<Vec<_>>();
        assert_eq!(ids, ["get_items_id", "add", "get_items_id_2", "put_items_id", "get_items_id_3"]);
    }

    #[test]
    fn the_paths_of_other_operations_that_arguments_could_reach_are_named() {
        let paths = [
            "/items/{id}",
            "/items/export",
            "/items/{id}:cancel",
            "/items/{id}/photo",
            "/{kind}/{id}",
            "/Items/new/",
            "/items/{id}/{part}",
            "/items/all/{part}",
            "/other/export",
        ];
        let items = paths.map(|path| (path.to_owned(), json!({ "get": {}, "put": {} })));
        let mut root = json!({ "openapi": "3.0.0", "paths": Map::from_iter(items) });
        root["paths"]["/items/only_post"] = json!({ "post": {} });
        let document = document(root);
        let operations = list(&document).unwrap();
        let expected: [(&str, &[&str]); 5] = [
            ("/items/{id}", &["/Items/new", "/items/*:cancel", "/items/export"]),
            ("/items/{id}:cancel", &[]),
            ("/items/export", &[]),
            ("/items/{id}/{part}", &["/items/*/photo", "/items/all/*"]),
            ("/items/{id}/photo", &["/items/all/*"]),
        ];
        for (path, others) in expected {
            let own = operations.iter().find(|operation| operation.path == path && operation.method == "GET");
            assert_eq!(own.unwrap().others(&operations).into_iter().collect::<Vec<_>>(), others, "{path}");
        }
    }

    #[test]
    fn names_become_words() {
        for (name, words) in [
            ("getItemByID", "get_item_by_id"),
            ("repos/list-for-org", "repos_list_for_org"),
            ("HTTPServerURL2Get", "http_server_url2_get"),
            ("Items.List", "items_list"),
            ("__a  b", "a_b"),
            ("ä", ""),
        ] {
            assert_eq!(snake_case(name), words, "{name}");
        }
    }

    #[test]
    fn a_route_is_the_method_host_and_template_of_the_operation() {
        let route = |servers: Value, path: &str, server: Option<&str>| {
            let root = json!({ "openapi": "3.0.0", "servers": servers, "paths": { path: { "get": {} } } });
            let document = document(root);
            let routed = list(&document).unwrap().remove(0).route(&document, server);
            routed.map(|route| (route.url, route.declared.to_string())).map_err(|error| format!("{error:#}"))
        };
        let api = json!([{ "url": "https://API.example.com:443/v1/" }]);
        for (path, url, pattern) in [
            ("/a/{id}", "/a/{id}", "/a/{id}"),
            ("/a/{id}.json", "/a/{id}.json", "/a/{id}.json"),
            ("/{a}-{b}/c", "/{a}-{b}/c", "/*/c"),
            ("/{user id}/x y", "/{user id}/x%20y", "/{user_id}/x%20y"),
            ("/a/", "/a/", "/a/"),
            ("/{n}:cancel", "/{n}:cancel", "/{n}:cancel"),
        ] {
            let base = "https://api.example.com/v1";
            let expected = (format!("{base}{url}"), format!("GET {base}{pattern}"));
            assert_eq!(route(api.clone(), path, None), Ok(expected), "{path}");
        }
        let variables = json!([{
            "url": "http://{host}:{port}/{base}",
            "variables": { "host": { "default": "a.test" }, "port": { "default": "81" }, "base": { "default": "b" } },
        }]);
        assert_eq!(route(variables, "/x", None).unwrap().0, "http://a.test:81/b/x");
        let other = Some("https://b.test");
        assert_eq!(route(json!([{ "url": "/v1" }]), "/x", other).unwrap().0, "https://b.test/x");
        for (server, path, words) in [
            ("/v1", "/x", "`--server"),
            ("https://{host}/", "/x", "`--server"),
            ("https://user:pw@a.test/", "/x", "more than scheme"),
            ("https://a.test/?x=1", "/x", "more than scheme"),
            ("ftp://a.test/", "/x", "with ftp"),
            ("https://a.test/", "/a/../b", "more than one way"),
            ("https://a.test/", "/a//b", "empty segment"),
            ("https://a.test/", "/a/*", "cannot have"),
            ("https://a.test/", "/a?b=1", "a query"),
            ("https://a.test/", "/{a", "`{a`"),
            ("https://a.test/", "/a%2Fb", "more than one way"),
        ] {
            let error = route(json!([{ "url": server }]), path, None).unwrap_err();
            assert!(error.contains(words), "{server} {path}: {error}");
        }
    }
}
