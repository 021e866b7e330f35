//! Messages of a client and of this server.

use super::decode::{self, ClientMessage, ClientNotification, ClientRequest, McpRequest, SubscriptionFilter};
use super::elicit::{self, Decider, ElicitAction, ElicitAnswer, InputResponses, PersonDecision};
use super::encode::{self, ResultEncoder, StagedNotice};
use super::fault::{CallFault, McpError, call_fault};
use super::headers::{self, HeaderValues};
use super::tools::Definitions;
use super::*;
use crate::jsonrpc::Id;
use crate::listing::{DescribeRequest, Listing};
use crate::staged::StagedState;
use crate::stubs::Language;
use crate::tests::{AGENT, INTENT, committed, staged_receipt, waiting};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::outcome::{LogLevel, ShownChange};
use a2g_types::tool::{Contract, DeclaredCapabilities, DeclaredFilesystem, Descriptor, Digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const STATELESS: ResultEncoder = ResultEncoder { revision: Revision::Stateless, server_version: "1" };
const SESSION: ResultEncoder = ResultEncoder { revision: Revision::Session, server_version: "1" };

fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// `_meta` that every request of 2026-07-28 has.
fn meta() -> Value {
    json!({ names::PROTOCOL_VERSION: "2026-07-28", names::CLIENT_CAPABILITIES: {} })
}

fn parse(text: &str) -> ClientRequest<'_> {
    match decode::message(text) {
        Ok(ClientMessage::Request(request)) => request,
        other => panic!("{text} is {other:?}"),
    }
}

/// The code of the error response to a message, with its id.
fn rejection(text: &str) -> Option<(i64, Value)> {
    let error = decode::message(text).err()?;
    let response: Value = serde_json::from_str(&error.error.response(error.id.as_ref())).unwrap();
    Some((error.error.code(), response.get("id").cloned().unwrap_or_default()))
}

#[test]
fn a_frame_that_is_no_single_message_is_rejected() {
    let cases = [
        ("[]", -32600, json!(null)),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, json!(null)),
        ("7", -32600, json!(null)),
        ("{", -32700, json!(null)),
        (r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, -32600, json!(3)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":"x","method":7}"#, -32600, json!("x")),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":[]}"#, -32602, json!("x")),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"_meta":7}}"#, -32602, json!("x")),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"_meta":{"progressToken":1.5}}}"#,
            -32602,
            json!("x"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"_meta":{"progressToken":null}}}"#,
            -32602,
            json!("x"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"_meta":{"a2g/intent_id":"1"}}}"#,
            -32602,
            json!("x"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"_meta":{"io.modelcontextprotocol/logLevel":"loud"}}}"#,
            -32602,
            json!("x"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"_meta":{"io.modelcontextprotocol/clientInfo":{}}}}"#,
            -32602,
            json!("x"),
        ),
    ];
    for (text, code, id) in cases {
        assert_eq!(rejection(text), Some((code, id)), "{text}");
    }
}

#[test]
fn notifications_and_answers_are_told_apart() {
    let cancelled =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "a" } });
    match decode::message(&cancelled.to_string()) {
        Ok(ClientMessage::Notification(ClientNotification::Cancelled(id))) => {
            assert_eq!(id, Id::from_text("a"));
        }
        other => panic!("{other:?}"),
    }
    for (method, expected) in [
        ("notifications/initialized", ClientNotification::Initialized),
        ("notifications/roots/list_changed", ClientNotification::Other),
    ] {
        match decode::message(&json!({ "jsonrpc": "2.0", "method": method }).to_string()) {
            Ok(ClientMessage::Notification(found)) => assert_eq!(found, expected),
            other => panic!("{other:?}"),
        }
    }
    for answer in
        [r#"{"jsonrpc":"2.0","id":1,"result":{"action":"cancel"}}"#, r#"{"jsonrpc":"2.0","id":1,"error":{}}"#]
    {
        assert!(matches!(decode::message(answer), Ok(ClientMessage::Answer { .. })), "{answer}");
    }
}

