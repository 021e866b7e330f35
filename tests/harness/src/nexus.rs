//! Agents of Genesis Nexus: their keys, and messages that they sign, seal and read.

use super::{Catalogue, Executor, HttpAnswer, HttpClient, Options, intent_id, methods, set_mode};
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use std::path::PathBuf;
use tempfile::TempDir;

/// The id of the executor if none is configured.
pub const EXECUTOR: &str = "did:a2g:executor:1.0:local";

/// The keys that one agent shares with the executor.
#[derive(Clone, Copy)]
pub struct Agent {
    pub id: &'static str,
    pub secret: &'static str,
    pub key: [u8; 32],
}

pub const PLANNER: Agent =
    Agent { id: "planner", secret: "planner-secret-0123456789abcdef-0123", key: [1; 32] };

pub const OTHER: Agent = Agent { id: "other", secret: "other-secret-0123456789abcdef-012345", key: [2; 32] };

pub const OPERATOR: Agent = Agent { id: "ops", secret: "ops-secret-0123456789abcdef-01234567", key: [3; 32] };

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Agent {
    pub fn did(&self) -> String {
        format!("did:nexus:{}", self.id)
    }

    pub fn sign(&self, text: &str) -> String {
        let mac = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(self.secret.as_bytes()).unwrap();
        hex(&mac.chain_update(text).finalize().into_bytes())
    }

    pub fn identity(&self) -> Value {
        json!({ "id": self.id, "type": "desktop", "version": "1.0.0", "capabilities": ["x"] })
    }

    pub fn header(&self, message: &Value) -> String {
        let part = |name: &str| message[name].to_string();
        format!(
            r#"{{"id":{},"type":{},"from":{},"to":{},"timestamp":{}}}"#,
            part("id"),
            part("type"),
            part("from"),
            part("to"),
            part("timestamp")
        )
    }

    /// An unsigned message with the members that all messages have.
    pub fn message(&self, kind: &str, more: &Value) -> Value {
        let mut message = json!({
            "id": intent_id(),
            "type": kind,
            "version": "1.0.0",
            "timestamp": now_ms(),
            "from": self.identity(),
            "to": { "id": EXECUTOR, "type": "mcp", "version": "1.0.0", "capabilities": [] },
            "priority": "normal",
            "ttl": 60_000,
            "requiresAck": false,
            "requiresSignature": true,
        });
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    }

    pub fn signed(&self, mut message: Value) -> Value {
        message["signature"] = self.sign(&self.header(&message)).into();
        message
    }

    /// Adds a payload to a message in encrypted form (sealed), and signs the message.
    pub fn sealed(&self, mut message: Value, payload: &Value) -> Value {
        let iv: [u8; 12] = uuid::Uuid::new_v4().as_bytes()[..12].try_into().unwrap();
        let header = self.header(&message);
        let text = payload.to_string();
        let cipher = Aes256Gcm::new_from_slice(&self.key).unwrap();
        let payload = Payload { msg: text.as_bytes(), aad: header.as_bytes() };
        let mut ciphertext = cipher.encrypt(&Nonce::from(iv), payload).unwrap();
        let tag = ciphertext.split_off(ciphertext.len() - 16);
        message["encryption"] = json!({
            "algorithm": "AES-256-GCM",
            "iv": STANDARD.encode(iv),
            "ciphertext": STANDARD.encode(ciphertext),
            "authTag": STANDARD.encode(tag),
        });
        self.signed(message)
    }

    pub fn command(&self, action: &str, parameters: &Value) -> Value {
        let message = self.message("command", &json!({ "action": action }));
        self.sealed(message, &json!({ "parameters": parameters }))
    }

    pub fn execute(&self, tool: &str, arguments: Value) -> Value {
        self.command("tool.execute", &json!({ "tool": tool, "arguments": arguments }))
    }

    /// As [`Self::execute`], with a priority.
    pub fn execute_at(&self, priority: &str, tool: &str, arguments: Value) -> Value {
        let more = json!({ "action": "tool.execute", "priority": priority });
        let parameters = json!({ "parameters": { "tool": tool, "arguments": arguments } });
        self.sealed(self.message("command", &more), &parameters)
    }

    /// As [`Self::execute`], with this id for the message and the intent.
    pub fn execute_as(&self, id: &str, tool: &str, arguments: Value) -> Value {
        let message = self.message("command", &json!({ "action": "tool.execute", "id": id }));
        self.sealed(message, &json!({ "parameters": { "tool": tool, "arguments": arguments } }))
    }

    pub fn query(&self, question: &str, resource: &str) -> Value {
        self.signed(
            self.message("query", &json!({ "action": question, "payload": { "resourceId": resource } })),
        )
    }

    pub fn ack(&self, of: &Value) -> Value {
        self.signed(self.message("ack", &json!({ "correlationId": of })))
    }

    /// Checks the executor's signature, and returns the message, decrypted if it was sealed.
    pub fn read(&self, message: &Value) -> Value {
        assert_eq!(message["version"], "1.0.0", "{message}");
        assert_eq!(message["from"]["id"], EXECUTOR, "{message}");
        assert_eq!(message["to"], self.identity(), "{message}");
        assert_eq!(message["signature"], self.sign(&self.header(message)), "{message}");
        let Some(encryption) = message.get("encryption") else { return message.clone() };
        let part = |name: &str| STANDARD.decode(encryption[name].as_str().unwrap()).unwrap();
        let whole = [part("ciphertext"), part("authTag")].concat();
        let iv: [u8; 12] = part("iv").try_into().unwrap();
        let header = self.header(message);
        let cipher = Aes256Gcm::new_from_slice(&self.key).unwrap();
        let opened =
            cipher.decrypt(&Nonce::from(iv), Payload { msg: &whole, aad: header.as_bytes() }).unwrap();
        let opened: Value = serde_json::from_slice(&opened).unwrap();
        let mut read = message.clone();
        if message["type"] == "event" {
            read["payload"] = opened;
        } else {
            read.as_object_mut().unwrap().extend(opened.as_object().unwrap().clone());
        }
        read
    }
}

