//! Agents at the Genesis Nexus door: their keys, what they seal and sign, and what they open.

use a2g_wire::nexus::keys::{AgentKeys, SealedPayload};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The executor's own id where none is configured.
const EXECUTOR: &str =
    r#"{"id":"did:a2g:executor:1.0:local","type":"mcp","version":"1.0.0","capabilities":[]}"#;

pub(crate) struct Agent {
    name: String,
    secret: String,
    key: [u8; 32],
    keys: AgentKeys,
}

/// So many agents, and the file with their keys.
pub(crate) fn agents(count: u16, key_file: &Path) -> Vec<Agent> {
    let agents = (0..count).map(Agent::new).collect::<Vec<_>>();
    std::fs::write(key_file, agents.iter().map(Agent::line).collect::<String>()).unwrap();
    std::fs::set_permissions(key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    agents
}

impl Agent {
    fn new(number: u16) -> Self {
        let name = format!("b{number}");
        let secret = format!("secret-of-{name:-<22}");
        let mut key = [7; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        let keys = AgentKeys::new(secret.as_bytes(), Some(&key)).unwrap();
        Self { name, secret, key, keys }
    }

    fn line(&self) -> String {
        let key = self.key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{} {} {key}\n", self.name, self.secret)
    }

    /// A command, sealed and signed.
    pub(crate) fn command(&self, action: &str, parameters: &str) -> String {
        let id = uuid::Uuid::new_v4();
        let iv = uuid::Uuid::new_v4().as_bytes()[..12].try_into().unwrap();
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let name = &self.name;
        let head = format!(
            r#"{{"id":"{id}","type":"command","from":{{"id":"{name}","type":"desktop","version":"1.0.0","capabilities":[]}},"to":{EXECUTOR},"timestamp":{now_ms}}}"#
        );
        let signature = self.keys.sign(&head);
        let payload = format!(r#"{{"parameters":{parameters}}}"#);
        let SealedPayload { iv, ciphertext, auth_tag } = self.keys.seal(&payload, &head, iv).unwrap();
        let [iv, ciphertext, tag] = [&iv[..], &ciphertext, &auth_tag].map(|bytes| STANDARD.encode(bytes));
        let members = head.trim_end_matches('}');
        format!(
            r#"{members},"version":"1.0.0","action":"{action}","encryption":{{"algorithm":"AES-256-GCM","iv":"{iv}","ciphertext":"{ciphertext}","authTag":"{tag}"}},"signature":"{signature}","priority":"normal","ttl":60000,"requiresAck":false,"requiresSignature":true}}"#
        )
    }

    /// What a sealed message says. Its signature has to be the executor's.
    pub(crate) fn open(&self, message: &str) -> Value {
        let message: Value = serde_json::from_str(message).unwrap();
        let [id, kind, from, to, timestamp] =
            ["id", "type", "from", "to", "timestamp"].map(|name| &message[name]);
        let head = format!(r#"{{"id":{id},"type":{kind},"from":{from},"to":{to},"timestamp":{timestamp}}}"#);
        assert!(self.keys.verify(&head, message["signature"].as_str().unwrap()), "{message}");
        let part = |name: &str| STANDARD.decode(message["encryption"][name].as_str().unwrap()).unwrap();
        let sealed = SealedPayload {
            iv: part("iv").try_into().unwrap(),
            ciphertext: part("ciphertext"),
            auth_tag: part("authTag").try_into().unwrap(),
        };
        serde_json::from_slice(&self.keys.open(&sealed, &head).unwrap()).unwrap()
    }
}