#[test]
fn each_revision_has_its_own_methods() {
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "x", "version": "1" } });
    let cases = [
        ("server/discover", json!({}), true, false),
        ("initialize", hello, false, true),
        ("ping", json!({}), false, true),
        ("logging/setLevel", json!({ "level": "info" }), false, true),
        ("subscriptions/listen", json!({ "notifications": {} }), true, false),
        ("tools/list", json!({ "cursor": "write_file" }), true, true),
        ("tools/call", json!({ "name": "x" }), true, true),
        ("prompts/list", json!({}), false, false),
        ("resources/subscribe", json!({ "uri": "x" }), false, false),
    ];
    for (method, params, stateless, session) in cases {
        let text = request(method, &params);
        for (revision, known) in [(Revision::Stateless, stateless), (Revision::Session, session)] {
            let decoded = parse(&text).decode(revision);
            assert_eq!(decoded.is_ok(), known, "{method} {revision:?}: {decoded:?}");
            assert!(known || matches!(decoded, Err(Fault::MethodNotFound(_))), "{method} {decoded:?}");
        }
    }
}

#[test]
fn wrong_parameters_are_rejected_with_their_place() {
    let cases = [
        ("tools/call", json!({}), "/name"),
        ("tools/call", json!({ "name": 7 }), "/name"),
        ("tools/call", json!({ "name": "x", "arguments": [] }), "/arguments"),
        ("tools/list", json!({ "cursor": 7 }), "/cursor"),
        ("tools/list", json!({ "cursor": "not a name" }), "/cursor"),
        ("subscriptions/listen", json!({}), "/notifications"),
        (
            "subscriptions/listen",
            json!({ "notifications": { "toolsListChanged": 1 } }),
            "/notifications/toolsListChanged",
        ),
        (
            "subscriptions/listen",
            json!({ "notifications": { "resourceSubscriptions": [1] } }),
            "/notifications/resourceSubscriptions/0",
        ),
        (
            "subscriptions/listen",
            json!({ "notifications": { "resourceSubscriptions": vec!["x"; decode::MAX_SUBSCRIPTION_NAMES + 1] } }),
            "/notifications/resourceSubscriptions",
        ),
    ];
    for (method, params, expected) in cases {
        let text = request(method, &params);
        match parse(&text).decode(Revision::Stateless) {
            Err(Fault::InvalidParams { pointer, .. }) => assert_eq!(pointer, expected),
            other => panic!("{method} {params}: {other:?}"),
        }
    }
    let text = request(
        "subscriptions/listen",
        &json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } }),
    );
    match parse(&text).decode(Revision::Stateless) {
        Ok(McpRequest::Listen(filter)) => {
            assert_eq!(
                filter,
                SubscriptionFilter { tools_list_changed: true, ..SubscriptionFilter::default() }
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stateless_request_names_its_revision_and_capabilities() {
    let cases = [
        (json!({}), Some(-32602)),
        (json!({ names::PROTOCOL_VERSION: "2026-07-28" }), Some(-32602)),
        (json!({ names::PROTOCOL_VERSION: "1900-01-01", names::CLIENT_CAPABILITIES: {} }), Some(-32022)),
        (meta(), None),
    ];
    let code = |method: &str, params: &Value| {
        let checked = parse(&request(method, params)).stateless_capabilities();
        checked.err().map(|error| (error.code(), error.http_status(Revision::Stateless)))
    };
    for (meta, expected) in cases {
        let expected = expected.map(|code| (code, 400));
        assert_eq!(code("tools/list", &json!({ "_meta": meta })), expected, "{meta}");
    }
    // The extension is missing, whatever the rest of the request is.
    let mut with_tasks = meta();
    with_tasks[names::CLIENT_CAPABILITIES]["extensions"] = json!({ names::TASKS: {} });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for params in [json!({}), json!({ "taskId": 7 }), json!({ "taskId": "x" })] {
            let mut params = params;
            params["_meta"] = meta();
            assert_eq!(code(method, &params), Some((-32021, 400)), "{method} {params}");
            params["_meta"] = with_tasks.clone();
            assert_eq!(code(method, &params), None, "{method} {params}");
        }
    }
    let elicitation = |declared: Value| {
        let meta = json!({ names::CLIENT_CAPABILITIES: { "elicitation": declared } });
        let capabilities = parse(&request("ping", &json!({ "_meta": meta }))).meta.capabilities.unwrap();
        (capabilities.elicits_forms, capabilities.elicits_urls)
    };
    assert_eq!(elicitation(json!({})), (true, false));
    assert_eq!(elicitation(json!({ "url": {} })), (false, true));
    assert_eq!(elicitation(json!({ "form": {}, "url": {} })), (true, true));
}

#[test]
fn a_session_speaks_a_revision_that_both_sides_know() {
    for (requested, spoken) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("", "2025-11-25"),
    ] {
        assert_eq!(decode::negotiate_session(requested), spoken, "{requested}");
    }
}

struct Headers(BTreeMap<String, Vec<String>>);

impl Headers {
    fn new(pairs: &[(&str, &str)]) -> Self {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in pairs {
            all.entry((*name).to_owned()).or_default().push((*value).to_owned());
        }
        Self(all)
    }
}

impl HeaderValues for Headers {
    fn single(&self, name: &str) -> Result<Option<&str>, McpError> {
        match self.0.get(name).map(Vec::as_slice) {
            None | Some([]) => Ok(None),
            Some([value]) => Ok(Some(value)),
            Some(_) => Err(McpError::HeaderMismatch(name.to_owned())),
        }
    }
}

#[test]
fn headers_have_to_repeat_the_message() {
    let text = request("tools/call", &json!({ "name": "größe", "_meta": meta() }));
    let request = parse(&text);
    let version = (headers::PROTOCOL_VERSION, "2026-07-28");
    let method = (headers::METHOD, "tools/call");
    let encoded = (headers::NAME, "=?base64?Z3LDtsOfZQ==?=");
    let cases: [(&[(&str, &str)], bool); 8] = [
        (&[version, method, encoded], true),
        (&[method, encoded], false),
        (&[version, encoded], false),
        (&[version, method], false),
        (&[("mcp-protocol-version", "2025-11-25"), method, encoded], false),
        (&[version, (headers::METHOD, "Tools/Call"), encoded], false),
        (&[version, method, (headers::NAME, "=?base64?%%%?=")], false),
        (&[version, method, encoded, encoded], false),
    ];
    for (pairs, is_right) in cases {
        let checked = headers::check(&Headers::new(pairs), &request);
        assert_eq!(checked.is_ok(), is_right, "{pairs:?}");
        if let Err(error) = checked {
            assert_eq!((error.code(), error.http_status(Revision::Stateless)), (-32020, 400));
        }
    }
}

#[test]
fn headers_have_to_repeat_annotated_arguments() {
    let schema = json!({
        "type": "object",
        "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "deep": { "type": "object", "properties": { "count": { "type": "integer", "x-mcp-header": "Count" } } },
            "list": { "type": "array", "items": { "type": "string", "x-mcp-header": "Never" } },
        },
    });
    assert_eq!(headers::check_annotations(&schema), Ok(()));
    let check = |arguments: Value, pairs: &[(&str, &str)]| {
        headers::check_arguments(&Headers::new(pairs), &schema, arguments.as_object().unwrap()).is_ok()
    };
    let both = json!({ "region": "eu", "deep": { "count": 42 } });
    assert!(check(both.clone(), &[("mcp-param-region", "eu"), ("mcp-param-count", "42.0")]));
    assert!(!check(both.clone(), &[("mcp-param-region", "us"), ("mcp-param-count", "42")]));
    assert!(!check(both.clone(), &[("mcp-param-region", "eu")]));
    assert!(!check(
        both,
        &[("mcp-param-region", "eu"), ("mcp-param-count", "42"), ("mcp-param-count", "42")]
    ));
    assert!(check(json!({}), &[]));
    assert!(check(json!({ "region": null }), &[]));
    assert!(!check(json!({}), &[("mcp-param-region", "eu")]));
    for wrong in [
        json!({ "properties": { "a": { "type": "number", "x-mcp-header": "A" } } }),
        json!({ "properties": { "a": { "type": "string", "x-mcp-header": "" } } }),
        json!({ "properties": { "a": { "type": "string", "x-mcp-header": "a b" } } }),
        json!({ "properties": { "a": { "type": "string", "x-mcp-header": "A" }, "b": { "type": "string", "x-mcp-header": "a" } } }),
        json!({ "properties": { "a": { "type": "integer", "maximum": 1_u64 << 60, "x-mcp-header": "A" } } }),
    ] {
        assert!(headers::check_annotations(&wrong).is_err(), "{wrong}");
    }
}