pub fn now_ms() -> u64 {
    u64::try_from(time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000).unwrap()
}

/// A temporary folder with the key file of some agents.
pub struct Keys(TempDir);

impl Keys {
    pub fn new() -> Self {
        Self::of(&[PLANNER, OTHER, OPERATOR])
    }

    pub fn of(agents: &[Agent]) -> Self {
        let keys = Self(tempfile::tempdir().unwrap());
        let line = |agent: &Agent| format!("{} {} {}\n", agent.id, agent.secret, hex(&agent.key));
        std::fs::write(keys.path(), agents.iter().map(line).collect::<String>()).unwrap();
        set_mode(&keys.path(), 0o600);
        keys
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("nexus.keys")
    }

    pub fn options(&self) -> Options {
        Options::new().set("doors.nexus", json!({ "key_file": self.path() }))
    }

    /// Options with the gate beside the repository's tools, and with a policy that allows it.
    pub fn with_gate(&self) -> (Options, TempDir, Catalogue) {
        let policies = methods::policy_folder(&[methods::policy()]);
        let catalogue = methods::catalogue();
        (self.options().catalogue(&catalogue).policies(policies.path()), policies, catalogue)
    }
}

pub fn post_with(client: &mut HttpClient, headers: &[(&str, &str)], body: &[u8]) -> HttpAnswer {
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    client.request("POST", "/nexus", &headers, body)
}

/// Posts a message, and gives the one message that answers it.
pub fn ask(executor: &Executor, agent: Agent, message: &Value) -> Value {
    let answer = post_with(&mut executor.client(), &[], message.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    agent.read(&answer.json())
}
