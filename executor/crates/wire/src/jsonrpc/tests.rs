//! Framing: accepted requests, rejected ones, and the id of each rejection.

use super::*;
use serde_json::json;

fn decoded(text: &str) -> RpcMessage<'_> {
    decode(text, MAX_BATCH).unwrap()
}

fn one(text: &str) -> RequestEntry<'_> {
    match decoded(text) {
        RpcMessage::Single(entry) => entry,
        RpcMessage::Batch(entries) => panic!("{entries:?}"),
    }
}

#[test]
fn a_request_is_read_as_it_stands() {
    let request =
        one(r#"{"jsonrpc":"2.0","method":"a2g/\u0069ntent","params":{"a": 1},"id":"req-1"}"#).unwrap();
    assert_eq!(request.method, "a2g/intent");
    assert_eq!(request.params.unwrap().get(), r#"{"a": 1}"#);
    assert_eq!(request.id.unwrap().as_json(), r#""req-1""#);
}

#[test]
fn only_an_absent_id_makes_a_notification() {
    assert!(one(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap().id.is_none());
    assert!(one(r#"{"jsonrpc":"2.0","method":"m","id":null}"#).unwrap().id.unwrap().is_null());
    assert!(Id::null().is_null());
}

#[test]
fn an_id_comes_back_exactly_as_it_came() {
    let longest = format!("\"{}\"", "x".repeat(Id::MAX_BYTES - 2));
    for id in ["1", "-0", "1.50", "1e400", "18446744073709551616", r#""\u0061""#, "null", &longest] {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"m","id": {id} }}"#);
        let read = one(&text).unwrap().id.unwrap();
        let result = RawValue::TRUE;
        assert_eq!(success(&read, result).get(), format!(r#"{{"jsonrpc":"2.0","result":true,"id":{id}}}"#));
    }
}

#[test]
fn an_id_of_another_kind_is_refused_without_an_id() {
    let long = format!("\"{}\"", "x".repeat(Id::MAX_BYTES - 1));
    for id in ["true", "false", "[]", "{}", "[1]", &long] {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"m","id":{id}}}"#);
        let (read, fault) = one(&text).unwrap_err();
        assert!(read.is_none(), "{id}");
        assert!(matches!(fault, Fault::InvalidRequest(_)), "{id}");
    }
}

#[test]
fn what_is_no_request_is_refused_with_its_id() {
    let cases = [
        (r#"{"method":"m","id":7}"#, "`jsonrpc`"),
        (r#"{"jsonrpc":"1.0","method":"m","id":7}"#, "`jsonrpc`"),
        (r#"{"jsonrpc":"3.0","method":"m","id":7}"#, "`jsonrpc`"),
        (r#"{"jsonrpc":2.0,"method":"m","id":7}"#, "`jsonrpc`"),
        (r#"{"jsonrpc":null,"method":"m","id":7}"#, "`jsonrpc`"),
        (r#"{"jsonrpc":"2.0","id":7}"#, "`method`"),
        (r#"{"jsonrpc":"2.0","method":1,"id":7}"#, "`method`"),
        (r#"{"jsonrpc":"2.0","method":null,"id":7}"#, "`method`"),
        (r#"{"jsonrpc":"2.0","method":"m","params":1,"id":7}"#, "`params`"),
        (r#"{"jsonrpc":"2.0","method":"m","params":null,"id":7}"#, "`params`"),
        (r#"{"jsonrpc":"2.0","method":"m","params":"x","id":7}"#, "`params`"),
        (r#"{"jsonrpc":"2.0","result":{},"id":7}"#, "`method`"),
    ];
    for (text, member) in cases {
        let (id, fault) = one(text).unwrap_err();
        assert_eq!(id.unwrap().as_json(), "7", "{text}");
        assert!(matches!(&fault, Fault::InvalidRequest(why) if why.contains(member)), "{text}: {fault:?}");
    }
}

#[test]
fn bodies_that_are_refused_as_a_whole() {
    let request = r#"{"jsonrpc":"2.0","method":"m","id":1}"#;
    let too_many = format!("[{}]", vec![request; MAX_BATCH + 1].join(","));
    let far_too_many = format!("[{}]", vec!["1"; 100_000].join(","));
    for text in ["1", "null", "\"x\"", "true", "[]", " [ ] ", &too_many, &far_too_many] {
        let fault = decode(text, MAX_BATCH).unwrap_err();
        let what = if text.contains('[') { "batch" } else { "an object" };
        assert!(matches!(&fault, Fault::InvalidRequest(why) if why.contains(what)), "{fault:?}");
    }
    for text in ["", "{", "[1,", "x", "{} {}", "[1] 2"] {
        assert!(matches!(decode(text, MAX_BATCH), Err(Fault::Parse(_))), "{text}");
    }
}

#[test]
fn a_batch_is_judged_entry_by_entry() {
    let request = r#"{"jsonrpc":"2.0","method":"m","id":1}"#;
    let text = format!("[1, {request}, [], {{\"id\": 2}}]");
    let RpcMessage::Batch(entries) = decoded(&text) else { panic!() };
    let ids: Vec<Option<String>> = entries
        .into_iter()
        .map(|entry| match entry {
            Ok(request) => request.id.map(|id| format!("ok {}", id.as_json())),
            Err((id, Fault::InvalidRequest(_))) => id.map(|id| format!("refused {}", id.as_json())),
            Err((_, other)) => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, [None, Some("ok 1".to_owned()), None, Some("refused 2".to_owned())]);

    let RpcMessage::Batch(entries) = decoded("[1]") else { panic!() };
    assert_eq!(entries.len(), 1);
    let full = format!("[{}]", vec![request; MAX_BATCH].join(","));
    let RpcMessage::Batch(entries) = decoded(&full) else { panic!() };
    assert!(entries.len() == MAX_BATCH && entries.iter().all(Result::is_ok));
}

#[test]
fn errors_are_written_in_the_documents_order() {
    let id = one(r#"{"jsonrpc":"2.0","method":"m","id":"req-001"}"#).unwrap().id;
    let data = json!({ "risk_score": 0.92 });
    assert_eq!(
        error(id.as_ref(), -32000, "Policy violation", Some(&data)).get(),
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Policy violation","data":{"risk_score":0.92}},"id":"req-001"}"#
    );
    assert_eq!(
        error(None, -32700, "not JSON", None).get(),
        r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"not JSON"},"id":null}"#
    );
}
