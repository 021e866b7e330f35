//! Verdicts that come through other hands: proofs, the keys behind them, and intents that are signed.
//!
//! W8 to W11 of the threats: replay, swapped parts, tricks with signatures, one identifier for two things.

use harness::methods::write;
use harness::proofs::{append, at_once, of_one_identifier, runs, trusting, with, with_leave};
use harness::*;
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn a_signed_verdict_runs_without_a_reachable_governor() {
    let keys = Keys::new();
    let governor = Governor::start_with(&[methods::policy()], &["--key", keys.pair().to_str().unwrap()]);
    let executor = Executor::start(trusting(&keys));
    let other = Executor::start(trusting(&keys).set("executor.did", "did:a2g:executor:1.0:other"));

    // The agent asks, for this one executor.
    let mut intent = intent("write_file", write("hello", "signed"));
    intent["context"] = json!({ "executor": EXECUTOR, "reasoning": "to show it" });
    let answer = governor.rpc("a2g/intent", &intent);
    let verdict = result(&answer);
    assert_eq!(verdict["verdict"], "APPROVED", "{answer}");
    let proof = verdict["proof"].as_str().expect("a proof");

    // It carries both over, with the proof inside the verdict as it came, or beside it.
    let call = json!({ "intent": intent, "verdict": verdict, "proof": proof });
    let mut client = executor.client();
    let ran = client.rpc("a2g/execute", &call);
    assert_eq!(result(&ran)["status"], "SUCCESS", "{ran}");
    assert_eq!(executor.file("hello").as_deref(), Some("signed"));
    let mut bare = call.clone();
    bare["verdict"].as_object_mut().unwrap().remove("proof");
    // The same proof of the same intent is the repeat, answered from the record.
    assert_eq!(result(&client.rpc("a2g/execute", &bare)), result(&ran));
    assert_eq!(executor.wait_for_reports(1).len(), 1);

    // Nowhere else, and for nothing else.
    let elsewhere = other.rpc("a2g/execute", &call);
    assert!(expect_blocked(&elsewhere, "verdict_mismatch").contains("another executor"), "{elsewhere}");
    other.assert_workspace_is_empty("a proof for another executor");
    let swapped = [
        ("/intent/intent_id", json!(intent_id()), "another intent"),
        ("/intent/agent_did", json!("did:aeon:other:1.0:x"), "another agent"),
        ("/intent/tool", json!("read_file"), "another tool"),
        ("/intent/arguments/path", json!("/workspace/other"), "other arguments"),
        ("/intent/arguments/content", json!("other"), "other arguments"),
        ("/verdict/capability_manifest/filesystem_scope", json!(["/workspace/**", "/**"]), "another verdict"),
        ("/verdict/expires_at", json!(in_seconds(3600)), "another verdict"),
    ];
    for (pointer, value, words) in swapped {
        let mut changed = call.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        let response = client.rpc("a2g/execute", &changed);
        assert!(expect_blocked(&response, "verdict_mismatch").contains(words), "{pointer}: {response}");
    }
    assert_eq!(executor.wait_for_reports(1).len(), 1);

    // Without a name there is nobody to sign for, and what is no name is an error.
    intent["context"] = json!({});
    intent["intent_id"] = json!(intent_id());
    assert!(result(&governor.rpc("a2g/intent", &intent)).get("proof").is_none());
    intent["context"] = json!({ "executor": "me" });
    assert_eq!(error(&governor.rpc("a2g/intent", &intent), -32602)["data"]["pointer"], "/context/executor");
    assert!(!governor.stderr().contains(&keys.private()));
}

