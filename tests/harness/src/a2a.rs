//! A client of the A2A door, whose answers are held against the schema of A2A 0.3.0, and a webhook that it notifies.

use super::{Executor, HttpAnswer, HttpClient, Options, eventually, intent_id, read_message, vectors};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};

/// The schema of A2A 0.3.0; `None` if its file is absent.
static SCHEMA: LazyLock<Option<Value>> = LazyLock::new(|| {
    let text = std::fs::read_to_string(vectors()?.join("a2a/a2a-0.3.0.schema.json")).ok()?;
    Some(serde_json::from_str(&text).unwrap())
});

/// Checks a value against one definition of the schema.
pub fn valid(definition: &str, value: &Value) {
    let Some(schema) = &*SCHEMA else { return };
    let mut schema = schema.clone();
    schema["$ref"] = json!(format!("#/definitions/{definition}"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong = validator.iter_errors(value).map(|error| error.to_string()).collect::<Vec<_>>();
    assert!(wrong.is_empty(), "{value} is no valid {definition}: {wrong:#?}");
}

/// The name of the schema's definition for the answers of a method.
pub fn definition(method: &str) -> &'static str {
    match method {
        "message/send" => "SendMessageResponse",
        "message/stream" | "tasks/resubscribe" => "SendStreamingMessageResponse",
        "tasks/get" | "tasks/provideInputAndContinue" => "GetTaskResponse",
        "tasks/cancel" => "CancelTaskResponse",
        "agent/getAuthenticatedExtendedCard" => "GetAuthenticatedExtendedCardResponse",
        "tasks/pushNotificationConfig/set" => "SetTaskPushNotificationConfigResponse",
        "tasks/pushNotificationConfig/get" => "GetTaskPushNotificationConfigResponse",
        "tasks/pushNotificationConfig/list" => "ListTaskPushNotificationConfigResponse",
        "tasks/pushNotificationConfig/delete" => "DeleteTaskPushNotificationConfigResponse",
        _no_method_of_a2a => "JSONRPCErrorResponse",
    }
}

/// A client of the door.
pub struct Client {
    http: HttpClient,
    address: SocketAddr,
    pub token: Option<String>,
}

impl Client {
    pub fn of(executor: &Executor) -> Self {
        Self::to(executor.address())
    }

    pub fn to(address: SocketAddr) -> Self {
        Self { http: HttpClient::connect(address), address, token: None }
    }

    pub fn with(executor: &Executor, token: &str) -> Self {
        Self { token: Some(format!("Bearer {token}")), ..Self::of(executor) }
    }

    pub fn post(&mut self, body: &str) -> HttpAnswer {
        let mut headers = vec![("Content-Type", "application/json")];
        headers.extend(self.token.as_deref().map(|token| ("Authorization", token)));
        self.http.request("POST", "/a2a/rpc", &headers, body.as_bytes())
    }

    pub fn get(&mut self, path: &str) -> HttpAnswer {
        let headers = self.token.as_deref().map(|token| ("Authorization", token));
        self.http.request("GET", path, headers.as_slice(), b"")
    }

    /// Calls a method, and gives the whole response, whose shape is checked.
    pub fn rpc(&mut self, method: &str, params: Value) -> Value {
        let response = self.rpc_unchecked(method, params);
        if method != "tasks/list" || response.get("error").is_some() {
            valid(definition(method), &response);
        }
        response
    }

    pub fn rpc_unchecked(&mut self, method: &str, params: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": "r1" });
        let answer = self.post(&body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        // An error of a streaming method is the one event of its stream.
        let streams = answer.headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned()));
        let text = answer.text();
        let text = if streams { text.strip_prefix("data: ").expect("an event") } else { &*text };
        let response: Value =
            serde_json::from_str(text.trim_end()).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((&response["jsonrpc"], &response["id"]), (&json!("2.0"), &json!("r1")), "{response}");
        let fails = response.get("error").is_some();
        assert_eq!(streams, fails && ["message/stream", "tasks/resubscribe"].contains(&method), "{response}");
        response
    }

    pub fn result(&mut self, method: &str, params: Value) -> Value {
        let response = self.rpc(method, params);
        response.get("result").unwrap_or_else(|| panic!("{method}: {response}")).clone()
    }

    pub fn code(&mut self, method: &str, params: Value) -> i64 {
        let response = self.rpc(method, params);
        response["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {response}"))
    }

    /// Sends a call, and returns its task once that has ended or requires input.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.result("message/send", call(tool, arguments))
    }

    /// Sends a call, and returns the id of its task without waiting for its end.
    pub fn begin(&mut self, tool: &str, arguments: Value) -> String {
        let mut params = call(tool, arguments);
        params["configuration"] = json!({ "blocking": false });
        id(&self.result("message/send", params))
    }

    pub fn task(&mut self, task: &str) -> Value {
        self.result("tasks/get", json!({ "id": task }))
    }

    /// Waits until a task has this state. A node of a fleet may ask to be asked again.
    pub fn until(&mut self, task: &str, state: &str) -> Value {
        eventually(&format!("the task is {state}"), || {
            let response = self.rpc("tasks/get", json!({ "id": task }));
            if response["error"]["data"]["retry_after_ms"].is_u64() {
                return None;
            }
            let task = response.get("result").unwrap_or_else(|| panic!("tasks/get: {response}"));
            (task["status"]["state"] == state).then(|| task.clone())
        })
    }

    /// Sends a request, and leaves reading the answer to the caller.
    pub fn send(&self, method: &str, params: &Value) -> TcpStream {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": "s1" }).to_string();
        let token =
            self.token.as_ref().map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /a2a/rpc HTTP/1.1\r\nHost: {}\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        HttpClient::send_only(self.address, (head + &body).as_bytes())
    }

    /// Opens a stream.
    pub fn stream(&self, method: &str, params: &Value) -> Stream {
        Stream::of(self.send(method, params))
    }
}

