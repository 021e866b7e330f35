//! JSON Web Tokens of callers: which issuers are trusted, for which subjects, for how long, and at
//! which doors.

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use harness::a2a;
use harness::callers::{List, agent, ask, assert_unusable, bearer, rpc};
use harness::console::Client;
use harness::jwt::{
    DID, ISSUER, Key, Provider, add_agent, add_subject, claims, header, now, rsa_jwk, signed_by_rsa,
    unsigned_token, with,
};
use harness::mcp;
use harness::methods::write;
use harness::nexus;
use harness::{
    A2ePeer as _, A2eSession, AGENT, Catalogue, Executor, Exposition, HttpAnswer, Options, StdioClient, Tool,
    WebSocketClient, a2e_call, a2e_handshake, eventually, intent, intent_id, result, saying, set_mode,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::signature::RSA_PKCS1_SHA512;
use serde_json::{Value, json};
use sha2::Sha256;

const TOOLS: &[u8] = br#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#;

/// The status of a request with a token.
fn status(executor: &Executor, token: &str) -> u16 {
    ask(&mut executor.client(), Some(&bearer(token)), "a2g/tools", &json!({})).status
}

/// The challenge to a client whose token was valid until it expired; others are not told why theirs is refused.
const EXPIRED: &str = r#"Bearer error="invalid_token", error_description="this credential expired at 20"#;

fn challenge(answer: &HttpAnswer) -> &str {
    let asks = answer.headers.iter().find(|(name, _)| name == "www-authenticate");
    asks.map_or("", |(_, asks)| asks)
}

#[test]
fn tokens_of_each_key_type_authenticate_their_listed_subject() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    add_subject(&list, "an-operator", "auth0|otto", &["--role", "operator"]);
    let executor = Executor::start(provider.options(&list).signed_only());
    let mut client = executor.client();
    for key in &provider.keys {
        let token = key.token(&header(key).to_string(), &claims("anna").to_string());
        let call = intent("write_file", write(key.algorithm(), "x"));
        let answer = rpc(&mut client, &token, "a2g/intent", &call);
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
        assert_eq!(executor.file(key.algorithm()).as_deref(), Some("x"));
        // Also valid: a list of audiences, the type of access tokens, and a header without `kid`.
        let others = with(claims("anna"), "aud", json!(["https://other.example", DID]));
        let token =
            key.token(&json!({ "alg": key.algorithm(), "typ": "at+jwt" }).to_string(), &others.to_string());
        assert_eq!(ask(&mut client, Some(&bearer(&token)), "a2g/tools", &json!({})).status, 200);
        let metrics = client.request("GET", "/metrics", &[("Authorization", &bearer(&token))], b"");
        assert_eq!(metrics.status, 403, "roles come from the list of callers");
    }
    let operator =
        bearer(&provider.token(&with(claims("auth0|otto"), "roles", json!(["agent", "governor"]))));
    assert_eq!(client.request("GET", "/metrics", &[("Authorization", &operator)], b"").status, 200);
    let call = intent("write_file", write("no", "x"));
    let answer = ask(&mut client, Some(&operator), "a2g/intent", &call).json();
    assert_eq!(answer["error"]["data"]["blocked_by"], "caller_unauthorized", "{answer}");
}

/// A tool list in the form of code contains only the tools in the scope of the token. The request
/// for the list needs no scope of its own.
#[test]
fn a_code_listing_contains_only_the_tools_in_the_scope_of_a_token() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let tool = |name: &str| Tool::command(name, &saying(1, "{}", 0));
    let catalogue = Catalogue::empty().add(tool("read_file")).add(tool("write_file"));
    let options = provider.options(&list).catalogue(&catalogue);
    let mut executor = Executor::start(options.set("doors.mcp", json!({ "listing": "code" })));
    executor.process().line_with("all tools are prepared");
    let token = provider.token(&with(claims("anna"), "scope", json!("tools:read_file")));
    let asked = mcp::call(1, "describe_tools", &json!({ "query": "file" }));
    let authorization = bearer(&token);
    let answer = mcp::post(&mut executor.client(), &asked, &[("Authorization", &authorization)]).json();
    assert_eq!(answer["result"]["structuredContent"]["described"], json!(["read_file"]), "{answer}");
    assert!(!answer.to_string().contains("write_file"), "{answer}");
    let params = json!({ "listing": "code", "query": "file" });
    let answer = rpc(&mut executor.client(), &token, "a2g/tools", &params);
    assert_eq!(answer["result"]["described"], json!(["read_file"]), "{answer}");
}