fn tool(name: &str, filesystem: DeclaredFilesystem, network: bool, schema: Value) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: "x".to_owned(),
        contract: Contract::Command,
        digest: Digest::compute(b"x"),
        arguments_schema: schema,
        result_schema: None,
        settings: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities { filesystem, network, ..DeclaredCapabilities::default() },
        signature: None,
    }
}

fn list(encoder: ResultEncoder, tools: &[Descriptor], after: Option<&str>) -> Value {
    let after = after.map(|name| ToolName::parse(name).unwrap());
    let definitions = Definitions::new(tools, encoder.revision);
    let text = encoder.tools(&Id::from_text("1"), definitions.iter(), after.as_ref(), Listing::Tools);
    serde_json::from_str::<Value>(&text).unwrap()["result"].take()
}

#[test]
fn a_tool_is_described_by_what_it_declares() {
    let schema = json!({ "type": "object", "properties": {} });
    for (filesystem, network, hints) in [
        (DeclaredFilesystem::None, false, (true, false, false)),
        (DeclaredFilesystem::Read, false, (true, false, false)),
        (DeclaredFilesystem::ReadWrite, false, (false, true, false)),
        (DeclaredFilesystem::None, true, (false, true, true)),
    ] {
        let listed = list(STATELESS, &[tool("t", filesystem, network, schema.clone())], None);
        let annotations = &listed["tools"][0]["annotations"];
        let found = ["readOnlyHint", "destructiveHint", "openWorldHint"]
            .map(|hint| annotations[hint].as_bool().unwrap());
        assert_eq!((found[0], found[1], found[2]), hints, "{filesystem:?} {network}");
    }
    for (written, expected) in [
        (schema.clone(), schema.clone()),
        (json!({ "required": ["a"] }), json!({ "type": "object", "required": ["a"] })),
        (json!(true), json!({ "type": "object", "allOf": [true] })),
        (
            json!({ "type": ["object", "null"] }),
            json!({ "type": "object", "allOf": [{ "type": ["object", "null"] }] }),
        ),
    ] {
        let listed = list(STATELESS, &[tool("t", DeclaredFilesystem::None, false, written)], None);
        assert_eq!(listed["tools"][0]["inputSchema"], expected);
    }
}

