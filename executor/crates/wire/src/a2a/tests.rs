//! Decoding, encoding, and the table of error codes.

use super::decode::{self, A2aDecodeError, A2aRequest};
use super::fault::{self, Problem};
use super::governance::{PermissionAnswer, PermissionOption, changes_options, permission_options};
use super::message::{FileContent, FilePart, Message, MessageRole, Part, Task, TaskState, TaskStatus};
use super::{Dialect, card, encode};
use crate::jsonrpc::Id;
use crate::tests::{committed, descriptor, map, receipt, staged_receipt, waiting};
use a2g_types::fault::Fault;
use a2g_types::outcome::{ChangeState, End};
use a2g_types::quantity::Timeout;
use a2g_types::tool::{DeclaredCapabilities, Descriptor};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use strum::VariantArray as _;
use time::OffsetDateTime;

fn decode_request(method: &str, params: &Value) -> Result<A2aRequest, Fault> {
    let text = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": 1 }).to_string();
    decode::request(&text).map(|(_, request)| request).map_err(|malformed| malformed.fault)
}

fn send_params(parts: &Value) -> Value {
    json!({ "message": { "role": "user", "messageId": "m", "parts": parts } })
}

fn decode_send(params: &Value) -> decode::SendParams {
    let A2aRequest::Send(decoded) = decode_request("message/send", params).unwrap() else {
        panic!("{params}")
    };
    *decoded
}

fn pointer(answer: Result<A2aRequest, Fault>) -> String {
    let Err(Fault::InvalidParams { pointer, .. }) = answer else { panic!("{answer:?}") };
    pointer
}

fn name() -> impl Strategy<Value = String> {
    "[ -~é]{1,40}"
}