/// The MCP door tells clients where tokens come from, and the scope of a token narrows its tools at every door.
#[test]
fn a_token_reaches_the_tools_of_its_scope() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    add_subject(&list, "boss", "boss", &["--role", "approver"]);
    add_subject(&list, "governor", "governor", &["--role", "governor"]);
    add_subject(&list, "operator", "operator", &["--role", "operator"]);
    let executor = Executor::start(provider.options(&list).signed_only());
    let mut client = executor.client();
    let call = |token: Option<&str>, tool: &str, arguments: &Value| {
        let shown = token.map(bearer);
        let authorization = shown.iter().map(|shown| ("Authorization", &**shown)).collect::<Vec<_>>();
        mcp::post(&mut executor.client(), &mcp::call(1, tool, arguments), &authorization)
    };
    let path = "/.well-known/oauth-protected-resource/mcp";
    let metadata = client.request("GET", path, &[], b"");
    assert_eq!(metadata.json()["authorization_servers"], json!([ISSUER]), "{}", metadata.text());
    let url = format!("http://{}", executor.address());
    assert_eq!(metadata.json()["resource"], format!("{url}/mcp"));
    let unknown = call(None, "write_file", &write("a", "x"));
    let pointer = format!("resource_metadata=\"{url}{path}\"");
    assert_eq!((unknown.status, challenge(&unknown)), (401, &*format!("Bearer {pointer}")));

    let scoped = |scope: &str| provider.token(&with(claims("anna"), "scope", json!(scope)));
    for (scope, reaches) in [
        ("openid", true),
        ("openid tools:*", true),
        ("tools:write_file tools:x", true),
        ("tools:read_file", false),
    ] {
        let token = scoped(scope);
        let answer = call(Some(&token), "write_file", &write("a", "x"));
        let listed = mcp::post(
            &mut client,
            &mcp::request(2, "tools/list", json!({})),
            &[("Authorization", &bearer(&token))],
        );
        assert_eq!(listed.text().contains("write_file"), reaches, "{scope}");
        let intent = rpc(&mut client, &token, "a2g/intent", &intent("write_file", write("b", "x")));
        assert_eq!(intent.get("result").is_some(), reaches, "{scope}: {intent}");
        if reaches {
            assert_eq!(answer.json()["result"]["isError"], false, "{scope}: {}", answer.text());
            std::fs::remove_file(executor.workspace().join("a")).unwrap();
            std::fs::remove_file(executor.workspace().join("b")).unwrap();
        } else {
            let expected =
                format!("Bearer error=\"insufficient_scope\", scope=\"tools:write_file\", {pointer}");
            assert_eq!((answer.status, challenge(&answer)), (403, &*expected), "{}", answer.text());
            assert_eq!(intent["error"]["data"]["blocked_by"], "caller_unauthorized", "{intent}");
            executor.assert_workspace_is_empty(scope);
        }
    }
    // A token that is limited to some tools cannot decide on calls, either.
    let directive = json!({ "intent_id": intent_id(), "decision": "APPROVED" });
    for (scope, code) in [("tools:read_file", -32000), ("openid", -32602)] {
        let token = provider.token(&with(claims("boss"), "scope", json!(scope)));
        let answer = rpc(&mut client, &token, "g2a/directive", &directive);
        assert_eq!(answer["error"]["code"], code, "{scope}: {answer}");
    }
    // Nor does it send what concerns other tools as well.
    let other = "did:aeon:other:1.0:b";
    let policy = json!({ "agent_did": other, "version": "1", "capabilities": { "tools": {} } });
    let stop = json!({ "target": { "agent_did": other }, "reason": "a test" });
    for (subject, method, params) in [
        ("operator", "a2g/stop", &stop),
        ("governor", "g2a/policy", &policy),
        ("governor", "g2a/revoke", &json!({ "agent_did": other })),
    ] {
        for (scope, is_accepted) in [("tools:read_file", false), ("openid", true)] {
            let token = provider.token(&with(claims(subject), "scope", json!(scope)));
            let answer = rpc(&mut client, &token, method, params);
            assert_eq!(answer.get("result").is_some(), is_accepted, "{method}, {scope}: {answer}");
            let refused = answer["error"]["data"]["blocked_by"] == "caller_unauthorized";
            assert_eq!(refused, !is_accepted, "{method}, {scope}: {answer}");
        }
    }
    // If the request target contains a host, another one in the `Host` field is neither checked nor
    // repeated.
    let url = format!("http://localhost{path}");
    let answer = client.request("GET", &url, &[("Host", "evil.example")], b"");
    assert!(!answer.text().contains("evil"), "{}", answer.text());
    let wrong = provider.token(&with(claims("anna"), "scope", json!(["tools:*"])));
    assert_eq!(call(Some(&wrong), "write_file", &write("a", "x")).status, 401);
}