#[test]
fn an_invalid_proof_runs_nothing() {
    let keys = Keys::new();
    let stranger = Keys::new();
    let executor = Executor::start(trusting(&keys).set("trust.max_proof_seconds", 600));
    let mut client = executor.client();
    let call = append();
    let good = claims(&call);
    let now = good["iat"].as_i64().unwrap();
    let header = json!({ "alg": "EdDSA", "kid": keys.id() });

    let mut cases: Vec<(String, String, &str, &str)> = Vec::new();
    let untrusted = "verdict_untrusted";
    let mismatch = "verdict_mismatch";
    for (member, value, words) in [
        ("alg", json!("none"), "`alg`"),
        ("alg", json!("HS256"), "`alg`"),
        ("kid", json!(stranger.id()), "does not trust"),
        ("crit", json!(["exp"]), "`crit`"),
        ("b64", json!(false), "`b64`"),
        ("jwk", json!({ "kty": "OKP" }), "`jwk`"),
        ("jku", json!("https://attacker.example/keys"), "`jku`"),
        ("x5u", json!("https://attacker.example/cert"), "`x5u`"),
    ] {
        let proof = keys.sign_under(&with(&header, member, value.clone()), &good);
        cases.push((format!("header {member} {value}"), proof, untrusted, words));
    }
    for (member, value, by, words) in [
        ("iss", json!("did:a2g:governor:1.0:other"), untrusted, "may speak for"),
        ("aud", json!("did:a2g:executor:1.0:other"), mismatch, "another executor"),
        ("sub", json!("did:aeon:other:1.0:x"), mismatch, "another agent"),
        ("intent_id", json!(intent_id()), mismatch, "another intent"),
        ("tool", json!("edit_file"), mismatch, "another tool"),
        ("arguments_sha256", json!(sha256("{}")), mismatch, "other arguments"),
        ("tool_sha256", json!(sha256("another module")), mismatch, "the installed module is"),
        ("verdict", with(&good["verdict"], "conditions", json!(["read_only"])), mismatch, "another verdict"),
        ("exp", json!(now - 1), untrusted, "before it was issued"),
        ("iat", json!(now + 120), untrusted, "not valid before"),
        ("nbf", json!(now + 120), untrusted, "not valid before"),
        ("exp", json!(now + 601), untrusted, "at most 600"),
        ("scope", json!("some restriction"), untrusted, "`scope`"),
    ] {
        let proof = keys.sign(&with(&good, member, value.clone()));
        cases.push((format!("{member} {value}"), proof, by, words));
    }
    let expired =
        with(&with(&with(&good, "iat", json!(now - 60)), "nbf", json!(now - 60)), "exp", json!(now - 1));
    cases.push(("expired".into(), keys.sign(&expired), "verdict_expired", "proof expired at"));

    let proof = keys.sign(&good);
    let [head, payload, signature] = proof.split('.').collect::<Vec<_>>().try_into().unwrap();
    let forged = stranger.sign_under(&header, &good);
    for (what, tampered, words) in [
        ("the signature of another key", forged, "is not signed by the key"),
        ("no signature", format!("{head}.{payload}."), "is not signed by the key"),
        ("two parts", format!("{head}.{payload}"), "three parts"),
        ("four parts", format!("{proof}.{signature}"), "three parts"),
        ("padding", format!("{proof}=="), "three parts"),
        ("nothing", String::new(), "three parts"),
    ] {
        cases.push((what.into(), tampered, untrusted, words));
    }
    let swapped = keys.sign(&with(&good, "jti", json!("other")));
    let mixed = format!("{head}.{}.{signature}", swapped.split('.').nth(1).unwrap());
    cases.push(("the payload of another proof".into(), mixed, untrusted, "is not signed by the key"));

    for (what, proof, by, words) in cases {
        let response = client.rpc("a2g/execute", &with(&call, "proof", json!(proof)));
        assert!(expect_blocked(&response, by).contains(words), "{what}: {response}");
        assert_eq!(response["error"]["data"]["intent_id"], call["intent"]["intent_id"], "{what}");
    }
    let response = client.rpc("a2g/execute", &call);
    assert!(expect_blocked(&response, "verdict_untrusted").contains("no `proof`"), "{response}");
    executor.assert_workspace_is_empty("bad proofs");

    // A valid proof runs, also under the algorithm's other name and with the right module.
    let tools = client.rpc("a2g/tools", &json!({}));
    let mut tools = result(&tools)["tools"].as_array().unwrap().iter();
    let digest = &tools.find(|tool| tool["name"] == "write_file").unwrap()["digest"];
    let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
    let pinned = with(&good, "tool_sha256", json!(digest));
    let header = json!({ "alg": "Ed25519", "kid": keys.id(), "typ": "JWT" });
    let proof = keys.sign_under(&header, &pinned);
    let response = client.rpc("a2g/execute", &with(&call, "proof", json!(proof)));
    assert_eq!(result(&response)["status"], "SUCCESS", "{response}");
    assert_eq!(runs(&executor), 1);
}

