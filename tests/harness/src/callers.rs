//! Callers: a list of them, made by the command line, what they show, and certificates for them.

use super::{Home, HttpAnswer, HttpClient, Options, Process, post_request, program, set_mode, succeeds};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// A list of callers, made by the command line.
pub struct List {
    folder: TempDir,
}

impl List {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("callers.toml")
    }

    /// Adds a caller, and gives what is printed: its token.
    pub fn add(&self, name: &str, more: &[&str]) -> String {
        let path = self.path();
        let arguments = ["caller", "new", name, "--callers", path.to_str().unwrap()];
        let printed = succeeds(&[&arguments, more].concat());
        String::from_utf8(printed).unwrap().trim_end().to_owned()
    }

    pub fn remove(&self, name: &str) {
        succeeds(&["caller", "remove", name, "--callers", self.path().to_str().unwrap()]);
    }

    /// An executor that knows these callers.
    pub fn options(&self) -> Options {
        self.of(Options::new())
    }

    /// With these callers.
    pub fn of(&self, options: Options) -> Options {
        options.set("server.callers", json!(self.path()))
    }
}

pub fn agent(list: &List, name: &str, of: &str) -> String {
    list.add(name, &["--role", "agent", "--agent", of])
}

/// Calls a method with what is shown in `Authorization`.
pub fn ask(client: &mut HttpClient, shown: Option<&str>, method: &str, params: &Value) -> HttpAnswer {
    let body = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": 1 }).to_string();
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(shown.map(|shown| ("Authorization", shown)));
    client.post_with(&headers, body.as_bytes())
}

/// Runs a command that has to end by itself, with this code and these words on standard error.
pub fn ends(command: &mut Command, code: i32, words: &str) {
    let mut process = Process::spawn("executor", command);
    assert_eq!(process.wait_for_exit().code(), Some(code), "{}", process.stderr());
    process.line_with(words);
}

/// Checks that an executor neither starts with this configuration nor calls it valid, and why.
pub fn assert_unusable(options: Options, words: &str) {
    let home = Home::new(options);
    ends(&mut home.command(), 2, words);
    ends(Command::new(program()).args(["config", "check", "--config"]).arg(home.config()), 2, words);
}

pub fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

pub fn rpc(client: &mut HttpClient, token: &str, method: &str, params: &Value) -> Value {
    let answer = ask(client, Some(&bearer(token)), method, params);
    assert_eq!(answer.status, 200, "{method}: {}", answer.text());
    answer.json()
}

/// A root of the test's own, and what it signed, in files.
pub struct Authority {
    folder: TempDir,
    root: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { folder: tempfile::tempdir().unwrap(), root };
        std::fs::write(authority.path("root.pem"), authority.root.pem()).unwrap();
        authority
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Signs a certificate for these names, and writes it and its key to `NAME.pem` and `NAME.key`.
    pub fn issue(&self, name: &str, for_names: Vec<SanType>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = for_names;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.root).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        let file = self.path(&format!("{name}.key"));
        std::fs::write(&file, key.serialize_pem()).unwrap();
        set_mode(&file, 0o600);
    }

    /// Serves with the certificate of `name`.
    pub fn serving(&self, options: Options, name: &str, client_ca: Option<&Authority>) -> Options {
        let mut tls = json!({
            "certificate": self.path(&format!("{name}.pem")),
            "key": self.path(&format!("{name}.key")),
        });
        if let Some(client_ca) = client_ca {
            tls["client_ca"] = json!(client_ca.path("root.pem"));
        }
        options.set("server.tls", tls)
    }

    /// One request over TLS to a server that this root vouches for, showing a certificate and a token.
    pub fn ask(
        &self,
        address: SocketAddr,
        certificate: Option<(&Authority, &str)>,
        token: Option<&str>,
    ) -> Result<String, String> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.root.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match certificate {
            None => builder.with_no_client_auth(),
            Some((of, name)) => {
                let chain = CertificateDer::from_pem_file(of.path(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(of.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
        };
        let name = ServerName::try_from("executor.test").unwrap();
        let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address).unwrap());
        let body = r#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#;
        let authorization = token.map(|token| format!("Authorization: Bearer {token}"));
        let lines: Vec<_> = authorization.iter().map(String::as_str).chain(["Connection: close"]).collect();
        let request = post_request("/jsonrpc", &lines, body);
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Err(error) if answer.is_empty() => Err(error.to_string()),
            Ok(_) | Err(_) => Ok(answer),
        }
    }
}

pub fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}