#[test]
fn the_digest_of_a_definition_changes_with_the_tool() {
    let digest = |tool: Descriptor| {
        list(STATELESS, &[tool], None)["tools"][0]["_meta"][names::DEFINITION_DIGEST]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let plain = || tool("t", DeclaredFilesystem::None, false, json!({}));
    let mut digests = vec![
        digest(plain()),
        digest(Descriptor { description: "y".to_owned(), ..plain() }),
        digest(Descriptor { version: "1.0.1".to_owned(), ..plain() }),
        digest(Descriptor { digest: Digest::compute(b"y"), ..plain() }),
        digest(tool("t", DeclaredFilesystem::Read, true, json!({}))),
        digest(tool("t", DeclaredFilesystem::None, false, json!({ "a": 1 }))),
    ];
    assert_eq!(digest(plain()), digests[0]);
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 6);
}

#[test]
fn pages_of_tools_have_every_tool_once_while_the_catalogue_changes() {
    let all = (0..120).map(|n| tool(&format!("t{n:03}"), DeclaredFilesystem::None, false, json!({})));
    let mut all = all.collect::<Vec<_>>();
    let mut seen = Vec::new();
    let mut cursor = None::<String>;
    loop {
        let page = list(STATELESS, &all, cursor.as_deref());
        let names =
            page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
        seen.extend(names);
        // The tool that the cursor names may be removed before the next page.
        all.retain(|tool| Some(tool.name.as_str()) != page["nextCursor"].as_str());
        cursor = page["nextCursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..120).map(|n| format!("t{n:03}")).collect::<Vec<_>>());
    assert!(list(SESSION, &all, None).get("ttlMs").is_none());
    assert_eq!(list(STATELESS, &all, None)["cacheScope"], "private");
}

#[test]
fn faults_of_calls_are_results_where_a_model_can_act() {
    let refused = Fault::Refused {
        intent: None,
        risk_score: Some(0.5),
        blocked_by: BlockedBy::VerdictDenied,
        message: "no".to_owned(),
    };
    let cases = [
        (Fault::invalid("/arguments/path", "x"), None),
        (refused, None),
        (Fault::Busy { message: "full".to_owned(), retry_after_ms: 5 }, None),
        (Fault::invalid("/tool", "x"), Some(-32602)),
        (Fault::invalid("/name", "x"), Some(-32602)),
        (Fault::InvalidRequest("x".to_owned()), Some(-32600)),
        (Fault::Internal("secret".to_owned()), Some(-32603)),
    ];
    for (fault, code) in cases {
        match call_fault(fault.clone()) {
            CallFault::Protocol(error) => {
                assert_eq!(Some(error.code()), code, "{fault:?}");
                assert!(!error.response(None).contains("secret"));
            }
            CallFault::Result(fault) => {
                assert_eq!(code, None, "{fault:?}");
                let text = STATELESS.refusal(&Id::from_text("1"), &fault, IntentId::random());
                let result = &serde_json::from_str::<Value>(&text).unwrap()["result"];
                assert_eq!((&result["isError"], &result["resultType"]), (&json!(true), &json!("complete")));
                assert_eq!(result["_meta"]["a2g/error"]["ran"], false);
            }
        }
    }
}

#[test]
fn notifications_carry_the_token_and_the_subscription_verbatim() {
    let text = request("ping", &json!({ "_meta": { "progressToken": 9_007_199_254_740_993_u64 } }));
    let token = parse(&text).meta.progress_token.unwrap();
    let progress = encode::progress(&token, 50.0, Some(100.0), "half");
    assert_eq!(
        progress,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9007199254740993,"progress":50.0,"total":100.0,"message":"half"}}"#
    );
    let first = encode::acknowledged(&Id::from_text("s"), &SubscriptionFilter::EVERY_LIST, &[]);
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["params"]["_meta"][names::SUBSCRIPTION_ID], "s");
    assert_eq!(
        first["params"]["notifications"],
        json!({ "toolsListChanged": true, "resourcesListChanged": true })
    );
    assert!(MessageLevel::Info.includes(LogLevel::Warn) && !MessageLevel::Error.includes(LogLevel::Warn));
}