#[test]
fn a_proof_with_any_changed_character_runs_nothing() {
    let keys = Keys::new();
    let executor = Executor::start(trusting(&keys));
    let mut client = executor.client();
    let call = keys.proven(append());
    let proof = call["proof"].as_str().unwrap();
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=";
    for at in 0..proof.len() {
        let mut bytes = proof.as_bytes().to_vec();
        // The neighbour first, which may differ in bits only that no byte needs.
        let now = digits.iter().position(|digit| *digit == bytes[at]).unwrap();
        bytes[at] = digits[(now + 1 + at % 7) % digits.len()];
        let changed = with(&call, "proof", json!(String::from_utf8(bytes).unwrap()));
        let response = client.rpc("a2g/execute", &changed);
        assert!(expect_blocked(&response, "verdict_untrusted").contains("the `proof` "), "{at}: {response}");
    }
    executor.assert_workspace_is_empty("changed proofs");
    result(&client.rpc("a2g/execute", &call));
}

#[test]
fn a_proof_identifier_shared_by_64_intents_runs_one_of_them() {
    let keys = Keys::new();
    let executor = Executor::start(trusting(&keys));
    let calls = of_one_identifier(&keys, 64);
    let answers = at_once(&executor, &calls);
    let (ran, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.get("result").is_some());
    assert_eq!(ran.len(), 1, "{answers:?}");
    for answer in refused {
        assert!(expect_blocked(answer, "verdict_replayed").contains("already used"), "{answer}");
    }
    assert_eq!(runs(&executor), 1);
    // The one that ran is answered again, and another issuer's identifier would be another.
    let first = answers.iter().position(|answer| answer.get("result").is_some()).unwrap();
    assert_eq!(result(&executor.rpc("a2g/execute", &calls[first])), result(&answers[first]));
    assert_eq!(runs(&executor), 1);
}

