//! Public documents of packages: each tool declares exactly the request of its operation, and no argument makes it send
//! another one.

use super::{Author, said};
use harness::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;

// What the client does with settings and arguments.
#[allow(dead_code, reason = "the client uses all of it")]
#[path = "../../../../tools/api_client/src/openapi/settings.rs"]
mod settings;
#[path = "../../../../tools/api_client/src/openapi/uri.rs"]
mod uri;

/// The documents, by package, and the number of their operations of which no tool can be made: they have files, cookies,
/// or paths with a query.
const DOCUMENTS: [(&str, usize); 28] = [
    ("@readme/oas-examples/3.0/json/petstore.json", 1),
    ("@readme/oas-examples/3.0/json/server-variables.json", 0),
    ("@readme/oas-examples/3.0/json/server-path-level.json", 0),
    ("@readme/oas-examples/3.0/json/schema-types.json", 0),
    ("@readme/oas-examples/3.0/json/schema-circular.json", 1),
    ("@readme/oas-examples/3.0/json/security-multiple.json", 0),
    ("@readme/oas-examples/3.0/json/discriminators.json", 0),
    ("@readme/oas-examples/3.0/json/polymorphism.json", 0),
    ("@readme/oas-examples/3.0/json/circular-paths.json", 0),
    ("@readme/oas-examples/3.0/json/complex-nesting.json", 0),
    ("@readme/oas-examples/3.0/json/uspto.json", 0),
    ("@readme/oas-examples/3.0/json/link-example.json", 0),
    ("@readme/oas-examples/3.0/json/parameters-common.json", 0),
    ("@readme/oas-examples/3.0/json/parameters-style.json", 8),
    ("@readme/oas-examples/3.0/json/request-examples.json", 0),
    ("@readme/oas-examples/3.0/json/readme-legacy.json", 2),
    ("@readme/oas-examples/3.0/json/star-trek.json", 0),
    ("@readme/oas-examples/3.0/yaml/petstore-expanded.yaml", 0),
    ("@readme/oas-examples/3.1/json/train-travel.json", 0),
    ("@readme/oas-examples/3.1/json/security.json", 0),
    ("@readme/oas-examples/3.1/json/readme.json", 4),
    ("@readme/oas-examples/3.1/yaml/petstore.yaml", 1),
    ("@scalar/galaxy/dist/3.1.yaml", 1),
    ("@ideal-postcodes/openapi/dist/openapi.json", 0),
    ("@directus/specs/dist/openapi.json", 2),
    ("@figma/rest-api-spec/openapi/openapi.yaml", 0),
    ("@blockfrost/openapi/openapi.yaml", 3),
    ("@dcl/catalyst-api-specs/lib/api.yaml", 1),
];

/// The server of a document that names none.
const SERVER: &str = "https://api.test/base";

/// The number of operations of one command.
const AT_ONCE: usize = 40;

/// Values with which somebody would try to leave the path of an operation.
const HOSTILE: [&str; 16] = [
    "x",
    "a b&c=d",
    "ü",
    "",
    ".",
    "..",
    "../..",
    "a/b",
    "%2e%2e",
    "%2F..%2F",
    "..;x=1",
    "?a=b#c",
    "\\..\\",
    "@evil.example",
    "//evil.example/",
    "\r\nhost: evil.example",
];

#[test]
fn tools_of_public_documents_send_their_request_and_no_other() {
    let Some(modules) = client_folder("OpenAPI documents of packages", "openapi/node_modules") else {
        return;
    };
    for (name, refused) in DOCUMENTS {
        check_document(&modules.join(name), name, refused);
    }
}

/// A document, read without the executor.
fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).expect("JSON")
    } else {
        serde_saphyr::from_str(&text).expect("YAML")
    }
}

/// The first server of these objects, with its variables.
fn server(objects: [&Value; 3]) -> String {
    let lists = objects.map(|object| object["servers"].as_array().cloned().unwrap_or_default());
    let Some(server) = lists.into_iter().find_map(|list| list.into_iter().next()) else {
        return "/".to_owned();
    };
    let mut url = server["url"].as_str().expect("a URL").to_owned();
    for (name, variable) in server["variables"].as_object().into_iter().flatten() {
        url = url.replace(&format!("{{{name}}}"), variable["default"].as_str().expect("a default"));
    }
    // The port of the scheme is left out.
    url.replace(":443/", "/")
}

/// The declaration of an operation: two parameters in one segment are any segment.
fn declaration(method: &str, server: &str, path: &str) -> String {
    let segments =
        path.split('/').map(|segment| if segment.matches('{').count() > 1 { "*" } else { segment });
    format!(
        "{} {}{}",
        method.to_uppercase(),
        server.trim_end_matches('/'),
        segments.collect::<Vec<_>>().join("/")
    )
}