#[test]
fn arguments_of_a_request_for_descriptions() {
    let decode = |arguments: Value| tools::decode_describe(arguments.as_object().unwrap());
    let request = |query: &str, language| DescribeRequest { query: query.to_owned(), language };
    assert_eq!(decode(json!({})).unwrap(), request("", None));
    let both = json!({ "language": "python", "query": "a b" });
    assert_eq!(decode(both).unwrap(), request("a b", Some(Language::Python)));
    for (arguments, expected) in [
        (json!({ "query": null }), "/arguments/query"),
        (json!({ "query": "x".repeat(1_001) }), "/arguments/query"),
        (json!({ "language": "Python" }), "/arguments/language"),
        (json!({ "language": 1 }), "/arguments/language"),
        (json!({ "a/b": 1 }), "/arguments/a~1b"),
    ] {
        match decode(arguments) {
            Err(Fault::InvalidParams { pointer, .. }) => assert_eq!(pointer, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_list_of_code_has_one_page() {
    let names = |after: Option<&str>| {
        let after = after.map(|after| ToolName::parse(after).unwrap());
        let tools = ["read_file", "run_javascript", "run_python"]
            .map(|name| tool(name, DeclaredFilesystem::None, false, json!({})));
        let definitions = Definitions::new(&tools, SESSION.revision);
        let text = SESSION.tools(&Id::from_text("1"), definitions.iter(), after.as_ref(), Listing::Code);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["result"].get("nextCursor"), None);
        let tools = answer["result"]["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(None), ["describe_tools", "run_javascript", "run_python"]);
    assert_eq!(names(Some("run_javascript")), ["run_python"]);
}

#[test]
fn a_staged_run_tells_a_model_that_its_changes_wait() {
    let notice = |state: StagedState, is_result_closed| StagedNotice {
        state: Some(state),
        decider: Decider::Approver,
        page: Some("https://x/console/changes/1".to_owned()),
        refusal: None,
        is_result_closed,
    };
    let result = |encoder: ResultEncoder, value: Value, notice: Option<&StagedNotice>| -> Value {
        let result = encoder.receipt_result(&staged_receipt(value), None, None, notice);
        serde_json::from_str(result.get()).unwrap()
    };
    let object = || json!({ "path": "x" });
    for encoder in [STATELESS, SESSION] {
        let open = result(encoder, object(), Some(&notice(waiting(), false)));
        assert_eq!(
            (&open["isError"], &open["content"][0]["text"]),
            (&json!(false), &json!(object().to_string()))
        );
        let text = open["content"][1]["text"].as_str().unwrap();
        for part in
            ["not in force", "deleted file `/workspace/old` (3 bytes)", "effects commit", "https://x/"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let meta = &open["_meta"];
        assert_eq!(
            (&meta["a2g/effects"]["state"], &meta["a2g/effects"]["changes"]),
            (&json!("waiting"), &json!(2))
        );
        assert_eq!(meta["a2g/usage"]["effects"]["files"][0]["change"], "deleted");
        assert_eq!(open["structuredContent"], json!({ "path": "x", "a2g/effects": meta["a2g/effects"] }));
        let declared = result(encoder, object(), Some(&notice(waiting(), true)));
        assert_eq!(declared["structuredContent"], object(), "it has to match the schema of the tool");
        let taken = json!({ "a2g/effects": 1 });
        assert_eq!(
            result(encoder, taken.clone(), Some(&notice(waiting(), false)))["structuredContent"],
            taken
        );
        let decided = result(encoder, object(), Some(&notice(committed(), false)));
        let text = decided["content"][1]["text"].as_str().unwrap();
        assert_eq!(text, "The file changes of this call (2) are in force: they were committed by anna.");
        let refused =
            StagedNotice { refusal: Some("a file has changed".to_owned()), ..notice(waiting(), false) };
        let text = result(encoder, object(), Some(&refused))["content"][1]["text"].to_string();
        assert!(
            text.contains("had no effect: a file has changed") && text.contains("not in force"),
            "{text}"
        );
    }
    assert_eq!(
        result(STATELESS, json!([1]), Some(&notice(waiting(), false)))["structuredContent"],
        json!([1])
    );
    assert_eq!(
        result(STATELESS, json!({}), Some(&notice(waiting(), false)))["structuredContent"]["a2g/effects"]["changes"],
        2
    );
}

#[test]
fn the_question_about_file_changes_shows_them_and_has_its_own_answer() {
    let question = elicit::changes_question(&staged_receipt(json!(1)), &waiting(), None).unwrap();
    let message = question.params["message"].as_str().unwrap();
    for part in [AGENT, "write_file", "deleted file `/workspace/old` (3 bytes)", "-a\n+b", INTENT, "07070707"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    // A commit loses the content of an emptied file, so each is listed, beyond what a model is told.
    let mut emptying = staged_receipt(json!(1));
    let changes = emptying.outcome.usage.changes.as_mut().unwrap();
    let changed = changes.shown[1].clone();
    let emptied = |number: u32| ShownChange {
        path: format!("/workspace/{}-{number}", "x".repeat(100)),
        bytes_after: Some(0),
        diff: None,
        is_diff_cut: true,
        ..changed.clone()
    };
    changes.count = 80;
    changes.shown = (0..80).map(emptied).collect();
    let long = elicit::changes_question(&emptying, &waiting(), None).unwrap();
    let listed = long.params["message"].as_str().unwrap();
    assert_eq!(listed.matches("\n* emptied file `").count(), 80, "{listed}");
    assert!(listed.contains("Not shown: content of 80 files."), "{listed}");
    let intent = IntentId::parse(INTENT).unwrap();
    let asked = STATELESS.input_required(&Id::from_text("1"), intent, &question, "s");
    let asked: Value = serde_json::from_str(&asked).unwrap();
    assert_eq!(asked["result"]["inputRequests"]["changes"]["method"], "elicitation/create");
    let responses = |responses: Value| {
        let params = json!({ "name": "x", "inputResponses": responses, "_meta": meta() });
        match parse(&request("tools/call", &params)).decode(Revision::Stateless) {
            Ok(McpRequest::CallTool(call)) => Ok(call.responses),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(McpError::from(fault).code()),
        }
    };
    let answer = |decision: &str| json!({ "action": "accept", "content": { "decision": decision } });
    let accepted = |decision| Some(ElicitAnswer { action: ElicitAction::Accept, decision: Some(decision) });
    assert_eq!(responses(json!({})), Ok(InputResponses::default()));
    assert_eq!(
        responses(json!({ "decision": answer("approve"), "changes": answer("discard"), "other": 1 })),
        Ok(InputResponses {
            call: accepted(PersonDecision::Approve),
            changes: accepted(PersonDecision::Discard),
        })
    );
    for crossed in [json!({ "decision": answer("commit") }), json!({ "changes": answer("approve") })] {
        assert_eq!(responses(crossed.clone()), Err(-32602), "{crossed}");
    }
}
