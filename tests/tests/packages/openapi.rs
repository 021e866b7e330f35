//! `tool new --openapi`: the tools that it makes of a document, what they send to a server, and what is refused.

mod documents;

use harness::*;
use serde_json::{Map, Value, json};
use std::io::{Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// The value of the secret, which occurs nowhere else.
const CANARY: &str = "k3y-51d0c2f8e7a94b6d-nW8rTq20zLxYcP4v";
const ALL: &str = "listItems,addItem,getItem,getPhoto,delete_items_id";

/// A folder with the documents, in which tools are made.
pub(crate) struct Author(TempDir);

impl Author {
    pub(crate) fn new() -> Self {
        let author = Self(tempfile::tempdir().expect("a folder"));
        let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi");
        for name in ["shop.yaml", "tides.json"] {
            std::fs::copy(documents.join(name), author.path(name)).expect("a document");
        }
        author
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    /// The `tool.toml` of a tool.
    pub(crate) fn manifest(&self, name: &str) -> Value {
        toml::from_str(&self.read(&format!("{name}/tool.toml"))).expect("TOML")
    }

    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "`{from}` is not in {text}");
        std::fs::write(self.path(name), text.replace(from, to)).expect("a file");
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.run_in_columns(words, "80")
    }

    pub(crate) fn run_in_columns(&self, words: &[&str], columns: &str) -> Output {
        let mut command = Command::new(program());
        command.args(words).current_dir(self.0.path());
        command.env("XDG_CACHE_HOME", cache_home()).env("COLUMNS", columns);
        run_to_end(command, b"")
    }

    /// Runs a command in words without blanks, which has to end with this code and to say these texts.
    fn says(&self, line: &str, code: i32, texts: &[&str]) -> String {
        let said = said(&self.run(&line.split(' ').collect::<Vec<_>>()), code);
        // The output is wrapped.
        let joined = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in texts {
            assert!(said.contains(text) || joined.contains(text), "`{line}` does not say `{text}`:\n{said}");
        }
        said
    }
}