#[test]
fn the_hashed_arguments_are_the_arguments_of_the_tool() {
    let keys = Keys::new();
    let executor = Executor::start(trusting(&keys));
    let mut client = executor.client();
    // A verdict about 3 is not one about 3.0, to a tool that tells them apart; so it is given 3.
    let call = keys.proven(execute("read_file", json!({ "path": "/workspace/x", "offset": 3 })));
    std::fs::write(executor.workspace().join("x"), "abcdef").unwrap();
    let text = call.to_string().replacen("\"offset\":3", "\"offset\":3.0", 1);
    assert_ne!(text, call.to_string());
    let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a2g/execute","params":{text}}}"#);
    let response = client.post(request.as_bytes()).json();
    assert_eq!(response["result"]["status"], "SUCCESS", "{response}");
    // An integer that canonical JSON cannot tell from its neighbour is not looked at.
    let call = append();
    let mut claims = claims(&call);
    claims["arguments_sha256"] = json!(sha256(r#"{"n":9007199254740992}"#));
    let mut call = with(&call, "proof", json!(keys.sign(&claims)));
    call["intent"]["arguments"] = json!({ "n": 9_007_199_254_740_993_u64 });
    let response = client.rpc("a2g/execute", &call);
    assert!(expect_blocked(&response, "verdict_mismatch").contains("9007199254740993"), "{response}");
    assert_eq!(runs(&executor), 0);
}

#[test]
fn sighup_adds_and_removes_trusted_keys() {
    let keys = Keys::new();
    let mut executor = Executor::start(trusting(&keys));
    let mut client = executor.client();
    result(&client.rpc("a2g/execute", &keys.proven(append())));
    let hang_up = |executor: &mut Executor, says: &str| {
        executor.process().hang_up();
        executor.line_with(says);
    };
    let file = std::fs::read_dir(keys.trusted_folder()).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    hang_up(&mut executor, r#""message":"trusted keys reloaded","keys":0"#);
    let response = client.rpc("a2g/execute", &keys.proven(append()));
    assert!(expect_blocked(&response, "verdict_untrusted").contains("trusts no key"), "{response}");
    std::fs::write(&file, &text).unwrap();
    hang_up(&mut executor, r#""message":"trusted keys reloaded","keys":1"#);
    result(&client.rpc("a2g/execute", &keys.proven(append())));
    // A folder that cannot be read as a whole is no reason to go on believing what was in it.
    std::fs::write(keys.trusted_folder().join("broken.jwk"), "{}").unwrap();
    hang_up(&mut executor, "no key is trusted");
    let response = client.rpc("a2g/execute", &keys.proven(append()));
    assert!(expect_blocked(&response, "verdict_untrusted").contains("trusts no key"), "{response}");
    assert_eq!(runs(&executor), 2);
}

#[test]
fn every_refused_call_is_logged_with_its_reason() {
    let keys = Keys::new();
    let executor = Executor::start(trusting(&keys));
    let mut client = executor.client();
    let call = append();
    let wrong = keys.sign(&with(&claims(&call), "aud", json!("did:a2g:executor:1.0:other")));
    expect_blocked(&client.rpc("a2g/execute", &with(&call, "proof", json!(wrong))), "verdict_mismatch");
    let line = executor.line_with("verdict_mismatch");
    for part in
        ["WARN", r#""message":"refused""#, AGENT, call["intent"]["intent_id"].as_str().unwrap(), "write_file"]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    expect_blocked(&client.rpc("a2g/execute", &call), "verdict_untrusted");
    executor.line_with("verdict_untrusted");
    let denied = client.rpc("a2g/intent", &intent("write_file", json!({ "path": "/etc/x", "content": "" })));
    expect_blocked(&denied, "verdict_denied");
    executor.line_with("verdict_denied");
    expect_blocked(&client.rpc("g2a/revoke", &json!({ "agent_did": AGENT })), "caller_unauthorized");
    // A flood of them does not become a flood of lines.
    let lines = || executor.stderr().matches("verdict_untrusted").count();
    let before = lines();
    for _ in 0..2000 {
        client.rpc("a2g/execute", &call);
    }
    eventually("the flood is counted", || {
        client.rpc("a2g/execute", &call);
        executor.stderr().contains("\"left_out\":").then_some(())
    });
    assert!(lines() - before < 1900, "{}", lines() - before);
}

#[test]
fn proofs_are_verified_even_if_unsigned_verdicts_are_accepted() {
    let keys = Keys::new();
    let executor = Executor::start(with_leave(&keys));
    let mut client = executor.client();
    result(&client.rpc("a2g/execute", &append()));
    let call = append();
    let wrong = keys.sign(&with(&claims(&call), "sub", json!("did:aeon:other:1.0:x")));
    expect_blocked(&client.rpc("a2g/execute", &with(&call, "proof", json!(wrong))), "verdict_mismatch");
    assert_eq!(runs(&executor), 1);
}

#[test]
fn an_approved_escalation_is_still_bound_to_its_module() {
    let keys = Keys::new();
    let executor = Executor::start(with_leave(&keys));
    let mut client = executor.client();
    let mut call = append();
    call["verdict"]["verdict"] = json!("ESCALATE");
    let other = keys.sign(&with(&claims(&call), "tool_sha256", json!(sha256("another module"))));
    let call = with(&call, "proof", json!(other));
    expect_blocked(&client.rpc("a2g/execute", &call), "escalation_pending");
    let directive = json!({ "intent_id": id_of(&call), "decision": "APPROVED" });
    expect_blocked(&client.rpc("g2a/directive", &directive), "verdict_mismatch");
    assert_eq!(runs(&executor), 0);
}

// --- keys ---

fn fails(arguments: &[&str]) -> String {
    let output = run(arguments.iter().copied());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    stderr
}

#[test]
fn key_commands_never_print_a_private_key() {
    let keys = Keys::new();
    let pair = keys.pair();
    let trusted = keys.trusted_folder();
    let pair = pair.to_str().unwrap();
    let trusted = trusted.to_str().unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(std::fs::metadata(pair).unwrap().mode() & 0o777, 0o600);

    let shown = String::from_utf8(succeeds(&["key", "show", pair])).unwrap();
    assert!(shown.contains(keys.id()) && shown.contains(ISSUER), "{shown}");
    let json: Value = serde_json::from_slice(&succeeds(&["key", "show", "--json", pair])).unwrap();
    assert_eq!(json["kid"], keys.id());
    assert_eq!((json["kty"].as_str(), json["crv"].as_str()), (Some("OKP"), Some("Ed25519")));
    let list = String::from_utf8(succeeds(&["key", "list", "--keys", trusted])).unwrap();
    assert!(list.contains(keys.id()) && list.contains(ISSUER), "{list}");
    let list: Value =
        serde_json::from_slice(&succeeds(&["key", "list", "--json", "--keys", trusted])).unwrap();
    assert_eq!(list, json!([json]));
    assert!(![shown, list.to_string(), json.to_string()].iter().any(|text| text.contains(&keys.private())));

    // A file that is there stays as it is.
    let before = std::fs::read(pair).unwrap();
    assert!(fails(&["key", "new", pair, "--issuer", ISSUER]).contains("exists already"));
    assert_eq!(std::fs::read(pair).unwrap(), before);
    // To trust a key again changes nothing.
    succeeds(&["key", "trust", &json.to_string(), "--keys", trusted]);
    assert_eq!(std::fs::read_dir(trusted).unwrap().count(), 1);
    // A private key is not trusted, nor is one for another issuer as well, nor one that speaks for nobody.
    assert!(fails(&["key", "trust", pair, "--keys", trusted]).contains("private key"));
    let twice = with(&json, "iss", json!("did:a2g:governor:1.0:another")).to_string();
    assert!(fails(&["key", "trust", &twice, "--keys", trusted]).contains("another trusted key"));
    let mut nobody = json.clone();
    nobody.as_object_mut().unwrap().remove("iss");
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().join("keys");
    let folder = folder.to_str().unwrap();
    let trust = ["key", "trust", &nobody.to_string(), "--keys", folder];
    assert!(fails(&trust).contains("--issuer"));
    succeeds(&[&trust[..], &["--issuer", "https://governor.example"]].concat());
    let list = String::from_utf8(succeeds(&["key", "list", "--keys", folder])).unwrap();
    assert!(list.contains("https://governor.example"), "{list}");

    // A key that others can read is not used.
    set_mode(std::path::Path::new(pair), 0o640);
    for arguments in [vec!["key", "show", pair], vec!["governor", "--listen", "127.0.0.1:0", "--key", pair]] {
        let says = fails(&arguments);
        assert!(says.contains("chmod 600") && !says.contains(&keys.private()), "{says}");
    }
}

#[test]
fn keys_exposed_to_others_or_to_guests_prevent_the_start() {
    let keys = Keys::new();
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("executor.toml");
    let tools = tools();
    let check = |trust: &Value, scope: &str| {
        let text = json!({
            "executor": { "did": EXECUTOR },
            "catalog": { "tools": tools, "cache": cache() },
            "ceilings": { "filesystem_scope": [scope] },
            "trust": trust,
        });
        std::fs::write(&config, toml::to_string(&text).unwrap()).unwrap();
        let output = run(["config", "check", "--config", config.to_str().unwrap()]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let secret = "00".repeat(31) + "ff";
    let key_file = place.path().join("agents.key");
    std::fs::write(&key_file, &secret).unwrap();
    set_mode(&key_file, 0o600);
    let signature = json!({ "key_file": key_file, "key_form": "ascii", "escape_non_ascii": true });
    let trust = json!({ "keys": keys.trusted_folder(), "intent_signature": signature });

    let (code, says) = check(&trust, "/workspace/**");
    assert_eq!(code, Some(0), "{says}");
    assert!(says.contains("trusted: 1") && says.contains("agents.key") && !says.contains(&secret), "{says}");
    let refused = |trust: &Value, scope: &str, words: &str| {
        let (code, says) = check(trust, scope);
        assert!(code == Some(2) && says.contains(words) && !says.contains(&secret), "{trust}: {says}");
    };
    let holding = |folder: &Path| format!("{}/**", folder.display());
    refused(&trust, &holding(keys.trusted_folder().parent().unwrap()), "trusted");
    refused(&trust, &holding(place.path()), "agents.key");
    for wrong in [
        json!({ "keys": place.path().join("missing") }),
        json!({ "max_proof_seconds": 0 }),
        json!({ "intent_signature": { "key_file": key_file } }),
        json!({ "intent_signature": with(&signature, "key_form", json!("hex")) }),
    ] {
        refused(&wrong, "/workspace/**", "");
    }
    let (code, says) =
        check(&json!({ "intent_signature": with(&signature, "key", json!(secret)) }), "/workspace/**");
    assert_eq!(code, Some(2), "{says}");
    set_mode(&key_file, 0o644);
    refused(&trust, "/workspace/**", "chmod 600");
    set_mode(&key_file, 0o600);
    set_mode(&keys.trusted_folder(), 0o777);
    refused(&trust, "/workspace/**", "other users may change it");
}

// --- signed intents ---

/// HMAC-SHA256 by its definition (RFC 2104), for a key of at most 64 bytes.
fn hmac(key: &[u8], text: &str) -> String {
    let pad = |with: u8| (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect::<Vec<u8>>();
    let bytes = |hex: &str| -> Vec<u8> {
        (0..32).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    };
    let inner = sha256([pad(0x36), text.as_bytes().to_vec()].concat());
    sha256([pad(0x5c), bytes(&inner)].concat())
}

#[test]
fn intents_must_be_signed_if_the_operator_requires_it() {
    let place = tempfile::tempdir().unwrap();
    let key_file = place.path().join("agents.key");
    let secret = "0123456789abcdef".repeat(4);
    std::fs::write(&key_file, format!("{secret}\n")).unwrap();
    set_mode(&key_file, 0o600);
    let signature = json!({ "key_file": key_file, "key_form": "ascii", "escape_non_ascii": false });
    let executor = Executor::start(Options::new().signed_only().set("trust.intent_signature", signature));
    let mut client = executor.client();
    let sign = |mut intent: Value, seconds: i64| {
        let at = (time::OffsetDateTime::now_utc().unix_timestamp() + seconds) * 1000;
        let nonce = uuid::Uuid::new_v4().to_string();
        let agent = &intent["agent_did"];
        let id = &intent["intent_id"];
        let text = format!(
            r#"{{"agent_did":{agent},"arguments":{{"content":"ü","path":"/workspace/log"}},"intent_id":{id},"tool":"write_file"}}"#
        );
        let hash = hmac(secret.as_bytes(), &format!("{at}:{nonce}:{text}"));
        intent["context"] =
            json!({ "signature": { "timestamp": at.to_string(), "nonce": nonce, "hash": hash } });
        intent
    };
    let ask = || intent("write_file", json!({ "path": "/workspace/log", "content": "ü" }));

    expect_blocked(&client.rpc("a2g/intent", &ask()), "intent_untrusted");
    for seconds in [-301, 310] {
        let response = client.rpc("a2g/intent", &sign(ask(), seconds));
        assert!(expect_blocked(&response, "intent_untrusted").contains("5 minutes"), "{response}");
    }
    let good = sign(ask(), 0);
    for (pointer, value) in
        [("/intent_id", json!(intent_id())), ("/arguments/path", json!("/workspace/elsewhere"))]
    {
        let mut other = good.clone();
        *other.pointer_mut(pointer).unwrap() = value;
        expect_blocked(&client.rpc("a2g/intent", &other), "intent_untrusted");
    }
    executor.assert_workspace_is_empty("unsigned intents");

    let response = client.rpc("a2g/intent", &good);
    assert_eq!(result(&response)["report"]["status"], "SUCCESS", "{response}");
    expect_blocked(&client.rpc("a2g/intent", &good), "intent_replayed");
    // A repeated intent with a new signature is answered from the record.
    let again = sign(good, 1);
    assert_eq!(result(&client.rpc("a2g/intent", &again)), result(&response));
    executor.line_with("intent_replayed");
    assert!(!executor.stderr().contains(&secret));
}
