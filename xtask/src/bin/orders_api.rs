//! The API of the demo, which answers only those who have its key: `orders_api CERTIFICATE KEY`.
//!
//! It makes a certificate that signs itself, and a key, writes them to these two files, and serves
//! `docs/examples/orders.yaml` over HTTPS on loopback until it is killed. Standard error is its log, which has the
//! `authorization` of each request: the one place, besides the file, where the key is meant to be.

use std::env;
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use uuid::Uuid;

/// The name in the certificate, which the executor resolves by its configuration.
const HOST: &str = "orders.test";

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<_> = env::args_os().skip(1).collect();
    let [certificate_file, key_file] = paths.as_slice() else {
        return Err("name the files of the certificate and of the key".into());
    };
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()])?;
    let private_key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], private_key)?;
    let shared_config = Arc::new(config);
    fs::write(certificate_file, made.cert.pem())?;
    let key = format!("key-{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(key_file)?;
    file.write_all(key.as_bytes())?;

    let listener = TcpListener::bind("127.0.0.1:0")?;
    anstream::eprintln!("the API listens on https://{}/v1", listener.local_addr()?);
    for stream in listener.incoming().flatten() {
        if let Err(error) = serve(stream, Arc::clone(&shared_config), &key) {
            anstream::eprintln!("no answer: {error}");
        }
    }
    Ok(())
}

/// Reads the head of a request, and answers it.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, key: &str) -> Result<(), Box<dyn Error>> {
    // The answer would otherwise wait until the other side has confirmed the end of the handshake.
    stream.set_nodelay(true)?;
    let mut tls = StreamOwned::new(ServerConnection::new(config)?, stream);
    let lines = BufReader::new(&mut tls).lines().map_while(Result::ok);
    let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let request = head.first().map(String::as_str).unwrap_or_default();
    let mut fields = head.iter().filter_map(|line| line.split_once(": "));
    let found = fields.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let authorization = found.map(|(_, value)| value).unwrap_or_default();
    let (status, body) = answer(request, authorization, key);
    anstream::eprintln!("{request}, authorization: {authorization}: {status}");
    let text = body.to_string();
    let rest = format!("connection: close\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    let response = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{rest}");
    tls.write_all(response.as_bytes())?;
    tls.conn.send_close_notify();
    tls.flush()?;
    Ok(())
}

/// The status and the body of the answer to a request.
fn answer(request: &str, authorization: &str, key: &str) -> (&'static str, Value) {
    if authorization != format!("Bearer {key}") {
        return ("401 Unauthorized", json!({ "error": "this is not the key" }));
    }
    match request {
        "GET /v1/orders/1042 HTTP/1.1" => ("200 OK", json!({ "id": "1042", "item": "chair", "count": 3 })),
        "GET /v1/request HTTP/1.1" => ("200 OK", json!({ "authorization": authorization })),
        _ => ("404 Not Found", json!({ "error": "there is no such order" })),
    }
}