/// The output of a command, which has to end with this code.
fn said(output: &Output, code: i32) -> String {
    let said = [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

#[test]
fn operations_are_listed_and_become_tools_that_pass_their_example() {
    let author = Author::new();
    let says = ["delete_items_id", "GET /items/{id}/photo", "Lists items", "`--operations ID,ID`"];
    let listed = author.says("tool new shop --openapi shop.yaml", 0, &says);
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");
    let made = author.says(
        &format!("tool new shop --openapi shop.yaml --operations {ALL}"),
        0,
        &[
            "made shop_get_item: GET https://api.shop.example/v1/items/{id}",
            "made shop_delete_items_id: DELETE https://api.shop.example/v1/items/{id}",
            "name = \"shop_key\"",
            "tools = [\"shop_*\"]",
            "\"POST https://api.shop.example/v1/items\",",
            "place = \"header:authorization\"\nscheme = \"Bearer\"",
            "a2g-executor tool allow shop_add_item https://api.shop.example --write",
        ],
    );
    assert!(!made.contains("note:"), "{made}");
    let item = author.manifest("shop_get_item");
    assert_eq!(item["version"], "2.1.0");
    assert_eq!(item["description"], "Gets an item. The item with its related items.");
    assert_eq!(item["idempotent"], true);
    assert_eq!(item["capabilities"]["filesystem"], "none");
    assert_eq!(item["capabilities"]["requests"], json!(["GET https://api.shop.example/v1/items/{id}"]));
    assert_eq!(item["capabilities"]["secrets"], json!(["shop_key"]));
    let id = json!({ "type": "string", "minLength": 1, "description": "The name of the item" });
    let arguments = json!({
        "type": "object", "required": ["id"], "additionalProperties": false, "properties": { "id": id },
    });
    assert_eq!(item["arguments"], arguments);
    let body = &item["result"]["properties"]["body"];
    assert_eq!(body["properties"]["related"]["items"]["$ref"], "#/$defs/Item");
    let add = author.manifest("shop_add_item");
    assert!(add.get("idempotent").is_none() && add["settings"]["retry"] == false, "{add}");
    assert_eq!(add["arguments"]["properties"]["body"]["additionalProperties"], false);
    let list = author.manifest("shop_list_items");
    assert_eq!(list["arguments"]["properties"]["max_pages"]["default"], 1);
    assert_eq!(list["settings"]["pagination"], json!({}));

    let tested = author.says("tool test shop_get_item", 0, &["of the document", "1 examples passed"]);
    assert!(tested.lines().all(|line| line.chars().count() <= 80), "{tested}");
    for (from, to, says) in [
        (
            "v1/items/chair",
            "v1/items/bench",
            "it sent GET https://api.shop.example/v1/items/chair, but the next recorded",
        ),
        ("\"chair\"\nprice = 12.5", "\"chair\"\nprice = \"dear\"", "got the error `failed`"),
        ("status = 200\n", "status = 404\n", "got the error `http_404`"),
    ] {
        let before = author.read("shop_get_item/tool.toml");
        let at = before.find("[[example]]").expect("an example");
        let (head, example) = before.split_at(at);
        let changed = example.replacen(from, to, 1);
        assert_ne!(changed, example, "`{from}` is not in {example}");
        std::fs::write(author.path("shop_get_item/tool.toml"), format!("{head}{changed}")).expect("a file");
        author.says("tool test shop_get_item", 1, &["FAILED", says]);
        std::fs::write(author.path("shop_get_item/tool.toml"), before).expect("a file");
    }
}

#[test]
fn a_document_of_3_1_has_its_styles_secrets_and_pages() {
    let author = Author::new();
    let line = "tool new tides --openapi tides.json --operations tides.at-station";
    author.says(line, 1, &["at which host its server `/api` is", "`--server https://HOST/…`"]);
    author.says(
        &format!("{line} --server https://tides.example/api"),
        0,
        &[
            "made tides_tides_at_station: GET https://tides.example/api/stations/{station}.json",
            "name = \"tides_app\"",
            "place = \"query:app_id\"\n",
            "name = \"tides_user\"",
            "`user:password`",
            "scheme = \"Basic\"",
        ],
    );
    let tool = author.manifest("tides_tides_at_station");
    assert_eq!(tool["version"], "1.0.0", "that of the document is no version of software");
    assert_eq!(tool["capabilities"]["secrets"], json!(["tides_app", "tides_user"]));
    let styles = tool["settings"]["parameter"].as_array().expect("parameters").iter();
    let styles =
        styles.map(|one| [&one["argument"], &one["name"], &one["in"], &one["style"]].map(Value::to_string));
    let expected = [
        ["station", "station", "path", "simple"],
        ["X-Unit", "X-Unit", "header", "simple"],
        ["when", "when", "query", "json"],
        ["cursor", "cursor", "query", "form"],
        ["station_query", "station", "query", "form"],
    ];
    let expected = expected.map(|texts| texts.map(|text| format!("\"{text}\"")));
    assert_eq!(styles.collect::<Vec<_>>(), expected);
    assert_eq!(tool["settings"]["pagination"], json!({ "member": "next_cursor", "argument": "cursor" }));
    author.says("tool test tides_tides_at_station", 0, &["1 examples passed"]);
    let named = format!("{line} --server https://tides.example/api --force");
    author.says(&format!("{named} --secret one --secret two"), 0, &["name = \"one\"", "name = \"two\""]);
    author.says(&format!("{named} --secret one --secret two --secret three"), 1, &["needs 2 secrets"]);
}

#[test]
fn what_cannot_be_a_tool_is_refused_by_name() {
    let author = Author::new();
    let new = "tool new shop --openapi";
    author.says(
        &format!("{new} shop.yaml --operations getItm,nothing"),
        2,
        &["no operation `getItm` (did you mean `getItem`?) and `nothing`"],
    );
    author.says(
        &format!("{new} shop.yaml --operations getItem,putPhoto"),
        1,
        &["made shop_get_item", "no tool was made of `putPhoto`: its body is multipart/form-data"],
    );
    author.says(
        &format!("{new} shop.yaml --operations getItem"),
        1,
        &["`shop_get_item` exists", "`--force`"],
    );
    author.says(&format!("{new} shop.yaml --operations getItem --force"), 0, &["made shop_get_item"]);
    std::fs::create_dir(author.path("shop_add_item")).expect("a folder");
    author.says(
        &format!("{new} shop.yaml --operations addItem --force"),
        1,
        &["was not made by this command"],
    );
    for (line, says) in [
        ("tool new shop --openapi shop.yaml --language c", "cannot be used with"),
        ("tool new shop --operations a", "--openapi"),
        ("tool new shop", "--language"),
        ("tool new 1shop --openapi shop.yaml", "tool name"),
        ("tool new shop --openapi shop.yaml --secret A", "secret"),
    ] {
        author.says(line, 2, &[says]);
    }

    let start = "openapi: 3.0.0\nservers: [{url: https://a.example}]\n";
    let operation = |more: &str| format!("{start}paths:\n  /x:\n    get:\n      operationId: one\n{more}");
    let mut laughs = format!("{start}a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        laughs += &format!("a{level}: &a{level} [{items}]\n");
    }
    let remote = "      parameters: [{$ref: 'other.yaml#/a'}]\n";
    let remote_schema = "      responses: {200: {description: d, content: {application/json: {schema: {$ref: \
                         'https://evil.example/a'}}}}}\n";
    for (text, says) in [
        (operation(remote), "leads outside of the document"),
        (operation(remote_schema), "`$ref: https://evil.example/a` leads outside"),
        (operation("      parameters: [{$ref: '#/a'}]\n"), "`$ref: #/a` leads to nothing"),
        (operation("      parameters: [{$ref: '#/b'}]\nb: {$ref: '#/b'}\n"), "perhaps in a circle"),
        (operation("      parameters: [{name: c, in: cookie, required: true}]\n"), "the cookie `c`"),
        (format!("{start}paths:\n  /x: {{$ref: '#/paths/~1x'}}\n"), "perhaps in a circle"),
        (operation("").replace("/x:", "/a/../b:"), "servers read in more than one way"),
        (laughs, "not YAML, or exceeds a limit"),
        (format!("{start}a: {}", "[".repeat(100_000)), "not YAML, or exceeds a limit"),
        (format!("{}{}", operation(""), "# \n".repeat(2 << 20)), "`bad.yaml` has more than 5 MiB"),
        ("swagger: '2.0'\n".to_owned(), "Swagger 2.0"),
        ("{\"openapi\": ".to_owned(), "it is not JSON"),
    ] {
        std::fs::write(author.path("bad.yaml"), text).expect("a file");
        author.says("tool new bad --openapi bad.yaml --operations one", 1, &[says]);
    }
    assert!(!author.path("bad_one").exists(), "a refused operation makes no folder");
}

/// The largest document that is read, with very many operations whose names are one.
#[test]
fn a_document_of_five_megabytes_is_read_in_time() {
    let author = Author::new();
    let servers = "\"servers\": [{\"url\": \"https://a.example\"}]";
    let mut text = format!("{{\"openapi\": \"3.0.0\", {servers}, \"paths\": {{\n");
    // Letters that are in no name.
    let letter = |number: u32| char::from_u32(0x4e00 + number).expect("a letter");
    let mut number = 0;
    while text.len() < (5 << 20) - 100 {
        text += &format!("\"/{}{}\": {{\"get\": {{}}}},\n", letter(number / 500), letter(number % 500));
        number += 1;
    }
    text += "\"/x\": {\"get\": {\"operationId\": \"one\"}}}}";
    std::fs::write(author.path("large.json"), text).expect("a file");
    author.says("tool new large --openapi large.json --operations one", 0, &["made large_one"]);
}

/// A server over TLS for `web.test`, which answers by the path.
struct Api {
    listener: Listener,
    requests: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
}

impl Api {
    fn start() -> Self {
        let (config, certificate) = tls_config(&["web.test"]);
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&requests);
        let listener = Listener::start(move |stream| {
            let server = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut tls = rustls::StreamOwned::new(server, stream);
            let request = read_request(&mut tls);
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            if !path.is_empty() {
                seen.lock().unwrap().push(request);
                let _gone = tls.write_all(answer(&path).as_bytes());
                tls.conn.send_close_notify();
                let _gone = tls.flush();
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), certificate).expect("a file");
        let origin = format!("https://web.test:{}", listener.address.port());
        let tools = [
            "shop_list_items",
            "shop_add_item",
            "shop_get_item",
            "shop_get_photo",
            "shop_delete_items_id",
            "fan_out",
            "run_python",
        ];
        let allowed = tools.map(|tool| (tool.to_owned(), json!({ "allowed": true })));
        let capabilities = json!({
            "resources": { "max_memory_mb": 256, "max_cpu_percent": 100 },
            "tools": Map::from_iter(allowed), "network": { "allowed_domains": [origin] },
        });
        let policy = json!({ "agent_did": "*", "version": "1", "capabilities": capabilities });
        std::fs::write(folder.path().join("policy.json"), policy.to_string()).expect("a file");
        let secret = folder.path().join("secret");
        std::fs::write(&secret, CANARY).expect("a file");
        std::fs::set_permissions(secret, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        Self { listener, requests, folder }
    }

    fn origin(&self) -> String {
        format!("https://web.test:{}", self.listener.address.port())
    }

    /// An executor that may reach this server, with the secret of the shop.
    fn home(&self, catalogue: &Catalogue) -> Home {
        let origin = self.origin();
        let requests = ["GET", "POST", "DELETE"].map(|method| format!("{method} {origin}/v1/**"));
        let secret = json!({
            "name": "shop_key", "file": self.folder.path().join("secret"), "tools": ["shop_*"],
            "requests": requests, "place": "header:authorization", "scheme": "Bearer",
        });
        let options = Options::new()
            .catalogue(catalogue)
            .set("executor.isolation", "process")
            .set("ceilings.network_allowed", true)
            .set("network.allowed_domains", json!([origin]))
            .set("network.allowed_addresses", json!([self.listener.address.to_string()]))
            .set("network.hosts", json!({ "web.test": ["127.0.0.1"] }))
            .set("network.ca_file", json!(self.folder.path().join("ca.pem")))
            .set("secret", json!([secret]));
        Home::new(options)
    }

    /// The requests that have arrived since the last look.
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

/// A request: its head, and its body if it says how long that is.
fn read_request(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.extend(byte),
            Ok(_) | Err(_) => break,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let field = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; field.and_then(|length| length.parse().ok()).unwrap_or(0)];
    let _cut = stream.read_exact(&mut body);
    head + &String::from_utf8_lossy(&body)
}

fn answer(path: &str) -> String {
    let (status, fields, body) = match path {
        "/v1/items/chair" => ("200 OK", "content-type: application/json\r\n", r#"{"id":"chair","price":1}"#),
        "/v1/items/broken" => ("200 OK", "content-type: application/json\r\n", r#"{"id":"chair"}"#),
        "/v1/items/moved" => ("302 Found", "location: /v1/items/chair\r\n", ""),
        "/v1/items/gone" => ("404 Not Found", "content-type: application/json\r\n", r#"{"why":"gone"}"#),
        "/v1/items?page=2" => ("200 OK", "content-type: application/json\r\n", r#"[{"id":"b","price":2}]"#),
        "/v1/items?tag=x,y" => (
            "200 OK",
            "content-type: application/json\r\nlink: </v1/items?page=2>; rel=\"next\"\r\n",
            r#"[{"id":"a","price":1}]"#,
        ),
        "/v1/items" => ("201 Created", "content-type: application/json\r\n", r#"{"id":"new","price":0}"#),
        "/v1/items/chair/photo" => ("200 OK", "content-type: image/png\r\n", "picture"),
        _ => ("500 Oops", "", "unexpected"),
    };
    format!("HTTP/1.1 {status}\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
}

/// Makes these tools of the shop for this server, and adds them. Returns what the last addition says.
fn add_shop(author: &Author, api: &Api, home: &Home, names: &[&str], code: i32) -> String {
    let server = format!("{}/v1", api.origin());
    let new = ["tool", "new", "shop", "--openapi", "shop.yaml", "--operations", ALL, "--force", "--server"];
    said(&author.run(&[&new[..], &[server.as_str()]].concat()), 0);
    let mut last = String::new();
    for name in names {
        last = said(&home.run(&["tool", "add", author.path(name).to_str().expect("UTF-8")]), code);
    }
    last
}

/// The report of a run.
fn run_tool(api: &Api, home: &Home, tool: &str, arguments: &Value) -> Value {
    let policy = api.folder.path().join("policy.json");
    let policy = policy.to_str().expect("UTF-8");
    let output =
        home.run(&["run", tool, "--json", "--arguments", &arguments.to_string(), "--policy", policy]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn a_tool_sends_its_request_with_its_key_and_reads_the_answer() {
    let api = Api::start();
    let author = Author::new();
    let catalogue = Catalogue::empty();
    let home = api.home(&catalogue);
    let names = ["shop_list_items", "shop_add_item", "shop_get_item", "shop_get_photo"];
    add_shop(&author, &api, &home, &names, 0);

    let report = run_tool(&api, &home, "shop_get_item", &json!({ "id": "chair" }));
    assert_eq!(report["result"], json!({ "status": 200, "body": { "id": "chair", "price": 1 } }), "{report}");
    assert_eq!(report["usage"]["secrets"][0]["uses"], 1, "{report}");
    assert!(!report.to_string().contains(CANARY), "{report}");
    let request = api.take_requests().remove(0);
    assert!(request.starts_with("GET /v1/items/chair HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("\r\nauthorization: Bearer {CANARY}\r\n")), "{request}");

    let report = run_tool(&api, &home, "shop_list_items", &json!({ "tag": ["x", "y"], "max_pages": 3 }));
    let items = json!([{ "id": "a", "price": 1 }, { "id": "b", "price": 2 }]);
    let expected = json!({ "status": 200, "body": items, "pages": 2, "has_more": false });
    assert_eq!(report["result"], expected, "{report}");
    assert_eq!(api.take_requests().len(), 2);

    let report = run_tool(&api, &home, "shop_add_item", &json!({ "body": { "name": "new", "note": null } }));
    assert_eq!(report["result"]["status"], 201, "{report}");
    let request = api.take_requests().remove(0);
    assert!(request.ends_with("\r\n\r\n{\"name\":\"new\",\"note\":null}"), "{request}");

    let report = run_tool(&api, &home, "shop_get_photo", &json!({ "id": "chair" }));
    let artifact = json!({ "name": "photo", "media_type": "image/png", "bytes": 7 });
    assert_eq!(report["result"], json!({ "status": 200, "artifact": artifact }), "{report}");
    assert_eq!(report["artifacts"].as_array().map(Vec::len), Some(1), "{report}");
    api.take_requests();

    for (id, code, sent) in [
        ("gone", json!("http_404"), 1),
        // No redirect is followed.
        ("moved", json!("http_302"), 1),
        // The answer breaks the document's schema.
        ("broken", Value::Null, 1),
        ("../../admin", json!("invalid_arguments"), 0),
        ("..", json!("invalid_arguments"), 0),
        ("chair%2f..", json!("invalid_arguments"), 0),
    ] {
        let report = run_tool(&api, &home, "shop_get_item", &json!({ "id": id }));
        assert_eq!(report["status"], "FAILURE", "{report}");
        assert_eq!(report["tool_error"]["code"], code, "{report}");
        assert_eq!(api.take_requests().len(), sent, "{id}");
    }
    let report = run_tool(&api, &home, "shop_get_item", &json!({ "id": "gone" }));
    assert_eq!(report["tool_error"]["detail"]["body"], json!({ "why": "gone" }), "{report}");
    let refused =
        home.run(&["run", "shop_get_item", "--json", "--arguments", r#"{"id":"chair","host":"x"}"#]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
}

/// A program calls such a tool by its arguments alone: the settings and the key are added on the way.
#[test]
fn a_program_calls_a_tool_of_an_operation() {
    let api = Api::start();
    let author = Author::new();
    let mut catalogue = Catalogue::empty().add(Tool::typed_bytes("fan_out", guest("fan_out")).calls(&["*"]));
    let call = json!({ "tool": "shop_get_item", "arguments": { "id": "chair" } });
    let mut programs = vec![("fan_out", json!({ "calls": [call] }), "/result/outcomes/0/result")];
    if has_interpreter("run_python") {
        catalogue = catalogue.copy("run_python");
        programs.push(("run_python", json!({ "code": "tools.shop_get_item(id='chair')" }), "/result/result"));
    }
    let home = api.home(&catalogue);
    add_shop(&author, &api, &home, &["shop_get_item"], 0);
    for (program, arguments, place) in programs {
        let report = run_tool(&api, &home, program, &arguments);
        let expected = json!({ "status": 200, "body": { "id": "chair", "price": 1 } });
        assert_eq!(report.pointer(place), Some(&expected), "{report}");
        assert!(!report.to_string().contains(CANARY), "{report}");
        let request = api.take_requests().remove(0);
        assert!(request.starts_with("GET /v1/items/chair HTTP/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("\r\nauthorization: Bearer {CANARY}\r\n")), "{request}");
    }
}

/// Whoever changes where a tool sends its request changes nothing: it declares one request.
#[test]
fn a_request_to_another_path_method_or_host_is_impossible() {
    let api = Api::start();
    let other = Api::start();
    let author = Author::new();
    let declared = format!("{}/v1/items/{{id}}", api.origin());
    let settings = format!("url = \"{declared}\"");
    let elsewhere = format!("url = \"{}/v1/items/{{id}}\"", other.origin());
    for (from, to) in [
        (settings.as_str(), format!("url = \"{}/v1/items/{{id}}/photo\"", api.origin())),
        (settings.as_str(), format!("url = \"{}/v1/other/{{id}}\"", api.origin())),
        (settings.as_str(), format!("url = \"{}/v1/items/../items/{{id}}\"", api.origin())),
        (settings.as_str(), elsewhere),
        (settings.as_str(), settings.replace("https:", "http:")),
        ("method = \"GET\"", "method = \"DELETE\"".to_owned()),
    ] {
        let catalogue = Catalogue::empty();
        let home = api.home(&catalogue);
        add_shop(&author, &api, &home, &["shop_get_item"], 0);
        let manifest = catalogue.folder().join("shop_get_item/tool.toml");
        let before = std::fs::read_to_string(&manifest).expect("a manifest");
        assert!(before.contains(from), "`{from}` is not in {before}");
        std::fs::write(&manifest, before.replace(from, &to)).expect("a file");
        // The person who changed it also accepts the change.
        let shown = said(&home.run(&["tool", "approve", "shop_get_item"]), 3);
        let digest = shown.split("--digest ").nth(1).and_then(|rest| rest.split_whitespace().next());
        said(&home.run(&["tool", "approve", "shop_get_item", "--digest", digest.expect("a digest")]), 0);
        let report = run_tool(&api, &home, "shop_get_item", &json!({ "id": "chair" }));
        assert_eq!(report["tool_error"]["code"], "network_denied", "{to}: {report}");
        assert_eq!((api.take_requests().len(), other.take_requests().len()), (0, 0), "{to}");
    }
}

/// A document that changed makes another definition, which waits like any other.
#[test]
fn a_changed_document_waits_for_approval() {
    let api = Api::start();
    let author = Author::new();
    let catalogue = Catalogue::empty();
    let home = api.home(&catalogue);
    let item = ["shop_get_item"];
    add_shop(&author, &api, &home, &item, 0);
    add_shop(&author, &api, &home, &item, 0);
    // What is sent changes, and no text that a model reads.
    author.edit("shop.yaml", "      in: path\n", "      in: path\n      style: label\n");
    let waiting = add_shop(&author, &api, &home, &item, 3);
    assert!(waiting.contains("settings"), "{waiting}");
    let shown = said(&home.run(&["tool", "approve", "shop_get_item"]), 3);
    for line in ["-       \"style\": \"simple\"", "+       \"style\": \"label\""] {
        assert!(shown.contains(line), "{shown}");
    }
    let report = run_tool(&api, &home, "shop_get_item", &json!({ "id": "chair" }));
    assert_eq!(report["result"]["status"], 200, "the accepted one still runs: {report}");
    author.edit("shop.yaml", "price: { type: number }", "price: { type: string }");
    let waiting = add_shop(&author, &api, &home, &item, 3);
    assert!(waiting.contains("result"), "{waiting}");
}