/// Each token is refused. The answer does not contain the reason, but the log does.
#[test]
fn unknown_credentials_are_rejected_and_logged() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let operator = list.add("operator", &["--role", "operator"]);
    let executor = Executor::start(provider.options(&list).signed_only());
    let [ed25519, p256, rsa] = &provider.keys;
    let stranger = Key::ed25519();
    let good = claims("anna");
    let by = |key: &Key, header: &Value, claims: &Value| key.token(&header.to_string(), &claims.to_string());
    let usual = header(ed25519);
    let with_claim = |member: &str, value: Value| by(ed25519, &usual, &with(good.clone(), member, value));
    let with_header = |member: &str, value: Value| by(ed25519, &with(usual.clone(), member, value), &good);
    let text = good.to_string();
    let whole = by(ed25519, &usual, &good);
    let (front, signature) = whole.rsplit_once('.').unwrap();
    // Uses the public key as the secret of an HMAC, in each form in which a verifier might do so.
    let confused = |key: &Key, secret: &[u8], kid: &str| {
        let signed = unsigned_token(&json!({ "alg": "HS256", "kid": kid }).to_string(), &text);
        let mac = Hmac::<Sha256>::new_from_slice(secret).unwrap().chain_update(&signed);
        assert_eq!(key.algorithm(), kid);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    };
    let raw = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
    let x = ed25519.jwk("")["x"].as_str().unwrap().to_owned();
    let Key::Rsa(pair) = rsa else { unreachable!("the third is RSA") };
    let signed_token = |signed: String, signature: &dyn Fn(&[u8]) -> Vec<u8>| {
        let signature = URL_SAFE_NO_PAD.encode(signature(signed.as_bytes()));
        format!("{signed}.{signature}")
    };
    let rs512 = unsigned_token(&json!({ "alg": "RS256", "kid": "RS256" }).to_string(), &text);
    let rs512 = signed_token(rs512, &|signed| signed_by_rsa(pair, &RSA_PKCS1_SHA512, signed));
    // An ECDSA signature in ASN.1, as in X.509, instead of the form of fixed length of JWS.
    let der = signed_token(unsigned_token(&header(p256).to_string(), &text), &|signed| {
        let fixed = p256.sign(signed);
        let integer = |half: &[u8]| [&[2, 33, 0], half].concat();
        let both = [integer(&fixed[..32]), integer(&fixed[32..])].concat();
        [&[0x30, 70], &both[..]].concat()
    });
    let last = signature.chars().next_back().unwrap();
    let leftover = if last == 'A' { 'B' } else { char::from(u8::try_from(u32::from(last)).unwrap() + 1) };
    let long = with(good.clone(), "scope", json!("x".repeat(8000)));
    let no_end = json!({ "iss": ISSUER, "sub": "anna", "aud": DID });
    let unsigned = |header: &str| format!("{}.", unsigned_token(header, &text));
    let with_key_name = |key: &Key, alg: &str, kid: &str| by(key, &json!({ "alg": alg, "kid": kid }), &good);
    let twice = |text: &str, member: &str| text.replacen('{', &format!(r#"{{"{member}":"x","#), 1);
    let header_twice = twice(&usual.to_string(), "kid");
    let claims_twice = twice(&text, "sub");
    let brought = with(usual.clone(), "jwk", stranger.jwk("EdDSA"));
    let by_address = json!({ "alg": "EdDSA", "kid": "x", "jku": "https://a.example" });
    let other = unsigned_token(&usual.to_string(), &with(good.clone(), "sub", json!("x")).to_string());
    let other_did = json!("did:a2g:executor:1.0:other");
    let n = raw(rsa_jwk()["n"].as_str().unwrap());
    let as_json = rsa.jwk("RS256").to_string();
    let alg = "`alg` must be one of";
    let mismatch = "its signature does not match";
    let cases = [
        ("alg none", unsigned(r#"{"alg":"none"}"#), alg),
        ("alg none, named key", unsigned(r#"{"alg":"none","kid":"EdDSA"}"#), alg),
        ("no signature", format!("{front}."), mismatch),
        ("HS256, Ed25519", confused(ed25519, &raw(&x), "EdDSA"), alg),
        ("HS256, RSA", confused(rsa, &n, "RS256"), alg),
        ("HS256, JSON", confused(rsa, as_json.as_bytes(), "RS256"), alg),
        ("RS256 for a key of P-256", with_key_name(p256, "RS256", "ES256"), "has the key `ES256` for RS256"),
        ("ES256 for an RSA key", with_key_name(rsa, "ES256", "RS256"), "has the key `RS256` for ES256"),
        ("RS512 under RS256", rs512, mismatch),
        ("ECDSA in ASN.1", der, mismatch),
        ("a stranger's key", by(&stranger, &usual, &good), mismatch),
        ("a stranger's key, brought along", by(&stranger, &brought, &good), mismatch),
        ("an unknown key", with_header("kid", json!("EdDSA ")), "has the key `EdDSA ` for EdDSA"),
        ("a key by address", by(&stranger, &by_address, &good), "has the key `x`"),
        ("another key's name", with_key_name(ed25519, "EdDSA", "ES256"), "has the key `ES256` for EdDSA"),
        ("two names", ed25519.token(&header_twice, &text), "duplicate key `kid`"),
        ("crit", with_header("crit", json!(["exp"])), "`crit`: this executor supports no extension"),
        ("another type", with_header("typ", json!("JOSE")), "`typ` must be one of"),
        ("expired", with_claim("exp", json!(now() - 1)), "it expired at"),
        ("without an end", by(ed25519, &usual, &no_end), "`exp` is missing"),
        ("an end as text", with_claim("exp", json!("9999999999")), "`exp` must be an integer"),
        ("not yet", with_claim("nbf", json!(now() + 90)), "not valid before"),
        ("from the future", with_claim("iat", json!(now() + 90)), "not valid before"),
        ("another audience", with_claim("aud", other_did), "for another audience than `did:a2g"),
        ("no audience", with_claim("aud", json!([])), "for another audience"),
        (
            "another issuer",
            with_claim("iss", json!("https://id.example/")),
            "its issuer is `https://id.example/`, to which its key",
        ),
        (
            "an unlisted subject",
            with_claim("sub", json!("Anna")),
            "no caller is listed for the subject `Anna`",
        ),
        ("no subject", with_claim("sub", json!("")), "no caller is listed for the subject ``"),
        ("two subjects", ed25519.token(&usual.to_string(), &claims_twice), "duplicate key `sub`"),
        (
            "bits left over",
            format!("{}{leftover}", &whole[..whole.len() - 1]),
            "not three parts in base64url",
        ),
        (
            "padding",
            format!("{front}.{}", URL_SAFE.encode(ed25519.sign(front.as_bytes()))),
            "not three parts",
        ),
        ("other claims", format!("{other}.{signature}"), mismatch),
        ("too long", by(ed25519, &usual, &long), "but at most 8192 are accepted"),
    ];
    let mut client = executor.client();
    for (what, token, words) in &cases {
        let answer =
            ask(&mut client, Some(&bearer(token)), "a2g/intent", &intent("write_file", write("x", "x")));
        assert_eq!(answer.status, 401, "{what}: {}", answer.text());
        if *what == "expired" {
            assert!(challenge(&answer).starts_with(EXPIRED), "{answer:?}");
            assert!(answer.text().ends_with("Z: get a new one\n"), "{}", answer.text());
        } else {
            assert_eq!(challenge(&answer), r#"Bearer error="invalid_token""#, "{what}");
            assert!(answer.text().starts_with("show a token"), "{what}: {}", answer.text());
        }
        assert!(!answer.text().contains(words), "{what}: {}", answer.text());
        let line = executor.line_with(words);
        assert!(line.contains("authentication failed"), "{what}: {line}");
        assert!(WebSocketClient::upgrade(executor.address(), &[("Authorization", &bearer(token))]).is_err());
        // Each token logs two lines. The log accepts 50 lines at once, and then one every 20 ms.
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    executor.assert_workspace_is_empty("rejected tokens");
    assert_eq!(status(&executor, &whole), 200, "the valid token is accepted");
    // Each token was sent over HTTP and over a WebSocket.
    let figures = executor.client().request("GET", "/metrics", &[("Authorization", &bearer(&operator))], b"");
    let figures = Exposition::read(&figures.text());
    for (reason, tokens) in
        [("signature", 6.0), ("expired", 1.0), ("claims", 3.0), ("unlisted", 2.0), ("too_long", 1.0)]
    {
        let series = format!("a2g_refused_tokens_total{{reason=\"{reason}\"}}");
        assert!(figures.is(&series, 2.0 * tokens), "{reason}: {}", figures.value(&series));
    }
    let log = executor.stderr();
    for (what, token, _) in &cases {
        let parts = token.split('.').filter(|part| part.len() > 12);
        parts.for_each(|part| assert!(!log.contains(part), "{what}: a token is in the log"));
    }
}

#[test]
fn invalid_or_writable_key_files_are_refused() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let refused = assert_unusable;
    set_mode(&provider.path(), 0o666);
    refused(provider.options(&list), "other users may change it");
    set_mode(&provider.path(), 0o644);
    set_mode(provider.folder.path(), 0o777);
    refused(provider.options(&list), "other users may change it");
    set_mode(provider.folder.path(), 0o755);
    let one = provider.keys[0].jwk("one");
    for (file, words) in [
        (json!({ "keys": [one, provider.keys[1].jwk("one")] }).to_string(), "two keys have the id `one`"),
        (with(one.clone(), "d", one["x"].clone()).to_string(), "private key"),
        (json!({ "keys": [] }).to_string(), "it contains no key that verifies tokens"),
        ("nothing".to_owned(), "not JSON"),
    ] {
        std::fs::write(provider.path(), file).unwrap();
        refused(provider.options(&list), words);
    }
    std::fs::remove_file(provider.path()).unwrap();
    refused(provider.options(&list), "jwks.json");
    // A file with a single key, and an audience that the operator has configured.
    std::fs::write(provider.path(), one.to_string()).unwrap();
    let issuer = json!([{ "issuer": ISSUER, "keys": provider.path(), "audience": "tools" }]);
    let executor = Executor::start(provider.options(&list).set("server.issuer", issuer));
    let header = json!({ "alg": "EdDSA", "kid": "one" }).to_string();
    let token = |audience: &str| {
        provider.keys[0].token(&header, &with(claims("anna"), "aud", json!(audience)).to_string())
    };
    assert_eq!((status(&executor, &token("tools")), status(&executor, &token(DID))), (200, 401));
}

#[test]
fn a_subject_is_valid_only_for_its_own_issuer() {
    let ours = Provider::new();
    let theirs = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let issuers = json!([
        { "issuer": ISSUER, "keys": ours.path() },
        { "issuer": "https://other.example", "keys": theirs.path() },
    ]);
    let executor = Executor::start(ours.options(&list).set("server.issuer", issuers));
    assert_eq!(status(&executor, &ours.token(&claims("anna"))), 200);
    // Tokens signed by one issuer that claim to be of the other.
    assert_eq!(status(&executor, &theirs.token(&claims("anna"))), 401);
    executor.line_with("its issuer is `https://id.example`, to which its key");
    // A subject of the same name is somebody else.
    assert_eq!(
        status(&executor, &theirs.token(&with(claims("anna"), "iss", json!("https://other.example")))),
        401
    );
    executor.line_with("for the subject `anna` of the issuer `https://other.example`");
}

#[test]
fn tokens_of_a_removed_key_are_rejected() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let kept = agent(&list, "kept", AGENT);
    let mut executor = Executor::start(provider.options(&list));
    let address = executor.address();
    let [first, second] = [0, 1].map(|nth: usize| {
        let key = &provider.keys[nth];
        key.token(&header(key).to_string(), &claims("anna").to_string())
    });
    let mut socket = WebSocketClient::upgrade(address, &[("Authorization", &bearer(&first))]).unwrap();
    socket.send(TOOLS);
    assert!(socket.receive().unwrap().contains("write_file"));
    assert_eq!((status(&executor, &first), status(&executor, &second)), (200, 200));

    provider.publish(&["ES256"]);
    executor.process().hang_up();
    executor.line_with("\"callers\":2,\"keys\":1");
    assert_eq!(
        (status(&executor, &first), status(&executor, &second), status(&executor, &kept)),
        (401, 200, 200)
    );
    socket.send(TOOLS);
    assert_eq!(socket.receive(), None, "it is closed without an answer");

    // If the file cannot be read, no key is in force. Callers without a JSON Web Token are
    // unaffected.
    std::fs::write(provider.path(), "{").unwrap();
    executor.process().hang_up();
    executor.line_with("all JSON Web Tokens are rejected until the keys of all issuers can be read again");
    eventually("the keys are no longer in force", || (status(&executor, &second) == 401).then_some(()));
    assert_eq!(status(&executor, &kept), 200);
    executor.line_with("no issuer's keys are loaded");

    provider.publish(&["EdDSA", "ES256"]);
    executor.process().hang_up();
    eventually("the keys are there again", || (status(&executor, &first) == 200).then_some(()));

    // A subject whose entry is removed is rejected, although its provider still vouches for it.
    list.remove("anna");
    executor.process().hang_up();
    eventually("the list is read again", || (status(&executor, &first) == 401).then_some(()));
    executor.line_with("no caller is listed for the subject `anna`");
}

#[test]
fn expired_tokens_are_rejected_even_on_an_open_web_socket() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let executor = Executor::start(provider.options(&list));
    let until = now() + 3;
    let token = bearer(&provider.token(&with(claims("anna"), "exp", json!(until))));
    let mut socket = WebSocketClient::upgrade(executor.address(), &[("Authorization", &token)]).unwrap();
    socket.send(TOOLS);
    assert!(socket.receive().unwrap().contains("write_file"));
    let answered = eventually("the WebSocket is closed", || {
        let before = now();
        socket.send(TOOLS);
        socket.receive().is_none().then_some(before)
    });
    assert!(answered + 1 >= until && socket.closed_with == Some(1008), "{:?}", socket.closed_with);
    executor.line_with("it expired at");
    assert_eq!(ask(&mut executor.client(), Some(&token), "a2g/tools", &json!({})).status, 401);
}

/// A session of the console stores the token, and is identified by it again and again.
#[test]
fn a_session_of_the_console_ends_with_its_token_or_its_key() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let mut executor = Executor::start(provider.options(&list));
    let until = now() + 4;
    let [short, long] = [until, now() + 300]
        .map(|end| Client::with_token(&executor, &provider.token(&with(claims("anna"), "exp", json!(end)))));
    assert_eq!((short.get("/console/runs").0, long.get("/console/runs").0), (200, 200));
    let ended = eventually("the token expires", || {
        let before = now();
        (short.get("/console/runs").0 == 303).then_some(before)
    });
    assert!(ended + 1 >= until, "it ended early");
    assert_eq!(long.get("/console/runs").0, 200);
    provider.publish(&["ES256"]);
    executor.process().hang_up();
    eventually("its key is removed", || (long.get("/console/runs").0 == 303).then_some(()));
    // The session does not come back with its key.
    provider.publish(&["EdDSA", "ES256"]);
    executor.process().hang_up();
    let again = eventually("the key is there again", || {
        let token = provider.token(&claims("anna"));
        (status(&executor, &token) == 200).then(|| Client::with_token(&executor, &token))
    });
    assert_eq!((long.get("/console/runs").0, again.get("/console/runs").0), (303, 200));
}

#[test]
fn every_door_accepts_web_tokens_as_bearer_tokens() {
    const AGENTS: [nexus::Agent; 1] =
        [nexus::Agent { id: "planner", secret: "planner-secret-0123456789abcdef-0123", key: [1; 32] }];
    let provider = Provider::new();
    let list = List::new();
    let keys = nexus::Keys::of(&AGENTS);
    add_subject(&list, "anna", "anna", &["--role", "agent", "--agent", "*"]);
    // The `id` is the recipient of the messages that this agent signs.
    let nexus = json!({ "key_file": keys.path(), "id": "did:a2g:executor:1.0:local" });
    let options = provider.options(&list).set("doors.nexus", nexus);
    let executor = Executor::start(options.signed_only());
    let mut client = executor.client();
    let token = provider.token(&claims("anna"));
    let expired = provider.token(&with(claims("anna"), "exp", json!(now() - 1)));
    let rpc = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {} }).to_string();
    let run = json!({ "jsonrpc": "3.0", "id": "1", "method": "x/y", "params": {} }).to_string();
    let command = AGENTS[0].execute("write_file", write("nexus", "x")).to_string();
    for (path, body) in
        [("/a2a/rpc", &rpc), ("/run", &run), ("/nexus", &command), ("/a2e/session", &String::new())]
    {
        let mut post = |shown: Option<(&str, String)>| {
            let mut headers = vec![("Content-Type", "application/json")];
            headers.extend(shown.iter().map(|(name, value)| (*name, value.as_str())));
            client.request("POST", path, &headers, body.as_bytes())
        };
        let nobody = post(None);
        assert_eq!((nobody.status, challenge(&nobody)), (401, "Bearer"), "{path}");
        let late = post(Some(("Authorization", bearer(&expired))));
        assert!(late.status == 401 && challenge(&late).starts_with(EXPIRED), "{path}: {late:?}");
        assert!(late.text().contains("this credential expired at 20"), "{path}: {}", late.text());
        assert_eq!(post(Some(("X-API-Key", expired.clone()))).status, 401, "{path}");
        for shown in [("Authorization", bearer(&token)), ("X-API-Key", token.clone())] {
            let answer = post(Some(shown));
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
    }
    assert_eq!(executor.file("nexus").as_deref(), Some("x"));

    let mut session = A2eSession::open(&executor, Some(&token));
    let late = session.ask(&a2e_handshake("planner", &expired));
    assert_eq!((&late["ok"], &late["reason"]), (&json!(false), &json!("auth_failed")), "{late}");
    session.shake_hands("planner", &token);
    let answer = session.ask(&a2e_call("1", "write_file", write("a2e", "x")));
    assert_eq!(executor.file("a2e").as_deref(), Some("x"), "{answer}");

    let mut pipe = StdioClient::start_as("--a2e-stdio", provider.options(&list));
    assert_eq!(pipe.ask(&a2e_handshake("planner", &expired))["reason"], "auth_failed");
    pipe.shake_hands("planner", &token);
    assert!(!executor.stderr().contains(&token), "a token is in the log");
}

#[test]
fn a_session_continues_with_the_token_of_its_latest_handshake() {
    let provider = Provider::new();
    let list = List::new();
    add_subject(&list, "anna", "anna", &["--role", "agent", "--agent", "*"]);
    let executor = Executor::start(provider.options(&list));
    let short = provider.token(&with(claims("anna"), "exp", json!(now() + 3)));
    let long = provider.token(&claims("anna"));
    let mut renewed = A2eSession::open(&executor, Some(&short));
    renewed.shake_hands("planner", &long);
    let mut left = A2eSession::open(&executor, Some(&short));
    left.shake_hands("planner", "");
    eventually("it has expired", || (status(&executor, &short) == 401).then_some(()));
    assert_eq!(left.rest(), [] as [Value; 0], "its stream ends");
    renewed.as_seen_by(Some(&long)).tell(&a2e_call("1", "write_file", write("later", "x")));
    let (_, answer) = renewed.answer("1");
    assert_eq!(executor.file("later").as_deref(), Some("x"), "{answer}");
}

#[test]
fn the_agent_card_declares_web_tokens_if_they_are_accepted() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let card = |options: Options| {
        let executor = Executor::start(options);
        executor.client().request("GET", "/.well-known/agent-card.json", &[], b"").json()
    };
    let with = card(provider.options(&list));
    a2a::valid("AgentCard", &with);
    assert_eq!(with["securitySchemes"]["jwt"]["bearerFormat"], "JWT", "{with}");
    assert_eq!(with["security"], json!([{ "bearer": [] }, { "apiKey": [] }, { "jwt": [] }]));
    let without = card(list.options());
    assert_eq!(without["securitySchemes"].as_object().unwrap().len(), 2, "{without}");
}