/// The server-sent events of one answer.
pub struct Stream {
    reader: BufReader<TcpStream>,
    /// True to check each event against the schema.
    pub checked: bool,
}

impl Stream {
    pub fn of(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        assert!(head.contains("text/event-stream"), "{head}");
        Self { reader, checked: true }
    }

    /// The next event; `None` at the end.
    pub fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "0\r\n" {
                return None;
            }
            if let Some(event) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(event).unwrap();
                if self.checked {
                    valid("SendStreamingMessageResponse", &event);
                }
                return Some(event);
            }
        }
    }

    /// The results of all events to the end.
    pub fn rest(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(event) = self.next() {
            all.push(event["result"].clone());
        }
        all
    }
}

pub fn message(parts: Value) -> Value {
    json!({ "role": "user", "messageId": intent_id(), "kind": "message", "parts": parts })
}

/// The params of `message/send` with a call.
pub fn call(tool: &str, arguments: Value) -> Value {
    let parts = json!([{ "kind": "data", "data": { "tool": tool, "arguments": arguments } }]);
    json!({ "message": message(parts) })
}

pub fn id(task: &Value) -> String {
    task["id"].as_str().unwrap_or_else(|| panic!("no task: {task}")).to_owned()
}

/// Adds the settings of the A2A door: rate limits that no test reaches, overridden by `more`.
pub fn door(options: Options, more: Value) -> Options {
    let often = 1_000_000;
    let mut door =
        json!({ "requests_per_minute": often, "requests_per_hour": often, "requests_at_once": 1000 });
    door.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    options.set("doors.a2a", door)
}

/// Names in lower case, with their values.
pub type Headers = Vec<(String, String)>;

/// A webhook server that records the notifications it receives.
pub struct Hook {
    address: SocketAddr,
    pub received: Arc<Mutex<Vec<(Headers, Value)>>>,
}

impl Hook {
    /// Answers with these statuses, and then with 200.
    pub fn start(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&received);
        let mut statuses = statuses.iter().copied();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let Ok((_, headers, body)) = read_message(&mut reader) else { continue };
                let status = statuses.next().unwrap_or(200);
                if status == 200 {
                    all.lock().unwrap().push((headers, serde_json::from_slice(&body).unwrap()));
                }
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nLocation: http://hook.example:{}/\r\nContent-Length: 0\r\n\r\n",
                    address.port()
                );
                let _gone = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { address, received }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, with a host name that the executor resolves by its `network.hosts`.
    pub fn url(&self) -> String {
        format!("http://hook.example:{}/told", self.address.port())
    }

    pub fn events(&self) -> Vec<Value> {
        self.received.lock().unwrap().iter().map(|(_, body)| body.clone()).collect()
    }

    pub fn wait_for(&self, count: usize) -> Vec<Value> {
        eventually("the webhook is called", || Some(self.events()).filter(|events| events.len() >= count))
    }

    /// Adds the settings with which an executor may call this webhook.
    pub fn of(&self, options: Options) -> Options {
        door(options, json!({ "webhook_domains": ["hook.example", "private.example"] }))
            .set("network.hosts", json!({ "hook.example": ["127.0.0.1"], "private.example": ["127.0.0.1"] }))
            .set("network.allowed_addresses", json!([self.address.to_string()]))
    }
}