fn part() -> impl Strategy<Value = Part> {
    let content = prop_oneof![
        vec(any::<u8>(), 0..20).prop_map(|bytes| FileContent::Bytes(STANDARD.encode(bytes))),
        ".{0,20}".prop_map(FileContent::Uri),
    ];
    let file = (of(name()), of(name()), content).prop_map(|(name, mime_type, content)| FilePart {
        name,
        mime_type,
        content,
    });
    prop_oneof![
        (".{0,40}", of(map("x.{0,6}"))).prop_map(|(text, metadata)| Part::Text { text, metadata }),
        (file, of(map("x.{0,6}"))).prop_map(|(file, metadata)| Part::File { file, metadata }),
        (map("x.{0,6}"), of(map("x.{0,6}")))
            .prop_map(|(data, metadata)| Part::Data { data: Value::Object(data).into(), metadata }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let names = (name(), of(name()), of(name()));
    let lists = (vec(".{0,8}", 0..3), vec(".{0,8}", 0..3));
    (vec(part(), 1..4), names, lists, of(map("x.{0,6}"))).prop_map(
        |(parts, (message_id, context_id, task_id), (reference_task_ids, extensions), metadata)| Message {
            role: MessageRole::User,
            parts,
            message_id,
            context_id,
            task_id,
            reference_task_ids,
            extensions,
            metadata,
        },
    )
}

proptest! {
    #[test]
    fn a_message_is_read_as_it_is_written(message in message()) {
        let read = decode_send(&json!({ "message": message }));
        prop_assert_eq!(&read.message, &message);
        prop_assert_eq!(read.call, None);
        // Messages of the A2A-ACP document have no `kind`.
        let mut bare = json!(message);
        bare.as_object_mut().unwrap().remove("kind");
        prop_assert_eq!(decode_send(&json!({ "message": bare })).message, message);
    }

    #[test]
    fn a_task_comes_back_from_the_journal_as_it_went_in(
        history in vec(message(), 0..4), state in 0..7_usize, metadata in of(map("x.{0,6}"))
    ) {
        let status = TaskStatus {
            state: TaskState::VARIANTS[state],
            message: history.first().cloned(),
            timestamp: OffsetDateTime::UNIX_EPOCH,
        };
        let task =
            Task { id: "t".into(), context_id: "c".into(), status, artifacts: Vec::new(), history, metadata };
        let text = serde_json::to_string(&task).unwrap();
        prop_assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
    }
}

#[test]
fn a_call_is_a_data_part_or_metadata_with_a_data_part() {
    let call = |params: &Value| decode_send(params).call;
    let arguments = json!({ "path": "/x" });
    let plain = call(&send_params(&json!([
        { "kind": "text", "text": "please" },
        { "kind": "data", "data": { "tool": "read_file", "arguments": arguments, "timeout_ms": 5 } },
    ])));
    let plain = plain.unwrap();
    assert_eq!((plain.tool.as_str(), &Value::from(plain.arguments.clone())), ("read_file", &arguments));
    assert_eq!(plain.timeout, Timeout::from_millis(5).ok());
    assert_eq!(plain.arguments_pointer, "/message/parts/1/data/arguments");
    let placed = plain.relocate_fault(Fault::invalid("/arguments/path", "x"));
    assert!(matches!(placed, Fault::InvalidParams { pointer, .. } if pointer.ends_with("/arguments/path")));

    let bare = call(&send_params(&json!([{ "kind": "data", "data": { "tool": "t" } }]))).unwrap();
    assert!(bare.arguments.is_empty());
    // The wrapper of the A2A-ACP document.
    let wrapped =
        json!({ "content": { "tool": "t", "arguments": arguments }, "mimeType": "application/json" });
    let wrapped = call(&send_params(&json!([{ "kind": "data", "data": wrapped }]))).unwrap();
    assert_eq!(wrapped.arguments_pointer, "/message/parts/0/data/content/arguments");
    for at in ["/metadata", "/message/metadata"] {
        let mut params = send_params(&json!([{ "kind": "data", "data": { "tool": "an argument" } }]));
        let object = params.pointer_mut(at.strip_suffix("/metadata").unwrap()).unwrap();
        object["metadata"] = json!({ "tool": "t" });
        let named = call(&params).unwrap();
        assert_eq!((named.tool.as_str(), named.tool_pointer), ("t", format!("{at}/tool")));
        assert_eq!(Value::from(named.arguments), json!({ "tool": "an argument" }));
    }
    assert_eq!(call(&send_params(&json!([{ "kind": "text", "text": "tool" }]))), None);
    assert_eq!(call(&send_params(&json!([{ "kind": "data", "data": { "content": "tool" } }]))), None);
}

#[test]
fn a_message_asks_for_a_session_or_opts_out_of_it() {
    let mut params = send_params(&json!([{ "kind": "data", "data": { "tool": "t" } }]));
    assert_eq!(decode_send(&params).asks_for_session, None);
    params["metadata"] = json!({ "session": true });
    assert_eq!(decode_send(&params).asks_for_session, Some(true));
    params["message"]["metadata"] = json!({ "session": false });
    assert_eq!(decode_send(&params).asks_for_session, Some(false));
}

#[test]
fn errors_point_to_the_invalid_member() {
    let text = json!([{ "kind": "text", "text": "x" }]);
    let with = |pointer: &str, value: Value| {
        let mut params = send_params(&text);
        let (object, member) = pointer.rsplit_once('/').unwrap();
        let object = params.pointer_mut(object).unwrap();
        if let Value::Array(list) = object {
            list[member.parse::<usize>().unwrap()] = value;
        } else {
            object[member] = value;
        }
        params
    };
    let data = |data: Value| send_params(&json!([{ "kind": "data", "data": data }]));
    for (params, at) in [
        (json!({}), "/message"),
        (json!({ "message": 1 }), "/message"),
        (with("/message/parts", json!([])), "/message/parts"),
        (with("/message/parts", json!({})), "/message/parts"),
        (with("/message/parts/0/kind", json!("image")), "/message/parts/0/kind"),
        (with("/message/parts/0/kind", json!(null)), "/message/parts/0/kind"),
        (with("/message/parts/0/text", json!(1)), "/message/parts/0/text"),
        (with("/message/parts/0", json!({ "kind": "file", "file": {} })), "/message/parts/0/file"),
        (
            with("/message/parts/0", json!({ "kind": "file", "file": { "bytes": "", "uri": "" } })),
            "/message/parts/0/file",
        ),
        (
            with("/message/parts/0", json!({ "kind": "file", "file": { "bytes": "a" } })),
            "/message/parts/0/file/bytes",
        ),
        (with("/message/role", json!("agent")), "/message/role"),
        (with("/message/role", json!("system")), "/message/role"),
        (with("/message/kind", json!("task")), "/message/kind"),
        (json!({ "message": { "role": "user", "parts": text } }), "/message/messageId"),
        (with("/message/messageId", json!("")), "/message/messageId"),
        (with("/message/messageId", json!(7)), "/message/messageId"),
        (with("/message/messageId", json!("x".repeat(257))), "/message/messageId"),
        (with("/message/contextId", json!("a\nb")), "/message/contextId"),
        (with("/message/taskId", json!([])), "/message/taskId"),
        (with("/message/metadata", json!("x")), "/message/metadata"),
        (with("/message/metadata", json!({ "session": "no" })), "/message/metadata/session"),
        (with("/metadata", json!({ "session": 1 })), "/metadata/session"),
        (with("/configuration", json!([])), "/configuration"),
        (with("/configuration", json!({ "blocking": "no" })), "/configuration/blocking"),
        (with("/configuration", json!({ "historyLength": -1 })), "/configuration/historyLength"),
        (with("/configuration", json!({ "historyLength": 1.5 })), "/configuration/historyLength"),
        (data(json!({ "tool": 1 })), "/message/parts/0/data/tool"),
        (data(json!({ "tool": "../x" })), "/message/parts/0/data/tool"),
        (data(json!({ "tool": "t", "arguments": [] })), "/message/parts/0/data/arguments"),
        (data(json!({ "tool": "t", "limit": 1 })), "/message/parts/0/data"),
        (data(json!({ "tool": "t", "timeout_ms": 0 })), "/message/parts/0/data/timeout_ms"),
        (data(json!({ "tool": "t", "timeout_ms": "9" })), "/message/parts/0/data/timeout_ms"),
        (data(json!({ "tool": "t", "timeout_ms": 5.0 })), "/message/parts/0/data/timeout_ms"),
    ] {
        assert_eq!(pointer(decode_request("message/send", &params)), at, "{params}");
    }
    let two = json!([
        { "kind": "data", "data": { "tool": "a" } }, { "kind": "data", "data": { "tool": "b" } }
    ]);
    assert_eq!(pointer(decode_request("message/send", &send_params(&two))), "/message/parts/1/data");
    for (method, params, at) in [
        ("tasks/get", json!({}), "/id"),
        ("tasks/get", json!({ "id": 1 }), "/id"),
        ("tasks/get", json!({ "id": "x", "taskId": "x" }), "/taskId"),
        ("tasks/get", json!({ "id": "x", "historyLength": -1 }), "/historyLength"),
        ("tasks/list", json!({ "limit": 0 }), "/limit"),
        ("tasks/list", json!({ "limit": 101 }), "/limit"),
        ("tasks/list", json!({ "offset": -1 }), "/offset"),
        ("tasks/list", json!({ "offset": 1_001 }), "/offset"),
        ("tasks/list", json!({ "pageToken": "x" }), "/pageToken"),
        ("tasks/list", json!({ "pageToken": "A".repeat(32), "offset": 0 }), "/pageToken"),
        ("tasks/cancel", json!({ "id": "" }), "/id"),
        ("tasks/provideInputAndContinue", json!({ "taskId": "x" }), "/input"),
        (
            "tasks/provideInputAndContinue",
            json!({ "taskId": "x", "permissionOptionId": "maybe" }),
            "/permissionOptionId",
        ),
        (
            "tasks/provideInputAndContinue",
            json!({ "taskId": "x", "permissionOptionId": "approved", "input": {} }),
            "/permissionOptionId",
        ),
    ] {
        assert_eq!(pointer(decode_request(method, &params)), at, "{method} {params}");
    }
    for method in decode::METHODS {
        let known = decode_request(method, &json!({}));
        assert!(!matches!(known, Err(Fault::MethodNotFound(_))), "{method} is offered and not served");
    }
    for unknown in ["message/sned", "SendMessage"] {
        assert!(matches!(decode_request(unknown, &json!({})), Err(Fault::MethodNotFound(_))), "{unknown}");
    }
}

#[test]
fn a_malformed_request_object_is_an_invalid_request_and_a_valid_id_is_echoed() {
    let id = |text: &str| match decode::request(text) {
        Ok((id, _)) | Err(A2aDecodeError { id, .. }) => id.as_json().to_owned(),
    };
    let get = |id: &str| format!(r#"{{"jsonrpc":"2.0","method":"tasks/get","params":{{"id":"t"}}{id}}}"#);
    assert_eq!(id(&get("")), "null");
    for whole in ["\"a\"", "7", "null", "-1"] {
        assert_eq!(id(&get(&format!(r#","id":{whole}"#))), whole);
    }
    for broken in ["1.5", "1e3", "true", "{}"] {
        let text = get(&format!(r#","id":{broken}"#));
        assert!(
            matches!(decode::request(&text), Err(A2aDecodeError { fault: Fault::InvalidRequest(_), .. })),
            "{text}"
        );
        assert_eq!(id(&text), "null", "{text}");
    }
    let one = get(r#","id":1"#);
    for batch in ["[]".to_owned(), format!("[{one}]"), format!("[{one},{one}]"), "[1]".to_owned()] {
        assert!(
            matches!(decode::request(&batch), Err(A2aDecodeError { fault: Fault::InvalidRequest(_), .. })),
            "{batch}"
        );
    }
    for text in ["1", r#"{"jsonrpc":"3.0","method":"tasks/get","id":1}"#, r#"{"method":"tasks/get"}"#] {
        assert!(
            matches!(decode::request(text), Err(A2aDecodeError { fault: Fault::InvalidRequest(_), .. })),
            "{text}"
        );
    }
    let list = r#"{"jsonrpc":"2.0","method":"tasks/get","params":["t"],"id":1}"#;
    assert!(matches!(decode::request(list), Err(A2aDecodeError { fault: Fault::InvalidParams { .. }, .. })));
}

#[test]
fn every_problem_has_its_code_in_both_dialects() {
    let text = || "m".to_owned();
    for (problem, a2a, acp) in [
        (Problem::TaskNotFound, -32001, -32000),
        (Problem::ContextMismatch, -32602, -32001),
        (Problem::NotCancelable(TaskState::Completed), -32002, -32602),
        (Problem::TakesNoMessage(text()), -32602, -32602),
        (Problem::PushUnsupported, -32003, -32601),
        (Problem::PushNotFound, -32602, -32602),
        (Problem::ContentType(text()), -32005, -32602),
        (Problem::UnsupportedVersion(text()), -32009, -32600),
    ] {
        for (dialect, code) in [(Dialect::A2a, a2a), (Dialect::Acp, acp)] {
            assert_eq!(fault::to_error(&problem, dialect).code, code, "{problem:?} {dialect:?}");
        }
    }
}

#[test]
fn in_the_acp_dialect_only_parts_have_a_kind() {
    let message = |id: &str| {
        encode::agent_message(id, "c", vec![Part::data(Map::from_iter([("kind".into(), 1.into())]))])
    };
    let status = TaskStatus {
        state: TaskState::Failed,
        message: Some(message("a")),
        timestamp: OffsetDateTime::UNIX_EPOCH,
    };
    let history = vec![message("b"), message("c")];
    let task = Task {
        id: "t".into(),
        context_id: "c".into(),
        status,
        artifacts: Vec::new(),
        history,
        metadata: None,
    };
    let value = |dialect, history| -> Value {
        let text = encode::task_response(&Id::null(), &task, history, dialect);
        serde_json::from_str::<Value>(&text).unwrap()["result"].clone()
    };
    let a2a = value(Dialect::A2a, Some(1));
    assert_eq!((&a2a["kind"], &a2a["status"]["message"]["kind"]), (&json!("task"), &json!("message")));
    assert_eq!(a2a["history"].as_array().unwrap().len(), 1);
    let acp = value(Dialect::Acp, None);
    assert_eq!(acp["history"].as_array().unwrap().len(), 2);
    for message in [&acp, &acp["status"]["message"], &acp["history"][0], &acp["history"][1]] {
        assert_eq!(message.get("kind"), None, "{message}");
    }
    assert_eq!(acp["history"][0]["parts"][0], json!({ "kind": "data", "data": { "kind": 1 } }));
    assert!(value(Dialect::A2a, Some(0)).get("history").is_none());
}

#[test]
fn what_a_tool_made_is_a_file_with_its_bytes_and_its_media_type() {
    let made = a2g_types::outcome::Artifact {
        name: "plot.png".into(),
        mime: "image/png".into(),
        content: vec![1, 2, 3, 4],
    };
    let artifact = json!(encode::artifact(&made, 1));
    assert_eq!(artifact["artifactId"], "artifact-2");
    let file = json!({ "name": "plot.png", "mimeType": "image/png", "bytes": "AQIDBA==" });
    assert_eq!(artifact["parts"], json!([{ "kind": "file", "file": file }]));
    let update = super::message::TaskUpdate::Artifact(Box::new(super::message::ArtifactUpdate {
        task_id: "t".into(),
        context_id: "c".into(),
        artifact: encode::artifact(&made, 0),
        append: false,
        last_chunk: true,
    }));
    let events = super::push::events(&update, TaskState::Working);
    let told = json!({ "artifact_type": "file", "artifact_name": "plot.png", "artifact_size": 4 });
    assert_eq!(events, [(super::push::EventKind::Artifact, told)]);
}

#[test]
fn the_card_lists_the_supported_schemes_and_skills() {
    let capabilities = DeclaredCapabilities { network: true, ..DeclaredCapabilities::default() };
    let tool = Descriptor { capabilities, ..descriptor("read_file", json!({ "type": "object" })) };
    let settings = |requires_auth| card::CardSettings {
        url: "http://localhost:1/a2a/rpc".into(),
        requires_auth,
        accepts_jwts: false,
        supports_push: false,
    };
    let open = card::public_card(&settings(false), std::slice::from_ref(&tool));
    assert_eq!(open.get("securitySchemes"), None);
    assert_eq!(open["skills"][0]["tags"], json!(["tool", "network"]));
    assert_eq!(
        open["skills"][0].get("argumentsSchema"),
        None,
        "only authenticated callers see argument schemas"
    );
    let protected = card::extended_card(&settings(true), &[tool], Dialect::A2a);
    assert_eq!(protected["security"], json!([{ "bearer": [] }, { "apiKey": [] }]));
    assert_eq!(protected["skills"][0]["argumentsSchema"], json!({ "type": "object" }));
    assert_eq!(protected["securitySchemes"].get("jwt"), None, "no JWT issuer is configured");
    let jwts = card::public_card(&card::CardSettings { accepts_jwts: true, ..settings(true) }, &[]);
    assert_eq!(jwts["securitySchemes"]["jwt"]["bearerFormat"], "JWT");
    assert_eq!(jwts["security"], json!([{ "bearer": [] }, { "apiKey": [] }, { "jwt": [] }]));
}

#[test]
fn a_staged_run_has_its_changes_as_an_artifact() {
    let staged = staged_receipt(json!({ "path": "x" }));
    let artifacts = json!(encode::artifacts(&staged));
    assert_eq!(
        (&artifacts[0]["artifactId"], &artifacts[1]["artifactId"]),
        (&json!("result"), &json!("changes"))
    );
    let parts = &artifacts[1]["parts"];
    assert!(parts[0]["text"].as_str().unwrap().contains("deleted file `/workspace/old`"), "{parts}");
    assert_eq!(parts[1]["data"]["files"][0]["change"], "deleted");
    assert_eq!(encode::run_metadata(&staged)["status"], "STAGED");
    for (state, expected) in [(waiting(), "waiting"), (committed(), "in_force")] {
        let parts = json!(encode::changes_parts(&staged, Some(&state)));
        assert_eq!(parts[1]["data"]["effects"]["state"], expected, "{parts}");
        assert_eq!(parts[0]["text"], parts[1]["data"]["effects"]["message"]);
    }
    let plain = receipt(End::Returned(json!(1).into()));
    assert_eq!((encode::artifacts(&plain).len(), encode::changes_parts(&plain, None)), (1, vec![]));
}

/// An answer about a call that is sent again finds the prompt about its changes.
#[test]
fn an_answer_about_a_call_is_none_about_its_changes() {
    let ids = |options: Vec<PermissionOption>| {
        options.into_iter().map(|option| option.option_id).collect::<Vec<_>>()
    };
    assert_eq!(ids(permission_options()), ["approved", "denied"]);
    let changes = staged_receipt(json!(1)).outcome.usage.changes.unwrap();
    assert_eq!(ids(changes_options(&changes)), ["commit", "discard"]);
    for answer in PermissionAnswer::VARIANTS {
        let params = json!({ "taskId": "x", "permissionOptionId": answer.as_str() });
        let decoded = decode_request("tasks/provideInputAndContinue", &params).unwrap();
        let A2aRequest::Permit { task, answer: sent } = decoded else { panic!("{params}") };
        assert_eq!((&*task, sent), ("x", *answer));
    }
}

#[test]
fn a_task_is_completed_only_by_changes_that_are_in_force() {
    let commit = Some(PermissionAnswer::Commit);
    let discard = Some(PermissionAnswer::Discard);
    for (state, expected, answer) in [
        (None, TaskState::Failed, None),
        (Some(ChangeState::Waiting), TaskState::InputRequired, None),
        (Some(ChangeState::Sending), TaskState::Working, commit),
        (Some(ChangeState::InForce), TaskState::Completed, commit),
        (Some(ChangeState::Kept), TaskState::Completed, commit),
        (Some(ChangeState::Discarded), TaskState::Canceled, discard),
        (Some(ChangeState::Undone), TaskState::Canceled, None),
    ] {
        assert_eq!(fault::state_for_changes(state), expected, "{state:?}");
        assert_eq!(state.and_then(PermissionAnswer::leading_to), answer, "{state:?}");
    }
}