fn check_document(path: &Path, name: &str, refused: usize) {
    let document = read(path);
    let mut operations = Vec::new();
    for (route, item) in document["paths"].as_object().expect("paths") {
        let item = match item["$ref"].as_str() {
            Some(reference) => document.pointer(&reference[1..]).expect("a path"),
            None => item,
        };
        for method in ["get", "put", "post", "delete", "options", "head", "patch"] {
            let Some(operation) = item.get(method) else { continue };
            operations.push((method, server([operation, item, &document]), route));
        }
    }
    // `--server` replaces every server of a document.
    let needs_server = operations.iter().any(|(_, server, _)| !server.starts_with("http"));
    let declare = |(method, server, route): &(&str, String, &String)| {
        declaration(method, if needs_server { SERVER } else { server }, route)
    };
    let expected = operations.iter().map(declare).collect::<BTreeSet<_>>();
    let author = Author::new();
    let file = path.to_str().expect("UTF-8");
    let listed = said(&author.run_in_columns(&["tool", "new", "x", "--openapi", file], "1000"), 0);
    let ids = listed_ids(&listed);
    assert_eq!(ids.len(), expected.len(), "{name}: {listed}");
    let mut names = Vec::new();
    let mut all_said = String::new();
    for some in ids.chunks(AT_ONCE) {
        let joined = some.join(",");
        let mut words = vec!["tool", "new", "x", "--openapi", file, "--operations", joined.as_str()];
        words.extend(needs_server.then_some(["--server", SERVER]).into_iter().flatten());
        let output = author.run(&words);
        let made = String::from_utf8_lossy(&output.stdout).into_owned();
        let tools = made.lines().filter_map(|line| line.strip_prefix("made ")?.split_once(": "));
        names.extend(tools.map(|(tool, _)| tool.to_owned()));
        all_said += &String::from_utf8_lossy(&output.stderr);
    }
    assert_eq!(names.len() + refused, ids.len(), "{name}: {all_said}");
    let mut declared = BTreeSet::new();
    for tool in &names {
        let manifest = author.manifest(tool);
        let requests = manifest["capabilities"]["requests"].as_array().expect("requests");
        assert_eq!(requests.len(), 1, "{manifest}");
        let request = requests[0].as_str().expect("a text").to_owned();
        assert!(expected.contains(&request), "{name}: {request} is not of {expected:?}");
        assert!(declared.insert(request.clone()), "{name}: {request} is declared twice");
        check_urls(&manifest, &request);
    }
}

/// The ids in a table with a line for each operation.
fn listed_ids(listed: &str) -> Vec<String> {
    let id = |line: &str| {
        let methods = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH"].into_iter();
        let end = methods.filter_map(|method| line.find(&format!(" {method} /"))).min()?;
        Some(line[..end].trim_matches(['│', ' ']).to_owned())
    };
    listed.lines().filter_map(id).collect()
}

/// Whatever the arguments are, the URL is one of the declared request.
fn check_urls(manifest: &Value, request: &str) {
    let mut table = manifest["settings"].clone();
    let kind = table.as_object_mut().expect("a table").remove("kind");
    assert_eq!(kind, Some(json!("openapi")));
    let settings: settings::OpenapiSettings = serde_json::from_value(table).expect("settings");
    let (method, declared) = request.split_once(' ').expect("a method and a URL");
    assert_eq!(settings.method, method);
    let template = declared.split('/').collect::<Vec<_>>();
    for value in HOSTILE {
        for shaped in [json!(value), json!([value, "y"]), json!({ value: value })] {
            let values = settings.parameters.iter().map(|one| (one.argument.clone(), shaped.clone()));
            let Ok(url) = uri::write_url(&settings, &values.collect::<Map<_, _>>()) else { continue };
            let sent = url.split('?').next().expect("a path").split('/').collect::<Vec<_>>();
            assert_eq!(sent.len(), template.len(), "{url} for {request}");
            for (sent, wanted) in sent.iter().zip(&template) {
                let fits = match (wanted.split_once('{'), wanted.rsplit_once('}')) {
                    (Some((before, _)), Some((_, after))) => {
                        let value = sent.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                        value.is_some_and(|value| !value.is_empty())
                    }
                    _ => sent == wanted || *wanted == "*" && !sent.is_empty(),
                };
                assert!(fits && !["..", "."].contains(sent), "{url} for {request}");
            }
            assert!(url.is_ascii() && !url.contains(['#', '\\', ' ', '@', '\r', '\n']), "{url}");
        }
    }
}
